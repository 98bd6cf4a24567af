"""The compiled training step in a script: losses, parameters and schedules are those of PyTorch's step."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from interop import torch_nets  # noqa: E402
from interop.torch_nets import made  # noqa: E402
from torch import nn  # noqa: E402

from tvmfun import optim  # noqa: E402
from tvmfun.errors import ArgumentError  # noqa: E402
from tvmfun.interop.torch import compile_train  # noqa: E402

pytestmark = pytest.mark.interop

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adadelta": {},
    "Adam": {"weight_decay": 0.1, "betas": (0.8, 0.9)},
    "AdamW": {"weight_decay": 0.1},
    "Adamax": {},
    "RAdam": {},
    "RMSprop": {"alpha": 0.9},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


def batches(count: int = 6) -> list[tuple]:
    return [(torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))) for _ in range(count)]


def eager(module: Any, loss: Any, optimizer: Any, *batch: Any) -> Any:
    optimizer.zero_grad()
    value = loss(module(*batch[:-1]), batch[-1])
    value.backward()
    optimizer.step()
    return value.detach()


@pytest.mark.quick("AdamW")
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers_schedules_and_groups(name: str):
    module = small()
    other, loss, values = copy.deepcopy(module), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]).double()), []
    pairs = []
    for part in (module, other):
        rest = [*part[1].parameters(), *part[3].parameters()]
        groups = [{"params": part[0].parameters()}, {"params": rest, "lr": 0.02}]
        optimizer = getattr(torch.optim, name)(groups, lr=0.05, **OPTIMIZERS[name])
        pairs.append((optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)))
    step = compile_train(module, loss, pairs[0][0])
    for batch in batches():
        values.append((step(*batch), eager(other, loss, pairs[1][0], *batch)))
        for _, schedule in pairs:
            schedule.step()
    for ours, theirs in values:
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(module.state_dict(), other.state_dict(), rtol=1e-5, atol=1e-6)
    x = batches(1)[0][0]
    torch.testing.assert_close(module.eval()(x), other.eval()(x), rtol=1e-5, atol=1e-6)


def test_arguments_called_key():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = copy.deepcopy(attention)

        def forward(self, query: Any, key: Any) -> Any:
            return self.attention(query, key, key)[0].square().sum()

    module, other = Loss(), Loss()
    step = compile_train(module, None, optim.sgd(0.05))
    other(query=x, key=x + 1).backward()
    step(query=x, key=x + 1)
    for ours, theirs in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs - 0.05 * theirs.grad, rtol=1e-4, atol=1e-5)


def test_models_with_their_own_loss():
    net = made(torch_nets.gpt2)
    module, other = net.module.train(), copy.deepcopy(net.module).train()
    step = compile_train(module, None, optim.sgd(0.05))
    theirs = torch.optim.SGD(other.parameters(), 0.05)
    for _, kwargs, _ in net.batches:
        theirs.zero_grad()
        loss = other(**kwargs).loss
        loss.backward()
        theirs.step()
        torch.testing.assert_close(step(**kwargs), loss.detach())
    torch.testing.assert_close(module.state_dict(), other.state_dict(), rtol=1e-5, atol=1e-5)


def test_frozen_parameters_dropout_and_other_batch_sizes():
    module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    module[0].requires_grad_(False)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    step = compile_train(module, nn.functional.cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    torch.manual_seed(1)
    first = step(x, y)
    assert step(x, y) != first
    torch.manual_seed(1)
    assert step(x, y) == first
    assert step(x[:3], y[:3]).shape == ()
    torch.testing.assert_close(module.state_dict(), before)


def test_values_that_the_script_writes_are_used():
    module, (x, y) = small(), batches(1)[0]
    step = compile_train(module, nn.functional.cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
    step(x, y)
    other = small()
    module.load_state_dict(other.state_dict())
    torch.testing.assert_close(step(x, y), nn.functional.cross_entropy(other(x), y).detach())


def test_options_without_an_equivalent_are_errors():
    module = nn.Linear(2, 1)
    with pytest.raises(ArgumentError, match="Adam is read with amsgrad=False alone, got amsgrad=True"):
        compile_train(module, None, torch.optim.Adam(module.parameters(), amsgrad=True))
    with pytest.raises(ArgumentError, match=r"one of Adadelta, Adam.*got LBFGS"):
        compile_train(module, None, torch.optim.LBFGS(module.parameters()))
    with pytest.raises(ArgumentError, match=r"must be one of torch\.optim, or a gradient transformation, got float"):
        compile_train(module, None, 0.1)
