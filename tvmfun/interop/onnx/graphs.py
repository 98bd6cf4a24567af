"""Evaluation of graphs: node by node, so that a trace of the inputs is a trace of the results.

Values that are known while a function is traced, such as shapes and numbers computed from them, are NumPy arrays; all
others are arrays of tvmfun.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import random, reference
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.program import Program
from tvmfun.errors import ArgumentError, DtypeError, ProgramError, TvmfunError
from tvmfun.interop.onnx.nodes import MOST_NODES, Graph, Node, Reference
from tvmfun.interop.onnx.operators import Translation
from tvmfun.interop.onnx.tensors import NUMBERS, Narrow, is_known, is_narrow, lifted
from tvmfun.typing import Key

#: The most elements of arrays that are computed while a function is traced.
MOST_KNOWN = 1 << 20

_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError)


@dataclass
class Run:
    """One evaluation of a model.

    Args:
        main: the model's graph.
        key: for nodes that draw random numbers, or None.
        draws: how many nodes have drawn numbers.
        nodes: how many have been evaluated.
    """

    main: Graph
    key: Key | None = None
    draws: int = 0
    nodes: int = 0

    def draw(self, node: Node, attributes: Mapping[str, Any]) -> Key:
        """The key of a node that draws random numbers; its ``seed`` serves if the function has no key."""
        if self.key is None:
            seed = attributes.get("seed")
            if seed is None:
                hint = "key=random.key(0)"
                raise ArgumentError("from_onnx", "the function needs a key", got=f"None for {node}", hint=hint)
            return random.key(int(np.float32(seed).view(np.uint32)))
        self.draws += 1
        return random.fold_in(self.key, self.draws)

    def count(self) -> None:
        """Counts a node, and refuses a model that is too long when written out."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            got = "more, with the steps of loops"
            raise ProgramError("from_onnx", f"a model must have at most {MOST_NODES} nodes", got=got)


