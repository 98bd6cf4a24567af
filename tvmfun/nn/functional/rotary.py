"""Rotary position embeddings."""

from __future__ import annotations

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.typing import ArrayLike

__all__ = ["apply_rotary"]


def apply_rotary(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    dim: int | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
) -> Array:
    r"""Rotates pairs of elements by angles proportional to the position, each pair at its own frequency.

    .. math::

        \begin{pmatrix} x'_a \\ x'_b \end{pmatrix} =
        \begin{pmatrix} \cos p \theta_i & -\sin p \theta_i \\ \sin p \theta_i & \cos p \theta_i \end{pmatrix}
        \begin{pmatrix} x_a \\ x_b \end{pmatrix},
        \qquad \theta_i = \mathrm{base}^{-2 i / \mathrm{dim}}

    for the pair ``i`` of ``dim / 2``. So the product of a rotated query and a rotated key depends only on the distance
    of their positions. Angles are computed in float32 or wider.

    Args:
        x: floats of shape (..., length, heads, elements).
        positions: numbers of shape (length,), or (batch, length) where ``x`` has a batch; by default 0, 1, 2 and so on.
        dim: the number of elements of a head to rotate, the first ones; all by default.
        base: the wavelengths grow from :math:`2 \pi` to nearly :math:`2 \pi \mathrm{base}`.
        interleaved: whether a pair is (2 i, 2 i + 1), as in the paper; otherwise it is
            (i, i + dim / 2), as in GPT-NeoX and the Llamas on Hugging Face.

    Returns:
        An array like ``x``.

    Raises:
        ArgumentError: if ``dim`` is odd, not positive, or larger than a head.
        ShapeError: if the shapes do not fit.
        DtypeError: if ``x`` is not an array of floats.

    Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    >>> x = tnp.asarray([[[1.0, 0.0]], [[1.0, 0.0]]])
    >>> tnp.round(apply_rotary(x, positions=np.asarray([0.0, np.pi / 2])), 4) + 0.0
    Array([[[1., 0.]],
    <BLANKLINE>
           [[0., 1.]]], dtype=float32)
    """
    x = tnp.asarray(x)
    if not dtypes.is_float(x.dtype):
        raise DtypeError("apply_rotary", "the array must be floats", got=str(x.aval))
    if x.ndim < 3:
        raise ShapeError("apply_rotary", "the array must be (..., length, heads, elements)", got=str(x.shape))
    return rotated(x, *rotation(x, positions, x.shape[-1] if dim is None else dim, base), interleaved)


def rotation(x: Array, positions: ArrayLike | None, dim: int, base: float) -> tuple[Array, Array]:
    """The cosines and sines of the angles, of shape (length, 1, dim / 2), or with a batch."""
    if not isinstance(dim, int) or dim <= 0 or dim % 2 or dim > x.shape[-1]:
        text = f"dim must be even, positive and at most {x.shape[-1]}"
        raise ArgumentError("apply_rotary", text, got=repr(dim))
    wide = dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32
    positions = tnp.arange(x.shape[-3]) if positions is None else tnp.asarray(positions)
    if positions.shape not in (x.shape[-3:-2], x.shape[:-2]):
        raise ShapeError(
            "apply_rotary", f"there must be a position for each of {x.shape[:-2]}", got=str(positions.shape)
        )
    speeds = (base ** (np.arange(0, -dim, -2, dtype="float64") / dim)).astype(wide)
    angles = tnp.astype(positions, wide)[..., None, None] * speeds
    return tnp.cos(angles), tnp.sin(angles)


def rotated(x: Array, cosines: Array, sines: Array, interleaved: bool) -> Array:
    """The pairs of ``x``, rotated by the angles."""
    half = cosines.shape[-1]
    wide, dim = tnp.astype(x, cosines.dtype), 2 * half
    a, b = (wide[..., 0:dim:2], wide[..., 1:dim:2]) if interleaved else (wide[..., :half], wide[..., half:dim])
    parts = a * cosines - b * sines, b * cosines + a * sines
    result = tnp.stack(parts, axis=-1).reshape(*x.shape[:-1], dim) if interleaved else tnp.concatenate(parts, axis=-1)
    if dim < x.shape[-1]:
        result = tnp.concatenate([result, wide[..., dim:]], axis=-1)
    return tnp.astype(result, x.dtype)
