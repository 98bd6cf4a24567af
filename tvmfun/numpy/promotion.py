"""Operands: conversion of users' arguments into arguments of ops, all of one dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tvmfun import dtypes
from tvmfun.boundary import described
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype, device_array, foreign_array, is_foreign_array
from tvmfun.core.dims import Dim
from tvmfun.core.leaf import abstract, scalar_of
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.ops import pointwise
from tvmfun.typing import ArrayLike, DTypeLike

__all__ = ["result_type"]


#: An array, a number, or nested sequences of these: the operands of functions that make arrays of lists.
NestedArrayLike: TypeAlias = ArrayLike | Sequence[Any]

# A union written in place would be made anew at every call, which takes longer than the test.
_OPERANDS = (Array, np.ndarray, np.generic, int, float)


def operand(name: str, value: Any) -> Any:
    """``value`` if it is an array of ours, of NumPy, or a number; a copy of an array of another library.

    Raises:
        DtypeError: in the name of the function ``name``, otherwise.
    """
    if isinstance(value, _OPERANDS):
        return value
    if isinstance(value, Dim):
        return dims.as_array(value)
    if is_foreign_array(value):
        return foreign_array(value, name)
    raise DtypeError(
        name,
        "an argument is neither an array nor a number",
        got=type(value).__name__,
        hint="tvmfun.numpy.asarray",
    )


def at_least_float32(x: Array) -> Array:
    """``x`` in float32 or wider: sums of squares need its range and precision."""
    return pointwise.astype(x, dtype="float32") if x.dtype.itemsize < 4 else x


def convert(name: str, value: Any, dtype: np.dtype, weak: bool = False) -> Any:
    """An operand in ``dtype``: arrays are cast, to a weak dtype if ``weak``, and numbers become constants."""
    if isinstance(value, Dim):
        value = dims.as_array(value)
    if isinstance(value, Array):
        if value.aval.dtype == dtype:
            return value
        # The flag is left out where it is false: most Programs have no weak dtypes.
        return pointwise.astype(value, dtype=dtypes.NAMES[dtype], **({"weak": True} if weak else {}))
    if dtypes.is_scalar(value):
        try:
            return scalar_of(value, dtype)
        except DtypeError as error:
            raise DtypeError(name, error.what, got=error.got, hint=error.hint) from None
        except ValueError:  # a NaN as an integer
            raise DtypeError(name, f"the number is no {dtypes.NAMES[dtype]}", got=repr(value)) from None
    if isinstance(value, np.generic):
        return dtype.type(value)
    if weak:
        return pointwise.astype(device_array(operand(name, value)), dtype=dtypes.NAMES[dtype], weak=True)
    return device_array(operand(name, value).astype(dtype))


def operand_types(name: str, values: Sequence[Any]) -> list[tuple[np.dtype, bool]]:
    """The dtype of each value, and whether it is weak.

    A ``numpy.float64`` counts as a Python float, because NumPy returns it for Python floats; results of such numbers
    alone do, too: they give way to arrays. Among numbers they keep their precision.
    """
    floats = [type(value) is np.float64 or _is_weak_double(value) for value in values]
    if not any(floats):
        avals = [abstract(value, name) for value in values]
        return [(aval.dtype, aval.weak) for aval in avals]
    rest = [None if is_float else abstract(value, name) for value, is_float in zip(values, floats, strict=True)]
    is_alone = all(aval is None or dtypes.is_scalar(value) for value, aval in zip(values, rest, strict=True))
    own = dtypes.float64 if is_alone else dtypes.DEFAULT_FLOAT
    return [(own, True) if aval is None else (aval.dtype, aval.weak) for aval in rest]


def _is_weak_double(value: Any) -> bool:
    return isinstance(value, Array) and value.aval.weak and value.aval.dtype == dtypes.float64


def element_type(name: str, *values: Any) -> np.dtype:
    """The dtype of new elements made of numbers or arrays; a ``numpy.float64`` counts as a Python float."""
    numbers = (0.0 if type(value) is np.float64 else value for value in values)
    return dtypes.promote(*operand_types(name, [operand(name, number) for number in numbers]))[0]


def _common_dtype(values: Sequence[Any]) -> np.dtype | None:
    """The dtype that all values have: arrays of one dtype, and with floats also Python numbers; otherwise None."""
    common, is_weak, has_numbers = None, True, False
    for value in values:
        if isinstance(value, Array):
            aval = value.aval
            if common is not None and aval.dtype != common:
                return None
            common, is_weak = aval.dtype, is_weak and aval.weak
        elif type(value) is int or type(value) is float:
            has_numbers = True
        else:
            return None
    if common is None or (has_numbers and (is_weak or not dtypes.is_float(common))):
        return None
    return common


def operands(name: str, *values: Any, floating: bool = False, numeric: bool = False) -> list[Array]:
    """The values in the dtype they promote to; integers become floats if ``floating``, bools int32 if ``numeric``."""
    # Most operands, above all in derivative rules, have one dtype: checking that is faster than promotion.
    dtype, weak = _common_dtype(values), False
    is_common = dtype is not None
    if dtype is None:
        values = tuple(operand(name, value) for value in values)
        dtype, weak = dtypes.promote(*operand_types(name, values))
    if floating and not dtypes.is_float(dtype):
        dtype = dtypes.DEFAULT_FLOAT
        weak = weak or (is_common and all(value.weak_type for value in values))
    if numeric and dtype == dtypes.bool_:
        dtype = dtypes.DEFAULT_INT
    converted = [convert(name, value, dtype, weak) for value in values]
    if not weak and not is_common and all(isinstance(x, np.generic) or x.weak_type for x in converted):
        # Ops take NumPy scalars for Python numbers, so that one operand has to be a strong array.
        i = next((i for i, x in enumerate(converted) if isinstance(x, Array)), 0)
        converted[i] = pointwise.astype(array(name, converted[i]), dtype=dtypes.NAMES[dtype])
    return converted  # NumPy scalars among them have the attributes of arrays that ops and callers use


def array(name: str, value: Any) -> Array:
    """One operand with the dtype it has: an array, or a constant for a Python number."""
    value = operand(name, value)
    if isinstance(value, Array):
        return value
    if dtypes.is_scalar(value):
        return convert(name, value, dtypes.of_scalar(value))
    return device_array(value)


def dtype_or(dtype: DTypeLike | None, default: np.dtype) -> np.dtype:
    """``dtype`` as a NumPy dtype, or the default if it is None."""
    return default if dtype is None else dtypes.canonical(dtype)


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """Returns the dtype that arrays, numbers and dtypes promote to.

    >>> result_type("int32", "bfloat16")
    dtype(bfloat16)
    >>> result_type(np.zeros(3, "float32"), 1.0)
    dtype('float32')
    """
    is_dtype = [isinstance(item, str | np.dtype | type) for item in arrays_and_dtypes]
    values = [
        ShapeDtype((), dtypes.canonical(item)) if named else operand("result_type", item)
        for item, named in zip(arrays_and_dtypes, is_dtype, strict=True)
    ]
    return dtypes.promote(*operand_types("result_type", values))[0]


def require_integer(name: str, value: Any) -> None:
    """Raises ``DtypeError`` unless ``value`` has an integer dtype."""
    aval = abstract(value, name)
    if not dtypes.is_integer(aval.dtype):
        raise DtypeError(name, "indices must be integers", got=repr(aval), hint="x.astype('int32')")


def no_out(name: str, out: Any) -> None:
    """Raises ``ArgumentError`` for NumPy's parameter ``out``, which asks for a result inside another array."""
    if out is not None:
        raise ArgumentError(name, "arrays are immutable, so there is no out", got=described(out), hint="the result")


def row_major(name: str, order: str | None) -> None:
    """Raises ``ArgumentError`` for an order of elements in memory other than the one that all arrays have."""
    if order not in (None, "K", "A", "C"):
        hint = "x.T, which has the elements of x in the other order"
        raise ArgumentError(name, "all arrays lie in memory in row-major order", got=f"order={order!r}", hint=hint)
