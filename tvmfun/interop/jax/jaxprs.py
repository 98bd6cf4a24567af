"""The evaluation of jaxprs: equation by equation, so that a trace of the operands is a trace of the jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.errors import GradientError, ProgramError
from tvmfun.interop.jax.primitives import RULES, apply
from tvmfun.transforms.autodiff import vjp
from tvmfun.transforms.checkpoint import checkpoint
from tvmfun.transforms.custom import custom_jvp, custom_vjp
from tvmfun.transforms.vmap import vmap


def evaluate(jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Returns the results of a jaxpr.

    Args:
        jaxpr: a ``jax.core.Jaxpr``.
        constants: the values of its ``constvars``.
        operands: the values of its ``invars``. Keys are arrays of unsigned integers, with an axis more.

    Raises:
        ProgramError: at a primitive that is not in the table; it names the line of the user.
    """
    values: dict[Any, Any] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*map(_array, constants), *operands], strict=True)
    )
    read = lambda atom: _array(atom.val, atom.aval) if hasattr(atom, "val") else values[atom]
    for equation in jaxpr.eqns:
        results = _equation(equation, list(map(read, equation.invars)))
        values.update(zip(equation.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def closed(jaxpr: Any) -> Callable[..., list[Any]]:
    """A ``ClosedJaxpr``, or a ``Jaxpr`` without constants, as a function."""
    inner, constants = (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())
    return lambda *operands: evaluate(inner, constants, operands)


def is_key(aval: Any) -> bool:
    """Whether a type is that of typed keys."""
    return "key<" in str(getattr(aval, "dtype", ""))


def _array(value: Any, aval: Any = None) -> Any:
    """A constant of JAX as an array."""
    if is_key(value):
        from jax import random

        value = random.key_data(value)
    return tnp.asarray(np.asarray(value, None if aval is None or is_key(aval) else aval.dtype))


def _equation(equation: Any, operands: list[Any]) -> Sequence[Any]:
    """The results of an equation."""
    name = equation.primitive.name
    if name in _CALLS:
        return _CALLS[name](equation, operands)
    if name not in RULES:
        hint = "a function of tvmfun for it, with custom_vjp if it is differentiated"
        raise ProgramError("from_jax", "a primitive of JAX is not known", got=f"{name} at {_line(equation)}", hint=hint)
    call = lambda *operands: apply(name, operands, equation.params)
    inner = [is_key(atom.aval) for atom in equation.invars]
    if any(inner) and not name.startswith("random_"):
        # Structural primitives treat a key as one element: its words are a batch.
        call = vmap(call, in_axes=tuple(-1 if one else None for one in inner), out_axes=-1)
    results = call(*operands)
    return results if isinstance(results, (tuple, list)) else [results]


def _line(equation: Any) -> str:
    """The user's line in which JAX traced an equation."""
    traceback = getattr(equation.source_info, "traceback", None)
    for frame in traceback.frames if traceback else ():
        if "/jax/" not in frame.file_name and "<frozen" not in frame.file_name:
            return f"{frame.file_name}:{frame.line_num}"
    return "an unknown line"


# -- primitives that contain jaxprs ------------------------------------------------------------------------------------


def _call(equation: Any, operands: list[Any]) -> Sequence[Any]:
    params = equation.params
    return closed(params.get("jaxpr", params.get("call_jaxpr")))(*operands)


def _checkpoint(equation: Any, operands: list[Any]) -> Sequence[Any]:
    return checkpoint(lambda *operands: tuple(closed(equation.params["jaxpr"])(*operands)))(*operands)


def _while(equation: Any, operands: list[Any]) -> Sequence[Any]:
    params = equation.params
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    condition, body = closed(params["cond_jaxpr"]), closed(params["body_jaxpr"])
    first, second, carry = _split(operands, of_condition, of_body)
    return lax.while_loop(
        lambda carry: condition(*first, *carry)[0], lambda carry: tuple(body(*second, *carry)), tuple(carry)
    )


def _scan(equation: Any, operands: list[Any]) -> Sequence[Any]:
    params = equation.params
    constants, carry, xs = _split(operands, params["num_consts"], params["num_carry"])
    body, count = closed(params["jaxpr"]), len(carry)

    def step(carry: tuple, xs: tuple) -> tuple[tuple, tuple]:
        results = body(*constants, *carry, *xs)
        return tuple(results[:count]), tuple(results[count:])

    carry, ys = lax.scan(
        step, tuple(carry), tuple(xs), params["length"], reverse=params["reverse"], unroll=params.get("unroll", 1)
    )
    return [*carry, *ys]


def _cond(equation: Any, operands: list[Any]) -> Sequence[Any]:
    index, *rest = operands
    branches = [_tupled(closed(branch)) for branch in equation.params["branches"]]
    if index.dtype == bool:
        return lax.cond(index, branches[1], branches[0], *rest)
    return lax.switch(index, branches, *rest)


def _tupled(function: Callable) -> Callable:
    return lambda *operands: tuple(function(*operands))


def _split(values: Sequence[Any], *counts: int) -> Iterator[list[Any]]:
    start = 0
    for count in counts:
        yield list(values[start : start + count])
        start += count
    yield list(values[start:])


# -- custom derivatives ------------------------------------------------------------------------------------------------
# JAX is asked for the jaxpr of the derivative, which obeys the user's rule.


def _custom_jvp(equation: Any, operands: list[Any]) -> Sequence[Any]:
    import jax

    jaxpr = equation.params["call_jaxpr"]
    function = _in_jax(equation)

    @custom_jvp
    def call(*operands: Any) -> Any:
        return tuple(closed(jaxpr)(*operands))

    @call.defjvp
    def rule(primals: tuple, tangents: tuple) -> tuple:
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.in_avals]
        moving = [i for i, aval in enumerate(jaxpr.in_avals) if _is_real(aval)]

        def jvp(primals: list, directions: list) -> Any:
            full = dict(zip(moving, directions, strict=True))
            tangents = [full.get(i, np.zeros(x.shape, jax.dtypes.float0)) for i, x in enumerate(primals)]
            return jax.jvp(function, primals, tangents)

        traced = jax.make_jaxpr(jvp)(shapes, [shapes[i] for i in moving])
        results = closed(traced)(*primals, *(tangents[i] for i in moving))
        outputs, derivatives = results[: len(jaxpr.out_avals)], iter(results[len(jaxpr.out_avals) :])
        return tuple(outputs), tuple(next(derivatives) if _is_real(y) else tnp.zeros_like(y) for y in outputs)

    return call(*operands)


def _custom_vjp(equation: Any, operands: list[Any]) -> Sequence[Any]:
    import jax

    jaxpr = equation.params["call_jaxpr"]
    function = _in_jax(equation)
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.in_avals]
    pulls: list[Any] = []

    def forward_in_jax(*operands: Any) -> Any:
        outputs, pull = jax.vjp(function, *operands)
        residuals, tree = jax.tree.flatten(pull)
        pulls[:] = [tree, residuals and [jax.typeof(x) for x in residuals]]
        return outputs, residuals

    def backward_in_jax(residuals: list, cotangents: list) -> Any:
        results = jax.tree.unflatten(pulls[0], residuals)(cotangents)
        return [x for x, aval in zip(results, jaxpr.in_avals, strict=True) if _is_real(aval)]

    @custom_vjp
    def call(*operands: Any) -> Any:
        return tuple(closed(jaxpr)(*operands))

    def forward(*operands: Any) -> tuple:
        results = closed(jax.make_jaxpr(forward_in_jax)(*shapes))(*operands)
        count = len(jaxpr.out_avals)
        return tuple(results[:count]), tuple(results[count:])

    def backward(residuals: tuple, cotangents: tuple) -> tuple:
        struct = lambda aval: jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        types = list(map(struct, pulls[1])), list(map(struct, jaxpr.out_avals))
        results = iter(closed(jax.make_jaxpr(backward_in_jax)(*types))(*residuals, *cotangents))
        return tuple(next(results) if _is_real(aval) else None for aval in jaxpr.in_avals)

    call.defvjp(forward, backward)
    return call(*operands)


