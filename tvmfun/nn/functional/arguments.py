"""Checks of arguments that functions and layers share: sizes along spatial axes, paddings, rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import tvmfun.numpy as tnp
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.ops.conv import span
from tvmfun.random.keys import check_key
from tvmfun.typing import ArrayLike, Key

__all__ = [
    "Margins",
    "Padding",
    "Sizes",
    "add_bias",
    "channels_last",
    "check_rate",
    "check_windows",
    "hashable_padding",
    "kernel_shape",
    "margins_of",
    "per_axis",
    "training_key",
]

#: One number for all spatial axes, or one for each.
Sizes: TypeAlias = int | Sequence[int]
Padding: TypeAlias = Sizes | Sequence[Sequence[int]] | Literal["SAME", "VALID"]
#: Padding (before, after) of each spatial axis.
Margins: TypeAlias = tuple[tuple[int, int], ...]

_AXES = {1: "length", 2: "height, width", 3: "depth, height, width"}
_NAMES = {1: "sequences", 2: "images", 3: "volumes"}
_NUMBERS = ("no", "one", "two", "three")


def check_rate(where: str, rate: float) -> None:
    """Checks that a dropout rate is a probability."""
    if not 0 <= rate <= 1:
        raise ArgumentError(where, "the rate must be between 0 and 1", got=str(rate))


def per_axis(where: str, name: str, value: Sizes, rank: int, least: int = 1) -> tuple[int, ...]:
    """A number, at least ``least``, for each of the ``rank`` spatial axes."""
    numbers = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(numbers) != rank or not all(isinstance(number, int) and number >= least for number in numbers):
        kind = "positive integer" if least else "integer that is not negative"
        wanted = f"one {kind}" if rank == 1 else f"one {kind} or {_NUMBERS[rank]}"
        hint = f"{name}=2 or {(2,) * rank}"
        raise ArgumentError(where, f"the {name} must be {wanted}", got=repr(value), hint=hint)
    return numbers


def channels_last(where: str, x: ArrayLike, rank: int | None = None) -> Array:
    """``x`` as an array of shape (batch, *spatial, channels) with ``rank`` spatial axes; one to three if None."""
    x = tnp.asarray(x)
    if rank is None:
        if not 3 <= x.ndim <= 5:
            raise ShapeError(where, "the array must be (batch, one to three spatial axes, channels)", got=str(x.shape))
    elif x.ndim != rank + 2:
        name = _NAMES[rank]
        raise ShapeError(
            where,
            f"the {name} must be (batch, {_AXES[rank]}, channels)",
            got=str(x.shape),
            hint=f"x[None] for one of the {name}, x[..., None] for a single channel",
        )
    return x


def kernel_shape(rank: int, groups: int) -> str:
    """The shape of a kernel, for error messages."""
    return f"({_AXES[rank]}, {f'in / {groups}' if groups > 1 else 'in'}, out)"


def add_bias(where: str, y: Array, bias: ArrayLike | None) -> Array:
    """``y + bias`` for one number per channel, or ``y`` without a bias."""
    if bias is None:
        return y
    bias = tnp.asarray(bias)
    if bias.shape != y.shape[-1:]:
        raise ShapeError(where, f"the bias must have the shape {y.shape[-1:]}", got=str(bias.shape))
    return y + bias


def hashable_padding(padding: Padding) -> Any:
    """A padding with tuples in place of lists, so that it can be a static field of a layer."""
    if isinstance(padding, int | str):
        return padding
    return tuple([axis if isinstance(axis, int) else tuple(axis) for axis in padding])


def margins_of(
    where: str,
    padding: Padding,
    sizes: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Margins:
    """The padding (before, after) of each spatial axis."""
    rank = len(sizes)
    if padding == "VALID":
        return ((0, 0),) * rank
    if padding == "SAME":
        needed = [
            dims.maximum(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            for n, k, s, d in zip(sizes, window, strides, dilation, strict=True)
        ]
        return tuple((total // 2, total - total // 2) for total in needed)
    axes = (padding,) * rank if isinstance(padding, int) else padding
    sides: list[Any] = [(axis, axis) if isinstance(axis, int) else tuple(axis) for axis in axes]
    flat = [number for side in sides for number in side]
    wrong = len(sides) != rank or any(len(side) != 2 for side in sides)
    if wrong or not all(isinstance(number, int) and number >= 0 for number in flat):
        ones = (1,) * rank
        raise ArgumentError(
            where,
            "the padding must be an integer, one integer or pair of integers per axis, or a name",
            got=repr(padding),
            hint=f'1, {ones}, {tuple((one, one) for one in ones)}, "SAME" or "VALID"',
        )
    return tuple(sides)


def check_windows(
    where: str, sizes: Sequence[int], window: Sequence[int], margins: Margins, dilation: Sequence[int] | None = None
) -> None:
    """Raises a ShapeError if a window does not fit into a padded axis, whose results would be none."""
    for n, k, d, (low, high) in zip(sizes, window, dilation or (1,) * len(sizes), margins, strict=True):
        width = span(k, d)
        if not dims.is_dynamic((n, k)) and 0 < n < width - low - high:
            raise ShapeError(
                where,
                f"a window of {width} must fit into each axis with its padding",
                got=f"axes of {tuple(sizes)} with the padding {margins}",
            )


def training_key(where: str, key: Key | None, is_needed: bool, hint: str = "key=random.key(0), or train=False") -> Any:
    """A key of random numbers, which is checked even if nothing is drawn; None if it is missing and not needed.

    Raises:
        ArgumentError: if it is missing and needed.
        ShapeError: if it is not a key.
    """
    if key is None:
        if is_needed:
            raise ArgumentError(where, "a key is needed for training", got="None", hint=hint)
        return None
    return check_key(where, key)
