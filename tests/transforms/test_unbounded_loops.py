"""Reverse mode around loops without a bound: it is refused only where a cotangent reaches the loop, as in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import GradientError


class Loops:
    """The functions under test, in one of the two libraries."""

    def __init__(self, lib, np):
        self.lib, self.np, self.lax = lib, np, lib.lax
        self.xs = np.asarray([2.0, 3.0])

    def march(self, a):
        """A float that a loop computes."""
        step = lambda s: (s[0] + a * 0.3, s[1] + 1)
        return self.lax.while_loop(lambda s: s[0] < a, step, (0.1, 0))[0]

    def count(self, a):
        """The number of steps of a loop."""
        return self.lax.while_loop(lambda s: s[0] < 9.0, lambda s: (s[0] * a, s[1] + 1), (0.1, 0))[1]

    def power(self, a):
        return self.lax.while_loop(lambda x: x < 9.0, lambda x: x * a[1], a[0])

    def stopped(self, a):
        return self.lax.stop_gradient(self.march(a)) * a * a


#: Programs that have a gradient, by name.
GRADIENTS = {
    "stopped": lambda m: m.lib.grad(m.stopped)(2.0),
    "compared": lambda m: m.lib.grad(lambda a: m.np.where(m.march(a) > 1, a, 0.0))(2.0),
    "rounded": lambda m: m.lib.grad(lambda a: (m.np.floor(m.march(a)) + m.np.sign(m.march(a))) * a)(2.0),
    "converted": lambda m: m.lib.grad(lambda a: m.np.asarray(m.march(a), "int32") * a)(2.0),
    "index": lambda m: m.lib.grad(lambda x: x[m.np.asarray(m.march(x[0]), "int32")] * 2)(m.xs),
    "argmax": lambda m: m.lib.grad(lambda a: m.np.argmax(m.march(a) * m.np.arange(3.0)) * a)(2.0),
    "count": lambda m: m.lib.grad(lambda a: m.count(a) * a)(2.0),
    "aux": lambda m: m.lib.value_and_grad(lambda a: (a * a, m.march(a)), has_aux=True)(2.0),
    "vjp with aux": lambda m: m.lib.vjp(lambda a: (a * a, m.march(a)), 2.0, has_aux=True)[1](1.0),
    "branch": lambda m: m.lib.grad(lambda a: m.lax.cond(a > 1, m.stopped, lambda a: a, a))(2.0),
    "stopped branch": lambda m: m.lib.grad(
        lambda a: m.lax.stop_gradient(m.lax.cond(a > 1, m.march, lambda a: a, a)) * a
    )(2.0),
    "scan": lambda m: m.lib.grad(lambda a: m.lax.scan(lambda t, x: (t + m.stopped(x * a), m.march(a)), 0.0, m.xs)[0])(
        2.0
    ),
    "stopped scan": lambda m: m.lib.grad(
        lambda a: m.lax.stop_gradient(m.lax.scan(lambda t, x: (t + m.march(x * a), None), 0.0, m.xs)[0]) * a
    )(2.0),
    "checkpoint": lambda m: m.lib.grad(m.lib.checkpoint(m.stopped))(2.0),
    "vmap of grad": lambda m: m.lib.vmap(m.lib.grad(m.stopped))(m.xs),
    "grad of vmap": lambda m: m.lib.grad(lambda x: m.np.sum(m.lib.vmap(m.stopped)(x)))(m.xs),
    "grad of grad": lambda m: m.lib.grad(m.lib.grad(lambda a: m.stopped(a) * a))(2.0),
    "hessian": lambda m: m.lib.hessian(lambda a: m.stopped(a) * a)(2.0),
    "jvp of grad": lambda m: m.lib.jvp(m.lib.grad(m.stopped), (2.0,), (1.0,)),
    "grad of jvp": lambda m: m.lib.grad(lambda a: m.lib.jvp(m.stopped, (a,), (1.0,))[1])(2.0),
    "traced bound": lambda m: m.lib.grad(
        lambda a: m.lax.stop_gradient(m.lax.fori_loop(0, m.np.asarray(a, "int32"), lambda i, x: x * a, 1.0)) * a
    )(2.0),
    "jacrev": lambda m: m.lib.jacrev(lambda x: m.count(x[0]) * x)(m.xs),
    "stopped jacfwd": lambda m: m.lib.grad(lambda a: m.lax.stop_gradient(m.lib.jacfwd(m.power)(a)).sum() * a[0])(m.xs),
    "linearize": lambda m: m.lib.linearize(m.power, m.xs)[1](m.xs),
    "linearize, value": lambda m: m.lib.linearize(lambda a: {"y": m.power(a) * a, "x": a}, m.xs)[0],
    "linearize, aux": lambda m: m.lib.linearize(lambda a: (m.power(a), m.count(a[1])), m.xs, has_aux=True)[2],
    "linearize a stopped one": lambda m: m.lib.linearize(m.stopped, 2.0)[1](1.0),
    "vmap of a linear function": lambda m: m.lib.vmap(m.lib.linearize(m.power, m.xs)[1])(m.np.stack([m.xs, -m.xs])),
    "linearize a scan": lambda m: m.lib.linearize(
        lambda a: m.lax.scan(lambda t, x: (t * m.power(a * x), t), a[1], m.xs)[0], m.xs
    )[1](m.xs),
    "jacfwd of linearize": lambda m: m.lib.jacfwd(lambda a: m.lib.linearize(m.power, a)[1](m.xs))(m.xs),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_is_jaxs(name):
    wanted = jax.tree.leaves(GRADIENTS[name](Loops(jax, jnp)))
    ours = lambda: GRADIENTS[name](Loops(tvmfun, tnp))
    for got in (ours(), tvmfun.jit(ours)()):
        for one, other in zip(tvmfun.tree.leaves(got), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda m: tvmfun.grad(m.march)(2.0),
        lambda m: tvmfun.grad(lambda a: m.lax.scan(lambda t, x: (t + m.march(x * a), None), 0.0, m.xs)[0])(2.0),
        lambda m: tvmfun.grad(lambda a: m.lax.cond(a > 1, m.march, lambda a: a, a))(2.0),
        lambda m: tvmfun.vmap(tvmfun.grad(m.march))(m.xs),
        lambda m: tvmfun.grad(tvmfun.checkpoint(m.march))(2.0),
        lambda m: tvmfun.vjp(m.power, m.xs)[1](1.0),
    ],
    ids=["plain", "scan", "branch", "vmap", "checkpoint", "vjp"],
)
def test_cotangent_that_reaches_the_loop_is_refused(function):
    with pytest.raises(GradientError, match="max_steps"):
        function(Loops(tvmfun, tnp))
