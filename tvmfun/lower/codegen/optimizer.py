"""The kernels that LLVM's optimizer does not make faster."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from tvmfun.lower.tir import build
from tvmfun.lower.tir.calling_convention import has_sizes
from tvmfun.lower.tir.held_values import is_float
from tvmfun.lower.tir.micro_kernels.products import is_product
from tvmfun.lower.tir.walk import find, find_outside_indices

# Rules whose kernels spend their time in micro-kernels.
_PRODUCTS = ("contraction", "winograd")
_PLAIN = ("float32", "float64", "bool")
_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)


def is_straight(function: tirx.PrimFunc) -> bool:
    """Whether a scheduled kernel consists of micro-kernels and loops that compute vectors from vectors in memory.

    The optimizer gains nothing in such kernels: the only sums to keep in registers are those of columns, which
    ``mem2reg`` finds. Outside of products there are no conditions to move out of loops, no long formulas, and no index
    arithmetic except sums and multiples.
    """
    rule, body = function.attrs.get("tvmfun.rule"), function.body
    if rule not in (*_PRODUCTS, "elementwise", "reduction") or has_sizes(function):
        return False
    stores = find(body, tirx.BufferStore)
    params = set(map(hash, function.params[:]))  # their addresses
    own = [store for store in stores if hash(store.buffer) not in params]
    if rule != "reduction" and any(map(_adds_to_itself, own)):
        return False
    loops = find(body, tirx.For)
    vectors = [loop for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]
    others = [loop for loop in loops if loop.kind != tirx.ForKind.VECTORIZED and not find(loop.body, tirx.For)]
    if any(not _is_vector(store) for loop in others for store in find(loop.body, tirx.BufferStore)):
        return False
    if rule in _PRODUCTS:
        # Instructions on tiles or on packed words are statements.
        return any(map(is_product, find(body, ir.Call)))
    if any(map(build.is_choice, find(body, ir.Call))):
        return False
    of_vectors = [store for loop in vectors for store in find(loop.body, tirx.BufferStore)]
    parallel = [loop for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    if rule == "reduction" and (len(of_vectors) < len(stores) or not _adds_up_columns(body, params, parallel)):
        return False  # other stores are the totals of rows, whose lanes are added up
    # Formulas of functions, and numbers that are widened or divided, take up to a fifth longer.
    if any(map(is_float, find(body, tirx.Bind))) or any(str(s.buffer.dtype) not in _PLAIN for s in of_vectors):
        return False
    return all(_reads_neighbours(loop, [outer.loop_var for outer in parallel]) for loop in vectors)


def _adds_up_columns(body: tirx.Stmt, params: set[int], parallel: Sequence[tirx.For]) -> bool:
    """Whether a reduction reads plain numbers, and its parallel loops have no loops of maps that read parameters.

    Without parallel loops, this holds for the loops that add terms. Loops that reductions share with maps are short,
    and take 1.3 times as long without the optimizer; statements that run once on totals may read parameters.
    """
    if any(str(load.source.dtype) not in _PLAIN for load in find(body, ir.TensorLoad)):
        return False
    reads = lambda store: any(hash(load.source) in params for load in build.loads(store.value))
    for nest in parallel or _nests(body):
        if not parallel and not any(map(_adds_to_itself, find(nest, tirx.BufferStore))):
            continue
        for loop in find(nest, tirx.For):
            stores = find(loop.body, tirx.BufferStore) if loop.kind in build.COUNTED else []
            if not any(map(_adds_to_itself, stores)) and any(map(reads, stores)):
                return False
    return True


def _nests(root: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements of a scheduled kernel, which are loop nests."""
    body = root.block.body if isinstance(root, SBlockRealize) else root
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _adds_to_itself(store: tirx.BufferStore) -> bool:
    return any(load.source.same_as(store.buffer) for load in build.loads(store.value))


def _is_vector(store: tirx.BufferStore) -> bool:
    return bool(store.indices) and isinstance(store.indices[-1], tirx.Ramp)


def _reads_neighbours(loop: tirx.For, fixed: Sequence[ir.Var]) -> bool:
    """Whether the lanes of a vector are neighbours in each array, or one element, at indices without quotients.

    Quotients that only depend on fixed variables are moved out of the loop.
    """
    is_fixed = lambda quotient: all(any(map(var.same_as, fixed)) for var in build.variables(quotient))
    loads = build.loads(loop.body)
    if len(loads) > len(find_outside_indices(loop.body, ir.TensorLoad)):
        return False
    accesses = [(store.buffer, store.indices[:]) for store in find(loop.body, tirx.BufferStore)]
    accesses += [(load.source, load.indices[:]) for load in loads]
    has_quotients = bool(find(loop.body, *_QUOTIENTS))
    seen: dict[tuple[int, ...], list] = {}
    for buffer, indices in accesses:
        offsets = indices
        if has_quotients and any(find(index, *_QUOTIENTS) for index in indices):
            same = seen.setdefault(tuple(map(int, buffer.shape)), [])
            if any(all(map(structural_equal, indices, other)) for other in same):
                continue
            same.append(indices)
            # Quotients by axes that accesses walk as one cancel.
            offsets = [Analyzer().simplify(build.offset(buffer, indices))]
        *outer, last = [0, *(build.step_of(offset, loop.loop_var) for offset in offsets)]
        if any(step != 0 for step in outer) or last not in (0, 1):
            return False
        if has_quotients and not all(
            is_fixed(quotient) for offset in offsets for quotient in find(offset, *_QUOTIENTS)
        ):
            return False
    return True
