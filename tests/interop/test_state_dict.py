"""State dicts by tables of names: every misfit is an error that names the array."""

import re

import numpy as np
import pytest

from tvmfun import checkpoints, nn, random
from tvmfun.errors import ArgumentError, ShapeError, TreeError
from tvmfun.interop.state_dict import Row, from_state_dict, linear, to_state_dict

TABLE = [*linear("[{i}]", "layers.{i}"), Row("[0].weight", "again.weight", "linear", tied=True)]
MODEL = (nn.Linear(2, 3, key=random.key(0)), nn.Linear(3, 2, key=random.key(1)))


def arrays():
    return to_state_dict(MODEL, TABLE)


def test_there_and_back():
    state = arrays()
    assert {name: array.shape for name, array in state.items()} == {
        "layers.0.weight": (3, 2),
        "again.weight": (3, 2),
        "layers.0.bias": (3,),
        "layers.1.weight": (2, 3),
        "layers.1.bias": (2,),
    }
    changed = {name: array + 1 for name, array in state.items()}
    read = from_state_dict(MODEL, changed, TABLE)
    np.testing.assert_array_equal(read[0].weight, np.asarray(MODEL[0].weight) + 1)
    assert all((a == b).all() for a, b in zip(to_state_dict(read, TABLE).values(), changed.values(), strict=True))


def test_parts_of_an_array():
    table = [Row("[{i}].weight", "qkv.weight", "linear"), Row("[{i}].bias", "qkv.bias")]
    parts = [row._replace(path=row.path.replace("{i}", str(k)), part=(k, 2)) for k in range(2) for row in table]
    model = (nn.Linear(2, 3, key=random.key(0)), nn.Linear(2, 3, key=random.key(1)))
    state = to_state_dict(model, parts)
    assert state["qkv.weight"].shape == (6, 2) and state["qkv.bias"].shape == (6,)
    np.testing.assert_array_equal(state["qkv.weight"][3:], np.asarray(model[1].weight).T)
    np.testing.assert_array_equal(from_state_dict(model, state, parts)[1].weight, model[1].weight)
    with pytest.raises(ShapeError, match="'qkv.bias' must have 2 equal parts"):
        from_state_dict(model, state | {"qkv.bias": np.zeros(5, "float32")}, parts)


def test_convolutions():
    table = linear("", "conv", "conv")
    model = nn.Conv2d(2, 5, (3, 4), key=random.key(0))
    state = to_state_dict(model, table)
    assert state["conv.weight"].shape == (5, 2, 3, 4)
    np.testing.assert_array_equal(from_state_dict(model, state, table).weight, model.weight)


def test_prefixes_and_ignored_arrays():
    state = {f"model.{name}": array for name, array in arrays().items()} | {"model.steps": np.zeros(())}
    assert from_state_dict(MODEL, state, TABLE, prefix="model.", ignore=r"model\.steps")
    assert set(to_state_dict(MODEL, TABLE, prefix="model.")) == state.keys() - {"model.steps"}


def test_tied_arrays_may_be_missing_and_must_agree():
    state = arrays()
    from_state_dict(MODEL, {k: v for k, v in state.items() if k != "again.weight"}, TABLE)
    with pytest.raises(ArgumentError, match=re.escape("'again.weight' must be tied to 'layers.0.weight'")):
        from_state_dict(MODEL, state | {"again.weight": state["again.weight"] + 1}, TABLE)


def test_files(tmp_path):
    path = tmp_path / "model.safetensors"
    checkpoints.save(path, {"a": 1.0})
    with pytest.raises(TreeError, match="needs an array 'layers.0.weight'"):
        from_state_dict(MODEL, path, TABLE)
    with pytest.raises(FileNotFoundError):
        from_state_dict(MODEL, tmp_path / "none.safetensors", TABLE)


@pytest.mark.parametrize(
    ("error", "change", "message"),
    [
        (TreeError, {"layers.1.bias": None, "layer.1.bias": np.zeros(2)}, "got none, but layer.1.bias"),
        (TreeError, {"layers.2.weight": np.zeros(2)}, "every array must be a leaf of the model, got layers.2.weight"),
        (ShapeError, {"layers.1.weight": np.zeros((3, 2))}, "must have the shape of [1].weight, (2, 3), got (3, 2)"),
    ],
)
def test_misfits(error, change, message):
    state = {name: array for name, array in (arrays() | change).items() if array is not None}
    with pytest.raises(error, match=re.escape(message)):
        from_state_dict(MODEL, state, TABLE)


def test_a_leaf_without_a_row():
    with pytest.raises(ArgumentError, match=re.escape("the table must have a row for [0].weight")):
        to_state_dict(MODEL, [])


def test_names_to_ignore_are_a_regular_expression():
    with pytest.raises(ArgumentError, match="ignore must be a regular expression"):
        from_state_dict(MODEL, arrays(), TABLE, ignore="(")


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(groups):
    torch = pytest.importorskip("torch")
    model = nn.ConvTranspose2d(4, 6, (3, 2), stride=2, groups=groups, key=random.key(0))
    theirs = torch.nn.ConvTranspose2d(4, 6, (3, 2), stride=2, groups=groups)
    table = linear("", "up", "conv_transpose")
    table[0] = table[0]._replace(groups=groups)
    state = {f"up.{name}": value for name, value in theirs.state_dict().items()}
    read = from_state_dict(model, state, table)
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 4)).astype("float32")
    expected = theirs(torch.tensor(x.transpose(0, 3, 1, 2))).detach().numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(read(x), expected, rtol=1e-5, atol=1e-5)
    for name, array in to_state_dict(read, table).items():
        np.testing.assert_array_equal(array, state[name].numpy())


def test_an_unknown_layout():
    with pytest.raises(ArgumentError, match=r"^\[from_state_dict\] the layout .* 'conv_transpose', got 'transposed'"):
        from_state_dict(MODEL, arrays(), linear("[{i}]", "layers.{i}", "transposed"))
