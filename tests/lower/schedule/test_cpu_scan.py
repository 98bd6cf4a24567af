"""Running sums and extrema along rows in vectors, beside the loop over single elements."""

import numpy as np
import pytest

import tvmfun
from tvmfun import Dim, lax

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (64, 32, 16, 8)]
DTYPES = ["float64", "float32", "float16", "bfloat16", *INTEGERS]
THEIRS = {"cumsum": np.cumsum, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}
SHAPES = [(1,), (15,), (16,), (17,), (64,), (1000,), (3, 33), (2, 3, 64), (70, 129), (0, 20), (4, 0)]


def expected(name: str, x: np.ndarray, reverse: bool) -> np.ndarray:
    """NumPy's result; sums of integers wrap, those of floats are added up in float64."""
    wide = x.astype("float64") if x.dtype.kind not in "iu" else x
    kept = {"dtype": wide.dtype} if name == "cumsum" else {}
    result = THEIRS[name](wide[..., ::-1] if reverse else wide, axis=-1, **kept)
    return (result[..., ::-1] if reverse else result).astype(x.dtype)


def along_rows(name: str, reverse: bool, ndim: int):
    return lambda x: getattr(lax, name)(x, axis=ndim - 1, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_all_lengths(dtype, name, reverse):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = (rng.normal(size=shape) * 20).astype("int64" if "int" in dtype else "float64").astype(dtype)
        result = np.asarray(tvmfun.jit(along_rows(name, reverse, len(shape)))(x))
        rounding = {"float64": 1e-12, "float32": 3e-7, "float16": 2e-3, "bfloat16": 1.6e-2}.get(dtype, 0)
        of_sums = rounding * 20 * np.sqrt(x.size) if name == "cumsum" else 0
        wide = "int64" if "int" in dtype else "float64"
        np.testing.assert_allclose(
            result.astype(wide), expected(name, x, reverse).astype(wide), rounding, of_sums, err_msg=str(shape)
        )
        assert result.dtype == x.dtype


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", THEIRS)
def test_special_numbers_stay_where_they_are(name, reverse):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 41)).astype("float32")
    x[0, 5] = x[1, -1] = x[2, 0] = np.nan
    x[3, 3], x[3, 9], x[4, 20], x[5, :2] = np.inf, -np.inf, -np.inf, (-0.0, 0.0)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(along_rows(name, reverse, 2)(x), expected(name, x, reverse), 1e-6, 1e-6)


@pytest.mark.parametrize("name", THEIRS)
def test_dynamic_rows_have_tails(name):
    rng = np.random.default_rng(0)
    sizes = ({0: Dim("m", min=0), 1: Dim("n", min=0)},)
    for reverse in (False, True):
        compiled = tvmfun.jit(along_rows(name, reverse, 2), dynamic_shapes=sizes)
        for shape in [(0, 5), (3, 0), (1, 1), (2, 7), (5, 16), (3, 17), (100, 999)]:
            x = rng.normal(size=shape).astype("float32")
            np.testing.assert_allclose(compiled(x), expected(name, x, reverse), 1e-6, 1e-5)


def test_a_long_row_is_summed_exactly_and_its_gradient_too():
    x = np.full(100_003, 0.1, "float32")
    np.testing.assert_array_equal(lax.cumsum(x), np.cumsum(x.astype("float64")).astype("float32"))
    gradient = tvmfun.grad(lambda x: lax.cumsum(x)[-1])(x)
    np.testing.assert_array_equal(gradient, np.ones_like(x))


def test_the_rule_is_for_rows_of_a_vector_and_for_joins_that_cannot_overflow():
    rules = {
        name: tvmfun.jit(function).lower(np.ones((8, 64), "float32")).compile().as_text()
        for name, function in {
            "rows": lambda x: lax.cumsum(x, axis=1),
            "columns": lambda x: lax.cumsum(x, axis=0),
            "products": lambda x: lax.cumprod(x, axis=1),
            "short": lambda x: lax.cumsum(x[:, :3], axis=1),
        }.items()
    }
    assert {name: '"tvmfun.rule": "scan"' in text for name, text in rules.items()} == {
        "rows": True,
        "columns": False,
        "products": False,
        "short": False,
    }
