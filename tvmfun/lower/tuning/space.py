"""The space of schedules that TVM's meta-schedule rules generate for a kernel: drawing, varying, and applying them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule import schedule_rule as rules
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tvmfun.lower.schedule.cpu.rules import RULE
from tvmfun.lower.tir import intrinsics

#: The rule name of tuned kernels.
NAME = "tuned"

# Parallel tasks per core: many, one, or (-1) no parallel loop, for small kernels.
_TASKS_PER_CORE = (16, 1, -1)
_LONGEST_VECTOR = 64
_UNROLLED = (0, 16, 64, 512)


def source(function: tirx.PrimFunc) -> str:
    """The unscheduled kernel as TVMScript."""
    return function.with_attr("global_symbol", "main").script(show_meta=True)


def applied(function: tirx.PrimFunc, schedule: str) -> tirx.PrimFunc:
    """The kernel with a schedule, in the form in which our rules return kernels.

    Args:
        function: the unscheduled kernel.
        schedule: the trace of the schedule as JSON.

    Raises:
        RuntimeError, ValueError, TypeError: if the trace does not fit the kernel; TVM raises various subclasses.
    """
    sch = Schedule(_module(function), error_render_level="none")
    Trace.apply_json_to_schedule(json.loads(schedule), sch)
    scheduled = _without_blocks(sch.mod)["main"]
    body = SBlockRealize([], True, SBlock([], [], [], "root", scheduled.body))
    return intrinsics.expand(scheduled.with_body(body).with_attr(RULE, NAME))


# Lowers blocks to loops, with compact buffers allocated where they are needed.
_without_blocks = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)


def _module(function: tirx.PrimFunc) -> tvm.IRModule:
    # A copy, because a schedule may change its function.
    return tvm.IRModule({"main": s_tir.renew_defs(function).with_attr("global_symbol", "main")})


class _Context(ms.TuneContext):
    """A context without the import of tensor intrinsics, which takes longer than most searches."""

    def __init__(self, module: tvm.IRModule, target: Target, generator: ms.SpaceGenerator) -> None:
        arguments = (module, target, generator, None, "main", 1, -1, None)
        self.__init_handle_by_constructor__(_ffi_api.TuneContext, *arguments)  # type: ignore[attr-defined]
        _ffi_api.TuneContextInitialize(self)  # type: ignore[attr-defined]


class Space:
    """All schedules of a kernel that the rules of meta-schedule generate.

    Args:
        function: the unscheduled kernel.
        target: a CPU.

    Raises:
        RuntimeError, ValueError: if TVM's rules cannot handle the kernel; it raises various subclasses.
    """

    def __init__(self, function: tirx.PrimFunc, target: Target) -> None:
        self._module = _module(function)
        self._families: list[Trace] = []
        for tasks in _TASKS_PER_CORE:
            generator = ms.space_generator.PostOrderApply(
                sch_rules=_rules(tasks),
                postprocs=ms.postproc.Postproc.create("llvm"),
                # TVM 0.27's mutators and search strategies serialize modules as JSON, which crashes; see `vary`.
                mutator_probs={},
            )
            # The post-processors refer to this object, so it has to outlive them.
            self._context = _Context(self._module, target, generator)
            self._families += [family.trace for family in self._context.generate_design_space()]
        self._finish: Sequence[ms.postproc.Postproc] = generator.postprocs

    def draw(self, random: Random) -> Trace | None:
        """A random schedule; None if the draw was invalid."""
        return self._completed(random.choice(self._families), {}, random)

    def vary(self, trace: Trace, random: Random) -> Trace | None:
        """A schedule with one or two sampling decisions redrawn; None if the new ones are invalid."""
        decisions = dict(trace.decisions.items())
        if not decisions:
            return None
        for _ in range(random.choice((1, 1, 2))):
            if decisions:
                del decisions[random.choice(list(decisions))]
        return self._completed(trace, decisions, random)

    def parsed(self, schedule: str) -> Trace:
        """The trace of a schedule given as JSON."""
        sch = Schedule(self._module, error_render_level="none")
        Trace.apply_json_to_schedule(json.loads(schedule), sch)
        return sch.trace

    def _completed(self, trace: Trace, decisions: dict, random: Random) -> Trace | None:
        """The trace with its open decisions drawn."""
        sch = Schedule(self._module, seed=random.randrange(1, 2**30), error_render_level="none")
        try:
            Trace(trace.insts, decisions).apply_to_schedule(sch, remove_postproc=True)
            sch.enter_postproc()
            return sch.trace if all(step.apply(sch) for step in self._finish) else None
        except (RuntimeError, ValueError, TypeError):  # for example tiles that do not fit the draw
            return None


def _rules(tasks_per_core: int) -> list:
    chosen = []
    for rule in rules.ScheduleRule.create("llvm"):
        if isinstance(rule, rules.ParallelizeVectorizeUnroll):
            rule = rules.ParallelizeVectorizeUnroll(
                max_jobs_per_core=tasks_per_core,
                max_vectorize_extent=_LONGEST_VECTOR,
                unroll_max_steps=list(_UNROLLED),
                unroll_explicit=True,
            )
        chosen.append(rule)
    return chosen


def as_json(trace: Trace) -> str:
    """The trace as JSON: a list of instructions, and a list of decisions."""
    return json.dumps(_plain(trace.as_json()), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | tirx.IntImm):
        return int(value)
    if isinstance(value, float | tirx.FloatImm):
        return float(value.value if isinstance(value, tirx.FloatImm) else value)
    return [_plain(item) for item in value]
