"""``amp``: mixed precision, as a transform of Programs that follows the classes of the op records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.inline import subprograms
from tvmfun.core.leaf import abstract
from tvmfun.core.op import Op
from tvmfun.core.program import Equation, Program
from tvmfun.errors import ArgumentError
from tvmfun.ops import calls
from tvmfun.ops.dot import TENSORFLOAT32
from tvmfun.ops.pointwise import add, astype
from tvmfun.transforms.custom import custom_vjp
from tvmfun.transforms.staging import over_arrays, staged
from tvmfun.typing import PyTree

_WIDE = dtypes.float32


@dataclass(frozen=True)
class PrecisionPolicy:
    """The dtypes of mixed precision; see :func:`amp`.

    Args:
        dtype: ``"bfloat16"``, which has the range of float32 but 8 bits of precision, or ``"float16"``, which has 11
            but overflows beyond 65504 and needs a loss scale, such as :class:`tvmfun.optim.DynamicLossScale`. Or
            ``"tensorfloat32"``: arrays stay in float32, and the factors of products may be rounded to 11 bits, by
            tensor cores of GPUs and by CPUs with AMX (see :class:`tvmfun.lax.Precision`). On other CPUs, and in
            convolutions on any CPU, that changes nothing.
        only_products: whether only products and convolutions read and return half precision, and everything else
            computes in float32. Otherwise values that are computed from their results stay in half precision up to the
            next op that needs float32: sums and normalizations, exponentials, logarithms and the like.

    Raises:
        ArgumentError: if the dtype is another one.

    >>> PrecisionPolicy("float16", only_products=False).dtype
    dtype('float16')
    """

    dtype: Any = "bfloat16"
    only_products: bool = True

    def __post_init__(self) -> None:
        if self.dtype == TENSORFLOAT32:
            return
        dtype = dtypes.canonical(self.dtype)
        if dtype not in (dtypes.float16, dtypes.bfloat16):
            hint = '"bfloat16", "float16" or "tensorfloat32"'
            raise ArgumentError("amp", "the dtype must be half precision", got=str(dtype), hint=hint)
        object.__setattr__(self, "dtype", dtype)


def amp(fun: Callable | None = None, policy: PrecisionPolicy | str = "bfloat16") -> Any:
    """Returns ``fun`` in mixed precision: products of float32 arrays are computed from half precision.

    Arguments and results keep their dtypes, so that parameters stay in float32 as the master weights that an optimizer
    updates. Products read numbers rounded to half precision, sum in float32 and round the sums, as in PyTorch's
    autocast, and so do the products of their derivatives. With ``grad(amp(fun))`` the gradients of weights are not
    rounded; with ``amp(grad(fun))`` they are products like others. Arrays of other dtypes than float32 are unchanged.
    The bodies of loops, branches, checkpoints and functions with custom derivatives are transformed, too. Leaves that
    are not arrays are passed to ``fun`` unchanged.

    Args:
        fun: a function of trees of arrays. Without it, ``amp`` returns a decorator.
        policy: a :class:`PrecisionPolicy`, or a dtype for a policy in which only products are in half precision. Values
            that must not be rounded, such as the last product of a model, can be computed outside of ``fun``.

    Raises:
        ArgumentError: if the policy is unknown.

    Reference: Micikevicius et al., "Mixed Precision Training" (2018).

    >>> import tvmfun.numpy as tnp
    >>> x = tnp.asarray([[1.0, 1 / 512]])
    >>> amp(lambda x: x @ x.T)(1 + x)  # 1 + 1 / 512 is 1 in bfloat16
    Array([[5.]], dtype=float32)
    """
    if fun is None:
        return lambda fun: amp(fun, policy)
    if not isinstance(policy, PrecisionPolicy | str):
        hint = 'a PrecisionPolicy, "bfloat16", "float16" or "tensorfloat32"'
        raise ArgumentError("amp", "the policy is unknown", got=repr(policy), hint=hint)
    chosen = policy if isinstance(policy, PrecisionPolicy) else PrecisionPolicy(policy)
    if not callable(fun):
        hint = 'amp(f, "bfloat16")'
        raise ArgumentError("amp", "the first argument must be a function", got=repr(fun), hint=hint)
    name = getattr(fun, "__name__", type(fun).__name__)

    @wraps(fun)
    def mixed(*args: PyTree, **kwargs: PyTree) -> PyTree:
        def traced(*args: PyTree, **kwargs: PyTree) -> PyTree:
            of_arrays, arrays = over_arrays(fun, args, kwargs)
            program = trace_leaves(of_arrays, [abstract(array, name) for array in arrays], name)
            return tree.unflatten(program.out_tree, _run(program, [*program.captured, *arrays], chosen))

        return staged(traced, *args, **kwargs)

    return mixed


@dataclass(frozen=True)
class _Value:
    """A value in a mixed Program.

    A float32 value is free to be rounded where it is combined with half precision, unless an op needed float32.
    """

    array: Any
    is_free: bool = True

    @cached_property
    def wide(self) -> Any:
        """The value in float32, one conversion for all users, so that their cotangents are added in float32."""
        return _as(self.array, _WIDE)


def _run(program: Program, values: Sequence[Any], policy: PrecisionPolicy) -> list:
    """The outputs of a Program, computed in mixed precision and converted to their original dtypes."""

    def apply(equation: Equation, arguments: list) -> Any:
        values = [x if isinstance(x, _Value) else _literal(x, policy) for x in arguments]
        results, is_free = _apply(equation, values, policy)
        return tuple([_Value(out, is_free) for out in (results if isinstance(results, tuple) else (results,))])

    outputs = program.evaluate([_Value(x) for x in values], apply)
    return [
        (out.wide if atom.aval.dtype == _WIDE else out.array) if isinstance(out, _Value) else out
        for out, atom in zip(outputs, program.outputs, strict=True)
    ]


def _literal(x: np.generic, policy: PrecisionPolicy) -> _Value:
    """A number; one outside the range of half precision, like a large mask or a small epsilon, stays in float32."""
    if policy.dtype == TENSORFLOAT32:
        return _Value(x)
    with np.errstate(over="ignore", under="ignore"):
        half = x.astype(policy.dtype)
    lost = x.dtype == _WIDE and (np.isfinite(half) != np.isfinite(x) or (half == 0) != (x == 0))
    return _Value(x, is_free=not lost)


def _apply(equation: Equation, values: Sequence[_Value], policy: PrecisionPolicy) -> tuple[Any, bool]:
    """The results of an equation, and whether they are free to be rounded."""
    op, params = equation.op, equation.params
    is_wide = [atom.aval.dtype == _WIDE for atom in equation.inputs]
    floats = [v for v, flag in zip(values, is_wide, strict=True) if flag]

    def operands(change: Callable[[_Value], Any]) -> list:
        return [change(v) if flag else v.array for v, flag in zip(values, is_wide, strict=True)]

    as_traced = lambda v: v.wide
    as_half = lambda v: _as(v.array, policy.dtype)
    if any(True for _ in subprograms(tuple(params.values()))):
        inner = {key: _inside(value, policy) for key, value in params.items()}
        return op(*operands(as_traced), **inner), True
    factors = len(values) if op.factors is None else op.factors
    is_product = op.precision in ("low", "summing") and all(is_wide[:factors])
    if policy.dtype == TENSORFLOAT32:
        reduced = {"precision": TENSORFLOAT32} if is_product else {}
        return op(*operands(as_traced), **{**params, **reduced}), True
    if is_product and op.precision == "summing" and (policy.only_products or op.factors is not None):
        return _summed(equation, operands, policy), False
    if is_product:
        return op(*operands(as_half), **params), True
    are_half = [v.array.dtype == policy.dtype for v in floats]
    if policy.only_products:
        if op.precision == "kept" and any(are_half) and all(are_half):
            return op(*operands(as_half), **params), True
        result = op(*operands(as_traced), **params)
        return (_rounding_cotangents(policy.dtype)(result) if _adds_bias(op, values, are_half) else result), True
    is_free = op.precision != "high" and all(v.is_free for v in floats)
    if is_free and any(are_half):
        return op(*operands(as_half), **params), True
    return op(*operands(as_traced), **params), is_free


def _adds_bias(op: Op, values: Sequence[_Value], are_half: Sequence[bool]) -> bool:
    """Whether a product gets a bias, which is repeated: both have the rounded cotangent of the sum, as in one layer."""
    if op is not add or sorted(are_half) != [False, True]:
        return False
    product, bias = (np.shape(value.array) for value in (values if are_half[0] else reversed(values)))
    return _is_repeated(bias, product) and not _is_repeated(product, bias)


def _is_repeated(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether an array of one shape is repeated where it meets one of another; a dynamic size counts as more than 1."""
    is_one = lambda size: isinstance(size, int) and size == 1
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) < len(other) or any(is_one(n) and not is_one(m) for n, m in pairs)


