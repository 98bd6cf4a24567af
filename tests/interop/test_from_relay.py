"""Relay programs as functions: networks against PyTorch, training, transforms, and the language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from interop.relay_nets import NETS, Net, normalized  # noqa: E402
from support.relay_text import HEADER, Writer, metadata  # noqa: E402

import tvmfun  # noqa: E402
import tvmfun.numpy as tnp  # noqa: E402
from tvmfun import optim, random, tree  # noqa: E402
from tvmfun.counters import counted  # noqa: E402
from tvmfun.errors import ProgramError  # noqa: E402
from tvmfun.interop.relay import from_relay  # noqa: E402
from tvmfun.interop.relay.coverage import updated  # noqa: E402

pytestmark = pytest.mark.interop


def torch_gradients(net: Net, seed: int = 9) -> tuple[list, list, dict[str, np.ndarray]]:
    """PyTorch's results, cotangents for them, and the gradients of the parameters."""
    params = {name: torch.from_numpy(value).requires_grad_() for name, value in net.params.items()}
    inputs = [torch.from_numpy(value) for value in net.inputs]
    results = tree.leaves(net.oracle(params, *inputs))
    draw = np.random.default_rng(seed)
    cotangents = [draw.normal(size=tuple(x.shape)).astype(x.detach().numpy().dtype) for x in results]
    loss = sum((x * torch.from_numpy(c)).sum() for x, c in zip(results, cotangents, strict=True))
    gradients = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    found = {name: g.numpy() for name, g in zip(params, gradients, strict=True) if g is not None}
    return [x.detach().numpy() for x in results], cotangents, found


def assert_close(ours: Any, wanted: np.ndarray, name: str = "") -> None:
    """Agreement relative to the largest element, to rounding."""
    tolerance = 1e-9 if wanted.dtype == np.float64 else 2e-5
    scale = max(float(np.abs(wanted).max(initial=0)), 0.1)
    np.testing.assert_allclose(np.asarray(ours), wanted, rtol=tolerance, atol=tolerance * scale, err_msg=name)


@pytest.mark.quick("mlp")
@pytest.mark.parametrize("name", NETS)
def test_networks_and_their_gradients_are_those_of_torch(name: str):
    net = NETS[name]()
    results, cotangents, gradients = torch_gradients(net)
    function, params = from_relay(net.text, net.params)

    @tvmfun.jit
    def both(params: Any, *inputs: Any) -> Any:
        def loss(params: Any) -> Any:
            found = tree.leaves(function(params, *inputs))
            return sum(tnp.sum(x * c) for x, c in zip(found, cotangents, strict=True)), found

        (_, found), gradient = tvmfun.value_and_grad(loss, has_aux=True)(params)
        return found, gradient

    found, gradient = both(params, *net.inputs)
    for ours, wanted in zip(found, results, strict=True):
        assert_close(ours, wanted)
    assert gradients
    for key, wanted in gradients.items():
        assert_close(gradient[key], wanted, key)


def test_the_page_has_the_table():
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
    assert page == updated(page), "run: python -m tvmfun.interop.relay docs/interop.md"


