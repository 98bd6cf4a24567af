"""Layers, their functions and losses against jax and NumPy."""

import math
import pickle
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.nn import functional as F
from tvmfun.nn import losses

DTYPES = ["float32", "float64"]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def _normal(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _check(ours, oracle, *args):
    """Compares the results and all gradients of two functions of float arrays, jitted."""
    dtype = args[0].dtype
    with x64(dtype == "float64"):
        expected, pull = jax.vjp(jax.jit(oracle), *args)
        weights = _normal(*expected.shape, dtype=dtype, seed=9)
        expected_grads = pull(weights)

    def weighted(*args):
        out = ours(*args)
        return tnp.sum(out * weights), out

    places = tuple(range(len(args)))
    (_, actual), grads = tvmfun.jit(tvmfun.value_and_grad(weighted, places, has_aux=True))(*args)
    for result, reference in zip((actual, *grads), (expected, *expected_grads), strict=True):
        result, reference = np.asarray(result), np.asarray(reference)
        assert result.dtype == reference.dtype and result.shape == reference.shape
        scale = max(1.0, np.abs(reference).max(initial=0))
        np.testing.assert_allclose(result, reference, rtol=0, atol=TOLERANCE[str(dtype)] * scale)


# -- activations ---------------------------------------------------------------------------------------------


@pytest.mark.quick("softmax-softmax-float32", "relu-relu-float32", "<lambda>-<lambda>3-float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("ours", "oracle"),
    [
        (F.relu, jax.nn.relu),
        (F.sigmoid, jax.nn.sigmoid),
        (F.tanh, jnp.tanh),
        (F.gelu, jax.nn.gelu),
        (lambda x: F.gelu(x, approximate=False), lambda x: jax.nn.gelu(x, approximate=False)),
        (F.softmax, jax.nn.softmax),
        (lambda x: F.softmax(x, axis=0), lambda x: jax.nn.softmax(x, axis=0)),
        (F.log_softmax, jax.nn.log_softmax),
        (lambda x: F.log_softmax(x, axis=1), lambda x: jax.nn.log_softmax(x, axis=1)),
        (F.logsumexp, jax.nn.logsumexp),
        (lambda x: F.logsumexp(x, axis=(0, -1)), lambda x: jax.nn.logsumexp(x, axis=(0, -1))),
        (
            lambda x: F.logsumexp(x, axis=1, keepdims=True),
            lambda x: jax.nn.logsumexp(x, axis=1, keepdims=True),
        ),
    ],
)
def test_activations(ours, oracle, dtype):
    x = 3 * _normal(2, 3, 5, dtype=dtype)
    _check(ours, oracle, x)


def test_softmax_does_not_overflow():
    x = np.asarray([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], "float32")
    np.testing.assert_allclose(F.softmax(x), jax.nn.softmax(x), rtol=1e-6)
    np.testing.assert_allclose(F.log_softmax(x), jax.nn.log_softmax(x), rtol=1e-6)
    np.testing.assert_allclose(F.logsumexp(x, axis=-1), jax.nn.logsumexp(x, axis=-1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_sums_of_many_halves_are_finite(dtype, compiled):
    x = (np.arange(70000) % 7 / 8).astype(tvmfun.dtypes.canonical(dtype))
    functions = {
        "softmax": lambda n, x: n.softmax(x),
        "log_softmax": lambda n, x: n.log_softmax(x),
        "logsumexp": lambda n, x: n.logsumexp(x),
        "logsumexp with factors": lambda n, x: n.logsumexp(x, b=2 * n.ones_like(x)),
        "masked": lambda n, x: n.log_softmax(x, where=x < 0.5),
        "gradient": lambda n, x: n.grad(lambda x: n.logsumexp(x))(x),
    }
    for name, function in functions.items():
        ours = SimpleNamespace(**vars(F), ones_like=tnp.ones_like, grad=tvmfun.grad)
        call = partial(function, ours)
        with x64(True):
            theirs = SimpleNamespace(**vars(jax.nn), ones_like=jnp.ones_like, grad=jax.grad)
            wanted = np.asarray(function(theirs, jnp.asarray(x.astype("float64"))))
        got = (tvmfun.jit(call) if compiled else call)(x)
        assert got.dtype == x.dtype
        rtol, atol = 2 * float(tnp.finfo(dtype).eps), float(tnp.finfo(dtype).smallest_subnormal)
        np.testing.assert_allclose(np.asarray(got).astype("float64"), wanted, rtol, atol, err_msg=name)


def test_logsumexp_of_infinities():
    x = np.asarray([[-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 1.0]], "float32")
    np.testing.assert_array_equal(F.logsumexp(x, axis=-1), [-np.inf, np.inf, 1.0])


def test_one_hot():
    labels = np.asarray([[0, 2], [-1, 3]])
    np.testing.assert_array_equal(F.one_hot(labels, 3), jax.nn.one_hot(labels, 3))
    assert F.one_hot(labels, 3, dtype="int32").dtype == "int32"
    with pytest.raises(DtypeError, match=r"\[one_hot\] the labels must be integers, got float32"):
        F.one_hot(np.ones(2, "float32"), 3)


# -- linear maps ---------------------------------------------------------------------------------------------


@pytest.mark.quick("2x3-float32", "()-float64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_linear(lead, dtype):
    x, w, b = _normal(*lead, 5, dtype=dtype), _normal(5, 6, dtype=dtype), _normal(6, dtype=dtype)
    _check(F.linear, lambda x, w, b: x @ w + b, x, w, b)
    _check(F.linear, lambda x, w: x @ w, x, w)


def _jax_conv(stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    def conv(x, w, b):
        y = jax.lax.conv_general_dilated(
            x,
            w,
            stride,
            padding,
            rhs_dilation=dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
        return y + b

    return conv


CONVOLUTIONS = {
    "plain": ({}, {}),
    "stride": ({"stride": 2}, {"stride": (2, 2)}),
    "stride_padding": ({"stride": (2, 3), "padding": 1}, {"stride": (2, 3), "padding": ((1, 1), (1, 1))}),
    "padding_pair": ({"padding": (2, 1)}, {"padding": ((2, 2), (1, 1))}),
    "padding_sides": ({"padding": ((2, 0), (0, 1))}, {"padding": ((2, 0), (0, 1))}),
    "same": ({"stride": 2, "padding": "SAME"}, {"stride": (2, 2), "padding": "SAME"}),
    "same_dilation": ({"padding": "SAME", "dilation": 2}, {"padding": "SAME", "dilation": (2, 2)}),
    "valid_dilation": ({"padding": "VALID", "dilation": (1, 2)}, {"dilation": (1, 2)}),
    "groups": ({"groups": 2, "padding": 1}, {"groups": 2, "padding": ((1, 1), (1, 1))}),
    "depthwise": ({"groups": 4, "stride": 2}, {"groups": 4, "stride": (2, 2)}),
}


@pytest.mark.quick("groups-float64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(name, dtype):
    ours, oracle = CONVOLUTIONS[name]
    channels = 4 // ours.get("groups", 1)
    x, w, b = (
        _normal(2, 9, 8, 4, dtype=dtype),
        _normal(3, 2, channels, 8, dtype=dtype),
        _normal(8, dtype=dtype),
    )
    _check(lambda x, w, b: F.conv2d(x, w, b, **ours), _jax_conv(**oracle), x, w, b)


@pytest.mark.slow
@settings(max_examples=5)
@given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    groups=st.sampled_from([1, 2]),
)
def test_conv2d_with_any_geometry(size, kernel, stride, dilation, padding, groups):
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, w, b = _normal(1, *size, 2), _normal(*kernel, 2 // groups, 2), _normal(2)
    _check(lambda x, w, b: F.conv2d(x, w, b, **options), _jax_conv(**options), x, w, b)


@pytest.mark.quick("options1-3x2-2x2-padding1-float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("options", "window", "stride", "padding"),
    [
        ({"window": 2}, (2, 2), (2, 2), ((0, 0), (0, 0))),
        ({"window": (3, 2), "stride": 2, "padding": 1}, (3, 2), (2, 2), ((1, 1), (1, 1))),
        ({"window": 3, "stride": 1, "padding": "SAME"}, (3, 3), (1, 1), "SAME"),
    ],
)
def test_pooling(options, window, stride, padding, dtype):
    x = _normal(2, 7, 8, 3, dtype=dtype)
    if padding != "SAME":
        padding = ((0, 0), *padding, (0, 0))

    def pool(init, combine):
        return lambda x: jax.lax.reduce_window(x, init, combine, (1, *window, 1), (1, *stride, 1), padding)

    _check(lambda x: F.max_pool(x, **options), pool(-np.inf, jax.lax.max), x)
    _check(lambda x: F.avg_pool(x, **options), lambda x: pool(0.0, jax.lax.add)(x) / math.prod(window), x)


@pytest.mark.slow
def test_eager_calls_equal_jitted_ones():
    x, w, b = _normal(1, 6, 6, 2), _normal(3, 3, 2, 4), _normal(4)

    def run(x, w, b):
        h = F.max_pool(F.relu(F.conv2d(x, w, b, padding=1)), 2)
        return losses.cross_entropy(h.reshape(9, 4), np.arange(9) % 4)

    np.testing.assert_allclose(run(x, w, b), tvmfun.jit(run)(x, w, b), rtol=1e-6)


# -- layers --------------------------------------------------------------------------------------------------


@pytest.mark.quick("<lambda>-5x3x4x40-60")
@pytest.mark.parametrize(
    ("make", "shape", "fan_in"),
    [
        (lambda key, **o: nn.Linear(50, 40, key=key, **o), (50, 40), 50),
        (lambda key, **o: nn.Conv2d(8, 40, (5, 3), groups=2, key=key, **o), (5, 3, 4, 40), 60),
    ],
)
def test_parameters_begin_uniform(make, shape, fan_in):
    layer = make(random.key(0))
    assert layer.weight.shape == shape and layer.bias.shape == (40,)
    for parameter in (layer.weight, layer.bias):
        values = np.asarray(parameter) * fan_in**0.5
        assert values.dtype == "float32" and -1 <= values.min() < -0.8 and 0.8 < values.max() <= 1
    assert abs(np.asarray(layer.weight).std() * (3 * fan_in) ** 0.5 - 1) < 0.05
    again, other = make(random.key(0)), make(random.key(1))
    np.testing.assert_array_equal(layer.weight, again.weight)
    assert not np.array_equal(layer.weight, other.weight)
    assert make(random.key(0), bias=False).bias is None
    assert make(random.key(0), dtype="float64").weight.dtype == "float64"


def test_layers_are_trees():
    layer = nn.Conv2d(2, 4, 3, stride=2, padding=[[1, 1], [0, 1]], groups=2, key=random.key(0))
    doubled = tree.map(lambda leaf: 2 * leaf, layer)
    assert (doubled.stride, doubled.padding, doubled.groups) == ((2, 2), ((1, 1), (0, 1)), 2)
    np.testing.assert_array_equal(doubled.weight, 2 * np.asarray(layer.weight))
    x = _normal(1, 6, 6, 2)
    np.testing.assert_allclose(doubled(x), 2 * np.asarray(layer(x)), rtol=1e-5, atol=1e-6)
    assert len(tree.leaves(nn.Linear(2, 3, bias=False, key=random.key(0)))) == 1
    assert tree.leaves(nn.Dropout(0.5)) == []
    assert tree.structure(nn.Dropout(0.5)) != tree.structure(nn.Dropout(0.25))


def test_layers_go_through_transforms():
    model = {"first": nn.Linear(4, 8, key=random.key(0)), "second": nn.Linear(8, 1, key=random.key(1))}
    x = _normal(5, 4)

    @tvmfun.jit
    def grads_of(model, x):
        return tvmfun.grad(lambda m: tnp.sum(m["second"](F.tanh(m["first"](x)))))(model)

    grads = grads_of(model, x)
    assert isinstance(grads["first"], nn.Linear) and tree.structure(grads) == tree.structure(model)
    np.testing.assert_allclose(grads["second"].bias, [5.0], rtol=1e-6)


def test_layers_cannot_be_changed():
    layer = nn.Linear(2, 3, key=random.key(0))
    with pytest.raises(AttributeError):
        layer.weight = None  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(layer)).weight, layer.weight)


def test_layers_can_be_made_inside_jit():
    weight = tvmfun.jit(lambda key: nn.Linear(3, 4, key=key))(random.key(5)).weight
    np.testing.assert_allclose(weight, nn.Linear(3, 4, key=random.key(5)).weight, rtol=1e-5)


# -- dropout -------------------------------------------------------------------------------------------------


def test_dropout_zeroes_and_scales():
    x = np.ones((100, 100), "float32")
    y = np.asarray(nn.Dropout(0.2)(x, key=random.key(0)))
    np.testing.assert_allclose(np.unique(y), [0, 1.25], rtol=1e-6)
    assert abs((y == 0).mean() - 0.2) < 0.02


def test_a_key_replays_its_mask():
    x, dropout = _normal(8, 8), nn.Dropout(0.5)
    first = np.asarray(dropout(x, key=random.key(3)))
    np.testing.assert_array_equal(first, tvmfun.jit(lambda x, k: dropout(x, key=k))(x, random.key(3)))
    assert not np.array_equal(first, dropout(x, key=random.key(4)))


def test_dropout_masks_its_gradient():
    x, key = _normal(6, 6), random.key(3)
    grad = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(F.dropout(key, x, 0.5))))(x)
    np.testing.assert_array_equal(grad, 2.0 * (np.asarray(F.dropout(key, x, 0.5)) != 0))
    zero = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(F.dropout(key, x, 1.0))))(x)
    assert not np.asarray(zero).any()


def test_dropout_needs_a_key_only_for_chance():
    x = _normal(3)
    np.testing.assert_array_equal(nn.Dropout(0.5)(x, train=False), x)
    np.testing.assert_array_equal(nn.Dropout(0.0)(x), x)
    np.testing.assert_array_equal(nn.Dropout(1.0)(x), np.zeros(3))
    with pytest.raises(ArgumentError, match=r"\[Dropout\] a key is needed .* Try key=random.key\(0\)"):
        nn.Dropout(0.5)(x)
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ArgumentError, match=r"\[Dropout\] the rate must be between 0 and 1"):
            nn.Dropout(rate)


