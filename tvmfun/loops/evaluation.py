"""Exact sums of metrics over batches of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from tvmfun import tree
from tvmfun.errors import DataError
from tvmfun.metrics import Mean
from tvmfun.typing import ArrayLike, PyTree

__all__ = ["evaluate"]


def evaluate(step: Callable[[PyTree, PyTree], PyTree], params: PyTree, batches: Iterable[PyTree]) -> PyTree:
    """Sums the results of a step over batches, which may differ in size.

    Args:
        step: a function, usually jitted, for which ``step(params, batch)`` is a tree of sums over the batch, such as a
            dict of :class:`Mean`. Arrays of counts, such as a confusion matrix, are sums as well.
        params: the first argument of the step.
        batches: an iterable of batches.

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
        # The previous result is fetched only now, so that the device can compute the next one during the copy.
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


def _added(totals: PyTree, results: PyTree) -> PyTree:
    if results is None:
        return totals
    fetched = tree.map(_wide, results)
    return fetched if totals is None else tree.map(np.add, totals, fetched)


def _wide(leaf: ArrayLike) -> np.ndarray:
    """Converts to 64 bits, so that sums over many batches do not overflow."""
    array = np.asarray(leaf)
    return array.astype("int64" if array.dtype.kind in "biu" else "float64")
