"""Programs of dynamic sizes on emulated GPUs: one module for all sizes, with the results of the CPU for each."""

from __future__ import annotations

import threading
from functools import partial
from itertools import product

import numpy as np
import pytest
import tvm
from gpu.programs import without_signs
from op_cases import CASES
from op_cases.dynamic import can_be_dynamic, grown, traced, variants
from support.cuda_emulator import GXX
from support.results import assert_agree, draw

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, errors, lax, nn, optim, random
from tvmfun.core.inline import inlined
from tvmfun.core.op import REGISTRY
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import lowering
from tvmfun.runtime.cuda_module import CudaModule

if GXX is None:
    pytest.skip("there is no g++, which compiles the emulated kernels", allow_module_level=True)

from support.cuda_emulator.gpu import emulated_gpus

# Where an axis of rows is also one of columns, a product gets TVM's schedule.
pytestmark = pytest.mark.filterwarnings("ignore:.*gets TVM's schedule:tvmfun.errors.PerformanceWarning")

SM_90 = {"kind": "cuda", "arch": "sm_90a"}


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    with emulated_gpus(seed=3) as machine:
        yield machine


def mean_of_squares(w, x):
    return tnp.mean(nn.functional.gelu(x @ w) ** 2)


def loop(w, xs):
    """A loop over an axis of dynamic size."""
    return lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, tnp.zeros(xs.shape[1:]), xs)


def until(x):
    return lax.while_loop(lambda c: tnp.sum(c * c) < 90.0, lambda c: 1.5 * c + tnp.sum(c) / c.shape[0], x)


def updates(table, rows):
    """A loop of some steps whose state has dynamic sizes, and is updated and read in parts."""

    def step(t, x):
        new = t.at[0].set(x).at[1].add(t[0])
        return new.at[2].set(t[1] + new[1]), t[2]

    return lax.scan(step, table, rows)


