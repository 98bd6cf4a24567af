"""How each OpInfo entry of PyTorch is written with tvmfun: functions of the same arguments, tensors being arrays.

The results are compared leaf by leaf with PyTorch's. A function raises `Skip` for the samples it does not cover.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import lax
from tvmfun import numpy as tnp

la = tnp.linalg


class Skip(Exception):
    """This sample is not compared; the message says why."""


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise Skip(reason)


def ranked(function: Callable) -> Callable:
    """PyTorch lets a 0-d tensor have an axis 0; NumPy's functions do not."""

    def checked(x: Any, *args: Any, **kwargs: Any) -> Any:
        require(tnp.ndim(x) > 0, "an axis of a 0-d tensor")
        return function(x, *args, **kwargs)

    return checked


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def cast(x: Any, dtype: Any) -> Any:
    if dtype is None:
        return x
    name = dtype_name(dtype)
    require("complex" not in name, "a complex result")
    return tnp.astype(x, name)


def axes(dim: Any) -> Any:
    return None if dim is None or dim == () or dim == [] else tuple(dim) if isinstance(dim, list | tuple) else dim


def all_but(x: Any, lead: int) -> tuple[int, ...]:
    return tuple(range(lead, x.ndim))


def along(x: Any, dim: int, index: Any) -> tuple:
    return (slice(None),) * (dim % x.ndim) + (index,)


def ints(value: Any, n: int) -> tuple[int, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value) * (n if len(value) == 1 else 1)


# Elementwise functions.


def reduced(x: Any, reduction: str) -> Any:
    return {"mean": tnp.mean, "sum": tnp.sum, "none": lambda y: y}[reduction](x)


def scaled_second(function: Callable) -> Callable:
    return lambda x, y, *, alpha=1: function(x, tnp.multiply(alpha, y))


