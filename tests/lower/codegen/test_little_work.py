"""Programs of little work: machine code without LLVM's optimizations, which computes the same."""

import math
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from op_cases import CASES, Case

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.cost import work
from tvmfun.core.op import REGISTRY, Op
from tvmfun.lower import cache, pipeline
from tvmfun.lower import target as targets

X = np.random.default_rng(0).normal(size=(6, 7)).astype("float32")


def leaves(function, arguments, limit, monkeypatch) -> dict[str, np.ndarray]:
    """The results of a function that is compiled anew, optimized if its work exceeds the limit, by their places."""
    monkeypatch.setattr(pipeline, "_LITTLE_WORK", limit)
    monkeypatch.setattr(cache, "_EXECUTABLES", OrderedDict())
    results = tvmfun.tree_util.tree_leaves_with_path(tvmfun.jit(function)(*arguments))
    return {tvmfun.tree_util.keystr(path): np.asarray(leaf) for path, leaf in results}


def assert_same(function, arguments, monkeypatch):
    quickly = leaves(function, arguments, math.inf, monkeypatch)
    optimized = leaves(function, arguments, -1, monkeypatch)
    for place, reference in optimized.items():
        # LLVM may choose others among the products and sums that become one instruction and are rounded once.
        tolerance = {"float32": 2e-6, "float64": 1e-14}.get(reference.dtype.name, 0)
        np.testing.assert_allclose(quickly[place], reference, tolerance * 10, tolerance, err_msg=place)


def is_often(op: Op, index: int) -> bool:
    return index == 0 and (op.kind != "pointwise" or op.name in ("exp", "lgamma", "remainder", "select", "astype"))


# Further cases of an op have the same formulas at other indices.
EVERY = [(REGISTRY[name], i, case) for name in CASES for i, case in enumerate(CASES[name][:2])]
OFTEN = [(op, i, case) for op, i, case in EVERY if is_often(op, i)]
OTHERS = [(op, i, case) for op, i, case in EVERY if not is_often(op, i)]


@pytest.mark.parametrize(
    "cases",
    [
        *(pytest.param(OFTEN[i::4], id=f"often-{i}") for i in range(4)),
        *(pytest.param(OTHERS[i::8], id=f"others-{i}", marks=pytest.mark.slow) for i in range(8)),
    ],
)
def test_ops(cases: list[tuple[Op, int, Case]], monkeypatch):
    """Some dozen ops in one Program."""
    run = lambda given: {
        f"{op.name}-{i}": op(*arguments, **case.params) for (op, i, case), arguments in zip(cases, given, strict=True)
    }
    assert_same(run, ([case.arguments for *_, case in cases],), monkeypatch)


PROGRAMS = {
    "float16": lambda x: tnp.exp(x.astype("float16")) @ x.T.astype("float16"),
    "bfloat16": lambda x: tnp.tanh(x.astype("bfloat16")) * 3,
    "bool": lambda x: tnp.cumsum(x > 0, axis=1),
    "int8": lambda x: (x * 100).astype("int8") // 3,
    "no elements": lambda x: x[:0] + 1,
    "several kernels": lambda x: (
        tnp.linalg.solve(x[:, :6] + 9 * tnp.eye(6, dtype="float32"), x),
        tnp.sort(x),
        x @ x.T,
    ),
    "gradient": tvmfun.grad(lambda x: tnp.sum(tnp.tanh(x @ x.T) * tnp.max(x, axis=1))),
    "random": lambda x: tvmfun.random.normal(tvmfun.random.key(0), x.shape) + x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, monkeypatch):
    assert_same(PROGRAMS[name], (X,), monkeypatch)


def source(function, x, target=None):
    module, _ = pipeline.build(tvmfun.trace(function)(x), target or targets.host())
    return module.load().inspect_source("ll")


def test_long_sums_are_optimized_and_short_ones_generate_code_at_the_same_level():
    small, large = (source(lambda x: tnp.sum(tnp.exp(x)), np.ones(n, "float32")) for n in (100, 10_000))
    level = r"\22opt-level\22:2"
    assert level in small and level in large
    # LLVM's optimizer infers these attributes; code generation does not.
    assert "captures(none)" in large and "captures(none)" not in small
    assert "half" not in small and "dbg" not in small


def test_a_level_of_the_target_is_kept():
    target = targets.host()
    chosen = type(target)({**target.export(), "opt-level": 3})
    # TVM does not write its own default.
    assert "opt-level" not in source(lambda x: tnp.exp(x), np.ones(10, "float32"), chosen)


def test_systems_without_files_in_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert "captures(none)" not in source(lambda x: tnp.exp(x), np.ones(11, "float32"))


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="resident memory is read from Linux's files")
@pytest.mark.parametrize("limit", [0, math.inf])
def test_workspaces_are_freed(limit, monkeypatch):
    """Packed columns of a factor, 10 KB."""
    monkeypatch.setattr(pipeline, "_LITTLE_WORK", limit)
    monkeypatch.setattr(cache, "_EXECUTABLES", OrderedDict())
    product = tvmfun.jit(lambda x, y: tnp.tanh(x @ y))
    x, y = tnp.ones((37, 50)), tnp.ones((50, 37))
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    for _ in range(100):
        product(x, y)
    before = resident()
    for _ in range(2000):
        product(x, y)
    assert resident() - before < 4 << 20


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + 1, 85),
        (lambda x: x.astype("int32") + 1, 84 + 85),
        (lambda x: x @ x.T, 2 * 6 * 7 + 6 * 6),
        (lambda x: lax.fori_loop(0, 3, lambda i, x: x + 1, x), math.inf),
        (lambda x: lax.while_loop(lambda x: x[0, 0] < 0, lambda x: x + 1, x), math.inf),
        (lambda x: lax.cond(x[0, 0] > 0, lambda x: x, lambda x: -x, x), math.inf),
    ],
    ids=["add", "integers", "product", "counted", "while", "cond"],
)
def test_work(function, expected):
    assert work(tvmfun.trace(function)(X)) == expected
