"""Exports that are refused, and calls with wrong arguments: from Python, and through the C ABI."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from support.exported import aligned

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError, ExportError, TreeError
from tvmfun.export import load, loader
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine

X = np.arange(64, dtype="float32")


def test_lists_and_dicts_are_asked_for(tmp_path):
    compiled = tvmfun.jit(lambda x: x).lower(X).compile()
    with pytest.raises(ArgumentError, match=r"the targets are a list.* Try targets=\['x86-64-v3'\]"):
        compiled.export(tmp_path / "f.so", targets="x86-64-v3")
    with pytest.raises(ArgumentError, match="the values are a dict by argument, got int"):
        compiled.export(tmp_path / "f.so", values=3)


def function(x, y, scale):
    return x * scale, tnp.sum(y)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export") / "function.so"
    tvmfun.jit(function, donate_argnums=0).lower(X, X, 2.0).compile().export(path)
    return path


@pytest.fixture(scope="module")
def step(library):
    return load(library)


# -- exports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["x86-64-v3", {"kind": "cuda", "arch": "sm_90"}]}, "for CPUs or for GPUs, got cpu and cuda"),
        ({"targets": []}, "the targets must have one architecture, got none"),
        ({"targets": ["x86-64-v3", {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}]}, "got aarch64, x86_64"),
        ({"targets": [{"kind": "llvm", "mtriple": "riscv64-linux-gnu"}]}, "must be x86_64 or aarch64, got riscv64"),
        ({"compiler": "no-such-compiler"}, "there is no such C compiler, got 'no-such-compiler'"),
        ({"compiler": "false"}, "cannot be compiled, got false"),
        ({"values": {"z": X}}, r"values must be for arguments, got 'z'\. Try x, y, scale"),
        ({"values": {"x": X[:3]}}, r"the value of x must be float32\[64\], got float32\[3\]"),
    ],
)
def test_exports_that_are_refused(tmp_path, options, message):
    compiled = tvmfun.jit(function).lower(X, X, 2.0).compile()
    with pytest.raises(ExportError, match=message):
        compiled.export(tmp_path / "f.so", **options)
    assert not list(tmp_path.iterdir())


def test_values_have_the_tree_of_their_argument(tmp_path):
    compiled = tvmfun.jit(function).lower(X, X, 2.0).compile()
    with pytest.raises(TreeError, match="its value must have the tree structure of x"):
        compiled.export(tmp_path / "f.so", values={"x": [X]})


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    compiled = tvmfun.jit(function).lower(X, X, 2.0).compile()
    with pytest.raises(ExportError, match="a C compiler is needed to link the library, and there is none on the path"):
        compiled.export(tmp_path / "f.so")


# -- calls from Python -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ((X, X), "BAD_ARGUMENT", "it takes 3 positional arguments, got 2"),
        (([X], X, 2.0), "WRONG_SIZE", r"x must have the shape \(64,\), got \(1, 64\)"),
        ((X[:3], X, 2.0), "WRONG_SIZE", r"x must have the shape \(64,\), got \(3,\)"),
        ((X, X.astype("float64"), 2.0), "WRONG_DTYPE", "y must have the dtype float32, got float64"),
    ],
)
def test_wrong_arguments(step, args, status, message):
    with pytest.raises(ExportError, match=rf"\[function\] {message}") as raised:
        step(*args)
    assert raised.value.status == status


def test_wrong_names(tmp_path):
    """Arguments by name, and keys of dicts: those that are missing, and those too many."""

    def step(state, *, rate):
        return {"w": state["w"] * rate}

    tvmfun.jit(step).lower({"w": X, "b": X}, rate=0.5).compile().export(tmp_path / "f.so")
    step = load(tmp_path / "f.so")
    with pytest.raises(ExportError, match=r"it takes 1 positional arguments and rate, got 1\."):
        step({"w": X, "b": X})
    with pytest.raises(ExportError, match=r"it takes 1 positional arguments and rate, got 1 and rate and size\."):
        step({"w": X, "b": X}, rate=1.0, size=2)
    with pytest.raises(ExportError, match=r"argument 0 must be a dict of 'b', 'w', got one of 'w', 'c'"):
        step({"w": X, "c": X}, rate=1.0)


def test_a_directory_that_does_not_exist(tmp_path):
    compiled = tvmfun.jit(function).lower(X, X, 2.0).compile()
    with pytest.raises(FileNotFoundError) as raised:
        compiled.export(tmp_path / "none" / "f.so")
    assert raised.value.filename == str(tmp_path / "none" / "f.so")


def test_numbers(tmp_path):
    tvmfun.jit(lambda x, n: x * n).lower(X, np.int8(3)).compile().export(tmp_path / "f.so")
    step = load(tmp_path / "f.so")
    assert step(X, 3)[2] == 6
    for number, got in ((2.5, "float64"), (1000, "1000")):
        with pytest.raises(ExportError, match=f"n must .* int8, got {got}"):
            step(X, number)


# -- the C ABI ---------------------------------------------------------------------------------------------------------


class Raw:
    """The functions of a library, called with buffers as they are."""

    def __init__(self, path, **options):
        self.library = ctypes.CDLL(str(path))
        self.library.tvmfun_get_api.restype = ctypes.POINTER(loader._Api)
        self.api = self.library.tvmfun_get_api().contents
        self.step = ctypes.c_void_p()
        self.created = self.api.create(ctypes.byref(loader._Options(**options)), ctypes.byref(self.step))

    def run(self, inputs, outputs):
        make = lambda buffers: (loader._Buffer * max(1, len(buffers)))(*buffers)
        status = self.api.run(self.step, make(inputs), len(inputs), make(outputs), len(outputs))
        return status, self.api.message().decode()

    def close(self):
        self.api.destroy(self.step)


@pytest.fixture
def raw(library):
    raw = Raw(library)
    assert raw.created == 0
    yield raw
    raw.close()


FLOAT32 = loader._CODES["float32"]


def buffer(array, offset=0, nbytes=None, dtype=FLOAT32):
    return array.ctypes.data + offset, array.nbytes if nbytes is None else nbytes, dtype


class Buffers:
    """Right buffers for ``function``."""

    def __init__(self):
        self.x, self.y, self.scale, self.total = map(aligned, (X, X, np.float32(2), np.float32(0)))
        self.inputs = [buffer(self.x), buffer(self.y), buffer(self.scale)]
        self.outputs = [(None, 256, FLOAT32), buffer(self.total)]


def test_a_call(raw):
    right = Buffers()
    for factor in (2, 4):
        assert raw.run(right.inputs, right.outputs)[0] == 0
        assert right.x.tolist() == (X * factor).tolist() and right.total == X.sum()
    right.outputs[0] = right.inputs[0]
    assert raw.run(right.inputs, right.outputs)[0] == 0


WRONG = {
    "WRONG_SIZE": lambda b: b.inputs.__setitem__(1, buffer(b.y, nbytes=252)),
    "WRONG_DTYPE": lambda b: b.inputs.__setitem__(1, buffer(b.y, dtype=FLOAT32 + 1)),
    "MISALIGNED": lambda b: b.inputs.__setitem__(1, buffer(b.y, offset=4)),
    "BAD_ARGUMENT": lambda b: b.inputs.__setitem__(1, (None, 256, FLOAT32)),
    "OVERLAP": lambda b: b.inputs.__setitem__(1, b.inputs[0]),
    "OVERLAP of a result": lambda b: b.outputs.__setitem__(1, buffer(b.scale)),
    "BAD_ARGUMENT of a result": lambda b: b.outputs.__setitem__(0, buffer(b.y)),
    "BAD_ARGUMENT for too few": lambda b: b.inputs.pop(),
    "BAD_ARGUMENT for too many": lambda b: b.outputs.append(b.outputs[1]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_buffers(raw, case):
    right, wrong = Buffers(), Buffers()
    WRONG[case](wrong)
    before = wrong.x.tolist()
    for _ in range(2):  # a wrong buffer must not be remembered as right
        status, message = raw.run(wrong.inputs, wrong.outputs)
        assert loader._STATUSES[status] == case.split()[0] and message
        assert wrong.x.tolist() == before
    assert raw.run(right.inputs, right.outputs)[0] == 0


def test_buffers_of_zeros(raw):
    status, message = raw.run([(None, 0, 0)] * 3, [(None, 0, 0)] * 2)
    assert loader._STATUSES[status] == "WRONG_DTYPE" and "x must have the dtype" in message


def test_another_error_does_not_hide_an_overlap(raw):
    buffers = Buffers()
    assert raw.run(buffers.inputs, buffers.outputs)[0] == 0
    buffers.inputs[1] = buffers.inputs[0]
    wrong_partner = [buffer(buffers.y), buffers.outputs[1]]
    for outputs, status in ((wrong_partner, "BAD_ARGUMENT"), (buffers.outputs, "OVERLAP")):
        assert loader._STATUSES[raw.run(buffers.inputs, outputs)[0]] == status


def test_null_pointers(raw):
    assert raw.api.run(None, None, 0, None, 0) == raw.api.run(raw.step, None, 3, None, 2) == 1
    assert raw.api.create(None, None) == raw.api.plan(None) == 1
    raw.api.destroy(None)
    signature = raw.api.signature().contents
    assert signature.name == b"function" and signature.input_count == 3
    leaf = signature.inputs[0]
    assert (leaf.name, leaf.ndim, leaf.shape[0], leaf.nbytes, leaf.partner, leaf.donated) == (b"x", 1, 64, 256, 0, 1)


@pytest.mark.parametrize("threads", [-1, 5000])
def test_threads_out_of_range(library, threads):
    raw = Raw(library, threads=threads)
    assert raw.created == 1 and "threads must be from 0 to 4096" in raw.api.message().decode()


@pytest.mark.skipif(Machine.of(targets.host()).cores == 1, reason="libraries for one core start no threads")
def test_a_pool_of_the_caller(tmp_path):
    x = np.random.default_rng(0).normal(size=(256, 256)).astype("float32")
    compiled = tvmfun.jit(lambda x: tnp.exp(x @ x / 100)).lower(x).compile()
    compiled.export(tmp_path / "f.so")
    counts = []
    task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    def parallel_for(context, count, function, argument):
        counts.append((context, count))
        for i in reversed(range(count)):
            task(function)(argument, i)

    address = ctypes.cast(parallel_for, ctypes.c_void_p).value
    raw = Raw(tmp_path / "f.so", threads=5, parallel_for=address, parallel_context=17)
    argument, result = aligned(x), aligned(np.zeros_like(x))
    assert raw.run([buffer(argument)], [buffer(result)])[0] == 0
    raw.close()
    assert set(counts) == {(17, 5)}
    assert result.tobytes() == np.asarray(compiled(x)).tobytes()
