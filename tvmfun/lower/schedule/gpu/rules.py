"""GPU schedules: kernels with loops bound to blocks and threads.

The rules are tried in order, from the most specific to the most general: ours first, then those of TVM (`dlight`), and
a thread per point for kernels that these refuse (`fallback`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.errors import PerformanceWarning
from tvmfun.lower.schedule.gpu import attention, contraction, dlight, fallback, scan, sort, staged
from tvmfun.lower.schedule.gpu.point_memory import with_points_in_memory
from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import called, rewrite

#: Each returns the kernel with its loops bound and the attribute ``tvmfun.rule``; None if it does not take the kernel.
Rule = Callable[[tirx.PrimFunc, Target], tirx.PrimFunc | None]
RULES: tuple[Rule, ...] = (
    attention.schedule,
    sort.schedule,
    scan.schedule,
    contraction.schedule,
)
#: Rules for blocks of any body, which take the kernels that the rules above refuse.
RULES_OF_BLOCKS: tuple[Rule, ...] = (staged.schedule, dlight.schedule, fallback.schedule)
# The most private bytes of a thread; the hardware allows 512 KiB.
_PRIVATE_BYTES = 16 << 10


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Returns the kernel with its loops bound to blocks and threads."""
    function = _with_constants(function)
    scheduled = next(filter(None, (_apply(rule, function, target) for rule in RULES)), None)
    if scheduled is None:
        function = function.with_body(rewrite(function.body, (tirx.For, _by_one_thread)))
        function = with_points_in_memory(function, _PRIVATE_BYTES)
        scheduled = next(filter(None, (_apply(rule, function, target) for rule in RULES_OF_BLOCKS)))
    return scheduled.with_attr("tirx.is_scheduled", True)


def _apply(rule: Rule, function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    try:
        return rule(function, target)
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


def _by_one_thread(loop: tirx.For) -> tirx.For:
    """Replaces a vectorized or parallel loop inside a block by a serial one from 0 on.

    TVM's ``CanonicalizeLoop`` drops a step of a loop whose bounds depend on another loop if neither begins at 0.
    """
    kind = tirx.ForKind.SERIAL if loop.kind in (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED) else loop.kind
    var, body = loop.loop_var, loop.body
    if not (isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0):
        var = tvm.ir.Var(var.name, var.ty)
        body = build.substitute(body, {loop.loop_var: var + loop.min})
    return tirx.For(var, tirx.const(0, str(var.ty)), loop.extent, kind, body)


def _bits_of_constant(call: tvm.ir.Call) -> tvm.ir.Expr:
    """Folds the bits of a constant into a constant: TVM would take the address of the constant, which has none."""
    value = call.args[0] if called(call) == "tirx.reinterpret" else None
    if not isinstance(value, tirx.FloatImm) or not str(call.ty).startswith(("int", "uint")):
        return call
    number = np.asarray(value.value, dtypes.canonical(str(value.ty)))
    return tirx.const(int(number.view(str(call.ty))), str(call.ty))
