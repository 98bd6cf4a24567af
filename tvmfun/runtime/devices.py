"""The devices of this machine, and the one process that uses them."""

from __future__ import annotations

from typing import Any

import tvm

from tvmfun.errors import TargetError
from tvmfun.runtime.cuda.driver import device_count as device_count_of_driver

_GPU = tvm.cuda(0).dlpack_device_type()


class Device(tvm.runtime.Device):
    """A device of this machine: one of TVM's, with JAX's names.

    >>> Device("cpu", 0).platform, Device("cuda", 1).platform, Device("cuda", 1).id
    ('cpu', 'gpu', 1)
    """

    process_index = 0

    @property
    def platform(self) -> str:
        """The kind of device: ``"cpu"`` or ``"gpu"``."""
        return "gpu" if self.dlpack_device_type() == _GPU else self.type

    @property
    def id(self) -> int:
        """The index among the devices of the same kind."""
        return self.index


CPU = Device("cpu", 0)


def device_of(target: Any) -> Any:
    """The first device of a target's kind."""
    return Device(target.kind.name if target.kind.name != "llvm" else "cpu", 0)


def device(name: Any = "cpu") -> Any:
    """Returns a device by name: ``"cpu"``, ``"cuda"``, ``"cuda:1"``; ``None`` is the CPU.

    Raises:
        TargetError: if this machine has no such device.

    >>> device("cpu")
    device(type='cpu', index=0)
    """
    if isinstance(name, tvm.runtime.Device):
        return public(name)
    try:
        found = tvm.device(name or "cpu")
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is not None and found.dlpack_device_type() == CPU.dlpack_device_type() and found.index:
        found = None
    if found is None or not exists(found):
        raise TargetError(
            "device", "this machine has no such device", got=repr(name), hint=" or ".join(map(repr, _names()))
        )
    return public(found)


def public(found: Any) -> Device:
    """Returns a device of TVM as one that users see."""
    return found if isinstance(found, Device) else Device(found.type, found.index)


def exists(candidate: Any) -> bool:
    """Whether the device exists and this process can use it."""
    if candidate.dlpack_device_type() == _GPU:
        return 0 <= candidate.index < device_count_of_driver()
    try:
        return bool(candidate.exist)
    except (AttributeError, RuntimeError, tvm.error.InternalError):
        return False


def devices(backend: str | None = None) -> list[Device]:
    """Returns the devices of a kind (``"cpu"``, or ``"cuda"`` or ``"gpu"``), by default of the best available kind.

    Raises:
        TargetError: if there is no such kind.

    >>> devices("cpu")
    [device(type='cpu', index=0)]
    """
    if backend not in (None, "cpu", "cuda", "gpu"):
        raise TargetError("devices", "the kind is unknown", got=repr(backend), hint='"cpu" or "cuda"')
    if backend == "cpu":
        return [CPU]
    found = [Device("cuda", i) for i in range(device_count_of_driver())]
    return found or ([CPU] if backend is None else [])


def device_count(backend: str | None = None) -> int:
    """Returns how many devices of a kind there are, or of the best kind; see :func:`devices`.

    >>> device_count("cpu")
    1
    """
    return len(devices(backend))


def default_backend() -> str:
    """Returns the best kind of device that this machine has: ``"gpu"`` or ``"cpu"``.

    Source: ``jax.default_backend``.

    >>> default_backend() in ("cpu", "gpu")
    True
    """
    return "cpu" if devices() == [CPU] else "gpu"


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:
    """Returns the devices of this process, which are all devices; see :func:`devices`.

    Args:
        process_index: None or 0, the only process.
        backend: the kind of devices.
        host_id: None or 0.

    Raises:
        TargetError: for another process.

    Source: ``jax.local_devices``.

    >>> local_devices(backend="cpu")
    [device(type='cpu', index=0)]
    """
    if process_index or host_id:
        raise TargetError("local_devices", "there is one process", got=f"process_index={process_index or host_id!r}")
    return devices(backend)


def local_device_count(backend: str | None = None) -> int:
    """Returns how many devices this process has; see :func:`local_devices`.

    >>> local_device_count("cpu")
    1
    """
    return len(local_devices(backend=backend))


def process_count(backend: str | None = None) -> int:
    """Returns the number of processes that a program runs in, which is 1.

    Args:
        backend: has no effect.

    Source: ``jax.process_count``.

    >>> process_count()
    1
    """
    return 1


def process_index(backend: str | None = None) -> int:
    """Returns the position of this process among all, which is 0.

    Args:
        backend: has no effect.

    Source: ``jax.process_index``.

    >>> process_index()
    0
    """
    return 0


def process_indices(backend: str | None = None) -> list[int]:
    """Returns the positions of all processes.

    Args:
        backend: has no effect.

    Source: ``jax.process_indices``.

    >>> process_indices()
    [0]
    """
    return [0]


def _names() -> list[str]:
    return ["cpu", *("cuda" for _ in devices("cuda")[:1])]
