"""``from_relay``: a saved Relay program as a function of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError, ShapeError, TreeError
from tvmfun.interop.random_keys import random_key_name
from tvmfun.interop.relay import syntax
from tvmfun.interop.relay.evaluation import Evaluation, fits, made_tuple
from tvmfun.interop.relay.metadata import Metadata
from tvmfun.interop.relay.parser import parse
from tvmfun.interop.relay.source import Source
from tvmfun.typing import ArrayLike, Key, PyTree


def from_relay(
    text: str,
    params: Mapping[str, ArrayLike] | None = None,
    function: str = "main",
    *,
    train: bool = False,
    constants: bool = False,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Converts a program in Relay's text format to a function of its parameters.

    The function has derivatives, batching and compilation like any other. Functions that the program calls are inlined.

    Args:
        text: the program, beginning with ``#[version = "0.0.5"]``: what ``mod.astext()`` wrote.
        params: values of arguments by name, such as :func:`load_params` returns; they become the parameters.
        function: the function of the module to convert.
        train: whether to train: batch normalizations use the batch's statistics, and dropouts drop.
        constants: whether constants in the metadata are parameters, too, if they are floats and have axes:
            ``meta[relay.Constant][0]`` is ``params["constant0"]``. Programs with bound parameters have them there.

    Returns:
        ``(function, params)``. ``params`` is a dict by name. ``function(params, *inputs, key=None)`` takes the other
        arguments in order, or by name, and returns the result, with tuples for tuples. If ``train``, it returns
        ``(result, new_params)``, whose moving means and variances are updated, and needs a ``key`` for dropout, which
        is ``random_key`` if an input is called ``key``.

    Raises:
        ProgramError: if the text is damaged, or uses an operator or a part of the language that is not read; the
            message has the line and the column. Types that are wrong are found when the function is called.
        ArgumentError: if a parameter is not an argument of the function.
        ShapeError, DtypeError: if a parameter or an input has not the type that is written.

    >>> text = '#[version = "0.0.5"] def @main(%x: Tensor[(2), float32], %w: Tensor[(2), float32]) { add(%x, %w) }'
    >>> function, params = from_relay(text, {"w": np.ones(2, "float32")})
    >>> function(params, tnp.asarray([1.0, 2.0]))
    Array([2., 3.], dtype=float32)
    """
    if not isinstance(text, str):
        hint = "Path(file).read_text()"
        raise ArgumentError("from_relay", "it reads text", got=type(text).__name__, hint=hint)
    source = Source(text)
    program = parse(source)
    if function not in program.functions:
        names = ", ".join(f"@{name}" for name in program.functions) or "none"
        raise ArgumentError("from_relay", "the text has no such function", got=f"@{function}", hint=f"one of {names}")
    main, metadata = program.functions[function], Metadata(source, program.metadata)
    names = {parameter.name: parameter for parameter in main.parameters}
    given = dict(params or {})
    for name in given:
        if name not in names:
            raise ArgumentError("from_relay", f"@{function} has no argument of this name", got=f"%{name}")
    inputs = [parameter for parameter in main.parameters if parameter.name not in given]
    own = _constants(program, metadata, names) if constants else {}
    key_name = random_key_name([parameter.name for parameter in inputs])

    def run(params: PyTree, *args: Any, **named: Any) -> Any:
        key: Key | None = named.pop(key_name, None)
        values = _arguments([*given, *own], params, inputs, args, named)
        evaluation = Evaluation(program, source, metadata, train, key)
        for name, (index, type, _) in own.items():
            evaluation.constants[index] = _checked(values[name], name, type)
            evaluation.parameters[id(evaluation.constants[index])] = name
        arguments = [_checked(values[p.name], p.name, p.type) for p in main.parameters]
        for parameter, argument in zip(main.parameters, arguments, strict=True):
            if parameter.name in given:
                evaluation.parameters[id(argument)] = parameter.name
        result = evaluation.run(main, arguments)
        return (result, {**params, **evaluation.updates}) if train else result

    run.__name__ = run.__qualname__ = function
    leaves = {name: _checked(value, name, names[name].type) for name, value in given.items()}
    return run, leaves | {name: value for name, (_, _, value) in own.items()}


def _constants(program: syntax.Module, metadata: Metadata, names: Mapping) -> dict[str, tuple[int, Any, Any]]:
    """The constants that become parameters by name: each has an index, a type and a value."""
    found = {}
    for meta in sorted(program.constants, key=lambda meta: meta.index):
        value = metadata.constant(meta.key, meta.index, meta.offset)
        if value.ndim and dtypes.is_float(value.dtype):
            name = f"constant{meta.index}"
            if name in names:
                raise ArgumentError("from_relay", "an argument has the name of a constant", got=f"%{name}")
            found[name] = meta.index, syntax.TensorType(value.shape, value.dtype.name), value
    return found


def _arguments(held: Any, params: PyTree, inputs: list[syntax.Parameter], args: tuple, named: dict) -> dict[str, Any]:
    """The values of all arguments by name."""
    missing = [name for name in held if not isinstance(params, Mapping) or name not in params]
    if missing:
        raise TreeError("from_relay", f"params must have {missing[0]!r}", got=", ".join(list(params)[:5]))
    names = [parameter.name for parameter in inputs]
    values = dict(zip(names, args, strict=False))
    if len(args) > len(names) or values.keys() & named.keys() or values.keys() | named.keys() != set(names):
        got = f"{len(args)} and {', '.join(named) or 'none by name'}"
        raise ArgumentError("from_relay", f"it takes the inputs {', '.join(names) or 'none'}", got=got)
    return {**params, **values, **named}


def _checked(value: Any, name: str, type: syntax.Type) -> Any:
    """An argument of the type that is written."""
    if isinstance(type, syntax.TupleType):
        if not isinstance(value, tuple | list) or len(value) != len(type.fields):
            raise TreeError("from_relay", f"%{name} must be a tuple of {len(type.fields)}", got=repr(value)[:60])
        return made_tuple([_checked(item, name, own) for item, own in zip(value, type.fields, strict=True)])
    if type is None:
        return (
            made_tuple([_checked(item, name, None) for item in value])
            if isinstance(value, tuple | list)
            else tnp.asarray(value)
        )
    aval = abstract(value, "from_relay")
    if not fits(type, aval.shape, type.dtype):
        raise ShapeError("from_relay", f"%{name} must be {type}", got=repr(aval))
    if aval.dtype.name == type.dtype:
        return tnp.asarray(value)
    if aval.weak and not isinstance(value, Array):
        return tnp.asarray(value, dtype=type.dtype)
    if aval.weak or (np.issubdtype(aval.dtype, np.integer) and "int" in type.dtype):
        return tnp.astype(tnp.asarray(value), type.dtype)
    raise DtypeError("from_relay", f"%{name} must be {type}", got=repr(aval), hint=f"x.astype({type.dtype!r})")
