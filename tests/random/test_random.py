"""Random numbers: JAX's bits, Random123's known answers, distributions and errors."""

import numpy as np
import pytest

import tvmfun
from tvmfun import dtypes, random
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.ops.bits import threefry2x32

SHAPES = [(), (0,), (3,), (2, 3, 4), (0, 3)]
LARGE = (70_001,)  # more than 2**16
FLOATS = ["bfloat16", "float16", "float32", "float64"]


@pytest.fixture(scope="module", autouse=True)
def jax():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield jax


@pytest.fixture
def keys(jax):
    return random.key(42), jax.random.PRNGKey(42)


def same(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual, expected)


# -- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["eager", "traced"])
def test_known_answers_of_random123(words):
    full = 0xFFFFFFFF
    answers = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((full, full), (full, full), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]

    def block(key, counter):
        return [threefry2x32(key, counter, shape=(), word=word) for word in ("first", "second")]

    run = block if words == "eager" else tvmfun.jit(block)
    for key, counter, answer in answers:
        result = run(np.array(key, np.uint32), np.array(counter, np.uint32))
        assert tuple(int(word) for word in result) == answer


SEEDS = [0, 42, 2**31 - 1, 2**31, 2**32 + 5, 2**63 - 1, -(2**63), np.int64(-5), np.uint64(2**63 + 3), np.int32(-7)]


@pytest.mark.quick("0", "-9223372036854775808", "np.int32(-7)", "2147483648")
@pytest.mark.parametrize("seed", [*SEEDS, np.uint8(3), np.int8(-3)], ids=repr)
def test_keys_are_those_of_jax(seed, jax):
    expected = jax.random.PRNGKey(seed)
    same(random.key(seed), expected)
    if not isinstance(seed, int):
        same(tvmfun.jit(random.key)(seed), expected)
        same(random.key(tnp.asarray(seed)), expected)


def test_negative_python_seeds_are_those_of_jax_by_default(jax):
    with jax.enable_x64(False):
        expected = np.asarray(jax.random.PRNGKey(-1))
    same(random.key(-1), expected)
    same(tvmfun.jit(random.key)(-1), expected)


def test_bad_seeds_and_keys_are_explained():
    for seed in (1.5, True, np.zeros(2, int), "a"):
        with pytest.raises(DtypeError, match=r"^\[key\]"):
            random.key(seed)
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ArgumentError, match=r"^\[key\] the seed must have at most 64 bits"):
            random.key(seed)
    calls = {
        "split": random.split,
        "fold_in": lambda k: random.fold_in(k, 1),
        "bits": random.bits,
        "uniform": random.uniform,
        "normal": random.normal,
        "bernoulli": random.bernoulli,
        "randint": lambda k: random.randint(k, (2,), 0, 5),
        "permutation": lambda k: random.permutation(k, 5),
    }
    for name, call in calls.items():
        for bad in (0, np.zeros(2, int), np.zeros((3, 2), np.uint32), np.zeros(3, np.uint32)):
            with pytest.raises(ShapeError, match=rf"^\[{name}\] a key is uint32\[2\], got .* Try tvmfun.random.key"):
                call(bad)


@pytest.mark.quick("1")
@pytest.mark.parametrize("num", [2, 1, 0, 5, (2, 3), ()], ids=str)
def test_split(num, keys, jax):
    same(random.split(keys[0], num), jax.random.split(keys[1], num))
    same(tvmfun.jit(lambda k: random.split(k, num))(keys[0]), jax.random.split(keys[1], num))


def test_split_into_many(keys, jax):
    same(random.split(keys[0], 70_000), jax.random.split(keys[1], 70_000))
    first, second = random.split(keys[0])
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("data", [0, 1, 2**31, 2**32 - 1, np.int64(7), np.uint32(9)], ids=repr)
def test_fold_in(data, keys, jax):
    same(random.fold_in(keys[0], data), jax.random.fold_in(keys[1], data))
    if data == 1:
        traced = tvmfun.jit(lambda k, i: random.fold_in(k, i))
        for step in range(3):
            same(traced(keys[0], step), jax.random.fold_in(keys[1], step))


def test_fold_in_takes_an_integer(keys):
    for data in (-1, 2**32, 2**64 + 7):
        with pytest.raises(
            ArgumentError, match=rf"^\[fold_in\] the data must be an unsigned 32-bit integer, got {data}"
        ):
            random.fold_in(keys[0], data)
    for data in (1.5, np.zeros(2, int)):
        with pytest.raises(DtypeError, match=r"^\[fold_in\]"):
            random.fold_in(keys[0], data)


