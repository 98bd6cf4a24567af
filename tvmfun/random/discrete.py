"""Distributions of bools and whole numbers."""

from __future__ import annotations

import math

import numpy as np

from tvmfun import dtypes, lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.lax.staging import compiled
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.numpy.promotion import convert, operand, operands
from tvmfun.random.keys import check_key, split
from tvmfun.random.parameters import common_shape, floats, parameter
from tvmfun.random.uniforms import MANTISSA, float_dtype, integer_dtype, uniform
from tvmfun.typing import ArrayLike, DTypeLike, Key

# Stirling's formula leaves this of ln k! for k = 0, ..., 9.
_STIRLING_TAILS = tuple(
    math.lgamma(k + 1) - (k + 0.5) * math.log(k + 1) + (k + 1) - 0.5 * math.log(2 * math.pi) for k in range(10)
)


def bernoulli(key: Key, p: ArrayLike = 0.5, shape: Shape | None = None, mode: str = "low") -> Array:
    """Returns bools that are true with probability ``p``.

    Args:
        key: the key.
        p: the probability.
        shape: of the result; by default that of ``p``.
        mode: ``"low"`` draws as many bits as a mantissa has; ``"high"`` draws twice as many, for small probabilities.

    Raises:
        ArgumentError: for another mode.

    >>> from tvmfun import random
    >>> bool(bernoulli(random.key(0), 1.0))
    True
    """
    key = check_key("bernoulli", key)
    if mode not in ("low", "high"):
        raise ArgumentError("bernoulli", "the mode must be 'low' or 'high'", got=repr(mode))
    p = operand("bernoulli", p)
    dtype = abstract(p, "bernoulli").dtype
    dtype = dtype if dtypes.is_float(dtype) else dtypes.DEFAULT_FLOAT
    sizes = np.shape(p) if shape is None else as_shape("bernoulli", shape)
    p = convert("bernoulli", p, dtype)
    if mode == "low":
        result = tnp.less(uniform(key, sizes, dtype), p)
    else:
        high, low = tnp.unstack(uniform(key, (2, *sizes), dtype))
        result = tnp.less(low * 2.0 ** -MANTISSA[dtype], p - high)
    if result.shape != sizes:
        raise ShapeError("bernoulli", f"the probabilities must broadcast to {sizes}", got=str(np.shape(p)))
    return result


def rademacher(key: Key, shape: Shape = (), dtype: DTypeLike | None = "int32") -> Array:
    """Returns numbers that are 1 or -1, both with probability 1/2.

    >>> from tvmfun import random
    >>> int(tnp.abs(rademacher(random.key(0))))
    1
    """
    key = check_key("rademacher", key)
    is_one = bernoulli(key, 0.5, as_shape("rademacher", shape))
    return tnp.astype(2 * tnp.astype(is_one, "int32") - 1, dtypes.canonical("int32" if dtype is None else dtype))


def geometric(key: Key, p: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "int32") -> Array:
    """Returns the number of the first success, from 1, in trials that succeed with probability ``p``.

    Args:
        key: the key.
        p: the probability, between 0 and 1.
        shape: of the result; by default that of ``p``.
        dtype: of the result, an integer.

    >>> from tvmfun import random
    >>> int(geometric(random.key(0), 1.0))
    1
    """
    key = check_key("geometric", key)
    dtype = integer_dtype("geometric", dtype)
    p = floats("geometric", p)
    u = uniform(key, common_shape("geometric", shape, p.shape), p.dtype)
    u = tnp.where(u == 0, 1.0, u)
    return tnp.astype(tnp.floor(tnp.log(u) / tnp.log1p(-p)) + 1, dtype)


def poisson(key: Key, lam: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "int32") -> Array:
    r"""Returns integers :math:`k` with probability :math:`\lambda^k e^{-\lambda} / k!`.

    Args:
        key: the key.
        lam: the mean :math:`\lambda`; it is converted to float32.
        shape: of the result; by default that of ``lam``.
        dtype: of the result, an integer. The result is -1 for a mean that is negative or NaN.

    Source: Knuth, "The art of computer programming", 3.4.1, for means below 10; Hörmann, "The transformed rejection
    method for generating Poisson random variables" (1993), for others.

    >>> from tvmfun import random
    >>> int(poisson(random.key(0), 0.0))
    0
    """
    key = check_key("poisson", key)
    dtype = integer_dtype("poisson", dtype)
    lam = parameter("poisson", lam, dtypes.float32)
    sizes = common_shape("poisson", shape, lam.shape)
    return _poisson(key, tnp.broadcast_to(lam, sizes), dtype=dtype)


