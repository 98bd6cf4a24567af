"""The processor that schedules are made for: vectors, registers, cores and features."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import tvm
from tvm.target.codegen import target_has_features

# Work (in scalar operations) below which waking the thread pool costs more than it saves.
SERIAL_WORK = 1 << 15

# Features that determine the width of vectors, and instructions for products of narrow numbers.
FEATURES = ("avx512bf16", "avx512vnni", "avxvnni", "avx512bw", "avx512f", "avx2", "sse2")


@cache
def _features(target: str) -> frozenset[str]:
    """The features of a target, given as text; cached, because LLVM takes long to answer."""
    return frozenset(name for name in FEATURES if target_has_features(name, tvm.target.Target(target)))


@dataclass(frozen=True)
class Machine:
    """A CPU: its vector width in bytes, the number of vector registers and cores, and its features of ``FEATURES``."""

    vector_bytes: int
    registers: int
    cores: int
    features: frozenset[str] = frozenset()

    @classmethod
    def of(cls, target: tvm.target.Target) -> Machine:
        """The machine of a target; unknown processors are assumed to have 128-bit vectors."""
        cores = int(target.attrs.get("num-cores", 0)) or os.cpu_count() or 1
        if "x86_64" in str(target.attrs.get("mtriple", "x86_64")):
            features = _features(str(target))
            for feature, width, registers in (("avx512f", 64, 32), ("avx2", 32, 16)):
                if feature in features:
                    return cls(width, registers, cores, features)
            return cls(16, 16, cores, features)
        return cls(16, 32, cores)

    def tile_columns(self, dtype: str) -> int:
        """The usual number of columns of a register tile of sums of a dtype."""
        return 2 * self.lanes(dtype)

    def lanes(self, dtype: str) -> int:
        """The number of elements of a dtype in one vector."""
        if dtype == "bfloat16":  # TVM cannot broadcast one; LLVM vectorizes the scalar loop
            return 1
        return max(1, self.vector_bytes * 8 // tvm.DataType(dtype).bits)
