"""Attention and its gradients beside JAX's and PyTorch's functions for it, from short sequences to long ones.

Run with ``nox -s bench -- -k attention``. The operations are those of six matrix products, half of them where a mask is
causal; computing the scores twice, as is done for long sequences, is not counted.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from bench.harness import compare

import tvmfun
from tvmfun.nn.functional import dot_product_attention

HEADS, WIDTH = 8, 64
SIZES = [(128, 8), (256, 4), (512, 2), (1024, 1), (2048, 1), (4096, 1)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "batch"), SIZES)
def test_attention(length: int, batch: int, causal: bool, report: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((batch, length, HEADS, WIDTH), dtype="float32") for _ in range(4)]

    def pulled(m: Any, function: Any) -> Any:
        run = lambda *a: function(*a, is_causal=causal)
        return m.jit(lambda q, k, v, g: m.vjp(run, q, k, v)[1](g))

    f, g = pulled(tvmfun, dot_product_attention), pulled(jax, jax.nn.dot_product_attention)
    ours, theirs = tvmfun.device_put(arrays), [jax.numpy.asarray(x) for x in arrays]
    *tensors, cotangent = (torch.from_numpy(x).transpose(1, 2) for x in arrays)
    tensors = [x.requires_grad_() for x in tensors]

    def peer() -> tuple:
        result = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)
        return torch.autograd.grad(result, tensors, cotangent)

    for a, b, c in zip(f(*ours), g(*theirs), peer(), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, atol=1e-4)
        np.testing.assert_allclose(np.asarray(a), c.transpose(1, 2).numpy(), atol=1e-4)
    runners = [("tvmfun", lambda: f(*ours)), ("JAX", lambda: jax.block_until_ready(g(*theirs))), ("PyTorch", peer)]
    flop = 6 * 2 * batch * HEADS * length**2 * WIDTH / (2 if causal else 1)
    name = f"attention{', causal' if causal else ''}, {batch} x {length}"
    report.add(compare(name, runners, flop, 7 * arrays[0].nbytes))
