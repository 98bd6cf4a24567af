"""ResNets: convolutional networks of residual blocks with batch normalization."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.core.array import Array
from tvmfun.interop.state_dict import Row, linear
from tvmfun.models.config_checks import check_sizes
from tvmfun.nn import functional as F
from tvmfun.typing import ArrayLike, DTypeLike, Key, PyTree

__all__ = ["ResNet", "ResNetConfig", "ResidualBlock", "resnet_state_dict"]


@dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a ResNet.

    Args:
        blocks: the number of blocks of each stage; each later stage halves the image and doubles the channels.
        bottleneck: whether a block is a 1x1, a 3x3 and a 1x1 convolution instead of two of 3x3.
        width: the number of channels of the first stage.
        num_classes: the number of classes.
        in_channels: the number of channels of an image.
        small_images: whether to begin with a 3x3 convolution instead of one of 7x7 and a pooling, both of stride 2.
    """

    blocks: tuple[int, ...] = (2, 2, 2, 2)
    bottleneck: bool = False
    width: int = 64
    num_classes: int = 1000
    in_channels: int = 3
    small_images: bool = False

    @classmethod
    def resnet18(cls, num_classes: int = 1000, **fields: Any) -> ResNetConfig:
        """Returns the sizes of ResNet-18."""
        return cls((2, 2, 2, 2), False, num_classes=num_classes, **fields)

    @classmethod
    def resnet50(cls, num_classes: int = 1000, **fields: Any) -> ResNetConfig:
        """Returns the sizes of ResNet-50."""
        return cls((3, 4, 6, 3), True, num_classes=num_classes, **fields)

    def __post_init__(self) -> None:
        check_sizes(self)


def _conv(inputs: int, outputs: int, size: int, stride: int, key: Key, dtype: DTypeLike) -> nn.Conv2d:
    # He initialization by the number of outputs, as torchvision has it.
    init = nn.init.variance_scaling(2.0, "fan_out", "normal")
    return nn.Conv2d(
        inputs, outputs, size, stride=stride, padding=size // 2, bias=False, key=key, dtype=dtype, weight_init=init
    )


@tree.register_dataclass
@dataclass(frozen=True)
class ResidualBlock:
    """Convolutions, each with a batch normalization, around which the argument is added."""

    convs: tuple[nn.Conv2d, ...]
    norms: tuple[nn.BatchNorm, ...]
    downsample: tuple[nn.Conv2d, nn.BatchNorm] | None

    @classmethod
    def create(
        cls, inputs: int, width: int, stride: int, config: ResNetConfig, key: Key, dtype: DTypeLike = "float32"
    ) -> ResidualBlock:
        """Returns a block with new parameters, for ``inputs`` channels."""
        outputs = width * 4 if config.bottleneck else width
        plan = (
            [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)]
            if config.bottleneck
            else [(width, 3, stride), (width, 3, 1)]
        )
        keys, convs, channels = random.split(key, 4), [], inputs
        for k, (features, size, step) in zip(keys, plan, strict=False):
            convs.append(_conv(channels, features, size, step, k, dtype))
            channels = features
        down = None
        if stride > 1 or inputs != outputs:
            down = _conv(inputs, outputs, 1, stride, keys[3], dtype), nn.BatchNorm(outputs, dtype=dtype)
        return cls(tuple(convs), tuple(nn.BatchNorm(n, dtype=dtype) for n, _, _ in plan), down)

    def __call__(self, x: Array, state: PyTree, *, train: bool = True) -> tuple[Array, PyTree]:
        """Maps images (batch, height, width, channels) to images; also returns the next state."""
        y, norms = x, []
        for i, (conv, norm, statistics) in enumerate(zip(self.convs, self.norms, state["norms"], strict=True)):
            y, statistics = norm(conv(y), statistics, train=train)
            norms.append(statistics)
            y = F.relu(y) if i + 1 < len(self.convs) else y
        state = {"norms": tuple(norms)} | {k: v for k, v in state.items() if k != "norms"}
        if self.downsample is not None:
            conv, norm = self.downsample
            x, statistics = norm(conv(x), state["downsample"][1], train=train)
            state |= {"downsample": (state["downsample"][0], statistics)}
        return F.relu(x + y), state


