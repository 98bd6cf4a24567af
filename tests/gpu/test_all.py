"""The command that checks and times everything on a GPU, on an emulated one."""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cuda_emulator import GXX

pytest.importorskip("torch")
if GXX is None:
    pytest.skip("there is no g++, which compiles the emulated kernels", allow_module_level=True)

from bench.models import lstm
from support.cuda_emulator.gpu import emulated_gpus

from gpu import all as everything
from gpu import bundle, candidates, peers, report, steps, tiles, timing
from tvmfun.lower.schedule.gpu import tiles as chosen_tiles
from tvmfun.lower.schedule.gpu.measured_tiles import MEASURED

pytestmark = [pytest.mark.interop, pytest.mark.slow]

NAMES = ["tanh-0", "dot_general: derivatives", "bits", "rows", "no elements", "switch", "dynamic: step"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The file of a few functions and a small step, and the GPU that it is for."""
    patch = pytest.MonkeyPatch()
    patch.setattr(lstm, "LENGTH", 3)
    patch.setattr(lstm, "BATCH", 2)
    patch.setattr(lstm, "INPUTS", 5)
    patch.setattr(lstm, "WIDTH", 7)
    patch.setattr(bundle, "STEPS", 4)
    for table in (steps.TRAINED, steps.TIMED):
        patch.setitem(table, "small", replace(lstm.CASE, name="small"))
    file = tmp_path_factory.mktemp("gpu") / "gpu.zip"
    patch.setattr(timing, "_REPEATS", 3)
    with emulated_gpus(seed=3):
        entries = [("comparison", name) for name in NAMES]
        assert bundle.write(file, [*entries, ("trained", "small"), ("timed", "small")], "sm_90a") == {}
        yield file
    patch.undo()


def run(path, *options):
    code = everything.main("--bundle", str(path), "--out", str(path.parent / "gpu.json"), "--in-process", *options)
    return code, json.loads((path.parent / "gpu.json").read_text())


def test_functions_and_losses_are_the_cpus_and_everything_is_timed(path):
    code, found = run(path, "--stages", "comparison", "trained", "timed")
    assert (code, found["errors"], found["left out"], found["not compiled"]) == (0, {}, [], {})
    assert max(one["difference"] for one in found["comparison"].values()) < 1
    assert found["trained"]["small"]["difference"] < 1e-1
    assert found["timed"]["small"]["ms"] > 0
    kernels = found["timed"]["small"]["kernels"]
    assert sum(row["launches"] for row in kernels) <= found["timed"]["small"]["launches"]
    text = report.tables(found)
    assert "small" in text and kernels[0]["kernel"] in text


def test_wrong_results_are_named(path, tmp_path, capsys):
    damaged = tmp_path / "gpu.zip"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(damaged, "w") as new:
        folder = json.loads(old.read("index.json"))["entries"][0]["folder"]
        for name in old.namelist():
            content = bytearray(old.read(name))
            if name == f"{folder}/expected":
                content[3] ^= 1
                content[6] ^= 64
            new.writestr(name, bytes(content))
    code, found = run(damaged, "--stages", "comparison")
    assert code == 1
    assert [name for name, one in found["comparison"].items() if one["difference"] > 1] == ["tanh-0"]
    assert "wrong by" in capsys.readouterr().out


def test_what_there_is_no_time_for_is_said(path):
    code, found = run(path, "--stages", "comparison", "trained", "--seconds", "0")
    assert (code, found["comparison"], found["trained"]) == (0, {}, {})
    assert len(found["left out"]) == len(NAMES) + 1


def test_each_framework_is_an_entry(path, monkeypatch):
    monkeypatch.setattr(peers, "peer", lambda name, framework: {"ms": 12.5 if framework == "JAX" else 25.0})
    code, found = run(path, "--stages", "timed", "peers", "--only", "^small")
    assert (code, set(found["peers"])) == (0, {"small: JAX", "small: PyTorch"})
    assert "| 25.00 | - | - | 12.50 |" in report.tables(found)
    code, found = run(path, "--stages", "peers", "--only", "JAX$")
    assert (code, found["peers"]) == (0, {"small: JAX": {"ms": 12.5}})


def test_the_launcher_needs_no_tvm():
    program = "import sys; sys.modules['tvm'] = None; from tests.gpu import runtime; print('tvmfun.jit' in sys.modules)"
    folder = str(Path(np.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=everything.ROOT,
        env={"PYTHONPATH": folder},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "False", done.stderr


def test_tiles_of_products_are_timed_and_the_fastest_are_a_table(tmp_path, monkeypatch):
    monkeypatch.setitem(steps.TIMED, "small", replace(lstm.CASE, name="small"))
    for name, size in {"LENGTH": 2, "BATCH": 4, "INPUTS": 8, "WIDTH": 16}.items():
        monkeypatch.setattr(lstm, name, size)
    monkeypatch.setattr(candidates, "_TRIED", 2)
    monkeypatch.setattr(timing, "_IN_A_ROW", 1)
    with emulated_gpus(seed=3):
        file = tmp_path / "tiles.zip"
        candidates.main("--into", str(file), "--steps", "small", "--processes", "0")
        code, found = run(file, "--stages", "tiles")
    assert (code, found["errors"]) == (0, {})
    assert found["tiles"] and min(found["tiles"].values()) > 0
    table = tiles.fastest(file, tmp_path / "gpu.json")
    assert table
    for (dtype, *sizes), (tile, splits) in table.items():
        known = [(option.key, parts) for option, parts in chosen_tiles.options(dtype, tuple(sizes), "sm_90a")]
        assert (tile, splits) in known


def test_measured_tiles_are_options():
    for (dtype, *sizes), fastest in MEASURED["sm_90a"].items():
        tile, splits = chosen_tiles.choose(dtype, tuple(sizes), "sm_90a")
        assert (tile.key, splits) == fastest
