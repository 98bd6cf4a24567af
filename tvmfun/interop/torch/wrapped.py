"""``wrap``: a function of parameters as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.interop.torch.pullbacks import Differentiable, apply, types_of
from tvmfun.interop.torch.tensors import to_tensor
from tvmfun.typing import PyTree


def wrap(f: Callable[..., PyTree], params: PyTree) -> Any:
    """Returns a ``torch.nn.Module`` whose ``forward(*args, **kwargs)`` computes ``f(params, *args, **kwargs)``.

    Forward and backward pass are compiled, for each combination of shapes and dtypes. Tensors on the CPU go in and come
    out without a copy. Autograd sees one function, which has derivatives of any order, so the module works with any
    optimizer, hook or loss of PyTorch.

    Args:
        f: a pure function of trees of arrays.
        params: a tree of arrays, whose values are copied. Floats become parameters, other arrays buffers; their names
            are the key paths joined by dots.

    Returns:
        The module. It takes tensors, numbers and trees of them, and returns the tree that ``f`` returns with a
        tensor in place of each array.

    Raises:
        ArgumentError: if ``f`` is not a function, or two key paths have one name.
        GradientError: in the backward pass, if an op of ``f`` has no derivative.
    """
    if not callable(f):
        raise ArgumentError("wrap", "the first argument must be a function", got=type(f).__name__)
    return _module_class()(f, params)


def names_of(params: PyTree) -> list[str]:
    """The key paths of a tree's leaves, joined by dots."""
    return [".".join(map(str, _parts(path))) or "value" for path, _ in tree.leaves_with_path(params)]


def _parts(path: tuple) -> list[Any]:
    for_names = (getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))) for key in path)
    return [str(part).replace(".", "_") for part in for_names]


@cache
def _module_class() -> type:
    from torch import nn

    class Wrapped(nn.Module):
        """A function of tvmfun as a module."""

        def __init__(self, f: Callable[..., PyTree], params: PyTree) -> None:
            super().__init__()
            leaves, self._structure = tree.flatten(params)
            self._names = names_of(params)
            if len(set(self._names)) < len(self._names):
                raise ArgumentError("wrap", "key paths must have different names", got=", ".join(self._names))
            self._f = f
            self._functions: dict[tree.Structure, Differentiable] = {}
            for name, leaf in zip(self._names, leaves, strict=True):
                self._add(name, to_tensor(leaf if isinstance(leaf, Array) else tnp.asarray(leaf)).clone())

        def _add(self, name: str, tensor: Any) -> None:
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            if tensor.is_floating_point():
                owner.register_parameter(last, nn.Parameter(tensor))
            else:
                owner.register_buffer(last, tensor)

        def params(self) -> PyTree:
            """Returns the tree of parameters with the module's tensors."""
            held = dict(self.named_parameters(remove_duplicate=False))
            held.update(self.named_buffers(remove_duplicate=False))
            return tree.unflatten(self._structure, [held[name] for name in self._names])

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            leaves, structure = tree.flatten((self.params(), args, kwargs))
            if structure not in self._functions:
                self._functions[structure] = _flat(self._f, structure)
            function = self._functions[structure]
            return tree.unflatten(function.program(types_of(leaves)).out_tree, apply(function, leaves))

        def extra_repr(self) -> str:
            return getattr(self._f, "__name__", type(self._f).__name__)

    return Wrapped


def _flat(f: Callable[..., PyTree], structure: tree.Structure) -> Differentiable:
    """The function of leaves for arguments of one tree."""

    def function(*leaves: Any) -> PyTree:
        params, args, kwargs = tree.unflatten(structure, leaves)
        return f(params, *args, **kwargs)

    return Differentiable(function, getattr(f, "__name__", type(f).__name__))
