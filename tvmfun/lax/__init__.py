"""Primitives with JAX's names: what NumPy has no word for."""

# ruff: noqa: F403

from __future__ import annotations

from tvmfun.boundary import publish as _publish
from tvmfun.lax import (
    control_flow,
    convolutions,
    elementwise,
    gather_scatter,
    linalg,
    parallel,
    products,
    reductions,
    segment,
    shapes,
    slicing,
    solvers,
    sorting,
    special,
    windows,
)
from tvmfun.lax.control_flow import *
from tvmfun.lax.convolutions import *
from tvmfun.lax.elementwise import *
from tvmfun.lax.gather_scatter import *
from tvmfun.lax.parallel import *
from tvmfun.lax.products import *
from tvmfun.lax.reductions import *
from tvmfun.lax.segment import *
from tvmfun.lax.shapes import *
from tvmfun.lax.slicing import *
from tvmfun.lax.solvers import *
from tvmfun.lax.sorting import *
from tvmfun.lax.special import *
from tvmfun.lax.windows import *
from tvmfun.names import missing as _missing
from tvmfun.numpy.products import Precision

__all__ = ["Precision", "linalg"]
__all__ += control_flow.__all__
__all__ += convolutions.__all__
__all__ += elementwise.__all__
__all__ += gather_scatter.__all__
__all__ += parallel.__all__
__all__ += products.__all__
__all__ += reductions.__all__
__all__ += segment.__all__
__all__ += shapes.__all__
__all__ += slicing.__all__
__all__ += solvers.__all__
__all__ += sorting.__all__
__all__ += special.__all__
__all__ += windows.__all__

__getattr__ = _missing(__name__)
_publish(globals())
