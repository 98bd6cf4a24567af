"""Functions of each element, activations, casts and comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.nn import functional as nnf

onnx = Family(__name__)

onnx.maps(
    {
        "Abs": tnp.abs,
        "Acos": tnp.acos,
        "Acosh": tnp.acosh,
        "Asin": tnp.asin,
        "Asinh": tnp.asinh,
        "Atan": tnp.atan,
        "Atanh": tnp.atanh,
        "BitwiseAnd": tnp.bitwise_and,
        "BitwiseNot": tnp.bitwise_not,
        "BitwiseOr": tnp.bitwise_or,
        "BitwiseXor": tnp.bitwise_xor,
        "Ceil": tnp.ceil,
        "Cos": tnp.cos,
        "Cosh": tnp.cosh,
        "Erf": lax.erf,
        "Exp": tnp.exp,
        "Floor": tnp.floor,
        "GreaterOrEqual": tnp.greater_equal,
        "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
        "IsNaN": tnp.isnan,
        "LessOrEqual": tnp.less_equal,
        "Log": tnp.log,
        "Mish": lambda x: x * tnp.tanh(nnf.softplus(x)),
        "Neg": tnp.negative,
        "Not": tnp.logical_not,
        "Reciprocal": lambda x: 1 / x,
        "Relu": lambda x: nnf.relu(x) if dtypes.is_float(x.dtype) else tnp.maximum(x, 0),
        "Round": tnp.round,
        "Sigmoid": nnf.sigmoid,
        "Sign": tnp.sign,
        "Sin": tnp.sin,
        "Sinh": tnp.sinh,
        "Softplus": nnf.softplus,
        "Softsign": nnf.soft_sign,
        "Sqrt": tnp.sqrt,
        "Tan": tnp.tan,
        "Tanh": tnp.tanh,
        "Where": tnp.where,
    }
)


# -- two operands ------------------------------------------------------------------------------------------------------


def _aligned(y: Any, x: Any, broadcast: int, axis: int | None) -> Any:
    """The second operand of versions before 7, which broadcast it from an axis on if they are asked to."""
    if not broadcast or axis is None:
        return y
    return tnp.reshape(y, (*y.shape, *(1,) * (x.ndim - axis % x.ndim - y.ndim)))


def _binary(function: Callable) -> Callable:
    def apply(x: Any, y: Any, *, broadcast: int = 0, axis: int | None = None, consumed_inputs: Any = None) -> Any:
        return function(x, _aligned(y, x, broadcast, axis))

    return apply


def _power(x: Any, y: Any) -> Any:
    return tnp.astype(tnp.power(x, y), x.dtype)


for _name, _function in {
    "Add": tnp.add,
    "And": tnp.logical_and,
    "Div": lax.div,  # integers towards zero
    "Equal": tnp.equal,
    "Greater": tnp.greater,
    "Less": tnp.less,
    "Mul": tnp.multiply,
    "Or": tnp.logical_or,
    "Pow": _power,
    "Sub": tnp.subtract,
    "Xor": tnp.logical_xor,
}.items():
    onnx.reads(_name)(_binary(_function))


@onnx.reads("Mod")
def _mod(x: Any, y: Any, *, fmod: int = 0) -> Any:
    """The remainder with the sign of the divisor, or with that of the dividend."""
    return tnp.fmod(x, y) if fmod else tnp.remainder(x, y)


@onnx.reads("BitShift")
def _bit_shift(x: Any, y: Any, *, direction: str) -> Any:
    if direction == "LEFT":
        return tnp.bitwise_left_shift(x, y)
    return tnp.bitwise_right_shift(x, y)


def _variadic(function: Callable) -> Callable:
    return lambda *xs, consumed_inputs=None: reduce(function, xs)


onnx.reads("Max")(_variadic(tnp.maximum))
onnx.reads("Min")(_variadic(tnp.minimum))
onnx.reads("Sum")(_variadic(tnp.add))


@onnx.reads("Mean")
def _mean(*xs: Any, consumed_inputs: Any = None) -> Any:
    return reduce(tnp.add, xs) / len(xs)


# -- activations -------------------------------------------------------------------------------------------------------


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return tnp.clip(alpha * x + beta, 0, 1)


@onnx.reads("Celu")
def _celu(x: Any, *, alpha: float = 1.0) -> Any:
    return tnp.where(x > 0, x, alpha * tnp.expm1(tnp.minimum(x, 0) / alpha))


@onnx.reads("Elu")
def _elu(x: Any, *, alpha: float = 1.0, consumed_inputs: Any = None) -> Any:
    return tnp.where(x > 0, x, alpha * tnp.expm1(tnp.minimum(x, 0)))


@onnx.reads("Selu")
def _selu(x: Any, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Any:
    return gamma * tnp.where(x > 0, x, alpha * tnp.expm1(tnp.minimum(x, 0)))


@onnx.reads("Gelu")
def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return nnf.gelu(x, approximate=approximate == "tanh")


@onnx.reads("HardSigmoid")
def _hard_sigmoid_row(x: Any, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Any = None) -> Any:
    return _hard_sigmoid(x, alpha, beta)


@onnx.reads("LeakyRelu")
def _leaky_relu(x: Any, *, alpha: float = 0.01, consumed_inputs: Any = None) -> Any:
    return tnp.where(x > 0, x, x * alpha)


@onnx.reads("PRelu")
def _prelu(x: Any, slope: Any, *, consumed_inputs: Any = None) -> Any:
    """A slope for all, or, before version 7, for each channel."""
    if slope.ndim == 1 and slope.shape[0] == x.shape[min(1, x.ndim - 1)] != x.shape[-1]:
        slope = tnp.reshape(slope, (-1, *(1,) * (x.ndim - 2)))
    return tnp.where(x > 0, x, x * slope)


@onnx.reads("Shrink")
def _shrink(x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    moved = tnp.where(x < -lambd, x + bias, tnp.where(x > lambd, x - bias, tnp.zeros_like(x)))
    return tnp.astype(moved, x.dtype)


@onnx.reads("Swish")
def _swish(x: Any, *, alpha: float = 1.0) -> Any:
    return x * nnf.sigmoid(alpha * x)


@onnx.reads("SwiGLU")
def _swiglu(x: Any, y: Any, *, alpha: float = 1.0) -> Any:
    return _swish(x, alpha=alpha) * y


@onnx.reads("ThresholdedRelu")
def _thresholded_relu(x: Any, *, alpha: float = 1.0) -> Any:
    return tnp.where(x > alpha, x, tnp.zeros_like(x))


@onnx.reads("Clip")
def _clip(x: Any, min: Any = None, max: Any = None, *, consumed_inputs: Any = None) -> Any:
    """The upper bound wins where it is below the lower one."""
    x = x if min is None else tnp.maximum(x, min)
    return x if max is None else tnp.minimum(x, max)


@onnx.reads("Softmax", since=13)
def _softmax(x: Any, *, axis: int = -1) -> Any:
    return nnf.softmax(x, axis)


@onnx.reads("LogSoftmax", since=13)
def _log_softmax(x: Any, *, axis: int = -1) -> Any:
    return nnf.log_softmax(x, axis)


def _of_matrices(function: Callable) -> Callable:
    """A function of versions before 13: it sees a matrix, whose rows are all axes from one on."""

    def apply(x: Any, *, axis: int = 1) -> Any:
        axis = axis % x.ndim if x.ndim else 0
        rows = tnp.reshape(x, (math.prod(x.shape[:axis]), -1))
        return tnp.reshape(function(rows), x.shape)

    return apply


def _hardmax(x: Any, *, axis: int = -1) -> Any:
    """One at the first maximum along an axis, zero elsewhere."""
    return nnf.one_hot(tnp.argmax(x, axis=axis), x.shape[axis], dtype=x.dtype, axis=axis)


onnx.reads("Softmax")(_of_matrices(_softmax))
onnx.reads("LogSoftmax")(_of_matrices(_log_softmax))
onnx.reads("Hardmax")(_of_matrices(_hardmax))
onnx.reads("Hardmax", since=13)(_hardmax)


@onnx.reads("IsInf")
def _is_inf(x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    result = tnp.isinf(x)
    result = result if detect_negative else result & (x > 0)
    return result if detect_positive else result & (x < 0)


# -- accumulation ------------------------------------------------------------------------------------------------------


def _accumulated(function: Callable, unit: int) -> Callable:
    def apply(x: Any, axis: np.ndarray, *, exclusive: int = 0, reverse: int = 0) -> Any:
        along = int(axis.item()) % x.ndim
        x = tnp.flip(x, along) if reverse else x
        result = function(x, axis=along, dtype=x.dtype)
        if exclusive:
            first = tnp.full((*x.shape[:along], 1, *x.shape[along + 1 :]), unit, dtype=x.dtype)
            kept = lax.slice_in_dim(result, 0, max(x.shape[along] - 1, 0), axis=along)
            result = lax.slice_in_dim(tnp.concat([first, kept], axis=along), 0, x.shape[along], axis=along)
        return tnp.flip(result, along) if reverse else result

    return apply


onnx.reads("CumSum", static=(1,))(_accumulated(tnp.cumsum, 0))
onnx.reads("CumProd", static=(1,))(_accumulated(tnp.cumprod, 1))
