"""Mixed precision: which values are rounded, through every transform and every op."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from op_cases import CASES, Case

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import PrecisionPolicy, amp, dtypes, grad, jit, lax, nn, optim, random, tree
from tvmfun.core.op import REGISTRY, Op
from tvmfun.errors import ArgumentError, DtypeError

HALVES = ("bfloat16", "float16")
MOST = {name: PrecisionPolicy(name, only_products=False) for name in HALVES}
RNG = np.random.default_rng(0)
START = RNG.bit_generator.state


def reals(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(x).astype(dtypes.canonical(dtype)).astype(np.float32)


def close(got, expected, tolerance: float) -> None:
    for ours, reference in zip(tree.leaves(got), tree.leaves(expected), strict=True):
        ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
        scale = max(1e-30, float(np.abs(reference).max(initial=0)))
        np.testing.assert_allclose(ours, reference, rtol=0, atol=tolerance * scale)


# -- which ops -----------------------------------------------------------------------------------------------------


def test_the_records_say_which_ops_are_computed_how():
    classes: dict[str, set[str]] = {"low": set(), "summing": set(), "high": set(), "either": set(), "kept": set()}
    for name, op in REGISTRY.items():
        classes[op.precision].add(name)
    assert classes["summing"] == {"dot_general", "attention", "attention_gradients"}
    assert classes["low"] == {"conv", "conv_kernel_gradient"}
    sums = {"sum", "cumsum", "scatter", "window_sum", "psum"}
    assert sums | {"exp", "log", "power", "rsqrt", "bitcast"} <= classes["high"]
    assert classes["kept"] == {"reshape", "permute_dims", "slice", "flip", "concat"}
    moves = {"gather", "pad", "where", "max", "argmax", "window_max"}
    assert moves | {"add", "multiply", "relu", "tanh", "sigmoid", "erf", "loop", "checkpoint"} <= classes["either"]


@pytest.mark.parametrize("name", [name for name in CASES if REGISTRY[name].precision not in ("low", "summing")])
def test_alone_no_other_op_changes(name: str):
    op, case = REGISTRY[name], CASES[name][0].narrowed(name)
    apply = lambda *xs: op(*xs, **case.params)
    plain = str(tvmfun.trace(apply)(*case.arguments))
    for policy in ("bfloat16", MOST["float16"]):
        mixed = str(tvmfun.trace(amp(apply, policy))(*case.arguments))
        assert mixed == plain


def test_tensorfloat32_is_a_parameter_of_every_product_and_of_nothing_else():
    for name, cases in CASES.items():
        op, case = REGISTRY[name], cases[0].narrowed(name)
        apply = lambda *xs, op=op, params=case.params: op(*xs, **params)
        mixed, plain = (str(tvmfun.trace(f)(*case.arguments)) for f in (amp(apply, "tensorfloat32"), apply))
        is_product = op.precision in ("low", "summing")
        assert ("precision='tensorfloat32'" in mixed) == is_product
        assert is_product or mixed == plain


@pytest.mark.quick("bfloat16-conv")
@pytest.mark.parametrize("name", ["dot_general", "conv", "conv_kernel_gradient"])
@pytest.mark.parametrize("dtype", HALVES)
def test_products_of_every_form_are_near_those_of_rounded_arguments(name: str, dtype: str):
    op = REGISTRY[name]
    cases: list[Case] = [case for case in CASES[name] if all(x.dtype == np.float64 for x in case.arguments)]
    arguments = [[x.astype(np.float32) for x in case.arguments] for case in cases]
    run = lambda op_arguments: [_apply(op, case, xs) for case, xs in zip(cases, op_arguments, strict=True)]
    mixed = jit(amp(run, dtype))(arguments)
    most = jit(amp(run, MOST[dtype]))(arguments)
    for case, xs, ours, half in zip(cases, arguments, mixed, most, strict=True):
        expected = case.reference(*[rounded(x, dtype).astype(np.float64) for x in xs], **case.params)
        assert ours.dtype == half.dtype == np.float32
        close(ours, expected, 2**-8)
        close(half, expected, 2**-8)


def _apply(op: Op, case: Case, xs):
    return op(*xs, **case.params)


# -- what the Program looks like -----------------------------------------------------------------------------------


def test_most_in_half_precision_until_an_op_needs_more():
    def layer(w, b, x):
        y = tnp.tanh(x @ w + b)
        return y / tnp.sum(y)

    program = tvmfun.trace(amp(layer, MOST["float16"]))(reals(2, 2), reals(2), reals(3, 2))
    assert str(program).splitlines() == [
        "program layer(a: float32[2,2], b: float32[2], c: float32[3,2]) {",
        "  d: float16[3,2] = astype(c, dtype='float16')",
        "  e: float16[2,2] = astype(a, dtype='float16')",
        "  f: float16[3,2] = dot_general(d, e, contract=((1,), (0,)), batch=((), ()))",
        "  g: float16[2] = astype(b, dtype='float16')",
        "  h: float16[3,2] = add(f, g)",
        "  i: float16[3,2] = tanh(h)",
        "  j: float32[3,2] = astype(i, dtype='float32')",
        "  k: float32[] = sum(j, axis=(0, 1))",
        "  l: float32[3,2] = divide(j, k)",
        "  return l",
        "}",
    ]


def test_what_is_float32_on_purpose_stays_so_and_parameters_do_not_make_it_so():
    def normalized(scale, x, w):
        y = x @ w
        return (y - tnp.mean(y)) * scale @ w

    text = str(tvmfun.trace(amp(normalized, MOST["bfloat16"]))(reals(4), reals(3, 4), reals(4, 4)))
    assert "float32[3,4] = subtract(" in text and "float32[3,4] = multiply(" in text
    text = str(tvmfun.trace(amp(lambda s, x, w: (x @ w) * s @ w, MOST["bfloat16"]))(reals(4), reals(3, 4), reals(4, 4)))
    assert "bfloat16[3,4] = multiply(" in text


def test_numbers_that_half_precision_does_not_hold_stay():
    def weights(x, w, mask):
        return nn.functional.softmax(tnp.where(mask, x @ w, -1e9))

    x, w, mask = reals(3, 4), reals(4, 5), np.zeros((3, 5), bool)
    np.testing.assert_array_equal(np.asarray(amp(weights, MOST["float16"])(x, w, mask)), np.float32(0.2))


def test_small_numbers_stay_too():
    ratio = lambda x, w: (x @ w) / ((x @ w) + 1e-8)
    zeros = np.zeros((2, 2), np.float32)
    np.testing.assert_array_equal(np.asarray(amp(ratio, MOST["float16"])(zeros, zeros)), zeros)


def test_a_product_with_zero_compiles():
    x, w = reals(4, 8), reals(8, 8)
    w[0, 0] = np.nan
    for policy in MOST.values():
        got = np.asarray(jit(amp(lambda x, w: x + 0.0 * (x @ w), policy))(x, w))
        np.testing.assert_allclose(got[:, 1:], x[:, 1:], rtol=2**-7)
        assert np.isnan(got[:, 0]).all()


def test_other_dtypes_are_left_alone():
    def f(wide, half, count):
        return wide @ wide, half @ half, count @ count

    given = np.eye(2), np.eye(2, dtype=np.float16), np.eye(2, dtype=np.int32)
    text = str(tvmfun.trace(f)(*given))
    assert str(tvmfun.trace(amp(f))(*given)) == text and "astype" not in text


def test_arguments_that_are_no_arrays_and_decorators():
    @amp(policy="float16")
    def power(x, n: int, flag: str):
        """Doc."""
        assert flag == "on"
        return x @ x if n == 2 else x

    x = reals(3, 3)
    assert power.__name__ == "power" and power.__doc__ == "Doc."
    close(power(x, 2, "on"), rounded(rounded(x, "float16") @ rounded(x, "float16"), "float16"), 1e-6)
    np.testing.assert_array_equal(np.asarray(power(x, 1, flag="on")), x)


def test_unknown_policies_are_refused():
    with pytest.raises(ArgumentError, match="half precision"):
        amp(lambda x: x, "float32")
    with pytest.raises(ArgumentError, match="policy is unknown"):
        amp(lambda x: x, 16)  # type: ignore[arg-type]
    with pytest.raises(DtypeError):
        PrecisionPolicy("complex64")


# -- under other transforms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_all_products_of_a_derivative_read_rounded_numbers(dtype: str):
    x, w, g = reals(5, 4), reals(4, 3), reals(5, 3)
    loss = lambda x, w: tnp.sum((x @ w) * g)
    down = lambda a: rounded(a, dtype).astype(np.float64)
    expected = down(g) @ down(w).T, down(x).T @ down(g)
    close(jit(grad(amp(loss, dtype), argnums=(0, 1)))(x, w), expected, 1e-6)  # gradients are not rounded again
    around = jit(amp(grad(loss, argnums=(0, 1)), dtype))(x, w)
    close(around, [rounded(each, dtype) for each in expected], 2**-8)


def test_results_stay_in_half_precision_while_they_are_moved():
    def f(x, w, b):
        y = tnp.transpose((x @ w).reshape(2, 3, 2), (1, 0, 2))
        left, right = tnp.split(tnp.concat([y, y[::-1]]), 2)
        return left @ right.mT + b

    program = tvmfun.trace(amp(f))(reals(6, 4), reals(4, 2), reals(2))
    moved = ("reshape", "permute_dims", "flip", "concat", "slice")
    seen = {equation.op.name: equation.outputs[0].aval.dtype for equation in program.equations}
    assert {name for name in moved if seen.get(name) == dtypes.bfloat16} == set(moved)
    assert seen["add"] == np.float32


def test_cotangents_of_a_product_are_added_in_float32():
    x, w, tiny = reals(3, 4), reals(4, 4), np.float32(2**-12)
    loss = lambda x: (lambda y: tnp.sum(y) + tnp.sum(y * tiny) - tnp.sum(tnp.square(y) * 0 + y))(x @ w)
    close(jit(grad(amp(loss)))(x), tiny * rounded(w, "bfloat16").sum(1) * np.ones((3, 1)), 1e-6)


def test_the_gradient_of_a_bias_is_the_sum_of_rounded_cotangents():
    x, w, b, g = reals(6, 4), reals(4, 3), reals(3), reals(6, 3)
    loss = lambda b, x: tnp.sum(g * (x @ w + b))
    of_bias, of_x = jit(grad(amp(loss), argnums=(0, 1)))(b, x)
    close(of_bias, rounded(g, "bfloat16").sum(0), 1e-6)
    close(of_x, rounded(g, "bfloat16") @ rounded(w, "bfloat16").T, 1e-6)
    # A residual stream has the product's own size, so it is no bias.
    through = jit(grad(amp(lambda y: tnp.sum(g * (x @ w + y)))))(reals(6, 3))
    close(through, g, 1e-7)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_conversion_back_to_half_precision_is_none(dtype: str):
    x = reals(5).astype(dtypes.canonical(dtype))
    back = lambda x: tnp.astype(tnp.astype(x, np.float32), dtype)
    assert not tvmfun.trace(back)(x).equations
    through = {"float16": "bfloat16", "bfloat16": "float16"}[dtype]  # rounds
    assert len(tvmfun.trace(lambda x: tnp.astype(tnp.astype(x, through), dtype))(x).equations) == 2


def _scan(w, x):
    return lax.scan(lambda c, _: (tnp.tanh(c @ w), tnp.sum(c @ w)), x, None, length=3)


def _while(w, x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, tnp.tanh(c[1] @ w)), (0, x))[1]


def _cond(w, x):
    return lax.cond(tnp.sum(x) > -1e6, lambda x: x @ w, lambda x: x, x)


def _checkpoint(w, x):
    return tvmfun.checkpoint(lambda x: tnp.tanh(x @ w) @ w)(x)


def _vmap(w, x):
    return tvmfun.vmap(lambda row: row @ w)(x)


@tvmfun.custom_vjp
def _own_product(w, x):
    return x @ w


_own_product.defvjp(lambda w, x: (x @ w, (w, x)), lambda saved, g: (saved[1].T @ g, g @ saved[0].T))


@tvmfun.custom_jvp
def _own_tangent(w, x):
    return x @ w


@_own_tangent.defjvp
def _own_rule(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    return x @ w, x @ dw + dx @ w


@pytest.mark.quick("_own_product")
@pytest.mark.parametrize("fun", [_scan, _while, _cond, _checkpoint, _vmap, _own_product, _own_tangent])
def test_inside_of_what_contains_programs(fun):
    w, x = reals(6, 6) / 3, reals(4, 6)
    for policy in ("bfloat16", MOST["bfloat16"]):
        mixed, plain = jit(amp(fun, policy))(w, x), jit(fun)(w, x)
        assert tree.structure(mixed) == tree.structure(plain)
        assert [a.dtype for a in tree.leaves(mixed)] == [a.dtype for a in tree.leaves(plain)]
        close(mixed, plain, 0.03)
        for ours, reference in zip(tree.leaves(mixed), tree.leaves(plain), strict=True):
            assert (np.asarray(ours) != np.asarray(reference)).any()
    if fun is _while:  # has no gradient
        return
    loss = lambda run: lambda w, x: sum(tnp.sum(tnp.square(out)) for out in tree.leaves(run(w, x)))
    plain = jit(grad(loss(fun), argnums=(0, 1)))(w, x)
    for gradient in (grad(loss(amp(fun)), argnums=(0, 1)), grad(amp(loss(fun)), argnums=(0, 1))):
        close(jit(gradient)(w, x), plain, 0.05)
    close(jit(amp(grad(loss(fun), argnums=(0, 1))))(w, x), plain, 0.05)


@pytest.mark.slow
def test_forward_mode_and_second_derivatives():
    w, x = reals(4, 4), reals(4)
    f = lambda w: tnp.sum(tnp.tanh(x @ w @ w))
    close(jit(tvmfun.hessian(amp(f)))(w), jit(tvmfun.hessian(f))(w), 0.05)
    close(tvmfun.jvp(amp(f), (w,), (w,)), tvmfun.jvp(f, (w,), (w,)), 0.05)


@pytest.mark.quick("12")
@pytest.mark.parametrize("length", [12, 1030])  # written out, and block by block
def test_attention(length: int):
    q = reals(1, length, 1, 8)
    f = lambda q: tnp.sum(tnp.square(nn.functional.dot_product_attention(q, q, q, is_causal=True)))
    mixed, plain = jit(grad(amp(f)))(q), jit(grad(f))(q)
    close(mixed, plain, 0.03)
    assert (np.asarray(mixed) != np.asarray(plain)).any()


# -- loss scales ---------------------------------------------------------------------------------------------------


def test_a_static_scale_keeps_small_gradients():
    w, x = reals(4, 4), reals(3, 4)
    tiny = lambda w: tnp.sum(tnp.tanh(x @ w)) * 1e-9
    plain, scale = grad(tiny)(w), optim.StaticLossScale(2.0**26)
    lost = grad(amp(tiny, "float16"))(w)
    kept = scale.unscale(grad(lambda w: scale.scale(amp(tiny, "float16")(w)))(w))
    assert not np.asarray(lost).any()
    close(kept, plain, 0.01)
    assert scale.adjust(False) is scale
    assert scale.scale({"count": tnp.asarray(3)})["count"] == 3


def test_a_dynamic_scale_halves_grows_and_stays_in_its_bounds():
    scale = optim.DynamicLossScale(8.0, period=3, min_scale=2.0)
    seen = []
    adjust = jit(lambda scale, finite: scale.adjust(finite))
    for finite in (True, False, True, True, True, True, False, False, False, False):
        scale = adjust(scale, finite)
        seen.append((float(scale.scale_factor), int(scale.counter)))
    assert seen == [(8, 1), (4, 0), (4, 1), (4, 2), (8, 0), (8, 1), (4, 0), (2, 0), (2, 0), (2, 0)]
    largest = optim.DynamicLossScale(2.0**127, period=1).adjust(True)
    assert float(largest.scale_factor) == 2.0**127


def test_scales_in_half_precision_do_not_overflow():
    scale = optim.DynamicLossScale(2.0**17)
    small = tnp.asarray([2.0**-10], dtype="float16")
    np.testing.assert_array_equal(np.asarray(scale.scale(small)), np.float16(2.0**7))
    np.testing.assert_array_equal(np.asarray(scale.unscale(scale.scale(small))), np.asarray(small))


def test_bad_scales_are_refused():
    for make in (
        lambda: optim.DynamicLossScale(0.0),
        lambda: optim.StaticLossScale(-1.0),
        lambda: optim.DynamicLossScale(period=0),
        lambda: optim.DynamicLossScale(factor=1.0),
        lambda: optim.DynamicLossScale(min_scale=0.0),
    ):
        with pytest.raises(ArgumentError, match="must be greater than"):
            make()


def test_all_finite_and_select_tree():
    trees = [{"a": np.float32(1), "n": 3}, {"a": np.float32("nan"), "n": 3}, {"n": 3}, {}]
    assert [bool(optim.all_finite(t)) for t in trees] == [True, False, True, True]
    chosen = jit(lambda c, x, y: optim.select_tree(c, x, y))(False, {"a": 1.0}, {"a": 2.0})
    assert float(chosen["a"]) == 2.0
    with pytest.raises(tvmfun.errors.TreeError):
        optim.select_tree(True, {"a": 1}, {"b": 1})


# -- training ------------------------------------------------------------------------------------------------------


def _trained(loss_fn, params, batches, policy, overflow_at: int = -1, rate: float = 1e-3):
    """Losses and scales of a training run; at one step the loss is multiplied by infinity."""
    optimizer = optim.adam(rate)
    mixed = loss_fn if policy is None else amp(loss_fn, policy)

    @jit
    def step(params, opt_state, scale, batch, factor):
        loss, grads = tvmfun.value_and_grad(lambda p: scale.scale(mixed(p, *batch) * factor))(params)
        grads = scale.unscale(grads)
        is_finite = optim.all_finite(grads)
        updates, new_state = optimizer.update(grads, opt_state, params)
        new = optim.apply_updates(params, updates), new_state
        params, opt_state = optim.select_tree(is_finite, new, (params, opt_state))
        return params, opt_state, scale.adjust(is_finite), scale.unscale(loss)

    state = params, optimizer.init(params), optim.DynamicLossScale(2.0**12, period=50)
    losses, scales, counts = [], [], []
    for i, batch in enumerate(batches):
        *state, loss = step(*state, batch, np.float32("inf") if i == overflow_at else np.float32(1))
        losses.append(float(loss))
        scales.append(float(state[2].scale_factor))
        counts.append(int(state[1][0].count))
    return np.asarray(losses), scales, counts


def _convolutions():
    keys = random.split(random.key(1), 4)
    params = {
        "first": nn.Conv2d(1, 8, 3, padding="SAME", key=keys[0]),
        "second": nn.Conv2d(8, 8, 3, stride=2, padding="SAME", key=keys[1]),
        "last": nn.Linear(8 * 4 * 4, 4, key=keys[2]),
    }
    images, labels = reals(200, 16, 8, 8, 1), RNG.integers(0, 4, (200, 16)).astype(np.int32)
    images += labels[:, :, None, None, None] * 0.5

    def loss(params, x, y):
        x = nn.functional.relu(params["first"](x))
        x = nn.functional.relu(params["second"](x))
        return nn.losses.cross_entropy(params["last"](x.reshape(x.shape[0], -1)), y)

    return loss, params, list(zip(images, labels, strict=True))


def _words():
    """A small BERT: tokens are to be told from those around them, of which every seventh is masked."""
    keys = random.split(random.key(2), 5)
    size, length, words = 32, 16, 24
    block = lambda key: nn.TransformerEncoderLayer(size, 4, 64, dropout=0.1, key=key)
    params = {
        "words": nn.Embedding(words + 1, size, key=keys[0], weight_init=nn.init.normal(0.1)),
        "places": nn.Embedding(length, size, key=keys[1], weight_init=nn.init.normal(0.1)),
        "blocks": nn.TransformerEncoder([block(keys[2]), block(keys[3])]),
        "norm": nn.LayerNorm(size),
    }
    starts = RNG.integers(0, words, (200, 8, 1))
    tokens = ((starts + np.arange(length) * RNG.integers(1, 3, (200, 8, 1))) % words).astype(np.int32)
    masked = RNG.random(tokens.shape) < 1 / 7
    seeds = np.stack([np.asarray(random.key(i)) for i in range(200)])

    def loss(params, tokens, masked, key):
        x = params["words"](tnp.where(masked, words, tokens)) + params["places"](np.arange(length))
        x = params["norm"](params["blocks"](x, key=key))
        losses = nn.losses.cross_entropy(params["words"].attend(x), tokens, reduction="none")
        return tnp.sum(losses * masked) / (tnp.sum(masked) + 1e-6)

    return loss, params, list(zip(tokens, masked, seeds, strict=True))


RATES = {_words: 2e-3, _convolutions: 1e-3}


@cache
def _in_float32(task):
    RNG.bit_generator.state = START
    loss, params, batches = task()
    rate = RATES[task]
    return loss, params, batches, _trained(loss, params, batches, None, rate=rate)[0]


# The dearest of each kind in every run, the rest once in a while.
OTHERS = [pytest.param(MOST[name], marks=pytest.mark.slow, id=f"most {name}") for name in HALVES]


@pytest.mark.quick("bfloat16")
@pytest.mark.parametrize("policy", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow), *OTHERS])
def test_a_transformer_learns_as_in_float32(policy):
    loss, params, batches, plain = _in_float32(_words)
    mixed, _, counts = _trained(loss, params, batches, policy, rate=RATES[_words])
    assert plain[-20:].mean() < plain[:5].mean() - 0.4 and counts[-1] == len(batches)
    np.testing.assert_allclose(mixed, plain, atol=0.08)
    np.testing.assert_allclose(mixed.reshape(-1, 20).mean(1), plain.reshape(-1, 20).mean(1), atol=0.02)


@pytest.mark.quick("most float16")
@pytest.mark.parametrize("policy", [*HALVES, *OTHERS])
def test_a_convolutional_network_learns_as_in_float32(policy):
    loss, params, batches, plain = _in_float32(_convolutions)
    mixed, scales, _ = _trained(loss, params, batches, policy)
    assert plain[-20:].mean() < 0.6 * plain[:5].mean()
    # Of single losses, and of their means over twenty steps.
    np.testing.assert_allclose(mixed, plain, atol=0.08)
    np.testing.assert_allclose(mixed.reshape(-1, 20).mean(1), plain.reshape(-1, 20).mean(1), atol=0.02)
    assert scales[-1] > scales[0]


@pytest.mark.slow
def test_an_overflow_skips_just_one_step():
    loss, params, batches = _convolutions()
    batches = batches[:12]
    whole, scales, counts = _trained(loss, params, batches, "float16", overflow_at=5)
    without, _, _ = _trained(loss, params, batches[:5] + batches[6:], "float16")
    assert not np.isfinite(whole[5])
    assert counts == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11]
    assert scales[4] == 2 * scales[5] == 2 * scales[-1]
    # Powers of two change no gradient but those that float16 cannot hold.
    np.testing.assert_allclose(np.delete(whole, 5), without, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bias_of_a_dynamic_batch(dtype):
    """The bias of a product is found by its repetition, whatever the size of the batch; one example included."""
    w, b = np.linspace(-1, 1, 96, dtype="float32").reshape(6, 16), np.linspace(0, 1, 16, dtype="float32")

    def loss(params, x):
        return tnp.sum((x @ params[0] + params[1]) ** 2)

    gradient = tvmfun.grad(tvmfun.amp(loss, dtype))
    program = tvmfun.trace(gradient)((w, b), tvmfun.ShapeDtype(("b", 6), "float32"))
    for n in (1, 2, 5):
        x = np.linspace(-2, 2, 6 * n, dtype="float32").reshape(n, 6)
        for one, other in zip(program((w, b), x), gradient((w, b), x), strict=True):
            np.testing.assert_array_equal(one, other)
