"""Convolutions of dilated arrays, as several convolutions of the arrays themselves.

The gradient of a convolution of stride ``s`` with respect to its images, and a transposed convolution, read an array
with ``s - 1`` zeros between its elements: of ``s`` products along each axis, all but one are with zeros. The results at
indices ``o, o + s, o + 2 * s, ...`` all use the same part of the kernel. Each of these *phases* is a convolution of the
array without zeros with that part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import Any

from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.program import Equation, Program
from tvmfun.lower.rewrite.equations import composed
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.conv import conv

Ints = tuple[int, ...]

# Each phase is a convolution to compile; with more of them than this, the zeros are cheaper.
_MOST_PHASES = 1024


def split_dilated_convolutions(program: Program) -> Program:
    """Returns the Program with convolutions of dilated arrays of static sizes replaced by their phases.

    Args:
        program: without calls.
    """
    if not any(map(_is_dilated, program.equations)):
        return program
    equations: list[Equation] = []
    for equation in program.equations:
        equations += _phases(equation) if _is_dilated(equation) else [equation]
    return replace(program, equations=tuple(equations))


def _is_dilated(equation: Equation) -> bool:
    if equation.op is not conv:
        return False
    params, (x, w) = equation.params, (atom.aval for atom in equation.inputs)
    simple = all(s == kd == 1 for s, kd in zip(params["stride"], params["kernel_dilation"], strict=True))
    simple = simple and math.prod(params["dilation"]) <= _MOST_PHASES
    sizes = (*x.shape, *w.shape, *equation.outputs[0].aval.shape)
    return simple and not dims.is_dynamic(sizes) and 0 not in sizes and any(d > 1 for d in params["dilation"])


def _phases(equation: Equation) -> list[Equation]:
    """The equations that compute the phases of a dilated convolution."""
    shape = equation.outputs[0].aval.shape
    return composed(equation, lambda x, w: _convolved(x, w, shape, **equation.params))


def _convolved(
    x: Array, w: Array, shape: Ints, *, dilation: Ints, padding: Sequence, groups: int, **params: Any
) -> Array:
    """The phases of a convolution, each padded to the indices of its results, and added up.

    Along an axis, result ``o`` is the sum over ``k`` of ``dilated[o + k - low] * w[k]``, where ``dilated[p]`` is
    ``x[p / d]`` if ``d`` divides ``p``, and 0 otherwise. For ``o = d * q + r`` the terms that remain are those with
    ``k = first + d * j`` and ``first = (low - r) mod d``, and then ``p / d = q + (r + first - low) / d + j``.
    """
    spatial = shape[1:-1]
    ones = (1,) * len(spatial)
    parts = []
    for phase in product(*map(range, dilation)):
        starts, margins, highs = [], [], []
        for r, d, (low, _), k, n, size in zip(phase, dilation, padding, w.shape, x.shape[1:], spatial, strict=False):
            count = -(-(size - r) // d)
            first = min((low - r) % d, k)
            taps, below = -(-(k - first) // d), (low - r - first) // d
            starts.append(first)
            margins.append((below, count - n - below + taps - 1))
            highs.append(size - r - (count - 1) * d - 1)
        part = shapes.slice(w, start=(*starts, 0, 0), stop=w.shape, step=(*dilation, 1, 1))
        if 0 in part.shape or any(r >= size for r, size in zip(phase, spatial, strict=True)):
            continue
        y = conv(x, part, padding=tuple(margins), dilation=ones, groups=groups, **params)
        interior = (0, *(d - 1 for d in dilation), 0)
        parts.append(shapes.pad(y, pw.constant(0, y), low=(0, *phase, 0), high=(0, *highs, 0), interior=interior))
    return reduce(pw.add, parts) if parts else shapes.broadcast_to(pw.constant(0, x), shape=shape)
