"""Functions that are exported for GPUs, run by C++ programs on emulated ones, with the results of the CPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

if not shutil.which("g++"):
    pytest.skip("there is no C++ compiler", allow_module_level=True)

from safetensors.numpy import save_file
from support.emulated_export import CHECKED, CONTROLS, RUN, TARGET, compiled, export, printed
from support.exported_gpu import check_training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn, random
from tvmfun.errors import ExportError
from tvmfun.export import INCLUDE, load, read_manifest


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def until_30(x, **options):
    return lax.while_loop(lambda c: tnp.sum(c) < 30.0, lambda c: c + tnp.tanh(c) ** 2, x, **options)


def rows(x, count):
    """A loop whose count and indices are on the GPU."""
    return lax.fori_loop(0, count, lambda i, x: x.at[i].add(i * 2.0), x)


BRANCHES = [lambda x: x + 1, lambda x: x * 2, tnp.sin, lambda x: x - 1]
PROGRAMS = {
    "softmax": (lambda x, w: nn.functional.softmax(x @ w), draw(5, 7), draw(7, 9)),
    "scan": (lambda w, xs: lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, xs[0], xs), draw(6, 6), draw(5, 2, 6)),
    "indices": (lambda x: lax.fori_loop(0, 5, lambda i, x: x.at[i].add(i * 2.0), x), draw(6, 3)),
    "keys": (lambda key: (random.normal(key, (40,)), random.permutation(key, 9)), random.key(3)),
    "views": (lambda x: (x, x.reshape(4, 3), x + 1), draw(3, 4)),
    "no elements": (lambda x, y: (x @ y, tnp.sum(x), x[:0] + 1), draw(3, 0), draw(0, 4)),
    "constants": (lambda x: (x + tnp.asarray(draw(4, seed=1)), tnp.full((3,), 2), True), draw(4)),
    "while": (until_30, draw(40)),
    "bounded": (tvmfun.grad(lambda x: tnp.sum(until_30(x, max_steps=12) ** 2)), draw(40)),
    "count": (rows, draw(6, 3), np.int32(4)),
    "switch": (lambda i, x: [lax.switch(i + k, BRANCHES, x) for k in (-9, 0, 1, 9)], np.int32(1), draw(40)),
    "cond in scan": (
        lambda x: lax.scan(lambda c, y: (lax.cond(y > 0, BRANCHES[0], BRANCHES[1], c), c), 1.0, x), draw(6),
    ),
    "two results": (lambda x: (tnp.sort(x) + 1,) * 2, draw(9)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_the_results_of_the_cpu(name, tmp_path):
    function, *arguments = PROGRAMS[name]
    export(function, arguments, tmp_path / "f.so")
    names = [leaf["name"] for leaf in read_manifest(tmp_path / "f.so")["inputs"]]
    leaves = [np.asarray(leaf) for leaf in tvmfun.tree.leaves(arguments)]
    save_file(dict(zip(names, leaves, strict=True)), tmp_path / "arguments")
    counts = printed(compiled(RUN), tmp_path / "f.so", tmp_path / "arguments", tmp_path / "results", 4).split()
    assert counts[-1] == "0"
    content = (tmp_path / "results").read_bytes()
    for leaf in map(np.asarray, tvmfun.tree.leaves(tvmfun.jit(function)(*arguments))):
        ours = np.frombuffer(content[: leaf.nbytes], leaf.dtype).reshape(leaf.shape)
        np.testing.assert_allclose(ours, leaf, rtol=1e-5, atol=1e-5)
        content = content[leaf.nbytes :]
    assert not content


def nested(n, x):
    """A loop of ``n`` steps over a branch without a step in one case and a branch of four."""

    def step(i, x):
        x = lax.cond(x[0] > 0, lambda x: lax.switch(i + 1, BRANCHES, x), lambda x: x, x)
        return tnp.cos(x) - 0.5

    return lax.fori_loop(0, n, step, x)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["13000", "12040", "12020"])
def test_control_flow_is_a_part_of_the_graph(version, tmp_path):
    export(nested, (np.int32(4), draw(40)), tmp_path / "f.so")
    save_file({"n": np.asarray(5, np.int32), "x": draw(40)}, tmp_path / "arguments")
    command = (compiled(RUN), tmp_path / "f.so", tmp_path / "arguments", tmp_path / "results", 4)
    graphs, replays, _, alive = map(int, printed(*command, EMULATED_VERSION=version).split())
    assert alive == 0 and ((graphs, replays) == (1, 3)) == (version != "12020")
    result = np.frombuffer((tmp_path / "results").read_bytes(), np.float32)
    np.testing.assert_allclose(result, np.asarray(tvmfun.jit(nested)(np.int32(5), draw(40))), rtol=1e-5)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_step_with_loops_branches_keys_and_donation(tmp_path):
    check_training(export, printed, tmp_path)


# -- graphs and streams ------------------------------------------------------------------------------------------------


def chain(w, x):
    for _ in range(4):
        w = tnp.sort(w) + x
    return w


@pytest.mark.slow
def test_addresses_that_come_again_are_a_graph(tmp_path):
    export(chain, (draw(40), draw(40)), tmp_path / "f.so")
    save_file({"w": draw(40), "x": draw(40)}, tmp_path / "arguments")
    counts = printed(compiled(RUN), tmp_path / "f.so", tmp_path / "arguments", tmp_path / "results", 6).split()
    graphs, replays, launches, alive = map(int, counts)
    assert (graphs, replays, alive) == (1, 5, 0)
    assert launches > 1  # those of the first run


STREAMS = (
    CONTROLS
    + """
