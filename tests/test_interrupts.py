"""Ctrl-C, and handlers of other signals, inside one long call of compiled code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="signals as on Linux")

# Calls that would take minutes get a signal soon after they have begun.
PROGRAM = """
import json, os, signal, threading, time
import numpy as np
import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

class Alarm(Exception):
    def __init__(self, number):
        self.number = number

def ring(number, frame):
    raise Alarm(number)

def handle(number, frame):
    handled.append(float(total(np.eye(256, dtype="float32"))))

def memory():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

def outcome(call, number):
    timer = threading.Timer(0.02, os.kill, (os.getpid(), number))
    timer.start()
    try:
        call()
        return "ended"
    except Alarm as alarm:
        return f"Alarm {alarm.number}"
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    finally:
        timer.join()

handled = []
total = tvmfun.jit(lambda x: tnp.sum(x @ x))
total(np.eye(256, dtype="float32"))
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGUSR1, ring)
signal.signal(signal.SIGUSR2, handle)

large = np.random.default_rng(0).normal(size=(256, 256)).astype("float32") / 20
small = large[:8, :8].copy()
repeat = lambda step: lambda x, n: lax.fori_loop(0, n, lambda i, y: step(y), x)
until = lambda step, **bound: lambda x, n: lax.while_loop(
    lambda s: s[0] < n, lambda s: (s[0] + 1, step(s[1])), (0, x), **bound)[1]
CASES = {
    "parallel kernels": (repeat(lambda y: tnp.tanh(y @ y.T + tnp.sin(y @ y) + 0.1)), large),
    "serial kernels": (repeat(lambda y: tnp.tanh(y @ y + 0.1)), small),
    "until a condition": (until(lambda y: tnp.tanh(y @ y + 0.1)), small),
    "at most so often": (until(lambda y: tnp.tanh(y @ y + 0.1), max_steps=2**31 - 1), small),
    "scalars": (until(lambda y: y * 0.5 + 1), small[0, 0]),
    "a loop in a loop": (repeat(lambda y: lax.fori_loop(0, 9, lambda i, z: tnp.tanh(z @ z + 0.1), y)), small),
}

results = {}
for name, (function, x) in CASES.items():
    step = tvmfun.jit(function)
    expected = np.array(step(x, np.int32(3)))
    many = np.int32(2**31 - 1)
    said = [outcome(lambda: step(x, many), signal.SIGINT), outcome(lambda: step(x, many), signal.SIGUSR1)]
    results[name] = said, bool(np.array_equal(step(x, np.int32(3)), expected))

# A handler that computes, and returns.
step = tvmfun.jit(CASES["parallel kernels"][0])
expected = np.array(step(large, np.int32(150)))
again = []
results["a handler that computes"] = outcome(lambda: again.append(np.array(step(large, np.int32(150)))), signal.SIGUSR2)
results["handled"] = handled
results["same"] = bool(np.array_equal(again[0], expected))

# The kernels of main.
def chain(x):
    for i in range(90):
        x = tnp.tanh(x @ x + 1)
    return x
chained = tvmfun.jit(chain)
wide = np.ones((768, 768), "float32")
chained(wide)
started = time.perf_counter()
chained(wide)
whole = time.perf_counter() - started
started = time.perf_counter()
said = outcome(lambda: chained(wide), signal.SIGINT)
results["main"] = said, (time.perf_counter() - started) / whole, whole

# Memory of kernels.
many = np.int32(2**31 - 1)
outcome(lambda: step(large, many), signal.SIGINT)
before = memory()
for _ in range(4):
    outcome(lambda: step(large, many), signal.SIGINT)
results["grown"] = memory() - before

# Other threads go on, and donated arrays are gone.
finished = []
other = threading.Thread(target=lambda: finished.append(np.array(step(large, np.int32(150)))))
other.start()
donating = tvmfun.jit(CASES["parallel kernels"][0], donate_argnums=0)
donating(tnp.array(large), np.int32(3))
given = tnp.array(large)
results["donated"] = outcome(lambda: donating(given, many), signal.SIGINT)
try:
    np.asarray(given)
except tvmfun.errors.DonatedArrayError:
    results["gone"] = True
other.join()
results["other thread"] = bool(np.array_equal(finished[0], expected))
print(json.dumps(results))
"""


@pytest.fixture(scope="module", params=[1, 2])
def results(request):
    variables = {**os.environ, "TVMFUN_NUM_THREADS": str(request.param)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["parallel kernels", "serial kernels", "until a condition", "at most so often", "scalars", "a loop in a loop"],
)
def test_a_signal_ends_a_loop(results, name):
    outcomes, is_right_afterwards = results[name]
    assert outcomes == ["KeyboardInterrupt", "Alarm 10"] and is_right_afterwards


@pytest.mark.slow
def test_a_handler_may_compute(results):
    assert results["a handler that computes"] == "ended" and results["handled"] == [256.0] and results["same"]


@pytest.mark.slow
def test_a_signal_ends_a_chain_of_kernels(results):
    outcome, share, seconds = results["main"]
    if seconds > 0.3:  # it hears ten times a second
        assert outcome == "KeyboardInterrupt" and share < 0.9


@pytest.mark.slow
def test_an_interrupted_call_leaves_no_memory_behind(results):
    assert results["grown"] < 2 << 20


@pytest.mark.slow
def test_what_an_interrupted_call_was_given_is_gone_and_other_threads_go_on(results):
    assert results["donated"] == "KeyboardInterrupt" and results["gone"] and results["other thread"]
