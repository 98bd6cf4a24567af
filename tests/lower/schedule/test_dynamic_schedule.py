"""CPU schedules of kernels with dynamic sizes, against NumPy in float64: every rule, several processors and sizes."""

import ctypes
import itertools

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import ir, te, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype
from tvmfun.core import dims, expressions
from tvmfun.lower.codegen import native
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.schedule.cpu.rules import RULE, schedule
from tvmfun.ops import conv, index
from tvmfun.ops.bits import threefry2x32
from tvmfun.ops.dot import dot_general

TARGETS = {
    "generic": {"kind": "llvm", "num-cores": 2},
    "avx2": {"kind": "llvm", "mcpu": "haswell", "num-cores": 2},
    "host": {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2},
}
B, M = Dim("b"), Dim("m")
RNG = np.random.default_rng(11)


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(dtype) if "int" in dtype else RNG.standard_normal(shape).astype(dtype)


class Kernel:
    """A scheduled and compiled function of tensors, inputs first; called with arrays and the dynamic sizes."""

    def __init__(self, inputs: list, output: te.Tensor, target: str = "host") -> None:
        self.output = output
        self.sizes = dims.names(*(tuple(map(expressions.to_size, tensor.shape)) for tensor in (*inputs, output)))
        func = te.create_prim_func([*inputs, *map(expressions.of_size, self.sizes.values()), output])
        where = tvm.target.Target(TARGETS[target])
        self.func = schedule(func, where)
        self.rule = self.func.attrs[RULE]
        module = native.compiled(where, {ir.GlobalVar("kernel"): self.func.with_attr("global_symbol", "kernel")})
        self.run = module.get_function("kernel")

    def __call__(self, *arrays: np.ndarray, **sizes: int) -> np.ndarray:
        shape = [dims.at(expressions.to_size(size), sizes) for size in self.output.shape]
        # Wrong stores must show, so the output starts out as something unlikely.
        out = tvm.runtime.tensor(np.full(shape, 77).astype(str(self.output.dtype)))
        tensors = list(map(tvm.runtime.tensor, arrays))
        pointer = lambda tensor: ctypes.c_void_p(tensor.data_ptr())
        self.run(*map(pointer, tensors), *(sizes[name] for name in self.sizes), pointer(out))
        return out.numpy()


def placeholder(*shape, dtype: str = "float32", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype=dtype, name=name)


def product(left: str, right: str, sizes: dict, target: str = "host", dtype: str = "float32") -> Kernel:
    """The product over k of two matrices whose axes are named, followed by a bias and a maximum."""
    x, y = (placeholder(*(sizes[n] for n in names), dtype=dtype, name=names) for names in (left, right))
    bias = placeholder(sizes["n"], dtype=dtype, name="bias")
    k = te.reduce_axis((0, sizes["k"]), "k")

    def element(m, n):
        at = {"m": m, "n": n, "k": k}
        return te.sum(x(*(at[name] for name in left)) * y(*(at[name] for name in right)), axis=k)

    total = te.compute((sizes["m"], sizes["n"]), element, name="total")
    zero = tirx.const(0, dtype)
    relu = te.compute(total.shape, lambda m, n: te.max(total[m, n] + bias[n], zero), name="relu")
    return Kernel([x, y, bias], relu, target)


FACTORS = [("mk", "kn"), ("mk", "nk"), ("km", "kn")]
# All for this processor, and every other one for each of the others.
PRODUCTS = [
    pytest.param(dynamic, left, right, target, id=f"{dynamic}-{left}-{right}-{target}")
    for i, (dynamic, (left, right)) in enumerate(itertools.product(["m", "n", "k", "mk", "mnk"], FACTORS))
    for target in ("host", ("avx2", "generic")[i % 2])
]


