"""Products of matrices by ``wgmma`` on sm_90a: warpgroups whose tensor cores read both factors from shared memory.

A warpgroup is four warps. Its instructions multiply 64 rows by up to 256 columns in the background, while its threads
copy the following tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvmfun.lower.schedule.gpu.layouts import SWIZZLED, Swizzled
from tvmfun.lower.schedule.gpu.mainloops import MainLoop, spill_of_fragments

#: The rows of one instruction, and the bytes of its terms.
ROWS = 64
TERM_BYTES = 32
_PTX_NAMES = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32"}


@dataclass(frozen=True)
class Warpgroups(MainLoop):
    """Warpgroups that multiply by ``wgmma``, which reads swizzled tiles.

    The terms of tf32 have to be neighbours, and rounded in shared memory: the instruction transposes numbers of 16 bits
    only, and would cut bits off.
    """

    team: ClassVar[int] = 128
    instruction: ClassVar[str] = "wgmma"
    is_asynchronous: ClassVar[bool] = True

    @classmethod
    def keeps_by_term(cls, dtype: str, is_read_by_term: bool) -> bool:
        """Whether the terms of a factor are neighbours in shared memory, where they are, or are not, in the array."""
        return dtype == "tf32" or is_read_by_term

    @property
    def needs_rounded(self) -> bool:
        """Whether factors have to be rounded to the dtype before they are in shared memory."""
        return self.dtype == "tf32"

    def layout(self, rows: int, by_term: bool) -> Swizzled:
        """The layout of a tile of ``rows`` rows in shared memory."""
        return Swizzled(rows, self.depth, self.element_bytes, by_term)

    @property
    def name(self) -> str:
        """A name for its device functions, which depends on the number of steps that they wait for."""
        return f"{super().name}_wgmma{self.pending}"

    @property
    def primitives(self) -> list[str]:
        """The device functions that it calls."""
        steps = ["begin", "commit", "wait"]
        return ["tvmfun_matrix", "tvmfun_hold", *(f"tvmfun_products_{step}" for step in steps)]

    @property
    def functions(self) -> str:
        """The CUDA C++ of its own functions."""
        per_tile = self.team_columns // 2
        left, right = self.layout(self.rows, self.left_by_term), self.layout(self.columns, self.right_by_term)
        products = "\n".join(
            f"  {self.name}_step(sums + {i * per_tile}, left + {left.start(i * ROWS, k) >> 4}, "
            f"right + {right.start(0, k) >> 4});"
            for k in range(0, self.depth, TERM_BYTES // self.element_bytes)
            for i in range(self.team_rows // ROWS)
        )
        step = instruction(
            f"{self.name}_step", self.dtype, self.team_columns, not self.left_by_term, not self.right_by_term
        )
        return f"""{step}
__device__ __forceinline__ void {self.name}_multiply(float* sums, const void* left_tile, const void* right_tile) {{
  // Descriptors are in uniform registers: the same number in all lanes of a warp.
  const int team = __shfl_sync(0xffffffffu, threadIdx.x / {self.team}, 0);
  const char* first_row = (const char*)left_tile + team % {self.teams} * {left.start(self.team_rows, 0)};
  const char* first_column =
      (const char*)right_tile + team / {self.teams} * {right.start(self.team_columns, 0)};
  const unsigned long long left = {matrix(left)}(first_row);
  const unsigned long long right = {matrix(right)}(first_column);
  tvmfun_hold<{self.sums}>(sums);
  tvmfun_products_begin();
{products}
  tvmfun_products_commit();
  tvmfun_products_wait<{self.pending}>();
}}
__device__ __forceinline__ void {self.name}_finish(float* sums) {{
  tvmfun_products_wait<0>();
  tvmfun_hold<{self.sums}>(sums);
}}
{spill_of_fragments(self)}"""


def instruction(name: str, dtype: str, columns: int, left_rows: bool | None, right_rows: bool) -> str:
    """The function ``name(d, a, b)`` of one instruction: ``d += a b``, with 64 rows and 32 bytes of terms.

    Args:
        name: its name.
        dtype: the dtype of the factors.
        columns: the columns, a multiple of 8 up to 256.
        left_rows: whether rows of ``a`` are neighbours in shared memory; None if ``a`` is four registers.
        right_rows: whether columns of ``b`` are neighbours in shared memory.
    """
    count, terms, kind = columns // 2, TERM_BYTES // (4 if dtype == "tf32" else 2), _PTX_NAMES[dtype]
    lines = [range(i, min(i + 8, count)) for i in range(0, count, 8)]
    registers = ', "\n               "'.join(", ".join(f"%{i}" for i in line) for line in lines)
    operands = ",\n                 ".join(", ".join(f'"+f"(d[{i}])' for i in line) for line in lines)
    majors = [] if dtype == "tf32" else [flag for flag in (left_rows, right_rows) if flag is not None]
    flags = "".join(f", {int(flag)}" for flag in majors)
    if left_rows is None:
        of, inputs = "const unsigned*", [f'"r"(a[{i}])' for i in range(4)]
        left = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
    else:
        of, left, inputs = "unsigned long long", f"%{count}", ['"l"(a)']
    return f"""
// d += a b, with {ROWS} x {terms} and {terms} x {columns} numbers.
__device__ __forceinline__ void {name}(float* d, {of} a, unsigned long long b) {{
  asm volatile("{{ .reg .pred adds; setp.ne.b32 adds, 1, 0; "
               "wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{terms}.f32.{kind}.{kind} {{"
               "{registers}}}, {left}, %{count + len(inputs)}, adds, 1, 1{flags}; }}"
               : {operands}
               : {", ".join(inputs)}, "l"(b));
}}"""


def matrix(layout: Swizzled) -> str:
    """The function that makes a descriptor of a matrix: the distances of groups of neighbours and of eight lines.

    If terms are neighbours, an instruction has one group of them.
    """
    leading = 16 if layout.by_term else layout.group
    return f"tvmfun_matrix<{leading}, {8 * SWIZZLED}>"
