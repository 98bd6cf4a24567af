"""A machine with emulated GPUs: a driver, and a compiler that makes shared libraries of the emulator."""

from __future__ import annotations

import ctypes
import functools
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import tvmfun
from support.cuda_emulator import FOLDER, GXX, _folder, compiled
from tvmfun.lower.codegen.cuda import compilers, cubins
from tvmfun.runtime.cuda import driver as cuda_driver
from tvmfun.runtime.cuda_module import Usage


class EmulatedCompiler:
    """A compiler whose images are shared libraries, one for all kernels of a source."""

    version = "emulator"
    is_slow_to_start = True

    def compile(self, source: str, kernels: Sequence[str], options: compilers.Options) -> list[compilers.Image]:
        """Returns the library once for each kernel."""
        image = compiled(source).read_bytes()
        return [compilers.Image(image, Usage(32, 0, 0, 0)) for _ in kernels]


@functools.cache
def driver_path() -> Path:
    """The driver as a shared library."""
    path = Path(_folder().name) / "libcuda.so"
    command = [str(GXX), "-std=c++20", "-O1", "-shared", "-fPIC", "-o", str(path), str(FOLDER / "driver.cpp")]
    subprocess.run(command, check=True)
    return path


class Machine:
    """Controls of the emulated driver for tests."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(driver_path()))
        self._library.emulated_calls.restype = ctypes.c_uint64
        self._library.emulated_used.restype = ctypes.c_size_t
        self._library.emulated_message.restype = ctypes.c_char_p

    def reset(self, devices: int = 2, memory: int = 1 << 30, seed: int = 0) -> None:
        """Forgets failures and counts; ``seed`` sets the order of blocks and threads."""
        self._library.emulated_reset(devices, ctypes.c_size_t(memory), ctypes.c_uint64(seed))

    def fail(self, function: str, code: int, after: int = 0) -> None:
        """Makes a call of a function of the driver fail, after as many that do not."""
        self._library.emulated_fail(function.encode(), code, after)

    def is_version(self, version: int) -> None:
        """Makes the driver one for this version of CUDA, such as 12040 for 12.4."""
        self._library.emulated_is(version, 9, 0)
        cuda_driver.use(str(driver_path()))

    def calls(self, function: str) -> int:
        """How often a function of the driver was called."""
        return self._library.emulated_calls(function.encode())

    def used(self, device: int = 0) -> int:
        """The bytes that are allocated on a device."""
        return self._library.emulated_used(device)

    @property
    def message(self) -> str:
        """The fault of the first kernel that failed."""
        return self._library.emulated_message().decode()


@contextmanager
def emulated_gpus(**options: Any) -> Iterator[Machine]:
    """A context in which this machine has emulated GPUs; the options are those of :meth:`Machine.reset`."""
    machine = Machine()
    machine.reset(**options)
    tvmfun.clear_caches()
    cubins.clear_cache()
    cuda_driver.use(str(driver_path()))
    try:
        with (
            mock.patch.object(compilers, "find_compiler", EmulatedCompiler),
            mock.patch.object(compilers, "why_none", lambda: None),
        ):
            yield machine
    finally:
        tvmfun.clear_caches()
        cubins.clear_cache()
        machine.reset()
        cuda_driver.use(None)
