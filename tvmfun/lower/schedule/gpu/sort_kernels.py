"""Kernels of sorts in CUDA C++: merge sort, of tiles in shared memory, then of pairs of sorted runs.

Elements become unsigned keys in the order of the values, with equal keys for zeros of both signs and for NaNs. Every
step is stable, so no positions are compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

# The elements that a thread has in registers.
_ITEMS = 8
# The fewest threads of a block, which several short rows share.
_FEWEST_THREADS = 128
# The most threads of a block, which sort the largest tile.
_MOST_THREADS = 512


class _Format(NamedTuple):
    """The elements of a dtype: the C++ type of their bits, its width, and the bits of infinity of a float."""

    bits: str
    width: int
    infinity: int | None = None
    is_signed: bool = False


_FORMATS = {
    "bool": _Format("unsigned char", 8),
    **{f"uint{n}": _Format(name, n) for n, name in ((8, "unsigned char"), (16, "unsigned short"), (32, "unsigned"))},
    **{f"int{n}": _Format(name, n, None, True) for n, name in ((8, "unsigned char"), (16, "unsigned short"))},
    "int32": _Format("unsigned", 32, None, True),
    "int64": _Format("unsigned long long", 64, None, True),
    "uint64": _Format("unsigned long long", 64),
    "float16": _Format("unsigned short", 16, 0x7C00),
    "bfloat16": _Format("unsigned short", 16, 0x7F80),
    "float32": _Format("unsigned", 32, 0x7F800000),
    "float64": _Format("unsigned long long", 64, 0x7FF0000000000000),
}


@dataclass(frozen=True)
class SortTiling:
    """The division of rows into tiles.

    Args:
        rows: the number of rows.
        length: the elements of a row.
        dtype: their dtype.
    """

    rows: int
    length: int
    dtype: str

    @property
    def team(self) -> int:
        """The threads of a tile, a power of two."""
        team = 1
        while team < _MOST_THREADS and team * _ITEMS < self.length:
            team *= 2
        return team

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return max(self.team, _FEWEST_THREADS)

    @property
    def size(self) -> int:
        """The elements of a tile."""
        return self.team * _ITEMS

    @property
    def tiles(self) -> int:
        """The tiles of a row."""
        return -(-self.length // self.size)

    @property
    def key(self) -> str:
        """The dtype of keys."""
        return "uint64" if _FORMATS[self.dtype].width == 64 else "uint32"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: a key and a position per element, and a gap after every 32 elements."""
        slots = self.threads * _ITEMS // 32 * 33
        return slots * ((8 if self.key == "uint64" else 4) + 4)


def is_sortable(dtype: str) -> bool:
    """Whether there are kernels for a dtype."""
    return dtype in _FORMATS


@dataclass(frozen=True)
class Functions:
    """The device functions of a sort, and their CUDA C++.

    Args:
        tiles: sorts tiles: ``(block, shared, elements, keys, order)``, without ``keys`` if a row is a tile.
        merge: merges pairs of runs: ``(block, shared, keys, order, merged_keys, merged_order, run)``.
        last: merges the last pair; it has no ``merged_keys``.
    """

    tiles: str
    merge: str
    last: str
    source: str


def functions(tiling: SortTiling) -> Functions:
    """The device functions for a tiling."""
    of = _FORMATS[tiling.dtype]
    kind = "FLOAT" if of.infinity else "SIGNED" if of.is_signed else "UNSIGNED"
    constants = {
        "ROWS": tiling.rows,
        "N": tiling.length,
        "TEAM": tiling.team,
        "THREADS": tiling.threads,
        "ITEMS": _ITEMS,
        "SIZE": tiling.size,
        "TILES": tiling.tiles,
        "WIDTH": of.width,
    }
    lines = [f"  static constexpr int {name} = {value};" for name, value in constants.items()]
    lines += [f"  typedef {of.bits} Bits;", f"  typedef {'unsigned long long' if of.width == 64 else 'unsigned'} Key;"]
    lines += [f"  static constexpr Key INFINITE = {of.infinity or 0}u{'ll' if of.width == 64 else ''};"]
    lines += [f"  enum {{ UNSIGNED, SIGNED, FLOAT }}; static constexpr int KIND = {kind};"]
    body = "\n".join(lines) + _STRUCT
    name = f"tvmfun_sort_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    return Functions(f"{name}_tiles", f"{name}_merge", f"{name}_last", _SOURCE.replace("NAME", name) % body)


