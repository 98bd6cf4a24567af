// C++17 for exported functions: loading, memory for arguments and results, leaves by name, errors as exceptions.
//
//   tvmfun::Call call{tvmfun::Step("step.so")};      // memory for all arguments and results
//   call.argument("x").as<float>()[0] = 1.0f;
//   call.run();
//   float loss = call.result("[1]").as<float>()[0];
//   call.feed("[0]", "state");                       // results become arguments of the next run
#ifndef TVMFUN_STEP_HPP
#define TVMFUN_STEP_HPP

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>

#include "tvmfun/file.hpp"
#include "tvmfun/step.h"

namespace tvmfun {

/// Elements that somebody else owns.
template <class T>
class Span {
 public:
  Span(T* data, std::size_t size) : data_(data), size_(size) {}

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_;
  std::size_t size_;
};

namespace detail {

template <class T>
constexpr bool is_dtype(std::int32_t dtype) {
  using std::is_same;
  switch (dtype) {
    case TVMFUN_BOOL: return is_same<T, bool>::value || is_same<T, std::uint8_t>::value;
    case TVMFUN_INT8: return is_same<T, std::int8_t>::value;
    case TVMFUN_INT16: return is_same<T, std::int16_t>::value;
    case TVMFUN_INT32: return is_same<T, std::int32_t>::value;
    case TVMFUN_INT64: return is_same<T, std::int64_t>::value;
    case TVMFUN_UINT8: return is_same<T, std::uint8_t>::value;
    case TVMFUN_UINT16:
    case TVMFUN_FLOAT16:
    case TVMFUN_BFLOAT16: return is_same<T, std::uint16_t>::value;  // C++17 has only the bits of short floats
    case TVMFUN_UINT32: return is_same<T, std::uint32_t>::value;
    case TVMFUN_UINT64: return is_same<T, std::uint64_t>::value;
    case TVMFUN_FLOAT32: return is_same<T, float>::value;
    case TVMFUN_FLOAT64: return is_same<T, double>::value;
    default: return false;
  }
}

inline const char* dtype_name(std::int32_t dtype) {
  static const char* const names[] = {"?",      "bool",   "int8",    "int16",    "int32",   "int64",  "uint8",
                                      "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"};
  return names[dtype >= TVMFUN_BOOL && dtype <= TVMFUN_FLOAT64 ? dtype : 0];
}

}  // namespace detail

/// An argument or result in memory that a Call owns.
class Array {
 public:
  Array(std::string name, const tvmfun_leaf* leaf, void* data) : name_(std::move(name)), leaf_(leaf), data_(data) {}

  const std::string& name() const { return name_; }
  std::int32_t dtype() const { return leaf_->dtype; }
  std::size_t nbytes() const { return leaf_->nbytes; }
  void* data() const { return data_; }
  std::vector<std::int64_t> shape() const { return {leaf_->shape, leaf_->shape + leaf_->ndim}; }

  /// The elements; throws if they are of another type.
  template <class T>
  Span<T> as() const {
    if (!detail::is_dtype<typename std::remove_const<T>::type>(leaf_->dtype)) {
      throw Error(TVMFUN_WRONG_DTYPE, name_ + " has the dtype " + detail::dtype_name(leaf_->dtype));
    }
    return {static_cast<T*>(data_), leaf_->nbytes / sizeof(T)};
  }

 private:
  std::string name_;
  const tvmfun_leaf* leaf_;
  void* data_;
};

/// An exported function. Copies share it. Any number of calls, in any threads, may run it.
class Step {
 public:
  /// Checks and loads a library.
  explicit Step(const std::string& path, const tvmfun_options& options = {}) : Step(load(path), options) {}

  /// A library that is linked: Step(tvmfun_get_api()).
  explicit Step(const tvmfun_api* api, const tvmfun_options& options = {}) : Step(Library{api, nullptr}, options) {}

  const tvmfun_signature& signature() const { return *library_.api->signature(); }
  const tvmfun_api* api() const { return library_.api; }

  /// The code that runs here, and the bytes that a call needs.
  tvmfun_plan plan() const {
    tvmfun_plan plan;
    check(library_.api, library_.api->plan(&plan));
    return plan;
  }

