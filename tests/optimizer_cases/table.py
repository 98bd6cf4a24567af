"""The table of optimizers and transformations that are compared with optax's."""

from __future__ import annotations

import functools
from typing import Any

SHAPES = {"scalar": (), "layer": {"kernel": (4, 3)}, "conv": (2, 3, 2, 2)}
MASK = {"scalar": False, "layer": {"kernel": True}}
LABELS = {"scalar": "a", "layer": {"kernel": "b"}}
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def schedule(o: Any) -> Any:
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
# What looks at the number of axes gets an array with four.
FOUR_AXES = {"adafactor", "adaptive_grad_clip", "scale_by_factored_rms", "scale_by_sm3"}
# optax has no accumulator for an array without axes, or makes an axis.
NO_SCALAR = {"sm3", "scale_by_sm3", "scale_by_distance_over_gradients"}
# Factors that optax computes of the count in float32 whatever the dtype of the parameters, and we do, too.
ROUNDED = dict.fromkeys(
    ("adafactor", "adafactor options", "inject_hyperparams", "sgd", "scale_by_schedule", "noisy_sgd", "add_noise"), 2e-7
) | {"fromage schedule": 2e-6}


def shapes_of(name: str) -> dict[str, Any]:
    left_out = {"scalar"} if name in NO_SCALAR else set()
    return {k: s for k, s in SHAPES.items() if k not in left_out and (k != "conv" or name in FOUR_AXES)}


def tolerance_of(name: str, dtype: str) -> float:
    return max(TOLERANCE[dtype], ROUNDED.get(name, 0))
