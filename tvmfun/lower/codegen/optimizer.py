"""The kernels that LLVM's optimizer does not make faster."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from tvmfun.lower.tir import build
from tvmfun.lower.tir.calling_convention import has_sizes
from tvmfun.lower.tir.held_values import is_float
from tvmfun.lower.tir.micro_kernels.products import is_product
from tvmfun.lower.tir.walk import find

# Rules whose kernels spend their time in micro-kernels.
_PRODUCTS = ("contraction", "winograd")
_PLAIN = ("float32", "float64", "bool")
_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)


def is_straight(function: tirx.PrimFunc) -> bool:
    """Whether a scheduled kernel is loops over vectors that are computed from vectors in memory, and micro-kernels.

    Code generation leaves nothing to gain there: no sums to keep in registers, and, outside of products, no conditions
    to move out of loops, no long formulas, and no index arithmetic but sums and multiples.
    """
    rule, body = function.attrs.get("tvmfun.rule"), function.body
    if rule not in (*_PRODUCTS, "elementwise") or has_sizes(function):
        return False
    own = [store for store in find(body, tirx.BufferStore) if not _is_parameter(store.buffer, function)]
    if any(map(_adds_to_itself, own)):
        return False
    innermost = [loop for loop in find(body, tirx.For) if not find(loop.body, tirx.For)]
    vectors = [loop for loop in innermost if loop.kind == tirx.ForKind.VECTORIZED]
    others = [loop for loop in innermost if loop.kind != tirx.ForKind.VECTORIZED]
    if any(not _is_vector(store) for loop in others for store in find(loop.body, tirx.BufferStore)):
        return False
    if rule in _PRODUCTS:
        # Instructions on tiles or on packed words are statements.
        return any(map(is_product, find(body, ir.Call)))
    if any(map(build.is_choice, find(body, ir.Call))):
        return False
    # Formulas of functions, and numbers that are widened or divided, take up to a fifth longer.
    stores = [store for loop in vectors for store in find(loop.body, tirx.BufferStore)]
    if any(map(is_float, find(body, tirx.Bind))) or any(str(s.buffer.dtype) not in _PLAIN for s in stores):
        return False
    return all(_reads_neighbours(loop) for loop in vectors)


def _is_parameter(buffer: tirx.Buffer, function: tirx.PrimFunc) -> bool:
    return any(param.same_as(buffer) for param in function.params)


def _adds_to_itself(store: tirx.BufferStore) -> bool:
    return any(load.source.same_as(store.buffer) for load in build.loads(store.value))


def _is_vector(store: tirx.BufferStore) -> bool:
    return bool(store.indices) and isinstance(store.indices[-1], tirx.Ramp)


def _reads_neighbours(loop: tirx.For) -> bool:
    """Whether the lanes of a vector are neighbours in each array, or one element, at an index without quotients."""
    stores = [(store.buffer, store.indices) for store in find(loop.body, tirx.BufferStore)]
    seen: dict[tuple[int, ...], list] = {}
    for buffer, indices in stores + [(load.source, load.indices) for load in build.loads(loop.body)]:
        offsets = indices
        if any(find(index, *_QUOTIENTS) for index in indices):
            same = seen.setdefault(tuple(map(int, buffer.shape)), [])
            if any(all(map(structural_equal, indices, other)) for other in same):
                continue
            same.append(indices)
            # Quotients by axes that are walked as one cancel.
            offsets = [Analyzer().simplify(build.offset(buffer, indices))]
        *outer, last = [0, *(build.step_of(offset, loop.loop_var) for offset in offsets)]
        if any(step != 0 for step in outer) or last not in (0, 1):
            return False
        if any(find(offset, *_QUOTIENTS, ir.TensorLoad) for offset in offsets):
            return False
    return True
