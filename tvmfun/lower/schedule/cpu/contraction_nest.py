"""The loop nest of a contraction, by its instruction and by where its operands are in memory."""

from __future__ import annotations

from tvm.tirx import Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.amx_loops import emit_amx
from tvmfun.lower.schedule.cpu.contraction import Contraction, plan
from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops
from tvmfun.lower.schedule.cpu.dot_instructions import AmxDot
from tvmfun.lower.schedule.cpu.far_operands import PackedRowsLoops, StreamedLoops
from tvmfun.lower.schedule.cpu.grouped_panels import GroupedLoops
from tvmfun.lower.tir.build import Env, Expr


def loops_of(
    contraction: Contraction, prefix: int, machine: Machine, tasks: int, later: Expr | None = None
) -> ContractionLoops:
    """The loops of a contraction without tiles of AMX, whose first ``prefix`` axes are bound elsewhere."""
    tiling = plan(contraction, machine)
    kind = ContractionLoops
    if tiling.streamed:
        kind = StreamedLoops
    elif tiling.packs_rows:
        kind = PackedRowsLoops
    elif tiling.grouped:
        kind = GroupedLoops
    return kind(contraction, tiling, prefix, tasks, machine, later)


def emit_contraction(
    contraction: Contraction, env: Env, prefix: int, machine: Machine, tasks: int, later: Expr | None = None
) -> Stmt:
    """The loop nest of a contraction whose first ``prefix`` axes are bound in ``env``.

    If ``later`` holds, its sums are added to those in the output.
    """
    if isinstance(contraction.dot, AmxDot):
        return emit_amx(contraction, env, prefix, machine, tasks)
    loops = loops_of(contraction, prefix, machine, tasks, later)
    nest = loops.emit(env)
    return nest if contraction.dot is None else contraction.dot.with_definition(nest, loops.tiling.lanes)
