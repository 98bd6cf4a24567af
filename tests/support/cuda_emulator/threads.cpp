// The threads of emulated blocks: what they wait for, and whose turn it is.
#include "threads.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

State state;

void forget(void* memory, size_t bytes) { memset(memory, state.seed ? 0x3b + (int)state.seed : 0xff, bytes); }

__attribute__((noinline)) static void to_scheduler() {
  if (!_setjmp(state.threads[state.current].point)) _longjmp(state.scheduler, 1);
}

[[noreturn]] void fail(int line, const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const Thread& thread = state.threads[state.current];
  char where[160];
  snprintf(where, sizeof where, "line %d, thread (%u, %u, %u) of block (%u, %u, %u): ", line, thread.index.x,
           thread.index.y, thread.index.z, blockIdx.x, blockIdx.y, blockIdx.z);
  state.error = std::string(where) + text;
  _longjmp(state.scheduler, 2);
}

void wait(const char* what, int line) {
  Thread& thread = state.threads[state.current];
  thread.waits_for = what;
  thread.line = line;
  to_scheduler();
  threadIdx = thread.index;
}

void wake(int thread) {
  state.threads[thread].waits_for = nullptr;
  state.ready[thread / 32].push_back(thread);
}

unsigned alive_lanes(int warp) {
  unsigned lanes = 0;
  for (int i = 0; i < 32 && warp * 32 + i < state.count; i++)
    if (!state.threads[warp * 32 + i].done) lanes |= 1u << i;
  return lanes;
}

// Completes the exchanges of a warp that all of their living lanes have arrived at; the caller is not woken.
bool complete_exchanges(int warp, int caller) {
  bool is_done = false;
  auto& exchanges = state.warps[warp];
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
  for (auto& other : state.warps[warp]) {
    if (other.mask == mask)
      found = &other;
    else if (other.mask & mask)
      fail(line, "%s with the mask 0x%x, while lanes wait for %s with 0x%x at line %d", what, mask, other.what,
           other.mask, other.line);
  }
  if (!found) {
    state.warps[warp].push_back({mask, 0, complete, what, line, {}});
    found = &state.warps[warp].back();
  }
  if (found->complete != complete || found->line != line)
    fail(line, "%s, while other lanes of the warp are at %s at line %d", what, found->what, found->line);
  found->payloads[me] = payload;
  found->arrived |= 1u << me;
  if (!complete_exchanges(warp, state.current)) wait(what, line);
}

bool complete_barrier(Barrier& barrier, int caller) {
  int expected = barrier.count ? barrier.count : state.alive;
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
  Barrier& barrier = state.barriers[id];
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
  Barrier& barrier = state.barriers[id];
  if (barrier.waiting.empty()) barrier.line = line, barrier.count = count;
  barrier.waiting.push_back(state.count);  // a thread that is nobody
  if ((int)barrier.waiting.size() < barrier.count) return;
  std::vector<int> waiting;
  waiting.swap(barrier.waiting);
  barrier.clear();
  for (int thread : waiting)
    if (thread < state.count) wake(thread);
}

void perform(const Copy& copy) {
  memcpy(copy.to, copy.from, copy.bytes);
  memset((char*)copy.to + copy.bytes, 0, copy.zeros);
  size_t first = ((char*)copy.to - state.shared) / 4, end = first + (copy.bytes + copy.zeros) / 4;
  std::fill(state.hidden.begin() + first, state.hidden.begin() + end, state.current + 1);
  state.threads[state.current].hidden.push_back({first, end});
}

void fence_async_proxy() {
  auto& own = state.threads[state.current].hidden;
  for (auto [first, end] : own)
    for (size_t i = first; i < end; i++)
      if (state.hidden[i] == state.current + 1) state.hidden[i] = 0;
  own.clear();
}

void copy_async(void* to, const void* from, size_t size, size_t used, int line) {
  if ((size != 4 && size != 8 && size != 16) || (uintptr_t)to % size || (used && (uintptr_t)from % size))
    fail(line, "cp.async copies 4, 8 or 16 aligned bytes, got %zu from %p to %p", size, from, to);
  Thread& thread = state.threads[state.current];
  used = used < size ? used : size;
  Copy copy{to, from, used, size - used, thread.group};
  // Until the thread waits for it, a copy may or may not have happened: none, all, then some.
  if (state.seed == 1 || (state.seed && draw() & 1))
    perform(copy);
  else
    thread.copies.push_back(copy);
}

void commit_group() { state.threads[state.current].group++; }

void wait_group(int pending) {
  Thread& thread = state.threads[state.current];
  int end = pending < 0 ? thread.group + 1 : thread.group - pending;
  std::vector<Copy> kept;
  for (auto& copy : thread.copies)
    if (copy.group < end)
      perform(copy);
    else
      kept.push_back(copy);
  thread.copies.swap(kept);
}

char* static_shared(const void* key, size_t bytes, size_t alignment) {
  for (auto& [known, address] : state.arrays)
    if (known == key) return address;
  size_t begin = (state.static_end + alignment - 1) / alignment * alignment;
  state.static_end = begin + bytes;
  size_t used = state.static_end - (state.dynamic_bytes + 1023) / 1024 * 1024;
  if (used > kStaticShared || state.static_end > kShared) fail(0, "a block has no %zu bytes of shared memory", used);
  char* address = state.shared + begin;
  forget(address, bytes);
  state.arrays.push_back({key, address});
  return address;
}

uint32_t shared_offset(const void* address) {
  ptrdiff_t offset = (const char*)address - state.shared;
  if (offset < 0 || offset >= (ptrdiff_t)kShared) fail(0, "the address is not one of shared memory");
  return (uint32_t)offset;
}

