"""Runs compiled modules: each stretch of launches that depend on no data is one graph per set of addresses.

Other addresses than before make another graph, up to a limit; after that, and where few launches use the addresses that
differ and these come for the first time, the arguments of an existing graph are changed. So a training step whose state
is donated has one graph, and one whose state alternates between two sets of buffers has two.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from tvmfun.errors import DeviceError, TargetError
from tvmfun.runtime.cuda.devices import Block, Device, Stream
from tvmfun.runtime.cuda.driver import DriverError
from tvmfun.runtime.cuda_module import Branch, Copy, CudaModule, Launch, Repeat, Scalar, Step, While

# The graphs of a stretch that are kept, by addresses.
_GRAPHS_KEPT = 8
# More launches than that are made one by one: making a graph takes a microsecond or two per launch.
_MOST_NODES = 50_000
# Of an existing graph, up to this share of the launches is changed instead of making another graph.
_FEW_CHANGES = 0.25

# Numbers of the driver's interface.
_DYNAMIC_SHARED_BYTES, _CLUSTER, _DEVICE_MEMORY = 8, 4, 2
_LARGE_SHARED = 48 << 10


class KernelNode(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``: its value has 64 bytes, of which a cluster's sizes are the first 12."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class MemoryCopy(ctypes.Structure):
    """``CUDA_MEMCPY3D_v2``."""

    _fields_ = (
        ("source_x", ctypes.c_size_t), ("source_y", ctypes.c_size_t), ("source_z", ctypes.c_size_t),
        ("source_level", ctypes.c_size_t), ("source_kind", ctypes.c_uint), ("source_host", ctypes.c_void_p),
        ("source", ctypes.c_uint64), ("source_array", ctypes.c_void_p), ("reserved0", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t), ("source_height", ctypes.c_size_t),
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t),
        ("level", ctypes.c_size_t), ("kind", ctypes.c_uint), ("host", ctypes.c_void_p),
        ("target", ctypes.c_uint64), ("array", ctypes.c_void_p), ("reserved1", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t), ("target_height", ctypes.c_size_t),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
    )  # fmt: skip


class Launcher:
    """A compiled module on a device.

    Args:
        module: the module.
        device: the device.
        name: the name of the Program, for errors.

    Raises:
        TargetError: if the driver cannot load the machine code.
        OutOfMemoryError: if there is no memory for the constants.
    """

    def __init__(self, module: CudaModule, device: Device, name: str) -> None:
        self.module = module
        self.device = device
        self.name = name
        device.activate()
        try:
            self._functions = _functions(module, device)
        except DriverError as error:
            raise error.as_user_error(name, "the machine code cannot be loaded") from None
        self._constants = Block(device.stream(), len(module.constants), "constants", name)
        if module.constants:
            upload(self._constants, module.constants)
        self._instances: dict[Stream, _Instance] = {}

    def run(self, stream: Stream, table: list[int]) -> None:
        """Starts a call.

        Args:
            stream: the stream of this thread.
            table: the addresses of inputs and of memory for results; those of intermediates and constants are added.

        Raises:
            DeviceError: if a kernel cannot be launched, or an earlier one failed.
            OutOfMemoryError: if there is no memory for the intermediates.
        """
        instance = self._instances.get(stream)
        if instance is None:
            self._instances[stream] = instance = _Instance(self.module, self._functions, stream)
        table.append(stream.arena(self.module.plan.analysis.temporaries))
        self._constants.read_on(stream)
        table.append(self._constants.address)
        stream.latest = self.name
        self.device.activate()
        try:
            instance.run(table)
        except DriverError as error:
            hint = "CUDA_LAUNCH_BLOCKING=1, which names the kernel of a failure that is noticed later"
            failed = error.as_user_error(self.name, f"the GPU failed, in {stream.latest} or before", hint)
            if isinstance(error.__cause__, _AtStepError) and isinstance(failed, DeviceError):
                failed.kernel = str(error.__cause__)
                failed.what, failed.hint = f"the kernel {failed.kernel} failed", "compute-sanitizer"
                failed.rename(self.name)
            raise failed from None
        stream.count += 1


def upload(block: Block, content: bytes | memoryview | ctypes.Array) -> None:
    """Copies bytes to a block; the driver has read them when this returns."""
    stream, device = block.device.stream(), block.device
    block.write_on(stream)
    device.activate()
    source = content if isinstance(content, ctypes.Array) else (ctypes.c_char * len(content)).from_buffer_copy(content)
    device.driver.cuMemcpyHtoDAsync_v2(block.address, source, len(content), stream.handle)
    stream.count += 1


def _functions(module: CudaModule, device: Device) -> dict[str, int]:
    """The handles of all kernels."""
    driver, loaded, functions = device.driver, {}, {}
    for cubin in module.cubins:
        if cubin.image not in loaded:
            loaded[cubin.image] = driver.handle("cuModuleLoadData", cubin.image)
        for name in cubin.kernels:
            functions[name] = driver.handle("cuModuleGetFunction", loaded[cubin.image], name.encode())
    shared: dict[str, int] = {}
    for launch in _launches(module.steps):
        if launch.kernel not in functions:
            raise TargetError("jit", "the module lacks the machine code of a kernel", got=launch.kernel)
        shared[launch.kernel] = max(shared.get(launch.kernel, 0), launch.shared_bytes)
    for name, nbytes in shared.items():
        if nbytes > _LARGE_SHARED:
            driver.cuFuncSetAttribute(functions[name], _DYNAMIC_SHARED_BYTES, nbytes)
    return functions


def _launches(steps: Sequence[Step]) -> Any:
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, Repeat | While):
            yield from _launches(step.body)
        elif isinstance(step, Branch):
            for case in step.cases:
                yield from _launches(case)


class _AtStepError(Exception):
    """The kernel that failed."""


class _Instance:
    """The steps of a module on one stream: stretches of launches, and loops of the host around them."""

    def __init__(self, module: CudaModule, functions: dict[str, int], stream: Stream) -> None:
        self._functions = functions
        self._stream = stream
        self._parts = self._read(module.steps, ())

    def _read(self, steps: Sequence[Step], indices: tuple[int, ...]) -> list[Any]:
        """Stretches, and loops and branches whose steps are such lists; counted loops are unrolled."""
        parts: list[Any] = []
        for step in steps:
            if isinstance(step, Repeat) and isinstance(step.count, int):
                inner = [part for i in range(step.count) for part in self._read(step.body, (*indices, i))]
            elif isinstance(step, Repeat):
                follows = any(_follows(launch, len(indices)) for launch in _launches(step.body))
                inner = [(step, _Iterations(self, step, indices, follows))]
            elif isinstance(step, While):
                inner = [(step, [self._read(step.body, indices)])]
            elif isinstance(step, Branch):
                inner = [(step, [self._read(case, indices) for case in step.cases])]
            else:
                inner = [_Stretch(self._stream, [self._node(step, indices)])]
            for part in inner:
                if isinstance(part, _Stretch) and parts and isinstance(parts[-1], _Stretch):
                    parts[-1].extend(part)
                else:
                    parts.append(part)
        return parts

    def _node(self, step: Launch | Copy, indices: tuple[int, ...]) -> Any:
        if isinstance(step, Copy):
            return _CopyNode(step, self._stream.device)
        return _LaunchNode(step, indices, self._functions[step.kernel])

    def run(self, table: list[int]) -> None:
        self._run(self._parts, table)

    def _run(self, parts: Sequence[Any], table: list[int]) -> None:
        for part in parts:
            if isinstance(part, _Stretch):
                part.run(table)
                continue
            step, bodies = part
            if isinstance(step, While):
                while self._number(step.condition, table, 1):
                    self._run(bodies[0], table)
            elif isinstance(step, Repeat):
                assert not isinstance(step.count, int)
                for i in range(self._number(step.count, table, 4)):
                    self._run(bodies[i], table)
            else:
                index = self._number(step.index, table, 1 if step.dtype == "bool" else 4)
                self._run(bodies[min(max(index, 0), len(bodies) - 1)], table)

    def _number(self, address: Any, table: list[int], nbytes: int) -> int:
        """A number in the device's memory, once the stream has computed it."""
        content = (ctypes.c_char * nbytes)()
        driver, source = self._stream.device.driver, table[address.slot] + address.offset
        driver.cuMemcpyDtoHAsync_v2(content, source, nbytes, self._stream.handle)
        driver.cuStreamSynchronize(self._stream.handle)
        return int.from_bytes(content.raw, "little", signed=nbytes > 1)


