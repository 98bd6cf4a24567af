"""Pieces of C source: initializers, string literals, and bytes that a library includes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tvmfun.export.loader import ALIGNMENT


class Payload:
    """Bytes that the library includes, each piece aligned like a buffer and followed by a zero."""

    def __init__(self) -> None:
        self._content = bytearray()

    def add(self, piece: bytes) -> int:
        """Adds a piece and returns its offset."""
        self._content += b"\0" * (-len(self._content) % ALIGNMENT)
        offset = len(self._content)
        self._content += piece + b"\0"
        return offset

    def add_array(self, array: np.ndarray) -> int:
        """Adds the elements of an array."""
        return self.add(np.ascontiguousarray(array).tobytes())

    def write(self, path: Path) -> list[str]:
        """Writes the bytes to a file, and returns the lines of C that include it."""
        path.write_bytes(self._content)
        return [
            # The assembler includes the bytes: compilers take minutes for megabytes of text.
            '__asm__(".section .rodata\\n"',
            f'        ".balign {ALIGNMENT}\\ntvmfun_payload:\\n"',
            f'        ".incbin \\"{path}\\"\\n.previous\\n");',
            'extern const char tvmfun_payload[] __attribute__((visibility("hidden")));',
        ]


def address(offset: int | None) -> str:
    """The address of a piece of the payload, or a null pointer."""
    return "0" if offset is None else f"tvmfun_payload + {offset}"


def numbers(items: Sequence[int]) -> str:
    """An initializer of numbers.

    >>> numbers([2, 3])
    '{2, 3, 0}'
    """
    return f"{{{', '.join([*map(str, items), '0'])}}}"  # C has no empty arrays


def braces(items: Sequence[str]) -> str:
    """An initializer with one item per line."""
    return "{\n  " + ",\n  ".join(items) + "}"


def text(content: str) -> str:
    r"""A C string literal. Octal escapes end after three digits; hexadecimal ones would take the digits that follow.

    >>> print(text('a "b"'))
    "a \042b\042"
    """
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in content.encode()
    )
    return f'"{escaped}"'
