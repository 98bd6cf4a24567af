"""Public functions with wrong arguments, from fixed seeds, in a process of their own, so that crashes are seen."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tvmfun
from tvmfun import lax, nn, optim, tree
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, ArgumentTypeError, ConcretizationError, DtypeError, ShapeError, TreeError

SCRIPT = Path(__file__).parent / "support" / "wrong_calls.py"
X = np.ones((2, 3), "float32")


def run(seeds: str, count: int, how: str, directory: Path) -> list[dict]:
    command = [sys.executable, str(SCRIPT), seeds, str(count), how]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1200)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and "done" in lines[-1], f"{lines[-1:]} ended the process: {done.stderr[-2000:]}"
    assert len(lines) > 1000 * count * len(seeds.split(","))
    return [line for line in lines if "raw" in line]


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "count", "how"), [("0", 1, "compiled"), ("1,2", 3, "evaluated")])
def test_wrong_calls_raise_errors_of_ours(seeds, count, how, tmp_path):
    assert run(seeds, count, how, tmp_path) == []


@dataclasses.dataclass
class Unregistered:
    w: object


@tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
    activation: object = "relu"


def updated(optimizer, updates, params, given=None):
    state = optimizer.init(params)
    return optimizer.update(updates, state if given is None else given, params)


W = {"w": X, "b": {"c": X}}
MESSAGES = {
    "an array as an option of a comparison of trees": (
        ArgumentError,
        r"^\[check_same_structure\] exact must be True or False, got ndarray",
        lambda: tree.check_same_structure("f", X, X, exact=X),
    ),
    "another function's name": (
        ShapeError,
        r"^\[softmax\] an array with 2 axes has no such axis, got axis 5",
        lambda: nn.functional.softmax(X, axis=5),
    ),
    "a parameter": (
        ArgumentError,
        r"^\[median\] keepdims must be bool, got float32\[2,3\]\. Try help\(median\)",
        lambda: tnp.median(X, keepdims=X),
    ),
    "no transformation": (
        ArgumentTypeError,
        r"^\[chain\] transforms must be GradientTransformation, got 0\.5",
        lambda: optim.chain(optim.sgd(0.1), 0.5),
    ),
    "weights": (
        ShapeError,
        r"^\[layer_norm\] weight and bias must have the shape \(3,\), got \(5,\)",
        lambda: nn.functional.layer_norm(X, 3, np.ones(5)),
    ),
    "weights of another kind": (
        ArgumentTypeError,
        r"^\[layer_norm\] normalized_shape must be int \| Sequence\[int\], got 0\.5",
        lambda: nn.functional.layer_norm(X, 0.5),
    ),
    "no function": (ArgumentTypeError, r"^\[tree\.map\] f must be Callable", lambda: tree.map(3, {"a": 1})),
    "trees": (
        TreeError,
        r"^\[tree\.map\] tree 2 must have the tree structure of tree 1: .* Try adding \['a'\]",
        lambda: tree.map(lambda a, b: a, {"a": 1}, {"b": 1}),
    ),
    "updates of another tree": (
        TreeError,
        r"^\[adam\.update\] the updates must have the tree structure of the parameters: .* at \['b'\], got .*",
        lambda: updated(optim.adam(0.1), {"w": X, "b": {"d": X}}, W),
    ),
    "updates of other shapes": (
        ShapeError,
        r"^\[adam\.update\] the update at \['b'\]\['c'\] must have the shape \(2, 3\) of its parameter, got \(2,\)",
        lambda: updated(optim.adam(0.1), {"w": X, "b": {"c": X[:, 0]}}, W),
    ),
    "a state of other parameters": (
        TreeError,
        r"^\[adam\.update\] the state must have .* at \[0\]\.mu, got dict with the keys 'v'",
        lambda: updated(optim.adam(0.1), W, W, optim.adam(0.1).init({"v": X})),
    ),
    "a schedule's argument": (
        ArgumentError,
        r"^\[exponential_decay\] transition_steps must be int, got float32\[2,3\]",
        lambda: optim.exponential_decay(0.5, X, 5),
    ),
    "trees of branches": (
        TreeError,
        r"^\[cond\] the result of true_fun must have the tree structure of the result of false_fun",
        lambda: lax.cond(True, lambda x: x, lambda x: (x, x), 1.0),
    ),
    "shapes of branches": (
        ShapeError,
        r"^\[cond\] .* one shape, got float32\[\] from false_fun, float32\[2,3\] from true_fun",
        lambda: lax.cond(True, lambda x: x, lambda x: x[0, 0], X),
    ),
    "dtypes of branches": (
        DtypeError,
        r"^\[switch\] .* one dtype, got float32\[2,3\] from branches\[0\], bool\[2,3\] from branches\[1\]",
        lambda: lax.switch(0, [lambda x: x, lambda x: x > 0], X),
    ),
    "an unregistered dataclass": (
        DtypeError,
        r"^\[\w+\] argument 0 is neither .*, got Unregistered\. Try tvmfun\.tree\.register_dataclass for Unregistered",
        lambda: tvmfun.jit(tnp.sum)(Unregistered(X)),
    ),
    "an unregistered dataclass as a carry": (
        DtypeError,
        r"^\[scan\] .* got Unregistered\. Try tvmfun\.tree\.register_dataclass for Unregistered",
        lambda: lax.scan(lambda c, x: (c, x), Unregistered(X), X),
    ),
    "a field that is not an array": (
        DtypeError,
        r"^\[<lambda>\] argument 0\.activation is neither .* got str 'relu'\. Try field\(metadata=\{.static.: True\}\)",
        lambda: tvmfun.jit(lambda layer: layer.w)(Layer(X)),
    ),
    "an annotated argument that cannot become an array": (
        DtypeError,
        r"^\[full_like\] fill_value must be ArrayLike, got 'x'",
        lambda: tvmfun.optim.tree.full_like(W, "x"),
    ),
    "an annotated dtype": (
        DtypeError,
        r"^\[adam\] the dtype is not supported, got 3\. Try one of bool,",
        lambda: tvmfun.optim.adam(0.1, mu_dtype=3),
    ),
}


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_messages(case):
    kind, message, call = case
    with pytest.raises(kind, match=message):
        call()


def test_errors_of_the_user_stay_as_they_are():
    def fails(*leaves):
        raise ValueError("mine")

    for call in (lambda: tree.map(fails, W), lambda: lax.scan(fails, 0.0, X), lambda: lax.cond(True, fails, fails, 1)):
        with pytest.raises(ValueError, match="^mine$"):
            call()
    with pytest.raises(ShapeError, match=r"^\[max\]"):
        tree.map(lambda x: tnp.max(x, axis=7), W)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.functional.softmax(), r"^\[softmax\] the argument x= is missing, got none\. Try help\(softmax\)"),
        (lambda: nn.functional.softmax(X, dim=1), r"^\[softmax\] there is no argument dim=, got .*Try axis=\."),
        (lambda: tnp.sum(X, axes=0), r"^\[sum\] there is no argument axes=, got .*Try axis=\."),
        (lambda: tnp.ones(3).sum(dim=0), r"^\[sum\] there is no argument dim=, got .*Try axis=\."),
        (lambda: tnp.sum(X, weight=1), r"^\[sum\] there is no argument weight=, .*Try help\(sum\)\."),
        (lambda: nn.Linear(in_features=2, out=3, key=0), r"Try out_features=\."),
        (lambda: optim.adam(lr=0.1), r"^\[adam\] there is no argument lr=, got lr=0\.1\. Try learning_rate=\."),
        (lambda: optim.adam(0.1, betas=(0, 0)), r"Try b1= and b2=\."),
        (lambda: optim.adam(0.1, weight_decay=1), r"Try tvmfun\.optim\.chain"),
        (lambda: nn.Dropout(p=0.5), r"^\[Dropout\] there is no argument p=, got p=0\.5\. Try rate=\."),
        (lambda: nn.BatchNorm(3)(X), r"^\[BatchNorm\] the argument state= is missing, got float32\[2,3\]\."),
        (lambda: nn.Linear(3, 4), r"^\[Linear\] the argument key= is missing, got 3, 4\."),
        (
            lambda: nn.Conv2d(3, 4, 3, 2, 1),
            r"^\[Conv2d\] too many .* without a name, .*Try stride=, padding=, dilation=\.",
        ),
    ],
)
def test_calls_that_do_not_fit_a_signature(call, message):
    with pytest.raises(ArgumentTypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "name", "parameter"),
    [
        (lambda n: lax.top_k(X, n), "top_k", "k"),
        (lambda n: tnp.linspace(0, 1, n), "linspace", "num"),
        (lambda n: nn.one_hot(X.astype("int32"), n), "one_hot", "num_classes"),
    ],
)
def test_numbers_that_are_being_traced(call, name, parameter):
    """The error names the function that was called, not a conversion inside of it."""
    message = rf"^\[{name}\] {parameter} must be a Python number, .*got int32\[\].*Try static_argnums of jit"
    for transform in (tvmfun.jit, lambda f: tvmfun.vmap(f, axis_size=2, in_axes=None)):
        with pytest.raises(ConcretizationError, match=message):
            transform(call)(np.asarray(1, "int32"))


def test_a_condition_of_the_user_is_not_an_argument():
    with pytest.raises(ConcretizationError, match=r"^\[bool\(\)\] .*traced in 'choose'"):

        @tvmfun.jit
        def choose(x):
            return tree.map(lambda y: y if y > 0 else -y, x)

        choose(1.0)


def test_arguments_that_an_inner_function_needs():
    """The optimizer's own name, not that of the part that takes them."""
    optimizer = optim.lbfgs()
    state = optimizer.init(X)
    with pytest.raises(
        ArgumentTypeError, match=r"^\[lbfgs.update\] the arguments value=, grad=, value_fn= are missing, got"
    ):
        optimizer.update(X, state, X)


def two(a, b):
    return a


@pytest.mark.parametrize(
    "call",
    [
        lambda: tree.map(two, X),
        lambda: lax.cond(True, two, two, X),
        lambda: lax.fori_loop(0, 2, lambda c: c, X),
        lambda: nn.Sequential(two)(X),
        lambda: optim.sgd(lambda: 0.1).update(X, optim.sgd(lambda: 0.1).init(X)),
    ],
)
def test_functions_of_the_user_that_take_other_arguments(call):
    """The error has the name of the function that lacks one, not of the one that called it."""
    with pytest.raises(TypeError, match=r"(two|<lambda>)\(\) (missing 1 required|takes [01] positional)"):
        call()
