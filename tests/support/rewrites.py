"""Comparisons of Programs before and after a rewrite."""

from __future__ import annotations

import numpy as np

import tvmfun.numpy as tnp


def ops(program):
    """The names of the ops in order, with the type of their first result."""
    return [f"{equation.op.name} {equation.outputs[0].aval.dtype}" for equation in program.equations]


def assert_same_values(program, rewritten, *args):
    before, after = (one.evaluate([*one.captured, *map(tnp.asarray, args)]) for one in (program, rewritten))
    for expected, got in zip(before, after, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(got, "float64"), np.asarray(expected, "float64"))
