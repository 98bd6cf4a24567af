"""One way to call an op, and data to call it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.draws import Draws

DRAWS = Draws(7)
reals, apart, ints, bools = DRAWS.reals, DRAWS.apart, DRAWS.ints, DRAWS.bools


@dataclass
class Case:
    """One way to call an op, and what NumPy says about it."""

    reference: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    params: dict[str, Any] = field(default_factory=dict)
    order: int = 2
    exact: bool = False
