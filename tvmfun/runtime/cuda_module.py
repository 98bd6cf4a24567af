"""Compiled modules for NVIDIA's GPUs: machine code, and the launches of a call as plain records, in one file.

Nothing here needs TVM or a GPU. A *step* is one of the records :class:`Launch`, :class:`Copy`, :class:`Repeat`,
:class:`While` and :class:`Branch`; a launcher runs the steps of a :class:`CudaModule` in order. Addresses are slots of
a table, as for CPUs (:class:`~tvmfun.runtime.plan.Plan`): the inputs, new memory for results, the block of
intermediates, and after it the constants.

If sizes are dynamic, the numbers of records are formulas of them, and :meth:`CudaModule.at` returns the module for
given sizes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tvmfun.errors import TargetError
from tvmfun.files import atomic_write
from tvmfun.runtime.formulas import Formula, evaluate
from tvmfun.runtime.plan import Address, DynamicPlan, Plan

#: Sizes along x, y and z; formulas if they are dynamic.
Extent = tuple[int, int, int]


class Scalar(NamedTuple):
    """An argument of a kernel that is passed by value.

    In loops it may be affine in the indices: ``bits + sum(stride * index)``, modulo the width of the dtype.

    Args:
        dtype: the dtype's name, such as ``"int32"``.
        bits: the value; for dtypes other than integers, the integer with the same bits.
        strides: the increment per iteration of each enclosing :class:`Repeat`, outermost first; missing ones are 0.
    """

    dtype: str
    bits: int
    strides: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return bytes_of(self.dtype)

    def at(self, indices: Sequence[int]) -> Scalar:
        """The value at these indices of the enclosing loops, the outermost first."""
        moved = sum(stride * index for stride, index in zip(self.strides, indices, strict=False))
        return Scalar(self.dtype, (self.bits + moved) % (1 << 8 * self.nbytes))

    def pack(self) -> bytes:
        """The bytes that the kernel gets, in this machine's order (all hosts of GPUs are little-endian)."""
        return (self.bits % (1 << 8 * self.nbytes)).to_bytes(self.nbytes, "little")


class TensorMap(NamedTuple):
    """A tensor in an array whose boxes the copy engine of sm_90 moves: a ``CUtensorMap``, passed by value.

    Boxes are swizzled in lines of 128 bytes, and are 0 outside of the tensor.

    Args:
        address: its address, a multiple of 16 bytes.
        dtype: the dtype's name, ``"float16"`` or ``"bfloat16"``.
        sizes: the sizes of its axes; the first one is contiguous.
        strides: the distances along the other axes, in bytes, multiples of 16.
        box: the sizes of a box.
    """

    address: Address
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


#: An argument of a kernel.
Argument = Address | Scalar | TensorMap
#: The dtypes of tensor maps, and their numbers in ``CUtensorMapDataType``.
MAP_DTYPES = {"float16": 6, "bfloat16": 9}
#: The size of a tensor map in words of 8 bytes.
MAP_WORDS = 16
#: The alignment of a tensor map in words.
MAP_ALIGNMENT = 16


def address_in(argument: Argument) -> Address | None:
    """The address that an argument is or begins at; None for a number."""
    if isinstance(argument, Scalar):
        return None
    return argument.address if isinstance(argument, TensorMap) else argument


def word_offsets(arguments: Sequence[Argument]) -> tuple[list[int], int]:
    """Returns the offset of each argument in memory that holds them in order, and its size, in words of 8 bytes.

    >>> word_offsets([Address(0), TensorMap(Address(1), "float16", (64, 8), (128,), (64, 8)), Scalar("int32", 1)])
    ([0, 16, 32], 33)
    """
    offsets, end = [], 0
    for argument in arguments:
        is_map = isinstance(argument, TensorMap)
        end += -end % MAP_ALIGNMENT if is_map else 0
        offsets.append(end)
        end += MAP_WORDS if is_map else 1
    return offsets, end