def _summed(equation: Equation, operands: Callable[[Callable[[_Value], Any]], list], policy: PrecisionPolicy) -> Any:
    """The results of an op that sums products of rounded factors in float32, and its rounded sums."""
    op, params = equation.op, equation.params
    arguments = operands(lambda v: v.wide)
    factors = operands(lambda v: v.wide if v.array.dtype == policy.dtype else _rounding(policy.dtype)(v.wide))
    factors = factors[: op.factors]
    results = op(*factors, *arguments[len(factors) :], **params)
    if not isinstance(results, tuple):
        return _as(results, policy.dtype)
    sums = len(results) if op.sums is None else op.sums
    return (*(_as(x, policy.dtype) for x in results[:sums]), *results[sums:])


def _as(x: Any, dtype: np.dtype) -> Any:
    if x.dtype == dtype:
        return x
    return x.astype(dtype) if isinstance(x, np.generic) else astype(x, dtype=dtypes.NAMES[dtype])


def _inside(param: Any, policy: PrecisionPolicy) -> Any:
    """A parameter of an op with its Programs and rules in mixed precision."""
    if isinstance(param, Program):
        return trace_leaves(lambda *values: _run(param, values, policy), [v.aval for v in param.inputs], param.name)
    if isinstance(param, calls.Rule):

        def rule(*arrays: Any) -> list:
            program = trace_leaves(param.call, [abstract(x) for x in arrays], repr(param))
            return _run(program, [*program.captured, *arrays], policy)

        return calls.Rule(rule)
    return tuple([_inside(item, policy) for item in param]) if isinstance(param, tuple) else param


@lru_cache(maxsize=2)
def _rounding(dtype: np.dtype) -> Callable:
    """A function that rounds values to half precision but not their cotangents: gradients of weights are float32."""

    def narrow(x: Any) -> Any:
        return _as(_as(x, dtype), _WIDE)

    @custom_vjp
    def rounded(x: Any) -> Any:
        return narrow(x)

    rounded.defvjp(lambda x: (narrow(x), None), lambda _, g: (g,))
    return rounded


@lru_cache(maxsize=2)
def _rounding_cotangents(dtype: np.dtype) -> Callable:
    """The identity, which rounds cotangents to half precision."""

    @custom_vjp
    def rounding_cotangents(x: Any) -> Any:
        return x

    rounding_cotangents.defvjp(lambda x: (x, None), lambda _, g: (_as(_as(g, dtype), _WIDE),))
    return rounding_cotangents
