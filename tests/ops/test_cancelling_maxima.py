"""No derivative flows through a maximum that cancels; through all others it does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as jlax

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax

F64 = "float64"
LABELS = np.asarray([[2, 0, -1], [1, 4, 3]], "int32")
MASK = np.tri(3, 5, 1, dtype=bool)


def softmax(m, x, axis=-1):
    e = m.exp(x - m.max(x, axis=axis, keepdims=True))
    return e / m.sum(e, axis=axis, keepdims=True)


def log_softmax(m, x):
    shifted = x - m.max(x, axis=-1, keepdims=True)
    return shifted - m.log(m.sum(m.exp(shifted), axis=-1, keepdims=True))


def logsumexp(m, x):
    largest = m.max(x, axis=-1)
    return m.log(m.sum(m.exp(x - largest[..., None]), axis=-1)) + largest


def cross_entropy(m, x):
    shifted = x - m.max(x, axis=-1, keepdims=True)
    picked = m.take_along_axis(shifted, LABELS[..., None] % 5, axis=-1)[..., 0]
    return m.log(m.sum(m.exp(shifted), axis=-1)) - picked


#: Functions that do not depend on the maximum they subtract.
INVARIANT = {
    "softmax": softmax,
    "columns": lambda m, x: softmax(m, x, 1),
    "two axes": lambda m, x: softmax(m, x, (0, 2)),
    "one maximum for all rows": lambda m, x: m.exp(x - m.max(x)) / m.sum(m.exp(x - m.max(x)), axis=-1, keepdims=True),
    "minimum": lambda m, x: (lambda e: e / m.sum(e, axis=-1, keepdims=True))(
        m.exp(m.min(x, axis=-1, keepdims=True) - x)
    ),
    "log softmax": log_softmax,
    "logsumexp": logsumexp,
    "cross entropy": cross_entropy,
    "by index": lambda m, x: log_softmax(m, x).reshape(6, 5)[m.arange(6), LABELS.reshape(6)],
    "temperature": lambda m, x: softmax(m, (x - m.max(x, axis=-1, keepdims=True)) / 3.0),
    "masked before": lambda m, x: softmax(m, m.where(MASK, x, -1e9)),
    "masked after": lambda m, x: (lambda e: e / m.sum(e, axis=-1, keepdims=True))(
        m.where(MASK, m.exp(x - m.max(x, axis=-1, keepdims=True)), 0.0)
    ),
    "infinite mask after": lambda m, x: (lambda e: e / m.sum(e, axis=-1, keepdims=True))(
        m.exp(m.where(MASK, x - m.max(x, axis=-1, keepdims=True), -m.inf))
    ),
    "transposed": lambda m, x: (lambda e: (e / m.sum(e, axis=0, keepdims=True)).transpose(1, 2, 0))(
        m.exp(x.transpose(2, 0, 1) - m.max(x, axis=-1))
    ),
    "mean": lambda m, x: m.mean(x - m.max(x, axis=-1, keepdims=True), axis=-1) + m.max(x, axis=-1),
    "powers": lambda m, x: (lambda e: e * e / m.sum(e, axis=-1, keepdims=True) / m.sum(e, axis=-1, keepdims=True))(
        m.exp(2.0 * (x - m.max(x, axis=-1, keepdims=True)))
    ),
}

#: Functions that do depend on it, or look as if they did.
DEPENDENT = {
    "no sum": lambda m, x: m.exp(x - m.max(x, axis=-1, keepdims=True)),
    "no maximum added": lambda m, x: m.log(m.sum(m.exp(x - m.max(x, axis=-1, keepdims=True)), axis=-1)),
    "sums of other rows": lambda m, x: (lambda e: e / m.sum(e, axis=1, keepdims=True))(
        m.exp(x - m.max(x, axis=-1, keepdims=True))
    ),
    "maxima of other rows": lambda m, x: (lambda e: e / m.sum(e, axis=-1, keepdims=True))(
        m.exp(x - m.max(x, axis=1, keepdims=True))
    ),
    "quotient": lambda m, x: x / m.max(x, axis=-1, keepdims=True),
    "masked by a number": lambda m, x: (lambda e: e / m.sum(e, axis=-1, keepdims=True))(
        m.exp(m.where(MASK, x - m.max(x, axis=-1, keepdims=True), -1.0))
    ),
    "masked by a one": lambda m, x: (lambda e: e / m.sum(e, axis=-1, keepdims=True))(
        m.where(MASK, m.exp(x - m.max(x, axis=-1, keepdims=True)), 1.0)
    ),
    "smoothed": lambda m, x: (lambda e: e / (m.sum(e, axis=-1, keepdims=True) + 0.1))(
        m.exp(x - m.max(x, axis=-1, keepdims=True))
    ),
    "square": lambda m, x: (x - m.max(x, axis=-1, keepdims=True)) ** 2,
    "half of it": lambda m, x: logsumexp(m, x) - 0.5 * m.max(x, axis=-1),
    "two minima": lambda m, x: m.exp(m.min(x, axis=-1, keepdims=True) - x) / m.exp(m.min(x) - x).sum(),
    "one more": lambda m, x: logsumexp(m, x) + m.max(x, axis=-1),
    "base 2": lambda m, x: (lambda e: e / m.sum(e, axis=-1, keepdims=True))(
        m.exp2(x - m.max(x, axis=-1, keepdims=True))
    ),
    "two rows of one": lambda m, x: (lambda s: m.exp(s) - m.exp(s[:, ::-1]))(x - m.max(x, axis=-1, keepdims=True)),
    "product of terms": lambda m, x: (lambda s: s * s.sum(-1, keepdims=True))(x - m.max(x, axis=-1, keepdims=True)),
    "variable temperature": lambda m, x: m.exp((x - m.max(x, axis=-1, keepdims=True)) * m.cos(x)),
    "zeros where nothing is taken": lambda m, x: (
        logsumexp(m, x)
        - m.max(x, axis=-1)
        - (x - m.max(x, axis=-1, keepdims=True)).at[:, :, m.asarray([1, 7])].get(mode="fill", fill_value=0.0).sum(-1)
    ),
}

VALUES = {
    "generic": np.random.default_rng(0).normal(size=(2, 3, 5)),
    "large": np.random.default_rng(1).normal(size=(2, 3, 5)) * 300,
    "ties": np.random.default_rng(2).integers(0, 2, size=(2, 3, 5)).astype(F64),
}
WEIGHTS = np.random.default_rng(3).normal(size=(2, 3, 5))


def loss(function, m):
    def call(x):
        y = function(m, x)
        return (y * m.asarray(WEIGHTS.reshape(-1)[: y.size].reshape(y.shape))).sum()

    return call


def compares(function, transform=tvmfun.grad):
    """Whether a derivative looks for the elements that attain an extremum."""
    program = tvmfun.trace(transform(loss(function, tnp)))(ShapeDtype((2, 3, 5), F64))
    shapes = [e.inputs[0].aval.shape for e in program.equations if e.op.name == "equal"]
    floats = [e for e in program.equations if e.op.name == "equal" and e.inputs[0].aval.dtype == np.dtype(F64)]
    return bool(shapes and floats)


@pytest.mark.quick(
    "generic-softmax", "large-cross entropy", "ties-by index", "ties-logsumexp", "generic-infinite mask*"
)
@pytest.mark.parametrize("name", INVARIANT)
@pytest.mark.parametrize("values", VALUES)
def test_derivatives_without_the_maximum_are_those_with_it(name, values):
    x, function = VALUES[values], INVARIANT[name]
    with jax.enable_x64(True):
        expected = jax.jit(jax.grad(loss(function, jnp)))(x)
    np.testing.assert_allclose(tvmfun.grad(loss(function, tnp))(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", INVARIANT)
def test_cancelling_maxima_are_found(name):
    assert not compares(INVARIANT[name])


@pytest.mark.quick("generic-sums of*", "generic-maxima of*", "ties-zeros*", "generic-masked by a number", "ties-half*")
@pytest.mark.parametrize("name", DEPENDENT)
@pytest.mark.parametrize("values", ["generic", "ties"])
def test_other_maxima_have_their_derivative(name, values):
    x, function = VALUES[values] + (1 if name == "quotient" else 0), DEPENDENT[name]
    with jax.enable_x64(True):
        expected = jax.jit(jax.grad(loss(function, jnp)))(x)
    np.testing.assert_allclose(tvmfun.grad(loss(function, tnp))(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", DEPENDENT)
def test_no_other_maximum_is_taken_for_one(name):
    assert compares(DEPENDENT[name])


def hessian_product(m, vjp, jvp, f, x, v):
    return jvp(lambda x: vjp(f)(x), (x,), (v,))[1]


@pytest.mark.parametrize("name", ["cross entropy", "softmax", "logsumexp"])
def test_second_derivatives_and_forward_mode(name):
    x, v = VALUES["generic"], WEIGHTS
    ours, theirs = loss(INVARIANT[name], tnp), loss(INVARIANT[name], jnp)
    with jax.enable_x64(True):
        tangent = jax.jvp(theirs, (x,), (v,))[1]
        second = jax.jvp(jax.grad(theirs), (x,), (v,))[1]
    np.testing.assert_allclose(tvmfun.jvp(ours, (x,), (v,))[1], tangent, rtol=1e-9)
    np.testing.assert_allclose(tvmfun.jvp(tvmfun.grad(ours), (x,), (v,))[1], second, rtol=1e-8, atol=1e-11)
    dot = lambda x: (tvmfun.grad(ours)(x) * v).sum()
    np.testing.assert_allclose(tvmfun.grad(dot)(x), second, rtol=1e-8, atol=1e-11)


def test_rows_without_a_finite_maximum():
    """Infinities give NaN with and without the maximum's derivative."""
    x = np.full((2, 3, 5), -np.inf)
    x[0, 0], x[1, 1, 2] = 1.0, np.inf
    with jax.enable_x64(True):
        expected = np.asarray(jax.grad(loss(softmax, jnp))(x))
    np.testing.assert_allclose(np.asarray(tvmfun.grad(loss(softmax, tnp))(x)), expected, atol=1e-12)


