"""``to_onnx``: a function or a Program as a model for inference."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvmfun import tree
from tvmfun.core import dims
from tvmfun.core.leaf import argument_name
from tvmfun.core.program import Program
from tvmfun.core.trace import trace
from tvmfun.errors import ArgumentTypeError, DimensionError
from tvmfun.interop.onnx.writing.builder import OPSET, Builder, Value

#: The version of the file format that goes with the operators.
_FORMAT = 8


def to_onnx(function: Callable | Program, *specs: Any, path: str | os.PathLike | None = None) -> Any:
    """Writes a function as an ONNX model for inference.

    Arrays that the function closes over become initializers, so close over the parameters. Inputs and outputs have the
    names of the arguments and of the leaves of the result: ``"x"``, ``"batch.image"``. Operators are of version 18.

    Args:
        function: a function of arrays or trees of arrays, or a Program.
        specs: the types of its arguments, as arrays or ``ShapeDtype``; none for a Program.
        path: a file to write, if not None.

    Returns:
        The ``onnx.ModelProto``.

    Raises:
        ProgramError: at an op that ONNX has no operators for; the message has its line.
        DimensionError: if a size is not static.

    >>> model = to_onnx(lambda x: tvmfun.numpy.tanh(x), tvmfun.ShapeDtype((3,), "float32"))  # doctest: +SKIP
    """
    from onnx import helper

    if isinstance(function, Program):
        if specs:
            hint = "to_onnx(program)"
            raise ArgumentTypeError("to_onnx", "a Program has types already", got=f"{len(specs)} more", hint=hint)
        program = function
    else:
        program = trace(function)(*specs)
    builder = Builder()
    names = _input_names(program, _parameters(function))
    inputs = []
    for name, aval in zip(names, program.in_avals, strict=True):
        if dims.is_dynamic(aval.shape):
            raise DimensionError("to_onnx", "sizes must be static", got=f"{name!r}: {aval}", hint="a model for each")
        inputs.append(Value(name, aval.shape, aval.dtype))
    results = builder.program(program, inputs)
    outputs = []
    for name, result, aval in zip(_output_names(program, names), results, program.out_avals, strict=True):
        builder.nodes.append(helper.make_node("Identity", [result], [name]))
        outputs.append(Value(name, aval.shape, aval.dtype))
    graph = builder.graph(_clean(program.name) or "main", inputs, outputs)
    imports = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_FORMAT, producer_name="tvmfun")
    if path is not None:
        Path(path).write_bytes(model.SerializeToString())
    return model


def _clean(name: str) -> str:
    return ".".join(filter(None, re.split(r"[^A-Za-z0-9_]+", name)))


def _distinct(names: list[str], taken: set[str]) -> list[str]:
    result = []
    for name in names:
        number, own = 1, name
        while own in taken:
            number, own = number + 1, f"{name}.{number}"
        taken.add(own)
        result.append(own)
    return result


def _parameters(function: Callable | Program) -> list[str]:
    """The names of the parameters by position, for those that have names."""
    try:
        parameters = inspect.signature(function).parameters.values() if callable(function) else ()
    except ValueError:
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _input_names(program: Program, parameters: list[str]) -> list[str]:
    names = []
    for path in program.in_tree.accessors():
        first, _, rest = _clean(argument_name(path).removeprefix("argument ")).partition(".")
        if first.isdigit():
            first = parameters[int(first)] if int(first) < len(parameters) else f"input{first}"
        names.append(".".join(filter(None, (first, rest))) or "input")
    return _distinct(names, set())


def _output_names(program: Program, inputs: list[str]) -> list[str]:
    names = [_clean(tree.keystr(path)) for path in program.out_tree.accessors()]
    return _distinct([f"output{name}" if not name or name[0].isdigit() else name for name in names], set(inputs))
