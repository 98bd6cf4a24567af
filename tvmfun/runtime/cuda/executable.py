"""Compiled modules for GPUs that are called with arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from tvmfun.counters import counters
from tvmfun.errors import TargetError
from tvmfun.runtime.cuda.arrays import DeviceMemory
from tvmfun.runtime.cuda.devices import Block, Device, device_at
from tvmfun.runtime.cuda.driver import DriverError
from tvmfun.runtime.cuda.launcher import Launcher
from tvmfun.runtime.cuda_module import CudaModule

#: The memory and the address of each result.
Results = tuple[Sequence[Any], Sequence[int]]


class CudaExecutable:
    """A compiled module on a device, where it is loaded at the first call.

    Args:
        module: compiled, or loaded from disk.
        donated: the positions of inputs that may be overwritten.
        name: the name of the Program, for errors.
        device: the device.
        code: the handles of machine code that the device has, which executables for other sizes share.
    """

    def __init__(
        self, module: CudaModule, donated: Sequence[int], name: str, device: Any, code: dict[bytes, int] | None = None
    ) -> None:
        self.module = module
        self.plan = module.static_plan
        self._code = {} if code is None else code
        self.device = device
        self._donated = frozenset(donated)
        self._name = name
        self._others: dict[Any, CudaExecutable] = {device: self}
        self._lock = Lock()
        self._launcher: Launcher | None = None

    def at(self, device: Any) -> CudaExecutable:
        """Returns the same module for another device."""
        with self._lock:
            if device not in self._others:
                other = CudaExecutable(self.module, tuple(self._donated), self._name, device)
                other._others, other._lock = self._others, self._lock
                self._others[device] = other
            return self._others[device]

    def __call__(self, arrays: Sequence[Any], addresses: list[int], avals: Sequence[Any]) -> Results:
        """Starts a call, and returns the memory and the address of each result without waiting for them."""
        counters.calls += 1
        if any(address >= 0 for address in addresses):
            hint = "tvmfun.device_put(tree, device)"
            raise TargetError(self._name, "all arrays must be on the GPU", got="one on the CPU", hint=hint)
        gpu, plan = device_at(self.device.index), self.plan
        stream = gpu.stream()
        try:
            launcher = self._launcher or self._load(gpu)
            table = [~address for address in addresses]
            memories = [array.memory for array in arrays]
            for position, memory in enumerate(memories):
                if isinstance(memory, DeviceMemory):
                    if position in self._donated:
                        memory.block.write_on(stream)
                    else:
                        memory.block.read_on(stream)
            fresh = [Block(stream, size, "results", self._name) for size in plan.fresh]
            for block in fresh:
                block.write_on(stream)
                table.append(block.address)
            launcher.run(stream, table)
        except DriverError as error:
            what, hint = f"the GPU failed, maybe in {stream.latest}", "CUDA_LAUNCH_BLOCKING=1, which names the kernel"
            raise error.as_user_error(self._name, what, hint) from None
        results, places = [], []
        for slot, aval in zip(plan.results, avals, strict=True):
            if slot < plan.inputs:
                results.append(memories[slot])
                places.append(addresses[slot])
            else:
                results.append(DeviceMemory(fresh[slot - plan.inputs], aval))
                places.append(results[-1].address)
        return results, places

    def _load(self, gpu: Device) -> Launcher:
        with self._lock:
            if self._launcher is None:
                self.module.check_code()
                self._launcher = Launcher(self.module, gpu, self._name, self._code)
            return self._launcher


class DynamicCudaExecutable:
    """A compiled module for arguments of all sizes, on a device.

    Args:
        module: compiled, or loaded from disk; its records have formulas.
        donated: the positions of inputs that may be overwritten.
        name: the name of the Program, for errors.
        device: the device.
    """

    def __init__(self, module: CudaModule, donated: Sequence[int], name: str, device: Any) -> None:
        self.module = module
        self.plan = module.plan
        self.device = device
        self._donated = donated
        self._name = name
        self._code: dict[bytes, int] = {}

    def at(self, device: Any) -> DynamicCudaExecutable:
        """Returns the same module for another device."""
        if device == self.device:
            return self
        return DynamicCudaExecutable(self.module, self._donated, self._name, device)

    def at_sizes(self, sizes: Mapping[str, int]) -> CudaExecutable:
        """Returns the executable for these sizes."""
        return CudaExecutable(self.module.at(sizes), self._donated, self._name, self.device, self._code)
