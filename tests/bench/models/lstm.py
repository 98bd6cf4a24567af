"""One LSTM layer over 64 steps, the last state classified, Adam, batch 32."""

import torch
from bench.case import Case
from bench.models import common

BATCH, LENGTH, INPUTS, WIDTH = 32, 64, 128, 256


def params(rng):
    """Uniform scale, as PyTorch has it."""
    return {
        "dense_x": common.normal(rng, (INPUTS, 4 * WIDTH), WIDTH**-0.5),
        "dense_h": common.normal(rng, (WIDTH, 4 * WIDTH), WIDTH**-0.5),
        "bias_x": common.zeros((4 * WIDTH,)),
        "dense_o": common.normal(rng, (WIDTH, 10), WIDTH**-0.5),
        "bias_o": common.zeros((10,)),
    }


def batch(rng):
    """Sequences, time first, and labels."""
    return {"x": common.normal(rng, (LENGTH, BATCH, INPUTS)), "y": rng.integers(0, 10, BATCH).astype("int32")}


def loss(ns, params, state, batch, key):
    """Softmax cross-entropy; the inputs' products are one matrix product before the loop."""
    np, nn = ns.np, ns.nn

    def cell(carry, x):
        h, c = carry
        i, f, g, o = np.split(x + h @ params["dense_h"], 4, axis=-1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * np.tanh(g)
        return (nn.sigmoid(o) * np.tanh(c), c), None

    start = np.zeros((BATCH, WIDTH))
    (h, _), _ = ns.lax.scan(cell, (start, start), batch["x"] @ params["dense_x"] + params["bias_x"])
    return common.cross_entropy(ns, h @ params["dense_o"] + params["bias_o"], batch["y"]), state


def torch_loss(params, state, batch, train):
    """The same with PyTorch's own layer."""
    F = torch.nn.functional
    start = torch.zeros(1, BATCH, WIDTH, device=batch["x"].device)
    weights = [params["dense_x"], params["dense_h"], params["bias_x"], torch.zeros_like(params["bias_x"])]
    _, h, _ = torch.lstm(batch["x"], (start, start), weights, True, 1, 0.0, train, False, False)
    return F.cross_entropy(F.linear(h[0], params["dense_o"], params["bias_o"]), batch["y"].long())


CASE = Case(
    "LSTM",
    params,
    batch,
    loss,
    torch_loss,
    lambda optim: optim.adam(1e-3),
    lambda params: torch.optim.Adam(params, 1e-3, fused=True),
    flop=2 * LENGTH * BATCH * 4 * WIDTH * (2 * INPUTS + 3 * WIDTH),
    traffic=7,
    torch_compiles=False,  # Inductor 2.13 fails on oneDNN's LSTM
)
