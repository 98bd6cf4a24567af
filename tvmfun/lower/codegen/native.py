"""Machine code for kernels on the CPU: the passes that lower them, their calling convention, and LLVM in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import tvm
from tvm import ir, s_tir, tirx
from tvm.support import cc
from tvm.target import Target

from tvmfun.lower import target as targets
from tvmfun.lower.codegen.memory_plan import Call, Store
from tvmfun.lower.codegen.workspaces import Event, events, expanded, workspaces
from tvmfun.lower.tir.build import buffer, seq
from tvmfun.lower.tir.calling_convention import Stack, called_functions, forwarded, forwarding, is_packed, packed
from tvmfun.lower.tir.narrow_stores import protect_narrow_stores
from tvmfun.lower.tir.quotients import protect_quotients
from tvmfun.lower.tir.walk import find
from tvmfun.threads import cpu_count, pooled

# So many kernels become one LLVM module, and fewer than the second number are not worth one, and a thread.
_KERNELS_OF_A_PART, _FEW_KERNELS = 12, 4
# With no more steps than this, ``main`` is compiled together with its kernels if these are one part.
_FEW_STEPS = 32

# Most kernels have some dozen stores; the body of a loop has those of all the kernels in it.
_FEW_STORES = 200

# The dtype of addresses in the table, and its size.
_ADDRESS, _ADDRESS_BYTES = "uint64", 8


class Kernels:
    """Kernels on their way to LLVM modules: threads compile the first ones while others are still being scheduled.

    Args:
        target: a CPU.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        # Options for LLVM's command line are global.
        self._threads = 1 if target.attrs.get("cl-opt") else cpu_count()
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[tuple[str, Future]] = []
        self.waiting: dict[ir.GlobalVar, tirx.PrimFunc] = {}
        self.callers: dict[ir.GlobalVar, tirx.PrimFunc] = {}

    def add(self, name: ir.GlobalVar, function: tirx.PrimFunc) -> None:
        """One more kernel; those that it calls are added, too."""
        if function.attrs.get("tvmfun.rule") == "control" and called_functions(function.body):
            self.callers[name] = function
            return
        self.waiting[name] = function
        if len(self.waiting) == _KERNELS_OF_A_PART:
            self._start(self.waiting)
            self.waiting = {}

    def _start(self, part: dict[ir.GlobalVar, tirx.PrimFunc]) -> None:
        self._pool = self._pool or ThreadPoolExecutor(self._threads)
        self._parts.append((next(iter(part)).name_hint, self._pool.submit(_compiled, self._target, part)))

    @property
    def is_small(self) -> bool:
        """Whether all are few enough for one module."""
        return not self._parts and not self.callers and len(self.waiting) <= _FEW_KERNELS

    def finish(self) -> list[_Part]:
        """The modules of all kernels that call no others."""
        if not self._parts and not self.waiting:
            return []
        items = list(self.waiting.items())
        count = min(self._threads, -(-len(items) // _FEW_KERNELS))
        for i in range(count):
            self._start(dict(items[i::count]))
        with self._pool:  # type: ignore[union-attr]  # it has been started
            return [_Part(name, *part.result()) for name, part in self._parts]


class _Part(NamedTuple):
    """An LLVM module, the name of a function in it, and what its functions allocate while they run."""

    name: str
    module: Any
    allocated: dict[str, list[Event]]


class NativeModule:
    """A ``main`` that takes a table of addresses, and its kernels, as LLVM modules.

    Args:
        kernels: all of them.
        steps: what ``main`` does.
        places: the size of the table.
        target: a CPU.
    """

    def __init__(self, kernels: Kernels, steps: Sequence[Call | Store], places: int, target: Target) -> None:
        self._target = target
        # A module of its own takes LLVM some milliseconds.
        is_joined = kernels.is_small and len(steps) <= _FEW_STEPS
        parts = [] if is_joined else kernels.finish()
        self._parts = [part.module for part in parts]
        callers = {ir.GlobalVar("main"): _main(steps, places)} | (kernels.waiting if is_joined else kernels.callers)
        # It waits until it is known how the functions of other modules will be found.
        self._callers, found = _lowered(target, callers)
        self._names = [*(part.name for part in parts), "main"]
        # They only call: optimizing them would take longer than it ever saves.
        options = {} if is_joined else {"opt-level": 0}
        self._target_of_callers = Target({**target.export(), **options})
        allocated = [*(part.allocated for part in parts), found]
        order = expanded({name: events for found in allocated for name, events in found.items()}, "main")
        #: The bytes that kernels take while they run, in all threads.
        self.workspaces = workspaces(order, target)

    def load(self) -> Any:
        """The module with ``main`` in memory; machine code is generated now if it is for this machine."""
        target = self._target_of_callers
        modules = [*self._parts, _built(target, _with_forwarding(target, self._callers))]
        for module in self._parts:
            modules[-1].import_module(module)
        if "mtriple" not in self._target.attrs:
            with pooled():
                _in_threads(lambda module, name: module.get_function(name), modules, self._names)
        return modules[-1]

    def export(self, path: str) -> None:
        """Writes a shared library; the machine code for it is generated in threads."""
        modules = [*self._parts, _built(self._target_of_callers, self._callers)]
        with _object_files(len(modules)) as files:
            _in_threads(lambda module, file: module.write_to_file(file, "o"), modules, files)
            cc.create_shared(path, files)


@contextmanager
def _object_files(count: int) -> Iterator[list[str]]:
    """Names of files for object code. Where that can be, they are in memory: LLVM ends the process on a full disk."""
    if not hasattr(os, "memfd_create"):
        with TemporaryDirectory() as folder:
            yield [f"{folder}/{i}.o" for i in range(count)]
        return
    with ExitStack() as opened:
        numbers = [os.memfd_create(f"{i}.o") for i in range(count)]
        for number in numbers:
            opened.callback(os.close, number)
        yield [f"/proc/{os.getpid()}/fd/{number}" for number in numbers]


def _in_threads(function: Callable, *arguments: Sequence) -> list:
    """``map`` with one thread per item."""
    if len(arguments[0]) < 2:
        return list(map(function, *arguments))
    with ThreadPoolExecutor(len(arguments[0])) as pool:
        return list(pool.map(function, *arguments))


def compiled(target: Target, functions: dict, pointers: bool = True) -> Any:
    """One LLVM module of scheduled functions that take ``pointers``, or tensors as the virtual machine wants it."""
    return _built(target, _lowered(target, functions, pointers)[0])


def _compiled(target: Target, functions: dict) -> tuple[Any, dict[str, list[Event]]]:
    """The same, and what each function allocates while it runs."""
    module, allocated = _lowered(target, functions)
    return _built(target, module), allocated


def _lowered(target: Target, functions: dict, pointers: bool = True) -> tuple[tvm.IRModule, dict[str, list[Event]]]:
    """The functions as LLVM gets them, and what each allocates while it runs."""
    target = llvm_options(target)
    with target, tvm.transform.PassContext(opt_level=3):
        module = _lowering(pointers)(tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(functions)))
    return module, events(module, functions, target) if pointers else {}  # sizes are dynamic otherwise


def _with_forwarding(target: Target, module: tvm.IRModule) -> tvm.IRModule:
    """Lowered functions, which find those that they call in other modules through the FFI."""
    own = {name.name_hint for name in module.functions}
    counts = dict(pair for function in module.functions.values() for pair in called_functions(function.body))
    others = {ir.GlobalVar(name): forwarding(name, count) for name, count in counts.items() if name not in own}
    if not others:
        return module
    functions = {name: function.with_body(forwarded(function.body, own)) for name, function in module.functions.items()}
    return tvm.IRModule({**functions, **_lowered(target, others)[0].functions}, attrs=module.attrs)


def _built(target: Target, module: tvm.IRModule) -> Any:
    """The LLVM module of lowered functions."""
    target = llvm_options(target)
    with target:
        return tvm.get_global_func("target.build.llvm")(module, target)


# Features that make LLVM compute on short vectors where the processor has longer ones. LLVM 22 then never finishes some
# kernels: its X86 backend rewrites the sum of a mask's lanes, a count of true elements split over two registers, back
# and forth. Intel's processors with AVX-512 have the first of them by default.
_SHORT_VECTORS = ("prefer-256-bit", "prefer-128-bit")


def llvm_options(target: Target) -> Target:
    """The CPU target with the options that LLVM compiles kernels with.

    >>> options = llvm_options(Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4"}))
    >>> list(map(str, options.attrs["mattr"]))
    ['-prefer-256-bit', '-prefer-128-bit']
    """
    options: dict[str, Any] = dict(target.export())
    # LLVM's highest level takes a third longer, and its code for our kernels is no faster: they have their loops.
    options.setdefault("opt-level", 2)
    if targets.is_x86(target):
        features = [name for name in map(str, options.get("mattr", ())) if name[1:] not in _SHORT_VECTORS]
        options["mattr"] = [*features, *(f"-{name}" for name in _SHORT_VECTORS)]
    return Target(options)


def _lowering(pointers: bool) -> tvm.transform.Pass:
    """What scheduled kernels for the CPU need of TVM's pipeline for schedules (``tvm.s_tir.pipeline``), in its order.

    Left out are the passes for GPUs and accelerators, and those that change nothing in kernels that our schedules
    made, or nothing that LLVM does not do as well: hoisting, partitioning and removal of loops. Others must not run:
    ``CompactBufferAllocation`` writes down how large a buffer may become, which a dynamic size lets exceed the int32
    of indices, and ``StorageRewrite`` merges accumulators with buffers that must be in memory, so that they would
    not become registers.
    """
    return tvm.transform.Sequential(
        [
            # Blocks become loops around buffers that are declared where they are needed.
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.LowerMatchBuffer(),
            # Before vectors are made: what is left of a split's conditions would keep loops from becoming vectors.
            s_tir.transform.StmtSimplify(),
            s_tir.transform.LowerOpaqueBlock(),
            _protect,
            tirx.transform.FlattenBuffer(),
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.NarrowDataType(32),
            tirx.transform.VectorizeLoop(True),
            tirx.transform.UnrollLoop(),
            s_tir.transform.RenormalizeSplitPattern(),
            tirx.transform.StmtSimplify(),
            # A select evaluates both sides: those that must not be become branches.
            s_tir.transform.RewriteUnsafeSelect(),
            _share_formulas,
            *([_make_packed] if pointers else []),
            tirx.transform.MakePackedAPI(),
            tirx.transform.BF16StorageLegalize(),
            tirx.transform.LowerTVMBuiltin(),
            tirx.transform.LowerIntrin(),
        ]
    )


@tvm.transform.module_pass(opt_level=0, name="tvmfun.Protect")
def _protect(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Keeps ``FlattenBuffer`` from simplifying index quotients wrongly, and LLVM from storing more than an array."""
    body = lambda function: protect_narrow_stores(protect_quotients(function.body))
    protected = {name: function.with_body(body(function)) for name, function in module.functions.items()}
    return tvm.IRModule(protected, attrs=module.attrs)


@tvm.transform.module_pass(opt_level=0, name="tvmfun.ShareFormulas")
def _share_formulas(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Computes equal parts of formulas once: inlined ones are large, and LLVM would spend longer on finding them.

    TVM takes quadratic time for it, in which LLVM compiles the kernels of a long loop body several times.
    """
    small = {name: f for name, f in module.functions.items() if len(find(f.body, tirx.BufferStore)) <= _FEW_STORES}
    shared = tirx.transform.CommonSubexprElim()(tvm.IRModule(small, attrs=module.attrs)).functions if small else {}
    return tvm.IRModule({**module.functions, **shared}, attrs=module.attrs)


@tvm.transform.module_pass(opt_level=0, name="tvmfun.MakePacked")
def _make_packed(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Gives functions of buffers the calling convention of kernels."""
    return tvm.IRModule(
        {name: function if is_packed(function) else packed(function) for name, function in module.functions.items()},
        attrs=module.attrs,
    )


def _main(steps: Sequence[Call | Store], places: int) -> tirx.PrimFunc:
    """The function that takes the steps."""
    table = tirx.decl_buffer((places,), _ADDRESS, name="table", data_alignment=_ADDRESS_BYTES)
    pointer = lambda address: tirx.handle_add_byte_offset(
        tirx.reinterpret("handle", table[address.place]), address.offset
    )
    stack = Stack()
    body: list[tirx.Stmt] = []
    for i, step in enumerate(steps):
        if isinstance(step, Store):
            constant = buffer((), str(step.bits.dtype), f"constant{i}")
            data = tirx.reinterpret(ir.PointerType(constant.ty.dtype, "global"), pointer(step.address))
            body += [
                tirx.DeclBuffer(constant, data=data),
                tirx.BufferStore(constant, tirx.const(int(step.bits), constant.dtype), []),
            ]
        else:
            body.append(stack.call(step.kernel, list(map(pointer, step.arguments))))
    function = tirx.PrimFunc([table], stack.around(seq(*body)))
    return function.with_attrs({"global_symbol": "main", "s_tir": True, "tirx.noalias": True})
