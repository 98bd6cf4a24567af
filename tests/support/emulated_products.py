"""Products of matrices on GPUs without a GPU: emulated results, and what the compiler says of their source."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm
from tvm import ir, tirx

import tvmfun
from support.cuda_emulator import MappedArray
from support.cuda_emulator import run as run_emulated
from support.serial_gpu import call
from tvmfun import ShapeDtype
from tvmfun.core.inline import inlined
from tvmfun.core.program import Literal
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda.cubins import KernelSource, grouped
from tvmfun.lower.codegen.cuda.tensor_maps import tensor_maps, with_maps
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.schedule import schedule
from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import find

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="only nvcc, which is not on PATH, makes machine code of CUDA")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator is compiled by g++")
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5}


class Scheduled(NamedTuple):
    """A kernel for a GPU."""

    kernel: Kernel
    function: tirx.PrimFunc

    @property
    def rule(self) -> str:
        """The rule that scheduled it."""
        return str(self.function.attrs["tvmfun.rule"])

    def kernels(self, target: tvm.target.Target) -> tuple[str, list[str]]:
        """The CUDA source of its kernels as TVM writes them, after what comes in front."""
        target = target.with_host("c")  # nobody runs the host code, which takes LLVM longer than all else
        with target:
            module = tvm.tirx.build(tvm.IRModule({"main": self.function.with_attr("global_symbol", "main")}), target)
        text = module.imports[0].inspect_source("cuda")
        prelude, *parts = re.split(r'^(?=extern "C" )', text, flags=re.MULTILINE)
        return prelude, [part for part in parts if not part.rstrip().endswith(");")]

    def source(self, target: tvm.target.Target) -> str:
        """Its CUDA source, with tensor maps as parameters."""
        return joined(*self.kernels(target))


def joined(prelude: str, kernels: Sequence[str]) -> str:
    """The source of kernels, with tensor maps as parameters."""
    return prelude + "".join(map(with_maps, kernels))


def scheduled(function: Callable, *arguments: Any, arch: str = "sm_80") -> list[Scheduled]:
    """The kernels of a function, without views."""
    target = targets.resolve({"kind": "cuda", "arch": arch})
    program = inlined(tvmfun.trace(function)(*(ShapeDtype(x.shape, x.dtype) for x in arguments)), "cuda")
    kernels = [kernel for kernel, _ in pipeline.fused_kernels(program, target) if not kernel.is_view]
    return [Scheduled(kernel, schedule(kernel.prim_func(), target)) for kernel in kernels]


def product_of(function: Callable, *arguments: Any, arch: str = "sm_80") -> tuple[Scheduled, str]:
    """The only product among the kernels of a function, and its CUDA source."""
    (product,) = (one for one in scheduled(function, *arguments, arch=arch) if one.rule == "product")
    return product, product.source(targets.resolve({"kind": "cuda", "arch": arch}))


# -- emulation ---------------------------------------------------------------------------------------------------------


def check(function: Callable, *arrays: Any, arch: str = "sm_80", orders: int = 2, tolerance: float = 0.0) -> list[str]:
    """Compares the emulated products of a function, between other kernels on the CPU, to the CPU's results.

    Returns:
        The rules of its kernels.
    """
    results, rules = emulate(function, *arrays, arch=arch, orders=orders)
    for ours, expected in zip(results, tvmfun.tree.leaves(tvmfun.jit(function)(*arrays)), strict=True):
        theirs = np.asarray(expected)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype == bool:
            np.testing.assert_array_equal(ours, theirs)
            continue
        wide = [array.astype("float64") for array in (ours, theirs)]
        bound = tolerance or TOLERANCE[str(theirs.dtype)]
        np.testing.assert_allclose(*wide, rtol=bound, atol=bound * max(1.0, np.abs(wide[1]).max(initial=0)))
    return rules


def emulate(
    function: Callable, *arrays: Any, arch: str = "sm_80", orders: int = 2
) -> tuple[list[np.ndarray], list[str]]:
    """The results of a function whose products are emulated, and the rules of its kernels."""
    target = targets.resolve({"kind": "cuda", "arch": arch})
    traced = tvmfun.trace(function)(*(ShapeDtype(x.shape, x.dtype) for x in arrays))
    program = inlined(traced, "cuda")
    values: dict[Any, Any] = dict(zip(program.inputs, map(np.asarray, (*traced.captured, *arrays)), strict=True))
    rules = []
    for kernel, _ in pipeline.fused_kernels(program, target):
        arguments = [np.asarray(a.value if isinstance(a, Literal) else values[a]) for a in kernel.inputs]
        shapes = [out.aval.shape for out in kernel.outputs]
        if kernel.is_view:
            results = [arguments[0].reshape(shapes[0])]
        elif all(0 in shape for shape in shapes):
            results = [np.zeros(s, out.aval.dtype) for s, out in zip(shapes, kernel.outputs, strict=True)]
        else:
            one = Scheduled(kernel, schedule(kernel.prim_func(), target))
            rules.append(one.rule)
            if one.rule in ("product", "attention", "sort", "scan"):
                results = _emulated(one, arguments, target, orders)
            else:
                results = call(kernel.prim_func().with_attr("global_symbol", "main"), arguments, shapes, kernel)
        values.update(zip(kernel.outputs, results, strict=True))
    return [np.asarray(a.value if isinstance(a, Literal) else values[a]) for a in program.outputs], rules


def replace_line(monkeypatch: pytest.MonkeyPatch, line: str, instead: str) -> None:
    """Lets the emulator run sources in which something that is there is replaced."""

    def run(source: str, *args: Any, **options: Any) -> None:
        assert line in source
        original(source.replace(line, instead), *args, **options)

    original = run_emulated
    monkeypatch.setitem(globals(), "run_emulated", run)


def _with_names(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with another name for each parameter, by which the parameters of its launches are known."""
    names = {
        param: tirx.decl_buffer(param.shape, str(param.dtype), name=f"p{i}") for i, param in enumerate(function.params)
    }
    body = build.replace_buffers(function.body, names)
    return tirx.PrimFunc(list(names.values()), body, function.ret_type, function.attrs)


