"""Every op with every dtype against JAX, on drawn shapes: values, jvp, vjp and vmap; eager, compiled and dynamic.

A table of checked and refused cases is printed after the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from op_cases.case import Case
from op_cases.dynamic import can_be_dynamic, traced, variants
from op_cases.oracles import ELSEWHERE, ORACLES, Draw
from support import derivatives, oracle

import tvmfun
from tvmfun import dtypes, errors
from tvmfun import numpy as tnp
from tvmfun.core.op import REGISTRY

# Rules of batching do not depend on the dtype, schedules for dynamic sizes on its width alone: the last of each width
# that an op takes.
WHOLE = ("bool", "int32", "bfloat16", "float64")
DYNAMIC = ("bool", "int8", "int32", "int64", "bfloat16", "float32", "float64")
TOLERANCES = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 2e-4}
# Dynamic sizes of these took half of the time. In double precision `test_dynamic_sizes` has their values and gradients.
DECOMPOSITIONS = {"cholesky", "eigh", "qr", "svd"}
#: What has float results and no derivative.
NOT_DIFFERENTIABLE = {"bitcast"}


def test_every_op_has_an_oracle():
    assert {*ORACLES, *ELSEWHERE} == set(REGISTRY)


def parts(result: Any) -> tuple:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def floats(arguments: Any) -> list[int]:
    return [i for i, x in enumerate(arguments) if dtypes.is_float(np.dtype(x.dtype))]


def derivatives_of(module: Any, cos: Callable, call: Callable, arguments: Any, tangents: Any) -> tuple:
    """The tangents of the float results, and the float arguments' cotangents for the cosines of the results."""
    places = floats(arguments)

    def of_floats(*values: Any) -> tuple:
        full = list(arguments)
        for i, value in zip(places, values, strict=True):
            full[i] = value
        return tuple(part for part in parts(call(*full)) if dtypes.is_float(np.dtype(part.dtype)))

    values = [arguments[i] for i in places]
    results, pull = module.vjp(of_floats, *values)
    pulled = pull(tuple(cos(part) for part in results))
    return module.jvp(of_floats, tuple(values), tuple(tangents))[1], pulled


class Comparison:
    """A drawn call of one op with one dtype, and in which forms the results agreed."""

    def __init__(self, name: str, dtype: np.dtype, draw: Draw) -> None:
        self.op, self.oracle, self.dtype = REGISTRY[name], ORACLES[name], dtype
        self.is_whole = dtypes.NAMES[dtype] in WHOLE
        self.forms: dict[str, int] = {}
        self.refusal = ""
        self.static: set[str] = set()
        arguments, params = self.arguments, self.params = self.oracle.call(draw)
        try:
            self.op.shape(*(tvmfun.ShapeDtype(x.shape, x.dtype) for x in arguments), **params)
        except errors.DtypeError as error:
            self.refusal = error.args[0]
            with pytest.raises(errors.DtypeError):
                self.op(*map(tnp.asarray, arguments), **params)
            return
        self.ours = lambda *xs: self.oracle.view(self.op(*xs, **params))
        self.theirs = lambda *xs: self.oracle.view(self.oracle.function(*xs, **params))
        self.tangents = [derivatives.like(arguments[i], seed=i).astype(arguments[i].dtype) for i in floats(arguments)]
        self.stacked = [np.stack([x, x / x.dtype.type(2) if dtypes.is_float(x.dtype) else x]) for x in arguments]
        self.avals = parts(jax.eval_shape(self.theirs, *map(jnp.asarray, arguments)))
        results = [part for part in self.avals if dtypes.is_float(np.dtype(part.dtype))]
        self.differentiable = bool(self.tangents and results) and self.op.name not in NOT_DIFFERENTIABLE

    @property
    def inputs(self) -> tuple:
        return self.arguments, self.tangents, self.stacked

    @property
    def widened_inputs(self) -> tuple:
        return tuple([self.widened(x) for x in part] for part in self.inputs)

    def of_jax(self, arguments: Any, tangents: Any, stacked: Any) -> tuple:
        """The value, the derivatives and the batched value."""
        batched = jax.vmap(self.theirs)(*stacked) if self.is_whole else ()
        return *self.whole(jax, jnp.cos, self.theirs, arguments, tangents), batched

    def of_ours(self, arguments: Any, tangents: Any, stacked: Any) -> tuple:
        """The same, here."""
        batched = tvmfun.vmap(self.ours)(*stacked) if self.is_whole else ()
        return *self.whole(tvmfun, tnp.cos, self.ours, arguments, tangents), batched

    def check(self, got: tuple, expected: tuple, has_dynamic: bool) -> None:
        """Compares the results, eager ones, and those of a dynamic axis."""
        value, moved, batched = expected
        if self.is_whole:
            self.agree("eager", parts(self.ours(*map(tnp.asarray, self.arguments))), value, self.avals)
            self.agree("vmap", parts(got[2]), parts(batched), None)
        self.agree("jit", got[0], value, self.avals)
        self.agree_on_derivatives("", got[1], moved)
        if has_dynamic:
            self.dynamic(value, moved)

    def widened(self, x: np.ndarray) -> np.ndarray:
        """The expected values: half precision is computed in float32, so that only our error counts."""
        half = self.dtype.itemsize == 2 and dtypes.is_float(self.dtype) and self.op.name != "bitcast"
        return x.astype(np.float32) if half and x.dtype == self.dtype else x

    def whole(self, module: Any, cos: Callable, call: Callable, arguments: Any, tangents: Any) -> tuple:
        moved = derivatives_of(module, cos, call, arguments, tangents) if self.differentiable else ()
        return parts(call(*arguments)), moved

    def agree_on_derivatives(self, form: str, got: Any, expected: Any) -> None:
        if self.differentiable:
            self.agree(f"{form}jvp", got[0], expected[0], None)
            self.agree(f"{form}vjp", got[1], expected[1], None)

    def agree(self, form: str, got: tuple, expected: tuple, avals: tuple | None) -> None:
        where = f"{dtypes.NAMES[self.dtype]} {form}"
        for x, y, aval in zip(got, expected, avals or expected, strict=True):
            assert x.shape == y.shape, where
            kinds = np.dtype(x.dtype).kind, np.dtype(aval.dtype).kind
            if avals is not None:  # JAX's integers may be wider than ours
                assert x.dtype == aval.dtype or kinds == ("i", "i"), where
            reference = np.asarray(y, np.float64)
            finite = np.abs(reference[np.isfinite(reference)])
            tolerance = TOLERANCES.get(dtypes.NAMES[self.dtype], 1e-9) if dtypes.is_float(np.dtype(x.dtype)) else 0
            scale = tolerance * max(1.0, finite.max(initial=0.0))
            np.testing.assert_allclose(np.asarray(x, np.float64), reference, tolerance, scale, err_msg=where)
        self.forms[form] = self.forms.get(form, 0) + 1

    def dynamic(self, value: tuple, moved: tuple) -> None:
        """The same with a dynamic axis, if there is one for which a program can be written."""
        arguments, params = self.arguments, self.params
        case = Case(lambda: None, arguments, params)
        if not can_be_dynamic(case):
            return
        places = floats(arguments)

        def call(*args: Any, **params: Any) -> tuple:
            of = lambda *xs: self.oracle.view(self.op(*xs, **params))
            return self.whole(tvmfun, tnp.cos, of, args[: len(arguments)], args[len(arguments) :])

        for axes, named in variants(case):
            full = Case(case.reference, (*arguments, *self.tangents), params)
            try:
                program = traced(call, full, [*axes, *(axes[i] for i in places)], named)
                compiled = tvmfun.jit(program).lower(*program.in_avals).compile()
            except errors.TvmfunError as error:
                self.static.add(str(error))
                continue
            got = compiled(*full.arguments)
            self.agree("dynamic", got[0], value, None)
            self.agree_on_derivatives("dynamic ", got[1], moved)
            return


