"""Tuning: kept schedules are correct and were faster, a database outlives its process, and bad schedules do no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, jit, lax, tune, tuned
from tvmfun.errors import ArgumentError, PerformanceWarning, TargetError
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.schedule import schedule
from tvmfun.lower.tuning import space, worker
from tvmfun.lower.tuning.database import ACTIVE, Database, Record, merge, using
from tvmfun.lower.tuning.search import Outcome, Worker, search

RANDOM = np.random.default_rng(0)


def convolution(x, w):
    """A grouped one: our rules have no register tiles for it, and vectors that reach over groups of 3 channels."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dimensions, feature_group_count=8)


def filled(*shape):
    return tnp.asarray(RANDOM.standard_normal(shape).astype("float32"))


X, W = filled(4, 16, 16, 32), filled(3, 3, 4, 24)
FUNCTIONS = {
    "grouped convolution": (convolution, X, W),
    "product with its bias": (lambda a, b: tnp.maximum(a @ b + 1, 0), filled(48, 40), filled(40, 56)),
    "reduction": (lambda a: tnp.exp(a - tnp.max(a, axis=1, keepdims=True)), filled(64, 100)),
    "window": (lambda a: lax.reduce_window(a, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), X),
    "several kernels": (lambda a: tnp.cumulative_sum(tnp.sum(a, axis=1), axis=0), filled(40, 30, 20)),
}


def scheduled(function, *arguments):
    """The kernels of a function, as our rules schedule them."""
    program = tvmfun.trace(function)(*arguments)
    return pipeline.scheduled_kernels(program, targets.host())


def drawn(one, seed):
    """A record with some schedule for a kernel."""
    function = one.kernel.prim_func()
    random, schedule = Random(seed), None
    options = space.Space(function, targets.host())
    while schedule is None:
        schedule = options.draw(random)
    return Record.of(
        function,
        targets.host(),
        kernel=one.kernel.text,
        rule="window",
        before=2.0,
        after=1.0,
        trials=1,
        schedule=space.as_json(schedule),
    )


def records(function, *arguments, seed=0):
    return [drawn(one, seed) for one in scheduled(function, *arguments) if one.kernel.equations[0].op.kind != "opaque"]


