"""Pointwise ops: one element of the result from the elements at the same index of the arguments.

Arguments have one dtype and shapes that broadcast. Derivative rules are written as if shapes were equal; the
registration sums cotangents over the axes along which an argument was repeated.
"""

# ruff: noqa: F403

from tvmfun.ops.pointwise.arithmetic import *
from tvmfun.ops.pointwise.bitwise import *
from tvmfun.ops.pointwise.broadcasting import *
from tvmfun.ops.pointwise.comparison import *
from tvmfun.ops.pointwise.conversion import *
from tvmfun.ops.pointwise.elementary import *
from tvmfun.ops.pointwise.registration import *
from tvmfun.ops.pointwise.rounding import *
from tvmfun.ops.pointwise.special import *
