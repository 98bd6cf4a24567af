"""Distributions and functions of samples, with the names and arguments of ``jax.scipy.stats``.

Each distribution is a module with ``logpdf``, ``pdf``, ``cdf`` and so on.
"""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.scipy.stats import (
    bernoulli,
    beta,
    betabinom,
    binom,
    cauchy,
    chi2,
    dirichlet,
    expon,
    gamma,
    gennorm,
    geom,
    gumbel_l,
    gumbel_r,
    laplace,
    logistic,
    multinomial,
    multivariate_normal,
    nbinom,
    norm,
    pareto,
    poisson,
    t,
    truncnorm,
    uniform,
    vonmises,
    wrapcauchy,
)
from tvmfun.scipy.stats.kernel_density import gaussian_kde
from tvmfun.scipy.stats.ranks import mode, rankdata, sem

_DISTRIBUTIONS = (
    bernoulli, beta, betabinom, binom, cauchy, chi2, dirichlet, expon, gamma, gennorm, geom, gumbel_l, gumbel_r,
    laplace, logistic, multinomial, multivariate_normal, nbinom, norm, pareto, poisson, t, truncnorm, uniform,
    vonmises, wrapcauchy,
)  # fmt: skip

__all__ = [
    "bernoulli",
    "beta",
    "betabinom",
    "binom",
    "cauchy",
    "chi2",
    "dirichlet",
    "expon",
    "gamma",
    "gaussian_kde",
    "gennorm",
    "geom",
    "gumbel_l",
    "gumbel_r",
    "laplace",
    "logistic",
    "mode",
    "multinomial",
    "multivariate_normal",
    "nbinom",
    "norm",
    "pareto",
    "poisson",
    "rankdata",
    "sem",
    "t",
    "truncnorm",
    "uniform",
    "vonmises",
    "wrapcauchy",
]

__getattr__ = _missing(__name__)
_publish(globals())
for _module in _DISTRIBUTIONS:
    _publish(vars(_module))
