import pickle
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmfun import numpy as tnp
from tvmfun import tree
from tvmfun.errors import ArgumentError, TreeError, TvmfunError
from tvmfun.tree_flattener import Flattener


class Pair(NamedTuple):
    left: Any
    right: Any


@chex.dataclass
class Chex:
    w: Any
    b: Any = None


@jax.tree_util.register_dataclass
@tree.register_dataclass
@dataclass(frozen=True)
class Dense:
    kernel: Any
    bias: Any = None
    activation: str = field(default="relu", metadata={"static": True})


def pad(items):
    return (*items, None, None)[:2]


MAKERS = [
    list,
    tuple,
    lambda items: dict(zip("bac", items, strict=False)),
    lambda items: OrderedDict(zip("bac", items, strict=False)),
    lambda items: defaultdict(list, zip("bac", items, strict=False)),
    lambda items: Pair(*pad(items)),
    lambda items: Chex(**dict(zip("wb", pad(items), strict=True))),
    lambda items: Dense(*pad(items), activation="tanh" if len(items) == 3 else "relu"),
]


def containers(children):
    return st.builds(lambda make, items: make(items), st.sampled_from(MAKERS), st.lists(children, max_size=3))


trees = st.recursive(st.none() | st.integers(), containers, max_leaves=12)


# -- agreement with jax ---


@given(trees)
def test_leaves_and_paths_are_those_of_jax(x):
    expected, _ = jax.tree_util.tree_flatten_with_path(x)
    got, _ = tree.flatten_with_path(x)
    assert tree.leaves(x) == jax.tree.leaves(x)
    assert [(tree.keystr(path), leaf) for path, leaf in got] == [
        (jax.tree_util.keystr(path), leaf) for path, leaf in expected
    ]


@given(trees)
def test_unflatten_is_the_inverse_of_flatten(x):
    leaves, structure = tree.flatten(x)
    assert tree.unflatten(structure, leaves) == x
    assert tree.flatten(tree.unflatten(structure, leaves)) == (leaves, structure)


@given(trees, trees)
def test_structures_are_equal_when_those_of_jax_are(x, y):
    for other in (y, tree.map(str, x)):
        same = tree.structure(x) == tree.structure(other)
        assert same == (jax.tree.structure(x) == jax.tree.structure(other))
        assert not same or hash(tree.structure(x)) == hash(tree.structure(other))


@given(trees)
def test_map_is_that_of_jax(x):
    assert tree.map(lambda a, b: [a, b], x, x) == jax.tree.map(lambda a, b: [a, b], x, x)


def test_optimizer_states_of_optax():
    state = optax.adamw(1e-3).init({"w": np.ones(3), "b": np.ones(2)})
    paths = [tree.keystr(path) for path, _ in tree.flatten_with_path(state)[0]]
    assert paths == ["[0].count", "[0].mu['b']", "[0].mu['w']", "[0].nu['b']", "[0].nu['w']"]


@pytest.mark.parametrize(
    "array", [np.ones(2), np.float32(1), jax.numpy.ones(2), jax.ShapeDtypeStruct((2,), "float32")], ids=repr
)
def test_arrays_are_leaves(array):
    for _ in range(2):
        assert tree.leaves({"w": array})[0] is array


@pytest.mark.interop
def test_torch_tensors_are_leaves():
    array = pytest.importorskip("torch").ones(2)
    assert tree.leaves({"w": array})[0] is array


# -- classes that jax knows ---


