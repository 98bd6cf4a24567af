"""The op records: everything tvmfun knows about each op, one record per op, grouped by what they do.

Importing this package fills the registry.
"""

from tvmfun.ops import (
    bits,
    calls,
    collective,
    control,
    conv,
    cumulative,
    decompositions,
    elementary,
    index,
    linalg,
    pointwise,
    reduce,
    search,
    shape,
    spectral,
)

__all__ = [
    "bits",
    "calls",
    "collective",
    "control",
    "conv",
    "cumulative",
    "decompositions",
    "elementary",
    "index",
    "linalg",
    "pointwise",
    "reduce",
    "search",
    "shape",
    "spectral",
]
