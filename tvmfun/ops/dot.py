"""Products: ``dot_general`` contracts any axes of two arrays, with any axes in common."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from tvm import te

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name, plain
from tvmfun.core.op import Op, register
from tvmfun.core.trace import argument, producer
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import shape as shapes
from tvmfun.ops.parameters import Ints, check_axes
from tvmfun.ops.pointwise.conversion import astype
from tvmfun.ops.simplify import as_result, made_by

#: The parameter ``precision`` of products whose factors may be rounded to 11 bits; without it they are exact.
TENSORFLOAT32 = "tensorfloat32"


def _free(ndim: int, batch: Ints, contract: Ints) -> Ints:
    return tuple(axis for axis in range(ndim) if axis not in batch and axis not in contract)


def _dot_shape(
    x: ShapeDtype,
    y: ShapeDtype,
    *,
    contract: tuple[Ints, Ints],
    batch: tuple[Ints, Ints],
    precision: Literal["tensorfloat32"] | None = None,
) -> ShapeDtype:
    for side, factor in enumerate((x, y)):
        check_axes("dot_general", factor, (*contract[side], *batch[side]))
    if x.dtype != y.dtype or x.dtype == dtypes.bool_:
        raise DtypeError("dot_general", "both arrays must have one numeric dtype", got=f"{x} and {y}")
    for left, right in (contract, batch):
        if tuple(x.shape[axis] for axis in left) != tuple(y.shape[axis] for axis in right):
            raise ShapeError("dot_general", f"axes {left} and {right} must have the same sizes", got=f"{x} and {y}")
    sizes = [x.shape[axis] for axis in batch[0]]
    sizes += [x.shape[axis] for axis in _free(x.ndim, batch[0], contract[0])]
    sizes += [y.shape[axis] for axis in _free(y.ndim, batch[1], contract[1])]
    return ShapeDtype(tuple(sizes), x.dtype, weak=x.weak and y.weak)


def _dot(
    x: te.Tensor, y: te.Tensor, *, contract: tuple[Ints, Ints], batch: tuple[Ints, Ints], precision: str | None = None
) -> te.Tensor:
    free = _free(x.ndim, batch[0], contract[0]), _free(y.ndim, batch[1], contract[1])
    sizes = [x.shape[a] for a in batch[0]] + [x.shape[a] for a in free[0]] + [y.shape[a] for a in free[1]]
    reduced = [te.reduce_axis((0, plain(x.shape[axis])), "k") for axis in contract[0]]
    half = dtype_name(x) in ("float16", "bfloat16")
    total = "float32" if half else dtype_name(x)

    def element(*i):
        shared, first = i[: len(batch[0])], i[len(batch[0]) : len(batch[0]) + len(free[0])]
        second = i[len(batch[0]) + len(free[0]) :]
        elements = []
        for side, (tensor, own) in enumerate(((x, first), (y, second))):
            at = dict(zip((*batch[side], *contract[side], *free[side]), (*shared, *reduced, *own), strict=True))
            elements.append(tensor(*(at[axis] for axis in range(tensor.ndim))))
        product = elements[0].astype(total) * elements[1].astype(total)
        return te.sum(product, axis=reduced) if reduced else product

    # Half precision accumulates in float32 and rounds once.
    result = te.compute(sizes, element)
    return te.compute(sizes, lambda *i: result(*i).astype(dtype_name(x))) if half else result


def _dot_vjp(side: int, g: Array, out: Array, x: Array, y: Array, *, contract, batch, **precision: Any) -> Array:
    """The cotangent of one factor contracts ``g`` with the free axes of the other."""
    own, other = (x, y) if side == 0 else (y, x)
    own_free = _free(own.ndim, batch[side], contract[side])
    other_free = _free(other.ndim, batch[1 - side], contract[1 - side])
    shared = len(batch[0])
    g_batch = tuple(range(shared))
    x_free_count = x.ndim - shared - len(contract[0])
    begin = shared + (x_free_count if side == 0 else 0)
    g_other = tuple(range(begin, begin + len(other_free)))
    # The remaining free axes of `other` are its contracted ones, in ascending order.
    matching = [contract[side][contract[1 - side].index(axis)] for axis in sorted(contract[1 - side])]
    by_factor = {0: (*batch[side], *own_free, *matching), 1: (*batch[side], *matching, *own_free)}
    natural = tuple(range(own.ndim))
    # The factors in an order that needs no permutation, if there is one.
    first = next((k for k in (side, 1 - side) if by_factor[k] == natural), side)
    factors = ((g, g_other, g_batch), (other, other_free, batch[1 - side]))
    (left, left_contract, left_batch), (right, right_contract, right_batch) = factors if first == 0 else factors[::-1]
    contract, batch = (left_contract, right_contract), (left_batch, right_batch)
    result = dot_general(left, right, contract=contract, batch=batch, **precision)
    axes = tuple(map(int, np.argsort(by_factor[first])))
    return result if axes == natural else shapes.permute_dims(result, axes=axes)


def _dot_simplify(x: Array, y: Array, *, contract, batch, **precision: Any) -> Array | None:
    """Reads permuted factors without the permutation, if that keeps the order of the result's axes.

    The same holds for factors that are converted after the permutation. Empty sums are zeros.
    """
    if any(not dims.is_dynamic(x.shape[axis]) and x.shape[axis] == 0 for axis in contract[0]):
        return as_result(x.dtype.type(0), _dot_shape(x.aval, y.aval, contract=contract, batch=batch))
    for side, factor in enumerate((x, y)):
        permuted = argument(factor, 0) if made_by(factor, "astype") else factor
        if not made_by(permuted, "permute_dims"):
            continue
        order = producer(permuted).params["axes"]
        free = [order[axis] for axis in _free(factor.ndim, batch[side], contract[side])]
        if free != sorted(free):
            continue
        own = argument(permuted, 0)
        if permuted is not factor:
            own = astype(own, **producer(factor).params)
        factors = (own, y) if side == 0 else (x, own)
        contract, batch = (
            tuple(tuple(order[a] for a in axes) if i == side else axes for i, axes in enumerate(pair))
            for pair in (contract, batch)
        )
        return dot_general(*factors, contract=contract, batch=batch, **precision)
    return None


def _dot_batch(batched: tuple[bool, ...], x: Array, y: Array, *, contract, batch, **precision: Any) -> Array:
    shifted = [tuple(axis + flag for axis in axes) for axes, flag in zip(contract, batched, strict=True)]
    shared = [tuple(axis + flag for axis in axes) for axes, flag in zip(batch, batched, strict=True)]
    if all(batched):
        return dot_general(x, y, contract=tuple(shifted), batch=((0, *shared[0]), (0, *shared[1])), **precision)
    free = len(_free(np.ndim(x), shared[0], shifted[0])), len(_free(np.ndim(y), shared[1], shifted[1]))
    # The batch is one more free axis, the first one of the left array; the order of the others is kept if
    # one of the arrays has no others.
    position = len(shared[0])
    if batched[0]:
        result = dot_general(x, y, contract=tuple(shifted), batch=tuple(shared), **precision)
    elif free[0] == 0 or free[1] == 1:
        result = dot_general(y, x, contract=tuple(reversed(shifted)), batch=tuple(reversed(shared)), **precision)
    else:
        result = dot_general(x, y, contract=tuple(shifted), batch=tuple(shared), **precision)
        position += free[0]
    return shapes.move_axis(result, position, 0)


def _dot_flops(out: ShapeDtype, x: ShapeDtype, y: ShapeDtype, *, contract: tuple[Ints, Ints], **params: Any) -> Any:
    return 2 * out.size * math.prod(x.shape[axis] for axis in contract[0])


#: ``dot_general(x, y, contract=, batch=)``: sums products over the paired axes ``contract``, for each index of the
#: paired axes ``batch``. The result has the batch axes first, then the other axes of ``x``, then those of ``y``.
#: ``precision="tensorfloat32"`` allows factors in float32 to be rounded to 11 bits; the sums are in float32.
dot_general = register(
    Op(
        "dot_general",
        "contraction",
        _dot_shape,
        _dot,
        _dot_vjp,
        inexpensive=False,
        batch=_dot_batch,
        simplify=_dot_simplify,
        precision="summing",
        flops=_dot_flops,
    )
)
