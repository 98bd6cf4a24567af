"""Layers against PyTorch: results, gradients, states, and what three steps of SGD make of both.

The cases of a test are compiled as one program, in both precisions.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.nn import functional as F

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.interop

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
KEY = random.key(0)
LEARNING_RATE = 0.1


class Case(NamedTuple):
    """``ours`` and ``theirs`` take parameters, a state and arguments, and return a result and a state."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    params: Any
    args: tuple
    state: Any = ()


def of_function(ours, theirs, *args):
    """A case of functions of arrays."""
    return Case(lambda _, state, *x: (ours(*x), state), lambda _, state, *x: (theirs(*x), state), (), args)


def of_layer(layer, theirs, *args):
    """A case of a layer without a state; ``theirs`` takes a layer of tensors and arguments."""
    return Case(
        lambda layer, state, *x: (layer(*x), state), lambda layer, state, *x: (theirs(layer, *x), state), layer, args
    )


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def is_float(leaf):
    return np.asarray(leaf).dtype.kind == "f"


def check(cases: dict[str, Case], narrow: Collection[str] | None = None):
    """Compares results, gradients and states of all cases over three steps of SGD, in float64 and float32.

    In float32 only those named ``narrow`` if there are such: kernels of convolutions take long to compile.
    """
    names = [(name, "float64") for name in cases] + [(name, "float32") for name in narrow or cases]
    rng = np.random.default_rng(7)
    drawn = {
        name: tree.map(lambda leaf: 0.5 * rng.normal(size=leaf.shape), case.params) for name, case in cases.items()
    }
    cast = lambda values, dtype: tree.map(lambda leaf: np.asarray(leaf, dtype if is_float(leaf) else None), values)
    values = {key: cast((drawn[key[0]], cases[key[0]].args), key[1]) for key in names}
    states = {key: cast(tree.map(np.asarray, cases[key[0]].state), key[1]) for key in names}
    weights: dict = {}
    peers = {key: (_tensors(values[key]), _tensors(states[key])) for key in names}

    def expected(key):
        leaves = tree.map(lambda leaf: leaf.detach().requires_grad_(leaf.is_floating_point()), peers[key][0])
        y, state = cases[key[0]].theirs(leaves[0], peers[key][1], *leaves[1])
        if key not in weights:
            weights[key] = normal(*y.shape, seed=9).astype(key[1])
        (y * torch.tensor(weights[key])).sum().backward()
        gradients = [leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in tree.leaves(leaves)]
        with torch.no_grad():
            moved = [
                leaf - LEARNING_RATE * g if leaf.is_floating_point() else leaf
                for leaf, g in zip(tree.leaves(leaves), gradients, strict=True)
            ]
        peers[key] = (tree.unflatten(tree.structure(leaves), moved), state)
        floats = [g for leaf, g in zip(tree.leaves(leaves), gradients, strict=True) if leaf.is_floating_point()]
        return [y, *floats, *tree.leaves(state)]

    @tvmfun.jit
    def step(values, states, weights):
        results = {}
        for key in names:
            leaves, structure = tree.flatten(values[key])
            floats = [leaf for leaf in leaves if is_float_dtype(leaf)]

            def loss(floats, key=key, leaves=leaves, structure=structure):
                numbers = iter(floats)
                full = [next(numbers) if is_float_dtype(leaf) else leaf for leaf in leaves]
                params, args = tree.unflatten(structure, full)
                y, state = cases[key[0]].ours(params, states[key], *args)
                return tnp.sum(y * weights[key]), (y, state)

            results[key] = tvmfun.value_and_grad(loss, has_aux=True)(floats)
        return results

    for _ in range(3):
        references = {key: [leaf.detach().numpy() for leaf in expected(key)] for key in names}
        results = step(values, states, weights)
        for key in names:
            (_, (y, state)), gradients = results[key]
            actual = [np.asarray(leaf) for leaf in (y, *gradients, *tree.leaves(state))]
            for ours, reference in zip(actual, references[key], strict=True):
                assert ours.dtype == reference.dtype == key[1] and ours.shape == reference.shape, key
                atol = TOLERANCE[key[1]] * max(1.0, np.abs(reference).max(initial=0))
                np.testing.assert_allclose(ours, reference, rtol=0, atol=atol, err_msg=str(key))
            moves = iter(gradients)
            move = lambda leaf, moves=moves: leaf - leaf.dtype.type(LEARNING_RATE) * next(moves)
            values[key] = tree.map(lambda leaf, move=move: move(leaf) if is_float(leaf) else leaf, values[key])
            states[key] = state


