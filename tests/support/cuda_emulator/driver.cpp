// The functions of NVIDIA's driver that the launcher calls, on the CPU. Modules are shared libraries of the emulator.
// Streams run as late as the driver may: when something waits for them. Tests can make any function fail.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include "tensor_map.h"

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700,
       OUT_OF_RESOURCES = 701, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801 };

struct Kernel {
  const char* name;
  void (*entry)(void**);
  int count;
  const size_t* sizes;
  int most_threads;
};
using Run = const char* (*)(void (*)(void**), void**, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, size_t,
                            uint64_t);

struct Context { int device; };
struct Module;
struct Function { Module* module; Kernel kernel; size_t shared_limit = 48 << 10; };
struct Module {
  Context* context;
  void* library;
  Run run;
  Kernel* kernels;
  std::vector<std::unique_ptr<Function>> functions;
};
struct Stream { Context* context; std::deque<std::function<void()>> pending; uint64_t submitted = 0, done = 0; };
struct Event { Stream* stream = nullptr; uint64_t at = 0; };

struct Graph;
struct Launch {
  Function* function = nullptr;  // null: a copy, or a conditional node
  unsigned sizes[6];
  size_t shared;
  std::vector<std::vector<char>> arguments;
  char *to, *from;
  size_t bytes;
  int kind = -1;  // of a conditional node: IF, WHILE, SWITCH
  uint64_t condition = 0;
  std::vector<std::shared_ptr<struct Prepared>> bodies;
};
struct Node { Launch launch; std::vector<Node*> dependencies; std::vector<std::unique_ptr<Graph>> bodies;
              std::vector<Graph*> addresses; };
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  Graph* parent = nullptr;
  std::vector<uint64_t> unused;  // conditions that no node has
  bool has_conditions = false, is_instantiated = false;
};
struct Prepared { std::map<Node*, size_t> index; std::vector<Launch> launches; std::vector<std::vector<size_t>> after; };
struct Exec : Prepared {};
enum { IF, WHILE, SWITCH };
struct Condition { Graph* graph; uint64_t value; bool is_known, is_current; };

struct Allocation { size_t bytes; int device; };

// That of the environment, for programs without controls.
int version_of_driver() {
  const char* version = getenv("EMULATED_VERSION");
  return version ? atoi(version) : 13000;
}

struct State {
  std::recursive_mutex mutex;
  int devices = 2, version = version_of_driver(), major = 9, minor = 0;
  size_t limit = size_t(1) << 30, used[8] = {};
  uint64_t seed = 0;
  std::map<char*, Allocation> allocations;
  std::vector<std::unique_ptr<Stream>> streams;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, std::pair<int, int>> failures;  // a code, and after how many calls
  uint64_t total = 0, failing = ~uint64_t(0);  // calls of all functions, and which one fails
  int failing_code = 0;
  std::string failed;
  int live = 0;  // what was made and not freed: contexts, modules, streams, events, memory, graphs
  int sticky = 0;
  std::string message;
  std::map<uint64_t, Condition> conditions;
  uint64_t next_condition = 1000;
  Context contexts[8];
};
State& state() { static State* one = new State; return *one; }  // never destroyed
thread_local Context* current = nullptr;
thread_local std::vector<Context*> beneath;

// The first thing in every function: counts it, and fails if a test or an earlier kernel says so.
int entered(const char* name) {
  State& s = state();
  s.calls[name]++;
  if (s.total++ == s.failing) {
    s.failed = name;
    return s.failing_code;
  }
  auto failure = s.failures.find(name);
  if (failure != s.failures.end() && failure->second.second-- <= 0) {
    int code = failure->second.first;
    s.failures.erase(failure);
    return code;
  }
  return s.sticky;
}
#define ENTER                                                    \
  std::lock_guard<std::recursive_mutex> guard(state().mutex);    \
  if (int code = entered(__func__)) return code;
#define NEEDS(condition, code) \
  if (!(condition)) return code;

const std::pair<char* const, Allocation>* allocation_of(const void* address) {
  auto& all = state().allocations;
  auto next = all.upper_bound((char*)address);
  if (next == all.begin()) return nullptr;
  auto& found = *--next;
  return (char*)address < found.first + found.second.bytes ? &found : nullptr;
}

