"""Every rule of the scheduler, in every context that a kernel can be in, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import check, lax
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.schedule.cpu.rules import RULES
from tvmfun.nn import functional as F

Function = Callable[..., Any]

#: For each rule functions and the shapes of their arguments: whole tiles, tails, less than a vector.
CASES: dict[str, list[tuple[Function, tuple[tuple[int, ...], ...]]]] = {
    "contraction": [
        (lambda x, w: x @ w, ((37, 20), (20, 33))),
        (lambda x, w: tnp.tanh(x @ w + 1), ((64, 64), (64, 64))),
        (lambda w, x: w - 0.5 * (x.T @ x), ((33, 33), (7, 33))),
        (lambda x, y: tnp.einsum("bij,bkj->bik", x, y), ((3, 17, 5), (3, 16, 5))),
        (lambda x, w: F.conv2d(x, w, stride=2, padding=1), ((2, 9, 7, 3), (3, 3, 3, 17))),
    ],
    "winograd": [(lambda x, w: F.conv2d(x, w, padding=1), ((8, 16, 16, 32), (3, 3, 32, 32)))],
    "window": [
        (lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 1, 1), "SAME"), ((2, 9, 7, 17),)),
        (lambda x: F.avg_pool(x, 3), ((1, 9, 6, 33),)),
    ],
    "reduction": [
        (lambda x: tnp.sum(x, axis=0), ((37, 20),)),
        (lambda x: tnp.mean(x, axis=1), ((5, 70),)),
        (lambda x: tnp.max(x * 2, axis=(0, 2)), ((3, 4, 19),)),
        (lambda x: x - tnp.sum(x, axis=1, keepdims=True), ((16, 33),)),
        (lambda x: F.softmax(x), ((7, 33),)),
        (lambda x: tnp.argmax(x, axis=1), ((7, 33),)),
        (lambda x: tnp.sum(x), ((70, 40),)),
    ],
    "elementwise": [
        (lambda x, y: x * y + 1, ((37, 20), (37, 20))),
        (lambda x, y: x + y.T, ((37, 20), (20, 37))),
        (lambda x: tnp.flip(lax.pad(x, x.dtype.type(0), [(1, 2, 1), (0, 1, 2)])), ((9, 7),)),
        (lambda x: tnp.exp(tnp.roll(x, 3, axis=1))[:, ::-2], ((5, 33),)),
        (lambda x: x[[3, 1, 1, 0]] * 2, ((5, 33),)),
        (lambda x: tnp.concatenate([x, x[:1] * 2, x[::-1]]), ((5, 17),)),
    ],
    "fallback": [
        (lambda x: tnp.sort(x, axis=0), ((9, 17),)),
        (lambda x, y: x.at[np.asarray([3, 1, 3])].add(y), ((5, 17), (3, 17))),
        (lambda x: tnp.cumsum(x, axis=0), ((3, 35),)),
    ],
    "scan": [(lambda x: tnp.cumsum(x, axis=1), ((3, 35),)), (lambda x: lax.cummax(x, reverse=True), ((40,),))],
    "scalar": [(lambda x: tnp.tanh(x) * 2, ((),))],
}

CONTEXTS: dict[str, Callable[[Function, list], tuple[Function, list]]] = {
    "alone": lambda f, xs: (f, xs),
    "batched": lambda f, xs: (tvmfun.vmap(f), [np.stack([x, x[..., ::-1] if x.ndim else x]) for x in xs]),
    "mapped": lambda f, xs: (lambda *xs: lax.map(lambda x: f(*x), xs), [np.stack([x] * 4) for x in xs]),
    "branch": lambda f, xs: (lambda *xs: lax.cond(tnp.sum(xs[0]) > 0, f, lambda *xs: f(*(-x for x in xs)), *xs), xs),
    "gradient": lambda f, xs: (tvmfun.grad(lambda *xs: tnp.sum(tnp.sin(f(*xs))), argnums=tuple(range(len(xs)))), xs),
    "hessian": lambda f, xs: (
        lambda *xs: tvmfun.jvp(tvmfun.grad(lambda *xs: tnp.sum(tnp.sin(f(*xs)))), tuple(xs), tuple(xs)),
        xs,
    ),
}

DTYPES = ("float32", "float64", "bfloat16")
ALL = [
    pytest.param(rule, function, shapes, id=f"{rule}-{i}")
    for rule, cases in CASES.items()
    for i, (function, shapes) in enumerate(cases)
]


def arrays(shapes: tuple[tuple[int, ...], ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [np.asarray(rng.normal(size=shape), tvmfun.dtypes.canonical(dtype)) for shape in shapes]


def test_every_rule_has_cases():
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize(("rule", "function", "shapes"), ALL)
def test_the_rule_is_the_one_that_the_case_is_for(rule: str, function: Function, shapes: tuple):
    program = tvmfun.trace(function)(*arrays(shapes, "float32"))
    kernels = pipeline.scheduled_kernels(program, targets.resolve({"kind": "llvm", "mcpu": "x86-64-v4"}))
    assert rule in {str(kernel.function.attrs["tvmfun.rule"]) for kernel in kernels}


def in_contexts() -> Iterator[Any]:
    """Yields each case alone in each dtype, and in each other context in one of them, which differs among cases."""
    for i, case in enumerate(ALL):
        for j, context in enumerate(CONTEXTS):
            if context in ("gradient", "hessian") and "argmax" in case.values[1].__code__.co_names:
                continue  # there is no derivative
            for k, dtype in enumerate(DTYPES):
                is_chosen = (i + j) % len(DTYPES) == k
                if is_chosen or context == "alone":
                    yield pytest.param(*case.values[1:], context, dtype, is_chosen, id=f"{case.id}-{context}-{dtype}")


@pytest.mark.quick("*-alone-float32", "*-0-*-float32")
@pytest.mark.parametrize(("function", "shapes", "context", "dtype", "is_donated"), [*in_contexts()])
def test_kernels_are_right_in_every_context(
    function: Function, shapes: tuple, context: str, dtype: str, is_donated: bool
):
    changed, values = CONTEXTS[context](function, arrays(shapes, dtype))
    check(changed)(*values)
    if is_donated and context in ("alone", "batched"):
        check(changed, donate_argnums=tuple(range(len(values))))(*values)
