"""TVM's dlight rules, for kernels that none of our schedules takes."""

from __future__ import annotations

import warnings
from importlib.metadata import version

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.target import Target

from tvmfun.errors import PerformanceWarning
from tvmfun.lower.tir.walk import find, rewrite

# From the most specific to the most general.
_RULES = {
    "contraction": dlight.gpu.Matmul,
    "reduction": dlight.gpu.Reduction,
    "normalization": dlight.gpu.GeneralReduction,
    "fallback": dlight.gpu.Fallback,
}
_REDUCTION_OF_THREADS = tvm.transform.Sequential(
    [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
)


def _release(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(name).split(".")[:3] if part.isdecimal())


# ``Schedule.tensorize`` of TVM 0.27 ends the process with newer versions of apache-tvm-ffi.
_TENSORIZE_CRASHES = _release("apache-tvm-ffi") >= (0, 1, 15)


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Returns the kernel as the first rule that supports it schedules it; None if there is no such rule.

    Warns:
        PerformanceWarning: if it is not a product of matrices.
    """
    if _TENSORIZE_CRASHES:
        function = function.with_attr("dlight.do_not_tensorize", True)
    for name, rule in _RULES.items():
        with target:
            try:
                space = rule().apply(function, target, False)
                if space is None:
                    continue
                scheduled = (space[0] if isinstance(space, list) else space).mod["main"]
                # Reductions across threads only work for combiners that TVM knows, unlike that of argmax.
                _REDUCTION_OF_THREADS(tvm.IRModule({"main": scheduled}))
            except (tvm.error.InternalError, tvm.s_tir.ScheduleError, AssertionError, ValueError, RuntimeError):
                continue  # the rule does not support this kernel; the next one is more general
        if "threadIdx" in scheduled.script():
            scheduled = scheduled.with_body(rewrite(scheduled.body, (tirx.For, _without_bool_vectors)))
            if name != "contraction":
                text = f"[schedule] a kernel for a GPU gets TVM's schedule {name!r}, which may be slow"
                warnings.warn(text, PerformanceWarning, stacklevel=2)
            return scheduled.with_attr("tvmfun.rule", name)
    return None


def _without_bool_vectors(loop: tirx.For) -> tirx.For:
    """Unrolls vectorized loops that read or write bools.

    TVM represents vectors of bools in CUDA as 16-bit numbers, and interprets their bits as floats.
    """
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    accesses = [node.source for node in find(loop.body, tvm.ir.TensorLoad)]
    accesses += [node.buffer for node in find(loop.body, tirx.BufferStore)]
    if not any(str(buffer.dtype) == "bool" for buffer in accesses):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body)