@pytest.fixture(scope="module")
def record():
    return records(*FUNCTIONS["grouped convolution"])[0]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A folder in which a function was tuned, and the report."""
    folder = tmp_path_factory.mktemp("tuned")
    before = Path.cwd()
    os.chdir(folder)
    try:
        report = tune(convolution, X, ShapeDtype(W.shape, "float32"), database="tuning.jsonl", trials=6)
    finally:
        os.chdir(before)
    return folder, report


def rules(compiled):
    return [line.split('"')[0] for line in compiled.as_text().split('"tvmfun.rule": "')[1:]]


# -- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.quick("window-0", "several kernels-0", "product with its bias-0")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tuned_function_computes_the_same(name, seed):
    function, *arguments = FUNCTIONS[name]
    expected = np.asarray(jit(function)(*arguments))
    with using(Database(records(function, *arguments, seed=seed))):
        compiled = jit(function).lower(*arguments).compile()
        results = [np.asarray(compiled(*arguments)) for _ in range(3)]
    assert "tuned" in rules(compiled)
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


@pytest.mark.slow
def test_the_memory_of_a_tuned_kernel_is_known(record):
    lowered = jit(convolution).lower(X, W)
    by_rule = lowered.compile().memory_analysis()
    # The image with its border, in one piece or in pieces, is all that can be allocated.
    for seed in range(4):
        with using(Database(records(convolution, X, W, seed=seed))):
            compiled = lowered.compile()
        analysis = compiled.memory_analysis()
        assert replace(analysis, workspaces=0) == replace(by_rule, workspaces=0)
        allocates = any(size >= 1024 for size in sizes(compiled.as_text()))
        assert (analysis.workspaces > 0) == allocates


def sizes(text):
    """The bytes of the buffers that float32 kernels allocate."""
    for line in text.splitlines():
        if "T.alloc_buffer((" in line:
            shape = line.split("T.alloc_buffer((")[1].split(")")[0]
            yield 4 * int(np.prod([int(size) for size in shape.split(",") if size.strip()]))


def test_applying_a_schedule_leaves_the_kernel_as_it_was(record):
    (one,) = scheduled(convolution, X, W)
    function = one.kernel.prim_func()
    before = space.source(function)
    space.applied(function, record.schedule)
    assert space.source(function) == before


@pytest.mark.slow
@pytest.mark.slow
def test_variations_differ_and_are_right():
    (one,) = scheduled(convolution, X, W)
    function, random = one.kernel.prim_func(), Random(1)
    options = space.Space(function, targets.host())
    bench = worker.Bench(function, 2, targets.host(), 0)
    first = options.parsed(space.as_json(options.draw(random)))
    varied = [trace for trace in (options.vary(first, random) for _ in range(4)) if trace is not None]
    texts = {space.as_json(trace) for trace in varied}
    assert len(texts) > 1
    for text in texts:
        bench.verified(text)


# -- what is wrong is not kept ----------------------------------------------------------------------------------------


def task(one, **options):
    function = one.kernel.prim_func()
    plain = {"kind": "llvm", "mcpu": str(targets.host().attrs["mcpu"]), "num-cores": 2}
    return {
        "function": space.source(function),
        "inputs": len(one.kernel.inputs),
        "target": plain,
        "trials": 4,
        "seconds": 60,
        "seed": 0,
        "known": [],
        "broke": [],
        **options,
    }


@pytest.mark.slow
def test_a_schedule_that_computes_something_else_is_rejected(monkeypatch):
    (one,) = scheduled(convolution, X, W)
    (other,) = scheduled(lambda x, w: convolution(x, w) * 1.001, X, W)
    wrong = other.kernel.prim_func()
    monkeypatch.setattr(space, "applied", lambda function, trace: schedule(wrong, targets.host()))
    messages = []
    worker.run(task(one), messages.append)
    assert [m["kind"] for m in messages] == ["ready", *["try", "rejected"] * 4, "done"]
    assert {m.get("reason") for m in messages} == {None, "Mismatch"}
    assert messages[-1]["best"] is None


@pytest.mark.slow
def test_a_schedule_that_is_not_surely_faster_is_not_kept(monkeypatch):
    (one,) = scheduled(convolution, X, W)
    times = [(1.0, 1.04, True), (1.0, 2.0, False)]
    monkeypatch.setattr(worker.Bench, "times", lambda bench, module: times.pop())
    messages = []
    worker.run(task(one, trials=2), messages.append)
    assert messages[-1] == {"kind": "done", "best": None, "before": pytest.approx(0, abs=0.1)}
    assert not times
    messages.clear()
    worker.run(task(one, trials=2, seconds=0), messages.append)
    assert [message["kind"] for message in messages] == ["ready", "done"]


@pytest.mark.slow
def test_a_known_schedule_is_tried_first(record, monkeypatch):
    (one,) = scheduled(convolution, X, W)
    monkeypatch.setattr(worker.Bench, "times", lambda bench, module: (3.0, 1.5, True))
    messages = []
    worker.run(task(one, trials=0, known=[record.schedule]), messages.append)
    tried = [message["schedule"] for message in messages if message["kind"] == "tried"]
    assert tried == [record.schedule]
    assert messages[-1]["best"] == {"schedule": record.schedule, "before": 3.0, "after": 2.0, "ratio": 1.5}


def test_scalars_can_be_tried():
    (one,) = scheduled(lambda x: tnp.sin(x), ShapeDtype((), "float32"))
    bench = worker.Bench(one.kernel.prim_func(), 1, targets.host(), 0)
    assert bench.before > 0


@pytest.mark.parametrize(
    ("result", "expected", "same"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), True),
        (np.float32([1, 2.00001]), np.float32([1, 2]), True),
        (np.float32([1, 2.01]), np.float32([1, 2]), False),
        (np.float32([np.nan, 2]), np.float32([np.nan, 2]), True),
        (np.float32([1, 2]), np.float32([np.nan, 2]), False),
        (np.float32([np.nan, 2]), np.float32([1, 2]), False),
        (np.float32([np.inf]), np.float32([-np.inf]), False),
        (np.float64([1 + 1e-9]), np.float64([1]), False),
        (np.int32([1, 2]), np.int32([1, 3]), False),
        (np.zeros(0, np.float32), np.zeros(0, np.float32), True),
    ],
)
def test_results_agree(result, expected, same):
    assert worker.agree(result, expected) is same


# Speaks as a worker does: crashes with the second schedule, and then knows the first.
CRASHING = """
import json, os, sys
task = json.loads(sys.stdin.readline())
say = lambda **message: print(json.dumps(message), flush=True)
say(kind="ready")
if not task["broke"]:
    say(kind="try", schedule="first")
    say(kind="tried", ratio=2.0)
    say(kind="try", schedule="second")
    os.abort()
