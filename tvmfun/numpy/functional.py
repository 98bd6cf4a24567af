"""Functions of functions: vectorization, and application along axes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tvmfun import dtypes, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy import elementwise
from tvmfun.numpy.creation import Shape, as_shape, asarray
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.ranges import indices
from tvmfun.numpy.shapes import Axes, broadcast_to, expand_dims, listed, moveaxis, normalize_axis, reshape
from tvmfun.ops import pointwise
from tvmfun.typing import DTypeLike

__all__ = ["apply_along_axis", "apply_over_axes", "fromfunction", "piecewise", "vectorize"]


_GROUP = r"\(\s*(?:\w+(?:\s*,\s*\w+)*)?\s*\)"
_SIGNATURE = re.compile(rf"\s*({_GROUP}(?:\s*,\s*{_GROUP})*)?\s*->\s*({_GROUP}(?:\s*,\s*{_GROUP})*)\s*")


def _parsed(signature: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The names of the core axes of each argument and each result."""
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        raise ArgumentError("vectorize", "a signature reads like '(m,n),(n)->(m)'", got=repr(signature))
    groups = ([re.findall(r"\w+", group) for group in re.findall(_GROUP, side or "")] for side in match.groups())
    first, second = ([tuple(names) for names in side] for side in groups)
    return first, second


def vectorize(pyfunc: Callable, *, excluded: Collection[int | str] = frozenset(), signature: str | None = None) -> Any:
    """Returns a function of arrays of any shape that applies ``pyfunc`` to their elements, or parts, at once.

    Args:
        pyfunc: a function of arrays.
        excluded: positions and names of arguments that are handed on as they are.
        signature: the last axes that ``pyfunc`` takes and returns, as in ``"(m,n),(n)->(m)"``; by default none, so
            that it is applied to scalars. Axes of one name have one size. The other axes broadcast.

    Raises:
        ArgumentError: for a signature that cannot be read, or that does not fit the arguments.
        ShapeError: if axes of one name have different sizes, or the other axes do not broadcast.

    Source: ``numpy.vectorize``; ``pyfunc`` is traced, once, as in ``jax.numpy.vectorize``.

    >>> dots = vectorize(lambda x, y: (x * y).sum(), signature="(n),(n)->()")
    >>> dots([[1, 2], [3, 4]], [1, 10])
    Array([21, 43], dtype=int32)
    """
    if not callable(pyfunc):
        raise ArgumentError("vectorize", "the first argument must be a function", got=repr(pyfunc))
    cores = _parsed(signature) if signature is not None else None

    @functools.wraps(pyfunc)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        mapped = [i for i in range(len(args)) if i not in excluded]
        names = [name for name in kwargs if name not in excluded]
        if names and cores is not None:
            hint = "positional arguments, or excluded="
            raise ArgumentError("vectorize", "a signature is for positional arguments", got=", ".join(names), hint=hint)

        def call(*values: Any) -> Any:
            full = list(args)
            for i, value in zip(mapped, values, strict=False):
                full[i] = value
            return pyfunc(*full, **(kwargs | dict(zip(names, values[len(mapped) :], strict=True))))

        values = [asarray(args[i]) for i in mapped] + [asarray(kwargs[name]) for name in names]
        return _mapped(call, values, cores)

    return vectorized


def _mapped(function: Callable, values: list[Array], cores: Any) -> Any:
    """Applies a function of core axes over all leading ones, which broadcast."""
    from tvmfun.transforms import vmap

    wanted = cores[0] if cores else [()] * len(values)
    if len(wanted) != len(values):
        raise ArgumentError("vectorize", f"the signature has {len(wanted)} arguments", got=str(len(values)))
    sizes: dict[str, Any] = {}
    loops = []
    for x, names in zip(values, wanted, strict=True):
        if x.ndim < len(names):
            raise ShapeError("vectorize", f"an argument must have the axes {names}", got=repr(x.aval))
        loops.append(x.shape[: x.ndim - len(names)])
        for name, size in zip(names, x.shape[x.ndim - len(names) :], strict=True):
            if sizes.setdefault(name, size) != size:
                raise ShapeError("vectorize", f"axis {name!r} has size {sizes[name]}", got=repr(x.aval))
    common = pointwise.broadcast_shapes("vectorize", loops)
    # An axis that does not go through all indices is not mapped over.
    present = [[k >= 0 and loop[k] == size for k, size in enumerate(common, len(loop) - len(common))] for loop in loops]
    values = [
        reshape(x, tuple(size for size, here in zip(common, mine, strict=True) if here) + x.shape[len(loop) :])
        for x, mine, loop in zip(values, present, loops, strict=True)
    ]
    result = _checked(function, cores[1], sizes) if cores else function
    for k in reversed(range(len(common))):
        axes = tuple(0 if mine[k] else None for mine in present)
        if any(axis is not None for axis in axes):
            result = vmap(result, in_axes=axes)
    return result(*values)