def run(code):
    root = Path(__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_jax_is_not_imported():
    code = "import sys, tvmfun.tree as t; t.leaves([object(), {'w': 1}]); print('jax' in sys.modules)"
    assert run(code) == "False\n"


@pytest.mark.slow
def test_chex_dataclass_when_jax_is_imported_late():
    code = """
from tvmfun import tree
assert len(tree.leaves([object(), 1.0])) == 2
import chex
@chex.dataclass
class Params:
    w: object
print(tree.map(lambda leaf: leaf + 1, {"layer": Params(w=[1, None])}))
"""
    assert run(code) == "{'layer': Params(w=[2, None])}\n"


def test_nested_chex_dataclasses():
    @chex.dataclass
    class Outer(Chex):
        pass

    leaves, structure = tree.flatten({"x": Outer(w=Chex(w=[1, 2]))})
    assert leaves == [1, 2]
    assert tree.unflatten(structure, [3, 4]) == {"x": Outer(w=Chex(w=[3, 4]))}


def test_class_registered_with_jax_after_it_was_a_leaf():
    class Box:
        def __init__(self, value):
            self.value = value

    box = Box([1, 2])
    assert tree.leaves(box) == [box]
    jax.tree_util.register_pytree_node(Box, lambda b: ((b.value,), "aux"), lambda _, children: Box(*children))
    assert tree.leaves(box) == [1, 2]
    assert tree.map(str, {"box": box})["box"].value == ["1", "2"]


def test_static_data_of_jax_is_part_of_the_structure():
    @jax.tree_util.register_dataclass
    @dataclass
    class Scale:
        value: Any
        axis: int = field(metadata={"static": True})

    assert tree.structure(Scale(1.0, axis=0)) == tree.structure(Scale(2.0, axis=0))
    assert tree.structure(Scale(1.0, axis=0)) != tree.structure(Scale(1.0, axis=1))


def test_is_leaf_stops_at_a_class_of_jax():
    chex_node = Chex(w=1)
    assert tree.leaves([chex_node, Dense(2)], is_leaf=lambda x: isinstance(x, Chex)) == [chex_node, 2]


def test_threads_may_meet_a_class_at_the_same_time():
    @chex.dataclass
    class Fresh:
        w: Any

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(tree.leaves, [[Fresh(w=i)] * 50 for i in range(64)]))
    assert results == [[i] * 50 for i in range(64)]


# -- register_dataclass ---


def test_static_fields_belong_to_the_structure():
    assert tree.leaves(Dense(1, 2)) == [1, 2]
    assert tree.structure(Dense(1, 2)) != tree.structure(Dense(1, 2, "tanh"))
    assert tree.map(lambda x: -x, Dense(1, None, "tanh")) == Dense(-1, None, "tanh")


def test_meta_fields_and_slots():
    @tree.register_dataclass(meta_fields=["size"])
    @dataclass(frozen=True, slots=True)
    class Slots:
        size: int
        w: Any

    assert tree.leaves(Slots(3, 1)) == [1]
    assert tree.map(str, Slots(3, 1)) == Slots(3, "1")


def test_constructors_are_not_called():
    @tree.register_dataclass
    @dataclass(frozen=True)
    class Linear:
        weight: Any
        size: int = field(init=False, metadata={"static": True})

        def __init__(self, size, *, key):
            object.__setattr__(self, "weight", key)
            object.__setattr__(self, "size", size)

        def __post_init__(self):
            raise AssertionError

    linear = tree.map(str, Linear(3, key=1))
    assert (linear.weight, linear.size) == ("1", 3)


def test_function_form_returns_the_class():
    @dataclass
    class Plain:
        w: Any

    assert tree.register_dataclass(Plain) is Plain
    assert tree.leaves(Plain([1, 2])) == [1, 2]


def test_only_dataclasses_can_be_registered():
    class Plain:
        pass

    with pytest.raises(ArgumentError, match=r"got .*Plain\. Try @dataclass below @register_dataclass\."):
        tree.register_dataclass(Plain)


def test_subclasses_are_registered_on_their_own():
    class Wider(Dense):
        pass

    wider = Wider(1)
    assert tree.leaves(wider) == [wider]
    with pytest.raises(ArgumentError, match="must be a dataclass"):
        tree.register_dataclass(Wider)


