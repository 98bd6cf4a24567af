// The threads of emulated blocks: what they wait for, and whose turn it is.
#include "threads.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

State state;

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
    int group, warp;
    Multiply multiply;
    std::vector<char> factors;
  };
  std::vector<Pending> pending;
  int group = 0;
  bool is_fenced = false;
  std::vector<std::pair<uint64_t, uint64_t>> issued;

  void run(int end) {  // those of earlier groups than `end`
    size_t count = 0;
    for (; count < pending.size() && pending[count].group < end; count++)
      pending[count].multiply(pending[count].factors.data(), pending[count].warp);
    pending.erase(pending.begin(), pending.begin() + count);
  }
};

struct ByteBarrier {
  uint64_t at;
  int count, pending, phase, maker;
  int64_t bytes;
  bool is_published;
};

struct TileCopy {  // in the background
  TensorMap map;
  int at[5];
  uint64_t to, barrier;
  int line;
};

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

struct Machine {
  std::mutex mutex;
  jmp_buf scheduler;
  std::vector<Thread> threads;
  std::vector<std::vector<int>> ready;  // by warp
  std::vector<int> turn, order;
  std::vector<std::vector<Exchange>> warps;
  std::vector<Products> products;  // by warp
  std::vector<ByteBarrier> byte_barriers;
  std::vector<TileCopy> tiles;
  std::vector<int> polling;  // threads that wait for bytes
  uint64_t events = 0;  // what they may have waited for
  std::vector<uint16_t> hidden;  // see State
  bool is_hidden = false;  // whether one of them may not be 0
  Barrier barriers[kBarriers];
  int count = 0, alive = 0;
  bool stale = true;
  uint64_t seed = 0, drawn = 0;
  void* memory = nullptr;  // with the shared memory
  char* stacks = nullptr;
  size_t dynamic_bytes = 0, static_end = 0;
  std::vector<std::pair<const void*, char*>> arrays;  // static shared memory, by declaration
  void (*entry)(void**) = nullptr;
  void** parameters = nullptr;
  std::string error;
};
static Machine machine;

