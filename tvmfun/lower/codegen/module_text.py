"""Edits of the text of LLVM modules: micro-kernels, less of TVM's code, another level, names of variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tvmfun.llvm_modules import parsed
from tvmfun.lower.codegen.constant_offsets import separated
from tvmfun.lower.codegen.mem2reg import promoted
from tvmfun.lower.tir.micro_kernels.definitions import with_definitions

# TVM adds these two functions, of 25 blocks, to every module. LLVM calls them on processors without such instructions.
_CONVERSIONS = re.compile(r"^define weak [^\n]*@__(?:truncsfhf2|extendhfsf2)\(.*?^}\n", re.DOTALL | re.MULTILINE)
_USES_HALF = re.compile(r"^(?!declare ).*\bhalf\b", re.MULTILINE)
# A function that the runtime would call when it loads a module, which does nothing, and its entry among constructors.
_STARTUP = re.compile(
    r"^define internal void @__tvm_module_startup\(\) #\d+ \{\nentry:\n  ret void\n\}\n", re.MULTILINE
)
_CONSTRUCTORS = (
    "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
    "[{ i32, ptr, ptr } { i32 65535, ptr @__tvm_module_startup, ptr null }]\n"
)
# Patterns of debug information, and their replacements. The fixed characters at the start of a pattern are found by
# scanning memory. LLVM ignores debug information without a version, so unreferenced parts may stay.
_REFERENCES = [
    (re.compile(r"    #dbg_[^\n]*\n"), ""),
    (re.compile(r", !dbg !\d+"), ""),
    (re.compile(r" !dbg !\d+ \{"), " {"),
]
# The module's metadata has the target, as JSON.
_OPT_LEVEL = re.compile(r'(!"tvm_target", !"[^\n]*\\22opt-level\\22:)\d')
_UNIT = re.compile(r"llvm\.dbg\.cu = !\{[^}]*\}")


def edited(
    module: Any,
    opt_level: int | None = None,
    names: Mapping[str, str] | None = None,
    edit: Callable[[str], str] | None = None,
) -> Any:
    """Returns the LLVM module without debug information and float16 conversions, but with the micro-kernels it calls.

    Debug information and conversions, which modules without float16 do not need, take LLVM longer than a small kernel,
    and longer than printing and parsing the text of large ones. A constructor that does nothing is removed, too.

    Args:
        module: the LLVM module.
        opt_level: the level at which machine code is generated, if another than that at which the module was built.
            Then the text is optimized instead: registers for buffers on the stack, and addresses with offsets.
        names: new names of variables and functions.
        edit: a further change of the text.
    """
    text = module.inspect_source("ll")
    without_conversions = _CONVERSIONS.sub("", text)
    if "half" not in without_conversions or not _USES_HALF.search(without_conversions):
        text = without_conversions
    text = _without_startup(_without_debug_information(text))
    if opt_level is not None:
        text = separated(promoted(_OPT_LEVEL.sub(rf"\g<1>{opt_level}", text, count=1)))
    text = with_definitions(text)
    for old, new in (names or {}).items():
        text = text.replace(old, new)
    return parsed(edit(text) if edit else text)


def _without_startup(text: str) -> str:
    """Removes the constructor of a module that does nothing."""
    if _CONSTRUCTORS not in text or text.count("@__tvm_module_startup") != 2:
        return text
    removed, found = _STARTUP.subn("", text)
    return removed.replace(_CONSTRUCTORS, "", 1) if found else text


def _without_debug_information(text: str) -> str:
    """Removes references to debug information in functions and metadata, and its version."""
    functions, metadata = text.split("\n!", 1)
    for pattern, rest in _REFERENCES:
        functions = pattern.sub(rest, functions)
    metadata = _UNIT.sub("without.debug = !{}", metadata, count=1)
    return f"{functions}\n!{metadata}".replace('"Debug Info Version"', '"Without Debug"', 1)
