"""The example of translation: number words of two languages, files of pairs, pieces of words, and whole runs."""

import re
import shutil

import numpy as np
import pytest
import translate

from tvmfun import checkpoints
from tvmfun.counters import counted

NUMBERS = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    12: ("twelve", "zwölf"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    30: ("thirty", "dreißig"),
    66: ("sixty-six", "sechsundsechzig"),
    99: ("ninety-nine", "neunundneunzig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred and one", "einhunderteins"),
    211: ("two hundred and eleven", "zweihundertelf"),
    770: ("seven hundred and seventy", "siebenhundertsiebzig"),
    1000: ("one thousand", "eintausend"),
    1001: ("one thousand and one", "eintausendeins"),
    1100: ("one thousand one hundred", "eintausendeinhundert"),
    21_000: ("twenty-one thousand", "einundzwanzigtausend"),
    21_021: ("twenty-one thousand and twenty-one", "einundzwanzigtausendeinundzwanzig"),
    101_000: ("one hundred and one thousand", "einhunderteintausend"),
    100_001: ("one hundred thousand and one", "einhunderttausendeins"),
    999_999: (
        "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
}


@pytest.mark.parametrize("number", NUMBERS)
def test_number_words(number):
    assert (translate.english(number), translate.german(number)) == NUMBERS[number]


def test_different_numbers_have_different_words():
    numbers = [*range(3000), *range(9990, 10_130), *range(99_900, 102_200), *range(0, 1_000_000, 997)]
    for language in (translate.english, translate.german):
        assert len({language(number) for number in set(numbers)}) == len(set(numbers))


def test_pairs_of_numbers():
    pairs = translate.number_pairs(3000, 0)
    assert len(set(pairs)) == 3000 and pairs == translate.number_pairs(3000, 0) != translate.number_pairs(3000, 1)
    assert ("zero", "null") in pairs and ("nine", "neun") in pairs
    assert sum("thousand" in source for source, _ in pairs) > 1500


def test_files_of_pairs(tmp_path):
    path = tmp_path / "deu.txt"
    path.write_bytes("Go.\tGeh.\tCC-BY 2.0\nHi.\tGrüß dich!\nGo.\tLos!\n Good  day.\tGuten Tag.\r\n".encode())
    assert translate.read_pairs(path) == [("Go.", "Geh."), ("Hi.", "Grüß dich!"), ("Good day.", "Guten Tag.")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, " cannot be read (No such file or directory)"),
        (b"Go.\tGeh.\nHi.\n", ":2 must have a sentence, a tab and its translation, got 'Hi.'"),
        (b"Go.\tGeh.\n\nHi.\tHallo!", ":2 must have a sentence, a tab and its translation, got ''"),
        (b"\tGeh.\n", ":1 must have a sentence, a tab and its translation, got '\\tGeh.'"),
        (b"Go.\tGeh.\nHi.\t\xff\n", ":2 is not UTF-8 (byte 4)"),
        (b"", " must have at least two pairs, got 0"),
        (b"Go.\tGeh.\nGo.\tLos!", " must have at least two pairs, got 1"),
        (b"Go.\tGeh.\nHi.\tHallo!", "--batch-size 8 needs as many pairs of at most --length 20 tokens"),
    ],
)
def test_files_that_are_no_pairs(tmp_path, content, message):
    path = tmp_path / "pairs.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=re.escape(message)):
        translate.main(arguments(tmp_path / "run", "--pairs", str(path)))
    assert not (tmp_path / "run").exists()


