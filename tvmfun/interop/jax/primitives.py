"""The table of JAX's primitives: each as a composition of functions of :mod:`tvmfun.lax`.

A rule takes the operands as arrays and the parameters of the equation by name, and returns an array, or as many as the
equation has results. Primitives that contain jaxprs are in :mod:`tvmfun.interop.jax.jaxprs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, random
from tvmfun.core.array import Array
from tvmfun.lax import linalg
from tvmfun.transforms.vmap import vmap

Rule = Callable[..., Any]

# Parameters that say how, not what: layouts over devices, and promises that make code faster.
_IGNORED = {"accuracy", "sharding", "out_sharding", "weak_type", "out_dtype", "mesh"}

# The functions of tvmfun.lax of the same name.
_SAME_NAME = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e", "bessel_i1e", "cbrt",
    "ceil", "clamp", "clz", "conj", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "igamma", "igamma_grad_a", "igammac", "imag", "is_finite", "le", "lgamma", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "polygamma", "population_count",
    "pow", "real", "rem", "rsqrt", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "zeta",
)  # fmt: skip
_BY_AXES = ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor"]
_CUMULATIVE = ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]


def _least(dtype: Any) -> Any:
    return -tnp.inf if dtypes.is_float(dtype) else tnp.iinfo(dtype).min


def _greatest(dtype: Any) -> Any:
    return tnp.inf if dtypes.is_float(dtype) else tnp.iinfo(dtype).max


_WINDOWS: dict[str, tuple[Callable, Callable]] = {
    "reduce_window_sum": (lambda dtype: 0, lax.add),
    "reduce_window_max": (_least, lax.max),
    "reduce_window_min": (_greatest, lax.min),
}


def _named(name: str) -> Rule:
    function = getattr(lax, name)
    return lambda *operands, **params: function(*operands)


def _reduction(name: str) -> Rule:
    function = getattr(lax, name)
    return lambda x, axes, **params: function(x, axes)


def _cumulative(name: str) -> Rule:
    function = getattr(lax, name)
    return lambda x, axis, reverse: function(x, axis, reverse)


def _window(name: str) -> Rule:
    start, computation = _WINDOWS[name]

    def rule(x: Array, window_dimensions: Any, window_strides: Any, padding: Any, **dilations: Any) -> Array:
        sizes = dilations["base_dilation"], dilations["window_dilation"]
        return lax.reduce_window(x, start(x.dtype), computation, window_dimensions, window_strides, padding, *sizes)

    return rule


def _argument(function: Rule) -> Rule:
    return lambda x, axes, index_dtype: function(x, axes[0], index_dtype)


def _broadcast_in_dim(x: Array, *sizes: Any, shape: Any, broadcast_dimensions: Any, **params: Any) -> Array:
    return lax.broadcast_in_dim(x, shape, broadcast_dimensions)


def _reshape(x: Array, *sizes: Any, new_sizes: Any, dimensions: Any, **params: Any) -> Array:
    return lax.reshape(x, new_sizes, dimensions)


def _convolution(x: Array, w: Array, *, dimension_numbers: Any, precision: Any = None, **params: Any) -> Array:
    layouts = lax.ConvDimensionNumbers(*dimension_numbers)
    return lax.conv_general_dilated(
        x, w, **_without(params, "rhs_shape", "lhs_shape"), dimension_numbers=layouts, precision=_precision(precision)
    )


def _dot_general(
    x: Array, y: Array, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any, **_: Any
) -> Any:
    kind = preferred_element_type and str(preferred_element_type)
    return lax.dot_general(x, y, dimension_numbers, _precision(precision), kind)


def _precision(precision: Any) -> Any:
    """The precision of float32 factors; a pair of JAX's has one for each factor."""
    first = precision[0] if isinstance(precision, tuple) else precision
    return None if first is None or not hasattr(first, "name") else lax.Precision[first.name]


def _without(params: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in names}


def _gather(x: Array, indices: Array, *, dimension_numbers: Any, mode: Any, **params: Any) -> Array:
    numbers = lax.GatherDimensionNumbers(**_fields(dimension_numbers, lax.GatherDimensionNumbers))
    return lax.gather(x, indices, numbers, mode=_mode(mode), **params)


def _scatter(function: Callable) -> Rule:
    def rule(x: Array, indices: Array, updates: Array, *, dimension_numbers: Any, mode: Any, **params: Any) -> Array:
        numbers = lax.ScatterDimensionNumbers(**_fields(dimension_numbers, lax.ScatterDimensionNumbers))
        options = _without(params, "update_jaxpr", "update_consts")
        return function(x, indices, updates, numbers, mode=_mode(mode), **options)

    return rule


def _fields(numbers: Any, kind: Any) -> dict[str, Any]:
    return {field.name: getattr(numbers, field.name) for field in fields(kind)}


def _mode(mode: Any) -> Any:
    return None if mode is None else lax.GatherScatterMode[mode.name]


def _each(function: Callable, axes: int, *operands: Array) -> Array:
    """Applies a function at every index of the leading axes of its operands."""
    for _ in range(axes):
        function = vmap(function)
    return function(*operands)


# The last axis of an array of keys has their words.


