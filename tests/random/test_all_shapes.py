"""Draws outside of compiled functions: one module serves all shapes, and gives the bits of each shape's own."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, random
from tvmfun.counters import counted

KEY = random.key(7)
SHAPES = [(3,), (), (1,), (2, 5), (7, 1, 3), (1000,), (33, 65)]
DRAWS = {
    "bits": lambda key, shape: random.bits(key, shape),
    "uint64": lambda key, shape: random.bits(key, shape, "uint64"),
    "uint8": lambda key, shape: random.bits(key, shape, "uint8"),
    "uniform": lambda key, shape: random.uniform(key, shape, minval=-0.3, maxval=0.7),
    "float64": lambda key, shape: random.uniform(key, shape, "float64", -1.5, 2.0),
    "bfloat16": lambda key, shape: random.uniform(key, shape, "bfloat16", -0.3, 0.7),
    "float16": lambda key, shape: random.normal(key, shape, "float16"),
    "normal": lambda key, shape: random.normal(key, shape),
    "truncated normal": lambda key, shape: random.truncated_normal(key, -1.0, 2.0, shape),
    "exponential": lambda key, shape: random.exponential(key, shape),
    "laplace": lambda key, shape: random.laplace(key, shape),
    "logistic": lambda key, shape: random.logistic(key, shape),
    "cauchy": lambda key, shape: random.cauchy(key, shape),
    "keys": lambda key, shape: random.split(key, shape),
    "initializer": lambda key, shape: nn.init.normal(0.3)(key, shape),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_bits_are_those_of_a_compiled_function(name):
    draw = DRAWS[name]
    of_one_program = tvmfun.jit(lambda key: [draw(key, shape) for shape in SHAPES])(KEY)
    for shape, compiled in zip(SHAPES, of_one_program, strict=True):
        eager = draw(KEY, shape)
        assert eager.aval == compiled.aval
        assert np.asarray(eager).tobytes() == np.asarray(compiled).tobytes()


def test_one_module_draws_all_shapes():
    for draw in (random.normal, random.split, nn.init.he_normal()):
        draw(KEY, (5, 3))
    with counted() as events:
        for n in range(20, 25):
            random.normal(KEY, (n, 3))
            random.split(KEY, n)
            nn.init.he_normal()(KEY, (n, 2))
    assert events.compiles + events.loads == 0


def test_layers_of_new_sizes_compile_nothing():
    for layer in (nn.Linear(4, 5, key=KEY), nn.Conv2d(2, 3, 3, key=KEY)):
        assert tvmfun.tree.leaves(layer)
    with counted() as events:
        layers = [nn.Linear(6, 7, key=KEY), nn.Linear(8, 9, key=KEY), nn.Conv2d(4, 5, 2, key=KEY)]
    assert events.compiles + events.loads == 0
    compiled = tvmfun.jit(lambda key: nn.Linear(8, 9, key=key))(KEY)
    for eager, other in zip(tvmfun.tree.leaves(layers[1]), tvmfun.tree.leaves(compiled), strict=True):
        np.testing.assert_array_equal(np.asarray(eager), np.asarray(other))


def test_nothing_many_keys_and_bounds_that_are_arrays():
    assert random.normal(KEY, (0, 3)).shape == (0, 3)
    keys = random.split(KEY, 3)
    each = np.stack([np.asarray(random.normal(key, (4,))) for key in keys])
    np.testing.assert_array_equal(np.asarray(tvmfun.vmap(lambda key: random.normal(key, (4,)))(keys)), each)
    low = tnp.asarray([0.0, 10.0])
    between = np.asarray(random.uniform(KEY, (50, 2), minval=low, maxval=low + 1.0))
    assert (between >= [0, 10]).all()
    assert (between < [1, 11]).all()


def test_a_number_that_is_traced():
    slope = tvmfun.grad(lambda high: tnp.sum(random.uniform(KEY, (3,), maxval=high)))(2.0)
    np.testing.assert_allclose(float(slope), float(tnp.sum(random.uniform(KEY, (3,)))), 1e-6)
