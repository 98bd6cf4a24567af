"""Programs read from texts, compiled and run in other processes, so that a crash or a hang can be seen.

Arguments lie against pages that cannot be read: a kernel that reads beyond them ends its process.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import resource
import selectors
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tvm

import tvmfun
from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype, interned, on_device
from tvmfun.core.inline import subprograms
from tvmfun.core.program import Program
from tvmfun.errors import TvmfunError
from tvmfun.program_text.reader import Reader

#: A text that takes longer hangs, also where other processes have most of the processor.
MOST_SECONDS = 300
# Larger Programs are compiled, but not run: elements of an array, and steps of loops within each other.
_MOST_ELEMENTS = 2**20
_MOST_STEPS = 2**12
_MOST_BYTES = 12 * 2**30
_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
_KEPT: list[Any] = []


class Outcome(NamedTuple):
    """The outcome of one text: ``ran``, ``compiled``, the class of an error, or a text that begins with ``BAD``."""

    text: str
    outcome: str

    @property
    def is_bad(self) -> bool:
        """Whether the process ended or hung, or there was an error of another class than the library's."""
        return self.outcome.startswith("BAD")


# -- the process that runs them ----------------------------------------------------------------------------------------


def _guarded(x: np.ndarray) -> Array:
    """An array of the same elements whose last page is followed, and whose first is preceded, by unreadable memory."""
    size = -(-x.nbytes // _ALIGNMENT) * _ALIGNMENT
    inner = max(1, -(-size // _PAGE)) * _PAGE
    pages = mmap.mmap(-1, inner + 2 * _PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for guard in (base, base + _PAGE + inner):
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(_PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    words = np.frombuffer(pages, f"u{x.dtype.itemsize}", x.size, _PAGE + inner - size)
    words[:] = x.reshape(-1).view(words.dtype)
    _KEPT.append(pages)
    tensor: Any = tvm.runtime.from_dlpack(words)
    aval = ShapeDtype(x.shape, x.dtype)
    return on_device(tensor._create_view(x.shape, dtypes.NAMES[aval.dtype]), interned(aval))


def _argument(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers near 0, some of them special."""
    if dtype == dtypes.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    is_integer = dtypes.is_integer(dtype)
    x = np.asarray(rng.integers(0 if dtype.kind == "u" else -3, 6, shape) if is_integer else rng.normal(size=shape))
    x = x.astype(dtype)
    if x.size and rng.random() < 0.5:
        info = np.iinfo(dtype) if is_integer else None
        special = [info.min, info.max] if info else [np.nan, np.inf, -np.inf, 0]
        x.flat[rng.integers(0, x.size)] = special[rng.integers(0, len(special))]
    return x


def _elements(program: Program) -> int:
    """The elements of the largest array."""
    avals = [*program.in_avals, *(variable.aval for e in program.equations for variable in e.outputs)]
    inner = [_elements(one) for e in program.equations for one in subprograms(tuple(e.params.values()))]
    return max([0, *(dims.typical(aval.size) for aval in avals), *inner])


def _steps(program: Program) -> float:
    """The steps of loops within each other; infinite if data decides."""
    found: list[float] = [1]
    for equation in program.equations:
        length = equation.params.get("length", 1)
        count = math.inf if length is None else dims.typical(length)
        found += [count * _steps(one) for one in subprograms(tuple(equation.params.values()))]
    return max(found)


def _run(text: str, seed: int) -> str:
    program = Reader(text).read()
    compiled = tvmfun.jit(program).lower(*program.in_avals).compile()
    if _elements(program) > _MOST_ELEMENTS or _steps(program) > _MOST_STEPS:
        return "compiled"
    rng = np.random.default_rng(seed)
    sizes = {name: int(max(3, dim.bounds[0])) for name, dim in program.sizes.items()}
    shapes = [dims.at(aval.shape, sizes) for aval in program.in_avals]
    arguments = [_argument(rng, shape, aval.dtype) for shape, aval in zip(shapes, program.in_avals, strict=True)]
    for result in tvmfun.tree.leaves(compiled(*map(_guarded, arguments))):
        np.asarray(result)
    return "ran"


def _main() -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what TVM prints is no answer
    for line in sys.stdin:
        seed, text = json.loads(line)
        try:
            outcome = _run(text, seed)
        except TvmfunError as error:
            outcome = type(error).__name__
        except Exception:
            outcome = "BAD: " + traceback.format_exc()
        print(json.dumps(outcome), file=answers, flush=True)
        _KEPT.clear()


# -- the process that asks ---------------------------------------------------------------------------------------------


def outcomes(texts: Iterable[str]) -> Iterator[Outcome]:
    """Reads, compiles and runs texts in another process, which is started again after a crash or a hang."""
    worker: subprocess.Popen[str] | None = None
    try:
        for seed, text in enumerate(texts):
            worker = worker or _started()
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(json.dumps([seed, text]) + "\n")
            worker.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(worker.stdout, selectors.EVENT_READ)
                answer = worker.stdout.readline() if selector.select(MOST_SECONDS) else None
            if answer:
                yield Outcome(text, json.loads(answer))
                continue
            status = _end(worker)
            worker = None
            yield Outcome(text, "BAD: it hangs" if answer is None else f"BAD: it ended with {status}")
    finally:
        if worker is not None:
            _end(worker)


def _started() -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TVMFUN_CACHE_DIR": "",
        "TVMFUN_NUM_THREADS": "1",
        # Memory that is freed or not yet written is not 0.
        "MALLOC_PERTURB_": "165",
    }
    command = [sys.executable, "-m", "support.run_texts"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )


def _end(worker: subprocess.Popen[str]) -> int:
    """Ends a process, if it has not ended, and returns its status."""
    ended = worker.poll()
    worker.kill()
    with worker:
        pass
    return worker.returncode if ended is None else ended


if __name__ == "__main__":
    _main()
