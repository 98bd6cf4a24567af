"""The example of GPT-2: its corpus, and runs that resume, stop and say why."""

import json
import re
import resource
import signal
import sys
from dataclasses import replace

import corpora
import gpt2_lm
import numpy as np
import pytest

from tvmfun import checkpoints
from tvmfun.counters import counted
from tvmfun.data import Batches

LINES = ["the cat sat on the mat", "a dog ran after the cat", "on the mat a dog sat"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    mini = gpt2_lm.SIZES["mini"]
    monkeypatch.setitem(gpt2_lm.SIZES, "mini", lambda words: replace(mini(words), n_layer=2))
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES[i % 3] for i in range(400)))
    return path


def arguments(corpus, run, *more):
    sizes = ["--batch-size", "4", "--length", "16", "--no-progress", "--lr", "1e-3", "--warmup", "1"]
    return ["--corpus", str(corpus), "--run", str(run), *sizes, *more]


def test_the_held_out_part_is_a_tenth_of_whole_lines(corpus):
    found = corpora.load([corpus])
    assert found.train.endswith("\n") and found.train + found.validation == corpus.read_text()
    assert len(found.validation) / len(corpus.read_text()) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"  \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8 (byte 0)"),
        (b"one line", "must have several lines"),
    ],
)
def test_files_that_are_no_corpus(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=re.escape(message)):
        gpt2_lm.main(arguments(path, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_entropy_of_equal_frequencies():
    assert corpora.unigram_entropy(np.array([3, 1, 3, 1])) == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--length", "129"), "--length must be at most 128"),
        (("--steps", "0"), "--steps must be positive"),
        (("--warmup", "2000"), "--warmup must be at least 0 and below --steps 600, got 2000"),
        (("--warmup", "-1"), "--warmup must be at least 0 and below --steps 600, got -1"),
        (("--lr", "nan"), "--lr must be positive, got nan"),
        (("--prompt", ""), "--prompt must not be empty"),
        (("--prompt", "cat" * 50), "--prompt must have at most 128 tokens, got 150"),
    ],
)
def test_options_that_make_no_sense(corpus, tmp_path, capsys, option, message):
    with pytest.raises(SystemExit) as caught:
        gpt2_lm.main(arguments(corpus, tmp_path / "run", *option))
    assert message in f"{caught.value} {capsys.readouterr().err}"
    assert not (tmp_path / "run").exists()


def interrupting(batches, after):
    """``batches`` of a training set, whose batch of a number sends the signal of Ctrl-C."""

    class Interrupting(Batches):
        taken = 0

        def __next__(self):
            self.taken += 1
            # The first batch is read twice: once for its shapes.
            if self.taken == after + 1:
                signal.raise_signal(signal.SIGINT)
            return super().__next__()

    def make(*arguments, epochs=1, **options):
        stream = batches(*arguments, epochs=epochs, **options)
        if epochs is None:
            stream.__class__ = Interrupting
        return stream

    return make


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(corpus, tmp_path, capsys):
    more = ("--steps", "6", "--every", "2")
    whole = gpt2_lm.main(arguments(corpus, tmp_path / "whole", *more))
    parts = arguments(corpus, tmp_path / "parts", "--every", "2")
    # The schedule of learning rates depends on the number of steps, so the first part is stopped from outside.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt2_lm, "batches", interrupting(gpt2_lm.batches, after=3))
        with pytest.raises(SystemExit, match="interrupted after step 3, which is saved"):
            gpt2_lm.main([*parts, "--steps", "6"])
    resumed = gpt2_lm.main([*parts, "--steps", "6", "--resume"])
    assert resumed == whole
    first, second = (checkpoints.Manager(tmp_path / name / "checkpoints") for name in ("whole", "parts"))
    for manager in (first, second):
        assert manager.steps()[-1] == 6
    one, other = (checkpoints.read(manager.path(6)).arrays for manager in (first, second))
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4, 6] and {"loss", "validation loss", "tokens/s"} <= rows[0].keys()
    with pytest.raises(SystemExit, match="has a run already"):
        gpt2_lm.main([*parts, "--steps", "6"])
    with pytest.raises(SystemExit, match="was made with --seed 0, got 1"):
        gpt2_lm.main([*parts, "--steps", "8", "--resume", "--seed", "1"])
    assert "parameters; a step takes" in capsys.readouterr().out


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(corpus, tmp_path):
    run = arguments(corpus, tmp_path / "run", "--every", "2")
    gpt2_lm.main([*run, "--steps", "2"])
    with pytest.MonkeyPatch.context() as patch:

        def broken(model, tokens, key=None, **rest):
            loss = gpt2_lm.language_model_loss(model(tokens[:, :-1], key=key), tokens[:, 1:])
            return gpt2_lm.tnp.log(-loss)

        patch.setattr(gpt2_lm, "loss_fn", broken)
        with pytest.raises(SystemExit, match=r"the loss was not finite by step 4: \[log\] the op made a NaN"):
            gpt2_lm.main([*run, "--steps", "4", "--resume"])


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_checkpoint(corpus, tmp_path):
    run = arguments(corpus, tmp_path / "run", "--every", "2")
    gpt2_lm.main([*run, "--steps", "2"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(SystemExit, match=r"cannot be written \(.*\); the checkpoint of step 2 is complete"):
            gpt2_lm.main([*run, "--steps", "4", "--resume"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert gpt2_lm.main([*run, "--steps", "4", "--resume"])["validation loss"] > 0


@pytest.mark.slow
def test_a_run_on_other_text_is_not_resumed(corpus, tmp_path):
    run = arguments(corpus, tmp_path / "run", "--every", "1", "--warmup", "0")
    gpt2_lm.main([*run, "--steps", "1"])
    corpus.write_text(corpus.read_text().replace("cat", "zoo"))
    with pytest.raises(SystemExit, match="was made with other data"):
        gpt2_lm.main([*run, "--steps", "2", "--resume"])


@pytest.mark.slow
def test_a_step_and_an_evaluation_compile_once(corpus, tmp_path):
    events = []
    for name, every in (("first", "6"), ("few", "6"), ("many", "2")):
        with counted() as event:
            gpt2_lm.main(arguments(corpus, tmp_path / name, "--steps", "6", "--every", every))
        events.append(event.compiles + event.loads)
    assert events[2] == events[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [("--amp", "products"), ("--amp", "most", "--checkpoint"), ("--mode", "bpe", "--vocab-size", "300")]
)
def test_other_options_train_too(corpus, tmp_path, more):
    if "bpe" in more:
        pytest.importorskip("tokenizers")
    metrics = gpt2_lm.main(arguments(corpus, tmp_path / "run", "--steps", "20", "--every", "10", *more))
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert metrics["validation loss"] < rows[0]["validation loss"] < np.log(300)


def test_a_run_keeps_its_characters(corpus, tmp_path):
    text = corpora.load([corpus]).train
    characters = json.loads(gpt2_lm.Characters(text).to_json())
    assert characters == sorted(set(text))


def test_help_tells_no_default_that_is_none(capsys):
    with pytest.raises(SystemExit):
        gpt2_lm.main(["--help"])
    text = capsys.readouterr().out
    assert "(default: 600)" in text and "None" not in text


def test_byte_pairs_need_a_library(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SystemExit, match="--mode bpe needs tokenizers"):
        gpt2_lm.main(arguments(corpus, tmp_path / "run", "--mode", "bpe"))
