"""Nodes and graphs of a model as they are evaluated: attributes are read, and operators are looked up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvmfun.errors import DtypeError, ProgramError
from tvmfun.interop.onnx.operators import Translation, translation_of
from tvmfun.interop.onnx.operators.table import full_name
from tvmfun.interop.onnx.tensors import sparse_to_numpy, to_numpy

#: The most nodes that a model may have once its functions, and loops where they must be, are written out.
MOST_NODES = 200_000


@dataclass(frozen=True)
class Reference:
    """The value of an attribute that the call of the function around gives."""

    name: str


@dataclass
class Scope:
    """The definitions that the nodes of a model or of a function refer to.

    Args:
        opsets: the version of the set of operators of each domain.
        functions: the model's own functions, by domain, name and overload.
        folder: of the file, or None.
        missing: the operators without a translation that have been met.
        open: the functions that are being read.
        read: the functions that have been read.
    """

    opsets: dict[str, int]
    functions: dict[tuple[str, str, str], Any]
    folder: Path | None
    missing: set[str] = field(default_factory=set)
    open: list[tuple[str, str, str]] = field(default_factory=list)
    read: dict[tuple[str, str, str], Graph] = field(default_factory=dict)

    def of_function(self, proto: Any) -> Scope:
        """The scope of a function's body, which has versions of its own."""
        opsets = self.opsets | versions(proto.opset_import)
        return Scope(opsets, self.functions, self.folder, self.missing, self.open, self.read)

    def version(self, domain: str) -> int:
        """The version of the operators of a domain."""
        return self.opsets.get("" if domain == "ai.onnx" else domain, 1)


class Node:
    """A node: an operator with a translation, or one that a function defines.

    Args:
        proto: the ``NodeProto``.
        scope: the scope of the names that it refers to.
        outer: the names that are defined before it.
    """

    def __init__(self, proto: Any, scope: Scope, outer: Collection[str]) -> None:
        self.proto = proto
        self.operator = full_name(proto.domain, proto.op_type)
        self.inputs: tuple[str, ...] = tuple(proto.input)
        self.outputs: tuple[str, ...] = tuple(proto.output)
        self.attributes = {a.name: _attribute(a, scope, outer) for a in proto.attribute}
        self.version = scope.version(proto.domain)
        self.scope = scope
        self.row: Translation | None = None
        self.body: Graph | None = None
        key = (proto.domain, proto.op_type, proto.overload)
        if key in scope.functions:
            self.body = _function(key, scope)
        else:
            self.row = translation_of(proto.domain, proto.op_type, self.version)
            if self.row is None:
                self.body = self._schema_body()

    def __str__(self) -> str:
        name = self.proto.name or next(iter(filter(None, self.outputs)), "")
        return f"{self.operator} {name!r}"

    @property
    def graphs(self) -> Iterator[Graph]:
        """The graphs among the attributes."""
        return (value for value in self.attributes.values() if isinstance(value, Graph))

    @property
    def size(self) -> int:
        """The number of nodes that the node stands for."""
        return 1 + sum(graph.size for graph in self.graphs) + (self.body.size if self.body else 0)

    def uses(self) -> set[str]:
        """The names whose values the node reads, also those that graphs inside of it read."""
        names = set(filter(None, self.inputs))
        for graph in self.graphs:
            names |= graph.captured
        if self.proto.op_type == "Gradient":
            names |= {self.attributes.get("y", ""), *self.attributes.get("xs", ()), *self.attributes.get("zs", ())}
        return names

    def needs(self, wanted: Collection[str]) -> set[str]:
        """The names whose values must be known, if the results with the ``wanted`` names must be."""
        is_wanted = any(name in wanted for name in self.outputs)
        if self.body is not None:
            within = dict(zip(self.body.outputs, self.outputs, strict=False))
            inside = self.body.needed({name for name, own in within.items() if own in wanted})
            return {own for name, own in zip(self.body.inputs, self.inputs, strict=False) if name in inside}
        names: set[str] = set()
        entered = False
        for graph in self.graphs:
            inside = graph.needed(set(graph.outputs) if is_wanted else ())
            entered |= bool(inside & set(graph.inputs))
            names |= inside & graph.captured
        row = self.row
        if row is not None:
            names |= {name for i, name in enumerate(self.inputs) if row.is_static(i)}
        if (is_wanted and not (row and row.shapes)) or entered:
            names |= set(self.inputs)
        elif self.proto.op_type == "Loop" and len(self.outputs) > len(self.inputs) - 2:
            names |= set(self.inputs[:2])  # each step adds to an output, whose size must be known
        return names - {""}

    def _schema_body(self) -> Graph | None:
        """The function by which ONNX defines the operator; None if it depends on the types of the inputs."""
        from onnx import FunctionProto, defs

        domain = "" if self.proto.domain == "ai.onnx" else self.proto.domain
        try:
            schema = defs.get_schema(self.proto.op_type, self.version, domain)
        except defs.SchemaError:
            schema = None
        if schema is not None and schema.has_function:
            encoded = schema.get_function_with_opset_version(self.version)
            return Graph.of_function(FunctionProto.FromString(encoded), self.scope, self._schema_defaults(schema))
        if schema is None or not schema.has_context_dependent_function:
            self.scope.missing.add(self.operator)
        return None

    def body_for(self, types: tuple[Any, ...]) -> Graph:
        """The function by which ONNX defines the operator for inputs of these types, ``TypeProto``."""
        from onnx import FunctionProto, defs

        schema = defs.get_schema(self.proto.op_type, self.version, self.proto.domain)
        encoded = [t.SerializeToString() for t in types]
        versions = sorted(v for v in schema.context_dependent_function_opset_versions if v <= self.version)
        if not versions:
            raise ProgramError("from_onnx", f"{self} has no translation for this version", got=str(self.version))
        body = schema.get_context_dependent_function_with_opset_version(
            versions[-1], self.proto.SerializeToString(), encoded
        )
        return Graph.of_function(FunctionProto.FromString(body), self.scope, self._schema_defaults(schema))

    def _schema_defaults(self, schema: Any) -> dict[str, Any]:
        """The values of attributes that ONNX's definition of the operator has."""
        protos = {name: attribute.default_value for name, attribute in schema.attributes.items()}
        return {name: _attribute(proto, self.scope, ()) for name, proto in protos.items() if proto.type}


