"""The example of ResNets: its images, its augmentation, and runs that resume."""

import gzip
import importlib.util
import json
import re
from functools import partial

import numpy as np
import pytest
import resnet
import resnet_data

import tvmfun
from tvmfun import checkpoints, random, tree
from tvmfun.counters import counted
from tvmfun.data import batches
from tvmfun.models import ResNetConfig

TINY = {"mini": partial(ResNetConfig, (1,), width=4), "18": partial(ResNetConfig, (1, 1), width=4)}


@pytest.fixture
def tiny(monkeypatch):
    """Two classes of 8x8 images, of which 19 are held out, and small networks."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 83).astype("int32")
    images = (rng.normal(size=(83, 8, 8, 1)) + 2 * labels[:, None, None, None] - 1).astype("float32")
    data = resnet_data.Images(images[19:], labels[19:], images[:19], labels[:19])
    monkeypatch.setattr(resnet_data, "load", lambda name, directory: data)
    monkeypatch.setattr(resnet, "SIZES", TINY)
    return data


def arguments(run, *more):
    return ["--run", str(run), "--batch-size", "8", "--warmup", "1", "--no-progress", *map(str, more)]


# -- data ---


def digits_table():
    """Rows of 64 numbers and a label, as many as scikit-learn has."""
    rng = np.random.default_rng(0)
    return np.concatenate([rng.integers(0, 17, (1797, 64)), rng.integers(0, 10, (1797, 1))], axis=1)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A function that writes the file of an installed scikit-learn, which cannot be imported."""
    folder = tmp_path / "sklearn" / "datasets" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)

    def write(content):
        (folder / "digits.csv.gz").write_bytes(content)

    return write


def csv(table):
    return gzip.compress("\n".join(",".join(map(str, row)) for row in table.tolist()).encode())


def test_digits_of_the_wheel(wheel):
    table = digits_table()
    wheel(csv(table))
    data = resnet_data.load("digits")
    assert data.train_images.shape == (1437, 8, 8, 1) and data.test_images.shape == (360, 8, 8, 1)
    assert data.train_images.dtype == np.float32 and data.train_labels.dtype == np.int32
    assert np.bincount([*data.train_labels, *data.test_labels]).tolist() == np.bincount(table[:, -1]).tolist()
    assert data.train_images.mean() == pytest.approx(0, abs=1e-4) and data.train_images.std() == pytest.approx(1)