# -- losses --------------------------------------------------------------------------------------------------


def _picked(log_probs, labels):
    return -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]


@pytest.mark.quick("4-mean-mean-float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "reduction", "reduce"),
    [((4,), "mean", jnp.mean), ((2, 3), "sum", jnp.sum), ((), "none", lambda x: x)],
)
def test_losses(shape, reduction, reduce, dtype):
    scores, targets = _normal(*shape, 5, dtype=dtype), _normal(*shape, 5, dtype=dtype, seed=1)
    labels = np.random.default_rng(0).integers(0, 5, shape)
    _check(
        lambda s: losses.nll_loss(s, labels, reduction),
        lambda s: reduce(_picked(s, jnp.asarray(labels))),
        scores,
    )
    _check(
        lambda s: losses.cross_entropy(s, labels, reduction),
        lambda s: reduce(_picked(jax.nn.log_softmax(s), jnp.asarray(labels))),
        scores,
    )
    _check(
        lambda p, t: losses.mse_loss(p, t, reduction),
        lambda p, t: reduce((p - t) ** 2),
        scores,
        targets,
    )


@pytest.mark.parametrize("label", [-1, 3, 255])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_label_that_is_no_class_makes_the_loss_nan(label, dtype):
    scores, labels = _normal(2, 3), np.asarray([1, label], dtype)
    loss = np.asarray(losses.nll_loss(scores, labels, "none"))
    np.testing.assert_array_equal(np.isnan(loss), [False, True])
    assert np.isnan(float(losses.cross_entropy(scores, labels)))
    grad = np.asarray(tvmfun.jit(tvmfun.grad(losses.cross_entropy))(scores, labels))
    assert grad[0].any() and not grad[1].any()


