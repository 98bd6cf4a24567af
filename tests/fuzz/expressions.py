"""Rules for expressions of one step: elementwise, reductions, shapes, indexing, sorting, products, windows."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import tvmfun.numpy as tnp
from fuzz.draw import Draw, is_float, is_integer, rule
from fuzz.namespaces import ACTIVATIONS, SEGMENTS

#: Functions that are not of the values of arrays alone, or of which nothing can be compared.
_NOT_DRAWN = {
    "__array_namespace_info__", "append", "apply_along_axis", "apply_over_axes", "arange", "array",
    "array_equiv", "array_repr", "array_str", "asarray", "astype", "bartlett", "blackman", "block", "can_cast",
    "choose", "compress", "copy", "corrcoef", "delete", "dtype", "einsum_path", "empty", "empty_like",
    "extract", "finfo", "from_dlpack", "frombuffer", "fromfile", "fromfunction", "fromiter", "fromstring",
    "geomspace", "get_printoptions", "hamming", "hanning", "histogram2d", "histogramdd", "iinfo", "index_exp",
    "insert", "isdtype", "isscalar", "issubdtype", "iterable", "ix_", "kaiser", "linspace", "load", "logspace",
    "mask_indices", "ndim", "piecewise", "place", "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint",
    "polymul", "polysub", "polyval", "printoptions", "promote_types", "put", "put_along_axis",
    "ravel_multi_index", "result_type", "save", "savez", "select", "set_printoptions", "shape", "size",
    "trim_zeros", "unique_all", "unpackbits", "unravel_index", "vectorize", "where",
}  # fmt: skip
_LAX_UNARY = ("rsqrt", "logistic", "erf", "erfc", "erf_inv", "lgamma", "digamma")
_REDUCTIONS = (
    "sum", "max", "min", "mean", "prod", "any", "all", "var", "std", "nansum", "nanmax", "nanmean", "ptp", "median",
    "count_nonzero", "nanmin", "nanvar", "nanprod", "nanstd",
)  # fmt: skip
_LITERALS = ("0.5", "2.0", "-1.5", "3.0", "0.0", "1.0", "1e-3")


@cache
def functions(count: int, dtype: str) -> tuple[str, ...]:
    """The public functions of ``count`` arrays of a dtype that both libraries have, found with `jax.eval_shape`."""
    spec = jax.ShapeDtypeStruct((2, 3), dtype)
    found = []
    for name in sorted(set(tnp.__all__) - _NOT_DRAWN):
        function = getattr(jnp, name, None)
        if callable(function) and not isinstance(function, type):
            try:
                value = jax.eval_shape(function, *[spec] * count)
            except Exception:
                continue
            if hasattr(value, "shape"):
                found.append(name)
    return tuple(found)


@rule(6)
def public_function(draw: Draw) -> str:
    x = draw.pick()
    count = draw.choice([1, 1, 2])
    name = draw.choice(functions(count, str(draw.values[x].dtype)))
    if count == 1:
        return f"np.{name}({x})"
    y = draw.like(x)
    return f"np.{name}({x}, {y})" if draw.chance(0.5) else f"np.{name}({y}, {x})"


@rule(4)
def special_function(draw: Draw) -> str:
    x = draw.floats()
    return f"lax.{draw.choice(_LAX_UNARY)}({x})"


@rule(5)
def binary(draw: Draw) -> str:
    x = draw.pick()
    y = draw.like(x)
    names = ["add", "subtract", "multiply", "maximum", "minimum", "equal", "less", "greater_equal", "not_equal"]
    value = draw.values[x]
    if is_float(value):
        names += ["divide", "power", "arctan2", "hypot", "logaddexp", "fmod", "remainder", "floor_divide", "copysign",
                  "fmax", "fmin", "heaviside", "float_power", "nextafter"]  # fmt: skip
    elif is_integer(value):
        names += [
            "floor_divide",
            "remainder",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "left_shift",
            "right_shift",
            "fmod",
        ]
    else:
        names = ["logical_and", "logical_or", "logical_xor", "bitwise_xor", "equal", "maximum"]
    left, right = (x, y) if draw.chance(0.5) else (y, x)
    return f"np.{draw.choice(names)}({left}, {right})"


@rule(4)
def with_number(draw: Draw) -> str:
    x = draw.numbers()
    floating = is_float(draw.values[x])
    operator = draw.choice(["+", "*", "-", "/", "**", "//", "%", ">", "=="])
    if operator == "**":
        exponents = ["2", "3", "0", "-1", "0.5", "1.5", "-2", "-3"] if floating else ["2", "3", "0"]
        return f"({x} {operator} {draw.choice(exponents)})"
    number = draw.choice(_LITERALS) if floating else draw.choice(["2", "3", "1", "0"])
    if operator in ("//", "%") and float(number) == 0:
        number = "2"
    if operator == "/" and not floating:
        operator = "*"
    return f"({x} {operator} {number})" if draw.chance(0.7) else f"({number} {operator} {x})"


@rule(5)
def reduction(draw: Draw) -> str:
    x = draw.pick()
    value = draw.values[x]
    name = draw.choice(_REDUCTIONS)
    if not is_float(value) and name not in ("sum", "min", "any", "all", "count_nonzero"):
        name = "max" if value.dtype != bool else "any"
    axes = draw.axes(x) if name != "median" or not value.shape else str(draw.axis(x))
    keep = draw.choice([", keepdims=True", "", ""])
    read = x
    if len(value.shape) >= 2 and draw.chance(0.4):
        read = draw.choice([f"{x}.T", f"{x}[::-1]", f"{x}[::2]", f"{x}[::-2]"])
    elif name in ("sum", "max", "min", "mean") and is_float(value) and draw.chance(0.15):
        keep += f", where={x} > 0" + (", initial=-1" if name in ("max", "min") else "")
    return f"np.{name}({read}, axis={axes}{keep})"


@rule(3)
def cumulative(draw: Draw) -> str:
    x = draw.numbers(1)
    if not is_float(draw.values[x]):
        name = draw.choice(["cumsum", "cummax", "cummin"])
    else:
        name = draw.choice(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
        if draw.chance(0.4):
            return f"np.{draw.choice(['cumsum', 'cumprod', 'nancumsum', 'nancumprod'])}({x}, axis={draw.axis(x)})"
    return f"lax.{name}({x}, axis={draw.axis(x) % len(draw.shape(x))}, reverse={draw.chance(0.5)})"


@rule(5)
def rearrangement(draw: Draw) -> str:
    x = draw.pick()
    shape = draw.shape(x)
    rank = len(shape)
    order = draw.random.sample(range(rank), rank)
    near, far = (lambda: draw.random.randrange(-rank - 1, rank + 1)), (lambda: draw.random.randrange(-3, 4))
    options = [
        f"np.transpose({x}, {tuple(order)})",
        f"{x}.ravel()",
        f"np.expand_dims({x}, {near()})",
        f"np.stack([{x}, {x}], axis={near()})",
        f"np.tile({x}, {tuple(draw.random.randrange(1, 3) for _ in range(draw.random.randrange(1, 4)))})",
        f"np.broadcast_to({x}, {(draw.choice([1, 2, 3]), *shape)})",
        f"np.squeeze({x})",
    ]
    if rank:
        options += [
            f"np.flip({x}, axis={draw.axis(x)})",
            f"np.roll({x}, {draw.random.randrange(-9, 10)}, axis={draw.axis(x)})",
            f"np.concatenate([{x}, {x}[:1], {x}], axis=0)",
            f"np.repeat({x}, {draw.random.randrange(4)}, axis={draw.axis(x)})",
            f"np.array_split({x}, {draw.random.randrange(1, 4)}, axis={draw.axis(x)})[0]",
            f"np.moveaxis({x}, {draw.axis(x)}, {draw.axis(x)})",
        ]
    if rank >= 2:
        options += [
            f"np.rot90({x}, k={far()})",
            f"np.tril({x}, {far()})",
            f"np.triu({x}, {far()})",
            f"np.diagonal({x}, {far()})",
            f"np.trace({x}, {far()})",
        ]
    return draw.choice(options)


def _slice(draw: Draw, size: int) -> str:
    kind = draw.random.random()
    if kind < 0.12:
        return ":"
    if kind < 0.45:
        return draw.choice(["::-1", "::2", "::3", "::-2", "::-3"])
    if kind < 0.6 and size:
        return str(draw.random.randrange(-size, size))
    start, stop = sorted(draw.random.randrange(-size - 2, size + 3) for _ in range(2))
    return f"{start}:{stop}{draw.choice(['', '', ':2', ':3'])}"


@rule(5)
def indexing(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) > 0)
    arrays = draw.chance(0.5)
    shape = draw.choice([(3,), (2, 2), (1,), (5,), ()])
    parts = []
    for size in draw.shape(x):
        if draw.chance(0.1):
            parts.append("None")
        if arrays and size and draw.chance(0.5):
            parts.append(draw.indices(draw.choice([shape, shape, (1,), ()])))
        else:
            parts.append(_slice(draw, size))
        if draw.chance(0.15):
            break
    return f"{x}[{', '.join(parts)}]"


@rule(4)
def update(draw: Draw) -> str:
    x = draw.numbers(1)
    floating = is_float(draw.values[x])
    methods = ["set", "add", "min", "max", "multiply"] + (["subtract", "power", "apply", "get"] if floating else [])
    method = draw.choice(methods)
    places = draw.indices(draw.choice([(3,), (2, 2), (5,), (), (1,)]))
    index = ", ".join([places, *(_slice(draw, size) for size in draw.shape(x)[1:] if draw.chance(0.4))])
    mode = draw.choice(["", "", "mode='drop'", "mode='clip'", "mode='fill'"])
    if method == "get":
        return f"{x}.at[{index}].get({mode.replace('drop', 'fill')})"
    if method == "apply":
        return f"{x}.at[{places}].apply(lambda t: t * 2 + 1)"
    value = "2" if method == "power" else draw.choice(["2", "1", f"{x}[:1].sum()"])
    return f"{x}.at[{index}].{method}({value}{', ' * bool(mode)}{mode})"


@rule(3)
def taking(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) > 0)
    mode = draw.choice(["", ", mode='clip'", ", mode='fill'"])
    if draw.chance(0.6):
        return f"np.take({x}, {draw.indices()}, axis={draw.axis(x)}{draw.choice([mode, ', mode=' + repr('wrap')])})"
    axis = draw.axis(x)
    shape = list(draw.shape(x))
    shape[axis] = draw.choice([1, 2, shape[axis], shape[axis] + 2])
    return f"np.take_along_axis({x}, {draw.indices(tuple(shape))}, axis={axis}{mode})"


@rule(4)
def sorting(draw: Draw) -> str:
    x = draw.numbers(1)
    axis, last = draw.axis(x), draw.shape(x)[-1]
    options = [
        f"np.sort({x}, axis={axis})",
        f"np.argsort({x}, axis={axis})",
        f"lax.top_k({x}, {draw.random.randrange(last + 1)})[{draw.choice([0, 1])}]",
        f"np.argmax({x}, axis={axis})",
        f"np.argmin({x}, axis={axis}, keepdims=True)",
        f"np.sort({x}, axis={axis}, descending=True)",
        f"np.argsort({x}, axis={axis}, descending=True)",
        f"lax.sort_key_val({x}, {x} * 2, dimension={axis})[1]",
        f"lax.sort(({x}, {x}[::-1]), dimension={axis}, num_keys={draw.choice([1, 2])})[1]",
        f"np.searchsorted(np.sort({x}.ravel()), {x}, side={draw.choice(['left', 'right'])!r})",
        f"np.unique({x}, size=4, fill_value=0)",
    ]
    if is_float(draw.values[x]):
        options += [f"np.percentile({x}, 30.0, axis={axis})", f"np.median({x}, axis={axis})"]
    return draw.choice(options)


@rule(3)
def choosing(draw: Draw) -> str:
    x = draw.numbers()
    y = draw.like(x)
    options = [
        f"np.where({x} > 0, {y}, {x})",
        f"np.where({x} > {y}, 1, {x})",
        f"np.clip({x}, 0, 1)",
        f"np.clip({x}, None, {y})",
        f"np.select([{x} > 0, {x} < 1], [{y}, {x} * 2], 0)",
        f"np.where(np.isnan({x}), 0, {x})",
    ]
    return draw.choice(options)


@rule(3)
def product(draw: Draw) -> str:
    x = draw.numbers(1)
    shape = draw.shape(x)
    if len(shape) == 1:
        first = f"{x}[:3]"
        return draw.choice([f"{x} @ {x}", f"np.outer({x}, {x})", f"np.inner({x}, {x})", f"np.convolve({x}, {first})",
                            f"np.correlate({x}, {first}, mode='same')"])  # fmt: skip
    turned = f"np.swapaxes({x}, -1, -2)"
    return draw.choice([
        f"{x} @ {turned}",
        f"{turned} @ {x}",
        f"np.dot({x}, {x}.T)",
        f"np.inner({x}, {x})",
        f"{x} @ {x}[(0,) * {len(shape) - 1}]",
        f"np.vecdot({x}, {x})",
        f"lax.dot_general({x}, {x}, (((0,), (0,)), ((), ())))",
        f"lax.dot_general({x}, {x}, (((1,), (1,)), ((0,), (0,))))",
        f"np.kron({x}, np.ones((2, 1), {x}.dtype))",
    ])  # fmt: skip


@rule(3)
def einsum(draw: Draw) -> str:
    x = draw.numbers(1)
    value = draw.values[x]
    left = "abcdef"[: len(value.shape)]
    sizes = dict(zip(left, value.shape, strict=True))
    if draw.chance(0.3):
        kept = "".join(letter for letter in draw.random.sample(left, len(left)) if draw.chance(0.6))
        return f"np.einsum('{left}->{kept}', {x})"
    y = draw.pick(lambda other: other.dtype == value.dtype and len(other.shape) > 0)
    right = ""
    for place, size in enumerate(draw.shape(y)):
        same = [letter for letter, other in sizes.items() if other == size and letter not in right]
        right += draw.choice(same) if same and draw.chance(0.7) else "ghijklmn"[place]
    letters = sorted(set(left + right))
    kept = "".join(letter for letter in draw.random.sample(letters, len(letters)) if draw.chance(0.5))
    return f"np.einsum('{left},{right}->{kept}', {x}, {y})"


@rule(3)
def convolution(draw: Draw) -> str:
    x = draw.pick(lambda value: str(value.dtype) == draw.dtype)
    rank = draw.choice([1, 1, 2])
    some = lambda options: tuple(draw.choice(options) for _ in range(rank))
    groups = draw.choice([1, 1, 2, 3])
    channels, filters = groups * draw.choice([1, 2]), groups * draw.choice([1, 2, 3])
    image = (draw.choice([1, 2, 3]), channels, *some([1, 5, 7, 9]))
    kernel = (filters, channels // groups, *some([1, 2, 3, 4]))
    explicit = [(draw.random.randrange(-1, 4), draw.random.randrange(-1, 4)) for _ in range(rank)]
    padding = draw.choice(["'SAME'", "'VALID'", repr(explicit)])
    holes = some([1, 1, 2]) if "[" in padding else (1,) * rank
    more = f", feature_group_count={groups}"
    if groups == 1 and image[0] == 2 and filters % 2 == 0:
        more = ", batch_group_count=2"
    data = f"(np.sin(np.arange({np.prod(image)}, dtype='{draw.dtype}')).reshape({image}) + np.sum({x}))"
    weights = f"np.cos(np.arange({np.prod(kernel)}, dtype='{draw.dtype}')).reshape({kernel})"
    dilations = f"lhs_dilation={holes}, rhs_dilation={some([1, 1, 2, 3])}"
    if draw.chance(0.5):
        letters = "HW"[:rank]
        layouts = tuple("".join(draw.random.sample(pair + letters, rank + 2)) for pair in ("NC", "OI", "NC"))
        data = f"np.transpose({data}, {tuple(f'NC{letters}'.index(letter) for letter in layouts[0])})"
        weights = f"np.transpose({weights}, {tuple(f'OI{letters}'.index(letter) for letter in layouts[1])})"
        more += f", dimension_numbers={layouts}"
    return f"lax.conv_general_dilated({data}, {weights}, {some([1, 1, 2, 3])}, {padding}, {dilations}{more})"


@rule(3)
def windows(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) > 0 and (is_float(value) or value.dtype == np.int32))
    some = lambda options: tuple(draw.choice(options) for _ in draw.shape(x))
    explicit = [(draw.random.randrange(3), draw.random.randrange(3)) for _ in draw.shape(x)]
    padding = draw.choice(["'SAME'", "'VALID'", repr(explicit)])
    kinds = [("-onp.inf", "max"), ("0.", "add"), ("onp.inf", "min"), ("1.", "mul")]
    start, name = draw.choice(kinds if is_float(draw.values[x]) else [("0", "add"), ("onp.iinfo('int32').min", "max")])
    more = f", base_dilation={some([1, 1, 2])}" if draw.chance(0.2) else ""
    more += f", window_dilation={some([1, 1, 2])}" if draw.chance(0.3) else ""
    start = f"onp.asarray({start}, {x}.dtype)[()]"
    return f"lax.reduce_window({x}, {start}, lax.{name}, {some([1, 2, 3])}, {some([1, 2, 3])}, {padding}{more})"


@rule(3)
def segments(draw: Draw) -> str:
    x = draw.numbers(1)
    places = draw.indices(draw.shape(x)[:1])
    return f"{draw.choice(SEGMENTS)}({x}, {places}, num_segments={draw.choice([1, 3, 5, 20])})"


@rule(3)
def dynamic_slices(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) > 0)
    shape = draw.shape(x)
    start = tuple(draw.random.randrange(-size - 2, size + 3) for size in shape)
    sizes = tuple(draw.random.randrange(size + 1) for size in shape)
    options = [
        f"lax.dynamic_slice({x}, {start}, {sizes})",
        f"lax.dynamic_update_slice({x}, lax.dynamic_slice({x}, {(0,) * len(shape)}, {sizes}), {start})",
        f"vmap(lambda i: lax.dynamic_slice_in_dim({x}, i, {sizes[0]}, axis=0))({draw.indices((3,))})",
    ]
    if shape[0]:
        options += [
            f"lax.dynamic_index_in_dim({x}, {start[0]}, axis=0)",
            f"vmap(lambda i: {x}.at[i].set({x}[0]))({draw.indices((3,))})",
        ]
    return draw.choice(options)


@rule(2)
def gathers_and_scatters(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) == 2 and 0 not in value.shape)
    mode = draw.choice(["'clip'", "'fill'", "None"])
    columns = draw.shape(x)[1]
    if draw.chance(0.5):
        dims = "lax.GatherDimensionNumbers((1,), (0,), (0,))"
        sizes = (1, draw.random.randrange(1, columns + 1))
        return f"lax.gather({x}, {draw.indices((4, 1))}, {dims}, {sizes}, mode={mode})"
    name = (
        draw.choice(["scatter_add", "scatter", "scatter_min", "scatter_max"])
        if draw.values[x].dtype != bool
        else "scatter"
    )
    dims = "lax.ScatterDimensionNumbers((1,), (0,), (0,))"
    rows = f"np.broadcast_to({x}[:1], (3, {columns}))"
    return f"lax.{name}({x}, {draw.indices((3, 1))}, {rows}, {dims}, mode={mode})"


@rule(2)
def casts(draw: Draw) -> str:
    x = draw.pick()
    if is_float(draw.values[x]):
        bits = f"lax.bitcast_convert_type(np.round({x}).astype('float32'), 'int32')"
        small = f"np.clip(np.nan_to_num({x}), -9, 9).astype('int8')"
        return draw.choice(
            [f"{x}.astype('bfloat16')", f"{x}.astype('float16')", f"({x} > 0).astype('int32')", bits, small]
        )
    kinds = [draw.dtype, "int8", "uint8", "int16", "uint32", "bfloat16"]
    return f"{x}.astype('{draw.choice(kinds)}')"


@rule(2)
def padding(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) > 0 and 0 not in value.shape)
    if draw.chance(0.5):
        around = [tuple(draw.random.randrange(low, 4) for low in (-2, -2, 0)) for _ in draw.shape(x)]
        return f"lax.pad({x}, onp.zeros((), {x}.dtype)[()], {around})"
    around = [(draw.random.randrange(4), draw.random.randrange(4)) for _ in draw.shape(x)]
    return f"np.pad({x}, {around}, mode={draw.choice(['constant', 'reflect', 'edge', 'wrap', 'symmetric'])!r})"


@rule(2)
def random_numbers(draw: Draw) -> str:
    shape = draw.choice([(), (1,), (3,), (7, 3), (0,), (2, 0, 3), (33,), (257,)])
    key = f"key({draw.random.randrange(2**31)})"
    if draw.chance(0.3):
        key = f"random.fold_in({key}, {draw.random.randrange(2**31)})"
    if draw.chance(0.3):
        key = f"random.split({key}, 3)[1]"
    return draw.choice([
        f"random.uniform({key}, {shape}, '{draw.dtype}', minval=-2., maxval=3.)",
        f"random.normal({key}, {shape}, '{draw.dtype}')",
        f"random.bernoulli({key}, onp.float32(0.3), {shape})",
        f"random.randint({key}, {shape}, {draw.choice([-5, 0, -(2**31)])}, {draw.choice([6, 2**31 - 1])}, 'int32')",
        f"random.bits({key}, {shape}, '{draw.choice(['uint8', 'uint16', 'uint32'])}')",
        f"random.permutation({key}, {draw.choice(['7', '1', '100'])})",
    ])  # fmt: skip


@rule(3)
def activation(draw: Draw) -> str:
    x = draw.floats()
    name = draw.choice(ACTIVATIONS)
    if name in ("softmax", "log_softmax", "logsumexp", "glu"):
        return f"nn.{name}({x}, axis={draw.axis(x)})"
    return f"nn.{name}({x})"


@rule(2)
def statistics(draw: Draw) -> str:
    x = draw.floats(1)
    axis, f = draw.axis(x), draw.dtype
    method = draw.choice(["linear", "lower", "nearest"])
    return draw.choice([
        f"np.diff({x}, axis={axis})",
        f"np.interp({x}, np.asarray([-1., 0., 2.], '{f}'), np.asarray([3., 1., 5.], '{f}'))",
        f"np.average({x}, axis={axis})",
        f"np.digitize({x}, np.asarray({draw.choice([[-1., 0., 1.], [1., 0., -1.]])}, '{f}'), {draw.chance(0.5)})",
        f"(1.5 - ({x} > 0)) * {x}",
        f"np.gradient({x}, axis={axis})",
        f"np.histogram({x}, bins=4, range=(-2., 2.))[0]",
        f"np.trapezoid({x}, axis={axis})",
        f"np.argwhere({x} > 0, size=4)",
        f"np.nonzero({x}, size=3)[0]",
        f"np.polyval({x}.ravel()[:3], {x})",
        f"np.quantile({x}, np.asarray([.25, .5], '{f}'), axis={axis}, method={method!r})",
        f"np.vander({x}.ravel()[:4], 3)",
        f"np.cross({x}[..., :3], np.flip({x}[..., :3], -1))",
        f"np.nanmedian({x}, axis={axis})",
        f"np.bincount(np.clip(np.nan_to_num({x}), 0, 3).astype('int32').ravel(), length=4)",
    ])  # fmt: skip


@rule(2)
def linear_algebra(draw: Draw) -> str:
    x = draw.pick(lambda value: str(value.dtype) == draw.dtype)
    f, n = draw.dtype, draw.choice([1, 2, 3, 5])
    scale = f"np.tanh(np.sum(np.where(np.isfinite({x}), np.tanh({x}), 0)))"
    matrix = f"(np.sin(np.arange({n * n}, dtype='{f}')).reshape({n}, {n}) + {scale} * np.eye({n}, dtype='{f}'))"
    definite = f"(lambda m: m @ m.T + 2 * np.eye({n}, dtype='{f}'))({matrix})"
    return draw.choice([
        f"np.linalg.cholesky({definite})",
        f"np.linalg.solve({definite}, np.ones(({n}, 2), '{f}'))",
        f"np.linalg.inv({definite})",
        f"np.linalg.det({definite})",
        f"np.linalg.slogdet({definite})[1]",
        f"np.linalg.norm({x})",
        f"np.linalg.eigvalsh({definite})",
        f"np.linalg.matrix_power({matrix}, {draw.choice([0, 2, 3, 5])})",
        f"np.linalg.svd({definite}, compute_uv=False)",
        f"np.linalg.qr({definite})[1] ** 2",
        f"np.linalg.pinv({definite})",
    ])  # fmt: skip
