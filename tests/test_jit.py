import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, jit
from tvmfun.counters import counted

X = np.arange(6, dtype="float32").reshape(2, 3)


def test_traces_once_per_kind_of_argument():
    traces = []

    @jit
    def f(x):
        traces.append(x.aval)
        return x + 1

    for argument in (X, X + 1, tnp.asarray(X), X.astype("float64"), X[:1], {"x": 1}["x"]):
        f(argument)
    assert [repr(aval) for aval in traces] == ["float32[2,3]", "float64[2,3]", "float32[1,3]", "int32[]"]


def test_one_call_into_the_module_and_no_copies_of_arrays_on_the_device():
    f = jit(lambda a, b: (tnp.tanh(a @ b.T).sum(), a * 2, {"b": b - 1}))
    a, b = tnp.asarray(X), tnp.asarray(X)
    f(a, b)
    with counted() as events:
        f(a, b)
    assert (events.calls, events.to_device, events.to_host, events.compiles) == (1, 0, 0, 0)


def test_numbers_are_arguments_and_not_part_of_the_module():
    f = jit(lambda x, scale: x * scale)
    f(X, 2.0)
    with counted() as events:
        result = f(X, 3.5)
    assert events.compiles == 0
    np.testing.assert_array_equal(result, X * np.float32(3.5))
    assert result.dtype == np.float32


def test_eager_ops_compile_once():
    x = tnp.asarray(np.ones((3, 7), "float32"))
    x * 2.0
    with counted() as events:
        x * 5.0
    assert events.compiles == 0


def test_static_arguments():
    @partial(jit, static_argnums=1, static_argnames=("axis",))
    def f(x, mode, axis=0):
        return tnp.sum(x, axis=axis) if mode == "sum" else tnp.max(x, axis=axis)

    np.testing.assert_array_equal(f(X, "sum"), X.sum(0))
    np.testing.assert_array_equal(f(X, "max", axis=1), X.max(1))
    np.testing.assert_array_equal(f(X, mode="max", axis=1), X.max(1))
    np.testing.assert_array_equal(f(X, "max", 1), X.max(1))
    with pytest.raises(errors.ArgumentError, match=r"static argument 1 must be hashable, got list"):
        f(X, ["sum"])


def test_arguments_that_do_not_exist():
    with pytest.raises(errors.ArgumentError, match="static_argnums"):
        jit(lambda x: x, static_argnums=2)
    with pytest.raises(errors.ArgumentError, match="donate_argnames.*y"):
        jit(lambda x: x, donate_argnames="y")
    with pytest.raises(errors.ArgumentError, match="function"):
        jit(3)


def test_donated_arrays_are_gone():
    f = jit(lambda state, x: {"w": state["w"] + x}, donate_argnums=0)
    state = {"w": tnp.asarray(X)}
    new = f(state, X)
    np.testing.assert_array_equal(new["w"], 2 * X)
    assert state["w"].is_deleted()
    with pytest.raises(errors.DonatedArrayError, match=r"donated.*float32\[2,3\].*donate_argnums"):
        state["w"] + 1
    with pytest.raises(errors.DonatedArrayError):
        f(state, X)
    with pytest.raises(errors.DonatedArrayError):
        np.asarray(state["w"])
    np.testing.assert_array_equal(f(new, X)["w"], 3 * X)


def test_donation_by_name_and_of_what_comes_back_unchanged():
    f = jit(lambda x, y: (x, x + y), donate_argnames="x")
    x = tnp.asarray(X)
    same, _ = f(y=X, x=x)
    assert x.is_deleted()
    np.testing.assert_array_equal(same, X)


def test_nested_functions_are_inlined():
    inner = jit(lambda x: x * 2)
    program = tvmfun.trace(jit(lambda x: inner(inner(x))))(X)
    assert [str(e.op) for e in program.equations] == ["multiply", "multiply"]


def test_closures_see_what_they_close_over_when_traced():
    def outer(x):
        return jit(lambda y: x + y)(x)

    np.testing.assert_array_equal(jit(outer)(X), 2 * X)
    np.testing.assert_array_equal(jit(outer)(X + 1), 2 * X + 2)  # the inner function captured nothing for good


