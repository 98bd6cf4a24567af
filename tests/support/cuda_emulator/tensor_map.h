// What the emulated driver encodes as a CUtensorMap of 128 bytes.
#pragma once
#include <cstdint>

namespace emulator {

constexpr uint32_t kTensorMap = 0x70616d74;
struct alignas(128) TensorMap {
  uint32_t magic, rank;
  uint64_t base;
  uint64_t strides[4];  // in bytes, of all axes but the first
  uint32_t sizes[5];
  uint16_t box[5], bytes;  // of an element
};
static_assert(sizeof(TensorMap) == 128);

}  // namespace emulator
