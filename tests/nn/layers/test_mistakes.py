"""Mistakes with layers, and what their constructors allow."""

import pickle
from dataclasses import FrozenInstanceError, dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.layers import normal

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.errors import ArgumentError, DtypeError, ImmutableError, ShapeError, TvmfunError
from tvmfun.nn import functional as F

KEY = random.key(0)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.max_pool(np.ones((1, 3, 3, 1)), 4), r"\[max_pool\] a window of 4 must fit into each axis"),
        (
            lambda: F.conv1d(np.ones((1, 3, 1)), np.ones((2, 1, 1)), dilation=3),
            r"\[conv1d\] a window of 4 must",
        ),
        (
            lambda: nn.GRU(4, 4, key=KEY)(np.ones((2, 5, 4), "float32"), seq_lengths=np.array([9, -2])),
            r"\[GRU\] seq_lengths must be from 0 to 5, got \[9, -2\]",
        ),
        (
            lambda: nn.MultiHeadAttention(4, 2, key=KEY)(*[np.ones((1, 3, 4))], key=np.ones((1, 3, 4))),
            r"\[MultiHeadAttention\] the input of the keys is called context, .*Try context=",
        ),
        (lambda: nn.Dropout(0.0)(np.ones(3), key="abc"), r"\[Dropout\] the key is neither an array nor a number"),
        (lambda: random.normal((3,), KEY), r"\[normal\] the key is neither .* Try tvmfun\.random\.key\(seed\)"),
        (
            lambda: nn.losses.cross_entropy(np.ones((2, 5, 4)), np.ones((2, 4), int)),
            r"\[cross_entropy\] .*Try tvmfun\.numpy\.moveaxis\(scores, 1, -1\)",
        ),
        (
            lambda: nn.losses.cross_entropy((tnp.ones((8, 4)), tnp.ones((2, 4))), np.ones(8, int)),
            r"\[cross_entropy\] all arrays in a sequence .*Try one of them, if they are the results of a function",
        ),
        (lambda: tvmfun.amp("bfloat16")(len), r"\[amp\] the first argument must be a function"),
        (lambda: tvmfun.jit(lambda n: [*range(n)])(3), r"Try static_argnums; tvmfun\.lax\.fori_loop for range\(n\)"),
    ],
)
def test_what_newcomers_from_pytorch_write(call, message):
    with pytest.raises(TvmfunError, match=message):
        call()
