"""Continuous distributions that are functions of uniform or normal numbers."""

from __future__ import annotations

import math

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.lax.staging import compiled, compiled_for_all_shapes
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.random.discrete import rademacher
from tvmfun.random.keys import split
from tvmfun.random.normals import normal
from tvmfun.random.parameters import parameter, prepared
from tvmfun.random.uniforms import MANTISSA, bits_of, float_request, uniform, uniform_of
from tvmfun.typing import ArrayLike, DTypeLike, Key


def gumbel(key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32", mode: str | None = None) -> Array:
    r"""Returns floats of the standard Gumbel distribution, :math:`-\ln(-\ln u)` with :math:`u` uniform.

    Args:
        key: the key.
        shape: of the result.
        dtype: of the result, a float.
        mode: ``"low"``, the default, draws as many bits as a mantissa has, so that the largest values stop at about
            16 for float32; ``"high"`` draws twice as many, and ``"highest"`` 64 for float32.

    Raises:
        ArgumentError: for another mode.

    >>> from tvmfun import random
    >>> gumbel(random.key(0), (2,)).shape
    (2,)
    """
    key, shape, dtype = float_request("gumbel", key, shape, dtype)
    mode = "low" if mode is None else mode
    if mode not in ("low", "high", "highest"):
        raise ArgumentError("gumbel", "the mode must be 'low', 'high' or 'highest'", got=repr(mode))
    return _gumbel(key, shape=shape, dtype=dtype, mode=mode)


@compiled("shape", "dtype", "mode")
def _gumbel(key: Array, *, shape: tuple, dtype: np.dtype, mode: str) -> Array:
    tiny = float(tnp.finfo(dtype).tiny)
    if mode == "low":
        return -tnp.log(-tnp.log(uniform(key, shape, dtype, tiny, 1.0)))
    if mode == "highest" and dtype == dtypes.float32:
        words = tnp.astype(bits_of(key, (2, *shape), dtypes.uint32), "uint64")
        fixed = tnp.bitwise_or(tnp.bitwise_left_shift(words[0], 32), words[1])
        # A 64-bit fixed-point number or its complement to 1, whichever is exact as a float.
        is_low = fixed < 1 << 63
        distance = tnp.astype(tnp.where(is_low, fixed, tnp.zeros_like(fixed) - fixed), "float64")
        x = tnp.astype(tnp.maximum(distance, 0.5) * 2.0**-64, dtype)
        return tnp.where(is_low, -tnp.log(-tnp.log1p(-x)), -tnp.log(-tnp.log(x)))
    high, low = tnp.unstack(uniform(key, (2, *shape), dtype))
    x = tnp.where(high >= 0.5, high, high + 2.0 ** -MANTISSA[dtype] * low + tiny)
    return -tnp.log(-tnp.log1p(-x))


def exponential(key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the exponential distribution with density :math:`e^{-x}`, :math:`-\ln(1 - u)`.

    >>> from tvmfun import random
    >>> bool(exponential(random.key(0)) > 0)
    True
    """
    key, shape, dtype = float_request("exponential", key, shape, dtype)
    return exponential_of(key, shape=shape, dtype=dtype)


@compiled_for_all_shapes("dtype")
def exponential_of(key: Array, *, shape: tuple, dtype: np.dtype) -> Array:
    """Exponential numbers of a key, or of each key in an array of keys, whose axes come first."""
    return -tnp.log1p(-uniform_of(key, dtype.type(0), dtype.type(1), shape=shape, dtype=dtype))


def laplace(key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the Laplace distribution with density :math:`e^{-|x|} / 2`.

    >>> from tvmfun import random
    >>> laplace(random.key(0), (3,)).shape
    (3,)
    """
    key, shape, dtype = float_request("laplace", key, shape, dtype)
    return _laplace(key, shape=shape, dtype=dtype)


@compiled_for_all_shapes("dtype")
def _laplace(key: Array, *, shape: tuple, dtype: np.dtype) -> Array:
    u = uniform(key, shape, dtype, -1.0 + float(tnp.finfo(dtype).eps) / 2, 1.0)
    return tnp.sign(u) * tnp.log1p(-tnp.abs(u))


def logistic(key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the logistic distribution, :math:`\ln \frac{u}{1 - u}` with :math:`u` uniform.

    >>> from tvmfun import random
    >>> logistic(random.key(0), (3,)).shape
    (3,)
    """
    key, shape, dtype = float_request("logistic", key, shape, dtype)
    return _logistic(key, shape=shape, dtype=dtype)


@compiled_for_all_shapes("dtype")
def _logistic(key: Array, *, shape: tuple, dtype: np.dtype) -> Array:
    u = uniform(key, shape, dtype, float(tnp.finfo(dtype).tiny), 1.0)
    return tnp.log(u) - tnp.log1p(-u)


def cauchy(key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the Cauchy distribution with density :math:`\frac{1}{\pi (1 + x^2)}`.

    >>> from tvmfun import random
    >>> cauchy(random.key(0), (3,)).shape
    (3,)
    """
    key, shape, dtype = float_request("cauchy", key, shape, dtype)
    return _cauchy(key, shape=shape, dtype=dtype)


@compiled_for_all_shapes("dtype")
def _cauchy(key: Array, *, shape: tuple, dtype: np.dtype) -> Array:
    u = uniform(key, shape, dtype, float(tnp.finfo(dtype).eps), 1.0)
    return tnp.tan(math.pi * (u - 0.5))


def pareto(key: Key, b: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the Pareto distribution with density :math:`b x^{-b - 1}` from 1.

    Args:
        key: the key.
        b: the exponent, positive.
        shape: of the result; by default that of ``b``.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(pareto(random.key(0), 2.0) >= 1)
    True
    """
    key, dtype, sizes, (b,) = prepared("pareto", key, dtype, shape, b)
    return tnp.exp(exponential(key, sizes, dtype) / b)


def rayleigh(key: Key, scale: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the Rayleigh distribution with density :math:`\frac{x}{s^2} e^{-x^2 / (2 s^2)}` from 0.

    Args:
        key: the key.
        scale: the scale :math:`s`.
        shape: of the result; by default that of ``scale``.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(rayleigh(random.key(0), 2.0) >= 0)
    True
    """
    key, dtype, sizes, (scale,) = prepared("rayleigh", key, dtype, shape, scale)
    return scale * tnp.sqrt(-2 * tnp.log(uniform(key, sizes, dtype)))


def weibull_min(
    key: Key, scale: ArrayLike, concentration: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = "float32"
) -> Array:
    r"""Returns floats of the Weibull distribution with density :math:`c\, x^{c-1} e^{-x^c}` from 0, times a scale.

    Args:
        key: the key.
        scale: the factor.
        concentration: the exponent :math:`c`.
        shape: of the uniform numbers it is made of; the parameters broadcast with it.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> weibull_min(random.key(0), 1.0, 2.0, (3,)).shape
    (3,)
    """
    key, shape, dtype = float_request("weibull_min", key, shape, dtype)
    scale, concentration = (parameter("weibull_min", value, dtype) for value in (scale, concentration))
    return (exponential(key, shape, dtype) ** (1.0 / concentration)) * scale


def maxwell(key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the Maxwell distribution with density :math:`\sqrt{2 / \pi}\, x^2 e^{-x^2 / 2}` from 0.

    >>> from tvmfun import random
    >>> bool(maxwell(random.key(0)) > 0)
    True
    """
    key, shape, dtype = float_request("maxwell", key, shape, dtype)
    x = normal(key, (*shape, 3), dtype)
    return tnp.sqrt(tnp.sum(x * x, axis=-1))


def double_sided_maxwell(
    key: Key, loc: ArrayLike, scale: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = "float32"
) -> Array:
    r"""Returns floats of :func:`maxwell` with random signs, times ``scale`` and moved by ``loc``.

    Args:
        key: the key.
        loc: the center.
        scale: the scale.
        shape: the leading axes, before the broadcast shape of the parameters; by default that shape once more, as in
            JAX.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> double_sided_maxwell(random.key(0), 1.0, 2.0, (3,)).shape
    (3,)
    """
    key, dtype, sizes, (loc, scale) = prepared("double_sided_maxwell", key, dtype, None, loc, scale)
    sizes = (*(as_shape("double_sided_maxwell", shape) or sizes), *sizes)
    first, second = split(key)
    return rademacher(second, sizes, dtype) * maxwell(first, sizes, dtype) * scale + loc


def wald(key: Key, mean: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the inverse Gaussian distribution.

    The density is :math:`\frac{1}{\sqrt{2 \pi x^3}} e^{-(x - \mu)^2 / (2 \mu^2 x)}` from 0.

    Args:
        key: the key.
        mean: :math:`\mu`, positive.
        shape: of the result; by default that of ``mean``.
        dtype: of the result, a float.

    Source: Michael, Schucany and Haas, "Generating random variates using transformations with multiple roots" (1976).

    >>> from tvmfun import random
    >>> bool(wald(random.key(0), 2.0) > 0)
    True
    """
    key, dtype, sizes, (mean,) = prepared("wald", key, dtype, shape, mean)
    first, second = split(key)
    y = tnp.square(normal(first, sizes, dtype))
    x = mean + mean * mean * y / 2 - mean / 2 * tnp.sqrt(4 * mean * y + mean * mean * (y * y))
    return tnp.where(uniform(second, sizes, dtype) <= mean / (mean + x), x, mean * mean / x)


def triangular(
    key: Key,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = "float32",
) -> Array:
    """Returns floats whose density rises linearly from ``left`` to ``mode`` and falls linearly to ``right``.

    Args:
        key: the key.
        left: the lower end.
        mode: the most likely value.
        right: the upper end.
        shape: of the result; by default that of the parameters together.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(triangular(random.key(0), 1.0, 2.0, 3.0) < 3)
    True
    """
    key, dtype, sizes, (left, mode, right) = prepared("triangular", key, dtype, shape, left, mode, right)
    u, width = uniform(key, sizes, dtype), right - left
    rising = left + tnp.sqrt(u * width * (mode - left))
    falling = right - tnp.sqrt((1 - u) * width * (right - mode))
    return tnp.where(u < (mode - left) / width, rising, falling)


def lognormal(
    key: Key, sigma: ArrayLike = 1.0, shape: Shape | None = None, dtype: DTypeLike | None = "float32"
) -> Array:
    r"""Returns :math:`e^{\sigma x}` for :math:`x` of the standard normal distribution.

    Args:
        key: the key.
        sigma: the standard deviation of the logarithm.
        shape: of the result; by default that of ``sigma``.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(lognormal(random.key(0)) > 0)
    True
    """
    key, dtype, sizes, (sigma,) = prepared("lognormal", key, dtype, shape, sigma)
    return tnp.exp(normal(key, sizes, dtype) * sigma)
