import copy
import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.threads import in_threads

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, jit, threads, tree
from tvmfun.counters import counted

X = np.arange(6, dtype="float32").reshape(2, 3)


class Point(NamedTuple):
    x: Any
    y: Any


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
    with pytest.raises(errors.ArgumentError, match=r"static argument 1 must be hashable, got list"):
        f(X, ["sum"])


def test_arguments_that_do_not_exist():
    with pytest.raises(errors.ArgumentError, match="static_argnums"):
        jit(lambda x: x, static_argnums=2)
    with pytest.raises(errors.ArgumentError, match="static_argnums must not be negative"):
        jit(lambda *x: x, static_argnums=-1)
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


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(
    "options, args, kwargs, gone",
    [
        ({"donate_argnums": 1}, "abc", "", "b"),
        ({"donate_argnums": (0, 2)}, "abc", "", "ac"),
        ({"donate_argnums": 1}, "a", "bc", "b"),
        ({"donate_argnames": ("c", "a")}, "ab", "c", "ac"),
        ({"donate_argnums": 2, "static_argnums": 0}, "abc", "", "c"),
        ({"donate_argnums": -1, "static_argnums": (0, 1)}, "abc", "", "c"),
        ({"donate_argnames": "b", "static_argnames": "a"}, "a", "cb", "b"),
        ({"donate_argnums": 1, "static_argnames": "c"}, "", "abc", "b"),
    ],
)
def test_donated_are_the_leaves_of_these_arguments(options, args, kwargs, gone, rounds):
    f = jit(lambda a, b, c: [tree.map(lambda x: x + 1, value) for value in (a, b, c) if value != "static"], **options)
    static = {"abc"[i] for i in np.atleast_1d(options.get("static_argnums", ()))} | {options.get("static_argnames")}
    for _ in range(rounds):
        given = {
            name: "static" if name in static else {"x": tnp.asarray(X), "y": (tnp.asarray(X), None, X)}
            for name in "abc"
        }
        f(*(given[name] for name in args), **{name: given[name] for name in kwargs})
        for name in set("abc") - static:
            x, (y, _, array) = given[name]["x"], given[name]["y"]
            assert (x.is_deleted(), y.is_deleted()) == (name in gone, name in gone)
            np.testing.assert_array_equal(array, X)


def test_an_array_donated_twice():
    f = jit(lambda a, b: a + b, donate_argnums=(0, 1))
    x = tnp.asarray(X)
    np.testing.assert_array_equal(f(x, x), 2 * X)
    with pytest.raises(errors.DonatedArrayError):
        f(x, tnp.asarray(X))


# -- the next call -----------------------------------------------------------------------------------------------

RELATED = {
    "dict": {"a": X, "b": X},
    "another order": {"b": X, "a": X},
    "OrderedDict": OrderedDict(a=X, b=X),
    "defaultdict": defaultdict(list, a=X, b=X),
    "tuple": (X, X),
    "list": [X, X],
    "named tuple": Point(X, X),
    "dtype": {"a": X, "b": X.astype("float64")},
    "shape": {"a": X, "b": X[:1]},
    "weak": {"a": X, "b": 1.0},
    "None": {"a": X, "b": None},
    "nested": {"a": X, "b": (X, X)},
    "one leaf": X,
    "nothing": (),
}


@settings(max_examples=20)
@given(st.lists(st.sampled_from(sorted(RELATED)), min_size=2, max_size=12), st.booleans())
def test_a_call_that_resembles_another(names, on_device):
    traced = []

    def function(x):
        traced.append((tree.structure(x), [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in tree.leaves(x)]))
        return {"x": x}

    f = jit(function)
    kinds = []
    for name in names:
        x = tvmfun.device_put(RELATED[name]) if on_device else RELATED[name]
        result = f(x)["x"]
        assert type(result) is (tvmfun.Array if name == "one leaf" else type(x)) or isinstance(result, tvmfun.Array)
        assert tree.structure(result) == tree.structure(x)
        for got, expected in zip(tree.leaves(result), tree.leaves(RELATED[name]), strict=True):
            np.testing.assert_array_equal(got, expected)
            assert got.weak_type == (name == "weak" and isinstance(expected, float))
        kinds.append((tree.structure(x), [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in tree.leaves(x)]))
    assert all(before not in traced[:i] for i, before in enumerate(traced))
    assert len(traced) <= len(set(names))


def test_static_values_that_are_equal_but_not_the_same():
    f = jit(lambda x, n: x * n, static_argnums=1)
    x = tnp.asarray(np.arange(3))
    for _ in range(2):
        assert [f(x, n).dtype for n in (1, 1.0, True)] == [(x * n).dtype for n in (1, 1.0, True)]


