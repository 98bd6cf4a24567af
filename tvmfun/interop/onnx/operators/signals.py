"""Fourier transforms of pairs of real numbers, windows of spectra, and counts of n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.errors import ProgramError, ShapeError
from tvmfun.interop.onnx.operators.shapes import MOST_ELEMENTS
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import dtype_of

onnx = Family(__name__)


def _matrices(rows: int, columns: int, length: int, dtype: np.dtype) -> tuple[Any, Any]:
    """The cosines and sines of ``2 pi i j / length``, by exact arithmetic on the angle's multiple."""
    if rows * columns > MOST_ELEMENTS:
        raise ShapeError("DFT", f"the matrix must have at most {MOST_ELEMENTS} elements", got=f"{rows}, {columns}")
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = 2 * np.pi * turns / length
    return tnp.asarray(np.cos(angles).astype(dtype)), tnp.asarray(np.sin(angles).astype(dtype))


def _fitted(x: Any, axis: int, length: int) -> Any:
    """The array with as many elements along an axis: without the last ones, or with zeros after them."""
    n = x.shape[axis]
    if n > length:
        return x[tuple(slice(0, length) if i == axis else slice(None) for i in range(x.ndim))]
    return tnp.pad(x, [(0, length - n) if i == axis else (0, 0) for i in range(x.ndim)]) if n < length else x


def _transformed(x: Any, length: int, axis: int, inverse: bool, onesided: bool) -> Any:
    """The transform along an axis of an array whose last axis has the real part, and perhaps the imaginary one."""
    kind, x = x.dtype, tnp.astype(x, "float64")  # sums of many terms, which often cancel
    y = _real_inverse(x, length, axis) if inverse and onesided else _complex(x, length, axis, inverse, onesided)
    return tnp.astype(y, kind)


