"""Word language models: the transformer of PyTorch's tutorial, and the LSTM of its ``word_language_model`` example.

The transformer learns from windows of text at random. The LSTM reads the text as parallel streams, and the state after
one batch is the first state of the next, without a gradient between them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import corpora
import numpy as np
import training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, optim, random
from tvmfun.data import ArraySource, Padded, Windows, batches
from tvmfun.loops import evaluate
from tvmfun.metrics import Mean
from tvmfun.models import (
    LSTMConfig,
    LSTMLanguageModel,
    TransformerConfig,
    TransformerLanguageModel,
    generate,
    language_model_loss,
)
from tvmfun.nn.losses import cross_entropy

POSITIONS = 256
EVALUATION_STREAMS = 10
RATES = {"adam": 2e-3, "sgd": 5.0}
# Two layers of LSTMs, as PyTorch's example has, stay at the frequencies of words for the first few hundred steps.
LAYERS = {"transformer": 2, "lstm": 1}


class State(NamedTuple):
    """Everything that training changes; ``hidden`` is the LSTM's state after the last batch, and None otherwise."""

    model: Any
    opt_state: Any
    key: Any
    hidden: Any


class Vocabulary:
    """The most frequent words of the training text, the end of a line, and ``<unk>`` for all other words."""

    def __init__(self, text: str, size: int) -> None:
        counts = Counter(split(text))
        counts.update({"<eos>": 0})
        del counts["<unk>"]
        # Words of equal frequency by the alphabet, so that the order depends on the text alone.
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        self.words = ["<unk>", *ordered[: size - 1]]
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text."""
        return np.asarray([self.index.get(word, 0) for word in split(text)], "int32")

    def decode(self, tokens: np.ndarray) -> str:
        """Returns the text of tokens, without spaces before marks and after brackets."""
        text = " ".join(self.words[token] for token in tokens)
        return re.sub(r" ([,.;:!?)\]])", r"\1", re.sub(r"([(\[]) ", r"\1", text)).replace(" <eos>", "\n")


def split(text: str) -> list[str]:
    """Returns the words and the marks of a text; the ends of lines become ``<eos>``."""
    return re.findall(r"<unk>|<eos>|[\w'\u2019]+|[^\w\s]", re.sub(r"\n+", " <eos> ", text))


def parallel_streams(tokens: np.ndarray, count: int, length: int) -> np.ndarray:
    """Cuts tokens into parallel streams, and those into windows that follow each other.

    Returns:
        Integers of shape (windows, count, length + 1). The last token of a window is the first of the next; tokens at
        the end that fill no window are left out.
    """
    size = len(tokens) // count
    streams = tokens[: count * size].reshape(count, size)
    return np.stack([streams[:, i : i + length + 1] for i in range(0, size - length, length)])


def make_schedule(options: argparse.Namespace) -> optim.Schedule:
    """The learning rate by step: a warm-up and a cosine."""
    peak = options.lr or RATES[options.optimizer]
    return optim.warmup_cosine_decay_schedule(0.0, peak, options.warmup, options.steps, 0.05 * peak)


def make_optimizer(options: argparse.Namespace) -> optim.GradientTransformation:
    """Adam or gradient descent, after clipping."""
    optimizer = optim.adam if options.optimizer == "adam" else optim.sgd
    return optim.chain(optim.clip_by_global_norm(options.clip), optimizer(make_schedule(options)))


def start(create: Callable[[Any], Any], optimizer: optim.GradientTransformation, streams: int, key: Any) -> State:
    """Returns the state before the first step."""
    model_key, key = random.split(key)
    model = create(model_key)
    hidden = model.init_state(streams) if isinstance(model, LSTMLanguageModel) else None
    return State(model, optimizer.init(model), key, hidden)


def loss_fn(model: Any, hidden: Any, tokens: Any, key: Any = None) -> tuple[Any, Any]:
    """The mean loss of all tokens but the first, and the LSTM's new state; with a key, elements are dropped."""
    if hidden is None:
        logits = model(tokens[:, :-1], key=key, train=key is not None)
    else:
        logits, hidden = model(tokens[:, :-1], hidden, key=key, train=key is not None)
    return language_model_loss(logits, tokens[:, 1:]), hidden


