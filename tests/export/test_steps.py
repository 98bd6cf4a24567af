"""Exported functions compute what ``jit`` computes, to the bit, without TVM."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import exported
from support.exported import bits

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, random
from tvmfun.export import load, loader, read_manifest

# libc's dynamic loader has the function that finds variables of threads.
ALLOWED = ("libc.so", "libm.so", "libpthread.so", "ld-linux")


@pytest.fixture(scope="module")
def jitted():
    return tvmfun.jit(exported.train_step, donate_argnums=0)


@pytest.fixture(scope="module")
def initial():
    return tvmfun.jit(exported.start)(random.key(0))


@pytest.fixture(scope="module")
def library(jitted, initial, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export") / "step.so"
    jitted.lower(initial, *exported.batch()).compile().export(path)
    return path


def copied(tree):
    return tvmfun.tree.map(lambda leaf: np.array(leaf), tree)


def run_exported(function, *args, donate=(), path: Path, **kwargs) -> tuple[Any, Any]:
    """The result of a function by ``jit``, and by its library."""
    jitted = tvmfun.jit(function, donate_argnums=donate)
    jitted.lower(*args, **kwargs).compile().export(path)
    step = load(path)
    return jitted(*copied(args), **copied(kwargs)), step(*copied(args), **copied(kwargs))


def test_every_step_is_equal_to_the_bit(jitted, initial, library):
    step = load(library)
    ours, theirs = tvmfun.tree.map(tnp.array, initial), copied(initial)
    for seed in range(5):
        ours, losses = jitted(ours, *exported.batch(seed))
        theirs, their_losses = step(theirs, *exported.batch(seed))
        assert bits(losses) == bits(their_losses)
    assert bits(ours) == bits(theirs)
    assert theirs._fields == ("params", "opt_state", "key")


def test_it_needs_libc_libm_and_threads(library):
    printed = subprocess.run(["readelf", "-d", "--dyn-syms", library], capture_output=True, text=True, check=True)
    needed = {line.split("[")[1].split("]")[0] for line in printed.stdout.splitlines() if "(NEEDED)" in line}
    assert all(name.startswith(ALLOWED) for name in needed)
    symbols = [line.split() for line in printed.stdout.splitlines() if re.match(r"\s*\d+: .* \S+$", line)]
    assert not [words[-1] for words in symbols if "TVM" in words[-1] or "tvm_ffi" in words[-1]]
    assert [words[7] for words in symbols if words[4] == "GLOBAL" and words[6].isdigit()] == ["tvmfun_get_api"]
    assert library.stat().st_size < 1 << 20


def test_the_loader_runs_alone(jitted, initial, library, tmp_path):
    copyfile(loader.__file__, tmp_path / "loader.py")
    arrays = [np.asarray(leaf) for leaf in tvmfun.tree.leaves(initial)]
    np.savez(tmp_path / "arrays.npz", *arrays, *exported.batch())
    program = f"""
import sys
import numpy as np
from loader import load
step = load({str(library)!r})
saved = np.load("arrays.npz")
*_, losses = step.run([saved[name] for name in saved.files])
print(losses.tobytes().hex(), sorted({{name.split(".")[0] for name in sys.modules}} & {{"tvm", "tvm_ffi", "tvmfun"}}))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    _, losses = jitted(copied(initial), *exported.batch())
    assert process.stdout.split() == [bits(losses)[0].hex(), "[]"]


def test_any_number_of_threads(initial, library):
    arguments = copied(initial), *exported.batch()
    expected = bits(load(library, threads=1)(*arguments))
    for threads in (2, 3, 7):
        assert bits(load(library, threads=threads)(*arguments)) == expected


def test_several_callers_of_one_step(initial, library):
    step = load(library, threads=3)
    arguments = copied(initial), *exported.batch()
    expected = bits(step(*arguments))
    with ThreadPoolExecutor(6) as pool:
        assert all(bits(result) == expected for result in pool.map(lambda _: step(*arguments), range(60)))


def test_leaves_have_names(library):
    step = load(library)
    names = [leaf.name for leaf in step.inputs]
    assert "state.params['hidden']['w']" in names and names[-2:] == ["x", "labels"]
    assert step.outputs[-1].name == "[1]"
    donated = [leaf for leaf in step.inputs if leaf.name.startswith("state")]
    assert all(leaf.donated for leaf in donated) and not step.inputs[-1].donated
    assert any(leaf.partner >= 0 for leaf in donated)


def test_the_manifest(library):
    manifest = read_manifest(library)
    assert manifest["name"] == "train_step" and manifest["architecture"] in ("x86_64", "aarch64")
    assert set(manifest["versions"]) == {"tvmfun", "apache-tvm"}
    plan = load(library).plan
    assert plan["temporaries"] == manifest["variants"][0]["temporaries"]
    assert plan["target"] == manifest["variants"][0]["target"]


class Pair(NamedTuple):
    left: Any
    right: Any


@tvmfun.tree.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    weight: Any
    inner: Any
    size: int = dataclasses.field(default=3, metadata={"static": True})


