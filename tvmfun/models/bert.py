"""BERT: an encoder of post-norm transformer blocks, trained to restore masked words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.interop.state_dict import Row, linear, norm
from tvmfun.models.blocks import call_block, dropout_keys
from tvmfun.models.config_checks import check_heads, check_sizes
from tvmfun.nn import functional as F
from tvmfun.nn.init import normal, zeros
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["BERT", "BERT_STATE_DICT", "NEXT_SENTENCE_STATE_DICT", "BERTBlock", "BERTConfig", "BERTOutput"]


@dataclass(frozen=True)
class BERTConfig:
    """The sizes of a BERT, by the names of ``transformers.BertConfig``; the default is BERT-base.

    Args:
        vocab_size: the number of tokens.
        hidden_size: the width.
        num_hidden_layers: the number of blocks.
        num_attention_heads: the number of attention heads; it must divide the width.
        intermediate_size: the width of the feed-forward networks.
        max_position_embeddings: the longest sequence.
        type_vocab_size: the number of segments.
        dropout: the probability of dropping an element of the embeddings, attention weights and residual branches.
        layer_norm_eps: added to the variances.
        next_sentence: whether there is a head that tells if the second segment follows the first.
        initializer_range: the standard deviation of new weights.

    >>> BERTConfig.large().num_hidden_layers
    24
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    next_sentence: bool = False
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self, "num_attention_heads", "hidden_size")

    @classmethod
    def small(cls, vocab_size: int = 30522) -> BERTConfig:
        """Returns the configuration with 4 blocks of width 512."""
        return cls(vocab_size, 512, 4, 8, 2048)

    @classmethod
    def large(cls, vocab_size: int = 30522) -> BERTConfig:
        """Returns the configuration with 24 blocks of width 1024."""
        return cls(vocab_size, 1024, 24, 16, 4096)

    @classmethod
    def mini(cls, vocab_size: int) -> BERTConfig:
        """Returns sizes for a few minutes on two cores: 3 blocks of width 128, sequences of 128, no dropout.

        In so short a run dropout delays the step at which the model begins to use the context.
        """
        return cls(vocab_size, 128, 3, 4, 512, max_position_embeddings=128, dropout=0.0, initializer_range=0.05)


@tree.register_dataclass
@dataclass(frozen=True)
class BERTBlock:
    """A post-norm transformer block: ``x = norm(x + attention(x))``, then ``norm(x + mlp(x))``."""

    attention: nn.MultiHeadAttention
    attention_norm: nn.LayerNorm
    intermediate: nn.Linear
    output: nn.Linear
    output_norm: nn.LayerNorm
    dropout: nn.Dropout

    @classmethod
    def create(cls, config: BERTConfig, key: Key, dtype: DTypeLike = "float32") -> BERTBlock:
        """Returns a block with new parameters."""
        width, inner = config.hidden_size, config.intermediate_size
        keys = random.split(key, 3)
        heads, rate = config.num_attention_heads, config.dropout
        init = {"weight_init": normal(config.initializer_range), "bias_init": zeros}
        settings: dict[str, Any] = {"dtype": dtype, **init}
        return cls(
            nn.MultiHeadAttention(width, heads, dropout=rate, key=keys[0], **settings),
            nn.LayerNorm(width, eps=config.layer_norm_eps, dtype=dtype),
            nn.Linear(width, inner, key=keys[1], **settings),
            nn.Linear(inner, width, key=keys[2], **settings),
            nn.LayerNorm(width, eps=config.layer_norm_eps, dtype=dtype),
            nn.Dropout(rate),
        )

    def __call__(self, x: Array, lengths: ArrayLike | None, *, key: Key | None = None, train: bool = True) -> Array:
        """Maps sequences (batch, length, width) to sequences; tokens from ``lengths`` (batch,) on are not seen."""
        keys = dropout_keys("BERTBlock", key, train, self.dropout.rate, 3)
        attended = self.attention(x, key_value_seq_lengths=lengths, key=keys[0], train=train)
        x = self.attention_norm(x + self.dropout(attended, key=keys[1], train=train))
        hidden = self.output(F.gelu(self.intermediate(x), approximate=False))
        return self.output_norm(x + self.dropout(hidden, key=keys[2], train=train))


@tree.register_dataclass
@dataclass(frozen=True)
class WordHead:
    """The logits of masked words: a nonlinear map, then the table of tokens and a bias."""

    transform: nn.Linear
    norm: nn.LayerNorm
    bias: Array

    def __call__(self, x: Array, words: nn.Embedding) -> Array:
        """Maps vectors (..., width) to logits (..., vocab_size)."""
        return words.attend(self.norm(F.gelu(self.transform(x), approximate=False))) + self.bias


@tree.register_dataclass
@dataclass(frozen=True)
class SentenceHead:
    """The logits of "follows" and "is random", from the first token."""

    pooler: nn.Linear
    classifier: nn.Linear

    def __call__(self, x: Array) -> Array:
        """Maps sequences (batch, length, width) to logits (batch, 2)."""
        return self.classifier(tnp.tanh(self.pooler(x[:, 0])))


class BERTOutput(NamedTuple):
    """The logits of words, (batch, length or predictions, vocab_size), and of the next sentence, (batch, 2) or None."""

    words: Array
    next_sentence: Array | None


