"""Layers and their functions: against jax and NumPy, in containers, and functions of whole models."""

import math
import pickle
from dataclasses import FrozenInstanceError, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, nn, random, tree
from tvmfun.errors import ArgumentError, DtypeError, ImmutableError, ShapeError, TreeError
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.row_fusion import merge_rows
from tvmfun.nn import functional as F

KEY = random.key(0)


def normal(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def check(cases):
    """Compares results and gradients of pairs of functions of float arrays: all as one program, in float64."""
    args = {name: [np.asarray(x, "float64") for x in case[2:]] for name, case in cases.items()}

    def run(vjp, which, args, weights):
        results = {}
        for name, functions in cases.items():
            y, pull = vjp(functions[which], *args[name])
            results[name] = [y, *pull(weights[name])]
        return results

    with x64(True):
        shapes = {name: jax.eval_shape(oracle, *args[name]).shape for name, (_, oracle, *_) in cases.items()}
        weights = {name: normal(*shape, seed=9, dtype="float64") for name, shape in shapes.items()}
        expected = jax.tree.map(np.asarray, jax.jit(partial(run, jax.vjp, 1))(args, weights))
    actual = tvmfun.jit(partial(run, tvmfun.vjp, 0))(args, weights)
    for name, references in expected.items():
        for ours, reference in zip(actual[name], references, strict=True):
            assert ours.dtype == reference.dtype and ours.shape == reference.shape, name
            np.testing.assert_allclose(ours, reference, rtol=1e-10, atol=1e-10, err_msg=name)


def kernels(function, *args):
    program = tvmfun.trace(function)(*args)
    return [kernel for kernel in merge_rows(fuse(program), program.outputs) if not kernel.is_view]


# -- functions -------------------------------------------------------------------------------------------------


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


# -- normalizations --------------------------------------------------------------------------------------------


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


# -- dropout ---------------------------------------------------------------------------------------------------


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


# -- initial values --------------------------------------------------------------------------------------------


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


# -- containers and states -------------------------------------------------------------------------------------


def test_a_sequence_gives_each_layer_what_it_takes():
    model = nn.Sequential(nn.Linear(3, 4, key=KEY), nn.Dropout(0.5), F.relu, nn.Dropout(0.5), nn.Flatten())
    x, key = normal(2, 3), random.key(5)
    h = F.relu(F.dropout(random.fold_in(key, 1), model[0](x), 0.5))
    np.testing.assert_array_equal(model(x, key=key), F.dropout(random.fold_in(key, 3), h, 0.5))
    np.testing.assert_array_equal(model(x, train=False), F.relu(model[0](x)))
    y, state = model(x, nn.init_state(model), key=key)
    assert state == ((),) * 5
    np.testing.assert_array_equal(y, model(x, key=key))
    with pytest.raises(ArgumentError, match=r"\[Dropout\] a key is needed for training"):
        model(x)
    assert len(model) == 5 and list(model)[2] is F.relu and model[2] is F.relu
    np.testing.assert_array_equal(model[:1](x), model[0](x))


def test_a_sequence_is_a_tree():
    model = nn.Sequential(nn.Linear(3, 4, key=KEY), F.relu, nn.Sequential(nn.Linear(4, 2, key=KEY), tnp.tanh))
    assert len(tree.leaves(model)) == 4
    loss = lambda model, x: tnp.sum(model(x) ** 2)
    grads = tvmfun.jit(tvmfun.grad(loss))(model, normal(5, 3))
    assert tree.structure(grads) == tree.structure(model)
    assert pickle.loads(pickle.dumps(model[0])).weight.shape == (3, 4)
    assert repr(nn.Sequential(nn.Residual(model))) == "\n".join(
        [
            "Sequential(",
            "  (0): Residual(",
            "    (layer): Sequential(",
            "      (0): Linear(weight=float32[3,4], bias=float32[4])",
            "      (1): relu",
            "      (2): Sequential(",
            "        (0): Linear(weight=float32[4,2], bias=float32[2])",
            "        (1): tanh",
            "      )",
            "    )",
            "  )",
            ")",
        ]
    )


@tree.register_dataclass
@dataclass(frozen=True)
class Net:
    """A model as users write them."""

    blocks: Any
    norm: nn.BatchNorm
    head: nn.Linear

    def __call__(self, x, state, *, train=True):
        x, blocks = self.blocks[0](x, state["blocks"][0], train=train)
        x, norm = self.norm(x, state["norm"], train=train)
        return self.head(x), {**state, "blocks": (blocks, *state["blocks"][1:]), "norm": norm}


def net():
    block = nn.Sequential(nn.Linear(3, 4, key=KEY), nn.BatchNorm(4), F.relu)
    return Net([block, nn.Identity()], nn.BatchNorm(4), nn.Linear(4, 2, key=KEY))


@pytest.mark.slow
def test_states_mirror_the_model():
    model = net()
    state = nn.init_state(model)
    assert set(state) == {"blocks", "norm"} and state["blocks"][1] == ()
    assert isinstance(state["blocks"][0][1], nn.RunningStatistics)
    assert nn.init_state(nn.Linear(2, 2, key=KEY)) == () and nn.init_state({"a": F.relu}) == {"a": ()}
    x = normal(5, 3)
    y, new = tvmfun.jit(lambda model, state, x: model(x, state))(model, state, x)
    assert tree.structure(new) == tree.structure(state)
    outer = nn.Sequential(nn.Residual(nn.Sequential(nn.BatchNorm(3))), model)
    states = nn.init_state(outer)
    assert set(states[0]) == {"layer"} and tree.structure(states[1]) == tree.structure(state)
    both, after = outer(x, states, train=True)
    assert both.shape == y.shape and tree.structure(after) == tree.structure(states)
    assert float(np.abs(np.asarray(after[1]["norm"].mean)).max()) > 0
    np.testing.assert_array_equal(after[0]["layer"][0].mean, np.float32(0.1) * x.mean(0).astype("float32"))


def test_what_is_missing_in_a_container_is_explained():
    model, x = nn.Sequential(nn.BatchNorm(3)), normal(2, 3)
    with pytest.raises(ArgumentError, match=r"\[Sequential\] BatchNorm needs a state, got none. Try .*init_state"):
        model(x)
    with pytest.raises(ArgumentError, match=r"\[Residual\] Sequential needs a state"):
        nn.Residual(model)(x)
    with pytest.raises(TreeError, match=r"\[Sequential\] there must be 1 states, got 0"):
        model(x, ())
    with pytest.raises(ArgumentError, match=r"\[Sequential\] there must be layers and functions, got int"):
        nn.Sequential(3)
    with pytest.raises(ArgumentError, match=r"\[InstanceNorm\] running statistics need a state"):
        nn.InstanceNorm(3, track_running_stats=True)(normal(2, 4, 3))


# -- parts of models -------------------------------------------------------------------------------------------


def test_a_model_in_parts():
    model = net()
    selections = {
        "head": 2,
        "head.bias": 1,
        "*.bias": 4,
        "blocks.0.layers.*": 4,
        ("head", "norm.weight"): 3,
        (lambda path, leaf: leaf.ndim == 2): 2,
    }
    for where, count in selections.items():
        selected, rest = nn.partition(model, where)
        assert len(tree.leaves(selected)) == count and len(tree.leaves(rest)) == 8 - count
        again = nn.combine(selected, rest)
        assert tree.structure(again) == tree.structure(model)
        assert all(a is b for a, b in zip(tree.leaves(again), tree.leaves(model), strict=True))
    bare = {"layer": nn.Linear(2, 2, bias=False, key=KEY)}
    assert nn.combine(*nn.partition(bare, "layer"))["layer"].bias is None
    with pytest.raises(ArgumentError, match=r"\[partition\] a path .* got 'haed'. Try '.*'"):
        nn.partition(model, ["norm", "haed"])
    with pytest.raises(TreeError):
        nn.combine({"a": 1}, {"b": None})


def test_only_the_trainable_part_gets_gradients():
    model, x = net(), normal(5, 3)
    trainable, frozen = nn.partition(model, "head")

    @tvmfun.jit
    def step(trainable, frozen, state):
        loss = lambda part: tnp.sum(nn.combine(part, frozen)(x, state)[0] ** 2)
        return tvmfun.grad(loss)(trainable)

    grads = step(trainable, frozen, nn.init_state(model))
    assert tree.structure(grads) == tree.structure(trainable) and len(tree.leaves(grads)) == 2
    full = tvmfun.jit(tvmfun.grad(lambda m, s: tnp.sum(m(x, s)[0] ** 2)))(model, nn.init_state(model))
    np.testing.assert_allclose(grads.head.weight, full.head.weight, rtol=1e-5)


# -- inference -------------------------------------------------------------------------------------------------


def batch_normalized():
    block = nn.Sequential(nn.ConvTranspose1d(4, 4, 3, padding=1, groups=2, bias=False, key=KEY), nn.BatchNorm(4))
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, key=KEY),
        nn.BatchNorm(4, affine=False),
        F.relu,
        nn.Residual(block),
        nn.BatchNorm(4),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(20, 2, key=KEY),
        nn.BatchNorm(2),
    )


