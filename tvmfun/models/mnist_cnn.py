"""The convolutional network of PyTorch's official MNIST example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.models.blocks import dropout_keys
from tvmfun.nn import functional as F

__all__ = ["MnistCnn"]


@tree.register_dataclass
@dataclass(frozen=True)
class MnistCnn:
    """Two convolutions, a maximum over 2x2 windows and two linear layers, with dropout before each.

    Call it with images of shape (batch, 28, 28, 1); it returns the log-probabilities of 10 digits.

    Source: ``examples/mnist`` of PyTorch, with channels last.

    >>> model = MnistCnn.create(random.key(0))
    >>> model(tnp.zeros((2, 28, 28, 1)), train=False).shape
    (2, 10)
    """

    conv1: nn.Conv2d
    conv2: nn.Conv2d
    linear1: nn.Linear
    linear2: nn.Linear
    dropout1: nn.Dropout
    dropout2: nn.Dropout

    @classmethod
    def create(cls, key: Any, dtype: Any = "float32") -> MnistCnn:
        """Returns a network with new parameters."""
        keys = random.split(key, 4)
        return cls(
            nn.Conv2d(1, 32, 3, key=keys[0], dtype=dtype),
            nn.Conv2d(32, 64, 3, key=keys[1], dtype=dtype),
            nn.Linear(9216, 128, key=keys[2], dtype=dtype),
            nn.Linear(128, 10, key=keys[3], dtype=dtype),
            nn.Dropout(0.25),
            nn.Dropout(0.5),
        )

    def __call__(self, images: Any, *, key: Any = None, train: bool = True) -> Any:
        """Returns log-probabilities of shape (batch, 10); ``key`` is needed to drop units while training."""
        first, second = dropout_keys("MnistCnn", key, train, self.dropout1.rate, 2)
        x = F.relu(self.conv1(images))
        x = F.relu(self.conv2(x))
        x = F.max_pool(x, 2)
        x = self.dropout1(x, key=first, train=train)
        x = tnp.reshape(x, (x.shape[0], -1))
        x = F.relu(self.linear1(x))
        x = self.dropout2(x, key=second, train=train)
        return F.log_softmax(self.linear2(x))
