"""Evaluation of the graphs that PyTorch's tracers write: each node is the call of an ATen operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import random
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ProgramError, TvmfunError
from tvmfun.interop.layouts import ChannelsLast, channels_first
from tvmfun.interop.torch.aten import ASSERTIONS, translation_of
from tvmfun.interop.torch.tensors import dtype_name
from tvmfun.typing import Key

#: Parameters of operators that say where and how memory is allocated.
_MEMORY = ("device", "layout", "memory_format", "non_blocking", "pin_memory", "requires_grad", "generator")


def operator_name(target: Any) -> str:
    """The name of a node's operator, such as ``"add.Tensor"``; that of a Python function otherwise."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return getattr(target, "__name__", str(target))
    name = f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
    return name.removeprefix("aten.")


def _shown(node: Any) -> str:
    """The operator of a node in messages."""
    name = operator_name(node.target)
    return name if name.startswith("prims.") or not is_operator(node.target) else f"aten.{name}"


def is_operator(target: Any) -> bool:
    """Whether a node calls an operator of PyTorch, not a Python function of sizes."""
    return hasattr(target, "_schema")


def line_of(node: Any) -> str:
    """The line of the user's module that a node comes from: the innermost one outside of PyTorch."""
    import torch

    library = torch.__path__[0]
    frames = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)', node.meta.get("stack_trace") or "")
    outside = [frame for frame in frames if not frame[0].startswith((library, "<"))]
    if not (outside or frames):
        return "an unknown line"
    file, number, source = (outside or frames)[-1]
    return f"{file}:{number}: {source.strip()}"


def is_assertion(node: Any) -> bool:
    """Whether a node computes nothing."""
    return is_operator(node.target) and operator_name(node.target).partition(".")[0] in ASSERTIONS


def is_translated(node: Any) -> bool:
    """Whether the table has a row for the operator of a node, or the node needs none."""
    if node.op != "call_function" or not is_operator(node.target):
        return node.op != "call_module"
    return is_assertion(node) or translation_of(operator_name(node.target)) is not None


def needed(graph: Any) -> list[Any]:
    """The nodes that the output depends on, in order."""
    reached: set[Any] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in reached:
            reached.update(node.all_input_nodes, [node])
    return [node for node in graph.nodes if node in reached or node.op == "placeholder"]


def check_translated(nodes: Sequence[Any]) -> None:
    """Raises unless the table has a row for every node.

    Raises:
        ProgramError: with the operators that it lacks, and the line of the first call of each.
    """
    missing: dict[str, Any] = {}
    for node in nodes:
        if not is_translated(node):
            missing.setdefault(operator_name(node.target), node)
    if missing:
        lines = [f"{_shown(node)} at {line_of(node)}" for node in missing.values()]
        hint = "another function there, or a part of the module without it"
        raise ProgramError("from_torch", "an operator has no translation", got="; ".join(lines), hint=hint)


def _lifted(value: Any) -> Any:
    """An argument of a translation: dtypes become names, sizes of arrays stay unchanged."""
    return dtype_name(value) if type(value).__name__ == "dtype" else value


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A list, tuple or slice with a function applied to its items; the function of anything else."""
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, function) for item in value)
    return function(value)


class Graph:
    """A graph as a function of arrays.

    Args:
        module: a ``torch.fx.GraphModule`` of ATen operators without side effects.

    Raises:
        ProgramError: if the table has no translation for an operator.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.nodes = needed(module.graph)
        check_translated(self.nodes)
        random_nodes = [node for node in self.nodes if self._is_random(node)]
        self._numbers = {node: i for i, node in enumerate(random_nodes)}

    @staticmethod
    def _is_random(node: Any) -> bool:
        row = translation_of(operator_name(node.target)) if is_operator(node.target) else None
        return row is not None and row.random

    def __call__(self, inputs: Sequence[Any], key: Key | None = None) -> Any:
        """The value of the output node.

        Args:
            inputs: a value for each placeholder.
            key: a key for the random operators; each gets one of its own.
        """
        from torch.fx import Node

        values: dict[Any, Any] = {}
        arriving = iter(inputs)

        def read(item: Any) -> Any:
            return values[item] if isinstance(item, Node) else item

        for node in self.nodes:
            if node.op == "placeholder":
                values[node] = next(arriving)
            elif node.op == "get_attr":
                values[node] = _attribute(self.module, node.target)
            elif node.op == "output":
                return mapped(node.args[0], lambda item: channels_first(read(item)))
            elif not is_operator(node.target):
                values[node] = _of_sizes(node, mapped(list(node.args), read))
            else:
                kwargs = {name: mapped(x, read) for name, x in node.kwargs.items()}
                draw = partial(self._key, node, key)
                values[node] = call_operator(node, mapped(list(node.args), read), kwargs, draw)
        raise AssertionError("a graph ends with its output")

    def _key(self, node: Any, key: Key | None) -> Any:
        if key is None:
            got = f"None for {_shown(node)} at {line_of(node)}"
            raise ArgumentError("from_torch", "the function needs a key", got=got, hint="key=random.key(0)")
        return random.fold_in(key, self._numbers[node])


