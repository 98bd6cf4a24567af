"""Every function that has a derivative, and many that have none, against JAX: values and derivatives, compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.draws import Draws
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import dtypes, tree

DRAWS = Draws(11)
reals, apart, ints, bools = DRAWS.reals, DRAWS.apart, DRAWS.ints, DRAWS.bools


@dataclass
class Case:
    """A function of a namespace and arrays, and the arrays; those that are floats are differentiated."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    differentiable: bool = True


CASES: list[Case] = []


def case(name: str, *arguments: Any, differentiable: bool = True, **options: Any) -> None:
    """``xp.name(*arguments, **options)``; NumPy arrays are arguments, everything else is as it is."""
    places = [i for i, x in enumerate(arguments) if isinstance(x, np.ndarray)]

    def function(xp: Any, *arrays: Any) -> Any:
        full = list(arguments)
        for i, x in zip(places, arrays, strict=True):
            full[i] = x
        for part in name.split("."):
            xp = getattr(xp, part)
        return xp(*full, **options)

    CASES.append(Case(name, function, tuple(arguments[i] for i in places), differentiable))


def made(name: str, function: Callable[..., Any], *arrays: np.ndarray, differentiable: bool = True) -> None:
    """``function(xp, *arrays)``."""
    CASES.append(Case(name, function, arrays, differentiable))


POSITIVE, UNIT, BIG = reals(3, 4, low=0.3, high=3), reals(3, 4, low=-0.9, high=0.9), reals(3, 4, low=1.2, high=5)
X, Y, ROW = apart(3, 4), apart(3, 4) + 0.05, apart(4) + 0.1
VECTOR, LONG = apart(6), apart(9)
CUBE = apart(2, 3, 4)
WITH_NAN = np.where(bools(3, 4), np.nan, X)
WITH_NAN[:, 0] = X[:, 0]
MASK = np.asarray([[True, False, True, True], [False, True, True, False], [True, True, True, True]])

# -- elementwise
for name in ("sin", "cos", "atan", "arctan", "sinh", "cosh", "tanh", "asinh", "arcsinh", "exp", "exp2", "expm1"):
    case(name, X)
for name in ("square", "abs", "absolute", "positive", "negative", "sinc", "deg2rad", "rad2deg", "degrees", "radians"):
    case(name, X)
for name in ("log", "log2", "log10", "log1p", "sqrt", "cbrt", "reciprocal"):
    case(name, POSITIVE)
for name in ("tan", "asin", "acos", "arcsin", "arccos", "atanh", "arctanh"):
    case(name, UNIT)
for name in ("acosh", "arccosh"):
    case(name, BIG)
for name in ("add", "subtract", "multiply", "divide", "true_divide", "maximum", "minimum", "fmax", "fmin"):
    case(name, X, ROW)
for name in ("hypot", "atan2", "arctan2", "logaddexp", "copysign"):
    case(name, X, ROW)
for name in ("remainder", "mod", "fmod"):
    case(name, X, np.asarray([2.5, -3.1, 4.7, 2.2]))
for name in ("pow", "power", "float_power"):
    case(name, POSITIVE, ROW)
for power in (-3, 0, 1, 2, 5, 20, 2.5):
    case("power", POSITIVE, power)
case("divmod", X, np.asarray([2.5, -3.1, 4.7, 2.2]), differentiable=False)
case("heaviside", X, ROW)
case("ldexp", X, ints(3, 4, low=-3, high=4))
case("ldexp", np.zeros(2), np.asarray([5000, -5000], np.int32), differentiable=False)
case("modf", X)
case("clip", X, -0.5, 1.0)
case("clip", X, ROW - 1, ROW + 1)
case("nan_to_num", WITH_NAN)
case("nan_to_num", np.asarray([np.inf, -np.inf, 1.0]), nan=1.0, posinf=3.0)
case("round", X, 1, differentiable=False)
for name in ("floor", "ceil", "trunc", "rint", "sign", "signbit", "isnan", "isinf", "isfinite", "logical_not"):
    case(name, X, differentiable=False)
