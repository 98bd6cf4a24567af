"""Checkpoints: bits, structure, damage, kills, and the files of other libraries."""

import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import checkpoints, dtypes, nn, optim, random, tree
from tvmfun.core.array import ShapeDtype
from tvmfun.errors import ArgumentError, CheckpointError, DtypeError, ShapeError, TreeError


class Moments(NamedTuple):
    count: Any
    mu: Any


def bits(values):
    """The contents of a tree without loss: NaNs and signed zeros by their bits."""
    leaves, structure = tree.flatten(values)
    arrays = [np.asarray(leaf) for leaf in leaves]
    return structure, [(type(leaf), a.dtype, a.shape, a.tobytes()) for leaf, a in zip(leaves, arrays, strict=True)]


def cycle(path, values, like=None):
    checkpoints.save(path, values)
    return checkpoints.load(path, values if like is None else like)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


# -- bits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape(path, dtype, shape):
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, size, "uint8").tobytes()
    array = np.frombuffer(raw, dtype).reshape(shape)
    values = {"numpy": array, "ours": tnp.asarray(array), "scalar": dtype.type(1)}
    assert bits(cycle(path, values)) == bits(values)


@pytest.mark.parametrize(
    "values",
    [
        {},
        [],
        None,
        tnp.ones(3),
        (),
        [(), {"a": None}, Moments(1, {})],
        Moments(count=np.int32(3), mu={"w": [tnp.ones((2, 3)), None], "b": (1.5,)}),
        {"key": random.key(3), "keys": random.split(random.key(3), 4), "weak": tnp.asarray(2.0)},
        {"int": -(2**63), "bool": True, "float": -0.0, "nan": float("nan"), "tiny": 5e-324, "big": 2**62 + 1},
        {"ä'\"\\\n": [np.ones(2)]},
        OrderedDict(b=1, a=2),
        {"empty key": {"": 1.0}},
    ],
    ids=lambda values: type(values).__name__,
)
def test_trees(path, values):
    result = cycle(path, values)
    assert bits(result) == bits(values)
    for ours, theirs in zip(tree.leaves(result), tree.leaves(values), strict=True):
        assert getattr(ours, "weak_type", None) == getattr(theirs, "weak_type", None)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_layout_of_memory(tmp_path_factory, data):
    dtype = data.draw(st.sampled_from(["bool", "int8", "uint16", ">i4", "float16", ">f8"]))
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
    array = array[(slice(None, None, -1),) * array.ndim].T
    path = tmp_path_factory.mktemp("layout") / "a"
    checkpoints.save(path, [array, np.ones(1, "int8"), np.broadcast_to(array, (2, *array.shape))])
    first, _, second = checkpoints.read(path).arrays.values()
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, [array, array])
    assert first.dtype == array.dtype.newbyteorder("=") and first.flags.writeable


def test_like_may_have_no_data(path):
    values = {"w": tnp.ones((2, 3), "bfloat16"), "n": tnp.zeros((), "int32")}
    like = {"w": ShapeDtype((2, 3), "bfloat16"), "n": jnp.zeros((), "int32")}
    result = cycle(path, values, like)
    assert all(isinstance(leaf, tvmfun.Array) for leaf in tree.leaves(result))
    assert bits(result) == bits(values)


def test_numbers_that_became_arrays(path):
    """A state begins with Python numbers, and a step makes arrays of them."""
    start = {"step": 0, "rate": 1.0, "done": False}
    state = tvmfun.jit(lambda s: {"step": s["step"] + 1, "rate": s["rate"] * 0.3, "done": s["done"]})(start)
    result = cycle(path, state, start)
    assert result == {"step": 1, "rate": float(np.float32(0.3)), "done": False}
    assert [type(value) for value in tree.leaves(result)] == [bool, float, int]
    checkpoints.save(path, start)
    with pytest.raises(DtypeError, match=r"\['rate'\] must have the dtype float32, got float64. Try a Python number"):
        checkpoints.load(path, state)


# -- mistakes ----------------------------------------------------------------------------------------------------

GOOD = {"a": np.zeros((2, 3)), "b": [1, np.zeros(2, "int8")]}


