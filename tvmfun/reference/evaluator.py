"""Evaluation of Programs, equation by equation, with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.program import Equation, Program
from tvmfun.errors import ArgumentError, DtypeError, ProgramError, ShapeError
from tvmfun.reference import (
    attention,
    control,
    cumulative,
    decompositions,
    elementwise,
    indexing,
    movement,
    products,
    reductions,
)
from tvmfun.reference.meaning import MEANINGS, Meaning

for _module in (attention, elementwise, movement, reductions, products, indexing, cumulative, decompositions):
    _module.enter_all()


class Rounding:
    """Random rounding errors, as those of lowering, in all results that are not exact.

    Evaluations with several seeds show by how much correct results may differ (stochastic arithmetic).

    Args:
        seed: of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        #: The result where the order of the terms decides whether intermediate results overflow.
        self.anything = (np.nan, np.inf, 0.0)[seed % 3]
        #: Whether results are not rounded, as between fused operations.
        self.is_fused = seed % 3 == 2

    def of(self, value: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The value with relative errors of one machine epsilon of ``dtype`` at random elements."""
        if not dtypes.is_float(dtype):
            return value
        eps = float(ml_dtypes.finfo(dtype).eps)
        error = self._rng.choice([-eps, 0.0, eps], np.shape(value))
        with np.errstate(all="ignore"):
            return value * (1 + error)


def evaluate(program: Program, values: Sequence[Any], rounding: Rounding | None = None) -> list[np.ndarray]:
    """Computes a Program with NumPy alone.

    Args:
        program: of static sizes.
        values: an array per input of ``program.inputs``: the captured ones first, then the leaves of the arguments.
        rounding: adds rounding errors; by default there are none.

    Returns:
        An array per output.

    Raises:
        ProgramError: if an op has no meaning in NumPy, such as a collective outside of ``vmap``.
        ArgumentError: if there is not one value per input.
        ShapeError: if a value has another shape than its input.
        DtypeError: if a value has another dtype than its input.

    >>> import tvmfun
    >>> program = tvmfun.trace(lambda x: x * 2 + 1)(np.arange(3.0))
    >>> evaluate(program, [np.arange(3.0)])
    [array([1., 3., 5.])]
    """
    _check(program, values)
    return _evaluate(program, values, rounding)


def _check(program: Program, values: Sequence[Any]) -> None:
    if not isinstance(program, Program):
        raise ArgumentError("evaluate", "it takes a Program", got=type(program).__name__, hint="tvmfun.trace(f)(*args)")
    if not isinstance(values, Sequence) or len(values) != len(program.inputs):
        got = str(len(values)) if isinstance(values, Sequence) else type(values).__name__
        hint = "[*program.captured, *leaves]"
        raise ArgumentError("evaluate", f"it takes a list of {len(program.inputs)} arrays", got=got, hint=hint)
    for i, (variable, value) in enumerate(zip(program.inputs, values, strict=True)):
        array = np.asarray(value)
        if array.shape != variable.aval.shape:
            raise ShapeError("evaluate", f"input {i} must be {variable.aval}", got=f"shape {array.shape}")
        if array.dtype != variable.aval.dtype:
            raise DtypeError("evaluate", f"input {i} must be {variable.aval}", got=str(array.dtype))


def _evaluate(program: Program, values: Sequence[Any], rounding: Rounding | None) -> list[np.ndarray]:
    apply = lambda equation, arguments: evaluate_equation(equation, arguments, rounding)
    results = program.evaluate(list(map(np.asarray, values)), apply)
    with np.errstate(all="ignore"):
        return [np.asarray(value, atom.aval.dtype) for value, atom in zip(results, program.outputs, strict=True)]


def evaluate_equation(equation: Equation, arguments: Sequence[Any], rounding: Rounding | None = None) -> Any:
    """Computes the results of one equation: an array, or a tuple of them."""
    op, params = equation.op, equation.params
    run = lambda program, values: _evaluate(program, values, rounding)
    if op.kind == "call":
        results = run(op.compute("cpu", **params), arguments)
    elif op.kind == "control":
        results = control.CONTROL[op.name](run, list(map(np.asarray, arguments)), **params)
    else:
        meaning = MEANINGS.get(op.name)
        if meaning is None:
            raise ProgramError("reference", "the op has no meaning in NumPy", got=op.name)
        with np.errstate(all="ignore"):
            results = _apply(equation, meaning, list(map(np.asarray, arguments)), rounding)
        results = results if isinstance(results, tuple) else (results,)
        if rounding is not None and not meaning.exact:
            pairs = zip(results, equation.outputs, strict=True)
            results = [rounding.of(result, out.aval.dtype) for result, out in pairs]
    is_fused = rounding is not None and rounding.is_fused
    pairs = zip(results, equation.outputs, strict=True)
    stored = tuple(_stored(result, out.aval, is_fused) for result, out in pairs)
    return stored if len(stored) != 1 else stored[0]


def _apply(equation: Equation, meaning: Meaning, arrays: Sequence[np.ndarray], rounding: Rounding | None) -> Any:
    if meaning.raw:
        raw = (array.astype(atom.aval.dtype) for array, atom in zip(arrays, equation.inputs, strict=True))
        return meaning.compute(*raw, **equation.params)
    wide = list(map(_wide, arrays))
    if rounding is None or meaning.partial == "nothing":
        return meaning.compute(*wide, **equation.params)
    # Perturbed arguments stand in for rounding errors of intermediate results, such as partial sums.
    perturbed = [rounding.of(x, array.dtype) for x, array in zip(wide, arrays, strict=True)]
    results = meaning.compute(*perturbed, **equation.params)
    if meaning.partial == "several" or not dtypes.is_float(equation.outputs[0].aval.dtype):
        return results
    info = ml_dtypes.finfo(equation.outputs[0].aval.dtype)
    most, least = float(info.max), float(info.tiny)
    bound = lambda magnitude: meaning.compute(*map(magnitude, wide), **equation.params)
    decided = (
        bound(_magnitude) <= most if meaning.partial == "sums" else (bound(_grown) <= most) & (bound(_shrunk) >= least)
    )
    return np.where(decided, results, rounding.anything)


def _magnitude(x: np.ndarray) -> np.ndarray:
    """The magnitude of each number; 0 for infinities and NaN, which give the same result in any order."""
    return np.where(np.isfinite(x), np.abs(x), 0) if x.dtype.kind == "f" else x


def _grown(x: np.ndarray) -> np.ndarray:
    return np.maximum(np.where(np.isfinite(x), np.abs(x), 1), 1)


def _shrunk(x: np.ndarray) -> np.ndarray:
    return np.minimum(np.where(np.isfinite(x) & (x != 0), np.abs(x), 1), 1)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if dtypes.is_float(array.dtype) else array


def _stored(value: Any, aval: ShapeDtype, is_fused: bool) -> np.ndarray:
    """A result in its dtype in the Program, or unrounded if it is fused."""
    value = np.asarray(value)
    if value.shape != aval.shape:
        raise ProgramError("reference", f"an op returns {aval}", got=str(value.shape))
    with np.errstate(all="ignore"):
        dtype = np.float64 if is_fused and dtypes.is_float(aval.dtype) else aval.dtype
        return np.ascontiguousarray(value.astype(dtype)).reshape(aval.shape)
