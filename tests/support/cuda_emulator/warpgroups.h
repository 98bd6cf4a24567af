// Products of warpgroups, which read both factors from shared memory in the background.
// Source of the layouts: the PTX ISA manual, sections on wgmma.mma_async and its matrix descriptors.
#pragma once
#include "instructions.h"

namespace emulator {

// A matrix in shared memory, as a descriptor of 64 bits says.
struct MatrixDescriptor {
  uint64_t bits;

  uint64_t start() const { return (bits & 0x3fff) << 4; }
  uint64_t leading() const { return (bits >> 16 & 0x3fff) << 4; }
  uint64_t stride() const { return (bits >> 32 & 0x3fff) << 4; }
  int base() const { return bits >> 49 & 7; }
  // The 16-byte chunks of a row that are swizzled together: none, or those of 128, 64 or 32 bytes.
  int chunks() const { return bits >> 62 ? 16 >> (bits >> 62) : 1; }

  void check(int line) const {
    // A pattern of 8 rows begins where the bits of the address that are mixed into others are 0.
    if (base() || (chunks() > 1 && start() >> 7 & (chunks() - 1)))
      fail(line, "a swizzled matrix begins at a multiple of %d bytes, got 0x%llx", chunks() * 128,
           (unsigned long long)start());
  }

  // The address of an element: row `i` and term `k`, of `bytes`; rows are neighbours, or terms.
  uint64_t at(int i, int k, int bytes, bool rows_are_neighbours) const {
    int along = (rows_are_neighbours ? i : k) * bytes, across = rows_are_neighbours ? k : i;
    uint64_t chunk = along / 16, row = across % 8 * 16 * chunks(), group = across / 8, address = start() + along % 16;
    if (chunks() == 1)
      address += row + (rows_are_neighbours ? chunk * stride() + group * leading() : chunk * leading() + group * stride());
    else if (rows_are_neighbours)
      address += row + chunk % chunks() * 16 + chunk / chunks() * leading() + group * stride();
    else
      address += row + chunk * 16 + group * stride();
    return address ^ (address >> 7 & (chunks() - 1)) << 4;
  }
};

template <class Type>
float element(const MatrixDescriptor& matrix, int i, int k, bool rows_are_neighbours, int line) {
  constexpr int bytes = 4 / Type::per_register;
  uint64_t address = matrix.at(i, k, bytes, rows_are_neighbours);
  if (address / 4 < kShared / 4 && state.hidden[address / 4])
    fail(line, "wgmma reads 0x%llx, copied by thread %d without a fence.proxy.async before the barrier",
         (unsigned long long)address, state.hidden[address / 4] - 1);
  uint32_t word = 0;
  memcpy(&word, shared_at(address, line), bytes);
  return Type::at(word, 0);
}

// sums += a b, for a of 64 x k and b of k x n numbers; a warp has 16 of the rows.
template <class Type, int n>
struct GroupProduct {
  static constexpr int k = 16 / (2 / Type::per_register);
  MatrixDescriptor a, b;
  bool adds, a_by_rows, b_by_rows;
  int line;
  float* sums[n / 2];
  bool a_is_held;
  uint32_t words[4];  // of a, if threads hold it: as the left factor of mma.sync, by 16 rows of a warp

  static void complete(void** payloads, unsigned lanes) {
    if (lanes != ~0u) fail(0, "wgmma needs all lanes of a warp, got 0x%x", lanes);
    GroupProduct own[32];
    for (int lane = 0; lane < 32; lane++) own[lane] = *(GroupProduct*)payloads[lane];
    auto& first = own[0];
    for (auto& other : own)
      if (other.a.bits != first.a.bits || other.b.bits != first.b.bits)
        fail(first.line, "wgmma with descriptors that differ between the lanes of a warp");
    if (!products_are_fenced()) fail(first.line, "wgmma without a wgmma.fence before");
    if (!first.a_is_held) first.a.check(first.line);
    first.b.check(first.line);
    begin_product(first.a.bits, first.b.bits, run, own, sizeof own);
  }

  static void run(const void* factors, int warp) {
    const auto* own = (const GroupProduct*)factors;
    const auto& first = own[0];
    float a[16][k], b[k][n];
    for (int t = 0; t < k; t++) {
      for (int i = 0; i < 16 && !first.a_is_held; i++)
        a[i][t] = element<Type>(first.a, warp * 16 + i, t, first.a_by_rows, first.line);
      for (int j = 0; j < n; j++) b[t][j] = element<Type>(first.b, j, t, first.b_by_rows, first.line);
    }
    constexpr int per_word = Type::per_register;
    for (int lane = 0; lane < 32 && first.a_is_held; lane++)
      for (int i = 0; i < 4 * per_word; i++) {
        int word = i / per_word, within = i % per_word;
        a[lane / 4 + word % 2 * 8][(lane % 4 + word / 2 * 4) * per_word + within] = Type::at(own[lane].words[word], within);
      }
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < n / 2; i++) {
        int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = first.adds ? *own[lane].sums[i] : 0;
        for (int t = 0; t < k; t++) sum = fmaf(a[row][t], b[t][column], sum);
        *own[lane].sums[i] = sum;
      }
  }
  void multiply() { exchange(~0u, this, complete, "wgmma.mma_async", line); }
};

}  // namespace emulator
