"""Calibration: what is taken, what busy machines must not change, and what is kept on disk."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from tvm.target import Target

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import calibration, errors, lax
from tvmfun.calibration import PAIRS, Trial, calibrate
from tvmfun.lower import settings as stored
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine, description
from tvmfun.lower.settings import ScheduleSettings

DEFAULT = ScheduleSettings()
OTHER = ScheduleSettings(panel_level=1, serial_work=1 << 13, tasks_per_core=2, winograd_channels=128)


def search(seconds, noise=lambda rng: 1.0, start=DEFAULT, cores=2, seed=0):
    """The settings found where a kernel takes ``seconds(settings)`` times a noise."""
    rng = np.random.default_rng(seed)

    def measure(probe, first, second):
        return [(seconds(first) * noise(rng), seconds(second) * noise(rng)) for _ in range(PAIRS)]

    *trials, found = calibrate(start, measure, cores)
    assert all(isinstance(trial, Trial) for trial in trials)
    return found, trials


def away(name, best):
    """Seconds that grow with the distance of a setting from its best value, in powers of two."""
    return lambda settings: 1 + 0.2 * abs(np.log2(getattr(settings, name) / best))


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("panel_level", 2),
        ("serial_work", 1 << 18),
        ("serial_work", 1 << 12),
        ("tasks_per_core", 2),
        ("tasks_per_core", 16),
        ("winograd_channels", 128),
        ("winograd_channels", 16),
    ],
)
def test_the_fastest_value_is_found(name, best):
    found, _ = search(away(name, best))
    assert found == DEFAULT._replace(**{name: best})


def test_all_settings_at_once():
    seconds = lambda settings: np.prod([away(name, value)(settings) for name, value in OTHER._asdict().items()])
    assert search(seconds, start=ScheduleSettings(panel_level=2))[0] == OTHER


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "noise",
    [
        lambda rng: rng.uniform(0.97, 1.03),
        lambda rng: rng.lognormal(0, 0.05),
        lambda rng: 1 + 20 * (rng.random() < 0.2),
    ],
    ids=["quiet", "normal", "interrupted"],
)
def test_noise_changes_nothing(noise, seed):
    assert search(lambda settings: 1.0, noise, seed=seed)[0] == DEFAULT


def test_a_machine_that_slows_down_meanwhile_changes_nothing():
    clock = iter(range(1_000_000))
    assert search(lambda settings: 1.0 + next(clock) / 100)[0] == DEFAULT


@pytest.mark.parametrize("seed", range(3))
def test_a_gain_is_seen_through_interruptions(seed):
    found, _ = search(away("panel_level", 2), lambda rng: 1 + 20 * (rng.random() < 0.1), seed=seed)
    assert found.panel_level == 2


def test_small_gains_are_not_taken():
    assert search(lambda settings: 1.0 / 1.04 if settings.panel_level == 2 else 1.0)[0] == DEFAULT


def test_what_is_slower_for_one_kernel_is_not_taken():
    def measure(probe, first, second):
        ratio = 1.0 if first.panel_level == second.panel_level else 1.2 if probe.arguments[0].ndim == 3 else 0.5
        return [(1.0, ratio)] * PAIRS

    assert [*calibrate(DEFAULT, measure, 2)][-1] == DEFAULT


def test_one_thread_has_no_tasks():
    _, trials = search(lambda settings: 1.0, cores=1)
    assert {trial.name for trial in trials} == {"panel_level", "winograd_channels"}


def test_probes_are_what_the_two_values_compile_differently():
    for choice in calibration._CHOICES:
        start = getattr(DEFAULT, choice.name)
        for values in choice.directions(start):
            assert all(value > 0 for value in values) and start not in values
            assert choice.probes(start, values[0])


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TVMFUN_CALIBRATION", raising=False)
    yield tmp_path / "cache"
    stored._stored.cache_clear()


def here():
    return Machine.of(targets.host()).settings


def test_settings_are_those_of_the_caches_until_others_are_stored(directory, monkeypatch):
    derived = here()
    path = stored.store(description(), OTHER)
    assert path is not None and path.parent == directory and path.stat().st_mode & 0o77 == 0
    assert here() == OTHER and Machine.of(Target({**targets.host().export(), "num-cores": 1})).settings == OTHER
    monkeypatch.setenv("TVMFUN_CALIBRATION", "0")
    assert here() == derived
    monkeypatch.setenv("TVMFUN_CALIBRATION", "no")
    with pytest.raises(errors.ArgumentError, match="TVMFUN_CALIBRATION. it must be 0 or 1, got 'no'"):
        here()


def test_other_targets_and_other_machines_have_their_own(directory):
    derived = here()
    other = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver5", "num-cores": 2})
    before = Machine.of(other)
    stored.store(description(), OTHER)
    assert Machine.of(other) == before
    stored.store("another machine", OTHER)
    (directory / stored._name(description())).unlink()
    stored._stored.cache_clear()
    assert here() == derived


@pytest.mark.parametrize(
    "change",
    [
        lambda values: None,
        lambda values: values | {"panel_level": 3},
        lambda values: values | {"serial_work": "many"},
        lambda values: values | {"serial_work": True},
        lambda values: values | {"tasks_per_core": 0},
        lambda values: values | {"machine": "another"},
        lambda values: values | {"unknown": 1},
        lambda values: {"machine": values["machine"]},
        lambda values: [],
    ],
)
def test_files_that_are_not_understood_are_passed_over(directory, change):
    derived = here()
    values = {"machine": description(), **OTHER._asdict()}
    stored.disk_cache.store_bytes(stored._name(description()), json.dumps(change(values)).encode())
    assert here() == derived


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 100])
def test_damaged_files_are_passed_over(directory, content):
    derived = here()
    path = stored.store(description(), OTHER)
    assert path is not None
    path.write_bytes(content)
    stored._stored.cache_clear()
    assert here() == derived


def test_without_a_directory_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    assert stored.store(description(), OTHER) is None


# -- what they decide --------------------------------------------------------------------------------------------------


def test_compiled_functions_are_kept_by_their_settings():
    x = np.random.default_rng(0).normal(size=(200, 160)).astype("float32")
    lowered = tvmfun.jit(lambda x: tnp.tanh(x @ x.T)).lower(x)
    derived = lowered.compile()
    with stored.using(here()._replace(serial_work=1 << 40)):
        serial = lowered.compile()
    texts = [compiled.executable.module.inspect_source("ll") for compiled in (derived, serial)]
    launches = [bool(re.search(r"load ptr, ptr @\w+ParallelLaunch", text)) for text in texts]
    assert launches == [True, False]
    np.testing.assert_array_equal(serial(x), derived(x))
    assert lowered.compile().executable is derived.executable


@pytest.mark.parametrize("settings", [OTHER, ScheduleSettings(2, 1, 64, 16)], ids=["one", "another"])
@pytest.mark.parametrize("shape", [(37, 300, 129), (130, 1, 77), (0, 5, 3), (64, 700, 64)])
def test_results_are_right_with_any_settings(shape, settings):
    m, k, n = shape
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(m, k)).astype("float32"), rng.normal(size=(k, n)).astype("float32")
    with stored.using(settings):
        product = tvmfun.jit(lambda a, b: tnp.exp(-((a @ b) ** 2))).lower(a, b).compile()
    np.testing.assert_allclose(product(a, b), np.exp(-((a.astype(float) @ b) ** 2)), atol=1e-4)


@pytest.mark.parametrize("settings", [OTHER, ScheduleSettings(winograd_channels=16)], ids=["direct", "Winograd"])
def test_convolutions_are_right_with_any_settings(settings):
    rng = np.random.default_rng(2)
    x, kernel = rng.normal(size=(2, 16, 16, 32)).astype("float32"), rng.normal(size=(3, 3, 32, 32)).astype("float32")
    layout = ("NHWC", "HWIO", "NHWC")

    def convolution(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)

    plain = np.asarray(tvmfun.jit(convolution)(x, kernel))
    with stored.using(settings):
        found = tvmfun.jit(convolution).lower(x, kernel).compile()(x, kernel)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_the_command(directory):
    run = lambda *words: (
        subprocess.run(
            [sys.executable, "-m", "tvmfun", *words], capture_output=True, text=True, check=True, timeout=300
        ).stdout
    )
    told = run("calibrate")
    (path,) = directory.glob("calibration-*.json")
    found = stored.measured(description())
    assert "panel_level" in told and str(path) in told
    assert found is not None and str(found) in run()