def test_kinds_of_calls_beyond_those_recognized_at_a_glance():
    traces = []

    @jit
    def f(x):
        traces.append(x.shape)
        return x * 2

    for _ in range(3):
        for n in range(12):
            np.testing.assert_array_equal(f(np.arange(n)), 2 * np.arange(n))
    assert len(traces) == 12


def test_results_are_recognized_as_arguments():
    step = jit(lambda state, x: {name: value + x for name, value in state.items()})
    state = tvmfun.device_put({"a": X, "b": X})
    for _ in range(3):
        state = step(state, X)
    assert state["a"].aval is state["b"].aval is tnp.asarray(X).aval
    np.testing.assert_array_equal(state["a"], 4 * X)


def test_arrays_that_are_gone_among_good_ones():
    f = jit(lambda a, b: (a, b))
    x, y = tnp.asarray(X), tnp.asarray(X)
    f(x, y)
    y.delete()
    for _ in range(2):
        with pytest.raises(errors.DonatedArrayError, match=r"float32\[2,3\]"):
            f(x, y)
    np.testing.assert_array_equal(f(x, x)[1], X)


def test_tracers_that_outlive_their_trace():
    leaked = []
    f = jit(lambda a: a + 1)
    f(tnp.asarray(X))
    jit(lambda x: leaked.append(x) or x)(tnp.asarray(X))
    with pytest.raises(errors.LeakedTracerError):
        f(leaked[0])


def test_what_is_no_array_after_a_good_call():
    f = jit(lambda x: x["a"])
    f({"a": tnp.asarray(X)})
    with pytest.raises(errors.DtypeError, match="static_argnums"):
        f({"a": "text"})
    with pytest.raises(errors.DtypeError, match="static_argnums"):
        f({"a": object()})


def test_an_array_that_is_elsewhere_is_not_read():
    f = jit(lambda x, y: x + y)
    x, y = tnp.asarray(X), tnp.asarray(X)
    f(x, y)
    y.address = ~y.address  # as that of an array on a GPU
    with pytest.raises(errors.TargetError, match="must be on the CPU"):
        f(x, y)


