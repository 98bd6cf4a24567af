"""Checks and times everything on a GPU: ``python -m tests.gpu.all``, which needs neither TVM nor a compiler.

It reads the file that ``nox -s gpu_bundle`` wrote, compares all functions with the CPU's results, trains for some steps
beside the CPU's losses, and times training steps, also PyTorch's and JAX's. The results are one JSON file, which
``python -m tests.gpu.report`` turns into tables. What there was no time for is listed there.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
import traceback
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from tvmfun.runtime.cuda.devices import Block, device_at
from tvmfun.runtime.cuda_module import ArrayType, CudaModule

from . import peers, runtime, timing, workers
from .runtime import LoadedModule
from .workers import Worker, WorkerError

ROOT = Path(__file__).parents[2]
#: The largest difference, relative to the largest expected number, by the format of the numbers.
TOLERANCES = {"float64": 1e-9, "float32": 3e-5, "tensorfloat32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2}
#: The same for losses after up to ten steps, and later: rounding grows while training.
_LOSS_TOLERANCES = {"float32": (1e-3, 3e-2), "bfloat16": (2e-2, 1e-1), "tensorfloat32": (5e-3, 5e-2)}


class Bundle:
    """The file that was written on a machine with TVM."""

    def __init__(self, path: Path) -> None:
        self._file = zipfile.ZipFile(path)
        self.index = json.loads(self._file.read("index.json"))

    def entries(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The names of a kind's entries, and what the index says about each."""
        for about in self.index["entries"]:
            if about["kind"] == kind:
                yield about["name"], about

    def read(self, about: dict[str, Any], part: str) -> bytes:
        """A file of an entry."""
        return self._file.read(f"{about['folder']}/{part}")

    def load(self, about: dict[str, Any], part: str, name: str) -> LoadedModule:
        """A module of an entry."""
        content = self.read(about, part)
        kinds = CudaModule.unpack(content, name).inputs[: about[f"{part}.captured"]]
        arrays = _arrays(self.read(about, f"{part}.captured"), kinds)
        return LoadedModule(content, name, list(map(_put, arrays)))


def _put(content: bytes) -> Block:
    return runtime.put(np.frombuffer(content, np.uint8))


def _arrays(content: bytes, kinds: Sequence[ArrayType]) -> Iterator[bytes]:
    start = 0
    for kind in kinds:
        yield content[start : start + kind.nbytes]
        start += kind.nbytes


def difference(got: np.ndarray, expected: np.ndarray, format: str, is_exact: bool) -> float:
    """The distance of results from the expected ones, in units of what is allowed; above 1 is wrong."""
    tolerance = TOLERANCES.get(format)
    if tolerance is None or is_exact:
        same = np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f")
        return 0.0 if same else float("inf")
    finite = np.isfinite(expected)
    with np.errstate(invalid="ignore"):
        odd = (got != expected) & ~(np.isnan(got) & np.isnan(expected)) & ~finite
        errors = np.where(finite, np.abs(got.astype(np.float64) - expected), 0.0)
    if odd.any() or np.isnan(errors).any():
        return float("inf")
    largest = np.abs(expected[finite]).max(initial=0.0)
    return float(errors.max(initial=0.0) / (tolerance * (1 + largest)))


def _detail(got: np.ndarray, expected: np.ndarray) -> str:
    """The elements that differ most, for a report."""
    with np.errstate(invalid="ignore"):
        errors = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    errors = np.where(np.isnan(errors), np.inf, errors)
    where = np.argsort(-errors, axis=None)[:6]
    rows = [f"{np.unravel_index(i, got.shape)}: {got.flat[i]} for {expected.flat[i]}" for i in where]
    return f"{np.count_nonzero(got != expected)} of {got.shape} differ; " + "; ".join(rows)


