// Arrays in safetensors files, by name: those of tvmfun.checkpoints.save, which reads these files as well.
//
//   tvmfun::load_safetensors("state.safetensors", call.arguments("state"));
//   tvmfun::save_safetensors("state.safetensors", call.arguments("state"));
#ifndef TVMFUN_SAFETENSORS_HPP
#define TVMFUN_SAFETENSORS_HPP

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "tvmfun/step.hpp"

namespace tvmfun {
namespace detail {

inline const char* safetensors_name(std::int32_t dtype) {
  static const char* const names[] = {"?",   "BOOL", "I8",  "I16", "I32", "I64", "U8",
                                      "U16", "U32",  "U64", "F16", "BF16", "F32", "F64"};
  return names[dtype >= TVMFUN_BOOL && dtype <= TVMFUN_FLOAT64 ? dtype : 0];
}

inline std::size_t itemsize(std::int32_t dtype) {
  static const std::size_t sizes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};
  return sizes[dtype];
}

/// The checksum of zlib.crc32, eight bytes at a time: CRC-32 with the polynomial 0xedb88320, least bit first.
inline std::uint32_t crc32(const unsigned char* data, std::size_t size) {
  static const std::vector<std::array<std::uint32_t, 256>> tables = [] {
    std::vector<std::array<std::uint32_t, 256>> made(8);
    for (std::uint32_t i = 0; i < 256; i++) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; bit++) {
        value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0u);
      }
      made[0][i] = value;
    }
    for (std::size_t k = 1; k < 8; k++) {
      for (std::size_t i = 0; i < 256; i++) {
        made[k][i] = made[k - 1][i] >> 8 ^ made[0][made[k - 1][i] & 0xff];
      }
    }
    return made;
  }();
  std::uint32_t value = 0xffffffffu;
  for (; size >= 8; size -= 8, data += 8) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) {
      bytes[i] = static_cast<unsigned char>(data[i] ^ (i < 4 ? value >> 8 * i & 0xff : 0));
    }
    value = 0;
    for (std::size_t i = 0; i < 8; i++) {
      value ^= tables[7 - i][bytes[i]];
    }
  }
  for (; size; size--, data++) {
    value = value >> 8 ^ tables[0][(value ^ *data) & 0xff];
  }
  return ~value;
}

struct Entry {
  std::string dtype;
  std::vector<std::int64_t> shape, offsets;
};

/// Reads the header: JSON, of which it takes the entries of arrays and skips everything else.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& text) : next_(text.data()), end_(text.data() + text.size()) {}

  std::map<std::string, Entry> read() {
    std::map<std::string, Entry> entries;
    object([&](const std::string& name) {
      if (name == "__metadata__") {
        object([&](const std::string& key) {
          if (key == "tvmfun.crc32" && peek() == '"') {
            checksums_ = HeaderReader(string()).numbers();
          } else {
            skip(0);
          }
        });
      } else if (!entries.emplace(name, entry()).second) {
        fail();
      }
    });
    return entries;
  }

  /// The checksums of arrays, of those that have one; after read().
  const std::map<std::string, std::int64_t>& checksums() const { return checksums_; }

 private:
  static constexpr int deepest = 32;

  std::map<std::string, std::int64_t> numbers() {
    std::map<std::string, std::int64_t> found;
    object([&](const std::string& name) { found[name] = number(); });
    return found;
  }

  [[noreturn]] static void fail() { throw Error(TVMFUN_DAMAGED_FILE, "the header is not that of a safetensors file"); }

  char peek() {
    while (next_ != end_ && (*next_ == ' ' || *next_ == '\n' || *next_ == '\r' || *next_ == '\t')) {
      next_++;
    }
    return next_ == end_ ? '\0' : *next_;
  }

  void expect(char wanted) {
    if (peek() != wanted) {
      fail();
    }
    next_++;
  }

  template <class Member>
  void object(const Member& member) {
    sequence('{', '}', [&] {
      std::string name = string();
      expect(':');
      member(name);
    });
  }

  template <class Item>
  void sequence(char open, char close, const Item& item) {
    expect(open);
    if (peek() == close) {
      next_++;
      return;
    }
    while (true) {
      item();
      if (peek() == close) {
        next_++;
        return;
      }
      expect(',');
    }
  }

  Entry entry() {
    Entry found;
    object([&](const std::string& name) {
      if (name == "dtype") {
        found.dtype = string();
      } else if (name == "shape" || name == "data_offsets") {
        auto& numbers = name == "shape" ? found.shape : found.offsets;
        sequence('[', ']', [&] { numbers.push_back(number()); });
      } else {
        skip(0);
      }
    });
    return found;
  }

  std::int64_t number() {
    std::int64_t value = 0;
    char first = peek();
    if (first < '0' || first > '9') {
      fail();
    }
    for (; next_ != end_ && *next_ >= '0' && *next_ <= '9'; next_++) {
      if (value > (INT64_MAX - 9) / 10) {
        fail();
      }
      value = 10 * value + (*next_ - '0');
    }
    return value;
  }

  unsigned hexadecimal() {
    unsigned value = 0;
    for (int i = 0; i < 4; i++, next_++) {
      static const std::string digits = "0123456789abcdef";
      std::size_t digit = next_ == end_ ? std::string::npos : digits.find(static_cast<char>(std::tolower(*next_)));
      if (digit == std::string::npos) {
        fail();
      }
      value = 16 * value + static_cast<unsigned>(digit);
    }
    return value;
  }

  std::string string() {
    std::string text;
    expect('"');
    while (next_ != end_ && *next_ != '"') {
      char letter = *next_++;
      if (letter != '\\') {
        text += letter;
        continue;
      }
      if (next_ == end_) {
        fail();
      }
      static const std::string letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
      char escape = *next_++;
      if (escape == 'u') {
        append_utf8(text, code_point());
      } else if (std::size_t i = letters.find(escape); i != std::string::npos) {
        text += meanings[i];
      } else {
        fail();
      }
    }
    expect('"');
    return text;
  }

  unsigned code_point() {
    unsigned first = hexadecimal();
    if (first < 0xd800 || first > 0xdbff) {
      return first;
    }
    if (end_ - next_ < 2 || next_[0] != '\\' || next_[1] != 'u') {
      fail();
    }
    next_ += 2;
    return 0x10000 + ((first - 0xd800) << 10) + (hexadecimal() & 0x3ff);
  }

  static void append_utf8(std::string& text, unsigned code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    } else if (code < 0x10000) {
      text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
               static_cast<char>(0x80 | (code & 0x3f))};
    } else {
      text += {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3f)),
               static_cast<char>(0x80 | (code >> 6 & 0x3f)), static_cast<char>(0x80 | (code & 0x3f))};
    }
  }

  void skip(int depth) {
    if (depth > deepest) {
      fail();
    }
    char first = peek();
    if (first == '"') {
      string();
    } else if (first == '{') {
      object([&](const std::string&) { skip(depth + 1); });
    } else if (first == '[') {
      sequence('[', ']', [&] { skip(depth + 1); });
    } else {
      const char* begin = next_;
      while (next_ != end_ && *next_ != ',' && *next_ != '}' && *next_ != ']') {
        next_++;
      }
      if (next_ == begin) {
        fail();
      }
    }
  }

  const char *next_, *end_;
  std::map<std::string, std::int64_t> checksums_;
};

