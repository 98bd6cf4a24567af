"""Damaged and hostile models: errors of tvmfun; no crash, no hang, and nothing in a file is run."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import tvmfun  # noqa: E402
from tvmfun import random  # noqa: E402
from tvmfun.errors import TvmfunError  # noqa: E402
from tvmfun.interop.onnx import from_onnx  # noqa: E402
from tvmfun.interop.onnx.tensors import is_narrow  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

node = helper.make_node
SECONDS = 20
FEW, MANY = 30, 1000


def value(name, *shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def network():
    """Convolution, normalization, pooling, computed sizes, a branch, a loop, a function, and quantized numbers."""
    rng = np.random.default_rng(0)
    body = helper.make_graph(
        [node("Mul", ["c", "decay"], ["d"]), node("Identity", ["d"], ["row"]), node("Identity", ["g"], ["h"])],
        "body",
        [value("i", dtype=TensorProto.INT64), value("g", dtype=TensorProto.BOOL), value("c", 2, 3)],
        [value("h", dtype=TensorProto.BOOL), value("d", 2, 3), value("row", 2, 3)],
    )
    branches = {
        f"{name}_branch": helper.make_graph([node(operator, ["last"], [name])], name, [], [value(name, 2, 3)])
        for name, operator in (("then", "Tanh"), ("else", "Neg"))
    }
    nodes = [
        node("Conv", ["x", "kernel", "bias"], ["conv"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["conv", "bias", "bias", "bias", "ones"], ["normal"]),
        node("MaxPool", ["normal"], ["pooled"], kernel_shape=[2, 2]),
        node("Shape", ["pooled"], ["shape"]),
        node("Slice", ["shape", "zero", "one"], ["batch"]),
        node("Concat", ["batch", "minus"], ["sizes"], axis=0),
        node("Reshape", ["pooled", "sizes"], ["flat"]),
        node("Gemm", ["flat", "weight"], ["scores"], transB=1),
        node("Loop", ["steps", "", "scores"], ["last", "rows"], body=body),
        node("ReduceSum", ["last"], ["total"], keepdims=0),
        node("Greater", ["total", "decay"], ["choice"]),
        node("If", ["choice"], ["chosen"], **branches),
        node("Twice", ["chosen"], ["doubled"], domain="own"),
        node("QuantizeLinear", ["doubled", "decay"], ["small"]),
        node("DequantizeLinear", ["small", "decay"], ["y"]),
        node("Resize", ["rows", "", "", "target"], ["resized"], mode="linear"),
        node("LSTM", ["rows", "w", "r"], ["states"], hidden_size=2),
    ]
    constants = {
        "kernel": rng.normal(size=(4, 1, 3, 3)).astype("float32"),
        "bias": np.zeros(4, "float32"),
        "ones": np.ones(4, "float32"),
        "weight": rng.normal(size=(3, 36)).astype("float32"),
        "decay": np.float32(0.5),
        "steps": np.int64(4),
        "zero": np.asarray([0]),
        "one": np.asarray([1]),
        "minus": np.asarray([-1]),
        "target": np.asarray([4, 4, 6]),
        "w": rng.normal(size=(1, 8, 3)).astype("float32"),
        "r": rng.normal(size=(1, 8, 2)).astype("float32"),
    }
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()]
    outputs = [value("y", 2, 3), value("resized", 4, 4, 6), value("states", 4, 1, 2, 2)]
    graph = helper.make_graph(nodes, "network", [value("x", 2, 1, 8, 8)], outputs, tensors)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], imports[:1])
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[twice])


NETWORK = network()
DATA = NETWORK.SerializeToString()


def copied():
    return onnx.ModelProto.FromString(DATA)


# -- mutations ---------------------------------------------------------------------------------------------------------


def truncated(rng):
    return DATA[: rng.integers(len(DATA))]


def bit_flipped(rng):
    data = bytearray(DATA)
    for _ in range(rng.integers(1, 9)):
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    return bytes(data)


def wrong_dtype(rng):
    model = copied()
    kinds = [t.type.tensor_type for t in (*model.graph.input, *model.graph.output)]
    tensors = list(model.graph.initializer)
    for _ in range(rng.integers(1, 4)):
        number = int(rng.integers(0, 30))
        if rng.integers(4):
            tensors[rng.integers(len(tensors))].data_type = number
        else:
            kinds[rng.integers(len(kinds))].elem_type = number
    return model


def cyclic(rng):
    model = copied()
    nodes = model.graph.node
    names = [name for one in nodes for name in one.output]
    for _ in range(rng.integers(1, 4)):
        one = nodes[rng.integers(len(nodes))]
        one.input[rng.integers(len(one.input))] = names[rng.integers(len(names))]
    if not rng.integers(3):
        model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "Twice", "own"
        model.functions[0].opset_import.add(domain="own", version=1)
    return model


def huge_dims(rng):
    model = copied()
    sizes = [1 << 62, (1 << 63) - 1, -(1 << 63), -1, 0, 1 << 31, 1 << 20, 10**9]
    for _ in range(rng.integers(1, 4)):
        size, kind = sizes[rng.integers(len(sizes))], rng.integers(4)
        if kind == 0:
            tensor = model.graph.initializer[rng.integers(len(model.graph.initializer))]
            if tensor.dims:
                tensor.dims[rng.integers(len(tensor.dims))] = size
        elif kind == 1:
            dims = model.graph.input[0].type.tensor_type.shape.dim
            dims[rng.integers(len(dims))].dim_value = size
        elif kind == 2:
            whole = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64]
            tensor = whole[rng.integers(len(whole))]
            array = np.frombuffer(tensor.raw_data, np.int64).copy()
            array[rng.integers(array.size)] = size
            tensor.raw_data = array.tobytes()
        else:
            lists = [a.ints for one in model.graph.node for a in one.attribute if a.ints]
            ints = lists[rng.integers(len(lists))]
            ints[rng.integers(len(ints))] = size
    return model


MUTATIONS = [truncated, bit_flipped, wrong_dtype, cyclic, huge_dims]


# -- the check ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """A block that may take some seconds only."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_and_trace(model) -> bool:
    """Whether a model is read and traced; otherwise an error of tvmfun was raised."""
    try:
        function, params = from_onnx(model)
        static, moving = {}, {}
        for kind in function.inputs:
            shape = tuple(2 if n is None else n for n in kind.shape or ())
            if kind.is_static:
                static[kind.name] = np.zeros(tuple(min(n, 4) for n in shape), kind.dtype)
            else:
                moving[kind.name] = tvmfun.ShapeDtype(shape, "uint8" if is_narrow(kind.dtype) else kind.dtype)
        tvmfun.eval_shape(
            lambda params, moving: function(params, key=random.key(0), **static, **moving), params, moving
        )
    except TvmfunError:
        return False
    return True


