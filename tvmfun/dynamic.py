"""``dynamic_shapes``: names for the axes of a function's arguments that have dynamic sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvmfun import tree
from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.dims import Dim
from tvmfun.errors import ArgumentError, ShapeError

_WHERE = "dynamic_shapes"


class DynamicShapes:
    """The axis names of each parameter of a function.

    Args:
        fun: the function.
        spec: by the name of the parameter, or one item per positional argument. An item is None (static), the axes
            of an array as ``{axis: size}`` or a tuple with one size or None per axis, or a tree of such items that
            is a prefix of the argument's tree. A size is a name or a Dim.
    """

    def __init__(self, fun: Callable, spec: Any) -> None:
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        kinds = {p.kind: p.name for p in parameters}
        self.positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.rest = kinds.get(inspect.Parameter.VAR_POSITIONAL, "" if parameters else "args")
        self.keywords = kinds.get(inspect.Parameter.VAR_KEYWORD, "" if parameters else "kwargs")
        if isinstance(spec, tuple | list):
            named = dict(zip(self.positional, spec, strict=False))
            more = tuple(spec[len(self.positional) :])
            self.items = {**named, self.rest: more} if more else named
        elif isinstance(spec, Mapping):
            self.items = dict(spec)
        else:
            hint = '{"x": {0: "b"}}, or one item per positional argument'
            raise ArgumentError("jit", f"{_WHERE} must be a dictionary or a sequence", got=repr(spec), hint=hint)
        known = {*(p.name for p in parameters), self.rest}
        unknown = [name for name in self.items if name not in known] if not self.keywords else []
        if unknown or "" in self.items:
            names = ", ".join(sorted(map(str, unknown))) or f"{len(spec)} items"
            raise ArgumentError("jit", f"{_WHERE} must name arguments of the function", got=names)

    def named(
        self, avals: Sequence[ShapeDtype], structure: tree.Structure, static: Sequence[Any]
    ) -> tuple[ShapeDtype, ...]:
        """The types of the leaves of ``(args, kwargs)``, with Dims for the sizes that are dynamic.

        Args:
            avals: the types of the arguments' leaves.
            structure: the structure of the arguments without the static ones.
            static: the positions and names of the static arguments.

        Raises:
            ArgumentError: if the names do not fit the tree, or an array does not have an axis.
        """
        used: set[int] = set()
        tops: dict[str, Any] = {}
        result = []
        for path, aval in zip(structure.accessors(), avals, strict=True):
            kind, first, *inner = (entry.entry for entry in path)
            name, item, inner = self._parameter(_position(first, static) if kind == 0 else first, inner)
            tops[name] = item
            axes = _descend(item, inner, name)
            used.add(id(axes))
            result.append(aval if axes is None else _with_names(aval, axes, f"{name}{tree.keystr(path[2:])}"))
        for name, item in tops.items():
            for axes in _axes_in(item):
                if id(axes) not in used:
                    raise ArgumentError("jit", f"{_WHERE} is not a prefix of the argument {name!r}", got=repr(axes))
        dims.names(*(aval.shape for aval in result))  # raises for a name with different bounds
        return tuple(result)

    def _parameter(self, argument: Any, inner: list) -> tuple[str, Any, list]:
        """The parameter of an argument, given by position or name, its item, and the rest of the path."""
        if isinstance(argument, int):
            if argument < len(self.positional):
                name = self.positional[argument]
                return name, self.items.get(name), inner
            return self.rest, self.items.get(self.rest), [argument - len(self.positional), *inner]
        if argument in self.items or not self.keywords:
            return argument, self.items.get(argument), inner
        return self.keywords, self.items.get(self.keywords), [argument, *inner]


def _position(index: int, static: Sequence[Any]) -> int:
    """The position among all arguments of the one at ``index`` among those that are not static."""
    for taken in sorted(taken for taken in static if isinstance(taken, int)):
        index += taken <= index
    return index


def _is_axes(item: Any) -> bool:
    """Whether an item has the axes of an array, and is not a container of items."""
    if isinstance(item, Mapping):
        return bool(item) and all(isinstance(key, int) for key in item)
    return isinstance(item, tuple | list) and any(isinstance(size, str | Dim) for size in item)


def _children(item: Any) -> dict[Any, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    return dict(enumerate(item)) if isinstance(item, tuple | list) else vars(item)


def _axes_in(item: Any) -> Iterator[Any]:
    if _is_axes(item):
        yield item
    elif item is not None:
        for child in _children(item).values():
            yield from _axes_in(child)


def _descend(item: Any, path: Sequence[Any], name: str) -> Any:
    """The axis names of the leaf at ``path``; None for static shapes."""
    for key in path:
        if item is None or _is_axes(item):
            return item
        item = _children(item).get(key)
    if isinstance(item, str | Dim | int):
        hint = f"{{0: {item!r}}}, or ({item!r}, None)"
        raise ArgumentError("jit", f"{_WHERE} must say which axis of {name!r} it means", got=repr(item), hint=hint)
    return item if _is_axes(item) else None


def _with_names(aval: ShapeDtype, axes: Any, name: str) -> ShapeDtype:
    """The type of a leaf with named axes."""
    sizes = list(aval.shape)
    if not isinstance(axes, Mapping) and len(axes) != aval.ndim:
        raise ArgumentError("jit", f"{_WHERE} must have one size per axis of {name}", got=f"{axes!r} for {aval}")
    for axis, size in axes.items() if isinstance(axes, Mapping) else enumerate(axes):
        if not -aval.ndim <= axis < aval.ndim:
            raise ArgumentError("jit", f"{_WHERE} names axis {axis} of {name}, which it does not have", got=repr(aval))
        if size is None:
            continue
        try:
            wanted = dims.size(size)
        except TypeError:
            raise ArgumentError("jit", f"a size in {_WHERE} is a name, a Dim or None", got=repr(size)) from None
        if isinstance(wanted, int) and wanted != sizes[axis]:
            raise ShapeError("jit", f"axis {axis} of {name} must have size {wanted}", got=repr(aval))
        sizes[axis] = wanted
    return replace(aval, shape=tuple(sizes))
