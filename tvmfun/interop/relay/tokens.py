"""Tokens of Relay's text format; one pass over the text, whose time is linear in its length."""

from __future__ import annotations

import re
from typing import NamedTuple

from tvmfun.interop.relay.source import Source

#: The only version of the format that parsers since 2020 know.
VERSION = "0.0.5"

_NAME = r"[A-Za-z_][\w/]*"
# A name may have dots, such as `%layer.0.weight`; a projection such as `%pair.0` ends with a number.
_PATTERN = re.compile(
    rf"""
    (?P<space>[ \t\r\n]+ | //[^\n]*)
  | (?P<comment>/\*)
  | (?P<local>%{_NAME}(?:\.(?:\d+\.)*{_NAME})*)
  | (?P<graph>%\d+)
  | (?P<global>@{_NAME}(?:\.{_NAME})*)
  | (?P<meta>meta\[[^\]\n]*\]\[\d+\])
  | (?P<number>(?:inff|nanf)\d*(?!\w) | \d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?:[fiu]\d*)?)
  | (?P<name>{_NAME}(?:\.{_NAME})*)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<header>\#\[[^\]\n]*\])
  | (?P<sign>->|=>|==|!=|<=|>=|[()\[\]{{}},;:=.+\-*/<>?!])
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_INDEX = re.compile(r"\d+")
_COMMENT_ENDS = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    """A part of the text.

    Args:
        kind: a group of the pattern, the sign itself, or ``"end"``.
        text: as it is written.
        offset: of its first character.
    """

    kind: str
    text: str
    offset: int


def tokenize(source: Source) -> list[Token]:
    """The tokens of a text without spaces and comments, up to the metadata section.

    Returns:
        The tokens. The last one is the end of the text, or the header of the metadata section.

    Raises:
        ProgramError: if a character begins no token, or a comment does not end.
    """
    text, offset = source.text, 0
    tokens: list[Token] = []
    while offset < len(text):
        # `%pair.0.1` projects twice: an index follows each point, not the number 0.1.
        match = _INDEX.match(text, offset) if tokens and tokens[-1].kind == "." else None
        kind = "number"
        if match is None:
            match = _PATTERN.match(text, offset)
            if match is None:
                raise source.error(offset, "this is not a part of Relay's text format", got=repr(text[offset]))
            kind = match.lastgroup or ""
        if kind == "comment":
            offset = _after_comment(source, offset)
            continue
        if kind != "space":
            token = Token(match[0] if kind == "sign" else kind, match[0], offset)
            tokens.append(token)
            if kind == "header" and "".join(token.text.split()) == "#[metadata]":
                return tokens
        offset = match.end()
    tokens.append(Token("end", "the end of the text", len(text)))
    return tokens


def _after_comment(source: Source, offset: int) -> int:
    """The offset after a comment; comments may be nested."""
    nesting = 0
    for match in _COMMENT_ENDS.finditer(source.text, offset):
        nesting += 1 if match[0] == "/*" else -1
        if nesting == 0:
            return match.end()
    raise source.error(offset, "the comment does not end")
