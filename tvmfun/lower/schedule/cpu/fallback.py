"""The last rule: parallel outer loops where TVM can prove that they are independent."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError

NAME = "main"


def parallelize(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Returns the function with the outermost loop of each block parallel where that is legal."""
    try:
        schedule = Schedule(ir.IRModule({NAME: func}))
        blocks = schedule.get_child_blocks(schedule.get_sblock("root", NAME))
    except (ScheduleError, RuntimeError, ValueError, TypeError):
        return func
    for block in blocks:
        try:
            loops = schedule.get_loops(block)
            if len(loops) > 0:
                schedule.parallel(loops[0])
        except ScheduleError:
            continue
    return schedule.mod[NAME].with_attrs(dict(func.attrs)) if func.attrs else schedule.mod[NAME]
