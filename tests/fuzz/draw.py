"""Draws from a seed, and the rules that expressions are drawn by."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import jax
import ml_dtypes
import numpy as np

from fuzz.namespaces import jax_names

Rule = Callable[["Draw"], str]

#: Sizes below, at and above those of vectors and register tiles, and their tails.
SIZES = (1, 1, 2, 3, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 31, 32, 33, 64, 67, 129)
MOST_ELEMENTS, MOST_OF_A_RESULT = 6000, 20000
SPECIAL = (
    np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-44, 3.4e38, -3.4e38, 1e-38, 1e30, 88.8, -104.0,
    1.0, -1.0, 0.5, 2.0, -2.5,
)  # fmt: skip
SPECIAL_INTEGERS = (2**31 - 1, -(2**31), 0, -1, 1, 2**30, 46341, -46341, 7, -8)
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64")

#: Every rule, how often it is drawn, and whether expressions within others may be drawn by it.
RULES: list[tuple[Rule, int, bool]] = []


def rule(weight: int, within: bool = True) -> Callable[[Rule], Rule]:
    """Makes a function one of those that expressions are drawn by; a heavier one is drawn more often."""

    def register(function: Rule) -> Rule:
        RULES.append((function, weight, within))
        return function

    return register


@dataclass
class Draw:
    """Choices from a seed, and the shapes and dtypes of the values that an expression may read."""

    random: Random
    dtype: str
    values: dict[str, Any] = field(default_factory=dict)
    names: int = 0

    def choice(self, options: Any) -> Any:
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def fresh(self) -> str:
        """A name for the argument of a lambda."""
        self.names += 1
        return f"u{self.names}"

    def pick(self, wanted: Callable[[Any], bool] = lambda value: True) -> str:
        """The name of a value, of later ones more often; an IndexError where none is wanted."""
        names = [name for name, value in self.values.items() if wanted(value)]
        return names[-1] if self.chance(0.5) else self.choice(names)

    def floats(self, rank: int = 0) -> str:
        return self.pick(lambda value: is_float(value) and len(value.shape) >= rank)

    def numbers(self, rank: int = 0) -> str:
        return self.pick(lambda value: value.dtype != bool and len(value.shape) >= rank)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def axis(self, name: str) -> int:
        """An axis, counted from either end."""
        rank = len(self.shape(name))
        axis = self.random.randrange(rank)
        return axis - rank if self.chance(0.4) else axis

    def axes(self, name: str) -> str:
        """Some axes, as an argument."""
        rank = len(self.shape(name))
        some = tuple(self.random.sample(range(rank), self.random.randrange(rank + 1)))
        return self.choice(["None", repr(some)] + ([repr(self.axis(name))] * 2 if rank else []))

    def like(self, name: str) -> str:
        """A value that ``name`` can be broadcast with, of the same dtype."""
        value = self.values[name]
        fits = lambda other: other.dtype == value.dtype and broadcastable(other.shape, value.shape)
        return self.pick(fits)

    def indices(self, shape: tuple[int, ...] | None = None, most: int | None = None) -> str:
        """An array of integers, some of which may be out of range."""
        shape = self.choice([(), (1,), (2,), (3,), (2, 2), (5,), (0,)]) if shape is None else shape
        limit = int(self.choice([3, 3, 12]) if most is None else most)  # type: ignore[arg-type]
        drawn = np.random.default_rng(self.random.randrange(2**32)).integers(-limit, limit + 1, shape)
        return f"np.asarray(onp.array({drawn.tolist()!r}, 'int32').reshape({shape}))"

    def expression(self, within: bool = False) -> str | None:
        """An expression by one of the rules; ``within`` is for one inside of another."""
        rules = [(one, weight) for one, weight, small in RULES if small or not within]
        chosen = self.random.choices([one for one, _ in rules], [weight for _, weight in rules])[0]
        try:
            return chosen(self)
        except (IndexError, ValueError):  # nothing to choose from: an axis of a number, a row of none
            return None

    def inner(self, name: str, value: Any) -> str:
        """A small expression of a new value, and at times of those around it."""
        own = Draw(self.random, self.dtype, {**(self.values if self.chance(0.4) else {}), name: value}, self.names + 10)
        for _ in range(20):
            expression = own.expression(within=True)
            if expression and name in expression and result(own.values, expression) is not None:
                if is_float(value) and self.chance(0.35):
                    return f"(lambda {name}2: np.sum({name}2) * {name}2)({expression})"
                return expression
        return f"{name} * 2"


def is_float(value: Any) -> bool:
    return str(value.dtype) in ("float32", "float64", "bfloat16", "float16")


def is_integer(value: Any) -> bool:
    return "int" in str(value.dtype)


def broadcastable(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(left[::-1], right[::-1], strict=False))


def result(values: dict[str, Any], expression: str) -> Any:
    """The shape and dtype of an expression, or None if JAX refuses it or returns several."""
    try:
        found = jax.eval_shape(lambda known: eval(expression, {**jax_names(), **known}), values)
    except Exception:
        return None
    # Keys, and the derivatives of integers, which have a dtype of their own, are not numbers.
    one = hasattr(found, "shape") and hasattr(found, "dtype") and not re.search("key|float0", str(found.dtype))
    return found if one and np.prod(found.shape, dtype=int) <= MOST_OF_A_RESULT else None


def shape_of(draw: Draw, rank: int | None = None) -> tuple[int, ...]:
    rank = draw.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]) if rank is None else rank
    empty = draw.chance(0.1)
    while True:
        shape = tuple(0 if empty and draw.chance(0.4) else draw.choice(SIZES) for _ in range(rank))
        if np.prod(shape) <= MOST_ELEMENTS:
            return shape


def array(draw: Draw, shape: tuple[int, ...], dtype: str, special: bool) -> np.ndarray:
    """Numbers of a shape: ordinary ones, ones with ties, equal ones, or special ones among them."""
    rng = np.random.default_rng(draw.random.randrange(2**32))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        if not special:
            return rng.integers(0 if dtype.startswith("u") else -5, 9, shape).astype(dtype)
        info = np.iinfo(dtype)
        values = SPECIAL_INTEGERS if info.bits > 16 else (info.min, info.max, 0, 1, info.max // 2 + 1)
        return rng.choice(np.array(values, np.int64), shape).astype(dtype)
    values = rng.standard_normal(shape)
    kind = draw.random.random()
    if kind < 0.3:
        values = np.round(values * 2) / 2
    elif kind < 0.35:
        values = np.full(shape, float(draw.choice([0.0, 1.0, -1.0, 0.5])))
    if special:
        values = np.where(rng.random(shape) < 0.35, rng.choice(np.array(SPECIAL), shape), values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
