"""The models in PyTorch, written as their sources have them: oracles for the models here."""

import math
from itertools import pairwise

import numpy as np
import pytest

from tvmfun.models.word_models import sinusoidal_positions

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    """A residual block of torchvision's ResNets."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = width * 4 if bottleneck else width
        plan = (
            [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)] if bottleneck else [(width, 3, stride), (width, 3, 1)]
        )
        self.count, channels = len(plan), inputs
        for k, (features, size, step) in enumerate(plan, 1):
            setattr(self, f"conv{k}", nn.Conv2d(channels, features, size, step, size // 2, bias=False))
            setattr(self, f"bn{k}", nn.BatchNorm2d(features))
            channels = features
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for k in range(1, self.count + 1):
            y = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(y))
            y = torch.relu(y) if k < self.count else y
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """torchvision's ResNet, by its names."""

    def __init__(self, config):
        super().__init__()
        size, stride = (3, 1) if config.small_images else (7, 2)
        self.conv1 = nn.Conv2d(config.in_channels, config.width, size, stride, size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(config.width)
        self.pool = nn.Identity() if config.small_images else nn.MaxPool2d(3, 2, 1)
        self.stages, channels = len(config.blocks), config.width
        for i, count in enumerate(config.blocks):
            blocks = []
            for j in range(count):
                blocks.append(Block(channels, config.width * 2**i, 2 if i and not j else 1, config.bottleneck))
                channels = config.width * 2**i * (4 if config.bottleneck else 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, config.num_classes)

    def forward(self, images):
        x = self.pool(torch.relu(self.bn1(self.conv1(images.permute(0, 3, 1, 2)))))
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


def perceptron(sizes, last):
    """Linear layers with activations between them and after the last, as the DLRM's code makes them."""
    layers = []
    for i, (m, n) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(m, n), last if i == len(sizes) - 2 else nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """The model of the paper's code, without the sigmoid at its end."""

    def __init__(self, config):
        super().__init__()
        count = len(config.table_sizes) + 1
        self.emb_l = nn.ModuleList(nn.Embedding(n, config.embedding_dim) for n in config.table_sizes)
        self.bot_l = perceptron((config.dense_features, *config.bottom, config.embedding_dim), nn.ReLU())
        top = config.embedding_dim + count * (count - 1) // 2, *config.top, 1
        self.top_l = perceptron(top, nn.Identity())

    def forward(self, dense, ids):
        x = self.bot_l(dense)
        t = torch.stack([x, *(table(ids[:, i]) for i, table in enumerate(self.emb_l))], 1)
        rows, columns = np.tril_indices(t.shape[1], -1)
        return self.top_l(torch.cat([x, torch.bmm(t, t.transpose(1, 2))[:, rows, columns]], 1))[:, 0]


def embedded(module, tokens):
    """Embeddings times the root of the width, and positions."""
    x = module.embedding(tokens) * math.sqrt(module.embedding.embedding_dim)
    positions = np.array(sinusoidal_positions(tokens.shape[1], x.shape[-1], "float64"))
    return x + torch.from_numpy(positions).to(x.dtype)


def causal(length, dtype):
    """The mask of scores that do not count."""
    return nn.Transformer.generate_square_subsequent_mask(length, dtype=dtype)


class TransformerLanguageModel(nn.Module):
    """The model of PyTorch's tutorial."""

    def __init__(self, c):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(c.vocab_size, c.d_model), nn.Dropout(c.dropout)
        layer = nn.TransformerEncoderLayer(c.d_model, c.nhead, c.dim_feedforward, c.dropout, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, c.num_layers)
        self.linear = nn.Linear(c.d_model, c.vocab_size)

    def forward(self, tokens):
        x = self.dropout(embedded(self, tokens))
        return self.linear(self.transformer_encoder(x, causal(x.shape[1], x.dtype)))


class Translator(nn.Module):
    """An embedding, PyTorch's transformer and a linear layer."""

    def __init__(self, c):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(c.vocab_size, c.d_model), nn.Dropout(c.dropout)
        sizes = c.d_model, c.nhead, c.num_layers, c.num_layers, c.dim_feedforward, c.dropout
        self.transformer = nn.Transformer(*sizes, batch_first=True)
        self.transformer.encoder.enable_nested_tensor = False
        self.linear = nn.Linear(c.d_model, c.vocab_size)

    def forward(self, source, target, lengths):
        padding = torch.arange(source.shape[1]) >= lengths[:, None]
        x, y = self.dropout(embedded(self, source)), self.dropout(embedded(self, target))
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        return self.linear(self.transformer(x, y, tgt_mask=causal(y.shape[1], y.dtype), **masks))


class LSTMLanguageModel(nn.Module):
    """The LSTM of PyTorch's ``word_language_model``."""

    def __init__(self, c):
        super().__init__()
        self.encoder, self.dropout = nn.Embedding(c.vocab_size, c.embedding_size), nn.Dropout(c.dropout)
        between = c.dropout if c.num_layers > 1 else 0.0
        self.rnn = nn.LSTM(c.embedding_size, c.hidden_size, c.num_layers, batch_first=True, dropout=between)
        self.decoder = nn.Linear(c.hidden_size, c.vocab_size)
        if c.tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens, state=None):
        x, state = self.rnn(self.dropout(self.encoder(tokens)), state)
        return self.decoder(self.dropout(x)), state
