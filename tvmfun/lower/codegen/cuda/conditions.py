"""The kernel that sets the condition of a graph's conditional node from a number in the device's memory."""

from __future__ import annotations

from tvmfun.lower.codegen.cuda.cubins import PLACEHOLDER, KernelSource

# The driver defines this function: it is linked when the machine code is loaded.
_PRELUDE = """extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
"""

_BODY = f"""extern "C" __global__ void __launch_bounds__(1) {PLACEHOLDER}(
    unsigned long long handle, const unsigned char* number, int is_byte, int last, int chosen) {{
  int value = is_byte ? *number : *(const int*)number;
  value = value < 0 ? 0 : value > last ? last : value;
  cudaGraphSetConditional(handle, chosen < 0 ? value : value == chosen);
}}
"""

#: Sets the condition of a node to a number of one byte or an int32, limited to the range from 0 to ``last``; or, where
#: ``chosen`` is not negative, to whether it is this number. One thread runs it.
CONDITION = KernelSource("set_condition", _PRELUDE, _BODY)
