"""Networks of PyTorch to convert, with batches and losses: each as its official source has it, but small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from support import torch_models  # noqa: E402
from torch import nn  # noqa: E402

import tvmfun.numpy as tnp  # noqa: E402
from tvmfun import models  # noqa: E402
from tvmfun.nn import functional as nnf  # noqa: E402


class Net(NamedTuple):
    """A network and how to train it.

    Args:
        module: the network, with the same initial values at each call.
        batches: arguments and labels of a few steps, ``(args, kwargs, labels)``.
        loss: of PyTorch's result and the labels, and of ours.
    """

    module: Any
    batches: list[tuple[tuple, dict, tuple]]
    loss: tuple[Callable, Callable]


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -tnp.mean(tnp.take_along_axis(nnf.log_softmax(logits), labels[:, None], 1))


CLASSES = (F.cross_entropy, cross_entropy)
NLL = (F.nll_loss, lambda scores, labels: -tnp.mean(tnp.take_along_axis(scores, labels[:, None], 1)))
OWN = (lambda output: output.loss, lambda output: output["loss"])


class MnistNet(nn.Module):
    """The network of PyTorch's MNIST example."""

    def __init__(self, rates: tuple[float, float] = (0.25, 0.5)) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = (nn.Dropout(rate) for rate in rates)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


class InvertedResidual(nn.Module):
    """A block of torchvision's MobileNetV2."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.use_res_connect = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(inplace=True)),
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )

    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNet(nn.Module):
    """MobileNetV2 with three blocks, and an activation of MobileNetV3."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        first = (nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        blocks = (InvertedResidual(8, 8, 1, 2), InvertedResidual(8, 16, 2, 3), InvertedResidual(16, 16, 1, 3))
        self.features = nn.Sequential(*first, *blocks)
        self.classifier = nn.Linear(16, classes)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x).mean([2, 3]))


class Tokens(nn.Module):
    """A language model whose result has one row per token, as the loss takes them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        result = self.model(*inputs)
        return (result[0] if isinstance(result, tuple) else result).flatten(0, 1)


def pictures(shape: tuple[int, ...], classes: int = 10) -> list:
    return [((torch.randn(shape),), {}, (torch.randint(0, classes, shape[:1]),)) for _ in range(2)]


def mnist() -> Net:
    return Net(MnistNet((0.0, 0.0)), pictures((4, 1, 28, 28)), NLL)


def resnet() -> Net:
    """A ResNet-18 of two stages: blocks with and without a projection."""
    config = models.ResNetConfig(blocks=(2, 1), width=8, num_classes=10)

    class Nchw(torch_models.ResNet):
        def forward(self, images: Any) -> Any:
            return super().forward(images.permute(0, 2, 3, 1))

    return Net(Nchw(config), pictures((4, 3, 32, 32)), CLASSES)


def mobilenet() -> Net:
    return Net(MobileNet(10), pictures((4, 3, 32, 32)), CLASSES)


def tokens(*shape: int, vocabulary: int = 60) -> Any:
    return torch.randint(0, vocabulary, shape)


def bert() -> Net:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=60, max_position_embeddings=32, **sizes, **rates)
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 10:] = 0
    inputs = [
        {"input_ids": tokens(2, 16), "attention_mask": mask, "labels": torch.where(mask == 1, tokens(2, 16), -100)}
        for _ in range(2)
    ]
    return Net(transformers.BertForMaskedLM(config), [((), kwargs, ()) for kwargs in inputs], OWN)


def gpt2() -> Net:
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 60}
    config = transformers.GPT2Config(**sizes, **rates, use_cache=False, bos_token_id=0, eos_token_id=0)
    inputs = [{"input_ids": tokens(2, 16), "labels": tokens(2, 16)} for _ in range(2)]
    return Net(transformers.GPT2LMHeadModel(config), [((), kwargs, ()) for kwargs in inputs], OWN)


def language_model() -> Net:
    sizes = {"d_model": 32, "nhead": 2, "num_layers": 1, "dim_feedforward": 64}
    model = torch_models.TransformerLanguageModel(models.TransformerConfig(vocab_size=60, dropout=0.0, **sizes))
    return Net(Tokens(model), [((tokens(3, 12),), {}, (tokens(36),)) for _ in range(2)], CLASSES)


def translator() -> Net:
    sizes = {"d_model": 32, "nhead": 2, "num_layers": 1, "dim_feedforward": 64}
    model = torch_models.Translator(models.TransformerConfig(vocab_size=60, dropout=0.0, **sizes))
    batch = (tokens(3, 10), tokens(3, 12), torch.tensor([10, 7, 4]))
    return Net(Tokens(model), [(batch, {}, (tokens(36),)) for _ in range(2)], CLASSES)


def lstm() -> Net:
    config = models.LSTMConfig(vocab_size=60, embedding_size=16, hidden_size=16, num_layers=2, dropout=0.0, tied=True)
    model = torch_models.LSTMLanguageModel(config)
    return Net(Tokens(model), [((tokens(3, 6),), {}, (tokens(18),)) for _ in range(2)], CLASSES)


def made(create: Callable[[], Net]) -> Net:
    """A network in double precision: after 20 steps, what is left of a difference is an error, not rounding."""
    torch.manual_seed(0)
    net = create()
    wide = lambda x: x.double() if x.is_floating_point() else x
    return net._replace(
        module=net.module.double(), batches=[(tuple(map(wide, args)), *rest) for args, *rest in net.batches]
    )


def arrays(values: Any) -> Any:
    """Tensors in tuples or dicts as NumPy's arrays."""
    if isinstance(values, dict):
        return {name: np.asarray(x) for name, x in values.items()}
    return tuple(np.asarray(x) for x in values)
