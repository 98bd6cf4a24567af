"""CUDA source as C++ for the emulator: shared memory, inline PTX, and a table of the kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_INCLUDED = "cuda|mma|math_constants|cooperative|sm_61"
_INCLUDE = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*[<"](?:{_INCLUDED})[^>"]*[>"]', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ALIGNED = r"(?:(?:alignas|__align__)\s*\(\s*(\w+)\s*\)\s*)?"
_SHARED = re.compile(
    rf"{_ALIGNED}(extern\s+)?__shared__\s+{_ALIGNED}([\w:<>, ]+?)\s+{_ALIGNED}(\w+)\s*((?:\[[^\]]*\]\s*)*);"
)
_KERNEL = re.compile(
    r"__global__\s+(?:static\s+)?(?:__launch_bounds__\s*\(([^)]*)\)\s*)?void\s+"
    r"(?:__launch_bounds__\s*\(([^)]*)\)\s*)?(\w+)\s*\("
)
_TEMPLATE = re.compile(r"template\s*<[^{};]*>\s*$")
_ASM = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile\s*|__volatile__\s*)?\(")
_TILE = re.compile(r"\[\s*(%\d+)\s*,\s*\{([^}]*)\}\s*\]")
_TILE_LOADS = re.compile(r"cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\.mbarrier::complete_tx::bytes")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def translate(source: str, kernels: Sequence[str] = ()) -> str:
    """Returns C++ of CUDA source.

    Args:
        source: CUDA C++, as for nvcc.
        kernels: instances of kernels that are templates, such as ``"product<64, 2>"``.
    """
    source = _COMMENT.sub(lambda match: re.sub(r"[^\n]", "", match[0]) or " ", source)
    source = _INCLUDE.sub("", source)
    bounds = {}
    for match in _KERNEL.finditer(source):
        if not _TEMPLATE.search(source[: match.start()].removesuffix("static ").rstrip()):
            bounds[match[3]] = (match[1] or match[2] or "1024").split(",")[0]
    source = _SHARED.sub(_shared, source)
    if "__shared__" in source:
        line = source[: source.index("__shared__")].count("\n") + 1
        raise ValueError(f"line {line}: the emulator does not know this form of a declaration of shared memory")
    source = _with_instructions(source)
    names = [*((name, bound) for name, bound in bounds.items()), *((name, "1024") for name in kernels)]
    rows = [f'emulator::kernel<&{name}>("{name}", {bound}, &{name}),' for name, bound in names]
    table = "\n".join(['extern "C" {', "emulator::Kernel emulated_kernels[] = {", *rows, "{}", "};", "}"])
    return f'#include "warpgroups.h"\n#line 1 "kernels.cu"\n{source}\n{table}\n'


def _shared(match: re.Match) -> str:
    before, is_extern, between, of, after, name, axes = match.groups()
    of = of.strip()
    if is_extern:
        return f"{of}* const {name} = ({of}*)emulator::dynamic_shared();"
    alignment = before or between or after or "16"
    key = "([]() -> const void* { static char key; return &key; }())"
    return (
        f"typedef {of} emulated_{name}_t{axes.strip()}; emulated_{name}_t& {name} = *(emulated_{name}_t*)"
        f"emulator::static_shared({key}, sizeof(emulated_{name}_t), {alignment} < 16 ? 16 : {alignment});"
    ) + "\n" * match[0].count("\n")


# -- inline PTX --------------------------------------------------------------------------------------------------------


def _with_instructions(source: str) -> str:
    parts, end = [], 0
    for match in _ASM.finditer(source):
        if match.start() < end:
            continue
        close = _closing(source, match.end() - 1)
        line = source[: match.start()].count("\n") + 1
        statement = _asm(source[match.end() : close], line)
        newlines = "\n" * source.count("\n", match.start(), close)
        parts += [source[end : match.start()], "{ ", statement, " }", newlines]
        end = close + 1
    return "".join([*parts, source[end:]])


def _closing(text: str, start: int) -> int:
    """The position of the parenthesis that closes the one at ``start``."""
    depth, position = 0, start
    while position < len(text):
        character = text[position]
        if character == '"':
            position = _STRING.match(text, position).end()  # type: ignore[union-attr]
            continue
        depth += (character in "([{") - (character in ")]}")
        if not depth:
            return position
        position += 1
    raise ValueError("a parenthesis is not closed")


def _split(text: str, separator: str) -> list[str]:
    """Splits at separators outside of brackets and strings."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        if character == '"':
            position = _STRING.match(text, position).end()  # type: ignore[union-attr]
            continue
        if text.startswith("::", position):
            position += 2 if separator != ":" or depth else 1
            if separator != ":" or depth:
                continue
            parts.append(text[start : position - 1])
            start = position
            continue
        depth += (character in "([{") - (character in ")]}")
        if character == separator and not depth:
            parts.append(text[start:position])
            start = position + 1
        position += 1
    return [*parts, text[start:]]


