// C++17 for exported functions: loading, memory for arguments and results, leaves by name, errors as exceptions.
//
//   tvmfun::Call call{tvmfun::Step("step.so")};      // memory for all arguments and results
//   call.argument("x").as<float>()[0] = 1.0f;
//   call.run();
//   float loss = call.result("[1]").as<float>()[0];
//   call.feed("[0]", "state");                       // results become arguments of the next run
//
// Where sizes are dynamic, a call has some, and gets others between runs:
//
//   tvmfun::Call call(tvmfun::Step("step.so"), {{"b", 64}});
//   call.resize({{"b", 33}});
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

inline std::uint64_t dtype_size(std::int32_t dtype) {
  static const std::uint64_t sizes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};
  return sizes[dtype >= TVMFUN_BOOL && dtype <= TVMFUN_FLOAT64 ? dtype : 0];
}

}  // namespace detail

/// Dynamic sizes by name.
using Sizes = std::map<std::string, std::int64_t>;

/// An argument or result in memory that a Call owns. The leaf has the shape and bytes for the sizes of the call.
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
    return plan({});
  }

  /// The same for dynamic sizes.
  tvmfun_plan plan(const Sizes& sizes) const {
    tvmfun_plan plan;
    std::vector<std::int64_t> numbers = ordered(sizes);
    check(library_.api, library_.api->plan_for(numbers.data(), static_cast<std::int32_t>(numbers.size()), &plan));
    return plan;
  }

  /// The numbers of dynamic sizes in the order of the signature; throws if there are others than it has.
  std::vector<std::int64_t> ordered(const Sizes& sizes) const {
    std::vector<std::int64_t> numbers;
    const tvmfun_signature& leaves = signature();
    for (std::int32_t i = 0; i < leaves.size_count; i++) {
      auto found = sizes.find(leaves.sizes[i].name);
      if (found == sizes.end()) {
        throw Error(TVMFUN_BAD_ARGUMENT, std::string("the dynamic size ") + leaves.sizes[i].name + " is missing");
      }
      numbers.push_back(found->second);
    }
    if (numbers.size() != sizes.size()) {
      throw Error(TVMFUN_BAD_ARGUMENT, std::string(leaves.name) + " has fewer dynamic sizes than there are");
    }
    return numbers;
  }

  /// The sizes of all axes of all leaves, arguments first, for these dynamic sizes.
  std::vector<std::int64_t> axes(const std::vector<std::int64_t>& sizes) const {
    const tvmfun_signature& leaves = signature();
    std::size_t count = 0;
    for (std::int32_t i = 0; i < leaves.input_count + leaves.output_count; i++) {
      count += static_cast<std::size_t>(
          (i < leaves.input_count ? leaves.inputs[i] : leaves.outputs[i - leaves.input_count]).ndim);
    }
    std::vector<std::int64_t> found(count + 1);
    check(library_.api,
          library_.api->shapes(sizes.data(), static_cast<std::int32_t>(sizes.size()), found.data()));
    return found;
  }

  /// JSON: trees, shapes, dtypes, targets, versions.
  std::string manifest() const {
    std::uint64_t size = 0;
    const char* text = library_.api->manifest(&size);
    return {text, static_cast<std::size_t>(size)};
  }

  void run(const tvmfun_buffer* inputs, std::int32_t n, const tvmfun_buffer* outputs, std::int32_t m) const {
    run({}, inputs, n, outputs, m);
  }

  /// The same for dynamic sizes, in the order of the signature.
  void run(const std::vector<std::int64_t>& sizes, const tvmfun_buffer* inputs, std::int32_t n,
           const tvmfun_buffer* outputs, std::int32_t m) const {
    check(library_.api, library_.api->run_for(step_.get(), sizes.data(), static_cast<std::int32_t>(sizes.size()),
                                              inputs, n, outputs, m));
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
  /// Throws if dynamic sizes are missing or out of bounds.
  explicit Call(Step step, const Sizes& sizes = {}) : step_(std::move(step)) {
    const tvmfun_signature& signature = step_.signature();
    set_leaves(step_.ordered(sizes));
    for (std::int32_t i = 0; i < signature.input_count; i++) {
      const tvmfun_leaf& leaf = input(i);
      arguments_.push_back(allocate(leaf));
      inputs_[leaf.name] = i;
      if (leaf.initial && leaf.nbytes) {
        std::memcpy(arguments_.back().data, leaf.initial, leaf.nbytes);
      }
    }
    for (std::int32_t i = 0; i < signature.output_count; i++) {
      const tvmfun_leaf& leaf = output(i);
      results_.push_back(leaf.partner < 0 ? allocate(leaf) : arguments_[leaf.partner]);
      outputs_[leaf.name] = i;
    }
  }

  Call(Call&&) = default;

  /// Changes the dynamic sizes. The arguments that depend on them have any elements afterwards; others, such as a state,
  /// keep theirs. Memory is kept for larger sizes.
  void resize(const Sizes& sizes) {
    std::vector<std::int64_t> numbers = step_.ordered(sizes);
    if (numbers == sizes_) {
      return;
    }
    if (is_fed_) {
      settle();
    }
    set_leaves(std::move(numbers));
    for (std::size_t i = 0; i < arguments_.size(); i++) {
      fit(arguments_[i], input(static_cast<std::int32_t>(i)));
    }
    for (std::size_t i = 0; i < results_.size(); i++) {
      const tvmfun_leaf& leaf = output(static_cast<std::int32_t>(i));
      if (leaf.partner >= 0) {
        results_[i] = arguments_[static_cast<std::size_t>(leaf.partner)];
      } else {
        fit(results_[i], leaf);
      }
    }
  }

  void run() {
    if (is_fed_) {
      settle();
    }
    step_.run(sizes_, arguments_.data(), static_cast<std::int32_t>(arguments_.size()), results_.data(),
               static_cast<std::int32_t>(results_.size()));
  }

  /// An argument by its name. The array is valid until it is fed, or the call is resized.
  Array argument(const std::string& name) const {
    std::int32_t i = find(inputs_, name, "argument");
    return {name, &input(i), arguments_[i].data};
  }

  /// A result by its name. The array is valid until the next run, or until the call is resized.
  Array result(const std::string& name) const {
    std::int32_t i = find(outputs_, name, "result");
    return {name, &output(i), results_[i].data};
  }

  /// The leaves of an argument that is a tree, with their paths in it as names.
  std::vector<Array> arguments(const std::string& prefix) const {
    const tvmfun_signature& signature = step_.signature();
    std::vector<Array> found;
    for (std::int32_t i = 0; i < signature.input_count; i++) {
      std::string name = signature.inputs[i].name;
      if (is_below(name, prefix)) {
        found.emplace_back(name.substr(prefix.size()), &input(i), arguments_[i].data);
      }
    }
    return found;
  }

  /// Makes the results below a path the arguments below another one, without copies. If several arguments exchange their
  /// memory, all of them must be fed before the next run.
  void feed(const std::string& from, const std::string& to) {
    const Pairs& pairs = fed(from, to);
    for (auto [result, argument] : pairs) {
      if (arguments_[argument].nbytes != results_[result].nbytes) {  // which may differ from those of the last sizes
        throw wrong_types(result, argument);
      }
    }
    for (auto [result, argument] : pairs) {
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

  Error wrong_types(std::int32_t result, std::int32_t argument) const {
    std::string names = std::string(output(result).name) + " to " + input(argument).name;
    return {TVMFUN_WRONG_SIZE, "cannot feed " + names + ": they have different types"};
  }

  const tvmfun_leaf& input(std::int32_t i) const { return leaves_[static_cast<std::size_t>(i)]; }
  const tvmfun_leaf& output(std::int32_t i) const { return input(step_.signature().input_count + i); }

  /// Gives the leaves the shapes and bytes for these sizes.
  void set_leaves(std::vector<std::int64_t> sizes) {
    const tvmfun_signature& signature = step_.signature();
    std::vector<std::int64_t> axes = step_.axes(sizes);
    std::vector<tvmfun_leaf> leaves(signature.inputs, signature.inputs + signature.input_count);
    leaves.insert(leaves.end(), signature.outputs, signature.outputs + signature.output_count);
    const std::int64_t* shape = axes.data();
    for (tvmfun_leaf& leaf : leaves) {
      std::uint64_t nbytes = detail::dtype_size(leaf.dtype);
      for (std::int32_t k = 0; k < leaf.ndim; k++) {
        nbytes *= static_cast<std::uint64_t>(shape[k]);
      }
      leaf.shape = shape;
      leaf.nbytes = nbytes;
      shape += leaf.ndim;
    }
    axes_ = std::move(axes);  // the elements stay where they are
    leaves_ = std::move(leaves);
    sizes_ = std::move(sizes);
  }

  /// Gives a buffer the bytes of a leaf, and other memory where its own is too small.
  void fit(tvmfun_buffer& buffer, const tvmfun_leaf& leaf) {
    for (Block& block : memory_) {
      if (block.data.get() == buffer.data && block.nbytes < leaf.nbytes) {
        Block larger = new_block(leaf);
        buffer.data = larger.data.get();
        block = std::move(larger);
        break;
      }
    }
    buffer.nbytes = leaf.nbytes;
  }

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
      std::int32_t partner = output(static_cast<std::int32_t>(i)).partner;
      if (partner >= 0) {
        results_[i].data = arguments_[partner].data;
      } else if (!used.insert(results_[i].data).second) {
        results_[i].data = unused(results_[i].nbytes, used);
        used.insert(results_[i].data);
      }
    }
    is_fed_ = false;
  }

  /// The smallest unused memory of so many bytes.
  void* unused(std::size_t nbytes, const std::set<void*>& used) const {
    const Block* best = nullptr;
    for (const Block& block : memory_) {
      if (block.nbytes >= nbytes && (!best || block.nbytes < best->nbytes) && !used.count(block.data.get())) {
        best = &block;
      }
    }
    if (!best) {
      throw Error(TVMFUN_OVERLAP, "an argument was fed that a result is written over, but not with this result");
    }
    return best->data.get();
  }

  static Block new_block(const tvmfun_leaf& leaf) {
    std::size_t size = (leaf.nbytes / TVMFUN_ALIGNMENT + 1) * TVMFUN_ALIGNMENT;
    Block block{{std::aligned_alloc(TVMFUN_ALIGNMENT, size), &std::free}, leaf.nbytes};
    if (!block.data) {
      throw Error(TVMFUN_OUT_OF_MEMORY, std::string("there is no memory for ") + leaf.name);
    }
    std::memset(block.data.get(), 0, size);
    return block;
  }

  tvmfun_buffer allocate(const tvmfun_leaf& leaf) {
    memory_.push_back(new_block(leaf));
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
      const tvmfun_leaf& result = output(i);
      std::string name = result.name;
      if (!is_below(name, from)) {
        continue;
      }
      std::int32_t j = find(inputs_, to + name.substr(from.size()), "argument");
      const tvmfun_leaf& argument = input(j);
      if (argument.dtype != result.dtype) {
        throw wrong_types(i, j);
      }
      found.emplace_back(i, j);
    }
    if (found.empty()) {
      throw Error(TVMFUN_BAD_ARGUMENT, "there is no result " + from);
    }
    return found;
  }

  Step step_;
  std::vector<std::int64_t> sizes_, axes_;
  std::vector<tvmfun_leaf> leaves_;  // arguments, then results
  std::vector<Block> memory_;
  std::vector<tvmfun_buffer> arguments_, results_;
  bool is_fed_ = false;
  Names inputs_, outputs_;
  std::map<std::pair<std::string, std::string>, Pairs> fed_;
};

}  // namespace tvmfun

#endif
