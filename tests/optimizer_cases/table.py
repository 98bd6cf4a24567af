"""The table of optimizers and transformations that are compared with optax's."""

from __future__ import annotations

import functools
from typing import Any

from optimizer_cases.trajectories import Case

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
SEARCHES = {
    "lbfgs": lambda o: o.lbfgs(),
    "lbfgs no search": lambda o: o.lbfgs(0.02, 3, False, None),
    "scale_by_lbfgs": lambda o: o.scale_by_lbfgs(4),
    "scale_by_backtracking_linesearch": lambda o: o.chain(
        o.sgd(1.0), o.scale_by_backtracking_linesearch(15, store_grad=True)
    ),
    "scale_by_backtracking_linesearch options": lambda o: o.chain(
        o.adam(0.5), o.scale_by_backtracking_linesearch(3, 0.3, 0.5, 2.0, max_learning_rate=0.2, atol=1e-3, rtol=0.01)
    ),
    "scale_by_zoom_linesearch": lambda o: o.chain(o.sgd(1.0), o.scale_by_zoom_linesearch(15)),
    "scale_by_zoom_linesearch options": lambda o: o.chain(
        o.sgd(0.1),
        o.scale_by_zoom_linesearch(4, 0.5, 1e-3, 3.0, 0.1, 0.2, None, 1e-2, initial_guess_strategy="one"),
    ),
}
CONTRIB = {
    "acprop": lambda o: o.contrib.acprop(0.01, weight_decay=0.1, mask=MASK),
    "ademamix": lambda o: o.contrib.ademamix(0.01, weight_decay=0.1),
    "ademamix options": lambda o: o.contrib.ademamix(0.01, b3=0.99, alpha=lambda count: 0.5 * count, mask=MASK),
    "adopt": lambda o: o.contrib.adopt(0.01),
    "adopt nesterov": lambda o: o.contrib.adopt(0.01, b2=0.9, nesterov=True, use_clipping=False),
    "cocob": lambda o: o.contrib.cocob(weight_decay=0.1),
    "dadapt_adamw": lambda o: o.contrib.dadapt_adamw(estim_lr0=0.01, weight_decay=0.1),
    "differentially_private_aggregate": lambda o: o.contrib.differentially_private_aggregate(0.5, 0.1, 3),
    "dog": lambda o: o.contrib.dog(weight_decay=0.1),
    "dog distance": lambda o: o.contrib.dog(0.5, init_step=("distance", 0.1)),
    "dog learning rate": lambda o: o.contrib.dog(init_step=("learning_rate", 0.1)),
    "dowg": lambda o: o.contrib.dowg(weight_decay=0.1),
    "dpsgd": lambda o: o.contrib.dpsgd(0.1, 0.5, 0.1, 7, momentum=0.9),
    "galore": lambda o: o.contrib.galore(0.01, rank=2, weight_decay=0.1),
    "galore axes": lambda o: o.contrib.galore(
        0.01, 2, 5, 0.5, o.scale_by_rms(), weight_dimension_numbers=numbers(o, "GaLoreDimensionNumbers", 0, (1, 2, 3))
    ),
    "madgrad": lambda o: o.contrib.madgrad(0.01, weight_decay=0.1),
    "mechanize": lambda o: o.contrib.mechanize(o.sgd(1.0), s_init=0.01),
    "momo": lambda o: o.contrib.momo(0.1, lower_bound=-2.0, weight_decay=0.1),
    "momo adaptive": lambda o: o.contrib.momo(0.1, lower_bound=-2.0, adapt_lower_bound=True),
    "momo_adam": lambda o: o.contrib.momo_adam(0.01, lower_bound=-2.0, weight_decay=0.1),
    "momo_adam adaptive": lambda o: o.contrib.momo_adam(0.01, lower_bound=-2.0, adapt_lower_bound=True),
    "muon": lambda o: o.contrib.muon(0.01, weight_decay=0.1),
    "muon dion": lambda o: o.contrib.muon(0.01, "dion", adaptive=True, preconditioning="aol", consistent_rms=0.2),
    "muon axes": lambda o: o.contrib.muon(
        0.01,
        nesterov=False,
        preconditioning="schatten",
        muon_weight_dimension_numbers=numbers(o, "MuonDimensionNumbers", (0, 1), 3),
    ),
    "muon spectral": lambda o: o.contrib.muon(0.01, ns_steps=3, preconditioning="spectral", adam_learning_rate=0.1),
    "normalize": lambda o: o.contrib.normalize(),
    "prodigy": lambda o: o.contrib.prodigy(estim_lr0=0.01, weight_decay=0.1),
    "prodigy safeguard": lambda o: o.contrib.prodigy(0.1, beta3=0.99, estim_lr0=0.01, safeguard_warmup=True),
    "reduce_on_plateau": lambda o: o.contrib.reduce_on_plateau(0.5, 3, cooldown=2, accumulation_size=2, min_scale=0.1),
    "sam": lambda o: o.contrib.sam(o.sgd(0.1, momentum=0.9), o.chain(o.contrib.normalize(), o.sgd(0.05))),
    "sam adam": lambda o: o.contrib.sam(o.adam(0.1), o.adam(0.05), 3, reset_state=False),
    "sam opaque": lambda o: o.contrib.sam(o.adam(0.1), o.adam(0.05), 3, opaque_mode=True),
    "scale_by_acprop": lambda o: o.contrib.scale_by_acprop(),
    "scale_by_ademamix": lambda o: o.contrib.scale_by_ademamix(),
    "scale_by_adopt": lambda o: o.contrib.scale_by_adopt(),
    "scale_by_cocob": lambda o: o.contrib.scale_by_cocob(),
    "scale_by_galore": lambda o: o.contrib.scale_by_galore(1),
    "scale_by_madgrad": lambda o: o.contrib.scale_by_madgrad(0.01),
    "scale_by_muon": lambda o: o.masked(
        o.contrib.scale_by_muon(
            weight_dimension_numbers=lambda p: {
                "scalar": o.MaskedNode(),
                "layer": {"kernel": o.contrib.MuonDimensionNumbers()},
            }
        ),
        MASK,
    ),
    "scale_by_simplified_ademamix": lambda o: o.contrib.scale_by_simplified_ademamix(alpha=0.1),
    "schedule_free": lambda o: o.contrib.schedule_free(o.sgd(0.1), o.warmup_constant_schedule(0.0, 0.1, 5), 0.8),
    "schedule_free_adamw": lambda o: o.contrib.schedule_free_adamw(0.1, weight_decay=0.1),
    "schedule_free_adamw warmup": lambda o: o.contrib.schedule_free_adamw(0.1, warmup_steps=8, weight_lr_power=1.0),
    "schedule_free_sgd": lambda o: o.contrib.schedule_free_sgd(0.1, weight_decay=0.1, state_dtype="float64"),
    "simplified_ademamix": lambda o: o.contrib.simplified_ademamix(0.01, alpha=0.1, weight_decay=0.1),
    "sophia": lambda o: o.contrib.sophia(
        0.1, gamma=0.5, hessian_diagonal_fn=o.stateless_with_tree_map(lambda g, p: g * g + p), update_interval=3
    ),
    "sophia hutchinson": lambda o: o.contrib.sophia(0.1, gamma=0.5),
}


