"""Tables of the layers of a model: their outputs, parameters, memory and FLOPs."""

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
        path: the path of the layer in the model, such as ``"layers.0"``; empty for the model.
        kind: the name of its class.
        output: a tree of the shapes and dtypes that its last call returned, without its state; ``None`` if it was not
            called.
        parameters: the number of elements of its arrays.
        bytes: the memory of its arrays.
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
    """The result of :func:`summary`: a row per layer, including nested ones, and one for the model."""

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
    """A table of the outputs, parameters, memory and FLOPs of the layers of a model; nothing is run.

    Every pointwise operation on an element counts as one; each multiply-add of a matrix product or a convolution as
    two; sorting, random numbers and matrix decompositions as none. The body of a loop counts once per step, or once if
    the number of steps is unknown; of branches, the one with most operations counts.

    Args:
        model: a tree of layers that can be called.
        args: arguments of the call; a ``ShapeDtype`` may stand for an array.
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
        layers = dict(_layers(model))
        calls.update({path: _Calls(has_state(layer)) for path, layer in layers.items()})
        remaining = iter(arrays)
        values = [next(remaining) if flag else leaf for leaf, flag in zip(leaves, is_array, strict=True)]
        args, kwargs = tree.unflatten(structure, values)
        with _Observed({id(layer): calls[path] for path, layer in layers.items()}, layers.values()):
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
    return LayerSummary(path, _type_name(layer), output, sum(sizes), memory, flops)


def _type_name(layer: Any) -> str:
    return repr(layer) if isinstance(layer, Function) else type(layer).__name__


# -- attribution of ops to layers -----------------------------------------------------------------------------


class _Calls:
    """The output of the last call of a layer, and the FLOPs of all calls."""

    def __init__(self, has_state: bool) -> None:
        self._has_state = has_state
        self.output: Any = None
        self.flops: Any = 0

    def result(self, value: Any) -> Any:
        """The shapes and dtypes of a returned value, without the state."""
        if self._has_state and isinstance(value, tuple) and len(value) == 2:
            value = value[0]
        return tree.map(_strong, value)


class _Observed:
    """A context that records the results of some layers' calls, and the equations that they trace.

    It uses the interpreter's profiling hook, so that layers need not cooperate and no class is patched.
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
            new_equations = equations()[self._starts.pop(frame) :]
            calls = self._calls.get(id(frame.f_locals.get(frame.f_code.co_varnames[0])))
            if calls is not None:
                calls.output = calls.result(value)
                calls.flops = calls.flops + sum(map(flops, new_equations))


def _strong(leaf: Any) -> ShapeDtype:
    aval = abstract(leaf)
    return ShapeDtype(aval.shape, aval.dtype)