def is_float_dtype(leaf):
    return leaf.dtype.kind == "f"


def _tensors(values):
    return tree.map(lambda leaf: torch.tensor(leaf), values)


def first(x):
    """Channels first."""
    return x.movedim(-1, 1)


def last(x):
    """Channels last."""
    return x.movedim(1, -1)


def by_channel(function):
    """A function of PyTorch's, which wants channels first."""
    return lambda x: last(function(first(x)))


# -- functions of elements -------------------------------------------------------------------------------------


def test_activations():
    T = torch.nn.functional
    pairs = {
        "relu6": (F.relu6, T.relu6),
        "leaky_relu": (partial(F.leaky_relu, negative_slope=0.2), partial(T.leaky_relu, negative_slope=0.2)),
        "elu": (partial(F.elu, alpha=1.5), partial(T.elu, alpha=1.5)),
        "celu": (partial(F.celu, alpha=1.5), partial(T.celu, alpha=1.5)),
        "selu": (F.selu, T.selu),
        "silu": (F.silu, T.silu),
        "mish": (F.mish, T.mish),
        "gelu": (partial(F.gelu, approximate=False), T.gelu),
        "gelu_tanh": (F.gelu, partial(T.gelu, approximate="tanh")),
        "softplus": (F.softplus, partial(T.softplus, threshold=1000)),
        "log_sigmoid": (F.log_sigmoid, T.logsigmoid),
        "soft_sign": (F.soft_sign, T.softsign),
        # PyTorch's own functions round one sixth to float32, also in float64.
        "hard_sigmoid": (F.hard_sigmoid, lambda x: T.relu6(x + 3) / 6),
        "hard_swish": (F.hard_swish, lambda x: x * T.relu6(x + 3) / 6),
        "hard_tanh": (F.hard_tanh, T.hardtanh),
        "hardshrink": (F.hardshrink, T.hardshrink),
        "softshrink": (F.softshrink, T.softshrink),
        "tanhshrink": (F.tanhshrink, T.tanhshrink),
        "glu": (partial(F.glu, axis=1), partial(T.glu, dim=1)),
    }
    x = 3 * normal(3, 4, 5)
    cases = {name: of_function(ours, theirs, x) for name, (ours, theirs) in pairs.items()}
    slopes = lambda layer, x: torch.nn.functional.prelu(first(x), layer.weight).movedim(1, -1)
    cases |= {
        "prelu": of_layer(nn.PReLU(5), slopes, x),
        "prelu_one": of_layer(nn.PReLU(), slopes, x),
        "empty": of_function(F.mish, T.mish, x[:0]),
    }
    check(cases)


# -- linear maps and tables ------------------------------------------------------------------------------------


