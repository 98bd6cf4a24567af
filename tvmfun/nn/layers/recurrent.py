"""Recurrent layers on :func:`tvmfun.lax.scan`, with PyTorch's formulas and order of gates.

The products of all inputs are one matrix product before the loop, so that a step only multiplies the state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, random
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.jit import jit
from tvmfun.nn import functional
from tvmfun.nn.functional.arguments import check_rate
from tvmfun.nn.layers.parameters import check_positive, layer

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": functional.relu, "tanh": tnp.tanh}


# -- cells -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False, eq=False)
class _Cell:
    """What cells share: their weights and how many there are."""

    gates: ClassVar[int]

    weight_ih: Array
    weight_hh: Array
    bias_ih: Array | None
    bias_hh: Array | None

    def _set_weights(self, inputs: int, width: int, bias: bool, key: Any, dtype: Any, state: int | None = None) -> None:
        """Draws the weights; ``state`` is the size of the state that is multiplied, where it is not the width."""
        where = type(self).__name__
        check_positive(where, input_size=inputs, hidden_size=width)
        dtype, columns = dtypes.canonical(dtype), self.gates * width
        if not dtypes.is_float(dtype):
            raise DtypeError(where, "the dtype of the parameters must be a float", got=str(dtype), hint='"float32"')
        shapes = {"weight_ih": (inputs, columns), "weight_hh": (width if state is None else state, columns)}
        shapes |= {"bias_ih": (columns,), "bias_hh": (columns,)} if bias else {}
        shapes |= {} if state is None else {"weight_hr": (width, state)}
        drawn = _draw(key, shapes=tuple(shapes.values()), bound=1 / math.sqrt(width), dtype=dtype)
        for name, array in {"bias_ih": None, "bias_hh": None, **dict(zip(shapes, drawn, strict=True))}.items():
            object.__setattr__(self, name, array)

    @property
    def hidden_size(self) -> int:
        """The number of units."""
        return self.weight_hh.shape[1] // self.gates

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The size of each array of the state."""
        return (self.weight_hh.shape[0],)

    def project(self, x: Any) -> Any:
        """What a step, or all steps at once, needs of the inputs (..., input_size): ``x @ weight_ih`` and biases."""
        bias = None if self.bias_ih is None or self.bias_hh is None else self.bias_ih + self._outer_bias()
        return functional.linear(x, self.weight_ih, bias)

    def _outer_bias(self) -> Any:
        """What of ``bias_hh`` can be added before the loop."""
        return self.bias_hh

    def step(self, state: tuple, projected: Any) -> tuple:
        """The next state, a tuple of arrays of which the first one is the output."""
        raise NotImplementedError

    def _start(self, x: Any, hx: Any) -> tuple:
        """The given state, checked, or zeros."""
        where, x = type(self).__name__, tnp.asarray(x)
        if x.ndim not in (1, 2):
            hint = f"{where.removesuffix('Cell')} for sequences"
            raise ShapeError(
                where, "the input must be (batch, input_size) or (input_size,)", got=str(x.shape), hint=hint
            )
        return _states(where, hx, [(*x.shape[:-1], size) for size in self.state_sizes], x, self.weight_hh)


def _states(where: str, hx: Any, shapes: Sequence[tuple], *others: Any) -> tuple:
    """The arrays of a state, each of its shape, zeros if none are given; of the dtype that a step returns."""
    if hx is None:
        return tuple(tnp.zeros(shape, tnp.result_type(*others)) for shape in shapes)
    if len(shapes) > 1 and (not isinstance(hx, tuple | list) or len(hx) != len(shapes)):
        raise ArgumentError(where, "the state must be a pair (h, c)", got=type(hx).__name__, hint="hx=(h, c)")
    arrays = [tnp.asarray(array) for array in (hx if len(shapes) > 1 else (hx,))]
    for array, shape in zip(arrays, shapes, strict=True):
        if array.shape != shape:
            raise ShapeError(where, f"the state must have the shape {shape}", got=str(array.shape))
    return tuple(tnp.astype(array, tnp.result_type(*arrays, *others)) for array in arrays)


