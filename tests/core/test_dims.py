"""Dynamic sizes: arithmetic against that of integers, bounds, one form, TVM's expressions, and errors."""

from __future__ import annotations

import math
import operator
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tvm import ir, relax, tirx
from tvm.sym import Analyzer

import tvmfun
from tvmfun import Dim, ShapeDtype
from tvmfun.core import dims, expressions
from tvmfun.errors import ArgumentError, DimensionError, ShapeError
from tvmfun.lower.tir.build import substitute

A, B, C = Dim("a"), Dim("b", min=2), Dim("c", min=0, max=9)
NAMES = {"a": st.integers(1, 60), "b": st.integers(2, 60), "c": st.integers(0, 9)}
VALUES = st.fixed_dictionaries(NAMES)


def combined(parts: st.SearchStrategy) -> st.SearchStrategy:
    operation = st.sampled_from([operator.add, operator.sub, operator.mul])
    plain = st.tuples(operation, parts, parts).map(lambda t: t[0](t[1], t[2]))
    divided = st.tuples(parts, st.integers(-7, 7).filter(bool)).map(lambda t: t[0] // t[1])
    rest = st.tuples(parts, st.integers(1, 7)).map(lambda t: t[0] % t[1])
    return plain | divided | rest


SIZES = st.recursive(st.sampled_from([A, B, C]) | st.integers(-9, 9), combined, max_leaves=5)
ARITHMETIC = st.sampled_from([operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod])
COMPARISONS = st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge])


@given(SIZES, SIZES, VALUES, ARITHMETIC)
def test_arithmetic_is_that_of_integers(left, right, values, operation):
    x, y = dims.at(left, values), dims.at(right, values)
    if operation in (operator.floordiv, operator.mod):
        assume(right != 0 if isinstance(right, int) else dims.always_le(1, right))
    assert dims.at(operation(left, right), values) == operation(x, y)


@given(SIZES, VALUES)
def test_bounds_hold(size, values):
    low, high = dims.bounds(size)
    assert low <= dims.at(size, values) <= high


@given(SIZES, SIZES, SIZES)
def test_equal_polynomials_are_equal(x, y, z):
    assert x * (y + z) == x * y + x * z
    assert (x + y) * (x - y) == x * x - y * y
    assert hash(x + y) == hash(y + x)
    assert x + y - y == x


@given(SIZES, VALUES)
def test_expressions_of_tvm_read_back_and_have_the_same_value(size, values):
    assume(isinstance(size, Dim))
    for dtype in ("int32", "int64"):
        expression = expressions.of_size(size, dtype)
        assert str(expression.ty) == dtype
        assert expressions.to_size(expression) == size
        known = {expressions.of_size(Dim(n, *b), dtype): tirx.const(values[n], dtype) for n, b in BOUNDS.items()}
        number = Analyzer().simplify(substitute(expression, known))
        assert int(number) == dims.at(size, values)


BOUNDS = {"a": (1, None), "b": (2, None), "c": (0, 9)}


@pytest.mark.slow
@given(SIZES, SIZES, VALUES, COMPARISONS)
def test_a_comparison_is_right_or_an_error(left, right, values, holds):
    assume(isinstance(left, Dim))
    try:
        decided = holds(left, right)
    except DimensionError as error:
        assert any(f"{name}, a dynamic size" in str(error) for name in "abc")
    else:
        assert decided == holds(dims.at(left, values), dims.at(right, values))


