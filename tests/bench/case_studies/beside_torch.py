"""An example's run in PyTorch: its initial weights, its batches in its order, its schedule, its held-out metrics."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import curve
import numpy as np
import torch
import training

from tvmfun import tree
from tvmfun.loops import JSONLLogger

PICTURES = Path(__file__).parents[3] / "docs" / "_static" / "case_studies"


def parser() -> argparse.ArgumentParser:
    """Returns the options of a comparison; those it does not know are the example's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="directory of both runs")
    parser.add_argument("--only", choices=("tvmfun", "torch"), help="make one of the two runs; the other is kept")
    parser.add_argument("--picture", help="the name of the curves in the documentation, without a suffix")
    return parser


def train(
    task: training.Task,
    options: argparse.Namespace,
    folder: Path,
    update: Callable[[Any], torch.Tensor],
    evaluate: Callable[[], dict[str, float]],
) -> None:
    """Trains in PyTorch and writes a log like the example's.

    Args:
        task: the example's task, for its batches.
        options: the example's options.
        folder: the directory of the run, which is emptied.
        update: makes one step from a batch of NumPy arrays and returns its loss.
        evaluate: returns the example's metrics.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with JSONLLogger(folder / "log.jsonl") as log:
        losses, started = [], time.perf_counter()
        for step in range(1, options.steps + 1):
            losses.append(update(tree.map(tensor, next(task.batches))).detach())
            if step % options.every and step < options.steps:
                continue
            rate = len(losses) * task.units / (time.perf_counter() - started)
            row = {"step": step, "loss": float(torch.stack(losses).mean()), f"{task.unit}/s": rate} | evaluate()
            log.write(row)
            print("PyTorch", "  ".join(f"{name} {value:,.4g}" for name, value in row.items()), flush=True)
            losses, started = [], time.perf_counter()


def tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a tensor of an array; PyTorch indexes with 64 bits."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.long() if tensor.dtype == torch.int32 else tensor


def compare(
    example: Callable[[list[str]], Any], twin: Callable[[list[str], Path], None], defaults: list[str] | None = None
) -> None:
    """Makes both runs as the command line says and draws them.

    Args:
        example: the example's ``main``.
        twin: makes the run in PyTorch, from the example's command line and the directory to write.
        defaults: options of the example that come before those of the command line.
    """
    own, rest = parser().parse_known_args(sys.argv[1:])
    rest = [*(defaults or []), *rest]
    ours, theirs = own.into / "tvmfun", own.into / "PyTorch"
    if own.only != "torch":
        shutil.rmtree(ours, ignore_errors=True)
        example([*rest, "--run", str(ours), "--no-progress"])
    if own.only != "tvmfun":
        twin([*rest, "--run", str(theirs)], theirs)
    picture = PICTURES / own.picture if own.picture else own.into / "curve"
    curve.draw({"tvmfun": ours, "PyTorch": theirs}, picture)
