"""Slices that are updated in place, in loops, branches and donated arrays."""

import jax
import numpy as np
import pytest
from support.cuda_emulator import GXX
from support.results import assert_agree

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

TABLE, ROWS = (np.random.default_rng(0).normal(size=shape).astype("float32") for shape in ((12, 5, 4), (6, 5, 4)))
STARTS = np.asarray([3, -2, 100, 0, 11, 3], np.int32)


def rows(lax, np_, table, rows, starts):
    """Also at negative starts and beyond the end, where an update is moved inside."""

    def step(t, x):
        return lax.dynamic_update_slice(t, x[0][None] * 2, (x[1], 0, 0)), t[3]

    return lax.scan(step, table, (rows, starts))


def blocks(lax, np_, table, rows, starts):
    step = lambda t, x: (lax.dynamic_update_slice(t, x[0][None, 1:4, :2], (x[1], x[1], 1)), None)
    return lax.scan(step, table, (rows, starts))


def chained(lax, np_, table, rows, starts):
    """Two updates of one table, of which the second reads what the first has written."""

    def step(t, x):
        t = lax.dynamic_update_slice(t, x[0][None], (x[1], 0, 0))
        return lax.dynamic_update_slice(t, t[2:4] + 1, (x[1] - 5, 0, 0)), np_.sum(t)

    return lax.scan(step, table, (rows, starts))


def shifted(lax, np_, table, rows, starts):
    """An update that overlaps with what it is read from."""
    step = lambda t, i: (lax.dynamic_update_slice(t, t[:-2] * 0.5, (i % 3, 0, 0)), None)
    return lax.scan(step, table, starts)


def kept(lax, np_, table, rows, starts):
    """The old table is stacked, too."""
    step = lambda t, x: (lax.dynamic_update_slice(t, x[0][None], (x[1], 0, 0)), t)
    return lax.scan(step, table, (rows, starts))


def caches(lax, np_, table, rows, starts):
    """Two tables, which exchange their roles, and a branch that updates one of them."""

    def step(c, x):
        a, b = c
        a = lax.dynamic_update_slice(a, x[0][None], (x[1], 0, 0))
        b = lax.cond(x[1] > 2, lambda b: lax.dynamic_update_slice(b, a[:2], (x[1], 0, 0)), lambda b: b, b)
        return (b, a), np_.max(b)

    return lax.scan(step, (table, table * 2), (rows, starts))


def until(lax, np_, table, rows, starts):
    def body(c):
        i, t = c
        return i + 1, lax.dynamic_update_slice(t, rows[:1] + t[:1], (i * 2, 0, 0))

    return lax.while_loop(lambda c: c[0] < 5, body, (np_.asarray(0, "int32"), table))


def nested(lax, np_, table, rows, starts):
    def step(t, x):
        inner = lambda j, t: lax.dynamic_update_slice(t, (x[0] + t[j])[None], (x[1] + j, 0, 0))
        return lax.fori_loop(0, 3, inner, t), None

    return lax.scan(step, table, (rows, starts))


def plain(lax, np_, table, rows, starts):
    return lax.dynamic_update_slice(table, rows[:2], (starts[0], starts[3], 1)), table[0]


def updated(lax, t, at, value, how):
    """One form of update at a constant index, for both libraries."""
    table = tnp.asarray(t) if lax is tvmfun.lax else jax.numpy.asarray(t)
    return getattr(table.at[at], how)(value)


def constant(lax, np_, table, rows, starts):
    """Updates at constant indices, of which some read what others wrote."""

    def step(t, x):
        t = updated(lax, t, 3, x * t[2] / 8, "add")
        t = updated(lax, t, (slice(2, 4), 1), x[0], "set")
        t = updated(lax, t, -1, x / 2, "multiply")
        return updated(lax, t, (0, slice(1, 3)), 2.5, "set"), np_.sum(t)

    return lax.scan(step, table, rows)


