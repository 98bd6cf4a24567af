"""The compilers of CUDA: NVRTC, a library in wheels and toolkits, and nvcc; how they are found, and errors if not.

Both make machine code (cubin), never PTX, which an older driver of the same major version could refuse. Floating-point
options are the compilers' defaults: exact division and square root, subnormal numbers kept, and products fused with
sums, as on CPUs. ``{"libs": ["fast-math"]}`` in the target asks for approximations.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from tvm.target import Target

from tvmfun.errors import TargetError
from tvmfun.runtime.cuda_module import Usage

_INSTALL = 'pip install "tvmfun[cuda]"'


class Options(NamedTuple):
    """Options of a compilation.

    Args:
        arch: the architecture with its suffix, such as ``"sm_90a"``.
        fast_math: whether approximations are allowed: of division, square root, exp and others; subnormals become 0.
    """

    arch: str
    fast_math: bool = False


class Image(NamedTuple):
    """Machine code of one kernel, and its resources."""

    content: bytes
    usage: Usage


class Compiler(Protocol):
    """A compiler of CUDA."""

    @property
    def version(self) -> str:
        """Its name and version, such as ``"nvcc 13.0.88"``."""
        ...

    @property
    def is_slow_to_start(self) -> bool:
        """Whether several kernels should share a source, because each source costs about half a second."""
        ...

    def compile(self, source: str, kernels: Sequence[str], options: Options) -> list[Image]:
        """Returns the machine code of each kernel of a source.

        Raises:
            TargetError: if the source or the architecture is refused, or headers are missing.
        """
        ...


def options_of(target: Target) -> Options:
    """The options for a target.

    Raises:
        TargetError: if the target names no architecture.
    """
    arch = str(target.attrs.get("arch", ""))
    if not arch:
        raise TargetError("compile", "the target needs an architecture", hint='{"kind": "cuda", "arch": "sm_90a"}')
    return Options(arch, "fast-math" in map(str, target.attrs.get("libs", ())))


def find_compiler() -> Compiler:
    """Returns NVRTC, or nvcc where there is no NVRTC; ``TVMFUN_CUDA_COMPILER`` (``nvrtc`` or ``nvcc``) chooses.

    Raises:
        TargetError: if there is none, or NVRTC is there and cannot be loaded.
    """
    choice = os.environ.get("TVMFUN_CUDA_COMPILER", "")
    if choice not in ("", "nvrtc", "nvcc"):
        raise TargetError("TVMFUN_CUDA_COMPILER", "it must be 'nvrtc' or 'nvcc'", got=repr(choice))
    library = next(_libraries(), None) if choice != "nvcc" else None
    if library:
        return _nvrtc(library)
    nvcc = next(_nvccs(), None) if choice != "nvrtc" else None
    if nvcc:
        return _nvcc(nvcc)
    names = {"": "neither NVRTC nor nvcc", "nvrtc": "no libnvrtc.so", "nvcc": "no nvcc"}[choice]
    where = "on PATH, in CUDA_HOME, CUDA_PATH, /usr/local/cuda and the installed wheels"
    raise TargetError(
        "compile", "machine code for GPUs needs a compiler of CUDA", got=f"{names} {where}", hint=_INSTALL
    )


def why_none() -> TargetError | None:
    """The error that says why there is no compiler; None if there is one."""
    try:
        find_compiler()
    except TargetError as error:
        return error
    return None


# -- where things are ----------------------------------------------------------------------------------------------


def _toolkits() -> Iterator[Path]:
    """The directories of CUDA toolkits."""
    names = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    yield from (path for path in map(Path, filter(None, names)) if path.is_dir())


def _wheels() -> Iterator[Path]:
    """The directories of NVIDIA's wheels, which look like toolkits."""
    for folder in sys.path:
        yield from sorted(Path(folder, "nvidia").glob("cu[0-9]*"), reverse=True)


