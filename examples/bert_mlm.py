"""BERT, trained on text from random weights: it restores masked words, and may tell if a passage follows another."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import corpora
import numpy as np
import training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import optim, random
from tvmfun.data import ArraySource, Stream, Windows, batches
from tvmfun.loops import evaluate
from tvmfun.metrics import Mean
from tvmfun.models import BERT, BERTConfig
from tvmfun.nn.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

SIZES = {"mini": BERTConfig.mini, "small": BERTConfig.small, "base": BERTConfig, "large": BERTConfig.large}
RATES = {"adamw": 2e-3, "lamb": 1e-2}
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNKNOWN, START, END, MASK = range(len(SPECIAL))


class State(NamedTuple):
    """Everything that training changes."""

    model: BERT
    opt_state: Any
    key: Any


class Batch(NamedTuple):
    """Sequences with masked words, and what the model should say about them.

    Attributes:
        tokens: integers (batch, length), some of them masked.
        segments: 0 in the first passage and 1 in the second, (batch, length).
        positions: the positions to predict, (batch, predictions).
        targets: the tokens that were there, (batch, predictions).
        weights: 1 for a target, 0 for one left over because no word fits, (batch, predictions).
        follows: whether the second passage follows the first, (batch,).
    """

    tokens: Any
    segments: Any
    positions: Any
    targets: Any
    weights: Any
    follows: Any


class WordPieces:
    """Words and frequent parts of words, found in the training text by the tokenizers library."""

    def __init__(self, text: str, vocab_size: int) -> None:
        try:
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
        except ModuleNotFoundError:
            raise SystemExit("This example needs tokenizers. Run: pip install tokenizers") from None

        def make(model: Any) -> Any:
            tokenizer = Tokenizer(model)
            tokenizer.normalizer = normalizers.BertNormalizer()
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            return tokenizer

        normalize = normalizers.BertNormalizer().normalize_str
        lines = [normalize(line) for line in text.splitlines()]
        counts = Counter()
        for line in lines:
            counts.update(line)
        common = sorted(c for c, _ in counts.most_common(vocab_size // 4) if not c.isspace())
        rare = {ord(c): " " for c in counts.keys() - {*common}}
        # The trainer numbers the pieces ##a in the order of a hash table, which differs from run to run, unless it is
        # told them as special tokens.
        first = [*SPECIAL, *common, *(f"##{c}" for c in common)]
        trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False)
        trained = make(models.WordPiece(unk_token=SPECIAL[UNKNOWN]))
        trained.train_from_iterator((line.translate(rare) for line in lines), trainer)
        vocabulary = trained.get_vocab()
        self.pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        # A new one has no special tokens, so that [MASK] in a text is three tokens.
        self.tokenizer = make(models.WordPiece(vocabulary, unk_token=SPECIAL[UNKNOWN]))

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text."""
        lines, tokens = text.splitlines(), []
        # In parts, since the library's results are many times larger than the tokens.
        for first in range(0, len(lines), 10_000):
            encoded = self.tokenizer.encode_batch(lines[first : first + 10_000])
            tokens += [np.asarray(line.ids, "int32") for line in encoded]
        return np.concatenate(tokens)


