"""Pointwise, shape, index, reduction, product, convolution and random ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special  # comes with jax

from op_cases.case import Case, apart, bools, ints, reals

PAIRS = ((reals(3, 4), reals(3, 4)), (reals(3, 1), reals(4)), (reals(), reals(2, 3)), (reals(0, 4), reals(4)))
INT_PAIRS = ((ints(3, 4), ints(4)), (ints(2, 1, low=1), ints(3, low=-3, high=0)))
DENSE = {"contract": ((1,), (0,)), "batch": ((), ())}


def binary(reference: Callable, pairs: tuple = PAIRS) -> list[Case]:
    return [Case(reference, pair) for pair in pairs]


def unary(reference: Callable, low: float = -2.0, high: float = 2.0) -> list[Case]:
    return [Case(reference, (reals(*shape, low=low, high=high),)) for shape in ((3, 4), (), (0, 2), (17,))]


def comparison(reference: Callable) -> list[Case]:
    equal = ints(3, 4)
    return [Case(reference, pair, exact=True) for pair in (*PAIRS, *INT_PAIRS, (equal, equal), (bools(3), bools(3)))]


def on_bits(reference: Callable, on_bools: Callable | None = None, count: int = 2) -> list[Case]:
    cases = [Case(reference, tuple(ints(3, 4) for _ in range(count)), exact=True)]
    return [*cases, Case(on_bools or reference, tuple(bools(5) for _ in range(count)), exact=True)]


def floored(reference: Callable) -> list[Case]:
    def safe(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return reference(x, y)

    zeros = (ints(6), np.zeros(6, np.int32))
    overflow = (np.full(2, np.iinfo(np.int32).min, np.int32), np.asarray([-1, 1], np.int32))
    near = (np.asarray([1.0, -1.0, 0.3]), np.asarray([0.1, 0.1, 0.1]))
    return [
        Case(safe, (reals(3, 4), np.asarray([2.5, -3.1, 4.7, 2.2]))),
        Case(safe, near, order=0),
        *(Case(safe, p, exact=True) for p in (*INT_PAIRS, zeros, overflow)),
    ]


def along(reference: Callable, data: Callable = reals) -> list[Case]:
    axes = (((3, 4), (0,)), ((3, 4), (0, 1)), ((2, 3, 2), (0, 2)), ((5,), (0,)), ((2, 3), ()))
    return [Case(lambda x, axis: reference(x, axis=axis), (data(*shape),), {"axis": axis}) for shape, axis in axes]


def whole_number_sum(x: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    return np.sum(x, axis=axis, dtype=x.dtype)


def softened(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def pad_reference(x, value, low, high, interior):
    sizes = [max(0, n + (n - 1) * i) for n, i in zip(x.shape, interior, strict=True)]
    full = np.full([n + max(a, 0) + max(b, 0) for n, a, b in zip(sizes, low, high, strict=True)], value, x.dtype)
    inner = tuple(slice(max(a, 0), max(a, 0) + n, i + 1) for n, a, i in zip(sizes, low, interior, strict=True))
    full[inner] = x
    crop = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, a, b in zip(full.shape, low, high, strict=True))
    return full[crop]


def dot_reference(x, y, contract, batch):
    letters = iter("abcdefghijklmnop")
    left: dict[int, str] = {}
    right: dict[int, str] = {}
    for i, j in zip((*batch[0], *contract[0]), (*batch[1], *contract[1]), strict=True):
        left[i] = right[j] = next(letters)
    free = [[a for a in range(z.ndim) if a not in known] for z, known in ((x, left), (y, right))]
    for known, axes in zip((left, right), free, strict=True):
        known.update({axis: next(letters) for axis in axes})
    out = [left[a] for a in (*batch[0], *free[0])] + [right[a] for a in free[1]]
    spell = lambda known, z: "".join(known[a] for a in range(z.ndim))
    return np.einsum(f"{spell(left, x)},{spell(right, y)}->{''.join(out)}", x, y)


def spread_out(x, padding, dilation):
    full = ((0, 0), *padding, (0, 0))
    low, high = (tuple(p[side] for p in full) for side in (0, 1))
    return pad_reference(x, 0, low, high, (0, *(d - 1 for d in dilation), 0))


def conv_reference(x, w, stride, padding, dilation, kernel_dilation, groups):
    source = spread_out(x, padding, dilation)
    kernel = w.shape[:-2]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, kernel_dilation, strict=True)]
    sizes = [max(0, (n - k) // s + 1) for n, k, s in zip(source.shape[1:-1], spans, stride, strict=True)]
    out = np.zeros((x.shape[0], *sizes, w.shape[-1]))
    channels, features = w.shape[-2], w.shape[-1] // groups
    for group in range(groups):
        into = slice(group * features, (group + 1) * features)
        taken = slice(group * channels, (group + 1) * channels)
        for at in np.ndindex(*sizes):
            window = tuple(
                slice(i * s, i * s + span, d) for i, s, span, d in zip(at, stride, spans, kernel_dilation, strict=True)
            )
            patch = source[(slice(None), *window, taken)].reshape(x.shape[0], -1)
            out[(slice(None), *at, into)] = patch @ w[..., into].reshape(-1, features)
    return out


def kernel_gradient_reference(x, g, kernel, **params):
    """Linear in the kernel: the gradient is read off by convolving with unit kernels."""
    shape = (*kernel, x.shape[-1] // params["groups"], g.shape[-1])
    out = np.zeros(shape)
    for at in np.ndindex(*shape):
        unit = np.zeros(shape)
        unit[at] = 1
        out[at] = np.sum(conv_reference(x, unit, **params) * g)
    return out


def windows(x, window, stride, padding, fill):
    low, high = zip(*padding, strict=True)
    source = pad_reference(x, fill, low, high, (0,) * x.ndim)
    sizes = [max(0, (n - k) // s + 1) for n, k, s in zip(source.shape, window, stride, strict=True)]
    out = np.zeros((*sizes, *window), x.dtype)
    for at in np.ndindex(*sizes):
        out[at] = source[tuple(slice(i * s, i * s + k) for i, s, k in zip(at, stride, window, strict=True))]
    return out.reshape(*sizes, -1)


def window_put_reference(g, offset, size, window, stride, padding):
    out = np.zeros(size)
    for at in np.ndindex(*g.shape):
        inner = np.unravel_index(offset[at], window)
        place = tuple(i * s + o - p[0] for i, s, o, p in zip(at, stride, inner, padding, strict=True))
        out[place] += g[at]
    return out


def window_take_reference(x, offset, window, stride, padding):
    out = np.zeros(offset.shape)
    for at in np.ndindex(*offset.shape):
        inner = np.unravel_index(offset[at], window)
        out[at] = x[tuple(i * s + o - p[0] for i, s, o, p in zip(at, stride, inner, padding, strict=True))]
    return out


def threefry_reference(key, base, shape, word):
    def rotate(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & 0xFFFFFFFF

    def block(key, counter):
        schedule = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
        x = [(c + k) & 0xFFFFFFFF for c, k in zip(counter, key, strict=True)]
        for i in range(5):
            for by in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
                x[0] = (x[0] + x[1]) & 0xFFFFFFFF
                x[1] = rotate(x[1], by) ^ x[0]
            x[0] = (x[0] + schedule[(i + 1) % 3]) & 0xFFFFFFFF
            x[1] = (x[1] + schedule[(i + 2) % 3] + i + 1) & 0xFFFFFFFF
        return {"first": x[0], "second": x[1], "xor": x[0] ^ x[1]}[word]

    out = np.zeros((*key.shape[:-1], *shape), np.uint32)
    for batch in np.ndindex(*key.shape[:-1]):
        start = (int(base[batch][0]) << 32) + int(base[batch][1])
        for i, at in enumerate(np.ndindex(*shape)):
            number = start + i
            out[(*batch, *at)] = block([int(k) for k in key[batch]], [number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF])
    return out


PLAIN_CONV = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "kernel_dilation": (1, 1), "groups": 1}
STRIDED = {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2), "kernel_dilation": (1, 2), "groups": 1}
GROUPED = {"stride": (1,), "padding": ((1, 1),), "dilation": (1,), "kernel_dilation": (1,), "groups": 2}
CROPPED = {"stride": (1, 2), "padding": ((-1, 0), (0, -1)), "dilation": (1, 1), "kernel_dilation": (1, 1), "groups": 1}
CONVS = (
    ((2, 5, 4, 2), (3, 2, 2, 3), PLAIN_CONV),
    ((2, 5, 4, 2), (2, 2, 2, 3), STRIDED),
    ((1, 6, 4), (3, 2, 6), GROUPED),
    ((1, 6, 6, 1), (2, 2, 1, 2), CROPPED),
)
POOLS = (
    ((2, 4, 4, 3), {"window": (1, 2, 2, 1), "stride": (1, 2, 2, 1), "padding": ((0, 0),) * 4}),
    ((7, 3), {"window": (3, 1), "stride": (2, 1), "padding": ((1, 1), (0, 0))}),
    ((6,), {"window": (3,), "stride": (1,), "padding": ((0, 0),)}),
    ((7,), {"window": (2,), "stride": (3,), "padding": ((0, 0),)}),
)


def conv_cases() -> list[Case]:
    return [Case(conv_reference, (reals(*x), reals(*w)), params) for x, w, params in CONVS]


def kernel_gradient_cases() -> list[Case]:
    cases = []
    for x, w, params in CONVS:
        x = reals(*x)
        g = reals(*conv_reference(x, np.zeros(w), **params).shape)
        cases.append(Case(kernel_gradient_reference, (x, g), {"kernel": w[:-2], **params}))
    return cases


def pool_cases(fill: float, combine: Callable) -> list[Case]:
    reference = lambda x, **params: combine(windows(x, fill=fill, **params), axis=-1)
    return [Case(reference, (apart(*shape),), params) for shape, params in POOLS]


def offset_cases(make: Callable) -> list[Case]:
    cases = []
    for shape, params in POOLS:
        x = apart(*shape)
        offset = np.argmax(windows(x, fill=-np.inf, **params), axis=-1).astype(np.int32)
        cases.append(make(x, offset, params))
    return cases


def argmax_case(x: np.ndarray, offset: np.ndarray, params: dict) -> Case:
    out = windows(x, fill=-np.inf, **params).max(axis=-1)
    return Case(lambda x, out, **params: offset, (x, out), params, order=0, exact=True)


KEYS = np.asarray([[1, 2], [0, 0xFFFFFFFF]], np.uint32)
TIES = np.asarray([[3.0, 1.0, 3.0], [np.nan, 5.0, np.nan]])

CASES: dict[str, list[Case]] = {
    "add": binary(np.add, (*PAIRS, *INT_PAIRS)),
    "subtract": binary(np.subtract, (*PAIRS, *INT_PAIRS)),
    "multiply": binary(np.multiply, (*PAIRS, *INT_PAIRS)),
    "divide": [Case(np.divide, (reals(3, 4), apart(4))), Case(np.divide, (reals(2, 1), apart(2, 3)))],
    "floor_divide": floored(np.floor_divide),
    "remainder": floored(np.remainder),
    "power": [Case(np.power, (reals(3, 4, low=0.5), reals(4))), Case(np.power, (reals(3, low=0.2), np.float64(3)))],
    "negative": unary(np.negative),
    "abs": [Case(np.abs, (apart(3, 4),)), Case(np.abs, (ints(5),), exact=True)],
    "sign": [Case(np.sign, (apart(3, 4),)), Case(np.sign, (ints(5),), exact=True), Case(np.sign, (TIES,), order=0)],
    "maximum": [Case(np.maximum, (apart(3, 4), apart(4) + 0.01)), Case(np.maximum, (ints(4), ints(4)), exact=True)],
    "minimum": [Case(np.minimum, (apart(3, 4), apart(4) + 0.01)), Case(np.minimum, (ints(4), ints(4)), exact=True)],
    "relu": [Case(lambda x: np.maximum(x, 0), (apart(3, 4),))],
    "exp": unary(np.exp),
    "expm1": [*unary(np.expm1), Case(np.expm1, (reals(9, low=-1e-6, high=1e-6),))],
    "log": unary(np.log, low=0.3),
    "log1p": [*unary(np.log1p, low=-0.6), Case(np.log1p, (reals(9, low=-1e-6, high=1e-6),))],
    "sqrt": unary(np.sqrt, low=0.3),
    "rsqrt": unary(lambda x: 1 / np.sqrt(x), low=0.3),
    "sin": unary(np.sin),
    "cos": unary(np.cos),
    "tanh": unary(np.tanh),
    "sigmoid": unary(softened),
    "erf": unary(special.erf),
    "erf_inv": unary(special.erfinv, low=-0.9, high=0.9),
    "floor": unary(np.floor),
    "ceil": unary(np.ceil),
    "round": [*unary(np.round), Case(np.round, (np.asarray([0.5, 1.5, 2.5, -0.5]),), order=0)],
    "trunc": unary(np.trunc),
    "equal": comparison(np.equal),
    "not_equal": comparison(np.not_equal),
    "less": comparison(np.less),
    "less_equal": comparison(np.less_equal),
    "greater": comparison(np.greater),
    "greater_equal": comparison(np.greater_equal),
    "bitwise_and": on_bits(np.bitwise_and),
    "bitwise_or": on_bits(np.bitwise_or),
    "bitwise_xor": on_bits(np.bitwise_xor),
    "bitwise_not": on_bits(np.bitwise_not, np.logical_not, count=1),
    "left_shift": [Case(np.left_shift, (ints(6), ints(6, low=0, high=20)), exact=True)],
    "right_shift": [Case(np.right_shift, (ints(6, low=-99, high=99), ints(6, low=0, high=20)), exact=True)],
    "isnan": [Case(np.isnan, (np.asarray([1.0, np.nan, np.inf]),), exact=True)],
    "isfinite": [Case(np.isfinite, (np.asarray([1.0, np.nan, np.inf, -np.inf]),), exact=True)],
    "where": [Case(np.where, (bools(3, 4), reals(3, 4), reals(4))), Case(np.where, (bools(3, 1), reals(), reals(4)))],
    "astype": [
        Case(lambda x, dtype: x.astype(dtype), (ints(4),), {"dtype": "float64"}),
        Case(lambda x, dtype: x.astype(dtype), (reals(4),), {"dtype": "int32"}, exact=True),
        Case(lambda x, dtype: x.astype(dtype), (bools(4),), {"dtype": "float64"}),
        Case(lambda x, dtype: x.astype(dtype), (ints(4),), {"dtype": "bool"}, exact=True),
    ],
    "bitcast": [
        Case(lambda x, dtype: x.view(dtype), (reals(4),), {"dtype": "int64"}, order=0, exact=True),
        Case(lambda x, dtype: x.view(dtype), (ints(4),), {"dtype": "float32"}, order=0),
    ],
    "barrier": [Case(lambda x: x, (reals(2, 3),)), Case(lambda x: x, (bools(3),), exact=True)],
    "name": [Case(lambda x, name: x, (reals(2, 3),), {"name": "hidden"})],
    "stop_gradient": [Case(lambda x: x, (reals(3),), order=0)],
    "reshape": [
        Case(lambda x, shape: x.reshape(shape), (reals(*a),), {"shape": b})
        for a, b in (
            ((3, 4), (2, 6)),
            ((2, 3, 4), (6, 4)),
            ((3, 4), (3, 2, 2)),
            ((), (1, 1)),
            ((0, 3), (0,)),
            ((1, 6), (3, 2)),
        )
    ],
    "broadcast_to": [
        Case(lambda x, shape: np.broadcast_to(x, shape), (reals(*a),), {"shape": b})
        for a, b in (((3, 1), (3, 4)), ((), (2, 3)), ((4,), (2, 3, 4)), ((1,), (0,)))
    ],
    "permute_dims": [
        Case(lambda x, axes: x.transpose(axes), (reals(*a),), {"axes": b})
        for a, b in (((3, 4), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((0, 2), (1, 0)))
    ],
    "slice": [
        Case(
            lambda x, start, stop, step: x[tuple(map(slice, start, stop, step))],
            (reals(5, 7),),
            {"start": start, "stop": stop, "step": step},
        )
        for start, stop, step in (((1, 0), (4, 7), (1, 1)), ((0, 1), (5, 6), (2, 3)), ((2, 2), (2, 5), (1, 2)))
    ],
    "pad": [
        Case(pad_reference, (reals(3, 4), reals()), {"low": low, "high": high, "interior": interior})
        for low, high, interior in (((1, 0), (2, 3), (0, 0)), ((0, 2), (1, -1), (2, 1)), ((-1, 1), (0, 0), (1, 0)))
    ],
    "flip": [Case(lambda x, axes: np.flip(x, axes), (reals(3, 4),), {"axes": axes}) for axes in ((0,), (0, 1), ())],
    "concat": [
        Case(lambda *xs, axis: np.concatenate(xs, axis), (reals(2, 3), reals(0, 3), reals(4, 3)), {"axis": 0}),
        Case(lambda *xs, axis: np.concatenate(xs, axis), (reals(2, 3), reals(2, 1)), {"axis": 1}),
    ],
    "iota": [
        Case(
            lambda shape, axis, dtype: np.broadcast_to(
                np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape
            ).astype(dtype),
            (),
            {"shape": (2, 3), "axis": axis, "dtype": dtype},
        )
        for axis, dtype in ((0, "int32"), (1, "float64"))
    ],
    "dim_size": [Case(lambda size, dtype: np.asarray(size, dtype), (), {"size": 7, "dtype": "int32"}, exact=True)],
    "threefry2x32": [
        Case(threefry_reference, (KEYS, KEYS[::-1].copy()), {"shape": (2, 3), "word": word}, exact=True)
        for word in ("first", "second", "xor")
    ],
    "conv": conv_cases(),
    "conv_kernel_gradient": kernel_gradient_cases(),
    "window_max": pool_cases(-np.inf, np.max),
    "window_sum": pool_cases(0.0, np.sum),
    "window_argmax": offset_cases(argmax_case),
    "window_put": offset_cases(
        lambda x, offset, params: Case(
            window_put_reference, (reals(*offset.shape), offset), {"size": x.shape, **params}
        )
    ),
    "window_take": offset_cases(lambda x, offset, params: Case(window_take_reference, (x, offset), params)),
    "dot_general": [
        Case(dot_reference, (reals(3, 4), reals(4, 5)), DENSE),
        Case(dot_reference, (reals(4), reals(4)), {"contract": ((0,), (0,)), "batch": ((), ())}),
        Case(dot_reference, (reals(2, 3, 4), reals(5, 4, 2)), {"contract": ((2,), (1,)), "batch": ((0,), (2,))}),
        Case(dot_reference, (reals(2, 3, 4), reals(4, 3, 5)), {"contract": ((1, 2), (1, 0)), "batch": ((), ())}),
        Case(dot_reference, (reals(3), reals(2)), {"contract": ((), ()), "batch": ((), ())}),
        Case(dot_reference, (reals(2, 0), reals(0, 3)), DENSE),
        Case(dot_reference, (ints(2, 3), ints(3, 2)), DENSE, exact=True),
    ],
    "sum": [*along(np.sum), Case(whole_number_sum, (ints(3, 4),), {"axis": (1,)}, exact=True)],
    "prod": [*along(np.prod), Case(lambda x, axis: np.prod(x, axis), (np.asarray([2.0, 0.0, 3.0]),), {"axis": (0,)})],
    "max": along(np.max, apart),
    "min": along(np.min, apart),
    "argmax": [
        Case(lambda x, axis: np.argmax(x, axis).astype(np.int32), (data,), {"axis": axis}, exact=True)
        for data, axis in ((apart(3, 4), 0), (apart(3, 4), 1), (TIES, 1), (ints(9), 0))
    ],
    "argmin": [
        Case(lambda x, axis: np.argmin(x, axis).astype(np.int32), (data,), {"axis": axis}, exact=True)
        for data, axis in ((apart(3, 4), 0), (apart(3, 4), 1), (TIES, 1), (ints(9), 0))
    ],
}
