"""Every product of the timed steps with each of a few tiles, as modules that are timed on a GPU: ``nox -s gpu_tiles``.

What it writes is run by ``python -m tests.gpu.all --stages tiles``; ``python -m gpu.tiles`` makes the table of tiles of
the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

from bench.ours import Ours
from tvm import ir, tirx
from tvm.target import Target

import tvmfun
from gpu.predict import SM_90A, function_of
from gpu.steps import TIMED
from tvmfun.core.inline import inlined
from tvmfun.execute import input_positions
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower.codegen.cuda import compilers, cubins, launches, lowering
from tvmfun.lower.codegen.cuda.host_functions import CONSTANTS, Constants, HostFunction, workspace_bytes
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.schedule.gpu import tiles
from tvmfun.lower.schedule.gpu.measured_tiles import MEASURED
from tvmfun.runtime.cuda_module import ArrayType, CudaModule
from tvmfun.runtime.plan import Address, MemoryAnalysis, Plan

# The tiles of a product that are tried: those that the model takes for the fastest, with their splits of the terms.
_TRIED = 8


def module_of(function: tirx.PrimFunc, target: Target) -> CudaModule:
    """A scheduled kernel as a module whose inputs are all of its parameters."""
    compiler, options = compilers.find_compiler(), compilers.options_of(target)
    name = str(function.attrs.get("global_symbol", "kernel"))
    host, kernels = lowering.split({ir.GlobalVar(name): function.with_attr("global_symbol", name)}, target)
    texts = lowering.sources(kernels, target)
    ((_, body),) = host.functions.items()
    params = list(body.params)
    sizes = list(map(int, workspace_bytes(body, [Address(i) for i in range(len(params))])))
    block, offset, workspaces = len(params), 0, []
    for size in sizes:
        workspaces.append(Address(block, offset))
        offset += -(-size // 512) * 512
    constants = Constants()
    steps = HostFunction(body, [*map(Address, range(len(params))), *workspaces], texts, constants).steps()
    table = {slot: Address(slot) for slot in range(block + 1)} | {CONSTANTS: Address(block + 1)}
    code = cubins.compiled(texts.values(), compiler, options)
    plan = Plan(len(params), (), (), MemoryAnalysis(0, 0, 0, offset))
    types = tuple(ArrayType(tuple(map(int, param.shape)), str(param.dtype)) for param in function.params)
    placed = tuple(launches.placed(step, table) for step in steps)
    return CudaModule(options.arch, compiler.version, tuple(code), placed, plan, bytes(constants.content), types, ())


def products(name: str) -> Iterator[tuple[Kernel, InPlace, str, tuple[int, int, int, int]]]:
    """The distinct kernels of a step that are products, with the format and the sizes of each."""
    runner = Ours(TIMED[name])
    carry, batch = runner.types()
    lowered = tvmfun.jit(runner.run.__wrapped__, donate_argnums=0, target=SM_90A).lower(carry, batch)
    donated = input_positions(lowered.program, lowered.donated)
    program = inlined(lowered.program, "cuda")
    seen = set()
    for kernel, in_place in pipeline.fused_kernels(program, SM_90A, donated):
        if kernel.is_view or kernel.is_control or (kernel.text, in_place) in seen:
            continue
        seen.add((kernel.text, in_place))
        chosen: list[tuple] = []
        choose = lambda *arguments, chosen=chosen: chosen.append(arguments) or _CHOOSE(*arguments)
        with mock.patch.object(tiles, "choose", choose):
            _scheduled(kernel, in_place)
        if chosen:
            yield kernel, in_place, *chosen[-1][:2]


_CHOOSE = tiles.choose


def _scheduled(kernel: Kernel, in_place: InPlace) -> tirx.PrimFunc:
    """The kernel with the tile that is chosen now, which the cache does not know."""
    kernel_cache.clear_cache()
    return function_of(kernel, in_place)


def options(format: str, sizes: tuple[int, int, int, int]) -> list[tuple[tiles.Tile, int]]:
    """The tiles and splits to try, those first that the model prefers."""
    found = tiles.options(format, sizes, "sm_90a")
    found.sort(key=lambda option: tiles.predicted_seconds(option[0], format, sizes, "sm_90a", option[1]))
    small = [(t, n) for t, n in found[_TRIED:] if t.kind.instruction == "wgmma" and t.stages <= 3 and n == 1]
    return found[:_TRIED] + small


def written(name: str, is_known: bool) -> list[tuple[dict[str, Any], bytes]]:
    """The modules of a step's products; ``is_known`` tells whether also of those whose fastest tile is known."""
    result = []
    for kernel, in_place, format, sizes in products(name):
        if (format, *sizes) in MEASURED.get("sm_90a", {}) and not is_known:
            continue
        for tile, splits in options(format, sizes):
            with mock.patch.object(tiles, "choose", lambda *_, tile=tile, splits=splits: (tile, splits)):
                function = _scheduled(kernel, in_place)
            about = {"kind": "kernel", "step": name, "title": kernel.name, "format": format, "sizes": sizes}
            about |= {"tile": tile.key, "splits": splits}
            about["name"] = f"{name}: {kernel.name} {'x'.join(map(str, sizes))} {about['tile']} / {splits}"
            try:
                module = module_of(function, SM_90A)
            except Exception as error:
                print(f"{about['name']}: {str(error)[:200]}", file=sys.stderr)
                continue
            about["registers"] = max(usage.registers for cubin in module.cubins for usage in cubin.usage)
            result.append((about, module.pack()))
    return result


def main(*arguments: str) -> None:
    """Writes the file that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("build/tiles.zip"))
    parser.add_argument("--steps", nargs="*", metavar="NAME", default=list(TIMED), help="; ".join(TIMED))
    parser.add_argument("--known", action="store_true", help="also products that the table has")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="0 for this one")
    chosen = parser.parse_args(arguments)
    index: dict[str, Any] = {"arch": "sm_90a", "entries": [], "failed": {}}
    make = partial(written, is_known=chosen.known)
    with zipfile.ZipFile(chosen.into, "w", zipfile.ZIP_DEFLATED) as file, ExitStack() as stack:
        map_: Callable = map
        if chosen.processes:
            map_ = stack.enter_context(ProcessPoolExecutor(chosen.processes, get_context("spawn"))).map
        for made in map_(make, chosen.steps):
            for about, content in made:
                folder = str(len(index["entries"]))
                file.writestr(f"{folder}/module", content)
                file.writestr(f"{folder}/module.captured", b"")
                index["entries"].append({**about, "folder": folder, "module.captured": 0})
        file.writestr("index.json", json.dumps(index))
    print(f"{chosen.into}: {len(index['entries'])} modules, {chosen.into.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
