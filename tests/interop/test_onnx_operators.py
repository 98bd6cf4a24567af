"""Operators and options that ONNX's suite does not have, against onnxruntime or ONNX's own reference."""

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import tvmfun  # noqa: E402
from tvmfun import errors, random  # noqa: E402
from tvmfun.interop.onnx import from_onnx  # noqa: E402

pytestmark = pytest.mark.interop

RNG = np.random.default_rng(0)
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def whole(*values):
    return np.asarray(values, np.int64)


def model(operator, inputs, outputs=1, opset=21, constants=None, **attributes):
    """A model of one node; None is an input that is left out."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    types = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs if x is not None]
    shapes = [x.shape for x in inputs if x is not None]
    declared = map(helper.make_tensor_value_info, filter(None, names), types, shapes)
    results = [f"o{k}" for k in range(outputs)]
    kinds = {"TopK": INT64}
    found = [helper.make_tensor_value_info(name, kinds.get(operator, 0) or 1, None) for name in results]
    node = helper.make_node(operator, names, results, **attributes)
    graph = helper.make_graph([node], operator, list(declared), found)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def expected(proto, arguments):
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {x.name: a for x, a in zip(proto.graph.input, arguments, strict=True)})


LSTM = {"hidden_size": 4}
CASES = {
    "average pool, valid": ("AveragePool", [draw(1, 2, 7, 7)], {"kernel_shape": [3, 3], "auto_pad": "VALID"}),
    "average pool, holes": ("AveragePool", [draw(1, 2, 9)], {"kernel_shape": [3], "dilations": [2], "pads": [1, 1]}),
    "global lp pool": ("GlobalLpPool", [draw(2, 3, 4, 4)], {"p": 3}),
    "GRU, reset after": (
        "GRU",
        [draw(5, 2, 3), draw(1, 12, 3), draw(1, 12, 4), draw(1, 24)],
        LSTM | {"linear_before_reset": 1},
    ),
    "LSTM, reverse": ("LSTM", [draw(5, 2, 3), draw(1, 16, 3), draw(1, 16, 4)], LSTM | {"direction": "reverse"}),
    "max pool, ceil": ("MaxPool", [draw(1, 2, 8)], {"kernel_shape": [2], "strides": [3], "ceil_mode": 1}),
    "resize, linear": ("Resize", [draw(1, 1, 4, 5), None, None, whole(1, 1, 7, 3)], {"mode": "linear"}),
    "softmax of a matrix": ("Softmax", [draw(2, 3, 4)], {"axis": 1, "opset": 11}),
    "squeeze by an attribute": ("Squeeze", [draw(1, 3, 1)], {"axes": [0], "opset": 11}),
    "slice by attributes": ("Slice", [draw(5, 4)], {"starts": [1, -3], "ends": [9, -1], "opset": 9}),
    "transposed convolution, groups": ("ConvTranspose", [draw(1, 4, 5), draw(4, 3, 3)], {"group": 2, "strides": [2]}),
}


@pytest.mark.quick("slice by attributes", "softmax of a matrix")
@pytest.mark.parametrize("name", CASES)
def test_operator(name):
    operator, inputs, options = CASES[name]
    proto = model(operator, inputs, **options)
    arguments = [x for x in inputs if x is not None]
    function, params = from_onnx(proto)
    static = {k.name: x for k, x in zip(function.inputs, arguments, strict=True) if k.is_static}
    moving = {k.name: x for k, x in zip(function.inputs, arguments, strict=True) if not k.is_static}
    got = tvmfun.jit(lambda moving: function(params, **static, **moving))(moving)
    (wanted,) = expected(proto, arguments)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_group_normalization_of_version_18_has_a_scale_for_each_group():
    x, scale, bias = draw(2, 4, 3), draw(2), draw(2)
    function, params = from_onnx(model("GroupNormalization", [x, scale, bias], opset=18, num_groups=2))
    groups = x.reshape(2, 2, 6)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    wanted = (normal * scale[:, None] + bias[:, None]).reshape(2, 4, 3)
    np.testing.assert_allclose(function(params, x, scale, bias), wanted, rtol=1e-4, atol=1e-5)


def test_regions_with_as_many_points_as_they_need():
    x, rois = draw(1, 2, 8, 8), np.asarray([[1, 1, 6, 7], [0, 0, 3, 2]], "float32")
    proto = model("RoiAlign", [x, rois, whole(0, 0)], opset=16, output_height=2, output_width=2, sampling_ratio=2)
    function, params = from_onnx(proto)
    wanted = expected(proto, [x, rois, whole(0, 0)])[0]
    np.testing.assert_allclose(function(params, x, rois, whole(0, 0)), wanted, rtol=1e-4, atol=1e-5)
    adaptive = from_onnx(model("RoiAlign", [x, rois, whole(0, 0)], opset=16, output_height=2, output_width=2))
    with pytest.raises(errors.ProgramError, match="regions must be known when the function is traced"):
        adaptive[0](adaptive[1], x, rois, whole(0, 0))


@pytest.mark.parametrize(
    ("operator", "inputs", "options"),
    [
        ("RandomNormal", [], {"shape": [2, 300], "mean": 3.0}),
        ("RandomUniform", [], {"shape": [2, 300], "low": 2.0, "high": 4.0}),
        ("Multinomial", [np.log(np.asarray([[1, 1, 2], [1, 1, 2]], "float32"))], {"sample_size": 300, "dtype": 1}),
    ],
)
def test_random_numbers(operator, inputs, options):
    function, params = from_onnx(model(operator, inputs, **options))
    draws = np.asarray(function(params, *inputs, key=random.key(0)))
    again = np.asarray(function(params, *inputs, key=random.key(1)))
    assert draws.shape == (2, 300) and (draws != again).any()
    mean = 1.25 if operator == "Multinomial" else 3.0
    np.testing.assert_allclose(draws.mean(), mean, atol=0.2)
    seeded, params = from_onnx(model(operator, inputs, seed=1.5, **options))
    np.testing.assert_array_equal(seeded(params, *inputs), seeded(params, *inputs))


# -- numbers of a few bits ---------------------------------------------------------------------------------------------

KINDS = [
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz),
    *(ml_dtypes.float4_e2m1fn, ml_dtypes.int4, ml_dtypes.uint4),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_few_bits_survives_casts_and_moves(kind):
    dtype = np.dtype(kind)
    is_float = dtype.name.startswith("float")
    x = np.arange(16 if "4" in dtype.name[:6] and "float8" not in dtype.name else 256, dtype=np.uint8)
    x = x.view(dtype) if "float" in dtype.name else x.astype(np.int8).astype(dtype)
    x = np.where(np.isinf(x.astype(np.float32)), np.zeros((), dtype), x)  # a cast makes it the largest number
    number = helper.np_dtype_to_tensor_dtype(dtype)
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"]),
        helper.make_node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["y"], to=number),
    ]
    types = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("x", number), ("f", 1), ("y", number))]
    shape = numpy_helper.from_array(whole(4, -1), "shape")
    graph = helper.make_graph(nodes, "g", types[:1], types[1:], [shape])
    function, params = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]))
    floats, bits = function(params, x)
    wanted = x.reshape(4, -1).T
    np.testing.assert_array_equal(floats, wanted.astype(np.float32))
    got = np.asarray(bits).view(dtype)
    np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))
    if is_float:  # numbers between, at ties, and out of range
        many = np.concatenate([RNG.normal(size=500) * 10.0 ** RNG.integers(-4, 3, 500), [0.0, -0.0, np.nan]])
        many = many.astype(np.float32)
        limit = float(ml_dtypes.finfo(dtype).max)
        cast, params = from_onnx(model_of_cast(number, many))
        clipped = np.clip(many, -limit, limit)
        got = np.asarray(cast(params, many)).view(dtype).astype(np.float32)
        np.testing.assert_array_equal(got, clipped.astype(dtype).astype(np.float32))


def model_of_cast(number, x):
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=number)]
    types = [helper.make_tensor_value_info("x", 1, x.shape)], [helper.make_tensor_value_info("y", number, None)]
    return helper.make_model(helper.make_graph(nodes, "g", *types), opset_imports=[helper.make_opsetid("", 25)])


def test_arithmetic_of_a_few_bits_is_refused():
    x = np.ones(3, ml_dtypes.float8_e5m2)
    function, params = from_onnx(model("Neg", [x]))
    with pytest.raises(errors.DtypeError, match="must have inputs of at least a byte, got float8_e5m2"):
        function(params, x)


# -- loops whose numbers are known -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "start", "total"), [(9, True, 10.0), (2, True, 3.0), (9, False, 0.0)])
def test_a_loop_over_known_numbers_ends_when_its_condition_does(steps, start, total):
    """The sum of 0, 1, 2, ... until it is at least 10."""
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["c", "f"], ["d"]),
        helper.make_node("Add", ["d", "one"], ["e"]),
        helper.make_node("Less", ["e", "ten"], ["going"]),
    ]
    scalar = lambda name, kind=1: helper.make_tensor_value_info(name, kind, ())
    inputs = [scalar("i", INT64), scalar("g", BOOL), scalar("c")]
    body = helper.make_graph(nodes, "body", inputs, [scalar("going", BOOL), scalar("e")])
    constants = {"one": np.float32(1), "ten": np.float32(10), "zero": np.float32(0)}
    constants |= {"n": np.int64(steps), "start": np.asarray(start)}
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()]
    loop = helper.make_node("Loop", ["n", "start", "zero"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", [], [scalar("y")], tensors)
    function, params = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), trainable=())
    assert float(function(params)) == total
    moving, params = from_onnx(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), trainable=["zero"]
    )
    assert float(tvmfun.jit(moving)(params)) == total
