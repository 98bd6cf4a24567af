"""Derivative rules by hand: stability, clipped gradients, and a fixed point."""

from functools import partial

import pytest
from support.tutorials import compare


def program(jax, jnp, lax):
    @jax.custom_jvp
    def log1pexp(x):
        return jnp.log(1.0 + jnp.exp(x))

    @log1pexp.defjvp
    def log1pexp_jvp(primals, tangents):
        (x,) = primals
        (x_dot,) = tangents
        return log1pexp(x), (1 - 1 / (1 + jnp.exp(x))) * x_dot

    @jax.custom_jvp
    def multiply(x, y):
        return x * y

    multiply.defjvps(lambda x_dot, primal_out, x, y: x_dot * y, lambda y_dot, primal_out, x, y: x * y_dot)

    @jax.custom_vjp
    def clip_gradient(lo, hi, x):
        return x

    def clip_gradient_fwd(lo, hi, x):
        return x, (lo, hi)

    def clip_gradient_bwd(res, g):
        lo, hi = res
        return None, None, jnp.clip(g, lo, hi)

    clip_gradient.defvjp(clip_gradient_fwd, clip_gradient_bwd)

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def fixed_point(f, a, x_guess):
        def cond_fun(carry):
            x_prev, x = carry
            return jnp.abs(x_prev - x) > 1e-6

        def body_fun(carry):
            _, x = carry
            return x, f(a, x)

        _, x_star = lax.while_loop(cond_fun, body_fun, (x_guess, f(a, x_guess)))
        return x_star

    def fixed_point_fwd(f, a, x_init):
        x_star = fixed_point(f, a, x_init)
        return x_star, (a, x_star)

    def rev_iter(f, packed, u):
        a, x_star, x_star_bar = packed
        _, vjp_x = jax.vjp(lambda x: f(a, x), x_star)
        return x_star_bar + vjp_x(u)[0]

    def fixed_point_rev(f, res, x_star_bar):
        a, x_star = res
        _, vjp_a = jax.vjp(lambda a: f(a, x_star), a)
        (a_bar,) = vjp_a(fixed_point(partial(rev_iter, f), (a, x_star, x_star_bar), x_star_bar))
        return a_bar, jnp.zeros_like(x_star)

    fixed_point.defvjp(fixed_point_fwd, fixed_point_rev)

    def newton_sqrt(a):
        return fixed_point(lambda a, x: 0.5 * (x + a / x), a, a)

    @jax.custom_gradient
    def cubed(x):
        return x**3, lambda g: (2.0 * g * x,)

    t = jnp.arange(0.0, 3.0, 0.5)
    clipped = lambda t: jax.vmap(jax.grad(lambda t: clip_gradient(-0.75, 0.75, jnp.sin(2.0 * t) / 2.0)))(t)
    return {
        "log1pexp": [log1pexp(3.0), jax.jit(jax.grad(log1pexp))(100.0), jax.vmap(jax.grad(log1pexp))(t)],
        "second": jax.grad(jax.grad(log1pexp))(0.5),
        "multiply": jax.grad(multiply, (0, 1))(2.0, 3.0),
        "clip": clipped(t),
        "newton": [newton_sqrt(2.0), jax.grad(newton_sqrt)(2.0), jax.jit(jax.vmap(newton_sqrt))(t + 1.0)],
        "second of newton": jax.grad(jax.grad(newton_sqrt))(2.0),
        "custom_gradient": [cubed(2.0), jax.grad(cubed)(2.0)],
    }


@pytest.mark.slow
def test_program():
    compare(program)
