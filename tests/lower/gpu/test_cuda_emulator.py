"""The emulator of GPUs by itself: kernels written by hand, against NumPy, and kernels that are wrong."""

import re

import ml_dtypes
import numpy as np
import pytest
from support.cuda_emulator import GXX, EmulationError, run
from support.cuda_emulator.translate import translate
from tvm import tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, nn
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import lowering

pytestmark = pytest.mark.skipif(GXX is None, reason="there is no g++, which compiles the emulated kernels")

SUM = r"""
extern "C" __global__ void __launch_bounds__(256) total(float* out, const float* x, int n) {
  __shared__ float parts[8];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  for (int by = 16; by; by /= 2) sum += __shfl_down_sync(0xffffffff, sum, by);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
    for (int i = 0; i < 8; i++) sum += parts[i];
    out[0] = sum;
  }
}
"""


@pytest.mark.slow
def test_a_sum_by_shuffles_and_shared_memory():
    x, out = np.random.default_rng(0).normal(size=1000).astype(np.float32), np.zeros(1, np.float32)
    run(SUM, "total", 1, 256, 0, [out, x, 1000])
    np.testing.assert_allclose(out, [x.sum()], rtol=1e-5)


def test_a_missing_barrier_is_a_race():
    x, out = np.ones(1000, np.float32), np.zeros(1, np.float32)
    with pytest.raises(EmulationError, match="argument 0 depends on the order of threads"):
        run(SUM.replace("__syncthreads();", ""), "total", 1, 256, 0, [out, x, 1000])


# Products by tensor cores of 32 x 16 times 16 x 16 numbers by two warps, with fragments loaded by `ldmatrix` from
# shared memory, which `cp.async` fills.
TENSOR_CORES = r"""
#include <cuda_bf16.h>
extern "C" __global__ void product(float* c, const TYPE* a, const TYPE* b) {
  extern __shared__ __align__(16) TYPE memory[];
  TYPE *shared_a = memory, *shared_b = memory + 32 * 16;
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  unsigned to = __cvta_generic_to_shared(shared_a + thread * 8);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(a + thread * 8));
  if (thread < 32) {
    to = __cvta_generic_to_shared(shared_b + thread * 8);
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %2, 0;"
        " @p cp.async.cg.shared.global [%0], [%1], 16; }\n" ::"r"(to), "l"(b + thread * 8), "r"(1));
  }
  asm volatile("cp.async.commit_group;\n" ::);
  asm volatile("cp.async.wait_group %0;\n" ::"n"(0));
  __syncthreads();
  unsigned x[4], y[2];
  unsigned at = __cvta_generic_to_shared(shared_a + (warp * 16 + lane % 16) * 16 + lane / 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
  for (int j = 0; j < 2; j++) {
    at = __cvta_generic_to_shared(shared_b + lane % 16 * 16 + j * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(y[0]), "=r"(y[1]) : "r"(at));
    float d[4] = {1, 1, 1, 1};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.PTX.PTX.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    float* row = c + (warp * 16 + lane / 4) * 16 + j * 8 + lane % 4 * 2;
    row[0] = d[0], row[1] = d[1], row[8 * 16] = d[2], row[8 * 16 + 1] = d[3];
  }
}
"""
FORMATS = {"bf16": ("__nv_bfloat16", ml_dtypes.bfloat16), "f16": ("half", np.float16)}


