"""Slices written at computed indices: vectors with masked loads instead of a branch per element."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as jlax
from tvm import ir

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine
from tvmfun.lower.tir.build import is_choice
from tvmfun.lower.tir.walk import called, find

RNG = np.random.default_rng(0)
DTYPES = ["float32", "float64", "bfloat16", "float16", "int8", "uint8", "int16", "int32", "uint32", "int64", "bool"]


def numbers(dtype, *shape):
    return tnp.asarray(RNG.integers(0, 2 if dtype == "bool" else 100, shape)).astype(dtype)


def as_jax(x):
    return jnp.asarray(np.asarray(x).astype("float32")).astype("bfloat16") if "bfloat16" in str(x.dtype) else x


def check(function, *args):
    """Compares a function of ``(np, lax, *args)`` with JAX, bit by bit."""
    with jax.enable_x64(True):
        expected = jax.jit(lambda *args: function(jnp, jlax, *args))(*(as_jax(np.asarray(x)) for x in args))
    result = tvmfun.jit(lambda *args: function(tnp, lax, *args))(*args)
    np.testing.assert_array_equal(np.asarray(result).astype("float64"), np.asarray(expected).astype("float64"))


def texts(function, *args, target=None):
    """The scheduled functions, as texts."""
    target = targets.resolve(target) if target else targets.host()
    program = inlined(tvmfun.jit(function).lower(*args).program, "cpu")
    return [kernel.function for kernel in pipeline.scheduled_kernels(program, target)]


def count_masked(function, *args, target=None):
    calls = [call for kernel in texts(function, *args, target=target) for call in find(kernel.body, ir.Call)]
    return sum(called(call) == "tirx.call_llvm_intrin" and "masked.load" in str(call) for call in calls)


def update(x, u, *starts):
    return lax.dynamic_update_slice(x, u, starts) * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    def function(np, lax, x, u, i, j):
        y = lax.dynamic_update_slice(x, u, (i, j))
        return y if dtype == "bool" else y + y

    x, u = numbers(dtype, 20, 70), numbers(dtype, 7, 33)
    for i, j in [(0, 0), (3, 1), (13, 37), (50, 100), (-1, -1), (-100, 5)]:
        check(function, x, u, np.int32(i), np.int32(j))


@pytest.mark.parametrize(
    ("size", "part"), [(1, 1), (3, 2), (11, 3), (16, 15), (17, 16), (33, 1), (64, 63), (1000, 100)]
)
def test_sizes_and_tails(size, part):
    def function(np, lax, x, u, i):
        return lax.dynamic_update_slice(x, u, (i,)) * 3

    x, u = numbers("float32", size), numbers("float32", part)
    for i in {0, 1, 2, size - part - 1, size - part, size}:
        check(function, x, u, np.int32(i))


def test_batches_of_boards():
    def function(np, lax, u, i, j):
        write = lambda u, i, j: lax.dynamic_update_slice(np.zeros((11, 11), u.dtype), u, (i, j))
        vmap = tvmfun.vmap if np is tnp else jax.vmap
        return np.max(vmap(write)(u, i, j) + 1, axis=(1, 2))

    check(function, numbers("int32", 200, 3, 3), RNG.integers(-9, 12, 200), RNG.integers(-9, 12, 200))


def test_slices_written_over_slices():
    def function(np, lax, x, u, v, i, j):
        y = lax.dynamic_update_slice(np.sin(x) * 0 + x, u, (i, i))
        return lax.dynamic_update_slice(y + 1, v * 2, (j, j)) - lax.dynamic_update_slice(x, v, (j, i))

    x, u, v = numbers("float32", 30, 30), numbers("float32", 9, 9), numbers("float32", 5, 17)
    for i, j in [(0, 3), (10, 4), (21, 13), (22, -2)]:
        check(function, x, u, v, np.int32(i), np.int32(j))


def test_sums_of_updated_arrays():
    def function(np, lax, x, u, i, j):
        return np.sum(lax.dynamic_update_slice(x, u, (i, j)), axis=0), np.max(lax.dynamic_update_slice(x, u, (j, i)), 1)

    x, u = numbers("int32", 64, 100), numbers("int32", 20, 30)
    check(lambda *args: function(*args)[0], x, u, np.int32(7), np.int32(69))
    check(lambda *args: function(*args)[1], x, u, np.int32(44), np.int32(1))


def test_loops_with_donation():
    def function(np, lax, x, us):
        step = lambda i, x: lax.dynamic_update_slice(x * 2, us[i], (i, 3 * i)) - x
        return lax.fori_loop(0, 5, step, x)

    x, us = numbers("float32", 8, 40), numbers("float32", 5, 2, 9)
    check(function, x, us)
    expected = np.asarray(tvmfun.jit(lambda x, us: function(tnp, lax, x, us))(x, us))
    donated = tvmfun.jit(lambda x, us: function(tnp, lax, x, us), donate_argnums=0)(tnp.asarray(np.asarray(x)), us)
    np.testing.assert_array_equal(donated, expected)


def test_derivatives():
    def function(np, x, u, i):
        y = (lax if np is tnp else jlax).dynamic_update_slice(x * x, u * x[:5, :6], (i, i))
        return np.sum(y * y)

    x, u = numbers("float32", 20, 30), numbers("float32", 5, 6)
    for which in (0, 1):
        found = tvmfun.grad(lambda *args: function(tnp, *args), which)(x, u, np.int32(9))
        expected = jax.grad(lambda *args: function(jnp, *args), which)(np.asarray(x), np.asarray(u), np.int32(9))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    second = tvmfun.jvp(tvmfun.grad(lambda x: function(tnp, x, u, np.int32(9))), (x,), (x,))[1]
    expected = jax.jvp(jax.grad(lambda x: function(jnp, x, np.asarray(u), np.int32(9))), *2 * ((np.asarray(x),),))[1]
    np.testing.assert_allclose(second, expected, rtol=1e-6)


def test_quotients_of_integers_are_not_computed_where_they_are_not_chosen():
    def function(np, lax, x, u, i):
        return lax.dynamic_update_slice(x, u // (u - 7), (i,))

    check(function, numbers("int32", 40) + 1, RNG.permutation(np.r_[8:28]).astype("int32"), np.int32(3))


def test_dynamic_sizes():
    sizes = tvmfun.Dim("n", min=3), tvmfun.Dim("m", min=5)
    specs = tvmfun.ShapeDtype(sizes, "float32"), numbers("float32", 3, 5), np.int32(0)
    compiled = tvmfun.jit(lambda x, u, i: update(x, u, i, i)).lower(*specs).compile()
    for n, m in [(3, 5), (4, 16), (10, 37)]:
        x, u = numbers("float32", n, m), numbers("float32", 3, 5)
        expected = np.array(x * 2)
        expected[n - 3 :, m - 5 :] = np.asarray(u) * 2
        np.testing.assert_array_equal(compiled(x, u, np.int32(100)), expected)


@pytest.mark.parametrize(("dtype", "processor", "is_masked"), [
    ("float32", "x86-64-v4", True),
    ("bool", "x86-64-v4", True),
    ("bfloat16", "x86-64-v4", True),
    ("int64", "x86-64-v3", True),
    ("int8", "x86-64-v3", False),
    ("float32", "x86-64", False),
])  # fmt: skip
def test_processors(dtype, processor, is_masked):
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": processor}
    write = lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)) == x[0, 0]
    args = numbers(dtype, 32, 64), numbers(dtype, 4, 20), np.int32(0)
    assert bool(count_masked(write, *args, target=target)) == is_masked


@pytest.mark.skipif(not Machine.of(targets.host()).has_masked_loads(32), reason="the processor has no masked loads")
def test_no_branch_per_element_is_left():
    x, u = numbers("float32", 32, 64), numbers("float32", 4, 20)
    assert count_masked(update, x, u, np.int32(3), np.int32(4)) >= 2  # vectors and, in this order, both arrays
    (function,) = texts(update, x, u, np.int32(3), np.int32(4))
    assert not any(map(is_choice, find(function.body, ir.Call)))
    # A slice of whole rows has the same condition for all lanes, and a branch for all of them.
    assert count_masked(lambda x, u, i: update(x, u, i, 0), x, numbers("float32", 4, 64), np.int32(3)) == 0
    # Nor has a concatenation, which is cut where its arrays meet.
    assert count_masked(lambda *xs: tnp.concatenate(xs, 1) + 1, *[numbers("float32", 9, 17) for _ in range(12)]) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "bool"])
def test_intermediates(dtype):
    def function(np, lax, x, u, i):
        joined = np.concatenate([u[:3], u[3:]])
        return lax.dynamic_update_slice(x, joined, (i,)) == lax.dynamic_update_slice(x[::-1], np.flip(joined), (i + 1,))

    for size in (17, 64, 300):
        check(function, numbers(dtype, size), numbers(dtype, size // 2), np.int32(3))
