"""Example calls of the Relax operators that are read, for ``test_relax_ops.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, tirx

op, nn, image, vision, back = relax.op, relax.op.nn, relax.op.image, relax.op.vision, relax.op.grad


class Case(NamedTuple):
    """Calls of one operator on the same inputs.

    Args:
        inputs: the arrays; floats in single precision.
        calls: functions from the Relax variables of the inputs to the call.
        oracle: NumPy's answers, one per call, where TVM's are not to be trusted; see the comment at the case.
        tolerance: how far values may be apart, relatively and absolutely.
        order: 0 where there are no derivatives to check: the function jumps, or the result is not a float.
    """

    inputs: tuple[np.ndarray, ...]
    calls: Sequence[Callable[..., Any]]
    oracle: Callable[..., Sequence[Any]] | None = None
    tolerance: float = 2e-5
    order: int = 1


def floats(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Floats that are apart from each other, in random order: maxima, orders and signs do not change nearby."""
    count = int(np.prod(shape))
    values = low + (high - low) * (np.arange(count) + 0.5) / max(count, 1)
    return np.random.default_rng(seed + count).permutation(values).reshape(shape).astype(np.float32)


def ints(*shape: int, low: int = 0, high: int = 10, seed: int = 0, dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def bools(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)


def dtype_of(x: Any) -> str:
    return str(x.ty.dtype.dtype)


def scalar(value: float, like: Any) -> Any:
    return relax.const(value, dtype_of(like))


X = floats(2, 3, 4)
BOTH = ints(2, 3, low=-7, high=8), ints(2, 3, low=1, high=5, seed=1)

CASES: dict[str, list[Case]] = {}


def unary(name: str, low: float = -2.0, high: float = 2.0, order: int = 1) -> None:
    function = getattr(nn, name[3:]) if name.startswith("nn.") else getattr(op, name)
    CASES[name] = [Case((floats(2, 3, low=low, high=high),), [function], order=order)]


for _name in [
    "abs",
    "asinh",
    "atan",
    "cos",
    "cosh",
    "erf",
    "exp",
    "negative",
    "sigmoid",
    "sin",
    "sinh",
    "square",
    "tanh",
    "nn.relu",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.silu",
    "nn.selu",
]:
    unary(_name)
for _name in ("log", "sqrt", "rsqrt"):
    unary(_name, low=0.2)
for _name in ("acos", "asin", "atanh"):
    unary(_name, -0.9, 0.9)
unary("acosh", 1.2, 3.0)
unary("tan", -1.2, 1.2)
for _name in ("ceil", "floor", "round", "sign", "trunc"):
    unary(_name, order=0)
CASES["round"].append(Case((np.asarray([-1.5, -0.5, 0.5, 1.5, 2.5], "float32"),), [op.round], order=0))
_special = np.asarray([np.nan, np.inf, -np.inf, 0.0, 1.5], "float32")
for _name in ("isfinite", "isinf", "isnan"):
    CASES[_name] = [Case((_special,), [getattr(op, _name)], order=0)]

_pair = floats(2, 3), floats(1, 3, low=0.5, high=3.0)
for _name in ["add", "divide", "maximum", "minimum", "multiply", "subtract", "atan2", "log_add_exp"]:
    CASES[_name] = [Case(_pair, [getattr(op, _name)])]
CASES["divide"].append(Case(BOTH, [op.divide], order=0))
CASES["power"] = [Case((floats(2, 3, low=0.3), floats(3)), [op.power])]
# Far from whole quotients, where these functions jump.
_quotients = np.asarray([[-5.3, 4.1, 7.9], [2.2, -1.4, 0.6]], "float32"), np.asarray([1.9, 1.7, 2.6], "float32")
for _name in ["floor_divide", "floor_mod", "mod"]:
    function = getattr(op, _name)
    CASES[_name] = [Case(_quotients, [function], order=_name != "floor_divide"), Case(BOTH, [function], order=0)]
for _name in ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]:
    CASES[_name] = [Case((ints(2, 3, high=3), ints(3, high=3, seed=1)), [getattr(op, _name)], order=0)]
for _name in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
    CASES[_name] = [Case(BOTH, [getattr(op, _name)], order=0)]
CASES["left_shift"] = [Case(BOTH, [op.left_shift], order=0)]
CASES["right_shift"] = [Case(BOTH, [op.right_shift], order=0)]
CASES["bitwise_not"] = [Case(BOTH[:1], [op.bitwise_not], order=0)]
for _name in ["logical_and", "logical_or", "logical_xor"]:
    CASES[_name] = [Case((bools(2, 3), bools(2, 3, seed=1)), [getattr(op, _name)], order=0)]
CASES["logical_not"] = [Case((bools(2, 3),), [op.logical_not], order=0)]
CASES["clip"] = [Case((X,), [lambda x: op.clip(x, -1, 1)])]
CASES["ewise_fma"] = [
    # TVM only hands this one to external code generators.
    Case((floats(2, 3), floats(2, 3, seed=1), floats(2, 3, seed=2)), [op.ewise_fma], lambda x, y, z: [x * y + z])
]
CASES["where"] = [Case((bools(2, 3), floats(2, 3), floats(1, 3)), [op.where])]
CASES["astype"] = [
    Case((X,), [lambda x: op.astype(x, "float64")]),
    Case((X,), [lambda x: op.astype(x, "int32"), lambda x: op.astype(x, "bool")], order=0),
]

