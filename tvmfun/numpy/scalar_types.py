"""Dtypes that are called to make arrays: ``float32(x)``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.numpy.creation import asarray, full

__all__ = [
    "bfloat16",
    "bool",
    "bool_",
    "character",
    "complexfloating",
    "double",
    "dtype",
    "flexible",
    "float16",
    "float32",
    "float64",
    "float_",
    "floating",
    "generic",
    "inexact",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "integer",
    "number",
    "object_",
    "signedinteger",
    "single",
    "uint",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unsignedinteger",
]


class ScalarType(type):
    """The class of the dtypes ``float32``, ``int64``, ...: they equal NumPy's, and a call converts its argument.

    >>> float32 == np.float32, np.zeros(2, int8).dtype, float32([1, 2])
    (True, dtype('int8'), Array([1., 2.], dtype=float32))
    """

    dtype: np.dtype

    def __call__(cls, x: Any = 0) -> Array:
        """Returns ``x``, an array, a number or nested sequences, as an array of this dtype."""
        return full((), x, cls.dtype) if np.isscalar(x) else asarray(x, cls.dtype)

    def __eq__(cls, other: object) -> builtins_bool:
        return cls is other or cls.dtype.type is getattr(other, "type", other) or cls.dtype == other

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __instancecheck__(cls, instance: object) -> builtins_bool:
        return isinstance(instance, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"tvmfun.numpy.{cls.__name__}"


builtins_bool = bool


def _scalar_type(name: str, dtype: np.dtype) -> Any:
    doc = f"The dtype {dtypes.NAMES[dtype]}; called, it makes arrays of it."
    return ScalarType(name, (), {"dtype": dtype, "__doc__": doc, "__module__": __name__})


bool_ = _scalar_type("bool_", dtypes.bool_)
int8 = _scalar_type("int8", dtypes.int8)
int16 = _scalar_type("int16", dtypes.int16)
int32 = _scalar_type("int32", dtypes.int32)
int64 = _scalar_type("int64", dtypes.int64)
uint8 = _scalar_type("uint8", dtypes.uint8)
uint16 = _scalar_type("uint16", dtypes.uint16)
uint32 = _scalar_type("uint32", dtypes.uint32)
uint64 = _scalar_type("uint64", dtypes.uint64)
bfloat16 = _scalar_type("bfloat16", dtypes.bfloat16)
float16 = _scalar_type("float16", dtypes.float16)
float32 = _scalar_type("float32", dtypes.float32)
float64 = _scalar_type("float64", dtypes.float64)


# NumPy's other names; names without a width are those of Python's numbers.
bool = bool_
single = float32
double = float64
float_ = float32
int_ = int32
uint = uint32

# Classes of dtypes, for `issubdtype`.
character = np.character
complexfloating = np.complexfloating
dtype = np.dtype
flexible = np.flexible
floating = np.floating
generic = np.generic
inexact = np.inexact
integer = np.integer
number = np.number
object_ = np.object_
signedinteger = np.signedinteger
unsignedinteger = np.unsignedinteger
