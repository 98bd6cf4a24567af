"""The stages of a jitted function ahead of time: lowered, compiled, and called with arrays that it checks."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, errors, jit
from tvmfun.counters import counted

X = np.arange(6, dtype="float32").reshape(2, 3)


def test_ahead_of_time():
    f = jit(lambda x, y: tnp.sum(x * y))
    lowered = f.lower(ShapeDtype((2, 3), "float32"), ShapeDtype((2, 3), "float32"))
    assert "multiply" in lowered.as_text()
    assert "R.multiply" in lowered.as_text("relax")
    compiled = lowered.compile()
    assert "T.prim_func" in compiled.as_text()
    assert "R.call_tir" in compiled.as_text()
    assert float(compiled(X, X)) == (X * X).sum()
    with pytest.raises(errors.ShapeError, match=r"argument 1.*must be float32\[2,3\], got float32\[3,2\]"):
        compiled(X, X.T)
    with pytest.raises(errors.DtypeError, match=r"argument 0.*must be float32\[2,3\], got float64\[2,3\]"):
        compiled(X.astype("float64"), X)
    with pytest.raises(errors.TreeError):
        compiled(X)
    with pytest.raises(errors.ArgumentError, match="dialect"):
        lowered.as_text("mlir")


def test_compiled_functions_check_arrays_without_flattening_them(monkeypatch):
    """Arrays on the device take a short way; others, and wrong ones, the long one with its errors."""
    x, y = tvmfun.device_put((X, 2 * X))
    compiled = (
        jit(lambda d, *, s: {"sum": d["a"] + d["b"][0], "s": s * 2}, donate_argnames="s")
        .lower({"a": x, "b": [y]}, s=tvmfun.device_put(X))
        .compile()
    )
    run = lambda *args, **kwargs: tvmfun.device_get(compiled(*args, **kwargs))
    with monkeypatch.context() as short_way:
        short_way.setattr(type(compiled.program), "check_arguments", None)
        result = run({"b": [y], "a": x}, s=tvmfun.device_put(X))
    np.testing.assert_array_equal(result["sum"], 3 * X)
    np.testing.assert_array_equal(result["s"], 2 * X)
    np.testing.assert_array_equal(run({"b": [2 * X], "a": x}, s=X)["sum"], 3 * X)
    with pytest.raises(errors.ShapeError, match=r"\['b'\]\[0\].*must be float32\[2,3\], got float32\[3,2\]"):
        run({"a": x, "b": [tvmfun.device_put(X.T)]}, s=X)
    with pytest.raises(errors.TreeError):
        run({"a": x, "b": (y,)}, s=X)
    with pytest.raises(errors.ConcretizationError):
        jit(lambda t: compiled({"a": x, "b": [y]}, s=t))(x)
    given = tvmfun.device_put(X)
    run({"a": x, "b": [y]}, s=given)
    with pytest.raises(errors.DonatedArrayError):
        run({"a": x, "b": [y]}, s=given)


@pytest.mark.parametrize("sizes", [(3,), (Dim("n", min=0),)], ids=["static", "dynamic"])
def test_what_has_been_compiled_is_not_compiled_again(sizes):
    """By the first call, after this process has forgotten what it compiled."""
    compiled = tvmfun.jit(lambda x: tnp.sinh(x) * 1.25).lower(ShapeDtype(sizes, "float32")).compile()
    tvmfun.clear_caches()
    with counted() as events:
        np.testing.assert_allclose(compiled(np.ones(3, "float32")), 1.25 * np.sinh(np.ones(3)), rtol=1e-6)
    assert events.compiles == 0


def test_machine_code_cannot_be_traced():
    compiled = jit(lambda x: x * 2).lower(1.0).compile()
    for transform in (tvmfun.jit, tvmfun.grad):
        with pytest.raises(errors.ConcretizationError, match="the function that jit made"):
            transform(compiled)(1.0)
