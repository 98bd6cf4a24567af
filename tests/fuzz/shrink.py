"""A program that differs, made as small as it gets while it still does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from support.oracle import x64

from fuzz.case import Case
from fuzz.compare import difference
from fuzz.namespaces import jax_names


def shrink(case: Case, fails: Callable[[Case], bool] | None = None, most: int = 120) -> Case:
    """Returns the smallest program found that still fails; each step is tried, at most ``most`` in all."""
    fails = fails or (lambda one: difference(one) is not None)
    tries = 0
    smaller = True
    while smaller and tries < most:
        smaller = False
        for candidate in _steps(case):
            tries += 1
            if _size(candidate) < _size(case) and _holds(fails, candidate):
                case, smaller = candidate, True
                break
            if tries >= most:
                break
    return case


def _holds(fails: Callable[[Case], bool], case: Case) -> bool:
    try:
        return fails(case)
    except Exception:
        return False


def _size(case: Case) -> tuple:
    values = list(case.arguments.values())
    odd = sum(int(np.count_nonzero(x.astype(np.float64) != 1)) for x in values)
    return (
        len(case.statements),
        len(case.outputs),
        len(case.arguments),
        sum(x.size for x in values),
        odd + sum(x.ndim for x in values),
        sum(len(expression) for _, expression in case.statements),
    )


def _steps(case: Case) -> Iterator[Case]:
    """Smaller programs, the boldest first."""
    for output in case.outputs:
        if len(case.outputs) > 1:
            yield replace(case, outputs=(output,)).needed()
    for name, _ in case.statements:
        if name not in case.outputs:
            yield replace(case, outputs=(name,)).needed()
    for i in range(len(case.statements)):
        yield from _cut(case, i)
    for i, (name, expression) in enumerate(case.statements):
        for inner in _parts(expression):
            yield replace(case, statements=(*case.statements[:i], (name, inner), *case.statements[i + 1 :])).needed()
    for name, value in case.arguments.items():
        for less in _less(value):
            yield replace(case, arguments={**case.arguments, name: less})


def _cut(case: Case, place: int) -> Iterator[Case]:
    """The value of a statement, as JAX computes it, becomes an argument."""
    name = case.statements[place][0]
    scope = dict(jax_names())
    try:
        with x64(any(x.dtype.itemsize == 8 for x in case.arguments.values())):
            scope.update({key: jnp.asarray(value) for key, value in case.arguments.items()})
            for other, expression in case.statements[: place + 1]:
                scope[other] = eval(expression, scope)
            value = np.asarray(scope[name])
    except Exception:
        return
    rest = tuple(statement for i, statement in enumerate(case.statements) if i != place)
    if rest and name not in case.outputs:
        yield replace(case, arguments={**case.arguments, name: value}, statements=rest).needed()


def _parts(expression: str) -> Iterator[str]:
    """Expressions inside of brackets."""
    for match in re.finditer(r"\(", expression):
        depth = 0
        for end in range(match.start(), len(expression)):
            depth += (expression[end] in "([{") - (expression[end] in ")]}")
            if depth == 0:
                inner = expression[match.start() + 1 : end]
                if inner and end - match.start() < len(expression) - 1 and not inner.startswith("lambda"):
                    yield f"({inner})" if "," not in inner else inner.split(",")[0]
                break


def _less(value: np.ndarray) -> Iterator[np.ndarray]:
    """Arrays with fewer rows, or simpler elements."""
    for axis, size in enumerate(value.shape):
        if size > 1:
            for keep in (slice(0, size // 2), slice(size // 2, None), slice(0, size - 1), slice(1, None)):
                yield value[(slice(None),) * axis + (keep,)]
    flat = value.reshape(-1)
    if not flat.size:
        return
    one = np.ones((), value.dtype)
    step = max(1, flat.size // 8)
    for start in range(0, flat.size, step):
        part = flat[start : start + step]
        if (part != one).any():
            simple = flat.copy()
            simple[start : start + step] = one
            yield simple.reshape(value.shape)