X, W = {0: "b"}, draw(5, 4, seed=9)
#: A function, its dynamic axes, and its arguments for sizes b and n.
PROGRAMS = {
    "elements": (lambda x: tnp.exp(x) * x.shape[0] - x.size, [{0: "b", 1: "n"}], lambda b, n: [draw(b, n)]),
    "rows": (lambda x: (nn.functional.softmax(x), tnp.argmax(x, 1)), [X], lambda b, n: [draw(b, 37)]),
    "dynamic rows": (nn.functional.log_softmax, [{0: "b", 1: "n"}], lambda b, n: [draw(b, n)]),
    "columns": (lambda x: (x.sum(0), x.max(0), tnp.mean(x)), [{0: "b", 1: "n"}], lambda b, n: [draw(b, n)]),
    "axes": (lambda x: x.sum(0), [{0: "b", 1: 3 * Dim("n") + 1}], lambda b, n: [draw(b, 3 * n + 1)]),
    "product": (lambda x: x @ W, [X], lambda b, n: [draw(b, 5)]),
    "products": (lambda x, y: (x @ y) @ (x @ y).T, [{0: "b"}, {1: "n"}], lambda b, n: [draw(b, 6), draw(6, n)]),
    "batched": (lambda x, y: tnp.einsum("bij,bjk->bik", x, y), [X, X], lambda b, n: [draw(b, 3, 5), draw(b, 5, 2)]),
    "grad": (lambda x: tvmfun.value_and_grad(mean_of_squares)(tnp.asarray(W), x), [X], lambda b, n: [draw(b, 5)]),
    "second": (tvmfun.grad(lambda x: tnp.sum(tvmfun.grad(lambda y: tnp.sum(tnp.sin(y) * y[::-1]))(x) ** 2)), [X],
               lambda b, n: [draw(b)]),
    "vmap": (tvmfun.vmap(lambda x: tnp.sort(x)[::2] * x[0]), [X], lambda b, n: [draw(b, 9)]),
    "indices": (lambda x, i: (x.at[i].add(2.0), x[i]), [X, {0: "n"}],
                lambda b, n: [draw(b, 3), np.arange(n, dtype=np.int32) % b]),
    "concatenate": (lambda x, y: tnp.concatenate([x, y[1:], x]), [X, {0: Dim("n", min=2)}],
                    lambda b, n: [draw(b, 2), draw(n + 1, 2)]),
    "reshape": (lambda x: x.reshape(-1, 4).T, [X], lambda b, n: [draw(b, 8)]),
    "pad": (lambda x: tnp.pad(x, ((1, 2), (0, 0))), [X], lambda b, n: [draw(b, 3)]),
    "random": (lambda key, x: random.normal(key, x.shape) + x, [None, X], lambda b, n: [random.key(b), draw(b, 3)]),
    "scan": (lambda xs: tvmfun.value_and_grad(lambda w: tnp.mean(loop(w, xs)[1] ** 2))(tnp.asarray(W[:4])), [{1: "b"}],
             lambda b, n: [draw(3, b, 4)]),
    "dynamic scan": (lambda xs: loop(tnp.asarray(W[:4]), xs), [X], lambda b, n: [draw(b, n, 4)[:, :2]]),
    "updates": (updates, [{1: "b", 2: "n"}] * 2, lambda b, n: [draw(12, b, n), draw(6, b, n)]),
    "while": (until, [X], lambda b, n: [np.abs(draw(b)) + 0.1]),
    "cond": (lambda x: lax.cond(x[0] > 0, tnp.sin, lambda x: x * x.shape[0], x), [X], lambda b, n: [draw(b, seed=n)]),
    "convolution": (lambda x: lax.conv_general_dilated(x, tnp.asarray(draw(3, 2, 4, seed=5)), (1,), "SAME",
                    dimension_numbers=("NWC", "WIO", "NWC")), [X], lambda b, n: [draw(b, 6, 2)]),
    "16 bits": (tvmfun.amp(mean_of_squares), [None, X], lambda b, n: [W, draw(b, 5)]),
    "int8": (lambda x, y: lax.dot(x, y, preferred_element_type="int32"), [X, None],
             lambda b, n: [(20 * draw(b, 16)).astype(np.int8), (20 * draw(16, 8)).astype(np.int8)]),
    "views": (lambda x: (x, x.reshape(-1), x + 1), [X], lambda b, n: [draw(b, 4)]),
    "constants": (lambda x: (tnp.full((3,), 2), True, x.shape[0] * 1.5, tnp.arange(x.shape[0])), [X],
                  lambda b, n: [draw(b)]),
}  # fmt: skip
SIZES = [(3, 4), (1, 1), (70, 33), (2, 300)]


@pytest.mark.quick("product", "columns")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_results_are_those_of_the_cpu(name, machine):
    function, axes, make = PROGRAMS[name]
    step = tvmfun.jit(function, dynamic_shapes=tuple(axes))
    rtol, atol = {"16 bits": (3e-2, 1e-3), "dynamic scan": (1e-3, 1e-3)}.get(name, (2e-5, 2e-6))
    with tvmfun.counters.counted() as events:
        for b, n in [*SIZES, SIZES[0]]:
            arguments = make(b, n)
            gpu = step(*tvmfun.device_put(arguments, "cuda"))
            assert all(leaf.device == tvmfun.devices("cuda")[0] for leaf in tvmfun.tree.leaves(gpu))
            assert_agree(gpu, step(*tvmfun.device_put(arguments, "cpu")), rtol=rtol, atol=atol)
    # One module for the GPU, one for the CPU, and a few for what makes arguments.
    assert events.compiles <= 5


def gelu_of_product(x, w):
    return nn.functional.gelu(x @ w.T) + 1


def with_column_sums(x, w, g):
    y = (x @ w) * g
    return y, tnp.sum(y, axis=0)


def attention_step(*arguments, **options):
    """The sum of sines of an attention, and its gradients."""
    attention = lambda q, k, v, **given: nn.functional.dot_product_attention(q, k, v, **options, **given)
    loss = lambda q, k, v, given: tnp.sum(tnp.sin(attention(q, k, v, **given)))
    q, k, v, *given = arguments
    return tvmfun.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v, *(given or [{}]))


def factors(b, length=33, heads=2, width=16):
    return [draw(b, length, heads, width, seed=i) for i in range(3)]


