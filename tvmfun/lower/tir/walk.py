"""Searching and rewriting TIR: what `tvm_ffi.structural_walk` and `structural_map` do, for callers in a hurry.

A kernel is walked through some hundred times on its way, mostly in small pieces. The functions of `tvm_ffi` look up
at each call which nodes a callback is for, in more time than the walk takes; here they are looked up once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi

_WALK = tvm.get_global_func("ffi.StructuralWalk")
_MAP = tvm.get_global_func("ffi.StructuralMap")
# Children come before the nodes that hold them.
_POSTORDER = int(tvm_ffi.WalkOrder.POSTORDER)


@lru_cache(maxsize=256)
def _index(kind: type) -> int:
    return tvm_ffi.core.TypeSchema.from_annotation(kind).origin_type_index


def find(value: Any, *kinds: type) -> list[Any]:
    """All nodes of these kinds in an expression or statement, in order, inner ones first."""
    found: list[Any] = []
    _WALK(value, [(_index(kind), found.append) for kind in kinds], [], _POSTORDER)
    return found


def called(value: Any) -> str | None:
    """The name of the operator that an expression is a call of; None if it is no such call."""
    return getattr(getattr(value, "op", None), "name", None)


def rewrite(value: Any, *rules: tuple[type, Callable[[Any], Any]]) -> Any:
    """The value with each node of a rule's kind replaced by what the rule makes of it, inner ones first."""
    return _MAP(value, [(_index(kind), rule) for kind, rule in rules], [], _POSTORDER)
