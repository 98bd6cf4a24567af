"""Compile test programs for a processor, as a script: ``compile_programs.py TARGET``, a JSON dictionary.

Each line of the output names the programs of the LLVM module that is compiled next, so that whoever reads it can tell
which of them LLVM does not finish. The last line is ``done``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import tvm
from op_cases import CASES

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.core.op import REGISTRY
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native

_KERNELS_PER_MODULE = 24


def _count_above(dtype: str) -> Callable:
    """Count the elements above a threshold in arrays joined together: sums of masks that LLVM 22 did not finish."""
    return lambda a, b, c, t: tnp.sum((tnp.concatenate([a, b, c]) > t).astype(dtype))


def programs() -> Iterator[tuple[str, tvmfun.Program]]:
    """The test programs by name: every case of the table of ops, and some that fuse ops."""
    for name, cases in CASES.items():
        for i, case in enumerate(cases):
            call = lambda *arguments, op=REGISTRY[name], case=case: op(*arguments, **case.params)
            yield f"{name}-{i}", tvmfun.trace(call)(*case.arguments)
    for dtype in ("float64", "float32", "float16", "int32", "int8"):
        for sizes in ((12, 1, 12), (3, 4, 70), (64, 1, 64)):
            arrays = [tvmfun.ShapeDtype(shape, dtype) for shape in (*((n,) for n in sizes), ())]
            for counter in ("int32", "float32"):
                program = tvmfun.trace(_count_above(counter))(*arrays)
                yield f"count_above-{dtype}-{counter}-{sum(sizes)}", program
    rows = np.zeros((37, 21), np.float32)
    yield "softmax", tvmfun.trace(lambda x: tnp.exp(x) / tnp.sum(tnp.exp(x), axis=1, keepdims=True))(rows)
    yield "masked_mean", tvmfun.trace(lambda x: tnp.mean(tnp.where(x > 0, x, 0)[::-1], axis=0))(rows)


def main() -> None:
    """Compile all, telling what comes next."""
    target = targets.resolve(json.loads(sys.argv[1]))
    names: list[str] = []
    functions: dict[tvm.ir.GlobalVar, tvm.tirx.PrimFunc] = {}

    def compile_module() -> None:
        print(*names, flush=True)
        if functions:
            native.compiled(target, functions).inspect_source("asm")
        names.clear()
        functions.clear()

    for name, program in programs():
        names.append(name)
        for kernel in pipeline.scheduled_kernels(program, target):
            symbol = f"kernel_{len(functions)}"
            functions[tvm.ir.GlobalVar(symbol)] = kernel.function.with_attr("global_symbol", symbol)
        if len(functions) >= _KERNELS_PER_MODULE:
            compile_module()
    compile_module()
    print("done", flush=True)


if __name__ == "__main__":
    main()
