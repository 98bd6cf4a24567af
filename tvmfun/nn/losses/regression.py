"""Regression losses."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.nn.losses.arguments import errors, same_shape
from tvmfun.transforms import custom_jvp
from tvmfun.typing import ArrayLike

__all__ = ["huber_loss", "l2_loss", "log_cosh", "squared_error"]


def squared_error(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    """The squared error of each element: ``(predictions - targets)**2``.

    Args:
        predictions: an array of floats.
        targets: an array of the same shape; by default zeros.

    Raises:
        DtypeError: if the predictions are not floats.
        ShapeError: if the shapes differ.

    >>> squared_error(tnp.asarray([1.0, 2.0]), tnp.asarray([1.0, 4.0]))
    Array([0., 4.], dtype=float32)
    """
    return _squared("squared_error", predictions, targets)


def l2_loss(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    """Half the squared error of each element, whose derivative is the error.

    Args:
        predictions: an array of floats.
        targets: an array of the same shape; by default zeros.

    Raises:
        DtypeError: if the predictions are not floats.
        ShapeError: if the shapes differ.

    >>> l2_loss(tnp.asarray([1.0, 2.0]), tnp.asarray([1.0, 4.0]))
    Array([0., 2.], dtype=float32)
    """
    return 0.5 * _squared("l2_loss", predictions, targets)


def huber_loss(predictions: ArrayLike, targets: ArrayLike | None = None, *, delta: Any = 1.0) -> Array:
    r"""Half the squared error up to ``delta``, and linear beyond: :math:`\delta (|e| - \delta / 2)`.

    Args:
        predictions: an array of floats.
        targets: an array that broadcasts to it; by default zeros.
        delta: where the loss becomes linear.

    Raises:
        DtypeError: if the predictions are not floats.

    Reference: Huber, "Robust Estimation of a Location Parameter" (1964).

    >>> huber_loss(tnp.asarray([0.5, 3.0]))
    Array([0.125, 2.5  ], dtype=float32)
    """
    size = tnp.abs(errors("huber_loss", predictions, targets))
    quadratic = tnp.minimum(size, delta)
    return 0.5 * tnp.square(quadratic) + delta * (size - quadratic)


def log_cosh(predictions: ArrayLike, targets: ArrayLike | None = None) -> Array:
    r"""The logarithm of the hyperbolic cosine of each error: about :math:`e^2 / 2`, or :math:`|e| - \ln 2`.

    Args:
        predictions: an array of floats.
        targets: an array that broadcasts to it; by default zeros.

    Raises:
        DtypeError: if the predictions are not floats.

    Reference: Chen et al., "Log Hyperbolic Cosine Loss Improves Variational Auto-Encoder" (2019).

    >>> log_cosh(tnp.asarray([0.0, 100.0]))
    Array([ 0.      , 99.306854], dtype=float32)
    """
    return _log_cosh(errors("log_cosh", predictions, targets))


@custom_jvp
def _log_cosh(x: Any) -> Array:
    return tnp.logaddexp(x, -x) - x.dtype.type(math.log(2))


@_log_cosh.defjvp
def _log_cosh_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    return _log_cosh(x), dx * tnp.tanh(x)


def _squared(where: str, predictions: Any, targets: Any) -> Array:
    if targets is not None:
        same_shape(where, "predictions and targets", tnp.asarray(predictions), tnp.asarray(targets))
    return tnp.square(errors(where, predictions, targets))
