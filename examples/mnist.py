"""PyTorch's official MNIST example as a functional loop: the whole training step is one compiled function."""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mnist_data
import numpy as np

import tvmfun
from tvmfun import checkpoints, nn, optim, random
from tvmfun.data import ArraySource, Batches, batches
from tvmfun.errors import TvmfunError
from tvmfun.loops import evaluate, progress
from tvmfun.metrics import Mean, correct
from tvmfun.models import MnistCnn


class State(NamedTuple):
    """The state of training: parameters, optimizer state and random key."""

    model: MnistCnn
    opt_state: Any
    key: Any


def make_optimizer(lr: float, gamma: float, steps_per_epoch: int) -> optim.GradientTransformation:
    """Adadelta whose learning rate is multiplied by ``gamma`` after each epoch."""
    return optim.adadelta(optim.exponential_decay(lr, steps_per_epoch, gamma, staircase=True))


def start(optimizer: optim.GradientTransformation, key: Any) -> State:
    """The initial state of training."""
    model_key, key = random.split(key)
    model = MnistCnn.create(model_key)
    return State(model, optimizer.init(model), key)


def loss_fn(model: MnistCnn, key: Any, images: Any, labels: Any) -> Any:
    """The mean negative log-likelihood, with dropout."""
    return nn.losses.nll_loss(model(images, key=key), labels)


def train_step(optimizer: optim.GradientTransformation, state: State, images: Any, labels: Any) -> tuple[State, Any]:
    """Forward, backward, update and the next random key: the state after one batch, and the loss."""
    dropout_key, key = random.split(state.key)
    loss, grads = tvmfun.value_and_grad(loss_fn)(state.model, dropout_key, images, labels)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    return State(optim.apply_updates(state.model, updates), opt_state, key), loss


def training_batches(data: mnist_data.Mnist, seed: int, size: int) -> Batches:
    """Batches of the training set, reshuffled in each epoch; an incomplete last batch is dropped."""
    return batches(ArraySource((data.train_images, data.train_labels)), size, key=random.key(seed), epochs=None)


@tvmfun.jit
def eval_step(model: MnistCnn, batch: tuple[Any, Any]) -> Mean:
    """The accuracy of the model on a batch."""
    images, labels = batch
    return Mean.init().add(correct(model(images, train=False), labels))


def accuracy(model: MnistCnn, data: mnist_data.Mnist) -> float:
    """The accuracy of the model on the test set."""
    return evaluate(eval_step, model, batches(ArraySource((data.test_images, data.test_labels)), 1000, last="keep"))


def resume(path: Path, state: State, stream: Batches, seed: int) -> State:
    """Reads a file that ``--save`` wrote: restores the position in the batches, and returns the state of training.

    Raises:
        SystemExit: if the file is missing, damaged, or of another seed, model or training set.
    """
    try:
        saved = checkpoints.load(path, like={"state": state, "batches": stream.state, "seed": seed})
        if saved["seed"] != seed:
            raise SystemExit(f"{path} was saved with --seed {saved['seed']}. Try the same seed.")
        stream.restore(saved["batches"])
    except (OSError, TvmfunError) as error:
        raise SystemExit(f"{path} cannot be read ({error}). Try the file that --save wrote.") from None
    return saved["state"]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory of the original IDX files, gzipped or not")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1.0, help="learning rate of Adadelta")
    parser.add_argument("--gamma", type=float, default=0.7, help="factor of the learning rate per epoch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--save", type=Path, help="file to write the state to after each epoch")
    parser.add_argument("--resume", type=Path, help="file that --save wrote, to go on from")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    for name in ("epochs", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    path = options.save
    if path and not (os.access(path.parent, os.W_OK) and (path.is_file() or not path.exists())):
        parser.error(f"--save {path} cannot be written: name a file in a directory that exists")
    return options


def main(arguments: list[str] | None = None) -> State:
    """Trains, prints a line per epoch, and returns the final state.

    Raises:
        SystemExit: if an option is out of range, or data are missing.
    """
    try:
        return train(parse(arguments))
    except (mnist_data.MnistDataError, TvmfunError) as error:
        raise SystemExit(str(error)) from None


def train(options: argparse.Namespace) -> State:
    """Trains as the parsed command line says."""
    data = mnist_data.load(options.data)
    stream = training_batches(data, options.seed, options.batch_size)
    steps = stream.batches_per_epoch
    optimizer = make_optimizer(options.lr, options.gamma, steps)
    # The old state is donated to the step, which reuses its memory.
    step = tvmfun.jit(partial(train_step, optimizer), donate_argnums=0)
    state = tvmfun.jit(partial(start, optimizer))(random.key(options.seed))
    if options.resume:
        state = resume(options.resume, state, stream, options.seed)
    state = tvmfun.device_put(state, options.device)
    if stream.state.epoch >= options.epochs:
        print(f"{options.resume} has seen {stream.state.epoch} epochs already: --epochs is the total")

    for epoch in range(stream.state.epoch + 1, options.epochs + 1):
        started, losses = time.perf_counter(), []
        bar = progress(stream.epoch(), f"epoch {epoch}", total=steps, disable=options.no_progress)
        for batch in bar:
            state, loss = step(state, *tvmfun.device_put(batch, options.device))
            losses.append(loss)
            bar.show(loss=loss)
        mean_loss = np.mean([float(loss) for loss in losses])
        seconds = time.perf_counter() - started
        print(
            f"epoch {epoch:2d}  loss {mean_loss:.4f}  test accuracy {accuracy(state.model, data):.2%}"
            f"  {steps * options.batch_size / seconds:,.0f} images/s",
            flush=True,
        )
        if options.save:
            checkpoints.save(options.save, {"state": state, "batches": stream.state, "seed": options.seed})
    return state


if __name__ == "__main__":
    main(sys.argv[1:])
