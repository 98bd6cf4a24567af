"""Optimizers from recent papers, with the names of ``optax.contrib``."""

from tvmfun.boundary import publish as _publish
from tvmfun.optim.contrib.ademamix import (
    ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState,
    ademamix,
    scale_by_ademamix,
    scale_by_simplified_ademamix,
    simplified_ademamix,
)
from tvmfun.optim.contrib.asynchronous import acprop, adopt, scale_by_acprop, scale_by_adopt
from tvmfun.optim.contrib.averaging import MadgradState, madgrad, scale_by_madgrad
from tvmfun.optim.contrib.betting import COCOBState, MechanicState, cocob, mechanize, scale_by_cocob
from tvmfun.optim.contrib.distance import (
    DAdaptAdamWState,
    DoGState,
    DoWGState,
    ProdigyState,
    dadapt_adamw,
    dog,
    dowg,
    prodigy,
)
from tvmfun.optim.contrib.galore import GaLoreDimensionNumbers, GaLoreState, galore, scale_by_galore
from tvmfun.optim.contrib.momo import MomoAdamState, MomoState, momo, momo_adam
from tvmfun.optim.contrib.muon import MuonDimensionNumbers, MuonState, muon, scale_by_muon
from tvmfun.optim.contrib.plateau import ReduceLROnPlateauState, reduce_on_plateau
from tvmfun.optim.contrib.privacy import DifferentiallyPrivateAggregateState, differentially_private_aggregate, dpsgd
from tvmfun.optim.contrib.sam import SAMState, normalize, sam
from tvmfun.optim.contrib.schedule_free import (
    ScheduleFreeState,
    schedule_free,
    schedule_free_adamw,
    schedule_free_eval_params,
    schedule_free_sgd,
)
from tvmfun.optim.contrib.sophia import HutchinsonState, SophiaState, hutchinson_estimator_diag_hessian, sophia
from tvmfun.optim.naming import named as _named

__all__ = [
    "COCOBState",
    "DAdaptAdamWState",
    "DifferentiallyPrivateAggregateState",
    "DoGState",
    "DoWGState",
    "GaLoreDimensionNumbers",
    "GaLoreState",
    "HutchinsonState",
    "MadgradState",
    "MechanicState",
    "MomoAdamState",
    "MomoState",
    "MuonDimensionNumbers",
    "MuonState",
    "ProdigyState",
    "ReduceLROnPlateauState",
    "SAMState",
    "ScaleByAdemamixState",
    "ScaleBySimplifiedAdEMAMixState",
    "ScheduleFreeState",
    "SophiaState",
    "acprop",
    "ademamix",
    "adopt",
    "cocob",
    "dadapt_adamw",
    "differentially_private_aggregate",
    "dog",
    "dowg",
    "dpsgd",
    "galore",
    "hutchinson_estimator_diag_hessian",
    "madgrad",
    "mechanize",
    "momo",
    "momo_adam",
    "muon",
    "normalize",
    "prodigy",
    "reduce_on_plateau",
    "sam",
    "scale_by_acprop",
    "scale_by_ademamix",
    "scale_by_adopt",
    "scale_by_cocob",
    "scale_by_galore",
    "scale_by_madgrad",
    "scale_by_muon",
    "scale_by_simplified_ademamix",
    "schedule_free",
    "schedule_free_adamw",
    "schedule_free_eval_params",
    "schedule_free_sgd",
    "simplified_ademamix",
    "sophia",
]

_publish(globals(), _named)
