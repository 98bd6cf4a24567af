"""Texts that are refused: the message has the line, and nothing crashes, hangs or runs."""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import exported

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Program, lax
from tvmfun.errors import ProgramError, TargetError, TvmfunError
from tvmfun.program_text.files import arrays_path
from tvmfun.program_text.reader import Reader
from tvmfun.stages import Lowered

X = np.linspace(-1, 1, 3, dtype="float32")
START = "program f(a: float32[3]) {\n  "


def read(text: str) -> Program:
    return Reader(text).read()


def test_a_text_is_read():
    program = read(START + "b: float32[3] = sin(a)  # here.py:1\n  return b, 1.0:float32\n}")
    assert program.equations[0].source == "here.py:1"
    assert np.asarray(program(X)[0]).tolist() == np.asarray(tnp.sin(X)).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: expected 'program', got the end of the text"),
        ("import os", r"line 1: expected 'program', got 'import'"),
        (START + "b: float32[3] = sine(a)\n return b}", r"line 2: there is no op .* got sine\. Try importing"),
        (START + "b: float32[3] = sin(c)\n return b}", r"line 2: a value is used before it is defined, got c"),
        (START + "b: float32[3] = sin(b)\n return b}", r"line 2: a value is used before it is defined, got b"),
        (START + "a: float32[3] = sin(a)\n return a}", r"line 2: a name is defined twice, got a"),
        (START + "\nb: float32[4] = sin(a)\n return b}", r"line 3: sin: it returns float32\[3\], got float32\[4\]"),
        (START + "b: float64[3] = sin(a)\n return b}", r"line 2: sin: it returns float32\[3\], got float64\[3\]"),
        (START + "b: float99[3] = sin(a)\n return b}", r"line 2: there is no such dtype, .*\. Try one of bool"),
        (START + "b: float32[3] = sin(a, a)\n return b}", "line 2: sin: it takes 1 arguments, got 2"),
        (START + "b: float32[3] = sin(a, x=1)\n return b}", r"line 2: sin does not take these arguments"),
        (START + "b: float32[3] = sum(a, axis=(0,), axis=1)\n return b}", "the parameter axis is there twice"),
        (START + "b: float32[] = sum(axis=(0,), a)\n return b}", "arguments must come before parameters"),
        (START + "b: float32[] = sum(a, axis=(7,))\n return b}", r"line 2: sum: .*got"),
        (START + "b: float32[] = sum(a, axis=__import__('os'))\n return b}", "expected a value, got '__import__'"),
        (START + "b: float32[] = sum(a, axis=function('os:system'))\n return b}", "there is no function of this name"),
        (START + "b: float32[] = sum(a, axis=dtype('object'))\n return b}", "there is no dtype of this name"),
        (
            "program f(a: float32[4], b: float32[9]) {\n"
            "c: int32[9] = window_argmax(a, b, window=(2,), stride=(2,), padding=((0, 0),))\n return c}",
            r"line 2: window_argmax: there must be one element per window, \(2,\), got float32\[9\]",
        ),
        (START + "return a", "line 2: expected '}', got the end of the text"),
        (START + "return a}\nx", "line 3: expected the end of the text, got 'x'"),
        (START + "return a, 300:int8}", "expected a value of the dtype int8, got 300"),
        (START + "return a, 1:float32}", "expected a value of the dtype float32, got 1"),
        (START + "return a, 0.1:float32}", "expected a value of the dtype float32, got 0.1"),
        (START + "return a, 0xff:float32}", "expected a value of the dtype float32, got 0xff"),
        (START + "return a, 1e999:float64}", "this number is too large, got 1e999"),
        (START + f"return a, {'9' * 400}:int32}}", "an integer of more than 320 digits"),
        (START + "return 'a\\q'}", "expected a value"),
        ("program 'a\\q'() {\n  return}", r"line 1: this escape is not one of a string"),
        ("program f(a: float32[9999999999999999999]) {return a}", r"a size must be below 2\*\*63"),
        ("program f(a: float32[99999999999,99999999999]) {return a}", "no array has so many axes or elements"),
        (f"program f(a: float32[{'1,' * 65}]) {{return a}}", "no array has so many axes or elements, got 65 axes"),
        ("program f(a: float32[n // 0]) {return a}", "a size that cannot be"),
        ("program f(a: float32[-3]) {return a}", "sizes must not be negative"),
        ("program f(a: float32[n - 5]) {return a}", "it depends on the call whether n - 5 < 0"),
        (f"program f(a: float32[{'*'.join(map(chr, range(97, 120)))}]) {{return a}}", "more than 8 factors"),
        (f"program f(a: float32[{'+'.join(f'a{i}' for i in range(99))}]) {{return a}}", "more than 32 terms"),
        ("program f(a: float32[(2*n) // 2]) {return a}", "not in its simplest form, got n. Try n"),
        ("program f(a: float32[n], b: float32[n]) where 5 <= n <= 3 {return a}", "bounds of n that cannot be"),
        ("program f(a: float32[3] = captured 0) {return a}", "the next captured array must be 0 of 0"),
        ("program f(a: float32[3]) takes {\"tuple\": []} {return a}", "the trees have 0 arguments and 1 results"),
        ("program f(a: float32[3]) takes {\"fields\": [\"os:system\", [], []]} {return a}", "a tree that cannot"),
        ("program f() takes {\"named\": [\"there.is.none:X\", []]} {return}", "not found, got there.is.none:X"),
        (f"program f() takes {'[' * 100000} {{return}}", "JSON that cannot be read"),
        (START + f"b: float32[] = sum(a, axis={'(' * 1000000})", "more than 64 values inside of each other"),
        (START + "b: float32[3] = loop(a, body=" * 10000, "line 2"),
        ("program f(" + "a: float32[3] = loop(" * 5000, "line 1"),
    ],
)  # fmt: skip
def test_texts_that_are_refused(text, message):
    started = time.perf_counter()
    with pytest.raises(ProgramError, match=r"\[Program.load\] .*" + message):
        read(text)
    assert time.perf_counter() - started < 2


