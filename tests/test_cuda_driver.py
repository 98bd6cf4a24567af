"""The interface to NVIDIA's driver: layouts of structures, and machines that lack something."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from support.cuda_emulator import GXX

from tvmfun import errors
from tvmfun.runtime.cuda import devices, driver, launcher, nodes

HEADER = Path("/usr/local/cuda/include/cuda.h")
STRUCTURES = {
    "CUDA_KERNEL_NODE_PARAMS_v2": (
        nodes.KernelNode,
        "func gridDimX blockDimX sharedMemBytes kernelParams extra kern ctx",
    ),
    "CUlaunchConfig": (nodes.LaunchConfig, "gridDimX blockDimX sharedMemBytes hStream attrs numAttrs"),
    "CUlaunchAttribute": (nodes.LaunchAttribute, "id pad value"),
    "CUgraphNodeParams": (
        nodes.ConditionalNode,
        "type reserved0 conditional.handle conditional.type conditional.size conditional.phGraph_out conditional.ctx",
    ),
    "CUDA_MEMCPY3D": (
        nodes.MemoryCopy,
        "srcXInBytes srcY srcZ srcLOD srcMemoryType srcHost srcDevice srcArray reserved0 srcPitch srcHeight "
        "dstXInBytes dstY dstZ dstLOD dstMemoryType dstHost dstDevice dstArray reserved1 dstPitch dstHeight "
        "WidthInBytes Height Depth",
    ),
}
_PADDING = ("unused", "reserved2")
CONSTANTS = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": devices._MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": devices._MINOR,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK": devices._SHARED,
    "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK": devices._THREADS,
    "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK": devices._REGISTERS,
    "CU_DEVICE_ATTRIBUTE_WARP_SIZE": devices._WARP_SIZE,
    "CU_EVENT_DISABLE_TIMING": devices._WITHOUT_TIME,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": launcher._DYNAMIC_SHARED_BYTES,
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": nodes._CLUSTER,
    "CU_MEMORYTYPE_DEVICE": nodes._DEVICE_MEMORY,
    "CU_GRAPH_NODE_TYPE_CONDITIONAL": nodes._CONDITIONAL,
    "CU_GRAPH_COND_TYPE_IF": nodes._IF,
    "CU_GRAPH_COND_TYPE_WHILE": nodes._WHILE,
    "CU_GRAPH_COND_TYPE_SWITCH": nodes._SWITCH,
    "CUDA_ERROR_OUT_OF_MEMORY": driver.OUT_OF_MEMORY,
}


@pytest.fixture(autouse=True)
def own_driver():
    yield
    driver.use(None)


@pytest.mark.slow
@pytest.mark.skipif(not HEADER.exists() or GXX is None, reason="there is no cuda.h, or no g++")
def test_structures_and_numbers_are_those_of_the_header(tmp_path):
    lines = ["#include <cuda.h>", "#include <cstddef>", "#include <cstdio>", "int main() {"]
    for name, (_, fields) in STRUCTURES.items():
        lines.append(f'printf("%zu ", sizeof({name}));')
        lines += [f'printf("%zu ", offsetof({name}, {field}));' for field in fields.split()]
    lines += [f'printf("%d ", (int){name});' for name in CONSTANTS]
    (tmp_path / "layout.cpp").write_text("\n".join([*lines, "}"]))
    command = [str(GXX), "-w", f"-I{HEADER.parent}", "-o", str(tmp_path / "layout"), str(tmp_path / "layout.cpp")]
    subprocess.run(command, check=True)
    numbers = list(map(int, subprocess.run([tmp_path / "layout"], capture_output=True, check=True).stdout.split()))
    expected = []
    for structure, fields in STRUCTURES.values():
        own = [getattr(structure, name).offset for name, *_ in structure._fields_ if name not in _PADDING]
        assert len(own) == len(fields.split())
        expected += [ctypes.sizeof(structure), *own]
    assert numbers == [*expected, *CONSTANTS.values()]


@pytest.mark.skipif(not HEADER.exists(), reason="there is no cuda.h")
def test_functions_have_the_names_and_counts_of_parameters_of_the_header():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    for name, types in (driver._FUNCTIONS | driver._OF_CONDITIONS).items():
        plain = re.sub(r"_v\d$|WithFlags$", "", name)
        if plain != name:
            assert re.search(rf"#define {plain}\s+(__CUDA_API_\w+\()?{name}\b", text), name
        parameters = re.findall(rf"CUDAAPI\s+{plain}\s*\(([^)]*)\)", text)[0]
        count = 0 if parameters.strip() in ("", "void") else parameters.count(",") + 1
        assert count == len(types), name


def test_a_machine_without_a_driver():
    driver.use("libcuda-of-no-machine.so.1")
    assert driver.device_count() == 0
    with pytest.raises(errors.TargetError, match=r"NVIDIA's driver is not installed, got libcuda-of-no-machine"):
        driver.driver()


def library(tmp_path, functions):
    source, path = tmp_path / "driver.cpp", tmp_path / "libcuda.so"
    source.write_text("\n".join(f'extern "C" int {name}{body}' for name, body in functions.items()))
    subprocess.run([str(GXX), "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return str(path)


ALL = dict.fromkeys((*driver._FUNCTIONS, "cuGetErrorName"), "() { return 0; }")
LACKING = {
    "too old, got one without cuLaunchKernelEx": {k: v for k, v in ALL.items() if k != "cuLaunchKernelEx"},
    "too old, got version 11.8": {**ALL, "cuDriverGetVersion": "(int* v) { *v = 11080; return 0; }"},
    "finds no GPU, got error 100 of cuInit, CUDA_VISIBLE_DEVICES=": {**ALL, "cuInit": "() { return 100; }"},
}


@pytest.mark.slow
@pytest.mark.skipif(GXX is None, reason="there is no g++")
@pytest.mark.parametrize("message", LACKING)
def test_drivers_that_cannot_be_used(message, tmp_path):
    driver.use(library(tmp_path, LACKING[message]))
    assert driver.device_count() == 0
    with pytest.raises(errors.TargetError, match=message):
        driver.driver()
