"""Attributes that an array, a layer, an optimizer or a compiled function does not have."""

from __future__ import annotations

import sys
from typing import Any

from tvmfun.names.modules import RENAMED, reason_for
from tvmfun.names.pytorch_names import OF_MODULES, OF_OPTIMIZERS, OF_TENSORS

#: Replacements of attributes of the functions that JAX's ``jit`` returns, and of their ``trace``.
_OF_COMPILED = {
    "as_text": "f.lower(*args).compile().as_text()",
    "clear_cache": "tvmfun.clear_caches()",
    "compile": "f.lower(*args).compile()",
    "eval_shape": "tvmfun.eval_shape(f, *args)",
    "export": "f.lower(*args).compile().export(path)",
    "profile": "f.lower(*args).compile().profile(*args)",
    "trace": "tvmfun.trace(f)(*args)",
}
_FUNCTIONS = ("tvmfun.numpy", "tvmfun.nn.functional", "tvmfun.numpy.linalg", "tvmfun.lax")
#: By kind: replacements of attributes, modules with functions of their names, and the default suggestion.
_KINDS = {
    "array": (OF_TENSORS, _FUNCTIONS, "a function of tvmfun.numpy"),
    "layer": (OF_MODULES, (), "docs/from_pytorch.md, which has a table"),
    "optimizer": (OF_OPTIMIZERS, (), "init and update"),
    "compiled": (_OF_COMPILED, (), "f.lower(*args), or f.__wrapped__"),
}


class MissingAttributeError(AttributeError):
    """An object has no such attribute; the message, made when it is shown, says what does its work."""

    def __init__(self, kind: str, where: str, attribute: str) -> None:
        super().__init__(kind, where, attribute)

    def __str__(self) -> str:
        kind, where, attribute = self.args
        return _explained(kind, where, attribute)

    def __reduce__(self) -> Any:
        return type(self), self.args


def missing_attribute(kind: str, where: str, name: str) -> AttributeError:
    """The error to raise in the ``__getattr__`` of an object.

    Args:
        kind: ``"array"``, ``"layer"``, ``"optimizer"`` or ``"compiled"``.
        where: the name of the object in the message.
        name: of the attribute.

    >>> import tvmfun.numpy as tnp
    >>> tnp.ones(2).unsqueeze
    Traceback (most recent call last):
    tvmfun.names.objects.MissingAttributeError: [Array] there is no attribute 'unsqueeze'. Try tvmfun.numpy.expand_dims.
    """
    if name.startswith("_"):
        return AttributeError(f"{where!r} object has no attribute {name!r}")
    return MissingAttributeError(kind, where, name)


def _explained(kind: str, where: str, name: str) -> str:
    """The message for a missing attribute."""
    table, modules, otherwise = _KINDS[kind]
    start = f"[{where}] there is no attribute {name!r}"
    if name in table:
        return f"{start}. Try {table[name]}."
    if reason := reason_for(name):
        return f"{start}, because {reason}."
    plain = name.rstrip("_")
    function = _function(plain, modules)
    if kind == "array" and plain != name:
        function = function or "x.at[index].set(y)"
        return f"{start}, because arrays are immutable. Try {function}, which returns a new one."
    return f"{start}. Try {function or otherwise}."


def _function(name: str, modules: tuple[str, ...]) -> str | None:
    """The full name of a function of these modules, by its name here or in PyTorch."""
    for module in modules:
        if name in getattr(sys.modules.get(module), "__all__", ()):
            return f"{module}.{name}"
    return RENAMED.get(name) if modules else None