@pytest.mark.slow
def test_folded_batch_normalizations():
    model, x = batch_normalized(), normal(4, 7, 3)
    rng = np.random.default_rng(0)
    random_leaf = lambda leaf: tnp.asarray(rng.uniform(0.5, 1.5, leaf.shape).astype("float32"))
    model, state = tree.map(random_leaf, model), tree.map(random_leaf, nn.init_state(model))
    folded, rest = nn.fold(model, state)
    kinds = [type(layer).__name__ for layer in folded.layers]
    assert kinds == ["Conv1d", "Function", "Residual", "BatchNorm", "Dropout", "Flatten", "Linear"]
    assert len(folded[2].layer) == 1 and len(tree.leaves(rest)) == 2

    @tvmfun.jit
    def both(model, state, folded, rest, x):
        return model(x, state, train=False), folded(x, rest, train=False)

    (y, unchanged), (z, _) = both(model, state, folded, rest, x)
    np.testing.assert_allclose(z, y, rtol=1e-4, atol=1e-4)
    assert tree.structure(unchanged) == tree.structure(state)
    own = net()
    inner, states = nn.fold(own, nn.init_state(own))
    assert len(inner.blocks[0]) == 2 and set(states) == {"blocks", "norm"}
    np.testing.assert_allclose(
        inner(x[0], states, train=False)[0], own(x[0], nn.init_state(own), train=False)[0], rtol=1e-4, atol=1e-5
    )


