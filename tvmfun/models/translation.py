"""Translation: a transformer of an encoder and a decoder, and beam search for the most probable sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax, nn, random, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.interop.state_dict import Row, linear, norm
from tvmfun.jit import jit
from tvmfun.models.blocks import dropout_keys
from tvmfun.models.word_models import TransformerConfig, check_length, embed, transformer_layer_rows
from tvmfun.nn.init import normal
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["Beams", "Translator", "beam_search", "translator_state_dict"]


@tree.register_dataclass
@dataclass(frozen=True)
class Translator:
    """The model of Vaswani et al., "Attention Is All You Need" (2017), with one vocabulary for both languages.

    Call it with a source and a target, integers of shape (batch, length); it returns the logits of the token after each
    position of the target, (batch, target length, vocab_size).

    >>> model = Translator.create(TransformerConfig(30, 16, 2, 32), random.key(0))
    >>> model(tnp.zeros((2, 5), "int32"), tnp.zeros((2, 7), "int32"), train=False).shape
    (2, 7, 30)
    """

    embedding: nn.Embedding
    transformer: nn.Transformer
    linear: nn.Linear
    dropout: nn.Dropout
    config: TransformerConfig = field(metadata={"static": True})

    @classmethod
    def create(cls, config: TransformerConfig, key: Key, dtype: DTypeLike = "float32") -> Translator:
        """Returns a model with new parameters."""
        keys, layers = random.split(key, 3), config.num_layers
        init = normal(config.d_model**-0.5)
        sizes = config.d_model, config.nhead, layers, layers, config.dim_feedforward, config.dropout
        return cls(
            nn.Embedding(config.vocab_size, config.d_model, key=keys[0], dtype=dtype, weight_init=init),
            nn.Transformer(*sizes, key=keys[1], dtype=dtype),
            nn.Linear(config.d_model, config.vocab_size, key=keys[2], dtype=dtype),
            nn.Dropout(config.dropout),
            config,
        )

    def __call__(
        self,
        source: ArrayLike,
        target: ArrayLike,
        source_lengths: ArrayLike | None = None,
        *,
        key: Key | None = None,
        train: bool = True,
    ) -> Array:
        """Returns the logits of the next token of the target.

        Args:
            source: integers of shape (batch, source length).
            target: integers of shape (batch, target length), which begin with the token of the beginning.
            source_lengths: the number of tokens of each source before its padding, (batch,); all by default.
            key: a key of :mod:`tvmfun.random`, needed to drop elements while training.
            train: whether to drop elements.

        Raises:
            ShapeError: if a sequence is longer than ``config.max_length``.
        """
        keys = dropout_keys("Translator", key, train, self.dropout.rate, 3)
        x = self.dropout(self.embed(source), key=keys[0], train=train)
        y = self.dropout(self.embed(target), key=keys[1], train=train)
        settings: dict[str, Any] = {"src_seq_lengths": source_lengths, "key": keys[2], "train": train}
        return self.linear(self.transformer(x, y, tgt_is_causal=True, **settings))

    def embed(self, tokens: ArrayLike, start: ArrayLike = 0) -> Array:
        """Returns the embeddings of tokens at positions from ``start`` on, positions added."""
        return embed("Translator", self.embedding, tokens, start, self.config)

    def encode(self, source: ArrayLike, source_lengths: ArrayLike | None = None) -> Array:
        """Returns the encoder's results for a source, (batch, source length, d_model)."""
        return self.transformer.encoder(self.embed(source), seq_lengths=source_lengths, train=False)

    def decode(self, tokens: ArrayLike, caches: Any, source_lengths: ArrayLike | None = None) -> tuple[Array, Any]:
        """Returns the logits after the next tokens of targets in caches, and the next caches."""
        x = self.embed(tokens, caches[0].own.index)
        x, caches = self.transformer.decoder.decode(x, caches, memory_seq_lengths=source_lengths)
        return self.linear(x), caches


class Beams(NamedTuple):
    """The best sequences of each example, best first.

    Args:
        tokens: integers of shape (batch, beams, max_length), from the beginning to the end, then the end repeated.
        scores: the log-probabilities, each divided by ``length ** length_penalty``, (batch, beams).
    """

    tokens: Array
    scores: Array


