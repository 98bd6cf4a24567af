"""The table of translations of Relax operators, and the operators left out, with reasons."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tvm import relax

import tvmfun.numpy as tnp
from tvmfun.core.array import ShapeDtype
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.expressions import plain
from tvmfun.core.op import REGISTRY, Op
from tvmfun.core.program import Program
from tvmfun.core.relax import aval_of_type
from tvmfun.errors import ProgramError


@dataclass(frozen=True)
class Translation:
    """The translation of calls of one Relax operator.

    Args:
        name: the operator, e.g. ``"relax.nn.softmax"``.
        function: a composition of the call's arguments. Its keyword-only parameters are the operator's attributes;
            one named ``result`` is the type that Relax has inferred.
        derivative: why the derivative is zero or does not exist; empty where there is one.
        limits: which calls are not read.
    """

    name: str
    function: Callable[..., Any]
    derivative: str = ""
    limits: str = ""


#: Every translation by the operator's name.
TRANSLATIONS: dict[str, Translation] = {}


def reads(name: str, derivative: str = "", limits: str = "") -> Callable[[Callable], Callable]:
    """A decorator that adds a function to the table as the translation of a Relax operator."""

    def add(function: Callable) -> Callable:
        TRANSLATIONS[name] = Translation(name, function, derivative, limits)
        return function

    return add


_WORKERS = "moves data between the workers of TVM's disco runtime, which a Program does not know"
_HEADER = "answers with a number about the tensor in memory while the module runs, not with an array"

#: The operators with a legalization that are not read, and the reasons.
LEFT_OUT: dict[str, str] = {
    "relax.ccl.allgather": _WORKERS,
    "relax.ccl.allreduce": _WORKERS,
    "relax.ccl.broadcast_from_worker0": _WORKERS,
    "relax.ccl.scatter_from_worker0": _WORKERS,
    "relax.dist.redistribute_replica_to_shard": _WORKERS,
    "relax.dynamic_strided_slice": "the sizes of the result depend on data",
    "relax.inspect.tensor_byte_offset": _HEADER,
    "relax.inspect.tensor_dtype_bits": _HEADER,
    "relax.inspect.tensor_dtype_code": _HEADER,
    "relax.inspect.tensor_dtype_lanes": _HEADER,
    "relax.inspect.tensor_elem_offset": _HEADER,
    "relax.inspect.tensor_ndim": _HEADER,
    "relax.inspect.tensor_shape_i": _HEADER,
    "relax.inspect.tensor_stride_i": _HEADER,
    "relax.nn.attention_var_len": "TVM's own legalization raises an error: there is no meaning to compare with",
    "relax.vision.all_class_non_max_suppression": "the number of rows of the result depends on data",
}


def translate(call: relax.Call, arguments: tuple) -> Program:
    """The Program that a call of a Relax operator without a record stands for.

    Args:
        call: the call.
        arguments: its arguments, with a ``ShapeDtype`` for each array and plain values for the others.

    Returns:
        A Program of the arrays.

    Raises:
        ProgramError: if the operator is not in the table, or an attribute has a value that the translation refuses.
    """
    name = getattr(call.op, "name", str(call.op))
    if name not in TRANSLATIONS:
        reason = LEFT_OUT.get(name, "neither a record nor a translation describes it")
        raise ProgramError("Program.from_relax", f"this operator is not read: {reason}", got=name)
    function = TRANSLATIONS[name].function
    attributes = {key: _attribute(call, key) for key in _attribute_names(function)}
    leaves: list[ShapeDtype] = []
    _collect(arguments, leaves)

    def run(*values: Any) -> Any:
        return _typed(function(*_with_leaves(arguments, iter(values)), **attributes), _result(call.ty), name)

    return trace_leaves(run, leaves, name)


def refuse(name: str, what: str, got: Any) -> ProgramError:
    """The error for an attribute's value that is not read."""
    return ProgramError("Program.from_relax", f"{name}: {what}", got=repr(got))


