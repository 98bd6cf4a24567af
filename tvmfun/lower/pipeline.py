"""The pipeline: the passes that turn a Program into machine code, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import tvm
from tvm.target import Target

from tvmfun.core.cost import work
from tvmfun.core.program import Program
from tvmfun.lower import kernel_cache
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import compilers
from tvmfun.lower.codegen.cuda.launches import cuda_module
from tvmfun.lower.codegen.memory_plan import plan_memory
from tvmfun.lower.codegen.native import Emission, Kernels, NativeModule
from tvmfun.lower.codegen.relax_module import ModuleBuilder, OnFunction, ScheduledKernel, Step
from tvmfun.lower.compile_log import stage
from tvmfun.lower.fusion.column_sums import attach_column_sums
from tvmfun.lower.fusion.comparisons import round_compared
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.in_place import InPlace, plan_in_place
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.fusion.options import fusion_options
from tvmfun.lower.fusion.row_fusion import merge_rows
from tvmfun.lower.rewrite.aligned_columns import align_columns
from tvmfun.lower.rewrite.arg_extrema import rewrite_arg_extrema
from tvmfun.lower.rewrite.branch_updates import sink_updates
from tvmfun.lower.rewrite.dilated_convolutions import split_dilated_convolutions
from tvmfun.lower.rewrite.dropout_bits import share_dropout_bits
from tvmfun.lower.rewrite.early_conversions import convert_early
from tvmfun.lower.rewrite.early_gathers import gather_early
from tvmfun.lower.rewrite.grouped_terms import split_grouped_products
from tvmfun.lower.rewrite.half_attention import attention_in_half_precision
from tvmfun.lower.rewrite.largest_elements import top_k_by_sorting
from tvmfun.lower.rewrite.late_conversions import convert_late
from tvmfun.lower.rewrite.leading_batches import move_batch_axes_first
from tvmfun.lower.rewrite.loop_conversions import convert_outside_loops
from tvmfun.lower.rewrite.loop_invariants import hoist_invariants
from tvmfun.lower.rewrite.loop_panels import pack_loop_panels
from tvmfun.lower.rewrite.scatter_updates import fuse_scatter_updates
from tvmfun.lower.rewrite.slice_updates import update_slices
from tvmfun.lower.rewrite.split_products import split_products
from tvmfun.lower.rewrite.weak_conversions import drop_weak_conversions
from tvmfun.lower.schedule.control_ops.stopwatch import Stopwatch
from tvmfun.runtime.cuda_module import CudaModule
from tvmfun.runtime.plan import DynamicPlan, Plan
from tvmfun.runtime.workspaces import kept_by_threads

# Element operations that take less time than the call of a compiled function, also without LLVM's optimizations.
_LITTLE_WORK = 8192


def rewritten(program: Program, target: Target) -> Program:
    """Stage 1, Program to Program: computes the same values in another way."""
    program = drop_weak_conversions(program)
    program = fuse_scatter_updates(program)
    program = split_dilated_convolutions(program)
    if targets.is_cpu(target):
        program = rewrite_arg_extrema(program)
        program = split_grouped_products(program)
        program = sink_updates(program)
        program = split_products(program, target)
        program = hoist_invariants(program)
        program = move_batch_axes_first(program)
        program = pack_loop_panels(program, target)
    else:
        program = top_k_by_sorting(program)
        program = attention_in_half_precision(program)
        program = share_dropout_bits(program)
        program = convert_late(program)
        program = convert_early(program)
        program = convert_outside_loops(program)
        program = align_columns(program)
        program = gather_early(program)
    return update_slices(program, target)


def fused(program: Program, target: Target) -> list[Kernel]:
    """Stage 2, Program to kernels: groups equations into functions."""
    options = fusion_options(target)
    kernels = merge_rows(fuse(program, options), program.outputs, options.is_gpu)
    if options.has_epilogues:
        kernels = attach_column_sums(kernels, program.outputs)
    return round_compared(kernels)


def fused_kernels(program: Program, target: Target, donated: Collection[int] = ()) -> list[tuple[Kernel, InPlace]]:
    """Stages 1 to 3: the kernels in the order in which they run, and the results to write over inputs.

    Args:
        program: without calls.
        target: the target.
        donated: the positions of inputs that may be overwritten with results.
    """
    kernels = fused(rewritten(program, target), target)
    return list(zip(kernels, plan_in_place(kernels, program, target, donated), strict=True))


def scheduled_module(program: Program, target: Target, donated: Collection[int] = ()) -> tvm.IRModule:
    """Stages 1 to 4: a module of scheduled kernels and a ``main`` that calls them."""
    return _scheduled(program, target, donated)[0]


def scheduled_kernels(program: Program, target: Target, donated: Collection[int] = ()) -> list[ScheduledKernel]:
    """The scheduled kernels of the Program, each once; those inside of control flow are part of its kernels."""
    return _scheduled(program, target, donated)[1].kernels


def build(
    program: Program,
    target: Target,
    donated: Collection[int] = (),
    exported: bool = False,
    emission: Callable[[], Emission | None] = lambda: None,
) -> tuple[NativeModule, Plan | DynamicPlan]:
    """All stages, for a CPU; an exported module is for other processes.

    Kernels become machine code while others are still being scheduled, once it is known in which form (``emission``).
    """
    module, plan, _ = build_with_steps(program, target, donated, exported=exported, emission=emission)
    return module, plan


def build_with_steps(
    program: Program,
    target: Target,
    donated: Collection[int] = (),
    is_timed: bool = False,
    exported: bool = False,
    emission: Callable[[], Emission | None] = lambda: None,
    stopwatch: Stopwatch | None = None,
) -> tuple[NativeModule, Plan | DynamicPlan, list[Step]]:
    """Like :func:`build`, and also returns the kernel calls in order.

    With ``is_timed``, ``main`` reads a clock between its kernels, and ``stopwatch`` takes the times of those inside of
    control flow.
    """
    is_optimized = bool(program.sizes) or work(program) > _LITTLE_WORK
    # Threads compile the first kernels while others are still being scheduled.
    with Kernels(target, is_optimized, exported, emission) as kernels:
        module, builder = _scheduled(program, target, donated, kernels.add, stopwatch)
        with stage("lowering"):
            plan, steps = plan_memory(module["main"], list(program.sizes))
            native = NativeModule(kernels, steps, plan.slots, target, is_timed)
    if isinstance(plan, DynamicPlan):
        plan = replace(plan, allocations=native.allocations, threads=native.threads)
    else:
        workspaces = kept_by_threads(native.allocations, native.threads)
        plan = replace(plan, analysis=replace(plan.analysis, workspaces=workspaces))
    return native, plan, builder.steps


def build_for_cuda(program: Program, target: Target, donated: Collection[int] = ()) -> CudaModule:
    """All stages, for a GPU.

    Without a compiler of CUDA, the module has the launches but no machine code, and the reason.

    Raises:
        TargetError: if the target has no architecture, or the compiler does not know it.
    """
    why = compilers.why_none()
    compiler = None if why else compilers.find_compiler()
    missing = (why.got or why.what) if why else ""
    return cuda_module(scheduled_module(program, target, donated), target, compiler, missing, list(program.sizes))


def _scheduled(
    program: Program,
    target: Target,
    donated: Collection[int],
    on_function: OnFunction = lambda name, function, is_callee: None,
    stopwatch: Stopwatch | None = None,
) -> tuple[tvm.IRModule, ModuleBuilder]:
    with stage("fusion"):
        kernels = fused_kernels(program, target, donated)
    builder = ModuleBuilder(program, target, partial(kernel_cache.scheduled, stopwatch=stopwatch), on_function)
    with stage(f"schedules of {len(kernels)} kernels"):
        return builder.build(kernels), builder
