"""``Program``: the one currency between tracing, transforms and lowering.

A Program is a Relax function plus the tree structure of its arguments and results. Transforms read it as a
list of equations, one per op; ``Program.function`` is the same thing as Relax, and ``Program.from_relax``
reads Relax functions that were written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax

from tvmfun import dtypes, tree
from tvmfun.core import dims
from tvmfun.core import op as ops
from tvmfun.core.array import Array, DeviceArray, ShapeDtype, device_array
from tvmfun.core.dims import Dim
from tvmfun.core.leaf import abstract
from tvmfun.core.op import Op
from tvmfun.errors import DtypeError, ProgramError, ShapeError


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
        """The same equation without what only results need that are not among the ``live`` variables."""
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
    """What is its own copy: it never changes, and TVM's objects, which it has, must not be copied."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict) -> Any:
        return self


@dataclass(frozen=True, eq=False)
class Program(Immutable):
    """A pure function on arrays, as data: inputs, equations, outputs and their trees.

    Args:
        inputs: the values it starts from: one per captured array, then one per leaf of ``in_tree``.
        equations: the ops, in an order in which every value is computed before it is used.
        outputs: one per leaf of ``out_tree``.
        in_tree: the structure of ``(args, kwargs)``.
        out_tree: the structure of the result.
        captured: arrays the traced function used without being given them.
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
        raise ProgramError("pickle", "a Program cannot be pickled", got=self.name, hint="Program.function.script()")

    def __hash__(self) -> int:
        return hash(self.text)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the Program on arrays, compiled, or adds its equations to the current trace.

        Raises:
            TreeError: if the arguments have another tree structure than the Program was traced with.
            ShapeError: if a leaf has another shape or dtype.
        """
        leaves = self.check_arguments(args, kwargs)
        return tree.unflatten(self.out_tree, _run(self, leaves))

    def check_arguments(self, args: tuple, kwargs: dict) -> list[Any]:
        """Returns the leaves of the arguments if they are what the Program was traced for; raises otherwise."""
        leaves, structure = tree.flatten((args, kwargs))
        if structure != self.in_tree:
            names = ("the arguments it was traced with", "these arguments")
            tree.check_same_structure(self.name, self.in_tree, structure, names)
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
        """The dynamic sizes that have a name, by it."""
        shapes = (v.aval.shape for v in (*self.inputs, *(out for e in self.equations for out in e.outputs)))
        return dims.names(*shapes, *(value for e in self.equations for value in e.params.values()))

    def solve(self, avals: Sequence[ShapeDtype]) -> dict[str, Any]:
        """The values of the dynamic sizes for arguments of the given types.

        Raises:
            ShapeError: if two axes disagree about a size, or one is out of its bounds.
        """
        if not self.sizes:
            return {}
        patterns = [aval.shape for aval in self.in_avals]
        return dims.solve(patterns, [aval.shape for aval in avals], self.name, self.leaf_name)

    def with_sizes(self, sizes: Mapping[str, Any]) -> Program:
        """The same Program with values for its dynamic sizes."""
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

        This is the only walker: ``apply(equation, values)`` says what an equation does to the values of its
        inputs, and by default applies its op.
        """
        env: dict[Variable, Any] = dict(zip(self.inputs, values, strict=True))

        def read(atom: Atom) -> Any:
            return atom.value if isinstance(atom, Literal) else env[atom]

        if apply is None:
            apply = lambda equation, arguments: equation.op(*arguments, **equation.params)
        for equation in self.equations:
            result = apply(equation, [read(atom) for atom in equation.inputs])
            env.update(zip(equation.outputs, result if isinstance(result, tuple) else (result,), strict=True))
        return [read(atom) for atom in self.outputs]

    def without_dead_code(self) -> Program:
        """The same Program without the equations whose results nobody uses, also within loops and branches."""
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
        env: dict[Variable, relax.Expr] = {}
        names = (name for name in _names() if name not in self.sizes)
        for variable in self.inputs:
            env[variable] = relax.Var(next(names), ops.tensor_type(variable.aval))
        parameters = list(env.values())
        results = set(self.outputs)

        def expr(atom: Atom) -> relax.Expr:
            return relax_constant(atom.value) if isinstance(atom, Literal) else env[atom]

        bindings = []

        def bind(value: relax.Expr, ty: relax.Type, kind: type = relax.DataflowVar) -> relax.Var:
            if value.ty.is_missing():
                relax.expr._update_type(value, ty)
            var = kind(next(names), ty)
            bindings.append(relax.VarBinding(var, value))
            return var

        for equation in self.equations:
            params = ops.in_relax(equation.params)
            call = equation.op.spelling.write([expr(atom) for atom in equation.inputs], params)
            kinds = [relax.Var if out in results else relax.DataflowVar for out in equation.outputs]
            types = [ops.tensor_type(out.aval) for out in equation.outputs]
            if len(types) == 1:
                env[equation.outputs[0]] = bind(call, types[0], kinds[0])
                continue
            packed = bind(call, relax.TupleType(types))
            for i, (out, ty, kind) in enumerate(zip(equation.outputs, types, kinds, strict=True)):
                env[out] = bind(relax.TupleGetItem(packed, i), ty, kind)
        body = relax.Tuple([expr(atom) for atom in self.outputs])
        blocks = [relax.DataflowBlock(bindings)] if bindings else []
        sequence = relax.SeqExpr(blocks, body)
        if sequence.ty.is_missing():
            relax.expr._update_type(sequence, body.ty)
        return relax.Function(parameters, sequence, body.ty).with_attr("global_symbol", "main")

    @property
    def module(self) -> tvm.IRModule:
        """An IRModule whose ``main`` is this Program."""
        return tvm.IRModule({"main": self.function})

    @classmethod
    def from_relax(cls, function: relax.Function, name: str = "main") -> Program:
        """Reads a Relax function as a Program; its arguments become positional.

        Raises:
            ProgramError: if it calls an operator that the registry has no record and ``tvmfun.interop.relax`` no
                translation of.
        """
        if not isinstance(function, relax.Function):
            hint = 'module["main"]'
            raise ProgramError(
                "Program.from_relax", "it reads a relax.Function", got=type(function).__name__, hint=hint
            )
        return _Reader().read(function, name)

    def verify(self) -> Program:
        """Checks that the Relax view is well formed and that every type is what its op says; returns ``self``.

        Raises:
            ProgramError: if it is not; the message quotes TVM's complaint.
        """
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
        try:
            well_formed = relax.analysis.well_formed(self.module)
        except tvm.error.InternalError as error:
            raise ProgramError("Program.verify", "the Relax function is not well formed", got=str(error)) from error
        if well_formed is False:
            raise ProgramError("Program.verify", "the Relax function is not well formed")
        return self

    # -- text ----------------------------------------------------------------------------------------------

    @cached_property
    def text(self) -> str:
        """The Program as text: the same for equal Programs, so that it can serve as a cache key."""
        names: dict[Variable, str] = {}
        fresh = (name for name in _names() if name not in self.sizes)

        def define(variable: Variable) -> str:
            names[variable] = next(fresh)
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


def argument_name(path: tree.Path) -> str:
    """The name of a leaf of ``(args, kwargs)`` in an error: ``argument 0['w']``, ``argument 'scale'``."""
    _, place, *rest = tree.keystr(path).removeprefix("[").split("]", 2)
    name = place.removeprefix("[")
    return f"argument {name}{''.join(rest)}"


_STATIC_FIELD = 'field(metadata={"static": True}) for a field that is not an array'


def abstract_leaves(
    leaves: Sequence[Any],
    structure: tree.Structure,
    where: str,
    name: Callable[[tree.Path], str] = argument_name,
    **hint: str,
) -> tuple[ShapeDtype, ...]:
    """The types of the leaves of a tree, by default of ``(args, kwargs)``, with another ``hint`` for what is none.

    Raises:
        DtypeError: if one is neither an array nor a number, with its ``name``.
    """
    try:
        return tuple(abstract(leaf, where) for leaf in leaves)
    except DtypeError:
        for leaf, path in zip(leaves, structure.accessors(), strict=True):
            is_field = len(path) > 0 and isinstance(path[-1], tree.Field)
            more = {"hint": _STATIC_FIELD} if is_field else hint
            abstract(leaf, where, name(path), **more)
        raise


_run: Callable[[Program, list], list]


def install_runner(run: Callable[[Program, list], list]) -> None:
    """Sets what calling a Program with leaves does; called once, by ``tvmfun.jit``."""
    global _run
    _run = run


_translate: Callable[[relax.Call, tuple], Program]


def install_translator(translate: Callable[[relax.Call, tuple], Program]) -> None:
    """Sets how a call of an operator without a record is read; called once, by ``tvmfun.interop.relax``.

    ``translate(call, arguments)`` gets a ``ShapeDtype`` for each array among the arguments, and the others as plain
    values; it returns a Program of the arrays.
    """
    global _translate
    _translate = translate


def _names() -> Iterator[str]:
    """a, b, ..., z, aa, ab, ..."""
    for number in count():
        name = ""
        number += 1
        while number:
            number, letter = divmod(number - 1, 26)
            name = chr(97 + letter) + name
        yield name


ops.install_reader(lambda function: Program.from_relax(function))


def relax_constant(value: np.generic | np.ndarray) -> relax.Expr:
    """A Relax constant with the bits of ``value``."""
    return relax.const(tvm.runtime.tensor(np.asarray(value)), dtypes.NAMES[value.dtype])


class _Reader:
    """Reads a Relax function binding by binding; a branch of it knows the reader of what is around it."""

    def __init__(self, around: _Reader | None = None) -> None:
        self.around = around
        self.outer: dict[Variable, Variable] = {}
        self.env: dict[relax.Var, Any] = {}
        self.equations: list[Equation] = []
        self.captured: dict[Variable, DeviceArray] = {}

    def read(self, function: relax.Function, name: str) -> Program:
        parameters = tuple(self.define(var) for var in function.params)
        outputs, out_tree = tree.flatten(self.body(function.body))
        return Program(
            (*self.captured, *parameters),
            tuple(self.equations),
            tuple(outputs),
            tree.structure((parameters, {})),
            out_tree,
            tuple(self.captured.values()),
            name,
        )

    def body(self, body: relax.Expr) -> Any:
        """The value of a function's or a branch's body."""
        if isinstance(body, relax.SeqExpr):
            for block in body.blocks:
                for binding in block.bindings:
                    self.bind(binding.var, binding.value)
            body = body.body
        return self.value(body)

    def branch(self, var: relax.Var, value: relax.If) -> None:
        """``If`` becomes a switch; what its branches use from outside becomes their arguments."""
        readers = [_Reader(self), _Reader(self)]
        bodies = (value.false_branch, value.true_branch)
        results = [tree.flatten(reader.body(body)) for reader, body in zip(readers, bodies, strict=True)]
        operands = tuple(dict.fromkeys(outer for reader in readers for outer in reader.outer))
        programs = []
        for reader, (outputs, out_tree) in zip(readers, results, strict=True):
            inputs = tuple(reader.outer.get(outer) or Variable(outer.aval) for outer in operands)
            in_tree = tree.structure((inputs, {}))
            programs.append(Program(inputs, tuple(reader.equations), tuple(outputs), in_tree, out_tree, name="branch"))
        index = Variable(ShapeDtype((), dtypes.int32))
        condition = self.value(value.cond)
        self.equations.append(Equation(ops.REGISTRY["astype"], (condition,), {"dtype": "int32"}, (index,)))
        found = tuple(Variable(aval) for aval in programs[0].out_avals)
        params = {"branches": tuple(programs)}
        self.equations.append(Equation(ops.REGISTRY["switch"], (index, *operands), params, found))
        self.env[var] = tree.unflatten(results[0][1], found)

    def define(self, var: relax.Var) -> Variable:
        self.env[var] = variable = Variable(ops.aval_of_type(var.ty))
        return variable

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.If):
            self.branch(var, value)
            return
        if not isinstance(value, relax.Call):
            self.env[var] = self.value(value)
            return
        if value.op == tvm.ir.Op.get("relax.shape_of"):
            self.env[var] = self.value(value.args[0]).aval.shape
            return
        op = ops.of_call(value)
        found = op.spelling.read(value) if op is not None else None
        if found is None:
            self.translated(var, value)
            return
        exprs, params = found
        inputs = tuple(self.value(expr) for expr in exprs)
        avals = op.shape(*(atom.aval for atom in inputs), **params)
        outputs = tuple(map(Variable, avals)) if isinstance(avals, tuple) else (Variable(avals),)
        self.env[var] = outputs if len(outputs) != 1 else outputs[0]
        self.equations.append(Equation(op, inputs, params, outputs))

    def translated(self, var: relax.Var, call: relax.Call) -> None:
        """The equations of a translation in place of the call."""
        operands: list[Variable] = []

        def abstracted(value: Any) -> Any:
            if isinstance(value, Variable):
                operands.append(value)
                return value.aval
            if isinstance(value, Literal):
                return value.value
            return tuple(map(abstracted, value)) if type(value) is tuple else value

        program = _translate(call, tuple(abstracted(self.value(arg)) for arg in call.args))
        atoms: dict[Atom, Atom] = {}
        for variable, array in zip(program.inputs, program.captured, strict=False):
            atoms[variable] = self.capture(array)
        atoms.update(zip(program.inputs[len(program.captured) :], operands, strict=True))
        for equation in program.equations:
            inputs = tuple(atoms.get(atom, atom) for atom in equation.inputs)
            self.equations.append(equation._replace(inputs=inputs, source=""))
        self.env[var] = tree.unflatten(program.out_tree, [atoms.get(atom, atom) for atom in program.outputs])

    def capture(self, array: DeviceArray) -> Variable:
        """The input for an array that the function holds itself."""
        if self.around is not None:
            return self.from_outside(self.around.capture(array))
        variable = Variable(array.aval)
        self.captured[variable] = array
        return variable

    def from_outside(self, value: Any) -> Any:
        """The values inside a branch for those around it."""

        def enter(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else self.outer.setdefault(atom, Variable(atom.aval))

        return tuple(map(self.from_outside, value)) if type(value) is tuple else enter(value)

    def value(self, expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if isinstance(expr, tvm.ir.GenericConst):
            data = expr.value.numpy()
            if not data.shape:
                return Literal(data[()])
            return self.capture(device_array(data))
        if isinstance(expr, relax.ShapeExpr):
            return ops.plain(expr.values)
        if tvm.ir.is_prim_expr(expr):
            return ops.plain(expr)
        if expr in self.env:
            return self.env[expr]
        if self.around is not None:
            self.env[expr] = self.from_outside(self.around.value(expr))
            return self.env[expr]
        raise ProgramError("Program.from_relax", "the expression is not a binding, tuple or constant", got=str(expr))
