"""Machine code for CPUs: the passes that lower kernels, and LLVM modules in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from enum import Enum
from functools import cache, partial
from pathlib import Path
from threading import Semaphore
from typing import Any, NamedTuple

import tvm
from tvm import ir, s_tir, tirx
from tvm.support import cc
from tvm.target import Target

from tvmfun.core import dims
from tvmfun.executors import ThreadPool
from tvmfun.files import files_in_memory
from tvmfun.llvm_modules import empty_module, parsed
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.main_function import MainFunction, with_addresses
from tvmfun.lower.codegen.memory_plan import Call, Store, number
from tvmfun.lower.codegen.module_text import edited
from tvmfun.lower.codegen.optimizer import is_straight
from tvmfun.lower.codegen.similar_functions import Merged, merge
from tvmfun.lower.codegen.workspaces import Event, events, expanded, thread_count
from tvmfun.lower.interrupts import held_interrupts
from tvmfun.lower.tir.calling_convention import (
    NO_ALIAS,
    called_functions,
    has_sizes,
    is_packed,
    packed,
)
from tvmfun.lower.tir.flatten import flatten_buffers
from tvmfun.lower.tir.held_values import hold, is_float, release, through_memory, without_vector_conditions
from tvmfun.lower.tir.narrow_stores import protect_narrow_stores
from tvmfun.lower.tir.step_vectors import with_step_vectors
from tvmfun.lower.tir.walk import called, find, rewrite
from tvmfun.runtime.workspaces import Allocation
from tvmfun.threads import OWN_VARIABLES, WRITE_ADDRESSES, bind, cpu_count, loading

# Kernels per LLVM module.
_KERNELS_OF_A_PART = 20
# The most kernels that do not justify a separate module and thread if LLVM optimizes them.
_FEW_KERNELS = 4
# Most kernels have some dozen stores, but the body of a loop has the stores of all its kernels.
_FEW_STORES = 200

# LLVM's level of optimization, as targets call it.
_OPT_LEVEL = "opt-level"

_HOLDS_FORMULAS = "tvmfun.holds_formulas"
# Rules whose kernels are products with little index arithmetic per operation.
_PRODUCTS = ("contraction", "winograd")
# Rules whose kernels gain nothing by constants: a product's distances between rows are constants of its micro-kernel.
_MERGED = ("elementwise", "reduction")


class Emission(Enum):
    """The form of machine code: in this process's memory, or an object file."""

    MEMORY = "memory"
    OBJECT = "object"


