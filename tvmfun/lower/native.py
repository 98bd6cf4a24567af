"""Machine code for kernels on the CPU: the passes that lower them, their calling convention, and LLVM in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import tvm
from tvm import ir, s_tir, tirx
from tvm.support import cc
from tvm.target import Target

from tvmfun.lower import target as targets
from tvmfun.lower.cpu.build import buffer
from tvmfun.lower.memory import Call, Store
from tvmfun.lower.narrow_stores import protect_narrow_stores
from tvmfun.lower.quotients import protect_quotients
from tvmfun.lower.structure import find
from tvmfun.lower.workspaces import Event, events, workspaces
from tvmfun.threads import cpu_count, pooled

# So many kernels become one LLVM module, and fewer than the second number are not worth one, and a thread.
_KERNELS_OF_A_PART, _FEW_KERNELS = 12, 4
# With no more steps than this, ``main`` is compiled together with its kernels if these are one part.
_FEW_STEPS = 32

# Most kernels have some dozen stores; the body of a loop has those of all of its kernels.
_FEW_STORES = 200

# Names of the FFI's C header. An argument is a structure whose last field is a number or a pointer.
_SYMBOL_PREFIX = "__tvm_ffi_"
_C_PACKED_FUNC = 1
_VALUE, _KIND = 15, 13
_CPU = 1

_ARGUMENT_BYTES = 16

# The dtype of addresses in the table, and its size.
_ADDRESS, _ADDRESS_BYTES = "uint64", 8

# Writes the call of a kernel, given its name, the stack of arguments, and where the arguments begin and end.
_CallOf = Callable[[str, tirx.Var, int, int], tirx.Stmt]


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

    def add(self, name: ir.GlobalVar, function: tirx.PrimFunc) -> None:
        """One more kernel."""
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
        return not self._parts and len(self.waiting) <= _FEW_KERNELS

    def finish(self, main: dict[ir.GlobalVar, tirx.PrimFunc]) -> list[_Part]:
        """All modules; where kernels are few, one, with a ``main`` if it is given."""
        if self.is_small:
            functions = main | self.waiting
            return [_Part(next(iter(functions)).name_hint, *_compiled(self._target, functions))] if functions else []
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
        self._steps, self._places = steps, places
        # A module of its own takes LLVM some milliseconds.
        self._is_joined = kernels.is_small and len(steps) <= _FEW_STEPS
        parts = kernels.finish(self._main(_linked) if self._is_joined else {})
        self._names = [*(part.name for part in parts), "main"]
        self._parts = [part.module for part in parts]
        allocated = {name: found for part in parts for name, found in part.allocated.items()}
        called = [step.kernel for step in steps if isinstance(step, Call)]
        #: The bytes that kernels take while they run, in all threads.
        self.workspaces = workspaces([event for name in called for event in allocated.get(name, ())], target)

    def load(self) -> Any:
        """The module with ``main`` in memory; machine code is generated now if it is for this machine."""
        modules = self._modules(_imported)
        *others, main = modules
        for module in others:
            main.import_module(module)
        if "mtriple" not in self._target.attrs:
            with pooled():
                _in_threads(lambda module, name: module.get_function(name), modules, self._names)
        return main

    def export(self, path: str) -> None:
        """Writes a shared library; the machine code for it is generated in threads."""
        modules = self._modules(_linked)
        with _object_files(len(modules)) as files:
            _in_threads(lambda module, file: module.write_to_file(file, "o"), modules, files)
            cc.create_shared(path, files)

    def _main(self, call: _CallOf) -> dict[ir.GlobalVar, tirx.PrimFunc]:
        return {ir.GlobalVar("main"): _main(self._steps, self._places, call)}

    def _modules(self, call: _CallOf) -> list[Any]:
        """All modules; ``main`` is in the last one."""
        if self._is_joined:
            return self._parts
        # It takes many steps, and each once: optimizing them would take longer than it ever saves.
        target = Target({**self._target.export(), "opt-level": 0})
        return [*self._parts, compiled(target, self._main(call))]


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
    return _compiled(target, functions, pointers)[0]


def _compiled(target: Target, functions: dict, pointers: bool = True) -> tuple[Any, dict[str, list[Event]]]:
    """The same, and what each function allocates while it runs."""
    target = llvm_options(target)
    with target, tvm.transform.PassContext(opt_level=3):
        module = _lowering(pointers)(tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(functions)))
        allocated = events(module, functions, target) if pointers else {}  # sizes are dynamic otherwise
        return tvm.get_global_func("target.build.llvm")(module, target), allocated


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
    """Gives functions of buffers the calling convention of the FFI, with pointers for arguments.

    TVM's pass for this, ``MakePackedAPI``, passes tensors and makes every call check each part of the type of each one.
    That is more code than most kernels have. Only ``main`` calls our kernels, and its caller knows the types.
    """
    return tvm.IRModule({name: _packed(function) for name, function in module.functions.items()}, attrs=module.attrs)


def _packed(function: tirx.PrimFunc) -> tirx.PrimFunc:
    name = str(function.attrs["global_symbol"])
    self_handle, arguments, result = (tirx.Var(word, "handle") for word in ("self_handle", "args", "result"))
    buffers = []
    for i, parameter in enumerate(function.params):
        pointer = ir.PointerType(parameter.ty.dtype, "global")
        value = tirx.tvm_struct_get(arguments, i, _VALUE, arguments.ty)
        buffers.append(tirx.DeclBuffer(parameter, data=tirx.reinterpret(pointer, value)))
    # The body becomes a function of its own, because only parameters can be marked as not overlapping.
    body = tirx.AttrStmt(0, "compute_scope", ir.StringImm(f"{name}_compute_"), function.body)
    body = tirx.SeqStmt([*buffers, body, tirx.Return(_integer(0))])
    # Large buffers of the body are allocated on this device.
    body = tirx.AttrStmt("default", "device_type", _integer(_CPU), body)
    body = tirx.AttrStmt("default", "device_id", _integer(0), body)
    for declared in buffers:
        alignment = _integer(declared.buffer.ty.data_alignment)
        body = tirx.AttrStmt(declared.buffer, "storage_alignment", alignment, body)
    count = tirx.Var("num_args", "int32")
    packed = tirx.PrimFunc([self_handle, arguments, count, result], body, ir.PrimType("int32"), function.attrs)
    return packed.with_attr({"calling_conv": _C_PACKED_FUNC, "global_symbol": _SYMBOL_PREFIX + name})


def _main(steps: Sequence[Call | Store], places: int, call: _CallOf) -> tirx.PrimFunc:
    """The function that takes the steps; ``call`` writes the call of a kernel whose arguments are on the stack."""
    table = tirx.decl_buffer((places,), _ADDRESS, name="table", data_alignment=_ADDRESS_BYTES)
    pointer = lambda address: tirx.handle_add_byte_offset(
        tirx.reinterpret("handle", table[address.place]), address.offset
    )
    most = max((len(step.arguments) for step in steps if isinstance(step, Call)), default=0)
    stack = tirx.Var("stack", "handle")
    # After the arguments, a place for a result: there is none, but it must not be taken for an object.
    body = [
        tirx.Bind(stack, tirx.call_intrin("handle", "tirx.tvm_stack_alloca", "tvm_ffi_any", most + 1)),
        tirx.Evaluate(tirx.tvm_struct_set(stack, most, _KIND, _integer(0))),
    ]
    for i, step in enumerate(steps):
        if isinstance(step, Store):
            constant = buffer((), str(step.bits.dtype), f"constant{i}")
            data = tirx.reinterpret(ir.PointerType(constant.ty.dtype, "global"), pointer(step.address))
            body += [
                tirx.DeclBuffer(constant, data=data),
                tirx.BufferStore(constant, tirx.const(int(step.bits), constant.dtype), []),
            ]
            continue
        for k, argument in enumerate(step.arguments, most - len(step.arguments)):
            body.append(tirx.Evaluate(tirx.tvm_struct_set(stack, k, _VALUE, pointer(argument))))
        body.append(call(step.kernel, stack, most - len(step.arguments), most))
    function = tirx.PrimFunc([table], tirx.SeqStmt(body))
    return function.with_attrs({"global_symbol": "main", "s_tir": True, "tirx.noalias": True})


def _linked(kernel: str, stack: tirx.Var, begin: int, end: int) -> tirx.Stmt:
    """The call of a kernel that the linker finds."""
    null = tirx.reinterpret("handle", tirx.const(0, _ADDRESS))
    arguments, result = (tirx.handle_add_byte_offset(stack, _ARGUMENT_BYTES * place) for place in (begin, end))
    failed = tirx.call_extern("int32", _SYMBOL_PREFIX + kernel, null, arguments, end - begin, result) != 0
    return tirx.IfThenElse(failed, tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_throw_last_error")), None)


def _imported(kernel: str, stack: tirx.Var, begin: int, end: int) -> tirx.Stmt:
    """The call of a kernel of another module, that the FFI finds."""
    return tirx.Evaluate(tirx.call_packed_lowered(kernel, stack, begin, end))


_integer = partial(tirx.IntImm, "int32")
