"""Custom derivatives and checkpoints against JAX, in every composition."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support import oracle

import tvmfun
from tvmfun import checkpoint_policies as policies
from tvmfun import lax, tree
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, GradientError, TreeError

jax = pytest.importorskip("jax")
jnp = jax.numpy
RNG = np.random.default_rng(5)
X, W = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 3))


class Ours:
    np, ops, lax = tnp, tvmfun, lax


class Theirs:
    np, ops, lax = jnp, jax, jax.lax


def same(make, *arguments):
    got = make(Ours)
    with oracle.x64():
        expected = tree.leaves(jax.device_get(make(Theirs)(*arguments)))
    for run in (got, tvmfun.jit(got)):
        for a, b in zip(tree.leaves(run(*arguments)), expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-10, atol=1e-12)


def by_vjp(m):
    """A function with a wrong derivative, so that one sees which is used, a residual tree and a static argument."""

    @lambda f: m.ops.custom_vjp(f, nondiff_argnums=(0,))
    def f(power, p, x):
        return {"y": p["w"] @ x**power, "z": m.np.sum(x)}

    def fwd(power, p, x):
        return f(power, p, x), (p["w"], {"x": x})

    def bwd(power, residuals, g):
        w, kept = residuals
        return {"w": 3.0 * m.np.outer(g["y"], kept["x"])}, power * (w.T @ g["y"]) * kept["x"] + 2.0 * g["z"]

    f.defvjp(fwd, bwd)
    return lambda w, x: (lambda r: m.np.sum(m.np.sin(r["y"])) * r["z"])(f(2, {"w": w}, x))


def by_jvp(m):
    @m.ops.custom_jvp
    def f(w, x):
        return m.np.tanh(w @ x), m.np.sum(x)

    @f.defjvp
    def rule(primals, tangents):
        (w, x), (dw, dx) = primals, tangents
        y, s = f(w, x)
        return (y, s), ((1 + y) * (dw @ x + w @ dx), 5.0 * m.np.sum(dx * x))

    return lambda w, x: (lambda r: m.np.sum(r[0] ** 2) * r[1])(f(w, x))


def by_jvps(m):
    f = m.ops.custom_jvp(lambda a, b: m.np.sin(a) * b)
    f.defjvps(lambda da, y, a, b: 2.0 * da * b, lambda db, y, a, b: db * y)
    return lambda w, x: m.np.sum(f(w[0], x))


def in_loop(m):
    @m.ops.custom_vjp
    def f(h):
        return m.np.sin(h)

    f.defvjp(lambda h: (f(h), h), lambda h, g: (7.0 * g * h,))
    return lambda w, x: m.np.sum(m.lax.scan(lambda h, _: (f(w @ h), h), x, None, length=3)[1] ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("function", [by_vjp, by_jvp, by_jvps, in_loop], ids=lambda f: f.__name__)
def test_custom_rules(function):
    x = X[0]
    same(function, W, x)
    same(lambda m: m.ops.value_and_grad(function(m), argnums=(0, 1)), W, x)
    same(lambda m: m.ops.vmap(m.ops.grad(function(m), argnums=(0, 1)), (None, 0)), W, X)
    same(lambda m: m.ops.grad(lambda w, x: m.np.sum(m.ops.vmap(function(m), (None, 0))(w, x)), (0, 1)), W, X)
    same(lambda m: m.ops.jacrev(m.ops.grad(function(m), 1), 1), W, x)


@pytest.mark.parametrize("function", [by_jvp, by_jvps], ids=lambda f: f.__name__)
def test_forward_mode_of_custom_jvp(function):
    same(lambda m: lambda w, x: m.ops.jvp(function(m), (w, x), (w * 2, x)), W, X[0])
    same(lambda m: m.ops.jacfwd(m.ops.jacrev(function(m), 1), 1), W, X[0])


@pytest.mark.slow
def test_forward_mode_of_custom_vjp_is_the_transpose_of_its_rule():
    # JAX has no forward mode here; the Jacobian by rows is the oracle.
    f = by_vjp(Ours)
    _, got = tvmfun.jvp(f, (W, X[0]), (W * 2, X[1]))
    gw, gx = tvmfun.grad(f, (0, 1))(W, X[0])
    np.testing.assert_allclose(float(got), np.sum(gw * W * 2) + np.sum(gx * X[1]), rtol=1e-12)
    np.testing.assert_allclose(tvmfun.jacfwd(f, 1)(W, X[0]), tvmfun.jacrev(f, 1)(W, X[0]), rtol=1e-12)


def test_errors_of_custom_rules():
    f = tvmfun.custom_vjp(lambda x: x * 2)
    with pytest.raises(GradientError, match="defvjp"):
        tvmfun.grad(f)(1.0)
    f.defvjp(lambda x: (x * 2, None), lambda _, g: g)
    with pytest.raises(GradientError, match="tuple with one cotangent"):
        tvmfun.grad(f)(1.0)
    f.defvjp(lambda x: (x * 2, None), lambda _, g: (tnp.zeros(3) * g,))
    with pytest.raises(GradientError, match="shape of float32"):
        tvmfun.grad(f)(1.0)
    f.defvjp(lambda x: ((x, x), None), lambda _, g: (g,))
    with pytest.raises(TreeError, match="result of fwd"):
        tvmfun.grad(f)(1.0)

    def closing_over(y):
        g = tvmfun.custom_vjp(lambda x: x * y)
        g.defvjp(lambda x: (x * y, None), lambda _, c: (c,))
        return g(2.0)

    with pytest.raises(GradientError, match="from outside"):
        tvmfun.grad(closing_over)(1.0)


# -- checkpoint --------------------------------------------------------------------------------------------------------


def layer(m, w, x):
    return m.np.sin(m.np.tanh(w @ x) * x)


def plain(m, **options):
    return lambda w, x: m.np.sum(layer(m, w, layer(m, w, x)) ** 2)


def checkpointed(m, **options):
    one = m.ops.checkpoint(lambda w, x: layer(m, w, x), **options)
    return lambda w, x: m.np.sum(one(w, one(w, x)) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [None, policies.dots_saveable, policies.everything_saveable, policies.dots_with_no_batch_dims_saveable],
    ids=["none", "dots", "everything", "dots without batch"],
)
def test_checkpoint_changes_no_number(policy):
    make = lambda m: checkpointed(m, policy=policy) if m is Ours else plain(m)
    x = X[0]
    same(lambda m: m.ops.value_and_grad(make(m), (0, 1)), W, x)
    same(lambda m: m.ops.hessian(make(m), 1), W, x)
    same(lambda m: m.ops.vmap(m.ops.grad(make(m)), (None, 0)), W, X)
    same(lambda m: lambda w, x: m.ops.jvp(make(m), (w, x), (w, x)), W, x)


def count(program, name):
    return sum(e.op.name == name for e in program.equations)


def test_checkpoint_computes_again_what_its_policy_does_not_keep():
    counts = {}
    for label, options in {
        "nothing": {},
        "dots": {"policy": policies.dots_saveable},
        "everything": {"policy": policies.everything_saveable},
    }.items():
        program = tvmfun.jit(tvmfun.grad(checkpointed(Ours, **options))).lower(W, X[0]).program
        from tvmfun.core.inline import inlined

        program = inlined(program)
        counts[label] = (count(program, "dot_general"), count(program, "tanh"))
    assert counts["everything"][1] < counts["dots"][1] == counts["nothing"][1]
    assert counts["everything"][0] == counts["dots"][0] < counts["nothing"][0]


def test_named_values_are_kept():
    @lambda f: tvmfun.checkpoint(f, policy=policies.save_only_these_names("hidden"))
    def f(x):
        return tnp.sin(tvmfun.checkpoint_name(tnp.exp(tnp.cos(x)), "hidden"))

    from tvmfun.core.inline import inlined

    program = inlined(tvmfun.trace(tvmfun.grad(f))(1.0))
    assert count(program, "exp") == 1  # kept, not computed again
    assert float(tvmfun.grad(f)(0.5)) == pytest.approx(float(jax.grad(lambda x: jnp.sin(jnp.exp(jnp.cos(x))))(0.5)))


def stacked_bytes(program):
    """The memory that loops hand from the forward to the backward pass."""
    loop = next(e for e in program.equations if e.op.name == "loop")
    return sum(out.aval.size * out.aval.dtype.itemsize for out in loop.outputs[loop.params["carry"] :])


def test_checkpointed_steps_keep_only_the_carry():
    def loss(step, w, xs):
        return tnp.sum(lax.scan(lambda h, x: (step(w, h, x), None), xs[0], xs)[0])

    def step(w, h, x):
        for _ in range(3):
            h = tnp.tanh(w @ h + x) * tnp.sin(h)
        return h

    xs = np.ones((1000, 3))
    gradients = [tvmfun.grad(lambda w, s=s: loss(s, w, xs)) for s in (step, tvmfun.checkpoint(step))]
    programs = [tvmfun.trace(gradient)(W) for gradient in gradients]
    carry = 1000 * 3 * 8
    assert stacked_bytes(programs[1]) == carry
    assert stacked_bytes(programs[0]) >= 6 * carry
    np.testing.assert_allclose(programs[0](W), programs[1](W), rtol=1e-12)


def test_custom_rules_of_an_imported_program():
    twice, thrice = tvmfun.custom_vjp(lambda x: x * 2), tvmfun.custom_jvp(lambda x: x * 3)
    twice.defvjp(lambda x: (twice(x), x), lambda residuals, g: (g * 5,))
    thrice.defjvp(lambda primals, tangents: (thrice(*primals), tangents[0] * 7))
    imported = tvmfun.Program.from_relax(tvmfun.trace(lambda x: tnp.sum(twice(x) + thrice(x)))(np.ones(3)).function)
    value, gradient = tvmfun.value_and_grad(lambda x: imported(x)[0])(np.ones(3))
    assert float(value) == 15
    np.testing.assert_array_equal(gradient, [12, 12, 12])
    np.testing.assert_array_equal(
        tvmfun.vmap(tvmfun.grad(lambda x: imported(x)[0]))(np.ones((2, 3))), np.full((2, 3), 12)
    )


def test_a_rule_that_is_not_linear_is_an_error():
    f = tvmfun.custom_jvp(lambda x: x * 1)
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] ** 2))
    assert float(tvmfun.jvp(f, (3.0,), (2.0,))[1]) == 4
    with pytest.raises(GradientError, match=r"\[custom_jvp\] the function is not linear, got multiply"):
        tvmfun.grad(f)(3.0)


@pytest.mark.slow
def test_a_checkpoint_keeps_second_derivatives_that_are_not_those_of_values():
    @tvmfun.custom_vjp
    def tripled(x):
        return tnp.sin(x)

    tripled.defvjp(lambda x: (tnp.sin(x), x), lambda x, g: (g * tnp.cos(x) * 3,))
    inner = lambda x: tripled(x * x)
    second = lambda f: tvmfun.grad(tvmfun.grad(lambda x: f(x) * f(x)))(0.7)
    np.testing.assert_allclose(second(tvmfun.checkpoint(inner)), second(inner), rtol=1e-6)
    wrapped = tvmfun.checkpoint(lambda x: tvmfun.lax.cond(x > 0, inner, lambda x: x, x))
    np.testing.assert_allclose(second(wrapped), second(inner), rtol=1e-6)


def scaled_explicitly(x):
    """The product with a number that is not differentiated; the rule says that its derivative is three times it."""

    @tvmfun.custom_vjp
    def product(scale, z):
        return z * scale

    product.defvjp(lambda scale, z: (product(scale, z), (scale, z)), lambda kept, g: (None, 3 * g * kept[0] * kept[1]))
    return product(lax.stop_gradient(tnp.sum(x * x)), x)


def scaled_in_both_rules(x):
    scale = lax.stop_gradient(tnp.sum(x * x))

    @tvmfun.custom_vjp
    def product(z):
        return z * scale

    product.defvjp(lambda z: (product(z), z), lambda z, g: (3 * g * scale * z,))
    return product(x)


def scaled_by_a_residual(x):
    kept = {"scale": [lax.stop_gradient(tnp.sum(x * x))]}

    @tvmfun.custom_vjp
    def product(z):
        return z * kept["scale"][0]

    product.defvjp(lambda z: (product(z), (kept["scale"], z)), lambda r, g: (3 * g * r[0][0] * r[1],))
    return product(x)


def scaled_by_a_helper_of_the_rule(x):
    scale = lax.stop_gradient(tnp.sum(x * x))
    by_scale = lambda g: g * scale
    with_factor = partial(lambda factor, scale, g: factor * g, 3, scale)

    @tvmfun.custom_vjp
    def product(z, s):
        return z * s

    product.defvjp(lambda z, s: (product(z, s), z), lambda z, g: (with_factor(by_scale(g)) * z, None))
    return product(x, scale)


def scaled_by_forward_mode(x):
    scale = lax.stop_gradient(tnp.sum(x * x))

    @tvmfun.custom_jvp
    def product(z):
        return z * scale

    product.defjvp(lambda primals, tangents: (product(*primals), 3 * scale * primals[0] * tangents[0]))
    return product(x)


class Scaling:
    """Rules as methods, of an object that carries a value of the trace."""

    def __init__(self, scale):
        self.scale = scale

    def forward(self, z, s):
        return z * s, z

    def backward(self, z, g):
        return 3 * self.scale * g * z, None


def scaled_by(make_backward):
    """The same product, with a backward rule that gets at the scale in its own way."""

    def scaled(x):
        scale = lax.stop_gradient(tnp.sum(x * x))

        @tvmfun.custom_vjp
        def product(z, s):
            return z * s

        product.defvjp(lambda z, s: (product(z, s), z), make_backward(scale))
        return product(x, scale)

    return scaled


def by_jitted_helper(scale):
    helper = tvmfun.jit(lambda g: g * scale)
    return lambda z, g: (3 * helper(g) * z, None)


def by_custom_helper(scale):
    helper = tvmfun.custom_vjp(lambda g: g * scale)
    helper.defvjp(lambda g: (g * scale, None), lambda _, g: (g * scale,))
    return lambda z, g: (3 * helper(g) * z, None)


WAYS = {
    "a default": lambda scale: lambda z, g, scale=scale: (3 * scale * g * z, None),
    "a default by name": lambda scale: lambda z, g, *, scale=scale: (3 * scale * g * z, None),
    "a method": lambda scale: Scaling(scale).backward,
    "an attribute": lambda scale: (lambda own: lambda z, g: (3 * own.scale * g * z, None))(Scaling(scale)),
    "jit": by_jitted_helper,
    "custom_vjp": by_custom_helper,
}


@pytest.mark.parametrize("composition", ["grad", "jvp", "vmap of grad", "grad of vmap", "scan"])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_carry_a_value_of_a_trace_that_has_ended(way, composition):
    x = tnp.array([1.0, -2.0, 0.5])
    of = COMPOSITIONS[composition]
    got = tvmfun.jit(of(scaled_by(WAYS[way])))(x)
    for a, b in zip(tree.leaves(got), tree.leaves(of(scaled_explicitly)(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_rules_carry_besides():
    """Whatever it is: only traced values matter."""
    endless: dict = {}
    endless["own"] = endless
    for carried in (endless, list(range(100_000)), np, Scaling, Scaling(endless), object(), np.ones(3)):
        product = tvmfun.custom_vjp(lambda z: z * 2)
        product.defvjp(lambda z: (z * 2, None), lambda _, g, carried=carried: (g * (5 if carried is not None else 0),))
        assert float(tvmfun.grad(lambda x, product=product: product(x))(1.0)) == 5


def test_functions_as_arguments_close_over_values():
    @partial(tvmfun.custom_vjp, nondiff_argnums=0)
    def same(f, z):
        return z * 1.0

    same.defvjp(lambda f, z: (z * 1.0, None), lambda f, _, g: (f(g),))

    def scaled(x):
        scale = lax.stop_gradient(tnp.sum(x * x))
        return tnp.sum(same(lambda g: g * scale, x))

    np.testing.assert_array_equal(tvmfun.grad(scaled)(tnp.array([1.0, 2.0, 3.0])), [14, 14, 14])


COMPOSITIONS = {
    "grad": lambda f: tvmfun.grad(lambda x: tnp.sum(tnp.sin(f(x)))),
    "grad of jit": lambda f: tvmfun.grad(lambda x: tnp.sum(tvmfun.jit(f)(x))),
    "jvp": lambda f: lambda x: tvmfun.jvp(f, (x,), (x * x,)),
    "hessian": lambda f: tvmfun.hessian(lambda x: tnp.sum(tnp.sin(f(x)))),
    "vmap of grad": lambda f: lambda x: tvmfun.vmap(tvmfun.grad(lambda x: tnp.sum(f(x))))(tnp.stack([x, -2 * x])),
    "grad of vmap": lambda f: tvmfun.grad(lambda x: tnp.sum(tvmfun.vmap(f)(tnp.stack([x, -2 * x])))),
    "vmap twice": lambda f: tvmfun.grad(lambda x: tnp.sum(tvmfun.vmap(tvmfun.vmap(f))(tnp.ones((2, 3, 1)) * x))),
    "scan": lambda f: tvmfun.grad(lambda x: tnp.sum(lax.scan(lambda c, _: (tnp.sin(f(c)), c), x, length=3)[1])),
    "cond": lambda f: tvmfun.grad(lambda x: tnp.sum(lax.cond(x[0] > 0, f, lambda x: x, x))),
    "checkpoint": lambda f: tvmfun.grad(lambda x: tnp.sum(tvmfun.checkpoint(f)(x))),
    "amp": lambda f: tvmfun.grad(lambda x: tnp.sum(tvmfun.amp(f)(x)).astype("float32")),
}
CLOSURES = [scaled_in_both_rules, scaled_by_a_residual, scaled_by_a_helper_of_the_rule, scaled_by_forward_mode]


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("function", CLOSURES, ids=lambda f: f.__name__)
def test_rules_close_over_values_of_traces_that_have_ended(function, composition):
    x = tnp.array([1.0, -2.0, 0.5])
    of = COMPOSITIONS[composition]
    expected = tree.leaves(of(scaled_explicitly)(x))
    for run in (of(function), tvmfun.jit(of(function))):
        for a, b in zip(tree.leaves(run(x)), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_rule_closes_over_a_value_that_is_differentiated():
    """The function does not use the value, but its derivative does: second derivatives follow it."""

    def scaled(x):
        scale = tnp.sum(x * x)

        @tvmfun.custom_vjp
        def same(z):
            return z * 1

        same.defvjp(lambda z: (z, None), lambda _, g: (g * scale,))
        return tnp.sum(same(x))

    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(tvmfun.jit(tvmfun.grad(scaled))(x), [14, 14, 14])
    np.testing.assert_array_equal(tvmfun.jacrev(tvmfun.grad(scaled))(x), [2 * x] * 3)
    np.testing.assert_array_equal(tvmfun.hessian(scaled)(x), [2 * x] * 3)


def test_a_function_that_closes_over_a_value_that_is_differentiated_is_an_error():
    def scaled(x):
        scale = tnp.sum(x * x)

        @tvmfun.custom_vjp
        def product(z):
            return z * scale

        product.defvjp(lambda z: (z * scale, None), lambda _, g: (g * scale,))
        return tnp.sum(product(x))

    np.testing.assert_array_equal(tvmfun.jit(scaled)(np.ones(3)), 9)
    for derivative in (tvmfun.grad(scaled), tvmfun.hessian(scaled), lambda x: tvmfun.jvp(scaled, (x,), (x,))):
        with pytest.raises(GradientError, match="from outside that is being differentiated"):
            derivative(np.ones(3))


def test_arguments_without_derivative_by_name():
    """In any order, beside those given by position, and as keywords."""

    def power(x, n, scale):
        return scale * x**n

    clipped = tvmfun.custom_vjp(power, nondiff_argnames="n", nondiff_argnums=2)
    clipped.defvjp(lambda x, n, scale: (power(x, n, scale), x), lambda n, scale, x, g: (g * 100.0 * n * scale,))
    assert float(tvmfun.grad(lambda x: clipped(x, n=3, scale=2))(1.5)) == 600.0
    rule = tvmfun.custom_jvp(power, nondiff_argnames=("scale", "n"))
    rule.defjvp(lambda n, scale, primals, tangents: (power(*primals, n, scale), 10.0 * n * scale * tangents[0]))
    assert float(tvmfun.jit(tvmfun.grad(lambda x: rule(x, 3, scale=2)))(1.5)) == 60.0
    with pytest.raises(ArgumentError, match=r"it has no parameter 'm', got x, n, scale"):
        tvmfun.custom_vjp(power, nondiff_argnames="m")


def test_none_is_a_cotangent_of_zeros_for_a_part_of_an_argument():
    def gradients(m, np, cotangents):
        f = m.custom_vjp(lambda d, e: {"o": d["a"] * d["b"] * e[0], "i": d["n"] + 1})
        f.defvjp(lambda d, e: (f(d, e), None), lambda _, g: cotangents(g["o"]))
        return m.grad(lambda x: f({"a": x, "b": x, "n": np.int32(3)}, (x, (x, x)))["o"].sum())(np.ones(3))

    for cotangents in (
        lambda g: ({"a": g * 7, "b": None, "n": None}, (None, None)),
        lambda g: ({"a": g * 7, "b": None, "n": None}, (g, None)),
        lambda g: (None, (g, (None, g))),
    ):
        want = gradients(jax, jnp, cotangents)
        np.testing.assert_array_equal(np.asarray(gradients(tvmfun, tnp, cotangents)), np.asarray(want))
    with pytest.raises(TreeError, match=r"argument 0: dict with the keys 'a', 'b', 'n' .* Try adding \['n'\]"):
        gradients(tvmfun, tnp, lambda g: ({"a": g, "b": None}, None))
    with pytest.raises(TreeError, match="argument 1: tuple of length 2"):
        gradients(tvmfun, tnp, lambda g: (None, (g, g)))


def test_options_of_jax():
    f = tvmfun.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 5,), optimize_remat=True)
    assert float(tvmfun.grad(f)(1.0)) == 5
    with pytest.raises(ArgumentError, match="rules get arrays of zeros, got symbolic_zeros=True"):
        f.defvjp(lambda x: (x * 2, None), lambda _, g: (g,), symbolic_zeros=True)
    with pytest.raises(ArgumentError, match="rules get arrays of zeros"):
        tvmfun.custom_jvp(lambda x: x).defjvp(lambda p, t: (p[0], t[0]), symbolic_zeros=True)
