"""Networks in Relay's text format, and the same networks in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.relay_text import Writer

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Net(NamedTuple):
    """A network.

    Args:
        text: in Relay's text format.
        params: the parameters by name.
        inputs: the other arguments, in order.
        oracle: the same in PyTorch, as a function of the parameters and the inputs.
    """

    text: str
    params: dict[str, np.ndarray]
    inputs: tuple[np.ndarray, ...]
    oracle: Callable[..., Any]


def normal(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# -- by hand -----------------------------------------------------------------------------------------------------------

MLP = """#[version = "0.0.5"]
def @main(%data: Tensor[(?, 1, 28, 28), float32], %fc1_weight: Tensor[(128, 784), float32],
    %fc1_bias: Tensor[(128), float32], %fc2_weight: Tensor[(64, 128), float32], %fc2_bias: Tensor[(64), float32],
    %fc3_weight: Tensor[(10, 64), float32], %fc3_bias: Tensor[(10), float32]) -> Tensor[(?, 10), float32] {
  %0 = nn.batch_flatten(%data) /* ty=Tensor[(?, 784), float32] */;
  %1 = nn.dense(%0, %fc1_weight, units=128) /* ty=Tensor[(?, 128), float32] */;
  %2 = nn.bias_add(%1, %fc1_bias, axis=-1) /* ty=Tensor[(?, 128), float32] */;
  %3 = nn.relu(%2) /* ty=Tensor[(?, 128), float32] */;
  %4 = nn.dense(%3, %fc2_weight, units=64) /* ty=Tensor[(?, 64), float32] */;
  %5 = nn.bias_add(%4, %fc2_bias, axis=-1) /* ty=Tensor[(?, 64), float32] */;
  %6 = nn.relu(%5) /* ty=Tensor[(?, 64), float32] */;
  %7 = nn.dense(%6, %fc3_weight, units=10) /* ty=Tensor[(?, 10), float32] */;
  %8 = nn.bias_add(%7, %fc3_bias, axis=-1) /* ty=Tensor[(?, 10), float32] */;
  nn.softmax(%8) /* ty=Tensor[(?, 10), float32] */
}
"""


def mlp() -> Net:
    sizes = {"fc1": (128, 784), "fc2": (64, 128), "fc3": (10, 64)}
    params = {}
    for i, (name, shape) in enumerate(sizes.items()):
        params[f"{name}_weight"] = normal(i, *shape) * np.float32((2 / shape[1]) ** 0.5)
        params[f"{name}_bias"] = normal(i + 10, shape[0]) * np.float32(0.1)

    def oracle(p: Any, x: Any) -> Any:
        x = x.flatten(1)
        for name in ("fc1", "fc2"):
            x = F.relu(F.linear(x, p[f"{name}_weight"], p[f"{name}_bias"]))
        return F.softmax(F.linear(x, p["fc3_weight"], p["fc3_bias"]), -1)

    return Net(MLP, params, (normal(20, 4, 1, 28, 28),), oracle)


LENET = """#[version = "0.0.5"]
def @main(%data: Tensor[(2, 1, 28, 28), float32] /* span=data:0:0 */, %conv1: Tensor[(6, 1, 5, 5), float32],
    %conv2: Tensor[(16, 6, 5, 5), float32], %conv2.bias: Tensor[(16), float32], %fc1: Tensor[(120, 400), float32],
    %fc2: Tensor[(84, 120), float32], %fc3: Tensor[(10, 84), float32], hash="3f", executor=meta[Executor][0]) {
  let %a = nn.conv2d(%data, %conv1, padding=[2, 2, 2, 2], channels=6, kernel_size=[5, 5]);
  let %b: Tensor[(2, 6, 28, 28), float32] = tanh(%a);
  let %c = nn.avg_pool2d(%b, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  let %d = nn.conv2d(%c, %conv2, padding=[0, 0, 0, 0], channels=16, kernel_size=[5, 5]);
  let %e = nn.bias_add(%d, %conv2.bias);
  let %f = nn.max_pool2d(tanh(%e), pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  let %g = reshape(%f, newshape=[0, -1]);
  let %layer = fn (%x: Tensor[(2, ?), float32], %w) {
    tanh(nn.dense(%x, %w, units=None))
  };
  let %h = %layer(%layer(%g, %fc1), %fc2);
  nn.log_softmax(nn.dense(%h, %fc3, units=10))
}
"""


def lenet() -> Net:
    shapes = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "conv2.bias": (16,)}
    shapes |= {"fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}
    params = {name: normal(i, *shape) * np.float32(0.1) for i, (name, shape) in enumerate(shapes.items())}

    def oracle(p: Any, x: Any) -> Any:
        x = F.avg_pool2d(torch.tanh(F.conv2d(x, p["conv1"], padding=2)), 2)
        x = F.max_pool2d(torch.tanh(F.conv2d(x, p["conv2"], p["conv2.bias"])), 2).flatten(1)
        for name in ("fc1", "fc2"):
            x = torch.tanh(F.linear(x, p[name]))
        return F.log_softmax(F.linear(x, p["fc3"]), -1)

    return Net(LENET, params, (normal(20, 2, 1, 28, 28),), oracle)


LSTM = """#[version = "0.0.5"]
def @main(%x: Tensor[(3, 5, 4), float32], %h: Tensor[(3, 6), float32], %c: Tensor[(3, 6), float32],
    %i2h_weight: Tensor[(24, 4), float32], %i2h_bias: Tensor[(24), float32], %h2h_weight: Tensor[(24, 6), float32],
    %h2h_bias: Tensor[(24), float32])
    -> (Tensor[(3, 3, 6), float32], (Tensor[(3, 6), float32], Tensor[(3, 6), float32])) {
  let %step = fn (%row: Tensor[(3, 4), float32], %state: (Tensor[(3, 6), float32], Tensor[(3, 6), float32])) {
    @cell(%row, %state, %i2h_weight, %i2h_bias, %h2h_weight, %h2h_bias)
  };
  %0 = strided_slice(%x, begin=[0, 0, 0], end=[3, 1, 4], strides=[1], axes=None);
  %1 = squeeze(%0, axis=[1]);
  let %first = %step(%1, (%h, %c));
  %2 = take(%x, 1 /* ty=int32 */, axis=1);
  let %second = %step(%2, %first);
  %3 = split(%x, indices_or_sections=[2, 3], axis=1);
  %4 = reshape(%3.1, newshape=[0, -3]);
  let %third = %step(%4, %second);
  %5 = (%first.0, %second.0, %third.0);
  (stack(%5, axis=1), %third)
}

def @cell(%x: Tensor[(3, 4), float32], %state: (Tensor[(3, 6), float32], Tensor[(3, 6), float32]),
    %w: Tensor[(24, 4), float32], %b: Tensor[(24), float32], %u: Tensor[(24, 6), float32],
    %v: Tensor[(24), float32]) -> (Tensor[(3, 6), float32], Tensor[(3, 6), float32]) {
  %0 = %state.0;
  %1 = nn.bias_add(nn.dense(%x, %w, units=24), %b);
  %2 = add(%1, nn.bias_add(nn.dense(%0, %u, units=24), %v));
  %3 = split(%2, indices_or_sections=4, axis=1);
  %4 = sigmoid(%3.0);
  %5 = multiply(sigmoid(%3.1), %state.1);
  %6 = add(%5, multiply(%4, tanh(%3.2)));
  %7 = multiply(sigmoid(%3.3), tanh(%6));
  (%7, %6)
}
"""


def lstm() -> Net:
    shapes = {"i2h_weight": (24, 4), "i2h_bias": (24,), "h2h_weight": (24, 6), "h2h_bias": (24,)}
    params = {name: normal(i, *shape) * np.float32(0.5) for i, (name, shape) in enumerate(shapes.items())}

    def oracle(p: Any, x: Any, h: Any, c: Any) -> Any:
        weights = (p["i2h_weight"], p["h2h_weight"], p["i2h_bias"], p["h2h_bias"])
        result = []
        for i in range(3):
            h, c = torch.lstm_cell(x[:, i], (h, c), *weights)
            result.append(h)
        return torch.stack(result, 1), (h, c)

    return Net(LSTM, params, (normal(20, 3, 5, 4), normal(21, 3, 6), normal(22, 3, 6)), oracle)


BERT = """#[version = "0.0.5"]
def @main(%hidden: Tensor[(2, 7, 12), float32], %mask: Tensor[(2, 7), int64], %wq: Tensor[(12, 12), float32],
    %wk: Tensor[(12, 12), float32], %wv: Tensor[(12, 12), float32], %bq: Tensor[(12), float32],
    %bk: Tensor[(12), float32], %bv: Tensor[(12), float32], %wo: Tensor[(12, 12), float32],
    %bo: Tensor[(12), float32], %gamma1: Tensor[(12), float32], %beta1: Tensor[(12), float32],
    %w1: Tensor[(48, 12), float32], %b1: Tensor[(48), float32], %w2: Tensor[(12, 48), float32],
    %b2: Tensor[(12), float32], %gamma2: Tensor[(12), float32], %beta2: Tensor[(12), float32]) {
  %0 = reshape(%hidden, newshape=[-3, 0]) /* ty=Tensor[(14, 12), float32] */;
  %1 = add(nn.dense(%0, %wq, units=12), %bq);
  %2 = reshape(%1, newshape=[-4, 2, 7, -4, 3, 4]);
  %3 = transpose(%2, axes=[0, 2, 1, 3]) /* ty=Tensor[(2, 3, 7, 4), float32] */;
  %4 = add(nn.dense(%0, %wk, units=12), %bk);
  %5 = transpose(reshape(%4, newshape=[2, 7, 3, 4]), axes=[0, 2, 1, 3]);
  %6 = add(nn.dense(%0, %wv, units=12), %bv);
  %7 = transpose(reshape(%6, newshape=[2, 7, 3, -1]), axes=[0, 2, 1, 3]);
  %8 = reshape(%3, newshape=[-1, 7, 4]);
  %9 = reshape(%5, newshape=[-3, -2]);
  %10 = nn.batch_matmul(%8, %9, transpose_b=True) /* ty=Tensor[(6, 7, 7), float32] */;
  %11 = divide(reshape(%10, newshape=[2, 3, 7, 7]), 2f /* ty=float32 */);
  %12 = cast(%mask, dtype="float32");
  %13 = expand_dims(%12, axis=1, num_newaxis=2);
  %14 = multiply(subtract(1f, %13), -10000f);
  %15 = nn.softmax(add(%11, %14), axis=-1);
  %16 = nn.dropout(%15, rate=0.1f);
  %17 = reshape(%16.0, newshape=[-3, -2]);
  %18 = nn.batch_matmul(%17, reshape(%7, newshape=[-3, -2]));
  %19 = transpose(reshape(%18, newshape=[-4, 2, 3, 7, 4]), axes=[0, 2, 1, 3]);
  %20 = nn.dense(reshape(%19, newshape=[-3, -3]), %wo, units=12);
  %21 = reshape(add(%20, %bo), newshape=[2, 7, 12]);
  %22 = nn.layer_norm(add(%21, %hidden), %gamma1, %beta1, epsilon=1e-12f);
  %23 = add(nn.dense(reshape(%22, newshape=[-1, 12]), %w1, units=48), %b1);
  %24 = erf(multiply(%23, 0.707107f));
  %25 = multiply(%23, add(0.5f, multiply(%24, 0.5f)));
  %26 = add(nn.dense(%25, %w2, units=12), %b2);
  %27 = reshape_like(%26, %22);
  nn.layer_norm(add(%27, %22), %gamma2, %beta2, epsilon=1e-12f)
}
"""


def bert() -> Net:
    shapes = {f"w{name}": (12, 12) for name in "qkvo"} | {f"b{name}": (12,) for name in "qkvo"}
    shapes |= {"w1": (48, 12), "b1": (48,), "w2": (12, 48), "b2": (12,)}
    shapes |= {f"{name}{i}": (12,) for name in ("gamma", "beta") for i in (1, 2)}
    params = {name: normal(i, *shape) * np.float32(0.5) for i, (name, shape) in enumerate(shapes.items())}

    def oracle(p: Any, x: Any, mask: Any) -> Any:
        q, k, v = (F.linear(x, p[f"w{n}"], p[f"b{n}"]).unflatten(2, (3, 4)).transpose(1, 2) for n in "qkv")
        scores = q @ k.mT / 2 + (1 - mask.float())[:, None, None] * -10000
        y = F.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), p["wo"], p["bo"])
        y = F.layer_norm(y + x, (12,), p["gamma1"], p["beta1"], 1e-12)
        z = F.linear(F.gelu(F.linear(y, p["w1"], p["b1"])), p["w2"], p["b2"])
        return F.layer_norm(z + y, (12,), p["gamma2"], p["beta2"], 1e-12)

    mask = np.ones((2, 7), "int64")
    mask[1, 4:] = 0
    return Net(BERT, params, (normal(20, 2, 7, 12), mask), oracle)


# -- by the writer -----------------------------------------------------------------------------------------------------


def convolution(
    w: Writer, x: str, name: str, inputs: int, outputs: int, size: Any, groups: int = 1, **geometry: Any
) -> str:
    """A convolution, its normalization and ReLU, as most of these networks have them."""
    kernel = (size, size) if isinstance(size, int) else size
    weight = w.param(f"{name}_weight", outputs, inputs // groups, *kernel)
    options = {"groups": groups} if groups > 1 else {}
    y = w.op("nn.conv2d", x, weight, **geometry, **options, channels=outputs, kernel_size=list(kernel))
    return w.op("nn.relu", normalized(w, y, name, outputs))


def normalized(w: Writer, x: str, name: str, channels: int, **attributes: Any) -> str:
    """The first result of a batch normalization."""
    positive = {"gamma": True, "var": True, "beta": False, "mean": False}
    parameters = [
        w.param(f"{name}_{key}", channels, positive=positive[key]) for key in ("gamma", "beta", "mean", "var")
    ]
    return f"{w.op('nn.batch_norm', x, *parameters, **attributes)}.0"


def torch_norm(p: Any, x: Any, name: str) -> Any:
    # PyTorch's own function has no derivative with respect to the moving mean and variance.
    mean, var, gamma, beta = (
        p[f"{name}_{key}"].reshape(-1, *(1,) * (x.ndim - 2)) for key in ("mean", "var", "gamma", "beta")
    )
    return (x - mean) / torch.sqrt(var + 1e-5) * gamma + beta


def torch_conv(p: Any, x: Any, name: str, stride: int = 1, padding: Any = 0, groups: int = 1) -> Any:
    y = F.conv2d(x, p[f"{name}_weight"], None, stride, padding, 1, groups)
    return F.relu(torch_norm(p, y, name))


def dcgan() -> Net:
    w = Writer()
    widths = [16, 12, 8, 6]
    x = w.op("nn.dense", w.input("z", 2, 10), w.param("fc", 16 * 16, 10), units=256)
    x = w.op("nn.relu", normalized(w, w.op("reshape", x, newshape=[-1, 16, 4, 4]), "bn0", 16))
    for i, (inputs, outputs) in enumerate(zip(widths, [*widths[1:], 3], strict=True), 1):
        weight = w.param(f"deconv{i}", inputs, outputs, 4, 4)
        geometry = {"strides": [2, 2], "padding": [1, 1, 1, 1], "channels": outputs, "kernel_size": [4, 4]}
        x = w.op("nn.conv2d_transpose", x, weight, **geometry)
        x = w.op("nn.relu", normalized(w, x, f"bn{i}", outputs)) if i < 4 else w.op("tanh", x)

    def oracle(p: Any, z: Any) -> Any:
        x = F.relu(torch_norm(p, F.linear(z, p["fc"]).reshape(-1, 16, 4, 4), "bn0"))
        for i in range(1, 5):
            x = F.conv_transpose2d(x, p[f"deconv{i}"], stride=2, padding=1)
            x = F.relu(torch_norm(p, x, f"bn{i}")) if i < 4 else torch.tanh(x)
        return x

    return Net(w.text(x), w.params, (normal(20, 2, 10, dtype="float64"),), oracle)


def resnet() -> Net:
    """ResNet-18 with narrow layers, before and after activations as its first version has them."""
    w = Writer()
    widths, blocks = [4, 6, 8, 10], 2
    x = convolution(w, w.input("data", 2, 3, 32, 32), "stem", 3, 4, 7, strides=[2, 2], padding=[3, 3, 3, 3])
    x = w.op("nn.max_pool2d", x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])
    channels = 4
    for stage, width in enumerate(widths):
        for block in range(blocks):
            name, stride = f"s{stage}_b{block}", 2 if stage and not block else 1
            y = convolution(w, x, f"{name}_conv1", channels, width, 3, strides=[stride] * 2, padding=[1, 1, 1, 1])
            y = w.op("nn.conv2d", y, w.param(f"{name}_conv2_weight", width, width, 3, 3), padding=[1, 1])
            y = normalized(w, y, f"{name}_conv2", width)
            if stride > 1 or channels != width:
                short = w.op(
                    "nn.conv2d", x, w.param(f"{name}_short_weight", width, channels, 1, 1), strides=[stride] * 2
                )
                x = normalized(w, short, f"{name}_short", width)
            x, channels = w.op("nn.relu", w.op("add", y, x)), width
    x = w.op("nn.batch_flatten", w.op("nn.global_avg_pool2d", x))
    x = w.op("nn.bias_add", w.op("nn.dense", x, w.param("fc", 5, channels), units=5), w.param("bias", 5))

    def oracle(p: Any, x: Any) -> Any:
        x = F.max_pool2d(torch_conv(p, x, "stem", 2, 3), 3, 2, 1)
        channels = 4
        for stage, width in enumerate(widths):
            for block in range(blocks):
                name, stride = f"s{stage}_b{block}", 2 if stage and not block else 1
                y = torch_conv(p, x, f"{name}_conv1", stride, 1)
                y = torch_norm(p, F.conv2d(y, p[f"{name}_conv2_weight"], padding=1), f"{name}_conv2")
                if stride > 1 or channels != width:
                    x = torch_norm(p, F.conv2d(x, p[f"{name}_short_weight"], stride=stride), f"{name}_short")
                x, channels = F.relu(y + x), width
        return F.linear(x.mean((2, 3)), p["fc"], p["bias"])

    return Net(w.text(x), w.params, (normal(20, 2, 3, 32, 32, dtype="float64"),), oracle)


def mobilenet() -> Net:
    """The first MobileNet with nine of its thirteen depthwise and pointwise convolutions."""
    w = Writer()
    plan = [(8, 1), (10, 2), (10, 1), (12, 2), (12, 1), (14, 2), (14, 1), (16, 2), (16, 1)]
    x = convolution(w, w.input("data", 1, 3, 64, 64), "stem", 3, 6, 3, strides=[2, 2], padding=[1, 1, 1, 1])
    channels = 6
    for i, (width, stride) in enumerate(plan):
        geometry = {"strides": [stride, stride], "padding": [1, 1, 1, 1]}
        x = convolution(w, x, f"depth{i}", channels, channels, 3, groups=channels, **geometry)
        x, channels = convolution(w, x, f"point{i}", channels, width, 1, padding=[0, 0, 0, 0]), width
    x = w.op("nn.batch_flatten", w.op("nn.global_avg_pool2d", x))
    x = w.op("nn.softmax", w.op("nn.dense", x, w.param("fc", 5, channels), units=5))

    def oracle(p: Any, x: Any) -> Any:
        x = torch_conv(p, x, "stem", 2, 1)
        for i, (_, stride) in enumerate(plan):
            x = torch_conv(p, torch_conv(p, x, f"depth{i}", stride, 1, x.shape[1]), f"point{i}")
        return F.softmax(F.linear(x.mean((2, 3)), p["fc"]), -1)

    return Net(w.text(x), w.params, (normal(20, 1, 3, 64, 64, dtype="float64"),), oracle)


def densenet() -> Net:
    """A DenseNet with a tenth of the layers of DenseNet-121, and a growth of 2."""
    w = Writer()
    blocks, growth = (1, 2, 2, 1), 2
    x = convolution(w, w.input("data", 1, 3, 32, 32), "stem", 3, 4, 7, strides=[2, 2], padding=[3, 3, 3, 3])
    x = w.op("nn.max_pool2d", x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])
    channels = 4
    for stage, count in enumerate(blocks):
        for i in range(count):
            name = f"s{stage}_l{i}"
            y = w.op("nn.relu", normalized(w, x, f"{name}_pre", channels))
            y = convolution(w, y, f"{name}_wide", channels, 4 * growth, 1)
            y = w.op("nn.conv2d", y, w.param(f"{name}_weight", growth, 4 * growth, 3, 3), padding=[1, 1, 1, 1])
            x, channels = w.op("concatenate", f"({x}, {y})", axis=1), channels + growth
        if stage < 3:
            y = w.op("nn.relu", normalized(w, x, f"t{stage}", channels))
            y = w.op("nn.conv2d", y, w.param(f"t{stage}_weight", channels // 2, channels, 1, 1))
            channels //= 2
            if stage < 2:
                y = w.op("nn.avg_pool2d", y, pool_size=[2, 2], strides=[2, 2])
            x = y
    x = w.op("nn.batch_flatten", w.op("nn.global_avg_pool2d", w.op("nn.relu", normalized(w, x, "last", channels))))
    x = w.op("nn.dense", x, w.param("fc", 5, channels), units=5)

    def oracle(p: Any, x: Any) -> Any:
        x = F.max_pool2d(torch_conv(p, x, "stem", 2, 3), 3, 2, 1)
        for stage, count in enumerate(blocks):
            for i in range(count):
                name = f"s{stage}_l{i}"
                y = torch_conv(p, F.relu(torch_norm(p, x, f"{name}_pre")), f"{name}_wide")
                x = torch.cat([x, F.conv2d(y, p[f"{name}_weight"], padding=1)], 1)
            if stage < 3:
                x = F.conv2d(F.relu(torch_norm(p, x, f"t{stage}")), p[f"t{stage}_weight"])
                x = F.avg_pool2d(x, 2) if stage < 2 else x
        return F.linear(F.relu(torch_norm(p, x, "last")).mean((2, 3)), p["fc"])

    return Net(w.text(x), w.params, (normal(20, 1, 3, 32, 32, dtype="float64"),), oracle)


def squeezenet() -> Net:
    """SqueezeNet 1.1, whose pools round sizes up."""
    w = Writer()
    plan = [(2, 4), (2, 4), "pool", (4, 6), (4, 6), "pool", (6, 8), (6, 8), (8, 10), (8, 10)]

    def conv(x: str, name: str, inputs: int, outputs: int, size: int, **geometry: Any) -> str:
        weight, bias = w.param(f"{name}_weight", outputs, inputs, size, size), w.param(f"{name}_bias", outputs)
        y = w.op("nn.conv2d", x, weight, **geometry, channels=outputs, kernel_size=[size, size])
        return w.op("nn.relu", w.op("nn.bias_add", y, bias))

    pool = {"pool_size": [3, 3], "strides": [2, 2], "padding": [0, 0, 0, 0], "ceil_mode": True}
    x = conv(w.input("data", 2, 3, 48, 48), "stem", 3, 6, 3, strides=[2, 2])
    x, channels = w.op("nn.max_pool2d", x, **pool), 6
    for i, entry in enumerate(plan):
        if isinstance(entry, str):
            x = w.op("nn.max_pool2d", x, **pool)
            continue
        narrow, wide = entry
        x = conv(x, f"squeeze{i}", channels, narrow, 1)
        left, right = conv(x, f"left{i}", narrow, wide, 1), conv(x, f"right{i}", narrow, wide, 3, padding=[1, 1, 1, 1])
        x, channels = w.op("concatenate", f"({left}, {right})", axis=1), 2 * wide
    x = conv(f"{w.op('nn.dropout', x)}.0", "last", channels, 5, 1)
    x = w.op("nn.softmax", w.op("nn.batch_flatten", w.op("nn.adaptive_avg_pool2d", x, output_size=[1, 1])))

    def oracle(p: Any, x: Any) -> Any:
        def conv(x: Any, name: str, **geometry: Any) -> Any:
            return F.relu(F.conv2d(x, p[f"{name}_weight"], p[f"{name}_bias"], **geometry))

        x = F.max_pool2d(conv(x, "stem", stride=2), 3, 2, ceil_mode=True)
        for i, entry in enumerate(plan):
            if isinstance(entry, str):
                x = F.max_pool2d(x, 3, 2, ceil_mode=True)
                continue
            x = conv(x, f"squeeze{i}")
            x = torch.cat([conv(x, f"left{i}"), conv(x, f"right{i}", padding=1)], 1)
        return F.softmax(conv(x, "last").mean((2, 3)), -1)

    return Net(w.text(x), w.params, (normal(20, 2, 3, 48, 48, dtype="float64"),), oracle)


#: Inception's third version: for each kind of block, its branches as (kernel, stride, padding) of convolutions.
_INCEPTION = {
    "a": [[(1, 1, 0)], [(1, 1, 0), (5, 1, 2)], [(1, 1, 0), (3, 1, 1), (3, 1, 1)], ["avg", (1, 1, 0)]],
    "b": [[(3, 2, 0)], [(1, 1, 0), (3, 1, 1), (3, 2, 0)], ["max"]],
    "c": [
        [(1, 1, 0)],
        [(1, 1, 0), ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))],
        [(1, 1, 0), *[((7, 1), 1, (3, 0)), ((1, 7), 1, (0, 3))] * 2],
        ["avg", (1, 1, 0)],
    ],
    "d": [[(1, 1, 0), (3, 2, 0)], [(1, 1, 0), ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0)), (3, 2, 0)], ["max"]],
    "e": [
        [(1, 1, 0)],
        [(1, 1, 0), ((1, 3), 1, (0, 1))],
        [(1, 1, 0), ((3, 1), 1, (1, 0))],
        [(1, 1, 0), (3, 1, 1), ((1, 3), 1, (0, 1))],
        [(1, 1, 0), (3, 1, 1), ((3, 1), 1, (1, 0))],
        ["avg", (1, 1, 0)],
    ],
}
_STEM = [(3, 2, 0), (3, 1, 0), (3, 1, 1), "pool", (1, 1, 0), (3, 1, 0), "pool"]


def inception() -> Net:
    """The third Inception with one block of each kind."""
    w = Writer()
    width, blocks = 3, "abcde"

    def conv(x: str, name: str, inputs: int, entry: Any) -> str:
        size, stride, padding = entry
        pads = [padding, padding] if isinstance(padding, int) else list(padding)
        return convolution(w, x, name, inputs, width, size, strides=[stride, stride], padding=pads * 2)

    x, channels = w.input("data", 1, 3, 79, 79), 3
    for i, entry in enumerate(_STEM):
        if isinstance(entry, str):
            x = w.op("nn.max_pool2d", x, pool_size=[3, 3], strides=[2, 2])
        else:
            x, channels = conv(x, f"stem{i}", channels, entry), width
    for b, kind in enumerate(blocks):
        outputs, total = [], 0
        for i, branch in enumerate(_INCEPTION[kind]):
            y, inputs = x, channels
            for j, entry in enumerate(branch):
                if entry == "avg":
                    y = w.op("nn.avg_pool2d", y, pool_size=[3, 3], padding=[1, 1, 1, 1])
                elif entry == "max":
                    y = w.op("nn.max_pool2d", y, pool_size=[3, 3], strides=[2, 2])
                else:
                    y, inputs = conv(y, f"b{b}_{i}_{j}", inputs, entry), width
            outputs.append(y)
            total += inputs
        x, channels = w.op("concatenate", f"({', '.join(outputs)})", axis=1), total
    x = w.op("squeeze", w.op("nn.global_avg_pool2d", x), axis=[2, 3])
    x = w.op("nn.dense", x, w.param("fc", 5, channels), units=5)

    def oracle(p: Any, x: Any) -> Any:
        for i, entry in enumerate(_STEM):
            x = F.max_pool2d(x, 3, 2) if isinstance(entry, str) else torch_conv(p, x, f"stem{i}", *entry[1:])
        for b, kind in enumerate(blocks):
            outputs = []
            for i, branch in enumerate(_INCEPTION[kind]):
                y = x
                for j, entry in enumerate(branch):
                    if entry == "avg":
                        y = F.avg_pool2d(y, 3, 1, 1, count_include_pad=False)
                    elif entry == "max":
                        y = F.max_pool2d(y, 3, 2)
                    else:
                        y = torch_conv(p, y, f"b{b}_{i}_{j}", *entry[1:])
                outputs.append(y)
            x = torch.cat(outputs, 1)
        return F.linear(x.mean((2, 3)), p["fc"])

    return Net(w.text(x), w.params, (normal(20, 1, 3, 79, 79, dtype="float64"),), oracle)


NETS = {
    net.__name__: net for net in (mlp, lenet, dcgan, resnet, mobilenet, densenet, squeezenet, inception, lstm, bert)
}