def compare(bundle: Bundle, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Runs a function; returns the largest difference of its results from the CPU's."""
    module = bundle.load(about, "module", name)
    kinds = module.module
    inputs = list(map(_put, _arrays(bundle.read(about, "arguments"), kinds.inputs[len(module.captured) :])))
    expected = list(_arrays(bundle.read(about, "expected"), kinds.results))
    found = {"difference": 0.0, "detail": ""}
    for i, (block, kind, content) in enumerate(zip(module(inputs), kinds.results, expected, strict=True)):
        got, right = runtime.get(block, kind), runtime.decoded(content, kind)
        format = about["format"] if kind.dtype == "float32" else kind.dtype
        value = difference(got, right, format, about["exact"])
        if value > found["difference"]:
            found = {"difference": value, "detail": f"result {i}: {_detail(got, right)}" if value > 1 else ""}
    return found


class Training:
    """A training step on the GPU, with its state and a batch."""

    def __init__(self, bundle: Bundle, name: str, about: dict[str, Any]) -> None:
        from gpu import steps

        params, state, batch = (steps.TRAINED if about["kind"] == "trained" else steps.TIMED)[name].arrays()
        start = bundle.load(about, "start", f"{name}, start")
        inputs = [runtime.put(values[key]) for values in (params, state) for key in sorted(values)]
        self.step = bundle.load(about, "step", name)
        self.carry = runtime.distinct(start(inputs), start.module)
        self.batch = [runtime.put(batch[key]) for key in sorted(batch)]

    def run(self) -> Any:
        """Starts a step; returns the loss, which is on the GPU."""
        *self.carry, loss = self.step([*self.carry, *self.batch])
        return loss

    def loss(self) -> float:
        """The loss of a step."""
        return float(runtime.get(self.run(), self.step.module.results[-1]))

    def synchronize(self) -> None:
        """Waits until all steps are done."""
        self.step.stream.synchronize()


def train(bundle: Bundle, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Runs steps; returns how far the losses are from the CPU's, in units of what is allowed."""
    training = Training(bundle, name, about)
    early, late = _LOSS_TOLERANCES[about["precision"]]
    worst, losses = 0.0, []
    for i, expected in enumerate(about["losses"]):
        losses.append(training.loss())
        # Rounding errors of losses near zero are those of larger terms.
        scale = max(abs(expected), 0.1 * abs(about["losses"][0]))
        error = abs(losses[-1] - expected) / (early if i < 10 else late) / scale
        worst = max(worst, error if error == error else float("inf"))
    rows = zip(losses, about["losses"], strict=True)
    return {"difference": worst, "detail": "; ".join(f"{got:.5g} for {right:.5g}" for got, right in rows)}


def time_step(bundle: Bundle, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """The milliseconds and the bytes of a step, and the microseconds of each of its kernels."""
    with workers.shared():
        training = Training(bundle, name, about)
        losses = [training.loss() for _ in range(3)]
    module = training.step.module
    with workers.exclusive():
        milliseconds = timing.milliseconds(training.run, training.synchronize)
        kernels = timing.profile(training.step, [*training.step.captured, *training.carry, *training.batch])
    return {
        "ms": milliseconds,
        "losses": losses,
        "bytes": module.plan.analysis.peak,
        "launches": sum(1 for _ in module.launches()),
        "flop": about["flop"],
        "kernels": kernels,
    }


def time_kernel(bundle: Bundle, name: str, about: dict[str, Any]) -> float:
    """The microseconds of a function, launched some times in a row."""
    with workers.shared():
        module = bundle.load(about, "module", name)
        inputs = [runtime.filled(kind, i) for i, kind in enumerate(module.module.inputs)]
    with workers.exclusive():
        return timing.microseconds(module, inputs)


def time_peer(bundle: Bundle, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """The milliseconds and the bytes of the same step in PyTorch or JAX."""
    return peers.peer(about["name"], about["framework"])


def _of_frameworks(bundle: Bundle) -> Iterator[tuple[str, dict[str, Any]]]:
    """The timed steps in each framework."""
    for name, _ in bundle.entries("timed"):
        for framework in peers.frameworks(name):
            yield f"{name}: {framework}", {"name": name, "framework": framework}


class Stage(NamedTuple):
    """A stage.

    Args:
        call: what is done with each entry.
        entries: their names, and what the index says about each.
        share: the share of the time that is left which it may take.
        limit: the seconds for an entry.
        processes: how many entries run at the same time.
    """

    call: Callable[[Bundle, str, dict[str, Any]], Any]
    entries: Callable[[Bundle], Iterator[tuple[str, dict[str, Any]]]]
    share: float
    limit: float
    processes: int


def _of_kind(kind: str) -> Callable[[Bundle], Iterator[tuple[str, dict[str, Any]]]]:
    return lambda bundle: bundle.entries(kind)


#: The stages, in order; besides them there is ``sanitizer``.
STAGES = {
    "comparison": Stage(compare, _of_kind("comparison"), 0.4, 20, 6),
    "trained": Stage(train, _of_kind("trained"), 0.4, 60, 4),
    "timed": Stage(time_step, _of_kind("timed"), 0.7, 90, 6),
    "tiles": Stage(time_kernel, _of_kind("kernel"), 0.8, 20, 8),
    "peers": Stage(time_peer, _of_frameworks, 0.8, 200, 6),
}


def _taken(entries: deque) -> tuple[str, dict[str, Any]] | None:
    """The next entry, which no other thread gets; None if there is none."""
    try:
        return entries.popleft()
    except IndexError:
        return None


def _prepared(path: Path) -> Callable[[str, str, dict[str, Any]], Any]:
    """Runs in a worker: opens the file, and returns the function that runs an entry."""
    bundle = Bundle(path)
    return lambda stage, name, about: STAGES[stage].call(bundle, name, about)


class Run:
    """All stages, until there is no time left.

    Args:
        bundle: what to run.
        path: its file.
        seconds: the time for it.
        only: an expression that is found in the names of the entries that run.
        is_isolated: whether entries run in processes of their own, some at the same time.
    """

    def __init__(self, bundle: Bundle, path: Path, seconds: float, only: str, is_isolated: bool) -> None:
        self.bundle = bundle
        self._path = path
        self._only = re.compile(only)
        self._end = time.monotonic() + seconds
        self._is_isolated = is_isolated
        self.left_out: list[str] = []
        self.errors: dict[str, str] = {}

    @property
    def seconds_left(self) -> float:
        """The time that is left."""
        return self._end - time.monotonic()

    def stage(self, stage: str) -> dict[str, Any]:
        """The results of a stage by entry, as far as the time allows."""
        about = STAGES[stage]
        end = time.monotonic() + about.share * self.seconds_left
        entries = deque(entry for entry in about.entries(self.bundle) if self._only.search(entry[0]))
        results: dict[str, Any] = {}

        def work() -> None:
            worker = Worker(_prepared, self._path)
            while (next_one := _taken(entries)) is not None:
                name, entry = next_one
                if time.monotonic() > end:
                    self.left_out.append(f"{stage}: {name}")
                    continue
                try:
                    results[name] = self._result(worker, stage, name, entry, max(5, end - time.monotonic()))
                except WorkerError as error:
                    self.errors[f"{stage}: {name}"] = str(error)
            worker.close()

        if self._is_isolated:
            threads = [Thread(target=work) for _ in range(about.processes)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            work()
        return results

    def _result(self, worker: Worker, stage: str, name: str, entry: dict[str, Any], seconds: float) -> Any:
        """The result of an entry; where it fails in a process of its own, once more with each kernel waited for."""
        if not self._is_isolated:
            try:
                return STAGES[stage].call(self.bundle, name, entry)
            except Exception as error:
                raise WorkerError("".join(traceback.format_exception(error, limit=-4))) from None
        limit = min(seconds, STAGES[stage].limit)
        try:
            return worker(stage, name, entry, seconds=limit)
        except WorkerError as error:
            if stage == "peers":
                raise
            first = str(error)
        blocking = Worker(_prepared, self._path, environment={"CUDA_LAUNCH_BLOCKING": "1"})
        try:
            blocking(stage, name, entry, seconds=limit)
        except WorkerError as error:
            raise WorkerError(f"{first}\nWith each kernel waited for: {error}") from None
        finally:
            blocking.close()
        raise WorkerError(f"{first}\nWith each kernel waited for it ends.")

    def sanitizer(self) -> dict[str, Any]:
        """The reports of compute-sanitizer about a sample of functions."""
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(tool).exists():
            self.left_out.append("sanitizer: there is no compute-sanitizer")
            return {}
        found = {}
        for check in ("memcheck", "racecheck"):
            command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "tests.gpu.all"]
            command += ["--bundle", str(self._path), "--stages", "comparison", "--every", "40", "--out", "/dev/null"]
            command += ["--in-process"]
            limit = max(10, 0.4 * self.seconds_left)
            try:
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
                found[check] = {"rc": done.returncode, "output": done.stdout[-1500:]}
            except subprocess.TimeoutExpired:
                self.left_out.append(f"sanitizer: {check} took more than {limit:.0f} s")
        return found


def main(*arguments: str) -> int:
    """Runs the stages; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("build/gpu.zip"))
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--seconds", type=float, default=460, help="the time for all stages")
    stages = (*STAGES, "sanitizer")
    parser.add_argument("--stages", nargs="+", choices=stages, default=stages)
    parser.add_argument("--only", default="", help="entries whose name matches this expression")
    parser.add_argument("--every", type=int, default=1, help="run one of so many functions")
    parser.add_argument("--in-process", action="store_true", help="run entries in this process, for a debugger")
    options = parser.parse_args(arguments)
    bundle = Bundle(options.bundle)
    skipped = {name for i, (name, _) in enumerate(bundle.entries("comparison")) if i % options.every}
    bundle.index["entries"] = [about for about in bundle.index["entries"] if about["name"] not in skipped]
    run = Run(bundle, options.bundle, options.seconds, options.only, not options.in_process)
    device = device_at(0)
    report: dict[str, Any] = {"gpu": device.name, "arch": bundle.index["arch"], "not compiled": bundle.index["failed"]}
    for stage in options.stages:
        started = time.monotonic()
        try:
            report[stage] = run.sanitizer() if stage == "sanitizer" else run.stage(stage)
        except Exception as error:
            run.errors[stage] = "".join(traceback.format_exception(error, limit=-4))
        print(f"{stage}: {time.monotonic() - started:.0f} s", flush=True)
        report |= {"left out": run.left_out, "errors": run.errors}
        options.out.write_text(json.dumps(report, indent=1))
    compared = {**report.get("comparison", {}), **report.get("trained", {})}
    wrong = {name: found for name, found in compared.items() if not found["difference"] <= 1}
    for name, found in wrong.items():
        print(f"wrong by {found['difference']:.3g} times what is allowed: {name}: {found['detail']}")
    for name, error in run.errors.items():
        print(f"{name}: {error}")
    for name in run.left_out:
        print(f"left out: {name}")
    print(f"{len(compared) - len(wrong)} of {len(compared)} are right; {len(run.errors)} errors")
    return int(bool(wrong or run.errors))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests")]
    raise SystemExit(main(*sys.argv[1:]))
