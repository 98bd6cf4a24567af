"""Clicks for the example of DLRM: small MovieLens directories, lines of Criteo's format, and the generator."""

import re

import click_streams
import movielens_data
import numpy as np
import pytest
from click_streams import Criteo, Synthetic
from movielens_data import ClickDataError, load
from support.click_files import TOKENS, ZEROS, line, numbered, write, write_original, write_recbole

from tvmfun import random, tree
from tvmfun.data import shuffle, stack

KEY = random.key(0)


# -- MovieLens ---


def test_features_of_movielens(tmp_path):
    data = load(write_recbole(tmp_path), KEY)
    assert [len(part.clicks) for part in data[:3]] == [160, 20, 20]
    assert data.table_sizes == (20, 15, 3, 2, 10, 24, 7)
    for part in data[:3]:
        assert part.dense.dtype == part.clicks.dtype == np.float32 and part.ids.dtype == np.int32
        assert (part.ids >= 0).all() and (part.ids < data.table_sizes).all() and np.isfinite(part.dense).all()
    # The age is a number, and the rows of users are in the order of their file.
    train = data.train
    ages = 20.0 + train.ids[:, 0]
    np.testing.assert_allclose(train.dense[:, 0], (ages - ages.mean()) / (ages.std() + 1e-6), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(train.dense[:, 6 + movielens_data.GENRES.index("Drama")], 1)


def test_the_split_is_a_function_of_the_key(tmp_path):
    write_recbole(tmp_path)
    one, same, other = load(tmp_path, KEY), load(tmp_path, KEY), load(tmp_path, random.key(1))
    assert all(tree.leaves(tree.map(np.array_equal, one, same)))
    assert not np.array_equal(one.train.ids, other.train.ids)


def test_held_out_clicks_do_not_reach_features(tmp_path):
    write_recbole(tmp_path)
    before = load(tmp_path, KEY)
    path = tmp_path / "ml-100k.inter"
    header, *lines = path.read_text().splitlines()
    held_out = np.asarray(random.permutation(KEY, len(lines)))[:40]
    for number in held_out:
        user, film, stars, time = lines[number].split("\t")
        lines[number] = "\t".join([user, film, "1" if int(stars) >= 4 else "5", time])
    path.write_text("\n".join([header, *lines]))
    after = load(tmp_path, KEY)
    assert all(tree.leaves(tree.map(np.array_equal, before.train, after.train)))
    for part in ("validation", "test"):
        one, other = getattr(before, part), getattr(after, part)
        assert np.array_equal(one.dense, other.dense) and np.array_equal(one.clicks, 1 - other.clicks)


def test_a_training_click_is_not_in_its_own_means():
    ids, clicks, train = np.asarray([0, 0, 0, 1]), np.asarray([1.0, 0.0, 1.0, 1.0]), np.asarray([0, 1, 3])
    means, logs = movielens_data._means(ids, clicks, train)
    prior = 5 * 2 / 3
    np.testing.assert_allclose(means, [(0 + prior) / 6, (1 + prior) / 6, (1 + prior) / 7, prior / 5])
    np.testing.assert_allclose(logs, np.log1p([2, 2, 2, 1]))


def test_original_files_have_the_same_features(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = load(write_recbole(tmp_path / "one"), KEY), load(write_original(tmp_path / "two"), KEY)
    assert all(tree.leaves(tree.map(np.array_equal, one, two)))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("inter", "1\t2\t3", "ml-100k.inter, line 202: there must be 4 columns, got 3"),
        ("inter", "1\t99\t3\t5", "ml-100k.inter, line 202: user 1 and film 99 must both be in their files"),
        ("inter", "1\t2\tx\t5", "ml-100k.inter, line 202: could not convert string to float: 'x'"),
        ("inter", "1\t2\t6\t5", "ml-100k.inter, line 202: a rating must be from 1 to 5, got 6"),
        ("user", "1\told\tM\tnone\t1", "ml-100k.user, line 22: could not convert string to float: 'old'"),
        ("item", "1\tTitle", "ml-100k.item, line 17: there must be 4 columns, got 2"),
    ],
)
def test_damaged_lines_of_movielens(tmp_path, name, line, message):
    path = write_recbole(tmp_path) / f"ml-100k.{name}"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(ClickDataError, match=re.escape(message)):
        load(tmp_path, KEY)


