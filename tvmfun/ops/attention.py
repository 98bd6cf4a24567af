r"""Attention without stored scores: the result with its log-sums, and the cotangents from these.

.. math::

    S = s Q K^\top + B, \qquad L_t = \log \sum_s e^{S_{ts}}, \qquad P = e^{S - L}, \qquad O = (D \circ P) V

with the scale :math:`s`, a bias :math:`B` that is minus infinity where a pair is masked, and the factors :math:`D` of
dropout. With the cotangent :math:`G` of :math:`O` and the dot products :math:`d_t = G_t \cdot O_t`, the cotangents are

.. math::

    dS = P \circ (D \circ G V^\top - d), \qquad dV = (D \circ P)^\top G, \qquad
    dQ = s\, dS\, K, \qquad dK = s\, dS^\top Q

The loop programs here define the ops; GPUs have tiled ones (``lower/schedule/gpu/attention.py``).

Source: Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.batching import repeat
from tvmfun.core.op import Op, register
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.ops import shape as shapes
from tvmfun.ops.bits import threefry_block
from tvmfun.ops.parameters import Ints, Size
from tvmfun.ops.tir import block, prim_func

#: The names of the arguments that an attention may have, in their order.
OPTIONAL = ("bias", "mask", "query_lengths", "key_lengths", "dropout_key", "kept")
#: The most elements of a head for which GPUs have tiled programs: their sums fit the registers of a thread.
WIDEST_HEAD = 128
#: The bits of dropout in a word.
WORD = 32
#: The attribute of a function with the settings of its attention.
ATTRIBUTE = "tvmfun.attention"


@dataclass(frozen=True)
class AttentionParams:
    """The parameters of an attention.

    Args:
        gradients: whether it is the op for the cotangents.
        optional: the names of the arguments after the required ones, a part of :data:`OPTIONAL`.
        causal: whether queries see only keys at and before their own position.
        window: the number of keys that a query sees before and after its own position; None for all.
        rate: the probability with which a weight is dropped: by draws from ``dropout_key``, or as ``kept`` says.
        scale: the factor of the products of queries and keys.
        precision: ``"tensorfloat32"`` if factors may be rounded to 11 bits.
        narrow: whether results, apart from log-sums, are rounded to the dtype of the factors.
    """

    gradients: bool
    optional: tuple[str, ...] = ()
    causal: bool = False
    window: tuple[int, int] | None = None
    rate: float = 0.0
    scale: float = 1.0
    precision: str | None = None
    narrow: bool = False

    @property
    def text(self) -> str:
        """The settings as the attribute of a function."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> AttentionParams:
        """The inverse of :attr:`text`."""
        values = json.loads(text)
        window = values["window"] and tuple(values["window"])
        return cls(**{**values, "optional": tuple(values["optional"]), "window": window})

    @property
    def required(self) -> int:
        """The number of required arguments."""
        return 6 if self.gradients else 3

    def named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """The optional arguments by name."""
        return dict(zip(self.optional, arguments[self.required :], strict=True))


def kept_below(rate: float) -> int:
    """The bound of 23 random bits below which a weight is kept, as in ``random.bernoulli(key, 1 - rate)``."""
    return math.ceil(float(np.float32(1 - rate)) * 2**23)


def word_count(keys: Any) -> Any:
    """The number of words with the dropout bits of a query."""
    return (keys + WORD - 1) // WORD


def broadcasting_index(aval: ShapeDtype | tirx.Buffer, index: Sequence[Any]) -> tuple:
    """The index of an element of a bias or mask, whose axes of size 1 are broadcast."""
    is_one = lambda size: isinstance(size, int | tirx.IntImm) and int(size) == 1
    return tuple(0 if is_one(size) else i for size, i in zip(aval.shape, index, strict=True))


# -- shapes ------------------------------------------------------------------------------------------------------------

_KINDS: dict[str, Callable[[np.dtype], bool]] = {
    "bias": dtypes.is_float,
    "mask": lambda dtype: dtype == dtypes.bool_,
    "query_lengths": dtypes.is_integer,
    "key_lengths": dtypes.is_integer,
    "dropout_key": lambda dtype: dtype == dtypes.uint32,
    "kept": lambda dtype: dtype == dtypes.uint32,
}