class Launch(NamedTuple):
    """The launch of a kernel.

    Args:
        kernel: its name, which is unique among all cubins of the module.
        grid: the number of blocks along x, y and z.
        block: the number of threads of a block along x, y and z.
        shared_bytes: the dynamic shared memory of a block; above 48 KiB the kernel has to be allowed to use it.
        arguments: in the order of the kernel's parameters; an address is passed as a 64-bit pointer.
        cluster: the number of blocks of a cluster along x, y and z.
        is_packed: whether the kernel has one parameter, a struct of all arguments as words of 8 bytes
            (:func:`word_offsets`).
    """

    kernel: str
    grid: Extent
    block: Extent
    shared_bytes: int
    arguments: tuple[Argument, ...]
    cluster: Extent = (1, 1, 1)
    is_packed: bool = False

    @property
    def threads(self) -> int:
        """The number of threads of all blocks."""
        return math.prod(self.grid) * math.prod(self.block)


class Copy(NamedTuple):
    """A copy of ``nbytes`` bytes within the device's memory; the two ranges do not overlap."""

    target: Address
    source: Address
    nbytes: int


class Repeat(NamedTuple):
    """Steps that run ``count`` times."""

    count: int
    body: tuple[Step, ...]


class While(NamedTuple):
    """Steps that run as long as the byte at an address of the device's memory is not 0, tested before each run."""

    condition: Address
    body: tuple[Step, ...]


class Branch(NamedTuple):
    """Alternative steps, selected by a number in the device's memory.

    Args:
        index: the address of the number.
        dtype: its dtype, ``"bool"`` or ``"int32"``.
        cases: the steps for 0, 1, ...; lower numbers select the first ones, higher numbers the last ones.
    """

    index: Address
    dtype: str
    cases: tuple[tuple[Step, ...], ...]


Step = Launch | Copy | Repeat | While | Branch


class Usage(NamedTuple):
    """The resources of a kernel, as its compiler reports them.

    Args:
        registers: of a thread.
        stack: the bytes of a thread's stack, which is in slow memory.
        spills: the bytes that are stored and loaded because there are too few registers.
        shared: the bytes of a block's static shared memory.
    """

    registers: int
    stack: int
    spills: int
    shared: int


class Cubin(NamedTuple):
    """Machine code for one GPU architecture.

    Args:
        image: an ELF file, which the driver loads.
        kernels: the names of its kernels.
        usage: the resources of each kernel.
    """

    image: bytes
    kernels: tuple[str, ...]
    usage: tuple[Usage, ...]