def test_unknown_meta_field():
    with pytest.raises(ArgumentError, match=r"meta_fields must name fields of .*Some, got 'c'\."):

        @tree.register_dataclass(meta_fields=("a", "c"))
        @dataclass
        class Some:
            a: Any


def test_registering_twice():
    with pytest.raises(ArgumentError, match="a class can be registered only once, got Dense"):
        tree.register_dataclass(Dense)


# -- errors ---


@pytest.mark.parametrize(
    ("expected", "got", "message"),
    [
        (
            {"w": {"a": 1}},
            {"w": {}},
            "dict with the keys 'a' at ['w'], got dict with 0 keys. Try adding ['w']['a'].",
        ),
        (
            {"w": [{"a": 1}]},
            {"w": [{"a": 1, "b": 2}]},
            "dict with the keys 'a' at ['w'][0], got dict with the keys 'a', 'b'. Try removing ['w'][0]['b']",
        ),
        (
            dict.fromkeys(map(str, range(9))),
            dict.fromkeys(map(str, range(10))),
            "dict with 9 keys at the root, got dict with 10 keys. Try removing ['9'].",
        ),
        ([[1], 2], [[1, 2], 2], "list of length 1 at [0], got list of length 2. Try removing [0][1]."),
        (
            Pair([1], 2),
            Pair((1,), 2),
            "list of length 1 at .left, got tuple of length 1. Try list of length 1 at .left.",
        ),
        (Dense(1, None), Dense(1, 2), "None at .bias, got a leaf. Try None at .bias."),
        ([Chex(w=1, b=(2,))], [Chex(w=1, b=2)], "tuple of length 1 at [0].b, got a leaf."),
        (
            [Dense(1)],
            [Dense(1, activation="tanh")],
            "Dense with the static data (('activation', 'relu'),) at [0], "
            "got Dense with the static data (('activation', 'tanh'),). Try equal static data in both trees.",
        ),
    ],
)
def test_difference_is_named(expected, got, message):
    with pytest.raises(TreeError) as error:
        tree.check_same_structure("update", expected, got, ("the params", "the updates"))
    assert f"[update] the updates must have the tree structure of the params: {message}" in str(error.value)
    with pytest.raises(TreeError) as error:
        tree.map(lambda *_: None, expected, expected, got)
    assert f"[tree.map] tree 3 must have the tree structure of tree 1: {message}" in str(error.value)


def test_two_classes_of_one_name_are_told_apart():
    mine, yours = (namedtuple("Moments", "mean", module=module) for module in ("mine", "yours"))
    with pytest.raises(TreeError, match=r"mine\.Moments at \[0\], got yours\.Moments\."):
        tree.check_same_structure("update", [mine(1)], [yours(1)])


def test_leaf_against_none():
    with pytest.raises(TreeError, match=r"a leaf at \['w'\], got None\. Try a leaf at \['w'\]\."):
        tree.check_same_structure("update", {"w": 1}, {"w": None})


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (defaultdict(int, a=1), defaultdict(list, a=1)),
        (deque([1], maxlen=2), deque([1])),
    ],
)
def test_static_data_of_builtin_containers(expected, got):
    with pytest.raises(TreeError, match=r"with the static data .* at the root"):
        tree.check_same_structure("update", expected, got)


@given(trees, trees)
def test_check_fails_when_the_structures_differ(x, y):
    tree.check_same_structure("check", x, tree.structure(tree.map(str, x)))
    if tree.structure(x) != tree.structure(y):
        with pytest.raises(TreeError, match=r"^\[check\] .*, got .*\. Try .*\.$"):
            tree.check_same_structure("check", x, y)


# -- the other functions ---


def test_deques_are_containers():
    assert tree.map(str, deque([1, [2]], maxlen=3)) == deque(["1", ["2"]], maxlen=3)


@given(trees, trees)
def test_other_trees_may_go_on_at_leaves(x, subtree):
    deeper = tree.map(lambda _: subtree, x)
    assert tree.map(lambda _, below: below, x, deeper) == deeper


