"""Products of attention within a warp: scores of two tiles in shared memory, and products of scores with a tile.

A warp holds ``16 * M`` rows. Scores stay in registers: a thread has ``R`` rows of ``C`` columns of the scores, and
``D`` elements of each row of the sums over scores. Their indices ``row``, ``column`` and
``depth`` depend on the instruction.
"""

from __future__ import annotations

from tvmfun.lower.schedule.gpu.primitives import definition
from tvmfun.lower.schedule.gpu.warpgroups import instruction

#: The formats of factors, and the head sizes that their instructions need to be multiples of.
UNITS = {"float16": 16, "bfloat16": 16, "tf32": 16, "float32": 32}

# Rows in shared memory are padded, and read by the warps that copied or stored them.
_PADDED = """
  template <int COUNT>
  static __device__ __forceinline__ int offset(int row, int d) { return row * LENGTH + d; }
  static __device__ __forceinline__ void publish() {}
"""

# The rows of a thread with mma.sync.
_ROWS = """
  static __device__ __forceinline__ int row(int r) {
    return threadIdx.x / 32 * (16 * M) + r / 2 * 16 + r % 2 * 8 + threadIdx.x % 32 / 4;
  }
"""

# The positions of the registers of tensor cores; ``score`` and ``sum`` number the registers of scores and of sums.
_TENSOR_CORES = """
  static constexpr int R = 2 * M, C = COLUMNS / 4, D = DEPTH / 4, LANES = 4, NEIGHBOURS = 2;
  static __device__ __forceinline__ int column(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
  static __device__ __forceinline__ int depth(int d) { return column(d); }
  static constexpr __device__ int within(int r, int c, int tiles) {
    return (r / 2 * tiles + c / 2) * 4 + r % 2 * 2 + c % 2;
  }
  static constexpr __device__ int score(int r, int c) { return within(r, c, COLUMNS / 8); }
  static constexpr __device__ int sum(int r, int d) { return within(r, d, DEPTH / 8); }
"""

_PAIR = """
  static __device__ __forceinline__ unsigned pair(float low, float high) {
    auto both = @PAIR@(low, high);
    return *(unsigned*)&both;
  }
"""

_HALF = """
  // scores += held * streamed^T
  static __device__ __forceinline__ void multiply(float* scores, const Element* held, const Element* streamed) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * (16 * M);
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
      unsigned a[M][4];
#pragma unroll
      for (int i = 0; i < M; ++i)
        tvmfun_ldmatrix(a[i], held + (first + i * 16 + lane % 16) * LENGTH + k + lane / 16 * 8);
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; j += 2) {
        unsigned b[4];
        tvmfun_ldmatrix(b, streamed + (j * 8 + lane / 16 * 8 + lane % 8) * LENGTH + k + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < M; ++i) {
          tvmfun_mma_@FORMAT@(scores + (i * (COLUMNS / 8) + j) * 4, a[i], b);
          tvmfun_mma_@FORMAT@(scores + (i * (COLUMNS / 8) + j + 1) * 4, a[i], b + 2);
        }
      }
    }
  }
  // sums += weights * streamed. The registers of two neighbouring results are those of one left operand.
  static __device__ __forceinline__ void accumulate(float* sums, const float* weights, const Element* streamed) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < COLUMNS / 8; k += 2) {
      unsigned a[M][4];
#pragma unroll
      for (int i = 0; i < M; ++i) {
        const float* w = weights + (i * (COLUMNS / 8) + k) * 4;
        a[i][0] = pair(w[0], w[1]);
        a[i][1] = pair(w[2], w[3]);
        a[i][2] = pair(w[4], w[5]);
        a[i][3] = pair(w[6], w[7]);
      }
#pragma unroll
      for (int j = 0; j < DEPTH / 8; j += 2) {
        unsigned b[4];
        const int from = (k * 8 + lane / 8 % 2 * 8 + lane % 8) * LENGTH + j * 8 + lane / 16 * 8;
        tvmfun_ldmatrix_transposed(b, streamed + from);
#pragma unroll
        for (int i = 0; i < M; ++i) {
          tvmfun_mma_@FORMAT@(sums + (i * (DEPTH / 8) + j) * 4, a[i], b);
          tvmfun_mma_@FORMAT@(sums + (i * (DEPTH / 8) + j + 1) * 4, a[i], b + 2);
        }
      }
    }
  }
"""

