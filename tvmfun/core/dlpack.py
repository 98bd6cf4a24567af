"""The read-only flag of DLPack capsules, which TVM cannot set."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


class _VersionedTensor(ctypes.Structure):
    """The head of ``DLManagedTensorVersioned`` in DLPack 1.x."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


_READ_ONLY = 1
_capsule_pointer: Callable[..., int] = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p  # type: ignore[attr-defined]
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)  # type: ignore[attr-defined]


def mark_read_only(capsule: Any) -> None:
    """Sets the read-only flag of a DLPack capsule."""
    head = _VersionedTensor.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
    head.flags |= _READ_ONLY
