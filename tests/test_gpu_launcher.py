"""Whole programs on emulated GPUs: compiled to CUDA, launched as on a real one, with the results of the CPU."""

import gc
import threading
from functools import partial
from unittest import mock

import mnist
import numpy as np
import pytest
import tvm
from support import exported
from support.cuda_emulator import GXX
from support.results import assert_agree, draw

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import errors, lax, nn, optim, random
from tvmfun.lower.codegen.cuda import compilers

if GXX is None:
    pytest.skip("there is no g++, which compiles the emulated kernels", allow_module_level=True)

from support.cuda_emulator.gpu import emulated_gpus


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    with emulated_gpus(seed=2) as machine:
        yield machine


def on_both(function, *arguments, **options):
    """The results on the GPU, and those on the CPU, as NumPy arrays."""
    gpu = tvmfun.jit(function, **options)(*tvmfun.device_put(arguments, "cuda"))
    assert all(leaf.device == tvmfun.devices("cuda")[0] for leaf in tvmfun.tree.leaves(gpu))
    cpu = tvmfun.jit(function, **options)(*tvmfun.device_put(arguments, "cpu"))
    return [[np.asarray(leaf) for leaf in tvmfun.tree.leaves(tree)] for tree in (gpu, cpu)]


# -- whole programs ----------------------------------------------------------------------------------------------------


def trained(device, steps):
    optimizer = mnist.make_optimizer(1.0, 0.7, steps)
    state = tvmfun.device_put(tvmfun.jit(partial(mnist.start, optimizer))(random.key(1)), device)
    step = tvmfun.jit(partial(mnist.train_step, optimizer), donate_argnums=0)
    losses = []
    for i in range(steps):
        batch = draw(2, 28, 28, 1, seed=i), np.asarray([i, i + 3], np.int32)
        state, loss = step(state, *tvmfun.device_put(batch, device))
        losses.append(float(loss))
    return losses


@pytest.mark.slow
def test_the_mnist_step_has_the_losses_of_the_cpu_and_one_graph(machine):
    np.testing.assert_allclose(trained("cuda", 3), trained("cpu", 3), rtol=1e-5)
    assert machine.calls("cuGraphLaunch") == 3
    assert machine.calls("cuGraphInstantiateWithFlags") == 1
    assert machine.calls("cuLaunchKernelEx") == 0


def scaled_step(optimizer, params, opt_state, scale, x, y):
    """A step in float16 that is skipped, and halves the scale, after an overflow."""
    loss_fn = tvmfun.amp(lambda params: tnp.mean((tnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2), "float16")
    loss, grads = tvmfun.value_and_grad(lambda params: scale.scale(loss_fn(params)))(params)
    grads = scale.unscale(grads)
    is_finite = optim.all_finite(grads)
    updates, new_state = optimizer.update(grads, opt_state, params)
    new = optim.apply_updates(params, updates), new_state
    params, opt_state = optim.select_tree(is_finite, new, (params, opt_state))
    return params, opt_state, scale.adjust(is_finite), scale.unscale(loss)


def scaled_run(device, steps):
    optimizer = optim.adamw(0.01)
    params = {"w": draw(12, 20, seed=1), "v": draw(20, 3, seed=2)}
    state = tvmfun.device_put((params, optimizer.init(params), optim.DynamicLossScale(2.0**18)), device)
    batch = tvmfun.device_put((draw(8, 12), draw(8, 3, seed=3)), device)
    step = tvmfun.jit(partial(scaled_step, optimizer), donate_argnums=(0, 1, 2))
    scales = []
    for _ in range(steps):
        *state, loss = step(*state, *batch)
        scales.append(state[2].scale_factor + 0)
    return state, scales, loss


@pytest.mark.slow
def test_the_loss_scale_is_decided_on_the_device(machine):
    """Steps that overflow and steps that do not are the same graph, and the host waits for nothing."""
    state, scales, loss = scaled_run("cuda", 6)
    assert machine.calls("cuStreamSynchronize") == machine.calls("cuCtxSynchronize") == 0
    # A graph for each set of addresses: results take turns at a few.
    assert machine.calls("cuGraphLaunch") == 6 and machine.calls("cuGraphInstantiateWithFlags") <= 3
    scales = [float(scale) for scale in scales]
    assert scales[0] == 2.0**17 and scales[-1] == scales[-2] < scales[0]
    cpu_state, cpu_scales, cpu_loss = scaled_run("cpu", 6)
    assert scales == [float(scale) for scale in cpu_scales]
    assert_agree(*([np.asarray(x) for x in tvmfun.tree.leaves(s)] for s in (state, cpu_state)), rtol=2e-2, atol=2e-3)
    np.testing.assert_allclose(float(loss), float(cpu_loss), rtol=1e-2)


def recurrent_loss(w, h, xs):
    return tnp.mean(lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, h, xs)[1] ** 2)


