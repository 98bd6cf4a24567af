r"""Initializers: functions ``(key, shape, dtype)`` that make the initial parameters of a network.

Names, arguments and numbers are those of ``jax.nn.initializers``. Weights have their inputs on the second to
last axis and their outputs on the last one; ``in_axis`` and ``out_axis`` change that.

>>> weight = he_normal()(random.key(0), (784, 512))
>>> weight.shape, f"{float(tnp.std(weight)):.4f}"
((784, 512), '0.0505')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, random
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.jit import jit
from tvmfun.lax.staging import compiled_for_all_shapes
from tvmfun.names import missing as _missing
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.random.uniforms import float_dtype
from tvmfun.typing import DTypeLike, Key, Scalar

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]

Axis: TypeAlias = int | Sequence[int]
Mode: TypeAlias = Literal["fan_in", "fan_out", "fan_avg", "fan_geo_avg"]
Distribution: TypeAlias = Literal["truncated_normal", "normal", "uniform"]

# The standard deviation of a standard normal distribution truncated to [-2, 2].
_STDDEV_WITHIN_2 = 0.87962566103423978


class Initializer(Protocol):
    """The type of initializers: functions of a key, a shape and a dtype that return an array.

    The dtype defaults to the one that the initializer was made with, or to float32.
    """

    def __call__(self, key: Key, shape: Shape, dtype: Any = None) -> Array:
        """Makes an array of a shape and a dtype from a key."""
        ...


def zeros(key: Key, shape: Shape, dtype: DTypeLike | None = None) -> Array:
    """Returns zeros; the key is not used.

    >>> zeros(random.key(0), (2,))
    Array([0., 0.], dtype=float32)
    """
    return tnp.zeros(shape, dtypes.DEFAULT_FLOAT if dtype is None else dtype)


def ones(key: Key, shape: Shape, dtype: DTypeLike | None = None) -> Array:
    """Returns ones; the key is not used.

    >>> ones(random.key(0), (2,), "bfloat16").dtype
    dtype(bfloat16)
    """
    return tnp.ones(shape, dtypes.DEFAULT_FLOAT if dtype is None else dtype)


def constant(value: Any, dtype: DTypeLike | None = None) -> Initializer:
    """An initializer with a constant value.

    Args:
        value: a number, or an array that broadcasts to the shape.
        dtype: the default dtype of the results.

    >>> constant(0.1)(random.key(0), (2,))
    Array([0.1, 0.1], dtype=float32)
    """

    def init(key: Key, shape: Shape, dtype: Any = dtype) -> Array:
        return tnp.full(shape, value, dtypes.DEFAULT_FLOAT if dtype is None else dtype)

    return init


def uniform(scale: Scalar = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    r"""An initializer with a uniform distribution on :math:`[0, \text{scale})`.

    Args:
        scale: the upper bound.
        dtype: the default dtype of the results.

    >>> uniform(1.0)(random.key(0), (2, 3)).shape
    (2, 3)
    """
    return _scaled("uniform", "unit", scale, dtype)


def normal(stddev: Scalar = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    """An initializer with a normal distribution of mean zero.

    Args:
        stddev: the standard deviation.
        dtype: the default dtype of the results.

    >>> normal(1.0)(random.key(0), (2, 3)).shape
    (2, 3)
    """
    return _scaled("normal", "normal", stddev, dtype)


def truncated_normal(
    stddev: Scalar = 1e-2, dtype: DTypeLike | None = None, lower: float = -2.0, upper: float = 2.0
) -> Initializer:
    """An initializer with a truncated normal distribution.

    Args:
        stddev: the standard deviation before truncation.
        dtype: the default dtype of the results.
        lower: the lower bound, in standard deviations.
        upper: the upper bound, in standard deviations.

    >>> bool(tnp.max(truncated_normal(1.0, upper=0.5)(random.key(0), (100,))) < 0.5)
    True
    """
    return _scaled("truncated_normal", "truncated_normal", stddev, dtype, float(lower), float(upper))


def variance_scaling(
    scale: Scalar,
    mode: Mode,
    distribution: Distribution,
    in_axis: Axis = -2,
    out_axis: Axis = -1,
    batch_axis: Axis = (),
    dtype: DTypeLike | None = None,
) -> Initializer:
    r"""An initializer of mean zero and variance :math:`\text{scale} / n`, so that activations keep their scale.

    Args:
        scale: a positive number.
        mode: the definition of :math:`n`: the number of inputs of an output (``"fan_in"``), of outputs of an input
            (``"fan_out"``), or their arithmetic or geometric mean.
        distribution: ``"truncated_normal"`` is truncated at two standard deviations.
        in_axis: the axis or axes of the inputs.
        out_axis: the axis or axes of the outputs.
        batch_axis: axes that count neither as inputs nor as outputs; all others are the receptive field.
        dtype: the default dtype of the results.

    Raises:
        ArgumentError: if the mode or the distribution is unknown.
        ShapeError: from the initializer, if the shape lacks the axes.

    Reference: He et al., "Delving Deep into Rectifiers" (2015); Glorot and Bengio, "Understanding the difficulty of
    training deep feedforward neural networks" (2010).

    >>> variance_scaling(1.0, "fan_avg", "uniform")(random.key(0), (3, 3, 16, 32)).shape
    (3, 3, 16, 32)
    """
    where = "variance_scaling"
    if mode not in ("fan_in", "fan_out", "fan_avg", "fan_geo_avg"):
        hint = '"fan_in", "fan_out", "fan_avg" or "fan_geo_avg"'
        raise ArgumentError(where, "the mode is unknown", got=repr(mode), hint=hint)
    if distribution not in ("truncated_normal", "normal", "uniform"):
        hint = '"truncated_normal", "normal" or "uniform"'
        raise ArgumentError(where, "the distribution is unknown", got=repr(distribution), hint=hint)

    def init(key: Key, shape: Shape, dtype: Any = dtype) -> Array:
        sizes, kind = as_shape(where, shape), float_dtype(where, dtype)
        fan_in, fan_out = _fans(where, sizes, in_axis, out_axis, batch_axis)
        size = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
            "fan_geo_avg": math.sqrt(fan_in * fan_out),
        }[mode]
        # Rounded after every step, as in JAX. Without inputs there are no elements to scale.
        variance = _as_number(scale / size if size else 0.0, kind)
        sqrt = tnp.sqrt if isinstance(variance, Array) else np.sqrt
        if distribution == "uniform":
            return _draw(key, sqrt(kind.type(3) * variance), distribution="symmetric", shape=sizes, dtype=kind)
        stddev = sqrt(variance)
        if distribution == "normal":
            return _draw(key, stddev, distribution="normal", shape=sizes, dtype=kind)
        stddev = stddev / kind.type(_STDDEV_WITHIN_2)
        return _draw(key, stddev, distribution="truncated_normal", shape=sizes, dtype=kind)

    return init


def glorot_uniform(
    in_axis: Axis = -2, out_axis: Axis = -1, batch_axis: Axis = (), dtype: DTypeLike | None = None
) -> Initializer:
    """An initializer uniform with variance 1 over the mean of inputs and outputs; also ``xavier_uniform``.

    >>> glorot_uniform()(random.key(0), (4, 5)).shape
    (4, 5)
    """
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis, out_axis, batch_axis, dtype)


def glorot_normal(
    in_axis: Axis = -2, out_axis: Axis = -1, batch_axis: Axis = (), dtype: DTypeLike | None = None
) -> Initializer:
    """An initializer truncated normal with variance 1 over the mean of inputs and outputs; also ``xavier_normal``.

    >>> glorot_normal()(random.key(0), (4, 5)).shape
    (4, 5)
    """
    return variance_scaling(1.0, "fan_avg", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


def lecun_uniform(
    in_axis: Axis = -2, out_axis: Axis = -1, batch_axis: Axis = (), dtype: DTypeLike | None = None
) -> Initializer:
    """An initializer uniform with variance 1 over the number of inputs.

    >>> lecun_uniform()(random.key(0), (4, 5)).shape
    (4, 5)
    """
    return variance_scaling(1.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def lecun_normal(
    in_axis: Axis = -2, out_axis: Axis = -1, batch_axis: Axis = (), dtype: DTypeLike | None = None
) -> Initializer:
    """An initializer truncated normal with variance 1 over the number of inputs.

    >>> lecun_normal()(random.key(0), (4, 5)).shape
    (4, 5)
    """
    return variance_scaling(1.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


def he_uniform(
    in_axis: Axis = -2, out_axis: Axis = -1, batch_axis: Axis = (), dtype: DTypeLike | None = None
) -> Initializer:
    """An initializer uniform with variance 2 over the number of inputs, for relu; also ``kaiming_uniform``.

    >>> he_uniform()(random.key(0), (4, 5)).shape
    (4, 5)
    """
    return variance_scaling(2.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def he_normal(
    in_axis: Axis = -2, out_axis: Axis = -1, batch_axis: Axis = (), dtype: DTypeLike | None = None
) -> Initializer:
    """An initializer truncated normal with variance 2 over the number of inputs, for relu; also ``kaiming_normal``.

    >>> he_normal()(random.key(0), (4, 5)).shape
    (4, 5)
    """
    return variance_scaling(2.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


# JAX's second names.
xavier_uniform = glorot_uniform
xavier_normal = glorot_normal
kaiming_uniform = he_uniform
kaiming_normal = he_normal


def orthogonal(scale: Scalar = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None) -> Initializer:
    """An initializer of matrices with orthonormal columns, or orthonormal rows if there are fewer rows.

    Args:
        scale: a factor of the matrix.
        column_axis: the axis of the columns; all others together are the rows.
        dtype: the default dtype of the results.

    Raises:
        ShapeError: from the initializer, for a shape of fewer than two axes, or without the axis.

    Reference: Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks"
    (2013).

    >>> q = orthogonal()(random.key(0), (4, 3))
    >>> tnp.round(tnp.abs(q.T @ q), 5)
    Array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    where = "orthogonal"

    def init(key: Key, shape: Shape, dtype: Any = dtype) -> Array:
        sizes, kind = as_shape(where, shape), float_dtype(where, dtype)
        if len(sizes) < 2:
            raise ShapeError(where, "the shape must have two axes or more", got=str(sizes))
        column = _axis(where, sizes, column_axis)
        if 0 in sizes:
            return tnp.zeros(sizes, kind)
        return _draw_orthogonal(key, _as_number(scale, kind), shape=sizes, column=column, dtype=kind)

    return init


