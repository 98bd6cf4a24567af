"""``from_onnx``: a model as a function of its parameters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, DtypeError, ProgramError, ShapeError, TreeError
from tvmfun.interop.onnx.graphs import Run, evaluate
from tvmfun.interop.onnx.model import load, main_graph
from tvmfun.interop.onnx.nodes import Graph
from tvmfun.interop.onnx.tensors import Narrow, as_argument, dtype_of, is_narrow, lifted
from tvmfun.interop.random_keys import random_key_name
from tvmfun.typing import Key


@dataclass(frozen=True)
class Value:
    """An input or output of a model.

    Args:
        name: its name in the model.
        dtype: of ``ml_dtypes`` if no array has it; the array is then one of unsigned bytes, with the bits.
        shape: the sizes; None for a size that differs between calls, or altogether if the model does not say.
        is_static: whether the value must be known when the function is traced: a shape, an axis, a count.
        is_optional: whether it may be None.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...] | None
    is_static: bool = False
    is_optional: bool = False


class OnnxFunction:
    """A model as a function; :func:`from_onnx` returns it.

    ``function(params, *args, key=None, **kwargs)`` takes the inputs by position or by name, and returns the output, or
    a tuple of several. If an input is called ``key``, the random key is ``random_key``.

    Attributes:
        inputs: the names and types of the inputs, in order.
        outputs: the same of the outputs.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: tuple[Value, ...],
        outputs: tuple[Value, ...],
        trained: Collection[str],
        name: str,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._graph = graph
        self._trained = tuple(trained)
        self.__name__ = self.__qualname__ = name

    def __repr__(self) -> str:
        takes, returns = (", ".join(x.name for x in values) for values in (self.inputs, self.outputs))
        return f"OnnxFunction({self.__name__}: {takes} -> {returns})"

    def __call__(self, params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Evaluates the model.

        Raises:
            TreeError: if a parameter is missing.
            ArgumentError: if there are other inputs than the model's, or no key for nodes that draw random numbers.
            ShapeError: if an input has another shape.
            DtypeError: if an input has another dtype.
            ProgramError: if a node cannot be evaluated.
        """
        key: Key | None = kwargs.pop(random_key_name([x.name for x in self.inputs]), None)
        missing = [name for name in self._trained if name not in params]
        if missing:
            raise TreeError("from_onnx", f"params must have {missing[0]!r}", got=", ".join(list(params)[:5]))
        values: dict[str, Any] = {name: tnp.asarray(params[name]) for name in self._trained}
        values |= self._bound(args, kwargs)
        results = evaluate(self._graph, [values[name] for name in self._graph.inputs], Run(self._graph, key))
        arrays = [x.bits if isinstance(x, Narrow) else x for x in map(lifted, results)]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def _bound(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        names = [x.name for x in self.inputs]
        given = dict(zip(names, args, strict=False))
        wrong = [name for name in kwargs if name not in names or name in given]
        given |= kwargs
        if len(args) > len(names) or wrong or len(given) != len(names):
            got = f"{len(args)} by position and {', '.join(kwargs) or 'none'} by name"
            raise ArgumentError("from_onnx", f"the function takes {', '.join(names) or 'no inputs'}", got=got)
        return {x.name: _checked(given[x.name], x) for x in self.inputs}


def from_onnx(model: Any, *, trainable: Collection[str] | None = None) -> tuple[OnnxFunction, dict[str, Array]]:
    """Converts an ONNX model to a function of its parameters.

    The function computes what the model computes, and has derivatives, batching and compilation like any other. Shapes
    are ONNX's: images have their channels first. Nothing in the file is run or unpickled.

    Values that are known while the function is traced, such as shapes and numbers computed from them, are NumPy arrays.
    Inputs that operators need then, such as the sizes of ``Reshape``, must be known, too, and not tracers:
    ``function.inputs`` says which these are.

    Args:
        model: a path, the bytes of a file, or an ``onnx.ModelProto``. Tensors in other files are read if these are
            beside it.
        trainable: the names of the initializers that become parameters; by default those of floats, but for statistics
            of batch normalization, scales of quantized numbers, and what operators need to be known.

    Returns:
        ``(function, params)``. ``function(params, *args, key=None, **kwargs)`` takes the inputs by position or by name,
        and returns the output, or a tuple of several. ``params`` is a dict by the names of the initializers. Nodes that
        draw random numbers take parts of ``key``, or of ``random_key`` if an input is called ``key``. Arrays of float8,
        int4 and the like are unsigned bytes with the bits.

    Raises:
        ProgramError: if the file is damaged, or has operators without a translation: the message names all of them.
        DtypeError: if it has strings, sequences, maps or complex numbers.

    >>> function, params = from_onnx("model.onnx")  # doctest: +SKIP
    >>> step = tvmfun.jit(tvmfun.grad(lambda params, x: function(params, x).sum()))  # doctest: +SKIP
    """
    proto, folder = load(model)
    graph = main_graph(proto, folder)
    needed, frozen = graph.needed(()), graph.frozen()
    declared = [_value(value, needed) for value in proto.graph.input if value.name not in graph.constants]
    outputs = tuple(_value(value, ()) for value in proto.graph.output)
    floats = {name for name, value in graph.constants.items() if dtypes.is_float(value.dtype)}
    trained = sorted(floats - needed - frozen) if trainable is None else list(trainable)
    for name in trained:
        if name not in floats or name in needed:
            got = f"{name!r}, which is not one or must be known"
            raise ArgumentError("from_onnx", "trainable must have names of initializers of floats", got=got)
    params = {name: tnp.asarray(graph.constants.pop(name)) for name in trained}
    graph.inputs = (*(x.name for x in declared), *trained)
    return OnnxFunction(graph, tuple(declared), outputs, trained, proto.graph.name or "model"), params


def _value(value: Any, needed: Collection[str]) -> Value:
    """The name and type of an input or output of a model."""
    type_, is_optional = value.type, value.type.HasField("optional_type")
    type_ = type_.optional_type.elem_type if is_optional else type_
    kind = type_.WhichOneof("value")
    if kind != "tensor_type":
        names = {"sequence_type": "a sequence", "map_type": "a map", "optional_type": "an optional of one"}
        got = f"{names.get(kind, kind or 'no type')} in {value.name!r}"
        raise DtypeError("from_onnx", "only arrays of numbers are read", got=got)
    tensor = type_.tensor_type
    shape = None
    if tensor.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        if any(n is not None and n < 0 for n in sizes):
            raise ShapeError("from_onnx", f"sizes of {value.name!r} must not be negative", got=str(sizes))
        shape = tuple(sizes)
    return Value(value.name, dtype_of(tensor.elem_type, repr(value.name)), shape, value.name in needed, is_optional)


def _checked(value: Any, kind: Value) -> Any:
    """An argument as the value of an input."""
    if value is None and kind.is_optional:
        return None
    stored = np.dtype(np.uint8) if is_narrow(kind.dtype) else kind.dtype
    is_typed = is_narrow(kind.dtype) and getattr(value, "dtype", None) == kind.dtype
    aval = abstract(np.asarray(value).view(stored) if is_typed else value, "from_onnx")
    if aval.dtype != stored:
        if not aval.weak and not (dtypes.is_integer(aval.dtype) and dtypes.is_integer(stored)):
            hint = f"x.astype({stored.name!r})"
            raise DtypeError("from_onnx", f"{kind.name!r} must be {stored.name}", got=aval.dtype.name, hint=hint)
        value = tnp.astype(tnp.asarray(value), stored)
    fits = kind.shape is None or (
        len(kind.shape) == aval.ndim and all(n in (None, m) for n, m in zip(kind.shape, aval.shape, strict=True))
    )
    if not fits:
        raise ShapeError("from_onnx", f"{kind.name!r} must have the shape {kind.shape}", got=str(aval.shape))
    if not kind.is_static:
        return as_argument(value, kind.dtype)
    if isinstance(value, Tracer):
        what = f"{kind.name!r} must be known when the function is traced: an operator needs it to find a shape"
        raise ProgramError("from_onnx", what, got="a tracer", hint="a NumPy array that the jitted function closes over")
    return np.asarray(value).astype(kind.dtype)
