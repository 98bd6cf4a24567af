"""The passes that split scheduled functions into host code and kernels, and the CUDA C++ of each kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.target import Target
from tvm.tirx import AllocBuffer, AttrStmt, Stmt

from tvmfun.errors import TargetError
from tvmfun.lower.codegen.cuda.constants import with_plain_constants
from tvmfun.lower.codegen.cuda.cubins import PLACEHOLDER, KernelSource
from tvmfun.lower.codegen.cuda.flat_buffers import with_flat_buffers
from tvmfun.lower.codegen.cuda.tensor_maps import tensor_maps, with_maps
from tvmfun.lower.tir.flatten import flatten_buffers
from tvmfun.lower.tir.truncated_quotients import truncate_quotients
from tvmfun.lower.tir.walk import called, find, rewrite, with_bodies

# The function that rounds to bfloat16.
_ROUND = "__float2bfloat16_rn"
# The line that declares it.
_BFLOAT16 = "#include <cuda_bf16.h>"
# The key of the attribute statements that replace loops over blocks and threads.
_EXTENT = "thread_extent"
# The line before the kernels in a source that TVM writes.
_FIRST_KERNEL = re.compile(r'^extern "C" ', re.MULTILINE)


def split(
    functions: Mapping[ir.GlobalVar, tirx.PrimFunc], target: Target, is_dynamic: bool = False
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Returns host functions that launch kernels with ``call_ffi_kernel``, and the kernels, both lowered.

    Args:
        functions: scheduled functions.
        target: a GPU, with a host.
        is_dynamic: whether they have dynamic sizes.

    Raises:
        TargetError: if a pass of TVM fails at dynamic sizes.
    """
    with target, tvm.transform.PassContext(opt_level=3):
        module = tirx.transform.BindTarget(target)(tvm.IRModule(dict(functions)))
        try:
            host, device = _parts(_splitting(is_dynamic)(module))
        except tvm.error.InternalError as error:
            if not is_dynamic:
                raise
            got = str(error).strip().splitlines()[0][:100]
            what = "a pass of TVM cannot lower these dynamic sizes for a GPU"
            raise TargetError("compile", what, got=got, hint="static sizes of all axes but the first") from error
        return host, finished(device)


