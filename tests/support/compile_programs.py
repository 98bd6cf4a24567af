"""Compile test programs for processors, as a script: ``compile_programs.py TARGETS``, JSON dictionaries by name.

Each line of the output names a processor and the programs of the LLVM module that is compiled next for it, so that
whoever reads it can tell which of them LLVM does not finish. The last line is ``done``.
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
# The cases of an op are divided among the processors in so many parts; every processor has one of each op.
_PARTS = 5


def _count_above(dtype: str) -> Callable:
    """Count the elements above a threshold in arrays joined together: sums of masks that LLVM 22 did not finish."""
    return lambda a, b, c, t: tnp.sum((tnp.concatenate([a, b, c]) > t).astype(dtype))


def programs() -> Iterator[list[tuple[str, tvmfun.Program]]]:
    """The test programs with their names, in groups: the cases of each op of the table, and some that fuse ops."""
    for name, cases in CASES.items():
        calls = [lambda *arguments, op=REGISTRY[name], case=case: op(*arguments, **case.params) for case in cases]
        traced = [tvmfun.trace(call)(*case.arguments) for call, case in zip(calls, cases, strict=True)]
        yield [(f"{name}-{i}", program) for i, program in enumerate(traced)]
    for dtype in ("float64", "float32", "float16", "int32", "int8"):
        for sizes in ((12, 1, 12), (3, 4, 70), (64, 1, 64)):
            arrays = [tvmfun.ShapeDtype(shape, dtype) for shape in (*((n,) for n in sizes), ())]
            for counter in ("int32", "float32"):
                program = tvmfun.trace(_count_above(counter))(*arrays)
                # Alone, so that every processor has all: which of them LLVM did not finish depended on the lanes.
                yield [(f"count_above-{dtype}-{counter}-{sum(sizes)}", program)]
    rows = np.zeros((37, 21), np.float32)
    yield [("softmax", tvmfun.trace(lambda x: tnp.exp(x) / tnp.sum(tnp.exp(x), axis=1, keepdims=True))(rows))]
    yield [("masked_mean", tvmfun.trace(lambda x: tnp.mean(tnp.where(x > 0, x, 0)[::-1], axis=0))(rows))]


def compile_all(processor: str, target: tvm.target.Target, chosen: list[tuple[str, tvmfun.Program]]) -> None:
    """Compile programs for a processor, telling what comes next."""
    names: list[str] = []
    functions: dict[tvm.ir.GlobalVar, tvm.tirx.PrimFunc] = {}

    def compile_module() -> None:
        print(f"{processor}:", *names, flush=True)
        if functions:
            native.compiled(target, functions).inspect_source("asm")
        names.clear()
        functions.clear()

    for name, program in chosen:
        names.append(name)
        for kernel in pipeline.scheduled_kernels(program, target):
            symbol = f"kernel_{len(functions)}"
            functions[tvm.ir.GlobalVar(symbol)] = kernel.function.with_attr("global_symbol", symbol)
        if len(functions) >= _KERNELS_PER_MODULE:
            compile_module()
    compile_module()


def main() -> None:
    """Compile a part of the programs for each processor: each program for a fifth of them, and each group for all."""
    groups = list(programs())
    for number, (processor, target) in enumerate(json.loads(sys.argv[1]).items()):
        parts = [group[number % min(len(group), _PARTS) :: _PARTS] for group in groups if group]
        compile_all(processor, targets.resolve(target), [program for part in parts for program in part])
    print("done", flush=True)


if __name__ == "__main__":
    main()
