"""tvmfun: functional, JAX-like training on Apache TVM.

Pure functions over immutable trees of arrays are traced into Programs, transformed, and compiled, a whole training
step at a time, into one TVM module.
"""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from tvmfun._garbage_collection import paused as _paused_garbage_collection

# GC is paused: imports create no garbage, and scanning for it takes 1/6 of the import time.
with _paused_garbage_collection():
    from tvmfun import _tvm, errors, tree  # noqa: F401  # TVM comes first
    from tvmfun import flatten_util as flatten_util
    from tvmfun import image as image
    from tvmfun import lax as lax
    from tvmfun import nn as nn
    from tvmfun import numpy as numpy
    from tvmfun import ops as ops
    from tvmfun import random as random
    from tvmfun import tree_util as tree_util
    from tvmfun import typing as typing
    from tvmfun.checks import check
    from tvmfun.core.array import Array, ShapeDtype
    from tvmfun.core.dims import Dim
    from tvmfun.core.program import Program
    from tvmfun.core.source import named_call, named_scope
    from tvmfun.core.trace import ensure_compile_time_eval, trace
    from tvmfun.execute import (
        block_until_ready,
        clear_caches,
        debug_nans,
        device_get,
        device_put,
        typeof,
    )
    from tvmfun.jit import eval_shape, jit
    from tvmfun.names import missing as _missing
    from tvmfun.runtime.devices import (
        Device,
        default_backend,
        device_count,
        devices,
        local_device_count,
        local_devices,
        process_count,
        process_index,
        process_indices,
    )
    from tvmfun.transforms import (
        PrecisionPolicy,
        amp,
        checkpoint,
        checkpoint_name,
        checkpoint_policies,
        closure_convert,
        custom_gradient,
        custom_jvp,
        custom_vjp,
        grad,
        hessian,
        jacfwd,
        jacrev,
        jvp,
        linear_transpose,
        linearize,
        value_and_grad,
        vjp,
        vmap,
    )
    from tvmfun.tune import tune, tuned

# The second names that JAX has for these.
ShapeDtypeStruct = ShapeDtype
jacobian = jacrev
remat = checkpoint

try:
    __version__ = _version("tvmfun")
except _PackageNotFoundError:
    __version__ = "0.0.0"

__all__ = [
    "Array",
    "Device",
    "Dim",
    "PrecisionPolicy",
    "Program",
    "ShapeDtype",
    "ShapeDtypeStruct",
    "amp",
    "block_until_ready",
    "check",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "debug_nans",
    "default_backend",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "ensure_compile_time_eval",
    "errors",
    "eval_shape",
    "flatten_util",
    "grad",
    "hessian",
    "image",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linear_transpose",
    "linearize",
    "local_device_count",
    "local_devices",
    "named_call",
    "named_scope",
    "numpy",
    "ops",
    "process_count",
    "process_index",
    "process_indices",
    "random",
    "remat",
    "trace",
    "tree",
    "tree_util",
    "tune",
    "tuned",
    "typeof",
    "typing",
    "value_and_grad",
    "vjp",
    "vmap",
]

__getattr__ = _missing(__name__, submodules=["scipy"])