def test_threads_that_share_a_function():
    """Each call has intermediates and results of its own, also while others run."""
    f = jit(lambda x: (tnp.tanh(x @ x.T) @ x, tnp.sum(tnp.sin(x) @ x.T, axis=0), tnp.max(x)))
    arguments = [np.random.default_rng(n).normal(size=(65, 33)).astype("float32") for n in range(4)]
    expected = [list(map(np.array, f(x))) for x in arguments]
    wrong = []

    def work(n):
        for _ in range(50):
            results = f(arguments[n])
            if any(not np.array_equal(a, b) for a, b in zip(results, expected[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_call_after_a_fork():
    code = """if True:
        import os, signal, threading, time, numpy as np, tvmfun, tvmfun.numpy as tnp
        f = tvmfun.jit(lambda x: tnp.tanh(x @ x) + 1)
        x = np.random.default_rng(0).normal(size=(600, 600)).astype("float32")
        expected = np.array(f(x))
        assert "T.parallel" in f.lower(x).compile().as_text()
        for idle in (0, 0.2):
            f(x)
            time.sleep(idle)  # for some milliseconds the threads of the pool are awake
            child = os.fork()
            if not child:
                signal.alarm(60)  # ends a process that waits for ever
                results = [f(x)]
                thread = threading.Thread(target=lambda: results.append(f(x)))
                thread.start()
                thread.join()
                raise SystemExit(0 if all(np.array_equal(result, expected) for result in results) else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert np.array_equal(f(x), expected)
    """
    environment = os.environ | {"TVMFUN_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_compiles():
    code = """if True:
        import os, signal, threading, numpy as np, tvmfun, tvmfun.numpy as tnp
        x = np.ones((8, 8), "float32")
        started, ended = threading.Event(), threading.Event()

        def compile_many():
            n = 0
            while not ended.is_set():
                n += 1
                tvmfun.jit(lambda a: tnp.exp(a) * n)(x)
                started.set()

        thread = threading.Thread(target=compile_many)
        thread.start()
        started.wait()
        for n in range(3):
            child = os.fork()
            if not child:
                signal.alarm(30)  # ends a process that waits for ever
                right = np.allclose(tvmfun.jit(lambda a: a @ a - n)(x), 8 - n)
                os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0
        ended.set()
        thread.join()
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_threads_with_arguments_of_their_own():
    f = jit(lambda x, scale: tree.map(lambda leaf: leaf * scale, x), donate_argnums=0)
    wrong = []

    def work(n):
        shape = (n % 3 + 1, 2)
        make = (lambda a: {"a": a}, lambda a: [a], lambda a: Point(a, None), lambda a: OrderedDict(a=a))[n % 4]
        for i in range(100):
            x = np.full(shape, i, "float32")
            given = make(tnp.asarray(x) if n % 2 else x)
            result = f(given, 2.0)
            if type(result) is not type(given) or not np.array_equal(tree.leaves(result)[0], 2 * x):
                wrong.append(n)

    in_threads(work)
    assert not wrong


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


def test_nans_are_found_within_calls():
    f = tvmfun.checkpoint(lambda x: tnp.exp(tvmfun.checkpoint(lambda x: tnp.sqrt(x - 1) * 2)(x)))
    with tvmfun.debug_nans():
        for function in (f, tvmfun.grad(f)):
            with pytest.raises(errors.NanError, match=r"\[sqrt\].*within \[-1, -1\]"):
                jit(function)(np.float32(0))


def test_nans_in_gradients_and_arguments():
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match=r"\[multiply\]"):
        tvmfun.grad(lambda x: tnp.where(x > 0, tnp.log(x) * x, 0.0) / x * x)(0.0)
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match="argument 0 has a NaN already"):
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

    in_threads(work)
    assert not failures


@pytest.mark.slow
def test_import_brings_neither_jax_nor_torch_nor_onnx():
    code = "import sys, tvmfun; print([m for m in ('jax', 'torch', 'onnx', 'chex', 'optax') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.interop
@pytest.mark.parametrize("first", ["torch", "tvmfun"])
def test_torch_in_either_order(first):
    pytest.importorskip("torch")
    code = f"""if True:
        import {first}, torch, tvmfun, tvmfun.numpy as tnp, numpy as np
        x = tvmfun.jit(lambda x: x + 1)(torch.arange(3.0))
        assert np.array_equal(x, [1, 2, 3]) and torch.equal(torch.from_dlpack(x), torch.tensor([1.0, 2.0, 3.0]))
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_wrong_number_of_threads(monkeypatch):
    environment = {"TVMFUN_NUM_THREADS": "0", "PATH": "/usr/bin"}
    result = subprocess.run([sys.executable, "-c", "import tvmfun"], capture_output=True, text=True, env=environment)
    assert "TVMFUN_NUM_THREADS" in result.stderr
    assert "positive integer" in result.stderr
    for value in ("two", "-1"):
        monkeypatch.setenv("TVMFUN_NUM_THREADS", value)
        with pytest.raises(errors.ArgumentError, match="TVMFUN_NUM_THREADS.*positive integer"):
            threads._configure()


@pytest.mark.slow
def test_all_cpus_are_used():
    code = "import os, tvmfun, tvm; from tvm.runtime import num_threads as n\nprint(n(), len(os.sched_getaffinity(0)))"
    environment = {"PATH": "/usr/bin", "HOME": "/tmp"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    threads, cpus = result.stdout.split()
    assert threads == cpus


@pytest.mark.parametrize("places", [None, (), 1, np.int64(1), [1], (np.int32(-1),), {1}])
def test_places_of_static_arguments(places):
    f = tvmfun.jit(lambda x, n=2: x * n, static_argnums=places, static_argnames=None)
    assert float(f(3.0, 4)) == 12


def test_names_beside_positions_are_for_arguments_by_name():
    jax = pytest.importorskip("jax")
    f = lambda scale, a, b=None: (a + 1 if b is None else a + b) * scale
    for m in (tvmfun, jax):
        jitted = m.jit(f, static_argnums=0, static_argnames="b")
        np.testing.assert_array_equal(jitted(2, np.ones(2), np.ones(2)), [4, 4])  # an array, by position
        np.testing.assert_array_equal(jitted(2, np.ones(2), b=3), [8, 8])
        np.testing.assert_array_equal(m.jit(f, static_argnames="b")(2, np.ones(2), 3), [8, 8])
        np.testing.assert_array_equal(m.jit(f, static_argnums=0)(scale=2, a=np.ones(2)), [4, 4])


@pytest.mark.parametrize("options", [{"static_argnums": 1.0}, {"donate_argnums": "x"}, {"static_argnames": 1}])
def test_places_that_are_none(options):
    (name,) = options
    with pytest.raises(errors.ArgumentError, match=f"{name} must be"):
        tvmfun.jit(lambda x: x, **options)


@tvmfun.jit
def twice(x):
    return 2 * x


def test_copies_and_pickles():
    made = tvmfun.jit(tnp.sin, donate_argnums=None)
    made(1.0)
    assert copy.deepcopy(made) is made
    again = pickle.loads(pickle.dumps(made))
    assert float(again(1.0)) == float(made(1.0))
    assert pickle.loads(pickle.dumps(twice)) is twice


def test_types_are_no_arguments():
    with pytest.raises(errors.DtypeError, match=r"needs arrays.*float32\[2\].*eval_shape"):
        twice(tvmfun.ShapeDtype((2,), "float32"))


def test_a_nan_in_an_argument_is_named():
    with tvmfun.debug_nans(), pytest.raises(errors.NanError, match=r"argument 0\['x'\] has a NaN"):
        tvmfun.jit(lambda d: d["x"] * 2)({"x": np.array([np.nan], "float32")})
