"""ResNets on images of digits or on CIFAR-10: augmentation from keys, label smoothing, averaged weights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mnist_data
import numpy as np
import resnet_data
import training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import image, lax, nn, optim, random
from tvmfun.data import ArraySource, Padded, Stream, batches
from tvmfun.loops import evaluate
from tvmfun.metrics import Mean, correct
from tvmfun.models import ResNet, ResNetConfig
from tvmfun.scipy.ndimage import map_coordinates

SIZES: dict[str, Callable[..., ResNetConfig]] = {
    "mini": partial(ResNetConfig, (1, 1, 1), width=16),
    "18": ResNetConfig.resnet18,
    "50": ResNetConfig.resnet50,
}


class Weights(NamedTuple):
    """A model and the running statistics of its batch normalizations."""

    model: ResNet
    statistics: Any


class State(NamedTuple):
    """Everything that training changes, and the key of all random numbers."""

    model: ResNet
    statistics: Any
    averaged: Weights
    opt_state: Any
    step: Any
    key: Any


# -- augmentation ---


def turn_and_move(key: Any, picture: Any) -> Any:
    """Turns a picture by up to 10 degrees, and stretches and moves it by up to a tenth; outside of it is 0."""
    angle_key, scale_key, shift_key = random.split(key, 3)
    sizes = tnp.asarray(picture.shape[:2], "float32")
    angle = random.uniform(angle_key, minval=-0.17, maxval=0.17)
    centre = (sizes - 1) / 2
    y, x = tnp.meshgrid(*(tnp.arange(n) - (n - 1) / 2 for n in picture.shape[:2]), indexing="ij")
    rows = tnp.cos(angle) * y - tnp.sin(angle) * x + centre[0]
    columns = tnp.sin(angle) * y + tnp.cos(angle) * x + centre[1]
    turn = lambda channel: map_coordinates(channel, [rows, columns], order=1)
    picture = tvmfun.vmap(turn, in_axes=-1, out_axes=-1)(picture)
    scale = random.uniform(scale_key, (2,), minval=0.9, maxval=1.1)
    shift = random.uniform(shift_key, (2,), minval=-0.1, maxval=0.1) * sizes
    moved = (1 - scale) * sizes / 2 + shift
    return image.scale_and_translate(picture, picture.shape, (0, 1), scale, moved, "linear")


def crop_and_flip(key: Any, picture: Any) -> Any:
    """Moves a picture by up to 4 pixels, and mirrors every other one; outside of it is 0."""
    crop_key, flip_key = random.split(key)
    padded = tnp.pad(picture, ((4, 4), (4, 4), (0, 0)))
    row, column = random.randint(crop_key, (2,), 0, 9)
    picture = lax.dynamic_slice(padded, (row, column, 0), picture.shape)
    return tnp.where(random.bernoulli(flip_key), picture[:, ::-1], picture)


def augmented(change: Any, background: float, key: Any, step: Any, images: Any) -> Any:
    """Changes each image of a batch by a key of its own, which is a function of the run's key and the step."""
    keys = random.split(random.fold_in(key, step), images.shape[0])
    return tvmfun.vmap(change)(keys, images - background) + background


# -- training ---


def make_schedule(options: argparse.Namespace) -> optim.Schedule:
    """The learning rate by step: a warm-up and a cosine."""
    return optim.warmup_cosine_decay_schedule(0.0, options.lr, options.warmup, options.steps)


def make_optimizer(options: argparse.Namespace) -> optim.GradientTransformation:
    """Gradient descent with Nesterov momentum; biases and normalizations do not decay."""
    decays = lambda model: tvmfun.tree.map(lambda x: x.ndim > 1, model)
    decay = optim.add_decayed_weights(5e-4, decays)
    return optim.chain(decay, optim.sgd(make_schedule(options), momentum=0.9, nesterov=True))


def start(config: ResNetConfig, optimizer: optim.GradientTransformation, key: Any) -> State:
    """Returns the state before the first step."""
    model_key, key = random.split(key)
    model = ResNet.create(config, model_key)
    statistics = nn.init_state(model)
    averaged = tvmfun.tree.map(tnp.zeros_like, Weights(model, statistics))
    return State(model, statistics, averaged, optimizer.init(model), tnp.asarray(0), key)


def loss_fn(model: ResNet, statistics: Any, images: Any, labels: Any, *, smoothing: float) -> Any:
    """The mean cross-entropy with smoothed labels, and the next running statistics."""
    logits, statistics = model(images, statistics)
    targets = nn.losses.smooth_labels(nn.functional.one_hot(labels, logits.shape[-1]), smoothing)
    return tnp.mean(nn.losses.softmax_cross_entropy(logits, targets)), statistics


def train_step(optimizer: Any, augment: Any, loss: Any, decay: float, state: State, batch: Any) -> tuple[State, Any]:
    """Augmentation, forward, backward, update and average: the state after one batch, and the loss."""
    images, labels = batch
    images = augment(state.key, state.step, images)
    forward_backward = tvmfun.value_and_grad(loss, has_aux=True)
    (value, statistics), grads = forward_backward(state.model, state.statistics, images, labels)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    model = optim.apply_updates(state.model, updates)
    # The mean of all weights so far, then an exponential one. Statistics are averaged, too: those of the last weights
    # do not fit averaged ones, and new estimates would cost a pass over the training images in each evaluation.
    share = tnp.maximum(1 - decay, 1 / (1 + state.step))
    averaged = optim.incremental_update(Weights(model, statistics), state.averaged, share)
    return State(model, statistics, averaged, opt_state, state.step + 1, state.key), value


