"""Comparing the signatures of functions with those of JAX's functions of the same names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from inspect import Parameter
from types import ModuleType
from typing import Any

#: Parameters of JAX that no function has here, and why.
WITHOUT = {
    "out_sharding": "there is no sharding",
    "sharding": "there is no sharding",
    "accuracy": "XLA's choice between implementations of a function; there is one of each",
    "_dot_general": "private",
    "_split_transpose": "private",
}


def shared(theirs: ModuleType, ours: ModuleType) -> Iterator[str]:
    """The public names of functions in both modules."""
    for name in dir(theirs):
        if name.startswith("_") or not callable(getattr(theirs, name)) or not hasattr(ours, name):
            continue
        if not isinstance(getattr(theirs, name), type) and not isinstance(getattr(ours, name), type):
            yield name


def differences(theirs: Any, ours: Any, without: Mapping[str, str] = WITHOUT) -> list[str]:
    """The calls that the signature of JAX's function allows, and ours does not."""
    try:
        theirs = list(inspect.signature(theirs).parameters.values())
    except ValueError:
        return []
    ours = list(inspect.signature(ours).parameters.values())
    if [p.name for p in theirs] == ["args", "out", "where"]:  # a ufunc, which says how many arguments there are itself
        theirs = []
    if all(p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for p in theirs):
        return []  # it says nothing
    theirs = [p for p in theirs if p.name not in without]
    named = {p.name: p for p in ours if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    positional = [p for p in ours if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    kinds = {p.kind for p in ours}
    found = []
    for place, p in enumerate(theirs):
        if p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            if p.kind not in kinds:
                found.append(f"{p} is missing")
            continue
        if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            same = place < len(positional) and (p.kind == Parameter.POSITIONAL_ONLY or positional[place].name == p.name)
            if not same and Parameter.VAR_POSITIONAL not in kinds:
                found.append(f"{p.name} is not the parameter at position {place}")
        if p.kind != Parameter.POSITIONAL_ONLY and p.name not in named:
            found.append(f"{p.name} is not a keyword")
        mine = named.get(p.name) or (positional[place] if place < len(positional) else None)
        if p.default is not Parameter.empty and mine is not None and mine.default is Parameter.empty:
            found.append(f"{p.name} has no default")
    known = {p.name for p in theirs}
    required = [
        p.name
        for place, p in enumerate(positional)
        if p.default is Parameter.empty and place >= sum(q.kind < Parameter.VAR_POSITIONAL for q in theirs) and theirs
    ]
    found += [f"{name} is required" for name in required if name not in known]
    return found
