"""Loads and runs exported functions with NumPy alone: no TVM, no compiler.

This file imports nothing but NumPy and the standard library. Where tvmfun is not installed, a copy of it is enough::

    from loader import load

    step = load("step.so")

In a program that has tvmfun, it is ``tvmfun.export.load``.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import platform
import struct
import sys
from collections import Counter, namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

if TYPE_CHECKING or __name__.startswith("tvmfun."):
    from tvmfun.errors import ExportError
else:

    class ExportError(RuntimeError):
        """An exported function that cannot be loaded or run; ``status`` is a name of ``tvmfun_status`` in step.h."""

        def __init__(self, where: str, what: str, *, got: str = "", hint: str = "") -> None:
            super().__init__(f"[{where}] {what}" + f", got {got}" * bool(got) + "." + f" Try {hint}." * bool(hint))


__all__ = ["LeafInfo", "SizeInfo", "Step", "load", "read_manifest"]

ABI_VERSION = 2
#: Buffers are aligned to this many bytes.
ALIGNMENT = 64
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: The names of ``tvmfun_dtype`` by number.
DTYPES = dict(enumerate(("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64"), start=1))
_CODES = {name: code for code, name in DTYPES.items()}
# The names of ``tvmfun_status`` by number.
_OF_CALLS = ("OK", "BAD_ARGUMENT", "WRONG_SIZE", "WRONG_DTYPE", "MISALIGNED", "OVERLAP", "OUT_OF_MEMORY")
_STATUSES = (*_OF_CALLS, "KERNEL_FAILED", "MISSING_FEATURE", "DAMAGED_FILE", "WRONG_ARCHITECTURE", "WRONG_VERSION")

#: The largest dynamic size: kernels index with 32 bits.
MOST_SIZE = 2**31 - 1
_NUMBERS = count()  # of loads
# A step remembers the shapes for at most this many sets of sizes.
_SHAPES_KEPT = 1024

# At the end of the file: the offset and size of the manifest, the checksum of everything before it, and a mark.
EXTENT = struct.Struct("<QQ")
MAGIC = b"TVMFUN\x00\x01"
_END = struct.Struct("<32s8s")
# The numbers of architectures in the header of an ELF file.
_MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<4sBB12xH")


def _error(status: str, what: str, got: str = "", hint: str = "", where: str = "export.load") -> ExportError:
    error = ExportError(where, what, got=got, hint=hint)
    error.status = status
    return error


# -- the file ----------------------------------------------------------------------------------------------------------


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the manifest of an exported function, of any architecture, without running anything of the file.

    Args:
        path: the library.

    Raises:
        ExportError: if the file is truncated or altered, or is not an exported function.
        OSError: if it cannot be read.
    """
    return _checked(path)[1]


def _checked(path: str | os.PathLike[str], name: str | None = None) -> tuple[str, dict[str, Any]]:
    """The architecture of a complete file, and its manifest; the file may have another name than errors say."""
    content = Path(name or path).read_bytes()
    damaged = lambda got: _error(
        "DAMAGED_FILE", f"{path} is not a complete exported function", got, "exporting or copying it again"
    )
    end = len(content) - _END.size
    if end < EXTENT.size + _HEADER.size:
        raise damaged(f"{len(content)} bytes")
    digest, magic = _END.unpack_from(content, end)
    if magic != MAGIC:
        raise damaged(f"a file that ends with {magic!r}")
    if hashlib.sha256(memoryview(content)[:end]).digest() != digest:
        raise damaged("another checksum than the file says")
    offset, length = EXTENT.unpack_from(content, end - EXTENT.size)
    elf, bits, order, machine = _HEADER.unpack_from(content)
    if (elf, bits, order) != (b"\x7fELF", 2, 1) or offset + length > len(content):
        raise damaged("a header that is not that of a library")
    try:
        manifest = json.loads(content[offset : offset + length])
        version = manifest["abi_version"]
        if version == ABI_VERSION:
            _check_manifest(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"a manifest that cannot be read ({error})") from None
    if version != ABI_VERSION:
        what = f"{path} was exported for another version of the ABI than {ABI_VERSION}"
        raise _error("WRONG_VERSION", what, str(version), "exporting it again")
    return _MACHINES.get(machine, f"machine {machine}"), manifest


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """Checks the leaves and trees; raises any error of Python if they differ from an export's form."""
    for kind, tree, others in (("inputs", "arguments", "outputs"), ("outputs", "results", "inputs")):
        leaves = [_leaf(entry) for entry in manifest[kind]]
        if _leaf_count(manifest[tree]) != len(leaves):
            raise ValueError(f"another number of leaves than {len(leaves)} in {tree}")
        if not all(-1 <= leaf.partner < len(manifest[others]) for leaf in leaves):
            raise ValueError("a partner that there is not")
    axes = {(i, axis) for i, entry in enumerate(manifest["inputs"]) for axis in range(len(entry["shape"]))}
    if not all((size.input, size.axis) in axes and size.factor > 0 for size in map(_size, manifest["sizes"])):
        raise ValueError("a size of an axis that there is not")
    positional, by_name = manifest["arguments"]["tuple"]
    if "tuple" not in positional or "dict" not in by_name or not isinstance(manifest["name"], str):
        raise ValueError("arguments of another form")


