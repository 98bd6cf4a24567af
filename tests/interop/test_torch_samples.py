"""Modules of one function of PyTorch, on PyTorch's own samples (OpInfo): results and gradients in double precision.

The samples of a function are one module, which is exported once.
"""

from __future__ import annotations

import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import tvmfun  # noqa: E402
from tvmfun.interop.torch import from_torch  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("outside_of_unittest")]

SAMPLES = 3
LARGEST = 4000

NAMES = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "linalg.cholesky", "linalg.cholesky_ex", "linalg.det",
    "linalg.slogdet", "logdet", "linalg.inv", "linalg.inv_ex", "linalg.solve", "linalg.solve_ex",
    "linalg.solve_triangular", "triangular_solve", "linalg.lu", "linalg.lu_factor", "linalg.lu_solve", "lu",
    "lu_solve", "lu_unpack", "linalg.qr", "qr", "linalg.svdvals", "linalg.eigvalsh", "linalg.eigh", "linalg.pinv",
    "matrix_exp", "linalg.matrix_power", "linalg.matrix_rank", "linalg.householder_product", "linalg.svd", "svd",
    "linalg.tensorinv", "linalg.tensorsolve", "linalg.cond", "cummax", "cummin", "mode", "nanmedian", "median",
    "kthvalue",
]  # fmt: skip
#: The columns of these have free signs: each is compared as its product with itself.
FREE_SIGNS = ("linalg.svd", "svd", "linalg.eigh")
#: PyTorch's gradients have elements in the triangle that is not read.
VALUES_ONLY = ("cholesky_inverse", "cholesky_solve")
#: Functions that read a triangle, or need a symmetric matrix.
SYMMETRIC = ("linalg.eigh", "linalg.eigvalsh")


class Function:
    """A function of the tensors among the leaves of its arguments."""

    def __init__(self, op: Any, sample: Any) -> None:
        self.op, self.sample = op, sample
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [i for i, x in enumerate(self.leaves) if isinstance(x, torch.Tensor)]
        self.tensors = [self.leaves[i] for i in self.places]

    def __call__(self, *tensors: Any) -> Any:
        leaves = list(self.leaves)
        for i, x in zip(self.places, tensors, strict=True):
            leaves[i] = x
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        if self.op.name in SYMMETRIC:
            first = first + first.mT
        results = [x for x in pytree.tree_leaves(self.op.op(first, *args, **kwargs)) if x.numel()]
        if self.op.name in FREE_SIGNS:
            results = [abs(x) if x.ndim > first.ndim - 1 else x for x in results]
        return tuple(results)


class Together(torch.nn.Module):
    """Several functions, of the tensors of all one after the other."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *tensors: Any) -> Any:
        left = iter(tensors)
        return tuple(x for f in self.functions for x in f(*(next(left) for _ in f.places)))


@pytest.mark.quick("linalg.cholesky", "linalg.lu_solve", "mode")
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_torch(name: str):
    op = next(op for op in op_db if op.name == name and not op.variant_test_name)
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", torch.float64, requires_grad=op.supports_autograd)
    functions = (Function(op, sample) for sample in samples)
    usable = (f for f in functions if all(0 < x.numel() <= LARGEST for x in f.tensors))
    chosen = list(islice(usable, SAMPLES))
    assert chosen
    tensors = [x for f in chosen for x in f.tensors]
    check(Together(chosen), tensors, op.supports_autograd and name not in VALUES_ONLY)


def check(module: Together, tensors: list[Any], has_derivative: bool) -> None:
    """Compares the results, and the gradients of a weighted sum of those that have any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about deprecated functions
        own, _, _ = from_torch(module, tuple(x.detach() for x in tensors))
        inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]
        expected = module(*inputs)
    arrays = [x.detach().numpy() for x in inputs]
    moving = [i for i, x in enumerate(inputs) if x.requires_grad]
    weights = [torch.rand_like(x) if x.requires_grad else None for x in expected]

    def loss(*chosen: Any) -> tuple:
        full = list(arrays)
        for i, x in zip(moving, chosen, strict=True):
            full[i] = x
        results = own({}, {}, *full)[0]
        terms = [(x * w.numpy()).sum() for x, w in zip(results, weights, strict=True) if w is not None]
        return sum(terms), results

    differentiated = has_derivative and any(w is not None for w in weights)
    chosen = [arrays[i] for i in moving]
    if not differentiated:
        results, gradients = tvmfun.jit(lambda *xs: loss(*xs)[1])(*chosen), ()
    else:
        argnums = tuple(range(len(moving)))
        gradients, results = tvmfun.jit(tvmfun.grad(loss, argnums, has_aux=True))(*chosen)
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy(), rtol=1e-9, atol=1e-9)
    if differentiated:
        total = sum((x * w).sum() for x, w in zip(expected, weights, strict=True) if w is not None)
        theirs = torch.autograd.grad(total, [inputs[i] for i in moving], allow_unused=True)
        for ours, wanted in zip(gradients, theirs, strict=True):
            wanted = torch.zeros(ours.shape) if wanted is None else wanted
            np.testing.assert_allclose(np.asarray(ours), wanted.numpy(), rtol=1e-6, atol=1e-7)