def _asm(body: str, line: int) -> str:
    template, *groups = _split(body, ":")
    text = "".join(match[1] for match in _STRING.finditer(template))
    text = text.replace("\\n", "\n").replace("\\t", " ").replace('\\"', '"')
    operands = []
    for group in groups[:2]:
        for operand in _split(group, ","):
            if operand.strip():
                operands.append(operand[operand.index("(") + 1 : operand.rindex(")")].strip())
    try:
        return " ".join(_statements(text, operands, line))
    except KeyError as error:
        raise ValueError(f"line {line}: the emulator does not know the PTX instruction {error}") from None


_TYPES = {"pred": "bool", "f32": "float", "f64": "double", "s32": "int", "s64": "long long"}
_UNSIGNED = {"16": "uint16_t", "32": "uint32_t", "64": "uint64_t"}


def _type(name: str) -> str:
    return _TYPES.get(name) or _UNSIGNED[name[1:]]


def _statements(text: str, operands: Sequence[str], line: int) -> Iterator[str]:
    registers: dict[str, str] = {}
    specials = {"%laneid": "emulator::lane()", "%warpid": "(emulator::state.current / 32)", "%smid": "0"}

    def operand(name: str) -> str:
        name = name.strip()
        if name in registers:
            return registers[name]
        if re.fullmatch(r"%\d+", name):
            return f"({operands[int(name[1:])]})"
        if name.startswith("%%"):
            return specials[name[1:]]
        if re.fullmatch(r"0f[0-9A-Fa-f]{8}", name):
            return f"emulator::bits_as<float>(0x{name[2:]}u)"
        return name

    text = re.sub(r"//[^\n]*", "", text).strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    for instruction in text.replace("\n", " ").split(";"):
        words = instruction.split(None, 1)
        if not words:
            continue
        if words[0] == ".reg":
            kind, names = words[1].split(None, 1)
            for name in names.split(","):
                registers[name.strip()] = f"emulated_{name.strip().lstrip('%')}"
                yield f"{_type(kind.strip('.'))} {registers[name.strip()]};"
            continue
        condition = ""
        if words[0].startswith("@"):
            negated = words[0].startswith("@!")
            condition = f"if ({'!' * negated}{operand(words[0].lstrip('@!'))}) "
            words = words[1].split(None, 1)
        arguments = _split(words[1], ",") if len(words) > 1 else []
        if words[0].startswith("cp.async.bulk.tensor"):
            yield f"{condition}{{ {_load_tile(words[0], arguments, operand, line)} }}"
            continue
        values = [
            [operand(item) for item in argument.strip()[1:-1].split(",")]
            if argument.strip().startswith("{")
            else _address(argument, operand)
            for argument in arguments
        ]
        yield f"{condition}{{ {_instruction(words[0], values, line)} }}"


def _load_tile(name: str, arguments: Sequence[str], operand, line: int) -> str:
    """C++ for the copy of a box: its target, the map with coordinates in braces, and the barrier."""
    match = _TILE.fullmatch(arguments[1].strip())
    if match is None or not _TILE_LOADS.fullmatch(name):
        raise KeyError(name)
    coordinates = ", ".join(f"(int){operand(item)}" for item in match[2].split(","))
    to, barrier = (_address(argument, operand) for argument in (arguments[0], arguments[2]))
    return f"emulator::load_tile({to}, (const void*){operand(match[1])}, {{{coordinates}}}, {barrier}, {line});"


