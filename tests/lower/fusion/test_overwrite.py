"""Results over inputs: every form of kernel, in every context that may put one there, for sizes with and without tails.

Each form is a function of two arrays ``(c, y)``, written for NumPy and for ``tvmfun.numpy``, that a loop or a donating
call applies to its own result, so that an element that is computed twice, or read after it was written, shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from support.parallel import parallel_loops

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

STEPS = 3
# Multiples of the vectors' lanes, tails in either axis and in both, less than a vector, one row, one column, nothing.
SHAPES = [(64, 48), (16, 20), (20, 16), (37, 37), (5, 3), (1, 33), (33, 1), (0, 4)]
SQUARES = [(16, 16), (37, 37)]

Form = Callable[[Any, Any, Any], Any]


def _columns(c: Any) -> np.ndarray:
    return np.arange(c.shape[1])[::-1].copy()


def _repeated(n: int) -> np.ndarray:
    return np.arange(n) // 2


def _scattered(np_: Any, c: Any, rows: np.ndarray, y: Any) -> Any:
    if np_ is tnp:
        return c.at[rows].add(y[: len(rows)])
    result = c.copy()
    np.add.at(result, rows, y[: len(rows)])
    return result


def _set(np_: Any, c: Any, rows: np.ndarray, y: Any) -> Any:
    if np_ is tnp:
        return c.at[rows].set(y[: len(rows)])
    result = c.copy()
    result[rows] = y[: len(rows)]
    return result


#: By name: the form, and whether it is for square arrays only. ``n`` is the namespace.
FORMS: dict[str, tuple[Form, bool]] = {
    "pointwise": (lambda n, c, y: c - c // 2 + y, False),
    "columns gathered": (lambda n, c, y: c // 2 + c[:, _columns(c)] // 3, False),
    "rows gathered": (lambda n, c, y: c // 2 + c[_repeated(c.shape[0])], False),
    "columns of the other": (lambda n, c, y: c // 2 + y[:, _columns(y)], False),
    "reversed": (lambda n, c, y: c[::-1] - y, False),
    "reversed columns": (lambda n, c, y: c // 2 + c[:, ::-1] // 2 - y, False),
    "transposed": (lambda n, c, y: c.T + 0 * c, True),
    "with its transpose": (lambda n, c, y: c // 2 + c.T // 2, True),
    "transpose of the other": (lambda n, c, y: c + y.T, True),
    "transpose of a sum": (lambda n, c, y: c // 2 + (c + y).T // 2, True),
    "rolled": (lambda n, c, y: c // 2 + n.roll(c, 1, axis=1) // 2, False),
    "rolled rows": (lambda n, c, y: n.roll(c, 1, axis=0) - y, False),
    "shifted by a pad": (lambda n, c, y: n.pad(c, ((1, 0), (0, 1)))[:-1, 1:] + c // 2, False),
    "joined halves": (lambda n, c, y: n.concatenate([c[1:], c[:1]]) + y, False),
    "with the sum of all": (lambda n, c, y: c // 2 + n.sum(c, dtype=c.dtype) % 7, False),
    "with sums of rows": (lambda n, c, y: c // 2 - n.sum(c, axis=1, keepdims=True, dtype=c.dtype) % 5, False),
    "with sums of columns": (lambda n, c, y: c // 2 - n.sum(c, axis=0, keepdims=True, dtype=c.dtype) % 5, False),
    "running sums": (lambda n, c, y: n.cumsum(c, axis=1, dtype=c.dtype) % 9, False),
    "running sums of rows": (lambda n, c, y: n.cumsum(c, axis=0, dtype=c.dtype) % 9 + c // 4, False),
    "sorted": (lambda n, c, y: n.sort(c, axis=1)[:, ::-1] - y, False),
    "product": (lambda n, c, y: (c % 4) @ (y.T % 3) % 5, True),
    "product added": (lambda n, c, y: c // 2 + (c % 4) @ (c % 3).T % 5, True),
    "product of the other added": (lambda n, c, y: c // 2 + y @ y.T % 5, True),
    "row times column": (lambda n, c, y: c // 2 + c[:1] % 3 * (c[:, :1] % 3), False),
    "rows added": (lambda n, c, y: _scattered(n, c, _repeated(c.shape[0]), y), False),
    "rows set": (lambda n, c, y: _set(n, c, np.arange(0, c.shape[0], 2), y), False),
    "rows added and read": (lambda n, c, y: _scattered(n, c, _repeated(c.shape[0]), c // 2), False),
    "reshaped": (lambda n, c, y: c.reshape(-1)[::-1].reshape(c.shape) + y, False),
}


def cases(context: str, dtype: str) -> Iterator[tuple[str, Form, tuple[int, int]]]:
    """Yields an eighth of the forms and shapes: of form, shape, context and dtype, any two meet."""
    first = 3 * [*CONTEXTS, "donated"].index(context) + 2 * DTYPES.index(dtype)
    for number, (name, (form, is_square)) in enumerate(FORMS.items(), first):
        for i, shape in enumerate(SQUARES if is_square else SHAPES, number):
            if i % len(SHAPES) == 0:
                yield name, form, shape


def _loop(form: Form) -> Callable:
    return lambda c, y: lax.fori_loop(0, STEPS, lambda i, c: form(tnp, c, y), c)


def _while(form: Form) -> Callable:
    def run(c: Any, y: Any) -> Any:
        step = lambda state: (state[0] + 1, form(tnp, state[1], y))
        return lax.while_loop(lambda state: state[0] < STEPS, step, (np.int32(0), c))[1]

    return run


def _scan(form: Form) -> Callable:
    """Carries that change roles with a second one, and rows that are stacked while the carry changes."""

    def run(c: Any, y: Any) -> Any:
        def step(carry: tuple, y: Any) -> tuple:
            c, kept = carry
            new = form(tnp, c, y)
            return (new, c), new + 0 * kept

        (result, _), rows = lax.scan(step, (c, c), tnp.stack([y] * STEPS))
        return tnp.where(result == rows[-1], result, 77)

    return run


def _nested(form: Form) -> Callable:
    """A loop in a branch in a loop."""

    def run(c: Any, y: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            inner = lambda c: lax.fori_loop(0, 1, lambda j, c: form(tnp, c, y), c)
            return lax.cond(i < STEPS, inner, lambda c: c, c)

        return lax.fori_loop(0, STEPS + 1, step, c)

    return run


def _mapped(form: Form) -> Callable:
    """Loops side by side, which may run on several cores."""

    def run(c: Any, y: Any) -> Any:
        rows = lax.map(lambda c: _loop(form)(c, y), tnp.stack([c] * 4))
        return tnp.where(tnp.all(rows == rows[:1], axis=0), rows[3], 77)

    return run


CONTEXTS: dict[str, Callable[[Form], Callable]] = {
    "loop": _loop,
    "while": _while,
    "scan": _scan,
    "nested": _nested,
    "mapped": _mapped,
}
DTYPES = ("float32", "int32", "float64", "int8")
# With these dtypes loops run in parallel, which they otherwise do for larger arrays only.
PARALLEL = ("int32", "float64")
QUICK = {("donated", "int8")}


def arguments(shape: tuple[int, int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, which every dtype computes exactly."""
    rng = np.random.default_rng(sum(shape))
    c, y = rng.integers(0, 5, (2, *shape))
    return c.astype(dtype), (y % 3).astype(dtype)