# -- distributions -----------------------------------------------------------------------------------------


def draws(function, key, dtype):
    """Draws of all shapes in one compiled function, and one draw op by op."""
    together = tvmfun.jit(lambda key: [function(key, shape, dtype) for shape in [*SHAPES, LARGE]])(key)
    return [*zip([*SHAPES, LARGE], together, strict=True), ((2, 3, 4), function(key, (2, 3, 4), dtype))]


@pytest.mark.quick("uint64")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bits(dtype, keys, jax):
    for shape, actual in draws(random.bits, keys[0], dtype):
        same(actual, jax.random.bits(keys[1], shape, dtype))


@pytest.mark.parametrize("shape", [(50, 2001), (3, 129), (2, 1)], ids=str)
def test_the_last_of_a_row_is_drawn_with_the_one_before(shape, keys, jax):
    """LLVM takes half a second to generate code for a single number."""
    compiled = tvmfun.jit(lambda key: random.bits(key, shape)).lower(keys[0]).compile()
    assert shape[1] == 1 or "T.vectorized(2)" in compiled.as_text()
    same(compiled(keys[0]), jax.random.bits(keys[1], shape, "uint32"))


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype, keys, jax):
    for shape, actual in draws(random.uniform, keys[0], dtype):
        same(actual, jax.random.uniform(keys[1], shape, dtypes.canonical(dtype)))


@pytest.mark.quick("float64-(1, 1)", "float32-(5, 2)")
@pytest.mark.parametrize("bounds", [(-3, 7), (0.1, 0.3), (1, 1), (5, 2), (-1e30, 1e30)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_between_bounds(bounds, dtype, keys, jax):
    low, high = bounds
    expected = jax.random.uniform(keys[1], (1000,), dtype, low, high)
    # XLA rounds a * b + c once; whether ours does depends on the kernel it is in.
    tolerance = 2 * np.finfo(dtype).eps * max(abs(low), abs(high))
    for f in (random.uniform, tvmfun.jit(random.uniform, static_argnums=(1, 2, 3, 4))):
        actual = f(keys[0], (1000,), dtype, low, high)
        assert actual.dtype == dtype
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
        assert np.asarray(actual).min() >= np.dtype(dtype).type(low)


def test_uniform_bounds_may_be_arrays(keys, jax):
    low = np.array([[0.0], [10.0]], "float32")
    expected = jax.random.uniform(keys[1], (2, 5), "float32", low, 20.0)
    np.testing.assert_allclose(random.uniform(keys[0], (2, 5), minval=low, maxval=20.0), expected, rtol=1e-6)
    with pytest.raises(ShapeError, match=r"^\[uniform\]"):
        random.uniform(keys[0], (5,), minval=low)


@pytest.mark.quick("float32")
@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype, keys, jax):
    # In float32 and below the polynomial is XLA's; in float64 ours is the more accurate one.
    epsilon = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    tolerance = epsilon * {"float32": 4, "float16": 1, "bfloat16": 1, "float64": 5000}[dtype]
    for shape, actual in draws(random.normal, keys[0], dtype):
        actual, expected = np.asarray(actual), np.asarray(jax.random.normal(keys[1], shape, dtypes.canonical(dtype)))
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(actual.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance / 16)
        if dtype != "float64" and shape == LARGE:
            # XLA keeps more than bfloat16 between the steps.
            assert (actual == expected).mean() > (0.6 if dtype == "bfloat16" else 0.9)


@pytest.mark.slow
def test_normal_is_normal_when_compiled(keys, jax):
    x = np.asarray(tvmfun.jit(lambda k: random.normal(k, LARGE))(keys[0]))
    np.testing.assert_allclose(x, jax.random.normal(keys[1], LARGE, np.float32), rtol=1e-6, atol=1e-7)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02 and np.isfinite(x).all()


@pytest.mark.parametrize("p", [0.5, 0.1, 0, 1, np.float32(0.3), np.float64(0.3)], ids=repr)
def test_bernoulli(p, keys, jax):
    expected = jax.random.bernoulli(keys[1], p if isinstance(p, np.float64) else np.float32(p), (1000,))
    same(random.bernoulli(keys[0], p, (1000,)), expected)


def test_bernoulli_of_arrays(keys, jax):
    p = np.array([0.1, 0.5, 0.9], "float32")
    same(random.bernoulli(keys[0], p), jax.random.bernoulli(keys[1], p))
    same(random.bernoulli(keys[0], p, (4, 3)), jax.random.bernoulli(keys[1], p, (4, 3)))
    same(tvmfun.jit(random.bernoulli)(keys[0], p), jax.random.bernoulli(keys[1], p))
    with pytest.raises(ShapeError):
        random.bernoulli(keys[0], p, (4,))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [str(d) for d in dtypes.INTEGERS])