for name in ("isposinf", "isneginf"):
    case(name, np.asarray([np.inf, -np.inf, 1.0, np.nan]), differentiable=False)
for name in ("floor_divide", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "nextafter"):
    case(name, X, ROW, differentiable=False)
for name in ("logical_and", "logical_or", "logical_xor"):
    case(name, ints(3, 4), ints(4), differentiable=False)
for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "remainder", "fmod", "maximum", "fmax"):
    case(name, ints(3, 4), ints(4, low=1), differentiable=False)
for name in ("bitwise_left_shift", "bitwise_right_shift", "left_shift", "right_shift"):
    case(name, ints(3, 4), ints(4, low=0, high=9), differentiable=False)
for name in ("bitwise_invert", "invert", "bitwise_not"):
    case(name, ints(3, 4), differentiable=False)
for name in ("isclose", "allclose"):
    case(name, X, X + 1e-7, differentiable=False)
case("isclose", WITH_NAN, WITH_NAN, equal_nan=True, differentiable=False)
case("array_equal", X, Y, differentiable=False)
case("array_equiv", X, X[0], differentiable=False)

# -- reductions
for name in ("sum", "mean", "prod", "max", "min", "std", "var", "ptp", "amax", "amin", "median"):
    case(name, X)
    case(name, X, axis=0)
    case(name, CUBE, axis=(0, 2), keepdims=True)
for name in ("sum", "mean", "prod", "std", "var"):
    case(name, X, axis=1, where=MASK)
case("max", X, axis=1, where=MASK, initial=-9.0)
case("min", X, axis=1, where=MASK, initial=9.0)
case("sum", X, axis=1, initial=3.0)
case("std", X, ddof=1)
for name in ("nansum", "nanmean", "nanprod", "nanmax", "nanmin", "nanstd", "nanvar", "nanmedian"):
    case(name, WITH_NAN, axis=1)
for name in ("nanargmax", "nanargmin"):
    case(name, WITH_NAN, axis=1, differentiable=False)
case("average", X, axis=1, weights=np.asarray([1.0, 2.0, 0.5, 1.0]))
made("average", lambda xp, x, w: xp.average(x, weights=w, returned=True), X, POSITIVE)
for name in ("argmax", "argmin"):
    case(name, X, differentiable=False)
    case(name, X, axis=1, keepdims=True, differentiable=False)
for name in ("any", "all"):
    case(name, MASK, axis=1, differentiable=False)
case("count_nonzero", ints(3, 4), axis=0, differentiable=False)
for method in ("linear", "lower", "higher", "midpoint", "nearest"):
    case("quantile", LONG, np.asarray([0.1, 0.55, 1.0]), method=method, differentiable=False)
    made("quantile", lambda xp, x, m=method: xp.quantile(x, 0.3, method=m), LONG)
made("percentile", lambda xp, x: xp.percentile(x, xp.asarray([10.0, 70.0]), axis=1), X)
made("nanquantile", lambda xp, x: xp.nanquantile(x, 0.4, axis=1), WITH_NAN)
made("nanpercentile", lambda xp, x: xp.nanpercentile(x, 40, axis=1, keepdims=True), WITH_NAN)
for name in ("cumsum", "cumprod", "nancumsum", "nancumprod"):
    case(name, WITH_NAN if name.startswith("nan") else X, axis=1)
    case(name, WITH_NAN if name.startswith("nan") else X)
for name in ("cumulative_sum", "cumulative_prod"):
    case(name, X, axis=1, include_initial=True)
for keywords in ({}, {"rowvar": False}, {"bias": True}, {"ddof": 2}):
    case("cov", X, **keywords)
