"""Horizontal fusion on GPUs: independent launches become one, and the results stay those of the CPU."""

import random as pyrandom

import numpy as np
import pytest
from support.cuda_emulator import GXX
from support.gpu_modules import gpu_module

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, optim, random
from tvmfun.lower.codegen.cuda.effects import Effects
from tvmfun.lower.codegen.cuda.horizontal import fewest_launches, lifetimes
from tvmfun.lower.codegen.cuda.joined import Joiner
from tvmfun.runtime.cuda_module import Copy, Launch


@pytest.fixture
def machine(monkeypatch):
    if GXX is None:
        pytest.skip("there is no g++, which compiles the emulated kernels")
    from support.cuda_emulator.gpu import emulated_gpus

    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    with emulated_gpus(seed=5) as machine:
        yield machine


def draw(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# -- the order ---------------------------------------------------------------------------------------------------------


def random_steps(seed, count=60, slots=24):
    """Effects of steps on few slots, so that they depend on each other in all ways, and their kinds."""
    draw = pyrandom.Random(seed)
    effects = []
    for _ in range(count):
        reads = frozenset(draw.sample(range(slots), draw.randint(0, 3)))
        effects.append(Effects(reads, frozenset(draw.sample(range(slots), draw.randint(1, 2)))))
    return effects, [draw.choice([None, 1, 1, 2]) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_groups_are_independent_and_in_order(seed):
    effects, kinds = random_steps(seed)
    sizes = {slot: 1 << (slot % 25) for slot in range(24)}
    groups = fewest_launches(effects, kinds, sizes, lambda group: 1)
    assert sorted(i for group in groups for i in group) == list(range(len(effects)))
    at = {i: position for position, group in enumerate(groups) for i in group}
    for j, (reads, writes) in enumerate(effects):
        for i, (earlier_reads, earlier_writes) in enumerate(effects[:j]):
            if earlier_writes & (reads | writes) or earlier_reads & writes:
                assert at[i] < at[j]
    assert all(len(group) == 1 or len({kinds[i] for i in group}) == 1 for group in groups)
    assert all(len(group) == 1 or None not in {kinds[i] for i in group} for group in groups)


def test_fewer_launches_do_not_cost_much_memory():
    # Each of 64 pairs has a large intermediate: together they would need 64 times the memory.
    large = 1 << 26
    effects = [
        effect
        for i in range(64)
        for effect in (
            Effects(frozenset([1000]), frozenset([i])),
            Effects(frozenset([i]), frozenset([100 + i])),
        )
    ]
    sizes = dict.fromkeys(range(64), large)
    groups = fewest_launches(effects, [1, 2] * 64, sizes, lambda group: 1)
    uses = [use for slot, use in lifetimes(groups, effects).items() if slot < 64]
    live = max(sum(first <= t <= last for first, last in uses) for t in range(len(groups)))
    assert live <= 2
    small = fewest_launches(effects, [1, 2] * 64, dict.fromkeys(range(64), 64), lambda group: 1)
    assert len(small) == 2


# -- launches ----------------------------------------------------------------------------------------------------------


def launches(module):
    return [step for step in module.launches() if isinstance(step, Launch)]


def test_constants_are_read_where_they_are(no_compiler):
    # An array of one number is an argument of the scatter.
    ranks = lambda i, x: tnp.zeros(8, "float32").at[i].set(x)
    module = gpu_module(ranks, ShapeDtype((3,), "int32"), ShapeDtype((3,), "float32"))
    assert not [step for step in module.launches() if isinstance(step, Copy)]
    slots = {argument.slot for launch in launches(module) for argument in launch.arguments if hasattr(argument, "slot")}
    assert module.constants_slot in slots


LEAVES = [(1,), (3,), (257,), (5000,), (64, 33), (), (0, 4), (300, 40)]


def adamw(dtypes=("float32",)):
    """A step of AdamW with clipping and a mask of the decay, over leaves of all shapes."""
    decay = lambda params: tvmfun.tree.map(lambda leaf: leaf.ndim > 1, params)
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0),
        optim.adamw(optim.linear_schedule(1e-2, 1e-3, 10), weight_decay=0.1, mask=decay),
    )

    def update(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    of = lambda i: dtypes[i % len(dtypes)]
    params = {f"w{i}": draw(*shape, seed=i).astype(of(i)) for i, shape in enumerate(LEAVES * len(dtypes))}
    grads = {f"w{i}": draw(*shape, seed=90 + i).astype(of(i)) for i, shape in enumerate(LEAVES * len(dtypes))}
    return optimizer, update, params, grads


@pytest.mark.parametrize("leaves", [8, 200])
def test_all_leaves_of_an_optimizer_are_few_launches(leaves, no_compiler):
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3))

    def update(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    params = [ShapeDtype((17 * (i % 5) + 3, 64), "float32") for i in range(leaves)]
    state = tvmfun.eval_shape(optimizer.init, params)
    module = gpu_module(update, params, state, params, donate_argnums=(0, 1))
    assert len(launches(module)) <= (6 if leaves == 8 else 12)
    assert module.plan.analysis.aliased >= 3 * sum(leaf.nbytes for leaf in params)
    # The norm is the only thing that is not written over the state.
    assert module.plan.analysis.temporaries < 1 << 20


def trained(function, arguments, steps=2, device="cuda"):
    """The state after some steps of ``function(state, data) -> state``, donated."""
    state, data = tvmfun.device_put(arguments, device)
    step = tvmfun.jit(function, donate_argnums=0)
    for _ in range(steps):
        state = step(state, data)
    return [np.asarray(leaf) for leaf in tvmfun.tree.leaves(state)]


def once(dtypes):
    optimizer, update, params, grads = adamw(dtypes)
    return lambda state, grads: update(*state, grads), ((params, optimizer.init(params)), grads)


def in_a_loop():
    step, arguments = once(("float32",))
    return lambda state, grads: lax.fori_loop(0, 3, lambda i, state: step(state, grads), state), arguments


def of_an_ensemble():
    step, arguments = once(("float32",))
    several = tvmfun.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * 3), arguments)
    several[1]["w3"] += draw(3, 5000, seed=4)
    return tvmfun.vmap(step), several


