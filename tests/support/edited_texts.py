"""Texts of Programs, and edits of them at random that a reader may take for a Program.

An edit alone is nearly always refused, because the types that follow no longer fit. So :func:`edited` replaces the
types that an error names by those that the ops return, until the text is read or refused for another reason.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import numpy as np
from op_cases import CASES, Case
from op_cases.dynamic import can_be_dynamic, traced, variants

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoint, lax
from tvmfun.core.op import REGISTRY
from tvmfun.core.program import Program
from tvmfun.errors import ProgramError, TvmfunError
from tvmfun.program_text.reader import Reader
from tvmfun.program_text.writer import Writer

# Equations whose types follow one edit; each needs one more reading.
_MOST_REPAIRS = 8
_TYPES = ("bool", "int8", "int32", "int64", "uint8", "uint32", "uint64", "float16", "bfloat16", "float32", "float64")
_WORDS = (
    "clip",
    "fill",
    "in_bounds",
    "set",
    "add",
    "mul",
    "min",
    "max",
    "left",
    "right",
    "first",
    "xor",
    "mask",
    "none",
)
_NUMBERS = (-(2**31), -7, -2, -1, 0, 0, 1, 1, 2, 3, 4, 5, 9, 65, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 10**30)
_OTHERS = (
    "None",
    "True",
    "False",
    "1.0",
    "-0.5",
    "inf",
    "nan",
    "()",
    "(0,)",
    "(1, 0)",
    "((0, 0),)",
    "[n]",
    "[2*n]",
    "'x'",
)
_SIZES = ("0", "1", "1", "2", "3", "5", "17", "33", "n", "2*n", "n + 1", str(2**31))
_RETURNS = re.compile(r"line (\d+): \S+: it returns (.*), got (.*)\.(?: Try .*)?$", re.DOTALL)


# -- texts -------------------------------------------------------------------------------------------------------------


def texts() -> list[str]:
    """Returns texts of every op, of their derivatives, of dynamic sizes, and of loops, branches and calls."""
    found: list[str] = []
    for name, cases in CASES.items():
        for case in cases:
            found += _texts_of(name, case)
    return [*dict.fromkeys(found), *map(_written, _nested())]


def _texts_of(name: str, case: Case) -> Iterator[str]:
    op = REGISTRY[name]
    apply = lambda *arguments: op(*arguments, **case.params)
    program = tvmfun.trace(apply)(*case.arguments)
    yield _written(program)
    floats = [i for i, x in enumerate(case.arguments) if x.dtype.kind == "f"]
    try:
        cotangents = tvmfun.trace(lambda *xs: tvmfun.vjp(apply, *xs)[1](apply(*xs)))(*case.arguments)
        yield _written(cotangents)
    except TvmfunError:
        assert not floats or op.vjp is None or not case.order
    if can_be_dynamic(case):
        for places, params in variants(case):
            try:
                program = traced(op, case, places, params)
            except TvmfunError:
                continue
            yield _written(program)
            break


def _written(program: Program) -> str:
    """The text of a Program, whose captured arrays become arguments."""
    return re.sub(" = captured [0-9]+", "", Writer().write(program))


def _nested() -> list[Program]:
    x, spec = np.linspace(-1, 1, 3, dtype="float32"), tvmfun.ShapeDtype(("n", 3), "float32")

    def steps(x: tnp.ndarray, count: tnp.ndarray) -> tuple:
        body = lambda i, c: lax.switch(i, [tnp.sin, tnp.tanh, lambda c: c * 2], c)
        x = lax.fori_loop(0, count, body, x)
        x, rows = lax.scan(lambda c, t: (checkpoint(tnp.sin)(c) + t, c), x, tnp.ones((4, 3)))
        return lax.while_loop(lambda c: (c.sum() < 9) & (c.sum() > 0), lambda c: c * 1.5 + 1, x), rows

    table = lambda x: lax.fori_loop(0, 4, lambda i, c: c.at[i].set(c.sum(0)), x)
    return [
        tvmfun.trace(steps)(x, 2),
        tvmfun.trace(tvmfun.vmap(steps))(np.stack([x, x]), np.arange(2)),
        tvmfun.trace(tvmfun.grad(lambda x: steps(x, 2)[1].sum()))(x),
        tvmfun.trace(table)(np.eye(4, dtype="float32")),
        tvmfun.trace(lambda x: lax.scan(lambda c, r: (c + r.sum(), r), 0.0, x))(spec),
        tvmfun.trace(lambda x: lax.map(lambda r: tnp.sort(r) @ tnp.ones((3, 2)), x))(spec),
        tvmfun.trace(lambda x: tvmfun.random.normal(tvmfun.random.key(0), (5,)) * x[:1])(x),
    ]


# -- edits -------------------------------------------------------------------------------------------------------------

_PIECES = re.compile(r"'[^']*'|[A-Za-z_<>]\w*|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|.", re.DOTALL)
_EQUATION = re.compile(r"(?P<results>.*?) = (?P<op>\w+)\((?P<arguments>.*)\)(?P<source>  #.*)?$")


def edit(rng: random.Random, text: str) -> str:
    """Returns a text with one to three edits."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(_EDITS)(rng, text)
    return text


