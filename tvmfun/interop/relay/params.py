"""TVM's binary format of arrays, and of files of named arrays. Nothing is unpickled, and sizes are checked first."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import ProgramError

_ARRAY_MAGIC = 0xDD5E40F096B4A13F
_FILE_MAGIC = 0xF7E58D4F05049CB7
#: The most axes of an array.
_MOST_AXES = 32
#: DLPack's codes of kinds of dtypes.
_KINDS = {0: "int", 1: "uint", 2: "float", 6: "bool"}
_CPU = 1


def load_params(file: str | os.PathLike | bytes) -> dict[str, Any]:
    """Reads a file of parameters that ``relay.save_param_dict`` has written.

    Args:
        file: its path, or its contents.

    Returns:
        The arrays by name, in the order of the file.

    Raises:
        ProgramError: if the file is damaged, or has a dtype that is not supported.

    >>> import struct
    >>> header = struct.pack("<QQ", 0xF7E58D4F05049CB7, 0)
    >>> load_params(header + struct.pack("<QQ", 0, 0))
    {}
    """
    data = bytes(file) if isinstance(file, bytes | bytearray | memoryview) else Path(file).read_bytes()
    reader = Reader(data, "load_params")
    if reader.unpack("<Q") != _FILE_MAGIC:
        raise reader.error(
            "the file does not begin like a file of parameters", hint="what relay.save_param_dict writes"
        )
    reader.unpack("<Q")
    names = [reader.text() for _ in range(reader.count(8))]
    if len(set(names)) != len(names):
        raise reader.error("two arrays have the same name")
    if reader.count(8) != len(names):
        raise reader.error("there must be as many arrays as names", hint="the file that was written")
    arrays = {name: tnp.asarray(reader.array()) for name in names}
    reader.end()
    return arrays


class Reader:
    """Reads numbers, texts and arrays from bytes.

    Args:
        data: the bytes.
        where: the public function, for errors.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.offset = 0

    def error(self, what: str, got: str = "", hint: str = "") -> ProgramError:
        """The error for damaged bytes."""
        got = got or f"{len(self.data)} bytes, damaged before byte {self.offset}"
        return ProgramError(self.where, what, got=got, hint=hint)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > len(self.data) - self.offset:
            raise self.error("the data ends too early")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def unpack(self, format: str) -> int:
        """The next number."""
        return struct.unpack(format, self.take(struct.calcsize(format)))[0]

    def count(self, least: int) -> int:
        """The number of items that follow, of ``least`` bytes or more each."""
        count = self.unpack("<Q")
        if count * least > len(self.data) - self.offset:
            raise self.error("the data ends too early")
        return count

    def text(self) -> str:
        """A text with its length before it."""
        try:
            return self.take(self.unpack("<Q")).decode()
        except UnicodeDecodeError:
            raise self.error("a name is not UTF-8") from None

    def array(self) -> np.ndarray:
        """An array with its header."""
        if self.unpack("<Q") != _ARRAY_MAGIC:
            raise self.error("an array does not begin like one")
        self.unpack("<Q")
        device, _, axes = struct.unpack("<iii", self.take(12))
        code, bits, lanes = struct.unpack("<BBH", self.take(4))
        if device != _CPU or not 0 <= axes <= _MOST_AXES:
            raise self.error("the header of an array is damaged")
        dtype = self.dtype(code, bits, lanes)
        shape = struct.unpack(f"<{axes}q", self.take(8 * axes))
        size = self.unpack("<Q")
        if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != size:
            raise self.error("the size of an array is not that of its shape", f"{size} bytes for {shape} of {dtype}")
        return np.frombuffer(self.take(size), dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def dtype(self, code: int, bits: int, lanes: int) -> np.dtype:
        """The dtype of DLPack's numbers."""
        if (code, bits) == (4, 16):
            name = "bfloat16"
        elif (code, bits) in ((1, 1), (6, 8)):
            name = "bool"
        else:
            name = f"{_KINDS.get(code, '?')}{bits}"
        known = next((dtype for dtype in dtypes.ALL if dtype.name == name), None)
        if known is None or lanes != 1:
            raise self.error("the dtype of an array is not supported", f"code {code}, {bits} bits, {lanes} lanes")
        return known

    def end(self) -> None:
        """Raises unless everything has been read."""
        if self.offset != len(self.data):
            raise self.error("there is more than the arrays")