def _libraries() -> Iterator[Path]:
    for root in (*_wheels(), *_toolkits()):
        for folder in ("lib", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            yield from sorted(Path(root, folder).glob("libnvrtc.so*"), reverse=True)


def _nvccs() -> Iterator[Path]:
    on_path = shutil.which("nvcc")
    yield from [Path(on_path)] if on_path else []
    yield from (path for root in _toolkits() if os.access(path := root / "bin" / "nvcc", os.X_OK))


def include_directories() -> list[Path]:
    """The directories of the headers that kernels include: those of CUDA's runtime, and of its C++ library.

    Raises:
        TargetError: if one of them is missing; the message names the wheel that has it.
    """
    found = []
    for header, wheel in (
        ("cuda_fp16.h", "nvidia-cuda-runtime"),
        ("crt/mma.h", "nvidia-cuda-crt"),
        ("cuda/std/cstdint", "nvidia-cuda-cccl"),
        ("nv/target", "nvidia-cuda-cccl"),
    ):
        roots = (root / folder for root in (*_wheels(), *_toolkits()) for folder in _INCLUDES)
        directory = next((path for path in roots if (path / header).is_file()), None)
        if directory is None:
            what = f"the header {header} of CUDA, which kernels include, is missing"
            raise TargetError("compile", what, got=f"no package {wheel}", hint=_INSTALL)
        found.append(directory)
    return list(dict.fromkeys(found))


_INCLUDES = (
    "include",
    "include/cccl",
    "targets/x86_64-linux/include",
    "targets/x86_64-linux/include/cccl",
    "targets/sbsa-linux/include",
    "targets/sbsa-linux/include/cccl",
)


# -- errors --------------------------------------------------------------------------------------------------------


def _number(arch: str) -> int:
    return int("".join(filter(str.isdigit, arch)))


def _check_arch(arch: str, known: Sequence[int], version: str) -> None:
    """Checks that a compiler knows an architecture.

    Raises:
        TargetError: if it is too old for the compiler, or newer than it.
    """
    if _number(arch) in known:
        return
    oldest, newest = min(known), max(known)
    what = "is too old for" if _number(arch) < oldest else "is unknown to"
    hint = f"sm_{oldest} to sm_{newest}, or another version of CUDA"
    raise TargetError("compile", f"the architecture {what} {version}", got=arch, hint=hint)


def _refused(log: str, version: str, arch: str = "") -> TargetError:
    """The error for a source that does not compile: an unknown architecture, or a bug of tvmfun."""
    if re.search(r"nsupported gpu arch|nv_arch|invalid value for --gpu-arch|not defined for option 'gpu-name'", log):
        return TargetError("compile", f"the architecture is unknown to {version}", got=arch, hint="sm_80 or sm_90a")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = next(
        (line for line in lines if re.search(r"\b(error|fatal|not found)\b", line)), lines[-1] if lines else ""
    )
    return TargetError("compile", f"{version} refuses a kernel", got=first, hint="reporting this as a bug of tvmfun")


def _usages(log: str, kernels: Sequence[str], version: str) -> list[Usage]:
    """The resources of kernels from the log of the assembler."""
    known = {}
    for part in log.split("Compiling entry function '")[1:]:
        numbers = {
            name: sum(map(int, re.findall(pattern, part.split("Compiling entry")[0])))
            for name, pattern in _NUMBERS.items()
        }
        known[part.split("'")[0]] = Usage(**numbers)
    if missing := [kernel for kernel in kernels if kernel not in known]:
        raise _refused(log or f"no code for {missing[0]}", version)
    return [known[kernel] for kernel in kernels]


_NUMBERS = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spills": r"(\d+) bytes spill (?:stores|loads)",
    "shared": r"(\d+) bytes smem",
}


# -- NVRTC ---------------------------------------------------------------------------------------------------------


@cache
def _nvrtc(library: Path) -> Nvrtc:
    try:
        # NVRTC opens its builtins by name, which outside of the system's folders only works if they are already loaded.
        for builtins in library.resolve().parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins))
        return Nvrtc(ctypes.CDLL(str(library)))
    except OSError as error:
        raise TargetError("compile", "NVRTC cannot be loaded", got=str(error), hint=_INSTALL) from None


