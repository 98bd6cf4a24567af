"""Random orders and choices of elements."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np

from tvmfun import dtypes, lax
from tvmfun import numpy as tnp
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray
from tvmfun.core.dims import Dim
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.random.continuous import gumbel
from tvmfun.random.keys import check_key, split
from tvmfun.random.parameters import common_shape, floats
from tvmfun.random.uniforms import bits, randint, uniform
from tvmfun.typing import ArrayLike, Key


def permutation(key: Key, x: ArrayLike, axis: int = 0, independent: bool = False) -> Array:
    """Returns the slices of ``x`` along an axis in random order.

    Args:
        key: the key.
        x: an array, or an integer that stands for ``arange`` of it.
        axis: the axis.
        independent: whether each vector along the axis gets an order of its own.

    Raises:
        ShapeError: if there is no such axis.

    >>> from tvmfun import random
    >>> permutation(random.key(0), 4).shape
    (4,)
    """
    key = check_key("permutation", key)
    is_number = isinstance(x, int | np.integer | Dim)
    array = tnp.arange(x) if is_number else tnp.asarray(x)
    if isinstance(array, DeviceArray) and not array.ndim and dtypes.is_integer(array.dtype):
        array = tnp.arange(int(array))
    if not array.ndim:
        raise ShapeError("permutation", "there must be an axis to permute", got=repr(array.aval))
    if not -array.ndim <= axis < array.ndim:
        raise ShapeError("permutation", f"there is no axis {axis}", got=repr(array.aval))
    size = array.size if independent else array.shape[axis]
    if dims.always_le(size, 1):
        return array
    state, rounds = array, _ROUNDS
    if not independent:  # the order of the slices; that of a single one is what it is
        key, subkey = split(key)
        state, rounds = tnp.argsort(bits(subkey, (size,))), _ROUNDS[1:]
    along = axis if independent else 0

    def shuffled(state: Array, subkey: Array) -> Array:
        return tnp.take_along_axis(state, tnp.argsort(bits(subkey, state.shape), axis=along), along)

    for least in rounds:
        if dims.always_le(size, least - 1):
            break
        key, subkey = split(key)
        if dims.always_le(least, size):
            state = shuffled(state, subkey)
        else:  # the number of rounds depends on the call
            state = lax.cond(tnp.asarray(size) >= least, shuffled, lambda state, subkey: state, state, subkey)
    return state if independent else tnp.take(array, state, axis)


def _rounds(size: int) -> int:
    """The number of sorts by random 32-bit keys that make ties, which would keep the order, unlikely to matter."""
    return math.ceil(3 * math.log(max(1, size)) / math.log(np.iinfo(np.uint32).max))


# The least size with 1, 2 and 3 rounds.
_ROUNDS = [bisect_left(range(2**31), count, key=_rounds) for count in (1, 2, 3)]


def choice(
    key: Key,
    a: ArrayLike,
    shape: Shape = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Array:
    """Returns random elements, or slices along an axis, of an array.

    Args:
        key: the key.
        a: an array, or an integer that stands for ``arange`` of it.
        shape: the shape of the draws, which replaces the axis.
        replace: whether one may be drawn more than once.
        p: the probabilities of the slices, a vector that need not be normalized; by default they are equal.
        axis: the axis.
        mode: of the :func:`gumbel` numbers that draw with probabilities and without replacement.

    Raises:
        ArgumentError: if more are drawn than there are.
        ShapeError: if there is no such axis, or not one probability for each slice.

    >>> from tvmfun import random
    >>> choice(random.key(0), 5, (3,), replace=False).shape
    (3,)
    """
    key = check_key("choice", key)
    sizes = as_shape("choice", shape)
    count = math.prod(sizes)
    array = None if isinstance(a, int | np.integer | Dim) else tnp.asarray(a)
    if array is not None and not array.ndim:
        if not isinstance(array, DeviceArray) or not dtypes.is_integer(array.dtype):
            raise ShapeError("choice", "there must be an axis to choose from", got=repr(array.aval))
        a, array = int(array), None
    if array is not None and not -array.ndim <= axis < array.ndim:
        raise ShapeError("choice", f"there is no axis {axis}", got=repr(array.aval))
    axis = axis % array.ndim if array is not None else 0
    size: Any = a if isinstance(a, Dim) else int(a) if array is None else array.shape[axis]
    if not count:
        return tnp.zeros(sizes, "int32" if array is None else array.dtype)
    if size < 1:
        raise ArgumentError("choice", "there must be something to choose from", got=f"{size} elements")
    if not replace and count > size:
        raise ArgumentError("choice", "without replacement there are not enough", got=f"{count} of {size}")
    if p is None and not replace:
        drawn = permutation(key, size if array is None else array, axis)
        drawn = drawn[(slice(None),) * axis + (slice(count),)]
    else:
        if p is None:
            indices = randint(key, sizes, 0, size)
        else:
            indices = _with_probabilities(key, sizes, size, floats("choice", p), replace, mode)
        drawn = indices if array is None else tnp.take(array, tnp.ravel(indices), axis)
    if array is None:
        return tnp.reshape(drawn, sizes)
    return tnp.reshape(drawn, (*array.shape[:axis], *sizes, *array.shape[axis + 1 :]))


def _with_probabilities(key: Array, shape: tuple, size: int, p: Array, replace: bool, mode: str | None) -> Array:
    if p.shape != (size,):
        raise ShapeError("choice", f"p must be a vector of {size} probabilities", got=repr(p.aval))
    if not replace:
        return lax.top_k(gumbel(key, (size,), p.dtype, mode) + tnp.log(p), math.prod(shape))[1]
    sums = tnp.cumsum(p)
    return tnp.astype(tnp.searchsorted(sums, sums[-1] * (1 - uniform(key, shape, p.dtype))), "int32")


def categorical(
    key: Key,
    logits: ArrayLike,
    axis: int = -1,
    shape: Shape | None = None,
    replace: bool = True,
    mode: str | None = None,
) -> Array:
    r"""Returns indices :math:`i` with probabilities proportional to :math:`e^{\text{logits}_i}`.

    Args:
        key: the key.
        logits: logarithms of probabilities that need not be normalized.
        axis: the axis of the categories.
        shape: of the result: that of ``logits`` without the axis, the default, after any more axes of samples.
        replace: whether the samples along these may repeat a category.
        mode: of the :func:`gumbel` numbers.

    Raises:
        ArgumentError: if more are drawn without replacement than there are categories.
        ShapeError: if the shape does not fit, or there is no such axis.

    Source: the Gumbel-max trick; without replacement, Kool et al., "Stochastic beams and where to find them" (2019).

    >>> from tvmfun import random
    >>> int(categorical(random.key(0), tnp.asarray([0.0, 100.0])))
    1
    """
    key = check_key("categorical", key)
    logits = floats("categorical", logits)
    if not -logits.ndim <= axis < logits.ndim:
        raise ShapeError("categorical", f"there is no axis {axis}", got=repr(logits.aval))
    axis %= logits.ndim
    batch = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    sizes = common_shape("categorical", shape, batch)
    more = len(sizes) - len(batch)
    if replace:
        inner = (*sizes[more : more + axis], logits.shape[axis], *sizes[more + axis :])
        noise = gumbel(key, (*sizes[:more], *inner), logits.dtype, mode)
        return tnp.argmax(noise + logits, axis=more + axis)
    count = math.prod(sizes[:more])
    if count > logits.shape[axis]:
        got = f"{count} of {logits.shape[axis]}"
        raise ArgumentError("categorical", "without replacement there are not enough categories", got=got)
    noisy = logits + gumbel(key, logits.shape, logits.dtype, mode)
    indices = lax.top_k(tnp.moveaxis(noisy, axis, -1), count)[1]
    return tnp.reshape(tnp.moveaxis(indices, -1, 0), sizes)
