"""The safetensors format: a JSON header, and the elements of each array."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.errors import CheckpointError

_DTYPE_NAMES = {
    dtypes.bool_: "BOOL",
    **{dtype: f"I{8 * dtype.itemsize}" for dtype in dtypes.SIGNED},
    **{dtype: f"U{8 * dtype.itemsize}" for dtype in dtypes.UNSIGNED},
    **{dtype: f"F{8 * dtype.itemsize}" for dtype in (dtypes.float16, dtypes.float32, dtypes.float64)},
    dtypes.bfloat16: "BF16",
}
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
# Names of entries in the metadata: the containers of the tree, checksums of arrays, and one of the other metadata.
CONTAINERS = "tvmfun.containers"
_CHECKSUMS = "tvmfun.crc32"
_CHECKSUM_OF_METADATA = "tvmfun.metadata_crc32"
OWN_METADATA = (CONTAINERS, _CHECKSUMS, _CHECKSUM_OF_METADATA)
_METADATA = "__metadata__"
_LARGEST_HEADER = 100_000_000
# NumPy's limits: at most 64 axes, and elements of up to eight bytes need 64-bit addresses.
_MOST_AXES = 64
_LARGEST_ARRAY = 2**59


def write_arrays(file: IO[bytes], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes arrays by name, and strings beside them, into an open file."""
    header = _header(arrays, metadata)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for array in arrays.values():
        file.write(_bytes_of(array))


def _header(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    checksums = {name: zlib.crc32(_bytes_of(array)) for name, array in arrays.items()}
    own = {_CHECKSUMS: json.dumps(checksums), _CHECKSUM_OF_METADATA: _checksum_of(metadata)}
    header: dict[str, Any] = {_METADATA: {**metadata, **own}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPE_NAMES[array.dtype], "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _checksum_of(metadata: Mapping[str, str]) -> str:
    others = sorted((key, value) for key, value in metadata.items() if key not in (_CHECKSUMS, _CHECKSUM_OF_METADATA))
    return str(zlib.crc32(json.dumps(others).encode()))


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Reader:
    """Reads an open file: its header, checked, and single arrays."""

    def __init__(self, path: str | os.PathLike[str], file: IO[bytes]) -> None:
        self._path, self._file = path, file
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise self._damaged(f"a header of {length} bytes in a file of {size}")
        try:
            header = json.loads(file.read(length))
            strings = header.pop(_METADATA, {})
            tensors = {
                name: (entry["dtype"], tuple(map(_natural, entry["shape"])), *map(_natural, entry["data_offsets"]))
                for name, entry in header.items()
            }
            for dtype, shape, _, _ in tensors.values():
                _check_size(dtype, shape)
            self.metadata = {str(key): str(value) for key, value in strings.items()}
            checksum = self.metadata.pop(_CHECKSUM_OF_METADATA, None)
            if checksum is not None and checksum != _checksum_of(self.metadata):
                raise ValueError("metadata with another checksum than the file says")
            self.containers = json.loads(self.metadata.pop(CONTAINERS, "null"))
            self._checksums = dict(json.loads(self.metadata.pop(_CHECKSUMS, "{}")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._damaged(f"a header that cannot be read ({error})") from None
        self._start = 8 + length
        self._offsets: dict[str, int] = {}
        self.tensors: dict[str, ShapeDtype] = {}
        end = 0
        for name, (dtype, shape, first, last) in sorted(tensors.items(), key=lambda item: item[1][2:]):
            if dtype not in _DTYPES:
                raise CheckpointError("read", f"{name} of {path} must have a dtype of tvmfun", got=dtype)
            self.tensors[name] = ShapeDtype(shape, _DTYPES[dtype])
            self._offsets[name] = first
            if first != end or last - first != self.tensors[name].nbytes:
                raise self._damaged(f"{self.tensors[name]} in bytes {first} to {last} at {name}")
            end = last
        if self._start + end != size:
            raise self._damaged(f"{size} bytes instead of {self._start + end}")

    def _damaged(self, got: str) -> CheckpointError:
        return CheckpointError("read", f"{self._path} is not a complete safetensors file", got=got)

    def array(self, name: str) -> np.ndarray:
        """Reads one array."""
        aval = self.tensors[name]
        array = np.empty(aval.shape, aval.dtype)
        self._file.seek(self._start + self._offsets[name])
        if self._file.readinto(array.reshape(-1).view(np.uint8)) != aval.nbytes:  # type: ignore[attr-defined]
            raise self._damaged(f"fewer bytes than the header says at {name}")
        # Files of other programs have no checksums.
        if name in self._checksums and zlib.crc32(_bytes_of(array)) != self._checksums[name]:
            raise self._damaged(f"another checksum than the header says at {name}")
        return array


def _natural(value: Any) -> int:
    """A size or offset in a header. int() would also accept 1.5, True and text."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a natural number")
    return value


def _check_size(dtype: Any, shape: tuple[int, ...]) -> None:
    """Raises for shapes that no array can have, even without elements."""
    if not isinstance(dtype, str):
        raise ValueError(f"{dtype!r} is not a dtype")
    if len(shape) > _MOST_AXES or math.prod(size for size in shape if size) > _LARGEST_ARRAY:
        raise ValueError(f"no array has the shape {shape}")