  /// JSON: trees, shapes, dtypes, targets, versions.
  std::string manifest() const {
    std::uint64_t size = 0;
    const char* text = library_.api->manifest(&size);
    return {text, static_cast<std::size_t>(size)};
  }

  void run(const tvmfun_buffer* inputs, std::int32_t n, const tvmfun_buffer* outputs, std::int32_t m) const {
    check(library_.api, library_.api->run(step_.get(), inputs, n, outputs, m));
  }

 private:
  struct Library {
    const tvmfun_api* api;
    std::shared_ptr<void> handle;
  };

  Step(Library library, const tvmfun_options& options) : library_(std::move(library)) {
    const tvmfun_api* api = library_.api;
    if (api->abi_version != TVMFUN_ABI_VERSION) {
      throw Error(TVMFUN_WRONG_VERSION, "the library has version " + std::to_string(api->abi_version) + " of the ABI");
    }
    tvmfun_step* created = nullptr;
    check(api, api->create(&options, &created));
    // The library is closed after the step is gone.
    std::shared_ptr<void> handle = library_.handle;
    step_ = {created, [api, handle](tvmfun_step* step) { api->destroy(step); }};
  }

  static Library load(const std::string& path) {
    detail::check_file(path);
    // Without a slash, it would be looked for elsewhere.
    std::string file = path.find('/') == std::string::npos ? "./" + path : path;
    std::shared_ptr<void> handle(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* open) {
      if (open) {
        dlclose(open);
      }
    });
    void* symbol = handle ? dlsym(handle.get(), "tvmfun_get_api") : nullptr;
    if (!symbol) {
      throw Error(TVMFUN_DAMAGED_FILE, path + " cannot be loaded: " + dlerror());
    }
    return {reinterpret_cast<const tvmfun_api* (*)()>(symbol)(), handle};
  }

  static void check(const tvmfun_api* api, tvmfun_status status) {
    if (status != TVMFUN_OK) {
      throw Error(status, api->message());
    }
  }

  Library library_;
  std::shared_ptr<tvmfun_step> step_;
};

/// The memory of the arguments and results of one call at a time. Results that are written over arguments share theirs.
///
/// Arguments have the values that were exported with the function; others are zero.
class Call {
 public:
  explicit Call(Step step) : step_(std::move(step)) {
    const tvmfun_signature& signature = step_.signature();
    for (std::int32_t i = 0; i < signature.input_count; i++) {
      const tvmfun_leaf& leaf = signature.inputs[i];
      arguments_.push_back(allocate(leaf));
      inputs_[leaf.name] = i;
      if (leaf.initial && leaf.nbytes) {
        std::memcpy(arguments_.back().data, leaf.initial, leaf.nbytes);
      }
    }
    for (std::int32_t i = 0; i < signature.output_count; i++) {
      const tvmfun_leaf& leaf = signature.outputs[i];
      results_.push_back(leaf.partner < 0 ? allocate(leaf) : arguments_[leaf.partner]);
      outputs_[leaf.name] = i;
    }
  }

  Call(Call&&) = default;

  void run() {
    if (is_fed_) {
      settle();
    }
    step_.run(arguments_.data(), static_cast<std::int32_t>(arguments_.size()), results_.data(),
               static_cast<std::int32_t>(results_.size()));
  }

  /// An argument by its name. The array is valid until it is fed.
  Array argument(const std::string& name) const {
    std::int32_t i = find(inputs_, name, "argument");
    return {name, &step_.signature().inputs[i], arguments_[i].data};
  }

  /// A result by its name. The array is valid until the next run.
  Array result(const std::string& name) const {
    std::int32_t i = find(outputs_, name, "result");
    return {name, &step_.signature().outputs[i], results_[i].data};
  }

  /// The leaves of an argument that is a tree, with their paths in it as names.
  std::vector<Array> arguments(const std::string& prefix) const {
    const tvmfun_signature& signature = step_.signature();
    std::vector<Array> found;
    for (std::int32_t i = 0; i < signature.input_count; i++) {
      std::string name = signature.inputs[i].name;
      if (is_below(name, prefix)) {
        found.emplace_back(name.substr(prefix.size()), &signature.inputs[i], arguments_[i].data);
      }
    }
    return found;
  }

