"""Properties of a target that fusion depends on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tvm.target import Target

from tvmfun.lower import target as targets

# Conversions that products apply while they read operands, by the dtype that they read.
_OF_INTEGERS = ("int32", "float32")
WIDENINGS = {
    "bfloat16": ("float32",),
    "float16": ("float32",),
    **dict.fromkeys(("int8", "uint8", "int16"), _OF_INTEGERS),
}


@dataclass(frozen=True)
class FusionOptions:
    """Properties of a target that fusion depends on.

    Args:
        widens: the dtypes of operands that products convert while they read them.
        is_gpu: whether independent kernels run at once, so that sums of several arrays should not wait for each other,
            and random bits can be computed where they are used. Functions such as exp cost less than their results'
            way through memory.
        has_epilogues: whether products store several results that are computed from their sums.
    """

    widens: Collection[str]
    is_gpu: bool
    has_epilogues: bool = False


PLAIN = FusionOptions((), is_gpu=False)
CPU = FusionOptions(tuple(WIDENINGS), is_gpu=False)
GPU = FusionOptions(("bfloat16", "float16"), is_gpu=True, has_epilogues=True)


def fusion_options(target: Target) -> FusionOptions:
    """The options for a target. Our schedules of products on GPUs begin with sm_80."""
    if targets.is_cpu(target):
        return CPU
    return replace(GPU, has_epilogues=targets.number(str(target.attrs.get("arch", ""))) >= 80)
