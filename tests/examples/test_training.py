"""The loop that the examples share."""

import argparse
import dataclasses
import json
import re
import resource
import signal
from functools import partial

import curve
import numpy as np
import pytest
import training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoints
from tvmfun.data import ArraySource, batches


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(training, "peak_flops", lambda dtype: 1.0)


def options(folder, *, steps=3, resume=False):
    return argparse.Namespace(run=folder, resume=resume, steps=steps, every=3, seed=0, no_progress=True)


@partial(tvmfun.jit, donate_argnums=0)
def add(state, batch):
    return state + batch.sum(), tnp.log(2.5 - state)


def task():
    stream = batches(ArraySource(np.ones(4, "float32")), 1, epochs=None)
    return training.Task(tnp.zeros(()), add, stream, lambda state: {"sum": float(state)}, "rows", 1)


def test_the_op_that_made_a_nan_is_named_without_a_checkpoint_of_a_later_step(tmp_path):
    with pytest.raises(SystemExit, match=r"the loss was not finite by step 6: \[log\] the op made a NaN"):
        training.train(task(), argparse.Namespace(**vars(options(tmp_path, steps=6)) | {"every": 6}))


def test_ctrl_c_while_the_step_compiles_ends_the_first_step(tmp_path, monkeypatch):
    training.open_run(options(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(training, "peak_flops", lambda dtype: signal.raise_signal(signal.SIGINT) or 1.0)
        with pytest.raises(SystemExit, match="interrupted after step 1, which is saved"):
            training.train(task(), options(tmp_path))
    assert training.train(task(), options(tmp_path, resume=True))[1] == {"sum": 3.0}


def test_a_run_without_a_checkpoint_resumes_from_the_beginning(tmp_path):
    training.open_run(options(tmp_path))
    training.open_run(options(tmp_path, resume=True))
    assert training.train(task(), options(tmp_path, resume=True))[1] == {"sum": 3.0}
    assert checkpoints.Manager(tmp_path / "checkpoints").steps() == [0, 3]
    with pytest.raises(SystemExit, match="has 3 steps already. Try --steps 3 or more, got 2"):
        training.train(task(), options(tmp_path, steps=2, resume=True))


def test_one_process_trains_in_a_directory_at_a_time(tmp_path):
    training.open_run(options(tmp_path))

    def again(state):
        with pytest.raises(SystemExit, match=f"another process trains in {tmp_path}"):
            training.train(task(), options(tmp_path))
        return {"sum": float(state)}

    training.train(dataclasses.replace(task(), evaluate=again), options(tmp_path))
    assert checkpoints.Manager(tmp_path / "checkpoints").steps() == [0, 3]


@pytest.mark.parametrize(("amp", "dtype"), [("no", "float32"), ("products", "bfloat16")])
def test_the_peak_is_that_of_the_precision(monkeypatch, capsys, amp, dtype):
    monkeypatch.setattr(training, "peak_flops", {"float32": 2.0, "bfloat16": 4.0}.__getitem__)
    assert training.describe(task(), amp).peak == (2.0 if amp == "no" else 4.0)
    assert f"a large {dtype} product runs at" in capsys.readouterr().out


@pytest.mark.parametrize("seed", ["-1", str(2**64)])
def test_seeds_out_of_range(capsys, seed):
    parser = argparse.ArgumentParser()
    training.arguments(parser, steps=1, every=1, directory="runs")
    with pytest.raises(SystemExit):
        parser.parse_args(["--seed", seed])
    assert f"a seed must be from 0 to {2**64 - 1}, got {seed}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "3", ""])
def test_a_configuration_that_is_none(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SystemExit, match="Try a directory that --run made"):
        training.open_run(options(tmp_path, resume=True))


def test_directories_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "run"):
        with pytest.raises(SystemExit, match=re.escape(f"{folder} cannot be written")):
            training.open_run(options(folder))
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(SystemExit, match=r"log.jsonl cannot be written \(Is a directory\)"):
        training.train(task(), options(tmp_path))


def test_ctrl_c_in_a_step_that_is_evaluated_keeps_its_row(tmp_path):
    class Interrupting(training.Stream):
        taken = 0

        @property
        def state(self):
            return 0

        def restore(self, state):
            pass

        def __next__(self):
            # The first batch is read for its shape, too.
            self.taken += 1
            if self.taken == 4:
                signal.raise_signal(signal.SIGINT)
            return np.ones(1, "float32")

    interrupted = dataclasses.replace(task(), batches=Interrupting())
    with pytest.raises(SystemExit, match="interrupted after step 3, which is saved"):
        training.train(interrupted, argparse.Namespace(**vars(options(tmp_path, steps=9))))
    assert [(row["step"], row["sum"]) for row in curve.read(tmp_path)] == [(3, 3.0)]


def test_a_damaged_checkpoint(tmp_path):
    training.open_run(options(tmp_path))
    training.train(task(), options(tmp_path))
    last = checkpoints.Manager(tmp_path / "checkpoints").path(3)
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(SystemExit, match=re.escape(f"Remove {last} to go on from step 0.")):
        training.train(task(), options(tmp_path, resume=True))
    last.unlink()
    assert training.train(task(), options(tmp_path, resume=True))[1] == {"sum": 3.0}


def test_logs_with_infinities_and_damaged_lines(tmp_path):
    row = json.dumps({"step": 1, "perplexity": "Infinity"})
    (tmp_path / "log.jsonl").write_text(f'\0\0\n{{}}\n3\n{{"step": [1]}}\n{row}\n')
    assert curve.read(tmp_path) == [{"step": 1, "perplexity": float("inf")}]


def test_the_curve_of_a_run_depends_on_its_log_alone(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("one", "other"):
        training.train(task(), options(tmp_path / name))
    one, other = (tmp_path / name / "curve.svg" for name in ("one", "other"))
    assert b"<svg" in one.read_bytes() and one.read_bytes() == other.read_bytes()
    assert one.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def address(array):
    return np.from_dlpack(array.tensor).ctypes.data


def test_a_checkpoint_does_not_move_the_parameters(tmp_path):
    state, addresses = {"table": tnp.zeros((100, 4))}, []

    @tvmfun.jit(donate_argnums=0)
    def step(state, batch):
        return {"table": state["table"].at[batch].add(1.0)}, tnp.sum(batch)

    def evaluate(state):
        addresses.append(address(state["table"]))
        return {"sum": float(tnp.sum(state["table"]))}

    stream = batches(ArraySource(np.arange(8)), 4, epochs=None)
    every = argparse.Namespace(**vars(options(tmp_path)) | {"every": 1})
    _, metrics = training.train(training.Task(state, step, stream, evaluate, "rows", 4), every)
    assert metrics == {"sum": 48.0} and len(set(addresses)) == 1


def test_a_file_of_a_run_is_written_as_a_whole_or_not(tmp_path):
    path = tmp_path / "config.json"
    training.write(path, "before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(SystemExit, match="config.json cannot be written"):
            training.write(path, "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "before" and [*tmp_path.iterdir()] == [path]
