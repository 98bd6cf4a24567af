"""Transformers: stacks of layers, and an encoder and a decoder together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfun import random
from tvmfun.core.array import Array
from tvmfun.nn import init
from tvmfun.nn.init import Initializer
from tvmfun.nn.layers.attention import KVCache
from tvmfun.nn.layers.normalization import LayerNorm
from tvmfun.nn.layers.parameters import check_positive, layer
from tvmfun.nn.layers.stacked import Stacked
from tvmfun.nn.layers.transformer_layers import DecoderCache, TransformerDecoderLayer, TransformerEncoderLayer
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["Transformer", "TransformerDecoder", "TransformerEncoder"]


@layer
class _Stack:
    """Base class of encoder and decoder: layers in sequence, and a normalization of the result."""

    layers: tuple[Any, ...] | Stacked
    norm: Any

    def __init__(self, layers: Sequence[Any] | Stacked, norm: Any = None) -> None:
        self.layers = layers if isinstance(layers, Stacked) else tuple(layers)
        self.norm = norm

    def _run(self, x: Any, *args: Any, key: Key | None, **settings: Any) -> Any:
        if isinstance(self.layers, Stacked):
            x = self.layers(x, *args, key=key, **settings)
        else:
            keys = [None] * len(self.layers) if key is None else random.split(key, len(self.layers))
            for i, layer in enumerate(self.layers):
                x = layer(x, *args, key=keys[i], **settings)
        return x if self.norm is None else self.norm(x)

    def _decode(self, x: Any, caches: Sequence[Any], settings: dict[str, Any]) -> tuple[Any, tuple]:
        news = []
        for part, cache in zip(self.layers, caches, strict=True):
            x, new = part.decode(x, cache, **settings)
            news.append(new)
        return x if self.norm is None else self.norm(x), tuple(news)


@layer
class TransformerEncoder(_Stack):
    """Encoder layers one after the other.

    Args:
        layers: the layers; or all of them as one, :class:`Stacked`.
        norm: a normalization for the result, or None.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun import random
    >>> layers = [TransformerEncoderLayer(8, 2, 16, key=random.key(i)) for i in range(2)]
    >>> for model in (TransformerEncoder(layers), TransformerEncoder(Stacked(layers))):
    ...     print(model(tnp.ones((1, 5, 8)), is_causal=True, train=False).shape)
    (1, 5, 8)
    (1, 5, 8)
    """

    def __call__(self, x: ArrayLike, *, key: Key | None = None, train: bool = True, **settings: Any) -> Array:
        """Applies the layers in order, with the arguments of :class:`TransformerEncoderLayer`."""
        return self._run(x, key=key, train=train, **settings)

    def init_cache(self, batch: int, length: int, dtype: DTypeLike | None = None) -> tuple[KVCache, ...]:
        """Empty caches for :meth:`decode`, for ``batch`` sequences of up to ``length`` positions."""
        return tuple(layer.init_cache(batch, length, dtype) for layer in self.layers)

    def decode(self, x: ArrayLike, caches: Sequence[KVCache], **settings: Any) -> tuple[Array, tuple[KVCache, ...]]:
        """The results of a causal call for the next positions, with the arguments of the layers' ``decode``."""
        return self._decode(x, caches, settings)


@layer
class TransformerDecoder(_Stack):
    """Decoder layers one after the other.

    Args:
        layers: the layers; or all of them as one, :class:`Stacked`.
        norm: a normalization for the result, or None.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun import random
    >>> layers = [TransformerDecoderLayer(8, 2, 16, key=random.key(i)) for i in range(2)]
    >>> model = TransformerDecoder(layers, LayerNorm(8))
    >>> model(tnp.ones((1, 5, 8)), tnp.ones((1, 7, 8)), is_causal=True, train=False).shape
    (1, 5, 8)
    """

    def __call__(
        self, x: ArrayLike, memory: ArrayLike, *, key: Key | None = None, train: bool = True, **settings: Any
    ) -> Array:
        """Applies the layers in order, with the arguments of :class:`TransformerDecoderLayer`."""
        return self._run(x, memory, key=key, train=train, **settings)

    def init_cache(self, memory: Array, length: int, dtype: DTypeLike | None = None) -> tuple[DecoderCache, ...]:
        """Caches for :meth:`decode` of up to ``length`` positions, with the keys and values of the memory."""
        return tuple(layer.init_cache(memory, length, dtype) for layer in self.layers)

    def decode(
        self, x: ArrayLike, caches: Sequence[DecoderCache], **settings: Any
    ) -> tuple[Array, tuple[DecoderCache, ...]]:
        """The results of a causal call for the next positions, with the arguments of the layers' ``decode``."""
        return self._decode(x, caches, settings)


