"""Exports the training step of ``examples/mnist.py`` for C++: two libraries, and the state to start from.

Run it with ``PYTHONPATH=examples``; ``docs/export.md`` has the commands.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import mnist
import numpy as np

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoints, random

# The images of a call of ``predict``.
TEST_BATCH = 500


def predict(model, images):
    """The most likely digit of each image."""
    return tnp.argmax(model(images, train=False), axis=-1).astype("int32")


def main(arguments: list[str] | None = None) -> None:
    """Writes ``step.so``, ``predict.so`` and ``start.safetensors``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps-per-epoch", type=int, default=937, help="after these, the learning rate falls")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="*", help="processors, such as x86-64-v3; by default this one")
    parser.add_argument("--cuda", metavar="ARCH", help="a GPU instead, such as sm_90a")
    options = parser.parse_args(arguments)
    targets = [{"kind": "cuda", "arch": options.cuda}] if options.cuda else options.targets

    images = lambda size: np.zeros((size, 28, 28, 1), "float32")
    labels = np.zeros(options.batch_size, "int32")
    optimizer = mnist.make_optimizer(lr=1.0, gamma=0.7, steps_per_epoch=options.steps_per_epoch)
    state = tvmfun.jit(partial(mnist.start, optimizer))(random.key(options.seed))
    step = tvmfun.jit(partial(mnist.train_step, optimizer), donate_argnums=0)

    options.folder.mkdir(parents=True, exist_ok=True)
    compiled = step.lower(state, images(options.batch_size), labels).compile()
    compiled.export(options.folder / "step.so", targets=targets)
    compiled = tvmfun.jit(predict).lower(state.model, images(TEST_BATCH)).compile()
    compiled.export(options.folder / "predict.so", targets=targets)
    checkpoints.save(options.folder / "start.safetensors", state)


if __name__ == "__main__":
    main(sys.argv[1:])
