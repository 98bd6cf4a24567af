"""PyTorch's modules as functions with training semantics, and functions as PyTorch's modules.

``from_torch`` reads what ``torch.export`` writes, by a table of ATen operators. PyTorch is imported when a function
of this package is called.
"""

from tvmfun.boundary import publish
from tvmfun.interop.torch.dynamo import backend
from tvmfun.interop.torch.functions import from_torch
from tvmfun.interop.torch.parameters import params_of, to_state_dict
from tvmfun.interop.torch.tensors import to_torch
from tvmfun.interop.torch.training import TrainStep, compile_train
from tvmfun.interop.torch.wrapped import wrap

__all__ = [
    "TrainStep",
    "backend",
    "compile_train",
    "from_torch",
    "params_of",
    "to_state_dict",
    "to_torch",
    "wrap",
]

publish(globals())
