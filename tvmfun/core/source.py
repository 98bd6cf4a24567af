"""Lines of the user's code, for errors."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ContextDecorator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tvmfun.errors import ArgumentError

# NumPy's own functions call back into this package, for example to convert an argument.
_NOT_THE_USER = tuple(str(Path(file).parent) for file in (Path(__file__).parent, np.__file__))


class _Scopes(threading.local):
    names: tuple[str, ...] = ()


_SCOPES = _Scopes()


class named_scope(ContextDecorator):  # JAX's name
    """A context or decorator whose name appears in errors about ops that are traced within it.

    Args:
        name: any text.

    Source: ``jax.named_scope``.

    >>> with named_scope("encoder"), named_scope("attention"):
    ...     user_line().endswith("(in encoder/attention)")
    True
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentError("named_scope", "the name must be a string", got=repr(name))
        self.name = name

    def __enter__(self) -> None:
        _SCOPES.names = (*_SCOPES.names, self.name)

    def __exit__(self, *error: object) -> None:
        _SCOPES.names = _SCOPES.names[:-1]


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """Returns a function whose ops are traced within :class:`named_scope`.

    Args:
        fun: any function.
        name: of the scope; by default the name of the function.

    Source: ``jax.named_call``.

    >>> named_call(user_line, name="head")().endswith("(in head)")
    True
    """
    return named_scope(getattr(fun, "__name__", "fun") if name is None else name)(fun)


class Replay:
    """A context in which ops come from lines that were traced before: those of the equations of a Program.

    A transform applies ops for each equation. Their line is that of the equation, not of the call of the transform,
    unless the user's code runs in between, such as a derivative rule.

    >>> with Replay() as replay:
    ...     replay.line = "model.py:7"
    ...     user_line()
    'model.py:7'
    """

    def __init__(self, line: str = "") -> None:
        self.line = line
        self.frame: FrameType | None = None
        self.outer: Replay | None = None

    def __enter__(self) -> Replay:
        self.frame, self.outer = sys._getframe(1), _REPLAYS.innermost
        _REPLAYS.innermost = self
        return self

    def __exit__(self, *error: object) -> None:
        _REPLAYS.innermost = self.outer
        self.frame = None  # which would keep its variables alive


class _Replays(threading.local):
    innermost: Replay | None = None


_REPLAYS = _Replays()


def user_line() -> str:
    """``file:line`` of the innermost frame outside this package, and the enclosing scopes.

    Where equations are replayed, it is the line of the equation.
    """
    frame, replay = sys._getframe(1), _REPLAYS.innermost
    while frame is not None:
        while replay is not None and replay.frame is frame:
            if replay.line:
                return replay.line
            replay = replay.outer
        if not frame.f_code.co_filename.startswith(_NOT_THE_USER):
            break
        frame = frame.f_back
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
    return f"{line} (in {'/'.join(_SCOPES.names)})" if _SCOPES.names else line


def raised_at(error: BaseException) -> str:
    """``file:line`` of the innermost frame outside this package in the traceback of an error."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if not frame.f_code.co_filename.startswith(_NOT_THE_USER):
            return f"{frame.f_code.co_filename}:{line}"
    return ""
