"""Entries of a manifest: leaves, and the versions of what wrote a file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from tvmfun import dtypes


def leaf_entry(name: str, shape: Sequence[Any], dtype: np.dtype, *, donated: bool = False) -> dict[str, Any]:
    """The entry of an array among the arguments or results; dynamic sizes are text.

    >>> leaf_entry("x", (2, 3), np.dtype("float32"))
    {'name': 'x', 'shape': [2, 3], 'dtype': 'float32', 'donated': False}
    """
    sizes = [size if type(size) is int else str(size) for size in shape]
    return {"name": name, "shape": sizes, "dtype": dtypes.NAMES[dtype], "donated": donated}


def versions() -> dict[str, str]:
    """The versions of tvmfun and TVM."""
    return {package: package_version(package) for package in ("tvmfun", "apache-tvm")}


def package_version(package: str) -> str:
    """The version of an installed package; ``source`` where it is run from a source tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "source"
