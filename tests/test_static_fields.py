"""Static fields of dataclasses: part of the structure, compared by value, and copied where they may change."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.errors import ArgumentError


@tree.register_dataclass
@dataclass(frozen=True)
class Dense:
    kernel: Any
    bias: Any = None
    activation: Any = field(default="relu", metadata={"static": True})


@pytest.mark.parametrize("value", [np.ones(2), [np.ones(2)], {"a": (np.ones(2), 1)}], ids=["array", "list", "dict"])
def test_arrays_in_static_fields(value):
    message = r"\[Dense\] the static field 'activation' must not hold arrays, got ndarray\. Try a field that is not"
    with pytest.raises(ArgumentError, match=message):
        tree.leaves(Dense(1, 2, value))


def test_static_fields_that_may_change():
    """A compiled function sees the change of a list, which is a new structure."""
    scaled = tvmfun.jit(lambda d: d.kernel * d.activation["scale"][0])
    for options in ({"scale": [2]}, {"scale": [2]}, {"scale": [2.5]}, {"scale": [2]}):
        for _ in range(3):
            assert float(scaled(Dense(np.float32(3), 1, options))) == 3 * options["scale"][0]
    for _ in range(3):
        options["scale"][0] += 1
        assert float(scaled(Dense(np.float32(3), 1, options))) == 3 * options["scale"][0]
    dense = Dense(np.float32(3), np.float32(1), options)
    mapped = tree.map(lambda x: x + 1, dense)
    assert mapped.activation == options and mapped.kernel == 4
    assert tvmfun.grad(lambda d: d.kernel * d.activation["scale"][0])(dense).kernel == 5
    assert tree.structure(dense) == tree.structure(Dense(1, 2, {"scale": [5]})) != tree.structure(Dense(1, 2, {}))
    assert hash(tree.structure(dense)) == hash(tree.structure(Dense(1, 2, {"scale": [5]})))


def test_results_do_not_share_static_fields_that_may_change():
    """Each result has its own list, also if the structure, or another result, is older than a change."""
    same = tvmfun.jit(lambda d: d)
    given = [1, [2]]
    first = same(Dense(np.float32(3), None, given))
    given.append(3)
    given[1].append(4)
    second = same(Dense(np.float32(3), None, [1, [2]]))
    second.activation[1].append(5)
    third = same(Dense(np.float32(3), None, [1, [2]]))
    assert (first.activation, second.activation, third.activation) == ([1, [2]], [1, [2, 5]], [1, [2]])
    structure = tree.structure(Dense(1, None, given))
    before = pickle.loads(pickle.dumps(given))
    given.clear()
    assert tree.unflatten(structure, [1]).activation == before
    assert structure == tree.structure(Dense(1, None, before)) == pickle.loads(pickle.dumps(structure))


class Compared:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value


@dataclass
class Options:
    sizes: list


@pytest.mark.parametrize("make", [tnp.float32, np.array, lambda x: np.ones((1, 1)) * x, lambda x: tnp.full(1, x)])
def test_one_number_as_an_array(make):
    count = 0

    @tvmfun.jit
    def scaled(layer):
        nonlocal count
        count += 1
        return layer.kernel * layer.activation

    for number in (2.0, 2.0, 3.0, 2.0):
        np.testing.assert_array_equal(np.ravel(scaled(Dense(np.ones(2), None, make(number)))), [number, number])
    assert count == 2
    grown = tvmfun.grad(lambda layer: tnp.sum(layer.kernel * layer.activation))(Dense(tnp.ones(2), None, make(3.0)))
    np.testing.assert_array_equal(grown.kernel, [3.0, 3.0])
    assert np.shape(grown.activation) == np.shape(make(3.0))
    with pytest.raises(ArgumentError, match="'activation' must not hold arrays, got Tracer"):
        tvmfun.jit(lambda x: tree.leaves(Dense(1, None, x)))(1.0)


def test_an_array_that_changes_later_does_not_change_the_structure():
    number = np.array([1.0])
    structure = tree.structure(Dense(1, None, number))
    number[0] = 2.0
    assert tree.unflatten(structure, [1]).activation[0] == 1.0
    assert structure != tree.structure(Dense(1, None, number))
    assert tree.structure(Dense(1, None, np.float32(1))) != tree.structure(Dense(1, None, np.array(1.0)))


def test_what_static_fields_may_hold():
    for value in (
        {"dtype": np.float32},
        [np.dtype("float32"), np.int64(1)],
        {1, 2},
        Options([1]),
        [tvmfun.ShapeDtype((), "int8")],
    ):
        assert tree.structure(Dense(1, None, value)) == tree.structure(Dense(1, None, value))
    assert tree.structure(Dense(1, None, Options([1]))) != tree.structure(Dense(1, None, Options([1.0])))
    with pytest.raises(ArgumentError, match="'activation' must be hashable, got Compared"):
        tree.structure(Dense(1, None, [Compared(1)]))
    with pytest.raises(ArgumentError, match="'activation' must not hold arrays, got ndarray"):
        tree.structure(Dense(1, None, Options(np.ones(2))))