def test_randint(dtype, keys, jax):
    info = np.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    bounds = [(0, 10), (0, 100), (3, 4), (5, 5), (5, 2), (least, most), (most - 2, most), (0, most)]
    bounds += [(-3, 3)] if least else []
    bounds += [(0, 2**40), (-(2**40), 3)] if dtype == "int64" else []
    bounds += [(least, most + 1), (most, most + 1)] if info.bits < 64 else []
    draws = tvmfun.jit(lambda k: [random.randint(k, (200,), low, high, dtype) for low, high in bounds])(keys[0])
    for (low, high), actual in zip(bounds, draws, strict=True):
        if high >= 2**63:  # more than JAX takes as a Python integer
            high = np.uint64(high)
            low = np.uint64(low)
        same(actual, jax.random.randint(keys[1], (200,), low, high, dtype))
    same(random.randint(keys[0], (5,), 0, 10, dtype), jax.random.randint(keys[1], (5,), 0, 10, dtype))


@pytest.mark.slow
def test_randint_of_all_integers(keys):
    for dtype, low, high in [("int64", -(2**63), 2**63), ("uint64", 0, 2**64)]:
        x = np.asarray(random.randint(keys[0], (1000,), low, high, dtype))
        assert len(set(x.tolist())) == 1000
    assert random.randint(keys[0], (), 0, 10).shape == ()
    with pytest.raises(DtypeError, match=r"^\[randint\] the dtype must be an integer"):
        random.randint(keys[0], (2,), 0, 5, "float32")
    with pytest.raises(DtypeError, match=r"^\[randint\] the bounds must be numbers"):
        random.randint(keys[0], (2,), 0, np.ones(2, bool))


def test_randint_between_floats(keys, jax):
    for low, high in [(0.0, 5.0), (-2.7, 5.9), (np.array([0.0, 1.0, 2.0], "float32"), 7), (0, np.float32(1e20))]:
        same(random.randint(keys[0], (3,), low, high), jax.random.randint(keys[1], (3,), low, high, "int32"))


def test_a_dtype_of_none_is_the_usual_one(keys):
    """As in JAX, which computes with 32 bits unless told otherwise."""
    one = np.float32(1.5)
    takes = {
        "float32": {
            "normal": (), "uniform": (), "gumbel": (), "exponential": (), "laplace": (), "logistic": (), "cauchy": (),
            "maxwell": (), "truncated_normal": (-1.0, 1.0), "gamma": (one,), "loggamma": (one,), "beta": (one, one),
            "dirichlet": (np.ones(3, "float32"),), "t": (one,), "pareto": (one,), "rayleigh": (one,), "wald": (one,),
            "chisquare": (one,), "f": (one, one), "lognormal": (one,), "weibull_min": (one, one),
            "double_sided_maxwell": (one, one), "generalized_normal": (one,), "triangular": (0.0, 0.5, 1.0),
            "binomial": (5, 0.5), "ball": (3,), "orthogonal": (3,),
        },
        "int32": {"rademacher": (), "poisson": (one,), "geometric": (0.5,)},
        "uint32": {"bits": ()},
    }  # fmt: skip
    for dtype, functions in takes.items():
        for name, args in functions.items():
            assert getattr(random, name)(keys[0], *args, dtype=None).dtype == dtype, name
    assert random.randint(keys[0], (3,), 0, 5, dtype=None).dtype == "int32"
    assert random.multinomial(keys[0], 5, np.ones(3) / 3, dtype=None).dtype == "float32"


@pytest.mark.quick("10")
@pytest.mark.parametrize("size", [0, 1, 2, 10, 3000])
def test_permutation(size, keys, jax):
    expected = jax.random.permutation(keys[1], np.arange(size, dtype="int32"))
    same(random.permutation(keys[0], size), expected)
    same(random.permutation(keys[0], tnp.arange(size) * 2), np.asarray(expected) * 2)


