"""The op record, which holds everything that tvmfun knows about one operation, and the registry of records.

An op is a function from arrays and static parameters to arrays. Its record has the rule for the result's shape, the
computation for TVM, the spelling in Relax, and the rules for derivatives and batching, for transforms and lowering.

A few passes are about one op: the rewrites and schedules of loops, branches, scatters, products and convolutions, and
the fusion of iotas, conversions and padding. They import its record and compare with that. The simplification rules of
``ops`` compare names, and ``core``, which cannot import ``ops``, finds the ops that its walks apply in the registry.

Static parameters are plain and hashable: numbers, strings (dtypes by name), None and tuples of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.interpreter import STACK
from tvmfun.errors import ProgramError

if TYPE_CHECKING:
    from tvmfun.core.relax import Spelling

#: A derivative rule with respect to one argument: ``(g, out, *args, **params) -> cotangent``. For an op with
#: several results ``g`` and ``out`` are tuples.
VjpRule = Callable[..., Array]

#: A batching rule: ``(batched, *args, **params) -> result``. Arguments whose flag in ``batched`` is set have a leading
#: batch axis, and so do all results.
BatchRule = Callable[..., Any]

#: The batching rule of a collective over the axis it names: ``(axis_name, size, batched, *args, **params) -> result``.
AxisRule = Callable[..., Any]

#: A simplification rule: ``(*args, **params) -> value | None``: an equal value that is cheaper to compute, or None. It
#: must be exact in IEEE arithmetic, including NaN, infinities and the sign of zero.
SimplifyRule = Callable[..., Any]

#: Reverse mode through an op that contains Programs: ``(active, *args, **params) -> (results, pull)`` with
#: ``pull(cotangents) -> [cotangent or None per argument]``. It may compute more in the forward pass, for later.
PullbackRule = Callable[..., tuple[tuple, Callable[[Sequence[Any]], list]]]

#: Forward mode through an op that contains Programs: ``(args, tangents, **params) -> (results, tangents)``; a
#: tangent that is zero may be None.
PushforwardRule = Callable[..., tuple[tuple, Sequence[Any]]]

#: Dead code elimination in an op: ``(used, **params) -> (inputs, outputs, params)``: the indices of the inputs and
#: outputs that remain if only some results are used.
PruneRule = Callable[..., tuple[Sequence[int], Sequence[int], dict[str, Any]]]


#: The number of floating-point operations of an op with a float result: ``(out, *avals, **params) -> number``.
FlopsRule = Callable[..., Any]

#: The Programs that an op runs and how many times, per alternative: ``(**params) -> [[(program, times), ...], ...]``.
RunsRule = Callable[..., Sequence[Sequence[tuple[Any, Any]]]]


#: The platforms for which a call may have separate Programs.
Platform = Literal["cpu", "cuda"]

#: - pointwise: one element from the elements at the same index, with sizes of 1 broadcast as in NumPy;
#: - injective: each element is a copy of one element of the arguments (reshape, slice, gather);
#: - reduction: elements are combined along axes; contraction: products are summed along axes;
#: - opaque: anything else (scatter, sort), written as a whole loop nest;
#: - barrier: the identity, across which nothing is merged, fused or kept as a residual;
#: - control: a loop or branch around Programs;
#: - call: a Program with its own rules for transforms, which lowering inlines.
Kind = Literal["pointwise", "injective", "reduction", "contraction", "opaque", "barrier", "control", "call"]


#: - low: faster in float16 and bfloat16 and nearly as accurate, since it sums in float32 and rounds once: convolutions;
#: - summing: like low, but can return the float32 sum, since converting its arguments first costs nothing: products;
#: - high: needs float32: sums, and functions that are steep or exceed the range of float16;
#: - either: computes in the dtype of the arguments;
#: - kept: moves elements, and so does its derivative, so that both are exact in any dtype: reshapes and slices.
Precision = Literal["low", "summing", "high", "either", "kept"]


@dataclass(frozen=True, eq=False)
class Op:
    """The record of one op.

    Args:
        name: its name, unique in the registry.
        kind: how the result depends on the arguments, for fusion; see :data:`Kind`.
        shape: ``(*avals, **params) -> ShapeDtype`` (or a tuple of them); raises a tvmfun error for bad input.
        compute: the meaning. A pointwise op gives the formula of one element, ``(*scalars, **params) ->
            scalar``; an opaque op the whole function, ``(*avals, **params) -> PrimFunc``; a control op the
            statement around its Programs, ``(builder, inputs, outputs, **params) -> Stmt``; a call the Program to
            inline on a platform, ``(platform, **params) -> Program``; any other op a tensor expression,
            ``(*tensors, **params) -> tensor``.
        vjp: one derivative rule per argument (``None``: the derivative is 0), or one rule with a leading
            ``argnum`` for ops with any number of arguments; ``None`` if there is no derivative.
        spelling: how Relax writes it; None for an operator ``tvmfun.<name>`` with the params as attributes.
        inexpensive: whether fusion may recompute elements to save a trip through memory; or the result dtypes for
            which it may.
        batch: the batching rule; ``None`` if it has none.
        simplify: the simplification rule, tried when the op is traced.
        pullback: reverse mode for ops that contain Programs, instead of ``vjp``.
        pushforward: forward mode for ops that contain Programs; other ops get theirs by transposing ``vjp``.
        over_axis: for collectives, the batching rule over an axis that the parameter ``axis_names`` names.
        precision: its dtype under mixed precision; see :data:`Precision`. By default low for contractions, high for
            reductions, opaque ops and expensive functions, and either for the others.
        factors: for an op that sums products, the number of leading arguments that are multiplied, which mixed
            precision rounds; None for all.
        sums: for such an op, the number of leading results that mixed precision rounds; None for all.
        flops: the operations it takes. By default one per element of the result for pointwise ops, one per element of
            the argument for reductions, and none for other kinds.
        runs: for control ops and calls, the Programs that they run.
        prune: for ops that contain Programs, dead code elimination if some results are unused.
        overwrites: the argument whose buffer the result may share, although elements are not read in order.
        view: whether the result is the argument's memory in another shape, so that lowering needs no kernel for it.
        window: whether each element is computed from a window of an argument, so that fusion never computes one twice.
    """

    name: str
    kind: Kind
    shape: Callable[..., ShapeDtype | tuple[ShapeDtype, ...]]
    compute: Callable[..., Any]
    vjp: tuple[VjpRule | None, ...] | VjpRule | None = None
    spelling: Spelling | None = None
    inexpensive: bool | tuple[np.dtype, ...] = True
    batch: BatchRule | None = None
    simplify: SimplifyRule | None = None
    pullback: PullbackRule | None = None
    pushforward: PushforwardRule | None = None
    over_axis: AxisRule | None = None
    precision: Precision = None  # type: ignore[assignment]  # filled in below
    factors: int | None = None
    sums: int | None = None
    flops: FlopsRule = None  # type: ignore[assignment]  # filled in below
    runs: RunsRule | None = None
    prune: PruneRule | None = None
    overwrites: int | None = None
    view: bool = False
    window: bool = False

    def __post_init__(self) -> None:
        if self.precision is None:
            object.__setattr__(self, "precision", self._usual_precision())
        if self.flops is None:
            object.__setattr__(self, "flops", _USUAL_FLOPS.get(self.kind, no_flops))

    def is_inexpensive(self, dtype: np.dtype) -> bool:
        """Whether fusion may recompute elements of a result of this dtype."""
        return self.inexpensive if isinstance(self.inexpensive, bool) else dtype in self.inexpensive

    def _usual_precision(self) -> Precision:
        if self.kind == "contraction":
            return "low"
        steep = self.kind in ("reduction", "opaque") or (self.kind == "pointwise" and not self.inexpensive)
        return "high" if steep else "either"

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Applies the op: adds it to the innermost trace, or runs it when nothing is traced."""
        return STACK.interpreters[-1].apply(self, args, params)

    def vjp_rule(self, argnum: int) -> VjpRule | None:
        """The derivative rule with respect to one argument, or None."""
        if self.vjp is None or isinstance(self.vjp, tuple):
            return self.vjp[argnum] if self.vjp else None
        rule = self.vjp
        return lambda g, out, *args, **params: rule(argnum, g, out, *args, **params)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        if REGISTRY.get(self.name) is not self:
            raise ProgramError("pickle", "an op must be registered", got=self.name, hint="register(op)")
        return _registered, (self.name,)


def _registered(name: str) -> Op:
    """The op of a pickle."""
    if name not in REGISTRY:
        hint = "importing the module that registers it, or the version of tvmfun that wrote the pickle"
        raise ProgramError("pickle", "there is no op of this name", got=name, hint=hint)
    return REGISTRY[name]


def no_flops(out: ShapeDtype, *args: ShapeDtype, **params: Any) -> int:
    """The flops of an op that only moves or reinterprets elements: 0."""
    return 0


_USUAL_FLOPS: dict[Kind, FlopsRule] = {
    "pointwise": lambda out, *args, **params: out.size,
    "reduction": lambda out, x, *others, **params: x.size,
}

#: Every op by name.
REGISTRY: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Adds a record to the registry and returns it."""
    if op.name in REGISTRY:
        raise ProgramError("register", "an op of this name exists already", got=op.name)
    REGISTRY[op.name] = op
    return op
