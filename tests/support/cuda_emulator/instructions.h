// Instructions of PTX that kernels write as inline assembly: products on tensor cores, and loads of their fragments.
// Source of the fragments' layouts: the PTX ISA manual, sections on mma.m16n8k* and ldmatrix.
#pragma once
#include "functions.h"

namespace emulator {

struct Tf32 {
  static constexpr int per_register = 1;
  // Tensor cores ignore the bits of a float32 that tf32 lacks.
  static float at(uint32_t word, int) { return bits_as<float>(word & 0xffffe000u); }
};
template <class Format>
struct Packed {
  static constexpr int per_register = 2;
  static float at(uint32_t word, int i) { return Format::to((uint16_t)(word >> 16 * i)); }
};
using F16 = Packed<HalfFormat>;
using Bf16 = Packed<BfloatFormat>;

inline uint32_t to_tf32(float value) {  // to nearest, ties away from zero
  uint32_t bits = bits_as<uint32_t>(value);
  return std::isfinite(value) ? (bits + 0x1000) & 0xffffe000u : bits;
}

// d = a b + c, for a of 16 x k, b of k x 8, and c and d of 16 x 8 in float32.
template <class Type, int k>
struct Product {
  static constexpr int n = Type::per_register, kWords = k / 4 / n;  // of b; a has twice as many
  uint32_t a[2 * kWords], b[kWords];
  float c[4], d[4];

  // In a register r of b lane l has n elements of column l / 4, from row (l % 4 + 4 r) n on; in a likewise, with
  // the rows l / 4 and l / 4 + 8 in registers 2 r and 2 r + 1.
  static void complete(void** payloads, unsigned lanes) {
    if (lanes != ~0u) fail(0, "mma.sync needs all lanes of a warp, got 0x%x", lanes);
    float a[16][k], b[k][8];
    for (int lane = 0; lane < 32; lane++) {
      const auto& own = *(Product*)payloads[lane];
      int group = lane / 4, within = lane % 4;
      for (int r = 0; r < kWords; r++)
        for (int i = 0; i < n; i++) {
          int at = (within + 4 * r) * n + i;
          a[group][at] = Type::at(own.a[2 * r], i);
          a[group + 8][at] = Type::at(own.a[2 * r + 1], i);
          b[at][group] = Type::at(own.b[r], i);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
      auto& own = *(Product*)payloads[lane];
      for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = own.c[i];
        for (int at = 0; at < k; at++) sum = fmaf(a[row][at], b[at][column], sum);
        own.d[i] = sum;
      }
    }
  }
  void multiply(int line) { exchange(~0u, this, complete, "mma.sync", line); }
};

// Loads 8 x 8 matrices of 16-bit numbers; lanes 8 i to 8 i + 7 have the addresses of the rows of matrix i.
template <int count, bool transposed>
struct Matrices {
  const char* row;
  uint32_t words[count];

  static void complete(void** payloads, unsigned lanes) {
    if (lanes != ~0u) fail(0, "ldmatrix needs all lanes of a warp, got 0x%x", lanes);
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < count; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
          int row = lane / 4, column = lane % 4 * 2 + j;
          if (transposed) std::swap(row, column);
          memcpy(&pair[j], ((Matrices*)payloads[8 * i + row])->row + 2 * column, 2);
        }
        memcpy(&((Matrices*)payloads[lane])->words[i], pair, 4);
      }
  }
  void load(uint64_t offset, int line) {
    if (offset % 16) fail(line, "rows of ldmatrix begin at multiples of 16 bytes, got 0x%llx", (emulator_ull)offset);
    row = shared_at(lane() < 8 * count ? offset : 0, line);
    exchange(~0u, this, complete, "ldmatrix", line);
  }
};

}  // namespace emulator