inline std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (char letter : text) {
    if (letter == '"' || letter == '\\') {
      json += '\\';
      json += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(letter));
      json += escape;
    } else {
      json += letter;
    }
  }
  return json + '"';
}

inline std::string header_of(const std::vector<Array>& arrays) {
  std::string checksums = "{", comma_of_checksums;
  for (const Array& array : arrays) {
    std::uint32_t checksum = crc32(static_cast<const unsigned char*>(array.data()), array.nbytes());
    checksums += comma_of_checksums + quoted(array.name()) + ":" + std::to_string(checksum);
    comma_of_checksums = ",";
  }
  std::string header = "{\"__metadata__\":{\"tvmfun.crc32\":" + quoted(checksums + "}") + "}";
  std::size_t end = 0;
  for (const Array& array : arrays) {
    header += "," + quoted(array.name()) + ":{\"dtype\":\"" +
              safetensors_name(array.dtype()) + "\",\"shape\":[";
    std::string comma;
    for (std::int64_t size : array.shape()) {
      header += comma + std::to_string(size);
      comma = ",";
    }
    header += "],\"data_offsets\":[" + std::to_string(end) + "," + std::to_string(end + array.nbytes()) + "]}";
    end += array.nbytes();
  }
  header += "}";
  return header + std::string((8 - header.size() % 8) % 8, ' ');
}

/// A new file beside another one, locked while it is written, which replaces the other one when it is complete.
class Replacement {
 public:
  explicit Replacement(const std::string& path) : path_(path) {
    if (char* target = realpath(path.c_str(), nullptr)) {  // a symbolic link stays, and its target is replaced
      path_ = target;
      std::free(target);
    }
    std::size_t slash = path_.rfind('/') + 1;  // 0 without one
    do {
      close_and_remove();
      name_ = path_.substr(0, slash) + "." + path_.substr(slash) + ".XXXXXX.partial";
      file_ = mkstemps(&name_[0], 8);
      if (file_ >= 0) {
        flock(file_, LOCK_EX);
      }
      // tvmfun.checkpoints removes such files that are not locked, so this one may be gone.
    } while (file_ >= 0 && access(name_.c_str(), F_OK) != 0);
    if (file_ < 0) {
      fail();
    }
    struct stat status;
    mode_t mask = umask(0);
    umask(mask);
    mode_t mode = stat(path_.c_str(), &status) == 0 ? status.st_mode & 07777 : 0666 & ~mask;
    if (fchmod(file_, mode) != 0) {
      fail();
    }
  }

  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() { close_and_remove(); }

