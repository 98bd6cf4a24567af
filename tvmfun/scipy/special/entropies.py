"""Logarithms of products and sums, entropies, and the functions between probabilities and logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmfun import lax, nn
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.special import in_full_precision
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.typing import ArrayLike

Axes = int | Sequence[int] | None

_XLOGY = compiled()(
    with_partials(
        lambda x, y: tnp.where(tnp.logical_or(x != 0, tnp.isnan(y)), x * tnp.log(y), 0.0),
        (lambda o, x, y: tnp.log(y), lambda o, x, y: x / y),
    )
)
_XLOG1PY = compiled()(
    with_partials(
        lambda x, y: tnp.where(tnp.logical_or(x != 0, tnp.isnan(y)), x * tnp.log1p(y), 0.0),
        (lambda o, x, y: tnp.log1p(y), lambda o, x, y: x / (1 + y)),
    )
)
_XLOGX = with_partials(lambda x: _XLOGY(x, x), (lambda o, x: tnp.log(x) + 1,))
_ENTR = compiled()(lambda x: tnp.where(x < 0, -math.inf, 0.0 - _XLOGX(x)))


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    r"""Returns :math:`x \ln y`, 0 where :math:`x = 0`, elementwise.

    >>> float(xlogy(0.0, 0.0))
    0.0
    """
    return in_full_precision("xlogy", _XLOGY, x, y)


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    r"""Returns :math:`x \ln(1 + y)`, 0 where :math:`x = 0`, elementwise.

    >>> float(xlog1py(0.0, -1.0))
    0.0
    """
    return in_full_precision("xlog1py", _XLOG1PY, x, y)


def entr(x: ArrayLike) -> Array:
    r"""Returns :math:`-x \ln x`, 0 at 0 and :math:`-\infty` below, elementwise.

    >>> round(float(entr(0.5)), 5)
    0.34657
    """
    return in_full_precision("entr", _ENTR, x)


def _rel_entr(p: Array, q: Array) -> Array:
    both = tnp.logical_and(p > 0, q > 0)
    x, y = tnp.where(both, p, 1.0), tnp.where(both, q, 1.0)
    other = tnp.where(tnp.logical_and(p == 0, q >= 0), 0.0, math.inf)
    other = tnp.where(tnp.logical_or(tnp.isnan(p), tnp.isnan(q)), math.nan, other)
    return tnp.where(both, _XLOGX(x) - _XLOGY(x, y), other)


_REL_ENTR = compiled()(_rel_entr)
_KL_DIV = compiled()(lambda p, q: _rel_entr(p, q) - p + q)


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    r"""Returns :math:`p \ln(p / q)`, 0 at :math:`p = 0`, elementwise.

    >>> round(float(rel_entr(0.5, 0.25)), 5)
    0.34657
    """
    return in_full_precision("rel_entr", _REL_ENTR, p, q)


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    r"""Returns :math:`p \ln(p / q) - p + q`, elementwise.

    >>> round(float(kl_div(0.5, 0.25)), 5)
    0.09657
    """
    return in_full_precision("kl_div", _KL_DIV, p, q)


_LOGIT = compiled()(with_partials(lambda x: tnp.log(x / (1 - x)), (lambda o, x: 1 / (x * (1 - x)),)))


def logit(x: ArrayLike) -> Array:
    r"""Returns :math:`\ln \frac{x}{1 - x}`, elementwise.

    >>> float(logit(0.5))
    0.0
    """
    return in_full_precision("logit", _LOGIT, x)


def expit(x: ArrayLike) -> Array:
    r"""Returns :math:`\frac{1}{1 + e^{-x}}`, elementwise.

    >>> float(expit(0.0))
    0.5
    """
    return lax.logistic(x)


def _power_transform(log: Array, power: Array) -> Array:
    is_zero = power == 0
    safe = tnp.where(is_zero, 1.0, power)
    return tnp.where(is_zero, log, tnp.expm1(safe * log) / safe)


_BOXCOX = compiled()(lambda x, power: _power_transform(tnp.log(x), power))
_BOXCOX1P = compiled()(lambda x, power: _power_transform(tnp.log1p(x), power))


def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Array:
    r"""Returns the power transform :math:`(x^\lambda - 1) / \lambda`, the logarithm for 0, elementwise.

    Source: Box and Cox, "An analysis of transformations" (1964).

    >>> float(boxcox(3.0, 1.0))
    2.0
    """
    return in_full_precision("boxcox", _BOXCOX, x, lmbda)


def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Returns :func:`boxcox` of ``1 + x``, elementwise.

    >>> float(boxcox1p(2.0, 1.0))
    2.0
    """
    return in_full_precision("boxcox1p", _BOXCOX1P, x, lmbda)


def softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    r"""Returns :math:`e^{x_i} / \sum_j e^{x_j}` over an axis, several, or all by default.

    >>> softmax(tnp.zeros(4)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return nn.softmax(x, axis)


def log_softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    """Returns the logarithm of :func:`softmax`, accurate where that is small.

    >>> round(float(log_softmax(tnp.asarray([0.0, 200.0]))[0]), 3)
    -200.0
    """
    return nn.log_softmax(x, axis)
