"""Decompositions of matrices on a GPU: a thread per matrix, whose memory is an array of the kernel if it is large."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.programs import DECOMPOSITIONS
from support.cuda_emulator.gpu import emulated_gpus

import tvmfun

RNG = np.random.default_rng(0)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*which may be slow:tvmfun.errors.PerformanceWarning"),
]


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    with emulated_gpus(seed=3) as machine:
        yield machine


@pytest.mark.parametrize("n", [5, 70])
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_the_results_are_those_of_the_cpu(name, n, machine):
    a = RNG.normal(size=(3, n, n)).astype("float32") + 3 * np.eye(n, dtype="float32")
    function = tvmfun.jit(DECOMPOSITIONS[name])
    found, expected = function(tvmfun.device_put(a, "cuda")), function(a)
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["cholesky", "inv"])
def test_dynamic_sizes(name, machine):
    function = tvmfun.jit(DECOMPOSITIONS[name], dynamic_shapes=({0: "b", 1: "n", 2: "n"},))
    for b, n in ((2, 3), (1, 40), (4, 33)):
        a = RNG.normal(size=(b, n, n)).astype("float32") + 3 * np.eye(n, dtype="float32")
        np.testing.assert_allclose(function(tvmfun.device_put(a, "cuda")), function(a), rtol=2e-4, atol=2e-4)
