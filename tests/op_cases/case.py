"""One way to call an op, and data to call it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
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

    def narrowed(self, op: str) -> Case:
        """The case of this op in single precision; a bitcast of float64 to int64 becomes one to int32."""
        arguments = tuple(x.astype(np.float32) if x.dtype == np.float64 else x for x in self.arguments)
        params = {k: "int32" if (op, v) == ("bitcast", "int64") else v for k, v in self.params.items()}
        return replace(self, arguments=arguments, params=params)
