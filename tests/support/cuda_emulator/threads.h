// A GPU's blocks on the CPU: the threads of a block are fibers that take turns in an order drawn from a seed, and
// continue only when the barrier, or the exchange within a warp, that they wait for has all of its threads.
//
// The definitions are in threads.cpp, which is compiled once: kernels that contained them took g++ twice as long.
#pragma once
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
#include <ucontext.h>

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

struct Copy {  // of cp.async, until the thread waits for its group
  void* to;
  const void* from;
  size_t bytes, zeros;
  int group;
};

struct Thread {
  ucontext_t start;
  jmp_buf point;
  bool started = false, done = true;
  dim3 index;
  const char* waits_for = nullptr;
  int line = 0;
  int group = 0;
  std::vector<Copy> copies;
  std::vector<std::pair<size_t, size_t>> hidden;  // words of shared memory, see State
};

struct Products {  // of a warp in the background, by wgmma
  struct Pending {
    int group;
    std::function<void()> run;
  };
  std::vector<Pending> pending;
  int group = 0;
  bool is_fenced = false;
  std::vector<std::pair<uint64_t, uint64_t>> issued;

  void run(int end) {  // those of earlier groups than `end`
    size_t count = 0;
    while (count < pending.size() && pending[count].group < end) pending[count++].run();
    pending.erase(pending.begin(), pending.begin() + count);
  }
};

using Complete = void (*)(void** payloads, unsigned lanes);

struct Exchange {  // of the lanes of a warp
  unsigned mask, arrived = 0;
  Complete complete;
  const char* what;
  int line;
  void* payloads[32];
};

struct Barrier {
  int line = 0, count = 0;
  std::vector<int> waiting;
  void clear() { line = count = 0, waiting.clear(); }
};

struct State {
  std::mutex mutex;
  jmp_buf scheduler;
  std::vector<Thread> threads;
  std::vector<std::vector<int>> ready;  // by warp
  std::vector<int> turn, order;
  std::vector<std::vector<Exchange>> warps;
  std::vector<Products> products;  // by warp
  // Of each word of shared memory: 0, or one more than the thread that has copied to it without making that visible to
  // the async proxy.
  std::vector<uint16_t> hidden;
  Barrier barriers[kBarriers];
  int current = 0, count = 0, alive = 0;
  bool stale = true;
  uint64_t seed = 0, drawn = 0;
  char* shared = nullptr;  // in `memory`, aligned
  void* memory = nullptr;
  char* stacks = nullptr;
  size_t dynamic_bytes = 0, static_end = 0;
  std::vector<std::pair<const void*, char*>> arrays;  // static shared memory, by declaration
  void (*entry)(void**) = nullptr;
  void** parameters = nullptr;
  std::string error;
};
extern State state;

inline uint64_t draw() {  // splitmix64
  uint64_t x = state.drawn += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

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
  template <void (*function)(A...), size_t... i>
  static void call(void** parameters, std::index_sequence<i...>) {
    function(*(std::remove_cv_t<A>*)parameters[i]...);
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