def changed(line, column, value):
    table = digits_table()
    table[line, column] = value
    return csv(table)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzipped", "is damaged"),
        (csv(digits_table())[:500], "is damaged"),
        (csv(digits_table()[1:]), "must have 1797 rows of 65 numbers, got (1796, 65)"),
        (changed(6, 64, 11), "line 7: number 65 must be from 0 to 9, got 11"),
        (changed(8, 3, 17), "line 9: number 4 must be from 0 to 16, got 17"),
    ],
)
def test_damaged_digits(wheel, tmp_path, content, message):
    wheel(content)
    with pytest.raises(SystemExit, match=f"digits.csv.gz.*{re.escape(message)}.*pip install --force-reinstall"):
        resnet.main(arguments(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_digits_that_are_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="Run: pip install --no-deps scikit-learn"):
        resnet.main(arguments(tmp_path / "run"))


def records(labels):
    """The bytes of a file of CIFAR-10, each of whose images has the value of its index."""
    return b"".join(bytes([label]) + bytes([i]) * 3072 for i, label in enumerate(labels))


@pytest.fixture
def cifar10(tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(records([3, 9]))
    (folder / "data_batch_2.bin").write_bytes(records([0]))
    (folder / "test_batch.bin").write_bytes(records([7]))
    return folder


def test_cifar10(cifar10):
    planes = np.arange(3072, dtype=np.uint32).astype(np.uint8).tobytes()
    (cifar10 / "test_batch.bin").write_bytes(bytes([7]) + planes)
    data = resnet_data.load("cifar10", cifar10)
    assert data.train_labels.tolist() == [3, 9, 0] and data.test_labels.tolist() == [7]
    assert data.train_images.dtype == np.float32 and data.train_images.shape == (3, 32, 32, 3)
    np.testing.assert_allclose(data.train_images[1, 5, 5, 2], (1 / 255 - 0.4465) / 0.2616, rtol=1e-6)
    pixel = np.frombuffer(planes, np.uint8).reshape(3, 32, 32)[:, 4, 9]
    expected = (pixel / 255 - resnet_data.CIFAR10_MEAN) / resnet_data.CIFAR10_STD
    np.testing.assert_allclose(data.test_images[0, 4, 9], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_batch.bin", None, "test_batch.bin is missing. Unpack https://"),
        ("data_batch_2.bin", records([1, 2])[:-1], "must have records of 3073 bytes, got 3072 bytes in record 1"),
        ("data_batch_2.bin", b"", "got 0 bytes in record 0"),
        ("data_batch_1.bin", records([1, 2, 11]), "record 2: the label must be from 0 to 9, got 11"),
    ],
)
def test_damaged_cifar10(cifar10, tmp_path, name, content, message):
    path = cifar10 / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(SystemExit, match=f"{name}.*{re.escape(message.removeprefix(name))}"):
        resnet.main(arguments(tmp_path / "run", "--data", "cifar10", "--files", cifar10))
    assert not (tmp_path / "run").exists()


def test_directories_without_files(tmp_path):
    with pytest.raises(SystemExit, match="data_batch_1.bin is missing"):
        resnet.main(arguments(tmp_path / "run", "--data", "cifar10", "--files", tmp_path))
    with pytest.raises(SystemExit, match="train-images-idx3-ubyte is missing"):
        resnet.main(arguments(tmp_path / "run", "--data", "mnist", "--mnist", tmp_path))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--data", "cifar10"], "--data cifar10 needs --files"),
        (["--files", "."], "--files is for --data cifar10, got --data digits"),
        (["--mnist", "."], "--mnist is for --data mnist"),
        (["--smoothing", "1"], "--smoothing must be at least 0 and below 1"),
        (["--average", "-0.1"], "--average must be at least 0 and below 1"),
        (["--batch-size", "0"], "--batch-size must be positive"),
        (["--steps", "3"], "--warmup must be at least 0 and below --steps 3, got 50"),
        (["--lr", "nan"], "--lr must be positive, got nan"),
    ],
)
def test_options_that_make_no_sense(tmp_path, capsys, option, message):
    with pytest.raises(SystemExit):
        resnet.main(["--run", str(tmp_path / "run"), *option])
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_batches_larger_than_the_training_set(tiny, tmp_path):
    with pytest.raises(SystemExit, match="a source must fill a batch, got batches of 65 from 64 examples"):
        resnet.main(arguments(tmp_path / "run", "--batch-size", 65))
    assert not (tmp_path / "run").exists()


def test_the_baseline_is_the_nearest_mean(tiny):
    flat = lambda images: images.reshape(len(images), -1)
    means = np.stack([flat(tiny.train_images)[tiny.train_labels == c].mean(0) for c in (0, 1)])
    distances = np.linalg.norm(flat(tiny.test_images)[:, None] - means, axis=-1)
    expected = (distances.argmin(1) == tiny.test_labels).mean()
    assert resnet.nearest_mean_accuracy(tiny) == pytest.approx(expected)


# -- augmentation ---


@pytest.mark.parametrize(("change", "size"), [(resnet.turn_and_move, 9), (resnet.crop_and_flip, 12)])
def test_augmentation_is_a_function_of_the_key_and_the_step(change, size):
    images = np.zeros((3, size, size, 1), "float32")
    images[:, 3, 4] = 1
    augment = tvmfun.jit(partial(resnet.augmented, change, -0.5))
    first = np.asarray(augment(random.key(0), 5, images))
    assert first.shape == images.shape and first.min() == -0.5 and first.max() <= 1
    assert (first == np.asarray(augment(random.key(0), 5, images))).all()
    assert (first != np.asarray(augment(random.key(0), 6, images))).any()
    assert (first != np.asarray(augment(random.key(1), 5, images))).any()
    assert (first[0] != first[1]).any()


def test_crops_are_the_image_moved_by_whole_pixels():
    images = np.arange(1.0, 37.0, dtype="float32").reshape(1, 6, 6, 1)
    augment = tvmfun.jit(partial(resnet.augmented, resnet.crop_and_flip, 0.0))
    padded = np.pad(images[0], ((4, 4), (4, 4), (0, 0)))
    crops = [padded[i : i + 6, j : j + 6] for i in range(9) for j in range(9)]
    crops += [crop[:, ::-1] for crop in crops]
    changed = augment(random.key(0), 0, np.repeat(images, 8, 0))
    found = [[(np.asarray(image) == crop).all() for crop in crops].index(True) for image in changed]
    assert len(set(found)) > 4


