"""Layers, losses and their gradients against PyTorch."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.nn import functional as F
from tvmfun.nn import losses

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.interop

DTYPES = ["float32", "float64"]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
TO_NCHW, TO_NHWC, TO_OIHW = (0, 3, 1, 2), (0, 2, 3, 1), (3, 2, 0, 1)


def _normal(*shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _check(ours, oracle, *args):
    """Compares the results and all gradients of two functions of float arrays."""
    dtype = args[0].dtype
    tensors = [torch.tensor(arg, requires_grad=True) for arg in args]
    expected = oracle(*tensors)
    weights = _normal(*expected.shape, dtype=dtype, seed=9)
    (expected * torch.tensor(weights)).sum().backward()

    def weighted(*args):
        out = ours(*args)
        return tnp.sum(out * weights), out

    places = tuple(range(len(args)))
    (_, actual), grads = tvmfun.jit(tvmfun.value_and_grad(weighted, places, has_aux=True))(*args)
    references = [expected.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]
    for result, reference in zip((actual, *grads), references, strict=True):
        result = np.asarray(result)
        assert result.dtype == reference.dtype and result.shape == reference.shape
        scale = max(1.0, np.abs(reference).max(initial=0))
        np.testing.assert_allclose(result, reference, rtol=0, atol=TOLERANCE[str(dtype)] * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)},
        {"groups": 2, "padding": 1},
        {"groups": 4, "stride": 2},
    ],
)
def test_conv2d(options, dtype):
    x, b = _normal(2, 9, 8, 4, dtype=dtype), _normal(8, dtype=dtype)
    w = _normal(3, 2, 4 // options.get("groups", 1), 8, dtype=dtype)

    def oracle(x, w, b):
        y = torch.nn.functional.conv2d(x.permute(TO_NCHW), w.permute(TO_OIHW), b, **options)
        return y.permute(TO_NHWC)

    _check(lambda x, w, b: F.conv2d(x, w, b, **options), oracle, x, w, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("geometry", [(2,), (3, 2), (3, 2, 1), ((3, 2), (2, 1), (1, 0))])
@pytest.mark.parametrize(
    ("ours", "oracle"),
    [(F.max_pool, torch.nn.functional.max_pool2d), (F.avg_pool, torch.nn.functional.avg_pool2d)],
)
def test_pooling(ours, oracle, geometry, dtype):
    x = _normal(2, 7, 8, 3, dtype=dtype)
    _check(
        lambda x: ours(x, *geometry),
        lambda x: oracle(x.permute(TO_NCHW), *geometry).permute(TO_NHWC),
        x,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction, dtype):
    scores, targets = _normal(6, 5, dtype=dtype), _normal(6, 5, dtype=dtype, seed=1)
    labels = np.asarray([0, 4, 2, 2, 1, 3])
    labels_torch = torch.tensor(labels)
    functional = torch.nn.functional
    _check(
        lambda s: losses.cross_entropy(s, labels, reduction),
        lambda s: functional.cross_entropy(s, labels_torch, reduction=reduction),
        scores,
    )
    _check(
        lambda s: losses.nll_loss(s, labels, reduction),
        lambda s: functional.nll_loss(s, labels_torch, reduction=reduction),
        scores,
    )
    _check(
        lambda p, t: losses.mse_loss(p, t, reduction),
        lambda p, t: functional.mse_loss(p, t, reduction=reduction),
        scores,
        targets,
    )


@pytest.mark.parametrize(
    ("ours", "oracle"),
    [
        (F.linear, lambda x, w, b: torch.nn.functional.linear(x, w.T, b)),
        (
            lambda x, w, b: F.gelu(F.linear(x, w, b), approximate=False),
            lambda x, w, b: torch.nn.functional.gelu(x @ w + b),
        ),
        (lambda x, w, b: F.softmax(F.linear(x, w, b)), lambda x, w, b: torch.softmax(x @ w + b, -1)),
    ],
)
def test_linear_and_activations(ours, oracle):
    _check(ours, oracle, *(_normal(*shape, dtype="float64") for shape in ((2, 3, 4), (4, 5), (5,))))
