"""``torch.compile`` with our backend: the numbers are eager PyTorch's, whatever part of a graph is compiled here."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from interop import torch_nets  # noqa: E402
from interop.torch_nets import made  # noqa: E402
from torch import nn  # noqa: E402

from tvmfun.counters import counted  # noqa: E402
from tvmfun.interop.torch import backend  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]  # Dynamo's own warnings


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend, **options)


def check(function: Any, *inputs: Any, **options: Any) -> None:
    """Compares results and gradients with those of eager execution."""
    results = []
    for f in (compiled(function, **options), function):
        own = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        value = f(*own)
        gradients = torch.autograd.grad(value.sum(), [x for x in own if x.requires_grad])
        results.append((value, *gradients))
    torch.testing.assert_close(*results)
    assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.quick("mnist")
@pytest.mark.parametrize("name", ["mnist", "resnet", "mobilenet", "bert", "gpt2"])
def test_networks(name: str):
    net = made(getattr(torch_nets, name))
    module, (args, kwargs, labels) = net.module.train(), net.batches[0]
    before = {name: x.clone() for name, x in module.state_dict().items()}

    def step(f: Any) -> tuple:
        module.load_state_dict(before)
        module.zero_grad()
        loss = net.loss[0](f(*args, **kwargs), *labels)
        loss.backward()
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        return loss.detach(), gradients, {key: x.clone() for key, x in module.state_dict().items()}

    with counted() as events:
        ours = step(compiled(module))
    assert events.compiles
    tolerance = 1e-9 if ours[0].dtype == torch.float64 else 1e-5
    torch.testing.assert_close(ours, step(module), rtol=tolerance, atol=tolerance, equal_nan=True)


def test_the_rest_stays_with_torch():
    """A Fourier transform has complex numbers; what is around it is compiled."""

    def f(x: Any) -> Any:
        spectrum = torch.fft.rfft(torch.tanh(x) * 2)
        return (spectrum.abs() + 1).log() * 3

    with counted() as events:
        check(f, torch.randn(3, 8, dtype=torch.float64))
    assert events.compiles


def test_random_numbers_are_those_of_torch():
    f = compiled(lambda x: nn.functional.dropout(x.exp(), 0.5) * 2)
    x = torch.zeros(1000)
    torch.manual_seed(0)
    first = f(x)
    torch.manual_seed(0)
    assert torch.equal(first, f(x))
    assert not torch.equal(first, f(x))
    assert abs(first.mean() - 2) < 0.3


def test_views_strides_and_writes_in_place():
    check(lambda x: (x * 2).t(), torch.randn(3, 4))
    check(lambda x: x.t() + 1, torch.randn(3, 4))
    check(lambda x: (x + 1).to(memory_format=torch.channels_last), torch.randn(2, 3, 4, 4))
    check(lambda x: (x.sin()[:, 1:] * 2).contiguous(), torch.randn(3, 4))

    def write(x: Any) -> Any:
        x.add_(1)
        y = x * 2
        y[0] = 5.0
        return y

    ours, theirs = torch.zeros(3, 2), torch.zeros(3, 2)
    torch.testing.assert_close(compiled(write)(ours), write(theirs))
    assert torch.equal(ours, theirs)


def test_an_argument_that_is_a_result_has_memory_of_its_own():
    f = compiled(lambda x: ((x + 0).reshape(-1), x.tanh()))
    x = torch.randn(4, 4)
    kept = x.clone()
    first, _ = f(x)
    first.zero_()
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_sizes_that_change(dynamic: bool | None):
    layer = nn.Linear(4, 3).double()

    def f(x: Any) -> Any:
        return torch.softmax(layer(x).reshape(x.shape[0] * 3), 0) * x.shape[0]

    ours = compiled(f, dynamic=dynamic)
    for size in (2, 5, 7, 5):
        x = torch.randn(size, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), f(x))
        ours(x).pow(2).sum().backward()


def test_without_gradients_and_with_integers():
    def f(x: Any, i: Any) -> Any:
        return x[i] / 2, i // 2, (i > 1) & (x > 0)[: len(i)], i.sum()

    x, i = torch.randn(6), torch.tensor([3, 0, 5])
    with torch.no_grad():
        torch.testing.assert_close(compiled(f)(x, i), f(x, i))


def test_an_optimizer_around_it():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1)).double()
    x, losses = torch.randn(16, 4, dtype=torch.float64), []
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for f in (compiled(module), module):
        module.load_state_dict(before)
        optimizer = torch.optim.Adam(module.parameters(), 0.01)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (f(x) - x[:, :1]).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[:5], losses[5:])


def test_the_entry_point_is_the_backend():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    module, name = re.findall(r'^tvmfun = "([\w.]+):(\w+)"$', project, flags=re.MULTILINE)[0]
    assert getattr(import_module(module), name) is backend
