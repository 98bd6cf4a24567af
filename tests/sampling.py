"""Which of many alike cases are tested in every run."""

from __future__ import annotations

from collections import Counter
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
    "interop/test_relax_ops.py": 3,
    "lax/test_control_flow.py": 4,
    "lax/test_indexing.py": 5,
    "lax/test_linalg.py": 5,
    "lax/test_reductions.py": 5,
    "lax/test_sorting.py": 2,
    "lax/test_windows.py": 5,
    "lower/test_cpu_schedule.py": 3,
    "lower/test_dynamic_schedule.py": 3,
    "lower/test_hot_kernels.py": 2,
    "lower/test_intrinsics.py": 4,
    "lower/test_loops.py": 2,
    "lower/test_narrow_dots.py": 6,
    "lower/test_rows.py": 2,
    "lower/test_strided.py": 2,
    "lower/test_tune.py": 2,
    "lower/test_winograd.py": 3,
    "nn/test_attention.py": 5,
    "nn/test_attention_layers.py": 2,
    "nn/test_init.py": 4,
    "nn/test_layers.py": 2,
    "nn/test_losses.py": 6,
    "nn/test_nn.py": 4,
    "nn/test_recurrent.py": 2,
    "numpy/test_against_jax.py": 8,
    "numpy/test_at.py": 3,
    "numpy/test_elementwise.py": 3,
    "numpy/test_names.py": 3,
    "numpy/test_shapes_and_dtypes.py": 3,
    "numpy/test_special_cases.py": 2,
    "numpy/test_statistical.py": 2,
    "ops/test_against_jax.py": 6,
    "ops/test_batching.py": 5,
    "ops/test_dynamic_sizes.py": 3,
    "ops/test_registry.py": 4,
    "ops/test_simplify.py": 3,
    "optim/test_against_optax.py": 5,
    "optim/test_functions.py": 4,
    "optim/test_optim.py": 2,
    "scipy/test_linalg.py": 2,
    "scipy/test_special.py": 3,
    "scipy/test_stats.py": 2,
    "test_dynamic_shapes.py": 5,
    "test_random.py": 4,
    "test_random_distributions.py": 4,
    "transforms/test_amp.py": 2,
    "transforms/test_custom.py": 2,
    "transforms/test_vmap.py": 4,
}

# Multiples of the golden ratio, without their integer parts, are spread evenly, and in step with nothing: of cases that
# are all pairs of two lists, say, every value of both is taken.
_GOLDEN_RATIO = (5**0.5 - 1) / 2


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Marks all but one in so many cases of each test of the files of alike ones as slow."""
    counts: Counter[str] = Counter()
    for item in items:
        name = next((name for name in ALIKE if item.path.as_posix().endswith(f"tests/{name}")), None)
        if name is None or not hasattr(item, "callspec") or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.split("[")[0]
        if counts[test] * _GOLDEN_RATIO % 1 >= 1 / ALIKE[name]:
            item.add_marker(pytest.mark.slow)
        counts[test] += 1
