"""Walks the registry: every op against NumPy, finite differences to order 2, and jit against eager."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from op_cases import CASES, Case
from support import derivatives

import tvmfun
from tvmfun import dtypes
from tvmfun.core.op import REGISTRY, Op
from tvmfun.core.program import Program
from tvmfun.reference import MEANINGS

ALL = [pytest.param(REGISTRY[name], case, id=f"{name}-{i}") for name in CASES for i, case in enumerate(CASES[name])]


def test_every_op_has_a_case():
    # Ops that contain Programs or name axes are tested through functions built on them: loops, branches, custom rules.
    plain = {name for name, op in REGISTRY.items() if op.kind not in ("control", "call")}
    assert set(CASES) == plain


def outputs(value) -> tuple:
    return value if isinstance(value, tuple) else (value,)


@cache
def jit_results(op: Op, often: bool) -> list[tuple[Case, tuple]]:
    """The results of all quick, or of all other cases of an op, which compile sooner together."""
    cases = [case for case in CASES[op.name] if is_often(op, case) == often]
    run = lambda given: [outputs(op(*own, **case.params)) for case, own in zip(cases, given, strict=True)]
    return list(zip(cases, tvmfun.jit(run)([case.arguments for case in cases]), strict=True))


def is_often(op: Op, case: Case) -> bool:
    """Whether a case is quick: pointwise formulas do not depend on the shape, but some have their own numbers."""
    index = next(i for i, one in enumerate(CASES[op.name]) if one is case)
    return index < (1 if op.kind == "pointwise" else 3) or (case.exact and index < 5)


@pytest.mark.parametrize(
    ("op", "case"),
    [pytest.param(*p.values, id=p.id, marks=[] if is_often(*p.values) else [pytest.mark.slow]) for p in ALL],
)
def test_value_is_numpys_in_eager_and_jit(op: Op, case: Case):
    expected = outputs(case.reference(*case.arguments, **case.params))
    eager = outputs(op(*map(tvmfun.numpy.asarray, case.arguments), **case.params))
    jitted = next(results for one, results in jit_results(op, is_often(op, case)) if one is case)
    for ours, compiled_ours, reference in zip(eager, jitted, map(np.asarray, expected), strict=True):
        for got in (ours, compiled_ours):
            assert got.shape == reference.shape
            if case.exact:
                np.testing.assert_array_equal(np.asarray(got), reference)
            else:
                np.testing.assert_allclose(np.asarray(got), reference, rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(compiled_ours))


@pytest.mark.parametrize(("op", "case"), [pytest.param(REGISTRY[name], CASES[name][0], id=name) for name in CASES])
def test_value_in_single_precision(op: Op, case: Case):
    case = case.narrowed(op.name)
    expected = outputs(case.reference(*case.arguments, **case.params))
    result = outputs(op(*map(tvmfun.numpy.asarray, case.arguments), **case.params))
    for got, reference in zip(result, expected, strict=True):
        if dtypes.is_float(got.dtype) and any(x.dtype == np.float32 for x in case.arguments):
            assert got.dtype == np.float32
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(reference, np.float64), 2e-5, 1e-5)


def differentiable(op: Op, case: Case) -> bool:
    return case.order > 0 and op.vjp is not None and any(x.dtype == np.float64 for x in case.arguments)


def is_first(op: Op, case: Case) -> bool:
    """Whether this case tells more than the tests against JAX: the first of each op, and each way to scatter.

    Of the pointwise ops, whose derivatives are formulas, only those of two arguments.
    """
    if op.kind == "pointwise" and len(case.arguments) < 2:
        return False
    return any(case is one for one in CASES[op.name][: 5 if op.name == "scatter" else 1])


@pytest.mark.parametrize(
    ("op", "case"),
    [
        # The tests against JAX draw other shapes; the rest of these is run once in a while.
        pytest.param(*p.values, id=p.id, marks=[] if is_first(*p.values) else [pytest.mark.slow])
        for p in ALL
        if differentiable(*p.values)
    ],
)
def test_derivatives_to_order_two(op: Op, case: Case):
    floats = [i for i, x in enumerate(case.arguments) if x.dtype == np.float64]

    def of_floats(*values):
        full = list(case.arguments)
        for i, value in zip(floats, values, strict=True):
            full[i] = value
        return op(*map(tvmfun.numpy.asarray, full), **case.params)

    result = outputs(tvmfun.eval_shape(of_floats, *(case.arguments[i] for i in floats)))
    if not any(dtypes.is_float(part.dtype) for part in result):
        pytest.skip("the result is not a float")
    # Pointwise formulas do not depend on the shape: the second order once is enough.
    repeated = any(case is other for other in CASES.get(op.name, [])[1:])
    order = 1 if op.kind == "pointwise" and repeated else case.order
    floats_of_case = [case.arguments[i] for i in floats]
    derivatives.check(of_floats, floats_of_case, order, compiled=op.name not in MEANINGS)


@pytest.mark.parametrize(("op", "case"), [pytest.param(REGISTRY[name], CASES[name][0], id=name) for name in CASES])
def test_relax_view_is_well_formed_and_reads_back(op: Op, case: Case):
    program = tvmfun.trace(lambda *arguments: op(*arguments, **case.params))(*case.arguments).verify()
    again = Program.from_relax(program.function)
    assert [str(e.op) for e in again.equations] == [str(e.op) for e in program.equations]
    assert again.out_avals == program.out_avals
    if case.arguments:
        for expected, got in zip(
            outputs(case.reference(*case.arguments, **case.params)), again(*case.arguments), strict=True
        ):
            expected = np.asarray(expected, np.float64)
            np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=1e-10, atol=1e-12)