  /// Makes the results below a path the arguments below another one, without copies. If several arguments exchange their
  /// memory, all of them must be fed before the next run.
  void feed(const std::string& from, const std::string& to) {
    for (auto [result, argument] : fed(from, to)) {
      arguments_[argument].data = results_[result].data;
    }
    is_fed_ = true;
  }

 private:
  using Names = std::map<std::string, std::int32_t>;
  using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;

  struct Block {
    std::unique_ptr<void, decltype(&std::free)> data;
    std::size_t nbytes;
  };

  /// Whether a name is a path, or continues it with a key or field.
  static bool is_below(const std::string& name, const std::string& path) {
    return name.compare(0, path.size(), path) == 0 &&
           (name.size() == path.size() || path.empty() || name[path.size()] == '.' || name[path.size()] == '[');
  }

  static std::int32_t find(const Names& names, const std::string& name, const std::string& what) {
    auto found = names.find(name);
    if (found == names.end()) {
      throw Error(TVMFUN_BAD_ARGUMENT, "there is no " + what + " " + name);
    }
    return found->second;
  }

  /// Gives results memory that is not that of arguments, or the memory of the arguments they are written over.
  void settle() {
    std::set<void*> used;
    for (const tvmfun_buffer& argument : arguments_) {
      used.insert(argument.data);
    }
    for (std::size_t i = 0; i < results_.size(); i++) {
      std::int32_t partner = step_.signature().outputs[i].partner;
      if (partner >= 0) {
        results_[i].data = arguments_[partner].data;
      } else if (!used.insert(results_[i].data).second) {
        results_[i].data = unused(results_[i].nbytes, used);
        used.insert(results_[i].data);
      }
    }
    is_fed_ = false;
  }

  void* unused(std::size_t nbytes, const std::set<void*>& used) const {
    for (const Block& block : memory_) {
      if (block.nbytes == nbytes && !used.count(block.data.get())) {
        return block.data.get();
      }
    }
    throw Error(TVMFUN_OVERLAP, "an argument was fed that a result is written over, but not with this result");
  }

  tvmfun_buffer allocate(const tvmfun_leaf& leaf) {
    std::size_t size = (leaf.nbytes / TVMFUN_ALIGNMENT + 1) * TVMFUN_ALIGNMENT;
    Block block{{std::aligned_alloc(TVMFUN_ALIGNMENT, size), &std::free}, leaf.nbytes};
    if (!block.data) {
      throw Error(TVMFUN_OUT_OF_MEMORY, std::string("there is no memory for ") + leaf.name);
    }
    std::memset(block.data.get(), 0, size);
    memory_.push_back(std::move(block));
    return {memory_.back().data.get(), leaf.nbytes, leaf.dtype};
  }

  const Pairs& fed(const std::string& from, const std::string& to) {
    auto [entry, is_new] = fed_.try_emplace({from, to});
    if (is_new) {
      try {
        entry->second = pairs(from, to);
      } catch (...) {
        fed_.erase(entry);
        throw;
      }
    }
    return entry->second;
  }

  Pairs pairs(const std::string& from, const std::string& to) const {
    const tvmfun_signature& signature = step_.signature();
    Pairs found;
    for (std::int32_t i = 0; i < signature.output_count; i++) {
      const tvmfun_leaf& result = signature.outputs[i];
      std::string name = result.name;
      if (!is_below(name, from)) {
        continue;
      }
      std::int32_t j = find(inputs_, to + name.substr(from.size()), "argument");
      const tvmfun_leaf& argument = signature.inputs[j];
      if (argument.nbytes != result.nbytes || argument.dtype != result.dtype) {
        throw Error(TVMFUN_WRONG_SIZE, "cannot feed " + name + " to " + argument.name + ": they have different types");
      }
      found.emplace_back(i, j);
    }
    if (found.empty()) {
      throw Error(TVMFUN_BAD_ARGUMENT, "there is no result " + from);
    }
    return found;
  }

  Step step_;
  std::vector<Block> memory_;
  std::vector<tvmfun_buffer> arguments_, results_;
  bool is_fed_ = false;
  Names inputs_, outputs_;
  std::map<std::pair<std::string, std::string>, Pairs> fed_;
};

}  // namespace tvmfun

#endif
