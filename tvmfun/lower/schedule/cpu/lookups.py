"""Indices of maps that are read from an array and are the same along a row, such as the indices of an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import tvm_ffi
from tvm import ir

from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr
from tvmfun.lower.tir.walk import find, rewrite


class Lookup(NamedTuple):
    """A variable, and the map and the index that it stands for."""

    var: ir.Var
    stage: Stage
    index: Expr


def with_lookups(stages: Sequence[Stage], inner: Sequence[Axis]) -> tuple[list[Stage], list[Lookup]]:
    """Returns the maps with variables for such indices, which have to be bound before each row.

    Otherwise each vector would read them again, because the store of the vector before might have changed them.

    Args:
        stages: maps over the same space.
        inner: the last axes of the first one, along which rows are.
    """
    lookups: list[Lookup] = []
    return [_with_variables(stage, stages, len(inner), lookups) for stage in stages], lookups


def _with_variables(stage: Stage, stages: Sequence[Stage], axes: int, lookups: list[Lookup]) -> Stage:
    """The map with variables, which are added to ``lookups``."""
    # Reads under a condition may be out of bounds without it.
    if any(map(build.is_choice, find(stage.value, ir.Call))):
        return stage
    along = [axis.var for axis in stage.space[-axes:]]
    own: list[Lookup] = []

    def is_of_row(index: Expr) -> bool:
        sources = [load.source for load in build.loads(index)]
        is_known = not any(source.same_as(other.output) for source in sources for other in stages)
        return bool(sources) and is_known and not any(build.uses(index, var) for var in along)

    def variable(index: Expr) -> Expr:
        if not is_of_row(index):
            return index
        for lookup in own:
            if tvm_ffi.structural_equal(lookup.index, index):
                return lookup.var
        own.append(Lookup(ir.Var("row", index.ty), stage, index))
        return own[-1].var

    look_up = lambda load: load.source[tuple(map(variable, load.indices[:]))]
    value = rewrite(stage.value, (ir.TensorLoad, look_up))
    lookups += own
    return replace(stage, value=value) if own else stage
