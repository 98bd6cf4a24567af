"""Damaged Relay texts and files of parameters: they are read, or raise an error of ours, soon and in little memory."""

from __future__ import annotations

import contextlib
import json
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from interop.relay_nets import BERT, LENET, LSTM, MLP
from support.relay_text import HEADER, metadata, new_metadata, params_file

import tvmfun
from tvmfun.errors import ProgramError, TvmfunError
from tvmfun.interop.relay import evaluation, from_relay, functions, load_params
from tvmfun.interop.relay.operators import TRANSLATIONS
from tvmfun.interop.relay.parser import parse
from tvmfun.interop.relay.syntax import TensorType, TupleType

pytestmark = pytest.mark.interop

SECONDS = 20
BYTES = 1 << 30

CONSTANTS = f"""{HEADER}def @main(%x: Tensor[(2, 3), float32], %i: Tensor[(2), int32]) {{
  %0 = add(%x, meta[relay.Constant][0]);
  %1 = concatenate((%0, %x), axis=1);
  %2 = strided_slice(%1, begin=[0, 1], end=[2, 5], strides=[1]);
  %3 = take(meta[relay.Constant][1], %i, axis=0);
  %4 = nn.pad(%2, 0f, pad_width=[[0, 0], [1, 1]]);
  %5 = one_hot(%i, 1f, 0f, depth=6, axis=-1, dtype="float32");
  %6 = image.resize2d(expand_dims(%4, axis=0, num_newaxis=2), size=[4, 5], cubic_alpha=-0.75f);
  %7 = tile(reshape(%6, newshape=[-1, 5]), reps=[2, 1]);
  %8 = arange(0, 8, 1, dtype="int32");
  let %f = fn (%y: Tensor[(2, 6), float32]) {{ multiply(%y, %5) }};
  %9 = nn.avg_pool1d(expand_dims(%7, axis=0), pool_size=[2], padding=[1, 1]);
  (%f(%f(%4)), %3, %9, %8, repeat(%5, repeats=3, axis=1))
}}
"""
ARRAYS = (np.ones((2, 3), "float32"), np.arange(12, dtype="float32").reshape(4, 3))
TEXTS = [MLP, LENET, LSTM, BERT, CONSTANTS + metadata(*ARRAYS), CONSTANTS + new_metadata(*ARRAYS)]
FILE = params_file({"a": ARRAYS[0], "long.name": ARRAYS[1], "i": np.arange(3), "h": np.ones(2, "float16")})
DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int32",
    "int64",
    "uint8",
    "bool",
    "float33",
    "complex64",
]


@contextmanager
def limits() -> Iterator[None]:
    """Fails if the block takes too long or too much memory."""

    def expire(*_: Any) -> None:
        raise TimeoutError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    handler = signal.signal(signal.SIGALRM, expire)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < BYTES


def spec(type: Any) -> Any:
    if isinstance(type, TupleType):
        return tuple(map(spec, type.fields))
    if not isinstance(type, TensorType):
        return tvmfun.ShapeDtype((), "float32")
    return tvmfun.ShapeDtype(tuple(2 if n is None else n for n in type.shape), type.dtype)


def read(text: str) -> None:
    """Reads a text, and traces its function for the types that it says."""
    parsed = []
    with pytest.MonkeyPatch.context() as patch:
        # Large texts take most of the time.
        patch.setattr(functions, "parse", lambda source: parsed.append(parse(source)) or parsed[0])
        function, _ = from_relay(text)
    parameters = parsed[0].functions["main"].parameters
    tvmfun.eval_shape(lambda *args: function({}, *args), *(spec(parameter.type) for parameter in parameters))


# -- damages -----------------------------------------------------------------------------------------------------------


