"""Every Relax operator that is read, against what TVM compiles of it, with derivatives and batching.

Compiling costs more than running, so the calls of ten cases are compiled together, and without LLVM's
optimizations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from interop.relax_cases import CASES, Case
from support import derivatives
from tvm import relax

import tvmfun
from tvmfun import dtypes, tree
from tvmfun.interop.relax import LEFT_OUT, TRANSLATIONS, by_record, legalizable, markdown

Named = tuple[str, Case]
QUICK = {"kind": "llvm", "opt-level": 0}
# TVM's passes that make code faster; they took two thirds of the time, for code that runs once.
_FASTER = ["HoistIfThenElse", "InsertHoistIfThenElse", "RenormalizeSplitPattern", "StmtSimplify"]
_LEFT_OUT_PASSES = [*(f"s_tir.{name}" for name in _FASTER), "tirx.StmtSimplify", "tirx.RemoveNoOp"]
ALL: list[Named] = [(f"{name}-{i}", case) for name, cases in CASES.items() for i, case in enumerate(cases)]


def groups(cases: Sequence[Named], size: int = 10) -> list:
    """Cases in groups, as parameters of a test."""
    parts = [cases[i : i + size] for i in range(0, len(cases), size)]
    return [pytest.param(part, id=f"{part[0][0]}..{part[-1][0]}") for part in parts]


def inputs_of(case: Case, dtype: str = "float32") -> list[np.ndarray]:
    """The inputs of a case; its floats have the given dtype."""
    return [x.astype(dtype) if x.dtype == np.float32 else x for x in case.inputs]


def function(cases: Sequence[Named], dtype: str = "float32") -> relax.Function:
    """The calls of several cases as one Relax function, which returns a tuple per case."""
    variables = [
        [relax.Var(f"x{j}_{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(inputs_of(case, dtype))]
        for j, (_, case) in enumerate(cases)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", [variable for own in variables for variable in own]):
        with builder.dataflow():
            results = [
                relax.Tuple([builder.emit(builder.normalize(call(*own))) for call in case.calls])
                for own, (_, case) in zip(variables, cases, strict=True)
            ]
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    return builder.get()["main"]


def by_tvm(cases: Sequence[Named]) -> list[list[np.ndarray]]:
    """The results of the calls with TVM's own legalization and compiler, per case."""
    with tvm.transform.PassContext(opt_level=3, disabled_pass=_LEFT_OUT_PASSES):
        compiled = tvm.compile(tvm.IRModule({"main": function(cases)}), tvm.target.Target(QUICK))
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    arguments = [tvm.runtime.tensor(x) for _, case in cases for x in case.inputs]
    return [flat(part) for part in machine["main"](*arguments)]


def flat(result: Any) -> list[np.ndarray]:
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [leaf for part in result for leaf in flat(part)]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_operator_is_read_or_left_out_for_a_reason():
    names = set(legalizable())
    read = (set(by_record()) | set(TRANSLATIONS)) & names
    assert not read & set(LEFT_OUT)
    assert read | set(LEFT_OUT) == names


def test_every_operator_that_is_read_has_a_case():
    reachable = (set(by_record()) & set(legalizable())) | set(TRANSLATIONS)
    assert {f"relax.{name}" for name in CASES} == reachable


def test_the_page_is_what_the_tables_say():
    page = Path(__file__).parents[2] / "docs" / "ops.md"
    assert page.read_text() == markdown(), "run: python -m tvmfun.interop.relax docs/ops.md"


# -- reading -----------------------------------------------------------------------------------------------------------


def read(call: Callable, *inputs: np.ndarray) -> tvmfun.Program:
    return tvmfun.Program.from_relax(function([("case", Case(inputs, [call]))]))


def test_operators_that_are_left_out_say_why():
    with pytest.raises(tvmfun.errors.ProgramError, match=r"disco.*relax\.ccl\.allreduce"):
        read(relax.op.ccl.allreduce, np.zeros((2, 3), "float32"))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda q: relax.op.nn.attention(q, q, q, window_size=2), "sliding windows"),
        (lambda q: relax.op.vision.roi_align(q, relax.op.zeros((1, 5), "float32"), 2, 1.0), "number of samples"),
    ],
    ids=["attention", "roi_align"],
)
def test_attributes_that_are_refused_are_named(call: Callable, match: str):
    with pytest.raises(tvmfun.errors.ProgramError, match=match):
        read(call, np.zeros((1, 2, 3, 4), "float32"))


def test_tuples_and_shapes_bound_to_variables_are_read():
    def call(x: relax.Expr) -> relax.Expr:
        builder: Any = relax.BlockBuilder.current()
        parts = builder.emit(relax.op.split(x, 2, 1))
        joined = builder.emit(relax.op.concat(parts, 0))
        return relax.op.reshape(joined, builder.emit(relax.op.shape_of(x)))

    x = np.arange(8, dtype="float32").reshape(2, 4)
    expected = np.concatenate(np.split(x, 2, 1)).reshape(2, 4)
    np.testing.assert_array_equal(tree.leaves(read(call, x)(x))[0], expected)