class _Iterations:
    """The bodies of a loop whose count is on the GPU, read when they are needed.

    Args:
        instance: reads them.
        step: the loop.
        indices: those of the enclosing loops.
        differ: whether kernels get the index of the loop, so that each iteration has launches of its own.
    """

    def __init__(self, instance: _Instance, step: Repeat, indices: tuple[int, ...], differ: bool) -> None:
        self._read = lambda i: instance._read(step.body, (*indices, i))
        self._differ = differ
        self._bodies: list[list[Any]] = []

    def __getitem__(self, i: int) -> list[Any]:
        i = i if self._differ else 0
        while len(self._bodies) <= i:
            self._bodies.append(self._read(len(self._bodies)))
        return self._bodies[i]


def _follows(launch: Launch, depth: int) -> bool:
    return any(isinstance(arg, Scalar) and any(arg.strides[depth : depth + 1]) for arg in launch.arguments)


class _Stretch:
    """Launches and copies that depend on no data: graphs, by addresses."""

    def __init__(self, stream: Stream, nodes: list[Any]) -> None:
        self._stream = stream
        self._nodes = nodes
        self._graphs: OrderedDict[tuple[int, ...], _Graph] = OrderedDict()
        # Addresses that come again get a graph of their own.
        self._missed: deque[tuple[int, ...]] = deque(maxlen=2 * _GRAPHS_KEPT)

    def extend(self, other: _Stretch) -> None:
        """Appends the nodes of another stretch."""
        self._nodes += other._nodes

    def run(self, table: list[int]) -> None:
        """Starts all launches at these addresses."""
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            self._one_by_one(table, is_blocking=True)
        elif len(self._nodes) == 1 or len(self._nodes) > _MOST_NODES:
            self._one_by_one(table, is_blocking=False)
        else:
            self._stream.device.driver.cuGraphLaunch(self._graph(table).exec, self._stream.handle)

    def _one_by_one(self, table: list[int], is_blocking: bool) -> None:
        for node in self._nodes:
            try:
                node.place(table)
                node.launch(self._stream)
                if is_blocking:
                    self._stream.device.driver.cuStreamSynchronize(self._stream.handle)
            except DriverError as error:
                raise error from _AtStepError(node.name)

    def _graph(self, table: list[int]) -> _Graph:
        """A graph with these addresses, from now on the latest."""
        key = tuple(table)
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            return graph
        graph, changed = None, []
        if self._graphs:
            latest = next(reversed(self._graphs))
            changed = self._changed(latest, table)
            if key not in self._missed and len(changed) <= _FEW_CHANGES * len(self._nodes):
                graph = self._graphs.pop(latest)
            elif len(self._graphs) >= _GRAPHS_KEPT:
                oldest, graph = self._graphs.popitem(last=False)
                changed = self._changed(oldest, table)
        if graph is None:
            graph = _Graph(self._stream.device, self._nodes, table)
        else:
            for i in changed:
                self._nodes[i].place(table)
                self._nodes[i].change(graph.exec, graph.handles[i], self._stream.device)
        self._graphs[key] = graph
        self._missed.append(key)
        return graph

    def _changed(self, key: tuple[int, ...], table: list[int]) -> list[int]:
        """The nodes that use a slot whose address differs."""
        slots = {slot for slot, (old, new) in enumerate(zip(key, table, strict=True)) if old != new}
        return [i for i, node in enumerate(self._nodes) if not slots.isdisjoint(node.slots)]