def test_linear_maps_and_tables():
    T = torch.nn.functional
    linear = lambda layer, x: T.linear(x, layer.weight.T, layer.bias)
    bilinear = lambda layer, x, y: T.bilinear(x, y, layer.weight.permute(2, 0, 1), layer.bias)
    indices = np.asarray([[1, 4, 0], [2, 2, 4]])
    tied = nn.Embedding(5, 3, key=KEY)
    check(
        {
            "linear": of_layer(nn.Linear(5, 3, key=KEY), linear, normal(2, 4, 5)),
            "linear_no_bias": of_layer(nn.Linear(5, 3, bias=False, key=KEY), linear, normal(5)),
            "linear_empty": of_layer(nn.Linear(5, 3, key=KEY), linear, normal(0, 5)),
            "bilinear": of_layer(nn.Bilinear(3, 4, 5, key=KEY), bilinear, normal(2, 3), normal(2, 4)),
            "bilinear_no_bias": of_layer(
                nn.Bilinear(3, 4, 1, bias=False, key=KEY), bilinear, normal(2, 1, 3), normal(2, 1, 4)
            ),
            "embedding": of_layer(nn.Embedding(5, 3, key=KEY), lambda layer, i: T.embedding(i, layer.weight), indices),
            "embedding_padding": of_layer(
                nn.Embedding(5, 3, padding_idx=-1, key=KEY),
                lambda layer, i: T.embedding(i, layer.weight, padding_idx=4),
                indices,
            ),
            "embedding_empty": of_layer(tied, lambda layer, i: T.embedding(i, layer.weight), indices[:0]),
            "tied": Case(
                lambda layer, state, i: (layer.attend(layer(i)), state),
                lambda layer, state, i: (T.embedding(i, layer.weight) @ layer.weight.T, state),
                tied,
                (indices,),
            ),
        }
    )


# -- convolutions ----------------------------------------------------------------------------------------------


def conv_case(rank, sizes, batch=2, channels=4, features=6, kernel=3, **options):
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](channels, features, kernel, key=KEY, **options)
    convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    settings = {name: value for name, value in options.items() if name not in ("bias", "padding_mode")}

    def theirs(layer, x):
        weight, x = layer.weight.permute(rank + 1, rank, *range(rank)), first(x)
        if "padding_mode" in options:
            x = torch.nn.functional.pad(x, [settings["padding"]] * (2 * rank), options["padding_mode"])
            return last(convolve(x, weight, layer.bias, **{**settings, "padding": 0}))
        return last(convolve(x, weight, layer.bias, **settings))

    return of_layer(layer, theirs, normal(batch, *sizes, channels))


