"""Leaves: the values accepted where an array is expected, their types, and conversions of scalars."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.dims import Dim
from tvmfun.errors import DtypeError

if TYPE_CHECKING:
    from tvmfun.typing import ArrayLike


def scalar(value: ArrayLike) -> np.generic:
    """The NumPy scalar for a Python scalar, NumPy scalar or 0-d array."""
    if isinstance(value, np.generic | np.ndarray):  # first, because numpy.float64 is a Python float too
        return dtypes.canonical(value.dtype).type(np.asarray(value)[()])
    if isinstance(value, bool | int | float):
        return scalar_of(value, dtypes.of_scalar(value))
    raise DtypeError("trace", "only arrays and numbers can be traced", got=type(value).__name__)


def scalar_of(value: bool | int | float, dtype: np.dtype) -> np.generic:
    """``value`` as a NumPy scalar of ``dtype``.

    Raises:
        DtypeError: if an integer does not fit.
    """
    try:
        return dtype.type(value)
    except OverflowError:
        raise DtypeError(
            "dtype", f"the Python integer does not fit {dtypes.NAMES[dtype]}", got=str(value), hint="a wider dtype"
        ) from None


_STATIC = "a closure, or static_argnums of jit, for values that are not arrays"


def abstract(leaf: Any, where: str = "trace", what: str = "an argument", hint: str = _STATIC) -> ShapeDtype:
    """The shape and dtype of anything that can be an array argument.

    Args:
        leaf: an array of any library, a number or a ``ShapeDtype``.
        where: the function that needs it, for errors.
        what: the name of the leaf in an error.
        hint: the hint of the error.

    Raises:
        DtypeError: if ``leaf`` is not an array, scalar or ``ShapeDtype``.
    """
    if isinstance(leaf, Array):
        return leaf.aval
    if isinstance(leaf, ShapeDtype):
        return leaf
    if dtypes.is_scalar(leaf):
        return ShapeDtype((), dtypes.of_scalar(leaf), weak=True)
    if isinstance(leaf, Dim):
        return ShapeDtype((), dtypes.DEFAULT_INT, weak=True)
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        # PyTorch's dtypes are not NumPy's, but have the same names.
        dtype = leaf.dtype if isinstance(leaf.dtype, np.dtype | str) else str(leaf.dtype).rpartition(".")[2]
        return ShapeDtype(tuple(leaf.shape), dtypes.canonical(dtype))
    hint = of_dataclass(leaf) or hint
    raise DtypeError(
        where,
        f"{what} is neither an array nor a number",
        got=f"{type(leaf).__name__} {leaf!r}" if isinstance(leaf, str) else type(leaf).__name__,
        hint=hint,
    )


def of_dataclass(value: Any) -> str:
    """The hint for an instance of a dataclass that is not registered as a tree."""
    if not dataclasses.is_dataclass(value):
        return ""
    return f"tvmfun.tree.register_dataclass for {type(value).__name__}, which makes it a tree of its fields"


def argument_name(path: tree.Path) -> str:
    """The name of a leaf of ``(args, kwargs)`` in an error: ``argument 0['w']``, ``argument 'scale'``."""
    _, argument, *rest = tree.keystr(path).removeprefix("[").split("]", 2)
    name = argument.removeprefix("[")
    return f"argument {name}{''.join(rest)}"


_STATIC_FIELD = 'field(metadata={"static": True}) for a field that is not an array'


def abstract_leaves(
    leaves: Sequence[Any],
    structure: tree.Structure,
    where: str,
    name: Callable[[tree.Path], str] = argument_name,
    **hint: str,
) -> tuple[ShapeDtype, ...]:
    """The types of the leaves of a tree, by default of ``(args, kwargs)``.

    Args:
        leaves: the leaves.
        structure: of the tree.
        where: the function that needs them, for errors.
        name: returns the name of the leaf at a path.
        **hint: another hint for errors.

    Raises:
        DtypeError: if a leaf is neither an array nor a number, with its ``name``.
    """
    try:
        return tuple(abstract(leaf, where) for leaf in leaves)
    except DtypeError:
        for leaf, path in zip(leaves, structure.accessors(), strict=True):
            is_field = len(path) > 0 and isinstance(path[-1], tree.Field)
            more = {"hint": _STATIC_FIELD} if is_field else hint
            abstract(leaf, where, name(path), **more)
        raise
