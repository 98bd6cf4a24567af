"""Training steps to export, and arrays for the C ABI."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn, optim, random


class State(NamedTuple):
    """The state of training."""

    params: dict
    opt_state: Any
    key: Any


OPTIMIZER = optim.sgd(optim.exponential_decay(1e-2, 10, 0.5), momentum=0.9)


def start(key):
    first, second, key = random.split(key, 3)
    params = {
        "hidden": {"w": random.normal(first, (8, 64)) * 0.3, "b": tnp.zeros(64)},
        "out": [random.normal(second, (64, 3)) * 0.3],
    }
    return State(params, OPTIMIZER.init(params), key)


def loss_fn(params, key, x, labels):
    hidden = nn.functional.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    hidden = nn.functional.dropout(key, hidden, 0.5)
    return tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(hidden @ params["out"][0], labels))


def train_step(state, x, labels):
    """Two updates in a loop: with random numbers, and a branch that depends on the data."""

    def update(state, _):
        key, next_key = random.split(state.key)
        loss, grads = tvmfun.value_and_grad(loss_fn)(state.params, key, x, labels)
        grads = lax.cond(loss > 1.0, lambda g: g, lambda g: tvmfun.tree.map(lambda a: a * 0.5, g), grads)
        updates, opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
        return State(optim.apply_updates(state.params, updates), opt_state, next_key), loss

    state, losses = lax.scan(update, state, None, length=2)
    return state, losses


def batch(seed=0, size=32):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, 8)).astype("float32"), rng.integers(0, 3, size).astype("int32")


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes."""
    memory = np.zeros(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def bits(tree: Any) -> list[bytes]:
    """The elements of all leaves of a tree of dicts, sequences, objects and arrays, in the order of their names."""
    if tree is None or isinstance(tree, int):  # an integer is a static field
        return []
    if isinstance(tree, dict):
        return [piece for key in sorted(tree, key=str) for piece in bits(tree[key])]
    if isinstance(tree, list | tuple):
        return [piece for item in tree for piece in bits(item)]
    if hasattr(tree, "dtype"):
        return [np.asarray(tree).tobytes()]
    return [piece for item in vars(tree).values() for piece in bits(item)]