def _check_settings(name: str, settings: AttentionParams) -> None:
    if settings.optional != tuple(option for option in OPTIONAL if option in settings.optional):
        what = f"optional arguments are {', '.join(OPTIONAL)}, in this order"
        raise ArgumentError(name, what, got=str(settings.optional))
    if not 0 <= settings.rate < 1 or (settings.rate and not {"dropout_key", "kept"}.intersection(settings.optional)):
        raise ArgumentError(name, "the rate must be from 0 to below 1, and needs a key", got=str(settings.rate))
    if {"dropout_key", "kept"}.issubset(settings.optional):
        raise ArgumentError(name, "dropout needs a key or its bits, not both", got=str(settings.optional))


def _check(name: str, settings: AttentionParams, avals: Sequence[ShapeDtype]) -> None:
    _check_settings(name, settings)
    if len(avals) != settings.required + len(settings.optional):
        what = f"there must be {settings.required} arguments and {len(settings.optional)} optional ones"
        raise ShapeError(name, what, got=str(len(avals)))
    query, key, value = avals[:3]
    floats = avals[: 4 if settings.gradients else 3]
    if any(aval.dtype != query.dtype for aval in floats) or not dtypes.is_float(query.dtype):
        raise DtypeError(name, "the factors must be floats of one dtype", got=", ".join(map(str, floats)))
    if query.ndim != 4 or key.ndim != 4:
        raise ShapeError(name, "queries and keys must have 4 axes", got=f"{query} and {key}")
    batch, length, heads, width = query.shape
    groups = key.shape[2]
    if key.shape != value.shape or (key.shape[0], key.shape[3]) != (batch, width) or not divides(groups, heads):
        raise ShapeError(name, "queries, keys and values must fit", got=", ".join(map(str, avals[:3])))
    if settings.gradients:
        expected = [query.shape, (batch, heads, length), (batch, length, heads)]
        if [aval.shape for aval in avals[3:6]] != expected:
            got = ", ".join(map(str, avals[3:6]))
            raise ShapeError(name, "the cotangent, log-sums and dot products must fit the queries", got=got)
        if any(aval.dtype != _wide(query) for aval in avals[4:6]):
            raise DtypeError(name, "log-sums and dot products must not be of half precision", got=str(avals[4]))
    scores = (batch, heads, length, key.shape[1])
    for option, aval in settings.named(avals).items():
        if option in ("bias", "mask"):
            fits = aval.ndim == 4 and all(size in (1, full) for size, full in zip(aval.shape, scores, strict=True))
        elif option == "dropout_key":
            fits = _are_keys(aval, batch)
        elif option == "kept":
            fits = aval.shape == (*scores[:3], word_count(scores[3]))
        else:
            fits = aval.shape == (batch,)
        if not fits:
            raise ShapeError(name, f"{option} must fit scores of shape {scores}", got=str(aval))
        if not _KINDS[option](aval.dtype):
            raise DtypeError(name, f"{option} cannot have this dtype", got=str(aval))


def divides(count: Size, size: Size) -> bool:
    """Whether an axis of ``size`` elements can be cut into ``count`` equal parts."""
    return size % count == 0 if count else size == 0


def _are_keys(aval: ShapeDtype, batch: Size) -> bool:
    """Whether an array has keys of dropout for equally many examples each."""
    return aval.ndim == 2 and aval.shape[1] == 2 and divides(aval.shape[0], batch)


def _wide(aval: ShapeDtype) -> Any:
    return aval.dtype if aval.dtype == dtypes.float64 else dtypes.float32


def _attention_shape(
    *avals: ShapeDtype,
    optional: tuple[str, ...] = (),
    causal: bool = False,
    window: tuple[int, int] | None = None,
    rate: float = 0.0,
    scale: float = 1.0,
    precision: Literal["tensorfloat32"] | None = None,
    narrow: bool = False,
) -> tuple[ShapeDtype, ShapeDtype]:
    _check("attention", AttentionParams(False, optional, causal, window, rate, scale, precision, narrow), avals)
    batch, length, heads, _ = avals[0].shape
    dtype = avals[0].dtype if narrow else _wide(avals[0])
    return ShapeDtype(avals[0].shape, dtype), ShapeDtype((batch, heads, length), _wide(avals[0]))


