"""Schedules: functions from the number of updates so far to the value of a hyperparameter.

A schedule takes a Python int or a (traced) 0-d integer array. It computes in float32, or in float64 for an
array of 64-bit integers; optimizers count in int32. A decay in steps is an ``exponential_decay`` with
``staircase=True``, or a ``piecewise_constant_schedule``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import Schedule

__all__ = [
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "linear_schedule",
    "piecewise_constant_schedule",
    "polynomial_schedule",
]


def constant_schedule(value: Any) -> Schedule:
    """Always the same value: ``s(t) = value``.

    Args:
        value: a number or a 0-d array.

    Returns:
        A schedule.

    >>> constant_schedule(0.1)(1000)
    0.1
    """
    return lambda count: value


def polynomial_schedule(
    init_value: Any, end_value: Any, power: Any, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """From one value to another along a polynomial.

    ``s(t) = (init_value - end_value) * (1 - x)**power + end_value`` with
    ``x = (t - transition_begin) / transition_steps``, kept between 0 and 1.

    Args:
        init_value: the value at the beginning.
        end_value: the value at the end.
        power: the power of the polynomial.
        transition_steps: how many steps the transition takes; if not positive, ``s(t) = init_value``.
        transition_begin: the count at which it begins; a negative one counts as 0.

    Returns:
        A schedule.

    >>> schedule = polynomial_schedule(1.0, 0.0, power=2, transition_steps=10)
    >>> [float(schedule(count)) for count in (0, 5, 20)]
    [1.0, 0.25, 0.0]
    """
    if transition_steps <= 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Any:
        passed = _as_float(tnp.clip(tnp.asarray(count) - begin, 0, transition_steps))
        return (init_value - end_value) * (1 - passed / transition_steps) ** power + end_value

    return schedule


def linear_schedule(init_value: Any, end_value: Any, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """From one value to another along a line: ``s(t) = init_value + x * (end_value - init_value)``.

    ``x = (t - transition_begin) / transition_steps``, kept between 0 and 1.

    Args:
        init_value: the value at the beginning.
        end_value: the value at the end.
        transition_steps: how many steps the transition takes; if not positive, ``s(t) = init_value``.
        transition_begin: the count at which it begins; a negative one counts as 0.

    Returns:
        A schedule.

    >>> schedule = linear_schedule(0.0, 1.0, transition_steps=4, transition_begin=2)
    >>> [float(schedule(count)) for count in (0, 3, 10)]
    [0.0, 0.25, 1.0]
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(init_value: Any, boundaries_and_scales: Mapping[int, float] | None = None) -> Schedule:
    """Constant between boundaries: ``init_value`` times the scales of all boundaries reached.

    Args:
        init_value: the value at the beginning.
        boundaries_and_scales: a scale for each count from which on it multiplies the value.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if a scale is negative.

    >>> schedule = piecewise_constant_schedule(1.0, {100: 0.5, 200: 0.25})
    >>> [float(schedule(count)) for count in (99, 100, 200)]
    [1.0, 0.5, 0.125]
    """
    scales = sorted((boundaries_and_scales or {}).items())
    for boundary, scale in scales:
        if scale < 0:
            raise ArgumentError(
                "piecewise_constant_schedule", f"the scale at {boundary} must not be negative", got=str(scale)
            )

    def schedule(count: Any) -> Any:
        value = init_value
        # Ones of the dtype to compute in, so that no scale is rounded to float32 on the way to float64.
        one = tnp.ones_like(_as_float(count))
        for boundary, scale in scales:
            value = value * tnp.where(tnp.asarray(count) < boundary, one, scale * one)
        return value

    return schedule


def exponential_decay(
    init_value: Any,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Any = None,
) -> Schedule:
    """Exponential decay: ``s(t) = init_value * decay_rate**((t - transition_begin) / transition_steps)``.

    Args:
        init_value: the value at the beginning.
        transition_steps: in how many steps the value is multiplied by ``decay_rate``; if not positive,
            ``s(t) = init_value``.
        decay_rate: the factor; if it is 0, ``s(t) = init_value``.
        transition_begin: the count at which the decay begins; a negative one counts as 0.
        staircase: whether to round the exponent down, to change every ``transition_steps`` only.
        end_value: where the decay stops: a lower bound if ``decay_rate < 1``, else an upper bound.

    Returns:
        A schedule.

    >>> schedule = exponential_decay(1.0, transition_steps=10, decay_rate=0.5, staircase=True)
    >>> [float(schedule(count)) for count in (0, 9, 10, 29)]
    [1.0, 1.0, 0.5, 0.25]
    """
    if transition_steps <= 0 or decay_rate == 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)
    bound = tnp.maximum if decay_rate < 1 else tnp.minimum

    def schedule(count: Any) -> Any:
        # Clipped at 0 the exponent leaves init_value as it is before the decay begins.
        exponent = _as_float(tnp.maximum(tnp.asarray(count) - begin, 0)) / transition_steps
        value = init_value * decay_rate ** (tnp.floor(exponent) if staircase else exponent)
        return value if end_value is None else bound(value, end_value)

    return schedule


def cosine_decay_schedule(init_value: Any, decay_steps: int, alpha: Any = 0.0, exponent: Any = 1.0) -> Schedule:
    """Decay along half a cosine wave, down to ``alpha * init_value``.

    ``s(t) = init_value * ((1 - alpha) * ((1 + cos(pi * t / decay_steps)) / 2)**exponent + alpha)``, constant
    from ``decay_steps`` on.

    Args:
        init_value: the value at the beginning.
        decay_steps: the number of steps until the end of the decay.
        alpha: the fraction of ``init_value`` that is left at the end.
        exponent: the power that bends the curve.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if ``decay_steps`` is not positive.

    Reference: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016).

    >>> schedule = cosine_decay_schedule(1.0, decay_steps=10)
    >>> [round(float(schedule(count)), 6) for count in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """
    if decay_steps <= 0:
        raise ArgumentError("cosine_decay_schedule", "decay_steps must be positive", got=str(decay_steps))

    def schedule(count: Any) -> Any:
        passed = _as_float(tnp.minimum(tnp.asarray(count), decay_steps))
        wave = (1 + tnp.cos(math.pi * passed / decay_steps)) / 2
        return init_value * ((1 - alpha) * wave**exponent + alpha)

    return schedule


def _as_float(count: Any) -> Any:
    count = tnp.asarray(count)
    return count.astype("float64" if count.dtype.itemsize == 8 else "float32")
