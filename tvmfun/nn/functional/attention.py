"""Dot-product attention."""

from __future__ import annotations

from typing import Literal

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.nn.functional.blockwise_attention import blockwise_attention
from tvmfun.nn.functional.direct_attention import AttentionInputs, AttentionSettings, direct_attention
from tvmfun.nn.functional.gpu_attention import gpu_attention, has_gpu_kernel
from tvmfun.ops.attention import divides
from tvmfun.ops.calls import on_platform
from tvmfun.typing import ArrayLike, Key

__all__ = ["dot_product_attention"]

# The scores per head from which recomputing them is cheaper than storing them; fewer where most are masked.
_MANY_SCORES = 512 * 512
_MANY_MASKED_SCORES = 256 * 256


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Literal["xla", "cudnn"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
) -> Array:
    r"""The mean of the values for each query, weighted by the softmax of its products with the keys.

    .. math::

        \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{H}} + B\right) V

    Long sequences, on GPUs those from 32 queries and keys on, are computed block by block: neither the function nor its
    gradients store the T x S scores. The exceptions are the gradient of a bias with as many elements, forward mode, and
    second derivatives; on GPUs also float64, dynamic lengths, and heads of more than 128 elements. Scores are summed
    in float32 or wider. Where query, key and value are in half precision, GPUs round the weights to it, too.

    Args:
        query: floats of shape (B, T, N, H): batch, length, heads, elements; or without the batch.
        key: an array of shape (B, S, K, H). K must divide N: each of its heads serves N / K query heads.
        value: an array of the shape of ``key``.
        bias: an array to add to the scores, with four axes that broadcast to (B, N, T, S), or three without the batch.
        mask: bools of such a shape; a query attends to a key only where it is true.
        scale: the factor of the scores; by default ``1 / sqrt(H)``.
        is_causal: whether a query attends only to keys up to its own position: ``t >= s``.
        query_seq_lengths: integers of shape (B,); queries at or past these lengths get zeros.
        key_value_seq_lengths: integers of shape (B,); keys at or past these lengths are masked.
        local_window_size: how many keys before and after its own position a query attends to, one number or
            (before, after).
        implementation: for compatibility with JAX: here sizes and the device decide.
        dropout_rate: the probability with which a weight is zeroed; the others are scaled up.
        dropout_key: a key of :mod:`tvmfun.random`; the same key drops the same weights.

    Returns:
        An array like ``query``. A query whose keys are all masked gets the mean of all values; without any keys,
        zeros.

    Raises:
        ShapeError: if the shapes do not fit.
        DtypeError: if query, key and value are not floats of one dtype, the mask not bools, or lengths not integers.
        ArgumentError: if the rate is not at least 0 and less than 1, or its key is missing.

    Source: follows ``jax.nn.dot_product_attention``; Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory"
    (2021); Dao et al., "FlashAttention" (2022).

    >>> x = tnp.asarray([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> dot_product_attention(x, x, x, is_causal=True, scale=1000.0)
    Array([[[1., 0.]],
    <BLANKLINE>
           [[0., 1.]]], dtype=float32)
    """
    query, key, value = tnp.asarray(query), tnp.asarray(key), tnp.asarray(value)
    shape, dtype = query.shape, query.dtype
    query, key, value = (_with_batch(x) for x in (query, key, value))
    _check_arrays(query, key, value)
    wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
    inputs = AttentionInputs(
        tnp.astype(query, wide),
        tnp.astype(key, wide),
        tnp.astype(value, wide),
        None if bias is None else tnp.astype(_of_scores("bias", bias, query, key), wide),
        None if mask is None else _of_scores("mask", mask, query, key),
        _lengths(query_seq_lengths, query),
        _lengths(key_value_seq_lengths, query),
        _dropout_key(dropout_rate, dropout_key),
    )
    window = local_window_size
    window = (window, window) if isinstance(window, int) else window
    settings = AttentionSettings(bool(is_causal), window, float(dropout_rate))
    scale = max(query.shape[3], 1) ** -0.5 if scale is None else scale
    scale = tnp.astype(scale, wide) if isinstance(scale, Array) else wide.type(scale)
    if not inputs.key.shape[1]:
        return tnp.zeros(shape, dtype)
    result = _attention(settings, inputs, scale)
    if inputs.query_lengths is not None:
        is_query = tnp.arange(query.shape[1])[:, None, None] < inputs.query_lengths.reshape(-1, 1, 1, 1)
        result = tnp.where(is_query, result, tnp.zeros_like(result))
    return tnp.astype(result, dtype).reshape(shape)


