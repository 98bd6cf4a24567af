"""Protection of index quotients from a simplification of TVM that is wrong for descending numerators.

``FlattenBuffer`` simplifies indices as iterator maps (``IterMapSimplify``). TVM 0.27 does that wrongly where a loop
variable has a negative coefficient inside a floor division or remainder: ``(3 - i) // 2`` becomes ``i // -2 + 1``,
which is 0 instead of 1 at ``i = 1``. So flipping a padded or strided array reads wrong elements, or memory outside of
the array. It also divides by zero, and raises, where a variable occurs with opposite signs inside and outside of a
remainder, as in ``i - i % 5``. Reinterpreting the bits of an operand hides it from the simplifier, and costs no
instruction.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmfun.lower.tir.walk import called, find, rewrite

# TVM's node classes do not declare their operators in a way that type checkers understand.
Expr = Any

_REINTERPRET = "tirx.reinterpret"


def protect_quotients(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with those quotients protected that TVM would simplify wrongly.

    Args:
        body: a statement whose indices need no further simplification.
    """
    quotients = find(body, tirx.FloorDiv, tirx.FloorMod)
    if not quotients or not (any(map(_descends, quotients)) or _cancels_anywhere(body)):
        return body
    quotient = lambda kind: lambda node: kind(_hidden(node.a), node.b) if _descends(node) else node
    body = rewrite(body, (tirx.FloorDiv, quotient(tirx.FloorDiv)), (tirx.FloorMod, quotient(tirx.FloorMod)))
    index = lambda value: _hidden(value) if _cancels(value) else value
    return rewrite(
        body,
        (ir.TensorLoad, lambda load: load.source[tuple(map(index, load.indices))]),
        (tirx.BufferStore, lambda store: tirx.BufferStore(store.buffer, store.value, [*map(index, store.indices)])),
    )


def reveal_constants(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with plain numbers for protected operands that have become constant.

    Loops of one step are replaced by their bodies after the protection, and TVM's code generator for LLVM takes a
    reinterpreted 0 for a null pointer.
    """
    return rewrite(body, (ir.Call, _revealed))


def _revealed(call: ir.Call) -> Expr:
    inner = call.args[0] if called(call) == _REINTERPRET else None
    if called(inner) == _REINTERPRET and isinstance(inner.args[0], tirx.IntImm):
        return tirx.const(int(inner.args[0].value), str(call.ty))
    return call


def _descends(quotient: tirx.FloorDiv | tirx.FloorMod) -> bool:
    """Whether the numerator decreases with some variable."""
    return any(sign < 0 for _, sign in _terms(quotient.a))


def _cancels_anywhere(body: tirx.Stmt) -> bool:
    # Operands come before what uses them, so an access without a quotient before it has none in its indices.
    follows_quotient = False
    for node in find(body, tirx.FloorDiv, tirx.FloorMod, ir.TensorLoad, tirx.BufferStore):
        if type(node) in (tirx.FloorDiv, tirx.FloorMod):
            follows_quotient = True
        elif follows_quotient:
            if any(map(_cancels, node.indices)):
                return True
            follows_quotient = type(node) is not tirx.BufferStore
    return False


def _cancels(index: Expr) -> bool:
    """Whether an index has a quotient, and a variable that occurs with both signs."""
    if not isinstance(index, ir.Expr) or not find(index, tirx.FloorDiv, tirx.FloorMod):
        return False
    signs: dict[ir.Var, set[int]] = {}
    for term, sign in _terms(index):
        for var in find(term, ir.Var):
            signs.setdefault(var, set()).add(sign)
    return any(len(both) > 1 for both in signs.values())


def _terms(value: Expr, sign: int = 1) -> list[tuple[Expr, int]]:
    """The summands that are not constant, each with the sign of its coefficient."""
    kind = type(value)  # these classes have no subclasses, and ``isinstance`` takes longer than the rest
    if kind is tirx.IntImm:
        return []
    if kind is tirx.Add:
        return _terms(value.a, sign) + _terms(value.b, sign)
    if kind is tirx.Sub:
        return _terms(value.a, sign) + _terms(value.b, -sign)
    if kind is tirx.Mul:
        for factor, other in ((value.a, value.b), (value.b, value.a)):
            if type(factor) is tirx.IntImm:
                return _terms(other, sign if factor.value > 0 else -sign)
    if kind is tirx.Cast:
        return _terms(value.value, sign)
    return [(value, sign)]


def _hidden(value: Expr) -> Expr:
    """The same number, hidden from TVM's simplifier."""
    bits = str(value.ty).removeprefix("int")
    return tirx.reinterpret(f"int{bits}", tirx.reinterpret(f"uint{bits}", value))
