"""Runs compiled modules: each stretch of launches is one graph per set of addresses, with its loops and branches.

New addresses make another graph, up to a limit. Beyond the limit, or if few launches use the addresses that differ and
the addresses are new, the arguments of an existing graph are changed. A training step whose state is donated has one
graph; a step whose state alternates between two sets of buffers has two.

Loops and branches that depend on data are conditional nodes. If the driver lacks these, there is a graph per body, and
the host reads the conditions.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from tvmfun.errors import DeviceError, TargetError
from tvmfun.runtime.cuda.devices import Block, Device, Stream
from tvmfun.runtime.cuda.driver import NO_CODE, DriverError
from tvmfun.runtime.cuda.nodes import (
    AtStepError,
    Chain,
    ControlNode,
    CopyNode,
    LaunchNode,
    Node,
    blocks,
    condition_of,
    launch_each,
    read_number,
)
from tvmfun.runtime.cuda_module import Branch, Copy, CudaModule, Launch, Repeat, Step, While

# The graphs of a stretch that are kept, by addresses.
_GRAPHS_KEPT = 8
# Stretches of more nodes are launched one by one: making a graph takes a microsecond or two per launch.
_MOST_NODES = 50_000
# If at most this share of the launches differs, an existing graph is changed instead of making another.
_FEW_CHANGES = 0.25

# Numbers of the driver's interface.
_DYNAMIC_SHARED_BYTES = 8
_LARGE_SHARED = 48 << 10


class Launcher:
    """A compiled module on a device.

    Args:
        module: the module.
        device: the device.
        name: the name of the Program, for errors.
        code: the handles of loaded machine code, to which newly loaded code is added.

    Raises:
        TargetError: if the driver cannot load the machine code.
        OutOfMemoryError: if there is no memory for the constants.
    """

    def __init__(self, module: CudaModule, device: Device, name: str, code: dict[bytes, int] | None = None) -> None:
        self.module = module
        self.plan = module.static_plan
        self.device = device
        self.name = name
        device.activate()
        try:
            self._functions = _functions(module, device, {} if code is None else code)
            self._condition = _condition(module, device)
        except DriverError as error:
            raise error.as_user_error(name, "the machine code cannot be loaded") from None
        self._constants = Block(device.stream(), len(module.constants), "constants", name)
        if module.constants:
            upload(self._constants, module.constants)
        self._instances: dict[Stream, _Instance] = {}

    def _instance(self, stream: Stream) -> _Instance:
        return _Instance(self.module, self._functions, self._condition, stream)

    def memory(self, stream: Stream) -> tuple[int, int]:
        """The addresses of intermediates and constants, which the next work of a stream may use."""
        arena = stream.arena(self.plan.analysis.temporaries)
        self._constants.read_on(stream)
        return arena, self._constants.address

    def nodes(self, stream: Stream) -> list[Node]:
        """The nodes that a call runs one after the other, unless a number in the GPU's memory decides."""
        return [node for part in self._instance(stream).parts for node in part.nodes]

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
            self._instances[stream] = instance = self._instance(stream)
        table += self.memory(stream)
        stream.latest = self.name
        self.device.activate()
        try:
            instance.run(table)
        except DriverError as error:
            hint = "CUDA_LAUNCH_BLOCKING=1, which names the kernel of a failure that is noticed later"
            failed = error.as_user_error(self.name, f"the GPU failed, in {stream.latest} or before", hint)
            if isinstance(error.__cause__, AtStepError) and isinstance(failed, DeviceError):
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


def _functions(module: CudaModule, device: Device, code: dict[bytes, int]) -> dict[str, int]:
    """The handles of all kernels."""
    driver, functions = device.driver, {}
    for cubin in module.cubins:
        if module.condition in cubin.kernels:
            continue  # only some drivers need it
        if cubin.image not in code:
            code[cubin.image] = driver.handle("cuModuleLoadData", cubin.image)
        for name in cubin.kernels:
            functions[name] = driver.handle("cuModuleGetFunction", code[cubin.image], name.encode())
    shared: dict[str, int] = {}
    for launch in _launches(module.steps):
        if launch.kernel not in functions:
            raise TargetError("jit", "the module lacks the machine code of a kernel", got=launch.kernel)
        shared[launch.kernel] = max(shared.get(launch.kernel, 0), launch.shared_bytes)
    for name, nbytes in shared.items():
        if nbytes > _LARGE_SHARED:
            driver.cuFuncSetAttribute(functions[name], _DYNAMIC_SHARED_BYTES, nbytes)
    return functions


def _condition(module: CudaModule, device: Device) -> int:
    """The handle of the kernel that sets conditions; 0 if the host has to read them."""
    driver = device.driver
    if not module.condition or not driver.has_conditions:
        return 0
    (image,) = (cubin.image for cubin in module.cubins if module.condition in cubin.kernels)
    try:
        return driver.handle("cuModuleGetFunction", driver.handle("cuModuleLoadData", image), module.condition.encode())
    except DriverError as error:
        if error.code not in NO_CODE:
            raise
        return 0  # the driver cannot link the function that sets a condition


def _bodies(step: Repeat | While | Branch) -> Sequence[Sequence[Step]]:
    return step.cases if isinstance(step, Branch) else [step.body]


def _launches(steps: Sequence[Step]) -> Iterator[Launch]:
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif not isinstance(step, Copy):
            for body in _bodies(step):
                yield from _launches(body)


