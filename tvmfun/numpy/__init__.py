"""NumPy for programs: the array API standard, and the functions of NumPy and ``jax.numpy``, which can be traced.

Dtypes promote as in JAX: Python numbers take the dtype of the array they meet and are int32 or float32 alone. Their
names can be called: ``float32(x)`` is an array of that dtype. There are no complex numbers, because TVM has none, and
so no ``fft``; ``real``, ``imag`` and ``conj`` are there for programs that ask any array.
"""

# ruff: noqa: F403

from __future__ import annotations

import math

import numpy as _numpy

from tvmfun.boundary import publish as _publish
from tvmfun.core.array import Array
from tvmfun.names import missing as _missing
from tvmfun.numpy import (
    bessel,
    bits,
    choosing,
    complex_parts,
    contractions,
    creation,
    cumulative,
    data_types,
    elementwise,
    grids,
    histograms,
    host,
    indexing,
    joining,
    linalg,
    linear_algebra,
    manipulation,
    mathematical,
    methods,
    names,
    nan_functions,
    order_statistics,
    padding,
    places,
    polynomials,
    promotion,
    ranges,
    repetition,
    scalar_types,
    searching,
    sets,
    signals,
    sorting,
    statistical,
    tapers,
    utility,
    vectorizing,
)
from tvmfun.numpy.bessel import *
from tvmfun.numpy.bits import *
from tvmfun.numpy.choosing import *
from tvmfun.numpy.complex_parts import *
from tvmfun.numpy.contractions import *
from tvmfun.numpy.creation import *
from tvmfun.numpy.cumulative import *
from tvmfun.numpy.data_types import *
from tvmfun.numpy.elementwise import *
from tvmfun.numpy.grids import *
from tvmfun.numpy.histograms import *
from tvmfun.numpy.host import *
from tvmfun.numpy.indexing import *
from tvmfun.numpy.info import __array_namespace_info__
from tvmfun.numpy.joining import *
from tvmfun.numpy.linear_algebra import *
from tvmfun.numpy.manipulation import *
from tvmfun.numpy.mathematical import *
from tvmfun.numpy.names import *
from tvmfun.numpy.nan_functions import *
from tvmfun.numpy.order_statistics import *
from tvmfun.numpy.padding import *
from tvmfun.numpy.places import *
from tvmfun.numpy.polynomials import *
from tvmfun.numpy.promotion import *
from tvmfun.numpy.ranges import *
from tvmfun.numpy.repetition import *
from tvmfun.numpy.scalar_types import *
from tvmfun.numpy.searching import *
from tvmfun.numpy.sets import *
from tvmfun.numpy.signals import *
from tvmfun.numpy.sorting import *
from tvmfun.numpy.statistical import *
from tvmfun.numpy.tapers import *
from tvmfun.numpy.utility import *
from tvmfun.numpy.vectorizing import *

__array_api_version__ = methods.API_VERSION

ndarray = Array
dtype = _numpy.dtype
pi = math.pi
e = math.e
inf = math.inf
nan = math.nan
euler_gamma = _numpy.euler_gamma
newaxis = None
# Classes of dtypes, for `issubdtype`.
character = _numpy.character
complexfloating = _numpy.complexfloating
flexible = _numpy.flexible
floating = _numpy.floating
generic = _numpy.generic
inexact = _numpy.inexact
integer = _numpy.integer
number = _numpy.number
object_ = _numpy.object_
signedinteger = _numpy.signedinteger
unsignedinteger = _numpy.unsignedinteger

__all__ = [
    "Array",
    "__array_api_version__",
    "__array_namespace_info__",
    "character",
    "complexfloating",
    "dtype",
    "e",
    "euler_gamma",
    "flexible",
    "floating",
    "generic",
    "inexact",
    "inf",
    "integer",
    "linalg",
    "nan",
    "ndarray",
    "newaxis",
    "number",
    "object_",
    "pi",
    "signedinteger",
    "unsignedinteger",
]
__all__ += bessel.__all__
__all__ += bits.__all__
__all__ += choosing.__all__
__all__ += complex_parts.__all__
__all__ += contractions.__all__
__all__ += creation.__all__
__all__ += cumulative.__all__
__all__ += data_types.__all__
__all__ += elementwise.__all__
__all__ += grids.__all__
__all__ += histograms.__all__
__all__ += host.__all__
__all__ += indexing.__all__
__all__ += joining.__all__
__all__ += linear_algebra.__all__
__all__ += manipulation.__all__
__all__ += mathematical.__all__
__all__ += names.__all__
__all__ += nan_functions.__all__
__all__ += order_statistics.__all__
__all__ += padding.__all__
__all__ += places.__all__
__all__ += polynomials.__all__
__all__ += promotion.__all__
__all__ += ranges.__all__
__all__ += repetition.__all__
__all__ += scalar_types.__all__
__all__ += searching.__all__
__all__ += sets.__all__
__all__ += signals.__all__
__all__ += sorting.__all__
__all__ += statistical.__all__
__all__ += tapers.__all__
__all__ += utility.__all__
__all__ += vectorizing.__all__

__getattr__ = _missing(__name__)
_publish(globals())
