"""Checkpoints: trees of arrays in files that are replaced atomically, so a crash leaves the old file or the new one.

A file is a safetensors file, which names every leaf by its key path; the ``safetensors`` package and the tools that
know the format read it. Everything that training changes is a tree (parameters, optimizer state, random keys, the
number of the step), so a training run goes on from a file with the bits it would have had.

>>> import tempfile
>>> from pathlib import Path
>>> import tvmfun.numpy as tnp
>>> from tvmfun import random
>>> folder = tempfile.TemporaryDirectory()
>>> state = {"w": tnp.ones((2, 3)), "key": random.key(42), "step": 7}
>>> save(Path(folder.name) / "state.safetensors", state)
>>> load(Path(folder.name) / "state.safetensors", like=state)["key"]
Array([ 0, 42], dtype=uint32)
>>> folder.cleanup()
"""

# ruff: noqa: F403

from tvmfun.boundary import publish as _publish
from tvmfun.checkpoints import manager, trees
from tvmfun.checkpoints.manager import *
from tvmfun.checkpoints.trees import *
from tvmfun.names import missing as _missing

__all__ = []
__all__ += manager.__all__
__all__ += trees.__all__

__getattr__ = _missing(__name__)
_publish(globals())
