"""Kernels of scans along an axis in CUDA C++: running sums, products, extrema and recurrences.

A *state* is a partial result, and two neighbouring ones are joined by an associative function. A team of threads goes
through a row tile by tile: each thread joins its neighbours of a tile in order, and the threads' states are joined by
shuffles. Where the axis is not the last one, a thread goes through a column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tvmfun import dtypes
from tvmfun.ops.cumulative import Scan

# The neighbouring elements of a tile that one thread has.
_ITEMS = 4
# The threads of a block of columns, or of short rows.
_THREADS = 256
# The threads of a warp.
_WARP = 32
# The most threads for a row if there are few rows.
_MOST_THREADS = 1024
# With at least this many neighbouring columns, threads that have one each read whole sectors of memory.
_COLUMNS = 16
# The number of teams that keeps a GPU busy: rows are cut into chunks to get as many.
_TEAMS = 512
# The fewest elements of a chunk of a row.
_LEAST_OF_TEAM = 1 << 13
# The number of threads that keeps a GPU busy: columns are cut into chunks to get as many.
_COLUMN_THREADS = 1 << 15
# The fewest elements of a chunk of a column.
_LEAST_OF_COLUMN = 128
# The most chunks of a row or column.
_MOST_CHUNKS = 256


class _Format(NamedTuple):
    """The elements of a dtype in memory: the C++ type, and the conversions from and to numbers."""

    type: str
    load: str = "(T)"
    store: str = "(Element)"


_FORMATS = {
    "int8": _Format("signed char"),
    "int16": _Format("short"),
    "int32": _Format("int"),
    "int64": _Format("long long"),
    "uint8": _Format("unsigned char"),
    "uint16": _Format("unsigned short"),
    "uint32": _Format("unsigned"),
    "uint64": _Format("unsigned long long"),
    "float16": _Format("half", "__half2float", "__float2half_rn"),
    "bfloat16": _Format("unsigned short", "of_bfloat16", "to_bfloat16"),
    "float32": _Format("float"),
    "float64": _Format("double"),
}

# By op: the fields of a state, the identity, the state of some elements, the join of neighbours, and the result.
_OPS = {
    "cumsum": ("T x;", "{0}", "{load(first[i])}", "{a.x + b.x}", "x"),
    "cumprod": ("T x;", "{1}", "{load(first[i])}", "{a.x * b.x}", "x"),
    "cummax": ("T x;", "{LOWEST}", "{load(first[i])}", "{a.x > b.x || a.x != a.x ? a.x : b.x}", "x"),
    "cummin": ("T x;", "{HIGHEST}", "{load(first[i])}", "{a.x < b.x || a.x != a.x ? a.x : b.x}", "x"),
    "cumlogsumexp": ("T x;", "{LOWEST}", "{load(first[i])}", "{add_logs(a.x, b.x)}", "x"),
    "linear_recurrence": (
        "T factor, x;",
        "{1, 0}",
        "{is_begin ? 0 : load(first[i]), load(second[i])}",
        "{a.factor * b.factor, b.factor * a.x + b.x}",
        "x",
    ),
    "cum_arg_extremum": (
        "T x; int at;",
        "{0, -1}",
        "{load(first[i]), position}",
        "is_better(a, b) ? b : a",
        "at",
    ),
}
# Only products may lose a result by the order of operations: the product of a chunk may be out of range although the
# product from the beginning is not, or the reverse. A result is in range if this condition holds.
_CHECKED = {
    "cumprod": ("fabs(s.x) <= LARGEST && (fabs(s.x) >= SMALLEST || carry.x == 0)",) * 2,
    "linear_recurrence": ("fabs(s.factor) <= LARGEST && fabs(s.x) <= LARGEST", "fabs(s.x) <= LARGEST"),
}


@dataclass(frozen=True)
class ScanTiling:
    """The division of a scan among threads.

    Args:
        scan: the op and its parameters.
        outer: the points of the axes before the axis.
        length: the elements along it.
        inner: the points of the axes after it.
        dtype: the dtype of the elements.
    """

    scan: Scan
    outer: int
    length: int
    inner: int
    dtype: str

    @property
    def is_checked(self) -> bool:
        """Whether a tile is walked in order where partial results are out of range."""
        return self.scan.op in _CHECKED and dtypes.is_float(dtypes.canonical(self.dtype))

    @property
    def by_column(self) -> bool:
        """Whether a thread goes through a column, rather than a team of threads through a row."""
        return self.inner >= _COLUMNS

    @property
    def tasks(self) -> int:
        """The rows or columns."""
        return self.outer * self.inner

    @property
    def team(self) -> int:
        """The threads for a row, a power of two."""
        if self.by_column:
            return 1
        most = _MOST_THREADS if self.tasks < _TEAMS // 2 and self._most_chunks < 2 else _THREADS
        team = 1
        while team < most and team * _ITEMS < self.length:
            team *= 2
        return team

    @property
    def threads(self) -> int:
        """The threads of a block: a team, or several that are at most a warp each."""
        return self.team if self.team > _WARP else _THREADS

    @property
    def _most_chunks(self) -> int:
        if self.is_checked:
            return 1
        if self.by_column:
            return min(_MOST_CHUNKS, _COLUMN_THREADS // self.tasks, self.length // _LEAST_OF_COLUMN)
        return min(_MOST_CHUNKS, _TEAMS // self.tasks, self.length // _LEAST_OF_TEAM)

    @property
    def chunk(self) -> int:
        """The elements of a chunk: whole tiles."""
        tile = 1 if self.by_column else self.team * _ITEMS
        return -(-self.length // (max(1, self._most_chunks) * tile)) * tile

    @property
    def chunks(self) -> int:
        """The chunks of a row or column."""
        return -(-self.length // self.chunk)

    @property
    def blocks(self) -> int:
        """The blocks of a launch."""
        return -(-self.tasks * self.chunks // (self.threads // self.team))

    @property
    def state_bytes(self) -> int:
        """The size of a state."""
        size = 8 if dtypes.canonical(self.dtype).itemsize == 8 else 4
        return 2 * size if self.scan.op in ("linear_recurrence", "cum_arg_extremum") else size


def is_scannable(dtype: str) -> bool:
    """Whether there are kernels for a dtype."""
    return dtype in _FORMATS


@dataclass(frozen=True)
class Functions:
    """The device functions of a scan, and their CUDA C++.

    Args:
        totals: stores the state of each chunk: ``(block, *inputs, totals)``.
        results: stores the results: ``(block, *inputs, results)``, with ``totals`` before them if there are chunks.
    """

    totals: str
    results: str
    source: str


def functions(tiling: ScanTiling) -> Functions:
    """The device functions for a tiling."""
    body = "\n".join(_definitions(tiling)) + _STRUCT
    name = f"tvmfun_scan_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    inputs = ["first", "second"] if tiling.scan.op == "linear_recurrence" else ["first"]
    walk = "columns" if tiling.by_column else "rows"
    parts = [f"#ifndef {name}_defined\n#define {name}_defined\nstruct {name} {{\n{body}}};\n"]
    kinds = [("totals", ["totals"], "false")] if tiling.chunks > 1 else []
    kinds.append(("results", ["totals", "results"] if tiling.chunks > 1 else ["results"], "true"))
    for kind, others, stores in kinds:
        names = [*inputs, *others]
        parameters = ", ".join(["int block", *(f"const void* {argument}" for argument in names)])
        given = "".join(f"  self.{argument} = (decltype(self.{argument})){argument};\n" for argument in names)
        parts.append(
            f"__device__ __forceinline__ void {name}_{kind}({parameters}) {{\n  {name} self;\n{given}"
            f"  self.{walk}<{stores}>(block);\n}}\n"
        )
    return Functions(f"{name}_totals", f"{name}_results", "".join([*parts, "#endif\n"]))


def _definitions(tiling: ScanTiling) -> Iterator[str]:
    """The types, the constants and the functions of an op."""
    op, kind, of = tiling.scan.op, dtypes.canonical(tiling.dtype), _FORMATS[tiling.dtype]
    is_float, is_wide = dtypes.is_float(kind), kind.itemsize == 8
    ordered = op in ("cummax", "cummin", "cum_arg_extremum")
    if is_float:
        number, suffix = ("double", "") if is_wide else ("float", "f")
    else:
        # Sums and products of signed integers wrap around, which C++ only defines for unsigned ones.
        is_signed = ordered and kind.kind == "i"
        number, suffix = ("" if is_signed else "unsigned ") + ("long long" if is_wide else "int"), ""
    yield f"  typedef {of.type} Element;\n  typedef {number} T;"
    yield f"  typedef {'int' if op == 'cum_arg_extremum' else 'Element'} Result;"
    ints = {
        "N": tiling.length,
        "INNER": tiling.inner,
        "TEAM": tiling.team,
        "THREADS": tiling.threads,
        "ITEMS": _ITEMS,
        "CHUNK": tiling.chunk,
        "CHUNKS": tiling.chunks,
        "UNROLL": 4 if tiling.state_bytes <= 8 else 2,
    }
    yield from (f"  static constexpr int {name} = {value};" for name, value in ints.items())
    yield f"  static constexpr long long TASKS = {tiling.tasks};"
    flags = {"REVERSE": tiling.scan.reverse, "LARGEST_FIRST": tiling.scan.largest, "CHECKED": tiling.is_checked}
    yield from (f"  static constexpr bool {name} = {str(value).lower()};" for name, value in flags.items())
    if is_float:
        about = np.finfo(np.float64 if is_wide else np.float32)
        yield "  static constexpr T LOWEST = -(T)INFINITY, HIGHEST = (T)INFINITY;"
        yield f"  static constexpr T SMALLEST = {float(about.tiny)!r}{suffix}, LARGEST = {float(about.max)!r}{suffix};"
    elif ordered:
        ends = np.iinfo(kind)
        unit = ("ll" if is_wide else "") if kind.kind == "i" else ("ull" if is_wide else "u")
        lowest = f"{ends.min + 1}{unit} - 1" if ends.min else f"0{unit}"
        yield f"  static constexpr T LOWEST = {lowest}, HIGHEST = {ends.max}{unit};"
    fields, identity, element, join, result = _OPS[op]
    in_range = _CHECKED[op] if tiling.is_checked else ("true", "true")
    yield _OP % {
        "load": of.load,
        "store": "" if op == "cum_arg_extremum" else of.store,
        "fields": fields,
        "identity": identity,
        "element": element,
        "join": join,
        "result": result,
        "part_in_range": in_range[0].replace("fabs", f"fabs{suffix}"),
        "result_in_range": in_range[1].replace("fabs", f"fabs{suffix}"),
        "suffix": suffix,
        "up": "\n".join(f"    s.{field} = __shfl_up_sync(~0u, s.{field}, by, width);" for field in _names(fields)),
        "of": "\n".join(f"    s.{field} = __shfl_sync(~0u, s.{field}, lane, width);" for field in _names(fields)),
        "helpers": _HELPERS.get(op, "").replace("SUFFIX", suffix),
    }


def _names(fields: str) -> list[str]:
    """The names of the fields of a state."""
    return [name.split()[-1] for part in fields.strip(";").split(";") for name in part.split(",")]


_HELPERS = {
    "cumlogsumexp": """
  static __device__ __forceinline__ T add_logs(T x, T y) {
    const T largest = x > y || x != x ? x : y, apart = x > y ? y - x : x - y;
    // The difference of infinities is NaN.
    return fabsSUFFIX(largest) >= HIGHEST ? largest : largest + log1pSUFFIX(expSUFFIX(apart));
  }""",
    "cum_arg_extremum": """
  // Whether the later one replaces the earlier one; the first NaN stays.
  static __device__ __forceinline__ bool is_better(State a, State b) {
    if (a.at < 0 || b.at < 0) return a.at < 0;
    const bool better = LARGEST_FIRST ? b.x > a.x : b.x < a.x;
    return (better || b.x != b.x) && !(a.x != a.x);
  }""",
}

_OP = """  struct State { %(fields)s };
  static __device__ __forceinline__ State identity() { return %(identity)s; }
  static __device__ __forceinline__ float of_bfloat16(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
  static __device__ __forceinline__ unsigned short to_bfloat16(float x) {
    const unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  static __device__ __forceinline__ T load(Element x) { return %(load)s(x); }
  static __device__ __forceinline__ Result result(State s) { return %(store)s(s.%(result)s); }%(helpers)s
  static __device__ __forceinline__ State join(State a, State b) { return %(join)s; }
  static __device__ __forceinline__ State up(State s, int by, int width) {
%(up)s
    return s;
  }
  static __device__ __forceinline__ State of_lane(State s, int lane, int width) {
%(of)s
    return s;
  }
  // Whether the order of products does not matter to a partial result, or to a result, after the elements before.
  static __device__ __forceinline__ bool part_in_range(State s, State carry) { return %(part_in_range)s; }
  static __device__ __forceinline__ bool result_in_range(State s, State carry) { return %(result_in_range)s; }
  const Element *first, *second;
  State* totals;
  Result* results;
  __device__ __forceinline__ State element(long long i, int position, bool is_begin) const {
    return %(element)s;
  }
"""

_STRUCT = """
  // The element of a row or column that is number i in the direction of the scan.
  static __device__ __forceinline__ long long index(long long task, int i) {
    return (task / INNER * N + (REVERSE ? N - 1 - i : i)) * INNER + task % INNER;
  }
  __device__ __forceinline__ State at(long long task, int i) const {
    return element(index(task, i), REVERSE ? N - 1 - i : i, i == 0);
  }
  static __device__ __forceinline__ long long slot(long long task, int chunk) {
    return (task / INNER * CHUNKS + chunk) * INNER + task % INNER;
  }
  // The state of all chunks before one, in order.
  __device__ __forceinline__ State before(long long task, int chunk) const {
    State carry = identity();
#pragma unroll 8
    for (int i = 0; i < chunk; ++i) carry = join(carry, totals[slot(task, i)]);
    return carry;
  }
  static constexpr int WARPS = TEAM < 32 ? 1 : TEAM / 32;
  // Joins the states of a team in the order of its threads: of all threads before this one, and of all.
  static __device__ __forceinline__ State earlier(State own, State& total) {
    constexpr int WIDTH = TEAM < 32 ? TEAM : 32;
    const int lane = threadIdx.x % WIDTH;
#pragma unroll
    for (int by = 1; by < WIDTH; by *= 2) {
      const State other = up(own, by, WIDTH);
      if (lane >= by) own = join(other, own);
    }
    State result = up(own, 1, WIDTH);
    if (lane == 0) result = identity();
    total = of_lane(own, WIDTH - 1, WIDTH);
    if constexpr (WARPS > 1) {
      __shared__ State of_warps[WARPS];
      const int warp = threadIdx.x / 32;
      if (lane == 31) of_warps[warp] = own;
      __syncthreads();
      State warps = lane < WARPS ? of_warps[lane] : identity();
#pragma unroll
      for (int by = 1; by < WARPS; by *= 2) {
        const State other = up(warps, by, 32);
        if (lane >= by) warps = join(other, warps);
      }
      const State previous = of_lane(warps, warp > 0 ? warp - 1 : 0, 32);
      if (warp > 0) result = join(previous, result);
      total = of_lane(warps, WARPS - 1, 32);
      __syncthreads();
    }
    return result;
  }
  // Whether something is true for a thread of the team, or of another team of the warp.
  static __device__ __forceinline__ bool any(bool own) {
    bool result = __any_sync(~0u, own);
    if constexpr (WARPS > 1) {
      __shared__ int of_warps[WARPS];
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = result;
      __syncthreads();
      result = __any_sync(~0u, of_warps[threadIdx.x % WARPS]);
      __syncthreads();
    }
    return result;
  }
  // The state after a tile, whose results the first thread of the team stores one after the other.
  __device__ __forceinline__ State in_order(State carry, long long task, int begin, int end) const {
    if (threadIdx.x % TEAM == 0)
      for (int i = begin; i < end; ++i) {
        carry = join(carry, at(task, i));
        results[index(task, i)] = result(carry);
      }
    if constexpr (WARPS > 1) {
      __shared__ State last;
      if (threadIdx.x == 0) last = carry;
      __syncthreads();
      carry = last;
      __syncthreads();
      return carry;
    }
    return of_lane(carry, 0, TEAM);
  }
  template <bool STORES>
  __device__ __forceinline__ void rows(int block) const {
    const int team = block * (THREADS / TEAM) + threadIdx.x / TEAM, chunk = team % CHUNKS, task = team / CHUNKS;
    const int end = task < TASKS ? min(N, (chunk + 1) * CHUNK) : 0;
    State carry = STORES && CHUNKS > 1 && task < TASKS ? before(task, chunk) : identity();
    // Teams without a row take part in the exchanges of their warp.
#pragma unroll 1
    for (int tile = 0; tile < CHUNK / (TEAM * ITEMS); ++tile) {
      const int begin = chunk * CHUNK + tile * TEAM * ITEMS, own = begin + threadIdx.x % TEAM * ITEMS;
      State states[ITEMS], sum = identity(), total;
#pragma unroll
      for (int k = 0; k < ITEMS; ++k) states[k] = own + k < end ? at(task, own + k) : identity();
#pragma unroll
      for (int k = 0; k < ITEMS; ++k) states[k] = sum = join(sum, states[k]);
      const State lead = earlier(sum, total);
      if (STORES) {
        const State all = join(carry, lead);
        bool in_range = part_in_range(lead, carry) && part_in_range(sum, carry) && part_in_range(total, carry);
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
          states[k] = join(all, states[k]);
          in_range = in_range && result_in_range(states[k], carry);
        }
        if (CHECKED && any(!in_range)) {
          carry = in_order(carry, task, begin, min(end, begin + TEAM * ITEMS));
          continue;
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k)
          if (own + k < end) results[index(task, own + k)] = result(states[k]);
      }
      carry = join(carry, total);
    }
    if (!STORES && task < TASKS && threadIdx.x % TEAM == 0) totals[slot(task, chunk)] = carry;
  }
  template <bool STORES>
  __device__ __forceinline__ void columns(int block) const {
    const long long point = (long long)block * THREADS + threadIdx.x;
    if (point >= TASKS * CHUNKS) return;
    const int chunk = point / INNER % CHUNKS, end = min(N, (chunk + 1) * CHUNK);
    const long long task = point / INNER / CHUNKS * INNER + point % INNER;
    State carry = STORES && CHUNKS > 1 ? before(task, chunk) : identity();
#pragma unroll UNROLL
    for (int i = chunk * CHUNK; i < end; ++i) {
      carry = join(carry, at(task, i));
      if (STORES) results[index(task, i)] = result(carry);
    }
    if (!STORES) totals[slot(task, chunk)] = carry;
  }
"""
