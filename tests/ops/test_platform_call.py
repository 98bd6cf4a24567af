"""Calls with a Program for each platform."""

from __future__ import annotations

import numpy as np
import pytest
from support.serial_gpu import SM_90

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.inline import inlined
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


# -- derivatives -------------------------------------------------------------------------------------------------------


def mixture(x, y):
    """``sum(sin(x) * y)`` on CPUs; the same on GPUs, whose sine has twice the derivative and another residual."""

    @tvmfun.custom_vjp
    def sine(x):
        return tnp.sin(x)

    sine.defvjp(lambda x: (tnp.sin(x), tnp.cos(x) * 2), lambda slope, g: (g * slope,))
    return on_platform(lambda x, y: tnp.sum(tnp.sin(x) * y), lambda x, y: tnp.sum(sine(x) * y), x, y)


def on_gpu(function):
    """A function whose calls are inlined for a GPU and run here."""

    def run(*args):
        program = inlined(tvmfun.trace(function)(*args), "cuda")
        return tvmfun.tree.unflatten(program.out_tree, program.evaluate([*program.captured, *tvmfun.tree.leaves(args)]))

    return run


SLOPES = {
    "grad": tvmfun.grad(mixture),
    "jvp": lambda x, y: tvmfun.jvp(lambda x: mixture(x, y), (x,), (tnp.ones_like(x),))[1],
    "vmap of grad": lambda x, y: tvmfun.vmap(tvmfun.grad(mixture), in_axes=(0, None))(x, y[0]),
    "grad of vmap": tvmfun.grad(lambda x, y: tnp.sum(tvmfun.vmap(mixture)(x, y))),
    "grad of checkpoint": tvmfun.grad(tvmfun.checkpoint(mixture)),
    "grad of scan": tvmfun.grad(lambda x, y: lax.scan(lambda c, xy: (c + mixture(*xy), None), 0.0, (x, y))[0]),
    "grad of cond": tvmfun.grad(lambda x, y: lax.cond(y[0, 0] > -5, mixture, lambda x, y: tnp.sum(x), x, y)),
    "grad of amp": tvmfun.grad(tvmfun.amp(mixture)),
}


@pytest.mark.parametrize("way", SLOPES)
def test_each_platform_has_its_derivative(way):
    y = np.cos(X)
    expected = np.cos(X) * (y[0] if way == "vmap of grad" else y)
    expected = expected.sum() if way == "jvp" else expected
    np.testing.assert_allclose(tvmfun.jit(SLOPES[way])(X, y), expected, rtol=1e-6)
    np.testing.assert_allclose(on_gpu(SLOPES[way])(X, y), 2 * expected, rtol=1e-6)


def test_second_derivatives():
    y = np.cos(X)
    along = lambda gradient: tvmfun.grad(lambda x: tnp.sum(gradient(x, y) * X))
    np.testing.assert_allclose(tvmfun.jit(along(tvmfun.grad(mixture)))(X), -np.sin(X) * y * X, rtol=1e-6)
    np.testing.assert_allclose(on_gpu(along(tvmfun.grad(mixture)))(X), -2 * np.sin(X) * y * X, rtol=1e-6)


def test_a_value_from_outside_has_a_derivative():
    run = lambda x, y: tnp.sum(on_platform(lambda x: x * y, lambda x: tnp.exp(tnp.log(x) + tnp.log(y)), x))
    for wrap in (tvmfun.jit, on_gpu):
        for one, other in zip(wrap(tvmfun.grad(run, (0, 1)))(X, X + 1), (X + 1, X), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_no_residual_of_the_other_platform_is_left():
    """A scan keeps residuals of both platforms for its backward pass; the other's are gone once they are inlined."""
    of_loop = SLOPES["grad of scan"]
    plain = tvmfun.grad(
        lambda x, y: lax.scan(lambda c, xy: (c + tnp.sum(tnp.sin(xy[0]) * xy[1]), None), 0.0, (x, y))[0]
    )
    rows = np.ones((64, 4096), "float32")
    needs = [tvmfun.jit(fun).lower(rows, rows).compile().memory_analysis().temporaries for fun in (of_loop, plain)]
    assert needs[0] <= needs[1]
