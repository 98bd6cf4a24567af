"""Line searches: a step along the updates that decreases the loss enough."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import GradientTransformationExtraArgs, OptState, Params, Updates, select
from tvmfun.optim.numerics import need_params, safe_increment, zero_count
from tvmfun.transforms import value_and_grad
from tvmfun.typing import Scalar

__all__ = [
    "BacktrackingLinesearchInfo",
    "ScaleByBacktrackingLinesearchState",
    "ScaleByZoomLinesearchState",
    "ZoomLinesearchInfo",
    "scale_by_backtracking_linesearch",
    "scale_by_zoom_linesearch",
    "value_and_grad_from_state",
]


class BacktrackingLinesearchInfo(NamedTuple):
    """Statistics of a search of ``scale_by_backtracking_linesearch``.

    Attributes:
        num_linesearch_steps: the number of steps tried, a 0-d int32 array.
        decrease_error: how much the last step violates the decrease condition, a 0-d array.
    """

    num_linesearch_steps: Array
    decrease_error: Array


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """The state of ``scale_by_backtracking_linesearch``.

    Attributes:
        learning_rate: the factor of the last updates, a 0-d array.
        value: the loss after them, a 0-d array.
        grad: the gradient after them, if it is stored.
        info: the statistics of the search.
    """

    learning_rate: Array
    value: Array
    grad: Updates | None
    info: BacktrackingLinesearchInfo


class ZoomLinesearchInfo(NamedTuple):
    """Statistics of a search of ``scale_by_zoom_linesearch``.

    Attributes:
        num_linesearch_steps: the number of steps tried, a 0-d int32 array.
        decrease_error: how much the last step violates the decrease condition, a 0-d array.
        curvature_error: how much it violates the curvature condition, a 0-d array.
    """

    num_linesearch_steps: Array
    decrease_error: Array
    curvature_error: Array


class ScaleByZoomLinesearchState(NamedTuple):
    """The state of ``scale_by_zoom_linesearch``.

    Attributes:
        learning_rate: the factor of the last updates, a 0-d array.
        value: the loss after them, a 0-d array.
        grad: the gradient after them.
        info: the statistics of the search.
    """

    learning_rate: Array
    value: Array
    grad: Updates
    info: ZoomLinesearchInfo


def scale_by_backtracking_linesearch(
    max_backtracking_steps: int,
    slope_rtol: Scalar = 1e-4,
    decrease_factor: Scalar = 0.8,
    increase_factor: Scalar = 1.5,
    max_learning_rate: Scalar = 1.0,
    atol: Scalar = 0.0,
    rtol: Scalar = 0.0,
    store_grad: bool = False,
) -> GradientTransformationExtraArgs:
    """Shortens the updates until the loss decreases enough: the Armijo condition.

    The first of the steps ``s, s * decrease_factor, ...`` with
    ``f(p + s * u) <= (1 + rtol) * f(p) + slope_rtol * s * <u, grad f(p)> + atol``. The first ``s`` is the last one of
    the previous update, times ``increase_factor``, but at most ``max_learning_rate``.

    Args:
        max_backtracking_steps: the largest number of reductions.
        slope_rtol: the least decrease, as a fraction of the decrease that the slope predicts.
        decrease_factor: the factor from a step to the next.
        increase_factor: the factor from the last step of a search to the first step of the next; ``inf`` to always
            start from the largest.
        max_learning_rate: the largest step.
        atol: an absolute tolerance of the loss.
        rtol: a relative tolerance of the loss.
        store_grad: whether to keep the gradient after the updates for :func:`value_and_grad_from_state`.

    Returns:
        A transformation whose state is a ``ScaleByBacktrackingLinesearchState``. Its ``update`` needs ``params``,
        ``value=``, ``grad=``, and ``value_fn=``, a function from parameters to the loss, which also gets the
        further keyword arguments that it has parameters for.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Nocedal and Wright, "Numerical Optimization" (2006), section 3.1.

    >>> search = scale_by_backtracking_linesearch(10, decrease_factor=0.5)
    >>> loss = lambda p: 4 * p**2
    >>> params = tnp.asarray(1.0)
    >>> value, gradient = value_and_grad(loss)(params)
    >>> updates, state = search.update(
    ...     -gradient, search.init(params), params, value=value, grad=gradient, value_fn=loss
    ... )
    >>> float(updates), float(state.learning_rate)
    (-1.0, 0.125)
    """

    def init(params: Params) -> ScaleByBacktrackingLinesearchState:
        one, infinity = _numbers(params)
        grad = optim_tree.zeros_like(params) if store_grad else None
        info = BacktrackingLinesearchInfo(zero_count(), infinity)
        return ScaleByBacktrackingLinesearchState(one, infinity, grad, info)

    def update(
        updates: Updates,
        state: ScaleByBacktrackingLinesearchState,
        params: Params | None = None,
        *,
        value: Scalar,
        grad: Updates,
        value_fn: Callable[..., Any],
        **extra_args: Any,
    ) -> tuple[Updates, ScaleByBacktrackingLinesearchState]:
        need_params("scale_by_backtracking_linesearch", params)
        loss, dtype = _loss(value_fn, extra_args), state.value.dtype
        slope, value = optim_tree.vdot(updates, grad).astype(dtype), tnp.asarray(value).astype(dtype)

        def unfinished(search: tuple) -> Array:
            _, _, error, count = search
            return ~(error <= atol) & (count <= max_backtracking_steps)

        def shorten(search: tuple) -> tuple:
            rate, _, _, count = search
            rate = tnp.where(count > 0, decrease_factor * rate, rate).astype(dtype)
            new = loss(optim_tree.add_scale(params, rate, updates)).astype(dtype)
            error = _error(new - (1.0 + rtol) * value - rate * slope_rtol * slope)
            return rate, new, error, safe_increment(count)

        first = tnp.minimum(increase_factor * state.learning_rate, max_learning_rate).astype(dtype)
        start = (first, value, tnp.full((), float("inf"), dtype=dtype), zero_count())
        rate, new, error, count = lax.while_loop(unfinished, shorten, start, max_steps=max_backtracking_steps + 1)
        # If the loss is not finite, the parameters stay.
        rate = tnp.where(tnp.isinf(error), tnp.zeros_like(rate), rate)
        new_updates = optim_tree.scale(rate, updates)
        stored = None
        if store_grad:
            _, stored = value_and_grad(loss)(optim_tree.add(params, new_updates))
        info = BacktrackingLinesearchInfo(count, error)
        return new_updates, ScaleByBacktrackingLinesearchState(rate, new, stored, info)

    return GradientTransformationExtraArgs(init, update)


class _Point(NamedTuple):
    """A step along the updates, with the loss and its slope there."""

    step: Array
    value: Array
    slope: Array


class _Search(NamedTuple):
    """State of the zoom search; once ``bracketed``, a minimum is between ``low`` and ``high``."""

    count: Array
    tried: _Point
    grad: Updates
    decrease_error: Array
    curvature_error: Array
    bracketed: Array
    done: Array
    failed: Array
    low: _Point
    high: _Point
    third: _Point
    safe: _Point
    safe_grad: Updates


def scale_by_zoom_linesearch(
    max_linesearch_steps: int,
    max_learning_rate: Scalar | None = None,
    tol: Scalar = 0.0,
    increase_factor: Scalar = 2.0,
    slope_rtol: Scalar = 1e-4,
    curv_rtol: Scalar = 0.9,
    approx_dec_rtol: Scalar | None = 1e-6,
    stepsize_precision: Scalar = 1e-5,
    initial_guess_strategy: str = "keep",
) -> GradientTransformationExtraArgs:
    """Scales the updates so that loss and slope decrease enough: the strong Wolfe conditions.

    ``f(p + s * u) <= f(p) + slope_rtol * s * d(0)`` and ``|d(s)| <= curv_rtol * |d(0)|`` with the slope
    ``d(s) = <u, grad f(p + s * u)>``. Steps grow until a minimum is in between; then the interval shrinks around it, by
    cubic and quadratic interpolation.

    Args:
        max_linesearch_steps: the largest number of steps.
        max_learning_rate: the largest step; ``None`` for no limit.
        tol: the largest violation of the conditions.
        increase_factor: the factor of a step to the next, while steps grow.
        slope_rtol: the least decrease, as a fraction of the decrease that the slope predicts.
        curv_rtol: the largest slope at the end, as a fraction of the first one.
        approx_dec_rtol: the largest relative increase of the loss with which a condition on the slopes may replace the
            first one, where rounding hides the decrease close to a minimum; ``None`` for never.
        stepsize_precision: the shortest interval to search once a step decreases the loss enough.
        initial_guess_strategy: the first step: ``"one"``, or ``"keep"`` for the last step of the previous update.

    Returns:
        A transformation whose state is a ``ScaleByZoomLinesearchState``. Its ``update`` needs ``params``, ``value=``,
        ``grad=``, and ``value_fn=``, a function from parameters to the loss, which also gets the
        further keyword arguments that it has parameters for.

    Raises:
        ArgumentError: if ``initial_guess_strategy`` is unknown, or on ``update``, if it gets no ``params``.

    References: Nocedal and Wright, "Numerical Optimization" (2006), algorithms 3.5 and 3.6; Hager and Zhang,
    "Algorithm 851: CG_DESCENT" (2006), for the approximate condition.

    >>> search = scale_by_zoom_linesearch(10)
    >>> loss = lambda p: 4 * p**2
    >>> params = tnp.asarray(1.0)
    >>> value, gradient = value_and_grad(loss)(params)
    >>> updates, state = search.update(
    ...     -gradient, search.init(params), params, value=value, grad=gradient, value_fn=loss
    ... )
    >>> float(updates), float(state.value)
    (-1.0, 0.0)
    """
    if initial_guess_strategy not in ("one", "keep"):
        raise ArgumentError(
            "scale_by_zoom_linesearch",
            "initial_guess_strategy must be 'one' or 'keep'",
            got=repr(initial_guess_strategy),
        )

    def init(params: Params) -> ScaleByZoomLinesearchState:
        one, infinity = _numbers(params)
        info = ZoomLinesearchInfo(zero_count(), infinity, infinity)
        return ScaleByZoomLinesearchState(one, infinity, optim_tree.zeros_like(params), info)

    def update(
        updates: Updates,
        state: ScaleByZoomLinesearchState,
        params: Params | None = None,
        *,
        value: Scalar,
        grad: Updates,
        value_fn: Callable[..., Any],
        **extra_args: Any,
    ) -> tuple[Updates, ScaleByZoomLinesearchState]:
        need_params("scale_by_zoom_linesearch", params)
        loss, dtype = value_and_grad(_loss(value_fn, extra_args)), state.value.dtype
        zero = tnp.zeros((), dtype=dtype)
        start = _Point(zero, tnp.asarray(value).astype(dtype), optim_tree.vdot(updates, grad).astype(dtype))
        guess = tnp.ones_like(zero) if initial_guess_strategy == "one" else state.learning_rate

        def evaluate(step: Array) -> tuple[_Point, Updates]:
            value, grad = loss(optim_tree.add_scale(params, step, updates))
            return _Point(step, value.astype(dtype), optim_tree.vdot(grad, updates).astype(dtype)), grad

        def errors(point: _Point) -> tuple[Array, Array]:
            decrease = point.value - start.value - slope_rtol * point.step * start.slope
            if approx_dec_rtol is not None:
                flat = point.slope - (2 * slope_rtol - 1.0) * start.slope
                above = point.value - start.value - approx_dec_rtol * tnp.abs(start.value)
                decrease = tnp.minimum(tnp.maximum(flat, above), decrease)
            return _error(decrease), _error(tnp.abs(point.slope) - curv_rtol * tnp.abs(start.slope))

        def search(s: _Search) -> _Search:
            last = s.count + 1 >= max_linesearch_steps
            step = tnp.where(s.count == 0, guess, increase_factor * s.tried.step).astype(dtype)
            at_limit = tnp.zeros((), dtype="bool")
            if max_learning_rate is not None:
                at_limit = step >= max_learning_rate
                step = tnp.minimum(step, max_learning_rate).astype(dtype)
            point, grad = evaluate(tnp.where(s.bracketed, _between(s.low, s.high, s.third), step))
            decrease, curvature = errors(point)
            met = tnp.maximum(decrease, curvature) <= tol
            too_high = decrease > 0
            better = decrease <= tol

            # Steps grow: checks for a minimum between this step and the one before.
            beyond = too_high | ((point.value >= s.tried.value) & (s.count > 0))
            rising = (point.slope >= 0) & ~beyond
            bracketed = beyond | rising | met
            low, high = select(rising, (point, s.tried), (s.tried, point))
            done = met | (at_limit & ~bracketed)
            grown = (bracketed, done, last & ~done, low, high, low)
            # The interval shrinks: on which side of this step is the minimum?
            is_high = too_high | (point.value >= s.low.value)
            turned = (point.slope * (s.high.step - s.low.step) >= 0) & ~is_high
            improves = better & (~s.bracketed | (point.value < s.safe.value))
            safe, safe_grad = select(improves, (point, grad), (s.safe, s.safe_grad))
            too_short = tnp.abs(s.high.step - s.low.step) <= stepsize_precision
            failed = (last | (too_short & (safe.step > 0))) & ~met
            low, high = select(is_high, (s.low, point), (point, select(turned, s.low, s.high)))
            shrunk = (s.bracketed, met, failed, low, high, select(is_high | turned, s.high, s.low))

            bracketed, done, failed, low, high, third = select(s.bracketed, shrunk, grown)
            count = safe_increment(s.count)
            return _Search(
                count, point, grad, decrease, curvature, bracketed, done, failed, low, high, third, safe, safe_grad
            )

        infinity, no = tnp.full((), float("inf"), dtype=dtype), tnp.zeros((), dtype="bool")
        first = _Search(zero_count(), start, grad, infinity, infinity, no, no, no, start, start, start, start, grad)
        end = lax.while_loop(lambda s: ~(s.done | s.failed), search, first, max_steps=max_linesearch_steps)
        # If the search fails, take the best step that decreases the loss enough, or none if the loss is not finite.
        resort = end.failed & ((end.safe.step > 0) | tnp.isinf(end.decrease_error))
        point, new_grad = select(resort, (end.safe, end.safe_grad), (end.tried, end.grad))
        info = ZoomLinesearchInfo(end.count, end.decrease_error, end.curvature_error)
        new_state = ScaleByZoomLinesearchState(point.step, point.value, new_grad, info)
        return optim_tree.scale(point.step, updates), new_state

    return GradientTransformationExtraArgs(init, update)


def value_and_grad_from_state(value_fn: Callable[..., Any]) -> Callable[..., tuple[Any, Updates]]:
    """``value_and_grad`` that reuses the value and gradient in the state of a line search.

    Args:
        value_fn: a function from parameters, and more arguments, to the loss.

    Returns:
        A function of the same arguments and ``state=``, which returns the loss and its gradient. It computes them only
        if the value in the state is not finite, as at the first step.

    Raises:
        ArgumentError: when it is called, if the state has no ``value`` or no ``grad``, or several.

    >>> from tvmfun.optim import sgd, chain
    >>> optimizer = chain(sgd(1.0), scale_by_backtracking_linesearch(10, store_grad=True))
    >>> loss = lambda p: p**2
    >>> params = tnp.asarray(3.0)
    >>> [float(x) for x in value_and_grad_from_state(loss)(params, state=optimizer.init(params))]
    [9.0, 6.0]
    """

    def from_state(params: Params, *args: Any, state: OptState, **kwargs: Any) -> tuple[Any, Updates]:
        value, grad = optim_tree.get(state, "value"), optim_tree.get(state, "grad")
        if value is None or grad is None:
            raise ArgumentError(
                "value_and_grad_from_state",
                "the state must have a value and a grad",
                got=f"{'no value' if value is None else 'no grad'}",
                hint="store_grad=True",
            )

        def compute(params: Params) -> tuple[Any, Updates]:
            new_value, new_grad = value_and_grad(value_fn)(params, *args, **kwargs)
            return tnp.asarray(new_value).astype(value.dtype), optim_tree.cast_like(new_grad, grad)

        return lax.cond(tnp.isfinite(value), lambda _: (value, grad), compute, params)

    return from_state


def _loss(value_fn: Callable[..., Any], extra_args: dict[str, Any]) -> Callable[[Params], Any]:
    """Binds the arguments that the function takes, and drops the others."""
    known = inspect.signature(value_fn).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    return partial(value_fn, **{k: v for k, v in extra_args.items() if takes_all or k in known})


def _numbers(params: Params) -> tuple[Array, Array]:
    dtype = optim_tree.dtype(params, "highest")
    return tnp.ones((), dtype=dtype), tnp.full((), float("inf"), dtype=dtype)


def _error(excess: Array) -> Array:
    """The violation of a condition; infinity for NaN."""
    return tnp.where(tnp.isnan(excess), tnp.full_like(excess, float("inf")), tnp.maximum(excess, 0))


def _between(low: _Point, high: _Point, third: _Point) -> Array:
    """A step well inside an interval: the minimum of a cubic, else of a parabola through its ends, else the middle."""
    left, right = tnp.minimum(low.step, high.step), tnp.maximum(low.step, high.step)
    length = right - left
    x, y = high.step - low.step, third.step - low.step
    # The cubic has the slope at low, and the values at the three points.
    u, v = (p.value - low.value - low.slope * d for p, d in ((high, x), (third, y)))
    some, divisor = _unless_zero((x * y) ** 2 * (x - y))
    a = (y**2 * u - x**2 * v) / divisor
    b = (x**3 * v - y**3 * u) / divisor
    radicand = b * b - 3 * a * low.slope
    real = radicand > 0
    curved, divisor = _unless_zero(3 * a)
    cubic = low.step + (tnp.sqrt(tnp.where(real, radicand, tnp.ones_like(radicand))) - b) / divisor
    good_cubic = some & real & curved & (cubic > left + 0.2 * length) & (cubic < right - 0.2 * length)
    bent, divisor = _unless_zero(2 * u)
    parabola = low.step - low.slope * x**2 / divisor
    good_parabola = bent & (parabola > left + 0.1 * length) & (parabola < right - 0.1 * length)
    return tnp.where(good_cubic, cubic, tnp.where(good_parabola, parabola, (left + right) / 2))


def _unless_zero(divisor: Array) -> tuple[Array, Array]:
    """Whether a divisor is nonzero, and a nonzero one: the unused branch of ``where`` needs a finite derivative."""
    some = divisor != 0
    return some, tnp.where(some, divisor, tnp.ones_like(divisor))
