"""NVIDIA's driver: its functions through ctypes, and its errors. Nothing here needs TVM or CUDA's runtime library."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cached_property
from threading import Lock
from typing import Any

from tvmfun.errors import DeviceError, OutOfMemoryError, TargetError, TvmfunError

# Graphs with parameters that can be changed, and clusters, under the names that kernels' launches use here.
_OLDEST = 12000

OUT_OF_MEMORY = 2
#: The errors of images that the driver refuses.
NO_CODE = {200, 209, 218, 300, 302}

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_UINT = ctypes.c_uint
_SIZE = ctypes.c_size_t
_ADDRESS = ctypes.c_uint64
_OUT = ctypes.c_void_p

# The types of the parameters of each function that is called here.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (_OUT,),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetName": (_OUT, _INT, _INT),
    "cuDeviceGetAttribute": (_OUT, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuCtxSetCurrent": (_POINTER,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (_OUT, ctypes.c_char_p),
    "cuModuleGetFunction": (_OUT, _POINTER, ctypes.c_char_p),
    "cuFuncSetAttribute": (_POINTER, _INT, _INT),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemGetInfo_v2": (_OUT, _OUT),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _POINTER, _SIZE, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _ADDRESS, _SIZE, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _POINTER),
    "cuMemcpyPeerAsync": (_ADDRESS, _POINTER, _ADDRESS, _POINTER, _SIZE, _POINTER),
    "cuStreamCreate": (_OUT, _UINT),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamWaitEvent": (_POINTER, _POINTER, _UINT),
    "cuEventCreate": (_OUT, _UINT),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventDestroy_v2": (_POINTER,),
    "cuLaunchKernelEx": (_POINTER, _POINTER, _POINTER, _POINTER),
    "cuTensorMapEncodeTiled": (_OUT, _INT, _UINT, _ADDRESS, *[_POINTER] * 4, *[_INT] * 4),
    "cuGraphCreate": (_OUT, _UINT),
    "cuGraphDestroy": (_POINTER,),
    "cuGraphAddKernelNode_v2": (_OUT, _POINTER, _POINTER, _SIZE, _POINTER),
    "cuGraphKernelNodeSetAttribute": (_POINTER, _INT, _POINTER),
    "cuGraphAddMemcpyNode": (_OUT, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER),
    "cuGraphInstantiateWithFlags": (_OUT, _POINTER, ctypes.c_ulonglong),
    "cuGraphExecKernelNodeSetParams_v2": (_POINTER, _POINTER, _POINTER),
    "cuGraphExecMemcpyNodeSetParams": (_POINTER, _POINTER, _POINTER, _POINTER),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphExecDestroy": (_POINTER,),
}

# The first version of CUDA with conditional nodes, which may be nested.
_CONDITIONS = 12040
# The first version with conditional nodes of several bodies.
_SWITCHES = 12080
_OF_CONDITIONS: dict[str, tuple[Any, ...]] = {
    "cuGraphConditionalHandleCreate": (_OUT, _POINTER, _POINTER, _UINT, _UINT),
    "cuGraphAddNode_v2": (_OUT, _POINTER, _POINTER, _POINTER, _SIZE, _POINTER),
}

# Functions that return at once: releasing the GIL, which another thread may then hold for milliseconds, costs more.
_QUICK = {
    "cuCtxSetCurrent", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx", "cuGraphLaunch",
    "cuGraphExecKernelNodeSetParams_v2", "cuGraphExecMemcpyNodeSetParams", "cuTensorMapEncodeTiled",
}  # fmt: skip


class DriverError(Exception):
    """A function of the driver that failed.

    Args:
        code: the driver's number of the error.
        name: the driver's name of it.
        function: the function.
    """

    def __init__(self, code: int, name: str, function: str) -> None:
        super().__init__(f"{name} of {function}")
        self.code = code
        self.name = name
        self.function = function

    def as_user_error(self, where: str, what: str, hint: str = "") -> TvmfunError:
        """The error for users.

        Args:
            where: the function that they called.
            what: what failed.
            hint: what to try.
        """
        if self.code == OUT_OF_MEMORY:
            hint = hint or "smaller arrays, or donated ones; memory_analysis() of a compiled function for its bytes"
            return OutOfMemoryError(where, f"the GPU has no memory for {what}", got=str(self), hint=hint)
        if self.code in NO_CODE:
            hint = "the arch of that GPU in the target, or a newer driver"
            return TargetError(where, "the driver cannot load the machine code", got=str(self), hint=hint)
        return DeviceError(where, what, got=str(self), hint=hint)


class Driver:
    """The driver's functions as methods, which raise :class:`DriverError`.

    Args:
        path: the library.

    Raises:
        OSError: if it cannot be loaded.
        TargetError: if it lacks a function, because it is too old.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        slow, quick = ctypes.CDLL(path), ctypes.PyDLL(path)
        missing = [name for name in _FUNCTIONS if not hasattr(slow, name)]
        if missing:
            hint = "a driver of CUDA 12 or newer"
            raise TargetError("cuda", "the driver is too old", got=f"one without {missing[0]}", hint=hint)
        self._error_name = slow.cuGetErrorName
        found = {name: types for name, types in _OF_CONDITIONS.items() if hasattr(slow, name)}
        for name, types in (_FUNCTIONS | found).items():
            function = getattr(quick if name in _QUICK else slow, name)
            function.argtypes = types
            setattr(self, name, self._checked(name, function))
        self._lacks = _OF_CONDITIONS.keys() - found.keys()

    @cached_property
    def version(self) -> int:
        """The version of CUDA that it is for, such as 12040 for 12.4."""
        return self.integer("cuDriverGetVersion")

    @property
    def has_conditions(self) -> bool:
        """Whether graphs can have conditional nodes, also within each other."""
        return self.version >= _CONDITIONS and not self._lacks

    @property
    def has_switches(self) -> bool:
        """Whether conditional nodes can have several bodies, one of which a number selects."""
        return self.has_conditions and self.version >= _SWITCHES

    def __getattr__(self, name: str) -> Callable[..., None]:
        raise AttributeError(name)  # for type checkers: the functions are attributes of the instance

    def _checked(self, name: str, function: Callable[..., int]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            code = function(*arguments)
            if code:
                raise DriverError(code, self._name(code), name)

        return call

    def _name(self, code: int) -> str:
        name = ctypes.c_char_p()
        self._error_name(code, ctypes.byref(name))
        return name.value.decode() if name.value else f"error {code}"

    def integer(self, name: str, *arguments: Any) -> int:
        """The number that a function writes to its first parameter, an integer."""
        value = ctypes.c_int()
        getattr(self, name)(ctypes.byref(value), *arguments)
        return value.value

    def handle(self, name: str, *arguments: Any) -> int:
        """The value that a function writes to its first parameter, a handle or an address."""
        value = ctypes.c_uint64()
        getattr(self, name)(ctypes.byref(value), *arguments)
        return value.value


_LOCK = Lock()
_LOADED: list[Driver | TargetError] = []


def driver() -> Driver:
    """Returns the driver of this machine.

    Raises:
        TargetError: if there is none, or it has no GPU, or is too old.
    """
    with _LOCK:
        if not _LOADED:
            _LOADED.append(_load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"))
    if isinstance(_LOADED[0], TargetError):
        raise _LOADED[0]
    return _LOADED[0]


def use(path: str | None) -> None:
    """Uses another library with the driver's functions, for tests; None for this machine's library."""
    with _LOCK:
        _LOADED[:] = [] if path is None else [_load(path)]


def device_count() -> int:
    """Returns the number of GPUs; 0 without a driver."""
    try:
        return driver().integer("cuDeviceGetCount")
    except (TargetError, DriverError):
        return 0


def _load(path: str) -> Driver | TargetError:
    hint = "a driver of NVIDIA for a GPU of this machine"
    try:
        loaded = Driver(path)
        loaded.cuInit(0)
        version = loaded.version
    except OSError as error:
        return TargetError("cuda", "NVIDIA's driver is not installed", got=str(error), hint=hint)
    except DriverError as error:
        got = f"{error}, CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"
        return TargetError("cuda", "NVIDIA's driver finds no GPU", got=got, hint=hint)
    except TargetError as error:
        return error
    if version < _OLDEST:
        got = f"version {version // 1000}.{version % 1000 // 10}"
        return TargetError("cuda", "the driver is too old", got=got, hint="a driver of CUDA 12 or newer")
    return loaded