def train_step(optimizer: Any, state: State, batch: Any) -> tuple[State, Any]:
    """Forward, backward, update and the next random key: the state after one batch, and the loss."""
    dropout_key, key = random.split(state.key)
    tokens, hidden = batch, state.hidden
    if hidden is not None:
        ((tokens,), (is_first,)) = batch
        hidden = tvmfun.tree.map(lambda x: tnp.where(is_first, 0, x), hidden)
    (loss, hidden), grads = tvmfun.value_and_grad(loss_fn, has_aux=True)(state.model, hidden, tokens, dropout_key)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    return State(optim.apply_updates(state.model, updates), opt_state, key, hidden), loss


@tvmfun.jit
def eval_step(model: TransformerLanguageModel, batch: Padded) -> Mean:
    """The losses of the real windows of a batch, added up."""
    losses = cross_entropy(model(batch.examples[:, :-1], train=False), batch.examples[:, 1:], "none")
    return Mean.init().add(losses, where=batch.mask[:, None])


@tvmfun.jit
def streamed_loss(model: LSTMLanguageModel, windows: Any) -> Any:
    """The mean loss over windows (windows, streams, length + 1) that follow each other."""

    def step(hidden: Any, tokens: Any) -> tuple[Any, Any]:
        loss, hidden = loss_fn(model, hidden, tokens)
        return hidden, loss

    return tnp.mean(lax.scan(step, model.init_state(windows.shape[1]), windows)[1])


@partial(tvmfun.jit, static_argnames="count")
def sample(model: LSTMLanguageModel, prompt: Any, size: Any, key: Any, temperature: Any, *, count: int) -> Any:
    """Draws the words after a prompt of ``size`` words, which is padded to ``count``: the number of words in all."""

    def step(carry: Any, i: Any) -> tuple[Any, Any]:
        token, hidden = carry
        logits, hidden = model(token[None, None], hidden, train=False)
        drawn = random.categorical(random.fold_in(key, i), logits[0, 0] / temperature).astype("int32")
        token = tnp.where(i < size, prompt[i], drawn)
        return (token, hidden), token

    rest = lax.scan(step, (prompt[0], model.init_state(1)), tnp.arange(1, count))[1]
    return tnp.concatenate([prompt[:1], rest])


