import copy
import pickle

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors, trace
from tvmfun.core.program import Program

VECTOR = ShapeDtype((3,), "float32")


def test_shows_the_program(capsys):
    trace(lambda x: tnp.sum(tnp.exp(x) * 2.0))(VECTOR).show()
    assert capsys.readouterr().out == (
        "program <lambda>(a: float32[3]) {\n"
        "  b: float32[3] = exp(a)\n"
        "  c: float32[3] = multiply(b, 2.0:float32)\n"
        "  d: float32[] = sum(c, axis=(0,))\n"
        "  return d\n"
        "}\n"
    )


def test_arguments_are_trees_of_arrays_numbers_or_specifications():
    program = trace(lambda p, *, scale: {"y": p["w"] * scale})({"w": np.ones(2)}, scale=3.0)
    assert [repr(aval) for aval in program.in_avals] == ["float64[2]", "float32[]"]
    assert program.in_avals[1].weak
    assert program({"w": np.ones(2)}, scale=3.0)["y"].dtype == np.float64


def test_arrays_from_outside_are_captured():
    weight = tnp.asarray([1.0, 2.0, 3.0])
    program = trace(lambda x: x * weight + np.ones(3, "float32"))(VECTOR)
    assert len(program.captured) == 2
    np.testing.assert_array_equal(program(np.ones(3, "float32")), [2, 3, 4])


def test_values_of_an_outer_trace_are_captured():
    def outer(x):
        inner = trace(lambda y: y * x)(VECTOR)
        assert len(inner.captured) == 1
        return inner(x)

    np.testing.assert_array_equal(tvmfun.jit(outer)(np.full(3, 3, "float32")), [9, 9, 9])


def test_what_is_not_needed_is_left_out():
    def wasteful(x):
        tnp.exp(x)
        return x + 1.0

    assert [str(e.op) for e in trace(wasteful)(VECTOR).equations] == ["add"]


def test_python_control_flow_on_static_values():
    def power(x, n):
        return x if n == 0 else power(x, n - 1) * x

    program = trace(lambda x: power(x, 3))(VECTOR)
    assert [str(e.op) for e in program.equations] == ["multiply"] * 3


def test_shapes_are_static():
    program = trace(lambda x: x / x.shape[0] if x.ndim == 1 else x)(VECTOR)
    assert "3.0:float32" in program.text


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        (lambda x: x if x[0] > 0 else -x, "where"),
        (lambda x: float(x[0]), "tvmfun.numpy"),
        (lambda x: int(x[0]), "tvmfun.numpy"),
        (lambda x: np.asarray(x), "tvmfun.numpy"),
        (lambda x: x.tolist(), "tvmfun.numpy"),
        (lambda x: list(range(x.astype("int32")[0])), "tvmfun.numpy"),
        (lambda x: x[x > 0], "where"),
    ],
)
def test_a_traced_value_where_python_needs_data(use, hint):
    with pytest.raises(errors.ConcretizationError, match=hint):
        trace(use)(VECTOR)


def test_a_leaked_value_says_where_it_comes_from():
    leaked = []

    def leak(x):
        leaked.append(x * 2)
        return x

    tvmfun.jit(leak)(np.ones(3, "float32"))
    with pytest.raises(errors.LeakedTracerError, match=r"float32\[3\] traced in 'leak'.*returning it"):
        leaked[0] + 1.0
    with pytest.raises(errors.LeakedTracerError):
        np.asarray(leaked[0])
    with pytest.raises(errors.LeakedTracerError):
        tvmfun.jit(lambda y: y + leaked[0])(np.ones(3, "float32"))


def test_an_exception_ends_the_trace():
    with pytest.raises(ZeroDivisionError):
        trace(lambda x: 1 / 0)(VECTOR)
    assert isinstance(tnp.asarray(1.0) + 1.0, tvmfun.Array)
    assert float(tnp.asarray(1.0) + 1.0) == 2.0


@pytest.mark.parametrize("value", ["text", object(), 1j])
def test_what_cannot_be_an_array(value):
    with pytest.raises(errors.DtypeError, match="neither an array nor a number|not supported"):
        trace(lambda x: x)(value)


