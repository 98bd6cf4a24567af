"""GPT-2, trained on text from random weights: characters or byte pairs, and what it writes afterwards."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import corpora
import numpy as np
import training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import optim, random
from tvmfun.data import Stream, Windows, batches
from tvmfun.loops import evaluate
from tvmfun.metrics import Mean
from tvmfun.models import GPT2, GPT2Config, generate, language_model_loss

SIZES = {
    "mini": GPT2Config.mini,
    "small": GPT2Config.small,
    "124M": lambda _: GPT2Config(),
    "355M": lambda _: GPT2Config.medium(),
}


class State(NamedTuple):
    """Everything that training changes."""

    model: GPT2
    opt_state: Any
    key: Any


class Characters:
    """One token per character of the training text; others become the first one."""

    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        self.index = {character: i for i, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text."""
        return np.asarray([self.index.get(character, 0) for character in text], "int32")

    def decode(self, tokens: np.ndarray) -> str:
        """Returns the text of tokens."""
        return "".join(self.characters[token] for token in tokens)

    def to_json(self) -> str:
        """Returns the characters by token."""
        return json.dumps(self.characters, ensure_ascii=False)


class BytePairs:
    """Frequent sequences of bytes, found in the training text by the tokenizers library."""

    def __init__(self, text: str, vocab_size: int) -> None:
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ModuleNotFoundError:
            raise SystemExit("--mode bpe needs tokenizers. Run: pip install tokenizers, or use --mode char") from None

        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
        self.tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text."""
        return np.asarray(self.tokenizer.encode(text).ids, "int32")

    def decode(self, tokens: np.ndarray) -> str:
        """Returns the text of tokens."""
        return self.tokenizer.decode(list(map(int, tokens)))

    def to_json(self) -> str:
        """Returns what ``tokenizers.Tokenizer.from_str`` reads."""
        return self.tokenizer.to_str()


def make_schedule(options: argparse.Namespace) -> optim.Schedule:
    """The learning rate by step: a warm-up and a cosine."""
    return optim.warmup_cosine_decay_schedule(0.0, options.lr, options.warmup, options.steps, 0.1 * options.lr)


def make_optimizer(options: argparse.Namespace) -> optim.GradientTransformation:
    """AdamW after clipping; biases and normalizations do not decay."""
    decays = lambda model: tvmfun.tree.map(lambda x: x.ndim > 1, model)
    adamw = optim.adamw(make_schedule(options), b2=0.99, weight_decay=0.1, mask=decays)
    return optim.chain(optim.clip_by_global_norm(1.0), adamw)


def start(config: GPT2Config, optimizer: optim.GradientTransformation, key: Any) -> State:
    """Returns the state before the first step."""
    model_key, key = random.split(key)
    model = GPT2.create(config, model_key)
    return State(model, optimizer.init(model), key)


def loss_fn(model: GPT2, tokens: Any, key: Any = None, *, checkpoint: bool = False) -> Any:
    """The mean loss of all tokens but the first; with a key, elements are dropped."""
    logits = model(tokens[:, :-1], key=key, train=key is not None, checkpoint=checkpoint)
    return language_model_loss(logits, tokens[:, 1:])


def train_step(optimizer: Any, loss: Any, state: State, tokens: Any) -> tuple[State, Any]:
    """Forward, backward, update and the next random key: the state after one batch, and the loss."""
    dropout_key, key = random.split(state.key)
    value, grads = tvmfun.value_and_grad(loss)(state.model, tokens, dropout_key)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    return State(optim.apply_updates(state.model, updates), opt_state, key), value


# One compilation serves the last, smaller batch, too.
@partial(tvmfun.jit, dynamic_shapes=(None, {0: "batch"}))
def eval_step(model: GPT2, tokens: Any) -> Mean:
    """The sum of the losses of a batch, and how many there are."""
    count = tokens.shape[0] * (tokens.shape[1] - 1)
    return Mean(count * loss_fn(model, tokens), tnp.asarray(count, "float32"))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=training.HelpFormatter)
    training.arguments(parser, steps=600, every=100, directory="runs/gpt2")
    parser.add_argument("--corpus", type=Path, nargs="+", help="text files; without any, the King James Bible")
    parser.add_argument("--mode", choices=("char", "bpe"), default="char")
    parser.add_argument("--vocab-size", type=int, default=2048, help="the number of byte pairs")
    parser.add_argument("--size", choices=SIZES, default="mini")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="tokens of a training sequence")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=50, help="steps in which the learning rate grows")
    parser.add_argument("--amp", choices=("no", "products", "most"), default="no", help="which ops run in bfloat16")
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks instead of storing intermediates")
    parser.add_argument("--prompt", default="And God said", help="the beginning of the text to write at the end")
    options = parser.parse_args(arguments)
    for name in ("steps", "every", "batch_size", "length", "vocab_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    if not 0 <= options.warmup < options.steps:
        parser.error(f"--warmup must be at least 0 and below --steps {options.steps}, got {options.warmup}")
    if not options.lr > 0:
        parser.error(f"--lr must be positive, got {options.lr}")
    if not options.prompt:
        parser.error("--prompt must not be empty")
    return options


class Prepared(NamedTuple):
    """A task, its text as tokens, the batches of its held-out text, and what writes text after it."""

    task: training.Task
    tokens: np.ndarray
    held_out: Callable[[], Stream]
    tokenizer: Characters | BytePairs
    config: GPT2Config


def prepare(options: argparse.Namespace) -> Prepared:
    """Reads the text and makes the model, the step and the batches of a command line."""
    text = corpora.load(options.corpus)
    tokenizer = Characters(text.train) if options.mode == "char" else BytePairs(text.train, options.vocab_size)
    config = SIZES[options.size](len(tokenizer))
    if options.length > config.n_positions:
        raise SystemExit(f"--length must be at most {config.n_positions}, the positions of {options.size}")
    tokens, held_out = tokenizer.encode(text.train), tokenizer.encode(text.validation)
    windows, baseline = Windows(held_out, options.length), corpora.unigram_entropy(held_out)
    key = random.key(options.seed)
    stream = batches(Windows(tokens, options.length, stride=1), options.batch_size, key=key, epochs=None, replace=True)
    loss = partial(loss_fn, checkpoint=options.checkpoint)
    loss = training.mixed(loss, options.amp)
    optimizer = make_optimizer(options)
    state = tvmfun.jit(partial(start, config, optimizer))(key)
    step = tvmfun.jit(partial(train_step, optimizer, loss), donate_argnums=0)

    def validation_batches() -> Stream:
        return batches(windows, 32, last="keep")

    def validate(state: State) -> dict[str, float]:
        return {"validation loss": evaluate(eval_step, state.model, validation_batches()), "baseline": baseline}

    task = training.Task(state, step, stream, validate, "tokens", options.batch_size * options.length)
    return Prepared(task, tokens, validation_batches, tokenizer, config)


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains as a command line says, and returns the metrics of the held-out text."""
    task, tokens, _, tokenizer, config = prepare(options)
    prompt = tokenizer.encode(options.prompt)[None]
    count = config.n_positions - prompt.shape[1]
    if count < 0:
        raise SystemExit(f"--prompt must have at most {config.n_positions} tokens, got {prompt.shape[1]}")
    training.open_run(options, tokens)
    training.write(options.run / "tokenizer.json", tokenizer.to_json())
    state, metrics = training.train(task, options)
    settings = {"temperature": 0.8, "top_p": 0.95, "key": random.key(options.seed)}
    print(tokenizer.decode(generate(state.model, prompt, count, max_length=config.n_positions, **settings)[0]))
    print(corpora.summary(metrics))
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
