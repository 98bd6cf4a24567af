"""Dropout: zeroes elements at random while training."""

from __future__ import annotations

import math

import tvmfun.numpy as tnp
from tvmfun import random
from tvmfun.core.array import Array
from tvmfun.nn.functional.arguments import channels_last, check_rate, training_key
from tvmfun.typing import ArrayLike, Key

__all__ = ["alpha_dropout", "channel_dropout", "drop_path", "dropout"]

# The limit of SELU at minus infinity.
_SATURATION = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717


def dropout(key: Key | None, x: ArrayLike, rate: float, train: bool = True) -> Array:
    """Zeroes elements at random and scales the others up: ``x / (1 - rate)`` with probability ``1 - rate``.

    Args:
        key: a key of :mod:`tvmfun.random`; the same key drops the same elements. It may be ``None`` if ``train`` is
            false or ``rate`` is 0 or 1.
        x: an array of floats.
        rate: the probability of zeroing an element.
        train: whether to drop anything; otherwise ``x`` is returned.

    Returns:
        An array like ``x``.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1, or the key is missing.

    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).

    >>> dropout(None, tnp.asarray([1.0, 2.0]), 0.5, train=False)
    Array([1., 2.], dtype=float32)
    """
    x = tnp.asarray(x)
    return _dropped("dropout", key, x, rate, train, x.shape)


def channel_dropout(key: Key | None, x: ArrayLike, rate: float, train: bool = True) -> Array:
    """Zeroes whole channels of examples at random and scales the others up; otherwise as :func:`dropout`.

    Args:
        key: a key of :mod:`tvmfun.random`.
        x: floats of shape ``(batch, *spatial, channels)`` with one to three spatial axes.
        rate: the probability of zeroing a channel.
        train: whether to drop anything; otherwise ``x`` is returned.

    Raises:
        ShapeError: if ``x`` does not have three to five axes.
        ArgumentError: if ``rate`` is not between 0 and 1, or the key is missing.

    Reference: Tompson et al., "Efficient Object Localization Using Convolutional Networks" (2015).

    >>> y = channel_dropout(random.key(0), tnp.ones((1, 5, 8)), 0.5)
    >>> bool(tnp.all(y == y[:, :1]))
    True
    """
    x = channels_last("channel_dropout", x)
    return _dropped("channel_dropout", key, x, rate, train, (x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1]))


def drop_path(key: Key | None, x: ArrayLike, rate: float, train: bool = True) -> Array:
    """Zeroes whole examples at random and scales the others up (stochastic depth); otherwise as :func:`dropout`.

    It is meant for the branch of a residual connection.

    Args:
        key: a key of :mod:`tvmfun.random`.
        x: floats of shape (batch, ...).
        rate: the probability of zeroing an example.
        train: whether to drop anything; otherwise ``x`` is returned.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1, or the key is missing.

    Reference: Huang et al., "Deep Networks with Stochastic Depth" (2016).

    >>> y = drop_path(random.key(0), tnp.ones((8, 5)), 0.5)
    >>> bool(tnp.all(y == y[:, :1]))
    True
    """
    x = tnp.asarray(x)
    return _dropped("drop_path", key, x, rate, train, (*x.shape[:1], *(1,) * (x.ndim - 1)))


def alpha_dropout(key: Key | None, x: ArrayLike, rate: float, train: bool = True) -> Array:
    """Dropout that keeps mean 0 and variance 1, for networks of :func:`selu`.

    Dropped elements become the limit of SELU at minus infinity; then the result is scaled and shifted.

    Args:
        key: a key of :mod:`tvmfun.random`.
        x: an array of floats.
        rate: the probability of dropping an element.
        train: whether to drop anything; otherwise ``x`` is returned.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1, or the key is missing.

    Reference: Klambauer et al., "Self-Normalizing Neural Networks" (2017).

    >>> alpha_dropout(None, tnp.asarray([1.0, 2.0]), 0.5, train=False)
    Array([1., 2.], dtype=float32)
    """
    x = tnp.asarray(x)
    keep = _keep_mask("alpha_dropout", key, rate, train, x.shape)
    if keep is None:
        return x if not train or rate == 0 else tnp.zeros_like(x)
    scale = 1 / math.sqrt((1 - rate) * (1 + rate * _SATURATION**2))
    return tnp.where(keep, scale * x, _SATURATION * scale) - scale * rate * _SATURATION


def _dropped(where: str, key: Key | None, x: Array, rate: float, train: bool, shape: tuple[int, ...]) -> Array:
    keep = _keep_mask(where, key, rate, train, shape)
    if keep is None:
        return x if not train or rate == 0 else tnp.zeros_like(x)
    return tnp.where(keep, x * (1 / (1 - rate)), tnp.zeros_like(x))


def _keep_mask(where: str, key: Key | None, rate: float, train: bool, shape: tuple[int, ...]) -> Array | None:
    """A mask of the elements to keep; None if all are kept or all dropped."""
    check_rate(where, rate)
    draws = train and rate not in (0, 1)
    key = training_key(where, key, draws, "key=random.key(0)")
    if not draws or key is None:
        return None
    return random.bernoulli(key, 1 - rate, shape)
