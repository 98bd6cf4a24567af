"""Times a training step in PyTorch or in JAX: ``python -m tests.gpu.peers STEP FRAMEWORK``."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import timing, workers

TORCH, COMPILED, GRAPHS, JAX = FRAMEWORKS = ("PyTorch", "PyTorch, compiled", "PyTorch, compiled, graphs", "JAX")


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


def _torch_graphs() -> type:
    import torch
    from bench.frameworks import TorchCompiled

    class TorchGraphs(TorchCompiled):
        """PyTorch, compiled, its launches in CUDA graphs."""

        name = GRAPHS
        mark = staticmethod(torch.compiler.cudagraph_mark_step_begin)

        def wrapped(self, loss: Callable) -> Callable:
            torch._dynamo.reset()
            return torch.compile(loss, mode="reduce-overhead")

    return TorchGraphs


def frameworks(name: str) -> list[str]:
    """The frameworks that a step is timed in, those that take longest to compile first."""
    from gpu import steps

    return [GRAPHS, COMPILED, JAX, TORCH] if steps.TIMED[name].torch_compiles else [JAX, TORCH]


def peer(name: str, framework: str) -> dict[str, Any]:
    """The milliseconds and bytes of a step in a framework."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import torch
    from bench.frameworks import Jax, Torch, TorchCompiled

    from gpu import steps

    case = steps.TIMED[name]
    if framework == JAX:
        found = _in_jax(Jax, case)
    else:
        found = _in_torch(
            {TORCH: lambda: Torch, COMPILED: lambda: TorchCompiled, GRAPHS: _torch_graphs}[framework](), case
        )
    gc.collect()
    torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]
    print(json.dumps(peer(*sys.argv[1:])))
