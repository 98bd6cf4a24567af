"""``main``: steps as data, constants, clocks, and calls between LLVM modules in memory and in libraries."""

import shutil

import numpy as np
import pytest
import tvm
from tvm import ir, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.codegen.main_function import TIMESPEC_BYTES
from tvmfun.lower.codegen.memory_plan import Call, Store
from tvmfun.lower.tir.build import buffer
from tvmfun.runtime.plan import Address, Size

needs_linker = pytest.mark.skipif(not shutil.which("g++"), reason="a shared library needs a C++ compiler to link it")
WAYS = ["one module", "several", pytest.param("library", marks=needs_linker)]


def adding(name: str):
    """A kernel that adds a number, which it is given like a dynamic size, to an int64."""
    x, number = buffer((1,), "int64", "x"), tirx.Var("number", "int64")
    body = tirx.BufferStore(x, x[0] + number, [0])
    return tirx.PrimFunc([x, number], body).with_attrs({"global_symbol": name, "s_tir": True})


def loaded(kernels, steps, slots, way, folder, monkeypatch, is_timed=False):
    """The ``main`` of these steps."""
    monkeypatch.setattr(native, "_KERNELS_OF_A_PART", 1 if way == "several" else 1000)
    monkeypatch.setattr(native, "_FEW_KERNELS", 1 if way == "several" else 1000)
    collected = native.Kernels(targets.host(), exported=way == "library")
    for kernel in kernels:
        collected.add(ir.GlobalVar(kernel.attrs["global_symbol"]), kernel)
    module = native.NativeModule(collected, steps, slots, targets.host(), is_timed)
    if way != "library":
        got = module.load()
        assert bool(got.imports) == (way == "several")
        return got["main"]
    module.export(str(folder / "main.so"))
    return tvm.runtime.load_module(str(folder / "main.so"))["main"]


@pytest.mark.parametrize("way", WAYS)
def test_arguments_are_words_of_the_table_and_offsets(way, tmp_path, monkeypatch):
    numbers = np.zeros(4, "int64")
    table = np.array([numbers.ctypes.data, 8, 5, 2**40], "uint64")
    steps = [
        Call("first", [Address(0), Size(2)]),
        Call("second", [Address(0, 8), Size(3)]),
        Call("first", [Address(0, 8, 1), Size(2)]),
        Call("second", [Address(0, offset_slot=1), Size(2)]),
    ]
    main = loaded([adding("first"), adding("second")], steps, 4, way, tmp_path, monkeypatch)
    for times in (1, 2):
        main(table.ctypes.data)
        assert numbers.tolist() == [times * 5, times * (2**40 + 5), times * 5, 0]


CONSTANTS = [
    np.uint8(255),
    np.uint16(2**16 - 1),
    np.uint32(2**31),
    np.uint64(2**64 - 1),
    np.int8(-1),
    np.int64(-(2**63)),
    np.int32(-7),
]


@pytest.mark.parametrize("way", WAYS)
def test_constants_are_stored_with_their_width(way, tmp_path, monkeypatch):
    memory = np.full(8 * len(CONSTANTS) + 8, 0x55, "uint8")
    number = np.zeros(1, "int64")
    steps = [Store(Address(0, 8 * i), constant) for i, constant in enumerate(CONSTANTS)]
    steps.insert(3, Call("add", [Address(1), Size(2)]))
    main = loaded([adding("add"), adding("other")], steps, 3, way, tmp_path, monkeypatch)
    table = np.array([memory.ctypes.data, number.ctypes.data, 3], "uint64")
    main(table.ctypes.data)
    for i, constant in enumerate(CONSTANTS):
        end = 8 * i + constant.nbytes
        assert memory[8 * i : end].tobytes() == constant.tobytes()
        assert (memory[end : 8 * i + 8] == 0x55).all()
    assert number[0] == 3


@pytest.mark.parametrize("way", WAYS)
def test_the_clock_is_read_after_each_kernel(way, tmp_path, monkeypatch):
    numbers = np.zeros(2, "int64")
    store, call = Store(Address(0, 8), np.int64(1)), Call("first", [Address(0), Size(1)])
    steps = [store, call, store, call, call, store]
    main = loaded([adding("first"), adding("second")], steps, 2, way, tmp_path, monkeypatch, is_timed=True)
    times = np.zeros((5, TIMESPEC_BYTES // 8), "int64")
    table = np.array([numbers.ctypes.data, 2, times.ctypes.data], "uint64")
    main(table.ctypes.data)
    nanoseconds = times[:4] @ np.array([10**9, 1])
    assert numbers.tolist() == [6, 1]
    assert times[:4].any(axis=1).all() and not times[4].any()
    assert (np.diff(nanoseconds) >= 0).all() and nanoseconds[-1] - nanoseconds[0] < 10**9


@pytest.mark.parametrize("steps", [0, 1, 1000])
def test_any_number_of_steps(steps, tmp_path, monkeypatch):
    number = np.zeros(1, "int64")
    called = [Call("add", [Address(0), Size(1)])] * steps
    main = loaded([adding("add")] if steps else [], called, 2, "one module", tmp_path, monkeypatch)
    main(np.array([number.ctypes.data, 1], "uint64").ctypes.data)
    assert number[0] == steps


@pytest.mark.parametrize("limit", [1, 1000])
def test_loops_call_kernels_of_other_modules(limit, monkeypatch):
    scales = [1 + i / 8 for i in range(9)]  # many kernels, which a loop calls

    def function(x, w):
        def body(i, carry):
            for scale in scales:
                carry = tnp.tanh(carry @ w * scale)
            inner = lax.fori_loop(0, i % 3, lambda j, c: tnp.sin(c @ w) - tnp.mean(c, axis=1, keepdims=True), carry)
            return lax.cond(i % 2 == 0, lambda c: tnp.sin(c @ w.T), lambda c: c * 0.5, inner)

        return lax.fori_loop(0, 5, body, tnp.exp(x @ w)), tnp.sum(x @ w, axis=0)

    rng = np.random.default_rng(limit)
    x, w = (rng.normal(size=shape).astype("float32") / 8 for shape in ((30, 60), (60, 60)))
    monkeypatch.setattr(native, "_KERNELS_OF_A_PART", limit)
    monkeypatch.setattr(native, "_FEW_KERNELS", limit)
    tvmfun.clear_caches()
    compiled = tvmfun.jit(function).lower(x, w).compile()
    assert len(compiled.executable.module.imports) > 0  # loops are not in the modules of the kernels that they call
    carry = np.exp(x @ w)
    for i in range(5):
        for scale in scales:
            carry = np.tanh(carry @ w * scale)
        for _ in range(i % 3):
            carry = np.sin(carry @ w) - np.mean(carry, axis=1, keepdims=True)
        carry = np.sin(carry @ w.T) if i % 2 == 0 else carry * 0.5
    for ours, expected in zip(compiled(x, w), (carry, (x @ w).sum(axis=0)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-4)
