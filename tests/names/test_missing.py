"""A name that a module does not have: the message says where it is, or why there is none."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, names, random

MESSAGES = {
    ("numpy", "softmax"): r"\[numpy\] there is no 'softmax' here\. Try tvmfun\.nn\.softmax\.",
    ("numpy", "cummax"): r"Try tvmfun\.lax\.cummax\.",
    ("numpy", "concatnate"): r"Try tvmfun\.numpy\.concatenate\.",
    ("numpy", "fft"): r"about complex numbers",
    ("numpy", "complex64"): r"because TVM has no complex numbers",
    ("numpy", "float8_e4m3fn"): r"no float of less than 16",
    ("numpy.linalg", "eigvals"): r"\[numpy\.linalg\] .* complex numbers",
    ("lax", "add_p"): r"because it is about the primitives of JAX's",
    ("numpy", "sofmax"): r"Try tvmfun\.nn\.softmax\.",
    ("numpy", "trapz"): r"Try tvmfun\.numpy\.trapezoid\.",
    ("random", "shufle"): r"Try tvmfun",
    ("nn", "scaled_dot_general"): r"eight bits and less",
    ("lax", "einsum"): r"Try tvmfun\.numpy\.einsum\.",
    ("lax.linalg", "norm"): r"Try tvmfun\.numpy\.linalg\.norm\.",
    ("random", "unifrom"): r"Try tvmfun\.random\.uniform\.",
    ("nn", "adamw"): r"Try tvmfun\.optim\.adamw\.",
    ("optim", "xyzzy_quux"): r"\[optim\] there is no 'xyzzy_quux', nor in any other public module\. Try dir",
}


@pytest.mark.parametrize(("module", "name"), MESSAGES)
def test_messages(module, name):
    found = importlib.import_module(f"tvmfun.{module}")
    with pytest.raises(AttributeError, match=MESSAGES[module, name]) as error:
        getattr(found, name)
    for other in (copy.copy(error.value), pickle.loads(pickle.dumps(error.value))):
        assert str(other) == str(error.value)


@pytest.mark.parametrize("name", ["tvmfun", *names.MODULES])
def test_every_public_module_answers(name):
    try:
        module = importlib.import_module(name)
    except ImportError:
        pytest.skip("not there")
    with pytest.raises(names.MissingNameError):
        _ = module.no_such_name_at_all
    assert not hasattr(module, "no_such_name_at_all") and getattr(module, "missing", None) is None
    with pytest.raises(AttributeError, match="has no attribute '__no_such_name__'$"):
        _ = module.__no_such_name__


def test_submodules_are_imported_as_ever():
    from tvmfun import metrics

    assert metrics is tvmfun.metrics


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("from tvmfun.numpy import softmax", r"\[numpy\] there is no 'softmax' here. Try tvmfun.nn.softmax."),
        ("from tvmfun import pmap", r"one device"),
        ("from tvmfun import config", r"no global settings"),
        ("from tvmfun.lax import scan, scann", r"Try tvmfun.lax.scan"),
        ("from tvmfun.errors import TracerBoolConversionError", r"Try tvmfun.errors.ConcretizationError"),
        ("from tvmfun.random import _nothing", r"cannot import name '_nothing'"),
    ],
)
def test_an_import_says_it_too(statement, message):
    with pytest.raises(ImportError, match=message):
        exec(statement)


def test_the_message_is_made_when_it_is_shown(monkeypatch):
    monkeypatch.setattr(names, "explained", lambda *args: 1 / 0)
    assert not hasattr(tnp, "softmax") and not hasattr(lax, "xyz") and not hasattr(random, "xyz")
