"""GPUs: contexts, a stream per thread, order between streams, and memory that streams free and reuse."""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from contextlib import suppress
from threading import RLock, local
from typing import Any
from weakref import WeakSet

from tvmfun.errors import OutOfMemoryError, TargetError
from tvmfun.runtime.cuda.driver import OUT_OF_MEMORY, Driver, DriverError, device_count, driver

# The driver's numbers of a device's attributes (``CUdevice_attribute``).
_THREADS = 1
_SHARED = 8
_WARP_SIZE = 10
_REGISTERS = 12
_MAJOR = 75
_MINOR = 76
_MOST_SHARED = 97
# The flag of events that do not record a time.
_WITHOUT_TIME = 2

# Sizes of blocks are rounded up to a multiple of this, so that more blocks can be used again.
_STEP = 512
# Sizes of large blocks are rounded up to a multiple of this.
_LARGE_STEP = 2 << 20


class Stream:
    """A queue of work on a device, which one thread at a time adds to.

    Args:
        device: the device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        # It waits for the legacy default stream, which TVM uses, and that one waits for it.
        self.handle = device.driver.handle("cuStreamCreate", 0)
        #: The number of pieces of work so far.
        self.count = 0
        #: For each other stream the count of its work up to which this one waits.
        self.seen: dict[Stream, int] = {}
        #: Free blocks by size, whose last use is ordered before this stream's next work.
        self.free: dict[int, list[int]] = defaultdict(list)
        #: Free blocks that other streams may still read: their size, their address, and the streams with their counts.
        self.read_elsewhere: list[tuple[int, int, dict[Stream, int]]] = []
        #: A description of its last work, for errors that are reported later.
        self.latest = "a GPU"
        self._arena: Block | None = None

    def wait(self, other: Stream, count: int) -> None:
        """Continues after the first ``count`` pieces of work of another stream."""
        if other is self or self.seen.get(other, 0) >= count:
            return
        driver, reached = self.device.driver, other.count
        other.device.activate()
        event = driver.handle("cuEventCreate", _WITHOUT_TIME)
        driver.cuEventRecord(event, other.handle)
        self.device.activate()
        driver.cuStreamWaitEvent(self.handle, event, 0)
        driver.cuEventDestroy_v2(event)  # the driver keeps it until it is reached
        self.seen[other] = reached

    def synchronize(self) -> None:
        """Waits until everything is done.

        Raises:
            DeviceError: if a kernel failed.
        """
        self.device.activate()
        try:
            self.device.driver.cuStreamSynchronize(self.handle)
        except DriverError as error:
            hint = "CUDA_LAUNCH_BLOCKING=1, which names the kernel, or compute-sanitizer"
            raise error.as_user_error(self.latest, "a kernel failed", hint) from None

    def arena(self, nbytes: int) -> int:
        """The address of memory that each piece of work may use until it is done; it grows and never shrinks."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self._arena = None  # ordered, so its memory can become a part of the new one
            self._arena = Block(self, nbytes, "intermediates")
        return self._arena.address