bool is_inside(const void* address, size_t bytes) {
  auto* found = allocation_of(address);
  return !bytes || (found && (char*)address + bytes <= found->first + found->second.bytes);
}

void fail(int code, const std::string& message) {
  if (!state().sticky) state().sticky = code, state().message = message;
}

void run_graph(const Prepared& prepared);

// What kernels call; a condition can only be set while its graph runs.
void set_condition(unsigned long long handle, unsigned value) {
  auto found = state().conditions.find(handle);
  if (found == state().conditions.end() || !found->second.is_current)
    return fail(ILLEGAL_ADDRESS, "a condition that no running graph has");
  found->second.value = value, found->second.is_known = true;
}

void execute_conditional(const Launch& launch) {
  Condition& condition = state().conditions.at(launch.condition);
  for (bool again = true; again && !state().sticky;) {
    if (!condition.is_known) return fail(LAUNCH_FAILED, "a condition that no kernel has set");
    uint64_t value = condition.value;
    again = launch.kind == WHILE && value;
    if (launch.kind == SWITCH ? value < launch.bodies.size() : value != 0)
      run_graph(*launch.bodies[launch.kind == SWITCH ? value : 0]);
  }
}

void execute(const Launch& launch) {
  if (state().sticky) return;
  if (launch.kind >= 0) return execute_conditional(launch);
  if (!launch.function) {
    if (!is_inside(launch.to, launch.bytes) || !is_inside(launch.from, launch.bytes))
      return fail(ILLEGAL_ADDRESS, "a copy outside of any allocation");
    memmove(launch.to, launch.from, launch.bytes);
    return;
  }
  std::vector<void*> parameters;
  for (auto& argument : launch.arguments) {
    parameters.push_back((void*)argument.data());
    char* address = nullptr;
    if (argument.size() == 8) memcpy(&address, argument.data(), 8);
    auto* found = address ? allocation_of(address) : nullptr;
    if (found && found->second.device != launch.function->module->context->device)
      return fail(ILLEGAL_ADDRESS, std::string(launch.function->kernel.name) + ": memory of another device");
  }
  const unsigned* n = launch.sizes;
  const char* error = launch.function->module->run(launch.function->kernel.entry, parameters.data(), n[0], n[1], n[2],
                                                   n[3], n[4], n[5], launch.shared, state().seed);
  if (error) fail(LAUNCH_FAILED, std::string(launch.function->kernel.name) + ": " + error);
}

void run_until(Stream* stream, uint64_t at) {
  while (stream->done < at && !stream->pending.empty()) {
    auto operation = std::move(stream->pending.front());
    stream->pending.pop_front();
    operation();
    stream->done++;
  }
}
void drain(Stream* stream) { run_until(stream, stream->submitted); }
void drain_all() {
  for (auto& stream : state().streams) drain(stream.get());
}
void submit(Stream* stream, std::function<void()> operation) {
  stream->pending.push_back(std::move(operation));
  stream->submitted++;
}

int check(const Launch& launch, Context* context) {
  NEEDS(launch.function, SUCCESS)
  NEEDS(launch.function->module->context == context, INVALID_HANDLE)
  uint64_t threads = (uint64_t)launch.sizes[3] * launch.sizes[4] * launch.sizes[5];
  NEEDS(threads && launch.sizes[0] && launch.sizes[1] && launch.sizes[2], INVALID_VALUE)
  NEEDS(threads <= (uint64_t)launch.function->kernel.most_threads, OUT_OF_RESOURCES)
  NEEDS(launch.shared <= launch.function->shared_limit, INVALID_VALUE)
  return SUCCESS;
}

Launch launch_of(Function* function, const unsigned* sizes, size_t shared, void** parameters) {
  Launch launch{function, {}, shared, {}, nullptr, nullptr, 0};
  memcpy(launch.sizes, sizes, sizeof launch.sizes);
  for (int i = 0; i < function->kernel.count; i++) {
    char* value = (char*)parameters[i];
    launch.arguments.emplace_back(value, value + function->kernel.sizes[i]);
  }
  return launch;
}

