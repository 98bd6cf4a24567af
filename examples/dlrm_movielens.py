"""DLRM, trained on clicks: the ratings of MovieLens-100K, files of Criteo's format, or synthetic tables of any size."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click_streams
import movielens_data
import numpy as np
import training
from click_streams import Criteo, Synthetic
from movielens_data import ClickDataError, Examples

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import optim, random
from tvmfun.data import ArraySource, Padded, Stream, batches, shuffle, stack
from tvmfun.metrics import roc_auc
from tvmfun.models import DLRM, DLRMConfig
from tvmfun.nn.losses import sigmoid_binary_cross_entropy

# With sums that begin at 0, as in PyTorch, the first update of a row is as large as the learning rate.
SUMS = {"initial_accumulator_value": 0.0, "eps": 1e-10}
OPTIMIZERS = {
    "adam": optim.adam,
    "adagrad": partial(optim.adagrad, **SUMS),
    "rowwise_adagrad": partial(optim.rowwise_adagrad, **SUMS),
}
# Where an option is not given: few ratings need strong decay of their rows, many clicks need none.
DEFAULTS = {
    "movielens": {"optimizer": "adam", "lr": 3e-3, "decay": 1.0, "embedding_dim": 32, "hidden": [64, 32]},
    "criteo": {"optimizer": "rowwise_adagrad", "lr": 0.02, "decay": 0.0, "embedding_dim": 16, "hidden": [256, 128]},
    "synthetic": {"optimizer": "rowwise_adagrad", "lr": 0.02, "decay": 0.0, "embedding_dim": 16, "hidden": [64, 32]},
}


class State(NamedTuple):
    """Everything that training changes."""

    model: DLRM
    opt_state: Any


def make_schedule(options: argparse.Namespace) -> optim.Schedule:
    """The learning rate by step: a cosine."""
    return optim.cosine_decay_schedule(options.lr, options.steps)


def make_optimizer(options: argparse.Namespace) -> optim.GradientTransformation:
    """An optimizer that touches those rows of a table, and of its own state, that a batch looked up."""
    return optim.lazy(OPTIMIZERS[options.optimizer](make_schedule(options)))


def start(config: DLRMConfig, optimizer: optim.GradientTransformation, key: Any) -> State:
    """Returns the state before the first step."""
    model = DLRM.create(config, key)
    return State(model, optimizer.init(model))


def loss_fn(model: DLRM, batch: Padded, decay: float) -> tuple[Any, Any]:
    """The mean cross entropy with the decay of the looked-up rows, and without it; padding does not count."""
    examples, weights = batch.examples, tnp.astype(batch.mask, "float32")
    count = tnp.sum(weights)
    losses = sigmoid_binary_cross_entropy(model(examples.dense, examples.ids), examples.clicks)
    loss = tnp.sum(weights * losses) / count
    squares = [tnp.sum(table(examples.ids[:, i]) ** 2, axis=-1) for i, table in enumerate(model.tables)]
    return loss + decay * tnp.sum(weights * sum(squares)) / count if decay else loss, loss


def train_step(optimizer: Any, decay: float, state: State, batch: Padded) -> tuple[State, Any]:
    """Forward, backward and update: the state after one batch, and the cross entropy."""
    (_, loss), grads = tvmfun.value_and_grad(loss_fn, has_aux=True)(state.model, batch, decay)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    return State(optim.apply_updates(state.model, updates), opt_state), loss


@tvmfun.jit
def predict(model: DLRM, examples: Examples) -> Any:
    """The logits of a batch."""
    return model(examples.dense, examples.ids)


@tvmfun.jit
def measure(logits: Any, clicks: Any) -> dict[str, Any]:
    """The metrics of all held-out examples."""
    return {"validation loss": tnp.mean(sigmoid_binary_cross_entropy(logits, clicks)), "AUC": roc_auc(logits, clicks)}


def evaluate(model: DLRM, examples: Examples, batch_size: int) -> dict[str, float]:
    """Returns the cross entropy and the area under the ROC curve of all examples."""
    # The last batch is padded, so that one compilation serves all.
    stream = batches(ArraySource(examples), batch_size, last="pad")
    logits = [np.asarray(predict(model, batch.examples))[batch.mask] for batch in stream]
    return {name: float(value) for name, value in measure(np.concatenate(logits), examples.clicks).items()}


def entropy(clicks: np.ndarray) -> float:
    """Returns the cross entropy of a model that knows the share of clicks only."""
    p = clicks.mean()
    return float(-p * np.log(p) - (1 - p) * np.log(1 - p))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=training.HelpFormatter)
    training.arguments(parser, steps=1250, every=125, directory="runs/dlrm")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--data", type=Path, help="directory of MovieLens-100K; without it, that of recbole's wheel")
    which.add_argument("--criteo", type=Path, nargs="+", metavar="FILE", help="files of Criteo's tab-separated format")
    which.add_argument("--synthetic", type=int, metavar="ROWS", help="a generator for tables of so many rows")
    parser.add_argument("--hash-size", type=int, default=10_000, help="rows of each of Criteo's 26 tables")
    parser.add_argument("--max-malformed", type=int, default=100, help="malformed lines to skip before the run stops")
    parser.add_argument("--held-out", type=int, default=10_000, help="first lines or synthetic examples to evaluate")
    parser.add_argument(
        "--shuffle", type=int, default=10_000, help="lines of Criteo's files that are reordered at once"
    )
    parser.add_argument("--tables", type=int, default=2, help="synthetic tables")
    parser.add_argument("--batch-size", type=int, default=512)
    # Options without a default have one for each kind of data.
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="what lazy updates rows with")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--decay", type=float, help="weight of the squares of looked-up rows in the loss")
    parser.add_argument("--embedding-dim", type=int)
    parser.add_argument("--hidden", type=int, nargs="+", help="widths of the hidden layers of both perceptrons")
    options = parser.parse_args(arguments)
    kind = "criteo" if options.criteo else "movielens" if options.synthetic is None else "synthetic"
    for name, value in DEFAULTS[kind].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    least = {"hash_size": 2, "max_malformed": 0, "synthetic": 2}
    for name in ("steps", "every", "held_out", "shuffle", "tables", "batch_size", "embedding_dim", *least):
        value = getattr(options, name)
        if value is not None and not least.get(name, 1) <= value < 2**31:
            parser.error(f"--{name.replace('_', '-')} must be from {least.get(name, 1)} to 2147483647, got {value}")
    if not options.lr > 0:
        parser.error(f"--lr must be positive, got {options.lr}")
    if not options.decay >= 0:
        parser.error(f"--decay must be at least 0, got {options.decay}")
    if min(options.hidden) < 1:
        parser.error(f"--hidden must be positive, got {min(options.hidden)}")
    return options


class Data(NamedTuple):
    """Padded batches without an end, held-out examples, and the sizes of the tables.

    MovieLens also has examples to test once at the end, and Criteo's files have lines.
    """

    stream: Stream
    validation: Examples
    table_sizes: tuple[int, ...]
    test: Examples | None = None
    lines: Criteo | None = None


def load(options: argparse.Namespace, key: Any) -> Data:
    """Reads or makes the examples that a command line names."""
    size = options.batch_size
    if options.criteo:
        settings = options.hash_size, options.max_malformed
        held_out = click_streams.first(options.criteo, options.held_out, *settings)
        lines = Criteo(options.criteo, *settings, skip=options.held_out)
        stream = stack(shuffle(lines, options.shuffle, key=key), size, last="pad")
        before = stream.state
        next(stream)  # an error in the first lines is one before the run begins
        stream.restore(before)
        return Data(stream, held_out, (options.hash_size,) * click_streams.CATEGORIES, lines=lines)
    if options.synthetic is not None:
        stream = Synthetic(options.synthetic, options.tables, size, 2 * options.seed)
        # Other seeds are other examples of the same weights.
        held_out = Synthetic(options.synthetic, options.tables, options.held_out, 2 * options.seed + 1).read(0)
        return Data(stream, held_out, (options.synthetic,) * options.tables)
    split_key, key = random.split(key)
    data = movielens_data.load(options.data, split_key)
    stream = batches(ArraySource(data.train), size, key=key, epochs=None, last="pad")
    return Data(stream, data.validation, data.table_sizes, data.test)


class Prepared(NamedTuple):
    """A task, its data, and the sizes of its model."""

    task: training.Task
    data: Data
    config: DLRMConfig


def prepare(options: argparse.Namespace) -> Prepared:
    """Reads the data and makes the model, the step and the batches of a command line."""
    data_key, model_key = random.split(random.key(options.seed))
    data = load(options, data_key)
    for part in (data.validation, data.test):
        if part is not None and len(np.unique(part.clicks)) < 2:
            raise ClickDataError("the held-out examples must have both labels. Try more of them, or another --seed.")
    hidden = tuple(options.hidden)
    features = data.validation.dense.shape[1]
    config = DLRMConfig(data.table_sizes, features, options.embedding_dim, bottom=hidden, top=hidden)
    optimizer = make_optimizer(options)
    state = tvmfun.jit(partial(start, config, optimizer))(model_key)
    step = tvmfun.jit(partial(train_step, optimizer, options.decay), donate_argnums=0)
    baseline = entropy(data.validation.clicks)

    def validate(state: State) -> dict[str, float]:
        return evaluate(state.model, data.validation, options.batch_size) | {"baseline": baseline}

    return Prepared(training.Task(state, step, data.stream, validate, "examples", options.batch_size), data, config)


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains as a command line says, and returns the metrics of the held-out examples."""
    task, data, _ = prepare(options)
    # The features of a part depend on the clicks of the others.
    training.open_run(options, data.validation.dense)
    state, metrics = training.train(task, options)
    if data.test is not None:
        metrics["test AUC"] = evaluate(state.model, data.test, options.batch_size)["AUC"]
    if data.lines is not None:
        print(f"{data.lines.malformed} malformed lines were skipped in this pass over the files")
    print(", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    return metrics


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, prints a line per evaluation, and returns the metrics.

    Raises:
        SystemExit: if an option makes no sense, or data are missing or damaged.
    """
    with training.explained(ClickDataError):
        return train(parse(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