@pytest.mark.parametrize(
    ("like", "error", "message"),
    [
        ({"a": GOOD["a"]}, TreeError, r"got 2 too many: \['b'\]\[0\], \['b'\]\[1\]"),
        ({**GOOD, "c": 1.0}, TreeError, r"got 1 missing: \['c'\]\. Try"),
        ({"x": GOOD["a"], "b": GOOD["b"]}, TreeError, r"got 1 missing: \['x'\]; 1 too many: \['a'\]"),
        ({**GOOD, "a": np.zeros((3, 2))}, ShapeError, r"\['a'\] must have the shape \(3, 2\), got \(2, 3\)"),
        ({**GOOD, "a": np.zeros((2, 3), "float32")}, DtypeError, r"\['a'\] must have the dtype float32, got float64"),
        ({**GOOD, "b": [1.0, GOOD["b"][1]]}, DtypeError, r"\['b'\]\[0\] must have the dtype float64, got int64"),
        ({**GOOD, "b": tuple(GOOD["b"])}, TreeError, r"the container at \['b'\] must be tuple, got list"),
        ({**GOOD, "c": None}, TreeError, r"the container at \['c'\] must be NoneType, got absent"),
        (OrderedDict(GOOD), TreeError, r"the container at the root must be OrderedDict, got dict"),
        ({**GOOD, "a": "text"}, DtypeError, r"\['a'\] of the tree must be an array or a number, got str"),
    ],
)
def test_trees_that_do_not_fit(path, like, error, message):
    checkpoints.save(path, GOOD)
    with pytest.raises(error, match=message):
        checkpoints.load(path, like)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": "text"}, r"\['a'\] cannot be read, got str"),
        ([np.ones(2, "complex64")], r"\[0\] cannot be read, got dtype\('complex64'\)"),
        (2**64, "the root cannot be read, got 18446744073709551616, an integer of more than 64 bits"),
        ({"key": jax.random.key(0)}, r"\['key'\] cannot be read, .*Try jax.random.key_data\(key\)"),
    ],
)
def test_leaves_that_cannot_be_saved(path, values, message):
    checkpoints.save(path, GOOD)
    with pytest.raises(DtypeError, match=message):
        checkpoints.save(path, values)
    assert bits(checkpoints.load(path, GOOD)) == bits(GOOD)
    assert os.listdir(path.parent) == [path.name]


def test_metadata(path):
    checkpoints.save(path, GOOD, metadata={"run": "ü"})
    assert checkpoints.read(path).metadata == {"run": "ü"}
    with pytest.raises(ArgumentError, match="the metadata must be strings, got 'epoch': 3"):
        checkpoints.save(path, GOOD, metadata={"epoch": 3})  # type: ignore[dict-item]


