"""Loss scaling: multiplying the loss keeps gradients in float16 from underflow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.typing import ArrayLike, PyTree, Scalar

__all__ = ["DynamicLossScale", "StaticLossScale", "all_finite", "select_tree"]


def all_finite(values: PyTree) -> Array:
    """Whether no float of a tree is infinite or NaN, as a 0-d bool array.

    Args:
        values: a tree of arrays.

    >>> all_finite({"w": tnp.asarray([1.0, float("inf")]), "count": tnp.asarray(3)})
    Array(False, dtype=bool)
    """
    leaves = [tnp.asarray(leaf) for leaf in tree.leaves(values)]
    checks = [tnp.all(tnp.isfinite(leaf)) for leaf in leaves if dtypes.is_float(leaf.dtype)]
    return tnp.all(tnp.stack(checks)) if checks else tnp.asarray(True)


def select_tree(condition: ArrayLike, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Selects one of two trees by a condition that may be a tracer.

    Args:
        condition: a 0-d bool array.
        on_true: the result where it is True.
        on_false: the result where it is False, a tree of the same structure.

    Raises:
        TreeError: if the structures differ.

    >>> select_tree(tnp.asarray(False), {"w": tnp.ones(2)}, {"w": tnp.zeros(2)})
    {'w': Array([0., 0.], dtype=float32)}
    """
    tree.check_same_structure("select_tree", on_true, on_false, ("on_true", "on_false"))
    return tree.map(lambda x, y: tnp.where(condition, x, y), on_true, on_false)


class _LossScale:
    """Base class of the loss scales."""

    scale_factor: Scalar

    def scale(self, values: PyTree) -> PyTree:
        """Multiplies the floats of a tree, such as the loss, by the scale."""
        return tree.map(lambda x: _times(x, self.scale_factor), values)

    def unscale(self, values: PyTree) -> PyTree:
        """Divides the floats of a tree, such as gradients, by the scale."""
        return tree.map(lambda x: _times(x, 1 / self.scale_factor), values)


@tree.register_dataclass
@dataclass(frozen=True, eq=False)
class StaticLossScale(_LossScale):
    """A constant loss scale.

    Args:
        scale_factor: the factor of the loss, a number greater than 0; a power of 2 adds no rounding.

    Raises:
        ArgumentError: if the factor is a number that is not greater than 0.

    Source: follows ``jmp.StaticLossScale``; Micikevicius et al., "Mixed Precision Training" (2018).

    >>> scale = StaticLossScale(1024.0)
    >>> scale.unscale(scale.scale(tnp.asarray(3.0)))
    Array(3., dtype=float32)
    """

    scale_factor: Scalar = 2.0**15

    def __post_init__(self) -> None:
        _check_positive("StaticLossScale", scale_factor=self.scale_factor)
        object.__setattr__(self, "scale_factor", tnp.asarray(self.scale_factor, "float32"))

    def adjust(self, is_finite: ArrayLike) -> StaticLossScale:
        """The scale for the next step, which is the same."""
        return self


@tree.register_dataclass
@dataclass(frozen=True, eq=False)
class DynamicLossScale(_LossScale):
    r"""A loss scale that shrinks after each overflow and grows after many steps without one.

    A step multiplies the loss by the scale and divides the gradients by it, and leaves parameters and the optimizer's
    state as they are when a gradient is not finite:

    .. math::

        s' = \begin{cases} \max(s / f, s_{\min}) & \text{after an overflow} \\
                           s f & \text{after } n \text{ finite steps in a row} \\
                           s & \text{otherwise} \end{cases}

    Args:
        scale_factor: the first scale :math:`s`.
        period: the number :math:`n` of finite steps before the scale grows.
        factor: the factor :math:`f` by which it grows and shrinks.
        min_scale: the least scale :math:`s_{\min}`.
        counter: the number of finite steps since the scale changed.

    Raises:
        ArgumentError: if a number is not greater than 0, or the factor not greater than 1.

    Source: follows ``jmp.DynamicLossScale``; Micikevicius et al., "Mixed Precision Training" (2018).

    >>> import tvmfun
    >>> from tvmfun import optim
    >>> optimizer, loss_fn = optim.sgd(0.1), tvmfun.amp(lambda w, x: tnp.mean((x @ w) ** 2), "float16")
    >>> @tvmfun.jit
    ... def step(w, opt_state, scale, x):
    ...     loss, grads = tvmfun.value_and_grad(lambda w: scale.scale(loss_fn(w, x)))(w)
    ...     grads = scale.unscale(grads)
    ...     is_finite = all_finite(grads)
    ...     updates, new_state = optimizer.update(grads, opt_state, w)
    ...     new = optim.apply_updates(w, updates), new_state
    ...     w, opt_state = select_tree(is_finite, new, (w, opt_state))
    ...     return w, opt_state, scale.adjust(is_finite), scale.unscale(loss)
    >>> w = tnp.ones(3)
    >>> w, _, scale, loss = step(w, optimizer.init(w), DynamicLossScale(2.0**30), tnp.ones((4, 3)))
    >>> w, float(scale.scale_factor) / 2**30  # this was too much for float16
    (Array([1., 1., 1.], dtype=float32), 0.5)
    """

    scale_factor: Scalar = 2.0**15
    period: int = field(default=2000, metadata={"static": True})
    factor: float = field(default=2.0, metadata={"static": True})
    min_scale: float = field(default=1.0, metadata={"static": True})
    counter: Scalar = 0

    def __post_init__(self) -> None:
        name = "DynamicLossScale"
        _check_positive(name, scale_factor=self.scale_factor, period=self.period, min_scale=self.min_scale)
        if not self.factor > 1:
            raise ArgumentError(name, "the factor must be greater than 1", got=repr(self.factor))
        object.__setattr__(self, "scale_factor", tnp.asarray(self.scale_factor, "float32"))
        object.__setattr__(self, "counter", tnp.asarray(self.counter, "int32"))

    def adjust(self, is_finite: ArrayLike) -> DynamicLossScale:
        """The scale for the next step.

        Args:
            is_finite: whether the gradients of this step were finite, a 0-d bool.
        """
        steps = self.counter + 1
        grown = self.scale_factor * self.factor
        grows = (steps >= self.period) & tnp.isfinite(grown)
        after_finite = tnp.where(grows, grown, self.scale_factor)
        after_overflow = tnp.maximum(self.scale_factor / self.factor, self.min_scale)
        return replace(
            self,
            scale_factor=tnp.where(is_finite, after_finite, after_overflow),
            counter=tnp.where(tnp.asarray(is_finite) & (steps < self.period), steps, 0),
        )


def _times(x: ArrayLike, factor: Scalar) -> Array:
    array = tnp.asarray(x)
    if not dtypes.is_float(array.dtype):
        return array
    # A factor may be more than float16 holds.
    return tnp.astype(array * factor, array.dtype)


def _check_positive(where: str, **numbers: Scalar) -> None:
    for name, number in numbers.items():
        if isinstance(number, int | float) and not number > 0:
            raise ArgumentError(where, f"{name} must be greater than 0", got=repr(number))
