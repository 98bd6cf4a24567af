"""Machine code for the CPU: the kernels' calling convention, parts that are compiled in threads, shared libraries."""

import ctypes
import re
import shutil
import threading
from functools import partial

import jax
import numpy as np
import pytest
import tvm
from tvm import ir, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, dtypes, jit, lax
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import memory_plan, native
from tvmfun.lower.tir.build import buffer
from tvmfun.runtime.executables import NativeExecutable

needs_linker = pytest.mark.skipif(not shutil.which("g++"), reason="a shared library needs a C++ compiler to link it")
X = np.random.default_rng(0).normal(size=(96, 96)).astype("float32")


def chain(x):
    """Several kernels that depend on each other, some of them parallel."""
    for n in range(1, 5):
        x = tnp.tanh(x @ x.T / 96 + n)
        x = x - tnp.mean(x, axis=n % 2, keepdims=True)
    return x, tnp.sum(x), x > 0


def chain_in_numpy():
    x = X.astype("float64")
    for n in range(1, 5):
        x = np.tanh(x @ x.T / 96 + n)
        x = x - np.mean(x, axis=n % 2, keepdims=True)
    return x


def built(function=chain, x=X, target=None, **options):
    return pipeline.build(tvmfun.trace(function)(x), target or targets.host(), **options)


def run(module, plan, x=X):
    """The results of a loaded module; they have ``x``'s dtype and are flat."""
    memories, addresses = NativeExecutable(module, plan)([x := tnp.asarray(x)], [x.address], [])
    sizes = [[*[x.nbytes] * plan.inputs, *plan.fresh][place] for place in plan.results]
    places = [address - memory.address for memory, address in zip(memories, addresses, strict=True)]
    return [
        np.from_dlpack(memory.tensor).reshape(-1).view("uint8")[place : place + size].copy()
        for memory, place, size in zip(memories, places, sizes, strict=True)
    ]


def bits(arrays):
    return [array.tobytes() for array in arrays]


@pytest.fixture
def one_kind(monkeypatch):
    """LLVM optimizes all kernels; those that it does not optimize are in modules of their own."""
    monkeypatch.setattr(native, "is_straight", lambda function: False)


@pytest.fixture
def parts(one_kind, monkeypatch):
    def choose(count):
        monkeypatch.setattr(native, "cpu_count", lambda: count)
        monkeypatch.setattr(native, "_KERNELS_OF_A_PART", 1000)
        monkeypatch.setattr(native, "_FEW_KERNELS", 1 if count > 1 else 1000)

    return choose


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_parts(parts):
    expected = chain_in_numpy()
    results = []
    for count in (1, 2, 3):
        parts(count)
        module, plan = built()
        loaded = module.load()
        assert len(loaded.imports) == (count if count > 1 else 0)
        results.append(run(loaded, plan))
    np.testing.assert_allclose(results[0][0].view("float32").reshape(X.shape), expected, atol=1e-5)
    assert bits(results[0]) == bits(results[1]) == bits(results[2])


