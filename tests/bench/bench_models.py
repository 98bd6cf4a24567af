"""Whole training steps beside JAX's and PyTorch's: the same model, batch, optimizer and threads in one run.

Run with ``nox -s bench -- -k models``; ``--json FILE`` keeps the figures.
"""

import gc
from dataclasses import replace

import numpy as np
import pytest
from bench.frameworks import Jax, Torch, TorchCompiled
from bench.harness import compare
from bench.memory import in_a_new_process
from bench.models import dlrm, lstm, mlp, mnist_cnn, resnet, transformer
from bench.ours import Ours

IN_BFLOAT16 = replace(mnist_cnn.CASE, name="MNIST CNN, bfloat16", precision="bfloat16")
CASES = [mlp.CASE, mnist_cnn.CASE, IN_BFLOAT16, resnet.CASE, lstm.CASE, dlrm.CASE, *transformer.CASES]
# With a batch of any size.
BATCHED = {
    "ResNet-18": resnet.case,
    **{
        name: lambda batch, name=name: transformer.case(name, replace(transformer.SIZES[name], batch=batch))
        for name in ("BERT, 4 layers", "GPT-2 mini")
    },
}
FRAMEWORKS = [Ours, Jax, Torch, TorchCompiled]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step(case, report):
    """The same loss in all, and then the time of a step."""
    frameworks = [framework for framework in FRAMEWORKS if framework is not TorchCompiled or case.torch_compiles]
    runners = [framework(case).load() for framework in frameworks]
    losses = [runner.loss() for runner in runners]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-4 if case.precision == "float32" else 1e-2)
    compiled = {runner.name: runner.compile() for runner in runners}
    bytes_moved = case.traffic * sum(value.nbytes for value in case.params(np.random.default_rng(0)).values())
    row = compare(case.name, [(runner.name, runner.step) for runner in runners], case.flop, bytes_moved)
    memory = {framework.name: in_a_new_process(case.name, framework.name) for framework in (Ours, Jax, Torch)}
    report.add({**row, "compile s": compiled, "memory": memory})
    del runners
    gc.collect()
