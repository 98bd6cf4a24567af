"""Products against JAX."""

import numpy as np
import pytest
from support.agreement import agree, close_to_dtype

import tvmfun
from tvmfun import lax
from tvmfun.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("jax")


def operand(shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


# -- dot_general -------------------------------------------------------------------------------------------

PRODUCTS = [
    ((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ((5, 2, 3), (5, 3, 4), (((2,), (1,)), ((0,), (0,)))),
    ((2, 5, 3), (3, 4, 5), (((2,), (0,)), ((1,), (2,)))),
    ((2, 3, 4), (4, 3, 5), (((1, 2), (1, 0)), ((), ()))),
    ((2, 3), (4,), (((), ()), ((), ()))),
    ((2, 3), (2, 3), (((), ()), ((0, 1), (0, 1)))),
    ((2, 3), (2, 3), (((0, 1), (0, 1)), ((), ()))),
    ((2, 0), (0, 3), (((1,), (0,)), ((), ()))),
]


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_dot_general(dtype, jax):
    pairs = [(operand(a, dtype), operand(b, dtype)) for a, b, _ in PRODUCTS]
    if dtype == "int32":
        pairs = [tuple(RNG.integers(-9, 9, v.shape).astype(dtype) for v in pair) for pair in pairs]
    together = tvmfun.jit(
        lambda pairs: [lax.dot_general(*pair, case[2]) for pair, case in zip(pairs, PRODUCTS, strict=True)]
    )
    for pair, (_, _, numbers), actual in zip(pairs, PRODUCTS, together(pairs), strict=True):
        close_to_dtype(actual, jax.lax.dot_general(*pair, numbers), dtype)


def test_dot_general_counts_axes_from_the_end_too():
    x, y = operand((2, 3)), operand((4, 3))
    np.testing.assert_allclose(lax.dot_general(x, y, (((-1,), (-1,)), ((), ()))), x @ y.T, rtol=1e-5, atol=1e-6)


def test_dot_general_errors():
    x = np.ones((2, 3))
    for numbers in [(((0,), (1,)), ((), ())), (((2,), (0,)), ((), ())), (((0,), ()), ((), ()))]:
        with pytest.raises((ShapeError, ArgumentError), match=r"^\[dot_general\] "):
            lax.dot_general(x, x, numbers)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4))])
def test_dot(shapes):
    agree(lambda lax, x, y: lax.dot(x, y), *(operand(shape, "float64") for shape in shapes))


def test_batch_matmul():
    agree(lambda lax, x, y: lax.batch_matmul(x, y), operand((2, 3, 4), "float64"), operand((2, 4, 5), "float64"))
    for shapes in [((3,), (3,)), ((2, 3, 4), (4, 5))]:
        with pytest.raises(ShapeError, match=r"^\[batch_matmul\] "):
            lax.batch_matmul(*map(np.ones, shapes))
    with pytest.raises(ShapeError, match=r"^\[dot\] "):
        lax.dot(np.ones((2, 3, 4)), np.ones((4, 5)))


GROUPS = {"all rows": [2, 0, 3], "fewer rows": [1, 2, 0], "one group": [0, 5, 0]}


@pytest.mark.parametrize("sizes", GROUPS)
def test_ragged_dot(sizes):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), rng.normal(size=(3, 4, 2))
    agree(lambda lax, x, y, sizes: lax.ragged_dot(x, y, sizes), x, y, np.asarray(GROUPS[sizes], "int32"))


def test_ragged_dot_of_other_types():
    x, y, sizes = np.ones((4, 3), "float32"), np.ones((2, 3, 2), "float32"), np.asarray([1, 2])
    assert lax.ragged_dot(x.astype("int8"), y.astype("int8"), sizes, preferred_element_type="int32").dtype == "int32"
    assert lax.ragged_dot(x, y[:0], sizes[:0]).tolist() == [[0.0, 0.0]] * 4
    assert lax.ragged_dot(x[:0], y, sizes).shape == (0, 2)
    found = tvmfun.vmap(lambda x, s: lax.ragged_dot(x, y, s))(np.stack([x, 2 * x]), np.stack([sizes, sizes[::-1]]))
    np.testing.assert_array_equal(found[1], [[6.0, 6.0]] * 3 + [[0.0, 0.0]])
    for wrong in ((x, y[0], sizes), (x, y, sizes[:1]), (x[:, :2], y, sizes)):
        with pytest.raises(ShapeError, match=r"^\[ragged_dot\] "):
            lax.ragged_dot(*wrong)
    with pytest.raises(ArgumentError, match="no offset"):
        lax.ragged_dot(x, y, sizes, group_offset=1)
