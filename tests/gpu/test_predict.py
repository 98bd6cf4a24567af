"""The prediction of steps on a GPU: launches, bytes and operations, counted without one."""

import pytest

pytest.importorskip("torch")

import tvmfun
import tvmfun.numpy as tnp
from gpu.predict import GPUS, ideal_bytes, kernels, predict, summary
from tvmfun import ShapeDtype
from tvmfun.core.inline import inlined
from tvmfun.lower.schedule.gpu import tiles

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_ideal_bytes_are_those_of_products_arguments_and_results():
    def step(table, w, ids):
        x = tnp.tanh(table[ids] @ w)
        return table.at[ids].add(x), tnp.sum(x)

    types = ShapeDtype((1000, 8), "float32"), ShapeDtype((8, 8), "float32"), ShapeDtype((5,), "int32")
    rows, weight = 4 * 5 * 8, 4 * 8 * 8
    ideal = ideal_bytes(inlined(tvmfun.trace(step)(*types), "cuda"))
    product = 2 * rows + weight
    # Of the table, five rows are looked up, and five are read and written; the rest is indices and a sum.
    assert product + 3 * rows <= ideal <= product + 3 * rows + 100


#: The most milliseconds on an H200, launches, and bytes as a multiple of the ideal ones.
STEPS = {
    "MNIST CNN, tensorfloat32": (0.25, 30, 2.0),
    "DLRM, tensorfloat32": (0.1, 40, 1.5),
    "BERT-base, 32 x 128, tensorfloat32": (13.5, 270, 2.4),
    "BERT-base, 32 x 128, bfloat16": (10, 270, 2.1),
    # Its attention alone would take more at the rate of float32.
    "GPT-2 124M, 8 x 1024, bfloat16": (25, 300, 2.4),
}


@pytest.mark.parametrize("name", STEPS)
def test_predictions(name):
    milliseconds, launches, multiple = STEPS[name]
    found = predict(name, GPUS["H200"])
    assert found.seconds * 1e3 <= milliseconds
    assert found.launches <= launches
    assert found.bytes <= multiple * found.ideal
    # No step is faster than its operations on tensor cores.
    assert found.flops / tiles.machine("sm_90a").peaks["bfloat16"] < found.seconds
    assert name in summary([found], GPUS["H200"]) and kernels(found, 3).count("\n") == 4