assert (task["broke"], task["known"], task["trials"]) == (["second"], ["first"], 3)
say(kind="try", schedule="third")
say(kind="rejected")
say(kind="done", best={"schedule": "first", "before": 2.0, "after": 1.0}, before=2.0)
"""

# Never ends with the second schedule.
HANGING = """
from tvmfun.lower.tuning import worker
worker.PATIENCE = 4
ratio, tried = worker.Bench.ratio, []
def endless(bench, module):
    tried.append(module)
    while len(tried) == 2:
        pass
    return ratio(bench, module)
worker.Bench.ratio = endless
worker.main()
"""


def running(script):
    """A worker that runs another script."""
    return type("Other", (Worker,), {"command": (sys.executable, "-c", script)})()


def test_a_crash_costs_a_trial():
    (one,) = scheduled(convolution, X, W)
    with running(CRASHING) as crashing:
        function = one.kernel.prim_func()
        outcome = search(crashing, function, 2, targets.host(), trials=5, seconds=60, seed=0)
    assert outcome == Outcome(trials=3, rejected=2, before=2.0, after=1.0, schedule="first")


@pytest.mark.slow
def test_a_schedule_that_never_ends_is_given_up():
    (one,) = scheduled(convolution, X, W)
    with running(HANGING) as hanging:
        kinds = [message["kind"] for message in hanging.messages(task(one))]
    assert kinds == ["ready", "try", "tried", "try", "broke"]


def test_code_that_cannot_run_here_is_an_error():
    (one,) = scheduled(convolution, X, W)
    function = one.kernel.prim_func()
    with running("raise ImportError('no such thing')") as failing, pytest.raises(TargetError) as caught:
        search(failing, function, 2, targets.host(), trials=1, seconds=9, seed=0)
    assert str(caught.value).startswith("[tune] a kernel crashed, or never ended, with the schedule of our rules, got")
    assert "(ImportError: no such thing). Try a target that this machine can run." in str(caught.value)


# -- from the function to the database and back -----------------------------------------------------------------------


@pytest.mark.slow
def test_tune_finds_something_faster_and_writes_nothing_else(found):
    folder, report = found
    assert os.listdir(folder) == ["tuning.jsonl"]
    (kernel,) = report.kernels
    assert (kernel.name, kernel.rule, kernel.note) == ("conv", "window", "")
    assert kernel.trials == 6
    assert kernel.ratio > 1.05
    assert kernel.before / kernel.after == kernel.ratio
    assert str(report).splitlines()[0].split() == ["kernel", "rule", "before", "after", "ratio", "trials", "rejected"]
    (record,) = Database.read(folder / "tuning.jsonl", "test").records.values()
    assert record.ratio == pytest.approx(kernel.ratio)
    assert record.target == str(targets.host())


FRESH = """
import sys
import numpy as np
import tvmfun
from tvmfun import lax
x, w = (tvmfun.device_put(np.load(path)) for path in sys.argv[1:3])
dimensions = ("NHWC", "HWIO", "NHWC")
f = tvmfun.jit(lambda x, w: lax.conv_general_dilated(
    x, w, (1, 1), "SAME", dimension_numbers=dimensions, feature_group_count=8))
