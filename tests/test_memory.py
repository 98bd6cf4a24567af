"""The planned memory of a step beside what the process really grows by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bench.memory import ENVIRONMENT, grown

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, optim
from tvmfun.lower.workspaces import kept

TRANSFORM = optim.adam(1e-3)


def convolution(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def loss(params, x, y):
    for name in ("first", "second"):
        x = tnp.maximum(convolution(x, params[name]), 0)
    return tnp.mean((x.reshape(x.shape[0], -1) @ params["dense"] - y) ** 2)


def step(state, x, y):
    params, moments = state
    value, gradients = tvmfun.value_and_grad(loss)(params, x, y)
    updates, moments = TRANSFORM.update(gradients, moments, params)
    return (optim.apply_updates(params, updates), moments), value


def types():
    shapes = {"first": (3, 3, 16, 32), "second": (3, 3, 32, 32), "dense": (32 * 32 * 32, 64)}
    params = {name: ShapeDtype(shape, "float32") for name, shape in shapes.items()}
    state = params, tvmfun.eval_shape(TRANSFORM.init, params)
    return state, ShapeDtype((32, 32, 32, 16), "float32"), ShapeDtype((32, 64), "float32")


def measured():
    """Plans a step and measures it, in this process."""
    compiled = tvmfun.jit(step, donate_argnums=0).lower(*types()).compile()
    arguments = []

    def make():
        ones = lambda spec: tvmfun.device_put(np.ones(spec.shape, spec.dtype))
        arguments[:] = tvmfun.tree.map(ones, types(), is_leaf=lambda value: isinstance(value, ShapeDtype))

    def call():
        arguments[0], value = compiled(*arguments)
        return float(value)

    plan = compiled.memory_analysis()
    return {"workspaces": plan.workspaces, "planned": plan.peak, "measured": grown(make, call)}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of a process")
def test_the_plan_is_what_a_step_takes():
    folders = [Path(__file__).parent, Path(tvmfun.__file__).parents[1]]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    for name in ("TVMFUN_NUM_THREADS", "TVM_NUM_THREADS"):
        environment.pop(name, None)  # as many as were planned for
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert sizes["measured"] == pytest.approx(sizes["planned"], rel=0.02)
    # Without what kernels allocate the plan would not pass.
    assert sizes["workspaces"] > 0.02 * sizes["planned"]


def test_a_kernel_that_packs_a_panel_allocates_it():
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 3}
    workspaces = lambda *shapes: (
        tvmfun.jit(lambda a, b: a @ b.T, target=target)
        .lower(*(ShapeDtype(shape, "float32") for shape in shapes))
        .compile()
        .memory_analysis()
        .workspaces
    )
    assert workspaces((4, 4), (4, 4)) == 0
    panel = workspaces((256, 256), (512, 256)) / 3
    assert panel % 4096 == 0 and 0 < panel <= 64 << 10


def test_a_pool_hands_out_the_smallest_that_fits_and_grows_the_largest():
    page = 4096
    assert kept([], 0) == 0
    assert kept([(1, 1), None, (page, 1), None], 0) == page
    assert kept([(page, 1), None, (2 * page, 1), None], 0) == 2 * page
    assert kept([(page, 1), (3 * page, 1), None, None, (2 * page, 1), None], 0) == 4 * page
    assert kept([(page, 1), (page, 1), None, None, (5 * page, 1), None], 0) == 6 * page
    # A thread that has nothing to do allocates nothing.
    assert [kept([(page, 1), (2 * page, 2), None, None], thread) for thread in range(3)] == [3 * page, 2 * page, 0]


if __name__ == "__main__":
    print(json.dumps(measured()))