def test_missing_files_of_movielens(tmp_path, monkeypatch):
    with pytest.raises(ClickDataError, match=r"u.user cannot be read \(No such file or directory\)"):
        load(tmp_path, KEY)
    write_recbole(tmp_path, ratings=3)
    with pytest.raises(ClickDataError, match="must have at least 10 ratings to split, got 3"):
        load(tmp_path, KEY)
    (tmp_path / "ml-100k.item").unlink()
    with pytest.raises(ClickDataError, match="ml-100k.item cannot be read"):
        load(tmp_path, KEY)
    monkeypatch.setattr(movielens_data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClickDataError, match="pip install --no-deps 'recbole"):
        load(None, KEY)


# -- Criteo ---


def number(example):
    return round(float(np.expm1(example.dense[0])))


def test_features_of_criteo(tmp_path):
    integers = ["7", "-2", "", *ZEROS[3:]]
    tokens = ["68fd1e64", "", "FFFFFFFF", *TOKENS[3:]]
    example = next(Criteo([write(tmp_path / "a", line("1", integers, tokens))], 1000, 0))
    np.testing.assert_allclose(example.dense[:4], [np.log(8), 0, 0, 0], rtol=1e-6)
    expected = [1 + 0x68FD1E64 % 999, 0, 1 + 0xFFFFFFFF % 999]
    np.testing.assert_array_equal(example.ids, expected + [11] * 23)
    assert example.clicks == 1 and example.ids.dtype == np.int32 and example.dense.dtype == np.float32


def test_ids_are_below_the_hash_size(tmp_path):
    tokens = [f"{x:08x}" for x in np.random.default_rng(0).integers(0, 2**32, 26)]
    for size in (2, 3, 1000):
        ids = next(Criteo([write(tmp_path / "a", line(tokens=tokens))], size, 0)).ids
        assert ids.min() >= 1 and ids.max() < size


BAD = {
    "": "there must be 40 columns, got 1",
    line() + "\t": "there must be 40 columns, got 41",
    line(integers=ZEROS[1:]): "there must be 40 columns, got 39",
    line("2"): "the label must be 0 or 1, got b'2'",
    line(""): "the label must be 0 or 1, got b''",
    line(integers=["1.5", *ZEROS[1:]]): "column 2 must be an integer, got b'1.5'",
    line(integers=[*ZEROS[1:], "9" * 400]): "column 14 must be an integer, got b'99999999999999999999'",
    line(tokens=["0xff", *TOKENS[1:]]): "column 15 must be hexadecimal, got b'0xff'",
    line(tokens=[*TOKENS[1:], "xyz"]): "column 40 must be hexadecimal, got b'xyz'",
    line(tokens=[*TOKENS[1:], "123456789"]): "column 40 must be hexadecimal, got b'123456789'",
}


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_malformed_lines_are_skipped_up_to_a_limit(tmp_path, bad):
    good = numbered(4)
    paths = [write(tmp_path / "a", *good[:2]), write(tmp_path / "b", bad, good[2], bad, good[3])]
    stream = Criteo(paths, 100, 2, epochs=1)
    assert [number(example) for example in stream] == [0, 1, 2, 3] and stream.malformed == 2
    message = re.escape(f"{paths[1]}, line 3: {BAD[bad]}. There are more malformed lines than --max-malformed 1.")
    with pytest.raises(ClickDataError, match=message):
        list(Criteo(paths, 100, 1, epochs=1))


def test_malformed_lines_are_counted_anew_in_each_pass(tmp_path):
    stream = Criteo([write(tmp_path / "a", *numbered(2), "bad")], 100, 1)
    assert [number(next(stream)) for _ in range(6)] == [0, 1, 0, 1, 0, 1]


