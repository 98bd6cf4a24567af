"""The definitions of the functions that a module calls by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tvmfun.llvm_modules import with_added
from tvmfun.lower.tir.llvm_text import PREFIX, declaration, type_of
from tvmfun.lower.tir.micro_kernels.moves import RowsCopy, TileTranspose
from tvmfun.lower.tir.micro_kernels.products import MASKED, TileProduct
from tvmfun.lower.tir.micro_kernels.text import FETCH
from tvmfun.lower.tir.micro_kernels.winograd import WinogradTransform
from tvmfun.lower.tir.vector_math.definitions import VectorFunction

_KINDS: dict[
    str, Callable[[Sequence[str]], TileProduct | TileTranspose | RowsCopy | VectorFunction | WinogradTransform]
] = {
    "copy": RowsCopy.of_name,
    "math": VectorFunction.of_name,
    "product": TileProduct.of_name,
    "transpose": TileTranspose.of_name,
    "winograd": WinogradTransform.of_name,
}
_CALLED = re.compile(r"^declare [^\n]*@([\w.]+)\([^\n]*\n", re.MULTILINE)
_DECLARATION = re.compile(rf"^declare [^\n]*@({re.escape(PREFIX)}[\w.-]+)\([^\n]*\n", re.MULTILINE)


def with_definitions(text: str) -> str:
    """The text of an LLVM module with the definitions of the micro-kernels that it declares."""
    if PREFIX not in text:
        return text
    declarations: dict[str, str] = {}

    def collected(declared: re.Match) -> str:
        declarations[declared[1]] = declared[0]
        return ""

    def definition(declared: re.Match) -> str:
        kind, *fields = declared[1].removeprefix(PREFIX).split(".")
        function = _CALLED.sub(collected, _KINDS[kind](fields).definition())
        for name in set(re.findall(r"@(llvm\.[\w.]+)", function)) - declarations.keys():
            declarations[name] = _declared_intrinsic(name)
        return function

    defined = _DECLARATION.sub(definition, text)
    missing = [declared for name, declared in sorted(declarations.items()) if f"@{name}(" not in text]
    return with_added(defined, "".join(missing))


def _declared_intrinsic(name: str) -> str:
    if name == FETCH:
        return f"declare void @{name}(ptr, i32, i32, i32)\n"
    lanes, bits = map(int, re.findall(r"\d+", name)[:2])
    vector = type_of(f"float{bits}x{lanes}")
    if name.startswith(MASKED):
        return f"declare {vector} @{name}(ptr, <{lanes} x i1>, {vector})\n"
    return declaration(name, vector, 3)
