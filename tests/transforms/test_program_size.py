"""Derivative Programs are as small as hand-written ones."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.program import Program, Variable
from tvmfun.lower.fusion.fuse import fuse

WIDTH, HEADS, LENGTH, BATCH, WORDS = 32, 4, 16, 8, 50


def transformer(layers: int):
    """A language model's loss and its parameters' types."""
    spec = lambda *shape: tvmfun.ShapeDtype(shape, "float32")
    block = {
        "norm": (spec(WIDTH), spec(WIDTH)),
        "qkv": (spec(WIDTH, 3 * WIDTH), spec(3 * WIDTH)),
        "out": (spec(WIDTH, WIDTH), spec(WIDTH)),
        "norm2": (spec(WIDTH), spec(WIDTH)),
        "up": (spec(WIDTH, 4 * WIDTH), spec(4 * WIDTH)),
        "down": (spec(4 * WIDTH, WIDTH), spec(WIDTH)),
    }
    params = {"words": spec(WORDS, WIDTH), "places": spec(LENGTH, WIDTH), "blocks": [block] * layers}
    tokens = tvmfun.ShapeDtype((BATCH, LENGTH + 1), "int32")
    mask = np.tril(np.ones((LENGTH, LENGTH), bool))

    def normalized(x, scale, shift):
        mean = tnp.mean(x, axis=-1, keepdims=True)
        spread = tnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
        return (x - mean) / tnp.sqrt(spread + 1e-5) * scale + shift

    def softmax(x):
        e = tnp.exp(x - lax.stop_gradient(tnp.max(x, axis=-1, keepdims=True)))
        return e / tnp.sum(e, axis=-1, keepdims=True)

    def attention(p, x):
        w, b = p["qkv"]
        qkv = tnp.reshape(x @ w + b, (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS))
        q, k, v = (tnp.permute_dims(qkv[:, :, i], (0, 2, 1, 3)) for i in range(3))
        scores = q @ tnp.matrix_transpose(k) / math.sqrt(WIDTH // HEADS)
        mixed = softmax(tnp.where(mask, scores, -1e9)) @ v
        w, b = p["out"]
        return tnp.reshape(tnp.permute_dims(mixed, (0, 2, 1, 3)), (BATCH, LENGTH, WIDTH)) @ w + b

    def feed_forward(p, x):
        hidden = x @ p["up"][0] + p["up"][1]
        hidden = hidden * 0.5 * (1 + lax.erf(hidden / math.sqrt(2)))
        return hidden @ p["down"][0] + p["down"][1]

    def loss(params, tokens):
        x = params["words"][tokens[:, :-1]] + params["places"]
        for p in params["blocks"]:
            x = x + attention(p, normalized(x, *p["norm"]))
            x = x + feed_forward(p, normalized(x, *p["norm2"]))
        logits = x @ params["words"].T
        largest = lax.stop_gradient(tnp.max(logits, axis=-1, keepdims=True))
        logits = logits - largest - tnp.log(tnp.sum(tnp.exp(logits - largest), axis=-1, keepdims=True))
        return -tnp.mean(tnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))

    return loss, params, tokens


def gradient(layers: int) -> Program:
    loss, params, tokens = transformer(layers)
    return tvmfun.trace(tvmfun.grad(loss))(params, tokens)


@pytest.fixture(scope="module")
def program() -> Program:
    return gradient(12)


def test_one_product_per_product_of_the_forward_pass_and_two_more_backwards(program):
    loss, params, tokens = transformer(12)
    forward = Counter(e.op.name for e in tvmfun.trace(loss)(params, tokens).equations)
    backward = Counter(e.op.name for e in program.equations)
    assert forward["dot_general"] == 12 * 6 + 1
    assert backward["dot_general"] == 3 * forward["dot_general"]


def test_no_outer_product_is_made_to_be_summed(program):
    made_by = {out: e for e in program.equations for out in e.outputs}
    for equation in program.equations:
        if equation.op.name == "dot_general":
            assert equation.params["contract"] != ((), ())
        if equation.op.name == "sum" and isinstance(equation.inputs[0], Variable):
            source = made_by.get(equation.inputs[0])
            if source is not None and source.op.name == "dot_general":
                batch_axes = range(len(source.params["batch"][0]))
                assert not set(batch_axes) & set(equation.params["axis"]), "a batched product, summed over the batch"


def test_nothing_is_repeated_in_memory(program):
    """No kernel writes a broadcast, a counter or a one-hot matrix: all its work would be writing."""
    trivial = {"broadcast_to", "iota", "equal", "astype", "reshape", "where"}
    for kernel in fuse(program):
        names = {e.op.name for e in kernel.equations}
        if kernel.is_view or not names <= trivial:
            continue
        written = sum(out.aval.size for out in kernel.outputs)
        assert written <= sum(atom.aval.size for atom in kernel.inputs), names


def test_the_program_grows_by_the_same_for_every_layer():
    sizes = [len(gradient(layers).equations) for layers in (2, 4, 8)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
    loss, params, tokens = transformer(8)
    forward = len(tvmfun.trace(loss)(params, tokens).equations)
    assert sizes[2] < 3 * forward


def test_the_forward_pass_is_not_computed_twice(program):
    counts = Counter(e.op.name for e in program.equations)
    assert counts["erf"] == 12
    assert counts["exp"] <= 2 * 12 + 1  # the softmax, and the density in the derivative of erf
    assert counts["gather"] <= 2


@pytest.mark.slow
def test_a_lstm_keeps_its_gates_and_multiplies_for_the_weight_after_the_loop():
    width, batch, length = 8, 4, 6

    def loss(w, xs):
        def cell(carry, x):
            h, c = carry
            i, f, g, o = tnp.split(x + h @ w, 4, axis=-1)
            c = lax.logistic(f) * c + lax.logistic(i) * tnp.tanh(g)
            return (lax.logistic(o) * tnp.tanh(c), c), None

        start = tnp.zeros((batch, width), xs.dtype)
        (h, _), _ = lax.scan(cell, (start, start), xs)
        return tnp.sum(h)

    w, xs = tvmfun.ShapeDtype((width, 4 * width), "float32"), tvmfun.ShapeDtype((length, batch, 4 * width), "float32")
    program = tvmfun.trace(tvmfun.grad(loss))(w, xs)
    forward, backward = (e for e in program.equations if e.op.name == "loop")
    # Both carries, their previous values, the four gates, and the tanh of the cell.
    assert len(forward.outputs) == 2 + 2 + 4 + 1
    bodies = [Counter(e.op.name for e in loop.params["body"].equations) for loop in (forward, backward)]
    assert [body["dot_general"] for body in bodies] == [1, 1]
    shapes = [e.outputs[0].aval.shape for e in program.equations if e.op.name == "dot_general"]
    assert shapes == [(width, 4 * width)]
    rng = np.random.default_rng(0)
    values = [rng.normal(size=spec.shape).astype("float32") for spec in (w, xs)]
    check_gradient(loss, values)


def check_gradient(loss, values):
    """Against a difference quotient in a random direction, in float64."""
    values = [value.astype("float64") for value in values]
    direction = np.random.default_rng(1).normal(size=values[0].shape)
    step = 1e-6
    ahead, behind = (float(loss(values[0] + sign * step * direction, *values[1:])) for sign in (1, -1))
    slope = float(np.vdot(np.asarray(tvmfun.grad(loss)(*values)), direction))
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-6)