@layer
class Transformer:
    """An encoder and a decoder that attends to its results, both with a normalization at the end.

    Matrices are initialized with Glorot's uniform distribution, as in PyTorch.

    Args:
        d_model: the number of features.
        nhead: the number of heads.
        num_encoder_layers: the number of layers of the encoder.
        num_decoder_layers: the number of layers of the decoder.
        dim_feedforward: the number of features in the hidden layers of the feed-forward networks.
        dropout: the probability of zeroing an element while training.
        activation: ``"relu"``, ``"gelu"`` (with the error function), or a function.
        layer_norm_eps: a small number added to variances.
        norm_first: pre-norm: normalize the input of each sublayer instead of its residual sum.
        bias: whether linear maps and normalizations add biases.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for all matrices, instead of Glorot's.
        bias_init: an initializer for the biases of the linear maps, instead of PyTorch's.

    Raises:
        ArgumentError: if a number is out of range, or the activation is unknown.
        DtypeError: if ``dtype`` is not a float.

    Reference: Vaswani et al., "Attention Is All You Need" (2017).

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun import random
    >>> model = Transformer(8, 2, 1, 1, 16, key=random.key(0))
    >>> model(tnp.ones((1, 7, 8)), tnp.ones((1, 5, 8)), tgt_is_causal=True, train=False).shape
    (1, 5, 8)
    """

    encoder: TransformerEncoder
    decoder: TransformerDecoder

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Array], Array] = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        key: Key,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        check_positive("Transformer", num_encoder_layers=num_encoder_layers, num_decoder_layers=num_decoder_layers)
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias)
        settings = {"dtype": dtype, "bias_init": bias_init}
        settings["weight_init"] = init.glorot_uniform() if weight_init is None else weight_init
        keys = random.split(key, num_encoder_layers + num_decoder_layers)

        def make(stack: type, layer: type, first: int, count: int) -> Any:
            layers = [layer(*sizes, key=keys[i], **settings) for i in range(first, first + count)]
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
            return stack(layers, norm)

        self.encoder = make(TransformerEncoder, TransformerEncoderLayer, 0, num_encoder_layers)
        self.decoder = make(TransformerDecoder, TransformerDecoderLayer, num_encoder_layers, num_decoder_layers)

    def __call__(
        self,
        src: ArrayLike,
        tgt: ArrayLike,
        *,
        src_mask: ArrayLike | None = None,
        tgt_mask: ArrayLike | None = None,
        memory_mask: ArrayLike | None = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        src_seq_lengths: ArrayLike | None = None,
        tgt_seq_lengths: ArrayLike | None = None,
        key: Key | None = None,
        train: bool = True,
    ) -> Array:
        """Maps a source and a target to a sequence as long as the target.

        Args:
            src: floats of shape (batch, source length, d_model), or without the batch.
            tgt: floats of shape (batch, target length, d_model).
            src_mask: bools that broadcast to (batch, nhead, source length, source length); a position of the source
                attends to another where it is true. (In PyTorch's bool masks, true means *masked*.)
            tgt_mask: the mask of the self-attention of the target.
            memory_mask: the mask of the attention of the target to the source.
            src_is_causal: whether a position of the source attends only to positions up to its own.
            tgt_is_causal: whether a position of the target attends only to positions of the target up to its own.
            memory_is_causal: whether a position of the target attends only to positions of the source up to its own.
            src_seq_lengths: integers of shape (batch,); positions of the source past these lengths are masked, for the
                source and for the target.
            tgt_seq_lengths: integers of shape (batch,); positions of the target past these lengths are masked.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop elements.

        Returns:
            An array like ``tgt``.

        Raises:
            ShapeError: if the shapes do not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        first, second = (None, None) if key is None else random.split(key)
        memory = self.encoder(
            src, mask=src_mask, is_causal=src_is_causal, seq_lengths=src_seq_lengths, key=first, train=train
        )
        return self.decoder(
            tgt,
            memory,
            mask=tgt_mask,
            memory_mask=memory_mask,
            is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
            seq_lengths=tgt_seq_lengths,
            memory_seq_lengths=src_seq_lengths,
            key=second,
            train=train,
        )
