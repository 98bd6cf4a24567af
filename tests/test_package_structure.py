"""The layout of the source: imports go one way, files are short, and few hooks tie packages together."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: The top-level modules and packages of tvmfun, by layer. What a package imports is in a layer above its own row.
LAYERS = """
    names
    _garbage_collection _tvm counters errors exact_keys executors files
    boundary dtypes llvm_modules
    threads
    key_paths runtime
    tree_difference
    tree
    arguments core tree_flattener tree_util
    dynamic manifest ops reference typing
    checkpoints lower numpy
    execute export flatten_util profiling program_text sparse
    stages transforms
    jit
    checks lax tune
    calibration random resampling
    data image nn
    metrics optim scipy
    interop
    models
    __main__ loops
"""
LAYER = {package: i for i, row in enumerate(LAYERS.strip().splitlines()) for package in row.split()}

MOST_LINES = 600
#: Longer files of tests: tables, and those that have not been split yet.
LONG = {
    "tests/interop/opinfo_table.py",
    "tests/interop/relax_cases.py",
    "tests/op_cases/oracles.py",
}
#: Functions named ``install_*``, by which a package hands its own functions to one that cannot import it.
MOST_HOOKS = 2


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "tvmfun").rglob("*.py"))}


# Parsing them all takes seconds, which not every worker has to spend when it collects tests.
@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, except for definitions' bodies."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.Try):
            yield from at_import(statement.body)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test):
            yield from at_import([*statement.body, *statement.orelse])


def imported(statements: Iterable[ast.AST]) -> set[str]:
    """The modules of tvmfun that these statements import."""
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            full = [f"{statement.module}.{alias.name}" for alias in statement.names]
            names.update(name if name in MODULES else statement.module for name in full)
    return {name for name in names if name in MODULES}


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports when it is imported."""
    return {name: imported(at_import(parsed(name).body)) - {name} for name in MODULES}


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_room_has_a_layer():
    packages = {package(name) for name in MODULES} - {""}
    assert packages == set(LAYER), "give it a row in LAYERS"


def test_rooms_import_rooms_of_lower_layers():
    wrong = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in sorted(others)
        if package(name)
        and package(other)
        and package(name) != package(other)
        and LAYER[package(other)] >= LAYER[package(name)]
    ]
    assert wrong == []


@pytest.mark.parametrize(("name", "other"), [("transforms", "lower"), ("lower", "transforms"), ("core", "execute")])
def test_rooms_that_never_see_each_other(name: str, other: str):
    wrong = [
        module
        for module in MODULES
        if package(module) == name and any(package(one) == other for one in imported(ast.walk(parsed(module))))
    ]
    assert wrong == []


def test_no_import_circle():
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_files_are_short():
    files = [path for folder in ("tvmfun", "tests") for path in (ROOT / folder).rglob("*.py")]
    lines = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in files}
    assert {name: count for name, count in lines.items() if count > MOST_LINES and name not in LONG} == {}


def test_few_hooks():
    functions = (node for name in MODULES for node in ast.walk(parsed(name)) if isinstance(node, ast.FunctionDef))
    hooks = [function.name for function in functions if function.name.startswith("install_")]
    assert len(hooks) <= MOST_HOOKS, hooks
