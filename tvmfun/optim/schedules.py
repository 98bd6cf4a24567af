"""Schedules: functions from the number of updates so far to the value of a hyperparameter.

A schedule takes a Python int or a (traced) 0-d integer array. It computes in float32, or in float64 for an
array of 64-bit integers; optimizers count in int32. A decay in steps is an ``exponential_decay`` with
``staircase=True``, or a ``piecewise_constant_schedule``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.names import missing
from tvmfun.optim.base import Schedule
from tvmfun.typing import ArrayLike, Scalar

__all__ = [
    "Schedule",
    "constant_schedule",
    "cosine_decay_schedule",
    "cosine_onecycle_schedule",
    "exponential_decay",
    "join_schedules",
    "linear_onecycle_schedule",
    "linear_schedule",
    "piecewise_constant_schedule",
    "piecewise_interpolate_schedule",
    "polynomial_schedule",
    "sgdr_schedule",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
]


def constant_schedule(value: Scalar) -> Schedule:
    """A constant: ``s(t) = value``.

    Args:
        value: a number or a 0-d array.

    Returns:
        A schedule.

    >>> constant_schedule(0.1)(1000)
    0.1
    """
    return lambda count: value


def polynomial_schedule(
    init_value: Scalar, end_value: Scalar, power: Scalar, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """A polynomial from one value to another.

    ``s(t) = (init_value - end_value) * (1 - x)**power + end_value`` with
    ``x = (t - transition_begin) / transition_steps``, clipped to [0, 1].

    Args:
        init_value: the value at the beginning.
        end_value: the value at the end.
        power: the power of the polynomial.
        transition_steps: the number of steps of the transition; if not positive, ``s(t) = init_value``.
        transition_begin: the count at which it begins, at least 0.

    Returns:
        A schedule.

    >>> schedule = polynomial_schedule(1.0, 0.0, power=2, transition_steps=10)
    >>> [float(schedule(count)) for count in (0, 5, 20)]
    [1.0, 0.25, 0.0]
    """
    if transition_steps <= 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: ArrayLike) -> Scalar:
        passed = _as_float(tnp.clip(tnp.asarray(count) - begin, 0, transition_steps))
        return (init_value - end_value) * (1 - passed / transition_steps) ** power + end_value

    return schedule


def linear_schedule(
    init_value: Scalar, end_value: Scalar, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """A line from one value to another: ``s(t) = init_value + x * (end_value - init_value)``.

    ``x = (t - transition_begin) / transition_steps``, clipped to [0, 1].

    Args:
        init_value: the value at the beginning.
        end_value: the value at the end.
        transition_steps: the number of steps of the transition; if not positive, ``s(t) = init_value``.
        transition_begin: the count at which it begins, at least 0.

    Returns:
        A schedule.

    >>> schedule = linear_schedule(0.0, 1.0, transition_steps=4, transition_begin=2)
    >>> [float(schedule(count)) for count in (0, 3, 10)]
    [0.0, 0.25, 1.0]
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(
    init_value: Scalar, boundaries_and_scales: Mapping[int, Scalar] | None = None
) -> Schedule:
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

    def schedule(count: ArrayLike) -> Scalar:
        value = init_value
        # Ones of the dtype to compute in, so that no scale is rounded to float32 on the way to float64.
        one = tnp.ones_like(_as_float(count))
        for boundary, scale in scales:
            value = value * tnp.where(tnp.asarray(count) < boundary, one, scale * one)
        return value

    return schedule


