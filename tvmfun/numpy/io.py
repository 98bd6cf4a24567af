"""Input, output and printing: done by NumPy, with arrays of this library."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.promotion import NestedArrayLike, dtype_or
from tvmfun.typing import DTypeLike

__all__ = [
    "array_repr",
    "array_str",
    "frombuffer",
    "fromfile",
    "fromiter",
    "fromstring",
    "get_printoptions",
    "load",
    "printoptions",
    "save",
    "savez",
    "set_printoptions",
]


def array_repr(
    arr: NestedArrayLike,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """Returns an array as text, with its dtype; the arguments are NumPy's."""
    return np.array_repr(np.asarray(arr), max_line_width, precision, suppress_small)


def array_str(
    a: NestedArrayLike,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """Returns the elements of an array as text; the arguments are NumPy's.

    >>> array_str(asarray([1, 2]))
    '[1 2]'
    """
    return np.array_str(np.asarray(a), max_line_width, precision, suppress_small)


def frombuffer(buffer: Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0) -> Array:
    """Returns the bytes of a buffer, which are copied, as numbers.

    Args:
        buffer: bytes, or any object with the buffer protocol.
        dtype: of the numbers; by default float32.
        count: how many; by default all.
        offset: the number of bytes before the first.

    >>> frombuffer(b"abc", "uint8")
    Array([97, 98, 99], dtype=uint8)
    """
    return asarray(np.frombuffer(buffer, dtypes.canonical(dtype), count, offset))


def fromfile(file: Any, dtype: DTypeLike = float, *args: Any, **kwargs: Any) -> Array:
    """Returns the numbers in a file; the arguments are as for ``numpy.fromfile``, the dtype by default float32."""
    return asarray(np.fromfile(file, dtypes.canonical(dtype), *args, **kwargs))


def fromiter(iter: Any, dtype: DTypeLike, *args: Any, **kwargs: Any) -> Array:
    """Returns the numbers of an iterable as a vector; the arguments are as for ``numpy.fromiter``.

    >>> fromiter((i * i for i in range(3)), "int32")
    Array([0, 1, 4], dtype=int32)
    """
    return asarray(np.fromiter(iter, dtypes.canonical(dtype), *args, **kwargs))


def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Array:
    """Returns the numbers in a string.

    Args:
        string: the text.
        dtype: of the numbers; by default float32.
        count: how many; by default all.
        sep: the separator of the numbers.

    >>> fromstring("1 2 3", int, sep=" ")
    Array([1, 2, 3], dtype=int32)
    """
    return asarray(np.fromstring(string, dtypes.canonical(dtype), count, sep=sep))


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the array that :func:`save` wrote; of a file by :func:`savez` a mapping to NumPy arrays.

    Args:
        file: its name, or the open file.
        args: as for ``numpy.load``.
        kwargs: as for ``numpy.load``.
    """
    result = np.load(file, *args, **kwargs)
    if not isinstance(result, np.ndarray):
        return result
    if result.dtype == np.dtype("V2"):  # how NumPy writes bfloat16
        result = result.view(dtype_or("bfloat16", dtypes.bfloat16))
    return asarray(result)


def save(file: Any, arr: NestedArrayLike, allow_pickle: bool = True) -> None:
    """Writes an array to a file in NumPy's format; the arguments are as for ``numpy.save``."""
    np.save(file, np.asarray(arr), allow_pickle)


def savez(file: Any, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Writes several arrays to a file in NumPy's format; the arguments are as for ``numpy.savez``."""
    own = {key: np.asarray(value) for key, value in kwds.items()}
    np.savez(file, *map(np.asarray, args), allow_pickle=allow_pickle, **own)


def get_printoptions() -> dict[str, Any]:
    """Returns how arrays are printed: NumPy's options, which arrays of this library follow."""
    return dict(np.get_printoptions())


def set_printoptions(*args: Any, **kwargs: Any) -> None:
    """Sets how arrays are printed; the arguments are as for ``numpy.set_printoptions``."""
    np.set_printoptions(*args, **kwargs)


def printoptions(*args: Any, **kwargs: Any) -> Any:
    """Returns a context in which arrays are printed in another way; the arguments are NumPy's.

    >>> with printoptions(precision=2):
    ...     print(asarray([1 / 3]))
    [0.33]
    """
    return np.printoptions(*args, **kwargs)