def test_inference_compiles_to_one_kernel_for_a_convolution():
    """Without training there is no dropout, and the normalization is in the kernel of the convolution."""
    images = ShapeDtype((4, 8, 8, 3), "float32")
    model = nn.Sequential(nn.Conv2d(3, 16, 3, key=KEY), nn.BatchNorm(16), F.relu, nn.Dropout(0.5))
    state = nn.init_state(model)
    folded, rest = nn.fold(model, state)
    run = lambda model, state, x: model(x, state, train=False)[0]
    for parts in ((model, state), (folded, rest)):
        (kernel,) = kernels(run, *parts, images)
        names = {equation.op.name for equation in kernel.equations}
        assert "conv" in names and "threefry2x32" not in names
    assert "rsqrt" not in names  # of the folded one


# -- summaries -------------------------------------------------------------------------------------------------


def test_a_summary_counts_parameters_and_operations():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, groups=1, bias=False, key=KEY),
        nn.BatchNorm(8),
        F.relu,
        nn.Residual(nn.Sequential(nn.Conv2d(8, 8, 1, groups=2, bias=False, key=KEY))),
        nn.Flatten(),
        nn.Linear(32, 5, key=KEY, dtype="float32"),
    )
    given = tree.map(lambda leaf: ShapeDtype(leaf.shape, leaf.dtype), model)
    for known in (model, given):
        table = nn.summary(known, ShapeDtype((2, 4, 4, 3), "float32"), nn.init_state(model), train=False)
        rows = {row.path: row for row in table.layers}
        assert rows["layers.0"].flops == 2 * (2 * 2 * 2) * 8 * (3 * 3 * 3)
        assert rows["layers.2"].flops == 2 * 2 * 2 * 8 and rows["layers.2"].kind == "relu"
        assert rows["layers.3.layer.layers.0"].flops == 2 * (2 * 2 * 2) * 8 * 4
        assert rows["layers.3"].flops == rows["layers.3.layer"].flops + 2 * 2 * 2 * 8
        assert rows["layers.5"].flops == 2 * 2 * 32 * 5 + 2 * 5 and rows["layers.4"].flops == 0
        assert rows["layers.5"].output == ShapeDtype((2, 5), "float32")
        assert (rows["layers.5"].parameters, rows["layers.5"].bytes) == (165, 660)
        top = [row for path, row in rows.items() if path.count(".") == 1]
        assert table.total.flops == sum(row.flops for row in top)
        assert table.total.parameters == sum(row.parameters for row in top) == 216 + 16 + 32 + 165
        assert "layers.3.layer.layers.0  Conv2d" in str(table)


