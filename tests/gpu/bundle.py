"""Compiles everything that is checked on a GPU, and puts it into one file with what the CPU says about it.

Run by ``nox -s gpu_bundle`` on a machine with TVM and a compiler of CUDA, but without a GPU. After that
``python -m tests.gpu.all`` needs neither.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from bench.case import Case
from bench.ours import Ours
from support.gpu_modules import module_of

import tvmfun
from gpu import steps
from gpu.programs import Comparison, comparisons
from tvmfun import tree

ARCH = "sm_90a"
#: The steps whose losses are compared.
STEPS = 50

#: The files of an entry, by name, and what the index says about it.
Entry = tuple[dict[str, bytes], dict[str, Any]]


def compiled(name: str, function: Callable, arguments: Sequence[Any], arch: str, **options: Any) -> Entry:
    """The function as a module for a GPU, packed, and the arrays that it captures, which are its first arguments.

    Where it has dynamic sizes, the module is that for the sizes of the arguments.
    """
    lowered = tvmfun.jit(function, target={"kind": "cuda", "arch": arch}, **options).lower(*arguments)
    module = module_of(lowered)
    if lowered.program.sizes:
        module = module.at(lowered.program.solve(list(map(tvmfun.typeof, tree.leaves(arguments)))))
    module.check_code()
    captured = lowered.program.captured
    return {name: module.pack(), f"{name}.captured": _packed(captured)}, {f"{name}.captured": len(captured)}


def _packed(values: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in tree.leaves(values))


def compared(comparison: Comparison, arch: str) -> Entry:
    """A function beside the CPU's results."""
    function = comparison.function
    dynamic = {"dynamic_shapes": comparison.dynamic_shapes} if comparison.dynamic_shapes else {}
    files, about = compiled("module", function, comparison.arguments, arch, **dynamic)
    files |= {"arguments": _packed(comparison.arguments)}
    files |= {"expected": _packed(tvmfun.jit(function)(*comparison.arguments))}
    return files, {**about, "kind": "comparison", "exact": comparison.is_exact, "format": comparison.format}


def _start(runner: Ours, params: Any, state: Any) -> Any:
    return params, state, runner.transform.init(params), tvmfun.random.key(0)


def stepped(case: Case, arch: str, kind: str) -> Entry:
    """A training step, and the module that makes its first state; for a trained one with the losses of the CPU."""
    runner = Ours(case)
    carry, batch = runner.types()
    step = runner.run.__wrapped__
    files, about = compiled("step", step, (carry, batch), arch, donate_argnums=0)
    start, about_start = compiled("start", partial(_start, runner), carry[:2], arch)
    about |= {**about_start, "kind": kind, "precision": case.precision, "flop": case.flop}
    if kind == "trained":
        runner.load()
        about["losses"] = [runner.step() for _ in range(STEPS)]
    return {**files, **start}, about


def _work(arch: str, kind: str, name: str) -> Entry | str:
    """An entry, made in a process of its own; or why there is none."""
    try:
        if kind == "comparison":
            return compared(comparisons()[name], arch)
        return stepped((steps.TRAINED if kind == "trained" else steps.TIMED)[name], arch, kind)
    except Exception:
        return traceback.format_exc(limit=-3)


def names() -> Iterable[tuple[str, str]]:
    """The kind and the name of all entries."""
    yield from (("comparison", name) for name in comparisons())
    yield from (("trained", name) for name in steps.TRAINED)
    yield from (("timed", name) for name in steps.TIMED)


def write(path: Path, entries: Sequence[tuple[str, str]], arch: str, map_: Callable = map) -> dict[str, str]:
    """Writes the file; returns for entries that cannot be made the reason.

    Args:
        path: the file.
        entries: the kind and the name of each.
        arch: the architecture of the GPU.
        map_: maps like ``map``, maybe in several processes.
    """
    index: dict[str, Any] = {"arch": arch, "entries": [], "failed": {}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        made = map_(_work, [arch] * len(entries), *zip(*entries, strict=True))
        for i, ((kind, name), entry) in enumerate(zip(entries, made, strict=True)):
            if isinstance(entry, str):
                index["failed"][name] = entry
                print(f"{kind} {name}: {entry}", file=sys.stderr)
                continue
            files, about = entry
            for part, content in files.items():
                file.writestr(f"{i}/{part}", content)
            index["entries"].append({**about, "name": name, "folder": str(i)})
        file.writestr("index.json", json.dumps(index))
    return index["failed"]


def main(*arguments: str) -> None:
    """Writes the file that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("build/gpu.zip"))
    parser.add_argument("--arch", default=ARCH)
    parser.add_argument("--only", default="", help="entries whose name matches this expression")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    chosen = [entry for entry in names() if re.search(options.only, entry[1])]
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        failed = write(options.into, chosen, options.arch, pool.map)
    size = options.into.stat().st_size / 2**20
    print(f"{options.into}: {len(chosen) - len(failed)} of {len(chosen)} entries, {size:.1f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