@compiled("dtype")
def _poisson(key: Array, lam: Array, *, dtype: np.dtype) -> Array:
    is_small = tnp.logical_or(tnp.isnan(lam), lam < 10)
    small = _poisson_by_products(key, tnp.where(is_small, lam, 0.0), dtype)
    large = _poisson_by_rejection(key, tnp.where(is_small, 1e5, lam), dtype)
    return tnp.where(lam == 0, dtype.type(0), tnp.where(is_small, small, large))


def _poisson_by_products(key: Array, lam: Array, dtype: np.dtype) -> Array:
    """Counts the uniform numbers whose product is still above ``exp(-lam)``."""

    def step(state: tuple) -> tuple:
        key, count, log_product = state
        key, subkey = split(key)
        count = tnp.where(log_product > -lam, count + 1, count)
        return key, count, log_product + tnp.log(uniform(subkey, lam.shape))

    start = (key, tnp.zeros(lam.shape, dtype), tnp.zeros_like(lam))
    return lax.while_loop(lambda state: tnp.any(state[2] > -lam), step, start)[1] - dtype.type(1)


def _poisson_by_rejection(key: Array, lam: Array, dtype: np.dtype) -> Array:
    log_lam = tnp.log(lam)
    b = 0.931 + 2.53 * tnp.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2)

    def step(state: tuple) -> tuple:
        key, result, done = state
        key, first, second = split(key, 3)
        u, v = uniform(first, lam.shape) - 0.5, uniform(second, lam.shape)
        height = 0.5 - tnp.abs(u)
        k = tnp.floor((2 * a / height + b) * u + lam + 0.43)
        bound = tnp.log(v * inverse_alpha / (a / (height * height) + b))
        is_surely = tnp.logical_and(height >= 0.07, v <= v_r)
        never = tnp.logical_or(k < 0, tnp.logical_and(height < 0.013, v > height))
        perhaps = tnp.logical_and(tnp.logical_not(never), bound <= k * log_lam - lam - lax.lgamma(k + 1))
        accepted = tnp.logical_or(is_surely, perhaps)
        return key, tnp.where(accepted, k, result), tnp.logical_or(done, accepted)

    start = (key, tnp.full_like(lam, -1), tnp.zeros(lam.shape, "bool"))
    # As in JAX, a later accepted number replaces an earlier one while other elements are still being drawn.
    return tnp.astype(lax.while_loop(lambda state: tnp.logical_not(tnp.all(state[2])), step, start)[1], dtype)


def binomial(
    key: Key, n: ArrayLike, p: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32"
) -> Array:
    r"""Returns how many of ``n`` trials succeed, each with probability ``p``, as floats.

    Args:
        key: the key.
        n: the number of trials.
        p: the probability.
        shape: of the result; by default that of the parameters together.
        dtype: of the result, a float. The result is NaN for an ``n`` or ``p`` that is negative or NaN.

    Source: Devroye, "Non-uniform random variate generation" (1986), X.4, where ``n min(p, 1 - p)`` is at most 10;
    Hörmann, "The generation of binomial random variates" (1993), elsewhere.

    >>> from tvmfun import random
    >>> float(binomial(random.key(0), 5, 1.0))
    5.0
    """
    key = check_key("binomial", key)
    dtype = float_dtype("binomial", dtype)
    p = floats("binomial", p)
    n = parameter("binomial", n, p.dtype)
    sizes = common_shape("binomial", shape, n.shape, p.shape)
    return _binomial(key, tnp.broadcast_to(n, sizes), tnp.broadcast_to(p, sizes), dtype=dtype)


@compiled("dtype")
def _binomial(key: Array, n: Array, p: Array, *, dtype: np.dtype) -> Array:
    either = tnp.logical_or
    is_rare = p < 0.5
    q = tnp.where(is_rare, p, 1.0 - p)  # the probability of the rarer outcome
    bad_n, bad_p = either(tnp.isnan(n), n < 0), either(tnp.isnan(q), q < 0)
    infinite = tnp.isinf(n)
    q = tnp.where(bad_p, 0.01, q)
    is_small = either(bad_n, n * q <= 10.0)
    n = tnp.floor(n)
    small = _binomial_by_gaps(key, tnp.where(is_small, n, 0.0), q)
    large = _binomial_by_rejection(key, tnp.where(is_small, 1e4, n), tnp.where(is_small, 0.5, q), tnp.isinf(n))
    result = tnp.astype(tnp.where(is_small, small, large), dtype)
    result = tnp.where(either(bad_p, bad_n), math.nan, tnp.where(infinite, math.inf, result))
    keeps = either(either(is_rare, bad_n), either(tnp.isnan(p), infinite))
    return tnp.where(keeps, result, tnp.astype(n, dtype) - result)


