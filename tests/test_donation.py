"""Donated buffers: results are written over them, and nobody who still looks at one sees it change."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoints, jit, optim, tree
from tvmfun.counters import counted
from tvmfun.errors import DonatedArrayError, ShapeError


def address(array) -> int:
    return array.tensor.__dlpack_device__() and np.from_dlpack(array.tensor).ctypes.data


def addresses(values) -> list[int]:
    return [address(leaf) for leaf in tree.leaves(values)]


OPTIMIZERS = {
    "sgd": optim.sgd(0.1),
    "momentum": optim.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optim.adam(1e-2),
    "adamw": optim.adamw(1e-2),
    "adadelta": optim.adadelta(1.0),
    "clipped": optim.chain(optim.clip_by_global_norm(1.0), optim.adam(1e-2)),
}


@pytest.mark.quick("adam", "sgd")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_and_state_stay_where_they_are(name):
    optimizer = OPTIMIZERS[name]
    rng = np.random.default_rng(0)
    shapes = {"w": (70, 33), "b": (33,), "s": (), "t": (3, 17, 19)}
    params = {key: tnp.asarray(rng.normal(size=shape).astype("float32")) for key, shape in shapes.items()}
    grads = {key: tnp.asarray(rng.normal(size=shape).astype("float32")) for key, shape in shapes.items()}

    def step(carry, grads):
        params, state = carry
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    plain, donating = jit(step), jit(step, donate_argnums=0)
    expected = (params, optimizer.init(params))
    carry = tree.map(lambda leaf: tnp.asarray(np.array(leaf)), expected)
    before = addresses(carry)
    for _ in range(3):
        expected, carry = plain(expected, grads), donating(carry, grads)
    assert addresses(carry) == before
    for got, want in zip(tree.leaves(carry), tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_matrix_that_is_updated_with_a_transposed_one():
    # Tiles of a transposition overlap at the edges: an element must not be updated twice.
    x, y = np.random.default_rng(0).normal(size=(2, 37, 37)).astype("float32")
    f = lambda x, y: x + y.T * 2
    got = jit(f, donate_argnums=0)(tnp.asarray(x), tnp.asarray(y))
    np.testing.assert_array_equal(got, jit(f)(x, y))


FORMS = {
    "read elsewhere": lambda x, y: (x[::-1] + y, x * 2),
    "reversed": lambda x, y: x[::-1] * 2,
    "with its own sum": lambda x, y: x - tnp.sum(x * y),
    "with sums of rows": lambda x, y: x - tnp.sum(x, axis=1, keepdims=True),
    "with its transpose": lambda x, y: x + x.T,
    "two of each other": lambda x, y: (x + y, x - y),
    "a chain": lambda x, y: (x * y + 1, tnp.sin(x * y + 1) + x),
    "a product": lambda x, y: x @ y,
    "a product added": lambda x, y: x + x @ y,
    "a product of the other added": lambda x, y: x - 0.1 * (y @ y),
    "rows gathered": lambda x, y: x[tnp.asarray([3, 1, 1, 0, 2])] + y,
    "rows added": lambda x, y: x.at[tnp.asarray([3, 1, 1])].add(y[:3]),
    "returned as it is": lambda x, y: (x, x + 1),
    "reshaped and changed": lambda x, y: (x.reshape(-1), x + y),
    "in a loop": lambda x, y: tvmfun.lax.fori_loop(0, 3, lambda i, x: x * y + i, x),
    "used twice": lambda x, y: (tnp.cumsum(x, axis=0), x + y),
    "compared": lambda x, y: (x > y, tnp.where(x > y, x, y)),
}


@pytest.mark.quick("(0,)-reshaped and changed", "(0, 1)-reversed", "(0,)-in a loop", "(0, 1)-a product")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("donated", [(0,), (0, 1)], ids=str)
def test_the_same_results_as_without_donation(form, donated):
    x, y = np.random.default_rng(1).normal(size=(2, 5, 5)).astype("float32")
    f = FORMS[form]
    expected = jit(f)(x, y)
    got = jit(f, donate_argnums=donated)(tnp.asarray(x), tnp.asarray(y))
    for a, b in zip(tree.leaves(got), tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(st.integers(0, 40), max_size=3), st.sampled_from(["float64", "int32", "bool", "bfloat16"]))
def test_shapes_and_dtypes(shape, dtype):
    x = np.random.default_rng(0).normal(size=shape) * 3
    x = tnp.asarray(x).astype(dtype)
    f = lambda x, y: (tnp.where(y > 0, x, y), x == y)
    expected = jit(f)(x, x)
    got = jit(f, donate_argnums=(0, 1))(tnp.asarray(np.array(x), dtype=dtype), tnp.asarray(np.array(x), dtype=dtype))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


class TestWhoStillLooks:
    add = staticmethod(jit(lambda x: x + 1, donate_argnums=0))

    def test_a_numpy_view(self):
        x = tnp.arange(5.0)
        view = np.asarray(x)
        y = self.add(x)
        np.testing.assert_array_equal(view, np.arange(5))
        np.testing.assert_array_equal(y, np.arange(5) + 1)

    def test_a_dlpack_view(self):
        x = tnp.arange(5.0)
        view = np.from_dlpack(x)
        self.add(x)
        np.testing.assert_array_equal(view, np.arange(5))

    def test_another_shape_of_the_array(self):
        x = tnp.arange(6.0)
        y = x.reshape(2, 3)
        self.add(x)
        np.testing.assert_array_equal(y, np.arange(6).reshape(2, 3))
        x = tnp.arange(6.0)
        y = x.reshape(2, 3)
        self.add(y)
        np.testing.assert_array_equal(x, np.arange(6))

    def test_the_same_array_returned(self):
        x = tnp.arange(5.0)
        y, z = jit(lambda x: (x, x.reshape(5, 1)))(x)
        self.add(y)
        np.testing.assert_array_equal(x, np.arange(5))
        np.testing.assert_array_equal(z, np.arange(5)[:, None])

    def test_one_result_in_two_places(self):
        y, z = jit(lambda x: (lambda r: (r, r))(x * 2))(np.arange(3.0))
        self.add(y)
        np.testing.assert_array_equal(z, np.arange(3) * 2)

    def test_an_array_given_twice(self):
        x = tnp.arange(5.0)
        y, z = jit(lambda x, y: (x + 1, y * 2), donate_argnums=0)(x, x)
        np.testing.assert_array_equal(y, np.arange(5) + 1)
        np.testing.assert_array_equal(z, np.arange(5) * 2)
        x = tnp.arange(5.0)
        y, z = jit(lambda x, y: (x + y, x * y), donate_argnums=(0, 1))(x, x)
        np.testing.assert_array_equal(y, np.arange(5) * 2)
        np.testing.assert_array_equal(z, np.arange(5) ** 2)

    def test_a_captured_array(self):
        w = tnp.arange(5.0)
        f = jit(lambda x: x + w)
        f(w)
        self.add(w)
        with pytest.raises(DonatedArrayError):
            f(tnp.ones(5))

    def test_a_captured_array_given_as_an_argument(self):
        w = tnp.arange(5.0)
        y, z = jit(lambda x: (x + 1, tnp.cumsum(w)), donate_argnums=0)(w)
        np.testing.assert_array_equal(y, np.arange(5) + 1)
        np.testing.assert_array_equal(z, np.cumsum(np.arange(5)))

    def test_a_search_for_nans(self):
        f = jit(lambda x: (tnp.log(x), x - 2)[0] + (x - 2), donate_argnums=0)
        with tvmfun.debug_nans(), pytest.raises(tvmfun.errors.NanError, match="log"):
            f(tnp.asarray([1.0, -1.0]))

    def test_reading_a_number_is_not_looking(self):
        x = tnp.asarray(2.0)
        place = address(x)
        assert float(x) == 2.0 and x.tolist() == 2.0 and repr(x)
        assert address(self.add(x)) == place


def test_a_compiled_function_donates_too():
    x = tnp.arange(5.0)
    place = address(x)
    compiled = jit(lambda x: x * 2, donate_argnums=0).lower(x).compile()
    assert "call_tir_inplace" in compiled.as_text()
    y = compiled(x)
    assert x.is_deleted() and address(y) == place
    np.testing.assert_array_equal(y, np.arange(5) * 2)


def test_dynamic_sizes():
    f = jit(lambda x, y: x + y, donate_argnums=0, dynamic_shapes={"x": ("n", None), "y": ("n", None)})
    for n in (1, 7, 64):
        x = tnp.ones((n, 3))
        place = address(x)
        y = f(x, tnp.ones((n, 3)))
        assert address(y) == place
        np.testing.assert_array_equal(y, np.full((n, 3), 2))


def together(functions) -> list:
    """Runs functions at the same time, each in a thread; returns their results, or the errors they raise."""
    start = threading.Barrier(len(functions))

    def run(function):
        start.wait()
        try:
            return function()
        except DonatedArrayError as error:
            return error

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


class TestThreads:
    add = staticmethod(jit(lambda x: x + 1, donate_argnums=0))
    # Long enough for other threads to arrive in the meantime: the sum of many sines.
    slow = staticmethod(jit(lambda x: (tnp.sum(tnp.sin(x) ** 2 + tnp.cos(x) ** 2) / x.size, x * 2)))

    def test_one_of_several_calls_gets_an_array(self):
        for _ in range(100):
            x = tnp.zeros(50_000)
            results = together([lambda x=x: self.add(x)] * 4)
            (result,) = (r for r in results if not isinstance(r, DonatedArrayError))
            np.testing.assert_array_equal(result, np.ones(50_000))

    def test_one_of_several_calls_gets_all_of_its_arrays(self):
        f = jit(lambda a, b, c: (a + 1, b + 2, c + 3), donate_argnums=(0, 1, 2))
        for _ in range(100):
            a, b, c = (tnp.full(1000, float(n)) for n in range(3))
            results = together([lambda args=args: f(*args) for args in ((a, b, c), (c, b, a), (b, a, c), (b, c, a))])
            assert sum(not isinstance(r, DonatedArrayError) for r in results) == 1
            assert a.is_deleted() and b.is_deleted() and c.is_deleted()

    def test_a_call_that_fails_for_one_array_keeps_the_others(self):
        f = jit(lambda a, b, c: (a + 1, b + 2, c + 3), donate_argnums=(0, 1, 2))
        a, b, c = (tnp.full(5, float(n)) for n in range(3))
        for gone in (c, b):
            gone.delete()
            with pytest.raises(DonatedArrayError):
                f(a, b, c)
            with pytest.raises(DonatedArrayError):
                f(a, a, c)
        np.testing.assert_array_equal(a, np.zeros(5))

    def test_a_call_that_began_before_reads_what_was_there(self):
        for _ in range(20):
            x = tnp.ones(300_000)
            results = together([lambda x=x: self.slow(x), lambda x=x: self.add(x), lambda x=x: self.slow(x)])
            for result in results[::2]:
                if not isinstance(result, DonatedArrayError):
                    assert abs(float(result[0]) - 1) < 1e-4
                    np.testing.assert_array_equal(result[1], np.full(300_000, 2))
            np.testing.assert_array_equal(results[1], np.full(300_000, 2))

    def test_who_reads_holds_the_buffer(self):
        """Its memory is neither overwritten in the meantime, nor given to another array."""
        x = tnp.arange(6.0)
        y, seen = x.read(lambda view: (self.add(x), np.array(view)))
        np.testing.assert_array_equal(y, np.arange(6) + 1)
        np.testing.assert_array_equal(seen, np.arange(6))
        assert x.is_deleted()

        n = 1 << 20
        x = jit(lambda x: x + 1)(tnp.zeros(n))
        fill = jit(lambda: tnp.full(n, 7.0))

        def seen_late(view):
            x.delete()
            others = [fill() for _ in range(3)]
            return len(others), view.min(), view.max()

        assert x.read(seen_late) == (3, 1, 1)

    def test_a_checkpoint_is_of_one_moment(self, tmp_path):
        x = tnp.zeros(1_000_000)
        saves = []

        def save():
            for i in range(10):
                try:
                    checkpoints.save(tmp_path / str(i), {"x": state[0]})
                    saves.append(tmp_path / str(i))
                except DonatedArrayError:
                    pass

        def step():
            for _ in range(200):
                state[0] = self.add(state[0])

        state, like = [x], {"x": tnp.zeros(1_000_000)}
        together([save, step])
        for path in saves:
            assert np.ptp(np.asarray(checkpoints.load(path, like)["x"])) == 0

    @pytest.mark.parametrize("calls", [300, pytest.param(5_000, marks=pytest.mark.slow)])
    def test_donated_and_read_beside(self, calls):
        """Eight threads that donate one array, or read it in some way: right results or errors."""
        n = 3_000
        twice, both = jit(lambda x: x * 2), jit(lambda x, y: (x + 1, y * 2), donate_argnums=0)
        cell = [(tnp.zeros(n), 0.0)]
        counts = {"right": 0, "gone": 0}

        def donate(x, value):
            y = self.add(x)
            cell[0] = (y, value + 1)
            return y, value + 1

        def donate_twice(x, value):
            y, z = both(x, x)
            np.testing.assert_array_equal(z.tolist(), np.full(n, 2 * value))
            cell[0] = (y, value + 1)
            return y, value + 1

        ways = [
            donate,
            donate_twice,
            donate,
            lambda x, value: (twice(x), 2 * value),
            lambda x, value: (x - 1, value - 1),
            lambda x, value: (np.asarray(x), value),
            lambda x, value: (pickle.loads(pickle.dumps(x)), value),
            lambda x, value: (x.reshape(-1, 3), value),
        ]

        def work(way):
            for _ in range(calls):
                x, value = cell[0]
                try:
                    result, expected = way(x, value)
                    found = np.array(result.tolist() if way in (donate, donate_twice) else result)
                except DonatedArrayError:
                    counts["gone"] += 1
                    if x is cell[0][0]:
                        cell[0] = (tnp.zeros(n), 0.0)
                    continue
                np.testing.assert_array_equal(found, np.full(found.shape, expected))
                counts["right"] += 1

        together([lambda way=way: work(way) for way in ways])
        assert counts["right"] > calls


def test_the_error_says_where_an_array_went():
    def step(params, x):
        return tvmfun.tree.map(lambda p: p + x, params)

    params = {"w": tnp.ones(3), "b": [tnp.ones(2), tnp.ones(())]}
    tvmfun.jit(step, donate_argnums=0)(params, 1.0)
    with pytest.raises(DonatedArrayError, match=r"donated to step as argument 0\['w'\] and is gone, got float32\[3\]"):
        params["w"] + 1
    compiled = tvmfun.jit(step, donate_argnums=0).lower({"w": params["w"].aval}, 1.0).compile()
    given = {"w": tnp.ones(3)}
    compiled(given, 1.0)
    with pytest.raises(DonatedArrayError, match=r"donated to step as argument 0\['w'\]"):
        print(given["w"])


class TestViews:
    """A new shape outside of compiled functions is one more view of the same memory."""

    def test_nothing_is_compiled_or_copied(self):
        x = tnp.arange(12.0)
        with counted() as events:
            y = x.reshape(3, 4).reshape(2, 6)
        assert (events.compiles, events.loads, events.calls) == (0, 0, 0)
        assert y.address == x.address
        np.testing.assert_array_equal(np.asarray(y), np.arange(12.0).reshape(2, 6))
        with pytest.raises(ShapeError):
            x.reshape(5)

    @pytest.mark.parametrize("which", [0, 1])
    def test_donating_one_leaves_the_other(self, which):
        x = tnp.arange(12.0)
        both = [x, x.reshape(3, 4)]
        double = tvmfun.jit(lambda a: a * 2, donate_argnums=0)
        doubled = double(both[which])
        assert both[which].is_deleted()
        np.testing.assert_array_equal(np.asarray(both[1 - which]).reshape(-1), np.arange(12.0))
        np.testing.assert_array_equal(np.asarray(doubled).reshape(-1), 2 * np.arange(12.0))

    def test_of_a_deleted_array(self):
        x = tnp.arange(3.0)
        x.delete()
        with pytest.raises(DonatedArrayError):
            x.reshape(3, 1)
