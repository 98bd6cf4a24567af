"""Recurrent networks: RNN, GRU and LSTM as scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.errors import ArgumentError
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.nn import functional as nnf

onnx = Family(__name__)

#: The activations, with the values of their constants by default.
_ACTIVATIONS: dict[str, tuple[Callable, float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: tnp.where(x > 0, x, a * tnp.expm1(tnp.minimum(x, 0))), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: tnp.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: tnp.where(x > 0, x, a * x), 0.01, 0.0),
    "relu": (lambda x, a, b: nnf.relu(x), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * tnp.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: nnf.sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: nnf.softplus(x), 0.0, 0.0),
    "softsign": (lambda x, a, b: nnf.soft_sign(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: tnp.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: tnp.where(x > a, x, tnp.zeros_like(x)), 1.0, 0.0),
}


def _activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Callable]:
    result, first, second = [], list(alphas), list(betas)
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise ArgumentError("from_onnx", f"the activation is one of {', '.join(_ACTIVATIONS)}", got=repr(name))
        function, alpha, beta = _ACTIVATIONS[name.lower()]
        a = first.pop(0) if first and alpha else alpha
        b = second.pop(0) if second and (beta or name.lower() == "affine") else beta
        result.append(lambda x, function=function, a=a, b=b: function(x, a, b))
    return result


def _halves(bias: Any, direction: int, like: Any) -> tuple[Any, Any]:
    """The biases of the inputs and of the state."""
    if bias is None:
        zero = tnp.zeros(like.shape[1], dtype=like.dtype)
        return zero, zero
    half = bias.shape[1] // 2
    return bias[direction, :half], bias[direction, half:]


def _run(
    x: Any,
    weight: Any,
    lengths: Any,
    states: Sequence[Any],
    layout: int,
    direction: str,
    cell: Callable[[int, Any, tuple], tuple],
) -> tuple:
    """The states of all steps (time, directions, batch, size) and the last ones, for each direction.

    Args:
        x: the sequences (time, batch, inputs).
        weight: of the inputs, (directions, gates * size, inputs).
        lengths: of the sequences, or None; the states after the end of one are zero, and its last state is kept.
        states: the first states (directions, batch, size), or None for zeros.
        layout: 1 if the batch is the first axis, of the sequences and of the states.
        direction: ``"forward"``, ``"reverse"`` or ``"bidirectional"``.
        cell: returns the states after those of a step, from the number of the direction and the input.
    """
    count = weight.shape[0]
    if layout:
        x = tnp.swapaxes(x, 0, 1)
        states = [None if s is None else tnp.swapaxes(s, 0, 1) for s in states]
    time = tnp.arange(x.shape[0], dtype="int64")
    ys, lasts = [], []
    for d in range(count):
        start = tuple(s[d] for s in states)

        def step(carry: tuple, row: tuple, d: int = d) -> tuple:
            value, t = row
            news = cell(d, value, carry)
            if lengths is None:
                return news, news[0]
            inside = (t < lengths)[:, None]
            kept = tuple(tnp.where(inside, new, old) for new, old in zip(news, carry, strict=True))
            return kept, tnp.where(inside, news[0], tnp.zeros_like(news[0]))

        backwards = direction == "reverse" or d == 1
        last, y = lax.scan(step, start, (x, time), reverse=backwards)
        ys.append(y)
        lasts.append(last)
    y = tnp.stack(ys, axis=1)
    ends = [tnp.stack(parts, axis=0) for parts in zip(*lasts, strict=True)]
    if layout:
        return (tnp.permute_dims(y, (2, 0, 1, 3)), *(tnp.swapaxes(end, 0, 1) for end in ends))
    return (y, *ends)


def _first(state: Any, x: Any, r: Any, layout: int) -> Any:
    """The first state, zero by default."""
    if state is not None:
        return state
    batch = x.shape[0] if layout else x.shape[1]
    shape = (batch, r.shape[0], r.shape[2]) if layout else (r.shape[0], batch, r.shape[2])
    return tnp.zeros(shape, dtype=x.dtype)


def _clipped(x: Any, clip: float | None) -> Any:
    return x if clip is None else tnp.clip(x, -clip, clip)


def _names(activations: Sequence[str] | None, default: Sequence[str], directions: int) -> list[list[str]]:
    names = list(activations or list(default) * directions)
    size = len(default)
    if len(names) != size * directions:
        raise ArgumentError("from_onnx", f"there must be {size} activations for each direction", got=str(names))
    return [names[i * size : (i + 1) * size] for i in range(directions)]


@onnx.reads("RNN")
def _rnn(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    first: Any = None,
    *,
    hidden_size: int | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    layout: int = 0,
    output_sequence: int = 0,
) -> Any:
    names = _names(activations, ("Tanh",), w.shape[0])
    functions = _activations([n for part in names for n in part], activation_alpha, activation_beta)

    def cell(d: int, value: Any, states: tuple) -> tuple:
        of_input, of_state = _halves(bias, d, w)
        return (functions[d](_clipped(value @ w[d].T + states[0] @ r[d].T + of_input + of_state, clip)),)

    return _run(x, w, lengths, [_first(first, x, r, layout)], layout, direction, cell)


@onnx.reads("GRU")
def _gru(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    first: Any = None,
    *,
    hidden_size: int | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> Any:
    """Gates: update, reset, and the new state."""
    names = _names(activations, ("Sigmoid", "Tanh"), w.shape[0])
    functions = _activations([n for part in names for n in part], activation_alpha, activation_beta)

    def cell(d: int, value: Any, states: tuple) -> tuple:
        (h,), (f, g) = states, functions[2 * d : 2 * d + 2]
        of_input, of_state = _halves(bias, d, w)
        size = r.shape[2]
        inputs = value @ w[d].T + of_input
        gates = inputs[:, : 2 * size] + h @ r[d, : 2 * size].T + of_state[: 2 * size]
        update, reset = tnp.split(f(_clipped(gates, clip)), 2, axis=1)
        if linear_before_reset:
            hidden = reset * (h @ r[d, 2 * size :].T + of_state[2 * size :])
        else:
            hidden = (reset * h) @ r[d, 2 * size :].T + of_state[2 * size :]
        new = g(_clipped(inputs[:, 2 * size :] + hidden, clip))
        return ((1 - update) * new + update * h,)

    return _run(x, w, lengths, [_first(first, x, r, layout)], layout, direction, cell)


@onnx.reads("LSTM")
def _lstm(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    first: Any = None,
    first_cell: Any = None,
    peepholes: Any = None,
    *,
    hidden_size: int | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> Any:
    """Gates: input, output, forget, and the new cell."""
    names = _names(activations, ("Sigmoid", "Tanh", "Tanh"), w.shape[0])
    functions = _activations([n for part in names for n in part], activation_alpha, activation_beta)

    def cell(d: int, value: Any, states: tuple) -> tuple:
        (h, c), (f, g, last) = states, functions[3 * d : 3 * d + 3]
        of_input, of_state = _halves(bias, d, w)
        gates = value @ w[d].T + h @ r[d].T + of_input + of_state
        i, o, forget, new = tnp.split(gates, 4, axis=1)
        pi, po, pf = tnp.split(peepholes[d], 3) if peepholes is not None else (np.float32(0),) * 3
        seen = lambda gate, p, c: f(
            _clipped(gate + tnp.astype(p * c, gate.dtype) if peepholes is not None else gate, clip)
        )
        i = seen(i, pi, c)
        forget = 1 - i if input_forget else seen(forget, pf, c)
        c = forget * c + i * g(_clipped(new, clip))
        return seen(o, po, c) * last(c), c

    states = [_first(first, x, r, layout), _first(first_cell, x, r, layout)]
    return _run(x, w, lengths, states, layout, direction, cell)