@pytest.mark.slow
def test_parts_are_not_smaller_than_worth_a_thread(one_kind, monkeypatch):
    monkeypatch.setattr(native, "cpu_count", lambda: 64)
    kernels = len(pipeline.scheduled_module(tvmfun.trace(chain)(X), targets.host()).functions) - 1
    assert len(built()[0].load().imports) == -(-kernels // native._FEW_KERNELS) < kernels


@pytest.mark.slow
def test_threads_compile_while_others_are_scheduled(monkeypatch):
    expected = bits(run((first := built())[0].load(), first[1]))
    monkeypatch.setattr(native, "_KERNELS_OF_A_PART", 2)
    monkeypatch.setattr(native, "_FEW_KERNELS", 1)
    monkeypatch.setattr(native, "cpu_count", lambda: 3)
    started = []
    compiled = native._compiled
    monkeypatch.setattr(native, "_compiled", lambda *given: started.append(len(given[1])) or compiled(*given))
    module, plan = built()
    assert started.count(2) >= 3
    assert bits(run(module.load(), plan)) == expected


def steps(x):
    """A loop with more kernels than are inlined."""
    return lax.scan(lambda x, _: (chain(chain(x)[0])[0], None), x, length=3)[0]


def test_kernels_of_a_loop_are_compiled_while_others_of_it_are_scheduled(monkeypatch):
    events = []
    scheduled = kernel_cache._scheduled_inside
    monkeypatch.setattr(
        kernel_cache, "_scheduled_inside", lambda *given: events.append("scheduled") or scheduled(*given)
    )
    add = native.Kernels.add

    def added(self, name, function, is_callee):
        events.append("callee" if is_callee else "loop")
        add(self, name, function, is_callee)

    monkeypatch.setattr(native.Kernels, "add", added)
    kernel_cache.clear_cache()
    first = built(steps)
    is_main = [event == "loop" for event in events]
    assert is_main.index(True) == len(events) - 1  # the loop calls the others
    waiting = [i for i, event in enumerate(events) if event == "callee"]
    assert len(waiting) > 8
    assert "scheduled" in events[waiting[0] : waiting[4]]
    # The scheduled loop is in a cache now, with its callees.
    events.clear()
    second = built(steps)
    assert events.count("callee") == len(waiting) and events[-1] == "loop"
    assert "scheduled" not in events
    expected = bits(run(first[0].load(), first[1]))
    assert bits(run(second[0].load(), second[1])) == expected


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_thread_that_schedules_has_a_processor_for_itself(count, monkeypatch):
    monkeypatch.setattr(native, "_KERNELS_OF_A_PART", 1)
    monkeypatch.setattr(native, "cpu_count", lambda: count)
    running, most, lock, compiled, wait = 0, 0, threading.Lock(), native._compiled, threading.Event()

    def counting(*given):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        wait.wait(0.05)  # the next one may begin
        try:
            return compiled(*given)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(native, "_compiled", counting)
    counts = []
    finish = native.Kernels.finish
    monkeypatch.setattr(native.Kernels, "finish", lambda self: counts.append(most) or finish(self))
    module, plan = built()
    assert counts[0] <= max(1, count - 1) and most <= count
    np.testing.assert_allclose(
        run(module.load(), plan)[0].view("float32").reshape(X.shape), chain_in_numpy(), atol=1e-5
    )


@pytest.mark.slow
@needs_linker
@pytest.mark.parametrize("form", native.Emission)
def test_threads_generate_machine_code_once_its_form_is_known(form, monkeypatch, tmp_path):
    """Also if some modules were ready before, and if the other form is asked for in the end."""
    expected = bits(run((first := built())[0].load(), first[1]))
    monkeypatch.setattr(native, "_KERNELS_OF_A_PART", 2)
    monkeypatch.setattr(native, "_FEW_KERNELS", 1)
    monkeypatch.setattr(native, "cpu_count", lambda: 1)
    generated = []
    for name in ("_generate", "_write_object"):
        done = getattr(native, name)
        monkeypatch.setattr(
            native, name, lambda *given, done=done: generated.append(threading.get_ident()) or done(*given)
        )
    known = iter([None, *[form] * 99])
    scheduling = threading.get_ident()
    module, plan = built(emission=lambda: form if threading.get_ident() == scheduling else next(known))
    modules = len(module._parts)
    assert len(generated) == modules > 3  # one part was started before the form was known, and main is not a part
    assert generated.count(scheduling) == 1
    assert [part.object_file is not None for part in module._parts[1:]] == [form is native.Emission.OBJECT] * (
        modules - 1
    )
    module.export(str(tmp_path / "module.so"))
    assert bits(run(tvm.runtime.load_module(str(tmp_path / "module.so")), plan)) == expected
    assert bits(run(module.load(), plan)) == expected


@pytest.mark.slow
def test_many_builds_in_threads_agree(parts):
    parts(4)
    expected = None
    for _ in range(5):
        module, plan = built()
        got = bits(run(module.load(), plan))
        assert got == (expected := expected or got)


@pytest.mark.quick("bool", "int64", "float16", "uint64")
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
    module, plan = built(lambda x: x)
    assert bits(run(module.load(), plan)) == [X.tobytes()]


@pytest.mark.slow
@needs_linker
@pytest.mark.parametrize("count", [1, 3])
def test_a_shared_library_of_several_parts(parts, tmp_path, count):
    parts(count)
    module, plan = built()
    expected = bits(run(module.load(), plan))
    module.export(str(tmp_path / "module.so"))
    assert bits(run(tvm.runtime.load_module(str(tmp_path / "module.so")), plan)) == expected
    assert bits(run(module.load(), plan)) == expected


@pytest.mark.slow
@needs_linker
def test_what_was_stored_is_run_from_the_library(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    compiled = tvmfun.jit(lambda x: chain(x * 1.0625)).lower(X).compile()
    assert len(list(tmp_path.glob("*.so"))) == 1
    assert compiled.executable.module.kind == "library"
    module, plan = built(lambda x: chain(x * 1.0625))
    assert [np.asarray(result).tobytes() for result in compiled(X)] == bits(run(module.load(), plan))


@pytest.mark.parametrize(("given", "level"), [({}, 2), ({"opt-level": 0}, 0), ({"opt-level": 1}, 1)])
def test_a_level_in_the_target_is_kept(given, level):
    target = targets.resolve({"kind": "llvm", "mcpu": targets.host().attrs["mcpu"], "num-cores": 1, **given})
    library = built(lambda x: x + 1, target=target)[0].load()
    assert f'"opt-level":{level}' in library.get_function("_get_target_string")().replace(" ", "")


def test_small_modules_have_float16_conversions_where_there_is_float16_and_nothing_that_is_not_needed():
    functions = {
        "no": lambda x: x * 2 + 1,
        "computed": lambda x: (x.astype("float16") * 1.1).astype("float32"),
        "of another processor": lambda x: tnp.exp(x.astype("float16")),
    }
    for name, function in functions.items():
        target = targets.host()
        if name == "of another processor":  # has no instructions for it
            target = targets.resolve({"kind": "llvm", "mcpu": "x86-64"}) if targets.is_x86(target) else target
        module, plan = built(function, target=target)
        library = module.load()
        text = library.inspect_source("ll")
        assert ("__truncsfhf2" in text) == (name != "no")
        assert "!DI" not in text and "module_startup" not in text
        assert "@tvmfun.run" not in text  # all Programs in memory share the loop of main
        expected = np.asarray(function(tnp.asarray(X)))
        np.testing.assert_array_max_ulp(run(library, plan)[0].view(expected.dtype).reshape(X.shape), expected, 1)


@pytest.mark.slow
def test_options_of_llvm_are_for_one_thread(parts):
    parts(4)
    target = targets.resolve({"kind": "llvm", "mcpu": targets.host().attrs["mcpu"], "cl-opt": ["-unroll-count:uint=2"]})
    assert len(built(target=target)[0].load().imports) == 1


def test_code_for_another_machine_is_only_made():
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2}
    compiled = tvmfun.jit(lambda x: tnp.tanh(x) + 1, target=target).lower(X).compile()
    assert "aarch64" in compiled.executable.module.inspect_source("ll")


@pytest.mark.parametrize(
    "product",
    [lambda x, w: x @ w.T, lambda x, w: tnp.tanh(x @ w[:, :96].T + 1), lambda x, w: x.T @ x, lambda x, w: w @ x.T],
)
def test_sums_of_products_stay_in_registers(product):
    """Accumulators must stay in registers: in memory they made products three times slower in some modules."""
    target = {"kind": "llvm", "mcpu": "x86-64-v4", "mtriple": "x86_64-linux-gnu", "num-cores": 2}
    x, w = ShapeDtype((64, 96), "float32"), ShapeDtype((80, 96), "float32")
    compiled = jit(product, target=target).lower(x, w).compile()
    module = compiled.executable.module
    code = "\n".join(library.inspect_source("asm") for library in (module, *module.imports))
    assert code.count("vfmadd231ps") > 16
    assert not re.findall(r"vfmadd213ps\s+\d*\(%", code)


def failing(name):
    """A kernel that fails with a message if its argument is negative, and otherwise writes 1 to it."""
    x = buffer((1,), "float32", "x")
    check = tirx.AssertStmt(x[0] >= 0, ir.StringImm("ValueError"), [ir.StringImm("it is negative")])
    body = tirx.SeqStmt([check, tirx.BufferStore(x, tirx.const(1, "float32"), [0])])
    return tirx.PrimFunc([x], body).with_attrs({"global_symbol": name, "s_tir": True})


@pytest.mark.parametrize("way", ["one module", "several", pytest.param("library", marks=needs_linker)])
def test_what_goes_wrong_in_a_kernel_is_an_exception(parts, tmp_path, way):
    parts(1 if way == "one module" else 2)
    kernels = {ir.GlobalVar(name): failing(name) for name in ("first", "second")}
    steps = [memory_plan.Call("first", [memory_plan.Address(0)]), memory_plan.Call("second", [memory_plan.Address(1)])]
    coming = native.Kernels(targets.host())
    for name, kernel in kernels.items():
        coming.add(name, kernel)
    module = native.NativeModule(coming, steps, 2, targets.host())
    module.export(str(tmp_path / "module.so"))
    main = (tvm.runtime.load_module(str(tmp_path / "module.so")) if way == "library" else module.load())["main"]
    x = np.array([2, -2], "float32")
    table = np.array([x.ctypes.data, x.ctypes.data + 4], "uint64")
    with pytest.raises(ValueError, match="it is negative"):
        main(table.ctypes.data)
    assert x.tolist() == [1, -2]
    x[1] = 3
    main(table.ctypes.data)
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("count", [1, 8])
def test_the_table_may_begin_at_any_address(count):
    """Only what it points to is aligned."""
    inputs = [np.asarray(tnp.full((3,), float(n))) for n in range(8)]
    module, plan = pipeline.build(
        tvmfun.trace(lambda *xs: [xs[i] * 2 + xs[-i] for i in range(count)])(*inputs), targets.host()
    )
    loaded = module.load()
    assert not re.search(r'"align"\(ptr %table, i64 (?!8\))', loaded.inspect_source("ll"))
    main = loaded["main"]
    results = [np.asarray(tnp.zeros(3)) for _ in plan.fresh]
    words = np.zeros(64, "uint64")
    for start in range(8):
        table = words[start : start + plan.block + 1]
        table[:-1] = [x.ctypes.data for x in (*inputs, *results)]
        main(table.ctypes.data)
        got = [results[place - plan.inputs] for place in plan.results]
        np.testing.assert_array_equal(got, [inputs[i] * 2 + inputs[-i] for i in range(count)])
        for result in results:
            ctypes.memset(result.ctypes.data, 0, result.nbytes)


@pytest.mark.parametrize("sizes", [(5, 5, 4), (5, 5, 2), (9, 3, 2), (9, 9, 4), (5, 5, 3), (4, 5, 4)])
def test_gradients_of_scans_in_scans_that_llvm_would_make_invalid(sizes):
    """LLVM 22 joins vectors of a buffer on the stack before they are computed."""
    inner, outer, width = sizes

    def loss(lax, numpy, y):
        row = lambda c, a: lax.scan(lambda d, b: (numpy.tanh(d + b * a), d * b), c, y)
        return lax.scan(row, numpy.zeros(width), numpy.ones((outer, width)))[1].sum()

    y = np.random.default_rng(0).normal(size=(inner, width)).astype("float32")
    expected = jax.grad(partial(loss, jax.lax, jax.numpy))(y)
    np.testing.assert_allclose(tvmfun.jit(tvmfun.grad(partial(loss, lax, tnp)))(y), expected, 2e-6, 2e-6)