def _address(argument: str, operand) -> str:
    argument = argument.strip()
    if not argument.startswith("["):
        return operand(argument)
    base, _, offset = argument[1:-1].partition("+")
    return f"((uint64_t){operand(base)} + ({offset or 0}))"


_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BINARY = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
_FORMATS = {"tf32": "Tf32", "f16": "F16", "bf16": "Bf16"}
_BYTES = {"s32": "int8_t", "u32": "uint8_t"}
_APPROXIMATE = {
    "tanh": "tanhf", "ex2": "exp2f", "lg2": "log2f", "rcp": "__frcp_rn", "rsqrt": "rsqrtf", "sqrt": "sqrtf",
    "sin": "sinf", "cos": "cosf",
}  # fmt: skip
# They order memory accesses and hint at caches, which makes no difference where threads take turns.
_WITHOUT_EFFECT = ("membar", "fence", "prefetch", "griddepcontrol", "nanosleep", "createpolicy", "discard")


def _instruction(name: str, values: list, line: int) -> str:
    """C++ for one instruction; ``KeyError`` if the emulator does not know it."""
    parts = name.split(".")
    kind = parts[0]
    if name.startswith("fence.proxy.async"):
        return "emulator::fence_async_proxy();"
    if kind in _WITHOUT_EFFECT:
        return ""
    if name == "mbarrier.init.shared::cta.b64":
        return f"emulator::make_mbarrier({values[0]}, {values[1]}, {line});"
    if name == "mbarrier.arrive.expect_tx.shared::cta.b64":
        return f"emulator::expect_bytes({values[1]}, {values[2]}, {line});"
    if name == "mbarrier.try_wait.parity.shared::cta.b64":
        return f"{values[0]} = emulator::phase_is_over({values[1]}, {values[2]}, {line});"
    if kind == "wgmma":
        return _wgmma(name, parts, values, line)
    if kind == "mma":
        return _mma(name, parts, values, line)
    if kind == "dp4a":
        to, left, right, start = values
        left, right = (f"({_BYTES[of]})({word} >> 8 * byte)" for of, word in zip(parts[1:], (left, right), strict=True))
        loop = f"for (int byte = 0; byte < 4; byte++) sum += (int){left} * (int){right};"
        return f"int sum = (int){start}; {loop} {to} = sum;"
    if kind == "ldmatrix":
        count, transposed = int(parts[parts.index("m8n8") + 1][1:]), str("trans" in parts).lower()
        loads = " ".join(f"{value} = m.words[{i}];" for i, value in enumerate(values[0]))
        return f"emulator::Matrices<{count}, {transposed}> m; m.load({values[1]}, {line}); {loads}"
    if name.startswith("cp.async.wait_all"):
        return "emulator::wait_group(-1);"
    if name.startswith("cp.async.wait_group"):
        return f"emulator::wait_group({values[0]});"
    if name.startswith("cp.async.commit_group"):
        return "emulator::commit_group();"
    if name.startswith(("cp.async.ca", "cp.async.cg")):
        used = values[3] if len(values) > 3 and "cache_hint" not in name else values[2]
        to = f"emulator::shared_at({values[0]}, {line})"
        return f"emulator::copy_async({to}, (const void*){values[1]}, {values[2]}, {used}, {line});"
    if name.startswith("cvt.rna.tf32"):
        return f"{values[0]} = emulator::to_tf32({values[1]});"
    if name.startswith("cvta.to.shared"):
        return f"{values[0]} = emulator::shared_offset((const void*){values[1]});"
    if name.startswith("cvta.to.global"):
        return f"{values[0]} = (uint64_t){values[1]};"
    if kind == "mov":
        return f"{values[0]} = {values[1]};"
    if kind == "cvt" and len(parts) == 3:
        return f"{values[0]} = ({_type(parts[1])})({_type(parts[2])}){values[1]};"
    if kind == "setp":
        of = _type(parts[2])
        return f"{values[0]} = ({of}){values[1]} {_COMPARISONS[parts[1]]} ({of}){values[2]};"
    if kind == "selp":
        return f"{values[0]} = {values[3]} ? {values[1]} : {values[2]};"
    if kind in _BINARY and len(parts) == 2:
        return f"{values[0]} = ({_type(parts[1])}){values[1]} {_BINARY[kind]} ({_type(parts[1])}){values[2]};"
    if kind in _APPROXIMATE and "f32" in parts:
        return f"{values[0]} = {_APPROXIMATE[kind]}({values[1]});"
    if kind == "fma" and parts[-1] == "f32":
        return f"{values[0]} = fmaf({values[1]}, {values[2]}, {values[3]});"
    if name in ("bar.sync", "barrier.sync", "barrier.cta.sync", "bar.arrive", "barrier.arrive"):
        function = "arrive" if "arrive" in name else "barrier"
        return f"emulator::{function}({values[0]}, {values[1] if len(values) > 1 else 0}, {line});"
    if kind in ("ld", "st"):
        return _access(kind, parts, values, line)
    if kind == "red" and "add" in parts:
        return f"atomicAdd(({_type(parts[-1])}*){values[0]}, {values[1]});"
    raise KeyError(name)


