"""Threads: how many, on which CPUs, whether they change results, and whether they idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, random, threads

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


TWO = tuple(sorted(os.sched_getaffinity(0))[-2:])


@cache
def run(threads=None, cpus=()):
    """The output of the program above in a process with a number of threads, or with some CPUs."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    variables.pop("TVMFUN_NUM_THREADS", None)
    if threads is not None:
        variables["TVMFUN_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-c", PROGRAM, json.dumps(cpus)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_number_of_threads_is_what_was_asked_for_and_changes_no_bit():
    one, two = run(threads=1), run(threads=2, cpus=TWO)
    assert one["error"] < 1e-3
    assert (one["new"], two["new"]) == (0, 1)  # the caller works, too
    assert one["busy"] < 1.1
    assert one["digest"] == two["digest"]


@pytest.mark.slow
def test_one_cpu_is_one_thread():
    cpu = max(os.sched_getaffinity(0))
    said = run(cpus=(cpu,))
    assert said["error"] < 1e-3 and said["new"] == 0 and said["cpus"] == [[cpu]]


@pytest.mark.slow
def test_no_thread_leaves_the_cpus_of_the_process():
    """Nor is one bound to a part of them: what the process starts later would be, too."""
    assert run(threads=2, cpus=TWO)["cpus"] == [list(TWO)] * 2


@pytest.mark.slow
def test_idle_threads_sleep():
    assert run(threads=2, cpus=TWO)["idle"] < 0.05


def test_variables_of_tvm_are_kept(monkeypatch):
    given = {"TVM_BIND_THREADS": "1", "TVM_THREAD_POOL_SPIN_COUNT": "7", "TVM_NUM_THREADS": "3"}
    monkeypatch.delenv("TVMFUN_NUM_THREADS", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    threads._configure()
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


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


# Notes the affinities that threads get, in the order of the calls.
PLACED = """
import ctypes, json, os, sys, time
gap, cpus = json.loads(sys.argv[1])
os.sched_setaffinity(0, cpus)
import numpy as np
import tvmfun
from tvmfun import threads
libc, noted = ctypes.CDLL(None), []
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint8))

def real(name):
    function = getattr(libc, name)
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint8)
    return function

def place(thread, size, mask):
    bits = sum(mask[i] << 8 * i for i in range(size))
    noted.append((thread, [cpu for cpu in range(8 * size) if bits >> cpu & 1]))
    return real("pthread_setaffinity_np")(thread, size, mask)

here = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: cpus[0])
placing = kind(place)
threads._affinity_functions = lambda library: [
    ctypes.cast(function, ctypes.c_void_p).value for function in (here, real("pthread_getaffinity_np"), placing)
]
x = np.random.default_rng(0).normal(size=(384, 384)).astype("float32")
square = tvmfun.jit(lambda x: x @ x)
for _ in range(4):
    result = np.asarray(square(x))
    assert abs(result - x.astype("float64") @ x).max() < 1e-3
    time.sleep(gap)
square(x)
time.sleep(0.3)
names = {thread: i for i, thread in enumerate(dict.fromkeys(thread for thread, _ in noted))}
print(json.dumps({
    "noted": [(names[thread], given) for thread, given in noted],
    "after": [sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")],
}))
"""


class TestWhereWorkersWake:
    """Linux may wake a worker on its caller's CPU though others are idle: loops then take as long as on one CPU."""

    def run(self, cpus, count, gap=0.3):
        variables = os.environ | {"TVMFUN_NUM_THREADS": str(count), "TVM_THREAD_POOL_SPIN_COUNT": "100"}
        command = [sys.executable, "-c", PLACED, json.dumps([gap, cpus])]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @pytest.mark.slow
    @pytest.mark.parametrize("count", [2, 40])
    def test_on_other_cpus_than_the_caller(self, count):
        cpus = sorted(os.sched_getaffinity(0))
        said = self.run(cpus, count)
        by_worker: dict[int, list] = {}
        for worker, given in said["noted"]:
            by_worker.setdefault(worker, []).append(given)
        # Only so many are placed, and some may not have slept. Each may use all CPUs again when it runs.
        assert 1 <= len(by_worker) <= min(count - 1, 32)
        for masks in by_worker.values():
            assert masks[0] == cpus[1:] and masks[-1] == cpus
            assert all(mask in (cpus, cpus[1:]) for mask in masks)
            assert [cpus, cpus] not in map(list, pairwise(masks))
        assert all(affinity == cpus for affinity in said["after"])

    @pytest.mark.slow
    def test_not_where_there_is_one_cpu(self):
        cpu = max(os.sched_getaffinity(0))
        said = self.run([cpu], 3)
        assert said["noted"] == [] and all(affinity == [cpu] for affinity in said["after"])

    @pytest.mark.slow
    def test_an_affinity_that_is_set_meanwhile_stays(self):
        """On a busy machine a worker runs long after it was woken: its affinity is its own again before."""
        code = """if True:
            import os, subprocess, sys, threading, time
            import numpy as np
            import tvmfun
            x = np.ones((700, 700), "float32")
            f = tvmfun.jit(lambda x: x * 2 + x @ x)
            f(x)
            cpus, lost = os.sched_getaffinity(0), 0
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cpus]
            tasks = list(map(int, os.listdir("/proc/self/task")))
            for _ in range(60):
                caller = threading.Thread(target=f, args=(x,))
                time.sleep(0.004)
                caller.start()
                for task in tasks:
                    os.sched_setaffinity(task, {min(cpus)})
                caller.join()
                time.sleep(0.003)
                lost += any(os.sched_getaffinity(task) != {min(cpus)} for task in tasks)
                for task in tasks:
                    os.sched_setaffinity(task, cpus)
            for process in busy:
                process.kill()
            assert lost < 10, lost
        """
        variables = os.environ | {"TVMFUN_NUM_THREADS": "2", "TVM_THREAD_POOL_SPIN_COUNT": "10"}
        subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=300)

    def test_a_library_without_affinities(self):
        assert threads._affinity_functions(object()) == [0, 0, 0]


class TestOnePool:
    X = np.random.default_rng(0).normal(size=(256, 256)).astype("float32")
    square = staticmethod(tvmfun.jit(lambda x: x @ x))

    @pytest.mark.slow
    def test_short_threads(self):
        """They leave no thread running, and take no longer than one that does everything."""
        count, wrong = 2_000, []
        expected = np.array(self.square(self.X))

        def call():
            if not np.array_equal(self.square(self.X), expected):
                wrong.append(1)

        before, most = threads_of_this_process(), 0
        started = time.process_time()
        for _ in range(count):
            call()
        alone = time.process_time() - started
        started = time.process_time()
        for _ in range(count // 8):
            eight = [threading.Thread(target=call) for _ in range(8)]
            for thread in eight:
                thread.start()
            most = max(most, threads_of_this_process())
            for thread in eight:
                thread.join()
        assert not wrong
        assert most <= before + 8
        # A pool per thread took ten times as long. In processor time, because other processes may run.
        assert time.process_time() - started < 5 * alone + 1

    def test_threads_at_the_same_time(self):
        """Some of them have the pool, the others do their tasks alone: the bits are the same."""
        rng = np.random.default_rng(1)
        f = tvmfun.jit(lambda x: (tnp.tanh(x @ x.T), tnp.sum(tnp.exp(x - 3), axis=0)))
        arguments = [rng.normal(size=(200, 300)).astype("float32") for _ in range(8)]
        expected = [[np.array(y).tobytes() for y in f(x)] for x in arguments]

        def work(i):
            return all([np.array(y).tobytes() for y in f(arguments[i])] == expected[i] for _ in range(50))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))

    def test_loops_of_dynamic_sizes(self):
        f = tvmfun.jit(lambda x: tnp.exp(x) @ tnp.ones((300, 300), "float32"), dynamic_shapes=({0: "n"},))
        f(self.X[:, :1].repeat(300, axis=1))
        before = threads_of_this_process()

        def work(i):
            x = np.full((200 + i, 300), i, "float32")
            np.testing.assert_allclose(f(x), np.full((200 + i, 300), 300 * np.exp(i)), rtol=1e-5)
            return threads_of_this_process()

        with ThreadPoolExecutor(6) as pool:
            assert max(pool.map(work, range(6))) <= before + 6

    @pytest.mark.slow
    def test_a_fork_while_others_call(self):
        """The new process has threads of its own, whatever those of the old one were doing."""
        code = """if True:
            import os, signal, sys, threading, time, numpy as np, tvmfun
            x = np.random.default_rng(0).normal(size=(300, 300)).astype("float32")
            f = tvmfun.jit(lambda x: x @ x)
            expected, ended = np.array(f(x)), threading.Event()
            def call():
                while not ended.is_set():
                    f(x)
            others = [threading.Thread(target=call) for _ in range(3)]
            for thread in others:
                thread.start()
            for _ in range(12):
                child = os.fork()
                if not child:
                    signal.alarm(60)  # ends a process that waits for ever
                    right = all(np.array_equal(f(x), expected) for _ in range(3))
                    os._exit(0 if right and len(os.listdir("/proc/self/task")) == 2 else 1)
                assert os.waitpid(child, 0)[1] == 0
            ended.set()
        """
        environment = os.environ | {"TVMFUN_NUM_THREADS": "2"}
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, timeout=120)

    def test_tvms_table_does_not_grow(self, monkeypatch):
        pool, entered = threads._the_pool(), []
        register = pool._register
        monkeypatch.setattr(pool, "_register", lambda *entry: entered.append(entry) or register(*entry))
        for i in range(2):
            tvmfun.jit(lambda x, i=i: tnp.tanh(x @ x) * i + i)(self.X)
            tvmfun.jit(lambda x, i=i: x * i + i)(self.X[:1])
            tvmfun.jit(lambda x, i=i: [tnp.sort(x[: i + k]) for k in range(1, 14)])(self.X)
            tvmfun.jit(lambda x, i=i: lax.fori_loop(0, i, lambda _, c: tnp.tanh(c @ x), x))(self.X)
        rows = tvmfun.jit(lambda x: x + 1, dynamic_shapes=({0: "b"},))
        for count in range(1, 5):
            rows(self.X[:count])
        assert entered == []

    def test_modules_of_others_keep_the_pool_of_tvm(self):
        a, b = (tirx.decl_buffer((64,), name=name) for name in "ab")
        i = tirx.Var("i", "int32")
        body = tirx.For(i, 0, 64, tirx.ForKind.PARALLEL, tirx.BufferStore(b, a[i] + 1, [i]))
        function = tirx.PrimFunc([a, b], body)
        library = tvm.compile(tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), target="llvm")
        x, y = tvm.runtime.tensor(np.zeros(64, "float32")), tvm.runtime.tensor(np.zeros(64, "float32"))

        def call():
            self.square(self.X)
            before = threads_of_this_process()
            library["f"](x, y)
            return threads_of_this_process() - before

        with ThreadPoolExecutor(1) as pool:  # this thread may have a pool of TVM already
            assert pool.submit(call).result() == int(os.environ["TVM_NUM_THREADS"]) - 1
        assert np.array_equal(y.numpy(), np.ones(64))