class _Graph:
    """A graph that the driver has prepared for a device, whose launches run one after the other."""

    def __init__(self, device: Device, nodes: Sequence[Any], table: list[int]) -> None:
        self._device = device
        driver = device.driver
        self._graph = driver.handle("cuGraphCreate", 0)
        self.exec = 0
        self.handles: list[int] = []
        previous = (ctypes.c_void_p * 1)()
        for node in nodes:
            node.place(table)
            try:
                handle = node.add(self._graph, previous, len(self.handles) > 0, device)
            except DriverError as error:
                raise error from _AtStepError(node.name)
            self.handles.append(handle)
            previous[0] = handle
        self.exec = driver.handle("cuGraphInstantiateWithFlags", self._graph, 0)

    def __del__(self) -> None:
        driver = self._device.driver
        try:
            if self.exec:
                driver.cuGraphExecDestroy(self.exec)
            driver.cuGraphDestroy(self._graph)
        except DriverError:
            pass  # the device failed, or the process ends


class _LaunchNode:
    """A launch, with memory for the values of its arguments."""

    def __init__(self, launch: Launch, indices: tuple[int, ...], function: int) -> None:
        self.name = launch.kernel
        arguments = [arg.at(indices) if isinstance(arg, Scalar) else arg for arg in launch.arguments]
        self._addresses = [(i, arg.slot, arg.offset) for i, arg in enumerate(arguments) if not isinstance(arg, Scalar)]
        self.slots = frozenset(slot for _, slot, _ in self._addresses)
        self._values = (ctypes.c_uint64 * max(1, len(arguments)))()
        for i, arg in enumerate(arguments):
            if isinstance(arg, Scalar):
                self._values[i] = int.from_bytes(arg.pack(), "little")
        first = ctypes.addressof(self._values)
        count = 1 if launch.is_packed else len(arguments)
        self._pointers = (ctypes.c_void_p * max(1, count))(*(first + 8 * i for i in range(count)))
        grid, block = (ctypes.c_uint * 3)(*launch.grid), (ctypes.c_uint * 3)(*launch.block)
        pointers = ctypes.addressof(self._pointers)
        self._node = KernelNode(function, grid, block, launch.shared_bytes, pointers, None, None, None)
        self._function = function
        self._config = LaunchConfig(grid, block, launch.shared_bytes, None, None, 0)
        self._attribute = None
        if launch.cluster != (1, 1, 1):
            self._attribute = LaunchAttribute(_CLUSTER, b"", (ctypes.c_uint * 16)(*launch.cluster))
            self._config.attributes, self._config.count = ctypes.addressof(self._attribute), 1

    def place(self, table: list[int]) -> None:
        """Sets the arguments that are addresses."""
        values = self._values
        for i, slot, offset in self._addresses:
            values[i] = table[slot] + offset

    def launch(self, stream: Stream) -> None:
        """Launches it without a graph."""
        self._config.stream = stream.handle
        stream.device.driver.cuLaunchKernelEx(ctypes.byref(self._config), self._function, self._pointers, None)

    def add(self, graph: int, previous: Any, count: int, device: Device) -> int:
        """Adds it to a graph, after the previous one if there is one."""
        driver = device.driver
        handle = driver.handle("cuGraphAddKernelNode_v2", graph, previous, count, ctypes.byref(self._node))
        if self._attribute is not None:
            driver.cuGraphKernelNodeSetAttribute(handle, _CLUSTER, self._attribute.value)
        return handle

    def change(self, exec: int, handle: int, device: Device) -> None:
        """Changes the arguments in a prepared graph."""
        device.driver.cuGraphExecKernelNodeSetParams_v2(exec, handle, ctypes.byref(self._node))


