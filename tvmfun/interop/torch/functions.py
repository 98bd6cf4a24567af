"""``from_torch``: a module as a function of its parameters and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError, ProgramError, ShapeError, TreeError
from tvmfun.interop.random_keys import random_key_name
from tvmfun.interop.torch.exported import export
from tvmfun.interop.torch.graphs import Graph
from tvmfun.interop.torch.parameters import canonical_names, flat, nested, split_module, to_array, to_arrays
from tvmfun.interop.torch.tensors import dtype_name
from tvmfun.typing import Key, PyTree


class Placeholder(NamedTuple):
    """An input of the graph.

    Args:
        kind: ``"tensor"``, a parameter or buffer; ``"input"``, an argument; ``"constant"``.
        name: of the parameter or buffer, or of the argument.
        value: a constant, or the required value of an argument that is not an array.
        aval: the shape and dtype, with None for dynamic sizes; None if it is not an array.
    """

    kind: str
    name: str
    value: Any
    aval: tuple[tuple[int | None, ...], str] | None


def from_torch(
    module: Any,
    example_args: tuple,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool | None = True,
    dynamic_shapes: Any = None,
) -> tuple[Callable[..., tuple[PyTree, PyTree]], dict[str, Any], dict[str, Any]]:
    """Converts a PyTorch module to a function of its parameters and its state.

    The function computes what ``module(*args, **kwargs)`` computes, and has derivatives, batching and compilation like
    any other: dropout takes a key, batch normalization returns new statistics, ``detach`` and ``torch.no_grad`` stop
    gradients, and what the module writes in place is in the result instead. The module itself stays as it is.

    Args:
        module: a ``torch.nn.Module``.
        example_args: positional arguments of its ``forward``; tensors give shapes and dtypes.
        example_kwargs: arguments by name.
        train: whether modules are in training mode; None for each module's own mode.
        dynamic_shapes: axes whose size is known at call time only, as for ``torch.export.export``; names in place of
            ``torch.export.Dim`` are sizes of at least 2.

    Returns:
        ``(function, params, state)``. ``function(params, state, *args, key=None, **kwargs)`` returns ``(result,
        new_state)``; the random key is ``random_key`` if ``key`` is in ``example_kwargs``. Both trees are dicts nested
        by the module's names: ``params["fc1"]["weight"]``. ``params`` has the parameters that require a gradient, a
        tied weight once; ``state`` has the other parameters, and the buffers that the state dict has or the module
        writes. Other buffers are constants. Layouts are PyTorch's: weights of linear layers are (outputs, inputs),
        images have channels first. In results, mappings such as the outputs of ``transformers`` are dicts.

    Raises:
        ProgramError: if ``torch.export`` cannot trace the module, or the table lacks an operator: the message names its
            line in the module.
        ArgumentError: when the function is called, if it draws random numbers and gets no key.
        ShapeError: likewise, if an array has another shape than the example.
    """
    if not isinstance(example_args, tuple):
        hint = "(x,) for one argument"
        raise ArgumentError("from_torch", "example_args must be a tuple", got=type(example_args).__name__, hint=hint)
    kwargs = dict(example_kwargs or {})
    program = export(module, example_args, kwargs, train, dynamic_shapes)
    graph, signature = Graph(program.graph_module), program.graph_signature
    canonical = canonical_names(module)
    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    updated = {name: canonical[id(tensors[target])] for name, target in signature.buffers_to_mutate.items()}
    params, state = split_module(module, updated.values())
    if signature.parameters_to_mutate:
        got = ", ".join(signature.parameters_to_mutate.values())
        raise ProgramError("from_torch", "parameters must not be written in place", got=got, hint="a buffer")
    placeholders = _placeholders(program, tensors, canonical, params.keys() | state.keys())
    outputs = [spec.kind.name for spec in signature.output_specs]
    written = [updated.get(spec.arg.name) for spec in signature.output_specs]
    out_spec, names, key_name = program.call_spec.out_spec, tuple(kwargs), random_key_name(kwargs)

    def function(params: PyTree, state: PyTree, *args: Any, **kwargs: Any) -> Any:
        key: Key | None = kwargs.pop(key_name, None)
        if not isinstance(params, Mapping) or not isinstance(state, Mapping):
            got = f"{type(params).__name__} and {type(state).__name__}"
            raise TreeError("from_torch", "the first arguments are params and state, which are dicts", got=got)
        held = flat(params) | flat(state)
        results = graph(_inputs(placeholders, held, _arguments(args, kwargs, names, len(example_args))), key)
        news = {name: x for name, x, kind in zip(written, results, outputs, strict=True) if kind == "BUFFER_MUTATION"}
        user = [x for x, kind in zip(results, outputs, strict=True) if kind == "USER_OUTPUT"]
        new_state = {name: news.get(name, x) for name, x in flat(state).items()}
        return _plain(_unflatten(user, out_spec)), nested(new_state)

    function.__name__ = function.__qualname__ = type(module).__name__
    return function, to_arrays(params), to_arrays(state)


def _placeholders(program: Any, tensors: dict[str, Any], canonical: dict[int, str], kept: Any) -> list[Placeholder]:
    """The inputs of the exported graph, in order."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    result = []
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, spec.target
        value = values[name]
        aval = _aval(value) if hasattr(value, "dtype") else None
        if spec.kind.name in ("PARAMETER", "BUFFER"):
            own = canonical[id(tensors[target])]
            if own in kept:
                result.append(Placeholder("tensor", own, None, aval))
            else:
                result.append(Placeholder("constant", own, to_array(tensors[target]), aval))
        elif spec.kind.name == "USER_INPUT":
            result.append(Placeholder("input", name, getattr(spec.arg, "value", value), aval))
        else:
            result.append(Placeholder("constant", name, to_array(program.constants[target]), aval))
    return result


