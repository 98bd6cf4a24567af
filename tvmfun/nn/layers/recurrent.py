"""Recurrent layers over sequences, on :func:`tvmfun.lax.scan`.

The products of all inputs are one matrix product before the loop, so that a step only multiplies the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, random
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.nn import functional
from tvmfun.nn.functional.arguments import check_rate, training_key
from tvmfun.nn.layers.parameters import check_positive, layer
from tvmfun.nn.layers.recurrent_cells import Cell, GRUCell, LSTMCell, RNNCell, initial_states
from tvmfun.typing import ArrayLike, DTypeLike, Key, PyTree

__all__ = ["GRU", "LSTM", "RNN"]


@layer
class _Recurrent:
    """Base class of the layers: cells by layer and direction, and their run over sequences."""

    cells: tuple[tuple[Any, ...], ...]
    dropout: float = field(metadata={"static": True})

    def __init__(
        self,
        make: Callable[..., Any],
        input_size: int,
        num_layers: int,
        bidirectional: bool,
        dropout: float,
        key: Key,
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
        self.cells = tuple(layers)
        self.dropout = dropout

    def _run(
        self, x: ArrayLike, hx: PyTree, seq_lengths: ArrayLike | None, key: Key | None, train: bool
    ) -> tuple[Array, tuple[Array, ...]]:
        """The outputs of the last layer, and the last states of all cells, stacked."""
        where, x = type(self).__name__, tnp.asarray(x)
        first = self.cells[0][0]
        if x.ndim not in (2, 3) or x.shape[-1] != first.weight_ih.shape[0]:
            text = f"the input must be (batch, length, {first.weight_ih.shape[0]}), or without the batch"
            raise ShapeError(where, text, got=str(x.shape), hint="x.transpose(1, 0, 2) for time first")
        count = sum(map(len, self.cells))
        shapes = [(count, *x.shape[:-2], size) for size in first.state_sizes]
        states = initial_states(where, hx, shapes, x, first.weight_hh)
        is_inside = None if seq_lengths is None else self._is_inside(x, seq_lengths)
        rows = tnp.moveaxis(x, -2, 0)
        drops = bool(train and self.dropout)
        key = training_key(where, key, drops and len(self.cells) > 1)
        last, at = [], 0
        for i, cells in enumerate(self.cells):
            if i and drops and key is not None:
                rows = functional.dropout(random.fold_in(key, i), rows, self.dropout, train)
            outputs = []
            for reverse, cell in enumerate(cells):
                start = tuple(state[at] for state in states)
                final, output = _over_time(cell, rows, start, is_inside, bool(reverse))
                last.append(final)
                outputs.append(output)
                at += 1
            rows = outputs[0] if len(outputs) == 1 else tnp.concatenate(outputs, axis=-1)
        return tnp.moveaxis(rows, 0, -2), tuple(tnp.stack(arrays) for arrays in zip(*last, strict=True))

    def _is_inside(self, x: Array, seq_lengths: ArrayLike) -> Array:
        """Whether a step is within the length of its sequence, (length, batch, 1) or (length, 1)."""
        lengths = tnp.asarray(seq_lengths)
        if not dtypes.is_integer(lengths.dtype) or lengths.shape != x.shape[:-2]:
            text = f"seq_lengths must be integers of shape {x.shape[:-2]}"
            raise ShapeError(type(self).__name__, text, got=repr(lengths.aval))
        length = x.shape[-2]
        if isinstance(lengths, DeviceArray) and not dims.is_dynamic(length):
            known = np.asarray(lengths)
            if ((known < 0) | (known > length)).any():
                what = f"seq_lengths must be from 0 to {length}"
                raise ArgumentError(type(self).__name__, what, got=str(known.tolist()))
        steps = tnp.arange(length).reshape(-1, *(1 for _ in lengths.shape))
        return (steps < lengths)[..., None]


def _over_time(
    cell: Cell, rows: Array, start: tuple[Array, ...], is_inside: Array | None, reverse: bool
) -> tuple[tuple[Array, ...], Array]:
    """The last state and the outputs of a cell over a sequence, time first; padding does not change the state."""

    def step(state: tuple, row: tuple) -> tuple[tuple, Array]:
        projected, is_inside = row
        new = cell.step(state, projected)
        if is_inside is None:
            return new, new[0]
        kept = tuple(tnp.where(is_inside, a, b) for a, b in zip(new, state, strict=True))
        return kept, tnp.where(is_inside, new[0], tnp.zeros_like(new[0]))

    return lax.scan(step, start, (cell.project(rows), is_inside), reverse=reverse)


class _OneState(_Recurrent):
    """Base class of the layers whose state is one array."""

    def __call__(
        self,
        x: ArrayLike,
        hx: ArrayLike | None = None,
        *,
        seq_lengths: ArrayLike | None = None,
        key: Key | None = None,
        train: bool = True,
    ) -> tuple[Array, Array]:
        """Runs over sequences.

        Args:
            x: inputs of shape (batch, length, input_size), or (length, input_size).
            hx: the first state, of shape (num_layers * directions, batch, hidden_size), zeros by default: layer by
                layer, the forward direction before the backward one.
            seq_lengths: integers of shape (batch,). Outputs past these lengths are zeros, and the last state is the
                one at the length, as for a packed sequence in PyTorch.
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

    ``cells[layer][direction]`` is an :class:`RNNCell`, which documents the formula and the shapes of the weights.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of units of each direction.
        num_layers: the number of layers; each reads the outputs of the previous one.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        bias: whether to add biases.
        dropout: the probability with which an output is zeroed between layers while training.
        bidirectional: whether to read the sequences backwards as well, with other weights.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a number is out of range, or the nonlinearity is unknown.
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
        key: Key,
        dtype: DTypeLike = "float32",
    ) -> None:
        make = partial(RNNCell, hidden_size=hidden_size, bias=bias, nonlinearity=nonlinearity, dtype=dtype)
        super().__init__(make, input_size, num_layers, bidirectional, dropout, key)


