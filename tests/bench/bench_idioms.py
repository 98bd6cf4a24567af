"""Idioms of array programs beside JAX's: loops with updates, sorting, searching, gathers, scatters, convolutions.

Run with ``nox -s bench -- -k idioms``. A line is printed for each, and the geometric mean of the ratios at the end.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
import pytest
from bench.harness import summary

import tvmfun
import tvmfun.numpy as tnp
import tvmfun.scipy.special
from tvmfun import lax, nn, random

OURS = SimpleNamespace(
    np=tnp, lax=lax, nn=nn.functional, random=random, vmap=tvmfun.vmap, grad=tvmfun.grad, scipy=tvmfun.scipy,
    transforms=tvmfun,
)  # fmt: skip
THEIRS = SimpleNamespace(
    np=jnp, lax=jax.lax, nn=jax.nn, random=jax.random, vmap=jax.vmap, grad=jax.grad, scipy=jax.scipy, transforms=jax
)
RNG = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    """Normal numbers."""
    return RNG.normal(size=shape).astype("float32")


def ii(end: int, *shape: int) -> np.ndarray:
    """Indices below ``end``."""
    return RNG.integers(0, end, shape).astype("int32")


def positive(n: int) -> np.ndarray:
    """A positive definite matrix."""
    a = f(n, n)
    return a @ a.T + 9 * np.eye(n, dtype="float32")


X, V, B = f(1024, 1024), f(1 << 20), f(64, 32, 32)

#: By name: the function of the modules and then of the arguments, and these.
IDIOMS = {
    "add to rows in a loop": (
        lambda m: lambda t, x: m.lax.fori_loop(0, 256, lambda i, t: t.at[i * 3].add(x[i]), t),
        lambda: (
            f(4096, 256),
            f(256, 256),
        ),
    ),
    "set elements in a loop": (
        lambda m: lambda t: m.lax.fori_loop(0, 1000, lambda i, t: t.at[i, i % 7].set(t[i, 3] * 2), t),
        lambda: (f(2048, 512),),
    ),
    "update slices of the middle axis in a loop": (
        lambda m: (
            lambda t: m.lax.fori_loop(
                0, 1000, lambda i, t: m.lax.dynamic_update_index_in_dim(t, t[:, i, :] * 2.0, i, 1), t
            )
        ),
        lambda: (f(64, 1024, 32),),
    ),
    "set columns in a loop": (
        lambda m: lambda t: m.lax.fori_loop(0, 500, lambda i, t: t.at[:, i].set(t[:, i + 1] + 1), t),
        lambda: (f(256, 4096),),
    ),
    "add to one row in a loop": (
        lambda m: lambda t: m.lax.fori_loop(0, 100, lambda i, t: t.at[3].add(t[i]), t),
        lambda: (f(4096, 64),),
    ),
    "stencil by at[1:-1, 1:-1]": (
        lambda m: (
            lambda u: m.lax.fori_loop(
                0,
                50,
                lambda i, u: u.at[1:-1, 1:-1].set((u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4),
                u,
            )
        ),
        lambda: (f(512, 512),),
    ),
    "stencil by roll": (
        lambda m: (
            lambda u: m.lax.fori_loop(
                0,
                50,
                lambda i, u: (m.np.roll(u, 1, 0) + m.np.roll(u, -1, 0) + m.np.roll(u, 1, 1) + m.np.roll(u, -1, 1)) / 4,
                u,
            )
        ),
        lambda: (f(512, 512),),
    ),
    "cumsum 1M": (lambda m: lambda x: m.np.cumsum(x), lambda: (V,)),
    "cumsum axis0": (lambda m: lambda x: m.np.cumsum(x, 0), lambda: (X,)),
    "cumprod axis1": (lambda m: lambda x: m.np.cumprod(x * 0.01 + 1, 1), lambda: (X,)),
    "cummax": (lambda m: lambda x: m.lax.cummax(x, axis=1), lambda: (X,)),
    "sort 1M": (lambda m: lambda x: m.np.sort(x), lambda: (V,)),
    "sort rows": (lambda m: lambda x: m.np.sort(x, 1), lambda: (X,)),
    "argsort rows": (lambda m: lambda x: m.np.argsort(x, 1), lambda: (X,)),
    "top_k": (lambda m: lambda x: m.lax.top_k(x, 10), lambda: (f(64, 50000),)),
    "median axis1": (lambda m: lambda x: m.np.median(x, 1), lambda: (f(256, 1024),)),
    "segment via at.add": (
        lambda m: lambda i, x: m.np.zeros(1000, "float32").at[i].add(x),
        lambda: (
            ii(1000, 200000),
            f(200000),
        ),
    ),
    "segment rows": (
        lambda m: lambda i, x: m.np.zeros((1000, 64), "float32").at[i].add(x),
        lambda: (
            ii(1000, 20000),
            f(20000, 64),
        ),
    ),
    "at max": (
        lambda m: lambda i, x: m.np.full(1000, -9.0, "float32").at[i].max(x),
        lambda: (
            ii(1000, 200000),
            f(200000),
        ),
    ),
    "bincount": (lambda m: lambda i: m.np.bincount(i, length=1000), lambda: (ii(1000, 500000),)),
    "histogram": (lambda m: lambda x: m.np.histogram(x, bins=50, range=(-3, 3))[0], lambda: (V,)),
    "searchsorted": (
        lambda m: lambda a, v: m.np.searchsorted(a, v),
        lambda: (
            np.sort(V),
            f(100000),
        ),
    ),
    "take rows": (
        lambda m: lambda t, i: t[i],
        lambda: (
            f(50000, 64),
            ii(50000, 65536),
        ),
    ),
    "take along": (
        lambda m: lambda x, i: m.np.take_along_axis(x, i, 1),
        lambda: (
            X,
            ii(1024, 1024, 8),
        ),
    ),
    "gather cols": (
        lambda m: lambda x, i: x[:, i],
        lambda: (
            X,
            ii(1024, 256),
        ),
    ),
    "one_hot matmul": (
        lambda m: lambda i, w: m.nn.one_hot(i, 512) @ w,
        lambda: (
            ii(512, 4096),
            f(512, 64),
        ),
    ),
    "einsum chain": (
        lambda m: lambda a, b, c: m.np.einsum("bij,bjk,bkl->bil", a, b, c),
        lambda: (
            B,
            B,
            B,
        ),
    ),
    "einsum odd": (
        lambda m: lambda a, b: m.np.einsum("nhqd,nhdk->nqhk", a, b),
        lambda: (
            f(32, 8, 64, 16),
            f(32, 8, 16, 64),
        ),
    ),
    "einsum outer": (
        lambda m: lambda a, b: m.np.einsum("bi,bj->bij", a, b),
        lambda: (
            f(64, 128),
            f(64, 128),
        ),
    ),
    "bilinear": (
        lambda m: lambda x, w, y: m.np.einsum("bi,ijk,bk->bj", x, w, y),
        lambda: (
            f(64, 64),
            f(64, 64, 64),
            f(64, 64),
        ),
    ),
    "depthwise conv": (
        lambda m: (
            lambda x, w: m.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=64
            )
        ),
        lambda: (
            f(8, 56, 56, 64),
            f(3, 3, 1, 64),
        ),
    ),
    "dilated conv": (
        lambda m: (
            lambda x, w: m.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        ),
        lambda: (
            f(8, 32, 32, 32),
            f(3, 3, 32, 32),
        ),
    ),
    "conv nchw": (
        lambda m: lambda x, w: m.lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        lambda: (
            f(8, 32, 32, 32),
            f(32, 32, 3, 3),
        ),
    ),
    "conv7 s2": (
        lambda m: (
            lambda x, w: m.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        ),
        lambda: (
            f(4, 112, 112, 3),
            f(7, 7, 3, 64),
        ),
    ),
    "conv1d": (
        lambda m: lambda x, w: m.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        lambda: (
            f(16, 1024, 32),
            f(5, 32, 32),
        ),
    ),
    "conv transpose": (
        lambda m: lambda x, w: m.lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        lambda: (
            f(8, 16, 16, 32),
            f(4, 4, 32, 16),
        ),
    ),
    "conv3d": (
        lambda m: (
            lambda x, w: m.lax.conv_general_dilated(
                x, w, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
            )
        ),
        lambda: (
            f(2, 16, 16, 16, 8),
            f(3, 3, 3, 8, 16),
        ),
    ),
    "np.convolve": (
        lambda m: lambda x, w: m.np.convolve(x, w, "same"),
        lambda: (
            V[:65536],
            f(128),
        ),
    ),
    "maxpool3s2": (
        lambda m: lambda x: m.lax.reduce_window(x, -np.inf, m.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        lambda: (f(8, 56, 56, 64),),
    ),
    "sumpool grad": (
        lambda m: m.grad(
            lambda x: m.np.sum(m.lax.reduce_window(x, 0.0, m.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") ** 2)
        ),
        lambda: (f(8, 56, 56, 64),),
    ),
    "solve batched": (
        lambda m: lambda a, b: m.np.linalg.solve(a, b),
        lambda: (
            B + 9 * np.eye(32, dtype="float32"),
            f(64, 32, 4),
        ),
    ),
    "inv": (lambda m: lambda a: m.np.linalg.inv(a), lambda: (f(256, 256) + 20 * np.eye(256, dtype="float32"),)),
    "cholesky": (lambda m: lambda a: m.np.linalg.cholesky(a), lambda: (positive(512),)),
    "svd": (lambda m: lambda a: m.np.linalg.svd(a, full_matrices=False)[1], lambda: (f(96, 64),)),
    "eigh": (lambda m: lambda a: m.np.linalg.eigh(a)[0], lambda: (positive(96),)),
    "qr": (lambda m: lambda a: m.np.linalg.qr(a)[1], lambda: (f(256, 64),)),
    "det batched": (lambda m: lambda a: m.np.linalg.det(a), lambda: (B,)),
    "vmap scan": (
        lambda m: m.vmap(lambda xs: m.lax.scan(lambda c, x: (m.np.tanh(c + x), c), m.np.zeros(8, "float32"), xs)),
        lambda: (f(256, 64, 8),),
    ),
    "assoc scan": (
        lambda m: lambda a, b: m.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (a * 0.1, b)),
        lambda: (
            f(4096, 64),
            f(4096, 64),
        ),
    ),
    "normal 1M": (lambda m: lambda k: m.random.normal(m.random.key(3), (1 << 20,)), lambda: (np.uint32([0, 1]),)),
    "permutation": (lambda m: lambda k: m.random.permutation(m.random.key(3), 100000), lambda: (np.uint32([0, 1]),)),
    "categorical": (lambda m: lambda x: m.random.categorical(m.random.key(3), x), lambda: (f(1000, 1000),)),
    "gamma": (lambda m: lambda k: m.random.gamma(m.random.key(3), 2.5, (20000,)), lambda: (np.uint32([0, 1]),)),
    "pad reflect": (lambda m: lambda x: m.np.pad(x, ((0, 0), (8, 8), (8, 8)), "reflect"), lambda: (f(16, 128, 128),)),
    "interp": (
        lambda m: lambda xp, fp, x: m.np.interp(x, xp, fp),
        lambda: (
            np.sort(f(1000)),
            f(1000),
            V,
        ),
    ),
    "polyval": (
        lambda m: lambda p, x: m.np.polyval(p, x),
        lambda: (
            f(16),
            V,
        ),
    ),
    "logsumexp0": (lambda m: lambda x: m.scipy.special.logsumexp(x, 0), lambda: (X,)),
    "var0": (lambda m: lambda x: m.np.var(x, 0), lambda: (X,)),
    "argmax0": (lambda m: lambda x: m.np.argmax(x, 0), lambda: (X,)),
    "argmax1": (lambda m: lambda x: m.np.argmax(x, 1), lambda: (X,)),
    "norm all": (lambda m: lambda x: m.np.linalg.norm(x), lambda: (V,)),
    "cdist": (
        lambda m: lambda a, b: m.np.sqrt(m.np.sum((a[:, None] - b[None]) ** 2, -1)),
        lambda: (
            f(1024, 32),
            f(1024, 32),
        ),
    ),
    "pairwise softmin": (
        lambda m: m.grad(lambda a: m.np.sum(m.scipy.special.logsumexp(-m.np.sum((a[:, None] - a[None]) ** 2, -1), 1))),
        lambda: (f(512, 16),),
    ),
    "where chain": (lambda m: lambda x: m.np.where(x > 0, m.np.log1p(x), m.np.expm1(x)), lambda: (V,)),
    "erfinv": (lambda m: lambda x: m.scipy.special.erfinv(m.np.clip(x, -0.9, 0.9)), lambda: (V * 0.2,)),
    "lgamma": (lambda m: lambda x: m.scipy.special.gammaln(x), lambda: (np.abs(V) + 0.1,)),
    "power": (lambda m: lambda x: x**2.3, lambda: (np.abs(V) + 0.1,)),
    "square, float exponent": (lambda m: lambda x: x**2.0, lambda: (V,)),
    "square root, exponent": (lambda m: lambda x: x**0.5, lambda: (np.abs(V),)),
    "power 10": (lambda m: lambda x: x**10, lambda: (V,)),
    "remainder by 2": (lambda m: lambda x: x % 2.0, lambda: (V,)),
    "powers of 2": (lambda m: lambda i: 2 ** (i % 16), lambda: (ii(1000, 1 << 20),)),
    "pieces on boards": (
        lambda m: m.vmap(lambda x, i, j: m.lax.dynamic_update_slice(m.np.zeros((11, 11)), x, (i, j))),
        lambda: (f(8100, 3, 3), ii(9, 8100), ii(9, 8100)),
    ),
    "patches in signals": (
        lambda m: m.vmap(lambda x, y, i: m.lax.dynamic_update_slice(x, y, (i,)) * 2),
        lambda: (f(256, 1000), f(256, 100), ii(900, 256)),
    ),
    "sums with a patch": (
        lambda m: lambda x, y, i: m.np.sum(m.lax.dynamic_update_slice(x * 2, y, (i, i)), 0),
        lambda: (X, f(512, 512), np.int32(37)),
    ),
    "sin cos": (lambda m: lambda x: m.np.sin(x) * m.np.cos(x), lambda: (V,)),
    "transpose copy": (lambda m: lambda x: m.np.transpose(x, (2, 0, 1)) + 0.0, lambda: (f(64, 256, 256),)),
    "concat many": (lambda m: lambda *a: m.np.concatenate(a, 1), lambda: (*[f(1000, 64) for _ in range(16)],)),
    "stack rows": (lambda m: lambda *a: m.np.stack(a, 1), lambda: (*[f(100000) for _ in range(8)],)),
    "repeat": (lambda m: lambda x: m.np.repeat(x, 8, 0), lambda: (f(4096, 64),)),
    "tile": (lambda m: lambda x: m.np.tile(x, (4, 4)), lambda: (f(256, 256),)),
    "kron": (
        lambda m: lambda a, b: m.np.kron(a, b),
        lambda: (
            f(32, 32),
            f(32, 32),
        ),
    ),
    "tril mask mul": (lambda m: lambda x: m.np.tril(x) @ x, lambda: (X,)),
    "int matmul": (
        lambda m: lambda a, b: a @ b,
        lambda: (
            ii(100, 512, 512),
            ii(100, 512, 512),
        ),
    ),
    "bool any": (lambda m: lambda x: m.np.any(x > 5), lambda: (V,)),
    "count_nonzero": (lambda m: lambda x: m.np.count_nonzero(x > 0.5), lambda: (V,)),
    "matvec": (
        lambda m: lambda a, x: a @ x,
        lambda: (
            f(2048, 2048),
            f(2048),
        ),
    ),
    "vecmat": (
        lambda m: lambda a, x: x @ a,
        lambda: (
            f(2048, 2048),
            f(2048),
        ),
    ),
    "hessian": (lambda m: m.transforms.hessian(lambda x: m.np.sum(m.np.tanh(x @ m.np.outer(x, x)))), lambda: (f(64),)),
    "jacrev mlp": (
        lambda m: lambda x, w: m.transforms.jacrev(lambda x: m.np.tanh(m.np.tanh(x @ w) @ w))(x),
        lambda: (
            f(32),
            f(32, 32),
        ),
    ),
    "while newton": (
        lambda m: m.vmap(
            lambda a: m.lax.while_loop(lambda s: m.np.abs(s * s - a) > 1e-3 * a, lambda s: 0.5 * (s + a / s), a)
        ),
        lambda: (np.abs(f(10000)) + 1,),
    ),
}
RATIOS: dict[str, float] = {}


@pytest.mark.parametrize("name", IDIOMS)
def test_idiom(name):
    make, arguments = IDIOMS[name]
    ours, theirs = tvmfun.jit(make(OURS)), jax.jit(make(THEIRS))
    values = arguments()
    given, peers = tvmfun.device_put(values), jax.device_put(values)

    def run() -> float:
        start = time.perf_counter()
        for leaf in tvmfun.tree.leaves(ours(*given)):
            leaf.block_until_ready()
        return time.perf_counter() - start

    def peer() -> float:
        start = time.perf_counter()
        jax.block_until_ready(theirs(*peers))
        return time.perf_counter() - start

    run(), peer()
    repeats = max(3, min(30, int(0.3 / max(run(), 1e-5))))
    times = [(run(), peer()) for _ in range(repeats)]
    a, b = (min(own) * 1e3 for own in zip(*times, strict=True))
    RATIOS[name] = b / a
    print(f"\n{name}: tvmfun {a:.3f} ms, JAX {b:.3f} ms, {b / a:.2f}", end="")


def test_the_geometric_mean():
    if len(RATIOS) < 2:
        pytest.skip("no ratios")
    print(f"\n{summary(RATIOS)}", end="")
