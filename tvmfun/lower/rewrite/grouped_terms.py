"""Sums over groups of terms, for weights that are dequantized group by group.

Scales of 32 to 128 neighbouring terms multiply an array with an axis of groups, which is then reshaped to a matrix. If
the other factor has the groups as an axis instead, no reshape separates the weights from their product, which computes
them while it reads or packs them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.program import Atom, Equation, Program
from tvmfun.lower.fusion.products import has_one_row, may_pack, narrow_results
from tvmfun.lower.rewrite.equations import composed, producers_of, with_inner
from tvmfun.ops.dot import dot_general
from tvmfun.ops.shape import reshape


def split_grouped_products(program: Program) -> Program:
    """Moves products before a reshape of their terms in a Program, also in its loops and branches.

    Args:
        program: without calls, for a CPU.
    """
    producers, narrow = producers_of(program), cache(lambda: narrow_results(program.equations))
    equations: list[Equation] = []
    for equation in program.equations:
        before = producers.get(equation.inputs[1]) if equation.op is dot_general else None
        split = None
        if before is not None and before.op is reshape and before.inputs[0] in narrow():
            split = _split(equation, before.inputs[0])
        equations += split or [with_inner(equation, split_grouped_products)]
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations)).without_dead_code()


def _split(equation: Equation, weights: Atom) -> list[Equation] | None:
    """The product with the weights before their reshape; None if the reshape does more than join terms."""
    left, right = equation.inputs
    contract = equation.params["contract"]
    if equation.inputs.count(right) != 1 or dims.is_dynamic((left.aval.shape, right.aval.shape, weights.aval.shape)):
        return None
    joined = _joined_axes(weights.aval.shape, right.aval.shape)
    if joined is None or any(len(axes) > 1 for axis, axes in enumerate(joined) if axis not in contract[1]):
        return None
    # The axes of the left factor; the axes of terms are split like those of the weights.
    parts = dict(zip(contract[0], (joined[axis] for axis in contract[1]), strict=True))
    sizes, positions = [], []
    for axis, size in enumerate(left.aval.shape):
        own = [weights.aval.shape[part] for part in parts[axis]] if axis in parts else [size]
        positions.append(tuple(range(len(sizes), len(sizes) + len(own))))
        sizes += own
    of_left = lambda axes: tuple(position for axis in axes for position in positions[axis])
    of_right = lambda axes: tuple(part for axis in axes for part in joined[axis])
    params = {name: (of_left(own[0]), of_right(own[1])) for name, own in equation.params.items()}

    def product(left: Array, weights: Array) -> Array:
        return dot_general(reshape(left, shape=tuple(sizes)), weights, **params)

    equations = composed(equation._replace(inputs=(left, weights)), product)
    *_, last = equations
    return equations if has_one_row(last, weights) or may_pack(last, weights) else None


def _joined_axes(before: tuple[int, ...], after: tuple[int, ...]) -> list[list[int]] | None:
    """The neighbouring axes that a reshape joins to each axis; None if it does something else."""
    joined: list[list[int]] = []
    axis = 0
    for size in after:
        own, product = [], 1
        while axis < len(before) and (product < size or (not own and before[axis] == size)):
            product *= before[axis]
            own.append(axis)
            axis += 1
        if product != size or not own:
            return None
        joined.append(own)
    return joined if axis == len(before) else None
