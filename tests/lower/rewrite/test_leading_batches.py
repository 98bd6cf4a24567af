"""Products read factors whose last axis is the batch after a permutation, on CPUs."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax, reference
from tvmfun.core.inline import inlined
from tvmfun.lower.rewrite.leading_batches import move_batch_axes_first

_RNG = np.random.default_rng(0)


def numbers(*shape, dtype="float32"):
    return _RNG.normal(size=shape).astype(dtype)


def permutations(function, *arguments):
    """The permutations that the pass adds, by the axes."""
    program = inlined(tvmfun.trace(function)(*arguments), "cpu")
    axes = lambda program: [e.params["axes"] for e in program.equations if e.op.name == "permute_dims"]
    after = axes(move_batch_axes_first(program))
    for one in axes(program):
        after.remove(one)
    return after


def product(equation):
    return lambda x, y: tnp.einsum(equation, x, y)


#: Shapes, and the permutations of the factors.
FAR = {
    "left": ("kib,bkj->bij", (9, 7, 20), (20, 9, 16), [(2, 0, 1)]),
    "right": ("bik,kjb->bij", (20, 12, 9), (9, 7, 20), [(2, 0, 1)]),
    "both": ("ikb,kjb->bij", (12, 9, 20), (9, 16, 20), [(2, 0, 1), (2, 0, 1)]),
    "two axes of batches": ("ikab,abkj->abij", (7, 9, 2, 20), (2, 20, 9, 16), [(2, 3, 0, 1)]),
    "batches apart": ("aikb,abkj->abij", (2, 7, 9, 20), (2, 20, 9, 16), [(0, 3, 1, 2)]),
    "two axes of rows": ("ihkb,bkj->bihj", (3, 5, 9, 20), (20, 9, 16), [(3, 0, 1, 2)]),
}
NEAR = {
    "leading batch": ("bik,bkj->bij", (20, 7, 9), (20, 9, 16)),
    "no batch": ("ik,kj->ij", (7, 9), (9, 16)),
    "batch between": ("ibk,bkj->bij", (7, 20, 9), (20, 9, 16)),
    "vectors": ("kb,bkj->bj", (9, 20), (20, 9, 16)),
    "few columns": ("ikb,bkj->bij", (7, 9, 20), (20, 9, 7)),
    "one term": ("ib,bj->bij", (7, 20), (20, 16)),
    "one batch": ("ikb,bkj->bij", (7, 9, 1), (1, 9, 16)),
}


@pytest.mark.parametrize("name", [*FAR, *NEAR])
def test_factors_are_permuted(name):
    equation, left, right, *expected = {**FAR, **NEAR}[name]
    x, y = numbers(*left), numbers(*right)
    assert permutations(product(equation), x, y) == (expected[0] if expected else [])
    result = tvmfun.jit(product(equation))(x, y)
    np.testing.assert_allclose(result, np.einsum(equation, x, y), rtol=1e-4, atol=1e-4)


def test_products_of_one_factor_share_its_permutation():
    def both(x, y, z):
        return tnp.einsum("ikb,bkj->bij", x, y), tnp.einsum("kib,bkj->bij", x, z)

    x, y, z = numbers(9, 9, 20), numbers(20, 9, 16), numbers(20, 9, 16)
    assert permutations(both, x, y, z) == [(2, 0, 1)]
    for result, expected in zip(tvmfun.jit(both)(x, y, z), both_in_numpy(x, y, z), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def both_in_numpy(x, y, z):
    return np.einsum("ikb,bkj->bij", x, y), np.einsum("kib,bkj->bij", x, z)


def interactions(x):
    """The products of each pair of rows, as of DLRM: the gradient is scattered with the batch last."""
    rows, columns = np.tril_indices(9, -1)
    return tnp.einsum("bik,bjk->bij", x, x)[:, rows, columns]


FUNCTIONS = {
    "gradient": lambda x, y: tvmfun.grad(lambda x: tnp.sum(tnp.sin(interactions(x))))(x),
    "second derivative": lambda x, y: tvmfun.grad(
        lambda x: tnp.sum(tvmfun.grad(lambda x: tnp.sum(tnp.sin(interactions(x))))(x) ** 2)
    )(x),
    "mapped over the last axis": lambda x, y: tvmfun.vmap(lambda x, y: tnp.dot(x, y), in_axes=(-1, 0))(
        tnp.transpose(x, (1, 2, 0)), y
    ),
    "in a loop": lambda x, y: lax.fori_loop(
        0, 3, lambda i, z: tnp.einsum("kib,bij->bkj", tnp.transpose(x, (1, 2, 0))[:, :9] / 9, z), y[:, :9]
    ),
    "in a branch": lambda x, y: lax.cond(
        x[0, 0, 0] > 0,
        lambda x: tnp.einsum("kib,bij->bkj", tnp.transpose(tnp.sin(x), (1, 2, 0)), y),
        lambda x: tnp.einsum("kib,bij->bkj", tnp.transpose(x, (1, 2, 0)), y),
        x,
    ),
    "in half precision": lambda x, y: tnp.einsum(
        "kib,bij->bkj", tnp.transpose(x, (1, 2, 0)).astype("bfloat16"), y.astype("bfloat16")
    ).astype("float32"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_the_reference(name):
    x, y = numbers(20, 9, 16), numbers(20, 16, 12)
    program = tvmfun.trace(FUNCTIONS[name])(x, y)
    (expected,) = reference.evaluate(program, [*program.captured, x, y])
    tolerance = 2e-2 if name == "in half precision" else 1e-4
    result = tvmfun.jit(FUNCTIONS[name])(x, y)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def test_gradients_of_interactions_are_such_products():
    x = numbers(20, 9, 16)
    function = tvmfun.grad(lambda x: tnp.sum(tnp.sin(interactions(x))))
    added = permutations(function, x)
    assert added and all(axes == (2, 0, 1) for axes in added)


def test_narrow_numbers_stay_narrow_until_they_are_multiplied():
    """Products convert them while they read them, or multiply them as they are."""
    narrow = lambda x, y: tnp.einsum("kib,bkj->bij", x.astype("float32"), y.astype("float32"))
    x, y = (tnp.asarray(a).astype("bfloat16") for a in (numbers(9, 7, 20), numbers(20, 9, 16)))
    program = move_batch_axes_first(inlined(tvmfun.trace(narrow)(x, y), "cpu"))
    assert [str(e.outputs[0].aval) for e in program.equations if e.op.name == "permute_dims"] == ["bfloat16[20,9,7]"]
    (expected,) = reference.evaluate(program, [*program.captured, np.asarray(x), np.asarray(y)])
    np.testing.assert_allclose(tvmfun.jit(narrow)(x, y), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [0, 1, 20])
def test_batches_of_any_size(size):
    n = Dim("n", min=0)
    compiled = (
        tvmfun.jit(product("kib,bkj->bij"))
        .lower(ShapeDtype((9, 7, n), "float32"), ShapeDtype((n, 9, 16), "float32"))
        .compile()
    )
    x, y = numbers(9, 7, size), numbers(size, 9, 16)
    np.testing.assert_allclose(compiled(x, y), np.einsum("kib,bkj->bij", x, y), rtol=1e-4, atol=1e-4)