@pytest.mark.slow
def test_turned_images_stay_where_they_were_on_average():
    images = np.zeros((200, 9, 9, 1), "float32")
    images[:, 3:6, 3:6] = 1
    changed = np.asarray(resnet.augmented(resnet.turn_and_move, 0.0, random.key(0), 0, images))[..., 0]
    axis = np.arange(9) - 4
    mass = changed.sum(axis=(1, 2))
    for moment in (changed * axis, changed * axis[:, None]):
        centres = moment.sum(axis=(1, 2)) / mass
        assert abs(centres.mean()) < 0.1 and 0.3 < centres.std() < 0.7 and np.abs(centres).max() < 1


# -- runs ---


def saved(run, step):
    return checkpoints.read(checkpoints.Manager(run / "checkpoints").path(step)).arrays


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tiny, tmp_path, monkeypatch):
    # The learning rate would depend on the number of steps.
    monkeypatch.setattr(resnet, "make_schedule", lambda options: resnet.optim.constant_schedule(options.lr))
    whole = resnet.main(arguments(tmp_path / "whole", "--steps", 12, "--every", 6))
    parts = arguments(tmp_path / "parts", "--every", 5)
    resnet.main([*parts, "--steps", "5"])
    resumed = resnet.main([*parts, "--steps", "12", "--resume"])
    assert resumed == whole
    one, other = saved(tmp_path / "whole", 12), saved(tmp_path / "parts", 12)
    assert one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert any("averaged" in name and "mean" in name for name in one)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    names = {"loss", "accuracy", "validation loss", "averaged loss", "averaged accuracy", "images/s"}
    assert [row["step"] for row in rows] == [6, 12] and names <= rows[0].keys()
    monkeypatch.setattr(resnet_data, "load", lambda name, directory: tiny._replace(train_images=-tiny.train_images))
    with pytest.raises(SystemExit, match="was made with other data"):
        resnet.main([*parts, "--steps", "13", "--resume"])


@pytest.mark.slow
def test_a_run_compiles_each_step_once(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(resnet, "batches", lambda source, size, **rest: batches(source, min(size, 8), **rest))
    task, held_out, *_ = resnet.prepare(resnet.parse(arguments(tmp_path)))
    state, _ = task.step(task.state, next(task.batches))
    task.evaluate(state)
    assert [int(batch.mask.sum()) for batch in held_out()] == [8, 8, 3]
    # Beyond the end of the first epoch.
    following = [next(task.batches) for _ in range(10)]
    with counted() as events:
        for batch in following:
            state, _ = task.step(state, batch)
    assert (events.compiles, events.calls, events.to_device, events.to_host) == (0, 10, 20, 0)
    with counted() as events:
        metrics = task.evaluate(state)
    assert (events.compiles, events.calls) == (0, 6)
    logits, _ = state.model(tiny.test_images, state.statistics, train=False)
    assert metrics["accuracy"] == pytest.approx((np.argmax(logits, axis=1) == tiny.test_labels).mean())


@pytest.mark.slow
def test_the_average_is_the_mean_of_the_first_weights(tiny, tmp_path):
    task = resnet.prepare(resnet.parse(arguments(tmp_path, "--average", 0.75))).task
    state, history = task.state, []
    for _ in range(6):
        state, _ = task.step(state, next(task.batches))
        history.append(tree.map(np.array, resnet.Weights(state.model, state.statistics)))
    expected = tree.map(lambda *leaves: np.mean(leaves, axis=0), *history[:4])
    for weights in history[4:]:
        expected = tree.map(lambda mean, leaf: 0.75 * mean + 0.25 * leaf, expected, weights)
    for mean, leaf in zip(tree.leaves(expected), tree.leaves(state.averaged), strict=True):
        np.testing.assert_allclose(leaf, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--amp", "products"),
        ("--amp", "most"),
        ("--size", "18"),
        ("--smoothing", "0"),
        ("--average", "0"),
        ("--data", "cifar10", "--files", "."),
    ],
    ids=" ".join,
)
def test_other_options_train_too(tiny, tmp_path, more):
    metrics = resnet.main(arguments(tmp_path / "run", "--steps", 30, "--every", 15, *more))
    assert metrics["averaged accuracy"] > 0.9 and metrics["accuracy"] > 0.9


def test_the_sizes_are_those_of_the_papers():
    configs = {name: make(num_classes=10, in_channels=1, small_images=True) for name, make in resnet.SIZES.items()}
    assert configs["18"].blocks == (2, 2, 2, 2) and configs["50"].blocks == (3, 4, 6, 3) and configs["50"].bottleneck


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs the digits of scikit-learn")
def test_reaches_its_accuracy(tmp_path):
    metrics = resnet.main(["--run", str(tmp_path / "run"), "--steps", "400", "--every", "400", "--no-progress"])
    assert metrics["averaged accuracy"] >= 0.98
