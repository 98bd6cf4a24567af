"""A training run: a directory with its configuration, log, checkpoints and curve, which resumes with the same bits."""

from __future__ import annotations

import argparse
import fcntl
import functools
import importlib.util
import json
import math
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import curve
import numpy as np

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoints, tree
from tvmfun.data import Stream
from tvmfun.errors import CheckpointError, NanError, TvmfunError
from tvmfun.loops import JSONLLogger, TensorBoardWriter, progress

# The entry of a configuration that tells whether data are the same.
_CHECKSUM = "checksum of the data"
_INTERRUPTED = "interrupted after step {}, which is saved: go on with --resume"


@dataclass(frozen=True)
class Task:
    """One training task.

    Args:
        state: everything that training changes: parameters, optimizer state, random keys.
        step: a jitted function of the state, which it is given to overwrite, and a batch; it returns the new state and
            the loss.
        batches: the stream of batches, without an end.
        evaluate: a function of the state that returns metrics of held-out data by name; a ``"baseline"`` is one of a
            model that learns nothing, in the units of the loss.
        unit: what examples are counted in, such as ``"tokens"``.
        units: how many of these a batch has.
    """

    state: Any
    step: Callable[[Any, Any], tuple[Any, Any]]
    batches: Stream
    evaluate: Callable[[Any], dict[str, float]]
    unit: str
    units: int


def arguments(parser: argparse.ArgumentParser, *, steps: int, every: int, directory: str) -> None:
    """Adds the options that all training scripts have."""
    parser.add_argument("--run", type=Path, default=Path(directory), help="directory of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the directory")
    parser.add_argument("--steps", type=int, default=steps, help="how many steps in all")
    parser.add_argument("--every", type=int, default=every, help="evaluate and save every so many steps")
    parser.add_argument("--seed", type=_seed, default=0, help="decides all random numbers")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")


def _seed(text: str) -> int:
    """A seed that NumPy's generators take, too."""
    value = int(text)
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"a seed must be from 0 to {2**64 - 1}, got {value}")
    return value


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of an option in its help, unless that is None."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


@contextmanager
def explained(*errors: type[Exception]) -> Iterator[None]:
    """Ends the program with the message of an error of the library, or of one of these, instead of a traceback."""
    try:
        yield
    except (TvmfunError, *errors) as error:
        raise SystemExit(str(error)) from None