def strided(lax, np_, table, rows, starts):
    """Elements between those that are stored stay, so that no block is written."""
    step = lambda t, x: (updated(lax, t, (slice(None, 4, 2), 0, 0), x[:2, 0], "add"), t[1])
    return lax.scan(step, table, rows)


def scattered(lax, np_, table, rows, starts):
    """Updates at indices that are computed, one after another, of which the second reads what the first wrote."""

    def step(t, x):
        t = updated(lax, t, x[1] % 12, x[0], "add")
        t = updated(lax, t, (x[1] + 1) % 12, t[x[1] % 12] / 2, "set")
        return updated(lax, t, np_.stack([x[1] % 12, 0]), x[0] / 4, "add"), t[1]

    return lax.scan(step, table, (rows, abs(starts)))


def padded(lax, np_, table, rows, starts):
    """Padded arrays of which one is the same along an axis that is not padded."""

    def step(t, x):
        t = t + np_.pad(x[:1, :1][None], ((0, 0), (0, 0), (1, 2)))
        return t.at[:, 1:2].add(x[None, :1]) + np_.pad(x[None, :1], ((0, 11), (1, 3), (0, 0))), None

    return lax.scan(step, np_.asarray(table), rows)


def old_values(lax, np_, table, rows, starts):
    """The table is still read after an update."""

    def step(t, x):
        new = updated(lax, updated(lax, t, 0, x, "set"), 1, t[0], "add")
        return updated(lax, new, 2, t[1] + new[1], "set"), t[2]

    return lax.scan(step, table, rows)


def once(lax, np_, table, rows, starts):
    return updated(lax, table, (1, slice(0, 2)), rows[0, 0], "add"), table[1]


BY_START = (rows, blocks, chained, shifted, kept, caches, until, nested, plain)
PROGRAMS = {f.__name__: f for f in (*BY_START, constant, strided, scattered, padded, old_values, once)}


def pair(name):
    return (
        lambda *args: PROGRAMS[name](lax, tnp, *args),
        lambda *args: PROGRAMS[name](jax.lax, jax.numpy, *args),
    )


@pytest.mark.quick("rows", "chained", "caches", "constant")
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_jax(name):
    ours, theirs = pair(name)
    arrays = (TABLE, ROWS, STARTS) if name != "plain" else (TABLE[:, :, :], ROWS[:, :4, :3], STARTS)
    expected = jax.jit(theirs)(*arrays)
    table = TABLE.copy()
    assert_agree(tvmfun.jit(ours)(table, *arrays[1:]), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(table, TABLE)  # it is not donated
    given = tvmfun.device_put(TABLE)
    assert_agree(tvmfun.jit(ours, donate_argnums=0)(given, *arrays[1:]), expected, rtol=1e-5, atol=1e-6)
    batched = np.stack([TABLE, TABLE[::-1]]), np.stack([STARTS, STARTS[::-1]])
    args = batched[0], arrays[1], batched[1]
    mapped = [m.vmap(f, (0, None, 0))(*args) for m, f in ((tvmfun, ours), (jax, theirs))]
    assert_agree(*mapped, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["rows", "blocks", "chained", "shifted", "kept", "nested", "plain", "constant", "scattered", "once"]
)
def test_derivatives_are_those_of_jax(name):
    ours, theirs = pair(name)
    arrays = (TABLE, ROWS, STARTS) if name != "plain" else (TABLE, ROWS[:, :4, :3], STARTS)
    gradients = []
    for module, function in ((tvmfun, ours), (jax, theirs)):

        def total(table, rows, module=module, function=function):
            leaves = module.tree.leaves(function(table, rows, STARTS))
            return sum(module.numpy.sum(module.numpy.sin(leaf)) for leaf in leaves)

        gradients.append(module.jit(module.grad(total, (0, 1)))(*arrays[:2]))
        tangents = module.jvp(lambda t, r, f=function: f(t, r, STARTS), arrays[:2], arrays[:2])[1]
        gradients.append(tangents)
    assert_agree(gradients[0], gradients[2], rtol=1e-4, atol=2e-4)
    assert_agree(gradients[1], gradients[3], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "bool", "float64"])
