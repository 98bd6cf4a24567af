"""Operands: turning what users pass into arguments of ops, all of one dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, device_array
from tvmfun.core.trace import abstract, scalar_of
from tvmfun.errors import DtypeError
from tvmfun.ops import pointwise


def convert(value: Any, dtype: np.dtype) -> Any:
    """``value`` as an operand of ``dtype``: arrays are cast, Python numbers become constants."""
    if isinstance(value, Array):
        return value if value.dtype == dtype else pointwise.astype(value, dtype=dtypes.NAMES[dtype])
    if isinstance(value, bool | int | float):
        return scalar_of(value, dtype)
    if isinstance(value, np.generic):
        return dtype.type(value)
    return device_array(np.asarray(value).astype(dtype))


def operands(name: str, *values: Any, floating: bool = False) -> list[Any]:
    """The values in the dtype they promote to; integers become floats if ``floating``."""
    avals = [abstract(value, name) for value in values]
    dtype, _ = dtypes.promote(*((aval.dtype, aval.weak) for aval in avals))
    if floating and not dtypes.is_float(dtype):
        dtype = dtypes.DEFAULT_FLOAT
    return [convert(value, dtype) for value in values]


def array(value: Any, where: str) -> Any:
    """One operand as it is: an array, or a constant for a Python number."""
    if isinstance(value, Array):
        return value
    aval = abstract(value, where)
    return convert(value, aval.dtype)


def dtype_or(dtype: Any, default: np.dtype) -> np.dtype:
    """``dtype`` as a NumPy dtype, or the default if it is None."""
    return default if dtype is None else dtypes.canonical(dtype)


def require_integer(name: str, value: Any) -> None:
    """Raises ``DtypeError`` unless ``value`` has an integer dtype."""
    aval = abstract(value, name)
    if not dtypes.is_integer(aval.dtype):
        raise DtypeError(name, "indices must be integers", got=repr(aval), hint="x.astype('int32')")