def stored_steps(h, weights):
    def step(h, w):
        y = h @ w
        return tnp.tanh(y), (y, 2 * y)

    return lax.scan(step, h, weights)


PROGRAMS = {
    # The partial sums are vectors of four columns.
    "split": (lambda x, w: (x * x).T @ (w * w), draw(3000, 9), draw(3000, 32)),
    "softmax": (lambda x, w: nn.functional.softmax(x @ w), draw(5, 7), draw(7, 9)),
    "grad": (tvmfun.value_and_grad(lambda w, x: tnp.mean(nn.functional.gelu(x @ w) ** 2)), draw(4, 6), draw(3, 4)),
    "scan": (tvmfun.value_and_grad(recurrent_loss), draw(6, 6), draw(2, 6), draw(5, 2, 6)),
    "half scan": (tvmfun.value_and_grad(tvmfun.amp(recurrent_loss)), draw(8, 8), draw(2, 8), draw(5, 2, 8)),
    "loop of epilogues": (stored_steps, draw(4, 8), draw(3, 8, 8)),
    "vmap": (tvmfun.vmap(lambda x, y: tnp.sort(x) @ y, in_axes=(0, None)), draw(4, 9), draw(9)),
    "keys": (lambda key: (random.normal(key, (40,)), random.permutation(key, 9)), random.key(3)),
    "views": (lambda x: (x, x.reshape(4, 3), x + 1), draw(3, 4)),
    "indices": (lambda x, i: (x.at[i].add(2.0), x[i], tnp.argmax(x, 1)), draw(6, 3), np.asarray([0, 5, 0])),
    "no elements": (lambda x, y: (x @ y, tnp.sum(x), x[:0] + 1), draw(3, 0), draw(0, 4)),
    "16 bits": (lambda x: tnp.exp(x.astype("float16")) + x.astype("bfloat16"), draw(50)),
    "constants": (lambda x: (x + tnp.asarray(draw(4, seed=1)), tnp.full((3,), 2), True), draw(4)),
}


@pytest.mark.quick("views")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_the_results_of_the_cpu(name, machine):
    function, *arguments = PROGRAMS[name]
    rtol, atol = {"16 bits": (2e-3, 1e-6), "half scan": (2e-2, 2e-2)}.get(name, (1e-5, 1e-6))
    assert_agree(*on_both(function, *arguments), rtol=rtol, atol=atol)


@pytest.mark.slow
def test_ops_outside_of_a_trace(machine):
    x = tvmfun.device_put(draw(4, 4), "cuda")
    y = tnp.exp(x) @ x + 1.0
    assert y.device == x.device
    np.testing.assert_allclose(np.asarray(y), np.exp(draw(4, 4)) @ draw(4, 4) + 1, rtol=1e-5)
    np.testing.assert_allclose(float(tnp.sum(x * draw(4, 4))), (draw(4, 4) ** 2).sum(), rtol=1e-5)


