"""Dropout of attention on GPUs, drawn once: the rewrite against the Program, and emulated kernels against the CPU."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.emulated_products import emulate, needs_gxx, needs_nvcc, resources, scheduled

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, random
from tvmfun.core.inline import inlined, subprograms
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite.dropout_bits import share_dropout_bits
from tvmfun.nn.functional import dot_product_attention
from tvmfun.ops.attention import OPTIONAL, attention, attention_gradients, dropout_bits

PLAIN = {"causal": False, "window": None, "rate": 0.3, "scale": 0.3, "precision": None}
READS = ["dropout_bits", "attention", "attention_gradients"]


def arguments(dtype, batch, length, keys, heads, groups, width, optional=(), each=1):
    """Queries, keys, values, a cotangent, and optional arguments by name with ``each`` keys of dropout."""
    rng = np.random.default_rng([length, keys, width])
    of = lambda rows, n: tnp.asarray(rng.standard_normal((batch, rows, n, width)), dtype)
    options = {
        "bias": tnp.asarray(rng.standard_normal((1, heads, length, keys)), "float32"),
        "mask": tnp.asarray(rng.random((batch, 1, length, keys)) < 0.6),
        "query_lengths": tnp.asarray(rng.integers(1, length + 1, batch), "int32"),
        "key_lengths": tnp.asarray(rng.integers(1, keys + 1, batch), "int32"),
        "dropout_key": tnp.asarray(rng.integers(0, 1 << 32, (each, 2), np.uint32)),
    }
    factors = of(length, heads), of(keys, groups), of(keys, groups), of(length, heads)
    return factors, {name: options[name] for name in OPTIONAL if name in ("dropout_key", *optional)}


def both_ops(options, params):
    """The function of factors and the values of options that computes the result, its log-sums and the cotangents."""
    params = {**PLAIN, **params, "optional": tuple(options)}

    def run(query, key, value, g, *options):
        result, sums = attention(query, key, value, *options, **params)
        dots = tnp.sum(result * g, -1)
        return result, sums, *attention_gradients(query, key, value, g, sums, dots, *options, **params)

    return run


def ops(program):
    """The equations of dropout in a Program, and in those inside of it."""
    for equation in program.equations:
        if equation.op.name in READS:
            yield equation
        for inner in subprograms(tuple(equation.params.values())):
            yield from ops(inner)


def names(program):
    return [equation.op.name for equation in ops(program)]


def rewritten(function, *shapes):
    return share_dropout_bits(inlined(tvmfun.trace(function)(*shapes), "cuda"))


EVERYTHING = ("bias", "mask", "query_lengths", "key_lengths")
# Names: dtype, sizes (batch, queries, keys, heads, heads of keys, elements), other arguments, keys, parameters.
CASES = {
    "float32": ("float32", (2, 20, 64, 2, 2, 16), (), 1, {}),
    "float32-odd": ("float32", (4, 35, 75, 4, 2, 9), ("bias",), 2, {"causal": True}),
    "bfloat16-everything": ("bfloat16", (2, 37, 70, 4, 1, 8), EVERYTHING, 2, {"causal": True}),
    "bfloat16-causal": ("bfloat16", (1, 150, 150, 1, 1, 64), (), 1, {"causal": True}),
    "float16-wide": ("float16", (2, 33, 40, 1, 1, 128), ("mask",), 1, {"rate": 0.5}),
    "tf32": ("float32", (2, 20, 130, 2, 1, 40), (), 1, {"precision": "tensorfloat32"}),
}


@pytest.mark.quick("float32-odd", "bfloat16-everything")
@pytest.mark.parametrize("name", CASES)
def test_values_do_not_change(name):
    dtype, sizes, optional, each, params = CASES[name]
    factors, options = arguments(dtype, *sizes, optional=optional, each=each)
    given = (*factors, *options.values())
    program = tvmfun.trace(both_ops(options, params))(*(ShapeDtype(x.shape, x.dtype) for x in given))
    once = share_dropout_bits(program)
    assert names(once) == READS
    before, after = (one.evaluate([*one.captured, *given]) for one in (program, once))
    for expected, got in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


@cache
def on_cpu(name):
    """The function of a case, its arguments, and its results on the CPU."""
    dtype, sizes, optional, each, params = CASES[name]
    factors, options = arguments(dtype, *sizes, optional=optional, each=each)
    given = [np.asarray(x) for x in (*factors, *options.values())]
    run = both_ops(options, params)
    return run, given, [np.asarray(x) for x in tvmfun.jit(run)(*given)]


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_drop_what_the_cpu_drops(name, arch, monkeypatch):
    dtype, *_ = CASES[name]
    if arch == "sm_90a" and "16" not in dtype:
        pytest.skip("only half precision is multiplied by wgmma")
    run, given, expected = on_cpu(name)
    results, rules = emulate(run, *given, arch=arch, orders=1)
    assert rules.count("attention") == 2 and "block" in rules
    bound = {"bfloat16": 1.5e-2, "float16": 2e-3}.get(dtype, 6e-3 if name == "tf32" else 1e-5)
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.isinf(ours), np.isinf(theirs))
        ours, theirs = (np.where(np.isinf(x), 0, x) for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound * max(1, np.abs(theirs).max()))
    # The same numbers, in the same order, as where the kernels draw themselves.
    monkeypatch.setattr("tvmfun.lower.pipeline.share_dropout_bits", lambda program: program)
    drawn, rules = emulate(run, *given, arch=arch, orders=1)
    assert "block" not in rules
    for ours, theirs in zip(results, drawn, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("columns", [16, 32])
def test_tiles_of_few_columns(columns, monkeypatch):
    """Tiles that begin within a word, which other architectures choose for want of shared memory."""
    from dataclasses import replace

    from tvmfun.lower.schedule.gpu import attention as schedule

    original = schedule.tiling
    few = lambda *args: replace(original(*args), columns=columns, row_tiles=1, warps=2)
    monkeypatch.setattr(schedule, "tiling", few)
    factors, options = arguments("float32", 2, 40, 75, 2, 1, 32)
    given = [np.asarray(x) for x in (*factors, *options.values())]
    run = both_ops(options, {})
    results, _ = emulate(run, *given, orders=1)
    for ours, theirs in zip(results, tvmfun.jit(run)(*given), strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=0, atol=1e-5 * max(1, np.abs(theirs).max()))


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_windows_read_bits(dtype):
    """Tiles of a window begin at words."""
    factors, options = arguments(dtype, 2, 150, 130, 2, 1, 32)
    words = dropout_bits(options["dropout_key"], shape=(2, 2, 150, 130), rate=0.3, causal=False)
    given = [np.asarray(x) for x in (*factors, words)]
    run = both_ops({"kept": words}, {"window": (20, 50)})
    results, rules = emulate(run, *given, orders=1)
    assert rules.count("attention") == 2
    bound = 1.5e-2 if dtype == "bfloat16" else 1e-5
    for ours, theirs in zip(results, tvmfun.jit(run)(*given), strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=0, atol=bound * max(1, np.abs(theirs).max()))


@needs_gxx
@pytest.mark.slow
def test_the_launcher_draws_bits():
    from support.cuda_emulator.gpu import emulated_gpus

    factors, options = arguments("float32", 4, 35, 75, 2, 1, 32, each=2)
    given = [np.asarray(x) for x in (*factors, *options.values())]
    run = both_ops(options, {"causal": True})
    expected = tvmfun.jit(run)(*given)
    with emulated_gpus(seed=4):
        results = [np.asarray(x) for x in tvmfun.jit(run)(*tvmfun.device_put(given, "cuda"))]
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-5, atol=1e-5)


# -- which attentions read bits ----------------------------------------------------------------------------------------

X = ShapeDtype((2, 64, 2, 64), "float32")
KEY = ShapeDtype((2,), "uint32")


def layer(x, key, **settings):
    return dot_product_attention(x, x, x, dropout_rate=0.1, dropout_key=key, **settings)


def loss(function):
    return tvmfun.value_and_grad(lambda x, key: tnp.sum(tnp.sin(function(x, key))))


def test_layers_have_bits_of_their_own():
    two = lambda x, key: layer(layer(x, random.fold_in(key, 1)), random.fold_in(key, 2))
    found = list(ops(rewritten(loss(two), X, KEY)))
    assert sorted(equation.op.name for equation in found) == sorted(2 * READS)
    assert all("kept" in equation.params["optional"] for equation in found if equation.op is not dropout_bits)


def test_attentions_with_one_key_share_bits():
    found = names(rewritten(loss(lambda x, key: layer(layer(x, key), key)), X, KEY))
    assert sorted(found) == sorted([*READS, *READS[1:]])


def test_without_gradients_kernels_draw():
    assert names(rewritten(layer, X, KEY)) == ["attention"]


def test_only_what_is_differentiated_reads_bits():
    """A second computation by ``checkpoint`` does not keep the bits of the first one."""
    program = rewritten(loss(tvmfun.checkpoint(layer)), X, KEY)
    found = {name: [] for name in READS}
    for equation in ops(program):
        found[equation.op.name].append(equation.params.get("optional"))
    assert found["attention"] == [("dropout_key",), ("kept",)]
    assert found["attention_gradients"] == [("kept",)] and len(found["dropout_bits"]) == 1


def test_steps_of_a_scan_draw_once():
    def over(x, keys):
        return lax.scan(lambda x, key: (layer(x, key), None), x, keys)[0]

    found = names(rewritten(loss(over), X, ShapeDtype((3, 2), "uint32")))
    assert found == ["attention", "dropout_bits", "attention_gradients"]


def test_vmap_has_one_array_of_bits():
    each = tvmfun.vmap(loss(layer))
    program = rewritten(each, ShapeDtype((3, *X.shape), "float32"), ShapeDtype((3, 2), "uint32"))
    (bits,) = (equation for equation in ops(program) if equation.op is dropout_bits)
    assert (bits.inputs[0].aval.shape, bits.outputs[0].aval.shape) == ((3, 2), (6, 2, 64, 2))


@pytest.mark.parametrize("why", ["window", "long", "dynamic", "no dropout"])
def test_others_draw_in_their_kernels(why):
    """Windows skip most pairs; the bits of long sequences would be more than the result; sizes must be known."""
    shape = {"long": (1, 4096, 1, 64), "dynamic": ("b", *X.shape[1:])}.get(why, X.shape)
    settings = {"window": {"local_window_size": 9}, "no dropout": {"dropout_rate": 0.0}}.get(why, {})
    run = lambda x, key: dot_product_attention(x, x, x, **{"dropout_rate": 0.1, "dropout_key": key, **settings})
    assert sorted(names(rewritten(loss(run), ShapeDtype(shape, "float32"), KEY))) == READS[1:]


# -- machine code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_only_one_kernel_draws(arch):
    kernels = scheduled(loss(layer), X, KEY, arch=arch)
    sources = [one.source(targets.resolve({"kind": "cuda", "arch": arch})) for one in kernels]
    parity = str(0x1BD11BDA), "0x1BD11BDA"  # a constant of Threefry
    drawing = [one.rule for one, text in zip(kernels, sources, strict=True) if any(number in text for number in parity)]
    assert drawing == ["block"]
    assert [one.rule for one in kernels].count("attention") == 2


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "cases"),
    [
        ("sm_80", ("bfloat16-everything", "tf32")),
        ("sm_90a", ("bfloat16-wide", "bfloat16-everything")),
        ("sm_100", ("bfloat16-wide", "float32-everything")),
    ],
)
def test_no_register_is_spilled(arch, cases, tmp_path):
    """Sources are the same on sm_80 and sm_100, and those of float32 on sm_90a."""
    every = {
        "bfloat16-wide": ("bfloat16", 128, (), {"causal": True}),
        "bfloat16-everything": ("bfloat16", 64, EVERYTHING, {"causal": True}),
        "tf32": ("float32", 64, (), {"precision": "tensorfloat32"}),
        "float32-everything": ("float32", 80, EVERYTHING, {"causal": True}),
    }
    sources = {}
    for name in cases:
        dtype, width, optional, params = every[name]
        factors, options = arguments(dtype, 2, 1024, 1024, 4, 2, width, optional)
        for one in scheduled(both_ops(options, params), *factors, *options.values(), arch=arch):
            if one.rule in ("attention", "block"):
                text = one.source(targets.resolve({"kind": "cuda", "arch": arch}))
                sources[name, one.rule, len(sources)] = text
    assert len(sources) == 3 * len(cases)
    for case, found in zip(sources, resources(list(sources.values()), arch, tmp_path), strict=True):
        for used in found:
            assert (used.spilled_bytes, used.stack_bytes) == (0, 0), case
