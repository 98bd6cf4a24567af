"""The precision of products: JAX's parameters ``precision=`` and ``preferred_element_type=``."""

from __future__ import annotations

import enum
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import not_equal
from tvmfun.ops import linalg


class Precision(enum.Enum):
    """How exactly an accelerator may multiply. Every product here is computed in the dtype of its operands or better.

    The members are there for programs that name one: float32 products are exact float32 for each of them.

    >>> Precision("highest") is Precision.HIGHEST
    True
    """

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


#: JAX's strings: the members, their synonyms, and the formats of the factors on accelerators.
_NAMES = {precision.value for precision in Precision} | {
    "fastest",
    "bfloat16",
    "bfloat16_3x",
    "tensorfloat32",
    "float32",
}


def check_precision(name: str, precision: Any) -> None:
    """Raises ``ArgumentError`` unless ``precision`` is None, a :class:`Precision`, its name, or a pair of these."""
    pair = precision if isinstance(precision, tuple | list) and len(precision) == 2 else (precision,)
    for one in pair:
        if not (one is None or isinstance(one, Precision) or (isinstance(one, str) and one.lower() in _NAMES)):
            hint = "None; float32 products are always exact float32"
            raise ArgumentError(name, f"the precision is one of {', '.join(sorted(_NAMES))}", got=repr(one), hint=hint)


def factors(name: str, *values: Any, precision: Any = None, preferred_element_type: Any = None) -> list[Array]:
    """The operands of a product as arrays of one dtype.

    Args:
        name: of the function, for its errors.
        values: what it multiplies.
        precision: see :func:`check_precision`.
        preferred_element_type: the dtype to multiply, to sum and to return in; None for the one they promote to.
    """
    if precision is not None:
        check_precision(name, precision)
    if preferred_element_type is None:
        return arrays(name, *values)
    return [astype(asarray(value), preferred_element_type) for value in values]


def dot_general(x1: Array, x2: Array, *, contract: Any, batch: Any) -> Array:
    """The product summed over pairs of axes; of bools, whether any product is true."""
    if x1.dtype == x2.dtype == dtypes.bool_:
        x1, x2 = (astype(x, dtypes.DEFAULT_INT) for x in (x1, x2))
        return not_equal(linalg.dot_general(x1, x2, contract=contract, batch=batch), 0)
    return linalg.dot_general(x1, x2, contract=contract, batch=batch)
