// Exported libraries: checked, loaded, and asked for what they hold.
#ifndef TVMFUN_LIBRARY_HPP
#define TVMFUN_LIBRARY_HPP

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tvmfun/file.hpp"
#include "tvmfun/step.h"

namespace tvmfun {

namespace detail {

/// An open file, by a name that no other file has while a library of it is loaded.
///
/// The system knows libraries by their names: another file of the same path would be taken for the one before.
class LibraryFile {
 public:
  explicit LibraryFile(const std::string& path) {
    int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
      throw Error(TVMFUN_DAMAGED_FILE, path + " cannot be read");
    }
    std::lock_guard<std::mutex> lock(mutex());
    key_ = {status.st_dev, status.st_ino};
    Users& users = files()[key_];
    if (users.count++ == 0) {
      users.file = file;
    } else {
      close(file);
    }
    name_ = "/proc/self/fd/" + std::to_string(users.file);
  }

  LibraryFile(const LibraryFile&) = delete;
  LibraryFile& operator=(const LibraryFile&) = delete;

  ~LibraryFile() {
    std::lock_guard<std::mutex> lock(mutex());
    if (handle_) {
      dlclose(handle_);
    }
    auto found = files().find(key_);
    if (--found->second.count == 0) {
      close(found->second.file);
      files().erase(found);
    }
  }

  const std::string& name() const { return name_; }

  void* load() { return handle_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL); }
  void* handle() const { return handle_; }

 private:
  struct Users {
    int file = -1;
    int count = 0;
  };
  using Key = std::pair<dev_t, ino_t>;

  static std::mutex& mutex() {
    static std::mutex* shared = new std::mutex;  // libraries may be closed after all static variables
    return *shared;
  }

  static std::map<Key, Users>& files() {
    static std::map<Key, Users>* shared = new std::map<Key, Users>;
    return *shared;
  }

  Key key_;
  std::string name_;
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
