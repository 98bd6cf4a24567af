"""Calls with a Program for each platform."""

from __future__ import annotations

import numpy as np
import pytest
from support.serial_gpu import SM_90

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.inline import inlined
from tvmfun.errors import GradientError
from tvmfun.ops.calls import on_platform

X = np.linspace(0.5, 2, 6, dtype="float32").reshape(2, 3)
SCALE = tvmfun.numpy.asarray(np.float32(3))


def squares(tree, y):
    """``(x * x, y * 3)``, with a logarithm only where it is for a GPU, and a value from outside."""
    (x,) = tree

    def cpu(tree, y):
        return {"squares": tree[0] * tree[0], "others": y * SCALE}

    def gpu(tree, y):
        return {"squares": tnp.exp(2 * tnp.log(tree[0])), "others": y * SCALE}

    return on_platform(cpu, gpu, [x], y)


def ops(program, platform):
    """The names of the ops of an inlined Program, those in loops too."""

    def names(program):
        for equation in program.equations:
            yield equation.op.name
            for value in equation.params.values():
                if isinstance(value, tvmfun.Program):
                    yield from names(value)

    return set(names(inlined(program, platform)))


@pytest.mark.parametrize("wrap", ["plain", "vmap", "scan", "checkpoint"])
def test_the_platform_chooses(wrap):
    def run(x, y):
        if wrap == "vmap":
            return tvmfun.vmap(lambda x, y: squares([x], y), in_axes=(0, None))(x, y)
        if wrap == "scan":
            return lax.scan(lambda carry, x: (carry, squares([x], carry)), y, x)[1]
        if wrap == "checkpoint":
            return tvmfun.checkpoint(lambda x, y: squares([x], y))(x, y)
        return squares([x], y)

    results = tvmfun.jit(run)(X, X[0])
    np.testing.assert_array_equal(results["squares"], X * X)
    rows = X.shape if wrap in ("vmap", "scan") else X.shape[1:]
    np.testing.assert_array_equal(results["others"], np.broadcast_to(3 * X[0], rows))
    program = tvmfun.trace(run)(X, X[0])
    assert {"exp", "log"} <= ops(program, "cuda")
    assert not {"exp", "log", "platform_call"} & ops(program, "cpu")
    text = tvmfun.jit(run, target=SM_90).lower(X, X[0]).compile().as_text()
    assert "log" in text and "log" not in tvmfun.jit(run).lower(X, X[0]).compile().as_text()


def test_it_has_no_derivative():
    with pytest.raises(GradientError, match="platform_call has no derivative"):
        tvmfun.grad(lambda x: squares([x], x)["squares"].sum())(X)