class Kernels:
    """Collects kernels into LLVM modules; threads compile the first ones while others are still being scheduled.

    Args:
        target: a CPU.
        optimized: whether LLVM optimizes them. They compute the same, but LLVM may fuse other products and sums.
        exported: whether they are for other processes; otherwise they use this process's pool of threads.
        emission: returns the form of machine code that the threads generate, None while it is not known.
    """

    def __init__(
        self,
        target: Target,
        optimized: bool = True,
        exported: bool = False,
        emission: Callable[[], Emission | None] = lambda: None,
    ) -> None:
        self._target = target
        self._emission = emission
        self.optimized = optimized
        self.names = {} if exported else OWN_VARIABLES
        # Options for LLVM's command line are global.
        self._threads = 1 if target.attrs.get("cl-opt") else cpu_count()
        self._pool: ThreadPool | None = None
        # The scheduling thread has a processor for itself until it waits for the others.
        self._processors = Semaphore(max(1, self._threads - 1))
        self._parts: list[tuple[list[str], Future[_Part]]] = []
        # By whether LLVM optimizes them.
        self._waiting: dict[bool, dict[ir.GlobalVar, tirx.PrimFunc]] = {False: {}, True: {}}
        self.callers: dict[ir.GlobalVar, tirx.PrimFunc] = {}
        # Kernels that may be similar to later ones.
        self._straight: dict[ir.GlobalVar, tirx.PrimFunc] = {}
        #: The replacement of each function that was merged with similar ones.
        self.merged: dict[str, Merged] = {}

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *raised: object) -> None:
        """Waits for the threads, so that none runs on after an interrupt or an error."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def add(self, name: ir.GlobalVar, function: tirx.PrimFunc, is_callee: bool = False) -> None:
        """Adds a kernel; its callees, which only control flow calls, have to be added, too."""
        if function.attrs.get("tvmfun.rule") == "control" and called_functions(function.body):
            self.callers[name] = function
            return
        is_optimized = self.optimized and not is_straight(function)
        can_merge = self.optimized and not is_optimized and not is_callee
        if can_merge and str(function.attrs.get("tvmfun.rule")) in _MERGED:
            self._straight[name] = function
        else:
            self._wait(name, function, is_optimized)

    def _wait(self, name: ir.GlobalVar, function: tirx.PrimFunc, is_optimized: bool) -> None:
        waiting = self._waiting[is_optimized]
        waiting[name] = function
        if len(waiting) == _KERNELS_OF_A_PART:
            self._start(waiting, is_optimized)
            self._waiting[is_optimized] = {}

    def _start(self, part: dict[ir.GlobalVar, tirx.PrimFunc], is_optimized: bool) -> None:
        self._pool = self._pool or ThreadPool(self._threads)
        names = [name.name_hint for name in part]
        self._parts.append((names, self._pool.submit(self._compiled_in_turn, part, is_optimized)))

    def _compiled_in_turn(self, part: dict[ir.GlobalVar, tirx.PrimFunc], is_optimized: bool) -> _Part:
        with self._processors:
            return _compiled(self._target, part, is_optimized, self.names, self._emission)

    def merge(self) -> None:
        """Merges similar maps and reductions that ``main`` calls."""
        kept, self.merged = merge(self._straight)
        for name, function in kept.items():
            self._wait(name, function, is_optimized=False)
        self._straight = {}

    def called_by(self, step: Call) -> Call:
        """The step with the function that computes its kernel, which may be shared."""
        merged = self.merged.get(step.kernel)
        if merged is None:
            return step
        return step._replace(kernel=merged.name, arguments=[*step.arguments, *map(number, merged.numbers)])

    def only_module(self) -> tuple[dict[ir.GlobalVar, tirx.PrimFunc], bool] | None:
        """The kernels, and whether LLVM optimizes them, if they all fit one module and none calls others."""
        is_optimized = self.optimized and bool(self._waiting[True])
        together = {**self._waiting[False], **self._waiting[True]}
        fits = not self._parts and not self.callers and len(together) <= _few(is_optimized)
        return (together, is_optimized) if fits else None

    def finish(self) -> None:
        """Starts the rest."""
        straight, others = self._waiting[False], self._waiting[True]
        if len(straight) == 1 and others:
            # Optimizing one kernel takes as long as a separate module.
            self._waiting = {False: {}, True: {**others, **straight}}
        for is_optimized, waiting in self._waiting.items():
            items = list(waiting.items())
            count = min(self._threads, -(-len(items) // _few(is_optimized)))
            for i in range(count):
                self._start(dict(items[i::count]), is_optimized)

    @property
    def elsewhere(self) -> list[str]:
        """The names of all kernels that call no others, in the order of :meth:`parts`."""
        return [name for names, _ in self._parts for name in names]

    @property
    def form(self) -> Emission | None:
        """The form of machine code; None while it is not known."""
        return self._emission()

    def parts(self) -> list[_Part]:
        """Waits for the modules of all kernels that call no others."""
        if self._threads > 1:
            self._processors.release()
        return [part.result() for _, part in self._parts]


def _few(is_optimized: bool) -> int:
    """The most kernels that are not worth a module and a thread of their own."""
    # Without the optimizer, a module takes longer than the kernels in it.
    return _FEW_KERNELS if is_optimized else _KERNELS_OF_A_PART


class _Part(NamedTuple):
    """An LLVM module, the workspace events of its kernels, and the object file if it is generated."""

    module: Any
    allocated: dict[str, list[Event]]
    object_file: bytes | None


class NativeModule:
    """A ``main`` that takes a table of addresses, and its kernels, as LLVM modules.

    Args:
        kernels: all kernels.
        steps: the steps of ``main``.
        slots: the size of the table.
        target: a CPU.
        is_timed: whether ``main`` writes the time before the first kernel and after each, as a ``timespec`` of libc, to
            an address that follows the table.
    """

    def __init__(
        self, kernels: Kernels, steps: Sequence[Call | Store], slots: int, target: Target, is_timed: bool = False
    ) -> None:
        self._names_of_variables = kernels.names
        kernels.merge()
        #: The replacement of each function that was merged with similar ones.
        self.merged = kernels.merged
        steps = [kernels.called_by(step) if isinstance(step, Call) else step for step in steps]
        # A separate module takes LLVM some milliseconds.
        joined = kernels.only_module()
        if joined is None:
            kernels.finish()
        functions, self._optimized = joined or (kernels.callers, kernels.optimized)
        # Callers contain nothing but calls, so optimizing them does not pay. Those with a clock have small kernels.
        options = {_OPT_LEVEL: 0} if joined is None and not is_timed else {}
        self._target = Target({**target.export(), **options})
        # Not yet built: calls of other modules differ between a library and modules in memory.
        with held_interrupts():
            self._own, own = _lowered(target, functions, self._optimized) if functions else (None, {})
        local = [name.name_hint for name in functions]
        self._main = MainFunction(steps, kernels.elsewhere, local, slots if is_timed else None)
        # Meanwhile, threads compile the last kernels.
        self._main_in_form = self._generated(kernels.form)
        self._parts = parts = kernels.parts()
        calls: dict[str, list[Event]] = {"main": [(step.kernel, 1) for step in steps if isinstance(step, Call)]}
        allocated = [*(part.allocated for part in parts), own, calls]
        order = expanded({name: events for by_name in allocated for name, events in by_name.items()}, "main")
        #: The workspaces of kernels, in the order in which they are allocated and freed.
        self.allocations: tuple[Allocation, ...] = tuple(
            None if event is None else (dims.postfix(event[0]), event[1]) for event in order
        )
        #: The number of threads that kernels use.
        self.threads = thread_count(target)
        #: Whether :meth:`load` generates machine code: only for this machine.
        self.is_generated = _is_of_this_machine(target)

    def load(self) -> Any:
        """Returns the module with ``main``; machine code for this machine is generated at once, in threads."""
        main = self._main_in_form.pop(Emission.MEMORY, None) or self._module_of_main(in_memory=True)
        modules = [part.module for part in self._parts]
        for module in modules:
            main.import_module(module)
        if self.is_generated:
            with loading():
                _in_threads(_generate, [main, *modules], ["main", *[WRITE_ADDRESSES] * len(modules)])
                bind(main)
        return main

    def export(self, path: str) -> None:
        """Writes a shared library for TVM's runtime."""
        with self.object_files() as files:
            cc.create_shared(path, files)

    @contextmanager
    def object_files(self) -> Iterator[list[str]]:
        """Yields the paths of object files, with machine code that is generated in threads."""
        contents = [part.object_file for part in self._parts if part.object_file is not None]
        modules = [part.module for part in self._parts if part.object_file is None]
        main = self._main_in_form.get(Emission.OBJECT)
        if main is None:
            modules.append(self._module_of_main(in_memory=False))
        else:
            contents.append(main)
        with files_in_memory(len(contents) + len(modules), ".o") as files:
            for content, file in zip(contents, files, strict=False):
                Path(file).write_bytes(content)
            _in_threads(_write_object, modules, files[len(contents) :])
            yield files

    def _module_of_main(self, in_memory: bool) -> Any:
        """The LLVM module of ``main`` and the kernels that are not in parts."""
        with_main = partial(self._main.added_to, in_memory=in_memory)
        with held_interrupts():  # a file would stay open
            if self._own is None:
                return parsed(with_main(_empty_module(str(self._target))))
            return _built(self._target, self._own, self._optimized, self._names_of_variables, with_main)

    def _generated(self, form: Emission | None) -> dict[Emission, Any]:
        """The machine code of ``main`` if its form is known: a module, or the bytes of an object file."""
        if form is None:
            return {}
        module = self._module_of_main(in_memory=form is Emission.MEMORY)
        return {form: _emitted(module, form, "main", self._target) or module}


