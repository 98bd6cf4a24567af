"""Lines of the user's code, for errors."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ContextDecorator
from pathlib import Path
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


def user_line() -> str:
    """``file:line`` of the innermost frame outside this package, and the enclosing scopes."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USER):
        frame = frame.f_back
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
    return f"{line} (in {'/'.join(_SCOPES.names)})" if _SCOPES.names else line


def raised_at(error: BaseException) -> str:
    """``file:line`` of the innermost frame outside this package in the traceback of an error."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if not frame.f_code.co_filename.startswith(_NOT_THE_USER):
            return f"{frame.f_code.co_filename}:{line}"
    return ""
