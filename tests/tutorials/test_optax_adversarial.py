"""Training on examples that gradients of the input have made harder."""

import numpy as np
import pytest
from support.tutorials import compare


def program(jax, jnp, nn, optax):
    rng = np.random.default_rng(1)
    images = rng.uniform(size=(64, 10)).astype("float32")
    labels = (images[:, :5].sum(axis=1) > images[:, 5:].sum(axis=1)).astype("int32")
    params = {
        "hidden": {"kernel": (rng.normal(size=(10, 16)) / 3).astype("float32"), "bias": np.zeros(16, "float32")},
        "out": {"kernel": (rng.normal(size=(16, 2)) / 4).astype("float32"), "bias": np.zeros(2, "float32")},
    }
    L2_REG, EPSILON = 1e-4, 0.05

    def predict(params, x):
        x = nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        return x @ params["out"]["kernel"] + params["out"]["bias"]

    @jax.jit
    def loss_fun(params, l2reg, images, labels):
        sqnorm = optax.tree_utils.tree_norm(params, squared=True)
        loss_value = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels))
        return loss_value + 0.5 * l2reg * sqnorm

    @jax.jit
    def pgd_attack(image, label, params, epsilon=0.1, maxiter=10):
        image_perturbation = jnp.zeros_like(image)

        def adversarial_loss(perturbation):
            return loss_fun(params, 0, image + perturbation, label)

        grad_adversarial = jax.grad(adversarial_loss)
        for _ in range(maxiter):
            sign_grad = jnp.sign(grad_adversarial(image_perturbation))
            image_perturbation += (1.0 / maxiter) * sign_grad
            image_perturbation = optax.projections.projection_box(image_perturbation, -epsilon, epsilon)
        return jnp.clip(image + image_perturbation, 0, 1)

    optimizer = optax.adam(1e-2)

    @jax.jit
    def train_step(params, opt_state, images, labels):
        adversarial = pgd_attack(images, labels, params, EPSILON)
        loss, grads = jax.value_and_grad(loss_fun)(params, L2_REG, adversarial, labels)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, losses = optimizer.init(params), []
    for _ in range(15):
        params, opt_state, loss = train_step(params, opt_state, images, labels)
        losses.append(loss)
    attacked = pgd_attack(images[:8], labels[:8], params, EPSILON)
    return {"losses": losses, "params": params, "distance": jnp.max(jnp.abs(attacked - images[:8]))}


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-3, atol=1e-4)
