"""Times a training step in PyTorch, eager and compiled, and in JAX: ``python -m tests.gpu.peers NAME``."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import timing, workers


def _in_torch(kind: type, case: Any) -> dict[str, Any]:
    import torch

    with workers.shared():
        torch.cuda.reset_peak_memory_stats()
        runner = kind(case, "cuda").load()

        def step() -> None:
            if mark := getattr(runner, "mark", None):
                mark()
            runner.optimizer.zero_grad(set_to_none=True)
            runner.forward(runner.params, runner.state, runner.batch, True).backward()
            runner.optimizer.step()

        for _ in range(4):
            step()
        torch.cuda.synchronize()
    with workers.exclusive():
        milliseconds = timing.milliseconds(step, torch.cuda.synchronize)
    return {"ms": milliseconds, "bytes": torch.cuda.max_memory_allocated()}


def _in_jax(kind: type, case: Any) -> dict[str, Any]:
    with workers.shared():
        runner = kind(case)
        planned = runner.plan()
        runner.load()

        def step() -> None:
            runner.carry, runner.latest = runner.run(runner.carry, runner.batch)

        step()
        runner.latest.block_until_ready()
    with workers.exclusive():
        milliseconds = timing.milliseconds(step, lambda: runner.latest.block_until_ready())
    return {"ms": milliseconds, "bytes": planned}


def peers(name: str) -> dict[str, Any]:
    """The milliseconds and bytes of a step by framework, or the error."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import torch
    from bench.frameworks import Jax, Torch, TorchCompiled

    from gpu import steps

    class TorchGraphs(TorchCompiled):
        """PyTorch, compiled, its launches in CUDA graphs."""

        name = "PyTorch, compiled, graphs"
        mark = staticmethod(torch.compiler.cudagraph_mark_step_begin)

        def wrapped(self, loss: Callable) -> Callable:
            torch._dynamo.reset()
            return torch.compile(loss, mode="reduce-overhead")

    case = steps.TIMED[name]
    kinds: list[tuple[Callable, type]] = [(_in_jax, Jax), (_in_torch, Torch)]
    if case.torch_compiles:
        kinds += [(_in_torch, TorchCompiled), (_in_torch, TorchGraphs)]
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
