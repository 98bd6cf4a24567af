"""The C compiler that links object files to a library, for this machine or another."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tvmfun.errors import ExportError

_HERE = Path(__file__).parent
#: The directory of the headers, for ``-I``.
INCLUDE = _HERE / "include"
#: The files of every library for CPUs, in ``library``.
FOR_CPUS = ("step.c", "sizes.c", "buffers.c", "kernels.c", "pool.c", "processor.c")
#: The files of every library for NVIDIA's GPUs.
FOR_CUDA = ("cuda_step.c", "buffers.c", "cuda_launches.c", "cuda_driver.c")
_OPTIONS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE")
# Compiled object files by the compiler's command and the name of the source.
_COMPILED: dict[tuple[str, ...], bytes] = {}
# The variables of kernels, which the library's own definitions replace.
_VARIABLES = "__TVM*", "__tvm_ffi__library_ctx"
_EXPORTED = "{ global: tvmfun_get_api; tvmfun_get_cuda_api; local: *; };"


class Toolchain:
    """A C compiler, with its linker.

    Args:
        architecture: the architecture to compile for, the first part of LLVM's triple.
        is_foreign: whether this machine has another architecture.
        compiler: the command, or None to look for one.

    Raises:
        ExportError: if there is none.
    """

    def __init__(self, architecture: str, is_foreign: bool, compiler: str | Sequence[str] | None = None) -> None:
        self._objcopy = f"{architecture}-linux-gnu-objcopy" if is_foreign else "objcopy"
        if compiler is None:
            self._command = _found(architecture) if is_foreign else _own()
        else:
            self._command = shlex.split(compiler) if isinstance(compiler, str) else list(compiler)
            if not self._command or not shutil.which(self._command[0]):
                raise ExportError("export", "there is no such C compiler", got=repr(compiler), hint="compiler='gcc'")

    def compile(self, source: Path) -> Path:
        """Compiles a C file beside it."""
        return self._compile(source, source.with_suffix(".o"))

    def runtime(self, folder: Path, sources: Sequence[str]) -> list[Path]:
        """The object files of sources in ``library``; a process compiles them once."""
        objects = []
        for name in sources:
            compiled = folder / f"{Path(name).stem}.o"
            key = (*self._command, name)
            if key not in _COMPILED:
                _COMPILED[key] = self._compile(_HERE / "library" / name, compiled).read_bytes()
            compiled.write_bytes(_COMPILED[key])
            objects.append(compiled)
        return objects

    def join(self, objects: Sequence[Path], joined: Path, old: str, new: str) -> Path:
        """Joins object files to one, whose only exported function is ``old`` under the name ``new``."""
        done = "made of several targets"
        self._run(["-r", "-nostdlib", "-o", str(joined), *map(str, objects)], done)
        kept = [option for name in (*_VARIABLES, new) for option in ("--keep-global-symbol", name)]
        _run([self._objcopy, "--wildcard", "--redefine-sym", f"{old}={new}", *kept, str(joined)], done)
        return joined

    def link(self, objects: Sequence[Path], library: Path) -> None:
        """Makes a shared library that exports nothing but its tables of functions."""
        script = library.with_suffix(".map")
        script.write_text(_EXPORTED)
        options = ["-shared", "-static-libgcc", "-Wl,--version-script", f"-Wl,{script}", "-Wl,-s", "-Wl,-z,defs"]
        self._run([*options, "-o", str(library), *map(str, objects), "-lm", "-lpthread", "-ldl"], "linked")

    def _compile(self, source: Path, compiled: Path) -> Path:
        include = [f"-I{INCLUDE}", f"-I{_HERE / 'library'}"]
        self._run([*_OPTIONS, *include, "-c", str(source), "-o", str(compiled)], "compiled")
        return compiled

    def _run(self, arguments: list[str], done: str) -> None:
        _run([*self._command, *arguments], done)


def _run(command: list[str], done: str) -> None:
    """Runs a command of the toolchain.

    Raises:
        ExportError: with the last lines it printed, if it fails.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ExportError("export", f"the library cannot be {done}", got=f"{error} from {command[0]}") from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()[-5:]
        raise ExportError("export", f"the library cannot be {done}", got=" | ".join(lines) or command[0])


def _own() -> list[str]:
    command = shlex.split(os.environ.get("CC", ""))
    if command and shutil.which(command[0]):
        return command
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    what = "a C compiler is needed to link the library, and there is none on the path"
    raise ExportError("export", what, hint="installing gcc or clang, or compiler=['python', '-m', 'ziglang', 'cc']")


def _found(architecture: str) -> list[str]:
    """A cross compiler: from the system's packages, or from the wheel ``ziglang``."""
    name = f"{architecture}-linux-gnu-gcc"
    if shutil.which(name):
        return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu"]
    what = f"a C compiler for {architecture} is needed to link the library, and there is none on the path"
    raise ExportError("export", what, hint=f"installing {name}, the wheel ziglang, or compiler=[...]")
