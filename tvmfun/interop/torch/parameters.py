"""Parameters and buffers of a module as trees by the module's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.errors import ShapeError, TreeError
from tvmfun.interop.torch.tensors import to_torch
from tvmfun.typing import PyTree


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of dicts from values by dotted names.

    >>> nested({"fc.weight": 1, "fc.bias": 2, "scale": 3})
    {'fc': {'weight': 1, 'bias': 2}, 'scale': 3}
    """
    result: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        level = result
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return result


def flat(nested: PyTree, prefix: str = "") -> dict[str, Any]:
    """The values of a tree of dicts by dotted names.

    >>> flat({"fc": {"weight": 1, "bias": 2}})
    {'fc.weight': 1, 'fc.bias': 2}
    """
    result: dict[str, Any] = {}
    for name, value in nested.items():
        result.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value})
    return result


def canonical_names(module: Any) -> dict[int, str]:
    """The first name of each parameter and buffer, by the tensor's identity: tied weights have several."""
    names: dict[int, str] = {}
    for listed in (module.named_parameters, module.named_buffers):
        for name, tensor in listed(remove_duplicate=False):
            names.setdefault(id(tensor), name)
    return names


def is_trained(tensor: Any) -> bool:
    """Whether a tensor of a module is a parameter that is trained."""
    return tensor.requires_grad and tensor.is_leaf and tensor.is_floating_point()


def split_module(module: Any, mutated: Iterable[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a module by name, each once: parameters that are trained, and the rest of its state.

    Args:
        module: the module.
        mutated: names of buffers that belong to the state although the module's state dict lacks them.
    """
    canonical = canonical_names(module)
    kept = {name: x for name, x in module.state_dict(keep_vars=True).items() if hasattr(x, "requires_grad")}
    kept.update({name: x for name, x in module.named_buffers() if name in set(mutated)})
    kept = {canonical[id(x)]: x for x in kept.values()}
    return (
        {name: x for name, x in kept.items() if is_trained(x)},
        {name: x for name, x in kept.items() if not is_trained(x)},
    )


def to_array(tensor: Any) -> Any:
    """A copy of a tensor as an array."""
    return tnp.asarray(tensor.detach().contiguous())


def to_arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of dicts of copies from tensors by dotted names."""
    return nested({name: to_array(tensor) for name, tensor in tensors.items()})


def params_of(module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the parameters and the state of a module, as :func:`from_torch` does, without reading its code.

    Args:
        module: a ``torch.nn.Module``.

    Returns:
        ``(params, state)``: dicts nested by the parts of the module's dotted names. ``params`` has the parameters that
        require a gradient; ``state`` has the others, and the buffers of the state dict. A tied weight appears once,
        with its first name.
    """
    params, state = split_module(module)
    return to_arrays(params), to_arrays(state)


def to_state_dict(module: Any, params: PyTree, state: PyTree) -> dict[str, Any]:
    """Returns the state dict that a module of this class would have with these values.

    Args:
        module: the module, for its names and ties; its own values are not used.
        params: the parameters, as :func:`from_torch` returns them.
        state: the state, likewise.

    Returns:
        Tensors by name, for ``module.load_state_dict``, with each tied weight under all its names.

    Raises:
        TreeError: if a tree lacks a value, or has one more.
        ShapeError: if a value has another shape than the module's.
    """
    values = flat(params) | flat(state)
    canonical, result = canonical_names(module), {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        own = canonical.get(id(tensor))
        if own is None:  # extra state, which is not a tensor
            result[name] = tensor
            continue
        if own not in values:
            raise TreeError("to_state_dict", f"the trees must have {own!r}", got=", ".join(sorted(values)[:5]))
        if tuple(np.shape(values[own])) != tuple(tensor.shape):
            what = f"{own!r} must have the shape {tuple(tensor.shape)}"
            raise ShapeError("to_state_dict", what, got=str(np.shape(values[own])))
        result[name] = values[own]
    known = {canonical.get(id(x)) for x in (*module.state_dict(keep_vars=True).values(), *module.buffers())}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise TreeError("to_state_dict", "every value must belong to the module", got=", ".join(unknown[:5]))
    return {name: to_torch(x) if len(tree.leaves(x)) == 1 else x for name, x in result.items()}
