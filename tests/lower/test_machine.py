"""The machine as the system reports it, and targets that are another one."""

import subprocess
import sys

import numpy as np
import pytest
from tvm.target import Target

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import errors
from tvmfun.lower import machine
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Cache, Machine

# Flags of a Xeon whose model a hypervisor hides, so that LLVM calls it rocketlake.
GRANITE_RAPIDS = frozenset(
    [
        "pni",
        "ssse3",
        "sse4_1",
        "sse4_2",
        "popcnt",
        "avx",
        "f16c",
        "fma",
        "bmi1",
        "bmi2",
        "abm",
        "movbe",
        "avx2",
        "avx_vnni",
        "avx512f",
        "avx512cd",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512ifma",
        "avx512vbmi",
        "avx512_vbmi2",
        "avx512_vnni",
        "avx512_bitalg",
        "avx512_vpopcntdq",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "gfni",
        "vaes",
        "vpclmulqdq",
    ]
)
is_x86 = pytest.mark.skipif(not targets.is_x86(targets.host()), reason="names instructions of x86 processors")


def features(mcpu):
    return machine.llvm_features(Target({"kind": "llvm", "mcpu": mcpu}))


@is_x86
def test_instructions_come_from_the_system_and_not_from_the_model(monkeypatch):
    added = machine.corrections(features("rocketlake"), GRANITE_RAPIDS)
    assert added == ["+amx-tile", "+amx-bf16", "+amx-int8", "+avx512bf16", "+avxvnni"]
    assert "avx512bf16" not in features("rocketlake")
    monkeypatch.setattr(machine, "system_processor", lambda: "rocketlake")
    monkeypatch.setattr(machine, "system_flags", lambda: GRANITE_RAPIDS)
    target = targets.host.__wrapped__()
    assert list(map(str, target.attrs["mattr"])) == added
    assert Machine.of(target).features >= {"amx-bf16", "amx-int8", "avx512bf16", "avx512vnni", "avx512f"}