def edited(rng: random.Random, text: str) -> tuple[str, bool]:
    """Returns an edited text in which types follow the edits, and whether it is read.

    Raises:
        Exception: any error of reading that is not the library's.
    """
    text = edit(rng, text)
    for _ in range(_MOST_REPAIRS):
        try:
            Reader(text).read()
        except ProgramError as error:
            wrong = _RETURNS.search(str(error))
            if wrong is None:
                return text, False
            repaired = _with_types(text, int(wrong[1]), wrong[2])
            if repaired == text:
                return text, False
            text = repaired
        else:
            return text, True
    return text, False


def _with_types(text: str, number: int, types: str) -> str:
    """The text whose equation in a line declares these types."""
    lines = text.split("\n")
    results, equals, rest = lines[number - 1].partition(" = ")
    names = re.findall(r"([\w<>]+): ", results)
    kinds = re.findall(r"\w+\[[^\]]*\]", types)
    if not equals or len(names) != len(kinds):
        return text
    indent = results[: len(results) - len(results.lstrip())]
    lines[number - 1] = indent + ", ".join(map(": ".join, zip(names, kinds, strict=True))) + equals + rest
    return "\n".join(lines)


def _replaced(rng: random.Random, text: str, fits: Callable[[str], bool], other: Callable[[str], str]) -> str:
    """The text with one of the pieces that fit replaced."""
    pieces = _PIECES.findall(text)
    places = [i for i, piece in enumerate(pieces) if fits(piece)]
    if places:
        at = rng.choice(places)
        pieces[at] = other(pieces[at])
    return "".join(pieces)


def _is_number(piece: str) -> bool:
    return piece.lstrip("-").isdecimal()


def _other_number(rng: random.Random, text: str) -> str:
    near = lambda piece: (
        str(int(piece) + rng.choice((-2, -1, 1, 2))) if rng.random() < 0.5 else str(rng.choice(_NUMBERS))
    )
    return _replaced(rng, text, _is_number, near)


def _other_value(rng: random.Random, text: str) -> str:
    return _replaced(rng, text, _is_number, lambda _: rng.choice(_OTHERS))


def _other_word(rng: random.Random, text: str) -> str:
    is_word = lambda piece: piece[:1] == "'" or piece in ("True", "False", "None")
    words = [*map(repr, _WORDS), *map(repr, _TYPES), "True", "False", "None", "2"]
    return _replaced(rng, text, is_word, lambda _: rng.choice(words))


def _other_type(rng: random.Random, text: str) -> str:
    """Another dtype for one type, or for all types of that dtype."""
    found = [name for name in _TYPES if f" {name}[" in text]
    if not found:
        return text
    old, new = rng.choice(found), rng.choice(_TYPES)
    if rng.random() < 0.5:
        return text.replace(f"{old}[", f"{new}[")
    return _replaced(rng, text, lambda piece: piece == old, lambda _: new)


def _other_op(rng: random.Random, text: str) -> str:
    return _replaced(rng, text, REGISTRY.__contains__, lambda _: rng.choice(list(REGISTRY)))


def _other_size(rng: random.Random, text: str) -> str:
    """Another shape for an input."""
    head, brace, rest = text.partition(" {\n")

    def shape(found: re.Match) -> str:
        sizes = [size for size in found[1].split(",") if size]
        at = rng.randrange(len(sizes) + 1)
        kind = rng.choice(("add", "remove", "change", "change", "all"))
        if kind == "add":
            sizes.insert(at, rng.choice(("0", "1", "2", "3", "n")))
        elif sizes and kind == "remove":
            del sizes[at % len(sizes)]
        elif sizes and kind == "change":
            sizes[at % len(sizes)] = rng.choice(
                ("0", "1", "1", "2", "3", "5", "17", "33", "n", "2*n", "n + 1", str(2**31))
            )
        else:
            sizes = [rng.choice(("0", "1", "4", "n"))] * len(sizes)
        return f"[{','.join(sizes)}]"

    places = list(re.finditer(r"\[([^\]]*)\]", head))
    if not places:
        return text
    place = rng.choice(places)
    return head[: place.start()] + shape(place) + head[place.end() :] + brace + rest


