"""Cells of recurrent layers: one step in time, with PyTorch's formulas and order of gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import ClassVar

import tvmfun.numpy as tnp
from tvmfun import random
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.jit import jit
from tvmfun.nn import functional
from tvmfun.nn.layers.parameters import check_positive, float_dtype, layer
from tvmfun.typing import ArrayLike, DType, DTypeLike, Key, PyTree

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]

_ACTIVATIONS: dict[str, Callable[[ArrayLike], Array]] = {"relu": functional.relu, "tanh": tnp.tanh}


@layer
class Cell:
    """Base class of the cells: the weights of all gates side by side, and how a step starts."""

    gates: ClassVar[int]

    weight_ih: Array
    weight_hh: Array
    bias_ih: Array | None
    bias_hh: Array | None

    def __init__(
        self, input_size: int, hidden_size: int, *, bias: bool, key: Key, dtype: DTypeLike, proj_size: int = 0
    ) -> None:
        where, columns = type(self).__name__, self.gates * hidden_size
        check_positive(where, input_size=input_size, hidden_size=hidden_size)
        dtype = float_dtype(where, dtype)
        shapes = {"weight_ih": (input_size, columns), "weight_hh": (proj_size or hidden_size, columns)}
        shapes |= {"bias_ih": (columns,), "bias_hh": (columns,)} if bias else {}
        shapes |= {"weight_hr": (hidden_size, proj_size)} if proj_size else {}
        drawn = _draw(key, shapes=tuple(shapes.values()), bound=1 / math.sqrt(hidden_size), dtype=dtype)
        for name, array in {"bias_ih": None, "bias_hh": None, **dict(zip(shapes, drawn, strict=True))}.items():
            setattr(self, name, array)

    @property
    def hidden_size(self) -> int:
        """The number of units."""
        return self.weight_hh.shape[1] // self.gates

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The size of each array of the state."""
        return (self.weight_hh.shape[0],)

    def project(self, x: ArrayLike) -> Array:
        """The part of one or all steps that depends on the inputs (..., input_size) only: ``x @ weight_ih``, biases."""
        bias = None
        if self.bias_ih is not None and self.bias_hh is not None:
            bias = self.bias_ih + self._bias_outside_loop(self.bias_hh)
        return functional.linear(x, self.weight_ih, bias)

    def _bias_outside_loop(self, bias_hh: Array) -> Array:
        """The part of ``bias_hh`` that a step does not multiply, so that it can be added before the loop."""
        return bias_hh

    def step(self, state: tuple[Array, ...], projected: Array) -> tuple[Array, ...]:
        """The next state from the last one and :meth:`project` of the input; the first array is also the output."""
        raise NotImplementedError

    def _start(self, x: ArrayLike, hx: PyTree) -> tuple[Array, ...]:
        """The arrays of the state ``hx``, checked; zeros if it is None."""
        where, x = type(self).__name__, tnp.asarray(x)
        if x.ndim not in (1, 2):
            hint = f"{where.removesuffix('Cell')} for sequences"
            raise ShapeError(
                where, "the input must be (batch, input_size) or (input_size,)", got=str(x.shape), hint=hint
            )
        return initial_states(where, hx, [(*x.shape[:-1], size) for size in self.state_sizes], x, self.weight_hh)


