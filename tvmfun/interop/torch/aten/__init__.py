"""ATen operators as compositions of functions of tvmfun: a table, and modules by family that fill it."""

from tvmfun.interop.torch.aten import (
    elementwise,
    indexing,
    linalg,
    normalization,
    products,
    randomness,
    reductions,
    shapes,
    windows,
)
from tvmfun.interop.torch.aten.table import ASSERTIONS, TRANSLATIONS, Translation, translation_of

__all__ = [
    "ASSERTIONS",
    "TRANSLATIONS",
    "Translation",
    "elementwise",
    "indexing",
    "linalg",
    "normalization",
    "products",
    "randomness",
    "reductions",
    "shapes",
    "translation_of",
    "windows",
]
