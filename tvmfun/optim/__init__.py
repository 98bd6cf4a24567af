"""Optimizers as pairs of pure functions, with optax's names: ``init`` makes a state, ``update`` a step."""

# ruff: noqa: F403, F405

from types import ModuleType as _ModuleType

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.optim import (
    assignment,
    contrib,
    losses,
    microbatching,
    perturbations,
    projections,
    schedules,
    second_order,
    transforms,
    tree,
    tree_utils,
)
from tvmfun.optim.adafactor import *
from tvmfun.optim.adagrad import *
from tvmfun.optim.adam import *
from tvmfun.optim.adam_variants import *
from tvmfun.optim.adding import *
from tvmfun.optim.base import *
from tvmfun.optim.combine import *
from tvmfun.optim.conditions import *
from tvmfun.optim.constraining import *
from tvmfun.optim.inject import *
from tvmfun.optim.layerwise import *
from tvmfun.optim.lazy import *
from tvmfun.optim.lbfgs import *
from tvmfun.optim.linear_algebra import *
from tvmfun.optim.linesearch import *
from tvmfun.optim.lookahead import *
from tvmfun.optim.loss_scaling import *
from tvmfun.optim.losses import (
    convex_kl_divergence as convex_kl_divergence,
)
from tvmfun.optim.losses import (
    cosine_distance as cosine_distance,
)
from tvmfun.optim.losses import (
    cosine_similarity as cosine_similarity,
)
from tvmfun.optim.losses import (
    ctc_loss as ctc_loss,
)
from tvmfun.optim.losses import (
    ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
)
from tvmfun.optim.losses import (
    generalized_kl_divergence as generalized_kl_divergence,
)
from tvmfun.optim.losses import (
    hinge_loss as hinge_loss,
)
from tvmfun.optim.losses import (
    huber_loss as huber_loss,
)
from tvmfun.optim.losses import (
    kl_divergence as kl_divergence,
)
from tvmfun.optim.losses import (
    l2_loss as l2_loss,
)
from tvmfun.optim.losses import (
    log_cosh as log_cosh,
)
from tvmfun.optim.losses import (
    ntxent as ntxent,
)
from tvmfun.optim.losses import (
    safe_softmax_cross_entropy as safe_softmax_cross_entropy,
)
from tvmfun.optim.losses import (
    sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
)
from tvmfun.optim.losses import (
    sigmoid_focal_loss as sigmoid_focal_loss,
)
from tvmfun.optim.losses import (
    smooth_labels as smooth_labels,
)
from tvmfun.optim.losses import (
    softmax_cross_entropy as softmax_cross_entropy,
)
from tvmfun.optim.losses import (
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
)
from tvmfun.optim.losses import (
    squared_error as squared_error,
)
from tvmfun.optim.microbatching import microbatch as microbatch
from tvmfun.optim.momentum import *
from tvmfun.optim.monitoring import *
from tvmfun.optim.naming import named as _named
from tvmfun.optim.numerics import *
from tvmfun.optim.rmsprop import *
from tvmfun.optim.scaling import *
from tvmfun.optim.schedules import *
from tvmfun.optim.sgd import *
from tvmfun.optim.sign import *
from tvmfun.optim.stochastic_gradients import *
from tvmfun.optim.tree import bias_correction as bias_correction
from tvmfun.optim.tree import update_infinity_moment as update_infinity_moment
from tvmfun.optim.tree import update_moment as update_moment
from tvmfun.optim.tree import update_moment_per_elem_norm as update_moment_per_elem_norm

__all__ = [
    "assignment",
    "contrib",
    "losses",
    "microbatching",
    "perturbations",
    "projections",
    "schedules",
    "second_order",
    "transforms",
    "tree",
    "tree_utils",
]
# Every other public name is listed by its own module.
__all__ += [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType)]

__getattr__ = _missing(__name__)
_publish(globals(), _named)

# Second names that optax has; after ``publish``, so that both are one object.
multi_transform = partition
inject_stateful_hyperparams = inject_hyperparams
safe_int32_increment = safe_increment
tree_map_params = tree.map_params
__all__ += ["inject_stateful_hyperparams", "multi_transform", "safe_int32_increment", "tree_map_params"]
