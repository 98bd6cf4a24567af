"""L-BFGS, with a search for each step."""

from __future__ import annotations

from tvmfun.optim.base import GradientTransformation, GradientTransformationExtraArgs, ScalarOrSchedule, identity
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms.linesearch import scale_by_zoom_linesearch
from tvmfun.optim.transforms.quasi_newton import scale_by_lbfgs
from tvmfun.optim.transforms.scaling import scale, scale_by_learning_rate

__all__ = ["lbfgs"]

ZOOM = scale_by_zoom_linesearch(20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = ZOOM,
) -> GradientTransformationExtraArgs:
    """L-BFGS: Newton's method with a Hessian from the last gradients; :func:`scale_by_lbfgs` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` for 1.
        memory_size: how many changes of the parameters and gradients to remember.
        scale_init_precond: whether the estimate of the Hessian begins with the newest change.
        linesearch: the search for the length of each step, by default :func:`scale_by_zoom_linesearch`; ``None`` for
            none.

    Returns:
        The optimizer. Its ``update`` needs ``params``, and for the search ``value=``, ``grad=`` and ``value_fn=``.

    Raises:
        ArgumentError: if ``memory_size`` is less than 1, or on ``update``, if it gets no ``params``.

    Reference: Liu and Nocedal, "On the limited memory BFGS method for large scale optimization" (1989).

    >>> import tvmfun
    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import apply_updates
    >>> loss = lambda p: (p[0] - 1) ** 2 + 10 * (p[1] - p[0] ** 2) ** 2
    >>> optimizer = lbfgs()
    >>> params = tnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> for _ in range(12):
    ...     value, gradient = tvmfun.value_and_grad(loss)(params)
    ...     updates, state = optimizer.update(gradient, state, params, value=value, grad=gradient, value_fn=loss)
    ...     params = apply_updates(params, updates)
    >>> bool(loss(params) < 1e-6)
    True
    """
    return chain(
        scale_by_lbfgs(memory_size, scale_init_precond),
        scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate),
        identity() if linesearch is None else linesearch,
    )
