"""Training: derivatives of a part of the graph, and steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tvmfun.numpy as tnp
from tvmfun.errors import ProgramError
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import lifted
from tvmfun.transforms.autodiff import vjp

if TYPE_CHECKING:
    from tvmfun.interop.onnx.graphs import Call

onnx = Family(__name__, "ai.onnx.preview.training")


@onnx.reads("Gradient", context=True)
def _gradient(call: Call, *inputs: Any, xs: Sequence[str], y: str, zs: Sequence[str] = ()) -> Any:
    """The derivatives of ``y`` by each of ``xs``: as a function of them and of ``zs``, whose values are the inputs."""
    from tvmfun.interop.onnx.graphs import step
    from tvmfun.interop.onnx.nodes import reached

    names = [*xs, *zs]
    if len(inputs) != len(names):
        raise ProgramError("from_onnx", f"{call.node} takes a value for each name", got=f"{len(inputs)} for {names}")
    before = call.run.main.nodes[: call.run.main.nodes.index(call.node)]
    nodes = reached(before, [y], names)

    def function(*moving: Any) -> Any:
        values = dict(call.values)
        values |= zip(names, (*moving, *inputs[len(xs) :]), strict=True)
        for node in nodes:
            step(node, values, call.attributes, call.run)
        return lifted(values[y])

    result, pull = vjp(function, *map(lifted, inputs[: len(xs)]))
    return list(pull(tnp.ones_like(result)))


def _each(count: int, function: Callable[..., tuple], arrays: Sequence[Any]) -> list[Any]:
    """The results of a step for each parameter, all first results before all second ones."""
    size = len(arrays) // count
    groups = [arrays[i * size : (i + 1) * size] for i in range(count)]
    results = [function(*group) for group in zip(*groups, strict=True)]
    return [result[i] for i in range(len(results[0])) for result in results]


@onnx.reads("Adagrad")
def _adagrad(
    rate: Any, count: Any, *arrays: Any, decay_factor: float = 0.0, epsilon: float = 1e-6, norm_coefficient: float = 0.0
) -> Any:
    """Parameters, gradients, and accumulated squares of the gradients."""

    def step(x: Any, gradient: Any, squares: Any) -> tuple:
        current = rate / (1 + tnp.astype(count, rate.dtype) * decay_factor)
        full = norm_coefficient * x + gradient
        squares = squares + full * full
        return tnp.astype(x - current * full / (tnp.sqrt(squares) + epsilon), x.dtype), squares

    return _each(3, step, arrays)


@onnx.reads("Adam")
def _adam(
    rate: Any,
    count: Any,
    *arrays: Any,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Any:
    """Parameters, gradients, and running means of the gradients and of their squares."""

    def step(x: Any, gradient: Any, first: Any, second: Any) -> tuple:
        full = norm_coefficient * x + gradient
        first = alpha * first + (1 - alpha) * full
        second = beta * second + (1 - beta) * full * full
        number = tnp.astype(count, rate.dtype)
        safe = tnp.maximum(number, 1)
        corrected = rate * tnp.sqrt(1 - beta**safe) / (1 - alpha**safe)
        current = tnp.where(number > 0, corrected, rate)
        new = x - current * first / (tnp.sqrt(second) + epsilon)
        return tnp.astype((1 - norm_coefficient_post) * new, x.dtype), first, second

    return _each(4, step, arrays)


@onnx.reads("Momentum")
def _momentum(
    rate: Any, count: Any, *arrays: Any, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Any:
    """Parameters, gradients, and velocities."""

    def step(x: Any, gradient: Any, velocity: Any) -> tuple:
        full = norm_coefficient * x + gradient
        factor = tnp.where(count > 0, tnp.asarray(beta, dtype=x.dtype), tnp.asarray(1.0, dtype=x.dtype))
        velocity = alpha * velocity + factor * full
        direction = full + alpha * velocity if mode == "nesterov" else velocity
        return tnp.astype(x - rate * direction, x.dtype), velocity

    return _each(3, step, arrays)
