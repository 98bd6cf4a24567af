"""Libraries for emulated GPUs, and C++ programs that run them with the emulated driver as ``libcuda.so.1``."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvmfun
from support.cuda_emulator.gpu import driver_path, emulated_gpus
from tvmfun.export import INCLUDE

TARGET = {"kind": "cuda", "arch": "sm_90a"}
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
_WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")

#: The emulated driver's controls, for programs that have opened it.
CONTROLS = """
#include <cstdio>
#include <dlfcn.h>

#include "tvmfun/cuda.hpp"
#include "tvmfun/safetensors.hpp"

template <class Function>
Function* control(const char* name) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(driver, name));
}

inline unsigned long calls(const char* name) { return control<unsigned long(const char*)>("emulated_calls")(name); }
inline int live() {  // 0 on a real GPU
  auto count = control<int()>("emulated_live");
  return count ? count() : 0;
}
"""

RUN = (
    CONTROLS
    + """
// run LIBRARY ARGUMENTS RESULTS COUNT: runs a function on arguments from a file, and writes the bytes of its results.
int main(int, char** words) {
  {
    tvmfun::CudaCall call{tvmfun::CudaStep(words[1])};
    tvmfun::HostCopies arguments = call.download("");
    tvmfun::load_safetensors(words[2], arguments.arrays());
    for (int i = 0; i < std::atoi(words[4]); i++) {
      call.upload("", arguments.arrays());
      call.run();
    }
    tvmfun::CudaStep step(words[1]);  // its leaves; another one at the same time
    std::ofstream file(words[3], std::ios::binary);
    for (int i = 0; i < step.signature().output_count; i++) {
      tvmfun::DeviceArray result = call.result(step.signature().outputs[i].name);
      tvmfun::detail::HostMemory copy(step.signature().outputs[i]);
      result.download(tvmfun::Array(result.name(), &step.signature().outputs[i], copy.data()));
      file.write(static_cast<const char*>(copy.data()), static_cast<std::streamsize>(copy.nbytes()));
    }
  }
  std::printf("%lu %lu %lu %d", calls("cuGraphInstantiateWithFlags"), calls("cuGraphLaunch"), calls("cuLaunchKernelEx"),
              live());
}
"""
)


def compiled(source: str, *options: str) -> Path:
    """A C++ program; one process compiles it once."""
    return _compiled(source, options)


@functools.cache
def _compiled(source: str, options: tuple[str, ...]) -> Path:
    folder = Path(_folder().name)
    program = folder / f"program{len(list(folder.iterdir()))}"
    program.with_suffix(".cpp").write_text(source)
    command = ["g++", "-std=c++17", *_WARNINGS, f"-I{INCLUDE}", *options, str(program) + ".cpp", "-o", str(program)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return program


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory(prefix="exported")
    (Path(folder.name) / "libcuda.so.1").symlink_to(driver_path())
    return folder


def environment() -> dict[str, str]:
    """The environment of a process that finds the emulated driver."""
    return {**os.environ, "LD_LIBRARY_PATH": _folder().name}


def printed(*command: Any, **variables: str) -> str:
    """Runs a program that finds the emulated driver and must not fail; returns its output."""
    words = list(map(str, command))
    process = subprocess.run(words, capture_output=True, text=True, env={**environment(), **variables})
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def export(function: Callable, arguments: Sequence[Any], path: Path, donate: Any = (), **options: Any) -> None:
    """Exports a function for emulated GPUs."""
    with emulated_gpus():
        jitted = tvmfun.jit(function, donate_argnums=donate, target=TARGET)
        jitted.lower(*arguments).compile().export(path, **options)
