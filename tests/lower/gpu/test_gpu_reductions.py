"""Reductions and normalizations scheduled for a GPU, executed on the CPU."""

from itertools import product

import numpy as np
import pytest
from support.emulated_products import scheduled
from support.serial_gpu import check, run, values

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, nn

OURS = {"elementwise", "rows", "columns"}


def works_in_parallel(outcome, at_least=1):
    """Asserts that no schedule of TVM was used, and no thread works alone on more than a few elements."""
    assert set(outcome.rules) <= OURS
    assert all(launch.times == 1 and launch.threads > at_least for ls in outcome.launches for launch in ls)


SHAPES = {
    "row": ((1000,), 0),
    "wide": ((3, 30522), 1),
    "short": ((33, 5), 1),
    "warp": ((100, 32), 1),
    "uneven": ((65, 1025), 1),
    "columns": ((1025, 33), 0),
    "middle": ((7, 100, 31), 1),
    "both": ((9, 31, 33), (0, 1)),
    "ends": ((40, 5, 65), (0, 2)),
    "all": ((300, 1000), (0, 1)),
    "one": ((31, 1), 1),
    "none": ((0, 31), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *product(("float32", "bfloat16", "bool"), SHAPES),
        *product(("float16", "int32", "float64"), ("wide", "columns", "middle", "all")),
    ],
)
def test_reductions(dtype, shape):
    shape, axis = SHAPES[shape]

    def function(x):
        if dtype == "bool":
            return tnp.any(x, axis), tnp.all(x, axis), tnp.sum(x, axis)
        return tnp.sum(x, axis), tnp.max(x, axis), tnp.min(x, axis) * 2, tnp.mean(tnp.abs(x), axis)

    # Sums of half precision would differ in their last digit by the order of the terms, which is larger than theirs.
    x = values(shape, dtype)
    x = x if dtype in ("bool", "int32") else np.round(x)
    works_in_parallel(check(function, x), at_least=0 if 1 in shape else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *product(("float32", "bfloat16", "uint8"), ("row", "wide", "short", "uneven", "columns", "middle", "one")),
        *product(("float16", "int32", "bool"), ("short", "uneven", "columns")),
    ],
)
def test_positions_of_extrema(dtype, shape):
    shape, axis = SHAPES[shape]
    x = values(shape, dtype)
    if dtype not in ("bool", "uint8"):
        x = (x.astype("float32") // 2).astype(x.dtype)  # many equal ones: the first counts
    outcome = check(lambda x: (tnp.argmax(x, axis), tnp.argmin(x, axis) + 1), x)
    works_in_parallel(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinities(axis):
    x = values((70, 65), "float32")
    x[3, 7], x[5, 64], x[5, 65 - 2], x[9] = np.nan, np.nan, np.inf, -np.inf
    x[20] = np.nan
    function = lambda x: (
        tnp.max(x, axis),
        tnp.min(x, axis),
        tnp.argmax(x, axis),
        tnp.argmin(x, axis),
        nn.functional.softmax(x, axis),
        tnp.sum(x, axis),
    )
    outcome = check(function, x)
    np.testing.assert_array_equal(outcome.results[0], np.max(x, axis))
    np.testing.assert_array_equal(outcome.results[2], np.argmax(x, axis))


def layer_norm(x, scale, shift):
    centered = x - tnp.mean(x, axis=-1, keepdims=True)
    return centered / tnp.sqrt(tnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5) * scale + shift


@pytest.mark.quick("65")
@pytest.mark.parametrize("length", [10, 65, 1000, 5000])
def test_a_softmax_is_one_launch(length):
    for function in (nn.functional.softmax, nn.functional.log_softmax):
        outcome = check(function, values((128, length), "float32"))
        assert [len(launches) for launches in outcome.launches] == [1]
        works_in_parallel(outcome)


def log_probabilities(x, bias, labels, keep):
    """The logarithm of the sum of exponentials of each row, and the cotangent of a cross-entropy."""
    x = tnp.astype(x, "float32") + bias
    top = tnp.max(x, axis=1, keepdims=True)
    exponentials = tnp.exp(x - top)
    total = tnp.sum(exponentials, axis=1, keepdims=True)
    hot = tnp.arange(x.shape[1]) == labels[:, None]
    slope = tnp.where(keep[:, None], exponentials / total - hot, 0.0)
    return tnp.log(total), tnp.astype(slope, "bfloat16")


# Rows in registers; in shared memory, those of two blocks or of one; with a remainder; and longer than that memory.
@pytest.mark.quick("bfloat16-20008")
@pytest.mark.parametrize(
    ("dtype", "length"),
    [
        *(("bfloat16", length) for length in (1032, 20008, 33333, 115720)),
        *(("float32", length) for length in (4096, 20008, 30008, 57864)),
    ],
)
def test_long_rows_are_read_once(dtype, length):
    x, bias = values((128, length), dtype), values((length,), "float32")
    labels, keep = np.linspace(0, length - 1, 128).astype("int32"), values((128,), "bool")
    works_in_parallel(check(log_probabilities, x, bias, labels, keep))
    # Rows that registers do not hold are in shared memory, if they fit and vectors have no remainder.
    (kernel,) = (
        one for one in scheduled(log_probabilities, x, bias, labels, keep, arch="sm_90a") if "max" in one.kernel.name
    )
    nbytes = length * (2 if dtype == "bfloat16" else 4)
    is_long = length > 32 * 512 and length % 8 == 0 and nbytes <= 226 << 10
    assert ("shared.dyn" in kernel.function.script()) == is_long


@pytest.mark.quick("float32-1000x96")
@pytest.mark.parametrize("shape", [(1000, 96), (37, 64), (8, 33, 40), (4096, 6), (300, 7), (64, 1, 8)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_sums_of_columns_in_vectors(dtype, shape):
    x, y = values(shape, dtype), values(shape[-1:], dtype)
    scale, keep = values((*shape[:-1], 1), "float32"), values((*shape[:-1], 1), "bool")
    axes = tuple(range(len(shape) - 1))

    def function(x, y, scale, keep):
        wide = tnp.astype(x, "float32") * scale + y
        return tnp.sum(tnp.where(keep, tnp.tanh(wide), 1.0), axes), tnp.max(x, axes)

    works_in_parallel(check(function, x, y, scale, keep), at_least=0)


@pytest.mark.quick("16")
@pytest.mark.parametrize("before", [1, 16])
def test_what_a_condition_rules_out_is_not_read(before):
    x, y = values((5, 64), "float32"), values((5, 32), "float32")
    joined = lambda x, y: tnp.concat([tnp.pad(x, ((0, 0), (before, 0))), y], axis=1)

    def function(x, y):
        z = joined(x, y)
        return tnp.sum(tnp.square(z), axis=1), z - tnp.max(z, axis=1, keepdims=True)

    works_in_parallel(check(function, x, y))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_normalizations_and_their_gradients(dtype):
    x, cotangent = values((2, 100, 192), dtype), values((2, 100, 192), dtype, 1)
    scale, shift = values((192,), dtype, 2), values((192,), dtype, 3)
    outcome = check(layer_norm, x, scale, shift)
    assert [len(launches) for launches in outcome.launches] == [1]
    if dtype != "bfloat16":  # which rounds intermediates elsewhere
        loss = lambda x, scale, shift: tnp.sum(layer_norm(x, scale, shift) * cotangent)
        works_in_parallel(check(tvmfun.grad(loss, argnums=(0, 1, 2)), x, scale, shift))
        loss = lambda x: tnp.sum(nn.functional.softmax(x) * cotangent)
        works_in_parallel(check(tvmfun.grad(loss), x))


def cross_entropy(logits, labels):
    return -tnp.mean(tnp.take_along_axis(nn.functional.log_softmax(logits), labels[:, None], axis=1))


@pytest.mark.quick("64-10")
@pytest.mark.parametrize(("rows", "classes"), [(64, 10), (100, 1000), (16, 30522), (2000, 3)])
def test_cross_entropy_and_its_gradient(rows, classes):
    labels = np.random.default_rng(0).integers(0, classes, rows).astype("int32")
    outcome = check(tvmfun.value_and_grad(cross_entropy), values((rows, classes), "float32"), labels)
    works_in_parallel(outcome)


@pytest.mark.slow
def test_gradients_of_extrema():
    x = np.round(values((65, 130), "float32") * 2)
    for axis in (0, 1):
        loss = lambda x, axis=axis: tnp.sum(tnp.max(x, axis) ** 2 + tnp.sum(tnp.min(x, axis)))
        works_in_parallel(check(tvmfun.grad(loss), x))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 5, 300])
def test_dynamic_sizes(size):
    spec = lambda *shape: ShapeDtype(shape, "float32")
    x = values((size, 64), "float32")
    functions = [
        lambda x: tnp.sum(x, axis=1),
        lambda x: tnp.sum(x, axis=0),
        lambda x: tnp.mean(x**2),
        lambda x: nn.functional.softmax(x),
        lambda x: nn.functional.softmax(x, axis=0),
        lambda x: (tnp.argmax(x, axis=0), tnp.argmax(x, axis=1)),
    ]
    for function in functions:
        works_in_parallel(check(function, x, specs=[spec("b", 64)]), at_least=0)


def test_a_mean_of_many_elements_takes_two_launches():
    outcome = check(lambda x: tnp.mean(x**2), values((300, 1025), "float32"))
    (launches,) = outcome.launches
    assert [launch.times for launch in launches] == [1, 1]
    assert launches[0].blocks > 100 and launches[1].blocks == 1 and launches[1].threads >= 32


@pytest.mark.slow
def test_sums_without_elements():
    for shape, axis in (((0, 5), 0), ((5, 0), 1), ((0,), 0), ((3, 0, 4), (1, 2))):
        outcome = run(lambda x, axis=axis: tnp.sum(x, axis) + 1, values(shape, "float32"))
        np.testing.assert_array_equal(outcome.results[0], np.sum(values(shape, "float32"), axis) + 1)


@pytest.mark.slow
def test_windows():
    x = values((2, 17, 18, 5), "float32")
    pools = lambda x: (
        nn.functional.max_pool(x, (2, 2)),
        nn.functional.avg_pool(x, (3, 3), stride=(2, 2)),
    )
    works_in_parallel(check(pools, x))
    works_in_parallel(check(tvmfun.grad(lambda x: sum(tnp.sum(y**2) for y in pools(x))), x))