def _leaf_count(node: Any) -> int:
    if node is None or node == "*":
        return node is not None
    ((kind, children),) = node.items()
    if kind in ("named", "fields"):
        name, fields = children
        names = tuple(field for field, _ in fields)
        if not all(map(str.isidentifier, names)) or (kind == "named" and _named(name, names)._fields != names):
            return _fail(names)
        return sum(_leaf_count(child) for _, child in fields)
    if kind == "dict":
        return sum(_leaf_count(child) for key, child in children if isinstance(key, str | int) or _fail(key))
    return sum(map(_leaf_count, children)) if kind in ("list", "tuple") else _fail(kind)


def _fail(value: Any) -> int:
    raise ValueError(f"{value!r} in a tree")


# -- the ABI: the structures of step.h ---------------------------------------------------------------------------------


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("nbytes", ctypes.c_uint64), ("dtype", ctypes.c_int32))


class _Options(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int32), ("parallel_for", ctypes.c_void_p), ("parallel_context", ctypes.c_void_p))


class _Leaf(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_int32) for name in ("ndim", "dtype")),
        ("nbytes", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("partner", "donated")),
        ("initial", ctypes.c_void_p),
    )


class _Size(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("min", ctypes.c_int64), ("max", ctypes.c_int64))


class _Signature(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        *((name, ctypes.POINTER(_Leaf)) for name in ("inputs", "outputs")),
        *((name, ctypes.c_int32) for name in ("input_count", "output_count")),
        ("sizes", ctypes.POINTER(_Size)),
        ("size_count", ctypes.c_int32),
    )


class _Plan(ctypes.Structure):
    _fields_ = (
        ("target", ctypes.c_char_p),
        *((name, ctypes.c_uint64) for name in ("arguments", "results", "temporaries", "workspaces")),
    )


_Status, _Pointer = ctypes.c_int, ctypes.c_void_p
_SIZES = (ctypes.POINTER(ctypes.c_int64), ctypes.c_int32)
_BUFFERS = (_Pointer, ctypes.c_int32) * 2


class _Api(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("signature", ctypes.CFUNCTYPE(ctypes.POINTER(_Signature))),
        ("manifest", ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(ctypes.c_uint64))),
        ("plan", ctypes.CFUNCTYPE(_Status, ctypes.POINTER(_Plan))),
        ("create", ctypes.CFUNCTYPE(_Status, ctypes.POINTER(_Options), ctypes.POINTER(_Pointer))),
        ("run", ctypes.CFUNCTYPE(_Status, _Pointer, *_BUFFERS)),
        ("destroy", ctypes.CFUNCTYPE(None, _Pointer)),
        ("message", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("shapes", ctypes.CFUNCTYPE(_Status, *_SIZES, ctypes.POINTER(ctypes.c_int64))),
        ("plan_for", ctypes.CFUNCTYPE(_Status, *_SIZES, ctypes.POINTER(_Plan))),
        ("run_for", ctypes.CFUNCTYPE(_Status, _Pointer, *_SIZES, *_BUFFERS)),
    )


