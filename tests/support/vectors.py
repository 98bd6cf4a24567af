"""Runs of tests as if this processor had longer or shorter vectors: ``--vectors=64`` or ``--vectors=16``.

Schedules are then those for such vectors, with as many registers and the caches of such a processor, but LLVM emits the
instructions that this one has. So what schedules compute for AVX-512 can be tested without. Tests marked
``own_vectors`` compare schedules or machine code with what this processor has, and are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from importlib import import_module

import pytest

# By the bytes of a vector: the registers, and the bytes of the L1 and L2 cache of a core.
_PROCESSORS = {16: (16, (64 << 10, 1 << 20)), 32: (16, (32 << 10, 512 << 10)), 64: (32, (48 << 10, 1 << 20))}


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "schedule as for vectors of so many bytes; see tests/support/vectors.py"
    parser.addoption("--vectors", type=int, choices=tuple(_PROCESSORS), help=help)


def pytest_configure(config: pytest.Config) -> None:
    nbytes = config.getoption("vectors")
    if nbytes is None:
        return
    module, settings = import_module("tvmfun.lower.machine"), import_module("tvmfun.lower.settings")
    registers, sizes = _PROCESSORS[nbytes]
    caches = tuple(module.Cache(level, size) for level, size in enumerate(sizes, 1))
    own = module._machine

    @wraps(own)
    def pretended(target: str, here: bool, measured: object) -> object:
        found = own(target, here, measured)
        changes = {"vector_bytes": nbytes, "registers": registers, "caches": caches}
        return replace(found, **changes, settings=settings.derived(registers, *sizes)) if here else found

    module._machine = pretended


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("vectors") is None:
        return
    for item in items:
        if item.get_closest_marker("own_vectors"):
            item.add_marker(pytest.mark.skip(reason="is about this processor's own vectors"))
