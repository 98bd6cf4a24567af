"""Promotion: the shortcut for operands of one dtype, and weak dtypes as in JAX."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, dtypes, lax
from tvmfun.numpy import promotion

NUMBERS = (1, 2.5, True, np.int32(1), np.float32(1), np.float64(1))


def test_a_common_dtype_is_the_promoted_one():
    checked = 0

    def check(x, y):
        nonlocal checked
        for values in ((x,), (x, y), *((x, n) for n in NUMBERS), *((n, x, y) for n in NUMBERS)):
            common = promotion._common_dtype(values)
            if common is not None:
                assert common == dtypes.promote(*promotion.operand_types("check", values))[0], values
                checked += 1
        return x

    for (first, second), weak in product(product(dtypes.ALL, repeat=2), product((False, True), repeat=2)):
        avals = [ShapeDtype((2,), dtype, flag) for dtype, flag in zip((first, second), weak, strict=True)]
        tvmfun.trace(check)(*avals)
    assert checked > len(dtypes.ALL) ** 2


def test_numbers_beside_weak_arrays_and_integers_are_promoted():
    def check(weak, integer):
        assert promotion._common_dtype((weak, 1.0)) is None
        assert promotion._common_dtype((integer, 1.0)) is None
        assert promotion._common_dtype((1, 2)) is None
        return weak

    tvmfun.trace(check)(ShapeDtype((), "bfloat16", True), ShapeDtype((), "int32"))


INTEGERS = ("bool", "uint8", "int8", "int32", "uint16")
WEAK = {
    "product": lambda np, x: x * 1.5,
    "reversed": lambda np, x: 1 - x,
    "quotient": lambda np, x: x / 2,
    "maximum": lambda np, x: np.maximum(x, 1),
    "shift": lambda np, x: (x * 2) % 2,
    "power": lambda np, x: np.power(x, 0.5),
    "chosen": lambda np, x: np.where(x > 0, x * 0.5, 0.0),
    "moved": lambda np, x: np.concatenate([(x * 0.5)[1:], x[:1] * 2.0]).reshape(1, -1)[0],
    "taken": lambda np, x: (x * 0.5)[x.astype("int32")],
    "product of vectors": lambda np, x: np.dot(x * 0.5, x * 0.5),
    "sum": lambda np, x: np.sum(x * 0.5),
    "largest": lambda np, x: np.max(x * 0.5),
    "root": lambda np, x: np.sqrt(x),
    "array": lambda np, x: x * np.asarray(1.5),
}


@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("jitted", [False, True])
def test_integers_with_python_numbers_give_way_to_arrays(name, jitted):
    for dtype in INTEGERS:
        for other in ("bfloat16", "float16", "int8", "float32"):
            ours = lambda x, y: WEAK[name](tnp, x) * y
            theirs = lambda x, y: WEAK[name](jnp, x) * y
            x = np.asarray([0, 1, 1, 0]).astype(dtype)
            got = (tvmfun.jit(ours) if jitted else ours)(tnp.asarray(x), tnp.ones(4, other))
            want = theirs(jnp.asarray(x), jnp.ones(4, other))
            assert got.dtype == want.dtype, (dtype, other)
            assert got.weak_type == want.weak_type, (dtype, other)
            np.testing.assert_allclose(np.asarray(got).astype("float32"), np.asarray(want).astype("float32"), rtol=1e-2)


#: Arrays made of Python numbers alone, by name; each is multiplied by arrays of narrower dtypes.
OF_NUMBERS = {
    "full": lambda np, lax: np.full(2, 1.5),
    "full of integers": lambda np, lax: np.full(2, 3),
    "full with a dtype": lambda np, lax: np.full(2, 1.5, "float32"),
    "full of an array": lambda np, lax: np.full(2, np.ones((), "float32")),
    "full of bools": lambda np, lax: np.full(2, True),
    "lax.full": lambda np, lax: lax.full((2,), 1.5),
    "full like one": lambda np, lax: np.full_like(np.full(2, 1.5), np.ones((), "float32")),
    "full like a strong one": lambda np, lax: np.full_like(np.ones(2), 1.5),
    "lax.full like one": lambda np, lax: lax.full_like(np.full(2, 1.5), 1.5),
    "zeros like one": lambda np, lax: np.zeros_like(np.full(2, 1.5)),
    "ones like a number": lambda np, lax: np.ones_like(1.5),
    "ones like one with a dtype": lambda np, lax: np.ones_like(np.full(2, 1.5), dtype="float32"),
    "updated": lambda np, lax: np.full(2, 1.5).at[0].set(2),
    "updated by an array": lambda np, lax: np.full(2, 1.5).at[:1].add(np.ones(1, "float32")),
    "updated at a mask": lambda np, lax: np.full(2, 1.5).at[np.asarray([True, False])].multiply(3.0),
    "divided": lambda np, lax: np.full(2, 1.5).at[0].divide(2),
    "strong updated": lambda np, lax: np.ones(2).at[0].set(2),
    "branches": lambda np, lax: lax.cond(np.ones(()) > 0, lambda: 1.0, lambda: 0.5),
    "branches, one strong": lambda np, lax: lax.cond(np.ones(()) > 0, lambda: 1.0, lambda: np.ones(())),
    "branches of an operand": lambda np, lax: lax.switch(1, [lambda x: x, lambda x: 2 * x, np.sin], 1.5),
    "carry": lambda np, lax: lax.scan(lambda c, _: (c * 2, None), 1.0, None, length=2)[0],
    "rows": lambda np, lax: lax.scan(lambda c, _: (c * 2, c), 1.0, None, length=2)[1],
    "carry made strong": lambda np, lax: lax.scan(lambda c, x: (c * x, None), 1.0, np.ones(2, "float32"))[0],
    "strong carry": lambda np, lax: lax.scan(lambda c, _: (c * 2, None), np.ones(()), None, length=2)[0],
    "unrolled carry": lambda np, lax: lax.scan(lambda c, _: (c * 2, None), 1.0, None, length=3, unroll=2)[0],
    "while": lambda np, lax: lax.while_loop(lambda c: c < 5, lambda c: c * 2, 1.0),
    "for": lambda np, lax: lax.fori_loop(0, 3, lambda i, c: (c[0] * 2, c[1] + 1), (1.0, 0))[0],
    "rows of numbers": lambda np, lax: lax.map(lambda r: r * np.ones((), "bfloat16"), np.full(2, 2.0)),
    "steps over rows of numbers": lambda np, lax: lax.scan(
        lambda c, r: (c + r, None), np.ones(2, "float16"), np.full(3, 2.0)
    )[0],
    "index of a loop": lambda np, lax: lax.fori_loop(0, 3, lambda i, c: c + i, np.ones(2, "int8")),
    "updates by an index": lambda np, lax: lax.fori_loop(0, 2, lambda i, c: c.at[i].set(i), np.ones(2, "int8")),
    "sum of indices": lambda np, lax: lax.fori_loop(0, 3, lambda i, c: c + i, 0),
    "root of integers": lambda np, lax: np.sqrt(np.full(2, 3)),
    "angle of integers": lambda np, lax: np.arctan2(np.full(2, 3), 2),
    "root of strong integers": lambda np, lax: np.sqrt(np.ones(2, "int32")),
    "nested": lambda np, lax: lax.fori_loop(0, 2, lambda i, c: lax.cond(i > 0, lambda: c, lambda: c * 2), 1.0),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("jitted", [False, True])
def test_arrays_of_python_numbers_give_way_to_arrays(name, jitted):
    for other in ("bfloat16", "float16", "int8", "float32"):
        ours = lambda y: OF_NUMBERS[name](tnp, lax) * y
        theirs = lambda y: OF_NUMBERS[name](jnp, jax.lax) * y
        got = (tvmfun.jit(ours) if jitted else ours)(tnp.ones(2, other))
        want = theirs(jnp.ones(2, other))
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type), other
        np.testing.assert_array_equal(np.asarray(got).astype("float32"), np.asarray(want).astype("float32"))


#: Derivatives with respect to Python numbers.
DERIVATIVES = {
    "grad": lambda lib: lib.grad(lambda v: v * v)(2.0),
    "value and grad": lambda lib: lib.value_and_grad(lambda v: v * v)(2.0)[0],
    "grad of a loop": lambda lib: lib.grad(lambda v: lib.lax.fori_loop(0, 3, lambda i, c: c * v, 1.0))(2.0),
    "grad of branches": lambda lib: lib.grad(lambda v: lib.lax.cond(v > 1, lambda: v * 2, lambda: v))(2.0),
    "jvp": lambda lib: lib.jvp(lambda v: v * v, (2.0,), (1.0,))[1],
    "vjp": lambda lib: lib.vjp(lambda v: v * v, 2.0)[1](1.0)[0],
    "linearize": lambda lib: lib.linearize(lambda v: v * v * v, 2.0)[1](1.0),
    "jacfwd": lambda lib: lib.jacfwd(lambda v: v * v * v)(2.0),
    "hessian": lambda lib: lib.hessian(lambda v: v * v * v)(2.0),
    "checkpoint": lambda lib: lib.checkpoint(lambda v: v * v)(2.0),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_python_numbers_give_way_to_arrays(name):
    for dtype in ("bfloat16", "float16", "float32"):
        ours = lambda x: DERIVATIVES[name](tvmfun) * x
        want = DERIVATIVES[name](jax) * jnp.ones(2, dtype)
        for got in (ours(tnp.ones(2, dtype)), tvmfun.jit(ours)(tnp.ones(2, dtype))):
            assert got.dtype == want.dtype == dtype
            np.testing.assert_array_equal(np.asarray(got).astype("float32"), np.asarray(want).astype("float32"))


@pytest.mark.parametrize("transform", ["grad", "vmap", "vmap-grad", "jvp"])
def test_arrays_of_python_numbers_in_transforms(transform):
    """A carry and a branch of weak dtypes, transformed: bfloat16 in, bfloat16 out."""

    def function(x, lax, np):
        rate = lax.cond(x.sum() > 0, lambda: 0.5, lambda: 0.25)
        scale = lax.fori_loop(0, 3, lambda i, c: c * 2, 1.0)
        state = np.full(2, 0.125).at[0].set(1.0)
        return np.sum(x * rate * scale * state)

    def transformed(lib, np):
        f = lambda x: function(x, lib.lax, np)
        return {
            "grad": lib.grad(f),
            "vmap": lambda x: lib.vmap(f)(np.stack([x, -x])),
            "vmap-grad": lambda x: lib.vmap(lib.grad(f))(np.stack([x, -x])),
            "jvp": lambda x: lib.jvp(f, (x,), (x,))[1],
        }[transform]

    got = transformed(tvmfun, tnp)(tnp.asarray([1, 2], "bfloat16"))
    want = transformed(jax, jnp)(jnp.asarray([1, 2], "bfloat16"))
    assert got.dtype == want.dtype == "bfloat16"
    np.testing.assert_array_equal(np.asarray(got).astype("float32"), np.asarray(want).astype("float32"))
