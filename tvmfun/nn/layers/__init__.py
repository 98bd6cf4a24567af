"""Layers: parameters that know what to compute. Each is an immutable tree of arrays and static settings."""

from tvmfun.nn.layers.activation import PReLU
from tvmfun.nn.layers.containers import Residual, Sequential
from tvmfun.nn.layers.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from tvmfun.nn.layers.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, DropPath
from tvmfun.nn.layers.linear import Bilinear, Embedding, Identity, Linear
from tvmfun.nn.layers.normalization import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
    RunningStatistics,
)
from tvmfun.nn.layers.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from tvmfun.nn.layers.reparametrization import SpectralNorm, SpectralNormState, WeightNorm
from tvmfun.nn.layers.shapes import Flatten, PixelShuffle, PixelUnshuffle, Upsample

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "DropPath",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LayerNorm",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "PReLU",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "Residual",
    "RunningStatistics",
    "Sequential",
    "SpectralNorm",
    "SpectralNormState",
    "Upsample",
    "WeightNorm",
]
