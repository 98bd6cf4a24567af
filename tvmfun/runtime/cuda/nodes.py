"""Nodes of graphs: launches, copies, and loops and branches that numbers in the GPU's memory decide.

Each can also be launched without a graph.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from tvmfun.runtime.cuda.devices import Device, Stream
from tvmfun.runtime.cuda.driver import Driver, DriverError
from tvmfun.runtime.cuda.tensor_maps import EncodedMap
from tvmfun.runtime.cuda_module import (
    MAP_ALIGNMENT,
    Branch,
    Copy,
    Launch,
    Scalar,
    TensorMap,
    While,
    address_in,
    word_offsets,
)
from tvmfun.runtime.plan import Address

# The driver's number of a launch's attribute, the dimensions of a cluster.
_CLUSTER = 4
# The driver's number of a type of memory.
_DEVICE_MEMORY = 2
# The driver's number of a type of node, and of its kinds.
_CONDITIONAL = 13
_IF = 0
_WHILE = 1
_SWITCH = 2


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


class ConditionalNode(ctypes.Structure):
    """``CUgraphNodeParams`` with ``CUDA_CONDITIONAL_NODE_PARAMS``; its union has 232 bytes."""

    _fields_ = (
        ("type", ctypes.c_uint),
        ("reserved0", ctypes.c_int * 3),
        ("handle", ctypes.c_uint64),
        ("kind", ctypes.c_uint),
        ("size", ctypes.c_uint),
        ("graphs", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
        ("unused", ctypes.c_char * 200),
        ("reserved2", ctypes.c_longlong),
    )


class AtStepError(Exception):
    """The kernel that failed."""


class Chain:
    """A graph whose nodes run one after the other.

    Args:
        device: the device.
        graph: the driver's handle of a graph without nodes.
    """

    def __init__(self, device: Device, graph: int) -> None:
        self.device = device
        self.graph = graph
        self.previous = (ctypes.c_void_p * 1)()
        self.count = 0

    def extend(self, nodes: Sequence[Node], table: list[int]) -> list[int]:
        """Appends nodes with these addresses, and returns the handle of the last of each."""
        handles = []
        for node in nodes:
            node.place(table)
            try:
                node.add(self)
            except DriverError as error:
                if error.__cause__ is None:
                    raise error from AtStepError(node.name)
                raise
            handles.append(self.previous[0])
        return handles

    def append(self, handle: int) -> None:
        """Makes a node that was added after the previous ones the last one."""
        self.previous[0], self.count = handle, 1


def launch_each(nodes: Sequence[Node], table: list[int], stream: Stream) -> None:
    """Launches nodes without a graph, and waits for each if ``CUDA_LAUNCH_BLOCKING`` is set."""
    is_blocking = blocks()
    for node in nodes:
        try:
            node.place(table)
            node.launch(stream)
            if is_blocking:
                stream.device.driver.cuStreamSynchronize(stream.handle)
        except DriverError as error:
            if error.__cause__ is None:
                raise error from AtStepError(node.name)
            raise


def blocks() -> bool:
    """Whether each launch has to end before the next one."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")


def read_number(address: int, nbytes: int, stream: Stream) -> int:
    """A number in the device's memory, once the stream has computed it."""
    content, driver = (ctypes.c_char * nbytes)(), stream.device.driver
    driver.cuMemcpyDtoHAsync_v2(content, address, nbytes, stream.handle)
    driver.cuStreamSynchronize(stream.handle)
    return int.from_bytes(content.raw, "little", signed=nbytes > 1)


def condition_of(step: While | Branch) -> tuple[Address, int]:
    """The address and the size of the number that is the condition."""
    if isinstance(step, While):
        return step.condition, 1
    return step.index, 1 if step.dtype == "bool" else 4


class LaunchNode:
    """A launch, with memory for the values of its arguments."""

    size = 1

    def __init__(self, launch: Launch, indices: tuple[int, ...], function: int, driver: Driver) -> None:
        self.name = launch.kernel
        self.grid = launch.grid
        self._driver = driver
        arguments = [arg.at(indices) if isinstance(arg, Scalar) else arg for arg in launch.arguments]
        offsets, end = word_offsets(arguments)
        self._memory = (ctypes.c_uint64 * (end + MAP_ALIGNMENT))()
        first = ctypes.addressof(self._memory) + -ctypes.addressof(self._memory) % (8 * MAP_ALIGNMENT)
        self._values = (ctypes.c_uint64 * max(1, end)).from_address(first)
        places = list(zip(offsets, arguments, strict=True))
        self._addresses = [(i, arg.slot, arg.offset) for i, arg in places if isinstance(arg, Address)]
        self._maps = [(first + 8 * i, EncodedMap(arg)) for i, arg in places if isinstance(arg, TensorMap)]
        self.slots = frozenset(address.slot for arg in arguments if (address := address_in(arg)))
        for i, arg in places:
            if isinstance(arg, Scalar):
                self._values[i] = int.from_bytes(arg.pack(), "little")
        offsets = offsets[:1] if launch.is_packed else offsets
        self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(*(first + 8 * i for i in offsets))
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
        for to, tensor in self._maps:
            tensor.encode(to, table, self._driver)

    def launch(self, stream: Stream) -> None:
        """Launches it without a graph."""
        self._config.stream = stream.handle
        stream.device.driver.cuLaunchKernelEx(ctypes.byref(self._config), self._function, self._pointers, None)

    def add(self, chain: Chain) -> None:
        """Adds it to a graph."""
        driver, node = chain.device.driver, ctypes.byref(self._node)
        handle = driver.handle("cuGraphAddKernelNode_v2", chain.graph, chain.previous, chain.count, node)
        if self._attribute is not None:
            driver.cuGraphKernelNodeSetAttribute(handle, _CLUSTER, self._attribute.value)
        chain.append(handle)

    def change(self, exec: int, handle: int, device: Device) -> None:
        """Changes the arguments in a prepared graph."""
        device.driver.cuGraphExecKernelNodeSetParams_v2(exec, handle, ctypes.byref(self._node))


