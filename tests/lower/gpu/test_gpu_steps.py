"""Whole steps on GPUs: how many launches they take, and what machine code of the schedules needs."""

from functools import partial

import mnist
import numpy as np
import pytest
from support.gpu_modules import gpu_module

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, nn, random
from tvmfun.lower.codegen.cuda import compilers
from tvmfun.runtime.cuda_module import Launch

needs_compiler = pytest.mark.skipif(compilers.why_none() is not None, reason="there is no compiler of CUDA")


@pytest.mark.slow
def test_the_mnist_step_takes_few_launches(monkeypatch):
    monkeypatch.setattr(compilers, "why_none", lambda: errors.TargetError("compile", "launches only"))
    optimizer = mnist.make_optimizer(1.0, 0.7, 62)
    state = tvmfun.eval_shape(partial(mnist.start, optimizer), random.key(0))
    images, labels = ShapeDtype((64, 28, 28, 1), "float32"), ShapeDtype((64,), "int32")
    module = gpu_module(partial(mnist.train_step, optimizer), state, images, labels)
    launches = [step for step in module.launches() if isinstance(step, Launch)]
    assert len(launches) <= 25
    assert not [launch for launch in launches if np.prod(launch.grid) * launch.threads == 1]


def every_family(x, at, new):
    results = [
        (x + new, x * new, x > new),
        tnp.transpose(x) * 2,
        (tnp.sum(x, 0), tnp.sum(x, 1), tnp.sum(x), tnp.max(x, 1), tnp.min(x, 0)),
        (tnp.argmax(x, 1), tnp.argmin(x, 0)),
        x.at[at].add(new),
        x[at],
    ]
    if tnp.issubdtype(x.dtype, tnp.floating):
        results += [nn.functional.softmax(x), nn.functional.log_softmax(x[:, :33])]
    return results


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int8"])
def test_schedules_become_machine_code_without_spills(dtype):
    arguments = ShapeDtype((300, 1000), dtype), ShapeDtype((300,), "int32"), ShapeDtype((300, 1000), dtype)
    module = gpu_module(every_family, *arguments)
    for cubin in module.cubins:
        assert all(usage.spills == 0 and usage.registers <= 64 for usage in cubin.usage), cubin.kernels
