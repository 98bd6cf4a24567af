"""The example of DLRM: one compiled step that touches few rows, held-out metrics, and runs that resume and stop."""

import importlib.util
import json
import re
import time
from functools import partial

import dlrm_movielens
import movielens_data
import numpy as np
import pytest
import training
from movielens_data import Examples
from support.click_files import numbered, write, write_recbole

import tvmfun
from tvmfun import checkpoints, random, tree
from tvmfun.counters import counted
from tvmfun.data import Padded
from tvmfun.models import DLRM, DLRMConfig

SMALL = ("--embedding-dim", "4", "--hidden", "8", "--batch-size", "16", "--no-progress")
RNG = np.random.default_rng(0)


def prepare(*arguments):
    """A step on a small table, and its state and batches."""
    return dlrm_movielens.prepare(dlrm_movielens.parse([*SMALL, "--held-out", "50", *arguments]))


def padded(batch, count):
    """A batch with another number of examples that count."""
    return batch._replace(mask=np.arange(len(batch.mask)) < count)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rowwise_adagrad"])
@pytest.mark.quick("adam")
def test_a_step_is_compiled_once_and_changes_only_the_rows_of_its_batch(optimizer):
    task = prepare("--synthetic", "5000", "--tables", "1", "--optimizer", optimizer, "--decay", "0.1").task
    before = tree.map(np.array, task.state)
    batches = [next(task.batches) for _ in range(3)]
    batches[1] = padded(batches[1], 5)
    state, loss = task.step(task.state, batches[0])
    with counted() as events:
        for batch in batches[1:]:
            state, loss = task.step(state, batch)
    assert events.compiles == 0 and events.calls == 2 and np.isfinite(float(loss))
    seen = np.unique(np.concatenate([batch.examples.ids[:, 0] for batch in batches]))
    others = np.setdiff1d(np.arange(5000), seen)
    tables = [
        (a, np.array(b))
        for a, b in zip(tree.leaves(before), tree.leaves(state), strict=True)
        if len(a.shape) and a.shape[0] == 5000
    ]
    assert len(tables) == {"adam": 3, "adagrad": 2, "rowwise_adagrad": 2}[optimizer]
    for old, new in tables:
        assert (old[others] == new[others]).all() and (old[seen] != new[seen]).any()


@pytest.mark.slow
def test_padding_does_not_count():
    model = DLRM.create(DLRMConfig((9, 7), 3, 4, (5,), (5,)), random.key(0))
    examples = Examples(
        RNG.normal(size=(6, 3)).astype("float32"),
        np.stack([RNG.integers(0, 9, 6), RNG.integers(0, 7, 6)], 1).astype("int32"),
        RNG.integers(0, 2, 6).astype("float32"),
    )
    whole = Padded(Examples(*(array[:4] for array in examples)), np.ones(4, bool))
    loss = tvmfun.jit(dlrm_movielens.loss_fn, static_argnums=2)
    got = loss(model, Padded(examples, np.arange(6) < 4), 0.5)
    np.testing.assert_allclose(got, loss(model, whole, 0.5), rtol=1e-6)
    assert float(got[0]) > float(got[1])


def test_held_out_metrics_are_those_of_all_pairs(monkeypatch):
    logits, clicks = RNG.integers(-3, 4, 37).astype("float32"), RNG.integers(0, 2, 37).astype("float32")
    examples = Examples(logits[:, None], np.zeros((37, 1), "int32"), clicks)
    monkeypatch.setattr(dlrm_movielens, "predict", lambda model, examples: examples.dense[:, 0])
    metrics = dlrm_movielens.evaluate(None, examples, 8)
    high, low = logits[clicks == 1], logits[clicks == 0]
    auc = np.mean(np.sign(high[:, None] - low) / 2 + 0.5)
    loss = np.mean(np.log1p(np.exp(-np.where(clicks == 1, logits, -logits))))
    assert metrics == {"validation loss": pytest.approx(loss, rel=1e-6), "AUC": pytest.approx(auc, rel=1e-6)}


def abstract_step(rows, optimizer):
    """The step of the generator's batches for tables that are not made, and the shapes of its arguments."""
    options = dlrm_movielens.parse(["--synthetic", str(rows), "--optimizer", optimizer])
    config = DLRMConfig((rows,) * 2, 4, options.embedding_dim, (8,), (8,))
    transformation = dlrm_movielens.make_optimizer(options)
    state = tvmfun.eval_shape(partial(dlrm_movielens.start, config, transformation), random.key(0))
    step = tvmfun.jit(partial(dlrm_movielens.train_step, transformation, 0.1), donate_argnums=0)
    shape = lambda dtype, *sizes: tvmfun.ShapeDtype((512, *sizes), np.dtype(dtype))
    batch = Padded(Examples(shape("float32", 4), shape("int32", 2), shape("float32")), shape("bool"))
    return step.lower(state, batch).compile()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", dlrm_movielens.OPTIMIZERS)