static uint64_t draw() {  // splitmix64
  uint64_t x = machine.drawn += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

void forget(void* memory, size_t bytes) { memset(memory, machine.seed ? 0x3b + (int)machine.seed : 0xff, bytes); }

__attribute__((noinline)) static void to_scheduler() {
  if (!_setjmp(machine.threads[state.current].point)) _longjmp(machine.scheduler, 1);
}

[[noreturn]] void fail(int line, const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const Thread& thread = machine.threads[state.current];
  char where[160];
  snprintf(where, sizeof where, "line %d, thread (%u, %u, %u) of block (%u, %u, %u): ", line, thread.index.x,
           thread.index.y, thread.index.z, blockIdx.x, blockIdx.y, blockIdx.z);
  machine.error = std::string(where) + text;
  _longjmp(machine.scheduler, 2);
}

void wait(const char* what, int line) {
  Thread& thread = machine.threads[state.current];
  thread.waits_for = what;
  thread.line = line;
  to_scheduler();
  threadIdx = thread.index;
}

void wake(int thread) {
  machine.events++;
  machine.threads[thread].waits_for = nullptr;
  machine.ready[thread / 32].push_back(thread);
}

unsigned alive_lanes(int warp) {
  unsigned lanes = 0;
  for (int i = 0; i < 32 && warp * 32 + i < machine.count; i++)
    if (!machine.threads[warp * 32 + i].done) lanes |= 1u << i;
  return lanes;
}

// Completes the exchanges of a warp that all of their living lanes have arrived at; the caller is not woken.
bool complete_exchanges(int warp, int caller) {
  bool is_done = false;
  auto& exchanges = machine.warps[warp];
  unsigned alive = alive_lanes(warp);
  for (size_t i = 0; i < exchanges.size();) {
    Exchange exchange = exchanges[i];
    if ((exchange.mask & alive) != exchange.arrived) {
      i++;
      continue;
    }
    exchanges.erase(exchanges.begin() + i);
    if (exchange.complete) exchange.complete(exchange.payloads, exchange.arrived);
    for (int k = 0; k < 32; k++)
      if (exchange.arrived >> k & 1) {
        if (warp * 32 + k == caller)
          is_done = true;
        else
          wake(warp * 32 + k);
      }
  }
  return is_done;
}

void exchange(unsigned mask, void* payload, Complete complete, const char* what, int line) {
  int warp = state.current / 32, me = lane();
  if (!(mask >> me & 1)) fail(line, "%s with the mask 0x%x, which lacks the calling lane %d", what, mask, me);
  Exchange* found = nullptr;
  for (auto& other : machine.warps[warp]) {
    if (other.mask == mask)
      found = &other;
    else if (other.mask & mask)
      fail(line, "%s with the mask 0x%x, while lanes wait for %s with 0x%x at line %d", what, mask, other.what,
           other.mask, other.line);
  }
  if (!found) {
    machine.warps[warp].push_back({mask, 0, complete, what, line, {}});
    found = &machine.warps[warp].back();
  }
  if (found->complete != complete || found->line != line)
    fail(line, "%s, while other lanes of the warp are at %s at line %d", what, found->what, found->line);
  found->payloads[me] = payload;
  found->arrived |= 1u << me;
  if (!complete_exchanges(warp, state.current)) wait(what, line);
}

bool complete_barrier(Barrier& barrier, int caller) {
  int expected = barrier.count ? barrier.count : machine.alive;
  if (barrier.waiting.empty() || (int)barrier.waiting.size() < expected) return false;
  bool is_done = false;
  std::vector<int> waiting;
  waiting.swap(barrier.waiting);
  barrier.clear();
  for (int thread : waiting)
    if (thread == caller)
      is_done = true;
    else
      wake(thread);
  return is_done;
}

void barrier(int id, int count, int line) {
  if (id < 0 || id >= kBarriers) fail(line, "there are %d barriers, got %d", kBarriers, id);
  Barrier& barrier = machine.barriers[id];
  if (barrier.waiting.empty())
    barrier.line = line, barrier.count = count;
  else if (!id && barrier.line != line)
    fail(line, "a barrier that not all threads of the block reach: others are at the one at line %d", barrier.line);
  else if (barrier.count != count)
    fail(line, "barrier %d with %d threads, while others wait for %d", id, count, barrier.count);
  barrier.waiting.push_back(state.current);
  if (!complete_barrier(barrier, state.current)) wait("a barrier", line);
}

void arrive(int id, int count, int line) {
  Barrier& barrier = machine.barriers[id];
  if (barrier.waiting.empty()) barrier.line = line, barrier.count = count;
  barrier.waiting.push_back(machine.count);  // a thread that is nobody
  if ((int)barrier.waiting.size() < barrier.count) return;
  std::vector<int> waiting;
  waiting.swap(barrier.waiting);
  barrier.clear();
  for (int thread : waiting)
    if (thread < machine.count) wake(thread);
}

void perform(const Copy& copy) {
  memcpy(copy.to, copy.from, copy.bytes);
  memset((char*)copy.to + copy.bytes, 0, copy.zeros);
  size_t first = ((char*)copy.to - state.shared) / 4, end = first + (copy.bytes + copy.zeros) / 4;
  machine.is_hidden = true;
  std::fill(machine.hidden.begin() + first, machine.hidden.begin() + end, state.current + 1);
  machine.threads[state.current].hidden.push_back({first, end});
}

void fence_async_proxy() {
  for (auto& barrier : machine.byte_barriers) barrier.is_published |= barrier.maker == state.current;
  auto& own = machine.threads[state.current].hidden;
  for (auto [first, end] : own)
    for (size_t i = first; i < end; i++)
      if (machine.hidden[i] == state.current + 1) machine.hidden[i] = 0;
  own.clear();
}

void copy_async(void* to, const void* from, size_t size, size_t used, int line) {
  if ((size != 4 && size != 8 && size != 16) || (uintptr_t)to % size || (used && (uintptr_t)from % size))
    fail(line, "cp.async copies 4, 8 or 16 aligned bytes, got %zu from %p to %p", size, from, to);
  Thread& thread = machine.threads[state.current];
  used = used < size ? used : size;
  Copy copy{to, from, used, size - used, thread.group};
  // Until the thread waits for it, a copy may or may not have happened: none, all, then some.
  if (machine.seed == 1 || (machine.seed && draw() & 1))
    perform(copy);
  else
    thread.copies.push_back(copy);
}

void commit_group() { machine.threads[state.current].group++; }

void wait_group(int pending) {
  Thread& thread = machine.threads[state.current];
  int end = pending < 0 ? thread.group + 1 : thread.group - pending;
  std::vector<Copy> kept;
  for (auto& copy : thread.copies)
    if (copy.group < end)
      perform(copy);
    else
      kept.push_back(copy);
  thread.copies.swap(kept);
}

bool products_are_fenced() { return machine.products[state.current / 32].is_fenced; }

void begin_product(uint64_t a, uint64_t b, Multiply multiply, const void* factors, size_t bytes) {
  Products& products = machine.products[state.current / 32];
  products.issued.push_back({a, b});
  std::vector<char> own((const char*)factors, (const char*)factors + bytes);
  products.pending.push_back({products.group, state.current / 32 % 4, multiply, std::move(own)});
  // Until the warp waits for it, a product may or may not have run, after those before it.
  if (machine.seed == 1 || (machine.seed && draw() & 1)) products.run(products.group + 1);
}

void group_fence(int line) {
  auto complete = [](void**, unsigned) { machine.products[state.current / 32].is_fenced = true; };
  exchange(~0u, nullptr, complete, "wgmma.fence", line);
}

void group_commit(int line) {
  auto complete = [](void**, unsigned) { machine.products[state.current / 32].group++; };
  exchange(~0u, nullptr, complete, "wgmma.commit_group", line);
}

void group_wait(int pending, int line) {
  auto complete = [](void** payloads, unsigned) {
    Products& products = machine.products[state.current / 32];
    products.run(products.group - *(int*)payloads[0]);
  };
  exchange(~0u, &pending, complete, "wgmma.wait_group", line);
}

ByteBarrier& byte_barrier(uint64_t at, int line) {
  for (auto& barrier : machine.byte_barriers)
    if (barrier.at == at) return barrier;
  fail(line, "no thread has made the mbarrier at 0x%llx", (unsigned long long)at);
}

void make_mbarrier(uint64_t at, int count, int line) {
  if (at % 8 || at >= kShared) fail(line, "an mbarrier is at a multiple of 8 bytes, got 0x%llx", (unsigned long long)at);
  machine.byte_barriers.push_back({at, count, count, 0, state.current, 0, false});
}

void advance(ByteBarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.count;
  machine.events++;
}

void expect_bytes(uint64_t at, int bytes, int line) {
  ByteBarrier& barrier = byte_barrier(at, line);
  if (!barrier.pending) fail(line, "more threads arrive at an mbarrier than it is for");
  barrier.pending--;
  barrier.bytes += bytes;
  advance(barrier);
}

void perform(const TileCopy& copy) {
  const TensorMap& map = copy.map;
  uint64_t count = 1, offset = copy.to;
  for (unsigned axis = 0; axis < map.rank; axis++) count *= map.box[axis];
  for (uint64_t i = 0; i < count; i++, offset += map.bytes) {
    uint64_t rest = i, from = map.base;
    bool is_inside = true;
    for (unsigned axis = 0; axis < map.rank; axis++) {
      int64_t position = copy.at[axis] + (int64_t)(rest % map.box[axis]);
      rest /= map.box[axis];
      is_inside = is_inside && position >= 0 && position < (int64_t)map.sizes[axis];
      from += position * (axis ? map.strides[axis - 1] : map.bytes);
    }
    uint64_t to = offset ^ (offset >> 7 & 7) << 4;
    char* element = shared_at(to, copy.line);
    if (is_inside)
      memcpy(element, (const void*)from, map.bytes);
    else
      memset(element, 0, map.bytes);
    machine.hidden[to / 4] = 0;
  }
  ByteBarrier& barrier = byte_barrier(copy.barrier, copy.line);
  barrier.bytes -= count * map.bytes;
  advance(barrier);
}

void load_tile(uint64_t to, const void* map, std::initializer_list<int> at, uint64_t barrier, int line) {
  TileCopy copy{*(const TensorMap*)map, {}, to, barrier, line};
  if (copy.map.magic != kTensorMap || (uintptr_t)map % 128) fail(line, "a kernel got no tensor map");
  if (copy.map.rank != at.size()) fail(line, "a box of %u axes at %zu coordinates", copy.map.rank, at.size());
  if (to % 1024) fail(line, "a swizzled box begins at a multiple of 1024 bytes, got 0x%llx", (unsigned long long)to);
  if (!byte_barrier(barrier, line).is_published)
    fail(line, "an mbarrier that the copy engine may not see: no fence.proxy.async after it was made");
  std::copy(at.begin(), at.end(), copy.at);
  machine.events++;
  // Until a thread waits for it, a copy may or may not have happened.
  if (machine.seed == 1 || (machine.seed && draw() & 1))
    perform(copy);
  else
    machine.tiles.push_back(copy);
}

bool phase_is_over(uint64_t at, int parity, int line) {
  auto is_over = [&] { return byte_barrier(at, line).phase != (parity & 1); };
  while (!is_over() && !machine.tiles.empty()) {
    std::swap(machine.tiles.back(), machine.tiles[draw() % machine.tiles.size()]);
    TileCopy copy = machine.tiles.back();
    machine.tiles.pop_back();
    perform(copy);
  }
  if (is_over()) return true;
  machine.polling.push_back(state.current);
  wait("bytes at an mbarrier", line);
  return is_over();
}

char* static_shared(const void* key, size_t bytes, size_t alignment) {
  for (auto& [known, address] : machine.arrays)
    if (known == key) return address;
  size_t begin = (machine.static_end + alignment - 1) / alignment * alignment;
  machine.static_end = begin + bytes;
  size_t used = machine.static_end - (machine.dynamic_bytes + 1023) / 1024 * 1024;
  if (used > kStaticShared || machine.static_end > kShared) fail(0, "a block has no %zu bytes of shared memory", used);
  char* address = state.shared + begin;
  forget(address, bytes);
  machine.arrays.push_back({key, address});
  return address;
}

uint32_t shared_offset(const void* address) {
  ptrdiff_t offset = (const char*)address - state.shared;
  if (offset < 0 || offset >= (ptrdiff_t)kShared) fail(0, "the address is not one of shared memory");
  return (uint32_t)offset;
}

static void run_thread() {
  for (;;) {
    machine.entry(machine.parameters);
    Thread& thread = machine.threads[state.current];
    thread.done = true;
    machine.alive--;
    for (auto& copy : thread.copies) perform(copy);
    thread.copies.clear();
    complete_exchanges(state.current / 32, -1);
    for (auto& barrier : machine.barriers)
      if (!barrier.count) complete_barrier(barrier, -1);
    to_scheduler();
  }
}

void prepare(int count) {
  if (!state.shared) {
    machine.memory = mmap(nullptr, kShared + 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    state.shared = (char*)(((uintptr_t)machine.memory + 1023) / 1024 * 1024);
    auto* stacks = machine.stacks = (char*)mmap(nullptr, count * (kStack + kGuard), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    machine.threads.resize(count);
    for (int i = 0; i < count; i++) {
      char* stack = stacks + i * (kStack + kGuard);
      mprotect(stack, kGuard, PROT_NONE);
      machine.threads[i].start.uc_stack = {stack + kGuard, 0, kStack};
    }
  }
  if (machine.stale)
    for (auto& thread : machine.threads) thread.started = false, thread.copies.clear();
  machine.stale = false;
  machine.count = count;
}

// Unmaps all memory after a launch: each guard is a mapping, and a process may have about 65,000.
struct Released {
  ~Released() {
    if (!state.shared) return;
    munmap(machine.memory, kShared + 1024);
    munmap(machine.stacks, machine.count * (kStack + kGuard));
    state.shared = nullptr;
    machine.threads.clear();
  }
};

void resume(int number) {
  Thread& thread = machine.threads[number];
  state.current = number;
  threadIdx = thread.index;
  if (thread.started) _longjmp(thread.point, 1);
  thread.started = true;
  void *stack = thread.start.uc_stack.ss_sp;
  getcontext(&thread.start);
  thread.start.uc_stack = {stack, 0, kStack};
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, run_thread, 0);
  setcontext(&thread.start);
}

template <class T>
void mix(std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; i--) std::swap(items[i - 1], items[draw() % i]);
}

void start_block() {
  machine.arrays.clear();
  machine.static_end = (machine.dynamic_bytes + 1023) / 1024 * 1024;
  forget(state.shared, machine.dynamic_bytes);
  machine.warps.assign((machine.count + 31) / 32, {});
  machine.products.assign(machine.warps.size(), {});
  machine.byte_barriers.clear();
  machine.tiles.clear();
  machine.polling.clear();
  if (machine.is_hidden || machine.hidden.empty()) machine.hidden.assign(kShared / 4, 0);
  machine.is_hidden = false;
  state.hidden = machine.hidden.data();
  for (auto& barrier : machine.barriers) barrier.clear();
  machine.ready.assign(machine.warps.size(), {});
  machine.turn.clear();
  machine.order.clear();
  for (int i = (int)machine.warps.size(); i--;) machine.order.push_back(i);
  if (machine.seed > 1) mix(machine.order);
  machine.alive = machine.count;
  for (int i = 0; i < machine.count; i++) {
    Thread& thread = machine.threads[i];
    thread.done = false;
    thread.group = 0;
    thread.hidden.clear();
    thread.index = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
    wake(i);
  }
}

// The thread to continue, or -1.
int next_thread() {
  if (machine.seed % 2) {  // one warp is ahead of all others as far as barriers allow: the last one, or any
    for (int warp : machine.order) {
      auto& ready = machine.ready[warp];
      if (ready.empty()) continue;
      std::swap(ready.back(), ready[draw() % ready.size()]);
      int thread = ready.back();
      ready.pop_back();
      return thread;
    }
    return -1;
  }
  if (machine.turn.empty()) {
    for (auto& ready : machine.ready) {
      machine.turn.insert(machine.turn.end(), ready.begin(), ready.end());
      ready.clear();
    }
    if (machine.turn.empty()) return -1;
    if (machine.seed)
      mix(machine.turn);
    else
      std::reverse(machine.turn.begin(), machine.turn.end());
  }
  int thread = machine.turn.back();
  machine.turn.pop_back();
  return thread;
}

// Lets threads look again that wait for bytes, unless nothing has happened since; whether there are some.
bool resume_polling() {
  static uint64_t events;
  if (machine.polling.empty() || machine.events == events) return false;
  std::vector<int> polling;
  polling.swap(machine.polling);
  for (int thread : polling) wake(thread);
  events = machine.events;
  return true;
}

// Whether the block has waited for all products, and the warps of each warpgroup have begun the same ones.
bool products_are_complete() {
  for (size_t warp = 0; warp < machine.products.size(); warp++) {
    auto& products = machine.products[warp];
    bool is_same = products.issued == machine.products[warp / 4 * 4].issued;
    if (products.pending.empty() && is_same) continue;
    machine.error = "warp " + std::to_string(warp) +
                  (is_same ? " does not wait for its last wgmma" : " multiplies others than its warpgroup by wgmma");
    return false;
  }
  return true;
}

__attribute__((noinline)) static bool run_block() {
  start_block();
  if (_setjmp(machine.scheduler) == 2) return false;
  do {
    for (int thread; (thread = next_thread()) >= 0;) resume(thread);
  } while (resume_polling());
  if (!machine.alive && !machine.tiles.empty()) {
    machine.error = "a block ends before the copies of boxes that it has begun";
    return false;
  }
  if (!machine.alive) return products_are_complete();
  for (state.current = 0; machine.threads[state.current].done;) state.current++;
  const Thread& thread = machine.threads[state.current];
  if (!_setjmp(machine.scheduler))
    fail(thread.line, "waits forever for %s that other threads do not reach; %d threads wait",
         thread.waits_for ? thread.waits_for : "something", machine.alive);
  return false;
}

// Runs all blocks; a seed other than 0 shuffles blocks and threads. Returns an error or null.
static const char* launch(void (*entry)(void**), void** parameters, dim3 grid, dim3 block, size_t shared,
                          uint64_t seed) {
  std::lock_guard<std::mutex> guard(machine.mutex);
  Released released;
  uint64_t count = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
  machine.error.clear();
  if (!count || count > kThreads || !blocks || grid.y > 65535 || grid.z > 65535 || shared > kShared) {
    machine.error = "the launch has a size that no GPU has: " + std::to_string(blocks) + " blocks of " +
                  std::to_string(count) + " threads with " + std::to_string(shared) + " bytes";
    return machine.error.c_str();
  }
  prepare((int)count);
  gridDim = grid, blockDim = block;
  machine.dynamic_bytes = shared, machine.entry = entry, machine.parameters = parameters;
  machine.seed = machine.drawn = seed;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; i++) order[i] = i;
  if (seed) mix(order);
  for (uint64_t i : order) {
    blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / ((uint64_t)grid.x * grid.y));
    if (!run_block()) {
      machine.stale = true;
      return machine.error.c_str();
    }
  }
  return nullptr;
}

}  // namespace emulator

extern "C" const char* emulated_launch(void (*entry)(void**), void** parameters, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, size_t shared, uint64_t seed) {
  return emulator::launch(entry, parameters, {gx, gy, gz}, {bx, by, bz}, shared, seed);
}
