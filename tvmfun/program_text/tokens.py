"""Tokens of a Program's text, read one after another, and errors with their lines."""

from __future__ import annotations

import json
import re
from typing import Any

from tvmfun.errors import ProgramError

_TOKEN = re.compile(
    r"""
      (?P<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    | (?P<number>0x[0-9a-f]+|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*|<\w+>)
    | (?P<source>\#[^\n]*)
    | (?P<mark>//|<=|[()\[\]{},:=*+-])
    """,
    re.VERBOSE,
)
_SPACE = re.compile(r"[ \n]*")
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)")
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
#: The kind of the token after the last one.
END = "end"
_SHOWN = 40
_MOST_DIGITS = 320


class Tokens:
    """The tokens of a text; ``kind`` and ``text`` are those of the next one.

    Args:
        source: the text.
        first_line: the number of its first line, for errors.
    """

    def __init__(self, source: str, first_line: int = 1) -> None:
        self._source, self._first_line = source, first_line
        self._start = self._end = 0
        self.kind = self.text = ""
        self._read(0)

    def _read(self, position: int) -> None:
        space = _SPACE.match(self._source, position)
        assert space is not None
        self._start = space.end()
        match = _TOKEN.match(self._source, self._start)
        if match is not None:
            self.kind, self.text, self._end = match.lastgroup or "", match.group(), match.end()
        elif self._start == len(self._source):
            self.kind, self.text, self._end = END, "", self._start
        else:
            self._end = self._start + 1
            self.kind, self.text = "character", self._source[self._start : self._end]

    @property
    def position(self) -> int:
        """The position of the next token, for errors and for :meth:`go_to`."""
        return self._start

    def go_to(self, position: int) -> None:
        """Continues at the token of a position."""
        self._read(position)

    def error(self, what: str, got: str = "", hint: str = "", position: int = -1) -> ProgramError:
        """An error at the next token, or at a position."""
        line = self._first_line + self._source.count("\n", 0, self._start if position < 0 else position)
        shown = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "..."
        got = got or ("the end of the text" if self.kind == END else repr(shown))
        return ProgramError("Program.load", f"line {line}: {what}", got=got, hint=hint)

    def next(self) -> str:
        """Returns the text of the next token, and goes on."""
        text = self.text
        self._read(self._end)
        return text

    def at(self, text: str) -> bool:
        """Whether the next token is this mark or name."""
        return self.text == text and self.kind in ("mark", "name")

    def accept(self, text: str) -> bool:
        """Goes on if the next token is this mark or name."""
        if not self.at(text):
            return False
        self.next()
        return True

    def expect(self, text: str) -> None:
        """Goes on; raises unless the next token is this mark or name."""
        if not self.accept(text):
            raise self.error(f"expected {text!r}")

    def expect_kind(self, kind: str, what: str) -> str:
        """Returns the text of the next token; raises unless it is of a kind."""
        if self.kind != kind:
            raise self.error(f"expected {what}")
        return self.next()

    def string(self) -> str:
        """Reads a string in quotes."""

        def character(match: re.Match[str]) -> str:
            code = match.group(1)
            number = int(code[1:], 16) if len(code) > 1 else -1
            if number > 0x10FFFF or (number < 0 and code not in _ESCAPES):
                raise self.error("this escape is not one of a string", got=repr(match.group()))
            return _ESCAPES[code] if number < 0 else chr(number)

        value = _ESCAPE.sub(character, self.text[1:-1]) if self.kind == "string" else ""
        self.expect_kind("string", "a string")
        return value

    def natural(self) -> int:
        """Reads an integer without a sign."""
        if self.kind != "number" or not self.text.isdecimal():
            raise self.error("expected an integer")
        if len(self.text) > _MOST_DIGITS:
            raise self.error(f"an integer of more than {_MOST_DIGITS} digits")
        return int(self.next())

    def name(self) -> str:
        """Reads the name of a function: a bare one, or a string."""
        return self.string() if self.kind == "string" else self.expect_kind("name", "a name")

    def json_after(self) -> Any:
        """Reads the JSON value after the next token, and both."""
        space = _SPACE.match(self._source, self._end)
        assert space is not None
        try:
            value, end = json.JSONDecoder().raw_decode(self._source, space.end())
        except (ValueError, RecursionError) as error:
            raise self.error("JSON that cannot be read", got=str(error)) from None
        self._read(end)
        return value
