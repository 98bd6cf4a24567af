"""Selection of arguments by position or name, as by ``static_argnums`` and ``donate_argnames``."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from tvmfun import tree
from tvmfun.errors import ArgumentError
from tvmfun.exact_keys import exact_key


def _several(value: Any) -> tuple:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(value)
    return () if value is None else (value,)


def _positions(value: Any, option: str) -> list[int]:
    """Argument positions as a list, from one, several, or None."""
    try:
        return [operator.index(number) for number in _several(value)]
    except TypeError:
        raise ArgumentError("jit", f"{option} must be an integer, or several", got=repr(value)) from None


def _names(value: Any, option: str) -> tuple[str, ...]:
    """Argument names as a tuple, from one, several, or None."""
    names = _several(value)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentError("jit", f"{option} must be a name, or several", got=repr(value))
    return names


class ArgumentSelector:
    """Arguments selected by position or name, however the caller passes them."""

    def __init__(self, fun: Callable, nums: Any, names: Any, what: str) -> None:
        self.nums = set(_positions(nums, f"{what}_argnums"))
        self.names = set(_names(names, f"{what}_argnames"))
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        if not parameters:
            return
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        variadic = {p.kind for p in parameters}
        if not variadic & {inspect.Parameter.VAR_POSITIONAL}:
            for num in self.nums:
                if not -len(positional) <= num < len(positional):
                    raise ArgumentError(
                        "jit", f"{what}_argnums must be a position", got=str(num), hint=f"0 to {len(positional) - 1}"
                    )
        elif any(num < 0 for num in self.nums):
            raise ArgumentError("jit", f"{what}_argnums must not be negative where *args has no end", got=str(nums))
        known = {p.name for p in parameters}
        if not variadic & {inspect.Parameter.VAR_KEYWORD} and self.names - known:
            raise ArgumentError(
                "jit", f"{what}_argnames must be arguments of the function", got=", ".join(sorted(self.names - known))
            )
        self.nums = {num % len(positional) if num < 0 else num for num in self.nums}
        # The caller may pass an argument by position or by name: select both. Where positions are given, too, names
        # mean arguments passed by name, as in JAX.
        by_position = set() if self.nums else {positional.index(name) for name in self.names if name in positional}
        self.names |= {positional[num] for num in self.nums if num < len(positional)}
        self.nums |= by_position

    def __bool__(self) -> bool:
        return bool(self.nums or self.names)

    def split(self, args: tuple, kwargs: dict) -> tuple[tuple, dict, tuple]:
        """Returns the other arguments, and the selected ones as ``((position or name, value), ...)``."""
        chosen: list[tuple[Any, Any]] = [(i, value) for i, value in enumerate(args) if i in self.nums]
        chosen += [(name, kwargs[name]) for name in sorted(kwargs) if name in self.names]
        rest = tuple(value for i, value in enumerate(args) if i not in self.nums)
        return rest, {name: value for name, value in kwargs.items() if name not in self.names}, tuple(chosen)

    def leaves(self, structure: tree.Structure, static: tuple) -> list[int]:
        """Returns the leaf indices of the selected arguments in the structure of the arguments that are not static."""
        positional, by_name = structure.children()
        taken = {key for key, _ in static}
        positions = (i for i in itertools.count() if i not in taken)
        found: list[int] = []
        start = 0
        for keys, arguments in ((positions, positional), (by_name.entries(), by_name)):
            for key, argument in zip(keys, arguments.children(), strict=False):
                if key in self.nums or key in self.names:
                    found += range(start, start + argument.num_leaves)
                start += argument.num_leaves
        return found


def argument_names(fun: Callable, structure: tree.Structure, static: tuple) -> list[str]:
    """Returns the names of the parameters that the arguments belong to, without static ones.

    Args:
        fun: the function.
        structure: of the arguments that are not static.
        static: the static ones, as of :meth:`ArgumentSelector.split`.

    >>> argument_names(lambda x, *rest, scale: 0, tree.structure(((1, 2, 3), {"scale": 4})), ())
    ['x', 'rest[0]', 'rest[1]', 'scale']
    """
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    positional, by_name = structure.children()
    taken = {key for key, _ in static}
    positions = itertools.islice((i for i in itertools.count() if i not in taken), positional.num_children)
    found = [names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in positions]
    return found + list(map(str, by_name.entries()))


def with_static(fun: Callable, static: tuple) -> Callable:
    """Returns ``fun`` with its static arguments bound."""
    if not static:
        return fun
    bound = dict(static)
    names = {name: value for name, value in static if isinstance(name, str)}

    def rest_only(*args: Any, **kwargs: Any) -> Any:
        others = iter(args)
        count = len(args) + len(bound) - len(names)
        full = [bound[i] if i in bound else next(others) for i in range(count)]
        return fun(*full, **kwargs, **names)

    return rest_only


def static_key(static: tuple) -> Hashable:
    """Returns the exact key of static arguments.

    Raises:
        ArgumentError: if one cannot be hashed.
    """
    for key, value in static:
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                "jit",
                f"the static argument {key!r} must be hashable",
                got=type(value).__name__,
                hint="a tuple instead of a list, or passing it as an array",
            ) from None
    return exact_key(static)