#include <thread>

// Runs one step in streams and in threads at once, each with its own memory.
int main(int, char** words) {
  control<void(int, std::size_t, std::uint64_t)>("emulated_reset")(2, std::size_t{1} << 30, 3);
  tvmfun_cuda_options second;
  second.device = 1;
  tvmfun::CudaStep shared(words[1], second);
  auto call = [&](int i, bool own_stream) {
    void *context = nullptr, *stream = nullptr;
    control<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 1);
    control<int(void*)>("cuCtxPushCurrent_v2")(context);
    if (own_stream) {
      control<int(void**, unsigned)>("cuStreamCreate")(&stream, 0);
    }
    std::vector<float> w(40, static_cast<float>(i)), x(40, 1.0f), y(40);
    tvmfun::DeviceBuffer on_gpu[] = {{shared, 160}, {shared, 160}, {shared, 160}};
    on_gpu[0].upload(w.data(), 160);
    on_gpu[1].upload(x.data(), 160);
    shared.synchronize();
    tvmfun_buffer buffers[3];
    for (int k = 0; k < 3; k++) {
      buffers[k] = {on_gpu[k].data(), 160, TVMFUN_FLOAT32};
    }
    for (int k = 0; k < 5; k++) {
      shared.run(buffers, 2, buffers + 2, 1, stream);
    }
    shared.synchronize(stream);
    on_gpu[2].download(y.data(), 160);
    bool is_right = true;
    for (float value : y) {
      is_right = is_right && value == static_cast<float>(i + 4);
    }
    std::printf("%d", is_right);
  };
  call(1, true);
  call(2, false);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; i++) {
    threads.emplace_back(call, 10 * i, i % 2);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}
"""
)


@pytest.mark.slow
def test_streams_threads_and_another_gpu(tmp_path):
    export(chain, (draw(40), draw(40)), tmp_path / "f.so")
    assert printed(compiled(STREAMS, *CHECKED, "-pthread"), tmp_path / "f.so") == "1" * 8


# -- errors ------------------------------------------------------------------------------------------------------------


def step(state, x):
    """Two updates whose number of iterations depends on the data, with an array that the function closes over."""
    state = lax.fori_loop(0, 2, lambda i, w: w - 0.1 * tnp.sort(w * x) * i, state)
    return until_30(tnp.abs(state)) + tnp.asarray(draw(40, seed=5)), tnp.sum(state)


STATUSES = (
    CONTROLS
    + """
template <class Function>
void attempt(Function function) {
  try {
    function();
    std::puts("0");
  } catch (const tvmfun::Error& error) {
    std::printf("%d %s\\n", error.status(), error.what());
  }
}