def product(source, name):
    of, dtype = FORMATS[name]
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(32, 16)).astype(dtype), draw.normal(size=(16, 16)).astype(dtype)
    c = np.zeros((32, 16), np.float32)
    run(source.replace("TYPE", of).replace("PTX", name), "product", 1, 64, 3 * 16 * 16 * 2, [c, a, b])
    return c, a.astype(np.float32) @ b.astype(np.float32) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_products_on_tensor_cores(name):
    np.testing.assert_allclose(*product(TENSOR_CORES, name), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("line", ['asm volatile("cp.async.wait_group %0;\\n" ::"n"(0));', "__syncthreads();"])
def test_reading_what_is_still_copied_is_a_race(line):
    assert line in TENSOR_CORES
    source = TENSOR_CORES.replace(line, "")
    with pytest.raises(EmulationError, match="depends on the order of threads"):
        product(source, "f16")


TF32 = r"""
extern "C" __global__ void product(float* c, const float* a, const float* b) {
  int lane = threadIdx.x, group = lane / 4, within = lane % 4;
  unsigned x[4], y[2];
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; i++) {
    float value = a[(group + i % 2 * 8) * 8 + within + i / 2 * 4];
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(value));
  }
  for (int i = 0; i < 2; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[i]) : "f"(b[(within + i * 4) * 8 + group]));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]),
                 "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
  for (int i = 0; i < 4; i++) c[(group + i / 2 * 8) * 8 + within * 2 + i % 2] = d[i];
}
"""


@pytest.mark.slow
def test_products_of_tf32_have_ten_bits():
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
    c = np.zeros((16, 8), np.float32)
    run(TF32, "product", 1, 32, 0, [c, a, b])

    def rounded(x):
        return ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)

    np.testing.assert_allclose(c, rounded(a) @ rounded(b), rtol=1e-5, atol=1e-6)
    assert np.abs(c - a @ b).max() > 1e-5


TRANSPOSE = r"""
template <int size>
__global__ void transpose(float* y, const float* x, int rows, int columns) {
  __shared__ float tile[size][size + 1];
  int column = blockIdx.x * size + threadIdx.x, row = blockIdx.y * size + threadIdx.y;
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
  __syncthreads();
  row = blockIdx.x * size + threadIdx.y, column = blockIdx.y * size + threadIdx.x;
  if (row < columns && column < rows) y[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}
"""


@pytest.mark.slow
def test_an_instance_of_a_template():
    x = np.arange(37 * 50, dtype=np.float32).reshape(37, 50)
    y = np.zeros((50, 37), np.float32)
    run(TRANSPOSE, "transpose<16>", (4, 3), (16, 16), 0, [y, x, 37, 50])
    np.testing.assert_array_equal(y, x.T)


EXCHANGES = r"""
extern "C" __global__ void exchanges(int* out, const int* x, unsigned* counts, float* sum) {
  int i = threadIdx.x;
  out[i] = __shfl_sync(~0u, x[i], 3, 8);
  out[64 + i] = __shfl_up_sync(~0u, x[i], 2);
  out[128 + i] = __shfl_xor_sync(~0u, x[i], 5);
  out[192 + i] = (int)__ballot_sync(~0u, x[i] % 2);
  out[256 + i] = __reduce_max_sync(~0u, x[i]);
  out[320 + i] = __any_sync(~0u, x[i] == 7) + 2 * __all_sync(~0u, x[i] < 1000);
  atomicAdd(&counts[x[i] % 4], 1u);
  atomicMax(&counts[4], (unsigned)x[i]);
  if (i < 8) atomicAdd(sum, __shfl_down_sync(0xff, 1.0f * i, 1, 8));
}
"""


@pytest.mark.slow
def test_exchanges_votes_and_atomics():
    x = np.random.default_rng(0).permutation(100)[:64].astype(np.int32)
    out, counts, total = np.zeros((6, 64), np.int32), np.zeros(5, np.uint32), np.zeros(1, np.float32)
    run(EXCHANGES, "exchanges", 1, 64, 0, [out, x, counts, total])
    lanes, warps = np.arange(64) % 32, x.reshape(2, 32)
    np.testing.assert_array_equal(out[0], x.reshape(8, 8)[:, 3].repeat(8))
    np.testing.assert_array_equal(out[1], np.where(lanes < 2, x, np.roll(x, 2)))
    np.testing.assert_array_equal(out[2], x[np.arange(64) ^ 5])
    ballots = [(warp % 2) @ (1 << np.arange(32)) for warp in warps]
    np.testing.assert_array_equal(out[3].view(np.uint32), np.repeat(ballots, 32))
    np.testing.assert_array_equal(out[4], warps.max(1).repeat(32))
    np.testing.assert_array_equal(out[5], (warps == 7).any(1).repeat(32) + 2)
    np.testing.assert_array_equal(counts, [*np.bincount(x % 4, minlength=4), x.max()])
    assert total == 1 + 2 + 3 + 4 + 5 + 6 + 7 + 7


