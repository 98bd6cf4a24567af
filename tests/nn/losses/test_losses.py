"""Losses against optax: values, gradients and second derivatives, in both precisions, and at the edges."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.nn import losses
from tvmfun.nn.functional import logsumexp

TOLERANCE = {"float32": 2e-6, "float64": 1e-13}
RNG = np.random.default_rng(0)

# Names of optax.losses that are missing here, and why.
LEFT_OUT = {"convex_kl_divergence": "the old name of generalized_kl_divergence"}
OURS_ALONE = {"cross_entropy", "mse_loss", "nll_loss"}


def rows(*shape):
    return RNG.normal(size=shape)


def probabilities(*shape):
    raw = RNG.random(shape)
    return raw / raw.sum(-1, keepdims=True)


X, Y = 3 * rows(4, 5), rows(4, 5)
P, Q = probabilities(4, 5), probabilities(4, 5)
SIGNS = np.sign(Y)
BITS = np.asarray(Y > 0, "float64")
CLASSES = np.asarray([0, 4, 2, 2], "int32")
MASK = np.asarray([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 0]], bool)
NOTHING = np.asarray([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 0]], bool)
IMPOSSIBLE = np.where(MASK, X, -np.inf)
HARD = np.eye(5)[[0, 0, 3, 2]]
LARGE = np.asarray([[-1e4, -50.0, 0.0, 50.0, 1e4]] * 2)
LARGE_BITS = np.asarray([[0.0] * 5, [1.0] * 5])
IMAGES, MASKS = rows(2, 3, 4, 3), np.eye(3)[RNG.integers(0, 3, (2, 3, 4))]
CTC_LABELS = np.asarray([[1, 1, 2], [3, 0, 0], [2, 3, 2]], "int32")
CTC = (
    rows(3, 7, 4),
    np.asarray([[0] * 7, [0] * 4 + [1] * 3, [0] * 7], "float64"),
    CTC_LABELS,
    np.asarray([[0, 0, 0], [0, 1, 1], [0, 0, 0]], "float64"),
)

# A name of optax, its arguments, its keywords, and which arguments to differentiate.
CASES = [
    ("squared_error", (X, Y), {}, (0, 1)),
    ("squared_error", (X,), {}, (0,)),
    ("l2_loss", (X, Y), {}, (0, 1)),
    ("l2_loss", (rows(0, 3),), {}, (0,)),
    ("huber_loss", (X, Y), {}, (0, 1)),
    ("huber_loss", (np.asarray([-2.0, -0.5, 0.0, 0.5, 1e30]),), {"delta": 0.5}, (0,)),
    ("log_cosh", (X, Y), {}, (0, 1)),
    ("log_cosh", (LARGE,), {}, (0,)),
    ("cosine_similarity", (X, Y), {}, (0, 1)),
    ("cosine_similarity", (X, Y), {"axis": 0, "where": MASK, "epsilon": 1e-3}, (0, 1)),
    ("cosine_similarity", (np.zeros((2, 3)), rows(2, 3)), {"epsilon": 1e-3}, (0, 1)),
    ("cosine_distance", (X[:, None], Y[None]), {"axis": None}, (0, 1)),
    ("sigmoid_binary_cross_entropy", (X, BITS), {}, (0, 1)),
    ("sigmoid_binary_cross_entropy", (LARGE, LARGE_BITS), {}, (0,)),
    ("sigmoid_binary_cross_entropy", (X, MASK), {}, (0,)),
    ("sigmoid_focal_loss", (X, BITS), {}, (0,)),
    ("sigmoid_focal_loss", (X, P), {"alpha": 0.3, "gamma": 1.5}, (0, 1)),
    ("sigmoid_focal_loss", (LARGE / 100, LARGE_BITS), {"gamma": 0.1}, (0,)),
    ("hinge_loss", (X, SIGNS), {}, (0,)),
    ("perceptron_loss", (X, SIGNS), {}, (0, 1)),
    ("sparsemax_loss", (X, MASK), {}, (0,)),
    ("sparsemax_loss", (LARGE, np.asarray(LARGE_BITS, "int32")), {}, (0,)),
    ("multiclass_hinge_loss", (X, CLASSES), {}, (0,)),
    ("multiclass_hinge_loss", (X, np.asarray([-1, 0, 7, 1])), {}, (0,)),
    ("multiclass_perceptron_loss", (X, CLASSES), {}, (0,)),
    ("multiclass_perceptron_loss", (np.zeros((2, 3)), np.asarray([0, 2])), {}, (0,)),
    ("multiclass_sparsemax_loss", (X, CLASSES), {}, (0,)),
    ("multiclass_sparsemax_loss", (X / 10, CLASSES), {}, (0,)),
    ("smooth_labels", (HARD, 0.1), {}, (0, 1)),
    ("smooth_labels", (HARD, 0.1), {"where": MASK}, (0, 1)),
    ("smooth_labels", (HARD, 0.1), {"axis": None}, (0,)),
    ("softmax_cross_entropy", (X, P), {}, (0, 1)),
    ("softmax_cross_entropy", (X, P), {"axis": (0, 1)}, (0, 1)),
    ("softmax_cross_entropy", (X, P), {"axis": 0, "where": MASK}, (0,)),
    ("softmax_cross_entropy", (IMPOSSIBLE, P), {"where": MASK}, (0,)),
    ("softmax_cross_entropy", (rows(2, 3, 4), probabilities(2, 3, 4)), {"where": np.eye(2, 3) > 0, "axis": 2}, (0,)),
    ("softmax_cross_entropy", (LARGE, LARGE_BITS), {}, (0,)),
    ("safe_softmax_cross_entropy", (X, P), {}, (0, 1)),
    ("safe_softmax_cross_entropy", (IMPOSSIBLE, P * MASK), {}, (0,)),
    ("softmax_cross_entropy_with_integer_labels", (X, CLASSES), {}, (0,)),
    ("softmax_cross_entropy_with_integer_labels", (X, np.asarray([-1, 5, 2, -7], "int8")), {}, (0,)),
    ("softmax_cross_entropy_with_integer_labels", (X, np.asarray([3, 0, 0, 1, 2], "int64")), {"axis": 0}, (0,)),
    ("softmax_cross_entropy_with_integer_labels", (rows(2, 3, 4), np.asarray([1, 7, 2])), {"axis": (0, -1)}, (0,)),
    ("softmax_cross_entropy_with_integer_labels", (IMPOSSIBLE, np.asarray([0, 0, 3, 2])), {}, (0,)),
    ("softmax_cross_entropy_with_integer_labels", (X, np.asarray([0, 0, 3, 2])), {"where": MASK}, (0,)),
    ("softmax_cross_entropy_with_integer_labels", (rows(0, 5), np.zeros(0, "int32")), {}, (0,)),
    ("poly_loss_cross_entropy", (X, P), {}, (0, 1)),
    ("poly_loss_cross_entropy", (X, P), {"epsilon": -0.5, "axis": 0, "where": MASK}, (0, 1)),
    ("kl_divergence", (np.log(P), Q), {}, (0, 1)),
    ("kl_divergence", (np.log(P), HARD), {"where": MASK}, (0,)),
    ("kl_divergence_with_log_targets", (np.log(P), np.log(Q)), {"axis": (0, 1)}, (0, 1)),
    ("generalized_kl_divergence", (np.log(P), 2 * Q), {"axis": 0, "where": MASK}, (0, 1)),
    ("ctc_loss", CTC, {}, (0,)),
    ("ctc_loss", CTC, {"blank_id": 3, "log_epsilon": -1e4}, (0,)),
    ("ranking_softmax_loss", (X, BITS), {}, (0, 1)),
    ("ranking_softmax_loss", (X, BITS), {"where": NOTHING, "weights": P}, (0, 1)),
    ("ranking_softmax_loss", (X, BITS), {"where": MASK & False}, (1,)),
    ("ranking_softmax_loss", (X, BITS), {"where": NOTHING, "reduce_fn": None}, (1,)),
    ("ntxent", (X, CLASSES), {}, (0,)),
    ("ntxent", (X, CLASSES), {"temperature": 1.0}, (0,)),
    ("triplet_margin_loss", (X, Y, X[::-1]), {}, (0, 1, 2)),
    ("triplet_margin_loss", (X, Y, X[::-1]), {"axis": 0, "norm_degree": 4, "margin": 2.0}, (0, 1, 2)),
    ("dice_loss", (IMAGES, MASKS), {}, (0,)),
    ("dice_loss", (IMAGES[..., :1], MASKS[..., 0]), {"alpha": 0.3, "beta": 0.7}, (0,)),
    (
        "dice_loss",
        (IMAGES, MASKS),
        {"class_weights": np.asarray([1.0, 2.0, 3.0]), "reduction": "sum", "ignore_background": True},
        (0,),
    ),
    ("multiclass_generalized_dice_loss", (IMAGES, MASKS), {"smooth": 0.5}, (0,)),
    ("binary_dice_loss", (IMAGES[..., 0], MASKS[..., 0]), {}, (0,)),
    ("binary_dice_loss", (IMAGES[..., :1], MASKS[..., :1]), {"smooth": 0.5}, (0,)),
]


def cast(value, dtype):
    return value.astype(dtype) if isinstance(value, np.ndarray) and value.dtype == "float64" else value


def close(actual, expected, dtype, scale=1.0):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=scale * TOLERANCE[dtype] * largest)


def _runs():
    """Every case in float32 but the first of each name, which is in float64; a name's only case is in both."""
    names = [case[0] for case in CASES]
    for i, case in enumerate(CASES):
        first = names.index(case[0]) == i
        alone = names.count(case[0]) == 1
        for dtype in ["float64"] * first + ["float32"] * (alone or not first):
            yield pytest.param(*case, dtype, id=f"{case[0]}-{i}-{dtype}")


