"""Attention: written out for short sequences, block by block in linear memory for long ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvmfun import dtypes, lax, random
from tvmfun import numpy as tnp
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.ops.bits import threefry2x32
from tvmfun.ops.calls import barrier
from tvmfun.transforms import custom_vjp, vjp

__all__ = ["dot_product_attention"]

# From so many scores per head on, computing them twice is cheaper than storing them; less where most are masked out.
_MANY_SCORES = 1024 * 1024
_MANY_MASKED_SCORES = 512 * 512
# Queries and keys of a block, for heads of up to 64 elements: what a step works on stays in a core's cache.
_ROWS, _COLUMNS = 64, 256
# So many pieces of work keep the cores of usual machines busy.
_PIECES = 16


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: Any = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Any = None,
) -> Any:
    r"""For each query the mean of the values, weighted by how well their keys fit.

    .. math::

        \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{H}} + B\right) V

    Long sequences are worked on block by block: neither the function nor its derivatives ever store the T x S scores,
    except for the gradient of a bias that has as many elements, and in forward mode and derivatives of derivatives.
    Scores are summed in float32 at least.

    Args:
        query: floats of shape (B, T, N, H): batch, length, heads, elements; or without the batch.
        key: an array of shape (B, S, K, H). K must divide N: each of its heads serves N / K heads of queries.
        value: an array of the shape of ``key``.
        bias: an array to add to the scores, of four axes that broadcast to (B, N, T, S); or of three.
        mask: bools likewise; a score counts where it is true.
        scale: what to multiply the scores with; by default ``1 / sqrt(H)``.
        is_causal: whether a query sees only keys that are not behind it: ``t >= s``.
        query_seq_lengths: integers of shape (B,); queries behind these get zeros.
        key_value_seq_lengths: integers of shape (B,); keys behind these do not count.
        local_window_size: how many keys before and behind its own place a query sees, one number or (before, behind).
        dropout_rate: the probability with which a weight is zeroed; the others are scaled up.
        dropout_key: a key of :mod:`tvmfun.random`; the same key drops the same weights.

    Returns:
        An array like ``query``. A query for which no key counts gets the mean of all values, or zeros if there are
        none.

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
    arrays = _Arrays(
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
    rule = _Rule(bool(is_causal), window, float(dropout_rate))
    scale = max(query.shape[3], 1) ** -0.5 if scale is None else scale
    scale = tnp.astype(scale, wide) if isinstance(scale, Array) else wide.type(scale)
    if not arrays.key.shape[1]:
        return tnp.zeros(shape, dtype)
    if _is_long(rule, arrays):
        scaled = arrays._replace(query=arrays.query * scale)
        result = _in_blocks(rule, scaled)
    else:
        result = _written_out(rule, arrays, scale)
    if query_seq_lengths is not None:
        counts = tnp.arange(query.shape[1])[:, None, None] < _column(arrays.query_lengths)
        result = tnp.where(counts, result, tnp.zeros_like(result))
    return tnp.astype(result, dtype).reshape(shape)


class _Arrays(NamedTuple):
    """The arguments that are arrays, of four axes; what is missing is None."""

    query: Any
    key: Any
    value: Any
    bias: Any
    mask: Any
    query_lengths: Any
    key_lengths: Any
    dropout_key: Any


@dataclass(frozen=True)
class _Rule:
    """The arguments that are not arrays."""

    is_causal: bool
    window: tuple[int, int] | None
    rate: float

    def visible(self, t: Any, s: Any, arrays: _Arrays, query_length: Any, key_length: Any) -> Any:
        """Which keys ``s`` the queries ``t`` see as far as their places tell, or None if that is all of them."""
        conditions = []
        if self.is_causal:
            conditions.append(t >= s)
        if self.window is not None:
            before, behind = self.window
            conditions += [s >= t - before, s <= t + behind]
        if arrays.query_lengths is not None:
            conditions.append(t < query_length)
        if arrays.key_lengths is not None:
            conditions.append(s < key_length)
        return _all(conditions)

    def has_empty_rows(self, arrays: _Arrays) -> bool:
        """Whether there may be queries for which no key counts."""
        optional = (arrays.bias, arrays.mask, arrays.query_lengths, arrays.key_lengths, self.window)
        return any(x is not None for x in optional)


def _is_long(rule: _Rule, arrays: _Arrays) -> bool:
    _, length, _, width = arrays.query.shape
    scores = length * arrays.key.shape[1]
    if not isinstance(scores, int) or not scores or not width:
        return False
    return scores >= (_MANY_SCORES if not rule.is_causal and rule.window is None else _MANY_MASKED_SCORES)


def _all(conditions: Sequence[Any]) -> Any:
    result = None
    for condition in conditions:
        result = condition if result is None else tnp.logical_and(result, condition)
    return result


# -- short sequences -------------------------------------------------------------------------------------------


def _written_out(rule: _Rule, arrays: _Arrays, scale: Any = None) -> Any:
    """The formula as it is, with the scores of all pairs in memory."""
    query, key, value, bias = arrays[:4]
    batch, length, heads, width = query.shape
    groups = key.shape[2]
    grouped = query if groups == heads else query.reshape(batch, length, groups, heads // groups, width)
    product = "btnh,bsnh->bnts" if groups == heads else "btkgh,bskh->bkgts"
    scores = tnp.einsum(product, grouped, key).reshape(batch, heads, length, key.shape[1])
    scores = scores if scale is None else scores * scale
    lowest = _lowest(scores.dtype)
    if bias is not None:
        scores = tnp.maximum(scores + bias, lowest)  # rows of -inf would become NaN
    t, s = tnp.arange(length)[:, None], tnp.arange(key.shape[1])
    lengths = (None if x is None else _column(x) for x in (arrays.query_lengths, arrays.key_lengths))
    conditions = [rule.visible(t, s, arrays, *lengths), arrays.mask]
    visible = _all([x for x in conditions if x is not None])
    if visible is not None:
        scores = tnp.where(visible, scores, lowest)
    largest = lax.stop_gradient(tnp.max(scores, axis=-1, keepdims=True))
    exponentials = tnp.exp(scores - largest)
    weights = exponentials / tnp.sum(exponentials, axis=-1, keepdims=True)
    if rule.rate:
        kept = random.bernoulli(arrays.dropout_key, 1 - rule.rate, weights.shape)
        dropped = tnp.where(kept, weights * (1 / (1 - rule.rate)), tnp.zeros_like(weights))
        weights = tnp.where(largest > lowest, dropped, weights) if rule.has_empty_rows(arrays) else dropped
    if groups == heads:
        return tnp.einsum("bnts,bsnh->btnh", weights, value)
    weights = weights.reshape(batch, groups, heads // groups, *weights.shape[2:])
    return tnp.einsum("bkgts,bskh->btkgh", weights, value).reshape(query.shape)


def _lowest(dtype: np.dtype) -> Any:
    """What stands for a score that does not count: differences of two such are still finite."""
    return dtype.type(-0.7 * float(np.finfo(dtype).max))


def _column(lengths: Any) -> Any:
    return lengths.reshape(-1, 1, 1, 1)


# -- long sequences --------------------------------------------------------------------------------------------


def _in_blocks(rule: _Rule, arrays: _Arrays) -> Any:
    """The same in linear memory; what the derivative needs of the scores is computed again.

    The derivative of the derivative is that of the formula.
    """

    @custom_vjp
    def attention(query: Any, key: Any, value: Any, bias: Any, others: tuple) -> Any:
        return _Blocks(rule, _Arrays(query, key, value, bias, *others)).forward()[0]

    def attention_forward(*parts: Any) -> tuple[Any, Any]:
        result, sums = _Blocks(rule, _Arrays(*parts[:4], *parts[4])).forward()
        return result, (parts, result, sums)

    def attention_backward(residuals: tuple, g: Any) -> tuple:
        parts, result, sums = residuals
        return (*gradients(*parts, result, sums, g), None)

    attention.defvjp(attention_forward, attention_backward)

    @custom_vjp
    def gradients(query: Any, key: Any, value: Any, bias: Any, others: tuple, result: Any, sums: Any, g: Any) -> tuple:
        return _Blocks(rule, _Arrays(query, key, value, bias, *others)).backward(result, sums, g)

    def gradients_forward(*parts: Any) -> tuple[Any, Any]:
        return gradients(*parts), (parts[:4], parts[4], parts[7])

    def gradients_backward(residuals: tuple, gs: tuple) -> tuple:
        floats, others, g = residuals

        def formula(floats: tuple, g: Any) -> tuple:
            return vjp(lambda *floats: _written_out(rule, _Arrays(*floats, *others)), *floats)[1](g)

        along_floats, along_g = vjp(formula, floats, g)[1](gs)
        return (*along_floats, None, None, None, along_g)

    gradients.defvjp(gradients_forward, gradients_backward)
    return attention(*arrays[:4], tuple(arrays[4:]))


class _Block(NamedTuple):
    """Which block: its head of keys, its rows among those of all queries of the head, its columns, and the lengths."""

    head: Any
    rows: Any
    columns: Any
    lengths: tuple[Any, Any]


class _Blocks:
    """Queries in blocks of rows, keys in blocks of columns, by head of keys; the last blocks are filled with zeros."""

    def __init__(self, rule: _Rule, arrays: _Arrays) -> None:
        self.rule, self.arrays = rule, arrays
        self.batch, self.length, self.heads, self.width = arrays.query.shape
        self.keys, self.groups = arrays.key.shape[1:3]
        self.rows = _block_size(self.length, -(-self.length // _ROWS), 8)
        self.row_blocks = -(-self.length // self.rows)
        columns = max(64, _COLUMNS * 64 // max(64, self.width))
        blocks = -(-self.keys // columns)
        pieces = -(-_PIECES // max(1, dims.typical(self.batch * self.groups)))
        self.pieces = min(1 << (pieces - 1).bit_length(), blocks)
        self.column_blocks = -(-blocks // self.pieces) * self.pieces
        self.columns = _block_size(self.keys, self.column_blocks, 16)
        self.whole = self.rows * self.row_blocks, self.columns * self.column_blocks
        self.bias, self.mask = self.flat(arrays.bias), self.flat(arrays.mask)

    # -- forwards --------------------------------------------------------------------------------------------------

    def forward(self) -> tuple[Any, Any]:
        """The result, and by blocks of queries the logarithm of the sums of the exponentials of the scores."""
        arrays, rows, width = self.arrays, self.rows, self.width
        dtype = arrays.query.dtype
        keys = tnp.permute_dims(self.key_blocks(arrays.key), (0, 1, 3, 2))
        streams = [self.query_blocks(arrays.query), keys, self.key_blocks(arrays.value), tnp.arange(keys.shape[0])]
        if self.rule.has_empty_rows(arrays):
            streams.append(tnp.mean(arrays.value, axis=1).reshape(-1, width))

        def head(parts: list) -> tuple[Any, Any]:
            queries, keys, values, h, *mean = parts
            lengths = self.lengths(h)

            def block(part: tuple) -> tuple[Any, Any]:
                query, r = part

                def step(carry: tuple, part: tuple) -> tuple[tuple, None]:
                    key, value, j = part

                    at = _Block(h, r, j, lengths)

                    def update(carry: tuple) -> tuple:
                        total, largest, weight = carry
                        scores = self.scores(query, key, at)
                        new = tnp.maximum(largest, tnp.max(scores, axis=-1))
                        exponentials = tnp.exp(scores - new[:, None])
                        shrunk = tnp.exp(largest - new)
                        weight = weight * shrunk + tnp.sum(exponentials, axis=-1)
                        return total * shrunk[:, None] + self.kept(exponentials, at) @ value, new, weight

                    return self.where_needed(update, carry, at), None

                start = (tnp.zeros((rows, width), dtype), tnp.full((rows,), _lowest(dtype)), tnp.zeros((rows,), dtype))
                indices = tnp.arange(self.column_blocks)
                (total, largest, weight), _ = lax.scan(step, start, (keys, values, indices))
                result, sums = total / weight[:, None] * (1 / (1 - self.rule.rate)), largest + tnp.log(weight)
                if mean:
                    empty = weight == 0
                    result = tnp.where(empty[:, None], mean[0], result)
                    sums = tnp.where(empty, tnp.full_like(sums, math.inf), sums)
                return result, sums

            return lax.map(block, (queries, tnp.arange(queries.shape[0])))

        result, sums = lax.map(head, streams)
        return self.queries_of(result), sums

    # -- backwards -------------------------------------------------------------------------------------------------

    def backward(self, result: Any, sums: Any, g: Any) -> tuple:
        """The cotangents of query, key, value and bias."""
        arrays = self.arrays
        dots = self.query_blocks(tnp.sum(result * g, axis=-1, keepdims=True))[..., 0]
        queries, gs = self.query_blocks(arrays.query), self.query_blocks(g * (1 / (1 - self.rule.rate)))
        keys, values = self.key_blocks(arrays.key), self.key_blocks(arrays.value)
        count, blocks = keys.shape[:2]
        split = lambda x: x.reshape(x.shape[0], self.pieces, blocks // self.pieces, *x.shape[2:])
        along_query, along_key, along_value = lax.map(
            self.backward_of_head, (queries, gs, sums, dots, split(keys), split(values), tnp.arange(count))
        )
        along_key, along_value = along_key.reshape(keys.shape), along_value.reshape(values.shape)
        if self.rule.has_empty_rows(arrays):
            empty = tnp.isinf(sums)[..., None]
            spread = tnp.sum(tnp.where(empty, gs, tnp.zeros_like(gs)), axis=(1, 2)) * ((1 - self.rule.rate) / self.keys)
            along_value = along_value + spread[:, None, None, :]
        along_bias = None
        if arrays.bias is not None:
            along_bias = self.backward_of_bias(queries, gs, sums, dots, keys, values)
        return self.queries_of(along_query), self.keys_of(along_key), self.keys_of(along_value), along_bias

    def backward_of_head(self, parts: tuple) -> tuple:
        """The cotangents of one head. Pieces of the keys are independent; what they give the queries adds up."""
        queries, gs, sums, dots, keys, values, h = parts
        lengths = self.lengths(h)
        rows = tnp.arange(queries.shape[0])

        def columns(along_queries: Any, part: tuple) -> tuple:
            key, value, j = part
            turned = key.T, value.T

            def step(carry: tuple, part: tuple) -> tuple[tuple, Any]:
                query, g, total, dot, along_query, r = part
                at = _Block(h, r, j, lengths)

                def update(state: tuple) -> tuple:
                    (along_key, along_value), along_query = state
                    weights, along_scores = self.pulled((query, g, total, dot), *turned, at)
                    along_value = along_value + self.kept(weights, at).T @ g
                    return (along_key + along_scores.T @ query, along_value), along_query + along_scores @ key

                return self.where_needed(update, (carry, along_query), at)

            start = tnp.zeros_like(key), tnp.zeros_like(value)
            carry, along_queries = lax.scan(step, start, (queries, gs, sums, dots, along_queries, rows))
            return along_queries, carry

        def piece(part: tuple) -> tuple:
            return lax.scan(columns, tnp.zeros_like(queries), part)

        indices = tnp.arange(self.column_blocks).reshape(self.pieces, -1)
        if self.pieces == 1:
            along_queries, along = piece((keys[0], values[0], indices[0]))
            return along_queries, *along
        along_queries, along = lax.map(piece, (keys, values, indices))
        return tnp.sum(along_queries, axis=0), *along

    def backward_of_bias(self, queries: Any, gs: Any, sums: Any, dots: Any, keys: Any, values: Any) -> Any:
        """The cotangent of the bias, summed over the axes along which it was repeated."""
        per_batch, per_head, per_query, per_key = (size != 1 for size in self.arrays.bias.shape)
        batch, groups, blocks, rows = self.batch, self.groups, self.column_blocks, self.row_blocks
        by_row = [x.reshape(batch, groups, -1, rows, *x.shape[2:]) for x in (queries, gs, sums, dots)]
        turned = [tnp.permute_dims(x, (1, 0, 3, 2)) for x in (keys, values)]
        by_column = [x.reshape(blocks, batch, groups, *x.shape[2:]) for x in turned]

        own = (self.rows if per_query else 1, self.columns if per_key else 1)
        of_group = (rows, *own) if per_query else own
        of_head = (self.heads // groups, *of_group) if per_head else of_group
        of_example = (groups, *of_head) if per_head else of_head
        of_column = (batch, *of_example) if per_batch else of_example

        def column(part: tuple) -> Any:
            key, value, j = part

            def example(part: tuple) -> Any:
                return _over(head, part, per_head, of_head)

            def head(part: tuple) -> Any:
                *by_row, key, value, h = part
                lengths = self.lengths(h)

                def group(part: tuple) -> Any:
                    *by_row, g = part

                    def block(part: tuple) -> Any:
                        *by_row, i = part
                        along = self.pulled(by_row, key, value, _Block(h, g * rows + i, j, lengths))[1]
                        along = along if per_query else tnp.sum(along, axis=0, keepdims=True)
                        return along if per_key else tnp.sum(along, axis=1, keepdims=True)

                    return _over(block, (*by_row, tnp.arange(rows)), per_query, own)

                return _over(group, (*by_row, tnp.arange(self.heads // groups)), per_head, of_group)

            heads = tnp.arange(batch * groups).reshape(batch, groups)
            return _over(example, (*by_row, key, value, heads), per_batch, of_example)

        found = _over(column, (*by_column, tnp.arange(blocks)), per_key, of_column)
        # Blocks of columns, batch, heads of keys, their heads of queries, blocks of rows, rows, columns.
        stacked = (per_key, per_batch, per_head, per_head, per_query, True, True)
        found_sizes = iter(found.shape)
        found = found.reshape([next(found_sizes) if has else 1 for has in stacked])
        found = tnp.permute_dims(found, (1, 2, 3, 4, 5, 0, 6))
        sizes = self.arrays.bias.shape
        found = found.reshape(sizes[0], sizes[1], found.shape[3] * found.shape[4], -1)
        return found[:, :, : sizes[2], : sizes[3]]

    def pulled(self, by_row: Sequence[Any], key: Any, value: Any, at: _Block) -> tuple[Any, Any]:
        """The weights of a block again, and the cotangents of its scores; ``key`` and ``value`` are transposed."""
        query, g, total, dot = by_row
        weights = tnp.exp(self.scores(query, key, at) - total[:, None])
        return weights, weights * (self.kept(g @ value, at) - dot[:, None])

    # -- one block -------------------------------------------------------------------------------------------------

    def scores(self, query: Any, key: Any, at: _Block) -> Any:
        """The scores of a block, with -inf where they do not count; ``key`` is transposed.

        Barriers: a matrix product that looks up the place of each vector of a bias or mask would be slow.
        """
        arrays = self.arrays
        scores = query @ key
        nothing = scores.dtype.type(-math.inf)
        if arrays.bias is not None:
            scores = scores + barrier(self.block_of(self.bias, arrays.bias.shape, at))
        first_t, first_s = self.first(at)
        t, s = first_t + tnp.arange(self.rows)[:, None], first_s + tnp.arange(self.columns)
        conditions = [self.rule.visible(t, s, arrays, *at.lengths)]
        if self.keys % self.columns:
            conditions.append(s < self.keys)
        visible = _all([x for x in conditions if x is not None])
        scores = scores if visible is None else tnp.where(visible, scores, nothing)
        if arrays.mask is None:
            return scores
        seen = self.block_of(self.mask, arrays.mask.shape, at)
        return scores + barrier(tnp.where(seen, tnp.zeros(seen.shape, scores.dtype), nothing))

    def first(self, at: _Block) -> tuple[Any, Any]:
        """The places of the first row and the first column."""
        return at.rows % self.row_blocks * self.rows, at.columns * self.columns

    def lengths(self, h: Any) -> tuple[Any, Any]:
        """The lengths of queries and keys for a head."""
        of_head = lambda lengths: None if lengths is None else lengths[h // self.groups]
        return of_head(self.arrays.query_lengths), of_head(self.arrays.key_lengths)

    def where_needed(self, update: Callable, state: tuple, at: _Block) -> tuple:
        """``update(state)``, or ``state`` if the places of a block tell that none of its scores counts."""
        first_t, first_s = self.first(at)
        last_t, last_s = first_t + (self.rows - 1), first_s + (self.columns - 1)
        query_length, key_length = at.lengths
        conditions = [last_t >= first_s] if self.rule.is_causal else []
        if self.rule.window is not None:
            before, behind = self.rule.window
            conditions += [last_s >= first_t - before, first_s <= last_t + behind]
        if query_length is not None:
            conditions.append(first_t < query_length)
        if key_length is not None:
            conditions.append(first_s < key_length)
        needed = _all(conditions)
        return update(state) if needed is None else lax.cond(needed, update, lambda state: state, state)

    def flat(self, x: Any) -> Any:
        """A bias or mask as rows of keys, filled up to whole blocks; outside of all loops."""
        if x is None:
            return None
        length, keys = (1 if size == 1 else full for size, full in zip(x.shape[2:], self.whole, strict=True))
        x = tnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, keys - x.shape[3])))
        return x.reshape(-1, keys)

    def block_of(self, flat: Any, shape: tuple, at: _Block) -> Any:
        """A block of a bias or mask of a shape, of one row or column where it has no more."""
        batch, heads, length, keys = shape
        first_t, first_s = self.first(at)
        place = self.head_of(at) if heads != 1 else tnp.zeros((), "int32")
        if batch != 1:
            place = place + at.head // self.groups * heads
        top = place if length == 1 else place * self.whole[0] + first_t
        left = first_s if keys != 1 else tnp.zeros((), "int32")
        sizes = (1 if length == 1 else self.rows, 1 if keys == 1 else self.columns)
        return lax.dynamic_slice(flat, (top, left), sizes)

    def head_of(self, at: _Block) -> Any:
        """The head of a block of queries."""
        return at.head % self.groups * (self.heads // self.groups) + at.rows // self.row_blocks

    def kept(self, x: Any, at: _Block) -> Any:
        """A block without the elements that are dropped: those that :func:`random.bernoulli` drops of all weights."""
        if not self.rule.rate:
            return x
        wide = lambda number: tnp.astype(number, "uint64")
        first_t, first_s = self.first(at)
        row = wide(at.head // self.groups * self.heads + self.head_of(at)) * self.length
        row = row + wide(first_t + tnp.arange(self.rows))
        first = row * self.keys + wide(first_s)
        high, low = (tnp.astype(word, "uint32") for word in (tnp.bitwise_right_shift(first, 32), first))
        words = tnp.stack([high, low], axis=-1)
        keys = tnp.broadcast_to(self.arrays.dropout_key, words.shape)
        bits = threefry2x32(keys, words, shape=(self.columns,), word="xor")
        # Its uniform numbers are made of the first 23 bits.
        least = np.uint32(math.ceil(float(np.float32(1 - self.rule.rate)) * 2**23))
        return tnp.where(tnp.bitwise_right_shift(bits, 9) < least, x, tnp.zeros_like(x))

    # -- layout ----------------------------------------------------------------------------------------------------

    def query_blocks(self, x: Any) -> Any:
        """From (batch, length, heads, width) to (heads of keys, blocks, rows, width), the blocks by head of queries."""
        blocks, groups = self.row_blocks, self.groups
        x = tnp.pad(x, ((0, 0), (0, blocks * self.rows - self.length), (0, 0), (0, 0)))
        x = x.reshape(self.batch, blocks, self.rows, groups, self.heads // groups, x.shape[3])
        x = tnp.permute_dims(x, (0, 3, 4, 1, 2, 5))
        return x.reshape(self.batch * groups, self.heads // groups * blocks, self.rows, x.shape[5])

    def queries_of(self, x: Any) -> Any:
        """The inverse."""
        blocks, groups = self.row_blocks, self.groups
        x = x.reshape(self.batch, groups, self.heads // groups, blocks, self.rows, self.width)
        x = tnp.permute_dims(x, (0, 3, 4, 1, 2, 5)).reshape(self.batch, blocks * self.rows, self.heads, self.width)
        return x[:, : self.length]

    def key_blocks(self, x: Any) -> Any:
        """From (batch, length, heads, width) to (heads, blocks, columns, width)."""
        blocks, groups = self.column_blocks, self.groups
        x = tnp.pad(x, ((0, 0), (0, blocks * self.columns - self.keys), (0, 0), (0, 0)))
        x = tnp.permute_dims(x.reshape(self.batch, blocks, self.columns, groups, self.width), (0, 3, 1, 2, 4))
        return x.reshape(self.batch * groups, blocks, self.columns, self.width)

    def keys_of(self, x: Any) -> Any:
        """The inverse."""
        blocks, groups = self.column_blocks, self.groups
        x = x.reshape(self.batch, groups, blocks, self.columns, self.width)
        x = tnp.permute_dims(x, (0, 2, 3, 1, 4)).reshape(self.batch, blocks * self.columns, groups, self.width)
        return x[:, : self.keys]


def _block_size(size: int, blocks: int, unit: int) -> int:
    """The size of so many equal blocks, a multiple of ``unit``."""
    return -(-size // (blocks * unit)) * unit


def _over(function: Callable, xs: Any, stacks: bool, shape: tuple) -> Any:
    """The results of a function of rows, arrays of a shape, stacked or summed."""
    if stacks:
        return lax.map(function, xs)
    return lax.scan(lambda total, row: (total + function(row), None), tnp.zeros(shape, xs[0].dtype), xs)[0]


# -- arguments -------------------------------------------------------------------------------------------------


def _with_batch(x: Array) -> Array:
    return x[None] if x.ndim == 3 else x


def _check_arrays(query: Array, key: Array, value: Array) -> None:
    got = f"{query.aval}, {key.aval} and {value.aval}"
    if query.ndim != 4 or key.ndim != 4 or value.shape != key.shape:
        text = "query must be (batch, length, heads, width), key and value likewise and of one shape"
        raise ShapeError("dot_product_attention", text, got=got, hint="x.reshape(batch, length, heads, width)")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3] or query.shape[2] % max(1, key.shape[2]):
        text = "query and key must have one batch and width, and the heads of key must divide those of query"
        raise ShapeError("dot_product_attention", text, got=got)
    if not dtypes.is_float(query.dtype) or not query.dtype == key.dtype == value.dtype:
        hint = "x.astype(query.dtype)"
        text = "query, key and value must be floats of one dtype"
        raise DtypeError("dot_product_attention", text, got=got, hint=hint)


def _of_scores(name: str, x: Any, query: Array, key: Array) -> Array:
    """A bias or mask with four axes."""
    x = _with_batch(tnp.asarray(x))
    if name == "mask" and x.dtype != dtypes.bool_:
        hint = "mask=mask != 0, or bias= for numbers to add"
        raise DtypeError("dot_product_attention", "the mask must be bools", got=str(x.aval), hint=hint)
    sizes = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    if x.ndim != 4 or any(size not in (1, full) for size, full in zip(x.shape, sizes, strict=True)):
        raise ShapeError("dot_product_attention", f"the {name} must broadcast to {sizes}", got=str(x.aval))
    return x


def _lengths(x: Any, query: Array) -> Array | None:
    if x is None:
        return None
    x = tnp.asarray(x)
    if not dtypes.is_integer(x.dtype):
        raise DtypeError("dot_product_attention", "lengths must be integers", got=str(x.aval))
    if x.shape != query.shape[:1]:
        raise ShapeError("dot_product_attention", f"there must be {query.shape[0]} lengths", got=str(x.aval))
    return tnp.astype(x, "int32")


def _dropout_key(rate: float, key: Any) -> Any:
    if not 0 <= rate < 1:
        raise ArgumentError("dot_product_attention", "the rate must be at least 0 and less than 1", got=str(rate))
    if rate and key is None:
        hint = "dropout_key=random.key(0)"
        raise ArgumentError("dot_product_attention", "a key is needed to drop weights", got="None", hint=hint)
    return tnp.asarray(key) if rate else None
