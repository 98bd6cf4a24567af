"""Exact sums of metrics over batches of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tvmfun import tree
from tvmfun.errors import DataError
from tvmfun.metrics import Mean

__all__ = ["evaluate"]


def evaluate(step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]) -> Any:
    """Adds up what a step returns over batches, exactly, even if they differ in size.

    Args:
        step: ``step(params, batch)`` returns a tree of sums over the batch, usually a dict of :class:`Mean`; jitted.
            Arrays of counts such as a confusion matrix are sums, too.
        params: the first argument of the step.
        batches: what to go through.

    Returns:
        The tree with a float for each :class:`Mean`, and NumPy arrays of sums elsewhere.

    Raises:
        DataError: if there are no batches.

    >>> step = lambda params, batch: {"loss": Mean.init().add(params * batch)}
    >>> evaluate(step, 2.0, [np.asarray([1.0, 2.0]), np.asarray([6.0])])
    {'loss': 6.0}
    """
    totals = pending = None
    for batch in batches:
        result = step(params, batch)
        # What the step before has returned is fetched only now, so that the device has something to do meanwhile.
        totals, pending = _added(totals, pending), result
    totals = _added(totals, pending)
    if totals is None:
        raise DataError("evaluate", "there must be a batch", got="none", hint='last="keep" for small data')
    with np.errstate(invalid="ignore"):
        return tree.map(
            lambda node: float(node.total / node.count) if isinstance(node, Mean) else node,
            totals,
            is_leaf=lambda node: isinstance(node, Mean),
        )


def _added(totals: Any, results: Any) -> Any:
    if results is None:
        return totals
    fetched = tree.map(_wide, results)
    return fetched if totals is None else tree.map(np.add, totals, fetched)


def _wide(leaf: Any) -> np.ndarray:
    """The elements as numbers that do not overflow when many batches are added."""
    array = np.asarray(leaf)
    return array.astype("int64" if array.dtype.kind in "biu" else "float64")
