"""Programs as text: as ``Program.text`` prints them, with the parts that it leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tvmfun import tree
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable, variable_names
from tvmfun.manifest.trees import stored
from tvmfun.program_text import values

_BARE = re.compile(r"[^\W\d]\w*|<\w+>")
_PLAIN_LINE = re.compile(r"[^\s'\"](?:[^\n\r]*\S)?")


class Writer:
    """Writes Programs as text, and collects the arrays that they captured."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def write(self, program: Program, with_trees: bool = True) -> str:
        """Returns a Program as text.

        Args:
            program: the Program.
            with_trees: whether to write trees other than flat ones.

        Raises:
            ProgramError: if it holds a Python function, or a value or class that has no text.
        """
        names: dict[Variable, str] = {}
        unused = variable_names(program.sizes)

        def define(variable: Variable) -> str:
            names[variable] = next(unused)
            return f"{names[variable]}: {'weak ' * variable.aval.weak}{variable.aval}"

        def use(atom: Atom) -> str:
            return values.written_literal(atom.value) if isinstance(atom, Literal) else names[atom]

        def line(equation: Equation) -> str:
            arguments = [use(atom) for atom in equation.inputs]
            for key, value in equation.params.items():
                arguments.append(f"{key}={values.written(value, self._nested)}")
            result = f"  {', '.join(map(define, equation.outputs))} = {equation.op}({', '.join(arguments)})"
            return f"{result}  # {_source(equation.source)}" if equation.source else result

        inputs = [define(variable) for variable in program.inputs]
        for i, array in enumerate(program.captured):
            inputs[i] += f" = captured {len(self.arrays)}"
            self.arrays.append(array)
        trees = _trees(program) if with_trees else ""
        bounds = dims.bounds_text(program.sizes.values())
        lines = [f"program {_name(program.name)}({', '.join(inputs)}){trees}{bounds} {{"]
        lines += map(line, program.equations)
        lines += [f"  return {', '.join(map(use, program.outputs))}".rstrip(), "}"]
        return "\n".join(lines)

    def _nested(self, program: Program) -> str:
        return self.write(program).replace("\n", "\n    ")


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else repr(name)


def _source(source: str) -> str:
    return source if _PLAIN_LINE.fullmatch(source) and source.isprintable() else repr(source)


def flat_trees(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[tree.Structure, tree.Structure]:
    """The trees of a Program of positional arguments that returns a list, as that of a loop."""
    return tree.structure(((0,) * len(inputs), {})), tree.structure([0] * len(outputs))


def _trees(program: Program) -> str:
    """The trees of a Program inside of another, unless they are flat."""
    arguments, results = flat_trees(program.in_avals, program.outputs)
    text = ""
    if program.in_tree != arguments:
        text += f" takes {json.dumps(stored(program.in_tree))}"
    if program.out_tree != results:
        text += f" returns {json.dumps(stored(program.out_tree))}"
    return text
