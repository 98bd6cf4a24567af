"""Random numbers as pure functions of a key: Threefry-2x32 in counter mode.

A key is an array ``uint32[2]``; using it twice gives the same numbers twice. The bits are those of JAX's
default generator for the same key, shape and dtype; numbers computed from them differ by rounding at most.

Two names of ``jax.random`` are missing: ``key_dtype``, because keys have no dtype of their own, and ``random_gamma_p``,
which is internal to JAX. The default dtypes are float32 and int32.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); layout as in ``jax.random``.
"""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.random.continuous import (
    cauchy,
    double_sided_maxwell,
    exponential,
    gumbel,
    laplace,
    logistic,
    lognormal,
    maxwell,
    pareto,
    rayleigh,
    triangular,
    wald,
    weibull_min,
)
from tvmfun.random.discrete import bernoulli, binomial, geometric, multinomial, poisson, rademacher
from tvmfun.random.gammas import beta, chisquare, dirichlet, f, gamma, generalized_normal, loggamma, t
from tvmfun.random.keys import PRNGKey, clone, fold_in, key, key_data, key_impl, split, wrap_key_data
from tvmfun.random.multivariate import ball, multivariate_normal, orthogonal
from tvmfun.random.normals import normal, truncated_normal
from tvmfun.random.permutations import categorical, choice, permutation
from tvmfun.random.uniforms import bits, randint, uniform

__all__ = [
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]

__getattr__ = _missing(__name__)
_publish(globals())
