"""One compile for every size: whole training steps, every way to say which sizes are dynamic."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, NamedTuple

import mnist
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dynamic_sizes import RNG, SIZES, agrees, floats, same

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, errors, grad, jit, lax, nn, optim, random, tree, vmap
from tvmfun.counters import counted
from tvmfun.nn import functional as F
from tvmfun.scipy import linalg


def labels(*shape: int, classes: int = 10) -> np.ndarray:
    return RNG.integers(0, classes, shape).astype(np.int32)


# -- training steps --------------------------------------------------------------------------------------------


class Mlp(NamedTuple):
    first: Any
    second: Any


def mlp_step(optimizer, params, state, batch):
    def loss_fn(params):
        hidden = F.relu(batch["x"] @ params.first)
        logits = hidden @ params.second
        return nn.losses.cross_entropy(logits, batch["y"]) + tnp.mean(hidden) / batch["x"].shape[0]

    loss, grads = tvmfun.value_and_grad(loss_fn)(params)
    updates, state = optimizer.update(grads, state, params)
    return optim.apply_updates(params, updates), state, loss


@pytest.mark.slow
@pytest.mark.parametrize("make", [optim.adamw, optim.sgd])
def test_a_step_of_a_small_network(make):
    optimizer = make(1e-2)
    params = Mlp(floats(20, 33) / 5, floats(33, 10) / 5)
    state = optimizer.init(tree.map(tnp.asarray, params))
    arguments = lambda n: (params, state, {"x": floats(n, 20), "y": labels(n)})
    agrees(partial(mlp_step, optimizer), arguments, {"batch": {"x": {0: "b"}, "y": {0: "b"}}})


@pytest.mark.slow
def test_a_step_of_the_mnist_network_with_dropout_and_adadelta():
    optimizer = mnist.make_optimizer(1.0, 0.7, 62)
    state = jit(partial(mnist.start, optimizer))(random.key(0))
    arguments = lambda n: (state, floats(n, 28, 28, 1), labels(n))
    spec = {"images": {0: "b"}, "labels": {0: "b"}}
    # Where an activation is nearly 0, rounding decides about its gradient, and the first step of Adadelta is as large
    # for small gradients as for large ones.
    agrees(partial(mnist.train_step, optimizer), arguments, spec, sizes=(1, 7, 100), tolerance=1e-3)


@pytest.mark.slow
def test_several_steps_with_batches_of_several_sizes():
    optimizer = optim.adamw(1e-2)
    start = Mlp(floats(6, 5), floats(5, 10))
    batches = [{"x": floats(n, 6), "y": labels(n)} for n in (8, 8, 3, 8, 1)]
    results = []
    for spec in (None, {"batch": {0: "b"}}):
        step = jit(partial(mlp_step, optimizer), dynamic_shapes=spec)
        params, state = tree.map(tnp.asarray, start), optimizer.init(tree.map(tnp.asarray, start))
        for batch in batches:
            params, state, loss = step(params, state, batch)
        results.append((params, state, loss))
    same(*results)


@pytest.mark.slow
def test_dropout_drops_the_elements_that_the_static_program_drops():
    drop = lambda key, x: (F.dropout(key, x, 0.4), random.bits(key, x.shape), random.normal(key, (x.shape[0], 3)))
    dynamic = jit(drop, dynamic_shapes=(None, {0: "b"}))
    for n in SIZES:
        call = random.key(5), floats(n, 17)
        for got, expected in zip(dynamic(*call), jit(drop)(*call), strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


# -- kinds of programs -----------------------------------------------------------------------------------------


def attention(q, k, v):
    scores = q @ tnp.swapaxes(k, -1, -2) / 4
    causal = tnp.tril(tnp.ones((q.shape[1], k.shape[1]))) > 0
    return F.softmax(tnp.where(causal, scores, -1e9), axis=-1) @ v


def heads(x, w):
    b, t, d = x.shape
    q = (x @ w).reshape(b, t, 4, d // 4).transpose(0, 2, 1, 3)
    mixed = F.softmax(q @ tnp.swapaxes(q, -1, -2), axis=-1) @ q
    return mixed.transpose(0, 2, 1, 3).reshape(b * t, d)


def recurrent(w, x, h):
    def step(h, x):
        h = tnp.tanh(x @ w + h)
        return h, tnp.mean(h)

    return lax.scan(step, h, x)


B = {0: "b"}
PROGRAMS = {
    "fold": (lambda x, w: x.reshape(-1, x.shape[-1]) @ w, lambda n: (floats(n, 4, 5, 6), floats(6, 7)), (B,)),
    "unfold": (lambda x: x.reshape(x.shape[0] // 3, 3, 2) * 2, lambda n: (floats(3 * n, 2),), ({0: 3 * Dim("b")},)),
    "flatten": (lambda x: x.reshape(x.shape[0], -1).sum(1), lambda n: (floats(n, 4, 5),), (B,)),
    "concat": (
        lambda x, y: tnp.concat([x, y, x[: x.shape[0] // 2], tnp.ones((2, 3))]),
        lambda n: (floats(n, 3), floats(n + 2, 3)),
        (B, {0: "c"}),
    ),
    "broadcast": (lambda x, y: x[:, None] * y + tnp.arange(x.shape[0]), lambda n: (floats(n), floats(n)), (B, B)),
    "means": (
        lambda x: [tnp.mean(x), tnp.mean(x, axis=0), tnp.var(x, axis=0), x.sum() / x.size, x / x.shape[0]],
        lambda n: (floats(n, 5),),
        (B,),
    ),
    "reductions": (
        lambda x: [tnp.max(x, axis=0), tnp.min(x), tnp.prod(x, axis=0), tnp.sum(x, axis=1)],
        lambda n: (floats(n, 5),),
        (B,),
    ),
    "transpose": (lambda x: [x.T + 1, tnp.swapaxes(x.reshape(-1, 5, 2), 1, 2)], lambda n: (floats(n, 10),), (B,)),
    "outer": (lambda x: x @ x.T, lambda n: (floats(n, 20),), (B,)),
    "einsum": (lambda x, w: tnp.einsum("bij,jk->bki", x, w), lambda n: (floats(n, 4, 6), floats(6, 7)), (B,)),
    "slices": (lambda x: [x[::2], x[::-1], x[1:], x[-1], x[:, 1:], x[..., 0]], lambda n: (floats(n, 4),), (B,)),
    "updates": (
        lambda x: [x.at[0].set(1.0), x.at[1:].add(2.0), x.at[:, 1].multiply(3.0)],
        lambda n: (floats(n, 4),),
        (B,),
    ),
    "embedding": (lambda e, i: e[i], lambda n: (floats(11, 4), labels(n, 3, classes=11)), (None, B)),
    "labels": (nn.losses.cross_entropy, lambda n: (floats(n, 10), labels(n)), (B, B)),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding="SAME", stride=2),
        lambda n: (floats(2, n + 2, 9, 3), floats(3, 3, 3, 8)),
        ({0: "b", 1: Dim("h", min=3)},),
    ),
    "pooling": (
        lambda x: [F.max_pool(x, 2), F.avg_pool(x, 2)],
        lambda n: (floats(n, 6, 8, 3),),
        (B,),
    ),
    "attention": (attention, lambda n: (floats(2, n, 16),) * 3, ({1: "t"},) * 3),
    "heads": (heads, lambda n: (floats(3, n, 16), floats(16, 16) / 4), ({0: "b", 1: "t"},)),
    "recurrent": (
        recurrent,
        lambda n: (floats(4, 4) / 2, floats(n + 1, n, 4), floats(n, 4)),
        (None, {0: "t", 1: "b"}, B),
    ),
    "vmap": (lambda x, w: vmap(lambda row: tnp.tanh(row @ w))(x), lambda n: (floats(n, 3), floats(3, 3)), (B,)),
    "half": (lambda x, w: x @ w, lambda n: (floats(n, 6).astype("float16"), floats(6, 7).astype("float16")), (B,)),
    "counted loop": (
        lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c * 0.5 + x[i], x[0]),
        lambda n: (floats(n, 3),),
        (B,),
    ),
    "solve": (
        lambda x: tnp.linalg.solve(2 * np.eye(4, dtype="float32") + tnp.eye(4, k=1), x.T),
        lambda n: (floats(n, 4),),
        (B,),
    ),
    "slice at a known place": (
        lambda x: lax.dynamic_slice(tnp.concat([x, x]), (1, 0), (1, 3)),
        lambda n: (floats(n, 3),),
        (B,),
    ),
    "median": (lambda x: [tnp.median(x, axis=0), tnp.quantile(x, 0.3)], lambda n: (floats(n, 3),), (B,)),
    "two sizes": (lambda x, y: x[:, None] + y, lambda n: (floats(n), floats(2 * n + 1)), ({0: "m"}, {0: "n"})),
}
MEDIUM = (1, 2, 7, 33)


@pytest.mark.quick("fold")
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    function, arguments, spec = PROGRAMS[name]
    sizes = tuple(max(n, 2) for n in MEDIUM) if name == "updates" else MEDIUM
    agrees(function, arguments, spec, sizes, tolerance=1e-2 if name == "half" else 1e-4)


@pytest.mark.quick("einsum")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "half"])
def test_gradients(name):
    function, arguments, spec = PROGRAMS[name]
    places = tuple(i for i, x in enumerate(arguments(2)) if x.dtype == np.float32)
    loss = lambda *args: sum(tnp.sum(tnp.sin(leaf)) for leaf in tree.leaves(function(*args)))
    agrees(grad(loss, places), arguments, spec, MEDIUM, tolerance=1e-3)


@pytest.mark.quick("<lambda>0")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: tvmfun.jvp(lambda x: tnp.tanh(x).mean(), (x,), (x * 2,)),
        grad(lambda x: tnp.sum(grad(lambda x: tnp.mean(tnp.tanh(x) ** 2))(x) ** 2)),
        lambda x: vmap(grad(lambda row: tnp.tanh(row).sum()))(x),
        lambda x: lax.while_loop(lambda s: tnp.sum(s) < 100, lambda s: s * 2, tnp.abs(x) + 1),
        lambda x: lax.cond(tnp.sum(x) > 0, lambda x: x * 2, lambda x: x - 1, x),
        lambda x: lax.fori_loop(0, x.shape[0], lambda i, s: s + i, 0),
        lambda x: [tnp.sort(x, axis=0), tnp.argsort(x, axis=0), tnp.sort(x, axis=1), tnp.argmax(x, axis=0)],
        lambda x: [tnp.tile(x, (2, 1)), tnp.repeat(x, 3, axis=0), tnp.roll(x, 1, axis=0), tnp.flip(x), tnp.pad(x, 1)],
        lambda x: [tnp.eye(x.shape[0]), tnp.full((2, x.shape[0]), 3), tnp.zeros_like(x), tnp.arange(x.size)],
        lambda x: [tnp.any(x > 0, axis=0), tnp.all(x > 0), tnp.cumulative_sum(x, axis=0)],
        lambda x: [x.shape[0], x.shape[0] * 2 + 1, x.shape[0] / 2],
        lambda x: x,
    ],
)
def test_transforms_loops_and_functions_of_numpy(function):
    agrees(function, lambda n: (floats(n, 5),), (B,), (1, 2, 7, 70), tolerance=1e-4)


@pytest.mark.quick("int8-cross_entropy")
@pytest.mark.parametrize("function", [nn.losses.cross_entropy, nn.losses.nll_loss], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint32"])
def test_a_dynamic_number_of_classes(function, dtype):
    def arguments(n):
        return floats(n, n + 2), labels(n, classes=n + 4).astype(dtype)  # the last two are no classes

    both = tvmfun.value_and_grad(lambda scores, labels: tnp.nansum(function(scores, labels, reduction="none")))
    agrees(both, arguments, ({0: "n", 1: "c"}, {0: "n"}), (1, 5, 200))


def test_labels_of_a_dynamic_number_of_frames_and_classes():
    labels, padding = np.array([[1, 2, 3], [4, 1, 0]]), np.array([[0, 0, 0], [0, 0, 1]], np.float32)
    loss = lambda logits, frames: nn.losses.ctc_loss(logits, frames, labels, padding)
    arguments = lambda n: (floats(2, n, n - 2), np.zeros((2, n), np.float32))
    agrees(loss, arguments, ({1: Dim("t"), 2: Dim("c")}, {1: Dim("t")}), (7, 9))


AT_LEAST_3 = {0: Dim("n", min=3)}
MATRICES = {
    "toeplitz": linalg.toeplitz,
    "hankel": linalg.hankel,
    "circulant": linalg.circulant,
    "convolution, full": lambda x: linalg.convolution_matrix(x, 3, "full"),
    "convolution, same": lambda x: linalg.convolution_matrix(x, 3, "same"),
    "convolution, valid": lambda x: linalg.convolution_matrix(x, 3, "valid"),
    "schur": lambda x: linalg.schur(tnp.outer(x, x) + tnp.diag(5.0 * tnp.arange(x.shape[0]))),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name):
    agrees(MATRICES[name], lambda n: (floats(n),), (AT_LEAST_3,), (3, 4, 9), tolerance=1e-4)


@pytest.mark.slow
@settings(max_examples=5)
@given(data=st.data())
def test_products(data):
    """Any of the sizes of a product may be dynamic, the summed one included."""
    left, right = ("".join(data.draw(st.permutations(letters))) for letters in ("mk", "kn"))
    static = {letter: data.draw(st.integers(1, 70), label=letter) for letter in "mnk"}
    dynamic = data.draw(st.sets(st.sampled_from("mnk"), min_size=1), label="dynamic")

    def function(x, y, bias):
        return F.relu(tnp.einsum(f"{left},{right}->mn", x, y) + bias)

    shapes = [tuple(n if n in dynamic else static[n] for n in letters) for letters in (left, right, "n")]
    compiled = jit(function).lower(*(ShapeDtype(shape, "float32") for shape in shapes)).compile()
    for draw in range(3):
        limit = 700 if draw == 0 else 70
        sizes = {n: data.draw(st.integers(1, limit if n == "k" else 70)) if n in dynamic else static[n] for n in "mnk"}
        x, y, bias = (floats(*(sizes[n] for n in letters)) for letters in (left, right, "n"))
        expected = np.maximum(np.einsum(f"{left},{right}->mn", *(a.astype(np.float64) for a in (x, y))) + bias, 0)
        np.testing.assert_allclose(np.asarray(compiled(x, y, bias)), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
def test_maps_and_reductions(data):
    rank = data.draw(st.integers(1, 4), label="rank")
    limit = (5000, 100, 24, 10)[rank - 1]
    static = [data.draw(st.integers(1, limit)) for _ in range(rank)]
    dynamic = data.draw(st.sets(st.integers(0, rank - 1), min_size=1), label="dynamic")
    order = data.draw(st.permutations(range(rank)), label="order")
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1), label="axes")))
    kind = data.draw(st.sampled_from(["sum", "max", "mean", "exp"]), label="kind")

    def function(x, numpy):
        x = numpy.transpose(x, order)
        return numpy.exp(-numpy.abs(x)) if kind == "exp" else getattr(numpy, kind)(x * 2 + 1, axis=axes)

    names = [f"d{i}" if i in dynamic else static[i] for i in range(rank)]
    compiled = jit(lambda x: function(x, tnp)).lower(ShapeDtype(tuple(names), "float32")).compile()
    for _ in range(3):
        x = floats(*(data.draw(st.integers(1, limit)) if i in dynamic else static[i] for i in range(rank)))
        expected = function(x.astype(np.float64), np)
        np.testing.assert_allclose(np.asarray(compiled(x)), expected, rtol=1e-4, atol=1e-3)


def test_sums_of_whole_rows():
    """Of a batch of static matrices, and of as many rows as there are."""
    function = lambda x, y: (tnp.sum(x, axis=1) / 70, tnp.sum(y * 2, axis=0))
    given = lambda n: (floats(n, 70, 128), floats(16 * n, 128))
    agrees(function, given, ({0: Dim("b")}, {0: 16 * Dim("b")}), (1, 3, 40), tolerance=1e-4)


@pytest.mark.slow
def test_no_elements():
    none = {0: Dim("b", min=0)}

    def function(x, w):
        return [x * 2, tnp.sum(x, axis=0), tnp.mean(x), x @ w, tnp.concat([x, x]), x.T @ x]

    agrees(function, lambda n: (floats(n, 6), floats(6, 7)), (none,), (0, 1, 5, 40), tolerance=1e-4)
    loss = lambda w, x: tnp.sum((x @ w) ** 2)
    agrees(grad(loss, (0, 1)), lambda n: (floats(6, 7), floats(n, 6)), (None, none), (0, 1, 5), tolerance=1e-4)


# -- saying which sizes are dynamic ----------------------------------------------------------------------------


def affine(batch, w):
    return batch["x"] @ w + batch["y"][:, None]


def batch(n: int) -> dict:
    return {"x": floats(n, 3), "y": floats(n)}


def compiles(function, *calls) -> int:
    with counted() as events:
        for call in calls:
            function(*call) if isinstance(call, tuple) else function(**call)
    return events.compiles + events.loads


@pytest.mark.quick("spec4", "spec6", "spec5")
@pytest.mark.parametrize(
    "spec",
    [
        {"batch": {"x": {0: "n"}, "y": {0: "n"}}},
        {"batch": {"x": ("n", None), "y": ("n",)}, "w": None},
        {"batch": {0: "n"}},
        ({0: "n"},),
        [{0: Dim("n")}, None],
        {"batch": {"x": {-2: "n"}, "y": {-1: "n"}}},
        {"batch": {"x": ("n", 3), "y": ("n",)}},
    ],
)
def test_one_compile_for_every_way_to_say_it(spec):
    w = floats(3, 3)
    tvmfun.clear_caches()
    assert compiles(jit(affine, dynamic_shapes=spec), (batch(2), w), (batch(5), w), {"w": w, "batch": batch(4)}) == 1


def test_arguments_without_names_of_their_own():
    tvmfun.clear_caches()
    add = lambda *xs: xs[0] + xs[1] * 3
    for spec in ({"xs": (B, B)}, (B, B), {"xs": B}):
        assert compiles(jit(add, dynamic_shapes=spec), (floats(2), floats(2)), (floats(4), floats(4))) <= 1
    add = lambda **xs: xs["p"] + xs["q"] * 3
    for spec in ({"p": B, "q": B}, {"xs": {"p": B, "q": B}}, {"xs": B}):
        calls = [{"p": floats(n), "q": floats(n)} for n in (2, 4)]
        assert compiles(jit(add, dynamic_shapes=spec), *calls) <= 1


def test_static_arguments_make_programs_of_their_own():
    scale = jit(
        lambda k, x, *, mode: x * k if mode == "scale" else x - k,
        static_argnums=0,
        static_argnames="mode",
        dynamic_shapes={"x": B},
    )
    calls = [(k, floats(n)) for k in (2, 3) for n in (2, 5)]
    tvmfun.clear_caches()
    with counted() as events:
        for k, x in calls:
            same(scale(k, x, mode="scale"), tnp.asarray(x * k))
            same(scale(k, x, mode="shift"), tnp.asarray(x - k))
    assert events.compiles == 4


def test_donated_arguments():
    double = jit(lambda x: x * 2, dynamic_shapes=(B,), donate_argnums=0)
    for n in (3, 5):
        x = tnp.asarray(floats(n))
        assert double(x).shape == (n,)
        assert x.is_deleted()


def test_sizes_that_are_computed():
    join = jit(lambda x, y: x + y[::2], dynamic_shapes=({0: "n"}, {0: 2 * Dim("n")}))
    for n in (2, 5):
        x, y = floats(n), floats(2 * n)
        same(join(x, y), tnp.asarray(x + y[::2]))


def test_a_multiple_of_a_size():
    rows = jit(lambda x: x.reshape(-1, 4).sum(0) / x.shape[0], dynamic_shapes=({0: 4 * Dim("n")},))
    for n in (4, 20):
        x = floats(n)
        np.testing.assert_allclose(np.asarray(rows(x)), x.reshape(-1, 4).sum(0) / n, rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.ShapeError, match=r"axis 0 of argument 0 must be 4\*n for an integer n, got 6"):
        rows(floats(6))
    with pytest.raises(errors.ShapeError, match=r"must be 4\*n, where n is a dynamic size of at least 1, got 0"):
        rows(floats(0))


def test_minimum_and_maximum():
    first = jit(lambda x: x[:3], dynamic_shapes=({0: Dim("n", min=3, max=8)},))
    for n in (3, 8):
        assert first(floats(n)).shape == (3,)
    for n in (2, 9):
        with pytest.raises(errors.ShapeError, match=f"a dynamic size of 3 to 8, got {n}"):
            first(floats(n))


def test_calls_with_many_sizes_keep_few_of_them():
    function = jit(lambda x: x + 1, dynamic_shapes=(B,))
    for n in range(1, 1100):
        assert function(np.zeros(n, np.float32)).shape == (n,)
    assert len(function._loaded) < 1100


def test_threads_with_sizes_of_their_own():
    function = jit(lambda x: tnp.cumulative_sum(x @ x.T, axis=0), dynamic_shapes=(B,))
    xs = {n: floats(n, 4) for n in range(1, 9)}
    wrong = []

    def call(n):
        expected = np.cumsum(xs[n] @ xs[n].T, axis=0)
        for _ in range(20):
            if not np.allclose(np.asarray(function(xs[n])), expected, rtol=1e-4, atol=1e-4):
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in xs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- ahead of time, and within other functions ------------------------------------------------------------------


def mean_rows(x):
    return tnp.sum(x, axis=0) / x.shape[0]


def test_lowering_for_named_sizes():
    lowered = jit(lambda x: (x.T @ x, x.shape[0])).lower(ShapeDtype(("b", 2), "float32"))
    assert "float32[b,2]" in lowered.as_text()
    assert 'R.Tensor(("b", 2)' in lowered.as_text("relax") or "R.Tensor((b, 2)" in lowered.as_text("relax")
    compiled = lowered.compile()
    for n in (1, 3, 40):
        x = floats(n, 2)
        product, size = compiled(x)
        np.testing.assert_allclose(np.asarray(product), x.T @ x, rtol=1e-4, atol=1e-5)
        assert int(size) == n
    for wrong in (floats(3, 4), floats(3)):
        with pytest.raises(errors.ShapeError, match=r"must be float32\[b,2\]"):
            compiled(wrong)
    with pytest.raises(errors.DtypeError):
        compiled(np.zeros((3, 2), np.int32))


def test_lowering_for_arrays():
    lowered = jit(mean_rows, dynamic_shapes=(B,)).lower(floats(3, 2))
    assert lowered.program.in_avals == (ShapeDtype(("b", 2), "float32"),)
    assert lowered.compile()(floats(9, 2)).shape == (2,)


def test_text_of_a_program():
    spec = ShapeDtype((Dim("b", min=2), 4), "float32")
    program = tvmfun.trace(lambda x: (x.reshape(-1, 2) / x.shape[0])[1:])(spec)
    assert program.text.splitlines() == [
        "program <lambda>(a: float32[b,4]) where 2 <= b {",
        "  c: float32[2*b,2] = reshape(a, shape=(2*b, 2))",
        "  d: int32[] = dim_size(size=b, dtype='int32')",
        "  e: float32[] = astype(d, dtype='float32')",
        "  f: float32[2*b,2] = divide(c, e)",
        "  g: float32[2*b - 1,2] = slice(f, start=(1, 0), stop=(2*b, 2), step=(1, 1))",
        "  return g",
        "}",
    ]
    assert tvmfun.Program.from_relax(program.verify().function).out_avals == program.out_avals


def test_eval_shape():
    spec = ShapeDtype(("b", 2), "float32")
    assert tvmfun.eval_shape(lambda x: x.reshape(-1, 1) @ x.reshape(1, -1), spec) == ShapeDtype(
        (2 * Dim("b"), 2 * Dim("b")), "float32"
    )


INNER = jit(mean_rows, dynamic_shapes=(B,))
PROGRAM = tvmfun.trace(mean_rows)(ShapeDtype(("b", 2), "float32"))


@pytest.mark.quick("static-static jit", "another name-static jit", "same name-jit", "another name-Program")
@pytest.mark.parametrize("inner", [INNER, PROGRAM, jit(mean_rows)], ids=["jit", "Program", "static jit"])
@pytest.mark.parametrize("spec", [None, (B,), ({0: "n"},)], ids=["static", "same name", "another name"])
def test_within_other_functions(inner, spec):
    outer = jit(lambda x: inner(x) * 2, dynamic_shapes=spec)
    slopes = jit(grad(lambda x: tnp.sum(inner(x) ** 2)), dynamic_shapes=spec)
    for n in (3, 4):
        x = floats(n, 2)
        np.testing.assert_allclose(np.asarray(outer(x)), x.mean(0) * 2, rtol=1e-5, atol=1e-6)
        expected = np.broadcast_to(2 * x.mean(0) / n, x.shape)
        np.testing.assert_allclose(np.asarray(slopes(x)), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            np.asarray(grad(lambda x: tnp.sum(inner(x) ** 2))(x)), expected, rtol=1e-5, atol=1e-6
        )


def test_a_program_runs_for_every_size():
    for n in (2, 6):
        x = floats(n, 2)
        np.testing.assert_allclose(np.asarray(PROGRAM(x)), x.mean(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.ShapeError, match=r"float32\[b,2\]"):
        PROGRAM(floats(2, 3))
