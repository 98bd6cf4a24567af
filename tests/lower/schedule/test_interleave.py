"""Interleaved accesses: stacks along a new last axis, every other element, rows in turn, and derivatives of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.results import assert_evaluated, draw
from tvm import ir, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, reference
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.optimizer import is_straight
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.options import CPU
from tvmfun.lower.tir.build import is_choice
from tvmfun.lower.tir.walk import find

#: Rows and columns: less than a vector, one, several and a part of one, many tasks.
SHAPES = [(3, 1), (5, 2), (6, 37), (1, 257), (64, 128), (300, 513)]


def rotated(x: Any) -> Any:
    """Pairs of neighbours, each turned by an angle, as in rotary embeddings."""
    even, odd = x[:, ::2], x[:, 1::2]
    even = even[:, : odd.shape[1]]
    angle = tnp.arange(odd.shape[1], dtype="float32") * 0.1
    cos, sin = tnp.cos(angle).astype(x.dtype), tnp.sin(angle).astype(x.dtype)
    return tnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape[0], -1)


def normalized(x: Any) -> Any:
    return x - tnp.mean(x, axis=1, keepdims=True)


#: Functions that only move elements.
MOVES: dict[str, Callable[[Any], Any]] = {
    "stack of two": lambda x: tnp.stack([x, x[::-1]], axis=-1),
    "stack of four": lambda x: tnp.stack([x, x[::-1], tnp.flip(x, 1), x[:, :1] | x if x.dtype == bool else x], axis=-1),
    "stack along the second axis": lambda x: tnp.stack([x, x[::-1], x], axis=1),
    "stack of permuted parts": lambda x: tnp.stack([x.T, tnp.flip(x.T, 0)], axis=-1),
    "stack of rolled parts": lambda x: tnp.stack([tnp.roll(x, 1, axis=1), tnp.roll(x, -1, axis=1)], axis=-1),
    "every third": lambda x: x[:, 1::3],
    "every fourth": lambda x: x[:, 3::4],
    "every fifth": lambda x: x[:, ::5],
    "every second from the end": lambda x: x[:, ::-1][:, ::2],
    "larger neighbour": lambda x: tnp.maximum(x[:, : x.shape[1] // 2 * 2 : 2], x[:, 1::2]),
    "even and odd": lambda x: tnp.concatenate([x[:, ::2], x[:, 1::2]], axis=1),
    "repeated twice": lambda x: tnp.repeat(x, 2, axis=1),
    "repeated three times": lambda x: tnp.repeat(x, 3, axis=1),
    "repeated rows": lambda x: tnp.repeat(x, 2, axis=0),
    "zeros between": lambda x: tnp.stack([x, 0 * x], axis=-1).reshape(x.shape[0], 2 * x.shape[1])[:, :-1],
    "rows in turn": lambda x: tnp.where((tnp.arange(x.shape[0]) % 2 == 0)[:, None], x, x[::-1]),
    "one row of three": lambda x: tnp.where((tnp.arange(x.shape[0]) % 3 == 1)[:, None], x, tnp.flip(x, 1)),
    "squares of a board": lambda x: tnp.where(
        (tnp.arange(x.shape[0])[:, None] + tnp.arange(x.shape[1])) % 2 == 0, x, x[::-1]
    ),
    "one of three": lambda x: tnp.where(tnp.arange(x.shape[1]) // 2 % 3 == 1, x, x[::-1]),
}
#: Functions that compute.
FORMULAS: dict[str, Callable[[Any], Any]] = {
    "rotary embedding": rotated,
    "stack of three": lambda x: tnp.stack([x, tnp.sin(x), x * 2], axis=-1),
    "stack of expensive parts": lambda x: tnp.stack([tnp.cos(x), tnp.sin(x)], axis=-1),
    "stack of a part and a sum": lambda x: tnp.stack([normalized(x), x * tnp.sum(x, axis=1, keepdims=True)], axis=-1),
    "stack of sums": lambda x: tnp.stack([tnp.sum(x, axis=0), tnp.max(x, axis=0)], axis=-1),
    "stack with factors": lambda x: tnp.stack([x, -x], axis=-1) * tnp.asarray([2, 3], x.dtype),
    "stack that is summed": lambda x: tnp.sum(tnp.stack([x, x * x], axis=-1), axis=1),
    "stack and a part of it": lambda x: (lambda s: (s, s[:, ::2] * 2))(tnp.stack([x, -x], axis=-1)),
    "parts of a stack": lambda x: (lambda s: tnp.exp(s[..., 0]) * s[..., 1])(tnp.stack([x, x + 1], axis=-1)),
    "parts of pairs": lambda x: (lambda y: y[..., 0] - y[..., 1] * 2)(tnp.tile(x, 2).reshape(*x.shape, 2)),
    "every second of normalized": lambda x: normalized(x)[:, 1::2],
    "signs in turn": lambda x: tnp.where(tnp.arange(x.shape[1]) % 2 == 0, x, -x),
    "numbers of pairs": lambda x: x * (tnp.arange(x.shape[1]) // 2).astype(x.dtype),
    "gradient of every second row": lambda x: tvmfun.grad(lambda x: tnp.sum(x[1::2] ** 3) + tnp.sum(x))(x),
    "gradient of every third row and second column": lambda x: tvmfun.grad(lambda x: tnp.sum(x[::3, ::2] ** 3))(x),
    "rows in turn, of sums": lambda x: tnp.where((tnp.arange(x.shape[0]) % 2 == 0)[:, None], normalized(x), x),
}
#: Relative tolerances; sums of 300 numbers between -3 and 3 may be wrong by a hundred times as much.
ROUNDING = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def check(functions: dict[str, Callable[[Any], Any]], name: str, dtype: str) -> None:
    """Compares values of all shapes, and gradients of floats, with the reference's."""
    scale = 1 if dtype in ROUNDING else 50
    assert_evaluated(functions[name], [(draw(*shape) * scale).astype(dtype) for shape in SHAPES], ROUNDING.get(dtype))


