"""The gamma distribution and those made of it."""

from __future__ import annotations

import numpy as np

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.numpy.creation import Shape
from tvmfun.random.continuous import exponential_of
from tvmfun.random.discrete import rademacher
from tvmfun.random.keys import check_key, split, split_each
from tvmfun.random.normals import normal, normal_of
from tvmfun.random.parameters import common_shape, parameter, prepared
from tvmfun.random.uniforms import float_dtype, uniform_of
from tvmfun.typing import ArrayLike, DTypeLike, Key


def gamma(key: Key, a: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the gamma distribution with density :math:`\frac{x^{a-1} e^{-x}}{\Gamma(a)}` from 0.

    The derivative by ``a`` is that of a sample whose probability to be exceeded is held (implicit reparameterization).

    Args:
        key: the key.
        a: the shape parameter, positive.
        shape: of the result; by default that of ``a``.
        dtype: of the result, a float.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); Figurnov et al., "Implicit
    reparameterization gradients" (2018).

    >>> from tvmfun import random
    >>> bool(gamma(random.key(0), 2.0) > 0)
    True
    """
    key, dtype, sizes, (a,) = prepared("gamma", key, dtype, shape, a)
    return _gamma(key, a, shape=sizes, dtype=dtype, log_space=False)


def loggamma(key: Key, a: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    """Returns logarithms of samples of :func:`gamma`, finite where those would be 0.

    Args:
        key: the key.
        a: the shape parameter, positive.
        shape: of the result; by default that of ``a``.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(tnp.isfinite(loggamma(random.key(0), 1e-3)))
    True
    """
    key, dtype, sizes, (a,) = prepared("loggamma", key, dtype, shape, a)
    return _gamma(key, a, shape=sizes, dtype=dtype, log_space=True)


@compiled("shape", "dtype", "log_space")
def _gamma(key: Array, a: Array, *, shape: tuple, dtype: np.dtype, log_space: bool) -> Array:
    a = tnp.ravel(a)
    keys = split(key, a.shape[0])
    partials = (None, _loggamma_partial if log_space else _gamma_partial)
    sample = with_partials(lambda keys, a: _sample(keys, a, dtype, log_space), partials)
    return tnp.reshape(sample(keys, a), shape)


def _gamma_partial(sample: Array, keys: Array, a: Array) -> Array:
    return lax.random_gamma_grad(a, sample)


def _loggamma_partial(log_sample: Array, keys: Array, a: Array) -> Array:
    # The sample underflows to 0 where its logarithm does not; the smallest normal number stands in for it.
    sample = tnp.exp(log_sample)
    sample = tnp.where(sample == 0, float(tnp.finfo(sample.dtype).tiny), sample)
    return lax.random_gamma_grad(a, sample) / sample


def _sample(keys: Array, a: Array, dtype: np.dtype, log_space: bool) -> Array:
    """One sample, or its logarithm, for each key and each element of ``a``, vectors."""
    low = np.nextafter(dtype.type(-1), dtype.type(0), dtype=dtype)
    draw = lambda keys, low: uniform_of(keys, low, dtype.type(1), shape=(), dtype=dtype)
    pick = lambda keys, count: tnp.unstack(split_each(keys, shape=(count,)), axis=1)
    # Parameters below 1 are boosted: a sample for a + 1 times a power of a uniform number is one for a.
    is_large = a >= 1
    d = tnp.where(is_large, a, a + 1) - 1.0 / 3.0
    c = 1.0 / 3.0 / tnp.sqrt(d)

    def positive(keys: Array, done: Array) -> tuple[Array, Array]:
        """Normal numbers ``x`` and ``1 + c x``, drawn again until that is positive."""

        def draw_again(state: tuple) -> tuple:
            keys, x, v = state
            keys, subkeys = pick(keys, 2)
            new = normal_of(draw(subkeys, low))
            wanting = v <= 0
            return keys, tnp.where(wanting, new, x), tnp.where(wanting, 1 + new * c, v)

        start = (keys, tnp.zeros_like(a), tnp.where(done, tnp.ones_like(a), -1))
        return lax.while_loop(lambda state: tnp.any(state[2] <= 0), draw_again, start)[1:]

    def propose(state: tuple) -> tuple:
        keys, volume, done = state
        keys, normal_keys, uniform_keys = pick(keys, 3)
        x, v = positive(normal_keys, done)
        square, cube = x * x, v * v * v
        u = draw(uniform_keys, dtype.type(0))
        squeezed = u >= 1 - 0.0331 * (square * square)
        rejected = tnp.log(u) >= square * 0.5 + d * (1 - cube + tnp.log(cube))
        accepted = tnp.logical_not(tnp.logical_and(squeezed, rejected))
        return keys, tnp.where(done, volume, cube), tnp.logical_or(done, accepted)

    keys, boost_keys = pick(keys, 2)
    start = (keys, tnp.ones_like(a), tnp.zeros(a.shape, "bool"))
    _, volume, _ = lax.while_loop(lambda state: tnp.logical_not(tnp.all(state[2])), propose, start)
    if not log_space:
        power = (1 - draw(boost_keys, dtype.type(0))) ** (1 / a)
        return d * volume * tnp.where(is_large, 1.0, power)
    log_uniform = -exponential_of(boost_keys, shape=(), dtype=dtype)
    boost = tnp.where(tnp.logical_or(is_large, log_uniform == 0), 0.0, log_uniform * (1 / a))
    return tnp.log(d) + tnp.log(volume) + boost


def beta(
    key: Key, a: ArrayLike, b: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32"
) -> Array:
    r"""Returns floats of the beta distribution, with density proportional to :math:`x^{a-1} (1 - x)^{b-1}` in [0, 1].

    Args:
        key: the key.
        a: the first parameter, positive.
        b: the second parameter, positive.
        shape: of the result; by default that of the parameters together.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(beta(random.key(0), 2.0, 3.0) < 1)
    True
    """
    key, dtype, sizes, (a, b) = prepared("beta", key, dtype, shape, a, b)
    first, second = split(key)
    x, y = loggamma(first, a, sizes, dtype), loggamma(second, b, sizes, dtype)
    largest = tnp.maximum(x, y)
    x, y = tnp.exp(x - largest), tnp.exp(y - largest)
    return x / (x + y)


def dirichlet(key: Key, alpha: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns vectors of positive numbers with the sum 1, of density proportional to :math:`\prod x_i^{\alpha_i - 1}`.

    Args:
        key: the key.
        alpha: the parameters along the last axis, positive.
        shape: of the result without its last axis; by default that of ``alpha`` without its last.
        dtype: of the result, a float.

    Raises:
        ShapeError: if ``alpha`` has no axis.

    >>> from tvmfun import random
    >>> round(float(tnp.sum(dirichlet(random.key(0), tnp.ones(4)))), 5)
    1.0
    """
    key = check_key("dirichlet", key)
    dtype = float_dtype("dirichlet", dtype)
    alpha = parameter("dirichlet", alpha, dtype)
    if not alpha.ndim:
        raise ShapeError("dirichlet", "alpha must have an axis", got=repr(alpha.aval))
    sizes = common_shape("dirichlet", shape, alpha.shape[:-1])
    x = loggamma(key, alpha, (*sizes, alpha.shape[-1]), dtype)
    x = tnp.exp(x - lax.stop_gradient(tnp.max(x, axis=-1, keepdims=True))) if alpha.shape[-1] else x
    return x / tnp.sum(x, axis=-1, keepdims=True)


