"""Dynamic slices, gather and scatter against JAX, and segments against `jax.ops`."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import derivatives, oracle
from support.agreement import agree, close

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError

RNG = np.random.default_rng(0)


def data(*shape: int) -> np.ndarray:
    return RNG.permutation(int(np.prod(shape))).reshape(shape) / 7


# -- dynamic slices --------------------------------------------------------------------------------------------

STARTS = [(0, 0, 0), (1, 2, 0), (9, -1, 1), (-9, -2, -1)]


@pytest.mark.quick("int8--9x-2x-1", "int32-1x2x0")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8"])
def test_dynamic_slice(start, dtype):
    x, starts = data(4, 5, 3), [np.asarray(s, dtype) for s in start]
    agree(lambda lax, x, *s: lax.dynamic_slice(x, s, (2, 3, 1)), x, *starts)
    agree(lambda lax, x: lax.dynamic_slice(x, start, (2, 3, 1)), x)  # constant start indices


@pytest.mark.quick("9x-1x1", "-9x-2x-1", "1x2x0")
@pytest.mark.parametrize("start", STARTS)
def test_dynamic_update_slice(start):
    x, update, starts = data(4, 5, 3), -data(2, 5, 1), [np.asarray(s, "int32") for s in start]
    agree(lambda lax, x, u, *s: lax.dynamic_update_slice(x, u, s), x, update, *starts)
    agree(lambda lax, x, u: lax.dynamic_update_slice(x, u, start), x, update)


def test_places_in_one_array():
    x, start = data(4, 5), np.asarray([1, 3], "int32")
    agree(lambda lax, x, s: lax.dynamic_slice(x, s, (2, 2)), x, start)
    agree(lambda lax, x, u, s: lax.dynamic_update_slice(x, u, s), x, -data(2, 2), start)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("place", [0, 2, -1, 7])
def test_along_one_axis(axis, place):
    x, i = data(4, 5, 3), np.asarray(place, "int32")
    update = -data(*(2 if k == axis % 3 else n for k, n in enumerate(x.shape)))
    whole, flat = np.take(update, [0], axis), np.take(update, 0, axis)

    def every(lax, x, update, whole, flat, i):
        parts = lax.dynamic_slice_in_dim(x, i, 2, axis), lax.dynamic_index_in_dim(x, i, axis)
        updated = [lax.dynamic_update_index_in_dim(x, u, i, axis) for u in (whole, flat)]
        flat_part = lax.dynamic_index_in_dim(x, i, axis, keepdims=False)
        return *parts, flat_part, lax.dynamic_update_slice_in_dim(x, update, i, axis), *updated

    agree(every, x, update, whole, flat, i)


@pytest.mark.parametrize("in_axes", [(0, None, None), (None, 0, None), (0, 0, None), (None, 0, 1), (0, 0, 0)])
def test_dynamic_slices_in_vmap(in_axes):
    x, u = (data(3, 4, 5) if axis == 0 else data(4, 5) for axis in in_axes[::2])
    u = {None: data(2, 3), 0: data(3, 2, 3), 1: data(2, 3, 3)}[in_axes[2]]
    x = data(3, 4, 5) if in_axes[0] == 0 else data(4, 5)
    i = np.asarray([1, 9, -1] if in_axes[1] == 0 else 1, "int32")
    one, two = np.int32(1), np.int32(2)

    def both(of):
        def f(x, i, u):
            return of.dynamic_slice(x, (i, two), (2, 3)), of.dynamic_update_slice(x, u, (i, one))

        return f

    ours = tvmfun.jit(tvmfun.vmap(both(lax), in_axes))(x, i, u)
    with oracle.x64():
        close(ours, jax.vmap(both(jax.lax), in_axes)(x, i, u), 0)


def test_a_dynamic_slice_fuses():
    from tvmfun.lower.fusion.fuse import fuse

    program = tvmfun.trace(lambda x, i: tnp.exp(lax.dynamic_slice(x * 2, (i,), (3,))))(np.ones(9), np.int32(1))
    assert len(fuse(program)) == 1


def test_dynamic_slice_errors():
    x, i = np.ones((3, 4)), tnp.asarray(1)
    for call in (
        lambda: lax.dynamic_slice(x, (i,), (1, 1)),
        lambda: lax.dynamic_slice(x, (i, i), (4, 1)),
        lambda: lax.dynamic_slice(x, (i, i), (1,)),
        lambda: lax.dynamic_slice(x, (i, tnp.ones(2, "int32")), (1, 1)),
    ):
        with pytest.raises(ShapeError, match=r"^\[dynamic_slice\] "):
            call()
    for update in (np.ones((1,)), np.ones((4, 1))):
        with pytest.raises(ShapeError, match=r"^\[dynamic_update_slice\] "):
            lax.dynamic_update_slice(x, update, (i, i))
    with pytest.raises(DtypeError, match=r"^\[dynamic_slice\] "):
        lax.dynamic_slice(x, (0.5, i), (1, 1))


def test_index_take():
    x = data(3, 4, 5)
    i, j = np.asarray([2, 0, 1, 2], "int32"), np.asarray([0, 4, 2, 2], "int32")
    agree(lambda lax, x, i, j: lax.index_take(x, (i, j), (0, 2)), x, i, j)
    agree(lambda lax, x, i: lax.index_take(x, (i,), (1,)), x, i)
    with pytest.raises(ArgumentError, match=r"^\[index_take\] "):
        lax.index_take(x, (i,), (0, 1))


# -- gather and scatter ----------------------------------------------------------------------------------------

# The operand, the indices, the dimension numbers of a gather, and the sizes of a slice.
GATHERS = {
    "rows": ((5, 3), [[1], [4], [1]], ((1,), (0,), (0,)), (1, 3)),
    "columns": ((5, 3), [[1], [2]], ((0,), (1,), (1,)), (5, 1)),
    "elements": ((4, 5), [[1, 2], [3, 0]], ((), (0, 1), (0, 1)), (1, 1)),
    "windows": ((6, 7), [[1, 2], [3, 4], [0, 0]], ((1, 2), (), (0, 1)), (2, 3)),
    "windows in front": ((6, 7), [[1, 2], [3, 4], [0, 0]], ((0, 2), (), (1, 0)), (2, 3)),
    "windows of one axis": ((6, 7), [[[1], [4]], [[0], [2]]], ((1, 3), (), (1,)), (6, 3)),
    "windows that begin at 0": ((6, 7), [[1], [3]], ((1,), (0,), (0,)), (1, 4)),
    "a kept axis of size 1": ((6, 7), [[1], [3]], ((1, 2), (), (0,)), (1, 7)),
    "one place": ((6, 7), [2], ((0,), (0,), (0,)), (1, 7)),
    "no index": ((3, 2), np.zeros((4, 0), int), ((1, 2), (), ()), (3, 2)),
    "no places": ((3, 2), np.zeros((0, 1), int), ((1,), (0,), (0,)), (1, 2)),
    "batches": ((3, 5, 2), [[[1], [4]], [[0], [2]], [[3], [3]]], ((2,), (1,), (1,), (0,), (0,)), (1, 1, 2)),
    "batches behind": (
        (5, 3, 2),
        [[[1], [4], [0]], [[2], [0], [2]]],
        ((0,), (0,), (0,), (1,), (1,)),
        (1, 1, 2),
    ),
    "windows of batches": ((3, 6, 4), [[1, 2], [3, 0], [2, 1]], ((1, 2), (), (1, 2), (0,), (0,)), (1, 3, 2)),
}


def outside(indices, shape) -> np.ndarray:
    """The indices with some of them moved out of the array."""
    indices = np.asarray(indices, "int32").copy()
    if indices.size:
        indices.reshape(-1)[0] = -2
        indices.reshape(-1)[-1] = 50
    return indices


def gather_numbers(lax, numbers):
    return lax.GatherDimensionNumbers(*numbers)


def scatter_numbers(lax, numbers):
    return lax.ScatterDimensionNumbers(*numbers)


@pytest.mark.quick("*-None", "rows-fill", "windows-clip", "no places-fill")
@pytest.mark.parametrize("mode", [None, "fill", "clip"])
@pytest.mark.parametrize("case", GATHERS.values(), ids=GATHERS)
def test_gather(case, mode):
    shape, indices, numbers, sizes = case
    call = lambda lax, x, i: lax.gather(x, i, gather_numbers(lax, numbers), sizes, mode=mode, fill_value=0.5)
    x = data(*shape)
    # Without a mode JAX promises itself that there is nothing outside.
    inside = np.asarray(indices, "int32")
    every = [inside, outside(indices, shape)] if mode else [inside]
    agree(lambda lax, x, *each: [call(lax, x, i) for i in each], x, *every)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool"])
def test_what_fills(dtype):
    x = np.asarray([1, 0, 1], dtype)
    call = lambda lax, x, i: lax.gather(x, i, gather_numbers(lax, ((), (0,), (0,))), (1,), mode="fill")
    agree(call, x, np.asarray([[0], [3], [-1]], "int64"))


SCATTERS = [f"scatter{how}" for how in ("", "_add", "_sub", "_mul", "_min", "_max")]


@pytest.mark.quick(
    "rows-*-drop",
    "columns-scatter-clip",
    "elements-scatter_add-clip",
    "windows-scatter_mul-clip",
    "windows in front-scatter_max-clip",
    "windows of one axis-scatter_min-clip",
    "windows that begin at 0-scatter_sub-drop",
    "a kept axis of size 1-scatter_add-drop",
    "one place-scatter-drop",
    "no index-scatter_add-drop",
    "no places-scatter-drop",
    "batches-scatter_add-drop",
    "batches behind-scatter_mul-clip",
    "windows of batches-scatter-clip",
)
@pytest.mark.parametrize(
    ("case", "name", "mode"),
    [
        pytest.param(
            case,
            name,
            mode,
            id=f"{key}-{name}-{mode}",
            # The ways to combine share all that depends on the axes.
            marks=[] if key == "windows" or name == "scatter_min" else pytest.mark.slow,
        )
        for i, (key, case) in enumerate(GATHERS.items())
        for j, name in enumerate(SCATTERS)
        for k, mode in enumerate(("drop", "clip"))
        # All of one case; of the others each way to combine in one mode, and each mode with half of the ways.
        if key == "windows" or (i + j + k) % 2 == 0
    ],
)
def test_scatter(case, name, mode):
    shape, indices, numbers, sizes = case
    x, indices = data(*shape), np.asarray(indices, "int32")
    slices = jax.lax.gather(x, indices, gather_numbers(jax.lax, numbers), sizes, mode="clip")
    updates = np.asarray(RNG.permutation(slices.size).reshape(slices.shape) / 5 + 0.03)
    call = lambda lax, x, i, u: getattr(lax, name)(x, i, u, scatter_numbers(lax, numbers), mode=mode)
    # JAX has no derivative of a product with repeated indices, and divides by 0 at clipped ones.
    extreme_and_clipped = name in ("scatter_min", "scatter_max") and mode == "clip"
    agree(call, x, outside(indices, shape), updates, derivatives=not extreme_and_clipped and name != "scatter_mul")
    if extreme_and_clipped:
        derivatives.check(lambda x, u: call(lax, x, outside(indices, shape), u), (x, updates), order=1)


@pytest.mark.quick("scatter", "scatter_add")
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"])
def test_unique_places(name):
    x, indices, updates = data(6, 3), np.asarray([[4], [0], [5]], "int32"), -data(3, 3) - 0.01
    numbers = ((1,), (0,), (0,))
    call = lambda lax, x, i, u: getattr(lax, name)(x, i, u, scatter_numbers(lax, numbers), unique_indices=True)
    agree(call, x, indices, updates)


def test_ties_share_the_gradient():
    x, updates = np.asarray([2.0, 5.0, 1.0]), np.asarray([2.0, 2.0, 7.0, 0.0])
    indices = np.asarray([[0], [0], [2], [1]], "int32")
    for name in ("scatter_max", "scatter_min"):
        agree(
            lambda lax, x, i, u, n=name: getattr(lax, n)(x, i, u, scatter_numbers(lax, ((), (0,), (0,)))),
            x,
            indices,
            updates,
        )


@pytest.mark.slow
@settings(max_examples=5)
@given(st.data())
def test_any_gather_and_scatter(draw):
    rank = draw.draw(st.integers(1, 3))
    shape = tuple(draw.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank)))
    sizes = tuple(draw.draw(st.integers(1, n)) for n in shape)
    # Not without any index: JAX's gradient is then that of the last update alone instead of the sum.
    index_map = tuple(draw.draw(st.permutations(range(rank)))[: draw.draw(st.integers(1, rank))])
    collapsed = tuple(sorted(i for i in range(rank) if sizes[i] == 1 and draw.draw(st.booleans())))
    lead = tuple(draw.draw(st.lists(st.integers(1, 3), max_size=2)))
    kept = rank - len(collapsed)
    offsets = tuple(sorted(draw.draw(st.permutations(range(len(lead) + kept)))[:kept]))
    mode = draw.draw(st.sampled_from(["clip", "fill"]))
    indices = RNG.integers(-2, 5, (*lead, len(index_map))).astype("int32")
    x, numbers = data(*shape), (offsets, collapsed, index_map)
    taken = agree(
        lambda lax, x, i: lax.gather(x, i, gather_numbers(lax, numbers), sizes, mode=mode, fill_value=-1.0), x, indices
    )
    updates = np.asarray(RNG.integers(0, 99, taken.shape) / 1.0)
    agree(lambda lax, x, i, u: lax.scatter_add(x, i, u, scatter_numbers(lax, numbers), mode=mode), x, indices, updates)


def test_gather_and_scatter_errors():
    x, i = np.ones((3, 4)), np.zeros((2, 1), "int32")
    rows = lax.GatherDimensionNumbers((1,), (0,), (0,))
    for sizes, indices, numbers in [
        ((1, 5), i, rows),
        ((1,), i, rows),
        ((2, 4), i, rows),
        ((1, 4), np.zeros((2, 2), "int32"), rows),
        ((1, 4), i, lax.GatherDimensionNumbers((1, 2), (0,), (0,))),
    ]:
        with pytest.raises(ShapeError, match=r"^\[gather\] "):
            lax.gather(x, indices, numbers, sizes)
    with pytest.raises(ArgumentError, match=r"^\[gather\] "):
        lax.gather(x, i, rows, (1, 4), mode="wrap")
    with pytest.raises(DtypeError, match=r"^\[gather\] "):
        lax.gather(x, i * 0.5, rows, (1, 4))
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    for updates in (np.ones((2, 5)), np.ones((3, 4)), np.ones(4)):
        with pytest.raises(ShapeError, match=r"^\[scatter_add\] "):
            lax.scatter_add(x, i, updates, numbers)
    with pytest.raises(DtypeError, match=r"^\[scatter_add\] "):
        lax.scatter_add(x > 0, i, np.ones((2, 4), bool), numbers)


# -- segments --------------------------------------------------------------------------------------------------

IDS = np.asarray([2, 0, 2, -1, 5, 3, 2, 9], "int32")


@pytest.mark.quick("()-segment_max")
@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
@pytest.mark.parametrize("rest", [(), (3,), (2, 0)])
def test_segments(name, rest):
    x = np.asarray(RNG.normal(size=(8, *rest)))
    of = lambda m: getattr(lax if m is lax else jax.ops, name)
    agree(lambda m, x, i: of(m)(x, i, 6), x, IDS, derivatives=name != "segment_prod")
    agree(lambda m, x, i: of(m)(x, i, 6, mode="clip"), x, IDS, derivatives=False)


@pytest.mark.quick("segment_prod", "segment_min", "segment_max")
@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
def test_segments_of_integers(name):
    x = RNG.integers(-5, 6, (8, 2)).astype("int32")
    with oracle.x64(False):
        close(getattr(lax, name)(x, IDS), getattr(jax.ops, name)(x, IDS), 0)
        close(getattr(lax, name)(x, np.maximum(IDS, 0)), getattr(jax.ops, name)(x, np.maximum(IDS, 0)), 0)


@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
@pytest.mark.parametrize("shape", [(0,), (3,), (3, 2)])
def test_no_segments(name, shape):
    data, ids = np.ones(shape, "float32"), np.zeros(shape[:1], "int32")
    ours, theirs = getattr(lax, name), getattr(jax.ops, name)
    expected = np.asarray(theirs(data, ids, 0))
    for found in (ours(data, ids, 0), tvmfun.jit(lambda x, i: ours(x, i, 0))(data, ids)):
        assert found.shape == expected.shape and found.dtype == expected.dtype
    gradient = tvmfun.grad(lambda x: ours(x, ids, 0).sum())(data)
    np.testing.assert_array_equal(gradient, np.zeros(shape))
    batched = tvmfun.vmap(lambda x: ours(x, ids, 0))(np.stack([data, data]))
    assert batched.shape == (2, *expected.shape)


@pytest.mark.parametrize("name", ["segment_sum", "segment_max"])
def test_segments_of_one_number(name):
    close(getattr(lax, name)(1.5, IDS, 6), getattr(jax.ops, name)(1.5, IDS, 6), 0)


def test_numbers_of_segments_with_several_axes():
    x, ids = data(2, 3, 4), np.asarray([[0, 1, 0], [2, 2, 1]], "int32")
    found = tvmfun.jit(lambda x, i: lax.segment_sum(x, i, 3))(x, ids)
    np.testing.assert_allclose(found, lax.segment_sum(x.reshape(6, 4), ids.reshape(6), 3), rtol=0)
    np.testing.assert_allclose(np.asarray(found)[1], x[0, 1] + x[1, 2], rtol=1e-15)


def test_segment_errors():
    x, ids = np.ones((4, 2)), np.zeros(4, "int32")
    with pytest.raises(ConcretizationError, match=r"^\[segment_sum\] "):
        tvmfun.jit(lambda x, i: lax.segment_sum(x, i))(x, ids)
    with pytest.raises(ShapeError, match=r"^\[segment_max\] "):
        lax.segment_max(x, ids[:3], 2)
    with pytest.raises(DtypeError, match=r"^\[segment_sum\] "):
        lax.segment_sum(x > 0, ids, 2)
    with pytest.raises(DtypeError, match=r"^\[segment_sum\] "):
        lax.segment_sum(x, ids * 0.5, 2)


def test_updates_that_the_array_cannot_hold():
    x = tnp.zeros(3, "int32")
    for update in (np.full(1, 1.7, "float32"), tnp.ones(1), np.ones(1, "int64")):
        with pytest.raises(DtypeError, match=r"int32 cannot hold .*Try update.astype\(operand.dtype\)"):
            lax.dynamic_update_slice(x, update, (0,))
        with pytest.raises(DtypeError, match="cannot hold"):
            lax.dynamic_update_index_in_dim(x, update, 1, 0)
    np.testing.assert_array_equal(lax.dynamic_update_index_in_dim(x, 2, 1, 0), [0, 2, 0])
    np.testing.assert_array_equal(lax.dynamic_update_slice(tnp.zeros(3), np.full(1, 2, "int8"), (1,)), [0, 2, 0])
