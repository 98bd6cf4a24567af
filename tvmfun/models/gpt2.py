"""GPT-2: a causal language model of pre-norm transformer blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

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

__all__ = ["GPT2", "GPT2_STATE_DICT", "GPT2Block", "GPT2Config", "language_model_loss"]


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a GPT-2, by the names of ``transformers.GPT2Config``; the default has 124 million parameters.

    Args:
        vocab_size: the number of tokens.
        n_positions: the longest sequence.
        n_embd: the width.
        n_layer: the number of blocks.
        n_head: the number of attention heads; it must divide the width.
        dropout: the probability of dropping an element of the embeddings, attention weights and residual branches.
        layer_norm_epsilon: added to the variances.

    >>> GPT2Config.medium().n_layer
    24
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self, "n_head", "n_embd")

    @classmethod
    def medium(cls) -> GPT2Config:
        """Returns the sizes of the model with 355 million parameters."""
        return cls(n_embd=1024, n_layer=24, n_head=16)

    @classmethod
    def mini(cls, vocab_size: int) -> GPT2Config:
        """Returns sizes for a few minutes on two cores: 4 blocks of width 128, sequences of 128."""
        return cls(vocab_size, n_positions=128, n_embd=128, n_layer=4, n_head=4)

    @classmethod
    def small(cls, vocab_size: int) -> GPT2Config:
        """Returns sizes for about an hour on two cores: 6 blocks of width 384, sequences of 256."""
        return cls(vocab_size, n_positions=256, n_embd=384, n_layer=6, n_head=6)


@tree.register_dataclass
@dataclass(frozen=True)
class GPT2Block:
    """A pre-norm transformer block: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    ln_1: nn.LayerNorm
    attn: nn.MultiHeadAttention
    ln_2: nn.LayerNorm
    fc: nn.Linear
    proj: nn.Linear
    dropout: nn.Dropout

    @classmethod
    def create(cls, config: GPT2Config, key: Key, dtype: DTypeLike = "float32") -> GPT2Block:
        """Returns a block with new parameters."""
        width, eps = config.n_embd, config.layer_norm_epsilon
        attention_key, fc_key, proj_key = random.split(key, 3)
        settings: dict[str, Any] = {"dtype": dtype, "weight_init": normal(0.02), "bias_init": zeros}
        return cls(
            nn.LayerNorm(width, eps=eps, dtype=dtype),
            nn.MultiHeadAttention(width, config.n_head, dropout=config.dropout, key=attention_key, **settings),
            nn.LayerNorm(width, eps=eps, dtype=dtype),
            nn.Linear(width, 4 * width, key=fc_key, **settings),
            nn.Linear(4 * width, width, key=proj_key, **settings),
            nn.Dropout(config.dropout),
        )

    def __call__(self, x: Array, *, key: Key | None = None, train: bool = True) -> Array:
        """Maps sequences (batch, length, width) to sequences; ``key`` is for the dropout while training."""
        keys = dropout_keys("GPT2Block", key, train, self.dropout.rate, 3)
        attended = self.attn(self.ln_1(x), is_causal=True, key=keys[0], train=train)
        x = x + self.dropout(attended, key=keys[1], train=train)
        return x + self.dropout(self.mlp(self.ln_2(x)), key=keys[2], train=train)

    def mlp(self, x: ArrayLike) -> Array:
        """Returns the feed-forward network of each position."""
        return self.proj(F.gelu(self.fc(x)))

    def decode(self, x: Array, cache: nn.KVCache) -> tuple[Array, nn.KVCache]:
        """Maps the next positions of sequences whose earlier ones are in a cache; also returns the next cache."""
        attended, cache = self.attn.decode(self.ln_1(x), cache)
        x = x + attended
        return x + self.mlp(self.ln_2(x)), cache


