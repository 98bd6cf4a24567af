"""Small pieces of plain array code beside JAX's, which find schedules that fit an axis, a dtype or a neighbour badly.

Run with ``nox -s bench -- -k patterns``; ``TVMFUN_NUM_THREADS=1 taskset -c 0`` in front compares single threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import jax
import numpy as np
import pytest
from bench.frameworks import JAX
from bench.harness import compare
from bench.ours import OURS

import tvmfun

AXES = [axes for count in (1, 2) for axes in combinations(range(3), count)]
Function = Callable[..., Any]


def _softmax(ns: Any, x: Any, axes: tuple[int, ...]) -> Any:
    e = ns.np.exp(x - ns.np.max(x, axis=axes, keepdims=True))
    return e / ns.np.sum(e, axis=axes, keepdims=True)


def _normalized(ns: Any, x: Any, axes: tuple[int, ...]) -> Any:
    deviation = x - ns.np.mean(x, axis=axes, keepdims=True)
    return deviation / ns.np.sqrt(ns.np.mean(deviation**2, axis=axes, keepdims=True) + 1e-5)


#: Of an array, one more of its shape, factors along each of its axes, and reduced axes.
REDUCTIONS: dict[str, Function] = {
    "softmax": lambda ns, x, y, a, b, c, axes: _softmax(ns, x, axes),
    "normalization": lambda ns, x, y, a, b, c, axes: _normalized(ns, x, axes),
    "maximum": lambda ns, x, y, a, b, c, axes: ns.np.max(x, axis=axes),
    "weighted sum": lambda ns, x, y, a, b, c, axes: ns.np.sum(x * a * b + b * c, axis=axes),
    "weighted maximum": lambda ns, x, y, a, b, c, axes: ns.np.max(abs(x * a) - a * b * c, axis=axes),
    "count": lambda ns, x, y, a, b, c, axes: ns.np.sum(x > 0.5, axis=axes),
    "product of two": lambda ns, x, y, a, b, c, axes: ns.np.sum(x * y, axis=axes),
}

#: Of the same, and an axis.
MOVES: dict[str, Function] = {
    "roll": lambda ns, x, y, axis: ns.np.roll(x, 3, axis=axis),
    "flip": lambda ns, x, y, axis: ns.np.flip(x, axis=axis),
    "difference": lambda ns, x, y, axis: ns.np.diff(x, axis=axis),
    "concatenation": lambda ns, x, y, axis: ns.np.concatenate([x, y], axis=axis),
    "running sum": lambda ns, x, y, axis: ns.np.cumsum(x, axis=axis),
    "index of the maximum": lambda ns, x, y, axis: ns.np.argmax(x, axis=axis),
}

#: Of a matrix of rows, and a column for each row.
ROWS: dict[str, Function] = {
    "largest eight": lambda ns, x, at: ns.lax.top_k(x, 8)[0],
    "row of each index": lambda ns, x, at: x[at % len(x)],
    "one element of each row": lambda ns, x, at: ns.np.take_along_axis(x, at[:, None], axis=1),
    "mask by index, in bfloat16": lambda ns, x, at: ns.np.where(
        ns.np.arange(x.shape[1])[None] == at[:, None], x, 0
    ).astype("bfloat16"),
    "matrix times vector": lambda ns, x, at: x @ x[0],
    "vector times matrix": lambda ns, x, at: x[0] @ x,
}


def _turned_pairs(ns: Any, x: Any, y: Any) -> Any:
    even, odd, cos, sin = x[..., ::2], x[..., 1::2], y[..., ::2], y[..., 1::2]
    return ns.np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def _quaternions(ns: Any, x: Any, y: Any) -> Any:
    (a, b, c, d), (e, f, g, h) = ([z[:, i] for i in range(4)] for z in (x, y))
    first = a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g
    return ns.np.stack([*first, a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e], -1)


def _overlaps(ns: Any, x: Any, y: Any) -> Any:
    far = ns.np.minimum((x[:, :2] + x[:, 2:])[:, None], y[:, :2] + y[:, 2:])
    sides = ns.np.clip(far - ns.np.maximum(x[:, None, :2], y[:, :2]), 0, None)
    return sides[..., 0] * sides[..., 1]


def _pulls(ns: Any, x: Any, y: Any) -> Any:
    apart = x[:, None] - y
    return ns.np.sum(apart * (ns.np.sum(apart * apart, -1) + 0.1)[..., None] ** -1.5, 1)


def _heat(ns: Any, x: Any, y: Any) -> Any:
    p = ns.np.pad(x, 1, mode="edge")
    return x + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x) * y


#: Of two arrays of shapes, most of a few components for each point; the gradients as well.
COMPONENTS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "pairs turned by angles": (_turned_pairs, (4, 512, 8, 64), (512, 1, 64)),
    "products of quaternions": (_quaternions, (100000, 4), (100000, 4)),
    "cross products": (lambda ns, x, y: ns.np.cross(x, y), (100000, 3), (100000, 3)),
    "overlaps of boxes": (_overlaps, (500, 4), (500, 4)),
    "pulls of bodies": (_pulls, (512, 3), (512, 3)),
    "softmax of four": (lambda ns, x, y: _softmax(ns, x * y, (-1,)), (100000, 4), (4,)),
    "softmax of ten": (lambda ns, x, y: _softmax(ns, x * y, (-1,)), (40000, 10), (10,)),
    "normalization of eight": (lambda ns, x, y: _normalized(ns, x, (-1,)) * y, (50000, 8), (8,)),
    "largest of windows": (lambda ns, x, y: ns.np.max(x.reshape(8, 32, 2, 32, 2, 64), (2, 4)) * y, (2**21,), (64,)),
    "columns repeated": (lambda ns, x, y: ns.np.repeat(x, 2, 1) * y, (2000, 500), (1000,)),
    "heat with edges": (_heat, (512, 512), (512, 512)),
    "rows by a permutation": (lambda ns, x, y: x[ns.np.argsort(y)], (64, 32, 32, 3), (64,)),
}


def _gradient(ns: Any, function: Function, x: Any, y: Any, w: Any) -> Any:
    """The gradient with respect to ``x`` of a weighted sum."""
    grad = tvmfun.grad if ns is OURS else jax.grad
    return grad(lambda x: ns.np.sum(function(ns, x, y) * w))(x)


def patterns() -> Iterator[tuple[str, Function, list[np.ndarray]]]:
    """Yields names, functions of a namespace and arrays, and the arrays."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.standard_normal(shape, dtype="float32")
    cube = [normal(64, 256, 256) for _ in range(2)]
    factors = [normal(64, 1, 1), normal(1, 256, 1), normal(1, 1, 256)]
    for name, function in REDUCTIONS.items():
        for axes in AXES:
            yield f"{name} over {axes}", lambda *args, f=function, axes=axes: f(*args, axes), [*cube, *factors]
    for name, function in MOVES.items():
        for axis in range(3):
            yield f"{name} along {axis}", lambda *args, f=function, axis=axis: f(*args, axis), cube
    rows = [normal(2048, 2048), rng.integers(0, 2048, 2048).astype("int32")]
    for name, function in ROWS.items():
        yield name, function, rows
    for name, (function, *shapes) in COMPONENTS.items():
        arrays = [normal(*shape) for shape in shapes]
        yield name, function, arrays
        result = jax.eval_shape(lambda x, y, f=function: f(JAX, x, y), *arrays)
        weights = normal(*result.shape)
        yield f"gradient of {name}", lambda ns, *args, f=function: _gradient(ns, f, *args), [*arrays, weights]


@pytest.mark.parametrize(
    ("name", "function", "arrays"), patterns(), ids=lambda value: value if type(value) is str else ""
)
def test_pattern(name, function, arrays, report):
    ours, theirs = tvmfun.device_put(arrays), list(map(jax.numpy.asarray, arrays))
    f = tvmfun.jit(lambda *args: function(OURS, *args))
    g = jax.jit(lambda *args: function(JAX, *args))
    expected = np.asarray(g(*theirs)).astype("float64")
    np.testing.assert_allclose(
        np.asarray(f(*ours)).astype("float64"), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max()
    )
    moved = sum(x.nbytes for x in theirs[:1]) + g(*theirs).nbytes
    report.add(compare(name, [("tvmfun", lambda: f(*ours)), ("JAX", lambda: g(*theirs).block_until_ready())], 0, moved))
