"""The native ``main`` of dynamic sizes, where it meets donation, loops, threads, no elements and the caches."""

import hashlib
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, errors, grad, jit, lax
from tvmfun.core import dims, expressions
from tvmfun.counters import counted
from tvmfun.lower.codegen import workspaces
from tvmfun.runtime.executables import DynamicExecutable
from tvmfun.runtime.formulas import evaluate
from tvmfun.runtime.plan import DynamicPlan

RNG = np.random.default_rng(5)
B = {0: "b"}


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def same(got, expected, tolerance: float = 1e-5) -> None:
    for a, b in zip(tvmfun.tree.leaves(got), tvmfun.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def lowered(function, *shapes, **options):
    return jit(function, **options).lower(*(ShapeDtype(shape, "float32") for shape in shapes)).compile()


# -- formulas and plans ------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([Dim("a"), Dim("b"), 1, 2, 3, 7])


def combined(inner):
    """Sums, differences, products and quotients of formulas."""
    operations = [lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x // 3]
    return st.builds(lambda operation, x, y: operation(x, y), st.sampled_from(operations), inner, inner)


@given(st.recursive(SIZES, combined, max_leaves=6), st.integers(0, 50), st.integers(0, 50))
@settings(max_examples=100)
def test_formulas_have_the_values_of_their_sizes(size, a, b):
    sizes = {"a": a, "b": b}
    assert evaluate(dims.postfix(size), sizes) == dims.at(size, sizes)


def chain(x, w):
    hidden = tnp.tanh(x @ w)
    return hidden - tnp.mean(hidden, axis=0), tnp.sum(hidden @ hidden.T), x.shape[0]


@pytest.mark.slow
def test_a_plan_is_that_of_static_sizes():
    dynamic = lowered(chain, ("b", 24), (24, 40))
    assert isinstance(dynamic.executable, DynamicExecutable)
    for b in (1, 30, 500):
        ours = dynamic.memory_analysis({"b": b})
        static = lowered(chain, (b, 24), (24, 40)).memory_analysis()
        assert (ours.arguments, ours.outputs, ours.aliased) == (static.arguments, static.outputs, static.aliased)
        assert ours.temporaries >= b * 40 * 4
    assert dynamic.memory_analysis({"b": 500}).peak > dynamic.memory_analysis({"b": 30}).peak


def test_a_plan_is_text():
    plan = lowered(chain, ("b", 24), (24, 40)).executable.plan
    assert isinstance(plan, DynamicPlan) and DynamicPlan.parse(plan.text) == plan
    assert [plan.at({"b": b}) for b in (1, 9)] == [DynamicPlan.parse(plan.text).at({"b": b}) for b in (1, 9)]


@pytest.mark.slow
def test_intermediates_of_different_sizes_do_not_overlap():
    def function(x, y):
        p, q = tnp.sort(x), tnp.sort(y)
        return p[::-1].sum() * q[::-1].sum(), tnp.sort(tnp.concat([p, q]))

    compiled = lowered(function, ("a",), ("b",))
    for a, b in ((3, 100), (100, 3), (1, 1), (1000, 999)):
        x, y = floats(a), floats(b)
        product, merged = compiled(x, y)
        np.testing.assert_array_equal(np.asarray(merged), np.sort(np.concatenate([x, y])))
        np.testing.assert_allclose(float(product), x.sum() * y.sum(), rtol=1e-3, atol=1e-3)


def test_a_workspace_whose_size_depends_on_a_loop_counts_as_the_largest():
    rows, b = tirx.Var("rows", "int32"), expressions.of_size(Dim("b"))
    block = tirx.decl_buffer((tirx.min(tirx.const(64, "int32"), rows), 1000), "float32")
    whole = tirx.decl_buffer((b, 2 * b + 1), "float64")
    body = tirx.SeqStmt([tirx.AllocBuffer(block), tirx.AllocBuffer(whole), tirx.Evaluate(0)])
    found = list(workspaces._events(body, 2))
    assert found == [(256_000, 1), ((2 * Dim("b") + 1) * Dim("b") * 8, 1), None, None]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (None, "it takes values for the dynamic sizes: b, got none"),
        ({"b": 3, "c": 4}, "for the dynamic sizes: b, got b, c"),
        ({"b": 0}, "b is a dynamic size of at least 1, got 0"),
        ({"b": 2.5}, "b is a dynamic size of at least 1, got 2.5"),
    ],
)
def test_memory_is_asked_for_with_wrong_sizes(sizes, message):
    with pytest.raises(errors.ArgumentError, match=message):
        lowered(chain, ("b", 24), (24, 40)).memory_analysis(sizes)


