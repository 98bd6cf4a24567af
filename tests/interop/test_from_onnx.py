"""Models of ONNX as functions: parameters, known values, control flow, files, and training."""

import io
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import tvmfun  # noqa: E402
import tvmfun.numpy as tnp  # noqa: E402
from tvmfun import errors, optim, random  # noqa: E402
from tvmfun.interop.onnx import from_onnx  # noqa: E402

pytestmark = pytest.mark.interop

RNG = np.random.default_rng(0)
node = helper.make_node


def draw(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def value(name, *shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def numbers(name, *shape):
    return value(name, *shape, dtype=TensorProto.INT64)


def model(nodes, inputs, outputs, initializers=(), opset=21, functions=(), **others):
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in dict(initializers).items()]
    graph = helper.make_graph(nodes, "network", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(k, v) for k, v in others.items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)


def graph(nodes, inputs, outputs):
    return helper.make_graph(nodes, "inner", inputs, outputs)


def expected(proto, *arguments):
    """The results of onnxruntime."""
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {x.name: np.asarray(a) for x, a in zip(proto.graph.input, arguments, strict=True)})


def check(proto, *arguments, rtol=1e-5):
    """Compares the jitted function with onnxruntime; static inputs are closed over."""
    function, params = from_onnx(proto)
    kinds = [x.is_static for x in function.inputs]

    def call(*moving):
        rest = iter(moving)
        return function(params, *(x if known else next(rest) for x, known in zip(arguments, kinds, strict=True)))

    got = tvmfun.jit(call)(*(x for x, known in zip(arguments, kinds, strict=True) if not known))
    got = got if isinstance(got, tuple) else (got,)
    for ours, wanted in zip(got, expected(proto, *arguments), strict=True):
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(ours, wanted, rtol=rtol, atol=rtol)


# -- parameters and inputs ---------------------------------------------------------------------------------------------


def affine(rows=2, **options):
    nodes = [node("Gemm", ["x", "w", "b"], ["y"]), node("Reshape", ["y", "shape"], ["z"])]
    weights = {"w": draw(3, 4), "b": draw(4), "shape": np.asarray([rows, -1])}
    return model(nodes, [value("x", "n", 3)], [value("z", 2, None)], weights, **options)


def test_floats_become_parameters_by_name():
    proto = affine()
    function, params = from_onnx(proto)
    assert sorted(params) == ["b", "w"]
    assert [(x.name, x.shape, x.dtype.name, x.is_static) for x in function.inputs] == [
        ("x", (None, 3), "float32", False)
    ]
    assert repr(function) == "OnnxFunction(network: x -> z)"
    check(proto, draw(4, 3))
    gradient = tvmfun.grad(lambda p: function(p, x=np.ones((4, 3), "float32")).sum())(params)
    np.testing.assert_allclose(gradient["b"], np.full(4, 4.0))
    function, params = from_onnx(proto, trainable=["w"])
    assert list(params) == ["w"]
    batched = tvmfun.vmap(function, in_axes=(None, 0))(params, draw(5, 4, 3))
    assert batched.shape == (5, 2, 8)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f, p: f({}, draw(4, 3)), errors.TreeError, "params must have 'b'"),
        (lambda f, p: f(p), errors.ArgumentError, "takes x, got 0 by position"),
        (lambda f, p: f(p, draw(4, 3), y=1), errors.ArgumentError, "takes x, got 1 by position and y by name"),
        (lambda f, p: f(p, draw(4, 5)), errors.ShapeError, r"'x' must have the shape \(None, 3\), got \(4, 5\)"),
        (lambda f, p: f(p, draw(4, 3, dtype="float64")), errors.DtypeError, "'x' must be float32, got float64"),
        (lambda f, p: from_onnx(affine(3))[0](p, draw(4, 3)), errors.ProgramError, "Reshape 'z' cannot be translated"),
        (lambda f, p: from_onnx(affine(), trainable=["shape"]), errors.ArgumentError, "trainable must have names"),
        (lambda f, p: from_onnx(3), errors.ArgumentTypeError, "must be one of ONNX, got int"),
        (lambda f, p: from_onnx("/nowhere.onnx"), errors.ProgramError, "cannot be read"),
    ],
)
def test_wrong_calls(call, error, match):
    with pytest.raises(error, match=match):
        call(*from_onnx(affine()))