// The nodes in an order that their dependencies allow.
void run_graph(const Prepared& prepared) {
  auto& [_, launches, after] = prepared;
  std::vector<char> done(launches.size());
  uint64_t random = state().seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t left = launches.size(); left;) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < launches.size() && ready.size() < 8; i++) {
      bool is_ready = !done[i];
      for (size_t j : after[i]) is_ready = is_ready && done[j];
      if (is_ready) ready.push_back(i);
    }
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    size_t next = ready[state().seed ? random % ready.size() : 0];
    execute(launches[next]);
    done[next] = 1, left--;
  }
}

struct KernelParameters {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function* function;
  unsigned sizes[6], shared;
  void **parameters, **extra;
  void* kernel;
  Context* context;
};

struct Copy3D {  // CUDA_MEMCPY3D_v2
  size_t source_x, source_y, source_z, source_level;
  int source_kind;
  const void* source_host;
  char* source;
  void *source_array, *reserved0;
  size_t source_pitch, source_height, x, y, z, level;
  int kind;
  void* host;
  char* target;
  void *array, *reserved1;
  size_t pitch, target_height, width, height, depth;
};

struct ConditionalParameters {  // CUgraphNodeParams with CUDA_CONDITIONAL_NODE_PARAMS
  int type, reserved0[3];
  uint64_t handle;
  unsigned kind, size;
  Graph** graphs;
  Context* context;
  char unused[200];
  long long reserved2;
};
static_assert(sizeof(ConditionalParameters) == 256);

struct Attribute { int id; char pad[4]; union { char bytes[64]; unsigned cluster[3]; }; };
struct Config {  // CUlaunchConfig
  unsigned sizes[6], shared;
  Stream* stream;
  Attribute* attributes;
  unsigned count;
};

Launch copy_of(const Copy3D& copy) {
  return {nullptr, {}, 0, {}, copy.target + copy.x, copy.source + copy.source_x, copy.width};
}

}  // namespace

