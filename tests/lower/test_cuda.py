"""Compiling for a GPU that is not there."""

from functools import partial

import mnist
import numpy as np
import pytest
from op_cases import CASES

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, lax, nn, random
from tvmfun.core.op import REGISTRY

SM_90 = {"kind": "cuda", "arch": "sm_90"}


def test_the_whole_mnist_step_becomes_one_module():
    optimizer = mnist.make_optimizer(1.0, 0.7, 62)
    state = tvmfun.eval_shape(partial(mnist.start, optimizer), random.key(0))
    images, labels = ShapeDtype((64, 28, 28, 1), "float32"), ShapeDtype((64,), "int32")
    step = tvmfun.jit(partial(mnist.train_step, optimizer), target=SM_90)
    compiled = step.lower(state, images, labels).compile()
    text = compiled.as_text()
    assert text.count('thread="blockIdx.x"') > 20
    assert "T.parallel" not in text
    if not tvmfun.devices("cuda"):
        zeros = tvmfun.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), (state, images, labels))
        with pytest.raises(errors.TargetError, match="a device this machine lacks"):
            compiled(*zeros)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.T,
        lambda x: tnp.sum(x),
        lambda x: tnp.sum(x, axis=0),
        lambda x: tnp.argsort(x),
        lambda x: x.at[np.asarray([0, 2])].add(1.0),
        lambda x: random.permutation(random.key(0), x),
        lambda x: x[:0],
    ],
)
def test_every_kind_of_kernel_is_bound_to_threads(function):
    compiled = tvmfun.jit(function, target=SM_90).lower(ShapeDtype((37, 5), "float32")).compile()
    for part in compiled.as_text().split("@T.prim_func")[1:]:
        assert "blockIdx.x" in part.split("@R.function")[0]


def test_a_loop_stays_a_loop_around_launches():
    loss = lambda w, h, xs: tnp.sum(lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, h, xs)[1] ** 2)
    spec = lambda *shape: tvmfun.ShapeDtype(shape, "float32")
    lowered = tvmfun.jit(tvmfun.grad(loss), target=SM_90).lower(spec(16, 16), spec(4, 16), spec(10, 4, 16))
    text = lowered.compile().as_text()
    assert "for i in range(10)" in text
    assert "threadIdx.x" in text


def test_a_condition_in_the_memory_of_the_device_is_refused():
    count = tvmfun.jit(lambda x: lax.while_loop(lambda x: x < 3.0, lambda x: x + 1.0, x), target=SM_90)
    with pytest.raises(errors.TargetError, match="needs its data on the host"):
        count.lower(1.0).compile()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: nn.functional.relu(x @ w),
        lambda x, w: tnp.sum(tnp.exp(x), axis=1) + tnp.mean(w),
        lambda x, w: tvmfun.grad(lambda w: tnp.mean((x @ w) ** 2))(w),
        lambda x, w: nn.functional.softmax(x[:, None] + w[:, 0]),
        lambda x, w: x.at[np.asarray([0, 0])].add(1.0),
        lambda x, w: random.normal(random.key(0), x.shape),
    ],
)
def test_dynamic_sizes_become_sizes_of_the_grid(function):
    spec = lambda *shape: ShapeDtype(shape, "float32")
    compiled = tvmfun.jit(function, target=SM_90).lower(spec("b", 64), spec(64, 32)).compile()
    for part in compiled.as_text().split("@T.prim_func")[1:]:
        assert "blockIdx.x" in part.split("@R.function")[0]


def test_the_mnist_step_for_every_batch_size():
    optimizer = mnist.make_optimizer(1.0, 0.7, 62)
    state = tvmfun.eval_shape(partial(mnist.start, optimizer), random.key(0))
    images, labels = ShapeDtype(("b", 28, 28, 1), "float32"), ShapeDtype(("b",), "int32")
    compiled = tvmfun.jit(partial(mnist.train_step, optimizer), target=SM_90).lower(state, images, labels).compile()
    assert "T.parallel" not in compiled.as_text()


def test_a_thread_has_no_memory_of_dynamic_size():
    sort = tvmfun.jit(lambda x: tnp.sort(x), target=SM_90)
    with pytest.raises(errors.TargetError, match="dynamic size"):
        sort.lower(ShapeDtype((3, "b"), "float32")).compile()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("function", [tnp.argmax, tnp.argmin, tnp.max, tnp.min, nn.functional.log_softmax])
def test_reductions_that_threads_cannot_combine(function, dtype):
    for axis in (0, -1):
        compiled = tvmfun.jit(partial(function, axis=axis), target=SM_90).lower(ShapeDtype((64, 16), dtype)).compile()
        assert "threadIdx.x" in compiled.as_text()


def test_the_evaluation_of_the_mnist_example():
    state = tvmfun.eval_shape(partial(mnist.start, mnist.make_optimizer(1.0, 0.7, 62)), random.key(0))
    batch = ShapeDtype((100, 28, 28, 1), "float32"), ShapeDtype((100,), "int32")
    step = tvmfun.jit(mnist.eval_step.__wrapped__, target=SM_90)
    assert "threadIdx.x" in step.lower(state.model, batch).compile().as_text()


# TVM cannot allocate what this op never uses for a matrix of one row or two.
TOO_SMALL = {("eigh", 2), ("eigh", 3)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_op_compiles(name):
    for i, case in enumerate(CASES[name]):
        if (name, i) not in TOO_SMALL:
            function = tvmfun.jit(lambda *args, case=case: REGISTRY[name](*args, **case.params), target=SM_90)
            function.lower(*case.arguments).compile()