def write(model: Any, prompt: np.ndarray, count: int, key: Any, temperature: float) -> np.ndarray:
    """Returns a prompt and the words that a model of either kind draws after it, ``count`` in all."""
    if isinstance(model, LSTMLanguageModel):
        padded = np.pad(prompt, (0, count - len(prompt)))
        return np.asarray(sample(model, padded, np.int32(len(prompt)), key, np.float32(temperature), count=count))
    settings = {"max_length": POSITIONS, "temperature": temperature, "key": key}
    return generate(model, prompt[None], count - len(prompt), **settings)[0]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=training.HelpFormatter)
    training.arguments(parser, steps=600, every=100, directory="runs/word_lm")
    parser.add_argument("--model", choices=("transformer", "lstm"), default="transformer")
    parser.add_argument("--corpus", type=Path, nargs="+", help="text files; without any, the King James Bible")
    parser.add_argument("--vocab-size", type=int, default=4000, help="the number of words; others become <unk>")
    parser.add_argument("--width", type=int, default=200, help="the width of embeddings, layers and the LSTM's state")
    parser.add_argument("--layers", type=int, help=f"by default one of {LAYERS}")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--tied", action="store_true", help="the LSTM's embeddings are its last layer, too")
    parser.add_argument("--batch-size", type=int, default=32, help="windows or parallel streams of a batch")
    parser.add_argument("--length", type=int, default=35, help="words that a gradient reaches back")
    parser.add_argument("--optimizer", choices=RATES, default="adam")
    parser.add_argument("--lr", type=float, help=f"the highest learning rate; by default one of {RATES}")
    parser.add_argument("--warmup", type=int, default=50, help="steps in which the learning rate grows")
    parser.add_argument("--clip", type=float, default=0.5, help="the largest norm of the gradients")
    parser.add_argument("--prompt", default="And God said", help="the beginning of the text to write at the end")
    parser.add_argument("--words", type=int, default=100, help="the number of words to write, with the prompt")
    parser.add_argument("--temperature", type=float, default=0.8)
    options = parser.parse_args(arguments)
    if options.layers is None:
        options.layers = LAYERS[options.model]
    for name in ("steps", "every", "batch_size", "length", "width", "layers", "clip", "temperature"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be positive, got {getattr(options, name)}")
    if options.lr is not None and not options.lr > 0:
        parser.error(f"--lr must be positive, got {options.lr}")
    if not 0 <= options.warmup < options.steps:
        parser.error(f"--warmup must be less than --steps {options.steps}, got {options.warmup}")
    if options.vocab_size < 3:
        parser.error(f"--vocab-size must be at least 3, got {options.vocab_size}")
    if not 0 <= options.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, got {options.dropout}")
    size = len(split(options.prompt))
    if not 1 <= size < options.words:
        parser.error(f"--prompt must have at least one word and fewer than --words {options.words}, got {size}")
    if options.model == "transformer":
        for name in ("length", "words"):
            if getattr(options, name) > POSITIONS:
                parser.error(f"--{name} must be at most {POSITIONS}, the transformer's positions")
        if options.width % 2 or options.tied:
            parser.error("the transformer has two heads, which --width must be divided by, and is not --tied")
    return options


class Prepared(NamedTuple):
    """A task, its text as tokens, the batches of its held-out text, and the vocabulary and sizes of the model."""

    task: training.Task
    tokens: np.ndarray
    held_out: Callable[[], Any]
    vocabulary: Vocabulary
    config: TransformerConfig | LSTMConfig


def prepare(options: argparse.Namespace) -> Prepared:
    """Reads the text and makes the model, the step and the batches of a command line."""
    text, length = corpora.load(options.corpus), options.length
    vocabulary = Vocabulary(text.train, options.vocab_size)
    tokens, held_out = vocabulary.encode(text.train), vocabulary.encode(text.validation)
    key, is_lstm = random.key(options.seed), options.model == "lstm"
    needed = options.batch_size * (length + 1) if is_lstm else length + 1
    if len(tokens) < needed or len(held_out) <= length:
        found = f"{len(tokens)} to train on and {len(held_out)} held out"
        files = ", ".join(map(str, options.corpus or ["the corpus"]))
        raise SystemExit(
            f"{files} must have {needed} words to train on and {length + 1} held out, got {found}. "
            "Try a smaller --length or --batch-size, or more text."
        )
    sizes = len(vocabulary), options.width
    if is_lstm:
        config = LSTMConfig(*sizes, options.width, options.layers, options.dropout, options.tied)
        create = partial(LSTMLanguageModel.create, config)
        windows = parallel_streams(tokens, options.batch_size, length)
        stream = batches(ArraySource((windows, np.arange(len(windows)) == 0)), 1, epochs=None)
        streams = min(EVALUATION_STREAMS, len(held_out) // (length + 1))
        validation = parallel_streams(held_out, streams, length)
        held_out_batches = lambda: validation
        measure = lambda model: float(streamed_loss(model, validation))
    else:
        config = TransformerConfig(*sizes, 2, options.width, options.layers, options.dropout, POSITIONS)
        create = partial(TransformerLanguageModel.create, config)
        windows = Windows(tokens, length, stride=1)
        stream = batches(windows, options.batch_size, key=key, epochs=None, replace=True)
        held_out_batches = lambda: batches(Windows(held_out, length), 64, last="pad")
        measure = lambda model: evaluate(eval_step, model, held_out_batches())
    optimizer, baseline = make_optimizer(options), corpora.unigram_entropy(held_out)
    state = tvmfun.jit(partial(start, create, optimizer, options.batch_size))(key)
    step = tvmfun.jit(partial(train_step, optimizer), donate_argnums=0)

    def validate(state: State) -> dict[str, float]:
        loss = measure(state.model)
        return {"validation loss": loss, "perplexity": float(np.exp(loss)), "baseline": baseline}

    task = training.Task(state, step, stream, validate, "words", options.batch_size * length)
    return Prepared(task, tokens, held_out_batches, vocabulary, config)


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains as a command line says, and returns the metrics of the held-out text."""
    task, tokens, _, vocabulary, _ = prepare(options)
    training.open_run(options, tokens)
    training.write(options.run / "vocabulary.json", json.dumps(vocabulary.words, ensure_ascii=False))
    state, metrics = training.train(task, options)
    prompt, key = vocabulary.encode(options.prompt), random.key(options.seed)
    print(vocabulary.decode(write(state.model, prompt, options.words, key, options.temperature)))
    print(f"perplexity {metrics['perplexity']:.1f}, {corpora.summary(metrics)}")
    return metrics


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, prints a line per evaluation and a text, and returns the metrics.

    Raises:
        SystemExit: if an option makes no sense, or data are missing.
    """
    with training.explained(corpora.CorpusError):
        return train(parse(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