LOOP = "\n".join(tvmfun.trace(lambda x: lax.fori_loop(0, 4, lambda i, c: c + x.sum(), x))(X).text.splitlines())
BRANCH = tvmfun.trace(lambda i, x: lax.switch(i, [tnp.sin, tnp.cos], x))(0, X).text


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (LOOP, "carry=", "carry=9", "operands cannot have these roles"),
        (LOOP, "consts=", "consts=-", "operands cannot have these roles|the parameter consts"),
        (LOOP, "length=4", "length=None", "a loop of unlimited length"),
        (LOOP, "reverse=False", "reverse=2", "the parameter reverse is of another kind, got 2"),
        (BRANCH, "float32[3]", "float32[9]", "must have the types float32\\[3\\]|it returns"),
        (BRANCH, "program", "program ", ""),
    ],
)
def test_programs_that_do_not_fit(text, old, new, message):
    head, _, rest = text.partition("= loop(" if text is LOOP else "= switch(")
    op = "= loop(" if text is LOOP else "= switch("
    edited = head + op + rest.replace(old, new, 1)
    if not message:
        assert read(edited).text == text
        return
    with pytest.raises(ProgramError, match=message):
        read(edited)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "step.program"
    state = tvmfun.eval_shape(exported.start, tvmfun.random.key(0))
    tvmfun.jit(exported.train_step, donate_argnums=0).lower(state, *exported.batch()).save(path)
    return path


@pytest.fixture
def edited(saved, tmp_path):
    """Copies the file with other bytes, and returns its path."""

    def edit(old: str, new: str, count: int = 1) -> Path:
        path = tmp_path / "edited.program"
        text = saved.read_text()
        assert old in text
        path.write_text(text.replace(old, new, count))
        arrays_path(path).write_bytes(arrays_path(saved).read_bytes())
        return path

    return edit


@pytest.mark.parametrize(
    ("old", "new"),
    [("stride=(1,)", "stride=(2147483648,)"), ("padding=((0, 0),)", "padding=((0, -7),)"), ("groups=1", "groups=3")],
)
def test_windows_outside_of_an_array_are_refused(old, new):
    convolve = lambda w, x: lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")).sum()
    kernel, images = tvmfun.ShapeDtype((3, 2, 4), "float32"), tvmfun.ShapeDtype((5, 9, 2), "float32")
    text = tvmfun.trace(tvmfun.grad(convolve))(kernel, images).text
    head, op, rest = text.partition("= conv_kernel_gradient(")
    assert old in rest.splitlines()[0]
    with pytest.raises(ProgramError, match="there are only|do not fit|must be at least 1|must not exceed"):
        read(head + op + rest.replace(old, new, 1))


