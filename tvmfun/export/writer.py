"""Writes a compiled function as a shared library without TVM, with a manifest and a checksum."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmfun import tree
from tvmfun.core import dims
from tvmfun.core.array import DeviceArray
from tvmfun.core.program import Program
from tvmfun.errors import ExportError
from tvmfun.export.contents import Contents, Leaf, Variant
from tvmfun.export.cuda_contents import CudaContents, CudaVariant
from tvmfun.export.dynamic_contents import element_counts, size_infos
from tvmfun.export.features import FEATURES, required
from tvmfun.export.loader import ABI_VERSION, SizeInfo
from tvmfun.export.toolchain import FOR_CPUS, FOR_CUDA, Toolchain
from tvmfun.files import atomic_write, require_folder
from tvmfun.lower import cache, machine
from tvmfun.lower import target as lowering
from tvmfun.lower.codegen.native import NativeModule
from tvmfun.manifest.container import sealed
from tvmfun.manifest.entries import versions
from tvmfun.manifest.trees import described, leaf_names, result_names
from tvmfun.runtime.cuda.executable import CudaExecutable
from tvmfun.threads import cpu_count
from tvmfun.typing import PyTree

_MAIN = "__tvm_ffi_main"

Variants = Sequence[Variant] | Sequence[CudaVariant]


def write(
    program: Program,
    targets: Sequence[Any],
    donated: Sequence[int],
    arguments: Sequence[str],
    path: str | os.PathLike[str],
    values: Mapping[str, PyTree],
    compiler: str | Sequence[str] | None,
) -> None:
    """Writes the library of a Program; see :meth:`tvmfun.stages.Compiled.export`.

    Args:
        program: the Program.
        targets: CPUs of one architecture, or names of processors; or GPUs.
        donated: the positions of inputs that may be overwritten.
        arguments: the names of the arguments.
        path: the file to write or replace.
        values: initial values by the names of arguments.
        compiler: the command of a C compiler.
    """
    require_folder(path)  # before anything is compiled
    targets = list(map(_resolved, targets))
    is_for_gpus = _is_for_gpus(targets)
    if is_for_gpus and program.sizes:
        what = "a library for GPUs has static sizes"
        raise ExportError("export", what, got=", ".join(program.sizes), hint="one library for each size")
    architecture = _architecture(targets)
    initial = _initial_values(program.in_tree, arguments, values)
    toolchain = Toolchain(architecture, architecture != platform.machine(), compiler)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variants: Any
        if is_for_gpus:
            variants, objects = _code_for_gpus(program, targets, donated), toolchain.runtime(folder, FOR_CUDA)
        else:
            variants, objects = _code_for_cpus(program, targets, donated, toolchain, folder)
            objects += toolchain.runtime(folder, FOR_CPUS)
        inputs, outputs = _leaves(program, leaf_names(program.in_tree, arguments), variants, donated, initial)
        sizes = size_infos(program)
        manifest = _manifest(program, architecture, variants, inputs, outputs, sizes)
        constants = [_numpy(array) for array in program.captured]
        if is_for_gpus:
            contents = CudaContents(program.name, inputs, outputs, variants, constants, manifest)
        else:
            counts = element_counts(program)
            contents = Contents(program.name, inputs, outputs, variants, constants, manifest, sizes, counts)
        library = folder / "library.so"
        toolchain.link([toolchain.compile(contents.write(folder)), *objects], library)
        _finish(library, manifest, Path(path))


def _code_for_cpus(
    program: Program, targets: Sequence[Any], donated: Sequence[int], toolchain: Toolchain, folder: Path
) -> tuple[list[Variant], list[Path]]:
    """The variants of a library for CPUs, and their object files."""
    modules = [cache.native_module(program, target, donated) for target in targets]
    symbols = [_MAIN] if len(targets) == 1 else [f"tvmfun_main_{i}" for i in range(len(targets))]
    objects = [
        file
        for symbol, (module, _) in zip(symbols, modules, strict=True)
        for file in _objects(toolchain, module, folder, symbol)
    ]
    variants = [
        Variant(
            _described(target), required(lowering.architecture(target), machine.llvm_features(target)), symbol, plan
        )
        for target, symbol, (_, plan) in zip(targets, symbols, modules, strict=True)
    ]
    return variants, objects


def _code_for_gpus(program: Program, targets: Sequence[Any], donated: Sequence[int]) -> list[CudaVariant]:
    """The variants of a library for GPUs."""
    variants = []
    for target in targets:
        executable = cache.compile_program(program, target, donated)
        assert isinstance(executable, CudaExecutable)  # as sizes are static
        if executable.module.missing:
            what, hint = (
                "the kernels were not compiled to machine code",
                'pip install "tvmfun[cuda]", and compiling again',
            )
            raise ExportError("export", what, got=executable.module.missing, hint=hint)
        variants.append(CudaVariant(executable.module))
    return variants


def _resolved(target: Any) -> Any:
    """The target, or this machine's number of threads on the processor of this name."""
    if isinstance(target, str) and target not in ("llvm", "cpu", "cuda"):
        target = {"kind": "llvm", "mcpu": target, "num-cores": cpu_count()}
    return lowering.resolve(target)


