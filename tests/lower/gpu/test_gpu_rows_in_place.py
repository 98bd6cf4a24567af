"""Results of rows, and of other kernels of GPUs, over intermediates that nothing reads later."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from support.serial_gpu import check, values

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn
from tvmfun.lower import kernel_cache
from tvmfun.lower.fusion import in_place, row_fusion

# A part of a warp per row, several rows per block and one too many, a warp, a block, and few rows, of which each is
# shared by several blocks.
SHAPES = [(33, 9), (65, 100), (70, 640), (64, 1025), (64, 4096)]
# Almost as many rows as there are processors, each kept in a block's shared memory.
LONG = (128, 16640)


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    monkeypatch.setattr(in_place, "_WORTH_ANOTHER_FORM", 0)
    monkeypatch.setattr(row_fusion, "_WORTH_A_KERNEL", 0)
    kernel_cache.clear_cache()


def moved(x):
    """The rows in another order, by a kernel of its own."""
    return tnp.full_like(x, 2).at[np.random.default_rng(0).permutation(x.shape[0])].add(x)


def softmax(x):
    return moved(nn.functional.softmax(moved(x)))


def normalized(x):
    y = moved(x)
    centred = y - tnp.mean(y, -1, keepdims=True)
    return moved(centred / tnp.sqrt(tnp.mean(centred * centred, -1, keepdims=True) + 1e-3))


def cross_entropy_gradient(x):
    labels = tnp.arange(x.shape[0]) % x.shape[1]
    loss = lambda logits: -tnp.mean(tnp.take_along_axis(nn.functional.log_softmax(logits), labels[:, None], -1))
    value, gradient = tvmfun.value_and_grad(loss)(moved(x))
    return value, moved(gradient)


def two_results(x):
    """Both need the row, so that the first may not be written over it."""
    y = moved(x)
    scaled = y / tnp.sum(tnp.abs(y), -1, keepdims=True)
    return moved(scaled), moved(tnp.exp(y - tnp.max(y, -1, keepdims=True)) + scaled)


def read_later(x):
    y = moved(x)
    return moved(nn.functional.softmax(y)), moved(y) * 2


def sums_of_the_result(x):
    y = nn.functional.softmax(moved(x))
    return moved(y), tnp.sum(y, 0)


OVERWRITTEN = {softmax: 1, normalized: 1, cross_entropy_gradient: 1, sums_of_the_result: 1, read_later: 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        *product([*OVERWRITTEN, two_results], SHAPES),
        *product([softmax, cross_entropy_gradient, two_results], [LONG]),
    ],
)
def test_rows_are_written_over_rows(function, shape):
    outcome = check(function, values(shape, "float32"))
    if function in OVERWRITTEN:
        assert outcome.overwritten == OVERWRITTEN[function]
