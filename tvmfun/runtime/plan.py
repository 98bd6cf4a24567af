"""The layout of the memory of a call: the table of addresses that compiled code gets, decided at compile time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class MemoryAnalysis:
    """The memory of one call of a compiled function, in bytes.

    Args:
        arguments: the size of the arguments.
        outputs: the size of the results that are not written over donated arguments.
        aliased: the size of the results that are written over donated arguments.
        temporaries: the size of the block that all intermediates share.
        workspaces: the size of the allocations of kernels while they run, in all threads.

    >>> MemoryAnalysis(arguments=4096, outputs=8, aliased=2048, temporaries=1024).peak
    5128
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    workspaces: int = 0

    @property
    def peak(self) -> int:
        """The most bytes in use at a time."""
        return self.arguments + self.outputs + self.temporaries + self.workspaces


@dataclass(frozen=True)
class Plan:
    """The layout of the table of addresses that ``main`` is called with, and the slots of its results.

    The table holds the addresses of the inputs, of new memory for results, and of the block of intermediates.

    Args:
        inputs: the number of inputs.
        fresh: the bytes of each piece of new memory, the smallest first.
        results: for each result the slot of its address.
        analysis: the memory of a call.
    """

    inputs: int
    fresh: tuple[int, ...]
    results: tuple[int, ...]
    analysis: MemoryAnalysis

    @property
    def block(self) -> int:
        """The slot of the block of intermediates: the last one."""
        return self.inputs + len(self.fresh)

    @property
    def text(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The inverse of :attr:`text`."""
        fields = json.loads(text)
        analysis = MemoryAnalysis(**fields["analysis"])
        return cls(fields["inputs"], tuple(fields["fresh"]), tuple(fields["results"]), analysis)


class Address(NamedTuple):
    """The address in a slot of the table, plus an offset in bytes."""

    slot: int
    offset: int = 0