class _CopyNode:
    """A copy within the device's memory."""

    name = "copy"

    def __init__(self, copy: Copy, device: Device) -> None:
        self._copy = copy
        self._context = device.context
        self.slots = frozenset((copy.target.slot, copy.source.slot))
        self._node = MemoryCopy(
            source_kind=_DEVICE_MEMORY, kind=_DEVICE_MEMORY, width=copy.nbytes, height=1, depth=1,
            source_pitch=copy.nbytes, pitch=copy.nbytes, source_height=1, target_height=1,
        )  # fmt: skip

    def place(self, table: list[int]) -> None:
        """Sets the addresses."""
        target, source, _ = self._copy
        self._node.target, self._node.source = table[target.slot] + target.offset, table[source.slot] + source.offset

    def launch(self, stream: Stream) -> None:
        """Copies without a graph."""
        driver, node = stream.device.driver, self._node
        driver.cuMemcpyDtoDAsync_v2(node.target, node.source, self._copy.nbytes, stream.handle)

    def add(self, graph: int, previous: Any, count: int, device: Device) -> int:
        """Adds it to a graph, after the previous one if there is one."""
        node, driver = ctypes.byref(self._node), device.driver
        return driver.handle("cuGraphAddMemcpyNode", graph, previous, count, node, self._context)

    def change(self, exec: int, handle: int, device: Device) -> None:
        """Changes the addresses in a prepared graph."""
        device.driver.cuGraphExecMemcpyNodeSetParams(exec, handle, ctypes.byref(self._node), self._context)
