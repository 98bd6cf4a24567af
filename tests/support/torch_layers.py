"""Layers beside PyTorch's with the same weights: results, gradients of inputs and parameters, and steps of SGD."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, tree

torch: Any = pytest.importorskip("torch")

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
RATE = 0.1


def weights(layer: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of a layer, or of its gradient, with PyTorch's names, axes and order."""
    if isinstance(layer, nn.RNN | nn.LSTM | nn.GRU):
        found = {}
        for i, cells in enumerate(layer.cells):
            for cell, ending in zip(cells, ("", "_reverse"), strict=False):
                found |= {f"{prefix}{name}_l{i}{ending}": array for name, array in weights(cell).items()}
        return found
    if isinstance(layer, nn.MultiHeadAttention):
        maps = (layer.q_proj, layer.k_proj, layer.v_proj)
        found = weights(layer.out_proj, f"{prefix}out_proj.")
        if len({map_.weight.shape[0] for map_ in maps}) == 1:
            found[f"{prefix}in_proj_weight"] = np.concatenate([np.asarray(map_.weight).T for map_ in maps])
        else:
            found |= {
                f"{prefix}{name}_proj_weight": np.asarray(m.weight).T for name, m in zip("qkv", maps, strict=True)
            }
        if layer.q_proj.bias is not None:
            found[f"{prefix}in_proj_bias"] = np.concatenate([np.asarray(map_.bias) for map_ in maps])
        return found
    found = {}
    for field in dataclasses.fields(layer):
        value, name = getattr(layer, field.name), prefix + field.name
        if field.metadata.get("static"):
            continue
        if isinstance(value, tvmfun.Array):
            found[name] = np.asarray(value).T
        elif isinstance(value, tuple | nn.Stacked):
            for i, part in enumerate(value):
                found |= weights(part, f"{name}.{i}.")
        elif dataclasses.is_dataclass(value):
            found |= weights(value, f"{name}.")
    return found


def perturbed(layer: Any, seed: int = 5) -> Any:
    """A layer with other parameters: no zeros and ones, which hide mistakes."""
    rng = np.random.default_rng(seed)
    return tree.map(lambda x: tnp.asarray(np.asarray(x) + 0.1 * rng.normal(size=x.shape).astype(x.dtype)), layer)


def check(
    layer: Any,
    theirs: Any,
    inputs: Sequence[np.ndarray],
    ours_on: Callable[..., Any],
    theirs_on: Callable[..., Any],
    steps: int = 3,
) -> None:
    """Compares ``ours_on(layer, *inputs)`` with ``theirs_on(module, *tensors)``: trees of arrays of floats."""
    dtype = inputs[0].dtype
    layer = perturbed(layer)
    tolerance = TOLERANCE[str(dtype)]
    theirs = theirs.to(getattr(torch, str(dtype))).train()
    theirs.load_state_dict({name: torch.tensor(np.array(x)) for name, x in weights(layer).items()})
    optimizer = torch.optim.SGD(theirs.parameters(), RATE)
    tensors = [torch.tensor(x, requires_grad=True) for x in inputs]

    def factors(outputs: Any) -> list:
        return [np.cos(np.arange(int(np.prod(x.shape))) + i).reshape(x.shape) for i, x in enumerate(outputs)]

    @tvmfun.jit
    def step(layer, *inputs):
        def loss(layer, *inputs):
            outputs = tree.leaves(ours_on(layer, *inputs))
            return sum(tnp.mean(x * f.astype(dtype)) for x, f in zip(outputs, factors(outputs), strict=True)), outputs

        places = tuple(range(len(inputs) + 1))
        (_, outputs), grads = tvmfun.value_and_grad(loss, places, has_aux=True)(layer, *inputs)
        return outputs, grads, tree.map(lambda p, g: p - RATE * g, layer, grads[0])

    def near(got: Any, expected: Any, name: str) -> None:
        got, expected = np.asarray(got), expected.detach().numpy()
        assert got.dtype == expected.dtype and got.shape == expected.shape, name
        scale = max(1.0, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale, err_msg=name)

    for i in range(steps):
        outputs, (grads, *input_grads), layer = step(layer, *inputs)
        optimizer.zero_grad()
        expected = torch.utils._pytree.tree_leaves(theirs_on(theirs, *tensors))
        sum(
            (x * torch.tensor(f, dtype=x.dtype)).mean() for x, f in zip(expected, factors(expected), strict=True)
        ).backward()
        optimizer.step()
        if i == 0:
            for j, (got, tensor) in enumerate(zip(input_grads, tensors, strict=True)):
                near(got, tensor.grad, f"gradient of input {j}")
            found = weights(grads)
            for name, parameter in theirs.named_parameters():
                near(found.pop(name), parameter.grad, f"gradient of {name}")
            assert not found
        for j, (got, value) in enumerate(zip(outputs, expected, strict=True)):
            near(got, value, f"output {j} in step {i}")
    for name, got in weights(layer).items():
        near(got, theirs.get_parameter(name), f"{name} after {steps} steps")
