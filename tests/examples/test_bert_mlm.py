"""The example of BERT: masks of whole words, batches in parts, and runs that resume and refuse bad input."""

import json
import re
import sys
from functools import partial

import bert_mlm
import numpy as np
import pytest
from bert_mlm import MASK, SPECIAL, UNKNOWN, Masking

import tvmfun
from tvmfun import checkpoints, random, tree
from tvmfun.counters import counted
from tvmfun.models import BERTConfig

WORDS = 50
# Every third token goes on with a word.
BEGINS = np.arange(WORDS) % 3 > 0
RULE = tvmfun.jit(Masking(BEGINS, 9, False))
PAIRS = tvmfun.jit(Masking(BEGINS, 9, True))
TEXT = np.random.default_rng(0).integers(0, WORDS, (400, 60)).astype("int32")
TEXT[TEXT == MASK] = UNKNOWN
LINES = ["the cat sat on the mat", "a dog ran after the cat", "on the mat a dog sat"]


def masked(batch):
    """Where tokens are predicted: (batch, length)."""
    result = np.zeros(batch.tokens.shape, bool)
    rows, columns = np.nonzero(batch.weights)
    result[rows, np.asarray(batch.positions)[rows, columns]] = True
    return result


@pytest.mark.slow
def test_masks_cover_whole_words():
    batch = RULE(random.key(0), TEXT)
    tokens = np.array(batch.tokens)
    whole = np.pad(TEXT, ((0, 0), (1, 1)), constant_values=((1, 1), (1, 2)))
    chosen = masked(batch)
    # A token that goes on with a word is masked like the one before it, unless the window begins with it.
    inside = ~BEGINS[whole[:, 2:]] & (whole[:, 2:] >= len(SPECIAL)) & (whole[:, 1:-1] >= len(SPECIAL))
    assert (chosen[:, 2:] == chosen[:, 1:-1])[inside].all() and inside.sum() > 1000
    rows, columns = np.nonzero(batch.weights)
    targets = np.asarray(batch.targets)[rows, columns]
    np.testing.assert_array_equal(targets, whole[rows, np.asarray(batch.positions)[rows, columns]])
    assert not chosen[whole < len(SPECIAL)].any()
    np.testing.assert_array_equal(tokens[~chosen], whole[~chosen])
    assert 0.8 * 9 < chosen.sum(1).mean() <= 9


def test_masks_are_eighty_ten_ten():
    batch = RULE(random.key(1), TEXT)
    rows, columns = np.nonzero(batch.weights)
    shown = np.asarray(batch.tokens)[rows, np.asarray(batch.positions)[rows, columns]]
    targets, count = np.asarray(batch.targets)[rows, columns], len(rows)
    is_mask, is_same = shown == MASK, shown == targets
    others = shown[~is_mask & ~is_same]
    by_chance = 0.1 / (WORDS - len(SPECIAL))
    for found, expected in ((is_mask.sum(), 0.8), (is_same.sum(), 0.1 + by_chance), (len(others), 0.1 - by_chance)):
        assert abs(found / count - expected) < 4 * np.sqrt(expected * (1 - expected) / count)
    assert others.min() >= len(SPECIAL) and len(set(others)) > 0.9 * (WORDS - len(SPECIAL))


def test_masks_depend_on_the_key_alone():
    one, again, other = (RULE(random.key(seed), TEXT) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert (masked(one) != masked(other)).any(1).mean() > 0.99


@pytest.mark.slow
def test_half_of_the_second_passages_come_from_elsewhere():
    batch = PAIRS(random.key(0), TEXT)
    assert batch.tokens.shape == batch.segments.shape == (400, 63)
    follows, chosen, tokens = np.asarray(batch.follows), masked(batch), np.asarray(batch.tokens)
    assert 0.4 < follows.mean() < 0.6
    np.testing.assert_array_equal(tokens[:, [0, 31, 62]], np.tile([1, 2, 2], (400, 1)))
    np.testing.assert_array_equal(np.asarray(batch.segments)[0], [0] * 32 + [1] * 31)
    second = np.where(follows[:, None], TEXT[:, 30:], np.roll(TEXT[:, 30:], 1, axis=0))
    for own, begin in ((TEXT[:, :30], 1), (second, 32)):
        kept = ~chosen[:, begin : begin + 30]
        np.testing.assert_array_equal(tokens[:, begin : begin + 30][kept], own[kept])


def tiny(vocab_size=WORDS, **settings):
    return BERTConfig(vocab_size, 16, 1, 2, 32, 32, **{"dropout": 0.0, "initializer_range": 0.1, **settings})


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setitem(bert_mlm.SIZES, "mini", tiny)
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES[i % 3] for i in range(400)))
    return path


