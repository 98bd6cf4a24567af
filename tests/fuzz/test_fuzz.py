"""Random programs of fixed seeds; the fuzzer finds, explains and shrinks planted defects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("jax")

from fuzz import compare, grammar, shrink
from fuzz.asked import Meant, given
from fuzz.case import CHECKS, Case
from fuzz.flushing import flushing
from fuzz.namespaces import jax_names, own_names

SEEDS = [(seed, wide) for wide in (False, True) for seed in range(14)]


@pytest.mark.quick("11-True", "12-True", "9-True")
@pytest.mark.parametrize(("seed", "wide"), SEEDS)
def test_programs_of_fixed_seeds(seed: int, wide: bool):
    case = grammar.program(seed, wide)
    if case is not None:
        assert compare.difference(case) is None


def test_a_seed_is_always_the_same_program():
    first, again = grammar.program(7), grammar.program(7)
    assert first is not None and again is not None
    assert (first.text(), first.check) == (again.text(), again.check)
    for x, y in zip(given(first), given(again), strict=True):
        np.testing.assert_array_equal(x, y)


def test_both_libraries_have_all_names():
    assert set(jax_names()) == set(own_names())


@pytest.mark.slow
def test_every_check_is_asked():
    x = np.array([0.5, -1.0, 2.0])
    for check in CHECKS:
        assert compare.compare(Case({"a": x}, (("v0", "np.sin(a) * a"),), ("v0",), check)) is None, check


@pytest.mark.slow
def test_a_wrong_result_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch):
    from fuzz import asked

    honest = asked.found
    wrong = lambda case: [np.where(x > 3, x + 1, x) if "sort" in case.text() else x for x in honest(case)]
    monkeypatch.setattr(compare, "found", wrong)
    arguments = {"a": np.arange(12.0).reshape(3, 4), "b": np.ones(3)}
    statements = (("v0", "b + 1"), ("v1", "np.cos(a)"), ("v2", "np.sort(a * 2, axis=-1)"), ("v3", "v2 + 0 * v1"))
    case = Case(arguments, statements, ("v0", "v3"))
    assert compare.difference(case) is not None
    small = shrink.shrink(case)
    assert len(small.statements) == 1 and "sort" in small.text()
    assert sum(x.size for x in small.arguments.values()) <= 4
    scope: dict = {}
    exec(small.as_test("found", "A wrong result."), scope)
    with pytest.raises(AssertionError):
        scope["test_found"]()


def test_flushed_subnormals_are_explained():
    with flushing():
        flushes = float(np.array([1e-40], np.float32)[0] * np.float32(1)) == 0
    assert float(np.array([1e-40], np.float32)[0] * np.float32(1)) > 0
    if not flushes:
        pytest.skip("it is not known how this processor flushes")
    case = Case({"a": np.array([1e-40, np.inf], np.float32)}, (("v0", "a[0] * a[1]"),), ("v0",))
    seen = compare.compare(case)
    assert seen is not None and seen.because == compare.FLUSHED


def test_rounding_errors_that_grow_are_explained():
    x = np.full(64, 0.3, np.float32)
    body = "lax.fori_loop(0, 60, lambda i, c: 3.9 * c * (1 - c), a)"  # the logistic map
    seen = compare.compare(Case({"a": x}, (("v0", body),), ("v0",)))
    assert seen is None or seen.because in (compare.ROUNDING, compare.RANGE)


def test_rounding_errors_break_no_ties():
    meant = Meant(Case({"a": np.ones(4)}, (("v0", "np.max(a * 1)"),), ("v0",), "gradient"))
    spread = compare.spread(meant)
    assert spread is not None and (spread[1] < 1e-12).all()


def test_unused_statements_are_left_out():
    case = Case({"a": np.ones(2), "b": np.ones(2)}, (("v0", "a + 1"), ("v1", "b * 2")), ("v0", "v1"))
    assert replace(case, outputs=("v0",)).needed() == Case({"a": case.arguments["a"]}, (("v0", "a + 1"),), ("v0",))