def _with_bytes(old: bytes, new: bytes) -> bytes:
    content = affine().SerializeToString()
    assert old in content
    return content.replace(old, new)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (_with_bytes(b"Reshape", b"Resh\xffpe"), r"UTF-8, got b'Resh\\xffpe' as op_type"),
        (_with_bytes(b"shape", b"sh\xfepe"), r"UTF-8, got b'sh\\xfepe' as input"),
    ],
    ids=["operator", "value"],
)
def test_names_that_are_no_text(content, match):
    with pytest.raises(errors.ProgramError, match=match):
        from_onnx(content)


@pytest.mark.parametrize("version", [0, 9999, 2**40])
def test_unknown_operator_sets_are_refused(version):
    model = affine()
    model.opset_import[0].version = version
    with pytest.raises(errors.ProgramError, match=f"must have a version up to .*, got version {version}"):
        from_onnx(model)


def test_statistics_and_scales_stay_constants():
    nodes = [
        node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["y"]),
        node("QuantizeLinear", ["y", "step"], ["q"]),
        node("DequantizeLinear", ["q", "step"], ["z"]),
    ]
    weights = {"scale": draw(3), "bias": draw(3), "mean": draw(3), "variance": draw(3) ** 2, "step": np.float32(0.1)}
    proto = model(nodes, [value("x", 2, 3, 4)], [value("z", 2, 3, 4)], weights)
    assert sorted(from_onnx(proto)[1]) == ["bias", "scale"]
    check(proto, draw(2, 3, 4))


# -- known values ------------------------------------------------------------------------------------------------------


def test_sizes_computed_from_shapes():
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "first"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["lead"]),
        node("Div", ["lead", "two"], ["half"]),
        node("Concat", ["half", "minus"], ["sizes"], axis=0),
        node("Reshape", ["x", "sizes"], ["y"]),
        node("Cast", ["half"], ["float"], to=TensorProto.FLOAT),
        node("Mul", ["y", "float"], ["z"]),
    ]
    constants = {"first": np.int64(0), "axes": np.asarray([0]), "two": np.asarray([2]), "minus": np.asarray([-1])}
    check(model(nodes, [value("x", 6, 4)], [value("z", 3, 8)], constants), draw(6, 4))


def test_an_input_that_must_be_known():
    nodes = [node("Add", ["shape", "one"], ["more"]), node("Expand", ["x", "more"], ["y"])]
    proto = model(nodes, [value("x", 3), numbers("shape", 2)], [value("y", None, None)], {"one": np.asarray([1, 0])})
    function, params = from_onnx(proto)
    assert [x.is_static for x in function.inputs] == [False, True]
    check(proto, draw(3), np.asarray([4, 3]))
    assert function(params, draw(3), tnp.asarray([1, 3])).shape == (2, 3)
    with pytest.raises(errors.ProgramError, match="'shape' must be known when the function is traced"):
        tvmfun.jit(function)(params, draw(3), np.asarray([4, 3]))


def test_a_value_that_cannot_be_known_is_named():
    nodes = [node("Cast", ["x"], ["n"], to=TensorProto.INT64), node("ConstantOfShape", ["n"], ["y"])]
    function, params = from_onnx(model(nodes, [value("x", 1)], [value("y", None)]))
    assert function.inputs[0].is_static
    assert function(params, np.asarray([3.0], "float32")).shape == (3,)
    nodes = [node("Mul", ["x", "x"], ["s"]), node("NonZero", ["s"], ["y"])]
    function, params = from_onnx(model(nodes, [value("x", 3)], [numbers("y", 1, None)]))
    np.testing.assert_array_equal(function(params, np.asarray([1, 0, 2], "float32")), [[0, 2]])


def test_large_constants_are_not_folded():
    nodes = [node("Expand", ["one", "sizes"], ["big"]), node("ReduceSum", ["big"], ["y"], keepdims=0)]
    constants = {"one": np.float32(1), "sizes": np.asarray([1 << 13, 1 << 12])}
    proto = model(nodes, [], [value("y")], constants)
    function, params = from_onnx(proto, trainable=())
    assert float(tvmfun.jit(function)(params)) == 1 << 25


# -- control flow ------------------------------------------------------------------------------------------------------


