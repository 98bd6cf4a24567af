"""Functions as modules for GPUs, on a machine without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import tvmfun
from tvmfun.core.inline import inlined
from tvmfun.execute import input_positions
from tvmfun.lower import pipeline
from tvmfun.lower.codegen.cuda import cubins
from tvmfun.runtime.cuda_module import CudaModule
from tvmfun.stages import Lowered


def module_of(lowered: Lowered) -> CudaModule:
    """The module of a function that was lowered for a GPU; it has no machine code where there is no compiler."""
    donated = input_positions(lowered.program, lowered.donated)
    # Where tests keep all cores busy, more processes of nvcc only read its headers more often.
    with mock.patch.object(cubins, "cpu_count", lambda: 1):
        return pipeline.build_for_cuda(inlined(lowered.program, "cuda"), lowered.target, donated)


def gpu_module(function: Callable, *arguments: Any, arch: str = "sm_90a", donate_argnums: Any = ()) -> CudaModule:
    """The module of a function for arguments of some types.

    Args:
        function: a function of trees, or a jitted one.
        arguments: its arguments, or their shapes and dtypes.
        arch: the architecture of the GPU.
        donate_argnums: the positions of arguments that results may be written over.
    """
    jitted = tvmfun.jit(function, donate_argnums=donate_argnums, target={"kind": "cuda", "arch": arch})
    return module_of(jitted.lower(*arguments))
