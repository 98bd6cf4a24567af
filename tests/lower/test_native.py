"""Machine code for the CPU: the kernels' calling convention, parts that are compiled in threads, shared libraries."""

import re
import shutil

import numpy as np
import pytest
import tvm
from tvm.relax import VirtualMachine

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, dtypes, jit
from tvmfun.lower import native, pipeline
from tvmfun.lower import target as targets

needs_linker = pytest.mark.skipif(not shutil.which("g++"), reason="a shared library needs a C++ compiler to link it")
X = np.random.default_rng(0).normal(size=(96, 96)).astype("float32")


def chain(x):
    """Several kernels that depend on each other, some of them parallel."""
    for n in range(1, 5):
        x = tnp.tanh(x @ x.T / 96 + n)
        x = x - tnp.mean(x, axis=n % 2, keepdims=True)
    return x, tnp.sum(x), x > 0


def built(function=chain, x=X, target=None):
    target = target or targets.host()
    module = pipeline.scheduled_module(tvmfun.trace(function)(x), target)
    return pipeline.build(module, target)


def run(module, x=X):
    return [out.numpy() for out in VirtualMachine(module, tvm.cpu())["main"](tvm.runtime.tensor(x))]


def bits(arrays):
    return [array.tobytes() for array in arrays]


@pytest.fixture
def parts(monkeypatch):
    def choose(count):
        monkeypatch.setattr(native, "cpu_count", lambda: count)
        monkeypatch.setattr(native, "_KERNELS_OF_A_PART", 1)

    return choose


def test_results_do_not_depend_on_the_number_of_parts(parts):
    expected = X.astype("float64")
    for n in range(1, 5):
        expected = np.tanh(expected @ expected.T / 96 + n)
        expected = expected - np.mean(expected, axis=n % 2, keepdims=True)
    results = []
    for count in (1, 2, 3):
        parts(count)
        executable = built()
        assert len(executable.mod.imports) == count
        executable.generate()
        results.append(run(executable))
    np.testing.assert_allclose(results[0][0], expected, atol=1e-5)
    assert bits(results[0]) == bits(results[1]) == bits(results[2])


