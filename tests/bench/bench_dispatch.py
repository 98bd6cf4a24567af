"""The overhead of a call in Python: a step that does next to nothing, with many leaves, beside JAX's.

Run with ``nox -s bench -- -k dispatch``; ``-k "models or dispatch" --json FILE`` keeps the figures with those of steps.
"""

from __future__ import annotations

import operator
import time
import timeit
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from bench.harness import call_row

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.tree_flattener import expectation


def microseconds(*calls, number: int = 100, repeat: int = 25) -> list[float]:
    """The least time of each call, taken in turns, so that what else the machine does hits all of them."""
    rounds = [[timeit.timeit(call, number=number) for call in calls] for _ in range(repeat)]
    return [min(column) / number * 1e6 for column in zip(*rounds, strict=True)]


@pytest.mark.parametrize("leaves", [1, 10, 100, 400])
def test_dispatch(leaves, report):
    params = {f"w{i}": np.ones(4, "float32") for i in range(leaves)}
    ours, theirs = tvmfun.device_put(params), {name: jnp.asarray(value) for name, value in params.items()}
    step = tvmfun.jit(lambda p: {name: value + 1 for name, value in p.items()})
    peer = jax.jit(lambda p: {name: value + 1 for name, value in p.items()})
    np.testing.assert_array_equal(step(ours)["w0"], peer(theirs)["w0"])
    a, b = microseconds(lambda: step(ours), lambda: jax.block_until_ready(peer(theirs)))
    report.add(call_row(f"a call, leaves: {leaves}", a, b))
    loaded = step.lower(ours).compile()._loaded
    arguments = ((ours,), {})
    arrays, structure = tvmfun.tree.flatten(arguments)
    addresses, avals = [array.address for array in arrays], loaded.out_avals
    expect = expectation(structure, [array.aval for array in arrays])
    flattening, running, module = microseconds(
        lambda: expect(arguments),
        lambda: loaded(arrays, addresses),
        lambda: loaded.executable(arrays, addresses, avals),
    )
    print(
        f"\n{leaves:4d} leaves: tvmfun {a:7.1f} us, JAX {b:7.1f} us; ours has {flattening:.1f} of flattening, "
        f"{module:.1f} for memory and the module and {running - module:.1f} for the arrays"
    )


@tvmfun.tree.register_dataclass
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    kernel: Any
    bias: Any


def test_dataclasses(report):
    """A model of 100 layers."""
    layers = [Layer(np.ones(4, "float32"), np.ones(4, "float32")) for _ in range(100)]
    ours, theirs = tvmfun.device_put(layers), jax.device_put(layers)
    step, peer = (
        module.jit(lambda layers: [Layer(layer.kernel + 1, layer.bias) for layer in layers]) for module in (tvmfun, jax)
    )
    np.testing.assert_array_equal(step(ours)[0].kernel, peer(theirs)[0].kernel)
    a, b = microseconds(lambda: step(ours), lambda: jax.block_until_ready(peer(theirs)))
    report.add(call_row("a call, dataclasses: 100", a, b))


@pytest.mark.parametrize("pause", [0.02, 0.2])
def test_after_a_pause(pause):
    """The first calls after the threads have gone to sleep, as in a server between two requests."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(128, 512)).astype("float32"), rng.normal(size=(512, 512)).astype("float32")
    ours, peer = tvmfun.jit(operator.matmul), jax.jit(operator.matmul)
    a, b, c = tvmfun.device_put((x, w)), tuple(map(jnp.asarray, (x, w))), tuple(map(torch.from_numpy, (x, w)))
    calls = {
        "tvmfun": lambda: ours(*a),
        "JAX": lambda: jax.block_until_ready(peer(*b)),
        "PyTorch": lambda: torch.mm(*c),
    }
    for name, call in calls.items():
        rounds = []
        for _ in range(12):
            time.sleep(pause)
            rounds.append([timeit.timeit(call, number=1) for _ in range(10)])
        first, *_, last = np.median(rounds[2:], axis=0) * 1e6
        total = np.median(np.sum(rounds[2:], axis=1)) * 1e6
        print(f"\n{name}: after {pause} s the first call {first:.0f} us, the tenth {last:.0f}, all ten {total:.0f}")


def test_eager_op(report):
    ours, theirs = tnp.ones(4), jnp.ones(4)
    a, b = microseconds(lambda: ours + ours, lambda: (theirs + theirs).block_until_ready())
    report.add(call_row("an eager addition", a, b))