def numbers(o: Any, kind: str, *axes: Any) -> Any:
    kind = getattr(o.contrib, kind)
    return {"scalar": None, "layer": {"kernel": kind()}, "conv": kind(*axes)}


def loss(numpy: Any, params: Any) -> Any:
    """A function with curvature everywhere, whose minimum is not at zero."""
    scalar, kernel = params["scalar"], params["layer"]["kernel"]
    bent = numpy.sum(numpy.square(kernel - 0.3) * (1 + numpy.sin(kernel))) + numpy.sum(
        numpy.square(kernel[1:] - kernel[:-1] ** 2)
    )
    return bent + numpy.square(scalar - numpy.sum(kernel)) + 0.1 * scalar**4


def with_gradient(library: Any, transform: Any, grads: Any, state: Any, params: Any, value: Any) -> tuple:
    """A step of an optimizer that asks for gradients elsewhere."""
    f = lambda p, step: loss(library.numpy, p) + 0.1 * step * p["scalar"]
    gradient = lambda p, step: library.value_and_grad(f)(p, step)[1]
    updates, state = transform.update(gradient(params, 0), state, params, grad_fn=gradient)
    return library.optim.apply_updates(params, updates), state


def with_objective(library: Any, transform: Any, grads: Any, state: Any, params: Any, value: Any) -> tuple:
    """A step of an optimizer that asks for the loss as a function."""
    objective = lambda p: loss(library.numpy, p)
    updates, state = transform.update(grads, state, params, obj_fn=objective)
    return library.optim.apply_updates(params, updates), state


