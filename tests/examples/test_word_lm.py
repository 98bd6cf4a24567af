"""The example of word language models: words, streams, and runs of both models."""

import re
import shutil
from functools import partial

import numpy as np
import pytest
import word_lm

import tvmfun
from tvmfun import checkpoints, random
from tvmfun.counters import counted
from tvmfun.models import LSTMConfig, LSTMLanguageModel

LINES = ["the cat sat on the mat.", "a dog ran after the cat.", "on the mat a dog sat, again"]
MODELS = ("transformer", "lstm")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES[i % 3] for i in range(200)))
    return path


def arguments(corpus, run, *more):
    sizes = ["--batch-size", "4", "--length", "6", "--width", "16", "--warmup", "1", "--words", "9", "--steps", "6"]
    return ["--corpus", str(corpus), "--run", str(run), "--no-progress", "--every", "3", *sizes, *more]


def test_rare_and_new_words_are_unknown():
    vocabulary = word_lm.Vocabulary("b a b c\na b\n\nc. <unk> <unk>", 5)
    assert vocabulary.words == ["<unk>", "b", "<eos>", "a", "c"]
    tokens = vocabulary.encode("a zebra, b\nc")
    assert tokens.dtype == np.int32 and tokens.tolist() == [3, 0, 0, 1, 2, 4]
    assert len(word_lm.Vocabulary("b a b", 100)) == 4


def test_text_is_split_into_words_and_marks():
    text = "He said (to them), God\u2019s [word]\nis: <unk>!"
    vocabulary = word_lm.Vocabulary(text, 100)
    assert word_lm.split("it's 3-fold\n") == ["it's", "3", "-", "fold", "<eos>"]
    assert vocabulary.decode(vocabulary.encode(text)) == text.replace("\n", "\n ")


def test_streams_are_parallel_and_their_windows_follow_each_other():
    windows = word_lm.parallel_streams(np.arange(23), 2, 3)
    assert windows.tolist() == [
        [[0, 1, 2, 3], [11, 12, 13, 14]],
        [[3, 4, 5, 6], [14, 15, 16, 17]],
        [[6, 7, 8, 9], [17, 18, 19, 20]],
    ]


@pytest.fixture(scope="module")
def lstm():
    model = tvmfun.jit(partial(LSTMLanguageModel.create, LSTMConfig(11, 8, 8, 2)))(random.key(0))
    # Large weights, so that the state matters.
    return tvmfun.tree.map(lambda x: 5 * np.asarray(x), model)


def test_the_state_goes_from_window_to_window(lstm):
    tokens = np.random.default_rng(0).integers(0, 11, 50)
    short, long = (word_lm.parallel_streams(tokens, 2, length) for length in (12, 24))
    whole = float(word_lm.streamed_loss(lstm, long))
    assert float(word_lm.streamed_loss(lstm, short)) == pytest.approx(whole, rel=1e-5)


def test_one_function_draws_after_prompts_of_all_lengths(lstm):
    key, prompt = random.key(1), np.array([3, 1, 4, 1], "int32")
    whole = word_lm.write(lstm, prompt[:1], 12, key, 1e-4)
    with counted() as events:
        again = word_lm.write(lstm, whole[:7], 12, key, 1e-4)
        other = word_lm.write(lstm, prompt, 12, key, 1.0)
    # As good as without chance, the rest of a text follows its beginning.
    np.testing.assert_array_equal(again, whole)
    assert other[:4].tolist() == prompt.tolist() and len(other) == 12
    assert events.compiles == 0 and events.loads == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("\n \n", "is empty"),
        ("one line", "must have several lines"),
        ("a b c\n" * 12, "must have 28 words to train on and 7 held out, got 44 to train on and 4 held out. Try a"),
    ],
)
def test_files_that_are_no_corpus(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit, match=re.escape(message)):
        word_lm.main(arguments(path, tmp_path / "run", "--model", "lstm"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--length", "257"), "--length must be at most 256, the transformer's positions"),
        (("--words", "300"), "--words must be at most 256"),
        (("--width", "15"), "two heads"),
        (("--tied",), "not --tied"),
        (("--prompt", " "), "--prompt must have at least one word and fewer than --words 9, got 0"),
        (("--warmup", "6"), "--warmup must be less than --steps 6, got 6"),
        (("--vocab-size", "2"), "--vocab-size must be at least 3, got 2"),
        (("--dropout", "1"), "--dropout must be at least 0 and below 1, got 1.0"),
        (("--clip", "0"), "--clip must be positive, got 0.0"),
        (("--lr", "0"), "--lr must be positive, got 0.0"),
    ],
)
def test_options_that_make_no_sense(corpus, tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        word_lm.main(arguments(corpus, tmp_path / "run", *options))
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(corpus, tmp_path, model):
    whole = word_lm.main(arguments(corpus, tmp_path / "whole", "--model", model))
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    managers = [checkpoints.Manager(tmp_path / name / "checkpoints") for name in ("whole", "parts")]
    managers[1].path(6).unlink()
    assert managers[1].steps() == [0, 3]
    assert word_lm.main(arguments(corpus, tmp_path / "parts", "--model", model, "--resume")) == whole
    one, other = (checkpoints.read(manager.path(6)).arrays for manager in managers)
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    assert any("hidden" in name for name in one) == (model == "lstm")
    corpus.write_text(corpus.read_text().replace("cat", "dog"))
    with pytest.raises(SystemExit, match="was made with other data"):
        word_lm.main(arguments(corpus, tmp_path / "parts", "--model", model, "--resume"))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_step_is_compiled_once(corpus, tmp_path, model):
    prepared = word_lm.prepare(word_lm.parse(arguments(corpus, tmp_path, "--model", model, "--batch-size", "32")))
    task = prepared.task
    state, _ = task.step(task.state, next(task.batches))
    task.evaluate(state)
    with counted() as events:
        # The text has fewer words than these steps read, and the last held-out batch has fewer windows.
        for _ in range(12):
            state, _ = task.step(state, next(task.batches))
        task.evaluate(state)
    assert events.compiles == 0 and events.loads == 0
    assert task.batches.state.epoch >= (1 if model == "lstm" else 0)


@pytest.mark.slow
def test_the_first_window_starts_from_zeros(corpus, tmp_path):
    options = arguments(corpus, tmp_path, "--model", "lstm", "--lr", "1e-9", "--dropout", "0", "--batch-size", "32")
    task, losses = word_lm.prepare(word_lm.parse(options)).task, {}
    state = task.state
    for _ in range(14):
        window = task.batches.state.taken
        state, loss = task.step(state, next(task.batches))
        losses.setdefault(window, []).append(float(loss))
    for first, *others in losses.values():
        np.testing.assert_allclose(others, first, rtol=1e-5)
    assert len(losses) < 14


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--model", "lstm"),
        ("--model", "lstm", "--tied", "--optimizer", "sgd", "--lr", "5"),
        ("--model", "transformer", "--layers", "1"),
        ("--model", "transformer", "--optimizer", "sgd", "--lr", "0.5"),
    ],
)
def test_both_models_learn(corpus, tmp_path, more):
    metrics = word_lm.main(arguments(corpus, tmp_path / "run", "--lr", "0.02", "--steps", "60", "--every", "30", *more))
    assert metrics["validation loss"] < metrics["baseline"] - 0.2
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["validation loss"]))
