"""Dtypes and the one promotion table.

Dtypes are ``numpy.dtype`` objects (``bfloat16`` comes from ``ml_dtypes``). Promotion follows JAX's lattice,
which agrees with the array API standard wherever the standard defines a result: Python scalars are *weak*
(they adopt the dtype of the array), an integer with a float gives that float, and ``float64`` and ``int64`` are
never narrowed.
"""

from __future__ import annotations

from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tvmfun.errors import DtypeError

if TYPE_CHECKING:
    from tvmfun.typing import DTypeLike

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
uint8, uint16, uint32, uint64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
float16, float32, float64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
bfloat16 = np.dtype(ml_dtypes.bfloat16)

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (bfloat16, float16, float32, float64)
ALL = (bool_, *INTEGERS, *FLOATS)

#: dtype -> TVM's name of it; a dictionary because ``np.dtype.name`` is slow.
NAMES: dict[np.dtype, str] = {d: d.name for d in ALL}

DEFAULT_FLOAT = float32
DEFAULT_INT = int32

_SCALAR_DTYPES: dict[type, np.dtype] = {bool: bool_, int: DEFAULT_INT, float: DEFAULT_FLOAT}


@cache
def _canonical(dtype: Any) -> np.dtype:
    if dtype in _SCALAR_DTYPES:
        return _SCALAR_DTYPES[dtype]
    try:
        # The byte order is not a part of the dtype here. To NumPy None means float64; here it is an error.
        result = None if dtype is None else np.dtype(dtype).newbyteorder("=")
    except TypeError:
        result = None
    if result is None or result not in NAMES:
        raise _unsupported(dtype)
    return result


def _unsupported(dtype: Any) -> DtypeError:
    names = ", ".join(NAMES.values())
    return DtypeError("dtype", "the dtype is not supported", got=repr(dtype), hint=f"one of {names}")


def canonical(dtype: DTypeLike) -> np.dtype:
    """Returns the ``numpy.dtype`` that ``dtype`` (a dtype, name, NumPy or Python scalar type) means.

    Raises:
        DtypeError: if tvmfun has no such dtype (complex numbers, strings, objects).

    >>> canonical("bfloat16"), canonical(float)
    (dtype(bfloat16), dtype('float32'))
    """
    try:
        return _canonical(dtype)
    except DtypeError:
        raise
    except TypeError:  # not hashable
        raise _unsupported(dtype) from None


def is_float(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is a floating-point dtype (``bfloat16`` included)."""
    return dtype in FLOATS


def is_integer(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is a signed or unsigned integer dtype (``bool`` is not)."""
    return dtype in INTEGERS


def lowest(dtype: np.dtype) -> Any:
    """Returns the number that no number of a dtype is below: minus infinity for floats."""
    return -np.inf if is_float(dtype) else 0 if dtype == bool_ else int(np.iinfo(dtype).min)


def highest(dtype: np.dtype) -> Any:
    """Returns the number that no number of a dtype is above: infinity for floats."""
    return np.inf if is_float(dtype) else 1 if dtype == bool_ else int(np.iinfo(dtype).max)


def is_scalar(value: Any) -> bool:
    """Whether ``value`` is a Python number, whose dtype is weak; ``numpy.float64`` is one only to Python.

    >>> is_scalar(1.0), is_scalar(np.float64(1.0))
    (True, False)
    """
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


def of_scalar(value: bool | int | float) -> np.dtype:
    """The default dtype of a Python scalar: ``bool``, ``int32`` or ``float32``."""
    return _SCALAR_DTYPES[bool if isinstance(value, bool) else int if isinstance(value, int) else float]


# The lattice: each type lists the types directly above it; a join is the lowest common upper bound.
# ``int*`` and ``float*`` are the weak types of Python scalars.
_ABOVE: dict[Any, tuple[Any, ...]] = {
    bool_: ("int*",),
    "int*": (uint8, int8),
    uint8: (uint16, int16),
    uint16: (uint32, int32),
    uint32: (uint64, int64),
    uint64: ("float*",),
    int8: (int16,),
    int16: (int32,),
    int32: (int64,),
    int64: ("float*",),
    "float*": (bfloat16, float16),
    bfloat16: (float32,),
    float16: (float32,),
    float32: (float64,),
    float64: (),
}


@cache
def _upper_bounds(node: Any) -> frozenset:
    return frozenset([node]).union(*(_upper_bounds(above) for above in _ABOVE[node]))


def _weak_node(dtype: np.dtype) -> Any:
    return bool_ if dtype == bool_ else "int*" if is_integer(dtype) else "float*"


@cache
def _join(first: Any, second: Any) -> Any:
    common = _upper_bounds(first) & _upper_bounds(second)
    return next(node for node in common if common <= _upper_bounds(node))


@cache
def promote(*operands: tuple[np.dtype, bool]) -> tuple[np.dtype, bool]:
    """Returns the common ``(dtype, weak)`` of operands given as ``(dtype, weak)`` pairs.

    >>> promote((float32, False), (float64, True))
    (dtype('float32'), False)
    >>> promote((int8, False), (uint8, False))
    (dtype('int16'), False)
    >>> promote((int32, False), (float32, True))
    (dtype('float32'), True)
    """
    nodes = [_weak_node(dtype) if weak else dtype for dtype, weak in operands]
    node = reduce(_join, nodes)
    if not isinstance(node, str):
        return node, False
    default = DEFAULT_INT if node == "int*" else DEFAULT_FLOAT
    candidates = (dtype for dtype, weak in operands if weak and _weak_node(dtype) == node)
    return max(candidates, key=lambda d: d.itemsize, default=default), True


def result_type(*dtypes: DTypeLike) -> np.dtype:
    """Returns the dtype that arrays of the given dtypes promote to.

    >>> result_type("int32", "bfloat16")
    dtype(bfloat16)
    """
    return promote(*((canonical(d), False) for d in dtypes))[0]
