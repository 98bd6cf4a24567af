"""Transforms of Programs. The op-specific parts are rules in the op records."""

from tvmfun.transforms.amp import PrecisionPolicy, amp
from tvmfun.transforms.autodiff import grad, jvp, linear_transpose, linearize, value_and_grad, vjp
from tvmfun.transforms.checkpoint import checkpoint, checkpoint_name, checkpoint_policies
from tvmfun.transforms.closures import closure_convert, custom_gradient
from tvmfun.transforms.custom import custom_jvp, custom_vjp
from tvmfun.transforms.jacobian import hessian, jacfwd, jacrev
from tvmfun.transforms.vmap import vmap

__all__ = [
    "PrecisionPolicy",
    "amp",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linear_transpose",
    "linearize",
    "value_and_grad",
    "vjp",
    "vmap",
]
