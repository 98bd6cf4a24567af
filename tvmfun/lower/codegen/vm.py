"""Executables for TVM's virtual machine: Programs of dynamic sizes for GPUs."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvmfun.lower.codegen.cuda.tensor_functions import tensor_functions

# Frees and reuses the memory of values after their last use, also where sizes are dynamic; kernels need no offsets.
_PLAN_MEMORY = [
    relax.transform.RewriteDataflowReshape(),
    relax.transform.ToNonDataflow(),
    relax.transform.RemovePurityChecking(),
    relax.transform.CallTIRRewrite(),
    relax.transform.StaticPlanBlockMemory(),
]


def build_for_vm(module: tvm.IRModule, target: Target) -> relax.VMExecutable:
    """Returns the executable of a module of scheduled kernels and a Relax ``main``.

    Args:
        module: the module.
        target: a GPU.
    """
    passes = tvm.transform.Sequential(
        [
            *_PLAN_MEMORY,
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )
    with target, tvm.transform.PassContext(opt_level=3):
        module = passes(module)
        builder = relax.ExecBuilder()
        constants = dict(module.get_attr("const_name_to_constant") or {})
        module = tvm.get_global_func("relax.VMCodeGen")(builder, module)
    kernels = {name: function for name, function in module.functions.items() if isinstance(function, tirx.PrimFunc)}
    library = tensor_functions(target, kernels)
    return relax.VMExecutable(tvm.get_global_func("relax.VMLink")(builder, target, library, [], constants))