def _attribute_names(function: Callable) -> list[str]:
    kinds = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in kinds if parameter.kind is parameter.KEYWORD_ONLY]


def _attribute(call: relax.Call, key: str) -> Any:
    if key == "result":
        return _result(call.ty)
    value = plain(getattr(call.attrs, key))
    return str(value) if isinstance(value, str) or type(value).__name__ == "dtype" else value


def _result(ty: Any) -> Any:
    if isinstance(ty, relax.TupleType):
        return tuple(map(_result, ty.fields))
    return aval_of_type(ty)


def _collect(value: Any, leaves: list[ShapeDtype]) -> None:
    if isinstance(value, ShapeDtype):
        leaves.append(value)
    elif type(value) is tuple:
        for part in value:
            _collect(part, leaves)


def _with_leaves(value: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(value, ShapeDtype):
        return next(leaves)
    return tuple(_with_leaves(part, leaves) for part in value) if type(value) is tuple else value


def _typed(value: Any, expected: Any, name: str) -> Any:
    """The result with the dtypes that Relax has inferred; the shapes must be the same already."""
    if isinstance(expected, tuple):
        return tuple(_typed(part, own, name) for part, own in zip(value, expected, strict=True))
    value = tnp.asarray(value)
    if value.shape != expected.shape:
        raise refuse(name, f"the result should have the shape {expected.shape}", value.shape)
    return value if value.dtype == expected.dtype and not value.weak_type else tnp.astype(value, expected.dtype)


def legalizable() -> list[str]:
    """The Relax operators that the installed TVM can legalize, sorted."""
    import tvm
    from tvm.relax.transform import legalize_ops as legalize_ops

    names = tvm.ir.Op.list_op_names()
    return sorted(n for n in names if tvm.ir.Op.get(n).get_attr("FLegalize") is not None)


def by_record() -> dict[str, Op]:
    """The records that describe Relax's own operators, by the operator's name."""
    return {op.spelling.name: op for op in REGISTRY.values() if op.spelling is not None}


def _derivative_of(op: Op) -> str:
    if op.vjp is None:
        return "none: the result is not a float"
    rules = op.vjp if isinstance(op.vjp, tuple) else (op.vjp,)
    return "yes" if any(rule is not None for rule in rules) else "zero: constant almost everywhere"


def markdown() -> str:
    """The table of operators as a page of the documentation, ``docs/ops.md``."""
    names, records = legalizable(), by_record()
    read = [n for n in names if n in records or n in TRANSLATIONS]
    lines = [
        "# Relax operators",
        "",
        "<!-- Written by `python -m tvmfun.interop.relax docs/ops.md`. -->",
        "",
        f"TVM legalizes {len(names)} Relax operators. `Program.from_relax` reads {len(read)} of them:",
        f"{sum(n in records for n in names)} are ops with a record here, and"
        f" {sum(n in TRANSLATIONS and n not in records for n in names)} are translated into compositions of ops,",
        "so that derivatives and batching are those of the records. The results are compared with TVM's own",
        "legalization in the tests.",
        "",
        "| Operator | Read as | Derivative |",
        "| --- | --- | --- |",
    ]
    for name in read:
        if name in records:
            lines.append(f"| `{name}` | the op `{records[name].name}` | {_derivative_of(records[name])} |")
        else:
            entry = TRANSLATIONS[name]
            limits = f", {entry.limits}" if entry.limits else ""
            lines.append(f"| `{name}` | a composition{limits} | {entry.derivative or 'yes'} |")
    more = sorted(set(TRANSLATIONS) - set(names))
    lines += ["", "TVM compiles these by other ways than a legalization. They are read, too:", ""]
    lines += [", ".join(f"`{name}`" for name in more) + "."]
    lines += ["", "## Left out", "", "| Operator | Why |", "| --- | --- |"]
    lines += [f"| `{name}` | {LEFT_OUT[name]} |" for name in names if name in LEFT_OUT]
    return "\n".join(lines) + "\n"
