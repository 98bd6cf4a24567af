"""Reading Relax functions as Programs."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvmfun import dtypes, tree
from tvmfun.core.array import Array, ShapeDtype, device_array
from tvmfun.core.expressions import plain
from tvmfun.core.op import REGISTRY
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.core.relax import aval_of_type, op_of, spelling_of
from tvmfun.errors import ProgramError
from tvmfun.interop.relax.table import translate


def read(function: relax.Function, name: str = "main") -> Program:
    """The Program of a Relax function; its arguments become positional.

    Raises:
        ProgramError: if it calls an operator that has neither a record in the registry nor a translation.
    """
    if not isinstance(function, relax.Function):
        hint = 'module["main"]'
        raise ProgramError("Program.from_relax", "it reads a relax.Function", got=type(function).__name__, hint=hint)
    return _Reader().read(function, name)


class _Reader:
    """Reads a Relax function binding by binding; the reader of a branch has that of the enclosing function."""

    def __init__(self, enclosing: _Reader | None = None) -> None:
        self.enclosing = enclosing
        self.outer: dict[Variable, Variable] = {}
        self.env: dict[relax.Expr, Any] = {}
        self.equations: list[Equation] = []
        self.captured: dict[Variable, Array] = {}

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
        """``If`` becomes a switch; values of the enclosing function that a branch uses become its arguments."""
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
        self.equations.append(Equation(REGISTRY["astype"], (condition,), {"dtype": "int32"}, (index,)))
        outputs = tuple(Variable(aval) for aval in programs[0].out_avals)
        params = {"branches": tuple(programs)}
        self.equations.append(Equation(REGISTRY["switch"], (index, *operands), params, outputs))
        self.env[var] = tree.unflatten(results[0][1], outputs)

    def define(self, var: relax.Var) -> Variable:
        self.env[var] = variable = Variable(aval_of_type(var.ty))
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
        op = op_of(value)
        described = spelling_of(op).read(value) if op is not None else None
        if op is None or described is None:
            self.translated(var, value)
            return
        exprs, params = described
        inputs = tuple(self.value(expr) for expr in exprs)
        avals = op.shape(*(atom.aval for atom in inputs), **params)
        outputs = tuple(map(Variable, avals)) if isinstance(avals, tuple) else (Variable(avals),)
        self.env[var] = outputs if len(outputs) != 1 else outputs[0]
        self.equations.append(Equation(op, inputs, params, outputs))

    def translated(self, var: relax.Var, call: relax.Call) -> None:
        """Replaces the call by the equations of its translation."""
        operands: list[Variable] = []

        def abstracted(value: Any) -> Any:
            if isinstance(value, Variable):
                operands.append(value)
                return value.aval
            if isinstance(value, Literal):
                return value.value
            return tuple(map(abstracted, value)) if type(value) is tuple else value

        program = translate(call, tuple(abstracted(self.value(arg)) for arg in call.args))
        atoms: dict[Atom, Atom] = {}
        for variable, array in zip(program.inputs, program.captured, strict=False):
            atoms[variable] = self.capture(array)
        atoms.update(zip(program.inputs[len(program.captured) :], operands, strict=True))
        for equation in program.equations:
            inputs = tuple(atoms.get(atom, atom) for atom in equation.inputs)
            self.equations.append(equation._replace(inputs=inputs, source=""))
        self.env[var] = tree.unflatten(program.out_tree, [atoms.get(atom, atom) for atom in program.outputs])

    def capture(self, array: Array) -> Variable:
        """The input for a constant array of the function."""
        if self.enclosing is not None:
            return self.from_outside(self.enclosing.capture(array))
        variable = Variable(array.aval)
        self.captured[variable] = array
        return variable

    def from_outside(self, value: Any) -> Any:
        """The variables of a branch for values of the enclosing function."""

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
            return plain(expr.values)
        if tvm.ir.is_prim_expr(expr):
            return plain(expr)
        if expr in self.env:
            return self.env[expr]
        if self.enclosing is not None:
            self.env[expr] = self.from_outside(self.enclosing.value(expr))
            return self.env[expr]
        raise ProgramError("Program.from_relax", "the expression is not a binding, tuple or constant", got=str(expr))
