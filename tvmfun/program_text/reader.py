"""Programs from text: every name, op and type is checked, and nothing of the text is run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tvmfun import dtypes, tree
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import REGISTRY, Op
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.errors import ProgramError, TvmfunError
from tvmfun.manifest.trees import restored
from tvmfun.ops.parameters import check_parameters
from tvmfun.program_text.nested import check_programs
from tvmfun.program_text.sizes import Sizes, read_bounds
from tvmfun.program_text.tokens import END, Tokens
from tvmfun.program_text.values import MOST_LEVELS, Values, dtype_of
from tvmfun.program_text.writer import flat_trees

# NumPy's limit on axes, and bytes that have 64-bit addresses.
_MOST_AXES = 64
_MOST_BYTES = 2**62

#: The trees of arguments and results.
Trees = tuple[tree.Structure, tree.Structure]


class Reader:
    """Reads the text of one Program, and of those inside of it.

    Args:
        text: the text.
        arrays: the arrays that they captured.
        first_line: the number of its first line, for errors.
    """

    def __init__(self, text: str, arrays: Sequence[Array] = (), first_line: int = 1) -> None:
        self._tokens = Tokens(text, first_line)
        self._arrays = arrays
        self._captured = 0

    def read(self, trees: Trees | None = None) -> Program:
        """Reads the Program.

        Args:
            trees: its trees, if they are not in the text.

        Raises:
            ProgramError: if the text is not one of a Program; the message has the line.
        """
        program = self._program(0, trees)
        if self._tokens.kind != END:
            raise self._tokens.error("expected the end of the text")
        if self._captured != len(self._arrays):
            got = f"{self._captured} of {len(self._arrays)}"
            raise self._tokens.error("the Program must capture all arrays of the file", got=got)
        return program

    def _program(self, level: int, trees: Trees | None = None) -> Program:
        tokens, start = self._tokens, self._tokens.position
        if level > MOST_LEVELS:
            raise tokens.error(f"more than {MOST_LEVELS} Programs inside of each other")
        tokens.expect("program")
        name = tokens.name()
        # The bounds of sizes come after the inputs, whose types need them.
        inputs_at = tokens.position
        _skip_inputs(tokens)
        in_tree, out_tree = (self._tree(word) for word in ("takes", "returns"))
        bounds = read_bounds(tokens) if tokens.accept("where") else {}
        equations_at = tokens.position
        tokens.go_to(inputs_at)
        scope = _Scope(tokens, Sizes(tokens, bounds), level, self._program)
        inputs, captured = self._inputs(scope)
        tokens.go_to(equations_at)
        tokens.expect("{")
        equations = []
        while not tokens.accept("return"):
            equations.append(scope.equation())
        outputs = scope.atoms("}")
        flat = flat_trees(inputs[len(captured) :], outputs)
        # An empty structure is false.
        written = flat[0] if in_tree is None else in_tree, flat[1] if out_tree is None else out_tree
        in_tree, out_tree = trees or written
        if (in_tree.num_leaves, out_tree.num_leaves) != (len(inputs) - len(captured), len(outputs)):
            got = f"{len(inputs) - len(captured)} and {len(outputs)}"
            what = f"the trees have {in_tree.num_leaves} arguments and {out_tree.num_leaves} results"
            raise tokens.error(what, got=got, position=start)
        program = Program(
            tuple(inputs), tuple(equations), tuple(outputs), in_tree, out_tree, tuple(captured), name=name
        )
        try:
            program.sizes  # noqa: B018  # a name has the same bounds everywhere
        except TvmfunError as error:
            raise tokens.error(error.what, got=error.got, position=start) from None
        return program

    def _inputs(self, scope: _Scope) -> tuple[list[Variable], list[Array]]:
        tokens = self._tokens
        inputs: list[Variable] = []
        captured: list[Array] = []
        tokens.expect("(")
        while not tokens.at(")"):
            inputs.append(scope.define())
            if tokens.accept("="):
                captured.append(self._array(inputs[-1].aval))
                if len(captured) != len(inputs):
                    raise tokens.error("captured arrays must come before other inputs")
            if not tokens.accept(","):
                break
        tokens.expect(")")
        return inputs, captured

    def _array(self, aval: ShapeDtype) -> Array:
        """A captured array of the file."""
        tokens = self._tokens
        tokens.expect("captured")
        number = tokens.natural()
        if number != self._captured or number >= len(self._arrays):
            raise tokens.error(f"the next captured array must be {self._captured} of {len(self._arrays)}")
        array = self._arrays[number]
        if (array.shape, array.dtype) != (aval.shape, aval.dtype):
            raise tokens.error(f"the captured array {number} must be {aval}", got=str(array.aval))
        self._captured += 1
        return array

    def _tree(self, word: str) -> tree.Structure | None:
        tokens, start = self._tokens, self._tokens.position
        if not tokens.at(word):
            return None
        return read_tree(tokens.json_after(), lambda what, got: tokens.error(what, got=got, position=start))


def read_tree(described: Any, error: Callable[[str, str], ProgramError]) -> tree.Structure:
    """A structure from its description in a manifest.

    Args:
        described: the description.
        error: makes an error of what was wrong and what was found.
    """
    try:
        return restored(described)
    except TvmfunError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise error("a tree that cannot be read", str(problem)) from None


def _skip_inputs(tokens: Tokens) -> None:
    """Goes on after the parenthesis that closes the inputs."""
    tokens.expect("(")
    depth = 1
    while depth:
        if tokens.kind == END:
            raise tokens.error("expected ')'")
        depth += tokens.at("(") - tokens.at(")")
        tokens.next()


class _Scope:
    """The names of one Program, and the equations that define them.

    Args:
        tokens: the tokens.
        sizes: reads its dynamic sizes.
        level: the number of Programs and tuples around it.
        read_program: reads a Program, at a level of nesting.
    """

    def __init__(self, tokens: Tokens, sizes: Sizes, level: int, read_program: Callable[[int], Program]) -> None:
        self._tokens, self._sizes, self._level = tokens, sizes, level
        self._values = Values(tokens, sizes, read_program)
        self._names: dict[str, Variable] = {}

    def define(self) -> Variable:
        """Reads the name and the type of an input."""
        return self._add(*self._declaration())

    def equation(self) -> Equation:
        """Reads an equation, and checks that its op returns the stated types."""
        tokens, start = self._tokens, self._tokens.position
        declared = []
        while not tokens.at("="):
            declared.append(self._declaration())
            if not tokens.accept(","):
                break
        tokens.expect("=")
        name = tokens.expect_kind("name", "the name of an op")
        op = REGISTRY.get(name)
        if op is None:
            hint = "importing the module that registers it, or the version of tvmfun that wrote it"
            raise tokens.error("there is no op of this name", got=name, hint=hint, position=start)
        tokens.expect("(")
        inputs: list[Atom] = []
        params: dict[str, Any] = {}
        while not tokens.at(")"):
            key = self._atom_or_key()
            if isinstance(key, str):
                if key in params:
                    raise tokens.error(f"the parameter {key} is there twice")
                params[key] = self._values.read(self._level)
            elif params:
                raise tokens.error("arguments must come before parameters")
            else:
                inputs.append(key)
            if not tokens.accept(","):
                break
        tokens.expect(")")
        source = _source(tokens)
        outputs = [self._add(*declaration) for declaration in declared]
        equation = Equation(op, tuple(inputs), params, tuple(outputs), source)
        try:
            check_types(equation)
        except TvmfunError as error:
            raise tokens.error(f"{name}: {error.what}", error.got or "other ones", error.hint, start) from None
        except Exception as error:  # the rules of shapes raise anything for parameters of a wrong kind
            got = f"{type(error).__name__}: {error}"
            raise tokens.error(f"{name} does not take these arguments", got, position=start) from None
        return equation

    def atoms(self, end: str) -> list[Atom]:
        """Reads atoms with commas in between, and the mark that ends them."""
        found: list[Atom] = []
        while not self._tokens.at(end):
            found.append(self._atom())
            if not self._tokens.accept(","):
                break
        self._tokens.expect(end)
        return found

    def _add(self, name: str, aval: ShapeDtype, position: int) -> Variable:
        if name in self._names:
            raise self._tokens.error("a name is defined twice", got=name, position=position)
        self._names[name] = Variable(aval)
        return self._names[name]

    def _declaration(self) -> tuple[str, ShapeDtype, int]:
        """A name, its type, and its position."""
        tokens, start = self._tokens, self._tokens.position
        name = tokens.expect_kind("name", "a name")
        tokens.expect(":")
        return name, self._type(), start

    def _type(self) -> ShapeDtype:
        tokens, start = self._tokens, self._tokens.position
        is_weak = tokens.accept("weak")
        name = tokens.expect_kind("name", "a dtype")
        dtype = dtype_of(name)
        if dtype is None:
            hint = f"one of {', '.join(dtypes.NAMES.values())}"
            raise tokens.error("there is no such dtype", got=repr(name), hint=hint, position=start)
        shape: list[Any] = []
        tokens.expect("[")
        while not tokens.at("]"):
            shape.append(self._sizes.read())
            if not tokens.accept(","):
                break
        tokens.expect("]")
        known = math.prod(size for size in shape if type(size) is int and size)
        if len(shape) > _MOST_AXES or known * dtype.itemsize > _MOST_BYTES:
            got = f"{len(shape)} axes, {known} elements"
            raise tokens.error("no array has so many axes or elements", got=got, position=start)
        try:
            return ShapeDtype(tuple(shape), dtype, is_weak)
        except TvmfunError as error:
            raise tokens.error(error.what, got=error.got, position=start) from None

    def _atom_or_key(self) -> Atom | str:
        """An argument of an equation, or the name of a parameter, after which its value comes."""
        tokens, start = self._tokens, self._tokens.position
        if tokens.kind != "name":
            return self._values.literal()
        name = tokens.next()
        if tokens.accept("="):
            return name
        if tokens.at(":"):  # a word, such as inf
            tokens.go_to(start)
            return self._values.literal()
        if name not in self._names:
            raise tokens.error("a value is used before it is defined", got=name, position=start)
        return self._names[name]

    def _atom(self) -> Atom:
        atom = self._atom_or_key()
        if isinstance(atom, str):
            raise self._tokens.error("expected a value")
        return atom


def _source(tokens: Tokens) -> str:
    """The user's line after an equation, if there is one."""
    if tokens.kind != "source":
        return ""
    position, text = tokens.position, tokens.next()[1:].strip()
    if not text.startswith(("'", '"')):
        return text
    inner = Tokens(text)
    if inner.kind != "string":
        raise tokens.error("a line of the user that cannot be read", got=text, position=position)
    return inner.string()


