"""Training steps of PyTorch's modules: eager, compiled by PyTorch, and compiled here in three ways.

Run with ``nox -s bench -- -k interop``. The loss, the optimizer and the batch are the same; dropout draws its own bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from bench.harness import interleaved
from interop.torch_nets import MnistNet
from torch import nn

from tvmfun import random
from tvmfun.interop.torch import compile_train, from_torch, wrap

WORDS = 10_000


def mnist() -> tuple[nn.Module, tuple, Callable]:
    """PyTorch's MNIST example, batches of 64."""
    return MnistNet(), (torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))), F.nll_loss


class LanguageModel(nn.Module):
    """PyTorch's word language model, with learned positions."""

    def __init__(self, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, width, 0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.linear = nn.Linear(width, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Any) -> Any:
        return self.linear(self.encoder(self.words(tokens) + self.positions.weight, self.mask, is_causal=True))


def language_model() -> tuple[nn.Module, tuple, Callable]:
    """Its tutorial's sizes: 2 layers of 200, 20 x 35 words."""
    batch = torch.randint(0, WORDS, (20, 35)), torch.randint(0, WORDS, (20 * 35,))
    return LanguageModel(200, 2, 2, 35), batch, lambda scores, y: F.cross_entropy(scores.reshape(-1, WORDS), y)


def bert() -> tuple[nn.Module, tuple, Callable]:
    """A BERT of ``transformers``: 4 layers of 256, 8 x 128 tokens."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    config = transformers.BertConfig(vocab_size=8192, max_position_embeddings=128, **sizes)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertForMaskedLM(config)

        def forward(self, tokens: Any) -> Any:
            return self.model(tokens).logits

    batch = torch.randint(0, 8192, (8, 128)), torch.randint(0, 8192, (8 * 128,))
    return Logits(), batch, lambda logits, y: F.cross_entropy(logits.view(-1, 8192), y)


def torch_step(module: nn.Module, loss: Callable, batch: tuple, parameters: Any = None) -> Callable[[], float]:
    """A step as scripts write it."""
    optimizer = torch.optim.AdamW(parameters or module.parameters(), 1e-4, fused=True)

    def step() -> float:
        optimizer.zero_grad()
        value = loss(module(*batch[:-1]), batch[-1])
        value.backward()
        optimizer.step()
        return float(value.detach())

    return step


def wrapped(module: nn.Module, inputs: tuple) -> nn.Module:
    """The module's function, compiled here, as a module of PyTorch."""
    function, params, state = from_torch(module, inputs)
    return wrap(lambda params, *inputs: function(params, state, *inputs, key=random.key(0))[0], params)


@pytest.mark.parametrize("case", [mnist, language_model, bert])
def test_step(case):
    torch.manual_seed(0)
    module, batch, loss = case()
    module.train()
    clone = lambda: copy.deepcopy(module)
    whole = clone()
    train = compile_train(whole, loss, torch.optim.AdamW(whole.parameters(), 1e-4))
    steps = {
        "compile_train": lambda: float(train(*batch)),
        "wrap": torch_step(wrapped(clone(), batch[:-1]), loss, batch),
        'torch.compile(backend="tvmfun")': torch_step(torch.compile(clone(), backend="tvmfun"), loss, batch),
        "PyTorch": torch_step(clone(), loss, batch),
        "torch.compile": torch_step(torch.compile(clone()), loss, batch),
    }
    first = [step() for step in steps.values()]
    np.testing.assert_allclose(first, first[0], rtol=0.1)
    times = np.median(interleaved(list(steps.values())), axis=0) * 1e3
    print(f"\n{case.__name__}: " + ", ".join(f"{name} {t:.1f} ms" for name, t in zip(steps, times, strict=True)))