def test_static_functions_take_no_sizes():
    with pytest.raises(errors.ArgumentError, match="no sizes, got b"):
        lowered(tnp.sum, (3,)).memory_analysis({"b": 3})


def test_too_many_elements():
    compiled = lowered(lambda x: x @ x.T, ("b", 1))
    with pytest.raises(errors.ShapeError, match=r"float32\[b,b\] must have less than 2\*\*31 elements"):
        compiled.memory_analysis({"b": 1 << 16})
    nothing = jit(lambda x: x.shape[0], dynamic_shapes=(B,))
    with pytest.raises(errors.ShapeError, match=r"a size must be less than 2\*\*31, got b = 4294967297"):
        nothing(np.zeros(((1 << 32) + 1, 0), "float32"))


# -- donation and aliases ----------------------------------------------------------------------------------------------


def test_results_are_written_over_donated_arguments_of_dynamic_size():
    update = lambda x, y: (x - 0.5 * y, tnp.sum(x))
    compiled = lowered(update, ("b", 8), ("b", 8), donate_argnums=0)
    assert compiled.memory_analysis({"b": 10}).aliased == 320
    step = jit(update, donate_argnums=0, dynamic_shapes=(B, B))
    for b in (4, 9, 4):
        x, y = floats(b, 8), floats(b, 8)
        donated = tnp.array(x)
        address = donated.address + 0  # the integer itself would count as a reader
        result, total = step(donated, y)
        same([result], [tnp.asarray(x - 0.5 * y)])
        assert donated.is_deleted() and result.address == address
        np.testing.assert_allclose(float(total), x.sum(), rtol=1e-4, atol=1e-4)


def test_a_state_of_static_size_is_donated():
    def step(w, x):
        loss, slope = tvmfun.value_and_grad(lambda w: tnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * slope, loss

    dynamic, static = jit(step, donate_argnums=0, dynamic_shapes=(None, B)), jit(step)
    ours, theirs = tnp.array(w := floats(5, 3)), tnp.asarray(w)
    for b in (64, 64, 33, 1):
        x = floats(b, 5)
        ours, loss = dynamic(ours, x)
        theirs, expected = static(theirs, x)
        same([ours, loss], [theirs, expected])


def test_results_that_are_arguments():
    function = jit(lambda x: (x, x.reshape(-1), x * 2, x), dynamic_shapes=(B,))
    for b in (3, 7):
        x = tnp.asarray(floats(b, 4))
        first, flat, twice, last = function(x)
        assert first.address == flat.address == last.address == x.address
        same([first, flat, twice], [x, tnp.asarray(np.asarray(x).ravel()), x * 2])


def test_results_outlive_later_calls():
    function = jit(lambda x: (x + 1, tnp.sum(x), x.shape[0]), dynamic_shapes=(B,))
    arrays = [floats(b) for b in (3, 3000, 300000, 3, 50)]
    results = [function(x) for x in arrays]
    for x, (more, total, size) in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(np.asarray(more), x + 1)
        np.testing.assert_allclose(float(total), x.sum(), rtol=1e-3, atol=1e-2)
        assert int(size) == len(x)


# -- control flow ------------------------------------------------------------------------------------------------------


def scanned(w, xs):
    def step(h, x):
        h = tnp.tanh(x @ w + h)
        return h, tnp.where(tnp.mean(h) > 0, h, -h)

    return lax.scan(step, tnp.zeros(xs.shape[1:]), xs)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [{0: "t"}, {1: "b"}, {0: "t", 1: "b"}], ids=["length", "batch", "both"])
def test_a_scan(axes):
    w = floats(4, 4)
    loss = lambda w, xs: sum(tnp.sum(leaf**2) for leaf in tvmfun.tree.leaves(scanned(w, xs)))
    for function in (scanned, grad(loss, (0, 1))):
        dynamic, static = jit(function, dynamic_shapes=(None, axes)), jit(function)
        for n in (1, 6, 3):
            xs = floats(n if 0 in axes else 5, n + 1 if 1 in axes else 2, 4)
            same(dynamic(w, xs), static(w, xs), 1e-4)


