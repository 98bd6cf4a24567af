"""Row-sparse gradients: what the lookups of a batch leave, against dense gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import grad, jit, nn, optim, random, sparse, tree
from tvmfun.errors import ArgumentError, DtypeError, GradientError, ShapeError

RNG = np.random.default_rng(0)


def table(rows: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal((rows, *shape)).astype(dtype)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# -- optimizers ----------------------------------------------------------------------------------------------------


def _loss(params, ids, y):
    looked_up = tnp.sum(params["table"][ids] @ params["weight"], axis=1)
    return tnp.mean(tnp.square(looked_up - y))


def _trained(optimizer, params, batches, steps_apart: bool = False):
    def step(params, state, ids, y):
        grads = grad(_loss)(params, ids, y)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    state = optimizer.init(params)
    run = jit(step, donate_argnums=(0, 1))
    params, state = tree.map(lambda x: tnp.asarray(x).copy(), (params, state))
    for ids, y in batches:
        params, state = run(params, state, ids, y)
    return params, state


def _batches(rows: int, count: int, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(0, rows, (8, 3)).astype(np.int32), rng.standard_normal((8, 2)).astype(np.float32))
        for _ in range(count)
    ]


@pytest.mark.quick("adagrad")
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_optimizers_without_momentum_do_what_the_dense_gradient_does(name):
    optimizer = getattr(optim, name)(0.1)
    params = {"table": table(20, 4), "weight": table(4, 2)}
    marked = params | {"table": sparse.RowTable(params["table"])}
    batches = _batches(20, 30)
    expected, expected_state = _trained(optimizer, params, batches)
    got, state = _trained(optim.lazy(optimizer), marked, batches)
    np.testing.assert_allclose(np.asarray(got["table"].array), np.asarray(expected["table"]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(got["weight"]), np.asarray(expected["weight"]), rtol=1e-4, atol=1e-5)
    for ours, reference in zip(tree.leaves(state), tree.leaves(expected_state), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(reference), rtol=1e-4, atol=1e-5)


@pytest.mark.quick("<lambda>0")
@pytest.mark.parametrize(
    "make", [lambda: optim.sgd(0.1, momentum=0.9), lambda: optim.adam(0.1), lambda: optim.adamw(0.1, weight_decay=0.1)]
)
def test_rows_wait_until_they_are_looked_up(make):
    """The reference keeps the rows of a step in place of the table, by hand in NumPy."""
    rows, inner = 12, make()
    params = {"table": sparse.RowTable(table(rows, 4)), "weight": table(4, 2)}
    batches = _batches(rows, 6, seed=1)
    got, state = _trained(optim.lazy(inner), params, batches)
    plain = {"table": np.array(params["table"].array), "weight": params["weight"]}
    kept = tree.map(np.array, inner.init(plain))
    for ids, y in batches:
        dense = tree.map(np.asarray, grad(_loss)(plain, ids, y))
        at = np.unique(ids)
        part = lambda x: x[at] if np.shape(x)[:1] == (rows,) else x  # noqa: B023
        grads = {"table": dense["table"][at], "weight": dense["weight"]}
        own = {"table": plain["table"][at], "weight": plain["weight"]}
        updates, new = inner.update(grads, tree.map(part, kept), own)
        new_params = optim.apply_updates(own, updates)
        plain["table"][at] = np.asarray(new_params["table"])
        plain["weight"] = np.asarray(new_params["weight"])

        def put(old, value):
            if np.shape(old)[:1] != (rows,):
                return np.asarray(value)
            old[at] = np.asarray(value)  # noqa: B023
            return old

        kept = tree.map(put, kept, new)
    np.testing.assert_allclose(np.asarray(got["table"].array), plain["table"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(got["weight"]), plain["weight"], rtol=1e-4, atol=1e-5)
    for ours, reference in zip(tree.leaves(state), tree.leaves(kept), strict=True):
        np.testing.assert_allclose(np.asarray(ours), reference, rtol=1e-4, atol=1e-5)


def test_lazy_adam_is_pytorchs_sparse_adam():
    torch = pytest.importorskip("torch")
    values = table(9, 3)
    weight = torch.nn.Parameter(torch.from_numpy(values.copy()))
    theirs = torch.optim.SparseAdam([weight], lr=0.1)
    optimizer = optim.lazy(optim.adam(0.1))
    params = sparse.RowTable(values)
    state = optimizer.init(params)
    loss = lambda t, ids: tnp.sum(tnp.square(t[ids] - 1.0))

    @jit
    def step(params, state, ids):
        updates, state = optimizer.update(grad(loss)(params, ids), state, params)
        return optim.apply_updates(params, updates), state

    for ids, _ in _batches(9, 8, seed=2):
        params, state = step(params, state, ids)
        theirs.zero_grad()
        looked_up = torch.nn.functional.embedding(torch.from_numpy(ids).long(), weight, sparse=True)
        torch.square(looked_up - 1.0).sum().backward()
        theirs.step()
    np.testing.assert_allclose(np.asarray(params.array), weight.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_norms_are_those_of_the_whole_gradient():
    params = {"table": table(50, 2), "weight": table(2, 2)}
    marked = params | {"table": sparse.RowTable(params["table"])}
    optimizer = optim.chain(optim.clip_by_global_norm(0.01), optim.sgd(1.0))
    batches = _batches(50, 4)
    expected, _ = _trained(optimizer, params, batches)
    got, _ = _trained(optim.lazy(optimizer), marked, batches)
    np.testing.assert_allclose(np.asarray(got["table"].array), np.asarray(expected["table"]), rtol=1e-5, atol=1e-6)


def test_a_step_takes_the_same_memory_whatever_the_table():
    optimizer = optim.lazy(optim.adam(0.1))
    plans = []
    for rows in (100, 1_000_000):
        params = {
            "table": sparse.RowTable(tvmfun.ShapeDtype((rows, 4), "float32")),
            "weight": tvmfun.ShapeDtype((4, 2), "float32"),
        }

        def step(params, state, ids, y):
            updates, state = optimizer.update(grad(_loss)(params, ids, y), state, params)
            return optim.apply_updates(params, updates), state

        state = tvmfun.eval_shape(optimizer.init, params)
        compiled = jit(step, donate_argnums=(0, 1)).lower(params, state, *_batches(rows, 1)[0]).compile()
        plans.append(compiled.memory_analysis())
    small, large = plans
    assert (small.temporaries, small.outputs, small.workspaces) == (large.temporaries, large.outputs, large.workspaces)
    assert large.aliased == large.arguments - sum(x.nbytes for x in _batches(100, 1)[0])


def test_several_tables_of_one_size_and_without_tables():
    params = {name: sparse.RowTable(table(6, 2)) for name in ("a", "b")}
    loss = lambda p: tnp.sum(p["a"][np.asarray([1, 1])]) + tnp.sum(tnp.square(p["b"][np.asarray([5])]))
    optimizer = optim.lazy(optim.sgd(1.0, momentum=0.9))
    updates, state = optimizer.update(grad(loss)(params), optimizer.init(params), params)
    new = optim.apply_updates(params, updates)
    change = np.asarray(new["a"].array) - np.asarray(params["a"].array)
    np.testing.assert_allclose(change, -2.0 * (np.arange(6) == 1)[:, None] * np.ones(2), atol=1e-6)
    assert not np.asarray(state[0].trace["b"])[:5].any() and np.asarray(state[0].trace["b"])[5].all()
    plain = optim.lazy(optim.sgd(1.0))
    assert float(plain.update(tnp.asarray(2.0), plain.init(tnp.asarray(0.0)))[0]) == -2.0


def test_optimizers_that_mix_rows_are_refused():
    mixing = optim.GradientTransformation(
        lambda params: tree.map(lambda p: tnp.zeros((2, p.shape[0])), params), lambda u, s, p=None: (u, s)
    )
    optimizer, params = optim.lazy(mixing), sparse.RowTable(table(6, 2))
    gradient = grad(lambda t: tnp.sum(t[np.asarray([1])]))(params)
    with pytest.raises(ArgumentError, match="first axis of its state"):
        optimizer.update(gradient, optimizer.init(params), params)


def test_an_embedding_asks_for_a_sparse_gradient():
    ids = np.asarray([[3, 0, 3], [1, 0, 9]], np.int32)
    dense, marked = (nn.Embedding(10, 4, padding_idx=0, sparse=flag, key=random.key(0)) for flag in (False, True))
    assert "RowTable" in repr(marked) and tree.structure(dense) != tree.structure(marked)
    loss = lambda model: tnp.sum(tnp.square(model(ids) - 1.0))
    (value, expected), (same, got) = (tvmfun.value_and_grad(loss)(model) for model in (dense, marked))
    assert float(value) == float(same)
    np.testing.assert_allclose(np.asarray(got.weight.dense()), np.asarray(expected.weight), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(got.weight.indices), [0, 1, 3, 9, 10, 10])
    with pytest.raises(ArgumentError, match="needs all rows"):
        marked.attend(tnp.ones((1, 4)))


def test_one_sum_per_row_by_hand():
    values, optimizer = table(5, 3), optim.rowwise_adagrad(0.1, 0.5, eps=1e-6)
    state, params, sums = optimizer.init(values), tnp.asarray(values), np.full(5, 0.5)
    for _ in range(3):
        gradient = table(5, 3)
        updates, state = optimizer.update(gradient, state, params)
        params = optim.apply_updates(params, updates)
        sums += np.square(gradient.astype(np.float64)).mean(1)
        values = values - 0.1 * gradient / np.sqrt(sums + 1e-6)[:, None]
    np.testing.assert_allclose(np.asarray(params), values, rtol=1e-5)
    assert state[0].sum_of_squares.shape == (5,)
    assert optimizer.init({"bias": np.ones(3), "scale": 1.0})[0].sum_of_squares["scale"].shape == ()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda g, p: optim.chain(optim.clip_by_global_norm(1.0), optim.lazy(optim.sgd(1.0))),
        lambda g, p: optim.chain(optim.lazy(optim.sgd(1.0)), optim.scale(2.0)),
        lambda g, p: optim.sgd(1.0),
        lambda g, p: optim.adam(1.0),
        lambda g, p: optim.scale(2.0),
        lambda g, p: optim.masked(optim.scale(2.0), True),
        lambda g, p: optim.MultiSteps(optim.sgd(1.0), 2),
        lambda g, p: optim.lazy(optim.MultiSteps(optim.sgd(1.0), 2).gradient_transformation()),
        lambda g, p: optim.flatten(optim.sgd(1.0)),
        lambda g, p: optim.global_norm(g),
        lambda g, p: optim.tree.norm(g),
        lambda g, p: optim.tree.add(g, g),
        lambda g, p: optim.microbatch(lambda ids: grad(lambda t: tnp.sum(t[ids]))(p), 0, 1)(np.asarray([1, 2])),
    ],
)
def test_places_of_rows_are_no_numbers_to_compute_with(misuse):
    params = sparse.RowTable(table(6, 2))
    gradient = grad(lambda t: tnp.sum(t[np.asarray([1, 3])]))(params)
    with pytest.raises(ArgumentError, match=r"RowSparse.*optim\.lazy|larger batch"):
        optimizer = misuse(gradient, params)
        optimizer.update(gradient, optimizer.init(params), params)


def test_wrappers_that_hand_rows_on():
    params = {"table": sparse.RowTable(table(6, 2)), "w": tnp.ones(2)}
    loss = lambda p: tnp.sum(p["table"][np.asarray([1, 3, 1])] * p["w"])
    plain = optim.lazy(optim.chain(optim.clip_by_global_norm(0.5), optim.sgd(1.0)))
    expected = plain.update(grad(loss)(params), plain.init(params), params)[0]
    for optimizer in (
        optim.chain(plain),
        optim.partition({"all": plain}, "all"),
        optim.inject_hyperparams(lambda rate: optim.lazy(optim.chain(optim.clip_by_global_norm(0.5), optim.sgd(rate))))(
            1.0
        ),
    ):
        updates = optimizer.update(grad(loss)(params), optimizer.init(params), params)[0]
        for ours, reference in zip(tree.leaves(updates), tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(ours), np.asarray(reference), rtol=1e-6)


@pytest.mark.slow
def test_a_frozen_table():
    model = {"words": nn.Embedding(9, 2, sparse=True, key=random.key(0)), "head": nn.Linear(2, 1, key=random.key(1))}
    trainable, frozen = nn.partition(model, "head")
    loss = lambda part: tnp.sum(nn.combine(part, frozen)["head"](nn.combine(part, frozen)["words"](np.asarray([1, 2]))))
    grads = grad(loss)(trainable)
    optimizer = optim.lazy(optim.adam(0.1))
    updates, _ = optimizer.update(grads, optimizer.init(trainable), trainable)
    new = nn.combine(optim.apply_updates(trainable, updates), frozen)
    assert new["words"].weight.array is model["words"].weight.array
    assert not np.array_equal(np.asarray(new["head"].weight), np.asarray(model["head"].weight))
    assert "float32[9,2]" in repr(model["words"]) and "RowTable(None)" in repr(trainable["words"])
