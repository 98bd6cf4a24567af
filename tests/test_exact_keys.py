"""Values that are equal but compute something else, in every position where a compiled function depends on one."""

import pickle
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import tvmfun.numpy as tnp
from tvmfun import errors, jit, lax, tree, tree_util
from tvmfun.exact_keys import exact_key, same_structure


@tree.register_dataclass
@dataclass(frozen=True)
class Scaled:
    x: Any
    scale: Any = field(default=1, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass
class ScaledInJax:
    x: Any
    scale: Any = field(default=1, metadata={"static": True})


class Registered:
    def __init__(self, x, scale):
        self.x, self.scale = x, scale


tree_util.register_pytree_node(
    Registered, lambda node: ((node.x,), [node.scale]), lambda static, children: Registered(*children, *static)
)


@dataclass(frozen=True)
class Config:
    name: str
    scale: Any


EQUAL = {
    "numbers": (2, 2.0, np.float32(2), np.int8(2)),
    "bools": (True, 1, np.bool_(True)),
    "zeros": (0.0, -0.0, 0, False),
    "zeros of NumPy": (np.float32(0.0), np.float32(-0.0), np.float16(0.0)),
}

# Arguments that hold a scale, by where they hold it.
POSITIONS = {
    "static argument": lambda x, scale: (x, scale),
    "tuple in a static argument": lambda x, scale: (x, ("a", (scale,))),
    "set in a static argument": lambda x, scale: (x, frozenset([scale])),
    "dataclass in a static argument": lambda x, scale: (x, Config("a", scale)),
    "static field": lambda x, scale: ([Scaled(x, scale)], None),
    "tuple in a static field": lambda x, scale: (Scaled(x, ((scale,), "a")), None),
    "dataclass in a static field": lambda x, scale: (Scaled(x, Config("a", scale)), None),
    "static field of a class of JAX": lambda x, scale: ({"a": ScaledInJax(x, scale)}, None),
    "static data": lambda x, scale: (Registered(x, scale), None),
    "key of a dictionary": lambda x, scale: ({scale: x}, None),
}


def scale_of(value):
    """The number in any of the positions."""
    match value:
        case dict():
            return scale_of(value.get("a", next(iter(value))))
        case list() | tuple() | frozenset():
            return next(scale for scale in map(scale_of, value) if not isinstance(scale, str))
        case Scaled() | ScaledInJax() | Registered() | Config():
            return scale_of(value.scale)
    return value


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("scales", EQUAL.values(), ids=EQUAL)
@pytest.mark.parametrize("number", [False, True], ids=["array", "number"])
def test_each_of_equal_values_is_compiled_once(scales, position, number):
    x = -3 if number else tnp.asarray(np.arange(-1, 2))
    traced = []

    @partial(jit, static_argnums=1)
    def f(argument, static):
        scale = scale_of(argument if static is None else static)
        traced.append(exact_key(scale))
        return tree.leaves(argument)[0] * scale

    for _ in range(3):
        for scale in scales:
            expected, got = tnp.asarray(x) * scale, f(*position(x, scale))
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
            for part in (np.real, np.imag):
                np.testing.assert_array_equal(np.signbit(part(got)), np.signbit(part(expected)))
    assert traced == list(map(exact_key, scales))


@pytest.mark.parametrize("position", list(POSITIONS.values())[4:], ids=list(POSITIONS)[4:])
def test_a_compiled_stage_refuses_an_equal_value(position):
    x = tnp.asarray(np.arange(-1, 2))
    compiled = jit(lambda argument: tree.leaves(argument)[0] * scale_of(argument)).lower(position(x, 2)[0]).compile()
    np.testing.assert_array_equal(compiled(position(x, 2)[0]), [-2, 0, 2])
    with pytest.raises(errors.TreeError, match=r"traced with: .*\b2\D.* got .*\b2\.0"):
        compiled(position(x, 2.0)[0])


@pytest.mark.parametrize(
    "value",
    [float("nan"), np.float32("nan"), (1, (2.0, "a")), Config("a", 2.0), frozenset([1, "a"]), np.dtype("int8"), int],
    ids=["nan", "float32", "tuple", "dataclass", "set", "dtype", "type"],
)
def test_another_object_of_the_same_value_is_not_traced_again(value):
    traced = []

    @partial(jit, static_argnums=1)
    def f(argument, static):
        traced.append(static)
        return argument

    for copied in [value, pickle.loads(pickle.dumps(value))] * 2:
        f(1, copied)
    assert len(traced) == 1


@dataclass(eq=False)
class Model:
    """Compared by identity, whatever its fields are."""

    w: Any
    owner: Any = None

    @partial(jit, static_argnums=0)
    def product(self, x):
        return x @ self.w


def test_objects_that_are_compared_by_identity():
    x, traced = tnp.ones((1, 3)), []
    model = Model(np.ones((3, 2), "float32"))
    model.owner = model

    @partial(jit, static_argnums=1)
    def f(x, config):
        traced.append(config)
        return x.x

    for _ in range(2):
        np.testing.assert_array_equal(model.product(x), [[3, 3]])
        f(Scaled(x, model), model)
    compiled = jit(lambda argument: argument.x).lower(Scaled(x, model)).compile()
    np.testing.assert_array_equal(compiled(Scaled(x, model)), x)
    assert len(traced) == 1


@dataclass(frozen=True, eq=False)
class Named:
    """Compared by an array alone."""

    array: Any
    name: Any = field(init=False, repr=False)

    def __eq__(self, other):
        return type(other) is Named and np.array_equal(self.array, other.array)

    def __hash__(self):
        return hash(self.array.tobytes())


def test_dataclasses_with_a_comparison_of_their_own():
    traced = []

    @partial(jit, static_argnums=1)
    def f(x, named):
        traced.append(named)
        return x * named.array

    for _ in range(2):
        np.testing.assert_array_equal(f(2, Named(np.arange(3))), [0, 2, 4])
        np.testing.assert_array_equal(f(2, Named(np.arange(2))), [0, 2])
    assert len(traced) == 2


def tagged(base):
    """A subclass that compares a tag, too."""

    def make(cls, content, tag):
        made = base.__new__(cls, content)
        made.tag = tag
        return made

    body = {
        "__new__": make,
        "__init__": lambda self, content, tag: None,
        "__eq__": lambda self, other: base.__eq__(self, other) and self.tag == other.tag,
        "__hash__": lambda self: hash(self.tag),
    }
    return type(f"Tagged{base.__name__}", (base,), body)


BUILTIN = [(int, 3), (float, 1.0), (complex, 1j), (str, "a"), (tuple, (1, 2)), (list, []), (frozenset, [1]), (dict, {})]


@pytest.mark.parametrize(("base", "content"), BUILTIN, ids=[base.__name__ for base, _ in BUILTIN])
def test_builtin_classes_with_a_comparison_of_their_own(base, content):
    kind = tagged(base)
    f = jit(lambda x, value: x * value.tag, static_argnums=1)
    assert [float(f(1.0, kind(content, tag))) for tag in (2.0, 3.0, 2.0)] == [2, 3, 2]


def test_branches_and_carries_with_other_static_data_are_refused():
    two, other = lambda: Scaled(1.0, 2), lambda: Scaled(1.0, 2.0)
    with pytest.raises(errors.TreeError, match=r"'scale', 2\).* got .*'scale', 2\.0"):
        lax.cond(True, other, two)
    with pytest.raises(errors.TreeError, match=r"'scale', 2\.0\).* got .*'scale', 2\)"):
        jit(lambda i: lax.switch(i, [other, two]))(1)
    with pytest.raises(errors.TreeError, match="next carry"):
        lax.scan(lambda carry, _: (Scaled(carry.x, 2.0), None), two(), None, length=3)
    with pytest.raises(errors.TreeError, match="next carry"):
        lax.while_loop(lambda carry: carry.x < 3, lambda carry: Scaled(carry.x + 1, 2.0), two())
    assert lax.cond(True, two, two).scale == 2


def test_structures_with_the_same_static_data():
    assert same_structure(tree.structure({1: 2, "a": 3}), tree.structure({"a": 3, 1: 2}))
    assert exact_key({"a": 1, "b": 2.0}) == exact_key({"b": 2.0, "a": 1}) != exact_key({"a": 1, "b": 2})
    assert same_structure(tree.structure(deque([1], maxlen=2)), tree.structure(deque([2], maxlen=2)))
    assert not same_structure(tree.structure({1: 2}), tree.structure({True: 2}))
    assert not same_structure(tree.structure(Scaled(1, (0.0,))), tree.structure(Scaled(1, (-0.0,))))


def test_complex_numbers_and_their_zeros():
    numbers = [0j, complex(-0.0, 0.0), complex(0.0, -0.0), 0.0, np.complex64(0)]
    assert len(set(map(exact_key, numbers))) == len(numbers)


def test_trees_with_equal_static_data_may_be_mapped_together():
    assert tree.map(lambda a, b: a + b, Scaled(1, 2), Scaled(3, 2.0)) == Scaled(4, 2)