class TestTheEnd:
    """A process ends in peace whatever its threads are doing."""

    CODE = """if True:
        import builtins, sys, threading, time, numpy as np, tvmfun, tvmfun.numpy as tnp
        x = np.ones((200, 200), "float32")
        square, order = tvmfun.jit(lambda x: x @ x), tvmfun.jit(lambda x: tnp.sort(x))
        builtins.kept = tvmfun.jit(lambda x: x + 1)(np.zeros(1 << 20, "float32"))  # outlives the library

        def call():
            square(x)

        def read(y=tnp.asarray(x)):
            float((y + 1.0)[0, 0])

        def work(y=np.random.default_rng(0).normal(size=1_000_000)):
            order(y)

        def build(count=[0]):
            count[0] += 1
            tvmfun.jit(lambda x: tnp.tanh(x @ x) * count[0])(x)

        def for_ever(function=globals()[sys.argv[1]]):
            while True:
                function()

        if sys.argv[1] != "rest":
            for _ in range(3):
                threading.Thread(target=for_ever, daemon=True).start()
        time.sleep(float(sys.argv[2]))
        print("done")
    """

    @pytest.mark.slow
    @pytest.mark.parametrize("activity", ["call", "read", "work", "build"])
    def test_of_a_process_with_daemons(self, activity):
        command = [sys.executable, "-c", self.CODE, activity, "0.25"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")

    @pytest.mark.slow
    def test_of_a_process_with_arrays(self):
        code = self.CODE.replace("globals()[sys.argv[1]]", "None")
        ended = subprocess.run([sys.executable, "-c", code, "rest", "0"], capture_output=True, text=True, timeout=100)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")

    @pytest.mark.slow
    @pytest.mark.parametrize("later", ["atexit.register(work)", "threading.Thread(target=work).start()"])
    def test_work_after_the_main_thread(self, later, tmp_path):
        """Python starts no threads for a pool by then: kernels compile, and checkpoints are written, without."""
        code = f"""if True:
            import atexit, sys, threading, time
            import numpy as np
            import tvmfun
            import tvmfun.numpy as tnp
            from tvmfun import checkpoints

            x, manager = np.arange(512 * 64, dtype="float32").reshape(512, 64), checkpoints.Manager(sys.argv[1])

            def work():
                time.sleep(0.2)
                manager.save(1, tvmfun.jit(lambda x: [tnp.sort(-x[k:], axis=0)[0, 0] for k in range(2, 9)])(x))
                print(float(manager.load([x[0, 0]] * 7)[0]))

            {later}
        """
        command = [sys.executable, "-c", code, str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "-32704.0\n", "")
