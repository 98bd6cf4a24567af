"""Main loops of matrix products: how the threads of a block multiply two tiles in shared memory.

A :class:`MainLoop` is the interface of a provider: it says which tiles it takes and in which layout, and writes the
device functions that multiply two tiles and that move the sums to shared memory. Loading tiles and storing results,
with whatever is fused to them, is the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvmfun.lower.schedule.gpu.layouts import Layout, Padded
from tvmfun.lower.schedule.gpu.primitives import definition

# With at most this many stages, the products of a step are finished before the next step begins.
_FEW_STAGES = 3
#: The size of a barrier that counts copied bytes.
BARRIER_BYTES = 8


@dataclass(frozen=True)
class MainLoop:
    """A block's product of a tile of ``rows`` x ``depth`` and one of ``depth`` x ``columns`` elements.

    Args:
        dtype: the dtype of the elements: ``float16``, ``bfloat16``, ``tf32`` or ``float32``.
        rows, columns, depth: the sizes of the tiles.
        team_rows, team_columns: the part of the result that a team of ``team`` threads computes.
        left_by_term, right_by_term: whether the terms of one row (column) are neighbours in shared memory.
        stages: the number of pairs of tiles in shared memory.
    """

    dtype: str
    rows: int
    columns: int
    depth: int
    team_rows: int
    team_columns: int
    left_by_term: bool
    right_by_term: bool
    stages: int
    #: The threads that multiply together: a warp.
    team: ClassVar[int] = 32
    #: The instruction that multiplies, whose rate :mod:`tiles` knows.
    instruction: ClassVar[str]
    #: Whether multiplications run in the background. Then tiles have to be made visible to the unit that reads them,
    #: the products of a step may be unfinished when the next one begins, and `source` defines ``NAME_finish(sums)``.
    is_asynchronous: ClassVar[bool] = False

    @classmethod
    def keeps_by_term(cls, dtype: str, is_read_by_term: bool) -> bool:
        """Whether the terms of a factor are neighbours in shared memory, where they are, or are not, in the array."""
        return is_read_by_term

    @property
    def needs_rounded(self) -> bool:
        """Whether factors have to be rounded to the dtype before they are in shared memory."""
        return False

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.team * self.teams * (self.columns // self.team_columns)

    @property
    def teams(self) -> int:
        """The number of teams along the rows."""
        return self.rows // self.team_rows

    @property
    def sums(self) -> int:
        """The sums that a thread holds."""
        return self.team_rows * self.team_columns // self.team

    @property
    def element_bytes(self) -> int:
        """The size of an element in shared memory."""
        return 2 if self.dtype in ("float16", "bfloat16") else 4

    def layout(self, rows: int, by_term: bool) -> Layout:
        """The layout of a tile of ``rows`` rows in shared memory."""
        raise NotImplementedError

    @cached_property
    def left(self) -> Layout:
        """The layout of the left tile."""
        return self.layout(self.rows, self.left_by_term)

    @cached_property
    def right(self) -> Layout:
        """The layout of the right tile."""
        return self.layout(self.columns, self.right_by_term)

    @property
    def stage_bytes(self) -> int:
        """The size of a pair of tiles in shared memory."""
        return self.left.nbytes + self.right.nbytes

    @property
    def ahead(self) -> int:
        """The pairs of tiles that may be on their way while others are multiplied."""
        return self.stages - 1 - self.pending

    @property
    def pending(self) -> int:
        """The steps whose products may be unfinished when the next one begins.

        With few stages, several blocks fit a multiprocessor, and one multiplies while another waits.
        """
        return int(self.is_asynchronous and self.stages > _FEW_STAGES)

    @property
    def alignment(self) -> int:
        """The alignment of shared memory, in bytes."""
        return max(self.left.alignment, self.right.alignment)

    @property
    def result_length(self) -> int:
        """The distance of neighbouring rows of the result in shared memory."""
        return self.columns + 8  # so that the rows that a warp spills together are in different banks

    @property
    def barriers(self) -> int:
        """Offset of the barriers in shared memory: after the tiles, and after the result, which reuses their memory.

        The memory of a barrier must not be used for anything else while the barrier is valid.
        """
        return max(self.stages * self.stage_bytes, self.rows * self.result_length * 4)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the tiles, or afterwards the result, and a barrier for each stage."""
        return self.barriers + (BARRIER_BYTES * self.stages if self.is_asynchronous else 0)

    @property
    def name(self) -> str:
        """A name for its device functions."""
        layout = "".join("k" if flag else "m" for flag in (self.left_by_term, self.right_by_term))
        sizes = (self.rows, self.columns, self.depth, self.team_rows, self.team_columns)
        return f"tvmfun_{self.dtype}_{'x'.join(map(str, sizes))}_{layout}"

    @property
    def primitives(self) -> list[str]:
        """The device functions that it calls."""
        return []

    @property
    def functions(self) -> str:
        """The CUDA C++ of its own functions."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """The definitions of ``NAME_multiply(sums, left, right)`` and ``NAME_spill(result, sums)``."""
        needed = "".join(definition(name) for name in self.primitives)
        return f"{needed}#ifndef {self.name}\n#define {self.name}{self.functions}#endif\n"


@dataclass(frozen=True)
class Warps(MainLoop):
    """A main loop whose warps read padded tiles from shared memory to registers."""

    def layout(self, rows: int, by_term: bool) -> Padded:
        """The layout of a tile of ``rows`` rows in shared memory."""
        padding = 16 // self.element_bytes
        if self.dtype == "tf32" and not by_term:
            padding = 8  # lanes read 4 rows of 8 neighbours each
        return Padded(rows, self.depth, self.element_bytes, by_term, padding)

    @property
    def left_length(self) -> int:
        """The distance of neighbouring lines of the left tile."""
        return self.layout(self.rows, self.left_by_term).length

    @property
    def right_length(self) -> int:
        """The distance of neighbouring lines of the right tile."""
        return self.layout(self.columns, self.right_by_term).length


@dataclass(frozen=True)
class TensorCores(Warps):
    """Warps that multiply by ``mma.sync``."""

    instruction: ClassVar[str] = "mma.sync"

    @property
    def primitives(self) -> list[str]:
        """The device functions that it calls."""
        loads = ["tvmfun_ldmatrix", "tvmfun_ldmatrix_transposed"]
        return [*loads, f"tvmfun_mma_{self.dtype}", *(["tvmfun_tf32"] if self.dtype == "tf32" else [])]

    @property
    def functions(self) -> str:
        """The CUDA C++ of its own functions."""
        return _mma(self)


@dataclass(frozen=True)
class Simt(Warps):
    """Threads that multiply 8 x 8 (or fewer) float32 numbers by fused multiply-add, in groups of four neighbours."""

    instruction: ClassVar[str] = "fma"

    @classmethod
    def keeps_by_term(cls, dtype: str, is_read_by_term: bool) -> bool:
        """Never: threads read neighbouring rows."""
        return False

    @property
    def functions(self) -> str:
        """The CUDA C++ of its own functions."""
        return _simt(self)


def _mma(loop: TensorCores) -> str:
    half = loop.element_bytes == 2
    element = "unsigned short" if half else "unsigned"
    step = 16 if half else 8  # terms of one instruction
    row_tiles, column_tiles = loop.team_rows // 16, loop.team_columns // 8
    load_left = _left_fragment(loop, half)
    load_right = _right_fragment(loop, half)
    rounded = "" if half else _ROUNDED.format(row_tiles=row_tiles, column_tiles=column_tiles)
    return f"""
