"""Relay programs as functions: networks against PyTorch, training, transforms, and the language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from interop.relay_nets import NETS, Net  # noqa: E402

import tvmfun  # noqa: E402
import tvmfun.numpy as tnp  # noqa: E402
from tvmfun import tree  # noqa: E402
from tvmfun.interop.relay import from_relay  # noqa: E402
from tvmfun.interop.relay.coverage import updated  # noqa: E402

pytestmark = pytest.mark.interop


def torch_gradients(net: Net, seed: int = 9) -> tuple[list, list, dict[str, np.ndarray]]:
    """PyTorch's results, cotangents for them, and the gradients of the parameters."""
    params = {name: torch.from_numpy(value).requires_grad_() for name, value in net.params.items()}
    inputs = [torch.from_numpy(value) for value in net.inputs]
    results = tree.leaves(net.oracle(params, *inputs))
    random = np.random.default_rng(seed)
    cotangents = [random.normal(size=tuple(x.shape)).astype(x.detach().numpy().dtype) for x in results]
    loss = sum((x * torch.from_numpy(c)).sum() for x, c in zip(results, cotangents, strict=True))
    gradients = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    found = {name: g.numpy() for name, g in zip(params, gradients, strict=True) if g is not None}
    return [x.detach().numpy() for x in results], cotangents, found


def assert_close(ours: Any, wanted: np.ndarray, name: str = "") -> None:
    """Agreement relative to the largest element, to rounding."""
    tolerance = 1e-9 if wanted.dtype == np.float64 else 2e-5
    scale = max(float(np.abs(wanted).max(initial=0)), 0.1)
    np.testing.assert_allclose(np.asarray(ours), wanted, rtol=tolerance, atol=tolerance * scale, err_msg=name)


@pytest.mark.quick("mlp")
@pytest.mark.parametrize("name", NETS)
def test_networks_and_their_gradients_are_those_of_torch(name: str):
    net = NETS[name]()
    results, cotangents, gradients = torch_gradients(net)
    function, params = from_relay(net.text, net.params)

    @tvmfun.jit
    def both(params: Any, *inputs: Any) -> Any:
        def loss(params: Any) -> Any:
            found = tree.leaves(function(params, *inputs))
            return sum(tnp.sum(x * c) for x, c in zip(found, cotangents, strict=True)), found

        (_, found), gradient = tvmfun.value_and_grad(loss, has_aux=True)(params)
        return found, gradient

    found, gradient = both(params, *net.inputs)
    for ours, wanted in zip(found, results, strict=True):
        assert_close(ours, wanted)
    assert gradients
    for key, wanted in gradients.items():
        assert_close(gradient[key], wanted, key)


def test_the_page_has_the_table():
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
    assert page == updated(page), "run: python -m tvmfun.interop.relay docs/interop.md"