# -- steps -------------------------------------------------------------------------------------------------------------


class SizeInfo(NamedTuple):
    """A dynamic size of an exported function.

    Args:
        name: its name.
        min: the smallest value.
        max: the largest value.
        input: the position of the argument that determines it.
        axis: the axis of this argument.
        factor: the axis has ``factor * size + term`` elements.
        term: see ``factor``.
    """

    name: str
    min: int
    max: int
    input: int
    axis: int
    factor: int
    term: int


def _size(entry: Mapping[str, Any]) -> SizeInfo:
    name, *numbers = (entry[field] for field in SizeInfo._fields)
    if not isinstance(name, str) or not all(type(number) is int for number in numbers):
        raise ValueError(f"the size {entry}")
    return SizeInfo(name, *numbers)


class LeafInfo(NamedTuple):
    """An array among the arguments or results of an exported function.

    Args:
        name: its name: of an argument ``"state.model.weight"``, of a result ``"[0].model.weight"``.
        shape: its shape; dynamic sizes are text, such as ``"2*b"``.
        dtype: the name of its dtype.
        donated: whether it is an argument whose memory is used for results.
        partner: the position of the result that is written over it, or of the argument it is written over; or -1.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    donated: bool
    partner: int

    @property
    def is_dynamic(self) -> bool:
        """Whether the shape has dynamic sizes."""
        return any(isinstance(size, str) for size in self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes; 0 if it is dynamic."""
        return 0 if self.is_dynamic else math.prod(map(int, self.shape)) * _numpy_dtype(self.dtype).itemsize


_Shapes = list[tuple[int, ...]]


def _numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("uint16")  # the same bits
    return np.dtype(ml_dtypes.bfloat16)


def _leaf(entry: Mapping[str, Any]) -> LeafInfo:
    shape, dtype, partner = tuple(entry["shape"]), entry["dtype"], entry["partner"]
    static = [size for size in shape if not isinstance(size, str)]
    if not all(type(n) is int for n in (*static, partner)) or min(static, default=0) < 0 or dtype not in _CODES:
        raise ValueError(f"the array {entry}")
    return LeafInfo(str(entry["name"]), shape, dtype, bool(entry["donated"]), partner)


