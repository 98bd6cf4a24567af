"""Checks and times everything on a GPU: ``python -m tests.gpu.all``, which needs neither TVM nor a compiler.

It reads the file that ``nox -s gpu_bundle`` wrote, compares all functions with the CPU's results, trains for some steps
beside the CPU's losses, and times training steps, also PyTorch's and JAX's. The results are one JSON file, which
``python -m tests.gpu.report`` turns into tables. What there was no time for is listed there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmfun.runtime.cuda.devices import Block, device_at
from tvmfun.runtime.cuda_module import ArrayType, CudaModule

from . import runtime, timing
from .runtime import LoadedModule

ROOT = Path(__file__).parents[2]
#: The largest difference, relative to the largest expected number, by dtype.
TOLERANCES = {"float64": 1e-9, "float32": 3e-5, "float16": 2e-3, "bfloat16": 2e-2}
#: The same for losses after up to ten steps, and later: rounding grows while training.
_LOSS_TOLERANCES = {"float32": (1e-3, 3e-2), "bfloat16": (2e-2, 1e-1), "tensorfloat32": (5e-3, 5e-2)}
#: The stages, in order.
STAGES = ("comparison", "trained", "timed", "peers", "profile", "sanitizer")


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


def difference(got: np.ndarray, expected: np.ndarray, kind: ArrayType, is_exact: bool) -> float:
    """The distance of results from the expected ones, in units of what is allowed; above 1 is wrong."""
    tolerance = TOLERANCES.get(kind.dtype)
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


def compare(bundle: Bundle, name: str, about: dict[str, Any]) -> float:
    """Runs a function; returns the largest difference of its results from the CPU's."""
    module = bundle.load(about, "module", name)
    kinds = module.module
    inputs = list(map(_put, _arrays(bundle.read(about, "arguments"), kinds.inputs[len(module.captured) :])))
    expected = list(_arrays(bundle.read(about, "expected"), kinds.results))
    return max(
        (
            difference(runtime.get(block, kind), runtime.decoded(content, kind), kind, about["exact"])
            for block, kind, content in zip(module(inputs), kinds.results, expected, strict=True)
        ),
        default=0.0,
    )


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


def train(bundle: Bundle, name: str, about: dict[str, Any]) -> float:
    """Runs steps; returns how far the losses are from the CPU's, in units of what is allowed."""
    training = Training(bundle, name, about)
    early, late = _LOSS_TOLERANCES[about["precision"]]
    worst = 0.0
    for i, expected in enumerate(about["losses"]):
        error = abs(training.loss() - expected) / (early if i < 10 else late) / (1e-3 + abs(expected))
        worst = max(worst, error if error == error else float("inf"))
    return worst


class Run:
    """All stages, until there is no time left.

    Args:
        bundle: what to run.
        seconds: the time for it.
    """

    def __init__(self, bundle: Bundle, path: Path, seconds: float) -> None:
        self.bundle = bundle
        self._path = path
        self._end = time.monotonic() + seconds
        self.left_out: list[str] = []
        self.errors: dict[str, str] = {}

    @property
    def seconds_left(self) -> float:
        """The time that is left."""
        return self._end - time.monotonic()

    def each(
        self, stage: str, kind: str, call: Callable[[str, dict[str, Any]], Any], share: float = 1.0
    ) -> dict[str, Any]:
        """The results of a call for the entries of a kind, as far as a share of the time that is left allows."""
        end = time.monotonic() + share * self.seconds_left
        results = {}
        for name, about in self.bundle.entries(kind):
            if time.monotonic() > end:
                self.left_out.append(f"{stage}: {name}")
                continue
            try:
                results[name] = call(name, about)
            except Exception as error:
                self.errors[f"{stage}: {name}"] = "".join(traceback.format_exception(error, limit=-4))
        return results

    def comparison(self) -> dict[str, float]:
        """Differences of functions."""
        return self.each("comparison", "comparison", lambda name, about: compare(self.bundle, name, about), 0.4)

    def trained(self) -> dict[str, float]:
        """Differences of losses."""
        return self.each("trained", "trained", lambda name, about: train(self.bundle, name, about), 0.4)

    def timed(self) -> dict[str, Any]:
        """The milliseconds and the bytes of steps."""

        def timed(name: str, about: dict[str, Any]) -> dict[str, Any]:
            training = Training(self.bundle, name, about)
            analysis = training.step.module.plan.analysis
            milliseconds = timing.milliseconds(training.run, training.synchronize)
            launches = sum(1 for _ in training.step.module.launches())
            return {"ms": milliseconds, "bytes": analysis.peak, "launches": launches, "flop": about["flop"]}

        return self.each("timed", "timed", timed, 0.4)

    def profile(self) -> dict[str, Any]:
        """The microseconds of each kernel of steps."""

        def profiled(name: str, about: dict[str, Any]) -> list[dict[str, Any]]:
            training = Training(self.bundle, name, about)
            training.loss()
            return timing.profile(training.step, [*training.step.captured, *training.carry, *training.batch])

        return self.each("profile", "timed", profiled, 0.7)

    def peers(self) -> dict[str, Any]:
        """The milliseconds of the same steps in PyTorch and JAX, each in a process of its own."""

        def peers(name: str, about: dict[str, Any]) -> dict[str, Any]:
            command = [sys.executable, "-m", "tests.gpu.peers", name]
            limit = max(10.0, min(120.0, self.seconds_left))
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            return json.loads(done.stdout.splitlines()[-1])

        return self.each("peers", "timed", peers, 0.8)

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
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(10, self.seconds_left))
            found[check] = {"rc": done.returncode, "output": done.stdout[-1500:]}
        return found


def main(*arguments: str) -> int:
    """Runs the stages; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("build/gpu.zip"))
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--seconds", type=float, default=460, help="the time for all stages")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--every", type=int, default=1, help="run one of so many functions")
    options = parser.parse_args(arguments)
    bundle = Bundle(options.bundle)
    skipped = [about for i, (_, about) in enumerate(bundle.entries("comparison")) if i % options.every]
    bundle.index["entries"] = [about for about in bundle.index["entries"] if about not in skipped]
    run = Run(bundle, options.bundle, options.seconds)
    device = device_at(0)
    report: dict[str, Any] = {"gpu": device.name, "arch": bundle.index["arch"], "not compiled": bundle.index["failed"]}
    for stage in options.stages:
        started = time.monotonic()
        try:
            report[stage] = getattr(run, stage)()
        except Exception as error:
            run.errors[stage] = "".join(traceback.format_exception(error, limit=-4))
        print(f"{stage}: {time.monotonic() - started:.0f} s", flush=True)
    report |= {"left out": run.left_out, "errors": run.errors}
    options.out.write_text(json.dumps(report, indent=1))
    differences = {**report.get("comparison", {}), **report.get("trained", {})}
    wrong = {name: value for name, value in differences.items() if not value <= 1}
    for name, value in wrong.items():
        print(f"wrong by {value:.3g} times what is allowed: {name}")
    for name, error in run.errors.items():
        print(f"{name}: {error}")
    for name in run.left_out:
        print(f"left out: {name}")
    print(f"{len(differences) - len(wrong)} of {len(differences)} are right; {len(run.errors)} errors")
    return int(bool(wrong or run.errors))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests")]
    raise SystemExit(main(*sys.argv[1:]))
