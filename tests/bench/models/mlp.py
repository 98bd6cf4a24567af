"""A multilayer perceptron, 784-512-512-10, Adam, batch 128."""

from itertools import pairwise

import torch
from bench.case import Case
from bench.models import common

BATCH = 128
SIZES = [784, 512, 512, 10]


def params(rng):
    """He-normal matrices and zero biases."""
    result = {}
    for i, (rows, columns) in enumerate(pairwise(SIZES)):
        result[f"dense{i}"] = common.normal(rng, (rows, columns), (2 / rows) ** 0.5)
        result[f"bias{i}"] = common.zeros((columns,))
    return result


def batch(rng):
    """Numbers and labels."""
    return {"x": common.normal(rng, (BATCH, SIZES[0])), "y": rng.integers(0, 10, BATCH).astype("int32")}


def loss(ns, params, state, batch, key):
    """Softmax cross-entropy."""
    x = batch["x"]
    for i in range(3):
        x = x @ params[f"dense{i}"] + params[f"bias{i}"]
        x = ns.nn.relu(x) if i < 2 else x
    return common.cross_entropy(ns, x, batch["y"]), state


def torch_loss(params, state, batch, train):
    """The same."""
    F = torch.nn.functional
    x = batch["x"]
    for i in range(3):
        x = F.linear(x, params[f"dense{i}"], params[f"bias{i}"])
        x = F.relu(x) if i < 2 else x
    return F.cross_entropy(x, batch["y"].long())


_PRODUCTS = [a * b for a, b in pairwise(SIZES)]

CASE = Case(
    "MLP",
    params,
    batch,
    loss,
    torch_loss,
    lambda optim: optim.adam(1e-3),
    lambda params: torch.optim.Adam(params, 1e-3, fused=True),
    flop=2 * BATCH * (3 * sum(_PRODUCTS) - _PRODUCTS[0]),
    traffic=7,
)