def test_map_passes_exceptions_on():
    def stop(_):
        raise StopIteration

    with pytest.raises(StopIteration):
        tree.map(stop, [1])


def test_map_with_path():
    x = {"w": [1, 2], "b": None}
    assert tree.map_with_path(lambda path, a, b: (tree.keystr(path), a, b), x, {"w": [3, [4]], "b": None}) == {
        "w": [("['w'][0]", 1, 3), ("['w'][1]", 2, [4])],
        "b": None,
    }
    with pytest.raises(TreeError, match=r"\[tree.map_with_path\] tree 2 .* at \['w'\]"):
        tree.map_with_path(lambda *_: None, x, {"w": 1, "b": None})


def test_unflatten_counts_leaves():
    structure = tree.structure([1, 2])
    for leaves in ([], [1], iter([1, 2, 3])):
        with pytest.raises(TreeError, match=r"\[tree.unflatten\] the structure has 2 leaves, got [013]\."):
            tree.unflatten(structure, leaves)


def test_reduce():
    assert tree.reduce(lambda a, b: a + b, {"w": [1, 2]}) == 3
    assert tree.reduce(lambda a, b: a + b, {"w": [1, 2]}, 10) == 13
    assert tree.reduce(lambda a, b: a + b, [], 10) == 10
    with pytest.raises(TypeError):
        tree.reduce(lambda a, b: a + b, None)


@pytest.mark.parametrize("inner", [tree.structure({"w": 0, "b": (0, 0)}), None])
def test_transpose(inner):
    x = Pair({"w": 1, "b": (2, 3)}, {"w": 4, "b": (5, 6)})
    got = tree.transpose(tree.structure(Pair(0, 0)), inner, x)
    assert got == {"w": Pair(1, 4), "b": (Pair(2, 5), Pair(3, 6))}


def test_transpose_errors():
    outer = tree.structure([0, 0])
    with pytest.raises(TreeError, match=r"the tree must .* outer: list of length 2 at the root"):
        tree.transpose(outer, None, [1])
    with pytest.raises(TreeError, match=r"every subtree must .* inner: .* Try adding \['a'\]"):
        tree.transpose(outer, None, [{"a": 1}, {"b": 1}])
    with pytest.raises(TreeError, match="Try the inner structure instead of None"):
        tree.transpose(tree.structure([]), None, [])


def test_structures_can_be_pickled():
    structure = tree.structure({"layers": [Dense(1), None]})
    assert pickle.loads(pickle.dumps(structure)) == structure


# -- a flattener of trees that come again ---


@given(st.lists(trees, max_size=6), st.data())
def test_a_flattener_flattens(several, data):
    flattener = Flattener()
    for x in [*several, *several, *(data.draw(st.permutations(several)))]:
        assert flattener(x) == tree.flatten(x)


@given(trees, trees)
def test_a_flattener_that_knows_a_tree_is_not_fooled_by_another(x, y):
    flattener = Flattener()
    _, structure = flattener(x)
    flattener(x)  # from the second time on, a function takes it apart
    again = flattener(tree.map(lambda leaf: -leaf, x))[1]
    assert again is structure or (again == structure and has_unknown(structure))
    assert flattener(y) == tree.flatten(y)
    assert flattener(x) == tree.flatten(x)


UNKNOWN = (OrderedDict, defaultdict, Chex)


def has_unknown(structure):
    return structure.type in UNKNOWN or any(map(has_unknown, structure.children()))


class Reversed(NamedTuple):
    left: Any
    right: Any

    def __iter__(self):
        return iter((self.right, self.left))


@tree.register_dataclass
@dataclass
class Norm:
    scale: Any
    axis: Any = field(default=0, metadata={"static": True})
    eps: Any = field(default=1e-6, metadata={"static": True})


