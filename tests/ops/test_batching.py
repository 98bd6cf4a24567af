"""Walks the registry: the batching rule of every op against the op applied to one example after the other.

NumPy computes both: this is about rules, and batches are compiled where they are compared with JAX's. Those of no
example are compiled here.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import CASES, Case
from op_cases.basic import conv_reference, dot_reference, kernel_gradient_reference
from support.derivatives import in_numpy

import tvmfun
from tvmfun.core.op import REGISTRY, Op
from tvmfun.ops import conv
from tvmfun.ops.dot import dot_general

SIZES = (3, 1, 0)


def examples(x: np.ndarray) -> np.ndarray:
    """Three arguments like ``x``, stacked: the same elements in another order, floats also smaller."""
    others = [np.roll(x.reshape(-1), k).reshape(x.shape) for k in range(3)]
    return np.stack([y * (1 - k / 8) if y.dtype.kind == "f" else y for k, y in enumerate(others)]).astype(x.dtype)


def choices(case: Case) -> list[tuple[bool, ...]]:
    """Which arguments are batched: every choice, or one and all of them where there are many."""
    count = len(case.arguments)
    if count <= 3:
        return [flags for flags in product((False, True), repeat=count) if any(flags)]
    return [tuple(i == j for j in range(count)) for i in range(count)] + [(True,) * count]


def results(value) -> tuple:
    return value if isinstance(value, tuple) else (value,)


SOME_POINTWISE = ("add", "divide", "power", "exp", "equal", "where", "astype")


def is_needed(op: Op, i: int, case: Case) -> bool:
    """Pointwise ops share one rule: those with one argument need one case."""
    return len(case.arguments) > 1 or (len(case.arguments) == 1 and (op.kind != "pointwise" or i == 0))


@pytest.mark.parametrize(
    ("op", "case"),
    [
        # One rule serves all pointwise ops: the quick cases are one of a few of them, and two of the other ops.
        pytest.param(
            REGISTRY[name],
            case,
            id=f"{name}-{i}",
            marks=[]
            if i < (2 if REGISTRY[name].kind != "pointwise" else name in SOME_POINTWISE)
            else [pytest.mark.slow],
        )
        for name in CASES
        for i, case in enumerate(CASES[name])
        if is_needed(REGISTRY[name], i, case)
    ],
)
def test_rule_is_the_op_on_each_example(op: Op, case: Case):
    assert op.batch is not None
    full = [examples(x) for x in case.arguments]

    def applied(*stack):
        """The results of all choices for batches of one size."""
        for flags in choices(case):
            args = [batch if flag else x for flag, batch, x in zip(flags, stack, case.arguments, strict=True)]
            yield results(op.batch(flags, *args, **case.params))  # type: ignore[reportOptionalCall]

    got = {}
    for size in SIZES:
        stack, every = [x[:size] for x in full], lambda *stack: list(applied(*stack))
        run = in_numpy(every, *stack) if size else tvmfun.jit(every)
        got |= {(flags, size): parts for flags, parts in zip(choices(case), run(*stack), strict=True)}
    alone = in_numpy(lambda *args: results(op(*args, **case.params)), *case.arguments)
    known: dict[tuple[int, ...], list[np.ndarray]] = {}

    def example(places: tuple[int, ...]) -> list[np.ndarray]:
        if places not in known:
            value = alone(*(x[i] for x, i in zip(full, places, strict=True)))
            known[places] = [np.asarray(part) for part in value]
        return known[places]

    for (flags, size), parts in got.items():
        for k, part in enumerate(parts):
            expected = [example(tuple(i * flag for flag in flags))[k] for i in range(size)]
            like = example((0,) * len(flags))[k]
            assert part.shape == (size, *like.shape)
            assert part.dtype == like.dtype
            for row, value in zip(np.asarray(part), expected, strict=True):
                if case.exact:
                    np.testing.assert_array_equal(row, value)
                else:
                    np.testing.assert_allclose(row, value, rtol=1e-12, atol=1e-13)


def test_every_op_with_arguments_has_a_rule():
    with_arguments = {name for name in CASES if any(case.arguments for case in CASES[name])}
    assert [name for name in sorted(with_arguments) if REGISTRY[name].batch is None] == []


def test_a_matrix_times_each_vector_is_one_product():
    program = tvmfun.trace(
        lambda w, x: dot_general.batch((False, True), w, x, contract=((1,), (0,)), batch=((), ()))  # type: ignore[reportOptionalCall]
    )(np.ones((3, 4)), np.ones((5, 4)))
    assert [str(equation.op) for equation in program.equations] == ["dot_general"]
    assert program.out_avals[0].shape == (5, 3)


# -- random shapes ---------------------------------------------------------------------------------------------

ONE_OR_BOTH = st.sampled_from([(True, False), (False, True), (True, True)])


def against(reference, op: Op, flags, size: int, arguments, params) -> None:
    """Compares the rule with the reference for each example; ``arguments`` are those of one example."""
    rng = np.random.default_rng(size)
    full = [rng.normal(size=(size, *x) if flag else x) for flag, x in zip(flags, arguments, strict=True)]
    got = in_numpy(lambda *xs: op.batch(flags, *xs, **params), *full)(*full)  # type: ignore[reportOptionalCall]
    rows = [[x[i] if flag else x for flag, x in zip(flags, full, strict=True)] for i in range(size)]
    expected = np.stack([reference(*row, **params) for row in rows])
    assert got.shape == expected.shape
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=20)
@given(flags=ONE_OR_BOTH, size=st.integers(1, 3), data=st.data())
def test_products_of_any_axes(flags, size: int, data):
    sizes = [data.draw(st.lists(st.integers(1, 3), max_size=2), label) for label in ("shared", "summed", "x", "y")]
    shared, summed, left, right = sizes
    orders = [data.draw(st.permutations(range(len(shared) + len(summed) + len(own)))) for own in (left, right)]
    arguments, places = [], []
    for own, order in zip((left, right), orders, strict=True):
        full = [*shared, *summed, *own]
        arguments.append(tuple(full[i] for i in order))
        places.append([order.index(i) for i in range(len(full))])
    batch = tuple(tuple(p[: len(shared)]) for p in places)
    contract = tuple(tuple(p[len(shared) : len(shared) + len(summed)]) for p in places)
    against(dot_reference, dot_general, flags, size, arguments, {"contract": contract, "batch": batch})


@pytest.mark.slow
@settings(max_examples=15)
@given(
    flags=ONE_OR_BOTH,
    size=st.integers(1, 3),
    groups=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    stride=st.integers(1, 2),
    padding=st.tuples(st.integers(-1, 2), st.integers(-1, 2)),
    dilation=st.integers(1, 2),
    kernel_dilation=st.integers(1, 2),
)
def test_convolutions_with_any_groups(flags, size, groups, channels, stride, padding, dilation, kernel_dilation):
    params = {
        "stride": (stride,),
        "padding": (padding,),
        "dilation": (dilation,),
        "kernel_dilation": (kernel_dilation,),
        "groups": groups,
    }
    x, w = (2, 5, channels[0] * groups), (2, channels[0], channels[1] * groups)
    against(conv_reference, conv.conv, flags, size, (x, w), params)
    g = conv_reference(np.zeros(x), np.zeros(w), **params).shape
    gradient = {"kernel": w[:1], **params}
    against(kernel_gradient_reference, conv.conv_kernel_gradient, flags, size, (x, g), gradient)
