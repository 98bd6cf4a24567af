"""Row-sparse gradients: what the lookups of a batch leave, against dense gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import grad, jit, sparse
from tvmfun.errors import DtypeError, GradientError, ShapeError

RNG = np.random.default_rng(0)


def table(rows: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal((rows, *shape)).astype(dtype)


@settings(max_examples=15)
@given(
    st.integers(1, 9),
    st.sampled_from([(), (3,), (2, 2)]),
    st.sampled_from([(), (1,), (0,), (5,), (2, 4)]),
    st.sampled_from(["float32", "float64"]),
    st.data(),
)
def test_equals_the_dense_gradient(rows, row, shape, dtype, data):
    size = int(np.prod(shape))
    places = data.draw(st.lists(st.integers(-rows, rows - 1), min_size=size, max_size=size))
    ids = np.asarray(places, np.int32).reshape(shape)
    values = table(rows, *row, dtype=dtype)
    loss = lambda t, ids: tnp.sum(tnp.sin(t[ids])) + tnp.sum(tnp.square(t[ids]))
    expected = grad(loss)(values, ids)
    got = jit(grad(loss))(sparse.RowTable(values), ids)
    assert isinstance(got, sparse.RowSparse) and got.shape == values.shape and got.rows.dtype == values.dtype
    np.testing.assert_allclose(np.asarray(got.dense()), np.asarray(expected), rtol=1e-5, atol=1e-6)
    indices = np.asarray(got.indices)
    named = np.unique(ids % rows)
    np.testing.assert_array_equal(indices, np.pad(named, (0, len(indices) - len(named)), constant_values=rows))
    assert not np.asarray(got.rows)[len(named) :].any()


def test_lookups_in_several_places_and_two_tables_in_a_tree():
    first, second, weight = table(6, 2), table(4, 2), table(2, 2)
    ids = np.asarray([5, 0, 5], np.int32)

    def loss(params, ids):
        x = params["first"][ids] @ params["weight"] + params["second"][ids % 4]
        return tnp.sum(tnp.square(x)) + tnp.sum(params["first"][ids[0]]) * params["scale"]

    params = {"first": first, "second": second, "weight": weight, "scale": 2.0}
    marked = params | {"first": sparse.RowTable(first), "second": sparse.RowTable(second)}
    expected = grad(loss)(params, ids)
    value, got = tvmfun.value_and_grad(loss)(marked, ids)
    np.testing.assert_allclose(float(value), float(loss(params, ids)), rtol=1e-6)
    for name in ("first", "second"):
        np.testing.assert_allclose(np.asarray(got[name].dense()), np.asarray(expected[name]), rtol=1e-5)
    for name in ("weight", "scale"):
        np.testing.assert_allclose(np.asarray(got[name]), np.asarray(expected[name]), rtol=1e-5)
    assert got["first"].rows.shape == (4, 2) and got["second"].rows.shape == (3, 2)


def test_under_vmap_and_mixed_precision_and_with_aux():
    values, ids, w = table(7, 4), np.asarray([[1, 3], [6, 1]], np.int32), table(4, 4)
    one = lambda t, i: tnp.tanh(t[i] @ w)
    loss = lambda t: (tnp.sum(tvmfun.vmap(one, in_axes=(None, 0))(t, ids)), 3.0)
    (_, aux), got = tvmfun.value_and_grad(loss, has_aux=True)(sparse.RowTable(values))
    assert float(aux) == 3.0
    expected, _ = grad(loss, has_aux=True)(values)
    np.testing.assert_allclose(np.asarray(got.dense()), np.asarray(expected), rtol=1e-5, atol=1e-6)
    mixed = grad(tvmfun.amp(lambda t: loss(t)[0]))(sparse.RowTable(values))
    np.testing.assert_allclose(np.asarray(mixed.dense()), np.asarray(expected), atol=0.05)


def test_what_is_out_of_range_is_dropped_or_clamped_as_in_the_dense_gradient():
    values, ids = table(4, 2), np.asarray([9, 1, -9], np.int32)
    for mode in ("clip", "fill"):
        loss = lambda t, mode=mode: tnp.sum(tnp.square(tnp.take(t, ids, axis=0, mode=mode, fill_value=0)))
        got = grad(lambda t: loss(t.array))(sparse.RowTable(values))  # noqa: B023
        np.testing.assert_allclose(np.asarray(got.dense()), np.asarray(grad(loss)(values)), rtol=1e-6)


def test_the_large_gradient_is_never_made():
    ids = np.asarray([3, 1], np.int32)
    step = jit(grad(lambda t, ids: tnp.sum(tnp.square(t[ids]))))
    plans = [
        step.lower(sparse.RowTable(tvmfun.ShapeDtype((rows, 8), "float32")), ids).compile().memory_analysis()
        for rows in (100, 1_000_000)
    ]
    assert plans[0].temporaries == plans[1].temporaries and plans[0].outputs == plans[1].outputs


def test_other_uses_are_refused_with_their_place():
    marked = sparse.RowTable(table(4, 2))
    ids = np.asarray([1, 2], np.int32)
    for use in (
        lambda t: tnp.sum(t.array),
        lambda t: tnp.sum(tvmfun.checkpoint(lambda i: t[i])(ids)),
        lambda t: tnp.sum(t.array[ids, ids % 2]),
    ):
        with pytest.raises(GradientError, match=r"must be looked up .* at .*test_sparse\.py"):
            grad(use)(marked)


def test_tables_are_checked():
    with pytest.raises(ShapeError, match="axis of rows"):
        sparse.RowTable(np.float32(1))
    with pytest.raises(DtypeError, match="floats"):
        sparse.RowTable(np.arange(3))