@tree.register_dataclass
@dataclass(frozen=True)
class BERT:
    """The masked language model of Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018).

    >>> config = BERTConfig(50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    >>> model = BERT.create(config, random.key(0))
    >>> model(tnp.zeros((2, 8), "int32"), train=False).words.shape
    (2, 8, 50)
    """

    words: nn.Embedding
    positions: nn.Embedding
    segments: nn.Embedding
    norm: nn.LayerNorm
    blocks: tuple[BERTBlock, ...]
    word_head: WordHead
    sentence_head: SentenceHead | None
    dropout: nn.Dropout
    config: BERTConfig = field(metadata={"static": True})

    @classmethod
    def create(cls, config: BERTConfig, key: Key, dtype: DTypeLike = "float32") -> BERT:
        """Returns a model with new parameters, normal with deviation ``config.initializer_range``."""
        width, eps = config.hidden_size, config.layer_norm_eps
        keys = random.split(key, 7)
        table: dict[str, Any] = {"dtype": dtype, "weight_init": normal(config.initializer_range)}
        settings = {**table, "bias_init": zeros}
        head = SentenceHead(
            nn.Linear(width, width, key=keys[4], **settings), nn.Linear(width, 2, key=keys[5], **settings)
        )
        return cls(
            nn.Embedding(config.vocab_size, width, key=keys[0], **table),
            nn.Embedding(config.max_position_embeddings, width, key=keys[1], **table),
            nn.Embedding(config.type_vocab_size, width, key=keys[2], **table),
            nn.LayerNorm(width, eps=eps, dtype=dtype),
            tuple(BERTBlock.create(config, k, dtype) for k in random.split(keys[6], config.num_hidden_layers)),
            WordHead(
                nn.Linear(width, width, key=keys[3], **settings),
                nn.LayerNorm(width, eps=eps, dtype=dtype),
                tnp.zeros((config.vocab_size,), dtype),
            ),
            head if config.next_sentence else None,
            nn.Dropout(config.dropout),
            config,
        )

    def __call__(
        self,
        tokens: ArrayLike,
        segments: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        predictions: ArrayLike | None = None,
        *,
        key: Key | None = None,
        train: bool = True,
        checkpoint: bool = False,
    ) -> BERTOutput:
        """Returns the logits of words and of the next sentence.

        Args:
            tokens: integers of shape (batch, length).
            segments: the segment of each token, (batch, length); 0 by default.
            lengths: the number of tokens before the padding, (batch,); all by default.
            predictions: the positions to predict, (batch, predictions); all by default. As only some words are masked,
                naming them saves most of the largest matrix product.
            key: a key of :mod:`tvmfun.random`, needed to drop elements while training.
            train: whether to drop elements.
            checkpoint: whether to recompute each block for the derivative instead of storing its intermediates.

        Raises:
            ShapeError: if a sequence is longer than ``config.max_position_embeddings``.
        """
        tokens = tnp.asarray(tokens)
        length = tokens.shape[-1]
        longest = self.config.max_position_embeddings
        if length > longest:
            what = f"a sequence must have at most max_position_embeddings = {longest} tokens"
            raise ShapeError("BERT", what, got=str(length))
        keys = dropout_keys("BERT", key, train, self.dropout.rate, len(self.blocks) + 1)
        segment = self.segments.weight[0] if segments is None else self.segments(segments)
        x = self.norm(self.words(tokens) + cast(Array, self.positions.weight)[:length] + segment)
        x = self.dropout(x, key=keys[0], train=train)
        for block, block_key in zip(self.blocks, keys[1:], strict=True):
            x = call_block(block, x, lengths, key=block_key, train=train, checkpoint=checkpoint)
        picked = x if predictions is None else tnp.take_along_axis(x, tnp.asarray(predictions)[..., None], axis=1)
        sentence = None if self.sentence_head is None else self.sentence_head(x)
        return BERTOutput(self.word_head(picked, self.words), sentence)


#: The arrays of ``transformers.BertForMaskedLM``.
BERT_STATE_DICT = [
    Row(".words.weight", "bert.embeddings.word_embeddings.weight"),
    Row(".words.weight", "cls.predictions.decoder.weight", tied=True),
    Row(".positions.weight", "bert.embeddings.position_embeddings.weight"),
    Row(".segments.weight", "bert.embeddings.token_type_embeddings.weight"),
    *norm(".norm", "bert.embeddings.LayerNorm"),
    *linear(".blocks[{i}].attention.q_proj", "bert.encoder.layer.{i}.attention.self.query"),
    *linear(".blocks[{i}].attention.k_proj", "bert.encoder.layer.{i}.attention.self.key"),
    *linear(".blocks[{i}].attention.v_proj", "bert.encoder.layer.{i}.attention.self.value"),
    *linear(".blocks[{i}].attention.out_proj", "bert.encoder.layer.{i}.attention.output.dense"),
    *norm(".blocks[{i}].attention_norm", "bert.encoder.layer.{i}.attention.output.LayerNorm"),
    *linear(".blocks[{i}].intermediate", "bert.encoder.layer.{i}.intermediate.dense"),
    *linear(".blocks[{i}].output", "bert.encoder.layer.{i}.output.dense"),
    *norm(".blocks[{i}].output_norm", "bert.encoder.layer.{i}.output.LayerNorm"),
    *linear(".word_head.transform", "cls.predictions.transform.dense"),
    *norm(".word_head.norm", "cls.predictions.transform.LayerNorm"),
    Row(".word_head.bias", "cls.predictions.bias"),
    Row(".word_head.bias", "cls.predictions.decoder.bias", tied=True),
]
#: The additional names of ``transformers.BertForPreTraining``.
NEXT_SENTENCE_STATE_DICT = [
    *linear(".sentence_head.pooler", "bert.pooler.dense"),
    *linear(".sentence_head.classifier", "cls.seq_relationship"),
]
