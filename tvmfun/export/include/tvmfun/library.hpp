// Exported libraries: checked, loaded, and asked for what they hold.
#ifndef TVMFUN_LIBRARY_HPP
#define TVMFUN_LIBRARY_HPP

#include <dlfcn.h>

#include <memory>
#include <string>

#include "tvmfun/file.hpp"
#include "tvmfun/step.h"

namespace tvmfun {

/// The library of an exported function. Copies share it; it is closed with the last one.
class Library {
 public:
  /// Checks and loads a library.
  explicit Library(const std::string& path) {
    detail::check_file(path);
    // Without a slash, it would be looked for elsewhere.
    std::string file = path.find('/') == std::string::npos ? "./" + path : path;
    handle_ = {dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* open) {
                 if (open) {
                   dlclose(open);
                 }
               }};
    void* found = handle_ ? symbol("tvmfun_get_api") : nullptr;
    if (!found) {
      throw Error(TVMFUN_DAMAGED_FILE, path + " cannot be loaded: " + dlerror());
    }
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
  void* symbol(const char* name) const { return handle_ ? dlsym(handle_.get(), name) : nullptr; }

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
    if (api->abi_version != TVMFUN_ABI_VERSION) {
      throw Error(TVMFUN_WRONG_VERSION, "the library has version " + std::to_string(api->abi_version) + " of the ABI");
    }
    api_ = api;
  }

  const tvmfun_api* api_ = nullptr;
  std::shared_ptr<void> handle_;
};

}  // namespace tvmfun

#endif
