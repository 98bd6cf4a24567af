"""The processor that schedules are made for: instruction sets, vectors, registers, cores and caches."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import tvm
from tvm.target import Target

from tvmfun.lower.settings import DEFAULT, ScheduleSettings, derived, measured
from tvmfun.manifest.entries import package_version

# Features that determine the width of vectors, and instructions for products of narrow numbers.
FEATURES = (
    *("amx-bf16", "amx-fp16", "amx-int8"),
    *("avx512bf16", "avx512vnni", "avxvnni", "avx512bw", "avx512f", "avx2", "sse2"),
)

# LLVM's features by the kernel's names for them. The kernel lists those that the processor reports (CPUID) and whose
# registers the system saves (XCR0).
_FLAGS = {
    "pni": "sse3",
    "ssse3": "ssse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "popcnt": "popcnt",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "abm": "lzcnt",
    "movbe": "movbe",
    "avx2": "avx2",
    "avx_vnni": "avxvnni",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "amx_fp16": "amx-fp16",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    # AMD's own; LLVM inserts bits of vectors by SSE4a.
    "sse4a": "sse4a",
    "xop": "xop",
    "fma4": "fma4",
    "tbm": "tbm",
    # 64-bit Arm
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
    "bf16": "bf16",
    "i8mm": "i8mm",
}
# Features that Linux has a name for but does not list; LLVM asks the processor for them (CPUID and XCR0).
_UNLISTED = ("amx_fp16",)
# Features that schedules use and that LLVM's name of a processor may lack.
_USED = ("amx-tile", "amx-bf16", "amx-fp16", "amx-int8", "avx512bf16", "avx512vnni", "avxvnni")

_SYSTEM = Path("/sys/devices/system/cpu")
_SIZES = {"K": 10, "M": 20, "G": 30}
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA), by their numbers on x86-64.
_REQUEST_OF_TILES = (158, 0x1023, 18)
# The numbers in glibc's ``sysconf`` of the sizes of the data caches.
_SYSCONF = (188, 191, 194)


class Cache(NamedTuple):
    """A data cache: its level, its size in bytes, and the number of CPUs that share it."""

    level: int
    nbytes: int
    cpus: int = 1


# Bytes of the L1 and L2 cache of a core by LLVM's names of processors, for targets that are another machine.
_CACHES = {
    "znver1 znver2 znver3": (32 << 10, 512 << 10),
    "znver4": (32 << 10, 1 << 20),
    "znver5": (48 << 10, 1 << 20),
    "haswell broadwell skylake": (32 << 10, 256 << 10),
    "skylake-avx512 cascadelake cooperlake": (32 << 10, 1 << 20),
    "icelake-client rocketlake": (48 << 10, 512 << 10),
    "icelake-server tigerlake alderlake": (48 << 10, 1280 << 10),
    "raptorlake sapphirerapids emeraldrapids graniterapids graniterapids-d": (48 << 10, 2 << 20),
    "neoverse-n1 neoverse-v1": (64 << 10, 1 << 20),
    "neoverse-n2 neoverse-v2": (64 << 10, 1 << 20),
    "apple-m1 apple-m2 apple-m3 apple-m4": (128 << 10, 4 << 20),
}
_CACHES_OF = {name: sizes for names, sizes in _CACHES.items() for name in names.split()}
_UNKNOWN = (32 << 10, 512 << 10)


@dataclass(frozen=True)
class Machine:
    """A CPU that kernels run on.

    Args:
        vector_bytes: the width of a vector register.
        registers: the number of vector registers.
        cores: the number of threads that kernels may use.
        features: the features of ``FEATURES`` that it has, by LLVM's names.
        caches: the data caches of a core, from the first level on.
        settings: the numbers that schedules choose by the machine.

    >>> print(Machine.of(Target({"kind": "llvm", "mcpu": "graniterapids", "num-cores": 2})))
    vectors   32 of 64 bytes
    threads   2
    features  amx-bf16 amx-fp16 amx-int8 avx2 avx512bf16 avx512bw avx512f avx512vnni avxvnni sse2
    caches    L1 48 KiB, L2 2048 KiB
    settings  panel_level 2, serial_work 32768, tasks_per_core 8, winograd_channels 32
    """

    vector_bytes: int
    registers: int
    cores: int
    features: frozenset[str] = frozenset()
    caches: tuple[Cache, ...] = (Cache(1, _UNKNOWN[0]), Cache(2, _UNKNOWN[1]))
    settings: ScheduleSettings = DEFAULT

    @classmethod
    def of(cls, target: Target) -> Machine:
        """Returns the machine of a target; unknown processors are assumed to have 128-bit vectors.

        The caches of this machine are read from the system, and its settings may have been measured. The caches of
        other machines are looked up by LLVM's name, and their settings are derived.
        """
        here = is_here(target)
        return _machine(str(target), here, measured(description()) if here else None)

    def __str__(self) -> str:
        shared = lambda cache: f" for {cache.cpus} CPUs" if cache.cpus > 1 else ""
        lines = {
            "vectors": f"{self.registers} of {self.vector_bytes} bytes",
            "threads": self.cores,
            "features": " ".join(sorted(self.features)),
            "caches": ", ".join(f"L{cache.level} {cache.nbytes >> 10} KiB{shared(cache)}" for cache in self.caches),
            "settings": self.settings,
        }
        return "\n".join(f"{name:10}{value}" for name, value in lines.items())

    def cache_bytes(self, level: int) -> int:
        """The bytes of a cache level that one CPU can use: its share, or its share of the last existing level."""
        cache = max((cache for cache in self.caches if cache.level <= level), key=lambda cache: cache.level)
        return cache.nbytes // cache.cpus

    def tasks(self, work: int) -> int:
        """The number of tasks of parallel loops with ``work`` operations: 1 if these are few, or for one core."""
        is_serial = work < self.settings.serial_work or self.cores == 1
        return 1 if is_serial else self.cores * self.settings.tasks_per_core

    def tile_columns(self, dtype: str) -> int:
        """The usual number of columns of a register tile of sums of a dtype."""
        return 2 * self.lanes(dtype)

    def has_masked_loads(self, bits: int) -> bool:
        """Whether an instruction loads some elements of so many bits of a vector."""
        return ("avx2" if bits >= 32 else "avx512bw") in self.features

    def lanes(self, dtype: str) -> int:
        """The number of elements of a dtype in one vector."""
        if dtype == "bfloat16":  # computed in float32
            dtype = "float32"
        return max(1, self.vector_bytes * 8 // tvm.DataType(dtype).bits)


def is_here(target: Target) -> bool:
    """Whether a CPU target is this machine, with any number of threads."""
    return "mtriple" not in target.attrs and str(target.attrs.get("mcpu", "")) == system_processor()


@cache
def _machine(text: str, here: bool, chosen: ScheduleSettings | None) -> Machine:
    """The machine of a target, given as text; cached, because LLVM takes long to name its features."""
    target = Target(text)
    cores = int(target.attrs.get("num-cores", 0)) or os.cpu_count() or 1
    mcpu = str(target.attrs.get("mcpu", ""))
    caches = system_caches() if here else ()
    if not caches:
        caches = tuple(Cache(level, size) for level, size in enumerate(_CACHES_OF.get(mcpu, _UNKNOWN), 1))
    width, registers, features = _vectors(target)
    found = Machine(width, registers, cores, features, caches)
    return replace(found, settings=chosen or derived(registers, found.cache_bytes(1), found.cache_bytes(2)))


def _vectors(target: Target) -> tuple[int, int, frozenset[str]]:
    """The bytes of a vector, the number of vector registers, and the features of ``FEATURES``."""
    if "x86_64" not in str(target.attrs.get("mtriple", "x86_64")):
        return 16, 32, frozenset()
    features = llvm_features(target).intersection(FEATURES)
    for feature, width, registers in (("avx512f", 64, 32), ("avx2", 32, 16)):
        if feature in features:
            return width, registers, features
    return 16, 16, features


# -- the system --------------------------------------------------------------------------------------------------------


@cache
def system_processor() -> str:
    """Returns LLVM's name of this machine's processor: the closest it knows, if a hypervisor hides the model."""
    return str(tvm.get_global_func("target.llvm_get_system_cpu")())


def llvm_features(target: Target) -> frozenset[str]:
    """Returns LLVM's features of a CPU target."""
    return frozenset(map(str, tvm.get_global_func("target.llvm_get_cpu_features")(target)))


