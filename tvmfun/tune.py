"""``tune``: a search for faster schedules of a function's kernels; ``tuned``: their use."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfun.core.inline import inlined
from tvmfun.errors import ArgumentError, TargetError
from tvmfun.jit import Jitted, jit
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.relax_module import ScheduledKernel
from tvmfun.lower.schedule.cpu.rules import RULES
from tvmfun.lower.tuning.database import Database, Record, merge, using
from tvmfun.lower.tuning.search import Outcome, Worker, search

#: The rules that leave a kernel's loops in the order in which its op is written.
UNCOVERED = ("fallback", "window")


@dataclass(frozen=True)
class TunedKernel:
    """The result of tuning a kernel.

    Args:
        name: the names of its ops.
        rule: the name of the rule that schedules it.
        before: microseconds with the schedule of this rule; None if it was not timed.
        after: microseconds with the best schedule; equal to ``before`` if none is faster.
        trials: the number of schedules tried.
        rejected: the number of these with wrong results, or that crashed.
        note: the reason if it could not be tuned.
    """

    name: str
    rule: str
    before: float | None = None
    after: float | None = None
    trials: int = 0
    rejected: int = 0
    note: str = ""

    @property
    def ratio(self) -> float:
        """The speedup."""
        return self.before / self.after if self.before and self.after else 1.0


@dataclass(frozen=True, repr=False)
class TuningReport:
    """The result of tuning a function, which prints as a table.

    Args:
        kernels: the results of the chosen kernels.
        others: the number of kernels that were not chosen, by rule.
    """

    kernels: tuple[TunedKernel, ...]
    others: dict[str, int]

    def __repr__(self) -> str:
        head = ("kernel", "rule", "before", "after", "ratio", "trials", "rejected", "")
        rows = [head, *map(_row, self.kernels)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(f"{cell:{'<' if i in (0, 1, 7) else '>'}{widths[i]}}" for i, cell in enumerate(row)).rstrip()
            for row in rows
        ]
        if not self.kernels:
            lines = ["nothing to tune"]
        if self.others:
            lines.append("not tuned: " + ", ".join(f"{n} {rule}" for rule, n in sorted(self.others.items())))
        return "\n".join(lines)


def _row(kernel: TunedKernel) -> tuple[str, ...]:
    name = kernel.name if len(kernel.name) <= 40 else kernel.name[:37] + "..."
    if kernel.before is None or kernel.after is None:
        return name, kernel.rule, "", "", "", str(kernel.trials), str(kernel.rejected), kernel.note
    times = f"{kernel.before:.1f} us", f"{kernel.after:.1f} us", f"{kernel.ratio:.2f}"
    return name, kernel.rule, *times, str(kernel.trials), str(kernel.rejected), kernel.note


def tune(
    fun: Callable,
    *args: Any,
    database: str | os.PathLike,
    trials: int = 64,
    seconds: float | None = None,
    rules: str | Sequence[str] = UNCOVERED,
    target: Any = None,
    seed: int = 0,
    **kwargs: Any,
) -> TuningReport:
    """Searches for faster schedules of the kernels of a function, and adds them to a database.

    Schedules come from TVM's meta-schedule rules. Each is tried in another process. It is kept if its results on random
    data equal those of our rule's schedule, and if it was at least 1.05 times as fast in alternate measurements.

    Args:
        fun: a function, jitted or not.
        *args: its arguments: arrays, numbers or ``ShapeDtype``.
        database: the path of a file. If it exists, its records stay unless a faster schedule is found.
        trials: the number of schedules to try for each kernel.
        seconds: the time limit for all kernels; the remaining time is divided among the remaining kernels.
        rules: the kernels to tune: those scheduled by rules of these names, or ``"all"``. By default the rules that
            leave loops in the order in which an op is written.
        target: a CPU that this machine can run code for. By default the target of ``fun`` if that is jitted, or this
            CPU.
        seed: the seed of draws and data. Times vary between runs, and with them the schedules that are kept.
        **kwargs: keyword arguments of ``fun``; those with the names of these options are passed by position.

    Returns:
        The times of each kernel before and after.

    Raises:
        TargetError: if the target is not a CPU that this machine can run code for.
        ArgumentError: if an option is invalid, or the file is not a database.

    Source: the search space is that of Shao et al. (2022), "Tensor program optimization with probabilistic programs".

    >>> import tempfile, tvmfun, tvmfun.numpy as tnp
    >>> x = tvmfun.ShapeDtype((8, 4), "float32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tune(tnp.exp, x, database=f"{folder}/tuning.jsonl")
    nothing to tune
    not tuned: 1 elementwise
    """
    _check(trials, seconds, rules)
    known = Database.read(database, "tune") if Path(database).exists() else Database()
    lowered = (fun if isinstance(fun, Jitted) else jit(fun)).lower(*args, **kwargs)
    goal = lowered.target if target is None else targets.resolve(target)
    if not targets.is_cpu(goal):
        raise TargetError("tune", "kernels are tuned on CPUs only", got=str(goal.kind), hint="the rules, on GPUs")
    donated = [len(lowered.program.captured) + i for i in lowered.donated]
    with using(None):
        scheduled = pipeline.scheduled_kernels(inlined(lowered.program), goal, donated)
    chosen, others = [], Counter()
    for one in scheduled:
        if rules == "all" or one.rule in rules:
            chosen.append(one)
        else:
            others[one.rule] += 1
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    results = []
    with Worker() as worker:
        for i, one in enumerate(chosen):
            note = _obstacle(one)
            if note:
                results.append(TunedKernel(one.kernel.name, one.rule, note=note))
                continue
            share = (deadline - time.monotonic()) / (len(chosen) - i) if seconds else 1e9
            earlier = known.find(one.kernel.text, goal)
            function = one.kernel.prim_func()
            outcome = search(
                worker,
                function,
                len(one.kernel.inputs),
                goal,
                trials=trials,
                seconds=share,
                seed=seed,
                known=earlier.schedule if earlier else None,
            )
            results.append(_summarized(one, outcome))
            if outcome.schedule:
                best = {"trials": outcome.trials, "schedule": outcome.schedule}
                times = {"before": results[-1].before, "after": results[-1].after}
                record = Record.of(function, goal, kernel=one.kernel.text, rule=one.rule, **times, **best)
                # Written after each kernel, so that an interrupted search keeps its results.
                merge(database, [record], "tune", replaced=earlier)
    return TuningReport(tuple(results), dict(others))


def _check(trials: int, seconds: float | None, rules: str | Sequence[str]) -> None:
    if not isinstance(trials, int) or trials < 1:
        raise ArgumentError("tune", "trials must be a positive integer", got=repr(trials))
    if seconds is not None and not seconds > 0:
        raise ArgumentError("tune", "seconds must be positive", got=repr(seconds), hint="None, for no limit")
    if rules != "all" and (isinstance(rules, str) or not {*RULES, "control"}.issuperset(rules)):
        hint = f"some of {', '.join(RULES)}, as a tuple"
        raise ArgumentError("tune", "rules must be names of rules, or 'all'", got=repr(rules), hint=hint)


def _obstacle(scheduled: ScheduledKernel) -> str:
    """The reason why a kernel cannot be tuned; empty if it can."""
    kind = scheduled.kernel.equations[0].op.kind
    if kind == "control":
        return "kernels inside of control flow are scheduled by rules"
    if kind == "opaque":
        return "written as loops, whose order is part of what it computes"
    if scheduled.kernel.sizes:
        return "its sizes are dynamic"
    return "writes over a donated argument" if scheduled.is_in_place else ""


def _summarized(scheduled: ScheduledKernel, outcome: Outcome) -> TunedKernel:
    before, after = (None if s is None else s * 1e6 for s in (outcome.before, outcome.after))
    name = scheduled.kernel.name
    return TunedKernel(name, scheduled.rule, before, after, outcome.trials, outcome.rejected, outcome.note)


@contextmanager
def tuned(database: str | os.PathLike) -> Iterator[None]:
    """Context in which functions that this thread compiles use the schedules of a database.

    Jitted functions that were called before are compiled again, and use their earlier code again afterwards. Kernels
    that write over donated arguments, those inside of control flow, and those without a record for the target are
    scheduled by rules. The environment variable ``TVMFUN_TUNING`` names a database for a whole process.

    Args:
        database: a file that :func:`tune` wrote.

    Raises:
        ArgumentError: if the file cannot be read, or is not a database.

    >>> with tuned("none.jsonl"):
    ...     pass
    Traceback (most recent call last):
    tvmfun.errors.ArgumentError: [tuned] the database cannot be read, got none.jsonl ...
    """
    with using(Database.read(database, "tuned")):
        yield