def _in_threads(function: Callable, *arguments: Sequence) -> list:
    """Maps like ``map``, with one thread per item."""
    if len(arguments[0]) < 2:
        return list(map(function, *arguments))
    with ThreadPool(len(arguments[0])) as pool:
        return list(pool.map(function, *arguments))


def compiled(target: Target, functions: dict) -> Any:
    """Returns an LLVM module of scheduled functions."""
    return _built(target, _lowered(target, functions)[0])


def _is_of_this_machine(target: Target) -> bool:
    return "mtriple" not in target.attrs


def _generate(module: Any, name: str) -> None:
    """Generates the machine code of a module that has a function of this name."""
    module.get_function(name)


def _write_object(module: Any, path: str) -> None:
    module.write_to_file(path, "o")


def _emitted(module: Any, form: Emission | None, name: str, target: Target) -> bytes | None:
    """Generates the machine code of a module that has a function of this name; returns the object file if it is one."""
    if form is Emission.MEMORY and _is_of_this_machine(target):
        with loading():
            _generate(module, name)
    elif form is Emission.OBJECT:
        with files_in_memory(1, ".o") as (path,):
            _write_object(module, path)
            return Path(path).read_bytes()
    return None


def _compiled(
    target: Target,
    functions: dict,
    optimized: bool,
    names: Mapping[str, str],
    emission: Callable[[], Emission | None],
) -> _Part:
    """The LLVM module of functions, with its machine code if the form is known."""
    names_of_functions = [name.name_hint for name in functions]
    lowered, allocated = _lowered(target, functions, optimized)
    module = _built(target, lowered, optimized, names, partial(with_addresses, names=names_of_functions))
    return _Part(module, allocated, _emitted(module, emission(), WRITE_ADDRESSES, target))


