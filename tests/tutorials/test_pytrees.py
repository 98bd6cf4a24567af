"""Trees of parameters: maps, paths, classes that become nodes, and a small network trained on them."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.tutorials import compare


def program(jax, jnp):
    tree_util = jax.tree_util
    list_of_lists = [[1, 2, 3], [1, 2], [1, 2, 3, 4]]
    another = [[1, 1, 1], [1, 1], [1, 1, 1, 1]]

    @tree_util.register_pytree_node_class
    class Special:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def tree_flatten(self):
            return (self.x, self.y), None

        @classmethod
        def tree_unflatten(cls, aux_data, children):
            return cls(*children)

    class RegularPoint:
        def __init__(self, value, name):
            self.value, self.name = value, name

    tree_util.register_pytree_node(
        RegularPoint, lambda p: ((p.value,), {"name": p.name}), lambda aux, c: RegularPoint(*c, aux["name"])
    )

    @partial(tree_util.register_dataclass, data_fields=["a", "b"], meta_fields=["name"])
    @dataclass
    class MyDataclassContainer:
        name: str
        a: Any
        b: Any

    class MyOtherContainer(NamedTuple):
        name: Any
        a: Any

    @tree_util.register_static
    class StaticStr(str):
        pass

    tree = [1, {"k1": 2, "k2": (3, 4)}, MyOtherContainer(5, 6), MyDataclassContainer("apple", 7, 8), Special(9, 10)]
    flattened, _ = tree_util.tree_flatten_with_path(tree)
    paths = [tree_util.keystr(path) for path, _ in flattened]
    assert paths == [
        *("[0]", "[1]['k1']", "[1]['k2'][0]", "[1]['k2'][1]", "[2].name", "[2].a", "[3].a", "[3].b"),
        *("[4][<flat index 0>]", "[4][<flat index 1>]"),
    ]
    keys = [
        "/".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", None)))) for k in path)
        for path, _ in flattened
    ]
    assert isinstance(flattened[1][0][1], tree_util.DictKey) and flattened[1][0][0] == tree_util.SequenceKey(1)
    assert keys[1] == "1/k1" and tree_util.keystr(flattened[1][0], simple=True, separator="/") == keys[1]
    assert [(type(p).__name__, p.value) for p in [RegularPoint(1, "x")]] == [("RegularPoint", 1)]

    @jax.jit
    def doubled(point):
        return tree_util.tree_map(lambda x: 2.0 * x, point)

    point = doubled(RegularPoint(3.0, "p"))
    assert point.name == "p"

    episode_steps = [{"t": t, "obs": float(t) ** 2} for t in range(3)]
    transposed = tree_util.tree_transpose(
        tree_util.tree_structure([0 for e in episode_steps]), tree_util.tree_structure(episode_steps[0]), episode_steps
    )

    rng = np.random.default_rng(0)

    def init_mlp_params(layer_widths):
        params = []
        for n_in, n_out in pairwise(layer_widths):
            weights = (rng.normal(size=(n_in, n_out)) * np.sqrt(2 / n_in)).astype("float32")
            params.append({"weights": jnp.asarray(weights), "biases": jnp.ones(shape=(n_out,))})
        return params

    def forward(params, x):
        *hidden, last = params
        for layer in hidden:
            x = jax.nn.relu(x @ layer["weights"] + layer["biases"])
        return x @ last["weights"] + last["biases"]

    def loss_fn(params, x, y):
        return jnp.mean((forward(params, x) - y) ** 2)

    @jax.jit
    def update(params, x, y):
        grads = jax.grad(loss_fn)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.0001 * g, params, grads)

    params = init_mlp_params([1, 128, 128, 1])
    xs = np.linspace(-1, 1, 64, dtype="float32")[:, None]
    for _ in range(50):
        params = update(params, xs, xs**2)

    add = tree_util.Partial(lambda x, y: x + y, 10)
    return {
        "map": jax.tree.map(lambda x: x * 2, list_of_lists),
        "two": jax.tree.map(lambda x, y: x + y, list_of_lists, another),
        "leaves": tree_util.tree_leaves([(1, 2, {"k": None}), StaticStr("s")]),
        "reduce": tree_util.tree_reduce(lambda a, b: a + b, list_of_lists),
        "all": int(tree_util.tree_all([True, [1, 0]])),
        "transposed": transposed,
        "point": point.value,
        "special": jax.tree.map(lambda x: x + 1, Special(1, 2)).y,
        "grad": jax.grad(lambda c: c.a * c.b)(MyDataclassContainer("apple", 2.0, 3.0)).a,
        "partial": jax.jit(lambda f, x: f(x))(add, 5),
        "broadcast": jax.tree.broadcast({"a": 1, "b": 2}, {"a": [0, 0], "b": 0}),
        "loss": loss_fn(params, xs, xs**2),
        "params": jax.tree.map(jnp.sum, params),
        "ravel": jax.flatten_util.ravel_pytree({"a": jnp.ones(2), "b": 3.0})[0],
    }


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-4)