def mixed(loss: Callable[..., Any], amp: str) -> Callable[..., Any]:
    """Returns a loss in the precision of ``--amp``: ``"no"``, or ``"products"`` or ``"most"`` ops in bfloat16."""
    if amp == "no":
        return loss
    return tvmfun.amp(loss, tvmfun.PrecisionPolicy("bfloat16", only_products=amp == "products"))


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options that a resumed run must have in common with the first one."""
    left_out = ("run", "resume", "steps", "every", "no_progress")
    values = {name: value for name, value in vars(options).items() if name not in left_out}
    return json.loads(json.dumps(values, default=str))


def open_run(options: argparse.Namespace, data: np.ndarray | None = None) -> None:
    """Makes the directory of a run, or checks that of a run to resume, before anything expensive happens.

    Args:
        options: the parsed command line.
        data: what the run trains on; a resumed run must have the same.

    Raises:
        SystemExit: if there is a run already, or none to resume, or one of another configuration or other data, or the
            directory cannot be written.
    """
    path, config = options.run / "config.json", configuration(options)
    if data is not None:
        config[_CHECKSUM] = zlib.crc32(data.tobytes())
    if not options.resume:
        if path.exists():
            raise SystemExit(f"{options.run} has a run already. Try --resume, or another --run.")
        with writing(options.run):
            options.run.mkdir(parents=True, exist_ok=True)
        write(path, json.dumps(config, indent=1) + "\n")
        return
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path} cannot be read ({error}). Try a directory that --run made.") from None
    if not isinstance(saved, dict):
        raise SystemExit(f"{path} must hold options by name, got {saved!r:.40}. Try a directory that --run made.")
    # The tokens depend on options, so these are the first cause.
    for name in sorted((saved.keys() | config.keys()) - {_CHECKSUM}):
        if saved.get(name) != config.get(name):
            option = name.replace("_", "-")
            raise SystemExit(f"{options.run} was made with --{option} {saved.get(name)}, got {config.get(name)}.")
    if saved.get(_CHECKSUM) != config.get(_CHECKSUM):
        raise SystemExit(f"{options.run} was made with other data. Try the same files, or another --run.")


def write(path: Path, text: str) -> None:
    """Writes a file of a run, or ends the program; there is never half of it."""
    unfinished = path.with_name(f".{path.name}")
    with writing(path):
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def train(task: Task, options: argparse.Namespace) -> tuple[Any, dict[str, float]]:
    """Trains, writes the directory of the run, and returns the last state and its metrics.

    Ctrl-C ends the current step, saves, and stops. A loss that is not finite stops the run with the name of the op.
    The first checkpoint is that of step 0; a run that was stopped before it resumes from the beginning.

    Raises:
        SystemExit: if another process trains in the directory, the run was interrupted, a checkpoint does not fit, is
            of a later step than ``options.steps`` or cannot be written, or the loss is not finite.
    """
    folder, state, done = options.run, task.state, 0
    # Written before the next step, a checkpoint needs no copy of the state: that of large tables takes seconds.
    manager = checkpoints.Manager(folder / "checkpoints", background=False)
    with _alone(folder), manager, _interrupts() as interrupted, _logs(folder) as logs:
        speed = describe(task, getattr(options, "amp", "no"))
        if options.resume and manager.steps():
            done, state = _load(manager, task, state)
        else:
            # The steps before the next checkpoint are replayed from here if they make a NaN.
            _save(manager, 0, {"state": state, "batches": task.batches.state})
        if done > options.steps:
            raise SystemExit(f"{folder} has {done} steps already. Try --steps {done} or more, got {options.steps}.")
        metrics, losses, started = {}, [], time.perf_counter()
        bar = progress(range(done + 1, options.steps + 1), disable=options.no_progress)
        for step in bar:
            state, loss = task.step(state, next(task.batches))
            losses.append(loss)
            rates = speed.of(len(losses), time.perf_counter() - started)
            bar.show(loss=loss, **rates)
            is_due = step % options.every == 0 or step == options.steps
            if not (interrupted or is_due):
                continue
            # Fetching the last loss waits for its step.
            losses = np.asarray([float(loss) for loss in losses])
            rates = speed.of(len(losses), time.perf_counter() - started)
            if not np.isfinite(losses).all():
                raise SystemExit(_blame(task, manager, step))
            _save(manager, step, {"state": state, "batches": task.batches.state})
            if interrupted and not is_due:
                raise SystemExit(_INTERRUPTED.format(step))
            metrics = task.evaluate(state)
            row = {"step": step, "loss": float(losses.mean())} | rates | metrics
            with writing(folder):
                for log in logs:
                    log.write(row)
            numbers = {"step": f"{step:,}"} | {name: f"{value:,.4g}" for name, value in row.items() if name != "step"}
            bar.write("  ".join(f"{name} {value}" for name, value in numbers.items()))
            if interrupted and step < options.steps:
                raise SystemExit(_INTERRUPTED.format(step))
            losses, started = [], time.perf_counter()
    with writing(folder):
        curve.draw({"": folder}, folder / "curve")
    return state, metrics or task.evaluate(state)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Locks the directory of a run, or ends the program if another process has; the lock ends with the process."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another process trains in {folder}. Try another --run.") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Ends the program with a message if a file of a run cannot be written within."""
    try:
        yield
    except OSError as error:
        what = error.filename or path
        raise SystemExit(f"{what} cannot be written ({error.strerror}). Try another --run, or free space.") from None


@contextmanager
def _logs(folder: Path) -> Iterator[list[JSONLLogger | TensorBoardWriter]]:
    """The logs of a run: lines of JSON, and events for TensorBoard if it is installed."""
    with ExitStack() as stack:
        with writing(folder):
            logs: list[Any] = [stack.enter_context(JSONLLogger(folder / "log.jsonl"))]
            if importlib.util.find_spec("tensorboard"):
                logs.append(stack.enter_context(TensorBoardWriter(folder / "tensorboard")))
        yield logs


