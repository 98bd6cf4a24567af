"""Tensor maps for the driver, which encodes them for an address."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tvmfun.runtime.cuda_module import MAP_DTYPES, TensorMap

if TYPE_CHECKING:
    from tvmfun.runtime.cuda.driver import Driver

# The driver's numbers of a tensor map's options. Elements are not interleaved.
_NO_INTERLEAVING = 0
# Lines of 128 bytes are swizzled.
_SWIZZLED = 3
# Reads fetch 128 bytes to L2.
_PROMOTED = 2
# Elements outside of the array are zeros.
_ZEROS = 0


class EncodedMap:
    """A tensor map, with the numbers that do not depend on the address.

    Args:
        tensor: the map.
    """

    def __init__(self, tensor: TensorMap) -> None:
        rank = len(tensor.sizes)
        self._address = tensor.address
        self._sizes = (ctypes.c_uint64 * rank)(*tensor.sizes)
        self._strides = (ctypes.c_uint64 * max(1, rank - 1))(*tensor.strides)
        self._box, self._ones = (ctypes.c_uint32 * rank)(*tensor.box), (ctypes.c_uint32 * rank)(*[1] * rank)
        self._kind = MAP_DTYPES[tensor.dtype], rank

    def encode(self, to: int, table: list[int], driver: Driver) -> None:
        """Writes the 128 bytes that a kernel gets to memory at a multiple of 128 bytes."""
        address = table[self._address.slot] + self._address.offset
        shape = self._sizes, self._strides, self._box, self._ones
        driver.cuTensorMapEncodeTiled(to, *self._kind, address, *shape, _NO_INTERLEAVING, _SWIZZLED, _PROMOTED, _ZEROS)
