"""Choices within vectors as masked loads, such as between an array and a slice that is written at a computed index.

TVM turns a vectorized loop with an ``if_then_else`` whose condition differs between lanes into a loop with a branch per
lane. Here both sides are computed for all lanes and selected. Their loads are masked by the condition, because they may
be out of bounds where it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, BufferStore, For, ForKind, Stmt

from tvmfun.lower.tir.build import Expr, bits, is_choice, loop_around, seq, step_of, substitute, uses, variables, zero
from tvmfun.lower.tir.walk import find, find_outermost, rewrite

# Divisions of integers, which must not be by zero.
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_MASK = "int32"
# With more masked loads per vector, branches take less time.
_MOST_LOADS = 4


def mask_loads(func: tirx.PrimFunc, has_masks: Callable[[int], bool]) -> tirx.PrimFunc:
    """Returns a scheduled function whose vectorized stores have no branches per lane, where masks can replace them.

    Args:
        func: the function.
        has_masks: tells whether the processor has masked loads of elements of so many bits.
    """
    if not any(map(is_choice, find(func.body, ir.Call))):
        return func
    its = _Function({loop.loop_var for loop in find(func.body, For)}, set(func.params), has_masks)
    return func.with_body(rewrite(func.body, (For, lambda loop: _masked(loop, its))))


class _Function(NamedTuple):
    """The variables of the loops of a function, its parameters, and the widths of elements that can be masked."""

    indices: set[ir.Var]
    parameters: set[ir.Var]
    has_masks: Callable[[int], bool]


def _masked(loop: For, its: _Function) -> Stmt:
    """A vectorized loop with masked loads before each of its stores; the loop itself if that is not possible."""
    stores = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    if loop.kind != ForKind.VECTORIZED or not all(isinstance(store, BufferStore) for store in stores):
        return loop
    parts = [_store(store, loop, its) for store in stores]
    if all(part is None for part in parts):
        return loop
    return seq(*(part or loop_around(loop, store) for part, store in zip(parts, stores, strict=True)))


def _store(store: BufferStore, loop: For, its: _Function) -> Stmt | None:
    """A store of vectors after its masked loads; None if no choice needs them, or if one has to stay."""
    conditions = [call.args[0] for call in find(store.value, ir.Call) if is_choice(call)]
    if not any(_is_computed(condition, loop.loop_var, its.indices) for condition in conditions):
        return None
    try:
        block = _Block(loop, its)
        value = block.selected(store.value, None)
    except _UnmaskableError:
        return None
    return seq(*block.statements, loop_around(loop, BufferStore(store.buffer, value, store.indices)))


def _is_computed(condition: Expr, lane: ir.Var, indices: Collection[ir.Var]) -> bool:
    """Whether a condition differs between the lanes of a vector, and not only where constants say so.

    A concatenation or a margin of constant size is cut there, or has vectors on one side only.
    """
    return uses(condition, lane) and not all(var in indices for var in variables(condition))


class _UnmaskableError(Exception):
    """Raised if a choice has to stay."""


class _Block:
    """The statements before a vectorized store that make choices without branches.

    Args:
        loop: the loop around the store.
        its: the function around them.
    """

    def __init__(self, loop: For, its: _Function) -> None:
        self.statements: list[Stmt] = []
        self._loop = loop
        self._its = its
        self._lanes = int(loop.extent)
        self._every_lane = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), self._lanes)
        self._loads = 0
        # By condition.
        self._masks: dict[Expr, Expr] = {}

    def selected(self, value: Expr, condition: Expr | None) -> Expr:
        """A value with selections instead of choices.

        Args:
            value: any expression.
            condition: where it may be computed; None for everywhere.

        Raises:
            _UnmaskableError: if it is not safe to compute it elsewhere.
        """
        nodes = find_outermost(value, lambda node: is_choice(node) or isinstance(node, ir.TensorLoad))
        selections = {choice: self._selection(choice, condition) for choice in nodes if is_choice(choice)}
        result = rewrite(value, (ir.Call, lambda call: selections.get(call, call)))
        if any(map(is_choice, find(result, ir.Call))):
            raise _UnmaskableError
        if condition is None:
            return result
        if any(not isinstance(division.b, tirx.IntImm) for division in find(result, *_DIVISIONS)):
            raise _UnmaskableError
        loads = {load: self._load(load, condition) for load in nodes if isinstance(load, ir.TensorLoad)}
        return rewrite(result, (ir.TensorLoad, lambda load: loads.get(load, load)))

    def _selection(self, choice: ir.Call, condition: Expr | None) -> Expr:
        test, yes, no = choice.args
        test = self.selected(test, condition)
        within = lambda part: part if condition is None else tirx.And(condition, part)
        return tirx.Select(test, self.selected(yes, within(test)), self.selected(no, within(tirx.Not(test))))

    def _load(self, load: ir.TensorLoad, condition: Expr) -> Expr:
        """A load that reads nothing where a condition does not hold, or something within the array."""
        lane, indices = self._loop.loop_var, list(load.indices)
        if not any(uses(index, lane) for index in indices):
            return load.source[tuple(map(_within, indices, load.source.shape))]
        dtype = str(load.ty)
        *rows, column = indices
        is_contiguous = step_of(column, lane) == 1 and not any(uses(row, lane) for row in rows)
        if not is_contiguous or not self._its.has_masks(max(8, bits(dtype))):
            raise _UnmaskableError
        # An intermediate of bfloat16 will be one of float32.
        if dtype == "bfloat16" and load.source not in self._its.parameters:
            raise _UnmaskableError
        # Vectors of bools and of half precision are moved as integers.
        kept = dtype if bits(dtype) >= 32 or "int" in dtype else f"uint{max(8, bits(dtype))}"
        self._loads += 1
        if self._loads > _MOST_LOADS:
            raise _UnmaskableError
        first = tirx.address_of(load.source[tuple(substitute(indices, {lane: self._loop.min}))])
        arguments = first, self._mask(condition), tirx.Broadcast(zero(kept), self._lanes)
        vector = tirx.call_llvm_intrin(f"{kept}x{self._lanes}", "llvm.masked.load", *arguments)
        element = self._kept(kept, lambda register: BufferStore(register, vector, [self._every_lane]))
        if kept == dtype:
            return element
        return element != zero(kept) if dtype == "bool" else tirx.reinterpret(dtype, element)

    def _mask(self, condition: Expr) -> Expr:
        """A condition for all lanes; TVM cannot keep a vector of bools."""
        if condition not in self._masks:
            numbers = tirx.Select(condition, tirx.const(1, _MASK), tirx.const(0, _MASK))
            of_lanes = lambda register: loop_around(self._loop, BufferStore(register, numbers, [self._lane]))
            element = self._kept(_MASK, of_lanes)
            vector = element.source[self._every_lane]
            self._masks[condition] = vector != tirx.Broadcast(zero(_MASK), self._lanes)
        return self._masks[condition]

    @property
    def _lane(self) -> Expr:
        return self._loop.loop_var - self._loop.min

    def _kept(self, dtype: str, store: Callable[[tirx.Buffer], Stmt]) -> ir.TensorLoad:
        """The element of a lane of a buffer, which becomes registers, after the statement that fills it."""
        register = tirx.decl_buffer((self._lanes,), dtype)
        self.statements += [AllocBuffer(register), store(register)]
        return register[self._lane]


def _within(index: Expr, size: Expr) -> Expr:
    """An index, moved so that it is inside."""
    if isinstance(index, tirx.IntImm):
        return index
    if not isinstance(size, tirx.IntImm):
        raise _UnmaskableError
    kind = str(index.ty)
    return tirx.max(tirx.min(index, tirx.const(int(size) - 1, kind)), tirx.const(0, kind))
