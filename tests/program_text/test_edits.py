"""Texts of Programs that were edited: those that still are Programs compile and run, and the others are refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.edited_texts import edited, texts
from support.run_texts import outcomes

import tvmfun
from tvmfun.errors import ProgramError, ShapeError
from tvmfun.program_text.reader import Reader


def loaded(seeds: range) -> list[str]:
    """The texts that are read of those edited from these seeds, once each, and none that edits left as it was."""
    corpus = texts()
    found: dict[str, None] = {}
    for seed in seeds:
        rng = random.Random(seed)
        text, is_read = edited(rng, rng.choice(corpus))
        if is_read:
            found[text] = None
    return [text for text in found if text not in corpus]


def test_edited_texts_are_read_or_refused():
    assert len(loaded(range(300))) > 60


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_edited_programs_compile_and_run(part: int):
    found = [*outcomes(loaded(range(1000 * part, 1000 * part + 1000)))]
    assert [one for one in found if one.is_bad] == []
    assert sum(one.outcome == "ran" for one in found) > 200


def test_a_crash_and_a_hang_are_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("support.run_texts.MOST_SECONDS", 0.01)
    (one,) = outcomes([texts()[0]])
    assert one.outcome == "BAD: it hangs"


@pytest.mark.parametrize(
    ("inputs", "equation", "message"),
    [
        ("a: float32[3,4]", "float32[3,4] = flip(a, axes=(2,))", r"\(2,\) are not axes"),
        ("a: float32[3]", "float32[6] = concat(a, a, axis=-1)", r"\(-1,\) are not axes"),
        ("a: float32[3]", "float32[] = sum(a, axis=(0.0,))", "the parameter axis is of another kind"),
        ("a: float32[3]", "float32[] = sum(a, axis=(False,))", "the parameter axis is of another kind"),
        ("", "int32[2,2] = iota(shape=(2, 2), axis=2, dtype='int32')", r"\(2,\) are not axes"),
        ("", "int32[2] = iota(shape=(2,), axis=0, dtype='i4')", "the parameter dtype is of another kind"),
        ("a: int32[3], b: int32[3]", "int32[3] = bitwise_or(a, b, b)", "does not take these arguments"),
        ("a: float32[3]", "float32[3] = sin(a, x=1)", "does not take these arguments"),
        ("a: float32[3]", "float32[3] = polygamma(a, order=-1)", "the order must be from 0"),
        ("a: float32[3]", "float32[3] = polygamma(a, order=10000)", "the order must be from 0"),
        ("a: float32[3]", "float32[3] = integer_power(a, exponent=1099511627776)", "must be at most 1024"),
        ("a: float32[9], b: int32[2,1]", "float32[2,9] = gather(a, b, mode='fill', batch=-1)", "axes after the first"),
        ("a: float32[9], b: int32[2,1]", "float32[2] = gather(a, b, mode='none')", "the parameter mode is of another"),
        (
            "a: float32[9], b: int32[2,3], c: float32[2]",
            "float32[9] = scatter(a, b, c, mode='add')",
            "must number axes after the first 0",
        ),
        (
            "a: float32[4], b: float32[4]",
            "float32[8] = window_put(a, b, size=(8,), window=(2,), stride=(2,), padding=((0, 0),))",
            "offsets in windows are int32",
        ),
        ("a: float32[4]", "float32[5] = window_max(a, window=(0,), stride=(1,), padding=((0, 0),))", "at least 1"),
        (
            "a: float32[2,3], b: float32[3,2]",
            "float32[2,3,3,2] = dot_general(a, b, contract=((), ()), batch=((), ()), precision='x')",
            "the parameter precision",
        ),
        (
            "a: float32[2,3], b: float32[2,2]",
            "float32[2,2] = dot_general(a, b, contract=((0, 0), (0, 1)), batch=((), ()))",
            "are not axes",
        ),
        (
            "a: float32[1,2,2,4], b: float16[1,2,2,2]",
            "float32[1,2,2,4], c: float32[1,2,2] = attention(a, a, a, b, optional=('mask',))",
            "mask cannot have this dtype",
        ),
        (
            "a: float32[3]",
            "float32[3] = checkpoint(a, program=program f(a: float32[3]) {return a})",
            "its parameters are program, policy",
        ),
        (
            "a: float64[b,5,4,2], c: float64[b,3,3,3]",
            "float64[4,2,2,3] = conv_kernel_gradient(a, c, kernel=(4, 2), stride=(1, 1), padding=((0, 0), (0, 0)), "
            "dilation=(1, 1), kernel_dilation=(1, 1), groups=1)",
            "there are only",
        ),
        ("a: int32[2147483647]", "int32[] = argmin(a, axis=0)", "must not have more than 1,073,741,824"),
        (
            "a: float32[1,5,1], w: float32[3,1,1]",
            "float32[1,2147483650,1] = conv(a, w, stride=(1,), padding=((2147483648, 0),), dilation=(1,), "
            "kernel_dilation=(1,), groups=1)",
            "must be below 2",
        ),
    ],
)  # fmt: skip
def test_parameters_that_an_op_cannot_serve(inputs: str, equation: str, message: str):
    with pytest.raises(ProgramError, match=message):
        Reader(f"program f({inputs}) {{\n  z: {equation}\n  return z}}").read()


def test_windows_of_padding_alone_are_zeros():
    text = (
        "program f(a: float32[0], b: int32[2]) {\n"
        "  c: float32[2] = window_take(a, b, window=(2,), stride=(2,), padding=((2, 2),))\n  return c}"
    )
    assert tvmfun.jit(Reader(text).read())(np.zeros(0, "float32"), np.array([0, 1], "int32"))[0].tolist() == [0, 0]


def test_arrays_that_kernels_cannot_index():
    text = "program f(a: int32[2147483647,17]) {\n  b: int32[2147483647,17] = argsort(a)\n  return b}"
    with pytest.raises(ShapeError, match=r"can index arrays of 2,147,483,648 or more elements, got int32"):
        tvmfun.jit(Reader(text).read()).lower(tvmfun.ShapeDtype((2147483647, 17), "int32")).compile()
