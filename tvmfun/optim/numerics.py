"""Norms, counts and running means that several transformations compute."""

from __future__ import annotations

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.nn.functional.floats import floats
from tvmfun.numpy.promotion import at_least_float32
from tvmfun.optim.base import Params, ScalarOrSchedule, Updates, map_updates, refuse_row_sparse
from tvmfun.optim.tree import bias_correction
from tvmfun.typing import ArrayLike, DTypeLike, Scalar

__all__ = [
    "global_norm",
    "safe_increment",
    "safe_norm",
    "safe_root_mean_squares",
]


def safe_increment(count: Array) -> Array:
    """Increments a count without overflow: ``min(count + 1, max)``.

    Args:
        count: a 0-d array of integers or floats.

    Returns:
        The next count, of the same dtype.

    Raises:
        DtypeError: if ``count`` is neither an integer nor a float.

    >>> safe_increment(tnp.asarray(2**31 - 1, dtype="int32"))
    Array(2147483647, dtype=int32)
    """
    count = tnp.asarray(count)
    if dtypes.is_float(count.dtype):
        return count + 1  # the largest float absorbs a 1
    if not dtypes.is_integer(count.dtype):
        raise DtypeError("safe_increment", "the count must be a number", got=str(count.dtype))
    return tnp.minimum(count, np.iinfo(count.dtype).max - 1) + 1


def global_norm(updates: Updates) -> Array:
    """The Euclidean norm of all leaves together: ``sqrt(sum of squares)``.

    Args:
        updates: a tree of arrays.

    Returns:
        A 0-d array, float32 for half precision, whose squares overflow from 256 on.

    >>> float(global_norm({"w": tnp.asarray([3.0, 0.0]), "b": tnp.asarray(4.0)}))
    5.0
    """
    refuse_row_sparse("global_norm", updates)
    return tnp.sqrt(sum(tnp.sum(tnp.square(at_least_float32(floats(leaf)))) for leaf in tree.leaves(updates)))


def safe_norm(
    x: ArrayLike,
    min_norm: Scalar,
    ord: int | float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Array:
    """The norm of an array, with a lower bound and a finite gradient at zero: ``max(norm(x), min_norm)``.

    Args:
        x: an array.
        min_norm: the lower bound, a number or a 0-d array.
        ord: which norm, as for ``numpy.linalg.norm``.
        axis: the axes to reduce; ``None`` for all.
        keepdims: whether to keep the reduced axes with length 1.

    Returns:
        The norms, an array of the dtype of ``x``.

    >>> [float(safe_norm(tnp.asarray(x), 1.0)) for x in ([3.0, 4.0], [0.0, 0.0])]
    [5.0, 1.0]
    """
    x = tnp.asarray(x)
    small = tnp.linalg.norm(x, ord, axis, True) <= min_norm
    norm = tnp.linalg.norm(tnp.where(small, tnp.ones_like(x), x), ord, axis, keepdims)
    return tnp.where(small.reshape(norm.shape), in_dtype_of(norm, min_norm), norm)


def safe_root_mean_squares(x: ArrayLike, min_rms: Scalar) -> Array:
    """The root mean square of an array, with a lower bound and a finite gradient at zero.

    Args:
        x: an array.
        min_rms: the lower bound, a number or a 0-d array.

    Returns:
        ``max(sqrt(mean(x**2)), min_rms)``, a 0-d array of the dtype of ``x``.

    >>> [float(safe_root_mean_squares(tnp.asarray(x), 1.0)) for x in ([3.0, 3.0], [0.0, 0.0])]
    [3.0, 1.0]
    """
    x = tnp.asarray(x)
    small = root_mean_square(x) <= min_rms
    rms = root_mean_square(tnp.where(small, tnp.ones_like(x), x))
    return tnp.where(small, in_dtype_of(rms, min_rms), rms)


# -- helpers of the other modules --


def root_mean_square(x: Array) -> Array:
    return tnp.sqrt(tnp.mean(tnp.square(x)))


def need_params(where: str, params: Params | None) -> None:
    if params is None:
        raise ArgumentError(
            where, "the parameters are needed", got="params=None", hint="optimizer.update(grads, state, params)"
        )


def optional_dtype(dtype: DTypeLike | None) -> np.dtype | None:
    return None if dtype is None else dtypes.canonical(dtype)


def zero_count() -> Array:
    return tnp.zeros((), dtype="int32")


def in_dtype_of(leaf: ArrayLike, factor: Scalar) -> Scalar:
    # Python numbers are weakly typed and need no conversion.
    return factor if isinstance(factor, int | float) else tnp.asarray(factor).astype(abstract(leaf).dtype)


def corrected_mean(updates: Updates, mu: Updates, b1: Scalar, count: Array, nesterov: bool) -> Updates:
    """The mean without its bias towards zero; with ``nesterov``, one step ahead."""
    if not nesterov:
        return bias_correction(mu, b1, count)
    ahead = bias_correction(mu, b1, safe_increment(count))
    return map_updates(lambda m, u: b1 * m + (1 - b1) * u, ahead, bias_correction(updates, b1, count))


def divide_by_root(mu: Updates, nu: Updates, eps: Scalar, eps_root: Scalar = 0.0) -> Updates:
    return map_updates(lambda m, v: m / (tnp.sqrt(v + eps_root) + eps), mu, nu)


def weight_so_far(decay: Scalar, count: Array, dtype: np.dtype) -> Array:
    """``1 - decay**count``: the total weight in a running mean so far."""
    return (1 - decay ** count.astype(dtypes.result_type(dtype, "float32"))).astype(dtype)


def value_at(schedule: ScalarOrSchedule, count: Array, dtype: np.dtype) -> Scalar:
    """The value of a schedule at a count, or the number itself."""
    return tnp.asarray(schedule(count)).astype(dtype) if callable(schedule) else schedule
