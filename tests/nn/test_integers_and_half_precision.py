"""Integers where floats are expected, which become floats before anything could wrap, and norms of half precision."""

import numpy as np
import pytest

import tvmfun.numpy as tnp
from tvmfun import nn, optim
from tvmfun.nn import losses

F = nn.functional
NAMES = (
    "celu elu gelu hard_sigmoid hard_swish log_sigmoid log_softmax mish selu sigmoid silu soft_sign softmax softplus"
    " sparse_plus sparse_sigmoid squareplus standardize tanh tanhshrink"
)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("name", NAMES.split())
def test_functions_of_integers_are_those_of_the_same_floats(name, dtype):
    function = getattr(F, name)
    x = np.array([127, -128, 3, 0, 6]).astype(dtype)
    result = function(x)
    assert result.dtype == "float32"
    np.testing.assert_allclose(result, function(x.astype("float32")), 1e-6, 1e-6)


def test_errors_and_norms_of_integers_do_not_wrap():
    x, y = np.array([0, 200, 3], "uint8"), np.array([255, 10, 3], "uint8")
    np.testing.assert_allclose(losses.mse_loss(x, y), np.mean((x.astype("float64") - y) ** 2), 1e-6)
    np.testing.assert_allclose(optim.global_norm({"x": np.full(9, 90, "int8")}), 270, 1e-6)
    np.testing.assert_allclose(F.gelu(tnp.asarray([1500])), [1500])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_of_half_precision_do_not_overflow(dtype):
    gradients = {"w": tnp.full((1000,), 100, dtype), "b": tnp.full((10,), 300, dtype)}
    norm = optim.global_norm(gradients)
    assert norm.dtype == "float32"
    np.testing.assert_allclose(float(norm), np.sqrt(1000 * 100.0**2 + 10 * 300.0**2), 5e-3)
    clipped, _ = optim.clip_by_global_norm(1.0).update(gradients, optim.clip_by_global_norm(1.0).init(gradients))
    np.testing.assert_allclose(float(optim.global_norm(clipped)), 1, 5e-3)
    assert clipped["w"].dtype == dtype
    large = {"w": tnp.full((1000,), 6e4, dtype)}  # whose norm float16 cannot hold
    for transform in (optim.clip_by_global_norm(1.0), optim.normalize_by_update_norm()):
        result, _ = transform.update(large, transform.init(large))
        assert result["w"].dtype == dtype
        np.testing.assert_allclose(np.asarray(result["w"], "float64"), np.sqrt(1 / 1000), 0.02)
