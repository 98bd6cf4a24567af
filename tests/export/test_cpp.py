"""C++ programs with exported functions: compiled, run, and compared with Python."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import test_docs
from safetensors.numpy import load_file, save_file
from support.cpp import CHECKED, compiled, printed

import tvmfun
from tvmfun import checkpoints, errors, random
from tvmfun.export import CMAKE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")

# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_program_of_the_page(tmp_path):
    page = ROOT / "docs" / "export.md"
    namespace = {"__name__": "page"}
    for _, source in list(test_docs.blocks(page))[:2]:
        exec(source, namespace)
    (program,) = test_docs.blocks(page, "cpp")
    folder = namespace["folder"]
    losses = printed(compiled(program[1], tmp_path), folder).split()
    state, step = namespace["state"], namespace["step"]
    like = tvmfun.tree.map(np.array, state)
    labels = (np.arange(32) % 3).astype("int32")
    expected = []
    for _ in range(20):
        state, loss = step(state, np.eye(4, dtype="float32")[labels], labels)
        expected.append(float(loss))
    assert list(map(float.fromhex, losses)) == expected
    saved = checkpoints.load(folder / "end.safetensors", like=like)
    pairs = zip(tvmfun.tree.leaves(saved), tvmfun.tree.leaves(state), strict=True)
    assert all(np.array_equal(left, right) for left, right in pairs)


# -- safetensors -------------------------------------------------------------------------------------------------------

COPY = """
#include <cstdio>
#include "tvmfun/safetensors.hpp"

// Reads the first file and writes the second one; prints the status of every other file, which must not be read.
int main(int count, char** words) {
  tvmfun::Call call{tvmfun::Step(words[1])};
  for (int i = 4; i < count; i++) {
    try {
      tvmfun::load_safetensors(words[i], call.arguments("tree"));
      std::printf("0\\n");
    } catch (const tvmfun::Error& error) {
      std::printf("%d\\n", error.status());
    }
  }
  tvmfun::load_safetensors(words[2], call.arguments("tree"));
  call.run();
  call.feed("", "tree");
  tvmfun::save_safetensors(words[3], call.arguments("tree"));
}
"""


def tree_of_arrays():
    arrays = {str(dtype): np.arange(5).astype(dtype) for dtype in tvmfun.dtypes.ALL if str(dtype) != "bfloat16"}
    return {**arrays, 'quote" and \\ and é\n\t😀': np.zeros((2, 0, 3), "float32"), "scalar": np.float32(3)}


@pytest.mark.slow
def test_safetensors_of_other_programs(tmp_path):
    tree = tree_of_arrays()
    tvmfun.jit(lambda tree: tree).lower(tree).compile().export(tmp_path / "f.so")
    names = [tvmfun.tree.keystr(path) for path, _ in tvmfun.tree.flatten_with_path(tree)[0]]
    leaves = dict(zip(names, map(np.asarray, tvmfun.tree.leaves(tree)), strict=True))
    save_file(leaves, tmp_path / "in.safetensors", metadata={"a": '{"nested": [1]}'})
    content = (tmp_path / "in.safetensors").read_bytes()
    damaged = [tmp_path / f"damaged_{i}" for i in range(600)]
    rng = np.random.default_rng(0)
    (length,) = struct.unpack("<Q", content[:8])
    for i, path in enumerate(damaged):
        changed = bytearray(content[: rng.integers(len(content))] if i % 3 == 0 else content)
        if i % 3:
            changed[rng.integers(8 + length)] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
    header = json.loads(content[8 : 8 + length])
    entries = {
        "huge": {"shape": [2**62, 4], "data_offsets": [0, 2**63 - 10]},
        "backwards": {"data_offsets": [40, 20]},
        "beyond": {"data_offsets": [2**40, 2**40 + 20]},
        "float": {"shape": [5.0]},
        "negative": {"shape": [-5]},
    }
    for name, entry in entries.items():
        text = json.dumps({**header, "['int32']": {**header["['int32']"], **entry}}).encode()
        damaged.append(tmp_path / name)
        damaged[-1].write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    deep = b'{"__metadata__":' + b"[" * 100_000
    damaged.append(tmp_path / "deep")
    damaged[-1].write_bytes(struct.pack("<Q", len(deep)) + deep)
    program = compiled(COPY, tmp_path, *CHECKED)
    out = tmp_path / "out.safetensors"
    statuses = printed(program, tmp_path / "f.so", tmp_path / "in.safetensors", out, *damaged).split()
    # A changed letter of the metadata does no harm.
    assert len(statuses) == len(damaged) and statuses.count("0") < 60 and "0" not in statuses[600:]
    found = load_file(out)
    assert {name: array.dtype for name, array in found.items()} == {name: a.dtype for name, a in leaves.items()}
    assert all(np.array_equal(found[name], array) for name, array in leaves.items())


# -- steps -------------------------------------------------------------------------------------------------------------

STATUSES = """
#include <cstdio>
#include "tvmfun/step.hpp"

