"""Rules for expressions with a body: loops, branches, maps, derivatives and other transforms."""

from __future__ import annotations

import jax

from fuzz.draw import Draw, is_float, rule

_STEPS = (
    "lambda c, x: (np.tanh(c + x), c * x)",
    "lambda c, x: (lax.cond(np.sum(c) > 0, lambda q: q * 0.5 + x, lambda q: q - x, c), np.sum(c))",
    "lambda c, x: (c * 0.9 + cvjp(x), c)",
    "lambda c, x: (np.where(x > 0, c, x), c * 2)",
    "lambda c, x: (c + x * np.sum(np.sin({other})), x)",
    "lambda c, x: (lax.fori_loop(0, 3, lambda i, q: q * 0.5 + x, c), c - x)",
    "lambda c, x: (c - x, while_(lambda q: q[0] < 3, lambda q: (q[0] + 1, q[1] * 2), (0, x), 3)[1])",
    "lambda c, x: (jit(lambda a, b: a * b + 1)(c, x), checkpoint(np.sin)(x))",
    "lambda c, x: (lax.switch(np.asarray(np.sum(x) > 0).astype('int32') + 1, "
    "[lambda q: q, lambda q: q * 2, lambda q: np.cos(q)], c), x + c)",
    "lambda c, x: (c[..., ::-1] + x, c)",
    "lambda c, x: (np.sort(c, axis=-1) + x, np.cumsum(c, axis=-1))",
)


def _rows(draw: Draw) -> str:
    """A float array with rows that are there."""
    return draw.pick(lambda value: is_float(value) and len(value.shape) > 0 and value.shape[0] > 0)


@rule(4)
def scan(draw: Draw) -> str:
    x = draw.floats(1)
    value = draw.values[x]
    step = draw.choice(_STEPS).replace("{other}", draw.like(x))
    if draw.chance(0.2):
        step = f"checkpoint({step})"
    start = f"np.zeros_like({x}[0])" if value.shape[0] else f"np.zeros({tuple(value.shape[1:])}, '{value.dtype}')"
    more = draw.choice(["", ", reverse=True"]) + draw.choice(["", "", ", unroll=2", ", unroll=True"])
    return f"lax.scan({step}, {start}, {x}{more})[{draw.choice([0, 1])}]"


@rule(2)
def while_loop(draw: Draw) -> str:
    x = draw.floats()
    steps = draw.random.randrange(6)
    most = draw.choice([steps, steps + 3, 2])
    return f"while_(lambda q: q[0] < {steps}, lambda q: (q[0] + 1, np.sin(q[1]) * 1.5 + {x}), (0, {x}), {most})[1]"


@rule(2)
def fori_loop(draw: Draw) -> str:
    x = _rows(draw)
    value = draw.values[x]
    rows = value.shape[0]
    return draw.choice([
        f"lax.fori_loop(0, {rows}, lambda i, c: c.at[i].set(np.sin(c[i]) + c[(i + 1) % {rows}]), {x})",
        f"lax.fori_loop(0, {rows}, lambda i, c: c + {x}[i], np.zeros({tuple(value.shape[1:])}, '{value.dtype}'))",
        f"lax.fori_loop(-2, 3, lambda i, c: c * i + 1, {x})",
        f"lax.fori_loop(0, 2, lambda i, c: c + c[::-1], {x})",
        f"lax.fori_loop(0, {rows}, lambda i, c: lax.dynamic_update_index_in_dim(c, "
        f"lax.dynamic_index_in_dim({x}, {rows} - 1 - i, 0, keepdims=False) * i, i, 0), {x})",
    ])  # fmt: skip


@rule(3)
def branches(draw: Draw) -> str:
    x = draw.numbers()
    value = draw.values[x]
    y = draw.pick(lambda other: other.shape == value.shape and other.dtype == value.dtype)
    place = draw.choice(["0", "1", "5", "-2"] + ([f"np.argmax({x}.ravel())"] if 0 not in value.shape else []))
    options = [
        f"lax.cond(np.sum({x}) > 0, lambda q: q * 2, lambda q: q + {y}, {x})",
        f"lax.switch({place}, [lambda q: q, lambda q: q * {y}, lambda q: q - 1], {x})",
        f"lax.cond(np.any({x} > 100), lambda: {x} * 0, lambda: {y})",
    ]
    if value.shape and value.shape[0]:
        options.append(f"vmap(lambda q: lax.cond(np.sum(q) > 0, lambda t: t * 2, lambda t: t + 1, q))({x})")
    return draw.choice(options)


@rule(2)
def associative_scan(draw: Draw) -> str:
    x = draw.numbers(1)
    combine = draw.choice(["np.add", "np.maximum", "lambda a, b: a * b", "lambda a, b: b", "lambda a, b: a + b + 1"])
    return f"lax.associative_scan({combine}, {x}, reverse={draw.chance(0.5)}, axis={draw.axis(x)})"


@rule(2)
def row_map(draw: Draw) -> str:
    x = _rows(draw)
    own = draw.fresh()
    value = draw.values[x]
    body = draw.inner(own, jax.ShapeDtypeStruct(value.shape[1:], value.dtype))
    return f"lax.map(lambda {own}: {body}, {x})"


