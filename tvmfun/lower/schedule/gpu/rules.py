"""GPU schedules: kernels with loops bound to blocks and threads.

The rules are tried in order, from the most specific to the most general: ours first, then those of TVM (`dlight`), and
a thread per point of what these refuse (`fallback`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.errors import PerformanceWarning, TargetError
from tvmfun.lower.schedule.gpu import attention, contraction, dlight, fallback, scan, sort, staged
from tvmfun.lower.tir.walk import called, find, rewrite

#: Each returns the kernel with its loops bound and the attribute ``tvmfun.rule``; None if it does not take the kernel.
Rule = Callable[[tirx.PrimFunc, Target], tirx.PrimFunc | None]
RULES: tuple[Rule, ...] = (
    attention.schedule,
    sort.schedule,
    scan.schedule,
    contraction.schedule,
    staged.schedule,
    dlight.schedule,
    fallback.schedule,
)


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Returns the kernel with its loops bound to blocks and threads.

    Raises:
        TargetError: if a thread would need memory of a dynamic size.
    """
    _check_private_memory(function)
    function = _with_constants(function)
    scheduled = next(filter(None, (_apply(rule, function, target) for rule in RULES)))
    return scheduled.with_attr("tirx.is_scheduled", True)


def _apply(rule: Rule, function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    try:
        return rule(function, target)
    except TargetError:
        raise
    except Exception as error:
        # The next rule is slower but takes more kernels.
        text = f"[schedule] {rule.__module__} failed, which may be slow: {type(error).__name__}: {error}"
        warnings.warn(text, PerformanceWarning, stacklevel=2)
        return None


def schedule_in_place(
    function: tirx.PrimFunc, target: Target, in_place: Sequence[tuple[tirx.Buffer, tirx.Buffer]]
) -> tirx.PrimFunc | None:
    """Returns the kernel with some outputs written over inputs instead of being parameters, or None.

    Args:
        function: the kernel.
        target: the target.
        in_place: inputs, and the outputs to write over them. Each element of such an input is read only where the
            same element of its output is computed.
    """
    function = _with_constants(function)
    product = contraction.schedule_in_place(function, target, in_place)
    scheduled = product or staged.schedule_in_place(function, target, in_place)
    return scheduled and scheduled.with_attr("tirx.is_scheduled", True)


def _with_constants(function: tirx.PrimFunc) -> tirx.PrimFunc:
    return function.with_body(rewrite(function.body, (tvm.ir.Call, _bits_of_constant)))


def _bits_of_constant(call: tvm.ir.Call) -> tvm.ir.Expr:
    """The bits of a constant as a constant: TVM's code would take its address, which it does not have."""
    value = call.args[0] if called(call) == "tirx.reinterpret" else None
    if not isinstance(value, tirx.FloatImm) or not str(call.ty).startswith(("int", "uint")):
        return call
    number = np.asarray(value.value, dtypes.canonical(str(value.ty)))
    return tirx.const(int(number.view(str(call.ty))), str(call.ty))


def _check_private_memory(function: tirx.PrimFunc) -> None:
    for buffer in (buffer for block in find(function.body, SBlock) for buffer in block.alloc_buffers):
        if buffer.scope() == "local" and not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
            raise TargetError(
                "compile",
                "a thread of a GPU cannot keep an array of dynamic size, as sorting along a dynamic axis does",
                got=str(list(buffer.shape)),
                hint="a static size of that axis",
            )