static void run_thread() {
  for (;;) {
    state.entry(state.parameters);
    Thread& thread = state.threads[state.current];
    thread.done = true;
    state.alive--;
    for (auto& copy : thread.copies) perform(copy);
    thread.copies.clear();
    complete_exchanges(state.current / 32, -1);
    for (auto& barrier : state.barriers)
      if (!barrier.count) complete_barrier(barrier, -1);
    to_scheduler();
  }
}

void prepare(int count) {
  if (!state.shared) {
    state.memory = mmap(nullptr, kShared + 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    state.shared = (char*)(((uintptr_t)state.memory + 1023) / 1024 * 1024);
    auto* stacks = state.stacks = (char*)mmap(nullptr, kThreads * (kStack + kGuard), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    state.threads.resize(kThreads);
    for (int i = 0; i < kThreads; i++) {
      char* stack = stacks + i * (kStack + kGuard);
      mprotect(stack, kGuard, PROT_NONE);
      state.threads[i].start.uc_stack = {stack + kGuard, 0, kStack};
    }
  }
  if (state.stale)
    for (auto& thread : state.threads) thread.started = false, thread.copies.clear();
  state.stale = false;
  state.count = count;
}

// Unmaps all memory after a launch: each guard is a mapping, and a process may have about 65,000.
struct Released {
  ~Released() {
    if (!state.shared) return;
    munmap(state.memory, kShared + 1024);
    munmap(state.stacks, kThreads * (kStack + kGuard));
    state.shared = nullptr;
    state.threads.clear();
  }
};

void resume(int number) {
  Thread& thread = state.threads[number];
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
  state.arrays.clear();
  state.static_end = (state.dynamic_bytes + 1023) / 1024 * 1024;
  forget(state.shared, state.dynamic_bytes);
  state.warps.assign((state.count + 31) / 32, {});
  state.products.assign(state.warps.size(), {});
  state.hidden.assign(kShared / 4, 0);
  for (auto& barrier : state.barriers) barrier.clear();
  state.ready.assign(state.warps.size(), {});
  state.turn.clear();
  state.order.clear();
  for (int i = (int)state.warps.size(); i--;) state.order.push_back(i);
  if (state.seed > 1) mix(state.order);
  state.alive = state.count;
  for (int i = 0; i < state.count; i++) {
    Thread& thread = state.threads[i];
    thread.done = false;
    thread.group = 0;
    thread.hidden.clear();
    thread.index = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
    wake(i);
  }
}

// The thread to continue, or -1.
int next_thread() {
  if (state.seed % 2) {  // one warp is ahead of all others as far as barriers allow: the last one, or any
    for (int warp : state.order) {
      auto& ready = state.ready[warp];
      if (ready.empty()) continue;
      std::swap(ready.back(), ready[draw() % ready.size()]);
      int thread = ready.back();
      ready.pop_back();
      return thread;
    }
    return -1;
  }
  if (state.turn.empty()) {
    for (auto& ready : state.ready) {
      state.turn.insert(state.turn.end(), ready.begin(), ready.end());
      ready.clear();
    }
    if (state.turn.empty()) return -1;
    if (state.seed)
      mix(state.turn);
    else
      std::reverse(state.turn.begin(), state.turn.end());
  }
  int thread = state.turn.back();
  state.turn.pop_back();
  return thread;
}

// Whether the block has waited for all products, and the warps of each warpgroup have begun the same ones.
bool products_are_complete() {
  for (size_t warp = 0; warp < state.products.size(); warp++) {
    auto& products = state.products[warp];
    bool is_same = products.issued == state.products[warp / 4 * 4].issued;
    if (products.pending.empty() && is_same) continue;
    state.error = "warp " + std::to_string(warp) +
                  (is_same ? " does not wait for its last wgmma" : " multiplies others than its warpgroup by wgmma");
    return false;
  }
  return true;
}

__attribute__((noinline)) static bool run_block() {
  start_block();
  if (_setjmp(state.scheduler) == 2) return false;
  for (int thread; (thread = next_thread()) >= 0;) resume(thread);
  if (!state.alive) return products_are_complete();
  for (state.current = 0; state.threads[state.current].done;) state.current++;
  const Thread& thread = state.threads[state.current];
  if (!_setjmp(state.scheduler))
    fail(thread.line, "waits forever for %s that other threads do not reach; %d threads wait",
         thread.waits_for ? thread.waits_for : "something", state.alive);
  return false;
}

// Runs all blocks; a seed other than 0 shuffles blocks and threads. Returns an error or null.
static const char* launch(void (*entry)(void**), void** parameters, dim3 grid, dim3 block, size_t shared,
                          uint64_t seed) {
  std::lock_guard<std::mutex> guard(state.mutex);
  Released released;
  uint64_t count = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
  state.error.clear();
  if (!count || count > kThreads || !blocks || grid.y > 65535 || grid.z > 65535 || shared > kShared) {
    state.error = "the launch has a size that no GPU has: " + std::to_string(blocks) + " blocks of " +
                  std::to_string(count) + " threads with " + std::to_string(shared) + " bytes";
    return state.error.c_str();
  }
  prepare((int)count);
  gridDim = grid, blockDim = block;
  state.dynamic_bytes = shared, state.entry = entry, state.parameters = parameters;
  state.seed = state.drawn = seed;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; i++) order[i] = i;
  if (seed) mix(order);
  for (uint64_t i : order) {
    blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / ((uint64_t)grid.x * grid.y));
    if (!run_block()) {
      state.stale = true;
      return state.error.c_str();
    }
  }
  return nullptr;
}

}  // namespace emulator

extern "C" const char* emulated_launch(void (*entry)(void**), void** parameters, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, size_t shared, uint64_t seed) {
  return emulator::launch(entry, parameters, {gx, gy, gz}, {bx, by, bz}, shared, seed);
}
