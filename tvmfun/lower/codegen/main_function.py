"""``main`` in LLVM's language: the loop of ``main.ll`` over the steps of a Program, and a table of its kernels.

As instructions, the steps of a large Program would take LLVM a tenth of the time of all its kernels.

In a library the linker writes the table. In memory, where LLVM modules are not linked, :func:`tvmfun.threads.bind`
writes the addresses of other modules' kernels, and calls of these kernels go through the table. There, all Programs run
one loop: its code would take LLVM a third of the time that a small Program takes.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tvm.target import Target

from tvmfun.llvm_modules import empty_module, parsed, with_added
from tvmfun.lower.codegen.memory_plan import NO_SLOT, Call, Store, number
from tvmfun.lower.schedule.control_ops.stopwatch import LAP
from tvmfun.lower.tir.calling_convention import SYMBOL_PREFIX
from tvmfun.runtime.plan import Address, Size
from tvmfun.threads import TABLE, WRITE_ADDRESSES

#: Two int64: seconds and nanoseconds.
TIMESPEC_BYTES = 16
_MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 1)

_DECLARED = re.compile(rf"^declare [^\n]*@{SYMBOL_PREFIX}(\w+)\([^\n]*\n", re.MULTILINE)
_CALLED = re.compile(rf"^  %(\S+) = ([^@\n]*\bcall i32) @{SYMBOL_PREFIX}(\w+)\(", re.MULTILINE)
_ARGUMENT = "%tvmfun.argument"
_INTEGER = 1  # the FFI's index of the type
_ADDRESS_BYTES = 8

_CLOCK = f"""declare i32 @clock_gettime(i32, ptr)

define internal void @tvmfun.tick(ptr %table, i64 %called) {{
  %times.at = getelementptr ptr, ptr %table, i64 SLOT
  %times = load ptr, ptr %times.at
  %time = getelementptr [{TIMESPEC_BYTES} x i8], ptr %times, i64 %called
  %status = call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %time)
  ret void
}}
"""

# Adds the time since it last returned, and a call, to the two numbers at the address that it is given.
_LAP = f"""@tvmfun.last = internal global i64 0