# Compiled as a whole: op by op, each new shape would compile every op of the generator.
@partial(jit, static_argnames=("shapes", "bound", "dtype"))
def _draw(key: Any, *, shapes: tuple[tuple[int, ...], ...], bound: float, dtype: Any) -> list[Array]:
    keys = random.split(key, len(shapes))
    return [random.uniform(keys[i], shape, dtype, -bound, bound) for i, shape in enumerate(shapes)]


@layer
class RNNCell(_Cell):
    r"""One step of Elman's recurrent network.

    .. math::

        h' = \tanh(x W_{ih} + b_{ih} + h W_{hh} + b_{hh})

    The weights have the shapes (input_size, hidden_size) and (hidden_size, hidden_size), PyTorch's transposed.
    All parameters begin uniform between ``-1 / sqrt(hidden_size)`` and ``1 / sqrt(hidden_size)``.

    Args:
        input_size: the size of the last axis of the input.
        hidden_size: that of the state.
        bias: whether to add biases.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a size is not positive, or the nonlinearity another one.
        DtypeError: if ``dtype`` is not a float.

    Reference: Elman, "Finding Structure in Time" (1990).

    >>> cell = RNNCell(3, 4, key=random.key(0))
    >>> cell(tnp.ones((2, 3))).shape
    (2, 4)
    """

    gates = 1

    nonlinearity: str = field(metadata={"static": True})

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        nonlinearity: str = "tanh",
        key: Any,
        dtype: Any = "float32",
    ) -> None:
        if nonlinearity not in _ACTIVATIONS:
            hint = " or ".join(map(repr, _ACTIVATIONS))
            raise ArgumentError("RNNCell", "unknown nonlinearity", got=repr(nonlinearity), hint=hint)
        self._set_weights(input_size, hidden_size, bias, key, dtype)
        object.__setattr__(self, "nonlinearity", nonlinearity)

    def step(self, state: tuple, projected: Any) -> tuple:
        """The next state from the last one and :meth:`project` of the input."""
        return (_ACTIVATIONS[self.nonlinearity](projected + state[0] @ self.weight_hh),)

    def __call__(self, x: Any, hx: Any = None) -> Any:
        """The next state (batch, hidden_size), of an input (batch, input_size) and a state, zeros if not given."""
        return self.step(self._start(x, hx), self.project(x))[0]


@layer
class LSTMCell(_Cell):
    r"""One step of a long short-term memory.

    .. math::

        (i, f, g, o) &= x W_{ih} + b_{ih} + h W_{hh} + b_{hh} \\
        c' &= \sigma(f) c + \sigma(i) \tanh(g) \\
        h' &= \sigma(o) \tanh(c') \; [W_{hr}]

    The weights have the shapes (input_size, 4 * hidden_size) and (hidden_size, 4 * hidden_size), PyTorch's
    transposed, with the gates in this order. All parameters begin uniform between ``-1 / sqrt(hidden_size)`` and
    ``1 / sqrt(hidden_size)``.

    Args:
        input_size: the size of the last axis of the input.
        hidden_size: that of the state.
        bias: whether to add biases.
        proj_size: if not 0, the size that ``h`` is projected to, by a weight (hidden_size, proj_size).
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a size is not positive, or ``proj_size`` is not less than ``hidden_size``.
        DtypeError: if ``dtype`` is not a float.

    Reference: Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997); Sak et al., "Long Short-Term Memory Based
    Recurrent Neural Network Architectures for Large Vocabulary Speech Recognition" (2014) for the projection.

    >>> cell = LSTMCell(3, 4, key=random.key(0))
    >>> h, c = cell(tnp.ones((2, 3)))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates = 4

    weight_hr: Array | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        proj_size: int = 0,
        key: Any,
        dtype: Any = "float32",
    ) -> None:
        if not isinstance(proj_size, int) or not 0 <= proj_size < hidden_size:
            raise ArgumentError(
                "LSTMCell", f"proj_size must be at least 0 and less than {hidden_size}", got=repr(proj_size)
            )
        object.__setattr__(self, "weight_hr", None)
        self._set_weights(input_size, hidden_size, bias, key, dtype, proj_size or None)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The sizes of ``h`` and ``c``."""
        return self.weight_hh.shape[0], self.hidden_size

    def step(self, state: tuple, projected: Any) -> tuple:
        """The next state ``(h, c)`` from the last one and :meth:`project` of the input."""
        h, c = state
        i, f, g, o = tnp.split(projected + h @ self.weight_hh, 4, axis=-1)
        c = functional.sigmoid(f) * c + functional.sigmoid(i) * tnp.tanh(g)
        h = functional.sigmoid(o) * tnp.tanh(c)
        return h if self.weight_hr is None else h @ self.weight_hr, c

    def __call__(self, x: Any, hx: Any = None) -> tuple[Any, Any]:
        """The next state ``(h, c)``, of an input (batch, input_size) and a state, zeros if not given."""
        h, c = self.step(self._start(x, hx), self.project(x))
        return h, c