OTHERS = ("bfloat16", "float64", "float16", "uint8")


@pytest.mark.quick("*-bool", "*16")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for i, name in enumerate(MOVES) for dtype in ("float32", "bool", OTHERS[i % len(OTHERS)])],
)
def test_moved_elements(name, dtype):
    check(MOVES, name, dtype)


@pytest.mark.quick("*-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name, dtype):
    check(FORMULAS, name, dtype)


def kernels(f: Callable[..., Any], *args: Any) -> list[list[str]]:
    """The ops of each kernel that is not a view."""
    found = [k for k in fuse(tvmfun.trace(f)(*args), CPU) if not k.is_view]
    return [[equation.op.name for equation in kernel.equations] for kernel in found]


def test_a_stack_and_its_parts_are_one_kernel():
    x = draw(64, 128)
    assert [ops[-1] for ops in kernels(FORMULAS["stack of expensive parts"], x)] == ["concat"]
    pairs = draw(64, 64, 2)
    turned = lambda y: tnp.stack([y[..., 0] - y[..., 1], y[..., 0] * y[..., 1]], axis=-1)
    assert len(kernels(turned, pairs)) == 1
    assert len(kernels(lambda y: tvmfun.vjp(turned, y)[1](y)[0], pairs)) == 1


def test_components_are_read_by_each_kernel():
    """None is stored, although several kernels read it, and there are more of them than a kernel has equations."""

    def product(p, q):
        (a, b, c, d), (e, f, g, h) = ([x[:, i] for i in range(4)] for x in (p, q))
        rows = a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g
        return tnp.stack([*rows, a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e], axis=-1)

    p, q = draw(50, 4), draw(50, 4, seed=1)
    pull = lambda p, q, g: tvmfun.vjp(product, p, q)[1](g)
    assert len(kernels(product, p, q)) == 1
    assert len(kernels(pull, p, q, q)) == 2
    program = tvmfun.trace(pull)(p, q, q)
    expected = reference.evaluate(program, [*program.captured, p, q, q])
    for got, want in zip(tvmfun.jit(pull)(p, q, q), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["rotary embedding", "stack of expensive parts", "signs in turn"])
def test_no_lane_has_a_branch(name):
    f = FORMULAS[name]
    weighted = lambda x: tnp.sum(f(x) ** 2)
    program = tvmfun.trace(lambda x: (f(x), tvmfun.grad(weighted)(x)))(draw(64, 129))
    for kernel in pipeline.scheduled_kernels(program, targets.host()):
        body = kernel.function.body
        vectors = [loop for loop in find(body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
        assert not any(is_choice(call) for loop in vectors for call in find(loop, ir.Call) if int(loop.extent) > 1)


@pytest.mark.parametrize("shape", [(3, 8, 12, 20), (2, 7, 9, 20), (1, 4, 6, 3)], ids=str)
def test_the_gradient_of_strides(shape):
    """Each phase stores its own rows, without a condition if the phases are equally many."""
    kernels = draw(3, 3, shape[-1], 16), draw(1, 1, shape[-1], 16, seed=1)

    def pulled(x: Any, *cotangents: Any) -> Any:
        conv = lambda w, x: lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return tvmfun.vjp(lambda x: tuple(conv(w, x) for w in kernels), x)[1](cotangents)[0]

    x, results = draw(*shape), (shape[0], -(-shape[1] // 2), -(-shape[2] // 2), 16)
    cotangents = draw(*results, seed=2), draw(*results, seed=3)
    program = tvmfun.trace(pulled)(x, *cotangents)
    (expected,) = reference.evaluate(program, [*program.captured, x, *cotangents])
    np.testing.assert_allclose(tvmfun.jit(pulled)(x, *cotangents), expected, rtol=1e-5, atol=1e-4)
    last = list(pipeline.scheduled_kernels(inlined(program, "cpu"), targets.host()))[-1].function
    assert last.attrs["tvmfun.rule"] == "elementwise"
    assert is_straight(last) == (not any(map(is_choice, find(last.body, ir.Call)))) == (shape[1] % 2 == 0)


def test_rows_in_turn_are_written_over_donated_arrays():
    """Few rows, and enough for a task each, in loops whose state is written in place."""
    for shape in ((2, 5000), (6, 37), (512, 300)):
        x, signs = draw(*shape), np.where(np.arange(shape[0]) % 2 == 0, 2.0, -4.0).astype("float32")[:, None]
        turned = lambda x, signs=signs: tnp.where((tnp.arange(x.shape[0]) % 2 == 0)[:, None], x * 2, x * -4)
        donated = tvmfun.jit(turned, donate_argnums=0)(tvmfun.device_put(x))
        np.testing.assert_array_equal(donated, x * signs)
        loop = lambda x, turned=turned: lax.fori_loop(0, 3, lambda i, x: turned(x), x)
        np.testing.assert_array_equal(tvmfun.jit(loop, donate_argnums=0)(tvmfun.device_put(x)), x * signs**3)


def test_loops_batches_and_second_derivatives():
    x, w = draw(4, 6, 40).astype("float64"), draw(6, 40, seed=1).astype("float64")

    def turn(x: Any) -> Any:
        step = lambda carry, _: (rotated(carry), carry[:, ::2])
        return lax.scan(step, x, None, length=3)

    f = lambda x: tnp.sum(tnp.sin(turn(x)[0]) * w) + tnp.sum(turn(x)[1] ** 3)
    # The product of the Hessian with a vector, for each of a batch.
    second = tvmfun.vmap(lambda x: tvmfun.grad(lambda x: tnp.sum(tvmfun.grad(f)(x) * w))(x))
    program = tvmfun.trace(second)(x)
    (expected,) = reference.evaluate(program, [*program.captured, x])
    np.testing.assert_allclose(tvmfun.jit(second)(x), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [(7, 37), (600, 1026)], ids=str)
def test_results_are_written_over_donated_arrays(shape):
    """Each pair is read before it is overwritten, also by threads that write next to each other."""
    pairs = draw(*shape, 2)
    turned = lambda y: tnp.stack([y[..., 0] * 2 + y[..., 1], y[..., 1] * 3 - y[..., 0]], axis=-1)
    signs = lambda y: y * tnp.where(tnp.arange(shape[1]) % 2 == 0, 2, -3)[:, None].astype("float32")
    for f in (turned, signs):
        expected = np.asarray(tvmfun.jit(f)(pairs))
        for _ in range(5):
            donated = tvmfun.jit(f, donate_argnums=0)(tvmfun.device_put(pairs))
            np.testing.assert_array_equal(donated, expected)
    even, odd = pairs[..., 0], pairs[..., 1]
    np.testing.assert_allclose(
        tvmfun.jit(turned)(pairs), np.stack([even * 2 + odd, odd * 3 - even], -1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", ["stack of two", "every third", "repeated twice", "even and odd", "zeros between"])
def test_dynamic_sizes(name):
    f = MOVES[name]
    rows = tvmfun.jit(lambda x: f(x), dynamic_shapes={"x": {0: tvmfun.Dim("rows", min=0)}})
    for shape in ((1, 33), (70, 33), (0, 33)):
        x = draw(*shape)
        np.testing.assert_array_equal(rows(x), np.asarray(tvmfun.jit(lambda x: f(x))(x)))


def test_a_dynamic_number_of_pairs():
    columns = tvmfun.Dim("columns", min=0)
    stacked = tvmfun.jit(lambda x: tnp.stack([x, x * 2], axis=-1), dynamic_shapes={"x": {1: columns}})
    parts = tvmfun.jit(lambda y: y[..., 0] - y[..., 1], dynamic_shapes={"y": {1: columns}})
    for count in (0, 1, 15, 16, 300):
        x = draw(5, count)
        y = np.stack([x, x * 2], -1)
        np.testing.assert_array_equal(stacked(x), y)
        np.testing.assert_array_equal(parts(y), x - x * 2)


def test_empty_stacks():
    for shape in ((0, 40), (5, 0), (0, 0)):
        x = draw(*shape)
        assert tvmfun.jit(MOVES["stack of two"])(x).shape == (*shape, 2)
        assert tvmfun.jit(MOVES["repeated twice"])(x).shape == (shape[0], 2 * shape[1])


def test_a_stack_of_one_intermediate():
    """Its bits are those of the rounded number, although the kernel keeps it in float32."""
    for shape in ((16,), (33, 2)):
        x = draw(*shape).astype("bfloat16")
        f = lambda x: tnp.stack([x, tnp.tanh(x), tnp.tanh(x)], axis=-1)
        np.testing.assert_array_equal(tvmfun.jit(f)(x), np.stack([x, *2 * [np.asarray(tnp.tanh(x))]], -1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_moved_elements_in_loops(dtype):
    """Buffers of loops may have other shapes than what is kept in them, and bools are bytes there."""
    x = (draw(40, 33) * 2).astype(dtype)

    def changed(x: Any, y: Any) -> Any:
        mixed = tnp.cos(tnp.arange(y.size) * 0.1).reshape(y.shape) * y.astype("float32")
        ends = tnp.stack([mixed.min(), mixed.sum()], axis=-1)
        return x ^ (ends[1] > ends[0]) if dtype == "bool" else x * 0.5 + ends[1] * 1e-3

    def function(x: Any) -> Any:
        looped = lambda f: lax.scan(lambda c, _: (changed(c, f(c) > 0 if dtype == "bool" else f(c)), f(c)), x, length=3)
        return [looped(f) for f in MOVES.values()]

    program = tvmfun.trace(function)(x)
    expected = reference.evaluate(program, [*program.captured, x])
    for got, want in zip(tvmfun.tree.leaves(tvmfun.jit(function)(x)), expected, strict=True):
        np.testing.assert_allclose(np.asarray(got, "float64"), np.asarray(want, "float64"), rtol=1e-4, atol=1e-4)


#: Functions of (rows, 8, 8), and whether members that load single elements are worth it.
FAR: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "sum": (lambda x: x.sum(1), False),
    "largest": (lambda x: tnp.max(x[:, :3, :5], 1), False),
    "product and sum": (lambda x: (x[:, 0, :, None] * x[:, 1, None, :]).sum(1), False),
    "softmax": (lambda x: tvmfun.nn.softmax(x, 1), False),
    "neighbours": (lambda x: (x + tnp.roll(x, 1, -1)).sum(1), False),
    "triangle": (lambda x: tnp.tril(x).sum(1), False),
    "padded": (lambda x: tnp.pad(x[:, :, :3], ((0, 0), (0, 0), (0, 2))).sum(1), False),
    "cross product": (lambda x: tnp.cross(x[:, 0, :3], x[:, 1, :3]), True),
    "diagonal": (lambda x: tnp.stack([x[:, i, i] for i in range(8)], -1), True),
}


@pytest.mark.parametrize("name", FAR)
def test_far_elements_are_gathered_for_few_loads_only(name):
    function, is_worthwhile = FAR[name]
    shapes = [(1, 8, 8), (17, 8, 8), (250, 8, 8)]
    arrays = [np.sin(np.arange(64 * n, dtype="float32")).reshape(n, 8, 8) for n, *_ in shapes]
    assert_evaluated(function, arrays, ROUNDING["float32"])
    text = tvmfun.jit(function).lower(tvmfun.ShapeDtype(shapes[-1], "float32")).compile().as_text()
    assert ("member" in text) == is_worthwhile


#: Functions of (rows, a, b) whose last two axes are short, and shapes with which they are interleaved.
SHORT_AXES: dict[str, tuple[Callable[[Any], Any], tuple[int, int], bool]] = {
    "repeated": (lambda x: tnp.repeat(x, 2, 1), (4, 2), True),
    "repeated in a middle axis": (lambda x: tnp.repeat(x[:, None], 2, 1), (2, 2), True),
    "repeated three times": (lambda x: tnp.repeat(x, 2, 1), (1, 3), True),
    "swapped": (lambda x: tnp.swapaxes(x, 1, 2) * 2, (2, 3), True),
    "swapped, four by two": (lambda x: tnp.swapaxes(x, 1, 2) * 2, (4, 2), False),
    "outer product": (lambda x: x[:, :, :1] * x[:, 0, None, :], (2, 3), True),
    "stacked": (lambda x: tnp.stack([x[:, 0], -x[:, 1]], 1), (2, 3), True),
    "pairs and their means": (lambda x: x - x.mean(1, keepdims=True), (3, 2), True),
    "matrices": (lambda x: tnp.einsum("nij,njk->nik", x, x), (2, 2), False),
    "one walk": (lambda x: x * 2 + 1, (2, 3), False),
}


@pytest.mark.parametrize("name", SHORT_AXES)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_two_short_axes_are_members(name, dtype):
    function, sizes, is_interleaved = SHORT_AXES[name]
    integers = lambda n: np.arange(n * sizes[0] * sizes[1]).reshape(n, *sizes) % 23
    arrays = [integers(n).astype(dtypes.canonical(dtype)) for n in (1, 7, 16, 333)]
    assert_evaluated(function, arrays, ROUNDING.get(dtype))
    if dtype == "float32":
        text = tvmfun.jit(function).lower(tvmfun.ShapeDtype((333, *sizes), dtype)).compile().as_text()
        assert ("member" in text) == is_interleaved