def _gradients_shape(
    *avals: ShapeDtype,
    optional: tuple[str, ...] = (),
    causal: bool = False,
    window: tuple[int, int] | None = None,
    rate: float = 0.0,
    scale: float = 1.0,
    precision: Literal["tensorfloat32"] | None = None,
    narrow: bool = False,
) -> tuple[ShapeDtype, ShapeDtype, ShapeDtype]:
    _check(
        "attention_gradients", AttentionParams(True, optional, causal, window, rate, scale, precision, narrow), avals
    )
    return tuple(ShapeDtype(aval.shape, aval.dtype if narrow else _wide(aval)) for aval in avals[:3])  # type: ignore[return-value]


# -- loop programs -----------------------------------------------------------------------------------------------------


class _Loops:
    """The statements that both ops consist of, for buffers of their arguments."""

    def __init__(self, settings: AttentionParams, sources: Sequence[tirx.Buffer], avals: Sequence[ShapeDtype]) -> None:
        self.settings, self.avals = settings, avals
        self.query, self.key, self.value, *self.others = sources
        self.options = settings.named(sources)
        self.batch, self.length, self.heads, self.width = avals[0].shape
        self.keys, self.groups = avals[1].shape[1:3]
        self.dtype = dtypes.NAMES[_wide(avals[0])]

    def number(self, value: float) -> Any:
        return tirx.const(value, self.dtype)

    def put(self, result: tirx.Buffer, value: Any, index: Sequence[Any]) -> None:
        """Stores an element of a result, maybe rounded."""
        T.buffer_store(result, tirx.Cast(str(result.dtype), value), index)

    def local(self, size: int = 1) -> tirx.Buffer:
        return T.sblock_alloc_buffer((max(1, size),), self.dtype, scope="local")

    def dot(self, total: tirx.Buffer, left: Callable[[Any], Any], right: Callable[[Any], Any]) -> None:
        """``total[0] = sum over h of left(h) * right(h)``."""
        T.buffer_store(total, self.number(0), [0])
        with T.serial(0, self.width) as h:
            product = tirx.Cast(self.dtype, left(h)) * tirx.Cast(self.dtype, right(h))
            T.buffer_store(total, total[0] + product, [0])

    def is_visible(self, b: Any, n: Any, t: Any, s: Any) -> Any:
        """Whether a query sees a key; None if all do."""
        tests = []
        if self.settings.causal:
            tests.append(s <= t)
        if self.settings.window is not None:
            before, after = self.settings.window
            tests += [s + before >= t, s <= t + after]
        if "query_lengths" in self.options:
            tests.append(t < self.options["query_lengths"][b])
        if "key_lengths" in self.options:
            tests.append(s < self.options["key_lengths"][b])
        if "mask" in self.options:
            mask = self.options["mask"]
            tests.append(mask[broadcasting_index(mask, (b, n, t, s))])
        return reduce(tirx.And, tests) if tests else tirx.const(True)

    def score(self, total: tirx.Buffer, b: Any, n: Any, t: Any, s: Any) -> Any:
        """The score of a pair; ``total`` is a register."""
        group = tirx.indexdiv(n, self.heads // self.groups)
        self.dot(total, lambda h: self.query[b, t, n, h], lambda h: self.key[b, s, group, h])
        value = total[0] * self.number(self.settings.scale)
        if "bias" not in self.options:
            return value
        bias = self.options["bias"]
        return value + tirx.Cast(self.dtype, bias[broadcasting_index(bias, (b, n, t, s))])

    def factor(self, b: Any, n: Any, t: Any, s: Any) -> Any:
        """The factor of dropout."""
        if not self.settings.rate:
            return self.number(1)
        if "kept" in self.options:
            word = self.options["kept"][b, n, t, tirx.indexdiv(s, WORD)]
            kept = (word >> tirx.Cast("uint32", tirx.indexmod(s, WORD)) & tirx.const(1, "uint32")) != 0
        else:
            shape = (self.batch, self.heads, self.length, self.keys)
            kept = _is_kept(self.options["dropout_key"], (b, n, t, s), shape, self.settings.rate)
        return tirx.Select(kept, self.number(1 / (1 - self.settings.rate)), self.number(0))


def _is_kept(keys: tirx.Buffer, pair: Sequence[Any], shape: Sequence[Any], rate: float) -> Any:
    """Whether dropout keeps the weight of a pair (b, n, t, s) of scores of this shape, by a draw."""
    (b, n, t, s), (batch, heads, length, width) = pair, shape
    per_key = dims.maximum(1, batch // max(1, int(keys.shape[0])))
    wide = lambda number: tirx.Cast("uint64", number)
    row = wide(tirx.indexmod(b, per_key) * heads + n) * wide(length) + wide(t)
    which = tirx.indexdiv(b, per_key)
    first, second = threefry_block(keys[which, 0], keys[which, 1], row * wide(width) + wide(s))
    return ((first ^ second) >> tirx.const(9, "uint32")) < tirx.const(kept_below(rate), "uint32")


def _attention(*avals: ShapeDtype, **params: Any) -> tirx.PrimFunc:
    settings = AttentionParams(False, **params)

    def write(sources, results):
        loops = _Loops(settings, sources, avals)
        result, log_sums = results

        def query(point):
            b, n, t = point
            group = tirx.indexdiv(n, loops.heads // loops.groups)
            total, largest, weight, sums = loops.local(), loops.local(), loops.local(), loops.local(loops.width)
            shrunk, exponential = loops.local(), loops.local()
            T.buffer_store(largest, loops.number(-math.inf), [0])
            T.buffer_store(weight, loops.number(0), [0])
            with T.serial(0, loops.width) as h:
                T.buffer_store(sums, loops.number(0), [h])
            with T.serial(0, loops.keys) as s, T.If(loops.is_visible(b, n, t, s)), T.Then():
                T.buffer_store(total, loops.score(total, b, n, t, s), [0])
                T.buffer_store(exponential, tirx.max(total[0], largest[0]), [0])
                with T.If(total[0] > loops.number(-math.inf)), T.Then():
                    T.buffer_store(shrunk, tirx.exp(largest[0] - exponential[0]), [0])
                    T.buffer_store(largest, exponential[0], [0])
                    T.buffer_store(exponential, tirx.exp(total[0] - largest[0]), [0])
                    T.buffer_store(weight, weight[0] * shrunk[0] + exponential[0], [0])
                    T.buffer_store(exponential, exponential[0] * loops.factor(b, n, t, s), [0])
                    with T.serial(0, loops.width) as h:
                        value = tirx.Cast(loops.dtype, loops.value[b, s, group, h])
                        T.buffer_store(sums, sums[h] * shrunk[0] + exponential[0] * value, [h])
            with T.serial(0, loops.width) as h:
                is_empty = weight[0] == loops.number(0)
                loops.put(result, tirx.Select(is_empty, loops.number(0), sums[h] / weight[0]), [b, t, n, h])
            none = loops.number(math.inf)
            T.buffer_store(log_sums, tirx.Select(weight[0] == 0, none, largest[0] + tirx.log(weight[0])), [b, n, t])

        block("attention", sources, results, (loops.batch, loops.heads, loops.length), query)

    return prim_func(avals, _attention_shape(*avals, **params), write).with_attr(ATTRIBUTE, settings.text)


def _gradients(*avals: ShapeDtype, **params: Any) -> tirx.PrimFunc:
    settings = AttentionParams(True, **params)

    def write(sources, results):
        loops = _Loops(settings, sources, avals)
        cotangent, log_sums, dots, *_ = loops.others
        d_query, d_key, d_value = results
        per_group = loops.heads // loops.groups

        def weigh(total, weight, factor, b, n, t, s):
            """Sets the weight of a pair, its factor of dropout, and, in ``total``, the cotangent of its score."""
            score = loops.score(total, b, n, t, s)
            T.buffer_store(weight, tirx.exp(score - log_sums[b, n, t]), [0])
            T.buffer_store(factor, loops.factor(b, n, t, s), [0])
            group = tirx.indexdiv(n, per_group)
            loops.dot(total, lambda h: cotangent[b, t, n, h], lambda h: loops.value[b, s, group, h])
            T.buffer_store(total, weight[0] * (total[0] * factor[0] - dots[b, t, n]), [0])

        def query(point):
            b, n, t = point
            total, weight, factor, sums = loops.local(), loops.local(), loops.local(), loops.local(loops.width)
            with T.serial(0, loops.width) as h:
                T.buffer_store(sums, loops.number(0), [h])
            with T.serial(0, loops.keys) as s, T.If(loops.is_visible(b, n, t, s)), T.Then():
                weigh(total, weight, factor, b, n, t, s)
                with T.serial(0, loops.width) as h:
                    key = tirx.Cast(loops.dtype, loops.key[b, s, tirx.indexdiv(n, per_group), h])
                    T.buffer_store(sums, sums[h] + total[0] * key, [h])
            with T.serial(0, loops.width) as h:
                loops.put(d_query, sums[h] * loops.number(settings.scale), [b, t, n, h])

        def key(point):
            b, group, s = point
            total, weight, factor = loops.local(), loops.local(), loops.local()
            of_key, of_value = loops.local(loops.width), loops.local(loops.width)
            with T.serial(0, loops.width) as h:
                T.buffer_store(of_key, loops.number(0), [h])
                T.buffer_store(of_value, loops.number(0), [h])
            with T.serial(0, per_group) as member, T.serial(0, loops.length) as t:
                n = group * per_group + member
                with T.If(loops.is_visible(b, n, t, s)), T.Then():
                    weigh(total, weight, factor, b, n, t, s)
                    with T.serial(0, loops.width) as h:
                        g, q = (tirx.Cast(loops.dtype, x[b, t, n, h]) for x in (cotangent, loops.query))
                        T.buffer_store(of_value, of_value[h] + weight[0] * factor[0] * g, [h])
                        T.buffer_store(of_key, of_key[h] + total[0] * q, [h])
            with T.serial(0, loops.width) as h:
                loops.put(d_key, of_key[h] * loops.number(settings.scale), [b, s, group, h])
                loops.put(d_value, of_value[h], [b, s, group, h])

        block("queries", sources, d_query, (loops.batch, loops.heads, loops.length), query)
        block("keys", sources, [d_key, d_value], (loops.batch, loops.groups, loops.keys), key)

    return prim_func(avals, _gradients_shape(*avals, **params), write).with_attr(ATTRIBUTE, settings.text)


# -- the bits of dropout -----------------------------------------------------------------------------------------------


def _bits_shape(keys: ShapeDtype, *, shape: Ints, rate: float, causal: bool) -> ShapeDtype:
    if len(shape) != 4 or not _are_keys(keys, shape[0]):
        raise ShapeError("dropout_bits", f"keys must fit scores of shape {shape}", got=str(keys))
    if keys.dtype != dtypes.uint32:
        raise DtypeError("dropout_bits", "keys are uint32", got=str(keys), hint="tvmfun.random.key(seed)")
    if not 0 <= rate < 1:
        raise ArgumentError("dropout_bits", "the rate must be from 0 to below 1", got=str(rate))
    return ShapeDtype((*shape[:3], word_count(shape[3])), dtypes.uint32)


def _bits(keys: ShapeDtype, *, shape: tuple[int, ...], rate: float, causal: bool) -> tirx.PrimFunc:
    output = _bits_shape(keys, shape=shape, rate=rate, causal=causal)

    def write(sources, result):
        def word(point):
            b, n, which, t = point
            bits = T.sblock_alloc_buffer((1,), "uint32", scope="local")
            T.buffer_store(bits, tirx.const(0, "uint32"), [0])
            with T.If(which * WORD <= t if causal else tirx.const(True)), T.Then(), T.serial(0, WORD) as i:
                s = which * WORD + i
                kept = _is_kept(sources[0], (b, n, t, s), shape, rate)
                kept = kept if shape[3] % WORD == 0 else tirx.And(kept, s < shape[3])
                T.buffer_store(bits, bits[0] | tirx.Cast("uint32", kept) << tirx.Cast("uint32", i), [0])
            T.buffer_store(result, bits[0], [b, n, t, which])

        # Queries last: the threads of a warp have neighbouring queries, so causality masks a word for all or none.
        block("bits", sources, result, (*output.shape[:2], output.shape[3], output.shape[2]), word)

    return prim_func([keys], output, write)


def _bits_batch(batched: Sequence[bool], keys: Array, *, shape: tuple[int, ...], **params: Any) -> Array:
    size = keys.shape[0]
    folded = shapes.reshape(keys, shape=(size * keys.shape[1], 2))
    words = dropout_bits(folded, shape=(size * shape[0], *shape[1:]), **params)
    return shapes.reshape(words, shape=(size, shape[0], *words.shape[1:]))


# -- batching ----------------------------------------------------------------------------------------------------------


def _batch(
    op: Callable, batched: Sequence[bool], args: Sequence[Array], settings: AttentionParams, params: dict
) -> tuple:
    """Batching: the batch axis becomes part of the axis of examples."""
    size = next(x.shape[0] for x, flag in zip(args, batched, strict=True) if flag)
    examples = args[0].shape[1 if batched[0] else 0]
    names = (*(None,) * settings.required, *settings.optional)

    def folded(x: Array, flag: bool, name: str | None) -> Array:
        broadcasts = name in ("bias", "mask")
        if not flag:
            if broadcasts and x.shape[0] == 1:
                return x
            x = repeat(x, size)
        if broadcasts and x.shape[1] == 1 and examples != 1:
            x = shapes.broadcast_to(x, shape=(size, examples, *x.shape[2:]))
        return shapes.reshape(x, shape=(x.shape[0] * x.shape[1], *x.shape[2:]))

    results = op(*(folded(*each) for each in zip(args, batched, names, strict=True)), **params)
    return tuple(shapes.reshape(x, shape=(size, examples, *x.shape[1:])) for x in results)


def _attention_batch(batched: Sequence[bool], *args: Array, **params: Any) -> tuple:
    return _batch(attention, batched, args, AttentionParams(False, **params), params)


def _gradients_batch(batched: Sequence[bool], *args: Array, **params: Any) -> tuple:
    return _batch(attention_gradients, batched, args, AttentionParams(True, **params), params)


def _flops(products: int) -> Callable:
    def count(out: Any, query: ShapeDtype, key: ShapeDtype, *others: ShapeDtype, **params: Any) -> Any:
        return 2 * products * query.size * key.shape[1]

    return count


#: ``attention(query, key, value, *optional, optional=, causal=, window=, rate=, scale=, precision=, narrow=)``: the
#: result, of the shape (B, T, N, H) of the queries, and the log-sums, of shape (B, N, T): infinity, with a result of 0,
#: for a query that sees no key. Keys and values have the shape (B, S, K, H), bias and mask (B, N, T, S) or 1 instead of
#: any of these, lengths (B,), and dropout keys (E, 2), one for every B / E examples; or, instead of keys, the result of
#: :data:`dropout_bits`. The derivative is that of ``nn.functional.dot_product_attention``.
attention = register(
    Op(
        "attention",
        "opaque",
        _attention_shape,
        _attention,
        batch=_attention_batch,
        precision="summing",
        factors=3,
        sums=1,
        flops=_flops(2),
    )
)

#: ``attention_gradients(query, key, value, cotangent, log_sums, dots, *optional, ...)``: the cotangents of the
#: queries, the keys and the values; ``dots``, of shape (B, T, N), are the products of result and cotangent.
attention_gradients = register(
    Op(
        "attention_gradients",
        "opaque",
        _gradients_shape,
        _gradients,
        batch=_gradients_batch,
        precision="summing",
        factors=4,
        flops=_flops(5),
    )
)

#: ``dropout_bits(dropout_key, shape=, rate=, causal=)``: which weights of scores of the shape (B, N, T, S) dropout
#: keeps, as uint32 of shape (B, N, T, ceil(S / 32)): an eighth of a byte per pair, a sixteenth of bfloat16 scores. Bit
#: ``s % 32`` of word ``s // 32`` is set if the weight of the pair (t, s) is kept. Bits from S on are 0, and, if
#: ``causal``, so are words without a key that the query sees.
dropout_bits = register(Op("dropout_bits", "opaque", _bits_shape, _bits, (None,), batch=_bits_batch))