def _lowered(target: Target, functions: dict, optimized: bool = True) -> tuple[tvm.IRModule, dict[str, list[Event]]]:
    """The lowered functions, and the workspace events of each."""
    target = llvm_options(target)
    if not optimized:
        # Each one would become two functions for LLVM, which helps only its optimizer.
        functions = {name: function.with_attr(NO_ALIAS, False) for name, function in functions.items()}
    with target, tvm.transform.PassContext(opt_level=3):
        loops = _LOOPS(tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(functions)))
        module = _LOWERING[optimized](loops)
    # Workspaces of dynamic sizes are expressions, which later passes rewrite.
    dynamic = {name: function for name, function in functions.items() if has_sizes(function)}
    static = {name: function for name, function in functions.items() if name not in dynamic}
    return module, {**events(module, static, target), **events(loops, dynamic, target)}


def _built(
    target: Target,
    module: tvm.IRModule,
    optimized: bool = True,
    names: Mapping[str, str] | None = None,
    edit: Callable[[str], str] | None = None,
) -> Any:
    """The LLVM module of lowered functions, with new names of variables and an edited text."""
    # A level that the user has chosen stays.
    if optimized or _OPT_LEVEL in target.attrs:
        built = _optimized_module(llvm_options(target), module)
        if built is not None:
            return edited(built, names=names, edit=edit)
    built = _llvm_module(Target({**llvm_options(target).export(), _OPT_LEVEL: 0}), module)
    return edited(built, opt_level=2, names=names, edit=edit)


