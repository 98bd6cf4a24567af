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
    "rmsprop centered unbiased": lambda o: o.rmsprop(0.01, eps=1e-3, centered=True, bias_correction=True),
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
    "apply_every": lambda o: o.apply_every(3),
    "centralize": lambda o: o.centralize(),
    "chain": lambda o: o.chain(o.scale_by_adam(), o.scale(-0.1)),
    "clip": lambda o: o.clip(0.5),
    "clip_by_block_rms": lambda o: o.clip_by_block_rms(0.5),
    "clip_by_global_norm": lambda o: o.clip_by_global_norm(2.5),
    "ema": lambda o: o.ema(0.9),
    "ema biased": lambda o: o.ema(0.9, debias=False),
    "freeze": lambda o: o.freeze(MASK),
    "identity": lambda o: o.identity(),
    "keep_params_nonnegative": lambda o: o.keep_params_nonnegative(),
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
    "scale_by_param_block_norm": lambda o: o.scale_by_param_block_norm(),
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
# optax has no accumulator for an array without axes.
NO_SCALAR = {"sm3", "scale_by_sm3"}
# Factors that optax computes of the count in float32 whatever the dtype of the parameters, and we do, too.
ROUNDED = {"adafactor", "adafactor options", "fromage schedule", "sgd", "scale_by_schedule"}


def random_tree(shapes: dict, rng: np.random.Generator, dtype: str) -> dict:
    return {
        k: random_tree(s, rng, dtype) if isinstance(s, dict) else np.asarray(rng.normal(size=s)).astype(dtype)
        for k, s in shapes.items()
    }


def shapes_of(name: str) -> dict:
    return {k: s for k, s in SHAPES.items() if k != "scalar"} if name in NO_SCALAR else SHAPES


def trajectories(names: tuple[str, ...], o: Any, jit: Any, dtype: str) -> dict[str, list[np.ndarray]]:
    """For each name the leaves of params and state, stacked over the steps; all of them in one program."""
    transforms = {name: CASES[name](o) for name in names}
    rng = np.random.default_rng(0)
    carry = {}
    for name, transform in transforms.items():
        params = random_tree(shapes_of(name), np.random.default_rng(1), dtype)
        carry[name] = params, transform.init(params)

    def step(carry, grads, value):
        new = {}
        for name, transform in transforms.items():
            params, state = carry[name]
            mine = {k: grads[k] for k in shapes_of(name)}
            update = o.with_extra_args_support(transform).update
            updates, state = update(mine, state, params, value=value)
            new[name] = o.apply_updates(params, updates), state
        return new

    step = jit(step)
    visited = {name: [] for name in names}
    for _ in range(STEPS):
        carry = step(carry, random_tree(SHAPES, rng, dtype), np.asarray(rng.normal()).astype(dtype))
        for name, (params, state) in carry.items():
            # The key of optax has a dtype of its own.
            leaves = jax.tree.leaves((params, tree.leaves(state)))
            visited[name].append([np.array(jax.random.key_data(x) if is_key(x) else x) for x in leaves])
    return {name: [np.stack(leaf) for leaf in zip(*steps, strict=True)] for name, steps in visited.items()}


def is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


NAMES = sorted(CASES)
BATCHES = [tuple(NAMES[i::8]) for i in range(8)]


@functools.cache
def pair(batch: tuple[str, ...], dtype: str) -> tuple[dict, dict]:
    # In float32, too, optax computes with counts in float64 then: the more precise oracle.
    with x64(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = trajectories(batch, optax, jax.jit, dtype)
    # Donated: the state stays in its place.
    return trajectories(batch, optim, functools.partial(tvmfun.jit, donate_argnums=0), dtype), expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_trajectory(name, dtype):
    actual, expected = (side[name] for side in pair(next(b for b in BATCHES if name in b), dtype))
    tolerance = max(TOLERANCE[dtype], 2e-7 if name in ROUNDED else 0)
    assert len(actual) == len(expected) > 0
    for leaf, oracle in zip(actual, expected, strict=True):
        assert leaf.shape == oracle.shape and (leaf.dtype == oracle.dtype or name in ROUNDED)
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
