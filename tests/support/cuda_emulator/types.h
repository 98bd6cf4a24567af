// CUDA's vector types, and half and bfloat16 numbers that are computed in float32 and rounded.
#pragma once
#include <cstddef>
// Each kernel would instantiate the special functions of C++17.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define EMULATOR_VECTORS(T, name, a2, a4)                                                        \
  struct alignas(sizeof(T)) name##1 { T x; };                                                    \
  struct alignas(a2) name##2 { T x, y; };                                                        \
  struct name##3 { T x, y, z; };                                                                 \
  struct alignas(a4) name##4 { T x, y, z, w; };                                                  \
  inline name##1 make_##name##1(T x) { return {x}; }                                             \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                     \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                             \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATOR_VECTORS(signed char, char, 2, 4)
EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(unsigned, uint, 8, 16)
EMULATOR_VECTORS(long, long, 16, 16)
EMULATOR_VECTORS(unsigned long, ulong, 16, 16)
EMULATOR_VECTORS(long long, longlong, 16, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(double, double, 16, 16)

namespace emulator {

template <class To, class From>
To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

struct HalfFormat {
  static uint16_t from(double value) {
    return std::isnan(value) ? 0x7fff : bits_as<uint16_t>((_Float16)value);
  }
  static float to(uint16_t bits) { return (float)bits_as<_Float16>(bits); }
};

struct BfloatFormat {
  static uint16_t from(double value) {
    if (std::isnan(value)) return 0x7fff;
    float nearest = (float)value;
    uint32_t bits = bits_as<uint32_t>(nearest);
    // A tie of the float that the double does not have is none.
    if ((bits & 0xffff) == 0x8000 && value != nearest) bits += std::abs(value) > std::abs(nearest) ? 1 : -1;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  static float to(uint16_t bits) { return bits_as<float>((uint32_t)bits << 16); }
};

template <class Format>
struct Number {
  uint16_t bits;
  Number() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Number(T value) : bits(Format::from((double)value)) {}
  operator float() const { return Format::to(bits); }
  template <class Other>
  explicit Number(Number<Other> other) : bits(Format::from((float)other)) {}
  Number operator-() const { return raw(bits ^ 0x8000); }
  Number operator+() const { return *this; }
  static Number raw(uint16_t bits) {
    Number number;
    number.bits = bits;
    return number;
  }
  friend Number operator+(Number a, Number b) { return (float)a + (float)b; }
  friend Number operator-(Number a, Number b) { return (float)a - (float)b; }
  friend Number operator*(Number a, Number b) { return (float)a * (float)b; }
  friend Number operator/(Number a, Number b) { return (float)a / (float)b; }
  friend Number& operator+=(Number& a, Number b) { return a = a + b; }
  friend Number& operator-=(Number& a, Number b) { return a = a - b; }
  friend Number& operator*=(Number& a, Number b) { return a = a * b; }
  friend Number& operator/=(Number& a, Number b) { return a = a / b; }
  friend bool operator==(Number a, Number b) { return (float)a == (float)b; }
  friend bool operator!=(Number a, Number b) { return (float)a != (float)b; }
  friend bool operator<(Number a, Number b) { return (float)a < (float)b; }
  friend bool operator>(Number a, Number b) { return (float)a > (float)b; }
  friend bool operator<=(Number a, Number b) { return (float)a <= (float)b; }
  friend bool operator>=(Number a, Number b) { return (float)a >= (float)b; }
};

template <class T>
struct alignas(4) Pair {
  T x, y;
  Pair() = default;
  Pair(T x, T y) : x(x), y(y) {}
  friend Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }
};

}  // namespace emulator

using __half = emulator::Number<emulator::HalfFormat>;
using __nv_bfloat16 = emulator::Number<emulator::BfloatFormat>;
using __half2 = emulator::Pair<__half>;
using __nv_bfloat162 = emulator::Pair<__nv_bfloat16>;
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __half2float(half x) { return x; }
inline half __float2half(float x) { return x; }
inline half __float2half_rn(float x) { return x; }
inline half __double2half(double x) { return x; }
inline float __bfloat162float(nv_bfloat16 x) { return x; }
inline nv_bfloat16 __float2bfloat16(float x) { return x; }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline nv_bfloat16 __double2bfloat16(double x) { return x; }
inline unsigned short __half_as_ushort(half x) { return x.bits; }
inline half __ushort_as_half(unsigned short x) { return half::raw(x); }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 x) { return x.bits; }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return nv_bfloat16::raw(x); }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
inline nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline float2 __half22float2(half2 v) { return {v.x, v.y}; }
inline float2 __bfloat1622float2(nv_bfloat162 v) { return {v.x, v.y}; }
inline half2 __half2half2(half x) { return {x, x}; }
inline nv_bfloat162 __bfloat162bfloat162(nv_bfloat16 x) { return {x, x}; }
template <class T> T __low2half(emulator::Pair<T> v) { return v.x; }
template <class T> T __high2half(emulator::Pair<T> v) { return v.y; }
template <class T> T __low2bfloat16(emulator::Pair<T> v) { return v.x; }
template <class T> T __high2bfloat16(emulator::Pair<T> v) { return v.y; }
template <class T> float __low2float(emulator::Pair<T> v) { return v.x; }
template <class T> float __high2float(emulator::Pair<T> v) { return v.y; }

