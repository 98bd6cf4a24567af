"""The search for a schedule: the process that drives a worker, and survives its crashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvmfun.errors import TargetError
from tvmfun.lower.tuning import space

# The search for a kernel ends after this many crashes.
_BREAKS = 8


@dataclass
class Outcome:
    """The result of a search.

    Args:
        trials: the number of schedules tried.
        rejected: the number of these with wrong results, that could not be compiled, crashed, or never ended.
        before: seconds with our rule's schedule, if it was timed.
        after: seconds with the best schedule, measured in the same session.
        schedule: the best schedule, if it was faster.
        note: the reason if nothing could be tried.
    """

    trials: int = 0
    rejected: int = 0
    before: float | None = None
    after: float | None = None
    schedule: str | None = None
    note: str = ""


class Worker:
    """A context with a process that does tasks, which is restarted after a crash."""

    #: The command of the process.
    command = (sys.executable, "-m", "tvmfun.lower.tuning.worker")

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._errors: Any = None

    def __enter__(self) -> Worker:
        self._errors = tempfile.TemporaryFile("w+")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def _start(self) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        environment.pop("TVMFUN_TUNING", None)
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None

    def last_words(self) -> str:
        """The last line that a process wrote to its standard error."""
        self._errors.seek(0)
        return next((line.strip() for line in reversed(self._errors.readlines()) if line.strip()), "no output")

    def messages(self, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the messages of the process about a task; the kind of the last is done, failed or broke."""
        self._process = self._process or self._start()
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        finished = False
        try:
            for line in self._process.stdout:
                if not line.endswith("\n"):  # the process ended while it wrote
                    break
                message = json.loads(line)
                finished = message["kind"] in ("done", "failed")
                yield message
                if finished:
                    return
        finally:
            if not finished:
                self._end()
        yield {"kind": "broke"}


def search(
    worker: Worker,
    function: tirx.PrimFunc,
    inputs: int,
    target: Target,
    *,
    trials: int,
    seconds: float,
    seed: int,
    known: str | None = None,
) -> Outcome:
    """Searches for a schedule that is faster than that of our rule.

    Args:
        worker: the process that tries schedules.
        function: the unscheduled kernel.
        inputs: the number of parameters that are inputs.
        target: a CPU.
        trials: the number of schedules to try.
        seconds: the time limit.
        seed: the seed of draws and data.
        known: the first schedule to try.

    Raises:
        TargetError: if this machine cannot run code for the target.
    """
    text = space.source(function)
    if not _reads_back(text, function):
        return Outcome(note="cannot be written as TVMScript")
    outcome = Outcome()
    deadline = time.monotonic() + seconds
    best: list[tuple[float, str]] = []
    broke: list[str] = []
    schedule, is_ready = "", False
    for attempt in range(_BREAKS):
        task = {
            "function": text,
            "inputs": inputs,
            "target": _plain(target.export()),
            "trials": trials - outcome.trials,
            "seconds": max(0.0, deadline - time.monotonic()),
            "seed": seed + attempt,
            "known": [s for _, s in sorted(best)[-3:]] or [s for s in [known] if s and not attempt],
            "broke": broke,
        }
        for message in worker.messages(task):
            kind = message["kind"]
            is_ready = is_ready or kind == "ready"
            if kind == "try":
                schedule = message["schedule"]
            elif kind in ("tried", "rejected"):
                outcome.trials += 1
                outcome.rejected += kind == "rejected"
                if kind == "tried":
                    best.append((message["ratio"], schedule))
            elif kind == "failed":
                outcome.note = message["reason"]
                return outcome
            elif kind == "done":
                outcome.before = outcome.after = message["before"]
                if message["best"]:
                    found = message["best"]
                    outcome.before, outcome.after, outcome.schedule = (
                        found["before"],
                        found["after"],
                        found["schedule"],
                    )
                return outcome
        if not is_ready:
            raise TargetError(
                "tune",
                "a kernel crashed, or never ended, with the schedule of our rules",
                got=f"{target} ({worker.last_words()})",
                hint="a target that this machine can run",
            )
        if not schedule:
            outcome.note = "TVM's rules crash on it"
            return outcome
        outcome.trials += 1
        outcome.rejected += 1
        broke.append(schedule)
        best = [(ratio, tried) for ratio, tried in best if tried != schedule]
    outcome.note = "too many schedules crashed"
    return outcome


def _reads_back(text: str, function: tirx.PrimFunc) -> bool:
    """Whether TVMScript represents the kernel completely."""
    try:
        read = tvm.script.from_source(text)
    except Exception:  # the parser raises many kinds of errors
        return False
    return bool(tvm_ffi.structural_equal(read, function.with_attr("global_symbol", "main")))


def _plain(value: Any) -> Any:
    if hasattr(value, "items"):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, str | int):
        return str(value) if isinstance(value, str) else int(value)
    return [_plain(item) for item in value]
