"""Batches of a source, in an order that is a function of the key, the epoch and the index."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from tvmfun import random, tree
from tvmfun.data.sources import Source, positive
from tvmfun.data.streams import Stream, same_origin
from tvmfun.errors import ArgumentError, DataError, ShapeError
from tvmfun.typing import Key, PyTree

__all__ = ["Batches", "Padded", "batches"]

Last: TypeAlias = Literal["drop", "keep", "pad"]
KeyWords: TypeAlias = tuple[int, ...]


class Padded(NamedTuple):
    """A batch, and the mask of its real examples: ``bool[batch_size]``."""

    examples: PyTree
    mask: np.ndarray


class State(NamedTuple):
    """The epochs completed, the examples read in this one, the size of the source, and the words of the key."""

    epoch: int
    taken: int
    size: int
    key: KeyWords


def batches(
    source: Source,
    batch_size: int,
    *,
    key: Key | None = None,
    epochs: int | None = 1,
    last: Last = "drop",
    replace: bool = False,
) -> Batches:
    """Returns batches of the examples of a source, reshuffled in every epoch.

    The order of epoch e is a permutation that depends only on ``fold_in(key, e)``: it is the same on every machine.
    Restoring a state costs one permutation, wherever it is.

    Args:
        source: the examples.
        batch_size: the number of examples in a batch.
        key: a key of :mod:`tvmfun.random`; without one the examples come in order.
        epochs: the number of passes over the source, including those before a restored state; ``None`` for no end.
        last: how to treat an incomplete last batch. ``"drop"``: it is left out. ``"keep"``: it is smaller.
            ``"pad"``: every batch is a :class:`Padded`; missing examples are copies of its first one.
        replace: draw examples with replacement; an epoch has as many as the source.

    Raises:
        ArgumentError: if an argument is invalid.
        ShapeError: if the key is not a key.
        DataError: if the source is empty, or drops its only batch.

    >>> from tvmfun.data import ArraySource
    >>> [batch.tolist() for batch in batches(ArraySource(np.arange(5)), 2, last="keep")]
    [[0, 1], [2, 3], [4]]
    >>> list(batches(ArraySource(np.arange(3)), 2, last="pad"))[1]
    Padded(examples=array([2, 2]), mask=array([ True, False]))
    """
    if isinstance(source, np.ndarray) or not isinstance(source, Source):
        got = type(source).__name__
        raise ArgumentError("batches", "the source must have __len__ and read", got=got, hint="ArraySource(arrays)")
    positive("batches", "batch_size", batch_size)
    if epochs is not None:
        positive("batches", "number of epochs", epochs)
    check_last("batches", last)
    if replace and key is None:
        raise ArgumentError("batches", "replace=True draws examples, and needs a key", hint="key=random.key(0)")
    words = key_words("batches", key)
    if not len(source):
        raise DataError("batches", "the source must have examples", got="none")
    if last == "drop" and batch_size > len(source):
        got = f"batches of {batch_size} from {len(source)} examples"
        raise DataError("batches", "a source must fill a batch", got=got, hint='a smaller batch_size, or last="keep"')
    return Batches(source, batch_size, words, epochs, last, replace)


class Batches(Stream):
    """The stream that :func:`batches` returns."""

    def __init__(
        self, source: Source, batch_size: int, key: KeyWords, epochs: int | None, last: Last, replace: bool
    ) -> None:
        self._source, self._batch_size, self._key = source, batch_size, key
        self._epochs, self._last, self._replace = epochs, last, replace
        self._size = len(source)
        self._epoch = self._taken = 0
        self._order: tuple[int, np.ndarray] | None = None

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        complete, rest = divmod(self._size, self._batch_size)
        return complete + (rest > 0 and self._last != "drop")

    @property
    def state(self) -> State:
        """The position of the next batch; its ``epoch`` is the number of epochs completed."""
        return State(self._epoch, self._taken, self._size, self._key)

    def restore(self, state: PyTree) -> None:
        """Continues from a state; the size of the batches may have changed. See :meth:`Stream.restore`.

        >>> from tvmfun.data import ArraySource
        >>> batches(ArraySource(np.arange(5)), 2).restore(batches(ArraySource(np.arange(6)), 2).state)
        Traceback (most recent call last):
        ...
        tvmfun.errors.DataError: [restore] the state must be of 5 examples, got 6. Try the data it was saved with.
        """
        epoch, taken, size, _ = same_origin(state, self.state, "examples")
        if epoch < 0 or not 0 <= taken < size:
            raise DataError("restore", "the state must be a position in the source", got=repr(state))
        self._seek(int(epoch), int(taken))

    def epoch(self) -> Stream:
        """The rest of the current epoch, to loop over one epoch at a time.

        >>> from tvmfun.data import ArraySource
        >>> stream = batches(ArraySource(np.arange(4)), 2, epochs=2)
        >>> for epoch in range(stream.state.epoch, 2):
        ...     print(epoch, [batch.tolist() for batch in stream.epoch()])
        0 [[0, 1], [2, 3]]
        1 [[0, 1], [2, 3]]
        """
        return _Epoch(self)

    def __next__(self) -> PyTree:
        if self._epochs is not None and self._epoch >= self._epochs:
            raise StopIteration
        end = min(self._taken + self._batch_size, self._size)
        count = end - self._taken
        examples = self._source.read(self._indices(self._taken, end))
        self._seek(self._epoch, end)
        if self._last == "pad":
            return padded(examples, count, self._batch_size)
        return examples

    def _seek(self, epoch: int, taken: int) -> None:
        rest = self._size - taken
        if rest < (self._batch_size if self._last == "drop" else 1):
            epoch, taken = epoch + 1, 0
        self._epoch, self._taken = epoch, taken

    def _indices(self, first: int, end: int) -> np.ndarray:
        if not self._key:
            return np.arange(first, end)
        if self._replace:
            return draws(self._key, self._epoch, first, end, self._size)
        if self._order is None or self._order[0] != self._epoch:
            self._order = (self._epoch, permutation(self._key, self._epoch, self._size))
        return self._order[1][first:end]


class _Epoch(Stream):
    """The batches up to the end of the epoch."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self._number = batches, batches.state.epoch

    def __next__(self) -> PyTree:
        if self._batches.state.epoch != self._number:
            raise StopIteration
        return next(self._batches)

    @property
    def state(self) -> State:
        return self._batches.state

    def restore(self, state: PyTree) -> None:
        self._batches.restore(state)
        self._number = self._batches.state.epoch