def arguments(corpus, run, *more):
    sizes = ["--batch-size", "4", "--length", "16", "--no-progress", "--warmup", "1", "--vocab-size", "100"]
    return ["--corpus", str(corpus), "--run", str(run), *sizes, *more]


def make_step(*more, vocab_size=WORDS, next_sentence=True):
    """A state and a function from it and text to the next one, with random tokens in place of a corpus."""
    options = bert_mlm.parse(["--steps", "5", "--warmup", "1", *more])
    optimizer = bert_mlm.make_optimizer(options)
    config = tiny(vocab_size, next_sentence=next_sentence)
    frequencies = np.full(vocab_size, 1 / vocab_size, "float32")
    state = tvmfun.jit(partial(bert_mlm.start, config, optimizer))(frequencies, random.key(0))
    loss = partial(bert_mlm.loss_fn, examples=8)
    part = 8 // options.accumulate if options.accumulate > 1 else None
    masking = Masking(BEGINS, 3, next_sentence)
    return state, tvmfun.jit(partial(bert_mlm.train_step, masking, optimizer, loss, part), donate_argnums=0)


@pytest.mark.slow
def test_a_batch_in_parts_makes_the_same_step_and_compiles_once():
    text, results = TEXT[:8, :20], []
    for parts in ("1", "4"):
        state, step = make_step("--accumulate", parts)
        # In the first step the learning rate is 0.
        state, _ = step(state, text)
        with counted() as events:
            state, loss = step(state, text)
            state, _ = step(state, TEXT[8:16, :20])
        assert events.compiles == 0 and events.calls == 2
        results.append((state.model, loss))
    for (path, one), other in zip(tree.flatten_with_path(results[0])[0], tree.leaves(results[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5, err_msg=tree.keystr(path))


@pytest.mark.slow
def test_an_evaluation_compiles_once_for_batches_of_all_sizes():
    state, _ = make_step()
    batch = Masking(BEGINS, 3, True)(random.key(1), TEXT[:8, :20])
    whole = bert_mlm.eval_step(state.model, batch)
    first, second = tree.map(lambda x: x[:5], batch), tree.map(lambda x: x[5:], batch)
    with counted() as events:
        parts = [bert_mlm.eval_step(state.model, part) for part in (first, second)]
    assert events.compiles + events.loads == 0
    total = sum(float(part["validation loss"].total) for part in parts)
    np.testing.assert_allclose(total, float(whole["validation loss"].total), rtol=1e-5)


@pytest.mark.slow
def test_words_that_never_fit_and_tokens_that_are_none():
    state, step = make_step(next_sentence=False)
    # One word of 18 pieces: nothing can be masked, and the loss is that of no words.
    state, loss = step(state, np.full((8, 18), 6, "int32"))
    assert float(loss) == 0.0
    # As of an embedding, the result is NaN, at which a run stops.
    _, loss = step(state, np.full((8, 18), WORDS, "int32"))
    assert np.isnan(float(loss))


def test_the_learning_rate_rises_and_falls_in_lines():
    schedule = bert_mlm.make_schedule(bert_mlm.parse(["--steps", "10", "--warmup", "2", "--lr", "1"]))
    rates = [float(schedule(step)) for step in range(11)]
    np.testing.assert_allclose(rates, [0, 0.5, *np.linspace(1, 0, 9)], atol=1e-6)


def test_word_pieces():
    pytest.importorskip("tokenizers")
    text = "\n".join(LINES * 10) + "\nhe said [MASK] 好\n"
    tokenizer = bert_mlm.WordPieces(text, 60)
    assert tokenizer.pieces[:4] == SPECIAL and "好" not in tokenizer.pieces and "##a" in tokenizer.pieces
    tokens = tokenizer.encode("The cat\nsat [MASK] 好")
    assert tokens.dtype == "int32" and MASK not in tokens and tokens[-1] == UNKNOWN
    assert " ".join(tokenizer.pieces[token] for token in tokens).startswith("the cat sat")
    assert bert_mlm.WordPieces(text, 60).pieces == tokenizer.pieces


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"  \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8 (byte 0)"),
        (b"cat\n" * 20, "a window of 13 + 1 tokens needs as many, got"),
    ],
)
def test_files_that_are_no_corpus(corpus, tmp_path, content, message):
    pytest.importorskip("tokenizers")
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=re.escape(message)):
        bert_mlm.main(arguments(path, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--length", "33"), "--length must be at most 32, the positions of mini, got 33"),
        (("--length", "7"), "--length must be at least 8, got 7"),
        (("--vocab-size", "3"), "--vocab-size must be at least 16, got 3"),
        (("--masked", "1"), "--masked must be positive and below 1, got 1.0"),
        (("--dropout", "-1"), "--dropout must be at least 0 and below 1, got -1.0"),
        (("--lr", "0"), "--lr must be positive, got 0.0"),
        (("--steps", "10", "--warmup", "10"), "--warmup must be positive and below --steps 10, got 10"),
        (("--accumulate", "3"), "--accumulate must divide --batch-size 4, got 3"),
        (("--next-sentence", "--batch-size", "1"), "--batch-size must be at least 2, got 1"),
    ],
)
def test_options_that_make_no_sense(corpus, tmp_path, capsys, option, message):
    with pytest.raises(SystemExit) as error:
        bert_mlm.main(arguments(corpus, tmp_path / "run", *option))
    assert message in capsys.readouterr().err + str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_missing_library(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SystemExit, match="Run: pip install tokenizers"):
        bert_mlm.main(arguments(corpus, tmp_path / "run"))


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(corpus, tmp_path):
    pytest.importorskip("tokenizers")
    more = ("--steps", "6", "--every", "2", "--next-sentence")
    whole = bert_mlm.main(arguments(corpus, tmp_path / "whole", *more))
    parts = arguments(corpus, tmp_path / "parts", *more)
    evaluate, made = bert_mlm.evaluate, []

    def stopping(*arguments):
        made.append(arguments)
        if len(made) == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bert_mlm, "evaluate", stopping)
        with pytest.raises(KeyboardInterrupt):
            bert_mlm.main(parts)
    assert checkpoints.Manager(tmp_path / "parts" / "checkpoints").steps()[-1] == 4
    assert bert_mlm.main([*parts, "--resume"]) == whole
    assert {"validation loss", "accuracy", "next-sentence accuracy"} <= whole.keys()
    first, second = (checkpoints.Manager(tmp_path / name / "checkpoints").path(6) for name in ("whole", "parts"))
    one, other = checkpoints.read(first).arrays, checkpoints.read(second).arrays
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    assert (tmp_path / "parts" / "vocab.txt").read_text().split("\n")[:4] == SPECIAL
    with pytest.raises(SystemExit, match="was made with --vocab-size 100, got 40"):
        bert_mlm.main([*parts, "--resume", "--vocab-size", "40"])
    # A configuration that was changed by hand does not fit the checkpoint.
    config = tmp_path / "parts" / "config.json"
    config.write_text(config.read_text().replace('"next_sentence": true', '"next_sentence": false'))
    with pytest.raises(SystemExit, match="cannot be resumed: "):
        bert_mlm.main([*(option for option in parts if option != "--next-sentence"), "--resume"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--next-sentence", "--accumulate", "2", "--dropout", "0.1"),
        ("--optimizer", "lamb", "--lr", "1e-2"),
        ("--amp", "products", "--checkpoint"),
        ("--amp", "most", "--accumulate", "4", "--checkpoint"),
    ],
    ids=" ".join,
)
def test_options_train(corpus, tmp_path, more):
    pytest.importorskip("tokenizers")
    steps = ("--steps", "800", "--every", "400", "--batch-size", "16", "--lr", "6e-3")
    metrics = bert_mlm.main(arguments(corpus, tmp_path / "run", *steps, *more))
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [400, 800]
    assert metrics["validation loss"] < metrics["baseline"] - 0.2
