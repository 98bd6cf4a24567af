"""Times of steps, and of each kernel of a step, on a GPU."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvmfun.runtime.cuda.devices import Block
from tvmfun.runtime.cuda_module import Launch

from .runtime import LoadedModule

#: Launches of a kernel in a row, of which one takes the mean time.
_REPEATS = 20
# The time for each kernel.
_PROFILE_SECONDS = 0.02


def milliseconds(run: Callable[[], Any], synchronize: Callable[[], None], seconds: float = 1.0) -> float:
    """The median time of a step, over groups of steps that are waited for together.

    Args:
        run: starts a step.
        synchronize: waits for all steps.
        seconds: the time to spend.
    """

    def group(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            run()
        synchronize()
        return (time.perf_counter() - started) / count

    group(3)
    single = group(2)
    count = max(1, int(seconds / 8 / max(single, 1e-6)))
    return 1e3 * statistics.median(group(count) for _ in range(8))


def profile(step: LoadedModule, inputs: Sequence[Block]) -> list[dict[str, Any]]:
    """The kernels of a step, those that take longest first; the state is overwritten.

    Each kernel is launched some times in a row with the arguments of one of its launches, on what earlier steps left in
    memory, so what depends on data is not exact.
    """
    launches = [launch for launch in step.module.launches() if isinstance(launch, Launch)]
    counts = Counter((launch.kernel, launch.grid) for launch in launches)
    examples = {(launch.kernel, launch.grid): launch for launch in launches}
    rows = []
    for key, launch in examples.items():
        cubins = tuple(cubin for cubin in step.module.cubins if launch.kernel in cubin.kernels)
        single = replace(step.module, cubins=cubins, steps=(launch,) * _REPEATS)
        module = LoadedModule(single.pack(), launch.kernel)
        each = (
            1e3 * milliseconds(partial(module, inputs), module.stream.synchronize, seconds=_PROFILE_SECONDS) / _REPEATS
        )
        rows.append({"kernel": key[0], "grid": key[1], "us": each, "launches": counts[key]})
    return sorted(rows, key=lambda row: -row["us"] * row["launches"])
