"""Functions that work only outside traces, or differently there: data-dependent shapes, and host arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.counters import counted
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, IndexingError, ShapeError
from tvmfun.ops import shape as shapes

RNG = np.random.default_rng(3)
X = RNG.integers(-4, 5, (3, 4)).astype("int32")
REAL = RNG.standard_normal((3, 4)).astype("float32")
WITH_NAN = np.asarray([1.0, np.nan, -0.0, 0.0, np.nan, 1.0], "float32")


def same(actual: Any, expected: Any) -> None:
    if isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for got, want in zip(actual, expected, strict=True):
            same(got, want)
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    if expected.dtype.kind == "i":
        assert actual.dtype.kind == "i"
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "x", [X, REAL, WITH_NAN, np.zeros((0, 2)), np.asarray([True, False, True])], ids=lambda x: str(x.dtype)
)
def test_unique(x: np.ndarray):
    for equal_nan in (True, False):
        same(tnp.unique(x, True, True, True, equal_nan=equal_nan), np.unique(x, True, True, True, equal_nan=equal_nan))
    same(tnp.unique_values(x), np.unique(x, equal_nan=False))
    for name in ("unique_all", "unique_counts", "unique_inverse"):
        ours, theirs = getattr(tnp, name)(x), getattr(np, name)(x)
        assert ours._fields == theirs._fields
        same(tuple(ours), tuple(theirs))
        assert tnp.asarray(ours.values).dtype == x.dtype


def test_unique_slices_and_bfloat16():
    rows = np.asarray([[1, 0], [2, 3], [1, 0]])
    same(tnp.unique(rows, True, True, True, axis=0), np.unique(rows, True, True, True, axis=0))
    values = tnp.unique(tnp.asarray([2.0, 1.0, 2.0], tnp.bfloat16))
    assert values.dtype == tnp.bfloat16 and values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_unique_slices_with_a_size(axis, dtype):
    x = np.random.default_rng(0).integers(0, 3, (7, 2, 2)).astype(dtype)
    x = np.where(x == 2, np.nan, x) if dtype == "float32" else x
    unique = lambda m, x, **keywords: m.unique(x, True, True, True, axis=axis, size=9, **keywords)
    for keywords in ({}, {"fill_value": 1}, {"equal_nan": False}):
        theirs = unique(jax.numpy, x, **keywords)
        same(tvmfun.jit(lambda x, keywords=keywords: unique(tnp, x, **keywords))(x), theirs)


def test_histogram_of_many_small_integers():
    counts, _ = tnp.histogram(np.ones(300, "uint8"), 2, (0, 1), weights=np.ones(300, "uint8"))
    assert counts.dtype == "float32" and counts.tolist() == [0, 300]


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij->i", "ij,ji->ij", "ij,jk,kl->il", "ij,j->"])
def test_einsum_of_bools(subscripts):
    rng = np.random.default_rng(0)
    sizes = {"i": 3, "j": 4, "k": 3, "l": 4}
    terms = subscripts.split("->")[0].split(",")
    arrays = [rng.integers(0, 2, [sizes[letter] for letter in term]).astype(bool) for term in terms]
    same(tnp.einsum(subscripts, *arrays), jax.numpy.einsum(subscripts, *arrays))


@pytest.mark.parametrize("period", [3, 4, 5, 6.0])
@pytest.mark.parametrize("discont", [None, 3])
def test_unwrap_of_integers(period, discont):
    p = np.random.default_rng(0).integers(-9, 9, (3, 20)).astype("int32")
    got = tnp.unwrap(p, discont, period=period)
    np.testing.assert_array_equal(np.asarray(got), np.unwrap(p, discont, period=period))
    assert got.dtype == ("int32" if isinstance(period, int) else "float32")


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setdiff1d", "setxor1d"])
def test_sets(name: str):
    same(getattr(tnp, name)(X, [1, 2, 9]), getattr(np, name)(X, [1, 2, 9]))
    same(getattr(tnp, name)(REAL, REAL[:2]), getattr(np, name)(REAL, REAL[:2]))


@pytest.mark.parametrize("x", [X, REAL > 0, np.zeros((2, 0))], ids=["int", "bool", "empty"])
def test_places(x: np.ndarray):
    same(tnp.nonzero(x), np.nonzero(x))
    same(tnp.where(x), np.where(x))
    same(tnp.asarray(x).nonzero(), x.nonzero())
    same(tnp.argwhere(x), np.argwhere(x))
    if x.size:
        same(tnp.flatnonzero(x), np.flatnonzero(x))
    assert tnp.nonzero(x)[0].dtype == "int32"


def test_places_in_an_array_without_axes():
    with pytest.raises(ShapeError, match=r"\[nonzero\] an array without axes"):
        tnp.nonzero(3)
    same(tnp.argwhere(np.asarray(3)), np.argwhere(np.asarray(3)))


def test_bincount():
    numbers = np.asarray([0, 3, 3, 1])
    same(tnp.bincount(numbers), np.bincount(numbers))
    same(tnp.bincount(numbers, minlength=6), np.bincount(numbers, minlength=6))
    same(tnp.bincount(numbers, [1.0, 2.0, 0.5, 3.0]), np.bincount(numbers, [1.0, 2.0, 0.5, 3.0]))
    same(tnp.bincount(numbers, length=2), [1, 1])
    same(tnp.bincount(np.zeros(0, "int32")), np.bincount(np.zeros(0, "int32")))
    with pytest.raises(DtypeError, match=r"\[bincount\]"):
        tnp.bincount(REAL[0])
    with pytest.raises(ShapeError, match=r"\[bincount\]"):
        tnp.bincount(X)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (tnp.nonzero, X), (tnp.flatnonzero, X), (tnp.argwhere, X), (tnp.where, X), (tnp.unique, X), (tnp.unique_all, X),
        (tnp.unique_values, X), (lambda x: tnp.union1d(x, x), X), (lambda x: tnp.setdiff1d(x, x), X),
        (tnp.bincount, X[0]), (lambda x: tnp.repeat(X[0], x), X[1]),
    ],
)  # fmt: skip
def test_shapes_that_depend_on_traced_data_are_explained(function: Any, x: np.ndarray):
    with pytest.raises(ConcretizationError, match="give the result its shape"):
        tvmfun.jit(function)(x)


def test_ravel_multi_index_checks_what_it_can():
    same(tnp.ravel_multi_index(([1, 2], [0, 3]), (3, 4)), np.ravel_multi_index(([1, 2], [0, 3]), (3, 4)))
    with pytest.raises(IndexingError, match=r"\[ravel_multi_index\] an axis has 4 elements"):
        tnp.ravel_multi_index(([1, 2], [0, 4]), (3, 4))
    with pytest.raises(ArgumentError, match="traced"):
        tvmfun.jit(lambda i: tnp.ravel_multi_index((i, i), (3, 4)))(X[0])


def test_insert_and_delete():
    x = np.arange(6)
    for places, values in ((2, 9), ([1, 1, 5], [7, 8, 9]), (slice(0, 4, 2), 5), (-1, [1, 2]), ([3], [1, 2])):
        same(tnp.insert(x, places, values), np.insert(x, places, values))
    for places in (2, -1, [0, 3], slice(1, None, 2), np.asarray([True, False, True, False, False, False])):
        same(tnp.delete(x, places), np.delete(x, places))
    same(tnp.insert(X, 1, [9, 8, 7, 6], 0), np.insert(X, 1, [9, 8, 7, 6], 0))
    same(tnp.insert(np.zeros(2), 1, 0.1), np.insert(np.zeros(2), 1, 0.1))
    for function in (lambda: tnp.insert(x, 9, 1), lambda: tnp.delete(x, 9)):
        with pytest.raises(IndexingError):
            function()


def test_wrapped_diagonals():
    tall = np.zeros((7, 3))
    expected = tall.copy()
    np.fill_diagonal(expected, [1.0, 2.0], wrap=True)
    same(tnp.fill_diagonal(tall, [1.0, 2.0], wrap=True, inplace=False), expected)
    with pytest.raises(ArgumentError, match="inplace=False"):
        tnp.fill_diagonal(tall, 1.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda xp: xp.tril_indices(3, 1, 4),
        lambda xp: xp.triu_indices(3),
        lambda xp: xp.tril_indices_from(X, -1),
        lambda xp: xp.triu_indices_from(X),
        lambda xp: xp.diag_indices(3, 3),
        lambda xp: xp.diag_indices_from(X[:, :3]),
        lambda xp: xp.indices((2, 3)),
        lambda xp: xp.indices((2, 3), sparse=True),
        lambda xp: xp.ix_([1, 2], [True, False, True]),
        lambda xp: xp.tri(3, 4, -1),
        lambda xp: xp.identity(3),
        lambda xp: xp.logspace(0, 2, 5, base=2.0),
        lambda xp: xp.geomspace(-1, -8, 4),
        lambda xp: xp.linspace([0.0, 1.0] if xp is np else np.asarray([0.0, 1.0]), 2, 3, axis=1),
        lambda xp: xp.linspace(0, 1, 4, retstep=True),
        lambda xp: xp.linspace(0, 5, 4, dtype="int32"),
        lambda xp: xp.broadcast_shapes((3, 1), (2,)),
    ],
)
def test_places_and_grids(function: Any):
    same(function(tnp), function(np))


def test_grids_compile_nothing():
    with counted() as events:
        tnp.tril_indices(3), tnp.indices((2, 2)), tnp.logspace(0, 1, 3), tnp.geomspace(1, 2, 3), tnp.linspace(0, 1, 3)
        tnp.unique(X), tnp.nonzero(X)
    assert events.calls == 0


def test_python_numbers_keep_their_precision():
    wide = np.zeros(2)
    assert float(tnp.append(wide, 0.1)[-1]) == 0.1
    assert float(tnp.stack([tnp.asarray(np.float64(1)), 0.1])[1]) == 0.1
    assert float(tnp.interp(0.1, np.asarray([0.0, 1.0]), np.asarray([0.0, 1.0]))) == 0.1
    assert float(tnp.polyval(np.asarray([1.0, 0.0]), 0.1)) == 0.1
    assert float(tnp.block([tnp.asarray(np.float64(1)), 0.1])[1]) == 0.1
    assert float(tnp.full((1,), 0.1, "float64")[0]) == 0.1
    assert float(tnp.dot(0.1, np.float64(1))) == 0.1


def test_copies_can_outlive_a_donation():
    x = tnp.asarray(REAL)
    for copied in (tnp.copy(x), tnp.array(x), x.copy(), tnp.asarray(x, copy=True)):
        assert copied is not x
    assert tnp.asarray(x) is x and tnp.asarray(x, copy=False) is x
    y = x.copy()
    tvmfun.jit(lambda x: x + 1, donate_argnums=0)(y)
    assert y.is_deleted() and not x.is_deleted()
    with pytest.raises(ArgumentError, match="copy"):
        tnp.asarray(REAL, copy=False)


def test_from_dlpack():
    same(tnp.from_dlpack(REAL), REAL)
    x = tnp.asarray(REAL)
    assert tnp.from_dlpack(x) is x
    with pytest.raises(DtypeError, match=r"\[from_dlpack\]"):
        tnp.from_dlpack([1])
    with pytest.raises(ArgumentError, match="copy=False"):
        tnp.from_dlpack(REAL, copy=False)


@pytest.mark.slow
def test_methods():
    x = tnp.asarray(REAL)
    for name in ("cumsum", "cumprod", "ptp", "sum", "mean", "argsort", "diagonal", "trace", "nonzero", "copy", "ravel"):
        expected = getattr(np, name)(REAL) if name == "ptp" else getattr(REAL, name)()
        same(getattr(x, name)(), expected)
    same(x.sort(0), np.sort(REAL, 0))
    same(x.searchsorted(0.1) if x.ndim == 1 else x[0].sort().searchsorted(0.1), np.sort(REAL[0]).searchsorted(0.1))
    same(x.partition(1), np.sort(REAL))
    same(x.take([0, 1], axis=1), REAL.take([0, 1], axis=1))
    same(np.cumsum(x, axis=1), REAL.cumsum(axis=1))
    assert complex(x[0, 0]) == complex(REAL[0, 0])
    same(x.compress([False, True], axis=0), REAL.compress([False, True], axis=0))
    for part in (x.real, x.conj(), x.conjugate()):
        same(part, REAL)
    same(x.imag, REAL.imag)
    same(x.view("int32" if x.dtype.itemsize == 4 else "int64"), REAL.view(f"int{8 * REAL.itemsize}"))
    same(x.view("int16"), REAL.view("int16"))


def test_numbers_are_arrays_that_do_not_change():
    """Ops one by one keep them: results are others, also where they are donated, or written to through a view."""
    doubled = tvmfun.jit(lambda x: x * 2, donate_argnums=0)
    for _ in range(3):
        total = tnp.asarray(1.0) + 5.0
        assert float(doubled(total)) == 12.0
        for number in (5.0, -0.0, 0.0, np.nan, True, 5):
            np.testing.assert_array_equal(tnp.add(tnp.zeros((2,), "float32"), number), np.full(2, number, "float32"))
            assert np.signbit(tnp.add(tnp.asarray(-0.0), number)) == np.signbit(np.float32(-0.0) + np.float32(number))
        view = shapes.reshape(np.float32(5), shape=(1,))
        assert float(doubled(view)[0]) == 10.0
    assert (tnp.asarray([1], "int8") + 1).dtype == "int8" and (tnp.asarray([1.0], "bfloat16") + 1).dtype == "bfloat16"
