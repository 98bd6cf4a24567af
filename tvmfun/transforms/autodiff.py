"""Derivatives of functions: gradients, products with the Jacobian from either side, and linearization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from tvmfun import dtypes, sparse, tree
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import Tape, partition, pushforward, trace_leaves, transposed, zeros
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract, abstract_leaves
from tvmfun.core.program import Program
from tvmfun.errors import ArgumentError, DtypeError, GradientError, ShapeError
from tvmfun.numpy.dtypes import weakly_typed
from tvmfun.ops import pointwise
from tvmfun.ops.cancelling_maxima import without_cancelling_maxima
from tvmfun.transforms.staging import as_arrays, staged
from tvmfun.typing import ArrayLike, PyTree

# -- grad ------------------------------------------------------------------------------------------------------------


def grad(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    r"""Returns a function that computes the gradient of ``fun``, :math:`\nabla f`.

    Args:
        fun: a function of trees of arrays with a scalar float result.
        argnums: the position, or positions, of the arguments to differentiate with respect to.
        has_aux: whether ``fun`` returns ``(loss, aux)``; the gradient function then returns ``(gradient, aux)``.
        holomorphic: must be False: there are no complex numbers.
        allow_int: whether an argument may have no float leaf, so that its gradient is zero.

    Returns:
        A function with the arguments of ``fun``. Its result has the tree of the argument, or is a tuple of such
        trees if ``argnums`` is a sequence. Leaves that are not floats get zeros of the same dtype.

    Raises:
        GradientError: when called, if the result is not a scalar float, an argument has no float leaf, or an op
            without derivative is between them.

    Source: follows ``jax.grad``.

    >>> import tvmfun.numpy as tnp
    >>> grad(lambda x: tnp.sum(x**2))(tnp.asarray([1.0, 2.0]))
    Array([2., 4.], dtype=float32)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    @wraps(fun)
    def gradient(*args: PyTree, **kwargs: PyTree) -> PyTree:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradient


