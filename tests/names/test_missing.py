"""A name that a module or an object does not have: the message says where it is, or why there is none."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import subprocess
import sys
from operator import attrgetter

import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, names, nn, optim, random
from tvmfun.names import jax_names, pytorch_names

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
    ("nn", "Module"): r"\[nn\] there is no 'Module'\. Try a frozen dataclass",
    ("nn", "ReLU"): r"Try tvmfun\.nn\.relu\.",
    ("nn", "Dense"): r"Try tvmfun\.nn\.Linear\.",
    ("nn", "CrossEntropyLoss"): r"Try tvmfun\.nn\.losses\.cross_entropy\.",
    ("optim", "AdamW"): r"Try tvmfun\.optim\.adamw\.",
    ("optim", "zero_grad"): r"because gradients are results",
    ("nn", "quantized"): r"because quantization is array code: tvmfun\.numpy\.clip",
    ("numpy", "fake_quantize_per_tensor_affine"): r"because quantization is array code",
    ("numpy", "cat"): r"Try tvmfun\.numpy\.concatenate\.",
    ("random", "randn"): r"Try tvmfun\.random\.normal\(key, shape\)\.",
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


def test_scipy_is_imported_at_its_first_use():
    code = "import sys, tvmfun; assert 'tvmfun.scipy' not in sys.modules; print(tvmfun.scipy.special.expit(0.0))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "0.5"
    assert "scipy" in dir(tvmfun) and hasattr(tvmfun, "scipy")


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


ATTRIBUTES = {
    ("array", "backward"): r"\[Array\] there is no attribute 'backward'\. Try tvmfun\.grad\(loss_fn\)\(params\)",
    ("array", "unsqueeze"): r"Try tvmfun\.numpy\.expand_dims\.",
    ("array", "exp"): r"Try tvmfun\.numpy\.exp\.",
    ("array", "softmax"): r"Try tvmfun\.nn\.functional\.softmax\.",
    ("array", "norm"): r"Try tvmfun\.numpy\.linalg\.norm\.",
    ("array", "add_"): r"because arrays are immutable\. Try tvmfun\.numpy\.add, which returns a new one\.",
    ("array", "zero_"): r"because arrays are immutable\. Try x\.at\[index\]\.set\(y\), which",
    ("array", "sharding"): r"because a program runs on one device",
    ("array", "xyzzy"): r"\[Array\] there is no attribute 'xyzzy'\. Try a function of tvmfun\.numpy\.",
    ("layer", "parameters"): r"\[Linear\] .*Try tvmfun\.tree\.leaves\(model\)\.",
    ("layer", "xyzzy"): r"Try docs/from_pytorch\.md",
    ("optimizer", "step"): r"Try updates, opt_state = optimizer\.update\(grads, opt_state, params\)",
    ("optimizer", "zero_grad"): r"because gradients are results",
    ("compiled", "export"): r"\[jit\] .*Try f\.lower\(\*args\)\.compile\(\)\.export\(path\)\.",
    ("compiled", "xyzzy"): r"Try f\.lower\(\*args\), or f\.__wrapped__\.",
}
OBJECTS = {
    "array": lambda: tnp.ones(2),
    "layer": lambda: nn.Linear(2, 3, key=random.key(0)),
    "optimizer": lambda: optim.adam(0.1),
    "compiled": lambda: tvmfun.jit(tnp.sin),
}


@pytest.mark.parametrize(("kind", "name"), ATTRIBUTES)
def test_attributes(kind, name):
    with pytest.raises(names.MissingAttributeError, match=ATTRIBUTES[kind, name]) as error:
        getattr(OBJECTS[kind](), name)
    for other in (copy.copy(error.value), pickle.loads(pickle.dumps(error.value))):
        assert str(other) == str(error.value)


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_are_copied_and_pickled_as_ever(kind):
    one = OBJECTS[kind]()
    assert not hasattr(one, "xyzzy") and not hasattr(one, "__xyzzy__") and not hasattr(one, "_xyzzy")
    copies = [copy.copy(one), copy.deepcopy(one)]
    if kind != "optimizer":  # whose functions are closures
        copies.append(pickle.loads(pickle.dumps(one)))
    for other in copies:
        assert type(other) is type(one)


def test_a_layer_of_ones_own_may_have_other_attributes():
    class Own(nn.Linear):
        def __getattr__(self, name):
            return f"the {name}"

    assert Own(2, 3, key=random.key(0)).parameters == "the parameters"


def suggestions():
    tables = [
        jax_names.RENAMED,
        pytorch_names.RENAMED,
        pytorch_names.OF_TENSORS,
        pytorch_names.OF_MODULES,
        pytorch_names.OF_OPTIMIZERS,
    ]
    return sorted(
        {path for table in tables for text in table.values() for path in re.findall(r"tvmfun(?:\.\w+)+", text)}
    )


@pytest.mark.parametrize("path", suggestions())
def test_what_is_suggested_exists(path):
    module = max((one for one in names.MODULES if path.startswith(f"{one}.")), key=len)
    assert attrgetter(path.removeprefix(f"{module}."))(importlib.import_module(module))


def test_no_name_of_another_library_hides_one_of_ours():
    allowed = {
        "kl_div",
        "load",
        "save",
        "shuffle",
    }  # of modules with which those of PyTorch and NumPy have little to do
    ours = {name for module in names.MODULES for name in getattr(importlib.import_module(module), "__all__", ())}
    assert (jax_names.RENAMED.keys() | pytorch_names.RENAMED.keys()) & ours == allowed


def test_the_message_is_made_when_it_is_shown(monkeypatch):
    monkeypatch.setattr(names.modules, "explained", lambda *args: 1 / 0)
    assert not hasattr(tnp, "softmax") and not hasattr(lax, "xyz") and not hasattr(random, "xyz")
