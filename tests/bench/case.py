"""A training step to be timed: its parameters, batch and loss, written so that several frameworks can run it.

tvmfun and JAX run the very same code, written against a `Namespace`; PyTorch has a version of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Tree = dict[str, Any]


@dataclass(frozen=True)
class Namespace:
    """The modules that a functional model is written against, and what it does to the operands of products.

    ``attention_drops`` tells whether ``nn.dot_product_attention`` has dropout.
    """

    np: Any
    lax: Any
    nn: Any
    random: Any
    operand: Callable[[Any], Any] = lambda x: x
    attention_drops: bool = False


class _Zeros(np.random.Generator):
    """A generator for types: to draw a hundred million parameters, or to write that many zeros, takes seconds."""

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """One zero as all elements, instead of normal numbers."""
        return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), size, (0,) * len(size))


@dataclass(frozen=True)
class Case:
    """A training step to be timed.

    Args:
        name: what the table calls it.
        params: parameters from a NumPy generator. Names that begin with ``conv`` are kernels in HWIO order and
            with ``dense`` matrices in (in, out) order: PyTorch gets them in its own.
        batch: the arrays of one batch.
        loss: ``(namespace, params, state, batch, key) -> (loss, state)``; without a key nothing is dropped.
        torch_loss: ``(params, state, batch, train) -> loss``; the state is updated in place.
        optimizer: the update, given ``tvmfun.optim`` or ``optax``.
        torch_optimizer: the same in PyTorch.
        flop: multiplications and additions of the matrix products and convolutions of a step.
        traffic: how many times each parameter's bytes have to move for the update.
        state: neither parameters nor gradients, such as the statistics of batch normalization.
        torch_compiles: whether PyTorch can compile it.
        precision: that of products, from parameters in float32: ``"float32"``, ``"bfloat16"`` (by ``amp``, by casts in
            JAX, by ``autocast`` in PyTorch) or, on GPUs, ``"tensorfloat32"``.
    """

    name: str
    params: Callable[[np.random.Generator], Tree]
    batch: Callable[[np.random.Generator], Tree]
    loss: Callable
    torch_loss: Callable
    optimizer: Callable[[Any], Any]
    torch_optimizer: Callable[[list], Any]
    flop: float
    traffic: int
    state: Callable[[], Tree] = dict
    torch_compiles: bool = True
    precision: str = "float32"

    def arrays(self) -> tuple[Tree, Tree, Tree]:
        """The parameters, the state and the batch, the same at each call."""
        return self._drawn(np.random.default_rng(0))

    def examples(self) -> tuple[Tree, Tree, Tree]:
        """Arrays of the same shapes and dtypes, for which no normal numbers are drawn."""
        return self._drawn(_Zeros(np.random.PCG64(0)))

    def _drawn(self, rng: np.random.Generator) -> tuple[Tree, Tree, Tree]:
        return self.params(rng), self.state(), self.batch(rng)