def _complex(x: Any, length: int, axis: int, inverse: bool, onesided: bool) -> Any:
    """The transform as pairs."""
    x = tnp.moveaxis(_fitted(x, axis, length), axis, -2)
    cosines, sines = _matrices(length, length // 2 + 1 if onesided else length, length, x.dtype)
    sines = sines if inverse else -sines
    real, imaginary = x[..., 0] @ cosines, x[..., 0] @ sines
    if x.shape[-1] == 2:
        real, imaginary = real - x[..., 1] @ sines, imaginary + x[..., 1] @ cosines
    y = tnp.stack([real, imaginary], axis=-1)
    return tnp.moveaxis(y / length if inverse else y, -2, axis)


def _real_inverse(x: Any, length: int, axis: int) -> Any:
    """Real numbers from the first half of their transform."""
    half = length // 2 + 1
    x = tnp.moveaxis(_fitted(x, axis, half), axis, -2)
    cosines, sines = _matrices(half, length, length, x.dtype)
    counts = np.full(half, 2.0)
    counts[0] = 1
    if length % 2 == 0:
        counts[-1] = 1
    counts = tnp.asarray((counts / length).astype(x.dtype))
    real = (x[..., 0] * counts) @ cosines
    if x.shape[-1] == 2:
        real = real - (x[..., 1] * counts) @ sines
    return tnp.moveaxis(real[..., None], -2, axis)


@onnx.reads("DFT", since=20, static=(1, 2))
def _dft(
    x: Any, length: np.ndarray | None = None, axis: np.ndarray | None = None, *, inverse: int = 0, onesided: int = 0
) -> Any:
    along = (-2 if axis is None else int(axis.item())) % x.ndim
    default = 2 * (x.shape[along] - 1) if inverse and onesided else x.shape[along]
    size = default if length is None else int(length.item())
    return _transformed(x, size, along, bool(inverse), bool(onesided))


@onnx.reads("DFT", since=17, static=(1,))
def _dft_17(x: Any, length: np.ndarray | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Any:
    return _dft(x, length, np.asarray(axis), inverse=inverse, onesided=onesided)


@onnx.reads("STFT", static=(1, 3))
def _stft(
    signal: Any, step: np.ndarray, window: Any = None, length: np.ndarray | None = None, *, onesided: int = 1
) -> Any:
    """Transforms (batch, frames, frequencies, 2) of windows of signals (batch, time, 1 or 2)."""
    if length is None and window is None:
        raise ProgramError("from_onnx", "STFT needs a window or the length of a frame", got="neither")
    size = int(length.item()) if length is not None else window.shape[0]
    hop = int(step.item())
    count = (signal.shape[1] - size) // hop + 1
    if hop < 1 or count < 1 or count * size > MOST_ELEMENTS:
        raise ShapeError("STFT", "the frames must fit the signal", got=f"{size}, {hop} for {signal.shape[1]}")
    frames = tnp.take(signal, np.arange(count)[:, None] * hop + np.arange(size), axis=1)
    frames = frames if window is None else frames * window[:, None]
    return _transformed(frames, size, 2, False, bool(onesided))


@onnx.reads("MelWeightMatrix", static=(-1,))
def _mel_weight_matrix(
    bins: np.ndarray,
    length: np.ndarray,
    rate: np.ndarray,
    lowest: np.ndarray,
    highest: np.ndarray,
    *,
    output_datatype: int = 1,
) -> np.ndarray:
    """Triangular filters (frequencies, bins), equally spaced on the mel scale."""
    count, rows = int(bins.item()), int(length.item()) // 2 + 1
    if count < 1 or rows < 1 or count * rows > MOST_ELEMENTS:
        raise ShapeError("MelWeightMatrix", "the sizes must be sensible", got=f"{count}, {rows}")
    low, high = (2595 * np.log10(1 + float(edge.item()) / 700) for edge in (lowest, highest))
    mels = np.arange(count + 2) * (high - low) / (count + 2) + low
    edges = ((int(length.item()) + 1) * (700 * (10 ** (mels / 2595) - 1)) // float(rate.item())).astype(int)
    numbers = np.arange(rows)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(left == centre, 1.0, (numbers - left) / (centre - left))
        falling = (right - numbers) / (right - centre)
    result = np.where((numbers >= left) & (numbers <= centre), rising, 0.0)
    result = np.where((numbers >= centre) & (numbers < right) & (right > centre), falling, result)
    return result.astype(dtype_of(output_datatype, "MelWeightMatrix"))


@onnx.reads("TfIdfVectorizer")
def _tf_idf(
    x: Any,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Any:
    """Counts of n-grams in sequences, also with elements left out between their own."""
    if pool_int64s is None:
        raise ProgramError("from_onnx", "only arrays of numbers are read", got="n-grams of strings")
    rows = x if x.ndim == 2 else x[None]
    counts = [tnp.zeros(rows.shape[:1], dtype="float32")] * (max(ngram_indexes) + 1)
    ends = [*ngram_counts[1:], len(pool_int64s)]
    number = 0
    for n, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        for first in range(start, end, n):
            gram, slot = pool_int64s[first : first + n], ngram_indexes[number]
            number += 1
            if not min_gram_length <= n <= max_gram_length:
                continue
            for skip in range((max_skip_count if n > 1 else 0) + 1):
                length = rows.shape[1] - (n - 1) * (skip + 1)
                if length <= 0:
                    continue
                fits = [rows[:, k * (skip + 1) :][:, :length] == value for k, value in enumerate(gram)]
                all_fit = fits[0]
                for fit in fits[1:]:
                    all_fit = all_fit & fit
                counts[slot] = counts[slot] + tnp.sum(tnp.astype(all_fit, "float32"), axis=1)
    result = tnp.stack(counts, axis=1)
    factors = tnp.asarray(np.ones(len(ngram_indexes)) if weights is None else np.asarray(weights), dtype="float32")
    order = np.argsort(np.asarray(ngram_indexes))
    factors = factors[order]
    result = {"TF": result, "IDF": tnp.astype(result > 0, "float32") * factors, "TFIDF": result * factors}[mode]
    return result if x.ndim == 2 else result[0]