def t(key: Key, df: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    """Returns floats of Student's t-distribution.

    Args:
        key: the key.
        df: the degrees of freedom, positive.
        shape: of the result; by default that of ``df``.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> t(random.key(0), 3.0, (2,)).shape
    (2,)
    """
    key, dtype, sizes, (df,) = prepared("t", key, dtype, shape, df)
    first, second = split(key)
    return normal(first, sizes, dtype) * tnp.sqrt(df / 2 / gamma(second, df / 2, sizes, dtype))


def chisquare(key: Key, df: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32") -> Array:
    """Returns floats of the chi-squared distribution.

    Args:
        key: the key.
        df: the degrees of freedom, positive.
        shape: of the result; by default that of ``df``.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(chisquare(random.key(0), 3.0) > 0)
    True
    """
    key, dtype, sizes, (df,) = prepared("chisquare", key, dtype, shape, df)
    return tnp.exp(loggamma(key, df / 2, sizes, dtype)) * 2


def f(
    key: Key, dfnum: ArrayLike, dfden: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32"
) -> Array:
    """Returns floats of the F-distribution: quotients of two chi-squared numbers, each over its degrees of freedom.

    Args:
        key: the key.
        dfnum: the degrees of freedom of the numerator, positive.
        dfden: the degrees of freedom of the denominator, positive.
        shape: of the result; by default that of the parameters together.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> bool(f(random.key(0), 3.0, 4.0) > 0)
    True
    """
    key, dtype, sizes, (dfnum, dfden) = prepared("f", key, dtype, shape, dfnum, dfden)
    first, second = split(key)
    return chisquare(second, dfnum, sizes, dtype) / dfnum / (chisquare(first, dfden, sizes, dtype) / dfden)


def generalized_normal(key: Key, p: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats with density proportional to :math:`e^{-|x|^p}`.

    Args:
        key: the key.
        p: the exponent, positive: 2 gives a normal distribution, 1 the Laplace distribution.
        shape: of the result.
        dtype: of the result, a float.

    >>> from tvmfun import random
    >>> generalized_normal(random.key(0), 2.0, (3,)).shape
    (3,)
    """
    key, dtype, sizes, (p,) = prepared("generalized_normal", key, dtype, shape, p)
    first, second = split(key)
    return rademacher(second, sizes, dtype) * gamma(first, 1 / p, sizes, dtype) ** (1 / p)
