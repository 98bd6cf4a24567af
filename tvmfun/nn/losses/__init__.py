"""Losses: how far predictions are from what they should be.

``nll_loss``, ``cross_entropy`` and ``mse_loss`` reduce over a batch; all others are optax's, with its names, arguments
and numbers, and return the loss of each element or example.
"""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.nn.losses.classification import (
    hinge_loss,
    make_fenchel_young_loss,
    multiclass_hinge_loss,
    multiclass_perceptron_loss,
    multiclass_sparsemax_loss,
    perceptron_loss,
    sigmoid_binary_cross_entropy,
    sigmoid_focal_loss,
    smooth_labels,
    sparsemax_loss,
)
from tvmfun.nn.losses.ctc import ctc_loss, ctc_loss_with_forward_probs
from tvmfun.nn.losses.distributions import (
    generalized_kl_divergence,
    kl_divergence,
    kl_divergence_with_log_targets,
    poly_loss_cross_entropy,
    ranking_softmax_loss,
    safe_softmax_cross_entropy,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
)
from tvmfun.nn.losses.embeddings import cosine_distance, cosine_similarity, ntxent, triplet_margin_loss
from tvmfun.nn.losses.likelihood import cross_entropy, mse_loss, nll_loss
from tvmfun.nn.losses.regression import huber_loss, l2_loss, log_cosh, squared_error
from tvmfun.nn.losses.segmentation import binary_dice_loss, dice_loss, multiclass_generalized_dice_loss

__all__ = [
    "binary_dice_loss",
    "cosine_distance",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "ctc_loss_with_forward_probs",
    "dice_loss",
    "generalized_kl_divergence",
    "hinge_loss",
    "huber_loss",
    "kl_divergence",
    "kl_divergence_with_log_targets",
    "l2_loss",
    "log_cosh",
    "make_fenchel_young_loss",
    "mse_loss",
    "multiclass_generalized_dice_loss",
    "multiclass_hinge_loss",
    "multiclass_perceptron_loss",
    "multiclass_sparsemax_loss",
    "nll_loss",
    "ntxent",
    "perceptron_loss",
    "poly_loss_cross_entropy",
    "ranking_softmax_loss",
    "safe_softmax_cross_entropy",
    "sigmoid_binary_cross_entropy",
    "sigmoid_focal_loss",
    "smooth_labels",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
    "sparsemax_loss",
    "squared_error",
    "triplet_margin_loss",
]

__getattr__ = _missing(__name__)
_publish(globals())