def _random_bits(keys: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    return _each(lambda key: random.bits(key, shape, f"uint{bit_width}"), keys.ndim - 1, keys)


def _random_split(keys: Array, shape: tuple[int, ...]) -> Array:
    return _each(lambda key: random.split(key, shape), keys.ndim - 1, keys)


def _fold_in(keys: Array, data: Array) -> Array:
    return _each(random.fold_in, keys.ndim - 1, keys, data)


def _seed(seeds: Array, impl: Any) -> Array:
    return _each(random.PRNGKey, seeds.ndim, seeds)


def _svd(x: Array, *, full_matrices: bool, compute_uv: bool, **params: Any) -> Any:
    if not compute_uv:
        return (linalg.svd(x, compute_uv=False),)
    u, s, vt = linalg.svd(x, full_matrices=full_matrices)
    return s, u, vt


def _sort(*operands: Array, dimension: int, is_stable: bool, num_keys: int) -> Any:
    if len(operands) == 1:
        return lax.sort(operands[0], dimension)
    return lax.sort(operands, dimension, is_stable, num_keys)


def _identity(*operands: Array, **params: Any) -> Any:
    return operands[0] if len(operands) == 1 else operands


#: The rules, by the names of JAX's primitives.
RULES: dict[str, Rule] = {
    **{name: _named(name) for name in _SAME_NAME},
    **{name: _reduction(name) for name in _BY_AXES},
    **{name: _cumulative(name) for name in _CUMULATIVE},
    **{name: _window(name) for name in _WINDOWS},
    "add_any": lax.add,
    "and": lambda x, y: lax.bitwise_and(x, y),
    "or": lambda x, y: lax.bitwise_or(x, y),
    "xor": lambda x, y: lax.bitwise_xor(x, y),
    "not": lambda x: lax.bitwise_not(x),
    "argmax": _argument(lax.argmax),
    "argmin": _argument(lax.argmin),
    "bitcast_convert_type": lambda x, new_dtype: lax.bitcast_convert_type(x, str(new_dtype)),
    "broadcast_in_dim": _broadcast_in_dim,
    "cholesky": lambda x, **params: linalg.cholesky(x, symmetrize_input=False),
    "concatenate": lambda *operands, dimension: lax.concatenate(operands, dimension),
    "conv_general_dilated": _convolution,
    "convert_element_type": lambda x, new_dtype, **params: lax.convert_element_type(x, str(new_dtype)),
    "copy": _identity,
    "copy_p": _identity,
    "dot_general": _dot_general,
    "dynamic_slice": lambda x, *starts, slice_sizes: lax.dynamic_slice(x, starts, slice_sizes),
    "dynamic_update_slice": lambda x, update, *starts: lax.dynamic_update_slice(x, update, starts),
    "eigh": lambda x, lower=True, **params: linalg.eigh(x, lower=lower, symmetrize_input=False),
    "erf_inv": lax.erf_inv,
    "expand_dims": lambda x, dimensions: lax.expand_dims(x, dimensions),
    "gather": _gather,
    "integer_pow": lax.integer_pow,
    "iota": lambda dtype, shape, dimension, **params: lax.broadcasted_iota(str(dtype), shape, dimension),
    "householder_product": linalg.householder_product,
    "lu": lambda x, **params: linalg.lu(x),
    "optimization_barrier": lambda *operands: lax.optimization_barrier(operands),
    "pad": lambda x, value, padding_config: lax.pad(x, value, padding_config),
    "qr": lambda x, pivoting, full_matrices, **_: linalg.qr(x, pivoting=pivoting, full_matrices=full_matrices),
    "random_bits": _random_bits,
    "random_fold_in": _fold_in,
    "random_seed": _seed,
    "random_split": _random_split,
    "random_unwrap": _identity,
    "random_wrap": _identity,
    "reduce_precision": lax.reduce_precision,
    "reshape": _reshape,
    "rev": lambda x, dimensions: lax.rev(x, dimensions),
    "round": lambda x, rounding_method, **params: lax.round(x, lax.RoundingMethod(int(rounding_method))),
    "scatter": _scatter(lax.scatter),
    "scatter-add": _scatter(lax.scatter_add),
    "scatter_add": _scatter(lax.scatter_add),
    "scatter-sub": _scatter(lax.scatter_sub),
    "scatter_sub": _scatter(lax.scatter_sub),
    "scatter_mul": _scatter(lax.scatter_mul),
    "scatter_min": _scatter(lax.scatter_min),
    "scatter_max": _scatter(lax.scatter_max),
    "select_n": lambda which, *cases: lax.select_n(which, *cases),
    "slice": lambda x, start_indices, limit_indices, strides: lax.slice(x, start_indices, limit_indices, strides),
    "sort": _sort,
    "split": lambda x, sizes, axis: lax.split(x, sizes, axis),
    "squeeze": lambda x, dimensions: lax.squeeze(x, dimensions),
    "top_k": lambda x, k, axis=-1, **params: lax.top_k(x, k, axis=axis),
    "transpose": lambda x, permutation: lax.transpose(x, permutation),
    "svd": _svd,
    "triangular_solve": linalg.triangular_solve,
}


def apply(name: str, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    """Applies the rule of a primitive."""
    return RULES[name](*operands, **{key: value for key, value in params.items() if key not in _IGNORED})