int main(int count, char** words) {
  for (int i = 1; i < count; i++) {
    try {
      tvmfun::Step step(words[i]);
      std::puts("0");
    } catch (const tvmfun::Error& error) {
      std::printf("%d\\n", error.status());
    }
  }
}
"""


@pytest.mark.slow
def test_damaged_libraries(tmp_path):
    tvmfun.jit(lambda x: x + 1).lower(np.ones(32, "float32")).compile().export(tmp_path / "f.so")
    content, rng = (tmp_path / "f.so").read_bytes(), np.random.default_rng(1)
    damaged = [tmp_path / f"{i}.so" for i in range(2000)]
    for i, path in enumerate(damaged):
        changed = bytearray(content[: rng.integers(len(content))] if i % 2 else content)
        if not i % 2:
            changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
    program = compiled(STATUSES, tmp_path, "-O1", *CHECKED)
    statuses = printed(program, *damaged, tmp_path / "f.so").split()
    assert statuses == ["9"] * len(damaged) + ["0"]


REPLACED = """
#include <cstdio>
#include "tvmfun/step.hpp"

double second(tvmfun::Step step) {
  tvmfun::Call call{step};
  auto x = call.argument("x").as<float>();
  x[1] = 1;
  call.run();
  return call.result("[0]").as<float>()[1];
}

// Copies the second and third library to the path of the first one, in turn.
int main(int, char** words) {
  std::string path = words[1];
  tvmfun::Step first(path);
  std::printf("%g\\n", second(first));
  for (int i = 2; i < 4; i++) {
    if (std::rename(words[i], words[1]) != 0) {
      return 1;
    }
    tvmfun::Step next(path);
    std::printf("%g %g\\n", second(next), second(first));
  }
  for (const std::string& wrong : {std::string("/"), path + "/", std::string("/dev/null")}) {
    try {
      tvmfun::Step step(wrong);
    } catch (const tvmfun::Error& error) {
      std::printf("%d\\n", error.status());
    }
  }
  try {
    tvmfun::Step step(static_cast<const tvmfun_api*>(nullptr));
  } catch (const tvmfun::Error& error) {
    std::printf("%d\\n", error.status());
  }
}
"""


@pytest.mark.slow
def test_another_file_of_the_same_path_is_another_function(tmp_path):
    paths = [tmp_path / f"{factor}.so" for factor in (2, 3, 5)]
    for factor, path in zip((2, 3, 5), paths, strict=True):
        compiled_step = tvmfun.jit(lambda x, factor=factor: (x * factor,)).lower(np.ones(32, "float32")).compile()
        compiled_step.export(path)
    lines = printed(compiled(REPLACED, tmp_path, *CHECKED), *paths).split("\n")
    assert lines[:7] == ["2", "3 2", "5 2", "9", "9", "9", "1"]


SAVES = """
#include <cstdio>
#include "tvmfun/safetensors.hpp"

