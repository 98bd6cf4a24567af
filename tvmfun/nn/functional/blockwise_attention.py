"""Attention block by block, in memory linear in the lengths, for long sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.nn.functional.direct_attention import (
    AttentionInputs,
    AttentionSettings,
    conjunction,
    direct_attention,
    lowest_score,
)
from tvmfun.nn.functional.recomputing_attention import recomputing_attention
from tvmfun.ops.attention import kept_below
from tvmfun.ops.bits import threefry2x32
from tvmfun.ops.calls import barrier

__all__ = ["blockwise_attention"]

# The queries of a block, for heads of up to 64 elements: the operands of a step fit a core's L1 and L2 caches, and
# causality leaves out many blocks.
_ROWS = 64
# The keys of a block.
_COLUMNS = 128
# Independent pieces of work that keep the cores of usual machines busy.
_PIECES = 16


def blockwise_attention(settings: AttentionSettings, inputs: AttentionInputs) -> Array:
    """Computes :func:`direct_attention` in linear memory, with an online softmax.

    The backward pass recomputes the scores block by block. Second derivatives are those of the direct formula.
    """

    def forward(inputs: AttentionInputs) -> tuple[Array, Array]:
        return _Blocks(settings, inputs).forward()

    def backward(inputs: AttentionInputs, result: Array, log_sums: Array, g: Array) -> tuple:
        return _Blocks(settings, inputs).backward(result, log_sums, g)

    def formula(inputs: AttentionInputs) -> Array:
        return direct_attention(settings, inputs)

    return recomputing_attention(inputs, forward, backward, formula)


class _Block(NamedTuple):
    """Indices of a block: its key head, its rows among the queries of that head, its columns; and the lengths."""

    head: Array
    rows: Array
    columns: Array
    lengths: tuple[Array | None, Array | None]


class _Blocks:
    """The scores as blocks: for each key head, rows of queries by columns of keys, both padded to whole blocks.

    With grouped queries the rows of a key head are the queries of all query heads that share it.
    """

    def __init__(self, settings: AttentionSettings, inputs: AttentionInputs) -> None:
        self.settings, self.inputs = settings, inputs
        self.batch, self.length, self.heads, self.width = inputs.query.shape
        self.keys, self.groups = inputs.key.shape[1:3]
        self.rows = _block_size(self.length, -(-self.length // _ROWS), 8)
        self.row_blocks = -(-self.length // self.rows)
        columns = max(64, _COLUMNS * 64 // max(64, self.width))
        blocks = -(-self.keys // columns)
        pieces = -(-_PIECES // max(1, dims.typical(self.batch * self.groups)))
        self.pieces = min(1 << (pieces - 1).bit_length(), blocks)
        self.column_blocks = -(-blocks // self.pieces) * self.pieces
        self.columns = _block_size(self.keys, self.column_blocks, 16)
        self.padded = self.rows * self.row_blocks, self.columns * self.column_blocks
        self.bias, self.mask = self.flattened(inputs.bias), self.flattened(inputs.mask)

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self) -> tuple[Array, Array]:
        """The result, and the logarithms of the sums of exponentiated scores, by blocks of queries."""
        inputs = self.inputs
        keys = tnp.permute_dims(self.key_blocks(inputs.key), (0, 1, 3, 2))
        streams = [self.query_blocks(inputs.query), keys, self.key_blocks(inputs.value), tnp.arange(keys.shape[0])]
        if self.settings.has_empty_rows(inputs):
            streams.append(tnp.mean(inputs.value, axis=1).reshape(-1, self.width))

        def head(parts: list) -> tuple[Array, Array]:
            queries, keys, values, h, *mean = parts
            lengths = self.lengths(h)

            def rows(part: tuple) -> tuple[Array, Array]:
                query, r = part
                return self.forward_of_rows(query, keys, values, h, r, lengths, *mean)

            return lax.map(rows, (queries, tnp.arange(queries.shape[0])))

        result, log_sums = lax.map(head, streams)
        return self.from_query_blocks(result), log_sums

    def forward_of_rows(
        self,
        query: Array,
        keys: Array,
        values: Array,
        h: Array,
        r: Array,
        lengths: tuple[Array | None, Array | None],
        mean: Array | None = None,
    ) -> tuple[Array, Array]:
        """The result and the log-sums of a block of rows; ``mean`` is the result of rows without a visible key."""

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
                return total * shrunk[:, None] + self.dropout(exponentials, at) @ value, new, weight

            return self.unless_masked(update, carry, at), None

        dtype, size = self.inputs.query.dtype, (self.rows,)
        start = (
            tnp.zeros((*size, self.width), dtype),
            tnp.full(size, lowest_score(dtype), dtype),
            tnp.zeros(size, dtype),
        )
        (total, largest, weight), _ = lax.scan(step, start, (keys, values, tnp.arange(self.column_blocks)))
        result, log_sums = total / weight[:, None] * (1 / (1 - self.settings.rate)), largest + tnp.log(weight)
        if mean is not None:
            is_empty = weight == 0
            result = tnp.where(is_empty[:, None], mean, result)
            log_sums = tnp.where(is_empty, tnp.full_like(log_sums, math.inf), log_sums)
        return result, log_sums

    # -- backward --------------------------------------------------------------------------------------------------

    def backward(self, result: Array, log_sums: Array, g: Array) -> tuple:
        """The cotangents of query, key, value and bias."""
        inputs = self.inputs
        dots = self.query_blocks(tnp.sum(result * g, axis=-1, keepdims=True))[..., 0]
        queries, gs = self.query_blocks(inputs.query), self.query_blocks(g * (1 / (1 - self.settings.rate)))
        keys, values = self.key_blocks(inputs.key), self.key_blocks(inputs.value)
        count, blocks = keys.shape[:2]
        split = lambda x: x.reshape(x.shape[0], self.pieces, blocks // self.pieces, *x.shape[2:])
        d_query, d_key, d_value = lax.map(
            self.backward_of_head, (queries, gs, log_sums, dots, split(keys), split(values), tnp.arange(count))
        )
        d_key, d_value = d_key.reshape(keys.shape), d_value.reshape(values.shape)
        if self.settings.has_empty_rows(inputs):
            is_empty = tnp.isinf(log_sums)[..., None]
            of_empty = tnp.sum(tnp.where(is_empty, gs, tnp.zeros_like(gs)), axis=(1, 2))
            d_value = d_value + (of_empty * ((1 - self.settings.rate) / self.keys))[:, None, None, :]
        d_bias = None
        if inputs.bias is not None:
            d_bias = self.backward_of_bias(inputs.bias, queries, gs, log_sums, dots, keys, values)
        return self.from_query_blocks(d_query), self.from_key_blocks(d_key), self.from_key_blocks(d_value), d_bias

    def backward_of_head(self, parts: tuple) -> tuple:
        """The cotangents of one head. Pieces of the keys run in parallel; queries' cotangents are summed over them."""
        queries, gs, log_sums, dots, keys, values, h = parts
        lengths = self.lengths(h)
        rows = tnp.arange(queries.shape[0])

        def columns(d_queries: Array, part: tuple) -> tuple:
            key, value, j = part
            transposed = key.T, value.T

            def step(carry: tuple, part: tuple) -> tuple[tuple, Array]:
                query, g, log_sum, dot, d_query, r = part
                at = _Block(h, r, j, lengths)

                def update(state: tuple) -> tuple:
                    (d_key, d_value), d_query = state
                    weights, d_scores = self.weights_and_cotangents((query, g, log_sum, dot), *transposed, at)
                    d_value = d_value + self.dropout(weights, at).T @ g
                    return (d_key + d_scores.T @ query, d_value), d_query + d_scores @ key

                return self.unless_masked(update, (carry, d_query), at)

            start = tnp.zeros_like(key), tnp.zeros_like(value)
            carry, d_queries = lax.scan(step, start, (queries, gs, log_sums, dots, d_queries, rows))
            return d_queries, carry

        def piece(part: tuple) -> tuple:
            return lax.scan(columns, tnp.zeros_like(queries), part)

        indices = tnp.arange(self.column_blocks).reshape(self.pieces, -1)
        if self.pieces == 1:
            d_queries, d_keys = piece((keys[0], values[0], indices[0]))
            return d_queries, *d_keys
        d_queries, d_keys = lax.map(piece, (keys, values, indices))
        return tnp.sum(d_queries, axis=0), *d_keys

    def backward_of_bias(
        self, bias: Array, queries: Array, gs: Array, log_sums: Array, dots: Array, keys: Array, values: Array
    ) -> Array:
        """The cotangent of the bias, summed over the axes d_scores which it was broadcast."""
        per_batch, per_head, per_query, per_key = (size != 1 for size in bias.shape)
        batch, groups, blocks, rows = self.batch, self.groups, self.column_blocks, self.row_blocks
        by_row = [x.reshape(batch, groups, -1, rows, *x.shape[2:]) for x in (queries, gs, log_sums, dots)]
        transposed = [tnp.permute_dims(x, (1, 0, 3, 2)) for x in (keys, values)]
        by_column = [x.reshape(blocks, batch, groups, *x.shape[2:]) for x in transposed]

        own = (self.rows if per_query else 1, self.columns if per_key else 1)
        of_group = (rows, *own) if per_query else own
        of_head = (self.heads // groups, *of_group) if per_head else of_group
        of_example = (groups, *of_head) if per_head else of_head
        of_column = (batch, *of_example) if per_batch else of_example

        def column(part: tuple) -> Array:
            key, value, j = part

            def example(part: tuple) -> Array:
                return _map_or_sum(head, part, per_head, of_head)

            def head(part: tuple) -> Array:
                *by_row, key, value, h = part
                lengths = self.lengths(h)

                def group(part: tuple) -> Array:
                    *by_row, g = part

                    def block(part: tuple) -> Array:
                        *by_row, i = part
                        d_scores = self.weights_and_cotangents(by_row, key, value, _Block(h, g * rows + i, j, lengths))[
                            1
                        ]
                        d_scores = d_scores if per_query else tnp.sum(d_scores, axis=0, keepdims=True)
                        return d_scores if per_key else tnp.sum(d_scores, axis=1, keepdims=True)

                    return _map_or_sum(block, (*by_row, tnp.arange(rows)), per_query, own)

                return _map_or_sum(group, (*by_row, tnp.arange(self.heads // groups)), per_head, of_group)

            heads = tnp.arange(batch * groups).reshape(batch, groups)
            return _map_or_sum(example, (*by_row, key, value, heads), per_batch, of_example)

        d_bias = _map_or_sum(column, (*by_column, tnp.arange(blocks)), per_key, of_column)
        # Axes: blocks of columns, batch, key heads, their query heads, blocks of rows, rows, columns.
        stacked = (per_key, per_batch, per_head, per_head, per_query, True, True)
        remaining = iter(d_bias.shape)
        d_bias = d_bias.reshape([next(remaining) if has else 1 for has in stacked])
        d_bias = tnp.permute_dims(d_bias, (1, 2, 3, 4, 5, 0, 6))
        sizes = bias.shape
        d_bias = d_bias.reshape(sizes[0], sizes[1], d_bias.shape[3] * d_bias.shape[4], -1)
        return d_bias[:, :, : sizes[2], : sizes[3]]

    def weights_and_cotangents(
        self, by_row: Sequence[Array], key: Array, value: Array, at: _Block
    ) -> tuple[Array, Array]:
        """The recomputed weights of a block, and the cotangents of its scores, from transposed keys and values."""
        query, g, log_sum, dot = by_row
        weights = tnp.exp(self.scores(query, key, at) - log_sum[:, None])
        return weights, weights * (self.dropout(g @ value, at) - dot[:, None])

    # -- one block -------------------------------------------------------------------------------------------------

    def scores(self, query: Array, key: Array, at: _Block) -> Array:
        """The scores of a block from transposed keys, -inf where they are masked.

        Barriers keep the slicing of bias and mask out of the inner loop of the matrix product.
        """
        inputs = self.inputs
        scores = query @ key
        masked = scores.dtype.type(-math.inf)
        if inputs.bias is not None:
            scores = scores + barrier(self.block_of(self.bias, inputs.bias.shape, at))
        first_t, first_s = self.offsets(at)
        t, s = first_t + tnp.arange(self.rows)[:, None], first_s + tnp.arange(self.columns)
        is_padded = self.keys % self.columns
        visible = conjunction([self.settings.visible(t, s, *at.lengths), s < self.keys if is_padded else None])
        scores = scores if visible is None else tnp.where(visible, scores, masked)
        if inputs.mask is None:
            return scores
        mask = self.block_of(self.mask, inputs.mask.shape, at)
        return scores + barrier(tnp.where(mask, tnp.zeros(mask.shape, scores.dtype), masked))

    def offsets(self, at: _Block) -> tuple[Array, Array]:
        """The positions of the first query and the first key of a block."""
        return at.rows % self.row_blocks * self.rows, at.columns * self.columns

    def lengths(self, h: Array) -> tuple[Array | None, Array | None]:
        """The lengths of queries and keys in the example that a head belongs to."""
        both = self.inputs.query_lengths, self.inputs.key_lengths
        query, key = (None if lengths is None else lengths[h // self.groups] for lengths in both)
        return query, key

    def unless_masked(self, update: Callable[[tuple], tuple], state: tuple, at: _Block) -> tuple:
        """``update(state)``, or ``state`` for a block that causality, window or lengths mask as a whole."""
        first_t, first_s = self.offsets(at)
        last_t, last_s = first_t + (self.rows - 1), first_s + (self.columns - 1)
        query_length, key_length = at.lengths
        conditions = [last_t >= first_s] if self.settings.is_causal else []
        if self.settings.window is not None:
            before, after = self.settings.window
            conditions += [last_s >= first_t - before, first_s <= last_t + after]
        if query_length is not None:
            conditions.append(first_t < query_length)
        if key_length is not None:
            conditions.append(first_s < key_length)
        needed = conjunction(conditions)
        return update(state) if needed is None else lax.cond(needed, update, lambda state: state, state)

    def flattened(self, x: Array | None) -> Array | None:
        """A bias or mask as a matrix with a column per key, padded to whole blocks; made outside of all loops."""
        if x is None:
            return None
        length, keys = (1 if size == 1 else full for size, full in zip(x.shape[2:], self.padded, strict=True))
        x = tnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, keys - x.shape[3])))
        return x.reshape(-1, keys)

    def block_of(self, flat: Array | None, shape: tuple, at: _Block) -> Array:
        """The block of a flattened bias or mask of a shape; one row or column where it broadcasts."""
        batch, heads, length, keys = shape
        first_t, first_s = self.offsets(at)
        index = self.query_head(at) if heads != 1 else tnp.zeros((), "int32")
        if batch != 1:
            index = index + at.head // self.groups * heads
        top = index if length == 1 else index * self.padded[0] + first_t
        left = first_s if keys != 1 else tnp.zeros((), "int32")
        sizes = (1 if length == 1 else self.rows, 1 if keys == 1 else self.columns)
        return lax.dynamic_slice(flat, (top, left), sizes)

    def query_head(self, at: _Block) -> Array:
        """The query head that the rows of a block belong to."""
        return at.head % self.groups * (self.heads // self.groups) + at.rows // self.row_blocks

    def dropout(self, x: Array, at: _Block) -> Array:
        """A block with zeros at the weights that ``random.bernoulli`` of the whole matrix of weights would drop."""
        if not self.settings.rate:
            return x
        wide = lambda number: tnp.astype(number, "uint64")
        first_t, first_s = self.offsets(at)
        row = wide(at.head // self.groups * self.heads + self.query_head(at)) * self.length
        row = row + wide(first_t + tnp.arange(self.rows))
        first = row * self.keys + wide(first_s)
        high, low = (tnp.astype(word, "uint32") for word in (tnp.bitwise_right_shift(first, 32), first))
        words = tnp.stack([high, low], axis=-1)
        keys = tnp.broadcast_to(self.inputs.dropout_key, words.shape)
        bits = threefry2x32(keys, words, shape=(self.columns,), word="xor")
        # random.uniform makes its numbers of the upper 23 bits.
        is_kept = tnp.bitwise_right_shift(bits, 9) < np.uint32(kept_below(self.settings.rate))
        return tnp.where(is_kept, x, tnp.zeros_like(x))

    # -- layout ----------------------------------------------------------------------------------------------------

    def query_blocks(self, x: Array) -> Array:
        """Turns (batch, length, heads, width) into (key heads, blocks, rows, width), blocks ordered by query head."""
        blocks, groups = self.row_blocks, self.groups
        x = tnp.pad(x, ((0, 0), (0, blocks * self.rows - self.length), (0, 0), (0, 0)))
        x = x.reshape(self.batch, blocks, self.rows, groups, self.heads // groups, x.shape[3])
        x = tnp.permute_dims(x, (0, 3, 4, 1, 2, 5))
        return x.reshape(self.batch * groups, self.heads // groups * blocks, self.rows, x.shape[5])

    def from_query_blocks(self, x: Array) -> Array:
        """The inverse of :meth:`query_blocks`."""
        blocks, groups = self.row_blocks, self.groups
        x = x.reshape(self.batch, groups, self.heads // groups, blocks, self.rows, self.width)
        x = tnp.permute_dims(x, (0, 3, 4, 1, 2, 5)).reshape(self.batch, blocks * self.rows, self.heads, self.width)
        return x[:, : self.length]

    def key_blocks(self, x: Array) -> Array:
        """Turns (batch, length, heads, width) into (heads, blocks, columns, width)."""
        blocks, groups = self.column_blocks, self.groups
        x = tnp.pad(x, ((0, 0), (0, blocks * self.columns - self.keys), (0, 0), (0, 0)))
        x = tnp.permute_dims(x.reshape(self.batch, blocks, self.columns, groups, self.width), (0, 3, 1, 2, 4))
        return x.reshape(self.batch * groups, blocks, self.columns, self.width)

    def from_key_blocks(self, x: Array) -> Array:
        """The inverse of :meth:`key_blocks`."""
        blocks, groups = self.column_blocks, self.groups
        x = x.reshape(self.batch, groups, blocks, self.columns, self.width)
        x = tnp.permute_dims(x, (0, 2, 3, 1, 4)).reshape(self.batch, blocks * self.columns, groups, self.width)
        return x[:, : self.keys]


def _block_size(size: int, blocks: int, unit: int) -> int:
    """The size of ``blocks`` equal blocks that cover ``size`` elements, a multiple of ``unit``."""
    return -(-size // (blocks * unit)) * unit


def _map_or_sum(function: Callable[[tuple], Array], xs: tuple, stacks: bool, shape: tuple) -> Array:
    """The results of a function of each row, arrays of a shape: stacked, or their sum."""
    if stacks:
        return lax.map(function, xs)
    return lax.scan(lambda total, row: (total + function(row), None), tnp.zeros(shape, xs[0].dtype), xs)[0]
