"""Conversions of arrays to their own dtype, which would copy arrays that are updated in place."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.inline import subprograms
from tvmfun.lower.rewrite.weak_conversions import drop_weak_conversions
from tvmfun.ops import pointwise as pw

X = tvmfun.ShapeDtype((4,), "float32")


def _weak(x):
    return pw.astype(x, dtype="float32", weak=True)


def _strong(x):
    return tnp.astype(x, "float32")


@pytest.mark.parametrize(
    ("function", "left"),
    [
        pytest.param(lambda x: _weak(x), 1, id="input"),
        pytest.param(lambda x: _weak(tnp.sin(x)), 0, id="output"),
        pytest.param(lambda x: (y := tnp.sin(x), _weak(y)), 1, id="both"),
        pytest.param(lambda x: (tnp.cos(y := tnp.sin(x)), _weak(y), y + 1), 0, id="read-before-and-after"),
        pytest.param(lambda x: tnp.cos(_strong(_weak(_strong(_weak(tnp.sin(x)))))), 0, id="chain"),
        pytest.param(lambda x: (w := _weak(tnp.sin(x)), _strong(w) * 2), 0, id="output-read-again"),
        pytest.param(lambda x: (w := _weak(tnp.sin(x)), _strong(w)), 1, id="two-outputs"),
        pytest.param(
            lambda x: _weak(tnp.astype(tnp.astype(x, "int32"), "float32")) / 3, 0, id="other-conversions-stay"
        ),
        pytest.param(lambda x: lax.scan(lambda c, v: (_weak(c * v), c), x, x)[0], 0, id="loop"),
        pytest.param(lambda x: lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0) * x, 0, id="branch"),
    ],
)
def test_value_stays(function, left):
    program = tvmfun.trace(function)(X)
    dropped = drop_weak_conversions(program)
    assert _conversions(dropped) == left
    assert dropped.outputs == program.outputs
    x = np.linspace(-1, 2, 4, dtype=np.float32)
    for one, other in zip(
        tvmfun.tree.leaves(tvmfun.jit(function)(x)), tvmfun.tree.leaves(program.evaluate([x])), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def _conversions(program):
    """How many conversions to their own dtype a Program has, also in loops and branches."""
    own = [e for e in program.equations if e.op is pw.astype and e.inputs[0].aval.dtype == e.outputs[0].aval.dtype]
    inner = [_conversions(p) for e in program.equations for p in subprograms(tuple(e.params.values()))]
    return len(own) + sum(inner)


def test_program_without_them_stays_itself():
    program = tvmfun.trace(lambda x: tnp.astype(x * 2, "int32"))(X)
    assert drop_weak_conversions(program) is program


@pytest.mark.parametrize("make", [lambda: tnp.full(1000, 0.5), lambda: tnp.full(1000, 1)], ids=["float", "int"])
def test_update_of_a_weak_carry_is_in_place(make):
    function = tvmfun.jit(lambda k: lax.fori_loop(0, 5, lambda i, x: x.at[i * k].set(3), make()))
    strong = tvmfun.jit(lambda k: lax.fori_loop(0, 5, lambda i, x: x.at[i * k].set(3), _as_strong(make())))
    k = np.int32(2)
    loops = [f.lower(k).compile().as_text().partition("def loop")[2].partition("@R.")[0] for f in (function, strong)]
    assert loops[0] == loops[1] and "T.vectorized(16)" in loops[0]
    result = function(k)
    assert result.weak_type and not strong(k).weak_type
    np.testing.assert_array_equal(result, strong(k))


def _as_strong(x):
    return tnp.astype(x, x.dtype)
