"""Draws the logs of runs over each other: ``python examples/curve.py ours=runs/gpt2 PyTorch=runs/torch --out FILE``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

# Columns of a log that are neither losses nor metrics.
NOT_DRAWN = ("step", "baseline", "of peak")

STYLE: dict[Any, Any] = {
    # Without a salt and a date the same log gives the same file.
    "svg.hashsalt": "tvmfun",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.6",
    "axes.grid": True,
    "grid.color": "0.92",
    "font.size": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "xtick.color": "0.3",
    "ytick.color": "0.3",
}


def draw(runs: dict[str, Path], path: Path) -> None:
    """Draws the losses, and below them the metrics, of runs as SVG and PNG, if matplotlib is installed.

    Args:
        runs: directories of runs by the names in the legend.
        path: the file to write, without its suffix.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    logs = {label: read(folder) for label, folder in runs.items()}
    logs = {label: rows for label, rows in logs.items() if rows}
    names = [name for rows in logs.values() for name in rows[-1] if name not in NOT_DRAWN and not name.endswith("/s")]
    losses = [name for name in dict.fromkeys(names) if name.endswith("loss")]
    metrics = [name for name in dict.fromkeys(names) if not name.endswith("loss")]
    groups = [group for group in (losses, metrics) if group]
    if not groups:
        return
    with rc_context(STYLE):
        figure = Figure(figsize=(6, 3 * len(groups)), layout="constrained")
        for i, group in enumerate(groups, 1):
            axes = figure.add_subplot(len(groups), 1, i, xlabel="step", ylabel="loss" if group is losses else "metric")
            for j, (label, rows) in enumerate(logs.items()):
                for k, name in enumerate(group):
                    draw_line(axes, rows, name, f"{label} {name}".strip(), f"C{k}", "-" if j == 0 else "--")
            baseline = next(iter(logs.values()))[-1].get("baseline")
            if group is losses and baseline is not None:
                axes.axhline(baseline, color="gray", linestyle=":", label="baseline")
            axes.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"))


def draw_line(axes: Any, rows: list[dict[str, float]], name: str, label: str, color: str, style: str) -> None:
    """Adds the line of one number of a log over the steps."""
    points = [(row["step"], row[name]) for row in rows if name in row]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, color=color, linestyle=style)


def read(folder: Path) -> list[dict[str, float]]:
    """Returns the rows of the log of a run; of a step that was made twice, the later one.

    Lines that a crash has damaged are left out.
    """
    path, rows = folder / "log.jsonl", {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            # The log has infinities and NaN as strings, which float reads.
            row = {name: float(value) for name, value in json.loads(line).items()}
            rows[row["step"]] = row
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return [row for _, row in sorted(rows.items())]


def main(arguments: list[str] | None = None) -> None:
    """Draws the runs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="LABEL=DIRECTORY")
    parser.add_argument("--out", type=Path, required=True, help="the file to write, without its suffix")
    options = parser.parse_args(arguments)
    runs = dict(run.split("=", 1) if "=" in run else ("", run) for run in options.runs)
    draw({label: Path(folder) for label, folder in runs.items()}, options.out)


if __name__ == "__main__":
    main()