def corrections(implied: Set[str], flags: frozenset[str]) -> list[str]:
    """Returns the differences between the features of LLVM's name of a processor and its flags, for a target.

    Args:
        implied: LLVM's features of the name.
        flags: the kernel's names of the processor's features; without any, the name is trusted.
    """
    present = {feature for flag, feature in _FLAGS.items() if flag in flags}
    return [f"-{name}" for name in lacking(implied, flags)] + [
        f"+{name}" for name in _USED if name in present - implied
    ]


def lacking(features: Set[str], flags: frozenset[str]) -> list[str]:
    """Returns the features of LLVM's that a processor with ``flags`` lacks; none if the kernel gives no flags."""
    absent = {feature for flag, feature in _FLAGS.items() if flag not in flags}
    return sorted(features & absent) if flags else []


@cache
def description() -> str:
    """Returns a description of what a measurement depends on: the processor, its caches, and versions.

    Not the number of threads, because results are the same for any.
    """
    found = re.search(r"^model name\s*:\s*(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    caches = " ".join(f"L{cache.level}:{cache.nbytes}/{cache.cpus}" for cache in system_caches())
    flags = sha256(" ".join(sorted(system_flags())).encode()).hexdigest()[:16]
    names = (found[1] if found else "", system_processor(), f"flags {flags}", caches)
    versions = f"TVM {tvm.__version__}", f"tvmfun {package_version('tvmfun')}"
    return ", ".join((*filter(None, names), *versions))


@cache
def system_flags() -> frozenset[str]:
    """Returns the kernel's names of the features that this process may use; none if it does not list them."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    flags = frozenset(match[1].split()) if match else frozenset()
    if "amx_tile" not in flags:
        return flags
    if not may_use_tiles():
        return frozenset(flag for flag in flags if not flag.startswith("amx"))
    return flags.union(flag for flag in _UNLISTED if _FLAGS[flag] in features_by_cpuid())


@cache
def features_by_cpuid() -> frozenset[str]:
    """Returns LLVM's features of this processor, as LLVM finds them."""
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return frozenset(str(name) for name, value in found.items() if value)


@cache
def may_use_tiles() -> bool:
    """Asks Linux for the tiles of AMX, which it only saves for processes that ask; returns whether it agrees."""
    try:
        return ctypes.CDLL(None).syscall(*_REQUEST_OF_TILES) == 0
    except (OSError, AttributeError, TypeError):
        return False


@cache
def system_caches() -> tuple[Cache, ...]:
    """Returns the data caches of a CPU of this process, from the first level on, or none if they are not known."""
    return tuple(_caches_of_kernel()) or tuple(_caches_of_libc())


def _caches_of_kernel() -> Iterator[Cache]:
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    for folder in sorted((_SYSTEM / f"cpu{first}" / "cache").glob("index*")):
        level, kind, size, cpus = (_read(folder / name) for name in ("level", "type", "size", "shared_cpu_list"))
        if kind in ("Data", "Unified") and level.isdecimal() and re.fullmatch(r"\d+[KMG]", size):
            yield Cache(int(level), int(size[:-1]) << _SIZES[size[-1]], cpu_list_size(cpus))


def _caches_of_libc() -> Iterator[Cache]:
    for level, number in enumerate(_SYSCONF, 1):
        try:
            size = os.sysconf(number)
        except (OSError, ValueError):
            return
        if size <= 0:
            return
        yield Cache(level, size)


def cpu_list_size(text: str) -> int:
    """Returns the number of CPUs in a list of the kernel; at least one.

    >>> cpu_list_size("0-3,8")
    5
    """
    ranges = [part.split("-") for part in text.split(",") if part]
    return max(1, sum(int(part[-1]) - int(part[0]) + 1 for part in ranges))


def _read(path: Path) -> str:
    """The text of a file of the system; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
