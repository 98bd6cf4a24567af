"""Calibration: schedules' settings for this machine, found by timing a few kernels in two ways.

``python -m tvmfun calibrate`` runs it. Compiled functions are right without it, and usually about as fast: the settings
derived from the caches are good where they have been measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.jit import jit
from tvmfun.lower import settings as stored
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine, description
from tvmfun.lower.settings import ScheduleSettings

# A setting is changed if the median of the ratios is at least this, and three ratios of four are gains.
GAIN = 1.05
PAIRS = 21
# The seconds of one of a pair's two times.
_SECONDS = 0.002


class Probe(NamedTuple):
    """A function that a setting makes faster or slower, and its arguments."""

    function: Callable
    arguments: tuple[Any, ...]


#: The times of a probe with two settings, taken in turns.
Measure: TypeAlias = Callable[[Probe, ScheduleSettings, ScheduleSettings], Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Trial:
    """The comparison of a value of a setting with another one.

    Args:
        name: the setting's.
        value: its value so far.
        other: the value that was tried instead.
        ratio: the geometric mean over the probes of the median ratio of the times; above 1 if ``other`` is faster.
        is_better: whether ``other`` is clearly faster for some probe, and clearly slower for none.
    """

    name: str
    value: int
    other: int
    ratio: float
    is_better: bool

    def __str__(self) -> str:
        verdict = "taken" if self.is_better else "not taken"
        return f"{self.name:20}{self.value:>8} -> {self.other:<8}{self.ratio:6.2f} times as fast, {verdict}"


def calibrate(start: ScheduleSettings, measure: Measure, cores: int) -> Iterator[Trial | ScheduleSettings]:
    """Yields progress messages, and finally the settings to use.

    Each setting changes step by step while the next value is clearly faster.

    Args:
        start: the settings to begin with.
        measure: times a probe.
        cores: the number of threads; with one, the settings of parallel loops stay.
    """
    settings = start
    for choice in _CHOICES:
        if choice.is_parallel and cores == 1:
            continue
        for values in choice.directions(getattr(start, choice.name)):
            for other in values:
                value = getattr(settings, choice.name)
                changed = settings._replace(**{choice.name: other})
                pairs = [measure(probe, settings, changed) for probe in choice.probes(value, other)]
                trial = Trial(choice.name, value, other, _ratio(pairs), _is_better(pairs))
                yield trial
                if not trial.is_better:
                    break
                settings = changed
            if getattr(settings, choice.name) != getattr(start, choice.name):
                break
    yield settings


def run(write: Callable[[str], None]) -> ScheduleSettings:
    """Measures on this machine, and keeps the result on disk.

    Args:
        write: gets lines of text about it.
    """
    machine = Machine.of(targets.host())
    start = stored.derived(machine.registers, machine.cache_bytes(1), machine.cache_bytes(2))
    settings = start
    began = time.perf_counter()
    for step in calibrate(start, times, machine.cores):
        if isinstance(step, Trial):
            write(str(step))
        else:
            settings = step
    write(f"{settings}, after {time.perf_counter() - began:.0f} s")
    path = stored.store(description(), settings)
    write(f"kept in {path}" if path else "not kept: there is no cache directory (TVMFUN_CACHE_DIR)")
    return settings


def times(probe: Probe, first: ScheduleSettings, second: ScheduleSettings) -> list[tuple[float, float]]:
    """Returns the times of a probe compiled with two settings, in pairs."""
    calls = []
    for settings in (first, second):
        with stored.using(settings):
            calls.append(jit(probe.function).lower(*probe.arguments).compile())
    repeat = [max(1, round(_SECONDS / min(_seconds(call, probe.arguments, 1) for _ in range(3)))) for call in calls]
    each = list(zip(calls, repeat, strict=True))
    pairs = []
    for i in range(PAIRS):
        order = each if i % 2 == 0 else each[::-1]
        pair = [_seconds(call, probe.arguments, count) for call, count in order]
        pairs.append((pair[0], pair[1]) if i % 2 == 0 else (pair[1], pair[0]))
    return pairs


def _seconds(call: Callable, arguments: tuple[Any, ...], repeat: int) -> float:
    started = time.perf_counter()
    for _ in range(repeat):
        call(*arguments)
    return (time.perf_counter() - started) / repeat


def _ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return sorted(first / second for first, second in pairs)


def _ratio(probes: Sequence[Sequence[tuple[float, float]]]) -> float:
    """The geometric mean of the probes' median ratios."""
    return statistics.geometric_mean(statistics.median(_ratios(pairs)) for pairs in probes)


def _is_better(probes: Sequence[Sequence[tuple[float, float]]]) -> bool:
    """Whether the second way is clearly faster for some probe, and clearly slower for none."""
    faster = [_is_gain(_ratios(pairs)) for pairs in probes]
    slower = [_is_gain(_ratios([(second, first) for first, second in pairs])) for pairs in probes]
    return any(faster) and not any(slower)


def _is_gain(ratios: Sequence[float]) -> bool:
    return statistics.median(ratios) >= GAIN and ratios[len(ratios) // 4] > 1


# -- what is tried -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """A setting.

    Args:
        name: the field of :class:`ScheduleSettings`.
        directions: the values to try after a value, in order; the second list if no value of the first was better.
        probes: the probes to time with two values.
        is_parallel: whether it matters with several threads only.
    """

    name: str
    directions: Callable[[int], Sequence[Sequence[int]]]
    probes: Callable[[int, int], Sequence[Probe]]
    is_parallel: bool = False


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def _products(value: int, other: int) -> list[Probe]:
    sizes = ((768, 768, 768), (512, 2048, 512), (300, 1024, 1500))
    single = [Probe(tnp.matmul, (_floats(m, k), _floats(k, n))) for m, k, n in sizes]
    return [*single, Probe(tnp.matmul, (_floats(24, 128, 64), _floats(24, 64, 128)))]


def _little_work(value: int, other: int) -> list[Probe]:
    """Kernels of more work than the smaller value, and less than the larger one."""
    work = min(value, other) * 5 // 4
    # Eight for the call of exp, and one for the point.
    return [Probe(lambda x: x * 2 + 1, (_floats(work),)), Probe(tnp.exp, (_floats(work // 9 + 1),))]


def _loops(value: int, other: int) -> list[Probe]:
    add = Probe(lambda x, y: tnp.tanh(x) + y, (_floats(1 << 20), _floats(1 << 20)))
    rows = Probe(lambda x: tnp.exp(x - tnp.max(x, 1, keepdims=True)), (_floats(1000, 1000),))
    return [add, rows, Probe(tnp.matmul, (_floats(512, 512), _floats(512, 512)))]


def _convolutions(value: int, other: int) -> list[Probe]:
    """Convolutions that one of the values gives to Winograd's algorithm."""
    channels = min(value, other)

    def convolution(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return [Probe(convolution, (_floats(8, 28, 28, channels), _floats(3, 3, channels, channels)))]


_CHOICES = (
    _Choice("panel_level", lambda level: [[3 - level]], _products),
    _Choice(
        "serial_work",
        lambda work: [[work << 1, work << 2, work << 3], [work >> 1, work >> 2, work >> 3]],
        _little_work,
        is_parallel=True,
    ),
    _Choice("tasks_per_core", lambda tasks: [[2 * tasks], [tasks // 2, tasks // 4]], _loops, is_parallel=True),
    _Choice("winograd_channels", lambda channels: [[2 * channels, 4 * channels], [channels // 2]], _convolutions),
)