def _is_for_gpus(targets: Sequence[Any]) -> bool:
    """Whether the targets are GPUs."""
    platforms = sorted(set(map(lowering.platform, targets)))
    if len(platforms) > 1:
        what, hint = "a library is for CPUs or for GPUs", "one library for each"
        raise ExportError("export", what, got=" and ".join(platforms), hint=hint)
    return platforms == ["cuda"]


def _architecture(targets: Sequence[Any]) -> str:
    """The one architecture of all targets; for GPUs, the host's."""
    found = {lowering.architecture(target if lowering.is_cpu(target) else target.host) for target in targets}
    if len(found) != 1:
        raise ExportError("export", "the targets must have one architecture", got=", ".join(sorted(found)) or "none")
    (architecture,) = found
    if architecture not in FEATURES:
        known = " or ".join(FEATURES)
        raise ExportError("export", f"the architecture must be {known}", got=architecture)
    return architecture


def _described(target: Any) -> str:
    return f"{target.attrs.get('mcpu', 'generic')} ({lowering.architecture(target)})"


def _objects(toolchain: Toolchain, module: NativeModule, folder: Path, symbol: str) -> list[Path]:
    """The object files of a module; joined to one file if ``main`` has to be renamed to this name."""
    with module.object_files() as files:
        kernels = [Path(shutil.copyfile(file, folder / f"{symbol}_{i}.o")) for i, file in enumerate(files)]
    return kernels if symbol == _MAIN else [toolchain.join(kernels, folder / f"{symbol}.o", _MAIN, symbol)]


def _manifest(
    program: Program,
    architecture: str,
    variants: Variants,
    inputs: Sequence[Leaf],
    outputs: Sequence[Leaf],
    sizes: Sequence[SizeInfo],
) -> bytes:
    """The manifest as JSON."""
    entries = {
        "abi_version": ABI_VERSION,
        "name": program.name,
        "versions": versions(),
        "architecture": architecture,
        "platform": variants[0].platform,
        "variants": [variant.entry() for variant in variants],
        "inputs": [leaf.entry() for leaf in inputs],
        "outputs": [leaf.entry() for leaf in outputs],
        "sizes": [size._asdict() for size in sizes],
        "arguments": described(program.in_tree),
        "results": described(program.out_tree),
    }
    return json.dumps(entries, separators=(",", ":")).encode()


def _leaves(
    program: Program,
    names: Sequence[str],
    variants: Variants,
    donated: Sequence[int],
    values: Mapping[str, np.ndarray],
) -> tuple[list[Leaf], list[Leaf]]:
    """The arguments and results, and which results are written over which arguments: by the plan of the first variant.

    Other variants may compute a result in other memory, from which the library copies it, but not in another argument.
    """
    before = len(program.captured)
    partners: dict[int, int] = {}  # by argument
    for result, slot in enumerate(variants[0].plan.results):
        if slot in donated:
            partners.setdefault(slot - before, result)
    over = {result: argument for argument, result in partners.items()}
    for variant in variants:
        for result, slot in enumerate(variant.plan.results):
            if result in over and slot < variant.plan.inputs and slot - before != over[result]:
                what = "the targets write results over different arguments"
                raise ExportError("export", what, got=variant.target, hint="one library for each target")
    for name, aval in zip(names, program.in_avals, strict=True):
        if name in values and dims.is_dynamic(aval.shape):
            raise ExportError("export", f"an initial value must have a static size, unlike {name}", got=repr(aval))
        if name in values and (values[name].shape, values[name].dtype) != (aval.shape, aval.dtype):
            got = f"{values[name].dtype}{list(values[name].shape)}"
            raise ExportError("export", f"the value of {name} must be {aval}", got=got)
    inputs = [
        Leaf(name, aval.shape, aval.dtype, partners.get(i, -1), i + before in donated, values.get(name))
        for i, (name, aval) in enumerate(zip(names, program.in_avals, strict=True))
    ]
    outputs = [
        Leaf(name, aval.shape, aval.dtype, over.get(i, -1))
        for i, (name, aval) in enumerate(zip(result_names(program.out_tree), program.out_avals, strict=True))
    ]
    return inputs, outputs


def _initial_values(
    structure: tree.Structure, arguments: Sequence[str], values: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The arrays of initial values, by the names of leaves.

    Args:
        structure: of ``(args, kwargs)``.
        arguments: the names of the arguments.
        values: trees by the names of arguments.

    Raises:
        ExportError: if there is no such argument.
        TreeError: if a tree has another structure than the argument.
    """
    children = dict(zip(arguments, [c for group in structure.children() for c in group.children()], strict=True))
    found: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if name not in children:
            raise ExportError("export", "values must be for arguments", got=repr(name), hint=", ".join(children))
        tree.check_same_structure("export", children[name], tree.structure(value), (name, "its value"))
        found.update({name + tree.keystr(path): _numpy(leaf) for path, leaf in tree.flatten_with_path(value)[0]})
    return found


def _numpy(array: Any) -> np.ndarray:
    return array.numpy() if isinstance(array, DeviceArray) else np.asarray(array)


def _finish(library: Path, manifest: bytes, path: Path) -> None:
    """Makes a container of the library, and gives the file its name."""
    with atomic_write(path) as partial:
        partial.write_bytes(sealed(library.read_bytes(), manifest))
        partial.chmod(0o755)
