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