def delta_orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None) -> Initializer:
    """An initializer of norm-preserving convolutions: orthogonal at the centre of the window, zero elsewhere.

    Args:
        scale: a factor of the matrix.
        column_axis: the axis of the columns of the matrix at the centre.
        dtype: the default dtype of the results.

    Raises:
        ShapeError: from the initializer, for a shape that is not (..., inputs, outputs) with one to three axes of a
            window, or with more inputs than outputs.

    Reference: Xiao et al., "Dynamical Isometry and a Mean Field Theory of CNNs" (2018).

    >>> delta_orthogonal()(random.key(0), (3, 1, 1))[:, 0, 0]
    Array([0., 1., 0.], dtype=float32)
    """
    where = "delta_orthogonal"

    def init(key: Key, shape: Shape, dtype: Any = dtype) -> Array:
        sizes, kind = as_shape(where, shape), float_dtype(where, dtype)
        if len(sizes) not in (3, 4, 5):
            raise ShapeError(where, "the shape must have three, four or five axes", got=str(sizes))
        if sizes[-1] < sizes[-2]:
            raise ShapeError(where, "there must be no more inputs than outputs", got=str(sizes))
        weight = tnp.zeros(sizes, kind)
        if 0 in sizes:
            return weight
        middle = tuple([(size - 1) // 2 for size in sizes[:-2]])
        return weight.at[middle].set(orthogonal(scale, column_axis, kind)(key, sizes[-2:]))

    return init


def _axis(where: str, shape: tuple[int, ...], axis: int) -> int:
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(where, f"the shape must have the axis {axis}", got=str(shape), hint="in_axis and out_axis")
    return axis % len(shape)


def _fans(
    where: str, shape: tuple[int, ...], in_axis: Axis, out_axis: Axis, batch_axis: Axis
) -> tuple[int | float, int | float]:
    """The numbers of inputs of an output and of outputs of an input, including the receptive field."""
    inputs, outputs, batch = (
        math.prod([shape[_axis(where, shape, i)] for i in ((axis,) if isinstance(axis, int) else axis)])
        for axis in (in_axis, out_axis, batch_axis)
    )
    if 0 in shape:
        return 0, 0
    # In floats, because an axis that is an in_axis and an out_axis is divided by twice.
    field = math.prod(shape) / inputs / outputs / batch
    return inputs * field, outputs * field


def _as_number(value: Scalar, dtype: np.dtype) -> Any:
    """A number rounded to a dtype: one of NumPy, or a value that is being traced."""
    return tnp.astype(value, dtype) if isinstance(value, Array) else np.asarray(value, dtype)


def _scaled(
    where: str, distribution: str, scale: Scalar, dtype: Any, lower: float = -2.0, upper: float = 2.0
) -> Initializer:
    def init(key: Key, shape: Shape, dtype: Any = dtype) -> Array:
        sizes, kind = as_shape(where, shape), float_dtype(where, dtype)
        factor = _as_number(scale, kind)
        return _draw(key, factor, distribution=distribution, shape=sizes, dtype=kind, lower=lower, upper=upper)

    return init


# Compiled as a whole: op by op, each new shape would compile every op of the generator.
@compiled_for_all_shapes("distribution", "dtype", "lower", "upper")
def _draw(
    key: Key,
    scale: Any,
    *,
    distribution: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    lower: float = -2.0,
    upper: float = 2.0,
) -> Array:
    if distribution == "unit":
        return random.uniform(key, shape, dtype) * scale
    if distribution == "symmetric":
        return random.uniform(key, shape, dtype, -1.0) * scale
    if distribution == "normal":
        return random.normal(key, shape, dtype) * scale
    return random.truncated_normal(key, lower, upper, shape, dtype) * scale


@partial(jit, static_argnames=("shape", "column", "dtype"))
def _draw_orthogonal(key: Key, scale: Any, *, shape: tuple[int, ...], column: int, dtype: np.dtype) -> Array:
    columns = shape[column]
    rows = math.prod(shape) // columns
    # Decompositions support only float32 and float64.
    wide = dtype if dtype.itemsize > 2 else dtypes.float32
    square = tnp.astype(random.normal(key, (max(rows, columns), min(rows, columns)), dtype), wide)
    q, r = tnp.linalg.qr(square)
    # Signs that make the diagonal of r positive make q unique, and uniformly distributed.
    diagonal = tnp.diagonal(r)
    q = tnp.astype(q * tnp.where(diagonal < 0, -1.0, 1.0), dtype)
    q = (q.T if columns > rows else q).reshape(*shape[:column], *shape[column + 1 :], columns)
    return tnp.moveaxis(q, -1, column) * scale


__getattr__ = _missing(__name__)
publish(globals())
