"""Parameters of distributions: arrays in the dtype of the result, and the shape that they have together."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.numpy.promotion import convert, operand, operands
from tvmfun.ops.pointwise import broadcast_shapes
from tvmfun.random.keys import check_key
from tvmfun.random.uniforms import float_dtype
from tvmfun.typing import ArrayLike, DTypeLike, Key


def parameter(name: str, value: Any, dtype: np.dtype) -> Array:
    """A parameter as an array of ``dtype``."""
    return tnp.asarray(convert(name, operand(name, value), dtype))


def floats(name: str, value: Any) -> Array:
    """A parameter as a float array, in its own dtype if that is a float."""
    return tnp.asarray(operands(name, value, floating=True)[0])


def common_shape(name: str, shape: Shape | None, *shapes: tuple) -> tuple:
    """The shape of samples: that of the parameters together, or ``shape`` if they broadcast to it."""
    if shape is None:
        return tuple(broadcast_shapes(name, list(shapes)))
    sizes = as_shape(name, shape)
    if tuple(broadcast_shapes(name, [sizes, *shapes])) != sizes:
        got = ", ".join(map(str, shapes))
        raise ShapeError(name, f"the parameters must broadcast to the shape {sizes}", got=got)
    return sizes


def prepared(
    name: str, key: Key, dtype: DTypeLike | None, shape: Shape | None, *values: ArrayLike
) -> tuple[Array, np.dtype, tuple, list[Array]]:
    """The checked key, the dtype and shape of the samples, and the parameters repeated to that shape."""
    key, dtype = check_key(name, key), float_dtype(name, dtype)
    arrays = [parameter(name, value, dtype) for value in values]
    sizes = common_shape(name, shape, *(x.shape for x in arrays))
    return key, dtype, sizes, [tnp.broadcast_to(x, sizes) for x in arrays]