_TF32 = """
  static __device__ __forceinline__ unsigned rounded(float x) { return tvmfun_tf32(__float_as_uint(x)); }
  // scores += held * streamed^T
  static __device__ __forceinline__ void multiply(float* scores, const Element* held, const Element* streamed) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * (16 * M);
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
      unsigned a[M][4];
#pragma unroll
      for (int i = 0; i < M; ++i) {
        tvmfun_ldmatrix(a[i], held + (first + i * 16 + lane % 16) * LENGTH + k + lane / 16 * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) a[i][e] = tvmfun_tf32(a[i][e]);
      }
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; j += 2) {
        unsigned b[4];
        tvmfun_ldmatrix(b, streamed + (j * 8 + lane / 16 * 8 + lane % 8) * LENGTH + k + lane / 8 % 2 * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) b[e] = tvmfun_tf32(b[e]);
#pragma unroll
        for (int i = 0; i < M; ++i) {
          tvmfun_mma_tf32(scores + (i * (COLUMNS / 8) + j) * 4, a[i], b);
          tvmfun_mma_tf32(scores + (i * (COLUMNS / 8) + j + 1) * 4, a[i], b + 2);
        }
      }
    }
  }
  // sums += weights * streamed. A result has neighbouring columns where a left operand has terms t and t + 4; as the
  // order of terms makes no difference, the right operand is read in the order of the weights.
  static __device__ __forceinline__ void accumulate(float* sums, const float* weights, const Element* streamed) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < COLUMNS / 8; ++k) {
      unsigned a[M][4];
#pragma unroll
      for (int i = 0; i < M; ++i) {
        const float* w = weights + (i * (COLUMNS / 8) + k) * 4;
        a[i][0] = rounded(w[0]);
        a[i][1] = rounded(w[2]);
        a[i][2] = rounded(w[1]);
        a[i][3] = rounded(w[3]);
      }
      const Element* from = streamed + (k * 8 + lane % 4 * 2) * LENGTH + lane / 4;
#pragma unroll
      for (int j = 0; j < DEPTH / 8; ++j) {
        const unsigned b[2] = {rounded(from[j * 8]), rounded(from[LENGTH + j * 8])};
#pragma unroll
        for (int i = 0; i < M; ++i) tvmfun_mma_tf32(sums + (i * (DEPTH / 8) + j) * 4, a[i], b);
      }
    }
  }
"""

# Rows of a warp are spread over 4 groups of 8 lanes, columns over the lanes of a group.
_FLOAT32 = """
  static constexpr int R = 4 * M, C = COLUMNS / 8, D = DEPTH / 8, LANES = 8, NEIGHBOURS = 4;
  static __device__ __forceinline__ int row(int r) {
    return threadIdx.x / 32 * (16 * M) + r * 4 + threadIdx.x % 32 / 8;
  }
  static __device__ __forceinline__ int column(int c) { return c * 8 + threadIdx.x % 8; }
  static __device__ __forceinline__ int depth(int d) { return d / 4 * 32 + threadIdx.x % 8 * 4 + d % 4; }
  static constexpr __device__ int score(int r, int c) { return r * C + c; }
  static constexpr __device__ int sum(int r, int d) { return r * D + d; }
  // scores += held * streamed^T
  static __device__ __forceinline__ void multiply(float* scores, const Element* held, const Element* streamed) {
#pragma unroll 1
    for (int k = 0; k < DEPTH; k += 4) {
      float4 a[R];
#pragma unroll
      for (int r = 0; r < R; ++r) a[r] = *(const float4*)(held + row(r) * LENGTH + k);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float4 b = *(const float4*)(streamed + column(c) * LENGTH + k);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          float total = fmaf(a[r].x, b.x, scores[score(r, c)]);
          total = fmaf(a[r].y, b.y, total);
          total = fmaf(a[r].z, b.z, total);
          scores[score(r, c)] = fmaf(a[r].w, b.w, total);
        }
      }
    }
  }
  // sums += weights * streamed; a weight comes from the lane that has its column.
  static __device__ __forceinline__ void accumulate(float* sums, const float* weights, const Element* streamed) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll 1
      for (int lane = 0; lane < 8; ++lane) {
        float4 b[D / 4];
#pragma unroll
        for (int d = 0; d < D / 4; ++d) b[d] = *(const float4*)(streamed + (c * 8 + lane) * LENGTH + depth(d * 4));
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float weight = __shfl_sync(0xffffffffu, weights[score(r, c)], lane, 8);
#pragma unroll
          for (int d = 0; d < D / 4; ++d) {
            float* to = sums + sum(r, d * 4);
            to[0] = fmaf(weight, b[d].x, to[0]);
            to[1] = fmaf(weight, b[d].y, to[1]);
            to[2] = fmaf(weight, b[d].z, to[2]);
            to[3] = fmaf(weight, b[d].w, to[3]);
          }
        }
      }
    }
  }
"""


