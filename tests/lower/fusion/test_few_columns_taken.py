"""Columns that are taken several times from one matrix: each reader takes its own, and no transpose is stored."""

from __future__ import annotations

import numpy as np
import pytest
from support.results import draw

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.core.inline import inlined

X = draw(40, 30)
#: Functions of a matrix and an index, and whether the transpose of the matrix is stored.
FUNCTIONS = {
    "two columns": (lambda x, i: x[:, i] * x[:, i + 1], False),
    "sums of three": (lambda x, i: x[:, i].sum() + x[:, i + 1].max() - x[:, i + 2].min(), False),
    "outer product": (lambda x, i: tnp.outer(x[:, i], x[:, i]) + x[:, i + 1][:, None], False),
    "several": (lambda x, i: x[:, tnp.asarray([1, 4]) + i] * x[:, tnp.asarray([3, 0]) + i], False),
    "middle axis": (lambda x, i: x.reshape(4, 10, 30)[:, i] - x.reshape(4, 10, 30)[:, i + 1], False),
    "all columns": (lambda x, i: x[:, tnp.arange(30)[::-1] + i] * x[:, tnp.arange(30) + i], False),
    "returned": (lambda x, i: (x.T, x[:, i] * x[:, i + 1]), True),
}


def evaluated(function, index):
    program = inlined(tvmfun.trace(function)(X, index))
    return tvmfun.reference.evaluate(program, [*program.captured, X, index])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_columns(name):
    function, is_stored = FUNCTIONS[name]
    for i in (0, 5, -3, 28, 100):
        index = np.int32(i)
        got = tvmfun.jit(function)(X, index)
        for one, other in zip(tvmfun.tree.leaves(got), evaluated(function, index), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    gradient = tvmfun.grad(lambda x, i: sum((y**2).sum() for y in tvmfun.tree.leaves(function(x, i))))
    (wanted,) = evaluated(gradient, np.int32(5))
    np.testing.assert_allclose(tvmfun.jit(gradient)(X, np.int32(5)), wanted, rtol=1e-4, atol=1e-4)
    text = tvmfun.jit(function).lower(X, np.int32(0)).compile().as_text()
    main = text[text.index("R.function") :]
    stored = ["(30, 40)", "(10, 4, 30)"]
    assert any(f"Tensor({shape}" in main for shape in stored) == is_stored
