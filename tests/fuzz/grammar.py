"""Random programs."""

from __future__ import annotations

from random import Random

import jax
from support.oracle import x64

from fuzz import control, expressions
from fuzz.case import CHECKS, Case
from fuzz.draw import RULES, Draw, array, result, shape_of

RULE_MODULES = (expressions, control)  # importing them registers their rules
assert {one.__module__ for one, _, _ in RULES} == {module.__name__ for module in RULE_MODULES}


def program(seed: int, wide: bool = False) -> Case | None:
    """The program of a seed, with 64-bit numbers or without."""
    random = Random(seed)
    draw = Draw(random, "float64" if wide else "float32")
    if draw.chance(0.08):
        draw.dtype = "bfloat16"
    special = draw.chance(0.4)
    other = draw.choice([draw.dtype, draw.dtype, "int32", "bool", "int32", "uint8", "int64" if wide else "int16"])
    base = shape_of(draw)
    shapes = (
        base,
        shape_of(draw, len(base)) if draw.chance(0.5) else tuple(1 if draw.chance(0.3) else size for size in base),
        base if draw.chance(0.5) else shape_of(draw),
    )
    with x64(wide):
        arguments = {
            name: array(draw, shape, dtype, special)
            for name, shape, dtype in zip("abc", shapes, (draw.dtype, other, draw.dtype), strict=True)
        }
        draw.values = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arguments.items()}
        statements = _statements(draw, random.randrange(1, 7))
    if not statements:
        return None
    outputs = tuple(name for name, _ in statements)
    check = draw.random.choices(list(CHECKS), CHECKS.values())[0]
    return Case(arguments, tuple(statements), outputs, check).needed()


def _statements(draw: Draw, count: int) -> list[tuple[str, str]]:
    statements: list[tuple[str, str]] = []
    for _ in range(40):
        if len(statements) == count:
            break
        expression = draw.expression()
        if not expression:
            continue
        value = result(draw.values, expression)
        if value is None:
            continue
        name = f"v{len(statements)}"
        statements.append((name, expression))
        draw.values[name] = jax.ShapeDtypeStruct(value.shape, value.dtype)
    return statements