def transposed_case(rank, sizes, batch=2, channels=4, features=6, kernel=3, groups=1, **options):
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    layer = kinds[rank - 1](channels, features, kernel, groups=groups, key=KEY, **options)
    convolve = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[rank - 1]
    settings = {name: value for name, value in options.items() if name != "bias"}

    def theirs(layer, x):
        kernel = layer.weight.shape[:rank]
        parts = layer.weight.reshape(*kernel, channels // groups, groups, features // groups)
        weight = parts.permute(rank + 1, rank, rank + 2, *range(rank)).reshape(channels, features // groups, *kernel)
        return last(convolve(first(x), weight, layer.bias, groups=groups, **settings))

    return of_layer(layer, theirs, normal(batch, *sizes, channels))


def test_convolutions():
    check(
        {
            "1d": conv_case(1, (9,)),
            "1d_reflect": conv_case(1, (9,), padding=2, padding_mode="reflect"),
            "2d_circular": conv_case(2, (4, 5), padding=1, stride=2, padding_mode="circular", channels=2, features=3),
            "1d_all": conv_case(1, (9,), stride=2, padding=1, dilation=2, groups=2, bias=False),
            "2d": conv_case(2, (6, 5), stride=(1, 2), padding=(2, 1), dilation=(2, 1), kernel=(3, 2)),
            "2d_depthwise": conv_case(2, (6, 5), groups=4, features=8),
            "2d_empty": conv_case(2, (6, 5), batch=0),
            "3d": conv_case(3, (4, 3, 5), kernel=(2, 3, 1), stride=(1, 1, 2), channels=2, features=3),
        },
        narrow=("1d", "2d"),
    )


def test_transposed_convolutions():
    check(
        {
            "1d": transposed_case(1, (5,), stride=2, padding=1, output_padding=1),
            "1d_dilated": transposed_case(1, (5,), dilation=2, bias=False),
            "2d": transposed_case(2, (4, 3), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), kernel=(3, 2)),
            "2d_groups": transposed_case(2, (4, 3), stride=2, groups=2, kernel=2),
            "2d_empty": transposed_case(2, (4, 3), stride=2, batch=0),
            "3d": transposed_case(3, (2, 3, 2), stride=(1, 2, 2), kernel=2, channels=2, features=3),
        },
        narrow=("1d", "2d"),
    )


# -- normalizations --------------------------------------------------------------------------------------------


def running_case(layer, train, x):
    """A case of a layer with running statistics."""
    instance = isinstance(layer, nn.InstanceNorm)
    function = torch.nn.functional.instance_norm if instance else torch.nn.functional.batch_norm

    def theirs(params, state, x):
        mean, var = (statistic.clone() for statistic in state)
        y = function(first(x), mean, var, params.weight, params.bias, train, layer.momentum, layer.eps)
        return last(y), type(state)(mean, var)

    ours = lambda layer, state, x: layer(x, state, train=train)
    state = nn.RunningStatistics(normal(x.shape[-1], seed=3), 1 + normal(x.shape[-1], seed=4) ** 2)
    return Case(ours, theirs, layer, (x,), state)


def test_normalizations_with_running_statistics():
    check(
        {
            "1d": running_case(nn.BatchNorm(4), True, 2 + normal(5, 4)),
            "sequences": running_case(nn.BatchNorm(4, affine=False, momentum=0.3), True, normal(2, 3, 4)),
            "images": running_case(nn.BatchNorm(4, eps=1e-3), True, normal(2, 3, 5, 4)),
            "volumes": running_case(nn.BatchNorm(2), True, normal(2, 3, 2, 2, 2)),
            "empty": running_case(nn.BatchNorm(4), True, normal(0, 3, 4)),
            "fixed": running_case(nn.BatchNorm(4), False, normal(2, 3, 5, 4)),
            "fixed_empty": running_case(nn.BatchNorm(4), False, normal(0, 3, 5, 4)),
            "instance": running_case(
                nn.InstanceNorm(4, affine=True, track_running_stats=True), True, normal(2, 3, 5, 4)
            ),
            "instance_fixed": running_case(nn.InstanceNorm(4, track_running_stats=True), False, normal(2, 3, 4)),
        }
    )


def test_normalizations_without_state():
    T = torch.nn.functional

    def over_last(layer, x):
        return T.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)

    def by_groups(layer, x):
        return last(T.group_norm(first(x), layer.num_groups, layer.weight, layer.bias, layer.eps))

    def by_instance(layer, x):
        return last(T.instance_norm(first(x), weight=layer.weight, bias=layer.bias, eps=layer.eps))

    root = lambda layer, x: T.rms_norm(x, layer.normalized_shape, layer.weight, layer.eps)
    check(
        {
            "layer": of_layer(nn.LayerNorm(5), over_last, 3 + normal(4, 5)),
            "layer_two": of_layer(nn.LayerNorm((3, 5), eps=1e-2, bias=False), over_last, normal(4, 3, 5)),
            "layer_plain": of_layer(nn.LayerNorm(5, elementwise_affine=False), over_last, normal(2, 3, 5)),
            "layer_empty": of_layer(nn.LayerNorm(5), over_last, normal(0, 5)),
            "rms": of_layer(nn.RMSNorm(5), root, normal(4, 5)),
            "rms_two": of_layer(nn.RMSNorm((3, 5), eps=1e-2, elementwise_affine=False), root, normal(4, 3, 5)),
            "group": of_layer(nn.GroupNorm(2, 6), by_groups, normal(2, 3, 4, 6)),
            "group_plain": of_layer(nn.GroupNorm(3, 6, affine=False, eps=1e-2), by_groups, normal(3, 6)),
            "instance": of_layer(nn.InstanceNorm(6), by_instance, normal(2, 7, 6)),
            "instance_affine": of_layer(nn.InstanceNorm(3, affine=True), by_instance, normal(2, 2, 3, 2, 3)),
        }
    )