@layer
class GRUCell(_Cell):
    r"""One step of a gated recurrent unit.

    .. math::

        r &= \sigma(x W_{ir} + b_{ir} + h W_{hr} + b_{hr}) \\
        z &= \sigma(x W_{iz} + b_{iz} + h W_{hz} + b_{hz}) \\
        n &= \tanh(x W_{in} + b_{in} + r (h W_{hn} + b_{hn})) \\
        h' &= (1 - z) n + z h

    The weights have the shapes (input_size, 3 * hidden_size) and (hidden_size, 3 * hidden_size), PyTorch's
    transposed, with the gates in this order. All parameters begin uniform between ``-1 / sqrt(hidden_size)`` and
    ``1 / sqrt(hidden_size)``.

    Args:
        input_size: the size of the last axis of the input.
        hidden_size: that of the state.
        bias: whether to add biases.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a size is not positive.
        DtypeError: if ``dtype`` is not a float.

    Reference: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
    Translation" (2014), with the reset gate after the product, as in cuDNN.

    >>> cell = GRUCell(3, 4, key=random.key(0))
    >>> cell(tnp.ones((2, 3))).shape
    (2, 4)
    """

    gates = 3

    def __init__(
        self, input_size: int, hidden_size: int, *, bias: bool = True, key: Any, dtype: Any = "float32"
    ) -> None:
        self._set_weights(input_size, hidden_size, bias, key, dtype)

    def _outer_bias(self) -> Any:
        # The reset gate multiplies the last third, which therefore stays inside.
        assert self.bias_hh is not None
        return tnp.pad(self.bias_hh[: 2 * self.hidden_size], (0, self.hidden_size))

    def step(self, state: tuple, projected: Any) -> tuple:
        """The next state from the last one and :meth:`project` of the input."""
        (h,) = state
        x_r, x_z, x_n = tnp.split(projected, 3, axis=-1)
        h_r, h_z, h_n = tnp.split(h @ self.weight_hh, 3, axis=-1)
        if self.bias_hh is not None:
            h_n = h_n + self.bias_hh[2 * self.hidden_size :]
        r, z = functional.sigmoid(x_r + h_r), functional.sigmoid(x_z + h_z)
        n = tnp.tanh(x_n + r * h_n)
        return (n + z * (h - n),)

    def __call__(self, x: Any, hx: Any = None) -> Any:
        """The next state (batch, hidden_size), of an input (batch, input_size) and a state, zeros if not given."""
        return self.step(self._start(x, hx), self.project(x))[0]