@pytest.mark.quick("softmax_cross_entropy-34-float32", "l2_loss-3-float32")
@pytest.mark.parametrize(("name", "arguments", "keywords", "places", "dtype"), list(_runs()))
def test_values_and_gradients_are_those_of_optax(name, arguments, keywords, places, dtype):
    arguments = [cast(np.asarray(x) if isinstance(x, float) else x, dtype) for x in arguments]
    keywords = {key: cast(value, dtype) for key, value in keywords.items()}

    def value_and_grads(loss, grad, jit, total, asarray):
        def summed(*args):
            out = loss(*args, **{k: asarray(v) if isinstance(v, np.ndarray) else v for k, v in keywords.items()})
            return total(out), out

        (_, out), grads = jit(grad(summed, places, has_aux=True))(*map(asarray, arguments))
        return out, grads

    with x64(dtype == "float64"):
        oracle = value_and_grads(getattr(optax.losses, name), jax.value_and_grad, jax.jit, jnp.sum, jnp.asarray)
    ours = value_and_grads(getattr(losses, name), tvmfun.value_and_grad, tvmfun.jit, tnp.sum, tnp.asarray)
    for actual, expected in zip(tree.leaves(ours), jax.tree.leaves(oracle), strict=True):
        close(actual, expected, dtype, scale=10)


