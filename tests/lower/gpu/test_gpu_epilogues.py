"""Products of GPUs that store several results: what is computed from their sums, and updates written over inputs."""

import numpy as np
import pytest
from support.emulated_products import check, emulate, needs_gxx, needs_nvcc, product_of, resources, scheduled

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn
from tvmfun.core.inline import inlined
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.schedule.gpu import tiles


def random(*shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def feed(x, w, b, v):
    return nn.functional.gelu(x @ w + b) @ v


def gradients(x, w, b, v, g):
    y, pull = tvmfun.vjp(feed, x, w, b, v)
    return y, *pull(g)


def arguments(rows=40, width=24, inner=48):
    return [random(*shape) for shape in ((rows, width), (width, inner), (inner,), (inner, width), (rows, width))]


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(40, 24, 48), (37, 17, 29), (1, 24, 48), (33, 24, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_and_their_derivatives_are_epilogues(dtype, sizes):
    run = gradients if dtype == "float32" else tvmfun.amp(gradients, dtype)
    rules = check(run, *arguments(*sizes), orders=1, tolerance=2e-5 if dtype == "float32" else 3e-2)
    if 1 not in sizes:
        # Forward two, backward four, one of which sums the bias' gradient; the others convert factors.
        assert rules.count("product") == 6
        assert set(rules) <= {"product"} if dtype == "float32" else rules.count("elementwise") == len(rules) - 6 <= 5


@pytest.mark.slow
def test_no_function_of_a_product_is_stored_twice():
    """The derivative computes tanh again: reading it would cost more than computing it."""
    target = targets.resolve({"kind": "cuda", "arch": "sm_90a"})
    types = [ShapeDtype(x.shape, x.dtype) for x in arguments(256, 64, 512)]
    program = inlined(tvmfun.trace(tvmfun.amp(gradients))(*types), "cuda")
    kernels = [kernel for kernel, _ in pipeline.fused_kernels(program, target)]
    first = next(one for one in kernels if any(equation.op.kind == "contraction" for equation in one.equations))
    # The rounded sums, which the derivative reads, and the activations, which the second product reads.
    assert [str(out.aval.dtype) for out in first.outputs] == ["bfloat16", "bfloat16"]


@needs_gxx
@pytest.mark.slow
def test_second_derivatives_of_epilogues():
    x, w, b, v, g = arguments(9, 8, 12)
    loss = lambda w: tnp.sum(tnp.sin(feed(x, w, b, v)) * g)
    check(lambda w, t: tvmfun.jvp(tvmfun.grad(loss), (w,), (t,)), w, random(8, 12, seed=5), orders=1, tolerance=1e-4)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_pass_through_epilogues(special):
    x, w, b, *_ = arguments()
    x[3, 2], b[5] = special, special
    layer = lambda x, w, b: (nn.functional.gelu(x @ w + b), tnp.where(x @ w > 0, x @ w, -1.0))
    results, _ = emulate(layer, x, w, b, orders=1)
    for ours, theirs in zip(results, tvmfun.jit(layer)(x, w, b), strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=2e-5, atol=2e-5)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
def test_partial_sums_with_several_results(splits, monkeypatch):
    tile = tiles.shapes("float32", "sm_80")[-1]
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, splits))

    def layer(x, w):
        y = x @ w
        return y, tnp.tanh(y) * 2, y > 0, y.astype("bfloat16")

    check(layer, random(37, 400), random(400, 44), orders=1)


def bias_gradient(g, w, h):
    """The cotangent of a rectified layer, and its sums over the examples."""
    back = tnp.where(h > 0, g @ w.T, 0)
    return back, tnp.sum(back, tuple(range(back.ndim - 1)))


def bias_arguments(*rows, inner=72, width=24):
    return random(*rows, width), random(inner, width), random(*rows, inner, seed=1)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("rows", [(300,), (3, 37), (2, 128), (1,), (129,)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_of_columns_are_part_of_products(dtype, rows, arch):
    run = bias_gradient if dtype == "float32" else tvmfun.amp(bias_gradient, dtype)
    tolerance = 2e-5 if dtype == "float32" else 3e-2
    rules = check(run, *bias_arguments(*rows), arch=arch, orders=1, tolerance=tolerance)
    assert "columns" not in rules or rows == (1,)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("tile", range(0, 12, 3))
def test_sums_of_columns_of_other_tiles(tile, monkeypatch):
    tile = tiles.shapes("tf32", "sm_80")[tile]
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, 1))
    run = tvmfun.amp(bias_gradient, "tensorfloat32")
    arrays = bias_arguments(tile.rows + 5, inner=tile.columns + 3)
    check(run, *arrays, orders=1, tolerance=4e-3)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("rows", [40, 37])
def test_sums_of_columns_of_partial_sums(rows, monkeypatch):
    tile = tiles.shapes("float32", "sm_80")[-1]
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, 3))
    check(bias_gradient, *bias_arguments(rows, inner=44, width=300), orders=1)