def test_the_first_lines_are_held_out(tmp_path):
    paths = [write(tmp_path / "a", "bad", *numbered(5)), write(tmp_path / "b", *numbered(2, start=5))]
    held_out = click_streams.first(paths, 3, 100, 1)
    assert np.rint(np.expm1(held_out.dense[:, 0])).tolist() == [0, 1] and held_out.ids.shape == (2, 26)
    stream = Criteo(paths, 100, 0, skip=3)
    assert [number(next(stream)) for _ in range(7)] == [2, 3, 4, 5, 6, 2, 3]
    with pytest.raises(ClickDataError, match="no example in the first 1 lines"):
        click_streams.first(paths, 1, 100, 1)
    with pytest.raises(ClickDataError, match="no line is left after the first 9 lines"):
        next(Criteo(paths[:1], 100, 0, skip=9))


def test_files_of_criteo_that_cannot_be_read(tmp_path):
    with pytest.raises(ClickDataError, match=r"none cannot be read \(No such file or directory\)"):
        Criteo([tmp_path / "none"], 100, 0)
    (tmp_path / "empty").touch()
    with pytest.raises(ClickDataError, match=r"cannot be read \(Is a directory\)"):
        Criteo([tmp_path], 10, 0)
    with pytest.raises(ClickDataError, match="empty is empty"):
        Criteo([write(tmp_path / "a", line()), tmp_path / "empty"], 100, 0)


def test_criteo_resumes_at_every_batch(tmp_path):
    paths = [write(tmp_path / "a", *numbered(5), "bad"), write(tmp_path / "b", "bad", *numbered(6, start=5))]
    make = lambda: stack(shuffle(Criteo(paths, 100, 2, skip=1), 4, key=KEY), 3, last="pad")
    stream, states, expected = make(), [], []
    for _ in range(9):
        states.append(stream.state)
        expected.append(next(stream))
    assert all(batch.mask.all() for batch in expected)
    for start, state in enumerate(states):
        resumed = make()
        resumed.restore(tree.map(np.int64, state))
        for batch in expected[start:]:
            assert all(tree.leaves(tree.map(np.array_equal, batch, next(resumed))))


# -- the generator ---


def test_synthetic_batches_are_a_function_of_their_number():
    stream = Synthetic(1000, 3, 64, seed=1)
    batches = [next(stream) for _ in range(4)]
    other = Synthetic(1000, 3, 64, seed=1)
    other.restore(tree.map(np.int64, stream.state._replace(batch=2)))
    for batch in batches[2:]:
        assert all(tree.leaves(tree.map(np.array_equal, batch, next(other))))
    assert not np.array_equal(batches[0].examples.ids, batches[1].examples.ids)
    with pytest.raises(Exception, match="the state must be of 1000 rows and the seed 2, got 1000 and 1"):
        Synthetic(1000, 3, 64, seed=2).restore(stream.state)


@pytest.mark.parametrize("rows", [2, 1000, 10_000_000, 2**31 - 1])
def test_synthetic_ids_follow_the_law_of_zipf(rows):
    ids = Synthetic(rows, 1, 20_000, seed=0).read(0).ids
    assert ids.min() >= 0 and ids.max() < rows
    # The most frequent one is in row 0, and the next in that of the factor.
    share = [np.mean(ids == r * 2654435761 % rows) for r in range(2)]
    expected = np.log([2, 1.5]) / np.log(rows + 1)
    np.testing.assert_allclose(share, expected, atol=0.02)


def test_synthetic_clicks_depend_on_the_ids():
    examples = Synthetic(100, 2, 20_000, seed=0).read(0)
    weights = click_streams.hidden_weights(examples.ids).sum(axis=1)
    assert np.corrcoef(weights, examples.clicks)[0, 1] > 0.4
    assert 0.2 < examples.clicks.mean() < 0.8
