"""Trees of arrays by the names of ``optax.tree_utils``: the functions of :mod:`tvmfun.optim.tree`."""

from tvmfun.names import missing as _missing
from tvmfun.optim import tree as _tree

NamedTupleKey = _tree.NamedTupleKey
tree_add = _tree.add
tree_add_scale = _tree.add_scale
tree_allclose = _tree.allclose
tree_batch_shape = _tree.batch_shape
tree_bias_correction = _tree.bias_correction
tree_cast = _tree.cast
tree_cast_like = _tree.cast_like
tree_clip = _tree.clip
tree_div = _tree.div
tree_dtype = _tree.dtype
tree_full_like = _tree.full_like
tree_get = _tree.get
tree_get_all_with_path = _tree.get_all_with_path
tree_map_params = _tree.map_params
tree_max = _tree.max
tree_min = _tree.min
tree_mul = _tree.mul
tree_norm = _tree.norm
tree_ones_like = _tree.ones_like
tree_random_like = _tree.random_like
tree_scale = _tree.scale
tree_set = _tree.set
tree_size = _tree.size
tree_split_key_like = _tree.split_key_like
tree_sub = _tree.sub
tree_sum = _tree.sum
tree_update_infinity_moment = _tree.update_infinity_moment
tree_update_moment = _tree.update_moment
tree_update_moment_per_elem_norm = _tree.update_moment_per_elem_norm
tree_vdot = _tree.vdot
tree_where = _tree.where
tree_zeros_like = _tree.zeros_like

__getattr__ = _missing(__name__)
