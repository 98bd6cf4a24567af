"""Progress, logs that survive kills, early stopping, and evaluation over batches of unequal size."""

import csv
import json
import math
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoints, metrics
from tvmfun.counters import counted
from tvmfun.data import ArraySource, batches
from tvmfun.errors import ArgumentError, DataError, DtypeError, ShapeError
from tvmfun.loops import CSVLogger, EarlyStopping, JSONLLogger, TensorBoardWriter, evaluate, progress
from tvmfun.metrics import Mean

# -- progress ---


def test_progress_yields_the_items_and_shows_numbers(capsys, monkeypatch):
    bar = progress(range(3), "epoch 1")
    assert [bar.show(loss=tnp.asarray(0.25)) or item for item in bar] == [0, 1, 2]
    printed = capsys.readouterr().err
    assert "epoch 1" in printed
    assert "3/3" in printed or "0/3" in printed


def test_progress_fetches_arrays_twice_a_second_at_most():
    bar = progress(range(100))
    loss = tnp.asarray(0.5)
    with counted() as events:
        for _ in bar:
            bar.show(loss=loss)
    assert events.to_host <= 2


def test_disabled_progress_needs_no_tqdm(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    bar = progress(range(3), disable=True)
    assert [bar.show(loss=object()) or item for item in bar] == [0, 1, 2]
    assert capsys.readouterr().err == ""
    with pytest.raises(ModuleNotFoundError, match=r"\[progress\].*pip install tqdm, or disable=True"):
        progress(range(3))


# -- logs ---


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def read_jsonl(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_csv_numbers_are_read_as_they_were_written(tmp_path):
    numbers = [0.1, 1e-300, np.float32(0.1), math.nan, -math.inf, 2**60, True]
    with CSVLogger(tmp_path / "new" / "log.csv") as log:
        for number in numbers:
            log.write({"value": number, "name": 'a "quoted", comma'})
    rows = read_csv(tmp_path / "new" / "log.csv")
    assert [row["name"] for row in rows] == ['a "quoted", comma'] * len(numbers)
    for row, number in zip(rows[:-1], numbers, strict=False):
        np.testing.assert_equal(float(row["value"]), float(number))
    assert rows[-1]["value"] == "True"


@pytest.mark.parametrize("logger", [CSVLogger, JSONLLogger])
def test_rows_are_in_the_file_when_write_returns(tmp_path, logger):
    log = logger(tmp_path / "log")
    for step in range(3):
        log.write({"step": step})
        assert str(step) in (tmp_path / "log").read_text().splitlines()[-1]
    log.close()
    with pytest.raises(ArgumentError, match=r"\[\w+\] the log must be open, got .*log, which was closed"):
        log.write({"step": 4})


def test_a_resumed_csv_has_one_header_and_its_columns(tmp_path):
    path = tmp_path / "log.csv"
    with CSVLogger(path) as log:
        log.write({"step": 1, "loss": 0.5, "accuracy": 0.25})
    with CSVLogger(path) as log:
        log.write({"accuracy": 0.5, "step": 2})
        with pytest.raises(ArgumentError, match=r"columns of .*log.csv are step, loss, accuracy, got lr\. Try a JSONL"):
            log.write({"step": 3, "lr": 0.1})
    assert path.read_text() == "step,loss,accuracy\n1,0.5,0.25\n2,,0.5\n"


@settings(max_examples=30, deadline=None)
@given(st.data(), st.booleans())
def test_half_a_line_is_removed_wherever_the_process_was_killed(tmp_path_factory, data, is_csv):
    path = tmp_path_factory.mktemp("logs") / "log"
    logger, read = (CSVLogger, read_csv) if is_csv else (JSONLLogger, read_jsonl)
    rows = [{"step": step, "text": "x" * data.draw(st.sampled_from([0, 3, 5000]))} for step in range(3)]
    with logger(path) as log:
        for row in rows:
            log.write(row)
    whole = path.read_bytes()
    cut = data.draw(st.one_of(st.integers(0, len(whole)), st.integers(0, 40)))
    path.write_bytes(whole[:cut])
    survivors = max(0, whole[:cut].count(b"\n") - is_csv)
    with logger(path) as log:
        log.write({"step": 7, "text": ""})
    assert [int(row["step"]) for row in read(path)] == [*range(survivors), 7]


WRITER = """
import itertools, sys
from tvmfun.loops import CSVLogger
log = CSVLogger(sys.argv[1])
for step in itertools.count():
    log.write({"step": step, "loss": 1 / (step + 1), "text": "x" * (step % 100)})
    if step == 100:
        print("ready", flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_whole_rows(tmp_path):
    path = tmp_path / "log.csv"
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    before = path.read_bytes()
    CSVLogger(path).close()
    after = path.read_bytes()
    assert before.startswith(after) and b"\n" not in before[len(after) :]
    rows = read_csv(path)
    assert len(rows) > 100 and [int(row["step"]) for row in rows] == list(range(len(rows)))
    assert all(len(row["text"]) == i % 100 for i, row in enumerate(rows))


def test_jsonl_takes_any_names_arrays_and_numbers_that_are_not_finite(tmp_path):
    path = tmp_path / "log.jsonl"
    with JSONLLogger(path) as log:
        log.write({"step": 1, "loss": tnp.asarray(0.5), "note": "Bär\nnext"})
        log.write({"worst": math.nan, "counts": tnp.asarray([[1, 2], [3, 4]]), "rates": [1.5, math.inf, -math.inf]})
        log.write({"half": tnp.asarray([1.5], "bfloat16"), "nothing": None, "yes": np.bool_(True)})
    assert read_jsonl(path) == [
        {"step": 1, "loss": 0.5, "note": "Bär\nnext"},
        {"worst": "NaN", "counts": [[1, 2], [3, 4]], "rates": [1.5, "Infinity", "-Infinity"]},
        {"half": [1.5], "nothing": None, "yes": True},
    ]
    assert math.isnan(float(read_jsonl(path)[1]["worst"]))


@pytest.mark.parametrize("logger", [CSVLogger, JSONLLogger, TensorBoardWriter])
def test_rows_between_are_neither_written_nor_fetched(tmp_path, logger):
    loss = tnp.asarray(0.5)
    with logger(tmp_path / "log", every=10) as log, counted() as events:
        for step in range(1, 31):
            log.write({"step": step, "loss": loss})
    assert events.to_host <= 3
    if logger is TensorBoardWriter:
        steps = [event["step"] for event in read_events(log.path) if "step" in event]
    else:
        steps = [int(row["step"]) for row in (read_csv if logger is CSVLogger else read_jsonl)(log.path)]
    assert steps == [10, 20, 30]


@pytest.mark.parametrize(
    ("logger", "row", "error", "message"),
    [
        (CSVLogger, {}, ArgumentError, "a row must have values"),
        (CSVLogger, {"a": np.arange(2)}, ShapeError, r"a must be one value, got an array\. Try its mean"),
        (CSVLogger, {"a": "two\nlines"}, ArgumentError, "a cell must be within a line"),
        (CSVLogger, {"two\nlines": 1}, ArgumentError, "a cell must be within a line"),
        (JSONLLogger, {"a": object()}, DtypeError, "a must be a number, a bool, a string or an array, got object"),
        (JSONLLogger, {"a": {"b": 1}}, DtypeError, "got dict"),
        (JSONLLogger, {"a": 1j}, DtypeError, "got complex"),
        (TensorBoardWriter, {"loss": 1.0}, ArgumentError, "must have an integer step, got None"),
        (TensorBoardWriter, {"step": 1, "a": "word"}, DtypeError, "a must be a number, got 'word'"),
        (TensorBoardWriter, {"step": 1, "a": [1.0]}, ShapeError, "a must be one value"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, logger, row, error, message):
    with logger(tmp_path / "log") as log:
        size = log.path.stat().st_size
        with pytest.raises(error, match=message):
            log.write(row)
        assert log.path.stat().st_size == size


def test_steps_that_cannot_be_counted(tmp_path):
    with pytest.raises(ArgumentError, match=r"\[CSVLogger\] the number of steps must be a positive integer, got 0"):
        CSVLogger(tmp_path / "log", every=0)
    with CSVLogger(tmp_path / "log", every=2) as log, pytest.raises(ArgumentError, match="integer step .* got None"):
        log.write({"loss": 1.0})


# -- TensorBoard ---


def crc32c(data):
    """CRC-32C bit by bit, from its polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def unmasked(masked):
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def fields(message):
    """The fields of a protobuf message: numbers and values."""
    place = 0

    def varint():
        nonlocal place
        number = shift = 0
        while True:
            byte = message[place]
            place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while place < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or varint()
        yield tag >> 3, message[place : place + size]
        place += size


def read_events(path):
    """The events of a file, by a reader of its own that checks every checksum."""
    data, events = Path(path).read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        content = data[12 : 12 + length]
        assert unmasked(*struct.unpack("<I", data[8:12])) == crc32c(data[:8])
        assert unmasked(*struct.unpack("<I", data[12 + length : 16 + length])) == crc32c(content)
        data = data[16 + length :]
        event = {}
        for number, value in fields(content):
            if number == 5:
                for _, scalar in fields(value):
                    parts = dict(fields(scalar))
                    event[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
            else:
                event[{1: "time", 2: "step", 3: "version"}[number]] = value
        events.append(event)
    return events


def test_crc32c_is_that_of_rfc_3720():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


ROWS = [
    {"step": 0, "loss": 0.5, "accuracy/train": 0.25},
    {"step": 300, "loss": np.float32(0.1), "a name of more than 127 bytes " * 8: 2},
    {"step": 2**40, "loss": math.inf, "true": True},
]


def write_events(folder):
    for rows in (ROWS[:2], ROWS[2:]):
        with TensorBoardWriter(folder) as log:
            for row in rows:
                log.write(row)
    return sorted(folder.iterdir())


def test_events_are_what_was_written(tmp_path):
    files = write_events(tmp_path)
    assert len(files) == 2, "a resumed run has a second file"
    events = [read_events(file) for file in files]
    assert all(first["version"] == b"brain.Event:2" for first, *_ in events)
    found = [event for _, *rest in events for event in rest]
    assert [{key: value for key, value in event.items() if key != "time"} for event in found] == [
        {key: value if key == "step" else float(np.float32(value)) for key, value in row.items()} for row in ROWS
    ]
    assert all(abs(struct.unpack("<d", event["time"])[0] - os.stat(files[0]).st_mtime) < 60 for event in found)


def test_tensorboard_reads_them(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_events(tmp_path)
    accumulator = accumulators.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in accumulator.Scalars("loss")] == [
        (row["step"], float(np.float32(row["loss"]))) for row in ROWS
    ]


# -- early stopping ---


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.integers(-5, 5).map(float), st.just(math.nan)), max_size=20),
    st.integers(1, 4),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from(["min", "max"]),
)
def test_early_stopping_is_its_definition(values, patience, min_delta, mode):
    stopping = EarlyStopping(patience, min_delta, mode)
    best, waited = math.nan, 0
    for value in values:
        signed = value if mode == "max" else -value
        if not math.isnan(value) and (math.isnan(best) or signed > best + min_delta):
            best, waited = signed, 0
        else:
            waited += 1
        stopping = stopping.update(value)
        np.testing.assert_equal(stopping.best, best if mode == "max" else -best)
        assert stopping.waited == waited
        assert stopping.should_stop == (waited >= patience)
        assert stopping.improved == (waited == 0)


