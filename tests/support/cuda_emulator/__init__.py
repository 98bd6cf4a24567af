"""An emulator of GPUs: CUDA source, compiled by g++, runs on the CPU.

The threads of a block take turns in an order drawn from a seed, so a missing barrier gives another result. So does
reading shared memory that nobody has written, which is filled with something else for every order. There are
shuffles, votes, atomics, static and dynamic shared memory, and inline PTX: ``mma.sync``, ``ldmatrix``, ``cp.async``,
``wgmma`` with matrix descriptors. Products in the background run any time until a warp waits for them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from support.cuda_emulator.translate import translate
from tvmfun.runtime.cuda_module import TensorMap

FOLDER = Path(__file__).parent
GXX = shutil.which("g++")
# More optimization takes g++ longer than most kernels run.
_OPTIONS = ["-Og", "-fPIC", "-march=native", "-fno-strict-aliasing", "-w", "-std=c++20", "-U_FORTIFY_SOURCE"]
# It takes half the time of the default linker.
_LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
# Written before and after every array: NaN as a float, and -1 as an integer.
_MARGIN, _POISON = 4096, 0xFF


class EmulationError(RuntimeError):
    """A kernel did what it must not do: a race, a deadlock, or an access outside of its arrays."""


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("entry", ctypes.c_void_p),
        ("count", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_size_t)),
        ("most_threads", ctypes.c_int),
    )


class MappedArray(NamedTuple):
    """An array that a kernel gets as a tensor map."""

    array: np.ndarray
    tensor: TensorMap


def encoded_map(tensor: TensorMap, base: int) -> bytes:
    """Encodes the map of an array at this address, as the emulated driver does."""
    rank, fill = len(tensor.sizes), lambda numbers, count: [*numbers, *[0] * (count - len(numbers))]
    numbers = *fill(tensor.strides, 4), *fill(tensor.sizes, 5), *fill(tensor.box, 5)
    return struct.pack("<IIQ4Q5I5HH", 0x70616D74, rank, base + tensor.address.offset, *numbers, 2).ljust(128, b"\0")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    """A directory for libraries, with the emulator compiled ahead, which takes longer than most kernels."""
    folder = tempfile.TemporaryDirectory(prefix="emulated")
    for file in (*FOLDER.glob("*.h"), FOLDER / "threads.cpp"):
        shutil.copy(file, folder.name)
    subprocess.run([str(GXX), *_OPTIONS, "-x", "c++-header", f"{folder.name}/warpgroups.h"], check=True)
    threads = f"{folder.name}/threads"
    subprocess.run([str(GXX), *_OPTIONS, "-c", "-o", f"{threads}.o", f"{threads}.cpp"], check=True)
    return folder


@functools.cache
def compiled(source: str, kernels: tuple[str, ...] = ()) -> Path:
    """Returns a shared library of the kernels, which the emulated driver loads like a cubin.

    Args:
        source: CUDA C++.
        kernels: instances of kernels that are templates.
    """
    name = hashlib.sha256(repr((source, kernels)).encode()).hexdigest()[:24]
    code, library = (Path(_folder().name) / f"{name}.{ending}" for ending in ("cpp", "so"))
    code.write_text(translate(source, kernels))
    command = [str(GXX), *_OPTIONS, *_LINKER, "-shared", "-o", str(library), str(code), f"{_folder().name}/threads.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"g++ refuses the kernels: {done.stderr[:4000]}")
    return library


@functools.cache
def _loaded(source: str, kernels: tuple[str, ...]) -> tuple[ctypes.CDLL, dict[str, _Kernel]]:
    library = ctypes.CDLL(str(compiled(source, kernels)))
    library.emulated_launch.restype = ctypes.c_char_p
    table = ctypes.cast(library.emulated_kernels, ctypes.POINTER(_Kernel))
    found, i = {}, 0
    while table[i].name:
        found[table[i].name.decode()] = table[i]
        i += 1
    return library, found


def run(
    source: str,
    kernel: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    shared: int,
    args: Sequence[Any],
    *,
    orders: int = 3,
    rtol: float = 0.0,
) -> None:
    """Runs a kernel, which changes the arrays in place.

    Args:
        source: CUDA C++.
        kernel: the name of a kernel, or an instance of a template, such as ``"product<64, 2>"``.
        grid: the numbers of blocks.
        block: the numbers of threads in a block.
        shared: the bytes of dynamic shared memory.
        args: contiguous NumPy arrays for pointers, numbers, NumPy scalars, and ``bytes`` for structs.
        orders: how often to run it, each time from the same arguments with blocks and threads in another order.
        rtol: how much results of two orders may differ, for sums by atomics.

    Raises:
        EmulationError: if the order of threads changes a result, or shared memory that nobody has written; if a thread
            waits forever, or writes before or after an array.
        ValueError: if the emulator cannot compile the kernel.
    """
    instances = (kernel,) if "<" in kernel else ()
    library, kernels = _loaded(source, instances)
    if kernel not in kernels:
        raise ValueError(f"there is no kernel {kernel!r}; there are {', '.join(kernels)}")
    sizes = [*(_extents(grid)), *(_extents(block))]
    if np.prod(sizes[3:]) > kernels[kernel].most_threads:
        raise EmulationError(f"{kernel} is for at most {kernels[kernel].most_threads} threads, got {sizes[3:]}")
    first: list[np.ndarray] = []
    for seed in range(max(1, orders)):
        results = _run_once(library, kernels[kernel], sizes, shared, args, seed)
        if not seed:
            first = results
            continue
        for i, (one, other) in enumerate(zip(first, results, strict=True)):
            if not _equal(one, other, rtol):
                different = np.flatnonzero(_bytes(one) != _bytes(other))[0] // one.itemsize
                raise EmulationError(
                    f"{kernel}: argument {i} depends on the order of threads, or on shared memory that nobody wrote, "
                    f"first at its element {different}"
                )
    arrays = [arg.array if isinstance(arg, MappedArray) else arg for arg in args]
    for array, result in zip(arrays, first, strict=True):
        if isinstance(array, np.ndarray):
            array[...] = result


def _extents(sizes: int | Sequence[int]) -> list[int]:
    given = [sizes] if isinstance(sizes, int) else list(map(int, sizes))
    return [*given, *[1] * (3 - len(given))]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _equal(one: np.ndarray, other: np.ndarray, rtol: float) -> bool:
    if np.array_equal(_bytes(one), _bytes(other)):
        return True
    if not rtol or one.dtype.kind in "biu":
        return False
    return np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=rtol, atol=rtol, equal_nan=True)


def _run_once(library: Any, kernel: _Kernel, sizes: list[int], shared: int, args: Sequence[Any], seed: int) -> list:
    name = kernel.name.decode()
    if len(args) != kernel.count:
        raise ValueError(f"{name} has {kernel.count} parameters, got {len(args)} arguments")
    values, memories = [], []
    for i, value in enumerate(args):
        tensor, value = (value.tensor, value.array) if isinstance(value, MappedArray) else (None, value)
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError(f"argument {i} of {name} must be contiguous")
            memory = np.full(value.nbytes + 2 * _MARGIN + 256, _POISON, np.uint8)
            begin = _MARGIN + -(memory.ctypes.data + _MARGIN) % 256
            memory[begin : begin + value.nbytes] = _bytes(value)
            memories.append((i, value, memory, begin))
            raw = (memory.ctypes.data + begin).to_bytes(8, "little")
            if tensor is not None:
                raw = encoded_map(tensor, memory.ctypes.data + begin)
        else:
            raw = _scalar(value, kernel.sizes[i])
            memories.append((i, value, None, 0))
        if len(raw) != kernel.sizes[i]:
            raise ValueError(f"parameter {i} of {name} has {kernel.sizes[i]} bytes, got {value!r}")
        values.append(ctypes.create_string_buffer(raw, len(raw)))
    table = (ctypes.c_void_p * (len(values) + 1))(*(ctypes.addressof(value) for value in values))
    entry = ctypes.c_void_p(kernel.entry)
    error = library.emulated_launch(
        entry, table, *map(ctypes.c_uint, sizes), ctypes.c_size_t(shared), ctypes.c_uint64(seed)
    )
    if error:
        raise EmulationError(f"{name}: {error.decode()}")
    results = []
    for i, value, memory, begin in memories:
        if memory is None:
            results.append(np.zeros(0))
            continue
        outside = np.concatenate([memory[:begin], memory[begin + value.nbytes :]])
        if (outside != _POISON).any():
            raise EmulationError(f"{name}: it writes before or after argument {i}")
        results.append(memory[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape))
    return results


def _scalar(value: Any, size: int) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, float):
        return np.asarray(value, {4: np.float32, 8: np.float64}[size]).tobytes()
    return int(value).to_bytes(size, "little", signed=value < 0)