// Saves many times, or loads the file and prints the status, until it is not damaged.
int main(int, char** words) {
  tvmfun::Call call{tvmfun::Step(words[1])};
  for (int i = 0; i < 100; i++) {
    tvmfun::save_safetensors(words[2], call.arguments("tree"));
    tvmfun::load_safetensors(words[2], call.arguments("tree"));
  }
}
"""


@pytest.mark.slow
def test_several_savers_of_one_file(tmp_path):
    tree = {"x": np.arange(100_000, dtype="float32"), "y": np.float32(3)}
    compiled_step = tvmfun.jit(lambda tree: tree, donate_argnums=0).lower(tree).compile()
    compiled_step.export(tmp_path / "f.so", values={"tree": tree})
    program, state = compiled(SAVES, tmp_path), tmp_path / "state.safetensors"
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: printed(program, tmp_path / "f.so", state), range(3)))
    assert [path.name for path in tmp_path.iterdir() if "state" in path.name] == ["state.safetensors"]
    np.testing.assert_array_equal(checkpoints.load(state, like=tree)["x"], tree["x"])
    link = tmp_path / "link.safetensors"
    link.symlink_to(state)
    state.chmod(0o600)
    printed(program, tmp_path / "f.so", link)
    assert link.is_symlink() and state.stat().st_mode & 0o777 == 0o600
    content = bytearray(state.read_bytes())
    content[-5] ^= 16
    (tmp_path / "flipped.safetensors").write_bytes(content)
    with pytest.raises(errors.CheckpointError, match="checksum"):
        checkpoints.load(tmp_path / "flipped.safetensors", like=tree)
    reader = compiled(COPY, tmp_path)
    words = tmp_path / "f.so", state, tmp_path / "copy.safetensors", tmp_path / "flipped.safetensors", state
    assert printed(reader, *words).split() == ["9", "0"]


MISUSE = """
#include <cstdio>
#include <functional>
#include "tvmfun/step.hpp"

int main(int, char** words) {
  std::function<void()> uses[] = {
      [&] { tvmfun::Step step(words[2]); },
      [&] { tvmfun::Step step("absent.so"); },
      [&] { tvmfun::Step step(words[1], {-1, nullptr, nullptr}); },
      [&] { tvmfun::Call(tvmfun::Step(words[1])).argument("w"); },
      [&] { tvmfun::Call(tvmfun::Step(words[1])).argument("x").as<double>(); },
      [&] { tvmfun::Call(tvmfun::Step(words[1])).feed("[0]", "n"); },
      [&] { tvmfun::Call(tvmfun::Step(words[1])).feed("[7]", "x"); },
  };
  for (auto& use : uses) {
    try {
      use();
      std::puts("none");
    } catch (const tvmfun::Error& error) {
      std::printf("%d %s\\n", error.status(), error.what());
    }
  }
  tvmfun::Call call{tvmfun::Step(words[1])};
  auto x = call.argument("x").as<float>();
  std::printf("%g %g\\n", x[1], call.argument("y").as<float>()[1]);
  call.argument("n").as<std::int32_t>()[0] = 2;
  for (int i = 0; i < 3; i++) {
    call.run();
    call.feed("[0]", "y");
    call.feed("[1]", "x");
    call.feed("[2]", "z");
  }
  auto first = [&](const char* name) { return call.argument(name).as<float>()[1]; };
  std::printf("%g %g %g\\n", first("x"), first("y"), first("z"));
  call.run();
  call.feed("[0]", "y");
  try {
    call.run();
  } catch (const tvmfun::Error& error) {
    std::printf("%d\\n", error.status());
  }
}
"""


@pytest.mark.slow
def test_misuse_and_feeding(tmp_path):
    x = np.arange(32, dtype="float32")
    # The first result takes the memory of x and is fed to y, and so on; z has no partner.
    function = tvmfun.jit(lambda x, y, z, n: (x + 1, y * n, z * 2), donate_argnums=(0, 1))
    values = {"x": x, "y": x + 10, "z": x + 1}
    function.lower(x, x, x, np.int32(2)).compile().export(tmp_path / "f.so", values=values)
    (tmp_path / "short.so").write_bytes((tmp_path / "f.so").read_bytes()[:-1])
    program = compiled(MISUSE, tmp_path, *CHECKED)
    *lines, before, after, half = printed(program, tmp_path / "f.so", tmp_path / "short.so").splitlines()
    assert [int(line.split()[0]) for line in lines] == [9, 9, 1, 1, 3, 2, 1]
    assert (before, half) == ("1 11", "5")
    x, y, z = 1.0, 11.0, 2.0
    for _ in range(3):
        x, y, z = y * 2, x + 1, z * 2
    assert after == f"{x:g} {y:g} {z:g}"


# -- the example -------------------------------------------------------------------------------------------------------


def write_idx(folder: Path, part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, count, dtype=np.uint8)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + images.tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
    return images, labels


def shuffled(size: int, seed: int) -> list[int]:
    """As in train.cpp: NumPy's legacy seeding is that of std::mt19937."""
    order = list(range(size))
    generator = np.random.RandomState(seed)._bit_generator
    for i in range(size - 1, 0, -1):
        j = int(generator.random_raw()) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cmake"), reason="there is no CMake")
