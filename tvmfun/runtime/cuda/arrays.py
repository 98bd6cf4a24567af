"""Memory of arrays on GPUs: shared by results of the launcher, views as TVM's tensors, and copies."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import tvm
import tvm_ffi

from tvmfun import dtypes
from tvmfun.errors import DeviceError
from tvmfun.runtime.cuda.devices import Block, Device, Stream, device_at
from tvmfun.runtime.cuda.driver import DriverError
from tvmfun.runtime.memory import Memory


class DeviceMemory(Memory):
    """A block on a GPU that holds an array.

    Args:
        block: the block.
        aval: the type of the array.
    """

    __slots__ = ("block",)

    def __init__(self, block: Block, aval: Any) -> None:
        super().__init__(None, aval)  # type: ignore[arg-type]  # made when it is asked for
        self.block = block

    @property
    def address(self) -> int:
        """The inverted address, which is negative."""
        return ~self.block.address

    @property
    def device(self) -> Any:
        """The device."""
        return tvm.cuda(self.block.device.index)

    @property
    def tensor(self) -> tvm.runtime.Tensor:
        """The tensor, for readers that wait for it; it keeps the block alive."""
        self.is_seen = True
        if self._tensor is None:
            self._tensor = _tensor(self.block, self.aval)
        return self._tensor

    def of(self, aval: Any) -> DeviceMemory:
        """Views the elements as an array of another type."""
        return DeviceMemory(self.block, aval)

    def synchronize(self) -> None:
        """Waits until the elements are computed.

        Raises:
            DeviceError: if a kernel failed.
        """
        self.block.synchronize()


def new(aval: Any, device: Any, where: str = "device_put") -> DeviceMemory:
    """Uninitialized memory for an array on a TVM device.

    Raises:
        OutOfMemoryError: if there is none.
    """
    stream = device_at(device.index).stream()
    return DeviceMemory(Block(stream, aval.nbytes, "an array", where), aval)


def copy_in(source: int, memory: DeviceMemory) -> None:
    """Copies from an address of the CPU; the elements there are read when this returns."""

    def copy(device: Device, stream: Stream, nbytes: int) -> None:
        memory.block.write_on(stream)
        device.activate()
        device.driver.cuMemcpyHtoDAsync_v2(memory.block.address, source, nbytes, stream.handle)

    _run(memory.block.device, memory.aval.nbytes, copy)


def copy_out(memory: Memory, address: int, target: int, nbytes: int) -> None:
    """Copies to an address of the CPU, and waits for the copy.

    Args:
        memory: the memory of the elements.
        address: their inverted address.
        target: the address on the CPU.
        nbytes: their size.
    """

    def copy(device: Device, stream: Stream, nbytes: int) -> None:
        _read(memory, stream)
        device.activate()
        device.driver.cuMemcpyDtoHAsync_v2(target, ~address, nbytes, stream.handle)

    device = device_at(memory.device.index)
    _run(device, nbytes, copy)
    device.stream().synchronize()


def copy(memory: Memory, address: int, target: DeviceMemory) -> None:
    """Copies the elements at an inverted address to memory on the same GPU or another one."""

    def copy(device: Device, stream: Stream, nbytes: int) -> None:
        _read(memory, stream)
        target.block.write_on(stream)
        device.activate()
        there, to = device.driver, target.block
        here = device_at(memory.device.index)
        if here is device:
            there.cuMemcpyDtoDAsync_v2(to.address, ~address, nbytes, stream.handle)
        else:
            there.cuMemcpyPeerAsync(to.address, device.context, ~address, here.context, nbytes, stream.handle)

    _run(target.block.device, target.aval.nbytes, copy)


def _read(memory: Memory, stream: Stream) -> None:
    if isinstance(memory, DeviceMemory):
        memory.block.read_on(stream)


def _run(device: Device, nbytes: int, copy: Any) -> None:
    stream = device.stream()
    try:
        if nbytes:
            copy(device, stream, nbytes)
    except DriverError as error:
        what = f"the GPU failed, maybe in {stream.latest}"
        raise error.as_user_error("device_put", what, "CUDA_LAUNCH_BLOCKING=1, which names the kernel") from None
    stream.count += 1


def synchronize(memory: Memory) -> None:
    """Waits until the elements of an array on a GPU are computed.

    Raises:
        DeviceError: if a kernel failed.
    """
    if isinstance(memory, DeviceMemory):
        memory.synchronize()
        return
    try:
        device_at(memory.device.index).activate()
        device_at(memory.device.index).driver.cuCtxSynchronize()
    except DriverError as error:
        raise DeviceError("block_until_ready", "a kernel failed", got=str(error)) from None


# -- TVM's tensors ---------------------------------------------------------------------------------------------------


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("index", ctypes.c_int))


class _Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, with its ``DLTensor`` first."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
# The owners of the memory of tensors, by the number that is a tensor's context.
_ALIVE: dict[int, Any] = {}
_NUMBERS = itertools.count(1)


@_DELETER
def _delete(managed: Any) -> None:
    _ALIVE.pop(managed.contents.context, None)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def _tensor(block: Block, aval: Any) -> Any:
    """A tensor of the elements of a block."""
    dtype = tvm_ffi.dtype(dtypes.NAMES[aval.dtype])
    number = next(_NUMBERS)
    shape = (ctypes.c_int64 * max(1, len(aval.shape)))(*aval.shape)
    managed = _Managed(
        block.address,
        _Device(int(tvm.cuda(0).dlpack_device_type()), block.device.index),
        len(aval.shape),
        _Dtype(int(dtype.type_code), int(dtype.bits), int(dtype.lanes)),
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        None,
        0,
        number,
        ctypes.cast(_delete, ctypes.c_void_p),
    )
    _ALIVE[number] = block, managed, shape
    capsule = _new_capsule(ctypes.addressof(managed), b"dltensor", None)
    return tvm.runtime.from_dlpack(capsule)