@partial(jit, static_argnames=("begin_token", "end_token", "max_length", "beams"))
def beam_search(
    model: Translator,
    source: ArrayLike,
    source_lengths: ArrayLike | None = None,
    *,
    begin_token: int,
    end_token: int,
    max_length: int,
    beams: int = 4,
    length_penalty: ArrayLike = 1.0,
) -> Beams:
    """Finds probable translations: the best ``beams`` beginnings are kept in each step.

    Args:
        model: the translator.
        source: integers of shape (batch, source length).
        source_lengths: the number of tokens of each source, (batch,); all by default.
        begin_token: the token that a target begins with.
        end_token: the token that it ends with.
        max_length: the number of tokens of the longest target.
        beams: the number of beginnings to keep; 1 is a greedy search.
        length_penalty: the power of the length that log-probabilities are divided by; larger ones favor long sequences.

    Returns:
        The best sequences that were found, finished or not.

    Raises:
        ArgumentError: if ``beams`` is not between 1 and the size of the vocabulary, or a token is not in it.
        ShapeError: if ``max_length`` is not between 1 and that of the model.

    Reference: Wu et al., "Google's Neural Machine Translation System" (2016).
    """
    vocab_size = model.config.vocab_size
    if not 1 <= beams <= vocab_size:
        raise ArgumentError("beam_search", f"beams must be from 1 to {vocab_size}", got=str(beams))
    if not (0 <= begin_token < vocab_size and 0 <= end_token < vocab_size):
        what = f"begin_token and end_token must be from 0 to {vocab_size - 1}"
        raise ArgumentError("beam_search", what, got=f"{begin_token} and {end_token}")
    if max_length < 1:
        raise ShapeError("beam_search", "max_length must be positive", got=str(max_length))
    check_length("beam_search", max_length, model.config)
    batch = tnp.asarray(source).shape[0]
    memory = tnp.repeat(model.encode(source, source_lengths), beams, axis=0)
    lengths = None if source_lengths is None else tnp.repeat(tnp.asarray(source_lengths), beams)
    caches = model.transformer.decoder.init_cache(memory, max_length)
    tokens = tnp.full((batch, beams, max_length), end_token, "int32").at[:, :, 0].set(begin_token)
    # All beams begin alike: only the first one counts.
    scores = tnp.where(tnp.arange(beams) == 0, 0.0, -tnp.inf) + tnp.zeros((batch, 1), "float32")
    state = (
        tnp.asarray(0, "int32"),
        tokens,
        scores,
        tnp.ones((batch, beams), "int32"),
        tnp.zeros((batch, beams), "bool"),
        caches,
    )

    def going_on(state: Any) -> Array:
        position, _, _, _, ended, _ = state
        return tnp.logical_and(position < max_length - 1, tnp.logical_not(tnp.all(ended)))

    def step(state: Any) -> Any:
        position, tokens, scores, sizes, ended, caches = state
        last = lax.dynamic_index_in_dim(tokens, position, 2, keepdims=False).reshape(-1, 1)
        logits, caches = model.decode(last, caches, lengths)
        logp = nn.log_softmax(logits[:, 0].astype("float32")).reshape(batch, beams, vocab_size)
        # A sequence that has ended goes on with the end alone, which costs nothing.
        end_only = tnp.where(tnp.arange(vocab_size) == end_token, 0.0, -tnp.inf)
        logp = tnp.where(ended[..., None], end_only, logp)
        candidates = scores[..., None] + logp
        new_sizes = sizes + tnp.where(ended, 0, 1)
        ranked = candidates / new_sizes[..., None].astype("float32") ** length_penalty
        _, best = lax.top_k(ranked.reshape(batch, beams * vocab_size), beams)
        parents, chosen = best // vocab_size, (best % vocab_size).astype("int32")
        pick = lambda x: tnp.take_along_axis(x, parents, axis=1)
        scores = tnp.take_along_axis(candidates.reshape(batch, -1), best, axis=1)
        tokens = tnp.take_along_axis(tokens, parents[..., None], axis=1).at[:, :, position + 1].set(chosen)
        ended = tnp.logical_or(pick(ended), chosen == end_token)
        rows = (parents + beams * tnp.arange(batch)[:, None]).reshape(-1)
        reordered = lambda cache: cache._replace(key=cache.key[rows], value=cache.value[rows])
        caches = tuple(cache._replace(own=reordered(cache.own)) for cache in caches)
        return position + 1, tokens, scores, pick(new_sizes), ended, caches

    _, tokens, scores, sizes, _, _ = lax.while_loop(going_on, step, state)
    scores = scores / sizes.astype("float32") ** length_penalty
    order = tnp.argsort(scores, axis=-1, descending=True)
    return Beams(tnp.take_along_axis(tokens, order[..., None], axis=1), tnp.take_along_axis(scores, order, axis=1))


def translator_state_dict() -> list[Row]:
    """Returns the table of the arrays of a module with ``embedding``, ``torch.nn.Transformer`` and ``linear``."""
    rows = [Row(".embedding.weight", "embedding.weight"), *linear(".linear", "linear")]
    for part in ("encoder", "decoder"):
        rows += transformer_layer_rows(
            f".transformer.{part}.layers[{{i}}]", f"transformer.{part}.layers.{{i}}", part == "decoder"
        )
        rows += norm(f".transformer.{part}.norm", f"transformer.{part}.norm")
    return rows
