"""Features of processors as an exported library finds them: by CPUID on x86, by the auxiliary vector on Arm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Feature(NamedTuple):
    """A bit of CPUID, or of the auxiliary vector.

    Args:
        leaf: the leaf of CPUID, or the entry of the auxiliary vector.
        subleaf: the subleaf of CPUID.
        word: the register with the bit: 0 to 3 are EAX, EBX, ECX and EDX.
        bit: the number of the bit.
        state: the bits of XCR0 that are set if the system saves the registers.
    """

    leaf: int
    subleaf: int = 0
    word: int = 0
    bit: int = 0
    state: int = 0


# The registers of CPUID's answer.
_EAX, _EBX, _ECX, _EDX = range(4)
# The leaf of AMD's extended features.
_EXTENDED = 0x80000001
# The bits of XCR0 for the state that the system must save: AVX.
_YMM = 0x6
# AVX-512.
_ZMM = 0xE6
# AMX.
_TILES = 0x60000

# By LLVM's names; from Intel's and AMD's manuals of their instruction sets.
_X86 = {
    "sse3": Feature(1, 0, _ECX, 0),
    "pclmul": Feature(1, 0, _ECX, 1),
    "ssse3": Feature(1, 0, _ECX, 9),
    "fma": Feature(1, 0, _ECX, 12, _YMM),
    "cx16": Feature(1, 0, _ECX, 13),
    "sse4.1": Feature(1, 0, _ECX, 19),
    "sse4.2": Feature(1, 0, _ECX, 20),
    "movbe": Feature(1, 0, _ECX, 22),
    "popcnt": Feature(1, 0, _ECX, 23),
    "aes": Feature(1, 0, _ECX, 25),
    "avx": Feature(1, 0, _ECX, 28, _YMM),
    "f16c": Feature(1, 0, _ECX, 29, _YMM),
    "sahf": Feature(_EXTENDED, 0, _ECX, 0),
    "lzcnt": Feature(_EXTENDED, 0, _ECX, 5),
    "sse4a": Feature(_EXTENDED, 0, _ECX, 6),
    "xop": Feature(_EXTENDED, 0, _ECX, 11, _YMM),
    "fma4": Feature(_EXTENDED, 0, _ECX, 16, _YMM),
    "tbm": Feature(_EXTENDED, 0, _ECX, 21),
    "bmi": Feature(7, 0, _EBX, 3),
    "avx2": Feature(7, 0, _EBX, 5, _YMM),
    "bmi2": Feature(7, 0, _EBX, 8),
    "avx512f": Feature(7, 0, _EBX, 16, _ZMM),
    "avx512dq": Feature(7, 0, _EBX, 17, _ZMM),
    "adx": Feature(7, 0, _EBX, 19),
    "avx512ifma": Feature(7, 0, _EBX, 21, _ZMM),
    "avx512cd": Feature(7, 0, _EBX, 28, _ZMM),
    "sha": Feature(7, 0, _EBX, 29),
    "avx512bw": Feature(7, 0, _EBX, 30, _ZMM),
    "avx512vl": Feature(7, 0, _EBX, 31, _ZMM),
    "avx512vbmi": Feature(7, 0, _ECX, 1, _ZMM),
    "avx512vbmi2": Feature(7, 0, _ECX, 6, _ZMM),
    "gfni": Feature(7, 0, _ECX, 8),
    "vaes": Feature(7, 0, _ECX, 9, _YMM),
    "vpclmulqdq": Feature(7, 0, _ECX, 10, _YMM),
    "avx512vnni": Feature(7, 0, _ECX, 11, _ZMM),
    "avx512bitalg": Feature(7, 0, _ECX, 12, _ZMM),
    "avx512vpopcntdq": Feature(7, 0, _ECX, 14, _ZMM),
    "avx512vp2intersect": Feature(7, 0, _EDX, 8, _ZMM),
    "amx-bf16": Feature(7, 0, _EDX, 22, _TILES),
    "avx512fp16": Feature(7, 0, _EDX, 23, _ZMM),
    "amx-tile": Feature(7, 0, _EDX, 24, _TILES),
    "amx-int8": Feature(7, 0, _EDX, 25, _TILES),
    "avxvnni": Feature(7, 1, _EAX, 4, _YMM),
    "avx512bf16": Feature(7, 1, _EAX, 5, _ZMM),
    "amx-fp16": Feature(7, 1, _EAX, 21, _TILES),
    "avxifma": Feature(7, 1, _EAX, 23, _YMM),
    "avxvnniint8": Feature(7, 1, _EDX, 4, _YMM),
    "avxneconvert": Feature(7, 1, _EDX, 5, _YMM),
}

# The types of the words of features in the auxiliary vector, for ``getauxval``.
_HWCAP = 16
_HWCAP2 = 26

# By LLVM's names; from Linux's asm/hwcap.h.
_ARM = {
    "neon": Feature(_HWCAP, bit=1),
    "aes": Feature(_HWCAP, bit=3),
    "sha2": Feature(_HWCAP, bit=6),
    "crc": Feature(_HWCAP, bit=7),
    "lse": Feature(_HWCAP, bit=8),
    "fullfp16": Feature(_HWCAP, bit=10),
    "rdm": Feature(_HWCAP, bit=12),
    "dotprod": Feature(_HWCAP, bit=20),
    "sve": Feature(_HWCAP, bit=22),
    "sve2": Feature(_HWCAP2, bit=1),
    "i8mm": Feature(_HWCAP2, bit=13),
    "bf16": Feature(_HWCAP2, bit=14),
}

#: The features that an exported library can ask its processor for, by architecture and LLVM's name.
FEATURES = {"x86_64": _X86, "aarch64": _ARM}


def required(architecture: str, features: Iterable[str]) -> dict[str, Feature]:
    """Selects the features of a target that a library asks its processor for, in the order of the table.

    >>> required("x86_64", {"avx2", "cmov"})
    {'avx2': Feature(leaf=7, subleaf=0, word=1, bit=5, state=6)}
    """
    names = set(features)
    return {name: feature for name, feature in FEATURES[architecture].items() if name in names}
