"""Timing: several runners of one piece of work in one run, interleaved, so that a busy machine slows all alike."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from bench.picture import svg

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine

# The seconds of each runner in a round, and the number of rounds.
ROUND_SECONDS = 0.1
ROUNDS = 15
# Thread pools spin for a while after their last task. The next runner must not compete with that.
SETTLE_SECONDS = 0.02


def seconds(call: Callable[[], Any], repeat: int = 1) -> float:
    """How long one call takes, the mean of several."""
    started = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - started) / repeat


def interleaved(calls: Sequence[Callable[[], Any]], rounds: int = ROUNDS) -> np.ndarray:
    """The times of the calls, one row per round."""
    once = [min(seconds(call) for _ in range(2)) for call in calls]
    repeat = [max(1, int(ROUND_SECONDS / t)) for t in once]
    rows = []
    for _ in range(rounds if sum(once) < 3 else rounds // 3):
        row = []
        for call, count in zip(calls, repeat, strict=True):
            time.sleep(SETTLE_SECONDS)
            call()  # memory that was idle for long has to be fetched, too
            row.append(seconds(call, count))
        rows.append(row)
    return np.asarray(rows)


@cache
def gemm_peak() -> float:
    """The speed of a large matrix product, the most this machine can do, in operations per second."""
    x = tnp.asarray(np.random.default_rng(0).normal(size=(1536, 1536)).astype("float32"))
    product = tvmfun.jit(tnp.matmul)
    product(x, x)
    return 2 * 1536**3 / min(seconds(lambda: product(x, x)) for _ in range(30))


@cache
def bandwidth() -> float:
    """The bytes per second that a large copy reads and writes."""
    x = tnp.asarray(np.zeros(1 << 25, "float32"))
    copy = tvmfun.jit(lambda x: x + 1, donate_argnums=())
    copy(x)
    return 2 * x.nbytes / min(seconds(lambda: copy(x)) for _ in range(20))


def compare(name: str, runners: Sequence[tuple[str, Callable[[], Any]]], flop: float = 0, moved: float = 0) -> dict:
    """Times ours, the first runner, beside its peers.

    Args:
        name: of the row.
        runners: names and calls.
        flop: operations of one call.
        moved: bytes that one call has to read and write.

    Returns:
        A row of the table: milliseconds by name, the ratio to the best peer, and the floor.
    """
    times = interleaved([call for _, call in runners])
    medians = np.median(times, axis=0)
    best = 1 + int(np.argmin(medians[1:]))
    ours = float(medians[0])
    return {
        "case": name,
        "ms": {label: float(t) * 1e3 for (label, _), t in zip(runners, medians, strict=True)},
        "ratio": float(np.median(times[:, best] / times[:, 0])),
        "best peer": runners[best][0],
        "floor ms": max(flop / gemm_peak(), moved / bandwidth()) * 1e3 if not (flop and moved) else
        (flop / gemm_peak() + moved / bandwidth()) * 1e3,
        "share of GEMM peak": flop / gemm_peak() / ours if flop else None,
    }  # fmt: skip


def call_row(name: str, ours: float, theirs: float) -> dict:
    """A row for the cost of a call itself, in microseconds, which has no part in the mean over steps."""
    return {
        "case": name,
        "ms": {"tvmfun": ours / 1e3, "JAX": theirs / 1e3},
        "ratio": theirs / ours,
        "best peer": "JAX",
        "floor ms": 0.0,
        "share of GEMM peak": None,
        "a call": True,
    }


class Report:
    """The rows of a run, shown as they come and merged into a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[dict] = []

    def add(self, row: dict) -> None:
        """Shows a row and keeps it."""
        self.rows.append(row)
        print(f"\n{line(row)}", flush=True)

    def close(self) -> None:
        """Shows all rows and their geometric mean, and writes the file."""
        if not self.rows:
            return
        machine = {"GEMM GFLOP/s": round(gemm_peak() / 1e9), "copy GB/s": round(bandwidth() / 1e9, 1)}
        print("\n\n" + "\n".join([header(), *map(line, self.rows)]))
        steps = [row for row in self.rows if "a call" not in row]
        mean = f"geometric mean of the ratios: {geometric_mean(steps):.2f}   " if steps else ""
        print(f"{mean}machine: {machine}\n{targets.host()}\n{Machine.of(targets.host())}")
        if self.path is not None:
            known = json.loads(self.path.read_text())["rows"] if self.path.exists() else []
            rows = {row["case"]: row for row in [*known, *self.rows]}
            self.path.write_text(json.dumps({"machine": machine, "rows": list(rows.values())}, indent=1) + "\n")
            self.path.with_suffix(".svg").write_text(svg(list(rows.values())))


def geometric_mean(rows: Sequence[dict]) -> float:
    """The geometric mean of the ratios to the best peers."""
    return float(np.exp(np.mean([np.log(row["ratio"]) for row in rows])))


def summary(ratios: Mapping[str, float]) -> str:
    """The geometric mean of ratios by name, and those below 0.9."""
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    slower = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio < 0.9)
    return f"geometric mean of {len(ratios)}: {mean:.2f}; below 0.9: {slower or 'none'}"


COLUMNS = ["tvmfun", "JAX", "PyTorch", "PyTorch, compiled"]


def header() -> str:
    """The head of the table."""
    cells = "".join(f"{name[:12]:>13s}" for name in COLUMNS)
    return f"{'case':34s}{cells}{'ratio':>7s}{'floor':>9s}{'peak':>6s}  compile s"


def line(row: dict) -> str:
    """A row of the table."""
    cells = "".join(f"{row['ms'][name]:13.4g}" if name in row["ms"] else " " * 13 for name in COLUMNS)
    share = f"{row['share of GEMM peak']:6.0%}" if row["share of GEMM peak"] else " " * 6
    compiled = "  ".join(f"{value:.2f}" for value in row.get("compile s", {}).values())
    return f"{row['case']:34s}{cells}{row['ratio']:7.2f}{row['floor ms']:9.3f}{share}  {compiled}"