def truncated(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flipped(data: bytes, draw: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        result[draw.randrange(len(result))] ^= 1 << draw.randrange(8)
    return bytes(result)


def replaced(text: str, pattern: str, draw: random.Random, choose: Callable[[], str]) -> str:
    """The text with one to three parts that match a pattern replaced."""
    for _ in range(draw.choice((1, 1, 3))):
        matches = list(re.finditer(pattern, text))
        if matches:
            match = draw.choice(matches)
            text = text[: match.start()] + choose() + text[match.end() :]
    return text


def other_dtype(text: str, draw: random.Random) -> str:
    return replaced(text, "float32|int32|int64|bool", draw, lambda: draw.choice(DTYPES))


def cyclic(text: str, draw: random.Random) -> str:
    """References to other bindings, functions and nodes, also backwards; and programs that double at each step."""
    kind = draw.randrange(6)
    if kind == 0 and "#[metadata]" in text:
        head, _, tail = text.partition("#[metadata]")
        graph = json.loads(tail)
        numbers = list(range(len(graph["nodes"])))
        for node in graph["nodes"]:
            for key in ("data", "keys"):
                if isinstance(node.get(key), list):
                    node[key] = [draw.choice(numbers) if isinstance(n, int) else n for n in node[key]]
        return f"{head}#[metadata]{json.dumps(graph)}"
    if kind == 1:
        names = [f"@f{i}" for i in range(draw.randrange(1, 30))]
        calls = [f"def {name}(%x: float32) {{ {draw.choice(names)}({draw.choice(names)}(%x)) }}" for name in names]
        return f"{HEADER}def @main(%x: float32) {{ @f0(%x) }}\n" + "\n".join(calls)
    if kind == 2:
        depth = draw.choice((5, 40, 1000))
        bodies = "\n".join(f"def @f{i}(%x: float32) {{ @f{i + 1}(@f{i + 1}(%x)) }}" for i in range(depth))
        return f"{HEADER}def @main(%x: float32) {{ @f0(%x) }}\n{bodies}\ndef @f{depth}(%x: float32) {{ %x }}"
    if kind == 3:
        depth = draw.choice((5, 40, 5000))
        opens, closes = draw.choice((("(", ")"), ("negative(", ")"), ("(%x, ", ")"), ("if (True) {", "} else { %x }")))
        return f"{HEADER}def @main(%x: float32) {{ {opens * depth}%x{closes * depth} }}"
    if kind == 4:
        op = draw.choice(("({0}, {0})", "concatenate(({0}, {0}))", "({0},)", "stack(({0}, {0}))", "add({0}, {0})"))
        lines = [f"%{i + 1} = {op.format(f'%{i}')};" for i in range(draw.choice((4, 60, 1000)))]
        body = "\n".join(lines)
        return f"{HEADER}def @main(%x: Tensor[(2), float32]) {{ %0 = %x;\n{body}\n%{len(lines)} }}"
    return replaced(text, r"%\w+|@\w+", draw, lambda: draw.choice(("%0", "%1", "%9", "%x", "%state", "@main", "@cell")))


def huge(text: str, draw: random.Random) -> str:
    sizes = (-1, 0, 7, 4097, 2**20, 2**24 + 1, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 10**30)
    numbers = [*map(str, sizes), "9" * 5000]
    return replaced(text, r"(?<![\w%.])\d+(?![\w.])", draw, lambda: draw.choice(numbers))


def huge_bytes(data: bytes, draw: random.Random) -> bytes:
    """Eight bytes that may be a size, replaced by a large number."""
    at = draw.randrange(0, len(data) - 8)
    size = draw.choice((2**31, 2**40, 2**63 - 1, 2**64 - 1)).to_bytes(8, "little")
    return data[:at] + size + data[at + 8 :]


def dtype_bytes(data: bytes, draw: random.Random) -> bytes:
    at = draw.choice([match.start() for match in re.finditer(rb"\?\xa1\xb4\x96\xf0@\^\xdd", data)]) + 28
    return data[:at] + bytes(draw.randrange(256) for _ in range(4)) + data[at + 4 :]


def of_text(damage: Callable[[bytes, random.Random], bytes]) -> Callable[[str, random.Random], str]:
    return lambda text, draw: damage(text.encode(), draw).decode("latin-1")


TEXT_DAMAGES = {
    "truncated": of_text(truncated),
    "flipped": of_text(flipped),
    "dtype": other_dtype,
    "cyclic": cyclic,
    "huge": huge,
}
FILE_DAMAGES = {"truncated": truncated, "flipped": flipped, "dtype": dtype_bytes, "huge": huge_bytes}
COUNTS = (30, 500)


@pytest.mark.quick("*-30")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", TEXT_DAMAGES)
def test_damaged_texts_raise_our_errors(kind: str, count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "MOST_CALLS", 3000)
    refused = 0
    for seed in range(count):
        draw = random.Random(f"{kind} {seed} {count}")
        text = TEXT_DAMAGES[kind](draw.choice(TEXTS), draw)
        try:
            with limits():
                read(text)
        except TvmfunError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{kind} {seed}: {type(error).__name__} {error}\n{text[:3000]}") from error
    assert refused > count // 10


@pytest.mark.quick("*-30")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", FILE_DAMAGES)
def test_damaged_files_of_parameters_raise_our_errors(kind: str, count: int):
    for seed in range(count):
        draw = random.Random(f"{kind} {seed} {count}")
        data = FILE_DAMAGES[kind](FILE, draw)
        try:
            with limits():
                load_params(data)
        except ProgramError:
            continue
        except BaseException as error:
            raise AssertionError(f"{kind} {seed}: {type(error).__name__} {error}") from error


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_whole_texts_are_read(text: str):
    with limits():
        read(text)


@pytest.mark.parametrize(
    "body", ["%x" + ".0" * 10000, "%x" + "()" * 10000, "%x" + " + %x" * 10000, "-" * 10000 + "1", "%x" + "; %x" * 10000]
)
def test_long_chains_take_no_more_than_linear_time(body: str):
    with limits(), contextlib.suppress(TvmfunError):
        read(f"{HEADER}def @main(%x: float32) {{ {body} }}")


@pytest.mark.slow
def test_functions_that_double_their_calls_are_refused():
    bodies = "\n".join(f"def @f{i}(%x: float32) {{ @f{i + 1}(@f{i + 1}(%x)) }}" for i in range(40))
    text = f"{HEADER}def @main(%x: float32) {{ @f0(%x) }}\n{bodies}\ndef @f40(%x: float32) {{ %x }}"
    with limits(), pytest.raises(ProgramError, match="inlined, the program has more than 50000 calls"):
        read(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TRANSLATIONS))
def test_operators_refuse_any_arguments_they_cannot_take(name: str):
    """Every operator with few and many arguments of all kinds, and with every attribute of every kind."""
    values = [
        "1",
        "-7",
        "2f",
        "True",
        "None",
        '"NCHW"',
        "[]",
        "[1]",
        "[-1, 2]",
        "[[1, 2], [3, 4]]",
        "9223372036854775807",
    ]
    arguments = ["%x", "%y", "%b", "(%x, %x)", "%i", "1f", "()", "2", "(%x, (%y, %i))"]
    kinds = ["Tensor[(2, 3), float32]", "ensor[(2, 3, 4, 4), float32]", "ensor[(2), bool]", "ensor[(2, 3), int32]"]
    signature = ", ".join(f"%{n}: T{k.removeprefix('T')}" for n, k in zip("xybi", kinds, strict=True))
    draw = random.Random(name)
    for _ in range(60):
        attributes = [f"{key}={draw.choice(values)}" for key in TRANSLATIONS[name].attributes if draw.random() < 0.7]
        chosen = [draw.choice(arguments) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 5)))]
        text = f"{HEADER}def @main({signature}) {{ {name}({', '.join([*chosen, *attributes])}) }}"
        try:
            with limits():
                read(text)
        except TvmfunError:
            continue
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__} {error}\n{text}") from error


def test_a_pickle_is_not_a_file_of_parameters(tmp_path: Any):
    import pickle

    path = tmp_path / "net.params"
    path.write_bytes(pickle.dumps({"w": np.ones(2)}))
    with pytest.raises(ProgramError, match="does not begin like a file of parameters"):
        load_params(path)
