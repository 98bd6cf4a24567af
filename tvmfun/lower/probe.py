"""Probes: the kernels of a compiled Program run one by one, in memory that reveals wrong accesses.

All bytes except those of a kernel's inputs are poisoned: results, the memory around arrays, and workspaces. The poison
is NaN as a float of any width.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.inline import subprograms
from tvmfun.core.program import Atom, Program
from tvmfun.lower import pipeline
from tvmfun.lower.codegen.relax_module import Step
from tvmfun.lower.codegen.similar_functions import Merged

POISON = 0xFF
# Bytes of poison before and after every array: a multiple of TVM's alignment of arrays.
_MARGIN = 512
_ALIGNMENT = 64


class _Guarded:
    """An array with poisoned memory before and after it."""

    def __init__(self, aval: ShapeDtype, value: np.ndarray | None = None) -> None:
        size = aval.size * aval.dtype.itemsize
        raw = np.full(size + 2 * _MARGIN + _ALIGNMENT, POISON, np.uint8)
        start = _MARGIN + -(raw.ctypes.data + _MARGIN) % _ALIGNMENT
        self._around = raw[:start], raw[start + size :]
        self.address = raw.ctypes.data + start
        self.array = raw[start : start + size].view(aval.dtype).reshape(aval.shape)
        if value is not None:
            self.array[...] = value

    @property
    def is_intact(self) -> bool:
        """Whether nothing was written before or after the array."""
        return all((part == POISON).all() for part in self._around)


class Outcome(NamedTuple):
    """The effects of running a kernel.

    Args:
        outputs: its results.
        damage: a description of memory that it wrote but must not write, or "".
    """

    outputs: list[np.ndarray]
    damage: str


class Probe:
    """A compiled Program whose kernels can be run one by one.

    Args:
        program: of static sizes, without calls.
        target: this machine's CPU.
        donated: the positions of inputs that may be overwritten with results.
    """

    def __init__(self, program: Program, target: Target, donated: Collection[int]) -> None:
        self.program = program
        built, self._plan, self.steps = pipeline.build_with_steps(program, target, donated)
        self._module, self._merged = built.load(), built.merged

    def run(self, step: Step, values: Mapping[Atom, np.ndarray]) -> Outcome:
        """Runs the kernel of a step once, on copies of the values of its inputs."""
        kernel = step.kernel
        assert step.name is not None  # a view has no kernel
        name, numbers = self._merged.get(step.name, Merged(step.name))
        compiled = self._module.get_function(name, query_imports=True)
        function = lambda *addresses: compiled(*addresses, *numbers)
        arguments = [values[atom] for atom in kernel.inputs]
        if not _may_run_forever(step):
            # Leaves NaN in the workspaces, which the second run reuses.
            _call(function, step, [_poisoned(value) for value in arguments])
        return _call(function, step, arguments)

    def run_whole(self, inputs: Sequence[np.ndarray]) -> Outcome:
        """Runs ``main`` on copies of the inputs, all other memory poisoned."""
        plan = self._plan
        arrays = [_Guarded(v.aval, value) for v, value in zip(self.program.inputs, inputs, strict=True)]
        arrays += [_Guarded(ShapeDtype((size,), dtypes.uint8)) for size in plan.fresh]
        arrays.append(_Guarded(ShapeDtype((plan.analysis.temporaries,), dtypes.uint8)))
        table = array("Q", [guarded.address for guarded in arrays])
        self._module["main"](table.buffer_info()[0])
        damage = "" if all(guarded.is_intact for guarded in arrays) else "memory around an array"
        outputs = []
        for atom, position in zip(self.program.outputs, plan.results, strict=True):
            memory = arrays[position].array.reshape(-1).view(np.uint8)
            size = atom.aval.size * atom.aval.dtype.itemsize
            outputs.append(memory[:size].view(atom.aval.dtype).reshape(atom.aval.shape))
        return Outcome(outputs, damage)


def _poisoned(value: np.ndarray) -> np.ndarray:
    return np.full_like(value, np.nan) if dtypes.is_float(value.dtype) else value


def _may_run_forever(step: Step) -> bool:
    """Whether a kernel has a loop whose number of steps depends on data."""
    return any(_has_condition(equation.params) for equation in step.kernel.equations)


def _has_condition(params: Mapping[str, Any]) -> bool:
    if params.get("cond") is not None or params.get("counted"):
        return True
    inner = (equation for program in subprograms(tuple(params.values())) for equation in program.equations)
    return any(_has_condition(equation.params) for equation in inner)


def _call(function: Any, step: Step, arguments: Sequence[np.ndarray]) -> Outcome:
    kernel, sources = step.kernel, {output: source for source, output in step.in_place}
    inputs = [_Guarded(atom.aval, value) for atom, value in zip(kernel.inputs, arguments, strict=True)]
    fresh = {i: _Guarded(out.aval) for i, out in enumerate(kernel.outputs) if i not in sources}
    arrays = [*inputs, *fresh.values()]
    function(*(ctypes.c_void_p(guarded.address) for guarded in arrays))
    outputs = [(fresh[i] if i in fresh else inputs[sources[i]]).array for i in range(len(kernel.outputs))]
    kept = [(guarded, value) for i, (guarded, value) in enumerate(zip(inputs, arguments, strict=True))
            if i not in sources.values()]  # fmt: skip
    damage = "" if all(guarded.is_intact for guarded in arrays) else "memory around an array"
    if any(guarded.array.tobytes() != np.ascontiguousarray(value).tobytes() for guarded, value in kept):
        damage = "one of its inputs"
    return Outcome(outputs, damage)
