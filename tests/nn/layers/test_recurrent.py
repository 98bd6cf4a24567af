"""Recurrent layers against plain loops in NumPy, and in transforms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.errors import ArgumentError, DtypeError, ShapeError

B, T, F, H = 3, 5, 4, 6
LAYERS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}


def normal(*shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def next_state(cell, x, state):
    """One step for one sequence."""
    w_ih, w_hh, b_ih, b_hh = (np.asarray(w) for w in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh))
    a, b = x @ w_ih + b_ih, state[0] @ w_hh + b_hh
    if isinstance(cell, nn.RNNCell):
        return (np.maximum(a + b, 0) if cell.nonlinearity == "relu" else np.tanh(a + b),)
    if isinstance(cell, nn.LSTMCell):
        i, f, g, o = np.split(a + b, 4)
        c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return (h if cell.weight_hr is None else h @ np.asarray(cell.weight_hr)), c
    (a_r, a_z, a_n), (b_r, b_z, b_n) = np.split(a, 3), np.split(b, 3)
    r, z = sigmoid(a_r + b_r), sigmoid(a_z + b_z)
    return ((1 - z) * np.tanh(a_n + r * b_n) + z * state[0],)


def loop(layers, x, lengths):
    """All layers of cells, sequence by sequence, from zeros: outputs and last states."""
    rows, states = x, []
    for cells in layers:
        outputs = []
        for backwards, cell in enumerate(cells):
            output = np.zeros((*x.shape[:2], cell.weight_hh.shape[0]))
            last = [np.zeros((len(x), size)) for size in cell.state_sizes]
            for b, length in enumerate(lengths):
                for t in reversed(range(length)) if backwards else range(length):
                    for state, new in zip(last, next_state(cell, rows[b, t], [s[b] for s in last]), strict=True):
                        state[b] = new
                    output[b, t] = last[0][b]
            outputs.append(output)
            states.append(last)
        rows = np.concatenate(outputs, axis=-1)
    return rows, [np.stack(arrays) for arrays in zip(*states, strict=True)]


SETTINGS = {
    "RNN": {"nonlinearity": "relu", "num_layers": 2},
    "LSTM": {"proj_size": 2, "bidirectional": True, "num_layers": 2},
    "GRU": {"bidirectional": True},
}


@pytest.mark.quick("LSTM")
@pytest.mark.parametrize("name", LAYERS)
def test_plain_loops(name):
    layer = LAYERS[name](F, H, **SETTINGS[name], key=random.key(0), dtype="float64")
    x, run = normal(B, T, F), tvmfun.jit(lambda layer, x, n: layer(x, seq_lengths=n))
    for lengths in ([T, T, T], [0, 3, T]):
        y, state = run(layer, x, np.asarray(lengths))
        expected, states = loop(layer.cells, x, lengths)
        for got, want in zip([y, *tree.leaves(state)], [expected, *states], strict=True):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-12, atol=1e-13)
    for got, want in zip(tree.leaves(layer(x)), tree.leaves(run(layer, x, np.full(B, T))), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_cells_are_the_steps_of_layers_and_batches_need_not_be(name):
    layer, x = LAYERS[name](F, H, key=random.key(0)), normal(B, T, F, dtype="float32")

    @tvmfun.jit
    def all_ways(layer, x):
        state = None
        for t in range(T):
            state = layer.cells[0][0](x[:, t], state)
        one = layer.cells[0][0](x[0, 0])
        return layer(x), state, layer(x[1]), tvmfun.vmap(lambda x: layer(x[None]))(x), one

    (y, final), state, (y_1, final_1), (ys, finals), one = all_ways(layer, x)
    near = lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    near(y_1, y[1])
    near(ys[:, 0], y)
    near(tree.leaves(one)[0], y[0, 0])
    for whole, stepped, single, mapped in zip(*map(tree.leaves, (final, state, final_1, finals)), strict=True):
        near(whole[0], stepped)
        near(whole[:, 1], single)
        near(whole, mapped[:, :, 0].swapaxes(0, 1))


@pytest.mark.slow
@given(batch=st.integers(0, 3), length=st.integers(0, 3))
@settings(max_examples=5, deadline=None)
def test_any_sizes(batch, length):
    layer = nn.GRU(F, H, key=random.key(0), dtype="float64")
    x = normal(batch, length, F)
    y, h = layer(x)
    expected, (h_expected,) = loop(layer.cells, x, [length] * batch)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(np.asarray(h), h_expected, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_dynamic_batch():
    layer = nn.LSTM(F, H, key=random.key(0))
    run = tvmfun.jit(lambda x: layer(x), dynamic_shapes=({0: "b"},))
    for batch in (1, 4):
        x = normal(batch, T, F, dtype="float32")
        for got, want in zip(tree.leaves(run(x)), tree.leaves(layer(x)), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_dropout_is_between_layers():
    layer = nn.RNN(F, H, num_layers=2, dropout=0.5, key=random.key(0), dtype="float64")
    x, key = normal(B, T, F), random.key(3)
    y, _ = layer(x, key=key)
    hidden, _ = loop(layer.cells[:1], x, [T] * B)
    dropped = np.asarray(nn.functional.dropout(random.fold_in(key, 1), hidden.swapaxes(0, 1), 0.5)).swapaxes(0, 1)
    assert 0 < (dropped == 0).sum() < dropped.size
    np.testing.assert_allclose(np.asarray(y), loop(layer.cells[1:], dropped, [T] * B)[0], rtol=1e-12, atol=1e-13)
    y, _ = layer(x, train=False)
    np.testing.assert_allclose(np.asarray(y), loop(layer.cells, x, [T] * B)[0], rtol=1e-12, atol=1e-13)
    with pytest.raises(ArgumentError, match=r"\[RNN\] a key is needed for training"):
        layer(x)


@pytest.mark.slow
def test_dtypes():
    layer = nn.LSTM(F, H, key=random.key(0))
    y, (h, c) = layer(normal(B, T, F))
    assert y.dtype == h.dtype == c.dtype == np.float64
    assert layer(normal(B, T, F, dtype="float32"), (np.zeros((1, B, H)),) * 2)[0].dtype == np.float64
    assert layer(tnp.ones((B, T, F), "bfloat16"))[0].dtype == np.float32


def test_first_parameters():
    layer = nn.LSTM(3, 100, key=random.key(0), bidirectional=True, num_layers=2)
    again = nn.LSTM(3, 100, key=random.key(0), bidirectional=True, num_layers=2)
    leaves = tree.leaves(layer)
    assert [leaf.shape for leaf in tree.leaves(layer.cells[1][0])] == [(200, 400), (100, 400), (400,), (400,)]
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(leaves, tree.leaves(again), strict=True))
    for leaf in leaves:
        assert 0.09 < np.abs(np.asarray(leaf)).max() <= 0.1
    assert len({float(leaf.ravel()[0]) for leaf in leaves}) == len(leaves)


def test_errors():
    layer, key = nn.LSTM(F, H, key=random.key(0)), random.key(0)
    with pytest.raises(ShapeError, match=r"\[LSTM\] the input must be \(batch, length, 4\)"):
        layer(np.zeros((B, T, F + 1), "float32"))
    with pytest.raises(ShapeError, match=r"\[LSTM\] the state must have the shape \(1, 3, 6\)"):
        layer(np.zeros((B, T, F), "float32"), (np.zeros((1, B, H)), np.zeros((1, B, F))))
    with pytest.raises(ArgumentError, match=r"the state must be a pair \(h, c\), got "):
        layer(np.zeros((B, T, F), "float32"), tnp.zeros((1, B, H)))
    with pytest.raises(ShapeError, match=r"seq_lengths must be integers of shape \(3,\)"):
        layer(np.zeros((B, T, F), "float32"), seq_lengths=np.zeros(2, "int32"))
    with pytest.raises(ShapeError, match=r"\[GRUCell\].*Try GRU for sequences"):
        nn.GRUCell(F, H, key=key)(np.zeros((B, T, F), "float32"))
    with pytest.raises(ArgumentError, match=r"unknown nonlinearity, got 'gelu'. Try 'relu' or 'tanh'"):
        nn.RNN(F, H, nonlinearity="gelu", key=key)
    with pytest.raises(ArgumentError, match="proj_size must be at least 0 and less than 6, got 6"):
        nn.LSTM(F, H, proj_size=6, key=key)
    with pytest.raises(ArgumentError, match=r"\[GRU\] num_layers must be a positive integer, got 0"):
        nn.GRU(F, H, 0, key=key)
    with pytest.raises(DtypeError, match="the dtype of the parameters must be a float"):
        nn.GRU(F, H, key=key, dtype="int32")
