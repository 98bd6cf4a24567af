"""Single pieces of work beside JAX's and PyTorch's in one run: products, convolutions, sums, lookups, updates.

Run with ``nox -s bench -- -k micro``. The rows of a table give the floor: operations over the speed of a large matrix
product plus bytes over the speed of a copy, so that less is possible where the data stay in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
import torch
from bench.frameworks import JAX
from bench.harness import compare
from bench.ours import OURS

import tvmfun
from tvmfun import dtypes

F = torch.nn.functional


@dataclass(frozen=True)
class Micro:
    """A function of arrays in the three frameworks.

    Args:
        name: what the table calls it.
        shapes: of the arguments; a pair of a shape and a number is of integers below the number.
        function: ``(namespace, *arrays)``, for tvmfun and JAX.
        torch_function: ``(*tensors)``.
        flop: operations, of products alone.
        dtype: of the arrays that are not of integers below a number.
    """

    name: str
    shapes: tuple
    function: Callable
    torch_function: Callable
    flop: float = 0
    dtype: str = "float32"

    @property
    def tolerance(self) -> float:
        """How far results may be apart, beside the largest."""
        return {"float32": 1e-4, "bfloat16": 2**-7}.get(self.dtype, 0)

    def arrays(self) -> list[np.ndarray]:
        """The arguments, the same at each call."""
        rng = np.random.default_rng(0)

        def one(spec: Any) -> np.ndarray:
            if isinstance(spec[0], tuple):
                return rng.integers(0, spec[1], spec[0]).astype("int32")
            if self.dtype == "int8":
                return rng.integers(-128, 128, spec).astype("int8")
            return rng.standard_normal(spec, dtype="float32").astype(dtypes.canonical(self.dtype))

        return [one(spec) for spec in self.shapes]


def gemm(m: int, k: int, n: int, dtype: str = "float32") -> Micro:
    """A product of matrices; int8 is summed in int32."""
    product = lambda ns, x, y: ns.np.matmul(x, y)
    peer = torch.matmul
    if dtype == "int8":
        axes = ((1,), (0,)), ((), ())
        product = lambda ns, x, y: ns.lax.dot_general(x, y, axes, preferred_element_type="int32")
        peer = torch._int_mm  # type: ignore[attr-defined]
    name = f"GEMM {m} x {k} x {n}" + (f", {dtype}" if dtype != "float32" else "")
    return Micro(name, ((m, k), (k, n)), product, peer, 2 * m * k * n, dtype)


def convolution(size: int, inputs: int, outputs: int) -> list[Micro]:
    """A 3x3 convolution of 32 images, and its gradients."""
    x, w, y = (32, size, size, inputs), (3, 3, inputs, outputs), (32, size, size, outputs)
    layout = ("NHWC", "HWIO", "NHWC")
    conv = lambda ns, x, w: ns.lax.conv_general_dilated(x, w, (1, 1), [(1, 1)] * 2, dimension_numbers=layout)
    pullback = lambda ns: (tvmfun if ns is OURS else jax).vjp
    first = lambda t: t.permute(0, 3, 1, 2)
    kernel = lambda w: w.permute(3, 2, 0, 1)
    gradient = lambda x, w, g, mask: torch.ops.aten.convolution_backward(
        first(g), first(x), kernel(w), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, mask
    )
    flop, name = 2 * 32 * size * size * 9 * inputs * outputs, f"3x3, {size}x{size}, {inputs} to {outputs}"
    return [
        Micro(f"conv {name}", (x, w), conv, lambda x, w: F.conv2d(first(x), kernel(w), padding=1), flop),
        Micro(
            f"conv dgrad {name}",
            (x, w, y),
            lambda ns, x, w, g: pullback(ns)(lambda x: conv(ns, x, w), x)[1](g)[0],
            lambda x, w, g: gradient(x, w, g, (True, False, False))[0],
            flop,
        ),
        Micro(
            f"conv wgrad {name}",
            (x, w, y),
            lambda ns, x, w, g: pullback(ns)(lambda w: conv(ns, x, w), w)[1](g)[0],
            lambda x, w, g: gradient(x, w, g, (False, True, False))[1],
            flop,
        ),
    ]


def layer_norm(ns: Any, x: Any, scale: Any, shift: Any) -> Any:
    """Normalization over the last axis."""
    centred = x - ns.np.mean(x, axis=-1, keepdims=True)
    return centred * ns.lax.rsqrt(ns.np.mean(centred * centred, axis=-1, keepdims=True) + 1e-5) * scale + shift


def total(axis: int) -> Micro:
    """A sum over one of three axes."""
    name = f"sum over axis {axis} of 128x256x512"
    return Micro(name, ((128, 256, 512),), lambda ns, x: ns.np.sum(x, axis=axis), lambda x: x.sum(axis))


GEMMS = [
    (1024, 1024, 1024),
    (511, 513, 509),
    (8, 4096, 4096),
    (4096, 4096, 8),
    (1, 2048, 2048),
    (64, 30000, 64),
    (33, 65, 129),
]

NARROW_GEMMS = [(1024, 1024, 1024), (512, 768, 3072), (511, 513, 509), (8, 4096, 4096)]

MICROS = [
    *(gemm(*sizes) for sizes in GEMMS),
    *(gemm(*sizes, dtype) for dtype in ("bfloat16", "int8") for sizes in NARROW_GEMMS),
    Micro(
        "batched GEMM 96 x (128 x 64 x 128)",
        ((96, 128, 64), (96, 64, 128)),
        lambda ns, x, y: ns.np.matmul(x, y),
        torch.matmul,
        2 * 96 * 128 * 64 * 128,
    ),
    Micro(
        "linear layer 4096 to 4096, 8 rows",
        ((8, 4096), (4096, 4096)),
        lambda ns, x, weight: ns.np.matmul(x, weight.T),
        F.linear,
        2 * 8 * 4096 * 4096,
    ),
    Micro(
        "top 8 of 50 rows of 20000",
        ((50, 20000),),
        lambda ns, x: ns.lax.top_k(x, 8)[0],
        lambda x: torch.topk(x, 8).values,
    ),
    *convolution(32, 64, 64),
    *convolution(8, 256, 256),
    Micro("softmax 4096 x 1024", ((4096, 1024),), lambda ns, x: ns.nn.softmax(x), lambda x: torch.softmax(x, -1)),
    Micro(
        "layer norm 4096 x 768",
        ((4096, 768), (768,), (768,)),
        layer_norm,
        lambda x, scale, shift: F.layer_norm(x, (768,), scale, shift),
    ),
    Micro("gelu of 2^22", ((1 << 22,),), lambda ns, x: ns.nn.gelu(x), lambda x: F.gelu(x, approximate="tanh")),
    Micro(
        "embedding 4096 of 30000 x 256",
        ((30000, 256), ((4096,), 30000)),
        lambda ns, table, rows: table[rows],
        lambda table, rows: F.embedding(rows, table),
    ),
    Micro(
        "embedding gradient 4096 of 30000 x 256",
        (((4096,), 30000), (4096, 256)),
        lambda ns, rows, g: ns.np.zeros((30000, 256)).at[rows].add(g),
        lambda rows, g: torch.ops.aten.embedding_dense_backward(g, rows, 30000, -1, False),
    ),
    *map(total, range(3)),
    Micro(
        "sum over rows of w x + b, 4096 x 1024",
        ((4096, 1024), (4096,), (4096,)),
        lambda ns, x, w, b: ns.np.sum(w[:, None] * x + w[:, None] * b[:, None], axis=0),
        lambda x, w, b: (w[:, None] * x + w[:, None] * b[:, None]).sum(0),
    ),
]


def as_torch(x: np.ndarray) -> torch.Tensor:
    """A tensor; indices are 64 bits wide there, and NumPy's bfloat16 is unknown."""
    if x.dtype == dtypes.bfloat16:
        return torch.from_numpy(x.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(x.astype("int64") if x.dtype == np.int32 else x)


def as_numbers(x: Any) -> np.ndarray:
    """An array of numbers that can be compared without rounding."""
    return np.asarray(x).astype("float64")


@pytest.mark.parametrize("micro", MICROS, ids=lambda micro: micro.name)
def test_micro(micro, report):
    """The same result in all, and then the time of a call."""
    arrays = micro.arrays()
    ours, theirs = tvmfun.device_put(arrays), list(map(jax.numpy.asarray, arrays))
    tensors = list(map(as_torch, arrays))
    f = tvmfun.jit(lambda *x: micro.function(OURS, *x))
    g = jax.jit(lambda *x: micro.function(JAX, *x))
    result = g(*theirs)
    expected = as_numbers(result)
    tolerance = micro.tolerance * np.abs(expected).max()
    np.testing.assert_allclose(as_numbers(f(*ours)), expected, atol=tolerance)
    with torch.no_grad():
        peer = micro.torch_function(*tensors)
        if peer.ndim == 4:
            order = (0, 2, 3, 1) if peer.shape[0] == arrays[0].shape[0] else (2, 3, 1, 0)
            peer = peer.permute(order)
        np.testing.assert_allclose(peer.double().numpy(), expected, atol=tolerance)
        runners = [
            ("tvmfun", lambda: f(*ours)),
            ("JAX", lambda: g(*theirs).block_until_ready()),
            ("PyTorch", lambda: micro.torch_function(*tensors)),
        ]
        moved = sum(x.nbytes for x in arrays) + result.nbytes
        report.add(compare(micro.name, runners, micro.flop, moved))


def test_update_of_400_leaves(report):
    """Adam for 400 small parameters, where what a kernel and an argument cost counts."""
    rng = np.random.default_rng(0)
    leaves = {f"w{i}": rng.standard_normal((16, 16), dtype="float32") for i in range(400)}
    calls = [("tvmfun", update(OURS, leaves)), ("JAX", update(JAX, leaves)), ("PyTorch", torch_update(leaves))]
    report.add(compare("Adam update of 400 leaves of 16x16", calls, 0, 7 * 400 * 1024))


def update(namespace: Any, leaves: dict) -> Callable[[], None]:
    """A step of Adam in tvmfun or JAX, its state donated."""
    import optax

    ours = namespace is OURS
    optimizer = (tvmfun.optim if ours else optax).adam(1e-3)
    apply = (tvmfun.optim if ours else optax).apply_updates
    put = tvmfun.device_put if ours else lambda tree: jax.tree.map(jax.numpy.array, tree)

    def step(carry, grads):
        updates, state = optimizer.update(grads, carry[1], carry[0])
        return apply(carry[0], updates), state

    run = (tvmfun if ours else jax).jit(step, donate_argnums=0)
    grads = put(leaves)
    holder = [(put(leaves), optimizer.init(put(leaves)))]

    def call() -> None:
        holder[0] = run(holder[0], grads)
        if not ours:
            jax.block_until_ready(holder[0])

    return call


def torch_update(leaves: dict) -> Callable[[], None]:
    """The same with PyTorch's fused update."""
    params = [torch.from_numpy(value.copy()).requires_grad_() for value in leaves.values()]
    for param in params:
        param.grad = param.detach().clone()
    return torch.optim.Adam(params, 1e-3, fused=True).step