def test_methods():
    class Scale:
        factor = 2.0

        @partial(jit, static_argnums=0)
        def __call__(self, x):
            return x * self.factor

        @partial(jit, static_argnums=0)
        def apply(self, x):
            return x * self.factor

    np.testing.assert_array_equal(Scale().apply(X), 2 * X)


def test_recursion_and_no_arguments():
    np.testing.assert_array_equal(jit(lambda: tnp.arange(3) * 2)(), [0, 2, 4])


def test_results_keep_their_tree():
    result = jit(lambda x: {"b": (x, None), "a": [x + 1]})(X)
    assert list(result) == ["a", "b"] or list(result) == ["b", "a"]
    assert result["b"][1] is None
    assert isinstance(result["a"], list)


def test_errors_inside_name_the_op():
    with pytest.raises(errors.ShapeError, match=r"\[matmul\] axis 1 .* float32\[2,3\] and float32\[2,3\]"):
        jit(lambda a, b: a @ b)(X, X)
    with pytest.raises(errors.DtypeError, match="neither an array nor a number.*str.*static_argnums"):
        jit(lambda a: a)("text")


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


def test_eval_shape_computes_nothing():
    with counted() as events:
        result = tvmfun.eval_shape(lambda p: {"y": p["w"] @ p["w"].T}, {"w": ShapeDtype((4, 5), "bfloat16")})
    assert repr(result) == "{'y': bfloat16[4,4]}"
    assert (events.compiles, events.calls) == (0, 0)


def test_device_put_and_get():
    placed = tvmfun.device_put({"w": [X, 1.5]}, "cpu")
    assert isinstance(placed["w"][0], tvmfun.Array)
    back = tvmfun.device_get(placed)
    assert type(back["w"][0]) is np.ndarray
    assert tvmfun.devices("cpu")
    with pytest.raises(errors.TargetError, match="no such device.*'cpu'"):
        tvmfun.device_put(X, "tpu")


def test_unknown_targets():
    with pytest.raises(errors.TargetError, match="quantum"):
        jit(lambda x: x, target="quantum")


# -- debug_nans -------------------------------------------------------------------------------------------------


def test_nans_are_found_op_by_op():
    def f(x):
        return tnp.sum(tnp.sqrt(x - 1) * 2)

    assert np.isnan(float(jit(f)(np.zeros(3, "float32"))))
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match=r"\[sqrt\].*within \[-1, -1\] at .*test_jit.py"):
        jit(f)(np.zeros(3, "float32"))
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match=r"\[log\]"):
        tnp.log(tnp.asarray(-1.0))
    with tvmfun.debug_nans():
        assert float(jit(f)(np.full(3, 2, "float32"))) == 6


def test_nans_in_gradients_and_arguments():
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match=r"\[multiply\]"):
        tvmfun.grad(lambda x: tnp.where(x > 0, tnp.log(x) * x, 0.0) / x * x)(0.0)
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match="leaf 0 of the arguments has a NaN already"):
        jit(lambda x: x + 1)(np.asarray([np.nan], "float32"))


# -- threads and processes -----------------------------------------------------------------------------------------


def test_from_several_threads():
    f = jit(lambda x: tnp.tanh(tnp.tanh(x) @ x.T) @ x)
    failures = []

    def work(seed):
        x = np.random.default_rng(seed).normal(size=(4, 3)).astype("float32")
        for _ in range(100):
            got = np.asarray(f(x))
            if not np.allclose(got, np.tanh(np.tanh(x) @ x.T) @ x, atol=1e-5):
                failures.append(seed)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures


def test_import_brings_neither_jax_nor_torch_nor_onnx():
    code = "import sys, tvmfun; print([m for m in ('jax', 'onnx', 'chex', 'optax') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("value", ["0", "two", "-1"])
def test_a_wrong_number_of_threads(value):
    code = "import tvmfun"
    environment = {"TVMFUN_NUM_THREADS": value, "PATH": "/usr/bin"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "TVMFUN_NUM_THREADS" in result.stderr
    assert "positive integer" in result.stderr


def test_all_cpus_are_used():
    code = "import os, tvmfun, tvm; from tvm.runtime import num_threads as n\nprint(n(), len(os.sched_getaffinity(0)))"
    environment = {"PATH": "/usr/bin", "HOME": "/tmp"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    threads, cpus = result.stdout.split()
    assert threads == cpus