@tvm.transform.module_pass(opt_level=0, name="tvmfun.AddressesOfBools")
def _addresses_of_bools(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Restores addresses of memory that ``FlattenBuffer``, which keeps bools as bytes, made those of a cast value."""
    return with_bodies(module, lambda body: rewrite(body, (ir.Call, _of_memory)))


def _of_memory(call: ir.Call) -> ir.Call:
    is_cast = called(call) == "tirx.address_of" and isinstance(call.args[0], tirx.Cast)
    return tirx.address_of(call.args[0].value) if is_cast else call


@tvm.transform.module_pass(opt_level=0, name="tvmfun.RoundToBfloat16")
def _round_to_bfloat16(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Rounds to bfloat16 by an instruction instead of arithmetic with bits, with equal results."""
    rounded = with_bodies(module, lambda body: rewrite(body, (ir.Call, _rounded)))
    return with_bodies(rounded, lambda body: rewrite(body, (tirx.Cast, _of_rounded)))


def _rounded(call: ir.Call) -> ir.Expr:
    """The rounding of x if a call is the one of :func:`~tvmfun.ops.formula.rounded_to_bfloat16`."""
    masked = call.args[0] if called(call) == "tirx.reinterpret" and str(call.ty) == "float32" else None
    if not isinstance(masked, tirx.BitwiseAnd) or not _is_constant(masked.b, 0xFFFF0000):
        return call
    bits = masked.a  # of a number, or of NaN and any other number
    if isinstance(bits, tirx.Select):
        bits = bits.false_value
    if not isinstance(bits, tirx.Add) or not isinstance(bits.a, tirx.Add) or not _is_constant(bits.a.b, 0x7FFF):
        return call
    exact = bits.a.a
    if called(exact) != "tirx.reinterpret" or str(exact.args[0].ty) != "float32":
        return call
    odd = [node for node in find(bits.b, ir.Call) if tvm_ffi.structural_equal(node, exact)]
    rounded = tirx.call_pure_extern("bfloat16", _ROUND, exact.args[0])
    return tirx.Cast("float32", rounded) if odd else call


def _is_constant(value: ir.Expr, number: int) -> bool:
    return isinstance(value, tirx.IntImm) and value.value % (1 << 32) == number


def _of_rounded(cast: tirx.Cast) -> ir.Expr:
    """A rounded number, which is exact, without conversions to float32 and back."""
    inner = cast.value
    is_exact = str(cast.ty) == "bfloat16" and isinstance(inner, tirx.Cast) and str(inner.value.ty) == "bfloat16"
    return inner.value if is_exact and str(inner.ty) == "float32" else cast


@tvm.transform.module_pass(opt_level=0, name="tvmfun.TruncateQuotients")
def _truncate_quotients(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Truncated quotients in kernels; hosts compute launches and sizes of memory by floor division."""

    def changed(function: tirx.PrimFunc) -> tirx.PrimFunc:
        def kernel(launch: AttrStmt) -> AttrStmt:
            if launch.attr_key != _EXTENT or getattr(launch.body, "attr_key", None) == _EXTENT:
                return launch
            body = truncate_quotients(launch.body, function.body)
            return AttrStmt(launch.node, launch.attr_key, launch.value, body)

        return function.with_body(rewrite(function.body, (AttrStmt, kernel)))

    return tvm.IRModule({name: changed(f) for name, f in module.functions.items()}, attrs=module.attrs)


def _parts(module: tvm.IRModule) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The host functions and the kernels of a module."""
    is_kernel = lambda function: "calling_conv" in function.attrs and int(function.attrs["calling_conv"]) == 2
    host = {name: function for name, function in module.functions.items() if not is_kernel(function)}
    device = {name: function for name, function in module.functions.items() if is_kernel(function)}
    return tvm.IRModule(host, attrs=module.attrs), tvm.IRModule(device, attrs=module.attrs)


def finished(kernels: tvm.IRModule) -> tvm.IRModule:
    """The kernels after the last passes, in which every constant can be written as CUDA C++."""
    passes = [
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
        tirx.transform.LowerWarpMemory(),
        tirx.transform.StmtSimplify(),
        tirx.transform.LowerIntrin(),
        with_plain_constants,
        _without_empty_memory,
    ]
    return tvm.transform.Sequential(passes)(kernels)


@tvm.transform.module_pass(opt_level=0, name="tvmfun.WithoutEmptyMemory")
def _without_empty_memory(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Removes allocations without elements, as in loops that never run: CUDA C++ does not allow them."""
    return with_bodies(module, lambda body: rewrite(body, (AllocBuffer, _filled)))


def _filled(allocation: AllocBuffer) -> Stmt:
    is_empty = any(isinstance(size, tirx.IntImm) and size.value == 0 for size in allocation.buffer.shape)
    return tirx.Evaluate(0) if is_empty else allocation


def sources(kernels: tvm.IRModule, target: Target) -> dict[str, KernelSource]:
    """Returns the CUDA C++ of each kernel, by the name that host functions use."""
    found = {}
    for name, function in kernels.functions.items():
        text = source_of({PLACEHOLDER: function}, target)
        start = _FIRST_KERNEL.search(text).start()
        body = text[start:]
        maps = tuple(tensor_maps(body).items())
        found[name.name_hint] = KernelSource(_title(name.name_hint), text[:start], with_maps(body), maps)
    return found


def source_of(kernels: Mapping[str, tirx.PrimFunc], target: Target) -> str:
    """Returns the CUDA C++ of lowered kernels under these names."""
    functions = {ir.GlobalVar(name): function.with_attr("global_symbol", name) for name, function in kernels.items()}
    with target:
        built = tvm.get_global_func("target.build.cuda")(tvm.IRModule(functions), target)
    source = with_small_headers(str(built.inspect_source("cuda")))
    # TVM includes the header where a type needs it, but a number may be rounded and used in float32.
    return source if _BFLOAT16 in source or _ROUND not in source else f"{_BFLOAT16}\n{source}"


def with_small_headers(source: str) -> str:
    """Replaces a header in TVM's source that takes NVRTC three seconds by the one name that is needed of it."""
    return _TYPE_TRAITS.sub(_IS_SAME, source)


_TYPE_TRAITS = re.compile(r"#include <cuda/std/type_traits>\s+namespace std \{.*?\n  \}\n", re.DOTALL)
_IS_SAME = """namespace std {
    template <class T, class U> constexpr bool is_same_v = false;
    template <class T> constexpr bool is_same_v<T, T> = true;
  }
"""


def _title(name: str) -> str:
    """The name of a kernel without numbers, which depend on the Program."""
    return re.sub(r"(_\d+)?_kernel(_\d+)?$", "", name)


def _splitting(is_dynamic: bool) -> tvm.transform.Pass:
    """The passes of ``tvm.s_tir.pipeline`` that kernels for GPUs need, in its order, up to the split.

    With dynamic sizes, hosts should compute nothing: common expressions are left to the compiler of CUDA.
    """
    return tvm.transform.Sequential(
        [
            *([with_flat_buffers] if is_dynamic else []),
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerCrossThreadReduction(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.LiftThreadBinding(),
            s_tir.transform.ManifestSharedMemoryLocalStage(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.LowerAutoCopy(),
            s_tir.transform.UnifyThreadBinding(),
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.StmtSimplify(),
            s_tir.transform.InjectPermutedLayout(),
            s_tir.transform.AnnotateIrregularLoop(),
            s_tir.transform.InjectSoftwarePipeline(),
            s_tir.transform.TransformMmaBufferLayout(),
            s_tir.transform.LowerOpaqueBlock(),
            flatten_buffers,
            _addresses_of_bools,
            tirx.transform.BF16ComputeLegalize(),
            _round_to_bfloat16,
            tirx.transform.NarrowDataType(32),
            s_tir.transform.LoopPartition(),
            tirx.transform.VectorizeLoop(True),
            s_tir.transform.InjectVirtualThread(),
            s_tir.transform.InjectDoubleBuffer(),
            tirx.transform.StorageRewrite(),
            s_tir.transform.HoistIfThenElse(),
            tirx.transform.UnrollLoop(),
            s_tir.transform.RenormalizeSplitPattern(),
            tirx.transform.StmtSimplify(),
            tirx.transform.RemoveNoOp(),
            s_tir.transform.RewriteUnsafeSelect(),
            *([] if is_dynamic else [tirx.transform.CommonSubexprElim()]),
            tirx.transform.FP8ComputeLegalize(),
            tirx.transform.AnnotateEntryFunc(),
            s_tir.transform.ThreadSync("shared"),
            s_tir.transform.ThreadSync("shared.dyn"),
            s_tir.transform.ThreadSync("warp"),
            s_tir.transform.InferFragment(),
            s_tir.transform.LowerThreadAllreduce(),
            s_tir.transform.MergeSharedMemoryAllocations(),
            *([_truncate_quotients] if is_dynamic else []),
            tirx.transform.SplitHostDevice(),
        ]
    )