# -- activations with attributes ---------------------------------------------------------------------------------------

CASES["nn.leakyrelu"] = [Case((X,), [nn.leakyrelu, lambda x: nn.leakyrelu(x, 0.2)])]
CASES["nn.prelu"] = [
    Case((X, floats(3, low=0.1, high=0.4)), [nn.prelu]),
    Case((X, floats(4, low=0.1, high=0.4)), [lambda x, a: nn.prelu(x, a, 2)]),
]
CASES["nn.softplus"] = [Case((floats(2, 4, low=-8, high=9),), [nn.softplus, lambda x: nn.softplus(x, 2.0, 5.0)])]
CASES["nn.softmax"] = [Case((X,), [lambda x, a=a: nn.softmax(x, a) for a in (-1, 0, 1)])]
CASES["nn.log_softmax"] = [Case((X,), [lambda x, a=a: nn.log_softmax(x, a) for a in (-1, 0, 1)])]
CASES["nn.dropout"] = [Case((X,), [lambda x: nn.dropout(x, 0.5)])]
CASES["grad.no_grad"] = [Case((X,), [back.no_grad], order=0)]
CASES["grad.start_checkpoint"] = [Case((X,), [lambda x: back.start_checkpoint(op.sin(x))])]
CASES["grad.end_checkpoint"] = [Case((X,), [lambda x: op.sin(back.end_checkpoint(op.sin(x)))])]
_scale, _zero = np.asarray([0.1, 0.2, 0.3, 0.4], "float32"), np.asarray([1, -2, 3, 0], "int8")
CASES["quantize"] = [
    Case(
        (X,),
        [
            lambda x: op.quantize(x, scalar(0.013, x), relax.const(np.int8(2)), -1, "int8"),
            lambda x: op.quantize(x, relax.const(_scale.astype(dtype_of(x))), relax.const(_zero), 2, "int8"),
        ],
        order=0,
    )
]
CASES["dequantize"] = [
    Case(
        (ints(2, 4, low=-100, high=100, dtype="int8"), _scale),
        [
            lambda x, s: op.dequantize(x, s, relax.const(_zero), 1, "float32"),
            lambda x, s: op.dequantize(x, relax.const(np.float32(0.5)), relax.const(np.int8(3)), -1, "float32"),
        ],
        # The result is single precision in any case, so that finite differences say nothing.
        order=0,
    )
]

# -- creation ----------------------------------------------------------------------------------------------------------

CASES["full"] = [
    Case((), [lambda: op.full((2, 3), relax.const(1.5, "float32")), lambda: op.full((2,), relax.const(2, "int32"))]),
    Case((floats(1),), [lambda v: op.full((2, 3), op.reshape(v, ()), dtype_of(v))], lambda v: [np.full((2, 3), v[0])]),
]
CASES["full_like"] = [Case((X,), [lambda x: op.full_like(x, scalar(2.5, x))])]
CASES["ones"] = [Case((), [lambda: op.ones((2, 3), "float32"), lambda: op.ones((), "int64")], order=0)]
CASES["zeros"] = [Case((), [lambda: op.zeros((2, 3), "float32"), lambda: op.zeros((0, 3), "bool")], order=0)]
CASES["ones_like"] = [Case((X,), [op.ones_like, lambda x: op.ones_like(x, "int32")], order=0)]
CASES["zeros_like"] = [Case((X,), [op.zeros_like, lambda x: op.zeros_like(x, "int32")], order=0)]
CASES["eye"] = [Case((), [lambda: op.eye(3), lambda: op.eye(3, 4, 1, "int32"), lambda: op.eye(4, 3, -2)], order=0)]
CASES["eye_like"] = [
    Case((floats(3, 4),), [op.eye_like, lambda x: op.eye_like(x, 1)], order=0),
    # TVM's legalization does not look at the dtype.
    Case((floats(3, 4),), [lambda x: op.eye_like(x, -1, "int32")], lambda x: [np.eye(3, 4, -1, "int32")], order=0),
]
CASES["arange"] = [
    Case((), [lambda: op.arange(5), lambda: op.arange(2, 11, 3), lambda: op.arange(0.5, 2, 0.4, "float32")], order=0)
]
CASES["hamming_window"] = [
    Case((), [lambda p=p: op.hamming_window(7, p, 0.54, 0.46, "float32") for p in (True, False)], order=0)
]
for _name in ("tril", "triu"):
    function = getattr(op, _name)
    CASES[_name] = [Case((X,), [lambda x, k=k, f=function: f(x, k) for k in (0, 1, -2)])]
CASES["shape_to_tensor"] = [Case((X,), [lambda x: op.shape_to_tensor(op.shape_of(x))], lambda x: [x.shape], order=0)]
CASES["size"] = [Case((X,), [op.size], order=0)]

# -- shapes ------------------------------------------------------------------------------------------------------------

