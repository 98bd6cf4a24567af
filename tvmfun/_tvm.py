"""Imports TVM before anything else does, and without PyTorch.

TVM's FFI imports PyTorch wherever it is installed, to get around a conflict of symbols on Windows, and TVM then reads
the symbols of all its libraries: two seconds of an import of one. Neither is of use here: arrays of PyTorch come in
through DLPack. Who imports ``torch`` or ``tvm_ffi`` before tvmfun gets what TVM does by itself.
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
    """Lets exceptions that end a program through TVM: what it does not know comes out as a RuntimeError."""
    from tvm_ffi import register_error

    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):
        register_error(kind.__name__, kind)


_import_tvm()
_register_exceptions()
