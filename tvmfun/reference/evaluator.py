"""Evaluation of Programs, equation by equation, with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.program import Equation, Program
from tvmfun.errors import ProgramError
from tvmfun.reference import control, cumulative, decompositions, elementwise, indexing, movement, products, reductions
from tvmfun.reference.meaning import MEANINGS, Meaning

for _module in (elementwise, movement, reductions, products, indexing, cumulative, decompositions):
    _module.enter_all()


class Rounding:
    """Random rounding errors, as lowering may make them, in the results of all that is not exact.

    Evaluations with several seeds show how far results may be apart that are equally right (stochastic arithmetic).

    Args:
        seed: of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def of(self, value: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The value with each element off by up to the distance to its neighbours of ``dtype``."""
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
        rounding: makes rounding errors, if it is given.

    Returns:
        An array per output.

    Raises:
        ProgramError: if an op has no meaning in NumPy, such as a collective outside of ``vmap``.

    >>> import tvmfun
    >>> program = tvmfun.trace(lambda x: x * 2 + 1)(np.arange(3.0))
    >>> evaluate(program, [np.arange(3.0)])
    [array([1., 3., 5.])]
    """
    apply = lambda equation, arguments: evaluate_equation(equation, arguments, rounding)
    return [np.asarray(value) for value in program.evaluate(list(map(np.asarray, values)), apply)]


def evaluate_equation(equation: Equation, arguments: Sequence[Any], rounding: Rounding | None = None) -> Any:
    """Computes the results of one equation: an array, or a tuple of them."""
    op, params = equation.op, equation.params
    run = lambda program, values: evaluate(program, values, rounding)
    if op.kind == "call":
        results = run(op.compute(**params), arguments)
    elif op.kind == "control":
        results = control.CONTROL[op.name](run, list(map(np.asarray, arguments)), **params)
    else:
        meaning = MEANINGS.get(op.name)
        if meaning is None:
            raise ProgramError("reference", "the op has no meaning in NumPy", got=op.name)
        results = _apply(meaning, arguments, params, rounding)
        results = results if isinstance(results, tuple) else (results,)
        if rounding is not None and not meaning.exact:
            pairs = zip(results, equation.outputs, strict=True)
            results = [rounding.of(result, out.aval.dtype) for result, out in pairs]
    stored = tuple(_stored(result, out.aval) for result, out in zip(results, equation.outputs, strict=True))
    return stored if len(stored) != 1 else stored[0]


def _apply(meaning: Meaning, arguments: Sequence[Any], params: dict[str, Any], rounding: Rounding | None) -> Any:
    arrays = [np.asarray(argument) for argument in arguments]
    if rounding is not None and meaning.sums:
        # Errors in the terms stand for those of the partial sums.
        arrays = [rounding.of(_wide(array), array.dtype) for array in arrays]
    with np.errstate(all="ignore"):
        return meaning.compute(*(arrays if meaning.raw else map(_wide, arrays)), **params)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if dtypes.is_float(array.dtype) else array


def _stored(value: Any, aval: ShapeDtype) -> np.ndarray:
    """A result in the dtype of the Program."""
    value = np.asarray(value)
    if value.shape != aval.shape:
        raise ProgramError("reference", f"an op returns {aval}", got=str(value.shape))
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(value.astype(aval.dtype)).reshape(aval.shape)