def _optimized_module(target: Target, module: tvm.IRModule) -> Any:
    """The LLVM module of lowered functions after LLVM's optimizer; None if what that made is invalid.

    Where a buffer on the stack is written as several vectors and read as one, LLVM 22 can join the vectors before the
    instructions that compute them: SROA, which every level above 0 has.
    """
    try:
        return _llvm_module(target, module)
    except tvm.error.InternalError as error:
        if "LLVM module verification failed" not in str(error):
            raise
        return None


@cache
def _empty_module(target: str) -> str:
    return empty_module(llvm_options(Target(target)))


def _llvm_module(target: Target, module: tvm.IRModule) -> Any:
    with target:
        return tvm.get_global_func("target.build.llvm")(module, target)


# Features that make LLVM use shorter vectors than the processor has. With them LLVM 22 never finishes some kernels: its
# X86 backend rewrites the sum of a mask's lanes, a count of true elements split over two registers, back and forth.
# Intel's processors with AVX-512 have the first feature by default.
_SHORT_VECTORS = ("prefer-256-bit", "prefer-128-bit")


def llvm_options(target: Target) -> Target:
    """Returns the CPU target with the options for LLVM.

    >>> options = llvm_options(Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4"}))
    >>> list(map(str, options.attrs["mattr"]))
    ['-prefer-256-bit', '-prefer-128-bit']
    """
    options: dict[str, Any] = dict(target.export())
    # LLVM's highest level takes a third longer without faster code, because loops are already scheduled.
    options.setdefault(_OPT_LEVEL, 2)
    if targets.is_x86(target):
        features = [name for name in map(str, options.get("mattr", ())) if name[1:] not in _SHORT_VECTORS]
        options["mattr"] = [*features, *(f"-{name}" for name in _SHORT_VECTORS)]
    return Target(options)


