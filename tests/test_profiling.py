"""The profile of a compiled function: the times of its kernels, their floors, and where they come from."""

import json
import re

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, lax, profiling

X = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
W = np.random.default_rng(1).normal(size=(32, 48)).astype("float32")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(profiling, "_SECONDS", 0.0)
    monkeypatch.setattr(profiling, "_speeds", lambda target: (1e9, 1e9))


def profile(function, *args, **options):
    return tvmfun.jit(function, **options).lower(*args).compile().profile(*args)


def test_calls_are_in_order_with_their_costs_and_lines():
    def function(w, x):
        h = x @ w
        return tnp.sum(tnp.tanh(h), axis=0)

    found = profile(function, W, X)
    product, total = found.calls
    assert (product.rule, product.flops) == ("contraction", 2 * 64 * 32 * 48)
    assert product.bytes == 4 * (64 * 32 + 32 * 48 + 64 * 48)
    assert "sum" in total.name and total.flops == 2 * 64 * 48
    first = function.__code__.co_firstlineno
    assert [call.lines for call in found.calls] == [(f"{__file__}:{first + 1}",), (f"{__file__}:{first + 2}",)]
    assert product.start == 0 and total.start == product.seconds > 0
    assert found.seconds == pytest.approx(product.seconds + total.seconds) and found.seconds < 1
    assert found.floor(product) == pytest.approx(2e-9 * 64 * 32 * 48) and found.runs >= 5


def test_equal_kernels_are_one_row_of_the_table_and_several_events(tmp_path):
    def function(x):
        for _ in range(3):
            x = tnp.sin(x @ x)
        return x

    found = profile(function, X[:32])
    lines = str(found).splitlines()
    assert re.match(r"function: \d+\.\d us in \d kernels, median of \d+ runs; floors by 1 Gflop/s, 1\.0 GB/s", lines[0])
    assert lines[1].split() == ["us", "share", "calls", "of", "floor", "rule", "kernel", "at"]
    assert len({call.name for call in found.calls}) == len(lines) - 2 < len(found.calls)
    assert sum(int(line.split()[2]) for line in lines[2:]) == len(found.calls)
    found.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == [call.name for call in found.calls]
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert events[-1]["ts"] + events[-1]["dur"] == pytest.approx(found.seconds * 1e6)


def test_donated_arguments_stay():
    w = tnp.asarray(W)
    step = lambda w, x: (w - 0.1 * (x.T @ (x @ w)), tnp.sum(w))
    compiled = tvmfun.jit(step, donate_argnums=0).lower(w, X).compile()
    assert compiled.profile(w, X).calls
    np.testing.assert_array_equal(w, W)
    np.testing.assert_allclose(compiled(w, X)[0], W - 0.1 * (X.T @ (X @ W)), rtol=1e-3, atol=1e-3)


def test_loops_and_captured_arrays_and_views():
    captured = tnp.asarray(W)

    def function(x):
        carry, rows = lax.scan(lambda c, row: (tnp.tanh(c + row @ captured), c), tnp.zeros(48), x)
        return carry, rows.reshape(-1), x

    found = profile(function, X)
    assert "control" in {call.rule for call in found.calls}
    assert sum(call.flops for call in found.calls) > 64 * 2 * 32 * 48
    assert profile(lambda x: x, X).calls == () == profile(lambda x: x.reshape(-1), X).calls
    assert "0 kernels" in str(profile(lambda x: x, X))
    assert len(profile(lambda x: tnp.exp(x), np.zeros((0, 3), "float32")).calls) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8", "float64"])
def test_dtypes(dtype):
    x = tnp.asarray(X).astype(dtype)
    assert len(profile(lambda x: tnp.where(x > 0, x, 0 * x), x).calls) == 1
    assert len(profile(lambda x: x, x[0, 0]).calls) == 0


def test_what_cannot_be_profiled():
    compiled = tvmfun.jit(lambda x: tnp.exp(x)).lower(ShapeDtype(("b", 3), "float32")).compile()
    with pytest.raises(errors.TargetError, match=r"\[profile\] only kernels of static sizes"):
        compiled.profile(X)
    with pytest.raises(errors.ShapeError):
        tvmfun.jit(lambda x: tnp.exp(x)).lower(X).compile().profile(X[:3])


def test_the_speeds_of_this_machine(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(profiling, "_SECONDS", 0.0)
    flops, moved = profiling._speeds.__wrapped__(str(tvmfun.lower.target.host()))
    assert 1e9 < flops < 1e14 and 1e8 < moved < 1e13