def _in_equation(rng: random.Random, text: str, change: Callable[[list[str]], None]) -> str:
    """The text with other arguments and parameters of one equation."""
    lines = text.split("\n")
    places = [i for i, line in enumerate(lines) if _EQUATION.match(line)]
    if not places:
        return text
    at = rng.choice(places)
    parts = _EQUATION.match(lines[at])
    assert parts is not None
    arguments = _split(parts["arguments"])
    change(arguments)
    lines[at] = f"{parts['results']} = {parts['op']}({', '.join(arguments)})"
    return "\n".join(lines)


def _split(arguments: str) -> list[str]:
    """The arguments between commas outside of parentheses."""
    parts, depth = [""], 0
    for piece in _PIECES.findall(arguments):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def _other_arguments(rng: random.Random, text: str) -> str:
    """Arguments swapped, left out, repeated or replaced by another value."""
    names = [*re.findall(r"(\w+): \w+\[", text), "1:int32", "0.5:float32", "True:bool", "7"]

    def change(arguments: list[str]) -> None:
        at, other = (rng.randrange(len(arguments) + 1) for _ in range(2))
        kind = rng.choice(("swap", "drop", "repeat", "replace", "replace", "insert"))
        if kind == "insert" or not arguments:
            arguments.insert(at, rng.choice(names))
            return
        at, other = at % len(arguments), other % len(arguments)
        if kind == "swap":
            arguments[at], arguments[other] = arguments[other], arguments[at]
        elif kind == "drop":
            del arguments[at]
        elif kind == "repeat":
            arguments.insert(at, arguments[at])
        elif "=" not in arguments[at]:
            arguments[at] = rng.choice(names)

    return _in_equation(rng, text, change)


_PARAMETERS = (
    "batch=1", "batch=-1", "unique=True", "unique=1", "size=(3,)", "size=(2, n)", "precision='tensorfloat32'",
    "precision='x'", "axis=-1", "axis=True", "mode='max'", "groups=0", "groups=2",
)  # fmt: skip


def _other_parameters(rng: random.Random, text: str) -> str:
    """A parameter added, or a tuple with an element more or less."""

    def change(arguments: list[str]) -> None:
        tuples = [i for i, argument in enumerate(arguments) if re.search(r"=\(.*\)$", argument)]
        if not tuples or rng.random() < 0.3:
            arguments.append(rng.choice(_PARAMETERS))
            return
        at = rng.choice(tuples)
        key, _, content = arguments[at].partition("=")
        items = _split(content[1:-1])
        if items and rng.random() < 0.5:
            del items[rng.randrange(len(items))]
        else:
            items.insert(rng.randrange(len(items) + 1), rng.choice([*items, "0", "1", "-1"]))
        arguments[at] = f"{key}=({''.join(f'{item}, ' for item in items).rstrip()})"

    return _in_equation(rng, text, change)


def _other_lines(rng: random.Random, text: str) -> str:
    """Equations left out, repeated or exchanged."""
    lines = text.split("\n")
    places = [i for i, line in enumerate(lines) if _EQUATION.match(line)]
    if not places:
        return text
    at, other = rng.choice(places), rng.choice(places)
    kind = rng.choice(("drop", "repeat", "exchange"))
    if kind == "drop":
        del lines[at]
    elif kind == "repeat":
        lines.insert(other, lines[at])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


def _other_name(rng: random.Random, text: str) -> str:
    """A name replaced by another one, which may be defined later."""
    names = re.findall(r"(\w+): \w+\[", text)
    if not names:
        return text
    old, new = rng.choice(names), rng.choice(names)
    return _replaced(rng, text, lambda piece: piece == old, lambda _: new)


_EDITS: tuple[Callable[[random.Random, str], str], ...] = (
    _other_number, _other_number, _other_number, _other_value, _other_word, _other_type, _other_type, _other_op,
    _other_size, _other_size, _other_size, _other_arguments, _other_arguments, _other_parameters, _other_lines,
    _other_name,
)  # fmt: skip
