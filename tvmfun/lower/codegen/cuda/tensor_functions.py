"""Functions of tensors whose kernels run on a GPU: for TVM's virtual machine, which Programs of dynamic sizes need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from tvmfun.errors import TargetError
from tvmfun.lower.codegen.cuda import cubins, lowering
from tvmfun.lower.codegen.cuda.compilers import find_compiler, options_of, why_none
from tvmfun.lower.tir.walk import find

# Where this function is missing, TVM has no CUDA driver, keeps the source of kernels, and calls no compiler.
_LOADER = "ffi.Module.create.cuda"


def tensor_functions(target: Target, functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> Any:
    """Returns a module of scheduled functions, which take tensors.

    Where there is no driver but a compiler, the kernels are compiled all the same: for the disk cache, and so that
    what it refuses is found. Where there is neither, the module has their source.

    Args:
        target: a GPU.
        functions: scheduled functions.

    Raises:
        TargetError: if there is a driver and no compiler, or if the compiler refuses something.
    """
    _check_host(functions)
    host, kernels = lowering.split_for_tensors(functions, target)
    with target:
        module = tvm.get_global_func("target.build.llvm")(host, target.host)
        if not kernels.functions:
            return module
        device = tvm.get_global_func("target.build.cuda")(kernels, target)
        if tvm.get_global_func(_LOADER, allow_missing=True) is None and why_none() is None:
            _compile(str(device.inspect_source("cuda")))
    module.import_module(device)
    return module


def _check_host(functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> None:
    """Checks that no branch or loop of the host depends on the device's memory, which it would read as its own.

    Raises:
        TargetError: if one does.
    """
    for function in functions.values():
        tests = [node.condition for node in find(function.body, tirx.While, tirx.IfThenElse)]
        is_control = function.attrs.get("tvmfun.rule") == "control"
        extents = [node.extent for node in find(function.body, tirx.For)]
        if is_control and any(find(value, ir.TensorLoad) for value in [*tests, *extents]):
            raise TargetError(
                "compile",
                "a branch or a number of steps that depends on data needs static sizes on a GPU",
                got="a dynamic size",
                hint="static sizes, or scan or fori_loop with a fixed number of steps, or where",
            )


@tvm_ffi.register_global_func("tvm_callback_cuda_compile", override=True)
def _compile(source: str) -> bytes:
    """Compiles the kernels of a module; TVM's own function looks for headers elsewhere and allows approximations."""
    source = lowering.with_small_headers(source)
    return cubins.compiled_together(source, find_compiler(), options_of(Target.current()))