def test_damaged_files(saved, edited, tmp_path):
    path = edited("relu", "tanh")
    with pytest.raises(ProgramError, match=r"not a complete saved Program, got another checksum.*allow_edits=True"):
        Program.load(path)
    assert "= tanh(" in Program.load(path, allow_edits=True).text
    assert "= tanh(" in Lowered.load(path, allow_edits=True).as_text()
    with pytest.raises(ProgramError, match="must have format 1, got format 2. Try the version"):
        Program.load(edited("format 1", "format 2"))
    for content in (b"", b"\x7fELF", b"tvmfun program", saved.read_bytes()[:900], saved.read_bytes()[:-1]):
        (tmp_path / "short.program").write_bytes(content)
        with pytest.raises(ProgramError, match="is not a complete saved Program|must have format"):
            Program.load(tmp_path / "short.program")
    with pytest.raises(FileNotFoundError):
        Program.load(tmp_path / "missing.program")


def test_arrays_of_another_file(saved, edited):
    path = edited("", "")
    beside = arrays_path(path)
    content = beside.read_bytes()
    beside.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ProgramError, match="safetensors is not a complete saved Program"):
        Program.load(path)
    beside.unlink()
    with pytest.raises(FileNotFoundError, match="safetensors"):
        Program.load(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"kind": "llvm"', '"kind": "llvm", "cl-opt": ["-load=x.so"]', "must not have this attribute, got cl-opt"),
        ('"kind": "llvm"', '"kind": "hexagon"', "kind must be llvm or cuda|TVM cannot make a target"),
        ('"names": ["state"', '"names": ["state", "more"', "there must be names of 3 arguments"),
        ('"shape": [32]', '"shape": [33]', "a manifest of another Program"),
        ("support.exported:State", "posixpath:join", "a tree that cannot be read"),
        ("support.exported:State", "antigravity:State", "not found, got antigravity:State. Try importing antigravity"),
        ('"arrays": {"count": 3', '"arrays": {"count": 2', "is not a complete saved Program, got 3 arrays"),
    ],
)
def test_altered_manifests(edited, old, new, message):
    with pytest.raises((ProgramError, TargetError), match=message):
        Lowered.load(edited(old, new, -1), allow_edits=True)
    assert "antigravity" not in sys.modules


def test_lines_are_those_of_the_file(edited):
    path = edited("= relu(", "= rely(")
    line = 1 + path.read_text()[: path.read_text().index("rely")].count("\n")
    with pytest.raises(ProgramError, match=rf"line {line}: there is no op of this name, got rely"):
        Program.load(path, allow_edits=True)


# -- texts altered at random -------------------------------------------------------------------------------------------

PIECES = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "=",
    "-",
    "//",
    "*",
    "where",
    "returns",
    "takes",
    "program",
    "nan",
    "0x",
    "9",
    "-1",
    "1e9",
    "'a'",
    "#x",
    "weak",
    "captured",
    "None",
    "axis=",
    "\n",
]


def altered(rng: random.Random, text: str, kind: str) -> str:
    """A text altered at random."""
    at = rng.randrange(len(text))
    if kind == "truncated":
        return text[:at]
    if kind == "character":
        return (
            text[:at]
            + chr(rng.choice([0, 9, 33, 48, 65, 0x85, 0xE9, 0x1F600, rng.randrange(32, 127)]))
            + text[at + 1 :]
        )
    if kind == "piece":
        return text[:at] + rng.choice(PIECES) + text[at + rng.randrange(3) :]
    tokens = re.split(r"(\w+)", text)
    i, j = (rng.randrange(len(tokens)) for _ in range(2))
    if kind == "number":
        numbers = [i for i, token in enumerate(tokens) if token.isdecimal()]
        tokens[rng.choice(numbers)] = rng.choice(
            ["0", "1", "-1", "2", "65", "2147483648", "9" * 25, "n", "None", "(1,)"]
        )
    elif kind == "swap":
        tokens[i], tokens[j] = tokens[j], tokens[i]
    else:
        tokens[i:i] = tokens[min(j, i) : max(j, i)][:200]
    return "".join(tokens)


KINDS = ["truncated", "character", "piece", "number", "swap", "repeat"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_texts_altered_at_random(saved, kind, count, tmp_path):
    rng = random.Random(f"{kind} {count}")
    dynamic = tvmfun.trace(lambda x: tnp.concatenate([x[1:], x]).reshape(-1, 1))(tvmfun.ShapeDtype(("n",), "float32"))
    dynamic.save(tmp_path / "dynamic.program")
    texts = [saved.read_text(), (tmp_path / "dynamic.program").read_text()]
    path = tmp_path / "altered.program"
    arrays_path(path).write_bytes(arrays_path(saved).read_bytes())
    refused = 0
    for _ in range(count):
        path.write_text(altered(rng, rng.choice(texts), kind), errors="surrogatepass")
        started = time.perf_counter()
        try:
            Program.load(path, allow_edits=True).text
        except TvmfunError:
            refused += 1
        assert time.perf_counter() - started < 5
    assert refused > count / 3
