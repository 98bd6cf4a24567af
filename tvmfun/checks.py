"""Checking compiled functions, kernel by kernel, against the reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import ml_dtypes
import numpy as np

from tvmfun import dtypes, reference, tree
from tvmfun.core.inline import inlined
from tvmfun.core.program import Atom, Equation, Literal, Program
from tvmfun.errors import ArgumentError, KernelError
from tvmfun.execute import as_device_array
from tvmfun.jit import jit
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.relax_module import Step
from tvmfun.lower.probe import Probe
from tvmfun.ops.control import loop

# The number of evaluations with random rounding errors, and the tolerance in multiples of their spread: the rounding
# errors of a kernel are not independent of each other.
_EVALUATIONS = 3
_SPREADS = 32
# The tolerance of any result in ulps: fused operations do not round in between.
_ROUNDINGS = 16

Values = dict[Atom, np.ndarray]


def check(
    fun: Callable, *, donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = ()
) -> Callable[..., Any]:
    """Runs each kernel of a compiled function separately, and compares it with the reference evaluator.

    The function is compiled for this CPU as by ``jit``. Each kernel of the module, fused, tiled and in place as it is,
    runs on the inputs that the reference evaluator computes. Its results must equal those of the evaluator up to
    rounding. It must not write to its inputs or around arrays, and not read uninitialized memory, which is filled with
    NaN. Finally, the whole module must return, bit for bit, the results of its kernels one after the other. This is
    slow; use it to find defects.

    Args:
        fun: a function of trees of arrays.
        donate_argnums: as in ``jit``, but the arguments are copied and stay alive.
        donate_argnames: as in ``jit``.

    Returns:
        A function that takes the arguments of ``fun`` and returns its results, as the compiled module computes them.

    Raises:
        KernelError: for the first kernel with wrong results or accesses; the message has its name, the rule that
            scheduled it, its program, and the source line of the function.

    >>> import tvmfun.numpy as tnp
    >>> check(lambda x: tnp.cumsum(tnp.flip(x)) * 2)(tnp.arange(4.0))
    Array([ 6., 10., 12., 12.], dtype=float32)
    """
    if not callable(fun):
        raise ArgumentError("check", "the first argument must be a function", got=type(fun).__name__)
    jitted = jit(fun, donate_argnums=donate_argnums, donate_argnames=donate_argnames)

    @wraps(fun)
    def checked(*args: Any, **kwargs: Any) -> Any:
        lowered = jitted.lower(*args, **kwargs)
        program = inlined(lowered.program)
        leaves = lowered.program.check_arguments(args, kwargs)
        values = [np.asarray(as_device_array(leaf, program.name)) for leaf in (*program.captured, *leaves)]
        results = check_program(program, values, [len(program.captured) + i for i in lowered.donated])
        return tree.unflatten(lowered.program.out_tree, [as_device_array(result, program.name) for result in results])

    return checked


def check_program(program: Program, inputs: Sequence[np.ndarray], donated: Sequence[int] = ()) -> list[np.ndarray]:
    """Checks the kernels of a Program of static sizes without calls; returns the results of the whole module.

    Args:
        program: the Program to compile and check.
        inputs: an array per input.
        donated: the positions of inputs that may be overwritten with results.

    Raises:
        KernelError: for the first kernel with wrong results or accesses.
    """
    probe = Probe(program, targets.host(), donated)
    expected: Values = dict(zip(program.inputs, inputs, strict=True))
    computed = dict(expected)
    for step in probe.steps:
        if step.name is None:
            for equation in step.kernel.equations:
                for values in (expected, computed):
                    _evaluate(equation, values, None)
            continue
        _check_step(probe, step, expected)
        outcome = probe.run(step, _with_literals(step, computed))
        computed.update(zip(step.kernel.outputs, outcome.outputs, strict=True))
    whole = probe.run_whole(inputs)
    if whole.damage:
        raise KernelError("check", f"the module of {program.name!r} writes to {whole.damage}")
    for i, (atom, result) in enumerate(zip(program.outputs, whole.outputs, strict=True)):
        if _value_of(atom, computed).tobytes() != result.tobytes():
            raise KernelError(
                "check",
                f"result {i} of {program.name!r} is not what its kernels return one after the other",
                got=_difference(result, _value_of(atom, computed), np.zeros(result.shape)),
                hint="reporting it: memory is shared that must not be",
            )
    return whole.outputs


def _value_of(atom: Atom, values: Values) -> np.ndarray:
    return np.asarray(atom.value) if isinstance(atom, Literal) else values[atom]


def _with_literals(step: Step, values: Values) -> Values:
    return {atom: _value_of(atom, values) for atom in step.kernel.inputs}


def _evaluate(equation: Equation, values: Values, rounding: reference.Rounding | None) -> None:
    """Adds the results of an equation to the values."""
    arguments = [_value_of(atom, values) for atom in equation.inputs]
    results = reference.evaluate_equation(equation, arguments, rounding)
    values.update(zip(equation.outputs, results if isinstance(results, tuple) else (results,), strict=True))


def _check_step(probe: Probe, step: Step, expected: Values) -> None:
    """Compares a kernel with the reference on the same inputs; adds the reference's results to ``expected``."""
    inputs = _with_literals(step, expected)
    roundings = [None, *map(reference.Rounding, range(_EVALUATIONS))]
    evaluated: list[list[np.ndarray]] = []
    for rounding in roundings:
        values = dict(inputs)
        for equation in step.kernel.equations:
            _evaluate(equation, values, rounding)
        with np.errstate(all="ignore"):
            evaluated.append([values[out].astype(out.aval.dtype) for out in step.kernel.outputs])
    expected.update(zip(step.kernel.outputs, evaluated[0], strict=True))
    outcome = probe.run(step, inputs)
    results: Sequence[np.ndarray] = outcome.outputs
    invariants = _invariants(step, inputs)
    if invariants is not None:
        # There are several correct results: later steps continue from the kernel's.
        expected.update(zip(step.kernel.outputs, results, strict=True))
        results, *evaluated = map(invariants, [results, *evaluated])
    exact, *perturbed = evaluated
    problem = f"writes to {outcome.damage}" if outcome.damage else ""
    got = ""
    for i, (result, want) in enumerate(zip(results, exact, strict=True)):
        allowed = _tolerance(want, [others[i] for others in perturbed])
        if not problem and not _is_within(result, want, allowed).all():
            problem, got = f"computes another result {i} than its ops", _difference(result, want, allowed)
    if problem:
        _blame_body(step, inputs)
        raise _error(step, problem, got)