@pytest.mark.parametrize("classes", [3, 300])
def test_labels_may_be_bytes(classes):
    scores, labels = _normal(2, classes), np.asarray([2, 0], "uint8")
    loss = losses.nll_loss(scores, labels, "none")
    np.testing.assert_allclose(loss, [-scores[0, 2], -scores[1, 0]])
    np.testing.assert_array_equal(F.one_hot(labels, classes), np.eye(classes)[labels])


# -- mistakes ------------------------------------------------------------------------------------------------


def test_wrong_shapes_are_explained():
    x, key = _normal(2, 4, 4, 3), random.key(0)
    with pytest.raises(ShapeError, match=r"\[Linear\] .* got \(2, 3\) and \(4, 5\)"):
        nn.Linear(4, 5, key=key)(_normal(2, 3))
    with pytest.raises(ShapeError, match=r"\[linear\] the bias must have the shape \(5,\), got \(4,\)"):
        F.linear(_normal(2, 3), _normal(3, 5), _normal(4))
    with pytest.raises(ShapeError, match=r"\[Conv2d\] .*Try x.transpose\(0, 2, 3, 1\)"):
        nn.Conv2d(4, 8, 3, key=key)(x)
    with pytest.raises(ShapeError, match=r"\[Conv2d\] the images must be .* got \(4, 4, 3\)"):
        nn.Conv2d(3, 8, 3, key=key)(x[0])
    with pytest.raises(ShapeError, match=r"\[MaxPool2d\] the images must be .* got \(4, 4, 3\)"):
        nn.MaxPool2d(2)(x[0])
    with pytest.raises(ShapeError, match=r"\[max_pool\] the array must be .* got \(4, 3\)"):
        F.max_pool(x[0, 0], 2)
    with pytest.raises(ShapeError, match=r"\[nll_loss\] the labels must have the shape"):
        losses.nll_loss(_normal(2, 3), np.zeros((2, 1), "int32"))
    with pytest.raises(ShapeError, match=r"\[mse_loss\] .*got \(2, 1\) and \(2,\)"):
        losses.mse_loss(_normal(2, 1), _normal(2))


