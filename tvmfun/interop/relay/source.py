"""The text of a program, and errors that say where in it."""

from __future__ import annotations

from tvmfun.errors import ProgramError


class Source:
    """A text whose errors name the line and the column.

    Args:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def position(self, offset: int) -> str:
        """The line and the column of a character, both counted from 1."""
        line_start = self.text.rfind("\n", 0, offset) + 1
        return f"line {self.text.count(chr(10), 0, offset) + 1}, column {offset - line_start + 1}"

    def error(self, offset: int, what: str, *, got: str = "", hint: str = "") -> ProgramError:
        """The error for a mistake at a character."""
        return ProgramError("from_relay", f"{self.position(offset)}: {what}", got=got, hint=hint)
