"""Promotion of memory to registers in the text of LLVM modules: ``mem2reg`` for modules that LLVM does not optimize.

TIR keeps totals and intermediate vectors in small buffers, which are on the stack in LLVM's IR. A vector on the stack
that crosses a cache line, or is read in other parts than it was written in, can only be read after some hundred cycles.
LLVM's optimizer turns such buffers into registers, but takes longer than all other work on a kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tvmfun.llvm_modules import FUNCTION
from tvmfun.lower.tir.micro_kernels.text import order_of

_TYPE = r"<\d+ x \w+>|\w+"
_ALLOCA = re.compile(rf"^  (%\S+) = alloca ({_TYPE})(?:, i\d+ (\d+))?, align", re.MULTILINE)
_ADDRESS = re.compile(r"  (%\S+) = getelementptr (?:inbounds )?(?:nuw )?(\w+), ptr (%\S+), i\d+ (\d+)$")
_LOAD = re.compile(rf"  (%\S+) = load ({_TYPE}), ptr (%[^\s,]+)")
_STORE = re.compile(rf"  store ({_TYPE}) (.+), ptr (%[^\s,]+), align")
_LABEL = re.compile(r"([\w.$-]+):")
_NAME = re.compile(r"%[\w.$-]+")
_SUCCESSOR = re.compile(r"label %([\w.$-]+)")

_BYTES = {"i8": 1, "i16": 2, "half": 2, "bfloat": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}
# A buffer of more vectors than a processor has registers stays in memory.
_MOST_SLOTS = 64
_UNKNOWN = "poison"
# Placeholder in the text of a store of some elements: the value before it.
_OLD = "\0"


def promoted(text: str) -> str:
    """Returns the text of an LLVM module with registers instead of buffers on the stack whose indices are constants.

    Reads become the values of the last write, or of a ``phi`` if several writes may be the last one.

    >>> text = '''define void @two(ptr %out) {
    ... entry:
    ...   %x = alloca float, i64 1, align 4
    ...   store float 2.0, ptr %x, align 4
    ...   %y = load float, ptr %x, align 4
    ...   store float %y, ptr %out, align 4
    ...   ret void
    ... }'''
    >>> print(promoted(text))
    define void @two(ptr %out) {
    entry:
      %x = alloca float, i64 1, align 4
      %y = select i1 true, float 2.0, float poison
      store float %y, ptr %out, align 4
      ret void
    }
    """
    return FUNCTION.sub(lambda found: _promoted(found[0]) if " = alloca " in found[0] else found[0], text)


class _Access(NamedTuple):
    """A load from or a store to neighbouring elements of a buffer."""

    line: int
    block: str
    begin: int
    lanes: int
    #: The name of the loaded value.
    name: str | None
    #: The stored value.
    value: str | None


@dataclass
class _Buffer:
    """A buffer on the stack, of scalars."""

    dtype: str
    #: How often its addresses are named without preventing a promotion.
    known: int = 1
    names: list[str] = field(default_factory=list)
    accesses: list[_Access] = field(default_factory=list)


class _Slot(NamedTuple):
    """Neighbouring elements of a buffer that become one value."""

    begin: int
    lanes: int
    dtype: str
    accesses: list[_Access]


def _promoted(function: str) -> str:
    """The text of a function with registers instead of buffers."""
    buffers = {
        found[1]: _Buffer(found[2], names=[found[1]]) for found in _ALLOCA.finditer(function) if found[2] in _BYTES
    }
    # Blocks with other names would be overlooked.
    if not buffers or '\n"' in function:
        return function
    lines = function.split("\n")
    predecessors = _find_accesses(lines, buffers)
    counts = Counter(_NAME.findall(function))
    slots = [
        slot
        for buffer in buffers.values()
        if sum(counts[name] for name in buffer.names) == buffer.known
        for slot in _slots(buffer)
    ]
    if not slots:
        return function
    phis: dict[str, list[str]] = {}
    for number, slot in enumerate(slots):
        promotion = _Promotion(slot, number, predecessors)
        for line, text in promotion.replaced():
            lines[line] = text
        for block, phi in promotion.phis():
            phis.setdefault(block, []).append(phi)
    return "\n".join(_with_phis(lines, phis))


def _find_accesses(lines: Sequence[str], buffers: dict[str, _Buffer]) -> dict[str, list[str]]:
    """Finds the loads and stores of the buffers, and the predecessors of each block."""
    addresses = {name: (buffer, 0) for name, buffer in buffers.items()}
    predecessors: dict[str, list[str]] = {}
    block = ""
    for i, line in enumerate(lines):
        if line.startswith("  store "):
            found = _STORE.match(line)
            if found and found[3] in addresses:
                _add_access(*addresses[found[3]], i, block, found[1], value=found[2])
        elif line.startswith("  %"):
            if " = load " in line:
                found = _LOAD.match(line)
                if found and found[3] in addresses:
                    _add_access(*addresses[found[3]], i, block, found[2], name=found[1])
            elif " = getelementptr " in line:
                found = _ADDRESS.match(line)
                if found and found[3] in buffers and found[2] in _BYTES:
                    buffer = buffers[found[3]]
                    buffer.known += 2
                    buffer.names.append(found[1])
                    addresses[found[1]] = buffer, int(found[4]) * _BYTES[found[2]]
        elif line.startswith(("  br ", "  switch ", "    i")):
            for successor in _SUCCESSOR.findall(line):
                predecessors.setdefault(successor, []).append(block)
        elif found := _LABEL.match(line):
            block = found[1]
    return predecessors


def _add_access(
    buffer: _Buffer, offset: int, line: int, block: str, dtype: str, name: str | None = None, value: str | None = None
) -> None:
    """Adds a load or store to a buffer if it is of elements of the buffer."""
    lanes, of = _lanes(dtype)
    begin, left = divmod(offset, _BYTES[buffer.dtype])
    if of == buffer.dtype and not left:
        buffer.known += 1
        buffer.accesses.append(_Access(line, block, begin, lanes, name, value))


def _lanes(dtype: str) -> tuple[int, str]:
    """The number of lanes, and the type of each."""
    if dtype[0] != "<":
        return 1, dtype
    lanes, of = dtype[1:-1].split(" x ")
    return int(lanes), of


def _slots(buffer: _Buffer) -> list[_Slot]:
    """Slots of elements that are always accessed together; none if there are too many."""
    slots: list[_Slot] = []
    for access in sorted(buffer.accesses, key=lambda access: access.begin):
        last = slots[-1] if slots else None
        if last and access.begin < last.begin + last.lanes:
            end = max(last.begin + last.lanes, access.begin + access.lanes)
            slots[-1] = last._replace(lanes=end - last.begin, accesses=[*last.accesses, access])
        else:
            slots.append(_Slot(access.begin, access.lanes, buffer.dtype, [access]))
    return slots if len(slots) <= _MOST_SLOTS else []


class _Promotion:
    """The values of a slot: Braun et al., "Simple and Efficient Construction of Static Single Assignment Form" (2013).

    Args:
        slot: the slot.
        number: its number in the function.
        predecessors: the predecessors of each block, once for each edge.
    """

    def __init__(self, slot: _Slot, number: int, predecessors: dict[str, list[str]]) -> None:
        self._slot = slot
        self._prefix = f"%mem2reg.{number}."
        self._type = _vector(slot.lanes, slot.dtype)
        self._predecessors = predecessors
        self._at_end: dict[str, str] = {}
        #: The operands of each phi, by the block in which it is.
        self._phis: dict[str, list[str]] = {}
        self._texts: dict[int, tuple[str, str]] = {}
        self._reads: list[tuple[_Access, str]] = []
        self._run()

    def replaced(self) -> Iterator[tuple[int, str]]:
        """The lines of accesses, and the text that replaces each."""
        for access, value in self._reads:
            yield access.line, self._read(access, self._same.get(value, value))
        for line, (text, old) in self._texts.items():
            yield line, text.replace(_OLD, self._same.get(old, old))

    def phis(self) -> Iterator[tuple[str, str]]:
        """The blocks that need a phi, and its text."""
        for block, operands in self._phis.items():
            if self._phi(block) in self._same:
                continue
            pairs = zip(operands, self._predecessors[block], strict=True)
            incoming = ", ".join(f"[ {self._same.get(value, value)}, %{before} ]" for value, before in pairs)
            yield block, f"  {self._phi(block)} = phi {self._type} {incoming}"

    def _run(self) -> None:
        by_block: dict[str, list[_Access]] = {}
        for access in sorted(self._slot.accesses, key=lambda access: access.line):
            by_block.setdefault(access.block, []).append(access)
        starts = []
        for block, accesses in by_block.items():
            value = None
            for access in accesses:
                is_read = access.name is not None
                if value is None and (is_read or access.lanes < self._slot.lanes):
                    starts.append(block)
                    value = _start(block)
                if is_read:
                    self._reads.append((access, str(value)))
                else:
                    value = self._write(access, value)
            self._at_end[block] = str(value)
        self._same = self._trivial({_start(block): self._before(block) for block in starts})

    def _write(self, access: _Access, old: str | None) -> str:
        """Notes the text of a store, and returns the new value."""
        slot = self._slot
        if access.lanes == slot.lanes:
            self._texts[access.line] = "", ""
            return str(access.value)
        new = f"{self._prefix}{access.line}"
        begin = access.begin - slot.begin
        if access.lanes == 1:
            insert = f"  {new} = insertelement {self._type} {_OLD}, {slot.dtype} {access.value}, i32 {begin}"
            self._texts[access.line] = insert, str(old)
            return new
        part = _vector(access.lanes, slot.dtype)
        inside = range(begin, begin + access.lanes)
        widened = order_of([lane - begin if lane in inside else None for lane in range(slot.lanes)])
        merged = order_of([lane + slot.lanes if lane in inside else lane for lane in range(slot.lanes)])
        self._texts[access.line] = (
            f"  {new}.wide = shufflevector {part} {access.value}, {part} {_UNKNOWN}, {widened}\n"
            f"  {new} = shufflevector {self._type} {_OLD}, {self._type} {new}.wide, {merged}",
            str(old),
        )
        return new

    def _read(self, access: _Access, value: str) -> str:
        """The text that replaces a load."""
        slot = self._slot
        begin = access.begin - slot.begin
        if access.lanes == slot.lanes:
            # Not a cast to the same type: LLVM 22 moves it into the block that follows, and forgets it in an empty one.
            return f"  {access.name} = select i1 true, {self._type} {value}, {self._type} {_UNKNOWN}"
        if access.lanes == 1:
            return f"  {access.name} = extractelement {self._type} {value}, i32 {begin}"
        lanes = order_of(list(range(begin, begin + access.lanes)))
        return f"  {access.name} = shufflevector {self._type} {value}, {self._type} {_UNKNOWN}, {lanes}"

    def _phi(self, block: str) -> str:
        return f"{self._prefix}{block}"

    def _before(self, block: str) -> str:
        """The value at the start of a block; a phi if it has several predecessors."""
        value, joins = self._reaching(block)
        while joins:
            join = joins.pop()
            if join not in self._phis:
                reaching = [self._at_end_of(before) for before in self._predecessors[join]]
                self._phis[join] = [operand for operand, _ in reaching]
                joins += [more for _, others in reaching for more in others]
        return value

    def _at_end_of(self, block: str) -> tuple[str, list[str]]:
        return (self._at_end[block], []) if block in self._at_end else self._reaching(block)

    def _reaching(self, block: str) -> tuple[str, list[str]]:
        """The value at the start of a block, and the block whose phi it is, if it is one."""
        while True:
            before = self._predecessors.get(block, [])
            if not before:
                return _UNKNOWN, []
            if len(before) > 1:
                return self._phi(block), [block]
            (block,) = before
            if block in self._at_end:
                return self._at_end[block], []

    def _trivial(self, same: dict[str, str]) -> dict[str, str]:
        """The values that phis and reads stand for, if there is only one."""

        def settled(value: str) -> str:
            while value in same:
                value = same[value]
            return value

        is_changed = True
        while is_changed:
            is_changed = False
            for block, operands in self._phis.items():
                phi = self._phi(block)
                others = {settled(value) for value in operands} - {phi}
                if phi not in same and len(others) == 1:
                    same[phi] = others.pop()
                    is_changed = True
        return {value: settled(value) for value in same}


def _start(block: str) -> str:
    """The name of the value at the start of a block until that is known."""
    return f"start of {block}"


def _vector(lanes: int, dtype: str) -> str:
    return dtype if lanes == 1 else f"<{lanes} x {dtype}>"


def _with_phis(lines: Sequence[str], phis: dict[str, list[str]]) -> Iterator[str]:
    """The lines of a function without empty ones, and with phis at the start of blocks."""
    for line in lines:
        if not line:
            continue
        yield line
        found = _LABEL.match(line)
        if found and found[1] in phis:
            yield from phis[found[1]]