define internal i64 @tvmfun.now() {{
  %time = alloca [2 x i64]
  %status = call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}

define internal i32 @{SYMBOL_PREFIX}{LAP}(ptr %self, ptr %given, i32 %number.given, ptr %result) {{
  %record.at = getelementptr {_ARGUMENT}, ptr %given, i64 0, i32 2
  %record = load ptr, ptr %record.at
  %now = call i64 @tvmfun.now()
  %last = load i64, ptr @tvmfun.last
  %lap = sub i64 %now, %last
  %before = load i64, ptr %record
  %sum = add i64 %before, %lap
  store i64 %sum, ptr %record
  %calls.at = getelementptr i64, ptr %record, i64 1
  %calls = load i64, ptr %calls.at
  %more = add i64 %calls, 1
  store i64 %more, ptr %calls.at
  %end = call i64 @tvmfun.now()
  store i64 %end, ptr @tvmfun.last
  ret i32 0
}}
"""

# Stores a constant: the first argument is the address, the second one has the bits.
_STORE = """  %address.at = getelementptr %tvmfun.argument, ptr %given, i64 0, i32 2
  %address = load ptr, ptr %address.at
  %bits.at = getelementptr %tvmfun.argument, ptr %given, i64 1, i32 2
  %bits = load iBITS, ptr %bits.at
  store iBITS %bits, ptr %address
  ret i32 0"""

_RETURN_ADDRESS = f"""  %address = ptrtoint ptr @OF to i64
  %address.at = getelementptr {_ARGUMENT}, ptr %result, i64 0, i32 2
  store i32 {_INTEGER}, ptr %result
  store i64 %address, ptr %address.at
  ret i32 0"""

_RUN = """  %status = call i32 LOOP(ptr @tvmfun.program, ptr %given)
  ret i32 %status"""

# Returns the number of bytes.
_WRITE = f"""  %to.at = getelementptr {_ARGUMENT}, ptr %given, i64 0, i32 2
  %to = load ptr, ptr %to.at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr @tvmfun.addresses, i64 BYTES, i1 false)
  store {_ARGUMENT} {{ i32 {_INTEGER}, i32 0, i64 BYTES }}, ptr %result
  ret i32 0"""


@dataclass(frozen=True)
class MainFunction:
    """The ``main`` of a Program: a function of the address of a table of addresses.

    Args:
        steps: the calls and stores, in order.
        elsewhere: the kernels of other modules, grouped by module.
        local: the kernels of its own module.
        clock_slot: the slot of the table with the address of an array of ``timespec`` of libc, to which ``main`` writes
            the time before the first kernel and after each.
    """

    steps: Sequence[Call | Store]
    elsewhere: Sequence[str]
    local: Sequence[str]
    clock_slot: int | None = None

    def added_to(self, text: str, in_memory: bool) -> str:
        """The text of an LLVM module with this function.

        Args:
            text: the module, which has the local kernels, and may call others.
            in_memory: whether the module is loaded from memory.
        """
        if in_memory:
            text = self._calling_by_table(text)
            loop, types = f"inttoptr (i64 {_address_of_loop()} to ptr)", _types()
            addresses, kind = ["ptr null"] * len(self.elsewhere), "global"
            others = [_function(TABLE, _RETURN_ADDRESS.replace("OF", "tvmfun.kernels"))] if self.elsewhere else []
        else:
            loop, types = "@tvmfun.run", _loop()
            addresses, kind = list(map(_symbol, self.elsewhere)), "constant"
            others = [_declaration(name) for name in self.elsewhere if f"@{SYMBOL_PREFIX}{name}(" not in text]
        widths = self._widths
        addresses += [*map(_symbol, self.local), *(f"ptr @{_store_of(bits)}" for bits in widths)]
        others += [_function(_store_of(bits), _STORE.replace("BITS", str(bits)), "internal ", "") for bits in widths]
        if self.clock_slot is not None:
            others.append(_CLOCK.replace("SLOT", str(self.clock_slot)) + _LAP)
        main = _function("main", _RUN.replace("LOOP", loop))
        return with_added(text, types, main, _array("tvmfun.kernels", "ptr", addresses, kind), *self._data(), *others)

    @property
    def _widths(self) -> list[int]:
        """The bits of constants that are stored."""
        return sorted({_bits(step) for step in self.steps if isinstance(step, Store)})

    def _calling_by_table(self, text: str) -> str:
        """The text of an LLVM module whose calls of kernels elsewhere go through the table."""
        index = {name: i for i, name in enumerate(self.elsewhere)}

        def undeclared(declared: re.Match) -> str:
            # The clock's function is defined with the clock.
            return "" if declared[1] == LAP or declared[1] in index else declared[0]

        def call(found: re.Match) -> str:
            result, instruction, name = found.groups()
            if name not in index:
                return found[0]
            slot = f"getelementptr (ptr, ptr @tvmfun.kernels, i64 {index[name]})"
            return f"  %kernel.{result} = load ptr, ptr {slot}\n  %{result} = {instruction} %kernel.{result}("

        return _CALLED.sub(call, _DECLARED.sub(undeclared, text))

    def _data(self) -> list[str]:
        """The steps, as ``main.ll`` reads them."""
        kernels = [*self.elsewhere, *self.local]
        kernel_index = {name: i for i, name in enumerate(kernels)}
        store_index = {bits: len(kernels) + i for i, bits in enumerate(self._widths)}
        calls, arguments = [], []
        for step in self.steps:
            if isinstance(step, Store):
                index, given = store_index[_bits(step)], [step.address, number(int(step.bits))]
            else:
                index, given = kernel_index[step.kernel], step.arguments
            calls += [index, len(given)]
            arguments += map(_argument, given)
        counts = len(self.steps), len(kernels), max(calls[1::2], default=0)
        tick = "null" if self.clock_slot is None else "@tvmfun.tick"
        addresses = [f"ptr {address}" for address in ("@tvmfun.kernels", "@tvmfun.calls", "@tvmfun.arguments", tick)]
        program = ", ".join([*addresses, *(f"i64 {count}" for count in counts)])
        return [
            _array("tvmfun.calls", "i32", [f"i32 {number}" for number in calls]),
            _array("tvmfun.arguments", _ARGUMENT, arguments),
            f"@tvmfun.program = private constant %tvmfun.program {{ {program} }}\n",
        ]


def with_addresses(text: str, names: Sequence[str]) -> str:
    """Adds to the text of an LLVM module a function that writes the addresses of these kernels to a table."""
    body = _WRITE.replace("BYTES", str(_ADDRESS_BYTES * len(names)))
    return with_added(
        text,
        f"{_ARGUMENT} = type {{ i32, i32, i64 }}\n",
        _array("tvmfun.addresses", "ptr", list(map(_symbol, names))),
        # Where modules are linked, one of these functions is kept, which is never called.
        _function(WRITE_ADDRESSES, body, "weak "),
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n" if "@llvm.memcpy.p0.p0.i64(" not in text else "",
    )


@cache
def _loop() -> str:
    return Path(__file__).with_name("main.ll").read_text()


@cache
def _types() -> str:
    """The types of the loop's data."""
    return "".join(re.findall(r"^%[^\n]* = type [^\n]*\n", _loop(), re.MULTILINE))


@cache
def _address_of_loop() -> int:
    """The address of the loop that Programs in memory run."""
    text = with_added(
        empty_module(Target("llvm")), _loop(), _function("address", _RETURN_ADDRESS.replace("OF", "tvmfun.run"))
    )
    module = parsed(text)
    # Never unloaded: a Program may run until the process ends, when Python has freed its modules.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    return module["address"]()


def _symbol(kernel: str) -> str:
    return f"ptr @{SYMBOL_PREFIX}{kernel}"


def _declaration(kernel: str) -> str:
    return f"declare i32 @{SYMBOL_PREFIX}{kernel}(ptr, ptr, i32, ptr)\n"


def _function(name: str, body: str, linkage: str = "", prefix: str = SYMBOL_PREFIX) -> str:
    parameters = "ptr %self, ptr %given, i32 %number.given, ptr %result"
    return f"define {linkage}i32 @{prefix}{name}({parameters}) {{\n{body}\n}}\n"


def _array(name: str, of: str, values: Sequence[str], kind: str = "constant") -> str:
    return f"@{name} = private {kind} [{len(values)} x {of}] [{', '.join(values)}]\n"


def _bits(step: Store) -> int:
    return 8 * step.bits.dtype.itemsize


def _store_of(bits: int) -> str:
    return f"tvmfun.store.{bits}"


def _argument(value: Address | Size) -> str:
    """An address, or a dynamic size, which is a word of the table."""
    slot, offset, second = (value.slot, 0, None) if isinstance(value, Size) else value
    second = NO_SLOT if second is None else second
    return f"{_ARGUMENT} {{ i32 {slot}, i32 {second}, i64 {offset} }}"
