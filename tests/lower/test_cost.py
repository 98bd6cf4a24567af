"""The cost analysis of a call, against XLA's analysis and by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_cases import CASES

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax
from tvmfun.core.cost import program_flops
from tvmfun.core.op import REGISTRY
from tvmfun.lower.cost_analysis import CostAnalysis


def cost(fun, *shapes, dtype="float32", **options) -> CostAnalysis:
    return tvmfun.jit(fun, **options).lower(*(ShapeDtype(shape, dtype) for shape in shapes)).compile().cost_analysis()


def loss(np_, x, w):
    return np_.sum(np_.sin(x @ w) ** 2)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda np_, grad: lambda x: x @ x + 1, [(64, 64)]),
        (lambda np_, grad: grad(lambda x, w: loss(np_, x, w)), [(32, 64), (64, 128)]),
        (lambda np_, grad: lambda x, y: np_.einsum("bij,bjk->bik", x, y), [(3, 4, 5), (3, 5, 6)]),
    ],
)
def test_operations_are_those_of_xla(make, shapes):
    theirs = jax.jit(make(jnp, jax.grad)).lower(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)).compile()
    analysis: Any = theirs.cost_analysis()
    flops = analysis["flops"] + analysis.get("transcendentals", 0)
    assert cost(make(tnp, tvmfun.grad), *shapes).flops == flops


def test_convolutions_and_their_gradients():
    def conv(np_, lax_):
        return lambda x, w: np_.sum(lax_.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=layout))

    layout = ("NHWC", "HWIO", "NHWC")
    shapes = [(2, 10, 9, 3), (3, 3, 3, 8)]
    places, pairs = 2 * 8 * 7, 3 * 3 * 3 * 8
    assert cost(conv(tnp, lax), *shapes).flops == 2 * places * pairs + places * 8
    # The gradient with respect to the images covers all pixels and a margin of zeros.
    both = cost(tvmfun.grad(conv(tnp, lax), (0, 1)), *shapes).flops
    assert both == 2 * places * pairs + 2 * (2 * 10 * 9) * pairs


def test_the_gradient_of_a_maximum_over_windows_has_a_cost():
    windows = lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    count = 2 * 8 * 8 * 3
    assert cost(tvmfun.grad(lambda x: tnp.sum(windows(x))), (2, 8, 8, 3)).flops >= count
    assert cost(tvmfun.hessian(lambda x: tnp.sum(windows(x) ** 3)), (1, 4, 4, 1)).flops > 0


@pytest.mark.parametrize("name", CASES)
def test_every_op_has_a_cost(name):
    for case in CASES[name]:
        program = tvmfun.trace(lambda *args, case=case: REGISTRY[name](*args, **case.params))(*case.arguments)
        assert program_flops(program) >= 0


def test_bytes_are_what_kernels_read_and_write():
    assert cost(lambda x: tnp.exp(x) * 2 + 1, (100,)).bytes == 2 * 400  # one kernel
    assert cost(lambda x: x @ x.T, (8, 16)).bytes == 4 * (8 * 16 + 8 * 8)
    assert cost(lambda x: tnp.reshape(x, (-1,)), (8, 16)).bytes == 0
    assert cost(lambda x: x[2:4], (1000, 16), dtype="float64").bytes == 2 * 8 * 2 * 16


def test_of_tables_only_what_is_looked_up_or_written_counts():
    rows = np.arange(5)
    assert cost(lambda table: table[rows], (10**6, 16)).bytes == 2 * 4 * 5 * 16 + 4 * 5
    # Also behind element operations in the same kernel.
    assert cost(lambda table: (2 * tnp.exp(table))[rows], (10**6, 16)).bytes == 2 * 4 * 5 * 16 + 4 * 5
    update = lambda table, new: table.at[rows].add(new)
    donated = cost(update, (10**6, 16), (5, 16), donate_argnums=0)
    assert donated == CostAnalysis(flops=5 * 16, bytes=2 * 4 * 5 * 16 + 4 * 5)
    assert cost(update, (10**6, 16), (5, 16)).bytes > 2 * 4 * 10**6 * 16


def test_loops_count_their_steps_and_branches_the_costliest():
    step = cost(lambda x: x @ x, (32, 32))
    scanned = cost(lambda x: lax.scan(lambda c, _: (c @ c, None), x, None, length=10)[0], (32, 32))
    assert scanned == CostAnalysis(10 * step.flops, 10 * step.bytes)
    chosen = cost(lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x + 1, x), (32, 32))
    assert step.flops <= chosen.flops < 1.01 * step.flops
    unknown = cost(lambda x: lax.while_loop(lambda x: tnp.sum(x) < 9, lambda x: x @ x, x), (32, 32))
    assert unknown.flops == step.flops + 32 * 32


def test_dynamic_sizes_give_formulas():
    found = cost(lambda x, w: x @ w, (7, 64), (64, 8), dynamic_shapes=({0: "b"}, None))
    assert (str(found.flops), str(found.bytes)) == ("1024*b", "288*b + 2048")


def test_a_floor_is_the_larger_of_both():
    found = CostAnalysis(flops=10**9, bytes=10**9)
    assert found.seconds(1e9, 1e10) == 1 and found.seconds(1e12, 1e9) == 1
