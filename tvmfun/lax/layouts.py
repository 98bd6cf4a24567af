"""The layouts of convolutions, their paddings, and the patches that they read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError

__all__ = ["ConvDimensionNumbers", "conv_dimension_numbers"]


class ConvDimensionNumbers(NamedTuple):
    """Which axes of a convolution's arrays are which.

    ``lhs_spec`` and ``out_spec`` are the axes of the batch, of the channels, and then of space; ``rhs_spec`` those of
    the output channels, of the input channels, and then of space.
    """

    lhs_spec: Sequence[int]
    rhs_spec: Sequence[int]
    out_spec: Sequence[int]


def _letters(rank: int) -> str:
    """The names of the axes of space."""
    return "DHW"[-rank:] if rank <= 3 else "".join(map(str, range(rank)))


def default_layouts(rank: int) -> tuple[str, str, str]:
    """Channels first, for ``rank`` axes of space."""
    letters = _letters(rank)
    return f"NC{letters}", f"OI{letters}", f"NC{letters}"


def as_strings(dimension_numbers: Any, rank: int) -> tuple[str, str, str]:
    """The layouts of both arrays and the result as strings, of strings, :class:`ConvDimensionNumbers` or None."""
    if dimension_numbers is None:
        return default_layouts(rank)
    if not isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    layouts = []
    for pair, spec in zip(("NC", "OI", "NC"), dimension_numbers, strict=True):
        names = pair + _letters(rank)
        layouts.append("".join(names[list(spec).index(i)] for i in range(rank + 2)))
    return layouts[0], layouts[1], layouts[2]


def conv_dimension_numbers(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    dimension_numbers: tuple[str, str, str] | ConvDimensionNumbers | None,
) -> ConvDimensionNumbers:
    """Returns the layouts of a convolution as numbers of axes.

    Args:
        lhs_shape: of the array.
        rhs_shape: of the kernel.
        dimension_numbers: the layouts of the array, the kernel and the result, as strings; None for channels first.

    Source: ``jax.lax.conv_dimension_numbers``.

    >>> conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC")).rhs_spec
    (3, 2, 0, 1)
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if len(lhs_shape) != len(rhs_shape):
        got = f"{tuple(lhs_shape)} and {tuple(rhs_shape)}"
        raise ShapeError("conv_dimension_numbers", "both arrays must have the same number of axes", got=got)
    layouts = as_strings(dimension_numbers, len(lhs_shape) - 2)
    space = [letter for letter in layouts[0] if letter not in "NC"]
    found = []
    for layout, pair in zip(layouts, ("NC", "OI", "NC"), strict=True):
        if sorted(layout) != sorted([*pair, *space]):
            what = f"a layout is made of the letters {pair}{''.join(space)}"
            raise ArgumentError("conv_dimension_numbers", what, got=repr(layout))
        found.append(tuple(layout.index(letter) for letter in [*pair, *space]))
    return ConvDimensionNumbers(*found)


def patches_kernel(filter_shape: Sequence[int], channels: int, dtype: Any) -> Array:
    """The kernel, ``OI...``, that reads each element of a window of each channel: a part of the identity."""
    size = math.prod(filter_shape)
    kernel = tnp.reshape(tnp.eye(size, dtype=dtype), (size, 1, *filter_shape))
    return tnp.tile(kernel, (channels, *(1,) * (len(filter_shape) + 1)))