class Block:
    """Memory on a device, returned to its stream when nothing refers to it.

    Args:
        stream: the stream that writes it first.
        nbytes: the size.
        what: the purpose, for an error.
        where: the function that needs it, for an error.

    Raises:
        OutOfMemoryError: if the device has too little free memory.
    """

    __slots__ = ("__weakref__", "_writer", "address", "nbytes", "readers", "size", "written")

    def __init__(self, stream: Stream, nbytes: int, what: str = "an array", where: str = "jit") -> None:
        step = _LARGE_STEP if nbytes >= _LARGE_STEP else _STEP
        self.nbytes = nbytes
        self.size = max(1, -(-nbytes // step)) * step
        self._writer = stream
        self.written = stream.count
        #: Other streams that read it, and their counts by then.
        self.readers: dict[Stream, int] = {}
        self.address = stream.device.allocate(stream, self.size, nbytes, what, where)

    @property
    def device(self) -> Device:
        """The device that it is on."""
        return self._writer.device

    def read_on(self, stream: Stream) -> None:
        """Orders the next work of a stream after the latest write."""
        if stream is not self._writer:
            stream.wait(self._writer, self.written)
            self.readers[stream] = stream.count + 1

    def write_on(self, stream: Stream) -> None:
        """Orders the next work of a stream after the latest write and all reads; the stream then owns the block."""
        if stream is not self._writer:
            stream.wait(self._writer, self._writer.count)
        for reader, count in self.readers.items():
            stream.wait(reader, count)
        self.readers = {}
        self._writer, self.written = stream, stream.count + 1

    def synchronize(self) -> None:
        """Waits until it is written."""
        self._writer.synchronize()

    @property
    def writer(self) -> Stream:
        """The stream that wrote it last."""
        return self._writer

    def __del__(self) -> None:
        address = getattr(self, "address", 0)
        if address and not sys.is_finalizing():
            self.device.release(self)


class Device:
    """A GPU.

    Args:
        driver: the driver.
        index: the number of the GPU.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver = driver
        self.index = index
        self._handle = driver.integer("cuDeviceGet", index)
        self.context = driver.handle("cuDevicePrimaryCtxRetain", self._handle)
        self._threads = local()
        self._idle: list[Stream] = []
        self._streams: WeakSet[Stream] = WeakSet()
        self._lock = RLock()

    def attribute(self, number: int) -> int:
        """A property of the device, by the driver's number."""
        return self.driver.integer("cuDeviceGetAttribute", number, self._handle)

    def target(self) -> dict[str, Any]:
        """The properties that a target for this device needs.

        Variants such as ``sm_90a``, with instructions that later architectures lack, are chosen where they exist.
        """
        major, minor = self.attribute(_MAJOR), self.attribute(_MINOR)
        suffix = "a" if major in (9, 10) else ""
        return {
            "kind": "cuda",
            "arch": f"sm_{major}{minor}{suffix}",
            "max_threads_per_block": self.attribute(_THREADS),
            "max_shared_memory_per_block": self.attribute(_SHARED),
            "thread_warp_size": self.attribute(_WARP_SIZE),
            "registers_per_block": self.attribute(_REGISTERS),
        }

    @property
    def name(self) -> str:
        """The name of the product."""
        text = ctypes.create_string_buffer(100)
        self.driver.cuDeviceGetName(text, len(text), self._handle)
        return text.value.decode()

    @property
    def most_shared_bytes(self) -> int:
        """The most dynamic shared memory that a kernel can be allowed to use."""
        return self.attribute(_MOST_SHARED)

    def activate(self) -> None:
        """Makes the device the current one of the driver in this thread."""
        self.driver.cuCtxSetCurrent(self.context)

    def stream(self) -> Stream:
        """The stream of this thread."""
        try:
            return self._threads.lease.stream
        except AttributeError:
            self._threads.lease = _Lease(self)
            return self._threads.lease.stream

    def take_stream(self) -> Stream:
        """A stream that no thread uses."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self.activate()
            stream = Stream(self)
            self._streams.add(stream)
            return stream

    def give_back_stream(self, stream: Stream) -> None:
        """Lets another thread use a stream, after the work in it."""
        self._idle.append(stream)

    def synchronize(self) -> None:
        """Waits until all work is done."""
        for stream in list(self._streams):
            stream.synchronize()

    # -- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, stream: Stream, size: int, nbytes: int, what: str, where: str) -> int:
        """The address of memory that a stream has freed, or of new memory.

        Raises:
            OutOfMemoryError: if there is none even after all free memory is returned to the driver.
        """
        if stream.read_elsewhere:
            _collect(stream)
        with suppress(IndexError):
            return stream.free[size].pop()
        self.activate()
        try:
            return self.driver.handle("cuMemAlloc_v2", size)
        except DriverError as error:
            if error.code != OUT_OF_MEMORY:
                raise error.as_user_error(where, "memory cannot be allocated") from None
        self.trim()
        try:
            return self.driver.handle("cuMemAlloc_v2", size)
        except DriverError:
            available, total = self.memory()
            hint = "smaller arrays, donated ones, or jit(f).lower(...).compile().memory_analysis() for what f needs"
            got = f"a request for {nbytes:,} bytes; {available:,} of {total:,} are free on cuda:{self.index}"
            raise OutOfMemoryError(where, f"the GPU has no memory for {what}", got=got, hint=hint) from None

    def release(self, block: Block) -> None:
        """Makes memory available to the stream that wrote it.

        It calls no function of the driver, because the garbage collector may do this at any time.
        """
        if block.readers:
            block.writer.read_elsewhere.append((block.size, block.address, block.readers))
        else:
            block.writer.free[block.size].append(block.address)

    def trim(self) -> None:
        """Returns all free memory to the driver, which waits until the device is idle."""
        for stream in list(self._streams):
            _collect(stream)
        self.activate()
        for stream in list(self._streams):
            for addresses in list(stream.free.values()):
                for _ in range(len(addresses)):
                    with suppress(IndexError):  # its own thread was faster
                        self.driver.cuMemFree_v2(addresses.pop())

    def memory(self) -> tuple[int, int]:
        """The bytes that are free, and all bytes."""
        self.activate()
        available, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.driver.cuMemGetInfo_v2(ctypes.byref(available), ctypes.byref(total))
        return available.value, total.value


def _collect(stream: Stream) -> None:
    """Orders the next work of a stream after all reads of its free blocks by other streams."""
    while stream.read_elsewhere:
        size, address, readers = stream.read_elsewhere.pop()
        for reader, count in readers.items():
            stream.wait(reader, count)
        stream.free[size].append(address)


class _Lease:
    """The use of a stream by a thread, until the thread ends."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.take_stream()

    def __del__(self) -> None:
        self.device.give_back_stream(self.stream)


_DEVICES: dict[tuple[int, int], Device] = {}
_LOCK = RLock()


def device_at(index: int) -> Device:
    """Returns a GPU by its number.

    Raises:
        TargetError: if there is no such GPU.
    """
    loaded = driver()
    with _LOCK:
        key = (id(loaded), index)
        if key not in _DEVICES:
            if not 0 <= index < device_count():
                raise TargetError("device", "this machine has no such GPU", got=f"cuda:{index}", hint="devices()")
            _DEVICES[key] = Device(loaded, index)
        return _DEVICES[key]