def convolution_statistics(x, w, s):
    """A convolution with its batch statistics, and the gradients."""

    def normalized(x, w, s):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean = tnp.mean(y, (0, 1, 2))
        centred = y - mean
        return nn.functional.relu(centred * lax.rsqrt(tnp.mean(centred**2, (0, 1, 2)) + 1e-3) * s), mean

    (y, mean), pull = tvmfun.vjp(normalized, x, w, s)
    return y, mean, *pull((tnp.sin(y), mean))


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_statistics_are_sums_of_convolutions(dtype):
    run = convolution_statistics if dtype == "float32" else tvmfun.amp(convolution_statistics, dtype)
    arrays = random(2, 9, 7, 8), random(3, 3, 8, 20), random(20)
    rules = check(run, *arrays, orders=1, tolerance=2e-4 if dtype == "float32" else 6e-2)
    assert rules.count("product") == 3


@needs_gxx
@pytest.mark.slow
def test_sums_of_columns_in_programs():
    g, w, h = bias_arguments(40)
    arrays = np.stack([g, g]), w, np.stack([h, -h])
    check(tvmfun.vmap(bias_gradient, in_axes=(0, None, 0)), *arrays, orders=1)
    check(bias_gradient, g[:0], w, h[:0], orders=1)
    # Both sums of one product, and one of a sum that is read again.
    twice = lambda g, w: (tnp.sum(g @ w.T, 0), tnp.sum(tnp.abs(g @ w.T), 0))
    check(twice, g, w, orders=1, tolerance=1e-4)
    check(lambda g, w: g @ w.T - tnp.sum(g @ w.T, 0) / len(g), g, w, orders=1, tolerance=1e-4)
    g[7, 3], h[7] = np.nan, 1
    results, _ = emulate(bias_gradient, g, w, h, orders=1)
    assert np.isnan(results[1]).all() and np.isnan(results[0]).sum() == w.shape[0]


def adam(x, g, w, m, v):
    """The update of a weight by Adam, whose gradient is a product."""
    grad = x.T @ g
    m, v = 0.9 * m + 0.1 * grad, 0.99 * v + 0.01 * grad**2
    return w - 0.1 * m / (tnp.sqrt(v) + 1e-6), m, v


def adam_arguments(rows=72, inputs=40, outputs=24):
    weights = [random(inputs, outputs, seed=i) for i in range(3)]
    return [random(rows, inputs), random(rows, outputs), *weights[:2], np.abs(weights[2])]


@pytest.mark.slow
def test_an_update_is_written_over_the_state_by_the_product():
    target = targets.resolve({"kind": "cuda", "arch": "sm_90a"})
    types = [ShapeDtype(x.shape, x.dtype) for x in adam_arguments()]
    program = inlined(tvmfun.trace(adam)(*types), "cuda")
    ((kernel, in_place),) = [pair for pair in pipeline.fused_kernels(program, target, (2, 3, 4)) if not pair[0].is_view]
    function = kernel_cache.scheduled(kernel, target, in_place)
    assert function is not None and len(in_place) == 3 and function.attrs["tvmfun.rule"] == "product"
    assert len(function.params) == 5  # results have no memory of their own


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_epilogues_spill_no_registers(arch, tmp_path):
    target = targets.resolve({"kind": "cuda", "arch": arch})
    sources = [
        one.source(target)
        for precision in ("tensorfloat32", "bfloat16")
        for one in scheduled(tvmfun.amp(gradients, precision), *arguments(512, 256, 512), arch=arch)
        if one.rule == "product"
    ]
    _, source = product_of(adam, *adam_arguments(512, 256, 384), arch=arch)
    for kernels in resources([*sources, source], arch, tmp_path):
        assert all(used.spilled_bytes == 0 for used in kernels)


@pytest.mark.slow
def test_the_gradient_of_a_cross_entropy_reads_logits_once():
    """A sum of the gradient's columns, for a bias, reads the gradient, which products read in half precision, too."""

    def loss(w, b, x, y):
        logits = x @ w + b
        return tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(logits, y))

    target = targets.resolve({"kind": "cuda", "arch": "sm_90a"})
    rows, width, words = 512, 64, 20_000
    types = [ShapeDtype(shape, "float32") for shape in ((width, words), (words,), (rows, width))]
    step = tvmfun.grad(tvmfun.amp(loss), (0, 1, 2))
    program = inlined(tvmfun.trace(step)(*types, ShapeDtype((rows,), "int32")), "cuda")
    kernels = [kernel for kernel, _ in pipeline.fused_kernels(program, target) if not kernel.is_view]
    logits = next(out for kernel in kernels for out in kernel.outputs if out.aval.shape == (rows, words))
    readers = [kernel for kernel in kernels if logits in kernel.inputs]
    # The loss is made of a scalar per row, which it looks up.
    (reader,) = (kernel for kernel in readers if any(out.aval.shape == (rows, words) for out in kernel.outputs))
    assert len(readers) <= 2
    (gradient,) = (out for out in reader.outputs if out.aval.shape == (rows, words))
    assert str(logits.aval.dtype) == str(gradient.aval.dtype) == "bfloat16"
    assert any(gradient in kernel.inputs for kernel in kernels if kernel.outputs[0].aval.shape == (words,))
