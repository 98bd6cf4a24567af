"""``Program``: the one currency between tracing, transforms and lowering.

A Program is a list of equations, one per op, and the tree structure of its arguments and results.
``Program.function`` is the same as a Relax function (``core/relax.py``), and ``Program.from_relax`` reads Relax
functions that were written elsewhere (``interop/relax``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.dims import Dim
from tvmfun.core.interpreter import STACK
from tvmfun.core.leaf import abstract, argument_name
from tvmfun.core.op import Op
from tvmfun.core.source import Replay
from tvmfun.errors import DtypeError, ProgramError, ShapeError
from tvmfun.exact_keys import same_structure

if TYPE_CHECKING:
    import tvm
    from tvm import relax

    from tvmfun.typing import PyTree


class Variable:
    """A value of a Program: an input or the result of an equation."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapeDtype) -> None:
        self.aval = aval


class Literal(NamedTuple):
    """A scalar constant of a Program."""

    value: np.generic

    @property
    def aval(self) -> ShapeDtype:
        """The type of the constant; weak, because it adapts to the arrays it meets."""
        return ShapeDtype((), self.value.dtype, weak=True)

    def __str__(self) -> str:
        return f"{self.value.item()!r}:{dtypes.NAMES[self.value.dtype]}"


Atom = Variable | Literal


class Equation(NamedTuple):
    """One op applied to atoms: ``outputs = op(*inputs, **params)``; ``source`` is the user's ``file:line``."""

    op: Op
    inputs: tuple[Atom, ...]
    params: dict[str, Any]
    outputs: tuple[Variable, ...]
    source: str = ""

    def pruned(self, live: Collection[Variable]) -> Equation:
        """Removes results that are not ``live``, and inputs that only these need."""
        used = [out in live for out in self.outputs]
        if self.op.prune is None or all(used):
            return self
        inputs, outputs, params = self.op.prune(used, **self.params)
        return self._replace(
            inputs=tuple(self.inputs[i] for i in inputs),
            outputs=tuple(self.outputs[i] for i in outputs),
            params=params,
        )


