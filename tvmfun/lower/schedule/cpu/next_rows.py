"""Rows that are fetched before they are used: in loops over rows, the next one's inputs and this one's results.

A softmax reads a row, computes in L1, and writes a row; each step waits for the one before. Memory would idle while
exponentials are computed, and the prefetcher, which restarts at each page, does not see the next row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tvm import ir
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.groups import Group
from tvmfun.lower.schedule.stages import AnyStage, Stage, contains, is_map, written_by
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr

# The fewest bytes of a row: if rows are shorter, the hardware prefetcher reaches the next one in time.
_FEWEST_BYTES = 1 << 10
# The most bytes of a row, as a share of L2.
_MOST = 1 / 2
# Both limits for rows that are read from the last to the first.
_DESCENDING = 1 << 8, 1 / 8


@dataclass(frozen=True)
class Fetch:
    """The elements that a map fetches beside each vector that it computes.

    Args:
        row: the axis of the rows.
        inputs: loads whose elements in a later row are fetched to be read.
        results: loads whose elements in a later row are fetched to be written.
        ahead: the distance to the later row, in rows.
    """

    row: Axis
    inputs: tuple[ir.TensorLoad, ...]
    results: tuple[ir.TensorLoad, ...]
    ahead: int = 1

    def at(self, env: Env) -> Stmt:
        """The statements for the vector that begins at ``env``."""
        following = {**env, self.row.var: env[self.row.var] + self.ahead}
        reads = (build.prefetch(build.substitute(load, following)) for load in self.inputs)
        writes = (build.prefetch(build.substitute(load, env), to_write=True) for load in self.results)
        return build.seq(*reads, *writes)


def fetches(group: Group, private: Sequence[Buffer], machine: Machine) -> list[Fetch | None]:
    """The elements that each stage of a group fetches, if it is a map along rows of arrays that L2 does not hold.

    Args:
        group: stages that run one after another for each row.
        private: intermediates, which are kept for one row only.
        machine: the processor.
    """
    stages, prefix = group.stages, group.prefix
    found: list[Fetch | None] = []
    near = written_by(stages)  # written by the group, or fetched by an earlier stage
    for number, stage in enumerate(stages):
        if prefix == 0 or not _is_along_rows(stage, prefix):
            found.append(None)
            continue
        is_far = partial(_is_far, stage=stage, row=stage.space[prefix - 1], machine=machine)
        inputs = [load for load in build.loads(stage.value) if not contains(near, load.source) and is_far(load)]
        near += [load.source for load in inputs]
        later = (_result(other, stage, prefix) for other in stages[number + 1 :] if not contains(private, other.output))
        results = [load for load in later if load is not None and is_far(load)]
        found.append(Fetch(stage.space[prefix - 1], tuple(inputs), tuple(results)) if inputs else None)
    return found


def fetch_descending(stage: AnyStage, machine: Machine) -> Fetch | None:
    """The rows to fetch for a map that reads an array from its end to its start, as a flip does.

    None if L2 holds the array. The prefetcher follows ascending addresses, and would restart at each of these rows.
    """
    if not isinstance(stage, Stage) or stage.combine is not None or len(stage.space) < 2:
        return None
    found = [(load, row) for load in build.loads(stage.value) if (row := _descending_row(load, stage, machine))]
    if not found:
        return None
    row, nbytes = found[0][1]
    inputs = tuple(load for load, (axis, _) in found if axis is row)
    return Fetch(row, inputs, (), max(1, _FEWEST_BYTES // nbytes))


def _descending_row(load: ir.TensorLoad, stage: Stage, machine: Machine) -> tuple[Axis, int] | None:
    """The axis from row to row of an array that is read from its end to its start, and the bytes between two rows."""
    source, limit = load.source, machine.cache_bytes(2)
    is_plain = all(isinstance(index, ir.Var) for index in load.indices)
    if is_plain or not build.is_larger(source, limit) or any(build.loads(index) for index in load.indices):
        return None
    steps = [build.stride(source, load.indices, axis, stage.space) for axis in stage.space]
    descending = [number for number, step in enumerate(steps) if isinstance(step, int) and step < 0]
    if steps[-1] not in (1, -1) or not descending:
        return None
    number = min(descending[-1], len(steps) - 2)
    step = steps[number]
    nbytes = abs(step) * build.bits(str(source.dtype)) // 8 if isinstance(step, int) else 0
    least, most = _DESCENDING
    return (stage.space[number], nbytes) if least <= nbytes <= most * limit else None


def _is_far(load: ir.TensorLoad, stage: Stage, row: Axis, machine: Machine) -> bool:
    """Whether an element is one of a long row of an array that L2 does not hold, and there is a next row."""
    source, last, limit = load.source, stage.space[-1], machine.cache_bytes(2)
    if not isinstance(last.extent, int) or not build.is_larger(source, limit):
        return False
    if not _FEWEST_BYTES <= last.extent * build.bits(str(source.dtype)) // 8 <= _MOST * limit:
        return False
    return build.is_along_row(load, row, last, stage.space)


def _is_along_rows(stage: Stage, prefix: int) -> bool:
    """Whether a stage is a map with one axis within the common loops."""
    return is_map(stage) and len(stage.space) == prefix + 1


def _result(other: Stage, stage: Stage, prefix: int) -> Expr | None:
    """The element of a later map's result where ``stage`` computes its own; None if it is none along the same rows."""
    if not _is_along_rows(other, prefix) or other.space[-1].extent != stage.space[-1].extent or not other.keep:
        return None
    here = {axis.var: own.var for axis, own in zip(other.space, stage.space, strict=True)}
    return other.output[tuple(other.at(here))]