_STRUCT = """
  static constexpr Key SIGN = (Key)1 << (WIDTH - 1), LAST = SIGN | (SIGN - 1);
  static __device__ __forceinline__ Key key_of(Key bits) {
    if (KIND == SIGNED) return bits ^ SIGN;
    if (KIND == UNSIGNED) return bits;
    const Key magnitude = bits & ~SIGN;
    if (magnitude > INFINITE) return LAST;
    if (magnitude == 0) return SIGN;
    return bits & SIGN ? LAST ^ bits : bits | SIGN;
  }
  // Threads read runs of ITEMS elements, which gaps put into different banks.
  static __device__ __forceinline__ int slot(int i) { return i + i / 32; }
  static constexpr int SLOTS = THREADS * ITEMS / 32 * 33;
  Key* keys;
  int* order;
  __device__ __forceinline__ void share(char* shared) {
    keys = (Key*)shared;
    order = (int*)(keys + SLOTS);
  }
  // The elements of `a` among the first `at` of the merged sequence; of equal ones those of `a` come first.
  template <class A, class B>
  static __device__ __forceinline__ int path(A a, int count_a, B b, int count_b, int at) {
    int low = max(0, at - count_b), high = min(at, count_a);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (b(at - 1 - middle) < a(middle))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
  // ITEMS elements from position `at` on of two merged runs, which are one after the other from `first` on.
  __device__ __forceinline__ void merge(int first, int count_a, int count_b, int at, Key* own, int* own_order) const {
    const int second = first + count_a;
    const auto key_a = [&](int i) { return keys[slot(first + i)]; };
    const auto key_b = [&](int i) { return keys[slot(second + i)]; };
    int a = path(key_a, count_a, key_b, count_b, at), b = at - a;
    Key next_a = a < count_a ? key_a(a) : 0, next_b = b < count_b ? key_b(b) : 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const bool takes_b = b < count_b && (a >= count_a || next_b < next_a);
      const bool is_there = takes_b || a < count_a;
      own[i] = takes_b ? next_b : next_a;
      own_order[i] = is_there ? order[slot(takes_b ? second + b : first + a)] : 0;
      if (takes_b) {
        ++b;
        if (b < count_b) next_b = key_b(b);
      } else {
        ++a;
        if (a < count_a) next_a = key_a(a);
      }
    }
  }
  __device__ __forceinline__ void put(int first, const Key* own, const int* own_order) const {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      keys[slot(first + i)] = own[i];
      order[slot(first + i)] = own_order[i];
    }
  }
  // Sorts the tiles of all rows. Keys are not stored if each row is a tile.
  __device__ __forceinline__ void sort_tiles(int block, const Bits* elements, Key* to_keys, int* to_order) const {
    const int lane = threadIdx.x % TEAM, base = threadIdx.x / TEAM * SIZE, start = base + lane * ITEMS;
    const int tile = block * (THREADS / TEAM) + threadIdx.x / TEAM, first = tile % TILES * SIZE;
    const long long row = (long long)(tile / TILES) * N + first;
    const int count = tile / TILES < ROWS ? min(SIZE, N - first) : 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int at = i * TEAM + lane;
      // What fills the tile comes after everything else, because it is at the end and the sort is stable.
      keys[slot(base + at)] = at < count ? key_of(elements[row + at]) : ~(Key)0;
    }
    __syncthreads();
    Key own[ITEMS];
    int own_order[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      own[i] = keys[slot(start + i)];
      own_order[i] = lane * ITEMS + i;
    }
#pragma unroll
    for (int round = 0; round < ITEMS; ++round) {
#pragma unroll
      for (int i = round % 2; i + 1 < ITEMS; i += 2) {
        const bool swaps = own[i + 1] < own[i];
        const Key key = own[i];
        const int position = own_order[i];
        own[i] = swaps ? own[i + 1] : key;
        own_order[i] = swaps ? own_order[i + 1] : position;
        own[i + 1] = swaps ? key : own[i + 1];
        own_order[i + 1] = swaps ? position : own_order[i + 1];
      }
    }
#pragma unroll 1
    for (int run = ITEMS; run < SIZE; run *= 2) {
      __syncthreads();
      put(start, own, own_order);
      __syncthreads();
      const int pair = lane * ITEMS / (2 * run) * (2 * run);
      merge(base + pair, run, run, lane * ITEMS - pair, own, own_order);
    }
    __syncthreads();
    put(start, own, own_order);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int at = i * TEAM + lane;
      if (at < count) {
        if (TILES > 1) to_keys[row + at] = keys[slot(base + at)];
        to_order[row + at] = first + order[slot(base + at)];
      }
    }
  }
  // Merges pairs of sorted runs; a block makes SIZE elements of the result.
  template <bool IS_LAST>
  __device__ __forceinline__ void merge_runs(int block, const Key* from_keys, const int* from_order, Key* to_keys,
                                             int* to_order, int run) const {
    const int thread = threadIdx.x, first = block % TILES * SIZE;
    const long long row = (long long)(block / TILES) * N;
    const int start = (int)(first / (2ll * run) * (2ll * run));
    const int count_a = min(run, N - start), count_b = max(0, min(run, N - start - count_a));
    const int begin = first - start, end = min(begin + SIZE, count_a + count_b);
    const Key* run_a = from_keys + row + start;
    const Key* run_b = run_a + count_a;
    // Even threads look for the beginning, odd ones for the end.
    const auto key_a = [&](int i) { return run_a[i]; };
    const auto key_b = [&](int i) { return run_b[i]; };
    const int own_end = path(key_a, count_a, key_b, count_b, thread % 2 ? end : begin);
    const int other_end = __shfl_xor_sync(0xffffffffu, own_end, 1);
    const int begin_a = thread % 2 ? other_end : own_end, end_a = thread % 2 ? own_end : other_end;
    const int part_a = end_a - begin_a, count = end - begin;
    const long long skip_a = row + start + begin_a, skip_b = row + start + count_a + (begin - begin_a) - part_a;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int at = i * THREADS + thread;
      if (at < count) {
        const long long source = (at < part_a ? skip_a : skip_b) + at;
        keys[slot(at)] = from_keys[source];
        order[slot(at)] = from_order[source];
      }
    }
    __syncthreads();
    Key own[ITEMS];
    int own_order[ITEMS];
    merge(0, part_a, count - part_a, min(thread * ITEMS, count), own, own_order);
    __syncthreads();
    put(thread * ITEMS, own, own_order);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int at = i * THREADS + thread;
      if (at < count) {
        if (!IS_LAST) to_keys[row + first + at] = keys[slot(at)];
        to_order[row + first + at] = order[slot(at)];
      }
    }
  }
"""

_SOURCE = """#ifndef NAME_defined
#define NAME_defined
struct NAME {
%s};
__device__ __forceinline__ void NAME_tiles(int block, void* shared, const void* elements, void* keys, void* order) {
  NAME self;
  self.share((char*)shared);
  self.sort_tiles(block, (const NAME::Bits*)elements, (NAME::Key*)keys, (int*)order);
}
__device__ __forceinline__ void NAME_tiles(int block, void* shared, const void* elements, void* order) {
  NAME_tiles(block, shared, elements, nullptr, order);
}
__device__ __forceinline__ void NAME_merge(int block, void* shared, const void* keys, const void* order,
                                           void* merged_keys, void* merged_order, int run) {
  NAME self;
  self.share((char*)shared);
  self.merge_runs<false>(block, (const NAME::Key*)keys, (const int*)order, (NAME::Key*)merged_keys, (int*)merged_order,
                         run);
}
__device__ __forceinline__ void NAME_last(int block, void* shared, const void* keys, const void* order,
                                          void* merged_order, int run) {
  NAME self;
  self.share((char*)shared);
  self.merge_runs<true>(block, (const NAME::Key*)keys, (const int*)order, nullptr, (int*)merged_order, run);
}
#endif
"""
