"""Matrices of special structure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.promotion import operands
from tvmfun.typing import ArrayLike, DTypeLike


def _vectors(name: str, *values: Any, least: int = 0, floating: bool = False) -> list[Array]:
    arrays = [tnp.atleast_1d(tnp.asarray(x)) for x in operands(name, *map(tnp.asarray, values), floating=floating)]
    if any(x.shape[-1] < least for x in arrays):
        raise ShapeError(name, f"there must be at least {least} elements", got=", ".join(str(x.aval) for x in arrays))
    return arrays


def _size(name: str, n: Any) -> int:
    if not hasattr(n, "__index__") or int(n) < 0:
        raise ArgumentError(name, "the size must be an integer that is not negative", got=repr(n))
    return int(n)


def block_diag(*arrs: Any) -> Array:
    """Returns a matrix with the given ones along its diagonal, and zeros elsewhere.

    >>> block_diag(1.0, tnp.asarray([[2.0, 3.0]])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 2.0, 3.0]]
    """
    if not arrs:
        arrs = (tnp.zeros((1, 0)),)
    blocks = [tnp.atleast_2d(tnp.asarray(x)) for x in operands("block_diag", *map(tnp.asarray, arrs))]
    if any(x.ndim > 2 for x in blocks):
        raise ShapeError("block_diag", "a block has at most two axes", got=", ".join(str(x.aval) for x in blocks))
    width, left, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        rows.append(tnp.pad(x, ((0, 0), (left, width - left - x.shape[1]))))
        left += x.shape[1]
    return tnp.concatenate(rows, axis=0)


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Returns the matrices that are constant along diagonals, with the first column ``c`` and the first row ``r``.

    Args:
        c: the columns.
        r: the rows, whose first element is not used; by default the columns.

    >>> toeplitz(tnp.asarray([1, 2]), tnp.asarray([0, 3])).tolist()
    [[1, 3], [2, 1]]
    """
    c, r = _vectors("toeplitz", c, c if r is None else r)
    rows, columns = c.shape[-1], r.shape[-1]
    elements = tnp.concatenate(_with_equal_lead(tnp.flip(c, axis=-1), r[..., 1:]), axis=-1)
    index = (rows - 1) - tnp.arange(rows)[:, None] + tnp.arange(columns)[None, :]
    return tnp.take(elements, index, axis=-1) if rows and columns else tnp.zeros((rows, columns), c.dtype)


def _with_equal_lead(*arrays: Array) -> list[Array]:
    lead = tnp.broadcast_shapes(*(x.shape[:-1] for x in arrays))
    return [tnp.broadcast_to(x, (*lead, x.shape[-1])) for x in arrays]