def value_and_grad(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    r"""Returns a function that computes ``fun`` and its gradient, :math:`(f, \nabla f)`.

    Args, result tree and errors are as for :func:`grad`; the function returns ``(value, gradient)``, and with
    ``has_aux`` ``((loss, aux), gradient)``.

    Source: follows ``jax.value_and_grad``.

    >>> value, gradient = value_and_grad(lambda x: x * x)(3.0)
    >>> float(value), float(gradient)
    (9.0, 6.0)
    """
    if not callable(fun):
        raise ArgumentError("grad", "the first argument must be a function", got=type(fun).__name__)
    refuse_holomorphic("grad", holomorphic)
    numbers = argument_numbers(argnums)

    @wraps(fun)
    def value_and_gradient(*args: PyTree, **kwargs: PyTree) -> PyTree:
        indices = positions(numbers, len(args))
        for i in indices if not allow_int else ():
            check_differentiable("grad", args[i], f"argument {i}")

        def both(*args: PyTree, **kwargs: PyTree) -> PyTree:
            value, gradients = _value_and_gradients(fun, indices, args, kwargs, has_aux)
            return value, tuple(gradients) if isinstance(argnums, Sequence) else gradients[0]

        return staged(both, *replaced(args, indices, [as_arrays(args[i]) for i in indices]), **kwargs)

    return value_and_gradient


def _value_and_gradients(
    fun: Callable, indices: Sequence[int], args: Sequence[PyTree], kwargs: dict[str, PyTree], has_aux: bool
) -> tuple[PyTree, list]:
    """The result of ``fun``, and its gradients with respect to the arguments at ``indices``."""
    chosen = [args[i] for i in indices]
    leaves, structure = tree.flatten(chosen)

    def loss_of(*leaves: Any) -> Any:
        result = fun(*replaced(args, indices, tree.unflatten(structure, leaves)), **kwargs)
        return _check_loss(result, has_aux)

    program = _trace(loss_of, leaves, _name(fun))
    tape = Tape(program, leaves)
    loss, *aux = tape.outputs
    gradients = sparse.gradients(tape, [loss.dtype.type(1), *(None for _ in aux)], chosen)
    return tree.unflatten(program.out_tree, tape.outputs) if has_aux else loss, gradients


def replaced(args: Sequence[PyTree], indices: Sequence[int], values: Sequence[PyTree]) -> list[PyTree]:
    """Arguments with new values at some positions."""
    result = list(args)
    for i, value in zip(indices, values, strict=True):
        result[i] = value
    return result


def _trace(fun: Callable, leaves: Sequence[Any], name: str) -> Program:
    """Traces a function of leaves as positional arguments, to be differentiated."""
    return without_cancelling_maxima(trace_leaves(fun, [abstract(leaf, name) for leaf in leaves], name))


def _instantiate_zeros(values: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """The values, with zeros for those that are None; weakly typed where what they belong to is so."""
    is_weak = lambda leaf: isinstance(leaf, Array) and leaf.weak_type
    typed = lambda value, leaf: weakly_typed(value) if is_weak(leaf) else value
    return [zeros(leaf) if value is None else typed(value, leaf) for value, leaf in zip(values, like, strict=True)]


def _is_float(leaf: Any) -> bool:
    return dtypes.is_float(abstract(leaf).dtype)


def argument_numbers(argnums: Any) -> tuple[int, ...]:
    """``argnums`` as a tuple."""
    numbers = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    if any(isinstance(number, bool) or not isinstance(number, int | np.integer) for number in numbers):
        raise ArgumentError("grad", "argnums must be an integer, or a tuple of integers", got=repr(argnums))
    return numbers


def positions(numbers: Sequence[int], count: int) -> list[int]:
    """``argnums`` as positions among ``count`` arguments."""
    for number in numbers:
        if not -count <= number < count:
            raise ArgumentError(
                "grad",
                f"argnums must be below the {count} positional arguments",
                got=str(number),
                hint="another argnums, or passing the argument by position",
            )
    indices = [number % count for number in numbers]
    if len(set(indices)) < len(indices):
        raise ArgumentError("grad", "argnums must name an argument once", got=str(tuple(numbers)))
    return indices


def refuse_holomorphic(where: str, holomorphic: bool) -> None:
    """Raises for derivatives with respect to complex numbers."""
    if holomorphic:
        what = "there are no complex numbers"
        raise ArgumentError(where, what, got="holomorphic=True", hint="functions of two real numbers")


def check_differentiable(where: str, argument: PyTree, name: str, every_leaf: bool = False) -> None:
    """Raises unless a leaf, or every leaf, of an argument is a float."""
    leaves, structure = tree.flatten(argument)
    avals = abstract_leaves(leaves, structure, where, lambda path: f"{name}{tree.keystr(path)}")
    floats = [dtypes.is_float(aval.dtype) for aval in avals]
    if avals and not (all(floats) if every_leaf else any(floats)):
        raise GradientError(
            where,
            f"{name} must have {'only float leaves' if every_leaf else 'a float leaf'}",
            got=", ".join(map(repr, avals[:3])),
            hint="x.astype('float32'), or another argnums",
        )


def _check_loss(result: PyTree, has_aux: bool) -> PyTree:
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise GradientError("grad", "with has_aux the function must return (loss, aux)", got=type(result).__name__)
    loss = result[0] if has_aux else result
    leaves = tree.leaves(loss)
    if len(leaves) != 1 or leaves[0] is not loss:
        raise GradientError(
            "grad",
            "the loss must be one scalar",
            got=f"a tree of {len(leaves)} leaves",
            hint="to return the scalar alone, or has_aux=True for more results",
        )
    aval = abstract(loss, "grad")
    if aval.shape:
        raise GradientError("grad", "the loss must be a scalar", got=repr(aval), hint="losses.mean(), or vjp")
    if not dtypes.is_float(aval.dtype):
        raise GradientError("grad", "the loss must be a float", got=repr(aval), hint="loss.astype('float32')")
    return result


# -- vjp and jvp -------------------------------------------------------------------------------------------------------


def vjp(fun: Callable, *primals: PyTree, has_aux: bool = False) -> tuple:
    r"""Returns ``fun(*primals)`` and the function :math:`\bar y \mapsto \bar y^\top \partial f`.

    Args:
        fun: a function of trees of arrays.
        primals: the point at which to differentiate it.
        has_aux: whether ``fun`` returns ``(result, aux)``; ``vjp`` then returns ``(result, vjp_fun, aux)``.

    Returns:
        The result, and a function from a cotangent with the tree, shapes and dtypes of the result to a tuple with one
        cotangent per primal.

    Raises:
        GradientError: if an op between them has no derivative.

    Source: follows ``jax.vjp``.

    >>> import tvmfun.numpy as tnp
    >>> y, pull = vjp(lambda x: x * x, tnp.asarray([1.0, 2.0]))
    >>> pull(tnp.asarray([1.0, 10.0]))
    (Array([ 2., 40.], dtype=float32),)
    """
    leaves, structure = tree.flatten(as_arrays(primals))
    program = _trace(lambda *leaves: fun(*tree.unflatten(structure, leaves)), leaves, _name(fun))
    result_tree, aux_count = program.out_tree, 0
    if has_aux:
        result_tree, aux_tree = _split_aux(program)
        aux_count = aux_tree.num_leaves

    if is_tracing():
        tape = Tape(program, leaves)
        outputs = tape.outputs
    else:
        tape = None
        outputs = tree.leaves(program(*leaves))
    results = outputs[: len(outputs) - aux_count]

    def pull(cotangent: PyTree) -> tuple:
        cotangents, got = tree.flatten(cotangent)
        if got != result_tree:
            tree.check_same_structure("vjp", result_tree, got, ("the result", "the cotangent"))
        for g, out in zip(cotangents, results, strict=True):
            _check_tangent("vjp", "cotangent", abstract(g, "vjp"), abstract(out, "vjp"))

        def back(leaves: list, cotangents: list) -> list:
            # Outside a trace the forward pass is compiled again with the backward pass, into one module.
            current = tape if tape is not None and is_tracing() else Tape(program, leaves)
            seeds = [_cast(g, out) for g, out in zip(cotangents, results, strict=True)] + [None] * aux_count
            return _instantiate_zeros(current.backward(seeds), leaves)

        return tree.unflatten(structure, staged(back, leaves, as_arrays(cotangents)))

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


def _cast(cotangent: ArrayLike, like: Array | ShapeDtype) -> Any:
    """A cotangent in the dtype of ``like``; None for results that are not floats."""
    if not dtypes.is_float(like.dtype):
        return None
    if isinstance(cotangent, bool | int | float | np.generic):
        return like.dtype.type(cotangent)
    aval = abstract(cotangent)
    return cotangent if aval.dtype == like.dtype else pointwise.astype(cotangent, dtype=dtypes.NAMES[like.dtype])


def jvp(fun: Callable, primals: Sequence[PyTree], tangents: Sequence[PyTree], *, has_aux: bool = False) -> tuple:
    r"""Returns ``fun(*primals)`` and its directional derivative :math:`\partial f\, \dot x`.

    Args:
        fun: a function of trees of arrays.
        primals: the point at which to differentiate it, one per argument.
        tangents: the direction: the same trees, shapes and dtypes.
        has_aux: whether ``fun`` returns ``(result, aux)``; ``jvp`` then returns ``(result, tangent, aux)``.

    Returns:
        ``(result, tangent)``, two trees of the same structure.

    Raises:
        TreeError: if primals and tangents have different trees.
        ShapeError: if their shapes differ.
        GradientError: if an op between them has no derivative.

    Source: follows ``jax.jvp``.

    >>> y, dy = jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> float(y), float(dy)
    (9.0, 6.0)
    """
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise ArgumentError("jvp", "primals and tangents must be sequences, one item per argument")
    tree.check_same_structure("jvp", tuple(primals), tuple(tangents), ("the primals", "the tangents"))
    check_differentiable("jvp", primals, "the primals")
    for primal, tangent in zip(tree.leaves(primals), tree.leaves(tangents), strict=True):
        if _is_float(primal):
            _check_tangent("jvp", "tangent", abstract(tangent, "jvp"), abstract(primal))

    def both(primals: Sequence[PyTree], tangents: Sequence[PyTree]) -> tuple:
        leaves, structure = tree.flatten(tuple(primals))
        directions = [_cast(d, leaf) for d, leaf in zip(tree.leaves(tuple(tangents)), leaves, strict=True)]
        program = _trace(lambda *leaves: fun(*tree.unflatten(structure, leaves)), leaves, _name(fun))
        outputs, moved = pushforward(program, leaves, directions)
        moved = _instantiate_zeros(moved, outputs)
        if not has_aux:
            return tree.unflatten(program.out_tree, outputs), tree.unflatten(program.out_tree, moved)
        result_tree, aux_tree = _split_aux(program)
        count = result_tree.num_leaves
        value, tangent = (tree.unflatten(result_tree, leaves[:count]) for leaves in (outputs, moved))
        return value, tangent, tree.unflatten(aux_tree, outputs[count:])

    return staged(both, as_arrays(primals), as_arrays(tangents))


def _name(fun: Callable) -> str:
    return getattr(fun, "__name__", type(fun).__name__)


# -- linear functions --------------------------------------------------------------------------------------------------


def linearize(fun: Callable, *primals: PyTree, has_aux: bool = False) -> tuple:
    r"""Returns ``fun(*primals)`` and the linear function :math:`\dot x \mapsto \partial f\, \dot x` at this point.

    Values that do not depend on the tangents are computed once, not at each call of the linear function.

    Args:
        fun: a function of trees of arrays.
        primals: the point at which to linearize it.
        has_aux: whether ``fun`` returns ``(result, aux)``; ``linearize`` then returns ``(result, push, aux)``.

    Returns:
        The result, and a function from one tangent per primal to the tangent of the result.

    Raises:
        GradientError: if an op between them has no derivative.

    Source: follows ``jax.linearize``.

    >>> y, push = linearize(lambda x: x * x, 3.0)
    >>> float(y), float(push(1.0)), float(push(10.0))
    (9.0, 6.0, 60.0)
    """
    leaves, structure = tree.flatten(as_arrays(primals))
    program = _trace(lambda *leaves: fun(*tree.unflatten(structure, leaves)), leaves, _name(fun))
    moving = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
    result_tree, aux_tree = _split_aux(program) if has_aux else (program.out_tree, None)
    count = result_tree.num_leaves
    inputs = [*program.captured, *leaves]

    def both(*values: Any) -> list:
        """The outputs, and the transpose of the reverse mode applied to the tangents."""
        captured, primals = values[: len(program.captured)], values[len(program.captured) : len(inputs)]
        tape = Tape(replace(program, captured=tuple(captured)), primals)
        results = tape.outputs[:count]
        backward = _trace(
            lambda *gs: _instantiate_zeros(tape.backward([*gs, *aux_zeros]), primals), results, program.name
        )
        directions = dict(zip(moving, values[len(inputs) :], strict=True))
        moved = Tape(backward, [zeros(x) for x in results]).backward([directions.get(i) for i in range(len(primals))])
        return [*tape.outputs, *_instantiate_zeros(moved, results)]

    def forward(*values: Any) -> list:
        """The same in forward mode, for loops without a bound; they run again for each tangent."""
        captured, primals = values[: len(program.captured)], values[len(program.captured) : len(inputs)]
        directions = dict(zip(moving, values[len(inputs) :], strict=True))
        tangents = [directions.get(i) for i in range(len(primals))]
        _, moved = pushforward(replace(program, captured=tuple(captured)), primals, tangents)
        outputs = program.evaluate([*captured, *primals])  # in loops of their own, which do not wait for tangents
        return [*outputs, *_instantiate_zeros(moved[:count], outputs[:count])]

    aux_zeros = [None] * (len(program.outputs) - count)
    avals = [*inputs, *(leaves[i] for i in moving)]
    try:
        joint = _trace(both, avals, program.name)
    except GradientError:
        joint = _trace(forward, avals, program.name)
    known = [True] * (len(joint.captured) + len(inputs)) + [False] * len(moving)
    early, late, is_known = partition(replace(joint, captured=()), known)
    values = early(*joint.captured, *inputs)
    # Tangents that do not depend on the arguments' tangents are zeros, and among the known values.
    constant = sum(is_known)
    outputs, fixed = values[: len(program.outputs)], values[len(program.outputs) : constant]
    residuals = values[constant:]

    def push(*tangents: PyTree) -> PyTree:
        tangents = as_arrays(tangents)
        tree.check_same_structure("linearize", tuple(primals), tangents, ("the primals", "the tangents"))
        directions = tree.leaves(tangents)
        for leaf, direction in zip(leaves, directions, strict=True):
            if _is_float(leaf):
                _check_tangent("linearize", "tangent", abstract(direction, "linearize"), abstract(leaf))
        moved = iter(late(*residuals, *(_cast(directions[i], leaves[i]) for i in moving)))
        still = iter(fixed)
        results = [next(still) if k else next(moved) for k in is_known[len(program.outputs) :]]
        return tree.unflatten(result_tree, results)

    value = tree.unflatten(result_tree, outputs[: result_tree.num_leaves])
    if aux_tree is None:
        return value, push
    return value, push, tree.unflatten(aux_tree, outputs[result_tree.num_leaves :])


def linear_transpose(fun: Callable, *primals: PyTree) -> Callable[[PyTree], tuple]:
    r"""Returns the transpose of a linear function, :math:`\bar y \mapsto A^\top \bar y` for :math:`f(x) = A x`.

    Args:
        fun: a function of trees of arrays that is linear.
        primals: arrays or ``ShapeDtype``; only shapes and dtypes matter.

    Returns:
        A function from a cotangent with the tree of the result to a tuple with one cotangent per primal.

    Raises:
        GradientError: if ``fun`` is visibly not linear in its arguments: its transpose would need their values.

    Source: follows ``jax.linear_transpose``.

    >>> import tvmfun.numpy as tnp
    >>> transpose = linear_transpose(lambda x: 2.0 * x[1:], tnp.zeros(3))
    >>> transpose(tnp.asarray([1.0, 2.0]))
    (Array([0., 2., 4.], dtype=float32),)
    """
    avals, structure = tree.flatten(tree.map(abstract, primals))
    program = _trace(lambda *leaves: fun(*tree.unflatten(structure, leaves)), avals, _name(fun))
    outs = program.out_avals
    joint = transposed(program, avals, outs, "linear_transpose")

    def transpose(cotangent: PyTree) -> tuple:
        cotangents, got = tree.flatten(as_arrays(cotangent))
        if got != program.out_tree:
            tree.check_same_structure("linear_transpose", program.out_tree, got, ("the result", "the cotangent"))
        for g, out in zip(cotangents, outs, strict=True):
            _check_tangent("linear_transpose", "cotangent", abstract(g, "linear_transpose"), out)
        seeds = [_cast(g, out) if dtypes.is_float(out.dtype) else g for g, out in zip(cotangents, outs, strict=True)]
        primals = [zeros(aval) for aval in avals]
        return tree.unflatten(structure, joint(*primals, *seeds))

    return transpose
