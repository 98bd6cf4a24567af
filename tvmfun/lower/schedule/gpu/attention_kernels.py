"""Kernels of attention in CUDA C++: a block holds some rows, and tiles of the other side pass through shared memory.

Kernels for the result and for the cotangents of queries hold queries and loop over keys; kernels for the cotangents of
keys and values hold these and loop over queries. No two blocks add to the same element, so results do not depend on an
order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvmfun.lower.schedule.gpu.attention_dropout import DRAWN, READ
from tvmfun.lower.schedule.gpu.attention_formats import UNITS, definitions, functions
from tvmfun.lower.schedule.gpu.layouts import Swizzled
from tvmfun.lower.schedule.gpu.primitives import definition
from tvmfun.ops.attention import AttentionParams, kept_below, word_count

#: The results of the op for the cotangents.
RESULTS = ("d_query", "d_key", "d_value")
#: The arguments of the kernels before the optional ones: pointers to the first elements.
ARGUMENTS = {
    "forward": ("query", "key", "value", "result", "log_sums"),
    "queries": ("query", "key", "value", "cotangent", "log_sums", "dots", "d_query"),
    "keys": ("query", "key", "value", "cotangent", "log_sums", "dots", "d_key", "d_value"),
}


# An upper bound on the examples of any batch.
_ALL_EXAMPLES = 2**31 - 1


@dataclass(frozen=True)
class Sizes:
    """The sizes of an attention: examples (maybe dynamic), queries, keys, their heads, and elements of a head."""

    batch: Any
    length: int
    keys: int
    heads: int
    groups: int
    width: int


@dataclass(frozen=True)
class AttentionTiling:
    """The division of a kernel into blocks.

    Args:
        format: the format of the factors: ``float16``, ``bfloat16``, ``tf32`` or ``float32``.
        width: the elements of a head.
        row_tiles: the tiles of 16 rows that a warp holds.
        warps: the warps of a block.
        columns: the rows of the other side that a tile has.
        held: the number of matrices whose rows a block holds.
        warpgroups: whether warpgroups multiply by ``wgmma``, of rows in chunks of 64 elements.
    """

    format: str
    width: int
    row_tiles: int
    warps: int
    columns: int
    held: int
    warpgroups: bool = False

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """The rows that a block holds."""
        return 16 * self.row_tiles * self.warps

    @property
    def element_bytes(self) -> int:
        """The size of a factor."""
        return 2 if self.format in ("float16", "bfloat16") else 4

    @property
    def depth(self) -> int:
        """The elements of a head, padded with zeros to a size that the instructions support."""
        unit = 64 if self.warpgroups else UNITS[self.format]
        return math.ceil(self.width / unit) * unit

    @property
    def length(self) -> int:
        """The distance of rows in shared memory, such that lanes read from different banks."""
        return self.depth + (0 if self.warpgroups else 16 // self.element_bytes)

    @property
    def factors(self) -> tuple[str, int, int, bool]:
        """The arguments of :func:`attention_formats.functions`."""
        return self.format, self.columns, self.depth, self.warpgroups

    @property
    def alignment(self) -> int:
        """The alignment of shared memory, in bytes."""
        return Swizzled.alignment if self.warpgroups else 16

    @property
    def held_bytes(self) -> int:
        """The size of the rows of one matrix that a block holds."""
        return self.rows * self.length * self.element_bytes

    @property
    def tile_bytes(self) -> int:
        """The size of a tile that passes through shared memory."""
        return self.columns * self.length * self.element_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: its rows, two tiles of two matrices, and two numbers per row of these."""
        return self.held * self.held_bytes + 4 * self.tile_bytes + 4 * self.columns * 4


@dataclass(frozen=True)
class DeviceFunction:
    """A device function ``name(block, shared, *ARGUMENTS[kind], *optional)``, and its CUDA C++."""

    name: str
    source: str