def test_the_example_trains_mnist(tmp_path):
    import mnist
    import mnist_data

    batch, epochs, count = 16, 2, 70
    example = ROOT / "examples" / "export_mnist"
    sys.path.insert(0, str(example))
    try:
        import export_steps
    finally:
        sys.path.remove(str(example))
    folder = tmp_path / "exported"
    export_steps.main([str(folder), "--batch-size", str(batch), "--steps-per-epoch", "4"])
    write_idx(tmp_path, "train", count)
    write_idx(tmp_path, "t10k", 31)
    printed("cmake", "-S", example, "-B", tmp_path / "build", f"-Dtvmfun_DIR={CMAKE}")
    printed("cmake", "--build", tmp_path / "build")

    def train(*options):
        return printed(tmp_path / "build" / "train", folder, tmp_path, *options)

    lines = train("--epochs", epochs, "--save", tmp_path / "end", "--losses", tmp_path / "losses").splitlines()
    train("--epochs", 1, "--save", tmp_path / "half")
    assert train("--epochs", epochs, "--resume", tmp_path / "half", "--save", tmp_path / "half") == lines[1] + "\n"
    assert (tmp_path / "half").read_bytes() == (tmp_path / "end").read_bytes()

    data = mnist_data.load(tmp_path)
    optimizer = mnist.make_optimizer(lr=1.0, gamma=0.7, steps_per_epoch=4)
    state = tvmfun.jit(partial(mnist.start, optimizer))(random.key(1))
    like = tvmfun.tree.map(np.array, state)
    step = tvmfun.jit(partial(mnist.train_step, optimizer), donate_argnums=0)
    losses = []
    for epoch in range(epochs):
        order = np.array(shuffled(count, 1 + epoch))
        for chosen in order[: count // batch * batch].reshape(-1, batch):
            state, loss = step(state, data.train_images[chosen], data.train_labels[chosen])
            losses.append(np.asarray(loss))
    assert np.stack(losses).tobytes() == (tmp_path / "losses").read_bytes()
    saved = checkpoints.load(tmp_path / "end", like=like)
    pairs = zip(tvmfun.tree.leaves(saved), tvmfun.tree.leaves(state), strict=True)
    assert all(np.asarray(left).tobytes() == np.asarray(right).tobytes() for left, right in pairs)
    assert lines[-1].endswith(f"test accuracy {mnist.accuracy(state.model, data):.2%}")
