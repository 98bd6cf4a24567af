"""Optimizers and schedules against optax, which is the oracle for numbers, dtypes and state."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optimizer_cases.trajectories import OPTAX, TVMFUN, Case, difference, random_tree, trajectories
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, optim, random, tree
from tvmfun.errors import ArgumentError, DtypeError, ShapeError, TreeError

SHAPES = {"scalar": (), "layer": {"bias": (5,), "kernel": (3, 4)}, "empty": (0, 2)}
MASK = {"scalar": False, "layer": {"bias": False, "kernel": True}, "empty": True}


def _only_matrices(params):
    # Used with either library, and both know dicts.
    return {k: _only_matrices(v) if isinstance(v, dict) else len(np.shape(v)) > 1 for k, v in params.items()}


def _schedule(lib):
    return lib.exponential_decay(0.1, transition_steps=10, decay_rate=0.5)


# Each takes the module, optax or tvmfun.optim, and makes the same optimizer from it.
OPTIMIZERS = {
    "sgd": lambda o: o.sgd(0.1),
    "sgd_momentum": lambda o: o.sgd(0.1, momentum=0.9),
    "sgd_nesterov_schedule": lambda o: o.sgd(_schedule(o), momentum=0.9, nesterov=True),
    "sgd_accumulator": lambda o: o.sgd(0.1, momentum=0.9, accumulator_dtype="float32"),
    "adam": lambda o: o.adam(1e-2),
    "adam_options": lambda o: o.adam(1e-2, b1=0.8, b2=0.99, eps=1e-6, eps_root=1e-7, nesterov=True),
    "adam_schedule": lambda o: o.adam(o.cosine_decay_schedule(1e-2, 40)),
    "adamw_mask": lambda o: o.adamw(1e-2, weight_decay=0.1, mask=MASK, nesterov=True),
    "adamw_mask_function": lambda o: o.adamw(1e-2, weight_decay=0.1, mask=_only_matrices),
    "adamw_schedule": lambda o: o.adamw(1e-2, weight_decay=o.linear_schedule(0.1, 0.0, 30)),
    "adadelta": lambda o: o.adadelta(1.0),
    "adadelta_no_rate": lambda o: o.adadelta(rho=0.8, eps=1e-4, weight_decay=0.01, weight_decay_mask=MASK),
    "clipped": lambda o: o.chain(o.clip(1.0), o.clip_by_global_norm(2.5), o.trace(0.9), o.scale(-0.1)),
    "masked": lambda o: o.chain(o.masked(o.scale_by_adam(), MASK), o.scale(-0.1)),
    "ascent": lambda o: o.chain(o.identity(), o.scale_by_adam(), o.scale_by_learning_rate(0.1, flip_sign=False)),
}


def _assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert actual.dtype == expected.dtype
    assert difference(actual, expected) <= tolerance


@pytest.mark.slow
def test_trajectories_are_optax_trajectories():
    cases = {name: Case(make, SHAPES) for name, make in OPTIMIZERS.items()}
    with x64():
        expected = trajectories(OPTAX, cases, "float64")
    wrong = {}
    for name, case in cases.items():
        actual = trajectories(TVMFUN, {name: case}, "float64")[name]
        assert [leaf.dtype for leaf in actual] == [leaf.dtype for leaf in expected[name]], name
        error = max(difference(a, b) for a, b in zip(actual, expected[name], strict=True))
        # Both compute schedules of the int32 count in float32, whatever the dtype of the params.
        if not error <= (1e-7 if "schedule" in name else 1e-12):
            wrong[name] = error
    assert not wrong


def _two_steps(transform: Any, apply_updates: Any, jit: Any, dtype: Any) -> list:
    """The leaves of params and state after two calls of a step, which is compiled by itself or not at all."""
    rng = np.random.default_rng(0)
    params = random_tree(SHAPES, rng, dtype)
    state = transform.init(params)

    @jit
    def step(params, state, grads):
        updates, state = transform.update(grads, state, params)
        return apply_updates(params, updates), state

    for _ in range(2):
        params, state = step(params, state, random_tree(SHAPES, rng, dtype))
    return [np.asarray(leaf) for leaf in jax.tree.leaves((params, tree.leaves(state)))]


@pytest.mark.quick("adam_options", "adamw_mask")
@pytest.mark.parametrize("name", ["adadelta", "adam_options", "adamw_mask", "clipped", "sgd_nesterov_schedule"])
def test_eager_steps_equal_jitted_ones(name):
    transform = OPTIMIZERS[name](optim)
    eager = _two_steps(transform, optim.apply_updates, lambda f: f, "float32")
    jitted = _two_steps(transform, optim.apply_updates, functools.partial(tvmfun.jit, donate_argnums=(0, 1)), "float32")
    for leaf, oracle in zip(eager, jitted, strict=True):
        _assert_close(leaf, oracle, 1e-6)


@pytest.mark.quick("<lambda>4-float16", "<lambda>2-float16", "<lambda>3-float16")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "make",
    [
        lambda o: o.adamw(_schedule(o), weight_decay=o.linear_schedule(0.1, 0.0, 5)),
        lambda o: o.adam(1e-2, mu_dtype="float32"),
        lambda o: o.sgd(0.1, momentum=0.9, nesterov=True, accumulator_dtype="float32"),
        lambda o: o.adadelta(1.0),
        lambda o: o.chain(o.clip(1.0), o.clip_by_global_norm(0.5)),
    ],
)
def test_half_precision_keeps_its_dtypes(make, dtype):
    expected = _two_steps(make(optax), optax.apply_updates, jax.jit, dtype)
    actual = _two_steps(make(optim), optim.apply_updates, tvmfun.jit, dtype)
    for leaf, oracle in zip(actual, expected, strict=True):
        _assert_close(leaf, oracle, 0.03)  # subnormal numbers in float16 are 0.025 apart


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_updates_keep_the_dtype_of_the_gradients(dtype):
    optimizer = optim.adamw(1e-2, weight_decay=0.1)
    params = {"w": tnp.ones((2,), dtype=dtype)}
    updates, _ = tvmfun.jit(optimizer.update)(params, optimizer.init(params), params)
    assert updates["w"].dtype == params["w"].dtype


def test_hyperparameters_may_be_traced():
    @tvmfun.jit
    def step(rate, momentum, grads):
        optimizer = optim.sgd(rate, momentum=momentum)
        state = optimizer.init(grads)
        for _ in range(2):
            updates, state = optimizer.update(grads, state)
        return updates

    updates = step(np.float32(0.5), np.float32(0.25), {"w": np.ones(3, "float32")})
    np.testing.assert_allclose(updates["w"], np.full(3, -0.625), rtol=1e-6)


def test_a_training_step_learns():
    x = np.linspace(-1, 1, 32, dtype="float32")[:, None]
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1))
    params = {"w": np.zeros((1, 1), "float32"), "b": np.zeros(1, "float32")}

    def loss_fn(params):
        return tnp.mean(tnp.square(x @ params["w"] + params["b"] - (3 * x - 1)))

    @tvmfun.jit
    def step(params, state):
        loss, grads = tvmfun.value_and_grad(loss_fn)(params)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, loss

    state = optimizer.init(params)
    losses = []
    for _ in range(150):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    assert losses[-1] < 1e-3 < losses[0]


# -- pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("max_norm", [1.0, math.inf])
def test_clip_by_global_norm(scale, max_norm):
    grads = tree.map(lambda g: scale * g, random_tree(SHAPES, np.random.default_rng(1), "float32"))
    clip = optim.clip_by_global_norm(max_norm)
    ours = tree.leaves(tvmfun.jit(clip.update)(grads, clip.init(grads))[0])
    theirs = jax.tree.leaves(optax.clip_by_global_norm(max_norm).update(grads, optax.EmptyState())[0])
    for leaf, oracle in zip(ours, theirs, strict=True):
        _assert_close(np.asarray(leaf), np.asarray(oracle), 1e-6)


def test_zero_gradients_are_clipped_without_a_nan():
    clip = optim.clip_by_global_norm(1.0)
    with tvmfun.debug_nans():
        updates, _ = tvmfun.jit(clip.update)({"w": np.zeros(3, "float32")}, optim.EmptyState())
    assert not np.asarray(updates["w"]).any()


def test_global_norm_of_an_empty_tree_is_zero():
    assert float(optim.global_norm({})) == 0


def test_none_stands_for_no_update():
    optimizer = optim.adam(0.1)
    params = {"w": np.ones(2, "float32"), "frozen": np.ones(2, "float32"), "absent": None}
    grads = {"w": np.ones(2, "float32"), "frozen": None, "absent": None}
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    new = optim.apply_updates(params, updates)
    assert updates["frozen"] is None and new["absent"] is None
    np.testing.assert_allclose(new["w"], 0.9 * np.ones(2), rtol=1e-5)
    np.testing.assert_array_equal(new["frozen"], params["frozen"])


@pytest.mark.parametrize("param", ["bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("update", ["float32", "float64"])
def test_apply_updates_keeps_the_dtypes_of_the_params(param, update):
    params, updates = np.asarray([1, 2]).astype(jnp.dtype(param)), np.asarray([0.5, 1.25], update)
    with x64(True):
        expected = np.asarray(optax.apply_updates(params, updates))
    actual = np.asarray(optim.apply_updates(params, updates))
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def test_apply_updates_names_what_does_not_fit():
    params = {"layer": {"w": np.ones(2, "float32"), "b": np.ones(1, "float32")}}
    with pytest.raises(TreeError, match=r"^\[apply_updates\] the updates must .* Try adding \['layer'\]\['b'\]"):
        optim.apply_updates(params, {"layer": {"w": np.ones(2, "float32")}})
    with pytest.raises(ShapeError, match=r"\['layer'\]\['b'\] must fit its parameter, float32\[1\], got float32\[3\]"):
        optim.apply_updates(params, {"layer": {"w": np.ones(2, "float32"), "b": np.ones(3, "float32")}})


def test_counts_do_not_overflow():
    for count in (0, 41, 2**31 - 2, 2**31 - 1):
        count = np.int32(count)
        result = optim.safe_increment(count)
        assert result.dtype == "int32" and int(result) == int(np.asarray(optax.safe_increment(count)))
    assert float(optim.safe_increment(np.float32(1.5))) == 2.5
    with pytest.raises(DtypeError, match=r"\[safe_increment\] .*, got bool"):
        optim.safe_increment(np.bool_(True))


def test_a_module_of_bools_is_a_mask_and_no_function():
    @tree.register_dataclass
    @dataclass(frozen=True)
    class Scale:
        factor: Any

        def __call__(self, x):
            return self.factor * x

    decay = optim.add_decayed_weights(1.0, mask=Scale(True))
    params = Scale(np.float32(3.0))
    updates, _ = decay.update(Scale(np.float32(0.5)), decay.init(params), params)
    assert float(updates.factor) == 3.5


def test_mistakes_are_explained():
    decay = optim.adamw(0.1)
    grads = {"w": np.ones(2, "float32")}
    state = decay.init(grads)
    with pytest.raises(ArgumentError, match=r"\[adamw.update\] .*Try optimizer.update\(grads, state, params\)"):
        decay.update(grads, state)
    with pytest.raises(ArgumentError, match=r"\[adamw.update\] the state must be a tuple of 3 states, got .* length 2"):
        decay.update(grads, state[:2], grads)
    with pytest.raises(DtypeError):
        optim.trace(0.9, accumulator_dtype="complex64")
    with pytest.raises(TreeError):
        optim.masked(optim.scale(1.0), {"v": True}).init(grads)


# -- schedules -----------------------------------------------------------------------------------------------

SCHEDULES = {
    "constant": lambda o: o.constant_schedule(0.3),
    "linear": lambda o: o.linear_schedule(0.1, 0.7, 20, transition_begin=5),
    "linear_constant": lambda o: o.linear_schedule(0.1, 0.7, 0),
    "polynomial": lambda o: o.polynomial_schedule(1.0, 0.01, power=2, transition_steps=30),
    "polynomial_root": lambda o: o.polynomial_schedule(1.0, 0.01, 0.5, 32, transition_begin=-3),
    "piecewise": lambda o: o.piecewise_constant_schedule(0.3, {20: 0.1, 5: 0.5, 21: 3.0}),
    "piecewise_constant": lambda o: o.piecewise_constant_schedule(0.3),
    "exponential": lambda o: o.exponential_decay(0.3, 10, 0.7),
    "exponential_begin": lambda o: o.exponential_decay(0.3, 10, 0.7, transition_begin=6, end_value=0.1),
    "exponential_growth": lambda o: o.exponential_decay(0.3, 10, 1.7, transition_begin=-6, end_value=2.0),
    "staircase": lambda o: o.exponential_decay(0.3, 7, 0.7, transition_begin=3, staircase=True),
    "exponential_constant": lambda o: o.exponential_decay(0.3, 10, 0.0),
    "cosine": lambda o: o.cosine_decay_schedule(0.3, 25),
    "cosine_options": lambda o: o.cosine_decay_schedule(0.3, 25, alpha=0.1, exponent=1.5),
    "join": lambda o: o.join_schedules([o.constant_schedule(0.3), _schedule(o), o.linear_schedule(1.0, 0, 9)], [8, 20]),
    "interpolate_linear": lambda o: o.piecewise_interpolate_schedule("linear", 0.3, {9: 0.5, 20: 3.0, 25: 0.1}),
    "interpolate_cosine": lambda o: o.piecewise_interpolate_schedule("cosine", 0.3, {0: 2.0, 9: 0.5, 20: 3.0}),
    "interpolate_constant": lambda o: o.piecewise_interpolate_schedule("cosine", 0.3),
    "onecycle_linear": lambda o: o.linear_onecycle_schedule(30, 0.3),
    "onecycle_linear_options": lambda o: o.linear_onecycle_schedule(30, 0.3, 0.2, 0.5, 10.0, 50.0),
    "onecycle_cosine": lambda o: o.cosine_onecycle_schedule(30, 0.3),
    "onecycle_cosine_options": lambda o: o.cosine_onecycle_schedule(30, 0.3, 0.5, 10.0, 50.0),
    "warmup_constant": lambda o: o.warmup_constant_schedule(0.01, 0.3, 10),
    "warmup_cosine": lambda o: o.warmup_cosine_decay_schedule(0.01, 0.3, 10, 30, end_value=0.05, exponent=1.2),
    "warmup_cosine_zero": lambda o: o.warmup_cosine_decay_schedule(0.1, 0.0, 10, 30),
    "warmup_exponential": lambda o: o.warmup_exponential_decay_schedule(0.01, 0.3, 10, 5, 0.7, 3, True, 0.1),
    "sgdr": lambda o: o.sgdr_schedule(
        {"init_value": 0.0, "peak_value": 0.3 / n, "decay_steps": 4 * n, "warmup_steps": n} for n in (2, 3, 5)
    ),
}
COUNTS = [*range(40), 1000, 2**24 + 1, 2**31 - 1]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("int32", 1e-6), ("int64", 1e-12)])
def test_schedules_are_optax_schedules(dtype, tolerance):
    def values(library):
        # The product shows the value in full precision, also where a schedule returns a Python number.
        one = np.ones((), "float64" if dtype == "int64" else "float32")
        schedules = {name: make(library.optim) for name, make in SCHEDULES.items()}
        step = lambda carry, count: (carry, {name: one * schedule(count) for name, schedule in schedules.items()})
        return library.jit(lambda counts: library.scan(step, np.int32(0), counts)[1])(np.asarray(COUNTS, dtype))

    with x64(dtype == "int64"):
        expected = values(OPTAX)
    actual = values(TVMFUN)
    for name in SCHEDULES:
        np.testing.assert_allclose(actual[name], expected[name], rtol=tolerance, atol=tolerance / 10, err_msg=name)
        # Python integers are counts, too.
        for count in (0, 7, 39):
            value = float(SCHEDULES[name](optim)(count))
            np.testing.assert_allclose(value, expected[name][count], rtol=1e-6, atol=1e-7, err_msg=name)


def test_schedules_reject_nonsense():
    with pytest.raises(ArgumentError, match=r"\[cosine_decay_schedule\] decay_steps must be positive, got 0"):
        optim.cosine_decay_schedule(0.1, 0)
    with pytest.raises(ArgumentError, match=r"the scale at 5 must not be negative, got -1"):
        optim.piecewise_constant_schedule(0.1, {5: -1})
    with pytest.raises(ArgumentError, match=r"the scale at 5 must not be negative, got -1"):
        optim.piecewise_interpolate_schedule("linear", 0.1, {5: -1})
    with pytest.raises(ArgumentError, match=r"must be 'linear' or 'cosine', got 'cubic'"):
        optim.piecewise_interpolate_schedule("cubic", 0.1)
    with pytest.raises(ArgumentError, match=r"2 schedules meet at 1 boundaries, got \[3, 4\]"):
        optim.join_schedules([optim.constant_schedule(1.0)] * 2, [3, 4])
    with pytest.raises(ArgumentError, match=r"decay_steps - warmup_steps must be positive, got -1"):
        optim.warmup_cosine_decay_schedule(0.0, 0.1, 4, 3)


def test_an_update_of_another_shape_is_named():
    with pytest.raises(ShapeError, match=r"the update at \['a'\]\['w'\] must fit"):
        optim.apply_updates({"a": {"w": np.ones(3)}}, {"a": {"w": np.ones(4)}})


def test_a_state_of_other_parameters_is_named():
    optimizer = optim.sm3(0.1)
    state = optimizer.init({"w": np.ones(3)})
    with pytest.raises(TreeError, match=r"sm3.update\] the state must be one that init returns for such updates"):
        optimizer.update(True, state, b"bytes")
    with pytest.raises(TreeError, match=r"got dict with the keys 'w'. Try adding \[0\].mu\['v'\]"):
        optimizer.update({"v": np.ones(3)}, state)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 1), ()])
def test_moments_of_another_shape_are_not_broadcast(jitted, shape):
    optimizer = optim.chain(optim.clip(1.0), optim.adamw(0.1))
    grads, state = {"w": np.ones((8, 4))}, optimizer.init({"w": np.ones(shape)})
    update = tvmfun.jit(optimizer.update) if jitted else optimizer.update
    with pytest.raises(
        ShapeError, match=r"the state at \[\S+\.mu\['w'\] must have the shape \(8, 4\) of its update, got"
    ):
        update(grads, state, grads)


def test_labels_of_other_parameters_are_named():
    for optimizer in (optim.partition({"a": optim.sgd(0.1)}, {"c": "a"}), optim.masked(optim.sgd(0.1), {"c": True})):
        with pytest.raises(TreeError, match="the parameters must have the tree structure of the mask or the labels"):
            optimizer.init({"d": np.ones(3)})


def test_states_that_grow():
    """A user's transformation may return other shapes than its init."""
    momentum = optim.GradientTransformation(
        lambda params: tnp.zeros(()), lambda updates, state, params=None: (updates + 0.9 * state,) * 2
    )
    history = optim.GradientTransformation(
        lambda params: tnp.zeros((0,)), lambda updates, state, params=None: (updates, tnp.append(state, updates.sum()))
    )
    optimizer = optim.chain(momentum, optim.masked(history, True), optim.scale(-1.0))
    state = optimizer.init(tnp.ones(3))
    for _ in range(2):
        updates, state = optimizer.update(tnp.ones(3), state)
    np.testing.assert_allclose(updates, -1.9, rtol=1e-6)


@pytest.mark.parametrize("rate", ["1e-3", [0.1], {"w": 0.1}, nn.Linear(2, 2, key=random.key(0))])
def test_a_learning_rate_is_a_number_or_a_function(rate):
    with pytest.raises(ArgumentError, match=r"^\[adam\] learning_rate must be a number, a 0-d array or a function"):
        optim.adam(rate)


def test_a_key_error_of_a_users_function_is_not_changed():
    class Missing(KeyError):
        """An error of the user's."""

    def scaled(updates, state, params=None):
        raise Missing("rate")

    optimizer = optim.chain(optim.scale(1.0), optim.GradientTransformation(lambda params: (), scaled))
    with pytest.raises(Missing):
        optimizer.update(np.ones(3), optimizer.init(np.ones(3)))
    lookup = optim.scale_by_schedule(lambda count: {}["rate"])
    with pytest.raises(KeyError, match="rate") as caught:
        lookup.update(np.ones(3), lookup.init(np.ones(3)))
    assert type(caught.value) is KeyError