def load(path: str | os.PathLike[str], *, threads: int = 0) -> Step:
    """Loads an exported function; the file is checked before anything of it runs.

    Args:
        path: the library that ``Compiled.export`` wrote.
        threads: the number of threads that kernels use; 0 for one for each CPU that this process may use.

    Raises:
        ExportError: if the file is truncated or altered, or is for another architecture, for instructions that this
            processor lacks, or for another version of the ABI; ``status`` says which.
        OSError: if it cannot be read.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        architecture, manifest = _checked(path, f"/proc/self/fd/{file}")
        if architecture != platform.machine():
            what = f"{path} is for another architecture than {platform.machine()}"
            raise _error("WRONG_ARCHITECTURE", what, architecture, "exporting it with targets=[...]")
        if manifest.get("platform", "cpu") != "cpu":
            what = f"{path} is for GPUs, and runs in C and C++ programs"
            raise _error("WRONG_ARCHITECTURE", what, manifest["platform"], "tvmfun/cuda.hpp, or exporting it for CPUs")
        # A name of its own: of another file with a name that it knows, the system would return the library it has.
        number = id(_NUMBERS) << 64 | next(_NUMBERS)
        spelled = "".join("/." if number >> i & 1 else "/" for i in range(number.bit_length()))
        return Step(path, manifest, threads, f"/proc/self/fd{spelled}/{file}")
    finally:
        os.close(file)


class Step:
    """An exported function in this process; made by :func:`load`.

    It is called like the original function, with the same trees of NumPy arrays. Named tuples come back as named tuples
    of the same fields, and instances of other classes as objects with the same attributes. Any number of threads may
    call it.

    Donated arguments that are results of an earlier call are overwritten if no other array of NumPy is a view of them:
    they, and tensors of other libraries that share their memory, must not be used afterwards. Other ones are copied.
    A copy or a pickle of a step loads the file again.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Mapping[str, Any], threads: int, name: str) -> None:
        self.manifest = manifest
        self.name: str = manifest["name"]
        #: The leaves of the arguments and of the result, in order.
        self.inputs: list[LeafInfo] = list(map(_leaf, manifest["inputs"]))
        self.outputs: list[LeafInfo] = list(map(_leaf, manifest["outputs"]))
        #: The dynamic sizes.
        self.sizes: list[SizeInfo] = list(map(_size, manifest["sizes"]))
        self._shapes: dict[tuple[int, ...], tuple[_Shapes, _Shapes]] = {}
        self._owned: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()
        self._step, self._reduced = _Pointer(), (partial(load, threads=threads), (os.path.abspath(path),))
        try:
            self._library = ctypes.CDLL(name)
            get_api = self._library.tvmfun_get_api
        except (OSError, AttributeError) as error:
            raise _error("DAMAGED_FILE", f"{path} cannot be loaded", str(error)) from None
        get_api.restype = ctypes.POINTER(_Api)
        self._api: Any = get_api().contents
        if not self._fits_manifest():
            raise _error("DAMAGED_FILE", f"{path} has a manifest of another function")
        options = _Options(threads, None, None)
        self._check(self._api.create(ctypes.byref(options), ctypes.byref(self._step)), "export.load")

    def _fits_manifest(self) -> bool:
        """Whether the library has the leaves of the manifest."""
        signature = self._api.signature().contents
        names = [signature.sizes[i].name.decode() for i in range(signature.size_count)]
        theirs = (signature.inputs, signature.input_count), (signature.outputs, signature.output_count)
        return names == [size.name for size in self.sizes] and all(
            [(leaf.nbytes, leaf.dtype) for leaf in leaves[:count]]
            == [(info.nbytes, _CODES[info.dtype]) for info in ours]
            for (leaves, count), ours in zip(theirs, (self.inputs, self.outputs), strict=True)
        )

    def __del__(self) -> None:
        if getattr(self, "_step", None):
            self._api.destroy(self._step)

    def __reduce__(self) -> Any:
        return self._reduced

    @property
    def plan(self) -> dict[str, Any]:
        """The target of the code that runs here, and the bytes of a call by use; see :meth:`plan_for`."""
        return self.plan_for()

    def plan_for(self, **sizes: int) -> dict[str, Any]:
        """The target of the code that runs here, and the bytes of a call with these dynamic sizes by use."""
        wanted = [size.name for size in self.sizes]
        if sorted(sizes) != sorted(wanted):
            what = f"it takes the dynamic sizes: {', '.join(wanted) or 'none'}"
            raise _error("BAD_ARGUMENT", what, ", ".join(sizes) or "none", where=self.name)
        plan, values = _Plan(), self._numbers([sizes[name] for name in wanted])
        self._check(self._api.plan_for(values, len(values), ctypes.byref(plan)), self.name)
        return {**{name: getattr(plan, name) for name, *_ in _Plan._fields_}, "target": plan.target.decode()}

    def initial(self) -> dict[str, np.ndarray]:
        """The values that were exported with the function, by the names of the arguments."""
        leaves = self._api.signature().contents.inputs
        found = {}
        for i, info in enumerate(self.inputs):
            if leaves[i].initial:
                array = np.frombuffer(ctypes.string_at(leaves[i].initial, info.nbytes), _numpy_dtype(info.dtype))
                found[info.name] = array.reshape(list(map(int, info.shape))).copy()
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it on trees of arrays.

        Raises:
            ExportError: if an argument has another structure, shape or dtype, or a kernel fails.
        """
        arrays: list[Any] = []
        tree = self.manifest["arguments"]["tuple"]
        expected = [key for key, _ in tree[1]["dict"]]
        if len(args) != len(tree[0]["tuple"]) or sorted(kwargs) != sorted(expected):
            also = f" and {', '.join(expected)}" if expected else ""
            what = f"it takes {len(tree[0]['tuple'])} positional arguments{also}"
            raise _error("BAD_ARGUMENT", what, " and ".join([str(len(args)), *kwargs]), where=self.name)
        for key, (node, value) in enumerate(zip(tree[0]["tuple"], args, strict=True)):
            self._flatten(node, value, f"argument {key}", arrays)
        for name, node in tree[1]["dict"]:
            self._flatten(node, kwargs[name], f"argument {name}", arrays)
        return _built(self.manifest["results"], iter(self.run(arrays)))

    def run(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Runs it on the leaves of the arguments, in the order of ``inputs``; returns the leaves of the result.

        Raises:
            ExportError: if their number, a shape or a dtype differs, or a kernel fails.
        """
        if len(arrays) != len(self.inputs):
            raise _error("BAD_ARGUMENT", f"it takes {len(self.inputs)} arrays", str(len(arrays)), where=self.name)
        counts = Counter(map(id, arrays))
        values = [self._value(info, value) for info, value in zip(self.inputs, arrays, strict=True)]
        sizes = self._solve(values)
        in_shapes, out_shapes = self._shapes_for(sizes)
        given = [
            self._argument(info, shape, array, sizes, counts[id(value)] == 1)
            for info, shape, array, value in zip(self.inputs, in_shapes, values, arrays, strict=True)
        ]
        results = [
            given[info.partner].reshape(shape) if info.partner >= 0 else _empty(shape, _numpy_dtype(info.dtype))
            for info, shape in zip(self.outputs, out_shapes, strict=True)
        ]
        leaves = (_buffers(self.inputs, given), len(given), _buffers(self.outputs, results), len(results))
        self._check(self._api.run_for(self._step, self._numbers(sizes), len(sizes), *leaves), self.name)
        # New objects, so that one that has been donated is not donated again.
        results = [array.view() for array in results]
        self._owned.update((id(array), array) for array in results)
        return results

    def _value(self, info: LeafInfo, value: Any) -> np.ndarray:
        """An argument as an array of the right dtype and rank."""
        dtype = _numpy_dtype(info.dtype)
        array = self._number(info, value, dtype) if type(value) in (bool, int, float) else np.asarray(value)
        if array.dtype != dtype:
            raise _error("WRONG_DTYPE", f"{info.name} must have the dtype {dtype}", str(array.dtype), where=self.name)
        if array.ndim != len(info.shape):
            raise self._wrong_shape(info, array)
        return array

    def _wrong_shape(self, info: LeafInfo, array: np.ndarray, because: str = "") -> ExportError:
        what = f"{info.name} must have the shape {str(info.shape).replace(chr(39), '')}{because}"
        return _error("WRONG_SIZE", what, str(array.shape), where=self.name)

    def _solve(self, values: Sequence[np.ndarray]) -> tuple[int, ...]:
        """The dynamic sizes for which arguments have their shapes."""
        found = []
        for size in self.sizes:
            number, rest = divmod(values[size.input].shape[size.axis] - size.term, size.factor)
            if rest:
                raise self._wrong_shape(self.inputs[size.input], values[size.input], f" for an integer {size.name}")
            found.append(number)
        return tuple(found)

    def _shapes_for(self, sizes: tuple[int, ...]) -> tuple[_Shapes, _Shapes]:
        """The shapes of arguments and results for these sizes."""
        if sizes not in self._shapes:
            ranks = [len(info.shape) for info in (*self.inputs, *self.outputs)]
            axes = (ctypes.c_int64 * (sum(ranks) + 1))()
            self._check(self._api.shapes(self._numbers(sizes), len(sizes), axes), self.name)
            rest = iter(axes)
            shapes = [tuple(next(rest) for _ in range(rank)) for rank in ranks]
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            self._shapes[sizes] = shapes[: len(self.inputs)], shapes[len(self.inputs) :]
        return self._shapes[sizes]

    def _numbers(self, sizes: Sequence[int]) -> Any:
        """Sizes as an array of C."""
        if wrong := [n for n in sizes if not isinstance(n, int | np.integer) or abs(n) > MOST_SIZE]:
            raise _error("WRONG_SIZE", f"sizes are integers of at most {MOST_SIZE}", repr(wrong[0]), where=self.name)
        return (ctypes.c_int64 * len(sizes))(*sizes)

    def _argument(
        self, info: LeafInfo, shape: tuple[int, ...], array: np.ndarray, sizes: tuple[int, ...], is_single: bool
    ) -> np.ndarray:
        """An aligned array of the right type, which may be overwritten if it is donated."""
        if array.shape != shape:
            pairs = zip(self.sizes, sizes, strict=True)
            known = [f"{size.name} = {n} from axis {size.axis} of {self.inputs[size.input].name}" for size, n in pairs]
            raise self._wrong_shape(info, array, f" with {' and '.join(known)}" if info.is_dynamic else "")
        if not info.donated:
            is_free = array.flags.c_contiguous
        else:
            is_free = self._owned.pop(id(array), None) is array and is_single and _base_references(array) == _ONE_VIEW
        if is_free and array.ctypes.data % ALIGNMENT == 0:
            return array
        copy = _empty(shape, array.dtype)
        copy[...] = array
        return copy

    def _number(self, info: LeafInfo, value: Any, dtype: np.dtype) -> np.ndarray:
        """A Python number in the dtype of its argument, which must be able to hold it."""
        try:
            return np.asarray(value, None if isinstance(value, float) and dtype.kind in "biu" else dtype)
        except OverflowError:
            what = f"{info.name} must fit the dtype {dtype}"
            raise _error("WRONG_DTYPE", what, str(value), where=self.name) from None

    def _flatten(self, node: Any, value: Any, path: str, found: list[Any]) -> None:
        """Adds the leaves of a value that has the structure of a node of the manifest."""
        kind = type(value).__name__
        wrong = lambda what, got=kind: _error("BAD_ARGUMENT", f"{path} must be {what}", got, where=self.name)
        if node == "*":
            found.append(value)
        elif node is None:
            if value is not None:
                raise wrong("None")
        elif "dict" in node:
            keys = [key for key, _ in node["dict"]]
            if not isinstance(value, Mapping) or set(value) != set(keys):
                got = f"one of {', '.join(map(repr, value)) or 'nothing'}" if isinstance(value, Mapping) else kind
                raise wrong(f"a dict of {', '.join(map(repr, keys)) or 'nothing'}", got)
            for key, child in node["dict"]:
                self._flatten(child, value[key], f"{path}[{key!r}]", found)
        elif "list" in node or "tuple" in node:
            ((kind, children),) = node.items()
            if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(children):
                got = type(value).__name__ + (f" of {len(value)}" if isinstance(value, Sequence) else "")
                raise wrong(f"a {kind} of {len(children)}", got)
            for i, (child, item) in enumerate(zip(children, value, strict=True)):
                self._flatten(child, item, f"{path}[{i}]", found)
        else:
            ((_, (name, fields)),) = node.items()
            for field, child in fields:
                if not hasattr(value, field):
                    raise wrong(f"like {name}, with the attribute {field}")
                self._flatten(child, getattr(value, field), f"{path}.{field}", found)

    def _check(self, status: int, where: str) -> None:
        if status:
            message = self._api.message().decode(errors="replace")
            raise _error(_STATUSES[status] if status < len(_STATUSES) else str(status), message, where=where)


def _built(node: Any, arrays: Any) -> Any:
    """Builds the tree of a node of the manifest."""
    if node is None or node == "*":
        return next(arrays) if node else None
    ((kind, children),) = node.items()
    if kind == "dict":
        return {key: _built(child, arrays) for key, child in children}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_built(child, arrays) for child in children)
    name, fields = children
    values = {field: _built(child, arrays) for field, child in fields}
    return _named(name, tuple(values))(**values) if kind == "named" else SimpleNamespace(**values)


@lru_cache
def _named(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields, rename=True)  # a class that was made with it has names such as _0


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new array that begins at a multiple of the alignment."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


_base_references = lambda array: sys.getrefcount(array.base)
# The reference count if no other array is a view of the same memory.
_ONE_VIEW = _base_references(_empty((1,), np.dtype("uint8")))


def _buffers(leaves: Sequence[LeafInfo], arrays: Sequence[np.ndarray]) -> Any:
    buffers = (_Buffer * len(arrays))()
    for buffer, info, array in zip(buffers, leaves, arrays, strict=True):
        buffer.data, buffer.nbytes, buffer.dtype = array.ctypes.data, array.nbytes, _CODES[info.dtype]
    return buffers
