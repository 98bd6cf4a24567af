"""Compilers of CUDA: what they make, what is missing, and the cache of kernels."""

import re
from pathlib import Path

import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, errors
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import compilers, conditions, cubins
from tvmfun.lower.codegen.cuda.compilers import Image, Options
from tvmfun.runtime.cuda_module import Usage

SM_90A = Options("sm_90a")
needs_compiler = pytest.mark.skipif(compilers.why_none() is not None, reason="there is no compiler of CUDA")


def source(body="x[threadIdx.x] += 1.0f;", title="add", prelude=""):
    return cubins.KernelSource(
        title, prelude, f'extern "C" __global__ void {cubins.PLACEHOLDER}(float* x) {{\n  {body}\n}}\n'
    )


class Recorder:
    """A compiler whose machine code is the kernel's name."""

    def __init__(self, version="recorder 1", is_slow_to_start=False):
        self.version, self.is_slow_to_start = version, is_slow_to_start
        self.units, self.sources = [], []

    def compile(self, source, kernels, options):
        assert all(source.count(f"void {kernel}(") == 1 for kernel in kernels)
        self.units.append(list(kernels))
        self.sources.append(source)
        return [Image(kernel.encode(), Usage(8, 0, 0, 0)) for kernel in kernels]


@pytest.fixture(autouse=True)
def no_kernels():
    cubins.clear_cache()
    yield
    cubins.clear_cache()


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """No toolkit, no wheel, nothing on PATH."""
    monkeypatch.delenv("TVMFUN_CUDA_COMPILER", raising=False)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compilers, "_toolkits", lambda: iter([tmp_path]))
    monkeypatch.setattr(compilers.sys, "path", [])
    return tmp_path


@needs_compiler
def test_infinity():
    """It is in math.h, which NVRTC does not have."""
    least = "static constexpr double LEAST = -(double)INFINITY;\n"
    body = "x[threadIdx.x] = x[threadIdx.x] == -INFINITY ? (float)LEAST : INFINITY;"
    (cubin,) = cubins.compiled([source(body, prelude=least)], compilers.find_compiler(), SM_90A)
    assert cubin.image.startswith(b"\x7fELF")


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_no_compiler(nothing):
    message = (
        r"machine code for GPUs needs a compiler of CUDA, got neither NVRTC nor nvcc .*pip install \"tvmfun\[cuda\]\""
    )
    with pytest.raises(errors.TargetError, match=message):
        compilers.find_compiler()
    assert "neither NVRTC nor nvcc" in str(compilers.why_none())


def test_launches_are_known_without_a_compiler(nothing):
    program = tvmfun.trace(lambda x: tnp.exp(x))(ShapeDtype((300,), "float32"))
    module = pipeline.build_for_cuda(program, targets.resolve({"kind": "cuda", "arch": "sm_90a"}))
    (launch,) = module.launches()
    assert launch.threads >= 300 and module.cubins == ()
    with pytest.raises(errors.TargetError, match="not compiled to machine code, got neither NVRTC nor nvcc on PATH"):
        module.check_code()


@pytest.mark.parametrize(("choice", "got"), [("nvrtc", "no libnvrtc.so"), ("nvcc", "no nvcc"), ("gcc", "'gcc'")])
def test_the_compiler_that_was_asked_for_is_missing(nothing, monkeypatch, choice, got):
    monkeypatch.setenv("TVMFUN_CUDA_COMPILER", choice)
    with pytest.raises(errors.TargetError, match=f"got {got}"):
        compilers.find_compiler()


def test_a_library_that_cannot_be_loaded(nothing):
    (nothing / "lib64").mkdir()
    (nothing / "lib64" / "libnvrtc.so.13").write_bytes(b"no library")
    with pytest.raises(errors.TargetError, match=r"NVRTC cannot be loaded, got .*libnvrtc.so.13"):
        compilers.find_compiler()


def test_an_nvcc_that_cannot_be_run(nothing):
    (nothing / "bin").mkdir()
    (nothing / "bin" / "nvcc").write_text("#!/no/such/shell\n")
    (nothing / "bin" / "nvcc").chmod(0o755)
    with pytest.raises(errors.TargetError, match=r"nvcc cannot be run, got .*No such file"):
        compilers.find_compiler().version