# -- layers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False, eq=False)
class _Recurrent:
    """What the layers share: cells by layer and direction, and how they run over sequences."""

    cells: tuple[tuple[Any, ...], ...]
    dropout: float = field(metadata={"static": True})

    def _set_cells(
        self,
        make: Callable[..., Any],
        input_size: int,
        num_layers: int,
        bidirectional: bool,
        dropout: float,
        key: Any,
    ) -> None:
        """Makes the cells with ``make(inputs, key=key)``."""
        where = type(self).__name__
        check_positive(where, input_size=input_size, num_layers=num_layers)
        check_rate(where, dropout)
        directions, inputs, layers = 2 if bidirectional else 1, input_size, []
        keys = random.split(key, num_layers * directions)
        for i in range(num_layers):
            layers.append(tuple(make(inputs, key=keys[i * directions + j]) for j in range(directions)))
            inputs = directions * layers[0][0].state_sizes[0]
        object.__setattr__(self, "cells", tuple(layers))
        object.__setattr__(self, "dropout", dropout)

    def _run(self, x: Any, hx: Any, seq_lengths: Any, key: Any, train: bool) -> tuple[Any, tuple]:
        """The outputs, and the last states as a tuple of arrays."""
        where, x = type(self).__name__, tnp.asarray(x)
        first = self.cells[0][0]
        if x.ndim not in (2, 3) or x.shape[-1] != first.weight_ih.shape[0]:
            text = f"the input must be (batch, length, {first.weight_ih.shape[0]}), or without the batch"
            raise ShapeError(where, text, got=str(x.shape), hint="x.transpose(1, 0, 2) for time first")
        count = sum(map(len, self.cells))
        shapes = [(count, *x.shape[:-2], size) for size in first.state_sizes]
        states = _states(where, hx, shapes, x, first.weight_hh)
        runs = None if seq_lengths is None else self._runs(x, seq_lengths)
        rows = tnp.moveaxis(x, -2, 0)
        last, at = [], 0
        for i, cells in enumerate(self.cells):
            if i and self.dropout and train:
                if key is None:
                    raise ArgumentError(where, "a key is needed for training", got="None", hint="key=random.key(0)")
                rows = functional.dropout(random.fold_in(key, i), rows, self.dropout, train)
            outputs = []
            for reverse, cell in enumerate(cells):
                start = tuple(state[at] for state in states)
                final, output = _over_time(cell, rows, start, runs, bool(reverse))
                last.append(final)
                outputs.append(output)
                at += 1
            rows = outputs[0] if len(outputs) == 1 else tnp.concatenate(outputs, axis=-1)
        return tnp.moveaxis(rows, 0, -2), tuple(tnp.stack(arrays) for arrays in zip(*last, strict=True))

    def _runs(self, x: Array, seq_lengths: Any) -> Array:
        """Which steps of which sequences count, (length, batch, 1) or (length, 1)."""
        lengths = tnp.asarray(seq_lengths)
        if not dtypes.is_integer(lengths.dtype) or lengths.shape != x.shape[:-2]:
            text = f"seq_lengths must be integers of shape {x.shape[:-2]}"
            raise ShapeError(type(self).__name__, text, got=repr(lengths.aval))
        steps = tnp.arange(x.shape[-2]).reshape(-1, *(1 for _ in lengths.shape))
        return (steps < lengths)[..., None]


def _over_time(cell: Any, rows: Array, start: tuple, runs: Array | None, reverse: bool) -> tuple[tuple, Array]:
    """One cell over a sequence, time first; states stay what they are where a sequence does not run."""

    def step(state: tuple, row: tuple) -> tuple[tuple, Any]:
        projected, runs = row
        new = cell.step(state, projected)
        if runs is None:
            return new, new[0]
        kept = tuple(tnp.where(runs, a, b) for a, b in zip(new, state, strict=True))
        return kept, tnp.where(runs, new[0], tnp.zeros_like(new[0]))

    return lax.scan(step, start, (cell.project(rows), runs), reverse=reverse)


