"""Every public name of optax, and every optimizer and transformation against optax over 50 steps."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import jax
import numpy as np
import optax
import pytest
from optimizer_cases.functions import FUNCTIONS
from optimizer_cases.table import (
    CASES,
    COMPARED_STEPS,
    CONTRIB,
    ONLY_FLOAT32,
    OPTIMIZERS,
    SEARCHES,
    SINGULAR,
    case_of,
    shapes_of,
    tolerance_of,
)
from optimizer_cases.trajectories import OPTAX, TVMFUN, difference, random_tree, structure, trajectories
from support.oracle import x64

import tvmfun
from tvmfun import optim, tree
from tvmfun.errors import ArgumentError, ShapeError

# Some cases share a program of JAX, which is compiled sooner than several.
SIZE = 8


def groups(names):
    names = sorted(names)
    return [names[i : i + SIZE] for i in range(0, len(names), SIZE)]


# In float32 each optimizer once: options, and the transformations it is made of, are formulas, which float64 proves.
GROUPS = [("float64", group) for group in groups(CASES.keys() - ONLY_FLOAT32)]
PARTS = {name for name in CONTRIB if name.startswith("scale_by_")}
SINGLE = {name for name in (OPTIMIZERS | SEARCHES | CONTRIB).keys() - PARTS if " " not in name}
GROUPS += [("float32", group) for group in [*groups((SINGLE | ONLY_FLOAT32) - {"radam"}), ["radam"]]]


@pytest.mark.quick("float64-scale_by_adam...scale_by_backtracking*")
@pytest.mark.filterwarnings("ignore:.*seed.*:DeprecationWarning")
@pytest.mark.parametrize(("dtype", "names"), GROUPS, ids=[f"{dtype}-{g[0]}...{g[-1]}" for dtype, g in GROUPS])
def test_trajectories(dtype, names):
    cases = {name: case_of(name) for name in names}
    # Of radam's length of the average, a difference of large numbers, optax has five digits in float32.
    with x64(dtype == "float64" or names == ["radam"]):
        expected = trajectories(OPTAX, cases, dtype)
    wrong = {}
    for name, case in cases.items():
        leaves = zip(trajectories(TVMFUN, {name: case}, dtype)[name], expected[name], strict=True)
        if name in SINGULAR:
            leaves = ((np.abs(a), np.abs(b)) for a, b in leaves)
        steps = COMPARED_STEPS.get(name)
        error = max(difference(actual[:steps], oracle[:steps]) for actual, oracle in leaves)
        if not error <= tolerance_of(name, dtype):
            wrong[name] = error
    assert not wrong


@pytest.mark.quick("momo adaptive", "adaptive_grad_clip", "chain", "scale_by_optimistic_gradient")
@pytest.mark.parametrize("name", sorted(CASES))
def test_states_have_the_structure_and_the_names_of_optax(name):
    params = random_tree(shapes_of(name), np.random.default_rng(0), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (CASES[name](o).init(params) for o in (optim, optax))
    assert structure(ours) == structure(theirs)


# -- nothing is skipped --------------------------------------------------------------------------------------

# Tested in test_optim.py, in test_functions.py, or below: schedules, functions, types.
ELSEWHERE = {
    "apply_updates", "constant_schedule", "cosine_decay_schedule", "cosine_onecycle_schedule", "exponential_decay",
    "global_norm", "incremental_update", "init_empty_state", "join_schedules", "linear_onecycle_schedule",
    "linear_schedule", "lookahead", "matrix_inverse_pth_root", "measure_with_ema", "microbatch", "monitor",
    "multi_normal", "nnls", "per_example_global_norm_clip", "per_example_layer_norm_clip", "periodic_update",
    "piecewise_constant_schedule", "piecewise_interpolate_schedule", "polynomial_schedule", "power_iteration",
    "safe_increment", "safe_norm", "safe_root_mean_squares", "scale_gradient", "sgdr_schedule", "skip_large_updates",
    "skip_not_finite", "snapshot", "value_and_grad_from_state", "warmup_constant_schedule",
    "warmup_cosine_decay_schedule", "warmup_exponential_decay_schedule",
}  # fmt: skip
# Names that optax itself calls deprecated, or second names of something above or in optim.tree.
OLD = {
    "bias_correction", "inject_stateful_hyperparams", "multi_transform", "optimistic_adam", "safe_int32_increment",
    "tree_map_params", "update_infinity_moment", "update_moment", "update_moment_per_elem_norm",
}  # fmt: skip
LOSSES = {name for name in dir(optax) if getattr(getattr(optax, name), "__module__", "").startswith("optax.losses")}
# There are no complex numbers here, and keys are plain arrays.
COMPLEX = {"conj", "real", "split_real_and_imaginary", "unwrap_random_key_data"}
MODULES = {
    "tree": FUNCTIONS["tree"],
    "projections": FUNCTIONS["projections"],
    "second_order": {"fisher_diag", "hessian_diag", "hvp"},
    "contrib": {name.split()[0] for name in CONTRIB}
    | {"hutchinson_estimator_diag_hessian", "schedule_free_eval_params"},
}


def functions_of(module):
    members = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {name for name, f in members.items() if callable(f) and not inspect.isclass(f) and name.islower()}


def test_every_name_of_optax_is_in_the_table():
    built = {name.split()[0] for name in CASES.keys() - CONTRIB.keys()} | ELSEWHERE
    assert functions_of(optax) - LOSSES == (built | OLD) - {"MultiSteps"}
    assert built <= set(optim.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_its_modules_is_in_a_table(module):
    ours, theirs = getattr(optim, module), getattr(optax, module)
    assert MODULES[module] == functions_of(theirs) - COMPLEX
    assert MODULES[module] <= set(ours.__all__)


NAMES = [("", name) for name in sorted({name.split()[0] for name in CASES.keys() - CONTRIB.keys()} | ELSEWHERE)]
NAMES += [(module, name) for module, names in MODULES.items() for name in sorted(names)]
# Left out: printing, precisions of products, deprecated seeds, arguments that do nothing here.
LEFT_OUT = {"args", "associative_reduction", "mask_compatible_extra_args", "precision", "print_win_rate_every_n_steps"}
LEFT_OUT |= {"seed", "transforms", "verbose"}


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_arguments_have_the_names_and_the_order_of_optax(module, name):
    ours, theirs = (
        inspect.signature(getattr(getattr(o, module) if module else o, name)).parameters for o in (optim, optax)
    )
    left_out = LEFT_OUT | ({"nesterov"} if name in ("adam", "nadam", "adamw", "nadamw") else set())
    assert [p for p in ours if p not in left_out] == [p for p in theirs if p not in left_out]


# -- wrappers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_accumulated_batches_equal_one_large_batch():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 5)), rng.normal(size=(24,))

    def loss(w, x, y):
        return ((x @ w - y) ** 2).mean()

    gradient = tvmfun.jit(tvmfun.grad(loss))
    large, small = optim.adamw(0.1), optim.MultiSteps(optim.adamw(0.1), 4, accumulator_dtype="float64")
    w = v = np.zeros(5)
    state, states = large.init(w), small.init(v)
    update = tvmfun.jit(small.update)
    for _ in range(3):
        updates, state = large.update(gradient(w, x, y), state, w)
        w = optim.apply_updates(w, updates)
        for part in np.split(np.arange(24), 4):
            assert not bool(small.has_updated(states)) or int(states.mini_step) == 0
            updates, states = update(gradient(v, x[part], y[part]), states, v)
            v = optim.apply_updates(v, updates)
        assert bool(small.has_updated(states))
        np.testing.assert_allclose(np.asarray(v), np.asarray(w), rtol=1e-12)


def test_injected_hyperparameters_need_no_other_program():
    traces = []

    @tvmfun.jit
    def step(grads, state):
        traces.append(1)
        return optimizer.update(grads, state)

    optimizer = optim.inject_hyperparams(optim.sgd)(0.5)
    grads = {"w": np.ones(3, "float32")}
    state = optimizer.init(grads)
    for rate in (0.5, 0.25, 0.125):
        state.hyperparams["learning_rate"] = np.float32(rate)
        updates, state = step(grads, state)
        np.testing.assert_array_equal(updates["w"], np.full(3, -rate))
    assert len(traces) == 1 and int(state.count) == 3


@pytest.mark.parametrize("values", [[1, np.nan, 2, np.inf, np.nan, np.nan, 3]])
def test_apply_if_finite_drops_what_is_not_finite(values):
    states, params = {}, {}
    for o, jit in ((optim, tvmfun.jit), (optax, jax.jit)):
        optimizer = o.apply_if_finite(o.adam(0.1), 2)
        update = jit(optimizer.update)
        w = np.ones(2, "float32")
        state = optimizer.init(w)
        seen = []
        for value in values:
            updates, state = update(np.asarray([value, 1], "float32"), state, w)
            w = o.apply_updates(w, updates)
            seen.append((int(state.notfinite_count), bool(state.last_finite), int(state.total_notfinite)))
        states[o], params[o] = seen, np.asarray(w)
    assert states[optim] == states[optax]
    np.testing.assert_allclose(params[optim], params[optax], rtol=1e-6)


@pytest.mark.slow
def test_multi_steps_skips_what_is_not_finite():
    for o in (optim, optax):
        optimizer = o.MultiSteps(o.sgd(1.0), 2, should_skip_update_fn=o.skip_not_finite)
        state = optimizer.init(np.zeros(2, "float32"))
        for value in (1, np.nan, 3):
            updates, state = optimizer.update(np.asarray([value, 1], "float32"), state)
        np.testing.assert_array_equal(updates, [-2, -1])
        assert int(state.gradient_step) == 1 and int(state.skip_state["num_not_finite"]) == 0


@pytest.mark.parametrize("reset", [False, True])
def test_lookahead(reset):
    results = []
    for o, jit in ((optax, jax.jit), (optim, tvmfun.jit)):
        optimizer = o.lookahead(o.adam(0.1), 3, 0.5, reset)
        params = o.LookaheadParams.init_synced({"w": np.ones(3, "float32")})
        state, update = optimizer.init(params), jit(optimizer.update)
        for step in range(8):
            updates, state = update({"w": np.arange(3, dtype="float32") - step}, state, params)
            params = o.apply_updates(params, updates)
        results.append([np.asarray(leaf) for leaf in tree.leaves((tuple(params), tuple(state)))])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("uniform", [True, False])
def test_per_example_clipping(uniform):
    rng = np.random.default_rng(0)
    grads = {"w": rng.normal(size=(6, 3, 2)).astype("float32"), "b": rng.normal(size=(6, 4)).astype("float32")}
    grads["w"][2], grads["b"][2] = 0, 0
    for function, *arguments in (
        ("per_example_global_norm_clip", 2.5),
        ("per_example_layer_norm_clip", 2.5, uniform),
    ):
        theirs, ours = (jax.tree.leaves(getattr(o, function)(grads, *arguments)) for o in (optax, optim))
        for actual, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.quick("x2", "x1")
@pytest.mark.parametrize("x", [[3.0, 4.0], [0.0, 0.0], [1e-4, 0.0]])
def test_safe_norms_have_a_gradient_at_zero(x):
    x = np.asarray(x, "float32")
    for function in ("safe_norm", "safe_root_mean_squares"):
        ours, theirs = (getattr(o, function) for o in (optim, optax))
        np.testing.assert_allclose(ours(x, 0.1), theirs(x, 0.1), rtol=1e-6)
        actual = tvmfun.grad(lambda x, f=ours: f(x, 0.1))(x)
        np.testing.assert_allclose(actual, jax.grad(lambda x, f=theirs: f(x, 0.1))(x), rtol=1e-6)


def test_trees_that_follow_others():
    new, old = {"w": np.arange(3, dtype="float32"), "b": None}, {"w": np.ones(3, "float32"), "b": None}
    expected: Any = optax.incremental_update(new, old, 0.25)
    np.testing.assert_allclose(optim.incremental_update(new, old, 0.25)["w"], expected["w"])
    for step in (0, 1, 2):
        expected = optax.periodic_update(new, old, step, 2)
        np.testing.assert_array_equal(optim.periodic_update(new, old, step, 2)["w"], expected["w"])


@pytest.mark.slow
def test_mistakes_are_explained():
    grads = {"w": np.ones(2, "float32")}
    with pytest.raises(ArgumentError, match=r"\[partition\] the labels must be among 'a'"):
        optim.partition({"a": optim.sgd(1.0)}, {"w": "b"}).init(grads)
    with pytest.raises(ArgumentError, match=r"\[inject_hyperparams\] static_args must be among .*, got \['rate'\]"):
        optim.inject_hyperparams(optim.sgd, "rate")
    with pytest.raises(ArgumentError, match=r"\[named_chain\] the names must differ"):
        optim.named_chain(("a", optim.identity()), ("a", optim.identity()))
    with pytest.raises(ArgumentError, match=r"\[MultiSteps\] every_k_schedule must be at least 1, got 0"):
        optim.MultiSteps(optim.sgd(1.0), 0)
    with pytest.raises(ArgumentError, match=r"\[lookahead\] sync_period must be at least 1, got 0"):
        optim.lookahead(optim.sgd(1.0), 0, 0.5)
    with pytest.raises(ArgumentError, match=r"\[scale_by_lion\] mode must be one of 'hard', 'smooth', 'refined'"):
        optim.scale_by_lion(mode="soft")
    with pytest.raises(ArgumentError, match=r"\[polyak_sgd\] variant must be 'sps' or 'sps\+', got 'sps-'"):
        optim.polyak_sgd(variant="sps-")
    with pytest.raises(ArgumentError, match=r"\[scale_by_trust_ratio\] the parameters are needed"):
        optim.scale_by_trust_ratio().update(grads, optim.EmptyState())
    with pytest.raises(ShapeError, match=r"\[per_example_global_norm_clip\] .* must share their first axis"):
        optim.per_example_global_norm_clip({"w": np.ones((2, 1)), "b": np.ones((3, 1))}, 1.0)
    with pytest.raises(ShapeError, match=r"\[adaptive_grad_clip.update\] .* more than five axes"):
        optim.adaptive_grad_clip(1.0).update(np.ones((2,) * 6), optim.EmptyState(), np.ones((2,) * 6))