def test_a_summary_of_loops_and_repeated_layers():
    @tree.register_dataclass
    @dataclass(frozen=True)
    class Repeated:
        inner: nn.Linear
        unused: nn.Linear

        def __call__(self, x, times):
            x = self.inner(self.inner(x))
            return tvmfun.lax.fori_loop(0, times, lambda i, x: F.linear(x, self.inner.weight), x)

    model = Repeated(nn.Linear(4, 4, bias=False, key=KEY), nn.Linear(4, 4, key=KEY))
    table = nn.summary(model, ShapeDtype((3, 4), "float32"), 10)
    inner, unused = table.layers
    assert inner.flops == 2 * (2 * 3 * 4 * 4) and table.total.flops == 12 * (2 * 3 * 4 * 4)
    assert (unused.output, unused.flops, unused.parameters) == (None, 0, 20)
    branches = lambda y: tvmfun.lax.cond(True, lambda y: y @ y.swapaxes(-1, -2), lambda y: y[..., :2], y)
    parts = nn.Sequential(branches, tvmfun.checkpoint(lambda y: 2 * y))
    table = nn.summary(parts, ShapeDtype((5, 2, 8), "float32"))
    assert [row.flops for row in table.layers] == [2 * (5 * 2 * 2) * 8, 5 * 2 * 2]
    attention = nn.Sequential(lambda x: F.dot_product_attention(x, x, x, is_causal=True))
    length, width = 1024, 32  # long enough for blocks in loops
    flops = nn.summary(attention, ShapeDtype((1, length, 1, width), "float32")).total.flops
    assert 1 < flops / (2 * 2 * length * length * width) < 1.1
    with pytest.raises(ArgumentError, match=r"\[summary\] the model must be a layer that can be called, got dict"):
        nn.summary({"a": model})


# -- mistakes --------------------------------------------------------------------------------------------------