def test_parts_are_not_smaller_than_worth_a_thread(monkeypatch):
    monkeypatch.setattr(native, "cpu_count", lambda: 64)
    kernels = len(pipeline.scheduled_module(tvmfun.trace(chain)(X), targets.host()).functions) - 1
    assert len(built().mod.imports) == -(-kernels // native._KERNELS_OF_A_PART) < kernels


def test_many_builds_in_threads_agree(parts):
    parts(4)
    expected = bits(run(built()))
    for _ in range(10):
        executable = built()
        executable.generate()
        assert bits(run(executable)) == expected


def test_kernels_check_all_arguments_at_once():
    (library,) = built(lambda x: tnp.tanh(x) + 1).mod.imports
    source = library.inspect_source("ll")
    assert source.count("assert_fail") and source.count("\nassert_fail") <= 3
    for wrong in (X[:, :95], X[:1], X[0], X.astype("int32"), X.astype("float64")):
        with pytest.raises(TypeError, match="an argument does not have the type"):
            run(built(lambda x: tnp.tanh(x) + 1), np.ascontiguousarray(wrong))


@pytest.mark.parametrize("dtype", [*dtypes.NAMES.values()])
def test_every_dtype_goes_through_an_argument(dtype):
    x = tnp.asarray(np.arange(1, 9).reshape(2, 4)).astype(dtype)
    transposed, equal = tvmfun.jit(lambda x: (x.T, x == x[:, :1]))(x)
    np.testing.assert_array_equal(np.asarray(transposed), np.asarray(x).T)
    np.testing.assert_array_equal(np.asarray(equal), np.asarray(x) == np.asarray(x)[:, :1])


def test_sizes_go_through_arguments():
    x = np.arange(12, dtype="float32").reshape(4, 3)
    f = tvmfun.jit(
        lambda x: (x.reshape(-1, 2) * tnp.arange(2), tnp.sum(x) / x.shape[0]),
        dynamic_shapes=({0: 2 * tvmfun.Dim("b")},),
    )
    for rows in (4, 2):
        products, mean = f(x[:rows])
        np.testing.assert_array_equal(products, x[:rows].reshape(-1, 2) * np.arange(2))
        np.testing.assert_allclose(mean, np.sum(x[:rows]) / rows)


def test_arrays_without_elements_and_without_axes():
    x = np.zeros((0, 3), "float32")
    total, rows = tvmfun.jit(lambda x: (tnp.sum(x) + 1, tnp.max(x, axis=0, initial=-1.0)))(x)
    assert total == 1 and np.array_equal(rows, [-1, -1, -1])


def test_nothing_to_compute():
    executable = built(lambda x: x)
    executable.generate()
    assert bits(run(executable)) == [X.tobytes()]


@needs_linker
@pytest.mark.parametrize("count", [1, 3])
def test_a_shared_library_of_several_parts(parts, tmp_path, count):
    parts(count)
    executable = built()
    expected = bits(run(executable))
    executable.export_library(str(tmp_path / "module.so"))
    assert bits(run(tvm.runtime.load_module(str(tmp_path / "module.so")))) == expected
    assert len(executable.mod.imports) == count and bits(run(executable)) == expected


@needs_linker
def test_what_was_stored_is_run_from_the_library(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    compiled = tvmfun.jit(lambda x: chain(x * 1.0625)).lower(X).compile()
    assert len(list(tmp_path.glob("*.so"))) == 1
    assert not isinstance(compiled.executable.module, native.NativeExecutable)
    np.testing.assert_allclose(compiled(X)[0], run(built(lambda x: chain(x * 1.0625)))[0], atol=1e-6)


@pytest.mark.parametrize(("given", "level"), [({}, 2), ({"opt-level": 0}, 0), ({"opt-level": 1}, 1)])
def test_a_level_in_the_target_is_kept(given, level):
    target = targets.resolve({"kind": "llvm", "mcpu": targets.host().attrs["mcpu"], "num-cores": 1, **given})
    (library,) = built(lambda x: x + 1, target=target).mod.imports
    assert f'"opt-level":{level}' in library.get_function("_get_target_string")().replace(" ", "")


def test_options_of_llvm_are_for_one_thread(parts):
    parts(4)
    target = targets.resolve({"kind": "llvm", "mcpu": targets.host().attrs["mcpu"], "cl-opt": ["-unroll-count:uint=2"]})
    assert len(built(target=target).mod.imports) == 1


def test_code_for_another_machine_is_only_made():
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2}
    compiled = tvmfun.jit(lambda x: tnp.tanh(x) + 1, target=target).lower(X).compile()
    (library,) = compiled.executable.module.mod.imports
    assert "aarch64" in library.inspect_source("ll")


@pytest.mark.parametrize(
    "product",
    [lambda x, w: x @ w.T, lambda x, w: tnp.tanh(x @ w[:, :96].T + 1), lambda x, w: x.T @ x, lambda x, w: w @ x.T],
)
def test_sums_of_products_stay_in_registers(product):
    """What is added to must not be in memory: that made products three times slower, and depended on the module."""
    target = {"kind": "llvm", "mcpu": "x86-64-v4", "mtriple": "x86_64-linux-gnu", "num-cores": 2}
    x, w = ShapeDtype((64, 96), "float32"), ShapeDtype((80, 96), "float32")
    compiled = jit(product, target=target).lower(x, w).compile()
    code = "\n".join(library.inspect_source("asm") for library in compiled.executable.module.mod.imports)
    assert code.count("vfmadd231ps") > 16
    assert not re.findall(r"vfmadd213ps\s+\d*\(%", code)