# -- pooling and indices ---------------------------------------------------------------------------------------


def test_pooling():
    T = torch.nn.functional
    line, image, volume = normal(2, 11, 3), normal(2, 7, 8, 3), normal(1, 4, 5, 6, 2)
    cases = {
        "max1": (nn.MaxPool1d(3, 2, 1), partial(T.max_pool1d, kernel_size=3, stride=2, padding=1), line),
        "max2": (
            nn.MaxPool2d((3, 2), (2, 3), ceil_mode=True),
            partial(T.max_pool2d, kernel_size=(3, 2), stride=(2, 3), ceil_mode=True),
            image,
        ),
        "max3": (nn.MaxPool3d(2, 2, 1), partial(T.max_pool3d, kernel_size=2, stride=2, padding=1), volume),
        "avg1": (nn.AvgPool1d(3, 2, 1), partial(T.avg_pool1d, kernel_size=3, stride=2, padding=1), line),
        "avg2": (
            nn.AvgPool2d(3, 2, 1, ceil_mode=True),
            partial(T.avg_pool2d, kernel_size=3, stride=2, padding=1, ceil_mode=True),
            image,
        ),
        "avg2_within": (
            nn.AvgPool2d((3, 2), 2, 1, ceil_mode=True, count_include_pad=False),
            partial(T.avg_pool2d, kernel_size=(3, 2), stride=2, padding=1, ceil_mode=True, count_include_pad=False),
            image,
        ),
        "avg3": (nn.AvgPool3d((2, 3, 1)), partial(T.avg_pool3d, kernel_size=(2, 3, 1)), volume),
        "norm1": (
            nn.LPPool1d(4, 3, 2, ceil_mode=True),
            partial(T.lp_pool1d, norm_type=4, kernel_size=3, stride=2, ceil_mode=True),
            line,
        ),
        "norm2": (nn.LPPool2d(2.0, (2, 3)), partial(T.lp_pool2d, norm_type=2.0, kernel_size=(2, 3)), image),
        "norm3": (nn.LPPool3d(2, 2), partial(T.lp_pool3d, norm_type=2, kernel_size=2), volume),
        "mean1": (nn.AdaptiveAvgPool1d(4), partial(T.adaptive_avg_pool1d, output_size=4), line),
        "mean2": (nn.AdaptiveAvgPool2d((3, None)), partial(T.adaptive_avg_pool2d, output_size=(3, None)), image),
        "mean2_one": (nn.AdaptiveAvgPool2d(1), partial(T.adaptive_avg_pool2d, output_size=1), image),
        "mean3": (nn.AdaptiveAvgPool3d(2), partial(T.adaptive_avg_pool3d, output_size=2), volume),
        "top1": (nn.AdaptiveMaxPool1d(11), partial(T.adaptive_max_pool1d, output_size=11), line),
        "top2": (nn.AdaptiveMaxPool2d((3, 4)), partial(T.adaptive_max_pool2d, output_size=(3, 4)), image),
        "top3": (nn.AdaptiveMaxPool3d((2, 5, 3)), partial(T.adaptive_max_pool3d, output_size=(2, 5, 3)), volume),
        "empty": (nn.MaxPool2d(2), partial(T.max_pool2d, kernel_size=2), image[:0]),
    }
    check({name: of_function(ours, by_channel(theirs), x) for name, (ours, theirs, x) in cases.items()})


