"""Elementary and special functions of 2^20 numbers beside JAX's, in single and in double precision.

Run with ``nox -s bench -- -k elementary``. A line is printed for each, and the geometric means at the end.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest
from bench.harness import summary
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
import tvmfun.scipy.special

COUNT = 1 << 20
RNG = np.random.default_rng(0)
#: Numbers between 0 and 1, of both signs, and positive ones.
SHARE, ANY, POSITIVE = RNG.uniform(0.01, 0.99, COUNT), 3 * RNG.normal(size=COUNT), RNG.uniform(0.1, 30, COUNT)

#: The arguments of each function.
FUNCTIONS = {
    **dict.fromkeys(("sin", "cos", "tan", "exp", "exp2", "expm1", "sinh", "cosh", "tanh", "cbrt"), (ANY,)),
    **dict.fromkeys(("arctan", "arcsinh", "erf", "erfc"), (ANY,)),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "gammaln", "digamma"), (POSITIVE,)),
    **dict.fromkeys(("arcsin", "arccos", "arctanh", "erfinv"), (SHARE,)),
    "arccosh": (1 + POSITIVE,),
    "power": (POSITIVE, SHARE),
    **dict.fromkeys(("arctan2", "hypot", "mod", "logaddexp"), (ANY, SHARE)),
}
RATIOS: dict[tuple[str, str], float] = {}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name, dtype):
    pairs = ((tnp, jnp), (tvmfun.scipy.special, jax.scipy.special))
    mine, peer = next(pair for pair in pairs if hasattr(pair[0], name))
    values = [value.astype(dtype) for value in FUNCTIONS[name]]
    with x64():
        ours, theirs = tvmfun.jit(getattr(mine, name)), jax.jit(getattr(peer, name))
        given, peers = tvmfun.device_put(values), jax.device_put(values)

        def milliseconds(call, arguments) -> float:
            start = time.perf_counter()
            call(*arguments).block_until_ready()
            return 1e3 * (time.perf_counter() - start)

        milliseconds(ours, given)
        milliseconds(theirs, peers)
        times = [(milliseconds(ours, given), milliseconds(theirs, peers)) for _ in range(15)]
    a, b = (float(np.median(own)) for own in zip(*times, strict=True))
    RATIOS[dtype, name] = b / a
    print(f"\n{dtype} {name}: tvmfun {a:.2f} ms, JAX {b:.2f} ms, {b / a:.2f}", end="")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_geometric_mean(dtype):
    ratios = {name: ratio for (own, name), ratio in RATIOS.items() if own == dtype}
    if len(ratios) < 2:
        pytest.skip("no ratios")
    print(f"\n{dtype}: {summary(ratios)}", end="")