def check_types(equation: Equation) -> None:
    """Checks the types of an equation's results, and of the equations of its Programs, against its op.

    Raises:
        ProgramError: if they differ.
        Exception: any other one, for arguments that the op does not take.
    """
    parameters = _parameters(equation.op)
    if parameters is not None:
        parameters.bind(*equation.inputs, **equation.params)
    check_parameters(equation.op.name, equation.op.shape, equation.params)
    rules = equation.op.vjp
    if isinstance(rules, tuple) and len(rules) != len(equation.inputs):
        raise ProgramError("Program.load", f"it takes {len(rules)} arguments", got=str(len(equation.inputs)))
    check_programs(equation)
    types = equation.op.shape(*(atom.aval for atom in equation.inputs), **equation.params)
    types = types if isinstance(types, tuple) else (types,)
    expected = [(aval.shape, aval.dtype) for aval in types]
    got = [(variable.aval.shape, variable.aval.dtype) for variable in equation.outputs]
    if expected != got:
        text = ", ".join(str(variable.aval) for variable in equation.outputs)
        raise ProgramError("Program.load", f"it returns {', '.join(map(str, types))}", got=text)


@cache
def _parameters(op: Op) -> inspect.Signature | None:
    """The parameters of an op whose computation takes its arguments; rules of shapes may take any number of them."""
    return None if op.kind in ("control", "call") else inspect.signature(op.compute)