class CopyNode:
    """A copy within the device's memory."""

    name = "copy"
    size = 1

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

    def add(self, chain: Chain) -> None:
        """Adds it to a graph."""
        driver, node = chain.device.driver, ctypes.byref(self._node)
        add = "cuGraphAddMemcpyNode"
        chain.append(driver.handle(add, chain.graph, chain.previous, chain.count, node, self._context))

    def change(self, exec: int, handle: int, device: Device) -> None:
        """Changes the addresses in a prepared graph."""
        device.driver.cuGraphExecMemcpyNodeSetParams(exec, handle, ctypes.byref(self._node), self._context)


class ControlNode:
    """A loop or a branch as conditional nodes, after a kernel that sets their conditions.

    Args:
        step: the loop or the branch.
        bodies: the nodes of the loop, or of each case.
        function: the kernel that sets conditions.
    """

    def __init__(self, step: While | Branch, bodies: Sequence[Sequence[Node]], function: int) -> None:
        self.name = "loop" if isinstance(step, While) else "branch"
        self._is_loop = isinstance(step, While)
        self._bodies = bodies
        self._function = function
        self._address, self._nbytes = condition_of(step)
        inner = [node for body in bodies for node in body]
        self.slots = frozenset([self._address.slot]).union(*(node.slots for node in inner))
        self.size = 2 + sum(node.size for node in inner)
        self._table: list[int] = []

    def place(self, table: list[int]) -> None:
        """Sets the addresses, also those of nodes in bodies when they are added or launched."""
        self._table = table

    def launch(self, stream: Stream) -> None:
        """Runs it without a graph: the host reads the number, and waits for it."""
        if self._is_loop:
            while self._number(stream):
                launch_each(self._bodies[0], self._table, stream)
        else:
            chosen = min(max(self._number(stream), 0), len(self._bodies) - 1)
            launch_each(self._bodies[chosen], self._table, stream)

    def _number(self, stream: Stream) -> int:
        return read_number(self._table[self._address.slot] + self._address.offset, self._nbytes, stream)

    def add(self, chain: Chain) -> None:
        """Adds its nodes to a graph."""
        last = len(self._bodies) - 1
        if self._is_loop:
            handle = self._new_condition(chain)
            self._set(chain, handle, 1, -1)
            (body,) = self._conditional(chain, handle, _WHILE, 1)
            body.extend(self._bodies[0], self._table)
            self._set(body, handle, 1, -1)
        elif all(self._bodies) and last and chain.device.driver.has_switches:
            handle = self._new_condition(chain)
            self._set(chain, handle, last, -1)
            for body, nodes in zip(self._conditional(chain, handle, _SWITCH, last + 1), self._bodies, strict=True):
                body.extend(nodes, self._table)
        else:
            # All conditions are set before the first case, which may overwrite the number.
            handles = {i: self._new_condition(chain) for i, nodes in enumerate(self._bodies) if nodes}
            for i, handle in handles.items():
                self._set(chain, handle, last, i)
            for i, handle in handles.items():
                (body,) = self._conditional(chain, handle, _IF, 1)
                body.extend(self._bodies[i], self._table)

    def _new_condition(self, chain: Chain) -> int:
        """The handle of a condition."""
        device = chain.device
        return device.driver.handle("cuGraphConditionalHandleCreate", chain.graph, device.context, 0, 0)

    def _set(self, chain: Chain, handle: int, last: int, chosen: int) -> None:
        """Adds the kernel that sets a condition."""
        numbers = (int(self._nbytes == 1), last, chosen % (1 << 32))
        arguments = (Scalar("uint64", handle), self._address, *(Scalar("int32", number) for number in numbers))
        node = LaunchNode(
            Launch("set_condition", (1, 1, 1), (1, 1, 1), 0, arguments), (), self._function, chain.device.driver
        )
        chain.extend([node], self._table)

    def _conditional(self, chain: Chain, handle: int, kind: int, size: int) -> list[Chain]:
        """Adds a conditional node, and returns the graphs of its bodies."""
        device = chain.device
        node = ConditionalNode(type=_CONDITIONAL, handle=handle, kind=kind, size=size, context=device.context)
        after = (chain.graph, chain.previous, None, chain.count)
        chain.append(device.driver.handle("cuGraphAddNode_v2", *after, ctypes.byref(node)))
        return [Chain(device, node.graphs[i]) for i in range(size)]


Node = LaunchNode | CopyNode | ControlNode