def _checked(function: Callable, wanted: list[tuple[str, ...]], sizes: dict[str, Any]) -> Callable:
    """The function, whose results must have the axes that the signature says."""

    def checked(*values: Any) -> Any:
        result = function(*values)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(wanted):
            raise ArgumentError("vectorize", f"the signature has {len(wanted)} results", got=str(len(results)))
        known = dict(sizes)
        for x, names in zip(map(asarray, results), wanted, strict=True):
            if x.ndim != len(names) or any(known.setdefault(n, s) != s for n, s in zip(names, x.shape, strict=True)):
                raise ShapeError("vectorize", f"a result must have the axes {names}", got=repr(x.aval))
        return result

    return checked


def apply_along_axis(func1d: Callable, axis: int, arr: NestedArrayLike, *args: Any, **kwargs: Any) -> Any:
    """Returns the results of a function of vectors for all vectors along an axis, which results replace.

    Args:
        func1d: a function of a vector, and of ``args`` and ``kwargs``.
        axis: the axis.
        arr: the array.
        args: more arguments for the function.
        kwargs: keyword arguments for the function.

    >>> apply_along_axis(lambda row: row[0] + row[-1], 1, [[1, 2, 3], [4, 5, 6]])
    Array([ 4, 10], dtype=int32)
    """
    from tvmfun.transforms import vmap

    arr = asarray(arr)
    axis = normalize_axis("apply_along_axis", axis, arr.ndim)
    function = lambda row: func1d(row, *args, **kwargs)
    if arr.ndim == 1:
        return function(arr)
    rows = moveaxis(arr, axis, -1)
    lead = rows.shape[:-1]
    result = vmap(function)(reshape(rows, (-1, rows.shape[-1])))

    def placed(y: Array) -> Array:
        own = y.ndim - 1
        y = reshape(y, (*lead, *y.shape[1:]))
        return moveaxis(y, tuple(range(len(lead), len(lead) + own)), tuple(range(axis, axis + own)))

    return tree.map(placed, result)


def apply_over_axes(func: Callable, a: NestedArrayLike, axes: Axes) -> Array:
    """Returns the result of a function applied over one axis after the other; they stay, with size 1.

    Args:
        func: ``(array, axis) -> array``, which keeps the number of axes, or drops the one.
        a: the array.
        axes: one axis or several.

    >>> apply_over_axes(lambda x, axis: x.sum(axis), [[1, 2], [3, 4]], (0, 1))
    Array([[10]], dtype=int32)
    """
    a = asarray(a)
    for axis in listed(axes):
        axis = normalize_axis("apply_over_axes", axis, a.ndim)
        result = asarray(func(a, axis))
        if result.ndim == a.ndim - 1:
            result = expand_dims(result, axis)
        if result.ndim != a.ndim:
            raise ShapeError(
                "apply_over_axes", f"the result must have {a.ndim} axes or one less", got=repr(result.aval)
            )
        a = result
    return a


def fromfunction(function: Callable, shape: Shape, *, dtype: DTypeLike = float, **kwargs: Any) -> Any:
    """Returns the results of a function of the indices of all elements of a shape.

    Args:
        function: of as many scalars as there are axes; it is traced once for all elements.
        shape: the sizes of the axes.
        dtype: of the indices.
        kwargs: keyword arguments for the function.

    >>> fromfunction(lambda i, j: 10 * i + j, (2, 3), dtype=int)
    Array([[ 0,  1,  2],
           [10, 11, 12]], dtype=int32)
    """
    sizes: Sequence[int] = as_shape("fromfunction", shape)
    kind = dtypes.canonical(dtype)
    grid = indices(tuple(sizes), dtypes.int32)
    return _mapped(functools.partial(function, **kwargs), [astype(grid[i], kind) for i in range(len(sizes))], None)


def piecewise(x: NestedArrayLike, condlist: Sequence[Any], funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Returns the function of the last condition that holds of each element.

    Args:
        x: the array.
        condlist: arrays of bools that broadcast to ``x``.
        funclist: a function or a number for each condition, and perhaps one more for where none holds; by default 0.
            Each is applied to all of ``x``, and its gradient is NaN if it has an infinite one anywhere.
        args: more arguments for the functions.
        kw: keyword arguments for the functions.

    >>> piecewise([-1.0, 2.0], [[True, False]], [0, lambda x: x * x])
    Array([0., 4.], dtype=float32)
    """
    x = asarray(x)
    condlist = list(condlist)
    funclist = list(funclist)
    if len(funclist) == len(condlist) + 1:
        default = funclist.pop()
    elif len(funclist) == len(condlist):
        default = 0
    else:
        got = f"{len(funclist)} for {len(condlist)}"
        raise ArgumentError("piecewise", "there must be a function for each condition, or one more", got=got)

    def applied(function: Any) -> Array:
        value = function(x, *args, **kw) if callable(function) else function
        return broadcast_to(asarray(value, x.dtype), x.shape)

    result = applied(default)
    for condition, function in zip(condlist, funclist, strict=True):
        result = elementwise.where(asarray(condition), applied(function), result)
    return result
