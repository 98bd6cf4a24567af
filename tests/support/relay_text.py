"""A writer of Relay's text format, for networks that are too long to write by hand, and of TVM's binary arrays."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np

HEADER = '#[version = "0.0.5"]\n'
_CODES = {"i": 0, "u": 1, "f": 2, "b": 1}


def literal(value: Any) -> str:
    """An attribute's value as TVM prints it."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:g}f"
    return f"[{', '.join(map(literal, value))}]" if isinstance(value, list | tuple) else str(value)


def tensor_type(shape: tuple, dtype: str) -> str:
    """The type of an array; sizes may be ``"?"``."""
    return f"Tensor[({', '.join(map(str, shape))}), {dtype}]" if shape else dtype


class Writer:
    """The text of a function in graph normal form, binding by binding.

    Args:
        dtype: of all parameters.
        seed: of their values.
    """

    def __init__(self, dtype: str = "float64", seed: int = 0) -> None:
        self.dtype = dtype
        self.random = np.random.default_rng(seed)
        self.params: dict[str, np.ndarray] = {}
        self.arguments: list[str] = []
        self.lines: list[str] = []

    def input(self, name: str, *shape: Any) -> str:
        """An argument without a value."""
        self.arguments.append(f"%{name}: {tensor_type(shape, self.dtype)}")
        return f"%{name}"

    def param(self, name: str, *shape: int, positive: bool = False) -> str:
        """An argument with a random value."""
        fan = int(np.prod(shape[1:])) or 1
        value = self.random.normal(size=shape) * (2 / fan) ** 0.5 if len(shape) > 1 else self.random.normal(size=shape)
        value = np.abs(value) + 0.5 if positive else value
        self.params[name] = value.astype(self.dtype)
        return self.input(name, *shape)

    def op(self, name: str, *arguments: str, **attributes: Any) -> str:
        """A binding of a call."""
        written = [*arguments, *(f"{key}={literal(value)}" for key, value in attributes.items())]
        return self.bind(f"{name}({', '.join(written)})")

    def bind(self, value: str) -> str:
        """A binding of any expression."""
        self.lines.append(f"  %{len(self.lines)} = {value};")
        return f"%{len(self.lines) - 1}"

    def text(self, result: str) -> str:
        """The module."""
        body = "\n".join(self.lines)
        return f"{HEADER}def @main({', '.join(self.arguments)}) {{\n{body}\n  {result}\n}}\n"


def encoded(array: np.ndarray) -> bytes:
    """An array in TVM's binary format."""
    array = np.asarray(array)
    dtype = array.dtype
    code, bits = (
        (4, 16) if dtype.name == "bfloat16" else (_CODES[dtype.kind], 1 if dtype.kind == "b" else 8 * dtype.itemsize)
    )
    head = struct.pack("<QQiii", 0xDD5E40F096B4A13F, 0, 1, 0, array.ndim) + struct.pack("<BBH", code, bits, 1)
    return head + struct.pack(f"<{array.ndim}qQ", *array.shape, array.nbytes) + array.tobytes()


def params_file(params: dict[str, np.ndarray]) -> bytes:
    """A file of parameters."""
    names = b"".join(struct.pack("<Q", len(name.encode())) + name.encode() for name in params)
    count = struct.pack("<Q", len(params))
    return struct.pack("<QQ", 0xF7E58D4F05049CB7, 0) + count + names + count + b"".join(map(encoded, params.values()))


def metadata(*constants: np.ndarray) -> str:
    """A metadata section with constants, as TVM 0.7 to 0.18 wrote it."""
    numbers = range(3, 3 + len(constants))
    nodes = [
        {"type_key": ""},
        {"type_key": "Map", "keys": ["relay.Constant"], "data": [2]},
        {"type_key": "Array", "data": list(numbers)},
    ]
    for i in range(len(constants)):
        attrs = {"_checked_type_": "0", "data": str(i), "span": "0"}
        nodes.append({"type_key": "relay.Constant", "attrs": attrs})
    arrays = [base64.b64encode(encoded(array)).decode() for array in constants]
    graph = {"root": 1, "nodes": nodes, "b64ndarrays": arrays, "attrs": {"tvm_version": "0.18.0"}}
    return f"#[metadata]\n{json.dumps(graph, indent=2)}\n"


def new_metadata(*constants: np.ndarray) -> str:
    """Likewise, in the format of graphs that TVM has had since 0.21."""
    nodes: list[dict] = [{"type": "None"}, {"type": "ffi.String", "data": "relay.Constant"}]
    members = []
    for array in constants:
        nodes.append({"type": "ffi.Tensor", "data": base64.b64encode(encoded(array)).decode()})
        nodes.append({"type": "relay.Constant", "data": {"span": 0, "data": len(nodes) - 1}})
        members.append(len(nodes) - 1)
    nodes.append({"type": "ffi.Array", "data": members})
    nodes.append({"type": "ffi.Map", "data": [1, len(nodes) - 1]})
    return f"#[metadata]\n{json.dumps({'root_index': len(nodes) - 1, 'nodes': nodes})}\n"