# A warpgroup holds 64 rows of each tile of rows. Tiles are those of `layouts.Swizzled`: lines of 64 elements.
_WARPGROUPS = """
  template <int COUNT>
  static __device__ __forceinline__ int offset(int row, int d) {
    return d / 64 * (COUNT * 64) + row * 64 + (d % 64 / 8 ^ row % 8) * 8 + d % 8;
  }
  static __device__ __forceinline__ void publish() { tvmfun_publish(); }
  static __device__ __forceinline__ int row(int r) {
    return threadIdx.x / 128 * (64 * M) + r / 2 * 64 + threadIdx.x % 128 / 32 * 16 + r % 2 * 8 + threadIdx.x % 32 / 4;
  }
  // scores += held * streamed^T
  static __device__ __forceinline__ void multiply(float* scores, const Element* held, const Element* streamed) {
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const unsigned long long a = tvmfun_matrix<16, 1024>(held + group * (64 * 64 * M));
    const unsigned long long b = tvmfun_matrix<16, 1024>(streamed);
    tvmfun_hold<R * C>(scores);
    tvmfun_products_begin();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16)
#pragma unroll
      for (int i = 0; i < M; ++i)
        @SCORES@(scores + i * (COLUMNS / 2), a + k / 64 * (ROWS * 8) + i * 512 + k % 64 / 8,
                 b + k / 64 * (COLUMNS * 8) + k % 64 / 8);
    tvmfun_products_commit();
    tvmfun_products_wait<0>();
    tvmfun_hold<R * C>(scores);
  }
  // sums += weights * streamed. The registers of two neighbouring results are those of one left operand.
  static __device__ __forceinline__ void accumulate(float* sums, const float* weights, const Element* streamed) {
    const unsigned long long b = tvmfun_matrix<COLUMNS * 128, 1024>(streamed);
    unsigned a[R * C / 2];
#pragma unroll
    for (int i = 0; i < R * C / 2; ++i) a[i] = pair(weights[2 * i], weights[2 * i + 1]);
    tvmfun_hold_words<R * C / 2>(a);
    tvmfun_hold<R * D>(sums);
    tvmfun_products_begin();
#pragma unroll
    for (int k = 0; k < COLUMNS; k += 16)
#pragma unroll
      for (int i = 0; i < M; ++i)
        @SUMS@(sums + i * (DEPTH / 2), a + i * (COLUMNS / 4) + k / 4, b + k * 8);
    tvmfun_products_commit();
    tvmfun_products_wait<0>();
    tvmfun_hold<R * D>(sums);
  }
"""


def functions(format: str, columns: int, depth: int, warpgroups: bool) -> str:
    """The members of a struct that multiply.

    Args:
        format: the format of factors.
        columns: the rows of a tile that passes through shared memory.
        depth: the elements of its rows.
        warpgroups: whether to multiply by ``wgmma``.
    """
    if format == "float32":
        return _PADDED + _FLOAT32
    if format == "tf32":
        return _PADDED + _ROWS + _TENSOR_CORES + _TF32
    pair = _PAIR.replace("@PAIR@", {"float16": "__floats2half2_rn", "bfloat16": "__floats2bfloat162_rn"}[format])
    if warpgroups:
        scores, sums = (_instruction_name(format, *sizes) for sizes in ((columns, False), (depth, True)))
        return _TENSOR_CORES + pair + _WARPGROUPS.replace("@SCORES@", scores).replace("@SUMS@", sums)
    return _PADDED + _ROWS + _TENSOR_CORES + pair + _HALF.replace("@FORMAT@", format)


def definitions(format: str, columns: int, depth: int, warpgroups: bool) -> str:
    """The definitions of the device functions that they call; the arguments are as for :func:`functions`."""
    if format == "float32":
        return ""
    if not warpgroups:
        names = ["tvmfun_ldmatrix", "tvmfun_ldmatrix_transposed", f"tvmfun_mma_{format}"]
        return "".join(map(definition, [*names, *(["tvmfun_tf32"] if format == "tf32" else [])]))
    names = ["publish", "matrix", "hold", "hold_words", "products_begin", "products_commit", "products_wait"]
    parts = [definition(f"tvmfun_{name}") for name in names]
    for size, weights in ((columns, False), (depth, True)):
        name = _instruction_name(format, size, weights)
        source = instruction(name, format, size, None if weights else False, weights)
        parts.append(f"#ifndef {name}_defined\n#define {name}_defined{source}\n#endif\n")
    return "".join(parts)


def _instruction_name(format: str, columns: int, weights: bool) -> str:
    """The name of the function of an instruction, of scores or of sums by weights in registers."""
    return f"tvmfun_attention_{'sums' if weights else 'scores'}_{format}_{columns}"
