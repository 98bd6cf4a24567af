"""``x.at[index]`` against JAX: every update with every treatment of indices outside the array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import derivatives
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError, ConcretizationError, IndexingError, ShapeError

RNG = np.random.default_rng(9)
X = RNG.uniform(0.5, 2, (4, 3))
UPDATES = ["set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max"]
MODES = [None, "drop", "fill", "clip", "promise_in_bounds"]
INDICES: dict[str, Any] = {
    "vector": np.asarray([0, 2, 2, -1]),
    "outside": np.asarray([0, 9, -9, 2]),
    "pair": (np.asarray([0, 3, 9]), np.asarray([1, -1, 0])),
    "behind": (slice(None), np.asarray([0, 2, 2])),
    "grid": (np.asarray([[1], [0]]), np.asarray([0, 2])),
    "slice": slice(1, 3),
    "step": (slice(None, None, -2), 1),
    "integer": (2, -1),
    "new axis": (None, 1),
    "everything": ...,
}


def inside(index: Any) -> Any:
    """The index, clamped to the array."""
    if isinstance(index, tuple):
        return tuple(map(inside, index))
    return np.where(np.abs(index) > 3, 0, index) if isinstance(index, np.ndarray) else index


def values_for(index: Any) -> np.ndarray:
    return RNG.uniform(0.5, 2, X[inside(index)].shape)


@pytest.mark.quick("slice")
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_updates_and_their_derivatives(index: Any):
    """All updates in one program."""
    values = values_for(index)
    choices = [(name, None) for name in UPDATES]
    if "array" in repr(index):  # others have no elements outside
        choices += [
            ("set", "clip"),
            ("add", "clip"),
            ("multiply", "clip"),
            ("max", "clip"),
            ("add", "drop"),
            ("set", "fill"),
        ]
    # JAX cannot differentiate products at possibly repeated indices, and is wrong about a clipped maximum.
    differentiated = [(name, mode) for name, mode in choices if name in ("set", "add", "subtract", "min", "max")]
    differentiated = [choice for choice in differentiated if choice != ("max", "clip")]

    def outcome(xp: Any, vjp: Any, x: Any, values: Any) -> Any:
        update = lambda choice, x, values: getattr(x.at[index], choice[0])(values, mode=choice[1])
        _, pull = vjp(lambda *point: [update(choice, *point) for choice in differentiated], x, values)
        return [update(choice, x, values) for choice in choices], pull([x * i for i in range(len(differentiated))])

    with x64():
        expected = outcome(jnp, jax.vjp, jnp.asarray(X), jnp.asarray(values))
    got = tvmfun.jit(lambda x, values: outcome(tnp, tvmfun.vjp, x, values))(X, values)
    for choice, ours, theirs in zip(choices, got[0], expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=str(choice))
    for ours, theirs in zip(got[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    eager = tnp.asarray(X).at[index].multiply(values)
    np.testing.assert_allclose(eager, got[0][choices.index(("multiply", None))], rtol=1e-12)


#: Static integers outside of the array, among slices, None, other integers and arrays.
FAR = [9, -9, 2**30, np.int64(7), (9, slice(1, 3)), (slice(None), 8), (..., -5), (1, None, 7), (np.array([0, 1]), 9)]


@pytest.mark.parametrize("index", FAR, ids=str)
def test_modes_of_static_integers_outside_of_the_array(index):
    """Without a mode they are an error."""
    modes = [(name, mode) for name in ("set", "add", "max", "multiply") for mode in ("drop", "fill", "clip")]

    def outcome(xp: Any, grad: Any, x: Any) -> Any:
        taken = [x.at[index].get(mode=mode, fill_value=7.0) for mode in ("fill", "clip")]
        slope = grad(lambda x: xp.sum(x.at[index].get(mode="clip") ** 2))(x)
        return *taken, slope, *(getattr(x.at[index], name)(5.0, mode=mode) for name, mode in modes)

    with x64():
        expected = outcome(jnp, jax.grad, jnp.asarray(X))
    for compile_ in (lambda f: f, tvmfun.jit):
        got = compile_(lambda x: outcome(tnp, tvmfun.grad, x))(tnp.asarray(X))
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    doubled = tnp.asarray(X).at[index].apply(lambda x: 2 * x, mode="drop")
    np.testing.assert_allclose(doubled, tnp.asarray(X).at[index].multiply(2, mode="drop"))
    for name, options in (("get", {}), ("set", {}), ("get", {"mode": "promise_in_bounds"})):
        with pytest.raises(IndexingError, match=r"axis \d has \d elements"):
            getattr(tnp.asarray(X).at[index], name)(*([1.0] if name == "set" else []), **options)


@pytest.mark.quick("step", "outside")
@pytest.mark.parametrize("name", ["vector", "outside", "step"])
def test_derivatives_that_jax_lacks(name: str):
    index = INDICES[name]

    def results(x: Any, values: Any) -> Any:
        places = x.at[index]
        return places.multiply(values), places.divide(values), places.power(values), places.max(values, mode="clip")

    derivatives.check(results, [X, values_for(index)], order=1)


@pytest.mark.quick("rows")
@pytest.mark.parametrize(
    "index", [INDICES["outside"], INDICES["pair"], INDICES["behind"]], ids=["rows", "pairs", "columns"]
)
def test_get(index: Any):
    options = [{"mode": m} for m in MODES if m != "promise_in_bounds"] + [{"mode": "fill", "fill_value": 7.0}]
    for x in (X, X.astype("int32"), X > 1):
        with x64():
            expected = [jnp.asarray(x).at[index].get(**o) for o in options]
        got = tvmfun.jit(lambda x: [x.at[index].get(**o) for o in options])(x)
        for o, ours, theirs in zip(options, got, expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs, str(o))
            np.testing.assert_array_equal(tnp.asarray(x).at[index].get(**o), theirs, str(o))


def test_promises():
    """A promise that holds does not change the result."""
    x, index = tnp.asarray(X), np.asarray([3, 0])
    for options in ({"mode": "promise_in_bounds"}, {"indices_are_sorted": False}, {"unique_indices": True}):
        np.testing.assert_array_equal(x.at[index].add(1.0, **options), x.at[index].add(1.0))
        np.testing.assert_array_equal(x.at[index].get(**options), X[index])


def test_unique_indices():
    x, index = tnp.zeros((5, 2)), np.asarray([4, 0, 2])
    values = RNG.uniform(0, 1, (3, 2)).astype("float32")
    expected = np.zeros((5, 2), "float32")
    expected[index] = values
    update = lambda x: x.at[index].set(values, unique_indices=True, indices_are_sorted=False)
    np.testing.assert_array_equal(update(x), expected)
    np.testing.assert_array_equal(tvmfun.jit(update)(x), expected)


def test_apply():
    x = tnp.asarray(X)
    expected = X.copy()
    expected[[0, 2]] = np.sin(X[[0, 2]])
    for index in (np.asarray([0, 2]), slice(0, 3, 2), np.asarray([True, False, True, False])):
        np.testing.assert_allclose(x.at[index].apply(tnp.sin), expected, rtol=1e-15)
    np.testing.assert_allclose(tvmfun.jit(lambda x, m: x.at[m].apply(tnp.sin))(X, X > 1), np.where(X > 1, np.sin(X), X))


@pytest.mark.slow
def test_traced_masks():
    for name in ("set", "add", "multiply", "min", "max", "divide", "power"):
        got = tvmfun.jit(lambda x, mask, n=name: getattr(x.at[mask], n)(2.0))(X, X > 1)
        expected = getattr(jnp.asarray(X.astype("float32")).at[X > 1], name)(2.0)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    with pytest.raises(ConcretizationError, match="takes one value"):
        tvmfun.jit(lambda x, mask: x.at[mask].set(x[0]))(X, X > 1)


def test_bools_and_integers():
    flags = np.asarray([True, False, False])
    index = np.asarray([1, 1, 0])
    for name in ("set", "add", "mul", "min", "max"):
        values = np.asarray([True, False, False])
        got = getattr(tnp.asarray(flags).at[index], name)(values)
        expected = flags.copy()
        combine = {
            "set": lambda a, b: b,
            "add": np.logical_or,
            "mul": np.logical_and,
            "min": np.minimum,
            "max": np.maximum,
        }
        for i, v in zip(index, values, strict=True):
            expected[i] = combine[name](expected[i], v)
        assert got.dtype == bool
        np.testing.assert_array_equal(got, expected, name)
    whole = tnp.asarray(np.arange(4))
    assert whole.at[1].divide(2).dtype == "float32"
    assert whole.at[np.asarray([1, 1])].power(2).tolist() == [0, 1, 2, 3]


def test_errors():
    x = tnp.zeros((3, 2))
    with pytest.raises(IndexingError, match=r"x\.at\.multiply"):
        x.at.multiply(2.0)
    with pytest.raises(ArgumentError, match="the mode must be"):
        x.at[0].set(1.0, mode="nonsense")
    with pytest.raises(ArgumentError, match="do not wrap"):
        x.at[0].set(1.0, mode="wrap")
    with pytest.raises(TypeError, match="unexpected argument 'sorted'"):
        x.at[0].add(1.0, sorted=True)
    with pytest.raises(ShapeError, match="must broadcast to the shape of the elements"):
        x.at[np.asarray([0, 1])].max(np.zeros(3))
    with pytest.raises(IndexingError, match="axis 0 has 3 elements"):
        x.at[3].get()


@pytest.mark.parametrize("index", [1, slice(0, None, 2)], ids=["one", "every other"])
def test_negative_zeros_stay_where_nothing_is_added(index):
    table, new = np.full((4, 3), -0.0, "float32"), np.ones(3, "float32")
    expected = np.signbit(np.asarray(jnp.asarray(table).at[index].add(new)))
    for add in (lambda x: x.at[index].add(new), tvmfun.jit(lambda x: x.at[index].add(new))):
        np.testing.assert_array_equal(np.signbit(np.asarray(add(tnp.asarray(table)))), expected)