compiled = f.lower(x, w).compile()
print('"tvmfun.rule": "tuned"' in compiled.as_text())
np.save(sys.argv[3], np.asarray(f(x, w)))
"""


@pytest.mark.slow
def test_a_database_works_in_another_process(found, tmp_path):
    folder, _ = found
    paths = [tmp_path / name for name in ("x.npy", "w.npy", "y.npy")]
    for path, array in zip(paths, (X, W), strict=False):
        np.save(path, np.asarray(array))
    environment = {**os.environ, "TVMFUN_TUNING": str(folder / "tuning.jsonl")}
    ran = subprocess.run([sys.executable, "-c", FRESH, *paths], env=environment, capture_output=True, text=True)
    assert ran.stdout.strip() == "True", ran.stderr
    with tuned(folder / "tuning.jsonl"):
        here = np.asarray(jit(convolution)(X, W))
    assert np.load(paths[2]).tobytes() == here.tobytes()


@pytest.mark.slow
def test_a_jitted_function_is_compiled_with_and_without(found):
    folder, _ = found
    step = jit(convolution)
    plain = step.lower(X, W).compile()
    expected = np.asarray(step(X, W))
    with tuned(folder / "tuning.jsonl"):
        compiled = step.lower(X, W).compile()
        inside = np.asarray(step(X, W))
        assert inside.tobytes() == np.asarray(compiled(X, W)).tobytes()
    assert np.asarray(step(X, W)).tobytes() == expected.tobytes()
    np.testing.assert_allclose(inside, expected, rtol=1e-4, atol=1e-4)
    assert plain.executable is not compiled.executable
    # Each keeps what it was compiled with.
    assert (rules(plain), rules(compiled)) == (["window"], ["tuned"])


@pytest.mark.slow
def test_the_disk_cache_keeps_them_apart(record, tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    tvmfun.clear_caches()
    expected = np.asarray(jit(convolution)(X, W))
    with using(Database([record])):
        inside = np.asarray(jit(convolution)(X, W))
    assert len(list(tmp_path.glob("*.so"))) == 2
    tvmfun.clear_caches()
    assert np.asarray(jit(convolution)(X, W)).tobytes() == expected.tobytes()
    with using(Database([record])):
        assert np.asarray(jit(convolution)(X, W)).tobytes() == inside.tobytes()


def test_static_and_donated_arguments(tmp_path):
    @jit(static_argnames="power", donate_argnums=0)
    def update(state, x, *, power):
        return state + tnp.sum(x) ** power

    state, x = ShapeDtype((2000,), "float32"), ShapeDtype((8,), "float32")
    report = tune(update, state, x, power=2, database=tmp_path / "t.jsonl", trials=1, rules=("elementwise",))
    assert [kernel.note for kernel in report.kernels] == ["writes over a donated argument"]
    assert report.others == {"reduction": 1}


def test_what_cannot_be_tuned_says_why(tmp_path):
    def looped(x):
        return lax.fori_loop(0, 3, lambda i, y: y @ x, x)

    square = ShapeDtype((8, 8), "float32")
    path = tmp_path / "tuning.jsonl"
    report = lambda function, *arguments, rules="all": tune(function, *arguments, database=path, rules=rules)
    (kernel,) = report(lambda x: tnp.cumulative_sum(x, axis=0), square).kernels
    assert kernel.note == "written as loops, whose order is part of what it computes"
    (kernel,) = report(looped, square, rules=("control",)).kernels
    assert kernel.note == "kernels inside of control flow are scheduled by rules"
    (kernel,) = report(jit(lambda x: x + 1, dynamic_shapes=({0: "b"},)), square).kernels
    assert kernel.note == "its sizes are dynamic"
    assert "dynamic" in str(report(jit(lambda x: x + 1, dynamic_shapes=({0: "b"},)), square))
    assert not list(tmp_path.iterdir())


def test_kernels_in_loops_and_in_place_keep_their_rules():
    square = filled(40, 40)
    function = lambda x: lax.fori_loop(0, 3, lambda i, y: y @ x, x)
    with using(Database(records(lambda x: x @ x, square))):
        assert rules(jit(lambda x: x @ x).lower(square).compile()) == ["tuned"]
        assert "tuned" not in rules(jit(function).lower(square).compile())
    plain = jit(lambda x: x + 1)
    with using(Database(records(lambda x: x + 1, square))):
        assert rules(plain.lower(square).compile()) == ["tuned"]
        assert rules(jit(lambda x: x + 1, donate_argnums=0).lower(square).compile()) == ["elementwise"]


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_merge_keeps_the_larger_gain_and_what_else_there_was(record, tmp_path):
    path = tmp_path / "new" / "tuning.jsonl"
    other = replace(record, target="another")
    merge(path, [record], "test")
    merge(path, [replace(record, after=0.5), other], "test")
    merge(path, [replace(record, after=1.5)], "test")
    merged = Database.read(path, "test").records
    assert sorted(r.ratio for r in merged.values()) == [2.0, 4.0]
    assert merged[record.kernel, record.target] == replace(record, after=0.5)
    # A record that was compared with the earlier one replaces it, whatever gain the earlier one had.
    merge(path, [replace(record, after=1.9)], "test", replaced=replace(record, after=0.5))
    assert Database.read(path, "test").records[record.kernel, record.target].after == 1.9


def test_merges_at_the_same_time_lose_nothing(record, tmp_path):
    path = tmp_path / "tuning.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: merge(path, [replace(record, target=str(i))], "test"), range(40)))
    assert {r.target for r in Database.read(path, "test").records.values()} == set(map(str, range(40)))
    assert os.listdir(tmp_path) == ["tuning.jsonl"]


def test_a_write_that_fails_leaves_the_file(record, tmp_path, monkeypatch):
    path = tmp_path / "tuning.jsonl"
    merge(path, [record], "test")
    before = path.read_bytes()

    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="the disk is full"):
        merge(path, [replace(record, target="another")], "test")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["tuning.jsonl"]


HEADER = '{"format": "tvmfun tuning", "version": 1}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        '{"format": "tvmfun tuning", "version": 2}',
        HEADER + '\n{"kernel": "',
        HEADER + "\n[]",
        HEADER + '\n{"kernel": "k"}',
        "\x00\x01",
    ],
)
def test_a_file_that_is_no_database_is_an_error_and_is_left_alone(text, tmp_path):
    path = tmp_path / "tuning.jsonl"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"^\[tuned\] this file is not a database") as caught, tuned(path):
        raise AssertionError
    assert str(path) in str(caught.value)
    with pytest.raises(ArgumentError, match=r"^\[tune\] this file is not a database"):
        tune(convolution, X, W, database=path)
    assert path.read_text() == text
    assert ACTIVE.database is None


def test_a_record_with_a_wrong_value_is_an_error(record, tmp_path):
    path = tmp_path / "tuning.jsonl"
    for changed in ({"after": -1.0}, {"trials": "many"}, {"schedule": None}):
        path.write_text(HEADER + "\n" + json.dumps(asdict(record) | changed) + "\n")
        with pytest.raises(ArgumentError, match="line 2 has a wrong '" + next(iter(changed))), tuned(path):
            raise AssertionError


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tvm": "0.1"}, "it is from TVM 0.1"),
        ({"code": "0" * 64}, "the kernel was written differently then"),
        ({"schedule": '[[["GetSBlock",[],["none","main"],["b0"]]],[]]'}, "the schedule does not fit the kernel"),
        ({"schedule": "[]"}, "the schedule does not fit the kernel"),
    ],
)
def test_a_record_of_something_else_is_passed_over_with_a_warning(record, changed, reason):
    with using(Database([replace(record, **changed)])), pytest.warns(PerformanceWarning, match=reason):
        compiled = jit(convolution).lower(X, W).compile()
    assert rules(compiled) == ["window"]


def test_records_of_other_targets_say_nothing(record):
    with using(Database([replace(record, target="another")])), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rules(jit(convolution).lower(X, W).compile()) == ["window"]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_mistakes_are_explained(tmp_path):
    path = tmp_path / "tuning.jsonl"
    with pytest.raises(ArgumentError, match=r"\[tune\] trials must be a positive integer, got 0"):
        tune(convolution, X, W, database=path, trials=0)
    with pytest.raises(ArgumentError, match=r"\[tune\] seconds must be positive, got -1"):
        tune(convolution, X, W, database=path, seconds=-1)
    for wrong in ("window", ("windows",)):
        with pytest.raises(ArgumentError, match=r"\[tune\] rules must be names of rules.* Try some of fallback"):
            tune(convolution, X, W, database=path, rules=wrong)
    with pytest.raises(TargetError, match=r"\[tune\] kernels are tuned on CPUs only, got cuda"):
        tune(convolution, X, W, database=path, target={"kind": "cuda", "arch": "sm_90"})
    with pytest.raises(ArgumentError, match=r"\[tuned\] the database cannot be read"), tuned(path):
        raise AssertionError
