"""Calls of every Relay operator in the table, and what they compute, by PyTorch or NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Case(NamedTuple):
    """A call.

    Args:
        arrays: the arguments; a tuple of arrays is an argument that is a tuple.
        attributes: as they are written in the call.
        oracle: the result, from tensors of PyTorch.
        derivative: whether PyTorch's derivative is that of the operator.
        before: numbers that are written in the call before the arrays.
        after: likewise after them.
    """

    arrays: tuple
    attributes: str
    oracle: Callable[..., Any]
    derivative: bool = True
    before: str = ""
    after: str = ""


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0, dtype: str = "float64") -> np.ndarray:
    """Numbers that are different and far enough from each other for maxima and orders."""
    count = math.prod(shape)
    values = np.linspace(low, high, count + 2)[1:-1] + 0.0123
    return np.random.default_rng(seed).permutation(values).reshape(shape).astype(dtype)


def ints(*shape: int, low: int = -9, high: int = 10, seed: int = 0, dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def by_numpy(function: Callable) -> Callable:
    """An oracle from a function of NumPy arrays."""

    def oracle(*arrays: Any) -> Any:
        results = function(
            *(tuple(x.numpy() for x in a) if isinstance(a, tuple) else a.detach().numpy() for a in arrays)
        )
        if isinstance(results, tuple | list):
            return tuple(torch.as_tensor(np.ascontiguousarray(x)) for x in results)
        return torch.as_tensor(np.ascontiguousarray(results))

    return oracle


CASES: dict[str, list[Case]] = {}


def case(
    name: str, arrays: Any, oracle: Callable, attributes: str = "", derivative: bool = True, **numbers: str
) -> None:
    arrays = arrays if isinstance(arrays, tuple) else (arrays,)
    CASES.setdefault(name, []).append(Case(arrays, attributes, oracle, derivative, **numbers))


# -- elements ----------------------------------------------------------------------------------------------------------

SMALL, POSITIVE = floats(3, 4, low=-0.95, high=0.95), floats(3, 4, low=0.2, high=3.0)
ABOVE = floats(3, 4, low=1.1, high=3.0)
ONE = floats(3, 4)
for _name in [
    "abs",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "floor",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "trunc",
]:
    case(_name, ONE, getattr(torch, _name))
for _name in ["acos", "asin", "atanh"]:
    case(_name, SMALL, getattr(torch, _name))
for _name in ["log", "log10", "log2", "rsqrt", "sqrt"]:
    case(_name, POSITIVE, getattr(torch, _name))
case("acosh", ABOVE, torch.acosh)
case("asinh", ONE, torch.asinh)
case("negative", ONE, torch.neg)
case("nn.relu", ONE, torch.relu)
case(
    "round",
    np.array([-2.5, -1.5, -0.5, 0.49999999999999994, 0.5, 1.5, 2.4, 2.5, 1e17]),
    by_numpy(lambda x: np.sign(x) * np.floor(np.abs(x).astype(np.longdouble) + 0.5).astype(x.dtype)),
    derivative=False,
)
for _name, _of in (("fast_erf", torch.erf), ("fast_exp", torch.exp), ("fast_tanh", torch.tanh)):
    case(_name, ONE, _of)
for _name in ["copy", "annotation.checkpoint", "annotation.stop_fusion"]:
    case(_name, ONE, torch.clone)
case(
    "device_copy",
    ONE,
    torch.clone,
    "src_virtual_device=meta[VirtualDevice][0], dst_virtual_device=meta[VirtualDevice][1]",
)
case("on_device", ONE, torch.clone, "virtual_device=meta[VirtualDevice][0], constrain_result=True")
case("annotation.compiler_begin", ONE, torch.clone, 'compiler="dnnl"')
case("annotation.compiler_end", ONE, torch.clone, 'compiler="dnnl"')
case("ones_like", ONE, torch.ones_like, derivative=False)
case("zeros_like", ONE, torch.zeros_like, derivative=False)
SPECIAL = np.array([1.0, math.inf, -math.inf, math.nan])
for _name in ("isfinite", "isinf", "isnan"):
    case(_name, SPECIAL, getattr(torch, _name), derivative=False)
BOOLS = (np.array([True, True, False, False]), np.array([True, False, True, False]))
case("logical_not", BOOLS[0], torch.logical_not, derivative=False)
for _name in ["logical_and", "logical_or", "logical_xor"]:
    case(_name, BOOLS, getattr(torch, _name), derivative=False)
case("bitwise_not", ints(5), torch.bitwise_not, derivative=False)
for _name in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
    case(_name, (ints(5), ints(5, seed=1)), getattr(torch, _name), derivative=False)
SHIFTS = (ints(6, low=-90, high=90), ints(6, low=0, high=5, seed=1))
case("left_shift", SHIFTS, torch.bitwise_left_shift, derivative=False)
case("right_shift", SHIFTS, torch.bitwise_right_shift, derivative=False)
TWO = (ONE, floats(4, seed=1))
for _name, _of in (
    ("add", torch.add),
    ("subtract", torch.sub),
    ("multiply", torch.mul),
    ("maximum", torch.maximum),
    ("minimum", torch.minimum),
    ("divide", torch.div),
):
    case(_name, TWO, _of)
DIVIDED = (ints(3, 4, low=-20, high=20), np.array([-7, -3, 2, 5], "int32"))
truncated = lambda x, y: torch.div(x, y, rounding_mode="trunc")
case("divide", DIVIDED, truncated, derivative=False)
case("trunc_divide", DIVIDED, truncated, derivative=False)
case("floor_divide", DIVIDED, lambda x, y: torch.div(x, y, rounding_mode="floor"), derivative=False)
case("mod", DIVIDED, torch.fmod, derivative=False)
case("mod", TWO, torch.fmod)
case("trunc_mod", DIVIDED, torch.fmod, derivative=False)
case("floor_mod", DIVIDED, torch.remainder, derivative=False)
case("power", (POSITIVE, floats(4)), torch.pow)
EQUALS = (ints(3, 4, low=0, high=3), ints(4, low=0, high=3, seed=1))
for _name, _of in (
    ("equal", torch.eq),
    ("not_equal", torch.ne),
    ("less", torch.lt),
    ("less_equal", torch.le),
    ("greater", torch.gt),
    ("greater_equal", torch.ge),
):
    case(_name, EQUALS, _of, derivative=False)
case("cast", ONE, lambda x: x.to(torch.float32), 'dtype="float32"')
case("cast", floats(3, 4, low=-9, high=9), lambda x: x.to(torch.int32), 'dtype="int32"', derivative=False)
case("cast_like", (ONE, ints(2)), lambda x, y: x.to(torch.int32), derivative=False)
case("reinterpret", floats(3, dtype="float32"), lambda x: x.view(torch.int32), 'dtype="int32"', derivative=False)
case("clip", ONE, lambda x: torch.clamp(x, -0.5, 1.25), "a_min=-0.5f, a_max=1.25f")
case("clip", ONE, lambda x: torch.clamp(x, min=0.0), "a_min=0f, a_max=inff")
case("clip", ints(9), lambda x: torch.clamp(x, -3, 4), "a_min=-3f, a_max=4f", derivative=False)
case("where", (BOOLS[0], floats(3, 4), floats(4, seed=1)), torch.where)
case("nn.leaky_relu", ONE, lambda x: F.leaky_relu(x, 0.25))
case("nn.leaky_relu", ONE, lambda x: F.leaky_relu(x, 0.1), "alpha=0.1f")
case("nn.prelu", (floats(2, 3, 2, 2), floats(3, seed=1)), F.prelu)
case("nn.prelu", (floats(2, 2, 3), floats(3, seed=1)), lambda x, a: torch.where(x > 0, x, x * a), "axis=2")
for _name in ("nn.softmax", "nn.fast_softmax"):
    case(_name, ONE, lambda x: F.softmax(x, -1))
case("nn.softmax", ONE, lambda x: F.softmax(x, 0), "axis=0")
case("nn.log_softmax", ONE, lambda x: F.log_softmax(x, -1))
case("nn.bias_add", (floats(2, 3, 4), floats(3, seed=1)), lambda x, b: x + b[:, None])
case("nn.bias_add", (ONE, floats(4, seed=1)), torch.add, "axis=-1")

# -- creation ----------------------------------------------------------------------------------------------------------

case("zeros", (), lambda: torch.zeros(2, 3), 'shape=[2, 3], dtype="float32"', derivative=False)
case("ones", (), lambda: torch.ones(2, 3, dtype=torch.int64), 'shape=[2, 3], dtype="int64"', derivative=False)
case("full", np.float64(2.5), lambda x: x.expand(2, 3), 'shape=[2, 3], dtype="float64"')
case("full_like", (ONE, np.float64(2.5)), lambda x, y: y.expand(3, 4) + 0 * x)
case(
    "arange",
    (),
    lambda: torch.arange(1, 9, 3, dtype=torch.int32),
    'start=meta[relay.Constant][0], dtype="int32"',
    derivative=False,
    before="1, 9, 3",
)
case("arange", (), lambda: torch.arange(2, -1, -0.5), 'dtype="float32"', derivative=False, before="2f, -1f, -0.5f")
LABELS = np.array([[0, 2], [1, 5]], "int32")
hot = lambda x, n: (x[..., None] == torch.arange(n)).float()
case("one_hot", LABELS, lambda x: hot(x, 3), 'depth=3, dtype="float32"', derivative=False, after="1f, 0f")
case(
    "one_hot",
    LABELS,
    lambda x: (hot(x, 3) * 5 - 1).movedim(-1, 0),
    'depth=3, axis=0, dtype="float32"',
    derivative=False,
    after="4f, -1f",
)
case("meshgrid", ((floats(2), floats(3)),), lambda xs: torch.meshgrid(*xs, indexing="ij"))
case("meshgrid", ((floats(2), floats(3)),), lambda xs: torch.meshgrid(*xs, indexing="xy"), 'indexing="xy"')
case("shape_of", ONE, lambda x: torch.tensor([3, 4]), 'dtype="int64"', derivative=False)
case("ndarray_size", ONE, lambda x: torch.tensor(12, dtype=torch.int32), 'dtype="int32"', derivative=False)

# -- shapes ------------------------------------------------------------------------------------------------------------

CUBE = floats(2, 3, 4)
for _new, _shape in (
    ("[4, 0, 2]", (4, 3, 2)),
    ("[0, -1]", (2, 12)),
    ("[-2]", (2, 3, 4)),
    ("[0, -2]", (2, 3, 4)),
    ("[-3, 0]", (6, 4)),
    ("[0, -3]", (2, 12)),
    ("[-4, 1, 2, -2]", (1, 2, 3, 4)),
    ("[2, -4, -1, 3, -2]", (2, 1, 3, 4)),
    ("[-1]", (24,)),
    ("24", (24,)),
):
    case("reshape", CUBE, lambda x, shape=_shape: x.reshape(shape), f"newshape={_new}")
case("contrib_reverse_reshape", CUBE, lambda x: x.reshape(6, 4), "newshape=[-1, 0]")
case("contrib_reverse_reshape", CUBE, lambda x: x.reshape(6, 4), "newshape=[-3, 0]")
case("reshape_like", (CUBE, floats(6, 4)), lambda x, y: x.reshape(6, 4) + 0 * y)
case(
    "reshape_like",
    (CUBE, floats(5, 6, 2)),
    lambda x, y: x.reshape(6, 4) + 0 * y.sum(),
    "lhs_begin=0, lhs_end=2, rhs_begin=1, rhs_end=2",
)
case("nn.batch_flatten", CUBE, lambda x: x.flatten(1))
case("expand_dims", ONE, lambda x: x[:, None, None], "axis=1, num_newaxis=2")
case("expand_dims", ONE, lambda x: x[..., None], "axis=-1")
case("squeeze", floats(1, 3, 1, 4), lambda x: x.reshape(3, 4))
case("squeeze", floats(1, 3, 1, 4), lambda x: x.reshape(1, 3, 4), "axis=[-2]")
case("transpose", CUBE, lambda x: x.permute(2, 1, 0))
case("transpose", CUBE, lambda x: x.permute(1, 2, 0), "axes=[1, -1, 0]")
case("layout_transform", floats(1, 2, 3, 4), lambda x: x.permute(0, 2, 3, 1), 'src_layout="NCHW", dst_layout="NHWC"')
case("broadcast_to", floats(3, 1), lambda x: x.expand(2, 3, 4), "shape=[2, 3, 4]")
case("broadcast_to_like", (floats(3, 1), CUBE), lambda x, y: x.expand(2, 3, 4) + 0 * y)
case("collapse_sum_to", CUBE, lambda x: x.sum((0, 2)).reshape(3, 1), "shape=[3, 1]")
case("collapse_sum_like", (CUBE, floats(3, 1)), lambda x, y: x.sum((0, 2)).reshape(3, 1) + 0 * y)
PAIR = ((floats(2, 3), floats(2, 4, seed=1)),)
case("concatenate", PAIR, lambda xs: torch.cat(xs, 1), "axis=-1")
case("concatenate", ((floats(2, 3), floats(1, 3, seed=1)),), torch.cat)
case("stack", ((floats(2, 3), floats(2, 3, seed=1)),), lambda xs: torch.stack(xs, 1), "axis=1")
case("split", floats(2, 6), lambda x: x.split(2, 1), "indices_or_sections=3, axis=1")
case("split", floats(2, 6), lambda x: (x[:, :1], x[:, 1:4], x[:, 4:]), "indices_or_sections=[1, 4], axis=-1")
case("repeat", ONE, lambda x: x.repeat_interleave(2, 1), "repeats=2, axis=1")
case("repeat", ONE, lambda x: x.flatten().repeat_interleave(3), "repeats=3")
case("tile", ONE, lambda x: x.tile(2, 1, 3), "reps=[2, 1, 3]")
case("reverse", ONE, lambda x: x.flip(1), "axis=1")
case(
    "reverse_sequence",
    (ONE, np.array([1, 3, 4], "int32")),
    lambda x, n: torch.stack([torch.cat([row[:m].flip(0), row[m:]]) for row, m in zip(x, n.tolist(), strict=True)]),
)
case("strided_slice", CUBE, lambda x: x[0:2, 1:3, 0:4:2], "begin=[0, 1, 0], end=[2, 3, 4], strides=[1, 1, 2]")
case("strided_slice", CUBE, lambda x: x[:1, 1:], "begin=[0, 1], end=[1, 2147483647], strides=[1], axes=None")
case(
    "strided_slice",
    CUBE,
    lambda x: x[:, :, 1:-1][:, 0:],
    "begin=[1, -3], end=[-1, 9223372036854775807i64], axes=[2, -2]",
)
case("strided_slice", CUBE, lambda x: x.flip(2)[:, :, 0:3], "begin=[-1], end=[0], strides=[-1], axes=[2]")
case("strided_slice", CUBE, lambda x: x[:, 1:3, 1:], 'begin=[0, 1, 1], end=[-1, 2, -1], slice_mode="size"')
case(
    "strided_slice",
    CUBE,
    lambda x: x.flip(2),
    "begin=[9223372036854775807i64], end=[-9223372036854775807i64], strides=[-1], axes=[2]",
)
case("slice_like", (CUBE, floats(1, 2, 9)), lambda x, y: x[:1, :2] + 0 * y.sum(), "axes=[0, 1]")
case("slice_like", (CUBE, floats(1, 2, 3)), lambda x, y: x[:1, :2, :3] + 0 * y.sum())
case("nn.pad", ONE, lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), "pad_width=[[0, 1], [1, 2]]", after="3f64")
case("nn.pad", ONE, lambda x: F.pad(x, (1, -2, 0, 1), value=-1.0), "pad_width=[[0, 1], [1, -2]], pad_value=-1f")
IMAGE = floats(2, 4, 6, 5)
WIDTHS = "pad_width=[[0, 0], [0, 0], [1, 2], [2, 0]]"
case("nn.pad", IMAGE, lambda x: F.pad(x, (2, 0, 1, 2), mode="replicate"), f'{WIDTHS}, pad_mode="edge"')
case("nn.pad", IMAGE, lambda x: F.pad(x, (2, 0, 1, 2), mode="reflect"), f'{WIDTHS}, pad_mode="reflect"')
case("nn.mirror_pad", IMAGE, lambda x: F.pad(x, (2, 0, 1, 2), mode="reflect"), f'{WIDTHS}, mode="REFLECT"')
case(
    "nn.mirror_pad",
    ONE,
    by_numpy(lambda x: np.pad(x, [(1, 2), (2, 0)], mode="symmetric")),
    "pad_width=[[1, 2], [2, 0]]",
    derivative=False,
)
case("nn.depth_to_space", IMAGE, lambda x: F.pixel_shuffle(x, 2), 'block_size=2, mode="CRD"')
case(
    "nn.depth_to_space",
    floats(2, 8, 2, 3),
    lambda x: x.reshape(2, 2, 2, 2, 2, 3).permute(0, 3, 4, 1, 5, 2).reshape(2, 2, 4, 6),
    "block_size=2",
)
case(
    "nn.space_to_depth",
    floats(2, 2, 4, 6),
    lambda x: x.reshape(2, 2, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 8, 2, 3),
    "block_size=2",
)
case(
    "nn.space_to_batch_nd",
    floats(1, 4, 4, 2),
    lambda x: x.reshape(1, 2, 2, 2, 2, 2).permute(2, 4, 0, 1, 3, 5).reshape(4, 2, 2, 2),
    "block_shape=[2, 2], paddings=[[0, 0], [0, 0]]",
)
case(
    "nn.batch_to_space_nd",
    floats(4, 2, 2, 2),
    lambda x: x.reshape(2, 2, 1, 2, 2, 2).permute(2, 3, 0, 4, 1, 5).reshape(1, 4, 4, 2)[:, 1:, :3],
    "block_shape=[2, 2], crops=[[1, 0], [0, 1]]",
)
case("trilu", floats(3, 4), lambda x: torch.triu(x, 1), after="1")
case("trilu", floats(2, 3, 4), lambda x: torch.tril(x, -1), "upper=False", after="-1")

# -- indexing ----------------------------------------------------------------------------------------------------------

PICKS = np.array([[0, 2], [1, 9]], "int32")
case("take", (CUBE, PICKS), lambda x, i: x[:, i.clamp(0, 2).long()], "axis=1")
case("take", (CUBE, PICKS), lambda x, i: x.flatten()[i.long()])
case("take", (CUBE, PICKS), lambda x, i: x[:, :, (i % 4).long()], 'axis=-1, mode="wrap"')
case("take", (CUBE, PICKS % 3), lambda x, i: torch.stack([x[b][i[b].long()] for b in range(2)]), "batch_dims=1, axis=1")
ROWS = np.array([[0, 1, 2, 0], [2, 0, 1, 1]], "int64")
case("gather", (ONE, ROWS), lambda x, i: torch.gather(x, 0, i), "axis=0")
VECTORS = np.array([[0, 1, 1], [2, 0, 1]], "int64")
case("gather_nd", (CUBE, VECTORS), lambda x, i: x[i[0], i[1]])
case("gather_nd", (CUBE, np.array([[2, 0]], "int64")), lambda x, i: x[torch.arange(2), i[0]], "batch_dims=1")
case("adv_index", ((CUBE, VECTORS[0], VECTORS[1]),), lambda xs: xs[0][xs[1], xs[2]])
case("adv_index", ((CUBE, VECTORS[:, :1] % 2, VECTORS[0]),), lambda xs: xs[0][xs[1], xs[2]])
UPDATES = floats(2, 4, seed=3)
UNIQUE = np.array([[0, 1, 2, 0], [2, 0, 1, 1]], "int64")
case("scatter_elements", (ONE, UNIQUE, UPDATES), lambda x, i, u: x.scatter(0, i, u), "axis=0")
for _mode, _torch in (("add", "sum"), ("mul", "prod"), ("min", "amin"), ("max", "amax")):
    case(
        "scatter_elements",
        (ONE, UNIQUE, UPDATES),
        lambda x, i, u, r=_torch: x.scatter_reduce(0, i, u, r),
        f'axis=0, reduction="{_mode}"',
    )
case("scatter", (ONE, UNIQUE, UPDATES), lambda x, i, u: x.scatter(0, i, u), "axis=0")
case("scatter_add", (ONE, UNIQUE, UPDATES), lambda x, i, u: x.scatter_add(0, i, u), "axis=0")
case(
    "scatter_nd",
    (CUBE, VECTORS % 2, floats(3, 4, seed=3)),
    lambda x, i, u: x.index_put((i[0], i[1]), u, accumulate=True),
    'mode="add"',
)
case(
    "sparse_to_dense",
    (np.array([[0, 1], [2, 3]], "int32"), floats(2), np.float64(0.5)),
    lambda i, v, d: d.expand(3, 4).index_put((i[:, 0].long(), i[:, 1].long()), v),
    "output_shape=[3, 4]",
)
case(
    "unravel_index",
    (np.array([3, 11, 7], "int32"), np.array([3, 4], "int32")),
    by_numpy(lambda i, s: np.stack(np.unravel_index(i, s)).astype("int32")),
    derivative=False,
)
LENGTHS = np.array([1, 4, 2], "int32")
inside = lambda x, n, axis: torch.arange(x.shape[axis]).unsqueeze(1 - axis) < n.unsqueeze(axis)
case(
    "sequence_mask",
    (floats(4, 3, 2), LENGTHS),
    lambda x, n: torch.where(inside(x, n, 0)[..., None], x, -1.0),
    "mask_value=-1f",
)
case("sequence_mask", (floats(3, 4), LENGTHS), lambda x, n: torch.where(inside(x, n, 1), x, 0.0), "axis=1")
case("sort", ONE, lambda x: x.sort(-1).values)
case("sort", ONE, lambda x: x.sort(0, descending=True).values, "axis=0, is_ascend=False")
case("argsort", ONE, lambda x: x.argsort(-1).int(), 'dtype="int32"', derivative=False)
case(
    "argsort", ONE, lambda x: x.argsort(0, descending=True), 'axis=0, is_ascend=False, dtype="int64"', derivative=False
)
case("topk", ONE, lambda x: (x.topk(2).values, x.topk(2).indices.int()), "k=2")
case("topk", ONE, lambda x: x.topk(2, 0, largest=False).values, 'k=2, axis=0, is_ascend=True, ret_type="values"')
case("topk", ONE, lambda x: x.topk(1).indices, 'ret_type="indices", dtype="int64"', derivative=False)
case(
    "searchsorted",
    (np.sort(floats(2, 5)), floats(2, 3, seed=1)),
    lambda r, v: torch.searchsorted(r, v, out_int32=True),
    derivative=False,
)
case(
    "searchsorted",
    (np.array([1.0, 2.0, 2.0, 3.0]), np.array([2.0, 0.0, 9.0])),
    lambda r, v: torch.searchsorted(r, v, right=True),
    'right=True, dtype="int64"',
    derivative=False,
)

# -- reductions --------------------------------------------------------------------------------------------------------

case("sum", CUBE, lambda x: x.sum((0, 2)), "axis=[0, 2]")
case("sum", CUBE, lambda x: x.sum((0, 2)), "axis=[1], exclude=True")
case("sum", CUBE, torch.sum)
case("mean", CUBE, lambda x: x.mean((1, 2), keepdim=True), "axis=[1, -1], keepdims=True")
case("prod", CUBE, lambda x: x.prod(1), "axis=[1]")
case("max", CUBE, lambda x: x.amax((0, 1)), "axis=[0, 1]")
case("min", CUBE, lambda x: x.amin(2, keepdim=True), "axis=[2], keepdims=True")
case("logsumexp", CUBE, lambda x: x.logsumexp((1, 2)), "axis=[1, 2]")
case("all", np.array([[True, False], [True, True]]), lambda x: x.all(1), "axis=[1]", derivative=False)
case("any", np.array([[False, False], [True, True]]), lambda x: x.any(1), "axis=[1]", derivative=False)
case("variance", (CUBE, floats(2, 1, 1)), lambda x, m: ((x - m) ** 2).mean((1, 2)), "axis=[1, 2]")
case("variance", (CUBE, floats(2, 1, 1)), lambda x, m: ((x - m) ** 2).sum((1, 2)) / 11, "axis=[1, 2], unbiased=True")
case("argmax", CUBE, lambda x: x.argmax(1).int(), "axis=[1]", derivative=False)
case("argmax", CUBE, lambda x: x.argmax().int(), derivative=False)
case(
    "argmax",
    EQUALS[0],
    lambda x: 3 - x.flip(1).argmax(1, keepdim=True).int(),
    "axis=[1], keepdims=True, select_last_index=True",
    derivative=False,
)
case("argmin", CUBE, lambda x: x.flatten(1).argmin(1).int(), "axis=[1, 2]", derivative=False)
case("cumsum", CUBE, lambda x: x.cumsum(1), "axis=1")
case("cumsum", CUBE, lambda x: x.cumsum(1) - x, "axis=1, exclusive=True")
case("cumprod", CUBE, lambda x: x.flatten().cumprod(0))
