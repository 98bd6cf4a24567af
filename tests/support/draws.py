"""Random arrays for tables of cases, from one generator per table: the same in each run."""

from __future__ import annotations

import numpy as np


class Draws:
    """Draws arrays of a few kinds.

    Args:
        seed: of the generator.
    """

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def reals(self, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Returns uniform numbers."""
        return self.generator.uniform(low, high, shape)

    def apart(self, *shape: int) -> np.ndarray:
        """Returns numbers that are all different and not 0, so that no maximum has a tie and no kink is near."""
        count = int(np.prod(shape))
        return (self.generator.permutation(count) - count / 2 + 0.3).reshape(shape) / 3

    def ints(self, *shape: int, low: int = -5, high: int = 6) -> np.ndarray:
        """Returns integers."""
        return self.generator.integers(low, high, shape).astype(np.int32)

    def bools(self, *shape: int) -> np.ndarray:
        """Returns bools."""
        return self.generator.integers(0, 2, shape).astype(bool)