@dataclass(frozen=True)
class Nvrtc:
    """NVIDIA's compiler as a library."""

    library: ctypes.CDLL
    is_slow_to_start = False

    @cached_property
    def version(self) -> str:
        """Its name and version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"nvrtc {major.value}.{minor.value}"

    @cached_property
    def _archs(self) -> list[int]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        return list(archs)

    def compile(self, source: str, kernels: Sequence[str], options: Options) -> list[Image]:
        """Returns the machine code of the only kernel of a source."""
        content, log = self._compile(source, options)
        return [Image(content, usage) for usage in _usages(log, kernels, self.version)]

    def _compile(self, source: str, options: Options) -> tuple[bytes, str]:
        """The machine code, and the report of the assembler."""
        _check_arch(options.arch, self._archs, self.version)
        flags = [f"--gpu-architecture={options.arch}", "--std=c++17", "-w", "-default-device", "--device-int128"]
        # NVRTC has no math.h, and no builtin function for it.
        flags += ["-DINFINITY=__builtin_bit_cast(float,0x7f800000)"]
        flags += [f"-I{path}" for path in include_directories()] + ["--ptxas-options=-v"]
        flags += ["--use_fast_math"] if options.fast_math else []
        encoded = [flag.encode() for flag in flags]
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        try:
            arguments = (ctypes.c_char_p * len(encoded))(*encoded)
            failed = self.library.nvrtcCompileProgram(program, len(encoded), arguments)
            log = self._text(program, "nvrtcGetProgramLog").decode(errors="replace")
            if failed:
                raise _refused(log or f"error {failed}", self.version, options.arch)
            return self._text(program, "nvrtcGetCUBIN"), log
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, name: str) -> bytes:
        """The bytes that a pair of functions returns: the first their number, the second the bytes."""
        size = ctypes.c_size_t()
        self._call(f"{name}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(name, program, text)
        return text.raw if name == "nvrtcGetCUBIN" else text.raw.rstrip(b"\0")

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.library, name)(*arguments):
            raise TargetError("compile", f"NVRTC's function {name} failed", got=f"error {code}", hint=_INSTALL)


# -- nvcc ----------------------------------------------------------------------------------------------------------


@cache
def _nvcc(path: Path) -> Nvcc:
    return Nvcc(path)


@dataclass(frozen=True)
class Nvcc:
    """NVIDIA's compiler as a program.

    It makes PTX of many kernels, which are assembled one by one: the assembler starts in milliseconds.
    """

    path: Path
    is_slow_to_start = True

    @cached_property
    def version(self) -> str:
        """Its name and version."""
        found = re.search(r"V(\d+\.\d+\.\d+)", self._run([self.path, "--version"]))
        return f"nvcc {found.group(1)}" if found else "nvcc"

    @cached_property
    def _archs(self) -> list[int]:
        return [_number(name) for name in self._run([self.path, "--list-gpu-arch"]).split()]

    @cached_property
    def _ptxas(self) -> Path:
        """The assembler, next to the real nvcc, which may be run by a script elsewhere."""
        listing = self._run([self.path, "--dryrun", "-cubin", "-x", "cu", os.devnull], errors=True)
        folder = re.search(r"^#\$ _HERE_=(.*)$", listing, re.MULTILINE)
        return Path(folder.group(1) if folder else self.path.parent, "ptxas")

    def compile(self, source: str, kernels: Sequence[str], options: Options) -> list[Image]:
        """Returns the machine code of each kernel of a source."""
        with TemporaryDirectory() as folder:
            parts = entries(self._compile(Path(folder), source, options, "ptx").read_text())
            return [self._assembled(Path(folder), kernel, parts.get(kernel, ""), options) for kernel in kernels]

    def _compile(self, folder: Path, source: str, options: Options, kind: str) -> Path:
        """Compiles a source to a file of a kind, ``"ptx"`` or ``"cubin"``."""
        _check_arch(options.arch, self._archs, self.version)
        text, result = folder / "kernels.cu", folder / f"kernels.{kind}"
        text.write_text(source)
        flags = [f"-{kind}", f"-arch={options.arch}", "-std=c++17", "-w"]
        flags += ["--use_fast_math"] if options.fast_math else []
        self._run([self.path, *flags, "-o", result, text], errors=True, arch=options.arch)
        return result

    def _assembled(self, folder: Path, kernel: str, ptx: str, options: Options) -> Image:
        source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
        source.write_text(ptx)
        log = self._run([self._ptxas, "-v", f"-arch={options.arch}", "-o", cubin, source], errors=True)
        (usage,) = _usages(log, [kernel], self.version)
        return Image(cubin.read_bytes(), usage)

    def _run(self, command: Sequence[object], errors: bool = False, arch: str = "") -> str:
        """Runs a program and returns its output or its error output."""
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise TargetError("compile", f"{self.path} cannot be run", got=str(error), hint=_INSTALL) from None
        if done.returncode:
            name = "ptxas" if command[0] != self.path else self.version if arch else "nvcc"
            raise _refused(done.stderr or done.stdout, name, arch)
        return done.stderr if errors else done.stdout


def entries(ptx: str) -> dict[str, str]:
    """Splits PTX into one text per kernel, by name; each has all that does not belong to another kernel."""
    parts = re.split(r"(?m)^(?=(?:\.visible )?\.entry )", ptx)
    common, kernels = parts[0], {}
    for part in parts[1:]:
        end = _end_of_body(part)
        kernels[re.search(r"\.entry (\w+)", part).group(1)] = part[:end]
        common += part[end:]
    return {name: common + text for name, text in kernels.items()}


def _end_of_body(part: str) -> int:
    """The position after the brace that closes the first one, skipping the braces of inline assembly."""
    depth = 0
    for brace in re.finditer(r"[{}]", part):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.end()
    return len(part)