case("cov", X, Y)
case("cov", X[:1])
made("cov", lambda xp, x, w: xp.cov(x, aweights=w), X, np.asarray([1.0, 2.0, 0.5, 1.0]))
made("cov", lambda xp, x: xp.cov(x, fweights=np.asarray([1, 2, 1, 3])), X)
case("corrcoef", X)
case("corrcoef", X[:1], differentiable=False)
case("histogram", LONG**3, differentiable=False)
case("histogram", LONG, bins=4, range=(-1.0, 1.0), density=True, differentiable=False)
made("histogram", lambda xp, x, w: xp.histogram(x, xp.asarray([-1.0, 0.0, 2.0]), weights=w)[0], LONG, reals(9))
case("histogram_bin_edges", LONG, bins=3)
case("bincount", ints(9, low=0), length=4, differentiable=False)
made("bincount", lambda xp, w: xp.bincount(xp.asarray([0, 2, 2, 5]), w, length=7), reals(4))

# -- shapes
case("reshape", X, (2, 6))
case("ravel", X)
case("permute_dims", CUBE, (2, 0, 1))
case("transpose", CUBE)
case("matrix_transpose", CUBE)
case("swapaxes", CUBE, 0, 2)
case("moveaxis", CUBE, 0, -1)
case("expand_dims", X, (0, 2))
case("squeeze", X[:, None])
case("broadcast_to", ROW, (3, 4))
case("broadcast_arrays", X, ROW)
for name in ("flip", "fliplr", "flipud", "atleast_1d", "atleast_2d", "atleast_3d", "unstack"):
    case(name, X)
for k in range(-1, 4):
    case("rot90", CUBE, k, (2, 0))
for name in ("atleast_2d", "atleast_3d"):
    case(name, ROW)
case("roll", X, 2)
case("roll", X, (1, -1), (0, 1))
made("roll", lambda xp, x, n: xp.roll(x, n, 1), X, np.asarray(3, np.int32))
case("repeat", X, 2)
made("repeat", lambda xp, x: xp.repeat(x, np.asarray([1, 0, 3]), axis=0), X)
made("repeat", lambda xp, x, n: xp.repeat(x, n, 0, total_repeat_length=5), X, np.asarray([1, 3, 2], np.int32))
case("tile", X, (2, 1, 2))
for mode in ("edge", "reflect", "symmetric", "wrap"):
    case("pad", X, ((1, 2), (0, 3)), mode=mode)
case("pad", X, ((1, 2), (0, 3)), constant_values=7.0)
case("pad", X, ((1, 2), (0, 3)), constant_values=((1.0, 2.0), (3.0, 4.0)))
case("resize", X, (5, 4))
case("insert", VECTOR, 2, ROW)
made("insert", lambda xp, x, v: xp.insert(x, np.asarray([2, 0]), v, axis=1), X, reals(3, 2))
case("insert", X, 1, 5.0, axis=0)
case("delete", X, 1, axis=1)
case("delete", X, slice(0, 2), axis=0)
made("delete", lambda xp, x: xp.delete(x, np.asarray(2, np.int32), axis=1), X)
for name in ("concat", "stack", "vstack", "hstack", "dstack", "column_stack", "concatenate"):
    made(name, lambda xp, x, y, n=name: getattr(xp, n)([x, y]), X, Y)
for name in ("vstack", "hstack", "dstack", "column_stack"):
    made(name, lambda xp, x, y, n=name: getattr(xp, n)([x, y]), ROW, ROW)
made("block", lambda xp, x, y: xp.block([[x, y], [y, x]]), X, Y)
case("append", X, Y)
case("append", X, Y, axis=1)
case("split", CUBE, 2, axis=2)
case("array_split", VECTOR, 4)
case("array_split", VECTOR, (1, 4))
for name in ("vsplit", "hsplit", "dsplit"):
    case(name, CUBE[:, :2], 2)

# -- indexing, searching, sorting
PLACES = np.asarray([[2, 0], [1, -1]], np.int32)
OUTSIDE = np.asarray([0, 5, -1, -9], np.int32)
case("take", X, PLACES)
case("take", X, PLACES, axis=1)
for mode in (None, "clip", "wrap", "fill"):
    case("take", X, OUTSIDE, axis=1, mode=mode)
