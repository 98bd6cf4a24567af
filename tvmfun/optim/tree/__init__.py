"""Arithmetic on trees of arrays, and the values in the state of an optimizer by name."""

from tvmfun.boundary import publish as _publish
from tvmfun.optim.tree.arithmetic import (
    add,
    add_scale,
    allclose,
    clip,
    div,
    max,
    min,
    mul,
    norm,
    scale,
    size,
    sub,
    sum,
    vdot,
    where,
)
from tvmfun.optim.tree.arrays import (
    batch_shape,
    cast,
    cast_like,
    dtype,
    full_like,
    ones_like,
    random_like,
    split_key_like,
    zeros_like,
)
from tvmfun.optim.tree.moments import (
    bias_correction,
    update_infinity_moment,
    update_moment,
    update_moment_per_elem_norm,
)
from tvmfun.optim.tree.state import NamedTupleKey, get, get_all_with_path, map_params, set

__all__ = [
    "NamedTupleKey",
    "add",
    "add_scale",
    "allclose",
    "batch_shape",
    "bias_correction",
    "cast",
    "cast_like",
    "clip",
    "div",
    "dtype",
    "full_like",
    "get",
    "get_all_with_path",
    "map_params",
    "max",
    "min",
    "mul",
    "norm",
    "ones_like",
    "random_like",
    "scale",
    "set",
    "size",
    "split_key_like",
    "sub",
    "sum",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
    "vdot",
    "where",
    "zeros_like",
]

_publish(globals())