def test_shapes_and_resizing():
    T = torch.nn.functional
    line, image, volume = normal(2, 5, 3), normal(2, 4, 6, 8), normal(1, 2, 3, 4, 2)

    def resized(mode, x, **options):
        layer = nn.Upsample(mode=mode, **options)
        if mode == "nearest":
            options.pop("align_corners", None)
        return of_function(layer, by_channel(partial(T.interpolate, mode=mode, **options)), x)

    check(
        {
            "shuffle": of_function(nn.PixelShuffle(2), by_channel(partial(T.pixel_shuffle, upscale_factor=2)), image),
            "unshuffle": of_function(
                nn.PixelUnshuffle(2), by_channel(partial(T.pixel_unshuffle, downscale_factor=2)), image
            ),
            "flatten": of_function(nn.Flatten(), torch.nn.Flatten(), image),
            "flatten_some": of_function(nn.Flatten(1, -2), torch.nn.Flatten(1, -2), image),
            "nearest1": resized("nearest", line, size=12),
            "nearest2": resized("nearest", image, scale_factor=(2.0, 0.7)),
            "nearest3": resized("nearest", volume, scale_factor=2),
            "linear": resized("linear", line, scale_factor=2.3),
            "bilinear": resized("bilinear", image, size=(7, 3)),
            "bilinear_corners": resized("bilinear", image, scale_factor=2, align_corners=True),
            "trilinear": resized("trilinear", volume, size=(3, 3, 9)),
            "bicubic": resized("bicubic", image, scale_factor=(2, 3)),
            "bicubic_corners": resized("bicubic", image, size=(3, 11), align_corners=True),
        }
    )


# -- weights that are computed ---------------------------------------------------------------------------------


def test_weight_norm_and_spectral_norm():
    T, func = torch.nn.functional, torch.func
    normed = nn.WeightNorm(nn.Linear(4, 3, key=KEY))
    one = nn.WeightNorm(nn.Conv1d(4, 3, 2, key=KEY), dim=None)

    def weight_normed(layer, x):
        weight = torch._weight_norm(layer.layer.weight.T, layer.scale.T, 0)
        return T.linear(x, weight, layer.layer.bias)

    def weight_normed_as_one(layer, x):
        v = layer.layer.weight
        weight = v * layer.scale / torch.linalg.vector_norm(v)
        return last(torch.conv1d(first(x), weight.permute(2, 1, 0), layer.layer.bias))

    spectral = torch.nn.utils.parametrizations.spectral_norm
    module = spectral(torch.nn.Conv2d(3, 4, 2), n_power_iterations=2)

    def spectral_normed(train):
        def theirs(layer, state, x):
            # PyTorch orders the columns of the matrix by channels first.
            weight, u = layer.layer.weight.permute(3, 2, 0, 1), state.u.clone()
            v = state.v.reshape(2, 2, 3).permute(2, 0, 1).reshape(-1).contiguous()
            place = "parametrizations.weight"
            names = {f"{place}.original": weight, "bias": layer.layer.bias, f"{place}.0._u": u, f"{place}.0._v": v}
            module.train(train)
            y = last(func.functional_call(module, names, (first(x),)))
            return y, type(state)(u, v.reshape(3, 2, 2).permute(1, 2, 0).reshape(-1))

        return theirs

    layer = nn.SpectralNorm(nn.Conv2d(3, 4, 2, key=KEY), n_power_iterations=2)
    unit = lambda *shape: (lambda v: v / np.linalg.norm(v))(normal(*shape))
    state = nn.SpectralNormState(unit(4), unit(12))
    images = normal(2, 4, 5, 3)
    call = lambda train: lambda layer, state, x: layer(x, state, train=train)
    check(
        {
            "weight": of_layer(normed, weight_normed, normal(5, 4)),
            "weight_one": of_layer(one, weight_normed_as_one, normal(2, 5, 4)),
            "spectral": Case(call(True), spectral_normed(True), layer, (images,), state),
            "spectral_fixed": Case(call(False), spectral_normed(False), layer, (images,), state),
        }
    )