def device_function(
    kind: str, settings: AttentionParams, sizes: Sizes, tiling: AttentionTiling, optional: dict[str, tuple[int, ...]]
) -> DeviceFunction:
    """The device function of a kernel.

    Args:
        kind: one of :data:`ARGUMENTS`.
        settings: the parameters of the op.
        sizes: the sizes of its arguments.
        tiling: its division into blocks.
        optional: the shapes of the optional arguments by name.
    """
    names = (*ARGUMENTS[kind], *optional)
    element = "unsigned short" if tiling.element_bytes == 2 else "float"
    rounds = settings.narrow and tiling.element_bytes == 2
    members = [f"  typedef {element} Element;", f"  typedef {element if rounds else 'float'} Result;"]
    members += [*_constants(settings, sizes, tiling, optional)]
    members += [f"  const {of}* {name};" for name, of in _POINTERS.items()]
    dropout = READ if "kept" in optional else DRAWN
    struct = "\n".join(members) + functions(*tiling.factors) + _COMMON
    struct += (_STORES_ROUNDED if rounds else _STORES_FLOATS) + dropout + _KERNELS[kind]
    name = f"tvmfun_attention_{kind}_{hashlib.sha256(struct.encode()).hexdigest()[:12]}"
    parameters = ", ".join(["int block", "void* shared", *(f"const void* {name}" for name in names)])
    given = "\n".join(f"  self.{name} = (const {_POINTERS[name]}*){name};" for name in optional)
    pointers = ", ".join(_cast(kind, name) for name in ARGUMENTS[kind])
    needed = ["tvmfun_copy", "tvmfun_copies_commit", "tvmfun_copies_wait", "tvmfun_move"]
    if "kept" not in optional:
        needed.append("tvmfun_threefry")
    source = f"""{"".join(map(definition, needed))}{definitions(*tiling.factors)}#ifndef {name}_defined
#define {name}_defined
struct {name}_struct {{
{struct}}};
__device__ __forceinline__ void {name}({parameters}) {{
  typedef {name}_struct::Element Element;
  typedef {name}_struct::Result Result;
  {name}_struct self;
{given}
  self.{kind}(block, (char*)shared, {pointers});
}}
#endif
"""
    return DeviceFunction(name, source)


