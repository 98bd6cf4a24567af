"""PyTorch's official MNIST example as a functional loop: the whole training step is one compiled function."""

from __future__ import annotations

import argparse
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mnist_data
import numpy as np
from tqdm import tqdm

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, optim, random, tree
from tvmfun.models import MnistCnn


class State(NamedTuple):
    """Everything that training changes."""

    model: MnistCnn
    opt_state: Any
    key: Any


def make_optimizer(lr: float, gamma: float, steps_per_epoch: int) -> optim.GradientTransformation:
    """Adadelta whose learning rate is multiplied by ``gamma`` after each epoch."""
    return optim.adadelta(optim.exponential_decay(lr, steps_per_epoch, gamma, staircase=True))


def start(optimizer: optim.GradientTransformation, key: Any) -> State:
    """The state before the first step."""
    model_key, key = random.split(key)
    model = MnistCnn.create(model_key)
    return State(model, optimizer.init(model), key)


def loss_fn(model: MnistCnn, key: Any, images: Any, labels: Any) -> Any:
    """The mean negative log-likelihood, with dropout."""
    return nn.losses.nll_loss(model(images, key=key, train=True), labels)


def train_step(optimizer: optim.GradientTransformation, state: State, images: Any, labels: Any) -> tuple[State, Any]:
    """Forward, backward, update and the next random key: the state after one batch, and the loss."""
    dropout_key, key = random.split(state.key)
    loss, grads = tvmfun.value_and_grad(loss_fn)(state.model, dropout_key, images, labels)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    return State(optim.apply_updates(state.model, updates), opt_state, key), loss


@tvmfun.jit
def count_correct(model: MnistCnn, images: Any, labels: Any) -> Any:
    """The number of images the model gets right."""
    return tnp.sum(tnp.argmax(model(images), axis=-1) == labels)


def batches(data: mnist_data.Mnist, seed: int, epoch: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The training set in an order that depends on the seed and the epoch; an incomplete last batch is left out."""
    order = np.asarray(random.permutation(random.fold_in(random.key(seed), epoch), len(data.train_labels)))
    for first in range(0, len(order) - size + 1, size):
        chosen = order[first : first + size]
        yield data.train_images[chosen], data.train_labels[chosen]


def accuracy(model: MnistCnn, data: mnist_data.Mnist, size: int = 1000) -> float:
    """The share of test images the model gets right."""
    count = len(data.test_labels)
    parts = range(0, count, size)
    correct = [count_correct(model, data.test_images[i : i + size], data.test_labels[i : i + size]) for i in parts]
    return sum(map(int, correct)) / count


def save(path: Path, state: State, seed: int, epoch: int) -> None:
    """Writes the state under its key paths; a file of this name is replaced in one step."""
    leaves, _ = tree.flatten_with_path(state)
    arrays = {tree.keystr(place): np.asarray(leaf) for place, leaf in leaves}
    partial_file = path.with_name(path.name + ".partial")
    with open(partial_file, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays, seed=np.asarray(seed), epoch=np.asarray(epoch))
    os.replace(partial_file, path)


def restore(path: Path, like: State, seed: int) -> tuple[State, int]:
    """Reads what :func:`save` wrote: the state and the number of epochs it has seen.

    Raises:
        SystemExit: if the file is missing, damaged, or of another seed or model.
    """
    try:
        with np.load(path) as saved:
            arrays = {name: saved[name] for name in saved.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise SystemExit(f"{path} cannot be read ({error}). Try the file that --save wrote.") from None
    if int(arrays.get("seed", -1)) != seed:
        raise SystemExit(f"{path} was saved with --seed {arrays.get('seed')}. Try the same seed.")

    def leaf(place: tree.Path, old: Any) -> Any:
        found = arrays.get(tree.keystr(place))
        if found is None or found.shape != old.shape or found.dtype != old.dtype:
            raise SystemExit(f"{path} has no {old.aval} at {tree.keystr(place)}. Try a file of this model.")
        return tnp.asarray(found)

    return tree.map_with_path(leaf, like), int(arrays["epoch"])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
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
    return options


def main(arguments: list[str] | None = None) -> State:
    """Trains, prints a line per epoch, and returns the final state."""
    options = parse(arguments)
    try:
        data = mnist_data.load(options.data)
    except mnist_data.MnistDataError as error:
        raise SystemExit(str(error)) from None
    steps = len(data.train_labels) // options.batch_size
    if not steps:
        raise SystemExit(f"There are fewer than --batch-size {options.batch_size} training images.")
    optimizer = make_optimizer(options.lr, options.gamma, steps)
    # The old state is given up to the step, which may reuse its memory.
    step = tvmfun.jit(partial(train_step, optimizer), donate_argnums=0)
    state, first_epoch = tvmfun.jit(partial(start, optimizer))(random.key(options.seed)), 0
    if options.resume:
        state, first_epoch = restore(options.resume, state, options.seed)
    state = tvmfun.device_put(state, options.device)

    for epoch in range(first_epoch, options.epochs):
        started, losses = time.perf_counter(), []
        epoch_batches = batches(data, options.seed, epoch, options.batch_size)
        with tqdm(total=steps, desc=f"epoch {epoch + 1}", disable=options.no_progress, leave=False) as bar:
            for batch in epoch_batches:
                state, loss = step(state, *tvmfun.device_put(batch, options.device))
                losses.append(loss)
                bar.update()
                if len(losses) % 16 == 0:
                    bar.set_postfix(loss=f"{float(loss):.4f}")
        mean_loss = np.mean([float(loss) for loss in losses])
        seconds = time.perf_counter() - started
        print(
            f"epoch {epoch + 1:2d}  loss {mean_loss:.4f}  test accuracy {accuracy(state.model, data):.2%}"
            f"  {steps * options.batch_size / seconds:,.0f} images/s",
            flush=True,
        )
        if options.save:
            save(options.save, state, options.seed, epoch + 1)
    return state


if __name__ == "__main__":
    main(sys.argv[1:])
