"""Transforms called outside of ``jit`` with numbers that change from call to call."""

from __future__ import annotations

import numpy as np
import pytest
from support.threads import in_threads

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import execute, lax
from tvmfun.core.literals import ChangingNumbers, literals_as_inputs, literals_of
from tvmfun.counters import counted


def _penalty(w, x, scale, *, shift=0.25):
    return tnp.sum(tnp.tanh(x @ w) * scale + shift) + 3.0 * tnp.sum(w) / scale


W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
X = np.linspace(0, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda t: tvmfun.grad(_penalty)(W, X, t), id="argument"),
        pytest.param(lambda t: tvmfun.grad(lambda w: _penalty(w, X, t))(W), id="closure"),
        pytest.param(lambda t: tvmfun.grad(_penalty)(W, X, 2.0, shift=t), id="keyword"),
        pytest.param(lambda t: tvmfun.value_and_grad(lambda w: (tnp.sum(w * w), t), has_aux=True)(W), id="output"),
        pytest.param(lambda t: tvmfun.vmap(lambda row: tnp.sin(row) * t + t)(W), id="vmap"),
        pytest.param(lambda t: tvmfun.hessian(lambda w: tnp.sum(w**3) * t)(W[0]), id="hessian"),
        pytest.param(lambda t: tvmfun.jvp(lambda w: tnp.sum(w * t), (W,), (W,)), id="jvp"),
        pytest.param(lambda t: tvmfun.vjp(lambda w: tnp.sum(tnp.exp(w * t)), W)[1](t), id="vjp"),
        pytest.param(lambda t: tvmfun.grad(lambda w: lax.fori_loop(0, 3, lambda i, c: c * w, t))(0.5), id="loop"),
        pytest.param(lambda t: tvmfun.grad(lambda w: tnp.sum(tnp.where(w > t, w, t)))(W), id="where"),
    ],
)
def test_changing_number_compiles_at_most_twice_more(call):
    numbers = [0.5, 0.75, -1.25, 4.0, 0.5]
    call(0.375)
    with counted() as events:
        results = [call(t) for t in numbers]
    # Once with the number as an argument of the step, and for `vjp` of its pull-back.
    assert events.compiles + events.loads <= 2
    for t, result in zip(numbers, results, strict=True):
        expected = tvmfun.jit(lambda t=t: call(t))()
        for one, other in zip(tvmfun.tree.leaves(result), tvmfun.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_two_numbers_that_change_one_after_the_other():
    function = lambda a, b: tvmfun.grad(lambda w: tnp.sum(tnp.cos(w * a)) * b)(W)
    for a, b in [(1.75, 2.0), (1.5, 2.0), (1.5, 3.0)]:
        function(a, b)
    with counted() as events:
        for a, b in [(1.75, 2.0), (7.0, 2.0), (1.75, -2.0), (0.25, 0.125)]:
            np.testing.assert_allclose(function(a, b), -np.sin(W * np.float32(a)) * np.float32(a * b), rtol=2e-6)
    assert events.compiles + events.loads == 0


def test_numbers_of_other_types_and_signs_of_zero_are_other_numbers():
    function = lambda t: tvmfun.vmap(lambda row: row * t)(np.array([1, 2], "int32"))
    assert [function(t).dtype for t in (2, 2.0, 3, 3.0)] == ["int32", "float32", "int32", "float32"]
    signed = lambda t: tvmfun.vmap(lambda row: tnp.copysign(row, t))(np.ones(2, "float32"))
    assert [float(signed(t)[0]) for t in (0.0, -0.0, 0.0, float("nan"))][:3] == [1, -1, 1]


def test_number_decides_in_python():
    """Control flow, strings and shapes see the numbers, which stay Python's while a function is traced."""

    def function(w, layers, keep):
        assert type(layers) is int
        for _ in range(layers):
            w = tnp.tanh(w) if keep > 0.5 else w * keep
        return tnp.sum(w) * tnp.sum(tnp.ones(layers))

    for layers, keep in [(1, 0.25), (2, 0.75), (2, 0.5), (3, 0.3), (3, 0.4)]:
        expected = tvmfun.jit(tvmfun.grad(function), static_argnums=(1, 2))(W, layers, keep)
        np.testing.assert_allclose(tvmfun.grad(function)(W, layers, keep), expected, rtol=1e-6)


def test_dynamic_sizes():
    x = tvmfun.ShapeDtype((tvmfun.Dim("n", min=0),), "float32")
    for t in (1.0, 2.0, 3.0):
        program = tvmfun.trace(lambda x, t=t: (x * t, {"sum": tnp.sum(x) + t}))(x)
        for n in (0, 3, 5):
            scaled, rest = program(np.ones(n, np.float32))
            assert scaled.tolist() == [t] * n and float(rest["sum"]) == n + t


def test_debug_nans_names_the_op():
    function = lambda t: tvmfun.vmap(lambda x: tnp.log(x * t))(np.ones(2, np.float32))
    function(1.0)
    function(2.0)
    with tvmfun.debug_nans(), pytest.raises(tvmfun.errors.NanError, match="log"):
        function(-1.0)


def test_program_with_literals_as_inputs():
    y = tvmfun.lax.stop_gradient(tnp.array(W))
    program = tvmfun.trace(lambda x, *, z: (x * 2.0 + y, 3.0, z - 2.0))(W, z=X)
    assert [number.item() for number in literals_of(program)] == [2.0, 2.0, 3.0]
    changed = literals_as_inputs(program, {1, 2})
    changed.verify()
    assert [number.item() for number in literals_of(changed)] == [2.0]
    (a, b, c) = changed([5.0, 7.0], W, z=X)
    np.testing.assert_array_equal(a, W * 2 + W)
    assert float(b) in (5.0, 7.0) and changed.captured == program.captured
    np.testing.assert_array_equal(c, X - (12.0 - float(b)))


def test_numbers_that_change_in_several_threads():
    """Each call gets as many numbers as its Program takes, although other threads find more that change."""
    base = [1.5 + i for i in range(24)]
    programs = []
    for i in range(len(base)):
        numbers = [*base[:i], 300.25 + i, *base[i + 1 :]]
        programs.append(tvmfun.trace(lambda w, numbers=numbers: tuple(w * c for c in numbers))(W))
    chosen = []

    def work(n):
        chosen.extend(map(execute._NUMBERS.separated, programs[n::2]))

    for _ in range(20):
        execute._NUMBERS.clear()
        execute._NUMBERS.separated(programs[0])
        in_threads(work, count=2)
    assert len(chosen) == 20 * len(programs)
    assert all(len(numbers) == len(program.inputs) - 1 for program, numbers in chosen)


def test_few_structures_are_remembered(monkeypatch):
    monkeypatch.setattr(execute, "_NUMBERS", ChangingNumbers(kept=2))
    for t in (0.5, 0.25, 0.125):
        for power in (1, 2, 3, 4):
            got = tvmfun.grad(lambda w, t=t, power=power: tnp.sum(w**power) * t)(W)
            np.testing.assert_allclose(got, t * power * W ** (power - 1), rtol=1e-6)
    assert len(execute._NUMBERS) <= 2


def test_same_program_is_compared_once(monkeypatch):
    numbers = ChangingNumbers()
    program = tvmfun.trace(lambda w: w * 2.0 + 0.5)(W)
    compared = []
    compare = numbers._compare
    monkeypatch.setattr(numbers, "_compare", lambda *call: compared.append(call) or compare(*call))
    for again in (program, program, tvmfun.trace(lambda w: w * 2.0 + 0.5)(W)):
        assert numbers.separated(again) == (again, [])
    assert len(compared) == 1


def test_an_array_in_the_place_of_a_number():
    """The two Programs have the same text once their numbers are inputs."""
    x = np.array([1.5, -1.0], "float32")
    for factor in (tnp.asarray(3.0), 2.5, tnp.asarray(4.0), 3.5, 2.5):
        got = tvmfun.vmap(lambda x, factor=factor: x * factor + 1.5)(x)
        np.testing.assert_allclose(got, x * np.float32(factor) + 1.5, rtol=1e-6)
