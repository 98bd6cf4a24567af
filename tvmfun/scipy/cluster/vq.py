"""Vector quantization."""

from __future__ import annotations

from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.numpy.promotion import operands
from tvmfun.typing import ArrayLike

__all__ = ["vq"]


def vq(obs: ArrayLike, code_book: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """Returns the index of the nearest code of each observation, and the distance to it.

    Args:
        obs: the observations, one in each row, or a vector of numbers.
        code_book: the codes, likewise.
        check_finite: has no effect.

    Raises:
        ShapeError: if the shapes do not fit.

    >>> [x.tolist() for x in vq(tnp.asarray([0.0, 3.0]), tnp.asarray([0.0, 2.0]))]
    [[0, 1], [0.0, 1.0]]
    """
    points, codes = (tnp.asarray(x) for x in operands("vq", tnp.asarray(obs), tnp.asarray(code_book), floating=True))
    if points.ndim != codes.ndim or points.ndim not in (1, 2):
        raise ShapeError("vq", "both must be vectors or matrices", got=f"{points.aval} and {codes.aval}")
    if points.ndim == 1:
        points, codes = points[:, None], codes[:, None]
    distances = tnp.linalg.vector_norm(points[:, None, :] - codes[None, :, :], axis=-1)
    code = tnp.argmin(distances, axis=-1)
    return code, tnp.take_along_axis(distances, code[:, None], axis=-1)[:, 0]


publish(globals())
