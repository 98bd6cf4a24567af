"""The planned memory of a step beside what the process really grows by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bench.memory import ENVIRONMENT, grown

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, jit, lax, optim
from tvmfun.runtime import memory
from tvmfun.runtime.workspaces import kept

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


@pytest.mark.slow
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


class TestLargeResults:
    """The memory of large results is recycled, but never while anything refers to it."""

    double = staticmethod(jit(lambda x: 2 * x))

    def given(self, nbytes=2 << 20):
        memory.clear_memory()
        return tnp.asarray(np.arange(nbytes // 4, dtype="float32"))

    @pytest.mark.parametrize("kilobytes", [257, 400, 1000, 2048])
    def test_memory_is_used_again(self, kilobytes):
        x = self.given(kilobytes << 10)
        first = self.double(x)
        address = first.address
        second = self.double(x)
        assert second.address != address  # the first is still there
        del first
        assert self.double(x).address == address

    @pytest.mark.parametrize("look", [np.asarray, np.from_dlpack, lambda y: y.tensor, lambda y: y[:1].at[0].set(3)])
    @pytest.mark.parametrize("kilobytes", [257, 2048])
    def test_what_somebody_sees_is_not(self, look, kilobytes):
        x = self.given(kilobytes << 10)
        result = self.double(x)
        seen = look(result)
        before = np.array(seen.numpy() if hasattr(seen, "numpy") else seen)
        del result
        others = [self.double(x + i) for i in range(3)]
        np.testing.assert_array_equal(np.array(seen.numpy() if hasattr(seen, "numpy") else seen), before)
        np.testing.assert_array_equal(others[2], 2 * (np.asarray(x) + 2))

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", ">f8"])
    def test_copies_are_in_memory_that_is_used_again(self, dtype):
        memory.clear_memory()
        x = (np.arange(2 << 20) % 7).reshape(-1, 8).astype(dtype if dtype != "bfloat16" else tnp.bfloat16)
        first, second = tnp.asarray(x), tnp.asarray(x[:, ::-1])
        address = first.address
        assert second.address != address
        del first
        third = tnp.asarray(x.T)
        assert third.address == address
        fourth = tvmfun.device_put(second)
        seen = np.asarray(third)
        del third
        again = tnp.asarray(x + x)
        for got, expected in ((second, x[:, ::-1]), (fourth, x[:, ::-1]), (seen, x.T), (again, x + x)):
            np.testing.assert_array_equal(np.asarray(got), expected)

    def test_there_is_a_limit(self, monkeypatch):
        monkeypatch.setattr(memory._POOL, "limit", 8 << 20)
        for nbytes in (2 << 20, 3 << 20, 4 << 20, 16 << 20):
            self.double(tnp.asarray(np.zeros(nbytes // 4, "float32")))
            kept = sum(size * len(pieces) for size, pieces in memory._POOL.blocks.items())
            assert 0 < kept <= 8 << 20

    def test_threads(self):
        x = self.given()

        def work(i):
            for _ in range(20):
                y = self.double(x + float(i))
                np.testing.assert_array_equal(np.asarray(y[:5]), 2 * (np.arange(5) + i))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))


class TestSmallResults:
    """Memory of the latest small results is used again, but never while anything refers to it."""

    add = staticmethod(jit(lambda x, k: x + k))
    both = staticmethod(jit(lambda x: (x + 1, x - 1)))
    double = staticmethod(jit(lambda x: 2 * x, donate_argnums=0))

    @pytest.mark.parametrize("count", [2_000, 8_192, 65_536, 65_537, 200_000, 300_000])
    def test_a_loop_allocates_nothing(self, count, monkeypatch):
        x = tnp.zeros(count)
        for _ in range(6):
            x = self.add(x, 1)
        allocations = []
        allocate = memory._allocate
        monkeypatch.setattr(memory, "_allocate", lambda *args: allocations.append(args) or allocate(*args))
        one = tnp.ones(())  # a number would be copied into memory of its own
        self.add(x, one)
        allocations.clear()
        for _ in range(8):
            x = self.add(x, one)
        assert not allocations
        np.testing.assert_array_equal(x, np.full(count, 14))

    @pytest.mark.parametrize("count", [1, 100, 256, 257, 4_257, 8_192, 8_193, 65_537])
    def test_what_is_kept_stays(self, count):
        """Results kept for random times: as they are, seen by others, reshaped, and donated."""
        rng = np.random.default_rng(count)
        x = np.arange(count, dtype="float32")
        kept = [(tnp.asarray(x), x)]
        for k in range(300):
            array, value = kept[rng.integers(len(kept))]
            match rng.integers(6):
                case 0 | 1:
                    kept.append((self.add(array, np.float32(k)), value + np.float32(k)))
                case 2:
                    kept += zip(self.both(array), (value + 1, value - 1), strict=True)
                case 3:
                    kept.append((self.double(self.add(array, np.float32(1))), 2 * (value + 1)))
                case 4:
                    kept.append((array.reshape(count, 1).reshape(count), value))
                case 5:
                    view = np.asarray(self.add(array, np.float32(2)))
                    kept.append((tnp.asarray(view), value + 2))
            del array
            while len(kept) > rng.integers(1, 12):
                del kept[rng.integers(len(kept))]
            for array, value in kept:
                array.read(lambda elements, value=value: np.testing.assert_array_equal(elements, value))

    def test_a_donated_result_is_overwritten(self):
        x = tnp.zeros(4_257)
        for _ in range(8):
            x = self.add(x, 1)
            address = int(str(x.address))  # another object: who refers to an address is a reader
            x = self.double(x)
            assert x.address == address

    @pytest.mark.parametrize("look", [np.asarray, np.from_dlpack, lambda y: y.tensor])
    def test_what_somebody_sees_is_not_used(self, look):
        x = tnp.arange(4_257.0)
        views = [look(self.add(x, float(k))) for k in range(12)]
        for k, view in enumerate(views):
            np.testing.assert_array_equal(view.numpy() if hasattr(view, "numpy") else view, np.arange(4_257) + k)

    def test_threads(self):
        x = tnp.arange(4_257.0)

        def work(i):
            y = x
            for _ in range(200):
                y = self.add(y, i)
            return y

        arguments = [tnp.asarray(float(i)) for i in range(6)]
        with ThreadPoolExecutor(6) as pool:
            for i, y in enumerate(pool.map(work, arguments)):
                np.testing.assert_array_equal(y, np.arange(4_257) + 200 * i)

    def test_all_is_given_back(self):
        self.add(tnp.zeros(4_257), 1)
        memory.clear_memory()
        assert not any(memory._BLOCKS_BY_SIZE.values())


class TestNoMemory:
    """An allocation that is too large raises an error with its bytes, and leaks nothing."""

    def test_of_results_and_copies(self):
        n = 1 << 45
        fill = jit(lambda x: tnp.broadcast_to(x, (n,)) + 1)
        for call in (fill, lambda x: tnp.asarray(np.broadcast_to(x, (n,)))):
            with pytest.raises(errors.OutOfMemoryError, match="140,737,488,355,328 bytes") as caught:
                call(np.float32(1))
            assert isinstance(caught.value, MemoryError)

    def test_memory_that_is_kept_is_given_back_first(self, monkeypatch):
        memory.clear_memory()
        x = tnp.asarray(np.zeros(1 << 20, "float32"))
        jit(lambda x: x + 1)(x)
        assert memory._POOL.blocks
        allocate = memory._allocate

        def picky(*arguments):
            if memory._POOL.blocks:
                raise RuntimeError("std::bad_alloc")
            return allocate(*arguments)

        monkeypatch.setattr(memory, "_allocate", picky)
        np.testing.assert_array_equal(jit(lambda x: tnp.concatenate([x, x]) + 1)(x), np.ones(2 << 20))

    @pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
    def test_of_workspaces(self):
        """In the calling thread and in others; the next call, with the memory, is right."""
        code = """if True:
            import resource, numpy as np, tvmfun, tvmfun.numpy as tnp
            from tvmfun import lax, errors
            x = tnp.asarray(np.arange(10_000_000, dtype="float32").reshape(20, -1))
            for function in (lambda x: tnp.sort(x.reshape(-1)), lambda x: tnp.sort(x, axis=1)):
                f = tvmfun.jit(lambda x: tnp.max(function(x))).lower(x).compile()
                plan = f.memory_analysis()
                assert plan.workspaces > 5_000_000
                pages, refused = int(open("/proc/self/statm").read().split()[0]), 0
                for part in (0.2, 0.9):
                    limit = pages * resource.getpagesize() + plan.temporaries + int(plan.workspaces * part) + (1 << 20)
                    resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
                    try:
                        f(x)
                    except MemoryError as error:
                        assert isinstance(error, errors.OutOfMemoryError) and f"{plan.workspaces:,} bytes" in str(error)
                        refused += 1
                    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
                    assert float(f(x)) == 9_999_999
                assert refused
        """
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
        assert (ended.returncode, ended.stderr) == (0, "")
