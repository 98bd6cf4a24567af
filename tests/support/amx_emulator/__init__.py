"""Emulated AMX: code with tile instructions runs on any x86-64 processor with AVX-512."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from tvmfun.lower import machine
from tvmfun.lower import target as targets
from tvmfun.lower.target import Target

GCC = shutil.which("gcc")
FLAGS = frozenset(("amx_tile", "amx_bf16", "amx_int8", "amx_fp16"))
KINDS = ("configure", "release", "load", "store", "zero", "multiply", "configured")

_folder = functools.cache(TemporaryDirectory)


def why_none() -> str:
    """Why nothing can be emulated here; empty if it can."""
    if not targets.is_x86(targets.host()) or "avx512f" not in machine.Machine.of(targets.host()).features:
        return "this processor has no AVX-512"
    return "" if GCC else "there is no gcc"


def is_needless() -> bool:
    """Whether the processor has AMX itself."""
    return "amx_tile" in machine.system_flags()


def target(cores: int = 2) -> Target:
    """This processor with AMX."""
    host = targets.host()
    features = ["+amx-tile", "+amx-bf16", "+amx-int8", "+amx-fp16"]
    own = [str(feature) for feature in host.attrs.get("mattr", ())]
    return Target({"kind": "llvm", "mcpu": str(host.attrs["mcpu"]), "mattr": [*own, *features], "num-cores": cores})


@functools.cache
def _library() -> ctypes.CDLL:
    path = Path(_folder().name) / "libamx.so"
    source = Path(__file__).with_name("emulator.c")
    options = ["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-mfma", "-mf16c", "-fPIC", "-shared"]
    subprocess.run([str(GCC), *options, "-o", str(path), str(source), "-lm"], check=True)
    library = ctypes.CDLL(str(path))
    library.amx_count.restype = ctypes.c_int64
    return library


def counts() -> dict[str, int]:
    """The emulated instructions by kind, and in ``configured`` the threads that have not released their tiles."""
    return {kind: _library().amx_count(number) for number, kind in enumerate(KINDS)}


@contextmanager
def installed() -> Iterator[None]:
    """A processor with AMX."""
    library = _library()
    flags = machine.system_flags() | FLAGS
    assert library.amx_install() == 0
    try:
        with mock.patch.object(machine, "system_flags", lambda: flags):
            yield
    finally:
        assert library.amx_remove() == 0
