"""Convolutions of dilated arrays, as several convolutions of the arrays themselves.

The gradient of a convolution of stride ``s`` with respect to its images, and a transposed convolution, read an array
with ``s - 1`` zeros between its elements: along each axis, ``s - 1`` of ``s`` products are with zeros. The results at
indices ``o, o + s, o + 2 * s, ...`` all use the same part of the kernel. Each of these *phases* is a convolution of the
array without zeros with that part.

The gradient of such a convolution for its kernel is that of a strided convolution with the array and the cotangent
exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from tvmfun.ops.conv import conv, conv_kernel_gradient, span, turned

Ints = tuple[int, ...]

# Each phase is a convolution to compile; with more of them than this, the zeros are cheaper.
_MOST_PHASES = 1024


def split_dilated_convolutions(program: Program) -> Program:
    """Returns the Program in which no convolution of a dilated array of static sizes multiplies by the zeros.

    Args:
        program: without calls.
    """
    found = [_without_zeros(equation) for equation in program.equations]
    if not any(found):
        return program
    equations: list[Equation] = []
    for equation, compute in zip(program.equations, found, strict=True):
        equations += [equation] if compute is None else composed(equation, compute)
    return replace(program, equations=tuple(equations))


def _without_zeros(equation: Equation) -> Callable[..., Array] | None:
    """The function that computes an equation's result without multiplying by zeros; None if it has no zeros."""
    if equation.op not in (conv, conv_kernel_gradient):
        return None
    params = equation.params
    shape = equation.outputs[0].aval.shape
    sizes = (*(size for atom in equation.inputs for size in atom.aval.shape), *shape)
    if dims.is_dynamic(sizes) or 0 in sizes or all(d == 1 for d in params["dilation"]):
        return None
    if any(s != 1 for s in params["stride"]):
        return None
    if equation.op is conv_kernel_gradient:
        return lambda x, g: _exchanged(x, g, **params)
    if any(kd != 1 for kd in params["kernel_dilation"]) or math.prod(params["dilation"]) > _MOST_PHASES:
        return None
    return lambda x, w: _convolved(x, w, shape, **params)


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


def _exchanged(
    x: Array,
    g: Array,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Sequence,
    dilation: Ints,
    kernel_dilation: Ints,
    groups: int,
    **params: Any,
) -> Array:
    """The gradient for the kernel of a strided convolution of the cotangent, with the array as its cotangent.

    Along an axis it is, for tap ``k`` of a kernel of ``K``, the sum over ``i`` of ``x[i] * g[d * i + low - k * kd]``.
    With ``j = K - 1 - k`` the index is ``d * i + j * kd - below``, where ``below = (K - 1) * kd - low``.
    """
    margins = []
    for n, m, k, d, kd, (low, _) in zip(
        x.shape[1:], g.shape[1:], kernel, dilation, kernel_dilation, padding, strict=False
    ):
        below = span(k, kd) - 1 - low
        margins.append((below, span(n, d) + span(k, kd) - 1 - m - below))
    gradient = conv_kernel_gradient(
        g,
        x,
        kernel=kernel,
        stride=dilation,
        padding=tuple(margins),
        dilation=stride,
        kernel_dilation=kernel_dilation,
        groups=groups,
        **params,
    )
    return turned(gradient, groups)