def step_of_loop(extra=()):
    inputs = [numbers("i"), value("going", dtype=TensorProto.BOOL), value("c", 3)]
    return graph(
        [
            node("Mul", ["c", "w"], ["scaled"]),
            node("Add", ["scaled", "x"], ["next"]),
            node("ReduceSum", ["next"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["again"]),
            node("Identity", ["going"], ["same"]),
            node("Identity", ["next"], ["row"]),
        ],
        inputs,
        [value("again" if "until" in extra else "same", dtype=TensorProto.BOOL), value("next", 3)]
        + ([] if "until" in extra else [value("row", 3)]),
    )


WEIGHTS = {"w": np.asarray([0.9, 1.1, 0.5], "float32"), "limit": np.float32(30), "true": np.asarray(True)}


def test_a_counted_loop_is_a_scan():
    nodes = [node("Loop", ["n", "true", "x"], ["last", "rows"], body=step_of_loop())]
    proto = model(nodes, [value("x", 3), numbers("n")], [value("last", 3), value("rows", None, 3)], WEIGHTS)
    check(proto, np.ones(3, "float32"), np.asarray(5))
    function, params = from_onnx(proto)
    ones = np.ones(3, "float32")
    gradient = tvmfun.grad(lambda p: function(p, ones, np.asarray(5))[0].sum())(params)["w"]
    np.testing.assert_allclose(gradient, [sum(i * w ** (i - 1) for i in range(1, 6)) for w in WEIGHTS["w"]], rtol=1e-5)
    program = tvmfun.trace(lambda p, x: function(p, x, np.asarray(5)))(params, ones)
    assert "loop" in [equation.op.name for equation in program.equations]


def test_a_loop_until_a_condition():
    nodes = [node("Loop", ["", "true", "x"], ["last"], body=step_of_loop(("until",)))]
    check(model(nodes, [value("x", 3)], [value("last", 3)], WEIGHTS), np.ones(3, "float32"))
    nodes = [node("Loop", ["n", "", "x"], ["last"], body=step_of_loop(("until",)))]
    proto = model(nodes, [value("x", 3), numbers("n")], [value("last", 3)], WEIGHTS)
    check(proto, np.ones(3, "float32"), np.asarray(4))
    function, params = from_onnx(proto)
    last = tvmfun.jit(function)(params, np.ones(3, "float32"), np.asarray(2))
    np.testing.assert_allclose(last, 1 + WEIGHTS["w"] + WEIGHTS["w"] ** 2, rtol=1e-6)


def test_a_loop_whose_carry_grows_is_written_out():
    body = graph(
        [node("Concat", ["c", "x"], ["next"], axis=0), node("Identity", ["going"], ["same"])],
        [numbers("i"), value("going", dtype=TensorProto.BOOL), value("c", None)],
        [value("same", dtype=TensorProto.BOOL), value("next", None)],
    )
    nodes = [node("Loop", ["n", "", "x"], ["last"], body=body)]
    check(model(nodes, [value("x", 3)], [value("last", None)], {"n": np.asarray(3)}), draw(3))


@pytest.mark.parametrize("known", [True, False])
def test_branches(known):
    branches = {
        "then_branch": graph([node("Mul", ["x", "w"], ["a"])], [], [value("a", 3)]),
        "else_branch": graph([node("Neg", ["x"], ["b"])], [], [value("b", 3)]),
    }
    nodes = [node("If", ["c"], ["y"], **branches)]
    constants = {"w": draw(3)} | ({"c": np.asarray(True)} if known else {})
    inputs = [value("x", 3)] + ([] if known else [value("c", dtype=TensorProto.BOOL)])
    proto = model(nodes, inputs, [value("y", 3)], constants)
    for choice in (True, False):
        check(proto, draw(3), *([] if known else [np.asarray(choice)]))


def test_a_scan_with_axes_and_directions():
    body = graph(
        [node("Add", ["s", "a"], ["t"]), node("Mul", ["t", "w"], ["o"])],
        [value("s", 3), value("a", 3)],
        [value("t", 3), value("o", 3)],
    )
    options = {
        "scan_input_axes": [1],
        "scan_input_directions": [1],
        "scan_output_axes": [1],
        "scan_output_directions": [1],
    }
    nodes = [node("Scan", ["s0", "x"], ["last", "rows"], body=body, num_scan_inputs=1, **options)]
    proto = model(nodes, [value("s0", 3), value("x", 3, 5)], [value("last", 3), value("rows", 3, 5)], {"w": draw(3)})
    check(proto, draw(3), draw(3, 5))


def test_random_numbers_differ_between_the_steps_of_a_loop():
    body = graph(
        [
            node("RandomUniformLike", ["c"], ["next"]),
            node("Identity", ["next"], ["row"]),
            node("Identity", ["g"], ["h"]),
        ],
        [numbers("i"), value("g", dtype=TensorProto.BOOL), value("c", 2)],
        [value("h", dtype=TensorProto.BOOL), value("next", 2), value("row", 2)],
    )
    nodes = [node("Loop", ["n", "", "x"], ["last", "rows"], body=body), node("RandomNormalLike", ["x"], ["other"])]
    outputs = [value("last", 2), value("rows", None, 2), value("other", 2)]
    function, params = from_onnx(model(nodes, [value("x", 2)], outputs, {"n": np.asarray(3)}))
    _, rows, _ = tvmfun.jit(function)(params, np.ones(2, "float32"), key=random.key(0))
    assert len(np.unique(rows)) == 6
    with pytest.raises(errors.ArgumentError, match="needs a key"):
        function(params, np.ones(2, "float32"))


def test_an_input_called_key_leaves_the_random_key_another_name():
    nodes = [node("RandomNormalLike", ["key"], ["noise"]), node("Add", ["key", "noise"], ["y"])]
    function, params = from_onnx(model(nodes, [value("key", 2)], [value("y", 2)]))
    x = np.ones(2, "float32")
    first, again, other = (function(params, key=x, random_key=random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).all()
    np.testing.assert_array_equal(first, function(params, x, random_key=random.key(0)))
    with pytest.raises(errors.ArgumentError, match="needs a key"):
        function(params, key=x)


# -- functions and files -----------------------------------------------------------------------------------------------


def scaled_function(name="Scaled", inner="Mul"):
    nodes = [
        helper.make_node("Constant", [], ["k"]),
        node(inner, ["a", "k"], ["b"], domain="own" if inner != "Mul" else ""),
    ]
    attribute = nodes[0].attribute.add(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    assert attribute
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, imports, ["factor"])


def test_functions_of_the_model():
    nodes = [
        node("Scaled", ["x"], ["y"], domain="own", factor=2.5),
        node("Scaled", ["y"], ["z"], domain="own", factor=2.0),
    ]
    proto = model(nodes, [value("x", 3)], [value("z", 3)], functions=[scaled_function()], own=1)
    check(proto, draw(3))
    proto = model(nodes, [value("x", 3)], [value("z", 3)], functions=[scaled_function(inner="Scaled")], own=1)
    with pytest.raises(errors.ProgramError, match="functions must not call themselves, got own.Scaled"):
        from_onnx(proto)


def test_tensors_in_other_files(tmp_path):
    proto, x = affine(), draw(4, 3)
    wanted = expected(proto, x)[0]
    path = tmp_path / "model.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    function, params = from_onnx(path)
    np.testing.assert_allclose(function(params, x), wanted, rtol=1e-5)
    with pytest.raises(errors.ProgramError, match=r"is in another file.*the path of the model"):
        from_onnx(path.read_bytes())
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(errors.ProgramError, match="must be in a file beside the model"):
        from_onnx(path)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "missing.bin", "link.bin"])
