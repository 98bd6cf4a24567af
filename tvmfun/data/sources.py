"""Sources: examples by index, in memory or in memory-mapped files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DataError, DtypeError, ShapeError
from tvmfun.typing import ArrayLike, DTypeLike, PyTree

_INTEGERS = (int, np.integer)


def positive(where: str, name: str, value: Any) -> int:
    """Checks that an argument is a positive integer."""
    if not isinstance(value, _INTEGERS) or isinstance(value, bool) or value < 1:
        raise ArgumentError(where, f"the {name} must be a positive integer", got=repr(value))
    return int(value)


@runtime_checkable
class Source(Protocol):
    """Protocol of data sets whose examples can be read in any order."""

    def __len__(self) -> int:
        """The number of examples."""
        ...

    def read(self, indices: np.ndarray) -> PyTree:
        """Returns examples as a tree of NumPy arrays.

        Args:
            indices: ``int64[n]``, the indices of the examples.

        Returns:
            A tree of arrays whose first axis has the size n. Nothing else may write to them.
        """
        ...


class ArraySource:
    """The rows of arrays: example i is row i of every one.

    Args:
        arrays: a tree of arrays with the same size of the first axis: NumPy arrays, memory maps (only the rows needed
            are read), arrays of tvmfun, or anything that NumPy converts.

    Raises:
        ShapeError: if an array has no axes, or they differ in the size of the first.
        DtypeError: if an array has a dtype that tvmfun does not have.
        DataError: if there are no arrays or no rows.

    >>> ArraySource((np.eye(3), np.arange(3))).read(np.asarray([2, 0]))
    (array([[0., 0., 1.],
           [1., 0., 0.]]), array([2, 0]))
    """

    def __init__(self, arrays: PyTree) -> None:
        leaves, self._structure = tree.flatten_with_path(arrays)
        self._arrays = [_array(tree.keystr(path) or "the array", leaf) for path, leaf in leaves]
        if not self._arrays:
            raise DataError("ArraySource", "there must be an array", got=repr(arrays))
        sizes = {tree.keystr(path): len(array) for (path, _), array in zip(leaves, self._arrays, strict=True)}
        self._size = len(self._arrays[0])
        if len(set(sizes.values())) > 1:
            got = ", ".join(f"{size} at {name}" for name, size in sizes.items())
            raise ShapeError("ArraySource", "the arrays must have one number of rows", got=got)
        if not self._size:
            raise DataError("ArraySource", "the arrays must have rows", got=str(self._arrays[0].shape))

    def __len__(self) -> int:
        return self._size

    def read(self, indices: np.ndarray) -> PyTree:
        """Returns the rows at some indices; see :meth:`Source.read`."""
        return self._structure.unflatten([_native(array[indices]) for array in self._arrays])


def _array(name: str, leaf: Any) -> np.ndarray:
    array = leaf.concrete("ArraySource").numpy() if isinstance(leaf, Array) else leaf
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)
    if not array.ndim:
        raise ShapeError("ArraySource", f"{name} must have an axis of examples", got=f"a scalar, {leaf!r}")
    return _checked("ArraySource", name, array)


def _native(array: np.ndarray) -> np.ndarray:
    """The array in native byte order; files may have the other one."""
    return np.asarray(array, dtypes.canonical(array.dtype))


def _checked(where: str, name: str, array: np.ndarray) -> np.ndarray:
    try:
        dtypes.canonical(array.dtype)
    except DtypeError:
        raise DtypeError(
            where, f"{name} must have a dtype of tvmfun", got=str(array.dtype), hint="numbers or bools"
        ) from None
    return array


class Windows:
    """The windows of a long array of tokens: example i is ``tokens[i * stride : i * stride + length + 1]``.

    A language model reads all tokens of a window but the last, and predicts all but the first. So by default windows
    follow each other with one token in common, and an epoch predicts every token once. With ``stride=1`` there is a
    window at every token; :func:`tvmfun.data.batches` with ``replace=True`` draws from them.

    Args:
        tokens: integers of shape ``(n,)``: an array or a memory map.
        length: the number of tokens to predict in a window.
        stride: the distance from the start of a window to the start of the next; by default ``length``.

    Raises:
        ShapeError: if the tokens do not have one axis.
        DtypeError: if the tokens are not integers.
        DataError: if there are not enough tokens for a window.
        ArgumentError: if ``length`` or ``stride`` is not positive.

    >>> Windows(np.arange(8), 3).read(np.asarray([0, 1]))
    array([[0, 1, 2, 3],
           [3, 4, 5, 6]])
    """

    def __init__(self, tokens: ArrayLike, length: int, *, stride: int | None = None) -> None:
        if isinstance(tokens, Array):
            tokens = tokens.concrete("Windows").numpy()
        self._tokens = tokens if isinstance(tokens, np.ndarray) else np.asarray(tokens)
        if self._tokens.ndim != 1:
            raise ShapeError("Windows", "the tokens must have one axis", got=str(self._tokens.shape))
        if not np.issubdtype(self._tokens.dtype, np.integer):
            raise DtypeError("Windows", "the tokens must be integers", got=str(self._tokens.dtype))
        self._length = positive("Windows", "length", length)
        self._stride = self._length if stride is None else positive("Windows", "stride", stride)
        if len(self._tokens) <= self._length:
            what = f"a window of {self._length} + 1 tokens needs as many"
            raise DataError("Windows", what, got=str(len(self._tokens)), hint="a shorter length")

    def __len__(self) -> int:
        return (len(self._tokens) - 1 - self._length) // self._stride + 1

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Returns the windows at some indices, of shape ``(n, length + 1)``; see :meth:`Source.read`."""
        return _native(self._tokens[np.asarray(indices)[:, None] * self._stride + np.arange(self._length + 1)])


def memory_map(path: str | os.PathLike[str], dtype: DTypeLike | None = None, shape: Sequence[int] = ()) -> np.ndarray:
    """Memory-maps a file as an array, which may be larger than the memory.

    Args:
        path: a ``.npy`` file, or with a ``dtype`` a raw file of elements.
        dtype: of the elements of a raw file, such as ``"uint16"`` for tokens, or ``">u2"`` with the high byte first.
        shape: of a row of a raw file; ``()`` for a file of tokens.

    Returns:
        A read-only array.

    Raises:
        DataError: if the file is empty, is truncated, or is not a ``.npy`` file.
        DtypeError: if the elements have a dtype that tvmfun does not have.
        FileNotFoundError: if there is no such file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.arange(6, dtype="uint16").tofile(f"{folder}/tokens.bin")
    ...     memory_map(f"{folder}/tokens.bin", "uint16", (3,)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    if dtype is None:
        try:
            # mmap_mode checks that the file is as long as its header says.
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            hint = "dtype=... for a file of nothing but elements"
            raise DataError("memory_map", f"{path} is not a complete .npy file", got=str(error), hint=hint) from None
        if not isinstance(array, np.ndarray):
            raise DataError("memory_map", f"{path} is not a .npy file", got="an archive of several", hint="np.load")
        return _checked("memory_map", str(path), array)
    dtypes.canonical(dtype)
    # The canonical dtype has lost the byte order.
    elements = np.dtype(dtype)
    row = elements.itemsize
    for size in shape:
        row *= positive("memory_map", "size of an axis", size)
    size = os.path.getsize(path)
    if not size or size % row:
        what = f"{path} must have rows of {row} bytes, and at least one"
        raise DataError("memory_map", what, got=f"{size} bytes", hint="the dtype and shape it was written with")
    return np.memmap(path, elements, "r", shape=(size // row, *shape))
