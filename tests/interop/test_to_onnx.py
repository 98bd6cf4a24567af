"""Programs written as ONNX models, run by onnxruntime."""

from functools import partial

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator  # noqa: E402
from op_cases import CASES  # noqa: E402

import tvmfun  # noqa: E402
import tvmfun.numpy as tnp  # noqa: E402
from tvmfun import errors, lax, nn, random, reference  # noqa: E402
from tvmfun.core.derivative import trace_leaves  # noqa: E402
from tvmfun.core.op import REGISTRY  # noqa: E402
from tvmfun.interop.onnx import from_onnx, to_onnx  # noqa: E402
from tvmfun.interop.onnx.writing import SPELLINGS  # noqa: E402

pytestmark = pytest.mark.interop

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def spec(*shape, dtype="float32"):
    return tvmfun.ShapeDtype(shape, dtype)


def run(model, *arguments):
    """The results of onnxruntime, or of ONNX's reference where it has no implementation for a dtype."""
    onnx.checker.check_model(model, full_check=True)
    feeds = {value.name: np.asarray(x) for value, x in zip(model.graph.input, arguments, strict=True)}
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented:
        return ReferenceEvaluator(model).run(None, feeds)


def close(got, wanted, rtol=1e-5):
    for one, other in zip(got, wanted, strict=True):
        other = np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=rtol, atol=rtol)


# -- op by op ----------------------------------------------------------------------------------------------------------