def arguments(run, *more):
    sizes = [
        "--numbers",
        "200",
        "--held-out",
        "20",
        "--merges",
        "40",
        "--length",
        "20",
        "--width",
        "16",
        "--heads",
        "2",
    ]
    sizes += ["--hidden", "16", "--layers", "1", "--batch-size", "8", "--beams", "2", "--warmup", "4"]
    return ["--run", str(run), "--no-progress", "--steps", "4", "--every", "2", *sizes, *more]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--length", "2"), "--length must be at least 3"),
        (("--beams", "0"), "--beams must be positive, got 0"),
        (("--smoothing", "1"), "--smoothing must be at least 0 and below 1, got 1.0"),
        (("--width", "15"), "--heads must divide --width, got 2 and 15"),
        (("--numbers", "1"), "--numbers must be at least 2, got 1"),
        (("--lr", "nan"), "--lr must be positive, got nan"),
        (("--beams", "10000"), "the number of pieces, got 10000"),
    ],
)
def test_options_that_make_no_sense(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        translate.main(arguments(tmp_path / "run", *options))
    assert message in f"{caught.value} {capsys.readouterr().err}"
    assert not (tmp_path / "run").exists()


def test_pieces_are_frequent_pairs():
    pieces = translate.Pieces(["ab ab ab cab", "c d"], 2)
    assert pieces.pieces == ["<pad>", "<s>", "</s>", "<unk>", " ", "a", "b", "c", "d", "ab", " ab"]
    tokens = pieces.encode("cab ab xd")
    assert [pieces.pieces[token] for token in tokens] == [" ", "c", "ab", " ab", " ", "<unk>", "d"]
    assert pieces.decode(np.array([1, *pieces.encode("cab ab"), 2, 5, 2])) == "cab ab"
    assert translate.Pieces(["a b"], 100).pieces[4:] == [" ", "a", "b", " b", " a"]


def test_sentences_are_padded():
    pieces = translate.Pieces(["a b", "b"], 0)
    sentences = translate.encode([("a b", "b"), ("b", "a b")], pieces, 6)
    assert sentences.source.tolist() == [[4, 5, 4, 6, 0, 0], [4, 6, 0, 0, 0, 0]]
    assert sentences.source_lengths.tolist() == [4, 2]
    assert sentences.target.tolist() == [[1, 4, 6, 2, 0, 0], [1, 4, 5, 4, 6, 2]]


def test_the_schedule_of_the_paper():
    schedule = translate.make_schedule(translate.parse(["--lr", "0.5", "--warmup", "4"]))
    rates = [float(schedule(np.int32(count))) for count in (0, 1, 3, 15)]
    assert rates == pytest.approx([0.125, 0.25, 0.5, 0.25])


@pytest.mark.parametrize("reverse", [False, True])
def test_held_out_sentences_are_not_trained_on(tmp_path, monkeypatch, reverse):
    seen = []
    original = translate.encode
    monkeypatch.setattr(translate, "encode", lambda pairs, *rest: seen.append(pairs) or original(pairs, *rest))
    translate.prepare(translate.parse(arguments(tmp_path, "--length", "80", *["--reverse"] * reverse)))
    (trained, held_out), expected = seen, {translate.german(n) if reverse else translate.english(n) for n in range(10)}
    assert len(trained) + len(held_out) == 200 and len(held_out) == 20
    assert not {source for source, _ in trained} & {source for source, _ in held_out}
    assert expected <= {source for source, _ in trained + held_out}


@pytest.mark.slow
def test_the_step_and_the_search_are_compiled_once(tmp_path):
    prepared = translate.prepare(
        translate.parse(arguments(tmp_path, "--held-out", "130", "--numbers", "300", "--length", "80"))
    )
    task = prepared.task
    state, _ = task.step(task.state, next(task.batches))
    task.evaluate(state)
    with counted() as events:
        # More than an epoch of training, and a last held-out batch of two.
        while task.batches.state.epoch < 1:
            state, _ = task.step(state, next(task.batches))
        state, _ = task.step(state, next(task.batches))
        task.evaluate(state)
    assert events.compiles == 0 and events.loads == 0
    found = translate.translate(state.model, prepared.held_out, prepared.pieces, 2)
    assert len(found) == len(prepared.pairs) == 130


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path):
    whole = translate.main(arguments(tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    managers = [checkpoints.Manager(tmp_path / name / "checkpoints") for name in ("whole", "parts")]
    managers[1].path(4).unlink()
    assert translate.main(arguments(tmp_path / "parts", "--resume")) == whole
    one, other = (checkpoints.read(manager.path(4)).arrays for manager in managers)
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


@pytest.mark.slow
def test_pairs_of_a_file_are_learned(tmp_path, capsys):
    words = [(english, translate.german(number)) for number, english in enumerate(map(translate.english, range(10)))]
    lines = [f"{a} {b}\t{y} {x}" for a, x in words for b, y in words]
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join([*lines, "a much longer line of words\tdas ist eine sehr sehr viel längere Zeile"]))
    more = [
        "--pairs",
        str(path),
        "--steps",
        "250",
        "--every",
        "250",
        "--lr",
        "0.01",
        "--warmup",
        "40",
        "--dropout",
        "0",
    ]
    metrics = translate.main(arguments(tmp_path / "run", *more, "--width", "32", "--merges", "100", "--length", "12"))
    assert metrics["exact match"] > 0.5
    assert metrics["validation loss"] < metrics["baseline"] - 1
    output = capsys.readouterr().out
    assert "1 longer than --length left out" in output and "exact match" in output
