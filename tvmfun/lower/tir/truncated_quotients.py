"""Truncated division instead of floor division, if the form of the operands shows that they are not negative.

The two are equal then, and processors truncate. ``LowerIntrin`` truncates where TVM proves the same. With dynamic sizes
the proof takes seconds for one convolution, and fails for the numbers of tiles and blocks, so every quotient becomes a
choice between two.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import For, Stmt

from tvmfun.lower.tir.walk import find, rewrite

# TVM's node classes do not declare their operators in a way that type checkers understand.
Expr = Any


def truncate_quotients(kernel: Stmt, function: Stmt) -> Stmt:
    """Returns a kernel's statement with truncated quotients and remainders of numbers that are not negative.

    Args:
        kernel: the statement.
        function: the body of the function that it is in: variables that this does not bind are threads, blocks and
            sizes, which are not negative.
    """
    signs = _Signs(function)

    def quotient(kind: Any) -> Any:
        return lambda node: kind(node.a, node.b) if signs.truncates(node) else node

    return rewrite(kernel, (tirx.FloorDiv, quotient(tirx.Div)), (tirx.FloorMod, quotient(tirx.Mod)))


class _Signs:
    """Signs of integer expressions, where their form shows them."""

    def __init__(self, function: Stmt) -> None:
        self._unknown: set[ir.Var] = set()
        self._known: dict[Any, bool] = {}
        nodes = find(function, For, tirx.Bind, tirx.Let)
        bound = [(node.loop_var, node.min) if isinstance(node, For) else (node.var, node.value) for node in nodes]
        # Inner definitions come first, so definitions that depend on an outer one need another round.
        while new := [var for var, value in bound if var not in self._unknown and not self.is_nonnegative(value)]:
            self._unknown.update(new)
            self._known.clear()

    def truncates(self, quotient: tirx.FloorDiv | tirx.FloorMod) -> bool:
        """Whether both operands of a quotient are not negative; powers of two become shifts without a proof."""
        a, b = quotient.a, quotient.b
        is_shift = type(b) is tirx.IntImm and b.value > 0 and b.value & (b.value - 1) == 0
        return not is_shift and self.is_nonnegative(a) and self.is_nonnegative(b)

    def is_nonnegative(self, value: Expr) -> bool:
        """Whether an expression is an integer of at least 0."""
        if value not in self._known:
            self._known[value] = self._is_nonnegative(value)
        return self._known[value]

    def _is_nonnegative(self, value: Expr) -> bool:
        kind = type(value)
        if kind is tirx.IntImm:
            return value.value >= 0
        if not str(getattr(value, "ty", "")).startswith("int"):
            return False
        if kind is ir.Var:
            return value not in self._unknown
        if kind in (tirx.Add, tirx.Mul, tirx.Min, tirx.FloorDiv, tirx.Div, tirx.Mod):
            return self.is_nonnegative(value.a) and self.is_nonnegative(value.b)
        if kind is tirx.Max:
            return self.is_nonnegative(value.a) or self.is_nonnegative(value.b)
        if kind is tirx.FloorMod:
            return self.is_nonnegative(value.b)
        if kind is tirx.Sub:
            return self._covers(value.a, value.b)
        if kind is tirx.Select:
            return self.is_nonnegative(value.true_value) and self.is_nonnegative(value.false_value)
        return kind is tirx.Cast and self.is_nonnegative(value.value)

    def _covers(self, large: Expr, small: Expr) -> bool:
        """Whether ``small <= large``, both not negative: equal terms and factors, or quotients of covered ones."""
        if (large, small) not in self._known:
            self._known[large, small] = self._is_covering(large, small)
        return self._known[large, small]

    def _is_covering(self, large: Expr, small: Expr) -> bool:
        if not self.is_nonnegative(small) or not self.is_nonnegative(large):
            return False
        if tvm_ffi.structural_equal(large, small):
            return True
        kind = type(large)
        if kind is tirx.Add and (self._covers(large.a, small) or self._covers(large.b, small)):
            return True
        if kind is tirx.Mul and type(large.b) is tirx.IntImm and large.b.value > 0 and self._covers(large.a, small):
            return True
        kind = type(small)
        if kind in (tirx.FloorDiv, tirx.Div):
            return self._covers(large, small.a)
        if kind in (tirx.FloorMod, tirx.Mod):
            return self._covers(large, small.b) or (self.is_nonnegative(small.a) and self._covers(large, small.a))
        if kind is tirx.Min:
            return self._covers(large, small.a) or self._covers(large, small.b)
        is_multiple = kind is tirx.Mul and type(small.a) in (tirx.FloorDiv, tirx.Div)
        # A multiple of the divisor is at most the dividend.
        return is_multiple and tvm_ffi.structural_equal(small.a.b, small.b) and self._covers(large, small.a.a)
