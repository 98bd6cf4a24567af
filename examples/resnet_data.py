"""Labelled images to train ResNets on: scikit-learn's digits, MNIST, and CIFAR-10."""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path
from typing import NamedTuple

import mnist_data
import numpy as np

DIGITS_HELD_OUT = 360
RECORD = 1 + 3 * 32 * 32
# The means and the standard deviations of the training images' channels, between 0 and 1.
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR10_SOURCE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


class ImageDataError(Exception):
    """Images that are missing or damaged; the message names the file and says what to do."""


class Images(NamedTuple):
    """Normalized float32 images of shape (n, height, width, channels) and int32 labels from 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(name: str, directory: Path | None = None) -> Images:
    """Loads ``"digits"``, ``"mnist"`` or ``"cifar10"``.

    Args:
        name: the data set.
        directory: the directory of the original files; digits have none, and MNIST need not.

    Raises:
        ImageDataError: if a file is missing or damaged.
        MnistDataError: the same, for MNIST.
    """
    if name == "mnist":
        return Images(*mnist_data.load(directory))
    return _digits() if directory is None else _cifar10(directory)


def _digits() -> Images:
    advice = "pip install --no-deps scikit-learn"
    # scikit-learn is installed without its dependencies, so it cannot be imported, only found.
    spec = importlib.util.find_spec("sklearn")
    folders = (spec and spec.submodule_search_locations) or ()
    paths = [Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ImageDataError(f"The file digits.csv.gz of the scikit-learn wheel is missing. Run: {advice}")
    advice = f"Run: {advice.replace('install', 'install --force-reinstall')}"
    try:
        table = np.loadtxt(path, dtype=np.float32, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ImageDataError(f"{path} is damaged ({error}). {advice}") from None
    if table.shape != (1797, 65):
        raise ImageDataError(f"{path} must have 1797 rows of 65 numbers, got {table.shape}. {advice}")
    limits = np.array([16] * 64 + [9])
    wrong = np.argwhere(~((table >= 0) & (table <= limits)))
    if len(wrong):
        line, column = wrong[0]
        must = f"must be from 0 to {limits[column]}, got {table[line, column]:g}"
        raise ImageDataError(f"{path}, line {line + 1}: number {column + 1} {must}. {advice}")
    # One split for all runs, whatever the training seed: accuracies stay comparable.
    table = np.random.RandomState(0).permutation(table)
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int32)
    train, test = slice(DIGITS_HELD_OUT, None), slice(DIGITS_HELD_OUT)
    images = (images - images[train].mean()) / images[train].std()
    return Images(images[train], labels[train], images[test], labels[test])


def _cifar10(directory: Path) -> Images:
    train = sorted(directory.glob("data_batch_*.bin"))
    missing = "test_batch.bin" if train else "data_batch_1.bin"
    if not train or not (directory / "test_batch.bin").is_file():
        raise ImageDataError(f"{directory / missing} is missing. Unpack {CIFAR10_SOURCE} there.")
    images, labels = zip(*map(_read_cifar10, train), strict=True)
    return Images(np.concatenate(images), np.concatenate(labels), *_read_cifar10(directory / "test_batch.bin"))


def _read_cifar10(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and the labels of a file: records of a label and three planes of 32x32 bytes."""
    advice = f"Download it again from {CIFAR10_SOURCE}."
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise ImageDataError(f"{path} cannot be read ({error.strerror}). {advice}") from None
    count, rest = divmod(data.size, RECORD)
    if rest or not count:
        must = f"must have records of {RECORD} bytes, got {rest} bytes in record {count}"
        raise ImageDataError(f"{path} {must}. {advice}")
    records = data.reshape(count, RECORD)
    labels = records[:, 0].astype(np.int32)
    wrong = np.flatnonzero(labels > 9)
    if len(wrong):
        must = f"label must be from 0 to 9, got {labels[wrong[0]]}"
        raise ImageDataError(f"{path}, record {wrong[0]}: the {must}. {advice}")
    # From a table of the values of all bytes, in float32 at once.
    table = (np.arange(256)[:, None] / 255 - CIFAR10_MEAN) / CIFAR10_STD
    planes = records[:, 1:].reshape(count, 3, 32, 32)
    images = [table.astype(np.float32)[:, channel][planes[:, channel]] for channel in range(3)]
    return np.stack(images, axis=-1), labels