@pytest.mark.parametrize("wrap", [tvmfun.jit, tvmfun.checkpoint, tvmfun.vmap])
def test_inside_of_other_transforms(wrap):
    wrapped = lambda m, x: wrap(lambda x: softmax(tnp, x))(x)
    assert not compares(wrapped)
    assert not compares(wrapped, lambda f: tvmfun.grad(lambda x: tvmfun.grad(f)(x).sum()))


def test_inside_of_loops_and_branches():
    def looped(m, x):
        return lax.scan(lambda carry, row: (softmax(m, carry + row), None), x[0], x)[0]

    def branched(m, x):
        return lax.cond(x.sum() > 0, lambda x: softmax(m, x), lambda x: log_softmax(m, x), x)

    def theirs(x):
        return jlax.scan(lambda carry, row: (softmax(jnp, carry + row), None), x[0], x)[0]

    x = VALUES["ties"]
    with jax.enable_x64(True):
        expected = jax.jit(jax.grad(loss(lambda m, x: theirs(x), jnp)))(x)
        chosen = jax.jit(jax.grad(loss(softmax, jnp)))(x)
    np.testing.assert_allclose(tvmfun.grad(loss(looped, tnp))(x), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(tvmfun.grad(loss(branched, tnp))(x), chosen, rtol=1e-9, atol=1e-12)


def test_dynamic_sizes():
    step = tvmfun.jit(tvmfun.grad(lambda x: softmax(tnp, x)[..., 0].sum()))
    x = VALUES["generic"]
    dynamic = tvmfun.jit(tvmfun.grad(lambda x: softmax(tnp, x)[..., 0].sum()), dynamic_shapes=({0: tvmfun.Dim("n")},))
    for count in (1, 2):
        np.testing.assert_allclose(dynamic(x[:count]), step(x[:count]), rtol=1e-12)