def _constants(
    settings: AttentionParams, sizes: Sizes, tiling: AttentionTiling, optional: dict[str, tuple[int, ...]]
) -> Iterator[str]:
    """The definitions of the constants that the kernels use."""
    before, after = settings.window or (0, 0)
    flag = lambda value: "true" if value else "false"
    ints = {
        "QUERIES": sizes.length,
        "KEYS": sizes.keys,
        "HEADS": sizes.heads,
        "GROUPS": sizes.groups,
        "WIDTH": sizes.width,
        "M": tiling.row_tiles,
        "ROWS": tiling.rows,
        "THREADS": tiling.threads,
        "COLUMNS": tiling.columns,
        "DEPTH": tiling.depth,
        "LENGTH": tiling.length,
        "HELD": tiling.held,
        "VECTOR": math.gcd(16 // tiling.element_bytes, sizes.width),
        "BEFORE": before,
        "AFTER": after,
        "EXAMPLES_PER_KEY": examples_per_key(sizes, optional.get("dropout_key", (1,))[0]),
        "KEPT_BELOW": kept_below(settings.rate),
        "WORDS_PER_QUERY": word_count(sizes.keys),
    }
    yield from (f"  static constexpr int {name} = {value};" for name, value in ints.items())
    flags = {"CAUSAL": settings.causal, "WINDOW": settings.window is not None, "DROPS": settings.rate > 0}
    flags |= {f"HAS_{name.upper()}": name in optional for name in _POINTERS}
    yield from (f"  static constexpr bool {name} = {flag(value)};" for name, value in flags.items())
    floats = {"SCALE": settings.scale, "UPSCALE": 1 / (1 - settings.rate)}
    yield from (f"  static constexpr float {name} = {value!r}f;" for name, value in floats.items())
    for name in ("bias", "mask"):
        strides = _strides(optional.get(name, (1, 1, 1, 1)))
        for axis, stride in zip(("EXAMPLE", "HEAD", "QUERY", "KEY"), strides, strict=True):
            # Offsets within a head have 32 bits, which need fewer registers.
            of = "int" if axis in ("QUERY", "KEY") and sizes.length * sizes.keys < 1 << 31 else "long long"
            yield f"  static constexpr {of} {name.upper()}_PER_{axis} = {stride};"


def examples_per_key(sizes: Sizes, keys: Any) -> int | None:
    """The number of examples per key of dropout; None if it is unknown."""
    examples = sizes.batch // keys
    if isinstance(examples, int):
        return examples
    return _ALL_EXAMPLES if isinstance(keys, int) and keys == 1 else None


# The optional arguments, and the types that their pointers point to.
_POINTERS = {
    "bias": "float",
    "mask": "unsigned char",
    "query_lengths": "int",
    "key_lengths": "int",
    "dropout_key": "unsigned",
    "kept": "unsigned",
}


def _cast(kind: str, name: str) -> str:
    """Casts an argument to a pointer to its elements."""
    is_result = name.startswith("d_") or (kind == "forward" and name in ("result", "log_sums"))
    of = "float" if name in ("log_sums", "dots") else "Result" if is_result else "Element"
    return f"({of}*){name}" if is_result else f"(const {of}*){name}"


def _strides(shape: tuple[int, ...]) -> list[int]:
    """The distances of elements along the axes; 0 along axes of size 1, which are broadcast."""
    return [0 if size == 1 else math.prod(shape[i + 1 :]) for i, size in enumerate(shape)]


_COMMON = """
  // What the scores of a head of an example depend on.
  struct Head {
    int example, head, query_end, key_end;
    const float* bias;
    const unsigned char* mask;
    unsigned key[2];
    unsigned long long counter;
    const unsigned* kept;
  };
  __device__ __forceinline__ Head at(int example, int head) const {
    Head x;
    x.example = example;
    x.head = head;
    x.query_end = HAS_QUERY_LENGTHS ? min(QUERIES, query_lengths[example]) : QUERIES;
    x.key_end = HAS_KEY_LENGTHS ? min(KEYS, key_lengths[example]) : KEYS;
    if (HAS_BIAS) x.bias = bias + (example * BIAS_PER_EXAMPLE + head * BIAS_PER_HEAD);
    if (HAS_MASK) x.mask = mask + (example * MASK_PER_EXAMPLE + head * MASK_PER_HEAD);
    if (HAS_KEPT) x.kept = kept + ((long long)example * HEADS + head) * QUERIES * WORDS_PER_QUERY;
    if (HAS_DROPOUT_KEY) {
      x.key[0] = dropout_key[example / EXAMPLES_PER_KEY * 2];
      x.key[1] = dropout_key[example / EXAMPLES_PER_KEY * 2 + 1];
      x.counter = ((unsigned long long)(example % EXAMPLES_PER_KEY) * HEADS + head) * QUERIES * KEYS;
    }
    return x;
  }
  // The first element of a head; its rows are HEADS or GROUPS heads apart.
  template <class T>
  static __device__ __forceinline__ T* of_query(T* x, int example, int head) {
    return x + ((long long)example * QUERIES * HEADS + head) * WIDTH;
  }
  template <class T>
  static __device__ __forceinline__ T* of_key(T* x, int example, int group) {
    return x + ((long long)example * KEYS * GROUPS + group) * WIDTH;
  }
  // The keys that some of these queries see, or the queries that see some of these keys, are in a range.
  static __device__ __forceinline__ void see(const Head& x, int first, int last, int& begin, int& end) {
    begin = WINDOW ? max(0, first - BEFORE) : 0;
    if (HAS_KEPT) begin &= ~31;  // Tiles begin at words of bits.
    end = x.key_end;
    if (CAUSAL) end = min(end, last + 1);
    if (WINDOW) end = min(end, last + AFTER + 1);
    if (first >= x.query_end) end = begin;
  }
  static __device__ __forceinline__ void seen(const Head& x, int first, int last, int& begin, int& end) {
    begin = CAUSAL ? first : 0;
    if (WINDOW) begin = max(begin, first - AFTER);
    end = WINDOW ? min(x.query_end, last + BEFORE + 1) : x.query_end;
    if (first >= x.key_end) end = begin;
  }
  // Whether all queries of a range see all keys of another without further tests.
  static __device__ __forceinline__ bool is_whole(const Head& x, int t, int last_t, int s, int last_s) {
    bool whole = !HAS_MASK && !HAS_BIAS && last_t < x.query_end && last_s < x.key_end;
    if (CAUSAL) whole = whole && last_s <= t;
    if (WINDOW) whole = whole && s + BEFORE >= last_t && last_s <= t + AFTER;
    return whole;
  }
  static __device__ __forceinline__ bool is_visible(const Head& x, int t, int s) {
    bool visible = t < x.query_end && s < x.key_end;
    if (CAUSAL) visible = visible && s <= t;
    if (WINDOW) visible = visible && s + BEFORE >= t && s <= t + AFTER;
    if (HAS_MASK) visible = visible && x.mask[t * MASK_PER_QUERY + s * MASK_PER_KEY];
    return visible;
  }
  // The score of a pair from its product: minus infinity if it is masked.
  static __device__ __forceinline__ float scored(const Head& x, bool whole, float product, int t, int s) {
    if (!whole && !is_visible(x, t, s)) return -INFINITY;
    product *= SCALE;
    return HAS_BIAS ? product + x.bias[t * BIAS_PER_QUERY + s * BIAS_PER_KEY] : product;
  }
  static __device__ __forceinline__ float exponential(float x) { return exp2f(x * 1.44269504088896341f); }
  // Copies rows in the background; zeros after the last row, and after the last element of a row.
  template <int COUNT, int STRIDE>
  static __device__ __forceinline__ void load(Element* tile, const Element* from, int first, int rows) {
#pragma unroll 4
    for (int i = threadIdx.x; i < COUNT * (DEPTH / VECTOR); i += THREADS) {
      const int row = i / (DEPTH / VECTOR), d = i % (DEPTH / VECTOR) * VECTOR;
      const bool exists = first + row < rows && d < WIDTH;
      const Element* at = exists ? from + (long long)(first + row) * STRIDE + d : from;
      if constexpr (VECTOR * sizeof(Element) >= 4) {
        tvmfun_copy<VECTOR * sizeof(Element)>(tile + offset<COUNT>(row, d), at, exists);
      } else {
        tile[offset<COUNT>(row, d)] = exists ? *at : (Element)0;
      }
    }
  }
  template <int SIZE>
  static __device__ __forceinline__ void clear(float* x) {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) x[i] = 0.0f;
  }
"""

_STORES_FLOATS = """\
  // Stores a thread's part of a row, times a factor.
  template <int STRIDE>
  static __device__ __forceinline__ void store(Result* to, const float* sums, int r, int row, float factor) {
#pragma unroll
    for (int d = 0; d < D; d += NEIGHBOURS) {
      alignas(16) float values[NEIGHBOURS];
#pragma unroll
      for (int e = 0; e < NEIGHBOURS; ++e) values[e] = sums[sum(r, d + e)] * factor;
      Result* at = to + (long long)row * STRIDE + depth(d);
      if constexpr (WIDTH % NEIGHBOURS == 0) {
        if (depth(d) < WIDTH) tvmfun_move<4 * NEIGHBOURS>(at, values);
      } else {
#pragma unroll
        for (int e = 0; e < NEIGHBOURS; ++e)
          if (depth(d) + e < WIDTH) at[e] = values[e];
      }
    }
  }
"""

_STORES_ROUNDED = """\
  // Stores a thread's part of a row, times a factor, rounded.
  template <int STRIDE>
  static __device__ __forceinline__ void store(Result* to, const float* sums, int r, int row, float factor) {
#pragma unroll
    for (int d = 0; d < D; d += 2) {
      const unsigned both = pair(sums[sum(r, d)] * factor, sums[sum(r, d + 1)] * factor);
      Result* at = to + (long long)row * STRIDE + depth(d);
      if constexpr (WIDTH % 2 == 0) {
        if (depth(d) < WIDTH) tvmfun_move<4>(at, &both);
      } else {
        if (depth(d) < WIDTH) at[0] = both & 0xffff;
        if (depth(d) + 1 < WIDTH) at[1] = both >> 16;
      }
    }
  }
"""

# The beginning of a kernel that holds queries: its rows, and the copies of tiles of keys and values.
_HOLDS_QUERIES = """\
    constexpr int TILES = (QUERIES + ROWS - 1) / ROWS, TILE = COLUMNS * LENGTH;
    // Causal queries at the end see most keys, so they begin first.
    const int tile = CAUSAL ? TILES - 1 - block % TILES : block % TILES, first = tile * ROWS;
    const Head x = at(block / TILES / HEADS, block / TILES % HEADS);
    const int last = min(first + ROWS, QUERIES) - 1, group = x.head / (HEADS / GROUPS);
    const Element* keys = of_key(key, x.example, group);
    const Element* values = of_key(value, x.example, group);
    Element* held = (Element*)shared;
    Element* streamed = held + HELD * ROWS * LENGTH;
    int begin, end;
    see(x, first, last, begin, end);
    load<ROWS, HEADS * WIDTH>(held, of_query(query, x.example, x.head), first, QUERIES);
    const auto stream = [&](int s, int stage) {
      if (s < end) {
        load<COLUMNS, GROUPS * WIDTH>(streamed + stage * 2 * TILE, keys, s, KEYS);
        load<COLUMNS, GROUPS * WIDTH>(streamed + stage * 2 * TILE + TILE, values, s, KEYS);
      }
      tvmfun_copies_commit();
    };
"""

_FORWARD = (
    """
  __device__ __forceinline__ void forward(int block, char* shared, const Element* query, const Element* key,
                                          const Element* value, Result* result, float* log_sums) const {
"""
    + _HOLDS_QUERIES
    + """\
    float sums[R * D], largest[R], weight[R];
    clear<R * D>(sums);
    clear<R>(weight);
#pragma unroll
    for (int r = 0; r < R; ++r) largest[r] = -INFINITY;
    stream(begin, 0);
    for (int s = begin, stage = 0; s < end; s += COLUMNS, stage ^= 1) {
      tvmfun_copies_wait<0>();
      publish();
      __syncthreads();
      stream(s + COLUMNS, stage ^ 1);
      unsigned kept[WORDS<false>];
      draw<false>(kept, x, first, s);
      float scores[R * C];
      clear<R * C>(scores);
      multiply(scores, held, streamed + stage * 2 * TILE);
      const bool whole = is_whole(x, first, last, s, s + COLUMNS - 1);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int t = first + row(r);
        float most = largest[r];
#pragma unroll
        for (int c = 0; c < C; ++c) {
          scores[score(r, c)] = scored(x, whole, scores[score(r, c)], t, s + column(c));
          most = fmaxf(most, scores[score(r, c)]);
        }
#pragma unroll
        for (int lane = 1; lane < LANES; lane *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lane));
        const float base = most == -INFINITY ? 0.0f : most, shrunk = exponential(largest[r] - base);
        largest[r] = most;
        weight[r] *= shrunk;
#pragma unroll
        for (int d = 0; d < D; ++d) sums[sum(r, d)] *= shrunk;
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const float one = exponential(scores[score(r, c)] - base);
          weight[r] += one;
          scores[score(r, c)] = keeps<false>(kept, r, c, s) ? one : 0.0f;
        }
      }
      accumulate(sums, scores, streamed + stage * 2 * TILE + TILE);
    }
    tvmfun_copies_wait<0>();
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int lane = 1; lane < LANES; lane *= 2) weight[r] += __shfl_xor_sync(0xffffffffu, weight[r], lane);
      const int t = first + row(r);
      if (t >= QUERIES) continue;
      const bool empty = weight[r] == 0.0f;
      store<HEADS * WIDTH>(of_query(result, x.example, x.head), sums, r, t, empty ? 0.0f : UPSCALE / weight[r]);
      if (threadIdx.x % LANES == 0) {
        float* to = log_sums + ((long long)x.example * HEADS + x.head) * QUERIES + t;
        *to = empty ? INFINITY : largest[r] + logf(weight[r]);
      }
    }
  }
"""
)

_QUERIES = (
    """
  __device__ __forceinline__ void queries(int block, char* shared, const Element* query, const Element* key,
                                          const Element* value, const Element* cotangent, const float* log_sums,
                                          const float* dots, Result* d_query) const {
"""
    + _HOLDS_QUERIES
    + """\
    Element* held_cotangent = held + ROWS * LENGTH;
    load<ROWS, HEADS * WIDTH>(held_cotangent, of_query(cotangent, x.example, x.head), first, QUERIES);
    float sums[R * D], log_sum[R], dot[R];
    clear<R * D>(sums);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int t = min(first + row(r), QUERIES - 1);
      log_sum[r] = log_sums[((long long)x.example * HEADS + x.head) * QUERIES + t];
      dot[r] = dots[((long long)x.example * QUERIES + t) * HEADS + x.head];
    }
    stream(begin, 0);
    for (int s = begin, stage = 0; s < end; s += COLUMNS, stage ^= 1) {
      tvmfun_copies_wait<0>();
      publish();
      __syncthreads();
      stream(s + COLUMNS, stage ^ 1);
      const Element* tile_of_keys = streamed + stage * 2 * TILE;
      unsigned kept[WORDS<false>];
      draw<false>(kept, x, first, s);
      float scores[R * C], slopes[R * C];
      clear<R * C>(scores);
      clear<R * C>(slopes);
      multiply(scores, held, tile_of_keys);
      multiply(slopes, held_cotangent, tile_of_keys + TILE);
      const bool whole = is_whole(x, first, last, s, s + COLUMNS - 1);
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const int t = first + row(r), own = s + column(c), i = score(r, c);
          const float weight = exponential(scored(x, whole, scores[i], t, own) - log_sum[r]);
          slopes[i] = weight * ((keeps<false>(kept, r, c, s) ? slopes[i] * UPSCALE : 0.0f) - dot[r]);
        }
      accumulate(sums, slopes, tile_of_keys);
    }
    tvmfun_copies_wait<0>();
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (first + row(r) < QUERIES)
        store<HEADS * WIDTH>(of_query(d_query, x.example, x.head), sums, r, first + row(r), SCALE);
  }
"""
)

_KEYS = """
  __device__ __forceinline__ void keys(int block, char* shared, const Element* query, const Element* key,
                                       const Element* value, const Element* cotangent, const float* log_sums,
                                       const float* dots, Result* d_key, Result* d_value) const {
    constexpr int TILES = (KEYS + ROWS - 1) / ROWS, TILE = COLUMNS * LENGTH, MEMBERS = HEADS / GROUPS;
    const int first = block % TILES * ROWS, last = min(first + ROWS, KEYS) - 1;
    const int example = block / TILES / GROUPS, group = block / TILES % GROUPS;
    Element* held = (Element*)shared;
    Element* held_value = held + ROWS * LENGTH;
    Element* streamed = held + HELD * ROWS * LENGTH;
    float* numbers = (float*)(streamed + 4 * TILE);
    Head x = at(example, group * MEMBERS);
    int begin, end;
    seen(x, first, last, begin, end);
    // Tiles of all heads that share the keys, one head after the other.
    const int tiles = max(0, (end - begin + COLUMNS - 1) / COLUMNS);
    load<ROWS, GROUPS * WIDTH>(held, of_key(key, example, group), first, KEYS);
    load<ROWS, GROUPS * WIDTH>(held_value, of_key(value, example, group), first, KEYS);
    const auto stream = [&](int i, int stage) {
      if (i < tiles * MEMBERS) {
        const int head = group * MEMBERS + i / tiles, t = begin + i % tiles * COLUMNS;
        Element* to_tile = streamed + stage * 2 * TILE;
        load<COLUMNS, HEADS * WIDTH>(to_tile, of_query(query, example, head), t, QUERIES);
        load<COLUMNS, HEADS * WIDTH>(to_tile + TILE, of_query(cotangent, example, head), t, QUERIES);
        for (int own = threadIdx.x; own < COLUMNS; own += THREADS) {
          const bool exists = t + own < QUERIES;
          const long long at = exists ? t + own : 0;
          float* to = numbers + stage * 2 * COLUMNS + own;
          tvmfun_copy<4>(to, log_sums + ((long long)example * HEADS + head) * QUERIES + at, exists);
          tvmfun_copy<4>(to + COLUMNS, dots + ((long long)example * QUERIES + at) * HEADS + head, exists);
        }
      }
      tvmfun_copies_commit();
    };
    float of_key_sums[R * D], of_value_sums[R * D];
    clear<R * D>(of_key_sums);
    clear<R * D>(of_value_sums);
    stream(0, 0);
    for (int i = 0, stage = 0; i < tiles * MEMBERS; ++i, stage ^= 1) {
      tvmfun_copies_wait<0>();
      publish();
      __syncthreads();
      stream(i + 1, stage ^ 1);
      x = at(example, group * MEMBERS + i / tiles);
      const int first_t = begin + i % tiles * COLUMNS;
      const Element* tile_of_queries = streamed + stage * 2 * TILE;
      const float* number = numbers + stage * 2 * COLUMNS;
      unsigned kept[WORDS<true>];
      draw<true>(kept, x, first, first_t);
      float scores[R * C], slopes[R * C];
      clear<R * C>(scores);
      clear<R * C>(slopes);
      multiply(scores, held, tile_of_queries);
      multiply(slopes, held_value, tile_of_queries + TILE);
      const bool whole = is_whole(x, first_t, first_t + COLUMNS - 1, first, last);
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const int t = first_t + column(c), own = first + row(r), j = score(r, c);
          const float weight = exponential(scored(x, whole, scores[j], t, own) - number[column(c)]);
          const bool stays = keeps<true>(kept, r, c, first_t);
          scores[j] = stays ? weight : 0.0f;
          slopes[j] = weight * ((stays ? slopes[j] * UPSCALE : 0.0f) - number[COLUMNS + column(c)]);
        }
      accumulate(of_value_sums, scores, tile_of_queries + TILE);
      accumulate(of_key_sums, slopes, tile_of_queries);
    }
    tvmfun_copies_wait<0>();
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int s = first + row(r);
      if (s >= KEYS) continue;
      store<GROUPS * WIDTH>(of_key(d_key, example, group), of_key_sums, r, s, SCALE);
      store<GROUPS * WIDTH>(of_key(d_value, example, group), of_value_sums, r, s, UPSCALE);
    }
  }
"""

_KERNELS = {"forward": _FORWARD, "queries": _QUERIES, "keys": _KEYS}
