"""Checks on GPUs. Importing it without TVM makes ``tvmfun`` a package whose launcher can be imported, and no more."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _has_tvm() -> bool:
    try:
        return importlib.util.find_spec("tvm") is not None
    except ValueError:  # a test hides it
        return False


if "tvmfun" not in sys.modules and not _has_tvm():
    # The package imports TVM, which the launcher does not need.
    package = ModuleType("tvmfun")
    package.__path__ = [str(Path(__file__).parents[2] / "tvmfun")]
    sys.modules["tvmfun"] = package
