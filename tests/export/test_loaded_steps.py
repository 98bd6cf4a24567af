"""Loaded steps as objects: results in the memory of arguments, trees of named fields, copies and pickles."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.export import Step, load

X = np.arange(6, dtype="float32")
Renamed = namedtuple("Renamed", ["class", "a"], rename=True)


@tvmfun.tree.register_dataclass
@dataclass(frozen=True)
class Underscored:
    _w: Any
    größe: Any


def exported(function, *args, path: Path, donate=()) -> tuple[Any, Step]:
    jitted = tvmfun.jit(function, donate_argnums=donate)
    jitted.lower(*args).compile().export(path)
    return jitted, load(path)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        pytest.param(lambda x: x.reshape(3, 2), X, id="matrix"),
        pytest.param(lambda x: (x[None], x.sum()), X, id="new-axis"),
        pytest.param(lambda x: x[0], X.reshape(1, 6), id="row"),
        pytest.param(lambda x: x.reshape(1, 1), X[:1].reshape(()), id="scalar"),
        pytest.param(lambda x: x.reshape(()), X[:1], id="to-scalar"),
        pytest.param(lambda x: {"w": x.reshape(2, 3), "n": x + 1}, X, id="tree"),
        pytest.param(lambda x: x.reshape(3, 2) * 2, X, id="computed"),
    ],
)
def test_donated_result_has_its_own_shape(function, x, tmp_path):
    jitted, step = exported(function, x, path=tmp_path / "f.so", donate=0)
    before = x.copy()
    for got, want in zip(tvmfun.tree.leaves(step(x)), tvmfun.tree.leaves(jitted(x)), strict=True):
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(x, before)


def test_donated_result_of_a_dynamic_size(tmp_path):
    x = tvmfun.ShapeDtype((tvmfun.Dim("b", min=0), 4), "float32")
    _, step = exported(lambda x: x.reshape(-1), x, path=tmp_path / "f.so", donate=0)
    for b in (0, 1, 3):
        assert step(np.ones((b, 4), "float32")).shape == (4 * b,)


@pytest.mark.parametrize("tree", [Underscored(X, X), Renamed(X, X)], ids=["dataclass", "renamed"])
def test_any_field_name(tree, tmp_path):
    _, step = exported(lambda tree: tvmfun.tree.map(lambda x: x + 1, tree), tree, path=tmp_path / "f.so")
    result = step(tree)
    for name in vars(tree) if isinstance(tree, Underscored) else tree._fields:
        np.testing.assert_array_equal(getattr(result, name), X + 1)


def test_copies_and_pickles(tmp_path):
    _, step = exported(lambda x: tnp.sum(tnp.outer(x, x)), X, path=tmp_path / "f.so")
    want = step(X)
    others = [copy.copy(step), copy.deepcopy({"step": step})["step"], pickle.loads(pickle.dumps(step))]
    for other in (step, *others):
        assert other is not None and other(X) == want
    del step, other
    gc.collect()
    while others:
        assert others[-1](X) == want
        others.pop()
        gc.collect()
