"""Updates at computed indices, and other blocks, scheduled for a GPU and executed on the CPU."""

import numpy as np
import pytest
from support.serial_gpu import SM_90, check, values

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, random


def indices(count, size, seed=0):
    """Indices with repetitions, some of them outside of the axis."""
    return np.random.default_rng(seed).integers(-2 * size, size + 2, count).astype("int32")


def is_parallel(outcome):
    assert set(outcome.rules) <= {"elementwise", "scatter", "rows", "block"}
    assert all(launch.times == 1 and launch.threads > 1 for launches in outcome.launches for launch in launches)


# Rows of the array, columns, updates: with a block per update, and with one per row.
SIZES = {"updates": (400, 5, 300), "rows": (20, 5, 300), "one": (9, 1, 300), "wide": (30, 300, 5)}
DTYPES = ("float32", "bfloat16", "int32", "float64")


@pytest.mark.quick("add-rows")
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", ["add", "set", "multiply", "max", "min"])
def test_updates_of_rows_are_combined_in_order(mode, sizes):
    rows, columns, count = SIZES[sizes]
    xs = [np.round(values((rows, columns), dtype)) for dtype in DTYPES]
    updates = [np.round(values((count, columns), dtype, 1)) for dtype in DTYPES]
    if mode == "multiply":
        updates = [new % 2 + 1 if new.dtype == "int32" else new for new in updates]
    at, n = indices(count, rows), len(DTYPES)
    update = lambda at, *arrays: [getattr(arrays[i].at[at], mode)(arrays[n + i]) for i in range(n)]
    outcome = check(update, at, *xs, *updates)
    is_parallel(outcome)
    assert outcome.rules.count("scatter") == n
    if mode == "set":
        for x, new, result in zip(xs, updates, outcome.results, strict=True):
            expected = x.copy()
            for i, row in zip(at, new, strict=True):
                if -rows <= i < rows:
                    expected[i] = row
            np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
def test_all_updates_of_one_row():
    at = np.full(600, 3, "int32")
    is_parallel(
        check(lambda x, at, new: x.at[at].add(new), values((700, 8), "float32"), at, values((600, 8), "float32"))
    )


@pytest.mark.slow
def test_other_indices():
    i, j = indices(300, 20), indices(300, 30, 1)
    x, new = values((20, 30, 7), "float32"), values((300, 7), "float32")
    is_parallel(check(lambda x, i, j, new: x.at[i, j].add(new), x, i, j, new))
    is_parallel(check(lambda x, i, new: x.at[:, i].add(new), x, indices(50, 30), values((20, 50, 7), "float32")))
    batched = tvmfun.vmap(lambda x, i, new: x.at[i].add(new))
    is_parallel(check(batched, x, np.stack([indices(40, 30, k) for k in range(20)]), values((20, 40, 7), "float32")))
    is_parallel(check(tvmfun.grad(lambda x, i: tnp.sum(x[i] ** 2)), values((52, 16), "float32"), indices(300, 50)))
    is_parallel(check(lambda x: x.at[np.asarray([1, 3])].add(x[:2]), x))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 300])
def test_dynamic_sizes(size):
    specs = [ShapeDtype((40, 5), "float32"), ShapeDtype(("n",), "int32"), ShapeDtype(("n", 5), "float32")]
    arguments = values((40, 5), "float32"), indices(size, 40), values((size, 5), "float32")
    check(lambda x, at, new: x.at[at].add(new), *arguments, specs=specs)


def test_a_donated_array_is_updated_in_place():
    specs = ShapeDtype((4000, 64), "float32"), ShapeDtype((32,), "int32"), ShapeDtype((32, 64), "float32")
    step = tvmfun.jit(lambda x, at, new: x.at[at].add(new), target=SM_90, donate_argnums=0)
    text = step.lower(*specs).compile().as_text()
    update = text.split("def scatter")[1].split("@R.function")[0]
    assert "call_tir_inplace" in text and update.count("blockIdx.x") == 1  # no copy of the table


@pytest.mark.slow
def test_blocks_of_any_form(monkeypatch):
    # Random bits as a block of their own: a device function is C++, which LLVM does not compile.
    monkeypatch.setattr("tvmfun.lower.fusion.fuse.on_device", lambda equation: equation)
    key = np.asarray(random.key(3))
    is_parallel(check(lambda key: random.bits(key, (1000,)), key))
    is_parallel(check(lambda key: random.normal(key, (33, 5)), key))
    is_parallel(
        check(lambda x, v: tnp.searchsorted(x, v), np.sort(values((50,), "float32")), values((200,), "float32"))
    )