@dataclass
class Call:
    """A node that is being evaluated, for translations that need more than its inputs.

    Args:
        node: the node.
        values: the values that are defined before it, by their names.
        attributes: the attributes of the function around.
        run: the evaluation.
    """

    node: Node
    values: dict[str, Any]
    attributes: Mapping[str, Any]
    run: Run

    def evaluate(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """The results of a graph inside of the node, which reads values around it."""
        return evaluate(graph, inputs, self.run, self.values, self.attributes)


def evaluate(
    graph: Graph,
    inputs: Sequence[Any],
    run: Run,
    outer: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Returns the results of a graph.

    Args:
        graph: the graph.
        inputs: as many values as it has inputs.
        run: the evaluation that it is a part of.
        outer: values by name, which it may read.
        attributes: the attributes of the function whose body it is.

    Raises:
        ProgramError: where a node cannot be evaluated; the message names it.
    """
    values: dict[str, Any] = {**(outer or {}), **graph.constants}
    values |= zip(graph.inputs, inputs, strict=False)
    for node in graph.nodes:
        step(node, values, attributes or {}, run)
    return [values.get(name) for name in graph.outputs]


def step(node: Node, values: dict[str, Any], attributes: Mapping[str, Any], run: Run) -> None:
    """Evaluates a node: its results are added to the values."""
    run.count()
    try:
        results = _results(Call(node, values, attributes, run))
    except TvmfunError as error:
        if error.where == "from_onnx":
            raise
        raise ProgramError("from_onnx", f"{node} cannot be translated", got=str(error)) from error
    except RecursionError as error:
        raise ProgramError("from_onnx", f"{node} is nested too deeply", got="a recursion error") from error
    except _MISTAKES as error:
        got = f"{type(error).__name__}: {error}"
        raise ProgramError("from_onnx", f"{node} has inputs or attributes that do not fit", got=got) from error
    if len(results) < len([name for name in node.outputs if name]):
        got = f"{len(node.outputs)} instead of at most {len(results)}"
        raise ProgramError("from_onnx", f"{node} must not have more outputs than the operator", got=got)
    values.update((name, x) for name, x in zip(node.outputs, results, strict=False) if name)


def _results(call: Call) -> Sequence[Any]:
    node = call.node
    inputs = [call.values[name] if name else None for name in node.inputs]
    given = {name: _resolved(value, call.attributes) for name, value in node.attributes.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if node.row is None:
        body = node.body or node.body_for(tuple(map(_type, inputs)))
        inputs += [None] * (len(body.inputs) - len(inputs))
        return evaluate(body, inputs, call.run, attributes=body.defaults | given)
    return apply(node.row, inputs, given, call)


def _resolved(value: Any, attributes: Mapping[str, Any]) -> Any:
    return attributes.get(value.name) if isinstance(value, Reference) else value


def apply(row: Translation, inputs: list[Any], attributes: dict[str, Any], call: Call) -> Sequence[Any]:
    """The results of a translation."""
    static = [_static(x, i, call.node) if row.is_static(i) else x for i, x in enumerate(inputs)]
    function: Callable[..., Any] = row.function
    if row.context:
        return _listed(function(call, *static, **attributes))
    if row.random:
        key = call.run.draw(call.node, attributes)
        return _listed(function(key, *map(lifted, static), **attributes))
    leaves = [i for i, x in enumerate(static) if x is not None and not row.is_static(i)]
    if not row.shapes and leaves and all(is_known(x) for x in static) and _are_small(static):
        results = _folded(row, static, leaves, attributes, call.node)
        if results is not None:
            return results
    arrays = [x if row.is_static(i) else lifted(x) for i, x in enumerate(static)]
    return _listed(_of_arrays(row, arrays, attributes, call.node))


def _of_arrays(row: Translation, inputs: list[Any], attributes: dict[str, Any], node: Node) -> Any:
    """The result of a translation; some inputs may be :class:`Narrow`."""
    kinds = {x.dtype for x in inputs if isinstance(x, Narrow)}
    if not kinds or row.narrow or row.shapes:
        return row.function(*inputs, **attributes)
    if not row.bits:
        got = ", ".join(sorted(kind.name for kind in kinds))
        raise DtypeError("from_onnx", f"{node} must have inputs of at least a byte", got=got, hint="a Cast before it")
    (kind,) = kinds
    result = row.function(*(x.bits if isinstance(x, Narrow) else x for x in inputs), **attributes)
    return tuple(Narrow(x, kind) for x in _listed(result))


def _static(value: Any, position: int, node: Node) -> Any:
    if is_known(value):
        return value
    name = node.inputs[position]
    what = f"the input {name!r} of {node} must be known when the function is traced"
    raise ProgramError("from_onnx", what, got="a value that is computed from arguments", hint="a NumPy array for it")


def _are_small(values: Sequence[Any]) -> bool:
    return sum(x.size for x in values if x is not None) <= MOST_KNOWN


def _folded(
    row: Translation, inputs: list[Any], leaves: list[int], attributes: dict[str, Any], node: Node
) -> list[Any] | None:
    """The results for known inputs, computed with NumPy; None if they are too large for that."""
    arrays = [inputs[i] for i in leaves]
    if any(is_narrow(x.dtype) for x in arrays):
        return None
    shown: list[Any] = []

    def run(*values: Any) -> list[Any]:
        full = dict(zip(leaves, values, strict=True))
        results = _listed(row.function(*(full.get(i, x) for i, x in enumerate(inputs)), **attributes))
        shown.extend(results)
        return [x for x in results if isinstance(x, Array)]

    program = trace_leaves(run, [ShapeDtype(x.shape, x.dtype) for x in arrays], node.operator)
    if any(isinstance(x, Narrow) for x in shown) or not _is_small(program):
        return None
    computed = iter(reference.evaluate(program, [*program.captured, *arrays]))
    return [np.asarray(next(computed)) if isinstance(x, Array) else x for x in shown]


def _is_small(program: Program) -> bool:
    sizes = (math.prod(out.aval.shape) for equation in program.equations for out in equation.outputs)
    return sum(sizes) <= 8 * MOST_KNOWN and not any(equation.op.kind == "control" for equation in program.equations)


def _listed(result: Any) -> Sequence[Any]:
    if isinstance(result, (tuple, list)) and not isinstance(result, Narrow):
        return result
    return [result]


def _type(value: Any) -> Any:
    """The ``TypeProto`` of a value; that of nothing is empty."""
    from onnx import TypeProto, helper

    if value is None:
        return TypeProto()
    return helper.make_tensor_type_proto(NUMBERS[np.dtype(value.dtype)], value.shape)


def as_arrays(values: Sequence[Any]) -> tuple[Any, ...]:
    """Values as arrays: those that were known, too."""
    arrays = tuple(map(lifted, values))
    if any(isinstance(x, Narrow) for x in arrays):
        got = ", ".join(x.dtype.name for x in arrays if isinstance(x, Narrow))
        raise DtypeError("from_onnx", "branches and loops must have arrays of at least a byte", got=got)
    return tuple(tnp.asarray(x) for x in arrays)
