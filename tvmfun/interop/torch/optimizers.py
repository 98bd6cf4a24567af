"""Optimizers of PyTorch as gradient transformations: each row makes the steps of the optimizer of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvmfun import optim
from tvmfun.errors import ArgumentError


def _sgd(rate: Any, o: Mapping[str, Any]) -> optim.GradientTransformation:
    return optim.sgd(rate, momentum=o["momentum"] or None, nesterov=o["nesterov"])


def _adam(rate: Any, o: Mapping[str, Any]) -> optim.GradientTransformation:
    return optim.adam(rate, *o["betas"], eps=o["eps"])


def _adamw(rate: Any, o: Mapping[str, Any]) -> optim.GradientTransformation:
    return optim.adamw(rate, *o["betas"], eps=o["eps"], weight_decay=o["weight_decay"])


def _adamax(rate: Any, o: Mapping[str, Any]) -> optim.GradientTransformation:
    return optim.adamax(rate, *o["betas"], eps=o["eps"])


def _radam(rate: Any, o: Mapping[str, Any]) -> optim.GradientTransformation:
    return optim.radam(rate, *o["betas"], eps=o["eps"])


def _rmsprop(rate: Any, o: Mapping[str, Any]) -> optim.GradientTransformation:
    return optim.rmsprop(rate, decay=o["alpha"], eps=o["eps"], eps_in_sqrt=False)


def _adadelta(rate: Any, o: Mapping[str, Any]) -> optim.GradientTransformation:
    return optim.adadelta(rate, rho=o["rho"], eps=o["eps"])


_MAKERS: dict[str, Callable] = {
    "Adadelta": _adadelta,
    "Adam": _adam,
    "AdamW": _adamw,
    "Adamax": _adamax,
    "RAdam": _radam,
    "RMSprop": _rmsprop,
    "SGD": _sgd,
}
#: Options that a row does not know: they must have the value that leaves them out.
_UNUSED: dict[str, dict[str, Any]] = {
    "Adam": {"amsgrad": False},
    "AdamW": {"amsgrad": False},
    "RAdam": {"decoupled_weight_decay": False},
    "RMSprop": {"momentum": 0, "centered": False},
    "SGD": {"dampening": 0},
}


def transformation(name: str, rate: Any, options: Mapping[str, Any]) -> optim.GradientTransformation:
    """The gradient transformation for a parameter group of an optimizer of PyTorch.

    Args:
        name: the name of the optimizer's class.
        rate: the learning rate, also an array.
        options: the group, with its other options.

    Raises:
        ArgumentError: if there is no row for the optimizer, or for an option.
    """
    if name not in _MAKERS:
        what = f"the optimizer must be a transformation of tvmfun.optim, or one of {', '.join(_MAKERS)}"
        raise ArgumentError("compile_train", what, got=name)
    for option, value in {"maximize": False, **_UNUSED.get(name, {})}.items():
        if options.get(option, value) != value:
            got = f"{option}={options[option]!r}"
            raise ArgumentError("compile_train", f"{name} is read with {option}={value!r} alone", got=got)
    made = _MAKERS[name](rate, options)
    decay = options["weight_decay"] if name != "AdamW" else 0
    return optim.chain(optim.add_decayed_weights(decay), made) if decay else made
