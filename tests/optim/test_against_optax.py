"""Every public name of optax, and every optimizer and transformation against optax over 50 steps."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import jax
import numpy as np
import optax
import pytest
from oracle import x64

import tvmfun
from tvmfun import optim, tree
from tvmfun.errors import ArgumentError, ShapeError

STEPS = 50
SHAPES = {"scalar": (), "layer": {"bias": (5,), "kernel": (4, 3)}, "conv": (2, 3, 2, 4)}
MASK = {"scalar": False, "layer": {"bias": False, "kernel": True}, "conv": True}
LABELS = {"scalar": "a", "layer": "b", "conv": "c"}
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def schedule(o):
    return o.exponential_decay(0.1, transition_steps=10, decay_rate=0.5)


# For each name what makes the same optimizer from optax and from tvmfun.optim: the first case is called like the
# name, and further ones have a suffix.
OPTIMIZERS = {
    "adabelief": lambda o: o.adabelief(0.01),
    "adabelief nesterov": lambda o: o.adabelief(0.01, eps=1e-8, nesterov=True),
    "adadelta": lambda o: o.adadelta(1.0, weight_decay=0.01),
    "adafactor": lambda o: o.adafactor(0.01, min_dim_size_to_factor=2),
    "adafactor options": lambda o: o.adafactor(
        None, 3, 0.7, -1, momentum=0.9, weight_decay_rate=0.01, weight_decay_mask=MASK, clipping_threshold=None
    ),
    "adagrad": lambda o: o.adagrad(0.1),
    "adam": lambda o: o.adam(0.01),
    "adamax": lambda o: o.adamax(0.01),
    "adamaxw": lambda o: o.adamaxw(0.01, mask=MASK),
    "adamw": lambda o: o.adamw(0.01, mask=MASK),
    "adan": lambda o: o.adan(0.01, weight_decay=0.1),
    "amsgrad": lambda o: o.amsgrad(0.01),
    "amsgrad biased": lambda o: o.amsgrad(0.01, bias_correction_mu=False, bias_correction_nu=False),
    "fromage": lambda o: o.fromage(0.01),
    "fromage schedule": lambda o: o.fromage(schedule(o)),
    "lamb": lambda o: o.lamb(0.01, weight_decay=0.1),
    "lars": lambda o: o.lars(0.1, weight_decay=0.1, trust_ratio_mask=MASK),
    "lion": lambda o: o.lion(0.01),
    "nadam": lambda o: o.nadam(0.01),
    "nadamw": lambda o: o.nadamw(0.01),
    "noisy_sgd": lambda o: o.noisy_sgd(0.1, key=7),
    "novograd": lambda o: o.novograd(0.01, weight_decay=0.1),
    "optimistic_adam_v2": lambda o: o.optimistic_adam_v2(0.01, alpha=0.9, beta=0.5),
    "optimistic_gradient_descent": lambda o: o.optimistic_gradient_descent(0.1, beta=0.5),
    "polyak_sgd": lambda o: o.polyak_sgd(0.1, f_min=-2.0, eps=0.1),
    "polyak_sgd plus": lambda o: o.polyak_sgd(0.1, scaling=0.5, variant="sps+"),
    "radam": lambda o: o.radam(0.01),
    "radam nesterov": lambda o: o.radam(0.01, b2=0.9, threshold=4.5, nesterov=True),
    "rmsprop": lambda o: o.rmsprop(0.01),
    "rmsprop momentum": lambda o: o.rmsprop(0.01, eps_in_sqrt=False, momentum=0.9, nesterov=True, bias_correction=True),
    "rmsprop centered": lambda o: o.rmsprop(0.01, centered=True, initial_scale=1.0),
    "rmsprop centered unbiased": lambda o: o.rmsprop(0.01, eps=0.1, centered=True, bias_correction=True),
    "rprop": lambda o: o.rprop(0.01),
    "sgd": lambda o: o.sgd(schedule(o), momentum=0.9, nesterov=True),
    "sign_sgd": lambda o: o.sign_sgd(0.01),
    "signum": lambda o: o.signum(0.01),
    "sm3": lambda o: o.sm3(0.1),
    "yogi": lambda o: o.yogi(0.01),
}
TRANSFORMS = {
    "adaptive_grad_clip": lambda o: o.adaptive_grad_clip(0.1),
    "adaptive_grad_clip axis": lambda o: o.masked(o.adaptive_grad_clip(0.1, axis=-1), MASK),
    "add_decayed_weights": lambda o: o.add_decayed_weights(0.1),
    "add_noise": lambda o: o.add_noise(0.1, 0.5, 3),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adam(0.1), 2),
    "apply_every": lambda o: o.apply_every(3),
    "centralize": lambda o: o.centralize(),
    "chain": lambda o: o.chain(o.scale_by_adam(), o.scale(-0.1)),
    "clip": lambda o: o.clip(0.5),
    "clip_by_block_rms": lambda o: o.clip_by_block_rms(0.5),
    "clip_by_global_norm": lambda o: o.clip_by_global_norm(2.5),
    "conditionally_mask": lambda o: o.conditionally_mask(o.adam(0.1), lambda step: step % 3 == 1),
    "conditionally_transform": lambda o: o.conditionally_transform(o.adam(0.1), lambda step: step % 3 == 1),
    "ema": lambda o: o.ema(0.9),
    "ema biased": lambda o: o.ema(0.9, debias=False),
    "flatten": lambda o: o.flatten(o.adam(0.1)),
    "freeze": lambda o: o.freeze(MASK),
    "identity": lambda o: o.identity(),
    "inject_hyperparams": lambda o: o.inject_hyperparams(o.adamw)(schedule(o), b2=0.9, weight_decay=0.1),
    "inject_hyperparams static": lambda o: o.inject_hyperparams(o.sgd, "momentum", "float32")(0.1, momentum=0.9),
    "keep_params_nonnegative": lambda o: o.keep_params_nonnegative(),
    "MultiSteps": lambda o: o.MultiSteps(o.adam(0.1), 4, accumulator_dtype="float64"),
    "MultiSteps sum": lambda o: o.MultiSteps(
        o.sgd(0.1, momentum=0.9),
        lambda step: 2 + step % 3,
        False,
        functools.partial(o.skip_large_updates, max_squared_norm=50.0),
        accumulator_dtype="float64",
    ),
    "masked": lambda o: o.masked(o.scale_by_adam(), MASK),
    "named_chain": lambda o: o.named_chain(("z", o.scale_by_adam()), ("a", o.scale(-0.1))),
    "normalize_by_update_norm": lambda o: o.normalize_by_update_norm(0.5),
    "partition": lambda o: o.partition({"a": o.adam(0.1), "b": o.sgd(0.1, momentum=0.9), "c": o.set_to_zero()}, LABELS),
    "partition function": lambda o: o.partition({"a": o.adam(0.1), "b": o.sgd(1.0), "c": o.sgd(0.1)}, lambda p: LABELS),
    "scale": lambda o: o.scale(-0.1),
    "scale_by_adadelta": lambda o: o.scale_by_adadelta(),
    "scale_by_adam": lambda o: o.scale_by_adam(),
    "scale_by_adamax": lambda o: o.scale_by_adamax(),
    "scale_by_adan": lambda o: o.scale_by_adan(),
    "scale_by_amsgrad": lambda o: o.scale_by_amsgrad(),
    "scale_by_belief": lambda o: o.scale_by_belief(),
    "scale_by_distance_over_gradients": lambda o: o.scale_by_distance_over_gradients(0.1),
    "scale_by_factored_rms": lambda o: o.scale_by_factored_rms(
        min_dim_size_to_factor=2, decay_rate_fn=lambda count, rate: 0.9 + 0.01 * rate
    ),
    "scale_by_learning_rate": lambda o: o.scale_by_learning_rate(0.1, flip_sign=False),
    "scale_by_lion": lambda o: o.scale_by_lion(),
    "scale_by_lion smooth": lambda o: o.scale_by_lion(mode="smooth", smooth_beta=2.0),
    "scale_by_lion refined": lambda o: o.scale_by_lion(mode="refined"),
    "scale_by_novograd": lambda o: o.scale_by_novograd(),
    "scale_by_optimistic_gradient": lambda o: o.scale_by_optimistic_gradient(),
    "scale_by_param_block_norm": lambda o: o.chain(o.scale_by_param_block_norm(), o.scale(-0.01)),
    "scale_by_param_block_rms": lambda o: o.scale_by_param_block_rms(),
    "scale_by_polyak": lambda o: o.scale_by_polyak(),
    "scale_by_radam": lambda o: o.scale_by_radam(),
    "scale_by_rms": lambda o: o.scale_by_rms(),
    "scale_by_rprop": lambda o: o.scale_by_rprop(0.1),
    "scale_by_rss": lambda o: o.scale_by_rss(),
    "scale_by_schedule": lambda o: o.scale_by_schedule(schedule(o)),
    "scale_by_sign": lambda o: o.scale_by_sign(),
    "scale_by_sm3": lambda o: o.scale_by_sm3(0.8, 0.9),
    "scale_by_stddev": lambda o: o.scale_by_stddev(eps=1e-3),
    "scale_by_trust_ratio": lambda o: o.scale_by_trust_ratio(0.1, 0.5, 0.01),
    "scale_by_yogi": lambda o: o.scale_by_yogi(),
    "selective_transform": lambda o: o.selective_transform(o.adam(0.1), freeze_mask=MASK),
    "set_to_zero": lambda o: o.set_to_zero(),
    "stateless": lambda o: o.stateless(lambda updates, params: updates),
    "stateless_with_tree_map": lambda o: o.stateless_with_tree_map(lambda u, p: u - 0.1 * p),
    "trace": lambda o: o.trace(0.9),
    "with_extra_args_support": lambda o: o.with_extra_args_support(o.scale(0.5)),
    "zero_nans": lambda o: o.zero_nans(),
}
CASES = OPTIMIZERS | TRANSFORMS
# optax has no accumulator for an array without axes, or makes an axis.
NO_SCALAR = {"sm3", "scale_by_sm3", "scale_by_distance_over_gradients"}
# Factors that optax computes of the count in float32 whatever the dtype of the parameters, and we do, too.
ROUNDED = dict.fromkeys(
    ("adafactor", "adafactor options", "inject_hyperparams", "sgd", "scale_by_schedule", "noisy_sgd", "add_noise"), 2e-7
) | {"fromage schedule": 2e-6}


def random_tree(shapes: dict, rng: np.random.Generator, dtype: str) -> dict:
    return {
        k: random_tree(s, rng, dtype) if isinstance(s, dict) else np.asarray(rng.normal(size=s)).astype(dtype)
        for k, s in shapes.items()
    }


def shapes_of(name: str) -> dict:
    return {k: s for k, s in SHAPES.items() if k != "scalar"} if name in NO_SCALAR else SHAPES


def trajectory(name: str, o: Any, jit: Any, dtype: str) -> list[np.ndarray]:
    """The leaves of params and state, stacked over the steps."""
    transform = CASES[name](o)
    update = o.with_extra_args_support(transform).update
    rng = np.random.default_rng(0)
    shapes = shapes_of(name)
    params = random_tree(shapes, rng, dtype)
    carry = params, transform.init(params)

    @jit
    def step(carry, grads, value):
        params, state = carry
        updates, state = update(grads, state, params, value=value)
        return o.apply_updates(params, updates), state

    visited = []
    for _ in range(STEPS):
        carry = step(carry, random_tree(shapes, rng, dtype), np.asarray(rng.normal()).astype(dtype))
        # The key of optax has a dtype of its own.
        leaves = jax.tree.leaves((carry[0], tree.leaves(carry[1])))
        visited.append([np.array(jax.random.key_data(x) if is_key(x) else x) for x in leaves])
    return [np.stack(leaf) for leaf in zip(*visited, strict=True)]


def is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


NAMES = sorted(CASES)


# In float32 the optimizers only, which the transformations are parts of: each case is compiled twice.
@pytest.mark.parametrize(("name", "dtype"), [(n, "float64") for n in NAMES] + [(n, "float32") for n in OPTIMIZERS])
def test_trajectory(name, dtype):
    # Of radam's length of the average, a difference of large numbers, optax has five digits in float32.
    with x64(dtype == "float64" or "radam" in name):
        expected = trajectory(name, optax, jax.jit, dtype)
    # Donated: the state stays in its place.
    actual = trajectory(name, optim, functools.partial(tvmfun.jit, donate_argnums=0), dtype)
    tolerance = max(TOLERANCE[dtype], ROUNDED.get(name, 0))
    assert len(actual) == len(expected) > 0
    for leaf, oracle in zip(actual, expected, strict=True):
        assert leaf.shape == oracle.shape
        leaf, oracle = leaf.astype("float64"), oracle.astype("float64")
        assert np.isfinite(oracle).all()
        # The largest error is small beside the largest element; a single element may pass close to zero.
        assert np.abs(leaf - oracle).max() <= tolerance * np.abs(oracle).max()


@pytest.mark.parametrize("name", NAMES)
def test_state_structure_and_names(name):
    params = random_tree(shapes_of(name), np.random.default_rng(0), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (CASES[name](o).init(params) for o in (optim, optax))
    shapes = [
        repr(jax.tree.map(lambda x: (2,) if is_key(x) else np.shape(x), state, is_leaf=lambda x: hasattr(x, "dtype")))
        for state in (ours, theirs)
    ]
    assert shapes[0] == shapes[1]


# -- nothing is skipped --------------------------------------------------------------------------------------

# Tested in test_optim.py or below: schedules, functions, types.
ELSEWHERE = {
    "apply_updates", "constant_schedule", "cosine_decay_schedule", "cosine_onecycle_schedule", "exponential_decay",
    "global_norm", "incremental_update", "init_empty_state", "join_schedules", "linear_onecycle_schedule",
    "linear_schedule", "lookahead", "per_example_global_norm_clip", "per_example_layer_norm_clip", "periodic_update",
    "piecewise_constant_schedule", "piecewise_interpolate_schedule", "polynomial_schedule", "safe_increment",
    "safe_norm", "safe_root_mean_squares", "sgdr_schedule", "skip_large_updates", "skip_not_finite",
    "warmup_constant_schedule", "warmup_cosine_decay_schedule", "warmup_exponential_decay_schedule",
}  # fmt: skip
# Names that optax itself calls deprecated, or second names of something above.
OLD = {"inject_stateful_hyperparams", "multi_transform", "optimistic_adam", "safe_int32_increment"}
# Functions of optax that are not built yet.
NOT_YET = {
    "bias_correction", "lbfgs", "matrix_inverse_pth_root", "measure_with_ema", "microbatch", "monitor", "multi_normal",
    "nnls", "power_iteration", "scale_by_backtracking_linesearch", "scale_by_lbfgs", "scale_by_zoom_linesearch",
    "scale_gradient", "snapshot", "tree_map_params", "update_infinity_moment", "update_moment",
    "update_moment_per_elem_norm", "value_and_grad_from_state",
}  # fmt: skip
LOSSES = {name for name in dir(optax) if getattr(getattr(optax, name), "__module__", "").startswith("optax.losses")}


def test_every_name_of_optax_is_in_the_table():
    built = {name.split()[0] for name in CASES} | ELSEWHERE
    functions = {
        name
        for name in dir(optax)
        if (not name.startswith("_") and inspect.isfunction(getattr(optax, name)))
        or name in ("nadam", "nadamw", "bias_correction")
    }
    assert functions - LOSSES == (built | OLD | NOT_YET) - {"MultiSteps"}
    assert built <= set(optim.__all__) and not NOT_YET & set(optim.__all__)


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in CASES} | ELSEWHERE))
def test_arguments_have_the_names_and_the_order_of_optax(name):
    ours, theirs = (inspect.signature(getattr(o, name)).parameters for o in (optim, optax))
    left_out = {"mask_compatible_extra_args", "seed", "args", "transforms"}
    if name in ("adam", "nadam", "adamw", "nadamw"):
        left_out |= {"nesterov"}
    assert [p for p in ours if p not in left_out] == [p for p in theirs if p not in left_out]


# -- wrappers ------------------------------------------------------------------------------------------------


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
    np.testing.assert_allclose(
        optim.incremental_update(new, old, 0.25)["w"], optax.incremental_update(new, old, 0.25)["w"]
    )
    for step in (0, 1, 2):
        np.testing.assert_array_equal(
            optim.periodic_update(new, old, step, 2)["w"], optax.periodic_update(new, old, step, 2)["w"]
        )


def test_mistakes_are_explained():
    grads = {"w": np.ones(2, "float32")}
    with pytest.raises(ArgumentError, match=r"\[partition\] the labels must be among \["):
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
    with pytest.raises(ArgumentError, match=r"\[scale_by_polyak\] variant must be 'sps' or 'sps\+', got 'sps-'"):
        optim.polyak_sgd(variant="sps-")
    with pytest.raises(ArgumentError, match=r"\[scale_by_trust_ratio\] the parameters are needed"):
        optim.scale_by_trust_ratio().update(grads, optim.EmptyState())
    with pytest.raises(ShapeError, match=r"\[per_example_global_norm_clip\] .* must share their first axis"):
        optim.per_example_global_norm_clip({"w": np.ones((2, 1)), "b": np.ones((3, 1))}, 1.0)
    with pytest.raises(ShapeError, match=r"\[adaptive_grad_clip\] .* more than five axes"):
        optim.adaptive_grad_clip(1.0).update(np.ones((2,) * 6), optim.EmptyState(), np.ones((2,) * 6))
