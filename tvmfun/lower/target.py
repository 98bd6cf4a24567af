"""Targets: what to compile for, and what this machine is."""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.target import Target

from tvmfun.errors import TargetError
from tvmfun.runtime import cpu_count


@cache
def host() -> Target:
    """This machine's CPU: LLVM's name for it, which fixes vector width and instructions, and its cores."""
    mcpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return Target({"kind": "llvm", "mcpu": str(mcpu), "num-cores": cpu_count()})


def resolve(target: Any = None) -> Target:
    """Returns the TVM target for ``None`` (this CPU), a kind's name, a dictionary or a ``tvm.target.Target``.

    Raises:
        TargetError: if TVM cannot make a target of it.

    >>> resolve({"kind": "cuda", "arch": "sm_90"}).kind.name
    'cuda'
    """
    if target is None or target in ("llvm", "cpu"):
        return host()
    if isinstance(target, Target):
        resolved = target
    else:
        try:
            resolved = Target(target)
        except Exception as error:
            raise TargetError(
                "target",
                "TVM cannot make a target of it",
                got=f"{target!r} ({str(error).strip().splitlines()[-1]})",
                hint='{"kind": "cuda", "arch": "sm_90"}, or None for this CPU',
            ) from error
    return resolved if resolved.kind.name == "llvm" else Target(resolved, host())


def is_cpu(target: Target) -> bool:
    """Whether the target runs on the host."""
    return target.kind.name == "llvm"