def _aval(value: Any) -> tuple[tuple[int | None, ...], str]:
    shape = tuple(n if isinstance(n, int) else None for n in value.shape)
    return shape, dtype_name(value.dtype)


def _arguments(args: tuple, kwargs: dict[str, Any], names: tuple[str, ...], count: int) -> list:
    """The leaves of the arguments in the order of the example's."""
    import torch.utils._pytree as pytree

    if len(args) != count or set(kwargs) != set(names):
        got = f"{len(args)} and {', '.join(kwargs) or 'none'}"
        what = f"it takes {count} positional arguments and {', '.join(names) or 'none'} by name, like the example"
        raise ArgumentError("from_torch", what, got=got)
    return pytree.tree_leaves((args, {name: kwargs[name] for name in names}))


def _inputs(placeholders: list[Placeholder], held: dict[str, Any], arguments: list) -> list:
    wanted = sum(p.kind == "input" for p in placeholders)
    if len(arguments) != wanted:
        raise TreeError("from_torch", "arguments must have the tree of the example", got=f"{len(arguments)} leaves")
    leaves, result = iter(arguments), []
    for p in placeholders:
        if p.kind == "constant":
            result.append(p.value)
            continue
        if p.kind == "tensor" and p.name not in held:
            raise TreeError("from_torch", f"params and state must have {p.name!r}", got=", ".join(list(held)[:5]))
        value = held[p.name] if p.kind == "tensor" else next(leaves)
        result.append(_checked(value, p))
    return result


def _checked(value: Any, p: Placeholder) -> Any:
    """An input of the graph that is like the example."""
    if p.aval is None:
        if not isinstance(p.value, type(value)) or value != p.value:
            what = f"{p.name} is not an array, and must be {p.value!r} as in the example"
            raise ArgumentError("from_torch", what, got=repr(value), hint="from_torch with this value")
        return value
    aval, (shape, dtype) = abstract(value, "from_torch"), p.aval
    fits = len(shape) == aval.ndim and all(n is None or n == m for n, m in zip(shape, aval.shape, strict=True))
    if not fits:
        wanted = f"({', '.join('any' if n is None else str(n) for n in shape)})"
        hint = "dynamic_shapes= of from_torch for sizes that differ"
        raise ShapeError("from_torch", f"{p.name} must have the shape {wanted}", got=str(aval.shape), hint=hint)
    if aval.dtype.name == dtype:
        return tnp.asarray(value)
    if aval.weak or (dtypes.is_integer(aval.dtype) and "int" in dtype):
        return tnp.astype(tnp.asarray(value), dtype)
    raise DtypeError("from_torch", f"{p.name} must be {dtype}", got=str(aval), hint=f"x.astype({dtype!r})")


def _unflatten(leaves: list, spec: Any) -> Any:
    import torch.utils._pytree as pytree

    return pytree.tree_unflatten(leaves, spec)


def _plain(value: Any) -> Any:
    """A result of tuples, lists and dicts, which are trees here, too."""
    import torch.utils._pytree as pytree

    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    children, spec = pytree.tree_flatten(value)
    return value if spec.is_leaf() else tuple(map(_plain, children))