def test_tensors_outside_of_the_folder_are_not_read(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    proto = affine()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(errors.ProgramError, match="must be in a file beside the model"):
        from_onnx(folder / "model.onnx")


def test_sparse_and_narrow_constants():
    dense = np.asarray([[0, 2.0, 0], [1, 0, 0]], "float32")
    tensors = (
        numpy_helper.from_array(np.asarray([2.0, 1.0], "float32"), "w"),
        numpy_helper.from_array(np.asarray([1, 3])),
    )
    sparse = helper.make_sparse_tensor(*tensors, [2, 3])
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Cast", ["n"], ["m"], to=TensorProto.FLOAT),
        node("Add", ["y", "m"], ["z"]),
    ]
    narrow = helper.make_tensor("n", TensorProto.FLOAT8E4M3FN, [3], [0.5, -1.25, 448.0])
    inner = helper.make_graph(nodes, "g", [value("x", 4, 2)], [value("z", 4, 3)], [narrow], sparse_initializer=[sparse])
    function, params = from_onnx(helper.make_model(inner, opset_imports=[helper.make_opsetid("", 21)]))
    x = draw(4, 2)
    np.testing.assert_allclose(function(params, x), x @ dense + [0.5, -1.25, 448.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("proto", "match"),
    [
        (
            lambda: model([node("StringConcat", ["x", "x"], ["y"])], [value("x", 1)], [value("y", 1)]),
            "got StringConcat",
        ),
        (lambda: model([node("Relu", ["z"], ["y"])], [], [value("y")]), "'z' of Relu 'y' must be defined before it"),
        (lambda: model([], [], [value("y")]), "each output of a graph must be defined in it, got 'y'"),
        (lambda: model([node("Own", ["x"], ["y"], domain="own")], [value("x")], [value("y")]), "got own.Own"),
        (lambda: model([], [value("x", dtype=TensorProto.STRING)], []), "got strings in 'x'"),
        (lambda: model([], [value("x", dtype=TensorProto.COMPLEX64)], []), "got complex numbers in 'x'"),
        (
            lambda: model([], [helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1])], []),
            "only arrays of numbers are read, got a sequence in 'x'",
        ),
        (lambda: b"not a model", "not an ONNX model, or is damaged"),
        (lambda: b"", "a model must have a graph"),
    ],
)
def test_what_is_not_read_is_named(proto, match):
    with pytest.raises((errors.ProgramError, errors.DtypeError), match=match):
        from_onnx(proto())