# -- training and transforms -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_steps_of_training_are_those_of_torch():
    """Batch statistics in training, moving ones afterwards."""
    w = Writer()
    x = w.op("nn.conv2d", w.input("data", 8, 2, 6, 6), w.param("kernel", 4, 2, 3, 3), padding=[1, 1, 1, 1])
    x = w.op("nn.relu", normalized(w, x, "bn", 4))
    text = w.text(w.op("nn.dense", w.op("nn.batch_flatten", w.op("nn.global_avg_pool2d", x)), w.param("fc", 3, 4)))
    function, params = from_relay(text, w.params, train=True)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 3, bias=False),
    ).double()
    names = {"kernel": "0.weight", "bn_gamma": "1.weight", "bn_beta": "1.bias", "fc": "5.weight"}
    names |= {"bn_mean": "1.running_mean", "bn_var": "1.running_var"}
    module.load_state_dict({to: torch.tensor(w.params[name]) for name, to in names.items()}, strict=False)
    ours, theirs = optim.sgd(0.1, momentum=0.9), torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)

    @tvmfun.jit
    def step(params: Any, memory: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            result, new = function(params, x)
            return tnp.mean((result - y) ** 2), new

        (value, new), gradient = tvmfun.value_and_grad(loss, has_aux=True)(params)
        updates, memory = ours.update(gradient, memory, new)
        return optim.apply_updates(new, updates), memory, value

    memory, draw = ours.init(params), np.random.default_rng(0)
    for _ in range(10):
        x, y = draw.normal(size=(8, 2, 6, 6)), draw.normal(size=(8, 3))
        params, memory, value = step(params, memory, x, y)
        theirs.zero_grad()
        loss = torch.nn.functional.mse_loss(module(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        theirs.step()
        np.testing.assert_allclose(float(value), loss.item(), rtol=1e-9)
    state = module.state_dict()
    for name, to in names.items():
        np.testing.assert_allclose(np.asarray(params[name]), state[to].numpy(), rtol=1e-9, err_msg=name)
    evaluate, _ = from_relay(text, w.params)
    np.testing.assert_allclose(evaluate(params, x), module.eval()(torch.tensor(x)).detach().numpy(), rtol=1e-9)


@pytest.mark.slow
def test_dropouts_draw_from_the_key():
    net = NETS["bert"]()
    function, params = from_relay(net.text, net.params, train=True)
    run = tvmfun.jit(lambda key: function(params, *net.inputs, key=key)[0])
    first, again, other = (np.asarray(run(random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    with pytest.raises(ProgramError, match="the function needs a key for dropout"):
        function(params, *net.inputs)


def test_dropout_keeps_the_mean_and_returns_its_mask():
    text = f"{HEADER}def @main(%x: Tensor[(10000), float64]) {{ nn.dropout(%x, rate=0.25f) }}"
    function, _ = from_relay(text, train=True)
    (y, mask), new = function({}, np.ones(10000), key=random.key(0))
    assert new == {}
    np.testing.assert_array_equal(np.asarray(y), np.asarray(mask) / 0.75)
    assert abs(np.asarray(y).mean() - 1) < 0.03


def test_an_input_called_key_leaves_the_random_key_another_name():
    text = f"{HEADER}def @main(%key: Tensor[(1000), float64]) {{ nn.dropout(%key, rate=0.25f).0 }}"
    function, _ = from_relay(text, train=True)
    first, again, other = (function({}, key=np.ones(1000), random_key=random.key(i))[0] for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()


@pytest.mark.slow
def test_batches_of_any_size_share_one_compilation():
    net = NETS["mlp"]()
    function, params = from_relay(net.text, net.params)
    gradient = tvmfun.grad(lambda params, x: tnp.mean(function(params, x)[:, 0]))
    step = tvmfun.jit(gradient, dynamic_shapes={"x": {0: "batch"}})
    xs = [np.random.default_rng(n).normal(size=(n, 1, 28, 28)).astype("float32") for n in (1, 3, 8)]
    with counted() as events:
        found = [step(params, x) for x in xs]
    assert events.compiles + events.loads == 1
    for x, ours in zip(xs, found, strict=True):
        wanted = tvmfun.jit(gradient)(params, x)
        np.testing.assert_allclose(ours["fc1_weight"], np.asarray(wanted["fc1_weight"]), rtol=1e-4, atol=1e-6)


#: Calls with an axis of any size.
DYNAMIC = [
    "nn.batch_norm(%x, %g, %g, %g, %g).0",
    "mean(%x, axis=[0])",
    "nn.cross_entropy(%x, %x)",
    'shape_of(%x, dtype="int64")',
    'ndarray_size(%x, dtype="int32")',
    "reshape(%x, newshape=[0, -4, 3, 1])",
    "reshape(%x, newshape=[-3])",
    "nn.avg_pool1d(expand_dims(%x, axis=0), pool_size=[2], padding=[1, 1])",
    "strided_slice(%x, begin=[0, 1], end=[2147483647, 3])",
    "variance(%x, mean(%x, axis=[0], keepdims=True), axis=[0])",
    "argmax(%x, axis=[0, 1])",
    "concatenate((%x, %x), axis=0)",
    "collapse_sum_like(%x, sum(%x, axis=[0]))",
    'sequence_mask(%x, cast(%g, dtype="int32"), axis=0)',
    "tile(%x, reps=[2, 1])",
]


@pytest.mark.quick("argmax*")
@pytest.mark.parametrize("body", DYNAMIC)
def test_operators_with_dynamic_sizes(body: str):
    text = f"{HEADER}def @main(%x: Tensor[(?, 3), float32], %g: Tensor[(3), float32]) {{ {body} }}"
    function, _ = from_relay(text, train=True)
    x = np.abs(np.random.default_rng(0).normal(size=(5, 3))).astype("float32") + np.float32(0.1)
    run = lambda x: tree.leaves(function({}, x, np.ones(3, "float32"))[0])
    found = tvmfun.jit(run, dynamic_shapes={"x": {0: "b"}})(x)
    for ours, wanted in zip(found, run(x), strict=True):
        np.testing.assert_allclose(ours, np.asarray(wanted), rtol=1e-5)


@pytest.mark.slow
def test_vmap_over_parameters_and_inputs():
    net = NETS["lstm"]()
    function, _ = from_relay(net.text, net.params)
    many = {name: np.stack([value, 2 * value]) for name, value in net.params.items()}
    batched = tvmfun.jit(tvmfun.vmap(lambda params: function(params, *net.inputs)[1][0]))(many)
    for i in range(2):
        own = function({name: value[i] for name, value in many.items()}, *net.inputs)[1][0]
        np.testing.assert_allclose(np.asarray(batched)[i], np.asarray(own), rtol=1e-5, atol=1e-6)


def test_second_derivatives():
    text = f"{HEADER}def @main(%x: float64) {{ let %f = fn (%y: float64) {{ exp(multiply(%y, %x)) }}; %f(%x) }}"
    function, _ = from_relay(text)
    second = tvmfun.grad(tvmfun.grad(lambda x: function({}, x)))(np.float64(0.3))
    np.testing.assert_allclose(float(second), (2 + 4 * 0.09) * np.exp(0.09), rtol=1e-12)


# -- layouts -----------------------------------------------------------------------------------------------------------

#: Operators after a convolution `%0` of shape (2, 3, 4, 5), whose result is stored with its channels last.
AFTER = {
    "subtract(%0, %c)": lambda y, c: y - c,
    "subtract(%c, %0)": lambda y, c: c - y,
    "multiply(%0, reshape(%c, newshape=[1, 3, 1, 1]))": lambda y, c: y * c,
    "add(%0, meta[relay.Constant][0])": lambda y, c: y + torch.arange(5.0),
    "maximum(%0, expand_dims(expand_dims(%0, axis=0), axis=0))": lambda y, c: torch.maximum(y, y[None, None]),
    "where(%0 > 0f, %0, 0.5f)": lambda y, c: torch.where(y > 0, y, 0.5),
    "clip(cast(cast(%0, dtype=\"float64\"), dtype=\"float32\"), a_min=-1f, a_max=1f)": lambda y, c: y.clamp(-1, 1),
    "nn.leaky_relu(%0)": lambda y, c: torch.where(y > 0, y, y / 4),
    "nn.bias_add(%0, squeeze(%c))": lambda y, c: y + c,
    "nn.prelu(%0, squeeze(%c))": lambda y, c: torch.where(y > 0, y, y * c),
    "nn.bias_add(%0, meta[relay.Constant][0], axis=3)": lambda y, c: y + torch.arange(5.0),
    "concatenate((%0, exp(%0)), axis=1)": lambda y, c: torch.cat([y, y.exp()], 1),
    "concatenate((%0, exp(%0)), axis=-1)": lambda y, c: torch.cat([y, y.exp()], 3),
    "concatenate((%0, transpose(%0, axes=[0, 1, 2, 3])), axis=2)": lambda y, c: torch.cat([y, y], 2),
    "mean(%0, axis=[2, 3])": lambda y, c: y.mean((2, 3)),
    "max(%0, axis=[2, 3], keepdims=True)": lambda y, c: y.amax((2, 3), keepdim=True),
    "sum(%0, axis=[-1])": lambda y, c: y.sum(3),
    "sum(%0, axis=[3], exclude=True)": lambda y, c: y.sum((0, 1, 2)),
    "sum(%0)": lambda y, c: y.sum(),
    "nn.softmax(%0, axis=1)": lambda y, c: y.softmax(1),
    "reshape(%0, newshape=[0, -1])": lambda y, c: y.flatten(1),
    "strided_slice(%0, begin=[1], end=[3], axes=[1])": lambda y, c: y[:, 1:3],
    "nn.pad(%0, pad_width=[[0, 0], [1, 0], [0, 2], [3, 0]])": (
        lambda y, c: torch.nn.functional.pad(y, (3, 0, 0, 2, 1, 0))
    ),
    'nn.pad(%0, pad_width=[[0, 0], [0, 0], [1, 1], [2, 0]], pad_mode="edge")': (
        lambda y, c: torch.nn.functional.pad(y, (2, 0, 1, 1), mode="replicate")
    ),
    "nn.max_pool2d(%0, pool_size=[2, 2])": lambda y, c: torch.nn.functional.max_pool2d(y, 2, 1),
    'nn.max_pool2d(%0, pool_size=[2, 2], out_layout="NHWC")': (
        lambda y, c: torch.nn.functional.max_pool2d(y, 2, 1).permute(0, 2, 3, 1)
    ),
    'nn.global_avg_pool2d(%0, layout="NHWC")': lambda y, c: y.mean((1, 2), keepdim=True),
    "nn.conv2d(%0, %0)": lambda y, c: torch.nn.functional.conv2d(y, y),
    "if (sum(%0) > 0f) { exp(%0) } else { %0 }": lambda y, c: y.exp() if y.sum() > 0 else y,
    "let %y: Tensor[(2, 3, 4, 5), float32] = exp(%0); (%y, %0).0": lambda y, c: y.exp(),
    "fn (%y: Tensor[(2, 3, ?, 5), float32]) { nn.dropout(%y).0 }(%0)": lambda y, c: y,
}  # fmt: skip


@pytest.mark.quick("reshape(%0*", "concatenate((%0, exp(%0)), axis=1)")
@pytest.mark.parametrize("body", AFTER)
def test_results_of_convolutions_in_either_order_of_the_axes(body: str):
    random = np.random.default_rng(0)
    x, c = random.normal(size=(2, 3, 4, 5)).astype("float32"), random.normal(size=(3, 1, 1)).astype("float32")
    conv = "%0 = nn.conv2d(%x, %k, groups=3, channels=3)"
    arguments = "%x: Tensor[(2, 3, 4, 5), float32], %k: Tensor[(3, 1, 1, 1), float32], %c: Tensor[(3, 1, 1), float32]"
    text = f"{HEADER}def @main({arguments}) {{ {conv}; {body} }}\n{metadata(np.arange(5, dtype='float32'))}"
    function, _ = from_relay(text)
    kernel = np.array([1.0, -2.0, 0.5], "float32").reshape(3, 1, 1, 1)
    tensors = [torch.tensor(value, requires_grad=True) for value in (x, c)]
    wanted = AFTER[body](tensors[0] * torch.tensor(kernel.reshape(3, 1, 1)), tensors[1])
    found, pull = tvmfun.vjp(lambda x, c: function({}, x, kernel, c), x, c)
    assert_close(found, wanted.detach().numpy())
    cotangent = random.normal(size=tuple(wanted.shape)).astype("float32")
    theirs = torch.autograd.grad(wanted, tensors, torch.tensor(cotangent), allow_unused=True)
    for ours, own in zip(pull(cotangent), theirs, strict=True):
        assert_close(ours, np.zeros(ours.shape, "float32") if own is None else own.numpy())


def test_a_network_moves_its_images_once():
    net = NETS["resnet"]()
    function, params = from_relay(net.text, net.params)
    moved = [e for e in tvmfun.trace(function)(params, *net.inputs).equations if e.op.name == "permute_dims"]
    assert sum(e.params["axes"] == (0, 2, 3, 1) for e in moved) == 1
