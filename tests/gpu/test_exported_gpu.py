"""An exported step on a real GPU, in a C++ program. Run by ``nox -s gpu_library`` on a machine that has one."""

import shutil
import subprocess

import pytest
from support.exported_gpu import check_training

import tvmfun

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tvmfun.devices("cuda"), reason="there is no CUDA device"),
    pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler"),
]


def export(function, arguments, path, donate):
    tvmfun.jit(function, donate_argnums=donate, target="cuda").lower(*arguments).compile().export(path)


def printed(*command):
    # The driver keeps memory, and maps more than the sanitizer expects.
    environment = {"ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0"}
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=True).stdout


def test_a_cpp_program_trains_as_the_cpu_does(tmp_path):
    check_training(export, printed, tmp_path)