class Graph:
    """A graph whose nodes can be evaluated in order.

    Args:
        inputs: the names of the values that it takes.
        outputs: the names of its results.
        constants: the values of its initializers.
        proto_nodes: the nodes, sorted.
        scope: the scope of the names that they refer to.
        outer: the names of values around the graph, which it may read.
        defaults: the values of attributes that a call of a function leaves out; None if it is not a function's body,
            whose outputs may be undefined.

    Raises:
        ProgramError: if a name is read that is not defined before: a cycle, or a damaged file.
    """

    def __init__(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        constants: dict[str, np.ndarray],
        proto_nodes: Iterable[Any],
        scope: Scope,
        outer: Collection[str] = (),
        defaults: dict[str, Any] | None = None,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.constants = constants
        self.defaults = defaults or {}
        own = {*self.inputs, *constants}
        defined = own | set(outer)
        #: The names of values around the graph that it reads.
        self.captured: set[str] = set()
        nodes: list[Node] = []
        for proto in proto_nodes:
            node = Node(proto, scope, defined)
            for name in sorted(node.uses() - {""}):
                if name not in defined:
                    what = f"the input {name!r} of {node} must be defined before it"
                    raise ProgramError("from_onnx", what, got="a cycle, or a name of nothing")
                if name not in own:
                    self.captured.add(name)
            results = set(filter(None, node.outputs))
            if results & own:
                raise ProgramError("from_onnx", "each value must have one definition", got=f"two of {results & own}")
            own |= results
            defined |= results
            nodes.append(node)
        for name in self.outputs:
            if name not in defined and defaults is None:
                raise ProgramError("from_onnx", "each output of a graph must be defined in it", got=f"{name!r}")
            if name in defined and name not in own:
                self.captured.add(name)
        #: The nodes that the outputs depend on.
        self.nodes = reached(nodes, self.outputs)
        #: The number of nodes once functions are written out.
        self.size = sum(node.size for node in self.nodes)
        if self.size > MOST_NODES:
            got = f"{self.size}, with those of functions"
            raise ProgramError("from_onnx", f"a model must have at most {MOST_NODES} nodes", got=got)

    @classmethod
    def of_graph(cls, proto: Any, scope: Scope, outer: Collection[str] = ()) -> Graph:
        """The graph of a ``GraphProto``."""
        constants = {tensor.name: to_numpy(tensor, scope.folder) for tensor in proto.initializer}
        for tensor in proto.sparse_initializer:
            constants[tensor.values.name] = sparse_to_numpy(tensor, scope.folder)
        inputs = [value.name for value in proto.input]
        outputs = [value.name for value in proto.output]
        return cls(inputs, outputs, constants, proto.node, scope, outer)

    @classmethod
    def of_function(cls, proto: Any, scope: Scope, defaults: dict[str, Any] | None = None) -> Graph:
        """The body of a ``FunctionProto``; an operator's definition may have more defaults."""
        scope = scope.of_function(proto)
        defaults = dict.fromkeys(proto.attribute) | (defaults or {})
        defaults |= {a.name: _attribute(a, scope, ()) for a in proto.attribute_proto}
        return cls(proto.input, proto.output, {}, proto.node, scope, (), defaults)

    def needed(self, wanted: Collection[str]) -> set[str]:
        """The names of inputs, initializers and outer values that must be known, for the ``wanted`` results to be."""
        names = set(wanted)
        for node in reversed(self.nodes):
            needs = node.needs(names)
            names -= set(node.outputs)
            names |= needs
        return names

    def frozen(self) -> set[str]:
        """The names of values that are read as statistics or as scales of quantized numbers."""
        names: set[str] = set()
        for node in self.nodes:
            if node.row is not None:
                names |= {node.inputs[i] for i in node.row.frozen if i < len(node.inputs)}
            for graph in node.graphs:
                names |= graph.frozen() & graph.captured
        return names


def versions(imports: Any) -> dict[str, int]:
    """The version of the set of operators of each domain, from the ``opset_import`` of a model or a function."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}


def reached(nodes: list[Node], outputs: Iterable[str], given: Collection[str] = ()) -> list[Node]:
    """The nodes that outputs depend on, where the ``given`` names have values already."""
    wanted, result = set(outputs) - set(given), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            wanted |= node.uses() - set(given)
            result.append(node)
    return result[::-1]


def _function(key: tuple[str, str, str], scope: Scope) -> Graph:
    """A function of the model, which is read once."""
    if key in scope.open:
        raise ProgramError("from_onnx", "functions must not call themselves", got=full_name(key[0], key[1]))
    if key not in scope.read:
        scope.open.append(key)
        scope.read[key] = Graph.of_function(scope.functions[key], scope)
        scope.open.pop()
    return scope.read[key]


def _attribute(proto: Any, scope: Scope, outer: Collection[str]) -> Any:
    """The value of an attribute."""
    if proto.ref_attr_name:
        return Reference(proto.ref_attr_name)
    kinds = type(proto)
    kind, what = proto.type, f"the attribute {proto.name!r}"
    if kind == kinds.GRAPH:
        return Graph.of_graph(proto.g, scope, outer)
    if kind == kinds.TENSOR:
        return to_numpy(proto.t, scope.folder)
    if kind == kinds.SPARSE_TENSOR:
        return sparse_to_numpy(proto.sparse_tensor, scope.folder)
    readers = {kinds.FLOAT: "f", kinds.INT: "i", kinds.STRING: "s"}
    lists = {kinds.FLOATS: "floats", kinds.INTS: "ints", kinds.STRINGS: "strings"}
    try:
        if kind in readers:
            value = getattr(proto, readers[kind])
            return value.decode() if isinstance(value, bytes) else value
        if kind in lists:
            values = getattr(proto, lists[kind])
            return [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as error:
        raise ProgramError("from_onnx", f"{what} must be text", got=str(error)) from error
    if kind == kinds.TYPE_PROTO:
        return proto.tp
    raise DtypeError("from_onnx", f"{what} must be numbers, text, tensors or graphs", got=f"the type {kind}")
