"""The reference pages: every public name is on one of them, once."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def documented() -> Counter[tuple[str, str]]:
    """How often each name of each module is in a ``members`` fence."""
    names = Counter()
    for page in REFERENCE.rglob("*.md"):
        for module, body in re.findall(r"^```\{members\} (\S+)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.M):
            heads = [line.partition(":")[0] for line in body.splitlines()]
            names.update((module, name) for head in heads for name in head.split())
    return names


DOCUMENTED = documented()
TEXT = "\n".join(page.read_text() for page in REFERENCE.rglob("*.md"))
AUTOMODULES = re.findall(r"^\.\. automodule:: (\S+)$", TEXT, flags=re.M)
SECOND_NAMES = [
    "nn.initializers",
    "optim.losses",
    "optim.microbatching",
    "optim.schedules",
    "optim.tree_utils",
    "typing",
]
MODULES = sorted({*AUTOMODULES, *(f"tvmfun.{name}" for name in SECOND_NAMES)})
# The fence of an object under one of its names documents it.
OBJECTS = {id(getattr(import_module(module), name, None)) for module, name in DOCUMENTED}


def public(module: ModuleType) -> dict[str, Any]:
    """The functions, classes and values of a module without its underscores and submodules."""
    if hasattr(module, "__all__"):
        names = module.__all__
    else:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "").startswith("tvmfun")]
    values = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {name: value for name, value in values.items() if not inspect.ismodule(value)}


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_on_a_page(name: str):
    values = public(import_module(name))
    missing = {key: value for key, value in values.items() if (name, key) not in DOCUMENTED}
    missing = {key: value for key, value in missing.items() if id(value) not in OBJECTS}
    # A sentence is enough for constants, types and names of NumPy.
    assert not [key for key, value in missing.items() if inspect.isfunction(value) or not is_mentioned(key)]


def is_mentioned(name: str) -> bool:
    return re.search(rf"`{name}(?:\[\.\.\.\])?`", TEXT) is not None


def test_pages_name_what_there_is():
    unknown = [f"{module}.{name}" for module, name in DOCUMENTED if not hasattr(import_module(module), name)]
    assert not unknown


def test_names_are_on_one_page():
    assert [name for name, count in DOCUMENTED.items() if count > 1] == []


def test_modules_are_on_one_page():
    assert [name for name, count in Counter(AUTOMODULES).items() if count > 1] == []


@pytest.mark.parametrize("name", MODULES)
def test_submodules_are_mentioned(name: str):
    module = import_module(name)
    submodules = [key for key in getattr(module, "__all__", ()) if inspect.ismodule(getattr(module, key))]
    parts = [re.escape(f"{name}.{key}".removeprefix("tvmfun.")) for key in submodules]
    assert not [part for part in parts if not re.search(rf"(`|tvmfun\.){part}\b", TEXT)]