@pytest.mark.quick("m-mk-nk-host", "n-mk-kn-generic")
@pytest.mark.parametrize(("dynamic", "left", "right", "target"), PRODUCTS)
def test_product(dynamic, left, right, target):
    static = {"m": 13, "n": 37, "k": 29}
    kernel = product(left, right, {n: Dim(n) if n in dynamic else size for n, size in static.items()}, target)
    assert kernel.rule == "contraction"
    for numbers in ((1, 1, 1), (5, 3, 340), (8, 16, 320), (64, 48, 64), (9, 33, 1000)):
        sizes = {n: given if n in dynamic else static[n] for n, given in zip("mnk", numbers, strict=True)}
        x, y = (random(*(sizes[n] for n in names)) for names in (left, right))
        bias = random(sizes["n"])
        expected = np.einsum(f"{left},{right}->mn", x.astype("float64"), y.astype("float64")) + bias
        got = kernel(x, y, bias, **{n: sizes[n] for n in dynamic})
        np.testing.assert_allclose(got, np.maximum(expected, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_product_of_other_dtypes(dtype):
    kernel = product("mk", "kn", {"m": Dim("m"), "n": 20, "k": Dim("k")}, dtype=dtype)
    for m, k in ((1, 700), (30, 30), (100, 1)):
        x, y, bias = random(m, k, dtype=dtype), random(k, 20, dtype=dtype), random(20, dtype=dtype)
        np.testing.assert_allclose(kernel(x, y, bias, m=m, k=k), np.maximum(x @ y + bias, 0), rtol=1e-9, atol=1e-9)


def test_half_precision_adds_up_in_single_precision():
    spec = lambda *shape: ShapeDtype(shape, "float16")
    multiply = lambda x, y: dot_general(x, y, contract=((0,), (0,)), batch=((), ()))
    compiled = tvmfun.jit(multiply).lower(spec("b", 5), spec("b", 40)).compile()
    for b in (1, 33, 2000):
        x, y = random(b, 5).astype("float16"), random(b, 40).astype("float16")
        expected = x.astype("float64").T @ y.astype("float64")
        np.testing.assert_allclose(np.asarray(compiled(x, y)), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.quick("1-19x40-0", "0-7x40-1", "1-7x40-1", "0-7x40-0")
@pytest.mark.parametrize(
    ("dynamic", "shape", "axes"),
    [
        ((0,), (7, 40), (0,)),
        ((0,), (7, 40), (1,)),
        ((1,), (19, 40), (0,)),
        ((1,), (7, 40), (1,)),
        ((0, 1), (7, 40), (0, 1)),
        ((0,), (7, 6, 5, 16), (0, 1, 2)),
        ((0,), (7, 6, 5, 16), (1, 3)),
        ((2,), (3, 16, 5), (1,)),
    ],
)
def test_reduction(dynamic, shape, axes):
    names = [Dim(f"d{i}") if i in dynamic else size for i, size in enumerate(shape)]
    x = placeholder(*names)
    reduced = {i: te.reduce_axis((0, names[i]), f"k{i}") for i in axes}
    kept = [i for i in range(len(shape)) if i not in axes]

    def element(*indices):
        at = {**dict(zip(kept, indices, strict=True)), **reduced}
        return te.sum(x(*(at[i] for i in range(len(shape)))), axis=list(reduced.values()))

    kernel = Kernel([x], te.compute([names[i] for i in kept], element, name="total"))
    assert kernel.rule == "reduction"
    for n in (1, 2, 15, 16, 17, 100, 5000 // (1 if len(shape) < 4 else 20)):
        actual = [n + 3 * i if i in dynamic else size for i, size in enumerate(shape)]
        value = random(*actual)
        got = kernel(value, **{f"d{i}": actual[i] for i in dynamic})
        # Terms of both signs cancel: an error is small beside the sum of their sizes.
        exact, size = value.astype("float64").sum(axes), np.abs(value).sum(axes, dtype="float64")
        np.testing.assert_allclose(got / size, exact / size, rtol=0, atol=1e-6)


@pytest.mark.quick("shape4", "shape1", "shape0")
@pytest.mark.parametrize("shape", [(B,), (B, 16), (B, 10), (3, B), (B, M), (4, B, 3), (2, B, M), (B, M, 5)])
def test_map(shape):
    x = placeholder(*shape)
    kernel = Kernel([x], te.compute(shape, lambda *i: te.exp(x(*i)) + tirx.const(1, "float32"), name="y"))
    assert kernel.rule == "elementwise"
    for b in (1, 7, 16, 100, 3000):
        sizes = {"b": b, "m": 3}
        value = random(*dims.at(shape, sizes)) / 4
        got = kernel(value, **{name: sizes[name] for name in kernel.sizes})
        np.testing.assert_allclose(got, np.exp(value.astype("float64")) + 1, rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, B, 4), (B, M), (2, B, M), (B, M, 5)])
def test_vectors_of_a_map_are_contiguous(shape):
    double = lambda x: x * 2
    (function,) = kernels(double, (shape, "float64"))
    functions = {tvm.ir.GlobalVar("double"): function.with_attr("global_symbol", "double")}
    built = native.compiled(tvm.target.Target(TARGETS["host"]), functions)
    assert "extractelement" not in built.inspect_source("ll")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * y, x - y),  # two results and one operand that is repeated
        lambda x, y: tnp.exp(x[:, ::-1, ::-1]) * y,
        lambda x, y: tnp.where(x > y, x, y[::-1]) + x[:, :, :1],
        lambda x, y: tnp.concatenate([x, x * 2], axis=1) + tnp.ones((1, 1, 1)),
        lambda x, y: tvmfun.vmap(lambda r: r.at[1:].add(y[1:]))(x),
        lambda x, y: tvmfun.grad(lambda x: (x**3 * y).sum())(x),
        lambda x, y: tvmfun.lax.fori_loop(0, 3, lambda i, c: c * y + 1, x),
    ],
)
@pytest.mark.parametrize("last", ["m", 4])
def test_maps_over_joined_axes_are_those_of_static_sizes(function, last):
    specs = [ShapeDtype(shape, "float64") for shape in ((3, "b", last), ("b", last))]
    compiled = tvmfun.jit(function).lower(*specs).compile()
    for b, m in ((1, 1), (2, 4), (7, 4), (33, 4), (600, 4)):
        arguments = [np.random.default_rng(b).normal(size=shape) for shape in ((3, b, 4), (b, 4))]
        if last == "m":
            arguments = [x[..., :m] for x in arguments]
        elif m != 4:
            continue
        got, expected = (tvmfun.tree.leaves(f(*arguments)) for f in (compiled, tvmfun.jit(function)))
        for ours, static in zip(got, expected, strict=True):
            np.testing.assert_allclose(ours, static, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [(B, 40), (40, B), (B, M), (3, B, 20)])