def single(x):
    """An argument in single precision: onnxruntime has few functions in double precision."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float64 else x


# Models for inference drop nothing.
WRITTEN = [
    f"{name}-{i}"
    for name, cases in CASES.items()
    if name in SPELLINGS
    for i, case in enumerate(cases)
    if not case.params.get("rate")
]


@pytest.mark.quick(
    "add-0", "atan2-0", "conv-3", "cumprod-0", "dot_general-2", "floor_divide-1", "gather-1", "scatter-2"
)
@pytest.mark.parametrize("case", WRITTEN)
def test_op(case):
    name, number = case.split("-")
    data = CASES[name][int(number)]
    arguments = [single(x) for x in data.arguments]
    avals = [tvmfun.ShapeDtype(x.shape, x.dtype) for x in arguments]
    program = trace_leaves(lambda *xs: REGISTRY[name](*xs, **data.params), avals, name)
    half = any(x.dtype.itemsize == 2 for x in arguments)
    wanted = reference.evaluate(program, [*program.captured, *arguments])
    close(run(to_onnx(program), *arguments), wanted, 2e-3 if half else 2e-5)


# -- functions ---------------------------------------------------------------------------------------------------------

X = draw(6, 4)
FUNCTIONS = {
    "bounded loop": lambda x: lax.while_loop(
        lambda c: tnp.sum(c[0]) > -50, lambda c: (c[0] - 1, c[1] + 1), (x, 0), max_steps=3
    ),
    "branches": lambda x: [
        lax.cond(x[0, 0] > 9, tnp.exp, tnp.negative, x),
        lax.switch(2, [tnp.sin, tnp.cos, tnp.tanh], x),
    ],
    "computed branch": lambda x: lax.switch(tnp.argmax(x[0]), [tnp.sin, tnp.cos, tnp.tanh, tnp.exp], x),
    "constants": lambda x: (x, tnp.ones(3), 2.0, x[0]),
    "counted loop": lambda x: lax.fori_loop(0, tnp.argmax(x[1]) + 2, lambda i, c: c * 2 + i, x),
    "gathers": lambda x: (x[[1, 0, -1]], x.at[[0, 9]].add(1.0), tnp.take_along_axis(x, tnp.argsort(x), 1), tnp.sort(x)),
    "masks": lambda x: (tnp.where(x > 0, x > 1, x < -1), tnp.where(x[0] > 0, False, x > 0)),
    "the largest": lambda x: (lax.top_k(x, 2), lax.top_k(tnp.round(x), 3), lax.top_k(x > 0, 3)[1]),
    "loop until": lambda x: lax.while_loop(lambda c: tnp.sum(tnp.abs(c)) > 1, lambda c: c / 2, x),
    "nested scans": lambda x: lax.scan(
        lambda c, row: (c + lax.scan(lambda d, e: (d * e + c[0], d), row[0], row)[0], tnp.tanh(c)),
        x[0],
        x,
        reverse=True,
    ),
    "nothing": lambda x: (x[:0] @ tnp.ones((4, 2)), tnp.sum(x[:0], axis=0)),
    "vmap": lambda x: tvmfun.vmap(lambda row: tnp.outer(row, row) @ row)(x),
    "gradient": tvmfun.grad(lambda x: tnp.sum(nn.functional.softmax(x)[:, 0] * tnp.log1p(tnp.abs(x[:, 1])))),
}


@pytest.mark.quick("computed branch", "nested scans")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    function = FUNCTIONS[name]
    program = tvmfun.trace(function)(spec(6, 4))
    wanted = reference.evaluate(program, [*program.captured, X])
    model = to_onnx(function, spec(6, 4))
    close(run(model, X), wanted)
    # And what was written is read.
    again, params = from_onnx(model)
    read = tvmfun.trace(lambda x: again(params, x))(spec(6, 4))
    close(reference.evaluate(read, [*read.captured, X]), wanted)


def models():
    from tvmfun.models import BERT, GPT2, BERTConfig, GPT2Config, MnistCnn

    key, tokens = random.key(0), RNG.integers(0, 50, (2, 7)).astype(np.int32)
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = BERTConfig(**small, intermediate_size=32, max_position_embeddings=8)
    gpt2 = GPT2Config(50, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    lstm = nn.LSTM(4, 8, key=key)
    return {
        "BERT": (partial(BERT.create(bert, key), train=False), tokens),
        "GPT-2": (partial(GPT2.create(gpt2, key), train=False), tokens),
        "LSTM": (lambda x: lstm(x)[0], draw(2, 5, 4)),
        "MNIST": (partial(MnistCnn.create(key), train=False), draw(2, 28, 28, 1)),
        "transposed convolution": (nn.ConvTranspose2d(3, 4, 3, stride=2, key=key), draw(1, 5, 4, 3)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "LSTM", "MNIST", "transposed convolution"])
def test_model(name):
    model, x = models()[name]
    wanted = tvmfun.jit(lambda x: tvmfun.tree.leaves(model(x)))(x)
    close(run(to_onnx(lambda x: tvmfun.tree.leaves(model(x)), x), x), wanted, 1e-4)


def test_names_of_inputs_and_outputs(tmp_path):
    def function(x, batch, *, scale):
        return {"y": x * scale, "parts": [batch["a"], batch["b"][0]]}

    path = tmp_path / "model.onnx"
    program = tvmfun.trace(function)(spec(2), {"a": spec(3), "b": (spec(), spec(1))}, scale=spec())
    to_onnx(program, path=path)
    model = onnx.load(path)
    assert [x.name for x in model.graph.input] == ["input0", "input1.a", "input1.b.0", "input1.b.1", "scale"]
    assert [x.name for x in model.graph.output] == ["parts.0", "parts.1", "y"]
    assert model.opset_import[0].version == 18
    again = to_onnx(lambda x, y: (x, x + y), spec(2), spec(2))
    assert [x.name for x in again.graph.input] == ["x", "y"]
    assert [x.name for x in again.graph.output] == ["output0", "output1"]


def test_what_is_not_written_is_named():
    with pytest.raises(errors.ProgramError, match=r"cholesky is not written: ONNX has no factorizations.*test_to_onnx"):
        to_onnx(tnp.linalg.cholesky, spec(3, 3))
    with pytest.raises(errors.DimensionError, match="sizes must be static"):
        to_onnx(tnp.tanh, tvmfun.ShapeDtype(("n",), "float32"))
    with pytest.raises(errors.ArgumentTypeError, match="a Program has types already"):
        to_onnx(tvmfun.trace(tnp.tanh)(spec(3)), spec(3))