def drawn(check: Callable[[Draw], None], dtype: np.dtype, examples: int, plain: bool = False) -> None:
    """Calls ``check`` with as many draws; a failure is not made smaller, which would take minutes."""

    @settings(max_examples=examples, database=None, phases=[Phase.generate])
    @given(st.data())
    def run(data: Any) -> None:
        check(Draw(data.draw, dtype, plain))

    run()


def compared(name: str, chosen: Sequence[np.dtype]) -> list[Comparison]:
    """The comparisons of an op with some dtypes; all that are not refused are one Program, which compiles sooner."""
    found: list[Comparison] = []
    with oracle.x64():
        for dtype in chosen:
            add = lambda draw, dtype=dtype: found.append(Comparison(name, dtype, draw))
            drawn(add, dtype, examples=1, plain=dtype != np.float64)
        active = [one for one in found if not one.refusal]
        of_all = lambda calls: lambda inputs: [call(*given) for call, given in zip(calls, inputs, strict=True)]
        expected = jax.jit(of_all([one.of_jax for one in active]))([one.widened_inputs for one in active])
    got = tvmfun.jit(of_all([one.of_ours for one in active]))([one.inputs for one in active])
    dynamic = [one for one in active if dtypes.NAMES[one.dtype] in DYNAMIC and name not in DECOMPOSITIONS]
    of_width = {one.dtype.itemsize: one for one in dynamic}
    for one, *results in zip(active, got, expected, strict=True):
        one.check(*results, has_dynamic=one is of_width.get(one.dtype.itemsize))
    return found


# Every op in double precision, and one op of each kind with every dtype, is quick.
FLOAT64 = [np.dtype("float64")]
OTHERS = [dtype for dtype in dtypes.ALL if dtype != np.float64]


@pytest.mark.quick("*-float64", "add-*", "sum-*", "scatter-*", "dot_general-*")
@pytest.mark.parametrize("chosen", [FLOAT64, OTHERS], ids=["float64", "others"])
@pytest.mark.parametrize("name", ORACLES)
def test_agrees_with_jax(name: str, chosen: list[np.dtype], record_property: Callable):
    refusals = lambda one: [one.refusal] if one.refusal else sorted(one.static)[:1]
    rows = [(name, dtypes.NAMES[one.dtype], one.forms, *refusals(one)) for one in compared(name, chosen)]
    record_property("against_jax", rows)


#: Ops whose derivative finite differences cannot check: rounding to few digits, and `stop_gradient`.
NOT_BY_DIFFERENCES = {"astype", "stop_gradient"}
DIFFERENTIABLE = [name for name in ORACLES if REGISTRY[name].vjp or REGISTRY[name].pullback]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if name not in NOT_BY_DIFFERENCES])
def test_finite_differences_on_drawn_shapes(name: str):
    op, oracle = REGISTRY[name], ORACLES[name]

    def check(draw: Draw) -> None:
        arguments, params = oracle.call(draw)
        places = floats(arguments)

        def of_floats(*values: Any) -> tuple:
            full = list(map(tnp.asarray, arguments))
            for i, value in zip(places, values, strict=True):
                full[i] = value
            return tuple(part for part in parts(oracle.view(op(*full, **params))) if dtypes.is_float(part.dtype))

        derivatives.check(of_floats, [arguments[i] for i in places])

    drawn(check, np.dtype("float64"), examples=3)
