"""Reading of ONNX files, without trust in their contents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tvmfun.errors import ArgumentTypeError, ProgramError
from tvmfun.interop.onnx.nodes import Graph, Scope, versions

#: The newest version of the format, ``ModelProto.ir_version``.
_NEWEST_FORMAT = 15


def load(model: Any) -> tuple[Any, Path | None]:
    """Returns a ``ModelProto`` and the folder of its file, which is None without a file.

    Args:
        model: a path, the bytes of a file, or a ``ModelProto``.

    Raises:
        ProgramError: if there is no such file, or it is not ONNX's.
    """
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    if isinstance(model, ModelProto):
        return model, None
    folder = None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        try:
            model = path.read_bytes()
        except (OSError, ValueError) as error:
            raise ProgramError("from_onnx", "the file cannot be read", got=str(error)) from error
        folder = path.parent
    if not isinstance(model, bytes):
        hint = "a path, bytes or a ModelProto"
        raise ArgumentTypeError("from_onnx", "the model must be one of ONNX", got=type(model).__name__, hint=hint)
    try:
        return ModelProto.FromString(model), folder
    except (DecodeError, RuntimeError, UnicodeDecodeError, ValueError) as error:
        raise ProgramError("from_onnx", "the file is not an ONNX model, or is damaged", got=str(error)) from error


def _check_texts(message: Any) -> None:
    """Raises if a name in a message, or in one inside of it, is not UTF-8, which protobuf gives as bytes."""
    for kind, value in message.ListFields():
        if kind.type not in (kind.TYPE_STRING, kind.TYPE_MESSAGE):
            continue
        is_single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        for item in [value] if is_single else value:
            if isinstance(item, bytes):
                got = f"{item!r} as {kind.name}"
                raise ProgramError("from_onnx", "all names in a model must be UTF-8", got=got)
            if not isinstance(item, str):
                _check_texts(item)


def main_graph(proto: Any, folder: Path | None) -> Graph:
    """The graph of a model, whose operators all have translations.

    Raises:
        ProgramError: if the model is not well formed, or has operators without a translation: all are named.
    """
    from onnx.defs import onnx_opset_version

    if not proto.HasField("graph"):
        raise ProgramError("from_onnx", "a model must have a graph", got="none")
    if not 0 < proto.ir_version <= _NEWEST_FORMAT:
        got = f"version {proto.ir_version}"
        raise ProgramError("from_onnx", f"the format must have a version up to {_NEWEST_FORMAT}", got=got)
    newest = onnx_opset_version()
    if not 0 < (version := versions(proto.opset_import).get("", 1)) <= newest:
        got = f"version {version}"
        raise ProgramError("from_onnx", f"the set of operators must have a version up to {newest}", got=got)
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    scope = Scope(versions(proto.opset_import), functions, folder)
    try:
        _check_texts(proto)
        graph = Graph.of_graph(proto.graph, scope)
    except (RecursionError, MemoryError, UnicodeDecodeError) as error:
        raise ProgramError("from_onnx", "the model cannot be read", got=str(error)) from error
    if scope.missing:
        got = ", ".join(sorted(scope.missing))
        raise ProgramError("from_onnx", "all operators must have a translation or be functions", got=got)
    return graph
