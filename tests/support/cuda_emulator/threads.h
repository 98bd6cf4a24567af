// A GPU's blocks on the CPU: the threads of a block are fibers that take turns in an order drawn from a seed, and
// continue only when the barrier, or the exchange within a warp, that they wait for has all of its threads.
//
// The definitions are in threads.cpp, which is compiled once: kernels that contained them took g++ twice as long.
// So did headers of the standard library with many inline functions, whose templates are instantiated in each kernel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "tensor_map.h"

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
// Each library of kernels has its own threads.
#pragma GCC visibility push(hidden)
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
static constexpr int warpSize = 32;

namespace emulator {

constexpr size_t kStack = 512 << 10, kGuard = 4096, kShared = 227 << 10, kStaticShared = 48 << 10;
constexpr int kBarriers = 16, kThreads = 1024;

using Complete = void (*)(void** payloads, unsigned lanes);

struct State {  // what kernels need to know of the threads
  int current = 0;
  char* shared = nullptr;  // aligned
  // Of each word of shared memory: 0, or one more than the thread that has copied to it without making that visible to
  // the async proxy.
  uint16_t* hidden = nullptr;
};
extern State state;

inline int lane() { return state.current % 32; }

// What memory that nobody wrote holds: NaN in the first order of threads, something else in each other one.
void forget(void* memory, size_t bytes);
[[noreturn]] void fail(int line, const char* format, ...);
unsigned alive_lanes(int warp);
// Waits for all lanes of the mask; the last one to arrive lets `complete` compute the results of all.
void exchange(unsigned mask, void* payload, Complete complete, const char* what, int line);
void barrier(int id, int count, int line);
void arrive(int id, int count, int line);  // without waiting
void fence_async_proxy();
void copy_async(void* to, const void* from, size_t size, size_t used, int line);
void commit_group();
void wait_group(int pending);  // negative: also for copies of no group yet
// Begins a product of the current warp in the background, by a function that gets a copy of the factors.
using Multiply = void (*)(const void* factors, int warp);
void begin_product(uint64_t a, uint64_t b, Multiply multiply, const void* factors, size_t bytes);
bool products_are_fenced();
void group_fence(int line);
void group_commit(int line);
void group_wait(int pending, int line);
// Barriers in shared memory that count bytes, and copies of boxes of a tensor in the background, which arrive at them.
void make_mbarrier(uint64_t at, int count, int line);
void expect_bytes(uint64_t at, int bytes, int line);
// Whether the phase of a parity is over; other threads run before it says no.
bool phase_is_over(uint64_t at, int parity, int line);
void load_tile(uint64_t to, const void* map, std::initializer_list<int> at, uint64_t barrier, int line);
// The memory of a __shared__ array, known by the address of something at its declaration.
char* static_shared(const void* key, size_t bytes, size_t alignment);
uint32_t shared_offset(const void* address);
inline char* dynamic_shared() { return state.shared; }

inline char* shared_at(uint64_t offset, int line = __builtin_LINE()) {
  if (offset >= kShared) fail(line, "there is no shared memory at 0x%llx", (unsigned long long)offset);
  return state.shared + offset;
}

#pragma GCC visibility pop

// -- kernels by name ------------------------------------------------------------------------------------------------

struct Kernel {
  const char* name;
  void (*entry)(void**);
  int count;
  const size_t* sizes;  // of the parameters
  int most_threads;
};

template <class... A>
struct Parameters {
  static constexpr size_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
  template <class T>
  static T at(const void* parameter) {  // which may be aligned less than its type
    T value;
    memcpy(&value, parameter, sizeof value);
    return value;
  }
  template <void (*function)(A...), size_t... i>
  static void call(void** parameters, std::index_sequence<i...>) {
    function(at<std::remove_cv_t<A>>(parameters[i])...);
  }
  template <void (*function)(A...)>
  static void entry(void** parameters) {
    call<function>(parameters, std::index_sequence_for<A...>());
  }
};

template <auto function, class... A>
Kernel kernel(const char* name, int most_threads, void (*)(A...)) {
  return {name, Parameters<A...>::template entry<function>, sizeof...(A), Parameters<A...>::sizes, most_threads};
}

}  // namespace emulator
