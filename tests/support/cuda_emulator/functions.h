// CUDA's keywords and device functions: barriers, exchanges within a warp, atomics, bits and mathematics.
#pragma once
#include "threads.h"
#include "types.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_INF_F INFINITY
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN_F NAN
#define CUDART_NAN ((double)NAN)
#define CUDART_INF_FP16 __half(INFINITY)
#define CUDART_NAN_FP16 __half(NAN)
#define CUDART_INF_BF16 __nv_bfloat16(INFINITY)

typedef unsigned long long emulator_ull;

#define EMULATOR_LINE int line = __builtin_LINE()

// -- barriers ---------------------------------------------------------------------------------------------------------

inline void __syncthreads(EMULATOR_LINE) { emulator::barrier(0, 0, line); }
inline void __syncwarp(unsigned mask = ~0u, EMULATOR_LINE) {
  emulator::exchange(mask, nullptr, nullptr, "__syncwarp", line);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap(EMULATOR_LINE) { emulator::fail(line, "__trap"); }
inline unsigned __activemask() { return emulator::alive_lanes(emulator::state.current / 32); }

// -- graphs -----------------------------------------------------------------------------------------------------------

// The emulated driver sets it.
extern "C" { inline void (*emulated_set_condition)(unsigned long long, unsigned) __attribute__((used)) = nullptr; }
extern "C" inline void cudaGraphSetConditional(unsigned long long handle, unsigned value) {
  emulated_set_condition(handle, value);
}

// -- exchanges within a warp ------------------------------------------------------------------------------------------

namespace emulator {

template <class T>
struct Shuffled {
  T value, result;
  int source;
};

template <class T>
T shuffled(unsigned mask, T value, int source, int line) {
  Shuffled<T> own{value, value, source};
  Complete complete = [](void** payloads, unsigned lanes) {
    for (int i = 0; i < 32; i++)
      if (lanes >> i & 1) {
        auto* to = (Shuffled<T>*)payloads[i];
        // The value of a lane that takes no part is undefined.
        if (lanes >> to->source & 1)
          to->result = ((Shuffled<T>*)payloads[to->source])->value;
        else
          forget((void*)&to->result, sizeof(T));
      }
  };
  exchange(mask, &own, complete, "a shuffle", line);
  return own.result;
}

struct Vote {
  unsigned value, result;
};

template <class Combine>
unsigned voted(unsigned mask, unsigned value, Combine, const char* what, int line) {
  Vote own{value, 0};
  Complete complete = [](void** payloads, unsigned lanes) {
    bool first = true;
    unsigned result = 0;
    for (int i = 0; i < 32; i++)
      if (lanes >> i & 1) {
        unsigned value = ((Vote*)payloads[i])->value;
        result = first ? Combine::first(value, i) : Combine::next(result, value, i);
        first = false;
      }
    for (int i = 0; i < 32; i++)
      if (lanes >> i & 1) ((Vote*)payloads[i])->result = result;
  };
  exchange(mask, &own, complete, what, line);
  return own.result;
}

#define EMULATOR_COMBINE(name, one, both)                                             \
  struct name {                                                                       \
    static unsigned first(unsigned b, int lane) { (void)lane; return one; }           \
    static unsigned next(unsigned a, unsigned b, int lane) { (void)lane; return both; } \
  };
EMULATOR_COMBINE(Ballot, b ? 1u << lane : 0, a | (b ? 1u << lane : 0))
EMULATOR_COMBINE(Sum, b, a + b)
EMULATOR_COMBINE(Least, b, a < b ? a : b)
EMULATOR_COMBINE(Most, b, a > b ? a : b)
EMULATOR_COMBINE(LeastSigned, b, (int)a < (int)b ? a : b)
EMULATOR_COMBINE(MostSigned, b, (int)a > (int)b ? a : b)
EMULATOR_COMBINE(And, b, a & b)
EMULATOR_COMBINE(Or, b, a | b)
EMULATOR_COMBINE(Xor, b, a ^ b)

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_LINE) {
  int lane = emulator::lane();
  return emulator::shuffled(mask, value, (lane & ~(width - 1)) + (source & (width - 1)), line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_LINE) {
  int lane = emulator::lane();
  bool is_inside = (lane & (width - 1)) + by < (unsigned)width;
  return emulator::shuffled(mask, value, is_inside ? lane + (int)by : lane, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_LINE) {
  int lane = emulator::lane();
  bool is_inside = (unsigned)(lane & (width - 1)) >= by;
  return emulator::shuffled(mask, value, is_inside ? lane - (int)by : lane, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, EMULATOR_LINE) {
  int lane = emulator::lane(), source = lane ^ by;
  return emulator::shuffled(mask, value, (source & ~(width - 1)) <= (lane & ~(width - 1)) ? source : lane, line);
}
inline unsigned __ballot_sync(unsigned mask, int value, EMULATOR_LINE) {
  return emulator::voted(mask, value != 0, emulator::Ballot(), "__ballot_sync", line);
}
inline int __any_sync(unsigned mask, int value, EMULATOR_LINE) {
  return emulator::voted(mask, value != 0, emulator::Or(), "__any_sync", line);
}
inline int __all_sync(unsigned mask, int value, EMULATOR_LINE) {
  return emulator::voted(mask, value != 0, emulator::And(), "__all_sync", line);
}
#define EMULATOR_REDUCE(T, name, Combine)                                              \
  inline T name(unsigned mask, T value, EMULATOR_LINE) {                               \
    return (T)emulator::voted(mask, (unsigned)value, emulator::Combine(), #name, line); \
  }
EMULATOR_REDUCE(unsigned, __reduce_add_sync, Sum)
EMULATOR_REDUCE(int, __reduce_add_sync, Sum)
EMULATOR_REDUCE(unsigned, __reduce_min_sync, Least)
EMULATOR_REDUCE(int, __reduce_min_sync, LeastSigned)
EMULATOR_REDUCE(unsigned, __reduce_max_sync, Most)
EMULATOR_REDUCE(int, __reduce_max_sync, MostSigned)
EMULATOR_REDUCE(unsigned, __reduce_and_sync, And)
EMULATOR_REDUCE(unsigned, __reduce_or_sync, Or)
EMULATOR_REDUCE(unsigned, __reduce_xor_sync, Xor)

// -- atomics: threads take turns, so plain operations are atomic ------------------------------------------------------

#define EMULATOR_ATOMIC(name, expression)             \
  template <class T, class V>                         \
  T name(T* at, V given) {                            \
    T old = *at, value = (T)given;                    \
    *at = (T)(expression);                            \
    return old;                                       \
  }
EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicExch, value)
EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicMax, value > old ? value : old)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
template <class T>
T atomicCAS(T* at, T expected, T value) {
  T old = *at;
  if (old == expected) *at = value;
  return old;
}

// -- memory -----------------------------------------------------------------------------------------------------------

#define EMULATOR_LOAD(name) \
  template <class T> T name(const T* at) { return *at; }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu)
EMULATOR_LOAD(__ldcv)
#define EMULATOR_STORE(name) \
  template <class T, class V> void name(T* at, V value) { *at = value; }
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwt)
inline size_t __cvta_generic_to_shared(const void* at) { return emulator::shared_offset(at); }
inline void* __cvta_shared_to_generic(size_t offset) { return emulator::shared_at(offset); }

inline void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0, EMULATOR_LINE) {
  emulator::copy_async(to, from, size, size - zeros, line);
}
inline void __pipeline_commit() { emulator::commit_group(); }
inline void __pipeline_wait_prior(int pending) { emulator::wait_group(pending); }

