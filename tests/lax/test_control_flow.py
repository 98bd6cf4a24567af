"""Control flow against JAX: values, both modes of differentiation, batching, and all of them composed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from support import oracle

import tvmfun
from tvmfun import lax, tree
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, GradientError, ShapeError, TreeError

jax = pytest.importorskip("jax")
jnp = jax.numpy
RNG = np.random.default_rng(3)
W = RNG.normal(size=(3, 3)) / 2
XS = RNG.normal(size=(5, 3))
X = RNG.normal(size=3)


class Ours:
    np, lax, ops = tnp, lax, tvmfun


class Theirs:
    np, lax, ops = jnp, jax.lax, jax


def rnn(m, w, xs, h):
    """A carry, stacked results, a captured matrix."""

    def step(h, x):
        h = m.np.tanh(w @ h + x)
        return h, {"h": h, "sum": m.np.sum(h)}

    h, ys = m.lax.scan(step, h, xs)
    return m.np.sum(h * h) + m.np.sum(ys["h"] ** 3) * m.np.sum(ys["sum"])


def backwards(m, w, xs, h):
    h, ys = m.lax.scan(lambda h, x: (m.np.sin(w @ h) * x, h), h, xs, reverse=True)
    return m.np.sum(h) + m.np.sum(ys**2)


def without_xs(m, w, xs, h):
    h, ys = m.lax.scan(lambda h, _: (m.np.sin(w @ h) + m.np.sum(xs), None), h, None, length=4)
    assert ys is None
    return m.np.sum(h)


def swapping(m, w, xs, h):
    """Carries that are swapped, one that never changes, and one the result ignores."""
    start = (h, h * 2, m.np.sum(h), m.np.zeros(2))
    (a, b, c, _), ys = m.lax.scan(lambda s, x: ((s[1], s[0] + x, s[2], s[3] + 1), s[2] * x), start, xs)
    return m.np.sum(a * b) * c + m.np.sum(ys)


def unrolled(m, w, xs, h):
    h, ys = m.lax.scan(lambda h, x: (m.np.tanh(w @ h + x), h), h, xs, unroll=2)
    return m.np.sum(h) + m.np.sum(ys**2)


def integers(m, w, xs, h):
    """An integer carry that picks rows."""

    def step(carry, x):
        i, h = carry
        return (i + 1, h * m.np.asarray(xs)[i] + m.np.sum(x)), i

    (_, h), order = m.lax.scan(step, (m.np.asarray(0, dtype="int32"), h), xs)
    return m.np.sum(h * h) + m.np.sum(order * 1.0)


def fori(m, w, xs, h):
    return m.np.sum(m.lax.fori_loop(0, 4, lambda i, h: m.np.sin(w @ h) * (i + 1), h))


def branch(m, w, xs, h):
    first = m.lax.cond(m.np.sum(h) > 0.0, lambda h: m.np.sin(w @ h), lambda h: h * h * 2, h)
    second = m.lax.switch(2, [lambda x: x, m.np.cos, lambda x: m.np.exp(x) * m.np.sum(h)], xs)
    return m.np.sum(first) + m.np.sum(second)


def branch_in_scan(m, w, xs, h):
    """A branch that differs from step to step, also between examples of a batch."""

    def step(h, x):
        h = m.lax.cond(m.np.sum(h * x) > 0.0, lambda h: w @ h + x, lambda h: m.np.sin(h) * x, h)
        return h, m.lax.cond(x[0] > 0.0, lambda: m.np.sum(h), lambda: 0.0)

    h, ys = m.lax.scan(step, h, xs)
    return m.np.sum(h) + m.np.sum(ys)


def nested(m, w, xs, h):
    """Loops three deep."""

    def outer(h, x):
        def middle(h, y):
            h = m.lax.fori_loop(0, 2, lambda i, h: m.np.sin(w @ h) + y, h)
            return h, m.np.sum(h)

        h, sums = m.lax.scan(middle, h, x * h)
        return h, sums * x

    h, ys = m.lax.scan(outer, h, xs)
    return m.np.sum(h) + m.np.sum(ys)


def mapped(m, w, xs, h):
    return m.np.sum(m.lax.map(lambda x: m.np.sin(w @ x) * h, xs) ** 2)


def mapped_in_batches(m, w, xs, h):
    return m.np.sum(m.lax.map(lambda x: m.np.sin(w @ x) * h, xs, batch_size=2) ** 2)


def prefixes(m, w, xs, h):
    ys = m.lax.associative_scan(lambda a, b: a * b + a, xs * w[0, 0])
    zs = m.lax.associative_scan(m.np.maximum, xs, axis=1, reverse=True)
    return m.np.sum(ys * ys) + m.np.sum(zs * xs) * m.np.sum(h)


LOSSES = [
    rnn, backwards, without_xs, swapping, unrolled, integers, fori, branch, branch_in_scan, nested, mapped,
    mapped_in_batches, prefixes,
]  # fmt: skip


def both(loss, transform, *arguments, eager=True):
    """Compares the results of a transform of the loss with JAX's: jitted, and also without ``jit``."""
    make = lambda m: transform(m, lambda *a: loss(m, *a))
    ours = make(Ours)
    with oracle.x64():
        expected = jax.jit(make(Theirs))(*arguments)
    for run in (tvmfun.jit(ours), ours) if eager else (tvmfun.jit(ours),):
        for got, want in zip(tree.leaves(run(*arguments)), jax.tree_util.tree_leaves(expected), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-9, atol=1e-11)


