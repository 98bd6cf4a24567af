"""Containers of layers, their states, parts of models, inference, summaries."""

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.layers import kernels, normal

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, nn, random, tree
from tvmfun.errors import ArgumentError, TreeError
from tvmfun.nn import functional as F

KEY = random.key(0)


def test_a_sequence_gives_each_layer_what_it_takes():
    model = nn.Sequential(nn.Linear(3, 4, key=KEY), nn.Dropout(0.5), F.relu, nn.Dropout(0.5), nn.Flatten())
    x, key = normal(2, 3), random.key(5)
    h = F.relu(F.dropout(random.fold_in(key, 1), model[0](x), 0.5))
    np.testing.assert_array_equal(model(x, key=key), F.dropout(random.fold_in(key, 3), h, 0.5))
    np.testing.assert_array_equal(model(x, train=False), F.relu(model[0](x)))
    y, state = model(x, nn.init_state(model), key=key)
    assert state == ((),) * 5
    np.testing.assert_array_equal(y, model(x, key=key))
    with pytest.raises(ArgumentError, match=r"\[Dropout\] a key is needed for training"):
        model(x)
    assert len(model) == 5 and list(model)[2] is F.relu and model[2] is F.relu
    np.testing.assert_array_equal(model[:1](x), model[0](x))


def test_a_sequence_is_a_tree():
    model = nn.Sequential(nn.Linear(3, 4, key=KEY), F.relu, nn.Sequential(nn.Linear(4, 2, key=KEY), tnp.tanh))
    assert len(tree.leaves(model)) == 4
    loss = lambda model, x: tnp.sum(model(x) ** 2)
    grads = tvmfun.jit(tvmfun.grad(loss))(model, normal(5, 3))
    assert tree.structure(grads) == tree.structure(model)
    assert pickle.loads(pickle.dumps(model[0])).weight.shape == (3, 4)
    assert repr(nn.Sequential(nn.Residual(model))) == "\n".join(
        [
            "Sequential(",
            "  (0): Residual(",
            "    (layer): Sequential(",
            "      (0): Linear(weight=float32[3,4], bias=float32[4])",
            "      (1): relu",
            "      (2): Sequential(",
            "        (0): Linear(weight=float32[4,2], bias=float32[2])",
            "        (1): tanh",
            "      )",
            "    )",
            "  )",
            ")",
        ]
    )


@tree.register_dataclass
@dataclass(frozen=True)
class Net:
    """A model as users write them."""

    blocks: Any
    norm: nn.BatchNorm
    head: nn.Linear

    def __call__(self, x, state, *, train=True):
        x, blocks = self.blocks[0](x, state["blocks"][0], train=train)
        x, norm = self.norm(x, state["norm"], train=train)
        return self.head(x), {**state, "blocks": (blocks, *state["blocks"][1:]), "norm": norm}


def net():
    block = nn.Sequential(nn.Linear(3, 4, key=KEY), nn.BatchNorm(4), F.relu)
    return Net([block, nn.Identity()], nn.BatchNorm(4), nn.Linear(4, 2, key=KEY))


@pytest.mark.slow
def test_states_mirror_the_model():
    model = net()
    state = nn.init_state(model)
    assert set(state) == {"blocks", "norm"} and state["blocks"][1] == ()
    assert isinstance(state["blocks"][0][1], nn.RunningStatistics)
    assert nn.init_state(nn.Linear(2, 2, key=KEY)) == () and nn.init_state({"a": F.relu}) == {"a": ()}
    x = normal(5, 3)
    y, new = tvmfun.jit(lambda model, state, x: model(x, state))(model, state, x)
    assert tree.structure(new) == tree.structure(state)
    outer = nn.Sequential(nn.Residual(nn.Sequential(nn.BatchNorm(3))), model)
    states = nn.init_state(outer)
    assert set(states[0]) == {"layer"} and tree.structure(states[1]) == tree.structure(state)
    both, after = outer(x, states, train=True)
    assert both.shape == y.shape and tree.structure(after) == tree.structure(states)
    assert float(np.abs(np.asarray(after[1]["norm"].mean)).max()) > 0
    np.testing.assert_array_equal(after[0]["layer"][0].mean, np.float32(0.1) * x.mean(0).astype("float32"))