case("take", X, OUTSIDE, axis=1, mode="fill", fill_value=3.0)
case("take", ints(5), OUTSIDE, differentiable=False)
case("take_along_axis", X, ints(3, 2, low=0, high=4), axis=1)
case("take_along_axis", X, np.asarray([[0], [5], [-1]], np.int32), axis=1)
case("take_along_axis", X, ints(1, 4, low=0, high=3), axis=0)
for name in ("sort", "argsort"):
    for keywords in ({}, {"axis": 0}, {"axis": None}, {"descending": True}):
        case(name, X, differentiable=name == "sort", **keywords)
made("partition", lambda xp, x: xp.sort(xp.partition(x, 2)), X)
made("lexsort", lambda xp, a, b: xp.lexsort((a, b)), ints(9), ints(9), differentiable=False)
case("where", MASK, X, Y)
for side in ("left", "right"):
    case("searchsorted", np.sort(LONG), X, side=side, differentiable=False)
made("searchsorted", lambda xp, x, v: xp.searchsorted(x, v, sorter=xp.argsort(x)), LONG, X, differentiable=False)
for right in (False, True):
    case("digitize", X, np.sort(ROW), right, differentiable=False)
    case("digitize", X, np.sort(ROW)[::-1].copy(), right, differentiable=False)
    case("digitize", np.arange(6.0) / 2, np.asarray([2.0, 1.5, 0.5]), right, differentiable=False)
case("isin", ints(9), ints(4), differentiable=False)
case("isin", ints(9), ints(4), invert=True, differentiable=False)
case("nonzero", ints(3, 4), size=5, differentiable=False)
case("nonzero", ints(3, 4), size=15, fill_value=(7, 8), differentiable=False)
case("flatnonzero", ints(3, 4), size=15, fill_value=-1, differentiable=False)
case("argwhere", ints(3, 4), size=5, differentiable=False)
case("where", ints(3, 4), size=5, fill_value=-1, differentiable=False)
made("select", lambda xp, x, y: xp.select([x < 0, x > 1], [x, y], 3.0), X, Y)
made("piecewise", lambda xp, x: xp.piecewise(x, [x < 0, x > 1], [lambda v: v * v, 2.0, xp.sin]), X)
for keywords in ({"size": 4}, {"size": 12}, {"size": 12, "fill_value": -7}):
    case("unique", ints(9), True, True, True, differentiable=False, **keywords)
    case("unique_values", ints(9), differentiable=False, **keywords)
    case("unique_counts", ints(9), differentiable=False, **keywords)
    case("unique_inverse", ints(9), differentiable=False, **keywords)
    case("unique_all", ints(9), differentiable=False, **keywords)
case("unique", WITH_NAN, size=20, differentiable=False)
case("union1d", ints(5), ints(4), size=12, differentiable=False)
case("unravel_index", ints(5, low=-30, high=30), (3, 4), differentiable=False)
made(
    "ravel_multi_index",
    lambda xp, a, b: (xp.ravel_multi_index((a, b), (3, 4), "clip"), xp.ravel_multi_index((a, b), (3, 4), "wrap")),
    ints(9),
    ints(9),
    differentiable=False,
)

# -- linear algebra
A, B, S = reals(3, 4), reals(4, 5), reals(4, 4) + 4 * np.eye(4)
case("matmul", A, B)
case("matmul", reals(2, 1, 3, 4), reals(3, 4, 2))
case("dot", A, B)
case("dot", A, ROW)
case("tensordot", CUBE, reals(4, 3, 2), axes=((1, 2), (1, 0)))
case("vecdot", A, ROW)
case("vdot", A, reals(3, 4))
case("inner", A, reals(2, 4))
case("outer", ROW, VECTOR)
case("matvec", CUBE, ROW)
case("vecmat", reals(2, 3), CUBE)
case("kron", A, reals(2, 1, 3))
case("cross", reals(5, 3), reals(3))
case("cross", reals(5, 2), reals(5, 2))
case("cross", reals(5, 2), reals(5, 3))
for offset in (-5, -2, 0, 1, 9):
    case("diagonal", CUBE, offset, 2, 1)
    case("diag", A, offset)
    case("trace", CUBE, offset, 0, 2)
    case("diag", ROW, offset)
