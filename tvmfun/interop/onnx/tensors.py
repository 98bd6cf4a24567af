"""Types and tensors of ONNX files as NumPy arrays, also those stored in other files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import DtypeError, ProgramError, ShapeError

#: ONNX's numbers of the dtypes that arrays have.
DTYPES: dict[int, np.dtype] = {
    1: dtypes.float32,
    2: dtypes.uint8,
    3: dtypes.int8,
    4: dtypes.uint16,
    5: dtypes.int16,
    6: dtypes.int32,
    7: dtypes.int64,
    9: dtypes.bool_,
    10: dtypes.float16,
    11: dtypes.float64,
    12: dtypes.uint32,
    13: dtypes.uint64,
    16: dtypes.bfloat16,
}
#: The numbers of the dtypes of at most a byte that no array has: :class:`Narrow` values do.
NARROW: dict[int, np.dtype] = {
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
}
_REFUSED = {8: "strings", 14: "complex numbers", 15: "complex numbers"}
#: The numbers by dtype.
NUMBERS: dict[np.dtype, int] = {dtype: number for number, dtype in (DTYPES | NARROW).items()}

_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
_EXTERNAL = 1  # TensorProto.EXTERNAL
_LARGEST = 1 << 40  # bytes of a tensor; more is a damaged file


class Narrow(NamedTuple):
    """An array of a dtype of at most a byte, such as float8, by the bits of its elements.

    Args:
        bits: unsigned bytes, one for each element.
        dtype: of ``ml_dtypes``.
    """

    bits: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self.bits.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.bits.ndim


def dtype_of(number: int, what: str) -> np.dtype:
    """The dtype of ONNX's number.

    Raises:
        DtypeError: for strings, complex numbers and unknown numbers; ``what`` is in the message.
    """
    dtype = DTYPES.get(number) or NARROW.get(number)
    if dtype is None:
        got = f"{_REFUSED.get(number, f'the type number {number}')} in {what}"
        raise DtypeError("from_onnx", "only arrays of numbers are read", got=got)
    return dtype


def is_narrow(dtype: Any) -> bool:
    """Whether only :class:`Narrow` values have the dtype."""
    return NUMBERS.get(np.dtype(dtype), 0) in NARROW


def is_known(value: Any) -> bool:
    """Whether a value is known while a function is traced; an omitted value is known to be omitted."""
    return value is None or isinstance(value, np.ndarray)


def lifted(value: Any) -> Any:
    """A value as an array that operators take."""
    if isinstance(value, np.ndarray):
        if is_narrow(value.dtype):
            return Narrow(tnp.asarray(value.view(np.uint8)), value.dtype)
        return tnp.asarray(value)
    return value


def sized(shape: tuple[int, ...], dtype: np.dtype, what: str) -> int:
    """The number of elements of a shape from a file.

    Raises:
        ShapeError: if a size is negative, or the array would be larger than any file.
    """
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > _LARGEST:
        raise ShapeError("from_onnx", f"{what} must have a sensible shape", got=str(shape))
    return count


def to_numpy(tensor: Any, folder: Path | None) -> np.ndarray:
    """A tensor of a file.

    Args:
        tensor: a ``TensorProto``.
        folder: of the file, for tensors stored in files beside it; None if the model has no file.

    Raises:
        ProgramError: if the data do not have the size that the shape says, or their file is elsewhere.
        DtypeError: for strings and complex numbers.
    """
    from onnx import numpy_helper

    what = f"the tensor {tensor.name!r}"
    dtype, shape = dtype_of(tensor.data_type, what), tuple(tensor.dims)
    count = sized(shape, dtype, what)
    bits = _BITS.get(tensor.data_type, 8 * dtype.itemsize)
    expected = -(-count * bits // 8)
    if tensor.data_location == _EXTERNAL:
        raw = _external(tensor, folder, expected, what)
        if bits >= 8:
            return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        tensor = type(tensor)(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != expected:
        got = f"{len(tensor.raw_data)} bytes for {count} elements of {dtype.name}"
        raise ProgramError("from_onnx", f"{what} must have as many bytes as its shape says", got=got)
    try:
        result = np.asarray(numpy_helper.to_array(tensor))
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise ProgramError("from_onnx", f"{what} cannot be read", got=str(error)) from error
    if result.shape != shape or result.dtype != dtype:
        raise ProgramError("from_onnx", f"{what} must have the type {dtype.name}{list(shape)}", got=str(result.shape))
    return result


def _external(tensor: Any, folder: Path | None, expected: int, what: str) -> bytes:
    """The bytes of a tensor in another file, which must be in the folder of the model or below it."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if folder is None:
        hint = "the path of the model instead of its contents"
        raise ProgramError("from_onnx", f"{what} is in another file", got=repr(fields.get("location")), hint=hint)
    try:
        path = (folder / fields["location"]).resolve()
        offset = int(fields.get("offset", 0))
        length = int(fields.get("length", expected))
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise ValueError("a file outside of the model's folder, or none")
        if offset < 0 or length != expected or offset + length > path.stat().st_size:
            raise ValueError(f"{length} bytes from {offset}, which are not in the file or not {expected}")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except (KeyError, OSError, ValueError) as error:
        got = f"{fields.get('location')!r}: {error}"
        raise ProgramError("from_onnx", f"{what} must be in a file beside the model", got=got) from error


def sparse_to_numpy(tensor: Any, folder: Path | None) -> np.ndarray:
    """A ``SparseTensorProto`` as a dense array."""
    values, indices = to_numpy(tensor.values, folder), to_numpy(tensor.indices, folder)
    shape = tuple(tensor.dims)
    count = sized(shape, values.dtype, f"the sparse tensor {tensor.values.name!r}")
    if count > 1 << 28:
        raise ShapeError("from_onnx", "a sparse tensor becomes a dense one, which must fit", got=str(shape))
    result = np.zeros(shape, values.dtype)
    try:
        where = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
        result[where] = values
    except (IndexError, TypeError, ValueError) as error:
        raise ProgramError("from_onnx", "indices of a sparse tensor must fit its shape", got=str(error)) from error
    return result


def as_argument(value: Any, dtype: np.dtype) -> Any:
    """An argument of a function as a value of a graph: bits of narrow dtypes are bytes."""
    if not is_narrow(dtype):
        return tnp.asarray(value)
    if isinstance(value, Narrow):
        return value
    if not isinstance(value, Array):
        value = np.asarray(value)
        value = value.view(np.uint8) if value.dtype == dtype else value
    return Narrow(tnp.asarray(value), dtype)