@tree.register_dataclass
@dataclass(frozen=True)
class GPT2:
    """The language model of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).

    Call it with tokens, integers of shape (batch, length); it returns the logits of each next token, (batch, length,
    vocab_size). The table of tokens is also the last layer.

    >>> model = GPT2.create(GPT2Config.mini(65), random.key(0))
    >>> model(tnp.zeros((2, 16), "int32"), train=False).shape
    (2, 16, 65)
    """

    wte: nn.Embedding
    wpe: nn.Embedding
    blocks: tuple[GPT2Block, ...]
    ln_f: nn.LayerNorm
    dropout: nn.Dropout
    config: GPT2Config = field(metadata={"static": True})

    @classmethod
    def create(cls, config: GPT2Config, key: Key, dtype: DTypeLike = "float32") -> GPT2:
        """Returns a model with new parameters: normal with deviation 0.02, less for maps into the residual stream."""
        token_key, position_key, block_key = random.split(key, 3)
        settings: dict[str, Any] = {"dtype": dtype, "weight_init": normal(0.02)}
        model = cls(
            nn.Embedding(config.vocab_size, config.n_embd, key=token_key, **settings),
            nn.Embedding(config.n_positions, config.n_embd, key=position_key, **settings),
            tuple(GPT2Block.create(config, k, dtype) for k in random.split(block_key, config.n_layer)),
            nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon, dtype=dtype),
            nn.Dropout(config.dropout),
            config,
        )
        # Each block adds twice to the residual stream, whose variance would grow with the depth.
        scale = (2 * config.n_layer) ** -0.5
        into_stream = (".out_proj.weight", ".proj.weight")
        return tree.map_with_path(lambda path, x: x * scale if tree.keystr(path).endswith(into_stream) else x, model)

    def __call__(
        self, tokens: ArrayLike, *, key: Key | None = None, train: bool = True, checkpoint: bool = False
    ) -> Array:
        """Returns the logits of the next token after each position.

        Args:
            tokens: integers of shape (batch, length).
            key: a key of :mod:`tvmfun.random`, needed to drop elements while training.
            train: whether to drop elements.
            checkpoint: whether to recompute each block for the derivative instead of storing its intermediates.

        Raises:
            ShapeError: if a sequence is longer than ``config.n_positions``.
        """
        length = tnp.asarray(tokens).shape[-1]
        if length > self.config.n_positions:
            what = f"a sequence must have at most n_positions = {self.config.n_positions} tokens"
            raise ShapeError("GPT2", what, got=str(length))
        keys = dropout_keys("GPT2", key, train, self.dropout.rate, len(self.blocks) + 1)
        x = self.dropout(self.wte(tokens) + cast(Array, self.wpe.weight)[:length], key=keys[0], train=train)
        for block, block_key in zip(self.blocks, keys[1:], strict=True):
            x = call_block(block, x, key=block_key, train=train, checkpoint=checkpoint)
        return self.wte.attend(self.ln_f(x))

    def init_cache(
        self, batch: int, length: int | None = None, dtype: DTypeLike | None = None
    ) -> tuple[nn.KVCache, ...]:
        """Returns empty caches of keys and values, one per block, for sequences of up to ``length`` tokens.

        Raises:
            ShapeError: if these are more than ``config.n_positions``.
        """
        length = self.config.n_positions if length is None else length
        if length > self.config.n_positions:
            what = f"a cache must have at most n_positions = {self.config.n_positions} tokens"
            raise ShapeError("GPT2", what, got=str(length))
        return tuple(block.attn.init_cache(batch, length, dtype) for block in self.blocks)

    def decode(self, tokens: ArrayLike, caches: tuple[nn.KVCache, ...]) -> tuple[Array, tuple[nn.KVCache, ...]]:
        """Returns the logits after new tokens (batch, new positions) of sequences in caches, and the next caches."""
        positions = caches[0].index + tnp.arange(tnp.asarray(tokens).shape[-1], dtype="int32")
        x, new = self.wte(tokens) + self.wpe(positions), []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block.decode(x, cache)
            new.append(cache)
        return self.wte.attend(self.ln_f(x)), tuple(new)


def language_model_loss(logits: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Returns the mean negative log-likelihood of the targets, in nats per token.

    Args:
        logits: floats of shape (..., vocab_size).
        targets: integers of shape (...).
        weights: how much each target counts, (...); all alike by default.

    >>> language_model_loss(tnp.zeros((2, 4)), tnp.asarray([1, 3]))
    Array(1.3862944, dtype=float32)
    """
    losses = nn.losses.softmax_cross_entropy_with_integer_labels(logits, targets)
    return tnp.mean(losses) if weights is None else tnp.sum(losses * weights) / tnp.sum(weights)


#: The arrays of ``transformers.GPT2LMHeadModel``; those of ``GPT2Model``, and of the published file, have no
#: prefix ``transformer.``: see "Models with known weights" in the page on language models.
GPT2_STATE_DICT = [
    Row(".wte.weight", "transformer.wte.weight"),
    Row(".wte.weight", "lm_head.weight", tied=True),
    Row(".wpe.weight", "transformer.wpe.weight"),
    *norm(".blocks[{i}].ln_1", "transformer.h.{i}.ln_1"),
    # Its linear layers are written as convolutions of width 1, whose weights are (inputs, outputs).
    *linear(".blocks[{i}].attn.q_proj", "transformer.h.{i}.attn.c_attn", "same", part=(0, 3)),
    *linear(".blocks[{i}].attn.k_proj", "transformer.h.{i}.attn.c_attn", "same", part=(1, 3)),
    *linear(".blocks[{i}].attn.v_proj", "transformer.h.{i}.attn.c_attn", "same", part=(2, 3)),
    *linear(".blocks[{i}].attn.out_proj", "transformer.h.{i}.attn.c_proj", "same"),
    *norm(".blocks[{i}].ln_2", "transformer.h.{i}.ln_2"),
    *linear(".blocks[{i}].fc", "transformer.h.{i}.mlp.c_fc", "same"),
    *linear(".blocks[{i}].proj", "transformer.h.{i}.mlp.c_proj", "same"),
    *norm(".ln_f", "transformer.ln_f"),
]