def test_damage_is_found(path):
    checkpoints.save(path, GOOD)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def altered(**entry):
        text = json.dumps({**header, "['a']": {**header["['a']"], **entry}}).encode()
        return len(text).to_bytes(8, "little") + text + whole[8 + length :]

    damaged = [whole[:end] for end in range(0, len(whole), 7)] + [whole + b"x", b"\xff" * 8 + whole[8:]]
    damaged += [altered(shape=[-2, -3]), altered(shape=[2, 4]), altered(data_offsets=[8, 56]), altered(shape=None)]
    damaged += [whole[:8] + b"[" + whole[9:], altered(dtype="F8_E4M3"), altered(dtype=["F32"]), altered(dtype=None)]
    damaged += [altered(shape=shape) for shape in ([2.0, 3], [1.5, 3], [True, 6], ["2", 3], "23", [2**70, 0], [0] * 99)]
    damaged += [altered(data_offsets=places) for places in ([0.5, 24], [0, float("inf")], ["0", "24"], [-24, 0], [])]
    for text in (
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"__metadata__": 3}',
        b'{"a": {"dtype": "F32", "shape": [Infinity]}}',
    ):
        damaged.append(len(text).to_bytes(8, "little") + text + whole[8 + length :])
    deep = json.dumps(
        {**header, "__metadata__": {**header["__metadata__"], "tvmfun.containers": "[" * 100_000}}
    ).encode()
    damaged.append(len(deep).to_bytes(8, "little") + deep + whole[8 + length :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"\[read\]"):
            checkpoints.read(path)
    path.write_bytes(altered())
    assert bits(checkpoints.load(path, GOOD)) == bits(GOOD)
    with pytest.raises(FileNotFoundError):
        checkpoints.load(path.with_name("other"), GOOD)
    with pytest.raises(FileNotFoundError) as raised:  # which names the file, not the one that would replace it
        checkpoints.save(path.with_name("none") / "a", GOOD)
    assert raised.value.filename == str(path.with_name("none") / "a")


# -- files -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_save_loses_nothing(tmp_path):
    script = Path(__file__).parent / "support" / "killed_saves.py"
    run = subprocess.run([sys.executable, script, tmp_path, "50"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["wrong"] == [] and report["kills"] == 50
    assert report["within"] >= 5, "the kills must meet saves"
    assert report["left"] == ["state.safetensors"]


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    checkpoints.save(path, GOOD)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(path, {"a": np.ones(3)})
    assert bits(checkpoints.load(path, GOOD)) == bits(GOOD)
    assert os.listdir(path.parent) == [path.name]


def test_a_link_stays_and_permissions_are_the_usual_ones(tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    checkpoints.save(link, GOOD)
    assert link.is_symlink() and bits(checkpoints.load(target, GOOD)) == bits(GOOD)
    (tmp_path / "plain").touch()
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_many_writers_of_one_file(path):
    def write(version):
        for _ in range(5):
            checkpoints.save(path, {"a": np.full(1000, version)})

    threads = [threading.Thread(target=write, args=(version,)) for version in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = checkpoints.read(path).arrays["['a']"]
    assert len(set(values.tolist())) == 1 and os.listdir(path.parent) == [path.name]


# -- the manager -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [True, False])
def test_manager_keeps_the_last(tmp_path, background):
    folder = tmp_path / "run" / "1"
    with checkpoints.Manager(folder, keep=2, background=background) as manager:
        with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
            manager.load(GOOD)
        for step in (0, 5, 11, 3):
            manager.save(step, {"step": step}, metadata={"step": str(step)})
        assert manager.steps() == [3, 11]
        assert manager.load({"step": 0}) == {"step": 11} and manager.load({"step": 0}, 3) == {"step": 3}
        with pytest.raises(FileNotFoundError, match=r"^\[Manager.load\] there is no step 5 in .*, but 3, 11\.$"):
            manager.load({"step": 0}, 5)
        assert checkpoints.read(manager.path(3)).metadata == {"step": "3"}
    with checkpoints.Manager(folder, keep=None, background=background) as manager:
        manager.save(12, {"step": 12})
        assert manager.steps() == [3, 11, 12]
    for keep in (0, 1.5):
        with pytest.raises(ArgumentError, match="keep must be a positive integer or None"):
            checkpoints.Manager(folder, keep=keep)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the step must be a natural number, got -1"):
        manager.save(-1, {})


def test_manager_leaves_files_of_others_alone(tmp_path):
    with checkpoints.Manager(tmp_path, keep=2, background=False) as manager:
        (tmp_path / "step_0000000005.safetensors").mkdir()
        others = ["step_77.safetensors", "step_0000000x01.safetensors", "step_١٢.safetensors", "notes.txt"]
        for name in others:
            (tmp_path / name).write_bytes(b"")
        abandoned = tmp_path / ".step_0000000001.safetensors.12345678.partial"
        abandoned.write_bytes(b"")
        for step in (np.int64(1), 2, 3):
            manager.save(step, {"step": int(step)})
        assert manager.steps() == [2, 3] and manager.load({"step": 0}) == {"step": 3}
        assert all((tmp_path / name).exists() for name in others) and not abandoned.exists()
        for wrong in (True, 1.0):
            with pytest.raises(ArgumentError, match="the step must be a natural number"):
                manager.save(wrong, {})


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    path = tmp_path / "state.safetensors"
    checkpoints.save(path, {"x": 1})
    path.chmod(0o600)
    checkpoints.save(path, {"x": 2})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_background_save_is_of_the_moment(tmp_path, monkeypatch):
    go, write = threading.Event(), checkpoints.manager.replace_file

    def slow_write(path, snapshot):
        assert go.wait(30)
        write(path, snapshot)

    monkeypatch.setattr(checkpoints.manager, "replace_file", slow_write)
    mine, ours = np.ones(1000), tnp.ones(1000)
    step = tvmfun.jit(lambda x: x * 2, donate_argnums=0)
    with checkpoints.Manager(tmp_path) as manager:
        manager.save(1, {"mine": mine, "ours": ours})
        mine[:] = 5
        np.testing.assert_array_equal(step(ours), np.full(1000, 2))
        go.set()
        saved = manager.load({"mine": mine, "ours": ShapeDtype((1000,), "float32")})
    np.testing.assert_array_equal(saved["mine"], np.ones(1000))
    np.testing.assert_array_equal(saved["ours"], np.ones(1000))


def test_a_failed_background_save_is_reported_once(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    manager = checkpoints.Manager(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        manager.save(1, GOOD)
        with pytest.raises(OSError, match="No space left"):
            manager.wait()
    manager.save(2, GOOD)
    manager.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step_0000000002.safetensors"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_save_after_the_end_is_written_at_once(tmp_path, monkeypatch, fails):
    manager = checkpoints.Manager(tmp_path)
    manager.close()
    if not fails:
        manager.save(3, GOOD)
        assert manager.steps() == [3]
        return
    monkeypatch.setattr(os, "fsync", lambda file: os.close(-1))
    manager.save(3, GOOD)
    with pytest.raises(OSError, match="Bad file descriptor"):
        manager.wait()


# -- training and other libraries --------------------------------------------------------------------------------


def test_training_goes_on_with_the_same_bits(path):
    optimizer = optim.adamw(optim.cosine_decay_schedule(1e-2, 10))

    def loss(model, key, x):
        return tnp.sum(nn.functional.dropout(key, model(x), 0.5) ** 2)

    @tvmfun.jit
    def step(state, x):
        used, key = random.split(state["key"])
        grads = tvmfun.grad(loss)(state["model"], used, x)
        updates, opt_state = optimizer.update(grads, state["opt_state"], state["model"])
        return {"model": optim.apply_updates(state["model"], updates), "opt_state": opt_state, "key": key}

    model, x = nn.Linear(4, 3, key=random.key(1)), tnp.ones((5, 4))
    start = {"model": model, "opt_state": optimizer.init(model), "key": random.key(2)}
    half = step(step(start, x), x)
    resumed = cycle(path, half, like=start)
    assert bits(resumed) == bits(half)
    assert bits(step(step(resumed, x), x)) == bits(step(step(half, x), x))


def test_state_of_optax_goes_both_ways(path):
    params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
    theirs, ours = optax.adam(1e-2), optim.adam(1e-2)
    state = theirs.update(params, theirs.init(params), params)[1]
    loaded = cycle(path, state, like=ours.init(tree.map(np.asarray, params)))
    for mine, leaf in zip(tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        assert mine.dtype == leaf.dtype
        np.testing.assert_array_equal(mine, leaf)
    back = jax.tree.map(jnp.asarray, cycle(path, loaded, like=state))
    assert jax.tree.structure(back) == jax.tree.structure(state)


def test_restore_from_plain_arrays():
    layer = nn.Linear(3, 2, key=random.key(0))
    weight = np.arange(6, dtype="float32").reshape(2, 3)
    restored = checkpoints.restore({".weight": weight.T, ".bias": jnp.ones(2)}, like=layer)
    np.testing.assert_array_equal(restored.weight, weight.T)
    with pytest.raises(ShapeError, match=r"\[restore\] \.weight must have the shape \(3, 2\), got \(2, 3\)"):
        checkpoints.restore({".weight": weight, ".bias": np.ones(2, "float32")}, like=layer)
    with pytest.raises(TreeError, match=r"\[restore\] .* got 1 missing: \.bias"):
        checkpoints.restore({".weight": weight}, like=layer)


@pytest.mark.interop
def test_restore_from_torch(path):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    state = {
        f".{name}": (leaf.T.contiguous() if leaf.ndim == 2 else leaf) for name, leaf in theirs.state_dict().items()
    }
    layer = checkpoints.restore(state, like=nn.Linear(3, 2, key=random.key(0), dtype="bfloat16"))
    np.testing.assert_array_equal(np.asarray(layer.bias, "float32"), theirs.bias.detach().float().numpy())
    loaded = cycle(path, dict(theirs.state_dict()))
    np.testing.assert_array_equal(np.asarray(loaded["weight"], "float32"), theirs.weight.detach().float().numpy())


def test_files_of_the_safetensors_package(path):
    safetensors = pytest.importorskip("safetensors.numpy")
    values = {str(dtype): np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes.ALL if dtype != dtypes.bfloat16}
    values["scalar"], values["empty"] = np.asarray(3.5), np.zeros((0, 2), "int16")
    checkpoints.save(path, values, metadata={"run": "1"})
    theirs = safetensors.load_file(path)
    assert {f"['{name}']" for name in values} == theirs.keys()
    for name, array in values.items():
        assert theirs[f"['{name}']"].dtype == array.dtype
        np.testing.assert_array_equal(theirs[f"['{name}']"], array)
    safetensors.save_file(values, path, {"run": "2"})
    arrays, metadata = checkpoints.read(path)
    assert metadata == {"run": "2"} and bits(arrays) == bits(values)


def test_a_changed_bit_is_found(tmp_path):
    file = tmp_path / "a.safetensors"
    tree_ = {"w": np.arange(1000, dtype="float32"), "b": np.ones(3), "empty": np.zeros((0, 2))}
    checkpoints.save(file, tree_)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"another checksum.*\['w'\]"):
        checkpoints.load(file, tree_)


def test_a_number_is_not_a_path():
    # Python's open() would read the file of that descriptor, and close it.
    for read in (checkpoints.read, lambda path: checkpoints.load(path, like={})):
        with pytest.raises(ArgumentError):
            read(np.int64(5))


def test_changed_metadata_are_noticed(tmp_path):
    path = tmp_path / "state.safetensors"
    checkpoints.save(path, {"x": np.arange(3)}, metadata={"epoch": "1000"})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1000", b"0000"))
    with pytest.raises(CheckpointError, match="metadata with another checksum"):
        checkpoints.read(path)
