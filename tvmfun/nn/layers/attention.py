"""Multi-head attention, its cache for decoding, and rotary position embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import random, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.nn import functional, init
from tvmfun.nn.functional.arguments import check_rate, training_key
from tvmfun.nn.init import Initializer
from tvmfun.nn.layers.linear import Linear
from tvmfun.nn.layers.parameters import check_positive, layer
from tvmfun.transforms import vmap
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["KVCache", "MultiHeadAttention", "RotaryEmbedding"]


@tree.register_dataclass
@dataclass(frozen=True)
class RotaryEmbedding:
    """Rotates queries and keys by their positions, with :func:`tvmfun.nn.functional.apply_rotary`; has no parameters.

    Args:
        dim: the number of elements of a head to rotate, the first ones.
        base: the longest wavelength is nearly ``2 * pi * base``.
        interleaved: whether a pair is two neighbours, as in the paper; otherwise one element of each half.

    Raises:
        ArgumentError: if ``dim`` is odd or not positive.

    Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    >>> RotaryEmbedding(4)(tnp.ones((2, 7, 3, 4))).shape
    (2, 7, 3, 4)
    """

    dim: int = field(metadata={"static": True})
    base: float = field(default=10000.0, metadata={"static": True})
    interleaved: bool = field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        check_positive("RotaryEmbedding", dim=self.dim)
        if self.dim % 2:
            raise ArgumentError("RotaryEmbedding", "dim must be even", got=str(self.dim))

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> Array:
        """Rotates heads (..., length, heads, elements) at positions (length,) or (batch, length), or 0, 1, 2, ..."""
        return functional.apply_rotary(x, positions, dim=self.dim, base=self.base, interleaved=self.interleaved)


class KVCache(NamedTuple):
    """Keys and values of the positions so far, (batch, length, heads, elements), and the number of positions.

    The index is an array, so that one compiled step serves all positions: one int32 for all sequences, or one for
    each, (batch,). After prompts of different lengths, padded at the end, ``cache._replace(index=lengths)`` continues
    each at its own end.
    """

    key: Any
    value: Any
    index: Any


@layer
class MultiHeadAttention:
    r"""Multi-head attention with linear maps of queries, keys, values and the result.

    .. math::

        \operatorname{concat}_h\left(\operatorname{softmax}\left(
        \frac{(x W^Q_h) (y W^K_h)^\top}{\sqrt{H}}\right) z W^V_h\right) W^O

    with ``y = z = x`` for self-attention. Its maps are the layers ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``.
    As in PyTorch, the first three weights are initialized with Glorot's uniform distribution, as parts of one matrix if
    their inputs are equally wide; ``out_proj.weight`` is initialized as in :class:`Linear`, and biases to zeros.

    Args:
        embed_dim: the number of features of queries and of the result.
        num_heads: the number of heads; it must divide ``embed_dim``.
        kdim: the number of features that keys are computed from; ``embed_dim`` by default.
        vdim: the number of features that values are computed from; ``embed_dim`` by default.
        num_kv_heads: the number of heads of keys and values, which must divide ``num_heads``: each serves
            ``num_heads / num_kv_heads`` query heads (grouped-query attention); ``num_heads`` by default.
        bias: whether the maps add biases.
        dropout: the probability of zeroing a weight of the attention while training.
        rotary: the rotary position embedding of queries and keys.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weights, instead of PyTorch's.
        bias_init: an initializer for the biases, instead of zeros.

    Raises:
        ArgumentError: if a number is not positive, or a divisor does not divide.
        DtypeError: if ``dtype`` is not a float.

    Reference: Vaswani et al., "Attention Is All You Need" (2017); Ainslie et al., "GQA: Training Generalized
    Multi-Query Transformer Models from Multi-Head Checkpoints" (2023).

    >>> attention = MultiHeadAttention(8, 2, key=random.key(0))
    >>> attention(tnp.ones((1, 5, 8)), is_causal=True).shape
    (1, 5, 8)
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    out_proj: Linear
    rotary: RotaryEmbedding | None
    num_heads: int = field(metadata={"static": True})
    num_kv_heads: int = field(metadata={"static": True})
    dropout: float = field(metadata={"static": True})

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: RotaryEmbedding | None = None,
        key: Key,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        where, groups = "MultiHeadAttention", num_heads if num_kv_heads is None else num_kv_heads
        check_positive(where, embed_dim=embed_dim, num_heads=num_heads, num_kv_heads=groups)
        if embed_dim % num_heads or num_heads % groups:
            text = "num_heads must divide embed_dim, and num_kv_heads must divide num_heads"
            got = f"num_heads={num_heads}, embed_dim={embed_dim} and num_kv_heads={groups}"
            raise ArgumentError(where, text, got=got)
        check_rate(where, dropout)
        width = embed_dim // num_heads
        if rotary is not None and rotary.dim > width:
            text = f"rotary.dim must be at most embed_dim / num_heads, {width}"
            raise ArgumentError(where, text, got=str(rotary.dim))
        inputs = (embed_dim, embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim)
        outputs = (embed_dim, groups * width, groups * width)
        keys = random.split(key, 4)
        bias_init = init.zeros if bias_init is None else bias_init
        one = init.glorot_uniform() if weight_init is None else weight_init
        if len(set(inputs)) == 1:
            matrix = one(keys[0], (embed_dim, sum(outputs)), dtype)
            parts = tnp.split(matrix, list(accumulate(outputs))[:-1], axis=1)
            inits: list[Any] = [lambda *_, part=part: part for part in parts]
        else:
            inits = [one] * 3
        linear = partial(Linear, bias=bias, dtype=dtype, bias_init=bias_init)
        self.q_proj = linear(inputs[0], outputs[0], key=keys[0], weight_init=inits[0])
        self.k_proj = linear(inputs[1], outputs[1], key=keys[1], weight_init=inits[1])
        self.v_proj = linear(inputs[2], outputs[2], key=keys[2], weight_init=inits[2])
        self.out_proj = linear(embed_dim, embed_dim, key=keys[3], weight_init=weight_init)
        self.rotary = rotary
        self.num_heads = num_heads
        self.num_kv_heads = groups
        self.dropout = dropout

    def __call__(
        self,
        query: ArrayLike,
        context: ArrayLike | None = None,
        value: Any = None,
        *,
        mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        is_causal: bool = False,
        query_seq_lengths: ArrayLike | None = None,
        key_value_seq_lengths: ArrayLike | None = None,
        local_window_size: int | tuple[int, int] | None = None,
        positions: ArrayLike | None = None,
        key: Key | None = None,
        train: bool = True,
    ) -> Array:
        """Attends from each query to a context.

        PyTorch's argument ``key`` is called ``context``, because ``key`` is a key of random numbers everywhere here.

        Args:
            query: floats of shape (batch, length, embed_dim), or without the batch.
            context: the input of the keys, (batch, other length, kdim); by default the queries.
            value: the input of the values, (batch, other length, vdim); by default the context.
            mask: bools that broadcast to (batch, num_heads, length, other length), with two, three or four axes; a
                query attends to a key only where it is true. (In PyTorch's bool masks, true means *masked*.)
            bias: floats of such a shape, which are added to the scores.
            is_causal: whether a query attends only to positions up to its own.
            query_seq_lengths: integers of shape (batch,); queries past these lengths get zeros.
            key_value_seq_lengths: integers of shape (batch,); positions of the context past these lengths are masked.
            local_window_size: how many positions before and after its own a query attends to, one number or
                (before, after).
            positions: the positions of the queries, and of the keys if there is no context, for the rotary embedding:
                (length,) or (batch, length); 0, 1, 2 and so on by default, and always for a context.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop weights.

        Returns:
            An array like ``query``.

        Raises:
            ShapeError: if the shapes do not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        query = tnp.asarray(query)
        if key is not None and tnp.ndim(key) > 1:
            what = "the input of the keys is called context, and key is one of random numbers"
            raise ShapeError("MultiHeadAttention", what, got=f"key of the shape {tnp.shape(key)}", hint="context=")
        key = training_key("MultiHeadAttention", key, bool(train and self.dropout))
        source, source_positions = (query, positions) if context is None else (context, None)
        k, v = self._keys_and_values(source, value, source_positions)
        return self._attend(
            query,
            positions,
            k,
            v,
            bias,
            mask,
            is_causal=is_causal,
            query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths,
            local_window_size=local_window_size,
            dropout_rate=self.dropout if train else 0.0,
            dropout_key=key,
        )

    def _keys_and_values(self, context: Any, value: Any, positions: Any) -> tuple[Array, Array]:
        """Keys and values by heads, (batch, length, heads, elements)."""
        k = _heads(self.k_proj(context), self.num_kv_heads)
        v = _heads(self.v_proj(context if value is None else value), self.num_kv_heads)
        return k if self.rotary is None else self.rotary(k, positions), v

    def _attend(self, query: Any, positions: Any, k: Any, v: Any, bias: Any, mask: Any, **settings: Any) -> Array:
        """The result for queries, given keys and values by heads."""
        q = _heads(self.q_proj(query), self.num_heads)
        q = q if self.rotary is None else self.rotary(q, positions)
        heads = functional.dot_product_attention(q, k, v, _with_heads(bias), _with_heads(mask), **settings)
        return self.out_proj(heads.reshape(query.shape))

    # -- decoding ----------------------------------------------------------------------------------------------

    def init_cache(self, batch: int, length: int, dtype: DTypeLike | None = None) -> KVCache:
        """An empty cache for ``batch`` sequences of up to ``length`` positions, by default in the parameters' dtype."""
        shape = (batch, length, self.num_kv_heads, self.k_proj.weight.shape[1] // self.num_kv_heads)
        dtype = self.k_proj.weight.dtype if dtype is None else dtype
        return KVCache(tnp.zeros(shape, dtype), tnp.zeros(shape, dtype), tnp.zeros((), "int32"))

    def decode(
        self,
        x: ArrayLike,
        cache: KVCache,
        *,
        mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        local_window_size: int | tuple[int, int] | None = None,
    ) -> tuple[Any, KVCache]:
        """Causal self-attention of the next positions of sequences whose earlier ones are in a cache.

        All sizes are static, so one compiled function serves all positions. If the cache is donated, only the new
        positions are written.

        Args:
            x: floats of shape (batch, new positions, embed_dim): one position, or a whole prompt.
            cache: from :meth:`init_cache`, or from the last call. Positions past its length are dropped.
            mask: bools that broadcast to (batch, num_heads, new positions, length of the cache), besides causality.
            bias: floats of such a shape, which are added to the scores.
            local_window_size: how many positions before its own a position attends to.

        Returns:
            An array like ``x``, and the next cache.

        Raises:
            ShapeError: if the shapes do not fit, or there are more new positions than the cache has.

        >>> attention = MultiHeadAttention(8, 2, key=random.key(0))
        >>> y, cache = attention.decode(tnp.ones((1, 1, 8)), attention.init_cache(1, length=16))
        >>> y.shape, int(cache.index)
        ((1, 1, 8), 1)
        """
        x, length = tnp.asarray(x), cache.key.shape[1]
        if x.ndim != 3 or x.shape[0] != cache.key.shape[0] or x.shape[1] > length:
            text = f"the new positions must be (batch, length, features) for a cache of {cache.key.shape[:2]}"
            raise ShapeError("MultiHeadAttention.decode", text, got=str(x.shape))
        positions = tnp.asarray(cache.index)[..., None] + tnp.arange(x.shape[1], dtype="int32")
        news = self._keys_and_values(x, None, positions)
        k, v = (_written(old, new, positions) for old, new in zip(cache[:2], news, strict=True))
        t, s = positions[..., None], tnp.arange(length, dtype="int32")
        seen = s <= t
        if local_window_size is not None:
            before = local_window_size if isinstance(local_window_size, int) else local_window_size[0]
            seen = tnp.logical_and(seen, s >= t - before)
        seen = seen.reshape(-1, 1, *seen.shape[-2:])
        seen = seen if mask is None else tnp.logical_and(seen, _with_heads(mask))
        wide = news[0].dtype
        y = self._attend(x, positions, tnp.astype(k, wide), tnp.astype(v, wide), bias, seen)
        return y, KVCache(k, v, cache.index + x.shape[1])

    def context_cache(self, context: ArrayLike, value: Any = None) -> KVCache:
        """The keys and values of a context that all steps share, for :meth:`attend`."""
        k, v = self._keys_and_values(context, value, None)
        return KVCache(k, v, tnp.asarray(k.shape[-3], dtype="int32"))

    def attend(
        self,
        query: ArrayLike,
        cache: KVCache,
        *,
        mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        key_value_seq_lengths: ArrayLike | None = None,
    ) -> Array:
        """Attends from each query to a cached context, as a call with the context does."""
        query = tnp.asarray(query)
        return self._attend(query, None, *cache[:2], bias, mask, key_value_seq_lengths=key_value_seq_lengths)


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, -1)


def _written(old: Any, new: Any, positions: Any) -> Array:
    """A cache with the rows at some positions replaced, by a scatter, which updates a donated array in place."""
    write = lambda old, new, positions: old.at[positions].set(new)
    return vmap(write, in_axes=(0, 0, 0 if positions.ndim == 2 else None))(old, tnp.astype(new, old.dtype), positions)


def _with_heads(x: ArrayLike | None) -> ArrayLike | None:
    """A mask or bias (length, other length) with axes for the batch and the heads; others are unchanged."""
    return None if x is None else tnp.asarray(x)[None, None] if tnp.asarray(x).ndim == 2 else x
