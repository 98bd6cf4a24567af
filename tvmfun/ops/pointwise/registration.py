"""Registration of pointwise ops, with the rules that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import FlopsRule, Op, Precision, SimplifyRule, register
from tvmfun.core.relax import Spelling, relax_spelling
from tvmfun.errors import DtypeError
from tvmfun.ops.formula import compute_in_float32
from tvmfun.ops.pointwise.broadcasting import broadcast_shapes, sum_to, with_equal_ranks
from tvmfun.ops.simplify import Exact, pointwise_rule

__all__ = ["FLOATS", "INTEGERS", "NUMBERS", "constant", "float_function", "pointwise", "require_float"]

NUMBERS = dtypes.INTEGERS + dtypes.FLOATS
FLOATS = dtypes.FLOATS
INTEGERS = dtypes.INTEGERS


def constant(value: float, like: Array) -> np.generic:
    """A scalar of the dtype of ``like``."""
    return like.dtype.type(value)


def pointwise(
    name: str,
    formula: Callable[..., Any],
    vjp: tuple[Callable[..., Array] | None, ...] | None = None,
    *,
    domain: Sequence[np.dtype] = NUMBERS,
    result: np.dtype | None = None,
    shape: Callable[..., ShapeDtype] | None = None,
    spelling: Callable[..., relax.Expr] | Spelling | None = None,
    relax_name: str = "",
    inexpensive: bool | tuple[np.dtype, ...] = True,
    simplify: SimplifyRule | None = None,
    exact: Exact | None = None,
    precision: Precision | None = None,
    flops: FlopsRule | None = None,
) -> Op:
    """Registers a pointwise op.

    Args:
        name: its name.
        formula: ``(*scalars, **params) -> scalar``, one element as a TIR expression.
        vjp: one derivative rule per argument, ``(g, out, *args, **params) -> cotangent``, written as if shapes were
            equal; None for an argument without influence on the derivative, or for an op without a derivative.
        domain: the dtypes of the arguments, which all have the same.
        result: the dtype of the result, if it is not that of the arguments.
        shape: the shape rule, instead of ``domain`` and ``result``.
        spelling: the function of ``relax.op`` that makes the call, or a full spelling.
        relax_name: the name of the Relax operator after ``relax.``, where it is not ``name``.
        inexpensive: whether fusion may compute an element twice, or the dtypes for which it may.
        simplify: the simplification rule of this op alone; its result may lack repetitions.
        exact: the op for numbers, computed while tracing; None where the compiled op may differ in a bit.
        precision: as for :class:`tvmfun.core.op.Op`.
        flops: as for :class:`tvmfun.core.op.Op`.
    """

    def batch(batched: tuple[bool, ...], *args: Array, **params: Any) -> Array:
        return op(*with_equal_ranks(batched, args), **params)

    if spelling is not None and not isinstance(spelling, Spelling):
        spelling = relax_spelling(f"relax.{relax_name or name}", spelling)
    op = register(
        Op(
            name,
            "pointwise",
            shape or _shape_rule(name, domain, result),
            formula,
            vjp and tuple(rule and _unbroadcasting(i, rule) for i, rule in enumerate(vjp)),
            spelling,  # type: ignore[arg-type]
            inexpensive,
            batch,
            pointwise_rule(lambda: op, simplify, exact),
            precision=precision,  # type: ignore[arg-type]
            flops=flops,  # type: ignore[arg-type]
        )
    )
    return op


def float_function(
    name: str,
    formula: Callable[..., Any],
    *vjp: Callable[..., Array] | None,
    spelling: Callable[..., relax.Expr] | None = None,
    relax_name: str = "",
    inexpensive: bool = False,
    simplify: SimplifyRule | None = None,
    precision: Precision | None = None,
) -> Op:
    """Registers a pointwise op on floats, whose formula is computed in float32 for half precision.

    The arguments are as for :func:`pointwise`, with the derivative rules as positional ones. Fusion computes an element
    only once unless the function is ``inexpensive``.
    """
    return pointwise(
        name,
        compute_in_float32(formula),
        vjp,
        domain=FLOATS,
        spelling=spelling,
        relax_name=relax_name,
        inexpensive=inexpensive,
        simplify=simplify,
        precision=precision,
    )


def require_float(name: str, x: ShapeDtype) -> None:
    """Raises unless the argument is a float."""
    if x.dtype not in FLOATS:
        raise DtypeError(name, "the argument must be a float", got=repr(x), hint="x.astype('float32')")


def _shape_rule(name: str, domain: Sequence[np.dtype], result: np.dtype | None) -> Callable[..., ShapeDtype]:
    def shape(*avals: ShapeDtype) -> ShapeDtype:
        dtype = avals[0].dtype
        if any(aval.dtype != dtype for aval in avals):
            raise DtypeError(
                name, "the arguments must have one dtype", got=", ".join(map(str, avals)), hint="x.astype(y.dtype)"
            )
        if dtype not in domain:
            allowed = ", ".join(dtypes.NAMES[d] for d in domain)
            raise DtypeError(name, "the dtype is not supported", got=dtypes.NAMES[dtype], hint=f"one of {allowed}")
        common = avals[0].shape if len(avals) == 1 else broadcast_shapes(name, [aval.shape for aval in avals])
        return ShapeDtype(common, result or dtype, weak=result is None and all(aval.weak for aval in avals))

    return shape


def _unbroadcasting(argnum: int, rule: Callable[..., Array]) -> Callable[..., Array]:
    def vjp(g: Array, out: Array, *args: Array, **params: Any) -> Array:
        return sum_to(rule(g, out, *args, **params), args[argnum].shape)

    return vjp