def test_memory_and_operations_of_a_step_do_not_grow_with_the_rows(optimizer):
    small, large = (abstract_step(rows, optimizer) for rows in (10_000, 10_000_000))
    one, other = small.memory_analysis(), large.memory_analysis()
    # Nothing but the tables and their state, which are updated in place, depends on the rows.
    assert one.temporaries == other.temporaries and one.workspaces == other.workspaces
    assert one.outputs == other.outputs
    assert small.cost_analysis().flops == large.cost_analysis().flops


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adagrad"])
def test_the_time_of_a_step_does_not_grow_with_the_rows(optimizer):
    times = []
    for rows in (10_000, 2_000_000):
        task = prepare("--synthetic", str(rows), "--optimizer", optimizer).task
        state, seconds = task.state, []
        for _ in range(60):
            batch, started = next(task.batches), time.perf_counter()
            state, loss = task.step(state, batch)
            float(loss)
            seconds.append(time.perf_counter() - started)
        times.append(np.median(seconds[20:]))
    # Two tables of 2e6 rows are 64 MB: to read them once takes a hundred times as long as the small step.
    assert times[1] < 5 * times[0] + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data", "criteo", "synthetic"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path, monkeypatch, kind):
    write(tmp_path / "clicks", *numbered(70), "bad", *numbered(30, start=70))
    arguments = {
        "data": ["--data", str(write_recbole(tmp_path))],
        "criteo": ["--criteo", str(tmp_path / "clicks"), "--held-out", "10", "--hash-size", "20", "--shuffle", "24"],
        "synthetic": ["--synthetic", "50", "--held-out", "40"],
    }[kind]
    # The schedule is that of the whole run.
    make_schedule = dlrm_movielens.optim.cosine_decay_schedule
    monkeypatch.setattr(dlrm_movielens.optim, "cosine_decay_schedule", lambda lr, steps: make_schedule(lr, 12))

    def main(run, steps, *more):
        options = [*SMALL, "--every", "3", "--steps", steps, "--run", str(tmp_path / run), *more]
        return dlrm_movielens.main([*arguments, *options])

    whole = main("whole", "12")
    main("parts", "6")
    assert main("parts", "12", "--resume") == whole
    managers = [checkpoints.Manager(tmp_path / run / "checkpoints") for run in ("whole", "parts")]
    one, other = (checkpoints.read(manager.path(12)).arrays for manager in managers)
    assert one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)
    if kind == "data":
        write_recbole(tmp_path, ratings=190)
        with pytest.raises(SystemExit, match="was made with other data"):
            main("parts", "15", "--resume")


@pytest.mark.slow
def test_the_generator_can_be_learned(tmp_path):
    arguments = ["--synthetic", "100", "--steps", "300", "--every", "150", "--held-out", "2000", "--run", str(tmp_path)]
    metrics = dlrm_movielens.main([*arguments, "--no-progress"])
    assert metrics["AUC"] > 0.72 and metrics["validation loss"] < metrics["baseline"] - 0.05
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [150, 300] and {"loss", "examples/s", "AUC"} <= rows[0].keys()


def test_a_malformed_line_too_many_stops_the_run(tmp_path, monkeypatch, capsys):
    # Without the compiled parts.
    monkeypatch.setattr(training, "train", lambda task, options: [next(task.batches) for _ in range(9)])
    monkeypatch.setattr(dlrm_movielens, "start", lambda config, optimizer, key: ())
    path = write(tmp_path / "clicks", *numbered(40), "bad", *numbered(80, start=40))
    criteo = ["--criteo", str(path), "--held-out", "10", "--hash-size", "20", "--shuffle", "24", *SMALL]
    message = (
        f"{path}, line 41: there must be 40 columns, got 1. There are more malformed lines than --max-malformed 0."
    )
    with pytest.raises(SystemExit, match=re.escape(message)):
        dlrm_movielens.main([*criteo, "--max-malformed", "0", "--run", str(tmp_path / "run")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none"], r"u.user cannot be read \(No such file or directory\)"),
        (["--criteo", "none"], r"none cannot be read \(No such file or directory\)"),
        (["--criteo", "empty"], "empty is empty"),
        (["--criteo", "one", "--held-out", "4"], "held-out examples must have both labels"),
        (["--criteo", "two", "--held-out", "9"], "no line is left after the first 9 lines"),
    ],
)
def test_data_that_cannot_be_trained_on(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    write(tmp_path / "one", *numbered(9)[::2])
    write(tmp_path / "two", *numbered(9))
    with pytest.raises(SystemExit, match=message):
        dlrm_movielens.main([*arguments, *SMALL, "--run", "run"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hash-size", "1"], "--hash-size must be from 2 to 2147483647, got 1"),
        (["--synthetic", str(2**31)], "--synthetic must be from 2 to 2147483647"),
        (["--steps", "0"], "--steps must be from 1"),
        (["--max-malformed", "-1"], "--max-malformed must be from 0"),
        (["--hidden", "8", "0"], "--hidden must be positive, got 0"),
        (["--data", "a", "--criteo", "b"], "not allowed with argument"),
    ],
)
def test_options_that_make_no_sense(arguments, message, capsys):
    with pytest.raises(SystemExit):
        dlrm_movielens.parse(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("recbole") is None, reason="needs the files of the recbole wheel")
@pytest.mark.slow
def test_the_wheel_has_all_ratings():
    data = movielens_data.load(None, random.key(0))
    assert [len(part.clicks) for part in data[:3]] == [80_000, 10_000, 10_000]
    assert data.table_sizes[:4] == (943, 1682, 21, 2)
    clicks = np.concatenate([part.clicks for part in data[:3]])
    assert clicks.sum() == 55_375