def test_no_loss_of_optax_is_missing():
    theirs = {name for name in dir(optax.losses) if not name.startswith("_")}
    assert theirs - set(losses.__all__) == set(LEFT_OUT)
    assert set(losses.__all__) - theirs == OURS_ALONE
    for name in theirs - set(LEFT_OUT):
        ours, expected = (inspect.signature(getattr(lib, name)).parameters for lib in (losses, optax.losses))
        assert list(ours) == list(expected)
        assert [p.kind for p in ours.values()] == [p.kind for p in expected.values()]
        for ours_parameter, parameter in zip(ours.values(), expected.values(), strict=True):
            if not callable(parameter.default):
                assert ours_parameter.default == parameter.default
    tested = {case[0] for case in CASES} | {"ctc_loss_with_forward_probs", "make_fenchel_young_loss"}
    assert tested == theirs - set(LEFT_OUT)


# -- beyond the table ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_second_derivatives_at_zero():
    for name, arguments in [
        ("log_cosh", ()),
        ("sigmoid_binary_cross_entropy", (1.0,)),
        ("sigmoid_focal_loss", (1.0,)),
    ]:
        ours = tvmfun.grad(tvmfun.grad(lambda x: getattr(losses, name)(x, *map(tnp.asarray, arguments))))  # noqa: B023
        theirs = jax.grad(jax.grad(lambda x: getattr(optax.losses, name)(x, *map(jnp.asarray, arguments))))  # noqa: B023
        np.testing.assert_allclose(ours(tnp.asarray(0.0)), theirs(0.0), rtol=1e-5)


def test_masked_elements_get_no_gradient_and_spoil_none():
    logits = np.where(NOTHING, X, np.nan).astype("float32")
    labels, classes = P.astype("float32"), np.asarray([0, 0, 3, 2])
    for loss in (
        lambda x: losses.softmax_cross_entropy(x, labels, where=NOTHING),
        lambda x: losses.softmax_cross_entropy_with_integer_labels(x, classes, where=NOTHING),
        lambda x: losses.ranking_softmax_loss(x, labels, where=NOTHING, reduce_fn=None),
    ):
        grad = np.asarray(tvmfun.grad(lambda x, loss=loss: tnp.sum(loss(x)))(logits))
        clean = np.asarray(
            tvmfun.grad(lambda x, loss=loss: tnp.sum(loss(x)))(np.where(NOTHING, X, 0.0).astype("float32"))
        )
        assert not grad[~NOTHING].any() and np.isfinite(grad).all()
        np.testing.assert_array_equal(grad, clean)