def exponential_decay(
    init_value: Scalar,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Scalar | None = None,
) -> Schedule:
    """Exponential decay: ``s(t) = init_value * decay_rate**((t - transition_begin) / transition_steps)``.

    Args:
        init_value: the value at the beginning.
        transition_steps: the number of steps in which the value is multiplied by ``decay_rate``; if not positive,
            ``s(t) = init_value``.
        decay_rate: the factor; if it is 0, ``s(t) = init_value``.
        transition_begin: the count at which the decay begins, at least 0.
        staircase: whether to round the exponent down, so that the value changes every ``transition_steps``.
        end_value: the value at which the decay stops: a lower bound if ``decay_rate < 1``, else an upper bound.

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

    def schedule(count: ArrayLike) -> Scalar:
        # Clipped at 0, the exponent does not change init_value before the decay begins.
        exponent = _as_float(tnp.maximum(tnp.asarray(count) - begin, 0)) / transition_steps
        value = init_value * decay_rate ** (tnp.floor(exponent) if staircase else exponent)
        return value if end_value is None else bound(value, end_value)

    return schedule


def cosine_decay_schedule(
    init_value: Scalar, decay_steps: int, alpha: Scalar = 0.0, exponent: Scalar = 1.0
) -> Schedule:
    """Decay along half a cosine wave, down to ``alpha * init_value``.

    ``s(t) = init_value * ((1 - alpha) * ((1 + cos(pi * t / decay_steps)) / 2)**exponent + alpha)``, constant
    from ``decay_steps`` on.

    Args:
        init_value: the value at the beginning.
        decay_steps: the number of steps until the end of the decay.
        alpha: the fraction of ``init_value`` that is left at the end.
        exponent: the exponent of the cosine.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if ``decay_steps`` is not positive.

    Reference: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016).

    >>> schedule = cosine_decay_schedule(1.0, decay_steps=10)
    >>> [round(float(schedule(count)), 6) for count in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """
    _check_steps("cosine_decay_schedule", "decay_steps", decay_steps)

    def schedule(count: ArrayLike) -> Scalar:
        passed = _as_float(tnp.minimum(tnp.asarray(count), decay_steps))
        wave = (1 + tnp.cos(math.pi * passed / decay_steps)) / 2
        return init_value * ((1 - alpha) * wave**exponent + alpha)

    return schedule


# -- combinations of schedules --


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedules one after the other, each counting from its own start: ``s(t) = s_i(t - b_i)``.

    Args:
        schedules: the schedules in order.
        boundaries: the count from which on each but the first takes over, in ascending order.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if there is not one boundary fewer than schedules.

    >>> schedule = join_schedules([constant_schedule(1.0), linear_schedule(4.0, 0.0, 4)], [10])
    >>> [float(schedule(count)) for count in (9, 10, 13)]
    [1.0, 4.0, 1.0]
    """
    if len(boundaries) != len(schedules) - 1:
        raise ArgumentError(
            "join_schedules", f"{len(schedules)} schedules meet at {len(schedules) - 1} boundaries", got=str(boundaries)
        )

    def schedule(count: ArrayLike) -> Scalar:
        count = tnp.asarray(count)
        value = schedules[0](count)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            value = tnp.where(count < boundary, value, later(count - boundary))
        return value

    return schedule


def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: Scalar, boundaries_and_scales: Mapping[int, Scalar] | None = None
) -> Schedule:
    """Interpolation between boundaries; at each one the value is multiplied by a scale.

    From ``a`` to ``b`` it goes along ``a + (b - a) * x``, or along ``b + (a - b) * (1 + cos(pi * x)) / 2``, where
    ``x`` is the fraction of the steps between the two boundaries that have passed.

    Args:
        interpolate_type: ``"linear"`` or ``"cosine"``.
        init_value: the value at the beginning.
        boundaries_and_scales: a scale for each count where the next stretch begins.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if ``interpolate_type`` is unknown, or a scale is negative.

    >>> schedule = piecewise_interpolate_schedule("linear", 1.0, {4: 2.0, 8: 0.5})
    >>> [float(schedule(count)) for count in (0, 2, 4, 6, 8)]
    [1.0, 1.5, 2.0, 1.5, 1.0]
    """
    name = "piecewise_interpolate_schedule"
    if interpolate_type not in ("linear", "cosine"):
        raise ArgumentError(name, "interpolate_type must be 'linear' or 'cosine'", got=repr(interpolate_type))
    bounds, values = [0], [init_value]
    for boundary, scale in sorted((boundaries_and_scales or {}).items()):
        if scale < 0:
            raise ArgumentError(name, f"the scale at {boundary} must not be negative", got=str(scale))
        bounds.append(boundary)
        values.append(values[-1] * scale)

    def schedule(count: ArrayLike) -> Scalar:
        passed = _as_float(count)
        value = values[-1] * tnp.ones_like(passed)
        # From the last interval to the first, so that the earliest whose end is not reached wins.
        for k in reversed(range(len(bounds) - 1)):
            x = (passed - bounds[k]) / max(bounds[k + 1] - bounds[k], 1)
            weight = 1 - x if interpolate_type == "linear" else (1 + tnp.cos(math.pi * x)) / 2
            value = tnp.where(passed < bounds[k + 1], values[k + 1] + (values[k] - values[k + 1]) * weight, value)
        return value

    return schedule


