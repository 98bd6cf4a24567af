"""The log of compilations."""

import logging
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.lower import compile_log

STAGES = r"\(fusion \d+\.\d\d, schedules of 2 kernels \d+\.\d\d, lowering \d+\.\d\d, machine code \d+\.\d\d\)"


def centered(x):
    return tnp.exp(x - tnp.mean(x, axis=0)) + 17.25


def test_a_compilation_is_logged_once_with_its_stages(caplog, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    step, x = tvmfun.jit(centered), np.ones((5, 7), "float32")
    with caplog.at_level(logging.INFO, "tvmfun.compile"):
        step(x)
        step(x)
    first, last = caplog.messages
    assert first == "compiling centered"
    assert re.fullmatch(rf"compiled centered in \d+\.\d\d s {STAGES}", last)
    total, *parts = map(float, re.findall(r"(\d+\.\d\d)(?= s|[,)])", last))
    assert sum(parts) <= total + 0.04


def test_nothing_is_logged_unless_it_is_asked_for(caplog, capfd):
    tvmfun.jit(lambda x: centered(x) * 3)(np.ones((5, 7), "float32"))
    assert caplog.messages == [] and capfd.readouterr() == ("", "")
    assert compile_log._STAGES.seconds is None


def test_a_compilation_that_fails(caplog):
    caplog.set_level(logging.INFO, "tvmfun.compile")
    with pytest.raises(RuntimeError), compile_log.compiling("broken"), compile_log.stage("fusion"):
        raise RuntimeError
    assert caplog.messages == ["compiling broken"] and compile_log._STAGES.seconds is None


@pytest.mark.slow
@pytest.mark.parametrize(("value", "shown"), [("compile", "tvmfun: compiled"), ("all", "ArgumentError: [TVMFUN_LOG]")])
def test_the_variable(value, shown):
    code = "import numpy, tvmfun; tvmfun.jit(lambda x: x * 2)(numpy.ones(3, 'float32'))"
    environment = {**os.environ, "TVMFUN_LOG": value, "TVMFUN_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert shown in done.stderr and done.stdout == ""
