"""The loop that the examples share."""

import argparse

import numpy as np
import training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.data import ArraySource, batches


def address(array):
    return np.from_dlpack(array.tensor).ctypes.data


def test_a_checkpoint_does_not_move_the_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "peak_flops", lambda: 1.0)
    monkeypatch.setattr(training.curve, "draw", lambda runs, path: None)
    state, addresses = {"table": tnp.zeros((100, 4))}, []

    @tvmfun.jit(donate_argnums=0)
    def step(state, batch):
        return {"table": state["table"].at[batch].add(1.0)}, tnp.sum(batch)

    def evaluate(state):
        addresses.append(address(state["table"]))
        return {"sum": float(tnp.sum(state["table"]))}

    stream = batches(ArraySource(np.arange(8)), 4, epochs=None)
    options = argparse.Namespace(run=tmp_path, resume=False, steps=3, every=1, no_progress=True)
    _, metrics = training.train(training.Task(state, step, stream, evaluate, "rows", 4), options)
    assert metrics == {"sum": 48.0} and len(set(addresses)) == 1