def of_two_masks():
    def step(state, x):
        key, w = state
        key, *own = random.split(key, 4)
        masks = [random.bernoulli(k, 0.5, (n, 40)) for k, n in zip(own, (3, 50, 64), strict=True)]
        return key, w + sum(tnp.sum(mask * x[: len(mask)], 0) for mask in masks)

    return step, ((np.asarray([1, 2], np.uint32), draw(40)), draw(64, 40, seed=1))


PROGRAMS = {
    "leaves": lambda: once(("float32",)),
    "leaves-of-mixed-dtypes": lambda: once(("float32", "bfloat16", "float16")),
    "loop": in_a_loop,
    "ensemble": of_an_ensemble,
    "masks": of_two_masks,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_separate_launches(name, machine, monkeypatch):
    function, arguments = PROGRAMS[name]()
    joined = trained(function, arguments)
    few = machine.calls("cuGraphAddKernelNode_v2")
    monkeypatch.setattr(Joiner, "kind", lambda self, step: None)
    tvmfun.clear_caches()
    separate = trained(function, arguments)
    assert few < machine.calls("cuGraphAddKernelNode_v2") - few
    for one, other, cpu in zip(joined, separate, trained(function, arguments, device="cpu"), strict=True):
        np.testing.assert_array_equal(one, other)
        tolerance = 1e-5 if one.itemsize >= 4 else 1e-2
        np.testing.assert_allclose(one.astype(np.float32), cpu.astype(np.float32), tolerance, atol=tolerance / 10)