  void write(const void* data, std::size_t size) {
    const char* next = static_cast<const char*>(data);
    while (size) {
      ssize_t count = ::write(file_, next, size);
      if (count < 0 && errno != EINTR) {
        fail();
      }
      next += count > 0 ? count : 0;
      size -= count > 0 ? static_cast<std::size_t>(count) : 0;
    }
  }

  void finish() {
    if (fsync(file_) != 0 || std::rename(name_.c_str(), path_.c_str()) != 0) {
      fail();
    }
    close(file_);
    file_ = -1;
    std::size_t slash = path_.rfind('/');
    int folder = open(slash == std::string::npos ? "." : path_.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY);
    if (folder >= 0) {
      fsync(folder);  // the entry of the folder has to reach the disk, too
      close(folder);
    }
  }

 private:
  [[noreturn]] void fail() {
    std::string why = std::strerror(errno);
    close_and_remove();
    throw Error(TVMFUN_BAD_ARGUMENT, path_ + " cannot be written: " + why);
  }

  void close_and_remove() {
    if (file_ >= 0) {
      unlink(name_.c_str());
      close(file_);
      file_ = -1;
    }
  }

  std::string path_, name_;
  int file_ = -1;
};

}  // namespace detail

/// Writes arrays to a file. It appears under its name when it is complete.
inline void save_safetensors(const std::string& path, std::vector<Array> arrays) {
  // Wide elements first, so that all are aligned.
  std::stable_sort(arrays.begin(), arrays.end(), [](const Array& a, const Array& b) {
    return detail::itemsize(a.dtype()) > detail::itemsize(b.dtype());
  });
  std::string header = detail::header_of(arrays), length;
  for (int i = 0; i < 8; i++) {
    length += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * i);
  }
  detail::Replacement file(path);
  file.write(length.data(), length.size());
  file.write(header.data(), header.size());
  for (const Array& array : arrays) {
    file.write(array.data(), array.nbytes());
  }
  file.finish();
}

/// Reads all arrays from a file that has exactly these names, with these shapes and dtypes. If one is missing or wrong,
/// none is changed.
inline void load_safetensors(const std::string& path, const std::vector<Array>& arrays) {
  std::vector<unsigned char> content = detail::read_file(path);
  auto damaged = [&] { return Error(TVMFUN_DAMAGED_FILE, path + " is not a complete safetensors file"); };
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8 && i < content.size(); i++) {
    length |= static_cast<std::uint64_t>(content[i]) << 8 * i;
  }
  if (content.size() < 8 || length > content.size() - 8) {
    throw damaged();
  }
  const char* text = reinterpret_cast<const char*>(content.data()) + 8;
  std::string header(text, static_cast<std::size_t>(length));
  detail::HeaderReader reader(header);
  auto entries = reader.read();
  const char* data = text + length;
  std::size_t size = content.size() - 8 - static_cast<std::size_t>(length);
  std::vector<std::pair<std::int64_t, std::int64_t>> extents;
  for (const auto& named : entries) {
    const std::vector<std::int64_t>& offsets = named.second.offsets;
    if (offsets.size() != 2 || offsets[1] < offsets[0]) {
      throw damaged();
    }
    extents.emplace_back(offsets[0], offsets[1]);
  }
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); i++) {
    if (extents[i].first < extents[i - 1].second) {
      throw damaged();
    }
  }
  for (const Array& array : arrays) {
    auto found = entries.find(array.name());
    if (found == entries.end()) {
      throw Error(TVMFUN_BAD_ARGUMENT, path + " has no array " + array.name());
    }
    const detail::Entry& entry = found->second;
    if (entry.dtype != detail::safetensors_name(array.dtype())) {
      throw Error(TVMFUN_WRONG_DTYPE, array.name() + " of " + path + " has the dtype " + entry.dtype);
    }
    if (entry.shape != array.shape()) {
      throw Error(TVMFUN_WRONG_SIZE, array.name() + " of " + path + " has another shape");
    }
    if (static_cast<std::uint64_t>(entry.offsets[1]) > size ||
        entry.offsets[1] - entry.offsets[0] != static_cast<std::int64_t>(array.nbytes())) {
      throw damaged();
    }
    auto checksum = reader.checksums().find(array.name());
    const auto* bytes = reinterpret_cast<const unsigned char*>(data + entry.offsets[0]);
    if (checksum != reader.checksums().end() && checksum->second != detail::crc32(bytes, array.nbytes())) {
      throw Error(TVMFUN_DAMAGED_FILE, array.name() + " of " + path + " has another checksum than the file says");
    }
  }
  if (entries.size() != arrays.size()) {
    throw Error(TVMFUN_BAD_ARGUMENT, path + " has " + std::to_string(entries.size()) + " arrays instead of " +
                                         std::to_string(arrays.size()));
  }
  for (const Array& array : arrays) {
    if (array.nbytes()) {
      std::memcpy(array.data(), data + entries.at(array.name()).offsets[0], array.nbytes());
    }
  }
}

}  // namespace tvmfun

#endif