@pytest.mark.slow
def test_ahead_of_time(machine):
    target = {"kind": "cuda", "arch": "sm_90a"}
    lowered = tvmfun.jit(lambda x: (x @ x, x + 1), target=target, donate_argnums=0).lower(draw(8, 8))
    compiled = lowered.compile()
    analysis = compiled.memory_analysis()
    assert (analysis.arguments, analysis.outputs) == (256, 512 - analysis.aliased)
    product, _ = compiled(draw(8, 8))
    assert product.device == tvmfun.devices("cuda")[0]
    np.testing.assert_allclose(np.asarray(product), draw(8, 8) @ draw(8, 8), rtol=1e-5)


def test_compiled_for_the_cpu_moves_arrays_there(machine):
    """Whichever argument is elsewhere, also after calls with all of them on the CPU."""
    near, far = (tvmfun.device_put(draw(8, 8), device) for device in ("cpu", "cuda"))
    compiled = tvmfun.jit(lambda x, y: x + 2 * y).lower(near, near).compile()
    for arguments in ((near, near), (near, far), (far, near)):
        np.testing.assert_allclose(np.asarray(compiled(*arguments)), 3 * draw(8, 8), rtol=1e-6)


@pytest.mark.slow
def test_a_module_from_disk(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    x = tvmfun.device_put(draw(9), "cuda")
    first = tvmfun.jit(lambda x: tnp.exp(x) / 3)(x)
    tvmfun.clear_caches()
    with tvmfun.counters.counted() as events:
        again = tvmfun.jit(lambda x: tnp.exp(x) / 3)(x)
    assert (events.loads, events.compiles) == (1, 0)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(again))


def until_30(x, **options):
    return lax.while_loop(lambda c: tnp.sum(c) < 30.0, lambda c: c + tnp.tanh(c) ** 2, x, **options)


BRANCHES = [lambda x: x + 1, lambda x: x * 2, tnp.sin, lambda x: x - 1]
CONTROL_FLOW = {
    "while": (until_30, draw(40)),
    "bounded": (partial(until_30, max_steps=20), draw(40)),
    "bounded-grad": (tvmfun.grad(lambda x: tnp.sum(until_30(x, max_steps=12) ** 2)), draw(40)),
    "while-vmap": (tvmfun.vmap(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1.5, x)), draw(9)),
    "switch": (lambda i, x: [lax.switch(i + k, BRANCHES, x) for k in (-9, 0, 1, 9)], np.int32(1), draw(40)),
    "cond": (lambda x: [lax.cond(x[i] > 0, BRANCHES[0], BRANCHES[2], x) for i in range(2)], draw(40)),
    "steps": (lambda n, x: lax.fori_loop(0, n, lambda i, x: x * i + 1.0, x), np.int32(3), draw(40)),
    "cond-scan": (
        lambda x: lax.scan(lambda c, y: (lax.cond(y > 0, BRANCHES[0], BRANCHES[1], c), c), 1.0, x), draw(6),
    ),
    "dropout": (
        lambda key, *batch: exported.train_step(exported.start(key), *batch), random.key(3), *exported.batch(),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_control_flow_that_depends_on_data(name, machine):
    function, *arguments = CONTROL_FLOW[name]
    assert_agree(*on_both(function, *arguments), rtol=1e-5, atol=1e-5)


def nested(w, n, x):
    """A scan over branches, one of which has a loop of up to ``n`` steps with a branch of several cases inside."""

    def step(state, y):
        i, x = state
        case = lambda c: lax.switch(c[0] + i, BRANCHES, c[1])
        loop = lambda x: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, tnp.cos(case(c))), (0, x))[1]
        x = lax.cond(y > 0, loop, lambda x: x, x)
        return (i + 1, x), tnp.max(x)

    (_, y), largest = lax.scan(step, (0, x), w)
    return w + y, n + 1, largest


