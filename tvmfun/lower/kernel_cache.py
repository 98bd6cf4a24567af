"""Scheduled kernels by their text: layers of a network share them, and Programs, too."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvmfun.lower import target as targets
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule import schedule, schedule_in_place
from tvmfun.lower.schedule.control_ops import function as control
from tvmfun.lower.schedule.control_ops.statements import OnCallee
from tvmfun.lower.schedule.control_ops.stopwatch import Stopwatch
from tvmfun.lower.tuning import database

_KERNELS: OrderedDict[tuple[Any, ...], tirx.PrimFunc | None] = OrderedDict()
_KERNELS_KEPT = 4096


def scheduled(
    kernel: Kernel,
    target: Target,
    in_place: InPlace = (),
    is_inside: bool = False,
    on_callee: OnCallee | None = None,
    stopwatch: Stopwatch | None = None,
) -> tirx.PrimFunc | None:
    """Returns the scheduled kernel; None if it cannot write the results ``in_place``.

    Args:
        kernel: the kernel.
        target: the target.
        in_place: the results to write over inputs.
        is_inside: whether it runs inside of control flow, on parts of arrays. Then no tuned schedule is used.
        on_callee: called with functions that control flow calls as soon as they are known, unless the kernel is cached.
            None if it may not call other functions.
        stopwatch: takes the times of kernels inside of control flow.
    """
    if kernel.is_control and stopwatch is not None:
        return control.prim_func(kernel, _scheduled_inside, target, in_place, on_callee, stopwatch)
    # The order in which a tuned schedule writes is unknown, so kernels that share memory or loops cannot use it.
    record = database.find(kernel.text, target) if not (is_inside or in_place) else None
    is_cpu = targets.is_cpu(target)
    settings = Machine.of(target).settings if is_cpu else None
    is_inside = is_inside and not is_cpu  # schedules for CPUs are the same
    key = (kernel.text, str(target), settings, in_place, record, is_inside, kernel.is_control and on_callee is not None)
    if key not in _KERNELS:
        _KERNELS[key] = _new(kernel, target, in_place, record, is_inside, on_callee)
        if len(_KERNELS) > _KERNELS_KEPT:
            _KERNELS.popitem(last=False)
    return _KERNELS[key]


def _new(
    kernel: Kernel,
    target: Target,
    in_place: InPlace,
    record: database.Record | None,
    is_inside: bool,
    on_callee: OnCallee | None,
) -> tirx.PrimFunc | None:
    if kernel.is_control:
        return control.prim_func(kernel, _scheduled_inside, target, in_place, on_callee)
    function = kernel.prim_func()
    if is_inside:
        function = function.with_attr("tvmfun.inside", True)
    if in_place:
        first = len(kernel.inputs) + len(kernel.sizes)
        return schedule_in_place(function, target, [(pair.input, first + pair.output) for pair in in_place])
    tuned = database.tuned(record, function) if record else None
    return tuned or schedule(function, target)


def _scheduled_inside(kernel: Kernel, target: Target, in_place: InPlace) -> tirx.PrimFunc | None:
    return scheduled(kernel, target, in_place, is_inside=True)


def clear_cache() -> None:
    """Forgets the scheduled kernels."""
    _KERNELS.clear()