# -- training ----------------------------------------------------------------------------------------------------------


def exported(module, x):
    """Models of the older exporter of PyTorch, in training mode."""
    import torch

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is deprecated
        training = torch.onnx.TrainingMode.TRAINING
        torch.onnx.export(
            module, (x,), file, dynamo=False, training=training, do_constant_folding=False, opset_version=17
        )
    return file.getvalue()


def nets():
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.block = nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

        def forward(self, tokens):
            return self.head(self.norm(self.block(self.embed(tokens))).mean(1))

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(5, 8, bidirectional=True, batch_first=True), nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    images = torch.randn(8, 2, 12, 12, dtype=torch.float64)
    cnn = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, groups=3, stride=2),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )
    return {
        "CNN": (cnn, images),
        "transformer": (Attention(), torch.randint(0, 20, (8, 6))),
        "LSTM": (Recurrent(), torch.randn(8, 7, 5, dtype=torch.float64)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CNN", "transformer", "LSTM"])
def test_twenty_steps_equal_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module, x = nets()[name]
    module = module.double()
    y = torch.arange(8) % 3
    function, params = from_onnx(exported(module, x))
    names = dict(module.named_parameters())
    optimizer, theirs = optim.sgd(0.05, 0.9), torch.optim.SGD(module.parameters(), 0.05, 0.9)
    memory = optimizer.init(params)

    @tvmfun.jit
    def step(params, memory, x, y):
        def loss(params):
            scores = function(params, x)
            scores = scores[0] if isinstance(scores, tuple) else scores
            return tvmfun.nn.losses.cross_entropy(scores, y)

        value, gradient = tvmfun.value_and_grad(loss)(params)
        updates, memory = optimizer.update(gradient, memory, params)
        return optim.apply_updates(params, updates), memory, value

    for _ in range(20):
        params, memory, value = step(params, memory, x.numpy(), y.numpy())
        theirs.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        theirs.step()
        np.testing.assert_allclose(value, loss.item(), rtol=1e-8)
    shared = params.keys() & names.keys()
    assert shared
    for key in shared:
        np.testing.assert_allclose(params[key], names[key].detach().numpy(), rtol=1e-7, atol=1e-9)


def test_gradient_nodes_are_derivatives_of_any_order():
    training = "ai.onnx.preview.training"
    nodes = [
        node("Mul", ["x", "x"], ["s"]),
        node("Mul", ["s", "w"], ["y"]),
        node("Gradient", ["x", "w"], ["dx", "dw"], domain=training, xs=["x", "w"], y="y"),
    ]
    outputs = [value("dx", 3), value("dw", 3)]
    proto = model(nodes, [value("x", 3), value("w", 3)], outputs, **{training: 1})
    function, params = from_onnx(proto)
    x, w = draw(3), draw(3)
    dx, dw = tvmfun.jit(function)(params, x, w)
    np.testing.assert_allclose(dx, 2 * x * w, rtol=1e-6)
    np.testing.assert_allclose(dw, x * x, rtol=1e-6)
    second = tvmfun.grad(lambda x: function(params, x, w)[0].sum())(x)
    np.testing.assert_allclose(second, 2 * w, rtol=1e-6)