CASES["reshape"] = [Case((X,), [lambda x: op.reshape(x, (4, 6)), lambda x: op.reshape(x, (-1, 2))])]
CASES["flatten"] = [Case((X,), [op.flatten])]
CASES["nn.batch_flatten"] = [Case((X,), [nn.batch_flatten])]
CASES["broadcast_to"] = [Case((floats(3, 1),), [lambda x: op.broadcast_to(x, (2, 3, 4))])]
CASES["expand_dims"] = [Case((X,), [lambda x: op.expand_dims(x, 0), lambda x: op.expand_dims(x, [1, -1])])]
CASES["squeeze"] = [Case((floats(1, 3, 1),), [op.squeeze, lambda x: op.squeeze(x, [-1]), lambda x: op.squeeze(x, 0)])]
CASES["permute_dims"] = [Case((X,), [op.permute_dims, lambda x: op.permute_dims(x, [1, 2, 0])])]
CASES["collapse_sum_to"] = [
    Case((X,), [lambda x: op.collapse_sum_to(x, (3, 1)), lambda x: op.collapse_sum_to(x, (2, 1, 4))])
]
CASES["collapse_sum_like"] = [Case((X, floats(3, 1)), [op.collapse_sum_like])]
CASES["concat"] = [
    Case(
        (floats(2, 3), floats(2, 1)),
        [
            lambda x, y: op.concat([x, y], 1),
            lambda x, y: op.concat([x, y], -1),
        ],
    ),
    # TVM's legalization needs an axis.
    Case((floats(2), floats(3)), [lambda x, y: op.concat([x, y], None)], lambda x, y: [np.concatenate([x, y])]),
]
CASES["stack"] = [Case((X, X + 1), [lambda x, y, a=a: op.stack([x, y], a) for a in (0, 2, -1)])]
CASES["split"] = [
    Case((X,), [lambda x: op.split(x, 2, 2), lambda x: op.split(x, [1, 2], 1), lambda x: op.split(x, 2, -1)]),
]
CASES["repeat"] = [Case((X,), [lambda x: op.repeat(x, 2), lambda x: op.repeat(x, 2, 1), lambda x: op.repeat(x, 3, -1)])]
CASES["tile"] = [Case((floats(2, 3),), [lambda x: op.tile(x, 2), lambda x: op.tile(x, (2, 1, 3))])]
CASES["flip"] = [Case((X,), [lambda x: op.flip(x, 0), lambda x: op.flip(x, -1)])]
CASES["meshgrid"] = [
    Case((floats(2), floats(3)), [lambda x, y: op.meshgrid([x, y], "ij"), lambda x, y: op.meshgrid([x, y])]),
    # TVM infers the shapes of "ij" for both, so that for "xy" only equal sizes make sense.
    Case((floats(3), floats(3, seed=1)), [lambda x, y: op.meshgrid([x, y], "xy")]),
]
CASES["nn.pad"] = [
    Case(
        (floats(1, 3, 4),),
        [
            lambda x: nn.pad(x, (0, 0, 1, 2, 0, 1)),
            lambda x: nn.pad(x, (1, 0, 0, 0, 2, 0), "constant", 1.5),
            *(lambda x, m=m: nn.pad(x, (0, 0, 2, 1, 1, 2), m) for m in ("reflect", "replicate", "circular")),
        ],
    )
]


