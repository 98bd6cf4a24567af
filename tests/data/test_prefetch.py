"""Reading ahead: threads that end, errors where their item would be, states."""

import gc
import itertools
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy as np
import pytest
from support.streams import KEY, assert_resumes, identical

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.data import ArraySource, batches, prefetch
from tvmfun.errors import ArgumentError


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_for_no_threads():
    """The thread of a stream that nobody has any more ends by itself, soon."""
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not threads()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if threads():
        gc.collect()
        wait_for_no_threads()


def counting(stop=None):
    """Natural numbers, and how many of them were asked for."""
    made = []

    def numbers():
        for i in itertools.count():
            if i == stop:
                return
            made.append(i)
            yield i

    return numbers(), made


@pytest.mark.parametrize("size", [1, 2, 100])
def test_prefetch_yields_the_items_and_ends(size):
    stream = prefetch(range(20), size)
    assert list(stream) == list(range(20))
    assert list(stream) == [], "it stays at its end"
    assert list(prefetch([], size)) == []


def test_prefetch_reads_ahead_so_far_and_no_farther():
    numbers, made = counting()
    with prefetch(numbers, 3) as stream:
        for taken in range(4):
            deadline = time.monotonic() + 5
            while len(made) < taken + 3 and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.01)
            assert len(made) == taken + 3
            assert next(stream) == taken


def test_the_thread_ends_when_the_loop_is_left():
    for _ in prefetch(counting()[0]):
        break
    wait_for_no_threads()


def test_the_thread_ends_when_the_loop_fails():
    with pytest.raises(ZeroDivisionError), prefetch(counting()[0]) as stream:
        for item in stream:
            assert 1 / item
    assert not threads()
    assert list(stream) == []
    stream.close()


def test_the_thread_ends_when_the_stream_is_collected():
    stream = prefetch(counting()[0])
    next(stream)
    gone = weakref.ref(stream)
    cycle = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()
    assert gone() is None
    wait_for_no_threads()


def test_a_stream_that_nobody_reads_ends_too():
    prefetch(counting()[0])
    wait_for_no_threads()


def failing():
    yield 1
    raise OSError("the disk is gone")


def test_errors_come_where_the_item_would_have_come_with_their_traceback():
    stream = prefetch(failing(), 5)
    assert next(stream) == 1
    with pytest.raises(OSError, match="the disk is gone") as caught:
        next(stream)
    assert "failing" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert list(stream) == []
    with pytest.raises(ZeroDivisionError):
        list(prefetch([1, 0], transform=lambda x: 1 // x))


def test_a_transform_cannot_end_the_stream_unnoticed():
    def stop(x):
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(prefetch([1, 2], transform=stop))


def test_the_state_is_that_of_what_was_taken_out(tmp_path):
    source = ArraySource(np.arange(10))
    make = lambda: batches(source, 2, key=KEY, epochs=2)
    assert_resumes(lambda: prefetch(make(), 3), tmp_path, list(make()))
    plain = make()
    with prefetch(make(), 3) as stream:
        for _ in range(4):
            assert identical(next(stream), next(plain))
            assert stream.state == plain.state


def test_only_streams_have_a_state():
    stream = prefetch(range(3))
    with pytest.raises(ArgumentError, match=r"\[prefetch\] only streams have a state, got range_iterator"):
        stream.state
    with pytest.raises(ArgumentError, match="only streams have a state"):
        stream.restore(3)
    with pytest.raises(ArgumentError, match="the size must be a positive integer, got 0"):
        prefetch(range(3), 0)


def test_batches_come_to_the_device_in_the_thread():
    names = []

    def to_device(batch):
        names.append(threading.current_thread().name)
        return tvmfun.device_put(batch)

    square = tvmfun.jit(lambda x: tnp.sum(x * x))
    source = ArraySource(np.arange(8, dtype="float32"))
    sums = [float(square(batch)) for batch in prefetch(batches(source, 4), transform=to_device)]
    assert sums == [14.0, 126.0] and names == ["prefetch"] * 2


AT_EXIT = """
import itertools, tvmfun
from tvmfun.data import prefetch
stream = prefetch(itertools.count(), 4, transform=lambda i: tvmfun.device_put([float(i)] * 50))
other = prefetch(itertools.count(), transform=lambda i: tvmfun.device_put([float(i)] * 50))
print(float(next(stream)[0]))
loop = [other]
loop.append(loop)
del other
"""


@pytest.mark.slow
def test_the_process_ends_while_threads_are_reading():
    result = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0.0\n", "")
