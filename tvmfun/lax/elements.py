"""Functions of single elements, products, and what stops a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.numpy.manipulation import normalize_axis
from tvmfun.numpy.promotion import operands
from tvmfun.ops import linalg, pointwise


def stop_gradient(x: Any) -> Any:
    """Returns the tree ``x``, through which no gradient flows.

    >>> import tvmfun
    >>> float(tvmfun.grad(lambda x: x * stop_gradient(x))(3.0))
    3.0
    """

    def stop(leaf: Any) -> Any:
        is_float = isinstance(leaf, Array) and dtypes.is_float(leaf.dtype)
        return pointwise.stop_gradient(leaf) if is_float else leaf

    return tree.map(stop, x)


def erf(x: Any) -> Array:
    r"""Returns :math:`\frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt`, elementwise."""
    return pointwise.erf(*operands("erf", x, floating=True))


def erf_inv(x: Any) -> Array:
    """Returns the inverse of :func:`erf`, elementwise."""
    return pointwise.erf_inv(*operands("erf_inv", x, floating=True))


def rsqrt(x: Any) -> Array:
    r"""Returns :math:`1 / \sqrt x`, elementwise."""
    return pointwise.rsqrt(*operands("rsqrt", x, floating=True))


def logistic(x: Any) -> Array:
    r"""Returns :math:`1 / (1 + e^{-x})`, elementwise."""
    return pointwise.sigmoid(*operands("logistic", x, floating=True))


def bitcast_convert_type(x: Any, new_dtype: Any) -> Array:
    """Returns the bits of ``x`` read as another dtype of the same width."""
    return pointwise.bitcast(tnp.asarray(x), dtype=dtypes.NAMES[dtypes.canonical(new_dtype)])


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
) -> Array:
    """Returns the product summed over pairs of contracted axes, for each index of the paired batch axes.

    Args:
        lhs: the left array.
        rhs: the right array, of the same dtype after promotion.
        dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.

    Returns:
        An array with the batch axes first, then the other axes of ``lhs``, then those of ``rhs``.

    Source: ``jax.lax.dot_general``.
    """
    contract, batch = dimension_numbers
    lhs, rhs = (tnp.asarray(x) for x in operands("dot_general", tnp.asarray(lhs), tnp.asarray(rhs)))
    contract, batch = _axes(contract, lhs, rhs), _axes(batch, lhs, rhs)
    return linalg.dot_general(lhs, rhs, contract=contract, batch=batch)


def _axes(pair: tuple[Sequence[int], Sequence[int]], lhs: Array, rhs: Array) -> tuple:
    """The axes of both sides, counted from the first."""
    if len(pair[0]) != len(pair[1]):
        raise ArgumentError("dot_general", "axes come in pairs", got=str(pair))
    return tuple(
        tuple(normalize_axis("dot_general", axis, x.ndim) for axis in axes)
        for axes, x in zip(pair, (lhs, rhs), strict=True)
    )


# -- convolution and windows ---------------------------------------------------------------------------------
