"""The op records: everything tvmfun knows about each op, one record per op, grouped by purpose.

Importing this package fills the registry. The functions of ``jax.ops`` are here by their names, too:

>>> from tvmfun import numpy as tnp
>>> from tvmfun.ops import segment_sum
>>> segment_sum(tnp.asarray([1, 2, 3]), tnp.asarray([0, 0, 1]))
Array([3, 3], dtype=int32)
"""

from typing import TYPE_CHECKING, Any

from tvmfun.names import missing
from tvmfun.ops import (
    attention,
    bits,
    calls,
    collective,
    control,
    conv,
    cumulative,
    dot,
    dynamic_slice,
    index,
    linalg,
    pointwise,
    reduce,
    shape,
    sorting,
)

if TYPE_CHECKING:
    from tvmfun.lax.segment import segment_max, segment_min, segment_prod, segment_sum

__all__ = [
    "attention",
    "bits",
    "calls",
    "collective",
    "control",
    "conv",
    "cumulative",
    "dot",
    "dynamic_slice",
    "index",
    "linalg",
    "pointwise",
    "reduce",
    "segment_max",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "shape",
    "sorting",
]


def __getattr__(name: str) -> Any:
    # They are compositions of ops, built on this package, so they cannot be imported with it.
    if name in ("segment_max", "segment_min", "segment_prod", "segment_sum"):
        from tvmfun.lax import segment

        return getattr(segment, name)
    return missing(__name__)(name)