class Masking(NamedTuple):
    """The rules by which passages of text become examples.

    Attributes:
        begins: whether a token begins a word, (vocab_size,).
        predictions: how many tokens of a sequence are predicted at most.
        next_sentence: whether sequences have two passages, in half of them from two parts of the text.
    """

    begins: np.ndarray
    predictions: int
    next_sentence: bool

    def __call__(self, key: Any, text: Any) -> Batch:
        """Makes examples of passages of tokens (batch, n); random second passages are those of other rows."""
        pair_key, word_key, action_key, other_key = random.split(key, 4)
        size, length = text.shape
        mark = lambda token: tnp.full((size, 1), token, "int32")
        half = length // 2 if self.next_sentence else length
        first, second = text[:, :half], text[:, half:]
        follows = tnp.ones((size,), bool)
        if self.next_sentence:
            follows = random.bernoulli(pair_key, 0.5, (size,))
            second = tnp.concatenate([tnp.where(follows[:, None], second, tnp.roll(second, 1, 0)), mark(END)], 1)
        tokens = tnp.concatenate([mark(START), first, mark(END), second], 1)
        segments = tnp.broadcast_to((tnp.arange(tokens.shape[1]) > half + 1).astype("int32"), tokens.shape)

        # The pieces of a word have the number of the word, and so the same random number.
        words = tnp.cumsum(tnp.asarray(self.begins)[tokens].astype("int32"), 1)
        order = tnp.take_along_axis(random.uniform(word_key, tokens.shape), words - 1, 1)
        order = tnp.argsort(tnp.where(tokens < len(SPECIAL), 2.0, order), 1)
        positions = order[:, : self.predictions]
        targets = tnp.take_along_axis(tokens, positions, 1)
        # The last word may not fit as a whole. Then it is not masked.
        chosen = tnp.take_along_axis(words, order[:, : self.predictions + 1], 1)
        fits = (chosen[:, :-1] != chosen[:, -1:]) & (targets >= len(SPECIAL))

        action = random.uniform(action_key, targets.shape)
        other = random.randint(other_key, targets.shape, len(SPECIAL), len(self.begins))
        shown = tnp.where(action < 0.8, MASK, tnp.where(action < 0.9, other, targets))
        tokens = tokens.at[tnp.arange(size)[:, None], positions].set(tnp.where(fits, shown, targets))
        return Batch(tokens, segments, positions, targets, fits.astype("float32"), follows)


def make_schedule(options: argparse.Namespace) -> optim.Schedule:
    """The learning rate by step: up in a line, and down to zero in another."""
    rate = options.lr or RATES[options.optimizer]
    rise = optim.linear_schedule(0.0, rate, options.warmup)
    return optim.join_schedules(
        [rise, optim.linear_schedule(rate, 0.0, options.steps - options.warmup)], [options.warmup]
    )


def make_optimizer(options: argparse.Namespace) -> optim.GradientTransformation:
    """AdamW after clipping, or LAMB; biases and normalizations do not decay, and have no trust ratio in LAMB."""
    is_matrix = lambda model: tvmfun.tree.map(lambda x: x.ndim > 1, model)
    direction = [optim.scale_by_adam(b2=0.98, eps=1e-6), optim.add_decayed_weights(0.01, is_matrix)]
    if options.optimizer == "lamb":
        # With one, the large bias of words would take large steps.
        direction.append(optim.masked(optim.scale_by_trust_ratio(), is_matrix))
    return optim.chain(optim.clip_by_global_norm(1.0), *direction, optim.scale_by_learning_rate(make_schedule(options)))


def start(config: BERTConfig, optimizer: optim.GradientTransformation, frequencies: Any, key: Any) -> State:
    """Returns the state before the first step; its guesses are the words by their frequencies, (vocab_size,).

    Otherwise the table of tokens would learn these before anything else, since the bias alone takes many steps to.
    """
    model_key, key = random.split(key)
    model = BERT.create(config, model_key)
    model = replace(model, word_head=replace(model.word_head, bias=tnp.log(tnp.asarray(frequencies))))
    return State(model, optimizer.init(model), key)


def loss_fn(model: BERT, batch: Batch, keys: Any, words: Any, *, examples: int, checkpoint: bool = False) -> Any:
    """The part that some examples of a batch add to its mean loss.

    Args:
        model: the model.
        batch: the examples.
        keys: a key per example, the first of which drops elements.
        words: the number of words to predict in the whole batch.
        examples: the number of examples in the whole batch.
        checkpoint: whether to recompute blocks.
    """
    inputs = {"segments": batch.segments, "predictions": batch.positions}
    output = model(batch.tokens, **inputs, key=keys[0], checkpoint=checkpoint)
    loss = tnp.sum(cross_entropy(output.words, batch.targets) * batch.weights) / words
    if output.next_sentence is not None:
        loss += tnp.sum(cross_entropy(output.next_sentence, batch.follows.astype("int32"))) / examples
    return loss


