"""Searching and rewriting TIR: faster versions of ``tvm_ffi.structural_walk`` and ``structural_map``.

Lowering walks a kernel about a hundred times, mostly in small pieces. The functions of ``tvm_ffi`` look up the node
types of callbacks at each call, which takes longer than the walk; here they are looked up once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

_WALK = tvm.get_global_func("ffi.StructuralWalk")
_MAP = tvm.get_global_func("ffi.StructuralMap")
_PREORDER = int(tvm_ffi.WalkOrder.PREORDER)
_POSTORDER = int(tvm_ffi.WalkOrder.POSTORDER)
_SKIP = tvm_ffi.WalkResult.SKIP


@lru_cache(maxsize=256)
def _index(kind: type) -> int:
    return tvm_ffi.core.TypeSchema.from_annotation(kind).origin_type_index


def find(value: Any, *kinds: type) -> list[Any]:
    """Finds all nodes of these types in an expression or statement, children before their parents."""
    nodes: list[Any] = []
    _WALK(value, [(_index(kind), nodes.append) for kind in kinds], [], _POSTORDER)
    return nodes


def find_outside_indices(body: Any, kind: type) -> list[Any]:
    """All nodes of a type in an expression or statement, but not those in the indices of loads and stores."""
    nodes: list[Any] = []

    def in_value(store: tirx.BufferStore) -> tvm_ffi.WalkResult:
        _WALK(store.value, rules, [], _PREORDER)
        return _SKIP

    rules = [
        (_index(kind), nodes.append),
        (_index(ir.TensorLoad), lambda _: _SKIP),
        (_index(tirx.BufferStore), in_value),
    ]
    _WALK(body, rules, [], _PREORDER)
    return nodes


def find_outermost(value: Any, is_wanted: Callable[[Any], bool]) -> list[Any]:
    """All calls and loads in an expression for which ``is_wanted`` holds, but not those within another one."""
    nodes: list[Any] = []

    def visit(node: Any) -> Any:
        if not is_wanted(node):
            return None
        nodes.append(node)
        return _SKIP

    _WALK(value, [(_index(kind), visit) for kind in (ir.Call, ir.TensorLoad)], [], _PREORDER)
    return nodes


def called(value: Any) -> str | None:
    """The name of the operator that an expression calls; None if it is not such a call."""
    return getattr(getattr(value, "op", None), "name", None)


def rewrite(value: Any, *rules: tuple[type, Callable[[Any], Any]]) -> Any:
    """Replaces each node of a rule's type by the rule's result for it, children first."""
    return _MAP(value, [(_index(kind), rule) for kind, rule in rules], [], _POSTORDER)


def with_bodies(module: tvm.IRModule, change: Callable[[tirx.Stmt], tirx.Stmt]) -> tvm.IRModule:
    """The module with the body of each of its functions changed."""
    functions = {name: function.with_body(change(function.body)) for name, function in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)
