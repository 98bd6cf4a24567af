"""Horizontal fusion: groups of independent launches that become one, in an order that makes few launches.

The order is list scheduling: among the launches that are ready, the most urgent kind is chosen, and all ready launches
of this kind run at once. Launches far ahead are not considered if their results would hold memory for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from tvmfun.lower.codegen.cuda.effects import Effects

#: Groups of positions: steps that may become one, in an order in which the groups can run.
Order = list[list[int]]

# How many positions ahead large steps are considered. They are few, because the inputs of near steps are still in L2.
_WINDOWS = (64, 16, 4, 1)
# Steps that use less memory than this, in bytes, may run at any time.
_LARGE = 1 << 21
# The most additional memory for fewer launches, as a share of the block of intermediates.
_MORE_MEMORY = 1 / 32
# The most additional memory in bytes; the larger of the two limits counts.
_MORE_BYTES = 1 << 24


def fewest_launches(
    effects: Sequence[Effects],
    kinds: Sequence[Hashable],
    sizes: Mapping[int, int],
    cost: Callable[[list[int]], int],
) -> Order:
    """Returns the steps in groups of independent ones of the same kind.

    Args:
        effects: what the steps read and write, in an order in which they can run.
        kinds: the kind of each step: only equal kinds may become one step. None for a step that remains alone.
        sizes: the bytes of the slots that are intermediates.
        cost: the number of launches that a group becomes.
    """
    graph = _Graph.of(effects)
    original = [[i] for i in range(len(effects))]
    usual = _peak(original, effects, sizes)
    most = max(usual + usual * _MORE_MEMORY, usual + _MORE_BYTES)
    best, fewest = original, len(effects)
    bytes_of = lambda effect: sum(sizes.get(slot, 0) for slot in effect.reads | effect.writes)
    is_large = [bytes_of(effect) > _LARGE for effect in effects]
    for window in _WINDOWS:
        found = [_Agenda(graph, kinds, urgency, is_large, window).order() for urgency in (graph.height, graph.depth)]
        for order in found:
            launches = sum(map(cost, order))
            if launches < fewest and _peak(order, effects, sizes) <= most:
                best, fewest = order, launches
        if best is not original:
            break  # shorter windows have more launches
    return best


@dataclass(frozen=True)
class _Graph:
    """The dependences between steps.

    Args:
        before: for each step the steps that it waits for.
        after: for each step the steps that wait for it.
        height: minus the number of steps of the longest path that begins at a step.
        depth: the number of steps of the longest path that ends at a step.
    """

    before: list[set[int]]
    after: list[set[int]]
    height: list[int]
    depth: list[int]

    @classmethod
    def of(cls, effects: Sequence[Effects]) -> _Graph:
        before: list[set[int]] = []
        after: list[set[int]] = [set() for _ in effects]
        writer: dict[int, int] = {}
        readers: dict[int, set[int]] = {}
        for i, (reads, writes) in enumerate(effects):
            waits = {writer[slot] for slot in reads | writes if slot in writer}
            waits.update(reader for slot in writes for reader in readers.get(slot, ()))
            for slot in reads - writes:
                readers.setdefault(slot, set()).add(i)
            for slot in writes:
                writer[slot], readers[slot] = i, set()
            before.append(waits)
            for j in waits:
                after[j].add(i)
        depth = [0] * len(effects)
        for i, waits in enumerate(before):
            depth[i] = 1 + max((depth[j] for j in waits), default=0)
        height = [0] * len(effects)
        for i in reversed(range(len(effects))):
            height[i] = min((height[j] for j in after[i]), default=0) - 1
        return cls(before, after, height, depth)


class _Agenda:
    """List scheduling of steps.

    Args:
        graph: the dependences.
        kinds: the kind of each step.
        urgency: the urgency of each step; the lowest runs first.
        is_large: whether a step uses much memory.
        window: large steps are considered only if they are less than this many positions after the first that has not
            run.
    """

    def __init__(
        self,
        graph: _Graph,
        kinds: Sequence[Hashable],
        urgency: Sequence[int],
        is_large: Sequence[bool],
        window: int,
    ) -> None:
        self._graph, self._urgency, self._is_large, self._window = graph, urgency, is_large, window
        self._kinds = [("alone", i) if kind is None else kind for i, kind in enumerate(kinds)]
        self._waits = [len(before) for before in graph.before]
        self._ready: dict[Hashable, list[int]] = {}
        self._done = [False] * len(kinds)

    def order(self) -> Order:
        """The groups in the order in which they run."""
        result: Order = []
        for i, count in enumerate(self._waits):
            if not count:
                self._ready.setdefault(self._kinds[i], []).append(i)
        large = [i for i, is_large in enumerate(self._is_large) if is_large]
        first = 0
        while self._ready:
            while first < len(large) and self._done[large[first]]:
                first += 1
            near = self._near(large[first] + self._window if first < len(large) else 0)
            kind = min(near, key=lambda kind: min((self._urgency[i], i) for i in near[kind]))
            result.append(sorted(near[kind]))
            self._run(kind, near[kind])
        return result

    def _near(self, end: int) -> dict[Hashable, list[int]]:
        """The ready steps by kind, large ones up to a position."""
        may_run = lambda i: not self._is_large[i] or i < end
        near = {kind: list(filter(may_run, ready)) for kind, ready in self._ready.items()}
        return {kind: ready for kind, ready in near.items() if ready}

    def _run(self, kind: Hashable, group: list[int]) -> None:
        self._ready[kind] = [i for i in self._ready[kind] if i not in group]
        if not self._ready[kind]:
            del self._ready[kind]
        for i in group:
            self._done[i] = True
            for j in self._graph.after[i]:
                self._waits[j] -= 1
                if not self._waits[j]:
                    self._ready.setdefault(self._kinds[j], []).append(j)


def lifetimes(groups: Sequence[Sequence[int]], effects: Sequence[Effects]) -> dict[int, tuple[int, int]]:
    """Returns the first and the last group that uses a slot, by slot."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, group in enumerate(groups):
        for i in group:
            for slot in effects[i].reads | effects[i].writes:
                first.setdefault(slot, position)
                last[slot] = position
    return {slot: (first[slot], last[slot]) for slot in first}


def _peak(order: Order, effects: Sequence[Effects], sizes: Mapping[int, int]) -> int:
    """The most bytes that are in use at a time."""
    changes = [0] * (len(order) + 1)
    for slot, (first, last) in lifetimes(order, effects).items():
        changes[first] += sizes.get(slot, 0)
        changes[last + 1] -= sizes.get(slot, 0)
    used, most = 0, 0
    for change in changes:
        used += change
        most = max(most, used)
    return most
