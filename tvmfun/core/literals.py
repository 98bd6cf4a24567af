"""Literals of Programs as inputs, so that Programs that differ in numbers only are compiled once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import count
from threading import Lock

import numpy as np

from tvmfun import tree
from tvmfun.core.program import Atom, Literal, Program, Variable
from tvmfun.exact_keys import exact_key


def literals_of(program: Program) -> list[np.generic]:
    """The numbers that a Program's equations and outputs use, in order, without those inside of loops and branches."""
    return [atom.value for atom in _atoms(program) if isinstance(atom, Literal)]


def literals_as_inputs(program: Program, positions: Collection[int]) -> Program:
    """Replaces literals by inputs, which become the first argument of the Program, a list.

    Args:
        program: the Program.
        positions: indices into :func:`literals_of`.
    """
    numbers: list[Variable] = []
    counted = count()

    def use(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        return tuple(map(converted, atoms))

    def converted(atom: Atom) -> Atom:
        if not isinstance(atom, Literal) or next(counted) not in positions:
            return atom
        numbers.append(Variable(atom.aval))
        return numbers[-1]

    equations = tuple(equation._replace(inputs=use(equation.inputs)) for equation in program.equations)
    outputs = use(program.outputs)
    captured = len(program.captured)
    leaves = program.inputs[captured:]
    args, kwargs = tree.unflatten(program.in_tree, leaves)
    return replace(
        program,
        inputs=(*program.inputs[:captured], *numbers, *leaves),
        equations=equations,
        outputs=outputs,
        in_tree=tree.structure(((numbers, *args), kwargs)),
    )


class ChangingNumbers:
    """The literals that have changed from one Program to another that differs from it in numbers only.

    Args:
        kept: the most Programs to remember, with and without their numbers.
    """

    def __init__(self, kept: int = 1024) -> None:
        self.kept = kept
        self._lock = Lock()
        # By Programs without their numbers, and how many these are, since the text of a number that became an input is
        # that of a captured array: the numbers of the first one, and which have differed since.
        self._first: OrderedDict[tuple[bytes, int], tuple[list[Hashable], frozenset[int]]] = OrderedDict()
        # By Programs: the numbers that had changed when it was met first.
        self._changed: OrderedDict[bytes, frozenset[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first)

    def clear(self) -> None:
        """Forgets all Programs."""
        with self._lock:
            self._first.clear()
            self._changed.clear()

    def separated(self, program: Program) -> tuple[Program, list[np.generic]]:
        """The Program with literals that have changed as leading inputs, and their values."""
        values = literals_of(program)
        if not values:
            return program, []
        key = _digest(program)
        with self._lock:
            changed = self._changed.get(key)
        if changed is None:
            changed = self._compare(key, program, values)
        if not changed:
            return program, []
        return literals_as_inputs(program, changed), [values[i] for i in sorted(changed)]

    def _compare(self, key: bytes, program: Program, values: list[np.generic]) -> frozenset[int]:
        """Which numbers have changed between the first Program of this form and any later one."""
        form = _digest(literals_as_inputs(program, range(len(values)))), len(values)
        exact = list(map(exact_key, values))
        with self._lock:
            first, changed = self._first.setdefault(form, (exact, frozenset()))
            changed |= {i for i, (old, new) in enumerate(zip(first, exact, strict=True)) if old != new}
            self._first[form] = first, changed
            self._changed[key] = changed
            self._first.move_to_end(form)
            if len(self._first) > self.kept:
                self._first.popitem(last=False)
            if len(self._changed) > self.kept:
                self._changed.popitem(last=False)
        return changed


def _digest(program: Program) -> bytes:
    return sha256(program.text.encode()).digest()


def _atoms(program: Program) -> Iterator[Atom]:
    for equation in program.equations:
        yield from equation.inputs
    yield from program.outputs
