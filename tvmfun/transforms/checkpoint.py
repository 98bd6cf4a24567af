"""``checkpoint``: less memory for the backward pass, by recomputing residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tvmfun import numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract
from tvmfun.core.program import Equation
from tvmfun.errors import ArgumentError
from tvmfun.ops import calls
from tvmfun.ops.control import closing
from tvmfun.transforms.staging import over_arrays
from tvmfun.typing import ArrayLike, PyTree


def checkpoint(
    fun: Callable | None = None,
    *,
    prevent_cse: bool = True,
    policy: calls.Policy | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Any:
    """Returns ``fun`` with a backward pass that keeps only the arguments and recomputes the other residuals.

    Args:
        fun: a function of trees of arrays. Without it, ``checkpoint`` returns a decorator.
        prevent_cse: for compatibility with JAX: here the two computations are never merged.
        policy: which results inside ``fun`` to keep, one of :mod:`tvmfun.checkpoint_policies`; by default none.
        static_argnums: positional arguments that are not traced. Leaves that are not arrays never are.

    Source: follows ``jax.checkpoint``; Chen et al., "Training deep nets with sublinear memory cost" (2016).

    >>> import tvmfun
    >>> import tvmfun.numpy as tnp
    >>> layer = checkpoint(lambda x: tnp.sin(tnp.sin(x)))
    >>> float(tvmfun.grad(layer)(0.0))
    1.0
    """
    if fun is None:
        return lambda fun: checkpoint(fun, policy=policy, static_argnums=static_argnums)
    if policy is not None and not callable(policy):
        hint = "one of tvmfun.checkpoint_policies"
        raise ArgumentError("checkpoint", "the policy must be a function", got=repr(policy), hint=hint)
    static = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    @wraps(fun)
    def checkpointed(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if not is_tracing():
            return fun(*args, **kwargs)
        fixed = {i % len(args): args[i] for i in static}
        moving = [arg for i, arg in enumerate(args) if i not in fixed]
        name = getattr(fun, "__name__", "fun")

        def run(*moving: PyTree, **kwargs: PyTree) -> PyTree:
            rest = iter(moving)
            return fun(*(fixed[i] if i in fixed else next(rest) for i in range(len(args))), **kwargs)

        of_arrays, arrays = over_arrays(run, moving, kwargs)
        traced = trace_leaves(of_arrays, [abstract(array, name) for array in arrays], name)
        program, captured = closing(traced)
        results = calls.checkpoint(*captured, *arrays, program=program, policy=policy)
        return tree.unflatten(traced.out_tree, results)

    return checkpointed


def checkpoint_name(x: ArrayLike, name: str) -> Array:
    """Returns ``x`` with a name for the policies of :func:`checkpoint`.

    Source: follows ``jax.ad_checkpoint.checkpoint_name``.
    """
    return calls.name(tnp.asarray(x), name=name)


class checkpoint_policies:  # a namespace, as in JAX
    """Policies of :func:`checkpoint`: functions that return whether to keep the results of an equation.

    Source: ``jax.checkpoint_policies``.
    """

    @staticmethod
    def everything_saveable(equation: Equation) -> bool:
        """Keeps all results, as without a checkpoint."""
        return True

    @staticmethod
    def nothing_saveable(equation: Equation) -> bool:
        """Keeps nothing but the arguments."""
        return False

    @staticmethod
    def dots_saveable(equation: Equation) -> bool:
        """Keeps the results of products and convolutions, which are the most expensive to recompute.

        The exception are products in ``nn.dot_product_attention``, which is recomputed as a whole.
        """
        return equation.op.kind == "contraction"

    @staticmethod
    def dots_with_no_batch_dims_saveable(equation: Equation) -> bool:
        """Keeps the results of products without batch axes: of weights, not of attention scores."""
        return equation.op.kind == "contraction" and not any(map(len, equation.params.get("batch", ((), ()))))

    @staticmethod
    def save_only_these_names(*names: str) -> calls.Policy:
        """Keeps the values that :func:`checkpoint_name` gave one of these names."""
        return lambda equation: equation.op is calls.name and equation.params["name"] in names

    @staticmethod
    def save_anything_except_these_names(*names: str) -> calls.Policy:
        """Keeps everything except the values with these names."""
        return lambda equation: not (equation.op is calls.name and equation.params["name"] in names)

    @staticmethod
    def save_any_names_but_these(*names: str) -> calls.Policy:
        """Keeps the named values except these."""
        return lambda equation: equation.op is calls.name and equation.params["name"] not in names

    @staticmethod
    def save_from_both_policies(first: calls.Policy, second: calls.Policy) -> calls.Policy:
        """Keeps what either policy keeps."""
        return lambda equation: first(equation) or second(equation)
