// C++17 for functions that were exported for GPUs: memory of the GPU, leaves by name, errors as exceptions.
//
//   tvmfun::CudaCall call{tvmfun::CudaStep("step.so")};   // memory of the GPU for all arguments and results
//   call.argument("x").upload(x);                         // from a std::vector<float>
//   call.run();
//   float loss = call.result("[1]").download<float>()[0];
//   call.feed("[0]", "state");                            // results become arguments of the next run
//
// A program needs no headers or libraries of CUDA; where it runs, NVIDIA's driver is opened.
#ifndef TVMFUN_CUDA_HPP
#define TVMFUN_CUDA_HPP

#include "tvmfun/cuda.h"
#include "tvmfun/step.hpp"

namespace tvmfun {

/// A function that was exported for GPUs, on one of them. Copies share it. Runs follow one another.
class CudaStep : public Library {
 public:
  /// Checks and loads a library, and its machine code for the GPU.
  explicit CudaStep(const std::string& path, const tvmfun_cuda_options& options = {})
      : CudaStep(Library(path), nullptr, options) {}

  /// A library that is linked: CudaStep(tvmfun_get_api(), tvmfun_get_cuda_api()).
  CudaStep(const tvmfun_api* api, const tvmfun_cuda_api* cuda, const tvmfun_cuda_options& options = {})
      : CudaStep(Library(api), cuda, options) {}

  /// Starts the function on buffers in the GPU's memory; a null stream is the step's own.
  void run(const tvmfun_buffer* inputs, std::int32_t n, const tvmfun_buffer* outputs, std::int32_t m,
           tvmfun_cuda_stream stream = nullptr) const {
    check(cuda_->run(step_.get(), inputs, n, outputs, m, stream));
  }

  /// Waits for everything in a stream; throws if a kernel failed.
  void synchronize(tvmfun_cuda_stream stream = nullptr) const { check(cuda_->synchronize(step_.get(), stream)); }

 private:
  friend class DeviceBuffer;

  CudaStep(Library library, const tvmfun_cuda_api* cuda, const tvmfun_cuda_options& options)
      : Library(std::move(library)), cuda_(cuda) {
    if (void* found = cuda_ ? nullptr : symbol("tvmfun_get_cuda_api")) {
      cuda_ = reinterpret_cast<const tvmfun_cuda_api* (*)()>(found)();
    }
    if (!cuda_) {
      throw Error(TVMFUN_WRONG_ARCHITECTURE, std::string(signature().name) + " has no code for GPUs: Step runs it");
    }
    tvmfun_step* created = nullptr;
    check(cuda_->create(&options, &created));
    step_ = owned(created);
  }

  const tvmfun_cuda_api* cuda_;
  std::shared_ptr<tvmfun_step> step_;
};

/// Memory of the GPU of a step, which it keeps alive.
class DeviceBuffer {
 public:
  DeviceBuffer(CudaStep step, std::size_t nbytes) : step_(std::move(step)), nbytes_(nbytes) {
    step_.check(step_.cuda_->allocate(step_.step_.get(), nbytes, &data_));
  }

  DeviceBuffer(DeviceBuffer&& other) noexcept
      : step_(other.step_), data_(std::exchange(other.data_, nullptr)), nbytes_(other.nbytes_) {}

  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(step_, other.step_);
    std::swap(data_, other.data_);
    std::swap(nbytes_, other.nbytes_);
    return *this;
  }

  ~DeviceBuffer() {
    if (data_) {
      step_.cuda_->release(step_.step_.get(), data_);
    }
  }

  void* data() const { return data_; }
  std::size_t nbytes() const { return nbytes_; }

  /// From the host, after the runs that came before; the host's memory may be used again at once, unless it is pinned.
  void upload(const void* source, std::size_t nbytes) const {
    check_size(nbytes);
    upload_to(step_, data_, source, nbytes);
  }

  /// To the host; waits for the runs that came before.
  void download(void* target, std::size_t nbytes) const {
    check_size(nbytes);
    download_from(step_, target, data_, nbytes);
  }

  /// Fills it with zeros.
  void clear() const { step_.check(step_.cuda_->clear(step_.step_.get(), data_, nbytes_, nullptr)); }

 private:
  friend class DeviceArray;

  static void upload_to(const CudaStep& step, void* target, const void* source, std::size_t nbytes) {
    step.check(step.cuda_->upload(step.step_.get(), target, source, nbytes, nullptr));
  }

  static void download_from(const CudaStep& step, void* target, const void* source, std::size_t nbytes) {
    step.check(step.cuda_->download(step.step_.get(), target, source, nbytes, nullptr));
  }

  void check_size(std::size_t nbytes) const {
    if (nbytes != nbytes_) {
      throw Error(TVMFUN_WRONG_SIZE,
                  "the buffer has " + std::to_string(nbytes_) + " bytes, got " + std::to_string(nbytes));
    }
  }

  CudaStep step_;
  void* data_ = nullptr;
  std::size_t nbytes_;
};

/// An argument or result in the GPU's memory, which its call owns.
class DeviceArray {
 public:
  DeviceArray(CudaStep step, std::string name, const tvmfun_leaf* leaf, void* data)
      : step_(std::move(step)), name_(std::move(name)), leaf_(leaf), data_(data) {}

  const std::string& name() const { return name_; }
  std::int32_t dtype() const { return leaf_->dtype; }
  std::size_t nbytes() const { return leaf_->nbytes; }
  std::vector<std::int64_t> shape() const { return {leaf_->shape, leaf_->shape + leaf_->ndim}; }
  void* data() const { return data_; }

