"""Files that are truncated, altered or forged, and libraries for other processors."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from support.exported import aligned

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, random
from tvmfun.errors import ExportError
from tvmfun.export import INCLUDE, load, loader, read_manifest
from tvmfun.manifest import container

X = np.arange(32, dtype="float32")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export") / "function.so"
    compiled = (
        tvmfun.jit(lambda tree, y: ({"sum": tree["x"] + y}, y * 2), donate_argnums=0).lower({"x": X}, X).compile()
    )
    compiled.export(path, values={"tree": {"x": X}})
    return path


def damaged(content: bytes, i: int, rng: np.random.Generator) -> bytes:
    """A file that is shorter, or has another bit or block."""
    if i % 2:
        return content[: rng.integers(len(content))]
    changed = bytearray(content)
    if i % 8:
        changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
    else:
        first = rng.integers(len(content))
        changed[first : first + 64] = rng.bytes(64)
    return bytes(changed)


def finished(content: bytes, extent: bytes | None = None) -> bytes:
    """The bytes of a file with the checksum of other contents."""
    end = len(content) - loader._END.size
    body = content[: end - loader.EXTENT.size] + extent if extent else content[:end]
    return body + sha256(body).digest() + loader.MAGIC


def with_manifest(content: bytes, manifest: bytes) -> bytes:
    """A file with another manifest, and the right checksum."""
    body = content[: -loader._END.size - loader.EXTENT.size] + manifest
    extent = loader.EXTENT.pack(len(body) - len(manifest), len(manifest))
    return finished(body + extent + bytes(loader._END.size))


def check_damaged_files(library: Path, folder: Path, count: int) -> None:
    content, rng = library.read_bytes(), np.random.default_rng(0)
    path = folder / "damaged.so"
    for i in range(count):
        path.write_bytes(damaged(content, i, rng))
        with pytest.raises(ExportError) as raised:
            load(path)
        assert raised.value.status == "DAMAGED_FILE"


def test_damaged_files(library, tmp_path):
    check_damaged_files(library, tmp_path, 50)
    with pytest.raises(OSError):
        load(tmp_path / "absent.so")


@pytest.mark.slow
def test_two_thousand_damaged_files(library, tmp_path):
    check_damaged_files(library, tmp_path, 2000)


SIZE = {"name": "b", "min": 1, "max": 9, "input": 0, "axis": 0, "factor": 1, "term": 0}
FORGED = {
    "no object": [],
    "no version": {"abi_version": None},
    "no sizes": {"sizes": None},
    "a size of no axis": {"sizes": [{**SIZE, "axis": 1}]},
    "a size of no argument": {"sizes": [{**SIZE, "input": 7}]},
    "a size that is none of the library's": {"sizes": [SIZE]},
    "no leaves": {"inputs": 3},
    "too few leaves": {"inputs": []},
    "a wrong dtype": {"outputs": [{"name": "", "shape": [1], "dtype": "object", "donated": 0, "partner": -1}] * 2},
    "a wrong shape": {"outputs": [{"name": "", "shape": [-1], "dtype": "int8", "donated": 0, "partner": -1}] * 2},
    "a wrong partner": {"outputs": [{"name": "", "shape": [1], "dtype": "int8", "donated": 0, "partner": 7}] * 2},
    "no tree": {"results": {"set": []}},
    "another tree": {"results": {"tuple": ["*"]}},
    "code as a name": {"results": {"named": ["f(print(1))", [["a", "*"], ["b", "*"]]]}},
    "code as a field": {"results": {"fields": ["f", [["__class__ = 1", "*"], ["b", "*"]]]}},
    "other arguments": {"arguments": {"tuple": ["*", "*"]}},
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_manifests(library, tmp_path, case):
    content, changes = library.read_bytes(), FORGED[case]
    manifest = {**read_manifest(library), **changes} if isinstance(changes, dict) else changes
    (tmp_path / "forged.so").write_bytes(with_manifest(content, json.dumps(manifest).encode()))
    with pytest.raises(ExportError) as raised:
        load(tmp_path / "forged.so")
    assert raised.value.status in ("DAMAGED_FILE", "WRONG_VERSION")


def test_other_versions_and_extents(library, tmp_path):
    content, path = library.read_bytes(), tmp_path / "forged.so"
    path.write_bytes(with_manifest(content, b'{"abi_version":3}'))
    with pytest.raises(ExportError, match="another version of the ABI than 2, got 3"):
        load(path)
    deep = b'{"abi_version":2,"inputs":' + b"[" * 100_000
    for forged in (with_manifest(content, deep), finished(content, loader.EXTENT.pack(2**63, 2**63))):
        path.write_bytes(forged)
        with pytest.raises(ExportError) as raised:
            load(path)
        assert raised.value.status == "DAMAGED_FILE"


def test_a_manifest_of_another_function(library, tmp_path):
    text = json.dumps(read_manifest(library)).replace("[32]", "[64]").encode()
    path = tmp_path / "forged.so"
    path.write_bytes(with_manifest(library.read_bytes(), text))
    with pytest.raises(ExportError, match="has a manifest of another function") as raised:
        load(path)
    assert raised.value.status == "DAMAGED_FILE"


def test_a_library_without_the_function(library, tmp_path):
    content = library.read_bytes().replace(b"tvmfun_get_api", b"tvmfun_got_api")
    (tmp_path / "forged.so").write_bytes(finished(content))
    with pytest.raises(ExportError, match="cannot be loaded"):
        load(tmp_path / "forged.so")


# -- other processors --------------------------------------------------------------------------------------------------


def test_another_architecture(library, tmp_path):
    content = bytearray(library.read_bytes())
    content[18:20] = (8).to_bytes(2, "little")
    (tmp_path / "mips.so").write_bytes(finished(bytes(content)))
    with pytest.raises(ExportError, match="another architecture than .*, got machine 8") as raised:
        load(tmp_path / "mips.so")
    assert raised.value.status == "WRONG_ARCHITECTURE"


needs_x86 = pytest.mark.skipif(loader.platform.machine() != "x86_64", reason="features of x86")
# Of AMD's Piledriver; no processor that is sold has it, and it needs no other feature.
TBM = {"kind": "llvm", "mcpu": "x86-64-v2", "mattr": ["+tbm"]}


@needs_x86
def test_a_missing_feature(tmp_path):
    compiled = tvmfun.jit(lambda x: x + 1).lower(X).compile()
    compiled.export(tmp_path / "f.so", targets=[TBM])
    with pytest.raises(ExportError, match=r"the code for x86-64-v2 \(x86_64\) needs tbm") as raised:
        load(tmp_path / "f.so")
    assert raised.value.status == "MISSING_FEATURE"
    assert "tbm" in read_manifest(tmp_path / "f.so")["variants"][0]["features"]
    compiled.export(tmp_path / "g.so", targets=[TBM, "x86-64-v2"])
    step = load(tmp_path / "g.so")
    assert step(X).tolist() == (X + 1).tolist()
    assert step.plan["target"] == "x86-64-v2 (x86_64)"


@needs_x86
def test_tiles_need_a_processor_and_a_system_that_have_them(tmp_path):
    compiled = tvmfun.jit(lambda x: x + 1).lower(X).compile()
    compiled.export(tmp_path / "f.so", targets=[{"kind": "llvm", "mcpu": "x86-64-v2", "mattr": ["+amx-bf16"]}])
    if "amx-tile" in supported():
        assert load(tmp_path / "f.so")(X).tolist() == (X + 1).tolist()
    else:
        with pytest.raises(ExportError, match=r"needs amx-bf16, which this processor lacks"):
            load(tmp_path / "f.so")


@needs_x86
@pytest.mark.slow
@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"])
def test_generic_processors(tmp_path, name):
    """The code of one target of several, which may write results elsewhere than the first."""
    key, x = np.array([0, 1], "uint32"), np.linspace(-1, 1, 48 * 48, dtype="float32").reshape(48, 48)
    compiled = tvmfun.jit(many_kernels, donate_argnums=1).lower(key, x).compile()
    compiled.export(tmp_path / "f.so", targets=[TBM, name])
    if not set(read_manifest(tmp_path / "f.so")["variants"][1]["features"]) <= supported():
        pytest.skip("this processor cannot run it")
    step = load(tmp_path / "f.so")
    assert step.plan["target"] == f"{name} (x86_64)"
    for left, right in zip(step(key, x), compiled(key, tnp.asarray(x)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


def supported() -> set[str]:
    from tvmfun.lower import machine
    from tvmfun.lower import target as targets

    return set(machine.llvm_features(targets.host()))


def many_kernels(key, x):
    y = lax.fori_loop(0, 3, lambda i, c: tnp.sin(c @ x) + random.normal(key, x.shape), x)
    return tnp.exp(y * 0.1), x - 0.1 * (x @ y), tnp.sort(y, axis=0), tnp.linalg.cholesky(x @ x.T + 50 * tnp.eye(48))


# -- 64-bit Arm --------------------------------------------------------------------------------------------------------

RUN = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "tvmfun/step.h"

/* Reads the arguments from one file, and writes the results to another. */
int main(int count, char **words) {
  void *library = dlopen(words[1], RTLD_NOW);
  const tvmfun_api *api = ((const tvmfun_api *(*)(void))dlsym(library, "tvmfun_get_api"))();
  const tvmfun_signature *signature = api->signature();
  FILE *in = fopen(words[2], "rb"), *out = fopen(words[3], "wb");
  tvmfun_buffer inputs[16], outputs[16];
  tvmfun_step *step;
  for (int i = 0; i < signature->input_count; i++) {
    const tvmfun_leaf *leaf = &signature->inputs[i];
    inputs[i] = (tvmfun_buffer){aligned_alloc(64, (leaf->nbytes / 64 + 1) * 64), leaf->nbytes, leaf->dtype};
    if (fread(inputs[i].data, 1, leaf->nbytes, in) != leaf->nbytes) return 2;
  }
  for (int i = 0; i < signature->output_count; i++) {
    const tvmfun_leaf *leaf = &signature->outputs[i];
    void *data = leaf->partner < 0 ? aligned_alloc(64, (leaf->nbytes / 64 + 1) * 64) : inputs[leaf->partner].data;
    outputs[i] = (tvmfun_buffer){data, leaf->nbytes, leaf->dtype};
  }
  if (api->create(NULL, &step) ||
      api->run(step, inputs, signature->input_count, outputs, signature->output_count)) {
    puts(api->message());
    return 1;
  }
  for (int i = 0; i < signature->output_count; i++) fwrite(outputs[i].data, 1, outputs[i].nbytes, out);
  api->destroy(step);
  fclose(out);
  return count != 4;
}
"""
GCC, EMULATOR, LIBC = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which(GCC) and shutil.which(EMULATOR)), reason=f"needs {GCC} and {EMULATOR}")
def test_arm_in_an_emulator(tmp_path):
    key, x = np.array([0, 1], "uint32"), np.linspace(-1, 1, 48 * 48, dtype="float32").reshape(48, 48)
    compiled = tvmfun.jit(many_kernels, donate_argnums=1).lower(key, x).compile()
    arm = lambda mcpu: {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "num-cores": 2}
    compiled.export(tmp_path / "f.so", targets=[arm("neoverse-v2"), arm("neoverse-n1")])
    with pytest.raises(ExportError) as raised:
        load(tmp_path / "f.so")
    assert raised.value.status == "WRONG_ARCHITECTURE"
    (tmp_path / "run.c").write_text(RUN)
    subprocess.run([GCC, f"-I{INCLUDE}", tmp_path / "run.c", "-o", tmp_path / "run", "-ldl"], check=True)
    (tmp_path / "in").write_bytes(aligned(key).tobytes() + x.tobytes())
    command = [tmp_path / "run", tmp_path / "f.so", tmp_path / "in", tmp_path / "out"]
    emulated = lambda cpu: subprocess.run(
        [EMULATOR, "-cpu", cpu, "-L", LIBC, *command], capture_output=True, text=True, timeout=300
    )
    refused = emulated("cortex-a53")
    assert refused.returncode == 1 and "needs lse, which this processor lacks" in refused.stdout
    process = emulated("neoverse-n1")
    assert process.returncode == 0, process.stdout + process.stderr
    found, content = np.frombuffer((tmp_path / "out").read_bytes(), "float32"), compiled(key, tnp.asarray(x))
    expected = np.concatenate([np.asarray(array).ravel() for array in content])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_loader_reads_the_container_of_the_disk_cache(library):
    """It is one format; the loader, which imports nothing of tvmfun, has constants of its own."""
    assert (loader.MAGIC, loader.EXTENT.format) == (container.MAGIC, container.EXTENT.format)
    assert container.opened(library.read_bytes())[1] == read_manifest(library)


def test_another_file_of_the_same_path_is_another_function(tmp_path):
    """The system knows a library by its name, and would return the one it has."""
    x, path = np.arange(4, dtype="float32"), tmp_path / "f.so"
    steps = []
    for factor in (2, 3, 5):
        compiled = tvmfun.jit(lambda x, factor=factor: x * factor).lower(x).compile()
        compiled.export(path)
        steps.append(load(path))
        for step, known in zip(steps, (2, 3, 5), strict=False):
            np.testing.assert_array_equal(step(x), x * known)
    link, versions = tmp_path / "current.so", []
    for factor in (7, 11):
        tvmfun.jit(lambda x, factor=factor: x * factor).lower(x).compile().export(tmp_path / f"{factor}.so")
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / f"{factor}.so")
        versions.append(load(link))
    np.testing.assert_array_equal([step(x) for step in versions], [x * 7, x * 11])