case("diagflat", reals(2, 2), 1)
case("fill_diagonal", reals(4, 3), 2.0, inplace=False)
case("fill_diagonal", reals(7, 3), np.asarray([1.0, 2.0]), inplace=False)
case("fill_diagonal", reals(3, 3, 3), 2.0, inplace=False)
for name in ("tril", "triu"):
    case(name, CUBE, k=1)
for subscripts in ("ij,jk", "ij,jk->ki", "ij,kj->", "ij,ij->j", "ij,kl->ijkl"):
    made("einsum", lambda xp, x, y, s=subscripts: xp.einsum(s, x, y), reals(3, 3), reals(3, 3))
for subscripts in ("ii", "ii->i", "ij->ji", "ij->", "...j->j...", "ij"):
    made("einsum", lambda xp, x, s=subscripts: xp.einsum(s, x), reals(3, 3))
made("einsum", lambda xp, x, y: xp.einsum("...ij,...jk->...ik", x, y), reals(2, 1, 3, 4), reals(5, 4, 2))
made("einsum", lambda xp, x, y, z: xp.einsum("ij,jk,kl->il", x, y, z), A, B, reals(5, 2))
made("einsum", lambda xp, x, y, z: xp.einsum("bij,bjk,b->ik", x, y, z), CUBE, reals(2, 4, 2), reals(2))
made("einsum", lambda xp, x, y: xp.einsum("iij,jk->ik", x, y), reals(3, 3, 4), B)
made("einsum", lambda xp, x, y: xp.einsum(x, [0, 1], y, [1, 2], [0, 2]), A, B)
made("einsum", lambda xp, x, y: xp.einsum("ij,ij->ij", x, y), reals(1, 4), reals(3, 4))

GRAM = S @ S.T
STACK = np.stack([S, 2 * S + 0.1, -S])
TALL = reals(5, 3)
case("linalg.cholesky", GRAM)
case("linalg.cholesky", GRAM, upper=True)
for name in ("det", "slogdet", "inv"):
    case(f"linalg.{name}", STACK)
for size in (1, 2, 3):
    case("linalg.det", reals(2, size, size))
case("linalg.det", np.asarray([[1.0, 2.0], [2.0, 4.0]]))
case("linalg.solve", STACK, reals(4, 2))
case("linalg.solve", STACK, reals(4))
case("linalg.solve", S, reals(3, 4, 1))
case("linalg.qr", TALL)
case("linalg.qr", TALL, mode="r")
made("linalg.qr", lambda xp, x: xp.linalg.qr(x, mode="complete").R, S)
case("linalg.eigvalsh", GRAM)
made("linalg.eigh", lambda xp, x: (lambda w, v: (w, (v * xp.exp(w / 9)) @ v.T))(*xp.linalg.eigh(x)), GRAM)
case("linalg.svdvals", TALL)
made("linalg.svd", lambda xp, x: (lambda u, s, vh: (s, (u * xp.tanh(s)) @ vh))(*xp.linalg.svd(x, False)), TALL)
made("linalg.svd", lambda xp, x: xp.linalg.svd(x, compute_uv=False), TALL.T.copy())
case("linalg.pinv", TALL)
case("linalg.matrix_rank", TALL, differentiable=False)
case("linalg.matrix_rank", np.ones((3, 4)), differentiable=False)
made("linalg.lstsq", lambda xp, x, y: [xp.linalg.lstsq(x, y)[i] for i in (0, 1, 3)], TALL, reals(5, 2))
made("linalg.lstsq", lambda xp, x, y: xp.linalg.lstsq(x, y)[0], TALL, reals(5))
for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
    case("linalg.matrix_norm", STACK, ord=order)
    case("linalg.norm", CUBE, order, (0, 2), keepdims=True)
for order in (2, 1, 3, 0.5, 0, np.inf, -np.inf):
    case("linalg.vector_norm", X, ord=order, axis=1)
    case("linalg.norm", X[0], order)
