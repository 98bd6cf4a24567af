"""``vmap``, Jacobians and linear functions against JAX, alone and composed."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from support import oracle

import tvmfun
from tvmfun import Dim, lax, random, tree
from tvmfun import numpy as tnp
from tvmfun.core.program import Program
from tvmfun.errors import ArgumentError, BatchingError, GradientError, TreeError

jax = pytest.importorskip("jax")
jnp = jax.numpy
RNG = np.random.default_rng(11)
A, V, X = RNG.normal(size=(5, 3)), RNG.normal(size=3), RNG.normal(size=(4, 3))
PARAMS = {"a": V, "b": (RNG.normal(size=5), np.float64(2.0))}


class Ours:
    np, ops, lax = tnp, tvmfun, lax


class Theirs:
    np, ops, lax = jnp, jax, jax.lax


def same(make, *arguments, rtol=1e-9):
    with oracle.x64():
        expected = jax.device_get(jax.jit(make(Theirs))(*arguments))
    for run in (make(Ours), tvmfun.jit(make(Ours))):
        got = run(*arguments)
        leaves, wanted = tree.leaves(got), jax.tree_util.tree_leaves(expected)
        assert len(leaves) == len(wanted)
        for a, b in zip(leaves, wanted, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(np.asarray(a), b, rtol=rtol, atol=1e-12)


def vector(m):
    return lambda x: m.np.tanh(A @ x) * m.np.sum(x)


def scalar(m):
    return lambda p: m.np.sum(m.np.sin(A @ p["a"]) * p["b"][0]) + m.np.sum(p["b"][0] ** 3 * p["b"][1])


# -- vmap --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_axes():
    same(lambda m: m.ops.vmap(vector(m)), X)
    same(lambda m: m.ops.vmap(vector(m), in_axes=1), X.T)
    same(lambda m: m.ops.vmap(vector(m), in_axes=-1, out_axes=-1), X.T)
    same(lambda m: m.ops.vmap(lambda x, y: (x * y, y), (0, None), (1, None)), X, V)
    same(lambda m: m.ops.vmap(lambda x, y: (x, m.np.ones(2)), (None, 0)), V, X)


def test_trees_of_axes():
    f = lambda m: lambda p, x: {"y": p["a"] * x + p["b"][0], "z": (p["b"][1], x)}
    p = {"a": X, "b": (V, np.arange(4.0))}
    axes = ({"a": 0, "b": (None, 0)}, None)
    same(lambda m: m.ops.vmap(f(m), axes), p, V)
    same(lambda m: m.ops.vmap(f(m), axes, {"y": 1, "z": (0, None)}), p, V)
    same(lambda m: m.ops.vmap(f(m), (0, None)), {"a": X, "b": (X, X)}, V)
    same(lambda m: lambda p: m.ops.vmap(lambda x, *, k: x + k)(p, k=p), X)


def test_nesting_and_names():
    same(lambda m: m.ops.vmap(m.ops.vmap(lambda a, b: a * b, (0, None)), (None, 0), 1), V, V * 2)
    normalized = lambda m: lambda x: m.lax.psum(x, "i") / m.lax.psum(m.np.sum(x), ("i", "j"))
    same(lambda m: m.ops.vmap(m.ops.vmap(normalized(m), axis_name="i"), axis_name="j"), RNG.normal(size=(2, 4, 3)))


COLLECTIVES = {
    "psum": lambda m, x: x / m.lax.psum(x**2, "i"),
    "pmean": lambda m, x: m.lax.pmean(x, "i") * x,
    "all_gather": lambda m, x: m.lax.all_gather(x, "i") * 2,
    "all_gather at 1": lambda m, x: m.lax.all_gather(x, "i", axis=1),
    "all_gather tiled": lambda m, x: m.lax.all_gather(x, "i", axis=1, tiled=True),
    "psum_scatter": lambda m, x: m.lax.psum_scatter(x, "i"),
    "psum_scatter tiled": lambda m, x: m.lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
    "ppermute": lambda m, x: m.lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]),
    "all_to_all": lambda m, x: m.lax.all_to_all(x, "i", 0, 1, tiled=True),
    "all_to_all back": lambda m, x: m.lax.all_to_all(x, "i", 1, 0, tiled=True),
    "all_to_all untiled": lambda m, x: m.lax.all_to_all(x, "i", 0, 0),
    "pswapaxes": lambda m, x: m.lax.pswapaxes(x, "i", 0),
    "pshuffle": lambda m, x: m.lax.pshuffle(x, "i", [*range(1, m.lax.axis_size("i")), 0]),
    "axis_index": lambda m, x: x * m.lax.axis_index("i"),
    "of what is not batched": lambda m, x: m.lax.psum(m.np.ones(3), "i") + m.np.sum(x),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name):
    f = COLLECTIVES[name]
    data = RNG.normal(size=(4, 4, 8))

    def every(m):
        each = m.ops.vmap(lambda x: f(m, x) ** 2, axis_name="i")
        of_sum = m.ops.grad(lambda x: m.np.sum(each(x)))
        of_each = m.ops.vmap(m.ops.grad(lambda x: m.np.sum(f(m, x) ** 2)), axis_name="i")
        return lambda x: (each(x), of_sum(x), of_each(x), m.ops.vmap(each)(m.np.stack([x, x * 2])))

    same(every, data)


def test_pbroadcast():  # JAX's has no derivative
    x = np.asarray([1.0, 2.0, 3.0])
    each = tvmfun.vmap(lambda x: lax.pbroadcast(x, "i", 1) * x, axis_name="i")
    np.testing.assert_array_equal(each(x), 2 * x)
    np.testing.assert_array_equal(tvmfun.grad(lambda x: each(x).sum())(x), [2.0, 8.0, 2.0])
    with pytest.raises(ArgumentError, match="position below 3"):
        tvmfun.vmap(lambda x: lax.pbroadcast(x, "i", 3), axis_name="i")(x)
    with pytest.raises(ArgumentError, match="each position"):
        tvmfun.vmap(lambda x: lax.pshuffle(x, "i", [0, 0, 1]), axis_name="i")(x)


def with_custom_vjp(m, x):
    @m.ops.custom_vjp
    def f(u):
        return m.lax.psum(u, "i") * u

    f.defvjp(lambda u: (f(u), u), lambda r, g: (m.lax.pmean(g, "i") * r,))
    return f(x)


def with_custom_jvp(m, x):
    @m.ops.custom_jvp
    def f(u):
        return m.lax.psum(u, "i") * u

    f.defjvp(lambda primals, tangents: (f(*primals), m.lax.pmean(tangents[0], "i")))
    return m.ops.jvp(f, (x,), (x,))


INSIDE = {
    "scan": lambda m, x: m.lax.scan(lambda c, _: (m.lax.psum(c, "i") * 0.5 + x, c.sum()), x, None, length=3),
    "gradient of scan": lambda m, x: m.ops.grad(
        lambda u: m.lax.scan(lambda c, _: (m.np.sin(m.lax.pmean(c, "i")) + u, c.sum()), u, None, length=3)[1].sum()
    )(x),
    "while_loop": lambda m, x: m.lax.while_loop(
        lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] + m.lax.pmax(c[1], "i")), (0, x)
    ),
    "cond": lambda m, x: m.lax.cond(m.lax.psum(x, "i").sum() > 0.5, lambda u: m.lax.pmean(u, "i"), lambda u: u - 1, x),
    "of nothing that is batched": lambda m, x: m.lax.fori_loop(0, 2, lambda k, c: c + m.lax.axis_index("i"), 0) + 0 * x,
    "checkpoint": lambda m, x: m.ops.checkpoint(lambda u: m.np.sin(m.lax.psum(u, "i")))(x),
    "custom_vjp": with_custom_vjp,
    "gradient of custom_vjp": lambda m, x: m.ops.grad(lambda u: with_custom_vjp(m, u).sum())(x),
    "custom_jvp": with_custom_jvp,
}


@pytest.mark.quick("checkpoint")
@pytest.mark.parametrize("name", INSIDE)
def test_collectives_inside_control_flow_and_rules(name):
    each = lambda m: m.ops.vmap(lambda x: INSIDE[name](m, x), axis_name="i")
    same(each, X)
    same(lambda m: m.ops.vmap(each(m)), np.stack([X, X * 2]))


def test_options_of_collectives_for_several_devices():
    x = np.arange(4.0)
    for name in ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "pswapaxes"):
        more = {"all_to_all": (0, 0), "pswapaxes": (0,)}.get(name, ())
        batch = x if name in ("psum", "pmean", "pmax", "pmin", "all_gather") else np.ones((4, 4))
        for groups in (None, [[0, 1], [2, 3]]):
            call = lambda x, name=name, more=more, groups=groups: getattr(lax, name)(
                x, "i", *more, axis_index_groups=groups
            )
            run = tvmfun.vmap(call, axis_name="i", spmd_axis_name="i")
            if groups is None:
                expected = tvmfun.vmap(lambda x, name=name, more=more: getattr(lax, name)(x, "i", *more), axis_name="i")
                np.testing.assert_array_equal(run(batch), expected(batch))
            else:
                with pytest.raises(ArgumentError, match=rf"^\[{name}\] axis_index_groups must be None"):
                    run(batch)


def test_pmax_and_pmin_and_partial_permutations():
    same(lambda m: m.ops.vmap(lambda x: m.lax.pmax(x, "i") - m.lax.pmin(x, "i") + 0 * x, axis_name="i"), X)
    got = tvmfun.vmap(lambda x: lax.ppermute(x, "i", [(0, 2), (3, 0)]), axis_name="i")(np.arange(1.0, 5.0))
    np.testing.assert_array_equal(got, [4, 0, 1, 0])


def test_per_example_keys_give_the_bits_of_jax():
    keys = random.split(random.key(3), 5)
    got = tvmfun.vmap(lambda k: random.normal(k, (4,)))(keys)
    expected = np.stack([np.asarray(random.normal(key, (4,))) for key in keys])
    np.testing.assert_array_equal(np.asarray(got), expected)


@hypothesis.settings(max_examples=15)
@hypothesis.given(st.data())
def test_vmap_is_the_loop_over_examples(data):
    """Random small programs: vmap gives what stacking the results of single examples gives."""
    size = data.draw(st.integers(0, 3))
    shape = tuple(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape)))
    steps = data.draw(st.lists(st.sampled_from(["sin", "sum", "flip", "outer", "reshape", "where", "max"]), max_size=4))
    x = np.random.default_rng(0).normal(size=(*shape[:axis], size, *shape[axis:]))

    def f(v):
        for step in steps:
            if step == "sin":
                v = tnp.sin(v) + 1
            elif step == "sum" and v.ndim:
                v = tnp.sum(v, axis=0)
            elif step == "flip" and v.ndim:
                v = tnp.flip(v, axis=-1)
            elif step == "outer" and v.ndim < 3:
                v = v[..., None] * tnp.asarray([1.0, -2.0])
            elif step == "reshape":
                v = tnp.reshape(v, (-1,)) if v.size else v
            elif step == "where":
                v = tnp.where(v > 0, v, v * 2)
            elif step == "max" and v.size:
                v = tnp.max(v) - v
        return v

    got = np.asarray(tvmfun.vmap(f, axis)(x))
    rows = [np.asarray(f(tnp.asarray(row))) for row in np.moveaxis(x, axis, 0)]
    assert got.shape[0] == size
    for row, expected in zip(got, rows, strict=True):
        np.testing.assert_allclose(row, expected, rtol=1e-12)


def test_errors_of_vmap():
    double = lambda x, y: x * y
    with pytest.raises(BatchingError, match=r"one size, 4 as leaf \[0\]\[0\] .* got 3 along axis 0 of leaf \[0\]\[1\]"):
        tvmfun.vmap(double)(X, V)
    with pytest.raises(BatchingError, match="no axis 2"):
        tvmfun.vmap(double, (2, None))(X, V)
    with pytest.raises(BatchingError, match="at least one argument"):
        tvmfun.vmap(double, None)(X, X)
    with pytest.raises(ArgumentError, match="one entry per argument"):
        tvmfun.vmap(double, (0,))(X, X)
    with pytest.raises(ArgumentError, match="integers and None"):
        tvmfun.vmap(double, ("a", 0))(X, X)
    with pytest.raises(TreeError, match="prefix"):
        tvmfun.vmap(lambda p: p, ((0, 0),))({"a": X})
    with pytest.raises(BatchingError, match="out_axes None"):
        tvmfun.vmap(double, out_axes=None)(X, X)
    with pytest.raises(ArgumentError, match="no axis has the name 'i'"):
        tvmfun.vmap(lambda x: lax.psum(x, "i"))(X)


# -- Jacobians and linear functions ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_jacobians():
    def every(m):
        f = vector(m)

        def call(x, params):
            results = []
            for jacobian in (m.ops.jacfwd, m.ops.jacrev):
                results.append(jacobian(f)(x))
                results.append(jacobian(lambda x, y: {"p": x * y, "q": m.np.sum(x)}, (0, 1))(x, x * 2))
                results.append(jacobian(lambda x: (x * x, x[0]), has_aux=True)(x))
            nested = m.ops.jacfwd(m.ops.jacfwd(f))(x), m.ops.jacrev(m.ops.jacfwd(m.ops.jacrev(f)))(x)
            return results, m.ops.hessian(scalar(m))(params), nested

        return call

    same(every, V, PARAMS)


@pytest.mark.slow
def test_linearize_and_transpose():
    for m in (Ours, Theirs):
        with oracle.x64():
            y, push = m.ops.linearize(vector(m), V)
            results = [y, push(V), push(V * 2), m.ops.jit(push)(V)]
            aux = m.ops.linearize(lambda p, m=m: (scalar(m)(p), p["a"]), PARAMS, has_aux=True)
            results += [aux[0], aux[1](PARAMS), aux[2]]
            (transposed,) = m.ops.linear_transpose(lambda x: 2.0 * (A @ x), V)(np.ones(5))
            results = [np.asarray(r) for r in (*results, transposed)]
        if m is Ours:
            ours = results
    for a, b in zip(ours, results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_linearization_computes_the_function_once():
    _, push = tvmfun.linearize(lambda x: tnp.exp(tnp.sin(x)), V)
    text = tvmfun.trace(push)(V).text
    assert "exp" not in text
    assert "sin" not in text


def test_what_is_not_linear_is_refused():
    with pytest.raises(GradientError, match="not linear"):
        tvmfun.linear_transpose(lambda x: x * x, V)
    with pytest.raises(GradientError, match="only float leaves"):
        tvmfun.jacfwd(lambda x: x * 1.0)(np.arange(3))


# -- composition -------------------------------------------------------------------------------------------------------


def nested(m, order, f):
    for name in order:
        if name == "grad":
            inner = f
            f = m.ops.grad(lambda x, inner=inner: m.np.sum(inner(x)))
        elif name == "vmap":
            f = m.ops.vmap(f)
        elif name == "jit":
            f = m.ops.jit(f)
        elif name == "jvp":
            f = lambda x, inner=f: m.ops.jvp(inner, (x,), (m.np.cos(x),))[1]
        elif name == "linearize":
            f = lambda x, inner=f: m.ops.linearize(inner, x)[1](x)
        elif name == "checkpoint":
            f = m.ops.checkpoint(f)
        elif name == "scan":
            f = lambda x, inner=f: m.lax.scan(lambda c, _: (m.np.sin(inner(c)), None), x, None, length=2)[0]
        elif name == "cond":
            f = lambda x, inner=f: m.lax.cond(m.np.sum(x) > 0, inner, lambda x: inner(x * 2), x)
    return f


ORDERS = [
    ("grad", "jvp", "vmap", "jit"),
    ("jit", "grad", "vmap"),
    ("vmap", "grad", "grad"),
    ("scan", "vmap", "grad"),
    ("checkpoint", "scan", "grad", "jvp", "vmap"),
    ("cond", "vmap", "jvp", "grad"),
    ("linearize", "vmap", "grad"),
    ("grad", "scan", "cond", "grad", "vmap"),
    ("jvp", "checkpoint", "vmap", "grad", "jit", "jvp"),
    ("vmap", "jvp", "jit", "vmap", "grad"),
]


@pytest.mark.quick("jit grad vmap", "linearize vmap grad")
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_any_order(order):
    depth = order.count("vmap")
    x = RNG.normal(size=(2,) * depth + (3,)) / 2
    same(lambda m: nested(m, order, lambda x: m.np.tanh(x) * m.np.exp(x)), x)


def test_transforms_of_an_imported_program():
    written = tvmfun.trace(lambda x: tnp.tanh(tnp.asarray(A) @ x))(V)
    program = Program.from_relax(written.function)
    f = lambda x: program(tnp.asarray(A), x)[0]
    g = lambda x: jnp.tanh(A @ x)
    with oracle.x64():
        expected = [
            jax.jacrev(g)(V),
            jax.jvp(g, (V,), (V,))[1],
            jax.vmap(jax.grad(lambda x: g(x).sum()))(X),
        ]
    got = [tvmfun.jacrev(f)(V), tvmfun.jvp(f, (V,), (V,))[1], tvmfun.vmap(tvmfun.grad(lambda x: tnp.sum(f(x))))(X)]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_an_imported_program_keeps_its_loops():
    written = tvmfun.trace(
        lambda x: lax.cond(x[0] > 0, lambda x: lax.fori_loop(0, 3, lambda i, x: tnp.sin(x), x), lambda x: x * 2, x)
    )(V).verify()
    program = Program.from_relax(written.function)
    for x in (V, -V):
        np.testing.assert_allclose(program(x)[0], written(x), rtol=1e-12)
        expected = tvmfun.jacrev(written)(x)
        np.testing.assert_allclose(tvmfun.jacrev(lambda x: program(x)[0])(x), expected, rtol=1e-12)


@pytest.mark.slow
def test_an_imported_if_is_a_branch():
    from tvm.script import relax as R

    @R.function
    def written(x: R.Tensor((3,), "float64"), w: R.Tensor((3, 3), "float64"), p: R.Tensor((), "bool")):  # type: ignore
        y = R.sin(x)
        if p:
            a = R.sum(R.multiply(w, y), axis=[1])
            z = R.add(a, x)
        else:
            z = R.multiply(y, R.const(2.0, "float64"))
        return R.exp(z)

    program = Program.from_relax(written)
    w = RNG.normal(size=(3, 3))
    for p in (True, False):
        f = lambda x, w, p=p: jnp.exp(w @ jnp.sin(x) + x if p else jnp.sin(x) * 2)
        with oracle.x64():
            expected = jax.jacrev(f, (0, 1))(V, w)
        got = tvmfun.jit(tvmfun.jacrev(program, (0, 1)))(V, w, np.asarray(p))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


# -- nothing to differentiate ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_empty_arrays_in_every_transform():
    def every(m):
        f = lambda x: m.np.sin(x) * m.np.sum(x)
        summed = lambda x: m.np.sum(f(x))
        batched, mapped = m.ops.vmap(m.ops.grad(summed)), m.ops.grad(lambda x: m.np.sum(m.lax.map(f, x)))

        def call(x, none, two, three):
            jacobians = m.ops.jacfwd(f)(x), m.ops.jacrev(f)(x), m.ops.hessian(summed)(x)
            return *jacobians, batched(three), batched(none), m.ops.jvp(f, (x,), (x,)), mapped(two)

        return call

    for shape in ((0,), (2, 0)):
        same(every, np.zeros(shape), *(np.zeros((n, *shape)) for n in (0, 2, 3)))


@pytest.mark.slow
def test_results_that_do_not_depend_on_the_argument():
    f = lambda m: lambda x: (m.np.ones(2), m.np.sum(x * 0.0 + 1.0), x > 0)
    same(lambda m: lambda x: m.ops.jvp(lambda x: f(m)(x)[:2], (x,), (x,)), V)
    same(lambda m: m.ops.jacfwd(lambda x: f(m)(x)[:2]), V)
    same(lambda m: m.ops.jacrev(lambda x: f(m)(x)[:2]), V)
    same(lambda m: lambda x: m.ops.linearize(lambda x: f(m)(x)[:2], x)[1](x), V)
    # Where JAX has its float0, integer results have integer zeros for tangents.
    _, tangent = tvmfun.jvp(f(Ours), (V,), (V,))
    assert tangent[2].dtype == bool
    assert not np.asarray(tangent[2]).any()


@pytest.mark.slow
def test_integers_among_the_arguments():
    f = lambda p: tnp.sum(p["x"] * p["i"]) + p["i"][0]
    p = {"x": V, "i": np.arange(1, 4)}
    gradient = tvmfun.grad(f)(p)
    np.testing.assert_array_equal(gradient["x"], [1, 2, 3])
    assert gradient["i"].dtype == np.int64
    assert not np.asarray(gradient["i"]).any()
    _, tangent = tvmfun.jvp(f, (p,), ({"x": V, "i": np.zeros(3, int)},))
    np.testing.assert_allclose(tangent, V @ [1, 2, 3])
    gradients = tvmfun.vmap(tvmfun.grad(f))({"x": X, "i": np.ones((4, 3), int)})
    np.testing.assert_array_equal(gradients["x"], np.ones((4, 3)))


def test_arguments_that_are_not_mapped_stay_python_values():
    x = np.ones(2, "float32")
    loss = lambda w, x, train: w * x if train else w - x
    for jitted in (lambda f: f, tvmfun.jit):
        call = lambda f, axes, *args, jitted=jitted: np.asarray(jitted(lambda: tvmfun.vmap(f, axes)(*args))())
        np.testing.assert_array_equal(call(tvmfun.grad(loss), (None, 0, None), 2.0, x, True), [1, 1])
        np.testing.assert_array_equal(call(lambda x, n: x * tnp.ones(n), (0, None), x, 3), np.ones((2, 3)))
        np.testing.assert_allclose(call(lambda f, x: f(x), (None, 0), tnp.sin, x), np.sin(x), rtol=1e-6)
        config = {"act": "twice", "k": 2.0, "bias": x}
        f = lambda c, x: (x * c["k"] if c["act"] == "twice" else x) + c["bias"].sum()
        np.testing.assert_array_equal(call(f, (None, 0), config, x), [4, 4])
        nested = lambda y: tvmfun.vmap(lambda x, n: x * len(range(n)), (0, None))(y, 3)
        np.testing.assert_array_equal(call(nested, 0, np.ones((2, 2), "float32")), np.full((2, 2), 3))
    with pytest.raises(BatchingError):
        tvmfun.vmap(lambda x, n: x, (0, 0))(x, 3)


def test_loops_of_an_empty_batch():
    def doubled(x):
        return lax.while_loop(lambda c: c < 5.0, lambda c: c * 2 + 1, x)

    def counted(x, n):
        return lax.fori_loop(0, n, lambda i, c: c + i, x)

    batch, some = Dim("batch", min=0), np.ones(3, "float32")
    dynamic = tvmfun.jit(tvmfun.vmap(doubled), dynamic_shapes=[(batch,)])
    np.testing.assert_array_equal(dynamic(some), 7)
    loops = tvmfun.vmap(doubled), tvmfun.jit(tvmfun.vmap(doubled)), dynamic
    assert all(f(some[:0]).shape == (0,) for f in loops)

    counts = np.arange(3, dtype="int32")
    dynamic = tvmfun.jit(tvmfun.vmap(counted), dynamic_shapes=[(batch,), (batch,)])
    np.testing.assert_array_equal(dynamic(some, counts), [1, 1, 2])
    loops = tvmfun.vmap(counted), tvmfun.jit(tvmfun.vmap(counted)), dynamic
    assert all(f(some[:0], counts[:0]).shape == (0,) for f in loops)


@pytest.mark.parametrize("size", [3, np.int64(3)], ids=["int", "int64"])
def test_numbers_that_are_not_differentiated_stay_python_values(size):
    """A function may ask for the type of a number, or use it as a size."""

    def multiples(count, x):
        sign = 1 if isinstance(count, int | np.integer) else -1
        return sign * x**3 * np.arange(count)

    for name in ("jacobian", "jacfwd", "jacrev", "hessian"):
        expected = getattr(jax, name)(multiples, 1)(size, 0.5)
        np.testing.assert_allclose(getattr(tvmfun, name)(multiples, 1)(size, 0.5), expected, rtol=1e-6)
    np.testing.assert_allclose(
        tvmfun.vmap(multiples, (None, 0))(size, tnp.ones(2)), jax.vmap(multiples, (None, 0))(size, jnp.ones(2)), 1e-6
    )
    np.testing.assert_allclose(tvmfun.grad(lambda n, x: multiples(n, x).sum(), 1)(size, 0.5), 9 * 0.5**2)
