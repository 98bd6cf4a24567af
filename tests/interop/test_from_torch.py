"""Modules of PyTorch as functions: they train like the module, and keep its semantics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from interop import torch_nets  # noqa: E402
from interop.torch_nets import arrays, made  # noqa: E402
from torch import nn  # noqa: E402

import tvmfun  # noqa: E402
import tvmfun.numpy as tnp  # noqa: E402
from tvmfun import optim, random, tree  # noqa: E402
from tvmfun.counters import counted  # noqa: E402
from tvmfun.errors import ArgumentError, DtypeError, ProgramError, ShapeError, TreeError  # noqa: E402
from tvmfun.interop.torch import from_torch, params_of, to_state_dict, to_torch  # noqa: E402
from tvmfun.interop.torch.aten import TRANSLATIONS, translation_of  # noqa: E402
from tvmfun.interop.torch.coverage import LEFT_OUT, updated  # noqa: E402
from tvmfun.interop.torch.exported import decompositions  # noqa: E402
from tvmfun.interop.torch.graphs import operator_name  # noqa: E402

pytestmark = pytest.mark.interop

KEY = random.key(0)
NETS = ["mnist", "resnet", "mobilenet", "bert", "gpt2", "language_model", "translator", "lstm"]


def converted(module: Any, *inputs: Any, **options: Any) -> tuple:
    return from_torch(module, inputs, **options)


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.quick("gpt2")
@pytest.mark.parametrize("name", NETS)
def test_20_steps_are_those_of_torch(name: str):
    net = made(getattr(torch_nets, name))
    module, (theirs_of, ours_of) = net.module, net.loss
    args, kwargs, labels = net.batches[0]
    function, params, state = from_torch(module, args, kwargs)
    ours, theirs = optim.sgd(0.02, momentum=0.9), torch.optim.SGD(module.parameters(), 0.02, momentum=0.9)

    @tvmfun.jit
    def step(params: Any, state: Any, memory: Any, args: Any, kwargs: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            result, new_state = function(params, state, *args, **kwargs)
            return ours_of(result, *labels), new_state

        (value, new_state), gradient = tvmfun.value_and_grad(loss, has_aux=True)(params)
        updates, memory = ours.update(gradient, memory, params)
        return optim.apply_updates(params, updates), new_state, memory, value

    module.train()
    memory = ours.init(params)
    for i in range(20):
        args, kwargs, labels = net.batches[i % len(net.batches)]
        theirs.zero_grad()
        wanted = theirs_of(module(*args, **kwargs), *labels)
        wanted.backward()
        theirs.step()
        batch = (arrays(args), arrays(kwargs), arrays(labels))
        params, state, memory, value = step(params, state, memory, *batch)
        # `transformers` computes the loss of GPT-2 in single precision.
        tolerance = 1e-9 if wanted.dtype == torch.float64 else 1e-5
        assert_close(value, wanted, tolerance)
    mine = to_state_dict(module, params, state)
    assert mine.keys() == module.state_dict().keys()
    for key, tensor in module.state_dict().items():
        assert_close(mine[key], tensor, tolerance)  # parameters, and statistics of batch normalization
    module.load_state_dict(mine)


def test_single_precision_and_statistics():
    """Twenty steps in float32, of a network small enough that rounding errors do not grow."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1))
    module.append(nn.Linear(128, 10))
    x, labels = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
    function, params, state = converted(module, x)
    theirs = torch.optim.SGD(module.parameters(), 0.05)

    @tvmfun.jit
    def step(params: Any, state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            result, new_state = function(params, state, x)
            return torch_nets.cross_entropy(result, np.asarray(labels)), new_state

        (value, state), gradient = tvmfun.value_and_grad(loss, has_aux=True)(params)
        return tree.map(lambda p, g: p - 0.05 * g, params, gradient), state, value

    for _ in range(20):
        theirs.zero_grad()
        wanted = nn.functional.cross_entropy(module(x), labels)
        wanted.backward()
        theirs.step()
        params, state, value = step(params, state, x)
        assert_close(value, wanted, 1e-4)
    assert_close(state["1"]["running_mean"], module[1].running_mean, 1e-5)
    assert_close(state["1"]["running_var"], module[1].running_var, 1e-5)
    assert int(state["1"]["num_batches_tracked"]) == 20


# -- random numbers ----------------------------------------------------------------------------------------------------


def test_dropout_takes_a_key():
    function, params, state = converted(nn.Sequential(nn.Dropout(0.3), nn.Dropout(0.3)), torch.ones(200, 200))
    drop = tvmfun.jit(lambda key: function(params, state, np.ones((200, 200), "float32"), key=key)[0])
    result = np.asarray(drop(KEY))
    np.testing.assert_array_equal(result, drop(KEY))
    assert (result != np.asarray(drop(random.key(1)))).mean() > 0.4
    kept = result != 0
    # Two masks of their own: 0.7 squared; one mask twice would keep 0.7.
    assert abs(kept.mean() - 0.49) < 4 * np.sqrt(0.49 * 0.51 / kept.size)
    np.testing.assert_allclose(result[kept], 1 / 0.7**2, rtol=1e-6)
    # Rows and columns are independent.
    assert abs(kept.mean(0) - 0.49).max() < 5 * np.sqrt(0.25 / 200)
    assert abs(kept.mean(1) - 0.49).max() < 5 * np.sqrt(0.25 / 200)


def test_dropout_of_pictures_and_attention():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dropout = nn.Conv2d(1, 64, 1, bias=False), nn.Dropout2d(0.5)

        def forward(self, x: Any, q: Any) -> Any:
            y = self.dropout(self.conv(x))
            return y, nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    function, params, state = converted(Mixed(), torch.ones(64, 1, 4, 4), torch.ones(1, 4, 32, 8))
    x, q = np.ones((64, 1, 4, 4), "float32"), np.ones((1, 4, 32, 8), "float32")
    (y, attended), _ = tvmfun.jit(function)(params, state, x, q, key=KEY)
    zeroed = np.asarray(y) == 0
    assert (zeroed.all((2, 3)) == zeroed.any((2, 3))).all()  # whole channels
    assert abs(zeroed.mean() - 0.5) < 0.05
    assert abs(np.asarray(attended).mean() - 1) < 0.1 and np.asarray(attended).std() > 0.05


def test_an_input_called_key_leaves_the_random_key_another_name():
    attention, x = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True), torch.randn(2, 5, 8)
    named = {"query": x, "key": x + 1, "value": x}
    function, params, state = from_torch(attention, (), named)
    named = {name: array.numpy() for name, array in named.items()}
    first, again, other = (function(params, state, **named, random_key=random.key(i))[0][0] for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()
    with pytest.raises(ArgumentError, match="needs a key"):
        function(params, state, **named)


def test_a_missing_key_is_an_error_with_the_line():
    function, params, state = converted(torch_nets.MnistNet(), torch.zeros(2, 1, 28, 28))
    with pytest.raises(ArgumentError, match=r"needs a key.*torch_nets\.py:\d+: x = self\.dropout1\(x\)"):
        function(params, state, np.zeros((2, 1, 28, 28), "float32"))


def test_evaluation_mode_needs_no_key_and_uses_trained_statistics():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    x = torch.randn(16, 3)
    train, params, state = converted(module, x)
    evaluate, again, same = converted(module, x, train=False)
    assert tree.structure((params, state)) == tree.structure((again, same))
    _, state = train(params, state, x, key=KEY)
    module(x)
    result, after = evaluate(params, state, x)
    assert_close(result, module.eval()(x), 1e-5)
    assert tree.all(tree.map(lambda a, b: bool((a == b).all()), state, after))


def test_each_modules_own_mode():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    module[0].eval()
    x = torch.randn(4, 3)
    function, params, state = converted(module, x, train=None)
    result, new_state = function(params, state, x, key=KEY)
    assert (np.asarray(result) == 0).any()
    np.testing.assert_array_equal(new_state["0"]["running_mean"], np.zeros(3))


# -- parameters, buffers, constants ------------------------------------------------------------------------------------


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale, self.frozen = nn.Parameter(torch.ones(4)), nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("offset", torch.full((4,), 3.0), persistent=False)
        self.register_buffer("last", torch.zeros(4), persistent=False)

    def forward(self, ids: Any) -> Any:
        self.steps += 1
        x = self.embedding(ids) * self.scale * self.frozen + self.offset + self.last
        self.last.copy_(x.detach().sum(0))
        return self.head(x)


def test_trees_are_named_like_the_module():
    module, ids = Holder(), torch.tensor([0, 3])
    function, params, state = converted(module, ids)
    assert tree.map(np.shape, params) == {"embedding": {"weight": (5, 4)}, "scale": (4,)}
    assert set(state) == {"frozen", "steps", "last"}  # `offset` is a constant, `last` is written
    result, state = function(params, state, np.asarray([0, 3]))
    assert_close(result, module(ids), 1e-6)
    result, state = function(params, state, np.asarray([0, 3]))
    assert_close(result, module(ids), 1e-6)
    assert int(state["steps"]) == 2


def test_gradients_of_tied_weights_are_summed():
    module, ids = Holder(), torch.tensor([0, 3])
    function, params, state = converted(module, ids)
    loss = lambda params: tnp.sum(function(params, state, np.asarray([0, 3]))[0] ** 2)
    gradient = tvmfun.grad(loss)(params)
    (module(ids) ** 2).sum().backward()
    assert_close(gradient["embedding"]["weight"], module.embedding.weight.grad, 1e-5)
    assert_close(gradient["scale"], module.scale.grad, 1e-5)


def test_state_dicts_there_and_back():
    module = Holder()
    params, state = params_of(module)
    changed = tree.map(lambda x: x + 1, params)
    tensors = to_state_dict(module, changed, state)
    assert list(tensors) == list(module.state_dict())
    module.load_state_dict(tensors)
    assert module.head.weight is module.embedding.weight
    again, _ = params_of(module)
    assert tree.all(tree.map(lambda a, b: bool((a == b).all()), changed, again))
    with pytest.raises(TreeError, match="the trees must have 'scale'"):
        to_state_dict(module, {"embedding": params["embedding"]}, state)
    with pytest.raises(TreeError, match="belong to the module, got more"):
        to_state_dict(module, {**params, "more": 1.0}, state)
    with pytest.raises(ShapeError, match=r"'scale' must have the shape \(4,\)"):
        to_state_dict(module, {**params, "scale": np.ones(3)}, state)


def test_parameters_that_are_called_like_others_of_a_submodule():
    module = nn.ModuleDict({"weight": nn.Linear(2, 2)})
    assert params_of(module)[0].keys() == {"weight"}


# -- what Python and PyTorch do around operators -----------------------------------------------------------------------


class InPlace(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x.clone()
        y[:, 0] = 7.0
        y[y < 0] = 0.5
        y.add_(1).mul_(x)
        y[1:].zero_()
        view = y.view(-1)
        view[3] += 2
        return y.relu_()


def test_writes_in_place_are_values():
    x = torch.randn(3, 4, dtype=torch.float64)
    function, params, state = converted(InPlace(), x)
    given = x.numpy().copy()
    run = tvmfun.jit(lambda x: function(params, state, x)[0])
    assert_close(run(given), InPlace()(x))
    np.testing.assert_array_equal(given, x)
    x.requires_grad_()
    InPlace()(x).sum().backward()
    assert_close(tvmfun.grad(lambda x: tnp.sum(run(x)))(given), x.grad)


class Stopped(nn.Module):
    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            a, b = x * 2, x.exp()
        return a * x + b * x + x.detach() ** 2 * x


def test_gradients_stop_where_they_do_in_torch():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    function, params, state = converted(Stopped(), x.detach())
    gradient = tvmfun.grad(lambda x: tnp.sum(function(params, state, x)[0]))(x.detach().numpy())
    Stopped()(x).sum().backward()
    assert_close(gradient, x.grad)


def test_results_and_arguments_are_trees():
    class Trees(nn.Module):
        def forward(self, pair: Any, *, named: Any, flag: bool = True) -> Any:
            first, second = pair
            return {"sum": first + named["x"] if flag else first, "rest": [second, None, (first,)]}, 3

    pair, named = (torch.ones(2), torch.zeros(3)), {"x": torch.ones(2)}
    function, params, state = from_torch(Trees(), (pair,), {"named": named, "flag": True})
    (result, three), state = function(params, state, arrays(pair), named=arrays(named), flag=True)
    assert three == 3 and state == {}
    np.testing.assert_array_equal(result["sum"], [2, 2])
    assert result["rest"][1] is None and result["rest"][2][0].shape == (2,)
    with pytest.raises(ArgumentError, match="flag is not an array, and must be True"):
        function(params, state, arrays(pair), named=arrays(named), flag=False)
    with pytest.raises(ArgumentError, match="takes 1 positional arguments and named, flag by name"):
        function(params, state, *arrays(pair), named=arrays(named))


def test_integers_promote_as_in_torch():
    class Mixed(nn.Module):
        def forward(self, i: Any, x: Any) -> Any:
            return i / 2, i + 1.5, i * x, i.sum(), i.float().mean(), (i > 1) * x, i // 2, i**2, torch.arange(3) + x[0]

    i, x = torch.arange(4), torch.randn(4)
    function, params, state = converted(Mixed(), i, x)
    for ours, theirs in zip(function(params, state, np.asarray(i), np.asarray(x))[0], Mixed()(i, x), strict=True):
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
        assert_close(ours, theirs, 1e-6)


def test_half_precision():
    module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).bfloat16()
    x = torch.randn(4, 8).bfloat16()
    function, params, state = converted(module, x)
    result = function(params, state, tnp.asarray(x))[0]
    assert result.dtype == tnp.bfloat16
    np.testing.assert_allclose(np.asarray(result, "float32"), module(x).detach().float(), atol=0.03)


# -- dynamic sizes -----------------------------------------------------------------------------------------------------


def test_one_compilation_serves_every_batch():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
    module.append(nn.Linear(4, 3)).double()
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    function, params, state = converted(module, x, dynamic_shapes={"input": {0: "batch"}})

    @tvmfun.jit(dynamic_shapes={"x": {0: "b"}})
    @tvmfun.value_and_grad
    def run(params: Any, x: Any) -> Any:
        return tnp.mean(function(params, state, x)[0] ** 2)

    with counted() as events:
        for size in (2, 6, 7, 33):
            x = torch.randn(size, 1, 8, 8, dtype=torch.float64)
            value, gradient = run(params, np.asarray(x))
            module.zero_grad()
            wanted = (module(x) ** 2).mean()
            wanted.backward()
            assert_close(value, wanted)
            assert_close(gradient["0"]["weight"], module[0].weight.grad)
            assert_close(gradient["1"]["weight"], module[1].weight.grad)
    assert events.compiles + events.loads == 1


def test_dynamic_lengths():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.layer(x + torch.arange(x.shape[1])[:, None]).reshape(x.shape[0] * x.shape[1], 8)

    module = Model().double().eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    sizes = {"x": {0: "b", 1: "t"}}
    function, params, state = converted(module, x, train=False, dynamic_shapes=sizes)
    run = tvmfun.jit(lambda x: function(params, state, x)[0], dynamic_shapes=sizes)
    for shape in ((2, 5, 8), (3, 9, 8)):
        x = torch.randn(shape, dtype=torch.float64)
        assert_close(run(np.asarray(x)), module(x))


def test_other_shapes_and_dtypes_than_the_examples_are_errors():
    function, params, state = converted(nn.Linear(3, 2), torch.zeros(4, 3))
    with pytest.raises(ShapeError, match=r"input must have the shape \(4, 3\), got \(5, 3\).*dynamic_shapes="):
        function(params, state, np.zeros((5, 3), "float32"))
    with pytest.raises(DtypeError, match="input must be float32"):
        function(params, state, np.zeros((4, 3), "float64"))
    with pytest.raises(TreeError, match="must have 'weight'"):
        function({"bias": params["bias"]}, state, np.zeros((4, 3), "float32"))
    with pytest.raises(TreeError, match="first arguments are params and state, which are dicts, got dict and ndarray"):
        function(params, np.zeros((4, 3), "float32"))


# -- transforms --------------------------------------------------------------------------------------------------------


def test_second_derivatives_and_batches_of_models():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 1)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    function, params, state = converted(module, x)
    loss = lambda params, x: tnp.sum(function(params, state, x)[0] ** 2)
    hessian = tvmfun.jit(tvmfun.hessian(lambda w: loss({**params, "0": {**params["0"], "weight": w}}, np.asarray(x))))
    theirs = lambda w: (torch.func.functional_call(module, {"0.weight": w}, x) ** 2).sum()
    assert_close(hessian(params["0"]["weight"]), torch.autograd.functional.hessian(theirs, module[0].weight))
    stacked = tree.map(lambda p: tnp.stack([p, 2 * p]), params)
    values = tvmfun.vmap(loss, in_axes=(0, None))(stacked, np.asarray(x))
    assert_close(values[0], theirs(module[0].weight))


