"""Targets: resolution of users' arguments, and the target of this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import tvm
from tvm.target import Target

from tvmfun.core.op import Platform
from tvmfun.errors import TargetError
from tvmfun.lower import machine
from tvmfun.runtime import devices
from tvmfun.threads import cpu_count

_KINDS = ("llvm", "cuda")
# The attributes that a target from a file may have; others could be any option of LLVM.
_SAVED = frozenset(
    (
        *("kind", "tag", "keys", "host", "libs", "num-cores", "mcpu", "mtriple", "mattr", "mabi", "mfloat-abi"),
        *("opt-level", "vector-width", "arch", "max_num_threads", "max_threads_per_block", "thread_warp_size"),
        *("max_shared_memory_per_block", "registers_per_block", "l2_cache_size_bytes"),
    )
)


@cache
def host() -> Target:
    """The target of this machine: LLVM's name of its CPU, the instructions it has, and its cores."""
    options = {"kind": "llvm", "mcpu": machine.system_processor(), "num-cores": cpu_count()}
    features = machine.corrections(machine.llvm_features(Target(options)), machine.system_flags())
    return Target({**options, "mattr": features} if features else options)


def check_runs_here(where: str, target: Target) -> None:
    """Checks that this machine's processor has the instructions of a CPU target.

    Raises:
        TargetError: if it lacks some, or is of another architecture.
    """
    if target == host():
        return
    if architecture(target) != architecture(host()):
        what = "it is compiled for another architecture"
        raise TargetError(where, what, got=architecture(target), hint="target=None")
    if lacking := machine.lacking(machine.llvm_features(target), machine.system_flags()):
        what = "it is compiled for instructions that this processor lacks"
        raise TargetError(where, what, got=" ".join(lacking), hint="target=None")


def resolve(target: Any = None) -> Target:
    """Returns the TVM target for ``None`` (this CPU), a kind's name, a dictionary or a ``tvm.target.Target``.

    Raises:
        TargetError: if TVM cannot make a target of it.

    >>> resolve({"kind": "cuda", "arch": "sm_90"}).kind.name
    'cuda'
    """
    if target is None or target in ("llvm", "cpu"):
        return host()
    hint = '{"kind": "cuda", "arch": "sm_90"}, or None for this CPU'
    if isinstance(target, Target):
        resolved = target
    elif target in ("cuda", {"kind": "cuda"}) and not devices.exists(tvm.cuda(0)):
        raise TargetError("target", "a GPU that is not here needs its architecture", got=repr(target), hint=hint)
    else:
        try:
            resolved = Target(target)
        except Exception as error:
            got = f"{target!r} ({str(error).strip().splitlines()[-1]})"
            raise TargetError("target", "TVM cannot make a target of it", got=got, hint=hint) from error
    if resolved.kind.name not in _KINDS:
        raise TargetError("target", f"the kind must be {' or '.join(_KINDS)}", got=resolved.kind.name, hint=hint)
    arch = str(resolved.attrs.get("arch", ""))
    if arch and not re.fullmatch(r"sm_[5-9]\d[af]?|sm_1[0-2]\d[af]?", arch):
        raise TargetError("target", "there is no such GPU architecture", got=repr(arch), hint=hint)
    mcpu = str(resolved.attrs.get("mcpu", ""))
    if mcpu and "mtriple" not in resolved.attrs and mcpu not in _processors():
        raise TargetError("target", "LLVM knows no such processor", got=repr(mcpu), hint=f"{host().attrs['mcpu']!r}")
    return resolved if resolved.kind.name == "llvm" else Target(resolved, host())


def from_json(described: Mapping[str, Any]) -> Target:
    """The target of a file, as ``str`` wrote it.

    Raises:
        TargetError: if it has attributes that CPUs and GPUs do not have, or TVM cannot make a target of it.
    """
    host = described.get("host", {})
    unknown = [name for part in (described, host) for name in part if name not in _SAVED]
    if unknown or "host" in host:
        what = "a saved target must not have this attribute"
        raise TargetError("target", what, got=", ".join(unknown) or "a host of a host")
    resolve(dict(described))
    return Target(dict(described))


@cache
def _processors() -> frozenset[str]:
    """LLVM's names of the processors of this machine's architecture."""
    return frozenset(map(str, tvm.get_global_func("target.llvm_get_cpu_archlist")(Target("llvm"))))


def is_cpu(target: Target) -> bool:
    """Whether the target runs on the host."""
    return target.kind.name == "llvm"


def platform(target: Target) -> Platform:
    """The platform of a target, which chooses among the Programs of a call."""
    return "cpu" if is_cpu(target) else "cuda"


def architecture(target: Target) -> str:
    """Returns the architecture of a CPU target: ``x86_64``, ``aarch64``, or another first part of an LLVM triple."""
    name = str(target.attrs.get("mtriple") or _host_triple()).partition("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def is_x86(target: Target) -> bool:
    """Whether a CPU target is a 64-bit x86 processor."""
    return architecture(target) == "x86_64"


def number(arch: str) -> int:
    """The number of a GPU architecture: 90 of ``sm_90a``."""
    return int("".join(c for c in arch.removeprefix("sm_") if c.isdecimal()) or 0)


@cache
def _host_triple() -> str:
    return str(tvm.get_global_func("target.llvm_get_system_triple")())
