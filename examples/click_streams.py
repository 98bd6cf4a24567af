"""Endless streams of clicks: files of Criteo's format, and a generator for tables of any size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from movielens_data import ClickDataError, Examples

from tvmfun.data import Padded, Stream, TextSource
from tvmfun.errors import DataError
from tvmfun.typing import PyTree

INTEGERS, CATEGORIES = 13, 26
LINE = re.compile(rb"[01](\t(-?\d{1,15})?){13}(\t([0-9a-fA-F]{1,8})?){26}")


class CriteoState(NamedTuple):
    """The number of the last line in its file, the malformed lines of this pass, and the state of the text."""

    line: int
    malformed: int
    text: PyTree


class Criteo(Stream):
    """The examples of files of tab-separated lines: a label, 13 integers and 26 hexadecimal categories.

    An integer x becomes log(1 + max(x, 0)), a missing one 0. A category becomes a row of a table of its column by its
    remainder; row 0 is for missing ones. Malformed lines are skipped.

    Args:
        paths: the files.
        hash_size: the number of rows of each table.
        max_malformed: the number of malformed lines in a pass over the files that are skipped.
        skip: the number of lines at the beginning of the first file to leave out.
        epochs: the number of passes, or None for no end.

    Raises:
        ClickDataError: if a file is missing or empty; while it reads, at one malformed line too many.
    """

    def __init__(
        self, paths: list[Path], hash_size: int, max_malformed: int, *, skip: int = 0, epochs: int | None = None
    ) -> None:
        for path in paths:
            try:
                with open(path, "rb") as file:
                    empty = not file.read(1)
            except OSError as error:
                raise ClickDataError(f"{path} cannot be read ({error.strerror}). Name files with --criteo.") from None
            if empty:
                raise ClickDataError(f"{path} is empty. Name files with --criteo that have lines.")
        self._paths, self._hash_size, self._max_malformed, self._skip = paths, hash_size, max_malformed, skip
        self._text = TextSource(paths, epochs=epochs)
        self._line = self.malformed = 0

    @property
    def state(self) -> CriteoState:
        """The position of the next line."""
        return CriteoState(self._line, self.malformed, self._text.state)

    def restore(self, state: PyTree) -> None:
        """Continues from a state; see :meth:`Stream.restore`."""
        line, malformed, text = state
        self._text.restore(text)
        self._line, self.malformed = int(line), int(malformed)

    def __next__(self) -> Examples:
        passes = 0
        while True:
            before = self._text.state
            line = next(self._text).rstrip(b"\r\n")
            after = self._text.state
            if after.epoch != before.epoch:
                self.malformed, passes = 0, passes + 1
                if passes > 1:
                    raise ClickDataError(f"{self._paths[-1]}: no line is left after the first {self._skip} lines.")
            same_file = (after.epoch, after.file) == (before.epoch, before.file)
            self._line = self._line + 1 if same_file else 1
            if after.file == 0 and self._line <= self._skip:
                continue
            if LINE.fullmatch(line):
                return parse(line, self._hash_size)
            self.malformed += 1
            if self.malformed > self._max_malformed:
                raise ClickDataError(
                    f"{self._paths[after.file]}, line {self._line}: {fault(line)}. There are more malformed lines "
                    f"than --max-malformed {self._max_malformed}."
                )


def parse(line: bytes, hash_size: int) -> Examples:
    """Returns the example of a well-formed line."""
    label, *fields = line.split(b"\t")
    integers = np.asarray([int(field or 0) for field in fields[:INTEGERS]], "float32")
    ids = [1 + int(field, 16) % (hash_size - 1) if field else 0 for field in fields[INTEGERS:]]
    return Examples(np.log1p(np.maximum(integers, 0)), np.asarray(ids, "int32"), np.asarray(label == b"1", "float32"))


def fault(line: bytes) -> str:
    """Returns what is wrong with a malformed line."""
    label, *fields = line.split(b"\t")
    if len(fields) != INTEGERS + CATEGORIES:
        return f"there must be {1 + INTEGERS + CATEGORIES} columns, got {1 + len(fields)}"
    if label not in (b"0", b"1"):
        return f"the label must be 0 or 1, got {label[:20]!r}"
    for column, field in enumerate(fields, 2):
        kind, pattern = ("an integer", rb"-?\d{1,15}") if column < 15 else ("hexadecimal", rb"[0-9a-fA-F]{1,8}")
        if field and not re.fullmatch(pattern, field):
            return f"column {column} must be {kind}, got {field[:20]!r}"
    return "it must be tab-separated columns"


def first(paths: list[Path], lines: int, hash_size: int, max_malformed: int) -> Examples:
    """Returns the examples of the first lines of the first file."""
    stream = Criteo(paths[:1], hash_size, max_malformed, epochs=1)
    examples = []
    for example in stream:
        if stream.state.line > lines:
            break
        examples.append(example)
    if not examples:
        raise ClickDataError(f"{paths[0]}: there is no example in the first {lines} lines. Try a larger --held-out.")
    return Examples(*map(np.stack, zip(*examples, strict=True)))


class SyntheticState(NamedTuple):
    """The number of the next batch, and what the stream was made of."""

    batch: int
    rows: int
    seed: int


class Synthetic(Stream):
    """Batches whose ids have the frequencies of Zipf's law, and whose clicks depend on hidden weights of the ids.

    Batch i is a function of the seed and i. The hidden weight of an id is a hash of it, so that no table is stored.

    Args:
        rows: the number of ids in each column.
        tables: the number of columns of ids.
        batch_size: the examples in a batch.
        seed: decides the examples; the weights are the same for each.
    """

    dense_features = 4

    def __init__(self, rows: int, tables: int, batch_size: int, seed: int) -> None:
        self._rows, self._tables, self._batch_size, self._seed = rows, tables, batch_size, seed
        self._batch = 0

    @property
    def state(self) -> SyntheticState:
        """The number of the next batch."""
        return SyntheticState(self._batch, self._rows, self._seed)

    def restore(self, state: PyTree) -> None:
        """Continues from a state; see :meth:`Stream.restore`."""
        batch, rows, seed = map(int, state)
        if (rows, seed) != (self._rows, self._seed):
            what = f"the state must be of {self._rows} rows and the seed {self._seed}"
            raise DataError("restore", what, got=f"{rows} and {seed}")
        self._batch = batch

    def __next__(self) -> Padded:
        examples = self.read(self._batch)
        self._batch += 1
        return Padded(examples, np.ones(self._batch_size, bool))

    def read(self, batch: int) -> Examples:
        """Returns the examples of a batch."""
        generator = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, batch]))
        dense = generator.standard_normal((self._batch_size, self.dense_features), "float32")
        # Rank r has the probability log((r + 2) / (r + 1)) / log(rows + 1), about 1 / r.
        ranks = (self._rows + 1) ** generator.random((self._batch_size, self._tables))
        ranks = np.minimum(ranks.astype("int64") - 1, self._rows - 1)
        # The factor is a prime above all sizes, so the frequent ids are distinct rows all over the table.
        ids = ranks * 2654435761 % self._rows
        logits = 3.0 * hidden_weights(ids).sum(axis=1) / self._tables**0.5 + dense.sum(axis=1) / 2
        clicks = generator.random(self._batch_size) < 1 / (1 + np.exp(-logits))
        return Examples(dense, ids.astype("int32"), clicks.astype("float32"))


def hidden_weights(ids: np.ndarray) -> np.ndarray:
    """Returns numbers from -1 to 1 by id and column: the mixing of splitmix64."""
    x = ids.astype("uint64") * np.uint64(64) + np.arange(ids.shape[1], dtype="uint64")
    with np.errstate(over="ignore"):
        x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x >> np.uint64(11)) / 2.0**52 - 1