case("linalg.norm", CUBE)
case("linalg.norm", CUBE, axis=(0, 1))
for order in (None, 1, -2, "fro"):
    case("linalg.cond", S, order)
for power in (-2, 0, 1, 5):
    case("linalg.matrix_power", S, power)
made("linalg.multi_dot", lambda xp, x, y, z: xp.linalg.multi_dot([x, y, z]), A, B, reals(5))
made("linalg.multi_dot", lambda xp, x, y, z: xp.linalg.multi_dot([x, y, z]), ROW, B, reals(5, 2))
case("linalg.cross", reals(5, 3), reals(3))
case("linalg.outer", ROW, VECTOR)
case("linalg.vecdot", A, ROW)
case("linalg.tensordot", A, B, axes=1)
case("linalg.matmul", A, B)
case("linalg.matrix_transpose", CUBE)
for name in ("diagonal", "trace"):
    case(f"linalg.{name}", CUBE, offset=1)

# -- signals and polynomials
for mode in ("full", "same", "valid"):
    for name in ("convolve", "correlate"):
        case(name, LONG, ROW, mode=mode)
        case(name, ROW, LONG[:7], mode=mode)
    case("convolve", ints(7), ints(3), mode=mode, differentiable=False)
case("interp", X, np.sort(VECTOR), reals(6))
case("interp", X, np.sort(VECTOR), reals(6), left=1.0, right=-1.0)
case("interp", X, VECTOR, reals(6), period=3.0)
case("gradient", CUBE)
case("gradient", X, 0.5, axis=1)
case("gradient", LONG, np.sort(apart(9)))
case("trapezoid", X, dx=0.5, axis=0)
case("trapezoid", X, ROW)
case("unwrap", LONG * 3)
case("unwrap", LONG * 9, period=4.0)
case("polyval", ROW, X)
case("vander", ROW, 3)
case("vander", ROW, increasing=True)
case("diff", X)
case("diff", X, n=2, axis=0)
made("diff", lambda xp, x, y: xp.diff(x, prepend=1.1, append=y), VECTOR, ROW)
made("ediff1d", lambda xp, x, y: xp.ediff1d(x, to_end=y, to_begin=2.0), X, ROW)

# -- numbers between others
made("linspace", lambda xp, x, y: xp.linspace(x, y, 5, axis=1), ROW, ROW + 1)
made("linspace", lambda xp, x, y: xp.linspace(x, y, 5, endpoint=False, retstep=True), ROW, ROW + 1)
made("logspace", lambda xp, x, y: xp.logspace(x, y, 5), ROW, ROW + 1)
made("geomspace", lambda xp, x, y: xp.geomspace(x, y, 5), POSITIVE, POSITIVE + 1)
made("meshgrid", lambda xp, x, y: xp.meshgrid(x, y), ROW, VECTOR)
made("meshgrid", lambda xp, x, y, z: xp.meshgrid(x, y, z, indexing="ij", sparse=True), ROW, VECTOR, ROW)


def groups() -> list[Any]:
    """For each function one case alone, and the others, which are one Program of each library: it compiles sooner."""
    named: dict[str, list[Case]] = {}
    for one in CASES:
        named.setdefault(one.name, []).append(one)
    # One way to call each function every time, the others once in a while.
    first = [pytest.param([cases[0]], id=f"{name}-0") for name, cases in named.items()]
    others = [(name, cases[1:]) for name, cases in named.items() if len(cases) > 1]
    return first + [pytest.param(cases, id=f"{name}-others", marks=pytest.mark.slow) for name, cases in others]


TOLERANCES = {dtypes.float64: 1e-9, dtypes.bfloat16: 5e-2}
#: What JAX does not compute in bfloat16, and where its rounding decides between two results.
NOT_IN_BFLOAT16 = ("linalg.", "interp", "unwrap")