def test_trees(tmp_path):
    x = np.arange(6, dtype="float32")

    def function(first, /, pair, *rest, scale, options):
        layer = Layer(pair.left * scale, {"a": [first, None], 2: pair.right}, 5)
        return {"layer": layer, "pair": Pair((rest[0], rest[1]), ()), "sum": options["x"] + options["y"].weight}

    args = (x, Pair(x + 1, (x > 2)), x + 2, x + 3)
    kwargs = {"scale": np.float32(2), "options": {"x": x, "y": Layer(x, None)}}
    ours, theirs = run_exported(function, *args, path=tmp_path / "f.so", **kwargs)
    assert bits(ours) == bits(theirs)
    assert theirs["layer"].inner["a"][1] is None and theirs["pair"] == (theirs["pair"].left, ())
    names = [leaf.name for leaf in load(tmp_path / "f.so").inputs]
    assert names == ["first", "pair.left", "pair.right", "rest[0]", "rest[1]", *names[5:]]


def test_results_that_are_arguments_or_each_other(tmp_path):
    x, y = np.arange(100.0, dtype="float32"), np.ones(100, "float32")
    table = tnp.arange(100.0)

    def function(x, y, z):
        total = x + y
        return y, x, z, z, total, total, tnp.zeros(3), table, table + z

    ours, theirs = run_exported(function, x, y, y + 1, donate=(0, 1), path=tmp_path / "f.so")
    assert bits(ours) == bits(theirs)


def test_no_elements_and_no_arguments(tmp_path):
    empty = np.zeros((0, 3), "float32")
    ours, theirs = run_exported(lambda x: (x * 2, x.sum()), empty, donate=0, path=tmp_path / "f.so")
    assert bits(ours) == bits(theirs) and theirs[0].shape == (0, 3)
    ours, theirs = run_exported(lambda: tnp.arange(5), path=tmp_path / "g.so")
    assert bits(ours) == bits(theirs)


def test_dtypes(tmp_path):
    arrays = {str(dtype): np.arange(-3, 14).astype(dtype) for dtype in tvmfun.dtypes.ALL}
    function = lambda arrays: {name: (~array if array.dtype == bool else array + 1) for name, array in arrays.items()}
    ours, theirs = run_exported(function, arrays, donate=0, path=tmp_path / "f.so")
    assert bits(ours) == bits(theirs)
    assert {name: str(array.dtype) for name, array in theirs.items()} == {name: name for name in arrays}


@pytest.mark.slow
def test_kernels_with_workspaces_libm_and_loops(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 200)).astype("float32")

    def function(x, n):
        spd = x @ x.T + 200 * tnp.eye(200)
        count, y = lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, tnp.sin(s[1] @ x)), (0, x))
        return tnp.linalg.cholesky(spd), tnp.sort(x, axis=0), count, y, tnp.argsort(x), x**2.5, tnp.cumsum(x, 1)

    ours, theirs = run_exported(function, x, np.int32(7), path=tmp_path / "f.so")
    assert bits(ours) == bits(theirs)


def test_initial_values(tmp_path):
    x, scale = np.arange(12, dtype="float32").reshape(3, 4), tnp.asarray(3.0, "bfloat16")
    compiled = tvmfun.jit(lambda tree, y: tree["x"] + y).lower({"x": x, "scale": scale}, 1.0).compile()
    compiled.export(tmp_path / "f.so", values={"tree": {"x": x, "scale": scale}})
    initial = load(tmp_path / "f.so").initial()
    assert set(initial) == {"tree['x']", "tree['scale']"}
    assert np.array_equal(initial["tree['x']"], x) and initial["tree['scale']"] == 3


def test_donated_results_are_overwritten_unless_they_are_seen(tmp_path):
    tvmfun.jit(lambda x: x + 1, donate_argnums=0).lower(np.zeros(64, "float32")).compile().export(tmp_path / "f.so")
    step = load(tmp_path / "f.so")
    mine = np.zeros(64, "float32")
    first = step(mine)
    address = first.ctypes.data
    assert mine[0] == 0 and address != mine.ctypes.data
    second = step(first)
    assert second.ctypes.data == address and second[0] == 2
    seen = second[:3]
    third = step(second)
    assert third.ctypes.data != address and seen.tolist() == [2, 2, 2]
    # Donated already: it is another array's memory now.
    assert step(second)[0] == 3 and third[0] == 3


def test_a_donated_array_that_is_given_twice(tmp_path):
    function = tvmfun.jit(lambda x, y: (x + y, y), donate_argnums=0)
    x = np.ones(64, "float32")
    function.lower(x, x).compile().export(tmp_path / "f.so")
    step = load(tmp_path / "f.so")
    total, _ = step(x, x)
    again, same = step(total, total)
    assert again[0] == 4 and same[0] == 2


OUT_OF_MEMORY = """
import resource
import numpy as np
from loader import ExportError, load
step = load("f.so", threads=2)
x = np.arange(1 << 22, dtype="float32")
expected = step.run([x])[0].tobytes()
small = load("f.so", threads=2)
result = step.run([x])
limits = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
del result
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), limits[1]))
for _ in range(3):
    try:
        small.run([x])
    except ExportError as error:
        print(error.status, error)
resource.setrlimit(resource.RLIMIT_AS, limits)
print(small.run([x])[0].tobytes() == expected)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_kernel_without_memory_fails_and_can_be_run_again(tmp_path):
    compiled = tvmfun.jit(tnp.argsort).lower(tvmfun.ShapeDtype((1 << 22,), "float32")).compile()
    assert compiled.memory_analysis().workspaces > 8 << 20
    compiled.export(tmp_path / "f.so")
    copyfile(loader.__file__, tmp_path / "loader.py")
    command = [sys.executable, "-c", OUT_OF_MEMORY]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    *failures, last = process.stdout.splitlines()
    assert last == "True" and len(failures) == 3
    assert all(line.startswith("OUT_OF_MEMORY") and "workspace" in line for line in failures)
