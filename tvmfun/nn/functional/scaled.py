"""Products of matrices with block scales."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.typing import ArrayLike, DTypeLike

__all__ = ["scaled_matmul"]


def scaled_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    lhs_scales: ArrayLike,
    rhs_scales: ArrayLike,
    preferred_element_type: DTypeLike = "float32",
) -> Array:
    r"""The batched product of two matrices with a scale per block of the contracted axis.

    .. math::

        y_{bmn} = \sum_k a_{bmk}\, s_{bm \lfloor k / d \rfloor}\, c_{bnk}\, t_{bn \lfloor k / d \rfloor}

    Args:
        lhs: an array :math:`a` of shape (B, M, K).
        rhs: an array :math:`c` of shape (B, N, K).
        lhs_scales: an array :math:`s` of shape (B, M, K / d).
        rhs_scales: an array :math:`t` of shape (B, N, K / d).
        preferred_element_type: the dtype of the result.

    Raises:
        ShapeError: if the shapes do not fit.

    Source: follows ``jax.nn.scaled_matmul``, which is meant for dtypes of at most 8 bits; TVM lacks them on CPUs.

    >>> x, scales = tnp.ones((1, 2, 4)), tnp.asarray([[[1.0, 2.0], [0.5, 0.5]]])
    >>> scaled_matmul(x, x, scales, scales)
    Array([[[10.,  3.],
            [ 3.,  1.]]], dtype=float32)
    """
    where = "scaled_matmul"
    lhs, rhs, lhs_scales, rhs_scales = (tnp.asarray(x) for x in (lhs, rhs, lhs_scales, rhs_scales))
    fits = all(x.ndim == 3 for x in (lhs, rhs, lhs_scales, rhs_scales))
    fits = fits and lhs.shape[::2] == rhs.shape[::2] and lhs_scales.shape[2] == rhs_scales.shape[2]
    fits = fits and lhs.shape[:2] == lhs_scales.shape[:2] and rhs.shape[:2] == rhs_scales.shape[:2]
    blocks = lhs_scales.shape[2] if fits else 0
    if not blocks or lhs.shape[2] % blocks:
        got = ", ".join(str(x.shape) for x in (lhs, rhs, lhs_scales, rhs_scales))
        raise ShapeError(where, "the shapes must be (B, M, K), (B, N, K), (B, M, K / d) and (B, N, K / d)", got=got)
    dtype = dtypes.canonical(preferred_element_type)
    wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32

    def scaled(x: Any, scales: Any) -> Any:
        return tnp.astype(x, wide) * tnp.repeat(tnp.astype(scales, wide), x.shape[2] // blocks, axis=2)

    product = lax.dot_general(scaled(lhs, lhs_scales), scaled(rhs, rhs_scales), (((2,), (2,)), ((0,), (0,))))
    return tnp.astype(product, dtype)
