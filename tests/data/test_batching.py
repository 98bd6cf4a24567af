"""Batches: their order, its distribution, and resuming anywhere."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import KEY, assert_resumes, identical, order

from tvmfun import random
from tvmfun.data import ArraySource, Padded, TextSource, batches
from tvmfun.errors import ArgumentError, DataError, ShapeError

ORDER = [11, 2, 1, 3, 8, 0, 4, 10, 7, 5, 9, 6]
ORDER_OF_EPOCH_3 = [10, 5, 0, 6, 1, 2, 11, 4, 7, 9, 8, 3]
DRAWS = [4, 2, 10, 8, 7, 7, 8, 1, 6, 7, 4, 1]


def test_the_order_is_the_same_on_every_machine():
    assert order(12) == ORDER
    assert order(12, epoch=3) == ORDER_OF_EPOCH_3
    assert order(12, replace=True) == DRAWS


def test_the_order_is_sorted_bits_of_philox():
    bits = np.random.Philox(key=int.from_bytes(np.asarray(random.fold_in(KEY, 2)).astype(">u4").tobytes())).random_raw(
        9
    )
    assert order(9, epoch=2) == np.argsort(bits >> np.uint64(4), kind="stable").tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_every_epoch_is_a_permutation_of_its_own(size, seed, epoch):
    first, second = order(size, random.key(seed), epoch), order(size, random.key(seed), epoch + 1)
    assert sorted(first) == sorted(second) == list(range(size))
    assert first == order(size, random.key(seed), epoch)
    if size > 20:
        assert first != second and first != order(size, random.key(seed + 1), epoch)


def test_every_permutation_is_equally_likely():
    stream = batches(ArraySource(np.arange(4)), 4, key=KEY, epochs=2400)
    _, counts = np.unique([batch @ [64, 16, 4, 1] for batch in stream], return_counts=True)
    # Chi-squared with 23 degrees of freedom is above 49.7 once in a thousand.
    assert len(counts) == 24 and np.sum((counts - 100) ** 2 / 100) < 49.7


@pytest.mark.slow
def test_draws_are_uniform_and_independent_of_the_batch_size():
    def drawn(size, count=4096):
        stream = batches(ArraySource(np.arange(count)), size, key=KEY, replace=True, last="keep")
        return np.concatenate(list(stream))

    values = drawn(4096)
    for size in (1, 7, 64):
        assert identical(drawn(size), values)
    counts = np.bincount(values, minlength=4096)
    assert len(values) == 4096
    # Poisson: a share of 1 / e is never drawn.
    assert abs(np.mean(counts == 0) - np.exp(-1)) < 0.03
    assert np.sum((np.bincount(values // 256, minlength=16) - 256) ** 2 / 256) < 37.7


def test_a_shuffle_of_many_examples_is_fast():
    size = 10**6
    stream = batches(ArraySource(np.broadcast_to(np.int8(0), size)), 100, key=KEY)
    started = time.process_time()
    next(stream)
    assert time.process_time() - started < 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from(["drop", "keep", "pad"]),
    st.booleans(),
)
def test_batches_are_the_order_in_pieces(size, batch_size, epochs, last, shuffled):
    if last == "drop" and batch_size > size:
        batch_size = size
    key = KEY if shuffled else None
    values = np.arange(size) * 10
    stream = batches(ArraySource({"x": values}), batch_size, key=key, epochs=epochs, last=last)
    got = list(stream)
    expected = []
    for epoch in range(epochs):
        places = order(size, key, epoch)
        for first in range(0, size, batch_size):
            part = np.asarray(places[first : first + batch_size])
            if len(part) == batch_size or last != "drop":
                missing = [0] * (batch_size - len(part))
                mask = np.asarray([True] * len(part) + [False] * len(missing))
                full = {"x": values[np.append(part, part[missing]).astype(int)]}
                expected.append(Padded(full, mask) if last == "pad" else {"x": values[part]})
    assert identical(got, expected)
    assert len(got) == stream.batches_per_epoch * epochs
    assert stream.state[:2] == (epochs, 0)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(3, 11),
    st.integers(1, 3),
    st.sampled_from(["drop", "keep", "pad"]),
    st.sampled_from([{}, {"key": KEY}, {"key": KEY, "replace": True}]),
)
def test_batches_resume_anywhere(tmp_path_factory, size, batch_size, last, order):
    source = ArraySource((np.arange(size), np.ones((size, 2), "float32")))
    folder = tmp_path_factory.mktemp("states")
    assert_resumes(lambda: batches(source, batch_size, epochs=2, last=last, **order), folder)


def test_another_batch_size_goes_on_with_the_examples_that_are_left():
    source = ArraySource(np.arange(12))
    stream = batches(source, 4, key=KEY)
    first = next(stream)
    other = batches(source, 2, key=KEY)
    other.restore(stream.state)
    assert np.concatenate([first, *other]).tolist() == order(12)
    # Too few are left for a batch: the epoch is over.
    other = batches(source, 9, key=KEY, epochs=2)
    other.restore(stream.state)
    assert [batch.tolist() for batch in other] == [order(12, epoch=1)[:9]]


def test_one_epoch_at_a_time():
    stream = batches(ArraySource(np.arange(6)), 2, key=KEY, epochs=None)
    epochs = [[batch.tolist() for batch in stream.epoch()] for _ in range(3)]
    assert [list(itertools.chain(*epoch)) for epoch in epochs] == [order(6, epoch=epoch) for epoch in range(3)]
    next(stream)
    state = stream.state
    rest = stream.epoch()
    first = list(rest)
    assert len(first) == 2 and rest.state == stream.state and list(rest) == []
    rest.restore(state)
    assert identical(list(rest), first)


def test_an_error_of_the_source_loses_nothing():
    class Flaky:
        fail = True

        def __len__(self):
            return 4

        def read(self, places):
            if self.fail:
                raise OSError("gone")
            return places

    source = Flaky()
    stream = batches(source, 2)
    with pytest.raises(OSError, match="gone"):
        next(stream)
    source.fail = False
    assert [batch.tolist() for batch in stream] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 6}, DataError, r"fill a batch, got batches of 6 from 5 examples\. Try a smaller batch_size"),
        ({"batch_size": 0}, ArgumentError, "batch_size must be a positive integer, got 0"),
        ({"batch_size": 2.0}, ArgumentError, r"batch_size must be a positive integer, got 2\.0"),
        ({"epochs": 0}, ArgumentError, "number of epochs must be a positive integer, got 0"),
        ({"last": "some"}, ArgumentError, """last is unknown, got 'some'. Try "drop", "keep" or "pad"."""),
        ({"replace": True}, ArgumentError, "needs a key. Try key=random.key"),
        ({"key": 3}, ShapeError, r"a key is uint32\[2\], got int64\[\]\. Try random.key"),
        ({"key": random.split(KEY)}, ShapeError, r"got uint32\[2, 2\]"),
        ({"source": np.arange(3)}, ArgumentError, "must have __len__ and read, got ndarray. Try ArraySource"),
        ({"source": (np.arange(3),)}, ArgumentError, "got tuple"),
    ],
)
def test_batches_that_make_no_sense(arguments, error, message):
    arguments = {"source": ArraySource(np.arange(5)), "batch_size": 2, **arguments}
    with pytest.raises(error, match=rf"\[batches\] .*{message}"):
        batches(**arguments)


def test_an_empty_source():
    class Empty:
        def __len__(self):
            return 0

        def read(self, places):
            return places

    with pytest.raises(DataError, match=r"\[batches\] the source must have examples, got none"):
        batches(Empty(), 2, last="keep")


def test_states_of_others(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    stream = batches(ArraySource(np.arange(5)), 2, key=KEY)
    state = stream.state
    for other, message in [
        (state._replace(size=6), r"of 5 examples, got 6\. Try the data it was saved with"),
        (state._replace(key=(0, 8)), r"of the key \[0, 7\], got \[0, 8\]\. Try the key it was saved with"),
        (state._replace(key=()), r"of the key \[0, 7\], got None"),
        (state._replace(taken=2.5), "must have an integer as taken, got 2.5"),
        (state._replace(taken="3"), "must have an integer as taken"),
        (state._replace(taken=5), "must be a position in the source, got State"),
        (state._replace(epoch=-1), "must be a position in the source"),
        (TextSource(tmp_path / "a").state, "must have the fields epoch, taken, size, key, got TextState"),
        (None, "must have the fields"),
    ]:
        with pytest.raises(DataError, match=rf"\[restore\] the state .*{message}"):
            stream.restore(other)
        assert stream.state == state
