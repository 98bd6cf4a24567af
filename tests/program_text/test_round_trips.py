"""Programs and lowered functions saved as text and read again, here and in another process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import OrderedDict, deque
from typing import Any

import mnist
import numpy as np
import pytest
from op_cases import CASES, Case
from op_cases.dynamic import can_be_dynamic, traced, variants
from support import exported

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Program, checkpoint, lax, nn, optim, random
from tvmfun.core.op import REGISTRY, Op
from tvmfun.core.program import Literal
from tvmfun.errors import DimensionError, ProgramError, ShapeError
from tvmfun.program_text.files import arrays_path
from tvmfun.stages import Lowered

SPEC = tvmfun.ShapeDtype
X = np.linspace(-1, 1, 5, dtype="float32")


@pytest.fixture
def again(tmp_path):
    """Saves a Program, reads it, and checks that everything is the same; returns the one that was read."""

    def run(program: Program, **options: Any) -> Program:
        path = tmp_path / "saved.program"
        program.save(path, **options)
        loaded = Program.load(path)
        if not options:
            assert same(loaded, program)
            assert same(loaded, pickle.loads(pickle.dumps(program)))
        assert arrays_path(path).exists() == bool(program.captured)
        return loaded

    return run


def same(one: Program, other: Program) -> bool:
    fields = "text", "in_tree", "out_tree", "name", "in_avals", "out_avals"
    equal = all(getattr(one, field) == getattr(other, field) for field in fields)
    sources = [[e.source for e in program.equations] for program in (one, other)]
    arrays = [[(x.aval, np.asarray(x).tobytes()) for x in program.captured] for program in (one, other)]
    return equal and sources[0] == sources[1] and arrays[0] == arrays[1]


OPS = [pytest.param(REGISTRY[name], case, id=f"{name}-{i}") for name in CASES for i, case in enumerate(CASES[name])]


@pytest.mark.quick("add-0", "gather-0", "conv-0", "attention-0", "scatter-1", "iota-0")
@pytest.mark.parametrize(("op", "case"), OPS)
def test_every_op(again, op: Op, case: Case):
    again(tvmfun.trace(lambda *arguments: op(*arguments, **case.params))(*case.arguments))


@pytest.mark.quick("reshape-*", "conv-0", "cumsum-0")
@pytest.mark.parametrize(("op", "case"), [p for p in OPS if can_be_dynamic(p.values[1])])
def test_every_op_with_dynamic_sizes(again, op: Op, case: Case):
    programs = []
    for places, params in variants(case):
        try:
            programs.append(traced(op, case, places, params))
        except (ShapeError, DimensionError):
            continue
    if not programs:
        pytest.skip("these axes cannot be dynamic")
    for program in programs:
        again(program)


# -- whole functions ---------------------------------------------------------------------------------------------------


def test_loops_branches_and_closures(again):
    table = tnp.arange(12.0).reshape(3, 4)

    def function(x, n):
        body = lambda i, c: lax.switch(i, [lambda c: c + table[:, 0], tnp.tanh, lambda c: c * 2], c)
        x = lax.fori_loop(0, n, body, x)
        x, rows = lax.scan(lambda c, t: (checkpoint(tnp.sin)(c) + t[0], {"row": c}), x, (table.T[:, :3],))
        return lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5 + 1, x), rows

    program = tvmfun.trace(function)(SPEC((3,), "float32"), 3)
    loaded, x = again(program), np.array([0.5, -1, 2], "float32")
    results = [tvmfun.tree.leaves(one(x, 3)) for one in (program, loaded)]
    assert exported.bits(results[0]) == exported.bits(results[1])
    gradient = tvmfun.trace(tvmfun.vmap(tvmfun.grad(lambda x: function(x, 3)[1]["row"].sum())))(SPEC((2, 3), "float32"))
    again(gradient)
    again(tvmfun.trace(lambda x: tvmfun.jvp(lambda x: function(x, 2)[0], (x,), (x,)))(SPEC((3,), "float32")))


def test_a_training_step(again, tmp_path):
    state = tvmfun.eval_shape(exported.start, random.key(0))
    again(tvmfun.trace(exported.train_step)(state, *exported.batch()))
    lowered = tvmfun.jit(exported.train_step, donate_argnums=0).lower(state, *exported.batch())
    lowered.save(tmp_path / "step.program")
    loaded = Lowered.load(tmp_path / "step.program")
    assert loaded.as_text() == lowered.as_text()
    assert (loaded.donated, str(loaded.target)) == (lowered.donated, str(lowered.target))
    assert Program.load(tmp_path / "step.program").text == lowered.program.text
    with pytest.raises(ProgramError, match=r"\[Lowered.load\].*was not lowered.*Try tvmfun.Program.load"):
        Lowered.load(tmp_path / "saved.program")


TRAIN = """
import sys
import mnist  # the class of the state
import numpy as np
import tvmfun
from support import exported
from tvmfun.stages import Lowered
path, arrays, results = sys.argv[1:]
lowered = Lowered.load(path)
leaves = list(np.load(arrays).values())
(arguments, names) = tvmfun.tree.unflatten(lowered.program.in_tree, leaves)
np.savez(results, *map(np.asarray, tvmfun.tree.leaves(lowered.compile()(*arguments))))
"""


@pytest.mark.slow
def test_mnist_in_another_process(again, tmp_path):
    optimizer = mnist.make_optimizer(1.0, 0.7, 10)
    state = tvmfun.jit(lambda key: mnist.start(optimizer, key))(random.key(0))
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(8, 28, 28, 1)).astype("float32"), rng.integers(0, 10, 8).astype("int32")
    lowered = tvmfun.jit(lambda *args: mnist.train_step(optimizer, *args), donate_argnums=0).lower(state, *batch)
    again(lowered.program, inline=True)
    lowered.save(tmp_path / "step.program")
    np.savez(tmp_path / "arguments.npz", *map(np.asarray, tvmfun.tree.leaves((state, *batch))))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    names = [str(tmp_path / name) for name in ("step.program", "arguments.npz", "results.npz")]
    process = subprocess.run([sys.executable, "-c", TRAIN, *names], capture_output=True, env=environment)
    assert process.returncode == 0, process.stderr.decode()
    expected = tvmfun.tree.leaves(lowered.compile()(state, *batch))
    assert exported.bits(list(np.load(names[2]).values())) == exported.bits(expected)


# -- details -----------------------------------------------------------------------------------------------------------


def test_dynamic_sizes(again):
    n, m = tvmfun.Dim("n", min=4, max=50), tvmfun.Dim("None", min=0)
    function = lambda x, y: (
        tnp.concatenate([x[1:], y, y]).reshape(-1, 1) * (n - 1) // 3,
        lax.fori_loop(0, n // 2, lambda i, c: c + x.sum(), 0.0),
        tnp.zeros((n + 1) // 2 * 3 - n + 1),
    )
    program = tvmfun.trace(function)(SPEC((n,), "float32"), SPEC((m * 2 + 1,), "float32"))
    loaded = again(program)
    assert loaded.sizes["n"].bounds == (4, 50)
    assert [out.shape for out in loaded(X, X[:3])] == [(10, 1), (), (5,)]


def test_scalars(again):
    bits = np.array([0xFFC00001, 0x7FC00000], "uint32").view("float32")
    values = [*bits, *np.array([np.inf, -np.inf, -0.0, 0.1, 1e-45, 3e38], "float32")]
    values += [np.float64(0.1), np.int8(-128), np.uint64(2**64 - 1), np.bool_(True), tvmfun.numpy.bfloat16(0.1)]
    values = [np.asarray(value)[()] for value in values]
    program = tvmfun.trace(lambda: None)()
    program = Program((), (), tuple(map(Literal, values)), program.in_tree, tvmfun.tree.structure(values))
    loaded = again(program)
    literals = [atom.value for atom in loaded.outputs if isinstance(atom, Literal)]
    assert [(value.dtype, value.tobytes()) for value in literals] == [(v.dtype, v.tobytes()) for v in values]


def test_weak_types(again):
    program = again(tvmfun.trace(lambda x, y: x + y)(1.0, SPEC((), "float32", weak=True)))
    assert [aval.weak for aval in program.in_avals] == [True, True]
    narrow = tvmfun.trace(lambda x: program(1.0, 2.0) + x)(SPEC((3,), "bfloat16"))
    assert narrow.out_avals[0].dtype == "bfloat16"
    weak = tvmfun.jit(lambda: 2.0)()
    assert again(tvmfun.trace(lambda x: x * weak)(X)).captured[0].aval == weak.aval


@pytest.mark.parametrize("name", ["main", "<lambda>", "two words", "é", "a\"b'c", "line\nbreak", "", "program"])
def test_names_and_sources(again, name):
    program = tvmfun.trace(lambda x: tnp.sin(x) + 1)(X)
    first, *others = program.equations
    for source in ("", name, "file.py:3 (in a # b)", " space", "tab\t", "'quoted'"):
        equations = first._replace(source=source), *others
        again(Program(program.inputs, equations, program.outputs, program.in_tree, program.out_tree, name=name))


def test_trees(again):
    class_of_model = nn.Sequential(nn.Conv2d(1, 2, 3, key=random.key(0)), tnp.tanh, nn.BatchNorm(2))
    arguments = {"z": X, "a": [X, None, ()], 3: (deque([X], maxlen=2), OrderedDict(b=X, a=X)), "model": class_of_model}
    loaded = again(tvmfun.trace(lambda x, *, scale: {"y": x, "b": scale})(arguments, scale=2.0))
    assert list(loaded(arguments, scale=2.0)) == ["y", "b"]
    state = optim.adam(1e-3).init({"w": X})
    assert type(again(tvmfun.trace(lambda s: s)(state))(state)[0]) is type(state[0])


def test_a_second_save_replaces_the_arrays(tmp_path):
    path = tmp_path / "saved.program"
    for array in (tnp.asarray(X), tnp.asarray(X + 1)):
        tvmfun.trace(array.__add__)(X).save(path)
        assert np.asarray(Program.load(path)(0 * X)).tolist() == array.tolist()


# -- calls with Python functions ---------------------------------------------------------------------------------------


def cubed():
    function = tvmfun.custom_vjp(lambda x: x * x * x)
    function.defvjp(lambda x: (x * x * x, x), lambda x, g: (0 * g * x,))
    return function


def test_custom_derivatives_are_inlined(again, tmp_path):
    program = tvmfun.trace(lambda x: lax.cond(x > 0, cubed(), lambda x: -cubed()(x), x) + cubed()(x))(2.0)
    with pytest.raises(ProgramError, match=r"Python function cannot be saved.*Try save\(path, inline=True\)"):
        program.save(tmp_path / "refused.program")
    assert not (tmp_path / "refused.program").exists()
    loaded = again(program, inline=True)
    assert float(loaded(2.0)) == float(program(2.0)) == 16
    assert float(tvmfun.grad(loaded)(2.0)) == 24
    gradient = again(tvmfun.trace(tvmfun.grad(cubed()))(2.0))
    assert float(gradient(2.0)) == 0


def test_policies(again):
    policies = tvmfun.checkpoint_policies
    function = lambda policy: lambda x: checkpoint(lambda x: tnp.sin(x @ x), policy=policy)(x)
    program = again(tvmfun.trace(function(policies.dots_saveable))(np.eye(3, dtype="float32")))
    assert program.equations[0].params["policy"] is policies.dots_saveable
    named = tvmfun.trace(function(policies.save_only_these_names("a")))(np.eye(3, dtype="float32"))
    assert [e.op.name for e in again(named, inline=True).equations] == ["dot_general", "sin"]


def test_classes_that_cannot_be_found(tmp_path):
    @tvmfun.tree_util.register_pytree_node_class
    class Pair:
        def tree_flatten(self):
            return (X,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls()

    with pytest.raises(ProgramError, match=r"\[Program.save\] .*class that cannot be saved, got .*Pair"):
        tvmfun.trace(lambda x: 1.0)(Pair()).save(tmp_path / "saved.program")
