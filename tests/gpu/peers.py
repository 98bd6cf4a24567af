"""Times a training step in PyTorch, eager and compiled, and in JAX: ``python -m tests.gpu.peers NAME``."""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import timing


def _in_torch(kind: type, case: Any) -> dict[str, Any]:
    import torch

    runner = kind(case, "cuda").load()
    torch.cuda.reset_peak_memory_stats()

    def step() -> None:
        runner.optimizer.zero_grad(set_to_none=True)
        runner.forward(runner.params, runner.state, runner.batch, True).backward()
        runner.optimizer.step()

    return {"ms": timing.milliseconds(step, torch.cuda.synchronize), "bytes": torch.cuda.max_memory_allocated()}


def _in_jax(kind: type, case: Any) -> dict[str, Any]:
    runner = kind(case)
    planned = runner.plan()
    runner.load()

    def step() -> None:
        runner.carry, runner.latest = runner.run(runner.carry, runner.batch)

    step()
    return {"ms": timing.milliseconds(step, lambda: runner.latest.block_until_ready()), "bytes": planned}


def peers(name: str) -> dict[str, Any]:
    """The milliseconds and bytes of a step by framework, or the error."""
    import torch
    from bench.frameworks import Jax, Torch, TorchCompiled

    from gpu import steps

    case = steps.TIMED[name]
    kinds: list[tuple[Callable, type]] = [(_in_torch, Torch), (_in_jax, Jax)]
    if case.torch_compiles:
        kinds.insert(1, (_in_torch, TorchCompiled))
    found: dict[str, Any] = {}
    for time_it, kind in kinds:
        try:
            found[kind.name] = time_it(kind, case)
        except Exception as error:
            found[kind.name] = {"error": "".join(traceback.format_exception(error, limit=-3))[-800:]}
        gc.collect()
        torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]
    print(json.dumps(peers(sys.argv[1])))