def test_what_is_missing_in_a_container_is_explained():
    model, x = nn.Sequential(nn.BatchNorm(3)), normal(2, 3)
    with pytest.raises(ArgumentError, match=r"\[Sequential\] BatchNorm needs a state, got none. Try .*init_state"):
        model(x)
    with pytest.raises(ArgumentError, match=r"\[Residual\] Sequential needs a state"):
        nn.Residual(model)(x)
    with pytest.raises(TreeError, match=r"\[Sequential\] there must be 1 states, got 0"):
        model(x, ())
    with pytest.raises(ArgumentError, match=r"\[Sequential\] there must be layers and functions, got int"):
        nn.Sequential(3)
    with pytest.raises(ArgumentError, match=r"\[InstanceNorm\] running statistics need a state"):
        nn.InstanceNorm(3, track_running_stats=True)(normal(2, 4, 3))


def test_a_model_in_parts():
    model = net()
    selections = {
        "head": 2,
        "head.bias": 1,
        "*.bias": 4,
        "blocks.0.layers.*": 4,
        ("head", "norm.weight"): 3,
        (lambda path, leaf: leaf.ndim == 2): 2,
    }
    for where, count in selections.items():
        selected, rest = nn.partition(model, where)
        assert len(tree.leaves(selected)) == count and len(tree.leaves(rest)) == 8 - count
        again = nn.combine(selected, rest)
        assert tree.structure(again) == tree.structure(model)
        assert all(a is b for a, b in zip(tree.leaves(again), tree.leaves(model), strict=True))
    bare = {"layer": nn.Linear(2, 2, bias=False, key=KEY)}
    assert nn.combine(*nn.partition(bare, "layer"))["layer"].bias is None
    with pytest.raises(ArgumentError, match=r"\[partition\] a path .* got 'haed'. Try '.*'"):
        nn.partition(model, ["norm", "haed"])
    with pytest.raises(TreeError):
        nn.combine({"a": 1}, {"b": None})


def test_only_the_trainable_part_gets_gradients():
    model, x = net(), normal(5, 3)
    trainable, frozen = nn.partition(model, "head")

    @tvmfun.jit
    def step(trainable, frozen, state):
        loss = lambda part: tnp.sum(nn.combine(part, frozen)(x, state)[0] ** 2)
        return tvmfun.grad(loss)(trainable)

    grads = step(trainable, frozen, nn.init_state(model))
    assert tree.structure(grads) == tree.structure(trainable) and len(tree.leaves(grads)) == 2
    full = tvmfun.jit(tvmfun.grad(lambda m, s: tnp.sum(m(x, s)[0] ** 2)))(model, nn.init_state(model))
    np.testing.assert_allclose(grads.head.weight, full.head.weight, rtol=1e-5)


def batch_normalized():
    block = nn.Sequential(nn.ConvTranspose1d(4, 4, 3, padding=1, groups=2, bias=False, key=KEY), nn.BatchNorm(4))
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, key=KEY),
        nn.BatchNorm(4, affine=False),
        F.relu,
        nn.Residual(block),
        nn.BatchNorm(4),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(20, 2, key=KEY),
        nn.BatchNorm(2),
    )


@pytest.mark.slow
def test_folded_batch_normalizations():
    model, x = batch_normalized(), normal(4, 7, 3)
    rng = np.random.default_rng(0)
    random_leaf = lambda leaf: tnp.asarray(rng.uniform(0.5, 1.5, leaf.shape).astype("float32"))
    model, state = tree.map(random_leaf, model), tree.map(random_leaf, nn.init_state(model))
    folded, rest = nn.fold(model, state)
    kinds = [type(layer).__name__ for layer in folded.layers]
    assert kinds == ["Conv1d", "Function", "Residual", "BatchNorm", "Dropout", "Flatten", "Linear"]
    assert len(folded[2].layer) == 1 and len(tree.leaves(rest)) == 2

    @tvmfun.jit
    def both(model, state, folded, rest, x):
        return model(x, state, train=False), folded(x, rest, train=False)

    (y, unchanged), (z, _) = both(model, state, folded, rest, x)
    np.testing.assert_allclose(z, y, rtol=1e-4, atol=1e-4)
    assert tree.structure(unchanged) == tree.structure(state)
    own = net()
    inner, states = nn.fold(own, nn.init_state(own))
    assert len(inner.blocks[0]) == 2 and set(states) == {"blocks", "norm"}
    np.testing.assert_allclose(
        inner(x[0], states, train=False)[0], own(x[0], nn.init_state(own), train=False)[0], rtol=1e-4, atol=1e-5
    )


