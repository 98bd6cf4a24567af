"""A backend of ``torch.compile``: the parts of a graph that the table has rows for are compiled here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from tvmfun.core.trace import trace
from tvmfun.errors import TvmfunError
from tvmfun.interop.layouts import channels_first
from tvmfun.interop.torch.aten import translation_of
from tvmfun.interop.torch.exported import decompositions
from tvmfun.interop.torch.graphs import Graph, call_operator, is_operator, mapped, operator_name
from tvmfun.interop.torch.tensors import aval_of, borrowed, dtype_name, owned, to_tensor
from tvmfun.jit import jit

#: The dtypes of tensors that compiled parts take.
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "bfloat16", "float16", "float32", "float64")
#: Operators that are not worth a compiled part by themselves.
_MOVES = {
    *("alias", "clone", "detach", "empty", "expand", "full", "getitem", "permute", "select", "slice", "split"),
    *("split_with_sizes", "squeeze", "t", "transpose", "unsqueeze", "view", "_unsafe_view"),
}


def backend(graph_module: Any, example_inputs: Sequence[Any], **options: Any) -> Callable:
    """Compiles a graph of ``torch.compile``, forward and backward: ``torch.compile(module, backend="tvmfun")``.

    PyTorch's AOTAutograd writes both passes as graphs of ATen operators. Connected parts of them, of operators that
    have a translation, are compiled here. The rest stays PyTorch's: operators without a translation, those that draw
    random numbers, so that ``torch.manual_seed`` holds, and tensors that are not on the CPU.

    Args:
        graph_module: the graph that Dynamo has captured.
        example_inputs: its inputs.
        **options: of ``torch.compile``; there are none.

    Returns:
        The compiled function.
    """
    return _autograd()(graph_module, example_inputs, **options)


@cache
def _autograd() -> Callable:
    import torch
    from torch._dynamo.backends.common import aot_autograd

    compiler = torch.compiler.disable(_compile)
    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions())


def _compile(graph_module: Any, example_inputs: Sequence[Any]) -> Callable:
    """A graph with each of its parts that can be translated replaced by a compiled function."""
    import torch
    from functorch import compile as functorch
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

    partitioner = CapabilityBasedPartitioner(graph_module, _support_class()(), allows_single_node_partition=True)
    parts = [part for part in partitioner.propose_partitions() if _is_worth_a_call(part.nodes)]
    fused = partitioner.fuse_partitions(parts, prefix="tvmfun_")
    for name, part in list(fused.named_children()):
        if name.startswith("tvmfun_"):
            setattr(fused, name, _part_class()(part))
    fused.recompile()
    # Dynamo must not capture the code that runs in here.
    return functorch.make_boxed_func(torch.compiler.disable(fused.forward))


def _is_worth_a_call(nodes: Iterable[Any]) -> bool:
    return any(operator_name(node.target).partition(".")[0] not in _MOVES for node in nodes)


# -- which nodes -------------------------------------------------------------------------------------------------------


@cache
def _support_class() -> type:
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Support(OperatorSupportBase):
        """Which nodes are compiled."""

        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            if node.op != "call_function":
                return False
            if operator_name(node.target) == "getitem":
                return self.is_node_supported(submodules, node.args[0])
            return is_operator(node.target) and _can_translate(node)

    return Support


def _can_translate(node: Any) -> bool:
    """Whether a node has a translation for its arguments, which are tensors on the CPU and static."""
    if "can_translate" not in node.meta:
        node.meta["can_translate"] = _tries(node)
    return node.meta["can_translate"]


def _tries(node: Any) -> bool:
    row = translation_of(operator_name(node.target))
    results = node.meta.get("val")
    results = list(results) if isinstance(results, list | tuple) else [results]
    inputs = [source.meta.get("val") for source in node.all_input_nodes]
    tensors = [x for x in (*inputs, *results) if hasattr(x, "dtype")]
    if row is None or row.random or not all(map(_is_plain, tensors)):
        return False
    if any(x is not None and not hasattr(x, "dtype") for x in results):
        return False  # the result is a size
    sources = [source for source, x in zip(node.all_input_nodes, inputs, strict=True) if hasattr(x, "dtype")]
    if len(sources) < len(inputs) or not all(isinstance(n, int) for x in tensors for n in x.shape):
        return True  # dynamic sizes: found out when it is called

    def run(*arrays: Any) -> Any:
        values = dict(zip(sources, arrays, strict=True))
        read = lambda item: values.get(item, item) if hasattr(item, "meta") else item
        kwargs = {name: mapped(x, read) for name, x in node.kwargs.items()}
        result = call_operator(node, mapped(list(node.args), read), kwargs)
        used = [user.args[1] for user in node.users if operator_name(user.target) == "getitem"]
        parts = [result[i] for i in used] if used else [result]
        return [channels_first(x) for part in parts for x in (part if isinstance(part, list | tuple) else [part])]

    try:
        trace(run)(*(aval_of(source.meta["val"]) for source in sources))
    except (TvmfunError, TypeError, ValueError, NotImplementedError):
        return False
    return True


def _is_plain(tensor: Any) -> bool:
    import torch

    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return is_dense and dtype_name(tensor.dtype) in _DTYPES


# -- compiled parts ----------------------------------------------------------------------------------------------------


@cache
def _part_class() -> type:
    import torch

    class Part(torch.nn.Module):
        """A part of a graph as a compiled function of tensors, and of sizes, for which it is compiled anew."""

        def __init__(self, graph_module: Any) -> None:
            super().__init__()
            self._graph = Graph(graph_module)
            (results,) = graph_module.graph.output_node().args
            self._is_single = not isinstance(results, list | tuple)
            self._types = [node.meta["val"] for node in ([results] if self._is_single else results)]
            self._compiled: dict[tuple, Callable] = {}

        def forward(self, *inputs: Any) -> Any:
            sizes = tuple(None if isinstance(x, torch.Tensor) else int(x) for x in inputs)
            if sizes not in self._compiled:
                self._compiled[sizes] = jit(_of_arrays(self._graph, sizes))
            arrays = [borrowed(x) for x in inputs if isinstance(x, torch.Tensor)]
            results = owned(self._compiled[sizes](*arrays), arrays)
            tensors = [_strided(to_tensor(x), like) for x, like in zip(results, self._types, strict=True)]
            return tensors[0] if self._is_single else tuple(tensors)

    return Part


def _of_arrays(graph: Graph, sizes: tuple) -> Callable[..., list]:
    """The graph as a function of its inputs that are arrays."""

    def run(*arrays: Any) -> list:
        arriving = iter(arrays)
        results = graph([next(arriving) if size is None else size for size in sizes])
        return list(results) if isinstance(results, list | tuple) else [results]

    return run


def _strided(tensor: Any, like: Any) -> Any:
    """The tensor with the strides that PyTorch planned, on which later operators may rely."""
    import torch

    strides = like.stride()
    if tensor.stride() == strides or not all(isinstance(n, int) for n in (*strides, *like.shape)):
        return tensor
    if tensor.numel() == 0 or not torch._prims_common.is_non_overlapping_and_dense_or_false(like):
        return tensor
    return torch.empty_strided(like.shape, strides, dtype=tensor.dtype).copy_(tensor)
