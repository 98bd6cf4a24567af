"""What layers compute, as functions of their parameters; arrays are (batch, spatial axes, channels)."""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.nn.functional.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_swish,
    hard_tanh,
    hardshrink,
    leaky_relu,
    log_sigmoid,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softplus,
    softshrink,
    sparse_plus,
    sparse_sigmoid,
    squareplus,
    tanh,
    tanhshrink,
)
from tvmfun.nn.functional.attention import dot_product_attention
from tvmfun.nn.functional.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from tvmfun.nn.functional.dropout import alpha_dropout, channel_dropout, drop_path, dropout
from tvmfun.nn.functional.linear import bilinear, embedding, linear
from tvmfun.nn.functional.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
    standardize,
)
from tvmfun.nn.functional.pooling import adaptive_avg_pool, adaptive_max_pool, avg_pool, lp_pool, max_pool
from tvmfun.nn.functional.resizing import interpolate, pixel_shuffle, pixel_unshuffle
from tvmfun.nn.functional.rotary import apply_rotary
from tvmfun.nn.functional.softmax import log_softmax, logsumexp, one_hot, softmax

__all__ = [
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "alpha_dropout",
    "apply_rotary",
    "avg_pool",
    "batch_norm",
    "bilinear",
    "celu",
    "channel_dropout",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "dot_product_attention",
    "drop_path",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "group_norm",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "hardshrink",
    "instance_norm",
    "interpolate",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "lp_pool",
    "max_pool",
    "mish",
    "one_hot",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "softshrink",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "tanh",
    "tanhshrink",
]

__getattr__ = _missing(__name__)
_publish(globals())