class _OneState(_Recurrent):
    """What networks do whose state is one array."""

    def __call__(
        self, x: Any, hx: Any = None, *, seq_lengths: Any = None, key: Any = None, train: bool = True
    ) -> tuple[Any, Any]:
        """Runs over sequences.

        Args:
            x: inputs of shape (batch, length, input_size), or (length, input_size).
            hx: the first state, of shape (num_layers * directions, batch, hidden_size), zeros if not given:
                layer by layer, forwards before backwards.
            seq_lengths: integers of shape (batch,); steps behind them do not happen: their outputs are zeros, and the
                last state is the one at the length, as for a packed sequence in PyTorch.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop outputs.

        Returns:
            The outputs of the last layer, (batch, length, directions * hidden_size), and the last state, shaped
            like ``hx``.

        Raises:
            ShapeError: if a shape does not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        y, (h,) = self._run(x, hx, seq_lengths, key, train)
        return y, h


@layer
class RNN(_OneState):
    """Elman's recurrent network over sequences of shape (batch, length, features).

    ``cells[layer][direction]`` is an :class:`RNNCell`, where the formula and the shapes of the weights are.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of units of each direction.
        num_layers: how many layers there are; each one reads the outputs of the one before.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        bias: whether to add biases.
        dropout: the probability with which an output is zeroed between layers while training.
        bidirectional: whether to read the sequences backwards as well, with other weights.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a number is not what it must be.
        DtypeError: if ``dtype`` is not a float.

    >>> layer = RNN(3, 4, key=random.key(0))
    >>> y, h = layer(tnp.ones((2, 5, 3)))
    >>> y.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        nonlinearity: str = "tanh",
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        key: Any,
        dtype: Any = "float32",
    ) -> None:
        make = partial(RNNCell, hidden_size=hidden_size, bias=bias, nonlinearity=nonlinearity, dtype=dtype)
        self._set_cells(make, input_size, num_layers, bidirectional, dropout, key)


@layer
class LSTM(_Recurrent):
    """Long short-term memories over sequences of shape (batch, length, features).

    ``cells[layer][direction]`` is an :class:`LSTMCell`, where the formula and the shapes of the weights are.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of units of each direction.
        num_layers: how many layers there are; each one reads the outputs of the one before.
        bias: whether to add biases.
        dropout: the probability with which an output is zeroed between layers while training.
        bidirectional: whether to read the sequences backwards as well, with other weights.
        proj_size: if not 0, the size that ``h`` is projected to.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a number is not what it must be.
        DtypeError: if ``dtype`` is not a float.

    >>> layer = LSTM(3, 4, num_layers=2, bidirectional=True, key=random.key(0))
    >>> y, (h, c) = layer(tnp.ones((2, 5, 3)), seq_lengths=tnp.asarray([5, 3]))
    >>> y.shape, h.shape, c.shape
    ((2, 5, 8), (4, 2, 4), (4, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        key: Any,
        dtype: Any = "float32",
    ) -> None:
        make = partial(LSTMCell, hidden_size=hidden_size, bias=bias, proj_size=proj_size, dtype=dtype)
        self._set_cells(make, input_size, num_layers, bidirectional, dropout, key)

    def __call__(
        self, x: Any, hx: Any = None, *, seq_lengths: Any = None, key: Any = None, train: bool = True
    ) -> tuple[Any, tuple[Any, Any]]:
        """Runs over sequences.

        Args:
            x: inputs of shape (batch, length, input_size), or (length, input_size).
            hx: the first state ``(h, c)``, both of shape (num_layers * directions, batch, hidden_size), but h with
                ``proj_size`` if there is one; zeros if not given. Layer by layer, forwards before backwards.
            seq_lengths: integers of shape (batch,); steps behind them do not happen: their outputs are zeros, and the
                last state is the one at the length, as for a packed sequence in PyTorch.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop outputs.

        Returns:
            The outputs of the last layer, (batch, length, directions * hidden_size), or with ``proj_size``, and the
            last state, shaped like ``hx``.

        Raises:
            ShapeError: if a shape does not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        y, (h, c) = self._run(x, hx, seq_lengths, key, train)
        return y, (h, c)


@layer
class GRU(_OneState):
    """Gated recurrent units over sequences of shape (batch, length, features).

    ``cells[layer][direction]`` is a :class:`GRUCell`, where the formula and the shapes of the weights are.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of units of each direction.
        num_layers: how many layers there are; each one reads the outputs of the one before.
        bias: whether to add biases.
        dropout: the probability with which an output is zeroed between layers while training.
        bidirectional: whether to read the sequences backwards as well, with other weights.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a number is not what it must be.
        DtypeError: if ``dtype`` is not a float.

    >>> layer = GRU(3, 4, key=random.key(0))
    >>> y, h = layer(tnp.ones((2, 5, 3)))
    >>> y.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        key: Any,
        dtype: Any = "float32",
    ) -> None:
        make = partial(GRUCell, hidden_size=hidden_size, bias=bias, dtype=dtype)
        self._set_cells(make, input_size, num_layers, bidirectional, dropout, key)