@pytest.mark.slow
def test_forward_probabilities_of_ctc():
    arguments = [cast(x, "float32") for x in CTC]
    ours = losses.ctc_loss_with_forward_probs(*arguments)
    for actual, expected in zip(ours, optax.losses.ctc_loss_with_forward_probs(*arguments), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_ctc_counts_all_alignments():
    """Brute force: the probability of every path that collapses to the labels."""
    logits = rows(1, 4, 3)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for labels in ([1], [1, 2], [2, 2], [1, 2, 1]):
        total = 0.0
        for path in itertools.product(range(3), repeat=4):
            collapsed = [c for c, _ in itertools.groupby(path) if c]
            if collapsed == labels:
                total += np.exp(sum(log_probs[0, t, c] for t, c in enumerate(path)))
        loss = losses.ctc_loss(logits, np.zeros((1, 4)), np.asarray([labels]), np.zeros((1, len(labels))))
        np.testing.assert_allclose(loss[0], -np.log(total), rtol=1e-12)


@pytest.mark.slow
def test_dice_loss_of_probabilities():
    # Optax checks that they sum to one, which it cannot under jit.
    p, masks = probabilities(2, 4, 3).astype("float32"), MASKS[:, 0].astype("float32")
    keywords = {"apply_softmax": False, "reduction": "none", "axis": 1}
    expected = optax.losses.dice_loss(jnp.asarray(p), jnp.asarray(masks), **keywords)
    np.testing.assert_allclose(losses.dice_loss(p, masks, **keywords), expected, rtol=1e-6)


@pytest.mark.slow
def test_fenchel_young_of_logsumexp_is_the_cross_entropy():
    loss = losses.make_fenchel_young_loss(logsumexp)
    x, p = rows(2, 3, 5), probabilities(2, 3, 5)
    np.testing.assert_allclose(loss(x, p), losses.softmax_cross_entropy(x, p), rtol=1e-12)
    np.testing.assert_allclose(loss(x[0, 0], p[0, 0]), losses.softmax_cross_entropy(x[0, 0], p[0, 0]), rtol=1e-12)
    grad = tvmfun.grad(lambda x: tnp.sum(loss(x, p)))(x)
    np.testing.assert_allclose(grad, jax.nn.softmax(x, axis=-1) - p, atol=1e-7)


@pytest.mark.slow
def test_likelihoods_agree_with_optax():
    x = X.astype("float32")
    expected = optax.losses.softmax_cross_entropy_with_integer_labels(x, CLASSES)
    np.testing.assert_allclose(losses.cross_entropy(x, CLASSES, "none"), expected, rtol=1e-6)


@pytest.mark.slow
def test_bfloat16_stays():
    x, p = (tnp.asarray(a, "bfloat16") for a in (X, P))
    for result in (
        losses.softmax_cross_entropy(x, p),
        losses.sigmoid_focal_loss(x, p),
        losses.log_cosh(x),
        losses.huber_loss(x),
        losses.smooth_labels(p, 0.1),
    ):
        assert result.dtype == "bfloat16" and np.isfinite(np.asarray(result, "float32")).all()


ONES = np.ones((2, 3), "float32")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: losses.l2_loss(ONES, ONES[:, :1]), ShapeError, r"\[l2_loss\] the predictions and targets must have"),
        (
            lambda: losses.log_cosh(np.ones(2, int)),
            DtypeError,
            r"\[log_cosh\] the predictions must be floats, got int64",
        ),
        (
            lambda: losses.softmax_cross_entropy_with_integer_labels(ONES, ONES[:, 0]),
            DtypeError,
            "the labels must be integers, got float32",
        ),
        (lambda: losses.perceptron_loss(ONES, ONES[0]), ShapeError, r"\[perceptron_loss\]"),
        (lambda: losses.ntxent(ONES, np.zeros(3, int)), ShapeError, r"\[ntxent\] the embeddings must be"),
        (lambda: losses.dice_loss(ONES, ONES, reduction="max"), ArgumentError, "the reduction is unknown, got 'max'"),
        (lambda: losses.dice_loss(ONES, ONES, class_weights=ONES), ShapeError, "one weight for each class"),
        (
            lambda: losses.ctc_loss(ONES, ONES, np.ones((2, 1), int), ONES[:, :1]),
            ShapeError,
            r"\[ctc_loss\] the logits must be \(batch, times, classes\)",
        ),
    ],
)
def test_mistakes(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("name", ["huber_loss", "log_cosh", "l2_loss", "squared_error", "sigmoid_binary_cross_entropy"])
def test_targets_that_would_make_the_losses_larger(name):
    """(8, 1) and (8,) would give 64 losses for 8 examples."""
    own = getattr(losses, name)
    with pytest.raises(ShapeError, match=rf"\[{name}\] .*got \(8,\) and \(8, 1\)|one shape, got \(8, 1\) and \(8,\)"):
        own(np.ones((8, 1)), np.ones(8))
    if name not in ("l2_loss", "squared_error"):
        assert own(np.ones((8, 3)), np.ones(3)).shape == own(np.ones((8, 3)), np.ones((8, 1))).shape == (8, 3)