def test_other_dtypes(dtype):
    table, new = (array.astype(dtype) for array in (TABLE > 0, ROWS[:2] > 0))
    run = lambda t, new: lax.fori_loop(0, 4, lambda i, t: lax.dynamic_update_slice(t, new, (i * 3, 0, 0)), t)
    ours = tvmfun.jit(run, donate_argnums=0)(tvmfun.device_put(table), new)
    for i in range(4):
        first = min(i * 3, 10)
        table[first : first + 2] = new
    np.testing.assert_array_equal(np.asarray(ours), table)


def test_nothing_but_the_update_is_written():
    """A table of a megabyte of which each step writes a row."""
    table, new = tvmfun.ShapeDtype((4096, 64), "float32"), tvmfun.ShapeDtype((100, 64), "float32")

    def loop(t, rows):
        step = lambda t, x: (lax.dynamic_update_slice(t, x[1][None], (x[0] * 7, 0)), None)
        return lax.scan(step, t, (tnp.arange(100, dtype="int32"), rows))[0]

    def at_constant_indices(t, rows):
        step = lambda t, row: (t.at[3].add(row * t[2]).at[5:7].set(row), None)
        return lax.scan(step, t, rows)[0]

    one = lambda t, row, i: lax.dynamic_update_slice(t, row[None], (i, 0))
    numbers = tvmfun.ShapeDtype((64,), "float32"), tvmfun.ShapeDtype((), "int32")
    for function, arguments in ((loop, (table, new)), (at_constant_indices, (table, new)), (one, (table, *numbers))):
        compiled = tvmfun.jit(function, donate_argnums=0).lower(*arguments).compile()
        assert compiled.cost_analysis().bytes < 500_000
        assert compiled.memory_analysis().temporaries < 200_000


def test_updates_outside_of_loops_stay_one_kernel():
    """Each of them would copy the table, which is not donated."""

    def border(t):
        return t.at[0].set(0).at[-1].set(0).at[:, 0].set(1).at[:, -1].add(1)

    compiled = tvmfun.jit(border).lower(tvmfun.ShapeDtype((1024, 512), "float32")).compile()
    assert compiled.memory_analysis().temporaries < 100_000
    assert compiled.cost_analysis().bytes < 2.2 * 1024 * 512 * 4


@pytest.mark.parametrize("filler", [0.0, -0.0])
def test_signs_of_zeros(filler):
    table = np.full((8, 4), -0.0, "float32")

    def sums(m):
        add = lambda t, x: (t + m.numpy.pad(x[None], ((2, 5), (0, 0)), constant_values=filler), None)
        return m.jit(lambda t, xs: m.lax.scan(add, t, xs)[0])(table, np.ones((3, 4), "float32"))

    np.testing.assert_array_equal(np.signbit(np.asarray(sums(tvmfun))), np.signbit(np.asarray(sums(jax))))


@pytest.mark.slow
@pytest.mark.skipif(GXX is None, reason="g++ compiles the emulated kernels")
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_on_emulated_gpus(name):
    from support.cuda_emulator.gpu import emulated_gpus

    ours, _ = pair(name)
    arrays = (TABLE, ROWS, STARTS) if name != "plain" else (TABLE, ROWS[:, :4, :3], STARTS)
    expected = tvmfun.jit(ours)(*arrays)
    with emulated_gpus(seed=3):
        for donated in ((), (0,)):
            results = tvmfun.jit(ours, donate_argnums=donated)(*tvmfun.device_put(arrays, "cuda"))
            assert_agree(results, expected, rtol=1e-5, atol=1e-6)
