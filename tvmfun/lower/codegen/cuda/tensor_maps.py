"""Parameters of kernels that are tensor maps: which ones, and how they are declared.

A schedule passes an array to the function that copies boxes of it, with numbers that describe the map. The launch gets
the map in place of the address, and the kernel takes the address of its parameter for that of the array.
"""

from __future__ import annotations

import re

from tvmfun.lower.schedule.gpu.tensor_maps import LOAD
from tvmfun.runtime.cuda_module import MAP_DTYPES, TensorMap
from tvmfun.runtime.plan import Address

#: The type of a map in the parameters.
TYPE = "tvmfun_tensor_map"
_STRUCT = f"""#ifndef {TYPE}_defined
#define {TYPE}_defined
struct __align__(128) {TYPE} {{ unsigned long long words[16]; }};
#endif
"""
# A call, with the description and the array; the declaration and the definition of a kernel.
_CALL = re.compile(rf"{LOAD}<([^>]*)>\(.*?, \(&\((\w+)\[0\]\)\), \(&\(")
_HEAD = re.compile(r"(__global__ void (?:__launch_bounds__\([^)]*\) )?\w+\()([^)]*)(\)(?: \{|;))")


def tensor_maps(text: str) -> dict[int, TensorMap]:
    """Returns the maps of a kernel in CUDA C++ by the position of the parameter; their addresses are relative to it."""
    described = {name: _described(description) for description, name in _CALL.findall(text)}
    head = _HEAD.search(text) if described else None
    names = [parameter.split()[-1] for parameter in head[2].split(",")] if head else []
    return {names.index(name): tensor for name, tensor in described.items()}


def _described(text: str) -> TensorMap:
    rank, dtype, offset, *numbers = map(int, text.split(","))
    sizes, strides, box = numbers[:rank], numbers[rank : 2 * rank - 1], numbers[2 * rank - 1 :]
    (name,) = (name for name, number in MAP_DTYPES.items() if number == dtype)
    return TensorMap(Address(0, offset), name, tuple(sizes), tuple(strides), tuple(box))


def with_maps(text: str) -> str:
    r"""The CUDA C++ of a kernel with its maps as parameters.

    >>> body = "tvmfun_load_tile<2, 6, 0, 64, 8, 128, 64, 8>((&(s[0])), (&(x[0])), (&(s[8192])), 0, 0, 0, 0, 0);"
    >>> text = with_maps(f"__global__ void f(half* __restrict__ x, int n) {{\n  {body}\n}}")
    >>> print(text[text.index("__global__") :])
    __global__ void f(const __grid_constant__ tvmfun_tensor_map x_map, int n) {
      half* x = (half*)&x_map;
      tvmfun_load_tile<2, 6, 0, 64, 8, 128, 64, 8>((&(s[0])), (&(x[0])), (&(s[8192])), 0, 0, 0, 0, 0);
    }
    """
    maps = tensor_maps(text)
    if not maps:
        return text

    def declared(match: re.Match) -> str:
        parameters, aliases = match[2].split(","), []
        for i in maps:
            kind, name = parameters[i].replace("__restrict__", "").rsplit(None, 1)
            parameters[i] = f"{' ' * (i > 0)}const __grid_constant__ {TYPE} {name}_map"
            aliases.append(f"\n  {kind.strip()} {name} = ({kind.strip()})&{name}_map;")
        return f"{match[1]}{','.join(parameters)}{match[3]}{''.join(aliases) if '{' in match[3] else ''}"

    return _STRUCT + _HEAD.sub(declared, text)