def _linear_solve(equation: Any, operands: list[Any]) -> Sequence[Any]:
    lengths = equation.params["const_lengths"]
    *constants, b = _split(operands, lengths.matvec, lengths.vecmat, lengths.solve, lengths.transpose_solve)
    return _solution(tuple(equation.params["jaxprs"]), tuple(map(tuple, constants)), tuple(b))


def _solution(jaxprs: tuple, constants: tuple, b: tuple) -> tuple:
    """The solution of a linear equation, whose derivative solves the transposed one.

    Args:
        jaxprs: the matrix times a vector, its transpose times one, and the solutions of both equations.
        constants: the constants of each.
        b: the right side.
    """
    matvec, _, solve, transposed = jaxprs

    @custom_vjp
    def call(matvec_constants: tuple, vecmat: tuple, solve_constants: tuple, transposed: tuple, b: tuple) -> tuple:
        return tuple(closed(solve)(*solve_constants, *b))

    def forward(*operands: tuple) -> tuple:
        x = call(*operands)
        return x, (operands[:4], x)

    def backward(kept: tuple, cotangents: tuple) -> tuple:
        constants, x = kept
        if transposed is None:
            what = "the derivative of a linear solution needs the transposed one"
            raise GradientError("from_jax", what, hint="transpose_solve= of jax.lax.custom_linear_solve")
        swapped = lambda four: (four[1], four[0], four[3], four[2])
        moved = _solution(swapped(jaxprs), swapped(constants), tuple(cotangents))
        _, pull = vjp(lambda own: tuple(closed(matvec)(*own, *x)), constants[0])
        return pull(tuple(-value for value in moved))[0], None, None, None, moved

    call.defvjp(forward, backward)
    return call(*constants, b)


def _in_jax(equation: Any) -> Callable:
    """An equation as a function of JAX, with its custom rule."""
    primitive = equation.primitive
    params = primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)  # older versions return both
    return lambda *operands: primitive.bind(*functions, *operands, **params)


def _is_real(aval: Any) -> bool:
    if is_key(aval):
        return False
    return str(aval.dtype) == "bfloat16" or np.issubdtype(np.dtype(aval.dtype), np.inexact)


_CALLS: dict[str, Callable[[Any, list[Any]], Sequence[Any]]] = {
    "jit": _call,
    "pjit": _call,
    "closed_call": _call,
    "core_call": _call,
    "custom_lin": _call,
    "remat": _checkpoint,
    "remat2": _checkpoint,
    "checkpoint": _checkpoint,
    "while": _while,
    "scan": _scan,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
}
