"""Products summed over axes: matrix products, ``einsum``, outer and vector products, and their precision."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from typing import Any

import opt_einsum

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.diagonals import diagonal
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import multiply, not_equal, subtract
from tvmfun.numpy.promotion import NestedArrayLike, no_out
from tvmfun.numpy.reductions import any, sum
from tvmfun.numpy.shapes import broadcast_to, expand_dims, moveaxis, normalize_axis, permute_dims, ravel, reshape, stack
from tvmfun.ops import dot as ops
from tvmfun.ops import pointwise
from tvmfun.typing import DTypeLike

__all__ = [
    "cross",
    "dot",
    "einsum",
    "einsum_path",
    "inner",
    "kron",
    "matmul",
    "matvec",
    "outer",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]


class Precision(enum.Enum):
    """The precision of products of float32 arrays.

    ``HIGH`` allows factors to be rounded to 11 bits; sums are in float32. GPUs round them to tf32, which tensor cores
    multiply. CPUs with AMX compute large products as three of bfloat16, which keeps 16 bits; numbers below about 1e-35
    lose some of these. With the others, and on other CPUs, products are exact float32. The default is exact, too,
    unlike that of JAX.

    >>> Precision("highest") is Precision.HIGHEST
    True
    """

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


# JAX's names that allow 11 bits; formats of fewer bits, too: results are at least as precise as asked for.
_TENSORFLOAT32 = {Precision.HIGH, "high", "tensorfloat32", "bfloat16", "fastest"}

#: JAX's strings: the members, their synonyms, and the formats of the factors on accelerators.
_NAMES = {precision.value for precision in Precision} | {
    "fastest",
    "bfloat16",
    "bfloat16_3x",
    "tensorfloat32",
    "float32",
}


def check_precision(name: str, precision: Any) -> None:
    """Raises ``ArgumentError`` unless ``precision`` is None, a :class:`Precision`, its name, or a pair of these."""
    pair = precision if isinstance(precision, tuple | list) and len(precision) == 2 else (precision,)
    for one in pair:
        if not (one is None or isinstance(one, Precision) or (isinstance(one, str) and one.lower() in _NAMES)):
            hint = 'None for exact float32, or "high"'
            raise ArgumentError(name, f"the precision is one of {', '.join(sorted(_NAMES))}", got=repr(one), hint=hint)


def reduced_precision(dtype: Any, precision: Any) -> dict[str, str]:
    """The parameter of a product of arrays of a dtype whose factors may be rounded, if ``precision`` says so."""
    pair = precision if isinstance(precision, tuple | list) else (precision,)
    names = {one.lower() if isinstance(one, str) else one for one in pair}
    return {"precision": ops.TENSORFLOAT32} if dtype == dtypes.float32 and names <= _TENSORFLOAT32 else {}


def factors(
    name: str, *values: Any, precision: Any = None, preferred_element_type: DTypeLike | None = None
) -> list[Array]:
    """The operands of a product as arrays of one dtype.

    Args:
        name: of the function, for its errors.
        values: its operands.
        precision: see :func:`check_precision`.
        preferred_element_type: the dtype to multiply, to sum and to return in; None for the one they promote to.
    """
    if precision is not None:
        check_precision(name, precision)
    if preferred_element_type is None:
        return arrays(name, *values)
    return [astype(asarray(value), preferred_element_type) for value in values]


def dot_general(x1: Array, x2: Array, *, contract: Any, batch: Any, precision: Any = None) -> Array:
    """The product summed over pairs of axes; of bools, whether any product is true."""
    if x1.dtype == x2.dtype == dtypes.bool_:
        x1, x2 = (astype(x, dtypes.DEFAULT_INT) for x in (x1, x2))
        return not_equal(ops.dot_general(x1, x2, contract=contract, batch=batch), 0)
    return ops.dot_general(x1, x2, contract=contract, batch=batch, **reduced_precision(x1.dtype, precision))


def _require_match(name: str, x1: Array, axis1: int, x2: Array, axis2: int) -> None:
    if x1.shape[axis1] != x2.shape[axis2]:
        raise ShapeError(
            name,
            f"axis {axis1} on the left and axis {axis2} on the right must have one size",
            got=f"{x1.aval} and {x2.aval}",
        )


def matmul(
    a: NestedArrayLike, b: NestedArrayLike, *, precision: Any = None, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Returns the matrix product over the last axis of ``a`` and the last but one of ``b``.

    The other axes broadcast. A vector is a row on the left and a column on the right, and its axis vanishes.

    Args:
        a: the left array.
        b: the right array.
        precision: ``"high"`` allows float32 factors to be rounded to 11 bits; see :class:`Precision`.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the operands.

    Raises:
        ShapeError: for 0-d arrays, or if the sizes do not match.

    Source: the array API's ``matmul``.

    >>> matmul([[1, 2], [3, 4]], [1, 1])
    Array([3, 7], dtype=int32)
    """
    a, b = factors("matmul", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if not a.ndim or not b.ndim:
        raise ShapeError("matmul", "0-d arrays have no matrix product", got=f"{a.aval} and {b.aval}", hint="x1 * x2")
    inner = max(b.ndim - 2, 0)
    _require_match("matmul", a, a.ndim - 1, b, inner)
    if b.ndim <= 2:  # one matrix for all: one contraction, for any leading axes
        return dot_general(a, b, contract=((a.ndim - 1,), (inner,)), batch=((), ()), precision=precision)
    if a.ndim == 1:
        return dot_general(b, a, contract=((inner,), (0,)), batch=((), ()), precision=precision)
    lead = pointwise.broadcast_shapes("matmul", [a.shape[:-2], b.shape[:-2]])
    a = broadcast_to(a, lead + a.shape[-2:])
    b = broadcast_to(b, lead + b.shape[-2:])
    shared = tuple(range(len(lead)))
    rank = len(lead) + 2
    return dot_general(a, b, contract=((rank - 1,), (rank - 2,)), batch=(shared, shared), precision=precision)


def dot(
    a: NestedArrayLike, b: NestedArrayLike, *, precision: Any = None, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Returns the product over the last axis of ``a`` and the last but one of ``b``; nothing broadcasts."""
    a, b = factors("dot", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if not a.ndim or not b.ndim:
        return multiply(a, b)
    inner = max(b.ndim - 2, 0)
    _require_match("dot", a, a.ndim - 1, b, inner)
    return dot_general(a, b, contract=((a.ndim - 1,), (inner,)), batch=((), ()), precision=precision)


def tensordot(
    a: NestedArrayLike,
    b: NestedArrayLike,
    axes: int | Sequence[Any] = 2,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the product summed over pairs of axes.

    Args:
        a: the left array.
        b: the right array.
        axes: how many, the last of ``a`` and the first of ``b``; or the axes of each, ``((0, 1), (1, 0))``.
        precision: ``"high"`` allows float32 factors to be rounded to 11 bits; see :class:`Precision`.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the operands.
    """
    a, b = factors("tensordot", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ShapeError("tensordot", f"there are no {axes} axes", got=f"{a.aval} and {b.aval}")
        lists = [tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))]
    else:
        lists = [(own,) if isinstance(own, int) else tuple(own) for own in axes]
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise ArgumentError("tensordot", "there must be as many axes on the left and right", got=str(axes))
    left, right = (
        tuple(normalize_axis("tensordot", axis, x.ndim) for axis in own) for own, x in zip(lists, (a, b), strict=True)
    )
    for i, j in zip(left, right, strict=True):
        _require_match("tensordot", a, i, b, j)
    return dot_general(a, b, contract=(left, right), batch=((), ()), precision=precision)


def vecdot(
    x1: NestedArrayLike,
    x2: NestedArrayLike,
    /,
    axis: int = -1,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the dot products along an axis; the other axes broadcast."""
    x1, x2 = factors("vecdot", x1, x2, precision=precision, preferred_element_type=preferred_element_type)
    _require_match("vecdot", x1, normalize_axis("vecdot", axis, x1.ndim), x2, normalize_axis("vecdot", axis, x2.ndim))
    x1, x2 = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    common = pointwise.broadcast_shapes("vecdot", [x1.shape, x2.shape])
    x1, x2 = broadcast_to(x1, common), broadcast_to(x2, common)
    last = len(common) - 1
    shared = tuple(range(last))
    return dot_general(x1, x2, contract=((last,), (last,)), batch=(shared, shared), precision=precision)


def outer(a: NestedArrayLike, b: NestedArrayLike, out: None = None) -> Array:
    """Returns all products of an element of ``a`` and one of ``b``."""
    no_out("outer", out)
    a, b = arrays("outer", a, b)
    return multiply(reshape(a, (a.size, 1)), reshape(b, (1, b.size)))


def inner(
    a: NestedArrayLike, b: NestedArrayLike, *, precision: Any = None, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Returns the products over the last axes of both arrays; numbers are multiplied."""
    a, b = factors("inner", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if not a.ndim or not b.ndim:
        return multiply(a, b)
    _require_match("inner", a, a.ndim - 1, b, b.ndim - 1)
    return dot_general(a, b, contract=((a.ndim - 1,), (b.ndim - 1,)), batch=((), ()), precision=precision)


def vdot(
    a: NestedArrayLike, b: NestedArrayLike, *, precision: Any = None, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Returns the dot product of the flattened arrays."""
    return vecdot(ravel(a), ravel(b), precision=precision, preferred_element_type=preferred_element_type)


def matvec(x1: NestedArrayLike, x2: NestedArrayLike, /) -> Array:
    """Returns the products of matrices and vectors; the other axes broadcast."""
    return matmul(x1, expand_dims(x2, -1))[..., 0]


def vecmat(x1: NestedArrayLike, x2: NestedArrayLike, /) -> Array:
    """Returns the products of vectors and matrices; the other axes broadcast."""
    return matmul(expand_dims(x1, -2), x2)[..., 0, :]


def kron(a: NestedArrayLike, b: NestedArrayLike) -> Array:
    """Returns the Kronecker product: each element of ``a`` times all of ``b``, in place of the element.

    >>> kron([1, 10], [1, 2])
    Array([ 1,  2, 10, 20], dtype=int32)
    """
    a, b = arrays("kron", a, b)
    rank = max(a.ndim, b.ndim)
    a, b = (reshape(x, (1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    outside, inside = (expand_dims(x, range(start, 2 * rank, 2)) for x, start in ((a, 1), (b, 0)))
    return reshape(multiply(outside, inside), tuple(m * n for m, n in zip(a.shape, b.shape, strict=True)))


def cross(
    a: NestedArrayLike, b: NestedArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Array:
    """Returns the vector products along an axis of size 3, or their third elements for size 2; other axes broadcast.

    Args:
        a: the left vectors.
        b: the right vectors.
        axisa: the axis of ``a`` with the elements of a vector.
        axisb: the axis of ``b`` with the elements of a vector.
        axisc: the axis of the result with the elements of a vector.
        axis: the axis for all three.

    >>> cross([1, 0, 0], [0, 1, 0])
    Array([0, 0, 1], dtype=int32)
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = arrays("cross", a, b)
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    sizes = (a.shape[-1], b.shape[-1])
    if not {2, 3}.issuperset(sizes):
        raise ShapeError("cross", "the vectors must have 3 or 2 elements", got=f"{sizes[0]} and {sizes[1]}")
    left, right = ([x[..., i] for i in range(x.shape[-1])] for x in (a, b))
    third = subtract(left[0] * right[1], left[1] * right[0])
    if sizes == (2, 2):
        return third
    zero = a.dtype.type(0)
    left, right = ([*v, zero] if len(v) == 2 else v for v in (left, right))
    parts = [
        subtract(left[1] * right[2], left[2] * right[1]),
        subtract(left[2] * right[0], left[0] * right[2]),
        third,
    ]
    common = pointwise.broadcast_shapes("cross", [part.shape for part in parts])
    return moveaxis(stack([broadcast_to(part, common) for part in parts], -1), -1, axisc)


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns sums of products of elements, over the letters that the result does not have.

    Args:
        subscripts: a letter for each axis of each array, and of the result: ``"ij,jk->ik"``. Axes of the same letter
            have one size, or size 1. ``...`` stands for axes that broadcast. Without ``->`` the result has the letters
            that occur once, in alphabetical order. Or, as in NumPy, arrays and lists of numbers take turns.
        operands: the arrays.
        out: must be None: arrays are immutable.
        optimize: how to find the order of the products: a strategy of ``opt_einsum`` (``"auto"``, ``"optimal"``,
            ``"greedy"``, ...), a list of pairs, or False for one from left to right.
        precision: ``"high"`` allows float32 factors to be rounded to 11 bits; see :class:`Precision`.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the operands.

    Raises:
        ArgumentError: for subscripts that cannot be read, or do not fit the arrays.
        ShapeError: if axes of one letter have different sizes.

    Source: ``numpy.einsum``; the order comes from ``opt_einsum``.

    >>> einsum("ij,j->i", [[1, 2], [3, 4]], [1, 10])
    Array([21, 43], dtype=int32)
    """
    no_out("einsum", out)
    check_precision("einsum", precision)
    inputs, result, tensors = _parsed(subscripts, operands)
    if preferred_element_type is not None:
        tensors = [astype(x, preferred_element_type) for x in tensors]
    sizes = _sizes(inputs, tensors)
    terms = [_without_repeats(term, x) for term, x in zip(inputs, tensors, strict=True)]
    for pair in _order(inputs, result, sizes, optimize):
        chosen = [terms[i] for i in pair]
        terms = [term for i, term in enumerate(terms) if i not in pair]
        needed = set(result).union(*(letters for letters, _ in terms))
        while len(chosen) > 1:
            first, second, *chosen = chosen
            kept = needed.union(*(letters for letters, _ in chosen))
            chosen = [_product(first, second, kept, sizes, precision), *chosen]
        terms.append(chosen[0])
    letters, x = terms[0]
    letters, x = _summed(letters, x, set(result))
    if set(letters) != set(result):
        missing = "".join(sorted(set(result) - set(letters)))
        raise ArgumentError("einsum", "the result has letters that no array has", got=missing)
    return permute_dims(x, [letters.index(letter) for letter in result])


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[list[Any], str]:
    """Returns the order in which :func:`einsum` multiplies, as NumPy writes it, and a report on its cost."""
    inputs, result, tensors = _parsed(subscripts, operands)
    shapes = [dims.typical(x.shape) for x in tensors]
    path, info = opt_einsum.contract_path(f"{','.join(inputs)}->{result}", *shapes, shapes=True, optimize=optimize)
    return ["einsum_path", *path], str(info)


def _parsed(subscripts: Any, operands: Sequence[Any]) -> tuple[list[str], str, list[Array]]:
    """The letters of each array and of the result, without ellipses, and the arrays in one dtype."""
    if isinstance(subscripts, str):
        tensors = arrays("einsum", *operands) if operands else []
        values = (subscripts, *tensors)
    else:
        values = [subscripts, *operands]
        indices = range(0, len(values) - len(values) % 2, 2)
        tensors = arrays("einsum", *(values[i] for i in indices))
        for i, x in zip(indices, tensors, strict=True):
            values[i] = x
    if not tensors:
        raise ArgumentError("einsum", "there must be an array for each term", got="none")
    try:
        left, result, _ = opt_einsum.parser.parse_einsum_input(tuple(values))  # type: ignore[reportAttributeAccessIssue]
    except (IndexError, TypeError, ValueError) as error:
        raise ArgumentError("einsum", "the subscripts do not fit the arrays", got=str(error)) from error
    inputs = left.split(",")
    for term, x in zip(inputs, tensors, strict=True):
        if len(term) != x.ndim:
            raise ArgumentError("einsum", f"{term!r} names {len(term)} axes", got=repr(x.aval))
    return inputs, result, tensors


def _sizes(inputs: Sequence[str], tensors: Sequence[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, x in zip(inputs, tensors, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            if sizes.setdefault(letter, size) not in (size, 1) and size != 1:
                what = f"axis {letter!r} has sizes {sizes[letter]} and {size}"
                raise ShapeError("einsum", what, got=" and ".join(repr(x.aval) for x in tensors))
            sizes[letter] = size if sizes[letter] == 1 else sizes[letter]
    return sizes


def _order(inputs: Sequence[str], result: str, sizes: dict[str, int], optimize: Any) -> Sequence[Sequence[int]]:
    if len(inputs) <= 2 or optimize is False:
        return [tuple(range(len(inputs)))]
    shapes = [dims.typical(tuple(sizes[letter] for letter in term)) for term in inputs]
    if isinstance(optimize, list | tuple):  # NumPy's begins with a word
        optimize = [pair for pair in optimize if not isinstance(pair, str)]
    return opt_einsum.contract_path(f"{','.join(inputs)}->{result}", *shapes, shapes=True, optimize=optimize)[0]  # type: ignore[reportReturnType]


Term = tuple[str, Array]


def _without_repeats(letters: str, x: Array) -> Term:
    """The diagonal over axes that have one letter."""
    for letter, count in Counter(letters).items():
        for _ in range(count - 1):
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError("einsum", f"the axes {letter!r} of one array must have one size", got=repr(x.aval))
            x = diagonal(x, 0, first, second)
            letters = letters[:first] + letters[first + 1 : second] + letters[second + 1 :] + letter
    return letters, x


def _summed(letters: str, x: Array, kept: set[str]) -> Term:
    """Sums over the letters that are not needed; of bools, whether any element is true."""
    axes = tuple(i for i, letter in enumerate(letters) if letter not in kept)
    if not axes:
        return letters, x
    total = any(x, axes) if x.dtype == dtypes.bool_ else sum(x, axes, x.dtype)
    return "".join(letter for letter in letters if letter in kept), total


def _product(first: Term, second: Term, kept: set[str], sizes: dict[str, int], precision: Any) -> Term:
    """The product of two arrays, summed over the letters that are not needed any more."""
    sides = []
    for (letters, x), (others, _) in ((first, second), (second, first)):
        letters, x = _summed(letters, x, kept.union(others))
        # Axes of size 1 that broadcast against the other operand are dropped.
        real = [i for i, letter in enumerate(letters) if x.shape[i] == sizes[letter] or letter not in others]
        sides.append(("".join(letters[i] for i in real), reshape(x, tuple(x.shape[i] for i in real))))
    (left, x), (right, y) = sides
    # A letter dropped from one operand may be summed in the other.
    left, x = _summed(left, x, kept.union(right))
    right, y = _summed(right, y, kept.union(left))
    batch = [letter for letter in left if letter in right and letter in kept]
    contract = [letter for letter in left if letter in right and letter not in kept]
    rest = [letter for letter in left if letter not in right] + [letter for letter in right if letter not in left]
    axes = lambda letters, own: tuple(own.index(letter) for letter in letters)
    product = dot_general(
        x,
        y,
        contract=(axes(contract, left), axes(contract, right)),
        batch=(axes(batch, left), axes(batch, right)),
        precision=precision,
    )
    return "".join((*batch, *rest)), product
