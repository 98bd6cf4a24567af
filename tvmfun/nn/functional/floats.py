"""Arguments as floats."""

from __future__ import annotations

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.typing import ArrayLike


def floats(x: ArrayLike) -> Array:
    """``x`` as floats: terms such as ``x**3``, ``x + 3`` or a difference would wrap in integers."""
    x = tnp.asarray(x)
    return x if dtypes.is_float(x.dtype) else tnp.astype(x, dtypes.DEFAULT_FLOAT)
