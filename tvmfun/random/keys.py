"""Keys, and the blocks of random bits that belong to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.lax.staging import compiled_for_all_shapes
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.ops.bits import threefry2x32
from tvmfun.typing import ArrayLike, Key

GENERATOR = "threefry2x32"


def key(seed: Any, *, impl: str | None = None) -> Array:
    """Returns the key of an integer seed: its high and low 32 bits.

    Args:
        seed: an integer of 32 or 64 bits. A Python integer has 32 bits if it fits, so that a negative one
            gives the same key whether it is traced or not.
        impl: the generator; there is one, ``"threefry2x32"``.

    Raises:
        ArgumentError: for a Python integer of more than 64 bits, or another generator.
        DtypeError: if the seed is not an integer.

    >>> key(42)
    Array([ 0, 42], dtype=uint32)
    """
    _check_generator("key", impl)
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**64:
            raise ArgumentError("key", "the seed must have at most 64 bits", got=str(seed))
        seed = np.uint64(seed % 2 ** (32 if -(2**31) <= seed < 2**31 else 64))
    aval = abstract(seed, "key")
    if not dtypes.is_integer(aval.dtype) or aval.shape:
        raise DtypeError("key", "the seed must be one integer", got=repr(aval))
    if isinstance(seed, Array):
        return _words(seed)
    number = int(seed) % 2 ** (64 if aval.dtype.itemsize == 8 else 32)
    return tnp.asarray(np.asarray([number >> 32, number & 0xFFFFFFFF], np.uint32))


def PRNGKey(seed: Any, *, impl: str | None = None) -> Array:
    """Returns the key of an integer seed, as :func:`key` does: here all keys are arrays ``uint32[2]``.

    >>> PRNGKey(42)
    Array([ 0, 42], dtype=uint32)
    """
    _check_generator("PRNGKey", impl)
    return key(seed)


def _check_generator(name: str, impl: Any) -> None:
    if impl is not None and impl != GENERATOR:
        raise ArgumentError(name, "there is one generator", got=repr(impl), hint=f"impl={GENERATOR!r}")


def _words(number: Array) -> Array:
    """An integer as a pair of 32-bit words, high word first; a narrower one has no high word."""
    high = tnp.zeros((), "uint32")
    if number.dtype.itemsize == 8:
        high = tnp.astype(tnp.bitwise_right_shift(tnp.astype(number, "uint64"), 32), "uint32")
    return tnp.stack([high, tnp.astype(number, "uint32")])


def check_key(name: str, key: Key) -> Array:
    """One key, as an array.

    Raises:
        ShapeError: in the name of the function ``name``, if it is not a key.
    """
    aval = abstract(key, name, "the key", "tvmfun.random.key(seed), which comes first")
    if aval.dtype != dtypes.uint32 or aval.shape != (2,):
        hint = "tvmfun.random.key(seed), or one row of split"
        raise ShapeError(name, "a key is uint32[2]", got=repr(aval), hint=hint)
    return tnp.asarray(key)


def blocks(key: Array, shape: tuple[int, ...], word: str) -> Array:
    """Words of the blocks of a key, or of each of many keys, whose axes come first."""
    return threefry2x32(key, np.zeros(2, np.uint32) if key.ndim == 1 else tnp.zeros_like(key), shape=shape, word=word)


def split(key: Key, num: Shape = 2) -> Array:
    """Returns new keys to unpack or index, ``uint32[num, 2]``; the old one should not be used again.

    >>> first, second = split(key(0))
    >>> first
    Array([1797259609, 2579123966], dtype=uint32)
    """
    key = check_key("split", key)
    return split_each(key, shape=as_shape("split", num))


@compiled_for_all_shapes()
def split_each(key: Array, *, shape: tuple[int, ...]) -> Array:
    """New keys of a key, or of each key in an array of keys."""
    return tnp.stack([blocks(key, shape, "first"), blocks(key, shape, "second")], axis=-1)


def fold_in(key: Key, data: ArrayLike) -> Array:
    """Returns a new key that depends on the key and an integer, such as a step number.

    Args:
        key: the key.
        data: the integer; of an array of 64 bits, the low 32.

    Raises:
        DtypeError: if it is not one integer.
        ArgumentError: if it is a Python number outside of ``0 <= data < 2**32``.
    """
    key = check_key("fold_in", key)
    if isinstance(data, int):
        if not 0 <= data < 2**32:
            # Its low bits would give the key of another number.
            raise ArgumentError("fold_in", "the data must be an unsigned 32-bit integer", got=repr(data))
        data = np.uint32(data)
    aval = abstract(data, "fold_in")
    if not dtypes.is_integer(aval.dtype) or aval.shape:
        raise DtypeError("fold_in", "the data must be one integer", got=repr(aval))
    low = tnp.astype(tnp.asarray(data), "uint32")
    counter = tnp.stack([tnp.zeros((), "uint32"), low])
    return tnp.stack([threefry2x32(key, counter, shape=(), word=word) for word in ("first", "second")])


def key_data(keys: Key) -> Array:
    """Returns the words of keys, which are these words: the array itself.

    >>> key_data(key(42))
    Array([ 0, 42], dtype=uint32)
    """
    return _check_keys("key_data", keys)


def wrap_key_data(key_bits_array: Key, *, impl: str | None = None) -> Array:
    """Returns the keys, ``uint32[..., 2]``, for words that :func:`key_data` returned."""
    _check_generator("wrap_key_data", impl)
    return _check_keys("wrap_key_data", key_bits_array)


def key_impl(keys: Key) -> str:
    """Returns the name of the generator that keys belong to.

    >>> key_impl(key(0))
    'threefry2x32'
    """
    _check_keys("key_impl", keys)
    return GENERATOR


def clone(key: Key) -> Array:
    """Returns the same key, to say that its second use is meant."""
    return _check_keys("clone", key)


def _check_keys(name: str, keys: Key) -> Array:
    aval = abstract(keys, name)
    if aval.dtype != dtypes.uint32 or aval.shape[-1:] != (2,):
        raise ShapeError(name, "keys are uint32[..., 2]", got=repr(aval), hint="tvmfun.random.key(seed)")
    return tnp.asarray(keys)
