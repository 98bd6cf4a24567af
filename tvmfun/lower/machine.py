"""What the schedules need to know about the processor they compile for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import tvm
from tvm.target.codegen import target_has_features

# Work (in scalar operations) below which waking the thread pool costs more than it saves.
SERIAL_WORK = 1 << 15

# What decides on the width of vectors, and on instructions for products of narrow numbers.
FEATURES = ("avx512bf16", "avx512vnni", "avxvnni", "avx512bw", "avx512f", "avx2", "sse2")


@cache
def _features(target: str) -> frozenset[str]:
    """What a target, as text, has of `FEATURES`: LLVM is slow to say."""
    return frozenset(name for name in FEATURES if target_has_features(name, tvm.target.Target(target)))


@dataclass(frozen=True)
class Machine:
    """Vector width in bytes, number of vector registers and cores of a CPU target, and what it has of `FEATURES`."""

    vector_bytes: int
    registers: int
    cores: int
    features: frozenset[str] = frozenset()

    @classmethod
    def of(cls, target: tvm.target.Target) -> Machine:
        """Read the machine off a target's features; unknown processors count as 128-bit ones."""
        cores = int(target.attrs.get("num-cores", 0)) or os.cpu_count() or 1
        if "x86_64" in str(target.attrs.get("mtriple", "x86_64")):
            features = _features(str(target))
            for feature, width, registers in (("avx512f", 64, 32), ("avx2", 32, 16)):
                if feature in features:
                    return cls(width, registers, cores, features)
            return cls(16, 16, cores, features)
        return cls(16, 32, cores)

    def tile_columns(self, dtype: str) -> int:
        """The usual columns of a register tile of sums of `dtype`."""
        return 2 * self.lanes(dtype)

    def lanes(self, dtype: str) -> int:
        """How many elements of `dtype` to process as one vector."""
        if dtype == "bfloat16":  # TVM cannot repeat one along a vector; LLVM vectorizes the scalar loop
            return 1
        return max(1, self.vector_bytes * 8 // tvm.DataType(dtype).bits)
