"""Each argument is explained once: in the ``Args`` of its function, or of one that these refer to."""

import inspect
import re

import pytest

from tvmfun import optim

FUNCTIONS = {
    f"{prefix}{name}": value
    for prefix, module in (("contrib.", optim.contrib), ("", optim))
    for name, value in vars(module).items()
    if name in module.__all__ and inspect.isfunction(value)
}
REFERENCE = re.compile(r"^(?:Args|Other arguments): as (.*)\.$", re.MULTILINE)


def referred(name):
    """The functions that a docstring refers to for its arguments, by their keys in ``FUNCTIONS``."""
    texts = REFERENCE.findall(inspect.getdoc(FUNCTIONS[name]) or "")
    targets = [target for text in texts for target in re.findall(r":func:`([\w.]+)`", text)]
    local = name.startswith("contrib.")
    return [t.removeprefix("tvmfun.optim.") if "." in t or not local else f"contrib.{t}" for t in targets]


def explained(name):
    """The parameters that the ``Args`` of a function explain, and those that they refer to."""
    section = re.search(r"^Args:\n((?: {4}.*\n|\n)+)", (inspect.getdoc(FUNCTIONS[name]) or "") + "\n", re.MULTILINE)
    entries = re.findall(r"^ {4}\*{0,2}(\w+): ", section[1], re.MULTILINE) if section else []
    parameters = set(inspect.signature(FUNCTIONS[name]).parameters)
    assert set(entries) <= parameters, f"{name} has no such argument"
    return {*entries, *(set().union(*map(explained, referred(name))) & parameters)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_explained(name):
    assert explained(name) == set(inspect.signature(FUNCTIONS[name]).parameters)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if referred(name)])
def test_arguments_explained_elsewhere_are_the_same(name):
    docstring = inspect.getdoc(FUNCTIONS[name]) or ""
    ours = inspect.signature(FUNCTIONS[name]).parameters
    others = [inspect.signature(FUNCTIONS[other]).parameters for other in reversed(referred(name))]
    theirs = {k: parameter for parameters in others for k, parameter in parameters.items()}
    inherited = [k for k in ours if not re.search(rf"^ {{4}}\*{{0,2}}{k}: ", docstring, re.MULTILINE)]
    assert inherited, f"{name} needs no reference"
    for k in inherited:
        assert ours[k].annotation == theirs[k].annotation, k
    if "\nArgs: as " in docstring and len(referred(name)) == 1:  # all of one function
        assert {k: ours[k].default for k in inherited} == {k: theirs[k].default for k in inherited}