def train_step(masking: Masking, optimizer: Any, loss: Any, part: int | None, state: State, text: Any) -> Any:
    """Masks, forward, backward, update and the next random key: the state after one batch, and the loss.

    With a part, so many examples at a time are in memory. The words of the parts are counted together, so that the
    update is that of the whole batch, which the mean of the parts' means (as in ``optim.MultiSteps``) is not.
    """
    mask_key, dropout_key, key = random.split(state.key, 3)
    batch, keys = masking(mask_key, text), random.split(dropout_key, len(text))
    words = tnp.maximum(tnp.sum(batch.weights), 1.0)
    value, grads = optim.microbatch(tvmfun.value_and_grad(loss), (1, 2), part)(state.model, batch, keys, words)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    return State(optim.apply_updates(state.model, updates), opt_state, key), value


# One compilation serves the last, smaller batch, too.
@partial(tvmfun.jit, dynamic_shapes=(None, {0: "batch"}))
def eval_step(model: BERT, batch: Batch) -> dict[str, Mean]:
    """The sums of the losses and of the right answers of a batch, and how many there are."""
    output = model(batch.tokens, batch.segments, predictions=batch.positions, train=False)
    is_word = batch.weights > 0
    losses = cross_entropy(output.words, batch.targets)
    metrics = {
        "validation loss": Mean.init().add(losses, is_word),
        "accuracy": Mean.init().add(tnp.argmax(output.words, -1) == batch.targets, is_word),
    }
    if output.next_sentence is not None:
        right = (output.next_sentence[:, 1] > output.next_sentence[:, 0]) == batch.follows
        metrics["next-sentence accuracy"] = Mean.init().add(right)
    return metrics


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=training.HelpFormatter)
    training.arguments(parser, steps=1500, every=250, directory="runs/bert")
    parser.add_argument("--corpus", type=Path, nargs="+", help="text files; without any, the King James Bible")
    parser.add_argument("--vocab-size", type=int, default=3000, help="the number of word pieces at most")
    parser.add_argument("--size", choices=SIZES, default="mini")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32, help="tokens of a training sequence")
    parser.add_argument("--masked", type=float, default=0.15, help="the share of tokens to predict")
    parser.add_argument("--next-sentence", action="store_true", help="two passages, of which half follow each other")
    parser.add_argument("--optimizer", choices=RATES, default="adamw")
    parser.add_argument("--lr", type=float, help=f"the highest learning rate; without it {RATES}, by optimizer")
    parser.add_argument("--warmup", type=int, default=100, help="steps in which the learning rate grows")
    parser.add_argument("--dropout", type=float, help="the share of elements to drop; 0 in mini, otherwise 0.1")
    parser.add_argument("--accumulate", type=int, default=1, help="parts in which a batch is processed, for memory")
    parser.add_argument("--amp", choices=("no", "products", "most"), default="no", help="which ops run in bfloat16")
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks instead of storing intermediates")
    options = parser.parse_args(arguments)
    least_of = dict.fromkeys(("steps", "every", "batch_size", "accumulate"), 1) | {"length": 8, "vocab_size": 16}
    for name, least in least_of.items():
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(options, name)}")
    if not 0 < options.masked < 1:
        parser.error(f"--masked must be positive and below 1, got {options.masked}")
    if options.dropout is not None and not 0 <= options.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, got {options.dropout}")
    if options.lr is not None and not options.lr > 0:
        parser.error(f"--lr must be positive, got {options.lr}")
    if not 0 < options.warmup < options.steps:
        parser.error(f"--warmup must be positive and below --steps {options.steps}, got {options.warmup}")
    if options.batch_size % options.accumulate:
        parser.error(f"--accumulate must divide --batch-size {options.batch_size}, got {options.accumulate}")
    if options.next_sentence and options.batch_size == 1:
        parser.error("--next-sentence takes random passages from the batch: --batch-size must be at least 2, got 1")
    return options