def marked(contexts: Any) -> list:
    pairs = [(context, dtype) for context in contexts for dtype in DTYPES]
    return [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in pairs]


def loops(dtype: str) -> Any:
    """The context in which the tests of a dtype compile."""
    return parallel_loops() if dtype in PARALLEL else nullcontext()


def check(results: list, context: str, dtype: str) -> None:
    wrong = []
    for (name, form, shape), result in zip(cases(context, dtype), results, strict=True):
        expected, y = arguments(shape, dtype)
        for _ in range(STEPS):
            expected = form(np, expected, y).astype(dtype)
        if not np.array_equal(np.asarray(result), expected):
            wrong.append(f"{name} {shape}")
    assert not wrong


@pytest.mark.parametrize(("context", "dtype"), marked(CONTEXTS))
def test_a_carry_over_itself(context: str, dtype: str):
    forms = [CONTEXTS[context](form) for _, form, _ in cases(context, dtype)]
    run = lambda pairs: [form(c, y) for form, (c, y) in zip(forms, pairs, strict=True)]
    with loops(dtype):
        results = tvmfun.jit(run)([arguments(shape, dtype) for _, _, shape in cases(context, dtype)])
    check(results, context, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("context", "dtype"), marked(["donated"]))
def test_a_result_over_a_donated_argument(context: str, dtype: str):
    forms = [form for _, form, _ in cases(context, dtype)]
    step = tvmfun.jit(
        lambda cs, ys: [form(tnp, c, y) for form, c, y in zip(forms, cs, ys, strict=True)], donate_argnums=0
    )
    pairs = [arguments(shape, dtype) for _, _, shape in cases(context, dtype)]
    state, ys = [tnp.asarray(c) for c, _ in pairs], [tnp.asarray(y) for _, y in pairs]
    with loops(dtype):
        for _ in range(STEPS):
            state = step(state, ys)
    check(state, context, dtype)
