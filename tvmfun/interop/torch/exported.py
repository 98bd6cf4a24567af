"""``torch.export`` of a module, and the graph of ATen operators that it decomposes into."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvmfun.errors import ProgramError
from tvmfun.interop.torch.aten import translation_of
from tvmfun.interop.torch.graphs import operator_name, stopped_where_no_grad


def export(module: Any, args: tuple, kwargs: dict[str, Any], train: bool | None, dynamic_shapes: Any) -> Any:
    """The exported program of a module without side effects, of operators of the table as far as possible.

    Raises:
        ProgramError: if ``torch.export`` cannot trace the module.
    """
    import torch

    with _mode(module, train), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what PyTorch will change
        try:
            program = torch.export.export(module, args, kwargs, dynamic_shapes=_sizes(dynamic_shapes, {}))
        except Exception as error:  # torch.export has no error class of its own
            reason = str(error).strip().split("\n")[0]
            hint = "torch.export.export(module, example_args), which explains it"
            raise ProgramError("from_torch", "torch.export cannot trace the module", got=reason, hint=hint) from error
        for part in program.graph_module.modules():
            if isinstance(part, torch.fx.GraphModule):
                stopped_where_no_grad(part)
        return program.run_decompositions(decompositions())


def _never_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether a mask can be left out; without its data, no mask is."""
    return bool(is_causal)


@contextmanager
def _mode(module: Any, train: bool | None) -> Iterator[None]:
    """Sets the mode of a module and its submodules; afterwards each has its own again.

    Meanwhile, transformers take no fast paths: those depend on the data of masks, or have operators of their own.
    """
    import torch
    from torch.nn.modules import transformer

    detect = transformer._detect_is_causal_mask
    modes = [(part, part.training) for part in module.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        if train is not None:
            module.train(train)
        torch.backends.mha.set_fastpath_enabled(False)
        transformer._detect_is_causal_mask = _never_causal
        yield
    finally:
        transformer._detect_is_causal_mask = detect
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, training in modes:
            part.training = training


def _sizes(spec: Any, made: dict[str, Any]) -> Any:
    """``dynamic_shapes`` with a ``torch.export.Dim`` for each name."""
    import torch

    if isinstance(spec, str):
        return made.setdefault(spec, torch.export.Dim(spec))
    if isinstance(spec, dict):
        return {key: _sizes(value, made) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return type(spec)(_sizes(value, made) for value in spec)
    return spec


def decompositions() -> dict[Any, Any]:
    """PyTorch's decompositions of operators that the table lacks."""
    import torch
    from torch._decomp import decomposition_table

    table = dict(torch.export.default_decompositions().items())
    for operator, function in decomposition_table.items():
        if isinstance(operator, torch._ops.OpOverload) and operator.namespace == "aten":
            table.setdefault(operator, function)
    return {operator: f for operator, f in table.items() if translation_of(operator_name(operator)) is None}
