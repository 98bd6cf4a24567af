// Arguments and results by name: their elements, and the memory that calls keep for them.
#ifndef TVMFUN_ARRAY_HPP
#define TVMFUN_ARRAY_HPP

#include <functional>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tvmfun/library.hpp"

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

namespace detail {

/// The buffers of the arguments and results of one call at a time. Results that are written over arguments share theirs.
///
/// Memory has data() and nbytes(), and is freed when it is destroyed.
template <class Memory>
class Leaves {
 public:
  using Allocate = std::function<Memory(const tvmfun_leaf&)>;

  /// The leaves are those of a signature, with shapes and bytes; arguments come first.
  Leaves(const tvmfun_signature& signature, std::vector<tvmfun_leaf> leaves, Allocate allocate)
      : input_count_(signature.input_count), leaves_(std::move(leaves)), allocate_(std::move(allocate)) {
    for (std::int32_t i = 0; i < input_count_; i++) {
      arguments_.push_back(buffer(input(i)));
      inputs_[input(i).name] = i;
    }
    for (std::int32_t i = 0; i < signature.output_count; i++) {
      results_.push_back(output(i).partner < 0 ? buffer(output(i)) : arguments_[output(i).partner]);
      outputs_[output(i).name] = i;
    }
  }

  const std::vector<tvmfun_buffer>& arguments() const { return arguments_; }
  const std::vector<tvmfun_buffer>& results() const { return results_; }

  const tvmfun_leaf& input(std::int32_t i) const { return leaves_[static_cast<std::size_t>(i)]; }
  const tvmfun_leaf& output(std::int32_t i) const { return input(input_count_ + i); }

  std::int32_t argument(const std::string& name) const { return find(inputs_, name, "argument"); }
  std::int32_t result(const std::string& name) const { return find(outputs_, name, "result"); }

  /// The positions of the arguments below a path, and their paths in it.
  std::vector<std::pair<std::int32_t, std::string>> below(const std::string& path) const {
    std::vector<std::pair<std::int32_t, std::string>> found;
    for (std::int32_t i = 0; i < input_count_; i++) {
      std::string name = input(i).name;
      if (is_below(name, path)) {
        found.emplace_back(i, name.substr(path.size()));
      }
    }
    return found;
  }

  /// Makes the results below a path the arguments below another one, without copies.
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

  /// Gives results memory that is not that of arguments, or the memory of the arguments they are written over.
  void settle() {
    if (!is_fed_) {
      return;
    }
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

  /// Gives the leaves other shapes and bytes. Memory is kept for larger ones.
  void resize(std::vector<tvmfun_leaf> leaves) {
    settle();
    leaves_ = std::move(leaves);
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

 private:
  using Names = std::map<std::string, std::int32_t>;
  using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;

  Error wrong_types(std::int32_t result, std::int32_t argument) const {
    std::string names = std::string(output(result).name) + " to " + input(argument).name;
    return {TVMFUN_WRONG_SIZE, "cannot feed " + names + ": they have different types"};
  }

  tvmfun_buffer buffer(const tvmfun_leaf& leaf) {
    memory_.push_back(allocate_(leaf));
    return {memory_.back().data(), leaf.nbytes, leaf.dtype};
  }

  /// Gives a buffer the bytes of a leaf, and other memory where its own is too small.
  void fit(tvmfun_buffer& buffer, const tvmfun_leaf& leaf) {
    for (Memory& block : memory_) {
      if (block.data() == buffer.data && block.nbytes() < leaf.nbytes) {
        Memory larger = allocate_(leaf);
        buffer.data = larger.data();
        block = std::move(larger);
        break;
      }
    }
    buffer.nbytes = leaf.nbytes;
  }

  /// The smallest unused memory of so many bytes.
  void* unused(std::size_t nbytes, const std::set<void*>& used) const {
    const Memory* best = nullptr;
    for (const Memory& block : memory_) {
      if (block.nbytes() >= nbytes && (!best || block.nbytes() < best->nbytes()) && !used.count(block.data())) {
        best = &block;
      }
    }
    if (!best) {
      throw Error(TVMFUN_OVERLAP, "an argument was fed that a result is written over, but not with this result");
    }
    return best->data();
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
    Pairs found;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(results_.size()); i++) {
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

  std::int32_t input_count_;
  std::vector<tvmfun_leaf> leaves_;
  Allocate allocate_;
  std::vector<Memory> memory_;
  std::vector<tvmfun_buffer> arguments_, results_;
  bool is_fed_ = false;
  Names inputs_, outputs_;
  std::map<std::pair<std::string, std::string>, Pairs> fed_;
};

}  // namespace detail
}  // namespace tvmfun

#endif
