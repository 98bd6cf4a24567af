// Arrays in safetensors files, by name: those of tvmfun.checkpoints.save, which reads these files as well.
//
//   tvmfun::load_safetensors("state.safetensors", call.arguments("state"));
//   tvmfun::save_safetensors("state.safetensors", call.arguments("state"));
#ifndef TVMFUN_SAFETENSORS_HPP
#define TVMFUN_SAFETENSORS_HPP

#include <algorithm>
#include <cctype>
#include <cstdio>

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
        skip(0);
      } else if (!entries.emplace(name, entry()).second) {
        fail();
      }
    });
    return entries;
  }

 private:
  static constexpr int deepest = 32;

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
  std::string header = "{";
  std::size_t end = 0;
  for (const Array& array : arrays) {
    header += (header.size() > 1 ? "," : "") + quoted(array.name()) + ":{\"dtype\":\"" +
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

}  // namespace detail

/// Writes arrays to a file. It appears under its name when it is complete.
inline void save_safetensors(const std::string& path, std::vector<Array> arrays) {
  // Wide elements first, so that all are aligned.
  std::stable_sort(arrays.begin(), arrays.end(), [](const Array& a, const Array& b) {
    return detail::itemsize(a.dtype()) > detail::itemsize(b.dtype());
  });
  std::string header = detail::header_of(arrays), partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary);
  for (int i = 0; i < 8; i++) {
    file.put(static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * i));
  }
  file << header;
  for (const Array& array : arrays) {
    file.write(static_cast<const char*>(array.data()), static_cast<std::streamsize>(array.nbytes()));
  }
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    throw Error(TVMFUN_BAD_ARGUMENT, path + " cannot be written");
  }
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
  auto entries = detail::HeaderReader(std::string(text, static_cast<std::size_t>(length))).read();
  const char* data = text + length;
  std::size_t size = content.size() - 8 - static_cast<std::size_t>(length);
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
    if (entry.offsets.size() != 2 || static_cast<std::uint64_t>(entry.offsets[1]) > size ||
        entry.offsets[1] - entry.offsets[0] != static_cast<std::int64_t>(array.nbytes())) {
      throw damaged();
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