@pytest.mark.slow
@pytest.mark.parametrize("version", [13000, 12040, 12020])
def test_loops_and_branches_in_each_other_are_one_graph(version, machine):
    """Also if there are no steps, and with other data than when the graph was made; older drivers ask the host."""
    machine.is_version(version)
    step, cpu = tvmfun.jit(nested, donate_argnums=(0, 1)), tvmfun.jit(nested)
    x = draw(4, seed=2)
    state, on_device = (draw(4), np.int32(0)), tvmfun.device_put(x, "cuda")
    w, n = tvmfun.device_put(state, "cuda")
    for _ in range(3):
        w, n, largest = step(w, n, on_device)
        if version > 12020:
            assert machine.calls("cuMemcpyDtoHAsync_v2") == machine.calls("cuStreamSynchronize") == 0
    for _ in range(3):
        *state, expected = cpu(*state, x)
    assert_agree(*([np.asarray(leaf) for leaf in t] for t in ((w, n, largest), (*state, expected))), rtol=1e-5)
    if version > 12020:
        assert machine.calls("cuGraphInstantiateWithFlags") <= 2 and machine.calls("cuGraphLaunch") == 3


@pytest.mark.quick
def test_a_skipped_step_is_decided_on_the_device(machine):
    """``apply_if_finite`` is a branch of the graph; gradients that are not finite change nothing but the counts."""
    optimizer = optim.apply_if_finite(optim.adam(0.1), 3)

    def step(params, state, x):
        updates, state = optimizer.update(tvmfun.grad(lambda w: tnp.sum(tnp.sqrt(w * x)))(params), state, params)
        return optim.apply_updates(params, updates), state

    def run(device):
        params = tvmfun.device_put(np.abs(draw(8)) + 1, device)
        state = tvmfun.device_put(optimizer.init(params), device)
        batches = tvmfun.device_put([np.full(8, x, np.float32) for x in (1.0, 2.0, -1.0, 3.0)], device)
        jitted = tvmfun.jit(step, donate_argnums=(0, 1))
        for x in batches:
            params, state = jitted(params, state, x)
        return params, state

    results = run("cuda")
    assert machine.calls("cuMemcpyDtoHAsync_v2") == machine.calls("cuStreamSynchronize") == 0
    assert machine.calls("cuGraphLaunch") == 4
    gpu, cpu = ([np.asarray(leaf) for leaf in tvmfun.tree.leaves(tree)] for tree in (results, run("cpu")))
    assert_agree(gpu, cpu, rtol=1e-5)
    assert int(results[1].total_notfinite) == 1


@pytest.mark.slow
def test_a_driver_that_cannot_link_conditions_asks_the_host(machine):
    x = tvmfun.device_put(draw(40), "cuda")
    compiled = tvmfun.jit(until_30, target={"kind": "cuda", "arch": "sm_90a"}).lower(draw(40)).compile()
    machine.fail("cuModuleLoadData", 218, after=len({cubin.image for cubin in compiled.executable.module.cubins}) - 1)
    y = compiled(x)
    assert machine.calls("cuMemcpyDtoHAsync_v2") > 0
    np.testing.assert_allclose(np.asarray(y), np.asarray(tvmfun.jit(until_30)(draw(40))), rtol=1e-5)


@pytest.mark.slow
def test_a_condition_that_fails_is_named(machine):
    machine.fail("cuGraphAddNode_v2", 701)
    with pytest.raises(errors.DeviceError, match=r"\[until_30\] the kernel loop failed, got CUDA_ERROR_LAUNCH"):
        tvmfun.jit(until_30)(tvmfun.device_put(draw(40), "cuda"))


# -- addresses and graphs ----------------------------------------------------------------------------------------------


def test_donated_arrays_are_overwritten(machine):
    step = tvmfun.jit(lambda w, x: w - 0.5 * x * w, donate_argnums=0)
    w, x = tvmfun.device_put((draw(300), draw(300, seed=1)), "cuda")
    expected, old = draw(300), w
    address = w.address + 0  # another integer: whoever holds the address is a reader
    for _ in range(3):
        w = step(w, x)
        expected = expected - np.float32(0.5) * draw(300, seed=1) * expected
        assert w.address == address
    np.testing.assert_allclose(np.asarray(w), expected, rtol=1e-5)
    with pytest.raises(errors.DonatedArrayError):
        np.asarray(old)