def tangents(arguments):
    return tuple(np.cos(np.arange(a.size)).reshape(a.shape) for a in arguments)


TRANSFORMS = {
    "value": lambda m, f: f,
    "grad": lambda m, f: m.ops.value_and_grad(f, argnums=(0, 1, 2)),
    "jvp": lambda m, f: lambda *a: m.ops.jvp(f, a, tangents(a)),
    "hessian": lambda m, f: m.ops.hessian(f, argnums=2),
    "reverse over forward": lambda m, f: m.ops.grad(lambda *a: m.ops.jvp(f, a, tangents(a))[1], argnums=(0, 1, 2)),
}


def combinations(others, dear):
    """Every loss with some of the others; the dear ones with a few losses, and all with all once in a while."""
    few = (rnn, branch_in_scan, nested)
    cheap = [other for other in others if other not in dear]
    return [
        pytest.param(loss, other, marks=[] if loss in few or other == cheap[i % len(cheap)] else [pytest.mark.slow])
        for i, loss in enumerate(LOSSES)
        for other in others
    ]


@pytest.mark.quick("branch_in_scan-grad")
@pytest.mark.parametrize(("loss", "transform"), combinations(TRANSFORMS, ("hessian", "reverse over forward")))
def test_transforms(loss, transform):
    # Without `jit` the same rules run, and the compiled loops are those of one transform.
    both(loss, TRANSFORMS[transform], W, XS, X, eager=transform in ("value", "grad"))


BATCHES = {
    "xs": ((None, 0, None), (W, RNG.normal(size=(4, 5, 3)), X)),
    "carry": ((None, None, 0), (W, XS, RNG.normal(size=(4, 3)))),
    "consts": ((2, None, None), (RNG.normal(size=(3, 3, 4)) / 2, XS, X)),
    "all": ((0, 1, 0), (RNG.normal(size=(4, 3, 3)) / 2, RNG.normal(size=(5, 4, 3)), RNG.normal(size=(4, 3)))),
}


@pytest.mark.quick("branch_in_scan-all")
@pytest.mark.parametrize(("loss", "batch"), combinations(BATCHES, ("xs", "consts")))
def test_batched_value_and_gradient(loss, batch):
    axes, arguments = BATCHES[batch]
    batched = lambda m, f: m.ops.vmap(m.ops.value_and_grad(f, argnums=(0, 1, 2)), axes)
    both(loss, batched, *arguments, eager=batch == "all")


def test_scan_inside_vmap_inside_grad():
    def loss(m, w, xs, h):
        return m.np.sum(m.ops.vmap(lambda h: rnn(m, w, xs, h))(m.np.stack([h, h * 2])))

    both(loss, TRANSFORMS["grad"], W, XS, X)


# -- while_loop --------------------------------------------------------------------------------------------------------


def growing(m, w, h, **bound):
    """As many steps as it takes, which depends on the data."""
    _, h = m.lax.while_loop(
        lambda s: m.np.sum(s[1] ** 2) < 50.0, lambda s: (s[0] + 1, s[1] * 1.5 + m.np.sin(w @ s[1])), (0, h), **bound
    )
    return h


def test_while_loop_value_forward_mode_and_batching():
    starts = np.stack([X, X * 3, X * 20, X * 0.1])
    both(growing, TRANSFORMS["value"], W, X)
    both(growing, TRANSFORMS["jvp"], W, X)
    both(growing, lambda m, f: m.ops.vmap(f, (None, 0)), W, starts)
    both(growing, lambda m, f: m.ops.vmap(lambda *a: m.ops.jvp(f, a, tangents(a)), (None, 0)), W, starts)


