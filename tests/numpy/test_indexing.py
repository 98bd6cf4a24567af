"""Indexing against NumPy, at once and traced; functional updates; taking and sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tvmfun
from tvmfun import numpy as tnp
from tvmfun.counters import counted
from tvmfun.errors import ConcretizationError, DtypeError, IndexingError, ShapeError

SHAPE = (3, 1, 4)
HOST = np.arange(12, dtype="float32").reshape(SHAPE)
few = settings(max_examples=15)
many = settings(max_examples=25)

basic = hnp.basic_indices(SHAPE, allow_newaxis=True, allow_ellipsis=True)
arrays = hnp.integer_array_indices(SHAPE, result_shape=hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
mixed = st.one_of(
    st.tuples(st.integers(-3, 2), arrays.map(lambda a: a[1]), st.slices(4)),
    st.tuples(arrays.map(lambda a: a[0]), st.just(None), st.slices(1), arrays.map(lambda a: a[2])),
    st.tuples(st.slices(3), st.just(Ellipsis), arrays.map(lambda a: a[2])),
    st.tuples(st.slices(3), arrays.map(lambda a: a[1]), st.integers(-4, 3)),
    hnp.arrays(bool, SHAPE),
    st.tuples(st.slices(3), hnp.arrays(bool, SHAPE[1:])),
    st.tuples(hnp.arrays(bool, SHAPE[:1]), st.integers(-1, 0)),
)


def same(actual, expected):
    actual = np.asarray(actual)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual, expected)


def numpy_result(index):
    """NumPy's result, or None if the index arrays do not broadcast."""
    try:
        return HOST[index]
    except IndexError:
        return None


@given(st.one_of(basic, arrays, mixed))
@many
def test_indexing_is_that_of_numpy(index):
    expected = numpy_result(index)
    if expected is None:
        with pytest.raises((IndexError, ShapeError)):
            tnp.asarray(HOST)[index]
    else:
        same(tnp.asarray(HOST)[index], expected)


@given(st.one_of(basic, arrays, mixed))
@few
def test_traced_indexing_is_that_of_numpy(index):
    expected = numpy_result(index)
    if expected is not None:
        same(tvmfun.jit(lambda x: x[index])(HOST), expected)


@pytest.mark.slow
@given(st.one_of(basic, arrays, mixed), st.sampled_from(["set", "add", "subtract"]))
@many
def test_updates_are_those_of_numpy(index, mode):
    check_update(lambda x, values: getattr(x.at[index], mode)(values), index, mode)


@pytest.mark.slow
@given(st.one_of(basic, arrays, mixed), st.sampled_from(["set", "add", "subtract"]))
@few
def test_traced_updates_are_those_of_numpy(index, mode):
    check_update(tvmfun.jit(lambda x, values: getattr(x.at[index], mode)(values)), index, mode)


def check_update(update, index, mode):
    if numpy_result(index) is None:
        return
    values = np.arange(1, 1 + HOST[index].size, dtype="float32").reshape(HOST[index].shape)
    expected = HOST.copy()
    if mode == "set":
        expected[index] = values
    else:
        getattr(np, mode).at(expected, index, values)
    same(update(tnp.asarray(HOST), values), expected)


def test_traced_integers_as_indices():
    host = np.arange(12).reshape(3, 4)
    pick = tvmfun.jit(lambda x, i, j: (x[i], x[i, j], x[:, j], x[i, ::2], x[i, None, j], x[..., i, j]))
    for i, j in ((0, 3), (-1, -4)):
        results = pick(host, i, np.int64(j))
        expected = host[i], host[i, j], host[:, j], host[i, ::2], host[i, None, j], host[..., i, j]
        for actual, wanted in zip(results, expected, strict=True):
            same(actual, np.asarray(wanted))


@pytest.mark.quick("uint64-traced", "uint8-eager", "uint8-traced", "int32-eager")
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_places_outside_are_clamped_and_their_updates_dropped(dtype, traced):
    info = np.iinfo(dtype)
    places = np.array([2, 5, info.max, info.min if info.min else 0, 0], dtype)
    x = np.array([10, 20, 30])

    def f(x, places):
        return x[places], x.at[places].add(1), x[None, :, None].at[:, places].set(7)

    read, added, put = (tvmfun.jit(f) if traced else f)(tnp.asarray(x), tnp.asarray(places))
    below = 1 if info.min == 0 else 0
    same(read, np.array([30, 30, 30, 10, 10]))
    same(added, np.array([11 + below, 20, 31]))
    same(put, np.array([[[7], [20], [7]]]))


def test_negative_places_count_from_the_end():
    x = tnp.asarray([1, 2, 3])
    same(x[tnp.asarray([-1, -3])], np.array([3, 1], "int32"))
    same(x[tnp.asarray([-4, -100])], np.array([1, 1], "int32"))
    same(x.at[tnp.asarray([-1, -4])].set(9), np.array([1, 2, 9], "int32"))