def rounded_quotient(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    quotient = tnp.divide(x, y)
    return quotient if rounding_mode is None else {"trunc": tnp.trunc, "floor": tnp.floor}[rounding_mode](quotient)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    # jnp.clip splits the derivative at the bounds; PyTorch gives all of it to x.
    if min is not None:
        x = tnp.where(x < min, min, x)
    if max is not None:
        x = tnp.where(x > max, max, x)
    return x


def sigmoid(x: Any) -> Any:
    return lax.logistic(x)


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return tnp.where(x * beta > threshold, x, tnp.logaddexp(tnp.minimum(x * beta, threshold), 0.0) / beta)


def log_sigmoid(x: Any) -> Any:
    return -tnp.logaddexp(-x, 0.0)


def relu(x: Any, inplace: bool = False) -> Any:
    return tnp.where(x > 0, x, 0.0)


def elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return tnp.where(x > 0, x, alpha * tnp.expm1(tnp.minimum(x, 0.0)))


def celu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return tnp.where(x > 0, x, alpha * tnp.expm1(tnp.minimum(x, 0.0) / alpha))


def selu(x: Any, inplace: bool = False) -> Any:
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return tnp.where(x <= min_val, min_val, tnp.where(x >= max_val, max_val, x))


def hardsigmoid(x: Any, inplace: bool = False) -> Any:
    return hardtanh(x + 3.0, 0.0, 6.0) / 6.0


def gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + tnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * lax.erfc(-x * math.sqrt(0.5))


def prelu(x: Any, weight: Any) -> Any:
    if weight.ndim and x.ndim > 1:
        weight = weight.reshape((1, -1) + (1,) * (x.ndim - 2))
    return tnp.where(x > 0, x, weight * x)


def glu(x: Any, dim: int = -1) -> Any:
    first, second = tnp.split(x, 2, axis=dim)
    return first * sigmoid(second)


def xlogy(x: Any, y: Any, log: Callable = tnp.log) -> Any:
    x, y = tnp.broadcast_arrays(x, y)
    zero = tnp.equal(x, 0)
    return tnp.where(zero, 0.0 * x, x * log(tnp.where(zero, 1.0, y)))


def entr(x: Any) -> Any:
    positive = x > 0
    return tnp.where(positive, -x * tnp.log(tnp.where(positive, x, 1.0)), tnp.where(x < 0, -tnp.inf, 0.0))


def logit(x: Any, eps: float | None = None) -> Any:
    if eps is not None:
        inside = (x >= eps) & (x <= 1 - eps)
        x = tnp.where(inside, x, tnp.where(x < eps, eps, 1 - eps))
    return tnp.log(x / (1 - x))


def multigammaln(x: Any, p: int) -> Any:
    constant = p * (p - 1) / 4 * math.log(math.pi)
    return sum((lax.lgamma(x - j / 2) for j in range(1, p)), lax.lgamma(x)) + constant


# Reductions.


def reduction(function: Callable) -> Callable:
    @ranked_by_dim
    def reduce(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return function(cast(x, dtype), axis=axes(dim), keepdims=keepdim)

    return reduce


def ranked_by_dim(function: Callable) -> Callable:
    def checked(x: Any, *args: Any, **kwargs: Any) -> Any:
        require(x.ndim > 0 or not (args or kwargs.get("dim") is not None), "an axis of a 0-d tensor")
        return function(x, *args, **kwargs)

    return checked


@ranked_by_dim
def variance(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    count = x.size if axes(dim) is None else math.prod(x.shape[a] for a in np.atleast_1d(axes(dim)))
    require(count > correction, "no degrees of freedom")
    return tnp.var(x, axis=axes(dim), correction=correction, keepdims=keepdim)


def extremum(reduce: Callable, position: Callable) -> Callable:
    def function(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return reduce(x)
        require(x.ndim > 0, "an axis of a 0-d tensor")
        at = position(x, axis=dim, keepdims=True)
        values = tnp.take_along_axis(x, at, axis=dim)
        return (values, at) if keepdim else (tnp.squeeze(values, dim), tnp.squeeze(at, dim))

    return function


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    require(x.ndim > 0, "an axis of a 0-d tensor")
    top = lax.stop_gradient(tnp.max(x, axis=axes(dim), keepdims=True))
    total = tnp.log(tnp.sum(tnp.exp(x - top), axis=axes(dim), keepdims=True)) + top
    return total if keepdim else tnp.squeeze(total, axes(dim))


def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    require(x.ndim > 0 or dim is None, "an axis of a 0-d tensor")
    return la.vector_norm(cast(x, dtype), axis=axes(dim), keepdims=keepdim, ord=2 if ord is None else ord)


def matrix_norm(x: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = tnp.moveaxis(cast(x, dtype), tuple(dim), (-2, -1))
    found = la.matrix_norm(x, ord=ord)
    return tnp.expand_dims(found, tuple(sorted(d % x.ndim for d in dim))) if keepdim else found


def general_norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if ord is None or (isinstance(dim, int) or (dim is not None and len(dim) == 1)) or (dim is None and x.ndim == 1):
        return vector_norm(x, ord, dim, keepdim, dtype=dtype)
    require(x.ndim >= 2, "an axis of a 0-d tensor")
    return matrix_norm(x, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)


def torch_norm(x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if p == "nuc":
        return matrix_norm(x, p, (-2, -1) if dim is None else dim, keepdim)
    return vector_norm(x, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    require(x.ndim > 0, "an axis of a 0-d tensor")
    order = tnp.take(tnp.argsort(x, axis=dim), tnp.asarray([k - 1]), axis=dim)
    values = tnp.take_along_axis(x, order, axis=dim)
    return (values, order) if keepdim else (tnp.squeeze(values, dim), tnp.squeeze(order, dim))


def median(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return tnp.sort(tnp.ravel(x))[(x.size - 1) // 2]
    require(x.ndim > 0, "an axis of a 0-d tensor")
    return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def quantiles(function: Callable) -> Callable:
    def quantile(x: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
        require(x.ndim > 0, "an axis of a 0-d tensor")
        return function(x, q, axis=dim, keepdims=keepdim, method=interpolation)

    return quantile


def cumulative(function: Callable) -> Callable:
    return ranked(lambda x, dim, *, dtype=None: function(cast(x, dtype), axis=dim % x.ndim))


@ranked
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    order = tnp.argsort(x, axis=dim, descending=largest)[along(x, dim, slice(0, k))]
    return tnp.take_along_axis(x, order, axis=dim), order


@ranked
def sort(x: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    order = tnp.argsort(x, axis=dim, descending=descending)
    return tnp.take_along_axis(x, order, axis=dim), order


@ranked
def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    others = tuple(a for a in range(x.ndim) if a != dim % x.ndim)
    norm = la.vector_norm(x, axis=others, keepdims=True, ord=p)
    return x * tnp.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


# Shapes and indices.


def sizes(args: tuple) -> tuple[int, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else args


def expand(x: Any, *shape: Any) -> Any:
    shape = sizes(shape)
    lead = len(shape) - x.ndim
    return tnp.broadcast_to(x, tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(shape)))


@ranked
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape((*x.shape[:start], -1, *x.shape[end + 1 :]))


def unflatten(x: Any, dim: int, sizes: Any) -> Any:
    dim = dim % x.ndim
    return x.reshape(x.shape[:dim] + tuple(sizes) + x.shape[dim + 1 :])


@ranked
def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return split(x, -(-x.shape[dim] // chunks), dim)


@ranked
def split(x: Any, split_size: Any, dim: int = 0) -> Any:
    points = range(split_size, x.shape[dim], split_size) if isinstance(split_size, int) else np.cumsum(split_size)[:-1]
    return tnp.split(x, [int(p) for p in points], axis=dim)


@ranked
def tensor_split(x: Any, sections: Any, dim: int = 0) -> Any:
    if isinstance(sections, int):
        return tnp.array_split(x, sections, axis=dim)
    require(isinstance(sections, list | tuple), "places in a tensor")
    return tnp.split(x, [int(p) for p in sections], axis=dim)


def squeeze(x: Any, dim: Any = None) -> Any:
    if dim is None:
        return tnp.squeeze(x)
    dims = (dim,) if isinstance(dim, int) else dim
    require(x.ndim > 0, "an axis of a 0-d tensor")
    return tnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    return tnp.roll(x, shifts, axes(dims))


def repeat(x: Any, *repeats: Any) -> Any:
    return tnp.tile(x, sizes(repeats))


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return tnp.diagonal(x, offset, dim1, dim2)


@ranked
def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    n = x.shape[-1] + abs(offset)
    rows, columns = np.arange(x.shape[-1]) + max(-offset, 0), np.arange(x.shape[-1]) + max(offset, 0)
    found = tnp.zeros((*x.shape[:-1], n, n), x.dtype).at[..., rows, columns].set(x)
    return tnp.moveaxis(found, (-2, -1), (dim1, dim2))


def diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    moved = tnp.moveaxis(x, (dim1, dim2), (-2, -1))
    k = np.arange(src.shape[-1])
    moved = moved.at[..., k + max(-offset, 0), k + max(offset, 0)].set(src)
    return tnp.moveaxis(moved, (-2, -1), (dim1, dim2))


def block_diag(*arrays: Any) -> Any:
    arrays = [tnp.atleast_2d(x) for x in arrays]  # type: ignore[reportAssignmentType]
    found = tnp.zeros((sum(x.shape[0] for x in arrays), sum(x.shape[1] for x in arrays)), "float64")
    row = column = 0
    for x in arrays:
        found = found.at[row : row + x.shape[0], column : column + x.shape[1]].set(x)
        row, column = row + x.shape[0], column + x.shape[1]
    return found


def sum_to_size(x: Any, *shape: Any) -> Any:
    shape = sizes(shape)
    x = tnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    return tnp.sum(x, axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


def unfold_copy(x: Any, dimension: int, size: int, step: int) -> Any:
    require(x.ndim > 0, "an axis of a 0-d tensor")
    count = (x.shape[dimension] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    dim = dimension % x.ndim
    return tnp.moveaxis(tnp.take(x, tnp.asarray(places), axis=dim), dim + 1, -1)


@ranked
def combinations(x: Any, r: int = 2, with_replacement: bool = False) -> Any:
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(x.shape[0]), r)), "int64").reshape(-1, r)
    require(places.size > 0, "an empty result")
    return x[places]


def cartesian_prod(*arrays: Any) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return tnp.stack([tnp.ravel(x) for x in tnp.meshgrid(*arrays, indexing="ij")], axis=-1)


def meshgrid(first: Any, *rest: Any, indexing: str = "ij") -> Any:
    arrays = first if isinstance(first, list | tuple) else (first, *rest)
    require(all(x.ndim == 1 for x in arrays), "a 0-d tensor in meshgrid")
    return tnp.meshgrid(*arrays, indexing=indexing)


def joined(function: Callable) -> Callable:
    return lambda arrays, *args: function(arrays if isinstance(arrays, list | tuple) else (arrays, *args))


def concatenate(arrays: Any, dim: int = 0) -> Any:
    return tnp.concatenate(arrays, axis=dim)


def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    require(isinstance(start, int), "a start in a tensor")
    start = start % x.shape[dim] if start < 0 else start
    return x[along(x, dim, slice(start, start + length))]


def slice_along(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[along(x, dim, slice(start, end, step))]


def slice_scatter(x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x.at[along(x, dim, slice(start, end, step))].set(src)


def places(index: Any, dim: int) -> tuple:
    """The index arrays of gather and scatter: `index` along `dim`, and the element's own index along other axes."""
    own = [tnp.asarray(g) for g in np.indices(index.shape)]
    own[dim % index.ndim] = index
    return tuple(own)


@ranked
def gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    require(index.ndim > 0, "an axis of a 0-d tensor")
    return x[places(index, dim)]


def shortened(src: Any, index: Any) -> Any:
    return src if tnp.ndim(src) == 0 else src[tuple(slice(0, n) for n in index.shape)]


@ranked
def scatter(x: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: Any = None) -> Any:
    require(index.ndim > 0, "an axis of a 0-d tensor")
    ref = x.at[places(index, dim)]
    src = shortened(value if src is None else src, index)
    return {None: ref.set, "add": ref.add, "multiply": ref.multiply}[reduce](src)


@ranked
def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    require(index.ndim > 0, "an axis of a 0-d tensor")
    return x.at[places(index, dim)].add(shortened(src, index))


@ranked
def scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    require(index.ndim > 0, "an axis of a 0-d tensor")
    at, src = places(index, dim), shortened(src, index)
    start = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amin": tnp.inf, "amax": -tnp.inf}[reduce]
    if not include_self:
        x = x.at[at].set(start)
    ref = x.at[at]
    names = {"sum": ref.add, "mean": ref.add, "prod": ref.multiply, "amin": ref.min, "amax": ref.max}
    found = names[reduce](src)
    if reduce == "mean":
        count = tnp.full(x.shape, 1.0 if include_self else 0.0, "float64").at[at].add(1.0)
        found = found / tnp.maximum(count, 1.0)
    return found


@ranked
def index_select(x: Any, dim: int, index: Any) -> Any:
    return tnp.take(x, tnp.atleast_1d(index), axis=dim)


@ranked
def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    return x.at[along(x, dim, tnp.atleast_1d(index))].add(source * alpha)


@ranked
def index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    return x.at[along(x, dim, tnp.atleast_1d(index))].set(source)


@ranked
def index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    return x.at[along(x, dim, tnp.atleast_1d(index))].set(value)


@ranked
def index_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    index = tnp.atleast_1d(index)
    at = along(x, dim, index)
    start = {"mean": 0.0, "prod": 1.0, "amin": tnp.inf, "amax": -tnp.inf}[reduce]
    if not include_self:
        x = x.at[at].set(start)
    ref = x.at[at]
    found = {"mean": ref.add, "prod": ref.multiply, "amin": ref.min, "amax": ref.max}[reduce](source)
    if reduce == "mean":
        count = tnp.full(x.shape, 1.0 if include_self else 0.0, "float64").at[at].add(1.0)
        found = found / tnp.maximum(count, 1.0)
    return found


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    ref = x.at[tuple(concrete(i) for i in indices)]
    return ref.add(values) if accumulate else ref.set(values)


def concrete(index: Any) -> Any:
    require(getattr(index, "dtype", None) != np.dtype("bool"), "a mask whose count is not known")
    return index


def getitem(x: Any, index: Any) -> Any:
    index = index if isinstance(index, tuple) else (index,)
    return x[tuple(concrete(tnp.asarray(i) if isinstance(i, list) else i) for i in index)]


def flat_indices(x: Any, index: Any) -> Any:
    return tnp.where(index < 0, index + x.size, index)


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    ref = tnp.ravel(x).at[flat_indices(x, tnp.ravel(index))]
    source = tnp.ravel(source)
    return (ref.add(source) if accumulate else ref.set(source)).reshape(x.shape)


def take_along_dim(x: Any, indices: Any, dim: Any = None) -> Any:
    if dim is None:
        return tnp.take(tnp.ravel(x), tnp.ravel(indices))
    shape = list(
        tnp.broadcast_shapes(
            *(tuple(1 if a == dim % x.ndim else n for a, n in enumerate(y.shape)) for y in (x, indices))
        )
    )
    shape[dim] = x.shape[dim]
    x = tnp.broadcast_to(x, tuple(shape))
    shape[dim] = indices.shape[dim]
    return tnp.take_along_axis(x, tnp.broadcast_to(indices, tuple(shape)), axis=dim)


def repeat_interleave(x: Any, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Any:
    require(isinstance(repeats, int), "repeats in a tensor")
    return tnp.repeat(x if x.ndim else x.reshape(1), repeats, axis=dim)


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return tnp.where(mask, value, x)


# Linear algebra.


def matrix_plus(product: Callable) -> Callable:
    def function(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        return beta * x + alpha * product(a, b)

    return function


def tensordot(x: Any, y: Any, dims: Any = 2) -> Any:
    if not isinstance(dims, int):
        pairs = zip(dims[0], dims[1], strict=True)
        require(all(x.shape[i] == y.shape[j] for i, j in pairs), "an axis of size 1 against a longer one")
    return tnp.tensordot(x, y, axes=dims)


def addmm_gelu(*args: Any, use_gelu: bool = False, **kwargs: Any) -> Any:
    found = matrix_plus(tnp.matmul)(*args, **kwargs)
    return gelu(found, "tanh") if use_gelu else relu(found)


def triangular_solve(b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    x = solve_triangular(
        tnp.matrix_transpose(a) if transpose else a, b, upper=upper != transpose, unitriangular=unitriangular
    )
    return x, a


def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    lead = tnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (tnp.broadcast_to(x, lead + x.shape[-2:]) for x in (a, b))
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


def cholesky(x: Any, *, upper: bool = False) -> Any:
    return la.cholesky(x, upper=upper)


def cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    # PyTorch differentiates with respect to the whole factor, including the triangle of zeros.
    other = tnp.matrix_transpose(factor)
    return la.solve(tnp.matmul(other, factor) if upper else tnp.matmul(factor, other), b)


def cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    other = tnp.matrix_transpose(factor)
    return la.inv(tnp.matmul(other, factor) if upper else tnp.matmul(factor, other))


def without_error(function: Callable) -> Callable:
    """The functions that tell whether they failed return a zero for each matrix besides."""

    def checked(x: Any, *args: Any, check_errors: bool = False, **kwargs: Any) -> Any:
        return function(x, *args, **kwargs), tnp.zeros(x.shape[:-2], "int32")

    return checked


def lu(x: Any, *, pivot: bool = True) -> Any:
    require(pivot and x.ndim == 2, "LU without pivoting or of a batch")
    factors = lax.linalg.lu(x)[0]
    n, m = x.shape
    k = min(n, m)
    # OpInfo drops the permutation.
    return tnp.tril(factors[:, :k], -1) + tnp.eye(n, k, dtype=x.dtype), tnp.triu(factors[:k])


def lu_factor(x: Any, *, pivot: bool = True) -> Any:
    require(pivot, "LU without pivoting")
    factors, pivots, _ = lax.linalg.lu(x)
    return factors, pivots + 1


def solve(a: Any, b: Any, *, left: bool = True) -> Any:
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    if vector:
        return tnp.squeeze(la.solve(a, b[..., None]), -1)
    if left:
        return la.solve(a, b)
    return tnp.matrix_transpose(la.solve(tnp.matrix_transpose(a), tnp.matrix_transpose(b)))


def eigh(x: Any, UPLO: str = "L") -> Any:
    values, vectors = la.eigh(x, UPLO=UPLO)
    return values, tnp.abs(vectors)  # as OpInfo does: the sign of a vector is nobody's choice


def pinv(x: Any, *args: Any, **kwargs: Any) -> Any:
    require(not args and not kwargs.get("hermitian"), "a tolerance for each matrix")
    rtol, atol = kwargs.get("rtol"), kwargs.get("atol")
    if atol is None:
        return la.pinv(x, rtol=rtol)
    relative = atol / tnp.max(la.svdvals(x), axis=-1)
    return la.pinv(x, rtol=lax.stop_gradient(relative if rtol is None else tnp.maximum(relative, rtol)))


def vander(x: Any, N: Any = None) -> Any:
    require(x.ndim > 0, "an axis of a 0-d tensor")
    n = x.shape[-1] if N is None else N
    return tnp.cumprod(tnp.concatenate([tnp.ones((*x.shape, 1), x.dtype)] + [x[..., None]] * (n - 1), -1), axis=-1)


def cross(x: Any, y: Any, dim: int = -1) -> Any:
    shape = tnp.broadcast_shapes(x.shape, y.shape)
    return tnp.cross(tnp.broadcast_to(x, shape), tnp.broadcast_to(y, shape), axis=dim)


def first_cross(x: Any, y: Any, dim: Any = None) -> Any:
    return cross(x, y, next(i for i, n in enumerate(x.shape) if n == 3) if dim is None else dim)


def tensorinv(x: Any, ind: int = 2) -> Any:
    n = math.prod(x.shape[:ind])
    return la.inv(x.reshape(n, n)).reshape(x.shape[ind:] + x.shape[:ind])


def tensorsolve(a: Any, b: Any, dims: Any = None) -> Any:
    if dims is not None:
        dims = [d % a.ndim for d in dims]
        a = tnp.permute_dims(a, [d for d in range(a.ndim) if d not in dims] + dims)
    return la.solve(a.reshape(b.size, b.size), tnp.ravel(b)).reshape(a.shape[b.ndim :])


def distances(x: Any, y: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    return la.vector_norm(x[..., :, None, :] - y[..., None, :, :], axis=-1, ord=p)


def pdist(x: Any, p: float = 2.0) -> Any:
    first, second = np.triu_indices(x.shape[0], 1)
    return la.vector_norm(x[first] - x[second], axis=-1, ord=p)


def pairwise_distance(x: Any, y: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    return la.vector_norm(x - y + eps, axis=-1, ord=p, keepdims=keepdim)


def cov(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    require(fweights is None and aweights is None and x.ndim == 2, "weights, or one variable")
    return tnp.cov(x, ddof=correction)


# Neural networks.


@ranked
def softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    require(dim is not None, "no axis")
    x = cast(x, dtype)
    e = tnp.exp(x - lax.stop_gradient(tnp.max(x, axis=dim, keepdims=True)))
    return e / tnp.sum(e, axis=dim, keepdims=True)


def safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Zeros where everything is masked."""
    masked = tnp.all(tnp.isneginf(x), axis=dim, keepdims=True)
    return tnp.where(masked, 0.0, softmax(tnp.where(masked, 0.0, x), dim, dtype=dtype))


def softmin(x: Any, dim: Any = None, dtype: Any = None) -> Any:
    return softmax(-x, dim, dtype=dtype)


@ranked
def log_softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    x = cast(x, dtype)
    return x - logsumexp(x, dim, True)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    found = tnp.matmul(x, tnp.transpose(weight) if weight.ndim == 2 else weight)
    return found if bias is None else found + bias


def bilinear(x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    found = tnp.einsum("...i,oij,...j->...o", x, weight, y)
    return found if bias is None else found + bias


def centered(x: Any, over: Any, eps: float) -> Any:
    mean = tnp.mean(x, axis=over, keepdims=True)
    return (x - mean) / tnp.sqrt(tnp.var(x, axis=over, keepdims=True) + eps)


def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    x = centered(x, tuple(range(-len(normalized_shape), 0)), eps)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    over = tuple(range(-len(normalized_shape), 0))
    x = x * lax.rsqrt(tnp.mean(x * x, axis=over, keepdims=True) + (np.finfo("float64").eps if eps is None else eps))
    return x if weight is None else x * weight


def per_channel(x: Any, weight: Any, bias: Any) -> Any:
    shape = (1, -1) + (1,) * (x.ndim - 2)
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    return per_channel(centered(grouped, -1, eps).reshape(x.shape), weight, bias)


def instance_norm(
    x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    require(use_input_stats, "running statistics in instance_norm")
    return per_channel(centered(x, all_but(x, 2), eps), weight, bias)


def batch_norm(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if training:
        return per_channel(centered(x, (0, *all_but(x, 2)), eps), weight, bias)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    normalized = (x - running_mean.reshape(shape)) / tnp.sqrt(running_var.reshape(shape) + eps)
    return per_channel(normalized, weight, bias)


def local_response_norm(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    window = (1, size) + (1,) * (x.ndim - 2)
    padding = [(0, 0), (size // 2, (size - 1) // 2)] + [(0, 0)] * (x.ndim - 2)
    return x / (k + alpha / size * lax.sum_window(x * x, window, (1,) * x.ndim, padding)) ** beta


def normalize(x: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    norm = la.vector_norm(x, axis=axes(dim), keepdims=True, ord=p)
    return x / tnp.maximum(norm, eps)


def cosine_similarity(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    x, y = tnp.broadcast_arrays(x, y)
    x, y = (z / tnp.maximum(la.vector_norm(z, axis=dim, keepdims=True), eps) for z in (x, y))
    return tnp.sum(x * y, axis=dim)


def batched(x: Any, n: int) -> tuple[Any, bool]:
    """`x` with a batch axis, and whether it was added: the spatial functions take one image too."""
    return (x[None], True) if x.ndim == n + 1 else (x, False)


def convolution(n: int) -> Callable:
    def conv(
        x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Any:
        x, added = batched(x, n)
        stride, dilation = ints(stride, n), ints(dilation, n)
        if padding == "same":
            spans = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
            pads = [(s // 2, s - s // 2) for s in spans]
        else:
            pads = [(p, p) for p in ints(0 if padding == "valid" else padding, n)]
        y = lax.conv_general_dilated(x, weight, stride, pads, rhs_dilation=dilation, feature_group_count=groups)
        y = per_channel(y, None, bias)
        return y[0] if added else y

    return conv


def transposed_convolution(n: int) -> Callable:
    def conv(
        x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, dilation: Any = 1,
    ) -> Any:  # fmt: skip
        x, added = batched(x, n)
        stride, padding, dilation = ints(stride, n), ints(padding, n), ints(dilation, n)
        extra = ints(output_padding, n)
        spans = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(s - p, s - p + e) for s, p, e in zip(spans, padding, extra, strict=True)]
        require(all(low >= 0 and high >= 0 for low, high in pads), "more padding than the kernel spans")
        # The kernel (in, out / groups, ...) becomes (out, in / groups, ...), reversed.
        inputs, outputs = weight.shape[:2]
        w = weight.reshape((groups, inputs // groups, outputs, *weight.shape[2:])).swapaxes(1, 2)
        w = tnp.flip(w.reshape((groups * outputs, inputs // groups, *weight.shape[2:])), all_but(weight, 2))
        y = lax.conv_general_dilated(
            x, w, (1,) * n, pads, lhs_dilation=stride, rhs_dilation=dilation, feature_group_count=groups
        )
        y = per_channel(y, None, bias)
        return y[0] if added else y

    return conv


def average_pool(n: int) -> Callable:
    def pool(
        x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Any:  # fmt: skip
        require(not ceil_mode, "ceil_mode")
        x, added = batched(x, n)
        window = ints(kernel_size, n)
        stride = window if stride in (None, ()) else ints(stride, n)
        pads = [(0, 0)] * 2 + [(p, p) for p in ints(padding, n)]
        total = lax.sum_window(x, (1, 1, *window), (1, 1, *stride), pads)
        if divisor_override is not None:
            count = divisor_override
        elif count_include_pad:
            count = math.prod(window)
        else:
            count = lax.sum_window(tnp.ones(x.shape, x.dtype), (1, 1, *window), (1, 1, *stride), pads)
        return (total / count)[0] if added else total / count

    return pool


def max_pool(n: int) -> Callable:
    def pool(
        x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        require(
            not ceil_mode and not return_indices and set(ints(dilation, n)) == {1}, "ceil_mode, indices or dilation"
        )
        x, added = batched(x, n)
        window = ints(kernel_size, n)
        stride = window if stride in (None, ()) else ints(stride, n)
        pads = [(0, 0)] * 2 + [(p, p) for p in ints(padding, n)]
        y = lax.max_window(x, (1, 1, *window), (1, 1, *stride), pads)
        return y[0] if added else y

    return pool


def adaptive_pool(n: int, reduce: Callable) -> Callable:
    def pool(x: Any, output_size: Any, return_indices: bool = False) -> Any:
        require(not return_indices, "indices of the maxima")
        for axis, size in zip(
            range(-n, 0), ints(output_size, n) if output_size is not None else (None,) * n, strict=True
        ):
            if size is None:
                continue
            length = x.shape[axis]
            bounds = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
            cut = [x[along(x, axis, slice(a, b))] for a, b in bounds]
            x = tnp.concatenate([reduce(c, axis=axis, keepdims=True) for c in cut], axis=axis)
        return x

    return pool


def pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [tuple(pad[i : i + 2]) for i in range(len(pad) - 2, -1, -2)]
    if mode == "constant":
        return lax.pad(x, 0.0 if value is None else float(value), [(low, high, 0) for low, high in widths])
    for axis, (low, high) in enumerate(widths):
        if mode == "replicate":
            x = tnp.take(x, np.clip(np.arange(-low, x.shape[axis] + high), 0, x.shape[axis] - 1), axis=axis)
            continue
        if low < 0 or high < 0:
            x = x[along(x, axis, slice(max(-low, 0), x.shape[axis] - max(-high, 0)))]
        positive = [(0, 0)] * x.ndim
        positive[axis] = (max(low, 0), max(high, 0))
        x = tnp.pad(x, positive, "wrap" if mode == "circular" else mode)
    return x


def unfold(x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    kernel, dilation, padding, stride = (ints(v, 2) for v in (kernel_size, dilation, padding, stride))
    x, added = batched(x, 2)
    x = lax.pad(x, 0.0, [(0, 0, 0)] * 2 + [(p, p, 0) for p in padding])
    n, c, *spatial = x.shape
    starts = [np.arange(0, s - d * (k - 1), t) for s, k, d, t in zip(spatial, kernel, dilation, stride, strict=True)]
    rows, columns = ((np.arange(k) * d)[:, None] + s[None, :] for k, d, s in zip(kernel, dilation, starts, strict=True))
    found = x[:, :, rows[:, None, :, None], columns[None, :, None, :]]
    found = found.reshape(n, c * math.prod(kernel), -1)
    return found[0] if added else found


def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    r = upscale_factor
    *lead, c, h, w = x.shape
    x = x.reshape((*lead, c // r**2, r, r, h, w))
    k = len(lead)
    return x.transpose((*range(k), k, k + 3, k + 1, k + 4, k + 2)).reshape((*lead, c // r**2, h * r, w * r))


def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    r = downscale_factor
    *lead, c, h, w = x.shape
    x = x.reshape((*lead, c, h // r, r, w // r, r))
    k = len(lead)
    return x.transpose((*range(k), k, k + 2, k + 4, k + 1, k + 3)).reshape((*lead, c * r**2, h // r, w // r))


def channel_shuffle(x: Any, groups: int) -> Any:
    n, c, *spatial = x.shape
    return x.reshape((n, groups, c // groups, *spatial)).swapaxes(1, 2).reshape(x.shape)


def embedding(
    weight: Any, x: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    require(max_norm is None and not scale_grad_by_freq and not sparse, "max_norm, scaled or sparse gradients")
    if padding_idx is not None:
        weight = weight.at[padding_idx].set(lax.stop_gradient(weight[padding_idx]))
    return tnp.take(weight, x, axis=0)


def attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    require(not dropout_p and not enable_gqa, "dropout or grouped queries")
    scores = tnp.matmul(q, tnp.matrix_transpose(k)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = tnp.tri(q.shape[-2], k.shape[-2], dtype="bool")
    if attn_mask is not None:
        scores = tnp.where(attn_mask, scores, -tnp.inf) if attn_mask.dtype == np.dtype("bool") else scores + attn_mask
    return tnp.matmul(softmax(scores, -1), v)


def interpolate_nearest(offset: float) -> Callable:
    def interpolate(
        x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
        recompute_scale_factor: Any = None, antialias: bool = False,
    ) -> Any:  # fmt: skip
        n = x.ndim - 2
        scales = (
            (None,) * n
            if scale_factor is None
            else (scale_factor,) * n
            if isinstance(scale_factor, float | int)
            else scale_factor
        )
        targets = ints(size, n) if size is not None else [math.floor(x.shape[i + 2] * scales[i]) for i in range(n)]
        for i in range(n):
            length = x.shape[i + 2]
            ratio = length / targets[i] if scales[i] is None or recompute_scale_factor else 1 / scales[i]
            at = np.minimum(np.floor((np.arange(targets[i]) + offset) * ratio).astype(int), length - 1)
            x = tnp.take(x, tnp.asarray(at), axis=i + 2)
        return x

    return interpolate


def interpolate_linear(
    x: Any, size: Any = None, scale_factor: Any = None, mode: str = "", align_corners: Any = None, **kwargs: Any
) -> Any:
    n = x.ndim - 2
    scales = (
        (None,) * n
        if scale_factor is None
        else (scale_factor,) * n
        if isinstance(scale_factor, float | int)
        else scale_factor
    )
    targets = ints(size, n) if size is not None else [math.floor(x.shape[i + 2] * scales[i]) for i in range(n)]
    for i in range(n):
        length, target = x.shape[i + 2], targets[i]
        if align_corners:
            at = np.arange(target) * ((length - 1) / (target - 1) if target > 1 else 0.0)
        else:
            at = np.maximum(
                (np.arange(target) + 0.5) * (length / target if scales[i] is None else 1 / scales[i]) - 0.5, 0
            )
        low = np.minimum(np.floor(at).astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        part = np.clip(at - low, 0, 1).reshape((-1,) + (1,) * (n - 1 - i))
        x = tnp.take(x, tnp.asarray(low), axis=i + 2) * (1 - part) + tnp.take(x, tnp.asarray(high), axis=i + 2) * part
    return x


# Losses.


def loss(function: Callable) -> Callable:
    def reduce(
        x: Any, y: Any, *args: Any, reduction: str = "mean", size_average: Any = None, weight: Any = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        require(size_average is None, "size_average")
        found = function(x, y, *args, **kwargs)
        return reduced(found if weight is None else found * weight, reduction)

    return reduce


def huber(x: Any, y: Any, delta: float = 1.0) -> Any:
    d = abs(x - y)
    return tnp.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


def smooth_l1(x: Any, y: Any, beta: float = 1.0) -> Any:
    d = abs(x - y)
    return d if beta == 0 else tnp.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)


def binary_cross_entropy(x: Any, y: Any) -> Any:
    return -(y * tnp.maximum(tnp.log(x), -100.0) + (1 - y) * tnp.maximum(tnp.log1p(-x), -100.0))


def binary_cross_entropy_with_logits(
    x: Any, y: Any, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:  # fmt: skip
    factor = 1 + ((0 if pos_weight is None else pos_weight) - (pos_weight is not None)) * y
    found = (1 - y) * x - factor * log_sigmoid(x)
    return reduced(found if weight is None else found * weight, reduction)


def nll_loss(
    x: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    x = tnp.moveaxis(x, 1, -1) if x.ndim > 1 else x
    kept = tnp.not_equal(target, ignore_index)
    safe = tnp.where(kept, target, 0)
    picked = -tnp.squeeze(tnp.take_along_axis(x, safe[..., None], axis=-1), -1)
    weights = tnp.where(kept, 1.0 if weight is None else tnp.take(weight, safe, axis=0), 0.0).astype("float64")
    if reduction == "mean":
        return tnp.sum(picked * weights) / tnp.sum(weights)
    return reduced(picked * weights, reduction)


def cross_entropy(
    x: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    require(not label_smoothing, "label_smoothing")
    scores = log_softmax(x, 1 if x.ndim > 1 else 0)
    if target.dtype.kind == "f":
        shape = (-1,) + (1,) * (x.ndim - 2)
        found = -tnp.sum(
            scores * target * (1.0 if weight is None else weight.reshape(shape)), axis=1 if x.ndim > 1 else 0
        )
        count = found.size
        return tnp.sum(found) / count if reduction == "mean" else reduced(found, reduction)
    return nll_loss(scores, target, weight, ignore_index=ignore_index, reduction=reduction)


def gaussian_nll(x: Any, y: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    if tnp.ndim(var) == x.ndim - 1:
        var = var[..., None]
    var = tnp.maximum(var + 0 * x[..., :1] if tnp.ndim(var) else var, eps)
    return reduced(0.5 * (tnp.log(var) + (x - y) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0), reduction)


def poisson_nll(x: Any, y: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8) -> Any:
    found = tnp.exp(x) - y * x if log_input else x - y * tnp.log(x + eps)
    if full:
        above = y > 1
        safe = tnp.where(above, y, 2.0)
        found = found + tnp.where(above, safe * tnp.log(safe) - safe + 0.5 * tnp.log(2 * math.pi * safe), 0.0)
    return found


def kl_div(x: Any, y: Any, reduction: str = "mean", log_target: bool = False, **kwargs: Any) -> Any:
    found = tnp.exp(y) * (y - x) if log_target else xlogy(y, y) - y * x
    return tnp.sum(found) / x.shape[0] if reduction == "batchmean" else reduced(found, reduction)


def hinge_embedding(x: Any, y: Any, margin: float = 1.0) -> Any:
    return tnp.where(y != 1, tnp.maximum(margin - x, 0.0), 0.0) + tnp.where(y != -1, x, 0.0)


def cosine_embedding(x: Any, y: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    dot, xx, yy = tnp.sum(x * y, -1), tnp.sum(x * x, -1) + 1e-12, tnp.sum(y * y, -1) + 1e-12
    cosine = dot / tnp.sqrt(xx * yy)
    found = tnp.where(tnp.equal(target, 1), 1 - cosine, 0.0) + tnp.where(
        tnp.equal(target, -1), tnp.maximum(cosine - margin, 0.0), 0.0
    )
    return reduced(found, reduction)


def triplet_margin(
    a: Any, p: Any, n: Any, margin: float = 1.0, swap: bool = False, reduction: str = "mean",
    distance_function: Any = None, eps: float = 1e-6, **kwargs: Any,
) -> Any:  # fmt: skip
    order = kwargs.pop("p", 2.0)
    require(distance_function is None, "a distance that is a function of PyTorch")
    far = pairwise_distance(a, n, order, eps)
    if swap:
        far = tnp.minimum(far, pairwise_distance(p, n, order, eps))
    return reduced(relu(pairwise_distance(a, p, order, eps) - far + margin), reduction)


def multi_margin(
    x: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean"
) -> Any:
    require(x.ndim == 2, "one example")
    picked = tnp.take_along_axis(x, target[:, None], axis=1)
    found = relu(margin - picked + x) ** p
    found = found if weight is None else found * tnp.take(weight, target, axis=0)[:, None]
    own = tnp.equal(tnp.arange(x.shape[1])[None, :], target[:, None])
    return reduced(tnp.sum(tnp.where(own, 0.0, found), axis=1) / x.shape[1], reduction)


def multilabel_soft_margin(x: Any, y: Any, weight: Any = None, reduction: str = "mean") -> Any:
    found = -(y * log_sigmoid(x) + (1 - y) * log_sigmoid(-x))
    return reduced(tnp.mean(found if weight is None else found * weight, axis=-1), reduction)


# Creation: the sample's tensors give shapes only.


def filled(value: float) -> Callable:
    def create(*shape: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        return tnp.full(sizes(shape), value, "float32" if dtype is None else dtype_name(dtype))

    return create


def filled_like(value: float) -> Callable:
    return lambda x, dtype=None, **kwargs: tnp.full(x.shape, value, x.dtype if dtype is None else dtype_name(dtype))


def new_filled(value: float) -> Callable:
    return lambda x, shape, dtype=None, **kwargs: tnp.full(
        sizes((shape,)), value, x.dtype if dtype is None else dtype_name(dtype)
    )


def full_like(x: Any, value: Any, dtype: Any = None, **kwargs: Any) -> Any:
    return tnp.full(x.shape, value, x.dtype if dtype is None else dtype_name(dtype))


def new_full(x: Any, shape: Any, value: Any, dtype: Any = None, **kwargs: Any) -> Any:
    return tnp.full(tuple(shape), value, x.dtype if dtype is None else dtype_name(dtype))


def eye(n: int, m: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
    return tnp.eye(n, m, dtype="float32" if dtype is None else dtype_name(dtype))


def identity(x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


def to_dtype(name: str) -> Callable:
    return lambda x, **kwargs: tnp.astype(x, name)


def filled_out(x: Any, mask: Any, neutral: float | None) -> Any:
    if mask is None:
        return x
    require(neutral is not None, "a mask: where it is False everywhere, the values are not defined")
    return tnp.where(mask, x, neutral)


def masked(function: Callable, neutral: float | None) -> Callable:
    def reduce(x: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
        require(x.ndim > 0 or dim is None, "an axis of a 0-d tensor")
        return function(filled_out(cast(x, dtype), mask, neutral), axis=axes(dim), keepdims=keepdim)

    return reduce


def masked_along(function: Callable, neutral: float | None = None) -> Callable:
    def call(x: Any, dim: Any, *, dtype: Any = None, mask: Any = None) -> Any:
        require(x.ndim > 0, "an axis of a 0-d tensor")
        return function(filled_out(cast(x, dtype), mask, neutral), dim)

    return call


def masked_logsumexp(x: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
    return logsumexp(filled_out(cast(x, dtype), mask, None), dim, keepdim)


UNARY = {
    name: getattr(tnp, name)
    for name in [
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "ceil",
        "cos",
        "cosh",
        "deg2rad",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "flipud",
        "fliplr",
        "isfinite",
        "isinf",
        "isnan",
        "isneginf",
        "isposinf",
        "log",
        "log10",
        "log1p",
        "log2",
        "positive",
        "rad2deg",
        "reciprocal",
        "sign",
        "signbit",
        "sin",
        "sinc",
        "sinh",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "trunc",
        "logical_not",
        "ravel",
        "trace",
    ]
} | {
    "neg": tnp.negative,
    "sgn": tnp.sign,
    "rsqrt": lax.rsqrt,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "digamma": lax.digamma,
    "lgamma": lax.lgamma,
    "sigmoid": sigmoid,
    "frac": lambda x: x - tnp.trunc(x),
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: tnp.nan_to_num(
        x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf
    ),
    "isreal": lambda x: tnp.full(x.shape, True, "bool"),
    "angle": lambda x: tnp.where(x < 0, math.pi, 0.0 * x),
    "logit": logit,
    "special.entr": entr,
    "special.ndtr": lambda x: 0.5 * lax.erfc(-x * math.sqrt(0.5)),
    "special.xlog1py": lambda x, y: xlogy(x, y, tnp.log1p),
    "special.polygamma.special_polygamma_n_0": lambda x, n: lax.polygamma(n, x),
    "xlogy": xlogy,
    "round": tnp.round,
    "round.decimals_0": lambda x, decimals: tnp.round(x, decimals),
    "round.decimals_3": lambda x, decimals: tnp.round(x, decimals),
    "round.decimals_neg_3": lambda x, decimals: tnp.round(x, decimals),
    "fill": lambda x, value: tnp.full(x.shape, 0.0, x.dtype) + value,
    "zero_": lambda x: tnp.zeros(x.shape, x.dtype),
    "dist": lambda x, y, p=2: la.vector_norm(x - y, ord=p),
}
UNARY |= {f"polygamma.polygamma_n_{n}": lambda x, n: lax.polygamma(n, x) for n in range(5)}
UNARY |= {f"mvlgamma.mvlgamma_p_{p}": lambda x, p: multigammaln(x, p) for p in (1, 3, 5)}
UNARY |= dict.fromkeys(
    ["clone", "contiguous", "conj", "conj_physical", "resolve_conj", "resolve_neg", "real", "alias_copy"], identity
)
UNARY |= {
    name: to_dtype(dtype)
    for name, dtype in {
        "double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16", "bool": "bool",
        "int": "int32", "long": "int64", "short": "int16", "char": "int8", "byte": "uint8",
    }.items()
}  # fmt: skip

BINARY = {
    name: getattr(tnp, name)
    for name in [
        "atan2",
        "copysign",
        "fmax",
        "fmin",
        "maximum",
        "minimum",
        "logaddexp",
        "hypot",
        "heaviside",
        "nextafter",
        "fmod",
        "logical_and",
        "logical_or",
        "logical_xor",
        "floor_divide",
        "float_power",
        "inner",
        "outer",
        "kron",
        "matmul",
        "dot",
        "vdot",
    ]
} | {
    "ldexp": lambda x, y: x * tnp.exp2(y),
    "add": scaled_second(tnp.add),
    "sub": scaled_second(tnp.subtract),
    "rsub": lambda x, y, alpha=1: y - alpha * x,
    "mul": tnp.multiply,
    "true_divide": tnp.divide,
    "pow": tnp.power,
    "eq": tnp.equal,
    "ne": tnp.not_equal,
    "lt": tnp.less,
    "le": tnp.less_equal,
    "gt": tnp.greater,
    "ge": tnp.greater_equal,
    "remainder": tnp.remainder,
    "max.binary": tnp.maximum,
    "min.binary": tnp.minimum,
    "clamp": clamp,
    "clamp_min": lambda x, y: tnp.maximum(x, y),
    "clamp_max": lambda x, y: tnp.minimum(x, y),
    "logaddexp2": lambda x, y: tnp.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2),
    "__radd__": lambda x, y: y + x,
    "__rsub__": lambda x, y: y - x,
    "__rmul__": lambda x, y: y * x,
    "__rdiv__": lambda x, y: y / x,
    "__rmod__": lambda x, y: tnp.remainder(y, x),
    "__rpow__": lambda x, y: tnp.power(y, x),
    "__rmatmul__": lambda x, y: tnp.matmul(y, x),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "isclose": tnp.isclose,
    "allclose": tnp.allclose,
    "equal": tnp.array_equal,
    "div.no_rounding_mode": rounded_quotient,
    "div.trunc_rounding": rounded_quotient,
    "div.floor_rounding": rounded_quotient,
    "where": lambda x, condition, y: tnp.where(condition, x, y),
}

REDUCTIONS = {
    name: reduction(getattr(tnp, name))
    for name in ["sum", "mean", "prod", "amax", "amin", "all", "any", "nansum", "nanmean", "count_nonzero"]
} | {
    "argmax": reduction(tnp.argmax),
    "argmin": reduction(tnp.argmin),
    "max.reduction_with_dim": extremum(tnp.max, tnp.argmax),
    "min.reduction_with_dim": extremum(tnp.min, tnp.argmin),
    "max.reduction_no_dim": extremum(tnp.max, tnp.argmax),
    "min.reduction_no_dim": extremum(tnp.min, tnp.argmin),
    "aminmax": lambda x, dim=None, keepdim=False: (
        tnp.amin(x, axis=dim, keepdims=keepdim),
        tnp.amax(x, axis=dim, keepdims=keepdim),
    ),
    "logsumexp": logsumexp,
    "var": variance,
    "var.unbiased": variance,
    "std": lambda *args, **kwargs: tnp.sqrt(variance(*args, **kwargs)),
    "std.unbiased": lambda *args, **kwargs: tnp.sqrt(variance(*args, **kwargs)),
    "kthvalue": kthvalue,
    "median": median,
    "quantile": quantiles(tnp.quantile),
    "nanquantile": quantiles(tnp.nanquantile),
    "cumsum": cumulative(tnp.cumsum),
    "cumprod": cumulative(tnp.cumprod),
    "logcumsumexp": cumulative(lax.cumlogsumexp),
    "topk": topk,
    "sort": sort,
    "msort": ranked(lambda x: tnp.sort(x, axis=0)),
    "argsort": ranked(
        lambda x, dim=-1, descending=False, stable=False: tnp.argsort(x, axis=dim, descending=descending)
    ),
    "renorm": renorm,
    "norm": torch_norm,
    "norm.fro": torch_norm,
    "norm.inf": torch_norm,
    "norm.nuc": torch_norm,
    "linalg.vector_norm": vector_norm,
    "linalg.matrix_norm": matrix_norm,
    "linalg.norm": general_norm,
    "trapz": lambda y, x=None, dx=1.0, dim=-1: tnp.trapezoid(y, x, dx, dim),
    "trapezoid": lambda y, x=None, dx=1.0, dim=-1: tnp.trapezoid(y, x, dx, dim),
    "diff": ranked(
        lambda x, n=1, dim=-1, prepend=None, append=None: tnp.diff(x, n, dim, prepend=prepend, append=append)
    ),
    "cov": cov,
    "corrcoef": tnp.corrcoef,
    "bucketize": lambda x, bounds, out_int32=False, right=False: tnp.searchsorted(
        bounds, x, side="right" if right else "left"
    ),
    "isin": lambda x, y, assume_unique=False, invert=False: tnp.isin(x, y, assume_unique=assume_unique, invert=invert),
}
for reduced_name in ("var", "std"):
    for suffix in ("", ".unbiased"):
        REDUCTIONS[f"{reduced_name}_mean{suffix}"] = lambda x, *args, name=reduced_name, **kwargs: (
            REDUCTIONS[name](x, *args, **kwargs),
            tnp.mean(
                x,
                axis=None
                if isinstance(args[0] if args else None, bool)
                else axes(args[0] if args else kwargs.get("dim")),
                keepdims=kwargs.get("keepdim", False),
            ),
        )
REDUCTIONS |= {
    f"masked.{name}": masked(getattr(tnp, name), {"sum": 0.0, "prod": 1.0}.get(name))
    for name in ("sum", "prod", "amax", "amin", "argmax", "argmin", "mean")
} | {
    "masked.cumsum": masked_along(lambda x, dim: tnp.cumsum(x, axis=dim), 0.0),
    "masked.cumprod": masked_along(lambda x, dim: tnp.cumprod(x, axis=dim), 1.0),
    "masked.softmax": masked_along(softmax),
    "masked.softmin": masked_along(softmin),
    "masked.log_softmax": masked_along(log_softmax),
    "masked.logsumexp": masked_logsumexp,
}

SHAPES = {
    "broadcast_to": lambda x, shape: tnp.broadcast_to(x, tuple(shape)),
    "broadcast_tensors": lambda *xs: tnp.broadcast_arrays(*xs),
    "block_diag": block_diag,
    "combinations": combinations,
    "cartesian_prod": cartesian_prod,
    "chunk": chunk,
    "unsafe_chunk": chunk,
    "sum_to_size": sum_to_size,
    "expand": expand,
    "expand_copy": expand,
    "expand_as": lambda x, y: tnp.broadcast_to(x, y.shape),
    "diag": tnp.diag,
    "diag_embed": diag_embed,
    "diagflat": lambda x, offset=0: tnp.diagflat(x, offset),
    "diagonal": diagonal,
    "diagonal_copy": diagonal,
    "linalg.diagonal": lambda A, offset=0, dim1=-2, dim2=-1: diagonal(A, offset, dim1, dim2),
    "diagonal_scatter": diagonal_scatter,
    "flip": lambda x, dims: tnp.flip(x, axes(dims)),
    "meshgrid.variadic_tensors": meshgrid,
    "meshgrid.list_of_tensors": meshgrid,
    "narrow": narrow,
    "narrow_copy": narrow,
    "slice": slice_along,
    "slice_scatter": slice_scatter,
    "select": lambda x, dim, index: x[along(x, dim, index)],
    "select_scatter": lambda x, src, dim, index: x.at[along(x, dim, index)].set(src),
    "permute": lambda x, dims: tnp.permute_dims(x, dims),
    "permute_copy": lambda x, dims: tnp.permute_dims(x, dims),
    "roll": roll,
    "rot90": lambda x, k=1, dims=(0, 1): tnp.rot90(x, k, tuple(dims)),
    "split": split,
    "split.list_args": split,
    "unsafe_split": split,
    "split_with_sizes": split,
    "split_with_sizes_copy": split,
    "tensor_split": tensor_split,
    "hsplit": lambda x, n: tensor_split(x, n, 0 if x.ndim == 1 else 1),
    "vsplit": lambda x, n: tensor_split(x, n, 0),
    "dsplit": lambda x, n: tensor_split(x, n, 2),
    "atleast_1d": joined(lambda xs: tnp.atleast_1d(*xs)),
    "atleast_2d": joined(lambda xs: tnp.atleast_2d(*xs)),
    "atleast_3d": joined(lambda xs: tnp.atleast_3d(*xs)),
    "reshape": lambda x, shape: x.reshape(shape),
    "view": lambda x, *shape: x.reshape(sizes(shape)),
    "view_copy": lambda x, *shape: x.reshape(sizes(shape)),
    "view_as": lambda x, y: x.reshape(y.shape),
    "reshape_as": lambda x, y: x.reshape(y.shape),
    "flatten": flatten,
    "unflatten": unflatten,
    "column_stack": joined(tnp.column_stack),
    "hstack": joined(tnp.hstack),
    "vstack": joined(tnp.vstack),
    "dstack": joined(tnp.dstack),
    "cat": concatenate,
    "stack": lambda xs, dim=0: tnp.stack(xs, axis=dim),
    "unbind": ranked(lambda x, dim=0: tnp.unstack(x, axis=dim)),
    "unbind_copy": ranked(lambda x, dim=0: tnp.unstack(x, axis=dim)),
    "unfold": unfold_copy,
    "unfold_copy": unfold_copy,
    "movedim": tnp.moveaxis,
    "repeat": repeat,
    "tile": repeat,
    "repeat_interleave": repeat_interleave,
    "squeeze": squeeze,
    "squeeze_copy": squeeze,
    "squeeze.multiple": squeeze,
    "unsqueeze": lambda x, dim: tnp.expand_dims(x, dim),
    "unsqueeze_copy": lambda x, dim: tnp.expand_dims(x, dim),
    "transpose": ranked(lambda x, a, b: tnp.swapaxes(x, a, b)),
    "transpose_copy": ranked(lambda x, a, b: tnp.swapaxes(x, a, b)),
    "T": tnp.transpose,
    "t": tnp.transpose,
    "t_copy": tnp.transpose,
    "H": tnp.transpose,
    "mT": tnp.matrix_transpose,
    "mH": tnp.matrix_transpose,
    "tril": lambda x, diagonal=0: tnp.tril(x, diagonal),
    "triu": lambda x, diagonal=0: tnp.triu(x, diagonal),
    "gather": gather,
    "scatter": scatter,
    "scatter_add": scatter_add,
    "index_select": index_select,
    "index_add": index_add,
    "index_copy": index_copy,
    "index_fill": index_fill,
    "index_put": index_put,
    "__getitem__": getitem,
    "put": put,
    "take": lambda x, index: tnp.ravel(x)[flat_indices(x, index)],
    "take_along_dim": take_along_dim,
    "masked_fill": masked_fill,
}
SHAPES |= {f"scatter_reduce.{name}": scatter_reduce for name in ["sum", "prod", "mean", "amin", "amax"]}
SHAPES |= {f"index_reduce.{name}": index_reduce for name in ["mean", "prod", "amin", "amax"]}

LINEAR_ALGEBRA = {
    "mm": tnp.matmul,
    "bmm": tnp.matmul,
    "mv": tnp.matmul,
    "addmm": matrix_plus(tnp.matmul),
    "addmm.decomposed": matrix_plus(tnp.matmul),
    "addmv": matrix_plus(tnp.matmul),
    "baddbmm": matrix_plus(tnp.matmul),
    "addbmm": matrix_plus(lambda a, b: tnp.sum(tnp.matmul(a, b), axis=0)),
    "addr": matrix_plus(tnp.outer),
    "tensordot": tensordot,
    "einsum": lambda operands, equation: tnp.einsum(equation, *operands),
    "cdist": distances,
    "cross": first_cross,
    "linalg.cross": cross,
    "linalg.vecdot": lambda x, y, dim=-1: tnp.sum(x * y, axis=dim),
    "cholesky": lambda x, upper=False: la.cholesky(x, upper=upper),
    "cholesky_solve": cholesky_solve,
    "cholesky_inverse": cholesky_inverse,
    "linalg.cholesky": cholesky,
    "linalg.cholesky_ex": without_error(cholesky),
    "triangular_solve": triangular_solve,
    "linalg.solve_triangular": solve_triangular,
    "linalg.solve": solve,
    "linalg.inv": la.inv,
    "linalg.inv_ex": without_error(la.inv),
    "linalg.det": la.det,
    "logdet": lambda x: la.slogdet(x)[1],
    "linalg.slogdet": la.slogdet,
    "linalg.cond": la.cond,
    "linalg.eigh": eigh,
    "linalg.eigvalsh": lambda x, UPLO="L": la.eigvalsh(x, UPLO=UPLO),
    "linalg.matrix_power": lambda x, n: la.matrix_power(x, n),
    "linalg.multi_dot": la.multi_dot,
    "linalg.lu": lu,
    "linalg.lu_factor": lu_factor,
    "linalg.vander": vander,
    "linalg.svdvals": la.svdvals,
    "linalg.tensorinv": tensorinv,
    "linalg.tensorsolve": tensorsolve,
    "linalg.matrix_rank": lambda x, tol=None, **kwargs: la.matrix_rank(x),
    "linalg.pinv": pinv,
    "pinverse": pinv,
    "linalg.qr": lambda x, mode="reduced": la.qr(x, mode=mode),
    "qr": lambda x, some=True: la.qr(x, mode="reduced" if some else "complete"),
}

NETWORKS = {
    "softmax": softmax,
    "softmax.with_dtype": softmax,
    "log_softmax": log_softmax,
    "log_softmax.with_dtype": log_softmax,
    "nn.functional.softmin": softmin,
    "nn.functional.softmin.with_dtype": softmin,
    "torch.ops.aten._safe_softmax.default": safe_softmax,
    "constant_pad_nd": lambda x, widths, value=0: pad(x, widths, value=value),
} | {
    f"nn.functional.{name}": function
    for name, function in {
        "relu": relu,
        "relu6": lambda x, inplace=False: hardtanh(x, 0.0, 6.0),
        "leaky_relu": lambda x, negative_slope=0.01, inplace=False: tnp.where(x > 0, x, negative_slope * x),
        "elu": elu,
        "celu": celu,
        "selu": selu,
        "prelu": prelu,
        "glu": glu,
        "gelu": gelu,
        "silu": lambda x, inplace=False: x * sigmoid(x),
        "hardswish": lambda x, inplace=False: x * hardsigmoid(x),
        "hardsigmoid": hardsigmoid,
        "hardtanh": hardtanh,
        "logsigmoid": log_sigmoid,
        "mish": lambda x, inplace=False: x * tnp.tanh(softplus(x)),
        "softplus": softplus,
        "softsign": lambda x: x / (1 + abs(x)),
        "tanhshrink": lambda x: x - tnp.tanh(x),
        "threshold": lambda x, threshold, value, inplace=False: tnp.where(x > threshold, x, value),
        "softshrink": lambda x, lambd=0.5: tnp.where(x > lambd, x - lambd, tnp.where(x < -lambd, x + lambd, 0.0)),
        "hardshrink": lambda x, lambd=0.5: tnp.where(abs(x) > lambd, x, 0.0),
        "linear": linear,
        "bilinear": bilinear,
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "group_norm": group_norm,
        "instance_norm": instance_norm,
        "batch_norm": batch_norm,
        "local_response_norm": local_response_norm,
        "normalize": normalize,
        "cosine_similarity": cosine_similarity,
        "pairwise_distance": pairwise_distance,
        "pdist": pdist,
        "pad.constant": pad,
        "pad.reflect": pad,
        "pad.replicate": pad,
        "pad.replicate_negative": pad,
        "pad.circular": pad,
        "unfold": unfold,
        "pixel_shuffle": pixel_shuffle,
        "pixel_unshuffle": pixel_unshuffle,
        "channel_shuffle": channel_shuffle,
        "embedding": embedding,
        "scaled_dot_product_attention": attention,
        "interpolate.nearest": interpolate_nearest(0.0),
        "interpolate.nearest-exact": interpolate_nearest(0.5),
        "interpolate.linear": interpolate_linear,
        "interpolate.bilinear": interpolate_linear,
        "interpolate.trilinear": interpolate_linear,
        "upsample_nearest": interpolate_nearest(0.0),
        "upsample_bilinear": lambda x, size=None, scale_factor=None: interpolate_linear(
            x, size, scale_factor, align_corners=True
        ),
        "mse_loss": loss(lambda x, y: (x - y) ** 2),
        "l1_loss": loss(lambda x, y: abs(x - y)),
        "huber_loss": loss(huber),
        "smooth_l1_loss": loss(smooth_l1),
        "soft_margin_loss": loss(lambda x, y: tnp.log1p(tnp.exp(-y * x))),
        "margin_ranking_loss": lambda x, y, target, margin=0.0, reduction="mean": reduced(
            tnp.maximum(-target * (x - y) + margin, 0.0), reduction
        ),
        "hinge_embedding_loss": loss(hinge_embedding),
        "poisson_nll_loss": loss(poisson_nll),
        "gaussian_nll_loss": gaussian_nll,
        "kl_div": kl_div,
        "binary_cross_entropy": loss(binary_cross_entropy),
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
        "nll_loss": nll_loss,
        "cross_entropy": cross_entropy,
        "cosine_embedding_loss": cosine_embedding,
        "triplet_margin_loss": triplet_margin,
        "multi_margin_loss": multi_margin,
        "multilabel_soft_margin_loss": multilabel_soft_margin,
    }.items()
}
for rank in (1, 2, 3):
    NETWORKS |= {
        f"nn.functional.conv{rank}d": convolution(rank),
        f"nn.functional.conv_transpose{rank}d": transposed_convolution(rank),
        f"nn.functional.avg_pool{rank}d": average_pool(rank),
        f"nn.functional.max_pool{rank}d": max_pool(rank),
        f"nn.functional.adaptive_avg_pool{rank}d": adaptive_pool(rank, tnp.mean),
        f"nn.functional.adaptive_max_pool{rank}d": adaptive_pool(rank, tnp.max),
    }

CREATION = {
    "ones_like": filled_like(1.0),
    "zeros_like": filled_like(0.0),
    "new_ones": new_filled(1.0),
    "new_zeros": new_filled(0.0),
    "ones": filled(1.0),
    "zeros": filled(0.0),
    "full_like": full_like,
    "new_full": new_full,
    "eye": eye,
}

TABLE: dict[str, Callable] = UNARY | BINARY | REDUCTIONS | SHAPES | LINEAR_ALGEBRA | NETWORKS | CREATION

# Entries whose derivative differs from PyTorch's by definition, and how.
VALUES_ONLY: dict[str, str] = {
    "nextafter": "PyTorch hands the cotangent on to x; JAX's derivative, and so tvmfun's, is 0",
}

# Entries whose jvp is compared with the vjp and not with PyTorch's, and why.
JVP_FROM_VJP: dict[str, str] = {
    "logcumsumexp": "PyTorch's jvp differs from its own vjp by about 1e-6",
    "cholesky_inverse": "PyTorch's jvp differs from its own vjp by about 1e-5",
    "triangular_solve": "PyTorch's jvp sees the triangle that is not read, its vjp does not",
}

# Entries that are not compared, and why.
LEFT_OUT: dict[str, str] = {
    name: reason
    for reason, names in {
        "its values are random": """
            cauchy exponential geometric log_normal normal.in_place uniform nn.functional.rrelu multinomial
            normal normal.number_mean bernoulli randn randn_like rand_like randint randint_like
            nn.functional.dropout native_dropout_backward nn.functional.dropout2d nn.functional.dropout3d
            nn.functional.alpha_dropout nn.functional.feature_alpha_dropout.with_train
            nn.functional.feature_alpha_dropout.without_train nn.functional.fractional_max_pool2d
            nn.functional.fractional_max_pool3d svd_lowrank pca_lowrank
        """,
        "its values are not defined": """
            empty_like new_empty new_empty_strided empty_strided empty empty_permuted resize_ resize_as_
        """,
        "complex numbers": """
            view_as_real view_as_complex complex imag polar cdouble cfloat chalf stft istft
            nn.functional.silu.complex linalg.eig linalg.eigvals fft.fft fft.fft2 fft.fftn fft.hfft
            fft.hfft2 fft.hfftn fft.rfft fft.rfft2 fft.rfftn fft.ifft fft.ifft2 fft.ifftn fft.ihfft
            fft.ihfft2 fft.ihfftn fft.irfft fft.irfft2 fft.irfftn
        """,
        "sparse tensors": """
            sparse.sampled_addmm sparse.mm.reduce to_sparse
        """,
        "no samples in float64": """
            broadcast_shapes bitwise_not bitwise_left_shift bitwise_right_shift bitwise_and bitwise_or
            bitwise_xor lcm gcd __rand__ __ror__ __rxor__ bincount nn.functional.one_hot unravel_index
            triu_indices tril_indices torch._scaled_mm_v2 torch._scaled_mm
            torch.ops.aten._flash_attention_forward torch.ops.aten._efficient_attention_forward
            nn.functional.batch_norm.without_cudnn
        """,
        "the shape of the result depends on values": """
            masked_select unique unique_consecutive nonzero nonzero_static argwhere masked_scatter
        """,
        "strides and memory": """
            as_strided as_strided.partial_views as_strided_copy as_strided_scatter
        """,
        "needs CUDA": """
            jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args
            jiterator_binary_return_by_ref jiterator_2inputs_2outputs bmm.triton_optimized
        """,
        "a function inside PyTorch": """
            _softmax_backward_data native_group_norm native_layer_norm native_batch_norm
            _native_batch_norm_legit _batch_norm_with_update _upsample_bilinear2d_aa
            max_pool2d_with_indices_backward _unsafe_masked_index _unsafe_masked_index_put_accumulate
            _chunk_cat _segment_reduce.lengths _segment_reduce.offsets hash_tensor item to scalar_tensor
        """,
        "tvmfun has no such function": """
            i0 igamma igammac special.i0e special.i1 special.i1e special.zeta special.ndtri special.log_ndtr
            special.erfcx special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0
            special.bessel_y1 special.chebyshev_polynomial_t special.chebyshev_polynomial_u
            special.chebyshev_polynomial_v special.chebyshev_polynomial_w special.hermite_polynomial_h
            special.hermite_polynomial_he special.laguerre_polynomial_l special.legendre_polynomial_p
            special.modified_bessel_i0 special.modified_bessel_i1 special.modified_bessel_k0
            special.modified_bessel_k1 special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
            special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
            special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
            special.spherical_bessel_j0 frexp geqrf ormqr matrix_exp linalg.householder_product
            linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve histogramdd signal.windows.hamming
            signal.windows.hann signal.windows.bartlett signal.windows.blackman signal.windows.cosine
            signal.windows.exponential signal.windows.gaussian signal.windows.kaiser
            signal.windows.general_cosine signal.windows.general_hamming signal.windows.nuttall
            nn.functional.ctc_loss
        """,
        "the signs or bases of the result are free": """
            linalg.svd svd linalg.norm.subgradients_at_zero
        """,
        "not written down here: a longer composition, or near to an entry that is": """
            arange cummax cummin gradient linspace linspace.tensor_overload logspace
            logspace.tensor_overload lu_unpack lu lu_solve nanmedian nn.functional.linear_cross_entropy
            nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none
            nn.functional.interpolate.bicubic nn.functional.interpolate.area
            nn.functional.multilabel_margin_loss nn.functional.max_unpool1d nn.functional.max_unpool1d.grad
            nn.functional.max_unpool2d nn.functional.max_unpool2d.grad nn.functional.max_unpool3d
            nn.functional.max_unpool3d.grad nn.functional.triplet_margin_with_distance_loss mode full
            histogram histc searchsorted cumulative_trapezoid nn.functional.embedding_bag
            nn.functional.multi_head_attention_forward nn.functional.grid_sample grid_sampler_2d
            grid_sampler_3d fft.fftshift fft.ifftshift linalg.lstsq linalg.lstsq.grad_oriented
            linalg.lu_factor_ex linalg.lu_solve linalg.solve_ex linalg.matrix_rank.hermitian
            linalg.pinv.singular linalg.pinv.hermitian masked.median masked.norm masked.var masked.std
            masked.normalize masked.logaddexp
        """,
    }.items()
    for name in names.split()
}
