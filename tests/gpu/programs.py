"""Functions that are compared with the CPU on a GPU: ops, their derivatives, and programs in which kernels meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from op_cases import CASES

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, nn, random
from tvmfun.core.op import REGISTRY

#: Decompositions whose results are unique; vectors may have any sign, so products of them are compared.
DECOMPOSITIONS: dict[str, Callable] = {
    "cholesky": lambda a: tnp.linalg.cholesky(a @ tnp.matrix_transpose(a) + 9 * tnp.eye(a.shape[-1])),
    "inv": tnp.linalg.inv,
    "qr": tnp.linalg.qr,
    "eigvalsh": tnp.linalg.eigvalsh,
    "svd": lambda a: (lambda u, s, vt: (u * s[..., None, :] @ vt, s, vt @ tnp.matrix_transpose(vt)))(
        *tnp.linalg.svd(a, full_matrices=False)
    ),
}


class Comparison(NamedTuple):
    """A function to compare.

    Args:
        name: its name.
        function: the function.
        arguments: its arguments.
        is_exact: whether its results have to be the CPU's to the last bit.
        format: the least exact format in which it computes float32 results.
        dynamic_shapes: the axes of dynamic size, as ``jit`` has them.
    """

    name: str
    function: Callable
    arguments: tuple[np.ndarray, ...]
    is_exact: bool = False
    format: str = "float32"
    dynamic_shapes: tuple = ()


@cache
def comparisons() -> dict[str, Comparison]:
    """All of them, by name."""
    return {one.name: one for one in (*_ops(), *_derivatives(), *_programs(), *_decompositions(), *_dynamic())}


def _narrow(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype == np.float64 else value


def without_signs(name: str, results: Any) -> Any:
    """The results of an op; eigenvectors and singular vectors without their signs, which rounding decides."""
    if name not in ("eigh", "svd") or not isinstance(results, tuple):
        return results
    values = min(results, key=lambda part: part.ndim)
    return tuple(part if part is values else tnp.abs(part) for part in results)


def _ops() -> Iterator[Comparison]:
    for name, cases in CASES.items():

        def call(*arguments: Any, name: str, params: dict[str, Any]) -> Any:
            return without_signs(name, REGISTRY[name](*arguments, **params))

        for i, case in enumerate(cases):
            one = partial(call, name=name, params=case.params)
            yield Comparison(f"{name}-{i}", one, case.arguments, case.exact)
        if any(x.dtype == np.float64 for x in cases[0].arguments) and name != "bitcast":
            one = partial(call, name=name, params=cases[0].params)
            yield Comparison(f"{name}-0 in float32", one, tuple(map(_narrow, cases[0].arguments)))


def _pulled(function: Callable, *x: Any) -> Any:
    """The cotangents of ``x`` for cotangents that depend on it."""
    results, pull = tvmfun.vjp(function, *x)
    return pull([tnp.cos(y) for y in results])


def _derivatives() -> Iterator[Comparison]:
    """The derivatives to second order of the first case of each op, in float64."""
    for name, (case, *_) in CASES.items():
        op = REGISTRY[name]
        floats = [i for i, x in enumerate(case.arguments) if x.dtype == np.float64]
        if not (case.order and op.vjp and floats):
            continue

        def of_floats(*values: Any, op=op, case=case, floats=floats) -> list:
            full: list[Any] = list(map(tnp.asarray, case.arguments))
            for i, value in zip(floats, values, strict=True):
                full[i] = value
            results = without_signs(op.name, op(*full, **case.params))
            results = results if isinstance(results, tuple) else (results,)
            return [result for result in results if dtypes.is_float(result.dtype)]

        def derivatives(*values: Any, of_floats=of_floats, is_twice=case.order > 1) -> Any:
            first = partial(_pulled, of_floats)
            tangents = tuple(tnp.sin(3 * value) for value in values)
            return tvmfun.jvp(first if is_twice else of_floats, values, tangents)

        values = tuple(case.arguments[i] for i in floats)
        if tvmfun.eval_shape(of_floats, *values):
            yield Comparison(f"{name}: derivatives", derivatives, values)


def _draw(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _products() -> Iterator[Comparison]:
    """Products of odd and even sizes, in each dtype, transposed, batched and with many terms."""
    shapes = {
        "tails": ((93, 141), (141, 75)),
        "even": ((128, 256), (256, 192)),
        "many terms": ((16, 8200), (8200, 24)),
        "batched": ((5, 33, 40), (5, 40, 65)),
        "vector": ((300, 129), (129,)),
    }
    for name, (left, right) in shapes.items():
        x, y = _draw(*left), _draw(*right, seed=1)
        for dtype in ("float32", "tensorfloat32", "bfloat16", "float16", "int8"):
            if dtype == "int8":
                x, y = (10 * x).astype(np.int8), (10 * y).astype(np.int8)
                call: Callable = lambda x, y: lax.dot(x, y, preferred_element_type="int32") if x.ndim == 2 else x @ y
            elif dtype == "tensorfloat32":
                call = lambda x, y: tnp.matmul(x, y, precision="tensorfloat32")
            else:
                call = lambda x, y, dtype=dtype: x.astype(dtype) @ y.astype(dtype)
            is_exact = dtype == "int8"
            yield Comparison(f"product, {name}, {dtype}", call, (x, y), is_exact, "float32" if is_exact else dtype)
    x, y = _draw(70, 90), _draw(70, 50, seed=1)
    yield Comparison("product, transposed left", lambda x, y: x.T @ y, (x, y))
    yield Comparison("product, transposed right", lambda x, y: x @ y.T, (_draw(70, 90), _draw(50, 90)))
    gelu = lambda x, w, b: nn.functional.gelu(x @ w + b) + x[:, :1]
    yield Comparison("product, epilogue", gelu, (_draw(65, 33), _draw(33, 130), _draw(130)))


def _convolution(x: Any, w: Any, stride: int = 1) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=numbers)


def _networks() -> Iterator[Comparison]:
    """Parts of networks with their gradients."""
    images, kernels = _draw(2, 17, 15, 24), _draw(3, 3, 24, 40, seed=1) * 0.1
    for stride in (1, 2):
        loss = lambda x, w, stride=stride: tnp.sum(tnp.sin(_convolution(x, w, stride)))
        yield Comparison(f"convolution, stride {stride}", tvmfun.value_and_grad(loss, (0, 1)), (images, kernels))
    q, k, v = (_draw(2, 70, 4, 32, seed=i) for i in range(3))
    for name, options in {"": {}, ", causal": {"is_causal": True}}.items():
        for dtype in ("float32", "bfloat16"):

            def attend(q: Any, k: Any, v: Any, options: Any = options, dtype: str = dtype) -> Any:
                q, k, v = (x.astype(dtype) for x in (q, k, v))
                mixed = nn.functional.dot_product_attention(q, k, v, **options)
                return tnp.sum(tnp.sin(mixed.astype("float32")))

            gradients = tvmfun.value_and_grad(attend, (0, 1, 2))
            yield Comparison(f"attention, {dtype}{name}", gradients, (q, k, v), format=dtype)
    logits, labels = _draw(40, 3001), np.arange(40, dtype=np.int32) * 7
    entropy = lambda x, y: tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(x, y))
    yield Comparison("cross-entropy", tvmfun.value_and_grad(entropy), (logits, labels))
    norm = lambda x, s: tnp.sum(tnp.cos((x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1e-5) * s))
    yield Comparison("layer norm", tvmfun.value_and_grad(norm, (0, 1)), (_draw(37, 770), _draw(770)))

    def recurrent(w: Any, h: Any, xs: Any) -> Any:
        return tnp.mean(lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, h, xs)[1] ** 2)

    yield Comparison("scan", tvmfun.value_and_grad(recurrent), (_draw(60, 60) * 0.1, _draw(9, 60), _draw(12, 9, 60)))


def _programs() -> Iterator[Comparison]:
    yield from _products()
    yield from _networks()
    key = np.asarray([1, 7], np.uint32)
    yield Comparison("bits", lambda key: random.bits(key, (1001,)), (key,), True)
    yield Comparison("normal", lambda key: random.normal(key, (513,)), (key,))
    yield Comparison("permutation", lambda key: random.permutation(key, 300), (key,), True)
    rows = np.asarray([0, 5, 0, 299, 7, 5], np.int32)
    scatter = lambda x, i, y: (x.at[i].add(y), x[i], x.at[i].max(y))
    yield Comparison("rows", scatter, (_draw(300, 65), rows, _draw(6, 65, seed=2)))
    yield Comparison("sort", lambda x: (tnp.sort(x), tnp.argsort(x), tnp.cumsum(x, 1)), (_draw(5, 700),))
    until = lambda x: lax.while_loop(lambda c: tnp.sum(c) < 30.0, lambda c: c + tnp.tanh(c) ** 2, x)
    yield Comparison("while", until, (np.linspace(0.1, 1, 7, dtype=np.float32),))
    branch = lambda i, x: lax.switch(i, [tnp.sin, tnp.cos, lambda x: x * 2], x)
    yield Comparison("switch", branch, (np.asarray(2, np.int32), _draw(9)))
    yield Comparison("no elements", lambda x, y: (x @ y, tnp.sum(x), x[:0] + 1), (_draw(3, 0), _draw(0, 4)))


def _matrices(count: int, n: int) -> np.ndarray:
    """Matrices that rounding errors hardly change more than themselves: singular values are between 1 and 5."""
    return _draw(count, n, n) / np.float32(n**0.5) + 3 * np.eye(n, dtype="float32")


def _decompositions() -> Iterator[Comparison]:
    """Decompositions whose matrices are in registers, and larger ones, which are arrays of the kernel."""
    for name, function in DECOMPOSITIONS.items():
        for n in (5, 70):
            yield Comparison(f"{name} of {n} rows", function, (_matrices(33, n),))
    for name in ("cholesky", "inv"):
        dynamic = ({0: "b", 1: "n", 2: "n"},)
        yield Comparison(f"dynamic: {name}", DECOMPOSITIONS[name], (_matrices(4, 33),), dynamic_shapes=dynamic)


def _dynamic() -> Iterator[Comparison]:
    """Programs that are compiled for all sizes."""
    both, first = {0: "b", 1: "n"}, {0: "b"}
    order = lambda x: (tnp.sort(x), tnp.argsort(x), tnp.cumsum(x, 1), lax.top_k(x, 3))
    yield Comparison("dynamic: order", order, (_draw(9, 300),), dynamic_shapes=({0: "b", 1: tvmfun.Dim("n", min=3)},))
    sums = lambda x: (tnp.exp(x) * x.shape[0], x.sum(0), nn.functional.softmax(x), tnp.mean(x))
    yield Comparison("dynamic: sums", sums, (_draw(130, 70),), dynamic_shapes=(both,))
    loss = lambda w, x: tnp.mean(nn.functional.gelu(x @ w) ** 2)
    yield Comparison(
        "dynamic: step", tvmfun.value_and_grad(loss), (_draw(40, 24), _draw(97, 40)), dynamic_shapes=(None, first)
    )
    loop = lambda w, xs: lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, tnp.zeros(xs.shape[1:]), xs)
    yield Comparison("dynamic: scan", loop, (_draw(16, 16) / 8, _draw(9, 5, 16)), dynamic_shapes=(None, both))
    until = lambda x: lax.while_loop(lambda c: tnp.sum(c * c) < 90.0, lambda c: 1.5 * c + tnp.sum(c) / c.shape[0], x)
    yield Comparison("dynamic: while", until, (np.linspace(0.1, 1, 7, dtype=np.float32),), dynamic_shapes=(first,))
    images, kernel = _draw(3, 12, 10, 6), _draw(3, 3, 6, 16, seed=1) * 0.1
    gradient = tvmfun.value_and_grad(lambda w, x: tnp.sum(tnp.sin(_convolution(x, w))))
    yield Comparison("dynamic: convolution", gradient, (kernel, images), dynamic_shapes=(None, first))