@tvmfun.jit
def eval_step(weights: Weights, batch: Padded) -> dict[str, Mean]:
    """The cross-entropy and the accuracy of the real images of a batch."""
    (images, labels), real = batch
    logits, _ = weights.model(images, weights.statistics, train=False)
    losses = nn.losses.cross_entropy(logits, labels, reduction="none")
    return {"loss": Mean.init().add(losses, real), "accuracy": Mean.init().add(correct(logits, labels), real)}


# -- the command line ---


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=training.HelpFormatter)
    training.arguments(parser, steps=1500, every=100, directory="runs/resnet")
    parser.add_argument("--data", choices=("digits", "mnist", "cifar10"), default="digits")
    parser.add_argument("--mnist", type=Path, help="directory of MNIST's IDX files; without it, 5000 of its images")
    parser.add_argument("--files", type=Path, help="directory of CIFAR-10's binary files")
    parser.add_argument("--size", choices=SIZES, default="mini")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--warmup", type=int, default=50, help="steps in which the learning rate grows")
    parser.add_argument("--smoothing", type=float, default=0.1, help="the share of a label that all classes get")
    parser.add_argument("--average", type=float, default=0.98, help="how much the average keeps of itself in a step")
    parser.add_argument("--amp", choices=("no", "products", "most"), default="no", help="which ops run in bfloat16")
    options = parser.parse_args(arguments)
    for name in ("steps", "every", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    if not options.lr > 0:
        parser.error(f"--lr must be positive, got {options.lr}")
    if not 0 <= options.warmup < options.steps:
        parser.error(f"--warmup must be at least 0 and below --steps {options.steps}, got {options.warmup}")
    for name in ("smoothing", "average"):
        if not 0 <= getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 0 and below 1")
    for name, data in (("mnist", "mnist"), ("files", "cifar10")):
        if getattr(options, name) and options.data != data:
            parser.error(f"--{name} is for --data {data}, got --data {options.data}")
    if options.data == "cifar10" and not options.files:
        parser.error("--data cifar10 needs --files, the directory of its binary files")
    return options


class Prepared(NamedTuple):
    """A task, the batches of its held-out images, the augmentation, the images, and the accuracy of the baseline."""

    task: training.Task
    held_out: Callable[[], Stream]
    augment: Callable[[Any, Any, Any], Any]
    images: np.ndarray
    baseline: float


def prepare(options: argparse.Namespace) -> Prepared:
    """Reads the images and makes the model, the step and the batches of a command line."""
    data = resnet_data.load(options.data, options.mnist or options.files)
    config = SIZES[options.size](num_classes=10, in_channels=data.train_images.shape[-1], small_images=True)
    key = random.key(options.seed)
    stream = batches(ArraySource((data.train_images, data.train_labels)), options.batch_size, key=key, epochs=None)
    if options.data == "cifar10":
        augment = partial(augmented, crop_and_flip, 0.0)
    else:
        augment = partial(augmented, turn_and_move, float(data.train_images.min()))
    loss = partial(loss_fn, smoothing=options.smoothing)
    loss = training.mixed(loss, options.amp)
    optimizer = make_optimizer(options)
    state = tvmfun.jit(partial(start, config, optimizer))(key)
    step = tvmfun.jit(partial(train_step, optimizer, augment, loss, options.average), donate_argnums=0)

    def held_out() -> Stream:
        return batches(ArraySource((data.test_images, data.test_labels)), 200, last="pad")

    def validate(state: State) -> dict[str, float]:
        raw = evaluate(eval_step, Weights(state.model, state.statistics), held_out())
        averaged = evaluate(eval_step, state.averaged, held_out())
        return {
            "validation loss": raw["loss"],
            "accuracy": raw["accuracy"],
            "averaged loss": averaged["loss"],
            "averaged accuracy": averaged["accuracy"],
        }

    task = training.Task(state, step, stream, validate, "images", options.batch_size)
    return Prepared(task, held_out, augment, data.train_images, nearest_mean_accuracy(data))


def nearest_mean_accuracy(data: resnet_data.Images) -> float:
    """The accuracy of the class whose mean training image is nearest to a held-out one."""
    train, test = (images.reshape(len(images), -1) for images in (data.train_images, data.test_images))
    classes = np.unique(data.train_labels)
    means = np.stack([train[data.train_labels == c].mean(axis=0) for c in classes])
    # The squared distance without the square of the test image, which all classes share.
    distances = (means**2).sum(axis=1) - 2 * test @ means.T
    return float((classes[distances.argmin(axis=1)] == data.test_labels).mean())


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains as a command line says, and returns the metrics of the held-out images."""
    task, _, _, images, baseline = prepare(options)
    training.open_run(options, images)
    _, metrics = training.train(task, options)
    averaged, raw = metrics["averaged accuracy"], metrics["accuracy"]
    print(f"accuracy {averaged:.2%} with averaged weights, {raw:.2%} with the last; nearest class mean {baseline:.2%}")
    return metrics


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, prints a line per evaluation, and returns the metrics.

    Raises:
        SystemExit: if an option makes no sense, or data are missing.
    """
    with training.explained(resnet_data.ImageDataError, mnist_data.MnistDataError):
        return train(parse(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