def test_the_last_of_several_updates_stays_and_all_are_added():
    x = tnp.zeros(3, "int32")
    same(x.at[tnp.asarray([1, 1, 0])].set([5, 6, 7]), np.array([7, 6, 0], "int32"))
    same(x.at[tnp.asarray([1, 1, 0])].add([5, 6, 7]), np.array([7, 11, 0], "int32"))


def test_update_values_broadcast_and_are_cast():
    x = tnp.ones((2, 3))
    assert x.at[0].set(np.float64(2)).dtype == "float32"
    same(x.at[:, 1:].set([[7], [8]]), np.array([[1, 7, 7], [1, 8, 8]], "float32"))
    same(x.at[0].set(np.zeros((1, 3))), np.array([[0, 0, 0], [1, 1, 1]], "float32"))
    same(tnp.zeros(2, "bool").at[0].set(True), np.array([True, False]))
    same(tnp.zeros(2, "bfloat16").at[1:].add(1), np.array([0, 1]).astype(tnp.bfloat16))
    same(x.at[0, 0].get(), np.float32(1))
    with pytest.raises(ShapeError, match=r"\[at\] the values must broadcast to the shape of the elements, \(3,\)"):
        x.at[0].set(np.ones(2))
    with pytest.raises(ShapeError, match="broadcast"):
        tnp.zeros((3, 4))[[0, 1], [0, 1, 2]]
    with pytest.raises(IndexingError, match="2 elements"):
        x.at[2].set(0)
    with pytest.raises(DtypeError, match=r"\[at\]"):
        x.at[0].set("a")


def test_traced_masks_update_one_value():
    f = tvmfun.jit(lambda x: (x.at[x > 1].set(0), x.at[x > 1].add(10)))
    first, second = f(np.array([1, 2, 3]))
    same(first, np.array([1, 0, 0]))
    same(second, np.array([1, 12, 13]))
    rows = tvmfun.jit(lambda x, m: x.at[m].set(0))
    same(rows(np.ones((2, 2), "float32"), np.array([True, False])), np.array([[0, 0], [1, 1]], "float32"))
    with pytest.raises(ConcretizationError, match=r"\[at\]"):
        tvmfun.jit(lambda x: x.at[x > 1].set(x))(np.array([1, 2]))
    with pytest.raises(ConcretizationError, match=r"\[index\] a mask that is being traced"):
        tvmfun.jit(lambda x: x[x > 1])(np.array([1, 2]))
    with pytest.raises(ConcretizationError, match="slice must not be traced"):
        tvmfun.jit(lambda x, n: x[:n])(np.array([1, 2]), 1)


def test_masks_must_fit():
    x = tnp.ones((2, 3))
    for index in (np.ones(3, bool), np.ones((2, 2), bool), (slice(None), np.ones(2, bool))):
        with pytest.raises(IndexingError, match="mask"):
            x[index]
    same(x[..., np.array([True, False, True])], np.ones((2, 2), "float32"))
    same(x[x > 0], np.ones(6, "float32"))


def test_arrays_without_elements():
    x = tnp.zeros((0, 3))
    assert x[:, 1].shape == x[tnp.asarray([], "int32"), 0].shape == (0,)
    assert x[np.zeros((2, 0), int)].shape == (2, 0, 3)
    assert x.at[:, 1].set(1).shape == (0, 3)
    assert tnp.ones(3)[[]].shape == (0,)
    with pytest.raises(IndexError):
        x[tnp.asarray([0])]
    with pytest.raises(IndexError):
        x[0]


def test_reading_one_element_after_the_other_compiles_nothing():
    x = tnp.asarray(np.arange(5.0))
    with counted() as events:
        assert [float(v) for v in x] == [0, 1, 2, 3, 4]
        x[1:3], x[::-1], x[np.arange(5) > 2], x[tnp.asarray([1, 2])], x.at[1:3].set(0), x.at[2].add(1)
    assert events.calls == 0


def test_slices_in_a_trace_make_no_scatter():
    program = tvmfun.trace(lambda x: x.at[1:, ::2].set(1.0))(tvmfun.ShapeDtype((4, 6), "float32"))
    assert {equation.op.name for equation in program.equations} <= {"pad", "where", "broadcast_to", "reshape"}
    assert not program.captured


def test_updates_have_derivatives():
    def f(x, y):
        return tnp.sum(x.at[1:, ::-2].set(y) ** 2) + tnp.sum(x.at[np.array([0, 0])].add(y) ** 2)

    x, y = np.ones((3, 4), "float32"), np.full((2, 2), 2, "float32")
    same(
        tvmfun.grad(lambda x: tnp.sum(x.at[1:, ::-2].set(y)))(x),
        1 - np.array([[0, 0, 0, 0]] + [[0, 1, 0, 1]] * 2, "float32"),
    )
    same(tvmfun.grad(lambda y: tnp.sum(tnp.asarray(x).at[1:, ::-2].set(y) * 3))(y), np.full((2, 2), 3, "float32"))


# -- take, take_along_axis, sort, argsort ------------------------------------------------------------------