extern "C" {

// -- for tests --------------------------------------------------------------------------------------------------------

void emulated_reset(int devices, size_t limit, uint64_t seed) {
  std::lock_guard<std::recursive_mutex> guard(state().mutex);
  if (!state().sticky) drain_all();
  for (auto& stream : state().streams) stream->pending.clear(), stream->done = stream->submitted;
  state().devices = devices, state().limit = limit, state().seed = seed;
  state().sticky = 0;
  memset(state().used, 0, sizeof state().used);  // what is still allocated does not count
  state().failures.clear();
  state().calls.clear();
  state().message.clear();
  beneath.clear();
  state().total = 0, state().failing = ~uint64_t(0), state().live = 0;
  state().version = version_of_driver(), state().major = 9, state().minor = 0;
}
void emulated_fail(const char* name, int code, int after) { state().failures[name] = {code, after}; }
uint64_t emulated_calls(const char* name) { return state().calls[name]; }
size_t emulated_used(int device) { return state().used[device]; }
void emulated_fail_call(uint64_t index, int code) {
  state().failing = state().total + index, state().failing_code = code, state().failed.clear();
}
const char* emulated_failed() { return state().failed.c_str(); }  // the function, or "" if there were fewer calls
int emulated_live() { return state().live; }
int emulated_depth() { return (int)beneath.size(); }
void emulated_is(int version, int major, int minor) {
  state().version = version, state().major = major, state().minor = minor;
}
const char* emulated_message() { return state().message.c_str(); }

// -- devices and contexts ---------------------------------------------------------------------------------------------

int cuInit(unsigned) { ENTER return SUCCESS; }
int cuDriverGetVersion(int* version) { ENTER *version = state().version; return SUCCESS; }
int cuDeviceGetCount(int* count) { ENTER *count = state().devices; return SUCCESS; }
int cuDeviceGet(int* device, int index) {
  ENTER
  NEEDS(index >= 0 && index < state().devices, INVALID_DEVICE)
  *device = index;
  return SUCCESS;
}
int cuDeviceGetName(char* name, int length, int) { ENTER snprintf(name, length, "Emulator"); return SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER
  switch (attribute) {
    case 1: *value = 1024; break;        // threads of a block
    case 8: *value = 48 << 10; break;    // shared memory of a block
    case 10: *value = 32; break;         // threads of a warp
    case 12: *value = 65536; break;      // registers of a block
    case 16: *value = 132; break;        // multiprocessors
    case 75: *value = state().major; break;  // compute capability
    case 76: *value = state().minor; break;
    case 97: *value = 227 << 10; break;  // shared memory of a block that asks for it
    default: return INVALID_VALUE;
  }
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(Context** context, int device) {
  ENTER
  *context = &state().contexts[device];
  (*context)->device = device;
  state().live++;
  return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) { ENTER state().live--; return SUCCESS; }
int cuCtxPushCurrent_v2(Context* context) {
  ENTER
  beneath.push_back(current);
  current = context;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(Context** context) {
  ENTER
  NEEDS(!beneath.empty(), INVALID_CONTEXT)
  *context = current;
  current = beneath.back();
  beneath.pop_back();
  return SUCCESS;
}
int cuCtxSetCurrent(Context* context) { ENTER current = context; return SUCCESS; }
int cuCtxSynchronize() {
  ENTER
  NEEDS(current, INVALID_CONTEXT)
  drain_all();
  return state().sticky;
}
int cuGetErrorName(int code, const char** name) {
  static const std::map<int, const char*> names = {
      {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},       {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},     {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
      {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},   {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
      {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},               {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}, {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
      {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
      {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},             {100, "CUDA_ERROR_NO_DEVICE"}};
  auto found = names.find(code);
  *name = found == names.end() ? nullptr : found->second;
  return *name ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorString(int code, const char** text) { return cuGetErrorName(code, text); }

// -- modules ----------------------------------------------------------------------------------------------------------

int cuModuleLoadData(Module** module, const void* image) {
  ENTER
  NEEDS(current, INVALID_CONTEXT)
  auto* header = (const Elf64_Ehdr*)image;
  NEEDS(!memcmp(header->e_ident, ELFMAG, SELFMAG) && header->e_machine == EM_X86_64, INVALID_IMAGE)
  size_t size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  char path[] = "/tmp/emulatedXXXXXX";
  int file = mkstemp(path);
  bool is_written = file >= 0 && write(file, image, size) == (ssize_t)size;
  if (file >= 0) close(file);
  void* library = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  NEEDS(library, INVALID_IMAGE)
  *(void (**)(unsigned long long, unsigned))dlsym(library, "emulated_set_condition") = set_condition;
  *module = new Module{current, library, (Run)dlsym(library, "emulated_launch"),
                       (Kernel*)dlsym(library, "emulated_kernels"), {}};
  state().live++;
  return SUCCESS;
}
int cuModuleUnload(Module* module) {
  ENTER
  drain_all();
  dlclose(module->library);
  delete module;
  state().live--;
  return SUCCESS;
}
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  ENTER
  for (Kernel* kernel = module->kernels; kernel->name; kernel++)
    if (!strcmp(kernel->name, name)) {
      module->functions.push_back(std::make_unique<Function>(Function{module, *kernel}));
      *function = module->functions.back().get();
      return SUCCESS;
    }
  return NOT_FOUND;
}
int cuTensorMapEncodeTiled(void* to, int dtype, unsigned rank, uint64_t base, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleaving,
                           int swizzle, int, int fill) {
  ENTER
  const int bytes = dtype == 6 || dtype == 9 ? 2 : 0;  // half precision
  NEEDS(bytes && (uintptr_t)to % 128 == 0 && base % 16 == 0 && rank >= 1 && rank <= 5, INVALID_VALUE)
  NEEDS(!interleaving && swizzle == 3 && !fill && box[0] * bytes <= 128, INVALID_VALUE)
  emulator::TensorMap map{emulator::kTensorMap, rank, base, {}, {}, {}, (uint16_t)bytes};
  for (unsigned axis = 0; axis < rank; axis++) {
    NEEDS(sizes[axis] >= 1 && sizes[axis] <= 1ull << 32 && box[axis] >= 1 && box[axis] <= 256, INVALID_VALUE)
    NEEDS(steps[axis] == 1 && (!axis || (strides[axis - 1] % 16 == 0 && strides[axis - 1] < 1ull << 40)), INVALID_VALUE)
    // Axes do not overlap, and each stride is a multiple of the one before.
    uint64_t before = axis > 1 ? strides[axis - 2] : bytes;
    NEEDS(!axis || (strides[axis - 1] % before == 0 && strides[axis - 1] >= before * sizes[axis - 1]), INVALID_VALUE)
    map.sizes[axis] = (uint32_t)sizes[axis], map.box[axis] = (uint16_t)box[axis];
    if (axis) map.strides[axis - 1] = strides[axis - 1];
  }
  memcpy(to, &map, sizeof map);
  return SUCCESS;
}

int cuFuncSetAttribute(Function* function, int attribute, int value) {
  ENTER
  if (attribute == 8) {
    NEEDS(value <= 227 << 10, INVALID_VALUE)
    function->shared_limit = value;
  }
  return SUCCESS;
}

// -- memory -----------------------------------------------------------------------------------------------------------

int cuMemAlloc_v2(char** address, size_t bytes) {
  ENTER
  NEEDS(current, INVALID_CONTEXT)
  NEEDS(bytes, INVALID_VALUE)
  size_t& used = state().used[current->device];
  NEEDS(used + bytes <= state().limit, OUT_OF_MEMORY)
  *address = (char*)aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(*address, 0xff, bytes);
  state().allocations[*address] = {bytes, current->device};
  used += bytes;
  state().live++;
  return SUCCESS;
}
int cuMemFree_v2(char* address) {
  ENTER
  drain_all();
  auto found = state().allocations.find(address);
  NEEDS(found != state().allocations.end(), INVALID_VALUE)
  size_t& used = state().used[found->second.device];
  used -= found->second.bytes < used ? found->second.bytes : used;
  memset(address, 0xff, found->second.bytes);
  state().allocations.erase(found);
  free(address);
  state().live--;
  return SUCCESS;
}
int cuPointerGetAttribute(void* value, int attribute, const void* address) {
  ENTER
  auto* found = allocation_of(address);
  NEEDS(found && (attribute == 2 || attribute == 9), INVALID_VALUE)
  *(int*)value = attribute == 2 ? 2 : found->second.device;  // memory of a device, and which
  return SUCCESS;
}
int cuMemsetD8Async(char* to, unsigned char value, size_t bytes, Stream* stream) {
  ENTER
  NEEDS(is_inside(to, bytes), INVALID_VALUE)
  submit(stream, [=] { memset(to, value, bytes); });
  return SUCCESS;
}
int cuMemGetInfo_v2(size_t* available, size_t* total) {
  ENTER
  NEEDS(current, INVALID_CONTEXT)
  *total = state().limit;
  *available = state().limit - state().used[current->device];
  return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(char* to, const void* from, size_t bytes, Stream* stream) {
  ENTER
  NEEDS(is_inside(to, bytes), INVALID_VALUE)
  std::vector<char> staged((char*)from, (char*)from + bytes);
  submit(stream, [=] { memcpy(to, staged.data(), staged.size()); });
  return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void* to, const char* from, size_t bytes, Stream* stream) {
  ENTER
  NEEDS(is_inside(from, bytes), INVALID_VALUE)
  submit(stream, [=] { memcpy(to, from, bytes); });
  return SUCCESS;
}
int cuMemcpyDtoH_v2(void* to, const char* from, size_t bytes) {
  ENTER
  NEEDS(is_inside(from, bytes), INVALID_VALUE)
  drain_all();
  memcpy(to, from, bytes);
  return state().sticky;
}
int cuMemcpyDtoDAsync_v2(char* to, char* from, size_t bytes, Stream* stream) {
  ENTER
  NEEDS(is_inside(to, bytes) && is_inside(from, bytes), INVALID_VALUE)
  submit(stream, [=] { execute({nullptr, {}, 0, {}, to, from, bytes}); });
  return SUCCESS;
}
int cuMemcpyPeerAsync(char* to, Context* there, char* from, Context* here, size_t bytes, Stream* stream) {
  ENTER
  NEEDS(is_inside(to, bytes) && is_inside(from, bytes), INVALID_VALUE)
  if (bytes) {
    NEEDS(allocation_of(to)->second.device == there->device, INVALID_VALUE)
    NEEDS(allocation_of(from)->second.device == here->device, INVALID_VALUE)
  }
  submit(stream, [=] { execute({nullptr, {}, 0, {}, to, from, bytes}); });
  return SUCCESS;
}

// -- streams and events -----------------------------------------------------------------------------------------------

int cuStreamCreate(Stream** stream, unsigned) {
  ENTER
  NEEDS(current, INVALID_CONTEXT)
  state().streams.push_back(std::make_unique<Stream>());
  *stream = state().streams.back().get();
  (*stream)->context = current;
  state().live++;
  return SUCCESS;
}
int cuStreamDestroy_v2(Stream* stream) {
  ENTER
  drain(stream);  // it stays, since events may know it
  state().live--;
  return SUCCESS;
}
int cuStreamSynchronize(Stream* stream) {
  ENTER
  drain(stream);
  return state().sticky;
}
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  ENTER
  Event recorded = *event;
  submit(stream, [=] { if (recorded.stream) run_until(recorded.stream, recorded.at); });
  return SUCCESS;
}
int cuEventCreate(Event** event, unsigned) {
  ENTER
  NEEDS(current, INVALID_CONTEXT)
  *event = new Event;
  state().live++;
  return SUCCESS;
}
int cuEventSynchronize(Event* event) {
  ENTER
  if (event->stream) run_until(event->stream, event->at);
  return state().sticky;
}
int cuEventRecord(Event* event, Stream* stream) {
  ENTER
  *event = {stream, stream->submitted};
  return SUCCESS;
}
int cuEventElapsedTime(float* milliseconds, Event* first, Event* second) {
  ENTER
  NEEDS(first && second, INVALID_VALUE)
  *milliseconds = 1;  // time does not pass here
  return SUCCESS;
}
int cuEventDestroy_v2(Event* event) {
  ENTER
  delete event;
  state().live--;
  return SUCCESS;
}

// -- kernels ----------------------------------------------------------------------------------------------------------

int cuLaunchKernelEx(const Config* config, Function* function, void** parameters, void**) {
  ENTER
  NEEDS(current == config->stream->context, INVALID_CONTEXT)
  Launch launch = launch_of(function, config->sizes, config->shared, parameters);
  if (int code = check(launch, current)) return code;
  submit(config->stream, [=] { execute(launch); });
  return SUCCESS;
}

// -- graphs -----------------------------------------------------------------------------------------------------------

int cuGraphCreate(Graph** graph, unsigned) {
  ENTER
  *graph = new Graph;
  state().live++;
  return SUCCESS;
}
int cuGraphDestroy(Graph* graph) {
  ENTER
  delete graph;
  state().live--;
  return SUCCESS;
}
static Node* added(Graph* graph, Launch launch, Node* const* dependencies, size_t count) {
  graph->nodes.push_back(std::make_unique<Node>());
  Node* node = graph->nodes.back().get();
  node->launch = std::move(launch);
  node->dependencies.assign(dependencies, dependencies + count);
  return node;
}
int cuGraphConditionalHandleCreate(uint64_t* handle, Graph* graph, Context* context, unsigned, unsigned flags) {
  ENTER
  NEEDS(state().version >= 12030, NOT_SUPPORTED)
  NEEDS(context == current && !flags, INVALID_VALUE)
  *handle = state().next_condition++;
  state().conditions[*handle] = {graph, 0, false, false};
  graph->unused.push_back(*handle);
  return SUCCESS;
}
int cuGraphAddNode_v2(Node** node, Graph* graph, Node* const* after, const void* edges, size_t count,
                      ConditionalParameters* p) {
  ENTER
  NEEDS(state().version >= 12030, NOT_SUPPORTED)
  NEEDS(p->type == 13 && !edges && !p->reserved0[0] && !p->reserved2 && p->context == current, INVALID_VALUE)
  NEEDS(p->kind == SWITCH ? p->size && state().version >= 12080 : p->kind <= WHILE && p->size == 1, INVALID_VALUE)
  auto condition = state().conditions.find(p->handle);
  NEEDS(condition != state().conditions.end(), INVALID_VALUE)
  auto& unused = condition->second.graph->unused;
  auto used = std::find(unused.begin(), unused.end(), p->handle);
  NEEDS(condition->second.graph == graph && used != unused.end(), INVALID_VALUE)
  unused.erase(used);
  Launch launch{};
  launch.kind = (int)p->kind, launch.condition = p->handle;
  *node = added(graph, std::move(launch), after, count);
  for (unsigned i = 0; i < p->size; i++) {
    (*node)->bodies.push_back(std::make_unique<Graph>());
    (*node)->bodies.back()->parent = graph;
    (*node)->addresses.push_back((*node)->bodies.back().get());
  }
  p->graphs = (*node)->addresses.data();
  for (; graph; graph = graph->parent) graph->has_conditions = true;
  return SUCCESS;
}
static int prepare(const Graph& graph, Prepared& into) {
  NEEDS(graph.unused.empty(), INVALID_VALUE)
  for (auto& node : graph.nodes) {
    into.index[node.get()] = into.launches.size();
    into.launches.push_back(node->launch);
    into.after.emplace_back();
    for (Node* other : node->dependencies) {
      auto found = into.index.find(other);
      NEEDS(found != into.index.end(), INVALID_VALUE)
      into.after.back().push_back(found->second);
    }
    for (auto& body : node->bodies) {
      into.launches.back().bodies.push_back(std::make_shared<Prepared>());
      if (int code = prepare(*body, *into.launches.back().bodies.back())) return code;
    }
  }
  return SUCCESS;
}
// The conditions of a graph can be set while it runs.
static void mark_conditions(const Prepared& prepared, bool is_current) {
  for (auto& launch : prepared.launches) {
    if (launch.kind >= 0) state().conditions[launch.condition].is_current = is_current;
    if (launch.kind >= 0 && is_current) state().conditions[launch.condition].is_known = false;
    for (auto& body : launch.bodies) mark_conditions(*body, is_current);
  }
}
int cuGraphAddKernelNode_v2(Node** node, Graph* graph, Node* const* after, size_t count, const KernelParameters* p) {
  ENTER
  NEEDS(p->function, INVALID_VALUE)
  Launch launch = launch_of(p->function, p->sizes, p->shared, p->parameters);
  if (int code = check(launch, p->function->module->context)) return code;
  *node = added(graph, std::move(launch), after, count);
  return SUCCESS;
}
int cuGraphKernelNodeSetAttribute(Node*, int, const void*) { ENTER return SUCCESS; }
int cuGraphAddMemcpyNode(Node** node, Graph* graph, Node* const* after, size_t count, const Copy3D* copy, Context*) {
  ENTER
  NEEDS(copy->kind == 2 && copy->source_kind == 2 && copy->height == 1 && copy->depth == 1, INVALID_VALUE)
  *node = added(graph, copy_of(*copy), after, count);
  return SUCCESS;
}
int cuGraphAddEventRecordNode(Node** node, Graph* graph, Node* const* after, size_t count, Event* event) {
  ENTER
  NEEDS(event, INVALID_VALUE)
  *node = added(graph, Launch{}, after, count);  // a copy of no bytes
  return SUCCESS;
}
int cuGraphInstantiateWithFlags(Exec** exec, Graph* graph, unsigned long long) {
  ENTER
  NEEDS(!graph->parent && !(graph->has_conditions && graph->is_instantiated), INVALID_VALUE)
  auto made = std::make_unique<Exec>();
  if (int code = prepare(*graph, *made)) return code;
  graph->is_instantiated = true;
  *exec = made.release();
  state().live++;
  return SUCCESS;
}
int cuGraphExecKernelNodeSetParams_v2(Exec* exec, Node* node, const KernelParameters* p) {
  ENTER
  auto found = exec->index.find(node);
  NEEDS(found != exec->index.end(), INVALID_VALUE)
  exec->launches[found->second] = launch_of(p->function, p->sizes, p->shared, p->parameters);
  return SUCCESS;
}
int cuGraphExecMemcpyNodeSetParams(Exec* exec, Node* node, const Copy3D* copy, Context*) {
  ENTER
  auto found = exec->index.find(node);
  NEEDS(found != exec->index.end(), INVALID_VALUE)
  exec->launches[found->second] = copy_of(*copy);
  return SUCCESS;
}
int cuGraphLaunch(Exec* exec, Stream* stream) {
  ENTER
  // What is launched does not change when the graph does.
  submit(stream, [prepared = (Prepared)*exec] {
    mark_conditions(prepared, true);
    run_graph(prepared);
    mark_conditions(prepared, false);
  });
  return SUCCESS;
}
int cuGraphExecDestroy(Exec* exec) {
  ENTER
  delete exec;
  state().live--;
  return SUCCESS;
}

}  // extern "C"
