"""Checks of arguments and reductions that losses share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.ops.pointwise import broadcast_shapes
from tvmfun.typing import ArrayLike

Axes: TypeAlias = int | Sequence[int] | None
Reduction: TypeAlias = Literal["mean", "sum", "none"]


def floats(where: str, name: str, value: Any) -> Array:
    """The argument as an array; raises a DtypeError unless its elements are floats."""
    array = tnp.asarray(value)
    if not dtypes.is_float(array.dtype):
        raise DtypeError(where, f"the {name} must be floats", got=str(array.dtype), hint=f'{name}.astype("float32")')
    return array


def integers(where: str, name: str, value: Any) -> Array:
    """The argument as an array; raises a DtypeError unless its elements are integers."""
    array = tnp.asarray(value)
    if not dtypes.is_integer(array.dtype):
        raise DtypeError(where, f"the {name} must be integers", got=str(array.dtype), hint=f'{name}.astype("int32")')
    return array


def are_classes(labels: Array, count: int) -> Array:
    """Whether each label is one of ``count`` classes; the dtype of labels may be too narrow for ``count``."""
    labels = labels.astype(tnp.result_type(labels.dtype, "int32"))
    return (labels >= 0) & (labels < count)


def same_shape(where: str, names: str, first: Array, second: Array) -> None:
    """Checks that two arrays have one shape, because broadcasting would hide a mistake."""
    if first.shape != second.shape:
        raise ShapeError(where, f"the {names} must have one shape", got=f"{first.shape} and {second.shape}")


def fits_into(where: str, name: str, array: Array, other_name: str, other: Array) -> None:
    """Checks that an array broadcasts to another: (8,) and (8, 1) would give (8, 8), which hides a mistake."""
    if array.ndim > other.ndim or broadcast_shapes(where, [array.shape, other.shape]) != other.shape:
        hint = f"{name}[..., None]" if other.shape == (*array.shape, 1) else f"{name} of the same shape"
        what = f"the {name} must broadcast to the {other_name}"
        raise ShapeError(where, what, got=f"{array.shape} and {other.shape}", hint=hint)


def errors(where: str, predictions: ArrayLike, targets: ArrayLike | None) -> Array:
    """The predictions minus the targets; targets default to zeros."""
    predictions = floats(where, "predictions", predictions)
    if targets is None:
        return predictions
    targets = tnp.asarray(targets)
    fits_into(where, "targets", targets, "predictions", predictions)
    return predictions - targets


def reduced(where: str, losses: Array, reduction: Reduction, axis: Axes = None) -> Array:
    """Losses reduced to their mean or sum, or not reduced."""
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise ArgumentError(where, "the reduction is unknown", got=repr(reduction), hint='"mean", "sum" or "none"')
    return tnp.mean(losses, axis=axis) if reduction == "mean" else tnp.sum(losses, axis=axis)


def mask(where: ArrayLike | None, like: Array, axis: Any) -> Array | None:
    """A mask with the axes of an array, from one that may lack the reduced axes."""
    if where is None:
        return None
    where = tnp.asarray(where)
    return where if where.ndim == like.ndim else tnp.expand_dims(where, axis)
