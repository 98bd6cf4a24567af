"""Systems of equations and decompositions of matrices beside JAX's, which calls LAPACK.

Run with ``nox -s bench -- -k linalg``. A line is printed for each size, and the geometric mean at the end. Each side
runs for a while before it is timed, because the threads of LAPACK go on waiting for work after a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bench.harness import summary

import tvmfun
import tvmfun.numpy as tnp

RNG = np.random.default_rng(0)
ROUNDS, WARM, TIMED = 5, 0.03, 0.1


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def positive(*shape: int) -> np.ndarray:
    a = normal(*shape)
    return a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1], dtype="float32")


#: By name: the function of the module and of the arguments, and these for a shape.
FUNCTIONS: dict[str, tuple[Callable, Callable]] = {
    "cholesky": (lambda m: m.linalg.cholesky, lambda *s: (positive(*s),)),
    "solve": (lambda m: m.linalg.solve, lambda *s: (positive(*s), normal(*s[:-1], 1))),
    "inv": (lambda m: m.linalg.inv, lambda *s: (positive(*s),)),
    "slogdet": (lambda m: lambda a: m.linalg.slogdet(a)[1], lambda *s: (positive(*s),)),
    "qr": (lambda m: m.linalg.qr, lambda *s: (normal(*s),)),
    "eigh": (lambda m: m.linalg.eigh, lambda *s: (positive(*s),)),
    "eigvalsh": (lambda m: m.linalg.eigvalsh, lambda *s: (positive(*s),)),
    "svd": (lambda m: lambda a: m.linalg.svd(a, full_matrices=False), lambda *s: (normal(*s),)),
    "svdvals": (lambda m: lambda a: m.linalg.svd(a, compute_uv=False), lambda *s: (normal(*s),)),
}
SHAPES = [(256, 16, 16), (64, 64), (256, 256), (1024, 1024)]
RATIOS: dict[str, float] = {}


def milliseconds(call: Callable[[], Any]) -> float:
    """The median time of a call."""
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < WARM + TIMED or len(times) < 2:
        start = time.perf_counter()
        jax.block_until_ready(call())
        if start - begin >= WARM or not times:
            times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_decomposition(name, shape):
    function, make = FUNCTIONS[name]
    arguments = make(*shape)
    ours, theirs = tvmfun.jit(function(tnp)), jax.jit(function(jnp))
    mine, others = tvmfun.device_put(arguments), jax.device_put(arguments)

    def run() -> Any:
        found = ours(*mine)
        for leaf in found if isinstance(found, tuple) else (found,):
            leaf.block_until_ready()

    pairs = [(milliseconds(run), milliseconds(lambda: theirs(*others))) for _ in range(ROUNDS)]
    own, other = np.median(pairs, axis=0)
    RATIOS[f"{name} {shape}"] = other / own
    print(f"\n{name:10} {'x'.join(map(str, shape)):12} {own:9.3f} ms, JAX {other:9.3f} ms: {other / own:.2f}", end="")


def test_the_geometric_mean():
    print(f"\n{summary(RATIOS)}")
