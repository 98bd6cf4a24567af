"""Random Programs give the same bits with and without simplifiers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agreement import same_bits

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.core.trace import unsimplified
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce, shape

WHOLE = np.asarray([0, 1, -1, 7, -8, 2**31 - 1, -(2**31), 5], np.int32)
SHAPES = [(), (3,), (1,), (2, 3), (2, 1), (1, 3), (0, 3), (2, 1, 3)]
# Sums, products and quotients of these are exact, so that it does not matter which of them are fused.
DYADIC = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -4.0], np.float32)


@st.composite
def leaves(draw, dtype: np.dtype):
    """An argument, a number, or a repeated number."""
    pool = DYADIC if dtype == np.float32 else WHOLE
    sizes = draw(st.sampled_from(SHAPES))
    if draw(st.booleans()):
        count = int(np.prod(sizes))
        chosen = draw(st.lists(st.sampled_from(list(pool)), min_size=count, max_size=count))
        return ("argument", np.asarray(chosen, dtype).reshape(sizes))
    # TVM refuses to compute with integer constants that overflow.
    pool = DYADIC if dtype == np.float32 else [0, 1, -1, 2, -3]
    return ("number", dtype.type(draw(st.sampled_from(list(pool)))), draw(st.sampled_from([None, sizes])))


def nodes(children):
    seed = st.integers(0, 2**16)
    return st.one_of(
        st.tuples(st.sampled_from(["add", "subtract", "multiply", "maximum"]), children, children),
        st.tuples(st.sampled_from(["negative", "abs", "astype", "compared"]), children),
        st.tuples(st.just("where"), children, children, children),
        st.tuples(
            st.sampled_from(["broadcast_to", "reshape", "permute_dims", "slice", "pad", "flip", "concat"]),
            children,
            seed,
        ),
        st.tuples(st.sampled_from(["sum", "max", "min", "prod"]), children, seed),
    )


def evaluated(node, arguments, kind):
    """The value of a random tree; where shapes or axes do not fit, ones that do are taken."""
    name, *parts = node
    if name == "argument":
        return next(arguments)
    if name == "number":
        value, sizes = parts
        return value if sizes is None else shape.broadcast_to(value, shape=sizes)
    values = [evaluated(part, arguments, kind) if isinstance(part, tuple) else part for part in parts]
    if len(values) > 1 and not isinstance(values[1], int):
        return combined(name, values)
    x, *seed = values
    if name in ("negative", "abs"):
        return getattr(pw, name)(x)
    if name == "compared":
        return pw.astype(pw.less(x, x.dtype.type(1)), dtype=kind)
    if name == "astype":
        return pw.astype(x, dtype=kind)
    rng = np.random.default_rng(seed)
    sizes, rank = np.shape(x), np.ndim(x)
    if name in ("sum", "max", "min", "prod"):
        axis = tuple(i for i in range(rank) if rng.random() < 0.5 and sizes[i])
        return getattr(reduce, name)(x, axis=axis)
    if name == "broadcast_to":
        wider = tuple(2 if n == 1 and rng.random() < 0.5 else n for n in sizes)
        return shape.broadcast_to(x, shape=(*((2, 1)[: rng.integers(3)] if rank < 3 else ()), *wider))
    if name == "reshape":
        split = [part for n in sizes for part in ((n, 1) if rng.random() < 0.3 and rank < 3 else (n,))]
        return shape.reshape(x, shape=tuple(split) if rng.random() < 0.7 else (int(np.prod(sizes)),))
    if not rank:
        return x
    some = lambda: tuple(int(n) for n in rng.integers(2, size=rank))
    if name == "permute_dims":
        return shape.permute_dims(x, axes=tuple(map(int, rng.permutation(rank))))
    if name == "slice":
        start = tuple(min(a, n) for a, n in zip(some(), sizes, strict=True))
        return shape.slice(x, start=start, stop=sizes, step=tuple(1 + n for n in some()))
    if name == "pad":
        return shape.pad(x, x.dtype.type(0), low=some(), high=some(), interior=some())
    if name == "flip":
        return shape.flip(x, axes=tuple(i for i in range(rank) if rng.random() < 0.5))
    parts = [x, shape.slice(x, start=(0,) * rank, stop=(0, *sizes[1:]), step=(1,) * rank)]
    return shape.concat(*parts[: rng.integers(1, 3)], axis=0)


def combined(name, values):
    try:
        np.broadcast_shapes(*map(np.shape, values))
    except ValueError:  # their totals fit
        values = [reduce.sum(x, axis=tuple(range(np.ndim(x)))) for x in values]
    if name == "where":
        condition, x, y = values
        return pw.where(pw.less(condition, condition.dtype.type(1)), x, y)
    return getattr(pw, name)(*values)


def arguments_of(node) -> list[np.ndarray]:
    name, *parts = node
    if name == "argument":
        return parts
    return [x for part in parts if isinstance(part, tuple) and name != "number" for x in arguments_of(part)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "int32"])
@settings(max_examples=50)
@given(data=st.data())
def test_random_programs_give_the_same_bits(kind: str, data):
    tree = data.draw(st.recursive(leaves(np.dtype(kind)), nodes, max_leaves=6))
    arguments = [tnp.asarray(x) for x in arguments_of(tree)]

    def function(*values):
        return evaluated(tree, iter(values), kind)

    with unsimplified():
        plain = tvmfun.trace(function)(*arguments).verify()
    simple = tvmfun.trace(function)(*arguments).verify()
    assert simple.out_avals == plain.out_avals
    same_bits(simple(*arguments), plain(*arguments))


def test_sums_and_products_of_nothing_are_constants():
    empty, rows = np.ones(0, np.float32), np.ones((3, 0), np.float32)
    program = tvmfun.trace(lambda x: tnp.sum(x) + 1)(empty)
    assert "sum" not in [equation.op.name for equation in program.equations]
    # As something computed, the 0 made the compiler fail.
    quotients = tvmfun.jit(lambda x, y: (1 / tnp.sum(x), 1 / tnp.vdot(x, x), 1 / tnp.sum(y, 1), 2 / tnp.prod(y, 1)))
    for found, expected in zip(quotients(empty, rows), (np.inf, np.inf, [np.inf] * 3, [2.0] * 3), strict=True):
        np.testing.assert_array_equal(found, expected)
