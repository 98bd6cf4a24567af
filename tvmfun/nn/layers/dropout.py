"""Dropout layers, which have no parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

from tvmfun.core.array import Array
from tvmfun.nn import functional
from tvmfun.nn.functional.arguments import channels_last, check_rate
from tvmfun.nn.layers.parameters import layer
from tvmfun.typing import ArrayLike, Key

__all__ = ["AlphaDropout", "DropPath", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"]


@layer
class _Dropout:
    """Base class: applies ``function(key, x, rate, train)``."""

    function: ClassVar[Callable[..., Any]]
    rank: ClassVar[int | None] = None
    rate: float = field(metadata={"static": True})

    def __init__(self, rate: float) -> None:
        check_rate(type(self).__name__, rate)
        self.rate = rate

    def __call__(self, x: ArrayLike, *, key: Key | None = None, train: bool = True) -> Array:
        """Applies dropout; the key is needed only if ``train``, and the same key drops the same elements."""
        if self.rank is not None:
            x = channels_last(type(self).__name__, x, self.rank)
        return type(self).function(key, x, self.rate, train)


@layer
class Dropout(_Dropout):
    """Zeroes elements at random while training and scales the others up; has no parameters.

    Args:
        rate: the probability of zeroing an element.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1.

    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).

    >>> import tvmfun.numpy as tnp
    >>> Dropout(0.5)(tnp.asarray([1.0, 2.0]), train=False)
    Array([1., 2.], dtype=float32)
    """

    function: ClassVar[Callable[..., Any]] = functional.dropout


@layer
class Dropout1d(_Dropout):
    """Zeroes whole channels of sequences (batch, length, channels) at random while training; has no parameters.

    Args:
        rate: the probability of zeroing a channel of an example.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1.

    Reference: Tompson et al., "Efficient Object Localization Using Convolutional Networks" (2015).

    >>> Dropout1d(0.5)
    Dropout1d(rate=0.5)
    """

    function: ClassVar[Callable[..., Any]] = functional.channel_dropout
    rank: ClassVar[int | None] = 1


@layer
class Dropout2d(_Dropout):
    """Zeroes whole channels of images (batch, height, width, channels); otherwise as :class:`Dropout1d`.

    >>> Dropout2d(0.5)
    Dropout2d(rate=0.5)
    """

    function: ClassVar[Callable[..., Any]] = functional.channel_dropout
    rank: ClassVar[int | None] = 2


@layer
class Dropout3d(_Dropout):
    """Zeroes whole channels of volumes (batch, depth, height, width, channels); otherwise as :class:`Dropout1d`.

    >>> Dropout3d(0.5)
    Dropout3d(rate=0.5)
    """

    function: ClassVar[Callable[..., Any]] = functional.channel_dropout
    rank: ClassVar[int | None] = 3


@layer
class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance in networks of :func:`functional.selu`; has no parameters.

    Args:
        rate: the probability of dropping an element.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1.

    Reference: Klambauer et al., "Self-Normalizing Neural Networks" (2017).

    >>> AlphaDropout(0.1)
    AlphaDropout(rate=0.1)
    """

    function: ClassVar[Callable[..., Any]] = functional.alpha_dropout


@layer
class DropPath(_Dropout):
    """Zeroes whole examples at random while training (stochastic depth); has no parameters.

    Args:
        rate: the probability of zeroing an example.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1.

    Reference: Huang et al., "Deep Networks with Stochastic Depth" (2016).

    >>> DropPath(0.1)
    DropPath(rate=0.1)
    """

    function: ClassVar[Callable[..., Any]] = functional.drop_path
