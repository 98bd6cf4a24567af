"""Products with the Hessian of a loss, and its diagonal."""

from __future__ import annotations

from collections.abc import Callable

import tvmfun.numpy as tnp
from tvmfun import lax, tree
from tvmfun.core.array import Array
from tvmfun.optim.base import Params, ravel
from tvmfun.transforms import grad, jvp
from tvmfun.typing import PyTree, Scalar

__all__ = ["fisher_diag", "hessian_diag", "hvp"]

# loss(params, inputs, targets)
LossFn = Callable[[Params, PyTree, PyTree], Scalar]


def hvp(loss: LossFn, v: Array, params: Params, inputs: PyTree, targets: PyTree) -> Array:
    """The product of the Hessian of a loss with a vector.

    Args:
        loss: a function ``loss(params, inputs, targets)``.
        v: a vector with as many elements as the parameters.
        params: a tree of arrays.
        inputs: the second argument of the loss.
        targets: its third argument.

    Returns:
        A tree with the structure of ``params``.

    >>> loss = lambda p, x, y: tnp.sum(x * p**3)
    >>> hvp(loss, tnp.asarray([1.0, 0.0]), tnp.asarray([1.0, 2.0]), 1.0, None)
    Array([6., 0.], dtype=float32)
    """
    params = tree.map(tnp.asarray, params)
    _, restore = ravel(params)
    return jvp(grad(lambda p: loss(p, inputs, targets)), (params,), (restore(v),))[1]


def hessian_diag(loss: LossFn, params: Params, inputs: PyTree, targets: PyTree) -> Array:
    """The diagonal of the Hessian of a loss, from one product for each element.

    Args:
        loss: a function ``loss(params, inputs, targets)``.
        params: a tree of arrays.
        inputs: the second argument of the loss.
        targets: its third argument.

    Returns:
        A vector.

    >>> loss = lambda p, x, y: tnp.sum(x * p**3)
    >>> hessian_diag(loss, tnp.asarray([1.0, 2.0]), 1.0, None)
    Array([ 6., 12.], dtype=float32)
    """
    vector, _ = ravel(params)

    def element(unit: Array) -> Array:
        return tnp.vdot(unit, ravel(hvp(loss, unit, params, inputs, targets))[0])

    # Sequential, so that only one product is in memory at a time.
    return lax.map(element, tnp.eye(vector.size, dtype=vector.dtype))


def fisher_diag(negative_log_likelihood: LossFn, params: Params, inputs: PyTree, targets: PyTree) -> Array:
    """The diagonal of the observed Fisher information: the squares of the gradient.

    Args:
        negative_log_likelihood: a function ``loss(params, inputs, targets)``.
        params: a tree of arrays.
        inputs: the second argument of the loss.
        targets: its third argument.

    Returns:
        A vector.

    >>> loss = lambda p, x, y: tnp.sum(x * p**3)
    >>> fisher_diag(loss, tnp.asarray([1.0, 2.0]), 1.0, None)
    Array([  9., 144.], dtype=float32)
    """
    return tnp.square(ravel(grad(negative_log_likelihood)(params, inputs, targets))[0])
