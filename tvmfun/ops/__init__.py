"""The op records: everything tvmfun knows about each op, one record per op, grouped by what they do.

Importing this package fills the registry.
"""

from tvmfun.ops import bits, conv, index, linalg, pointwise, reduce, shape

__all__ = ["bits", "conv", "index", "linalg", "pointwise", "reduce", "shape"]
