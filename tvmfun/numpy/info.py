"""What the array API asks a namespace about itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes, runtime
from tvmfun.errors import ArgumentError
from tvmfun.numpy.data_types import KINDS

# The standard's dtypes, without those that are ours only.
_STANDARD = {
    ("bool" if dtype == dtypes.bool_ else name): dtype
    for dtype, name in dtypes.NAMES.items()
    if dtype not in (dtypes.bfloat16, dtypes.float16)
}


class ArrayNamespaceInfo:
    """What the array API's inspection functions say about ``tvmfun.numpy``.

    There are no complex dtypes, because TVM has none; so there is no ``fft`` extension either.
    """

    def capabilities(self) -> dict[str, Any]:
        """Returns what the namespace can do.

        Boolean indexing works outside traces. Functions whose result has a shape that depends on data do so too,
        and while tracing with JAX's ``size`` argument, which the standard does not have.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        """Returns the device that arrays are created on."""
        return runtime.device("cpu")

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype | None]:
        """Returns the dtypes of arrays that are created without naming one."""
        return {
            "real floating": dtypes.DEFAULT_FLOAT,
            "complex floating": None,
            "integral": dtypes.DEFAULT_INT,
            "indexing": dtypes.DEFAULT_INT,
        }

    def devices(self) -> list[Any]:
        """Returns all devices of this machine."""
        return [*runtime.devices("cuda"), *runtime.devices("cpu")]

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, np.dtype]:
        """Returns the standard's dtypes of a kind, by name.

        Args:
            device: all devices have the same.
            kind: one of the kinds of ``isdtype`` or several; by default all.
        """
        if kind is None:
            return dict(_STANDARD)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        for one in kinds:
            if one not in KINDS:
                raise ArgumentError("dtypes", f"a kind is one of {', '.join(KINDS)}", got=repr(one))
        return {name: dtype for name, dtype in _STANDARD.items() if any(dtype in KINDS[one] for one in kinds)}


def __array_namespace_info__() -> ArrayNamespaceInfo:
    """Returns an object with the array API's inspection functions."""
    return ArrayNamespaceInfo()
