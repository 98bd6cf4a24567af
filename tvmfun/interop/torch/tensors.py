"""Arrays as tensors and back, through DLPack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import tvm

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.core.array import Array, ShapeDtype, duplicate, interned, on_device
from tvmfun.typing import PyTree

#: The alignment in bytes that compiled kernels rely on.
_ALIGNMENT = 64


def to_torch(arrays: PyTree) -> PyTree:
    """Returns a tree with each array as a tensor of PyTorch that shares its memory.

    Arrays are immutable, and PyTorch does not know that: write into a tensor only after ``clone()``. NumPy's arrays
    and numbers are copied.

    Args:
        arrays: a tree of arrays.

    Returns:
        The same tree with tensors, on the devices of the arrays.
    """
    return tree.map(lambda leaf: to_tensor(leaf if isinstance(leaf, Array) else tnp.asarray(leaf)), arrays)


def to_tensor(array: Array) -> Any:
    """The tensor of an array's elements, without a copy."""
    import torch

    return torch.from_dlpack(array)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of PyTorch here.

    >>> dtype_name("torch.float32")
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def aval_of(tensor: Any) -> ShapeDtype:
    """The shape and dtype of a tensor, as one object for all equal ones."""
    return interned(ShapeDtype(tuple(tensor.shape), dtypes.canonical(dtype_name(tensor.dtype))))


def borrowed(tensor: Any) -> Array:
    """The array of a tensor's elements for the duration of a call, on the CPU without a copy.

    A tensor that is not dense, or whose first element is not aligned as kernels need it, is copied.
    """
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        return tnp.asarray(tensor)
    if tensor.is_neg() or not tensor.is_contiguous():
        tensor = tensor.resolve_neg().contiguous()
    if tensor.data_ptr() % _ALIGNMENT:
        tensor = tensor.clone()
    # TVM annotates the result as the base class of its tensors.
    elements = cast(tvm.runtime.Tensor, tvm.runtime.from_dlpack(tensor))
    return on_device(elements, aval_of(tensor))


def owned(results: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """Results as arrays that do not share memory: tensors may be written in place.

    Args:
        results: arrays that a compiled function has returned. It returns arguments and constants without a copy.
        others: arrays whose memory belongs to somebody else.
    """
    taken = {array.address for array in others}
    separate = []
    for array in results:
        array = duplicate(array) if array.address in taken else array
        taken.add(array.address)
        separate.append(array)
    return separate
