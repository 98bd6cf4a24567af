"""Adafactor: second moments of matrices as one vector for the rows and one for the columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.constraining import clip_by_block_rms
from tvmfun.optim.momentum import ema
from tvmfun.optim.numerics import in_dtype_of, need_params, safe_increment, zero_count
from tvmfun.optim.scaling import scale, scale_by_learning_rate, scale_by_param_block_rms
from tvmfun.typing import DTypeLike, PyTree, Scalar

__all__ = [
    "FactoredState",
    "adafactor",
    "scale_by_factored_rms",
]


class FactoredState(NamedTuple):
    """The state of ``scale_by_factored_rms``; unused moments are an array of one zero.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        v_row: the means of the squares along the longest axis.
        v_col: the means of the squares along the second longest axis.
        v: the running means of the squares of parameters that are not factored.
    """

    count: Array
    v_row: Updates
    v_col: Updates
    v: Updates


def _growing_decay(count: Array, decay_rate: Scalar) -> Array:
    return 1.0 - (tnp.asarray(count) + 1).astype("float32") ** (-decay_rate)


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: Scalar = 0.8,
    step_offset: Scalar = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: Scalar = 1e-30,
    decay_rate_fn: Callable[[Array, Scalar], Scalar] = _growing_decay,
) -> GradientTransformation:
    """Divides by the root of the running mean of squares, which it keeps as a product of two vectors.

    ``v' = d * v + (1 - d) * (u**2 + epsilon)`` and ``u' = u / sqrt(v')`` with ``d = 1 - t**(-decay_rate)``. For a
    matrix, only the means ``r`` of the rows of ``v`` and ``c`` of its columns are kept; ``v = r * c / mean(r)``.

    Args:
        factored: whether to factor at all.
        decay_rate: how fast the decay rate of the running mean approaches 1.
        step_offset: the count at which the training starts, for fine-tuning.
        min_dim_size_to_factor: an array is factored if its two longest axes are at least this long.
        epsilon: keeps the squares away from zero.
        decay_rate_fn: a function of the count, from 0, and ``decay_rate`` that returns ``d``.

    Returns:
        A transformation whose state is a ``FactoredState``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018).

    >>> transform = scale_by_factored_rms(min_dim_size_to_factor=2)
    >>> params = tnp.ones((2, 3))
    >>> updates, state = transform.update(3 * params, transform.init(params), params)
    >>> round(float(updates[0, 0]), 6), state.v_row.shape, state.v_col.shape, state.v.shape
    (1.0, (2,), (3,), (1,))
    """

    def longest_axes(x: Array) -> tuple[int, int] | None:
        shape = abstract(x).shape
        if not factored or len(shape) < 2:
            return None
        second, first = (int(axis) for axis in np.argsort(shape)[-2:])
        return (first, second) if shape[second] >= min_dim_size_to_factor else None

    def init(params: Params) -> FactoredState:
        def start(p: Array) -> tuple:
            p, axes = tnp.asarray(p), longest_axes(p)
            unused = [tnp.zeros((1,), dtype=p.dtype) for _ in range(2)]
            if axes is None:
                return *unused, tnp.zeros_like(p)
            shapes = [[n for i, n in enumerate(p.shape) if i != axis] for axis in axes]
            return *(tnp.zeros(tuple(shape), dtype=p.dtype) for shape in shapes), unused[0]

        return FactoredState(zero_count(), *_columns(tree.map(start, params), params, 3))

    def update(updates: Updates, state: FactoredState, params: Params | None = None) -> tuple:
        need_params("scale_by_factored_rms", params)
        rate = decay_rate_fn(state.count - step_offset, decay_rate)

        def step(u: Array, v_row: Array, v_col: Array, v: Array, p: Array) -> tuple:
            square, axes, decay = tnp.square(u) + epsilon, longest_axes(p), in_dtype_of(p, rate)
            if axes is None:
                v = (decay * v + (1 - decay) * square).astype(v.dtype)
                return u / tnp.sqrt(v), v_row, v_col, v
            first, second = axes
            v_row = (decay * v_row + (1 - decay) * tnp.mean(square, axis=first)).astype(v_row.dtype)
            v_col = (decay * v_col + (1 - decay) * tnp.mean(square, axis=second)).astype(v_col.dtype)
            kept = second - 1 if second > first else second
            row = tnp.sqrt(v_row / tnp.mean(v_row, axis=kept, keepdims=True))
            new = u / tnp.expand_dims(row, first) / tnp.expand_dims(tnp.sqrt(v_col), second)
            return new, v_row, v_col, v

        results = tree.map(step, updates, state.v_row, state.v_col, state.v, params)
        new_updates, *moments = _columns(results, updates, 4)
        return new_updates, FactoredState(safe_increment(state.count), *moments)

    return GradientTransformation(init, update)


def _columns(rows: PyTree, like: PyTree, count: int) -> list[PyTree]:
    """Splits a tree of tuples, with the structure of ``like``, into ``count`` trees."""
    return [tree.map(lambda _, row, i=i: row[i], like, rows) for i in range(count)]


def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: Scalar = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: Scalar = 1.0,
    momentum: Scalar | None = None,
    dtype_momentum: DTypeLike = "float32",
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: Scalar = 1e-30,
    factored: bool = True,
    weight_decay_mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Adafactor: second moments of matrices as pairs of vectors; :func:`scale_by_factored_rms` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` for 1.
        decay_offset: the count at which the training starts, for fine-tuning.
        multiply_by_parameter_scale: whether steps are in proportion to the root mean square of the parameter.
        clipping_threshold: the largest root mean square of a step before that scaling; ``None`` for no limit.
        momentum: the decay rate of the momentum; ``None`` for none.
        dtype_momentum: the dtype of the momentum.
        weight_decay_rate: a number, a 0-d array or a schedule; the learning rate does not multiply it.
        eps: keeps the denominator away from zero.
        weight_decay_mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Other arguments: as :func:`scale_by_factored_rms`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if the dtype is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adafactor(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.2
    """
    steps = [scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)]
    if clipping_threshold is not None:
        steps.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        steps.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        steps.append(scale_by_param_block_rms())
    if momentum is not None:
        steps.append(ema(momentum, False, dtype_momentum))
    if weight_decay_rate is not None:
        steps.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*steps, scale(-1))
