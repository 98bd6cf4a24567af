"""Wrong dynamic sizes are errors that name the size, the operation and the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, errors, grad, jit
from tvmfun.nn import functional as F

B = {0: "b"}
RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def affine(batch, w):
    return batch["x"] @ w + batch["y"][:, None]


def batch(n: int) -> dict:
    return {"x": floats(n, 3), "y": floats(n)}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + np.ones((4, 3), np.float32), r"\[add\] .* got \(b, 3\) and \(4, 3\) at .*where b is"),
        (lambda x: x.reshape(8, 3), r"\[reshape\] .* float32\[b,3\] with 3\*b at .*where b is"),
        (lambda x: x.reshape(-1, 4), r"\[reshape\] .* got float32\[b,3\] at .*where b is"),
        (lambda x: x @ np.ones((4, 3), np.float32).T @ x, r"\[matmul\] .* at .*where b is"),
        (lambda x: x[5], r"whether b > 5, got b, a dynamic size .*min=6"),
        (lambda x: x[:5], r"whether b < 5, got b, a dynamic size .*min=5"),
        (lambda x: tnp.split(x, 2), r"\[split\] b elements .* at .*where b is"),
        (lambda x: tnp.squeeze(x, 0), r"\[squeeze\] .* at .*where b is"),
        (lambda x: x if x.shape[0] > 3 else -x, r"whether b > 3, got b, a dynamic size .*min=4"),
        (lambda x: [row for row in x], r"b is known at call time only"),  # noqa: C416
        (lambda x: np.zeros(x.shape), r"b is known at call time only"),
        (lambda x: np.linspace(0, 1, x.shape[0]), r"b is known at call time only"),
        (lambda x: F.max_pool(x[None, :, :, None], (3, 1), 1), r"\[max_pool\] .*whether b - 2 > 0.*min=3"),
        (lambda x: grad(lambda x: tnp.sum(x + np.ones((4, 3), "float32")))(x), r"\[add\] .*at .*where b is"),
    ],
)
def test_what_breaks_an_assumption_names_the_size_the_operation_and_the_line(function, message):
    with pytest.raises(errors.ShapeError, match=message) as info:
        jit(function, dynamic_shapes=(B,))(floats(4, 3))
    assert str(info.value).count(" at /") == 1
    assert f"{Path(__file__).name}:" in str(info.value)


def test_arguments_that_disagree():
    function = jit(affine, dynamic_shapes={"batch": {0: "n"}})
    expected = r"axis 0 of argument 0\['y'\] must be n with n = 2 from axis 0 of argument 0\['x'\], got 3"
    with pytest.raises(errors.ShapeError, match=expected):
        function({"x": floats(2, 3), "y": floats(3)}, floats(3, 3))
    pair = jit(lambda x, y: x + y, dynamic_shapes=(B, B))
    with pytest.raises(errors.ShapeError, match=r"axis 0 of argument 1 must be b with b = 3"):
        jit(lambda x, y: pair(x, y))(floats(3), floats(1))


def test_too_small():
    with pytest.raises(errors.ShapeError, match=r"at least 1, got 0. Try Dim\('b', min=0\)"):
        jit(lambda x: x + 1, dynamic_shapes=(B,))(floats(0))


def test_too_large_for_the_indices_of_kernels():
    outer = jit(lambda x: tnp.sum(x[:, None] * x), dynamic_shapes=(B,))
    assert outer(floats(3)).shape == ()
    with pytest.raises(errors.ShapeError, match=r"float32\[b,b\] must have less than 2\*\*31 elements, got b = 50000"):
        outer(floats(50000))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"bathc": {0: "n"}}, "must name arguments of the function, got bathc"),
        ({0: {0: "n"}}, "must name arguments of the function, got 0"),
        ((None, None, {0: "n"}), "must name arguments"),
        ("n", "must be a dictionary or a sequence"),
        ({"w": {2: "n"}}, r"axis 2 of w, which it does not have, got float32\[3,3\]"),
        ({"batch": {"z": {0: "n"}}}, "not a prefix of the argument 'batch'"),
        ({"w": "n"}, r"which axis of 'w' it means, got 'n'. Try \{0: 'n'\}"),
        ({"w": ("n",)}, "one size per axis of w"),
        ({"w": {0: 1.5}}, "a name, a Dim or None, got 1.5"),
        ({"w": {0: "2n"}}, "the name must be an identifier"),
        ({"batch": {"x": {0: "n"}, "y": {0: Dim("n", min=2)}}}, "the same bounds everywhere"),
    ],
)
def test_wrong_specifications(spec, message):
    with pytest.raises(errors.ArgumentError, match=message):
        jit(affine, dynamic_shapes=spec)(batch(4), floats(3, 3))


def test_a_static_size_that_is_another_one():
    with pytest.raises(errors.ShapeError, match="axis 1 of w must have size 4"):
        jit(affine, dynamic_shapes={"w": ("n", 4)})(batch(4), floats(3, 3))


def test_a_size_that_no_argument_tells():
    with pytest.raises(errors.DimensionError, match="must be the size of an axis of an argument, got n"):
        jit(lambda x: x[::2], dynamic_shapes=({0: Dim("n") * Dim("n")},))(floats(4))


def test_a_size_that_outlives_its_function():
    kept = []
    jit(lambda x: kept.append(x.shape[0]) or x * 2, dynamic_shapes=(B,))(floats(3))
    with pytest.raises(errors.DimensionError, match="b"):
        tnp.ones(3) + kept[0]
    with pytest.raises(errors.DimensionError, match="b"):
        tnp.zeros(kept[0])
    with pytest.raises(errors.DimensionError, match="b"):
        jit(lambda x: x + 1)(kept[0])


def test_nans_are_found_in_programs_of_dynamic_sizes():
    function = jit(lambda x: tnp.log(x - x.shape[0]) * 2, dynamic_shapes=(B,))
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match=r"\[log\].*\[-4, -4\]"):
        function(np.zeros((4, 2), np.float32))