int main(int count, char** words) {
  for (int i = 1; i < count; i++) {
    attempt([&] { tvmfun::CudaStep step(words[i]); });
  }
}
"""
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "step.so"
    export(step, (draw(40), draw(40, seed=1)), path, values={"x": draw(40, seed=1)})
    return path


def statuses(*words, **variables):
    lines = printed(compiled(STATUSES, *CHECKED), *words, **variables).splitlines()
    return [(int(line.split(" ")[0]), line.partition(" ")[2]) for line in lines]


@pytest.mark.slow
def test_damaged_libraries(library, tmp_path):
    content, rng = library.read_bytes(), np.random.default_rng(1)
    damaged = [tmp_path / f"{i}.so" for i in range(100)]
    for i, path in enumerate(damaged):
        changed = bytearray(content[: rng.integers(len(content))] if i % 2 else content)
        if not i % 2:
            changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
    found = statuses(*damaged, library)
    assert [status for status, _ in found] == [9] * len(damaged) + [0]


@pytest.mark.slow
def test_machines_that_lack_something(library, tmp_path):
    if not tvmfun.devices("cuda"):
        ((status, message),) = statuses(library, LD_LIBRARY_PATH="")
        assert status == 12 and message.startswith("NVIDIA's driver is not installed: libcuda.so.1: ")
    (tmp_path / "old.c").write_text("int cuInit(unsigned f) { return f; } int cuGetErrorName(void) { return 1; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "old.c"], check=True)
    ((status, message),) = statuses(library, LD_LIBRARY_PATH=str(tmp_path))
    assert status == 12 and "too old: it lacks cuDriverGetVersion" in message


@pytest.mark.slow
def test_libraries_of_the_other_kind(library, tmp_path):
    tvmfun.jit(lambda x: x + 1).lower(draw(3)).compile().export(tmp_path / "cpu.so")
    ((status, message),) = statuses(tmp_path / "cpu.so")
    assert (status, message) == (10, "<lambda> has no code for GPUs: Step runs it")
    assert read_manifest(library)["platform"] == "cuda"
    with pytest.raises(ExportError, match="is for GPUs, and runs in C and C\\+\\+ programs, got cuda") as raised:
        load(library)
    assert raised.value.status == "WRONG_ARCHITECTURE"


MISUSE = (
    STATUSES.partition("int main")[0]
    + """
int main(int, char** words) {
  auto is = control<void(int, int, int)>("emulated_is");
  auto reset = control<void(int, std::size_t, std::uint64_t)>("emulated_reset");
  auto load = [&] { tvmfun::CudaStep step(words[1]); };
  std::size_t memory = std::size_t{1} << 30;
  attempt([&] { tvmfun::Step step(words[1]); });
  reset(0, memory, 0);
  attempt(load);
  reset(2, 1000, 0);
  attempt(load);
  reset(2, memory, 0);
  is(11080, 9, 0);
  attempt(load);
  for (int minor : {0, 6}) {
    is(13000, 8, minor);
    tvmfun::CudaStep step(words[1]);
    std::printf("%s\\n", step.plan().target);
  }
  for (int major : {7, 9, 10}) {
    is(13000, major, major == 9);
    attempt(load);
  }
  is(13000, 9, 0);
  for (int device : {-1, 2}) {
    tvmfun_cuda_options options;
    options.device = device;
    attempt([&] { tvmfun::CudaStep step(words[1], options); });
  }
  tvmfun_cuda_options second;
  second.device = 1;
  tvmfun::CudaStep step(words[1]), other(words[1], second);
  tvmfun_plan plan = step.plan();
  std::printf("%s %d\\n", plan.target, plan.arguments == 320 && plan.results == 164 && plan.workspaces >= 160);
  tvmfun::DeviceBuffer state(step, 224), x(step, 160), result(step, 160), sum(step, 4), elsewhere(other, 160);
  alignas(64) float host[40];
  auto buffer = [](void* data, std::size_t nbytes = 160, std::int32_t dtype = TVMFUN_FLOAT32, std::size_t offset = 0) {
    return tvmfun_buffer{static_cast<char*>(data) + offset, nbytes, dtype};
  };
  auto run = [&](tvmfun_buffer argument, tvmfun_buffer first, std::int32_t count = 2) {
    attempt([&] {
      tvmfun_buffer inputs[] = {argument, buffer(x.data())}, outputs[] = {first, buffer(sum.data(), 4)};
      step.run(inputs, count, outputs, 2);
      step.synchronize();
    });
  };
  tvmfun_buffer right = buffer(state.data()), out = buffer(result.data());
  run(right, out);
  run(buffer(state.data(), 156), out);
  run(buffer(state.data(), 160, TVMFUN_INT32), out);
  run(buffer(state.data(), 160, TVMFUN_FLOAT32, 4), out);
  run({nullptr, 160, TVMFUN_FLOAT32}, out);
  run(buffer(host), out);
  run(buffer(elsewhere.data()), out);
  run(right, right);
  run(right, out, 1);
  run(right, out);
  tvmfun::CudaCall call(step);
  attempt([&] { call.argument("w"); });
  attempt([&] { call.argument("x").download<double>(); });
  attempt([&] { call.argument("x").upload(std::vector<float>(39)); });
  attempt([&] { state.upload(host, 160); });
  attempt([&] { call.feed("[1]", "x"); });
  std::printf("%d\\n", call.argument("x").download<float>()[1] == call.argument("x").download<float>()[1]);
}
"""
)


@pytest.mark.slow
def test_misuse_and_other_gpus(tmp_path):
    targets = [TARGET, {"kind": "cuda", "arch": "sm_80"}]
    export(step, (draw(40), draw(40, seed=1)), tmp_path / "f.so", targets=targets, values={"x": draw(40, seed=1)})
    lines = printed(compiled(MISUSE, *CHECKED), tmp_path / "f.so").splitlines()
    expected = [
        "10 step is for GPUs: CudaStep runs it",
        "12 NVIDIA's driver finds no GPU",
        "6 GPU 0 has no memory for ",
        "12 NVIDIA's driver is too old: it is for CUDA 11.8, 12.0 is needed",
        "sm_80 (cuda)",
        "sm_80 (cuda)",
        "10 the code is for sm_90a (cuda), sm_80 (cuda), but GPU 0 has the compute capability 7.0",
        "10 the code is for sm_90a (cuda), sm_80 (cuda), but GPU 0 has the compute capability 9.1",
        "10 the code is for sm_90a (cuda), sm_80 (cuda), but GPU 0 has the compute capability 10.0",
        "1 device must be from 0 to 1, got -1",
        "1 device must be from 0 to 1, got 2",
        "sm_90a (cuda) 1",
        "0",
        "2 state must have 160 bytes, got 156",
        "3 state must have the dtype 12 of tvmfun_dtype, got 4",
        "4 state must begin at a multiple of 64, got ",
        "1 state must have data, got NULL",
        "1 state must be memory of GPU 0, got an address of the host",
        "1 state must be memory of GPU 0, got that of GPU 1",
        "5 ",
        "1 step takes 2 buffers and writes 2, got 1 and 2",
        "0",
        "1 there is no argument w",
        "3 x has the dtype float32",
        "2 x has 40 elements, got 39",
        "2 the buffer has 224 bytes, got 160",
        "2 cannot feed [1] to x: they have different types",
        "1",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


FAULTS = (
    CONTROLS
    + """
