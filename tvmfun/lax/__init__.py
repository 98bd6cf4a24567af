"""Primitives with JAX's names: what NumPy has no word for."""

from tvmfun.lax.control_flow import associative_scan as associative_scan
from tvmfun.lax.control_flow import cond as cond
from tvmfun.lax.control_flow import fori_loop as fori_loop
from tvmfun.lax.control_flow import map as map
from tvmfun.lax.control_flow import scan as scan
from tvmfun.lax.control_flow import switch as switch
from tvmfun.lax.control_flow import while_loop as while_loop
from tvmfun.lax.elements import bitcast_convert_type as bitcast_convert_type
from tvmfun.lax.elements import dot_general as dot_general
from tvmfun.lax.elements import erf as erf
from tvmfun.lax.elements import erf_inv as erf_inv
from tvmfun.lax.elements import logistic as logistic
from tvmfun.lax.elements import rsqrt as rsqrt
from tvmfun.lax.elements import stop_gradient as stop_gradient
from tvmfun.lax.windows import conv_general_dilated as conv_general_dilated
from tvmfun.lax.windows import max_window as max_window
from tvmfun.lax.windows import sum_window as sum_window