def _pixel_shuffle(x: np.ndarray) -> list[np.ndarray]:
    result = np.empty((1, 2, 4, 6), x.dtype)
    for c, i, j in np.ndindex(result.shape[1:]):
        result[0, c, i, j] = x[0, 4 * c + 2 * (i % 2) + j % 2, i // 2, j // 2]
    return [result]


# TVM's legalization names a function that its wheel does not have.
CASES["nn.pixel_shuffle"] = [Case((floats(1, 8, 2, 3),), [lambda x: nn.pixel_shuffle(x, 2)], _pixel_shuffle)]
CASES["layout_transform"] = [
    Case((floats(4, 6),), [lambda x: op.layout_transform(x, lambda i, j: (j // 2, i, j % 2))]),
    Case(
        (floats(4, 5),),
        [lambda x: op.layout_transform(x, lambda i, j: (i, j // 2, j % 2), pad_value=_pad_value(x))],
    ),
]


def _pad_value(x: Any) -> Any:
    return tirx.FloatImm(dtype_of(x), 7.0)


# -- indices -----------------------------------------------------------------------------------------------------------

_indices = np.asarray([[2, 0], [1, 1]], "int32")
CASES["take"] = [
    Case(
        (X, _indices),
        [
            lambda x, i: op.take(x, i, 1),
            lambda x, i: op.take(x, i, -1, "clip"),
            lambda x, i: op.take(x, i, 0, "wrap"),
        ],
    ),
    Case(
        (X, np.asarray([-5, 7, 1], "int64")),
        [lambda x, i, m=m: op.take(x, i, 1, m) for m in ("clip", "wrap", "nan")],
        order=0,
    ),
]
CASES["strided_slice"] = [
    Case(
        (floats(4, 5, 6),),
        [
            lambda x: op.strided_slice(x, [0, 2], [1, 0], [4, 5]),
            lambda x: op.strided_slice(x, [0, 1], [0, 1], [4, 5], [2, 3]),
            lambda x: op.strided_slice(x, [1], [-3], [-1]),
            lambda x: op.strided_slice(x, [2], [4], [0], [-2]),
            lambda x: op.strided_slice(x, [2], [-1], [-7], [-1]),
            lambda x: op.strided_slice(x, [0], [1], [100]),
        ],
    )
]
CASES["gather_elements"] = [
    Case(
        (X, ints(2, 2, 3, high=3)),
        [lambda x, i: op.gather_elements(x, i, 1), lambda x, i: op.gather_elements(x, i, -1)],
    )
]
CASES["gather_nd"] = [
    Case((X, np.asarray([[0, 2], [1, 1], [0, 0]], "int64")), [op.gather_nd]),
    Case((X, np.asarray([[[2, 1]], [[0, 3]]], "int64")), [lambda x, i: op.gather_nd(x, i, 1)]),
]
CASES["index_tensor"] = [
    Case((X, _indices % 2, np.asarray([2, 0], "int32")), [lambda x, i, j: op.index_tensor(x, [i, j])]),
    Case((X, np.asarray([1, 0, 1], "int32")), [lambda x, i: op.index_tensor(x, [i])]),
]
CASES["index_put"] = [
    Case(
        (floats(3, 4), np.asarray([0, 2], "int32"), np.asarray([-1, 1], "int32"), floats(2, seed=3)),
        [lambda x, i, j, v, a=a: op.index_put(x, [i, j], v, a) for a in (False, True)],
    ),
    Case((floats(5), np.asarray([0, 3, 3], "int32"), floats(3)), [lambda x, i, v: op.index_put(x, i, v, True)]),
]
_column = np.asarray([[2, 0, 1, 1], [0, 2, 2, 0]], "int64")
CASES["scatter_elements"] = [
    Case(
        (floats(3, 4), _column, floats(2, 4, seed=5)),
        [
            lambda x, i, u, r=r: op.scatter_elements(x, i, u, 0, r)
            for r in ("update", "add", "mul", "mean", "min", "max")
        ],
    ),
    Case((floats(2, 4), _column - 1, floats(2, 4, seed=5)), [lambda x, i, u: op.scatter_elements(x, i, u, -1, "add")]),
]
CASES["scatter_nd"] = [
    Case(
        (floats(3, 4), np.asarray([[0, 1], [2, 3], [1, 0]], "int64"), floats(3, seed=5)),
        [lambda x, i, u, r=r: op.scatter_nd(x, i, u, r) for r in ("update", "add", "mul", "min", "max")],
    ),
    Case((floats(3, 4), np.asarray([[2], [0]], "int64"), floats(2, 4, seed=5)), [op.scatter_nd]),
]
CASES["slice_scatter"] = [
    Case((floats(4, 6), floats(4, 2, seed=5)), [lambda x, s: op.slice_scatter(x, s, 1, 5, 2, 1)]),
    Case((floats(4, 3), floats(2, 3, seed=5)), [lambda x, s: op.slice_scatter(x, s, 2, 4, 1, 0)]),
]
CASES["reverse_sequence"] = [
    Case((floats(4, 3, 2), np.asarray([4, 1, 2], "int32")), [lambda x, n: op.reverse_sequence(x, n, 0, 1)])
]
CASES["one_hot"] = [
    Case(
        (_indices,),
        [
            lambda i: op.one_hot(i, tirx.FloatImm("float32", 1.0), tirx.FloatImm("float32", 0.0), 4),
            lambda i: op.one_hot(i, tirx.IntImm("int32", 5), tirx.IntImm("int32", -1), 3, 0),
        ],
        order=0,
    )
]
CASES["bucketize"] = [
    Case(
        (np.asarray([[0.0, 1.0, 2.5], [3.0, -1.0, 9.0]], "float32"), np.asarray([0.0, 1.0, 3.0], "float32")),
        [lambda x, b, r=r, n=n: op.bucketize(x, b, n, r) for r, n in ((False, False), (True, True))],
        order=0,
    )
]

# -- reductions --------------------------------------------------------------------------------------------------------

for _name in ["max", "min", "mean", "prod", "std", "sum", "variance"]:
    function = getattr(op, _name)
    CASES[_name] = [
        Case(
            (X,),
            [
                function,
                *(lambda x, a=a, k=k, f=function: f(x, a, k) for a, k in ((1, False), ([0, -1], False), ([2], True))),
            ],
        )
    ]
for _name in ("argmax", "argmin"):
    function = getattr(op, _name)
    calls = [lambda x, a=a, k=k, f=function: f(x, a, k) for a, k in ((None, False), (1, False), (-1, True))]
    CASES[_name] = [Case((X,), calls, order=0)]
CASES["median"] = [
    Case((X,), [op.median, lambda x: op.median(x, 1), lambda x: op.median(x, [2], True)]),
]
CASES["cumsum"] = [
    Case((X,), [op.cumsum, lambda x: op.cumsum(x, 1), lambda x: op.cumsum(x, -1, exclusive=True)]),
]
CASES["cumprod"] = [Case((X,), [lambda x: op.cumprod(x, 0), lambda x: op.cumprod(x, 2, exclusive=True)])]
CASES["sort"] = [Case((X,), [op.sort, lambda x: op.sort(x, 0, True)])]
CASES["argsort"] = [Case((X,), [op.argsort, lambda x: op.argsort(x, 1, True, "int64")], order=0)]
CASES["topk"] = [
    Case((X,), [lambda x: op.topk(x, 2), lambda x: op.topk(x, 1, 1, "values", False), lambda x: op.topk(x, 2, 1)])
]

# -- products ----------------------------------------------------------------------------------------------------------

CASES["matmul"] = [
    Case((floats(2, 3, 4), floats(4, 5)), [op.matmul]),
    Case((floats(2, 1, 3, 4), floats(3, 4, 2)), [op.matmul]),
    Case((floats(4), floats(2, 4, 3)), [op.matmul]),
    Case((ints(2, 3, dtype="int8"), ints(3, 2, dtype="int8")), [lambda x, y: op.matmul(x, y, "int32")], order=0),
]
CASES["outer"] = [Case((floats(3), floats(4)), [op.outer])]
CASES["einsum"] = [
    Case(
        (floats(2, 3), floats(3, 4)),
        [lambda x, y: op.einsum((x, y), "ij,jk->ik"), lambda x, y: op.einsum((x,), "ij->j")],
    )
]
CASES["nn.conv1d"] = [
    Case((floats(2, 4, 7), floats(6, 4, 3)), [nn.conv1d, lambda x, w: nn.conv1d(x, w, 2, (1, 2), 2)]),
    Case((floats(2, 4, 7), floats(6, 2, 3)), [lambda x, w: nn.conv1d(x, w, groups=2)]),
    Case(
        (floats(2, 7, 4), floats(3, 4, 6)), [lambda x, w: nn.conv1d(x, w, 2, 1, data_layout="NWC", kernel_layout="WIO")]
    ),
]
CASES["nn.conv2d"] = [
    Case(
        (floats(1, 4, 6, 5), floats(4, 4, 3, 2)),
        [nn.conv2d, lambda x, w: nn.conv2d(x, w, (2, 1), (1, 0, 2, 1), (1, 2))],
    ),
    Case((floats(1, 4, 6, 5), floats(4, 2, 3, 3)), [lambda x, w: nn.conv2d(x, w, padding=1, groups=2)]),
    Case(
        (floats(1, 6, 5, 4), floats(3, 3, 4, 2)),
        [lambda x, w: nn.conv2d(x, w, 2, 1, data_layout="NHWC", kernel_layout="HWIO")],
    ),
]
CASES["nn.conv3d"] = [
    Case((floats(1, 2, 4, 5, 4), floats(2, 2, 2, 3, 2)), [nn.conv3d, lambda x, w: nn.conv3d(x, w, (2, 1, 2), 1)]),
    Case((floats(1, 2, 4, 5, 4), floats(2, 1, 2, 2, 2)), [lambda x, w: nn.conv3d(x, w, dilation=(1, 2, 1), groups=2)]),
]
CASES["nn.conv1d_transpose"] = [
    Case(
        (floats(1, 4, 5), floats(4, 3, 3)),
        [
            nn.conv1d_transpose,
            lambda x, w: nn.conv1d_transpose(x, w, 3, (1, 0), 2),
            lambda x, w: nn.conv1d_transpose(x, w, 2, 1, dilation=2),
        ],
    ),
    Case((floats(1, 4, 5), floats(4, 3, 3)), [lambda x, w: nn.conv1d_transpose(x, w, 2, groups=2)]),
]
CASES["nn.conv2d_transpose"] = [
    Case(
        (floats(1, 4, 3, 4), floats(4, 2, 3, 2)),
        [nn.conv2d_transpose, lambda x, w: nn.conv2d_transpose(x, w, (2, 3), (1, 0, 0, 1), (1, 2))],
    ),
    Case(
        (floats(1, 4, 3, 4), floats(4, 2, 3, 2)), [lambda x, w: nn.conv2d_transpose(x, w, 2, groups=2, dilation=(1, 2))]
    ),
]
CASES["nn.conv3d_transpose"] = [
    Case(
        (floats(1, 2, 3, 2, 3), floats(2, 2, 2, 3, 2)),
        [nn.conv3d_transpose, lambda x, w: nn.conv3d_transpose(x, w, 2, 1, 1)],
    ),
]

# -- windows -----------------------------------------------------------------------------------------------------------

CASES["nn.max_pool1d"] = [
    Case(
        (floats(1, 2, 8),),
        [
            lambda x: nn.max_pool1d(x, 2, 2),
            lambda x: nn.max_pool1d(x, 3, 2, (1, 1), ceil_mode=True),
            lambda x: nn.max_pool1d(x, 2, 1, 0, 2),
        ],
    ),
    Case((floats(1, 8, 2),), [lambda x: nn.max_pool1d(x, 3, 2, layout="NWC")]),
]
CASES["nn.max_pool2d"] = [
    Case(
        (floats(1, 2, 7, 6),),
        [
            lambda x: nn.max_pool2d(x, (2, 3), (2, 1)),
            lambda x: nn.max_pool2d(x, 3, 2, (1, 1, 1, 1), ceil_mode=True),
            lambda x: nn.max_pool2d(x, 2, 3, 0, 1, True),
            lambda x: nn.max_pool2d(x, 2, 1, 0, (2, 1)),
        ],
    ),
    Case((floats(1, 7, 6, 2),), [lambda x: nn.max_pool2d(x, 3, 2, layout="NHWC")]),
]
CASES["nn.max_pool3d"] = [
    Case(
        (floats(1, 1, 5, 4, 6),),
        [lambda x: nn.max_pool3d(x, 2, 2), lambda x: nn.max_pool3d(x, 3, 2, 1, ceil_mode=True)],
    )
]
CASES["nn.avg_pool1d"] = [
    Case(
        (floats(1, 2, 8),),
        [
            lambda x: nn.avg_pool1d(x, 2, 2),
            *(lambda x, c=c: nn.avg_pool1d(x, 3, 2, (1, 1), 1, True, c) for c in (False, True)),
            lambda x: nn.avg_pool1d(x, 2, 1, 1, 2, False, False),
        ],
    ),
    Case((floats(1, 8, 2),), [lambda x: nn.avg_pool1d(x, 3, 2, layout="NWC")]),
]
CASES["nn.avg_pool2d"] = [
    Case(
        (floats(1, 2, 7, 6),),
        [
            lambda x: nn.avg_pool2d(x, (2, 3), (2, 1)),
            *(lambda x, c=c: nn.avg_pool2d(x, 3, 2, (1, 0, 1, 1), 1, True, c) for c in (False, True)),
            *(lambda x, c=c: nn.avg_pool2d(x, 2, 3, 1, 1, False, c) for c in (False, True)),
        ],
    ),
    Case((floats(1, 7, 6, 2),), [lambda x: nn.avg_pool2d(x, 3, 2, 1, layout="NHWC")]),
]
CASES["nn.avg_pool3d"] = [
    Case(
        (floats(1, 1, 5, 4, 6),),
        [lambda x: nn.avg_pool3d(x, 2, 2), lambda x: nn.avg_pool3d(x, 3, 2, 1, 1, True, False)],
    )
]
CASES["nn.adaptive_avg_pool1d"] = [
    Case((floats(1, 2, 7),), [lambda x, n=n: nn.adaptive_avg_pool1d(x, n) for n in (1, 3, 7)]),
    # TVM's legalization fails without a size, which stands for the array's own.
    Case((floats(1, 2, 7),), [nn.adaptive_avg_pool1d], lambda x: [x]),
]
CASES["nn.adaptive_avg_pool2d"] = [
    Case((floats(1, 2, 7, 6),), [lambda x, n=n: nn.adaptive_avg_pool2d(x, n) for n in (1, (3, 4))]),
    Case((floats(1, 7, 6, 2),), [lambda x: nn.adaptive_avg_pool2d(x, (2, 5), "NHWC")]),
]
CASES["nn.adaptive_avg_pool3d"] = [Case((floats(1, 1, 4, 5, 6),), [lambda x: nn.adaptive_avg_pool3d(x, (2, 3, 4))])]

# -- layers and losses -------------------------------------------------------------------------------------------------

_gamma, _beta = floats(4, low=0.5, high=1.5), floats(4)


def _layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> list[np.ndarray]:
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return [normal * gamma, normal + beta]


CASES["nn.layer_norm"] = [
    Case((X, _gamma, _beta), [lambda x, g, b: nn.layer_norm(x, g, b, -1)]),
    Case((X, floats(3, 4), floats(3, 4)), [lambda x, g, b: nn.layer_norm(x, g, b, [1, 2], 1e-3)]),
    Case((X, floats(3), floats(3)), [lambda x, g, b: nn.layer_norm(x, g, b, 1)]),
    # TVM's legalization does not look at `center` and `scale`.
    Case(
        (X, _gamma, _beta),
        [
            lambda x, g, b: nn.layer_norm(x, g, b, -1, center=False),
            lambda x, g, b: nn.layer_norm(x, g, b, -1, scale=False),
        ],
        _layer_norm,
    ),
]
CASES["nn.rms_norm"] = [
    Case((X, _gamma), [nn.rms_norm]),
    Case((X, floats(3, 4)), [lambda x, w: nn.rms_norm(x, w, [-2, -1], 1e-3)]),
]
CASES["nn.group_norm"] = [
    Case((floats(2, 4, 3), _gamma, _beta), [lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2])]),
    Case((floats(1, 4, 3, 2), _gamma, _beta), [lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2, 3])]),
]
CASES["nn.instance_norm"] = [
    Case((floats(2, 4, 3, 2), _gamma, _beta), [lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3])])
]
CASES["nn.batch_norm"] = [
    Case(
        (floats(2, 4, 3), _gamma, _beta, floats(4), floats(4, low=0.5, high=2)),
        [
            lambda *a: nn.batch_norm(*a, axis=1),
            lambda *a: nn.batch_norm(*a, axis=1, training=False, center=False),
            lambda *a: nn.batch_norm(*a, axis=1, epsilon=1e-2, momentum=0.3, scale=False),
        ],
    )
]
_query, _key, _value = floats(1, 3, 2, 4), floats(1, 5, 2, 4, seed=1), floats(1, 5, 2, 3, seed=2)
CASES["nn.attention"] = [
    Case(
        (_query, _key, _value),
        [
            nn.attention,
            lambda q, k, v: nn.attention(q, k, v, scale=tirx.FloatImm("float32", 0.3)),
            *(lambda q, k, v, m=m: nn.attention(q, k, v, causal_mask=m) for m in ("TopLeft", "BottomRight")),
        ],
    )
]
CASES["nn.attention_bias"] = [
    Case(
        (_query, _key, _value, floats(1, 2, 3, 5)),
        [nn.attention_bias, lambda *a: nn.attention(*a, causal_mask="TopLeft")],
    )
]
_probs, _labels = floats(3, 4, low=-3, high=0), np.asarray([1, 0, 3], "int64")
CASES["nn.cross_entropy_with_logits"] = [
    Case((_probs, floats(3, 4, low=0, high=1)), [nn.cross_entropy_with_logits]),
    Case((floats(4), floats(4)), [nn.cross_entropy_with_logits]),
]
CASES["nn.nll_loss"] = [
    Case((_probs, _labels), [lambda p, t, r=r: nn.nll_loss(p, t, reduction=r) for r in ("mean", "sum", "none")]),
    Case(
        (_probs, _labels, floats(4, low=0.5, high=1)),
        [lambda p, t, w, r=r: nn.nll_loss(p, t, w, r, 3) for r in ("mean", "sum", "none")],
    ),
    Case((floats(2, 3, 2), ints(2, 2, high=3), floats(3, low=0.5, high=1)), [nn.nll_loss]),
    Case((floats(3), np.asarray(2, "int64")), [nn.nll_loss]),
]
CASES["grad.nll_loss_backward"] = [
    Case(
        (floats(3), _probs, _labels, floats(4, low=0.5, high=1)),
        [lambda g, p, t, w: back.nll_loss_backward(g, p, t, w, "none")],
    ),
    Case(
        (np.asarray(1.5, "float32"), _probs, _labels),
        [lambda g, p, t, r=r: back.nll_loss_backward(g, p, t, None, r) for r in ("mean", "sum")],
    ),
]
CASES["grad.max_pool2d_backward"] = [
    Case((floats(1, 2, 3, 2), floats(1, 2, 6, 5)), [lambda g, x: back.max_pool2d_backward(g, x, (2, 2), (2, 2))]),
    Case(
        (floats(1, 2, 4, 3), floats(1, 2, 7, 5)),
        [lambda g, x: back.max_pool2d_backward(g, x, (3, 3), (2, 2), (1, 1, 1, 1))],
    ),
]
CASES["grad.avg_pool2d_backward"] = [
    Case((floats(1, 2, 3, 2), floats(1, 2, 6, 5)), [lambda g, x: back.avg_pool2d_backward(g, x, (2, 2), (2, 2))]),
    Case(
        (floats(1, 2, 4, 3), floats(1, 2, 7, 5)),
        [
            lambda g, x, c=c: back.avg_pool2d_backward(g, x, (3, 3), (2, 2), (1, 1, 1, 1), count_include_pad=c)
            for c in (False, True)
        ],
    ),
]
CASES["grad.take_backward"] = [
    Case((floats(2, 5, 4), X, np.asarray([2, 0, 0, 1, 2], "int32")), [lambda g, x, i: back.take_backward(g, x, i, 1)]),
    Case((floats(3), floats(4), np.asarray([2, 0, 2], "int32")), [back.take_backward]),
]

# -- images ------------------------------------------------------------------------------------------------------------

_image = floats(1, 2, 4, 5)
_modes = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn")
_crop = {
    "roi": (0.1, 0.2, 0.8, 1.2),
    "coordinate_transformation_mode": "tf_crop_and_resize",
    "extrapolation_value": 0.5,
}
_near = lambda m, r, size=(7, 3): (
    lambda x: image.resize2d(x, size, method="nearest_neighbor", coordinate_transformation_mode=m, rounding_method=r)
)
_cubic = lambda **options: lambda x: image.resize2d(x, (6, 7), method="cubic", **options)
CASES["image.resize2d"] = [
    Case(
        (_image,),
        [
            lambda x: image.resize2d(x, (7, 3)),
            _cubic(),
            _near("half_pixel", "round_prefer_floor"),
            lambda x: image.resize2d(x, (5, 6), method="linear", **_crop),
        ],
    ),
    Case((floats(1, 4, 5, 2),), [lambda x: image.resize2d(x, (6, 3), layout="NHWC")]),
    Case(
        (_image,),
        [
            *(lambda x, m=m: image.resize2d(x, (7, 3), coordinate_transformation_mode=m) for m in _modes[1:]),
            *(_cubic(coordinate_transformation_mode=m) for m in _modes[1:3]),
            _cubic(cubic_alpha=-0.5, cubic_exclude=1),
            _near("half_pixel", "round_prefer_ceil"),
            _near("align_corners", "round"),
            _near("align_corners", ""),
            _near("asymmetric", "floor"),
            _near("asymmetric", "ceil"),
            _near("asymmetric", "", (8, 10)),
            lambda x: image.resize2d(x, (5, 6), method="nearest_neighbor", **_crop),
        ],
    ),
]
CASES["image.resize3d"] = [
    Case((floats(1, 1, 3, 4, 5),), [lambda x: image.resize3d(x, (4, 3, 7))]),
    Case(
        (floats(1, 1, 3, 4, 5),),
        [
            lambda x: image.resize3d(x, (5, 4, 3), coordinate_transformation_mode="align_corners"),
            lambda x: image.resize3d(x, (4, 3, 7), method="nearest_neighbor", rounding_method="floor"),
            lambda x: image.resize3d(x, (4, 3, 7), method="cubic"),
            # TVM does not extrapolate along the first axis: this region leaves the array along the last.
            lambda x: image.resize3d(x, (4, 3, 3), **{**_crop, "roi": (0.1, 0.1, 0.2, 1.2, 0.8, 0.9)}),
        ],
    ),
    Case((floats(1, 3, 4, 5, 2),), [lambda x: image.resize3d(x, (2, 3, 7), layout="NDHWC")]),
]
CASES["image.affine_grid"] = [
    Case((floats(2, 2, 3),), [lambda x, c=c: image.affine_grid(x, (3, 4), c) for c in (False, True)]),
    Case((floats(1, 3, 4),), [lambda x: image.affine_grid(x, (2, 3, 4))]),
]
_paddings = ("zeros", "border", "reflection")
_grid = floats(2, 2, 3, 3, low=-1.7, high=1.6, seed=9)
_samples = [
    lambda x, g, m=m, p=p, c=c: image.grid_sample(x, g, m, "NCHW", p, c)
    for i, m in enumerate(("bilinear", "nearest", "bicubic"))
    for j, p in enumerate(_paddings)
    for c in (True, False)
    # Where the corners are matters to reflections; elsewhere it moves the grid alone. TVM takes two seconds to compile
    # bicubic samples of reflections.
    if (p == "reflection" and m != "bicubic") or c == (i + j) % 2
]
CASES["image.grid_sample"] = [
    Case((floats(2, 2, 4, 5), _grid), _samples, tolerance=1e-4),
    Case(
        (floats(1, 2, 3, 4, 5), floats(1, 3, 2, 3, 2, low=-1.4, high=1.3, seed=9)),
        [
            lambda x, g, m=m, p=p: image.grid_sample(x, g, m, "NCDHW", p, False)
            for m, p in (("bilinear", "zeros"), ("bilinear", "border"), ("nearest", "reflection"))
        ],
        tolerance=1e-4,
    ),
]
_rois = np.asarray([[1.3, 0.45, 6.6, 5.2], [0.1, 2.3, 4.9, 9.8]], "float32")


def _regions(rois: Any) -> Any:
    """The regions with the image that each is in, which must not move when they do."""
    return op.concat([relax.const(np.asarray([[0], [1]]), dtype_of(rois)), rois], 1)


CASES["vision.roi_align"] = [
    Case((floats(2, 2, 6, 7), _rois), [lambda x, r: vision.roi_align(x, _regions(r), (2, 3), 0.8, 2)]),
    Case(
        (floats(2, 2, 6, 7), _rois),
        [
            lambda x, r: vision.roi_align(x, _regions(r), 2, 0.5, 3, True),
            lambda x, r: vision.roi_align(x, _regions(r), 2, 1.0, 2, mode="max"),
        ],
    ),
    Case((floats(2, 6, 7, 2), _rois), [lambda x, r: vision.roi_align(x, _regions(r), 2, 1.0, 1, layout="NHWC")]),
]
CASES["vision.roi_pool"] = [
    Case((floats(2, 2, 6, 7), _rois), [lambda x, r: vision.roi_pool(x, _regions(r), (2, 3), 0.8)]),
    Case((floats(2, 2, 6, 7), _rois), [lambda x, r: vision.roi_pool(x, _regions(r), 3, 1.7)]),
]
_detections = floats(2, 3, 4), floats(2, 16), np.abs(floats(1, 4, 4))
CASES["vision.multibox_transform_loc"] = [
    Case(_detections, [vision.multibox_transform_loc]),
    Case(
        _detections,
        [
            lambda s, o, a: vision.multibox_transform_loc(s, o, a, True, 0.3, (0.1, 0.1, 0.2, 0.2), False),
            lambda s, o, a: vision.multibox_transform_loc(s, o, a, apply_softmax=False),
        ],
    ),
]
_boxes = np.stack([ints(2, 6, low=-1, high=3, seed=4) + np.float32(0.5), floats(2, 6, low=0, high=1, seed=5)], -1)
_boxes = np.concatenate([_boxes, floats(2, 6, 4, seed=6)], -1)
CASES["vision.get_valid_counts"] = [
    Case(
        (_boxes,),
        [lambda x: vision.get_valid_counts(x, 0.4), lambda x: vision.get_valid_counts(x, 0.2, -1, 1)],
    )
]
_counts, _numbers = np.asarray([6, 5], "int32"), np.stack([np.arange(6), np.arange(6)[::-1]]).astype("int32")
# Boxes of two classes, in a small square so that many overlap.
_crowd = np.concatenate(
    [ints(2, 6, 1, high=2, seed=8).astype("float32"), floats(2, 6, 1, low=0.1, high=1.0), floats(2, 6, 4, seed=2)], -1
)
_nms = lambda **options: lambda x, n, i: vision.non_max_suppression(x, n, i, **options)
_crowded = (_crowd, _counts, _numbers)
CASES["vision.non_max_suppression"] = [
    Case(_crowded, [_nms(iou_threshold=0.2)]),
    Case(_crowded, [_nms(iou_threshold=0.3, id_index=-1, top_k=4, return_indices=False)]),
    Case(
        _crowded,
        [
            _nms(iou_threshold=0.1, force_suppress=True, max_output_size=2),
            _nms(iou_threshold=0.1, return_indices=False, invalid_to_bottom=True, force_suppress=True),
            _nms(iou_threshold=0.6, soft_nms_sigma=0.4, score_threshold=0.15, force_suppress=True),
            _nms(iou_threshold=0.9, soft_nms_sigma=0.4, score_threshold=0.15, return_indices=False, id_index=-1),
        ],
    ),
]
