"""Which equations share a kernel."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, nn, optim
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.options import CPU
from tvmfun.ops.calls import barrier
from tvmfun.program_text.reader import Reader

MATRIX = ShapeDtype((8, 8), "float32")
VECTOR = ShapeDtype((8,), "float32")


def kernels(function, *specifications):
    return [kernel.name for kernel in fuse(tvmfun.trace(function)(*specifications))]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: tnp.tanh(x * 2 + 1), ["multiply_add_tanh"]),
        (lambda x: nn.functional.relu(x @ x + 1), ["dot_general_add_relu"]),
        (lambda x: tnp.sum(x * x), ["multiply_sum"]),
        (lambda x: tnp.mean(x * x), ["multiply_sum_divide"]),
        (lambda x: tnp.exp(x) @ x, ["exp", "dot_general"]),
        (lambda x: tnp.reshape(x, (64,)), ["reshape"]),
        (lambda x: (x + 1, x + 2), ["add", "add"]),
        (lambda x: (tnp.exp(x), tnp.exp(x) + 1), ["exp_add"]),
        (lambda x: (lambda y: (y, y * 2))(tnp.exp(x)), ["exp_multiply"]),
        (lambda x: (lambda y: tnp.sum(y) + tnp.sum(y * y))(tnp.exp(x)), ["exp", "multiply_sum_add", "sum"]),
        (lambda x: x - tnp.max(x, axis=-1, keepdims=True), ["max", "reshape", "subtract"]),
        (lambda x: tnp.zeros((8, 8)) + x, ["add"]),
    ],
)
def test_kernels(function, expected):
    assert sorted(kernels(function, MATRIX)) == sorted(expected)


def test_one_kernel_updates_a_leaf_and_its_state():
    optimizer = optim.adam(1e-3)
    state = tvmfun.eval_shape(optimizer.init, MATRIX)

    def step(gradient, state, params):
        updates, state = optimizer.update(gradient, state, params)
        return optim.apply_updates(params, updates), state

    program = tvmfun.trace(step)(MATRIX, state, MATRIX)
    large = [k for k in fuse(program) if k.outputs[0].aval.shape == (8, 8)]
    assert [len(kernel.outputs) for kernel in large] == [3]


def test_a_broadcast_is_never_stored():
    for kernel in fuse(tvmfun.trace(tvmfun.grad(lambda w, x: tnp.sum(tnp.tanh(x * w))))(VECTOR, MATRIX)):
        assert kernel.name != "broadcast_to"


ROWS, ROW = ShapeDtype((512, 64), "float32"), ShapeDtype((64,), "float32")


def moments(x, kept, other):
    """The mean and variance of columns, and moving averages of them, as batch norms compute them."""
    mean = tnp.mean(x, axis=0)
    variance = tnp.mean((x - mean) ** 2, axis=0)
    return (x - mean) / tnp.sqrt(variance + 1e-5), 0.9 * kept + 0.1 * mean, 0.9 * other + 0.1 * variance


def test_sums_over_columns_compute_what_depends_on_them_alone():
    found = fuse(tvmfun.trace(moments)(ROWS, ROW, ROW), CPU)
    assert [len(kernel.outputs) for kernel in found] == [2, 2, 1]
    assert all(any(equation.op.name == "sum" for equation in kernel.equations) for kernel in found[:2])


@pytest.mark.parametrize("donates", [False, True])
def test_maps_of_sums_over_columns_and_other_readers(donates):
    """Maps that wait for another reader of a sum, written over arguments, in gradients, batches and loops."""

    def function(x, kept):
        total = tnp.sum(x, axis=0)
        centred = tnp.sum(tnp.abs(x * 512 - total), axis=0)
        return tnp.tanh(total) + kept, tnp.sqrt(centred + total * total), total / 2 - centred, total

    rng = np.random.default_rng(0)
    x, kept = (rng.normal(size=spec.shape).astype("float32") for spec in (ROWS, ROW))
    wide = x.astype("float64")
    total = wide.sum(0)
    centred = np.abs(wide * 512 - total).sum(0)
    expected = np.tanh(total) + kept, np.sqrt(centred + total**2), total / 2 - centred, total
    donated = {"donate_argnums": (0, 1)} if donates else {}
    got = tvmfun.jit(function, **donated)(tnp.asarray(x.copy()), tnp.asarray(kept.copy()))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-4)
    batched = tvmfun.jit(tvmfun.vmap(function, (0, None)))(np.stack([x, x]), kept)
    for ours, theirs in zip(batched, expected, strict=True):
        np.testing.assert_allclose(ours[1], theirs, rtol=2e-5, atol=2e-4)
    looped = tvmfun.jit(lambda x, kept: tvmfun.lax.fori_loop(0, 2, lambda i, k: function(x, k)[0], kept))(x, kept)
    np.testing.assert_allclose(looped, 2 * np.tanh(total) + kept, rtol=2e-5, atol=2e-4)


def test_gradients_of_moments_agree_with_finite_differences():
    rng = np.random.default_rng(1)
    x, kept, along = (rng.normal(size=shape) for shape in ((512, 64), (64,), (512, 64)))
    loss = lambda x: sum(tnp.sum(tnp.sin(result)) for result in moments(x, kept, kept))
    slope = float(np.sum(np.asarray(tvmfun.jit(tvmfun.grad(loss))(x)) * along))
    ahead, behind = (float(tvmfun.jit(loss)(x + step * along)) for step in (1e-5, -1e-5))
    assert abs(slope - (ahead - behind) / 2e-5) < 1e-4 * abs(slope)


def test_cheap_intermediates_are_computed_again():
    """The gradient of gelu keeps its argument and the tanh; what else it needs is cheaper to compute than to read."""
    step = tvmfun.value_and_grad(lambda x, w: tnp.sum(nn.functional.gelu(x @ w) @ w))
    kernels = fuse(tvmfun.trace(step)(MATRIX, MATRIX))
    with_op = lambda name: [k for k in kernels if name in (equation.op.name for equation in k.equations)]
    (forward,), (backward,) = with_op("tanh"), with_op("subtract")
    assert [out.aval.shape for out in forward.outputs] == [(8, 8)] * 2
    kept = set(backward.inputs).intersection((*forward.inputs, *forward.outputs))
    assert len(kept) == 2


@pytest.mark.slow
def test_kernels_run_in_an_order_that_works():
    steps = [
        lambda a, b: a + b,
        lambda a, b: tnp.tanh(a) * b,
        lambda a, b: a @ b / 8,
        lambda a, b: a - tnp.mean(b, axis=0),
        lambda a, b: tnp.reshape(tnp.reshape(a, (64,)), (8, 8)) + b.T,
        lambda a, b: a[::-1] * 0.5,
    ]

    def random_program(x):
        values = [x, x + 1]
        for _ in range(60):
            a, b = (values[i] for i in rng.integers(0, len(values), 2))
            values.append(steps[rng.integers(0, len(steps))](a, b))
        return values[-8:]

    for seed in range(4):
        rng = np.random.default_rng(seed)
        program = tvmfun.trace(random_program)(MATRIX)
        x = np.random.default_rng(seed).normal(size=(8, 8)).astype("float32")
        fused = program(x)
        one_by_one = program.evaluate([*program.captured, tnp.asarray(x)])
        for a, b in zip(fused, one_by_one, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)


@pytest.mark.slow
def test_no_kernel_waits_for_itself():
    """Merging and repeating once made cycles of kernels; every result is made before it is read, once."""
    steps = [
        lambda a, b: a + b,
        lambda a, b: tnp.tanh(a) * b,
        lambda a, b: a - tnp.mean(b, axis=0),
        lambda a, b: tnp.reshape(tnp.reshape(a, (64,)), (8, 8)) + b.T,
        lambda a, b: tnp.broadcast_to(tnp.sum(a, axis=0), (8, 8)) * tnp.exp(b),
        lambda a, b: tnp.where(a > b, a, b) * tnp.arange(8),
    ]
    for seed in range(150):
        rng = np.random.default_rng(seed)

        def random_program(x, rng=rng):
            values = [x, x + 1]
            for _ in range(rng.integers(10, 80)):
                a, b = (values[i] for i in rng.integers(max(0, len(values) - 12), len(values), 2))
                values.append(steps[rng.integers(0, len(steps))](a, b))
            return values[-int(rng.integers(1, 9)) :]

        program = tvmfun.trace(random_program)(MATRIX)
        known = set(program.inputs)
        for kernel in fuse(program):
            assert kernel.outputs
            assert known.issuperset(kernel.inputs)
            assert known.isdisjoint(kernel.outputs)
            known.update(kernel.outputs)
        assert known.issuperset(program.outputs)


def deep_step(optimizer, layers):
    """A training step of as many square layers, and its arguments."""
    params = [ShapeDtype((64, 64), "float32")] * layers
    state = tvmfun.eval_shape(optimizer.init, params)

    def loss(params, x):
        for w in params:
            x = tnp.tanh(x @ w)
        return tnp.sum(x)

    def step(params, state, x):
        updates, state = optimizer.update(tvmfun.grad(loss)(params, x), state, params)
        return optim.apply_updates(params, updates), state

    return step, (params, state, ShapeDtype((2, 64), "float32"))


@pytest.mark.quick("optimizer0")
@pytest.mark.parametrize("optimizer", [optim.sgd(0.1), optim.sgd(0.1, momentum=0.9), optim.adamw(1e-3)])
def test_gradients_do_not_outlive_their_updates(optimizer):
    step, arguments = deep_step(optimizer, 12)
    memory = tvmfun.jit(step, donate_argnums=(0, 1)).lower(*arguments).compile().memory_analysis()
    matrix = 64 * 64 * 4
    assert memory.temporaries < 3 * matrix  # of 12 gradients
    state = tvmfun.tree.leaves(arguments[:2])
    assert memory.aliased == sum(leaf.nbytes for leaf in state)


def test_updates_wait_for_what_still_reads_the_old_values():
    """Two results that both read both inputs: only the last one may write over its input."""

    def step(a, b):
        return a + 2 * b, b + 3 * a, tnp.sum(tnp.exp(a))

    a, b = np.random.default_rng(0).normal(size=(2, 8, 8)).astype("float32")
    new_a, new_b, total = tvmfun.jit(step, donate_argnums=(0, 1))(tnp.asarray(a), tnp.asarray(b))
    np.testing.assert_allclose(new_a, a + 2 * b, rtol=1e-6)
    np.testing.assert_allclose(new_b, b + 3 * a, rtol=1e-6)
    np.testing.assert_allclose(total, np.exp(a).sum(), rtol=1e-5)


def test_a_count_that_is_returned_and_used():
    """The new count is stored by one kernel and read by others, which have to come after it."""

    def step(count, x):
        following = tnp.minimum(count, 10) + 1
        rate = 0.5 ** following.astype("float32")
        return following, x * rate, x / (1 + rate)

    count, x = np.int32(3), np.arange(6, dtype="float32")
    got = tvmfun.jit(step, donate_argnums=0)(tnp.asarray(count), x)
    for a, b in zip(got, (4, x / 16, x / (1 + 1 / 16)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_dead_code_has_no_kernel():
    """Texts may have some, also in loops, where a kernel without results could not be scheduled."""
    text = """program f(a: float32[4,3]) returns "*" {
      b: float32[4,3] = loop(a, body=program step(a: float32[3]) returns {"tuple": [null, "*"]} {
          c: bool[3] = less(a, 0.0:float32)
          d: float32[3] = add(a, 3.0:float32)
          e: float32[3] = where(c, d, a)
          f: int32[3] = argsort(a)
          g: int32[3,1] = reshape(f, shape=(3, 1))
          h: float32[3] = gather(a, g, mode='in_bounds', batch=0)
          return h
        }, cond=None, length=4, reverse=False, counted=False, consts=0, carry=0)
      return b
    }"""
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    program = Reader(text).read()
    np.testing.assert_array_equal(np.asarray(tvmfun.jit(program)(x)), np.sort(x))
    (loop,) = program.equations
    assert [kernel.name for kernel in fuse(loop.params["body"])] == ["argsort", "reshape_gather"]


def test_a_barrier_around_a_part_stays_one():
    def function(x):
        return tnp.exp(barrier(x[:, ::2])) + tnp.cos(barrier(x[:, 1::2]))

    found = fuse(tvmfun.trace(function)(MATRIX))
    assert [kernel.name for kernel in found] == ["slice", "slice", "exp_cos_add"]


def test_indices_of_single_elements_are_computed_where_they_are_read():
    """Where each index names one element; rows that an index names would compute it for each element."""
    x, i = np.ones((5, 30, 40), "float32"), np.ones((5, 7, 40), "int32")
    single = tvmfun.trace(lambda x, i: tnp.take_along_axis(x, i, axis=1))(x, i)
    assert len([kernel for kernel in fuse(single, CPU) if not kernel.is_view]) == 1
    rows = tvmfun.trace(lambda x, i: tnp.exp(x)[i - 1])(x[0], i[0, 0])
    assert len([kernel for kernel in fuse(rows, CPU) if not kernel.is_view]) == 2
