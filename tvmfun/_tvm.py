"""Imports TVM before anything else does, and without PyTorch.

TVM's FFI imports PyTorch if it is installed, to avoid a conflict of symbols on Windows, and TVM then reads the symbols
of all its libraries: two of three seconds of the import. Neither is needed here, because arrays of PyTorch come in
through DLPack. If ``torch`` or ``tvm_ffi`` is imported before tvmfun, nothing is changed.
"""

import sys
from types import ModuleType
from typing import cast


def _import_tvm() -> None:
    if "torch" in sys.modules or "tvm_ffi" in sys.modules:
        return
    sys.modules["torch"] = cast(ModuleType, None)  # an import of it raises ImportError
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules["torch"]


def _register_exceptions() -> None:
    """Lets exceptions that end a process pass through TVM, which turns unknown exceptions into RuntimeErrors."""
    from tvm_ffi import register_error

    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):
        register_error(kind.__name__, kind)


_import_tvm()
_register_exceptions()
