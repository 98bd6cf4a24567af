"""Linear systems of trees of arrays as systems of vectors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tvmfun import lax, tree
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentTypeError, GradientError, ShapeError
from tvmfun.flatten_util import ravel_pytree
from tvmfun.numpy.promotion import at_least_float32, operands
from tvmfun.transforms import linear_transpose

#: A linear function of vectors.
Linear = Callable[[Array], Array]


class System(NamedTuple):
    """A system of equations of vectors of one dtype, float32 or wider.

    Attributes:
        apply: the product with the matrix.
        precondition: the product with the preconditioner; None for none.
        b: the right-hand side.
        x: where to begin.
        residual: the right-hand side without the product with ``x``.
        bound: the norm of the residual to reach.
        maxiter: the most iterations.
    """

    apply: Linear
    precondition: Linear | None
    b: Array
    x: Array
    residual: Array
    bound: Array
    maxiter: Any


class Problem(NamedTuple):
    """The arguments of a solver: functions of trees, and trees of float arrays like the right-hand side."""

    apply: Callable[[Any], Any]
    precondition: Callable[[Any], Any] | None
    b: Any
    x0: Any
    tol: Any
    atol: Any
    maxiter: Any


#: From a system to the solution and the norm of its residual.
Iteration = Callable[[System], tuple[Array, Array]]


def norm(x: Array) -> Array:
    """The Euclidean norm of a vector."""
    return tnp.sqrt(tnp.vdot(x, x))


def problem(name: str, a: Any, b: Any, x0: Any, tol: Any, atol: Any, maxiter: Any, m: Any) -> Problem:
    """The arguments of a solver, checked and converted.

    Raises:
        ArgumentTypeError: if a matrix is none.
        ShapeError, TreeError: if a matrix is not square, or the trees do not fit together.
    """
    apply, precondition = function_of(name, "A", a), None if m is None else function_of(name, "M", m)
    # A matrix and a vector promote each other, as in a product; a function gets the dtypes of the right-hand side.
    others = [a] if _is_array(a) else []
    b = tree.map(lambda leaf: tnp.asarray(operands(name, tnp.asarray(leaf), *others, floating=True)[0]), b)
    for label, matrix in (("A", a), ("M", m)):
        _check_rows(name, label, matrix, b)
    if x0 is not None:
        x0 = like(name, "x0", x0, b)
    if maxiter is None:
        maxiter = 10 * sum(leaf.size for leaf in tree.leaves(b))
    elif isinstance(maxiter, int):
        maxiter = min(maxiter, np.iinfo(np.int32).max)
    checked = lambda label, f: None if f is None else lambda x: like(name, f"{label}(x)", f(x), b)
    return Problem(checked("A", apply), checked("M", precondition), b, x0, tol, atol, maxiter)  # pyright: ignore


def _is_array(value: Any) -> bool:
    return not callable(value) and (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))


def function_of(name: str, label: str, a: Any) -> Callable[[Any], Any]:
    """The function that an operator is, or the product with the matrix that it is.

    Raises:
        ShapeError: if the matrix is not square.
        ArgumentTypeError: if it is neither a function nor a matrix.
    """
    if callable(a):
        return a
    is_array = _is_array(a)
    if not is_array and (not hasattr(a, "__matmul__") or hasattr(a, "toarray")):
        hint = f"{label}.toarray()" if hasattr(a, "toarray") else f"lambda x: {label} @ x"
        raise ArgumentTypeError(name, f"{label} must be a function or a matrix", got=type(a).__name__, hint=hint)
    shape = tuple(getattr(a, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeError(name, f"{label} must be a square matrix", got=f"the shape {shape}")
    return (lambda x: tnp.dot(a, x)) if is_array else lambda x: operator.matmul(a, x)


def _check_rows(name: str, label: str, matrix: Any, b: Any) -> None:
    if matrix is None or callable(matrix):
        return
    if not isinstance(b, Array) or not 1 <= b.ndim <= 2 or b.shape[0] != matrix.shape[0]:
        got = repr(b.aval) if isinstance(b, Array) else f"a tree of {len(tree.leaves(b))} arrays"
        what = f"b must be an array with a row for each of the {matrix.shape[0]} rows of {label}"
        raise ShapeError(name, what, got=got, hint=f"a function for {label}")


def like(name: str, label: str, values: Any, b: Any) -> Any:
    """A tree with the structure, the shapes and the dtypes of the right-hand side.

    Raises:
        TreeError, ShapeError: if it has another structure or other shapes.
    """
    tree.check_same_structure(name, b, values, ("b", label))

    def cast(value: Any, example: Array) -> Array:
        value = tnp.asarray(value)
        if value.shape != example.shape:
            got = f"{value.aval} and {example.aval}"
            raise ShapeError(name, f"the arrays of {label} must have the shapes of those of b", got=got)
        return value if value.dtype == example.dtype else tnp.astype(value, example.dtype)

    return tree.map(cast, values, b)


def solution(iterate: Iteration, given: Problem, *, symmetric: bool) -> Any:
    """The solution of a system, with the derivatives of the equations.

    The transposed system is solved by the same iteration, with the transposed preconditioner.
    """
    solve = lambda matvec, b: _solved(iterate, given._replace(apply=matvec, b=b))

    def transpose_solve(vecmat: Any, b: Any) -> Any:
        turned = _transposed(given.precondition, b)
        return _solved(iterate, given._replace(apply=vecmat, precondition=turned, b=b, x0=None))

    if not sum(leaf.size for leaf in tree.leaves(given.b)):
        return given.b
    return lax.custom_linear_solve(given.apply, given.b, solve, transpose_solve, symmetric)


def _transposed(precondition: Callable | None, b: Any) -> Callable | None:
    if precondition is None:
        return None
    try:
        transpose = linear_transpose(precondition, b)
    except GradientError:  # such as a loop of unknown length; JAX takes the preconditioner as it is
        return precondition
    return lambda x: transpose(x)[0]


def _solved(iterate: Iteration, given: Problem) -> Any:
    """The solution of a system of trees by an iteration on vectors."""
    own, unravel = ravel_pytree(given.b)
    b = at_least_float32(own)
    vector_of = lambda x: at_least_float32(ravel_pytree(x)[0])
    tree_of = lambda x: unravel(tnp.astype(x, own.dtype))
    on_vectors = lambda f: None if f is None else lambda x: vector_of(f(tree_of(x)))
    apply, size = on_vectors(given.apply), norm(b)
    bound = tnp.astype(tnp.maximum(given.tol * size, given.atol), b.dtype)
    x, residual = tnp.zeros_like(b), b
    if given.x0 is not None:
        # If the right-hand side is 0, so is the solution; from elsewhere no residual would be small enough.
        x = tnp.where(size > 0, vector_of(given.x0), size)
        residual = b - apply(x)  # pyright: ignore[reportOptionalCall]
    system = System(apply, on_vectors(given.precondition), b, x, residual, bound, given.maxiter)  # pyright: ignore
    x, remaining = iterate(system)
    # An iteration ends where it meets NaN, at the first one even before it has moved.
    return tree_of(tnp.where(tnp.isnan(remaining), remaining, x))