def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: Scalar,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: Scalar = 25.0,
    final_div_factor: Scalar = 1e4,
) -> Schedule:
    """The one-cycle policy with lines: up, down again, and further down.

    Args:
        transition_steps: the number of steps of the cycle.
        peak_value: the largest value.
        pct_start: the fraction of the cycle in which the value rises.
        pct_final: the fraction after which it is back at its initial value.
        div_factor: ``peak_value / div_factor`` is the value at the beginning.
        final_div_factor: the value at the beginning divided by the value at the end.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if ``transition_steps`` is not positive.

    Reference: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
    Rates" (2017).

    >>> schedule = linear_onecycle_schedule(100, 1.0)
    >>> [round(float(schedule(count)), 6) for count in (0, 30, 85, 100)]
    [0.04, 1.0, 0.04, 4e-06]
    """
    _check_steps("linear_onecycle_schedule", "transition_steps", transition_steps)
    scales = {
        int(pct_start * transition_steps): div_factor,
        int(pct_final * transition_steps): 1.0 / div_factor,
        transition_steps: 1.0 / final_div_factor,
    }
    return piecewise_interpolate_schedule("linear", peak_value / div_factor, scales)


def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: Scalar,
    pct_start: float = 0.3,
    div_factor: Scalar = 25.0,
    final_div_factor: Scalar = 1e4,
) -> Schedule:
    """The one-cycle policy with cosines: up and down.

    Args:
        transition_steps: the number of steps of the cycle.
        peak_value: the largest value.
        pct_start: the fraction of the cycle in which the value rises.
        div_factor: ``peak_value / div_factor`` is the value at the beginning.
        final_div_factor: the value at the beginning divided by the value at the end.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if ``transition_steps`` is not positive.

    Reference: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
    Rates" (2017).

    >>> schedule = cosine_onecycle_schedule(100, 1.0)
    >>> [round(float(schedule(count)), 6) for count in (0, 15, 30, 100)]
    [0.04, 0.52, 1.0, 4e-06]
    """
    _check_steps("cosine_onecycle_schedule", "transition_steps", transition_steps)
    scales = {
        int(pct_start * transition_steps): div_factor,
        transition_steps: 1.0 / (div_factor * final_div_factor),
    }
    return piecewise_interpolate_schedule("cosine", peak_value / div_factor, scales)


