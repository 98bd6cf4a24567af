"""A cursor that goes over the tokens of a text, and reads signs, words, lists and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tvmfun import dtypes
from tvmfun.errors import ProgramError
from tvmfun.interop.relay.source import Source
from tvmfun.interop.relay.tokens import Token, tokenize

_NUMBER = re.compile(r"(?P<digits>inf|nan|[^fiu]+)(?P<kind>[fiu]?)(?P<bits>\d*)")

_T = TypeVar("_T")


class Cursor:
    """A position in the tokens of a text.

    Args:
        source: the text.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = tokenize(source)
        self.next = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.next]

    def is_next(self, *kinds: str) -> bool:
        """Whether the next token is of one of these kinds."""
        return self.token.kind in kinds

    def is_word(self, word: str) -> bool:
        """Whether the next token is this word."""
        return self.token.kind == "name" and self.token.text == word

    def take(self) -> Token:
        """The next token, which is read."""
        token = self.token
        self.next += token.kind != "end"
        return token

    def expect(self, kind: str) -> Token:
        """The next token, which must be of this kind."""
        if self.token.kind != kind:
            raise self.unexpected(kind if not kind.isalpha() else f"a {kind}")
        return self.take()

    def word(self, word: str) -> Token:
        """The next token, which must be this word."""
        if not self.is_word(word):
            raise self.unexpected(word)
        return self.take()

    def unexpected(self, wanted: str) -> ProgramError:
        """The error for a token that should be another one."""
        got = self.token.text if len(self.token.text) <= 40 else f"{self.token.text[:40]}..."
        return self.source.error(self.token.offset, f"{wanted} should be here", got=got)

    def listed(self, begin: str, end: str, read: Callable[[], _T]) -> list[_T]:
        """Reads a list between two signs, separated by commas; a comma may precede the last sign."""
        self.expect(begin)
        items = []
        while not self.is_next(end):
            items.append(read())
            if not self.is_next(","):
                break
            self.take()
        self.expect(end)
        return items

    # -- numbers -------------------------------------------------------------------------------------------------------

    def signed(self, read: Callable[[Token, int], Any]) -> Any:
        """A number with its sign, which ``read`` makes of both."""
        sign = 1
        while self.is_next("-"):
            self.take()
            sign = -sign
        return read(self.expect("number"), sign)

    def number(self, token: Token, sign: int) -> Any:
        """A NumPy scalar: ``1`` is int32, ``1i64`` int64, ``1f`` float32 and ``1f64`` float64."""
        match = _NUMBER.fullmatch(token.text) if len(token.text) <= 64 else None
        if match is None:
            raise self.source.error(token.offset, "the number is too long", got=f"{token.text[:40]}...")
        digits, kind, bits = match["digits"], match["kind"], match["bits"]
        if not kind and not digits.isdigit():
            kind = "f"
        name = {"": "int", "i": "int", "u": "uint", "f": "float"}[kind] + (bits or "32")
        if name not in dtypes.NAMES.values() or (kind in ("i", "u") and not digits.isdigit()):
            raise self.source.error(token.offset, "this is not a number of a known type", got=token.text)
        if kind == "f":
            with np.errstate(over="ignore"):
                return np.dtype(name).type(sign * float(digits))
        value = sign * int(digits)
        if not bits and not -(2**31) <= value < 2**31:
            name = "int64"
        info = np.iinfo(name)
        if not info.min <= value <= info.max:
            raise self.source.error(token.offset, f"the integer does not fit {name}", got=token.text)
        return np.dtype(name).type(value)

    def attribute_number(self, token: Token, sign: int) -> int | float:
        """A number of Python; TVM prints attributes of double precision as ``0.1f``."""
        value = self.number(token, sign)
        if isinstance(value, np.integer):
            return int(value)
        if math.isnan(value):
            raise self.source.error(token.offset, "an attribute must not be NaN")
        return sign * float(token.text.partition("f")[0] if token.text[0].isdigit() else "inf")

    def index(self, token: Token) -> int:
        """The index of a field."""
        if not token.text.isdigit() or len(token.text) > 9:
            raise self.source.error(token.offset, "the index of a field must be an integer", got=token.text[:40])
        return int(token.text)