def _emulated(one: Scheduled, arguments: Sequence[np.ndarray], target: tvm.target.Target, orders: int) -> list:
    one = one._replace(function=_with_names(one.function))
    outputs = [np.full(out.aval.shape, 77).astype(out.aval.dtype) for out in one.kernel.outputs]
    arrays = [np.array(array, order="C") for array in (*arguments, *outputs)]
    by_name = {f"{param.name}_ptr": array for param, array in zip(one.function.params, arrays, strict=True)}
    prelude, kernels = one.kernels(target)
    source = joined(prelude, kernels)
    maps = list(map(tensor_maps, kernels))
    signatures = re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{", source)
    for nest, (name, parameters), own in zip(_nests(one.function), signatures, maps, strict=True):
        blocks, threads = (int(loop.extent) for loop in nest)
        taken = []
        for i, parameter in enumerate(parameters.split(",")):
            pointer = parameter.split()[-1]
            if i in own:
                taken.append(MappedArray(by_name[pointer.removesuffix("_map")], own[i]))
                continue
            if pointer not in by_name:
                by_name[pointer] = _workspace(one.function, pointer.removesuffix("_ptr"))
            taken.append(by_name[pointer])
        shared = _shared_bytes(nest[0])
        run_emulated(source, name, blocks, threads, shared, taken, orders=orders)
    return arrays[len(arguments) :]


def _nests(function: tirx.PrimFunc) -> list[list[tirx.For]]:
    """The loops over blocks and threads of each launch, in order."""
    bound = [loop for loop in find(function.body, tirx.For) if loop.thread_binding is not None]
    return [bound[i : i + 2][::-1] for i in range(0, len(bound), 2)]


def _shared_bytes(nest: tirx.Stmt) -> int:
    buffers = [node.buffer for node in find(nest, tirx.AllocBuffer)]
    return sum(_nbytes(buffer) for buffer in buffers if buffer.scope() == "shared.dyn")


def _workspace(function: tirx.PrimFunc, name: str) -> np.ndarray:
    (buffer,) = (
        node.buffer
        for node in find(function.body, tirx.AllocBuffer)
        if node.buffer.name == name and node.buffer.scope() == "global"
    )
    return np.full(_nbytes(buffer), 0xFF, np.uint8)


def _nbytes(buffer: ir.Var) -> int:
    return int(np.prod([int(size) for size in buffer.shape])) * tvm.DataType(str(buffer.dtype)).bits // 8


# -- the compiler ------------------------------------------------------------------------------------------------------


class Resources(NamedTuple):
    """The resources of a kernel, as ptxas reports them."""

    registers: int
    spilled_bytes: int
    stack_bytes: int


def ptx(source: str, arch: str, directory: Path) -> str:
    """The PTX that nvcc makes of CUDA source."""
    result, _ = _compile(source, arch, directory, "-ptx")
    return result.read_text()


def resources(sources: Sequence[str], arch: str, directory: Path) -> list[list[Resources]]:
    """The resources of the kernels of each CUDA source on an architecture."""
    reports = {}
    for text in _together(sources):
        _, report = _compile(text, arch, directory, "-cubin", "-Xptxas", "-v")
        for part in report.split("Compiling entry function '")[1:]:
            stack, stores, loads, registers = map(int, _RESOURCES.search(part).groups())  # type: ignore[union-attr]
            reports[part.split("'")[0]] = Resources(registers, stores + loads, stack)
    found = [[used for name, used in reports.items() if name.startswith(_prefix(i))] for i in range(len(sources))]
    assert all(found), reports
    return found


_RESOURCES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s.*?Used (\d+) registers", re.DOTALL
)


def _prefix(number: int) -> str:
    return f"source{number}_"


def _together(sources: Sequence[str]) -> list[str]:
    """The kernels of all sources in few texts, under new names: the headers take nvcc longer than most kernels."""
    kernels = []
    for i, source in enumerate(sources):
        start = source.index('extern "C" ')
        text = re.sub(r"\bmain_kernel", f"{_prefix(i)}kernel", source[start:])
        kernels.append(KernelSource(f"source{i}", source[:start], text))
    return [group.source(group.kernels) for group in grouped(kernels)]


def cubin(source: str, arch: str, directory: Path) -> Path:
    """The file with the machine code that nvcc makes of CUDA source."""
    return _compile(source, arch, directory, "-cubin")[0]


def _compile(source: str, arch: str, directory: Path, *options: str) -> tuple[Path, str]:
    file, result = directory / "kernels.cu", directory / "kernels.out"
    file.write_text(source)
    command = [str(NVCC), "-w", f"-arch={arch}", *options, "-o", str(result), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[:3000]
    return result, done.stderr
