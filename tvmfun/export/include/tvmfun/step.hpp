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
//
// cuda.hpp has the same for GPUs.
#ifndef TVMFUN_STEP_HPP
#define TVMFUN_STEP_HPP

#include <cstdlib>

#include "tvmfun/array.hpp"

namespace tvmfun {

/// An exported function. Copies share it. Any number of calls, in any threads, may run it.
class Step : public Library {
 public:
  /// Checks and loads a library.
  explicit Step(const std::string& path, const tvmfun_options& options = {}) : Step(Library(path), options) {}

  /// A library that is linked: Step(tvmfun_get_api()).
  explicit Step(const tvmfun_api* api, const tvmfun_options& options = {}) : Step(Library(api), options) {}

  using Library::plan;

  /// The same for dynamic sizes.
  tvmfun_plan plan(const Sizes& sizes) const {
    tvmfun_plan plan;
    std::vector<std::int64_t> numbers = ordered(sizes);
    check(api()->plan_for(numbers.data(), static_cast<std::int32_t>(numbers.size()), &plan));
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
    check(api()->shapes(sizes.data(), static_cast<std::int32_t>(sizes.size()), found.data()));
    return found;
  }

  void run(const tvmfun_buffer* inputs, std::int32_t n, const tvmfun_buffer* outputs, std::int32_t m) const {
    run({}, inputs, n, outputs, m);
  }

  /// The same for dynamic sizes, in the order of the signature.
  void run(const std::vector<std::int64_t>& sizes, const tvmfun_buffer* inputs, std::int32_t n,
           const tvmfun_buffer* outputs, std::int32_t m) const {
    check(api()->run_for(step_.get(), sizes.data(), static_cast<std::int32_t>(sizes.size()),
                                              inputs, n, outputs, m));
  }

 private:
  Step(Library library, const tvmfun_options& options) : Library(std::move(library)) {
    if (symbol("tvmfun_get_cuda_api")) {
      throw Error(TVMFUN_WRONG_ARCHITECTURE, std::string(signature().name) + " is for GPUs: CudaStep runs it");
    }
    tvmfun_step* created = nullptr;
    check(api()->create(&options, &created));
    step_ = owned(created);
  }

  std::shared_ptr<tvmfun_step> step_;
};

namespace detail {

/// The host's memory for a leaf, with the value that was exported, or zeros.
class HostMemory {
 public:
  explicit HostMemory(const tvmfun_leaf& leaf) : data_(nullptr, &std::free), nbytes_(leaf.nbytes) {
    std::size_t size = (nbytes_ / TVMFUN_ALIGNMENT + 1) * TVMFUN_ALIGNMENT;
    data_.reset(std::aligned_alloc(TVMFUN_ALIGNMENT, size));
    if (!data_) {
      throw Error(TVMFUN_OUT_OF_MEMORY, std::string("there is no memory for ") + leaf.name);
    }
    std::memset(data_.get(), 0, size);
    if (leaf.initial && leaf.nbytes) {
      std::memcpy(data_.get(), leaf.initial, leaf.nbytes);
    }
  }

  void* data() const { return data_.get(); }
  std::size_t nbytes() const { return nbytes_; }

 private:
  std::unique_ptr<void, decltype(&std::free)> data_;
  std::size_t nbytes_;
};

}  // namespace detail

/// The memory of the arguments and results of one call at a time. Results that are written over arguments share theirs.
///
/// Arguments have the values that were exported with the function; others are zero.
class Call {
 public:
  /// Throws if dynamic sizes are missing or out of bounds.
  explicit Call(Step step, const Sizes& sizes = {})
      : step_(std::move(step)),
        sizes_(step_.ordered(sizes)),
        axes_(step_.axes(sizes_)),
        leaves_(step_.signature(), with_axes(axes_),
                [](const tvmfun_leaf& leaf) { return detail::HostMemory(leaf); }) {}

  Call(Call&&) = default;

  /// Changes the dynamic sizes. The arguments that depend on them have any elements afterwards; others, such as a state,
  /// keep theirs. Memory is kept for larger sizes.
  void resize(const Sizes& sizes) {
    std::vector<std::int64_t> numbers = step_.ordered(sizes);
    if (numbers == sizes_) {
      return;
    }
    std::vector<std::int64_t> axes = step_.axes(numbers);
    leaves_.resize(with_axes(axes));
    axes_ = std::move(axes);  // the elements stay where they are
    sizes_ = std::move(numbers);
  }

  void run() {
    leaves_.settle();
    const auto &arguments = leaves_.arguments(), &results = leaves_.results();
    step_.run(sizes_, arguments.data(), static_cast<std::int32_t>(arguments.size()), results.data(),
              static_cast<std::int32_t>(results.size()));
  }

  /// An argument by its name. The array is valid until it is fed, or the call is resized.
  Array argument(const std::string& name) const {
    std::int32_t i = leaves_.argument(name);
    return {name, &leaves_.input(i), leaves_.arguments()[i].data};
  }

  /// A result by its name. The array is valid until the next run, or until the call is resized.
  Array result(const std::string& name) const {
    std::int32_t i = leaves_.result(name);
    return {name, &leaves_.output(i), leaves_.results()[i].data};
  }

  /// The leaves of an argument that is a tree, with their paths in it as names.
  std::vector<Array> arguments(const std::string& prefix) const {
    std::vector<Array> found;
    for (const auto& [i, path] : leaves_.below(prefix)) {
      found.emplace_back(path, &leaves_.input(i), leaves_.arguments()[i].data);
    }
    return found;
  }

  /// Makes the results below a path the arguments below another one, without copies. If several arguments exchange their
  /// memory, all of them must be fed before the next run.
  void feed(const std::string& from, const std::string& to) { leaves_.feed(from, to); }

 private:
  /// The leaves with the shapes and bytes for the sizes of all axes.
  std::vector<tvmfun_leaf> with_axes(const std::vector<std::int64_t>& axes) const {
    std::vector<tvmfun_leaf> leaves = step_.leaves();
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
    return leaves;
  }

  Step step_;
  std::vector<std::int64_t> sizes_, axes_;
  detail::Leaves<detail::HostMemory> leaves_;
};

}  // namespace tvmfun

#endif