@layer
class RNNCell(Cell):
    r"""One step of Elman's recurrent network.

    .. math::

        h' = \tanh(x W_{ih} + b_{ih} + h W_{hh} + b_{hh})

    The weights have the shapes (input_size, hidden_size) and (hidden_size, hidden_size), PyTorch's transposed.
    All parameters are initialized uniform between ``-1 / sqrt(hidden_size)`` and ``1 / sqrt(hidden_size)``.

    Args:
        input_size: the size of the last axis of the input.
        hidden_size: the size of the last axis of the state.
        bias: whether to add biases.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: if a size is not positive, or the nonlinearity is unknown.
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
        key: Key,
        dtype: DTypeLike = "float32",
    ) -> None:
        if nonlinearity not in _ACTIVATIONS:
            hint = " or ".join(map(repr, _ACTIVATIONS))
            raise ArgumentError("RNNCell", "unknown nonlinearity", got=repr(nonlinearity), hint=hint)
        super().__init__(input_size, hidden_size, bias=bias, key=key, dtype=dtype)
        self.nonlinearity = nonlinearity

    def step(self, state: tuple[Array, ...], projected: Array) -> tuple[Array, ...]:
        """The next state from the last one and :meth:`project` of the input."""
        return (_ACTIVATIONS[self.nonlinearity](projected + state[0] @ self.weight_hh),)

    def __call__(self, x: ArrayLike, hx: ArrayLike | None = None) -> Array:
        """The next state (batch, hidden_size) for an input (batch, input_size) and a state, zeros by default."""
        return self.step(self._start(x, hx), self.project(x))[0]


@layer
class LSTMCell(Cell):
    r"""One step of a long short-term memory.

    .. math::

        (i, f, g, o) &= x W_{ih} + b_{ih} + h W_{hh} + b_{hh} \\
        c' &= \sigma(f) c + \sigma(i) \tanh(g) \\
        h' &= \sigma(o) \tanh(c') \; [W_{hr}]

    The weights have the shapes (input_size, 4 * hidden_size) and (hidden_size, 4 * hidden_size), PyTorch's
    transposed, with the gates in this order. All parameters are initialized uniform between
    ``-1 / sqrt(hidden_size)`` and ``1 / sqrt(hidden_size)``.

    Args:
        input_size: the size of the last axis of the input.
        hidden_size: the size of the last axis of the state.
        bias: whether to add biases.
        proj_size: the size that ``h`` is projected to, by a weight (hidden_size, proj_size); 0 for no projection.
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
        key: Key,
        dtype: DTypeLike = "float32",
    ) -> None:
        if not isinstance(proj_size, int) or not 0 <= proj_size < hidden_size:
            raise ArgumentError(
                "LSTMCell", f"proj_size must be at least 0 and less than {hidden_size}", got=repr(proj_size)
            )
        self.weight_hr = None
        super().__init__(input_size, hidden_size, bias=bias, key=key, dtype=dtype, proj_size=proj_size)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The sizes of ``h`` and ``c``."""
        return self.weight_hh.shape[0], self.hidden_size

    def step(self, state: tuple[Array, ...], projected: Array) -> tuple[Array, ...]:
        """The next state ``(h, c)`` from the last one and :meth:`project` of the input."""
        h, c = state
        i, f, g, o = tnp.split(projected + h @ self.weight_hh, 4, axis=-1)
        c = functional.sigmoid(f) * c + functional.sigmoid(i) * tnp.tanh(g)
        h = functional.sigmoid(o) * tnp.tanh(c)
        return h if self.weight_hr is None else h @ self.weight_hr, c

    def __call__(self, x: ArrayLike, hx: PyTree = None) -> tuple[Array, Array]:
        """The next state ``(h, c)`` for an input (batch, input_size) and a state, zeros by default."""
        h, c = self.step(self._start(x, hx), self.project(x))
        return h, c


@layer
class GRUCell(Cell):
    r"""One step of a gated recurrent unit.

    .. math::

        r &= \sigma(x W_{ir} + b_{ir} + h W_{hr} + b_{hr}) \\
        z &= \sigma(x W_{iz} + b_{iz} + h W_{hz} + b_{hz}) \\
        n &= \tanh(x W_{in} + b_{in} + r (h W_{hn} + b_{hn})) \\
        h' &= (1 - z) n + z h

    The weights have the shapes (input_size, 3 * hidden_size) and (hidden_size, 3 * hidden_size), PyTorch's
    transposed, with the gates in this order. All parameters are initialized uniform between
    ``-1 / sqrt(hidden_size)`` and ``1 / sqrt(hidden_size)``.

    Args:
        input_size: the size of the last axis of the input.
        hidden_size: the size of the last axis of the state.
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
        self, input_size: int, hidden_size: int, *, bias: bool = True, key: Key, dtype: DTypeLike = "float32"
    ) -> None:
        super().__init__(input_size, hidden_size, bias=bias, key=key, dtype=dtype)

    def _bias_outside_loop(self, bias_hh: Array) -> Array:
        # The reset gate multiplies the last third.
        return tnp.pad(bias_hh[: 2 * self.hidden_size], (0, self.hidden_size))

    def step(self, state: tuple[Array, ...], projected: Array) -> tuple[Array, ...]:
        """The next state from the last one and :meth:`project` of the input."""
        (h,) = state
        x_r, x_z, x_n = tnp.split(projected, 3, axis=-1)
        h_r, h_z, h_n = tnp.split(h @ self.weight_hh, 3, axis=-1)
        if self.bias_hh is not None:
            h_n = h_n + self.bias_hh[2 * self.hidden_size :]
        r, z = functional.sigmoid(x_r + h_r), functional.sigmoid(x_z + h_z)
        n = tnp.tanh(x_n + r * h_n)
        return (n + z * (h - n),)

    def __call__(self, x: ArrayLike, hx: ArrayLike | None = None) -> Array:
        """The next state (batch, hidden_size) for an input (batch, input_size) and a state, zeros by default."""
        return self.step(self._start(x, hx), self.project(x))[0]


# -- states and parameters -------------------------------------------------------------------------------------


def initial_states(where: str, hx: PyTree, shapes: Sequence[tuple], *others: ArrayLike) -> tuple[Array, ...]:
    """The arrays of a state ``hx``, checked, zeros if it is None, in the dtype that a step with ``others`` returns."""
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
def _draw(key: Key, *, shapes: tuple[tuple[int, ...], ...], bound: float, dtype: DType) -> list[Array]:
    keys = random.split(key, len(shapes))
    return [random.uniform(keys[i], shape, dtype, -bound, bound) for i, shape in enumerate(shapes)]
