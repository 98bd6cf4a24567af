"""Times of steps, and of each kernel of a step, on a GPU."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from tvmfun.runtime.cuda.devices import Block, Device, Stream
from tvmfun.runtime.cuda.nodes import Chain, Node

from .runtime import LoadedModule

#: The graphs of events, of which the median counts.
_REPEATS = 12
# Launches of a function in a row, of which each takes the mean time.
_IN_A_ROW = 8


def milliseconds(run: Callable[[], Any], synchronize: Callable[[], None], seconds: float = 1.0) -> float:
    """The median time of a step, over groups of steps that are waited for together.

    Args:
        run: starts a step.
        synchronize: waits for all steps.
        seconds: the time to spend.
    """

    def group(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            run()
        synchronize()
        return (time.perf_counter() - started) / count

    group(3)
    single = group(2)
    count = max(1, int(seconds / 8 / max(single, 1e-6)))
    return 1e3 * statistics.median(group(count) for _ in range(8))


class _Event:
    """A point of time in a graph, as a node of it."""

    name, size, slots = "event", 1, frozenset[int]()

    def __init__(self, device: Device) -> None:
        self._device = device
        self._library = ctypes.CDLL(device.driver.path)
        self.handle = device.driver.handle("cuEventCreate", 0)

    def place(self, table: list[int]) -> None:
        """It has no addresses."""

    def add(self, chain: Chain) -> None:
        """Adds it to a graph."""
        node, event = ctypes.c_uint64(), ctypes.c_void_p(self.handle)
        after = (ctypes.c_void_p(chain.graph), chain.previous, ctypes.c_size_t(chain.count))
        if code := self._library.cuGraphAddEventRecordNode(ctypes.byref(node), *after, event):
            raise RuntimeError(f"cuGraphAddEventRecordNode returned {code}")
        chain.append(node.value)

    def microseconds_to(self, later: _Event) -> float:
        """The time between both."""
        milliseconds = ctypes.c_float()
        events = (ctypes.c_void_p(self.handle), ctypes.c_void_p(later.handle))
        if code := self._library.cuEventElapsedTime(ctypes.byref(milliseconds), *events):
            raise RuntimeError(f"cuEventElapsedTime returned {code}")
        return 1e3 * milliseconds.value

    def __del__(self) -> None:
        self._device.driver.cuEventDestroy_v2(self.handle)


def _between(groups: Iterable[Sequence[Node]], table: list[int], stream: Stream, repeats: int) -> list[float]:
    """The median microseconds of each group of nodes in a graph, with the time that an event takes."""
    device = stream.device
    device.activate()
    groups = list(groups)
    events = [_Event(device) for _ in range(len(groups) + 1)]
    nodes: list[Any] = [events[0]]
    for group, event in zip(groups, events[1:], strict=True):
        nodes += [*group, event]
    driver = device.driver
    graph = driver.handle("cuGraphCreate", 0)
    Chain(device, graph).extend(nodes, table)
    run = driver.handle("cuGraphInstantiateWithFlags", graph, 0)
    times = []
    for _ in range(repeats):
        driver.cuGraphLaunch(run, stream.handle)
        stream.synchronize()
        times.append([first.microseconds_to(second) for first, second in pairwise(events)])
    driver.cuGraphExecDestroy(run)
    driver.cuGraphDestroy(graph)
    return [statistics.median(each) for each in zip(*times[repeats // 4 :], strict=True)]


def _prepared(module: LoadedModule, inputs: Sequence[Block]) -> tuple[list[int], list[Block]]:
    """The addresses of a call, and the blocks of its results."""
    fresh = [Block(module.stream, size, "results", module.name) for size in module.module.plan.fresh]
    return [*(block.address for block in (*inputs, *fresh)), *module.launcher.memory(module.stream)], fresh


def microseconds(module: LoadedModule, inputs: Sequence[Block]) -> float:
    """The time of a function on the GPU, as a mean over some calls in a row."""
    table, fresh = _prepared(module, [*module.captured, *inputs])
    nodes = module.launcher.nodes(module.stream)
    (each,) = _between([nodes * _IN_A_ROW], table, module.stream, _REPEATS // 2)
    del fresh
    return each / _IN_A_ROW


def profile(step: LoadedModule, inputs: Sequence[Block]) -> list[dict[str, Any]]:
    """The kernels of a step, those that take longest first, each where it runs in the step; the state is overwritten.

    An event follows each kernel, so that times are those between the ends of kernels, and nothing overlaps.
    """
    table, fresh = _prepared(step, inputs)
    nodes = step.launcher.nodes(step.stream)
    times = _between([[node] for node in nodes], table, step.stream, _REPEATS)
    del fresh
    rows: dict[tuple, dict[str, Any]] = {}
    for node, each in zip(nodes, times, strict=True):
        grid = tuple(getattr(node, "grid", ()))
        row = rows.setdefault((node.name, grid), {"kernel": node.name, "grid": grid, "us": 0.0, "launches": 0})
        row["us"] += each
        row["launches"] += 1
    return sorted(rows.values(), key=lambda row: -row["us"])