class Immutable:
    """Mixin for immutable objects: copying returns the object itself (handles of TVM cannot be copied)."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict) -> Any:
        return self


@dataclass(frozen=True, eq=False)
class Program(Immutable):
    """A pure function on arrays, as data: inputs, equations, outputs and their trees.

    Args:
        inputs: the variables of the arguments: one per captured array, then one per leaf of ``in_tree``.
        equations: the ops, in an order in which every value is computed before it is used.
        outputs: one per leaf of ``out_tree``.
        in_tree: the structure of ``(args, kwargs)``.
        out_tree: the structure of the result.
        captured: arrays that the traced function closes over.
        name: the function's name.

    >>> import tvmfun
    >>> tvmfun.trace(lambda x: x * 2.0 + 1.0)(tvmfun.ShapeDtype((3,), "float32")).show()
    program <lambda>(a: float32[3]) {
      b: float32[3] = multiply(a, 2.0:float32)
      c: float32[3] = add(b, 1.0:float32)
      return c
    }
    """

    inputs: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    in_tree: tree.Structure
    out_tree: tree.Structure
    captured: tuple[Array, ...] = field(default=(), repr=False)
    name: str = "main"

    @property
    def in_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the leaves of ``in_tree``."""
        return tuple(v.aval for v in self.inputs[len(self.captured) :])

    @property
    def out_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the leaves of ``out_tree``."""
        return tuple(atom.aval for atom in self.outputs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        same = self is other or (self.text, self.in_tree, self.out_tree) == (other.text, other.in_tree, other.out_tree)
        return same and tuple(map(id, self.captured)) == tuple(map(id, other.captured))

    def __reduce__(self) -> Any:
        # Cached properties, such as the Relax view, are left out.
        return Program, tuple(getattr(self, field.name) for field in fields(self))

    def __hash__(self) -> int:
        return hash(self.text)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Runs the Program on arrays, compiled, or adds its equations to the current trace.

        Raises:
            TreeError: if the arguments have another tree structure than the Program was traced with.
            ShapeError: if a leaf has another shape or dtype.
        """
        leaves = self.check_arguments(args, kwargs)
        return tree.unflatten(self.out_tree, STACK.interpreters[-1].run(self, leaves))

    def check_arguments(self, args: tuple, kwargs: dict) -> list[Any]:
        """Returns the leaves of the arguments; raises unless they have the types the Program was traced for."""
        leaves, structure = tree.flatten((args, kwargs))
        if not same_structure(structure, self.in_tree):
            names = ("the arguments it was traced with", "these arguments")
            tree.check_same_structure(self.name, self.in_tree, structure, names, exact=True)
        for i, (leaf, aval) in enumerate(zip(leaves, self.in_avals, strict=True)):
            got = abstract(leaf, self.name)
            fits = len(got.shape) == aval.ndim and all(
                n == m or isinstance(n, Dim) for n, m in zip(aval.shape, got.shape, strict=True)
            )
            if not fits or got.dtype != aval.dtype:
                kind = DtypeError if fits else ShapeError
                what = f"{self.leaf_name(i)} must be {aval}"
                raise kind(self.name, what, got=repr(got), hint="lowering it again")
        return leaves

    def leaf_name(self, leaf: int) -> str:
        """The name of a leaf of the arguments in an error."""
        return argument_name(self.in_tree.accessors()[leaf])

    # -- dynamic sizes -------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> dict[str, Dim]:
        """The named dynamic sizes, by name."""
        shapes = (v.aval.shape for v in (*self.inputs, *(out for e in self.equations for out in e.outputs)))
        return dims.names(*shapes, *(value for e in self.equations for value in e.params.values()))

    def solve(self, avals: Sequence[ShapeDtype]) -> dict[str, Any]:
        """The values of the dynamic sizes for arguments of these types.

        Raises:
            ShapeError: if two axes disagree about a size, or one is out of its bounds.
        """
        if not self.sizes:
            return {}
        patterns = [aval.shape for aval in self.in_avals]
        return dims.solve(patterns, [aval.shape for aval in avals], self.name, self.leaf_name)

    def with_sizes(self, sizes: Mapping[str, Any]) -> Program:
        """Replaces the dynamic sizes of the Program by values."""
        renamed: dict[Variable, Variable] = {}

        def define(variables: Sequence[Variable]) -> tuple[Variable, ...]:
            for variable in variables:
                aval = variable.aval
                renamed[variable] = Variable(replace(aval, shape=dims.at(aval.shape, sizes)))
            return tuple(renamed[variable] for variable in variables)

        def use(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
            return tuple(atom if isinstance(atom, Literal) else renamed[atom] for atom in atoms)

        inputs = define(self.inputs)
        equations = tuple(
            Equation(
                equation.op,
                use(equation.inputs),
                {name: dims.at(value, sizes) for name, value in equation.params.items()},
                define(equation.outputs),
                equation.source,
            )
            for equation in self.equations
        )
        return replace(self, inputs=inputs, equations=equations, outputs=use(self.outputs))

    def evaluate(self, values: Sequence[Any], apply: Callable[[Equation, list], Any] | None = None) -> list[Any]:
        """Walks the equations in order, starting from one value per input.

        All transforms use this walk: ``apply(equation, values)`` returns the results of an equation for the values of
        its inputs; by default it applies the op.
        """
        env: dict[Variable, Any] = dict(zip(self.inputs, values, strict=True))

        def read(atom: Atom) -> Any:
            return atom.value if isinstance(atom, Literal) else env[atom]

        if apply is None:
            apply = lambda equation, arguments: equation.op(*arguments, **equation.params)
        with Replay() as replay:
            for equation in self.equations:
                replay.line = equation.source
                result = apply(equation, [read(atom) for atom in equation.inputs])
                env.update(zip(equation.outputs, result if isinstance(result, tuple) else (result,), strict=True))
        return [read(atom) for atom in self.outputs]

    def without_dead_code(self) -> Program:
        """Removes equations whose results are unused, also within loops and branches."""
        live = {atom for atom in self.outputs if isinstance(atom, Variable)}
        kept = []
        for equation in reversed(self.equations):
            if not live.isdisjoint(equation.outputs):
                kept.append(equation.pruned(live))
                live.update(atom for atom in kept[-1].inputs if isinstance(atom, Variable))
        return Program(
            self.inputs, tuple(reversed(kept)), self.outputs, self.in_tree, self.out_tree, self.captured, self.name
        )

    # -- the Relax view ------------------------------------------------------------------------------------

    @cached_property
    def function(self) -> relax.Function:
        """This Program as a Relax function that takes the inputs and returns the tuple of outputs."""
        from tvmfun.core.relax import to_relax

        return to_relax(self)

    @property
    def module(self) -> tvm.IRModule:
        """An IRModule whose ``main`` is this Program."""
        from tvmfun.core.relax import to_module

        return to_module(self)

    @classmethod
    def from_relax(cls, function: relax.Function, name: str = "main") -> Program:
        """Reads a Relax function as a Program; its arguments become positional.

        Raises:
            ProgramError: if it calls an operator that has neither a record in the registry nor a translation in
                ``tvmfun.interop.relax``.
        """
        from tvmfun.interop.relax.reader import read

        return read(function, name)

    def verify(self) -> Program:
        """Checks that the Relax view is well formed and that every type is the one its op gives; returns ``self``.

        Raises:
            ProgramError: if a check fails; the message quotes TVM's complaint.
        """
        from tvmfun.core.relax import check_well_formed

        defined = set(self.inputs)
        for equation in self.equations:
            for atom in equation.inputs:
                if isinstance(atom, Variable) and atom not in defined:
                    raise ProgramError("Program.verify", f"{equation.op} uses a value before it is defined")
            expected = equation.op.shape(*(atom.aval for atom in equation.inputs), **equation.params)
            expected = expected if isinstance(expected, tuple) else (expected,)
            for variable, aval in zip(equation.outputs, expected, strict=True):
                if (variable.aval.shape, variable.aval.dtype) != (aval.shape, aval.dtype):
                    raise ProgramError("Program.verify", f"{equation.op} returns {aval}", got=repr(variable.aval))
            defined.update(equation.outputs)
        check_well_formed(self)
        return self

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, inline: bool = False) -> None:
        """Writes the Program into a text file, which people can read and compare, and another process can load.

        Arrays that it captured are in ``path`` + ``.safetensors``.

        Args:
            path: the file to write or replace.
            inline: whether to replace calls that hold Python functions, such as custom derivatives, by the
                equations that they run.

        Raises:
            ProgramError: if it has such a call, or arguments or results of a class that cannot be found by its name.
            OSError: if the file cannot be written.

        >>> import tempfile, tvmfun
        >>> program = tvmfun.trace(lambda x: x * 2.0)(tvmfun.ShapeDtype((3,), "float32"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     program.save(f"{folder}/twice.program")
        ...     Program.load(f"{folder}/twice.program") == program
        True
        """
        from tvmfun.program_text.files import save

        save(self, path, inline=inline)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, allow_edits: bool = False) -> Program:
        """Reads a Program that :meth:`save` wrote; nothing of the file is run.

        Args:
            path: the file.
            allow_edits: whether the text may have been edited, so that it has another checksum.

        Raises:
            ProgramError: if it is truncated, altered, or of another format, or has an op or class that is not here; the
                message has the line.
            OSError: if it cannot be read.
        """
        from tvmfun.program_text.files import load

        return load(path, allow_edits).program

    # -- text ----------------------------------------------------------------------------------------------

    @cached_property
    def text(self) -> str:
        """The Program as text: the same for equal Programs, so it serves as a cache key."""
        names: dict[Variable, str] = {}
        unused = variable_names(self.sizes)

        def define(variable: Variable) -> str:
            names[variable] = next(unused)
            return f"{names[variable]}: {variable.aval}"

        def use(atom: Atom) -> str:
            return str(atom) if isinstance(atom, Literal) else names[atom]

        bounds = dims.bounds_text(self.sizes.values())
        lines = [f"program {self.name}({', '.join(map(define, self.inputs))}){bounds} {{"]
        for equation in self.equations:
            arguments = [use(atom) for atom in equation.inputs]
            arguments += [f"{key}={_show(value)}" for key, value in equation.params.items()]
            lines.append(f"  {', '.join(map(define, equation.outputs))} = {equation.op}({', '.join(arguments)})")
        lines += [f"  return {', '.join(map(use, self.outputs))}", "}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text

    def show(self) -> None:
        """Prints the Program; ``Program.function.show()`` prints it as TVMScript."""
        print(self.text)


def _show(value: Any) -> str:
    """A parameter as text; Programs with their equations, indented."""
    if isinstance(value, Program):
        return value.text.replace("\n", "\n    ")
    if isinstance(value, tuple):
        return f"({', '.join(map(_show, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def variable_names(taken: Collection[str]) -> Iterator[str]:
    """Yields a, b, ..., z, aa, ab, ..., without names that are taken."""
    for number in count(1):
        name = ""
        while number:
            number, letter = divmod(number - 1, 26)
            name = chr(97 + letter) + name
        if name not in taken:
            yield name
