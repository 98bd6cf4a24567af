"""Where in the user's code something happens."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import numpy as np

# NumPy's own functions call back into this package, for example to convert an argument.
_NOT_THE_USER = tuple(str(Path(file).parent) for file in (Path(__file__).parent, np.__file__))


def user_line() -> str:
    """``file:line`` of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def raised_at(error: BaseException) -> str:
    """``file:line`` of the innermost frame outside this package that an error came through."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if not frame.f_code.co_filename.startswith(_NOT_THE_USER):
            return f"{frame.f_code.co_filename}:{line}"
    return ""