def alone(library: Any, transform: Any, grads: Any, state: Any, params: Any, value: Any) -> tuple:
    """A step of an optimizer that takes no further arguments."""
    updates, state = transform.update(grads, state, params)
    return library.optim.apply_updates(params, updates), state


def with_examples(library: Any, transform: Any, grads: Any, state: Any, params: Any, value: Any) -> tuple:
    """A step with gradients of three examples."""
    examples = {"scalar": library.numpy.stack([grads["scalar"] * k for k in (1, 0.1, -3)])}
    examples["layer"] = {"kernel": library.numpy.stack([grads["layer"]["kernel"] * k for k in (0.5, 0.1, 2)])}
    updates, state = transform.update(examples, state, params)
    return library.optim.apply_updates(params, updates), state


def with_search(library: Any, transform: Any, grads: Any, state: Any, params: Any, value: Any) -> tuple:
    """A step of an optimizer that looks at the loss along its updates."""
    objective = lambda p: loss(library.numpy, p)
    value, gradient = library.value_and_grad(objective)(params)
    update = library.optim.with_extra_args_support(transform).update
    updates, state = update(gradient, state, params, value=value, grad=gradient, value_fn=objective)
    return library.optim.apply_updates(params, updates), state


SPECIAL = dict.fromkeys(SEARCHES, with_search) | {
    "differentially_private_aggregate": with_examples,
    "dpsgd": with_examples,
    "sam": alone,
    "sam adam": alone,
    "sam opaque": with_gradient,
    "sophia hutchinson": with_objective,
}
CASES = OPTIMIZERS | TRANSFORMS | SEARCHES | CONTRIB
# Transformations that depend on the number of axes get an array with four.
FOUR_AXES = {"galore axes", "muon axes", "adafactor", "adaptive_grad_clip", "scale_by_factored_rms", "scale_by_sm3"}
# optax has no accumulator for an array without axes, or makes an axis.
NO_SCALAR = {"sm3", "scale_by_sm3", "scale_by_distance_over_gradients"}
# Factors that optax computes of the count in float32 whatever the dtype of the parameters, and we do, too.
COUNTED = (
    "adafactor",
    "adafactor options",
    "add_noise",
    "inject_hyperparams",
    "madgrad",
    "noisy_sgd",
    "scale_by_madgrad",
    "scale_by_schedule",
    "schedule_free",
    "schedule_free_adamw warmup",
    "sgd",
)
# optax takes singular vectors in float32; and their signs are free.
SINGULAR = ("galore", "galore axes", "scale_by_galore")
LOOSE = dict.fromkeys(COUNTED, 2e-7) | dict.fromkeys(SINGULAR, 2e-6) | {"fromage schedule": 2e-6}
# Each step of these magnifies the rounding of those before.
LOOSE_FLOAT64 = {"lbfgs": 5e-10, "scale_by_zoom_linesearch": 5e-12}
LOOSE_FLOAT32 = {
    # optax takes 1 - 0.9999 in float32, which leaves four digits.
    "adopt": 2e-5,
    "lbfgs": 1e-3,
    "lbfgs no search": 2e-3,
    # The distance from the first parameters is a difference, and how it is rounded depends on the lanes of a vector.
    "dowg": 1e-5,
    "mechanize": 1e-5,
    "prodigy": 5e-6,
    "scale_by_lbfgs": 5e-6,
    "scale_by_zoom_linesearch": 2e-3,
}
# After these the loss cannot get less, and the search goes where rounding leads it.
COMPARED_STEPS = {"lbfgs": 15}
# JAX draws signs from other bits where its default float has 64; and of noise in float64 two cases are enough.
ONLY_FLOAT32 = {"add_noise", "differentially_private_aggregate", "sophia hutchinson"}


def shapes_of(name: str) -> dict[str, Any]:
    left_out = {"scalar"} if name in NO_SCALAR else set()
    return {k: s for k, s in SHAPES.items() if k not in left_out and (k != "conv" or name in FOUR_AXES)}


def case_of(name: str) -> Case:
    return Case(CASES[name], shapes_of(name), SPECIAL.get(name))


def tolerance_of(name: str, dtype: str) -> float:
    of_dtype = LOOSE_FLOAT64 if dtype == "float64" else LOOSE_FLOAT32
    return max(TOLERANCE[dtype], LOOSE.get(name, 0), of_dtype.get(name, 0))
