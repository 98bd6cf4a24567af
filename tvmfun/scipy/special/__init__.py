"""Special functions, elementwise, with the names and arguments of ``jax.scipy.special``.

In double precision most are within a few units in the last place of the exact value. Derivatives are given in closed
form where there is one. Two functions are missing, ``wofz`` and ``sph_harm_y``, whose values are complex.
"""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.nn.functional.softmax import logsumexp
from tvmfun.scipy.special.bessel import bessel_jn, i0, i0e, i1, i1e
from tvmfun.scipy.special.entropies import (
    boxcox,
    boxcox1p,
    entr,
    expit,
    kl_div,
    log_softmax,
    logit,
    rel_entr,
    softmax,
    xlog1py,
    xlogy,
)
from tvmfun.scipy.special.error_functions import dawsn, erf, erfc, erfcx, erfinv, log_ndtr, ndtr, ndtri, owens_t
from tvmfun.scipy.special.gammas import (
    bernoulli,
    beta,
    betainc,
    betaln,
    comb,
    digamma,
    factorial,
    gamma,
    gammainc,
    gammaincc,
    gammaln,
    gammasgn,
    loggamma,
    multigammaln,
    poch,
    polygamma,
    zeta,
)
from tvmfun.scipy.special.hypergeometric import hyp1f1, hyp2f1
from tvmfun.scipy.special.integrals import exp1, expi, expn, fresnel, sici, spence

__all__ = [
    "bernoulli",
    "bessel_jn",
    "beta",
    "betainc",
    "betaln",
    "boxcox",
    "boxcox1p",
    "comb",
    "dawsn",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp1",
    "expi",
    "expit",
    "expn",
    "factorial",
    "fresnel",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gammasgn",
    "hyp1f1",
    "hyp2f1",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "owens_t",
    "poch",
    "polygamma",
    "rel_entr",
    "sici",
    "softmax",
    "spence",
    "xlog1py",
    "xlogy",
    "zeta",
]

__getattr__ = _missing(__name__)
_publish(globals())
