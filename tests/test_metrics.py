"""Metrics against their definitions in NumPy and against PyTorch-like formulas, inside and outside ``jit``."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, metrics
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.metrics import Mean

SEEDS = st.integers(0, 2**32 - 1)


def example(seed, shape=(23,), classes=4):
    """Scores with many ties, labels, and a mask."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (*shape, classes)).astype("float32")
    return scores, rng.integers(0, classes, shape), rng.random(shape) < 0.7


# Compiled once, for all examples.
COMPILED = {
    name: tvmfun.jit(getattr(metrics, name))
    for name in ("accuracy", "correct", "perplexity", "mean_squared_error", "mean_absolute_error", "roc_auc")
}
top_2 = tvmfun.jit(lambda scores, labels, where: metrics.top_k_accuracy(scores, labels, 2, where))
confusion = tvmfun.jit(lambda guesses, labels, where: metrics.confusion_matrix(guesses, labels, 4, where))


# -- classes ---


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_accuracies(seed):
    scores, labels, where = example(seed)
    # A stable sort of the negative scores puts the lower of two equal classes first, as argmax and top_k do.
    order = np.argsort(-scores, axis=-1, kind="stable")
    right = order == labels[:, None]
    np.testing.assert_array_equal(COMPILED["correct"](scores, labels), right[:, 0])
    np.testing.assert_allclose(COMPILED["accuracy"](scores, labels, where), right[where, 0].mean(), rtol=1e-6)
    np.testing.assert_allclose(top_2(scores, labels, where), right[where, :2].any(-1).mean(), rtol=1e-6)
    np.testing.assert_array_equal(right[:, 0], np.argmax(scores, -1) == labels)


@pytest.mark.slow
def test_accuracies_at_the_edges():
    scores, labels, _ = example(0, (2, 5))
    assert float(metrics.top_k_accuracy(scores, labels, 4)) == 1.0
    assert float(metrics.top_k_accuracy(scores, labels, 9)) == 1.0
    assert metrics.correct(scores, labels).shape == (2, 5)
    strange = np.asarray([[np.nan, 1, 0], [np.nan, 1, 0], [-np.inf, -np.inf, -np.inf], [0, 0, 0], [0, 0, 0]], "float32")
    labels = np.asarray([1, 0, 0, -1, 3])
    assert metrics.correct(strange, labels).tolist() == [False, False, True, False, False]
    assert metrics.correct(strange, labels, 3).tolist() == [True, False, True, False, False]
    assert np.isnan(metrics.accuracy(np.zeros((0, 3), "float32"), np.zeros(0, int)))


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_the_confusion_matrix_and_what_is_made_of_it(seed):
    scores, labels, where = example(seed)
    guesses = scores.argmax(-1)
    expected = np.zeros((4, 4), int)
    np.add.at(expected, (labels[where], guesses[where]), 1)
    matrix = confusion(guesses, labels, where)
    np.testing.assert_array_equal(matrix, expected)
    for k in range(4):
        hits = np.sum(where & (guesses == k) & (labels == k))
        taken, there = np.sum(where & (guesses == k)), np.sum(where & (labels == k))
        np.testing.assert_allclose(metrics.precision(matrix)[k], hits / taken if taken else 0, rtol=1e-6)
        np.testing.assert_allclose(metrics.recall(matrix)[k], hits / there if there else 0, rtol=1e-6)
        p, r = hits / max(taken, 1), hits / max(there, 1)
        np.testing.assert_allclose(metrics.f1_score(matrix)[k], 2 * p * r / (p + r) if hits else 0, rtol=1e-6)


@pytest.mark.slow
def test_what_is_no_class_is_left_out_of_the_confusion_matrix():
    guesses = np.asarray([0, 1, -1, 2, 1, 5], "int64")
    labels = np.asarray([0, -1, 0, 1, 2, 2**40], "int64")
    assert metrics.confusion_matrix(guesses, labels, 2).tolist() == [[1, 0], [0, 0]]
    assert metrics.confusion_matrix(guesses.astype("uint8"), labels.astype("int8"), 3).sum() == 3
    assert metrics.confusion_matrix(guesses.astype("uint8"), labels.astype("int8"), 300).sum() == 5
    np.testing.assert_array_equal(metrics.confusion_matrix(np.zeros(0, int), np.zeros(0, int), 2), np.zeros((2, 2)))


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.sampled_from([2, 50]))
def test_roc_auc_is_the_share_of_ordered_pairs(seed, values):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(-values, values, 23).astype("float32") / 7, rng.random(23) < 0.4
    where = rng.random(23) < 0.8
    high, low = scores[labels & where], scores[~labels & where]
    pairs = np.sign(high[:, None] - low[None]) / 2 + 0.5
    expected = pairs.mean() if pairs.size else np.nan
    np.testing.assert_allclose(COMPILED["roc_auc"](scores, labels, where), expected, rtol=1e-6)


@pytest.mark.slow
def test_roc_auc_at_the_edges():
    scores = np.linspace(0, 1, 2000, dtype="float32")
    # More pairs than float32 and int32 can count.
    many = np.tile(scores, 60)
    labels = np.arange(len(many)) % 2
    high, low = (np.sort(many[labels == k].astype("float64")) for k in (1, 0))
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    np.testing.assert_allclose(
        metrics.roc_auc(many, labels), below.sum() / 2 / len(high) / len(low), rtol=1e-7, atol=6e-8
    )
    assert float(metrics.roc_auc(np.asarray([0.0, -0.0], "float32"), [1, 0])) == 0.5
    assert float(metrics.roc_auc(np.asarray([-np.inf, np.inf, 3], "float32"), [0, 1, 0])) == 1.0
    assert np.isnan(metrics.roc_auc(scores[:3], [1, 1, 1]))
    assert np.isnan(metrics.roc_auc(np.asarray([1, np.nan, 2], "float32"), [1, 0, 0]))
    counted = metrics.roc_auc(np.asarray([1, np.nan, 2], "float32"), [1, 0, 0], where=[True, False, True])
    assert float(counted) == 0.0
    assert np.isnan(metrics.roc_auc(np.zeros(0, "float32"), np.zeros(0, bool)))


