"""``compile_train``: the training step of a script, compiled as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import optim, random, tree
from tvmfun.errors import ArgumentError
from tvmfun.interop.random_keys import random_key_name
from tvmfun.interop.torch.functions import from_torch
from tvmfun.interop.torch.optimizers import transformation
from tvmfun.interop.torch.parameters import flat, nested, split_module
from tvmfun.interop.torch.tensors import aval_of, borrowed, owned, to_tensor
from tvmfun.jit import jit
from tvmfun.transforms import value_and_grad
from tvmfun.typing import PyTree


def compile_train(module: Any, loss: Callable | None, optimizer: Any) -> TrainStep:
    """Returns a function that makes a training step of a module: forward, backward and update, compiled as one module.

    In a script it replaces ``zero_grad``, the loss, ``backward`` and ``optimizer.step``. The step writes the new
    parameters and buffers into the module, so evaluation, checkpoints and schedules of the learning rate stay.

    Args:
        module: a ``torch.nn.Module``; steps train it in training mode.
        loss: a function or module, ``loss(module(*inputs), target) -> scalar``; None if the module's result is the
            loss, or has it as its attribute ``loss``, as models of ``transformers`` do.
        optimizer: an optimizer of PyTorch with the module's parameters, of a kind that :mod:`tvmfun.optim` has, or a
            gradient transformation.

    Returns:
        ``step(*inputs, target)``, or without a loss ``step(*inputs, **named)``, which returns the loss as a tensor. It
        is compiled for each combination of shapes. The moments of the optimizer are in ``step.memory``, not in
        PyTorch's optimizer. Random numbers follow from ``torch.manual_seed``, and are not those of eager execution.

    Raises:
        ArgumentError: if the optimizer, or an option of it, has no equivalent here.
        ProgramError: at the first step, if the module or the loss cannot be converted.
    """
    return TrainStep(module, loss, optimizer)


class TrainStep:
    """A compiled training step; made by :func:`compile_train`."""

    def __init__(self, module: Any, loss: Callable | None, optimizer: Any) -> None:
        self._objective = _objective_class()(module, loss)
        self._optimizer = optimizer
        self._params, self._state = split_module(self._objective)
        self._groups = self._grouped()
        self._steps: dict[tuple, tuple[Callable, list[str]]] = {}
        params = {name: tnp.asarray(x.detach()) for name, x in self._params.items()}
        #: The state of the optimizer, a tree of arrays.
        self.memory: PyTree = [make(0.0).init({n: params[n] for n in names}) for names, make in self._makers()]

    def _grouped(self) -> list[list[str]]:
        """The names of the parameters of each group of the optimizer."""
        if isinstance(self._optimizer, optim.GradientTransformation):
            return [list(self._params)]
        if not hasattr(self._optimizer, "param_groups"):
            what = "the optimizer must be one of torch.optim, or a gradient transformation"
            raise ArgumentError("compile_train", what, got=type(self._optimizer).__name__)
        names = {id(x): name for name, x in self._params.items()}
        return [[names[id(x)] for x in g["params"] if id(x) in names] for g in self._optimizer.param_groups]

    def _makers(self) -> list[tuple[list[str], Callable[[Any], optim.GradientTransformation]]]:
        """For each group, the names of its parameters, and its transformation as a function of the learning rate."""
        if isinstance(self._optimizer, optim.GradientTransformation):
            return [(self._groups[0], lambda rate: self._optimizer)]
        kind = type(self._optimizer).__name__

        def maker(group: Mapping[str, Any]) -> Callable[[Any], optim.GradientTransformation]:
            options = {name: value for name, value in group.items() if name != "params"}
            return lambda rate: transformation(kind, rate, options)

        return [(names, maker(g)) for names, g in zip(self._groups, self._optimizer.param_groups, strict=True)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a step with a batch of tensors, and returns the loss."""
        import torch

        leaves, structure = tree.flatten((args, kwargs))
        key = (structure, *(aval_of(x) if isinstance(x, torch.Tensor) else x for x in leaves))
        if key not in self._steps:
            self._steps[key] = self._compiled(args, kwargs)
        step, updated = self._steps[key]
        params = {name: borrowed(x) for name, x in self._params.items()}
        state = {name: borrowed(x) for name, x in self._state.items()}
        batch = tree.map(lambda x: borrowed(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
        rates = [float(group["lr"]) for group in getattr(self._optimizer, "param_groups", [{"lr": 0.0}])]
        seed = random.key(int(torch.randint(2**31 - 1, ())))
        params, news, self.memory, value = step(params, state, self.memory, rates, seed, *batch)
        tensors, results = {**self._params, **self._state}, {**params, **dict(zip(updated, news, strict=True))}
        fresh = owned(results.values(), [borrowed(tensors[name]) for name in results])
        for name, array in zip(results, fresh, strict=True):
            tensors[name].data = to_tensor(array)
        if hasattr(self._optimizer, "param_groups"):
            self._optimizer._opt_called = True  # PyTorch's schedules warn if there was no step
        return to_tensor(value)

    def _compiled(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Callable, list[str]]:
        """The compiled step for arguments like these, and the names of the state that it changes."""
        function, _, _ = from_torch(self._objective, args, kwargs)
        makers, updated = self._makers(), []

        def step(params: dict, state: dict, memory: list, rates: list, key: Any, args: tuple, kwargs: dict) -> tuple:
            def objective(params: dict) -> tuple[Any, list]:
                named = {**kwargs, random_key_name(kwargs): key}
                value, new_state = function(nested(params), nested(state), *args, **named)
                news = flat(new_state)
                updated[:] = [name for name in news if news[name] is not state[name]]
                return value, [news[name] for name in updated]

            (value, news), gradients = value_and_grad(objective, has_aux=True)(params)
            results, memories = dict(params), []
            for (names, make), rate, own in zip(makers, rates, memory, strict=True):
                group = {name: params[name] for name in names}
                updates, after = make(rate).update({name: gradients[name] for name in names}, own, group)
                results.update(optim.apply_updates(group, updates))
                memories.append(after)
            return results, news, memories, value

        return jit(step, donate_argnames="memory"), updated


@cache
def _objective_class() -> type:
    from torch import nn

    class Objective(nn.Module):
        """The loss of a module as a module."""

        def __init__(self, module: Any, loss: Callable | None) -> None:
            super().__init__()
            self.module, self.loss = module, loss

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if self.loss is not None:
                *inputs, target = args
                return self.loss(self.module(*inputs, **kwargs), target)
            result = self.module(*args, **kwargs)
            return getattr(result, "loss", result)

    return Objective