def test_while_loop_whose_bound_is_batched_but_whose_carry_is_not():
    def f(m, bound):
        return m.lax.while_loop(lambda i: i < bound, lambda i: i + 2, m.np.asarray(0, dtype="int32"))

    both(f, lambda m, f: m.ops.vmap(f), np.asarray([0, 3, 10, -4], np.int32))


def fixed_steps(w, h, steps):
    """The same computation with a number of steps that is known, for JAX, which cannot reverse ``while``."""
    for _ in range(steps):
        h = h * 1.5 + jnp.sin(w @ h)
    return h


def steps_taken(h):
    steps = 0
    while np.sum(h**2) < 50:
        h, steps = h * 1.5 + np.sin(W @ h), steps + 1
    return steps


@pytest.mark.parametrize("start", [X, X * 20])
def test_reverse_mode_through_while_loop(start):
    steps = steps_taken(start)
    loss = lambda w, h: tnp.sum(growing(Ours, w, h, max_steps=30) ** 3)
    derivatives = lambda m, f: lambda w, h: (m.ops.value_and_grad(f, (0, 1))(w, h), m.ops.hessian(f, 1)(w, h))
    (value, gradients), twice = tvmfun.jit(derivatives(Ours, loss))(W, start)
    with oracle.x64():
        reference = lambda w, h: jnp.sum(fixed_steps(w, h, steps) ** 3)
        (expected, expected_gradients), expected_twice = jax.jit(derivatives(Theirs, reference))(W, start)
    np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-10)
    for got, want in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(twice), expected_twice, rtol=1e-8)


def test_batched_reverse_mode_through_while_loop():
    starts = np.stack([X, X * 3, X * 20])
    loss = lambda h: tnp.sum(growing(Ours, W, h, max_steps=30) ** 3)
    got = tvmfun.vmap(tvmfun.grad(loss))(starts)
    summed = tvmfun.grad(lambda hs: tnp.sum(tvmfun.vmap(loss)(hs)))(starts)
    with oracle.x64():
        for row, other, start in zip(np.asarray(got), np.asarray(summed), starts, strict=True):
            steps = steps_taken(start)
            want = jax.jit(jax.grad(lambda h, n=steps: jnp.sum(fixed_steps(W, h, n) ** 3)))(start)
            np.testing.assert_allclose(row, want, rtol=1e-9)
            np.testing.assert_allclose(other, want, rtol=1e-9)


def test_reverse_mode_without_a_bound_is_refused():
    with pytest.raises(GradientError, match="max_steps"):
        tvmfun.grad(lambda h: tnp.sum(growing(Ours, W, h)))(X)


def test_max_steps_ends_the_loop():
    assert int(lax.while_loop(lambda x: x < 100, lambda x: x + 1, 0, max_steps=7)) == 7


def test_fori_loop_with_traced_bounds():
    def f(m, lower, upper):
        return m.lax.fori_loop(lower, upper, lambda i, t: t + i * i, 0)

    for pair in ((2, 6), (3, 3), (5, 2)):
        both(f, TRANSFORMS["value"], *map(np.int32, pair))
    loss = lambda x, n: lax.fori_loop(0, n, lambda i, x: x * x * (i + 1), x, max_steps=10)
    assert float(tvmfun.grad(loss)(1.5, np.int32(2))) == pytest.approx(4 * 2 * 1.5**3)


# -- size --------------------------------------------------------------------------------------------------------------


def test_a_million_steps():
    f = tvmfun.jit(lambda n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 0.5 + 1.0), (0, 0.0)))
    steps, value = f(np.int32(1_000_000))
    assert int(steps) == 1_000_000
    assert float(value) == 2.0


def test_gradient_of_ten_thousand_steps():
    xs = np.random.default_rng(0).normal(size=(10_000, 3))
    loss = lambda m, w, xs: m.np.sum(m.lax.scan(lambda h, x: (m.np.tanh(w @ h + x),) * 2, m.np.zeros(3) * xs[0], xs)[1])
    both(loss, lambda m, f: m.ops.grad(f, argnums=(0, 1)), W, xs)


def test_the_compiled_program_does_not_grow_with_the_steps():
    text = lambda n: tvmfun.jit(tvmfun.grad(lambda x: lax.fori_loop(0, n, lambda i, x: tnp.sin(x), x))).lower(1.0)
    assert len(text(1000).as_text()) - len(text(10).as_text()) < 100


