"""Derivatives. One rule per op, in its record: reverse mode walks a Program backwards and applies them.

Forward mode transposes twice: the vjp of a function is linear in the cotangent, so the vjp of that vjp is the
jvp. What the detour computes in vain is dead code and is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core import trace as tracing
from tvmfun.core.array import Array, ShapeDtype, device_array
from tvmfun.core.leaf import abstract, scalar
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.core.trace import is_tracing, trace_flat
from tvmfun.errors import ArgumentError, DtypeError, GradientError, ShapeError
from tvmfun.ops import pointwise, shape

# -- the backward walk ---------------------------------------------------------------------------------------------


class _Tape:
    """A run of a Program on leaves: the values of its variables and what is needed to walk it backwards."""

    def __init__(self, program: Program, leaves: Sequence[Any]) -> None:
        self.program = program
        self.leaves = leaves
        self.wanted = program.inputs[len(program.captured) :]
        values = [*program.captured, *leaves]
        self.values: dict[Variable, Any] = dict(zip(program.inputs, values, strict=True))
        self.active = {variable for variable in self.wanted if dtypes.is_float(variable.aval.dtype)}
        self.outputs = program.evaluate(values, self._record)

    def _record(self, equation: Equation, arguments: list) -> Any:
        result = equation.op(*arguments, **equation.params)
        results = result if isinstance(result, tuple) else (result,)
        self.values.update(zip(equation.outputs, results, strict=True))
        if any(self._carries(i, atom, equation) for i, atom in enumerate(equation.inputs)):
            self.active.update(out for out in equation.outputs if dtypes.is_float(out.aval.dtype))
        return result

    def _carries(self, i: int, atom: Any, equation: Equation) -> bool:
        rules = equation.op.vjp
        return atom in self.active and not (isinstance(rules, tuple) and rules[i] is None)

    def backward(self, cotangents: Sequence[Any]) -> list[Any]:
        """The cotangents of the leaves for those of the outputs (None for none); zeros without influence."""
        sums: dict[Atom, Any] = {}

        def accumulate(variable: Atom, cotangent: Any) -> None:
            sums[variable] = pointwise.add(sums[variable], cotangent) if variable in sums else cotangent

        for atom, cotangent in zip(self.program.outputs, cotangents, strict=True):
            if isinstance(atom, Variable) and atom in self.active and cotangent is not None:
                accumulate(atom, cotangent)
        for equation in reversed(self.program.equations):
            arriving = [sums.pop(out, None) for out in equation.outputs]
            if all(g is None for g in arriving):
                continue
            for i, cotangent in self._step(equation, arriving):
                accumulate(equation.inputs[i], cotangent)
        found = (sums.get(variable) for variable in self.wanted)
        return [zeros(leaf) if g is None else g for g, leaf in zip(found, self.leaves, strict=True)]

    def _step(self, equation: Equation, arriving: list) -> list[tuple[int, Any]]:
        op = equation.op
        if op.vjp is None:
            raise GradientError(
                "grad",
                f"{op} has no derivative",
                got=f"an influence on the result through it at {equation.source or 'an unknown place'}",
                hint="tvmfun.lax.stop_gradient where none should flow",
            )
        outs = [self.values[out] for out in equation.outputs]
        arguments = [a.value if isinstance(a, Literal) else self.values[a] for a in equation.inputs]
        if len(outs) == 1:
            g, out = arriving[0], outs[0]
        else:
            g = tuple(zeros(o) if a is None else a for a, o in zip(arriving, outs, strict=True))
            out = tuple(outs)
        return [
            (i, op.vjp_rule(i)(g, out, *arguments, **equation.params))  # type: ignore[misc]
            for i, atom in enumerate(equation.inputs)
            if self._carries(i, atom, equation)
        ]


def zeros(like: Any) -> Array:
    """Zeros of the shape and dtype of ``like``."""
    aval = abstract(like)
    return shape.broadcast_to(aval.dtype.type(0), shape=aval.shape)


def _staged(fun: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls ``fun``: in the current trace, or traced and then compiled as a whole.

    Only arrays are traced; other leaves (flags, names) stay the Python values they are.
    """
    if is_tracing():
        return fun(*args, **kwargs)
    leaves, structure = tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]

    @wraps(fun)
    def of_arrays(*arrays: Any) -> Any:
        full = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            full[i] = array
        args, kwargs = tree.unflatten(structure, full)
        return fun(*args, **kwargs)

    arrays = [leaves[i] for i in places]
    return tracing.trace(of_arrays)(*arrays)(*arrays)