@tree.register_dataclass
@dataclass(frozen=True)
class ResNet:
    """The network of He et al., "Deep Residual Learning for Image Recognition" (2015), with channels last.

    Call it with images of shape (batch, height, width, channels) and the running statistics; it returns logits of shape
    (batch, num_classes) and the next statistics.

    >>> model = ResNet.create(ResNetConfig((1, 1), width=8, num_classes=10, small_images=True), random.key(0))
    >>> logits, statistics = model(tnp.zeros((2, 8, 8, 3)), nn.init_state(model))
    >>> logits.shape
    (2, 10)
    """

    conv: nn.Conv2d
    norm: nn.BatchNorm
    stages: tuple[tuple[ResidualBlock, ...], ...]
    fc: nn.Linear
    config: ResNetConfig = field(metadata={"static": True})

    @classmethod
    def create(cls, config: ResNetConfig, key: Key, dtype: DTypeLike = "float32") -> ResNet:
        """Returns a network with new parameters."""
        conv_key, fc_key, *stage_keys = random.split(key, 2 + len(config.blocks))
        size, stride = (3, 1) if config.small_images else (7, 2)
        stages, channels = [], config.width
        for i, (count, stage_key) in enumerate(zip(config.blocks, stage_keys, strict=True)):
            width, blocks = config.width * 2**i, []
            for j, k in enumerate(random.split(stage_key, count)):
                step = 2 if i and not j else 1
                blocks.append(ResidualBlock.create(channels, width, step, config, k, dtype))
                channels = width * 4 if config.bottleneck else width
            stages.append(tuple(blocks))
        return cls(
            _conv(config.in_channels, config.width, size, stride, conv_key, dtype),
            nn.BatchNorm(config.width, dtype=dtype),
            tuple(stages),
            nn.Linear(channels, config.num_classes, key=fc_key, dtype=dtype),
            config,
        )

    def __call__(self, images: ArrayLike, state: PyTree, *, train: bool = True) -> tuple[Array, PyTree]:
        """Returns logits and the next running statistics; ``train`` normalizes by the batch's own."""
        x, norm = self.norm(self.conv(images), state["norm"], train=train)
        x = F.relu(x)
        if not self.config.small_images:
            x = F.max_pool(x, 3, stride=2, padding=1)
        stages = []
        for blocks, states in zip(self.stages, state["stages"], strict=True):
            new = []
            for block, block_state in zip(blocks, states, strict=True):
                x, block_state = block(x, block_state, train=train)
                new.append(block_state)
            stages.append(tuple(new))
        return self.fc(tnp.mean(x, axis=(1, 2))), state | {"norm": norm, "stages": tuple(stages)}


def resnet_state_dict(config: ResNetConfig) -> list[Row]:
    """Returns the table of torchvision's arrays, for a tree ``(model, statistics)``."""
    rows = [Row("[0].conv.weight", "conv1.weight", "conv"), *_norm("[0].norm", "[1]['norm']", "bn1")]
    for i, count in enumerate(config.blocks):
        for j in range(count):
            name, ours = f"layer{i + 1}.{j}", f"[0].stages[{i}][{j}]"
            theirs = f"[1]['stages'][{i}][{j}]"
            for k in range(3 if config.bottleneck else 2):
                rows.append(Row(f"{ours}.convs[{k}].weight", f"{name}.conv{k + 1}.weight", "conv"))
                rows += _norm(f"{ours}.norms[{k}]", f"{theirs}['norms'][{k}]", f"{name}.bn{k + 1}")
            rows.append(Row(f"{ours}.downsample[0].weight", f"{name}.downsample.0.weight", "conv"))
            rows += _norm(f"{ours}.downsample[1]", f"{theirs}['downsample'][1]", f"{name}.downsample.1")
    return [*rows, *linear("[0].fc", "fc")]


def _norm(path: str, state: str, name: str) -> list[Row]:
    """Returns the rows of a batch normalization: its parameters and its running statistics."""
    statistics = [Row(f"{state}.mean", f"{name}.running_mean"), Row(f"{state}.var", f"{name}.running_var")]
    return [*linear(path, name, "same"), *statistics]