WRONG = {
    "it writes before or after argument 0": "x[64] = 1;",
    "waits forever for a barrier": 'if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");',
    "a barrier that not all threads of the block reach":
        "if (threadIdx.x < 32)\n __syncthreads();\nelse\n __syncthreads();",
    "lacks the calling lane": "__syncwarp(1);",
    "rows of ldmatrix begin at multiples of 16 bytes":
        'unsigned y; asm("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(y) : "r"(4));',
    "no 100000 bytes of shared memory": "__shared__ char y[100000]; y[0] = 1;",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("message", WRONG)
def test_what_kernels_must_not_do(message):
    source = 'extern "C" __global__ void wrong(int* x) { ' + WRONG[message] + " }"
    with pytest.raises(EmulationError, match=message):
        run(source, "wrong", 1, 64, 0, [np.zeros(64, np.int32)])


@pytest.mark.slow
def test_launches_that_no_gpu_accepts():
    with pytest.raises(EmulationError, match="at most 256 threads"):
        run(SUM, "total", 1, 512, 0, [np.zeros(1, np.float32), np.zeros(1, np.float32), 1])
    with pytest.raises(ValueError, match="mbarrier"):
        translate('__global__ void f() { asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(0)); }')


SHARED_THAT_NOBODY_WROTE = r"""
extern "C" __global__ void copy(float* y) {
  __shared__ float x[32];
  if (threadIdx.x < 16) x[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x];
}
"""


@pytest.mark.slow
def test_reading_memory_that_nobody_wrote():
    y = np.zeros(32, np.float32)
    with pytest.raises(EmulationError, match="memory that nobody wrote, first at its element 16"):
        run(SHARED_THAT_NOBODY_WROTE, "copy", 1, 32, 0, [y])


ARITHMETIC = r"""
extern "C" __global__ void arithmetic(TYPE* out, const TYPE* x, const TYPE* y, const float* z, int n) {
  int i = threadIdx.x;
  out[i] = x[i] * y[i] + x[i];
  out[n + i] = (TYPE)z[i];
  out[2 * n + i] = hexp(x[i] / y[i]);
  out[3 * n + i] = x[i] < y[i] ? x[i] : -y[i];
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_arithmetic_of_16_bits_rounds_each_result(name):
    of, dtype = FORMATS[name]
    draw = np.random.default_rng(0)
    x, y, z = (draw.normal(size=200).astype(np.float32) for _ in range(3))
    z[:3] = np.nan, np.inf, 1e-7
    x, y, out = x.astype(dtype), y.astype(dtype), np.zeros((4, 200), dtype)
    run(ARITHMETIC.replace("TYPE", of), "arithmetic", 1, 200, 0, [out, x, y, z, 200])
    expected = [x * y + x, z.astype(dtype), np.exp(x / y), np.where(x < y, x, -y)]
    np.testing.assert_allclose(out.astype(np.float32), np.asarray(expected, dtype).astype(np.float32), rtol=2e-2)
    np.testing.assert_array_equal(
        out[[0, 1, 3]].astype(np.float32), np.asarray(expected, dtype)[[0, 1, 3]].astype("f4")
    )


@pytest.mark.slow
def test_the_source_that_tvm_writes():
    def function(x, w):
        return tnp.exp(x).astype("float16"), nn.functional.softmax(x @ w), tnp.sort(x, axis=0)

    spec = ShapeDtype((32, 32), "float32")
    target = targets.resolve({"kind": "cuda", "arch": "sm_90"})
    module = pipeline.scheduled_module(tvmfun.trace(function)(spec, spec), target)
    functions = {name: f for name, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    kernels = lowering.sources(lowering.split(functions, target)[1], target).values()
    kernel = next(kernel for kernel in kernels if kernel.title.startswith("exp_astype"))
    source, name = kernel.prelude + kernel.text, kernel.name
    threads = re.findall(r"__launch_bounds__\((\d+)\)", source)[0]
    x, y = np.random.default_rng(0).normal(size=1024).astype(np.float32), np.zeros(1024, np.float16)
    run(source, name, -(-1024 // int(threads)), int(threads), 0, [y, x])
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-3)
