"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvmfun import tree
from tvmfun.nn import functional

__all__ = ["Dropout"]


@tree.register_dataclass
@dataclass(frozen=True)
class Dropout:
    """Zeroes elements at random while training and scales the others up; has no parameters.

    Args:
        rate: the probability with which an element is zeroed.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1.

    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).

    >>> import tvmfun.numpy as tnp
    >>> Dropout(0.5)(tnp.asarray([1.0, 2.0]), train=False)
    Array([1., 2.], dtype=float32)
    """

    rate: float = field(metadata={"static": True})

    def __post_init__(self) -> None:
        functional.check_rate("Dropout", self.rate)

    def __call__(self, x: Any, *, key: Any = None, train: bool = True) -> Any:
        """Applies dropout; the key is needed only if ``train``, and the same key drops the same elements."""
        return functional.dropout(key, x, self.rate, train)
