"""Generation: the tokens that a causal language model appends to prompts."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax, nn, random
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, IndexingError, ShapeError
from tvmfun.jit import eval_shape, jit
from tvmfun.typing import ArrayLike, Key

__all__ = ["Decoder", "generate"]

# Prompts are read in chunks of this many tokens, and the rest one by one: so all lengths share one compiled function.
_CHUNK = 32


class Decoder(Protocol):
    """A language model that decodes with a cache, such as :class:`tvmfun.models.GPT2`."""

    def init_cache(self, batch: int, length: int) -> tuple[nn.KVCache, ...]:
        """Returns empty caches for sequences of up to ``length`` tokens."""
        ...

    def decode(self, tokens: Any, caches: tuple[nn.KVCache, ...]) -> tuple[Array, tuple[nn.KVCache, ...]]:
        """Returns the logits (batch, new positions, vocab_size) after new tokens, and the next caches."""
        ...


def generate(
    model: Decoder,
    prompts: ArrayLike,
    max_new_tokens: int,
    *,
    max_length: int,
    lengths: ArrayLike | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end_token: int = -1,
    key: Key | None = None,
) -> np.ndarray:
    """Appends tokens to prompts: the most probable ones, or draws.

    One function is compiled for all lengths of prompts and results, and for all temperatures but 0. Another batch size
    or ``max_length`` compiles another, and so does the first ``top_k`` or ``top_p``.

    Args:
        model: the language model.
        prompts: integers of shape (batch, length), at least one token each.
        max_new_tokens: the number of tokens to append.
        max_length: the size of the caches of keys and values: an upper bound of all lengths.
        lengths: the number of tokens of each prompt, (batch,), if some are shorter and padded at their end.
        temperature: the divisor of logits; 0 takes the most probable token.
        top_k: if given, only this many tokens, the most probable, can be drawn.
        top_p: if given, only the most probable tokens that together have at least this probability can be drawn.
        end_token: a sequence ends with this token; it is repeated up to the end of the array.
        key: a key of :mod:`tvmfun.random`, needed to draw.

    Returns:
        Integers of shape (batch, length + max_new_tokens); a shorter prompt is followed by its new tokens at once, and
        by more of them.

    Raises:
        ShapeError: if the sequences are longer than ``max_length``, a prompt is empty, or there is none.
        DtypeError: if the prompts are not integers.
        IndexingError: if a token of a prompt is not one of the model's.
        ArgumentError: if the key is missing, or ``max_new_tokens``, ``temperature``, ``top_k`` or ``top_p`` is out of
            range.

    References: Fan et al., "Hierarchical Neural Story Generation" (2018), for ``top_k``; Holtzman et al., "The Curious
    Case of Neural Text Degeneration" (2020), for ``top_p``.
    """
    prompts = np.asarray(prompts)
    if prompts.size and prompts.dtype.kind not in "iu":
        raise DtypeError("generate", "prompts must be integers", got=str(prompts.dtype))
    if prompts.ndim != 2 or prompts.size == 0:
        raise ShapeError("generate", "prompts must have the shape (batch, length)", got=str(prompts.shape))
    batch, length = prompts.shape
    if max_new_tokens < 0:
        raise ArgumentError("generate", "max_new_tokens must be at least 0", got=str(max_new_tokens))
    stop = length + max_new_tokens
    if stop > max_length:
        raise ShapeError("generate", "length + max_new_tokens must be at most max_length", got=f"{stop} > {max_length}")
    sizes = np.full(batch, length, "int32") if lengths is None else np.asarray(lengths, "int32")
    if sizes.shape != (batch,) or sizes.min() < 1 or sizes.max() > length:
        raise ShapeError("generate", f"lengths must be {batch} numbers from 1 to {length}", got=str(sizes.tolist()))
    if not temperature >= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        what = "temperature must be at least 0, top_k at least 1, and top_p above 0 and at most 1"
        raise ArgumentError("generate", what, got=f"{temperature}, {top_k} and {top_p}")
    if temperature and key is None:
        raise ArgumentError("generate", "a key is needed to draw", got="None", hint="key=random.key(0)")
    tokens = np.zeros((batch, max_length), "int32")
    tokens[:, :length] = prompts
    mode = "greedy" if not temperature else "draw" if top_k is None and top_p is None else "truncate"
    limits = np.int32(min(top_k or 2**31, 2**31 - 1)), np.float32(1 if top_p is None else top_p)
    # Logits divided by less would be infinite.
    temperature = max(temperature, 1e-30)
    key = random.key(0) if key is None else key
    result, vocab_size = _generate(
        model, tokens, sizes, np.int32(stop), np.float32(temperature), *limits, np.int32(end_token), key, mode=mode
    )
    is_padding = np.arange(length) >= sizes[:, None]
    bad = np.argwhere(((prompts < 0) | (prompts >= int(vocab_size))) & ~is_padding)
    if bad.size:
        row, position = map(int, bad[0])
        what = f"tokens must be from 0 to {int(vocab_size) - 1}"
        raise IndexingError("generate", what, got=f"{prompts[row, position]} at position {position} of prompt {row}")
    return np.asarray(result)[:, :stop]


@partial(jit, static_argnames="mode")
def _generate(
    model: Any,
    tokens: Any,
    lengths: Any,
    stop: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    end: Any,
    key: Any,
    *,
    mode: str,
) -> tuple[Array, int]:
    """Returns the sequences and the number of tokens that the model has."""
    batch, max_length = tokens.shape
    caches = model.init_cache(batch, max_length)
    # The last token of the shortest prompt is the first whose logits matter.
    chunks = (tnp.min(lengths) - 1) // _CHUNK if max_length >= _CHUNK else 0

    def read(i: Any, caches: Any) -> Any:
        return model.decode(lax.dynamic_slice(tokens, (0, i * _CHUNK), (batch, _CHUNK)), caches)[1]

    if max_length >= _CHUNK:
        caches = lax.fori_loop(0, chunks, read, caches)

    def going_on(carry: Any) -> Any:
        position, _, _, ended = carry
        return tnp.logical_and(position < stop - 1, tnp.logical_not(tnp.all(ended)))

    def step(carry: Any) -> Any:
        position, tokens, caches, ended = carry
        logits, caches = model.decode(lax.dynamic_slice(tokens, (0, position), (batch, 1)), caches)
        logits = tnp.astype(logits[:, 0], "float32")
        chosen = _choose(logits, random.fold_in(key, position), temperature, top_k, top_p, mode)
        is_new = position + 1 >= lengths
        chosen = tnp.where(is_new, tnp.where(ended, end, chosen), tokens[:, position + 1])
        ended = tnp.logical_or(ended, tnp.logical_and(is_new, chosen == end))
        return position + 1, tokens.at[:, position + 1].set(chosen), caches, ended

    vocab_size = eval_shape(model.decode, tokens[:, :1], caches)[0].shape[-1]
    start = tnp.asarray(chunks * _CHUNK, dtype="int32")
    position, tokens, _, ended = lax.while_loop(going_on, step, (start, tokens, caches, tnp.zeros((batch,), "bool")))
    # If all sequences ended early, the remaining columns are filled.
    columns = tnp.arange(max_length, dtype="int32")
    rest = tnp.logical_and(columns > position, tnp.all(ended))
    return tnp.where(rest, end, tokens), vocab_size


def _choose(logits: Array, key: Key, temperature: Any, top_k: Any, top_p: Any, mode: str) -> Array:
    """Returns the next token of each row of logits (batch, vocab_size)."""
    if mode == "greedy":
        return tnp.argmax(logits, axis=-1).astype("int32")
    logits = logits / temperature
    if mode == "truncate":
        ordered = tnp.sort(logits, axis=-1, descending=True)
        ranks = tnp.arange(logits.shape[-1], dtype="int32")
        ordered = tnp.where(ranks < top_k, ordered, -tnp.inf)
        probabilities = nn.softmax(ordered, axis=-1)
        # A token stays if those before it have less than top_p together; the first always does.
        before = tnp.cumsum(probabilities, axis=-1) - probabilities
        kept = tnp.logical_and(before < top_p, ordered > -tnp.inf)
        lowest = tnp.min(tnp.where(kept, ordered, tnp.inf), axis=-1, keepdims=True)
        logits = tnp.where(logits >= lowest, logits, -tnp.inf)
    return random.categorical(key, logits, axis=-1).astype("int32")