__device__ __forceinline__ void {loop.name}_multiply(float* sums, const void* left_tile, const void* right_tile) {{
  const {element}* left = (const {element}*)left_tile;
  const {element}* right = (const {element}*)right_tile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp % {loop.teams} * {loop.team_rows};
  const int first_column = warp / {loop.teams} * {loop.team_columns};
#pragma unroll
  for (int k = 0; k < {loop.depth}; k += {step}) {{
    unsigned a[{row_tiles}][4], b[{column_tiles}][2];
#pragma unroll
    for (int i = 0; i < {row_tiles}; ++i) {{
      const int row = first_row + i * 16;
      {load_left}
    }}
#pragma unroll
    for (int j = 0; j < {column_tiles}; j += 2) {{
      const int column = first_column + j * 8;
      {load_right}
    }}
{rounded}
#pragma unroll
    for (int i = 0; i < {row_tiles}; ++i)
#pragma unroll
      for (int j = 0; j < {column_tiles}; ++j) tvmfun_mma_{loop.dtype}(sums + (i * {column_tiles} + j) * 4, a[i], b[j]);
  }}
}}
{spill_of_fragments(loop)}"""


def spill_of_fragments(loop: MainLoop) -> str:
    """The function that moves sums from the registers of tensor cores to shared memory.

    Each warp of the team has 16 rows of its fragments, and each lane two neighbours in every eight columns.
    """
    fragment_rows = loop.team // 2
    row_tiles, column_tiles = loop.team_rows // fragment_rows, loop.team_columns // 8
    return f"""__device__ __forceinline__ void {loop.name}_spill(void* result_tile, const float* sums) {{
  const int lane = threadIdx.x % 32, team = threadIdx.x / {loop.team};
  const int first_row = team % {loop.teams} * {loop.team_rows} + threadIdx.x % {loop.team} / 32 * 16;
  const int column = team / {loop.teams} * {loop.team_columns} + lane % 4 * 2;
  float* result = (float*)result_tile + (first_row + lane / 4) * {loop.result_length} + column;
#pragma unroll
  for (int i = 0; i < {row_tiles}; ++i)
#pragma unroll
    for (int j = 0; j < {column_tiles}; ++j) {{
      const float* sum = sums + (i * {column_tiles} + j) * 4;
      float* at = result + i * {fragment_rows * loop.result_length} + j * 8;
      *(float2*)at = make_float2(sum[0], sum[1]);
      *(float2*)(at + {8 * loop.result_length}) = make_float2(sum[2], sum[3]);
    }}
}}
"""


_ROUNDED = """#pragma unroll
    for (int i = 0; i < {row_tiles}; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) a[i][e] = tvmfun_tf32(a[i][e]);
