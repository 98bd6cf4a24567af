"""Fast flattening of classes that are registered with functions, beside :func:`tvmfun.tree.flatten`."""

import pytest

import tvmfun
from tvmfun import numpy as tnp
from tvmfun import tree, tree_util
from tvmfun.exact_keys import same_structure
from tvmfun.tree_flattener import Flattener, expectation


class Named:
    """A container with as many children as it has, keys, and static data."""

    def __init__(self, children, static=None):
        self.children, self.static = children, static


class Keyed(Named):
    pass


class Quick(Named):
    pass


def with_keys(node):
    return ((tree_util.GetAttrKey(f"x{i}"), child) for i, child in enumerate(node.children)), node.static


tree_util.register_pytree_node(Named, lambda x: (iter(x.children), x.static), lambda s, c: Named(c, s))
tree_util.register_pytree_with_keys(Keyed, with_keys, lambda s, c: Keyed(c, s))
tree_util.register_pytree_with_keys(
    Quick, with_keys, lambda s, c: Quick(c, s), flatten_func=lambda x: (x.children, x.static)
)


@pytest.mark.parametrize("kind", [Named, Keyed, Quick])
def test_a_flattener_takes_registered_classes_apart(kind):
    several = [
        kind([]),
        kind([1]),
        kind([1, {"a": 2}, (3, kind([4], "inner"))], "outer"),
        kind([1], 2),
        kind([1], 2.0),
        kind([1], [0.0, "a"]),
        kind([1], [-0.0, "a"]),
        kind([None, [None]]),
    ]
    for x in several:
        for y in several:
            flattener = Flattener()
            for instance in (x, x, x, y, y, y, x):
                leaves, found = flattener(instance)
                expected, structure = tree.flatten(instance)
                assert leaves == expected and same_structure(found, structure)
            assert flattener(x)[1] is flattener(x)[1]
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(kind([1, [2]]))]
    assert paths == (["[<flat index 0>]", "[<flat index 1>][0]"] if kind is Named else [".x0", ".x1[0]"])


def test_children_are_counted_and_static_data_compared():
    _, structure = tree.flatten(Keyed([1, 2], "a"))
    expect = expectation(structure)
    assert expect(Keyed([3, 4], "a")) == [3, 4]
    for other in (Keyed([3], "a"), Keyed([3, 4, 5], "a"), Keyed([3, 4], "b"), Quick([3, 4], "a"), [3, 4], None):
        assert expect(other) is None


def test_a_compiled_function_takes_registered_classes_apart():
    calls = []

    @tvmfun.jit
    def scaled(x):
        calls.append(x.static)
        return Quick([child * x.static for child in x.children], x.static)

    for factor in (2, 3, 2, 3, 2.0):
        for _ in range(3):
            result = scaled(Quick([tnp.arange(3.0), tnp.ones(())], factor))
            assert [child.tolist() for child in result.children] == [[0, factor, 2 * factor], factor]
    assert calls == [2, 3, 2.0]


def test_errors_of_a_function_that_flattens_reach_the_caller():
    flattener = Flattener()
    x = Keyed([1, 2])
    assert [flattener(x)[0] for _ in range(3)] == [[1, 2]] * 3
    x.children = 5
    with pytest.raises(TypeError):
        flattener(x)
