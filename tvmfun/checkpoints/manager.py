"""Checkpoints of one training run in a folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tvmfun.checkpoints import trees
from tvmfun.checkpoints.atomic import remove_abandoned, replace_file
from tvmfun.checkpoints.trees import Snapshot
from tvmfun.errors import ArgumentError
from tvmfun.executors import ThreadPool
from tvmfun.typing import PyTree

__all__ = ["Manager"]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class Manager:
    """A folder with the last few checkpoints of a training run.

    A save returns immediately, and a thread writes the arrays as they were at the call. One save at a time is
    under way; the next one waits for it. Use it in a ``with`` block, which waits for the last save and raises its error
    if it failed; so do :meth:`save` and :meth:`wait`. Reading methods wait as well.

    Args:
        folder: the folder, created if it does not exist.
        keep: the number of checkpoints to keep; ``None`` for all. Older ones are deleted after a newer one
            is on the disk.
        background: False to write before :meth:`save` returns.

    Raises:
        ArgumentError: if ``keep`` is not positive.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Manager(folder, keep=2) as checkpoints:
    ...     for step in range(5):
    ...         checkpoints.save(step, {"loss": 1 / (step + 1)})
    ...     checkpoints.steps(), checkpoints.load({"loss": 0.0})
    ([3, 4], {'loss': 0.2})
    """

    _PREFIX = "step_"
    _SUFFIX = ".safetensors"

    def __init__(self, folder: str | os.PathLike[str], *, keep: int | None = 3, background: bool = True) -> None:
        if keep is not None and (not _is_integer(keep) or keep < 1):
            raise ArgumentError("Manager", "keep must be a positive integer or None", got=repr(keep))
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keep, self._background = keep, background
        self._executor = ThreadPool(1, "checkpoints")
        self._pending: Future | None = None
        self._lock = threading.Lock()

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"{self._PREFIX}{step:010d}{self._SUFFIX}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        self.wait()
        return self._existing()

    def save(self, step: int, tree: PyTree, *, metadata: Mapping[str, str] | None = None) -> None:
        """Saves the tree of a step; see :func:`tvmfun.checkpoints.save`.

        Raises:
            ArgumentError: if the step is not a natural number.
            OSError: if this or the last save could not be written.
        """
        if not _is_integer(step) or step < 0:
            raise ArgumentError("Manager.save", "the step must be a natural number", got=repr(step))
        step = int(step)
        with self._lock:
            self._wait()
            snapshot = Snapshot("Manager.save", tree, metadata, owned=self._background)
            if self._background:
                self._pending = self._executor.submit(self._save, step, snapshot)
            else:
                self._save(step, snapshot)

    def load(self, like: PyTree, step: int | None = None) -> PyTree:
        """Loads the tree of a step, by default of the last one; see :func:`tvmfun.checkpoints.load`.

        Raises:
            FileNotFoundError: if there is no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise FileNotFoundError(f"[Manager.load] there is no checkpoint in {self.folder}.")
        step = steps[-1] if step is None else step
        if step not in steps:
            kept = ", ".join(map(str, steps))
            raise FileNotFoundError(f"[Manager.load] there is no step {step} in {self.folder}, but {kept}.")
        return trees.load(self.path(step), like)

    def wait(self) -> None:
        """Waits until the last save is on the disk.

        Raises:
            OSError: if it could not be written.
        """
        with self._lock:
            self._wait()

    def close(self) -> None:
        """Waits for the last save and ends the thread; later saves are written before :meth:`save` returns."""
        try:
            self.wait()
        finally:
            self._executor.shutdown()

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _save(self, step: int, snapshot: Snapshot) -> None:
        replace_file(self.path(step), snapshot.write)
        remove_abandoned(self.folder, f"{self._PREFIX}*{self._SUFFIX}")
        if self._keep is not None:
            # After a return to an earlier step, the file just written is not the last.
            others = [other for other in self._existing() if other != step]
            for other in others[: max(0, len(others) + 1 - self._keep)]:
                self.path(other).unlink(missing_ok=True)

    def _existing(self) -> list[int]:
        middle = slice(len(self._PREFIX), -len(self._SUFFIX))
        files = list(self.folder.glob(f"{self._PREFIX}*{self._SUFFIX}"))
        steps = [(int(file.name[middle]), file) for file in files if file.name[middle].isdecimal()]
        # Files of other names are not of this class.
        return sorted([step for step, file in steps if file == self.path(step) and file.is_file()])
