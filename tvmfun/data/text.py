"""Text larger than the memory: lines or chunks of files, shuffled in blocks, packed into windows and batched."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from tvmfun import tree
from tvmfun.data.batching import KeyWords, Last, check_last, key_words, padded, permutation
from tvmfun.data.sources import positive
from tvmfun.data.streams import Stream, same_origin, with_fields
from tvmfun.errors import DataError, ShapeError
from tvmfun.typing import ArrayLike, Key, PyTree

__all__ = ["TextSource", "pack", "shuffle", "stack"]


class TextState(NamedTuple):
    """The epoch, the file in its order, the next byte, the bytes of all files, and the words of the key."""

    epoch: int
    file: int
    offset: int
    size: int
    key: KeyWords


class TextSource(Stream):
    r"""The lines of text files, one after another, as bytes with their line ends; or chunks of equal size.

    Bytes are tokens already: there are 256 of them, and UTF-8 needs no others. :func:`pack` takes any other tokenizer.

    Args:
        paths: a file or several.
        chunk: the bytes in a chunk; by default the items are lines. A chunk may end within a character; the last of a
            file may be shorter.
        key: a key of :mod:`tvmfun.random` that reorders the files in each epoch; by default they keep their order.
        epochs: the number of passes over the files; ``None`` for no end.

    Raises:
        DataError: if there are no files, or they are empty.
        ArgumentError: if ``chunk`` or ``epochs`` is not positive.
        FileNotFoundError: if there is no such file.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write("ein Bär\nzwei\n".encode())
    ...     file.flush()
    ...     [line.decode() for line in TextSource(file.name)], list(TextSource(file.name, chunk=8))
    (['ein Bär\n', 'zwei\n'], [b'ein B\xc3\xa4r', b'\nzwei\n'])
    """

    _open: IO[bytes] | None = None

    def __init__(
        self,
        paths: str | os.PathLike | Sequence[str | os.PathLike],
        *,
        chunk: int | None = None,
        key: Key | None = None,
        epochs: int | None = 1,
    ) -> None:
        self._paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self._chunk = None if chunk is None else positive("TextSource", "chunk", chunk)
        self._epochs = None if epochs is None else positive("TextSource", "number of epochs", epochs)
        self._key = key_words("TextSource", key)
        self._size = sum(map(os.path.getsize, self._paths))
        if not self._size:
            raise DataError("TextSource", "there must be files with text", got=f"{len(self._paths)} files of 0 bytes")
        self._epoch = self._file = self._offset = 0

    def __del__(self) -> None:
        self._close()

    @property
    def state(self) -> TextState:
        """The position of the next chunk."""
        return TextState(self._epoch, self._file, self._offset, self._size, self._key)

    def restore(self, state: PyTree) -> None:
        """Continues from a state; see :meth:`Stream.restore`."""
        epoch, file, offset, size, _ = same_origin(state, self.state, "bytes of text")
        if epoch < 0 or not 0 <= file < len(self._paths) or not 0 <= offset <= size:
            raise DataError("restore", "the state must be a position in the files", got=repr(state))
        self._close()
        self._epoch, self._file, self._offset = int(epoch), int(file), int(offset)

    def __next__(self) -> bytes:
        while self._epochs is None or self._epoch < self._epochs:
            if self._open is None:
                self._open = open(self._path(), "rb")  # noqa: SIM115  # open until the next file
                self._open.seek(self._offset)
            piece = self._open.readline() if self._chunk is None else self._open.read(self._chunk)
            if piece:
                self._offset += len(piece)
                return piece
            self._close()
            self._file, self._offset = self._file + 1, 0
            if self._file == len(self._paths):
                self._epoch, self._file = self._epoch + 1, 0
        raise StopIteration

    def _path(self) -> str | os.PathLike:
        if not self._key:
            return self._paths[self._file]
        return self._paths[permutation(self._key, self._epoch, len(self._paths))[self._file]]

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def shuffle(stream: Stream, size: int, *, key: Key) -> Stream:
    """Reads a stream in blocks, and yields the items of each block in random order.

    Its state is the position of the block, and the number of items taken from it: restoring rereads one block, and a
    checkpoint keeps no items.

    Args:
        stream: the stream to shuffle.
        size: the number of items in a block, which is held in memory.
        key: a key of :mod:`tvmfun.random`; the order of block i is a permutation made of ``fold_in(key, i)``.

    Raises:
        ArgumentError: if ``size`` is not positive.
        ShapeError: if the key is not a key.

    >>> from tvmfun import random
    >>> from tvmfun.data import ArraySource, batches
    >>> [int(x[0]) for x in shuffle(batches(ArraySource(np.arange(8)), 1), 4, key=random.key(0))]
    [1, 0, 3, 2, 4, 5, 7, 6]
    """
    words = key_words("shuffle", key)
    if not words:
        raise ShapeError("shuffle", "a key is uint32[2]", got="None", hint="random.key(0)")
    return _Shuffle(stream, positive("shuffle", "size", size), words)


class ShuffleState(NamedTuple):
    """The block, the number of items taken from it, its size, the key, and the state of the stream before the block."""

    block: int
    taken: int
    size: int
    key: KeyWords
    stream: PyTree


class _Shuffle(Stream):
    def __init__(self, stream: Stream, size: int, key: KeyWords) -> None:
        self._stream, self._size, self._key = stream, size, key
        self._seek(0, 0)

    def _seek(self, block: int, taken: int) -> None:
        self._block, self._taken = block, taken
        self._start = self._stream.state
        self._items: list[Any] = []

    @property
    def state(self) -> ShuffleState:
        return ShuffleState(self._block, self._taken, self._size, self._key, self._start)

    def restore(self, state: PyTree) -> None:
        block, taken, _, _, start = same_origin(state, self.state, "items in a block")
        self._stream.restore(start)
        self._seek(int(block), int(taken))

    def __next__(self) -> Any:
        if not self._items:
            items = [item for _, item in zip(range(self._size), self._stream, strict=False)]
            if self._taken >= len(items):
                raise StopIteration
            order = permutation(self._key, self._block, len(items))
            # Popped from the end, so that taken items are freed.
            self._items = [items[index] for index in order[self._taken :][::-1]]
        item = self._items.pop()
        self._taken += 1
        if not self._items:
            self._seek(self._block + 1, 0)
        return item


def _utf8(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def pack(stream: Stream, length: int, *, tokenize: Callable[[Any], ArrayLike | Sequence[int]] = _utf8) -> Stream:
    r"""Windows of ``length + 1`` tokens from the items of a stream, concatenated without gaps.

    Consecutive windows share one token, as in :class:`tvmfun.data.Windows`. An incomplete last window is left out.

    Args:
        stream: items to tokenize, such as lines.
        length: the number of tokens to predict in a window.
        tokenize: a deterministic function from an item to a sequence of integers, which also adds separators such as
            an end-of-text token; by default bytes are tokens, ``uint8``.

    Raises:
        ArgumentError: if ``length`` is not positive.
        ShapeError: when the tokens of an item do not have one axis.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"ab\ncdef\n")
    ...     file.flush()
    ...     [bytes(window) for window in pack(TextSource(file.name), 3)]
    [b'ab\nc', b'cdef']
    """
    return _Pack(stream, positive("pack", "length", length), tokenize)


class PackState(NamedTuple):
    """The state of the stream before the item in which the next window starts, and the offset in its tokens."""

    skip: int
    stream: PyTree


class _Pack(Stream):
    def __init__(self, stream: Stream, length: int, tokenize: Callable[[Any], ArrayLike | Sequence[int]]) -> None:
        self._stream, self._length, self._tokenize = stream, length, tokenize
        self._seek(0)

    def _seek(self, skip: int) -> None:
        # Items with unused tokens, and the state of the stream before each.
        self._pieces: deque[tuple[Any, np.ndarray]] = deque()
        self._skip = skip
        self._count = -skip

    @property
    def state(self) -> PackState:
        return PackState(self._skip, self._pieces[0][0] if self._pieces else self._stream.state)

    def restore(self, state: PyTree) -> None:
        skip, start = with_fields(state, self.state)
        self._stream.restore(start)
        self._seek(int(skip))

    def __next__(self) -> np.ndarray:
        while self._count <= self._length:
            before = self._stream.state
            tokens = np.asarray(self._tokenize(next(self._stream)))
            if tokens.ndim != 1:
                raise ShapeError("pack", "the tokens of an item must have one axis", got=str(tokens.shape))
            if len(tokens):
                self._pieces.append((before, tokens))
                self._count += len(tokens)
        parts, missing, skip = [], self._length + 1, self._skip
        for _, tokens in self._pieces:
            part = tokens[skip : skip + missing]
            parts.append(part)
            missing, skip = missing - len(part), 0
            if not missing:
                break
        self._skip += self._length
        self._count -= self._length
        while len(self._pieces[0][1]) <= self._skip:
            self._skip -= len(self._pieces.popleft()[1])
        return np.concatenate(parts)


def stack(stream: Stream, batch_size: int, *, last: Last = "drop") -> Stream:
    """Batches of the items of a stream: trees of arrays with one more axis.

    Args:
        stream: items that are trees of arrays of equal shapes, such as the windows of :func:`pack`.
        batch_size: the number of items in a batch.
        last: how to treat an incomplete last batch, as for :func:`tvmfun.data.batches`.

    Raises:
        ArgumentError: if an argument is invalid.
        ShapeError: when items have different shapes.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"abcdefg")
    ...     file.flush()
    ...     [batch.shape for batch in stack(pack(TextSource(file.name), 2), 2, last="keep")]
    [(2, 3), (1, 3)]
    """
    check_last("stack", last)
    return _Stack(stream, positive("stack", "batch_size", batch_size), last)


class _Stack(Stream):
    def __init__(self, stream: Stream, batch_size: int, last: Last) -> None:
        self._stream, self._batch_size, self._last = stream, batch_size, last

    @property
    def state(self) -> PyTree:
        return self._stream.state

    def restore(self, state: PyTree) -> None:
        self._stream.restore(state)

    def __next__(self) -> Any:
        items = [item for _, item in zip(range(self._batch_size), self._stream, strict=False)]
        if not items or (len(items) < self._batch_size and self._last == "drop"):
            raise StopIteration
        try:
            batch = tree.map(lambda *leaves: np.stack(leaves), *items)
        except ValueError as error:
            raise ShapeError("stack", "the items of a batch must have one shape", got=str(error)) from None
        return padded(batch, len(items), self._batch_size) if self._last == "pad" else batch
