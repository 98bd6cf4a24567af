"""Truncated quotients: they equal those by floor division wherever they replace them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.indices import value
from tvm import ir, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, nn
from tvmfun.lower.codegen.cuda import lowering
from tvmfun.lower.tir.truncated_quotients import truncate_quotients
from tvmfun.lower.tir.walk import find

FLOOR, TRUNCATED = (tirx.FloorDiv, tirx.FloorMod), (tirx.Div, tirx.Mod)
SM_90 = {"kind": "cuda", "arch": "sm_90"}


def integer(name: str) -> ir.Var:
    return ir.Var(name, ir.PrimType("int32"))


def random_number(rng: random.Random, variables: list[ir.Var], depth: int) -> Any:
    """A random expression, most of whose quotients are those of numbers that are not negative."""
    inner = lambda: random_number(rng, variables, depth - 1)
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(variables) if rng.random() < 0.8 else tirx.const(rng.randint(-2, 9), "int32")
    kind = rng.choice([tirx.Add, tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, *FLOOR, *FLOOR, *FLOOR])
    if kind is tirx.Sub and rng.random() < 0.7:  # a part of the other
        a, n = inner(), tirx.const(rng.randint(2, 5), "int32")
        part = rng.choice([lambda: a // n, lambda: a // n * n, lambda: tirx.min(a, inner()), lambda: inner() % a])
        return tirx.Sub(rng.choice([a, a * 3, a + inner()]), part())
    return kind(inner(), inner())


def test_random_numbers_keep_their_values():
    rng, truncated, kept = random.Random(0), 0, 0
    result = tirx.decl_buffer((1,), "int32")
    for _ in range(400):
        n, i, j, bound = map(integer, ("n", "i", "j", "bound"))
        first = tirx.const(rng.choice([-3, 0, 0, 0, 2]), "int32")
        other = rng.choice([tirx.const(0, "int32"), i])
        own = random_number(rng, [n, i], 2)
        number = random_number(rng, [n, i, j, bound], 4)
        store = tirx.SeqStmt([tirx.Bind(bound, own), tirx.BufferStore(result, number, [0])])
        loop = tirx.For(j, other, 3, tirx.ForKind.SERIAL, store)
        body = tirx.For(i, first, 3, tirx.ForKind.SERIAL, loop)
        changed = truncate_quotients(body, body)
        (new,) = (node.value for node in find(changed, tirx.BufferStore))
        truncated += len(find(new, *TRUNCATED))
        kept += len(find(new, *FLOOR))
        for size in (0, 1, 4, 7):
            for x in range(int(first), int(first) + 3):
                for y in range(value(other, {"i": x}), value(other, {"i": x}) + 3):
                    at = {"n": size, "i": x, "j": y}
                    try:
                        at["bound"] = value(own, at)
                        expected = value(number, at)
                    except ZeroDivisionError:
                        continue
                    assert value(new, at) == expected, f"{number}\n{new}\n{at}"
    assert truncated > 300 and kept > 300


def kept(number: Any, *variables: ir.Var) -> list[Any]:
    """The floor divisions that a number keeps, where these variables begin at -1 and the others are sizes."""
    body: Any = tirx.Evaluate(number)
    for variable in variables:
        body = tirx.For(variable, -1, 3, tirx.ForKind.SERIAL, body)
    return find(truncate_quotients(body, body), *FLOOR)


def test_what_is_not_negative():
    n, i, x = integer("n"), integer("i"), tirx.decl_buffer((4,), "int32")
    tiles = (n + 6) // 7
    for number in (
        i // n,
        i % (tiles * 5),
        i % (n * 5 - n // 3),
        (i % n) % tirx.min(8, n - (i % n) // 7 * 7),
        tirx.Select(i < n, i, n) // tirx.max(n - 7, 1),
        tirx.Cast("int32", tirx.Cast("int64", i)) % 3,
    ):
        assert not kept(number), number
    for number in (
        (i - n) // 3,
        (n // 5 - n) % 5,
        x[0] // 3,
        (n - i // 3) % n,
        (n - i % (n + 1) * 2) % 3,
        i // (n - 3),
    ):
        assert kept(number), number
    assert kept(i // n, i) and not kept(tirx.max(i, 0) // n, i)
    assert kept(i // 8) and kept(i % 16)  # shifts


def test_a_proof_looks_at_each_pair_of_numbers_once():
    n = integer("n")
    number: Any = integer("i")
    for _ in range(9):  # took minutes
        number = tirx.Sub(tirx.Mul(number, tirx.const(3, "int32")), tirx.FloorMod(number, n))
    assert not kept(tirx.FloorMod(number, n + 1))


def test_variables_of_other_variables():
    i, j = integer("i"), integer("j")
    for first, is_kept in ((-1, True), (0, False)):
        use = tirx.SeqStmt([tirx.Bind(j, i + 1), tirx.Evaluate(j % 7)])
        body = tirx.For(i, first, 3, tirx.ForKind.SERIAL, tirx.For(integer("k"), 0, 2, tirx.ForKind.SERIAL, use))
        assert bool(find(truncate_quotients(body, body), *FLOOR)) == is_kept


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_kernels_of_dynamic_sizes_choose_between_no_quotients(padding, monkeypatch, no_compiler):
    """TVM's quotient of numbers that may be negative is a remainder, and a choice by its sign."""
    found: list[str] = []
    original = lowering.sources
    monkeypatch.setattr(lowering, "sources", lambda *arguments: record(original(*arguments)))

    def record(sources: Any) -> Any:
        found.extend(source.text for source in sources.values())
        return sources

    loss = lambda w, x: tnp.sum(tnp.sin(nn.functional.conv2d(x, w, padding=padding)))
    types = ShapeDtype((3, 3, 4, 8), "float32"), ShapeDtype(("b", 11, 13, 4), "float32")
    tvmfun.jit(tvmfun.grad(loss, argnums=(0, 1)), target=SM_90).lower(*types).compile()
    assert found and not any("rmod" in text or "rdiv" in text for text in found)
    assert max(map(len, found)) < 100_000
