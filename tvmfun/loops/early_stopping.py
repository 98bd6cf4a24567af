"""Early stopping: when a metric has not improved for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from tvmfun import tree
from tvmfun.data.sources import positive
from tvmfun.errors import ArgumentError
from tvmfun.typing import Scalar

__all__ = ["EarlyStopping"]


@tree.register_dataclass(meta_fields=("patience", "min_delta", "mode"))
@dataclass(frozen=True)
class EarlyStopping:
    """Tells when a metric has stopped improving. It is a tree of two numbers, so that a checkpoint can keep it.

    Args:
        patience: the number of updates without improvement after which to stop.
        min_delta: the least change that counts as an improvement.
        mode: ``"min"`` if lower is better, ``"max"`` if higher is.
        best: the best metric so far; NaN before the first.
        waited: the number of updates since then.

    Raises:
        ArgumentError: if an argument is invalid.

    >>> stopping = EarlyStopping(patience=2, mode="max")
    >>> for accuracy in (0.5, 0.7, 0.6, 0.7):
    ...     stopping = stopping.update(accuracy)
    >>> stopping.best, stopping.waited, stopping.should_stop
    (0.7, 2, True)
    """

    patience: int
    min_delta: float = 0.0
    mode: Literal["min", "max"] = "min"
    best: float = math.nan
    waited: int = 0

    def __post_init__(self) -> None:
        positive("EarlyStopping", "patience", self.patience)
        if not self.min_delta >= 0:
            raise ArgumentError("EarlyStopping", "min_delta must not be negative", got=repr(self.min_delta))
        if self.mode not in ("min", "max"):
            raise ArgumentError("EarlyStopping", "the mode is unknown", got=repr(self.mode), hint='"min" or "max"')

    def update(self, metric: Scalar) -> EarlyStopping:
        """Returns the state after a further value, a number or a 0-d array; NaN is not an improvement."""
        value = float(metric)
        gain = self.best - value if self.mode == "min" else value - self.best
        if gain > self.min_delta or (math.isnan(self.best) and not math.isnan(value)):
            return replace(self, best=value, waited=0)
        return replace(self, waited=self.waited + 1)

    @property
    def improved(self) -> bool:
        """Whether the last update was the best so far: the moment to keep the parameters."""
        return self.waited == 0 and not math.isnan(self.best)

    @property
    def should_stop(self) -> bool:
        """Whether there was no improvement for ``patience`` updates."""
        return self.waited >= self.patience