@pytest.mark.slow
def test_permutation_along_an_axis(keys, jax):
    x = np.arange(12, dtype="float32").reshape(3, 4)
    for axis in (0, 1, -1):
        expected = jax.random.permutation(keys[1], x, axis)
        same(random.permutation(keys[0], x, axis), expected)
        same(tvmfun.jit(lambda k, x, axis=axis: random.permutation(k, x, axis))(keys[0], x), expected)
    for bad in ((np.float32(1), 0), (x, 2)):
        with pytest.raises(ShapeError, match=r"^\[permutation\]"):
            random.permutation(keys[0], *bad)


@pytest.mark.parametrize("function", [random.uniform, random.normal, random.bits])
def test_distributions_check_their_arguments(function, keys):
    name = function.__name__
    with pytest.raises(DtypeError, match=rf"^\[{name}\] the dtype must be"):
        function(keys[0], (2,), "int32")
    with pytest.raises(ArgumentError, match=r"the sizes must not be negative"):
        function(keys[0], (-1,))


def test_draws_are_few_kernels(keys):
    shape = (1_000_000,)
    for function, most in [(random.uniform, 2), (random.normal, 2), (lambda k, s: random.bernoulli(k, 0.5, s), 2)]:
        program = tvmfun.jit(lambda k, function=function: function(k, shape)).lower(keys[0]).program
        assert len(fuse(program)) <= most
        assert sum(array.size for array in program.captured) <= 2


@pytest.mark.quick("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_same_bits_inside_and_outside_of_jit(dtype, keys):
    key, _ = keys
    draws = [
        lambda key: random.uniform(key, (100,), dtype, -2.5, 3.0),
        lambda key: random.uniform(key, (100,), dtype, np.linspace(-1, 0, 100), np.linspace(1, 3, 100)),
        lambda key: random.normal(key, (100,), dtype),
        lambda key: random.truncated_normal(key, -1.0, 2.0, (100,), dtype),
    ]
    for draw in draws[:-1] if dtype == "float64" else draws:
        eager, compiled = np.asarray(draw(key)), np.asarray(tvmfun.jit(draw)(key))
        assert eager.tobytes() == compiled.tobytes()
    # Whether a product is rounded before it is added depends on what else is in the kernel.
    np.testing.assert_allclose(draws[-1](key), tvmfun.jit(draws[-1])(key), rtol=0, atol=8 * tnp.finfo(dtype).eps)


@pytest.mark.slow
def test_half_precision_rounds_as_jax_does(keys, jax):
    key, theirs = keys
    for dtype in ("float16", "bfloat16"):
        # A processor with instructions for float16 multiplies and adds for JAX without rounding in between, so the
        # numbers in [0, 1) are JAX's, and what follows is NumPy's.
        unit = np.asarray(jax.random.uniform(theirs, (1000,), dtype))
        low, high = np.asarray([-2.5, 3.0], unit.dtype)
        np.testing.assert_array_equal(random.uniform(key, (1000,), dtype, -2.5, 3.0), unit * (high - low) + low)
        np.testing.assert_array_equal(
            random.normal(key, (1000,), dtype), jax.random.normal(theirs, (1000,), dtype).astype(dtype)
        )


@pytest.mark.quick("uint32")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_randint_between_arrays(dtype, keys, jax):
    key, theirs = keys
    low, high = np.array([0, -5, 3, 0, 7], "int64"), np.array([1, 3, 3, 100, 127], "int64")
    expected = jax.random.randint(theirs, (20, 5), low, high, dtype)
    for draw in (random.randint, tvmfun.jit(random.randint, static_argnums=(1, 4))):
        np.testing.assert_array_equal(draw(key, (20, 5), low, high, dtype), expected)
    np.testing.assert_array_equal(
        random.randint(key, (50,), np.asarray(-(2**40)), np.asarray(2**40), "int32"),
        random.randint(key, (50,), -(2**40), 2**40, "int32"),  # all integers there are
    )
    with pytest.raises(ShapeError, match="broadcast"):
        random.randint(key, (3,), low, high)
    same(random.randint(key, (20, 5), low + 0.0, high + 0.5, dtype), expected)


@pytest.mark.quick("0")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_independent_permutations(axis, keys, jax):
    key, theirs = keys
    x = np.arange(24).reshape(4, 6)
    expected = jax.random.permutation(theirs, x, axis, independent=True)
    np.testing.assert_array_equal(random.permutation(key, x, axis, independent=True), expected)
    np.testing.assert_array_equal(random.permutation(key, np.asarray(5)), jax.random.permutation(theirs, np.asarray(5)))