@pytest.mark.parametrize(
    "known, other",
    [
        ({"a": 1, "b": 2}, OrderedDict(a=1, b=2)),
        ({"a": 1, "b": 2}, defaultdict(int, a=1, b=2)),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"b": 1, "a": 2}),
        ((1, 2), [1, 2]),
        ((1, 2), Pair(1, 2)),
        (Pair(1, 2), Reversed(1, 2)),
        (Reversed(1, 2), Reversed(3, 4)),
        ((1, 2), (1, 2, 3)),
        ((1, 2), (1, (2, 3))),
        ((1, 2), (1, None)),
        ((1, None), (1, 2)),
        ((1, ()), (1, [])),
        (Dense(1), Dense(1, 2)),
        (Dense(1, activation="relu"), Dense(1, activation="tanh")),
        (Dense(1), Norm(1)),
        (Norm(1), Norm(1, axis=1)),
        (Norm(1), Norm(1, eps=0.5)),
        (1, [1]),
        (1, None),
        ({}, []),
        ((), None),
        ({"w": deque([1])}, {"w": deque([1, 2])}),
    ],
)
def test_a_flattener_sees_the_difference(known, other):
    flattener = Flattener()
    for x in (known, known, known, other, other, other, known):
        assert flattener(x) == tree.flatten(x)


def test_a_flattener_meets_more_structures_than_it_remembers():
    flattener = Flattener()
    several = [list(range(n)) for n in range(20)]
    for x in (*several, *several, *several):
        assert flattener(x) == tree.flatten(x)


def test_a_flattener_leaves_mistakes_to_flatten():
    flattener = Flattener()
    flattener(Norm(1))
    flattener(Norm(1))
    with pytest.raises(ArgumentError, match=r"static field 'axis' must not hold arrays, got ndarray"):
        flattener(Norm(1, axis=np.ones(2)))
    for number in (np.ones(1), np.ones(1), np.zeros(1), np.zeros(()), tnp.zeros(())):
        assert flattener(Norm(1, axis=number)) == tree.flatten(Norm(1, axis=number))
    assert flattener(Norm(1, axis=[0])) == tree.flatten(Norm(1, axis=[0]))
    assert flattener(Norm(1, axis=(0,))) == tree.flatten(Norm(1, axis=(0,)))


def test_a_flattener_takes_deep_trees_apart():
    deep = 1
    for _ in range(900):
        deep = [deep]
    flattener = Flattener()
    assert [flattener(deep)[0] for _ in range(3)] == [[1], [1], [1]]


def test_a_flattener_meets_a_class_that_jax_learns_later():
    class Late:
        def __init__(self, value):
            self.value = value

    flattener = Flattener()
    assert [len(flattener([Late(1)])[0]) for _ in range(3)] == [1, 1, 1]
    jax.tree_util.register_pytree_node(Late, lambda late: ((late.value, late.value), None), lambda _, c: Late(c[0]))
    assert [flattener([Late(1)])[0] for _ in range(3)] == [[1, 1]] * 3


@pytest.mark.parametrize(("answer", "count"), [("yes", 1), ("", 3), (np.True_, 1), (None, 3), (1, 1)])
def test_is_leaf_may_say_anything_that_is_true_or_false(answer, count):
    assert len(tree.leaves([1, (2, 3)], is_leaf=lambda node: answer)) == count


def test_is_leaf_that_says_neither():
    with pytest.raises(TvmfunError, match=r"\[tree.leaves\]"):
        tree.leaves([1, 2], is_leaf=lambda node: np.zeros(2))


def test_arguments_have_the_names_of_jax():
    outer, inner = tree.structure([0, 0]), tree.structure({"a": 0})
    trees = [{"a": 1}, {"a": 2}]
    assert tree.transpose(outer_treedef=outer, inner_treedef=inner, pytree_to_transpose=trees) == {"a": [1, 2]}
    assert tree.unflatten(treedef=outer, leaves=[3, 4]) == [3, 4]
    assert tree.reduce(function=max, tree=trees, initializer=0) == 2
