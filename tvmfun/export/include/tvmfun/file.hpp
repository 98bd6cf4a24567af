// The check of an exported library before it is loaded: its architecture, and the checksum at its end.
#ifndef TVMFUN_FILE_HPP
#define TVMFUN_FILE_HPP

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tvmfun/step.h"

namespace tvmfun {

/// An error of a step, with its status and a message that names the leaf or the file.
class Error : public std::runtime_error {
 public:
  Error(tvmfun_status status, const std::string& message) : std::runtime_error(message), status_(status) {}

  tvmfun_status status() const noexcept { return status_; }

 private:
  tvmfun_status status_;
};

namespace detail {

using Digest = std::array<unsigned char, 32>;

/// SHA-256 (FIPS 180-4).
class Sha256 {
 public:
  static Digest of(const unsigned char* data, std::size_t size) {
    Sha256 hash;
    std::size_t whole = size / 64 * 64;
    for (std::size_t i = 0; i < whole; i += 64) {
      hash.add(data + i);
    }
    unsigned char tail[128] = {};
    std::size_t rest = size - whole, padded = rest < 56 ? 64 : 128;
    if (rest) {
      std::memcpy(tail, data + whole, rest);
    }
    tail[rest] = 0x80;
    std::uint64_t bits = static_cast<std::uint64_t>(size) * 8;
    for (int i = 0; i < 8; i++) {
      tail[padded - 1 - i] = static_cast<unsigned char>(bits >> 8 * i);
    }
    for (std::size_t i = 0; i < padded; i += 64) {
      hash.add(tail + i);
    }
    Digest digest;
    for (int i = 0; i < 32; i++) {
      digest[i] = static_cast<unsigned char>(hash.state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
  }

 private:
  static std::uint32_t turn(std::uint32_t x, int n) { return x >> n | x << (32 - n); }

  void add(const unsigned char* block) {
    static const std::uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
      const unsigned char* b = block + 4 * i;
      w[i] = std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
      std::uint32_t s0 = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
      std::uint32_t s1 = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    std::memcpy(s, state_, sizeof s);
    for (int i = 0; i < 64; i++) {
      std::uint32_t s1 = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25);
      std::uint32_t s0 = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
      std::uint32_t first = s[7] + s1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      std::uint32_t second = s0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      std::memmove(s + 1, s, 7 * sizeof *s);
      s[4] += first;
      s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) {
      state_[i] += s[i];
    }
  }

  std::uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

/// The content of a file; errors call it by another name if one is given.
inline std::vector<unsigned char> read_file(const std::string& path, const std::string& name = "") {
  struct stat status;
  bool is_file = stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
  std::ifstream file(path, std::ios::binary);
  std::vector<unsigned char> content(is_file ? static_cast<std::size_t>(status.st_size) : 0);
  if (!is_file || !file ||
      !file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(content.size()))) {
    throw Error(TVMFUN_DAMAGED_FILE, (name.empty() ? path : name) + " cannot be read");
  }
  return content;
}

#if defined(__x86_64__)
constexpr unsigned machine = 62;
#elif defined(__aarch64__)
constexpr unsigned machine = 183;
#else
#error "tvmfun exports for x86-64 and 64-bit Arm"
#endif

/// Throws unless the file is a complete library for this architecture; errors call it by its name.
inline void check_file(const std::string& file, const std::string& path) {
  constexpr std::size_t extent = 16, digest = 32, mark = 8, header = 20;
  const unsigned char magic[mark] = {'T', 'V', 'M', 'F', 'U', 'N', 0, 1};
  std::vector<unsigned char> content = read_file(file, path);
  auto damaged = [&](const std::string& why) {
    return Error(TVMFUN_DAMAGED_FILE, path + " is not a complete exported function: " + why);
  };
  if (content.size() < header + extent + digest + mark) {
    throw damaged(std::to_string(content.size()) + " bytes");
  }
  const unsigned char* end = content.data() + content.size() - mark;
  if (std::memcmp(end, magic, mark) != 0) {
    throw damaged("it ends otherwise");
  }
  Digest found = Sha256::of(content.data(), content.size() - digest - mark);
  if (std::memcmp(found.data(), end - digest, digest) != 0) {
    throw damaged("it has another checksum than it says");
  }
  if (std::memcmp(content.data(), "\x7f" "ELF\x02\x01", 6) != 0) {
    throw damaged("it does not begin like a library");
  }
  unsigned theirs = content[18] | content[19] << 8;
  if (theirs != machine) {
    throw Error(TVMFUN_WRONG_ARCHITECTURE,
                path + " is for ELF machine " + std::to_string(theirs) + ", this is " + std::to_string(machine));
  }
}

}  // namespace detail
}  // namespace tvmfun

#endif
