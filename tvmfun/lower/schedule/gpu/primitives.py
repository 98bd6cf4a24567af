"""Device functions in CUDA C++ that products call: asynchronous copies, fragments of matrices, and tensor cores.

All code that needs special instructions is here; main loops are C++ around it.
"""

from __future__ import annotations

_DEFINITIONS = {
    "tvmfun_copy": r"""
// Copies BYTES (4, 8 or 16) from global to shared memory in the background, or writes zeros.
template <int BYTES>
__device__ __forceinline__ void tvmfun_copy(void* shared, const void* source, bool exists) {
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  int size = exists ? BYTES : 0;
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(source), "n"(BYTES), "r"(size)
                 : "memory");
  }
}
""",
    "tvmfun_copies_commit": r"""
__device__ __forceinline__ void tvmfun_copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
""",
    "tvmfun_copies_wait": r"""
// Waits until at most PENDING groups of copies of this thread are under way.
template <int PENDING>
__device__ __forceinline__ void tvmfun_copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
""",
    "tvmfun_publish": r"""
// Makes what this thread has written to shared memory visible to the async proxy: to wgmma and the copy engine.
__device__ __forceinline__ void tvmfun_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
""",
    "tvmfun_hold": r"""
// Keeps SIZE sums in the registers that products in the background add to.
template <int SIZE>
__device__ __forceinline__ void tvmfun_hold(float* sums) {
#pragma unroll
  for (int i = 0; i < SIZE; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
""",
    "tvmfun_hold_words": r"""
template <int SIZE>
__device__ __forceinline__ void tvmfun_hold_words(unsigned* words) {
#pragma unroll
  for (int i = 0; i < SIZE; ++i) asm volatile("" : "+r"(words[i])::"memory");
}
""",
    "tvmfun_products_begin": r"""
// Lets the following wgmma of a warpgroup use registers that others wrote.
__device__ __forceinline__ void tvmfun_products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
""",
    "tvmfun_products_commit": r"""
__device__ __forceinline__ void tvmfun_products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
""",
    "tvmfun_products_wait": r"""
// Waits until at most PENDING groups of products of this warp are under way.
template <int PENDING>
__device__ __forceinline__ void tvmfun_products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
""",
    "tvmfun_matrix": r"""
// The descriptor of a matrix in shared memory, of lines of 128 bytes with exchanged chunks.
template <int LEADING, int STRIDE>
__device__ __forceinline__ unsigned long long tvmfun_matrix(const void* start) {
  unsigned address = (unsigned)__cvta_generic_to_shared(start);
  const unsigned long long layout = 1ull << 62 | (unsigned long long)(STRIDE >> 4) << 32 | (LEADING >> 4) << 16;
  return layout | (address & 0x3ffff) >> 4;
}
""",
    "tvmfun_expect": r"""
// Barriers that count bytes which the copy engine writes; the thread that makes them publishes them.
__device__ __forceinline__ void tvmfun_make_barrier(void* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
}
__device__ __forceinline__ void tvmfun_expect(void* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is over: the first one has parity 0.
__device__ __forceinline__ void tvmfun_await(void* barrier, int parity) {
  unsigned address = (unsigned)__cvta_generic_to_shared(barrier), is_over = 0;
  while (!is_over) {
    asm volatile("{ .reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2; "
                 "selp.u32 %0, 1, 0, over; }"
                 : "=r"(is_over) : "r"(address), "r"(parity) : "memory");
  }
}
""",
    "tvmfun_load_tile": r"""
// Copies a box of a tensor in the background. The map of it, in the kernel's parameters, is what `map` points to.
template <int RANK, long long... MAP>
__device__ __forceinline__ void tvmfun_load_tile(void* shared, const void* map, void* barrier, int c0, int c1, int c2,
                                                 int c3, int c4) {
  unsigned to = (unsigned)__cvta_generic_to_shared(shared), at = (unsigned)__cvta_generic_to_shared(barrier);
  if (RANK == 2) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(at), "r"(c0), "r"(c1) : "memory");
  } else if (RANK == 3) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(map), "r"(at), "r"(c0), "r"(c1), "r"(c2) : "memory");
  } else if (RANK == 4) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(to), "l"(map), "r"(at), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(to), "l"(map), "r"(at), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
  }
}
""",
    "tvmfun_converge": r"""
// After a branch of one lane: wgmma is executed by all lanes of a warp together.
__device__ __forceinline__ void tvmfun_converge() { __syncwarp(); }
""",
    "tvmfun_ldmatrix": r"""
// Four 8x8 matrices of 16-bit numbers from the rows whose addresses the lanes hold.
__device__ __forceinline__ void tvmfun_ldmatrix(unsigned* r, const void* row) {
  unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
""",
    "tvmfun_ldmatrix_transposed": r"""
__device__ __forceinline__ void tvmfun_ldmatrix_transposed(unsigned* r, const void* row) {
  unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
""",
    "tvmfun_mma_float16": r"""
// c += a b, with 16x16 and 16x8 numbers of half precision.
__device__ __forceinline__ void tvmfun_mma_float16(float* c, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
""",
    "tvmfun_mma_bfloat16": r"""
__device__ __forceinline__ void tvmfun_mma_bfloat16(float* c, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
""",
    "tvmfun_mma_tf32": r"""
// c += a b, with 16x8 and 8x8 numbers of tf32.
__device__ __forceinline__ void tvmfun_mma_tf32(float* c, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
""",
    "tvmfun_tf32": r"""
// The bits of a float32 rounded to the 10 bits of tf32.
__device__ __forceinline__ unsigned tvmfun_tf32(unsigned bits) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}
""",
    "tvmfun_threefry": r"""
// The xor of the two words of a block of Threefry-2x32.
__device__ __forceinline__ unsigned tvmfun_threefry(unsigned first, unsigned second, unsigned long long counter) {
  const unsigned keys[3] = {first, second, first ^ second ^ 0x1BD11BDAu};
  const int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  unsigned x = (unsigned)(counter >> 32) + first, y = (unsigned)counter + second;
#pragma unroll
  for (int group = 0; group < 5; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int by = rotations[group % 2 * 4 + i];
      x += y;
      y = (y << by | y >> (32 - by)) ^ x;
    }
    x += keys[(group + 1) % 3];
    y += keys[(group + 2) % 3] + group + 1;
  }
  return x ^ y;
}
""",
    "tvmfun_sum_column": r"""
// Stores the sum of a column of a tile whose rows are `length` numbers apart, four independent sums at a time.
__device__ __forceinline__ void tvmfun_sum_column(void* to, const void* tile, int rows, int length) {
  const float* column = (const float*)tile;
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  int row = 0;
  for (; row + 4 <= rows; row += 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += column[(row + i) * length];
  }
  for (; row < rows; ++row) sums[0] += column[row * length];
  *(float*)to = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
""",
    "tvmfun_barrier": r"""
__device__ __forceinline__ void tvmfun_barrier() { __syncthreads(); }
""",
    "tvmfun_clear": r"""
// Sets SIZE sums to 0.
template <int SIZE>
__device__ __forceinline__ void tvmfun_clear(float* sums) {
#pragma unroll
  for (int i = 0; i < SIZE; ++i) sums[i] = 0.0f;
}
""",
    "tvmfun_fetch": r"""
// Reads BYTES (4, 8 or 16) from global memory to registers, or sets them to zero.
template <int BYTES>
__device__ __forceinline__ void tvmfun_fetch(void* to, const void* from, bool exists) {
  uint4 value = make_uint4(0, 0, 0, 0);
  if (exists) {
    if (BYTES == 16) value = *(const uint4*)from;
    if (BYTES == 8) *(uint2*)&value = *(const uint2*)from;
    if (BYTES == 4) value.x = *(const unsigned*)from;
  }
  if (BYTES == 16) *(uint4*)to = value;
  if (BYTES == 8) *(uint2*)to = *(uint2*)&value;
  if (BYTES == 4) *(unsigned*)to = value.x;
}
""",
    "tvmfun_store_tf32": r"""
// Stores BYTES of float32 numbers in shared memory, rounded to tf32.
template <int BYTES>
__device__ __forceinline__ void tvmfun_store_tf32(void* to, const void* from) {
  unsigned rounded[BYTES / 4];
#pragma unroll
  for (int i = 0; i < BYTES / 4; ++i) rounded[i] = tvmfun_tf32(((const unsigned*)from)[i]);
  if (BYTES == 16) *(uint4*)to = make_uint4(rounded[0], rounded[1], rounded[2 % (BYTES / 4)], rounded[3 % (BYTES / 4)]);
  if (BYTES == 8) *(uint2*)to = make_uint2(rounded[0], rounded[1 % (BYTES / 4)]);
  if (BYTES == 4) *(unsigned*)to = rounded[0];
}
""",
    "tvmfun_move": r"""
// Moves BYTES, of which both addresses are multiples, between registers and memory.
template <int BYTES>
__device__ __forceinline__ void tvmfun_move(void* to, const void* from) {
  if (BYTES == 32) ((uint4*)to)[1] = ((const uint4*)from)[1];
  if (BYTES >= 16) *(uint4*)to = *(const uint4*)from;
  if (BYTES == 8) *(uint2*)to = *(const uint2*)from;
  if (BYTES == 4) *(unsigned*)to = *(const unsigned*)from;
  if (BYTES == 2) *(unsigned short*)to = *(const unsigned short*)from;
  if (BYTES == 1) *(unsigned char*)to = *(const unsigned char*)from;
}
""",
}


#: The functions that copy from their second pointer to the first one.
MOVES = ("tvmfun_copy", "tvmfun_fetch", "tvmfun_load_tile", "tvmfun_move", "tvmfun_store_tf32")


def definition(name: str) -> str:
    """The CUDA C++ of a function, or of a template without its arguments; it may occur in a source more than once."""
    return f"#ifndef {name}_defined\n#define {name}_defined{_DEFINITIONS[name]}#endif\n"