TF32 = {"precision": "tensorfloat32"}
#: The same, with the rule that schedules products.
TILED = {
    "rows": ("product", gelu_of_product, (X, None), lambda b: [draw(b, 48), draw(40, 48)]),
    "terms": ("product", lambda x, g: x.T @ g, (X, X), lambda b: [draw(b, 41), draw(b, 47)]),
    "batch": ("product", lambda x, y: x @ y, (X, X), lambda b: [draw(b, 7, 40), draw(b, 40, 48)]),
    "ranges of terms": ("product", lambda x, y: x.reshape(-1, 9).T @ y.reshape(-1, 12), (X, X),
                        lambda b: [draw(b, 300, 9), draw(b, 300, 12)]),
    "ranges of static terms": ("product", lambda x, w: nn.functional.relu(x @ w + 1), (X, None),
                               lambda b: [draw(b, 700), draw(700, 12)]),
    "normalized": ("product", lambda x, w: nn.functional.softmax(x @ w) * w[0], (X, None),
                   lambda b: [draw(b, 64), draw(64, 9)]),
    "column sums": ("product", with_column_sums, (X, None, X), lambda b: [draw(b, 24), draw(24, 32), draw(b, 32)]),
    "two sizes": ("product", lambda x, y: tnp.einsum("bij,bkj->bik", x, y), ({0: "b", 1: "n"}, X),
                  lambda b: [draw(b, b % 4 + 1, 24), draw(b, 16, 24)]),
    "convolution": ("product", tvmfun.value_and_grad(
        lambda w, x: tnp.sum(tnp.sin(nn.functional.conv2d(x, w, padding="SAME"))), argnums=(0, 1)), (None, X),
        lambda b: [draw(3, 3, 8, 16) * 0.2, draw(b, 6, 4, 8)]),
    "tf32 rows": ("product", lambda x, w: tnp.matmul(x, w, **TF32), (X, None), lambda b: [draw(b, 40), draw(40, 48)]),
    "tf32 terms": ("product", lambda x, g: tnp.matmul(x.T, g, **TF32), (X, X), lambda b: [draw(b, 40), draw(b, 48)]),
    "bfloat16 rows": ("product", tvmfun.amp(gelu_of_product), (X, None), lambda b: [draw(b, 64), draw(128, 64)]),
    "float16 terms": ("product", tvmfun.amp(lambda x, g: x.T @ g, "float16"), (X, X),
                      lambda b: [draw(b, 64), draw(b, 128)]),
    "warpgroups": ("product", tvmfun.amp(lambda x, w: x.reshape(-1, 64) @ w), (X, None),
                   lambda b: [draw(b, 32, 64), draw(64, 256)]),
    "causal": ("attention", partial(attention_step, is_causal=True), (X,) * 3, factors),
    "dropout": ("attention", lambda q, k, v, key: attention_step(q, k, v, {"dropout_key": key}, dropout_rate=0.3),
                (X, X, X, None), lambda b: [*factors(b), random.key(b)]),
    "mask": ("attention", lambda q, k, v, mask: attention_step(q, k, v, {"mask": mask}), (X,) * 4,
             lambda b: [*factors(b), draw(b, 1, 1, 33, seed=9) > -1]),
    "lengths": ("attention", lambda q, k, v, n: attention_step(q, k, v, {"key_value_seq_lengths": n}), (X,) * 4,
                lambda b: [*factors(b), np.arange(1, b + 1, dtype=np.int32) % 33]),
    "groups": ("attention", attention_step, (X,) * 3,
               lambda b: [draw(b, 40, 2, 16), *(draw(b, 33, 1, 16, seed=i) for i in (1, 2))]),
    "bfloat16 attention": ("attention", tvmfun.amp(partial(attention_step, is_causal=True)), (X,) * 3,
                           lambda b: factors(b, 64, 2, 64)),
}  # fmt: skip


