"""Tables of what ``python -m tests.gpu.all`` measured, for docs/performance.md: ``python -m tests.gpu.report FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .peers import FRAMEWORKS

#: The kernels that are listed of each step.
_KERNELS = 12


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _table(*head: str) -> list[str]:
    return [_row(*head), _row(*("---" for _ in head))]


def _steps(found: dict[str, Any]) -> list[str]:
    """Steps beside those of the other frameworks."""
    lines = _table("step", "tvmfun ms", *(f"{name} ms" for name in FRAMEWORKS), "ratio to the best", "Tflop/s", "MB")
    for name, step in found.get("timed", {}).items():
        peers = found.get("peers", {})
        times = [peers.get(f"{name}: {framework}", {}).get("ms") for framework in FRAMEWORKS]
        known = [time for time in times if time]
        ratio = f"{min(known) / step['ms']:.2f}" if known else "-"
        cells = [f"{time:.2f}" if time else "-" for time in times]
        lines.append(
            _row(
                name,
                f"{step['ms']:.2f}",
                *cells,
                ratio,
                f"{step['flop'] / step['ms'] / 1e9:.1f}",
                step["bytes"] // 10**6,
            )
        )
    return lines


def _kernels(rows: list[dict[str, Any]]) -> list[str]:
    """The kernels of a step that take longest."""
    total = sum(row["us"] for row in rows)
    lines = _table("us", "share", "launches", "kernel")
    for row in rows[:_KERNELS]:
        lines.append(_row(f"{row['us']:.1f}", f"{row['us'] / total:.0%}", row["launches"], f"`{row['kernel']}`"))
    return lines


def tables(found: dict[str, Any]) -> str:
    """The tables in Markdown."""
    differences = {**found.get("comparison", {}), **found.get("trained", {})}
    right = sum(value["difference"] <= 1 for value in differences.values())
    lines = [f"{found['gpu']}, {found['arch']}: {right} of {len(differences)} comparisons with the CPU are right.", ""]
    lines += _steps(found)
    for name, step in found.get("timed", {}).items():
        lines += ["", f"### {name}", "", *_kernels(step["kernels"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text())), end="")
