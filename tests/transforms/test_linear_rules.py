"""Rules of ``custom_jvp`` that call functions with rules of their own on tangents, such as the function itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as jlax

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp

X = np.array([1.0, -2.0, 3.0], "float32")
M = np.arange(9, dtype="float32").reshape(3, 3)


def functions(jax, np, lax):
    """A linear function, a bilinear one, and others whose rules apply linear ones, in one library."""

    @jax.custom_jvp
    def triple(x):
        return 3.0 * x

    triple.defjvp(lambda primals, tangents: (triple(*primals), triple(*tangents)))

    @jax.custom_jvp
    def product(m, x):
        return m @ x

    @product.defjvp
    def _(primals, tangents):
        (m, x), (dm, dx) = primals, tangents
        return product(m, x), product(dm, x) + product(m, dx)

    @jax.custom_jvp
    def straight(x):
        return np.round(x)

    @straight.defjvp
    def _(primals, tangents):
        return straight(*primals), lax.scan(lambda c, _: (triple(c), None), tangents[0], None, length=2)[0]

    @jax.custom_jvp
    def square(x):
        return x * x

    @square.defjvp
    def _(primals, tangents):
        inner = jax.jit(lambda t: jax.vmap(triple)(t))
        return square(*primals), inner(primals[0] * tangents[0])

    return triple, product, straight, square


def losses(jax, np, lax):
    triple, product, straight, square = functions(jax, np, lax)
    return {
        "triple": lambda x: (triple(x) ** 3).sum(),
        "vmap": lambda x: (jax.vmap(triple)(x) ** 2).sum(),
        "jit": lambda x: (jax.jit(triple)(x) ** 2).sum(),
        "scan": lambda x: (lax.scan(lambda c, row: (triple(c) * row, triple(row)), x, x)[0]).sum(),
        "product": lambda x: (product(np.outer(x, x), x) ** 2).sum(),
        "straight": lambda x: (straight(x) * x).sum(),
        "square": lambda x: (square(x) * x).sum(),
        "checkpoint": lambda x: jax.checkpoint(lambda x: (triple(x) ** 2).sum())(x),
    }


ORDERS = {
    "grad": lambda lib, f: lib.grad(f),
    "jit of grad": lambda lib, f: lib.jit(lib.grad(f)),
    "reverse of reverse": lambda lib, f: lib.jacrev(lib.jacrev(f)),
    "forward of reverse": lambda lib, f: lib.hessian(f),
    "reverse of forward": lambda lib, f: lib.jacrev(lib.jacfwd(f)),
    "vmap of grad": lambda lib, f: lambda x: lib.vmap(lib.grad(f))(x * np.ones((2, 1), "float32")),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", losses(tvmfun, tnp, lax))
def test_derivatives(name, order):
    found = ORDERS[order](tvmfun, losses(tvmfun, tnp, lax)[name])(X)
    expected = ORDERS[order](jax, losses(jax, jnp, jlax)[name])(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_both_arguments_of_a_product():
    def gradients(library, np, lax):
        product = functions(library, np, lax)[1]
        return library.grad(lambda m, x: (product(m, x) ** 2).sum(), (0, 1))(M, X)

    for found, expected in zip(gradients(tvmfun, tnp, lax), gradients(jax, jnp, jlax), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rules_of_reverse_mode_on_tangents():
    @tvmfun.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (double(x), None), lambda _, g: (double(g),))

    @tvmfun.custom_jvp
    def f(x):
        return double(x)

    f.defjvp(lambda primals, tangents: (f(*primals), double(*tangents)))
    loss = lambda x: f(x) ** 2
    assert float(tvmfun.grad(loss)(3.0)) == 24 and float(tvmfun.grad(tvmfun.grad(loss))(3.0)) == 8


def test_what_a_rule_differentiates_itself_keeps_its_rules():
    @tvmfun.custom_jvp
    def scaled(x):
        return tnp.sin(x)

    scaled.defjvp(lambda primals, tangents: (scaled(*primals), 10 * tnp.cos(*primals) * tangents[0]))
    gradient = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(scaled(x))))

    @tvmfun.custom_vjp
    def double(a, x):
        return 2 * x

    double.defvjp(lambda a, x: (2 * x, a), lambda a, g: (tnp.zeros_like(a), g * gradient(a)))

    @tvmfun.custom_jvp
    def f(x):
        return 3 * x

    f.defjvp(lambda primals, tangents: (f(*primals), double(primals[0], tangents[0])))
    expected = 10 * np.cos(X)
    np.testing.assert_allclose(tvmfun.grad(lambda x: tnp.sum(f(x)))(X), expected, rtol=1e-6)
    np.testing.assert_allclose(gradient(X), expected, rtol=1e-6)
