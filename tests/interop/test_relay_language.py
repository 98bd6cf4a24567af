"""Relay's text format: what the grammar allows, what is refused, and where errors say it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.relay_text import HEADER, encoded, metadata, new_metadata, params_file

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, ProgramError, ShapeError, TreeError
from tvmfun.interop.relay import from_relay, load_params

X = np.array([1.0, -2.0], "float32")


def main(body: str, arguments: str = "%x: Tensor[(2), float32]", rest: str = "") -> str:
    return f"{HEADER}def @main({arguments}) {{\n  {body}\n}}\n{rest}"


def value(text: str, *inputs: Any) -> Any:
    result = from_relay(text)[0]({}, *(inputs or (X,)))
    return tvmfun.tree.map(np.asarray, result)


# -- what is read ------------------------------------------------------------------------------------------------------

BODIES = {
    "graph bindings": ("%0 = exp(%x);\n  %1 = add(%0, %0);\n  multiply(%1, %0)", 2 * np.exp(X) ** 2),
    "a let": ("let %y: Tensor[(2), float32] = exp(%x); %y", np.exp(X)),
    "a name that is bound again": ("let %x = negative(%x); let %x = negative(%x); %x", X),
    "a closure": ("let %f = fn (%a: Tensor[(2), float32]) -> Tensor[(2), float32] { add(%a, %x) }; %f(%f(%x))", 3 * X),
    "a closure of a closure": ("let %f = fn (%a) { fn (%b) { subtract(%a, %b) } }; %f(%x)(exp(%x))", X - np.exp(X)),
    "a function that is called where it is written": ("fn (%a) { negative(%a) }(%x)", -X),
    "an operator as a value": ("let %f = negative; %f(%x)", -X),
    "a primitive function": ('%0 = fn (%p, Primitive=1, hash="a1") { negative(%p) };\n  %0(%x)', -X),
    "a tuple": ("%0 = (%x, (negative(%x),));\n  %0.1.0", -X),
    "operators between expressions": ("%x + %x * 3f - %x / 2f", X + X * 3 - X / 2),
    "operators in parentheses": ("(%x + 1f) * 3f", (X + 1) * 3),
    "comparisons": ("%x < 0f", X < 0),
    "a let in parentheses": ("add((let %y = exp(%x); %y), 1f)", np.exp(X) + 1),
    "a block": ("{ let %y = exp(%x); %y }", np.exp(X)),
    "expressions without names": ("exp(%x); negative(%x)", -X),
    "comments": ("/* a /* nested */ one */ negative(%x /* ty=Tensor[(2), float32] span=a.py:1:2 */) // end", -X),
    "a trailing comma": ("add(%x, %x, )", 2 * X),
    "negative and scientific numbers": ("add(%x, multiply(-1.5e-1f, --2f))", X + np.float32(-0.15) * np.float32(2)),
    "infinity": ("minimum(%x, inff)", X),
    "a branch that is known": ("if (True) { negative(%x) } else { %x }", -X),
    "nested branches": (
        "if (sum(%x) < 0f) { if (max(%x) > 5f) { %x } else { negative(%x) } } else { exp(%x) }",
        -X,
    ),
    "a tuple from branches": ("%0 = if (any(%x < 0f)) { (%x, %x) } else { (exp(%x), %x) };\n  %0.0", X),
    "attributes in parentheses": ("sum(%x, axis=(0,), keepdims=True)", np.array([-1.0])),
    "an attribute without a value": ("transpose(%x, axes=None)", X),
    "a null attribute": ("sum(%x, axis=nullptr)", np.float32(-1)),
}


@pytest.mark.parametrize("name", BODIES)
def test_expressions(name: str):
    body, wanted = BODIES[name]
    np.testing.assert_allclose(value(main(body)), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [("1", "int32"), ("1i64", "int64"), ("-1i16", "int16"), ("3000000000", "int64"), ("1f", "float32"),
     ("1.5", "float32"), ("1f64", "float64"), ("1f16", "float16"), ("True", "bool"), ("1e3", "float32"),
     ("200u8", "uint8")],
)  # fmt: skip
def test_numbers_have_the_types_of_their_suffixes(number: str, dtype: str):
    assert value(main(number)).dtype.name == dtype


def test_an_attribute_keeps_its_double_precision():
    text = main("nn.leaky_relu(%x, alpha=0.1f)", "%x: float64")
    assert float(value(text, np.float64(-1))) == -0.1


def test_functions_of_the_module_in_any_order():
    twice = "def @twice(%f: fn (float32) -> float32, %x: float32) { %f(%f(%x)) }"
    rest = f"{twice}\ndef @g(%x: float32) -> float32 {{ exp(%x) }}"
    text = main("@twice(@g, %x)", "%x: float32", rest)
    np.testing.assert_allclose(value(text, np.float32(0.5)), np.exp(np.exp(0.5)), rtol=1e-6)
    np.testing.assert_allclose(from_relay(text, function="g")[0]({}, 0.5), np.exp(0.5), rtol=1e-6)


def test_type_parameters_are_not_checked():
    text = main("@pair(%x, %x).1", rest="def @pair[A, B](%a: A, %b: B) -> (A, B) { (%a, negative(%b)) }")
    np.testing.assert_array_equal(value(text), -X)


def test_a_function_without_a_module():
    np.testing.assert_array_equal(value(f"{HEADER}fn (%x: Tensor[(2), float32]) {{ negative(%x) }}"), -X)


def test_names_with_dots_and_devices():
    arguments = "%block.0.weight {virtual_device=meta[VirtualDevice][0]}: Tensor[(2), float32], %t: (float32, float32)"
    text = main("(multiply(%block.0.weight, %t.1), %t.0)", arguments)
    function, params = from_relay(text, {"block.0.weight": X})
    scaled, first = function(params, (2.0, 3.0))
    np.testing.assert_array_equal(scaled, 3 * X)
    assert float(first) == 2


def test_names_that_end_with_numbers():
    text = main("let %y.0.1 = exp(%x.1);\n  (%y.0.1, %x.1, %x.0).0", "%x.1: float32, %x: (float32, float32)")
    np.testing.assert_allclose(from_relay(text)[0]({}, 0.5, (2.0, 3.0)), np.exp(0.5), rtol=1e-6)
    function, params = from_relay(main("negative(%input.1)", "%input.1: float32"), {"input.1": 2.0})
    assert float(function(params)) == -2


def test_numbers_are_as_precise_as_the_type_that_is_written():
    assert float(value(main("%x", "%x: float64"), 0.3)) == 0.3


def test_inputs_by_name():
    function, params = from_relay(main("divide(%a, %b)", "%a: float32, %b: float32, %c: float32"), {"c": 1.0})
    assert float(function(params, b=2.0, a=6.0)) == float(function(params, 6.0, b=2.0)) == 3


@pytest.mark.parametrize("section", [metadata, new_metadata])
def test_constants_of_both_formats(section: Any):
    arrays = (np.arange(4, dtype="float32").reshape(2, 2), np.array([True, False]), np.float32(2.5))
    body = "multiply(where(meta[relay.Constant][1], meta[relay.Constant][0], %x), meta[relay.Constant][2])"
    text = main(body) + section(*arrays)
    np.testing.assert_array_equal(value(text), np.where(arrays[1], arrays[0], X) * 2.5)


def test_a_constant_is_captured_once():
    text = main("add(meta[relay.Constant][0], multiply(%x, meta[relay.Constant][0]))") + metadata(X)
    assert len(tvmfun.trace(lambda x: from_relay(text)[0]({}, x))(X).captured) == 1


def test_branches_depend_on_data_and_are_differentiated():
    text = main("if (sum(%x) > 0f) { sum(exp(%x)) } else { sum(multiply(%x, %x)) }")
    function = from_relay(text)[0]
    gradient = tvmfun.jit(tvmfun.grad(lambda x: function({}, x)))
    for x in (X, -X):
        np.testing.assert_allclose(gradient(x), np.exp(x) if x.sum() > 0 else 2 * x, rtol=1e-6)
    batched = tvmfun.vmap(lambda x: function({}, x))(np.stack([X, -X]))
    np.testing.assert_allclose(batched, [(X * X).sum(), np.exp(-X).sum()], rtol=1e-6)


def test_constants_can_be_parameters():
    arrays = (np.ones((2, 3), "float32"), np.array([0, 1], "int32"), np.float32(2), np.zeros(2, "float32"))
    body = "add(nn.dense(%x, meta[relay.Constant][0]), multiply(meta[relay.Constant][3], meta[relay.Constant][2]))"
    text = main(f"take({body}, meta[relay.Constant][1], axis=1)", "%x: Tensor[(4, 3), float32]") + metadata(*arrays)
    function, params = from_relay(text, constants=True)
    assert list(params) == ["constant0", "constant3"]
    x = np.ones((4, 3), "float32")
    gradient = tvmfun.grad(lambda params: tnp.sum(function(params, x)))(params)
    np.testing.assert_array_equal(gradient["constant0"], np.full((2, 3), 4.0))
    np.testing.assert_array_equal(gradient["constant3"], [8, 8])
    np.testing.assert_array_equal(function(params, x), from_relay(text)[0]({}, x))
    with pytest.raises(ArgumentError, match="an argument has the name of a constant, got %constant0"):
        from_relay(
            main("add(%constant0, meta[relay.Constant][0])", "%constant0: float32") + metadata(X), constants=True
        )
    with pytest.raises(ShapeError, match=r"%constant3 must be Tensor\[\(2\), float32\]"):
        function({**params, "constant3": np.zeros(3, "float32")}, x)


def test_statistics_that_are_constants_are_updated():
    arrays = tuple(np.full(3, value, "float32") for value in (1.0, 0.0, 0.0, 1.0))
    statistics = ", ".join(f"meta[relay.Constant][{i}]" for i in range(4))
    text = main(f"nn.batch_norm(%x, {statistics}).0", "%x: Tensor[(?, 3), float32]") + metadata(*arrays)
    function, params = from_relay(text, train=True, constants=True)
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    _, new = function(params, x)
    np.testing.assert_allclose(new["constant2"], 0.1 * x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(new["constant3"], 0.9 + 0.1 * x.var(0, ddof=1), rtol=1e-5)


# -- files of parameters -----------------------------------------------------------------------------------------------

ARRAYS = {
    "w": np.arange(6, dtype="float32").reshape(2, 3),
    "émpty": np.zeros((0, 2), "int64"),
    "scalar": np.float64(2.5),
    "half": np.ones(3, "float16"),
    "brain": np.ones(3, tnp.bfloat16),
    "mask": np.array([True, False]),
    "byte": np.arange(3, dtype="uint8"),
}


def test_files_of_parameters(tmp_path: Path):
    path = tmp_path / "net.params"
    path.write_bytes(params_file(ARRAYS))
    for found in (load_params(path), load_params(str(path)), load_params(path.read_bytes())):
        assert list(found) == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert found[name].dtype == np.asarray(array).dtype
            np.testing.assert_array_equal(np.asarray(found[name]), array)


def test_files_that_tvm_writes():
    import tvm

    arrays = {name: np.asarray(array) for name, array in ARRAYS.items() if name not in ("brain", "mask")}
    data = tvm.runtime.save_param_dict({name: tvm.runtime.tensor(array) for name, array in arrays.items()})
    assert {name: np.asarray(x).tolist() for name, x in load_params(bytes(data)).items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED = {
    "def @main(%x: int32) { @main(%x) }": r"line 2, column 24: recursion is not read.*@main",
    "def @main(%x: int32) { @f(%x) }\ndef @f(%x: int32) { @g(%x) }\ndef @g(%x: int32) { @f(%x) }": (
        r"line 4, column 21: recursion"
    ),
    "def @main(%x: int32) { let %f = fn (%a) { %f(%a) }; %f(%x) }": r"line 2, column 43: recursion.*%f",
    "type List[A] { Cons(A, List[A]), Nil, }": r"line 2, column 1: algebraic data types are not read, got type",
    "def @main(%x: List[int32]) { %x }": r"line 2, column 15: algebraic data types are not read, got List",
    "def @main(%x) { match (%x) { Nil => 1 } }": r"line 2, column 17: algebraic data types are not read, got match",
    "def @main(%x: ref(int32)) { %x }": r"line 2, column 15: references are not read",
    "def @main(%x: int32) { ref(%x) }": r"line 2, column 24: references are not read: a Program has no mutable cells",
    "def @main(%x: int32) { ref_write(%x, 1) }": r"line 2, column 24: references",
    "free_var %x: int32; %x": r"line 2, column 1: a program must not have free variables",
    "def @main() { %x }": r"line 2, column 15: the name is not bound, got %x",
    "def @main() { %0 = 1; { %1 = 2; %1 }; %1 }": r"line 2, column 39: the name is not bound, got %1",
    "def @main() { @f() }": r"line 2, column 15: the function is not defined, got @f",
    "def @f() { 1 }\ndef @f() { 1 }": r"line 3, column 5: a function is defined twice, got @f",
    "def @main = meta[ExternalFunc][0]": r"line 2, column 5: external functions are not read",
    "def @main(%x: int32, %x: int32) { %x }": r"line 2, column 22: two parameters have the same name",
    "def @main(%x: Tensor[(2), float33]) { %x }": r"line 2, column 27: the dtype is not supported, got float33",
    "def @main(%x: Tensor[(4294967296), int8]) { %x }": r"line 2, column 23: a size must be an integer up to",
    "def @main() { 1i7 }": r"line 2, column 15: this is not a number of a known type, got 1i7",
    "def @main() { 300u8 }": r"line 2, column 15: the integer does not fit uint8",
    "def @main() { negative(1 }": r"line 2, column 26: \) should be here, got }",
    "def @main() { let %x = 1 %x }": r"line 2, column 26: ; should be here, got %x",
    "def @main() { sum(1f, axis=[0], axis=[1]) }": r"line 2, column 33: an attribute is there twice, got axis",
    "def @main() { $ }": r"line 2, column 15: this is not a part of Relay's text format, got '\$'",
    "def @main() { /* 1 }": r"line 2, column 15: the comment does not end",
    f"def @main() {{ {'(' * 100}1{')' * 100} }}": r"expressions are nested in more than 64 levels",
    "def @main() { reshape(1f, newshape=[?]) }": r"an attribute must not depend on dynamic sizes",
}


@pytest.mark.parametrize("text", REFUSED)
def test_texts_that_are_refused_when_they_are_read(text: str):
    with pytest.raises(ProgramError, match=REFUSED[text]):
        from_relay(HEADER + text)


FAILING = {
    "argwhere(%x)": "line 3, column 3: this operator is not read: the sizes of the result depend on data, got argwhere",
    "qnn.dense(%x)": "this operator is not read: quantized arithmetic has no derivative",
    "frobnicate(%x)": "this operator is not read: the table has no translation, got frobnicate",
    "exp(%x)(%x)": "only functions and operators are called",
    "add(%x)": "line 3, column 3: add: it takes 2 arguments, got 1",
    "add(%x, 1)": "add: its arguments must have one dtype, got float32, int32. Try a cast before it",
    "sum(%x, axes=[0])": "sum: it has no attribute 'axes', got axes. Try one of axis, keepdims, exclude",
    "sum(%x, axis=1.5f)": "sum: the attribute 'axis' must be a list of integers",
    "sum(%x, axis=[3])": "sum: the axis must be one of 1, got 3",
    "cast(%x)": "cast: the attribute 'dtype' must be written",
    'cast(%x, dtype="float33")': "cast: the attribute 'dtype' must be one of bool",
    "cast(%x, dtype=1)": "cast: the attribute 'dtype' must be one of bool",
    "reshape(%x, newshape=[3])": "reshape",
    "%0 = (%x, %x);\n  %0.2": "line 4, column 6: the tuple has 2 fields, got .2",
    "%x.0": "only tuples have fields, got Tensor",
    "let %y: Tensor[(3), float32] = exp(%x); %y": r"line 3, column 3: the binding must be Tensor\[\(3\), float32\]",
    "let %f = fn (%a: int32) { %a }; %f(%x)": "%a must be int32|%a must be Tensor",
    "let %f = fn (%a) { %a }; %f(%x, %x)": "the function takes 1 arguments, got 2",
    "negative": "functions are not values here, got the operator negative",
    "add(negative, %x)": "functions are not values here",
    "if (%x) { %x } else { %x }": "a condition must be a bool without axes",
    "if (sum(%x) > 0f) { %x } else { sum(%x) }": "both branches must have the same type",
    "meta[relay.Constant][0]": "the metadata section lacks this constant",
    "meta[IntImm][0]": "of the metadata section only relay.Constant is read",
    'arange(0f, sum(%x), 1f, dtype="float32")': "arange: sizes must not depend on data",
    'zeros(shape=[100000, 100000, 100000], dtype="int8")': "a result must not be larger than the memory of any machine",
    "nn.conv2d(%x, %x)": "nn.conv2d: an array of the layout NCHW has 4 axes, got 1",
    'nn.global_avg_pool2d(%x, layout="NCHW16c")': "without blocks, got NCHW16c",
}


@pytest.mark.parametrize("body", FAILING)
def test_programs_that_are_refused_when_they_are_called(body: str):
    with pytest.raises(ProgramError, match=FAILING[body]):
        value(main(body))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "the text must begin with the version of the format"),
        ('#[version = "0.0.4"]', "only version 0.0.5 is read, got 0.0.4"),
        ("v0.0.4", "the text must begin with the version"),
    ],
)
def test_other_versions_are_refused(header: str, message: str):
    with pytest.raises(ProgramError, match=message):
        from_relay(f"{header}\ndef @main() {{ 1 }}")


def test_arguments_that_do_not_fit():
    text = main("add(%x, %w)", "%x: Tensor[(2), float32], %w: Tensor[(2), float32]")
    with pytest.raises(ArgumentError, match="@main has no argument of this name, got %v"):
        from_relay(text, {"v": X})
    with pytest.raises(ShapeError, match=r"%w must be Tensor\[\(2\), float32\]"):
        from_relay(text, {"w": np.ones(3, "float32")})
    with pytest.raises(ArgumentError, match="the text has no such function, got @other"):
        from_relay(text, function="other")
    with pytest.raises(ArgumentError, match="it reads text"):
        from_relay(text.encode())  # type: ignore
    function, params = from_relay(text, {"w": X})
    with pytest.raises(DtypeError, match="%x must be"):
        function(params, np.ones(2, "float64"))
    with pytest.raises(ArgumentError, match="it takes the inputs x"):
        function(params)
    with pytest.raises(TreeError, match="params must have 'w'"):
        function({}, X)


def test_statistics_are_not_updated_in_branches():
    arguments = ", ".join(f"%{name}: Tensor[(3), float32]" for name in ("g", "b", "m", "v"))
    body = "if (%p) { nn.batch_norm(%x, %g, %b, %m, %v).0 } else { %x }"
    text = main(body, f"%p: bool, %x: Tensor[(2, 3), float32], {arguments}")
    values = {name: np.ones(3, "float32") for name in "gbmv"}
    function, params = from_relay(text, values, train=True)
    with pytest.raises(ProgramError, match="statistics must not be updated in a branch"):
        function(params, True, np.ones((2, 3), "float32"))


def test_metadata_that_is_damaged():
    text = main("meta[relay.Constant][0]")
    for section in ("{", "[]", '{"root": 1, "nodes": []}', '{"root": -1, "nodes": [{}]}', "[" * 100000):
        with pytest.raises(ProgramError, match="metadata section"):
            value(f"{text}#[metadata]{section}")
    cut = metadata(X).replace(chr(34) + "root", chr(34) + "r00t")
    with pytest.raises(ProgramError, match="the metadata section lacks this constant"):
        value(text + cut)


def test_arrays_whose_size_is_not_that_of_their_shape():
    data = bytearray(params_file({"w": X}))
    at = len(data) - X.nbytes - 16
    data[at : at + 8] = (2**40).to_bytes(8, "little")
    with pytest.raises(ProgramError, match="the size of an array is not that of its shape"):
        load_params(bytes(data))
    assert len(encoded(X)) == 28 + 4 + 16 + X.nbytes
