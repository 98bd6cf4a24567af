"""The MNIST example on a few small batches of made-up digits."""

from functools import partial

import mnist
import mnist_data
import numpy as np
import pytest

import tvmfun
from tvmfun import checkpoints, random, tree
from tvmfun.counters import counted

STEPS = 3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS * 8 + 3, 28, 28, 1)).astype("float32")
    labels = rng.integers(0, 10, len(images)).astype("int32")
    return mnist_data.Mnist(images, labels, images[:8], labels[:8])


@pytest.fixture
def train(data, monkeypatch):
    """Runs the example's command line on the small data set."""
    monkeypatch.setattr(mnist_data, "load", lambda directory: data)
    return lambda *options: mnist.main(["--batch-size", "8", "--no-progress", *map(str, options)])


def assert_identical(first, second):
    for (place, a), b in zip(tree.flatten_with_path(first)[0], tree.leaves(second), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), tree.keystr(place)


def test_the_whole_step_is_one_call_and_parameters_stay_on_the_device(data):
    optimizer = mnist.make_optimizer(1.0, 0.7, STEPS)
    state = tvmfun.jit(partial(mnist.start, optimizer))(random.key(0))
    step = tvmfun.jit(partial(mnist.train_step, optimizer), donate_argnums=0)
    batch = data.train_images[:8], data.train_labels[:8]
    state, _ = step(state, *batch)
    with counted() as events:
        state, loss = step(state, *batch)
    assert events.calls == 1
    assert events.to_device == 2  # the images and the labels of the batch
    assert events.to_host == 0
    assert np.isfinite(float(loss))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_and_resume_goes_on(train, tmp_path, capsys):
    whole = train("--epochs", 2)
    assert_identical(whole, train("--epochs", 2))
    file = tmp_path / "state.safetensors"
    train("--epochs", 1, "--save", file)
    assert_identical(whole, train("--epochs", 2, "--resume", file))
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    lines = capsys.readouterr().out.splitlines()
    assert all(word in lines[0] for word in ("epoch  1", "loss", "test accuracy", "images/s"))


@pytest.mark.slow
def test_training_goes_on_in_the_middle_of_an_epoch(data, tmp_path):
    optimizer = mnist.make_optimizer(1.0, 0.7, STEPS)
    step = tvmfun.jit(partial(mnist.train_step, optimizer))

    def run(state, stream, count):
        for _, batch in zip(range(count), stream, strict=False):
            state, _ = step(state, *batch)
        return {"state": state, "batches": stream.state}

    start = lambda: (mnist.start(optimizer, random.key(1)), mnist.training_batches(data, 1, 8))
    whole = run(*start(), 2 * STEPS - 1)
    checkpoints.save(tmp_path / "half", run(*start(), STEPS - 1))
    state, stream = start()
    half = checkpoints.load(tmp_path / "half", like={"state": state, "batches": stream.state})
    stream.restore(half["batches"])
    assert_identical(whole, run(half["state"], stream, STEPS))


def test_another_seed_gives_other_parameters(train):
    first, second = train("--epochs", 1), train("--epochs", 1, "--seed", 2)
    assert not np.array_equal(first.model.conv1.weight, second.model.conv1.weight)


def test_files_that_cannot_be_resumed(train, data, tmp_path, monkeypatch):
    shorter = {"train_images": data.train_images[1:], "train_labels": data.train_labels[1:]}
    file = tmp_path / "state.safetensors"
    with pytest.raises(SystemExit, match="cannot be read"):
        train("--resume", file)
    train("--epochs", 1, "--save", file)
    with pytest.raises(SystemExit, match="--seed 1"):
        train("--resume", file, "--seed", 5)
    with pytest.raises(SystemExit, match=r"cannot be read .*must be of 26 examples, got 27.*--save"):
        monkeypatch.setattr(mnist_data, "load", lambda directory: data._replace(**shorter))
        train("--resume", file)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(SystemExit, match=r"cannot be read.*--save"):
        train("--resume", file)


@pytest.mark.parametrize("options", [["--epochs", "0"], ["--batch-size", "-1"], ["--epochs", "many"]])
def test_options_that_make_no_sense(options):
    with pytest.raises(SystemExit):
        mnist.main(options)


def test_missing_data_is_named(tmp_path):
    with pytest.raises(SystemExit, match=str(tmp_path)):
        mnist.main(["--data", str(tmp_path)])


@pytest.mark.slow
def test_reaches_its_accuracy():
    state = mnist.main(["--epochs", "4", "--no-progress"])
    assert mnist.accuracy(state.model, mnist_data.load()) >= 0.96


@pytest.mark.parametrize("place", ["missing/state", ".", "/dev/full"])
def test_a_place_to_save_is_looked_at_before_training(place, tmp_path, capsys):
    with pytest.raises(SystemExit):
        mnist.main(["--save", str(tmp_path / place)])
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--seed", str(10**23)], ["--device", "tpu"]])
def test_mistakes_are_explained_without_a_traceback(options, train):
    with pytest.raises(SystemExit, match=r"^\["):
        train(*options)


def test_nothing_left_to_train(train, tmp_path, capsys):
    train("--epochs", 1, "--save", tmp_path / "state")
    train("--epochs", 1, "--resume", tmp_path / "state")
    assert "has seen 1 epochs already" in capsys.readouterr().out
