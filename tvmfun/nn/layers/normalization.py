"""Normalizations, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.nn import functional
from tvmfun.nn.layers.parameters import check_positive, float_dtype, layer
from tvmfun.typing import ArrayLike, DType, DTypeLike

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "RunningStatistics"]


class RunningStatistics(NamedTuple):
    """The state of a normalization: running mean and variance of every channel, updated while training."""

    mean: Any
    var: Any


def _affine(shape: tuple[int, ...], weight: bool, bias: bool, dtype: DType) -> tuple[Array | None, Array | None]:
    """The initial weight, ones, and bias, zeros, where a layer has them."""
    return tnp.ones(shape, dtype=dtype) if weight else None, tnp.zeros(shape, dtype=dtype) if bias else None


@layer
class BatchNorm:
    """Batch normalization: mean 0 and variance 1 of every channel, over the batch and all spatial axes.

    It has a state, the running mean and variance: ``y, state = layer(x, state, train=True)``. Weights are
    initialized to 1, biases to 0, the running mean to 0 and the running variance to 1.

    Args:
        num_features: the number of channels.
        eps: a small number against division by zero.
        momentum: the weight of a batch in the running statistics: ``(1 - momentum) * running + momentum * new``.
        affine: whether to multiply by a weight and add a bias.
        axis_name: the name of an axis of :func:`tvmfun.vmap` over which the batch is split.
        dtype: the dtype of parameters and state.

    Raises:
        ArgumentError: if the number of channels is not positive.
        DtypeError: if ``dtype`` is not a float.

    Reference: Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
    Covariate Shift" (2015).

    >>> norm = BatchNorm(1)
    >>> y, state = norm(tnp.asarray([[1.0], [3.0]]), norm.init_state())
    >>> y.ravel(), state.mean, state.var
    (Array([-0.999995,  0.999995], dtype=float32), Array([0.2], dtype=float32), Array([1.1], dtype=float32))
    >>> norm(tnp.asarray([[1.2]]), state, train=False)[0]
    Array([[0.9534583]], dtype=float32)
    """

    weight: Array | None
    bias: Array | None
    num_features: int = field(metadata={"static": True})
    eps: float = field(metadata={"static": True})
    momentum: float = field(metadata={"static": True})
    axis_name: str | None = field(metadata={"static": True})
    dtype: Any = field(metadata={"static": True})

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        axis_name: str | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_positive("BatchNorm", num_features=num_features)
        self.dtype = float_dtype("BatchNorm", dtype)
        self.weight, self.bias = _affine((num_features,), affine, affine, self.dtype)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.axis_name = axis_name

    def init_state(self) -> RunningStatistics:
        """The initial running mean 0 and variance 1."""
        shape = (self.num_features,)
        return RunningStatistics(tnp.zeros(shape, dtype=self.dtype), tnp.ones(shape, dtype=self.dtype))

    def __call__(self, x: ArrayLike, state: RunningStatistics, *, train: bool = True) -> tuple[Any, RunningStatistics]:
        """Normalizes an array of shape (batch, spatial axes, channels), and returns it with the new state."""
        y, mean, var = functional.batch_norm(
            x,
            state.mean,
            state.var,
            self.weight,
            self.bias,
            train=train,
            momentum=self.momentum,
            eps=self.eps,
            axis_name=self.axis_name,
        )
        return y, RunningStatistics(mean, var)


@layer
class LayerNorm:
    """Layer normalization: mean 0 and variance 1 over the last axes, with initial weights 1 and biases 0.

    Args:
        normalized_shape: the sizes of the last axes.
        eps: a small number against division by zero.
        elementwise_affine: whether to multiply by a weight and add a bias.
        bias: whether to add a bias, if there is a weight.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a size is not positive.
        DtypeError: if ``dtype`` is not a float.

    Reference: Ba, Kiros and Hinton, "Layer Normalization" (2016).

    >>> LayerNorm(2, eps=0.0)(tnp.asarray([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)
    """

    weight: Array | None
    bias: Array | None
    normalized_shape: tuple[int, ...] = field(metadata={"static": True})
    eps: float = field(metadata={"static": True})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        *,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: DTypeLike = "float32",
    ) -> None:
        self.normalized_shape = shape = _shape("LayerNorm", normalized_shape)
        self.eps = eps
        dtype = float_dtype("LayerNorm", dtype)
        self.weight, self.bias = _affine(shape, elementwise_affine, elementwise_affine and bias, dtype)

    def __call__(self, x: ArrayLike) -> Array:
        """Normalizes an array of shape (..., normalized_shape)."""
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, eps=self.eps)


@layer
class RMSNorm:
    """Normalization by the root of the mean square over the last axes, with initial weights 1.

    Args:
        normalized_shape: the sizes of the last axes.
        eps: a small number against division by zero; by default the machine epsilon of the argument's dtype.
        elementwise_affine: whether to multiply by a weight.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a size is not positive.
        DtypeError: if ``dtype`` is not a float.

    Reference: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    >>> RMSNorm(2)(tnp.asarray([3.0, 3.0]))
    Array([1., 1.], dtype=float32)
    """

    weight: Array | None
    normalized_shape: tuple[int, ...] = field(metadata={"static": True})
    eps: float | None = field(metadata={"static": True})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        *,
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: DTypeLike = "float32",
    ) -> None:
        self.normalized_shape = shape = _shape("RMSNorm", normalized_shape)
        self.eps = eps
        self.weight, _ = _affine(shape, elementwise_affine, False, float_dtype("RMSNorm", dtype))

    def __call__(self, x: ArrayLike) -> Array:
        """Normalizes an array of shape (..., normalized_shape)."""
        return functional.rms_norm(x, self.normalized_shape, self.weight, eps=self.eps)


@layer
class GroupNorm:
    """Group normalization: mean 0 and variance 1 over the spatial axes and the channels of a group.

    Weights are initialized to 1, biases to 0.

    Args:
        num_groups: the number of groups of channels.
        num_channels: the number of channels.
        eps: a small number against division by zero.
        affine: whether to multiply by a weight and add a bias.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a number is not positive, or the groups do not divide the channels.
        DtypeError: if ``dtype`` is not a float.

    Reference: Wu and He, "Group Normalization" (2018).

    >>> GroupNorm(2, 4)(tnp.ones((1, 3, 3, 4))).shape
    (1, 3, 3, 4)
    """

    weight: Array | None
    bias: Array | None
    num_groups: int = field(metadata={"static": True})
    eps: float = field(metadata={"static": True})

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_positive("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError("GroupNorm", f"{num_groups} groups must divide the channels", got=str(num_channels))
        self.weight, self.bias = _affine((num_channels,), affine, affine, float_dtype("GroupNorm", dtype))
        self.num_groups = num_groups
        self.eps = eps

    def __call__(self, x: ArrayLike) -> Array:
        """Normalizes an array of shape (batch, spatial axes, channels)."""
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, eps=self.eps)


@layer
class InstanceNorm:
    """Instance normalization: mean 0 and variance 1 over the spatial axes, for every example and channel.

    With ``track_running_stats`` it has a state, the running mean and variance, which it uses when not training:
    ``y, state = layer(x, state, train=True)``.

    Args:
        num_features: the number of channels.
        eps: a small number against division by zero.
        momentum: the weight of a batch in the running statistics: ``(1 - momentum) * running + momentum * new``.
        affine: whether to multiply by a weight, initialized to 1, and add a bias, initialized to 0.
        track_running_stats: whether to keep running statistics.
        dtype: the dtype of parameters and state.

    Raises:
        ArgumentError: if the number of channels is not positive.
        DtypeError: if ``dtype`` is not a float.

    Reference: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization: The Missing Ingredient for Fast Stylization"
    (2016).

    >>> InstanceNorm(1, eps=0.0)(tnp.asarray([[[1.0], [3.0]]])).ravel()
    Array([-1.,  1.], dtype=float32)
    """

    weight: Array | None
    bias: Array | None
    num_features: int = field(metadata={"static": True})
    eps: float = field(metadata={"static": True})
    momentum: float = field(metadata={"static": True})
    track_running_stats: bool = field(metadata={"static": True})
    dtype: Any = field(metadata={"static": True})

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_positive("InstanceNorm", num_features=num_features)
        self.dtype = float_dtype("InstanceNorm", dtype)
        self.weight, self.bias = _affine((num_features,), affine, affine, self.dtype)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats

    def init_state(self) -> RunningStatistics | tuple[()]:
        """The initial mean 0 and variance 1, or ``()`` without running statistics."""
        if not self.track_running_stats:
            return ()
        shape = (self.num_features,)
        return RunningStatistics(tnp.zeros(shape, dtype=self.dtype), tnp.ones(shape, dtype=self.dtype))

    def __call__(self, x: ArrayLike, state: RunningStatistics | tuple[()] = (), *, train: bool = True) -> Any:
        """Normalizes an array of shape (batch, spatial axes, channels); returns the state, too, if it has one."""
        if not self.track_running_stats:
            return functional.instance_norm(x, self.weight, self.bias, eps=self.eps)
        if not state:
            hint = "state=layer.init_state()"
            raise ArgumentError("InstanceNorm", "running statistics need a state", got="none", hint=hint)
        if not train:
            y, *_ = functional.batch_norm(x, state.mean, state.var, self.weight, self.bias, train=False, eps=self.eps)
            return y, state
        y, constant = (
            functional.instance_norm(x, self.weight, self.bias, eps=self.eps),
            lax.stop_gradient(tnp.asarray(x)),
        )
        axes = tuple(range(1, constant.ndim - 1))
        new = tnp.mean(constant, axis=(0, *axes)), tnp.mean(tnp.var(constant, axis=axes, correction=1), axis=0)
        running = [old * (1 - self.momentum) + self.momentum * value for old, value in zip(state, new, strict=True)]
        return y, RunningStatistics(*running)


def _shape(where: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape:
        raise ArgumentError(where, "normalized_shape must not be empty", got="()")
    for size in shape:
        check_positive(where, normalized_shape=size)
    return shape
