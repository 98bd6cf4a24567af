"""A call with some of its axes dynamic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tvmfun
from op_cases.case import Case
from tvmfun import Dim, Program, ShapeDtype

B = Dim("b")
# Parameters that are sizes: where the axis is dynamic, so are they.
SIZES = ("shape", "size", "sizes", "stop")


def grown(case: Case, places: list[tuple[int, ...]], n: int) -> tuple[np.ndarray, ...]:
    """The arguments with ``n`` elements along the dynamic axes, repeated or left out."""
    result = []
    for x, axes in zip(case.arguments, places, strict=True):
        for axis in axes:
            x = np.take(x, np.arange(n) % x.shape[axis], axis=axis)
        result.append(x)
    return tuple(result)


def variants(case: Case) -> Iterator[tuple[list[tuple[int, ...]], dict[str, Any]]]:
    """Which axes to make dynamic, beginning with the first of all arguments, and the parameters for that."""
    size = case.arguments[0].shape[0]
    lead = [(0,) if x.ndim and x.shape[0] == size else () for x in case.arguments]
    first = [(0,), *(() for _ in case.arguments[1:])]
    every = [tuple(i for i, n in enumerate(x.shape) if n == size) for x in case.arguments]
    sizes = {key: value for key, value in case.params.items() if key in SIZES and isinstance(value, tuple)}
    named = {key: (B, *value[1:]) if value[:1] == (size,) else value for key, value in sizes.items()}
    for places in (lead, first, every):
        for params in (case.params, {**case.params, **named}):
            yield places, params


def traced(function: Any, case: Case, places: list, params: dict) -> Program:
    """The program of ``function``, called like the op, for these dynamic axes."""
    specs = []
    for x, axes in zip(case.arguments, places, strict=True):
        shape = tuple(B if i in axes else n for i, n in enumerate(x.shape))
        specs.append(ShapeDtype(shape, x.dtype))
    return tvmfun.trace(lambda *arguments: function(*arguments, **params))(*specs).verify()


def can_be_dynamic(case: Case) -> bool:
    return bool(case.arguments and case.arguments[0].ndim and case.arguments[0].shape[0])
