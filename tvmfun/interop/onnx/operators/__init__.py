"""The operators of ONNX by families: each module adds rows to the table."""

from tvmfun.interop.onnx.operators import (
    casts,
    control,
    elementwise,
    images,
    indexing,
    normalization,
    products,
    randomness,
    recurrent,
    reductions,
    shapes,
    signals,
    training,
    windows,
)
from tvmfun.interop.onnx.operators.table import TRANSLATIONS, Translation, translation_of

__all__ = [
    "TRANSLATIONS",
    "Translation",
    "casts",
    "control",
    "elementwise",
    "images",
    "indexing",
    "normalization",
    "products",
    "randomness",
    "recurrent",
    "reductions",
    "shapes",
    "signals",
    "training",
    "translation_of",
    "windows",
]