@is_x86
def test_instructions_that_a_hypervisor_hides_are_not_used(monkeypatch):
    hidden = GRANITE_RAPIDS - {name for name in GRANITE_RAPIDS if name.startswith(("avx512", "amx"))}
    mattr = machine.corrections(features("sapphirerapids"), hidden)
    assert {"-avx512f", "-avx512bf16", "-avx512fp16", "-amx-tile"} <= {*mattr} and "-avx2" not in mattr
    target = Target({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": mattr})
    assert (Machine.of(target).vector_bytes, Machine.of(target).registers) == (32, 16)


def test_without_a_list_of_the_system_the_model_decides():
    assert machine.corrections({"avx2", "fma"}, frozenset()) == machine.lacking({"avx2"}, frozenset()) == []


def test_this_machine_has_what_its_target_says():
    assert machine.lacking({*Machine.of(targets.host()).features}, machine.system_flags()) == []
    features = [str(feature) for feature in targets.host().attrs.get("mattr", ())]
    options = {"kind": "llvm", "mcpu": targets.host().attrs["mcpu"], "num-cores": 1, "mattr": features}
    targets.check_runs_here("here", targets.resolve(options))


@is_x86
def test_code_for_another_processor_is_refused_before_it_runs(monkeypatch):
    flags = machine.system_flags() - {"avx512_fp16", "amx_tile"}
    monkeypatch.setattr(machine, "system_flags", lambda: flags)
    double = tvmfun.jit(lambda x: x + x, target={"kind": "llvm", "mcpu": "sapphirerapids"})
    with pytest.raises(errors.TargetError, match=r"instructions that this processor lacks, got .*avx512fp16.*Try"):
        double(np.ones(3, "float16"))
    assert "sapphirerapids" in double.lower(np.ones(3, "float16")).compile().executable.module.inspect_source("ll")


@is_x86
def test_code_for_amd_is_refused_by_a_processor_of_intel(monkeypatch):
    """Products of bytes are packed by ``insertq``, which no processor of Intel has."""
    monkeypatch.setattr(machine, "system_flags", lambda: GRANITE_RAPIDS)
    assert machine.lacking(features("znver5"), GRANITE_RAPIDS) == ["sse4a"]
    assert machine.corrections(features("znver5"), GRANITE_RAPIDS)[0] == "-sse4a"
    double = tvmfun.jit(lambda x: x + x, target={"kind": "llvm", "mcpu": "znver5"})
    with pytest.raises(errors.TargetError, match="instructions that this processor lacks, got sse4a"):
        double(np.ones(3, "float32"))


def test_code_for_another_architecture_is_refused_before_it_runs():
    other = "aarch64" if targets.is_x86(targets.host()) else "x86_64"
    with pytest.raises(errors.TargetError, match=f"compiled for another architecture, got {other}"):
        tvmfun.jit(lambda x: x + x, target={"kind": "llvm", "mtriple": f"{other}-linux-gnu"})(np.ones(3, "float32"))


@pytest.mark.skipif("avx512_bf16" not in machine.system_flags(), reason="multiplies by avx512_bf16")
def test_a_processor_of_a_hidden_model_multiplies_in_bfloat16():
    x = np.random.default_rng(0).normal(size=(2, 64, 64)).astype("float32")
    left, right = tnp.asarray(x).astype("bfloat16")
    hidden = tvmfun.jit(tnp.matmul, target={"kind": "llvm", "mcpu": "rocketlake", "mattr": ["+avx512bf16"]})
    text = hidden.lower(left, right).compile().executable.module.inspect_source("s")
    assert "vdpbf16ps" in text
    plain = tnp.matmul(left.astype("float32"), right.astype("float32")).astype("bfloat16")
    np.testing.assert_allclose(*(np.asarray(y.astype("float32")) for y in (hidden(left, right), plain)), rtol=1e-2)


# -- caches ------------------------------------------------------------------------------------------------------------


def write(folder, *caches):
    for i, values in enumerate(caches):
        (folder / f"index{i}").mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=False):
            (folder / f"index{i}" / name).write_text(f"{value}\n")


@pytest.fixture
def system(monkeypatch, tmp_path):
    """A folder of the kernel's files, for the first CPU of this process."""
    monkeypatch.setattr(machine, "_SYSTEM", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    return tmp_path / "cpu3" / "cache"


def test_caches_are_read_from_the_kernel(system):
    write(system, (1, "Data", "48K", "3"), (1, "Instruction", "64K", "3"), (2, "Unified", "2M", "3,7"))
    (system / "index3").mkdir()
    write(system / "..", (3, "Unified", "1G", "0-15"))
    (system / ".." / "index0").rename(system / "index4")
    assert machine.system_caches.__wrapped__() == (Cache(1, 48 << 10), Cache(2, 2 << 20, 2), Cache(3, 1 << 30, 16))


def test_caches_are_read_from_libc_where_the_kernel_has_none(system, monkeypatch):
    sizes = dict(zip(machine._SYSCONF, (32 << 10, 1 << 20, 0), strict=True))
    monkeypatch.setattr(machine.os, "sysconf", sizes.__getitem__)
    assert machine.system_caches.__wrapped__() == (Cache(1, 32 << 10), Cache(2, 1 << 20))

    def unknown(number):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(machine.os, "sysconf", unknown)
    assert machine.system_caches.__wrapped__() == ()


def test_the_share_of_a_cache():
    caches = (Cache(1, 32 << 10), Cache(2, 1 << 20, 2))
    sizes = [Machine(16, 16, 4, caches=caches).cache_bytes(level) for level in (1, 2, 3)]
    assert sizes == [32 << 10, 512 << 10, 512 << 10]


@pytest.mark.parametrize(
    ("mcpu", "vectors", "sizes"),
    [
        ("znver3", (16, 32), (32, 512)),
        ("znver4", (32, 64), (32, 1024)),
        ("znver5", (32, 64), (48, 1024)),
        ("skylake-avx512", (32, 64), (32, 1024)),
        ("icelake-server", (32, 64), (48, 1280)),
        ("sapphirerapids", (32, 64), (48, 2048)),
        ("graniterapids", (32, 64), (48, 2048)),
        ("x86-64-v2", (16, 16), (32, 512)),
    ],
)
@is_x86
def test_processors_by_name(mcpu, vectors, sizes):
    found = machine._machine.__wrapped__(str(Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})), False, None)
    assert (found.registers, found.vector_bytes) == vectors
    assert tuple(cache.nbytes >> 10 for cache in found.caches) == sizes


def test_a_bug_report():
    text = subprocess.run([sys.executable, "-m", "tvmfun"], capture_output=True, text=True, check=True).stdout
    for part in ("apache-tvm ", "LLVM target", "vectors ", "caches    L1 "):
        assert part in text
