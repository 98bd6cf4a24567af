"""Instructions of machine code for GPUs, as NVIDIA's disassembler prints them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest


def _nvdisasm() -> str | None:
    """The disassembler on PATH, or of the wheel ``nvidia-cuda-nvdisasm``."""
    wheels = find_spec("nvidia")
    folders = [Path(folder) / "cu13" / "bin" for folder in (wheels.submodule_search_locations or ())] if wheels else []
    return shutil.which("nvdisasm") or next(filter(None, (shutil.which("nvdisasm", path=f) for f in folders)), None)


NVDISASM = _nvdisasm()
needs_nvdisasm = pytest.mark.skipif(NVDISASM is None, reason="there is no nvdisasm: pip install nvidia-cuda-nvdisasm")

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def instructions(cubin: Path) -> Counter[str]:
    """How often each instruction occurs in the kernels of a file, by its name with modifiers."""
    text = subprocess.run([str(NVDISASM), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    return Counter(_INSTRUCTION.findall(text))
