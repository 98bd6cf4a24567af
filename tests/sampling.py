"""Which of many alike cases are tested in every run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def one_in(count: int, *axes: Iterable[Any]) -> list[Any]:
    """All combinations for ``parametrize``, of which every run takes one in ``count``, and a slow run all."""
    cases = enumerate(product(*map(list, axes)))
    return [pytest.param(*case, marks=[pytest.mark.slow] if i % count else []) for i, case in cases]


#: Files of many alike tests, in other files covered from another side, and of how many every run takes one.
ALIKE = {
    "lax/test_control_flow.py": 2,
    "lax/test_windows.py": 2,
    "lower/test_cpu_schedule.py": 2,
    "nn/test_attention.py": 2,
    "numpy/test_against_jax.py": 2,
    "numpy/test_elementwise.py": 2,
    "ops/test_against_jax.py": 2,
    "ops/test_batching.py": 3,
    "ops/test_simplify.py": 2,
    "test_dynamic_shapes.py": 3,
    "transforms/test_vmap.py": 2,
}


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Marks all but one in so many tests of the files of alike ones as slow; those without parameters stay."""
    counts = dict.fromkeys(ALIKE, 0)
    for item in items:
        name = next((name for name in ALIKE if item.path.as_posix().endswith(f"tests/{name}")), None)
        if name is None or not hasattr(item, "callspec") or item.get_closest_marker("slow"):
            continue
        if counts[name] % ALIKE[name]:
            item.add_marker(pytest.mark.slow)
        counts[name] += 1