@pytest.mark.slow
def test_a_branch_may_hold_arrays_and_translations():
    from tvm.script import relax as R

    @R.function
    def written(x: R.Tensor((2, 3), "float64"), p: R.Tensor((), "bool")):  # type: ignore
        if p:
            y = R.nn.softmax(x, axis=0)
        else:
            y = R.image.resize2d(R.reshape(x, (1, 1, 2, 3)), (4, 3))
            y = R.add(x, R.sum(y))
        return y

    program = tvmfun.Program.from_relax(written)
    x = np.arange(6.0).reshape(2, 3)
    weights = np.exp(x - x.max(0))
    np.testing.assert_allclose(program(x, np.asarray(True)), weights / weights.sum(0), rtol=1e-12)
    derivatives.check(lambda x: program(x, np.asarray(False)), [x], order=1)


def test_dynamic_sizes_pass_through_translations():
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.softmax(relax.op.reshape(x, (n * 2, 2)), 0))
        builder.emit_func_output(result)
    program = tvmfun.Program.from_relax(builder.get()["main"])
    for rows in (1, 3):
        value = np.arange(rows * 4, dtype="float32").reshape(rows, 4)
        weights = np.exp(value.reshape(-1, 2) - value.max())
        np.testing.assert_allclose(program(value), weights / weights.sum(0), rtol=1e-5)


# -- every operator ----------------------------------------------------------------------------------------------------


@pytest.mark.quick("abs-0..sin-0")
@pytest.mark.parametrize("cases", groups(ALL))
def test_values_are_tvms(cases: Sequence[Named]):
    program = tvmfun.Program.from_relax(function(cases)).verify()
    found = tvmfun.jit(program, target=QUICK)(*(x for _, case in cases for x in case.inputs))
    expected = iter(by_tvm([c for c in cases if c[1].oracle is None]))
    for (name, case), part in zip(cases, found, strict=True):
        got = [np.asarray(leaf) for leaf in tree.leaves(part)]
        references = next(expected) if case.oracle is None else map(np.asarray, case.oracle(*case.inputs))
        for ours, reference in zip(got, references, strict=True):
            assert ours.shape == reference.shape, name
            assert ours.dtype == reference.dtype or case.oracle is not None, name
            np.testing.assert_allclose(ours, reference, case.tolerance, case.tolerance, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups([named for named in ALL if named[1].order]))
def test_derivatives_are_finite_differences(cases: Sequence[Named]):
    """Along one direction per case; and the transpose is the transpose, case by case."""
    program = tvmfun.Program.from_relax(function(cases, "float64"))
    inputs = [inputs_of(case, "float64") for _, case in cases]
    point = [[x for x in own if x.dtype == np.float64] for own in inputs]

    def run(values: list) -> list:
        full = []
        for own, floats in zip(inputs, values, strict=True):
            left = iter(floats)
            full += [next(left) if x.dtype == np.float64 else x for x in own]
        return [[leaf for leaf in tree.leaves(part) if dtypes.is_float(leaf.dtype)] for part in program(*full)]

    def everything(point: list, direction: list, cotangent: list) -> tuple:
        value, tangent = tvmfun.jvp(run, (point,), (direction,))
        return value, tangent, tvmfun.vjp(run, point)[1](cotangent)[0]

    epsilon = 1e-6
    direction = derivatives.like(point, seed=1)
    cotangent = tree.map(
        lambda y: np.cos(np.arange(y.size) + 1.0).reshape(y.shape).astype(y.dtype), tvmfun.eval_shape(run, point)
    )
    evaluate = derivatives.in_numpy(everything, point, direction, cotangent)
    moved = (tree.map(lambda x, d, s=s: x + s * epsilon * d, point, direction) for s in (1, -1))
    ahead, behind = (evaluate(x, direction, cotangent)[0] for x in moved)
    _, tangent, pulled = evaluate(point, direction, cotangent)
    for i, (name, _) in enumerate(cases):
        for a, b, t in zip(ahead[i], behind[i], tangent[i], strict=True):
            numerical = (np.asarray(a) - np.asarray(b)) / (2 * epsilon)
            scale = 1 + np.abs(numerical).max(initial=0)
            np.testing.assert_allclose(np.asarray(t), numerical, rtol=0, atol=2e-7 * scale, err_msg=name)
        left, right = derivatives.dot(pulled[i], direction[i]), derivatives.dot(cotangent[i], tangent[i])
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9, err_msg=name)


def another(x: np.ndarray) -> np.ndarray:
    """Another example of an input: floats in the same domain, indices in the same range."""
    if x.dtype == np.float32:
        return x * np.float32(0.95)
    return x[::-1] if x.ndim else x


@pytest.mark.quick("sign-0..minimum-0")
@pytest.mark.parametrize("cases", groups(ALL))
def test_vmap_is_a_loop(cases: Sequence[Named]):
    cases = [(name, case) for name, case in cases if case.inputs]
    program = tvmfun.Program.from_relax(function(cases))
    first = [x for _, case in cases for x in case.inputs]
    second = [another(x) for x in first]
    pairs = [np.stack(pair) for pair in zip(first, second, strict=True)]
    single, batched = derivatives.in_numpy(program, *first), derivatives.in_numpy(tvmfun.vmap(program), *pairs)
    for (name, case), together, *alone in zip(cases, batched(*pairs), single(*first), single(*second), strict=True):
        for got, *expected in zip(*map(tree.leaves, (together, *alone)), strict=True):
            reference = np.stack([np.asarray(x) for x in expected])
            np.testing.assert_allclose(np.asarray(got), reference, case.tolerance, case.tolerance, err_msg=name)