def test_a_result_that_is_no_array():
    with pytest.raises(errors.DtypeError, match="the result is neither"):
        trace(lambda x: "text")(VECTOR)


def test_results_may_be_arguments_constants_and_none():
    program = trace(lambda x: (x, None, 2.0, {"again": x}))(VECTOR)
    x = np.arange(3, dtype="float32")
    same, nothing, two, again = program(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(again["again"], x)
    assert nothing is None
    assert float(two) == 2.0


def test_the_wrong_arguments_for_a_program():
    program = trace(lambda p: p["w"] + p["b"])({"w": VECTOR, "b": VECTOR})
    good = np.ones(3, "float32")
    with pytest.raises(errors.TreeError, match="'b'"):
        program({"w": good})
    with pytest.raises(errors.ShapeError, match=r"\['w'\].*float32\[3\], got float32\[4\]"):
        program({"w": np.ones(4, "float32"), "b": good})
    with pytest.raises(errors.DtypeError, match=r"\['b'\].*float32\[3\], got float64\[3\]"):
        program({"w": good, "b": np.ones(3)})


def test_verify_accepts_traced_programs_and_finds_mistakes():
    program = trace(lambda x, y: tnp.tanh(x) @ y)(VECTOR, ShapeDtype((3, 2), "float32")).verify()
    wrong = Program(
        program.inputs[::-1],
        program.equations[1:],
        program.outputs,
        program.in_tree,
        program.out_tree,
    )
    with pytest.raises(errors.ProgramError, match="before it is defined"):
        wrong.verify()


def test_reads_relax_functions_written_elsewhere():
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.exp(x))
            z = builder.emit(relax.op.sum(y, axis=[-1]))
            out = builder.emit_output(relax.op.multiply(z, relax.const(np.asarray([2.0, 3.0], "float32"))))
        builder.emit_func_output(out)
    program = Program.from_relax(builder.get()["main"])
    value = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_allclose(program(value), np.exp(value).sum(-1) * [2, 3], rtol=1e-6)
    gradient = tvmfun.grad(lambda x: tnp.sum(program(x)))(value)
    np.testing.assert_allclose(gradient, np.exp(value) * [[2], [3]], rtol=1e-6)


def test_relax_operators_without_a_record_are_named():
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nonzero(x))
        builder.emit_func_output(out)
    with pytest.raises(errors.ProgramError, match=r"relax\.nonzero"):
        Program.from_relax(builder.get()["main"])


@pytest.mark.parametrize(
    "start",
    [tvmfun.trace, tvmfun.jit, lambda f: lambda *args: tvmfun.eval_shape(f, *args), tvmfun.grad],
    ids=["trace", "jit", "eval_shape", "grad"],
)
def test_a_leaf_that_is_no_array_is_named(start):
    with pytest.raises(errors.DtypeError, match=r"argument 0\['name'\] is neither .*got str 'a'"):
        start(lambda d: d["x"] * 1.0)({"x": 1.0, "name": "a"})


def test_a_result_that_is_no_array_is_named():
    with pytest.raises(errors.DtypeError, match=r"the result\['name'\] is neither"):
        tvmfun.trace(lambda x: {"x": x, "name": "a"})(1.0)


def test_arrays_of_other_libraries_are_constants():
    jnp = pytest.importorskip("jax.numpy")
    two = jnp.full(2, 2.0)
    for f in (lambda x: two, lambda x: x + two - x, lambda x: x * 0 + jnp.float32(2)):
        np.testing.assert_array_equal(np.broadcast_to(tvmfun.jit(f)(1.0), 2), [2.0, 2.0])


def test_copies_are_the_same():
    program = tvmfun.trace(lambda x: copy.deepcopy(x) @ x)(np.ones(3, "float32"))
    program.verify()
    assert program.function is not None  # holds objects of TVM that cannot be copied
    assert copy.deepcopy({"p": program})["p"] is program and copy.copy(program) is program
    with pytest.raises(errors.ConcretizationError, match="pickle"):
        tvmfun.trace(pickle.dumps)(1.0)
