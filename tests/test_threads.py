"""Threads: how many, on which CPUs, whether they change results, and what they do when there is nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, random, runtime

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux lists the threads of a process"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="kernels for one CPU have no parallel loops"),
]

# Large enough for several threads.
PROGRAM = """
import hashlib, json, os, sys, time
cpus = json.loads(sys.argv[1])
if cpus:
    os.sched_setaffinity(0, cpus)
import numpy as np
import tvmfun
x = np.random.default_rng(0).normal(size=(384, 384)).astype("float32")
square = tvmfun.jit(lambda x: x @ x)
compiled = square.lower(x).compile()
threads = lambda: {int(name) for name in os.listdir("/proc/self/task")}
before = threads()
result = np.asarray(square(x))
started, busy = time.perf_counter(), time.process_time()
for _ in range(20):
    square(x)
wall, busy = time.perf_counter() - started, time.process_time() - busy
idle = time.process_time()
time.sleep(1)
print(json.dumps({
    "error": float(np.abs(result - x.astype("float64") @ x).max()),
    "digest": hashlib.sha256(result.tobytes()).hexdigest(),
    "new": len(threads() - before),
    "cpus": [sorted(os.sched_getaffinity(thread)) for thread in sorted(threads() - before | {os.getpid()})],
    "busy": busy / wall,
    "idle": time.process_time() - idle,
}))
"""


@cache
def run(threads=None, cpus=()):
    """What the program above says, in a process that is to use so many threads or these CPUs."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    variables.pop("TVMFUN_NUM_THREADS", None)
    if threads is not None:
        variables["TVMFUN_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-c", PROGRAM, json.dumps(cpus)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_number_of_threads_is_what_was_asked_for_and_changes_no_bit():
    one, two = run(threads=1), run(threads=2)
    assert one["error"] < 1e-3
    assert (one["new"], two["new"]) == (0, 1)  # the caller works, too
    assert one["busy"] < 1.1
    assert one["digest"] == two["digest"]


def test_one_cpu_is_one_thread():
    cpu = max(os.sched_getaffinity(0))
    said = run(cpus=(cpu,))
    assert said["error"] < 1e-3 and said["new"] == 0 and said["cpus"] == [[cpu]]


def test_no_thread_leaves_the_cpus_of_the_process():
    """Nor is one bound to a part of them: what the process starts later would be, too."""
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    assert run(cpus=tuple(cpus))["cpus"] == [cpus] * 2


def test_idle_threads_sleep():
    assert run(threads=2)["idle"] < 0.05


def test_variables_of_tvm_are_kept(monkeypatch):
    given = {"TVM_BIND_THREADS": "1", "TVM_THREAD_POOL_SPIN_COUNT": "7", "TVM_NUM_THREADS": "3"}
    monkeypatch.delenv("TVMFUN_NUM_THREADS", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    runtime._configure_threads()
    assert given.items() <= os.environ.items()


def test_equal_steps_give_equal_bits():
    def loss(params, x, key):
        layout = ("NHWC", "HWIO", "NHWC")
        x = tnp.maximum(lax.conv_general_dilated(x, params["conv"], (1, 1), "SAME", dimension_numbers=layout), 0)
        x = tnp.where(random.bernoulli(key, 0.8, x.shape), x, 0).reshape(x.shape[0], -1)
        return tnp.mean((x @ params["dense"]) ** 2)

    @tvmfun.jit
    def step(params, x, key):
        value, gradients = tvmfun.value_and_grad(loss)(params, x, key)
        return tvmfun.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    rng = np.random.default_rng(0)
    start = {
        "conv": rng.normal(size=(3, 3, 3, 16)).astype("float32"),
        "dense": rng.normal(size=(16 * 16 * 16, 32)).astype("float32"),
    }
    x = rng.normal(size=(16, 16, 16, 3)).astype("float32")

    def trained():
        params, values = start, []
        for i in range(3):
            params, value = step(params, x, random.key(i))
            values.append(value)
        return [np.asarray(leaf).tobytes() for leaf in tvmfun.tree.leaves((params, values))]

    first = trained()
    assert all(trained() == first for _ in range(10))
