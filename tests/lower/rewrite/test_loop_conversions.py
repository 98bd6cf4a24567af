"""Conversions between half precision and float32, out of loops and into them."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite.loop_conversions import convert_outside_loops

SM_90A = targets.resolve({"kind": "cuda", "arch": "sm_90a"})


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


W, H, XS = draw(8, 8), draw(3, 8, seed=1), draw(5, 3, 8, seed=2)


def recurrent(w, h, xs):
    def step(h, x):
        h = tnp.tanh(h @ w + x)
        return h, h

    last, hs = lax.scan(step, h, xs)
    return tnp.sum(hs * last)


def rounded_rows(w, h, xs):
    """Rows that the loop rounds, and its reader rounds again."""

    def step(h, x):
        y = tnp.sin(h + x)
        return tnp.cos(y.astype("bfloat16").astype("float32") @ w), y

    last, ys = lax.scan(step, h, xs)
    return last, ys, ys.astype("bfloat16") @ w.astype("bfloat16")


def reverse(w, h, xs):
    def step(h, x):
        y = (x * w[0]).astype("float16").astype("float32")
        return h + y, y

    return lax.scan(step, h, xs, reverse=True)


def nested(w, h, xs):
    inner = lambda h, xs: lax.scan(lambda h, x: (tnp.tanh(h @ w + x), h), h, xs)
    return lax.scan(lambda h, _: inner(h, xs), h, None, length=2)


PROGRAMS = {
    "recurrent": tvmfun.amp(recurrent),
    "gradient": tvmfun.value_and_grad(tvmfun.amp(recurrent, "float16"), (0, 1, 2)),
    "second": lambda w, h, xs: tvmfun.jvp(tvmfun.grad(tvmfun.amp(recurrent)), (w, h, xs), (w * 2, h, xs)),
    "rounded rows": rounded_rows,
    "reverse": reverse,
    "nested": tvmfun.amp(nested),
    "batched": tvmfun.vmap(tvmfun.amp(recurrent), in_axes=(None, 0, None)),
}


@pytest.mark.quick("gradient", "rounded rows")
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_stay_the_same(name):
    arguments = (W, np.stack([H, H + 1]), XS) if name == "batched" else (W, H, XS)
    program = inlined(tvmfun.trace(PROGRAMS[name])(*arguments), "cuda")
    rewritten = convert_outside_loops(program)
    assert rewritten is not program
    before, after = (one.evaluate([*program.captured, *map(tnp.asarray, arguments)]) for one in (program, rewritten))
    for expected, got in zip(before, after, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def test_loops_of_float32_are_left_alone():
    program = inlined(tvmfun.trace(recurrent)(W, H, XS), "cuda")
    assert convert_outside_loops(program) is program


def test_products_of_loops_read_half_precision():
    step = tvmfun.value_and_grad(tvmfun.amp(recurrent), (0, 1, 2))
    program = pipeline.rewritten(inlined(tvmfun.trace(step)(W, H, XS), "cuda"), SM_90A)
    loops = [equation for equation in program.equations if equation.op.runs is not None]
    assert len(loops) == 2
    # The weights are rounded once, before the loops; rows that only products read are stacks of half precision.
    for loop in loops:
        assert [str(atom.aval.dtype) for atom in loop.inputs].count("bfloat16") >= 1
        body = loop.params["body"]
        constants = body.inputs[: loop.params["consts"]]
        assert not any(
            equation.inputs[0] in constants
            for equation in body.equations
            if equation.op.name == "astype" and equation.params["dtype"] == "bfloat16"
        )
    assert "bfloat16" in [str(out.aval.dtype) for loop in loops for out in loop.outputs]