def test_inference_compiles_to_one_kernel_for_a_convolution():
    """Without training there is no dropout, and the normalization is in the kernel of the convolution."""
    images = ShapeDtype((4, 8, 8, 3), "float32")
    model = nn.Sequential(nn.Conv2d(3, 16, 3, key=KEY), nn.BatchNorm(16), F.relu, nn.Dropout(0.5))
    state = nn.init_state(model)
    folded, rest = nn.fold(model, state)
    run = lambda model, state, x: model(x, state, train=False)[0]
    for parts in ((model, state), (folded, rest)):
        (kernel,) = kernels(run, *parts, images)
        names = {equation.op.name for equation in kernel.equations}
        assert "conv" in names and "threefry2x32" not in names
    assert "rsqrt" not in names  # of the folded one


def test_a_summary_counts_parameters_and_operations():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, groups=1, bias=False, key=KEY),
        nn.BatchNorm(8),
        F.relu,
        nn.Residual(nn.Sequential(nn.Conv2d(8, 8, 1, groups=2, bias=False, key=KEY))),
        nn.Flatten(),
        nn.Linear(32, 5, key=KEY, dtype="float32"),
    )
    given = tree.map(lambda leaf: ShapeDtype(leaf.shape, leaf.dtype), model)
    for known in (model, given):
        table = nn.summary(known, ShapeDtype((2, 4, 4, 3), "float32"), nn.init_state(model), train=False)
        rows = {row.path: row for row in table.layers}
        assert rows["layers.0"].flops == 2 * (2 * 2 * 2) * 8 * (3 * 3 * 3)
        assert rows["layers.2"].flops == 2 * 2 * 2 * 8 and rows["layers.2"].kind == "relu"
        assert rows["layers.3.layer.layers.0"].flops == 2 * (2 * 2 * 2) * 8 * 4
        assert rows["layers.3"].flops == rows["layers.3.layer"].flops + 2 * 2 * 2 * 8
        assert rows["layers.5"].flops == 2 * 2 * 32 * 5 + 2 * 5 and rows["layers.4"].flops == 0
        assert rows["layers.5"].output == ShapeDtype((2, 5), "float32")
        assert (rows["layers.5"].parameters, rows["layers.5"].bytes) == (165, 660)
        top = [row for path, row in rows.items() if path.count(".") == 1]
        assert table.total.flops == sum(row.flops for row in top)
        assert table.total.parameters == sum(row.parameters for row in top) == 216 + 16 + 32 + 165
        assert "layers.3.layer.layers.0  Conv2d" in str(table)


def test_a_summary_of_loops_and_repeated_layers():
    @tree.register_dataclass
    @dataclass(frozen=True)
    class Repeated:
        inner: nn.Linear
        unused: nn.Linear

        def __call__(self, x, times):
            x = self.inner(self.inner(x))
            return tvmfun.lax.fori_loop(0, times, lambda i, x: F.linear(x, self.inner.weight), x)

    model = Repeated(nn.Linear(4, 4, bias=False, key=KEY), nn.Linear(4, 4, key=KEY))
    table = nn.summary(model, ShapeDtype((3, 4), "float32"), 10)
    inner, unused = table.layers
    assert inner.flops == 2 * (2 * 3 * 4 * 4) and table.total.flops == 12 * (2 * 3 * 4 * 4)
    assert (unused.output, unused.flops, unused.parameters) == (None, 0, 20)
    branches = lambda y: tvmfun.lax.cond(True, lambda y: y @ y.swapaxes(-1, -2), lambda y: y[..., :2], y)
    parts = nn.Sequential(branches, tvmfun.checkpoint(lambda y: 2 * y))
    table = nn.summary(parts, ShapeDtype((5, 2, 8), "float32"))
    assert [row.flops for row in table.layers] == [2 * (5 * 2 * 2) * 8, 5 * 2 * 2]
    attention = nn.Sequential(lambda x: F.dot_product_attention(x, x, x, is_causal=True))
    length, width = 1024, 32  # long enough for blocks in loops
    flops = nn.summary(attention, ShapeDtype((1, length, 1, width), "float32")).total.flops
    assert 1 < flops / (2 * 2 * length * length * width) < 1.1
    with pytest.raises(ArgumentError, match=r"\[summary\] the model must be a layer that can be called, got dict"):
        nn.summary({"a": model})
