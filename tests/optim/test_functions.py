"""Functions of optim that are not transformations, against optax and their definitions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optimizer_cases.functions import PROJECTIONS, TREE, X
from optimizer_cases.trajectories import OPTAX, TVMFUN, as_numpy
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import optim, random, tree
from tvmfun.errors import ArgumentError, DtypeError, ShapeError


def assert_same(actual, expected, tolerance=1e-12):
    actual, expected = (
        [as_numpy(leaf) for leaf in leaves] for leaves in (tree.leaves(actual), jax.tree.leaves(expected))
    )
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# -- optim.tree ----------------------------------------------------------------------------------------------


@pytest.mark.quick("dtype", "size", "add")
@pytest.mark.parametrize("name", TREE)
def test_tree_functions_are_those_of_optax(name):
    for call in TREE[name]:
        with x64():
            expected = call(optax.tree, optax)
            actual = call(optim.tree, optim)
            # Random numbers are of 32 bits.
            assert_same(actual, expected, 1e-6 if name == "random_like" else 1e-12)


def test_paths_say_where_a_value_is():
    state = optim.chain(optim.adam(0.1), optim.trace(0.9)).init({"w": np.zeros(2)})
    paths = [path for path, _ in optim.tree.get_all_with_path(state, "w")]
    key = optim.tree.NamedTupleKey
    assert paths == [
        (0, 0, key("ScaleByAdamState", "mu"), "w"),
        (0, 0, key("ScaleByAdamState", "nu"), "w"),
        (1, key("TraceState", "trace"), "w"),
    ]


def test_fields_of_modules_have_names():
    model = tvmfun.nn.Linear(2, 3, key=random.key(0))
    assert optim.tree.get({"model": model}, "weight").shape == model.weight.shape
    new = optim.tree.set({"model": model}, bias=7.0)["model"]
    assert type(new) is type(model) and new.bias == 7.0 and new.weight is model.weight


def test_partitioned_states_are_mapped_where_parameters_are():
    optimizer = optim.partition({"a": optim.trace(0.9), "b": optim.sgd(0.1)}, {"w": "a", "b": "b"})
    state = optimizer.init({"w": np.zeros(2), "b": np.zeros(3)})
    new = optim.tree.map_params(optimizer, lambda p: p + 1, state)
    np.testing.assert_array_equal(optim.tree.get(new, "w"), [1, 1])


def test_mistakes_with_trees_are_explained():
    with pytest.raises(ArgumentError, match=r"\[get\] only one value may have the name 'w', got 2"):
        optim.tree.get(optim.scale_by_adam().init({"w": 1.0}), "w")
    with pytest.raises(ArgumentError, match=r"\[set\] the names must be those of values, got 'absent'"):
        optim.tree.set(optim.scale_by_adam().init({"w": 1.0}), absent=3)
    with pytest.raises(DtypeError, match=r"\[dtype\] all leaves must have one dtype, got float32, float64"):
        optim.tree.dtype({"w": np.zeros(1, "float32"), "b": np.zeros(1)})
    with pytest.raises(ArgumentError, match=r"mixed_dtype_handler must be .*, got 'widest'"):
        optim.tree.dtype({"w": np.zeros(1)}, "widest")
    with pytest.raises(ArgumentError, match=r"\[norm\] ord must be 1, 2 or inf, got 3"):
        optim.tree.norm(X, 3)


# -- projections ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_projections_and_their_derivatives_are_those_of_optax():
    weights = tree.map(np.cos, X)

    def all_of(library):
        def total(x, call):
            y = call(library.optim.projections, x)
            return sum(library.numpy.sum(y[k] * weights[k]) for k in sorted(y)), y

        differentiate = library.value_and_grad(total, has_aux=True)
        return library.jit(lambda x: {n: [differentiate(x, c) for c in calls] for n, calls in PROJECTIONS.items()})(X)

    with x64():
        expected = all_of(OPTAX)
    actual = all_of(TVMFUN)
    for name in PROJECTIONS:
        for ours, theirs in zip(actual[name], expected[name], strict=True):
            for a, b in zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7])
def test_the_simplex_is_projected_onto_itself(size):
    rng = np.random.default_rng(size)
    point = rng.dirichlet(np.ones(size))
    np.testing.assert_allclose(optim.projections.projection_simplex(point), point, rtol=1e-12)
    far = rng.normal(size=size) * 10
    nearest = np.asarray(optim.projections.projection_simplex(far, 3.0))
    assert nearest.min() >= 0 and abs(nearest.sum() - 3) < 1e-12
    # No other point is nearer.
    for _ in range(20):
        assert np.linalg.norm(far - nearest) <= np.linalg.norm(far - 3 * rng.dirichlet(np.ones(size))) + 1e-12


@pytest.mark.parametrize(
    ("point", "dtype", "scale", "nearest"),
    [
        ([300, 1, 0], "bfloat16", 1, [1, 0, 0]),
        ([3000, 1, 0], "float16", 1, [1, 0, 0]),
        ([3e7, 0, 1], "float32", 1, [1, 0, 0]),
        ([2e7] * 3, "float32", 1, [1 / 3] * 3),
        ([2e5, 1, 0], "float32", 0.01, [0.01, 0, 0]),
        ([-np.inf, 0.5, 0.25], "float32", 1, [0, 0.625, 0.375]),
        ([1e5 + 0.25, 1e5, 1e5 + 0.5], "float32", 1, [1 / 3, 1 / 12, 7 / 12]),
    ],
)
def test_large_numbers_keep_their_differences_on_the_simplex(point, dtype, scale, nearest):
    ours = optim.projections.projection_simplex(tnp.asarray(point, dtype), scale)
    np.testing.assert_allclose(ours.astype("float32"), nearest, rtol=3e-3 if dtype == "bfloat16" else 1e-6)


@pytest.mark.parametrize("largest", [3.0, 1.0, 0.5, 0.0, -0.5, 1e6])
@pytest.mark.parametrize("count", [10, 10000])
def test_many_small_numbers_beside_a_large_one(largest, count):
    """Against the sort in float64: numbers near to the threshold keep their digits."""
    rng = np.random.default_rng(count)
    for tail in (
        rng.uniform(size=count) * 2 / count,
        rng.dirichlet(np.full(count, 0.3)),
        largest - rng.uniform(size=count),
    ):
        x = np.append(np.minimum(tail, largest), largest).astype("float32")
        ordered = np.sort(x.astype("float64"))[::-1]
        thresholds = (np.cumsum(ordered) - 1) / np.arange(1, count + 2)
        nearest = np.maximum(x - thresholds[np.sum(ordered > thresholds) - 1], 0)
        ours = np.asarray(optim.projections.projection_simplex(x))
        assert ours.min() >= 0 and abs(ours.sum(dtype="float64") - 1) < 1e-5
        assert np.abs(ours - nearest).sum() < 2e-6 * np.sqrt(count)


@pytest.mark.parametrize("name", ["simplex", "l1_sphere", "l1_ball", "non_negative"])
def test_projections_keep_what_is_not_a_number(name):
    own = getattr(optim.projections, f"projection_{name}")
    whole = name != "non_negative"
    assert np.isnan(own(tnp.asarray([np.nan, 0.0, 1.0]))).sum() == (3 if whole else 1)
    infinite = own(tnp.asarray([np.inf, 0.0, 1.0]))
    assert np.isnan(infinite).all() if whole else np.isinf(infinite[0])


def test_projections_on_a_simplex_of_dynamic_size():
    own = tvmfun.jit(lambda x: optim.projections.projection_simplex(x), dynamic_shapes={"x": {0: "n"}})
    for size in (1, 3, 20):
        np.testing.assert_allclose(own(np.ones(size)), np.full(size, 1 / size), rtol=1e-6)


def test_sparsemax_of_large_scores():
    loss = lambda x: optim.losses.multiclass_sparsemax_loss(x, np.array([2])).sum()
    value, gradient = tvmfun.value_and_grad(loss)(np.array([[-1e8, 1e8, 0, 0, 1]], "float32"))
    assert float(value) == 1e8
    np.testing.assert_array_equal(gradient, [[0, 1, -1, 0, 0]])


# -- second order --------------------------------------------------------------------------------------------


@pytest.mark.quick("hessian_diag")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["hvp", "hessian_diag", "fisher_diag"])
def test_second_order(name):
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(4, 3)), "b": rng.normal(size=3)}
    x, y, v = rng.normal(size=(6, 4)), rng.normal(size=(6, 3)), rng.normal(size=15)

    def call(library):
        def loss(p, x, y):
            return library.numpy.mean(library.numpy.tanh(x @ p["w"] + p["b"] - y) ** 2)

        f = getattr(library.optim.second_order, name)
        return library.jit(lambda p, x, y: f(loss, *([v] if name == "hvp" else []), p, x, y))(params, x, y)

    with x64():
        expected = call(OPTAX)
    assert_same(call(TVMFUN), expected)


# -- linear algebra ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_power_iteration():
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    matrix = (vectors * [5.0, 1, 2, -0.5, 0.1]) @ vectors.T
    value, vector = tvmfun.jit(lambda m: optim.power_iteration(m, error_tolerance=1e-10))(matrix)
    np.testing.assert_allclose(value, 5.0, rtol=1e-9)
    np.testing.assert_allclose(np.abs(vectors[:, 0] @ np.asarray(vector)), 1.0, rtol=1e-9)
    first = {"a": rng.normal(size=3), "b": rng.normal(size=2)}

    def product(library):
        def apply(v):
            u = matrix @ library.numpy.concatenate([v["a"], v["b"]])
            return {"a": u[:3], "b": u[3:]}

        return library.optim.power_iteration(apply, v0=first, num_iters=4)

    with x64():
        expected = product(OPTAX)
    assert_same(product(TVMFUN), expected, 1e-10)
    with pytest.raises(ArgumentError, match=r"\[power_iteration\] a function needs a first vector"):
        optim.power_iteration(lambda v: v)


@pytest.mark.slow
def test_matrix_inverse_pth_root():
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    values = np.asarray([3.0, 1.0, 0.5, 0.2])
    matrix = (vectors * values) @ vectors.T
    roots = tvmfun.jit(lambda m: [optim.matrix_inverse_pth_root(m, p, ridge_epsilon=1e-12) for p in (2, 8)])(matrix)
    for p, (root, error) in zip((2, 8), roots, strict=True):
        np.testing.assert_allclose(root, (vectors * values ** (-1 / p)) @ vectors.T, rtol=1e-5, atol=1e-5)
        assert float(error) < 1e-5
    matrix = matrix.astype("float32")
    root, _ = tvmfun.jit(lambda m: optim.matrix_inverse_pth_root(m, 4))(matrix)
    np.testing.assert_allclose(root, optax.matrix_inverse_pth_root(matrix, 4)[0], rtol=1e-4, atol=1e-4)
    root, _ = optim.matrix_inverse_pth_root(np.full((1, 1), 4.0), 4)
    np.testing.assert_allclose(root, [[4.0**-0.25]], rtol=1e-5)


def test_matrix_inverse_pth_root_explains_mistakes():
    with pytest.raises(ArgumentError, match=r"p must be 1, 2, 4 or 8, got 3"):
        optim.matrix_inverse_pth_root(np.eye(2), 3)
    with pytest.raises(ShapeError, match=r"the matrix must be square"):
        optim.matrix_inverse_pth_root(np.ones((2, 3)), 2)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(), (3,)])
def test_nnls(columns):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(8, 5)), rng.normal(size=(8, *columns))
    with x64():
        expected = optax.nnls(jnp.asarray(a), jnp.asarray(b), 50)
    assert_same(tvmfun.jit(lambda a, b: optim.nnls(a, b, 50))(a, b), expected)
    x = np.asarray(optim.nnls(a, b, 5000))
    slope = a.T @ (a @ x - b)
    # Where x is 0 the slope leads to negative numbers; elsewhere it is 0.
    assert (x >= 0).all() and (slope > -1e-8).all() and np.abs(x * slope).max() < 1e-8
    with pytest.raises(ShapeError, match=r"\[nnls\] the shapes must be"):
        optim.nnls(a, np.ones(3), 5)


# -- gradients, batches, measurements ------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, np.float32(-2.0)])
def test_scale_gradient(scale):
    x = {"w": np.asarray([1.0, np.inf, 3.0], "float32")}

    def f(library, x):
        return library.numpy.sum(library.optim.scale_gradient(x, scale)["w"] * np.asarray([1, 0.5, 2], "float32"))

    for library in (OPTAX, TVMFUN):
        value, gradient = library.value_and_grad(lambda x, library=library: f(library, x))(x)
        assert np.isinf(float(value))
        np.testing.assert_array_equal(gradient["w"], np.asarray([1, 0.5, 2]) * scale)
    np.testing.assert_array_equal(optim.scale_gradient(x, scale)["w"], x["w"])


@pytest.mark.slow
def test_multi_normal():
    rng = np.random.default_rng(0)
    loc, log_scale, x = (rng.normal(size=(3, 2)).astype("float32") for _ in range(3))
    ours, theirs = (o.multi_normal(loc, log_scale) for o in (optim, optax))
    np.testing.assert_allclose(ours.log_prob(x), theirs.log_prob(x), rtol=1e-5)
    np.testing.assert_allclose(
        ours.sample((4,), random.key(3)), theirs.sample((4,), jax.random.key(3)), rtol=1e-5, atol=1e-6
    )
    for a, b in zip(ours.params, theirs.params, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ours.log_scale, theirs.log_scale)


@pytest.mark.quick("-1-MEAN", "0-SUM", "-1-CONCAT")
@pytest.mark.parametrize("kind", ["MEAN", "SUM", "RUNNING_MEAN", "CONCAT"])
@pytest.mark.parametrize("axis", [0, -1])
def test_microbatch(kind, axis):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 2, 6)).astype("float32"), rng.normal(size=2).astype("float32")
    results = []
    for library in (OPTAX, TVMFUN):

        def f(x, w, *, y, library=library):
            moved = library.numpy.moveaxis(x["x"], axis, 0)
            return {"z": library.numpy.sum(moved * y["y"][:, None, None], axis=1) + w[0]}

        o = library.optim
        accumulator = getattr(o.microbatching.AccumulationType, kind)
        run = o.microbatch(f, 0, 2, accumulator, argnames="y", in_axes=(axis % 3, 0))
        results.append(library.jit(lambda x, w, run=run: run({"x": x}, w, y={"y": x[:, 0, 0]}))(x, w)["z"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_microbatches_give_the_gradient_of_the_batch():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(12, 3)), rng.normal(size=3)
    kinds = optim.microbatching.AccumulationType
    loss = lambda w, x: (tnp.mean((x @ w) ** 2), x @ w)
    of_batch = tvmfun.value_and_grad(loss, has_aux=True)
    (value, predictions), gradient = of_batch(w, x)
    in_parts = optim.microbatch(of_batch, 1, 4, ((kinds.MEAN, kinds.CONCAT), kinds.RUNNING_MEAN))
    assert_same(tvmfun.jit(in_parts)(w, x), ((value, predictions), gradient))
    total = optim.microbatch(lambda x: tnp.sum(x), 0, 4, num_real_microbatches=np.int32(2))
    np.testing.assert_allclose(total(x), x[[0, 3, 6, 9, 1, 4, 7, 10]].sum(), rtol=1e-12)
    assert optim.microbatch(loss, 0, None) is loss
    with pytest.raises(ShapeError, match=r"the batch axis must have one length, a multiple of 5, got 12"):
        optim.microbatch(lambda x: x, 0, 5)(x)
    with pytest.raises(ArgumentError, match=r"the accumulator must be an AccumulationType, got 'sum'"):
        optim.microbatch(lambda x: x, 0, 4, "sum")(x)


def test_monitor_snapshot_and_measure_with_ema():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(2, 3)).astype("float32")}
    results = {}
    for library in (OPTAX, TVMFUN):
        o = library.optim
        largest = lambda u, library=library: library.numpy.max(u["w"])
        optimizer = o.chain(
            o.snapshot("before", largest),
            o.adam(0.1),
            o.monitor(
                {
                    "after": largest,
                    "mean": o.measure_with_ema(largest, 0.9),
                    "raw": o.measure_with_ema(largest, 0.5, False),
                }
            ),
        )
        state = optimizer.init(params)
        update = library.jit(optimizer.update)
        seen = []
        for step in range(4):
            _, state = update({"w": params["w"] * (step - 1)}, state)
            seen += [float(o.tree.get(state, name)) for name in ("before", "after", "mean", "raw")]
        results[o] = seen
    np.testing.assert_allclose(results[optim], results[optax], rtol=1e-5)


def test_the_state_of_a_monitor_can_be_carried():
    optimizer = optim.monitor({"norm": optim.global_norm})
    step = lambda state, u: (optimizer.update(u, state)[1], None)
    state, _ = tvmfun.lax.scan(step, optimizer.init(np.zeros(2)), np.ones((3, 2)))
    np.testing.assert_allclose(optim.tree.get(state, "norm"), np.sqrt(2))


# -- searches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"])
def test_values_and_gradients_come_from_the_state(search):
    calls = []

    def loss(p, shift=0.0):
        calls.append(1)
        return tnp.sum((p - shift) ** 4)

    options = {"store_grad": True} if "backtracking" in search else {}
    optimizer = optim.chain(optim.sgd(1.0), getattr(optim, search)(15, **options))
    from_state = optim.value_and_grad_from_state(loss)

    @tvmfun.jit
    def step(params, state):
        value, gradient = from_state(params, state=state, shift=1.0)
        updates, state = optimizer.update(
            gradient, state, params, value=value, grad=gradient, value_fn=loss, shift=1.0, unknown=3
        )
        return optim.apply_updates(params, updates), state, value, gradient

    params, state = np.asarray([3.0, -1.0]), optimizer.init(np.zeros(2))
    for _ in range(6):
        expected, slope = np.sum((params - 1) ** 4), 4 * (params - 1) ** 3
        params, state, value, gradient = step(params, state)
        params = np.asarray(params)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-12)
    assert np.sum((params - 1) ** 4) < 0.1
    with pytest.raises(ArgumentError, match=r"\[value_and_grad_from_state\] the state must have .*, got no value"):
        from_state(params, state=optim.sgd(0.1).init(params))


def test_a_search_stays_where_the_loss_is_not_finite():
    loss = lambda p: tnp.sum(tnp.where(p > 0.5, float("nan"), -p))
    search = optim.scale_by_backtracking_linesearch(3, increase_factor=1e9, max_learning_rate=1e9)
    params = np.asarray([0.25])
    updates, state = search.update(
        np.ones(1), search.init(params), params, value=np.float64(-0.25), grad=-np.ones(1), value_fn=loss
    )
    np.testing.assert_array_equal(updates, [0.0])
    assert np.isinf(float(state.info.decrease_error)) and float(state.learning_rate) == 0


@pytest.mark.slow
def test_updates_of_a_search_have_derivatives():
    search = optim.scale_by_zoom_linesearch(10)

    def final(scale):
        loss = lambda p: tnp.sum(scale * (p - 1) ** 2)
        params = tnp.zeros(2, dtype="float64")
        value, gradient = tvmfun.value_and_grad(loss)(params)
        direction = tree.map(lambda g: -g, gradient)
        updates, _ = search.update(direction, search.init(params), params, value=value, grad=gradient, value_fn=loss)
        return loss(params + updates)

    at, step = np.float64(0.3), 1e-6
    slope = (float(final(at + step)) - float(final(at - step))) / (2 * step)
    np.testing.assert_allclose(tvmfun.grad(final)(at), slope, rtol=1e-6)


def test_lbfgs_finds_the_valley_of_rosenbrock():
    loss = lambda p: tnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)
    optimizer = optim.lbfgs()

    @tvmfun.jit
    def solve(params):
        def step(carry):
            params, state, count = carry
            value, gradient = optim.value_and_grad_from_state(loss)(params, state=state)
            updates, state = optimizer.update(gradient, state, params, value=value, grad=gradient, value_fn=loss)
            return optim.apply_updates(params, updates), state, count + 1

        unfinished = lambda carry: (
            (carry[2] < 200) & ((carry[2] == 0) | (optim.tree.norm(optim.tree.get(carry[1], "grad")) > 1e-8))
        )
        return tvmfun.lax.while_loop(unfinished, step, (params, optimizer.init(params), np.int32(0)))

    params, _, count = solve(np.asarray([-1.2, 1.0, 0.5, -0.3]))
    np.testing.assert_allclose(params, np.ones(4), rtol=1e-8)
    assert int(count) < 100


# -- contrib -------------------------------------------------------------------------------------------------


DIFFERENTIABLE = {
    "lbfgs": lambda: optim.lbfgs(0.1, linesearch=None),
    "muon": lambda: optim.contrib.muon(0.1),
    "prodigy": lambda: optim.contrib.prodigy(estim_lr0=0.1),
    "sam": lambda: optim.contrib.sam(optim.sgd(0.1), optim.contrib.normalize()),
    "schedule_free_adamw": lambda: optim.contrib.schedule_free_adamw(0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_training_has_derivatives(name):
    optimizer = DIFFERENTIABLE[name]()
    rng = np.random.default_rng(0)
    start, target = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))

    @tvmfun.jit
    def trained(weight):
        def step(carry, _):
            params, state = carry
            gradient = tvmfun.grad(lambda p: tnp.sum(weight * (p - target) ** 2 + 0.1 * p**4))(params)
            updates, state = optimizer.update(gradient, state, params)
            return (optim.apply_updates(params, updates), state), None

        (params, _), _ = tvmfun.lax.scan(step, (start, optimizer.init(start)), length=3)
        return tnp.sum(params**2)

    weight, step = np.float64(0.7), 1e-6
    slope = (float(trained(weight + step)) - float(trained(weight - step))) / (2 * step)
    np.testing.assert_allclose(tvmfun.grad(trained)(weight), slope, rtol=1e-5)


@pytest.mark.slow
def test_schedule_free_eval_params():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=3)}
    results = []
    for library in (OPTAX, TVMFUN):
        with x64():
            o = library.optim
            optimizer = o.contrib.schedule_free_sgd(0.1)
            p, state = params, optimizer.init({"w": library.numpy.asarray(params["w"])})
            for _ in range(3):
                updates, state = optimizer.update(p, state, p)
                p = o.apply_updates(p, updates)
            results.append(np.asarray(o.contrib.schedule_free_eval_params(state, p)["w"]))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)
    with pytest.raises(ArgumentError, match=r"\[schedule_free_eval_params\] the state must be a ScheduleFreeState"):
        optim.contrib.schedule_free_eval_params(optim.EmptyState(), params)


def test_sam_without_adversarial_steps_is_the_outer_optimizer():
    results = []
    for optimizer in (optim.adam(0.1), optim.contrib.sam(optim.adam(0.1), optim.sgd(1.0), 1)):
        params = np.asarray([1.0, -2.0])
        state = optimizer.init(params)
        for _ in range(3):
            updates, state = optimizer.update(2 * params, state, params)
            params = np.asarray(optim.apply_updates(params, updates))
        results.append(params)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)


def test_hutchinson_estimates_the_diagonal():
    # Of a diagonal Hessian the estimate is exact, whatever the signs are.
    p = np.asarray([1.0, 2.0, -3.0])
    estimator = optim.contrib.hutchinson_estimator_diag_hessian(random.key(5))
    diagonal, state = estimator.update(p, estimator.init(p), p, obj_fn=lambda p: tnp.sum(p**4))
    np.testing.assert_allclose(diagonal, 12 * p**2, rtol=1e-12)
    assert not np.array_equal(state.key, random.key(5))


@pytest.mark.slow
def test_muon_makes_singular_values_equal():
    rng = np.random.default_rng(0)
    updates = {"tall": rng.normal(size=(7, 4)), "wide": rng.normal(size=(2, 9))}
    transform = optim.contrib.scale_by_muon(((2.0, -1.5, 0.5),) * 30, ns_steps=30)
    new, _ = transform.update(updates, transform.init(updates))
    for name, u in new.items():
        left, _, right = np.linalg.svd(updates[name], full_matrices=False)
        np.testing.assert_allclose(u, left @ right, rtol=1e-6, atol=1e-6)


def test_galore_takes_other_directions_after_a_while():
    transform = optim.contrib.scale_by_galore(1, 2, base_optimizer=optim.identity())
    state = transform.init(np.zeros((3, 2)))
    for step in range(4):
        gradient = np.zeros((3, 2))
        gradient[step // 2, step % 2] = 1.0
        updates, state = transform.update(gradient, state)
        # Directions are those of the first, and then those of the third gradient.
        np.testing.assert_allclose(np.abs(state.projector)[:, 0], np.eye(3)[step // 2], atol=1e-12)
        np.testing.assert_allclose(updates, gradient, atol=1e-12)


@pytest.mark.slow
def test_mistakes_in_contrib_are_explained():
    c, w = optim.contrib, {"w": np.ones((2, 2))}
    with pytest.raises(ArgumentError, match=r"\[muon\] preconditioning must be one of .*, got 'none'"):
        c.muon(0.1, preconditioning="none")
    with pytest.raises(ArgumentError, match=r"\[muon\] ns_coeffs must be one of \['dion', 'standard'\], got 'other'"):
        c.muon(0.1, "other")
    with pytest.raises(ShapeError, match=r"\[muon\] ns_coeffs must have shape \(3,\) or \(n, 3\), got \(2,\)"):
        c.muon(0.1, (1.0, 2.0))
    with pytest.raises(ShapeError, match=r"\[scale_by_muon\] a matrix must have two axes or more, got \(2,\)"):
        c.scale_by_muon().update(np.ones(2), c.scale_by_muon().init(np.ones(2)))
    with pytest.raises(ArgumentError, match=r"\[sam\] sync_period must be at least 1, got 0"):
        c.sam(optim.sgd(1.0), optim.sgd(1.0), 0)
    with pytest.raises(ArgumentError, match=r"\[sam\] the opaque mode needs the gradient, got grad_fn=None"):
        opaque = c.sam(optim.sgd(1.0), optim.sgd(1.0), opaque_mode=True)
        opaque.update(w, opaque.init(w), w)
    with pytest.raises(ArgumentError, match=r"\[dog\] init_step must begin with .*, got 'time'"):
        c.dog(init_step=("time", 1.0))
    with pytest.raises(ArgumentError, match=r"\[reduce_on_plateau\] factor must be between 0 and 1, got 1.5"):
        c.reduce_on_plateau(1.5)
    with pytest.raises(ArgumentError, match=r"\[reduce_on_plateau\] rtol and atol must not be negative"):
        c.reduce_on_plateau(rtol=0.0)
    with pytest.raises(ArgumentError, match=r"\[galore\] rank must be at least 1, got 0"):
        c.galore(0.1, 0)
    with pytest.raises(ArgumentError, match=r"the loss is needed as a function, got obj_fn=None"):
        sophia = c.sophia(0.1)
        sophia.update(w, sophia.init(w), w)
    with pytest.raises(ArgumentError, match=r"\[prodigy\] the parameters are needed"):
        c.prodigy().update(w, c.prodigy().init(w))
    with pytest.raises(ArgumentError, match=r"\[lbfgs\] memory_size must be at least 1, got 0"):
        optim.lbfgs(memory_size=0)
    with pytest.raises(ArgumentError, match=r"initial_guess_strategy must be 'one' or 'keep', got 'two'"):
        optim.scale_by_zoom_linesearch(3, initial_guess_strategy="two")
