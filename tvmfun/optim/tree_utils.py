"""Trees of arrays by the names of ``optax.tree_utils``: the functions of :mod:`tvmfun.optim.tree`."""

from tvmfun.names import missing as _missing
from tvmfun.optim.tree import NamedTupleKey
from tvmfun.optim.tree import add as tree_add
from tvmfun.optim.tree import add_scale as tree_add_scale
from tvmfun.optim.tree import allclose as tree_allclose
from tvmfun.optim.tree import batch_shape as tree_batch_shape
from tvmfun.optim.tree import bias_correction as tree_bias_correction
from tvmfun.optim.tree import cast as tree_cast
from tvmfun.optim.tree import cast_like as tree_cast_like
from tvmfun.optim.tree import clip as tree_clip
from tvmfun.optim.tree import div as tree_div
from tvmfun.optim.tree import dtype as tree_dtype
from tvmfun.optim.tree import full_like as tree_full_like
from tvmfun.optim.tree import get as tree_get
from tvmfun.optim.tree import get_all_with_path as tree_get_all_with_path
from tvmfun.optim.tree import map_params as tree_map_params
from tvmfun.optim.tree import max as tree_max
from tvmfun.optim.tree import min as tree_min
from tvmfun.optim.tree import mul as tree_mul
from tvmfun.optim.tree import norm as tree_norm
from tvmfun.optim.tree import ones_like as tree_ones_like
from tvmfun.optim.tree import random_like as tree_random_like
from tvmfun.optim.tree import scale as tree_scale
from tvmfun.optim.tree import set as tree_set
from tvmfun.optim.tree import size as tree_size
from tvmfun.optim.tree import split_key_like as tree_split_key_like
from tvmfun.optim.tree import sub as tree_sub
from tvmfun.optim.tree import sum as tree_sum
from tvmfun.optim.tree import update_infinity_moment as tree_update_infinity_moment
from tvmfun.optim.tree import update_moment as tree_update_moment
from tvmfun.optim.tree import update_moment_per_elem_norm as tree_update_moment_per_elem_norm
from tvmfun.optim.tree import vdot as tree_vdot
from tvmfun.optim.tree import where as tree_where
from tvmfun.optim.tree import zeros_like as tree_zeros_like

__all__ = [
    "NamedTupleKey",
    "tree_add",
    "tree_add_scale",
    "tree_allclose",
    "tree_batch_shape",
    "tree_bias_correction",
    "tree_cast",
    "tree_cast_like",
    "tree_clip",
    "tree_div",
    "tree_dtype",
    "tree_full_like",
    "tree_get",
    "tree_get_all_with_path",
    "tree_map_params",
    "tree_max",
    "tree_min",
    "tree_mul",
    "tree_norm",
    "tree_ones_like",
    "tree_random_like",
    "tree_scale",
    "tree_set",
    "tree_size",
    "tree_split_key_like",
    "tree_sub",
    "tree_sum",
    "tree_update_infinity_moment",
    "tree_update_moment",
    "tree_update_moment_per_elem_norm",
    "tree_vdot",
    "tree_where",
    "tree_zeros_like",
]

__getattr__ = _missing(__name__)
