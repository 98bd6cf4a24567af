"""DLRM: 13 numbers and 26 categories with 10,000 rows each, their products, SGD, batch 256."""

from itertools import pairwise

import torch
from bench.case import Case
from bench.models import common

BATCH, TABLES, ROWS, WIDTH = 256, 26, 10_000, 64
BOTTOM = [13, 512, 256, WIDTH]
PAIRS = (TABLES + 1) * TABLES // 2
TOP = [WIDTH + PAIRS, 512, 256, 1]


def params(rng):
    """Tables of uniform scale, He-normal matrices."""
    result = {f"table{i}": common.normal(rng, (ROWS, WIDTH), ROWS**-0.5) for i in range(TABLES)}
    for part, sizes in (("bottom", BOTTOM), ("top", TOP)):
        for i, (rows, columns) in enumerate(pairwise(sizes)):
            result[f"dense_{part}{i}"] = common.normal(rng, (rows, columns), (2 / rows) ** 0.5)
            result[f"bias_{part}{i}"] = common.zeros((columns,))
    return result


def batch(rng):
    """Numbers, categories, clicks."""
    return {
        "x": common.normal(rng, (BATCH, BOTTOM[0])),
        "rows": rng.integers(0, ROWS, (BATCH, TABLES)).astype("int32"),
        "y": rng.integers(0, 2, BATCH).astype("float32"),
    }


def loss(ns, params, state, batch, key):
    """Binary cross-entropy of the click."""
    np = ns.np

    def perceptron(x, part):
        for i in range(3):
            x = x @ params[f"dense_{part}{i}"] + params[f"bias_{part}{i}"]
            x = ns.nn.relu(x) if part == "bottom" or i < 2 else x
        return x

    dense = perceptron(batch["x"], "bottom")
    vectors = [dense, *(params[f"table{i}"][batch["rows"][:, i]] for i in range(TABLES))]
    stacked = np.stack(vectors, axis=1)
    products = np.einsum("bid,bjd->bij", stacked, stacked)
    i, j = np.tril_indices(TABLES + 1, -1)
    z = perceptron(np.concatenate([dense, products[:, i, j]], axis=1), "top")[:, 0]
    return np.mean(np.maximum(z, 0) - z * batch["y"] + np.log1p(np.exp(-np.abs(z)))), state


def torch_loss(params, state, batch, train):
    """The same; the tables' gradients are sparse."""
    F = torch.nn.functional

    def perceptron(x, part):
        for i in range(3):
            x = F.linear(x, params[f"dense_{part}{i}"], params[f"bias_{part}{i}"])
            x = F.relu(x) if part == "bottom" or i < 2 else x
        return x

    dense = perceptron(batch["x"], "bottom")
    rows = batch["rows"]
    vectors = [F.embedding(rows[:, i], params[f"table{i}"], sparse=True) for i in range(TABLES)]
    stacked = torch.stack([dense, *vectors], 1)
    products = stacked @ stacked.transpose(1, 2)
    i, j = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
    z = perceptron(torch.cat([dense, products[:, i, j]], 1), "top")[:, 0]
    return F.binary_cross_entropy_with_logits(z, batch["y"])


_PRODUCTS = [a * b for sizes in (BOTTOM, TOP) for a, b in pairwise(sizes)]

CASE = Case(
    "DLRM",
    params,
    batch,
    loss,
    torch_loss,
    lambda optim: optim.sgd(0.1),
    lambda params: torch.optim.SGD(params, 0.1),
    flop=2 * BATCH * (3 * (sum(_PRODUCTS) + PAIRS * WIDTH) - _PRODUCTS[0]),
    traffic=0,  # few rows of the tables change
    torch_compiles=False,  # Inductor 2.13 fails on sparse gradients
)
