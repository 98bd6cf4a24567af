"""Programs and compiled functions as pickles, read in this process and in another."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support import exported

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoint, lax, random
from tvmfun.core.op import REGISTRY
from tvmfun.errors import ProgramError

SPEC = tvmfun.ShapeDtype


def again(value):
    return pickle.loads(pickle.dumps(value))


def test_a_training_step():
    state = tvmfun.eval_shape(exported.start, random.key(0))
    program = tvmfun.trace(exported.train_step)(state, *exported.batch())
    loaded = again(program).verify()
    assert (loaded.text, loaded.in_tree, loaded.out_tree) == (program.text, program.in_tree, program.out_tree)
    lowered = tvmfun.jit(exported.train_step, donate_argnums=0).lower(state, *exported.batch())
    again_lowered = again(lowered)
    assert (again_lowered.as_text(), again_lowered.donated) == (lowered.as_text(), lowered.donated)
    assert str(again_lowered.target) == str(lowered.target)


READ = """
import pickle, sys
import numpy as np
compiled, arguments = pickle.load(sys.stdin.buffer)
pickle.dump(compiled(*arguments), sys.stdout.buffer)
"""


@pytest.mark.slow
def test_another_process():
    state = tvmfun.jit(exported.start)(random.key(0))
    compiled = tvmfun.jit(exported.train_step, donate_argnums=0).lower(state, *exported.batch()).compile()
    content = pickle.dumps((compiled, (state, *exported.batch())))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run([sys.executable, "-c", READ], input=content, capture_output=True, env=environment)
    assert process.returncode == 0, process.stderr.decode()
    assert exported.bits(pickle.loads(process.stdout)) == exported.bits(compiled(state, *exported.batch()))


def test_captured_arrays_and_nested_programs():
    table = tnp.arange(12.0).reshape(3, 4)
    layer = checkpoint(lambda c, i: tnp.tanh(c @ table[:, :3] + i))
    function = lambda x: lax.fori_loop(0, 4, lambda i, c: layer(c, i), x)
    program = tvmfun.trace(tvmfun.grad(lambda x: function(x).sum()))(SPEC((3,), "float32"))
    loaded, x = again(program), np.ones(3, "float32")
    assert loaded.text == program.text
    assert [np.asarray(array).tolist() for array in loaded.captured] == [table.tolist()] * len(program.captured)
    assert np.asarray(loaded(x)).tobytes() == np.asarray(program(x)).tobytes()
    assert (
        again(np.asarray(tvmfun.jit(function)(x))).tolist() == np.asarray(again(tvmfun.trace(function)(x))(x)).tolist()
    )


def test_dynamic_sizes():
    program = tvmfun.jit(lambda x: x[1:] * 2, dynamic_shapes=[{0: "n"}]).lower(np.ones(5, "float32")).program
    assert again(program).text == program.text
    assert again(program)(np.ones(7, "float32")).shape == (6,)


def test_custom_derivatives_are_refused():
    square = tvmfun.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, g: (3 * g * x,))
    program = tvmfun.trace(square)(1.0)
    with pytest.raises(ProgramError, match="custom derivative cannot be pickled"):
        pickle.dumps(program)
    gradient = tvmfun.trace(tvmfun.grad(square))(1.0)
    assert float(again(gradient)(2.0)) == 6.0


def test_ops_of_other_versions(monkeypatch):
    program = tvmfun.trace(tnp.sin)(1.0)
    content = pickle.dumps(program)
    assert again(REGISTRY["sin"]) is REGISTRY["sin"]
    with pytest.raises(ProgramError, match="an op must be registered, got sin"):
        pickle.dumps(replace(REGISTRY["sin"]))
    monkeypatch.delitem(REGISTRY, "sin")
    with pytest.raises(ProgramError, match="there is no op of this name, got sin"):
        pickle.loads(content)
