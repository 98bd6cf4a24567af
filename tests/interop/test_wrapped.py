"""Functions as modules of PyTorch: autograd's derivatives are ours, and tensors are shared but never surprised."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvmfun  # noqa: E402
import tvmfun.numpy as tnp  # noqa: E402
from tvmfun import lax, random  # noqa: E402
from tvmfun import nn as tnn  # noqa: E402
from tvmfun.counters import counted  # noqa: E402
from tvmfun.errors import ArgumentError, GradientError  # noqa: E402
from tvmfun.interop.torch import from_torch, wrap  # noqa: E402

pytestmark = pytest.mark.interop

RNG = np.random.default_rng(0)


def doubles(*shape: int) -> Any:
    return torch.from_numpy(RNG.normal(size=shape)).requires_grad_()


def network(params: Any, x: Any) -> Any:
    hidden = tnp.tanh(x @ params["first"]["weight"] + params["first"]["bias"])
    return {"y": hidden @ params["second"], "norm": tnp.sum(hidden**2), "count": tnp.sum(hidden > 0)}


def network_params() -> dict:
    return {"first": {"weight": RNG.normal(size=(3, 4)), "bias": RNG.normal(size=4)}, "second": RNG.normal(size=(4, 2))}


def by_torch(module: Any, x: Any) -> dict:
    hidden = torch.tanh(x @ module.get_parameter("first.weight") + module.get_parameter("first.bias"))
    return {"y": hidden @ module.second, "norm": (hidden**2).sum(), "count": (hidden > 0).sum()}


def of_params(module: Any, *outputs: str) -> Any:
    """A function of all parameters and the argument, for gradcheck."""
    names = [name for name, _ in module.named_parameters()]

    def call(x: Any, *values: Any) -> Any:
        result = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))
        return tuple(result[name] for name in outputs)

    return call


def test_gradcheck_and_gradgradcheck():
    module = wrap(network, network_params())
    inputs = (doubles(5, 3), *(p.detach().clone().requires_grad_() for p in module.parameters()))
    assert torch.autograd.gradcheck(of_params(module, "y", "norm"), inputs)
    assert torch.autograd.gradgradcheck(of_params(module, "y", "norm"), inputs)


@pytest.mark.parametrize(
    "f",
    [
        lambda params, x: tnp.exp(x * params),  # the result is what the backward pass needs
        lambda params, x: (x, x * params),  # an argument is a result
        lambda params, x: lax.scan(lambda c, v: (tnp.sin(c * v), c), params, x),
        lambda params, x: lax.cond(tnp.sum(x) > 0, lambda: x * params, lambda: x / params),
        lambda params, x: tnp.sort(x)[1:3] @ tnp.ones(2) * params**3,
        lambda params, x: tvmfun.grad(lambda x: tnp.sum(x**4 * params))(x),
    ],
    ids=["exp", "identity", "scan", "cond", "sort", "grad"],
)
def test_derivatives_of_both_orders(f: Any):
    module, x = wrap(f, np.float64(0.7) * np.ones(())), doubles(4)
    assert torch.autograd.gradcheck(module, (x,))
    assert torch.autograd.gradgradcheck(module, (x,))


def test_names_gradients_and_numbers_are_those_of_torch():
    module, x = wrap(network, network_params()), doubles(5, 3)
    assert [name for name, _ in module.named_parameters()] == ["second", "first.bias", "first.weight"]
    ours, theirs = module(x), by_torch(module, x)
    assert ours["count"].dtype == torch.int32 and not ours["count"].requires_grad
    assert int(ours["count"]) == int(theirs["count"])
    for result in (ours, theirs):
        result["gradients"] = torch.autograd.grad(
            (result["y"] ** 2).sum() + result["norm"], [x, *module.parameters()], create_graph=True
        )
        total = sum((g**2).sum() for g in result["gradients"])
        result["second"] = torch.autograd.grad(total, [x, *module.parameters()])
    torch.testing.assert_close(ours["y"], theirs["y"])
    torch.testing.assert_close(ours["gradients"], theirs["gradients"])
    torch.testing.assert_close(ours["second"], theirs["second"])


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "LBFGS"])
def test_optimizers_of_torch(optimizer: str):
    initial, x, y = network_params(), doubles(16, 3).detach(), doubles(16, 2).detach()

    def trained(result_of: Any) -> list[float]:
        module, losses = wrap(network, initial), []
        steps = getattr(torch.optim, optimizer)(module.parameters(), lr=0.05)

        def closure() -> Any:
            steps.zero_grad()
            loss = ((result_of(module, x)["y"] - y) ** 2).mean()
            loss.backward()
            losses.append(float(loss.detach()))
            return loss

        for _ in range(5):
            steps.step(closure)
        return losses

    np.testing.assert_allclose(trained(lambda module, x: module(x)), trained(by_torch), rtol=1e-8)


def test_without_gradients_nothing_is_kept():
    module, x = wrap(network, network_params()), doubles(5, 3)
    with torch.no_grad():
        result = module(x)
    assert not result["y"].requires_grad and result["y"].grad_fn is None
    torch.testing.assert_close(result["y"], by_torch(module, x)["y"].detach())
    module.requires_grad_(False)
    assert module(x.detach())["y"].grad_fn is None
    with torch.inference_mode():
        assert module(x)["norm"].shape == ()


def test_only_what_is_wanted_is_computed():
    module, x = wrap(network, network_params()), doubles(5, 3).detach()
    module.get_parameter("first.weight").requires_grad_(False)
    module(x)["y"].sum().backward()
    assert module.get_parameter("first.weight").grad is None
    assert module.second.grad is not None


def test_writes_in_place():
    module = wrap(lambda p, x: (x, tnp.exp(x), p), np.ones(3))
    x = doubles(3)
    same, exp, p = module(x)
    same.mul_(2)  # results have memory of their own
    p.zero_()
    assert (module.value == 1).all()
    (same.sum() + p.sum()).backward()
    np.testing.assert_array_equal(x.grad, [2, 2, 2])
    _, exp, _ = module(x)
    exp.add_(1)  # the backward pass needs what this overwrites
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        exp.sum().backward()
    _, exp, _ = module(y := x * 1)
    kept = exp.sum()
    y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_constants_are_not_handed_out():
    constant = tnp.arange(40.0)
    module = wrap(lambda p, x: (constant, constant.reshape(5, 8), x + p), np.ones((), "float32"))
    with torch.no_grad():
        module(torch.ones(2))[0].zero_()
    first, second, _ = module(torch.ones(2))
    first.zero_()
    assert second.sum() == 780 and float(tnp.sum(constant)) == 780


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(24.0).reshape(4, 6).T,
        torch.arange(25.0)[1:].reshape(6, 4),
        torch.ones(1, 1).expand(6, 4),
        torch.arange(48.0).reshape(6, 8)[:, ::2],
        torch.arange(12.0).reshape(3, 4).repeat(2, 1).flip(0),
        torch.zeros(0, 4),
    ],
    ids=["transposed", "unaligned", "expanded", "strided", "flipped", "empty"],
)
def test_tensors_of_any_layout(x: Any):
    module = wrap(lambda p, x: tnp.sum(x * p, axis=1), np.arange(4.0, dtype="float32"))
    x.requires_grad_()
    result = module(x)
    torch.testing.assert_close(result, (x * module.value).sum(1))
    (result * torch.ones(1).expand(result.shape)).sum().backward()
    torch.testing.assert_close(x.grad, module.value.detach().expand(x.shape))


def test_dtypes_and_trees():
    def f(p: Any, batch: Any, *, scale: Any) -> Any:
        ids, flags = batch
        return [p["table"][ids] * scale, ~flags, (p["steps"] + 1, None)]

    table = np.arange(6, dtype="float32").reshape(3, 2).astype(tnp.bfloat16)
    module = wrap(f, {"table": table, "steps": np.int64(3)})
    assert dict(module.named_buffers())["steps"].dtype == torch.int64
    rows, flags, (steps, none) = module((torch.tensor([2, 0]), torch.tensor([True, False])), scale=2)
    assert rows.dtype == torch.bfloat16 and rows.tolist() == [[8, 10], [0, 2]]
    assert flags.tolist() == [False, True] and int(steps) == 4 and none is None
    rows.sum().backward()
    assert module.table.grad.tolist() == [[2, 2], [0, 0], [2, 2]]


def test_large_tensors_are_not_copied():
    module, x = wrap(lambda p, x: x * p, np.ones((), "float32")), torch.ones(1000, requires_grad=True)
    module(x).sum().backward()
    with counted() as events:
        module(x).sum().backward()
    assert events.to_device == events.to_host == events.compiles == 0


def test_modules_of_tvmfun_and_round_trips():
    model = tnn.Sequential(tnn.Linear(3, 4, key=random.key(0)), tnp.tanh, tnn.Linear(4, 1, key=random.key(1)))
    module = wrap(lambda model, x: model(x), model)
    assert "layers.0.weight" in module.state_dict()
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.get_parameter("layers.0.weight").zero_()
    x = torch.ones(2, 3)
    np.testing.assert_allclose(module(x).detach(), model(np.ones((2, 3), "float32")), rtol=1e-6)
    assert not torch.equal(other(x), module(x))
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other(x), module(x))


def test_there_and_back():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)).double()
    x = doubles(5, 3)
    function, params, state = from_torch(module, (x.detach(),))
    again = wrap(lambda params, x: function(params, state, x)[0], params)
    assert dict(again.named_parameters()).keys() == dict(module.named_parameters()).keys()
    for part in (module, again):
        part(x).pow(2).sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(again.get_parameter(name).grad, parameter.grad)


def test_threads():
    module, results = wrap(network, network_params()), {}
    inputs = [doubles(5, 3) for _ in range(8)]

    def run(i: int) -> None:
        results[i] = torch.autograd.grad(module(inputs[i])["norm"], inputs[i])[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(inputs):
        torch.testing.assert_close(results[i], torch.autograd.grad(by_torch(module, x)["norm"], x)[0])


def test_errors():
    with pytest.raises(ArgumentError, match="must be a function, got int"):
        wrap(3, {})
    with pytest.raises(ArgumentError, match="different names"):
        wrap(lambda p: p, {"a_b": 1.0, "a.b": 2.0})
    module = wrap(lambda p, x: lax.while_loop(lambda c: c < 3, lambda c: c * p, x), np.float32(2) * np.ones((), "f"))
    with pytest.raises(GradientError, match="while_loop"):
        module(torch.ones((), requires_grad=True))