@pytest.mark.parametrize("length", [0, 1])
def test_short_loops(length):
    both(rnn, TRANSFORMS["grad"], W, XS[:length], X)


@pytest.mark.quick("True-0", "True-5", "2-1", "9-2")
@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("unroll", [True, 2, 9])
def test_unrolling_changes_nothing(rows, unroll):
    step = lambda c, x: (c + x, {"c": c, "two": 2 * x})
    for reverse in (False, True):
        plain = lax.scan(step, 0, XS[:rows, 0], reverse=reverse)
        unrolled = lax.scan(step, 0, XS[:rows, 0], reverse=reverse, unroll=unroll)
        assert tree.structure(plain) == tree.structure(unrolled)
        for a, b in zip(tree.leaves(plain), tree.leaves(unrolled), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_an_unrolled_loop_has_the_same_rules():
    with pytest.raises(ShapeError, match=r"^\[scan\] the carry must stay float64\[\]"):
        lax.scan(lambda c, x: (c + x, None), np.float64(0), XS, unroll=True)


def test_zero_sized_rows():
    carry, ys = lax.scan(lambda c, x: (c + 1, x * 2), 0, np.zeros((4, 0, 3)))
    assert int(carry) == 4
    assert ys.shape == (4, 0, 3)


def test_module_keeps_its_loop():
    text = tvmfun.jit(lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs)).lower(np.zeros(9, np.float32)).compile()
    assert "for i in range(9)" in text.as_text()


# -- carries and errors ------------------------------------------------------------------------------------------------


def test_a_python_number_as_carry_takes_the_dtype_it_gets():
    carry, _ = lax.scan(lambda c, x: (c + x, None), 0, np.ones(3, np.float32))
    assert carry.dtype == np.float32
    assert float(carry) == 3.0
    assert lax.while_loop(lambda c: c < 3, lambda c: c + np.float64(1), 0).dtype == np.float32


def test_errors():
    ones = np.ones((3, 2), np.float32)
    with pytest.raises(TreeError, match="scan"):
        lax.scan(lambda c, x: ((c, c), x), tnp.zeros(2), ones)
    with pytest.raises(TreeError, match="pair"):
        lax.scan(lambda c, x: c, tnp.zeros(2), ones)
    message = r"leaf \['a'\] of the carry must stay float32\[2\], got float32\[1\]. Try an initial value of the shape"
    with pytest.raises(ShapeError, match=message):
        lax.scan(lambda c, x: ({"a": c["a"][:1]}, x), {"a": tnp.zeros(2)}, ones)
    with pytest.raises(DtypeError, match="the carry must stay float32"):
        lax.scan(lambda c, x: (c.astype("int32"), x), tnp.zeros(2), ones)
    with pytest.raises(ShapeError, match="3 rows"):
        lax.scan(lambda c, x: (c, x), 0.0, (ones, ones[:2]))
    with pytest.raises(ArgumentError, match="number of steps"):
        lax.scan(lambda c, x: (c, x), 0.0)
    with pytest.raises(DtypeError, match="scalar bool"):
        lax.while_loop(lambda c: c, lambda c: c + 1, 0)
    with pytest.raises(TreeError, match="result of false_fun"):
        lax.cond(True, lambda: (1.0, 2.0), lambda: 1.0)
    with pytest.raises(DtypeError, match="branches must have one dtype"):
        lax.cond(True, lambda: tnp.zeros(2), lambda: tnp.zeros(2, dtype="int32"))
    with pytest.raises(ShapeError, match="scalar"):
        lax.cond(np.asarray([True]), lambda: 1.0, lambda: 2.0)
    with pytest.raises(ArgumentError, match="max_steps must be an integer"):
        lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0, max_steps="many")
    for length in (-1, 2.5):
        with pytest.raises(ArgumentError, match="the length must be"):
            lax.scan(lambda c, x: (c, c), 0.0, length=length)
    with pytest.raises(ArgumentError, match="unroll must be"):
        lax.scan(lambda c, x: (c, c), 0.0, length=3, unroll=0)
    with pytest.raises(ShapeError, match="associative_scan"):
        lax.associative_scan(tnp.add, ones, axis=5)
    with pytest.raises(ShapeError, match="the shapes it gets"):
        lax.associative_scan(lambda a, b: a[:1], np.ones((6, 2)))


@tvmfun.tree.register_dataclass
@dataclass
class Squared:
    scale: float

    def __call__(self, x):
        return self.scale * x * x


