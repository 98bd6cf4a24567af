"""Streams of text: lines, shuffles, windows of tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import KEY, assert_resumes, identical, order

from tvmfun.data import ArraySource, TextSource, Windows, batches, pack, prefetch, shuffle
from tvmfun.data import stack as stacked
from tvmfun.errors import ArgumentError, DataError, ShapeError

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