@rule(5, within=False)
def vmap(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) > 0 and 0 not in value.shape)
    value = draw.values[x]
    axis = draw.axis(x)
    rest = list(value.shape)
    rest.pop(axis)
    own = draw.fresh()
    body = draw.inner(own, jax.ShapeDtypeStruct(tuple(rest), value.dtype))
    if is_float(value) and draw.chance(0.3):
        body = f"grad(lambda {own}: np.sum({body}).astype('{value.dtype}'))({own})"
    return f"vmap(lambda {own}: {body}, in_axes={axis}{draw.choice(['', ', out_axes=-1'])})({x})"


@rule(2, within=False)
def collective(draw: Draw) -> str:
    x = _rows(draw)
    own = draw.fresh()
    body = draw.choice([
        f"{own} - lax.pmean({own}, 'rows')",
        f"{own} * lax.psum(np.sin({own}), 'rows')",
        f"lax.pmax({own}, 'rows') - {own}",
        f"lax.all_gather({own}, 'rows').sum(0) + lax.axis_index('rows')",
        f"lax.ppermute({own}, 'rows', [({draw.shape(x)[0]} - 1, 0)])",
    ])  # fmt: skip
    return f"vmap(lambda {own}: {body}, axis_name='rows')({x})"


@rule(4, within=False)
def derivative(draw: Draw) -> str:
    x = draw.floats()
    own = draw.fresh()
    body = draw.inner(own, draw.values[x])
    total = f"lambda {own}: np.sum({body}).astype({own}.dtype)"
    size = len(draw.shape(x)) == 0 or max(draw.shape(x)) <= 5
    options = [f"grad({total})({x})"] * 3
    options += [f"jvp(lambda {own}: {body}, ({x},), (np.ones_like({x}),))[{draw.choice([0, 1])}]"] * 2
    options += [f"grad(lambda q: np.sum(np.sin(grad({total})(q))))({x})"]
    options += [f"{draw.choice(['jacfwd', 'jacrev', 'hessian'])}({total})({x})"] if size else []
    return draw.choice(options)


@rule(4, within=False)
def calls(draw: Draw) -> str:
    x = draw.pick()
    own = draw.fresh()
    body = draw.inner(own, draw.values[x])
    options = [
        f"checkpoint(lambda {own}: {body})({x})",
        f"jit(lambda {own}, n: {body}, static_argnums=1)({x}, 3)",
        f"jit(lambda *, {own}: {body})({own}={x})",
        f"jit(jit(lambda {own}: {body}))({x})",
    ]
    if draw.values[x].dtype != bool:
        options.append(f"jit(lambda {own}: {body}, donate_argnums=0)({x} + 0)")
    return draw.choice(options)


@rule(3)
def custom_derivatives(draw: Draw) -> str:
    x = draw.floats()
    return draw.choice([
        f"cvjp({x})",
        f"cjvp({x})",
        f"checkpoint(lambda q: cvjp(np.sin(q)))({x})",
        f"jit(cjvp)({x})",
        f"lax.stop_gradient({x}) * {x}",
        f"grad(lambda q: np.sum(cvjp(cjvp(q))))({x})",
    ])  # fmt: skip


@rule(3, within=False)
def nested(draw: Draw) -> str:
    x = draw.pick(lambda value: len(value.shape) >= 2 and 0 not in value.shape and is_float(value))
    rows, columns = draw.shape(x)[:2]
    places = f"np.arange({rows}, dtype='int32')"
    grow = "lambda t: (t[0] < 5) & (np.sum(t[1]) < 10), lambda t: (t[0] + 1, t[1] * 1.5), (0, q), 5"
    turn = "lambda c, x: (c + cvjp(x), lax.cond(np.sum(c) > 0, np.sin, np.cos, x)), q[0] * 0, q"
    weigh = "lambda t: np.sum(np.sort(t.ravel()) * np.arange(t.size))"
    start = "lax.dynamic_slice_in_dim(row, np.argmax(row.ravel()) % 2, 1, 0)"
    shift = "lax.fori_loop(0, 3, lambda i, c: c + np.roll(c, i, 0), row)"
    return draw.choice([
        f"vmap(lambda q: lax.scan({turn})[1])({x})",
        f"grad(lambda q: np.sum(lax.scan(checkpoint(lambda c, x: (np.tanh(c * x), c)), q[0], q)[1]))({x})",
        f"vmap(grad(lambda q: np.sum(lax.map({weigh}, q))))({x})",
        f"jvp(lambda q: lax.scan(lambda c, x: (c + x, c * x), q[0], q)[1], ({x},), (np.cos({x}),))[1]",
        f"vmap(lambda q, i: q.at[i].add(q[0]) * q[i], in_axes=(0, 0))({x}, {places} % {columns})",
        f"vmap(vmap(lambda q: np.sum(q ** 2)))({x})",
        f"vmap(lambda q: while_({grow})[1])({x})",
        f"grad(lambda q: np.sum(vmap(lambda row: {start})(q)))({x})",
        f"vmap(lambda row: np.einsum('...i,...i->...', row, np.flip(row, -1)))({x})",
        f"vmap(lambda row: {shift}, in_axes=1, out_axes=1)({x})",
        f"jit(lambda q: grad(lambda t: np.sum(jit(lambda z: z * np.sum(q))(t)))(q))({x})",
        f"grad(lambda q: np.sum(lax.fori_loop(0, 2, lambda i, c: c + c[:, ::-1], q) * q))({x})",
        f"grad(lambda q: np.sum(segment_max(q, {places} % 3, num_segments=4)[:2]))({x})",
    ])  # fmt: skip