@pytest.mark.quick("terms", "causal")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", TILED)
def test_products_and_attention_are_tiled(name, machine):
    rule, function, axes, make = TILED[name]
    step = tvmfun.jit(function, dynamic_shapes=axes)
    program = inlined(step.lower(*make(3)).program, "cuda")
    rules = [kernel.rule for kernel in pipeline.scheduled_kernels(program, targets.resolve(SM_90))]
    assert rule in rules and "fallback" not in rules and "contraction" not in rules
    is_narrow = any(word in name for word in ("float16", "warpgroups"))
    rtol, atol = (2e-2, 2e-2) if is_narrow else (1e-2, 2e-2) if "tf32" in name else (2e-4, 2e-4)
    for b in (1, 5, 2) if rule == "attention" or name == "convolution" else (1, 5, 33, 130):
        arguments = make(b)
        assert_agree(step(*tvmfun.device_put(arguments, "cuda")), step(*arguments), rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore:.*which may be slow:tvmfun.errors.PerformanceWarning")
def test_sorting_along_dynamic_axes(machine):
    """Memory of a thread whose size is dynamic is a part of an array of the kernel."""
    function = lambda x: (tnp.sort(x), tnp.argsort(x), tnp.sort(x, axis=0))
    step = tvmfun.jit(function, dynamic_shapes=({0: "b", 1: "n"},))
    for b, n in ((3, 5), (1, 40), (40, 70)):
        x = draw(b, n)
        for found, expected in zip(step(*tvmfun.device_put((x,), "cuda")), step(x), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_machine_code_is_loaded_once_and_each_size_has_its_graph(machine):
    step = tvmfun.jit(lambda x: tnp.sort(tnp.exp(x) @ tnp.asarray(W)) + x.sum(), dynamic_shapes=(X,))
    x = {b: tvmfun.device_put(draw(b, 5), "cuda") for b in (2, 7, 30)}
    first = step(x[2]).block_until_ready()
    loaded = machine.calls("cuModuleLoadData")
    assert loaded > 0
    results = [step(x[b]).block_until_ready() for b in (7, 30, 2, 7, 30)]
    assert machine.calls("cuModuleLoadData") == loaded
    np.testing.assert_array_equal(np.asarray(results[2]), np.asarray(first))
    np.testing.assert_array_equal(np.asarray(results[0]), np.asarray(results[3]))


def start(optimizer):
    params = {"w": draw(5, 8, seed=1), "v": draw(8, 1, seed=2)}
    return params, optimizer.init(params)


def train_step(optimizer, state, x):
    params, opt_state = state
    loss = lambda params: tnp.mean((tnp.tanh(x @ params["w"]) @ params["v"] - x[:, :1]) ** 2)
    value, grads = tvmfun.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optim.apply_updates(params, updates), opt_state), value


@pytest.mark.slow
def test_training_with_batches_of_many_sizes_in_place(machine):
    """As with a last batch that is smaller: donated state stays where it is."""
    optimizer = optim.adamw(0.05)
    step = tvmfun.jit(partial(train_step, optimizer), donate_argnums=0, dynamic_shapes=(None, X))
    losses, addresses = {}, []
    for device in ("cuda", "cpu"):
        state, losses[device] = tvmfun.device_put(start(optimizer), device), []
        for b in (8, 8, 3, 8, 1, 20, 3):
            if device == "cuda":
                addresses.append(state[0]["w"].address + 0)
            state, loss = step(state, tvmfun.device_put(draw(b, 5, seed=b), device))
            losses[device].append(float(loss))
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=2e-4)
    assert len(set(addresses)) == 1


