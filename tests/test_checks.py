"""``check``: kernels of compiled functions against the reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from op_cases import CASES, Case

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import check, lax, nn, optim, random, reference
from tvmfun.core.op import REGISTRY
from tvmfun.errors import KernelError, TvmfunError
from tvmfun.lower import kernel_cache
from tvmfun.lower.schedule.control_ops import statements
from tvmfun.lower.tir import flatten

RNG = np.random.default_rng(0)
X = RNG.normal(size=(37, 20)).astype("float32")
W = (RNG.normal(size=(20, 33)) / 5).astype("float32")


@pytest.fixture
def fresh_kernels():
    kernel_cache.clear_cache()
    yield
    kernel_cache.clear_cache()


FUNCTIONS = {
    "product and row sums": lambda x, w: tnp.sum(tnp.tanh(x @ w), axis=1),
    "softmax": lambda x, w: nn.functional.softmax(x @ w),
    "gradient of a scan": tvmfun.grad(
        lambda x, w: tnp.sum(lax.scan(lambda c, r: (tnp.tanh(c @ w @ w.T + r), c), x[0], x)[1]), argnums=(0, 1)
    ),
    "loop until": lambda x, w: lax.while_loop(lambda c: tnp.sum(c * c) > 1, lambda c: c @ w @ w.T / 9, x),
    "branches": lambda x, w: tvmfun.vmap(lambda r: lax.cond(r[0] > 0, tnp.exp, lambda r: -r, r))(x),
    "sorting": lambda x, w: (tnp.sort(x, axis=0), tnp.argsort(w), tnp.searchsorted(tnp.sort(x[0]), w)),
    "indices": lambda x, w: (x.at[[3, 3, 0]].add(2), x[:, [5, 1]], tnp.take_along_axis(x, tnp.argsort(x), 1)),
    "decompositions": lambda x, w: tnp.linalg.solve(x[:20] @ x[:20].T + 5 * tnp.eye(20), w),
    "random numbers": lambda x, w: (random.normal(random.key(1), (9, 5)), random.permutation(random.key(2), x)),
    "half precision": lambda x, w: tnp.sum((x.astype("bfloat16") @ w.astype("bfloat16")) ** 2, axis=0),
    "bools": lambda x, w: (tnp.any(x > 1, axis=0), ~(x > 0)[::-1], tnp.sum(x > 0)),
    "nothing": lambda x, w: (x[:0] @ w, tnp.sum(x[:0], axis=0), x, 3.0),
    "infinite and NaN": lambda x, w: (tnp.log(x), x / 0, tnp.exp(x * 100), tnp.cumsum(tnp.log(x), axis=1)),
}


@pytest.mark.quick("softmax")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_results_are_those_of_jit(name):
    expected = tvmfun.jit(FUNCTIONS[name])(X, W)
    for got, want in zip(tvmfun.tree.leaves(check(FUNCTIONS[name])(X, W)), tvmfun.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_a_training_step_that_donates():
    model = nn.Sequential(nn.Linear(20, 16, key=random.key(0)), tnp.tanh, nn.Linear(16, 3, key=random.key(1)))
    optimizer = optim.adam(1e-2)
    y = RNG.integers(0, 3, 37)

    def step(model, state, x):
        loss = lambda model: tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(model(x), y))
        value, gradients = tvmfun.value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state, model)
        return optim.apply_updates(model, updates), state, value

    state = optimizer.init(model)
    expected = tvmfun.jit(step)(model, state, X)
    got = check(step, donate_argnums=(0, 1))(model, state, X)
    for a, b in zip(tvmfun.tree.leaves(got), tvmfun.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert float(got[2]) > 0


@pytest.mark.usefixtures("fresh_kernels")
def test_a_kernel_with_wrong_indices_is_named(monkeypatch):
    monkeypatch.setattr(flatten, "_in_loops", lambda body: body)  # what TVM simplifies wrongly

    def holes(x):
        y = tnp.exp(x)
        return tnp.sum(tnp.flip(lax.pad(y, np.float32(0), [(0, 1, 1)])) * tnp.arange(8.0))

    with pytest.raises(KernelError, match=r"kernel \w*flip\w* \(reduction, from .*test_checks.py:\d+") as caught:
        check(holes)(np.arange(1, 5, dtype=np.float32))
    assert "instead of" in caught.value.got
    assert "flip(" in caught.value.hint


@pytest.mark.usefixtures("fresh_kernels")
def test_a_loop_that_overwrites_what_it_still_reads_is_named(monkeypatch):
    monkeypatch.setattr(statements, "writes_once", lambda *arguments: True)
    y = RNG.normal(size=(37, 37)).astype("float32")
    with pytest.raises(KernelError, match=r"kernel loop\w* \(control, .*computes another result 0"):
        check(lambda c, y: lax.fori_loop(0, 3, lambda i, c: c + y.T, c))(y, y)


@pytest.mark.usefixtures("fresh_kernels")
def test_what_is_wrong_in_the_body_of_a_loop_is_named_by_itself(monkeypatch):
    monkeypatch.setattr(flatten, "_in_loops", lambda body: body)  # what TVM simplifies wrongly
    holes = lambda c: tnp.flip(lax.pad(c[:3], np.float32(0), [(0, 1, 1)])) + 1
    with pytest.raises(KernelError, match=r"kernel \w*flip"):
        check(lambda c: lax.fori_loop(0, 3, lambda i, c: holes(c) * c, c))(np.arange(1, 7, dtype=np.float32))


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda program: check(None), "check"),
        (lambda program: reference.evaluate(program, []), "evaluate"),
        (lambda program: reference.evaluate(program, X), "evaluate"),
        (lambda program: reference.evaluate(program, None), "evaluate"),
        (lambda program: reference.evaluate(program, [None]), "evaluate"),
        (lambda program: reference.evaluate(program, ["s"]), "evaluate"),
        (lambda program: reference.evaluate(program, [X.astype("float64")]), "evaluate"),
        (lambda program: reference.evaluate(None, [X]), "evaluate"),
        (lambda program: tnp.asarray(X).at[0].apply(3), "apply"),
        (lambda program: tvmfun.custom_vjp(tnp.sin).defvjp(None, None), "defvjp"),
    ],
)
def test_wrong_arguments(call, where):
    with pytest.raises(TvmfunError, match=rf"^\[{where}\] "):
        call(tvmfun.trace(lambda x: x + 1)(X))


OPS = [
    pytest.param(name, part, id=f"{name}-{kind}", marks=[pytest.mark.slow] if kind == "others" else [])
    for name, cases in CASES.items()
    for kind, part in (("first", cases[:1]), ("others", cases[1:]))
    if part
]


@pytest.mark.parametrize(("name", "cases"), OPS)
def test_every_op(name: str, cases: list[Case]):
    """The cases are one Program, of which each result is checked."""
    narrow = [case.narrowed(name) for case in cases]
    of_all = lambda given: [REGISTRY[name](*xs, **case.params) for xs, case in zip(given, narrow, strict=True)]
    check(of_all)([case.arguments for case in narrow])