class _Instance:
    """The steps of a module on one stream: stretches, and loops of the host around them.

    Args:
        module: the module.
        functions: the handles of its kernels.
        condition: the kernel that sets conditions; 0 if the host reads them.
        stream: the stream.
    """

    def __init__(self, module: CudaModule, functions: dict[str, int], condition: int, stream: Stream) -> None:
        self._functions = functions
        self._condition = condition
        self._stream = stream
        #: Stretches, and loops and branches of the host with lists of such parts.
        self.parts = self._read(module.steps, ())

    def _read(self, steps: Sequence[Step], indices: tuple[int, ...]) -> list[Any]:
        """Stretches, and loops and branches of the host with such lists; counted loops are unrolled."""
        parts: list[Any] = []
        for step in steps:
            if isinstance(step, Repeat):
                inner = [part for i in range(step.count) for part in self._read(step.body, (*indices, i))]
            elif isinstance(step, Launch | Copy):
                inner = [_Stretch(self._stream, [self._node(step, indices)])]
            else:
                bodies = [self._read(body, indices) for body in _bodies(step)]
                inner = [self._control(step, bodies) if self._condition else (step, bodies)]
            for part in inner:
                if isinstance(part, _Stretch) and parts and isinstance(parts[-1], _Stretch):
                    parts[-1].extend(part)
                else:
                    parts.append(part)
        return parts

    def _control(self, step: While | Branch, bodies: Sequence[Sequence[_Stretch]]) -> _Stretch:
        """A loop or a branch in a graph; each body is a stretch, or empty."""
        nodes = [[node for stretch in body for node in stretch.nodes] for body in bodies]
        return _Stretch(self._stream, [ControlNode(step, nodes, self._condition)])

    def _node(self, step: Launch | Copy, indices: tuple[int, ...]) -> Node:
        if isinstance(step, Copy):
            return CopyNode(step, self._stream.device)
        return LaunchNode(step, indices, self._functions[step.kernel], self._stream.device.driver)

    def run(self, table: list[int]) -> None:
        self._run(self.parts, table)

    def _run(self, parts: Sequence[Any], table: list[int]) -> None:
        for part in parts:
            if isinstance(part, _Stretch):
                part.run(table)
                continue
            step, bodies = part
            if isinstance(step, While):
                while self._number(step, table):
                    self._run(bodies[0], table)
            else:
                self._run(bodies[min(max(self._number(step, table), 0), len(bodies) - 1)], table)

    def _number(self, step: While | Branch, table: list[int]) -> int:
        """The number that decides which steps run next."""
        address, nbytes = condition_of(step)
        return read_number(table[address.slot] + address.offset, nbytes, self._stream)


class _Stretch:
    """Nodes that the host launches together, as a graph per set of addresses."""

    def __init__(self, stream: Stream, nodes: list[Node]) -> None:
        self._stream = stream
        self.nodes = nodes
        self._size = sum(node.size for node in nodes)
        self._graphs: OrderedDict[tuple[int, ...], _Graph] = OrderedDict()
        # Addresses that recur get a graph of their own.
        self._missed: deque[tuple[int, ...]] = deque(maxlen=2 * _GRAPHS_KEPT)

    def extend(self, other: _Stretch) -> None:
        """Appends the nodes of another stretch."""
        self.nodes += other.nodes
        self._size += other._size

    def run(self, table: list[int]) -> None:
        """Starts all launches at these addresses."""
        if self._size == 1 or self._size > _MOST_NODES or blocks():
            launch_each(self.nodes, table, self._stream)
        else:
            self._stream.device.driver.cuGraphLaunch(self._graph(table).exec, self._stream.handle)

    def _graph(self, table: list[int]) -> _Graph:
        """A graph with these addresses, which becomes the latest."""
        key = tuple(table)
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            return graph
        graph, changed = None, []
        if self._graphs:
            latest = next(reversed(self._graphs))
            changed = self._changed(latest, table)
            is_few = len(changed) <= _FEW_CHANGES * len(self.nodes)
            if key not in self._missed and is_few and self._may_change(changed):
                graph = self._graphs.pop(latest)
            elif len(self._graphs) >= _GRAPHS_KEPT:
                oldest, graph = self._graphs.popitem(last=False)
                changed = self._changed(oldest, table)
                graph = graph if self._may_change(changed) else None
        if graph is None:
            graph = _Graph(self._stream.device, self.nodes, table)
        else:
            for i in changed:
                node = self.nodes[i]
                assert not isinstance(node, ControlNode)
                node.place(table)
                node.change(graph.exec, graph.handles[i], self._stream.device)
        self._graphs[key] = graph
        self._missed.append(key)
        return graph

    def _changed(self, key: tuple[int, ...], table: list[int]) -> list[int]:
        """The nodes that use a slot whose address differs."""
        slots = {slot for slot, (old, new) in enumerate(zip(key, table, strict=True)) if old != new}
        return [i for i, node in enumerate(self.nodes) if not slots.isdisjoint(node.slots)]

    def _may_change(self, changed: Sequence[int]) -> bool:
        """Whether the driver can change these nodes of a prepared graph; it cannot where they have bodies."""
        return not any(isinstance(self.nodes[i], ControlNode) for i in changed)


class _Graph:
    """A graph that the driver has prepared for a device, whose launches run one after the other."""

    def __init__(self, device: Device, nodes: Sequence[Node], table: list[int]) -> None:
        self._device = device
        self._graph = device.driver.handle("cuGraphCreate", 0)
        self.exec = 0
        self.handles = Chain(device, self._graph).extend(nodes, table)
        self.exec = device.driver.handle("cuGraphInstantiateWithFlags", self._graph, 0)

    def __del__(self) -> None:
        driver = self._device.driver
        try:
            if self.exec:
                driver.cuGraphExecDestroy(self.exec)
            driver.cuGraphDestroy(self._graph)
        except DriverError:
            pass  # the device failed, or the process ends
