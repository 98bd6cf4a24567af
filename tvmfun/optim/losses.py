"""The losses of :mod:`tvmfun.nn.losses`, by the names of ``optax.losses``."""

from tvmfun.names import missing as _missing
from tvmfun.nn import losses as _losses
from tvmfun.nn.losses import *  # noqa: F403

#: The earlier name in optax.
convex_kl_divergence = _losses.generalized_kl_divergence

__all__ = ["convex_kl_divergence"]
__all__ += _losses.__all__
__getattr__ = _missing(__name__)
