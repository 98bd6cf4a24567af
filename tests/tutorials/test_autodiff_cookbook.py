"""Derivatives of all kinds, of a logistic regression."""

import numpy as np
import pytest
from support.tutorials import compare


def program(jax, jnp, random):
    from functools import partial

    key = random.key(0)
    grad, jit, vmap, jvp, vjp = jax.grad, jax.jit, jax.vmap, jax.jvp, jax.vjp

    def sigmoid(x):
        return 0.5 * (jnp.tanh(x / 2) + 1)

    def predict(W, b, inputs):
        return sigmoid(jnp.dot(inputs, W) + b)

    inputs = jnp.array([[0.52, 1.12, 0.77], [0.88, -1.08, 0.15], [0.52, 0.06, -1.30], [0.74, -2.49, 1.39]])
    targets = jnp.array([True, True, False, True])

    def loss(W, b):
        preds = predict(W, b, inputs)
        label_probs = preds * targets + (1 - preds) * (1 - targets)
        return -jnp.sum(jnp.log(label_probs))

    key, W_key, b_key = random.split(key, 3)
    W, b = random.normal(W_key, (3,)), random.normal(b_key, ())

    def loss2(params_dict):
        return -loss(params_dict["W"], params_dict["b"])

    loss_value, Wb_grad = jax.value_and_grad(loss, (0, 1))(W, b)

    # The derivative along a direction, by finite differences and by grad.
    key, subkey = random.split(key)
    vec = random.normal(subkey, W.shape)
    unitvec = vec / jnp.sqrt(jnp.vdot(vec, vec))

    def hvp(f, primals, tangents):
        return jvp(grad(f), primals, tangents)[1]

    def hvp_revfwd(f, primals, tangents):
        g = lambda primals: jvp(f, primals, tangents)[1]
        return grad(g)(primals)

    def hvp_revrev(f, primals, tangents):
        return vjp(grad(f), *primals)[1](tangents[0])

    def f(X):
        return jnp.sum(jnp.tanh(X) ** 2)

    key, subkey1, subkey2 = random.split(key, 3)
    X, V = random.normal(subkey1, (6, 4)), random.normal(subkey2, (6, 4))

    of_W = lambda W: predict(W, b, inputs)
    y, _ = vjp(of_W, W)
    key, subkey = random.split(key)
    U = random.normal(subkey, (10, *y.shape))

    def vmap_mjp(f, x, M):
        _, vjp_fun = vjp(f, x)
        (outs,) = vmap(vjp_fun)(M)
        return outs

    def vmap_jmp(f, W, M):
        push = lambda v: jvp(f, (W,), (v,))
        _, pushfwds = vmap(push, out_axes=(None, 0))(M)
        return pushfwds

    S = random.normal(key, (5, *W.shape))

    def our_jacrev(f):
        def jacfun(x):
            y, vjp_fun = vjp(f, x)
            (J,) = vmap(vjp_fun, in_axes=0)(jnp.eye(len(y)))
            return J

        return jacfun

    def our_jacfwd(f):
        def jacfun(x):
            _jvp = lambda s: jvp(f, (x,), (s,))[1]
            Jt = vmap(_jvp, in_axes=1)(jnp.eye(len(x)))
            return jnp.transpose(Jt)

        return jacfun

    def predict_dict(params, inputs):
        return predict(params["W"], params["b"], inputs)

    @partial(jit, static_argnums=0)
    def directional(f, x, v):
        return jnp.vdot(grad(f)(x), v)

    jac_fun = jax.jacrev(jax.jit(of_W))
    return {
        "tanh": [grad(jnp.tanh)(2.0), grad(grad(jnp.tanh))(2.0), grad(grad(grad(jnp.tanh)))(2.0)],
        "grads": [grad(loss, argnums=0)(W, b), grad(loss, 1)(W, b), grad(loss, (0, 1))(W, b)],
        "dict": grad(loss2)({"W": W, "b": b}),
        "value_and_grad": [loss_value, Wb_grad],
        "directional": directional(lambda W: loss(W, b), W, unitvec),
        "hvp": hvp(f, (X,), (V,)),
        "hvp_revfwd": hvp_revfwd(f, (X,), (V,)),
        "hvp_revrev": hvp_revrev(f, (X,), (V,)),
        "hvp_tensordot": jnp.tensordot(jax.hessian(f)(X), V, 2),
        "jacobians": [jac_fun(W), jax.jacfwd(of_W)(W), our_jacrev(of_W)(W), our_jacfwd(of_W)(W)],
        "dict jacobian": jax.jacrev(predict_dict)({"W": W, "b": b}, inputs),
        "hessian": jax.hessian(of_W)(W),
        "mjp": vmap_mjp(of_W, W, U),
        "jmp": vmap_jmp(of_W, W, S),
        "linearize": jax.linearize(of_W, W)[1](S[0]),
        "numpy": grad(lambda x: jnp.sum(x**2))(np.ones(3, "float32")),
    }


@pytest.mark.slow
def test_program():
    compare(program)
