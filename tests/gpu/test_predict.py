"""The prediction of steps on a GPU: launches, bytes and operations, counted without one."""

from functools import cache, partial

import pytest

pytest.importorskip("torch")

import tvmfun
import tvmfun.numpy as tnp
from gpu.ideal import ideal_bytes
from gpu.predict import GPUS, SM_90A, kernels, predict, summary
from gpu.steps import TIMED
from tvmfun import ShapeDtype, lax
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower.schedule.gpu import tiles

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def ideal(function, *shapes):
    """The ideal bytes of a function of float32 arrays; an integer is a number of indices."""
    types = [ShapeDtype((s,), "int32") if isinstance(s, int) else ShapeDtype(s, "float32") for s in shapes]
    return ideal_bytes(pipeline.rewritten(inlined(tvmfun.trace(function)(*types), "cuda"), SM_90A))


def test_ideal_bytes_of_tables_are_those_of_rows():
    def step(table, w, ids):
        x = tnp.tanh(table[ids] @ w)
        return table.at[ids].add(x), tnp.sum(x)

    rows, weight = 4 * 5 * 8, 4 * 8 * 8
    # Five rows are looked up, which the product reads, as the update does its result; five are read and written.
    least = rows + 2 * rows + weight + 2 * rows + 2 * rows
    assert least <= ideal(step, (1000, 8), (8, 8), 5) <= least + 100


X, W, Y = 4 * 64 * 256, 4 * 256 * 512, 4 * 64 * 512


def normalized(y, axis):
    centred = y - tnp.mean(y, axis, keepdims=True)
    return centred * lax.rsqrt(tnp.mean(centred * centred, axis, keepdims=True) + 1)


def test_ideal_bytes_of_passes():
    shapes = (64, 256), (256, 512)
    assert ideal(lambda x, w: x @ w, *shapes) == X + W + Y
    # Maps of a product, and sums of its columns, are part of it.
    assert ideal(lambda x, w: tnp.tanh(x @ w), *shapes) == X + W + Y
    total = ideal(lambda x, w: tnp.sum(tnp.tanh(x @ w), 0), *shapes)
    assert X + W <= total <= X + W + 4 * 512
    # A row that is normalized is no tile of a product: it is stored and read once.
    assert ideal(lambda x, w: normalized(x @ w, 1), *shapes) == X + W + 3 * Y
    # The mean and the variance of a column are barriers.
    total = ideal(lambda x, w: normalized(x @ w, 0), *shapes)
    assert X + W + 4 * Y <= total <= X + W + 4 * Y + 3 * 2 * 4 * 512
    # Factors of half precision are written and read as such.
    half = tvmfun.amp(lambda x, w: x @ w)
    assert ideal(half, *shapes) == X + W + 2 * (X + W) / 2 + Y


def test_ideal_bytes_of_loops():
    def run(w, h, xs):
        return lax.scan(lambda h, x: (tnp.tanh(h @ w + x), None), h, xs)[0]

    h, w = 4 * 8 * 32, 4 * 32 * 32
    # In each step the product reads both factors and stores its result; the stack of rows is read once.
    least = 10 * (h + w) + 10 * h + h + h
    assert least <= ideal(run, (32, 32), (8, 32), (10, 8, 32)) <= least + 10 * h


predicted = cache(partial(predict, gpu=GPUS["H200"]))
#: The most milliseconds of a step on an H200.
MILLISECONDS = {
    "BERT-base, 32 x 128, bfloat16": 9,
    "BERT-base, 32 x 128, tensorfloat32": 15,
    "GPT-2 124M, 8 x 1024, bfloat16": 20,
    "GPT-2 124M, 8 x 1024, tensorfloat32": 40,
}
#: The most launches of a step in any precision.
LAUNCHES = {"MNIST CNN": 25, "DLRM": 60, "BERT-base, 32 x 128": 450, "GPT-2 124M, 8 x 1024": 300, "ResNet-18": 350}
#: The most bytes of a step, as a multiple of the ideal ones.
MULTIPLE = 1.5
#: The steps that are predicted. In tensorfloat32 convolutions are those of MNIST.
PREDICTED = [name for name in TIMED if not name.endswith(", float32") and name != "ResNet-18, tensorfloat32"]


@pytest.mark.parametrize("name", PREDICTED)
def test_predictions(name):
    found = predicted(name)
    milliseconds = MILLISECONDS.get(name, 5)
    assert found.seconds * 1e3 <= milliseconds
    # The three are reached even if no kernel moves bytes while it multiplies.
    assert name not in MILLISECONDS or found.apart * 1e3 <= milliseconds
    assert found.launches <= LAUNCHES.get(name.rpartition(", ")[0], 700)
    assert found.packed < 1 << 20  # loops are not unrolled in the file
    assert found.bytes <= MULTIPLE * found.ideal
    # No step is faster than its operations on tensor cores.
    assert found.flops / tiles.machine("sm_90a").peaks["bfloat16"] < found.seconds <= found.apart
    assert name in summary([found], GPUS["H200"]) and kernels(found, 3).count("\n") == 4


@pytest.mark.parametrize("name", ["MNIST CNN, float32", "DLRM, float32"])
def test_launches_in_float32(name):
    assert predicted(name).launches <= LAUNCHES[name.rpartition(", ")[0]]


def test_products_are_predicted_by_what_they_were_scheduled_for():
    found = predicted("BERT-base, 32 x 128, bfloat16")
    products = [row for (rule, _), row in found.rows.items() if rule == "product"]
    fastest = {units: 1 / tiles.reached(f"{units} bfloat16", "sm_90a") for units in ("wgmma", "mma.sync")}
    bound = [row for row in products if row.seconds > row.bytes / (0.85 * GPUS["H200"].memory) * 1.001]
    assert bound
    for row in bound:
        assert fastest["wgmma"] * row.flops * 0.999 <= row.seconds