@pytest.mark.parametrize(
    ("header", "wheel"),
    [
        ("cuda_fp16.h", "nvidia-cuda-runtime"),
        ("crt/mma.h", "nvidia-cuda-crt"),
        ("cuda/std/cstdint", "nvidia-cuda-cccl"),
        ("nv/target", "nvidia-cuda-cccl"),
    ],
)
def test_missing_headers_name_their_wheel(nothing, header, wheel):
    for name in ("cuda_fp16.h", "crt/mma.h", "cuda/std/cstdint", "nv/target"):
        path = nothing / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert compilers.include_directories() == [nothing / "include"]
    (nothing / "include" / header).unlink()
    with pytest.raises(errors.TargetError, match=f"header {header} of CUDA.*got no package {wheel}"):
        compilers.include_directories()


def test_wheels_are_found_before_toolkits(nothing, monkeypatch):
    wheel = nothing / "site" / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libnvrtc.so.13").touch()
    (nothing / "lib64").mkdir()
    (nothing / "lib64" / "libnvrtc.so.12").touch()
    monkeypatch.setattr(compilers.sys, "path", [str(nothing / "site")])
    assert [path.name for path in compilers._libraries()] == ["libnvrtc.so.13", "libnvrtc.so.12"]


def test_a_target_needs_an_architecture():
    target = targets.resolve({"kind": "cuda", "arch": "sm_90a", "libs": ["fast-math"]})
    assert compilers.options_of(target) == Options("sm_90a", fast_math=True)
    assert compilers.options_of(targets.resolve({"kind": "cuda", "arch": "sm_80"})) == Options("sm_80")


# -- machine code ------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_kernels_become_machine_code(arch):
    kernels = [source(), source("x[0] = expf(x[1]);", "exp"), source()]
    images = cubins.compiled(kernels, compilers.find_compiler(), Options(arch))
    assert [image.kernels[0].rsplit("_", 1)[0] for image in images] == ["add", "exp"]
    for image in images:
        assert image.image[:4] == b"\x7fELF" and image.kernels[0].encode() in image.image
        assert 0 < image.usage[0].registers < 64 and image.usage[0].spills == 0


@needs_compiler
@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("sm_50", "the architecture is too old for nv.*got sm_50"),
        ("sm_129", "the architecture is unknown to nv.*got sm_129"),
        ("sm_80a", "the architecture is unknown to nv.*got sm_80a"),
    ],
)
def test_an_architecture_that_the_compiler_does_not_know(arch, message):
    with pytest.raises(errors.TargetError, match=message):
        cubins.compiled([source()], compilers.find_compiler(), Options(arch))


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_the_kernel_that_sets_conditions_leaves_a_function_to_the_driver(arch):
    (cubin,) = cubins.compiled([conditions.CONDITION], compilers.find_compiler(), Options(arch))
    assert cubin.kernels == (conditions.CONDITION.name,) and not cubin.usage[0].spills
    assert b"\0cudaGraphSetConditional\0" in cubin.image


@needs_compiler
def test_a_kernel_that_is_refused():
    with pytest.raises(errors.TargetError, match=r'refuses a kernel, got .*"missing" is undefined.*reporting this'):
        cubins.compiled([source("missing();")], compilers.find_compiler(), SM_90A)


@needs_compiler
@pytest.mark.slow
def test_fast_math_only_where_it_is_asked_for():
    # The approximate division takes fewer instructions; the sizes of both are those of their code.
    kernel = source("x[0] = x[1] / x[2] + sinf(x[3]) + sqrtf(x[4]);")
    (exact,) = cubins.compiled([kernel], compilers.find_compiler(), SM_90A)
    (fast,) = cubins.compiled([kernel], compilers.find_compiler(), Options("sm_90a", fast_math=True))
    assert len(fast.image) < len(exact.image)