@layer
class LSTM(_Recurrent):
    """Long short-term memories over sequences of shape (batch, length, features).

    ``cells[layer][direction]`` is an :class:`LSTMCell`, which documents the formula and the shapes of the weights.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of units of each direction.
        num_layers: the number of layers; each reads the outputs of the previous one.
        bias: whether to add biases.
        dropout: the probability with which an output is zeroed between layers while training.
        bidirectional: whether to read the sequences backwards as well, with other weights.
        proj_size: the size that ``h`` is projected to; 0 for no projection.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a number is out of range.
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
        key: Key,
        dtype: DTypeLike = "float32",
    ) -> None:
        make = partial(LSTMCell, hidden_size=hidden_size, bias=bias, proj_size=proj_size, dtype=dtype)
        super().__init__(make, input_size, num_layers, bidirectional, dropout, key)

    def __call__(
        self,
        x: ArrayLike,
        hx: PyTree = None,
        *,
        seq_lengths: ArrayLike | None = None,
        key: Key | None = None,
        train: bool = True,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Runs over sequences.

        Args:
            x: inputs of shape (batch, length, input_size), or (length, input_size).
            hx: the first state ``(h, c)``, zeros by default, both of shape (num_layers * directions, batch,
                hidden_size), h with ``proj_size`` if there is one: layer by layer, the forward direction before the
                backward one.
            seq_lengths: integers of shape (batch,). Outputs past these lengths are zeros, and the last state is the
                one at the length, as for a packed sequence in PyTorch.
            key: a key of :mod:`tvmfun.random` for the dropout, needed only if ``train``.
            train: whether to drop outputs.

        Returns:
            The outputs of the last layer, (batch, length, directions * hidden_size), or with ``proj_size`` for
            ``hidden_size``, and the last state, shaped like ``hx``.

        Raises:
            ShapeError: if a shape does not fit.
            ArgumentError: if the key of the dropout is missing.
        """
        y, (h, c) = self._run(x, hx, seq_lengths, key, train)
        return y, (h, c)


@layer
class GRU(_OneState):
    """Gated recurrent units over sequences of shape (batch, length, features).

    ``cells[layer][direction]`` is a :class:`GRUCell`, which documents the formula and the shapes of the weights.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of units of each direction.
        num_layers: the number of layers; each reads the outputs of the previous one.
        bias: whether to add biases.
        dropout: the probability with which an output is zeroed between layers while training.
        bidirectional: whether to read the sequences backwards as well, with other weights.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a number is out of range.
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
        key: Key,
        dtype: DTypeLike = "float32",
    ) -> None:
        make = partial(GRUCell, hidden_size=hidden_size, bias=bias, dtype=dtype)
        super().__init__(make, input_size, num_layers, bidirectional, dropout, key)
