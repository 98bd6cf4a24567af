"""NumPy for programs: the array API standard, and the functions of NumPy and ``jax.numpy``, which can be traced.

Dtypes promote as in JAX: Python numbers take the dtype of the array they meet and are int32 or float32 alone. Their
names can be called: ``float32(x)`` is an array of that dtype. There are no complex numbers, because TVM has none, and
so no ``fft``; ``real``, ``imag`` and ``conj`` are there for programs that call them on any array.
"""

# ruff: noqa: F403

from __future__ import annotations

import math

import numpy as _numpy

from tvmfun.boundary import publish as _publish
from tvmfun.core.array import Array
from tvmfun.names import missing as _missing
from tvmfun.numpy import (
    calculus,
    creation,
    diagonals,
    dtypes,
    elementwise,
    floats,
    functional,
    indexing,
    integers,
    io,
    linalg,
    methods,
    polynomials,
    products,
    promotion,
    ranges,
    reductions,
    resizing,
    scalar_types,
    selection,
    sets,
    shapes,
    signal,
    sorting,
    statistics,
)
from tvmfun.numpy.calculus import *
from tvmfun.numpy.creation import *
from tvmfun.numpy.diagonals import *
from tvmfun.numpy.dtypes import *
from tvmfun.numpy.dtypes import __array_namespace_info__
from tvmfun.numpy.elementwise import *
from tvmfun.numpy.floats import *
from tvmfun.numpy.functional import *
from tvmfun.numpy.indexing import *
from tvmfun.numpy.integers import *
from tvmfun.numpy.io import *
from tvmfun.numpy.polynomials import *
from tvmfun.numpy.products import *
from tvmfun.numpy.promotion import *
from tvmfun.numpy.ranges import *
from tvmfun.numpy.reductions import *
from tvmfun.numpy.resizing import *
from tvmfun.numpy.scalar_types import *
from tvmfun.numpy.selection import *
from tvmfun.numpy.sets import *
from tvmfun.numpy.shapes import *
from tvmfun.numpy.signal import *
from tvmfun.numpy.sorting import *
from tvmfun.numpy.statistics import *

__array_api_version__ = methods.API_VERSION

ndarray = Array
pi = math.pi
e = math.e
inf = math.inf
nan = math.nan
euler_gamma = _numpy.euler_gamma
newaxis = None

__all__ = [
    "Array",
    "__array_api_version__",
    "__array_namespace_info__",
    "e",
    "euler_gamma",
    "inf",
    "linalg",
    "nan",
    "ndarray",
    "newaxis",
    "pi",
]
__all__ += calculus.__all__
__all__ += creation.__all__
__all__ += diagonals.__all__
__all__ += dtypes.__all__
__all__ += elementwise.__all__
__all__ += floats.__all__
__all__ += functional.__all__
__all__ += indexing.__all__
__all__ += integers.__all__
__all__ += io.__all__
__all__ += polynomials.__all__
__all__ += products.__all__
__all__ += promotion.__all__
__all__ += ranges.__all__
__all__ += reductions.__all__
__all__ += resizing.__all__
__all__ += scalar_types.__all__
__all__ += selection.__all__
__all__ += sets.__all__
__all__ += shapes.__all__
__all__ += signal.__all__
__all__ += sorting.__all__
__all__ += statistics.__all__

__getattr__ = _missing(__name__)
_publish(globals())
