"""The container of machine code: its bytes, a manifest as JSON, and a checksum.

Exported libraries and the files of the disk cache end with the offset and the size of the manifest, the SHA-256 of
everything before, and a mark. A library with such an end is still a library.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

#: The offset and the size of the manifest.
EXTENT = struct.Struct("<QQ")
#: The last bytes of a container.
MAGIC = b"TVMFUN\x00\x01"
_END = struct.Struct(f"<32s{len(MAGIC)}s")


def sealed(content: bytes, manifest: dict[str, Any] | bytes) -> bytes:
    """Returns the container of some machine code.

    Args:
        content: the machine code; it may hold the manifest already.
        manifest: an object for JSON, or its text.

    >>> opened(sealed(b"code", {"name": "step"}))
    (b'code', {'name': 'step'})
    """
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    offset = content.find(text)
    if offset < 0:
        offset, content = len(content), content + text
    content += EXTENT.pack(offset, len(text))
    return content + hashlib.sha256(content).digest() + MAGIC


def opened(container: bytes) -> tuple[bytes, dict[str, Any]]:
    """Returns the content before the manifest, and the manifest.

    Raises:
        ValueError: if the container is truncated or altered.

    >>> opened(sealed(b"code", {})[:-1])
    Traceback (most recent call last):
    ValueError: the end is not that of a container
    """
    end = len(container) - _END.size
    if end < EXTENT.size or not container.endswith(MAGIC):
        raise ValueError("the end is not that of a container")
    digest, _ = _END.unpack_from(container, end)
    if hashlib.sha256(memoryview(container)[:end]).digest() != digest:
        raise ValueError("the checksum is that of other bytes")
    offset, size = EXTENT.unpack_from(container, end - EXTENT.size)
    manifest = json.loads(container[offset : offset + size])
    if not isinstance(manifest, dict):
        raise ValueError("the manifest is no object")
    return container[:offset], manifest