def _of_functions(name: str, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tvm.transform.Pass:
    """The pass that changes every function."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def changed(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        return tvm.IRModule({key: change(function) for key, function in module.functions.items()}, attrs=module.attrs)

    return changed


def _of_bodies(name: str, change: Callable[[tirx.Stmt], tirx.Stmt], mark: str | None = None) -> tvm.transform.Pass:
    """The pass that changes the body of every function, and marks the functions whose body became another one."""

    def changed(function: tirx.PrimFunc) -> tirx.PrimFunc:
        body = change(function.body)
        if body.same_as(function.body):
            return function
        return (function.with_attr(mark, True) if mark else function).with_body(body)

    return _of_functions(name, changed)


def _undoing(name: str, change: Callable[[tirx.Stmt], tirx.Stmt], mark: str) -> tvm.transform.Pass:
    """The pass that changes the bodies of functions with the mark, and removes it."""

    def changed(function: tirx.PrimFunc) -> tirx.PrimFunc:
        if mark not in function.attrs:
            return function
        return function.without_attr(mark).with_body(change(function.body))

    return _of_functions(name, changed)


def _without_bits_of_zero(body: tirx.Stmt) -> tirx.Stmt:
    """Replaces the bits of the integer 0 by an integer."""

    def folded(call: ir.Call) -> Any:
        is_zero = (
            called(call) == "tirx.reinterpret" and isinstance(call.args[0], tirx.IntImm) and not call.args[0].value
        )
        return tirx.const(0, str(call.ty)) if is_zero and "int" in str(call.ty) else call

    return rewrite(body, (ir.Call, folded))


def _with_repeated_bits(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Repeats the bits of bfloat16 numbers along vectors, because TVM cannot store a repeated bfloat16."""

    def bits(repeated: tirx.Broadcast) -> Any:
        if str(repeated.value.ty) != "bfloat16":
            return repeated
        return tirx.reinterpret(repeated.ty, tirx.Broadcast(tirx.reinterpret("uint16", repeated.value), repeated.lanes))

    if all(str(param.dtype) != "bfloat16" for param in function.params if tirx.is_buffer_var(param)):
        return function
    return function.with_body(rewrite(function.body, (tirx.Broadcast, bits)))


def _sharing(optimized: bool) -> tvm.transform.Pass:
    """The pass that computes common subexpressions once: LLVM takes longer to find them in large inlined formulas.

    TVM's pass takes quadratic time, so it skips functions of many stores, such as long loop bodies. Products without
    formulas only have index arithmetic in common. LLVM's optimizer shares that as well, and takes longer if it is
    already shared: bound sums become ``or`` if their bits do not overlap, and then proofs that an index does not wrap
    take long.
    """

    def gains(function: tirx.PrimFunc) -> bool:
        """Whether sharing subexpressions takes less time than it saves."""
        if len(find(function.body, tirx.BufferStore)) > _FEW_STORES:
            return False
        is_product = str(function.attrs.get("tvmfun.rule")) in _PRODUCTS
        return not (optimized and is_product) or any(map(is_float, find(function.body, tirx.Bind)))

    @tvm.transform.module_pass(opt_level=0, name="tvmfun.ShareFormulas")
    def share(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        some = {name: function for name, function in module.functions.items() if gains(function)}
        shared = tirx.transform.CommonSubexprElim()(tvm.IRModule(some, attrs=module.attrs)).functions if some else {}
        return tvm.IRModule({**module.functions, **shared}, attrs=module.attrs)

    return share


#: The pass that replaces the bits of the integer 0, which TVM's code generator takes for those of a null pointer.
FOLD_ZERO = _of_bodies("tvmfun.FoldZero", _without_bits_of_zero)
_HOLD = _of_bodies("tvmfun.Hold", hold, _HOLDS_FORMULAS)
_RELEASE = _undoing("tvmfun.Release", release, _HOLDS_FORMULAS)

# The passes of ``tvm.s_tir.pipeline`` that scheduled kernels for CPUs need, in its order. Two passes must not run: with
# dynamic sizes, ``CompactBufferAllocation`` computes bounds of buffers that exceed int32; ``StorageRewrite`` merges
# accumulators with buffers in memory, so that they would not become registers. Other passes are left out because they
# are for GPUs, do not change our kernels, or repeat LLVM's work.
_LOOPS = tvm.transform.Sequential(
    [
        _HOLD,
        # Blocks become loops around buffers that are declared where they are needed.
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerMatchBuffer(),
        # Before vectorization, which leftover conditions of splits would prevent.
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)
_SHARE = {optimized: _sharing(optimized) for optimized in (False, True)}
_LOWERING = {
    optimized: tvm.transform.Sequential(
        [
            # LLVM stores past arrays of narrow elements.
            _of_bodies("tvmfun.ProtectNarrowStores", protect_narrow_stores),
            flatten_buffers,
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.NarrowDataType(32),
            tirx.transform.VectorizeLoop(True),
            _of_functions("tvmfun.RepeatBits", _with_repeated_bits),
            tirx.transform.UnrollLoop(),
            s_tir.transform.RenormalizeSplitPattern(),
            tirx.transform.StmtSimplify(),
            _RELEASE,
            # A select evaluates both sides; unsafe ones become branches.
            s_tir.transform.RewriteUnsafeSelect(),
            share,
            _of_bodies("tvmfun.UnbindConditions", without_vector_conditions),
            # The calling convention of kernels.
            _of_functions("tvmfun.MakePacked", lambda function: function if is_packed(function) else packed(function)),
            tirx.transform.MakePackedAPI(),
            tirx.transform.BF16StorageLegalize(),
            tirx.transform.LowerTVMBuiltin(),
            # Each condition of a select is simplified, with variables replaced by their values.
            _HOLD,
            tirx.transform.LowerIntrin(),
            _RELEASE,
            _of_bodies("tvmfun.ThroughMemory", through_memory),
            FOLD_ZERO,
            _of_bodies("tvmfun.StepVectors", with_step_vectors),
        ]
    )
    for optimized, share in _SHARE.items()
}
