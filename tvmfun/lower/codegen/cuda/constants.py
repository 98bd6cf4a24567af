"""Constants whose bits are interpreted as another type, in a form that is valid in CUDA C++."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, tirx

from tvmfun import dtypes
from tvmfun.lower.tir.walk import called, rewrite

# TVM writes ``*(float*)(&(5))``, and a constant has no address. These functions of CUDA keep the bits of a NaN.
_INTERPRETED = {"float64": "__longlong_as_double", "float32": "__uint_as_float", "float16": "__ushort_as_half"}


@tvm.transform.module_pass(opt_level=0, name="tvmfun.PlainConstants")
def with_plain_constants(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Replaces reinterpreted constants, which simplification may have substituted for variables."""
    functions = {name: f.with_body(rewrite(f.body, (ir.Call, _plain))) for name, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _plain(call: ir.Call) -> ir.Expr:
    if called(call) != "tirx.reinterpret":
        return call
    value, dtype = call.args[0], str(call.ty)
    if isinstance(value, tirx.Broadcast):
        lanes = int(value.lanes)
        one = _plain(tirx.reinterpret(dtype.rsplit("x", 1)[0], value.value))
        return tirx.Broadcast(one, lanes)
    if not isinstance(value, tirx.IntImm | tirx.FloatImm):
        return call
    bits = _bits(value)
    if dtype in _INTERPRETED:
        width = dtype[len("float") :]
        return tirx.call_pure_extern(dtype, _INTERPRETED[dtype], tirx.const(bits, f"uint{width}"))
    if dtype.startswith(("int", "uint")):
        return tirx.const(int(np.asarray(bits, f"uint{dtypes.canonical(dtype).itemsize * 8}").view(dtype)), dtype)
    return call


def _bits(value: ir.Expr) -> int:
    """The bits of a number as an unsigned integer."""
    dtype = dtypes.canonical(str(value.ty))
    number = np.asarray(int(value) if isinstance(value, tirx.IntImm) else float(value))
    return int(number.astype(dtype).view(f"uint{dtype.itemsize * 8}"))