@pytest.mark.slow
def test_a_product_writes_its_update_over_the_state(machine):
    def step(state, x, y):
        w, mean = state
        grad = x.T @ tnp.tanh(x @ w - y)
        mean = 0.9 * mean + grad
        return w - 0.1 * mean, mean

    arrays = draw(8, 12), draw(8, 12, seed=1)
    x, y = draw(20, 8, seed=2), draw(20, 12, seed=3)
    run = tvmfun.jit(step, donate_argnums=0)
    gpu, cpu = (tvmfun.device_put(arrays, device) for device in ("cuda", "cpu"))
    addresses = [array.address + 0 for array in gpu]
    for _ in range(3):
        gpu, cpu = (run(state, *tvmfun.device_put((x, y), state[0].device)) for state in (gpu, cpu))
        assert [array.address for array in gpu] == addresses
    assert_agree(gpu, cpu, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_donated_array_that_others_may_read_is_copied(machine):
    w = tvmfun.device_put(draw(300), "cuda")
    shown = tvm.runtime.from_dlpack(w)
    twice = tvmfun.jit(lambda w: w * 2, donate_argnums=0)(w)
    again = tvmfun.core.array.on_device(shown, tvmfun.ShapeDtype((300,), "float32"))
    np.testing.assert_array_equal(np.asarray(again), draw(300))
    np.testing.assert_array_equal(np.asarray(twice), 2 * draw(300))


def chain(w, x):
    for _ in range(4):
        w = tnp.sort(w) + x
    return w


@pytest.mark.slow
def test_states_that_alternate_have_a_graph_each(machine):
    step = tvmfun.jit(chain)
    w, x = tvmfun.device_put((draw(40), draw(40, seed=1)), "cuda")
    w, before = step(w, x), machine.calls("cuGraphInstantiateWithFlags")
    for _ in range(6):
        w = step(w, x)
    assert machine.calls("cuGraphInstantiateWithFlags") - before <= 2
    changes = machine.calls("cuGraphExecKernelNodeSetParams_v2")
    for _ in range(4):
        w = step(w, x)
    assert machine.calls("cuGraphExecKernelNodeSetParams_v2") == changes


@pytest.mark.slow
def test_graphs_are_changed_when_there_are_enough(machine):
    step, w = tvmfun.jit(chain), tvmfun.device_put(draw(40, seed=1), "cuda")
    kept = [tvmfun.device_put(draw(40, seed=i), "cuda") for i in range(12)]
    results = [step(w, x) for x in kept]
    cpu = [tvmfun.jit(chain)(draw(40, seed=1), draw(40, seed=i)) for i in range(12)]
    np.testing.assert_allclose(np.asarray(list(map(np.asarray, results))), np.asarray(cpu), rtol=1e-6)
    assert machine.calls("cuGraphInstantiateWithFlags") == 8


@pytest.mark.slow
def test_nothing_waits_until_a_result_is_read(machine):
    x = tvmfun.device_put(draw(30), "cuda")
    double = tvmfun.jit(lambda x: x * 2)
    y = double(double(x))
    assert machine.calls("cuStreamSynchronize") == machine.calls("cuCtxSynchronize") == 0
    assert tvmfun.block_until_ready(y) is y
    assert machine.calls("cuStreamSynchronize") == 1
    np.testing.assert_array_equal(np.asarray(y), 4 * draw(30))


@pytest.mark.slow
def test_memory_is_used_again(machine):
    x = tvmfun.device_put(draw(5000), "cuda")
    double = tvmfun.jit(lambda x: x * 2)
    y = double(x)
    used = machine.used()
    for _ in range(10):
        y = double(y)
    assert machine.used() <= used + y.nbytes + 512
    del x, y


# -- threads and devices -----------------------------------------------------------------------------------------------


def in_threads(count, function):
    results, failed = [None] * count, []

    def run(i):
        try:
            results[i] = function(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return results


@pytest.mark.slow
def test_threads_at_once_share_weights(machine):
    w = tvmfun.device_put(draw(8, 8), "cuda")
    function = tvmfun.jit(lambda w, x: tnp.sort(x @ w) + 1)

    def call(i):
        x = tvmfun.device_put(draw(4, 8, seed=i), "cuda")
        for _ in range(5):
            y = function(w, x)
        return np.asarray(y)

    expected = [np.sort(draw(4, 8, seed=i) @ draw(8, 8)) + 1 for i in range(4)]
    np.testing.assert_allclose(in_threads(4, call), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_thread_reads_what_another_one_has_not_finished(machine):
    double = tvmfun.jit(lambda x: x * 2)
    (y,) = in_threads(1, lambda i: double(double(tvmfun.device_put(draw(300), "cuda"))))
    assert machine.calls("cuStreamSynchronize") == 0
    z = double(y)
    np.testing.assert_array_equal(np.asarray(z), 8 * draw(300))


@pytest.mark.slow
def test_memory_that_another_thread_still_reads_is_not_written(machine):
    add, double = tvmfun.jit(lambda x: x + 1), tvmfun.jit(lambda x: x * 2, donate_argnums=0)
    shared = [tvmfun.device_put(draw(300), "cuda")]
    (copied,) = in_threads(1, lambda i: add(shared[0]))
    y = double(shared[0])  # over it, after the other thread has read it
    np.testing.assert_array_equal(np.asarray(y), 2 * draw(300))
    np.testing.assert_allclose(np.asarray(copied), draw(300) + 1, rtol=1e-6)


@pytest.mark.slow
def test_free_memory_that_another_thread_still_reads_is_not_written(machine):
    add = tvmfun.jit(lambda x: x + 1)
    shared = [tvmfun.device_put(draw(300), "cuda")]
    (copied,) = in_threads(1, lambda i: add(shared[0]))
    shared.clear()
    gc.collect()
    others = [tvmfun.device_put(np.zeros(300, np.float32), "cuda") for _ in range(3)]
    assert np.asarray(others[0]).sum() == 0
    np.testing.assert_allclose(np.asarray(copied), draw(300) + 1, rtol=1e-6)


@pytest.mark.slow
def test_a_stream_of_a_thread_is_used_by_the_next_one(machine):
    double = tvmfun.jit(lambda x: x * 2)
    before = machine.calls("cuStreamCreate")
    for _ in range(4):
        in_threads(1, lambda i: np.asarray(double(tvmfun.device_put(draw(30), "cuda"))))
    assert machine.calls("cuStreamCreate") <= before + 1


@pytest.mark.slow
def test_two_devices(machine):
    first, second = tvmfun.devices("cuda")
    function = tvmfun.jit(lambda x: tnp.exp(x) @ x)
    x = tvmfun.device_put(draw(6, 6), second)
    assert x.device == second
    y = function(x)
    assert y.device == second
    z = function(tvmfun.device_put(y, first) * 0.01)
    assert z.device == first
    expected = np.exp(draw(6, 6)) @ draw(6, 6)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(z), np.exp(0.01 * expected) @ (0.01 * expected), rtol=1e-4)
    assert machine.calls("cuMemcpyPeerAsync") == 1
    with pytest.raises(errors.TargetError, match="all arrays must be on one device, got cuda:0 and cuda:1"):
        tvmfun.jit(lambda x, y: x + y)(z, y)
    with pytest.raises(errors.TargetError, match="no such device, got 'cuda:2'"):
        tvmfun.device_put(y, "cuda:2")


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_too_little_memory(machine):
    machine.reset(memory=4 << 20)
    with pytest.raises(errors.OutOfMemoryError, match=r"no memory for an array, got a request for 8,000,000 bytes; "):
        tvmfun.device_put(np.zeros(2_000_000, np.float32), "cuda")
    x = tvmfun.device_put(np.zeros(300_000, np.float32), "cuda")
    with pytest.raises(errors.OutOfMemoryError, match=r"\[<lambda>\].*no memory for results.* Try smaller arrays, don"):
        tvmfun.jit(lambda x: [x + i for i in range(4)])(x)
    assert float(tnp.sum(x)) == 0  # the device still works


@pytest.mark.slow
def test_free_memory_is_returned_before_an_error(machine):
    machine.reset(memory=5 << 20)
    for size in (900_000, 700_000, 800_000):
        x = tvmfun.device_put(np.ones(size, np.float32), "cuda")
        assert float(tnp.max(x)) == 1
        del x


def scaled(x):
    return tnp.sort(x) * tnp.exp(x)  # the line of the kernels


@pytest.mark.slow
def test_a_launch_that_fails_names_the_op_and_the_line(machine):
    x = tvmfun.device_put(draw(30), "cuda")
    machine.fail("cuGraphAddKernelNode_v2", 701)
    with pytest.raises(errors.DeviceError) as error:
        tvmfun.jit(scaled)(x)
    line = scaled.__code__.co_firstlineno + 1
    message = str(error.value)
    assert message.startswith("[scaled] the kernel ")
    assert "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" in message
    assert f"test_gpu_launcher.py:{line}" in message
    np.testing.assert_allclose(np.asarray(tvmfun.jit(scaled)(x)), np.sort(draw(30)) * np.exp(draw(30)), rtol=1e-5)


@pytest.mark.slow
def test_a_kernel_that_fails_is_noticed_by_the_next_reader(machine):
    x = tvmfun.device_put(draw(30), "cuda")
    y = tvmfun.jit(scaled)(x)
    machine.fail("cuStreamSynchronize", 700)
    with pytest.raises(
        errors.DeviceError, match=r"\[scaled\] a kernel failed, got CUDA_ERROR_ILLEGAL_ADDRESS.*BLOCKING"
    ):
        y.block_until_ready()


@pytest.mark.slow
def test_blocking_launches_name_the_kernel_that_fails(machine, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    x = tvmfun.device_put(draw(30), "cuda")
    np.testing.assert_allclose(np.asarray(tvmfun.jit(scaled)(x)), np.sort(draw(30)) * np.exp(draw(30)), rtol=1e-5)
    assert machine.calls("cuGraphLaunch") == 0
    machine.fail("cuStreamSynchronize", 700, after=1)
    with pytest.raises(
        errors.DeviceError, match=r"\[scaled\] the kernel .* failed, got .*ILLEGAL_ADDRESS.*launcher.py:"
    ):
        tvmfun.jit(scaled)(x)


@pytest.mark.slow
def test_machine_code_that_the_driver_refuses(machine):
    x = tvmfun.device_put(draw(30), "cuda")
    machine.fail("cuModuleLoadData", 209)
    with pytest.raises(errors.TargetError, match="cannot load the machine code, got CUDA_ERROR_NO_BINARY_FOR_GPU"):
        tvmfun.jit(scaled)(x)


@pytest.mark.slow
def test_a_machine_without_a_compiler_says_so_when_it_runs(machine):
    missing = errors.TargetError("compile", "machine code for GPUs needs a compiler of CUDA")
    with mock.patch.object(compilers, "why_none", lambda: missing):
        compiled = tvmfun.jit(lambda x: x + 2, target={"kind": "cuda", "arch": "sm_90"}).lower(draw(30)).compile()
    assert compiled.as_text().startswith(
        "# not compiled to machine code: machine code for GPUs needs a compiler of CUDA"
    )
    assert "threadIdx.x" in compiled.as_text() and compiled.memory_analysis().outputs == draw(30).nbytes
    with pytest.raises(errors.TargetError, match="not compiled to machine code, got .*needs a compiler of CUDA"):
        compiled(draw(30))
