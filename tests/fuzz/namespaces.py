"""The names that programs are written in, once with the meaning of JAX and once with that of tvmfun."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.lax import segment

SHARED_TRANSFORMS = (
    "grad", "vmap", "jvp", "vjp", "checkpoint", "jacfwd", "jacrev", "hessian", "value_and_grad", "custom_vjp",
    "custom_jvp",
)  # fmt: skip
SEGMENTS = ("segment_sum", "segment_max", "segment_min", "segment_prod")
ACTIVATIONS = (
    "softmax", "log_softmax", "logsumexp", "relu", "silu", "softplus", "elu", "selu", "celu", "leaky_relu", "relu6",
    "hard_tanh", "log_sigmoid", "soft_sign", "hard_sigmoid", "glu", "mish", "gelu",
)  # fmt: skip


def _bounded_loop(condition: Any, body: Any, start: Any, most: int) -> Any:
    """JAX's ``while_loop`` with a bound on its steps, and so with a reverse mode."""

    def step(state: Any, _: Any) -> Any:
        going = condition(state)
        chosen = lambda new, old: jnp.where(going, jnp.asarray(new, jnp.result_type(old)), old)
        # A step that is not made has no part in the derivative, which may be infinite there.
        made = jax.tree.map(lambda x: jnp.where(going, x, jax.lax.stop_gradient(x)), state)
        return jax.tree.map(chosen, body(made), state), None

    return jax.lax.scan(step, jax.tree.map(jnp.asarray, start), None, length=most)[0]


def _custom(module: Any, xp: Any) -> dict[str, Any]:
    """Functions whose derivatives are not those of their values."""

    @module.custom_vjp
    def tripled(x):
        return xp.sin(x)

    tripled.defvjp(lambda x: (xp.sin(x), x), lambda x, g: (g * xp.cos(x) * 3,))

    @module.custom_jvp
    def linear(x):
        return x * x

    @linear.defjvp
    def _(primals, tangents):
        return primals[0] * primals[0], 5 * tangents[0]

    return {"cvjp": tripled, "cjvp": linear}


@cache
def jax_names() -> dict[str, Any]:
    """The names for JAX."""
    activations = {name: getattr(jax.nn, name) for name in ACTIVATIONS if hasattr(jax.nn, name)}
    activations["gelu"] = partial(jax.nn.gelu, approximate=False)
    return {
        "np": jnp,
        "onp": np,
        "lax": jax.lax,
        "random": jax.random,
        "key": jax.random.PRNGKey,
        "jit": jax.jit,
        "nn": SimpleNamespace(**activations),
        "while_": _bounded_loop,
        **{name: getattr(jax, name) for name in SHARED_TRANSFORMS},
        **{name: getattr(jax.ops, name) for name in SEGMENTS},
        **_custom(jax, jnp),
    }


@cache
def own_names() -> dict[str, Any]:
    """The names for tvmfun."""
    functional = tvmfun.nn.functional
    activations = {name: getattr(functional, name) for name in ACTIVATIONS if hasattr(functional, name)}
    activations["gelu"] = partial(functional.gelu, approximate=False)
    return {
        "np": tnp,
        "onp": np,
        "lax": tvmfun.lax,
        "random": tvmfun.random,
        "key": tvmfun.random.key,
        "jit": tvmfun.jit,
        "nn": SimpleNamespace(**activations),
        "while_": lambda condition, body, start, most: tvmfun.lax.while_loop(condition, body, start, max_steps=most),
        **{name: getattr(tvmfun, name) for name in SHARED_TRANSFORMS},
        **{name: getattr(segment, name) for name in SEGMENTS},
        **_custom(tvmfun, tnp),
    }
