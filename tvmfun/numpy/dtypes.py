"""Dtypes: casts, limits, classes of dtypes, and the array API's inspection of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, DeviceArray, duplicate, move
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.numpy.promotion import array, operand
from tvmfun.ops import pointwise as ops
from tvmfun.runtime import devices
from tvmfun.typing import DTypeLike

__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "issubdtype", "promote_types"]


KINDS: dict[str, tuple[np.dtype, ...]] = {
    "bool": (dtypes.bool_,),
    "signed integer": dtypes.SIGNED,
    "unsigned integer": dtypes.UNSIGNED,
    "integral": dtypes.INTEGERS,
    "real floating": dtypes.FLOATS,
    "complex floating": (),
    "numeric": dtypes.INTEGERS + dtypes.FLOATS,
}


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """Returns ``x`` with elements of another dtype; floats lose their fraction in integers.

    Args:
        x: the array.
        dtype: a dtype or its name.
        copy: for the array API; arrays are immutable, so a copy cannot be told from the original.
        device: the device of the result; by default that of ``x``.

    Raises:
        DtypeError: if tvmfun has no such dtype.

    >>> astype(np.asarray([1.7, -1.7]), "int32")
    Array([ 1, -1], dtype=int32)
    """
    x = array("astype", x)
    target = dtypes.canonical(dtype)
    if not (isinstance(x, Array) and x.dtype == target and not x.weak_type):
        x = ops.astype(x, dtype=dtypes.NAMES[target])
    return placed("astype", x, device)


def weakly_typed(x: Any) -> Any:
    """An array or a number whose dtype gives way to that of arrays, like that of a Python number."""
    if not isinstance(x, Array) or x.weak_type or x.dtype == dtypes.bool_:
        return x
    if isinstance(x, DeviceArray) and not is_tracing():  # there is nothing to compile for it
        return duplicate(x, weak=True)
    return ops.astype(x, dtype=dtypes.NAMES[x.dtype], weak=True)


def strongly_typed(x: Array) -> Array:
    """An array whose dtype does not give way."""
    return ops.astype(x, dtype=dtypes.NAMES[x.dtype]) if x.weak_type else x


def placed(name: str, x: Array, device: Any) -> Array:
    """``x`` on a device given by name, or where it is if that is None."""
    return x if device is None else move(x.concrete(name), devices.device(device))


def _dtype_of(name: str, item: Any) -> np.dtype:
    """The dtype of an array, or the dtype that ``item`` means."""
    if isinstance(item, str | np.dtype | type):
        return dtypes.canonical(item)
    return abstract(operand(name, item), name).dtype


def can_cast(from_: DTypeLike, to: DTypeLike, casting: Any = "safe") -> bool:
    """Returns whether every value of a dtype, or of an array's dtype, is representable in another dtype.

    Args:
        from_: a dtype or an array.
        to: a dtype.
        casting: ``"safe"``, or another of NumPy's rules: ``"no"``, ``"equiv"``, ``"same_kind"``, ``"unsafe"``.

    >>> can_cast("int32", "int64"), can_cast("int32", "float32")
    (True, False)
    """
    return bool(np.can_cast(_dtype_of("can_cast", from_), dtypes.canonical(to), casting))


def finfo(dtype: DTypeLike) -> Any:
    """Returns the limits of a float dtype, or of that of an array: ``bits``, ``eps``, ``max``, ``min``, ...

    Raises:
        DtypeError: if the dtype is not a float.

    >>> float(finfo("bfloat16").eps)
    0.0078125
    """
    dtype = _dtype_of("finfo", dtype)
    if not dtypes.is_float(dtype):
        raise DtypeError("finfo", "the dtype must be a float", got=dtypes.NAMES[dtype], hint="iinfo")
    return ml_dtypes.finfo(dtype)


def iinfo(int_type: DTypeLike) -> np.iinfo:
    """Returns the limits of an integer dtype, or of that of an array: ``bits``, ``max``, ``min``.

    Raises:
        DtypeError: if the dtype is not an integer.

    >>> iinfo("int8").max
    127
    """
    dtype = _dtype_of("iinfo", int_type)
    if not dtypes.is_integer(dtype):
        raise DtypeError("iinfo", "the dtype must be an integer", got=dtypes.NAMES[dtype], hint="finfo")
    return np.iinfo(dtype)


def isdtype(dtype: DTypeLike, kind: Any) -> bool:
    """Returns whether a dtype is of a kind.

    Args:
        dtype: a dtype or its name.
        kind: ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``, ``"real floating"``,
            ``"complex floating"``, ``"numeric"``, a dtype, or a tuple of these.

    >>> isdtype("bfloat16", "real floating"), isdtype("int8", ("bool", "int16"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in KINDS:
        return dtypes.canonical(dtype) in KINDS[kind]
    try:
        return dtypes.canonical(dtype) == dtypes.canonical(kind)
    except DtypeError as error:
        raise ArgumentError("isdtype", f"a kind is a dtype or one of {', '.join(KINDS)}", got=repr(kind)) from error


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Returns whether a dtype, or that of an array, is another one or of a class of NumPy's such as ``numpy.floating``.

    None is float64, as in NumPy.

    >>> issubdtype("bfloat16", np.floating), issubdtype("int8", np.floating)
    (True, False)
    """
    if isinstance(arg1, Array | np.ndarray):
        arg1 = arg1.dtype
    arg1 = dtypes.canonical(np.float64 if arg1 is None else arg1)
    is_class = isinstance(arg2, type) and arg2 in (np.generic, np.number, np.inexact, np.floating)
    if arg1 == dtypes.bfloat16 and is_class:  # NumPy does not take it for a float
        return True
    return bool(np.issubdtype(arg1, arg2))


def promote_types(a: DTypeLike, b: DTypeLike) -> np.dtype:
    """Returns the dtype that two dtypes promote to.

    >>> promote_types("int8", "uint8")
    dtype('int16')
    """
    return dtypes.result_type(a, b)


# The standard's dtypes, without those that are ours only.
_STANDARD = {
    ("bool" if dtype == dtypes.bool_ else name): dtype
    for dtype, name in dtypes.NAMES.items()
    if dtype not in (dtypes.bfloat16, dtypes.float16)
}


class ArrayNamespaceInfo:
    """The results of the array API's inspection functions for ``tvmfun.numpy``.

    There are no complex dtypes, because TVM has none; so there is no ``fft`` extension either.
    """

    def capabilities(self) -> dict[str, Any]:
        """Returns the capabilities of the namespace.

        Boolean indexing works outside traces. Functions whose result has a shape that depends on data do so too,
        and while tracing with JAX's ``size`` argument, which the standard does not have.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        """Returns the device that arrays are created on."""
        return devices.device("cpu")

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype | None]:
        """Returns the dtypes of arrays that are created without naming one."""
        return {
            "real floating": dtypes.DEFAULT_FLOAT,
            "complex floating": None,
            "integral": dtypes.DEFAULT_INT,
            "indexing": dtypes.DEFAULT_INT,
        }

    def devices(self) -> list[Any]:
        """Returns all devices of this machine."""
        return [*devices.devices("cuda"), *devices.devices("cpu")]

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, np.dtype]:
        """Returns the standard's dtypes of a kind, by name.

        Args:
            device: all devices have the same.
            kind: one of the kinds of ``isdtype`` or several; by default all.
        """
        if kind is None:
            return dict(_STANDARD)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        for one in kinds:
            if one not in KINDS:
                raise ArgumentError("dtypes", f"a kind is one of {', '.join(KINDS)}", got=repr(one))
        return {name: dtype for name, dtype in _STANDARD.items() if any(dtype in KINDS[one] for one in kinds)}


def __array_namespace_info__() -> ArrayNamespaceInfo:
    """Returns an object with the array API's inspection functions."""
    return ArrayNamespaceInfo()
