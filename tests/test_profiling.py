"""The profile of a compiled function: the times of its kernels, their floors, and where they come from."""

import json
import re

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, lax, profiling
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine

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


def inner_calls(function, *args, **options):
    """The control op of a function, and the calls of the kernels in it by their first op."""
    found = profile(function, *args, **options)
    (outer,) = [call for call in found.calls if call.rule == "control"]
    assert outer.seconds == pytest.approx(sum(call.seconds for call in outer.inner)) and outer.calls == 1
    return found, outer, {call.name.rpartition("_")[0]: call.calls for call in outer.inner}


def test_kernels_of_a_loop_share_its_time(tmp_path):
    def step(c, row):
        c = tnp.tanh(row @ W + c)
        return c, tnp.sum(c)

    found, outer, calls = inner_calls(lambda x: lax.scan(step, tnp.zeros((8, 48)), x), X.reshape(8, 8, 32))
    assert calls["dot_general_add_tanh"] == 8 and all(count in (1, 8) for count in calls.values())
    product = next(call for call in outer.inner if call.name.startswith("dot_general"))
    assert product.rule == "contraction" and product.flops >= 8 * 2 * 8 * 32 * 48
    assert product.lines == (f"{__file__}:{step.__code__.co_firstlineno + 1}",)
    rows = str(found).splitlines()[2:]
    (row,) = [row for row in rows if product.name in row]
    assert f"  {product.name}" in row and row.split()[2] == "8"
    assert rows.index(row) > next(i for i, other in enumerate(rows) if outer.name in other)
    found.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (whole,) = [event for event in events if event["name"] == outer.name]
    inner = [event for event in events if event["name"] in {call.name for call in outer.inner}]
    assert len(inner) == len(outer.inner) and all(event["ts"] >= whole["ts"] for event in inner)
    assert max(event["ts"] + event["dur"] for event in inner) == pytest.approx(whole["ts"] + whole["dur"])


def test_kernels_of_a_loop_in_a_loop():
    def inner(c, row):
        return tnp.cos(c * row), None

    def outer(c, rows):
        return tnp.sin(lax.scan(inner, c, rows)[0]), None

    _, _, calls = inner_calls(lambda x: lax.scan(outer, tnp.ones(32), x.reshape(4, 16, 32))[0], X)
    assert calls["multiply_cos"] == 64 and calls["sin"] == 4


def test_kernels_of_the_branch_that_runs():
    def function(i, x):
        return lax.switch(i, [tnp.sin, tnp.cos, lambda x: x @ x.T @ x], x)

    assert list(inner_calls(function, 1, X)[2]) == ["cos"]
    _, outer, _ = inner_calls(function, 2, X)
    products = [call for call in outer.inner if call.name.startswith("dot_general")]
    assert [call.calls for call in products] == [1, 1]
    assert sum(call.flops for call in products) == 4 * 64 * 64 * 32


def test_kernels_of_a_loop_whose_length_is_not_known():
    def function(n, x):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, tnp.sin(c[1])), (0, x))[1]

    assert inner_calls(function, 7, X)[2]["sin"] == 7


def test_kernels_that_write_in_place_in_a_loop_with_donation():
    def function(table, rows):
        return lax.fori_loop(0, 10, lambda i, table: table.at[rows[i]].add(1.0), table)

    table = tnp.asarray(X)
    _, outer, _ = inner_calls(function, table, np.arange(10) % 3, donate_argnums=0)
    (update,) = [call for call in outer.inner if call.name.startswith("scatter")]
    assert update.calls == 10 and 10 * 32 * 4 <= update.bytes < 10 * X.nbytes  # the table is not copied
    np.testing.assert_array_equal(table, X)


def test_two_loops_of_one_kernel():
    def function(x, y):
        loop = lambda x: lax.fori_loop(0, 5, lambda i, x: tnp.sin(x) + 1, x)
        return loop(x), loop(y)

    found = profile(function, X, X + 1)
    first, second = [call for call in found.calls if call.rule == "control"]
    assert first.name == second.name and [call.name for call in first.inner] == [call.name for call in second.inner]
    assert {call.calls for call in first.inner if "sin" in call.name} == {5}
    assert sum(call.seconds for call in second.inner) == pytest.approx(second.seconds)
    (row,) = [row for row in str(found).splitlines() if "sin" in row]
    assert row.split()[2] == "10"


@pytest.mark.skipif(Machine.of(targets.host()).cores == 1, reason="steps run in parallel on several cores")
def test_steps_in_parallel_are_one_kernel():
    x = np.ones((64, 64, 64), "float32")
    _, outer, _ = inner_calls(lambda x: lax.map(lambda row: tnp.tanh(row @ row), x), x)
    (steps,) = outer.inner
    assert steps.rule == "control" and steps.calls == 64 and steps.flops == 64 * (2 * 64**3 + 64**2)


def test_kernels_of_a_vmapped_loop_and_its_gradient():
    def function(x):
        return lax.scan(lambda c, row: (tnp.tanh(c * row), tnp.sum(c)), tnp.ones(8), x)[0].sum()

    found = profile(tvmfun.vmap(tvmfun.grad(function)), X.reshape(4, 16, 32)[:, :, :8])
    loops = [call for call in found.calls if call.rule == "control"]
    assert len(loops) == 2 and all(any(call.calls == 16 for call in loop.inner) for loop in loops)


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
