"""Sources: arrays, windows of tokens, files mapped into memory, and damaged ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import KEY, identical

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.data import ArraySource, Source, Windows, batches, memory_map
from tvmfun.errors import ArgumentError, DataError, DtypeError, ShapeError


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
