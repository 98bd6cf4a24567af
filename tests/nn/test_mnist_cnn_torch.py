"""The convolutional network of PyTorch's MNIST example: the loss and every gradient against PyTorch."""

import numpy as np
import pytest

import tvmfun
from tvmfun import nn, random, tree
from tvmfun.nn import functional as F
from tvmfun.nn import losses

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.interop

TO_NCHW, TO_OIHW, TO_HWIO = (0, 3, 1, 2), (3, 2, 0, 1), (2, 3, 1, 0)
SIDE, CHANNELS = 12, 64  # of the images that are flattened


def _model(dtype):
    keys = random.split(random.key(0), 4)
    return {
        "conv1": nn.Conv2d(1, 32, 3, key=keys[0], dtype=dtype),
        "conv2": nn.Conv2d(32, 64, 3, key=keys[1], dtype=dtype),
        "fc1": nn.Linear(SIDE * SIDE * CHANNELS, 128, key=keys[2], dtype=dtype),
        "fc2": nn.Linear(128, 10, key=keys[3], dtype=dtype),
    }


def _loss(model, images, labels):
    x = F.relu(model["conv1"](images))
    x = F.max_pool(F.relu(model["conv2"](x)), 2)
    x = F.relu(model["fc1"](x.reshape(x.shape[0], -1)))
    return losses.nll_loss(F.log_softmax(model["fc2"](x)), labels)


def _flip_flatten(weight, channels_first):
    """Rows of a dense weight from the flattening of (side, side, channels) images to the other, or back."""
    sides = (CHANNELS, SIDE, SIDE) if channels_first else (SIDE, SIDE, CHANNELS)
    axes = (1, 2, 0, 3) if channels_first else (2, 0, 1, 3)
    return weight.reshape(*sides, -1).transpose(axes).reshape(weight.shape)


def _to_torch(name, weight):
    if name.startswith("conv"):
        return weight.transpose(TO_OIHW)
    return (_flip_flatten(weight, channels_first=False) if name == "fc1" else weight).T


def _from_torch(name, weight):
    if name.startswith("conv"):
        return weight.transpose(TO_HWIO)
    return _flip_flatten(weight.T, channels_first=True) if name == "fc1" else weight.T


def _torch_loss_and_grads(model, images, labels):
    functional = torch.nn.functional
    parameters = {
        name: [
            torch.tensor(np.ascontiguousarray(array), requires_grad=True)
            for array in (_to_torch(name, np.asarray(layer.weight)), np.asarray(layer.bias))
        ]
        for name, layer in model.items()
    }
    x = torch.tensor(images.transpose(TO_NCHW))
    x = functional.relu(functional.conv2d(x, *parameters["conv1"]))
    x = functional.max_pool2d(functional.relu(functional.conv2d(x, *parameters["conv2"])), 2)
    x = functional.relu(functional.linear(torch.flatten(x, 1), *parameters["fc1"]))
    scores = functional.log_softmax(functional.linear(x, *parameters["fc2"]), dim=1)
    loss = functional.nll_loss(scores, torch.tensor(labels))
    loss.backward()
    grads = {
        name: (_from_torch(name, weight.grad.numpy()), bias.grad.numpy()) for name, (weight, bias) in parameters.items()
    }
    return loss.item(), grads


@pytest.mark.parametrize(("dtype", "batch", "tolerance"), [("float32", 16, 1e-5), ("float64", 3, 1e-10)])
def test_loss_and_gradients_are_those_of_torch(dtype, batch, tolerance):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, 28, 28, 1)).astype(dtype)
    labels = rng.integers(0, 10, batch)
    model = _model(dtype)
    expected_loss, expected_grads = _torch_loss_and_grads(model, images, labels)
    loss, grads = tvmfun.jit(tvmfun.value_and_grad(_loss))(model, images, labels)
    assert loss.dtype == dtype and abs(float(loss) - expected_loss) <= tolerance * expected_loss
    assert tree.structure(grads) == tree.structure(model)
    for name, (weight, bias) in expected_grads.items():
        for actual, expected in ((grads[name].weight, weight), (grads[name].bias, bias)):
            actual = np.asarray(actual)
            assert actual.dtype == dtype and actual.shape == expected.shape
            assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max(), name