template <class F> using EmulatedNumber = emulator::Number<F>;
#define EMULATOR_UNARY(name, expression) \
  template <class F> EmulatedNumber<F> name(EmulatedNumber<F> h) { float x = h; (void)x; return expression; }
EMULATOR_UNARY(hexp, expf(x))
EMULATOR_UNARY(hexp2, exp2f(x))
EMULATOR_UNARY(hlog, logf(x))
EMULATOR_UNARY(hlog2, log2f(x))
EMULATOR_UNARY(hlog10, log10f(x))
EMULATOR_UNARY(hsqrt, sqrtf(x))
EMULATOR_UNARY(hrsqrt, 1 / sqrtf(x))
EMULATOR_UNARY(hrcp, 1 / x)
EMULATOR_UNARY(hsin, sinf(x))
EMULATOR_UNARY(hcos, cosf(x))
EMULATOR_UNARY(hfloor, floorf(x))
EMULATOR_UNARY(hceil, ceilf(x))
EMULATOR_UNARY(htrunc, truncf(x))
EMULATOR_UNARY(hrint, rintf(x))
EMULATOR_UNARY(__habs, fabsf(x))
EMULATOR_UNARY(__hneg, -x)
#define EMULATOR_BINARY(type, name, expression) \
  template <class F> type name(EmulatedNumber<F> a, EmulatedNumber<F> b) { float x = a, y = b; return expression; }
EMULATOR_BINARY(EmulatedNumber<F>, __hadd, x + y)
EMULATOR_BINARY(EmulatedNumber<F>, __hsub, x - y)
EMULATOR_BINARY(EmulatedNumber<F>, __hmul, x * y)
EMULATOR_BINARY(EmulatedNumber<F>, __hdiv, x / y)
EMULATOR_BINARY(EmulatedNumber<F>, __hmax, fmaxf(x, y))
EMULATOR_BINARY(EmulatedNumber<F>, __hmin, fminf(x, y))
EMULATOR_BINARY(EmulatedNumber<F>, __hmax_nan, x != x || y != y ? NAN : fmaxf(x, y))
EMULATOR_BINARY(EmulatedNumber<F>, __hmin_nan, x != x || y != y ? NAN : fminf(x, y))
EMULATOR_BINARY(bool, __heq, x == y)
EMULATOR_BINARY(bool, __hne, x != y)
EMULATOR_BINARY(bool, __hlt, x < y)
EMULATOR_BINARY(bool, __hgt, x > y)
EMULATOR_BINARY(bool, __hle, x <= y)
EMULATOR_BINARY(bool, __hge, x >= y)
template <class F> bool __hisnan(EmulatedNumber<F> x) { return std::isnan((float)x); }
template <class F> bool __hisinf(EmulatedNumber<F> x) { return std::isinf((float)x); }
template <class F>
EmulatedNumber<F> __hfma(EmulatedNumber<F> a, EmulatedNumber<F> b, EmulatedNumber<F> c) {
  return (double)(float)a * (float)b + (float)c;
}
template <class T> emulator::Pair<T> __hadd2(emulator::Pair<T> a, emulator::Pair<T> b) { return a + b; }
template <class T> emulator::Pair<T> __hsub2(emulator::Pair<T> a, emulator::Pair<T> b) { return a - b; }
template <class T> emulator::Pair<T> __hmul2(emulator::Pair<T> a, emulator::Pair<T> b) { return a * b; }
template <class T>
emulator::Pair<T> __hfma2(emulator::Pair<T> a, emulator::Pair<T> b, emulator::Pair<T> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class T>
emulator::Pair<T> __hmax2(emulator::Pair<T> a, emulator::Pair<T> b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
EMULATOR_UNARY(htanh, tanhf(x))
