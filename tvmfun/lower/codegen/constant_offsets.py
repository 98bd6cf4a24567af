"""Addresses with constant offsets in the text of LLVM modules, like LLVM's ``separate-const-offset-from-gep``."""

from __future__ import annotations

import re

from tvmfun.llvm_modules import FUNCTION

_SUM = re.compile(r"^  (%[\w.$-]+) = add nsw i32 (%[\w.$-]+), (\d+)$", re.MULTILINE)
_ADDRESS = re.compile(r"^  %([\w.$-]+) = getelementptr inbounds (\w+), ptr (%\S+), i32 (%[\w.$-]+)$", re.MULTILINE)


def separated(text: str) -> str:
    """Returns the text of an LLVM module in which an index that is a sum with a constant is added in two steps.

    Neighbouring vectors then share an address, and their instructions contain the constant. Without LLVM's optimizer
    each index, which has 32 bits, would be computed and extended to 64 bits separately.

    >>> print(separated('''define void @second(ptr %x, i32 %i) {
    ...   %j = add nsw i32 %i, 8
    ...   %address = getelementptr inbounds float, ptr %x, i32 %j
    ... }'''))
    define void @second(ptr %x, i32 %i) {
      %j = add nsw i32 %i, 8
      %const-offset.address = getelementptr inbounds float, ptr %x, i32 %i
      %address = getelementptr inbounds float, ptr %const-offset.address, i32 8
    }
    """
    return FUNCTION.sub(lambda found: _separated(found[0]), text)


def _separated(function: str) -> str:
    sums = {name: (of, number) for name, of, number in _SUM.findall(function)}

    def in_steps(found: re.Match) -> str:
        name, dtype, base, index = found.groups()
        if index not in sums:
            return found[0]
        of, number = sums[index]
        common = f"%const-offset.{name}"
        return (
            f"  {common} = getelementptr inbounds {dtype}, ptr {base}, i32 {of}\n"
            f"  %{name} = getelementptr inbounds {dtype}, ptr {common}, i32 {number}"
        )

    return _ADDRESS.sub(in_steps, function) if sums else function
