"""Every Relay operator of the table against PyTorch: values and vjps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from interop import relay_layer_cases  # noqa: E402, F401
from interop.relay_cases import CASES, Case  # noqa: E402
from support.relay_text import HEADER, tensor_type  # noqa: E402

import tvmfun  # noqa: E402
from tvmfun import tree  # noqa: E402
from tvmfun.interop.relay import from_relay  # noqa: E402
from tvmfun.interop.relay.operators import TRANSLATIONS  # noqa: E402

pytestmark = pytest.mark.interop

IDS = [(name, i) for name in sorted(CASES) for i in range(len(CASES[name]))]


def written_type(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(written_type, value))},)"
    return tensor_type(value.shape, value.dtype.name)


def text_of(name: str, case: Case) -> str:
    """A module whose main function calls the operator."""
    arguments = [f"%a{i}: {written_type(value)}" for i, value in enumerate(case.arrays)]
    names = [f"%a{i}" for i in range(len(arguments))]
    call = ", ".join(part for part in (case.before, *names, case.after, case.attributes) if part)
    return f"{HEADER}def @main({', '.join(arguments)}) {{\n  {name}({call})\n}}\n"


def test_every_operator_has_a_case():
    assert set(CASES) == set(TRANSLATIONS)


def is_float(x: Any) -> bool:
    return np.asarray(x).dtype.kind == "f"


@pytest.mark.quick("tanh-0", "strided_slice-0", "reshape-6", "nn.conv2d-2", "topk-0", "nn.nll_loss-0", "full-0")
@pytest.mark.parametrize(("name", "index"), IDS)
def test_values_and_vjps_are_those_of_torch(name: str, index: int):
    case = CASES[name][index]
    leaves, structure = tree.flatten(case.arrays)
    function, _ = from_relay(text_of(name, case))
    moving = [i for i, x in enumerate(leaves) if is_float(x)]
    tensors = [torch.tensor(x) for x in leaves]
    if case.derivative:
        tensors = [x.requires_grad_() if i in moving else x for i, x in enumerate(tensors)]
    wanted = tree.leaves(case.oracle(*tree.unflatten(structure, tensors)))
    differentiable = [i for i, x in enumerate(wanted) if case.derivative and x.requires_grad]
    cotangents = [np.random.default_rng(i).normal(size=tuple(wanted[i].shape)) for i in differentiable]
    cotangents = [
        np.asarray(c, wanted[i].detach().numpy().dtype) for i, c in zip(differentiable, cotangents, strict=True)
    ]

    def run(*primals: Any) -> list:
        values = list(leaves)
        for i, x in zip(moving, primals, strict=True):
            values[i] = x
        return tree.leaves(function({}, *tree.unflatten(structure, values)))

    @tvmfun.jit
    def both(*primals: Any) -> Any:
        if not differentiable:
            return run(*primals), None
        _, pull = tvmfun.vjp(lambda *primals: [run(*primals)[i] for i in differentiable], *primals)
        return run(*primals), pull(list(cotangents))

    found, gradients = both(*(leaves[i] for i in moving))
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        compare(ours, theirs.detach().numpy())
    if differentiable:
        chosen = [wanted[i] for i in differentiable]
        inputs = [tensors[i] for i in moving]
        theirs = torch.autograd.grad(chosen, inputs, [torch.tensor(c) for c in cotangents], allow_unused=True)
        for ours, own, x in zip(gradients, theirs, inputs, strict=True):
            compare(ours, np.zeros(tuple(x.shape)) if own is None else own.numpy())


def compare(ours: Any, wanted: np.ndarray) -> None:
    ours = np.asarray(ours)
    assert ours.shape == wanted.shape
    tolerance = 2e-5 if ours.dtype == np.float32 else 1e-10
    if not is_float(wanted):
        assert ours.dtype == wanted.dtype
    np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance)