// faults LIBRARY CODE: makes each call of the driver fail in turn; prints the functions with the statuses of the step.
int main(int, char** words) {
  void* library = dlopen(words[1], RTLD_NOW);  // once, since checking a file takes time
  auto api = reinterpret_cast<const tvmfun_api* (*)()>(dlsym(library, "tvmfun_get_api"))();
  auto cuda = reinterpret_cast<const tvmfun_cuda_api* (*)()>(dlsym(library, "tvmfun_get_cuda_api"))();
  auto reset = control<void(int, std::size_t, std::uint64_t)>("emulated_reset");
  auto failed = control<const char*()>("emulated_failed");
  std::vector<float> state(40, 0.5f), expected;
  for (unsigned long i = 0;; i++) {
    reset(1, std::size_t{1} << 30, 0);
    control<void(std::uint64_t, int)>("emulated_fail_call")(i, std::atoi(words[2]));
    int status = 0;
    try {
      tvmfun::CudaCall call{tvmfun::CudaStep(api, cuda)};
      for (int k = 0; k < 4 || (status && k < 5); k++) {  // after a failure, a run that is right
        try {
          call.argument("state").upload(state);
          call.run();
          call.synchronize();
        } catch (const tvmfun::Error& error) {
          status = error.status();
        }
      }
      std::vector<float> found = call.result("result").download<float>();
      expected = expected.empty() ? found : expected;
      if (found != expected) {
        std::printf("wrong ");
      }
    } catch (const tvmfun::Error& error) {
      status = error.status();
    }
    std::printf("%s %d %d %d\\n", *failed() ? failed() : "none", status, live(), control<int()>("emulated_depth")());
    if (!*failed()) {
      return 0;
    }
  }
}
"""
)
# Functions that free something: an error of theirs is nobody's, and what they should have freed stays.
FREEING = ("Destroy", "Free", "Unload", "Release", "PopCurrent")


@pytest.fixture(scope="module")
def small_library(tmp_path_factory):
    """A loop that depends on data, two launches that become a graph, and an array that the function closes over."""
    path = tmp_path_factory.mktemp("export") / "small.so"
    function = lambda state: lax.while_loop(
        lambda c: tnp.sum(c) < 30.0, lambda c: tnp.sort(c) + tnp.asarray(draw(40)) ** 2, state
    )
    export(function, (draw(40),), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("code", "meant"), [(2, {6}), (719, {7, 12, 13})])
def test_each_call_of_the_driver_that_fails(small_library, code, meant):
    # Memory that the failing function should have freed is not ours; live() counts the rest.
    options = {"ASAN_OPTIONS": "detect_leaks=0"}
    lines = printed(compiled(FAULTS, *CHECKED), small_library, code, **options).splitlines()
    assert lines[-1] == "none 0 0 0"
    assert len(lines) > 50
    names = set()
    for line in lines[:-1]:
        name, status, alive, depth = line.split()
        names.add(name)
        if any(part in name for part in FREEING):
            assert int(status) in {0, *meant} and int(alive) <= 1 and int(depth) <= 1, line
        elif status == "0":  # in destroy: a wait, or everything is left to the context that cannot be used
            assert name in ("cuEventSynchronize", "cuStreamSynchronize", "cuCtxPushCurrent_v2"), line
        else:
            assert int(status) in meant and (alive, depth) == ("0", "0"), line
    assert {"cuModuleLoadData", "cuMemAlloc_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord"} <= names
    assert {"cuGraphLaunch", "cuGraphAddKernelNode_v2", "cuGraphAddNode_v2", "cuGraphInstantiateWithFlags"} <= names


# -- the driver's header -----------------------------------------------------------------------------------------------

HEADER = Path("/usr/local/cuda/include/cuda.h")
STRUCTURES = {
    "CUDA_KERNEL_NODE_PARAMS_v2": ("cuda_kernel_node", {"func": "function", "gridDimX": "grid", "ctx": "context"}),
    "CUlaunchConfig": (
        "cuda_config",
        {"sharedMemBytes": "shared_bytes", "hStream": "stream", "numAttrs": "attribute_count"},
    ),
    "CUlaunchAttribute": ("cuda_attribute", {"value": "value"}),
    "CUgraphNodeParams": (
        "cuda_conditional_node",
        {
            "conditional.handle": "condition",
            "conditional.type": "kind",
            "conditional.size": "body_count",
            "conditional.phGraph_out": "bodies",
            "conditional.ctx": "context",
        },
    ),
    "CUDA_MEMCPY3D": (
        "cuda_copy_node",
        {
            "srcDevice": "source",
            "srcPitch": "source_pitch",
            "dstMemoryType": "kind",
            "dstDevice": "target",
            "Depth": "depth",
        },
    ),
}
CONSTANTS = {
    "CUDA_ERROR_INVALID_VALUE": "CUDA_INVALID_VALUE",
    "CUDA_ERROR_OUT_OF_MEMORY": "CUDA_OUT_OF_MEMORY",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "CUDA_NO_CODE",
    "CUDA_ERROR_INVALID_IMAGE": "CUDA_BAD_IMAGE",
    "CUDA_ERROR_INVALID_PTX": "CUDA_BAD_PTX",
    "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND": "CUDA_NO_SYMBOL",
    "CU_GRAPH_NODE_TYPE_CONDITIONAL": "CUDA_CONDITIONAL",
    "CU_GRAPH_COND_TYPE_IF": "CUDA_IF",
    "CU_GRAPH_COND_TYPE_WHILE": "CUDA_LOOP",
    "CU_GRAPH_COND_TYPE_SWITCH": "CUDA_SWITCH",
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": "CUDA_MAJOR",
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": "CUDA_MINOR",
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": "CUDA_DYNAMIC_SHARED_BYTES",
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": "CUDA_CLUSTER",
    "CU_POINTER_ATTRIBUTE_MEMORY_TYPE": "CUDA_MEMORY_KIND",
    "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL": "CUDA_MEMORY_DEVICE",
    "CU_MEMORYTYPE_DEVICE": "CUDA_DEVICE_MEMORY",
    "CU_EVENT_DISABLE_TIMING": "CUDA_WITHOUT_TIME",
}


@pytest.mark.skipif(not HEADER.exists(), reason="there is no cuda.h")
def test_structures_and_numbers_are_those_of_the_header(tmp_path):
    lines = ["#include <cuda.h>", "#include <stddef.h>", '#include "cuda_driver.h"']
    for theirs, (ours, fields) in STRUCTURES.items():
        pairs = [(f"sizeof(struct {ours})", f"sizeof({theirs})")]
        pairs += [(f"offsetof(struct {ours}, {own})", f"offsetof({theirs}, {name})") for name, own in fields.items()]
        lines += [f'_Static_assert({left} == {right}, "{theirs}");' for left, right in pairs]
    lines += [f'_Static_assert((int){theirs} == (int){ours}, "{theirs}");' for theirs, ours in CONSTANTS.items()]
    (tmp_path / "layout.c").write_text("\n".join(lines))
    include = [f"-I{HEADER.parent}", f"-I{INCLUDE}", f"-I{INCLUDE.parent / 'library'}"]
    subprocess.run(["gcc", "-std=c11", *include, "-c", tmp_path / "layout.c", "-o", tmp_path / "layout.o"], check=True)
