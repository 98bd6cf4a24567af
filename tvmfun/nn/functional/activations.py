"""Activations, which are pointwise, and gated linear units."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.nn.functional.floats import floats
from tvmfun.ops import pointwise
from tvmfun.transforms import custom_jvp
from tvmfun.typing import ArrayLike

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "hardshrink",
    "identity",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "softshrink",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "swish",
    "tanh",
    "tanhshrink",
]


def relu(x: ArrayLike) -> Array:
    """The rectified linear unit: ``max(x, 0)``, with the derivative 0 at 0.

    Args:
        x: an array.

    >>> relu(tnp.asarray([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """
    return pointwise.relu(tnp.asarray(x))


def sigmoid(x: ArrayLike) -> Array:
    """The logistic function: ``1 / (1 + exp(-x))``.

    Args:
        x: an array of floats.

    >>> float(sigmoid(tnp.asarray(0.0)))
    0.5
    """
    return pointwise.sigmoid(floats(x))


def tanh(x: ArrayLike) -> Array:
    """The hyperbolic tangent.

    Args:
        x: an array of floats.

    >>> float(tanh(tnp.asarray(0.0)))
    0.0
    """
    return tnp.tanh(x)


def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """The Gaussian error linear unit: ``x * P(X <= x)`` for a standard normal ``X``.

    Args:
        x: an array of floats.
        approximate: whether to use ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.

    Reference: Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)" (2016).

    >>> f"{float(gelu(tnp.asarray(1.0), approximate=False)):.4f}"
    '0.8413'
    """
    x = floats(x)
    if approximate:
        return 0.5 * x * (1 + tnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1 + pointwise.erf(x * math.sqrt(0.5)))


def relu6(x: ArrayLike) -> Array:
    """The rectified linear unit capped at 6: ``min(max(x, 0), 6)``.

    Args:
        x: an array.

    Reference: Krizhevsky, "Convolutional Deep Belief Networks on CIFAR-10" (2010).

    >>> relu6(tnp.asarray([-1.0, 2.0, 8.0]))
    Array([0., 2., 6.], dtype=float32)
    """
    x = tnp.asarray(x)
    # `minimum` would pass half of the gradient at 6.
    return tnp.where(x >= 6, 6 * tnp.ones_like(x), relu(x))


def leaky_relu(x: ArrayLike, negative_slope: Any = 0.01) -> Array:
    """``x`` where it is at least 0, and ``negative_slope * x`` elsewhere.

    Args:
        x: an array of floats.
        negative_slope: a number.

    Reference: Maas, Hannun and Ng, "Rectifier Nonlinearities Improve Neural Network Acoustic Models" (2013).

    >>> leaky_relu(tnp.asarray([-1.0, 2.0]))
    Array([-0.01,  2.  ], dtype=float32)
    """
    x = tnp.asarray(x)
    return tnp.where(x >= 0, x, negative_slope * x)


def prelu(x: ArrayLike, weight: ArrayLike) -> Array:
    """``x`` where it is at least 0, and ``weight * x`` elsewhere, with a slope that is learned.

    Args:
        x: an array of floats of shape (..., channels).
        weight: an array of shape (channels,) or (1,).

    Raises:
        ShapeError: if the shapes do not fit.

    Reference: He et al., "Delving Deep into Rectifiers" (2015).

    >>> prelu(tnp.asarray([[-1.0, -1.0]]), tnp.asarray([0.25, 0.5]))
    Array([[-0.25, -0.5 ]], dtype=float32)
    """
    x, weight = tnp.asarray(x), tnp.asarray(weight)
    if weight.ndim != 1 or (weight.shape[0] != 1 and (x.ndim == 0 or x.shape[-1] != weight.shape[0])):
        what = "the array must be (..., channels) and the weight (channels,) or (1,)"
        raise ShapeError("prelu", what, got=f"{x.shape} and {weight.shape}")
    return leaky_relu(x, weight if x.ndim else weight[0])


def elu(x: ArrayLike, alpha: Any = 1.0) -> Array:
    """The exponential linear unit: ``x`` where it is positive, and ``alpha * (exp(x) - 1)`` elsewhere.

    Args:
        x: an array of floats.
        alpha: a number.

    Reference: Clevert, Unterthiner and Hochreiter, "Fast and Accurate Deep Network Learning by Exponential Linear
    Units (ELUs)" (2016).

    >>> elu(tnp.asarray([-1.0, 2.0]))
    Array([-0.63212055,  2.        ], dtype=float32)
    """
    x = floats(x)
    return tnp.where(x > 0, x, alpha * tnp.expm1(_not_positive(x)))


def celu(x: ArrayLike, alpha: Any = 1.0) -> Array:
    """The exponential linear unit with slope 1 at 0: ``x`` or ``alpha * (exp(x / alpha) - 1)``.

    Args:
        x: an array of floats.
        alpha: a number that is not 0.

    Reference: Barron, "Continuously Differentiable Exponential Linear Units" (2017).

    >>> celu(tnp.asarray([-1.0, 2.0]))
    Array([-0.63212055,  2.        ], dtype=float32)
    """
    x = floats(x)
    return tnp.where(x > 0, x, alpha * tnp.expm1(_not_positive(x) / alpha))


def selu(x: ArrayLike) -> Array:
    """The exponential linear unit that keeps the mean 0 and the variance 1: ``scale * elu(x, alpha)``.

    Args:
        x: an array of floats.

    Reference: Klambauer et al., "Self-Normalizing Neural Networks" (2017).

    >>> float(selu(tnp.asarray(1.0)))
    1.0507010221481323
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def _not_positive(x: Any) -> Array:
    """``min(x, 0)``: the exponential of a large x would overflow, and make the gradient of the ``where`` NaN."""
    return tnp.where(x > 0, tnp.zeros_like(x), x)


def silu(x: ArrayLike) -> Array:
    """The sigmoid linear unit, also called swish: ``x * sigmoid(x)``.

    Args:
        x: an array of floats.

    Reference: Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)" (2016).

    >>> f"{float(silu(tnp.asarray(1.0))):.4f}"
    '0.7311'
    """
    x = floats(x)
    return x * pointwise.sigmoid(x)


# JAX's second name.
swish = silu


def identity(x: ArrayLike) -> Array:
    """The array itself.

    Args:
        x: an array.

    >>> identity(2.0)
    Array(2., dtype=float32)
    """
    return tnp.asarray(x)


@custom_jvp
def _log1mexp(x: Any) -> Array:
    # Each formula where it does not cancel: expm1 for x near 0, where exp(-x) is near 1, log1p for large x.
    return tnp.where(x < math.log(2), tnp.log(-tnp.expm1(-x)), tnp.log1p(-tnp.exp(-x)))


@_log1mexp.defjvp
def _log1mexp_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    return _log1mexp(x), dx / tnp.expm1(x)


def log1mexp(x: ArrayLike) -> Array:
    """The logarithm ``log(1 - exp(-x))``, without cancellation.

    Args:
        x: an array of non-negative floats; the result is NaN for negative ones.

    Reference: Maechler, "Accurately Computing log(1 - exp(-abs(a)))" (2012).

    >>> [f"{float(y):.3g}" for y in log1mexp(tnp.asarray([1e-10, 30.0]))]
    ['-23', '-9.36e-14']
    """
    x = floats(x)
    return _log1mexp(x if dtypes.is_float(x.dtype) else tnp.astype(x, dtypes.DEFAULT_FLOAT))


def mish(x: ArrayLike) -> Array:
    """``x * tanh(softplus(x))``.

    Args:
        x: an array of floats.

    Reference: Misra, "Mish: A Self Regularized Non-Monotonic Activation Function" (2020).

    >>> f"{float(mish(tnp.asarray(1.0))):.4f}"
    '0.8651'
    """
    x = floats(x)
    return x * tnp.tanh(softplus(x))


def softplus(x: ArrayLike) -> Array:
    """A smooth ``max(x, 0)``: ``log(1 + exp(x))``, without overflow.

    Args:
        x: an array of floats.

    >>> softplus(tnp.asarray([-1000.0, 1000.0]))
    Array([   0., 1000.], dtype=float32)
    """
    return tnp.logaddexp(x, 0.0)


def log_sigmoid(x: ArrayLike) -> Array:
    """The logarithm of the logistic function: ``-softplus(-x)``.

    Args:
        x: an array of floats.

    >>> log_sigmoid(tnp.asarray([1000.0, -1000.0]))
    Array([   -0., -1000.], dtype=float32)
    """
    return -softplus(-floats(x))


def soft_sign(x: ArrayLike) -> Array:
    """``x / (1 + abs(x))``.

    Args:
        x: an array of floats.

    >>> soft_sign(tnp.asarray([-1.0, 3.0]))
    Array([-0.5 ,  0.75], dtype=float32)
    """
    x = floats(x)
    return x / (1 + tnp.abs(x))


def squareplus(x: ArrayLike, b: Any = 4) -> Array:
    """A smooth ``max(x, 0)`` without exponentials: ``(x + sqrt(x**2 + b)) / 2``.

    Args:
        x: an array of floats.
        b: a number: the smoothness.

    Reference: Barron, "Squareplus: A Softplus-Like Algebraic Rectifier" (2021).

    >>> float(squareplus(tnp.asarray(0.0)))
    1.0
    """
    x = floats(x)
    return 0.5 * (x + tnp.sqrt(x * x + b))


def sparse_plus(x: ArrayLike) -> Array:
    """A smooth ``max(x, 0)`` that is 0 up to -1: ``(x + 1)**2 / 4`` up to 1, and ``x`` beyond.

    Args:
        x: an array of floats.

    >>> sparse_plus(tnp.asarray([-2.0, 0.0, 2.0]))
    Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    x = floats(x)
    return tnp.where(x >= 1, x, tnp.where(x <= -1, tnp.zeros_like(x), 0.25 * ((x + 1) * (x + 1))))


def sparse_sigmoid(x: ArrayLike) -> Array:
    """The derivative of :func:`sparse_plus`: ``(x + 1) / 2`` from -1 to 1, clipped to 0 and 1.

    Args:
        x: an array of floats.

    >>> sparse_sigmoid(tnp.asarray([-2.0, 0.0, 2.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return 0.5 * tnp.clip(floats(x) + 1, 0, 2)


def hard_sigmoid(x: ArrayLike) -> Array:
    """A piecewise linear logistic function: ``relu6(x + 3) / 6``.

    Args:
        x: an array of floats.

    Reference: Howard et al., "Searching for MobileNetV3" (2019).

    >>> hard_sigmoid(tnp.asarray([-4.0, 0.0, 4.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return relu6(floats(x) + 3) / 6


def hard_swish(x: ArrayLike) -> Array:
    """``x * hard_sigmoid(x)``.

    Args:
        x: an array of floats.

    Reference: Howard et al., "Searching for MobileNetV3" (2019).

    >>> hard_swish(tnp.asarray([-4.0, 0.0, 4.0]))
    Array([-0.,  0.,  4.], dtype=float32)
    """
    x = floats(x)
    return x * hard_sigmoid(x)


hard_silu = hard_swish


def hard_tanh(x: ArrayLike) -> Array:
    """A piecewise linear hyperbolic tangent: ``min(max(x, -1), 1)``.

    Args:
        x: an array.

    >>> hard_tanh(tnp.asarray([-4.0, 0.5, 4.0]))
    Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    x = tnp.asarray(x)
    above = tnp.where(x < -1, -tnp.ones_like(x), x)
    return tnp.where(x > 1, tnp.ones_like(x), above)


def hardshrink(x: ArrayLike, threshold: Any = 0.5) -> Array:
    """``x`` where its magnitude is above a threshold, and 0 elsewhere.

    Args:
        x: an array of floats.
        threshold: a non-negative number.

    >>> hardshrink(tnp.asarray([-1.0, 0.25, 1.0]))
    Array([-1.,  0.,  1.], dtype=float32)
    """
    x = tnp.asarray(x)
    return tnp.where(tnp.abs(x) > threshold, x, tnp.zeros_like(x))


def softshrink(x: ArrayLike, threshold: Any = 0.5) -> Array:
    """``x`` moved towards 0 by a threshold, but not beyond: ``sign(x) * max(abs(x) - threshold, 0)``.

    Args:
        x: an array of floats.
        threshold: a non-negative number.

    >>> softshrink(tnp.asarray([-1.0, 0.25, 1.0]))
    Array([-0.5,  0. ,  0.5], dtype=float32)
    """
    x = tnp.asarray(x)
    return tnp.where(x > threshold, x - threshold, tnp.where(x < -threshold, x + threshold, tnp.zeros_like(x)))


def tanhshrink(x: ArrayLike) -> Array:
    """``x - tanh(x)``.

    Args:
        x: an array of floats.

    >>> float(tanhshrink(tnp.asarray(0.0)))
    0.0
    """
    x = floats(x)
    return x - tnp.tanh(x)


def glu(x: ArrayLike, axis: int = -1) -> Array:
    """The gated linear unit: the first half of an axis times the sigmoid of the second.

    Args:
        x: an array of floats.
        axis: an axis of even size.

    Raises:
        ShapeError: if the size is odd.

    Reference: Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2017).

    >>> glu(tnp.asarray([2.0, 0.0]))
    Array([1.], dtype=float32)
    """
    x = tnp.asarray(x)
    if x.ndim == 0 or x.shape[axis] % 2:
        raise ShapeError("glu", f"axis {axis} must have an even size", got=str(x.shape))
    value, gate = tnp.split(x, 2, axis)
    return value * pointwise.sigmoid(gate)