def warmup_constant_schedule(init_value: Scalar, peak_value: Scalar, warmup_steps: int) -> Schedule:
    """Linear warmup to a constant.

    Args:
        init_value: the value at the beginning.
        peak_value: the value from ``warmup_steps`` on.
        warmup_steps: the number of steps of the warmup.

    Returns:
        A schedule.

    >>> schedule = warmup_constant_schedule(0.0, 1.0, warmup_steps=4)
    >>> [float(schedule(count)) for count in (0, 1, 10)]
    [0.0, 0.25, 1.0]
    """
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: Scalar,
    peak_value: Scalar,
    warmup_steps: int,
    decay_steps: int,
    end_value: Scalar = 0.0,
    exponent: Scalar = 1.0,
) -> Schedule:
    """Linear warmup to a peak, and a cosine decay.

    Args:
        init_value: the value at the beginning.
        peak_value: the value after ``warmup_steps``.
        warmup_steps: the number of steps of the warmup.
        decay_steps: the number of steps until the end of the decay, including the warmup.
        end_value: the value at the end.
        exponent: the exponent of the cosine.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if ``decay_steps`` is not greater than ``warmup_steps``.

    Reference: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016).

    >>> schedule = warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=4, decay_steps=12)
    >>> [round(float(schedule(count)), 6) for count in (0, 2, 4, 8, 12)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    _check_steps("warmup_cosine_decay_schedule", "decay_steps - warmup_steps", decay_steps - warmup_steps)
    no_peak = isinstance(peak_value, int | float) and peak_value == 0
    decay = cosine_decay_schedule(
        peak_value, decay_steps - warmup_steps, 0.0 if no_peak else end_value / peak_value, exponent
    )
    return join_schedules([linear_schedule(init_value, peak_value, warmup_steps), decay], [warmup_steps])


def warmup_exponential_decay_schedule(
    init_value: Scalar,
    peak_value: Scalar,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Scalar | None = None,
) -> Schedule:
    """Linear warmup to a peak, and an :func:`exponential_decay`.

    Args:
        init_value: the value at the beginning.
        peak_value: the value after ``warmup_steps``.
        warmup_steps: the number of steps of the warmup.
        transition_steps: the number of steps in which the value is multiplied by ``decay_rate``.
        decay_rate: the factor.
        transition_begin: the number of steps from the warmup to the start of the decay.
        staircase: whether the value changes only every ``transition_steps``.
        end_value: the value at which the decay stops.

    Returns:
        A schedule.

    >>> schedule = warmup_exponential_decay_schedule(0.0, 1.0, warmup_steps=4, transition_steps=10, decay_rate=0.5)
    >>> [float(schedule(count)) for count in (0, 2, 4, 14)]
    [0.0, 0.5, 1.0, 0.5]
    """
    warmup = linear_schedule(init_value, peak_value, warmup_steps)
    decay = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return join_schedules([warmup, decay], [warmup_steps])


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> Schedule:
    """Warm restarts: one :func:`warmup_cosine_decay_schedule` after the other.

    Args:
        cosine_kwargs: the arguments of each; it lasts its ``decay_steps``.

    Returns:
        A schedule.

    Raises:
        ArgumentError: if ``decay_steps`` is not greater than ``warmup_steps`` somewhere.

    Reference: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016).

    >>> cycle = {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 2, "decay_steps": 6}
    >>> schedule = sgdr_schedule([cycle, cycle])
    >>> [round(float(schedule(count)), 6) for count in (0, 2, 4, 6, 8)]
    [0.0, 1.0, 0.5, 0.0, 1.0]
    """
    cycles = list(cosine_kwargs)
    ends = list(accumulate(cycle["decay_steps"] for cycle in cycles))
    return join_schedules([warmup_cosine_decay_schedule(**cycle) for cycle in cycles], ends[:-1])


def _check_steps(where: str, name: str, steps: int) -> None:
    if steps <= 0:
        raise ArgumentError(where, f"{name} must be positive", got=str(steps))


def _as_float(count: ArrayLike) -> Array:
    count = tnp.asarray(count)
    return count.astype("float64" if count.dtype.itemsize == 8 else "float32")


def __getattr__(name: str) -> Any:
    # optax has these names in its schedules module, too.
    if name in ("InjectStatefulHyperparamsState", "inject_hyperparams", "inject_stateful_hyperparams"):
        from tvmfun import optim

        return getattr(optim, name)
    return missing(__name__)(name)
