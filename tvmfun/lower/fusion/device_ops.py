"""Ops that GPUs compute element by element, so that they are fused; on CPUs they have loops of their own.

Random bits are calls of a device function: as a loop nest of its own, the block function of Threefry stores its bits,
and the mask that is made of them reads them again. The gradient of pooling by windows that do not overlap is a choice
between the one cotangent that an element may get and 0.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import te, tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmfun.core.op import Op
from tvmfun.core.program import Equation
from tvmfun.ops.bits import threefry2x32
from tvmfun.ops.conv import window_put
from tvmfun.ops.shape import ravel_index

_SOURCE = r"""#ifndef tvmfun_threefry_defined
#define tvmfun_threefry_defined
// A word of Threefry-2x32's block at a position after a counter: 0 the first, 1 the second, 2 their xor.
template <int WORD>
__device__ __forceinline__ unsigned tvmfun_threefry(unsigned k0, unsigned k1, unsigned high, unsigned low,
                                                    unsigned long long position) {
  const unsigned keys[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};
  const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  unsigned long long counter = ((unsigned long long)high << 32 | low) + position;
  unsigned x = (unsigned)(counter >> 32) + k0, y = (unsigned)counter + k1;
#pragma unroll
  for (int group = 0; group < 5; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int rotation = rotations[group % 2][i];
      x += y;
      y = (y << rotation | y >> (32 - rotation)) ^ x;
    }
    x += keys[(group + 1) % 3];
    y += keys[(group + 2) % 3] + group + 1;
  }
  return WORD == 0 ? x : WORD == 1 ? y : x ^ y;
}
#endif
"""
_WORDS = {"first": 0, "second": 1, "xor": 2}


def _compute(key: te.Tensor, base: te.Tensor, *, shape: tuple[int, ...], word: str) -> te.Tensor:
    batch = key.shape[:-1]

    def element(*indices: tirx.Var) -> tirx.Expr:
        at, own = indices[: len(batch)], indices[len(batch) :]
        position = tirx.Cast("uint64", tirx.convert(ravel_index(own, shape) if shape else 0))
        words = key[(*at, 0)], key[(*at, 1)], base[(*at, 0)], base[(*at, 1)]
        name = f"tvmfun_threefry<{_WORDS[word]}>"
        return cuda_func_call(name, *words, position, source_code=_SOURCE, return_type="uint32")

    return te.compute((*batch, *shape), element, name="threefry")


#: The record of :data:`~tvmfun.ops.bits.threefry2x32` whose elements are calls. Only fusion knows it.
device_bits = Op("threefry2x32", "injective", threefry2x32.shape, _compute, (None, None), inexpensive=False)


#: The record of :data:`~tvmfun.ops.conv.window_put` for windows that do not overlap: a map. Only fusion knows it.
window_unpool = replace(window_put, kind="injective", inexpensive=True, window=False)


def on_device(equation: Equation) -> Equation:
    """Replaces the op of an equation by its version for GPUs."""
    if equation.op is threefry2x32:
        return equation._replace(op=device_bits)
    if equation.op is window_put:
        pairs = zip(equation.params["window"], equation.params["stride"], strict=True)
        return equation._replace(op=window_unpool) if all(size <= step for size, step in pairs) else equation
    return equation
