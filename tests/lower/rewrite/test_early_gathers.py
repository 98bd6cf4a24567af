"""Gathers of what pointwise operations read, on GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from support.rewrites import assert_same_values, ops

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax
from tvmfun.core.inline import inlined
from tvmfun.lower.rewrite.early_gathers import gather_early

_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(4, 6, 40)).astype("float32")
BIAS = _RNG.normal(size=40).astype("float32")
WEIGHTS = np.eye(40, dtype="float32")
LABELS = _RNG.integers(-40, 40, (4, 6)).astype("int32")


def taken(x, labels):
    return tnp.take_along_axis(x, labels[..., None], -1)


def log_probabilities(x):
    shifted = x - tnp.max(x, -1, keepdims=True)
    return shifted - tnp.log(tnp.sum(tnp.exp(shifted), -1, keepdims=True))


def gathered(program):
    """The shapes and dtypes of the arrays of gathers."""
    return [str(e.inputs[0].aval) for e in program.equations if e.op.name == "gather"]


FUNCTIONS = {
    "log of softmax": (lambda x, b, y: taken(log_probabilities(x), y), ["float32[4,6,40]"]),
    "of sums": (lambda x, b, y: taken(log_probabilities(x + b), y), ["float32[4,6,40]", "float32[40]"]),
    # The product and its biases are one kernel, and the maximum reads what it stores.
    "of an epilogue": (lambda x, b, y: taken(log_probabilities(x @ WEIGHTS + b), y), ["float32[4,6,40]"]),
    "of a part": (lambda x, b, y: taken(log_probabilities(x)[..., :37], y), ["float32[4,6,40]"]),
    # From another element on, the indices of the part are those of other elements.
    "of the rest": (lambda x, b, y: taken(tnp.exp(x)[..., 3:], y), ["float32[4,6,37]"]),
    "of what is the same in all rows": (lambda x, b, y: taken(tnp.exp(x) + b, y), ["float32[4,6,40]", "float32[40]"]),
    "clipped": (lambda x, b, y: tnp.take(tnp.tanh(b), y[0, :3], mode="clip"), ["float32[40]"]),
    "several axes": (lambda x, b, y: (tnp.exp(x) * b)[y[0] % 4, y[1] % 6], ["float32[4,6,40]"]),
    "of parts that are the same in all rows": (
        lambda x, b, y: taken((tnp.exp(x) + tnp.stack([b, b])[:1, None, :])[..., :37] * b[:37], y % 37),
        ["float32[4,6,40]", "float32[40]", "float32[37]"],
    ),
    "in half precision": (
        lambda x, b, y: taken(log_probabilities(tnp.astype(tnp.astype(x @ WEIGHTS, "bfloat16"), "float32") + b), y),
        ["bfloat16[4,6,40]", "float32[40]"],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_few_elements_are_computed(name):
    function, expected = FUNCTIONS[name]
    program = inlined(tvmfun.trace(function)(X, BIAS, LABELS))
    rewritten = gather_early(program)
    assert gathered(rewritten) == expected
    assert_same_values(program, rewritten, X, BIAS, LABELS)


UNCHANGED = {
    # Nothing reads the product but the operation, which is computed where it is multiplied.
    "of a product's epilogue": lambda x, b, y: taken(tnp.exp(x @ WEIGHTS), y),
    # The operation is returned, too, in which case it is stored anyway.
    "of a result": lambda x, b, y: (lambda z: (taken(z, y), z))(tnp.exp(x)),
    "of most elements": lambda x, b, y: tnp.exp(b)[y],
    "filled": lambda x, b, y: tnp.exp(b).at[y[0, :3]].get(mode="fill", fill_value=0),
    "of nothing": lambda x, b, y: taken(tnp.exp(x[:0, :, :1])[..., :1], y[:0]),
    "of an argument": lambda x, b, y: taken(x, y),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_others_stay(name):
    program = inlined(tvmfun.trace(UNCHANGED[name])(X, BIAS, LABELS))
    assert gathered(program)
    assert gather_early(program) is program


def test_parts_of_what_is_the_same_in_all_rows():
    """The biases are cut first, and their part is the same for all rows: indices of a batch have no batch there."""
    function = lambda x, b, y: taken(tnp.exp(x) + b[:, :37], y)
    x, b = X[0, :4, :37].copy(), BIAS[None].copy()
    program = inlined(tvmfun.trace(function)(x, b, LABELS[:, 0]))
    assert_same_values(program, gather_early(program), x, b, LABELS[:, 0])


def test_dynamic_sizes_stay():
    specs = (ShapeDtype((Dim("batch"), 6, 40), "float32"), ShapeDtype((Dim("batch"), 6), "int32"))
    program = inlined(tvmfun.trace(lambda x, y: taken(tnp.exp(x), y))(*specs))
    assert gather_early(program) is program


def test_gathers_in_loops():
    def function(x, b, y):
        step = lambda carry, row: (carry + 1, taken(log_probabilities(x + carry), row))
        return lax.scan(step, tnp.float32(0), tnp.stack([y, y + 1]))[1]

    program = inlined(tvmfun.trace(function)(X, BIAS, LABELS % 30))
    rewritten = gather_early(program)
    (loop,) = (equation for equation in rewritten.equations if equation.op.kind == "control")
    inner = loop.params["body"]
    assert ops(inner).index("gather float32") < ops(inner).index("log float32")
    assert_same_values(program, rewritten, X, BIAS, LABELS % 30)
