"""Functions of layers against formulas in JAX, and the kernels they become."""

from functools import partial

import jax
import numpy as np

import tvmfun
from support.oracle import x64
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.row_fusion import merge_rows


def normal(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def check(cases):
    """Compares results and gradients of pairs of functions of float arrays: all as one program, in float64."""
    args = {name: [np.asarray(x, "float64") for x in case[2:]] for name, case in cases.items()}

    def run(vjp, which, args, weights):
        results = {}
        for name, functions in cases.items():
            y, pull = vjp(functions[which], *args[name])
            results[name] = [y, *pull(weights[name])]
        return results

    with x64(True):
        shapes = {name: jax.eval_shape(oracle, *args[name]).shape for name, (_, oracle, *_) in cases.items()}
        weights = {name: normal(*shape, seed=9, dtype="float64") for name, shape in shapes.items()}
        expected = jax.tree.map(np.asarray, jax.jit(partial(run, jax.vjp, 1))(args, weights))
    actual = tvmfun.jit(partial(run, tvmfun.vjp, 0))(args, weights)
    for name, references in expected.items():
        for ours, reference in zip(actual[name], references, strict=True):
            assert ours.dtype == reference.dtype and ours.shape == reference.shape, name
            np.testing.assert_allclose(ours, reference, rtol=1e-10, atol=1e-10, err_msg=name)


def kernels(function, *args):
    program = tvmfun.trace(function)(*args)
    return [kernel for kernel in merge_rows(fuse(program), program.outputs) if not kernel.is_view]