def _binomial_by_gaps(key: Array, n: Array, p: Array) -> Array:
    """Counts gaps between successes, which have a geometric distribution, until they are more than ``n`` trials."""
    log_failure = tnp.log1p(-p)

    def step(state: tuple) -> tuple:
        key, count, total = state
        subkey, key = split(key)
        count = tnp.where(total <= n, count + 1, count)
        return key, count, total + tnp.ceil(tnp.log(uniform(subkey, n.shape, n.dtype)) / log_failure)

    start = (key, tnp.zeros_like(n), tnp.zeros_like(n))
    return lax.while_loop(lambda state: tnp.any(state[2] <= n), step, start)[1] - 1


def _stirling_tail(k: Array) -> Array:
    """The error of Stirling's formula for ``ln k!``."""
    table = tnp.asarray(np.asarray(_STIRLING_TAILS, k.dtype))
    square = (k + 1) * (k + 1)
    series = (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / (k + 1)
    small = tnp.take(table, tnp.astype(tnp.clip(tnp.floor(k), 0.0, 9.0), "int32"))
    return tnp.where(k <= 9, small, series)


def _binomial_by_rejection(key: Array, n: Array, p: Array, done: Array) -> Array:
    deviation = tnp.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    c = n * p + 0.5
    v_r = 0.92 - 4.2 / b
    r = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    m = tnp.floor((n + 1) * p)

    def step(state: tuple) -> tuple:
        key, result, done = state
        key, first, second = split(key, 3)
        u, v = uniform(first, n.shape, n.dtype) - 0.5, uniform(second, n.shape, n.dtype)
        height = 0.5 - tnp.abs(u)
        k = tnp.floor((2 * a / height + b) * u + c)
        is_surely = tnp.logical_and(height >= 0.07, v <= v_r)
        inside = tnp.logical_and(k >= 0, k <= n)
        bound = (m + 0.5) * tnp.log((m + 1) / (r * (n - m + 1)))
        bound = bound + (n + 1) * tnp.log((n - m + 1) / (n - k + 1))
        bound = bound + (k + 0.5) * tnp.log(r * (n - k + 1) / (k + 1))
        bound = bound + _stirling_tail(m) + _stirling_tail(n - m) - _stirling_tail(k) - _stirling_tail(n - k)
        perhaps = tnp.logical_and(inside, tnp.log(v * alpha / (a / (height * height) + b)) <= bound)
        accepted = tnp.logical_or(is_surely, perhaps)
        return key, tnp.where(accepted, k, result), tnp.logical_or(done, accepted)

    start = (key, tnp.full_like(n, -1), done)
    return lax.while_loop(lambda state: tnp.logical_not(tnp.all(state[2])), step, start)[1]


def multinomial(
    key: Key, n: ArrayLike, p: ArrayLike, *, shape: Shape | None = None, dtype: DTypeLike | None = "float32"
) -> Array:
    """Returns how many of ``n`` trials have each outcome, along the last axis.

    Args:
        key: the key.
        n: the number of trials.
        p: the probabilities of the outcomes along the last axis.
        shape: of the result, its last axis included; by default that of ``p``.
        dtype: of the result.

    Raises:
        ShapeError: if ``p`` has no axis, or the parameters do not broadcast to the shape.

    >>> from tvmfun import random
    >>> float(tnp.sum(multinomial(random.key(0), 10, tnp.asarray([0.5, 0.25, 0.25]))))
    10.0
    """
    key = check_key("multinomial", key)
    n, p = (tnp.asarray(x) for x in operands("multinomial", n, p, floating=True))
    if not p.ndim:
        raise ShapeError("multinomial", "p must have an axis", got=repr(p.aval))
    sizes = p.shape if shape is None else common_shape("multinomial", shape, p.shape)
    n = tnp.broadcast_to(n, common_shape("multinomial", sizes[:-1], n.shape))
    p = tnp.moveaxis(tnp.broadcast_to(p, sizes), -1, 0)
    rest = tnp.flip(tnp.cumsum(tnp.flip(p, axis=0), axis=0), axis=0)
    ratios = p / tnp.where(rest == 0, 1.0, rest)

    def outcome(left: Array, item: tuple) -> tuple:
        ratio, key = item
        count = binomial(key, left, tnp.clip(ratio, 0.0, 1.0), dtype=left.dtype)
        return left - count, count

    _, counts = lax.scan(outcome, n, (ratios, split(key, ratios.shape[0])))
    return tnp.astype(tnp.moveaxis(counts, 0, -1), dtypes.canonical("float32" if dtype is None else dtype))