class ArrayType(NamedTuple):
    """Shape and dtype of an array.

    >>> ArrayType((2, 3), "bfloat16").nbytes
    12
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * bytes_of(self.dtype)


def bytes_of(dtype: str) -> int:
    """Returns the size of an element.

    >>> [bytes_of(dtype) for dtype in ("bool", "int8", "bfloat16", "float8_e4m3fn", "float64")]
    [1, 1, 2, 1, 8]
    """
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) // 8 if bits else 1


@dataclass(frozen=True)
class CudaModule:
    """A compiled Program: machine code, the steps of a call, and the layout of its memory.

    If sizes are dynamic, the plan is a :class:`~tvmfun.runtime.plan.DynamicPlan`, and grids, numbers, counts and shapes
    may be formulas.

    Args:
        arch: the architecture, with its suffix, such as ``"sm_90a"``.
        compiler: the compiler of the machine code, such as ``"nvcc 13.0.88"``.
        cubins: the machine code of all kernels.
        steps: the steps of a call, in order.
        plan: the table of addresses; ``plan.analysis.temporaries`` is the size of the block of intermediates.
        constants: the bytes that the slot after the block points to, 256-byte aligned; steps only read them.
        inputs: the types of the arguments, one per slot from 0 on.
        results: the types of the results, whose slots are ``plan.results``.
        missing: the reason for missing machine code, if there was no compiler; otherwise empty.
        condition: the kernel that sets the condition of a graph's node; empty without loops and branches that depend
            on data. Drivers that lack such nodes cannot load it.
    """

    arch: str
    compiler: str
    cubins: tuple[Cubin, ...]
    steps: tuple[Step, ...]
    plan: Plan | DynamicPlan
    constants: bytes
    inputs: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    missing: str = ""
    condition: str = ""

    @property
    def constants_slot(self) -> int:
        """The slot of the constants: the one after the block of intermediates."""
        return self.plan.block + 1

    @property
    def static_plan(self) -> Plan:
        """The plan of a module of static sizes, or for some sizes."""
        assert isinstance(self.plan, Plan)
        return self.plan

    def at(self, sizes: Mapping[str, int]) -> CudaModule:
        """Returns the module for these dynamic sizes, without empty launches."""
        assert isinstance(self.plan, DynamicPlan)
        plan, words = self.plan.at(sizes)
        first_word = self.plan.block + 1

        def number(formula: Formula) -> int:
            return evaluate(formula, sizes)

        def place(address: Address) -> Address:
            if address.offset_slot is None:
                return address
            return Address(address.slot, address.offset + words[address.offset_slot - first_word])

        shaped = lambda types: tuple(ArrayType(tuple(map(number, shape)), dtype) for shape, dtype in types)
        steps = _evaluated(self.steps, number, place)
        return replace(self, steps=steps, plan=plan, inputs=shaped(self.inputs), results=shaped(self.results))

    def launches(self) -> Iterator[Launch | Copy]:
        """The launches and copies of a call in order, with counted loops unrolled.

        Raises:
            TargetError: if the launches depend on data.
        """
        return _unrolled(self.steps, ())

    def check_code(self) -> None:
        """Checks that there is machine code.

        Raises:
            TargetError: if the module was made without a compiler.
        """
        if self.missing:
            what = "the kernels were not compiled to machine code"
            raise TargetError("jit", what, got=self.missing, hint='pip install "tvmfun[cuda]", and compiling again')

    def write(self, path: str | Path) -> None:
        """Writes the module to a file, which appears when it is complete."""
        with atomic_write(Path(path)) as partial:
            partial.write_bytes(self.pack())

    @classmethod
    def read(cls, path: str | Path) -> CudaModule:
        """Reads a file that :meth:`write` wrote.

        Raises:
            TargetError: if it is not such a file, of another version, truncated or altered.
            OSError: if it cannot be read.
        """
        return cls.unpack(Path(path).read_bytes(), str(path))

    def pack(self) -> bytes:
        """The module as bytes: the magic number, version, length and SHA-256 of the rest, a JSON header, the code."""
        header = {
            "arch": self.arch,
            "compiler": self.compiler,
            "cubins": [[len(cubin.image), cubin.kernels, cubin.usage] for cubin in self.cubins],
            "steps": _to_json(self.steps),
            "plan": self.plan.text,
            "is_dynamic": isinstance(self.plan, DynamicPlan),
            "constants": len(self.constants),
            "inputs": self.inputs,
            "results": self.results,
            "missing": self.missing,
            "condition": self.condition,
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        parts = [_LENGTH.pack(len(text)), text, *(cubin.image for cubin in self.cubins), self.constants]
        rest = b"".join(parts)
        return _HEAD.pack(_MAGIC, _VERSION, len(rest), hashlib.sha256(rest).digest()) + rest

    @classmethod
    def unpack(cls, content: bytes, name: str = "bytes") -> CudaModule:
        """The inverse of :meth:`pack`.

        Args:
            content: the bytes.
            name: the name of their file, for errors.

        Raises:
            TargetError: if they are not a module, of another version, truncated or altered.
        """
        refuse = lambda what, got: TargetError("CudaModule", f"{name} {what}", got=got, hint="compiling it again")
        if len(content) < _HEAD.size or content[: len(_MAGIC)] != _MAGIC:
            raise refuse("is not a compiled module for a GPU", f"{content[:8]!r} in front")
        _, version, length, checksum = _HEAD.unpack_from(content)
        rest = content[_HEAD.size :]
        if version != _VERSION:
            raise refuse(f"must have version {_VERSION}", f"version {version}")
        if len(rest) != length:
            raise refuse(f"must have {length + _HEAD.size:,} bytes", f"{len(content):,}")
        if hashlib.sha256(rest).digest() != checksum:
            raise refuse("is damaged", "another checksum than the one in the file")
        end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
        header = json.loads(rest[_LENGTH.size : end])
        cubins = []
        for size, kernels, usage in header["cubins"]:
            usages = tuple(Usage(*numbers) for numbers in usage)
            cubins.append(Cubin(rest[end : end + size], tuple(kernels), usages))
            end += size
        return cls(
            header["arch"],
            header["compiler"],
            tuple(cubins),
            _steps(header["steps"]),
            (DynamicPlan if header["is_dynamic"] else Plan).parse(header["plan"]),
            rest[end:],
            tuple(ArrayType(tuple(shape), dtype) for shape, dtype in header["inputs"]),
            tuple(ArrayType(tuple(shape), dtype) for shape, dtype in header["results"]),
            header["missing"],
            header["condition"],
        )


_MAGIC = b"TVMFUNCU"
_VERSION = 5
_HEAD = struct.Struct("<8sIQ32s")
_LENGTH = struct.Struct("<Q")
_RECORDS = {record.__name__: record for record in (Address, Scalar, TensorMap, Launch, Copy, Repeat, While, Branch)}


def _to_json(value: Any) -> Any:
    """Records as lists that begin with their name; sequences as lists."""
    if type(value).__name__ in _RECORDS:
        return [type(value).__name__, *map(_to_json, value)]
    return list(map(_to_json, value)) if isinstance(value, tuple) else value


def _from_json(value: Any) -> Any:
    """The inverse of :func:`_to_json`."""
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], str) and value[0] in _RECORDS:
        return _RECORDS[value[0]](*map(_from_json, value[1:]))
    return tuple(map(_from_json, value))


def _steps(value: Any) -> tuple[Step, ...]:
    return _from_json(value)


def _evaluated(
    steps: Sequence[Step], number: Callable[[Formula], int], place: Callable[[Address], Address]
) -> tuple[Step, ...]:
    """Replaces formulas in records by numbers, and removes records without work.

    Args:
        steps: the records.
        number: evaluates a formula.
        place: returns an address whose offset is not in a slot.
    """
    inside = lambda body: _evaluated(body, number, place)

    def argument(value: Argument) -> Argument:
        if isinstance(value, Address):
            return place(value)
        if isinstance(value, TensorMap):
            return value._replace(address=place(value.address))
        return Scalar(value.dtype, number(value.bits), tuple(map(number, value.strides)))

    found: list[Step] = []
    for step in steps:
        if isinstance(step, Launch):
            x, y, z = map(number, step.grid)
            if min(x, y, z) > 0:
                shared, arguments = number(step.shared_bytes), tuple(map(argument, step.arguments))
                found.append(step._replace(grid=(x, y, z), shared_bytes=shared, arguments=arguments))
        elif isinstance(step, Copy):
            found.append(Copy(place(step.target), place(step.source), number(step.nbytes)))
        elif isinstance(step, Repeat):
            if (count := number(step.count)) > 0:
                found.append(Repeat(count, inside(step.body)))
        elif isinstance(step, While):
            found.append(While(place(step.condition), inside(step.body)))
        else:
            found.append(Branch(place(step.index), step.dtype, tuple(map(inside, step.cases))))
    return tuple(found)


def _unrolled(steps: Sequence[Step], indices: tuple[int, ...]) -> Iterator[Launch | Copy]:
    for step in steps:
        if isinstance(step, Launch):
            arguments = [arg.at(indices) if isinstance(arg, Scalar) else arg for arg in step.arguments]
            yield step._replace(arguments=tuple(arguments))
        elif isinstance(step, Copy):
            yield step
        elif isinstance(step, Repeat):
            for i in range(step.count):
                yield from _unrolled(step.body, (*indices, i))
        else:
            raise TargetError(
                "CudaModule.launches",
                "the launches must not depend on data",
                got=type(step).__name__,
                hint="the attribute steps",
            )