def _attention(settings: AttentionSettings, inputs: AttentionInputs, scale: ArrayLike) -> Array:
    def blockwise(inputs: AttentionInputs) -> Array:
        return blockwise_attention(settings, inputs._replace(query=inputs.query * scale))

    def direct(inputs: AttentionInputs) -> Array:
        return direct_attention(settings, inputs, scale)

    def tiled(inputs: AttentionInputs) -> Array:
        return gpu_attention(settings, inputs, scale)

    cpu = blockwise if _is_long(settings, inputs) else direct
    gpu = tiled if has_gpu_kernel(inputs) else direct
    return cpu(inputs) if gpu is cpu else on_platform(cpu, gpu, inputs)


def _is_long(settings: AttentionSettings, inputs: AttentionInputs) -> bool:
    _, length, _, width = inputs.query.shape
    scores = length * inputs.key.shape[1]
    if not isinstance(scores, int) or not scores or not width:
        return False
    return scores >= (_MANY_SCORES if not settings.is_causal and settings.window is None else _MANY_MASKED_SCORES)


def _with_batch(x: Array) -> Array:
    return x[None] if x.ndim == 3 else x


def _check_arrays(query: Array, key: Array, value: Array) -> None:
    got = f"{query.aval}, {key.aval} and {value.aval}"
    if query.ndim != 4 or key.ndim != 4 or value.shape != key.shape:
        text = "query must be (batch, length, heads, width), key and value likewise and of one shape"
        raise ShapeError("dot_product_attention", text, got=got, hint="x.reshape(batch, length, heads, width)")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3] or not divides(key.shape[2], query.shape[2]):
        text = "query and key must have one batch and width, and the heads of key must divide those of query"
        raise ShapeError("dot_product_attention", text, got=got)
    if not dtypes.is_float(query.dtype) or not query.dtype == key.dtype == value.dtype:
        hint = "x.astype(query.dtype)"
        text = "query, key and value must be floats of one dtype"
        raise DtypeError("dot_product_attention", text, got=got, hint=hint)


def _of_scores(name: str, x: ArrayLike, query: Array, key: Array) -> Array:
    """A bias or mask as an array of four axes, each of size 1 or of the scores' size."""
    x = _with_batch(tnp.asarray(x))
    if name == "mask" and x.dtype != dtypes.bool_:
        hint = "mask=mask != 0, or bias= for numbers to add"
        raise DtypeError("dot_product_attention", "the mask must be bools", got=str(x.aval), hint=hint)
    sizes = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    if x.ndim != 4 or any(size not in (1, full) for size, full in zip(x.shape, sizes, strict=True)):
        raise ShapeError("dot_product_attention", f"the {name} must broadcast to {sizes}", got=str(x.aval))
    return x


def _lengths(x: ArrayLike | None, query: Array) -> Array | None:
    if x is None:
        return None
    x = tnp.asarray(x)
    if not dtypes.is_integer(x.dtype):
        raise DtypeError("dot_product_attention", "lengths must be integers", got=str(x.aval))
    if x.shape != query.shape[:1]:
        raise ShapeError("dot_product_attention", f"there must be {query.shape[0]} lengths", got=str(x.aval))
    return tnp.astype(x, "int32")


def _dropout_key(rate: float, key: Key | None) -> Array | None:
    if not 0 <= rate < 1:
        raise ArgumentError("dot_product_attention", "the rate must be at least 0 and less than 1", got=str(rate))
    if rate and key is None:
        hint = "dropout_key=random.key(0)"
        raise ArgumentError("dot_product_attention", "a key is needed to drop weights", got="None", hint=hint)
    return tnp.asarray(key) if rate else None