class Comparison:
    """A case with cotangents of its results, and batches of two examples in double and in half precision."""

    def __init__(self, one: Case) -> None:
        self.one = one
        self.moving = [i for i, x in enumerate(one.arguments) if x.dtype == np.float64] if one.differentiable else []
        self.point = [one.arguments[i] for i in self.moving]
        shapes = jax.eval_shape(self.function(jnp, jax.tree.leaves), *self.point)
        self.chosen = [i for i, x in enumerate(shapes) if dtypes.is_float(x.dtype)]
        self.cotangents = [np.random.default_rng(i).uniform(-1, 1, shapes[i].shape) for i in self.chosen]
        self.tolerances = dict(TOLERANCES) if self.moving else {}
        if one.name.startswith(NOT_IN_BFLOAT16):
            self.tolerances.pop(dtypes.bfloat16, None)
        # Near enough to the first example to be in the domain, too.
        examples = lambda x, dtype: np.stack([x, 0.97 * x + 0.01]).astype(dtype)
        self.batches = [
            [examples(x, dtype) if i in self.moving else x for i, x in enumerate(one.arguments)]
            for dtype in self.tolerances
        ]

    @property
    def inputs(self) -> tuple:
        return self.point, self.cotangents, self.batches

    def whole(self, xp: Any, leaves: Callable) -> Callable[..., list[Any]]:
        """The results, as a list of leaves, of all arguments."""
        return lambda *full: list(leaves(self.one.function(xp, *map(xp.asarray, full))))

    def function(self, xp: Any, leaves: Callable) -> Callable[..., list[Any]]:
        """The same, of the arguments that are differentiated."""
        whole = self.whole(xp, leaves)

        def function(*values: Any) -> list[Any]:
            full = list(self.one.arguments)
            for i, value in zip(self.moving, values, strict=True):
                full[i] = value
            return whole(*full)

        return function

    def computed(self, module: Any, xp: Any, leaves: Callable) -> Callable[..., tuple]:
        """The values and the derivatives at the point, and the values of each batch."""
        whole, function = self.whole(xp, leaves), self.function(xp, leaves)
        axes = tuple(0 if i in self.moving else None for i in range(len(self.one.arguments)))

        def compute(point: list[Any], cotangents: list[Any], batches: list[Any]) -> tuple:
            if not self.moving:
                return function(), [], []
            _, pull = module.vjp(lambda *v: [function(*v)[i] for i in self.chosen], *point)
            return function(*point), list(pull(cotangents)), [module.vmap(whole, axes)(*full) for full in batches]

        return compute

    def check(self, got: tuple, expected: tuple) -> None:
        (values, derivatives, batches), (expected_values, gradients, references) = got, expected
        for ours, theirs in zip(values, expected_values, strict=True):
            assert ours.shape == theirs.shape
            if theirs.dtype.kind in "iu":
                assert dtypes.is_integer(ours.dtype)
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-9, atol=1e-11)
        for ours, theirs in zip(derivatives, gradients, strict=True):
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-8, atol=1e-10)
        for tolerance, results, wanted in zip(self.tolerances.values(), batches, references, strict=True):
            for ours, theirs in zip(results, wanted, strict=True):
                assert ours.dtype == theirs.dtype or (ours.dtype.kind, theirs.dtype.kind) == ("i", "i")
                wide = [np.asarray(x).astype(np.float64) for x in (ours, theirs)]
                np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


@pytest.mark.quick("maximum-0", "argsort-0", "linalg.inv-0")
@pytest.mark.parametrize("cases", groups())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_derivatives_and_batches_are_those_of_jax(cases: list[Case]):
    with x64():
        compared = [Comparison(one) for one in cases]
        inputs = [each.inputs for each in compared]
        of_all = lambda *names: (
            lambda inputs: [each.computed(*names)(*given) for each, given in zip(compared, inputs, strict=True)]
        )
        expected = jax.tree.map(np.asarray, jax.jit(of_all(jax, jnp, jax.tree.leaves))(inputs))
    got = tvmfun.jit(of_all(tvmfun, tnp, tree.leaves))(inputs)
    for i, (each, *results) in enumerate(zip(compared, got, expected, strict=True)):
        try:
            each.check(*results)
        except AssertionError as error:
            error.add_note(f"case {i}: {each.one.name} of {[x.shape for x in each.one.arguments]}")
            raise
