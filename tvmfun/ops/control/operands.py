"""The operands of loops by their roles, and loops around functions of trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmfun import tree
from tvmfun.core.array import ShapeDtype
from tvmfun.core.leaf import abstract
from tvmfun.core.op import REGISTRY
from tvmfun.core.program import Program
from tvmfun.ops.control.closed_programs import closed


class LoopOperands(NamedTuple):
    """The operands of a loop, or one value for each of them (a flag, a tangent), by their roles.

    Args:
        count: the number of steps, if it is an operand; otherwise empty.
        consts: loop-invariant values.
        carry: the values that the first step gets, and that every step returns for the next.
        xs: arrays; each step gets one row.
    """

    count: Any
    consts: Any
    carry: Any
    xs: Any

    @classmethod
    def split(cls, values: Sequence[Any], *, counted: bool, consts: int, carry: int) -> LoopOperands:
        """The operands of the op ``loop`` with these parameters."""
        count, rest = tuple(values[:counted]), tuple(values[counted:])
        return cls(count, rest[:consts], rest[consts : consts + carry], rest[consts + carry :])

    @property
    def of_body(self) -> list:
        """The values of the inputs of the body, in their order."""
        return [*self.consts, *self.carry, *self.xs]

    @property
    def of_condition(self) -> list:
        """The values of the inputs of the condition, in their order."""
        return [*self.consts, *self.carry]

    def run(self, body: Program, cond: Program | None, length: Any, reverse: bool) -> tuple:
        """Applies the op ``loop`` to the operands."""
        return REGISTRY["loop"](
            *self.count,
            *self.of_body,
            body=body,
            cond=cond,
            length=length,
            reverse=reverse,
            counted=bool(self.count),
            consts=len(self.consts),
            carry=len(self.carry),
        )


class LoopResults(NamedTuple):
    """The results of a loop around a function of trees: the last carry, the stacked rows, and the number of steps.

    ``steps`` is empty unless the loop has both a condition and a bound.
    """

    carry: Any
    ys: Any
    steps: tuple


def run_loop(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    operands: LoopOperands,
    name: str,
    *,
    length: Any,
    reverse: bool = False,
    condition: Callable[[Any, Any], Any] | None = None,
    condition_name: str = "cond",
) -> LoopResults:
    """Traces a step and runs a loop around it.

    Args:
        step: ``(consts, carry, row of xs) -> (next carry, row of ys)``, all of them trees of arrays.
        operands: the operands, with a tree of arrays for each role but ``count``. None is a tree without arrays.
        name: the name of the body's Program.
        length: the largest number of steps, or None.
        reverse: whether to go from the last row to the first.
        condition: ``(consts, carry) -> bool``: whether there is another step.
        condition_name: the name of the condition's Program.
    """
    (consts, consts_tree), (carry, carry_tree), (xs, xs_tree) = map(tree.flatten, operands[1:])
    of_condition = len(consts) + len(carry)
    split = lambda leaves: (
        tree.unflatten(consts_tree, leaves[: len(consts)]),
        tree.unflatten(carry_tree, leaves[len(consts) : of_condition]),
    )
    ys_tree: list = []

    def flat_step(*leaves: Any) -> list:
        next_carry, ys = step(*split(leaves), tree.unflatten(xs_tree, leaves[of_condition:]))
        rows, structure = tree.flatten(ys)
        ys_tree[:] = [structure]
        return [*tree.leaves(next_carry), *rows]

    types = [abstract(x) for x in (*consts, *carry)]
    body, captured = closed(flat_step, [*types, *map(_row, xs)], name)
    test = None
    if condition is not None:
        flat_condition = lambda *leaves: condition(*split(leaves[len(captured) :]))
        test, more = closed(flat_condition, [*map(abstract, captured), *types], condition_name)
        assert not more
    flat = LoopOperands(operands.count, [*captured, *consts], carry, xs)
    results = flat.run(body, test, length, reverse)
    end = len(body.outputs)
    return LoopResults(
        tree.unflatten(carry_tree, results[: len(carry)]),
        tree.unflatten(ys_tree[0], results[len(carry) : end]),
        tuple(results[end:]),
    )


def _row(x: Any) -> ShapeDtype:
    """The type of one row of a stacked array."""
    aval = abstract(x)
    return ShapeDtype(aval.shape[1:], aval.dtype)


def fixpoint(flags: Sequence[bool], grow: Callable[[list[bool]], Sequence[bool]]) -> list[bool]:
    """The smallest set of carries that contains ``flags`` and all carries that ``grow`` derives from it."""
    current = list(flags)
    while True:
        following = [a or b for a, b in zip(current, grow(current), strict=True)]
        if following == current:
            return current
        current = following
