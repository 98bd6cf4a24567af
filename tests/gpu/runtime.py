"""Compiled modules that are called with bytes, through the launcher alone."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from tvmfun.runtime.cuda.devices import Block, Device, Stream, device_at
from tvmfun.runtime.cuda.launcher import Launcher, upload
from tvmfun.runtime.cuda_module import ArrayType, CudaModule

# Random numbers that are drawn for an array.
_MOST_DRAWN = 1 << 20


class LoadedModule:
    """A compiled module on the first GPU.

    Args:
        content: what :meth:`~tvmfun.runtime.cuda_module.CudaModule.pack` returned.
        name: for errors.
        captured: its first arguments.
    """

    def __init__(self, content: bytes, name: str, captured: Sequence[Block] = ()) -> None:
        self.module = CudaModule.unpack(content, name)
        self.module.check_code()
        self.name = name
        self.captured = captured
        self.device: Device = device_at(0)
        self.launcher = Launcher(self.module, self.device, name)

    @property
    def stream(self) -> Stream:
        """The stream of this thread."""
        return self.device.stream()

    def __call__(self, inputs: Sequence[Block]) -> list[Block]:
        """Starts a call; returns the results, some of which are written over donated inputs."""
        inputs = [*self.captured, *inputs]
        stream, plan = self.stream, self.module.plan
        fresh = [Block(stream, size, "results", self.name) for size in plan.fresh]
        for block in (*inputs, *fresh):
            block.write_on(stream)
        self.launcher.run(stream, [block.address for block in (*inputs, *fresh)])
        return [(*inputs, *fresh)[slot] for slot in plan.results]


def distinct(blocks: Sequence[Block], module: CudaModule) -> list[Block]:
    """The results of a call with a block each, so that they can be donated: equal results share one."""
    seen: set[int] = set()
    result = []
    for block, kind in zip(blocks, module.results, strict=True):
        result.append(
            put(get(block, kind._replace(shape=(kind.nbytes,), dtype="uint8"))) if id(block) in seen else block
        )
        seen.add(id(block))
    return result


def put(array: np.ndarray) -> Block:
    """Copies an array to the first GPU."""
    device = device_at(0)
    device.activate()
    content = np.ascontiguousarray(array).tobytes()
    block = Block(device.stream(), len(content), "an array", "put")
    if content:
        upload(block, content)
    return block


def get(block: Block, kind: ArrayType) -> np.ndarray:
    """Copies an array from the GPU, and waits for it."""
    content = (ctypes.c_char * max(1, kind.nbytes))()
    device = block.device
    stream = device.stream()
    device.activate()
    block.read_on(stream)
    if kind.nbytes:
        device.driver.cuMemcpyDtoHAsync_v2(content, block.address, kind.nbytes, stream.handle)
    stream.synchronize()
    return decoded(content.raw[: kind.nbytes], kind)


def filled(kind: ArrayType, seed: int) -> Block:
    """An array on the first GPU: normal random numbers, integers of 0 to 9, in large arrays again and again."""
    device, generator = device_at(0), np.random.default_rng(seed)
    device.activate()
    block = Block(device.stream(), kind.nbytes, "an array", "filled")
    count = min(math.prod(kind.shape), _MOST_DRAWN)
    if kind.dtype == "bfloat16":
        part = (generator.standard_normal(count, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif kind.dtype.startswith("float"):
        part = generator.standard_normal(count, np.float32).astype(kind.dtype)
    else:
        part = generator.integers(0, 10, count).astype(kind.dtype)
    done = part.nbytes
    if done:
        upload(block, part.tobytes())
    while done < kind.nbytes:
        size = min(done, kind.nbytes - done)
        device.driver.cuMemcpyDtoDAsync_v2(block.address + done, block.address, size, device.stream().handle)
        done += size
    return block


def decoded(content: bytes, kind: ArrayType) -> np.ndarray:
    """The array of bytes; those of dtypes that NumPy lacks as float32.

    >>> decoded(bytes([0x80, 0x3F, 0, 0xC0]), ArrayType((2,), "bfloat16"))
    array([ 1., -2.], dtype=float32)
    """
    if kind.dtype == "bfloat16":
        widened = np.frombuffer(content, np.uint16).astype(np.uint32) << 16
        return widened.view(np.float32).reshape(kind.shape)
    if kind.dtype.startswith("float8"):
        import ml_dtypes

        return np.frombuffer(content, getattr(ml_dtypes, kind.dtype)).astype(np.float32).reshape(kind.shape)
    return np.frombuffer(content, kind.dtype).reshape(kind.shape)
