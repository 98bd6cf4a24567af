"""A table of the layers of a model: what they return, how large they are, and what they compute."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tvmfun import tree
from tvmfun.core.array import ShapeDtype
from tvmfun.core.cost import flops, program_flops
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import equations, trace
from tvmfun.errors import ArgumentError
from tvmfun.nn.layers.containers import Function
from tvmfun.nn.state import has_state
from tvmfun.nn.walk import children, is_layer

__all__ = ["LayerSummary", "Summary", "summary"]


class LayerSummary(NamedTuple):
    """A row of a :class:`Summary`.

    Args:
        path: where the layer is in the model, such as ``"layers.0"``; empty for the model.
        kind: the name of its class.
        output: the shapes and dtypes of what it returned when it was called last, a tree, without its state; ``None``
            if it was not.
        parameters: the number of elements of its arrays.
        bytes: how much memory these take.
        flops: the additions, multiplications and other floating-point operations of all calls.
    """

    path: str
    kind: str
    output: Any
    parameters: int
    bytes: int
    flops: Any


@dataclass(frozen=True)
class Summary:
    """What :func:`summary` returns: a row per layer, layers inside layers included, and one for the model."""

    layers: tuple[LayerSummary, ...]
    total: LayerSummary

    def __str__(self) -> str:
        header = ("path", "layer", "output", "parameters", "bytes", "FLOPs")
        total = self.total._replace(path="total")
        cells = [header, *map(_cells, (*self.layers, total))]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for row in cells:
            left = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
            lines.append("  ".join(left + right).rstrip())
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

    __repr__ = __str__


def _cells(row: LayerSummary) -> tuple[str, ...]:
    counts = (f"{n:,}" if isinstance(n, int) else str(n) for n in row[3:])
    output = ", ".join(map(repr, tree.leaves(row.output)))
    return (row.path, row.kind, output, *counts)


def summary(model: Any, *args: Any, **kwargs: Any) -> Summary:
    """What the layers of a model return, how large they are, and what a call computes; nothing is run.

    Additions and multiplications count as one operation each, so do other functions of an element; a product of
    matrices and a convolution two for each pair that is multiplied and added, and sorting, random numbers and
    decompositions of matrices none. What the steps of a loop compute counts as often as there are steps, and once if
    their number is unknown; of branches the one with most operations counts.

    Args:
        model: a tree of layers that can be called.
        args: what to call it with; ``ShapeDtype`` will do for arrays.
        kwargs: keyword arguments of the call.

    Returns:
        Rows that print as a table.

    Raises:
        ArgumentError: if the model cannot be called.

    >>> import tvmfun
    >>> from tvmfun import nn, random
    >>> first, last = random.split(random.key(0))
    >>> model = nn.Sequential(nn.Linear(784, 512, key=first), nn.functional.relu, nn.Linear(512, 10, key=last))
    >>> print(summary(model, tvmfun.ShapeDtype((128, 784), "float32")))
    path      layer       output            parameters      bytes        FLOPs
    --------------------------------------------------------------------------
    layers.0  Linear      float32[128,512]     401,920  1,607,680  102,825,984
    layers.1  relu        float32[128,512]           0          0       65,536
    layers.2  Linear      float32[128,10]        5,130     20,520    1,312,000
    --------------------------------------------------------------------------
    total     Sequential  float32[128,10]      407,050  1,628,200  104,203,520
    """
    if not is_layer(model):
        raise ArgumentError("summary", "the model must be a layer that can be called", got=type(model).__name__)
    leaves, structure = tree.flatten((args, kwargs))
    is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]
    arrays = [leaf for leaf, flag in zip(leaves, is_array, strict=True) if flag]
    calls: dict[str, _Calls] = {}

    def run(model: Any, arrays: list) -> Any:
        places = dict(_layers(model))
        calls.update({path: _Calls(has_state(layer)) for path, layer in places.items()})
        remaining = iter(arrays)
        values = [next(remaining) if flag else leaf for leaf, flag in zip(leaves, is_array, strict=True)]
        args, kwargs = tree.unflatten(structure, values)
        with _Observed({id(layer): calls[path] for path, layer in places.items()}, places.values()):
            return model(*args, **kwargs)

    shapes = tree.map(abstract, model)
    program = trace(run)(shapes, arrays)
    rows = [_row(path, layer, calls[path].output, calls[path].flops) for path, layer in _layers(shapes)]
    output = calls[""].result(tree.unflatten(program.out_tree, program.out_avals))
    total = _row("", model, output, program_flops(program))
    return Summary(tuple(row for row in rows if row.path), total)


def _layers(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if is_layer(node):
        yield path, node
    for name, part in children(node):
        yield from _layers(part, f"{path}.{name}" if path else name)


def _row(path: str, layer: Any, output: Any, flops: Any) -> LayerSummary:
    avals = [abstract(leaf) for leaf in tree.leaves(layer)]
    sizes = [aval.size for aval in avals]
    memory = sum(size * aval.dtype.itemsize for size, aval in zip(sizes, avals, strict=True))
    return LayerSummary(path, _kind(layer), output, sum(sizes), memory, flops)


def _kind(layer: Any) -> str:
    return repr(layer) if isinstance(layer, Function) else type(layer).__name__


# -- which layer an op is in -----------------------------------------------------------------------------------


class _Calls:
    """What is known about the calls of a layer."""

    def __init__(self, has_state: bool) -> None:
        self._has_state = has_state
        self.output: Any = None
        self.flops: Any = 0

    def result(self, value: Any) -> Any:
        """The shapes and dtypes of what was returned, without the state."""
        if self._has_state and isinstance(value, tuple) and len(value) == 2:
            value = value[0]
        return tree.map(_strong, value)


class _Observed:
    """Within this context, it is written down what the calls of some layers return and which equations they make.

    The interpreter reports the calls: a layer need not know about it, and no class is changed.
    """

    def __init__(self, calls: dict[int, _Calls], layers: Iterable[Any]) -> None:
        self._calls = calls
        codes = (getattr(inspect.unwrap(type(layer).__call__), "__code__", None) for layer in layers)
        self._codes: set[CodeType] = {code for code in codes if code is not None}
        self._starts: dict[FrameType, int] = {}

    def __enter__(self) -> None:
        self._before: Callable | None = sys.getprofile()
        sys.setprofile(self._observe)

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(self._before)

    def _observe(self, frame: FrameType, event: str, value: Any) -> None:
        if frame.f_code not in self._codes:
            return
        if event == "call":
            self._starts[frame] = len(equations())
        elif event == "return" and frame in self._starts:
            made = equations()[self._starts.pop(frame) :]
            calls = self._calls.get(id(frame.f_locals.get(frame.f_code.co_varnames[0])))
            if calls is not None:
                calls.output = calls.result(value)
                calls.flops = calls.flops + sum(map(flops, made))


def _strong(leaf: Any) -> ShapeDtype:
    aval = abstract(leaf)
    return ShapeDtype(aval.shape, aval.dtype)
