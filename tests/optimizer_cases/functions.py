"""Functions of trees that are compared with optax's: for each name calls with the same result in both libraries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)
# Two leaves of one shape, so that they share compiled code.
X = {"w": RNG.normal(size=(3, 4)), "b": RNG.normal(size=(3, 4)), "s": np.asarray(0.3)}
Y = {"w": RNG.normal(size=(3, 4)), "b": RNG.normal(size=(3, 4)), "s": np.asarray(-1.7)}
Z = {"w": RNG.uniform(size=(3, 4)), "b": RNG.uniform(size=(3, 4)), "s": np.asarray(0.9)}
MIXED = {"w": np.ones(2, "float32"), "b": np.ones(2, "float64")}


def state(o: Any) -> Any:
    """A state with names that occur once, twice, and inside others."""
    return o.chain(o.adam(0.1), o.trace(0.9)).init(X)


# Functions of the module and of its library.
TREE = {
    "add": [lambda t, o: t.add(X, Y), lambda t, o: t.add(X, Y, Z)],
    "add_scale": [
        lambda t, o: t.add_scale(X, 0.3, Y),
        lambda t, o: t.add_scale({"a": None, "b": 1.0}, 0.3, {"a": None, "b": 2.0}),
    ],
    "allclose": [
        lambda t, o: t.allclose(X, X),
        lambda t, o: t.allclose(X, Y),
        lambda t, o: t.allclose(X, Y, atol=9.0),
        lambda t, o: t.allclose({}, {}),
    ],
    "batch_shape": [lambda t, o: t.batch_shape(X, (2, 1)), lambda t, o: t.batch_shape(X)],
    "bias_correction": [lambda t, o: t.bias_correction(as_arrays(o, X), 0.9, count(o))],
    "cast": [lambda t, o: t.cast(as_arrays(o, X), "float32"), lambda t, o: t.cast(X, None)],
    "cast_like": [lambda t, o: t.cast_like(as_arrays(o, X), {k: x.astype("float32") for k, x in X.items()})],
    "clip": [lambda t, o: t.clip(X, -0.5, 0.5), lambda t, o: t.clip(X, max_value=0.1)],
    "div": [lambda t, o: t.div(X, Y)],
    "dtype": [
        lambda t, o: named(t.dtype(X)),
        lambda t, o: named(t.dtype(MIXED, "lowest")),
        lambda t, o: named(t.dtype(MIXED, "highest")),
        lambda t, o: named(t.dtype(MIXED, "promote")),
    ],
    "full_like": [lambda t, o: t.full_like(X, 3.0), lambda t, o: t.full_like(X, 2, "float32")],
    "get": [lambda t, o: t.get(state(o), "nu"), lambda t, o: t.get(state(o), "absent", 7.0)],
    "get_all_with_path": [
        lambda t, o: [value for _, value in t.get_all_with_path(state(o), "count")],
        lambda t, o: [value for _, value in t.get_all_with_path(state(o), "w")],
        lambda t, o: [value.mu for _, value in t.get_all_with_path(state(o), "ScaleByAdamState")],
        lambda t, o: [value for _, value in t.get_all_with_path(state(o), "b", lambda path, _: path[-2].name == "mu")],
    ],
    "map_params": [
        lambda t, o: t.map_params(o.adam(0.1), lambda p, x: p + x, o.adam(0.1).init(X), Y),
        lambda t, o: t.map_params(
            o.adam(0.1).init, lambda p: p + 1, o.adam(0.1).init(X), transform_non_params=lambda n: n + 5
        ),
        lambda t, o: t.map_params(
            o.masked(o.trace(0.9), {"w": True, "b": False, "s": True}),
            lambda p: p + 1,
            o.masked(o.trace(0.9), {"w": True, "b": False, "s": True}).init(X),
        ),
    ],
    "max": [lambda t, o: t.max(X), lambda t, o: t.max({"none": np.zeros((0, 2))})],
    "min": [lambda t, o: t.min(X), lambda t, o: t.min({"none": np.zeros((0, 2))})],
    "mul": [lambda t, o: t.mul(X, Y)],
    "norm": [
        lambda t, o: t.norm(X),
        *(lambda t, o, k=k, q=q: t.norm(X, k, q) for k in (1, 2, math.inf, "inf") for q in (False, True)),
    ],
    "ones_like": [lambda t, o: t.ones_like(X), lambda t, o: t.ones_like(X, "float32")],
    "random_like": [lambda t, o: t.random_like(key(o), {"a": np.zeros(3, "float32"), "b": np.zeros(3, "float32")})],
    "scale": [lambda t, o: t.scale(0.3, X)],
    "set": [
        lambda t, o: t.set(state(o), count=5, trace=X),
        lambda t, o: t.set(state(o), lambda path, _: path[-2].name == "nu", w=3.0),
    ],
    "size": [lambda t, o: t.size(X), lambda t, o: t.size({})],
    "split_key_like": [lambda t, o: t.split_key_like(key(o), X)],
    "sub": [lambda t, o: t.sub(X, Y)],
    "sum": [lambda t, o: t.sum(X), lambda t, o: t.sum({})],
    "update_infinity_moment": [lambda t, o: t.update_infinity_moment(X, Z, 0.9, 1e-3)],
    "update_moment": [lambda t, o, k=k: t.update_moment(X, Y, 0.9, k) for k in (1, 2, 3)],
    "update_moment_per_elem_norm": [lambda t, o: t.update_moment_per_elem_norm(X, Y, 0.9, 2)],
    "vdot": [lambda t, o: t.vdot(X, Y), lambda t, o: t.vdot({}, {})],
    "where": [lambda t, o: t.where(True, X, Y), lambda t, o: t.where(np.asarray(False), X, Y)],
    "zeros_like": [lambda t, o: t.zeros_like(X), lambda t, o: t.zeros_like(X, "float32")],
}
# Functions of the module and a tree, whose derivatives are compared, too.
PROJECTIONS = {
    "projection_box": [lambda p, x: p.projection_box(x, Y, Z), lambda p, x: {"w": p.projection_box(x["w"], -0.5, 0.5)}],
    "projection_halfspace": [lambda p, x, b=b: p.projection_halfspace(x, Y, b) for b in (-2.0, 20.0)],
    "projection_hypercube": [lambda p, x, s=s: {"w": p.projection_hypercube(x["w"], *s)} for s in ((), (Z["w"],))],
    "projection_hyperplane": [lambda p, x: p.projection_hyperplane(x, Y, 0.7)],
    "projection_l1_ball": [lambda p, x, s=s: p.projection_l1_ball(x, s) for s in (2.5, 100.0)],
    "projection_l1_sphere": [lambda p, x: p.projection_l1_sphere(x, 2.5)],
    "projection_l2_ball": [lambda p, x, s=s: p.projection_l2_ball(x, s) for s in (2.5, 100.0)],
    "projection_l2_sphere": [lambda p, x: p.projection_l2_sphere(x, 2.5)],
    "projection_linf_ball": [lambda p, x: p.projection_linf_ball(x, 0.5)],
    "projection_non_negative": [lambda p, x: p.projection_non_negative(x)],
    "projection_simplex": [lambda p, x, s=s: p.projection_simplex(x, s) for s in (1, 100.0)],
    "projection_vector": [lambda p, x: p.projection_vector(x, Y)],
}
FUNCTIONS = {"tree": TREE.keys(), "projections": PROJECTIONS.keys()}


def as_arrays(o: Any, x: Any) -> Any:
    return o.tree.scale(1.0, o.tree.add(o.tree.zeros_like(x), x))


def count(o: Any) -> Any:
    return o.tree.sum({"t": np.asarray(3, "int32")})


def key(o: Any) -> Any:
    return o.noisy_sgd(0.1, key=7).init({})[0].rng_key


def named(dtype: Any) -> np.ndarray:
    return np.asarray(np.dtype(dtype).itemsize)