def test_transpose(shape):
    x = placeholder(*shape)
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    turned = [shape[i] for i in order]
    kernel = Kernel([x], te.compute(turned, lambda *i: x(*(i[k] for k in order)) * 2, name="turned"))
    for b, m in ((1, 1), (15, 40), (16, 16), (17, 3), (100, 70)):
        sizes = {"b": b, "m": m}
        value = random(*dims.at(shape, sizes))
        got = kernel(value, **{name: sizes[name] for name in kernel.sizes})
        np.testing.assert_array_equal(got, value.transpose(order) * 2)


def kernels(function, *specs):
    """The scheduled kernels of a function of tvmfun."""
    program = tvmfun.trace(function)(*(ShapeDtype(shape, dtype) for shape, dtype in specs))
    target = tvm.target.Target(TARGETS["host"])
    return [schedule(kernel.prim_func(), target) for kernel in fuse(program) if not kernel.is_view]


IMAGES, WEIGHTS = ((B, 28, 28, 8), "float32"), ((3, 3, 8, 32), "float32")
# Fewer channels than a vector of any processor has numbers.
FEW_CHANNELS = ((B, 28, 28, 3), "float32")
CONV = {
    "stride": (1, 1),
    "padding": ((0, 0), (0, 0)),
    "dilation": (1, 1),
    "kernel_dilation": (1, 1),
    "groups": 1,
}
POOL = {"window": (1, 2, 2, 1), "stride": (1, 2, 2, 1), "padding": ((0, 0),) * 4}
KEY = ((2,), "uint32")


@pytest.mark.parametrize(
    ("rule", "function", "specs"),
    [
        ("contraction", lambda x, w: conv.conv(x, w, **CONV), (IMAGES, WEIGHTS)),
        (
            "contraction",
            lambda x, g: conv.conv_kernel_gradient(x, g, kernel=(3, 3), **CONV),
            (IMAGES, ((B, 26, 26, 32), "float32")),
        ),
        ("elementwise", lambda x: conv.window_max(x, **POOL), (FEW_CHANNELS,)),
        ("elementwise", lambda x, o: conv.window_argmax(x, o, **POOL), (FEW_CHANNELS, ((B, 14, 14, 3), "float32"))),
        ("elementwise", lambda k: threefry2x32(k, k, shape=(B, 3000), word="xor"), (KEY,)),
        ("elementwise", lambda x, i: index.gather(x, i, mode="clip"), (((9, 4000), "float32"), ((B, 1), "int32"))),
    ],
)
def test_rules(rule, function, specs):
    (function,) = kernels(function, *specs)
    assert function.attrs[RULE] == rule
    assert "T.parallel" in function.script()


def test_no_code_for_a_rest_that_there_cannot_be():
    double = lambda x: x * 2
    (even,), (odd,) = (kernels(double, ((B, n), "float32")) for n in (784, 10))
    stores = [str(function.script()).count("] = ") for function in (even, odd)]
    assert stores == [1, 2]


def test_the_sizes_are_arguments_between_inputs_and_outputs():
    (function,) = kernels(lambda x, y: x[:, None] + y, ((B,), "float32"), ((M,), "float32"))
    names = [param.name for param in function.params]
    assert names[2:4] == ["b", "m"]
    assert all(str(param.ty) == "int32" for param in function.params[2:4])


@pytest.mark.slow
@settings(max_examples=20)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    dynamic=st.integers(0, 2),
    sizes=st.lists(st.integers(1, 60), min_size=3, max_size=3),
    divisor=st.sampled_from([1, 2, 3]),
)
def test_sizes_that_are_computed(shape, dynamic, sizes, divisor):
    """A kernel whose shapes are quotients and multiples of a size."""
    place = dynamic % len(shape)
    names = [3 * B if i == place else n for i, n in enumerate(shape)]
    x = placeholder(*names)
    half = [n // divisor if i == place else n for i, n in enumerate(names)]
    kernel = Kernel([x], te.compute(half, lambda *i: x(*i) + x(*i), name="part"))
    for b in sizes:
        value = random(*dims.at(tuple(names), {"b": b}))
        cut = [slice(0, dims.at(n, {"b": b})) for n in half]
        np.testing.assert_array_equal(kernel(value, b=b), value[tuple(cut)] * 2)
