"""JAX and PyTorch, as frameworks that run a case step by step: the same mathematics, parameters and batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import torch
from bench.case import Case, Namespace

JAX = Namespace(jax.numpy, jax.lax, jax.nn, jax.random)
JAX_BFLOAT16 = replace(JAX, operand=lambda x: x.astype("bfloat16"))


class Functional:
    """The step of a case in tvmfun or in JAX: one compiled function, its state donated."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.transform = case.optimizer(self.optimizers)
        namespace, apply = self.namespace, self.optimizers.apply_updates
        case_loss = self.mixed(case)

        def step(carry, batch):
            params, state, opt_state, key = carry
            dropout, key = namespace.random.split(key)
            loss = lambda params: case_loss(params, state, batch, dropout)
            (value, state), grads = self.value_and_grad(loss, has_aux=True)(params)
            updates, opt_state = self.transform.update(grads, opt_state, params)
            return (apply(params, updates), state, opt_state, key), value

        self.run = self.compiled(step, donate_argnums=0)
        self.value = self.compiled(lambda params, state, batch: case_loss(params, state, batch, None)[0])

    def load(self) -> Functional:
        """Makes the parameters, the state, the optimizer's state and the batch."""
        params, state, self.batch = map(self.put, self.case.arrays())
        self.carry = (params, state, self.compiled(self.transform.init)(params), self.namespace.random.key(0))
        return self

    def compile(self) -> float:
        """Compiles the step from nothing, and returns the seconds that took."""
        started = time.perf_counter()
        self.run.lower(self.carry, self.batch).compile()
        return time.perf_counter() - started

    def types(self) -> tuple:
        """The types of the step's arguments, without the arguments."""
        spec = lambda array: self.spec(array.shape, array.dtype)
        params, state, batch = (self.map(spec, values) for values in self.case.examples())
        opt_state = self.eval_shape(self.transform.init, params)
        return (params, state, opt_state, self.eval_shape(lambda: self.namespace.random.key(0))), batch

    def plan(self) -> int:
        """Compiles the step without its arguments; returns the bytes that a call takes, with the arguments."""
        self.run = self.run.lower(*self.types()).compile()
        return self.bytes_of(self.run.memory_analysis())

    def fill(self) -> None:
        """Makes the arguments, of ones."""
        (*carry, _), batch = self.types()
        carry, self.batch = self.map(lambda spec: self.put(np.ones(spec.shape, spec.dtype)), (carry, batch))
        self.carry = (*carry, self.namespace.random.key(0))

    def step(self) -> float:
        """One step; returns the loss."""
        self.carry, loss = self.run(self.carry, self.batch)
        return float(loss)

    def loss(self) -> float:
        """The loss without dropout."""
        return float(self.value(self.carry[0], self.carry[1], self.batch))


class Jax(Functional):
    """JAX with optax."""

    name = "JAX"
    namespace, optimizers = JAX, optax
    compiled, value_and_grad = staticmethod(jax.jit), staticmethod(jax.value_and_grad)
    put = staticmethod(lambda values: jax.tree.map(jax.numpy.asarray, values))
    eval_shape, spec, map = staticmethod(jax.eval_shape), jax.ShapeDtypeStruct, staticmethod(jax.tree.map)

    @staticmethod
    def mixed(case: Case) -> Callable:
        """The loss of a case in its precision."""
        loss = partial(case.loss, JAX_BFLOAT16 if case.precision == "bfloat16" else JAX)

        def call(*arguments: Any) -> Any:
            with jax.default_matmul_precision("tensorfloat32" if case.precision == "tensorfloat32" else "float32"):
                return loss(*arguments)

        return call

    @staticmethod
    def bytes_of(plan: Any) -> int:
        """The sum of XLA's plan; donated arguments count once."""
        outputs = plan.output_size_in_bytes - plan.alias_size_in_bytes
        return plan.argument_size_in_bytes + outputs + plan.temp_size_in_bytes


def _to_torch(name: str, value: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(value)
    if name.startswith("conv"):
        return tensor.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    if name.startswith("dense"):
        return tensor.t().contiguous()
    return tensor.clone()


class Torch:
    """PyTorch, eager.

    Args:
        case: the step.
        device: where it runs.
    """

    name = "PyTorch"

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.case = case
        self.device = device
        torch.set_float32_matmul_precision("high" if case.precision == "tensorfloat32" else "highest")
        torch.backends.cudnn.allow_tf32 = case.precision == "tensorfloat32"
        self.forward = self.wrapped(self.mixed)

    def load(self) -> Torch:
        """Makes the parameters, the state and the batch."""
        params, state, batch = self.case.arrays()
        self.params = {name: _to_torch(name, value).to(self.device).requires_grad_() for name, value in params.items()}
        self.state = {name: torch.from_numpy(value).to(self.device) for name, value in state.items()}
        self.batch = {name: torch.from_numpy(value).to(self.device) for name, value in batch.items()}
        self.optimizer = self.case.torch_optimizer(list(self.params.values()))
        return self

    def mixed(self, *arguments: Any) -> torch.Tensor:
        """The loss in the case's precision."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.case.precision == "bfloat16"):
            return self.case.torch_loss(*arguments)

    def wrapped(self, loss: Callable) -> Callable:
        """The function to call at each step."""
        return loss

    def compile(self) -> float:
        """Nothing to compile but what the first step does."""
        started = time.perf_counter()
        self.step()
        return time.perf_counter() - started

    def plan(self) -> None:
        """Nobody knows what a step will take."""

    def fill(self) -> None:
        """Makes the arguments."""
        self.load()

    def step(self) -> float:
        """One step; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(self.params, self.state, self.batch, True)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def loss(self) -> float:
        """The loss without dropout."""
        with torch.no_grad():
            return float(self.mixed(self.params, dict(self.state), self.batch, False))


class TorchCompiled(Torch):
    """PyTorch, compiled."""

    name = "PyTorch, compiled"

    def wrapped(self, loss: Callable) -> Callable:
        """The loss, compiled with its gradient; the update is PyTorch's fused one."""
        torch._dynamo.reset()
        return torch.compile(loss)