def test_pictures_are_moved_once():
    net = made(torch_nets.resnet)
    (x,), _, _ = net.batches[0]
    function, params, state = from_torch(net.module, (x,))
    program = tvmfun.trace(function)(params, state, np.asarray(x))
    moves = [e for e in program.equations if e.op.name == "permute_dims" and e.inputs[0].aval.ndim == 4]
    pictures = [e for e in moves if e.inputs[0].aval.shape[0] == x.shape[0] and e.inputs[0].aval.size > 4 * 64]
    assert len(pictures) <= 1


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_operator_without_a_translation_is_named_with_its_line():
    class Rare(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x * 2
            return torch.linalg.eigvals(y).real

    with pytest.raises(ProgramError, match=r"aten\.\w*eig\w*\.\w+ at .*test_from_torch\.py:\d+: return torch\.linalg"):
        converted(Rare(), torch.randn(3, 3))


def test_what_torch_cannot_export_is_an_error():
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(ProgramError, match=r"torch\.export cannot trace the module"):
        converted(Branch(), torch.randn(3))
    with pytest.raises(ArgumentError, match="example_args must be a tuple, got Tensor"):
        from_torch(nn.Linear(3, 2), torch.randn(1, 3))


def test_the_module_stays_as_it_is():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()
    before = {name: x.clone() for name, x in module.state_dict().items()}
    function, params, state = converted(module, torch.randn(4, 3))
    function(params, state, np.ones((4, 3), "float32"), key=KEY)
    assert not module.training and not module[0].training
    assert all((x == before[name]).all() for name, x in module.state_dict().items())


def test_tensors_share_memory_with_arrays():
    x = tnp.arange(6.0).reshape(2, 3)
    tensors = to_torch({"x": x, "y": np.ones(2), "z": 3})
    assert tensors["x"].data_ptr() == x.address
    assert tensors["y"].dtype == torch.float64 and int(tensors["z"]) == 3
    assert to_torch(tnp.ones(2, tnp.bfloat16)).dtype == torch.bfloat16


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_table_says():
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
    assert page == updated(page), "run: python -m tvmfun.interop.torch docs/interop.md"


def test_core_operators_are_read_decomposed_or_left_out():
    decomposed, wrong = decompositions(), []
    # `dir(torch.ops.aten)` has only names that have been looked up.
    names = {schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas()}
    for name in sorted(name for name in names if hasattr(torch.ops.aten, name)):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operator = getattr(packet, overload)
            if torch.Tag.core in operator.tags:
                kinds = (translation_of(operator_name(operator)) is not None, operator in decomposed, name in LEFT_OUT)
                wrong += [operator] if sum(kinds) != 1 else []
    assert wrong == []


def test_every_row_is_an_operator():
    schemas = {schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas()}
    assert [name for name in TRANSLATIONS if name.partition(".")[0] not in schemas] == []