  /// Copies elements to the GPU; throws if they are of another type, or too many or few.
  template <class T>
  void upload(const T* elements, std::size_t count) const {
    check_type<T>();
    if (count * sizeof(T) != nbytes()) {
      throw Error(TVMFUN_WRONG_SIZE, name_ + " has " + std::to_string(nbytes() / sizeof(T)) + " elements, got " +
                                         std::to_string(count));
    }
    DeviceBuffer::upload_to(step_, data_, elements, nbytes());
  }

  template <class T>
  void upload(const std::vector<T>& elements) const {
    upload(elements.data(), elements.size());
  }

  /// The elements, copied to the host; throws if they are of another type.
  template <class T>
  std::vector<T> download() const {
    check_type<T>();
    std::vector<T> elements(nbytes() / sizeof(T));
    DeviceBuffer::download_from(step_, elements.data(), data_, nbytes());
    return elements;
  }

  /// Copies from an array of the host of the same type.
  void upload(const Array& array) const {
    check_same(array);
    DeviceBuffer::upload_to(step_, data_, array.data(), nbytes());
  }

  /// Copies to an array of the host of the same type.
  void download(const Array& array) const {
    check_same(array);
    DeviceBuffer::download_from(step_, array.data(), data_, nbytes());
  }

 private:
  template <class T>
  void check_type() const {
    if (!detail::is_dtype<T>(dtype())) {
      throw Error(TVMFUN_WRONG_DTYPE, name_ + " has the dtype " + detail::dtype_name(dtype()));
    }
  }

  void check_same(const Array& array) const {
    if (array.dtype() != dtype() || array.shape() != shape()) {
      throw Error(TVMFUN_WRONG_SIZE, array.name() + " has another type than " + name_);
    }
  }

  CudaStep step_;
  std::string name_;
  const tvmfun_leaf* leaf_;
  void* data_;
};

/// Copies of arguments in the host's memory, such as for load_safetensors and save_safetensors.
class HostCopies {
 public:
  const std::vector<Array>& arrays() const { return arrays_; }

 private:
  friend class CudaCall;

  explicit HostCopies(CudaStep step) : step_(std::move(step)) {}

  CudaStep step_;  // the arrays refer to its leaves
  std::vector<detail::HostMemory> memory_;
  std::vector<Array> arrays_;
};

/// The GPU's memory of the arguments and results of one call at a time. Results that are written over arguments share
/// theirs.
///
/// Arguments have the values that were exported with the function; others are zero.
class CudaCall {
 public:
  explicit CudaCall(CudaStep step)
      : step_(std::move(step)),
        leaves_(step_.signature(), step_.leaves(), [on_gpu = step_](const tvmfun_leaf& leaf) {
          DeviceBuffer buffer(on_gpu, leaf.nbytes);
          leaf.initial ? buffer.upload(leaf.initial, leaf.nbytes) : buffer.clear();
          return buffer;
        }) {}

  CudaCall(CudaCall&&) = default;

  /// Starts a run. Reading a result waits for it.
  void run() {
    leaves_.settle();
    const auto &arguments = leaves_.arguments(), &results = leaves_.results();
    step_.run(arguments.data(), static_cast<std::int32_t>(arguments.size()), results.data(),
              static_cast<std::int32_t>(results.size()));
  }

  /// Waits for all runs; throws if a kernel failed.
  void synchronize() const { step_.synchronize(); }

  /// An argument by its name. The array is valid until it is fed.
  DeviceArray argument(const std::string& name) const {
    std::int32_t i = leaves_.argument(name);
    return {step_, name, &step_.signature().inputs[i], leaves_.arguments()[i].data};
  }

  /// A result by its name. The array is valid until the next run.
  DeviceArray result(const std::string& name) const {
    std::int32_t i = leaves_.result(name);
    return {step_, name, &step_.signature().outputs[i], leaves_.results()[i].data};
  }

  /// The leaves of an argument that is a tree, with their paths in it as names.
  std::vector<DeviceArray> arguments(const std::string& prefix) const {
    std::vector<DeviceArray> found;
    for (const auto& [i, path] : leaves_.below(prefix)) {
      found.emplace_back(step_, path, &step_.signature().inputs[i], leaves_.arguments()[i].data);
    }
    return found;
  }

  /// Copies of an argument that is a tree, with the paths in it as names.
  HostCopies download(const std::string& prefix) const {
    HostCopies copies(step_);
    for (const auto& [i, path] : leaves_.below(prefix)) {
      const tvmfun_leaf* leaf = &step_.signature().inputs[i];
      copies.memory_.emplace_back(*leaf);
      copies.arrays_.emplace_back(path, leaf, copies.memory_.back().data());
      DeviceArray(step_, path, leaf, leaves_.arguments()[i].data).download(copies.arrays_.back());
    }
    return copies;
  }

  /// Copies arrays of the host to the leaves of an argument, by their paths in it.
  void upload(const std::string& prefix, const std::vector<Array>& arrays) const {
    for (const Array& array : arrays) {
      argument(prefix + array.name()).upload(array);
    }
  }

  /// Makes the results below a path the arguments below another one, without copies. If several arguments exchange their
  /// memory, all of them must be fed before the next run.
  void feed(const std::string& from, const std::string& to) { leaves_.feed(from, to); }

 private:
  CudaStep step_;
  detail::Leaves<DeviceBuffer> leaves_;
};

}  // namespace tvmfun

#endif
