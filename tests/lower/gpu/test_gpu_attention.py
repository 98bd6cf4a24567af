"""Attention on GPUs: emulated against JAX and the CPU, and compiled to machine code for three architectures.

The emulator runs the CUDA source thread by thread.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support import oracle
from support.emulated_products import emulate, needs_gxx, needs_nvcc, resources, scheduled

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax
from tvmfun import random as keys_of
from tvmfun.core.inline import inlined, subprograms
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite.half_attention import attention_in_half_precision
from tvmfun.lower.schedule.gpu import tiles
from tvmfun.lower.schedule.gpu.attention import tiling
from tvmfun.nn.functional import dot_product_attention, gpu_attention
from tvmfun.ops.attention import attention, attention_gradients
from tvmfun.transforms.amp import PrecisionPolicy

jax = pytest.importorskip("jax")
jnp = jax.numpy
PLAIN = {"optional": (), "causal": False, "window": None, "rate": 0.0, "scale": 1.0, "precision": None, "narrow": False}
#: Relative to the largest element: factors are rounded to 8, 11, 11 and 24 bits, and scores are as large as 30.
TOLERANCE = {"bfloat16": 1.2e-2, "float16": 1.5e-3, "tf32": 6e-3, "float32": 1e-5}


def arrays(length, keys, heads, groups, width, batch=2):
    """Queries, keys, values and a cotangent."""
    rng = np.random.default_rng([length, keys, width])
    shapes = [(batch, length, heads, width), (batch, keys, groups, width)]
    return [rng.standard_normal(shapes[i]) for i in (0, 1, 1, 0)]


def options_of(names, length, keys, heads, batch=2):
    rng = np.random.default_rng(3)
    every = {
        "bias": rng.standard_normal((1, heads, length, keys)).astype("float32"),
        "mask": rng.random((batch, 1, length, keys)) < 0.6,
        "query_lengths": np.asarray([length - 3, length], "int32"),
        "key_lengths": np.asarray([keys - 10, keys], "int32"),
        "dropout_key": np.asarray([[1, 2]], "uint32"),
    }
    return [every[name] for name in names]


def formula(query, key, value, options, *, optional, causal, window, rate, scale, precision, narrow):
    """The result and the log-sums in JAX; infinite log-sums and zeros for queries that see no key."""
    given = dict(zip(optional, options, strict=True))
    shared = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, shared, axis=2) for x in (key, value))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) * scale + given.get("bias", 0)
    t, s = np.arange(query.shape[1])[:, None], np.arange(key.shape[1])
    visible = np.ones(scores.shape, bool) & ((s <= t) | (not causal)) & given.get("mask", True)
    if window:
        visible &= (s >= t - window[0]) & (s <= t + window[1])
    for name, position in (("query_lengths", t), ("key_lengths", s)):
        if name in given:
            visible &= position < given[name].reshape(-1, 1, 1, 1)
    some = visible.any(-1)
    scores = jnp.where(visible, scores, -jnp.inf)
    sums = jax.scipy.special.logsumexp(jnp.where(some[..., None], scores, 0), axis=-1)
    weights = jnp.where(visible, jnp.exp(scores - sums[..., None]), 0)
    if rate:
        kept = np.asarray(keys_of.bernoulli(given["dropout_key"][0], 1 - rate, weights.shape))
        weights = jnp.where(kept, weights / (1 - rate), 0)
    return jnp.einsum("bnts,bsnh->btnh", weights, value), jnp.where(some, sums, jnp.inf)


@pytest.fixture
def kernels_draw(monkeypatch):
    """Kernels draw dropout themselves, as for windows and dynamic batches."""
    monkeypatch.setattr("tvmfun.lower.pipeline.share_dropout_bits", lambda program: program)


EVERYTHING = ("bias", "mask", "query_lengths", "key_lengths", "dropout_key")
# Names: dtype, what is special, and sizes: queries, keys, heads, heads of keys, elements of a head.
CASES = {
    "bfloat16-everything": ("bfloat16", EVERYTHING, {"causal": True, "window": (20, 3), "rate": 0.3, "scale": 0.7}),
    "bfloat16-causal": ("bfloat16", (), {"causal": True}, (70, 70, 2, 1, 64)),
    "bfloat16-rounded": ("bfloat16", ("dropout_key",), {"causal": True, "rate": 0.2, "scale": 0.4, "narrow": True}),
    "float16-rounded-odd": ("float16", (), {"scale": 0.2, "narrow": True}, (21, 35, 2, 1, 35)),
    "float16-wide": ("float16", (), {"scale": 0.1}, (40, 33, 1, 1, 128)),
    "bfloat16-long": ("bfloat16", (), {"causal": True}, (150, 300, 1, 1, 64)),
    "bfloat16-odd": ("bfloat16", ("dropout_key",), {"rate": 0.5}, (3, 20, 2, 2, 5)),
    "tf32-causal": ("tf32", (), {"causal": True, "scale": 0.3}),
    "tf32-wide": ("tf32", ("key_lengths",), {}, (20, 70, 1, 1, 100)),
    "float32-plain": ("float32", (), {}),
    "float32-everything": ("float32", EVERYTHING, {"causal": True, "window": (20, 3), "rate": 0.3, "scale": 0.7}),
    "float32-wide": ("float32", ("mask",), {"scale": 0.2}, (20, 40, 1, 1, 96)),
    "float32-one": ("float32", (), {"causal": True}, (1, 1, 1, 1, 1)),
    "float32-window": ("float32", ("dropout_key",), {"window": (0, 40), "rate": 0.1}, (130, 65, 1, 1, 32)),
}


@cache
def case(name):
    """The format of a case, its parameters, factors and options, and the results and cotangents of the formula."""
    format, optional, params, *own = CASES[name]
    sizes = own[0] if own else (37, 75, 4, 2, 40)
    dtype = "float32" if format == "tf32" else format
    params = {**PLAIN, **params, "optional": optional, "precision": "tensorfloat32" if format == "tf32" else None}
    options = options_of(optional, *sizes[:3])
    factors = [np.asarray(tnp.asarray(x, dtype)) for x in arrays(*sizes)]
    with oracle.x64():

        @jax.jit
        def results_and_gradients(g, *wide):
            (result, sums), pull = jax.vjp(lambda *x: formula(*x, options, **params), *wide)
            return result, sums, *pull((g, jnp.zeros_like(sums)))

        *wide, g = (x.astype("float64") for x in factors)
        return format, params, factors, options, [np.asarray(x) for x in results_and_gradients(g, *wide)]


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_are_the_formula(name, arch, kernels_draw):
    if arch == "sm_90a" and "16" not in CASES[name][0]:
        pytest.skip("only half precision is multiplied by wgmma")
    format, params, (query, key, value, g), options, (result, sums, *expected) = case(name)
    (ours, our_sums), rules = emulate(lambda *x: attention(*x, **params), query, key, value, *options, arch=arch)
    assert rules == ["attention"]
    np.testing.assert_array_equal(np.isinf(our_sums), np.isinf(sums))
    close(np.where(np.isinf(sums), 0, our_sums), np.where(np.isinf(sums), 0, sums), format)
    assert ours.dtype == result_dtype(params, query)
    close(ours, result, format)
    dots = (result * g.astype("float64")).sum(-1)
    given = (query, key, value, g, sums.astype("float32"), dots.astype("float32"), *options)
    gradients, rules = emulate(lambda *x: attention_gradients(*x, **params), *given, arch=arch)
    assert rules == ["attention"]
    for ours, theirs in zip(gradients, expected, strict=True):
        assert ours.dtype == result_dtype(params, query)
        close(ours, theirs, format)


def result_dtype(params, query):
    return query.dtype if params["narrow"] else np.float32


def close(ours, theirs, format):
    bound = TOLERANCE[format] * max(1.0, np.abs(theirs).max())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


# -- the layer ---------------------------------------------------------------------------------------------------------


def value_and_gradients(query, key, value, **settings):
    result, pull = tvmfun.vjp(lambda *x: dot_product_attention(*x, **settings), query, key, value)
    g = tnp.cos(tnp.arange(result.size).astype("float32")).reshape(result.shape)
    return result, *pull(g.astype(result.dtype))


@pytest.fixture
def always_tiled(monkeypatch):
    monkeypatch.setattr(gpu_attention, "_LEAST_LENGTH", 1)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["plain", "bfloat16 arrays", "amp", "tf32", "vmap"])
def test_the_layer_is_that_of_the_cpu(wrap, always_tiled):
    """The values and gradients of a causal layer with dropout, emulated, and those in float64 on the CPU."""
    given = [x.astype("float32") for x in arrays(20, 20, 4, 2, 24)[:3]]
    given = [np.asarray(tnp.asarray(x, "bfloat16")) for x in given] if wrap == "bfloat16 arrays" else given
    settings = {"is_causal": True, "dropout_rate": 0.2, "dropout_key": keys_of.key(7)}
    each = keys_of.split(keys_of.key(5), 2)

    def run(query, key, value):
        if wrap != "vmap":
            return value_and_gradients(query, key, value, **settings)
        own = lambda q, v, k: value_and_gradients(q[None], key[:1], v[None], **{**settings, "dropout_key": k})
        return tvmfun.vmap(own)(query, value, each)

    ours = tvmfun.amp(run, {"amp": "bfloat16", "tf32": "tensorfloat32"}[wrap]) if wrap in ("amp", "tf32") else run
    results, rules = emulate(ours, *given, orders=1)
    assert rules.count("attention") == 2
    expected = tvmfun.jit(run)(*(x.astype("float64") for x in given))
    bound = {"plain": 2e-6, "vmap": 2e-6, "tf32": 2e-3}.get(wrap, 1.5e-2)
    for one, other in zip(results, expected, strict=True):
        other = np.asarray(other)
        np.testing.assert_allclose(one.astype("float64"), other, rtol=0, atol=bound * max(1.0, np.abs(other).max()))


@needs_gxx
@pytest.mark.slow
def test_the_launcher_runs_it(always_tiled):
    """Compiled for an emulated GPU and launched as a graph, in which both kernels of the gradient are one launch."""
    from support.cuda_emulator.gpu import emulated_gpus

    given = [x.astype("float32") for x in arrays(20, 30, 2, 1, 32)[:3]]
    mask = options_of(("mask",), 20, 30, 2)[0]
    mask[:, :, 4] = False
    run = lambda *x: value_and_gradients(*x, mask=mask, dropout_rate=0.2, dropout_key=keys_of.key(7))
    expected = tvmfun.jit(run)(*given)
    with emulated_gpus(seed=4):
        results = [np.asarray(x) for x in tvmfun.jit(run)(*tvmfun.device_put(given, "cuda"))]
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-5, atol=1e-5)


def ops(program):
    for equation in program.equations:
        yield equation
        for inner in subprograms(tuple(equation.params.values())):
            yield from ops(inner)


@pytest.mark.parametrize("length", [48, 1024])
def test_no_loop_is_left_on_a_gpu(length):
    spec = ShapeDtype((1, length, 2, 64), "float32")
    run = lambda *x: value_and_gradients(*x, is_causal=True)
    names = [equation.op.name for equation in ops(inlined(tvmfun.trace(run)(spec, spec, spec), "cuda"))]
    assert "loop" not in names and names.count("attention") == names.count("attention_gradients") == 1
    rules = [one.rule for one in scheduled(run, spec, spec, spec)]
    assert rules.count("attention") == 2 and len(rules) <= 8


@pytest.mark.parametrize(
    ("dtype", "length", "width"), [("float64", 1024, 64), ("float32", 1024, 136), ("float32", 16, 64)]
)
def test_others_use_the_direct_formula(dtype, length, width):
    spec = ShapeDtype((1, length, 1, width), dtype)
    run = lambda *x: value_and_gradients(*x, is_causal=True)
    names = {equation.op.name for equation in ops(inlined(tvmfun.trace(run)(spec, spec, spec), "cuda"))}
    assert "dot_general" in names and not {"loop", "attention"} & names


# -- half precision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", ["plain", "scan"])
@pytest.mark.parametrize("way", ["arrays", "amp", "amp of most", "float32"])
def test_factors_in_half_precision(way, wrap):
    spec = ShapeDtype((1, 1024, 2, 64), "bfloat16" if way == "arrays" else "float32")
    run = lambda *x: value_and_gradients(*x, is_causal=True)
    if way.startswith("amp"):
        run = tvmfun.amp(run, PrecisionPolicy("bfloat16", only_products=way == "amp"))
    looped = lambda *x: lax.scan(lambda carry, _: (carry, run(*x)), 0, None, length=2)[1]
    program = tvmfun.trace(run if wrap == "plain" else looped)(spec, spec, spec)
    narrowed = [
        equation
        for equation in ops(attention_in_half_precision(inlined(program, "cuda")))
        if equation.op in (attention, attention_gradients)
    ]
    assert len(narrowed) == 2
    for equation in narrowed:
        factors = {str(atom.aval.dtype) for atom in equation.inputs[: equation.op.factors]}
        assert factors == {"float32" if way == "float32" else "bfloat16"}
        results = {str(out.aval.dtype) for out in equation.outputs[: equation.op.sums]}
        is_read_wide = way == "arrays" and equation.op is attention  # by the products with the cotangent
        assert results == ({"float32"} if is_read_wide else factors)
        assert equation.params["scale"] == 0.125


# -- machine code ------------------------------------------------------------------------------------------------------


def kernels(dtype, width, optional, params, arch):
    """The CUDA source of the kernels for the result and for the cotangents."""
    batch, length, heads, groups = 2, 1024, 4, 2
    query, key = (ShapeDtype((batch, length, n, width), dtype) for n in (heads, groups))
    every = {
        "bias": ShapeDtype((1, heads, length, length), "float32"),
        "mask": ShapeDtype((batch, 1, length, length), "bool"),
        "query_lengths": ShapeDtype((batch,), "int32"),
        "key_lengths": ShapeDtype((batch,), "int32"),
        "dropout_key": ShapeDtype((1, 2), "uint32"),
    }
    options = [every[name] for name in optional]
    numbers = ShapeDtype((batch, heads, length), "float32"), ShapeDtype((batch, length, heads), "float32")
    params = {**PLAIN, "optional": optional, **params}
    for op, given in ((attention, (query, key, key)), (attention_gradients, (query, key, key, query, *numbers))):
        run = lambda *x, op=op: op(*x, **params)
        (one,) = scheduled(run, *given, *options, arch=arch)
        assert one.rule == "attention"
        yield one.source(targets.resolve({"kind": "cuda", "arch": arch}))


ALL_PARAMS = {"causal": True, "window": (99, 99), "rate": 0.1, "scale": 0.3}
COMPILED = {
    "bfloat16-64": ("bfloat16", 64, ("dropout_key",), {"causal": True, "rate": 0.1}),
    "bfloat16-128": ("bfloat16", 128, ("dropout_key",), {"causal": True, "rate": 0.1}),
    "float16-32": ("float16", 32, (), {}),
    "bfloat16-everything": (
        "bfloat16",
        64,
        EVERYTHING,
        ALL_PARAMS,
    ),
    "tf32-64": ("float32", 64, ("dropout_key",), {"causal": True, "rate": 0.1, "precision": "tensorfloat32"}),
    "float32-64": ("float32", 64, ("dropout_key",), {"causal": True, "rate": 0.1}),
    "float32-128": ("float32", 128, (), {"causal": True}),
    "float32-everything": ("float32", 80, EVERYTHING, ALL_PARAMS),
}


# Others have the same source on all architectures, and all cases have it on sm_80 and sm_100: each is compiled for one
# of these, and those of half precision for sm_90a.
BY_ARCH = {
    "sm_80": ("bfloat16-64", "float16-32", "bfloat16-everything", "tf32-64"),
    "sm_90a": ("bfloat16-64", "bfloat16-128", "bfloat16-everything"),
    "sm_100": ("bfloat16-128", "float32-64", "float32-128", "float32-everything"),
}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", BY_ARCH)
def test_no_register_is_spilled(arch, tmp_path, kernels_draw):
    sources = {(name, i): text for name in BY_ARCH[arch] for i, text in enumerate(kernels(*COMPILED[name], arch))}
    for case, found in zip(sources, resources(list(sources.values()), arch, tmp_path), strict=True):
        for used in found:
            assert (used.spilled_bytes, used.stack_bytes) == (0, 0), case
            assert used.registers <= 255, case


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100"])
@pytest.mark.parametrize("format", ["bfloat16", "tf32", "float32"])
def test_tiles_fit_shared_memory(format, arch):
    for kind in ("forward", "queries", "keys"):
        for width in (1, 32, 64, 80, 128):
            cut = tiling(kind, format, width, arch)
            assert cut.shared_bytes <= tiles.most_shared(arch)
            assert cut.depth >= width and cut.columns % 16 == 0


def test_older_processors_get_a_thread_per_query():
    spec = ShapeDtype((1, 8, 2, 4), "float32")
    (one,) = scheduled(lambda *x: attention(*x, **PLAIN), spec, spec, spec, arch="sm_75")
    assert one.rule != "attention"
