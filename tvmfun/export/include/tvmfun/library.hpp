// Exported libraries: checked, loaded, and asked for what they hold.
#ifndef TVMFUN_LIBRARY_HPP
#define TVMFUN_LIBRARY_HPP

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tvmfun/file.hpp"
#include "tvmfun/step.h"

namespace tvmfun {

namespace detail {

/// An open file, and the library that is loaded from it.
///
/// The system knows libraries by their names: of another file of the same path it would return the one before. So each
/// is loaded by a name that no other has: a number in slashes and dots, from the address of a variable and a count.
class LibraryFile {
 public:
  explicit LibraryFile(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) {
      throw Error(TVMFUN_DAMAGED_FILE, path + " cannot be read");
    }
  }

  LibraryFile(const LibraryFile&) = delete;
  LibraryFile& operator=(const LibraryFile&) = delete;

  ~LibraryFile() {
    if (handle_) {
      dlclose(handle_);
    }
    close_file();
  }

  std::string name() const { return "/proc/self/fd/" + std::to_string(file_); }

  void* load() {
    static std::atomic<std::uint64_t> count{0};
    std::string name = "/proc/self/./fd";
    for (std::uint64_t number : {count++, static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&count))}) {
      for (int bit = 0; bit < 64; bit++) {
        name += number >> bit & 1 ? "/." : "/";
      }
    }
    name += "/" + std::to_string(file_);
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    close_file();
    return handle_;
  }

  void* handle() const { return handle_; }

 private:
  void close_file() {
    if (file_ >= 0) {
      close(file_);
      file_ = -1;
    }
  }

  int file_;
  void* handle_ = nullptr;
};

}  // namespace detail

/// The library of an exported function. Copies share it; it is closed with the last one.
class Library {
 public:
  /// Checks and loads a library.
  explicit Library(const std::string& path) {
    auto file = std::make_shared<detail::LibraryFile>(path);
    detail::check_file(file->name(), path);
    void* found = file->load() ? dlsym(file->handle(), "tvmfun_get_api") : nullptr;
    if (!found) {
      throw Error(TVMFUN_DAMAGED_FILE, path + " cannot be loaded: " + dlerror());
    }
    file_ = file;
    use(reinterpret_cast<const tvmfun_api* (*)()>(found)());
  }

  /// A library that is linked: Library(tvmfun_get_api()).
  explicit Library(const tvmfun_api* api) { use(api); }

  const tvmfun_signature& signature() const { return *api_->signature(); }
  const tvmfun_api* api() const { return api_; }

  /// The leaves of the arguments, and after them those of the results.
  std::vector<tvmfun_leaf> leaves() const {
    std::vector<tvmfun_leaf> found(signature().inputs, signature().inputs + signature().input_count);
    found.insert(found.end(), signature().outputs, signature().outputs + signature().output_count);
    return found;
  }

  /// The code that runs here, and the bytes that a call needs.
  tvmfun_plan plan() const {
    tvmfun_plan plan;
    check(api_->plan(&plan));
    return plan;
  }

  /// JSON: trees, shapes, dtypes, targets, versions.
  std::string manifest() const {
    std::uint64_t size = 0;
    const char* text = api_->manifest(&size);
    return {text, static_cast<std::size_t>(size)};
  }

 protected:
  /// The address of a function, or a null pointer if the library does not have it, or is linked.
  void* symbol(const char* name) const { return file_ ? dlsym(file_->handle(), name) : nullptr; }

  /// Throws what went wrong.
  void check(tvmfun_status status) const {
    if (status != TVMFUN_OK) {
      throw Error(status, api_->message());
    }
  }

  /// Destroys the step before the library is closed.
  std::shared_ptr<tvmfun_step> owned(tvmfun_step* step) const {
    return {step, [library = *this](tvmfun_step* created) { library.api_->destroy(created); }};
  }

 private:
  void use(const tvmfun_api* api) {
    if (!api) {
      throw Error(TVMFUN_BAD_ARGUMENT, "there is no library");
    }
    if (api->abi_version != TVMFUN_ABI_VERSION) {
      throw Error(TVMFUN_WRONG_VERSION, "the library has version " + std::to_string(api->abi_version) + " of the ABI");
    }
    api_ = api;
  }

  const tvmfun_api* api_ = nullptr;
  std::shared_ptr<detail::LibraryFile> file_;
};

}  // namespace tvmfun

#endif
