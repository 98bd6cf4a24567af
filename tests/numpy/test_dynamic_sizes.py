"""Functions of arrays with dynamic sizes: one compiled function has the results of static ones in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from support.derivatives import in_numpy

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, lax, tree
from tvmfun.errors import DimensionError

RNG = np.random.default_rng(0)
SQUARE, LARGER_SQUARE = ({0: "n", 1: "n"},), ({0: Dim("n", min=3), 1: Dim("n", min=3)},)
ROWS = ({0: Dim("n", min=3)},)


def _einsum(subscripts):
    """The function, the shapes of its arguments for two sizes, and all their axes as dynamic ones."""
    terms = subscripts.split("->")[0].split(",")
    sizes = [dict.fromkeys("bijkl", 4), dict(zip("bijkl", (1, 3, 2, 5, 3), strict=True))]
    shapes = [tuple(tuple(size[letter] for letter in term) for term in terms) for size in sizes]
    dynamic = tuple(dict(enumerate(term)) for term in terms)
    return pytest.param(lambda *xs: tnp.einsum(subscripts, *xs), shapes, dynamic, id=subscripts)


def _case(name, function, shapes, dynamic):
    return pytest.param(function, [(shape,) for shape in shapes], dynamic, id=name)


SQUARES, TALL = [(4, 4), (3, 3), (1, 1), (9, 9)], [(3, 4), (9, 4)]
CASES = [
    *(_case(f"diagonal {k}", lambda x, k=k: tnp.diagonal(x, k), SQUARES[:2], LARGER_SQUARE) for k in range(-2, 3)),
    *(_case(f"diag {k}", lambda x, k=k: tnp.diag(x, k), [(4,), (1,)], ({0: "n"},)) for k in range(-2, 3)),
    _case(
        "diagonals of a batch", lambda x: tnp.diagonal(x, 0, 1, 2), [(2, 4, 4), (1, 3, 3)], ({0: "b", 1: "n", 2: "n"},)
    ),
    _case("diagonal of tall matrices", tnp.diagonal, [(4, 3), (5, 3)], ({0: Dim("n", min=4)},)),
    _case("trace", tnp.trace, SQUARES, SQUARE),
    _case("fill_diagonal", lambda x: tnp.fill_diagonal(x, 7.0, inplace=False), SQUARES, SQUARE),
    _case(
        "pad", lambda x: tnp.pad(x, ((1, x.shape[0]), (x.shape[1] // 2, x.shape[1] - x.shape[1] // 2))), SQUARES, SQUARE
    ),
    _case("pad 1", lambda x: tnp.pad(x, ((x.shape[0], 0), (0, 1)), constant_values=2.0), SQUARES, SQUARE),
    _case("reduce_window", lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 3), (2, 2), "SAME"), SQUARES, SQUARE),
    *(_case(f"roll {k}", lambda x, k=k: tnp.roll(x, k, 0), SQUARES, SQUARE) for k in (-1, 1, 5)),
    _case("roll half", lambda x: tnp.roll(x, (x.shape[0] // 2, -3), (0, 1)), SQUARES, SQUARE),
    _case("roll more", lambda x: tnp.roll(x, 2 * x.shape[0] + 1), SQUARES, SQUARE),
    _case("logspace", lambda x: tnp.logspace(0, 2, x.shape[0], dtype="float64") * x, SQUARES, SQUARE),
    _case("geomspace", lambda x: tnp.geomspace(1, x.shape[0] + 1, x.shape[0], dtype="float64") * x, SQUARES, SQUARE),
    _case("det", tnp.linalg.det, SQUARES, SQUARE),
    _case("slogdet", tnp.linalg.slogdet, SQUARES, SQUARE),
    _case("corrcoef", tnp.corrcoef, [(4, 4), (2, 9)], ({0: "n", 1: "m"},)),
    *(_case(f"delete {i}", lambda x, i=i: tnp.delete(x, i, 0), TALL, ROWS) for i in (0, 1, -1)),
    *(_case(f"insert {i}", lambda x, i=i: tnp.insert(x, i, tnp.sum(x), 0), TALL, ROWS) for i in (0, 1, -1)),
    _case("insert rows", lambda x: tnp.insert(x, 1, 2 * x[:2], 0), TALL, ROWS),
    *map(_einsum, ("ii->i", "bij,bjk,bkl->bil", "ij,jk,kl->il", "bi,bj,bk->ijk")),
]


@pytest.mark.quick("diagonal 1", "diag -1", "det", "bij,bjk,bkl->bil", "insert 1", "delete -1")
@pytest.mark.parametrize(("function", "shapes", "dynamic"), CASES)
def test_values_and_gradients_are_those_of_static_sizes(function, shapes, dynamic):
    def loss(*xs):
        return sum(tnp.sum(tnp.sin(part)) for part in tree.leaves(function(*xs)))

    both = lambda *xs: (function(*xs), tvmfun.grad(loss, tuple(range(len(xs))))(*xs))
    compiled = tvmfun.jit(both, dynamic_shapes=dynamic)
    for one in shapes:
        xs = [RNG.normal(size=shape) for shape in one]
        for got, expected in zip(tree.leaves(compiled(*xs)), tree.leaves(in_numpy(both, *xs)(*xs)), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tnp.delete(x, [0, 1], 0), "one static index"),
        (lambda x: tnp.insert(x, slice(0, 2), 1.0, 0), "one static index"),
        (lambda x: tnp.fill_diagonal(x, [1.0, 2.0], inplace=False), "the size of each axis must be known"),
    ],
)
def test_what_needs_a_static_size_says_so(function, message):
    with pytest.raises(DimensionError, match=message):
        tvmfun.jit(function, dynamic_shapes=ROWS)(np.ones((4, 4)))


def test_a_path_of_dynamic_sizes_is_one_of_typical_sizes():
    found = []
    product = tvmfun.jit(
        lambda x, y, z: found.append(tnp.einsum_path("ij,jk,kl->il", x, y, z)[0]) or tnp.sum(x),
        dynamic_shapes=({0: "i"}, None, None),
    )
    product(np.ones((3, 4)), np.ones((4, 5)), np.ones((5, 2)))
    assert found[0][0] == "einsum_path"
    assert len(found[0]) == 3
