"""ResNet-18 on 32x32 images with batch normalization, SGD with momentum, batch 32."""

import torch
from bench.case import Case
from bench.models import common

# Width, stride and input width of each block; the stem is a 3x3 convolution.
BLOCKS = [(64, 1, 64), (64, 1, 64), (128, 2, 64), (128, 1, 128), (256, 2, 128), (256, 1, 256), (512, 2, 256), (512, 1, 512)]  # fmt: skip # noqa: E501


def kernels():
    """The shape and stride of every convolution by name, and the size of its images."""
    result = {"conv_stem": ((3, 3, 3, 64), 1, 32)}
    size = 32
    for i, (width, stride, inputs) in enumerate(BLOCKS):
        size //= stride
        result[f"conv_{i}a"] = ((3, 3, inputs, width), stride, size)
        result[f"conv_{i}b"] = ((3, 3, width, width), 1, size)
        if stride != 1:
            result[f"conv_{i}s"] = ((1, 1, inputs, width), stride, size)
    return result


def params(rng):
    """He-normal kernels; normalizations start as the identity."""
    result = {}
    for name, (shape, _, _) in kernels().items():
        result[name] = common.normal(rng, shape, (2 / (shape[0] * shape[1] * shape[2])) ** 0.5)
        result[f"scale_{name}"], result[f"bias_{name}"] = common.ones(shape[-1:]), common.zeros(shape[-1:])
    result["dense"], result["bias"] = common.normal(rng, (512, 10), 512**-0.5), common.zeros((10,))
    return result


def state():
    """Running statistics."""
    result = {}
    for name, (shape, _, _) in kernels().items():
        result[f"mean_{name}"], result[f"var_{name}"] = common.zeros(shape[-1:]), common.ones(shape[-1:])
    return result


def batch(size):
    """Images, channels last, and labels."""
    return lambda rng: {"x": common.normal(rng, (size, 32, 32, 3)), "y": rng.integers(0, 10, size).astype("int32")}


def loss(ns, params, state, batch, key):
    """Softmax cross-entropy, and the statistics moved towards those of the batch."""
    state = dict(state)
    layout = ("NHWC", "HWIO", "NHWC")

    def conv(x, name, stride=1):
        margin = params[name].shape[0] // 2
        padding = [(margin, margin)] * 2
        x = ns.lax.conv_general_dilated(x, params[name], (stride, stride), padding, dimension_numbers=layout)
        mean = ns.np.mean(x, axis=(0, 1, 2))
        centred = x - mean
        var = ns.np.mean(centred * centred, axis=(0, 1, 2))
        count = x.size // x.shape[-1]
        for statistic, value in (("mean", mean), ("var", var * (count / (count - 1)))):
            old = state[f"{statistic}_{name}"]
            state[f"{statistic}_{name}"] = 0.9 * old + 0.1 * ns.lax.stop_gradient(value)
        return centred * (ns.lax.rsqrt(var + 1e-5) * params[f"scale_{name}"]) + params[f"bias_{name}"]

    x = ns.nn.relu(conv(batch["x"], "conv_stem"))
    for i, (_, stride, _) in enumerate(BLOCKS):
        shortcut = conv(x, f"conv_{i}s", stride) if stride != 1 else x
        x = ns.nn.relu(conv(x, f"conv_{i}a", stride))
        x = ns.nn.relu(conv(x, f"conv_{i}b") + shortcut)
    x = ns.np.mean(x, axis=(1, 2)) @ params["dense"] + params["bias"]
    return common.cross_entropy(ns, x, batch["y"]), state


def torch_loss(params, state, batch, train):
    """The same; the loss is taken with the statistics of the batch also where nothing is trained."""
    F = torch.nn.functional

    def conv(x, name, stride=1):
        x = F.conv2d(x, params[name], None, stride, params[name].shape[-1] // 2)
        mean, var = (state[f"mean_{name}"], state[f"var_{name}"]) if train else (None, None)
        return F.batch_norm(x, mean, var, params[f"scale_{name}"], params[f"bias_{name}"], True, 0.1, 1e-5)

    x = F.relu(conv(batch["x"].permute(0, 3, 1, 2), "conv_stem"))
    for i, (_, stride, _) in enumerate(BLOCKS):
        shortcut = conv(x, f"conv_{i}s", stride) if stride != 1 else x
        x = F.relu(conv(x, f"conv_{i}a", stride))
        x = F.relu(conv(x, f"conv_{i}b") + shortcut)
    return F.cross_entropy(F.linear(x.mean((2, 3)), params["dense"], params["bias"]), batch["y"].long())


def flop():
    """Multiplications and additions for one image."""
    total = 3 * 512 * 10
    for name, ((h, w, inputs, outputs), _, size) in kernels().items():
        total += (2 if name == "conv_stem" else 3) * h * w * inputs * outputs * size * size
    return 2 * total


def case(size):
    """A step with a batch of this size."""
    return Case(
        "ResNet-18",
        params,
        batch(size),
        loss,
        torch_loss,
        lambda optim: optim.sgd(0.1, momentum=0.9),
        lambda params: torch.optim.SGD(params, 0.1, momentum=0.9, fused=True),
        flop=size * flop(),
        traffic=5,
        state=state,
    )


CASE = case(32)