def test_mistakes_are_explained():
    x = normal(2, 4, 4, 3)
    mistakes = [
        (
            ShapeError,
            r"\[Conv1d\] the sequences must be \(batch, length, channels\), got",
            lambda: nn.Conv1d(3, 4, 3, key=KEY)(x),
        ),
        (
            ShapeError,
            r"\[conv_transpose2d\] .*in / 2, out\), got",
            lambda: F.conv_transpose2d(x, normal(2, 2, 3, 4), groups=2),
        ),
        (
            ArgumentError,
            r"\[ConvTranspose2d\] output_padding must be smaller",
            lambda: nn.ConvTranspose2d(3, 4, 3, output_padding=1, key=KEY),
        ),
        (
            ArgumentError,
            r"\[AdaptiveAvgPool2d\] the output_size must be one positive integer or two",
            lambda: nn.AdaptiveAvgPool2d((1, 2, 3)),
        ),
        (
            ArgumentError,
            r"\[MaxPool3d\] the kernel_size must be one positive integer or three, got \(2, 2\)",
            lambda: nn.MaxPool3d((2, 2)),
        ),
        (
            ArgumentError,
            r"\[Embedding\] padding_idx must be one of 5 rows, got 5",
            lambda: nn.Embedding(5, 2, padding_idx=5, key=KEY),
        ),
        (
            DtypeError,
            r"\[Embedding\] the indices must be integers, got float32",
            lambda: nn.Embedding(5, 2, key=KEY)(x),
        ),
        (
            ShapeError,
            r"\[bilinear\] the arrays must be",
            lambda: F.bilinear(x, x, normal(3, 4, 2)),
        ),
        (
            ShapeError,
            r"\[batch_norm\] weight must have the shape \(3,\)",
            lambda: F.batch_norm(x, np.zeros(3), np.ones(3), np.ones(4)),
        ),
        (
            ArgumentError,
            r"\[BatchNorm\] there must be more than one value per channel",
            lambda: nn.BatchNorm(3)(x[0, :1, 0], nn.BatchNorm(3).init_state()),
        ),
        (
            ShapeError,
            r"\[LayerNorm\] the array must have the shape \(\.\.\., 4\)",
            lambda: nn.LayerNorm(4)(x),
        ),
        (
            ArgumentError,
            r"\[GroupNorm\] 2 groups must divide the channels, got 3",
            lambda: nn.GroupNorm(2, 3),
        ),
        (
            ShapeError,
            r"\[instance_norm\] .*with a spatial axis",
            lambda: F.instance_norm(x[0, 0]),
        ),
        (
            ShapeError,
            r"\[glu\] axis -1 must have an even size",
            lambda: F.glu(x),
        ),
        (
            ShapeError,
            r"\[prelu\] the array must be",
            lambda: F.prelu(x, np.ones(2)),
        ),
        (
            ShapeError,
            r"\[pixel_shuffle\] the channels must be a multiple of 4",
            lambda: F.pixel_shuffle(x, 2),
        ),
        (
            ArgumentError,
            r"\[interpolate\] the mode for 2 spatial axes must be one of 'nearest', 'bilinear', 'bicubic'",
            lambda: F.interpolate(x, 3, mode="linear"),
        ),
        (
            ArgumentError,
            r"\[Upsample\] either size or scale_factor",
            lambda: nn.Upsample(),
        ),
        (
            ShapeError,
            r"\[Flatten\] the axes 3 to 1 must exist",
            lambda: nn.Flatten(3, 1)(x),
        ),
        (
            ArgumentError,
            r"\[WeightNorm\] the layer must have an array named 'kernel', got Linear",
            lambda: nn.WeightNorm(nn.Linear(2, 2, key=KEY), "kernel"),
        ),
        (
            DtypeError,
            r"\[LayerNorm\] the dtype of the parameters must be a float",
            lambda: nn.LayerNorm(3, dtype="int32"),
        ),
        (
            ArgumentError,
            r"\[lp_pool\] the exponent must be positive",
            lambda: F.lp_pool(x, 0, 2),
        ),
    ]
    for kind, message, mistake in mistakes:
        with pytest.raises(kind, match=message):
            mistake()


# -- constructors ----------------------------------------------------------------------------------------------


@tree.register_dataclass
@dataclass(frozen=True, init=False)
class Scaled(nn.Linear):
    """A subclass by a user, frozen by dataclass itself."""

    scale: Any

    def __init__(self, size, *, key):
        super().__init__(size, size, key=key)
        object.__setattr__(self, "scale", tnp.ones(size))

    def __call__(self, x):
        return super().__call__(x) * self.scale


def test_layers_are_immutable_once_they_are_made():
    for layer in (nn.Linear(3, 3, key=KEY), nn.LSTM(3, 4, key=KEY), nn.Sequential(nn.Identity()), Scaled(3, key=KEY)):
        name = next(iter(vars(layer)))
        for change in (partial(setattr, layer, name, None), partial(delattr, layer, name)):
            with pytest.raises(FrozenInstanceError, match=name):
                change()
    with pytest.raises(ImmutableError, match=r"^\[Linear\] layers are immutable, got an assignment to 'weight'"):
        nn.Linear(3, 3, key=KEY).weight = None


def test_a_constructor_leaves_the_class_as_it_is():
    layer = Scaled(3, key=KEY)
    assert type(layer) is Scaled and type(nn.Sequential(layer).layers[0]) is Scaled
    assert type(pickle.loads(pickle.dumps(nn.Linear(3, 3, key=KEY)))) is nn.Linear
    assert layer(np.ones((2, 3), "float32")).shape == (2, 3) and len(tree.leaves(layer)) == 3
    made = []

    class Failing(nn.Linear):
        def __init__(self):
            made.append(self)
            super().__init__(3, 3, key=KEY, weight_init=lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        Failing()
    assert type(made[0]) is Failing
