"""The table of ops and their spellings in ONNX, and the builder of graphs that spellings write to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.program import Equation, Literal, Program
from tvmfun.errors import DimensionError, ProgramError
from tvmfun.interop.onnx.tensors import NUMBERS

#: The version of the set of operators of models that are written.
OPSET = 18


@dataclass(frozen=True)
class Value:
    """A value of a graph that is being written.

    Args:
        name: its name in the graph.
        shape: the sizes of its axes.
        dtype: its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def aval(self) -> ShapeDtype:
        """The type."""
        return ShapeDtype(self.shape, self.dtype)


#: By the op's name: a function of the builder and the inputs' values, with the equation's parameters by name, that
#: returns the name of the result, or a list of names.
SPELLINGS: dict[str, Callable[..., Any]] = {}

#: The ops that are not written, and the reasons.
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(
        ("attention_gradients", "conv_kernel_gradient", "window_argmax", "window_put", "window_take"),
        "it computes a derivative, and models for inference are written",
    ),
    **dict.fromkeys(
        ("all_gather", "all_to_all", "axis_index", "pmax", "pmin", "ppermute", "psum", "psum_scatter"),
        "it needs a named axis, which vmap resolves",
    ),
    **dict.fromkeys(
        ("cholesky", "eigh", "lu", "qr", "svd", "triangular_solve"), "ONNX has no factorizations of matrices"
    ),
    **dict.fromkeys(("erf_inv", "lgamma", "polygamma"), "ONNX has no such function"),
    "bitcast": "ONNX has had it since version 26 of its operators only",
    **dict.fromkeys(("dropout_bits", "threefry2x32"), "ONNX's random numbers have no keys"),
}


def spells(*names: str) -> Callable[[Callable], Callable]:
    """A decorator that adds a function to the table as the spelling of ops."""

    def add(function: Callable) -> Callable:
        for name in names:
            SPELLINGS[name] = function
        return function

    return add


def composed(*names: str) -> Callable[[Callable], Callable]:
    """A decorator that spells ops by a function of arrays and parameters: its Program is written instead of the op."""

    def add(function: Callable) -> Callable:
        spells(*names)(lambda b, *xs, **params: b.inline(lambda *arrays: function(*arrays, **params), *xs))
        return function

    return add


@dataclass
class Builder:
    """A graph of ONNX that is being written.

    Args:
        parent: the builder of the graph around, whose values may be read; None for the main graph.
    """

    parent: Builder | None = None
    nodes: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)
    _count: list[int] = field(default_factory=lambda: [0])
    _constants: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self._count = self.parent._count

    def fresh(self, what: str) -> str:
        """A name that no other value has."""
        self._count[0] += 1
        return f"{what}_{self._count[0]}"

    def constant(self, value: Any, dtype: Any = None) -> str:
        """The name of a constant; equal small ones share it."""
        from onnx import numpy_helper

        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        key = (array.tobytes(), array.shape, array.dtype.name) if array.size <= 64 else None
        if key is None or key not in self._constants:
            name = self.fresh("constant")
            self.initializers.append(numpy_helper.from_array(array, name))
            if key is None:
                return name
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """The name of a constant list of sizes or axes."""
        return self.constant(np.asarray(values, np.int64).reshape(-1))

    def node(self, operator: str, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> list[str]:
        """Adds a node; returns the names of its outputs."""
        from onnx import helper

        names = [self.fresh(operator.lower()) for _ in range(outputs)]
        inputs = [x.name if isinstance(x, Value) else x for x in inputs]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def __call__(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Adds a node with one output; returns its name."""
        return self.node(operator, inputs, **attributes)[0]

    def cast(self, x: Any, dtype: Any) -> str:
        """The name of a value converted to a dtype."""
        return self("Cast", x, to=NUMBERS[np.dtype(dtype)])

    def reshape(self, x: Any, shape: Sequence[int]) -> str:
        """The name of a value in another shape, where 0 is a size of 0."""
        return self("Reshape", x, self.ints(*shape), **({"allowzero": 1} if 0 in shape else {}))

    def literal(self, value: np.generic) -> Value:
        """A scalar."""
        return Value(self.constant(value), (), value.dtype)

    def inline(self, function: Callable, *xs: Value) -> list[str]:
        """The names of the results of a function of arrays: its Program is written here."""
        return self.program(trace_leaves(function, [x.aval for x in xs], "inline"), xs)

    def program(self, program: Program, inputs: Sequence[Value]) -> list[str]:
        """Writes the equations of a Program; returns the names of its results."""
        values: dict[Any, Value] = {}
        for variable, array in zip(program.inputs, program.captured, strict=False):
            values[variable] = Value(self.constant(np.asarray(array)), array.shape, array.dtype)
        values |= zip(program.inputs[len(program.captured) :], inputs, strict=True)
        read = lambda atom: self.literal(atom.value) if isinstance(atom, Literal) else values[atom]
        for equation in program.equations:
            names = self._equation(equation, [read(atom) for atom in equation.inputs])
            for out, name in zip(equation.outputs, names, strict=True):
                values[out] = Value(name, out.aval.shape, out.aval.dtype)
        return [read(atom).name for atom in program.outputs]

    def _equation(self, equation: Equation, inputs: list[Value]) -> Sequence[str]:
        name = equation.op.name
        for out in equation.outputs:
            if dims.is_dynamic(out.aval.shape):
                raise DimensionError("to_onnx", "sizes must be static", got=f"{out.aval} at {equation.source}")
        if name not in SPELLINGS:
            reason = LEFT_OUT.get(name, "it has no spelling in ONNX")
            raise ProgramError(
                "to_onnx", f"{name} is not written: {reason}", got=f"it at {equation.source or 'a line'}"
            )
        result = SPELLINGS[name](self, *inputs, **equation.params)
        return [result] if isinstance(result, str) else result

    def graph(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> Any:
        """The ``GraphProto``."""
        from onnx import helper

        return helper.make_graph(
            self.nodes, name, *(list(map(declared, xs)) for xs in (inputs, outputs)), self.initializers
        )


def declared(x: Value) -> Any:
    """The ``ValueInfoProto`` of an input or output."""
    from onnx import helper

    return helper.make_tensor_value_info(x.name, NUMBERS[x.dtype], x.shape)