def _as_arrays(values: Any) -> Any:
    """The tree with Python numbers as arrays, so that other numbers need no other module."""
    number = scalar if is_tracing() else lambda leaf: device_array(scalar(leaf), weak=True)
    convert = lambda leaf: number(leaf) if dtypes.is_scalar(leaf) else leaf
    return tree.map(convert, values)


# -- grad ------------------------------------------------------------------------------------------------------------


def grad(fun: Callable, argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    r"""Returns a function that computes the gradient of ``fun``, :math:`\nabla f`.

    Args:
        fun: a function of trees of arrays with a scalar float result.
        argnums: the position, or positions, of the arguments to differentiate with respect to.
        has_aux: whether ``fun`` returns ``(loss, aux)``; the gradient function then returns ``(gradient, aux)``.

    Returns:
        A function with the arguments of ``fun``. Its result has the tree of the argument, or is a tuple of such
        trees if ``argnums`` is a sequence. Leaves that are not floats get zeros of their own dtype.

    Raises:
        GradientError: when called, if the result is not a scalar float, an argument has no float leaf, or an op
            without derivative lies between.

    Source: follows ``jax.grad``.

    >>> import tvmfun.numpy as tnp
    >>> grad(lambda x: tnp.sum(x**2))(tnp.asarray([1.0, 2.0]))
    Array([2., 4.], dtype=float32)
    """
    both = value_and_grad(fun, argnums, has_aux=has_aux)

    @wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradient


def value_and_grad(fun: Callable, argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    r"""Returns a function that computes ``fun`` and its gradient, :math:`(f, \nabla f)`.

    Args, result tree and errors are those of :func:`grad`; the function returns ``(value, gradient)``, and with
    ``has_aux`` ``((loss, aux), gradient)``.

    Source: follows ``jax.value_and_grad``.

    >>> value, gradient = value_and_grad(lambda x: x * x)(3.0)
    >>> float(value), float(gradient)
    (9.0, 6.0)
    """
    if not callable(fun):
        raise ArgumentError("grad", "the first argument must be a function", got=type(fun).__name__)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(fun)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        places = _places(numbers, len(args))
        for place in places:
            _check_differentiable(args[place], place)

        def both(*args: Any, **kwargs: Any) -> Any:
            chosen = [args[place] for place in places]
            leaves, structure = tree.flatten(chosen)

            def of_leaves(*leaves: Any) -> Any:
                new = list(args)
                for place, value in zip(places, tree.unflatten(structure, leaves), strict=True):
                    new[place] = value
                result = fun(*new, **kwargs)
                return _check_loss(result, has_aux)

            program = _trace_leaves(of_leaves, leaves, getattr(fun, "__name__", "fun"))
            tape = _Tape(program, leaves)
            loss, *_ = tape.outputs
            seeds = [loss.dtype.type(1)] + [None] * (len(tape.outputs) - 1)
            gradient = tree.unflatten(structure, tape.backward(seeds))
            value = tree.unflatten(program.out_tree, tape.outputs)
            return (value if has_aux else loss), (gradient[0] if isinstance(argnums, int) else tuple(gradient))

        for place in places:
            args = (*args[:place], _as_arrays(args[place]), *args[place + 1 :])
        return _staged(both, *args, **kwargs)

    return value_and_gradient


def _trace_leaves(fun: Callable, leaves: Sequence[Any], name: str) -> Program:
    """Traces a function of leaves, given as positional arguments."""
    return trace_flat(fun, [abstract(leaf, name) for leaf in leaves], tree.structure((tuple(leaves), {})), name)


def _is_float(leaf: Any) -> bool:
    return dtypes.is_float(abstract(leaf).dtype)


def _places(numbers: Sequence[int], count: int) -> list[int]:
    for number in numbers:
        if not -count <= number < count:
            raise ArgumentError(
                "grad",
                f"argnums must be below the {count} positional arguments",
                got=str(number),
                hint="another argnums, or passing the argument by position",
            )
    places = [number % count for number in numbers]
    if len(set(places)) < len(places):
        raise ArgumentError("grad", "argnums must name an argument once", got=str(tuple(numbers)))
    return places


def _check_differentiable(argument: Any, place: int) -> None:
    avals = [abstract(leaf, f"grad, argument {place}") for leaf in tree.leaves(argument)]
    if avals and not any(dtypes.is_float(aval.dtype) for aval in avals):
        raise GradientError(
            "grad",
            f"argument {place} must have a float leaf",
            got=", ".join(map(repr, avals[:3])),
            hint="x.astype('float32'), or another argnums",
        )


def _check_loss(result: Any, has_aux: bool) -> Any:
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise GradientError("grad", "with has_aux the function must return (loss, aux)", got=type(result).__name__)
    loss = result[0] if has_aux else result
    leaves = tree.leaves(loss)
    if len(leaves) != 1 or leaves[0] is not loss:
        raise GradientError(
            "grad",
            "the loss must be one scalar",
            got=f"a tree of {len(leaves)} leaves",
            hint="has_aux=True for more results",
        )
    aval = abstract(loss, "grad")
    if aval.shape:
        raise GradientError("grad", "the loss must be a scalar", got=repr(aval), hint="losses.mean(), or vjp")
    if not dtypes.is_float(aval.dtype):
        raise GradientError("grad", "the loss must be a float", got=repr(aval), hint="loss.astype('float32')")
    return result


# -- vjp and jvp -------------------------------------------------------------------------------------------------------


def vjp(fun: Callable, *primals: Any, has_aux: bool = False) -> tuple:
    r"""Returns ``fun(*primals)`` and the function :math:`\bar y \mapsto \bar y^\top \partial f`.

    Args:
        fun: a function of trees of arrays.
        primals: where to differentiate it.
        has_aux: whether ``fun`` returns ``(result, aux)``; ``vjp`` then returns ``(result, vjp_fun, aux)``.

    Returns:
        The result, and a function from a cotangent with the tree, shapes and dtypes of the result to a tuple with one
        cotangent per primal.

    Raises:
        GradientError: if an op without derivative lies between.

    Source: follows ``jax.vjp``.

    >>> import tvmfun.numpy as tnp
    >>> y, pull = vjp(lambda x: x * x, tnp.asarray([1.0, 2.0]))
    >>> pull(tnp.asarray([1.0, 10.0]))
    (Array([ 2., 40.], dtype=float32),)
    """
    leaves, structure = tree.flatten(_as_arrays(primals))
    name = getattr(fun, "__name__", "fun")
    program = _trace_leaves(lambda *leaves: fun(*tree.unflatten(structure, leaves)), leaves, name)
    result_tree, aux_count = program.out_tree, 0
    if has_aux:
        result_tree, aux_tree = _split_aux(program)
        aux_count = aux_tree.num_leaves

    if is_tracing():
        tape = _Tape(program, leaves)
        outputs = tape.outputs
    else:
        tape = None
        outputs = tree.leaves(program(*leaves))
    results = outputs[: len(outputs) - aux_count]

    def pull(cotangent: Any) -> tuple:
        given, given_tree = tree.flatten(cotangent)
        if given_tree != result_tree:
            tree.check_same_structure("vjp", result_tree, given_tree, ("the result", "the cotangent"))
        for g, out in zip(given, results, strict=True):
            _check_tangent("vjp", "cotangent", abstract(g, "vjp"), out.aval)

        def back(leaves: list, given: list) -> list:
            # Outside a trace the forward pass is compiled again with the backward pass, into one module.
            own = tape if tape is not None and is_tracing() else _Tape(program, leaves)
            seeds = [_cast(g, out) for g, out in zip(given, results, strict=True)] + [None] * aux_count
            return own.backward(seeds)

        return tree.unflatten(structure, _staged(back, leaves, _as_arrays(given)))

    value = tree.unflatten(result_tree, results)
    if not has_aux:
        return value, pull
    return value, pull, tree.unflatten(aux_tree, outputs[len(results) :])


def _split_aux(program: Program) -> tuple[tree.Structure, tree.Structure]:
    pair = program.out_tree.children()
    if len(pair) != 2:
        raise GradientError("vjp", "with has_aux the function must return (result, aux)", got=str(program.out_tree))
    return pair[0], pair[1]


def _check_tangent(where: str, what: str, got: ShapeDtype, expected: ShapeDtype) -> None:
    if got.shape != expected.shape:
        raise ShapeError(where, f"the {what} must have the shape of {expected}", got=repr(got))
    if dtypes.is_float(expected.dtype) and got.dtype != expected.dtype and not got.weak:
        raise DtypeError(where, f"the {what} must have the dtype of {expected}", got=repr(got))


def _cast(cotangent: Any, like: Array) -> Any:
    """A cotangent as a value of the right dtype; None for results that are not floats."""
    if not dtypes.is_float(like.dtype):
        return None
    if isinstance(cotangent, bool | int | float | np.generic):
        return like.dtype.type(cotangent)
    aval = abstract(cotangent)
    return cotangent if aval.dtype == like.dtype else pointwise.astype(cotangent, dtype=dtypes.NAMES[like.dtype])


def jvp(fun: Callable, primals: Sequence[Any], tangents: Sequence[Any], *, has_aux: bool = False) -> tuple:
    r"""Returns ``fun(*primals)`` and its directional derivative :math:`\partial f\, \dot x`.

    Args:
        fun: a function of trees of arrays.
        primals: where to differentiate it, one per argument.
        tangents: the direction: the same trees, shapes and dtypes.
        has_aux: whether ``fun`` returns ``(result, aux)``; ``jvp`` then returns ``(result, tangent, aux)``.

    Returns:
        ``(result, tangent)``, two trees of the same structure.

    Raises:
        TreeError: if primals and tangents have different trees.
        ShapeError: if their shapes differ.
        GradientError: if an op without derivative lies between.

    Source: follows ``jax.jvp``.

    >>> y, dy = jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> float(y), float(dy)
    (9.0, 6.0)
    """
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise ArgumentError("jvp", "primals and tangents must be sequences, one item per argument")
    tree.check_same_structure("jvp", tuple(primals), tuple(tangents), ("the primals", "the tangents"))
    for primal, tangent in zip(tree.leaves(primals), tree.leaves(tangents), strict=True):
        if _is_float(primal):
            _check_tangent("jvp", "tangent", abstract(tangent, "jvp"), abstract(primal))

    def both(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple:
        leaves, structure = tree.flatten(tuple(primals))
        directions = tree.leaves(tuple(tangents))
        value, pull, *aux = vjp(fun, *tree.unflatten(structure, leaves), has_aux=has_aux)
        results, result_tree = tree.flatten(value)
        is_input = [_is_float(leaf) for leaf in leaves]
        is_output = [_is_float(result) for result in results]

        def transposed(*cotangents: Any) -> list:
            given = iter(cotangents)
            full = [next(given) if f else zeros(r) for f, r in zip(is_output, results, strict=True)]
            gradients = tree.leaves(pull(tree.unflatten(result_tree, full)))
            return [g for f, g in zip(is_input, gradients, strict=True) if f]

        # `transposed` is linear: where its own vjp is taken does not matter, and zeros vanish as dead code.
        start = [zeros(result) for f, result in zip(is_output, results, strict=True) if f]
        _, push = vjp(transposed, *start)
        pushed = iter(push([_cast(d, leaf) for f, d, leaf in zip(is_input, directions, leaves, strict=True) if f]))
        moved = [next(pushed) if f else zeros(r) for f, r in zip(is_output, results, strict=True)]
        return (value, tree.unflatten(result_tree, moved), *aux)

    return _staged(both, _as_arrays(primals), _as_arrays(tangents))