@given(SIZES, VALUES)
def test_maximum_and_minimum(size, values):
    try:
        larger, smaller = dims.maximum(0, size), dims.minimum(size, 0)
    except DimensionError:
        return
    assert dims.at(larger, values) == max(0, dims.at(size, values))
    assert dims.at(smaller, values) == min(0, dims.at(size, values))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (4 * A, "4*a"),
        (A + 1, "a + 1"),
        (2 - A, "-a + 2"),
        (A * B - 3 * A + B * B, "a*b + b*b - 3*a"),
        (A // 2, "a // 2"),
        (3 * (A // 2) + 1, "3*(a // 2) + 1"),
        ((A + 1) // 2 - 1, "(a + 1) // 2 - 1"),
        (-(A // 3), "-(a // 3)"),
    ],
)
def test_text(size, text):
    assert str(size) == repr(size) == text


def test_one_form():
    assert (784 * A) // 784 == A
    assert (A * B) % A == 0
    assert (6 * A + 4 * B) // 2 == 3 * A + 2 * B
    assert -(-A // 320) == (A + 319) // 320
    assert A // 2 + (A - A // 2) == A
    assert (A * A - 1) // (A + 1) == A - 1
    assert -1 % A == A - 1
    assert A - A == 0 and isinstance(A - A, int)
    assert A**3 == A * A * A and A**0 == 1
    assert divmod(4 * A, 4) == (A, 0)
    assert math.prod((A, 3, B)) == 3 * A * B
    assert sum((A, 1, A)) == 2 * A + 1
    assert {A: 1}[Dim("a")] == 1
    assert Dim("a") != Dim("a", min=2)
    assert A != 3 and A != "a"


def test_bounds_of_what_slices_make():
    half = A // 2
    assert (A - half) >= 1
    assert (A - 2 * half).bounds == (0, 1)
    assert half * 2 <= A
    assert (A * B - B) >= 0
    assert C <= 9


def test_truth():
    assert A and (A + B) and (-A)
    with pytest.raises(DimensionError, match="a - 2"):
        bool(A - 2)


def test_an_undecided_comparison_names_the_size_the_line_and_a_way_out():
    with pytest.raises(DimensionError) as info:
        assert A < 3
    assert "whether a < 3" in str(info.value)
    assert "a, a dynamic size of at least 1 at " in str(info.value)
    assert "test_dims.py:" in str(info.value)
    assert "Dim('a', min=3)" in str(info.value)
    with pytest.raises(DimensionError, match=r"min=1000"):
        assert A >= 1000


@pytest.mark.parametrize("use", [int, float, range, lambda size: [0] * size, np.zeros, lambda size: "ab"[size]])
def test_python_needs_a_number(use):
    with pytest.raises(DimensionError, match="b is known at call time only"):
        use(B)


@pytest.mark.parametrize("name", ["2b", "", "b c", 3, None])
def test_names_are_identifiers(name):
    with pytest.raises(ArgumentError, match="identifier"):
        Dim(name)


@pytest.mark.parametrize("limits", [{"min": -1}, {"min": 3, "max": 2}])
def test_limits_make_sense(limits):
    with pytest.raises(ArgumentError, match="bounds"):
        Dim("b", **limits)


def test_division_by_zero():
    with pytest.raises(ZeroDivisionError):
        A // 0
    with pytest.raises(DimensionError, match="c >= 1"):
        A // C


def test_shapes_have_names_and_sizes():
    spec = ShapeDtype(("a", 3, 2 * A), "float32")
    assert spec.shape == (A, 3, 2 * A)
    assert spec.size == 6 * A * A
    assert spec.nbytes == 24 * A * A
    assert repr(spec) == "float32[a,3,2*a]"
    assert hash(spec) == hash(ShapeDtype((A, 3, A + A), "float32"))
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(DimensionError):
        ShapeDtype((A - 2,), "float32")
    with pytest.raises(ShapeError, match="negative"):
        ShapeDtype((-A,), "float32")


def test_solving_for_sizes():
    place = lambda i: f"argument {i}"
    assert dims.solve([(A, 3), (2 * A, B)], [(5, 3), (10, 4)], "f", place) == {"a": 5, "b": 4}
    with pytest.raises(
        ShapeError, match=r"axis 0 of argument 1 must be 2\*a with a = 5 from axis 0 of argument 0, got 9"
    ):
        dims.solve([(A,), (2 * A,)], [(5,), (9,)], "f", place)
    with pytest.raises(ShapeError, match=r"a dynamic size of at least 1, got 0. Try Dim\('a', min=0\)"):
        dims.solve([(A,)], [(0,)], "f", place)
    assert dims.solve([(3 * A + 1,)], [(7,)], "f", place) == {"a": 2}
    with pytest.raises(ShapeError, match=r"must be 3\*a for an integer a, got 7"):
        dims.solve([(3 * A,)], [(7,)], "f", place)
    with pytest.raises(ShapeError, match="a dynamic size of 0 to 9, got 10"):
        dims.solve([(C,)], [(10,)], "f", place)
    assert dims.solve([(A,)], [(B,)], "f", place) == {"a": B}


def test_values_for_names():
    assert dims.at((2 * A, (B, "word"), None), {"a": 3}) == (6, (B, "word"), None)
    assert dims.names((A, (2 * B,)), 3) == {"a": A, "b": B}
    with pytest.raises(ArgumentError, match="the same bounds"):
        dims.names(A, Dim("a", min=2))
    assert dims.typical(A * 2) == 128
    assert dims.typical(C) == 9
    assert dims.typical(7) == 7


def test_sizes_in_expressions_of_tvm():
    i = tirx.Var("i", "int32")
    for made in (A + i, i + A, i * A, A // i, i % A):
        assert str(made.ty) == "int32"
    assert isinstance(i < A, ir.Expr) and isinstance(i <= A, ir.Expr)
    wide = tirx.Var("j", "int64")
    assert str((wide * A).ty) == "int64"
    with pytest.raises(ShapeError, match="not a size"):
        expressions.to_size(tirx.Var("unknown", "int32"))
    assert expressions.to_size(relax.Var("n", ir.PrimType("int64")), foreign=True) == Dim("n")


@given(st.integers(1, 9))
def test_other_arithmetic_gives_arrays(count):
    def function(x):
        size = x.shape[0]
        return [size / 2, 1.5 * size, 2.0 - size, size**0.5, np.float32(3) * size, 2**size, size + x, x - size]

    got = tvmfun.jit(function, dynamic_shapes=({0: "b"},))(np.ones(count, "float32"))
    expected = function(np.ones(count, "float32"))
    for value, number in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(value), number, rtol=1e-6)
