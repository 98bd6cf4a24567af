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
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import compilers
from tvmfun.lower.codegen.cuda.joined import Joiner
from tvmfun.runtime.cuda_module import Launch

SM_90 = {"kind": "cuda", "arch": "sm_90"}


@pytest.fixture(autouse=True)
def without_machine_code(request, monkeypatch):
    """Leaves out the compiler, which takes most of the time, where a test is about what comes before it."""
    if "machine_code" not in request.node.name:
        monkeypatch.setattr(compilers, "_libraries", lambda: iter(()))
        monkeypatch.setattr(compilers, "_nvccs", lambda: iter(()))


@pytest.fixture(autouse=True)
def only_schedules(request, monkeypatch):
    """Leaves machine code, which takes a second per module, to the tests named after it."""
    if "machine_code" not in request.node.name:
        missing = errors.TargetError("compile", "this test looks at schedules only")
        monkeypatch.setattr(compilers, "why_none", lambda: missing)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_loop_stays_a_loop_around_launches():
    loss = lambda w, h, xs: tnp.sum(lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, h, xs)[1] ** 2)
    spec = lambda *shape: tvmfun.ShapeDtype(shape, "float32")
    lowered = tvmfun.jit(tvmfun.grad(loss), target=SM_90).lower(spec(16, 16), spec(4, 16), spec(100, 4, 16))
    text = lowered.compile().as_text()
    assert "for i in range(50)" in text  # two steps at a time
    assert "threadIdx.x" in text


@pytest.mark.quick("<lambda>0", "<lambda>4", "<lambda>1")
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


@pytest.mark.slow
def test_the_mnist_step_for_every_batch_size():
    optimizer = mnist.make_optimizer(1.0, 0.7, 62)
    state = tvmfun.eval_shape(partial(mnist.start, optimizer), random.key(0))
    images, labels = ShapeDtype(("b", 28, 28, 1), "float32"), ShapeDtype(("b",), "int32")
    compiled = tvmfun.jit(partial(mnist.train_step, optimizer), target=SM_90).lower(state, images, labels).compile()
    assert "T.parallel" not in compiled.as_text()


@pytest.mark.quick("log_softmax-float32", "min-int32", "argmin-float16", "max-float16")
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


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_op_compiles(name):
    cases = CASES[name]
    apply = lambda *groups: [REGISTRY[name](*group, **c.params) for group, c in zip(groups, cases, strict=True)]
    tvmfun.jit(apply, target=SM_90).lower(*(tuple(case.arguments) for case in cases)).compile()


# -- machine code ------------------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(compilers.why_none() is not None, reason="there is no compiler of CUDA")


def check_machine_code(program):
    """Compiles a Program for a GPU."""
    module = pipeline.build_for_cuda(program, targets.resolve(SM_90))
    kernels = {name for cubin in module.cubins for name in cubin.kernels}
    assert {step.kernel for step in module.launches() if isinstance(step, Launch)} <= kernels
    assert all(cubin.image[:4] == b"\x7fELF" for cubin in module.cubins)


def products_and_masks(x, w, b, mask, rows):
    """Products with what may be fused to them, and bools among it: arguments, conditions and results."""
    y, dtype = x @ w, x.dtype
    results = [
        tnp.where(mask, y + b, y * 2),
        (x + 1) @ w > b,
        ((x + x) @ w).astype("float32") * mask,
        tnp.where(rows[:, None], x, x + 1) @ w,
        tnp.maximum(x @ w + b, 0) * mask,
        (x @ w).astype("bool"),
        (x @ w).astype("int8"),
        tnp.sum(tnp.where(mask, x @ w, 0), 0),
        tnp.any(mask, 1),
        tnp.all(x @ w > b, axis=0),
        mask & (y > b),
        ~mask,
    ]
    if tnp.issubdtype(dtype, tnp.floating):
        results += [
            nn.functional.softmax(y),
            tnp.isnan(y) | mask,
            tnp.exp(y) * mask,
            nn.functional.gelu(x @ w + b),
            tnp.sqrt(x) @ w,
            nn.functional.relu(y).astype("float16"),
            y.astype("bfloat16"),
        ]
    return results


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float16",
        "int8",
        *(pytest.param(d, marks=pytest.mark.slow) for d in ("bfloat16", "float64", "uint8")),
    ],
)
def test_products_and_masks_become_machine_code(dtype):
    arguments = [((128, 64), dtype), ((64, 128), dtype), ((128,), dtype), ((128, 128), "bool"), ((128,), "bool")]
    program = tvmfun.trace(products_and_masks)(*(ShapeDtype(*argument) for argument in arguments))
    check_machine_code(program)


@needs_compiler
@pytest.mark.parametrize("n", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_decompositions_of_small_matrices_become_machine_code(n):
    """Most of what they keep is of loops that never run, and has no elements."""
    ops = [REGISTRY[name] for name in ("cholesky", "eigh", "lu", "qr", "svd")]
    params = {op: CASES[op.name][0].params for op in ops}
    apply = lambda x, batch: [op(y, **params[op]) for op in ops for y in (x, batch)]
    check_machine_code(tvmfun.trace(apply)(ShapeDtype((n, n), "float32"), ShapeDtype((3, n, n), "float64")))


def distinct_cases():
    """The cases of all ops by name; of pointwise ones, whose schedules are the same, each dtype and each shape once."""
    seen = set()
    for name, cases in CASES.items():
        for case in cases:
            given = case.arguments
            types = (name, repr(case.params), *(x.dtype for x in given)), tuple(x.shape for x in given)
            if REGISTRY[name].kind != "pointwise" or not seen.issuperset(types):
                yield name, case
            seen.update(types)


def is_covered(name, case):
    """Whether the kernel of a case, which takes the compiler many seconds, is compiled elsewhere.

    A larger matrix has the kernel of a small one with longer loops, which the compiler unrolls; one of a single element
    is among the small matrices above; and the derivatives of ``erf_inv`` compute it.
    """
    return name == "erf_inv" or (name in ("eigh", "qr", "svd") and not 1 < case.arguments[0].size < 100)


COMPILED = [(name, case) for name, case in distinct_cases() if not is_covered(name, case)]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("part", range(3))
def test_ops_become_machine_code(part, monkeypatch):
    # Joined launches are one kernel, for which the assembler takes more than linear time.
    monkeypatch.setattr(Joiner, "kind", lambda *_: None)
    cases = COMPILED[part::3]
    apply = lambda *groups: [REGISTRY[n](*group, **c.params) for group, (n, c) in zip(groups, cases, strict=True)]
    program = tvmfun.trace(apply)(*(tuple(case.arguments) for _, case in cases))
    check_machine_code(program)


@pytest.mark.slow
def test_a_product_of_half_precision_compiles():
    spec = ShapeDtype((1024, 1024), "float16")
    text = tvmfun.jit(lambda x, w: x @ w, target=SM_90).lower(spec, spec).compile().as_text()
    assert "threadIdx.x" in text
