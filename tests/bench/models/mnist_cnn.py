"""PyTorch's MNIST example: two convolutions, two dropouts, two linear layers, Adadelta, batch 64."""

import torch
from bench.case import Case
from bench.models import common

BATCH = 64


def params(rng):
    """He-normal kernels."""
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (9216, 128), "dense2": (128, 10)}
    result = {}
    for name, shape in shapes.items():
        fan_in = 1
        for size in shape[:-1]:
            fan_in *= size
        result[name] = common.normal(rng, shape, (2 / fan_in) ** 0.5)
        result[f"bias_{name}"] = common.zeros(shape[-1:])
    return result


def batch(rng):
    """Images, channels last, and labels."""
    return {"x": common.normal(rng, (BATCH, 28, 28, 1)), "y": rng.integers(0, 10, BATCH).astype("int32")}


def loss(ns, params, state, batch, key):
    """Negative log-likelihood."""
    layout = ("NHWC", "HWIO", "NHWC")
    conv = lambda x, w: ns.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=layout)
    first, second = (None, None) if key is None else ns.random.split(key)
    x = ns.nn.relu(conv(batch["x"], params["conv1"]) + params["bias_conv1"])
    x = ns.nn.relu(conv(x, params["conv2"]) + params["bias_conv2"])
    x = ns.lax.reduce_window(x, -ns.np.inf, ns.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = common.dropout(ns, first, x, 0.25).reshape(BATCH, -1)
    x = ns.nn.relu(x @ params["dense1"] + params["bias_dense1"])
    x = common.dropout(ns, second, x, 0.5)
    return common.cross_entropy(ns, x @ params["dense2"] + params["bias_dense2"], batch["y"]), state


def torch_loss(params, state, batch, train):
    """The same; the features are flattened channels last, as everywhere here."""
    F = torch.nn.functional
    x = batch["x"].permute(0, 3, 1, 2)
    x = F.relu(F.conv2d(x, params["conv1"], params["bias_conv1"]))
    x = F.relu(F.conv2d(x, params["conv2"], params["bias_conv2"]))
    x = F.dropout(F.max_pool2d(x, 2), 0.25, train).permute(0, 2, 3, 1).reshape(BATCH, -1)
    x = F.relu(F.linear(x, params["dense1"], params["bias_dense1"]))
    x = F.linear(F.dropout(x, 0.5, train), params["dense2"], params["bias_dense2"])
    return F.cross_entropy(x, batch["y"].long())


_FIRST = 26 * 26 * 9 * 32

CASE = Case(
    "MNIST CNN",
    params,
    batch,
    loss,
    torch_loss,
    lambda optim: optim.adadelta(1.0),
    lambda params: torch.optim.Adadelta(params, 1.0),
    # The images need no gradient.
    flop=2 * BATCH * (3 * (_FIRST + 24 * 24 * 9 * 32 * 64 + 9216 * 128 + 1280) - _FIRST),
    traffic=7,
)
