"""LLVM modules as text: an empty one for a target, additions, and parsing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvmfun.files import files_in_memory

#: A function that a module defines.
FUNCTION = re.compile(r"^define [^\n]*\{\n.*?^\}", re.DOTALL | re.MULTILINE)

_TARGET = re.compile(r"^target [^\n]*\n", re.MULTILINE)
# TVM reads the target of a module that it loads from a flag of it, which has the target as JSON.
_FLAG = re.compile(r'^!\d+ = (!\{i32 \d+, !"tvm_target", [^\n]*)\n', re.MULTILINE)


def empty_module(target: Target) -> str:
    """Returns the text of an LLVM module that has nothing but its target."""
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.IntImm("int32", 0))).with_attr("global_symbol", "nothing")
    nothing = nothing.with_attr("target", target)
    module = tvm.get_global_func("target.build.llvm")(tvm.IRModule({"nothing": nothing}), target)
    text = module.inspect_source("ll")
    flag = _FLAG.search(text)
    assert flag is not None
    return f"{''.join(_TARGET.findall(text))}\n!llvm.module.flags = !{{!0}}\n!0 = {flag[1]}\n"


def with_added(text: str, *added: str) -> str:
    """Returns the text of an LLVM module with further functions, variables and declarations."""
    functions, metadata = text.split("\n!", 1)
    return f"{functions}\n{''.join(added)}\n!{metadata}"


def parsed(text: str) -> Any:
    """Returns the LLVM module of a text."""
    with files_in_memory(1, ".ll") as (path,):
        Path(path).write_text(text)
        return tvm.get_global_func("ffi.Module.load_from_file.ll")(path, "ll")