def test_early_stopping_does_not_change_and_goes_through_a_checkpoint(tmp_path):
    start = EarlyStopping(patience=2, mode="max")
    later = start.update(tnp.asarray(0.5)).update(np.float32(0.25))
    assert math.isnan(start.best) and start.waited == 0
    checkpoints.save(tmp_path / "state", {"stopping": later})
    assert checkpoints.load(tmp_path / "state", like={"stopping": start})["stopping"] == later


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patience": 0}, "the patience must be a positive integer, got 0"),
        ({"patience": 1, "min_delta": -1.0}, "min_delta must not be negative, got -1.0"),
        ({"patience": 1, "min_delta": math.nan}, "min_delta must not be negative, got nan"),
        ({"patience": 1, "mode": "best"}, "the mode is unknown, got 'best'"),
    ],
)
def test_early_stopping_that_makes_no_sense(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        EarlyStopping(**arguments)


# -- evaluation ---


@tvmfun.jit
def eval_step(params, batch):
    scores, labels = batch
    scores = scores * params
    predictions = tnp.argmax(scores, axis=-1)
    return {
        "accuracy": Mean.init().add(metrics.correct(scores, labels)),
        "score": Mean.init().add(scores),
        "confusion": metrics.confusion_matrix(predictions, labels, 3),
    }


def test_evaluation_is_exact_over_partial_batches():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(11, 3)).astype("float32"), rng.integers(0, 3, 11)
    result = evaluate(eval_step, 2.0, batches(ArraySource((scores, labels)), 4, last="keep"))
    assert result["accuracy"] == np.mean(scores.argmax(-1) == labels)
    np.testing.assert_allclose(result["score"], np.mean(2 * scores, dtype="float64"), rtol=1e-6)
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (labels, scores.argmax(-1)), 1)
    np.testing.assert_array_equal(result["confusion"], expected)
    assert result["confusion"].dtype == np.int64


def test_evaluation_with_padded_batches_compiles_one_step():
    values = np.arange(11, dtype="float32")
    step = tvmfun.jit(lambda _, batch: Mean.init().add(batch.examples, where=batch.mask))
    evaluate(step, None, batches(ArraySource(values[:4]), 4, last="pad"))
    with counted() as events:
        assert evaluate(step, None, batches(ArraySource(values), 4, last="pad")) == 5.0
    assert (events.compiles, events.loads, events.calls) == (0, 0, 3)


def test_evaluation_counts_more_than_float32_can():
    step = lambda _, batch: (Mean(np.float32(2**24), np.int32(2**30)), np.int32(2**30), np.bool_(True))
    mean, count, flags = evaluate(step, None, range(5))
    assert (mean, count, flags) == (2**24 / 2**30, 5 * 2**30, 5)


def test_evaluation_of_nothing():
    with pytest.raises(DataError, match=r"\[evaluate\] there must be a batch, got none"):
        evaluate(eval_step, 1.0, [])
    assert math.isnan(evaluate(lambda _, batch: Mean.init(), None, [0]))