@dataclass(frozen=True)
class Speed:
    """The rates of a step, from what it costs.

    Args:
        unit: what examples are counted in.
        units: how many of these a step has.
        flops: the floating-point operations of a step.
        peak: the floating-point operations per second of a large matrix product.
    """

    unit: str
    units: int
    flops: int
    peak: float

    def of(self, steps: int, seconds: float) -> dict[str, float]:
        """Returns the units per second of some steps, and the share of the peak."""
        return {f"{self.unit}/s": steps * self.units / seconds, "of peak": steps * self.flops / seconds / self.peak}


def describe(task: Task, amp: str) -> Speed:
    """Compiles the step and prints the numbers that are known before it runs; its products are those of ``--amp``."""
    started, batch, dtype = time.perf_counter(), _peek(task), "float32" if amp == "no" else "bfloat16"
    compiled = task.step.lower(task.state, batch).compile()  # pyright: ignore[reportFunctionMemberAccess]
    seconds = time.perf_counter() - started
    parameters = sum(leaf.size for leaf in tree.leaves(getattr(task.state, "model", task.state)))
    memory, cost, peak = compiled.memory_analysis(), compiled.cost_analysis(), peak_flops(dtype)
    print(
        f"{parameters:,} parameters; a step takes {memory.peak / 1e6:,.0f} MB and {cost.flops / 1e9:,.2f} Gflop; "
        f"compiled in {seconds:.1f} s; a large {dtype} product runs at {peak / 1e9:,.0f} Gflop/s",
        flush=True,
    )
    return Speed(task.unit, task.units, cost.flops, peak)


@functools.cache
def peak_flops(dtype: str) -> float:
    """Returns the operations per second of a large product of matrices on this machine."""
    x, size = tnp.ones((2048, 2048), dtype), 2048
    product = tvmfun.jit(tnp.matmul)
    tvmfun.block_until_ready(product(x, x))
    times = []
    for _ in range(5):
        started = time.perf_counter()
        tvmfun.block_until_ready(product(x, x))
        times.append(time.perf_counter() - started)
    return 2 * size**3 / min(times)


def _peek(task: Task) -> Any:
    """The shapes of a batch; the stream is put back."""
    before = task.batches.state
    batch = next(iter(task.batches))
    task.batches.restore(before)
    return tree.map(lambda x: tvmfun.ShapeDtype(np.shape(x), np.asarray(x).dtype), batch)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yields a list that Ctrl-C adds to; the second one ends the program at once."""
    signals: list[int] = []

    def handle(number: int, frame: Any) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise SystemExit("stopped at once. Try --resume, which goes on from the last checkpoint.")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)


def _load(manager: checkpoints.Manager, task: Task, state: Any) -> tuple[int, Any]:
    try:
        steps = manager.steps()
        saved = manager.load({"state": state, "batches": task.batches.state})
        task.batches.restore(saved["batches"])
    except (OSError, TvmfunError) as error:
        advice, kept = "", manager.steps()
        if isinstance(error, CheckpointError) and len(kept) > 1:
            advice = f" Remove {manager.path(kept[-1])} to go on from step {kept[-2]}."
        raise SystemExit(f"{manager.folder} cannot be resumed: {error}{advice}") from None
    return steps[-1], saved["state"]


def _save(manager: checkpoints.Manager, step: int, contents: Any) -> None:
    try:
        manager.save(step, contents)
    except OSError as error:
        kept = manager.steps()
        last = f"the checkpoint of step {kept[-1]} is complete" if kept else "there is no checkpoint yet"
        raise SystemExit(f"{manager.path(step)} cannot be written ({error.strerror}); {last}") from None


def _blame(task: Task, manager: checkpoints.Manager, last: int) -> str:
    """Replays the steps since the last checkpoint and names the op that made the first NaN."""
    found = f"the loss was not finite by step {last}"
    try:
        done, state = _load(manager, task, task.state)
        with tvmfun.debug_nans():
            for step in range(done, last):
                state, loss = task.step(state, next(task.batches))
                if not math.isfinite(float(loss)):
                    return f"the loss was {float(loss)} in step {step + 1}, but no op made a NaN: try a smaller --lr"
    except NanError as error:
        return f"{found}: {error}"
    return found
