"""Removal of TVM's float16 conversions from LLVM modules that have no float16."""

from __future__ import annotations

import os
import re
from typing import Any

import tvm

# TVM adds these two functions, of 25 blocks, to every module. LLVM calls them on processors without such instructions.
_DEFINITIONS = re.compile(r"^define weak [^\n]*@__(?:truncsfhf2|extendhfsf2)\(.*?^}\n", re.DOTALL | re.MULTILINE)
_USES = re.compile(r"^(?!declare ).*\bhalf\b", re.MULTILINE)


def without_conversions(module: Any) -> Any:
    """Returns the LLVM module without the conversions of TVM if it does not compute in float16.

    They take LLVM longer than a small kernel. A large module is not worth it, since its text is printed and read.
    """
    text = _DEFINITIONS.sub("", module.inspect_source("ll"))
    if _USES.search(text) or not hasattr(os, "memfd_create"):
        return module
    number = os.memfd_create("module.ll")
    try:
        with open(number, "w", closefd=False) as file:
            file.write(text)
        return tvm.get_global_func("ffi.Module.load_from_file.ll")(f"/proc/self/fd/{number}", "ll")
    finally:
        os.close(number)