@pytest.mark.slow
def test_sizes_of_nothing(machine):
    step = tvmfun.jit(lambda x: (x + 1, x.sum(0), x @ x.T), dynamic_shapes=({0: Dim("b", min=0)},))
    for b in (0, 3, 0):
        assert_agree(step(tvmfun.device_put(draw(b, 4), "cuda")), step(draw(b, 4)), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_threads_and_devices(machine):
    step = tvmfun.jit(lambda x: tnp.tanh(x @ tnp.asarray(W)).sum(1), dynamic_shapes=(X,))
    wrong = []

    def work(i):
        device = f"cuda:{i % 2}"
        for b in (4, 9 + i, 4):
            x = tvmfun.device_put(draw(b, 5, seed=i), device)
            y, expected = step(x), np.tanh(draw(b, 5, seed=i) @ W).sum(1)
            if y.device != x.device or not np.allclose(np.asarray(y), expected, atol=1e-5):
                wrong.append((i, b))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.slow
def test_a_module_from_disk(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    results = []
    for compiles in (1, 0):
        tvmfun.clear_caches()
        step = tvmfun.jit(lambda x: (tnp.exp(x) @ x.T / 3).sum(0), dynamic_shapes=(X,))
        x = tvmfun.device_put(draw(6, 5), "cuda")
        with tvmfun.counters.counted() as events:
            results.append(np.asarray(step(x)))
        assert (events.loads, events.compiles) == (1 - compiles, compiles)
    np.testing.assert_array_equal(*results)


def module_of(function, *types):
    return pipeline.build_for_cuda(tvmfun.trace(function)(*types), targets.resolve(SM_90))


def test_a_packed_module_has_its_formulas():
    module = module_of(lambda x: (tnp.exp(x) @ x.T, x.sum()), ShapeDtype(("b", 2 * Dim("n")), "float32"))
    again = CudaModule.unpack(module.pack())
    assert again == module
    for b, n in product((1, 40), (3, 200)):
        sizes = {"b": b, "n": n}
        assert again.at(sizes) == module.at(sizes)
        assert module.at(sizes).inputs[0].shape == (b, 2 * n)
        assert [result.shape for result in module.at(sizes).results] == [(b, b), ()]


def test_memory_is_planned_for_each_size():
    function = lambda x: tnp.sum(tnp.sort(x, axis=1) @ tnp.sort(x, axis=1).T)
    compiled = tvmfun.jit(function, target=SM_90).lower(ShapeDtype(("b", 64), "float32")).compile()
    analyses = [compiled.memory_analysis({"b": b}) for b in (16, 64)]
    assert [analysis.arguments for analysis in analyses] == [16 * 64 * 4, 64 * 64 * 4]
    assert analyses[0].outputs == analyses[1].outputs == 4
    assert 0 < analyses[0].temporaries < analyses[1].temporaries
    with pytest.raises(errors.ArgumentError):
        compiled.memory_analysis({"n": 3})


def test_wrong_sizes(machine):
    step = tvmfun.jit(lambda x, y: x @ y, dynamic_shapes=({1: "n"}, {0: "n"}))
    x, y = tvmfun.device_put((draw(3, 4), draw(5, 2)), "cuda")
    with pytest.raises(errors.ShapeError, match="n"):
        step(x, y)


def test_what_tvm_cannot_lower(monkeypatch):
    """An internal error of a pass is one of dynamic sizes if there are some."""

    def fail(is_dynamic):
        @tvm.transform.module_pass(opt_level=0)
        def check(module, context):
            raise tvm.error.InternalError("Check failed: (CanProveDivisible(factor, divisor)) is false")

        return check

    monkeypatch.setattr(lowering, "_splitting", fail)
    with pytest.raises(
        errors.TargetError, match="cannot lower these dynamic sizes for a GPU, got Check failed.*Try static"
    ):
        module_of(lambda x: x + 1, ShapeDtype(("b",), "float32"))
    with pytest.raises(tvm.error.InternalError):
        module_of(lambda x: x + 1, ShapeDtype((3,), "float32"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in CASES if REGISTRY[name].kind != "pointwise" and any(map(can_be_dynamic, CASES[name]))]
)
def test_every_op(name, machine):
    for case in filter(can_be_dynamic, CASES[name]):
        for places, params in variants(case):
            try:
                program = traced(REGISTRY[name], case, places, params)
                on_cpu = tvmfun.jit(program).lower(*program.in_avals).compile()
            except errors.TvmfunError:  # tests of dynamic sizes on CPUs say which
                continue
            on_gpu = tvmfun.jit(program, target=SM_90).lower(*program.in_avals).compile()
            for n in (1, case.arguments[0].shape[0], 11):
                arguments = grown(case, places, n)
                got, expected = (without_signs(name, compiled(*arguments)) for compiled in (on_gpu, on_cpu))
                assert_agree(got, expected, rtol=1e-5, atol=1e-6)
            return