#pragma unroll
    for (int j = 0; j < {column_tiles}; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) b[j][e] = tvmfun_tf32(b[j][e]);"""


def _left_fragment(loop: TensorCores, half: bool) -> str:
    length = loop.left_length
    if loop.left_by_term:  # rows of 16 bytes: the lower and the upper 8 rows, then the following terms
        columns = 8 if half else 4
        return f"tvmfun_ldmatrix(a[i], left + (row + lane % 16) * {length} + k + lane / 16 * {columns});"
    if half:
        at = f"(k + lane / 16 * 8 + lane % 8) * {length} + row + lane / 8 % 2 * 8"
        return f"tvmfun_ldmatrix_transposed(a[i], left + {at});"
    return f"""const unsigned* at = left + (k + lane % 4) * {length} + row + lane / 4;
      a[i][0] = at[0]; a[i][1] = at[8]; a[i][2] = at[{4 * length}]; a[i][3] = at[{4 * length} + 8];"""


def _right_fragment(loop: TensorCores, half: bool) -> str:
    """The fragments of two neighbouring groups of 8 columns."""
    length = loop.right_length
    if loop.right_by_term:
        terms = 8 if half else 4
        at = f"(column + lane / 16 * 8 + lane % 8) * {length} + k + lane / 8 % 2 * {terms}"
        return f"tvmfun_ldmatrix(b[j], right + {at});"
    if half:
        at = f"(k + lane / 8 % 2 * 8 + lane % 8) * {length} + column + lane / 16 * 8"
        return f"tvmfun_ldmatrix_transposed(b[j], right + {at});"
    return f"""const unsigned* at = right + (k + lane % 4) * {length} + column + lane / 4;
      b[j][0] = at[0]; b[j][1] = at[{4 * length}]; b[j + 1][0] = at[8]; b[j + 1][1] = at[{4 * length} + 8];"""


def _simt(loop: Simt) -> str:
    groups = [max(1, size) for size in (loop.team_rows // 16, loop.team_columns // 32)]
    row_groups, column_groups = groups
    return f"""
__device__ __forceinline__ void {loop.name}_multiply(float* sums, const void* left_tile, const void* right_tile) {{
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* left = (const float*)left_tile + warp % {loop.teams} * {loop.team_rows} + lane / 8 * 4;
  const float* right = (const float*)right_tile + warp / {loop.teams} * {loop.team_columns} + lane % 8 * 4;
#pragma unroll
  for (int k = 0; k < {loop.depth}; ++k) {{
    float4 a[{row_groups}], b[{column_groups}];
#pragma unroll
    for (int i = 0; i < {row_groups}; ++i) a[i] = *(const float4*)(left + k * {loop.left_length} + i * 16);
#pragma unroll
    for (int j = 0; j < {column_groups}; ++j) b[j] = *(const float4*)(right + k * {loop.right_length} + j * 32);
#pragma unroll
    for (int i = 0; i < {row_groups}; ++i)
#pragma unroll
      for (int j = 0; j < {column_groups}; ++j) {{
        float* sum = sums + (i * {column_groups} + j) * 16;
        const float x[4] = {{a[i].x, a[i].y, a[i].z, a[i].w}}, y[4] = {{b[j].x, b[j].y, b[j].z, b[j].w}};
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[r * 4 + c] = fmaf(x[r], y[c], sum[r * 4 + c]);
      }}
  }}
}}
__device__ __forceinline__ void {loop.name}_spill(void* result_tile, const float* sums) {{
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp % {loop.teams} * {loop.team_rows} + lane / 8 * 4;
  const int column = warp / {loop.teams} * {loop.team_columns} + lane % 8 * 4;
  float* result = (float*)result_tile + row * {loop.result_length} + column;
#pragma unroll
  for (int i = 0; i < {row_groups}; ++i)
#pragma unroll
    for (int j = 0; j < {column_groups}; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) {{
        const float* sum = sums + (i * {column_groups} + j) * 16 + r * 4;
        *(float4*)(result + (i * 16 + r) * {loop.result_length} + j * 32) = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }}
}}
"""
