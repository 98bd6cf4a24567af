"""Executables for TVM's virtual machine: Programs of dynamic sizes."""

from __future__ import annotations

import functools

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.codegen.cuda.tensor_functions import tensor_functions

# Frees and reuses the memory of values after their last use, also where sizes are dynamic; kernels need no offsets.
_PLAN_MEMORY = [
    relax.transform.RewriteDataflowReshape(),
    relax.transform.ToNonDataflow(),
    relax.transform.RemovePurityChecking(),
    relax.transform.CallTIRRewrite(),
    relax.transform.StaticPlanBlockMemory(),
]


def build_for_vm(module: tvm.IRModule, target: Target, dynamic: bool) -> relax.VMExecutable:
    """Returns the executable of a module of scheduled kernels and a Relax ``main``.

    Args:
        module: the module.
        target: the target.
        dynamic: whether there are dynamic sizes.
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
    if not dynamic:
        # Callers know the types of arguments; without this attribute every call would check them again.
        name = module.get_global_var("main")
        module = tvm.IRModule({**module.functions, name: module[name].with_attr("num_input", 0)}, attrs=module.attrs)
    with target, tvm.transform.PassContext(opt_level=3):
        module = passes(module)
        builder = relax.ExecBuilder()
        constants = dict(module.get_attr("const_name_to_constant") or {})
        module = tvm.get_global_func("relax.VMCodeGen")(builder, module)
    kernels = {name: function for name, function in module.functions.items() if isinstance(function, tirx.PrimFunc)}
    compiled = functools.partial(native.compiled, pointers=False) if targets.is_cpu(target) else tensor_functions
    library = compiled(target, kernels)
    return relax.VMExecutable(tvm.get_global_func("relax.VMLink")(builder, target, library, [], constants))
