"""L-BFGS with a line search, in a loop that ends where the gradient does."""

import pytest
from support.tutorials import compare


def program(jax, jnp, optax):
    def fun(w):
        return jnp.sum(100.0 * (w[1:] - w[:-1] ** 2) ** 2 + (1.0 - w[:-1]) ** 2)

    def run_opt(init_params, fun, opt, max_iter, tol):
        value_and_grad_fun = optax.value_and_grad_from_state(fun)

        def step(carry):
            params, state = carry
            value, grad = value_and_grad_fun(params, state=state)
            updates, state = opt.update(grad, state, params, value=value, grad=grad, value_fn=fun)
            params = optax.apply_updates(params, updates)
            return params, state

        def continuing_criterion(carry):
            _, state = carry
            iter_num = optax.tree_utils.tree_get(state, "count")
            grad = optax.tree_utils.tree_get(state, "grad")
            err = optax.tree_utils.tree_norm(grad)
            return (iter_num == 0) | ((iter_num < max_iter) & (err >= tol))

        init_carry = (init_params, opt.init(init_params))
        return jax.lax.while_loop(continuing_criterion, step, init_carry)

    solver = optax.lbfgs()
    params, _ = run_opt(jnp.zeros(4), fun, solver, max_iter=100, tol=1e-3)

    quadratic = lambda w: jnp.sum(jnp.arange(1.0, 5.0) * (w - 1.0) ** 2)
    backtracking = optax.chain(
        optax.sgd(1.0), optax.scale_by_backtracking_linesearch(max_backtracking_steps=15, store_grad=True)
    )
    w, line_state = jnp.zeros(4), backtracking.init(jnp.zeros(4))
    values = []
    for _ in range(5):
        value, grad = optax.value_and_grad_from_state(quadratic)(w, state=line_state)
        updates, line_state = backtracking.update(grad, line_state, w, value=value, grad=grad, value_fn=quadratic)
        w = optax.apply_updates(w, updates)
        values.append(quadratic(w))
    return {
        "solution": jnp.round(params, 2),
        "objective": jnp.round(fun(params), 4),
        "values": values,
        "w": w,
    }


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-3, atol=1e-4)
