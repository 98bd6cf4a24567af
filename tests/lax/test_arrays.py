"""Constants, shapes, slices and padding against JAX."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from support.agreement import agree

from tvmfun import lax
from tvmfun.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 1, 4))
Y = RNG.normal(size=(5, 6))


def test_constants():
    agree(
        lambda lax, x: [
            lax.full((2, 3), 1.5, "float32"),
            lax.full((), 7, "int32"),
            lax.full_like(x, 2),
            lax.full_like(x, 2, "int32", (2,)),
            lax.iota("float32", 4),
            lax.broadcasted_iota("int32", (2, 3, 2), 1),
        ],
        X,
        derivatives=False,
    )


SHAPED = {
    "reshape": lambda lax, x: lax.reshape(x, (4, 3)),
    "reshape of a permutation": lambda lax, x: lax.reshape(x, (4, 3), (2, 0, 1)),
    "collapse": lambda lax, x: [lax.collapse(x, 0, 2), lax.collapse(x, 1), lax.collapse(x, 1, -1), lax.collapse(x, 0)],
    "squeeze": lambda lax, x: lax.squeeze(x, (1,)),
    "expand_dims": lambda lax, x: lax.expand_dims(x, (0, 2, -1)),
    "transpose": lambda lax, x: lax.transpose(x, (2, 0, 1)),
    "broadcast": lambda lax, x: lax.broadcast(x, (2, 3)),
    "broadcast_in_dim": lambda lax, x: lax.broadcast_in_dim(x, (2, 3, 5, 4), (1, 2, 3)),
    "rev": lambda lax, x: lax.rev(x, (0, 2)),
    "concatenate": lambda lax, x: lax.concatenate([x, x * 2, x], 1),
    "split": lambda lax, x: lax.split(x, (1, 0, 3), 2),
    "tile": lambda lax, x: lax.tile(x, (2, 1, 3)),
}


@pytest.mark.quick("broadcast_in_dim", "squeeze", "concatenate", "rev")
@pytest.mark.parametrize("call", SHAPED.values(), ids=SHAPED)
def test_shapes(call):
    agree(call, X)


SLICED = {
    "slice": lambda lax, x: [lax.slice(x, (1, 2), (4, 5)), lax.slice(x, (0, 1), (5, 6), (2, 3))],
    "slice_in_dim": lambda lax, x: [
        *(lax.slice_in_dim(x, *bounds) for bounds in ((1, 4), (None, -1), (-3, None), (1, 5, 2))),
        lax.slice_in_dim(x, 1, 3, axis=1),
        lax.slice_in_dim(x, 3, 3, axis=-1),
    ],
    "index_in_dim": lambda lax, x: [lax.index_in_dim(x, 2), lax.index_in_dim(x, -1, 1, keepdims=False)],
    "pad": lambda lax, x: lax.pad(x, 0.5, ((1, 2, 0), (0, -1, 2))),
    "pad and crop": lambda lax, x: lax.pad(x, 0.5, ((-1, 2, 1), (-2, -1, 0))),
}


@pytest.mark.parametrize("call", SLICED.values(), ids=SLICED)
def test_slices(call):
    agree(call, Y)


def test_padding_value_has_a_derivative():
    agree(lambda lax, x, v: lax.pad(x, v, ((1, 2, 1), (0, -1, 2))), Y, np.asarray(0.5))


CROPS = [(-2, 2), (2, -2), (-4, 7), (7, -4), (-3, 3)]


@pytest.mark.quick("4-0-(-3, 3)", "4-1-(-2, 2)")
@pytest.mark.parametrize(("size", "interior", "sides"), list(product((1, 2, 4), (0, 1), CROPS)), ids=str)
def test_cropping_beyond_the_array(size, interior, sides):
    agree(lambda lax, x, v: lax.pad(x, v, ((*sides, interior),)), np.arange(1.0, size + 1), np.asarray(0.5))
    agree(lambda lax, x, v: lax.pad(x, v, ((*sides, 0), (0, 0, 1))), np.ones((size, 0)), np.asarray(0.5))


def test_padding_of_an_array_without_elements():
    agree(lambda lax, x, v: lax.pad(x, v, ((-1, 3, 1), (0, 1, 2))), np.ones((0, 3)), np.asarray(0.5))


def test_broadcast_shapes():
    assert lax.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    with pytest.raises(ShapeError, match=r"^\[broadcast_shapes\] "):
        lax.broadcast_shapes((2,), (3,))


@pytest.mark.parametrize(
    ("error", "name", "call"),
    [
        (ShapeError, "slice", lambda: lax.slice(Y, (0,), (1,))),
        (ShapeError, "slice", lambda: lax.slice(Y, (0, 0), (6, 1))),
        (ArgumentError, "slice_in_dim", lambda: lax.slice_in_dim(Y, 0, 3, -1)),
        (ArgumentError, "index_in_dim", lambda: lax.index_in_dim(Y, 5)),
        (ShapeError, "pad", lambda: lax.pad(Y, 0.0, ((1, 1, 0),))),
        (ShapeError, "split", lambda: lax.split(Y, (2, 2))),
        (ArgumentError, "broadcast_in_dim", lambda: lax.broadcast_in_dim(Y, (5, 6), (1, 0))),
    ],
)
def test_errors(error, name, call):
    with pytest.raises(error, match=rf"^\[{name}\] "):
        call()
