"""Speed of the CPU schedules on the shapes that matter, next to this machine's GEMM peak and PyTorch.

Run with `pytest -o python_files="bench_*.py" -o norecursedirs= -s tests/bench/bench_cpu_kernels.py`.
"""

import os
import time

os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))

import numpy as np
import pytest
import tvm
from support.te_kernels import compile_te
from tvm import te, tirx

torch = pytest.importorskip("torch")

CORES = len(os.sched_getaffinity(0))
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": CORES})
F = torch.nn.functional


def best(call, repeats=30):
    """The shortest of some timed calls, in seconds: the machine is shared, so the mean says little."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times[3:])


def build(inputs, outputs):
    """The compiled kernel of some te tensors as a call without arguments."""
    _, kernel = compile_te([*inputs, *outputs], TARGET)
    rng = np.random.default_rng(0)
    arrays = [rng.random([int(size) for size in t.shape], dtype="float32") for t in (*inputs, *outputs)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    return lambda: kernel(*tensors)


def tensor(*shape, name="x"):
    return te.placeholder(shape, "float32", name=name)


def axes(*extents):
    return [te.reduce_axis((0, extent), f"r{i}") for i, extent in enumerate(extents)]


def gemm(m, n, k, layout="nn", batch=()):
    """Batched matrix product; `t` in the layout marks an operand stored transposed."""
    a = tensor(*batch, *((m, k) if layout[0] == "n" else (k, m)), name="a")
    b = tensor(*batch, *((k, n) if layout[1] == "n" else (n, k)), name="b")
    (r,) = axes(k)

    def element(*at):
        *g, i, j = at
        left = a[(*g, i, r)] if layout[0] == "n" else a[(*g, r, i)]
        right = b[(*g, r, j)] if layout[1] == "n" else b[(*g, j, r)]
        return te.sum(left * right, axis=r)

    x, y = (torch.rand([int(size) for size in t.shape]) for t in (a, b))
    left, right = x if layout[0] == "n" else x.mT, y if layout[1] == "n" else y.mT
    work = 2 * m * n * k * int(np.prod(batch))
    return build([a, b], [te.compute((*batch, m, n), element)]), lambda: left @ right, work


def conv(n, size, ci, co, pad=0):
    x, w = tensor(n, size, size, ci), tensor(3, 3, ci, co, name="w")
    out = size + 2 * pad - 2
    source = zeros_around(x, pad) if pad else x
    ky, kx, r = axes(3, 3, ci)
    y = te.compute(
        (n, out, out, co),
        lambda b, i, j, k: te.sum(source[b, i + ky, j + kx, r] * w[ky, kx, r, k], axis=[ky, kx, r]),
    )
    xt, wt = channels_last(n, ci, size), channels_last(co, ci, 3)
    return build([x, w], [y]), lambda: F.conv2d(xt, wt, padding=pad), 2 * n * out * out * co * 9 * ci


def conv_input_gradient(n, size, ci, co):
    out = size - 2
    g, w = tensor(n, out, out, co, name="g"), tensor(3, 3, ci, co, name="w")
    padded = zeros_around(g, 2)
    ky, kx, r = axes(3, 3, co)
    dx = te.compute(
        (n, size, size, ci),
        lambda b, i, j, k: te.sum(padded[b, i + ky, j + kx, r] * w[2 - ky, 2 - kx, k, r], axis=[ky, kx, r]),
    )
    gt, wt = channels_last(n, co, out), channels_last(co, ci, 3)
    call = lambda: torch.nn.grad.conv2d_input((n, ci, size, size), wt, gt)
    return build([g, w], [dx]), call, 2 * n * size * size * ci * 9 * co


def conv_weight_gradient(n, size, ci, co):
    out = size - 2
    x, g = tensor(n, size, size, ci), tensor(n, out, out, co, name="g")
    b, i, j = axes(n, out, out)
    dw = te.compute(
        (3, 3, ci, co), lambda ky, kx, r, k: te.sum(x[b, i + ky, j + kx, r] * g[b, i, j, k], axis=[b, i, j])
    )
    xt, gt = channels_last(n, ci, size), channels_last(n, co, out)
    call = lambda: torch.nn.grad.conv2d_weight(xt, (co, ci, 3, 3), gt)
    return build([x, g], [dw]), call, 2 * n * out * out * ci * 9 * co


def zeros_around(x, pad):
    n, h, w, c = (int(size) for size in x.shape)

    def element(b, i, j, k):
        inside = tirx.all(i >= pad, i < h + pad, j >= pad, j < w + pad)
        return tirx.if_then_else(inside, x[b, i - pad, j - pad, k], tirx.const(0.0, "float32"))

    return te.compute((n, h + 2 * pad, w + 2 * pad, c), element)


def channels_last(n, c, size):
    return torch.rand(n, c, size, size).to(memory_format=torch.channels_last)


def project(batch, length, width, out):
    x, w = tensor(batch, length, width), tensor(width, out, name="w")
    (r,) = axes(width)
    y = te.compute((batch, length, out), lambda b, i, j: te.sum(x[b, i, r] * w[r, j], axis=r))
    xt, wt = torch.rand(batch, length, width), torch.rand(width, out)
    return build([x, w], [y]), lambda: xt @ wt, 2 * batch * length * width * out


def project_weight_gradient(batch, length, width, out):
    x, g = tensor(batch, length, width), tensor(batch, length, out, name="g")
    b, s = axes(batch, length)
    y = te.compute((width, out), lambda i, j: te.sum(x[b, s, i] * g[b, s, j], axis=[b, s]))
    xt, gt = torch.rand(batch * length, width), torch.rand(batch * length, out)
    return build([x, g], [y]), lambda: xt.T @ gt, 2 * batch * length * width * out


FLOPS = {
    "conv 1->32": lambda: conv(64, 28, 1, 32),
    "conv 32->64": lambda: conv(64, 26, 32, 64),
    "conv 64->64, padded": lambda: conv(8, 56, 64, 64, pad=1),
    "conv 32->64, input gradient": lambda: conv_input_gradient(64, 26, 32, 64),
    "conv 32->64, weight gradient": lambda: conv_weight_gradient(64, 26, 32, 64),
    "conv 1->32, weight gradient": lambda: conv_weight_gradient(64, 28, 1, 32),
    "fc 9216->128": lambda: gemm(64, 128, 9216),
    "fc 9216->128, input gradient": lambda: gemm(64, 9216, 128, "nt"),
    "fc 9216->128, weight gradient": lambda: gemm(9216, 128, 64, "tn"),
    "fc 128->10": lambda: gemm(64, 10, 128),
    "fc 784->512": lambda: gemm(128, 512, 784),
    "fc 784->512, weight gradient": lambda: gemm(784, 512, 128, "tn"),
    "fc 512->512, input gradient": lambda: gemm(128, 512, 512, "nt"),
    "projection 256->1024": lambda: project(8, 128, 256, 1024),
    "projection, weight gradient": lambda: project_weight_gradient(8, 128, 256, 1024),
    "attention scores": lambda: gemm(128, 128, 64, "nt", (32,)),
    "attention values": lambda: gemm(128, 64, 128, "nn", (32,)),
}


def softmax(rows, width, log=False):
    x = tensor(rows, width)
    (r,), (s,) = axes(width), axes(width)
    top = te.compute((rows,), lambda i: te.max(x[i, r], axis=r))
    exp = te.compute((rows, width), lambda i, j: tirx.exp(x[i, j] - top[i]))
    total = te.compute((rows,), lambda i: te.sum(exp[i, s], axis=s))
    if log:
        out = te.compute((rows, width), lambda i, j: x[i, j] - top[i] - tirx.log(total[i]))
    else:
        out = te.compute((rows, width), lambda i, j: exp[i, j] / total[i])
    xt = torch.rand(rows, width)
    call = F.log_softmax if log else F.softmax
    return build([x], [out]), lambda: call(xt, -1), 8 * rows * width


def layer_norm(rows, width):
    x = tensor(rows, width)
    (r,), (s,) = axes(width), axes(width)
    mean = te.compute((rows,), lambda i: te.sum(x[i, r] / width, axis=r))
    var = te.compute((rows,), lambda i: te.sum((x[i, s] - mean[i]) * (x[i, s] - mean[i]) / width, axis=s))
    out = te.compute((rows, width), lambda i, j: (x[i, j] - mean[i]) / tirx.sqrt(var[i] + 1e-5))
    xt = torch.rand(rows, width)
    return build([x], [out]), lambda: F.layer_norm(xt, (width,)), 8 * rows * width


def column_sum(rows, width):
    x = tensor(rows, width)
    (r,) = axes(rows)
    xt = torch.rand(rows, width)
    out = te.compute((width,), lambda j: te.sum(x[r, j], axis=r))
    return build([x], [out]), lambda: xt.sum(0), 4 * rows * width


def max_pool(n, size, c):
    x = tensor(n, size, size, c)
    a, b = axes(2, 2)
    half = (n, size // 2, size // 2, c)
    out = te.compute(half, lambda m, i, j, k: te.max(x[m, 2 * i + a, 2 * j + b, k], axis=[a, b]))
    xt = channels_last(n, c, size)
    return build([x], [out]), lambda: F.max_pool2d(xt, 2), 5 * n * size * size * c


def adadelta(*shape):
    w, g, a, b = (tensor(*shape, name=name) for name in "wgab")
    a2 = te.compute(shape, lambda *i: a[i] * 0.9 + g[i] * g[i] * 0.1)
    step = te.compute(shape, lambda *i: tirx.sqrt(b[i] + 1e-6) / tirx.sqrt(a2[i] + 1e-6) * g[i])
    b2 = te.compute(shape, lambda *i: b[i] * 0.9 + step[i] * step[i] * 0.1)
    w2 = te.compute(shape, lambda *i: w[i] - step[i])
    weight = torch.nn.Parameter(torch.rand(*shape))
    weight.grad = torch.rand(*shape)
    optimizer = torch.optim.Adadelta([weight], foreach=True)
    return build([w, g, a, b], [a2, b2, w2]), optimizer.step, 28 * int(np.prod(shape))


def transpose(rows, width):
    x = tensor(rows, width)
    xt = torch.rand(rows, width)
    out = te.compute((width, rows), lambda i, j: x[j, i])
    return build([x], [out]), lambda: xt.T.contiguous(), 8 * rows * width


def pointwise(function, reference):
    def make():
        x = tensor(1 << 20)
        xt = torch.rand(1 << 20)
        return build([x], [te.compute((1 << 20,), lambda i: function(x[i]))]), lambda: reference(xt), 8 << 20

    return make


BYTES = {
    "log_softmax 64x10": lambda: softmax(64, 10, log=True),
    "softmax 4096x128": lambda: softmax(4096, 128),
    "layer norm 1024x256": lambda: layer_norm(1024, 256),
    "bias gradient 36864x64": lambda: column_sum(64 * 24 * 24, 64),
    "max pool 64x24x24x64": lambda: max_pool(64, 24, 64),
    "Adadelta 9216x128": lambda: adadelta(9216, 128),
    "transpose 1024x1024": lambda: transpose(1024, 1024),
    "exp": pointwise(tirx.exp, torch.exp),
    "log": pointwise(tirx.log, torch.log),
    "tanh": pointwise(tirx.tanh, torch.tanh),
    "erf": pointwise(tirx.erf, torch.erf),
    "sigmoid": pointwise(tirx.sigmoid, torch.sigmoid),
}


def report(name, work, ours, theirs, unit):
    print(
        f"{name:32s} {work / ours / 1e9:7.1f} {unit}  {ours * 1e6:8.1f} us"
        f"   torch {work / theirs / 1e9:7.1f} {unit}  {theirs * 1e6:8.1f} us"
    )


def test_peak():
    ours, theirs, work = gemm(768, 768, 768)
    print()
    report("GEMM 768^3 (the peak)", work, best(ours), best(theirs), "GFLOP/s")


@pytest.mark.parametrize("name", FLOPS)
def test_contractions(name):
    ours, theirs, work = FLOPS[name]()
    print()
    report(name, work, best(ours), best(theirs), "GFLOP/s")


@pytest.mark.parametrize("name", BYTES)
def test_memory(name):
    ours, theirs, work = BYTES[name]()
    print()
    report(name, work, best(ours), best(theirs), "GB/s")
