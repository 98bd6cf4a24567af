"""Training steps of six networks, for what is checked without running them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mnist

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, nn, optim, random
from tvmfun.models import (
    BERT,
    DLRM,
    GPT2,
    BERTConfig,
    DLRMConfig,
    GPT2Config,
    LSTMConfig,
    LSTMLanguageModel,
    ResNet,
    ResNetConfig,
    language_model_loss,
)
from tvmfun.nn.losses import sigmoid_binary_cross_entropy
from tvmfun.nn.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

#: A step and the types of its arguments: the state and a batch.
Step = tuple[Callable, tuple[Any, Any]]

ADAMW = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3, weight_decay=0.1))
SGD = optim.sgd(0.1, momentum=0.9)
KEY = ShapeDtype((2,), "uint32")


def _step(create: Callable, loss: Callable, optimizer: Any, batch: Any, amp: str | None, rest: Any = None) -> Step:
    """A step of ``loss(model, batch, key, rest) -> (value, rest)`` for a model that ``create(key)`` makes."""
    loss = tvmfun.amp(loss, amp) if amp else loss

    def start(key):
        model = create(key)
        return model, optimizer.init(model), key, rest(model) if rest else None

    def step(state, batch):
        model, opt_state, key, rest = state
        own, key = random.split(key)
        (value, rest), grads = tvmfun.value_and_grad(loss, has_aux=True)(model, batch, own, rest)
        updates, opt_state = optimizer.update(grads, opt_state, model)
        return (optim.apply_updates(model, updates), opt_state, key, rest), value

    return step, (tvmfun.eval_shape(start, random.key(0)), batch)


def mnist_step(batch: int = 64) -> Step:
    """The step of the MNIST example."""
    optimizer = mnist.make_optimizer(1.0, 0.7, 62)
    state = tvmfun.eval_shape(partial(mnist.start, optimizer), random.key(0))
    images, labels = ShapeDtype((batch, 28, 28, 1), "float32"), ShapeDtype((batch,), "int32")
    return lambda state, batch: mnist.train_step(optimizer, state, *batch), (state, (images, labels))


def bert_step(config: BERTConfig, batch: int, length: int, amp: str | None = None) -> Step:
    """BERT, which fills in a seventh of the words."""
    count = max(1, length // 7)
    shape = lambda *sizes, dtype="int32": ShapeDtype((batch, *sizes), dtype)
    types = shape(length), shape(count), shape(count), shape(count, dtype="float32")

    def loss(model, batch, key, rest):
        tokens, positions, targets, weights = batch
        output = model(tokens, predictions=positions, key=key)
        return tnp.sum(cross_entropy(output.words, targets) * weights) / tnp.sum(weights), rest

    return _step(partial(BERT.create, config), loss, ADAMW, types, amp)


def gpt2_step(config: GPT2Config, batch: int, length: int, amp: str | None = None) -> Step:
    """GPT-2, which predicts the next word."""

    def loss(model, tokens, key, rest):
        return language_model_loss(model(tokens[:, :-1], key=key), tokens[:, 1:]), rest

    return _step(partial(GPT2.create, config), loss, ADAMW, ShapeDtype((batch, length + 1), "int32"), amp)


def lstm_step(config: LSTMConfig, batch: int, length: int, amp: str | None = None) -> Step:
    """An LSTM, which predicts the next word and hands its state to the next batch."""

    def loss(model, tokens, key, hidden):
        logits, hidden = model(tokens[:, :-1], hidden, key=key)
        return language_model_loss(logits, tokens[:, 1:]), hidden

    create = partial(LSTMLanguageModel.create, config)
    types = ShapeDtype((batch, length + 1), "int32")
    return _step(create, loss, optim.adam(1e-3), types, amp, rest=lambda model: model.init_state(batch))


def dlrm_step(config: DLRMConfig, batch: int) -> Step:
    """DLRM, whose tables are updated only in the rows that were looked up."""

    def loss(model, batch, key, rest):
        dense, ids, clicks = batch
        return tnp.mean(sigmoid_binary_cross_entropy(model(dense, ids), clicks)), rest

    shape = lambda *sizes, dtype="float32": ShapeDtype((batch, *sizes), dtype)
    types = shape(config.dense_features), shape(len(config.table_sizes), dtype="int32"), shape()
    return _step(partial(DLRM.create, config), loss, optim.lazy(optim.sgd(0.1)), types, None)


def resnet_step(config: ResNetConfig, batch: int, size: int, amp: str | None = None) -> Step:
    """A residual network, which classifies images."""

    def loss(model, batch, key, statistics):
        images, labels = batch
        logits, statistics = model(images, statistics)
        return tnp.mean(cross_entropy(logits, labels)), statistics

    types = ShapeDtype((batch, size, size, config.in_channels), "float32"), ShapeDtype((batch,), "int32")
    return _step(partial(ResNet.create, config), loss, SGD, types, amp, rest=nn.init_state)


_BERT = BERTConfig(vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
_GPT2 = GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=2, n_head=4)
_RESNET = ResNetConfig(blocks=(1, 1), width=16, num_classes=10, small_images=True)

#: Steps that compile in seconds, by name.
SMALL: dict[str, Callable[[], Step]] = {
    "mnist": lambda: mnist_step(16),
    "bert": lambda: bert_step(_BERT, 4, 32),
    "bert-bfloat16": lambda: bert_step(_BERT, 4, 32, "bfloat16"),
    "gpt2": lambda: gpt2_step(_GPT2, 4, 32),
    "gpt2-bfloat16": lambda: gpt2_step(_GPT2, 4, 32, "bfloat16"),
    "lstm": lambda: lstm_step(LSTMConfig(512, 64, 64, 1), 8, 16),
    "dlrm": lambda: dlrm_step(DLRMConfig((1000, 50, 7), bottom=(64, 32), top=(64,)), 32),
    "resnet": lambda: resnet_step(_RESNET, 8, 16),
}
