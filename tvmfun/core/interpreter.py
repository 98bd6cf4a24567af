"""The stack of interpreters of each thread: the open traces, and the evaluator at the bottom.

The interpreter at the top applies ops and runs Programs. A trace records them; the evaluator compiles and runs them.
``core`` does not depend on the compiler: ``tvmfun.execute`` installs the evaluator's methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tvmfun.core.op import Op
    from tvmfun.core.program import Program


class Interpreter(Protocol):
    """Applies ops and runs Programs."""

    apply: Callable[[Op, tuple, dict], Any]
    run: Callable[[Program, list], list]


class Evaluator:
    """The interpreter of arrays with data."""

    apply: Callable[[Op, tuple, dict], Any]
    run: Callable[[Program, list], list]


EVALUATOR = Evaluator()


def install_evaluator(apply: Callable[[Op, tuple, dict], Any], run: Callable[[Program, list], list]) -> None:
    """Sets how ops and Programs are evaluated; called once, by ``tvmfun.execute``."""
    EVALUATOR.apply, EVALUATOR.run = apply, run


class _Stack(threading.local):
    def __init__(self) -> None:
        self.interpreters: list[Interpreter] = [EVALUATOR]


#: The interpreters of the current thread, the innermost last.
STACK = _Stack()


@contextmanager
def interpreted_by(interpreter: Interpreter) -> Iterator[None]:
    """Within this context, ops and Programs are applied by ``interpreter``."""
    stack = STACK.interpreters
    stack.append(interpreter)
    try:
        yield
    finally:
        stack.pop()


def is_tracing() -> bool:
    """Whether a function is being traced in this thread."""
    return STACK.interpreters[-1] is not EVALUATOR