def test_take():
    host = np.arange(12).reshape(3, 4)
    places = np.array([[2, 0], [1, 1]])
    for axis in (0, 1, -1, None):
        same(tnp.take(host, places, axis), host.take(places, axis))
        same(tvmfun.jit(lambda x, i, axis=axis: tnp.take(x, i, axis=axis))(host, places), host.take(places, axis))
    same(tnp.take(host, 1, axis=0), host[1])
    same(tnp.take(host, [1, 2], 0), host[1:])
    with pytest.raises(DtypeError, match=r"\[take\] indices must be integers"):
        tnp.take(host, 0.5)
    with pytest.raises(ShapeError, match=r"\[take\]"):
        tnp.take(host, 0, axis=2)


def test_take_along_axis():
    host = np.random.default_rng(0).normal(size=(3, 4, 2)).astype("float32")
    for axis in (0, 1, -1):
        order = host.argsort(axis)[..., :2] if axis == 1 else host.argsort(axis)
        same(tnp.take_along_axis(host, order, axis), np.take_along_axis(host, order, axis))
        same(
            tvmfun.jit(lambda x, i, axis=axis: tnp.take_along_axis(x, i, axis))(host, order),
            np.take_along_axis(host, order, axis),
        )
    with pytest.raises(ShapeError, match=r"\[take_along_axis\]"):
        tnp.take_along_axis(host, np.zeros(3, int), 0)


SORTED = {
    "float32": np.array([[3, np.nan, -1, np.inf, 3], [0.5, -np.inf, 2, np.nan, -2]], "float32"),
    "float64": np.random.default_rng(0).normal(size=(2, 5)),
    "int8": np.array([[3, -128, 127, 0, 3], [5, 4, 3, 2, 1]], "int8"),
    "uint32": np.array([[3, 2**32 - 1, 0, 7, 3]] * 2, "uint32"),
    "int64": np.array([[3, -(2**63), 2**63 - 1, 0, 3]] * 2),
    "bool": np.array([[True, False, True, False, False]] * 2),
    "bfloat16": np.array([[3, 1, 2, -1, 0]] * 2).astype(tnp.bfloat16),
}


@pytest.mark.quick("uint32", "bfloat16", "float32")
@pytest.mark.parametrize("host", SORTED.values(), ids=SORTED)
def test_sort_and_argsort(host):
    wide = host.astype("float32") if host.dtype == tnp.bfloat16 else host
    for axis in (0, -1):
        same(tnp.argsort(host, axis), wide.argsort(axis, kind="stable").astype("int32"))
        same(tnp.sort(host, axis), np.sort(wide, axis).astype(host.dtype))
    down = np.asarray(tnp.sort(host, descending=True)).astype(wide.dtype)
    numbers = [np.sort(row[~np.isnan(row)])[::-1] for row in wide]
    for row, expected in zip(down, numbers, strict=True):  # NaN is the largest
        np.testing.assert_array_equal(row[len(row) - len(expected) :], expected)


def test_sort_is_stable_and_takes_any_length():
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 31, 200):
        host = rng.integers(0, 5, n)
        same(tnp.argsort(host), host.argsort(kind="stable").astype("int32"))
    same(tnp.argsort(np.array([1, 1, 0]), descending=True), np.array([0, 1, 2], "int32"))
    with pytest.raises(ShapeError, match=r"\[argsort\]"):
        tnp.argsort(1.0)


CUBE = np.arange(24, dtype="float32").reshape(2, 3, 4)


@pytest.mark.quick("(?0, 1?, Ellipsis, ?1, 2?, ?1, 1?)", "(Ellipsis, ?0, 1?, ?1, 2?, ?1, 1?)", "((0, 1),)")
@pytest.mark.parametrize(
    "index",
    [
        (..., np.array([True, False, True, True])),
        (None, ..., np.array([[True, False, True, True]] * 3), None),
        (slice(None), -1, ..., np.array([[-1, 0]])),  # an ellipsis for no axis keeps its neighbours apart
        (slice(None), [0, 1], ..., [1, 1]),
        ([0, 1], ..., [1, 2], [1, 1]),
        (..., [0, 1], [1, 2], [1, 1]),
        ((0, 1),),
    ],
    ids=str,
)
def test_what_an_ellipsis_stands_for(index):
    expected, updated = CUBE[index], CUBE.copy()
    updated[index] = 7
    x = tnp.asarray(CUBE)
    for got in (x[index], tvmfun.jit(lambda x: x[index])(x)):
        np.testing.assert_array_equal(got, expected)
    for got in (x.at[index].set(7), tvmfun.jit(lambda x: x.at[index].set(7))(x)):
        np.testing.assert_array_equal(got, updated)


@pytest.mark.parametrize("index", [(..., np.ones(3, bool)), (..., np.ones(4, bool), 0), (0, np.ones((4, 3), bool))])
def test_masks_must_have_the_sizes_of_their_axes(index):
    with pytest.raises(IndexingError, match="the mask must have the shape"):
        tnp.asarray(CUBE)[index]