# -- shared with the streams of text ---


def check_last(where: str, last: Any) -> None:
    """Checks the argument ``last``."""
    if last not in ("drop", "keep", "pad"):
        raise ArgumentError(where, "last is unknown", got=repr(last), hint='"drop", "keep" or "pad"')


def padded(examples: PyTree, count: int, size: int) -> Padded:
    """Pads examples with copies of the first one, whose values are valid inputs."""
    if count < size:
        indices = np.where(np.arange(size) < count, np.arange(size), 0)
        examples = tree.map(lambda array: array[indices], examples)
    return Padded(examples, np.arange(size) < count)


def key_words(where: str, key: Key | None) -> KeyWords:
    """The two words of a key; no words for ``None``."""
    if key is None:
        return ()
    words = np.asarray(key)
    if words.shape != (2,) or words.dtype != np.uint32:
        raise ShapeError(where, "a key is uint32[2]", got=f"{words.dtype}{list(words.shape)}", hint="random.key(0)")
    return int(words[0]), int(words[1])


def _generator(key: KeyWords, number: int, block: int = 0) -> np.random.Philox:
    """Random bits of one epoch, from a block of four words on. NumPy guarantees the stream of its bit generators."""
    high, low = np.asarray(random.fold_in(np.asarray(key, np.uint32), number)).tolist()
    return np.random.Philox(key=high << 32 | low, counter=block)


def permutation(key: KeyWords, number: int, size: int) -> np.ndarray:
    """A permutation of the numbers below ``size``, from the key and another number.

    They are sorted by random bits with the number itself in the low ones. All are distinct, so every way to sort them
    gives the same; ``Generator.permutation`` may change between versions of NumPy, and is slower.
    """
    width = np.uint64((size - 1).bit_length())
    values = _generator(key, number).random_raw(size)
    values >>= width
    values <<= width
    values |= np.arange(size, dtype=np.uint64)
    values.sort()
    values &= (np.uint64(1) << width) - np.uint64(1)
    return values.view(np.int64)


def draws(key: KeyWords, number: int, first: int, end: int, size: int) -> np.ndarray:
    """A range of a sequence of independent numbers below ``size``."""
    bits = _generator(key, number, first // 4).random_raw(first % 4 + end - first)[first % 4 :]
    return (bits % np.uint64(size)).astype(np.int64)
