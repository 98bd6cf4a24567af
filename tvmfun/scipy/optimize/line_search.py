"""A search along a line for a step that satisfies the strong Wolfe conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array

#: Armijo's constant: the decrease must be at least this share of the one that the slope promises.
DECREASE = 1e-4
#: Wolfe's constant: the slope must become at most this share of the first one.
CURVATURE = 0.9


class Point(NamedTuple):
    """A step, and the value, the gradient and the slope of the function there."""

    step: Array
    value: Array
    gradient: Array
    slope: Array


class _Search(NamedTuple):
    low: Point  # the best step with a sufficient decrease
    high: Point  # the other end of the bracket; its step is infinite until there is a bracket
    trial: Array
    evaluations: Array
    converged: Array


def line_search(evaluate: Callable[[Array], Point], start: Point, max_evaluations: int) -> tuple[Point, Array, Array]:
    """Returns ``(point, evaluations, status)`` of a search that begins with the step 1.

    Steps are doubled until there is a bracket of a step that satisfies the conditions; then cubic interpolation
    between its ends proposes steps.

    Args:
        evaluate: the point at a step.
        start: the point at the step 0, with a negative slope.
        max_evaluations: how often to call ``evaluate``.

    Returns:
        The point, the best one found if none satisfies the conditions; the number of evaluations; and 0 for success, 1
        if no step in the bracket was found in time, 3 if there was no bracket.

    Source: Nocedal and Wright, "Numerical Optimization" (2006), algorithms 3.5 and 3.6.
    """

    def is_unfinished(search: _Search) -> Array:
        return tnp.logical_and(tnp.logical_not(search.converged), search.evaluations < max_evaluations)

    def step(search: _Search) -> _Search:
        low, high, trial = search.low, search.high, search.trial
        bracketed = tnp.isfinite(high.step)
        point = evaluate(tnp.where(bracketed, _between(low, high), trial))
        bound = start.value + DECREASE * point.step * start.slope
        # Written so that NaN is too high.
        is_lower = (point.value <= bound) & ((point.value < low.value) | (low.step == 0))
        is_flat = tnp.abs(point.slope) <= -CURVATURE * start.slope
        # If the loss rises towards `high`, the minimum is on the other side: `low` becomes the new `high`.
        turns = is_lower & (tnp.where(high.step >= low.step, point.slope, -point.slope) >= 0)
        new_high = _select(is_lower, _select(turns, low, high), point)
        new_low = _select(is_lower, point, low)
        return _Search(new_low, new_high, 2 * trial, search.evaluations + 1, is_lower & is_flat)

    no_bracket = start._replace(step=tnp.full_like(start.step, tnp.inf))
    zero = tnp.zeros((), "int32")
    search = _Search(start, no_bracket, tnp.ones_like(start.step), zero, tnp.zeros((), "bool"))
    search = lax.while_loop(is_unfinished, step, search)
    failure = tnp.where(tnp.isfinite(search.high.step), 1, 3)
    return search.low, search.evaluations, tnp.where(search.converged, 0, failure)


def _select(condition: Array, one: Point, other: Point) -> Point:
    return Point(*(tnp.where(condition, x, y) for x, y in zip(one, other, strict=True)))


def _between(low: Point, high: Point) -> Array:
    """The minimum of the cubic through both points with their slopes, or the middle if that is near an end."""
    width = high.step - low.step
    middle = low.step + 0.5 * width
    mean = low.slope + high.slope + 3 * (low.value - high.value) / width
    root = tnp.sign(width) * tnp.sqrt(tnp.maximum(mean * mean - low.slope * high.slope, 0))
    minimum = high.step - width * (high.slope + root - mean) / (high.slope - low.slope + 2 * root)
    inside = tnp.abs(minimum - middle) <= 0.4 * tnp.abs(width)
    return tnp.where(inside, minimum, middle)


def point_at(value_and_grad: Callable[[Array], Any], x: Array, direction: Array, step: Array) -> Point:
    """The point ``x + step * direction``."""
    value, gradient = value_and_grad(x + step * direction)
    return Point(step, value, gradient, tnp.vdot(gradient, direction))
