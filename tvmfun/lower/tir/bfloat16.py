"""Arithmetic on bfloat16 in float32, rounded only where a result may have more digits than bfloat16 has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from tvmfun import dtypes
from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.walk import called, find, rewrite


def uses_bfloat16(body: Stmt) -> bool:
    """Whether a statement loads numbers of bfloat16, has such constants or converts to them."""
    return any(str(node.ty).startswith("bfloat16") for node in find(body, tirx.Cast, ir.TensorLoad, tirx.FloatImm))


def with_float32_arithmetic(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Returns the function with float32 arithmetic instead of bfloat16, and intermediates in float32.

    Numbers that it stores as bfloat16 are rounded, unless they were only moved, chosen or negated.
    """
    wide = tirx.transform.BF16ComputeLegalize()(tvm.IRModule({"main": func}))["main"]
    pairs = zip(*([node.buffer for node in find(f.body, AllocBuffer)] for f in (func, wide)), strict=True)
    widened = {old: new for old, new in pairs if not old.same_as(new)}
    # In values of bound variables TVM leaves the old ones.
    widened |= {new: new for new in widened.values()}

    def bits(call: ir.Call) -> Expr:
        """Bits of an intermediate or of a formula of numbers, rounded to bfloat16 first."""
        value = call.args[0] if called(call) == "tirx.reinterpret" else None
        if value is None or not str(call.ty).startswith("uint16"):
            return call
        if isinstance(value, ir.TensorLoad) and value.source in widened:
            value = widened[value.source][tuple(value.indices)]
        elif not str(value.ty).startswith("float32"):
            return call
        lanes = str(call.ty).removeprefix("uint16")  # such as "x16"; empty for a single number
        exact = tirx.reinterpret(f"uint32{lanes}", value)
        rounded = exact + _u(0x7FFF) + (exact >> _u(16) & _u(1))
        return tirx.Cast(f"uint16{lanes}", rounded >> _u(16))

    body = rewrite(wide.body, (ir.Call, bits))
    return wide.with_body(_without_rounding(body, set(widened.values())))


def _u(value: int) -> tirx.IntImm:
    return tirx.const(value, "uint32")


def _without_rounding(body: Stmt, widened: set[Buffer]) -> Stmt:
    """Removes the rounding of numbers that bfloat16 represents."""
    stores = [store for store in find(body, BufferStore) if store.buffer in widened]
    exact = set(widened)
    while inexact := {store.buffer for store in stores if not _is_exact(store.value, exact)} & exact:
        exact -= inexact

    def shorten(cast: tirx.Cast) -> Expr:
        bits = _rounded(cast)
        if bits is None or not _is_exact(bits.args[0], exact):
            return cast
        half = _half(bits.args[0])
        return tirx.Cast("uint16", bits >> _u(16)) if half is None else half

    return rewrite(body, (tirx.Cast, shorten))


def _rounded(cast: tirx.Cast) -> ir.Call | None:
    """The bits of the float32 that a conversion to 16 bits rounds to bfloat16; None if it is another conversion."""
    shifted = cast.value
    if str(cast.ty) != "uint16" or not isinstance(shifted, tirx.RShift) or not isinstance(shifted.a, tirx.Add):
        return None
    bits = shifted.a.a
    is_of_float = called(bits) == "tirx.reinterpret" and str(bits.args[0].ty) == "float32"
    return bits if is_of_float and str(bits.ty) == "uint32" else None


def _is_exact(value: Expr, buffers: set[Buffer]) -> bool:
    """Whether bfloat16 represents a float32 exactly, as it does for the elements of some buffers."""
    if isinstance(value, tirx.FloatImm):
        number = np.float32(value.value)
        return bool(number == dtypes.bfloat16.type(number)) or bool(np.isnan(number))
    if isinstance(value, ir.TensorLoad):
        return value.source in buffers
    if isinstance(value, tirx.Select):
        parts = [value.true_value, value.false_value]
    elif isinstance(value, tirx.Max | tirx.Min):
        parts = [value.a, value.b]
    elif called(value) == "tirx.if_then_else":
        parts = value.args[1:]
    elif (signed := _with_other_sign(value)) is not None:
        parts = [signed[0]]
    else:
        return _widened(value) is not None
    return all(_is_exact(part, buffers) for part in parts)


def _half(value: Expr) -> Expr | None:
    """The bits of the bfloat16 that a float32 equals up to its sign; None if it equals none."""
    signed = _with_other_sign(value)
    if signed is None:
        return _widened(value)
    half = _half(signed[0])
    return None if half is None else signed[1](half)


def _with_other_sign(value: Expr) -> tuple[Expr, Callable[[Expr], Expr]] | None:
    """The operand of an absolute or negative value, and the change of a bfloat16's bits; None if it is neither."""
    if called(value) == "tirx.fabs":
        return value.args[0], lambda half: half & tirx.const(0x7FFF, "uint16")
    # TVM writes a negative value as a product.
    if isinstance(value, tirx.Mul) and isinstance(value.b, tirx.FloatImm) and value.b.value == -1:
        return value.a, lambda half: half ^ tirx.const(0x8000, "uint16")
    return None


def _widened(value: Expr) -> Expr | None:
    """The bits of the bfloat16 that a float32 was converted from."""
    bits = value.args[0] if called(value) == "tirx.reinterpret" and str(value.ty) == "float32" else None
    if not isinstance(bits, tirx.LShift) or not isinstance(bits.a, tirx.Cast) or not isinstance(bits.b, tirx.IntImm):
        return None
    half = bits.a.value
    return half if str(half.ty) == "uint16" and bits.b.value == 16 else None