def call_operator(node: Any, args: list, kwargs: dict[str, Any], draw: Callable[[], Any] | None = None) -> Any:
    """The value of a node that calls an operator of the table.

    Args:
        node: the node; its type says what the result must be.
        args: the values of its arguments.
        kwargs: likewise by name; those about memory are left out.
        draw: returns the key of a random operator.
    """
    row = translation_of(operator_name(node.target))
    assert row is not None
    args = mapped(args, _lifted)
    kwargs = {name: mapped(x, _lifted) for name, x in kwargs.items() if name not in _MEMORY}
    if row.promotes:
        args = _promoted(args, node)
    if not row.layouts:
        args = mapped(args, channels_first)
        kwargs = {name: mapped(x, channels_first) for name, x in kwargs.items()}
    if row.random:
        args = [draw, *args]
    try:
        return _checked(row.function(*args, **kwargs), node)
    except TvmfunError as error:
        if error.where == "from_torch":
            raise
        what = f"{_shown(node)} cannot be translated here"
        raise ProgramError("from_torch", what, got=f"{error} in {line_of(node)}") from error


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return tnp.asarray(module.detach())


def _of_sizes(node: Any, args: list) -> Any:
    """The value of a Python function of sizes, or a part of the results of an operator."""
    name = operator_name(node.target)
    if name == "getitem":
        return args[0][args[1]]
    functions = {
        "sym_max": dims.maximum,
        "sym_min": lambda x, y: -dims.maximum(-x, -y),
        "sym_float": lambda x: x,
        "sym_int": lambda x: x,
        "truediv": lambda x, y: x / y,
    }
    return functions.get(name, node.target)(*args)


def _promoted(args: list, node: Any) -> list:
    """The arguments with arrays of the result's dtype, which PyTorch's promotion has found."""
    result = node.meta.get("val")
    result = result[0] if isinstance(result, list | tuple) else result
    if not hasattr(result, "dtype"):
        return args
    dtype = dtype_name(result.dtype)

    def convert(x: Any) -> Any:
        if isinstance(x, Array) and x.dtype.name != dtype:
            return tnp.astype(x, dtype)
        return ChannelsLast(convert(x.stored)) if isinstance(x, ChannelsLast) else x

    return mapped(args, convert)


def _checked(result: Any, node: Any) -> Any:
    """The result with the dtype that PyTorch has found; the shape must be the same already."""
    expected = node.meta.get("val")
    if isinstance(result, list | tuple):
        if not isinstance(expected, list | tuple) or type(result) not in (list, tuple):
            return result
        return [_typed(part, own, node) for part, own in zip(result, expected, strict=False)]
    return _typed(result, expected, node)


def _typed(value: Any, expected: Any, node: Any) -> Any:
    if not hasattr(expected, "dtype") or value is None:
        return value
    if not isinstance(value, ChannelsLast):
        value = tnp.asarray(dims.as_array(value) if isinstance(value, dims.Dim) else value)
    static = [n if isinstance(n, int) else None for n in expected.shape]
    sizes = [n if isinstance(n, int | np.integer) else None for n in value.shape]
    if len(sizes) != len(static) or any(a != b for a, b in zip(sizes, static, strict=True) if None not in (a, b)):
        what = f"{_shown(node)} must have a result of shape {tuple(expected.shape)}"
        raise ProgramError("from_torch", what, got=f"{value.shape} at {line_of(node)}")
    dtype = dtype_name(expected.dtype)
    stored = value.stored if isinstance(value, ChannelsLast) else value
    if stored.dtype.name != dtype or stored.weak_type:
        stored = tnp.astype(stored, dtype)
        return ChannelsLast(stored) if isinstance(value, ChannelsLast) else stored
    return value


def stopped_where_no_grad(graph_module: Any) -> None:
    """Marks the results of regions under ``torch.no_grad`` as detached: decompositions inline these regions."""
    import torch

    graph = graph_module.graph
    for node in list(graph.nodes):
        if operator_name(node.target) != "wrap_with_set_grad_enabled" or node.args[0]:
            continue
        for part in list(node.users):
            if not isinstance(getattr(part.meta.get("val"), "dtype", None), torch.dtype):
                continue
            with graph.inserting_after(part):
                detached = graph.call_function(torch.ops.aten.detach.default, (part,))
            detached.meta = dict(part.meta)
            part.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    graph_module.recompile()
