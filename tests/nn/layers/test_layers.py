"""Layers and their functions against JAX and NumPy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.layers import check, kernels, normal

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, nn, random, tree
from tvmfun.errors import ArgumentError, ArgumentTypeError, ShapeError
from tvmfun.nn import functional as F

KEY = random.key(0)


@pytest.mark.slow
def test_activations_of_jax():
    x = 3 * normal(4, 6)
    names = [
        "celu",
        "elu",
        "glu",
        "hard_sigmoid",
        "hard_swish",
        "hard_tanh",
        "leaky_relu",
        "log_sigmoid",
        "mish",
        "relu6",
        "selu",
        "silu",
        "soft_sign",
        "softplus",
        "sparse_plus",
        "sparse_sigmoid",
        "squareplus",
        "standardize",
    ]
    check({name: (getattr(F, name), getattr(jax.nn, name), x) for name in names})


@pytest.mark.slow
def test_activations_far_from_zero():
    """No overflow, and derivatives that are numbers."""
    names = ["celu", "elu", "log_sigmoid", "mish", "selu", "silu", "softplus", "squareplus"]
    x = np.asarray([-1e4, -100.0, 0.0, 100.0, 1e4], "float32")

    @tvmfun.jit
    def run(x):
        functions = {name: getattr(F, name) for name in names}
        return {name: (f(x), tvmfun.vjp(f, x)[1](tnp.ones_like(x))[0]) for name, f in functions.items()}

    for name, (y, gradient) in run(x).items():
        oracle = getattr(jax.nn, name)
        np.testing.assert_allclose(y, oracle(x), rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(gradient, jax.vmap(jax.grad(oracle))(x), rtol=1e-5, atol=1e-6, err_msg=name)


def test_convolutions_of_jax():
    def convolution(strides, padding, dilation=None, holes=None, groups=1):
        def oracle(x, w):
            spatial = "DHW"[4 - x.ndim + 1 :] if x.ndim < 5 else "DHW"
            layout = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
            return jax.lax.conv_general_dilated(x, w, strides, padding, holes, dilation, layout, groups)

        return oracle

    def transposed(x, w):
        return jax.lax.conv_transpose(x, w[::-1], (2,), [(1, 2)], dimension_numbers=("NWC", "WIO", "NWC"))

    check(
        {
            "conv1d": (
                lambda x, w: F.conv1d(x, w, stride=2, padding="SAME", groups=2),
                convolution((2,), "SAME", groups=2),
                normal(2, 7, 4),
                normal(3, 2, 6),
            ),
            "conv3d": (
                lambda x, w: F.conv3d(x, w, padding=((0, 1), (1, 0), (0, 0)), dilation=(1, 1, 2)),
                convolution((1, 1, 1), [(0, 1), (1, 0), (0, 0)], dilation=(1, 1, 2)),
                normal(1, 3, 4, 5, 2),
                normal(2, 2, 2, 2, 3),
            ),
            "conv_transpose1d": (
                lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1),
                transposed,
                normal(2, 4, 3),
                normal(3, 3, 2),
            ),
        }
    )


@pytest.mark.slow
def test_normalizations_and_maps_as_formulas():
    def normalized(x, axes):
        return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + 1e-5)

    images, weight, bias = normal(3, 4, 5, 6), normal(6, seed=1), normal(6, seed=2)
    zeros, ones = np.zeros(6), np.ones(6)
    grouped = lambda x: normalized(x.reshape(3, 4, 5, 2, 3), (1, 2, 4)).reshape(x.shape)
    check(
        {
            "batch": (
                lambda x, w, b: F.batch_norm(x, zeros, ones, w, b)[0],
                lambda x, w, b: normalized(x, (0, 1, 2)) * w + b,
                *(images, weight, bias),
            ),
            "batch_mean": (
                lambda x: F.batch_norm(x, zeros, ones)[1],
                lambda x: 0.1 * jax.lax.stop_gradient(x.mean((0, 1, 2))),
                images,
            ),
            "batch_var": (
                lambda x: F.batch_norm(x, zeros, ones, momentum=0.3)[2],
                lambda x: jax.lax.stop_gradient(0.7 + 0.3 * x.var((0, 1, 2), ddof=1)),
                images,
            ),
            "layer": (
                lambda x, w, b: F.layer_norm(x, 6, w, b),
                lambda x, w, b: normalized(x, (-1,)) * w + b,
                *(images, weight, bias),
            ),
            "group": (
                lambda x, w, b: F.group_norm(x, 2, w, b),
                lambda x, w, b: grouped(x) * w + b,
                *(images, weight, bias),
            ),
            "instance": (
                lambda x, w, b: F.instance_norm(x, w, b),
                lambda x, w, b: normalized(x, (1, 2)) * w + b,
                *(images, weight, bias),
            ),
            "rms": (
                lambda x, w: F.rms_norm(x, 6, w, eps=1e-5),
                lambda x, w: x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
                *(images, weight),
            ),
            "bilinear": (
                F.bilinear,
                lambda x, y, w, b: jnp.einsum("ni,nj,ijk->nk", x, y, w) + b,
                *(normal(2, 3), normal(2, 4), normal(3, 4, 6), bias),
            ),
        }
    )


def test_pooling_as_formulas():
    line = normal(2, 7, 3)
    bins = [(0, 3), (2, 5), (4, 7)]
    check(
        {
            "avg": (
                lambda x: F.avg_pool(x, 3, 2, 1, count_include_pad=False),
                lambda x: jnp.stack([x[:, max(0, i - 1) : i + 2].mean(1) for i in (0, 2, 4, 6)], 1),
                line,
            ),
            "ceil": (
                lambda x: F.max_pool(x, 2, ceil_mode=True),
                lambda x: jnp.stack([x[:, i : i + 2].max(1) for i in (0, 2, 4, 6)], 1),
                line,
            ),
            "lp": (
                lambda x: F.lp_pool(x, 2, 3),
                lambda x: jnp.stack([jnp.sqrt((x[:, i : i + 3] ** 2).sum(1)) for i in (0, 3)], 1),
                line,
            ),
            "adaptive_avg": (
                lambda x: F.adaptive_avg_pool(x, 3),
                lambda x: jnp.stack([x[:, i:j].mean(1) for i, j in bins], 1),
                line,
            ),
            "adaptive_max": (
                lambda x: F.adaptive_max_pool(x, 3),
                lambda x: jnp.stack([x[:, i:j].max(1) for i, j in bins], 1),
                line,
            ),
        }
    )
    zero = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(F.lp_pool(x, 2, 2))))(np.zeros((1, 4, 1), "float32"))
    assert not np.asarray(zero).any()
    top = F.lp_pool(np.asarray([-3.0, 2.0]).reshape(1, 2, 1), math.inf, 2)
    np.testing.assert_array_equal(top, [[[3.0]]])


def test_a_batch_spread_over_an_axis_is_normalized_as_one():
    norm = nn.BatchNorm(3, axis_name="devices")
    state, x = norm.init_state(), 2 + normal(4, 5, 3)
    spread = tvmfun.jit(tvmfun.vmap(lambda x: norm(x, state), axis_name="devices"))
    y, new = spread(x)
    expected, statistics = nn.BatchNorm(3)(x.reshape(20, 3), state)
    np.testing.assert_allclose(np.asarray(y).reshape(20, 3), expected, rtol=1e-5, atol=1e-6)
    for ours, reference in zip(new, statistics, strict=True):
        np.testing.assert_allclose(ours, np.broadcast_to(reference, (4, 3)), rtol=1e-5)


@pytest.mark.slow
def test_sizes_that_are_known_when_called():
    """One compile serves every batch size, also the unbiased variance and the counts of pooling."""
    model = nn.Sequential(
        nn.Conv1d(3, 4, 3, key=KEY),
        nn.BatchNorm(4),
        F.relu,
        nn.AvgPool1d(2, ceil_mode=True, count_include_pad=False),
        nn.Dropout1d(0.5),
        nn.GroupNorm(2, 4),
        nn.ConvTranspose1d(4, 2, 2, stride=2, key=KEY),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
    )
    step = lambda model, state, x: model(x, state, key=KEY)
    run = tvmfun.jit(step, dynamic_shapes={"x": {0: Dim("b", min=1)}})
    for size in (1, 3):
        x, state = normal(size, 7, 3), nn.init_state(model)
        found, expected = tree.leaves(run(model, state, x)), tree.leaves(tvmfun.jit(step)(model, state, x))
        for ours, reference in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-6)
    table = nn.summary(model, ShapeDtype(("b", 7, 3), "float32"), nn.init_state(model), train=False)
    assert str(table.total.flops) == "720*b + 12"


def test_an_ensemble_of_models():
    make = lambda key: nn.Sequential(nn.Conv1d(3, 4, 3, key=key), nn.InstanceNorm(4, affine=True), nn.PReLU(4))
    models = tvmfun.jit(tvmfun.vmap(make))(random.split(KEY, 2))
    x = normal(2, 6, 3)
    y = tvmfun.jit(tvmfun.vmap(lambda model, x: model(x), in_axes=(0, None)))(models, x)
    single = tvmfun.jit(lambda model, x: model(x))
    for i in range(2):
        expected = single(tree.map(lambda leaf, i=i: leaf[i], models), x)
        np.testing.assert_allclose(y[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_numbers_are_normalized_in_float32(dtype):
    x = tnp.asarray(300 + 100 * normal(4, 64)).astype(dtype)

    @tvmfun.jit
    def run(x):
        return [F.layer_norm(x, 64), F.rms_norm(x, 64, eps=1e-6), F.batch_norm(x, np.zeros(64), np.ones(64))[0]]

    wide = np.asarray(x.astype("float32"))
    expected = [
        (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True),
        wide / np.sqrt((wide**2).mean(1, keepdims=True)),
        (wide - wide.mean(0)) / wide.std(0),
    ]
    for y, reference in zip(run(x), expected, strict=True):
        assert y.dtype == x.dtype
        np.testing.assert_allclose(y.astype("float32"), reference, atol=0.02)


def test_normalizations_are_few_kernels():
    matrix, images = ShapeDtype((64, 48), "float32"), ShapeDtype((4, 8, 8, 16), "float32")
    assert len(kernels(nn.LayerNorm(48), matrix)) == 1
    assert len(kernels(nn.RMSNorm(48), matrix)) == 1
    assert len(kernels(nn.GroupNorm(2, 16), images)) <= 4
    norm = nn.BatchNorm(16)
    in_training = kernels(lambda x, state: norm(x, state)[0], images, norm.init_state())
    assert len(in_training) == 3  # the mean, the variance, the result


def test_layers_of_no_examples():
    x = np.zeros((0, 6, 6, 4), "float32")
    layers = [
        nn.GroupNorm(2, 4),
        nn.InstanceNorm(4, affine=True),
        nn.RMSNorm(4),
        nn.PReLU(4),
        nn.WeightNorm(nn.Conv2d(4, 3, 3, key=KEY)),
        nn.Upsample(size=9, mode="bilinear"),
        nn.AdaptiveAvgPool2d(4),
        nn.AdaptiveMaxPool2d(1),
        nn.PixelShuffle(2),
        nn.DropPath(0.5),
    ]

    @tvmfun.jit
    def run(layers, x):
        call = lambda layer, x: layer(x, key=KEY) if isinstance(layer, nn.DropPath) else layer(x)
        loss = lambda layers: sum(tnp.sum(call(layer, x) ** 2) for layer in layers)
        return [call(layer, x) for layer in layers], tvmfun.grad(loss)(layers)

    results, gradients = run(layers, x)
    assert all(y.shape[0] == 0 for y in results)
    assert not any(np.asarray(leaf).any() for leaf in tree.leaves(gradients))


def test_kinds_of_dropout():
    x = np.ones((64, 3, 5, 16), "float32")
    layers = {
        "channels": nn.Dropout2d(0.25),
        "examples": nn.DropPath(0.25),
        "alpha": nn.AlphaDropout(0.25),
    }
    y = tvmfun.jit(lambda key, x: {name: layer(x, key=key) for name, layer in layers.items()})(KEY, x)
    channels, examples, alpha = (np.asarray(y[name]) for name in layers)
    scaled = np.float32(1 / 0.75)
    for mask, axes in ((channels, (1, 2)), (examples, (1, 2, 3))):
        assert set(np.unique(mask)) == {0, scaled}
        np.testing.assert_array_equal(mask, np.broadcast_to(mask.max(axes, keepdims=True), x.shape))
    assert abs((channels == 0).mean() - 0.25) < 0.05
    assert abs((examples == 0).mean() - 0.25) < 0.15
    saturated = -1.0507009873554805 * 1.6732632423543772
    scale = 1 / math.sqrt(0.75 * (1 + 0.25 * saturated**2))
    values = [scale * (v - 0.25 * saturated) for v in (saturated, 1)]
    np.testing.assert_allclose(np.unique(alpha), values, rtol=1e-5)
    assert abs((alpha < 0).mean() - 0.25) < 0.02


def test_dropout_does_nothing_without_training():
    x = normal(2, 3, 4, 5)
    for layer in (nn.Dropout2d(0.5), nn.DropPath(0.5), nn.AlphaDropout(0.5)):
        np.testing.assert_array_equal(layer(x, train=False), x)
        np.testing.assert_array_equal(type(layer)(0.0)(x), x)
        np.testing.assert_array_equal(type(layer)(1.0)(x), np.zeros_like(x))
        with pytest.raises(ArgumentError, match="a key is needed for training"):
            layer(x)
    with pytest.raises(ShapeError, match=r"\[Dropout1d\] the sequences must be \(batch, length, channels\)"):
        nn.Dropout1d(0.5)(x, key=KEY)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("padding", [2, -300, 299])
def test_the_padding_of_any_type_of_index(dtype, padding):
    """An index that the type cannot represent is no padding."""
    indices = np.array([0, 2, 100], dtype)
    weight = np.ones((300, 1), "float32")
    loss = lambda weight: nn.functional.embedding(indices, weight, padding_idx=padding).sum()
    counted = np.bincount(indices[indices != padding % 300].astype(int), minlength=300)
    np.testing.assert_array_equal(tvmfun.grad(loss)(weight)[:, 0], counted)


@pytest.mark.slow
def test_initial_values():
    table = nn.Embedding(400, 50, padding_idx=-2, key=KEY)
    values = np.asarray(table.weight)
    assert table.padding_idx == 398 and not values[398].any()
    assert abs(np.delete(values, 398, 0).std() - 1) < 0.02 and abs(values.mean()) < 0.02
    fans = {
        nn.Bilinear(9, 40, 50, key=KEY): 9,
        nn.Conv1d(8, 40, 5, groups=2, key=KEY): 20,
        nn.ConvTranspose2d(16, 8, 5, groups=2, key=KEY): 100,
    }
    for layer, fan_in in fans.items():
        for parameter in (layer.weight, layer.bias):
            bound = np.abs(np.asarray(parameter)).max() * fan_in**0.5
            assert 0.8 < bound <= 1
    for norm in (nn.BatchNorm(3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm(3, affine=True)):
        assert norm.weight is not None and norm.bias is not None
        np.testing.assert_array_equal([norm.weight, norm.bias], [[1, 1, 1], [0, 0, 0]])
    assert nn.BatchNorm(3, dtype="float64").init_state().var.dtype == "float64"
    linear = nn.Linear(6, 4, key=KEY)
    np.testing.assert_allclose(nn.WeightNorm(linear).weight, linear.weight, rtol=1e-6)


def test_spectral_norm_begins_with_the_singular_vectors():
    norm = nn.SpectralNorm(nn.Linear(6, 4, key=KEY))
    u, v = norm.init_state()
    _, values, _ = np.linalg.svd(np.asarray(norm.layer.weight))
    assert abs(float(u @ np.asarray(norm.layer.weight).T @ v) - values[0]) < 0.02 * values[0]


def test_fields_are_replaced_as_of_any_dataclass():
    key = random.key(0)
    layers = [nn.Linear(3, 2, key=key), nn.Conv2d(3, 4, 3, key=key), nn.Dropout(0.1), nn.LSTM(3, 4, key=key)]
    for layer in [*layers, nn.LayerNorm(5), nn.MultiHeadAttention(8, 2, key=key), nn.Sequential(*layers[:1])]:
        first = dataclasses.fields(layer)[0].name
        same = dataclasses.replace(layer, **{first: getattr(layer, first)})
        assert type(same) is type(layer) and repr(same) == repr(layer)
    biased = dataclasses.replace(layers[0], weight=np.zeros((3, 2), "float32"), bias=np.ones(2, "float32"))
    np.testing.assert_array_equal(biased(np.ones((1, 3), "float32")), np.ones((1, 2)))
    with pytest.raises(ArgumentTypeError, match="there is no argument weight="):
        nn.Linear(weight=np.zeros((3, 2)))  # type: ignore[call-arg]
