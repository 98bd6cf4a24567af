"""Every public name of optax is in ``tvmfun.optim``, or here with a reason; assignments and perturbations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import optim, random
from tvmfun.errors import ArgumentError, ShapeError

#: Names of optax that are not here, and why.
NOT_HERE = {
    "": {
        "InjectHyperparamsState": "optax calls it deprecated; InjectStatefulHyperparamsState",
        "WrappedSchedule": "a class that optax wraps schedules in; here they are plain functions",
        "experimental": "optax promises nothing about it",
        "optimistic_adam": "optax calls it deprecated; optimistic_adam_v2",
    },
    "contrib": {
        "NormalizeState": "the transformation has an empty state",
        "SplitRealAndImaginaryState": "there are no complex numbers",
        "split_real_and_imaginary": "there are no complex numbers",
    },
    "schedules": {
        "InjectHyperparamsState": "optax calls it deprecated; InjectStatefulHyperparamsState",
        "StatefulSchedule": "a protocol; any object with init and update serves",
        "WrappedSchedule": "a class that optax wraps schedules in; here they are plain functions",
    },
    "transforms": {
        "ConditionFn": "a protocol; any function serves",
        "unitwise_clip": "a part of adaptive_grad_clip",
        "unitwise_norm": "a part of adaptive_grad_clip",
    },
    "tree": {
        "conj": "there are no complex numbers",
        "real": "there are no complex numbers",
        "unwrap_random_key_data": "keys are plain arrays",
    },
    "tree_utils": {
        "functools": "a module of Python",
        "tree_conj": "there are no complex numbers",
        "tree_real": "there are no complex numbers",
        "tree_unwrap_random_key_data": "keys are plain arrays",
        "typing": "a module of Python",
    },
    "assignment": {},
    "losses": {},
    "perturbations": {},
    "projections": {},
    "second_order": {},
}


@pytest.mark.parametrize("module", NOT_HERE, ids=lambda module: module or "optax")
def test_every_name_is_here_or_has_a_reason(module):
    theirs, ours = (getattr(m, module) if module else m for m in (optax, optim))
    names = {name for name in dir(theirs) if not name.startswith("_")}
    missing = {name for name in names if not hasattr(ours, name)}
    assert missing == {name for name in NOT_HERE[module] if name in names}


def test_second_names():
    assert optim.multi_transform is optim.partition
    assert optim.transforms.MultiSteps is optim.MultiSteps
    assert "MultiSteps" in dir(optim.transforms)
    assert optim.losses.l2_loss is optim.l2_loss
    assert optim.tree_utils.tree_add is optim.tree.add
    assert optim.schedules.inject_hyperparams is optim.inject_hyperparams
    with pytest.raises(AttributeError):
        optim.transforms.no_such_name


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 7), (7, 3), (6, 6), (1, 5)])
def test_assignment_is_that_of_optax(shape):
    costs = np.random.default_rng(shape[0]).normal(size=(3, *shape)).astype("float32")
    rows, columns = tvmfun.jit(tvmfun.vmap(optim.assignment.hungarian_algorithm))(costs)
    for cost, i, j in zip(costs, np.asarray(rows), np.asarray(columns), strict=True):
        theirs = optax.assignment.hungarian_algorithm(jnp.asarray(cost))
        assert {*zip(i, j, strict=True)} == {*zip(*map(np.asarray, theirs), strict=True)}
        assert len({*i}) == len({*j}) == min(shape)


@pytest.mark.slow
def test_assignment_of_nothing_and_of_integers():
    rows, columns = optim.assignment.hungarian_algorithm(tnp.zeros((0, 3)))
    assert rows.shape == columns.shape == (0,)
    costs = np.array([[4, 1, 3], [2, 0, 5], [3, 2, 2]])
    i, j = map(np.asarray, optim.assignment.base_hungarian_algorithm(costs))
    assert costs[i, j].sum() == 5
    for bad in (np.nan, np.inf, -np.inf):  # any assignment, but an end
        assert len(set(np.asarray(optim.assignment.hungarian_algorithm(np.full((2, 3), bad))[1]))) == 2
    with pytest.raises(ShapeError, match="two axes"):
        optim.assignment.hungarian_algorithm(np.zeros(3))


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["Gumbel", "Normal"])
@pytest.mark.parametrize("use_baseline", [True, False])
def test_perturbations_are_those_of_optax(noise, use_baseline):
    x = {"a": np.array([0.3, -0.2], "float32"), "b": np.float32(0.5)}

    def estimates(module, o, numbers, key):
        def fun(x):
            return numbers.sum(numbers.maximum(x["a"], 0.0)) * x["b"]

        smooth = o.perturbations.make_perturbed_fun(fun, 50, 0.5, getattr(o.perturbations, noise)(), use_baseline)
        return module.jit(module.value_and_grad(smooth, argnums=1))(key, x)

    expected = jax.device_get(estimates(jax, optax, jnp, jax.random.key(1)))
    found = tvmfun.device_get(estimates(tvmfun, optim, tnp, random.key(1)))
    for ours, theirs in zip(tvmfun.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-4)
    with pytest.raises(ArgumentError, match="samples"):
        optim.perturbations.make_perturbed_fun(lambda x: x, 0)


def test_perturbations_in_float64():
    smooth = optim.perturbations.make_perturbed_fun(lambda x: tnp.sum(tnp.sign(x)), 10)
    with x64():
        assert tvmfun.grad(smooth, argnums=1)(random.key(0), np.zeros(2)).dtype == "float64"