# -- shapes ----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    sizes=st.tuples(*[st.integers(1, 12)] * 2),
    kernel=st.tuples(*[st.integers(1, 4)] * 2),
    stride=st.tuples(*[st.integers(1, 4)] * 2),
    padding=st.tuples(*[st.integers(0, 2)] * 2),
    dilation=st.tuples(*[st.integers(1, 3)] * 2),
    ceil_mode=st.booleans(),
)
def test_shapes_for_any_geometry(sizes, kernel, stride, padding, dilation, ceil_mode):
    """Traced, not compiled, against PyTorch's shapes on the meta device; cases that it refuses are left out."""
    T = torch.nn.functional
    padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
    output_padding = tuple(max(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    windows = {"stride": stride, "padding": padding}
    pooled = {"kernel_size": kernel, "ceil_mode": ceil_mode}
    convolved, transposed = {**windows, "dilation": dilation}, {**windows, "dilation": dilation}
    transposed["output_padding"] = output_padding
    scale = 0.7 * kernel[0]
    x, w = (torch.empty(1, 1, *shape, device="meta") for shape in (sizes, kernel))
    weight = np.ones((*kernel, 1, 1), "float32")
    pairs = [
        (lambda x: F.max_pool(x, kernel, stride, padding, ceil_mode), partial(T.max_pool2d, **pooled, **windows)),
        (lambda x: F.avg_pool(x, kernel, stride, padding, ceil_mode), partial(T.avg_pool2d, **pooled, **windows)),
        (lambda x: F.lp_pool(x, 2, kernel, stride, ceil_mode), lambda x: T.lp_pool2d(x, 2, stride=stride, **pooled)),
        (lambda x: F.conv2d(x, weight, **convolved), lambda x: T.conv2d(x, w, **convolved)),
        (lambda x: F.conv_transpose2d(x, weight, **transposed), lambda x: T.conv_transpose2d(x, w, **transposed)),
        (lambda x: F.interpolate(x, scale_factor=scale), lambda x: T.interpolate(x, scale_factor=scale)),
    ]
    for ours, theirs in pairs:
        try:
            expected = last(theirs(x)).shape
        except RuntimeError:
            continue
        assert tvmfun.eval_shape(ours, tvmfun.ShapeDtype((1, *sizes, 1), "float32")).shape == expected


def test_the_nearest_for_any_sizes():
    """The indices are rounded as in PyTorch, which computes them in float32."""
    for n in (1, 3, 7, 10):
        x = np.arange(n, dtype="float32").reshape(1, n, 1)
        wanted = [*range(1, 24), 41]
        ours = tvmfun.jit(lambda x, wanted=wanted: [F.interpolate(x, m) for m in wanted])(x)
        for m, y in zip(wanted, ours, strict=True):
            expected = torch.nn.functional.interpolate(first(torch.tensor(x)), m)
            np.testing.assert_array_equal(y, last(expected))


# -- whole models ----------------------------------------------------------------------------------------------


def test_a_residual_network():
    """Training and then the folded network, with the state that training left."""
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False, key=KEY), nn.BatchNorm(4), F.relu)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, key=KEY),
        nn.BatchNorm(4),
        F.silu,
        nn.Residual(block, nn.Conv2d(4, 4, 1, key=KEY)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2, key=KEY),
    )
    parts = torch.nn

    def theirs(params, state, x):
        T = parts.functional
        state = list(state)

        def conv(layer, x, padding):
            return torch.conv2d(x, layer.weight.permute(3, 2, 0, 1), layer.bias, padding=padding)

        def norm(layer, x, old):
            mean, var = (statistic.clone() for statistic in old)
            return T.batch_norm(x, mean, var, layer.weight, layer.bias, True), type(old)(mean, var)

        stem, first_norm, _, residual, *_, head = params.layers
        y, state[1] = norm(first_norm, conv(stem, first(x), 1), state[1])
        y = T.silu(y)
        inner = list(state[3]["layer"])
        z, inner[1] = norm(residual.layer.layers[1], conv(residual.layer.layers[0], y, 1), inner[1])
        y = conv(residual.shortcut, y, 0) + T.relu(z)
        state[3] = {"layer": tuple(inner)}
        return T.linear(y.mean((2, 3)), head.weight.T, head.bias), tuple(state)

    ours = lambda model, state, x: model(x, state)
    check({"network": Case(ours, theirs, model, (normal(3, 5, 4, 3),), nn.init_state(model))})
