"""Recurrent layers beside PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from tvmfun import nn, random

torch = pytest.importorskip("torch")
torch_layers = pytest.importorskip("support.torch_layers")
pytestmark = pytest.mark.interop
B, T, F, H = 3, 5, 4, 6

SETTINGS = {
    "RNN": (nn.RNN, torch.nn.RNN, {}),
    "RNN, relu, lengths": (nn.RNN, torch.nn.RNN, {"nonlinearity": "relu", "bias": False, "num_layers": 2}),
    "LSTM": (nn.LSTM, torch.nn.LSTM, {}),
    "LSTM, deep, lengths": (nn.LSTM, torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    "GRU": (nn.GRU, torch.nn.GRU, {}),
    "GRU, deep, lengths": (nn.GRU, torch.nn.GRU, {"bidirectional": True, "bias": False}),
}
LENGTHS = np.asarray([2, T, 3])


def normal(*shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def states(settings, is_lstm, dtype):
    """First states."""
    count = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    h = normal(count, B, settings.get("proj_size", 0) or H, seed=1, dtype=dtype)
    return (h, normal(count, B, H, seed=2, dtype=dtype)) if is_lstm else (h,)


def packed(layer, x, hx):
    """PyTorch's layer over sequences of different lengths."""
    pad = torch.nn.utils.rnn
    y, state = layer(pad.pack_padded_sequence(x, torch.tensor(LENGTHS), True, enforce_sorted=False), hx)
    return pad.pad_packed_sequence(y, True)[0], state


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float64") for name in SETTINGS), ("LSTM", "float32")])
def test_layers(name, dtype):
    ours, theirs, settings = SETTINGS[name]
    is_lstm, has_lengths = ours is nn.LSTM, "lengths" in name
    of_torch = packed if has_lengths else lambda layer, x, hx: layer(x, hx)
    torch_layers.check(
        ours(F, H, **settings, key=random.key(0), dtype=dtype),
        theirs(F, H, **settings, batch_first=True),
        (normal(B, T, F, dtype=dtype), *states(settings, is_lstm, dtype)),
        lambda layer, x, *hx: layer(x, hx if is_lstm else hx[0], seq_lengths=LENGTHS if has_lengths else None),
        lambda layer, x, *hx: of_torch(layer, x, hx if is_lstm else hx[0]),
    )


@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells(name):
    is_lstm = name == "LSTMCell"
    torch_layers.check(
        getattr(nn, name)(F, H, key=random.key(0), dtype="float64"),
        getattr(torch.nn, name)(F, H),
        (normal(B, F), *(h[0] for h in states({}, is_lstm, "float64"))),
        lambda cell, x, *hx: cell(x, hx if is_lstm else hx[0]),
        lambda cell, x, *hx: cell(x, hx if is_lstm else hx[0]),
        steps=1,
    )
