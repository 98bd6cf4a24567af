"""Sums of products by Einstein's convention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import opt_einsum

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.linear_algebra import diagonal
from tvmfun.numpy.manipulation import permute_dims, reshape
from tvmfun.numpy.precision import check_precision, dot_general
from tvmfun.numpy.promotion import no_out
from tvmfun.numpy.statistical import sum

__all__ = [
    "einsum",
    "einsum_path",
]


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
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
        precision: accepted and without effect: float32 products are always exact float32.
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
            chosen = [_product(first, second, kept, sizes), *chosen]
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
    path, info = opt_einsum.contract_path(
        f"{','.join(inputs)}->{result}", *(x.shape for x in tensors), shapes=True, optimize=optimize
    )
    return ["einsum_path", *path], str(info)


def _parsed(subscripts: Any, operands: Sequence[Any]) -> tuple[list[str], str, list[Array]]:
    """The letters of each array and of the result, without ellipses, and the arrays in one dtype."""
    if isinstance(subscripts, str):
        tensors = arrays("einsum", *operands) if operands else []
        values = (subscripts, *tensors)
    else:
        values = [subscripts, *operands]
        places = range(0, len(values) - len(values) % 2, 2)
        tensors = arrays("einsum", *(values[i] for i in places))
        for i, x in zip(places, tensors, strict=True):
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
                raise ShapeError("einsum", f"axis {letter!r} has sizes {sizes[letter]} and {size}", got=repr(x.aval))
            sizes[letter] = size if sizes[letter] == 1 else sizes[letter]
    return sizes


def _order(inputs: Sequence[str], result: str, sizes: dict[str, int], optimize: Any) -> Sequence[Sequence[int]]:
    if len(inputs) <= 2 or optimize is False:
        return [tuple(range(len(inputs)))]
    shapes = [tuple(sizes[letter] for letter in term) for term in inputs]
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
    """Sums over the letters that nobody needs."""
    axes = tuple(i for i, letter in enumerate(letters) if letter not in kept)
    return ("".join(letter for letter in letters if letter in kept), sum(x, axes, x.dtype)) if axes else (letters, x)


def _product(first: Term, second: Term, kept: set[str], sizes: dict[str, int]) -> Term:
    """The product of two arrays, summed over the letters that nobody needs any more."""
    sides = []
    for (letters, x), (others, _) in ((first, second), (second, first)):
        letters, x = _summed(letters, x, kept.union(others))
        # Axes of size 1 that the other side repeats are no axes.
        real = [i for i, letter in enumerate(letters) if x.shape[i] == sizes[letter] or letter not in others]
        sides.append(("".join(letters[i] for i in real), reshape(x, tuple(x.shape[i] for i in real))))
    (left, x), (right, y) = sides
    # What has lost its axis on one side may be summed on the other.
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
    )
    return "".join((*batch, *rest)), product