def test_branches_and_a_loop_of_unknown_length():
    def function(x):
        x = lax.cond(tnp.sum(x) > 0, lambda x: x * 2, lambda x: 1 - tnp.sort(x), x)
        return lax.while_loop(lambda s: tnp.sum(tnp.abs(s)) < 1000, lambda s: s * 2 + 1, x)

    dynamic = jit(function, dynamic_shapes=(B,))
    for n in (1, 8, 40):
        for sign in (1, -1):
            x = sign * np.abs(floats(n))
            same(dynamic(x), jit(function)(x))


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_no_elements():
    none = {0: Dim("b", min=0)}

    def function(x, w):
        return x * 2, tnp.sum(x, axis=0), x @ w, tnp.concat([x, x + 1]), x.T @ x, x.reshape(-1)

    dynamic = jit(function, dynamic_shapes=(none, None))
    w = floats(3, 2)
    for b in (0, 4, 0, 1):
        x = floats(b, 3)
        same(dynamic(x, w), jit(function)(x, w))
    analysis = jit(function).lower(ShapeDtype((Dim("b", min=0), 3), "float32"), w).compile().memory_analysis({"b": 0})
    assert analysis.arguments == w.nbytes


@pytest.mark.slow
def test_several_sizes_and_expressions_of_them():
    def function(x, y, z):
        joined = tnp.concat([x, y])
        return joined * z, joined[::2].sum(), x[:, None] * y, tnp.sort(joined).reshape(-1, 1)

    a, b = Dim("a"), Dim("b")
    dynamic = jit(function, dynamic_shapes=({0: 2 * a}, {0: b}, {0: 2 * a + b}))
    for n, m in ((1, 1), (4, 7), (7, 4), (50, 3)):
        call = floats(2 * n), floats(m), floats(2 * n + m)
        same(dynamic(*call), jit(function)(*call), 1e-4)
    with pytest.raises(errors.ShapeError, match=r"must be 2\*a \+ b"):
        dynamic(floats(2), floats(3), floats(6))


def test_a_size_that_no_axis_has():
    dynamic = jit(
        lambda x: (tnp.sort(x).reshape(-1, 3).sum(0), tnp.arange(x.shape[0] // 3)),
        dynamic_shapes=({0: 3 * Dim("n") + 6},),
    )
    for n in (1, 5):
        x = floats(3 * n + 6)
        total, numbers = dynamic(x)
        np.testing.assert_allclose(np.asarray(total), np.sort(x).reshape(-1, 3).sum(0), rtol=1e-4, atol=1e-4)
        assert numbers.shape == (n + 2,)


# -- threads and caches ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_calls_of_different_sizes_share_memory():
    compiled = lowered(lambda x: tnp.sort(tnp.sort(x, axis=0) @ x.T, axis=1), ("b", 300))
    for b in (200, 3, 700, 50):
        compiled(floats(b, 300))
    (block,) = compiled.executable.idle
    assert block[0].nbytes == max(1 << 20, compiled.memory_analysis({"b": 700}).temporaries)


@pytest.mark.slow
def test_threads_of_different_sizes():
    step = lambda w, x: (w - 0.1 * grad(lambda w: tnp.mean(tnp.tanh(x @ w) ** 2))(w), tnp.sort(x, axis=0))
    dynamic, static = jit(step, donate_argnums=0, dynamic_shapes=(None, B)), jit(step)
    w = floats(6, 6)
    batches = {n: floats(n, 6) for n in (1, 64, 33, 500)}
    expected = {n: tvmfun.device_get(static(w, x)) for n, x in batches.items()}
    failures = []

    def call(n):
        try:
            for _ in range(25):
                same(dynamic(tnp.array(w), batches[n]), expected[n])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(n,)) for n in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.slow
def test_another_process_loads_the_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    x, w = floats(9, 24), floats(24, 40)
    results, events = [], []
    for _ in range(3):
        tvmfun.clear_caches()
        with counted() as counts:
            results.append(jit(chain, dynamic_shapes=(B,))(x, w))
        events.append((counts.compiles, counts.loads))
        if len(events) == 2:  # a plan that cannot be read
            for path in tmp_path.glob("*.so"):
                content = path.read_bytes().replace(b'"lifetimes"', b'"lifetimez"')
                path.write_bytes(content[:-32] + hashlib.sha256(content[:-32]).digest())
    assert events == [(1, 0), (0, 1), (1, 0)]
    for result in results[1:]:
        for ours, theirs in zip(result, results[0], strict=True):
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
