"""Compiled modules for GPUs as records: loops, files, and files that are refused."""

import struct
from dataclasses import replace

import pytest

from tvmfun import errors
from tvmfun.runtime.cuda_module import (
    ArrayType,
    Branch,
    Copy,
    Cubin,
    CudaModule,
    Launch,
    Repeat,
    Scalar,
    Usage,
    While,
)
from tvmfun.runtime.plan import Address, MemoryAnalysis, Plan


def launch(kernel, *arguments, threads=32):
    return Launch(kernel, (2, 1, 1), (threads, 1, 1), 0, arguments)


LOOP = Repeat(2, (launch("f", Address(0)), Repeat(3, (launch("g", Address(3, 256), Scalar("int32", 5, (100, -10))),))))


def module(*steps):
    return CudaModule(
        "sm_90a",
        "nvcc 13.0",
        (
            Cubin(b"first", ("f", "g"), (Usage(32, 0, 0, 0), Usage(255, 8, 16, 4096))),
            Cubin(b"second image", ("h",), (Usage(10, 0, 0, 0),)),
        ),
        steps,
        Plan(2, (64,), (2, 0), MemoryAnalysis(128, 64, 64, 512)),
        b"\0" * 256,
        (ArrayType((4, 4), "float32"), ArrayType((), "bool")),
        (ArrayType((32,), "bfloat16"), ArrayType((4, 4), "float32")),
    )


STEPS = (
    LOOP,
    Copy(Address(2), Address(4, 256), 64),
    While(Address(1), (launch("h", Scalar("float32", 0x3F800000)),)),
    Branch(Address(1), "bool", ((), (launch("f", Address(0), threads=1)._replace(cluster=(2, 1, 1)),))),
)


def test_loops_are_unrolled_with_their_indices():
    launches = list(module(LOOP, STEPS[1]).launches())
    assert [step.kernel for step in launches[:-1]] == ["f", "g", "g", "g"] * 2
    numbers = [step.arguments[1].bits for step in launches[:-1] if step.kernel == "g"]
    assert numbers == [5, 2**32 - 5, 2**32 - 15, 105, 95, 85]
    assert launches[1].arguments[1].pack() == (5).to_bytes(4, "little")
    assert launches[2].arguments[1].pack() == (-5).to_bytes(4, "little", signed=True)
    assert launches[-1] == STEPS[1]
    assert launches[0].threads == 64


def test_launches_that_depend_on_data_have_no_list():
    with pytest.raises(errors.TargetError, match="must not depend on data, got While"):
        list(module(STEPS[2]).launches())


def test_a_file_holds_everything(tmp_path):
    written = module(*STEPS)
    written.write(tmp_path / "step.cuda")
    read = CudaModule.read(tmp_path / "step.cuda")
    assert read == written
    assert [type(step) for step in read.steps] == [type(step) for step in STEPS]
    assert read.constants_slot == 4
    assert [array.nbytes for array in read.results] == [64, 64]


def test_a_module_without_machine_code_says_so():
    module(*STEPS).check_code()
    without = replace(module(*STEPS), cubins=(), compiler="", missing="no nvcc on PATH")
    assert CudaModule.unpack(without.pack()) == without
    with pytest.raises(
        errors.TargetError, match=r"not compiled to machine code, got no nvcc on PATH\. Try pip install"
    ):
        without.check_code()


CONTENT = module(*STEPS).pack()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not a compiled module for a GPU"),
        (b"\x7fELF" + CONTENT[4:], "is not a compiled module for a GPU"),
        (CONTENT[:8] + struct.pack("<I", 7) + CONTENT[12:], "must have version 5, got version 7"),
        (CONTENT[:-1], "must have"),
        (CONTENT[:40], "is not a compiled module"),
        (CONTENT[:-300] + b"X" + CONTENT[-299:], "is damaged"),
        (CONTENT + b" ", "must have"),
    ],
)
def test_other_files_are_refused(content, what, tmp_path):
    path = tmp_path / "step.cuda"
    path.write_bytes(content)
    with pytest.raises(errors.TargetError, match=what) as error:
        CudaModule.read(path)
    assert str(path) in str(error.value)
