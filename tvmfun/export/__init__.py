"""Exported functions: compiled functions, such as whole training steps, as shared libraries without TVM or Python.

``Compiled.export`` writes a library, and :func:`load` runs one for CPUs with NumPy alone. C and C++ programs include
``tvmfun/step.h`` or ``tvmfun/step.hpp`` from :data:`INCLUDE`, and for GPUs ``tvmfun/cuda.h`` or ``tvmfun/cuda.hpp``;
:data:`CMAKE` has the package for CMake.
"""

from pathlib import Path

from tvmfun.boundary import publish as _publish
from tvmfun.export.loader import LeafInfo, SizeInfo, Step, load, read_manifest
from tvmfun.names import missing as _missing

__all__ = ["CMAKE", "INCLUDE", "LeafInfo", "SizeInfo", "Step", "load", "read_manifest"]

#: The directory of the headers for C and C++.
INCLUDE = Path(__file__).parent / "include"
#: The directory of the CMake package ``tvmfun``.
CMAKE = Path(__file__).parent / "cmake"

__getattr__ = _missing(__name__)
_publish(globals())