class Prepared(NamedTuple):
    """A task, its text as tokens, the batches of its held-out text, and what the step is made of."""

    task: training.Task
    tokens: np.ndarray
    held_out: Callable[[], Stream]
    tokenizer: WordPieces
    config: BERTConfig
    masking: Masking


def prepare(options: argparse.Namespace) -> Prepared:
    """Reads the text and makes the model, the step and the batches of a command line."""
    longest = SIZES[options.size](16).max_position_embeddings
    if options.length > longest:
        raise SystemExit(f"--length must be at most {longest}, the positions of {options.size}, got {options.length}")
    text = corpora.load(options.corpus)
    tokenizer = WordPieces(text.train, options.vocab_size)
    config = replace(SIZES[options.size](len(tokenizer)), next_sentence=options.next_sentence)
    if options.dropout is not None:
        config = replace(config, dropout=options.dropout)
    begins = np.asarray([not piece.startswith("##") for piece in tokenizer.pieces])
    length = options.length - (3 if options.next_sentence else 2)
    masking = Masking(begins, max(1, round(options.masked * length)), options.next_sentence)
    tokens, held_out = tokenizer.encode(text.train), tokenizer.encode(text.validation)
    baseline, key = corpora.unigram_entropy(held_out), random.key(options.seed)
    # A window has one more token than is said, because other models predict the next one.
    windows = Windows(held_out, length - 1)
    # The order and the masks of the held-out text are the same in every run.
    shuffled = next(batches(windows, len(windows), key=random.key(1)))
    source = ArraySource(tvmfun.jit(masking)(random.key(2), shuffled))
    stream = batches(Windows(tokens, length - 1, stride=1), options.batch_size, key=key, epochs=None, replace=True)
    parts = options.accumulate
    loss = partial(loss_fn, examples=options.batch_size, checkpoint=options.checkpoint)
    loss = training.mixed(loss, options.amp)
    optimizer = make_optimizer(options)
    # As if each had been seen once more.
    frequencies = (np.bincount(tokens, minlength=len(tokenizer)) + 1.0) / (len(tokens) + len(tokenizer))
    state = tvmfun.jit(partial(start, config, optimizer))(frequencies.astype("float32"), key)
    part = None if parts == 1 else options.batch_size // parts
    step = tvmfun.jit(partial(train_step, masking, optimizer, loss, part), donate_argnums=0)

    def validation_batches() -> Stream:
        return batches(source, 64, last="keep")

    def validate(state: State) -> dict[str, float]:
        return evaluate(eval_step, state.model, validation_batches()) | {"baseline": baseline}

    task = training.Task(state, step, stream, validate, "tokens", options.batch_size * options.length)
    return Prepared(task, tokens, validation_batches, tokenizer, config, masking)


def restore(model: BERT, batch: Batch, tokenizer: WordPieces) -> str:
    """Returns the text of the first example, with the guess for each masked word and the word."""
    logits = model(batch.tokens[:1], batch.segments[:1], predictions=batch.positions[:1], train=False).words[0]
    pieces = [tokenizer.pieces[token] for token in batch.tokens[0]]
    shown = zip(batch.positions[0], batch.targets[0], np.argmax(logits, -1), batch.weights[0], strict=True)
    for position, target, guess, weight in shown:
        if weight:
            pieces[position] = f"<{tokenizer.pieces[guess]}|{tokenizer.pieces[target]}>"
    return " ".join(pieces)


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains as a command line says, and returns the metrics of the held-out text."""
    task, tokens, held_out, tokenizer, *_ = prepare(options)
    training.open_run(options, tokens)
    training.write(options.run / "vocab.txt", "\n".join(tokenizer.pieces) + "\n")
    state, metrics = training.train(task, options)
    print(restore(state.model, next(held_out()), tokenizer))
    print(corpora.summary(metrics))
    return metrics


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, prints a line per evaluation and some guesses, and returns the metrics.

    Raises:
        SystemExit: if an option makes no sense, or data are missing.
    """
    with training.explained(corpora.CorpusError):
        return train(parse(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
