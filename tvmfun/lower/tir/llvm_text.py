"""Expressions of TIR as instructions in LLVM's language.

They become machine code as they are written: neither TVM's simplifier, which takes floats for real numbers, nor LLVM's
optimizer sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tvm import ir, tirx

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.walk import called

#: The prefix of the names of functions that are written in LLVM's language; the names hold all their parameters.
PREFIX = "tvmfun.micro."

_TYPES = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64", "bool": "i1"}
_TYPES |= {f"u{name}": kind for name, kind in _TYPES.items() if name.startswith("int")}
# Instructions for floats and for integers, by the names of TVM's node classes.
_BINARY = {
    "Add": ("fadd", "add"),
    "Sub": ("fsub", "sub"),
    "Mul": ("fmul", "mul"),
    "Div": ("fdiv", ""),
    "LT": ("fcmp olt", "icmp slt"),
    "LE": ("fcmp ole", "icmp sle"),
    "GT": ("fcmp ogt", "icmp sgt"),
    "GE": ("fcmp oge", "icmp sge"),
    "EQ": ("fcmp oeq", "icmp eq"),
    "NE": ("fcmp une", "icmp ne"),
    "And": ("", "and"),
    "Or": ("", "or"),
    "BitwiseAnd": ("", "and"),
    "BitwiseOr": ("", "or"),
    "LShift": ("", "shl"),
    "RShift": ("", "ashr"),
}
# Instructions for unsigned integers that differ from those for signed ones.
_UNSIGNED = {"LT": "icmp ult", "LE": "icmp ule", "GT": "icmp ugt", "GE": "icmp uge", "RShift": "lshr"}
_EXTREMA = {"Max": "ogt", "Min": "olt"}
_INTRINSICS = ("floor", "sqrt", "trunc")


def type_of(dtype: str) -> str:
    """LLVM's name of a type.

    >>> type_of("float32x8"), type_of("bool")
    ('<8 x float>', 'i1')
    """
    scalar, _, lanes = dtype.partition("x")
    return f"<{lanes} x {_TYPES[scalar]}>" if lanes else _TYPES[scalar]


def declaration(name: str, of: str, arguments: int) -> str:
    """The declaration of a function whose arguments and result are of one type."""
    return f"declare {of} @{name}({', '.join([of] * arguments)})\n"


class Instructions:
    """Collects the instructions of one block."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        #: The declarations of the functions that are called.
        self.declarations: set[str] = set()
        self._names: dict[ir.Var, str] = {}

    def variable(self, name: str, dtype: str) -> ir.Var:
        """A variable that stands for a value of LLVM, as ``%name``."""
        var = ir.Var(name, ir.PrimType(dtype))
        self._names[var] = f"%{name}"
        return var

    def name(self, value: Expr) -> ir.Var:
        """Computes an expression here; returns a variable that stands for it."""
        if isinstance(value, ir.Var):
            return value
        operand = self.operand(value)
        var = ir.Var(operand.removeprefix("%"), value.ty)
        self._names[var] = operand
        return var

    def operand(self, value: Expr) -> str:
        """Computes an expression; returns a constant or the name of the result."""
        kind = type(value).__name__
        if isinstance(value, ir.Var):
            return self._names[value]
        if isinstance(value, (tirx.FloatImm, tirx.IntImm)):
            return _constant(value)
        if isinstance(value, tirx.Broadcast):
            scalar = str(value.value.ty)
            return f"splat ({type_of(scalar)} {_constant(value.value)})"
        if isinstance(value, tirx.Cast):
            return self._cast(value)
        if isinstance(value, tirx.Select):
            parts = value.condition, value.true_value, value.false_value
            return self._new("select " + ", ".join(f"{type_of(str(x.ty))} {self.operand(x)}" for x in parts))
        if isinstance(value, ir.Call):
            return self._call(value)
        a, b = self.operand(value.a), self.operand(value.b)
        own = str(value.a.ty)
        if kind in _EXTREMA:
            first = self._new(f"fcmp {_EXTREMA[kind]} {type_of(own)} {a}, {b}")
            truth = type_of(own.replace(own.partition("x")[0], "bool"))
            return self._new(f"select {truth} {first}, {type_of(own)} {a}, {type_of(own)} {b}")
        of_floats, of_integers = _BINARY[kind]
        if own.startswith("uint"):
            of_integers = _UNSIGNED.get(kind, of_integers)
        return self._new(f"{of_floats if own.startswith('float') else of_integers} {type_of(own)} {a}, {b}")

    def _cast(self, cast: tirx.Cast) -> str:
        source, target = str(cast.value.ty), str(cast.ty)
        of, to = source.partition("x")[0], target.partition("x")[0]
        names = {
            ("float32", "float64"): "fpext",
            ("float64", "float32"): "fptrunc",
            ("int32", "int64"): "sext",
            ("int64", "int32"): "trunc",
        }
        name = names.get((of, to)) or ("fptosi" if of.startswith("float") else "sitofp")
        return self._new(f"{name} {type_of(source)} {self.operand(cast.value)} to {type_of(target)}")

    def _call(self, call: ir.Call) -> str:
        name = (called(call) or "").rpartition(".")[2]
        result = type_of(str(call.ty))
        if name == "reinterpret":
            source = call.args[0]
            return self._new(f"bitcast {type_of(str(source.ty))} {self.operand(source)} to {result}")
        if name == "call_llvm_pure_intrin":
            return self._intrinsic("llvm.fma", call.ty, list(call.args)[1:])
        if name in _INTRINSICS:
            return self._intrinsic(f"llvm.{name}", call.ty, list(call.args))
        raise NotImplementedError(f"the call {call}")

    def _intrinsic(self, name: str, kind: object, arguments: Sequence[Expr]) -> str:
        scalar, _, lanes = str(kind).partition("x")
        full = f"{name}.{f'v{lanes}' if lanes else ''}f{scalar.removeprefix('float')}"
        own = type_of(str(kind))
        self.declarations.add(declaration(full, own, len(arguments)))
        return self._new(f"call {own} @{full}({', '.join(f'{own} {self.operand(x)}' for x in arguments)})")

    def _new(self, instruction: str) -> str:
        name = f"%t{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name


def _constant(value: tirx.FloatImm | tirx.IntImm) -> str:
    """A number in LLVM's language: floats are written as the bits of a double, also those in single precision."""
    if isinstance(value, tirx.IntImm):
        return str(int(value.value))
    number = float(value.value)
    if str(value.ty) == "float32":
        (number,) = struct.unpack("f", struct.pack("f", number))
    return f"0x{struct.pack('>d', number).hex().upper()}"