def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Returns the matrices that are constant along anti-diagonals, with the first column ``c`` and the last row ``r``.

    Args:
        c: the columns.
        r: the rows, whose first element is not used; by default zeros.

    >>> hankel(tnp.asarray([1, 2])).tolist()
    [[1, 2], [2, 0]]
    """
    c, r = _vectors("hankel", c, tnp.zeros_like(tnp.asarray(c)) if r is None else r)
    rows, columns = c.shape[-1], r.shape[-1]
    elements = tnp.concatenate(_with_equal_lead(c, r[..., 1:]), axis=-1)
    index = tnp.arange(rows)[:, None] + tnp.arange(columns)[None, :]
    return tnp.take(elements, index, axis=-1) if rows and columns else tnp.zeros((rows, columns), c.dtype)


def circulant(c: ArrayLike) -> Array:
    """Returns the matrices whose columns are ``c``, each moved one further down than the one before.

    >>> circulant(tnp.asarray([1, 2, 3])).tolist()
    [[1, 3, 2], [2, 1, 3], [3, 2, 1]]
    """
    (c,) = _vectors("circulant", c)
    size = c.shape[-1]
    at = tnp.arange(size)
    return tnp.take(c, (at[:, None] - at[None, :]) % max(size, 1), axis=-1)


def companion(a: ArrayLike) -> Array:
    """Returns the matrices whose eigenvalues are the roots of polynomials, coefficients of high powers first.

    >>> companion(tnp.asarray([1.0, -3.0, 2.0])).tolist()
    [[3.0, -2.0], [1.0, 0.0]]
    """
    (a,) = _vectors("companion", a, least=2, floating=True)
    row = -a[..., 1:] / a[..., :1]
    size = row.shape[-1]
    below = tnp.broadcast_to(tnp.eye(size - 1, size, dtype=a.dtype), (*row.shape[:-1], size - 1, size))
    return tnp.concatenate([row[..., None, :], below], axis=-2)


def convolution_matrix(a: ArrayLike, n: int, mode: str = "full") -> Array:
    """Returns the matrices by which a vector of ``n`` elements is convolved with ``a``.

    Args:
        a: the vectors.
        n: the size of the other vector.
        mode: ``"full"``, ``"same"`` or ``"valid"``, as for ``numpy.convolve``.

    Raises:
        ArgumentError: for another mode, or no positive size.

    >>> convolution_matrix(tnp.asarray([1, 2]), 2).tolist()
    [[1, 0], [2, 1], [0, 2]]
    """
    n = _size("convolution_matrix", n)
    (a,) = _vectors("convolution_matrix", a, least=1)
    if n < 1 or mode not in ("full", "same", "valid"):
        got = f"n={n}, mode={mode!r}"
        raise ArgumentError("convolution_matrix", "n must be positive, and the mode full, same or valid", got=got)
    m = a.shape[-1]
    index = tnp.arange(m + n - 1)[:, None] - tnp.arange(n)[None, :]
    full = tnp.where((index >= 0) & (index < m), tnp.take(a, tnp.clip(index, 0, m - 1), axis=-1), 0)
    if mode == "full":
        return full
    trim = (min(n, m) - 1) * (1 if mode == "same" else 2)
    return full[..., trim // 2 : m + n - 1 - (trim - trim // 2), :]


def leslie(f: Any, s: ArrayLike) -> Array:
    """Returns Leslie matrices: fecundities in the first row, and survival rates below the diagonal.

    >>> leslie(tnp.asarray([1.0, 2.0]), tnp.asarray([0.5])).tolist()
    [[1.0, 2.0], [0.5, 0.0]]
    """
    f, s = _vectors("leslie", f, s)
    if f.shape[-1] < 2 or s.shape[-1] != f.shape[-1] - 1:
        raise ShapeError("leslie", "there must be one survival rate less", got=f"{f.aval} and {s.aval}")
    f, s = _with_equal_lead(f, s)
    size = f.shape[-1]
    below = tnp.eye(size - 1, size, dtype=s.dtype) * s[..., :, None]
    return tnp.concatenate([f[..., None, :], below], axis=-2)


def fiedler(a: ArrayLike) -> Array:
    """Returns the matrices of absolute differences of all pairs of elements.

    >>> fiedler(tnp.asarray([1, 4])).tolist()
    [[0, 3], [3, 0]]
    """
    (a,) = _vectors("fiedler", a)
    return tnp.abs(a[..., :, None] - a[..., None, :])


def fiedler_companion(a: ArrayLike) -> Array:
    """Returns the matrices with five diagonals whose eigenvalues are the roots of polynomials, high powers first.

    Args:
        a: the coefficients, vectors whose first element is not 0.

    Source: Fiedler, "A note on companion matrices" (2003).

    >>> fiedler_companion(tnp.asarray([1.0, -3.0, 2.0])).tolist()
    [[3.0, -2.0], [1.0, 0.0]]
    """
    (a,) = _vectors("fiedler_companion", a, least=1, floating=True)
    size = a.shape[-1] - 1
    # The index of each entry in the vector of 0, 1 and the negative coefficients.
    index = np.zeros((size, size), np.int32)
    for k in range(1, size + 1):
        index[2 * ((k - 1) // 2), max(2 * (k // 2) - 1, 0)] = k + 1
    for k in range(1, size):
        row, column = (k, max(k - 2, 0)) if k % 2 else (k - 2, k)
        index[row, column] = 1
    constants = tnp.broadcast_to(tnp.asarray([0, 1], a.dtype), (*a.shape[:-1], 2))
    return tnp.take(tnp.concatenate([constants, -a[..., 1:] / a[..., :1]], axis=-1), index, axis=-1)


def hilbert(n: int) -> Array:
    """Returns the matrix with the elements ``1 / (i + j + 1)``, float32.

    >>> hilbert(2).tolist()[0]
    [1.0, 0.5]
    """
    at = np.arange(_size("hilbert", n), dtype=np.float64)
    return tnp.asarray((1 / (at[:, None] + at[None, :] + 1)).astype("float32"))


def _of_integers(n: int, element: Any) -> Array:
    table = [[element(i, j) for j in range(n)] for i in range(n)]
    return tnp.asarray(np.asarray(table, np.float64).reshape(n, n).astype("float32"))


def invhilbert(n: int) -> Array:
    """Returns the inverse of :func:`hilbert`, whose elements are integers, rounded to float32.

    >>> invhilbert(2).tolist()
    [[4.0, -6.0], [-6.0, 12.0]]
    """
    n, comb = _size("invhilbert", n), math.comb

    def element(i: int, j: int) -> float:
        product = (i + j + 1) * comb(n + i, n - j - 1) * comb(n + j, n - i - 1) * comb(i + j, i) ** 2
        return float((-1) ** (i + j) * product)

    return _of_integers(n, element)


def _checked_kind(name: str, kind: str | None) -> str:
    if kind not in (None, "symmetric", "lower", "upper"):
        raise ArgumentError(name, "the kind must be 'symmetric', 'lower' or 'upper'", got=repr(kind))
    return kind or "symmetric"


def pascal(n: int, kind: str | None = None) -> Array:
    """Returns the matrix of binomial coefficients, float32.

    Args:
        n: its size.
        kind: ``"lower"`` for the triangular matrix of the coefficients of ``i`` and ``j``, ``"upper"`` for its
            transpose, ``"symmetric"``, the default, for the product of both.

    >>> pascal(3).tolist()
    [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 6.0]]
    """
    kind, comb = _checked_kind("pascal", kind), math.comb
    elements = {"symmetric": lambda i, j: comb(i + j, i), "lower": comb, "upper": lambda i, j: comb(j, i)}
    return _of_integers(_size("pascal", n), elements[kind])


def invpascal(n: int, kind: str | None = None) -> Array:
    """Returns the inverse of :func:`pascal`, float32.

    >>> invpascal(2).tolist()
    [[2.0, -1.0], [-1.0, 1.0]]
    """
    kind, n, comb = _checked_kind("invpascal", kind), _size("invpascal", n), math.comb
    signed = lambda i, j: (-1) ** (i + j) * comb(i, j)
    elements = {
        "symmetric": lambda i, j: (-1) ** (i + j) * sum(comb(k, i) * comb(k, j) for k in range(n)),
        "lower": signed,
        "upper": lambda i, j: signed(j, i),
    }
    return _of_integers(n, elements[kind])


def helmert(n: int, full: bool = False) -> Array:
    """Returns the Helmert matrix, whose rows are orthonormal, float32.

    Args:
        n: the number of columns, positive.
        full: whether to include the first row, which is constant.

    >>> [round(x, 4) for x in helmert(2)[0].tolist()]
    [0.7071, -0.7071]
    """
    n = _size("helmert", n)
    if n < 1:
        raise ArgumentError("helmert", "the size must be positive", got=str(n))
    matrix = np.tril(np.ones((n, n)), -1) - np.diag(np.arange(n))
    matrix[0] = 1
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return tnp.asarray((matrix if full else matrix[1:]).astype("float32"))


def hadamard(n: int, dtype: DTypeLike = "int32") -> Array:
    """Returns the Hadamard matrix of a size that is a power of 2, whose elements are 1 and -1.

    Raises:
        ArgumentError: for another size.

    >>> hadamard(2).tolist()
    [[1, 1], [1, -1]]
    """
    n = _size("hadamard", n)
    if n < 1 or n & (n - 1):
        raise ArgumentError("hadamard", "the size must be a power of 2", got=str(n))
    matrix = np.ones((1, 1), np.int32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return tnp.astype(tnp.asarray(matrix), dtype)