def _mma(name: str, parts: list[str], values: list, line: int) -> str:
    shape = re.search(r"m16n8k(\d+)", name)
    if shape is None or "row.col" not in name or parts[-4] != "f32" or parts[-1] != "f32" or parts[-3] != parts[-2]:
        raise KeyError(name)
    d, a, b, c = values
    product = f"emulator::Product<emulator::{_FORMATS[parts[-2]]}, {shape[1]}> p;"
    moves = [
        f"p.{field}[{i}] = {v};" for field, group in zip("abc", (a, b, c), strict=True) for i, v in enumerate(group)
    ]
    results = [f"{v} = p.d[{i}];" for i, v in enumerate(d)]
    return " ".join([product, *moves, f"p.multiply({line});", *results])


def _wgmma(name: str, parts: list[str], values: list, line: int) -> str:
    if parts[1] == "fence":
        return f"emulator::group_fence({line});"
    if parts[1] == "commit_group":
        return f"emulator::group_commit({line});"
    if parts[1] == "wait_group":
        return f"emulator::group_wait({values[0]}, {line});"
    shape = re.search(r"m64n(\d+)k(\d+)\.f32\.(bf16|f16|tf32)\.\3$", name)
    if shape is None or values[4:6] != ["1", "1"]:
        raise KeyError(name)
    sums, a, b, adds = values[:4]
    if len(sums) != int(shape[1]) // 2:
        raise ValueError(f"line {line}: {name} has {shape[1]} / 2 sums per thread, got {len(sums)}")
    words, flags = [], values[6:] or ["0", "0"]
    if isinstance(a, list):
        words, flags, a = a, ["0", *flags], "0"
    by_rows = ", ".join(f"({flag}) != 0" for flag in flags[-2:])
    product = f"emulator::GroupProduct<emulator::{_FORMATS[shape[3]]}, {shape[1]}>"
    addresses = ", ".join(f"&{value}" for value in sums)
    held = f"{str(bool(words)).lower()}, {{{', '.join(words)}}}"
    fields = f"{{{a}}}, {{{b}}}, ({adds}) != 0, {by_rows}, {line}, {{{addresses}}}, {held}"
    return f"{product} p{{{fields}}}; p.multiply();"


def _access(kind: str, parts: list[str], values: list, line: int) -> str:
    of = _type(parts[-1])
    address, group = (values[1], values[0]) if kind == "ld" else values
    at = f"emulator::shared_at({address}, {line})" if "shared" in parts else f"(char*){address}"
    group = group if isinstance(group, list) else [group]
    pairs = [(f"(({of}*)at)[{i}]", value) for i, value in enumerate(group)]
    moves = [f"{value} = {place};" if kind == "ld" else f"{place} = {value};" for place, value in pairs]
    return " ".join([f"char* at = {at};", *moves])