def test_wrong_arguments_are_explained():
    x, key = _normal(2, 4, 4, 3), random.key(0)
    with pytest.raises(DtypeError, match=r"\[cross_entropy\] the labels must be integers, got float32"):
        losses.cross_entropy(_normal(2, 3), _normal(2))
    with pytest.raises(DtypeError, match=r"\[nll_loss\] the scores of the classes must be floats"):
        losses.nll_loss(np.zeros((2, 3), "int32"), np.zeros(2, "int32"))
    with pytest.raises(ArgumentError, match=r"""got 'avg'. Try "mean", "sum" or "none"."""):
        losses.mse_loss(x, x, "avg")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"\[Linear\] out_features must be a positive integer, got 0"):
        nn.Linear(3, 0, key=key)
    with pytest.raises(DtypeError, match=r"\[Linear\] the dtype of the parameters must be a float, got int32"):
        nn.Linear(3, 4, key=key, dtype="int32")
    with pytest.raises(ArgumentError, match=r"\[Conv2d\] 2 groups must divide the channels, got 3 and 8"):
        nn.Conv2d(3, 8, 3, groups=2, key=key)
    with pytest.raises(ArgumentError, match=r"\[Conv2d\] the padding must be"):
        nn.Conv2d(3, 8, 3, padding="same", key=key)(x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"\[max_pool\] the stride must be one positive integer or two, got 0"):
        F.max_pool(x, 2, stride=0)
    with pytest.raises(ArgumentError, match=r"\[avg_pool\] the padding must be smaller than the window"):
        F.avg_pool(x, 2, padding=2)
