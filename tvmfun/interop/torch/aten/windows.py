"""Pooling and resizing of arrays (batch, channels, *spatial), also without a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import ProgramError
from tvmfun.interop.layouts import ChannelsLast, channels_first, channels_last
from tvmfun.interop.torch.aten.table import Family
from tvmfun.nn import functional as nnf
from tvmfun.transforms import vjp

aten = Family(__name__)


def _spatial(function: Callable, x: Any, rank: int) -> Any:
    """Applies a function of (batch, *spatial, channels) to an array with ``rank`` spatial axes."""
    if x.ndim == rank + 2:
        return ChannelsLast(function(channels_last(x)))
    images = tnp.expand_dims(channels_first(x), 0)
    return tnp.squeeze(channels_first(ChannelsLast(function(channels_last(images)))), 0)


def _sizes(values: Any, rank: int) -> Any:
    """One size per spatial axis; None where PyTorch has an empty list, which is the default."""
    values = [values] if isinstance(values, int) else list(values)
    return None if not values else tuple(values) if len(values) == rank else tuple(values) * rank


def _max_pool(rank: int) -> Callable:
    def pool(x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
        options = (_sizes(size, rank), _sizes(stride, rank), _sizes(padding, rank))
        if any(d != 1 for d in _sizes(dilation, rank)):
            return _spatial(lambda images: _maxima(images, *options, _sizes(dilation, rank), ceil_mode)[0], x, rank)
        return _spatial(lambda images: nnf.max_pool(images, *options, ceil_mode), x, rank)

    return pool


def _max_positions(rank: int) -> Callable:
    def positions(
        x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        size, stride, padding, dilation = (_sizes(v, rank) for v in (size, stride, padding, dilation))
        return _spatial(lambda images: _maxima(images, size, stride, padding, dilation, ceil_mode)[1], x, rank)

    return positions


def _maxima(images: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> tuple[Any, Any]:
    """The maxima of windows that may have holes, and their positions in the flattened spatial axes."""
    stride, spatial = stride or size, images.shape[1:-1]
    counts = []
    for n, k, s, p, d in zip(spatial, size, stride, padding, dilation, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        # The last window begins inside of the array or of the padding before it.
        counts.append(count - 1 if ceil_mode and (count - 1) * s >= n + p else count)
    ends = [
        max((count - 1) * s + d * (k - 1) + 1 - n - p, 0)
        for count, n, k, s, p, d in zip(counts, spatial, size, stride, padding, dilation, strict=True)
    ]
    pads = [(0, 0), *zip(padding, ends, strict=True), (0, 0)]
    least = -math.inf if dtypes.is_float(images.dtype) else int(tnp.iinfo(images.dtype).min)
    padded = tnp.pad(images, pads, constant_values=least)
    numbers = np.arange(math.prod(spatial)).reshape(1, *spatial, 1)
    numbers = tnp.asarray(np.pad(numbers, pads, constant_values=-1))
    parts, positions = [], []
    for offsets in itertools.product(*map(range, size)):
        starts = [offset * d for offset, d in zip(offsets, dilation, strict=True)]
        index = [slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, counts, stride, strict=True)]
        parts.append(padded[(slice(None), *index)])
        positions.append(tnp.broadcast_to(numbers[(slice(None), *index)], parts[-1].shape))
    stacked = tnp.stack(parts)
    first = tnp.argmax(stacked, axis=0, keepdims=True)
    values, at = (tnp.take_along_axis(x, first, axis=0)[0] for x in (stacked, tnp.stack(positions)))
    return values, at


def _avg_pool(rank: int) -> Callable:
    def pool(
        x: Any,
        size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is not None:
            raise ProgramError("from_torch", "avg_pool divides by the size of a window", got=f"{divisor_override=}")
        options = (_sizes(size, rank), _sizes(stride, rank), _sizes(padding, rank), ceil_mode, count_include_pad)
        return _spatial(lambda images: nnf.avg_pool(images, *options), x, rank)

    return pool


def _adaptive(function: Callable, rank: int) -> Callable:
    return lambda x, size: _spatial(lambda images: function(images, _sizes(size, rank)), x, rank)


class _WithPositions(tuple):
    """The values of a pooling operator, and the positions of maxima, which are computed if they are asked for."""

    positions: Callable[[], Any]

    def __getitem__(self, index: Any) -> Any:
        return self.positions() if index == 1 else super().__getitem__(index)


def _with_positions(pool: Callable, positions: Callable) -> Callable:
    def both(*arguments: Any, **options: Any) -> Any:
        result = _WithPositions((pool(*arguments, **options), None))
        result.positions = lambda: positions(*arguments, **options)
        return result

    return both


def _no_positions(*arguments: Any) -> Any:
    raise ProgramError("from_torch", "the positions of adaptive maxima are not computed", got="return_indices=True")


for _rank in (1, 2, 3):
    aten.reads(f"max_pool{_rank}d", layouts=True)(_max_pool(_rank))
    aten.reads(f"max_pool{_rank}d_with_indices", layouts=True)(_with_positions(_max_pool(_rank), _max_positions(_rank)))
    aten.reads(f"avg_pool{_rank}d", layouts=True)(_avg_pool(_rank))
    aten.reads(f"adaptive_avg_pool{_rank}d", layouts=True)(_adaptive(nnf.adaptive_avg_pool, _rank))
    aten.reads(f"adaptive_max_pool{_rank}d", layouts=True)(
        _with_positions(_adaptive(nnf.adaptive_max_pool, _rank), _no_positions)
    )


for _rank in (2, 3):
    aten.reads(f"_adaptive_avg_pool{_rank}d", layouts=True)(_adaptive(nnf.adaptive_avg_pool, _rank))


# -- resizing ----------------------------------------------------------------------------------------------------------


def _resized(x: Any, rank: int, size: Any, scales: Any, **options: Any) -> Any:
    sizes = None if size is None else tuple(size)
    factors = None if sizes is not None or scales is None else tuple(scales)
    return _spatial(lambda images: nnf.interpolate(images, sizes, factors, **options), x, rank)


def _nearest(rank: int) -> Callable:
    return lambda x, size, *scales: _resized(x, rank, size, scales[0] if scales else None, mode="nearest")


for _rank in (1, 2, 3):
    aten.reads(f"upsample_nearest{_rank}d.vec", layouts=True)(_nearest(_rank))


# -- derivatives that ``torch.compile`` asks for -----------------------------------------------------------------------


@aten.reads("max_pool2d_with_indices_backward", layouts=True)
def _max_pool_backward(gradient: Any, x: Any, *options: Any) -> Any:
    *geometry, _ = options  # the positions follow from the array
    return _backward(_max_pool(2))(gradient, x, *geometry)


def _backward(pool: Callable) -> Callable:
    def back(gradient: Any, x: Any, *options: Any) -> Any:
        _, pull = vjp(lambda x: channels_first(pool(x, *options)), channels_first(x))
        return pull(channels_first(gradient))[0]

    return back


aten.reads("avg_pool2d_backward", layouts=True)(_backward(_avg_pool(2)))
aten.reads("avg_pool3d_backward", layouts=True)(_backward(_avg_pool(3)))


@aten.reads("_adaptive_avg_pool2d_backward", layouts=True)
def _adaptive_backward(gradient: Any, x: Any) -> Any:
    return _backward(_adaptive(nnf.adaptive_avg_pool, 2))(gradient, x, gradient.shape[-2:])