def _invariants(step: Step, inputs: Values) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None:
    """The function of a kernel's results that is the same for all correct ones; None if there is only one."""
    equation = step.kernel.equations[0]
    meaning = reference.MEANINGS.get(equation.op.name)
    if meaning is None or meaning.invariants is None:
        return None
    wide = lambda x: np.asarray(x, np.float64)
    arguments = [wide(_value_of(atom, inputs)) for atom in equation.inputs]
    dtype = equation.outputs[0].aval.dtype
    common = meaning.invariants
    return lambda results: [x.astype(dtype) for x in common(list(map(wide, results)), *arguments, **equation.params)]


def _error(step: Step, problem: str, got: str) -> KernelError:
    lines = dict.fromkeys(equation.source for equation in step.kernel.equations if equation.source)
    origin = f", from {', '.join(lines)}" if lines else ""
    over = ", over its inputs" if step.in_place else ""
    what = f"kernel {step.name} ({step.rule}{over}{origin}) {problem}"
    return KernelError("check", what, got=got, hint=f"reporting it with its program:\n{step.kernel.text}")


def _blame_body(step: Step, inputs: Values) -> None:
    """Checks the Programs of a loop or branch on their first inputs, which may blame a smaller kernel."""
    equation = step.kernel.equations[0]
    if equation.op.kind != "control":
        return
    params, values = (
        equation.params,
        [inputs[atom] if atom in inputs else _value_of(atom, {}) for atom in equation.inputs],
    )
    if equation.op is loop:
        count, last = params["counted"], params["consts"] + params["carry"]
        rows = [value[0] if len(value) else None for value in values[count + last :]]
        programs, arguments = [params["body"]], [*values[count : count + last], *rows]
    else:
        programs, arguments = params["branches"], values[1:]
    if any(value is None for value in arguments):
        return
    for program in programs:
        check_program(program, list(map(np.asarray, arguments)))


def _tolerance(exact: np.ndarray, perturbed: Sequence[np.ndarray]) -> np.ndarray:
    """The tolerance of each element: some ulps, and the effect of earlier rounding errors."""
    if not dtypes.is_float(exact.dtype):
        changes = [other != exact for other in perturbed]
        return np.where(np.any(changes, axis=0), np.inf, 0.0) if changes else np.zeros(exact.shape)
    info = ml_dtypes.finfo(exact.dtype)
    center = exact.astype(np.float64)
    with np.errstate(all="ignore"):
        spread = np.max([np.abs(other.astype(np.float64) - center) for other in perturbed], axis=0, initial=0.0)
        # If rounding errors decide whether the result is NaN or infinite, any value is accepted.
        spread = np.where(np.isnan(spread) & ~_same_specials(exact, perturbed), np.inf, np.nan_to_num(spread, nan=0.0))
        ulps = _ROUNDINGS * (float(info.eps) * np.abs(center) + float(info.tiny))
        # Few draws underestimate some spreads: none is taken to be below the median.
        typical = np.median(spread) if spread.size else 0.0
        return _SPREADS * np.maximum(spread, min(typical, np.inf)) + np.nan_to_num(ulps, nan=0.0, posinf=0.0)


def _same_specials(exact: np.ndarray, perturbed: Sequence[np.ndarray]) -> np.ndarray:
    """A mask of the elements at which all values are NaN, or the same infinity."""
    center = exact.astype(np.float64)
    others = [other.astype(np.float64) for other in perturbed]
    return np.all([(other == center) | (np.isnan(other) & np.isnan(center)) for other in others], axis=0)


def _is_within(result: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    if result.dtype == np.bool_ and (result.view(np.uint8) > 1).any():
        return np.zeros(result.shape, bool)  # uninitialized bytes are not bools
    if not dtypes.is_float(result.dtype):
        return (result == expected) | (allowed > 0)
    a, b = result.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        return (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed) | np.isinf(allowed)


def _difference(result: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> str:
    wrong = np.argwhere(~_is_within(result, expected, allowed))
    if not len(wrong):
        return "other bits"
    at = tuple(map(int, wrong[0]))
    return f"{result[at]!s} instead of {expected[at]!s} at {at}; {len(wrong)} of {result.size} elements differ"