# -- numbers ---


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_perplexity_and_errors(seed):
    scores, labels, where = example(seed)
    chosen = np.take_along_axis(np.asarray(jax.nn.log_softmax(scores)), labels[:, None], -1)[:, 0]
    np.testing.assert_allclose(COMPILED["perplexity"](scores, labels, where), np.exp(-chosen[where].mean()), rtol=1e-5)
    targets = scores[::-1].copy()
    for name, formula in (("mean_squared_error", np.square), ("mean_absolute_error", np.abs)):
        np.testing.assert_allclose(COMPILED[name](scores, targets), formula(scores - targets).mean(), rtol=1e-5)
        result = COMPILED[name](scores, targets, where[:, None])
        np.testing.assert_allclose(result, formula(scores - targets)[where].mean(), rtol=1e-5)


def test_a_label_that_is_masked_need_be_no_class():
    scores, labels = np.zeros((3, 4), "float32"), np.asarray([1, -100, 2])
    assert float(metrics.perplexity(scores, labels, where=labels >= 0)) == pytest.approx(4.0)


# -- the running mean ---


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), SEEDS)
def test_a_mean_of_unequal_batches_is_that_of_all_values(sizes, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=size).astype("float32") for size in sizes]
    masks = [rng.random(size) < 0.6 for size in sizes]
    mean, masked = Mean.init(), Mean.init()
    for part, mask in zip(parts, masks, strict=True):
        mean, masked = mean.add(part), masked.add(part, where=mask)
    values, chosen = np.concatenate(parts), np.concatenate(masks)
    for got, expected in ((mean, values), (masked, values[chosen])):
        assert int(got.count) == len(expected)
        if len(expected):
            np.testing.assert_allclose(got.result(), expected.mean(dtype="float64"), rtol=1e-6, atol=1e-7)
        else:
            assert np.isnan(got.result())


def test_a_mean_goes_through_jit_and_scan():
    values = np.arange(12, dtype="float32").reshape(4, 3)
    run = tvmfun.jit(lambda x: lax.scan(lambda mean, row: (mean.add(row), None), Mean.init(), x)[0])
    mean = run(values)
    assert isinstance(mean, Mean) and (float(mean.result()), int(mean.count)) == (5.5, 12)
    assert (mean.total.dtype, mean.count.dtype, mean.result().dtype) == ("float64", "int64", "float32")


def test_a_mean_of_many_values_is_exact():
    mean = Mean(tnp.asarray(np.float64(2**40)), tnp.asarray(np.int64(2**40 - 1)))
    mean = mean.add(np.ones(1, "float32"))
    assert (float(mean.total), int(mean.count)) == (2**40 + 1, 2**40)
    assert float(Mean.init().add([[True, False], [True, True]]).result()) == 0.75
    mean = Mean.init().add(np.asarray([[1.0, 2.0], [3.0, 4.0]]), where=[[True], [False]])
    assert float(mean.result()) == 1.5


# -- arguments that make no sense ---


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: metrics.accuracy(np.zeros((2, 3), int), [0, 1]), DtypeError, r"\[correct\] the logits must be floats"),
        (lambda: metrics.accuracy(np.zeros((2, 3)), [0.0, 1.0]), DtypeError, "the labels must be integers"),
        (lambda: metrics.accuracy(np.zeros((2, 3)), [0]), ShapeError, r"an axis of classes, got \(2, 3\) and \(1,\)"),
        (lambda: metrics.accuracy(np.float32(1), 0), ShapeError, "an axis of classes"),
        (
            lambda: metrics.top_k_accuracy(np.zeros((1, 3)), [0], 0),
            ArgumentError,
            "k must be a positive integer, got 0",
        ),
        (lambda: metrics.confusion_matrix([0], [0, 1], 2), ShapeError, r"one shape, got \(1,\) and \(2,\)"),
        (lambda: metrics.confusion_matrix([0], [0], -1), ArgumentError, "number of classes must be .*, got -1"),
        (lambda: metrics.confusion_matrix([0.5], [0], 2), DtypeError, "the predictions must be integers"),
        (lambda: metrics.precision(np.zeros((2, 3))), ShapeError, r"\[precision\] .* square, got \(2, 3\)"),
        (lambda: metrics.roc_auc([0.5], [[1]]), ShapeError, r"one shape"),
        (lambda: metrics.roc_auc([[0.5]], [[1]]), ShapeError, r"the scores must have one axis, got \(1, 1\)"),
        (lambda: metrics.roc_auc([1], [1]), DtypeError, "the scores must be floats"),
        (lambda: metrics.mean_squared_error(np.zeros(3), np.zeros((3, 1))), ShapeError, "must have one shape"),
        (lambda: metrics.mean_absolute_error(np.zeros(3, int), np.zeros(3)), DtypeError, "must be floats"),
    ],
)
def test_arguments_that_make_no_sense(call, error, message):
    with pytest.raises(error, match=message):
        call()