def test_each_kernel_gets_what_kernels_share():
    table = ".version 9.0\n.target sm_90a\n.const .align 4 .b8 table[24];\n"
    helper = ".func helper(\n)\n{\n\tret;\n}\n"
    # The conversions of float16 are inline assembly in braces, at the beginning of lines.
    entry = ".visible .entry {}(\n\t.param .u64 p\n)\n{{\n{{ cvt.f32.f16 %f1, %rs1;\n}}\n\tret;\n}}\n"
    parts = compilers.entries(table + entry.format("f") + helper + entry.format("g"))
    assert list(parts) == ["f", "g"]
    for name, text in parts.items():
        assert table in text and helper in text and text.count("ret;") == 2
        assert re.findall(r"\.entry (\w+)", text) == [name]


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_equal_kernels_are_compiled_once():
    compiler = Recorder()
    kernels = [source(), source("x[0] = 2;"), source()]
    images = cubins.compiled(kernels, compiler, SM_90A)
    assert [image.kernels[0] for image in images] == [kernels[0].name, kernels[1].name]
    assert cubins.compiled(kernels[1::-1], compiler, SM_90A) == images[::-1]
    assert len(compiler.units) == 2


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"version": "recorder 2"}, SM_90A),
        ({}, Options("sm_90")),
        ({}, Options("sm_90a", fast_math=True)),
    ],
)
def test_other_compilers_and_options_make_other_code(change, options):
    first, second = Recorder(), Recorder(**change)
    cubins.compiled([source()], first, SM_90A)
    cubins.compiled([source()], second, options)
    assert len(first.units) == len(second.units) == 1


def test_the_disk_keeps_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path / "cache"))
    (image,) = cubins.compiled([source()], Recorder(), SM_90A)
    cubins.clear_cache()
    again = Recorder()
    assert cubins.compiled([source()], again, SM_90A) == [image]
    assert again.units == []
    (file,) = Path(tmp_path, "cache").glob("*.cubin")
    cubins.clear_cache()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert cubins.compiled([source()], again, SM_90A) == [image]  # damaged, so it is compiled again
    assert len(again.units) == 1


def test_kernels_share_sources_if_what_is_before_them_agrees(monkeypatch):
    monkeypatch.setattr(cubins, "cpu_count", lambda: 1)
    define = lambda name, value: f"#ifndef tvmfun_{name}\n#define tvmfun_{name}\nint {name} = {value};\n#endif\n"
    preludes = {
        "some lines": "// a\n// c\n",
        "all lines": f"// a\n// b\n// c\n{define('one', 1)}",
        "two definitions": f"// a\n{define('two', 2)}\n{define('one', 1)}{define('two', 2)}",
        "another meaning": f"// b\n{define('one', 3)}",
        "another order": "// c\n// a\n",
    }
    kernels = [source(title=title.replace(" ", "_"), prelude=prelude) for title, prelude in preludes.items()]
    compiler = Recorder(is_slow_to_start=True)
    cubins.compiled(kernels, compiler, SM_90A)
    together = [{name.rpartition("_")[0] for name in unit} for unit in compiler.units]
    assert sorted(map(sorted, together)) == [
        ["all_lines", "some_lines", "two_definitions"],
        ["another_meaning"],
        ["another_order"],
    ]
    (text,) = (text for text in compiler.sources if "all_lines" in text)
    assert text.startswith("// a\n// b\n// c\n")
    assert [text.count(f"int {name} =") for name in ("one", "two")] == [1, 1]


def test_kernels_share_sources_if_the_compiler_is_slow_to_start(monkeypatch):
    monkeypatch.setattr(cubins, "cpu_count", lambda: 2)
    kernels = [source(f"x[0] = {i};", prelude="// a\n") for i in range(9)] + [source(prelude="// b\n")]
    slow, quick = Recorder(is_slow_to_start=True), Recorder()
    images = cubins.compiled(kernels, slow, SM_90A)
    assert sorted(map(len, slow.units)) == [1, 4, 5]
    assert [image.kernels[0] for image in images] == [kernel.name for kernel in kernels]
    cubins.clear_cache()
    assert cubins.compiled(kernels, quick, SM_90A) == images
    assert len(quick.units) == 10