def test_operands_of_cond_that_can_be_called():
    apply = lambda p, x: lax.cond(p, lambda x, f: f(x), lambda x, f: x, x, Squared(2.0))
    assert float(apply(True, 3.0)) == 18 and float(tvmfun.jit(apply)(False, 3.0)) == 3


def test_cond_with_an_operand_for_each_branch():
    for m in (Ours, Theirs):
        choose = lambda p, x, y, m=m: m.lax.cond(p, x, lambda a: a + 1, {"y": y}, lambda b: b["y"] - 1)
        for p in (True, False):
            assert float(choose(p, 1.0, 5.0)) == (2 if p else 4)
            assert float(m.ops.jit(choose)(p, 1.0, 5.0)) == (2 if p else 4)
            assert float(m.ops.grad(choose, 2)(p, 1.0, 5.0)) == (0 if p else 1)


def test_python_numbers_keep_their_kind():
    # A carry or a result that began as a float is not cut to an integer, or a number to a bool.
    _, ys = lax.scan(lambda c, x: (tnp.where(x > 1, 1, 0), c), 0.5, np.asarray([0.0, 2, 3]))
    np.testing.assert_array_equal(ys, [0.5, 0, 1])
    assert float(lax.fori_loop(0, 0, lambda i, c: 1, 2.5)) == 2.5
    assert float(lax.while_loop(lambda c: c < 0, lambda c: 3, 0.75)) == 0.75
    assert float(lax.cond(True, lambda: 5, lambda: 2.5)) == 5
    with pytest.raises(DtypeError, match="branches must have one dtype"):
        lax.cond(True, lambda: 5, lambda: tnp.zeros((), "bool"))
    with pytest.raises(DtypeError, match=r"\[switch\] the Python integer does not fit int8, got 300"):
        lax.switch(1, [lambda: np.int8(1), lambda: 300])


def test_a_scan_without_any_array_has_no_result():
    assert lax.scan(lambda c, x: (None, None), None, None, length=2) == (None, None)


def test_branches_clamp_the_index():
    branches = [lambda: 10.0, lambda: 20.0, lambda: 30.0]
    assert [float(lax.switch(np.int32(i), branches)) for i in (-5, 0, 1, 2, 9)] == [10, 10, 20, 30, 30]
    assert [float(lax.switch(np.uint8(i), branches)) for i in (0, 2, 200)] == [10, 30, 30]


def test_only_the_chosen_branch_runs():
    hang = lambda: lax.while_loop(lambda x: x > 0, lambda x: x + 1.0, 1.0)
    assert float(lax.cond(False, hang, lambda: 5.0)) == 5.0


def choices(m, x, index):
    """A branch per example; those that are not taken have infinite derivatives."""
    branches = [m.np.log, lambda x: 2 * x, m.np.sqrt, lambda x: x * x]
    return m.np.sum(m.ops.vmap(lambda x, i: m.lax.switch(i, branches, x))(x, index))


def test_a_batched_branch_that_is_not_taken_has_no_part_in_the_derivative():
    index = np.array([-3, 1, 1, 2, 3, 9], np.int32)
    x = np.array([1.0, 0.0, -1.0, 4.0, 0.0, -4.0], np.float32)
    slope = lambda m: m.ops.grad(lambda x: choices(m, x, index))
    bend = lambda m: m.ops.grad(lambda x: m.np.sum(slope(m)(x) * x))
    for function in (slope, bend):
        np.testing.assert_allclose(tvmfun.jit(function(Ours))(x), jax.jit(function(Theirs))(x), rtol=1e-6)


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, tvmfun.jit, lambda f: lambda x: tvmfun.vmap(f)(tnp.stack([x, x]))],
    ids=["eager", "jit", "vmap"],
)
@pytest.mark.parametrize(
    "empty",
    [
        lambda x: lax.cond(x > 0, lambda: (), lambda: ()),
        lambda x: lax.cond(x > 0, lambda state, y: state, lambda state, y: state, (), x),
        lambda x: lax.switch(x.astype("int32"), [lambda: None, lambda: None, lambda: None]),
        lambda x: lax.scan(lambda state, y: (state, None), (), tnp.stack([x, x])),
        lambda x: lax.fori_loop(0, x.astype("int32"), lambda i, state: state, ()),
        lambda x: lax.while_loop(lambda state: False, lambda state: state, ()),
    ],
    ids=["cond", "cond_of_a_state", "switch", "scan", "fori_loop", "while_loop"],
)
def test_control_flow_without_results(empty, wrap):
    assert tree.leaves(wrap(empty)(tnp.asarray(1.0))) == []
