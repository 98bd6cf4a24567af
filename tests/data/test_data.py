"""Sources, batches, streams of text, and reading ahead: order, resuming, threads, and damaged files."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoints, random, tree
from tvmfun.data import ArraySource, Padded, Source, TextSource, Windows, batches, memory_map, pack, prefetch, shuffle
from tvmfun.data import stack as stacked
from tvmfun.errors import ArgumentError, DataError, DtypeError, ShapeError

KEY = random.key(7)
ORDER = [11, 2, 1, 3, 8, 0, 4, 10, 7, 5, 9, 6]
ORDER_OF_EPOCH_3 = [10, 5, 0, 6, 1, 2, 11, 4, 7, 9, 8, 3]
DRAWS = [4, 2, 10, 8, 7, 7, 8, 1, 6, 7, 4, 1]


def identical(first, second):
    """Whether two items, or lists of them, hold the same arrays or bytes in the same structure."""
    a, one = tree.flatten(first)
    b, two = tree.flatten(second)
    return one == two and all(
        x == y if isinstance(x, bytes) else (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        for x, y in zip(a, b, strict=True)
    )


def assert_resumes(make, folder, everything=None):
    """A stream from any of its states, one of them through a file, yields the same items as without a break."""
    stream = make()
    states, items = [stream.state], []
    for item in stream:
        items.append(item)
        states.append(stream.state)
    assert everything is None or identical(items, everything)
    assert items, "there is something to resume"
    for i, state in enumerate(states):
        assert all(isinstance(leaf, int) for leaf in tree.leaves(state))
        again = make()
        if i == len(states) // 2:
            checkpoints.save(folder / "state", {"data": state})
            state = checkpoints.load(folder / "state", like={"data": again.state})["data"]
        again.restore(state)
        assert again.state == state
        assert identical(list(again), items[i:]), i
    # Going back is no different, and a stream that has ended can be restored.
    stream.restore(states[0])
    assert identical(list(stream), items)


# -- sources ---


def test_array_source_of_trees_and_other_peoples_arrays():
    values = {"a": np.arange(12).reshape(4, 3), "b": (tnp.arange(4), [np.ones(4, bool)])}
    source = ArraySource(values)
    assert len(source) == 4 and isinstance(source, Source)
    read = source.read(np.asarray([3, 0, 3]))
    assert identical(read, tree.map(lambda leaf: np.asarray(leaf)[[3, 0, 3]], values))
    read["a"][:] = 0
    assert values["a"][3, 0] == 9, "what was read is a copy"


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, ShapeError, r"one number of rows, got 3 at \['x'\], 4 at \['y'\]"),
        ({"x": np.zeros(3), "y": 1.0}, ShapeError, r"\['y'\] must have an axis of examples, got a scalar, 1.0"),
        ((), DataError, r"there must be an array, got \(\)"),
        (np.zeros((0, 3)), DataError, r"the arrays must have rows, got \(0, 3\)"),
        ({"names": np.asarray(["a"])}, DtypeError, r"\['names'\] must have a dtype of tvmfun, got <U1"),
        (np.asarray([{}]), DtypeError, "the array must have a dtype of tvmfun, got object"),
    ],
)
def test_arrays_that_are_no_source(arrays, error, message):
    with pytest.raises(error, match=rf"\[ArraySource\] .*{message}"):
        ArraySource(arrays)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.integers(1, 20), st.none() | st.integers(1, 25))
def test_windows_are_slices(n, length, stride):
    tokens = np.arange(n, dtype="uint16")
    if n <= length:
        with pytest.raises(DataError, match=rf"\[Windows\] a window of {length} \+ 1 tokens needs as many, got {n}"):
            Windows(tokens, length, stride=stride)
        return
    source = Windows(tokens, length, stride=stride)
    starts = range(0, n - length, stride or length)
    assert len(source) == len(starts)
    expected = np.stack([tokens[start : start + length + 1] for start in starts])
    assert identical(source.read(np.arange(len(source))), expected)
    assert identical(source.read(np.asarray([len(source) - 1])), expected[-1:])


def test_windows_of_what_are_no_tokens():
    with pytest.raises(DtypeError, match=r"\[Windows\] the tokens must be integers, got float64"):
        Windows(np.zeros(9), 3)
    with pytest.raises(ShapeError, match=r"the tokens must have one axis, got \(3, 3\)"):
        Windows(np.zeros((3, 3), int), 3)
    with pytest.raises(ArgumentError, match="the stride must be a positive integer, got 0"):
        Windows(tnp.arange(9), 3, stride=0)
    with pytest.raises(ArgumentError, match="the length must be a positive integer, got True"):
        Windows(np.arange(9), True)


def test_memory_maps(tmp_path):
    array = np.arange(12, dtype="float32").reshape(4, 3)
    np.save(tmp_path / "a.npy", array)
    array.astype("uint16").tofile(tmp_path / "a.bin")
    whole = memory_map(tmp_path / "a.npy")
    raw = memory_map(tmp_path / "a.bin", "uint16", (3,))
    assert isinstance(whole, np.memmap) and isinstance(raw, np.memmap)
    x, y = ArraySource((whole, raw)).read(np.asarray([2, 1]))
    assert identical((x, y), (array[[2, 1]], array[[2, 1]].astype("uint16")))
    assert type(x) is type(y) is np.ndarray, "nothing of the file is held"
    assert Windows(memory_map(tmp_path / "a.bin", np.uint16), 5).read(np.asarray([1])).tolist() == [[5, 6, 7, 8, 9, 10]]
    with pytest.raises(ValueError, match="read-only"):
        whole[0] = 1


def test_either_order_of_bytes(tmp_path):
    numbers = np.arange(300, dtype=">u2")
    numbers.tofile(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", numbers)
    for array in (memory_map(tmp_path / "a.bin", ">u2"), memory_map(tmp_path / "a.npy"), numbers):
        assert identical(ArraySource(array).read(np.asarray([299, 1])), np.asarray([299, 1], "uint16"))
        assert identical(Windows(array, 1).read(np.asarray([298])), np.asarray([[298, 299]], "uint16"))
    np.asarray(tnp.asarray([1.5, 2], "bfloat16")).tofile(tmp_path / "b.bin")
    assert memory_map(tmp_path / "b.bin", "bfloat16").astype("float32").tolist() == [1.5, 2.0]


def test_memory_maps_are_read_where_it_is_asked(tmp_path):
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(2**33)  # 8 GiB of nothing
    source = Windows(memory_map(tmp_path / "large.bin", "uint16"), 1024)
    batch = next(batches(source, 4, key=KEY, replace=True))
    assert batch.shape == (4, 1025) and not batch.any()


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", ("uint16",), r"rows of 2 bytes, and at least one, got 0 bytes\. Try the dtype and shape"),
        (b"123", ("uint16",), "got 3 bytes"),
        (b"1234", ("uint8", (3,)), "rows of 3 bytes, .* got 4 bytes"),
        (b"1234", (), r"is not a complete \.npy file, got .* Try dtype"),
        (b"", (), r"is not a complete \.npy file"),
    ],
)
def test_damaged_files(tmp_path, content, arguments, message):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"\[memory_map\] .*a.bin .*{message}"):
        memory_map(tmp_path / "a.bin", *arguments)


def test_truncated_and_foreign_npy_files(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"\[memory_map\] .*a.npy is not a complete \.npy file"):
        memory_map(path)
    np.save(path, np.asarray(["text"]))
    with pytest.raises(DtypeError, match=r"a.npy must have a dtype of tvmfun, got <U4"):
        memory_map(path)
    np.save(path, np.asarray([{}]), allow_pickle=True)
    with pytest.raises(DataError, match="not a complete"):
        memory_map(path)
    np.savez(tmp_path / "b.npz", a=np.arange(3))
    with pytest.raises(DataError, match=r"b.npz is not a \.npy file, got an archive"):
        memory_map(tmp_path / "b.npz")
    with pytest.raises(FileNotFoundError):
        memory_map(tmp_path / "nowhere.npy")


# -- the order ---


def order(size, key=KEY, epoch=0, **options):
    stream = batches(ArraySource(np.arange(size)), 1, key=key, epochs=epoch + 1, **options)
    stream.restore(stream.state._replace(epoch=epoch))
    return [int(batch[0]) for batch in stream]


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


# -- batches ---


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
        (state._replace(taken=5), "must be a position in the source, got State"),
        (state._replace(epoch=-1), "must be a position in the source"),
        (TextSource(tmp_path / "a").state, "must have the fields epoch, taken, size, key, got TextState"),
        (None, "must have the fields"),
    ]:
        with pytest.raises(DataError, match=rf"\[restore\] the state .*{message}"):
            stream.restore(other)
        assert stream.state == state


# -- text ---

TEXT = "Der Bär saß\n\nfröhlich im Baum.\r\nEnde"


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "empty", "c")]
    for path, text in zip(paths, (TEXT, "b\n" * 5, "", "no line end"), strict=True):
        path.write_bytes(text.encode())
    return paths


def test_lines_and_pieces(files):
    content = [path.read_bytes() for path in files]
    lines = [line for text in content for line in text.splitlines(keepends=True)]
    assert list(TextSource(files)) == lines
    assert list(TextSource(files[0])) == content[0].splitlines(keepends=True)
    assert list(TextSource(str(files[0]), epochs=2)) == content[0].splitlines(keepends=True) * 2
    pieces = [text[i : i + 7] for text in content for i in range(0, len(text), 7)]
    assert list(TextSource(files, chunk=7)) == pieces


def test_files_in_an_order_of_their_own_in_each_epoch(tmp_path):
    paths = [tmp_path / str(i) for i in range(6)]
    for i, path in enumerate(paths):
        path.write_text(f"{i}\n")
    stream = TextSource(paths, key=KEY, epochs=2)
    assert [int(line) for line in stream] == order(6) + order(6, epoch=1)


@pytest.mark.parametrize("options", [{}, {"chunk": 5}, {"key": KEY, "epochs": 2}], ids=str)
def test_text_resumes_anywhere(files, tmp_path, options):
    assert_resumes(lambda: TextSource(files, **options), tmp_path)
    assert_resumes(lambda: shuffle(TextSource(files, **options), 4, key=KEY), tmp_path)
    assert_resumes(lambda: pack(TextSource(files, **options), 4), tmp_path)
    whole = lambda: stacked(pack(shuffle(TextSource(files, **options), 3, key=KEY), 5), 2, last="pad")
    assert_resumes(whole, tmp_path)


def test_text_that_is_not_there(files, tmp_path):
    with pytest.raises(DataError, match=r"\[TextSource\] there must be files with text, got 0 files of 0 bytes"):
        TextSource([])
    with pytest.raises(DataError, match="got 1 files of 0 bytes"):
        TextSource(files[2])
    with pytest.raises(FileNotFoundError):
        TextSource(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="the chunk must be a positive integer, got 0"):
        TextSource(files, chunk=0)
    state = TextSource(files).state
    with pytest.raises(DataError, match=r"\[restore\] the state must be of \d+ bytes of text, got \d+"):
        TextSource(files[:2]).restore(state)
    with pytest.raises(DataError, match="must be a position in the files"):
        TextSource(files).restore(state._replace(file=9))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(1, 12))
def test_a_shuffle_moves_items_within_their_block(count, size):
    stream = (batches(ArraySource(np.arange(max(count, 1))), 1)) if count else iter_of_nothing()
    got = [int(item[0]) for item in shuffle(stream, size, key=KEY)]
    for i, first in enumerate(range(0, count, size)):
        block = range(first, min(first + size, count))
        assert got[first : first + size] == [block[place] for place in order(len(block), epoch=i)]
    assert len(got) == count


def iter_of_nothing():
    stream = batches(ArraySource(np.arange(1)), 1)
    next(stream)
    return stream


def test_shuffles_that_make_no_sense(files):
    stream = shuffle(TextSource(files), 4, key=KEY)
    with pytest.raises(DataError, match="must be of 4 items in a block, got 5"):
        stream.restore(stream.state._replace(size=5))
    with pytest.raises(DataError, match=r"the key \[0, 7\], got \[0, 8\]"):
        stream.restore(stream.state._replace(key=(0, 8)))
    with pytest.raises(ShapeError, match=r"\[shuffle\] a key is uint32\[2\], got None"):
        shuffle(TextSource(files), 4, key=None)
    with pytest.raises(ArgumentError, match="the size must be a positive integer, got 0"):
        shuffle(TextSource(files), 0, key=KEY)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_windows_from_pieces_are_those_of_the_whole(tmp_path_factory, sizes, length):
    if not sum(sizes):
        return
    tokens = np.arange(sum(sizes), dtype="int32")
    parts = np.split(tokens, np.cumsum(sizes)[:-1])
    make = lambda: pack(batches(ArraySource(np.arange(len(sizes))), 1), length, tokenize=lambda i: parts[int(i[0])])
    windows = list(make())
    expected = Windows(tokens, length) if len(tokens) > length else None
    assert len(windows) == (0 if expected is None else len(expected))
    if expected is not None:
        assert identical(np.stack(windows), expected.read(np.arange(len(expected))))
        assert_resumes(make, tmp_path_factory.mktemp("states"), windows)


def test_tokens_and_items_of_the_wrong_shape(files):
    with pytest.raises(ShapeError, match=r"\[pack\] the tokens of an item must have one axis, got \(\)"):
        next(pack(TextSource(files), 4, tokenize=len))
    with pytest.raises(DataError, match=r"must have the fields skip, stream, got 3"):
        pack(TextSource(files), 4).restore(3)
    ragged = prefetch([np.zeros(2), np.zeros(3)])
    with pytest.raises(ShapeError, match=r"\[stack\] the items of a batch must have one shape"):
        next(stacked(ragged, 2))


# -- reading ahead ---


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