// -- bits -------------------------------------------------------------------------------------------------------------

inline int __float_as_int(float x) { return emulator::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return emulator::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::bits_as<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(emulator_ull x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((emulator_ull)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; i++) result |= (x >> i & 1) << (31 - i);
  return result;
}
inline emulator_ull __brevll(emulator_ull x) {
  return (emulator_ull)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  emulator_ull both = (emulator_ull)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    unsigned pick = selector >> 4 * i & 0xf, byte = both >> 8 * (pick & 7) & 0xff;
    if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (((emulator_ull)high << 32 | low) << (by & 31)) >> 32;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return ((emulator_ull)high << 32 | low) >> (by & 31);
}
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((emulator_ull)a * b >> 32); }
inline emulator_ull __umul64hi(emulator_ull a, emulator_ull b) { return (unsigned __int128)a * b >> 64; }
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; i++) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
  return c;
}

// -- mathematics ------------------------------------------------------------------------------------------------------

template <class T>
std::enable_if_t<std::is_integral_v<T>, T> max(T a, T b) { return a > b ? a : b; }
template <class T>
std::enable_if_t<std::is_integral_v<T>, T> min(T a, T b) { return a < b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }

#define EMULATOR_FLOAT(name, expression) \
  inline float name(float x) { return expression; }
EMULATOR_FLOAT(rsqrtf, 1 / sqrtf(x))
EMULATOR_FLOAT(rcbrtf, 1 / cbrtf(x))
EMULATOR_FLOAT(sinpif, (float)sin(M_PI * x))
EMULATOR_FLOAT(cospif, (float)cos(M_PI * x))
EMULATOR_FLOAT(normcdff, (float)(0.5 * erfc(-M_SQRT1_2 * x)))
EMULATOR_FLOAT(__expf, expf(x))
EMULATOR_FLOAT(__exp10f, powf(10, x))
EMULATOR_FLOAT(__logf, logf(x))
EMULATOR_FLOAT(__log2f, log2f(x))
EMULATOR_FLOAT(__log10f, log10f(x))
EMULATOR_FLOAT(__sinf, sinf(x))
EMULATOR_FLOAT(__cosf, cosf(x))
EMULATOR_FLOAT(__tanf, tanf(x))
EMULATOR_FLOAT(__tanhf, tanhf(x))
EMULATOR_FLOAT(__saturatef, x >= 0 ? x <= 1 ? x : 1 : 0)
EMULATOR_FLOAT(__frcp_rn, 1 / x)
EMULATOR_FLOAT(__fsqrt_rn, sqrtf(x))
EMULATOR_FLOAT(__frsqrt_rn, 1 / sqrtf(x))
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline int __float2int_ru(float x) { return (int)ceilf(x); }
inline unsigned __float2uint_rn(float x) { return (unsigned)rintf(x); }
inline unsigned __float2uint_rz(float x) { return (unsigned)x; }