EVENTS: list[str] = []
WATCHED = ("pickle.find_class", "os.system", "os.exec", "subprocess.Popen", "socket.connect")


def watch(event: str, arguments: tuple) -> None:
    if event in WATCHED:
        EVENTS.append(event)


sys.addaudithook(watch)


def fuzz(mutate: Callable, count: int) -> None:
    EVENTS.clear()
    for seed in range(count):
        model = mutate(np.random.default_rng(seed))
        with limited():
            try:
                read_and_trace(model)
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
    assert EVENTS == []


def test_the_model_itself_is_read():
    assert read_and_trace(DATA)


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_few(mutate):
    fuzz(mutate, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTATIONS)
def test_many(mutate):
    fuzz(mutate, MANY)


def test_nothing_is_unpickled():
    import pickle

    class Bomb:
        def __reduce__(self):
            return exec, ("raise SystemExit",)

    data = pickle.dumps(Bomb())
    model = copied()
    model.graph.initializer[0].raw_data = data
    EVENTS.clear()
    assert not read_and_trace(model)
    assert not read_and_trace(data)
    assert EVENTS == []


def test_functions_that_double_the_nodes_do_not_hang():
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "F0", ["a"], ["b"], [node("Neg", ["a"], ["b"])], imports)]
    for i in range(1, 40):
        calls = [node(f"F{i - 1}", ["a"], ["m"], domain="own"), node(f"F{i - 1}", ["m"], ["b"], domain="own")]
        functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], calls, imports))
    graph = helper.make_graph([node("F39", ["x"], ["y"], domain="own")], "g", [value("x", 1)], [value("y", 1)])
    with pytest.raises(TvmfunError, match="must have at most"):
        from_onnx(helper.make_model(graph, opset_imports=imports, functions=functions))
