"""Machine code for kernels on the CPU: the passes that lower them, their calling convention, and LLVM in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial, reduce
from tempfile import TemporaryDirectory
from typing import Any

import tvm
from tvm import ir, relax, s_tir, tirx
from tvm.target import Target

from tvmfun.runtime import cpu_count

# Less than this many kernels are not worth a module, and a thread, of their own.
_KERNELS_OF_A_PART = 4

# Names of the FFI's C header, and the fields of its structures. An argument is a kind, and a number or a pointer.
# That of a tensor points at an object, whose header is followed by a DLTensor.
_SYMBOL_PREFIX = "__tvm_ffi_"
_C_PACKED_FUNC = 1
_INTEGER, _TENSOR = 1, 70
_OBJECT_HEADER_BYTES = 24
_CPU = 1


class _Field(IntEnum):
    DATA = 1
    SHAPE = 2
    AXES = 4
    DTYPE_CODE = 5
    DTYPE_BITS = 6
    BYTE_OFFSET = 8
    DEVICE = 10
    KIND = 13
    VALUE = 15
    SIZE = 17


class NativeExecutable(relax.VMExecutable):
    """An executable of Relax whose kernels are several LLVM modules; machine code is generated when it is needed.

    Args:
        module: the virtual machine's instructions, with the LLVM modules imported.
        kernels: of each LLVM module, the name of a kernel.
        target: what they are for.
    """

    def __init__(self, module: Any, kernels: list[str], target: Target) -> None:
        super().__init__(module)
        self._kernels = kernels
        self._target = target

    def generate(self) -> None:
        """Generates the machine code in memory, if it is for this machine.

        The first call would do it, one module after the other.
        """
        if "mtriple" not in self._target.attrs:
            _in_threads(lambda library, kernel: library.get_function(kernel), self.mod.imports, self._kernels)

    def export_library(self, file_name: str, **options: Any) -> None:
        """Writes a shared library; the machine code for it is generated in threads."""
        libraries = list(self.mod.imports)
        with TemporaryDirectory() as folder:
            files = [f"{folder}/{kernel}.o" for kernel in self._kernels]
            _in_threads(lambda library, file: library.write_to_file(file), libraries, files)
            objects = [tvm.runtime.load_static_library(file, []) for file in files] or libraries
            try:
                self._import(objects)
                super().export_library(file_name, **options)
            finally:
                self._import(libraries)

    def _import(self, libraries: list) -> None:
        self.mod.clear_imports()
        for library in libraries:
            self.mod.import_module(library)


def link(builder: relax.ExecBuilder, functions: dict, constants: dict, target: Target) -> NativeExecutable:
    """Lowers kernels and has LLVM optimize them, in one thread per part of about equal size.

    Args:
        builder: the virtual machine's instructions.
        functions: the kernels by name.
        constants: what they were called with that is not in the instructions.
        target: a CPU.
    """
    if "opt-level" not in target.attrs:
        # LLVM's highest level takes a third longer, and its code for our kernels is no faster: they have their loops.
        target = Target({**target.export(), "opt-level": 2})
    items = list(functions.items())
    # Options for LLVM's command line are global.
    threads = 1 if target.attrs.get("cl-opt") else cpu_count()
    count = min(threads, -(-len(items) // _KERNELS_OF_A_PART))
    # Neighbours resemble each other: deal them out.
    parts = [dict(items[i::count]) for i in range(count)]
    libraries = _in_threads(partial(_compile, target), parts)
    first, *others = libraries or [None]
    module = tvm.get_global_func("relax.VMLink")(builder, target, first, others, constants)
    return NativeExecutable(module, [name.name_hint for name, _ in items[:count]], target)


def _in_threads(function: Callable, *arguments: Sequence) -> list:
    """``map`` with one thread per item."""
    if len(arguments[0]) < 2:
        return list(map(function, *arguments))
    with ThreadPoolExecutor(len(arguments[0])) as pool:
        return list(pool.map(function, *arguments))


def _compile(target: Target, functions: dict) -> Any:
    with target, tvm.transform.PassContext(opt_level=3):
        return tvm.get_global_func("target.build.llvm")(_lowered(target, functions), target)


def bodies(functions: dict, target: Target) -> dict[str, tirx.Stmt]:
    """The kernels as LLVM gets them, by name.

    Args:
        functions: the kernels by name.
        target: a CPU.
    """
    with target, tvm.transform.PassContext(opt_level=3):
        module = _lowered(target, functions)
    return {name.name_hint.removeprefix(_SYMBOL_PREFIX): kernel.body for name, kernel in module.functions.items()}


def _lowered(target: Target, functions: dict) -> tvm.IRModule:
    return _lowering()(tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(functions)))


def _lowering() -> tvm.transform.Pass:
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
            tirx.transform.FlattenBuffer(),
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.NarrowDataType(32),
            tirx.transform.VectorizeLoop(True),
            tirx.transform.UnrollLoop(),
            s_tir.transform.RenormalizeSplitPattern(),
            tirx.transform.StmtSimplify(),
            # A select evaluates both sides: those that must not be become branches.
            s_tir.transform.RewriteUnsafeSelect(),
            # Inlined formulas are large; LLVM would spend longer on finding what is equal.
            tirx.transform.CommonSubexprElim(),
            _make_packed,
            tirx.transform.MakePackedAPI(),
            tirx.transform.BF16StorageLegalize(),
            tirx.transform.LowerTVMBuiltin(),
            tirx.transform.LowerIntrin(),
        ]
    )


@tvm.transform.module_pass(opt_level=0, name="tvmfun.MakePacked")
def _make_packed(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """Gives each kernel the calling convention of the FFI, with three checks.

    TVM's pass for this, ``MakePackedAPI``, makes every call check each part of the type of each argument, with a
    message of its own. That is more code than most kernels have. Only ``main`` calls our kernels, and its callers
    know the types, so what is wrong need not be told; but no wrong argument may be read.

    It is left the functions of Relax that return a number.
    """
    functions = {
        name: function if isinstance(function.ret_type, ir.PrimType) else _packed(function)
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def _packed(function: tirx.PrimFunc) -> tirx.PrimFunc:
    name = str(function.attrs["global_symbol"])
    self_handle, arguments, result = (tirx.Var(word, "handle") for word in ("self_handle", "args", "result"))
    count = tirx.Var("num_args", "int32")
    integer = partial(tirx.IntImm, "int32")
    field = tirx.tvm_struct_get
    numbers: list[tirx.Bind] = []
    handles: list[tirx.Bind] = []
    buffers: list[tirx.DeclBuffer] = []
    # Each list of conditions must hold before the next may be looked at.
    kinds, types, sizes = [], [], []
    for i, parameter in enumerate(function.params):
        if not isinstance(parameter.ty, tirx.BufferType):
            value = field(arguments, i, _Field.VALUE, "int64")
            kinds.append(field(arguments, i, _Field.KIND, "int32") == _INTEGER)
            numbers.append(tirx.Bind(parameter, value.astype(parameter.ty.dtype)))
            continue
        kinds.append(field(arguments, i, _Field.KIND, "int32") == _TENSOR)
        tensor = tirx.Var(f"{parameter.name}_tensor", "handle")
        value = field(arguments, i, _Field.VALUE, arguments.ty)
        handles.append(tirx.Bind(tensor, tirx.handle_add_byte_offset(value, _OBJECT_HEADER_BYTES)))
        shape, dtype = parameter.ty.shape, parameter.ty.dtype.dtype
        types += [
            field(tensor, 0, _Field.AXES, "int32") == len(shape),
            field(tensor, 0, _Field.DTYPE_CODE, "uint8") == tirx.IntImm("uint8", dtype.type_code),
            field(tensor, 0, _Field.DTYPE_BITS, "uint8") == tirx.IntImm("uint8", dtype.bits),
            field(tensor, 0, _Field.DEVICE, "int32") == _CPU,
        ]
        given = field(tensor, 0, _Field.SHAPE, arguments.ty)
        sizes += [field(given, k, _Field.SIZE, "int64") == size.astype("int64") for k, size in enumerate(shape)]
        # Intermediates lie somewhere in one block.
        offset = field(tensor, 0, _Field.BYTE_OFFSET, "uint64").astype("int64")
        data = tirx.handle_add_byte_offset(field(tensor, 0, _Field.DATA, arguments.ty), offset)
        pointer = ir.PointerType(parameter.ty.dtype, "global")
        buffers.append(tirx.DeclBuffer(parameter, data=tirx.reinterpret(pointer, data)))
    checks = [_check(conditions, name) for conditions in (kinds, types, sizes)]
    # The body becomes a function of its own, because only parameters can be marked as not overlapping.
    body = tirx.AttrStmt(0, "compute_scope", ir.StringImm(f"{name}_compute_"), function.body)
    body = tirx.SeqStmt([checks[0], *numbers, *handles, *checks[1:], *buffers, body, tirx.Return(integer(0))])
    # Large buffers of the body are allocated on this device.
    body = tirx.AttrStmt("default", "device_type", integer(_CPU), body)
    body = tirx.AttrStmt("default", "device_id", integer(0), body)
    for declared in buffers:
        alignment = integer(declared.buffer.ty.data_alignment)
        body = tirx.AttrStmt(declared.buffer, "storage_alignment", alignment, body)
    packed = tirx.PrimFunc([self_handle, arguments, count, result], body, ir.PrimType("int32"), function.attrs)
    return packed.with_attr({"calling_conv": _C_PACKED_FUNC, "global_symbol": _SYMBOL_PREFIX + name})


def _check(conditions: list[tirx.Expr], name: str) -> tirx.Stmt:
    if not conditions:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    message = ir.StringImm(f"{name}: an argument does not have the type that it was compiled for")
    # The names of its first two parameters are exchanged.
    return tirx.AssertStmt(reduce(tirx.And, conditions), ir.StringImm("TypeError"), [message])
