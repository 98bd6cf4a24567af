"""The op records: everything tvmfun knows about each op, one record per op, grouped by what they do.

Importing this package fills the registry.
"""

from tvmfun.ops import bits, control, conv, decompositions, elementary, index, linalg, pointwise, reduce, search, shape

__all__ = [
    "bits",
    "control",
    "conv",
    "decompositions",
    "elementary",
    "index",
    "linalg",
    "pointwise",
    "reduce",
    "search",
    "shape",
]
