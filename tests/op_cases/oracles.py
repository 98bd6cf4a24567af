"""JAX's function for each op, and calls with drawn shapes, dtypes and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from jax import lax

Call = tuple[tuple[np.ndarray, ...], dict[str, Any]]
Shape = tuple[int, ...]


class Draw:
    """Draws shapes, axes and arrays of one dtype; ``plain`` shapes are not drawn."""

    def __init__(self, draw: Callable, dtype: np.dtype, plain: bool = False) -> None:
        self.draw, self.dtype, self.plain = draw, dtype, plain
        self.rng = np.random.default_rng(draw(st.integers(0, 2**31)))

    def choose(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def shape(self, low: int = 0, high: int = 3, smallest: int = 0) -> Shape:
        if self.plain:
            return (2, 3)[:high]
        sizes = st.sampled_from([n for n in (3, 1, 2, 4, 0) if n >= smallest])
        return tuple(self.draw(st.lists(sizes, min_size=low, max_size=high)))

    def shapes(self, count: int) -> tuple[Shape, ...]:
        """Shapes that broadcast with each other."""
        if self.plain:
            return ((2, 3), (3,), (2, 1))[:count]
        shapes = mutually_broadcastable_shapes(num_shapes=count, max_dims=3, min_side=0, max_side=4)
        return self.draw(shapes).input_shapes

    def axes(self, rank: int) -> Shape:
        return tuple(sorted(self.draw(st.permutations(range(rank)))[: self.draw(st.integers(0, rank))]))

    def reals(self, shape: Shape, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Numbers between two bounds, of float, integer or bool dtypes."""
        if self.dtype.kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        if self.dtype.kind in "iu":
            low, high = (int(np.ceil(b)) for b in ((max(low, 0) if self.dtype.kind == "u" else low), high))
            return self.rng.integers(low, max(high, low + 1) + 1, shape).astype(self.dtype)
        return np.asarray(self.rng.uniform(low, high, shape)).astype(self.dtype)

    def apart(self, shape: Shape, by: float = 0.3) -> np.ndarray:
        """Numbers that are all different and away from whole ones, where the dtype has them."""
        count = int(np.prod(shape))
        ranks = self.rng.permutation(count).reshape(shape)
        if self.dtype.kind in "biu":
            return (ranks - (count // 2 if self.dtype.kind == "i" else 0)).astype(self.dtype)
        return np.asarray((ranks - count // 2 + by) / 3).astype(self.dtype)

    def indices(self, shape: Shape, low: int, high: int) -> np.ndarray:
        return np.asarray(self.rng.integers(low, high + 1, shape), np.int32)


@dataclass(frozen=True)
class Oracle:
    """An op's function in JAX, called like the op, and how to draw a call.

    Args:
        function: the function in JAX.
        call: draws arguments and parameters.
        view: maps a result to an invariant, since decompositions may choose signs.
        special: numbers where this function is special, besides those where every function is tried.
        params: the parameters to try them with; ops that are not pointwise are tried with rows of such numbers, along
            axis 1.
        differs: where derivatives at special points may differ from JAX: the reason, and a predicate of the arguments.
        value_differs: the same for values, and for the derivatives there.
    """

    function: Callable[..., Any]
    call: Callable[[Draw], Call]
    view: Callable[[Any], Any] = lambda result: result
    special: tuple[float, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    differs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    value_differs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def exempt(self, which: str, *arguments: np.ndarray) -> Any:
        """Where the ``value``, or a derivative, may differ from JAX."""
        rules = [*self.value_differs.values(), *(self.differs.values() if which != "value" else ())]
        return np.logical_or.reduce([rule(*arguments) for rule in rules], axis=0)


def unary(function: Callable, low: float = -2.0, high: float = 2.0, **special: Any) -> Oracle:
    return Oracle(function, lambda d: ((d.reals(d.shape(), low, high),), {}), **special)


def kinked(function: Callable) -> Oracle:
    return Oracle(function, lambda d: ((d.apart(d.shape()),), {}))


def binary(function: Callable, low: float = -2.0, high: float = 2.0, **special: Any) -> Oracle:
    """Two arrays; the second between bounds, the first anything."""

    def call(d: Draw) -> Call:
        left, right = d.shapes(2)
        return (d.reals(left), d.reals(right, low, high)), {}

    return Oracle(function, call, **special)


def compared(function: Callable, **special: Any) -> Oracle:
    """Two arrays without ties."""

    def call(d: Draw) -> Call:
        left, right = d.shapes(2)
        return (d.apart(left), d.apart(right, by=0.45)), {}

    return Oracle(function, call, **special)


def _power(d: Draw) -> Call:
    left, right = d.shapes(2)
    return (d.reals(left, 0.4, 2.0), d.reals(right, 0 if d.dtype.kind in "iu" else -2, 2)), {}


def _shift(d: Draw) -> Call:
    left, right = d.shapes(2)
    return (d.reals(left, -99, 99), d.reals(right, 0, 7)), {}


def _special(d: Draw) -> Call:
    x, strange = d.reals(d.shape()), d.choose(np.nan, np.inf, -np.inf)
    if d.dtype.kind not in "biu":
        x = np.where(d.rng.random(x.shape) < 0.5, x, x.dtype.type(strange))
    return (x,), {}


def _where(d: Draw) -> Call:
    condition, left, right = d.shapes(3)
    return (d.rng.random(condition) < 0.5, d.reals(left), d.reals(right)), {}


def _astype(d: Draw) -> Call:
    return (d.reals(d.shape(), 0, 9),), {"dtype": d.choose("float64", "float32", "int32", "uint8", "bool", "float16")}


def _bitcast(d: Draw) -> Call:
    kinds = {1: ("int8", "uint8"), 2: ("int16", "uint16"), 4: ("int32", "uint32", "float32"), 8: ("int64", "uint64")}
    return (d.reals(d.shape()),), {"dtype": d.choose(*kinds[d.dtype.itemsize])}


# -- shapes ----------------------------------------------------------------------------------------------------


def _reshape(d: Draw) -> Call:
    shape = d.shape()
    size = int(np.prod(shape))
    last = d.choose(*(n for n in (1, 2, 3, 4) if size % n == 0))
    return (d.reals(shape),), {"shape": d.choose((size,), (size // last, last), (last, 1, size // last))}


def _broadcast_to(d: Draw) -> Call:
    shape, other = d.shapes(2)
    full = np.broadcast_shapes(shape, other)
    return (d.reals(shape),), {"shape": full}


def _permute_dims(d: Draw) -> Call:
    shape = d.shape()
    return (d.reals(shape),), {"axes": tuple(d.draw(st.permutations(range(len(shape)))))}


def _slice(d: Draw) -> Call:
    shape = d.shape()
    start = tuple(d.draw(st.integers(0, n)) for n in shape)
    stop = tuple(d.draw(st.integers(s, n)) for s, n in zip(start, shape, strict=True))
    return (d.reals(shape),), {"start": start, "stop": stop, "step": tuple(d.choose(1, 2, 3) for _ in shape)}


def _pad(d: Draw) -> Call:
    shape = d.shape(smallest=2)
    low, high, interior = (tuple(d.choose(*values) for _ in shape) for values in ((0, 1, -1), (0, 2, -1), (0, 1, 2)))
    return (d.reals(shape), d.reals(())), {"low": low, "high": high, "interior": interior}


def _flip(d: Draw) -> Call:
    shape = d.shape()
    return (d.reals(shape),), {"axes": d.axes(len(shape))}


def _concat(d: Draw) -> Call:
    shape = d.shape(low=1)
    axis = d.draw(st.integers(0, len(shape) - 1))
    parts = [(*shape[:axis], d.choose(0, 1, 2, 3), *shape[axis + 1 :]) for _ in range(d.choose(1, 2, 3))]
    return tuple(d.reals(part) for part in parts), {"axis": axis}


# -- reductions and running results ------------------------------------------------------------------------------


def reduction(
    function: Callable, make: Callable[[Draw, Shape], np.ndarray], smallest: int = 0, **special: Any
) -> Oracle:
    def call(d: Draw) -> Call:
        shape = d.shape(smallest=smallest)
        return (make(d, shape),), {"axis": d.axes(len(shape))}

    return Oracle(function, call, params={"axis": (1,)}, **special)


def _arg(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    return (d.apart(shape),), {"axis": d.draw(st.integers(0, len(shape) - 1))}


def running(
    function: Callable,
    make: Callable[[Draw, Shape], np.ndarray],
    differs: Mapping | None = None,
    value_differs: Mapping | None = None,
    **params: tuple,
) -> Oracle:
    def call(d: Draw) -> Call:
        shape = d.shape(low=1)
        chosen = {key: d.choose(*values) for key, values in params.items()}
        return (make(d, shape),), {
            "axis": d.draw(st.integers(0, len(shape) - 1)),
            "reverse": d.choose(True, False),
            **chosen,
        }

    first = {key: values[0] for key, values in params.items()}
    return Oracle(
        function,
        call,
        params={"axis": 1, "reverse": False, **first},
        differs=differs or {},
        value_differs=value_differs or {},
    )


def cum_arg_extremum(x: Any, axis: int, reverse: bool, largest: bool) -> Any:
    place = lax.broadcasted_iota("int32", x.shape, axis)

    def better(a: tuple, b: tuple) -> tuple:
        keep = (a[0] >= b[0]) if largest else (a[0] <= b[0])
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    return lax.associative_scan(better, (x, place), axis=axis, reverse=reverse)[1]


def linear_recurrence(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    def join(left: tuple, right: tuple) -> tuple:
        return left[0] * right[0], left[1] * right[0] + right[1]

    return lax.associative_scan(join, (a, b), axis=axis, reverse=reverse)[1]


def _recurrence(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    params = {"axis": d.draw(st.integers(0, len(shape) - 1)), "reverse": d.choose(True, False)}
    return (d.reals(shape), d.reals(shape)), params


# -- indexing ----------------------------------------------------------------------------------------------------


def _indices(d: Draw, sizes: Shape, lead: Shape, reach: int) -> np.ndarray:
    columns = [d.indices(lead, -reach, n - 1 + reach) for n in sizes]
    return np.stack(columns, axis=-1) if columns else np.zeros((*lead, 0), np.int32)


def gather(x: Any, indices: Any, mode: str, batch: int = 0) -> Any:
    if batch:
        return jax.vmap(lambda x, indices: gather(x, indices, mode, batch - 1))(x, indices)
    at = tuple(indices[..., k] for k in range(indices.shape[-1]))
    if mode == "in_bounds":
        at = tuple(jnp.where(i < 0, n, i) for i, n in zip(at, x.shape, strict=False))
        outside = jnp.any(jnp.stack([i >= n for i, n in zip(at, x.shape, strict=False)]), axis=0)
        clamped = gather(x, indices, "clip")
        outside = outside.reshape(outside.shape + (1,) * (clamped.ndim - outside.ndim))
        return jnp.where(outside, lax.stop_gradient(clamped), clamped)
    if mode == "clip":
        at = tuple(jnp.clip(i, 0, n - 1) for i, n in zip(at, x.shape, strict=False))
        return x[at]
    inside = jnp.ones(indices.shape[:-1], bool)
    for i, n in zip(at, x.shape, strict=False):
        inside &= (i >= 0) & (i < n)
    inside = inside.reshape(inside.shape + (1,) * (x.ndim - len(at)))
    return jnp.where(inside, gather(x, indices, "clip"), jnp.zeros((), x.dtype))


def _gather(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    batch = d.draw(st.integers(0, len(shape) - 1))
    indexed = d.draw(st.integers(1, len(shape) - batch))
    lead = (*shape[:batch], *d.shape(high=2))
    indices = _indices(d, shape[batch : batch + indexed], lead, d.choose(0, 2))
    return (d.reals(shape), indices), {"mode": d.choose("clip", "fill", "in_bounds"), "batch": batch}


def scatter(
    x: Any, indices: Any, updates: Any, mode: str, batch: int = 0, unique: bool = False, size: Shape | None = None
) -> Any:
    if size is not None:
        x = jnp.full(size, x)
    if batch:
        return jax.vmap(lambda *rows: scatter(*rows, mode, batch - 1, unique))(x, indices, updates)
    at = []
    for k, n in enumerate(x.shape[: indices.shape[-1]]):
        column = indices[..., k]
        at.append(jnp.where(column < 0, n, column))  # in JAX a negative index counts from the end
    return getattr(x.at[tuple(at)], {"mul": "multiply"}.get(mode, mode))(updates, mode="drop", unique_indices=unique)


def _scatter(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    batch = d.draw(st.integers(0, len(shape) - 1))
    indexed = d.draw(st.integers(1, len(shape) - batch))
    mode = d.choose("add", "set", "min", "max", "mul") if d.dtype.kind != "b" else "set"
    # Unique indices: `set` with a repeated one is undefined, and JAX refuses the derivative of such products.
    unique = mode in ("set", "mul")
    if unique:
        sizes, lead = shape[batch : batch + indexed], shape[:batch]
        total = int(np.prod(sizes))
        count = d.draw(st.integers(0, total))
        flat = np.stack([d.rng.permutation(total)[:count] for _ in range(int(np.prod(lead)))]).reshape(*lead, count)
        indices = np.stack(np.unravel_index(flat, sizes), axis=-1).astype(np.int32)
    else:
        indices = _indices(d, shape[batch : batch + indexed], (*shape[:batch], *d.shape(high=2)), d.choose(0, 2))
    updates = (*indices.shape[:-1], *shape[batch + indexed :])
    params = {"mode": mode, "batch": batch, "unique": unique}
    if d.choose(False, True):
        return (d.reals(()), indices, d.apart(updates, by=0.45)), {**params, "size": shape}
    return (d.apart(shape), indices, d.apart(updates, by=0.45)), params


def dynamic_slice(x: Any, *starts: Any, sizes: Shape) -> Any:
    if starts and starts[0].ndim:
        return jax.vmap(lambda x, *starts: dynamic_slice(x, *starts, sizes=sizes))(x, *starts)
    return lax.dynamic_slice(x, [jnp.maximum(start, 0) for start in starts], sizes)


def dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    if starts and starts[0].ndim:
        return jax.vmap(dynamic_update_slice)(x, update, *starts)
    return lax.dynamic_update_slice(x, update, [jnp.maximum(start, 0) for start in starts])


def _begins(d: Draw) -> tuple[Shape, Shape, Shape, tuple[np.ndarray, ...]]:
    """Common axes, an array's and a part's others, and where the part begins."""
    shape, common = d.shape(low=1, smallest=1), d.choose((), (2,), (3,))
    sizes = tuple(d.draw(st.integers(0, n)) for n in shape)
    return common, shape, sizes, tuple(d.indices(common, -2, n + 1) for n in shape)


def _dynamic_slice(d: Draw) -> Call:
    common, shape, sizes, starts = _begins(d)
    return (d.reals((*common, *shape)), *starts), {"sizes": sizes}


def _dynamic_update_slice(d: Draw) -> Call:
    common, shape, sizes, starts = _begins(d)
    return (d.reals((*common, *shape)), d.reals((*common, *sizes)), *starts), {}


def searchsorted(x: Any, values: Any, side: str, batch: int = 0) -> Any:
    if batch:
        return jax.vmap(lambda x, values: searchsorted(x, values, side, batch - 1))(x, values)
    return jnp.searchsorted(x, values, side)


def _top_k(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    return (d.reals(shape),), {"k": d.choose(*range(1, shape[-1] + 1))}


def _searchsorted(d: Draw) -> Call:
    common = d.choose((), (2,))
    x, values = d.reals((*common, d.choose(5, 1, 0)), -9, 9), d.reals((*common, *d.shape(high=2)), -9, 9)
    return (np.sort(x), values), {"side": d.choose("left", "right"), "batch": len(common)}


# -- windows and products ----------------------------------------------------------------------------------------


def _window(d: Draw, shape: Shape) -> dict[str, Any]:
    """Windows none of which is entirely in the padding."""
    window = tuple(d.draw(st.integers(1, min(n, 3))) for n in shape)
    padding = tuple((d.draw(st.integers(0, k - 1)), d.draw(st.integers(0, k - 1))) for k in window)
    return {"window": window, "stride": tuple(d.choose(1, 2, 3) for _ in shape), "padding": padding}


def _pool(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    return (d.apart(shape),), _window(d, shape)


def window_max(x: Any, window: Shape, stride: Shape, padding: tuple) -> Any:
    least = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype != bool and jnp.iinfo(x.dtype).min
    return lax.reduce_window(x, np.asarray(least, x.dtype), lax.max, window, stride, padding)


def window_sum(x: Any, window: Shape, stride: Shape, padding: tuple) -> Any:
    return lax.reduce_window(x, np.zeros((), x.dtype), lax.add, window, stride, padding)


def _sources(offset: Any, window: Shape, stride: Shape, padding: tuple) -> tuple:
    """The index in the array of the element at each window's ``offset``."""
    inner = jnp.unravel_index(offset, window)
    along = [lax.broadcasted_iota("int32", offset.shape, axis) for axis in range(offset.ndim)]
    return tuple(i * s + o - p[0] for i, s, o, p in zip(along, stride, inner, padding, strict=True))


def window_take(x: Any, offset: Any, **params: Any) -> Any:
    return x[_sources(offset, **params)]


def window_put(g: Any, offset: Any, size: Shape, **params: Any) -> Any:
    return jnp.zeros(size, g.dtype).at[_sources(offset, **params)].add(g)


def window_argmax(x: Any, out: Any, window: Shape, stride: Shape, padding: tuple) -> Any:
    count = int(np.prod(window))
    found = jnp.full(out.shape, count, "int32")
    padded = jnp.pad(x, padding, constant_values=-np.inf if x.dtype.kind in "fV" else 0)
    for offset in reversed(range(count)):
        start = np.unravel_index(offset, window)
        stop = [o + (n - 1) * s + 1 for o, n, s in zip(start, out.shape, stride, strict=True)]
        found = jnp.where(lax.slice(padded, start, stop, stride) == out, offset, found)
    return found


def _offsets(d: Draw, sizes: Shape) -> tuple[np.ndarray, dict[str, Any]]:
    """The indices of the largest elements of some windows."""
    params = _window(d, sizes)
    x = Draw(d.draw, np.dtype("float64")).apart(sizes)
    return np.asarray(window_argmax(x, window_max(x, **params), **params)), params


def _window_argmax(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    params, x = _window(d, shape), d.apart(shape)
    return (x, np.asarray(window_max(jnp.asarray(x), **params)).astype(x.dtype)), params


def _window_take(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    offset, params = _offsets(d, shape)
    return (d.reals(shape), offset), params


def _window_put(d: Draw) -> Call:
    shape = d.shape(low=1, smallest=1)
    offset, params = _offsets(d, shape)
    return (d.reals(offset.shape), offset), {"size": shape, **params}


def _spatial(rank: int) -> tuple[str, str, str]:
    letters = "xyz"[:rank]
    return f"N{letters}C", f"{letters}IO", f"N{letters}C"


def conv(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, kernel_dilation: Any, groups: int) -> Any:
    spec = lax.conv_dimension_numbers(x.shape, w.shape, _spatial(len(stride)))
    return lax.conv_general_dilated(x, w, stride, padding, dilation, kernel_dilation, spec, groups)


def conv_kernel_gradient(x: Any, g: Any, kernel: Shape, **params: Any) -> Any:
    w = jnp.zeros((*kernel, x.shape[-1] // params["groups"], g.shape[-1]), x.dtype)
    return jax.vjp(lambda w: conv(x, w, **params), w)[1](g)[0]


def _convolution(d: Draw) -> tuple[Shape, Shape, dict[str, Any]]:
    rank = d.choose(1, 2, 3)
    groups, channels, features = d.choose(1, 2), d.choose(1, 2), d.choose(1, 2)
    kernel = tuple(d.choose(1, 2, 3) for _ in range(rank))
    sizes = tuple(d.draw(st.integers(5, 6)) for _ in kernel)
    pick = lambda *values: tuple(d.choose(*values) for _ in kernel)
    params = {
        "stride": pick(1, 2),
        "padding": pick((0, 0), (1, 0), (1, 2), (0, -1)),
        "dilation": pick(1, 2),
        "kernel_dilation": pick(1, 2),
        "groups": groups,
    }
    return (2, *sizes, channels * groups), (*kernel, channels, features * groups), params


def _conv(d: Draw) -> Call:
    x, w, params = _convolution(d)
    return (d.reals(x), d.reals(w)), params


def _conv_kernel_gradient(d: Draw) -> Call:
    x, w, params = _convolution(d)
    out = jax.eval_shape(lambda x, w: conv(x, w, **params), jnp.zeros(x), jnp.zeros(w))
    return (d.reals(x), d.reals(out.shape)), {"kernel": w[:-2], **params}


def dot_general(x: Any, y: Any, contract: tuple, batch: tuple) -> Any:
    return lax.dot_general(x, y, (contract, batch), preferred_element_type=x.dtype)


def _dot_general(d: Draw) -> Call:
    shared, summed, left, right = (d.shape(high=2) for _ in range(4))
    arguments, indices = [], []
    for own in (left, right):
        full = (*shared, *summed, *own)
        order = d.draw(st.permutations(range(len(full))))
        arguments.append(d.reals(tuple(full[i] for i in order)))
        indices.append([order.index(i) for i in range(len(full))])
    batch = tuple(tuple(p[: len(shared)]) for p in indices)
    contract = tuple(tuple(p[len(shared) : len(shared) + len(summed)]) for p in indices)
    return tuple(arguments), {"contract": contract, "batch": batch}


# -- matrices ----------------------------------------------------------------------------------------------------


def _matrix(d: Draw, rows: int, columns: int) -> np.ndarray:
    """Matrices with singular values that are apart."""
    lead = d.choose((), (2,))
    least = min(rows, columns)
    q, _ = np.linalg.qr(d.rng.normal(size=(*lead, rows, least)))
    p, _ = np.linalg.qr(d.rng.normal(size=(*lead, columns, least)))
    return (q * (1 + np.arange(least)) @ np.swapaxes(p, -1, -2)).astype(d.dtype)


def _square(d: Draw) -> np.ndarray:
    n = d.choose(3, 2, 1, 4)
    return _matrix(d, n, n)


def _rectangle(d: Draw) -> np.ndarray:
    return _matrix(d, d.choose(3, 2, 4), d.choose(3, 1, 2))


def _positive(d: Draw) -> Call:
    x = np.asarray(_square(d), np.float64)
    return ((x @ np.swapaxes(x, -1, -2)).astype(d.dtype),), {}


def _symmetric(d: Draw) -> Call:
    x = np.asarray(_square(d), np.float64)
    return ((x + np.swapaxes(x, -1, -2) + np.diag(5 * np.arange(x.shape[-1]))).astype(d.dtype),), {}


def _triangular(d: Draw) -> Call:
    a = _square(d)
    columns = (*a.shape[:-1], d.choose(2, 1, 0))
    flags = ("lower", "transpose_a", "unit_diagonal")
    return (a + np.eye(a.shape[-1], dtype=a.dtype) * 3, d.reals(columns)), {f: d.choose(True, False) for f in flags}


def _eigh(d: Draw) -> Call:
    return _symmetric(d)[0], {"vectors": d.choose(True, False)}


def _svd(d: Draw) -> Call:
    x = _rectangle(d)
    vectors = d.choose(True, False)
    return (x,), {"full": vectors and x.shape[-1] == x.shape[-2] and d.choose(True, False), "vectors": vectors}


def triangular_solve(a: Any, b: Any, **flags: bool) -> Any:
    return lax.linalg.triangular_solve(a, b, left_side=True, **flags)


def cholesky(a: Any) -> Any:
    """Only the lower triangle is read, also in derivatives."""
    lower = jnp.tril(a)
    return lax.linalg.cholesky(lower + jnp.swapaxes(jnp.tril(a, -1), -1, -2), symmetrize_input=False)


def eigh(a: Any, vectors: bool) -> Any:
    full = jnp.tril(a) + jnp.swapaxes(jnp.tril(a, -1), -1, -2)
    columns, values = lax.linalg.eigh(full, symmetrize_input=False)
    return (values, columns) if vectors else values


def svd(a: Any, full: bool, vectors: bool) -> Any:
    u, s, vt = lax.linalg.svd(a, full_matrices=full)
    return (u, s, vt) if vectors else s


def without_signs(found: Any) -> Any:
    """The squares of vectors, whose signs are arbitrary; values as they are."""
    if not isinstance(found, tuple):
        return found
    values = min(found, key=lambda part: part.ndim)
    return tuple(part if part is values else part * part for part in found)


def has_ties_or_nan(x: np.ndarray) -> np.ndarray:
    ordered = np.sort(x, -1)
    return np.isnan(x).any(-1) | (ordered[..., 1:] == ordered[..., :-1]).any(-1)


FIRST_OF_EQUALS = {
    "the first of equals gets the whole derivative, in JAX each a part; so does NaN": has_ties_or_nan,
}

_NEXT_QUOTIENT = {
    "the factor of the derivative is the quotient that the value belongs to; JAX's may be the next one": (
        lambda x, y: np.abs(x) >= 100 * np.abs(y)
    )
}

ORACLES: dict[str, Oracle] = {
    "add": binary(jnp.add),
    "subtract": binary(jnp.subtract),
    "multiply": binary(jnp.multiply),
    "divide": binary(jnp.divide, 0.5),
    "floor_divide": binary(jnp.floor_divide, 0.7),
    "remainder": binary(
        jnp.remainder,
        0.7,
        differs=_NEXT_QUOTIENT,
    ),
    "power": Oracle(jnp.power, _power),
    "negative": unary(jnp.negative),
    "abs": kinked(jnp.abs),
    "sign": kinked(jnp.sign),
    "maximum": compared(jnp.maximum),
    "minimum": compared(jnp.minimum),
    "relu": kinked(jax.nn.relu),
    "exp": unary(jnp.exp),
    "expm1": unary(jnp.expm1),
    "log": unary(jnp.log, 0.3),
    "log1p": unary(jnp.log1p, -0.6),
    "sqrt": unary(jnp.sqrt, 0.3),
    "rsqrt": unary(lax.rsqrt, 0.3),
    "sin": unary(jnp.sin),
    "cos": unary(jnp.cos),
    "tanh": unary(jnp.tanh),
    "sigmoid": unary(jax.nn.sigmoid),
    "erf": unary(lax.erf),
    "erf_inv": unary(lax.erf_inv, -0.9, 0.9, special=(1.0, -1.0)),
    "floor": kinked(jnp.floor),
    "ceil": kinked(jnp.ceil),
    "round": kinked(jnp.round),
    "trunc": kinked(jnp.trunc),
    **{name: binary(getattr(jnp, name)) for name in ("equal", "not_equal", "less", "less_equal")},
    **{name: binary(getattr(jnp, name)) for name in ("greater", "greater_equal")},
    **{name: binary(getattr(jnp, name), -99, 99) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "bitwise_not": unary(jnp.bitwise_not, -99, 99),
    "left_shift": Oracle(jnp.left_shift, _shift),
    "right_shift": Oracle(jnp.right_shift, _shift),
    "isnan": Oracle(jnp.isnan, _special),
    "isfinite": Oracle(jnp.isfinite, _special),
    "where": Oracle(jnp.where, _where),
    "astype": Oracle(lambda x, dtype: x.astype(dtype), _astype),
    "bitcast": Oracle(lambda x, dtype: lax.bitcast_convert_type(x, dtype), _bitcast),
    "stop_gradient": unary(lax.stop_gradient),
    "barrier": unary(lambda x: x),
    "name": Oracle(lambda x, name: x, lambda d: ((d.reals(d.shape()),), {"name": "hidden"})),
    "reshape": Oracle(jnp.reshape, _reshape),
    "broadcast_to": Oracle(jnp.broadcast_to, _broadcast_to),
    "permute_dims": Oracle(jnp.transpose, _permute_dims),
    "slice": Oracle(lambda x, start, stop, step: lax.slice(x, start, stop, step), _slice),
    "pad": Oracle(lambda x, v, low, high, interior: lax.pad(x, v, list(zip(low, high, interior, strict=True))), _pad),
    "flip": Oracle(lambda x, axes: jnp.flip(x, axes), _flip),
    "concat": Oracle(lambda *xs, axis: jnp.concatenate(xs, axis), _concat),
    "sum": reduction(lambda x, axis: jnp.sum(x, axis, dtype=x.dtype), Draw.reals),
    "prod": reduction(lambda x, axis: jnp.prod(x, axis, dtype=x.dtype), Draw.reals),
    "max": reduction(jnp.max, Draw.apart, smallest=1),
    "min": reduction(jnp.min, Draw.apart, smallest=1),
    "argmax": Oracle(jnp.argmax, _arg),
    "argmin": Oracle(jnp.argmin, _arg),
    "cumsum": running(lax.cumsum, Draw.reals),
    "cumprod": running(
        lax.cumprod, Draw.reals, {"zeros times infinities, in another order": lambda x: np.isinf(x).any(-1)}
    ),
    "cumlogsumexp": running(
        lax.cumlogsumexp,
        Draw.reals,
        {"at an infinity JAX's derivative is exp(x) or 1, where the limit is 0": lambda x: np.isposinf(x).any(-1)},
    ),
    "cummax": running(lax.cummax, Draw.apart, FIRST_OF_EQUALS),
    "cummin": running(lax.cummin, Draw.apart, FIRST_OF_EQUALS),
    "cum_arg_extremum": running(
        cum_arg_extremum,
        Draw.apart,
        value_differs={"the first NaN stays; it is compared like a number here": lambda x: np.isnan(x).any(-1)},
        largest=(True, False),
    ),
    "linear_recurrence": Oracle(linear_recurrence, _recurrence),
    "gather": Oracle(gather, _gather),
    "scatter": Oracle(scatter, _scatter),
    "dynamic_slice": Oracle(dynamic_slice, _dynamic_slice),
    "dynamic_update_slice": Oracle(dynamic_update_slice, _dynamic_update_slice),
    "argsort": Oracle(lambda x: jnp.argsort(x, axis=-1, stable=True), lambda d: ((d.reals(d.shape(low=1)),), {})),
    "top_k_indices": Oracle(lambda x, *, k: lax.top_k(x, k)[1], _top_k),
    "searchsorted": Oracle(searchsorted, _searchsorted),
    "conv": Oracle(conv, _conv),
    "conv_kernel_gradient": Oracle(conv_kernel_gradient, _conv_kernel_gradient),
    "window_max": Oracle(window_max, _pool),
    "window_sum": Oracle(window_sum, _pool),
    "window_argmax": Oracle(window_argmax, _window_argmax),
    "window_put": Oracle(window_put, _window_put),
    "window_take": Oracle(window_take, _window_take),
    "dot_general": Oracle(dot_general, _dot_general),
    "triangular_solve": Oracle(triangular_solve, _triangular),
    "cholesky": Oracle(cholesky, _positive),
    "lu": Oracle(lax.linalg.lu, lambda d: ((_rectangle(d),), {})),
    "qr": Oracle(
        lambda a, full: lax.linalg.qr(a, full_matrices=full),
        lambda d: ((_square(d),), {"full": d.choose(True, False)}),
        view=lambda parts: tuple(part * part for part in parts),
    ),
    "eigh": Oracle(eigh, _eigh, view=without_signs),
    "svd": Oracle(svd, _svd, view=without_signs),
    "tan": unary(jnp.tan, -1.2, 1.2),
    "one_minus_square": unary(lambda x: 1 - x * x),
    "asin": unary(jnp.arcsin, -0.9, 0.9),
    "acos": unary(jnp.arccos, -0.9, 0.9),
    "atan": unary(jnp.arctan),
    "sinh": unary(jnp.sinh),
    "cosh": unary(jnp.cosh),
    "asinh": unary(jnp.arcsinh),
    "acosh": unary(jnp.arccosh, 1.2, 5),
    "atanh": unary(jnp.arctanh, -0.9, 0.9),
    "fmod": binary(
        jnp.fmod,
        0.7,
        differs=_NEXT_QUOTIENT,
    ),
    "atan2": compared(
        jnp.arctan2, differs={"a difference of equal terms, in another order": lambda x, y: np.abs(x) == np.abs(y)}
    ),
    "hypot": compared(
        jnp.hypot,
        differs={
            "JAX's second derivative is 0 where both are equal, and not at the others": (
                lambda x, y: np.abs(x) == np.abs(y)
            ),
            "second derivatives cancel in single precision": lambda x, y: (
                (np.minimum(np.abs(x), np.abs(y)) < 0.01 * np.maximum(np.abs(x), np.abs(y))) & (x.dtype == np.float32)
            ),
        },
    ),
    "logaddexp": binary(
        jnp.logaddexp,
        differs={
            "at an infinity JAX's derivative is exp(x) or 1, where the limit is 0": lambda x, y: (
                np.maximum(x, y) == np.inf
            ),
            "the result rounds, and with it JAX's derivative, exp(x - result)": lambda x, y: (
                np.maximum(np.abs(x), np.abs(y)) > 1e3
            ),
        },
    ),
    "exp2": unary(jnp.exp2),
    "log2": unary(jnp.log2, 0.3),
    "log10": unary(jnp.log10, 0.3),
    "cbrt": unary(jnp.cbrt, 0.3),
    "integer_power": Oracle(
        lambda x, exponent: lax.integer_pow(x, exponent),
        lambda d: ((d.reals(d.shape(), 0.5, 2),), {"exponent": d.choose(-1, -2, -3, -8, 0, 5)}),
        params={"exponent": -3},
    ),
    "erfc": unary(lax.erfc),
    "lgamma": unary(lax.lgamma, 0.3, 5, differs={"there are poles up to there": lambda x: x == -np.inf}),
    "polygamma": Oracle(
        lambda x, order: lax.digamma(x) if order == 0 else lax.polygamma(jnp.full(x.shape, order, x.dtype), x),
        lambda d: ((d.reals(d.shape(), 0.5, 5),), {"order": d.choose(0, 1, 2)}),
        params={"order": 1},
        value_differs={"0 in the limit, and poles up to the other; NaN and infinity in JAX": np.isinf},
    ),
}

#: Ops that have no arguments, contain Programs, name axes or need consistent arguments, and where they are compared.
ELSEWHERE: dict[str, str] = {
    "iota": "tests/ops/test_registry.py",
    "dim_size": "tests/ops/test_dynamic_sizes.py",
    **dict.fromkeys(("attention", "attention_gradients"), "tests/lower/gpu/test_gpu_attention.py"),
    "dropout_bits": "tests/lower/gpu/test_gpu_dropout_bits.py",
    "platform_call": "tests/ops/test_platform_call.py",
    "threefry2x32": "tests/random/test_random.py",
    **dict.fromkeys(("loop", "switch"), "tests/lax/test_control_flow.py"),
    **dict.fromkeys(("custom_vjp_call", "custom_jvp_call", "checkpoint"), "tests/transforms/test_custom.py"),
    **dict.fromkeys(("psum", "pmax", "pmin", "axis_index", "all_gather"), "tests/transforms/test_vmap.py"),
    **dict.fromkeys(("psum_scatter", "ppermute", "all_to_all"), "tests/transforms/test_vmap.py"),
}
