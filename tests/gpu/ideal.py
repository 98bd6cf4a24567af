"""The ideal bytes of a step on a GPU: what passes that are fused as far as they can be read and write.

A *pass* reads arrays of memory once and writes others. Passes are the products (convolutions and attention are some),
and what runs between them. The list assumes that

- a product reads its operands once, in the dtype in which it multiplies, and writes its result once;
- maps of its result are part of it, as are sums of them over rows, batch or everything;
- a row of up to 64 Ki elements stays on the chip while it is reduced, but a tile of a product is no whole row: a
  softmax or a layer normalization of a product's result is a pass of its own, which reads that once;
- any other reduction is a barrier: what reads its result together with arrays is a later pass, which reads them again.
  Batch normalization has two, for the mean and for the variance;
- maps, such as dropout's masks, are computed again wherever they are needed, from arrays that are stored anyway, unless
  these have more than twice the bytes of the map's own result; then it is written once, and read like the others;
- operands of products that are computed are written once;
- arguments are read once per pass that needs them, results are written once; of tables only the rows count that are
  looked up or updated;
- a loop does this in each step, where maps read its state and its rows of stacks from the chip, and reads and writes
  its stacks once.

A *level* numbers what has to happen one after another: products make even levels, passes over rows odd ones. All maps
of a level that read an array are one pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tvmfun.core.cost import running
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.ops.pointwise import astype

_LONGEST_ROW = 1 << 16
#: Functions of positions and keys, which are computed where they are needed.
_FREE = ("threefry2x32", "iota")


def ideal_bytes(program: Program) -> float:
    """The ideal bytes of a Program that has been rewritten for its target."""
    return _Levels(program).bytes()


def _bytes_of_step(program: Program) -> float:
    """The bytes of one step of a loop, whose carry stays on the chip."""
    return _Levels(program, is_step=True).bytes()


class _Levels:
    """The levels of a Program's values, and which arrays are stored, read and written.

    Args:
        program: without calls.
        is_step: whether it is the body of a loop, whose inputs and outputs the loop counts.
    """

    def __init__(self, program: Program, is_step: bool = False) -> None:
        self.program, self.is_step = program, is_step
        #: The level on which each value is there, and the stored arrays that it is computed from.
        self.level: dict[Atom, int] = {}
        self.sources: dict[Atom, frozenset[Variable]] = {}
        self.born: dict[Variable, int] = {}  # the results of products, by level
        self.reads: dict[tuple[Variable, int], float] = {}  # by pass
        self.writes: dict[Variable, float] = {}
        for variable in program.inputs:
            self.level[variable], self.sources[variable] = 0, frozenset([variable])
        #: The arrays that sums over rows read, and the levels on which their terms are there.
        self.sums: list[tuple[frozenset[Variable], int]] = []
        self.others: float = 0
        self.makers = {out: equation for equation in program.equations for out in equation.outputs}
        self.numbers = {variable: i for i, variable in enumerate((*program.inputs, *self.makers))}

    def bytes(self) -> float:
        """The sum of all reads and writes."""
        for equation in self.program.equations:
            self._visit(equation)
        for atom in self.program.outputs:
            if isinstance(atom, Variable) and atom not in self.program.inputs and not self.is_step:
                self._need(self.sources[atom] - {atom}, self.level[atom])
                self.writes.setdefault(atom, atom.aval.nbytes)
        for sources, level in self.sums:
            # The pass over rows of the same level may read the same arrays.
            self._need(sources, min((level, level | 1), key=lambda level: self._missing(sources, level)))
        inputs = set(self.program.inputs)
        stored = {variable for variable, _ in self.reads} | set(self.writes)
        made = (self.writes.get(variable, variable.aval.nbytes) for variable in stored if variable not in inputs)
        # Maps of a step find its state, and its rows of stacks, on the chip.
        given = inputs if self.is_step else set()
        reads = (count for (variable, level), count in self.reads.items() if level < 0 or variable not in given)
        return sum(reads) + sum(made) + self.others

    # -- equations ---------------------------------------------------------------------------------------------

    def _visit(self, equation: Equation) -> None:
        op, inputs = equation.op, [atom for atom in equation.inputs if isinstance(atom, Variable)]
        level = max((self.level[atom] for atom in inputs), default=0)
        if op.name in _FREE:
            self._make(equation, level, ())
        elif op.runs is not None or op.kind in ("contraction", "opaque", "control"):
            self._product(equation, level)
        elif op.kind == "reduction" and not op.window:
            self._reduce(equation, inputs, level)
        elif op.window or op.kind == "reduction":
            self._make(equation, level | 1, self._all_sources(inputs, level | 1))
        elif op.kind == "injective" and not op.view and inputs and equation.outputs[0].aval.size < inputs[0].aval.size:
            self._pick(equation, inputs, level)
        else:
            self._make(equation, level, self._all_sources(inputs, level))

    def _product(self, equation: Equation, level: int) -> None:
        """A pass that reads whole arrays."""
        operands = list(equation.inputs)
        position = equation.op.overwrites
        if equation.op.runs is not None:
            self.others += running(equation, _bytes_of_step)
            operands = operands[equation.params.get("consts", 0) :]
        for i, atom in enumerate(operands):
            if i != position and isinstance(atom, Variable):
                self._operand(atom, level)
        result = (level | 1) + 1
        for out in equation.outputs:
            self.level[out], self.sources[out], self.born[out] = result, frozenset([out]), result
        if position is not None:
            updated = 2 * max(atom.aval.nbytes for atom in equation.inputs[1:])
            self.writes[equation.outputs[0]] = min(equation.outputs[0].aval.nbytes, updated)

    def _operand(self, atom: Variable, level: int) -> None:
        """Reads an operand: before a conversion that widens it, and before changes of its layout."""
        atom = self._narrow(atom)
        if self.sources[atom] != {atom}:
            self._need(self.sources[atom], self.level[atom])
            self._store(atom)
        key = atom, -level - 1  # the pass of a product
        self.reads[key] = self.reads.get(key, 0) + atom.aval.nbytes

    def _narrow(self, atom: Variable) -> Variable:
        while (equation := self.makers.get(atom)) is not None:
            source = next(iter(equation.inputs), None)
            if not isinstance(source, Variable):
                break
            is_layout = equation.op.view or equation.op.name in ("permute_dims", "flip", "pad", "broadcast_to")
            widens = equation.op is astype and source.aval.dtype.itemsize <= atom.aval.dtype.itemsize
            if not (is_layout or widens):
                break
            atom = source
        return atom

    def _reduce(self, equation: Equation, inputs: list[Variable], level: int) -> None:
        (out,) = equation.outputs
        source, axis = equation.inputs[0].aval, equation.params["axis"]
        trailing = axis == tuple(range(min(axis, default=0), source.ndim)) and min(axis, default=0) > 0
        if trailing and math.prod(source.shape[min(axis) :]) <= _LONGEST_ROW:
            self._make(equation, level | 1, self._all_sources(inputs, level | 1))
            return
        self.sums.append((self._all_sources(inputs, level), level))
        self.level[out], self.sources[out] = (level | 1) + 1, frozenset([out])

    def _pick(self, equation: Equation, inputs: list[Variable], level: int) -> None:
        """A lookup reads what it returns of the array."""
        table, (out,) = inputs[0], equation.outputs
        if self.sources[table] == {table}:
            key = table, level
            self.reads[key] = min(table.aval.nbytes, self.reads.get(key, 0) + out.aval.size * table.aval.dtype.itemsize)
            inputs = inputs[1:]
        self._make(equation, level, self._all_sources(inputs, level))

    # -- arrays ------------------------------------------------------------------------------------------------

    def _make(self, equation: Equation, level: int, sources: Iterable[Variable]) -> None:
        for out in equation.outputs:
            self.level[out], self.sources[out] = level, frozenset(sources)

    def _all_sources(self, inputs: Iterable[Variable], level: int) -> frozenset[Variable]:
        """The stored arrays that a pass reads for these values; values that would take too many are stored."""
        found: set[Variable] = set()
        for atom in inputs:
            own = self.sources[atom]
            if own != {atom} and self.level[atom] < level:
                cost = sum(other.aval.nbytes for other in own)
                if cost > 2 * atom.aval.nbytes:
                    self._need(own, self.level[atom])
                    self._store(atom)
            found |= self.sources[atom]
        return frozenset(found)

    def _store(self, atom: Variable) -> None:
        self.sources[atom] = frozenset([atom])
        self.writes.setdefault(atom, atom.aval.nbytes)
        self.born.setdefault(atom, self.level[atom])

    def _need(self, sources: Iterable[Variable], level: int) -> None:
        """Reads arrays in the pass of a level."""
        for source in self._not_at_hand(sources, level):
            self.reads.setdefault((source, level), source.aval.nbytes)

    def _missing(self, sources: Iterable[Variable], level: int) -> float:
        """The bytes of the arrays that the pass of a level would have to read in addition."""
        read = (source for source in self._not_at_hand(sources, level) if (source, level) not in self.reads)
        return sum(source.aval.nbytes for source in read)

    def _not_at_hand(self, sources: Iterable[Variable], level: int) -> list[Variable]:
        """The arrays without the largest of those that the pass of a level makes itself."""
        own = [source for source in sources if self.born.get(source) == level]
        at_hand = max(own, key=lambda atom: (atom.aval.nbytes, self.numbers[atom]), default=None)
        return [source for source in sources if source is not at_hand]
